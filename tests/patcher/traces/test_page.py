"""The page: what it shows, that nothing of a trace can become markup or script, its size, and a real browser's word."""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import math
import re
from dataclasses import replace
from operator import mul
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fixtures import browser
from patcher.traces import page
from patcher.traces.model import (
    CALL,
    KINDS,
    LAUNCH,
    MARK,
    PARTS,
    CallSums,
    Check,
    Collective,
    Comparison,
    Diagnosis,
    EqualLoad,
    FreeGap,
    Kernel,
    Lanes,
    PartChange,
    Rank,
    RankProfile,
    RecordedUnit,
    Side,
    Span,
    TimeChange,
    TraceReport,
    Verdict,
)
from patcher.traces.page import lanes
from patcher.traces.sidecar import metadata_from
from tests.matrix import MATRIX, examples
from tests.pages import HOSTILE, Seen, shape

MS = 1_000_000


def unit(number: int, *, scale: int = 1, load: int | None = None) -> RecordedUnit:
    parts = (40, 5, 10, 2, 9, 1, 1, 1, 1)
    times: dict[str, Any] = dict(zip(PARTS, (part * scale * MS for part in parts), strict=True))
    phases = {"forward": 30 * MS, "backward": 20 * MS, "optimizer": MS}
    return RecordedUnit(
        number=number, host_ns=68 * MS, kernels=900, **times, phases=phases, requests=load,
        context=load and load * 100, tokens=load,
    )  # fmt: skip


def gap(name: str, at: int) -> FreeGap:
    """The first one in the unit that is drawn, the second of many short ones, the others elsewhere."""
    place = "" if at == 1 else name
    return FreeGap(
        kind="place" if place else "several", before=place, after=place, stream=place, part="free_host_late_ns",
        ns=(40 - at) * MS, count=4, units=2, unit=33, unit_ns=20 * MS, longest_ns=11 * MS, begin_ns=5 * MS, call=name,
        call_ns=30 * MS, operator=name, module=name, spots={31: (20 * MS, 10 * MS)} if at == 0 else {},
    )  # fmt: skip


def host(name: str) -> dict[str, tuple[Span, ...]]:
    """The rows of the host in a unit of 70 ms: its mark, calls, and launches."""
    launches = tuple(Span(at * MS, 1, LAUNCH, "", at < 60, 3) for at in range(0, 70, 2))
    mark = (Span(0, 68 * MS, MARK, name), Span(68 * MS, 2 * MS, MARK, name, of_step=False))
    return {"unit": mark, name: (Span(40 * MS, 20 * MS, CALL, name),), "launches": launches}


