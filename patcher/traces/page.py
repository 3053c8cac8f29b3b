"""The page of a report and of a comparison: one file that needs no network, no script to be read, and stays small.

Pure functions of the values of ``model``. Whatever comes from a trace goes through ``markup`` as text; no data stands
within the script, and the page's own policy (CSP) lets nothing run or load but the script and the style that are
named in it by their hashes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from patcher.traces import facts
from patcher.traces.markup import Content, Markup, literal, tag
from patcher.traces.model import (
    FORMS,
    KINDS,
    PARTS,
    Capture,
    Change,
    Comparison,
    Finding,
    Kernel,
    Lanes,
    Rank,
    Report,
    Side,
    Span,
    Unit,
)

LIMIT = 1_000_000
"""Bytes that no page reaches."""

_NAME = 300  # characters of a name: a template's instance can have thousands
_WIDTH, _LEFT = 1000, 62  # of a drawing, in its own units, and of the room for what its axis says
_LANE = 16
_LONG = 14  # characters that one tile has no room for


class _Room(NamedTuple):
    """How much of each thing is shown; what is left out is said, and stands in ``--json``."""

    rows: int
    bars: int
    spans: int
    captures: int


_ROOMS = (
    _Room(400, 400, 1500, 8), _Room(200, 200, 500, 6), _Room(80, 120, 200, 4), _Room(40, 60, 100, 2),
    _Room(15, 40, 40, 1),
)  # fmt: skip


def page(report: Report) -> str:
    """The page of a report, below ``LIMIT`` bytes: details give way before it is reached."""
    return _fitting(lambda room: _report(report, room))


def compared(comparison: Comparison) -> str:
    """The page of a comparison, likewise."""
    return _fitting(lambda room: _comparison(comparison, room))


def _fitting(made: Callable[[_Room], str]) -> str:
    for room in _ROOMS[:-1]:
        text = made(room)
        if len(text.encode()) < LIMIT:
            return text
    return made(_ROOMS[-1])


def _document(title: str, body: Content) -> str:
    import base64
    import hashlib

    style, script = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    policy = "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy.format(*digests)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        literal("style", style),
    )
    made = tag("html", head, tag("body", tag("main", body), literal("script", script)), lang="en")
    return f"<!doctype html>\n{made}\n"


# ---------------------------------------------------------------- a report


def _report(report: Report, room: _Room) -> str:
    captures = report.captures
    # The rank that is looked at first is the slowest one: the others wait for it.
    ordered = sorted(captures, key=lambda one: (-one.median_ns, -one.host_median_ns))
    detailed, rest = ordered[: room.captures], ordered[room.captures :]
    many = len(captures) > 1
    shown = ordered[0] if ordered else None
    body = (
        _head("rlpatch report", captures),
        _withdrawn(report),
        tag("p", report.verdict.title, class_="verdict"),
        [tag("p", line, class_="faint") for line in (report.verdict.guide, report.verdict.difference) if line],
        shown and _tiles(shown, many),
        _findings(report),
        many and _ranks(report.ranks, room),
        many and _collectives(captures, room),
        [_capture(capture, room, opened=not at, alone=not many) for at, capture in enumerate(detailed)],
        rest
        and tag("p", f"{len(rest)} more are left out here: `rlpatch report` of one of them shows it.", class_="faint"),
    )
    return _document(
        f"rlpatch report: {captures[0].label or captures[0].source}" if captures else "rlpatch report", body
    )


def _head(title: str, captures: Sequence[Capture]) -> Content:
    lines = [tag("p", _about(capture), class_="faint") for capture in captures[:4]]
    more = len(captures) - len(lines)
    return tag("header", tag("h1", title), lines, more > 0 and tag("p", f"and {more} more", class_="faint"))


def _about(capture: Capture) -> str:
    form = FORMS.get(capture.form, capture.form)
    words = (capture.source, form, capture.device, _ranked(capture), *facts.told(capture.facts))
    return " · ".join(filter(None, words))


def _ranked(capture: Capture) -> str:
    return "" if capture.rank is None else f"rank {capture.rank}"


def _named(capture: Capture) -> str:
    """What tells it apart from the others of the page."""
    return capture.label or _ranked(capture)


def _withdrawn(report: Report) -> Content:
    if not report.verdict.withdrawn:
        return None
    head = tag("strong", "This data cannot carry every verdict. What rests on a failed check was withdrawn:")
    return tag(
        "div", head, tag("ul", [tag("li", line) for line in report.verdict.withdrawn]), class_="withdrawn", role="alert"
    )


def _tiles(capture: Capture, many: bool) -> Content:
    units = capture.units
    if not units:
        return tag("p", "No unit was found.", class_="faint")
    span = f"unit{'s' * (len(units) > 1)}, {capture.span}"
    title = f"{_named(capture)}, the slowest one" if many else ""
    if not capture.total_ns:
        on_host = (_time(capture.host_median_ns), "median unit time on the host")
        none = tag("p", "Nothing ran on a device.", class_="faint")
        return (title and tag("h2", title), none, _tiled([(str(len(units)), span), on_host]))
    slowest = capture.slowest_unit
    copies = capture.share("copy_ns", "free_host_late_ns", "free_waiting_ns", "free_unknown_ns")
    ratio = slowest.device_ns / capture.median_ns if slowest and capture.median_ns else 0
    tiles = [
        (str(len(units)), span),
        (_time(capture.median_ns), "median unit time"),
        (_time(capture.percentile95_ns), "95th percentile"),
        (f"{ratio:.2f} \N{MULTIPLICATION SIGN}", "slowest unit / median"),
        (_percent(capture.share("compute_ns", "overlap_ns")), "computing"),
        (_percent(capture.share("communication_ns")), "communication, not hidden"),
        (_percent(copies), "free (copies counted in, as in step_trace_time)"),
        (_percent(capture.share("free_host_late_ns")), "free because the host was late"),
    ]
    return (title and tag("h2", title), _tiled(tiles))


def _tiled(tiles: Iterable[tuple[str, str]]) -> Content:
    made = [
        tag("div", tag("dt", about), tag("dd", value), class_="wide" if len(value) > _LONG else None)
        for value, about in tiles
    ]
    return tag("dl", made, class_="tiles")


def _findings(report: Report) -> Content:
    if not report.findings:
        return None
    medians = {capture.source: capture.median_ns for capture in report.captures}
    labels = {capture.source: _named(capture) for capture in report.captures}
    overall = max(medians.values(), default=0)
    many = len(report.captures) > 1

    def shown(finding: Finding) -> Content:
        median = medians.get(finding.source, overall)
        share = f" ({_percent(finding.saving_ns / median, 0)})" if finding.saving_ns and median else ""
        whose = labels.get(finding.source, "") if many else ""
        return tag(
            "article",
            tag("h3", ": ".join(filter(None, (whose, finding.title or finding.id)))),
            tag("p", finding.evidence),
            finding.advice and tag("p", f"Try: {finding.advice}"),
            finding.saving_ns
            and tag("p", tag("strong", f"At most {_time(finding.saving_ns)} per unit to gain{share}.")),
            finding.certainty and tag("p", finding.certainty, class_="faint"),
            class_=f"finding {finding.severity if finding.severity in ('problem', 'warning') else ''}".strip(),
        )

    return tag("section", tag("h2", "First diagnosis"), [shown(finding) for finding in report.findings])


def _ranks(ranks: Sequence[Rank], room: _Room) -> Content:
    if not ranks:
        return None
    heads = ("rank", "units", "median unit", "collectives", "waits for others", "others wait for it", "came last")
    rows = [
        (
            _Cell("?" if one.rank is None else one.rank, one.rank), one.units, _timed(one.median_ns), one.collectives,
            _timed(one.waits_ns), _timed(one.awaited_ns), one.last,
        )
        for one in ranks
    ]  # fmt: skip
    about = (
        "The n-th collective of a group is the same on all its ranks, and who comes last is in it for the least time."
    )
    return _table("Ranks", heads, rows, room, about, names=0)


def _collectives(captures: Sequence[Capture], room: _Room) -> Content:
    """The collectives in which ranks differed most: no clock is compared, only how long each was in it."""
    met: dict[tuple[str, int, int], list[tuple[int, str, str]]] = {}
    for capture in captures:
        for one in capture.collectives:
            met.setdefault((one.group, one.unit, one.index), []).append((one.ns, _named(capture), one.name))
    shared = [(max(times)[0] - min(times)[0], key, times) for key, times in met.items() if len(times) > 1]
    if not shared:
        return None
    rows = [
        (_Cell(min(times)[2]), _Cell(group), _Cell(f"#{unit}", unit), index + 1, _timed(min(times)[0]),
         _timed(max(times)[0]), _timed(spread), _Cell(min(times)[1]))
        for spread, (group, unit, index), times in sorted(shared, key=lambda one: (-one[0], one[1]))
    ]  # fmt: skip
    heads = ("name", "group", "unit", "n-th there", "shortest", "longest", "waiting", "came last")
    return _table("Who waits for whom", heads, rows, room, "", names=2)


def _capture(capture: Capture, room: _Room, *, opened: bool, alone: bool = False, side: str = "") -> Content:
    inner = (
        _bars(capture, room),
        _lanes(capture, room),
        _phases(capture),
        _loads(capture),
        _kernels(capture, room),
        _operators(capture, room),
        _modules(capture, room),
        _held(capture, room),
        _checks(capture),
        _vendor(capture, room),
    )
    if alone:
        return inner
    name = ", ".join(filter(None, (side, _named(capture) or capture.source)))
    median = _time(capture.median_ns) if capture.total_ns else f"{_time(capture.host_median_ns)} on the host"
    title = f"{name}: median unit {median}"
    return tag("details", tag("summary", title), inner, open=opened)


# ---------------------------------------------------------------- drawings


def _bars(capture: Capture, room: _Room) -> Content:
    units = capture.units
    if not units:
        return None
    each = math.ceil(len(units) / room.bars)
    groups = [units[at : at + each] for at in range(0, len(units), each)]
    about = (
        "A bar reaches from the first kernel that the unit launched to the first one of the next unit, the last one to "
    )
    about += "its last kernel. The parts add up to it."
    about = about if capture.total_ns else "Nothing ran on a device: the line is how long each was on the host."
    if each > 1:
        about = f"Each bar is the average of {each} units, which are too many to be drawn one by one. {about}"
    return tag(
        "section", tag("h2", "Each unit"), _legend(part for part in PARTS if any(getattr(u, part) for u in units)),
        tag("figure", _stack(groups, capture.median_ns), tag("figcaption", about)),
    )  # fmt: skip


def _legend(parts: Iterable[str]) -> Content:
    line = tag("svg", tag("path", d="M0 5h10", class_="host"), viewBox="0 0 10 10", aria_hidden="true")
    items = [tag("li", _swatch(part), PARTS[part]) for part in parts]
    return tag("ul", items, tag("li", line, "time on the host"), class_="legend")


def _swatch(part: str) -> Markup:
    return tag("svg", tag("rect", width=10, height=10, rx=2, class_=part), viewBox="0 0 10 10", aria_hidden="true")


def _stack(groups: Sequence[Sequence[Unit]], median: int) -> Markup:
    height, bottom = 250, 226
    means = [{part: sum(getattr(unit, part) for unit in group) / len(group) for part in PARTS} for group in groups]
    hosts = [sum(unit.host_ns for unit in group) / len(group) for group in groups]
    top = max([sum(mean.values()) for mean in means] + hosts) or 1
    scale = (bottom - 12) / top
    slot = min((_WIDTH - _LEFT) / len(groups), 150)
    wide = max(slot * 0.8, slot - 6)
    paths: dict[str, list[str]] = {part: [] for part in PARTS}
    marks, titles, labels = [], [], []
    every = math.ceil(len(groups) / 24)
    for at, (group, mean, host) in enumerate(zip(groups, means, hosts, strict=True)):
        x, y = _LEFT + at * slot + (slot - wide) / 2, float(bottom)
        for part, value in mean.items():
            if value:
                y -= value * scale
                paths[part].append(f"M{x:.1f} {y:.1f}h{wide:.1f}v{value * scale:.1f}h{-wide:.1f}z")
        marks.append(f"M{x:.1f} {bottom - host * scale:.1f}h{wide:.1f}")
        name = _units(group)
        titles.append(_hover(x, 8, wide, bottom - 8, f"{name}: {_time(sum(mean.values()))}", _parts(mean, host)))
        if at % every == 0:
            labels.append(tag("text", group[0].number, x=f"{x + wide / 2:.1f}", y=bottom + 15, text_anchor="middle"))
    line = bottom - median * scale
    return tag(
        "svg", _axis(top, scale, bottom),
        [tag("path", d="".join(drawn), class_=part) for part, drawn in paths.items() if drawn],
        tag("path", d="".join(marks), class_="host"),
        tag("path", d=f"M{_LEFT} {line:.1f}H{_WIDTH}", class_="median"), labels, titles,
        viewBox=f"0 0 {_WIDTH} {height}", role="img", aria_label=f"The parts of {len(groups)} bars, one for each unit",
    )  # fmt: skip


def _units(group: Sequence[Unit]) -> str:
    first, last = group[0].number, group[-1].number
    return f"#{first}" if len(group) == 1 else f"#{first} to #{last}"


def _parts(mean: Mapping[str, float], host: float) -> list[str]:
    return [*(f"{PARTS[part]} {_time(value)}" for part, value in mean.items() if value), f"on the host {_time(host)}"]


def _hover(x: float, y: float, width: float, height: float, first: str, lines: Sequence[str]) -> Markup:
    title = tag("title", "\n".join((first, *lines)))
    return tag("rect", title, x=f"{x:.1f}", y=f"{y:.1f}", width=f"{width:.1f}", height=f"{height:.1f}", class_="hover")


def _axis(top: float, scale: float, bottom: int) -> Content:
    """Lines of the scale of time, from 0 at ``bottom`` upwards."""
    return [
        (
            tag("path", d=f"M{_LEFT} {bottom - value * scale:.1f}H{_WIDTH}", class_="axis"),
            tag("text", _time(value, 0), x=_LEFT - 6, y=f"{bottom - value * scale + 4:.1f}", text_anchor="end"),
        )
        for value in _ticks(top)
    ]


def _ticks(top: float) -> list[float]:
    """Round numbers from 0 to ``top``, four or so."""
    step = 10 ** math.floor(math.log10(top / 4)) if top > 0 else 1.0
    step = next((step * more for more in (1, 2, 2.5, 5, 10) if step * more * 5 >= top), step * 10)
    return [step * at for at in range(int(top / step) + 1)]


def _lanes(capture: Capture, room: _Room) -> Content:
    if not capture.lanes:
        return None
    drawn = []
    for lanes in capture.lanes:
        caption = f"The {lanes.why} unit, #{lanes.number}: {_time(lanes.device_ns)}"
        drawn.append(tag("figure", tag("figcaption", caption), _lane(lanes, room)))
    faint = any(not span.own for lanes in capture.lanes for spans in lanes.streams.values() for span in spans)
    about = faint and tag("p", "Paler: what another unit launched.", class_="faint")
    return tag("section", tag("h2", "On the device"), drawn, about)


def _lane(lanes: Lanes, room: _Room) -> Markup:
    busy = sorted(lanes.streams.items(), key=lambda one: -sum(span.ns for span in one[1]))[:16]
    kept = {name for name, _ in busy}
    streams = [(name, spans) for name, spans in lanes.streams.items() if name in kept]
    scale = (_WIDTH - _LEFT) / (lanes.device_ns or 1)
    longest = sorted((span.ns for _, spans in streams for span in spans), reverse=True)
    named = longest[: room.spans][-1] if longest else 0
    content: list[Content] = []
    for row, (name, spans) in enumerate(streams):
        y = row * _LANE
        content.append(tag("text", _cut(str(name), 10), x=_LEFT - 6, y=y + 12, text_anchor="end"))
        content.append(tag("path", d=f"M{_LEFT} {y + _LANE - 1.5}H{_WIDTH}", class_="axis"))
        content += _spans(spans, scale, y, named)
    y = len(streams) * _LANE
    content += [
        tag(
            "text",
            _time(value, 0),
            x=f"{_LEFT + value * scale:.1f}",
            y=y + 14,
            text_anchor="middle" if value else "start",
        )
        for value in _ticks(lanes.device_ns)
    ]
    return tag(
        "svg", content, viewBox=f"0 0 {_WIDTH} {y + 20}", role="img", aria_label=f"The streams in unit {lanes.number}"
    )


def _spans(spans: Iterable[Span], scale: float, y: float, named: int) -> Iterable[Markup]:
    """The spans of one stream: those that are long enough to point at with their names, the others in one path."""
    small: dict[str, list[str]] = {}
    for span in spans:
        begin, end = (min(max(_LEFT + at * scale, _LEFT), _WIDTH) for at in (span.begin_ns, span.begin_ns + span.ns))
        wide = max(end - begin, 0.6)
        kind = f"{span.kind if span.kind in KINDS else 'compute'}{'' if span.own else ' others'}"
        if span.ns >= named and wide > 1.5:
            count = f", {span.count} tasks" if span.count > 1 else ""
            title = tag("title", f"{_cut(span.name)}\n{_time(span.ns)} at {_time(span.begin_ns)}{count}")
            yield tag("rect", title, x=f"{begin:.1f}", y=y, width=f"{wide:.1f}", height=_LANE - 4, class_=kind)
        else:
            small.setdefault(kind, []).append(f"M{begin:.1f} {y}h{wide:.1f}v{_LANE - 4}h{-wide:.1f}z")
    for kind, drawn in small.items():
        yield tag("path", d="".join(drawn), class_=kind)


def _loads(capture: Capture) -> Content:
    """The time of a unit against what it held, where marks or facts tell."""
    drawn, before = [], []
    on_device = bool(capture.total_ns)  # asked once: it is a sum over all units
    clock = "" if on_device else " on the host"
    for name, about in (("requests", "requests"), ("context", "tokens of context"), ("tokens", "tokens scheduled")):
        points = [(getattr(unit, name), unit) for unit in capture.units if getattr(unit, name) is not None]
        values = [value for value, _ in points]
        if len(set(values)) > 1 and values not in before:  # each request that decodes is given one token
            before.append(values)
            times = [(value, unit.device_ns if on_device else unit.host_ns, unit.number) for value, unit in points]
            drawn.append(tag("figure", tag("figcaption", f"Unit time{clock} against {about}"), _scatter(times, about)))
    return tag("section", tag("h2", "What the units held"), drawn) if drawn else None


def _scatter(points: Sequence[tuple[int, int, int]], about: str) -> Markup:
    """Values across, times up; the number of its unit stands beside each."""
    bottom = 160
    top = max(time for _, time, _ in points) or 1
    low, high = min(value for value, _, _ in points), max(value for value, _, _ in points)
    scale, across = (bottom - 12) / top, (_WIDTH - _LEFT - 30) / (high - low)
    dots = [
        tag(
            "circle", tag("title", f"#{number}: {value:,} {about}, {_time(time)}"), r=3.5, class_="dot",
            cx=f"{_LEFT + 15 + (value - low) * across:.1f}", cy=f"{bottom - time * scale:.1f}",
        )
        for value, time, number in points[:: math.ceil(len(points) / 600)]
    ]  # fmt: skip
    ends = [
        tag("text", f"{value:,}", x=f"{_LEFT + 15 + (value - low) * across:.1f}", y=bottom + 16, text_anchor="middle")
        for value in (low, high)
    ]
    return tag(
        "svg", _axis(top, scale, bottom), dots, ends, viewBox=f"0 0 {_WIDTH} {bottom + 22}", role="img",
        aria_label=f"Unit time against {about}",
    )  # fmt: skip


# ---------------------------------------------------------------- tables


class _Cell(NamedTuple):
    """What a cell shows, and the number by which it is sorted if that is another one; ``bar`` is drawn before it."""

    shown: object
    value: float | int | None = None
    bar: tuple[float, str] | None = None

    def made(self, name: bool) -> Markup:
        bar = None
        if self.bar:
            rect = tag("rect", width=f"{100 * min(self.bar[0], 1):.1f}", height=10, class_=self.bar[1])
            bar = tag("svg", rect, viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")
        return tag("td", bar, self.shown, class_="name" if name else None, data_value=self.value)


def _timed(ns: float) -> _Cell:
    return _Cell(_time(ns), round(ns))


def _table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[object]], room: _Room, about: str = "", *, names: int = 1
) -> Content:
    """A table that can be filtered and sorted; the first ``names`` columns hold names."""
    if not rows:
        return None
    shown = rows[: room.rows]
    left = len(rows) - len(shown)
    search = tag(
        "p", tag("input", type="search", placeholder="filter", aria_label=f"Filter {title}"), " ",
        tag("output", class_="faint"),
    )  # fmt: skip
    head = tag(
        "tr",
        [
            tag(
                "th", tag("button", word, type="button"), scope="col", class_="name" if at < names else None,
                data_first="ascending" if at < names else None,
            )
            for at, word in enumerate(heads)
        ],
    )  # fmt: skip
    cells = [[cell if isinstance(cell, _Cell) else _Cell(cell, cell) for cell in row] for row in shown]  # type: ignore[arg-type]
    body = [tag("tr", [cell.made(at < names) for at, cell in enumerate(row)]) for row in cells]
    return tag(
        "section",
        tag("h2", title),
        about and tag("p", about, class_="faint"),
        len(rows) > 8 and search,
        tag("div", tag("table", tag("thead", head), tag("tbody", body)), class_="table"),
        left > 0 and tag("p", f"{left:,} more rows are left out here: `--json` has them.", class_="faint"),
    )


def _held(capture: Capture, room: _Room) -> Content:
    """What each unit held, as the facts beside the trace tell."""
    told = [name for name in (*facts.HELD, "uncounted") if any(getattr(unit, name) for unit in capture.units)]
    padded = any(unit.padded for unit in capture.units)
    if not capture.facts or not (told or padded):
        return None
    heads = ["unit", "time", "host", "kernels", *(_HEADS.get(name, name) for name in told), *["padded to"] * padded]

    def row(unit: Unit) -> list[object]:
        counts = [_Cell("" if (value := getattr(unit, name)) is None else f"{value:,}", value) for name in told]
        shape = [_Cell(" \N{MULTIPLICATION SIGN} ".join(map(str, unit.padded or ())))] * padded
        times = (_timed(unit.device_ns), _timed(unit.host_ns))
        return [_Cell(f"#{unit.number}", unit.number), *times, unit.kernels, *counts, *shape]

    uncounted = {unit.number: unit.uncounted for unit in capture.units if unit.uncounted}
    about = f"{facts.lying_between(uncounted)}." if uncounted else ""
    return _table("Units one by one", heads, [row(unit) for unit in capture.units], room, about, names=0)


_HEADS = {"longest": "longest context", "context": "context, summed", "uncounted": "uncounted before"}


def _kernels(capture: Capture, room: _Room) -> Content:
    count, total = len(capture.units) or 1, capture.total_ns or 1
    widest = max((kernel.ns for kernel in capture.kernels), default=1) or 1

    def row(one: Kernel) -> tuple[_Cell, ...]:
        bar = (one.ns / widest, one.kind if one.kind in KINDS else "total")
        average = one.ns / (one.calls or 1)
        return (
            _Cell(_cut(one.name)), _Cell(one.kind), _Cell(_ms(one.ns / count), one.ns),
            _Cell(_percent(one.ns / total), one.ns, bar), _Cell(f"{one.calls / count:,.1f}", one.calls),
            _Cell(_us(average), average), _Cell(_us(one.longest_ns) if one.longest_ns else "", one.longest_ns),
        )  # fmt: skip

    heads = ("name", "kind", "ms per unit", "share of unit time", "calls per unit", "average µs", "longest µs")
    about = "Of the units that launched them. Kernels at the same time count each by itself."
    return _table("Kernels", heads, [row(one) for one in capture.kernels], room, about)


def _operators(capture: Capture, room: _Room) -> Content:
    about = "On the host without the operators within."
    if capture.total_ns:
        about = "Kernels by the operator that launched them itself; on the host without the operators within."
    return _callers("Operators", capture.operators, capture, room, about)


def _modules(capture: Capture, room: _Room) -> Content:
    return _callers("Modules", capture.modules, capture, room, "With all that is called within a module.")


def _callers(title: str, found: Sequence[object], capture: Capture, room: _Room, about: str) -> Content:
    count = len(capture.units) or 1
    rows: list[tuple[_Cell, ...]] = []
    widest = max((getattr(one, "ns", 0) for one in found), default=1) or 1
    for one in found:
        name, calls, kernels, ns, host = (getattr(one, key) for key in ("name", "calls", "kernels", "ns", "host_ns"))
        rows.append(
            (
                _Cell(_cut(name)), _Cell(_ms(ns / count), ns, (ns / widest, "compute")),
                _Cell(f"{kernels / count:,.1f}", kernels), _Cell(f"{calls / count:,.1f}", calls),
                _Cell(_ms(host / count), host),
            )
        )  # fmt: skip
    heads: tuple[str, ...] = (
        "name",
        "ms of kernels per unit",
        "kernels per unit",
        "calls per unit",
        "ms on the host per unit",
    )
    if not capture.total_ns:  # then they launched nothing
        kept = (0, 4, 3)
        heads, rows = tuple(heads[at] for at in kept), [tuple(row[at] for at in kept) for row in rows]
    return _table(title, heads, rows, room, about)


def _phases(capture: Capture) -> Content:
    sums: dict[str, int] = {}
    for unit in capture.units:
        for phase, ns in unit.phases.items():
            sums[phase] = sums.get(phase, 0) + ns
    total = sum(sums.values())
    if not total:
        return None
    rows = [
        (
            _Cell(phase),
            _Cell(_ms(ns / len(capture.units)), ns),
            _Cell(_percent(ns / total), ns, (ns / total, "compute")),
        )
        for phase, ns in sums.items()
    ]
    about = "By the thread and the operator that launched a kernel."
    return _table(
        "Forward and backward", ("phase", "kernel ms per unit", "share of kernel time"), rows, _ROOMS[0], about
    )


def _checks(capture: Capture) -> Content:
    if not capture.checks:
        return None
    items = [
        tag(
            "li",
            tag("span", "ok" if one.ok else "failed", class_=None if one.ok else "bad"),
            f" {one.id}: {one.evidence}",
        )
        for one in sorted(capture.checks, key=lambda check: check.ok)
    ]
    return tag("section", tag("h2", "Can this data be trusted?"), tag("ul", items))


def _vendor(capture: Capture, room: _Room) -> Content:
    if not capture.vendor:
        return None
    heads = list(dict.fromkeys(name for row in capture.vendor.values() for name in row))
    rows = [
        (_Cell(step), *(_Cell("", 0) if name not in row else _timed(row[name]) for name in heads))
        for step, row in capture.vendor.items()
    ]
    shown = [name.removesuffix("_ns").replace("_", " ") for name in heads]
    return _table("What the profiler's own step file says", ("step", *shown), rows, room)


# ---------------------------------------------------------------- a comparison


def _comparison(comparison: Comparison, room: _Room) -> str:
    before, after = comparison.before, comparison.after
    sides = [_side("before", before), _side("after", after)]
    refused = comparison.refused and tag(
        "div", tag("strong", "These two cannot be compared as they are. What follows was forced:"),
        tag("ul", [tag("li", line) for line in comparison.refused]), class_="withdrawn", role="alert",
    )  # fmt: skip
    low, estimate, high = comparison.change or (0, 0, 0)
    first, second = comparison.median_ns
    clock = " on the host" if comparison.clock == "host" else ""
    tiles = [
        (_time(first), f"median unit{clock} before, of {len(before.units_ns)}"),
        (_time(second), f"median unit{clock} after, of {len(after.units_ns)}"),
    ]
    if comparison.change:
        tiles.append((_signed(estimate), "change of the median unit"))
        tiles.append((f"{_signed(low)} to {_signed(high)}", "95 % interval of the change"))
        if first:
            tiles.append((f"{_sign(estimate)}{_percent(abs(estimate) / first)}", "of the unit before"))
    body = (
        tag("header", tag("h1", "rlpatch compare"), sides),
        refused,
        tag("p", _said(comparison), class_="verdict"),
        [tag("p", note) for note in comparison.notes],
        _tiled(tiles),
        _waterfall(comparison),
        _changes("Kernels", comparison.kernels, room, "Per unit, by what each adds to the difference."),
        _changes("Modules", comparison.modules, room, "With all that is called within a module."),
        [
            _capture(one, room, opened=False, side=side)
            for side, captures in zip(("before", "after"), comparison.reports, strict=True)
            for one in islice(captures, 2)
        ],
    )
    return _document("rlpatch compare", body)


def _side(name: str, side: Side) -> Markup:
    about = " · ".join(filter(None, (", ".join(side.sources), FORMS.get(side.form, side.form), side.device)))
    return tag("p", f"{name}: {about}", class_="faint")


def _said(comparison: Comparison) -> str:
    if not comparison.change:
        return "There is nothing to compare: a side has no unit."
    low, estimate, high = comparison.change
    if low <= 0 <= high:
        return f"No difference that is certain: {_signed(estimate)} per unit"
    return f"{'Slower' if estimate > 0 else 'Faster'} by {_time(abs(estimate))} per unit"


def _waterfall(comparison: Comparison) -> Content:
    parts = [part for part in comparison.parts if part.before_ns or part.after_ns]
    if not parts:
        return None
    first, second = comparison.median_ns
    levels, at = [], first
    for part in parts:
        levels.append((at, at + part.change_ns))
        at += part.change_ns
    bars = [("before", 0, first, "total")]
    for part, (start, end) in zip(parts, levels, strict=True):
        bars.append((PARTS.get(part.name, part.name), start, end, "slower" if end > start else "faster"))
    bars.append(("after", 0, second, "total"))
    values = [first, second, *(value for level in levels for value in level)]
    high = max(*values, 1)
    # Beside the whole unit a part that changed by a percent would not be seen: then the axis begins above 0.
    low = min(values) - (high - min(values)) // 4 if min(values) * 2 > high else min(0, *values)
    left, height = 260, 22
    scale = (_WIDTH - left - 90) / max(high - low, 1)  # two captures can be alike to the nanosecond
    drawn: list[Content] = []
    for row, (name, start, end, kind) in enumerate(bars):
        change, start = end - start, max(start, low)
        x, wide = left + (min(start, end) - low) * scale, max(abs(end - start) * scale, 0.8)
        y = row * height
        said = _time(end) if kind == "total" else _signed(change)
        drawn.append(tag("text", _cut(name, 60), x=left - 8, y=y + 15, text_anchor="end", class_="strong"))
        drawn.append(tag("rect", x=f"{x:.1f}", y=y + 3, width=f"{wide:.1f}", height=height - 6, class_=kind))
        drawn.append(tag("text", said, x=f"{x + wide + 6:.1f}", y=y + 15))
    view = f"0 0 {_WIDTH} {len(bars) * height + 4}"
    about = "The parts of the unit, from before to after; they add up to the difference."
    about += f" The axis begins at {_time(low)}." if low > 0 else ""
    return tag(
        "section", tag("h2", "Where the difference comes from"),
        tag("figure", tag("svg", drawn, viewBox=view, role="img", aria_label="Waterfall"), tag("figcaption", about)),
    )  # fmt: skip


def _changes(title: str, changes: Sequence[Change], room: _Room, about: str) -> Content:
    widest = max((abs(one.change_ns) for one in changes), default=1) or 1

    def changed(one: Change) -> _Cell:
        bar = (abs(one.change_ns) / widest, "slower" if one.change_ns > 0 else "faster")
        return _Cell(_signed(one.change_ns), one.change_ns, bar)

    rows = [
        (
            _Cell(_cut(one.name)), _Cell(one.state), changed(one),
            _timed(one.before_ns), _timed(one.after_ns),
            _Cell(f"{one.before_calls:,.1f}", one.before_calls), _Cell(f"{one.after_calls:,.1f}", one.after_calls),
            _Cell(one.kind),
        )
        for one in sorted(changes, key=lambda one: -abs(one.change_ns))
    ]  # fmt: skip
    heads = ("name", "what changed", "change", "before", "after", "calls before", "calls after", "kind")
    return _table(title, heads, rows, room, about)


# ---------------------------------------------------------------- words


def _cut(name: str, length: int = _NAME) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


def _time(ns: float, places: int = 2) -> str:
    """Nanoseconds as people read them."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(ns) >= size:
            return f"{ns / size:,.{places if ns % size or places > 1 else 0}f} {unit}"
    return f"{ns:,.0f} ns" if ns else "0"


def _signed(ns: float) -> str:
    return f"{_sign(ns)}{_time(abs(ns))}"


def _sign(number: float) -> str:
    return "+" if number > 0 else "\N{MINUS SIGN}" if number < 0 else "±"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.3f}"


def _us(ns: float) -> str:
    return f"{ns / 1e3:,.1f}"


def _percent(share: float, places: int = 1) -> str:
    return f"{100 * share:.{places}f} %"
