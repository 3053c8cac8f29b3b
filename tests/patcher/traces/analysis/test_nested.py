"""Nested ranges of a thread: the range around each, and those that are open at a moment."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from patcher.traces import analysis
from patcher.traces.analysis.nested import NestedRanges
from patcher.traces.marks import NUMBERED
from patcher.traces.rank_trace import NN_MODULE, RankTrace
from patcher.traces.trace_columns import UNKNOWN, HostCalls, RangeColumns
from tests.alarms import at_most
from tests.matrix import examples


def nested(*ranges: tuple[int, int]) -> NestedRanges:
    columns = RangeColumns()
    for number, (begin, end) in enumerate(ranges):
        columns.add(begin, end, number)
    return NestedRanges(columns)


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12),
    st.lists(st.integers(-1, 70), max_size=8).map(sorted),
)
def test_the_innermost_range_is_the_last_open_one(rows: list[tuple[int, int]], times: list[int]) -> None:
    ranges = nested(*((begin, begin + length) for begin, length in rows))
    for time, index in zip(times, ranges.innermost(times), strict=True):
        open_ranges = [at for at, begin in enumerate(ranges.begin) if begin <= time < ranges.end[at]]
        assert index == max(open_ranges, default=UNKNOWN)
        assert set(open_ranges) <= {*ranges.around(index)}


def test_a_range_lies_in_the_one_that_is_open_at_its_begin() -> None:
    ranges = nested((0, 10), (10, 20), (12, 15), (12, 18), (16, 17), (20, 20), (21, 22))
    assert [(ranges.begin[at], ranges.end[at], parent) for at, parent in enumerate(ranges.parent)] == [
        (0, 10, -1), (10, 20, -1), (12, 18, 1), (12, 15, 2), (16, 17, 2), (20, 20, -1), (21, 22, -1),
    ]  # fmt: skip
    assert [*ranges.around(3)] == [3, 2, 1]


def test_deep_modules_take_linear_time() -> None:
    count = 20_000
    trace = RankTrace("a run", "torch")
    thread = trace.thread(1, 1)
    trace.add_mark(f"{NUMBERED}3", 0, 10 * count, thread)
    launches = HostCalls()
    for at in range(count):
        trace.add_module(f"{NN_MODULE}Linear{at % 50}", at, 4 * count - at, thread)
        launches.add(at, count + at // 2, thread)
        trace.add_task(10 * count + at, 10 * count + at + 1, "compute", "k", "stream 7", at)
    trace.tasks.link(launches, trace.tasks.key)
    with at_most(5):
        profile = analysis.attributed(trace).profile
    assert {(module.calls, module.kernels, module.ns) for module in profile.modules} == {(400, count, count)}