def capture(
    name: str = "aten::mm", *, rank: int | None = 0, units: int = 12, kernels: int = 12, slow: int = 3
) -> RankProfile:
    draw = Random(rank)
    spans = tuple(Span(at * MS, MS // 2, KINDS[at % 3], name, at < 60, 2) for at in range(70))
    return RankProfile(
        source=f"/data/{name}", form="torch", rank=rank, device=name,
        units=tuple(unit(30 + at, scale=slow if at == 5 else 1, load=8 + at // 4) for at in range(units)),
        kernels=tuple(Kernel(f"{name} {at}", KINDS[at % 3], 12 + at, (kernels - at) * MS, MS) for at in range(kernels)),
        operators=tuple(CallSums(f"{name} {at}", 12, 24, (9 - at) * MS, at * MS) for at in range(9)),
        modules=(CallSums(name, 12, 24, 9 * MS, MS),),
        checks=(Check(name, True, name), Check("kernel-count", False, name)),
        metadata=metadata_from({"target": name, "window": name, "rollout": 3, "units": [{"number": 30}], "ok": True}),
        vendor={name: {"Computing": MS, name: 2 * MS}}, label=name, marks=name,
        lanes=(
            Lanes(31, "median", 70 * MS, {name: spans, "another stream": spans[:9]}, host(name)),
            Lanes(35, name, 210 * MS, {"1": spans}),
        ),
        gaps=tuple(gap(name, at) for at in range(4)),
        collectives=tuple(Collective(name, at, name, draw.randint(1, 9) * MS, waits_ns=0) for at in range(4)),
    )  # fmt: skip


def report(name: str = "aten::mm", ranks: int = 1, **more: int) -> TraceReport:
    captures = tuple(capture(name, rank=rank, **more) for rank in range(ranks))
    findings = (
        Diagnosis(name, "problem", name, 8 * MS, name, name, captures[-1].source),
        Diagnosis("b", name, name, None, ""),
    )
    met = tuple(Rank(rank or None, name, 12, 70 * MS, 4, rank * MS, MS, rank) for rank in range(ranks))
    return TraceReport(captures, findings, Verdict(name, name, name, (name,)), met if ranks > 1 else ())


def comparison(name: str = "aten::mm", **more: object) -> Comparison:
    sides = (Side((name, "b"), "torch", name, (70 * MS,) * 12), Side((name,), "ascend-db", name, (66 * MS,) * 11))
    parts = (PartChange("compute_ns", 40 * MS, 43 * MS), PartChange(name, 30 * MS, 23 * MS))
    states = ("new", "gone", "slower", "faster", "more often", "alike")
    kernels = tuple(TimeChange(f"{name} {at}", at * MS, 3 * MS, name, state, at, 2) for at, state in enumerate(states))
    known = {"change": (-6 * MS, -4 * MS, -2 * MS), "parts": parts, "kernels": kernels, "modules": kernels[:2], **more}
    return Comparison(*sides, (70 * MS, 66 * MS), notes=(name,), reports=((capture(name),), (capture(name),)), **known)  # type: ignore[arg-type]


def lightness(color: str) -> tuple[float, float, float]:
    """A colour of the style in CIE L*a*b*, whose distances are those that people see: about 2 is just seen."""
    digits = color if len(color) == 7 else "#" + "".join(2 * digit for digit in color[1:])
    linear = [
        one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4
        for one in (int(digits[at : at + 2], 16) / 255 for at in (1, 3, 5))
    ]
    rows = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8728))  # XYZ of D65, each up to 1
    x, y, z = (
        one ** (1 / 3) if one > 0.008856 else 7.787 * one + 16 / 116
        for one in (sum(map(mul, row, linear)) for row in rows)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_no_two_parts_of_a_unit_look_alike(scheme: int):
    text = page.page(report())
    colors = dict(re.findall(r"--([\w-]+): (#\w+)", re.findall(r":root \{(.*?)\}", text, re.DOTALL)[scheme]))
    used = dict(re.findall(r"\.(\w+_ns)[\w, .-]*\{ fill: var\(--([\w-]+)\)", text))
    assert set(used) == set(PARTS)
    seen = {name: lightness(colors[name]) for name in [*used.values(), "back"]}
    alike = {pair: math.dist(*map(seen.__getitem__, pair)) for pair in itertools.combinations(seen, 2)}
    assert {pair: distance for pair, distance in alike.items() if distance < 18} == {}
    assert alike["late", "waiting"] > 50


PAGES = {
    "one": lambda name: page.page(report(name)),
    "ranks": lambda name: page.page(report(name, ranks=3)),
    "comparison": lambda name: page.page(comparison(name)),
}


@functools.cache
def harmless_shape(made):
    return shape(made("x"))


@pytest.mark.parametrize("made", PAGES.values(), ids=PAGES)
@settings(max_examples=examples(25))
@given(name=st.text(max_size=40))
@example(name=HOSTILE[0])
@example(name=HOSTILE[1])
@example(name=HOSTILE[2])
@example(name=HOSTILE[3])
def test_a_name_changes_no_element_and_no_attribute(made, name):
    """A page of any names has the elements of one of harmless names, one for one."""
    text = made(name or "x")
    seen = Seen(text)
    assert (seen.tags, seen.attributes) == harmless_shape(made)
    assert not any(attribute.startswith("on") or attribute in ("style", "src") for _, attribute in seen.attributes)
    assert all(re.fullmatch(r"#gap[0-9a-f]+-\d+-\d+", place) for place in re.findall(r'href="([^"]*)"', text))


@pytest.mark.parametrize("made", PAGES.values(), ids=PAGES)
def test_only_what_the_policy_names_runs(made):
    text = made("x")
    seen = Seen(text)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.split(" ", 1) for rule in policy.replace("&#x27;", "'").split("; "))
    assert seen.tags.count("script") == seen.tags.count("style") == 1
    digests = {
        name: base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() for name, source in seen.raw.items()
    }
    assert rules == {
        "default-src": "'none'", "base-uri": "'none'", "form-action": "'none'",
        "style-src": f"'sha256-{digests['style']}'", "script-src": f"'sha256-{digests['script']}'",
    }  # fmt: skip


def test_the_parts_of_a_bar_add_up_to_it():
    text = page.page(report(slow=1))
    (drawing,) = re.findall(r"<svg[^>]*one bar each[^>]*>(.*?)</svg>", text, re.DOTALL)
    heights = {
        part: [float(height) for height in re.findall(r"v([\d.]+)h", path)]
        for path, part in re.findall(r'<path d="([^"]*)" class="(\w+_ns)"', drawing)
    }
    assert list(heights) == list(PARTS)
    assert {len(values) for values in heights.values()} == {12}
    together = sum(values[0] for values in heights.values())
    shares = [values[0] / together for values in heights.values()]
    assert shares == pytest.approx([part / 70 for part in (40, 5, 10, 2, 9, 1, 1, 1, 1)], abs=0.001)


def test_what_a_report_says():
    text = Seen(page.page(report("aten::mm"))).text
    for said in (
        "recorded steps (#30 to #41)12", "median step time70.00 ms", "slowest step relative to the median3.00 \N{MULTIPLICATION SIGN}", "computing64.3 %",
        "Upper bound of the saving: 8.00 ms per step (11 %).", "torch.profiler", "rollout 3", "Median step, #31",
        "Step time by requests", "Step time by context tokens", "Pale colours: marks, launches and kernels that belong to other steps.",
        "forward30.000", "failed kernel-count", "torch_npu's own step table",
    ):  # fmt: skip
        assert said in text, said
    assert "scheduled tokens" not in text  # the same numbers as the requests
    assert "Ranks" not in text


def cells(text: str, title: str, row: int) -> list[tuple[str, str | None, str | None]]:
    """The cells of a row of the table below ``title``: what they show, by what they are sorted, how wide their bar is."""
    table = text.partition(f"<h2>{title}</h2>")[2].partition("</table>")[0]
    found = re.findall(r"<td([^>]*)>(.*?)</td>", table.split("<tr>")[row + 2])
    value, bar, tags = (re.compile(one) for one in (r'data-value="([^"]*)"', r'<rect width="([\d.]+)"', r"<[^>]*>"))
    return [
        (tags.sub("", inner), (sort := value.search(attributes)) and sort[1], (drawn := bar.search(inner)) and drawn[1])
        for attributes, inner in found
    ]


def test_the_numbers_of_the_tables():
    """Of twelve units, each 70 ms but one of 210 ms."""
    text = page.page(report("x"))
    assert cells(text, "Kernels", 1) == [
        ("x 1", None, None), ("0.917", "916666.666667", "91.7"), ("1.1 %", "0.011224", None), ("1.1", "1.083333", None),
        ("846.2", "846153.846154", None), ("1,000.0", "1000000", None), ("communication", None, None),
    ]  # fmt: skip
    assert cells(text, "Operators", 1) == [
        ("x 1", None, None), ("0.667", "666666.666667", "88.9"), ("0.083", "83333.333333", None), ("1.0", "1.0", None),
        ("2.0", "2.0", None),
    ]  # fmt: skip
    none: dict[str, Any] = dict.fromkeys(PARTS, 0)
    launched_none = tuple(replace(sums, ns=0, kernels=0) for sums in capture("x").operators)
    on_host = replace(
        capture("x"),
        operators=launched_none,
        units=tuple(replace(unit(30 + at), **none) for at in range(12)),
    )
    assert cells(page.page(TraceReport((on_host,), (), Verdict("a verdict"))), "Operators", 1) == [
        ("x 1", None, None), ("0.083", "83333.333333", None), ("1.0", "1.0", None)
    ]  # fmt: skip


def test_one_unit_is_a_table_of_its_parts_and_no_card_repeats_it():
    text = page.page(report("x", units=1))
    assert [cells(text, "Time breakdown of a step", row)[0][0] for row in range(9)] == list(PARTS.values())
    assert cells(text, "Time breakdown of a step", 0)[1:] == [
        ("40.000", "40000000.0", None),
        ("57.1 %", "0.571429", "57.1"),
    ]
    assert "The rows add up to 70.00 ms; on the host the step took 68.00 ms." in text
    assert not drawn(text, "Time of each step")
    seen = Seen(text).text
    assert "step time70.00 ms" in seen
    assert not any(
        word in seen for word in ("median step time", "95th percentile", "slowest step relative to the median")
    )


def drawn(text: str, title: str) -> str:
    """The section below ``title``."""
    return text.partition(f"<h2>{title}</h2>")[2].partition("</section>")[0]


def test_tasks_are_drawn_where_they_ran_and_within_their_unit():
    spans = (
        Span(-5 * MS, 15 * MS, "compute", "before", False), Span(20 * MS, 40 * MS, "communication", "within", True, 3),
        Span(90 * MS, 20 * MS, "odd", "behind", True),
    )  # fmt: skip
    made = replace(capture("x"), lanes=(Lanes(31, "median", 100 * MS, {"7": spans}, host("x")),))
    text = drawn(page.page(TraceReport((made,), (), Verdict("a verdict"))), "Host and device over time")
    found = re.findall(
        r'<rect x="(\d+)" y="(\d+)" width="(\d+)"[^>]* class="([^"]*)"><title>(.*?)\n(.*?)</title>', text
    )
    each = lanes.TICKS // 100
    assert found == [
        (f"{begin * each}", f"{row * lanes.LANE}", f"{wide * each}", kind, name, shown)
        for row, begin, wide, kind, name, shown in (
            (0, 0, 68, "mark", "x", "68.00 ms, begins at 0"), (0, 68, 2, "mark others", "x", "2.00 ms, begins at 68.00 ms"),
            (1, 40, 20, "call", "x", "20.00 ms, begins at 40.00 ms"),
            (3, 0, 10, "compute others", "before", "15.00 ms, begins at -5.00 ms"),
            (3, 20, 40, "communication", "within", "40.00 ms, begins at 20.00 ms, 3 tasks"),
            (3, 90, 10, "compute", "behind", "20.00 ms, begins at 90.00 ms"),
        )
    ]  # fmt: skip
    launches = {
        kind: re.findall(r"M(\d+) 32h", d) for d, kind in re.findall(r'<path d="([^"]*)" class="(launch.*?)"', text)
    }
    assert launches == {
        "launch": [f"{at * each}" for at in range(0, 60, 2)], "launch others": [f"{at * each}" for at in range(60, 70, 2)]
    }  # fmt: skip
    assert re.findall(r"<text[^>]*>(\w+)<title>", text) == ["unit", "x", "launches", "7"]


@pytest.mark.parametrize(("units", "numbers"), [(3, [30, 31, 32]), (24, [*range(30, 54)]), (48, [*range(30, 78, 2)])])
def test_bars_have_the_numbers_that_there_is_room_for(units: int, numbers: list[int]):
    text = drawn(page.page(report("x", units=units)), "Time of each step")
    assert re.findall(r'<text x="[\d.]+" y="241" text-anchor="middle">(\d+)</text>', text) == list(map(str, numbers))


def test_where_the_device_was_free_is_framed_where_it_is_drawn():
    text = page.page(report("x"))
    (place,) = re.findall(r'href="#([^"]*)"', drawn(text, "Where the device was idle"))
    frames = re.findall(
        r'<rect id="([^"]*)" x="([^"]*)" y="0" width="([^"]*)"', drawn(text, "Host and device over time")
    )
    assert frames == [(place, shown, wide) for _, shown, wide in frames]
    ((_, begin, wide),) = frames
    assert [float(begin), float(wide)] == pytest.approx([lanes.TICKS * 20 / 70, lanes.TICKS * 10 / 70], abs=0.1)
    assert [cell for cell, *_ in cells(text, "Where the device was idle", 0)] == [
        "before x on x", "the host was in x (x in x) for 75 % of this time", "3.333", "4.1 %", "2", "step #31, 20.00 ms after its start", "4", "11.00 ms",
        "host-bound", "after x",
    ]  # fmt: skip
    assert cells(text, "Where the device was idle", 1)[0][0] == "between kernels that are launched one by one"
    assert cells(text, "Where the device was idle", 2)[5][0] == "step #33, 5.00 ms after its start"


def test_what_did_not_change_is_no_step_of_the_waterfall():
    parts = (
        PartChange("compute_ns", 40 * MS, 43 * MS),
        PartChange("copy_ns", 0, 0),
        PartChange("overlap_ns", 30 * MS, 23 * MS),
    )
    text = drawn(page.page(comparison("x", parts=parts)), "Where the difference comes from")
    assert re.findall(r'<rect [^>]*class="(\w+)"', text) == ["total", "slower", "faster", "total"]
    assert "\N{MINUS SIGN}7.00 ms" in text


def test_where_nothing_ran_on_a_device():
    """As in a trace of a CPU: the times of the host, and no share of nothing."""
    units = tuple(RecordedUnit(number=number, host_ns=(number + 1) * MS, kernels=0) for number in (7, 8, 9))
    text = Seen(page.page(TraceReport((RankProfile("a", "torch", 0, "CPU", units),)))).text
    assert "No device events were found in the trace." in text
    assert "median step time on the host9.00 ms" in text
    assert "computing" not in text


def test_what_several_ranks_say():
    text = Seen(page.page(report("x", ranks=3))).text
    assert "Which rank waits for which" in text
    assert "straggler" in text
    assert "the slowest rank" in text
    assert text.count("median step time 70.00 ms") == 3
    assert all(title in text for title in ("Times by rank and step", "One step of each rank"))
    assert text.count("x, step #35: 210.00 ms, \N{PLUS-MINUS SIGN}0.0 %") == 3


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ((-6 * MS, -4 * MS, -2 * MS), "\N{MINUS SIGN}4.00 ms per step: faster"),
        ((2 * MS, 4 * MS, 6 * MS), "+4.00 ms per step: slower"),
        ((-2 * MS, -1 * MS, 1 * MS), "\N{MINUS SIGN}1.00 ms per step: no clear difference"),
        ((4 * MS, 4 * MS, 4 * MS), "+4.00 ms per step: not enough data"),
        ((4 * MS, 4 * MS, 5 * MS), "+4.00 ms per step: different profiler settings"),
        (None, "Nothing can be compared: one side has fewer than two steps."),
    ],
)
def test_what_a_comparison_says(change, verdict):
    known = {
        "verdict": verdict.partition(": ")[2],
        "differs": ("level: Level0 before, Level1 after",),
    }
    fitted = EqualLoad((1 * MS, 2 * MS, 3 * MS), 0.97, ("requests", "context"))
    text = Seen(page.page(comparison("x", change=change, refused=("another window",), equal_load=fitted, **known))).text
    assert "The two sides of the comparison differ: level: Level0 before, Level1 after." in text
    assert (
        "at equal load (requests and context), by a linear fit that explains 97 % of the variation" in text
    ) == bool(change)
    assert verdict in text
    assert "The two sides were compared only because of --force. They are not comparable, for these reasons:" in text
    assert "another window" in text
    assert "before, x: median step time 70.00 ms" in text
    assert ("95 % interval" in text) == bool(change)
    assert ("change of the median step" in text) == bool(change)


