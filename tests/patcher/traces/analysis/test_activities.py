"""What covers most of a gap of the host, as tables of ranges."""

from __future__ import annotations

from types import SimpleNamespace as Some

import pytest

from patcher.traces.analysis.activities import HostActivities, covering, main_thread
from patcher.traces.analysis.hosts import _outermost_in_library
from patcher.traces.analysis.idle import LATE_NS, Idle
from patcher.traces.analysis.nested import HostThread, NestedRanges
from patcher.traces.rank_trace import LONG_CALL, RankTrace
from patcher.traces.trace_columns import UNKNOWN, RangeColumns

LETTERS = "abcdefgh"


def nested(*ranges: tuple[str, int, int]) -> NestedRanges:
    """Return the ranges of a thread, each with a letter for its name."""
    columns = RangeColumns()
    for name, begin, end in ranges:
        columns.add(begin, end, LETTERS.index(name))
    return NestedRanges(columns)


COVERING: dict[str, tuple[list[tuple[str, int, int]], tuple[str, int, int] | None]] = {
    "nothing": ([], None),
    "all of it": ([("a", 0, 300)], ("a", 100, 0)),
    "half of it": ([("a", 150, 300)], ("a", 50, 150)),
    "less than half of it": ([("a", 151, 300)], None),
    "one that ends with the begin": ([("a", 0, 100)], None),
    "one that begins with the end": ([("a", 200, 300)], None),
    "the inner one": ([("a", 0, 300), ("b", 110, 190)], ("b", 80, 110)),
    "an inner one that is too short": ([("a", 0, 300), ("b", 110, 150)], ("a", 100, 0)),
    "inner and outer cover as much": ([("a", 0, 300), ("b", 50, 250)], ("b", 100, 50)),
    "several of a name": ([("a", 0, 300), ("b", 110, 130), ("b", 140, 175)], ("b", 55, 140)),
    "several of a name, the first is the longest": ([("b", 100, 150), ("b", 160, 190)], ("b", 80, 100)),
    "several of a name, as long as each other": ([("a", 100, 130), ("a", 140, 170)], ("a", 60, 100)),
    "one behind a nested one of a name": ([("a", 110, 150), ("a", 115, 120), ("a", 140, 155)], None),
    "nested ones of a name count once": ([("a", 110, 150), ("a", 120, 140)], None),
    "several of several names": ([("a", 100, 130), ("b", 130, 160), ("c", 160, 200)], None),
}


@pytest.mark.parametrize("name", COVERING)
def test_the_inner_ranges_of_a_name_that_cover_half_are_named(name: str) -> None:
    ranges, expected = COVERING[name]
    held = covering(nested(*ranges), 100, 200, 7)
    assert (held and (LETTERS[held.name], held.ns, held.begin)) == expected
    assert held is None or (held.thread, held.is_operator) == (7, False)


AT = 10 * LONG_CALL
SYNCHRONISED: dict[str, tuple[int, list[tuple[str, int, int]], list[tuple[str, int, int]], str]] = {
    "no call": (9, [], [], ""),
    "one that ended long before": (9, [("a", 0, AT - LONG_CALL - 1)], [], ""),
    "one that ended right before": (9, [("a", 0, AT - LONG_CALL)], [], "a"),
    "one that ends within": (9, [("a", AT, AT + 5)], [], "a"),
    "one that begins later": (9, [("a", AT + 1, AT + 5)], [], ""),
    "the last that waits": (9, [("a", AT - 9, AT - 7), ("b", AT - 6, AT - 5), ("c", AT - 4, AT - 3)], [], "b"),
    "the main thread, a short gap": (9, [], [("a", 0, AT)], ""),
    "the main thread, a long gap": (LATE_NS, [], [("a", 0, AT)], "a"),
    "the launching thread first": (LATE_NS, [("b", 0, AT)], [("a", 0, AT)], "b"),
}


@pytest.mark.parametrize("name", SYNCHRONISED)
def test_the_host_returned_from_the_last_call_that_waits(name: str) -> None:
    ns, launching, main, returned = SYNCHRONISED[name]
    activities = HostActivities.__new__(HostActivities)
    activities.main, activities.calls = (
        1,
        {2: nested(*launching), 1: nested(*main)} if launching else {1: nested(*main)},
    )
    names = ["cudaStreamSynchronize", "hipMemcpyWithStream", "cudaLaunchKernel"]
    activities.trace = Some(tasks=Some(thread=[2]), names=Some(texts=names))  # type: ignore[assignment]
    activities.cuts = Some(order=[0])  # type: ignore[assignment]
    number = activities.synchronising_call(Idle(AT, AT + ns, ns, 0, 0, 0, ""))
    assert number == (LETTERS.index(returned) if returned else UNKNOWN)


