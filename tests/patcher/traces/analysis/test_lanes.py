"""The rows of the host beside the streams of the device: marks, long calls and launches, on the trace's own clock."""

from __future__ import annotations

from array import array

import pytest

from patcher.traces import analysis
from patcher.traces.analysis import lanes as rows
from patcher.traces.analysis.nested import NestedRanges
from patcher.traces.analysis.segments import Split
from patcher.traces.model import CALL, LAUNCH, MARK, Lanes, Span
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import RangeColumns
from tests.patcher.traces.recorded import MS, Range, Run, Task, timeline


def lanes(run: Run) -> Lanes:
    (found,) = analysis.attributed(timeline(run)).profile.lanes
    return found


def shown(spans: tuple[Span, ...]) -> list[tuple[int, int, str, str, bool]]:
    """Begin and length in ms, kind, name, and whether it is the unit's own."""
    return [(one.begin_ns // MS, one.ns // MS, one.kind, one.name, one.of_step) for one in spans]


TASKS = tuple(Task(at * MS, (at + 5) * MS, launch=(at - 5) * MS) for at in (10, 20, 30, 60))
"""Each is launched 5 ms before it begins, the last one in the second unit."""

MARKS = (Range("ProfilerStep#3", 0, 50 * MS), Range("ProfilerStep#4", 50 * MS, 70 * MS))


def test_the_host_is_drawn_from_where_the_unit_begins_to_where_it_ends() -> None:
    calls = (
        Range("outer", 11 * MS, 18 * MS), *(Range("within it", at * MS, (at + 1) * MS) for at in (12, 14)), Range("short", 40 * MS, 40 * MS + 1),
        Range("of another thread", 30 * MS, 34 * MS, thread=2), Range("a third one's", 30 * MS, 31 * MS, thread=3),
    )  # fmt: skip
    functions = (Range("<built-in function sleep>", 35 * MS, 45 * MS),)
    mark = Range("ProfilerStep#3", 0, 70 * MS)
    found = lanes(Run(TASKS, (mark,), calls=calls, functions=functions))
    assert found.device_ns == 65 * MS
    assert {name: shown(spans) for name, spans in found.host.items()} == {
        "step": [(0, 65, MARK, "ProfilerStep#3", True)],
        "calls": [(11, 7, CALL, "outer", True)],
        "calls 2": [(30, 4, CALL, "of another thread", True)],
        "Python": [(35, 10, CALL, "<built-in function sleep>", True)],
        "launches": [(at, 0, LAUNCH, "", True) for at in (5, 15, 25, 55)],
    }


def test_what_another_unit_did_is_not_its_own() -> None:
    median = analysis.attributed(timeline(Run(TASKS, MARKS))).profile.lanes[-1]
    assert (median.number, median.why) == (3, "slowest")
    assert [own for *_, own in shown(median.host["step"])] == [True, False]
    assert [own for *_, own in shown(median.host["launches"])] == [True] * 3 + [False]


def test_a_trace_that_tells_nothing_of_the_host_has_no_rows_of_it() -> None:
    assert lanes(Run((Task(0, 5 * MS), Task(6 * MS, 9 * MS)), ())).host == {}


def span(begin: int, ns: int, name: str = "a", kind: str = CALL, *, own: bool = True, count: int = 1) -> Span:
    return Span(begin, ns, kind, name, own, count)


MERGED: dict[str, tuple[Span, Span, Span | None]] = {
    "head to head": (span(0, 10), span(10, 5), span(0, 15, count=2)),
    "as near as a pixel": (span(0, 10), span(20, 5), span(0, 25, count=2)),
    "too far": (span(0, 10), span(21, 5), None),
    "later": (span(1_000, 10), span(1_020, 5), span(1_000, 25, count=2)),
    "later and too far": (span(1_000, 10), span(1_021, 5), None),
    "another kind": (span(0, 10), span(10, 5, kind=MARK), None),
    "of another unit": (span(0, 10), span(10, 5, own=False), None),
    "another name": (span(0, 10), span(10, 5, "b"), span(0, 15, "", count=2)),
    "four pixels and more": (span(0, 99), span(99, 40), span(0, 139, count=2)),
    "both long": (span(0, 99), span(99, 41), None),
    "within the last one": (span(0, 30), span(10, 5), span(0, 30, count=2)),
    "the third one": (span(0, 10, count=2), span(10, 5), span(0, 15, count=3)),
}


@pytest.mark.parametrize("name", MERGED)
def test_neighbours_that_a_screen_cannot_show_apart_are_one(name: str) -> None:
    last, following, expected = MERGED[name]
    assert rows._merge_two(last, following, 10) == expected


def window(end: int) -> rows._Window:
    trace = RankTrace("a", "torch")
    return rows._Window(trace, Split("", [], array("i"), []), 0, 1_000, 1_000 + end)


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (1_010, 1_020, (10, 10)), (900, 1_020, (0, 20)), (1_090, 1_200, (90, 10)), (900, 1_200, (0, 100)), (900, 1_000, None), (1_100, 1_200, None),
        (1_010, 1_010, None), (900, 1_001, (0, 1)), (1_099, 1_200, (99, 1)),
    ],
)  # fmt: skip
def test_spans_are_cut_at_the_edges_of_what_is_drawn(begin: int, end: int, expected: tuple[int, int] | None) -> None:
    found = window(100).span(begin, end, CALL, "a", of_step=False)
    assert found == (None if expected is None else Span(*expected, CALL, "a", False))