def test_nothing_to_show_is_a_page_too():
    none = Side((), "torch", "", ())
    idle = RecordedUnit(number=1, host_ns=0, kernels=0)
    for text in (
        page.page(TraceReport(())),
        page.page(TraceReport((RankProfile("a", "torch", None, "", ()),))),
        page.page(Comparison(none, none, (0, 0), None)),
        page.page(Comparison(none, none, (0, 0), (0, 0, 0), (PartChange("compute_ns", 0, 0),))),
        page.page(TraceReport((RankProfile("a", "torch", None, "", (idle,), (Kernel("k", "odd", 0, 0),)),))),
    ):
        shape(text)


def test_a_collective_is_met_by_the_ranks_in_its_own_unit():
    """The first of unit 30 and the first of unit 31 are two."""
    captures = tuple(
        replace(
            capture(rank=rank), label=f"rank {rank}",
            collectives=tuple(
                Collective("586", 0, "allReduce", ms * MS, unit=30 + at, waits_ns=0) for at, ms in enumerate(row)
            ),
        )
        for rank, row in enumerate(((10, 3), (4, 9)))
    )  # fmt: skip
    text = Seen(page.page(TraceReport(captures, (), Verdict("a verdict")))).text
    assert "allReduce586#3014.00 ms10.00 ms6.00 msrank 1" in text
    assert "allReduce586#3113.00 ms9.00 ms6.00 msrank 0" in text