@pytest.mark.parametrize(
    ("names", "outermost"), [("aa", "a"), ("ab", "a"), ("cab", "a"), ("acb", "b"), ("cdb", "b"), ("c", "c"), ("", "")]
)
def test_the_outermost_operator_is_of_the_library_of_the_innermost(names: str, outermost: str) -> None:
    """Names are from the outer to the inner one; a and b are of one library."""
    operators = nested(*((name, at, 100 - at) for at, name in enumerate(names)))
    name = _outermost_in_library(operators, len(names) - 1 if names else UNKNOWN, ["aten", "aten", "vllm", "c10d"])
    assert name == (LETTERS.index(outermost) if outermost else UNKNOWN)


@pytest.mark.parametrize(
    ("calls", "name", "ns"),
    [
        (("cuMemCreate", 60, "cuMemMap", 9, "cuMemSetAccess", 30), "cuMemCreate/cuMemSetAccess", 99),
        (("aclrtMallocPhysical", 50, "aclrtMapMem", 20), "aclrtMallocPhysical/aclrtMapMem", 70),
        (("hipMemCreate", 60, "hipLaunchKernel", 20, "hipMemUnmap", 5), "hipMemCreate", 65),
        (("cudaFree", 30, "cudaMalloc", 30, "cudaLaunchKernel", 40), "cudaFree/cudaMalloc", 60),
        (("cudaStreamSynchronize", 60, "cudaFree", 40), "cudaStreamSynchronize", 60), (("cudaFree", 20, "cudaMalloc", 20), "", 0),
    ],
    ids=["one has half", "on an NPU", "little of another", "none has half", "another call has half", "too little"],
)  # fmt: skip
def test_calls_on_memory_count_together_even_if_one_of_them_has_half(
    calls: tuple[str | int, ...], name: str, ns: int
) -> None:
    trace, now = RankTrace("a", "torch"), 0
    for call, takes in zip(calls[::2], calls[1::2], strict=True):
        trace.calls.setdefault(0, RangeColumns()).add(now, now + int(takes), trace.names[str(call)])
        now += int(takes)
    trace.tasks = Some(thread=[0], enqueued=[100], launched=[100])  # type: ignore[assignment]
    holds = HostActivities.__new__(HostActivities)
    holds.trace, holds.main, holds.overheads, holds.frames, holds.threads = trace, 0, nested(), {}, []
    holds.cuts = Some(order=[0])  # type: ignore[assignment]
    holds.calls = {0: NestedRanges(trace.calls[0])}
    held = holds.activity_in(Idle(0, 100, 100, 0, 0, 0, ""))
    assert (held and (trace.names.texts[held.name], held.ns)) == ((name, ns) if name else None)


@pytest.mark.parametrize(
    ("asked", "launched", "waited"), [(90, 105, False), (90, 106, True), (103, 108, False), (103, 109, True), (UNKNOWN, 106, True), (90, UNKNOWN, False)]
)  # fmt: skip
def test_a_task_waited_in_a_queue_for_over_half_of_a_gap(asked: int, launched: int, waited: bool) -> None:
    """The gap is from 100 to 110."""
    holds = HostActivities.__new__(HostActivities)
    holds.trace = Some(tasks=Some(enqueued=[asked], launched=[launched]))  # type: ignore[assignment]
    holds.cuts = Some(order=[0])  # type: ignore[assignment]
    assert holds._waited_in_queue(Idle(100, 110, 10, 0, 0, 0, "")) is waited


def test_the_thread_with_most_marks_is_the_main_one() -> None:
    trace = RankTrace("a", "torch")
    assert main_thread(trace) == UNKNOWN
    threads = [trace.thread(1, at) for at in range(3)]
    for number, thread in enumerate((0, 2, 2, 1)):
        trace.add_mark(f"ProfilerStep#{number}", number, number + 1, threads[thread])
    assert main_thread(trace) == threads[2]


