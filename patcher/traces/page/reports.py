"""The page of a report: the verdict, what it rests on, ranks, and each capture."""

from __future__ import annotations

from collections.abc import Sequence

from patcher.traces import facts
from patcher.traces.markup import Content, tag
from patcher.traces.model import FORMS, Capture, Finding, Rank, Report
from patcher.traces.page.captures import described, named, ranked
from patcher.traces.page.tables import Cell, Room, table, tiled, timed
from patcher.traces.words import duration, percent


def content(report: Report, room: Room) -> tuple[str, Content]:
    """The title and the body of the page of ``report``."""
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
        [described(capture, room, opened=not at, alone=not many) for at, capture in enumerate(detailed)],
        rest
        and tag("p", f"{len(rest)} more are left out here: `rlpatch report` of one of them shows it.", class_="faint"),
    )
    return f"rlpatch report: {captures[0].label or captures[0].source}" if captures else "rlpatch report", body


def _head(title: str, captures: Sequence[Capture]) -> Content:
    lines = [tag("p", _about(capture), class_="faint") for capture in captures[:4]]
    more = len(captures) - len(lines)
    return tag("header", tag("h1", title), lines, more > 0 and tag("p", f"and {more} more", class_="faint"))


def _about(capture: Capture) -> str:
    form = FORMS.get(capture.form, capture.form)
    words = (capture.source, form, capture.device, ranked(capture), *facts.told(capture.facts))
    return " · ".join(filter(None, words))


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
    title = f"{named(capture)}, the slowest one" if many else ""
    if not capture.total_ns:
        on_host = (duration(capture.host_median_ns), "median unit time on the host")
        none = tag("p", "Nothing ran on a device.", class_="faint")
        return (title and tag("h2", title), none, tiled([(str(len(units)), span), on_host]))
    slowest = capture.slowest_unit
    copies = capture.share("copy_ns", "free_host_late_ns", "free_waiting_ns", "free_unknown_ns")
    ratio = slowest.device_ns / capture.median_ns if slowest and capture.median_ns else 0
    tiles = [
        (str(len(units)), span),
        (duration(capture.median_ns), "median unit time"),
        (duration(capture.percentile95_ns), "95th percentile"),
        (f"{ratio:.2f} \N{MULTIPLICATION SIGN}", "slowest unit / median"),
        (percent(capture.share("compute_ns", "overlap_ns")), "computing"),
        (percent(capture.share("communication_ns")), "communication, not hidden"),
        (percent(copies), "free (copies counted in, as in step_trace_time)"),
        (percent(capture.share("free_host_late_ns")), "free because the host was late"),
    ]
    return (title and tag("h2", title), tiled(tiles))


def _findings(report: Report) -> Content:
    if not report.findings:
        return None
    medians = {capture.source: capture.median_ns for capture in report.captures}
    labels = {capture.source: named(capture) for capture in report.captures}
    overall = max(medians.values(), default=0)
    many = len(report.captures) > 1

    def shown(finding: Finding) -> Content:
        median = medians.get(finding.source, overall)
        share = f" ({percent(finding.saving_ns / median, 0)})" if finding.saving_ns and median else ""
        whose = labels.get(finding.source, "") if many else ""
        return tag(
            "article",
            tag("h3", ": ".join(filter(None, (whose, finding.title or finding.id)))),
            tag("p", finding.evidence),
            finding.advice and tag("p", f"Try: {finding.advice}"),
            finding.saving_ns
            and tag("p", tag("strong", f"At most {duration(finding.saving_ns)} per unit to gain{share}.")),
            finding.certainty and tag("p", finding.certainty, class_="faint"),
            class_=f"finding {finding.severity if finding.severity in ('problem', 'warning') else ''}".strip(),
        )

    return tag("section", tag("h2", "First diagnosis"), [shown(finding) for finding in report.findings])


def _ranks(ranks: Sequence[Rank], room: Room) -> Content:
    if not ranks:
        return None
    heads = ("rank", "units", "median unit", "collectives", "waits for others", "others wait for it", "came last")
    rows = [
        (
            Cell("?" if one.rank is None else one.rank, one.rank), one.units, timed(one.median_ns), one.collectives,
            timed(one.waits_ns), timed(one.awaited_ns), one.last,
        )
        for one in ranks
    ]  # fmt: skip
    about = (
        "The n-th collective of a group is the same on all its ranks, and who comes last is in it for the least time."
    )
    return table("Ranks", heads, rows, room, about, names=0)


def _collectives(captures: Sequence[Capture], room: Room) -> Content:
    """The collectives in which ranks differed most: no clock is compared, only how long each was in it."""
    met: dict[tuple[str, int, int], list[tuple[int, str, str]]] = {}
    for capture in captures:
        for one in capture.collectives:
            met.setdefault((one.group, one.unit, one.index), []).append((one.ns, named(capture), one.name))
    shared = [(max(times)[0] - min(times)[0], key, times) for key, times in met.items() if len(times) > 1]
    if not shared:
        return None
    rows = [
        (Cell(min(times)[2]), Cell(group), Cell(f"#{unit}", unit), index + 1, timed(min(times)[0]),
         timed(max(times)[0]), timed(spread), Cell(min(times)[1]))
        for spread, (group, unit, index), times in sorted(shared, key=lambda one: (-one[0], one[1]))
    ]  # fmt: skip
    heads = ("name", "group", "unit", "n-th there", "shortest", "longest", "waiting", "came last")
    return table("Who waits for whom", heads, rows, room, "", names=2)