def test_what_ran_on_no_device_has_the_columns_of_the_host():
    none: dict[str, Any] = dict.fromkeys(PARTS, 0)
    units = tuple(replace(unit(30 + at), **none) for at in range(3))
    text = Seen(page.page(TraceReport((replace(capture(), units=units),), (), Verdict("a verdict")))).text
    assert (
        "No device events were found in the trace, so the drawing shows only the time on the host, as a line." in text
    )
    assert "host ms/step" in text
    assert "ms of kernels per step" not in text


@MATRIX
def test_details_give_way_before_the_page_grows_too_large():
    name = "void at::native::elementwise_kernel<" + "float, " * 200
    text = page.page(report(name, ranks=16, units=500, kernels=1500))
    assert 100_000 < len(text.encode()) < page.LIMIT
    seen = Seen(text).text
    assert "14 more traces are not shown" in seen
    assert "more rows are not shown here" in seen
    assert re.search("There are too many steps to draw each: a bar is the mean of \\d+ steps.", seen)


def test_the_page_of_many_units_does_not_add_them_all_up_for_each(monkeypatch):
    """A rollout's thousands of units take thousands of steps, not millions."""
    asked: list[RankProfile] = []
    total = vars(RankProfile)["total_ns"].fget

    def counted(capture: RankProfile) -> int:
        asked.append(capture)
        return int(total(capture))

    monkeypatch.setattr(RankProfile, "total_ns", property(counted))
    counts = []
    for units in (20, 200):
        asked.clear()
        page.page(report(units=units))
        counts.append(len(asked))
    assert counts[0] == counts[1]