@pytest.mark.parametrize(("width", "count"), [(119_999, 3), (120_000, 1)])
def test_spans_nearer_than_a_part_in_12_000_are_one(width: int, count: int) -> None:
    drawn = window(width).merge_near([span(0, 5), None, span(15, 5), None, span(30, 5)])
    assert len(drawn) == count


def test_of_the_long_calls_those_of_the_two_busiest_threads_are_drawn() -> None:
    made = window(100)
    threads = {}
    for thread, calls in enumerate(
        [
            [(1_000, 1_010)],
            [(900, 1_030), (1_010, 1_020), (1_020, 1_040), (1_050, 1_060)],
            [(1_000, 1_020), (1_100, 1_300), (500, 1_000)],
        ]
    ):
        columns = RangeColumns()
        for begin, end in calls:
            columns.add(begin, end, made.trace.names["call"])
        threads[thread] = NestedRanges(columns)
    found = {
        name: [(one.begin_ns, one.ns) for one in spans] for name, spans in rows._call_rows(made, {"calls": threads})
    }
    assert found == {"calls": [(0, 30), (30, 10), (50, 10)], "calls 2": [(0, 20)]}


def test_of_tasks_and_launches_those_within_the_window_are_drawn() -> None:
    drawn = window(100)
    tasks = [(900, 1_000, 998), (990, 1_001, 999), (1_010, 1_020, 1_000), (1_099, 1_200, 1_099), (1_100, 1_200, 1_100)]
    for begin, end, launched in tasks:
        stream = {900: "stream 8", 1_100: "stream 9"}.get(begin, "stream 7")
        drawn.trace.add_task(begin, end, "compute", "k", stream, None)
        drawn.trace.tasks.launched[-1] = launched
    drawn = drawn._replace(cuts=Split("", [], array("i", [0, 0, 0, 1, 1]), range(5)))
    streams, launches = rows._streams_and_launches(drawn)
    assert {name: [(one.begin_ns, one.ns, one.of_step) for one in spans] for name, spans in streams.items()} == {
        "stream 7": [(0, 1, True), (10, 10, True), (99, 1, False)]
    }
    assert [(one.begin_ns, one.ns, one.of_step) for one in launches] == [(0, 1, True), (99, 1, False)]