CALLS: dict[str, tuple[int, int, int, list[tuple[str, int, int]], list[tuple[str, int, int]], list[tuple[str, int, int]], str]] = {
    "the launching thread": (0, 100, 90, [("a", 0, 50)], [("b", 0, 100)], [("c", 0, 100)], "a"), "half of the gap": (0, 100, 90, [("a", 0, 50)], [], [], "a"),
    "less than half": (0, 100, 90, [("a", 0, 49)], [], [], ""), "the main thread, a long gap": (0, LATE_NS, 90, [], [("b", 0, LATE_NS)], [], "b"),
    "the main thread, a short gap": (0, 100, 90, [], [("b", 0, 100)], [], ""), "another thread": (0, LATE_NS, 90, [], [], [("c", 0, LATE_NS)], ""),
    "no launch is known": (0, 100, UNKNOWN, [("a", 0, 100)], [], [], ""), "it waited in a queue": (0, 100, 151, [("a", 0, 60)], [("b", 0, 70)], [("c", 0, 80)], "c"),
    "it waited in a queue for half": (100, 100, 150, [("a", 100, 160)], [("b", 100, 170)], [("c", 100, 180)], "a"),
    "the driver loads a kernel": (0, 100, 90, [("a", 0, 100)], [], [], "d"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_call_in_a_gap_is_of_the_thread_that_launched_the_next_task(name: str) -> None:
    """Thread 2 launched it, thread 1 is the main one; where the task waited in a queue, all threads are looked at."""
    begin, ns, launched, launching, main, other, call = CALLS[name]
    holds = HostActivities.__new__(HostActivities)
    holds.main, holds.frames, holds.threads = 1, {2: nested(("h", begin, begin + ns))}, []
    holds.overheads = nested(*(("d", begin, begin + 50),) * (call == "d"))
    holds.calls = {thread: nested(*rows) for thread, rows in ((2, launching), (1, main), (3, other)) if rows}
    asked = 100 if "queue" in name else launched
    holds.trace = Some(tasks=Some(thread=[2], enqueued=[asked], launched=[launched]), names=Some(texts=LETTERS))  # type: ignore[assignment]
    holds.cuts = Some(order=[0])  # type: ignore[assignment]
    gap = Idle(begin, begin + ns, ns, 0, 0, 0, "")
    found, held = holds.call_in(gap), holds.activity_in(gap)
    assert (LETTERS[found.name] if found else "") == call
    assert (LETTERS[held.name] if held else "") == (call or "h")
    assert held is None or not held.is_operator
    assert call != "d" or (found is not None and found.thread == 2)


def test_of_a_frame_and_an_operator_the_shorter_one_is_named() -> None:
    holds = HostActivities.__new__(HostActivities)
    holds.main, holds.calls, holds.overheads = 0, {}, nested()
    holds.trace = Some(tasks=Some(thread=[0], enqueued=[0], launched=[0]), names=Some(texts=["record_param_comms"]))  # type: ignore[assignment]
    holds.cuts = Some(order=[0])  # type: ignore[assignment]
    none = nested()
    for frame, operator, name, is_operator in (
        (90, 80, "b", True),
        (80, 90, "a", False),
        (80, 80, "a", False),
        (40, 60, "b", True),
        (40, 40, "", None),
    ):
        holds.frames, holds.threads = {0: nested(("a", 0, frame))}, [HostThread(nested(("b", 0, operator)), none)]
        held = holds.activity_in(Idle(0, 100, 100, 0, 0, 0, ""))
        assert (held and (LETTERS[held.name], held.is_operator)) == ((name, is_operator) if name else None)


def test_an_operator_that_describes_another_one_is_not_named() -> None:
    """Torch records the parameters of a collective as an operator within that of the collective."""
    holds = HostActivities.__new__(HostActivities)
    holds.main, holds.calls, holds.frames, holds.overheads = 0, {}, {}, nested()
    texts = ["" for _ in LETTERS]
    texts[LETTERS.index("b")] = "record_param_comms"
    holds.trace = Some(tasks=Some(thread=[0], enqueued=[0], launched=[0]), names=Some(texts=texts))  # type: ignore[assignment]
    holds.cuts = Some(order=[0])  # type: ignore[assignment]
    holds.threads = [HostThread(nested(("a", 0, 90), ("b", 0, 80)), nested())]
    held = holds.activity_in(Idle(0, 100, 100, 0, 0, 0, ""))
    assert held is not None
    assert LETTERS[held.name] == "a"