@pytest.fixture(scope="module")
def tab():
    found = browser.program()
    if found is None:
        pytest.skip("no browser: install chromium, or name one with RLPATCH_BROWSER")
    with browser.tab(found) as opened:
        yield opened


def shown(tab: browser.Page, table: int) -> list[str]:
    rows = f"[...document.querySelectorAll('table')[{table}].tBodies[0].rows]"
    return list(tab.value(f"{rows}.filter(row => row.offsetParent).map(row => row.cells[0].textContent)"))


@MATRIX
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("made", PAGES.values(), ids=PAGES)
def test_in_a_browser(tab: browser.Page, tmp_path: Path, made, width: int, dark: bool):
    """No error, nothing loaded, nothing of a name runs, and no scrolling sideways but within a figure or table."""
    tab.said.clear()
    tab.requests.clear()
    file = tmp_path / "page.html"
    file.write_text(made("".join(HOSTILE)).encode("utf-8", "replace").decode(), encoding="utf-8")
    tab.open(file, width, dark=dark)
    assert tab.value("document.documentElement.scrollWidth") <= width
    colors = tab.value("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    assert (sum(map(int, re.findall(r"\d+", colors[0]))) > sum(map(int, re.findall(r"\d+", colors[1])))) == dark
    painted = "[...document.querySelectorAll('rect, path, circle')].map(one => getComputedStyle(one).fill)"
    assert len(set(tab.value(painted))) > 3
    tab.screenshot(tmp_path / "page.png")
    assert tab.said == []
    assert tab.requests == [file.as_uri()]


VIEW = "document.querySelector('.lanes .bars').getAttribute('viewBox').split(' ').slice(0, 3).map(Number)"
PLOT = "document.querySelector('.lanes .plot')"
FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def view(tab: browser.Page) -> list[float]:
    """From which tick on how many are drawn, once the browser has done so."""
    tab.call("Runtime.evaluate", expression=FRAMES, awaitPromise=True)
    first, _, count = tab.value(VIEW)
    return [first, count]


@MATRIX
def test_the_lanes_are_drawn_closer_in_a_browser(tab: browser.Page, tmp_path: Path):
    tab.said.clear()
    file = tmp_path / "page.html"
    file.write_text(page.page(report("mm")), encoding="utf-8")
    tab.open(file)
    whole = [0, lanes.TICKS]
    texts = "[...document.querySelector('.lanes').querySelectorAll('.{} text')].map(one => one.textContent)"
    assert view(tab) == whole
    assert tab.value(texts.format("times"))[:2] == ["0", "10 ms"]
    assert tab.value(texts.format("labels"))[0] == "mm"  # the mark, whose bar is long
    wide = "document.querySelector('.lanes .call').getBoundingClientRect().width"
    before = tab.value(wide)

    def press(key: str) -> list[float]:
        tab.value(f"{PLOT}.dispatchEvent(new KeyboardEvent('keydown', {{ key: '{key}', bubbles: true }}))")
        return view(tab)

    assert press("+") == [lanes.TICKS / 4, lanes.TICKS / 2]
    assert tab.value(wide) == pytest.approx(2 * before, abs=2)
    assert tab.value(texts.format("times"))[:2] == ["20 ms", "25 ms"]
    assert press("ArrowLeft") == [lanes.TICKS / 10, lanes.TICKS / 2]
    assert press("0") == whole
    point = "document.querySelector('.lanes .call').getBoundingClientRect()"
    x, y = tab.value(f"{PLOT}.scrollIntoView(), [{point}.left, {point}.top]")
    for kind in ("mousePressed", "mouseReleased"):
        tab.call("Input.dispatchMouseEvent", type=kind, x=x + 20, y=y + 5, button="left", clickCount=1)
    assert tab.value("document.querySelector('.about').textContent") == "mm \N{MIDDLE DOT} 20.00 ms, begins at 40.00 ms"
    tab.value("document.querySelector('.lanes [data-do=closer]').click()")
    assert view(tab)[1] == lanes.TICKS / 2
    tab.value("document.querySelector('td a[href]').click()")  # to the place of a gap of a seventh of the unit
    assert view(tab) == pytest.approx([0, 5 / 7 * lanes.TICKS], abs=1)
    assert tab.said == []


@MATRIX
def test_the_lanes_are_readable_without_a_script(tab: browser.Page, tmp_path: Path):
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        file = tmp_path / "page.html"
        file.write_text(page.page(report("mm", ranks=3)), encoding="utf-8")
        tab.open(file, 400)
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
        assert tab.value("getComputedStyle(document.querySelector('.controls')).display") == "none"
        assert len(tab.value("[...document.querySelector('.times').querySelectorAll('text')].map(one => 1)")) > 3
        assert tab.value("document.querySelector('.lanes .compute').getBoundingClientRect().width") > 50
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)


