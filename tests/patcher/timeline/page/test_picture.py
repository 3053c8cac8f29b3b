"""The shapes of a picture: of a run of 10 s each second is 400,000 ticks wide, and the rows lie one below the other."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.timeline import made
from patcher.timeline import page
from patcher.timeline.model import (
    ROLES,
    Cause,
    IterationRun,
    Lane,
    LaneSpan,
    MemoryPeak,
    MemoryPlace,
    PathSegment,
    ProposedWindow,
    RecordedWindow,
    RunMemory,
    RunTimeline,
    Tail,
    TrainingStep,
)
from patcher.timeline.page.picture import (
    Frame,
    Placed,
    _axis,
    _critical_path,
    _label,
    _legend,
    _line_positions,
    _omission_notes,
    _place_rows,
    _request_curve,
    _row_bars,
    _script_data,
    _strokes,
    step_cause,
)
from patcher.timeline.page.rows import Bars, Interval, Row


def lane(role: str, *spans: tuple[float, float, str, str], rank: int | None = None, **more: object) -> Lane:
    return Lane(role, 0, None, rank, "a", 1, "c", tuple(LaneSpan(*span) for span in spans), seen=(0, 10), **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def run() -> RunTimeline:
    lanes = (
        lane("driver", (0, 4, "phase", "gen"), (4, 5, "phase", "adv"), (5, 9, "phase", "update"), (5, 6, "call", "gen")),
        lane("engine", iterations=(IterationRun(0.5, 1, 10, 1, 8), IterationRun(1, 3.5, 100, 90, 8))),
        lane("trainer", (5, 9, "work", "update_actor"), (5, 7, "unit", "micro-batch"), (7, 9, "unit", "micro-batch"), rank=0),
    )  # fmt: skip
    path = (
        PathSegment(0, 3.5, 3.5, "engine", 0, None, "iteration", "decode", "gen", 1),
        PathSegment(3.5, 5, 1.5, "driver", None, None, "phase", "adv", "adv", 0),
        PathSegment(5, 9, 4, "trainer", None, None, "unit", "micro-batch", "update", None),
        PathSegment(9, 10, 1, "reward", None, None, "gap", "", "", None),
    )
    cause = Cause("trainer", None, 0, "micro-batch", "update", 4, 1.5)
    step = TrainingStep(
        7, 0, 10, 10, "limited", "", cause, None, path, (), 0.5, Tail(3, 3.5, 0.5, 8, 0.5), 0, (), 0, ()
    )
    device = MemoryPlace("device", "a:0", "uuid", "i", "H100", 100, (1, 2), ("engine", "trainer"),
                         ((1.0, 50, (30, 10)), (6.0, 80, (30, 40))))  # fmt: skip
    host = MemoryPlace("host", "a", "host", "b", "", 900, (0,), ("driver",), ((2.0, 9, (9,)),))  # a point is no curve
    peaks = tuple(MemoryPeak(place.of, place.place, 7, 6.0, "update", 80, 100, (), 10) for place in (host, device))
    return replace(
        made.empty(), seconds=10.0, lanes=lanes, steps=(step,), requests=((0.5, 8), (3, 1), (3.5, 0)),
        windows=(ProposedWindow("tail", "c", "t", "w", 7, None, None, 3, 3.5),),
        recorded=(RecordedWindow(Path("/x"), "rollout", 1, 2, 0, "c"),),
        memory=RunMemory((device, host), peaks),
    )  # fmt: skip


SHAPES = """
path d=M400000 42h400000 class=b mark stroke-width=8: rollout · Recorded windows
path d=M1200000 42h200000 class=b mark proposed stroke-width=4: tail · Suggested recording windows
path d=M0 153V153H200000V113H1200000V148H1400000V153H4000000V153 class=curve: running requests (peak 8)
path d=M1200000 131h200000 class=b tail stroke-width=44: tail
path d=M1600000 62h400000 class=b k-adv stroke-width=16: adv · driver
path d=M0 62h1600000 class=b k-gen stroke-width=16: gen · driver
path d=M2000000 62h1600000 class=b k-update stroke-width=16: update · driver
path d=M2000000 77h400000 class=b k-gen stroke-width=12: gen · driver
path d=M200000 96h200000 class=b k-iterations stroke-width=16 data-notes=10 1 8: engine iterations · engine
path d=M400000 96h1000000 class=b k-decodes stroke-width=16 data-notes=100 90 8: engine iterations, mostly decode · engine
path d=M2000000 167h1600000 class=b k-update stroke-width=16: update_actor · trainer, rank 0
path d=M2800000 182h800000 class=b k-update stroke-width=12: micro-batch · trainer, rank 0
path d=M2000000 182h800000 class=b k-update odd stroke-width=12: micro-batch · trainer, rank 0
path d=M0 233V233H400000V213H2400000V201H4000000V233 class=curve mem r-rest: other · a:0
path d=M0 233V233H400000V217H2400000V205H4000000V233 class=curve mem r-trainer: trainer · a:0
path d=M0 233V233H400000V221H4000000V233 class=curve mem r-engine: engine · a:0
path d=M1400000 106V85M2000000 85V190M3600000 190V85 class=links:
path d=M1400000 84.5h600000 class=b way stroke-width=3: critical path: the step waited for this process
path d=M3600000 84.5h400000 class=b gap stroke-width=3: critical path: time without any record
path d=M0 105.5h1400000 class=b way stroke-width=3: critical path: the step waited for this process
path d=M2000000 189.5h1600000 class=b way stroke-width=3: critical path: the step waited for this process
path d=M.5 0V241 class=bound:
rect y=30 width=100% height=4 class=v-limited:
"""
NAMES = """
x=0 y=66: driver
x=0 y=100: engine
x=0 y=171: trainer, rank 0
x=0 y=123: running requests
x=0 y=137: peak: 8 requests
x=0 y=45: recording windows
x=0 y=207: device a:0
x=0 y=221: peak 80 B of 100 B
x=4 y=12: step 7 · 10.0 s
x=4 y=25: +1.50 s trainer, rank 0: micro-batch in update
x=0.000% y=255: 0 s
x=20.000% y=255: 2.00 s
x=40.000% y=255: 4.00 s
x=60.000% y=255: 6.00 s
x=80.000% y=255: 8.00 s
"""
LABELS = """
40.000% 54 10.000% 16 adv
0.000% 54 40.000% 16 gen
50.000% 54 40.000% 16 update
50.000% 71 10.000% 12 gen
50.000% 159 40.000% 16 update_actor
70.000% 176 20.000% 12 micro-batch
50.000% 176 20.000% 12 micro-batch
"""


def test_each_shape_and_name_has_its_place(run: RunTimeline) -> None:
    text = page.page(run)
    start = text.index('id="hatch"')
    shapes = [
        f"{kind} {attributes.replace(chr(34), '')}:{f' {title}' if title else ''}"
        for kind, attributes, title in re.findall(r"<(path|rect) ([^>]*)>(?:<title>([^<]*)</title>)?", text[start:])
    ]
    assert shapes[1 : 1 + SHAPES.count("\n") - 1] == SHAPES.strip().splitlines()
    assert [line.replace("stroke-width", "height").split()[-1] for line in shapes[24:31]] == [
        f"height={height}:" for height in (3, 3, 10, 10, 10, 10, 10)
    ]  # fmt: skip
    names = re.findall(r'<text x="([^"]*)" y="([^"]*)"[^>]*>([^<]*)', text)
    assert [f"x={x} y={y}: {name}" for x, y, name in names][:15] == NAMES.strip().splitlines()
    labels = r'<svg x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)"><text [^>]*>([^<]*)'
    assert [" ".join(found) for found in re.findall(labels, text)] == LABELS.strip().splitlines()
    assert 'viewBox="0 0 4000000 261" height="261"' in text
    assert 'id="step-7" x="0.000%" width="100.000%" height="261"' in text


@pytest.mark.parametrize(("count", "every"), [(12, 1), (13, 1), (16, 1), (17, 2), (33, 3)])
def test_the_heads_of_many_steps_are_numbers_at_regular_distances(count: int, every: int, run: RunTimeline) -> None:
    steps = tuple(
        replace(run.steps[0], step=at, start=at / 10, end=(at + 1) / 10, seconds=0.1, critical_path=())
        for at in range(count)
    )
    text = page.page(replace(run, steps=steps))
    places = [
        (float(x), float(width)) for x, width in re.findall(r'id="step-\d+" x="([^"%]*)%" width="([^"%]*)%"', text)
    ]
    whole = 102 * count / 100  # of the picture, where nothing is drawn behind the last step
    assert places == [pytest.approx((100 * at / whole, 100 / whole), abs=0.002) for at in range(count)]
    words = [f"step {at} · 100 ms" for at in range(count)]
    heads = re.findall(r'<text x="4" y="12" class="strong">([^<]*)', text)
    assert heads == (words if count == 12 else ["" if at % every else str(at) for at in range(count)])


def test_the_data_of_the_script_are_ticks_and_names(run: RunTimeline) -> None:
    (block,) = re.findall(r'<script type="application/json" id="run">(.*?)</script>', page.page(run), re.DOTALL)
    data = json.loads(block)
    assert (data["start"], data["seconds"], data["ticks"]) == (0, 10, 4_000_000)
    assert data["steps"] == [[7, 0, 4_000_000, "step 7 · 10.0 s", "+1.50 s trainer, rank 0: micro-batch in update"]]
    assert data["path"] == [0, 1_400_000, 0, 0, 600_000, 1, 0, 1_600_000, 2, 0, 400_000, 3]
    assert data["names"] == [
        "engine, replica 0: decode in gen",
        "driver: adv",
        "trainer: micro-batch in update",
        "reward: gap",
    ]


@pytest.mark.parametrize(
    ("steps", "seconds", "frame", "said"),
    [
        ((1, 6), 10, (0.9, 9.1), ["900 ms 10.0 10.0"]), ((1, 6), 15.9, (0.9, 15), ["900 ms 15.9 15.9"]),
        ((1, 6), 16, (0.9, 5.2), ["900 ms 6.10 16.0"]), ((0.1, 9), 10, (0, 10), []),
    ],
)  # fmt: skip
def test_the_frame_leaves_out_a_long_start_and_end(
    run: RunTimeline, steps: tuple[float, float], seconds: float, frame: tuple[float, float], said: list[str]
) -> None:
    """Two hundredths of the steps are drawn before them, and less than twice the longest step behind them."""
    start, end = steps
    step = replace(run.steps[0], start=start, end=end, seconds=end - start)
    text = page.page(replace(run, steps=(step,), seconds=seconds))
    ((first, length),) = re.findall(r'"start":([\d.]+),"seconds":([\d.]+)', text)
    assert (float(first), float(length)) == pytest.approx(frame)
    drawn = re.findall(r"picture shows the run from ([\d.]+ m?s) to ([\d.]+) s \(of ([\d.]+) s\)", text)
    assert [" ".join(times) for times in drawn] == said


@pytest.mark.parametrize(
    ("recorded", "proposed", "tops"),
    [(False, False, [42, 76, 147]), (True, False, [54, 88, 159]), (False, True, [54, 88, 159])],
)
def test_rows_begin_below_the_windows_if_there_are_any(
    recorded: bool, proposed: bool, tops: list[int], run: RunTimeline
) -> None:
    windows = replace(run, recorded=run.recorded * recorded, windows=run.windows * proposed)
    placed, curve, height = _place_rows(windows, 500)
    assert [place.top for place in placed] == tops
    assert (curve, height) == (tops[2] - 50, tops[2] + 54)
    texts = re.findall(r"<text[^>]*>([^<]*)", page.page(windows))
    assert ("recording windows" in texts) == (recorded or proposed)


@pytest.mark.parametrize(
    ("at", "ticks", "percent"),
    [
        (5, 0, "0.000%"),
        (10, 0, "0.000%"),
        (12.5, 1_000_000, "25.000%"),
        (20, 4_000_000, "100.000%"),
        (25, 4_000_000, "100.000%"),
    ],
)
def test_a_time_outside_of_the_frame_is_at_its_edge(at: float, ticks: int, percent: str) -> None:
    frame = Frame(10, 10, 0.1)
    assert (frame.ticks(at), frame.percent(at), frame.end) == (ticks, percent, 20)


def test_the_curve_is_below_the_first_row_where_nothing_serves() -> None:
    lanes = (lane("driver", (0, 1, "work", "x")), lane("trainer", (0, 1, "work", "x")))
    placed, curve, _ = _place_rows(replace(made.empty(), lanes=lanes), 500)
    assert ([place.top for place in placed], curve) == ([42, 113], 63)


def test_paler_bars_of_a_row_are_below_all_others() -> None:
    bars = [
        Bars(name, "gen", 0, 16, (Interval(1, 2),), pale=pale)
        for name, pale in (("a", False), ("b", True), ("a", True))
    ]
    row = Row("driver", (0,), tuple(bars), 20)
    drawn, merged_count = _row_bars(Placed(row, 50, "driver"), Frame(0, 10, 0.1))
    assert [("pale" in shape, re.findall("<title>(.)", shape)) for shape in drawn] == [
        (True, ["b"]), (True, ["a"]), (False, ["a"])
    ]  # fmt: skip
    assert merged_count == 0


STROKES: dict[str, tuple[list[tuple[float, float]], str]] = {
    "each as long as it was": ([(1, 2), (4, 4.5)], "M400000 8h400000m800000 0h200000"),
    "one that is shorter than a tick": ([(1, 1)], "M400000 8h1"),
    "two within a tick": ([(1, 1), (1, 1)], "M400000 8h1m0 0h1"),
    "one within the other": ([(1, 3), (2, 2.5), (5, 6)], "M400000 8h800000m0 0h1m799999 0h400000"),
    "one that begins before the frame": ([(-3, 1), (-2, 0), (9, 12)], "M0 8h400000m3200000 0h400000"),
    "none in the frame": ([(-3, 0), (10, 12)], ""),
}


@pytest.mark.parametrize("case", STROKES)
def test_bars_are_strokes_in_ticks_of_at_least_one(case: str) -> None:
    ends, expected = STROKES[case]
    bars = _strokes([Interval(*pair) for pair in ends], Frame(0, 10, 1e-3), 2, 12, "gen", ("b",))
    assert re.findall(r'd="([^"]*)"', bars) == ([expected] if expected else [])


def test_segments_of_the_path_that_are_too_short_to_see_are_no_data(run: RunTimeline) -> None:
    data: dict[str, object] = _script_data(run, Frame(0, 10, 1.5))  # type: ignore[assignment]
    assert data["path"] == [0, 1_400_000, 0, 0, 600_000, 1, 0, 1_600_000, 2]


def test_without_requests_there_is_no_curve(run: RunTimeline) -> None:
    assert 'class="curve">' in page.page(run)
    assert 'class="curve">' not in page.page(replace(run, requests=()))


@pytest.mark.parametrize(
    ("requests", "line"),
    [
        (((1, 8), (5, 4)), "M0 144V104H1500000V124H4000000V144"), (((1, 4), (2, 8), (3, 8)), "M0 144V104H4000000V144"),
        (((3, 4), (10, 8)), "M0 144V144H500000V124H4000000V144"), (((1, 8), (2, 0), (12, 3)), "M0 144V144H4000000V144"),
    ],
)  # fmt: skip
def test_the_curve_of_requests_begins_with_those_that_run_already(
    requests: tuple[tuple[float, int], ...], line: str, run: RunTimeline
) -> None:
    (curve,) = _request_curve(replace(run, steps=(), requests=requests), Frame(2, 8, 0.01), 100)
    assert re.findall(r' d="([^"]*)"', curve) == [line]


LABELS_OF_ROWS: dict[str, tuple[list[tuple[str, int | None, int | None]], list[str]]] = {
    "a rank alone in its replica": ([("engine", 0, 0), ("engine", 1, 0)], ["engine, replica 0", "engine, replica 1"]),
    "two ranks of a replica": ([("engine", 0, 0), ("engine", 0, 1)], ["engine, replica 0, rank 0", "engine, replica 0, rank 1"]),
    "a rank without a replica": ([("trainer", None, 0)], ["trainer, rank 0"]),
    "neither": ([("driver", None, None)], ["driver"]),
    "two that nothing else tells apart": ([("agent", None, None), ("agent", None, None)], ["agent loop (#0)", "agent loop (#1)"]),
    "of two roles": ([("server", 0, None), ("engine", 0, 0)], ["server, replica 0", "engine, replica 0"]),
}  # fmt: skip


@pytest.mark.parametrize("case", LABELS_OF_ROWS)
def test_a_row_has_the_shortest_label_that_tells_it_from_others(case: str) -> None:
    places, expected = LABELS_OF_ROWS[case]
    lanes = tuple(
        replace(lane(role, (0, 1, "work", "x"), rank=rank), replica=replica, number=number)
        for number, (role, replica, rank) in enumerate(places)
    )
    timeline = replace(made.empty(), lanes=lanes)
    all_rows = [Row(role, (at,), (), 0) for at, (role, *_) in enumerate(places)]
    assert [_label(row, all_rows, timeline) for row in all_rows] == expected
    several = Row(places[0][0], tuple(range(7)), (), 0)
    assert _label(several, [several], timeline) == f"{ROLES[several.role]}: 7 processes"


PLACED = [
    Placed(Row(role, lanes, (), 20), top, role)
    for role, lanes, top in (("driver", (0,), 50), ("engine", (1,), 100), ("engine", (2, 4), 150), ("trainer", (3,), 200))
]  # fmt: skip


def waited(role: str, start: float, end: float, lane: int | None, kind: str = "work") -> PathSegment:
    return PathSegment(start, end, end - start, role, None, None, kind, "x", "", lane)


@pytest.mark.parametrize(
    ("role", "lane", "bottoms"),
    [
        ("driver", 0, [67]), ("engine", 4, [167]), ("engine", None, [117, 167]), ("trainer", 9, [217]),
        ("agent", None, [67]), ("agent", 3, [217]),
    ],
)  # fmt: skip
def test_a_segment_lies_below_its_row_else_below_those_of_its_role(
    role: str, lane: int | None, bottoms: list[int]
) -> None:
    assert _line_positions(waited(role, 0, 1, lane), PLACED) == bottoms


def test_the_critical_path_has_a_line_for_each_row_and_a_link_where_it_changes_rows(run: RunTimeline) -> None:
    segments = [
        waited("trainer", 6, 9, 3), waited("driver", 0, 1, 0), waited("engine", 1, 3, None), waited("engine", 3, 4, 2),
        waited("unrecorded", 4, 6, None, "gap"),
    ]  # fmt: skip
    steps = (
        replace(run.steps[0], critical_path=tuple(segments)),
        replace(run.steps[0], critical_path=(waited("driver", 9, 10, 0),)),
    )
    drawn = "".join(_critical_path(replace(run, steps=steps), PLACED, Frame(0, 10, 0.01)))
    assert re.findall(r'd="([^"]*)"[^>]*class="(?:b )?([^"]*)"', drawn) == [
        ("M400000 67V117M1600000 167V67M2400000 67V217", "links"),
        ("M0 66.5h400000m3200000 0h400000", "way"), ("M1600000 66.5h800000", "gap"), ("M400000 116.5h800000", "way"),
        ("M400000 166.5h800000m0 0h400000", "way"), ("M2400000 216.5h1200000", "way"),
    ]  # fmt: skip
    for count, crowded in ((121, False), (122, True)):
        path = tuple(
            waited("driver" if at % 2 else "trainer", at / 20, (at + 1) / 20, 0 if at % 2 else 3) for at in range(count)
        )
        drawn = "".join(
            _critical_path(replace(run, steps=(replace(run.steps[0], critical_path=path),)), PLACED, Frame(0, 10, 0.01))
        )
        assert ('class="links crowded"' in drawn) == crowded


@pytest.mark.parametrize(
    ("start", "seconds", "times"),
    [
        (0, 10, ["0 s", "2.00 s", "4.00 s", "6.00 s", "8.00 s"]), (3, 7, ["3.00 s", "4.00 s", "5.00 s", "6.00 s", "7.00 s", "8.00 s", "9.00 s"]),
        (0.5, 31, ["10.0 s", "20.0 s", "30.0 s"]), (0.5, 29, ["5.00 s", "10.0 s", "15.0 s", "20.0 s", "25.0 s"]), (0, 70, ["0 s", "10.0 s", "20.0 s", "30.0 s", "40.0 s", "50.0 s", "60.0 s"]),
        (0, 71, ["0 s", "20.0 s", "40.0 s", "60.0 s"]), (7_000, 8_000, ["2 h 13 min", "2 h 46 min", "3 h 20 min", "3 h 53 min"]),
    ],
)  # fmt: skip
def test_the_axis_has_about_six_round_times(start: float, seconds: float, times: list[str]) -> None:
    axis = _axis(Frame(start, seconds, 0.1), 100)
    assert re.findall(r">([^<]+)</text>", axis) == times
    assert re.findall(r'text-anchor="(\w+)"', axis) == ["start"] + ["middle"] * (len(times) - 1)
    assert set(re.findall(r'y="(\d+)"', axis)) == {"94"}


def test_what_is_left_out_or_drawn_as_one_is_counted(run: RunTimeline) -> None:
    placed = [place._replace(row=replace(place.row, joined=at)) for at, place in enumerate(PLACED)]
    lanes = tuple(replace(lane, left_out=at) for at, lane in enumerate(run.lanes))
    texts = [*_omission_notes(placed, replace(run, lanes=lanes), Frame(1, 9.7, 0.25), 1_234)]
    assert [re.findall(r"\d[\d.,]*(?: m?s\b)?", text) for text in texts] == [
        ["2"], ["1,234", "250 ms"], ["6"], ["3"]
    ]  # fmt: skip
    assert [*_omission_notes(PLACED[:1], run, Frame(0, 10, 0.25), 0)] == []
    (part,) = _omission_notes(PLACED[:1], run, Frame(1, 9.7 - 0.01, 0.25), 0)
    assert re.findall(r"\d[\d.]* s", part) == ["1.00 s", "10.7 s", "10.0 s"]


def test_the_legend_names_what_the_picture_has(run: RunTimeline) -> None:
    def entries(timeline: RunTimeline, *bars: Bars) -> list[str]:
        row = Row("engine", (0,), bars, 20)
        return re.findall(r"</svg>(.*?)</li>", _legend([Placed(row, 0, "")], timeline, timeline.memory.places[:1]))

    path, gap, tail, iterations, decodes, pale = (
        "critical path: the step waited for this process", "critical path: time without any record",
        "long tail: fewer than a tenth of the peak number of requests are running", "engine iterations", "engine iterations, mostly decode",
        "paler colour: only some of the processes are busy",
    )  # fmt: skip
    memory = [f"memory: {ROLES[role]}" for role in ("engine", "trainer")]
    bars = [Bars(name, name, 0, 16, ()) for name in ("iterations", "decodes", "gen")]
    assert entries(run, *bars, replace(bars[2], pale=True)) == [path, gap, tail, decodes, iterations, pale, *memory]
    step = replace(run.steps[0], tail=None, critical_path=run.steps[0].critical_path[:1])
    assert entries(replace(run, steps=(step,), memory=RunMemory()), *bars[1:]) == [path, decodes]


def test_the_head_of_a_step_has_its_largest_cause_or_its_verdict(run: RunTimeline) -> None:
    (step,) = run.steps
    verdicts = {verdict: step_cause(replace(step, verdict=verdict)) for verdict in ("typical", "several", "not known")}
    assert verdicts == {"typical": "typical", "several": "several causes", "not known": "not known"}
    assert step_cause(step) == "+1.50 s trainer, rank 0: micro-batch in update"
    assert step_cause(replace(step, limited_by=None)) == "not known"