@MATRIX
def test_filter_and_sort_in_a_browser(tab: browser.Page, tmp_path: Path):
    tab.said.clear()
    file = tmp_path / "page.html"
    file.write_text(page.page(report("mm")), encoding="utf-8")
    tab.open(file)
    tables = tab.value(
        "[...document.querySelectorAll('table')].map(one => one.closest('section').firstChild.textContent)"
    )
    at = tables.index("Kernels")
    names = [f"mm {number}" for number in range(12)]
    assert shown(tab, at) == names
    tab.type("input[aria-label='Filter Kernels']", "MM  copy")
    assert shown(tab, at) == ["mm 2", "mm 5", "mm 8", "mm 11"]
    assert tab.value("document.querySelector('output').textContent") == "4 of 12 rows"
    tab.value("{ const box = document.querySelector('input'); box.value = ''; box.dispatchEvent(new Event('input')); }")
    assert shown(tab, at) == names

    def click(column: int) -> None:
        tab.value(f"document.querySelectorAll('table')[{at}].querySelectorAll('th button')[{column}].click()")

    click(1)  # by time: descending first, which they are, then the other way round
    assert shown(tab, at) == names
    click(1)
    assert shown(tab, at) == names[::-1]
    click(0)  # by name, and its number as a number
    assert shown(tab, at) == names
    click(3)
    assert shown(tab, at) == names[::-1]
    sorts = f"[...document.querySelectorAll('table')[{at}].querySelectorAll('th')].map(one => one.ariaSort)"
    assert tab.value(sorts) == [None, None, None, "descending", None, None, None]
    assert tab.said == []
