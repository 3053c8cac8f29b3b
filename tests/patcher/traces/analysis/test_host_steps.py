"""The time of units without a device, by the ranges around it: tables of a thread's ranges."""

from __future__ import annotations

import pytest

from patcher.traces.analysis import host_steps
from patcher.traces.analysis.nested import NestedRanges, host_thread
from patcher.traces.analysis.segments import split
from patcher.traces.model import HostPlace, HostStep
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import RangeColumns

US = 1000
DYNAMO, OTHER = "_compile.compile_inner (dynamo_timed)", "Optimizer.step#SGD.step"

COMPILING: dict[str, tuple[list[tuple[str, int, int]], int]] = {
    "nothing": ([], 0), "one range": ([(DYNAMO, 120, 150)], 30), "another range": ([(OTHER, 120, 150)], 0),
    "nested ones": ([(DYNAMO, 120, 150), ("inductor_codegen", 130, 140)], 30), "two": ([(DYNAMO, 120, 150), (DYNAMO, 160, 165)], 35),
    "overlapping ones": ([(DYNAMO, 120, 150), ("dynamo", 140, 170)], 50), "beyond both ends": ([(DYNAMO, 50, 250)], 100),
    "before": ([(DYNAMO, 50, 100)], 0), "behind": ([(DYNAMO, 200, 250)], 0), "into it": ([(DYNAMO, 50, 110), (DYNAMO, 190, 250)], 20),
    "torch 2.13": ([("entire_frame_compile", 120, 150), ("TorchDynamo Cache Lookup", 160, 170)], 30),
    "an outer one that ends first": ([(DYNAMO, 120, 130), ("Torch-Compiled Region: 0/0", 125, 160)], 40),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPILING)
def test_torch_compile_works_where_one_of_its_ranges_is_open(name: str) -> None:
    rows, ns = COMPILING[name]
    texts = list(dict.fromkeys(text for text, _, _ in rows))
    columns = RangeColumns()
    for text, begin, end in rows:
        columns.add(begin, end, texts.index(text))
    assert host_steps._compiling_ns(NestedRanges(columns), (100, 200), texts) == ns


def steps(
    operators: list[tuple[str, int, int, int]], *, marked: bool = True, frame: int = 1, ends: int = 1000
) -> HostStep:
    """Return the only unit, of 1000 µs, with operators (name, begin, end, thread) and a frame of a thread over it."""
    trace = RankTrace("a", "torch")
    for thread in (1, 2):
        trace.thread(1, thread)
    if marked:
        trace.add_mark("ProfilerStep#3", 0, 1000 * US, trace.thread(1, 1))
    for name, begin, end, thread in operators:
        trace.operators[trace.thread(1, thread)].add(begin * US, end * US, trace.names[name])
    columns = trace.functions.setdefault(trace.thread(1, frame), RangeColumns())
    columns.add(0, ends * US, trace.names["f.py(7): g"])
    cuts = split(trace)
    threads = [host_thread(trace, thread) for thread in range(len(trace.operators))]
    (step,) = host_steps.host_steps(trace, cuts, range(len(cuts.segments)), threads)
    return step


FRAME = HostPlace("f.py(7): g")
PLACES: dict[str, tuple[list[tuple[str, int, int, int]], dict[HostPlace, int], dict[str, int], int]] = {
    "a stretch of 20 µs": ([("a", 0, 480, 1), ("b", 500, 1000, 1)], {FRAME: 20}, {"a": 480, "b": 500}, 20),
    "a shorter stretch": ([("a", 0, 481, 1), ("b", 500, 1000, 1)], {}, {"a": 481, "b": 500}, 19),
    "a stretch of 100 µs": ([("a", 0, 400, 1), ("b", 500, 1000, 1)], {FRAME: 100}, {"a": 400, "b": 500}, 0),
    "short operators": ([("a", 0, 99, 1), ("b", 99, 199, 1)], {FRAME: 801}, {"a": 99, "b": 100}, 99),
    "nested ones": ([("a", 0, 900, 1), ("b", 100, 1000, 1)], {FRAME: 100}, {"a": 900}, 0),
    "on another thread": ([("a", 0, 600, 1), ("b", 500, 900, 2)], {FRAME: 100}, {"a": 600, "b": 300}, 0),
    "within one of another thread": ([("a", 0, 900, 1), ("b", 500, 800, 2)], {FRAME: 100}, {"a": 900}, 0),
    "beyond the end": ([("a", 900, 1500, 1)], {FRAME: 900}, {"a": 100}, 0),
    "before the begin": ([("a", -500, 100, 1)], {FRAME: 900}, {"a": 100}, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_operators_and_places_without_one_divide_a_unit(name: str) -> None:
    operators, places, times, small = PLACES[name]
    step = steps(operators)
    assert (step.number, step.ns) == (3, 1000 * US)
    assert {place: ns // US for place, ns in step.places.items()} == places
    assert {operator: ns // US for operator, ns in step.operators.items() if ns} == times
    assert step.small_ns == small * US


@pytest.mark.parametrize(
    ("marked", "frame", "found"), [(True, 1, True), (True, 2, False), (False, 2, True), (False, 1, False)]
)
def test_frames_are_those_of_the_thread_with_the_marks_or_with_most_operators(
    marked: bool, frame: int, found: bool
) -> None:
    operators = [("a", 0, 100, 1), ("b", 500, 600, 2), ("b", 600, 1000, 2)]
    places = steps(operators, marked=marked, frame=frame).places
    assert {bool(place.inside) for place in places} == {found}


@pytest.mark.parametrize(("thread", "operators"), [(2, {"aten::mm"}), (1, {"aten::mm", "aten::copy_"})])
def test_what_a_collective_runs_on_a_thread_of_its_own_is_no_work_of_the_step(thread: int, operators: set[str]) -> None:
    trace = RankTrace("a", "torch")
    main, other = trace.thread(1, 1), trace.thread(1, thread)
    trace.add_mark("ProfilerStep#3", 0, 1000 * US, main)
    trace.operators[main].add(0, 100 * US, trace.names["aten::mm"])
    trace.operators[other].add(200 * US, 800 * US, trace.names["aten::copy_"])
    trace.add_frame("gloo:all_gather", 150 * US, 950 * US, other)
    threads = [host_thread(trace, number) for number in range(len(trace.operators))]
    (step,) = host_steps.host_steps(trace, split(trace), [0], threads)
    assert {*step.operators} == operators


def test_shapes_of_operators_are_told_where_they_are_known() -> None:
    step = steps([("a", 0, 480, 1), ("b", 500, 1000, 1)])
    assert (step.inputs, step.calls) == ({}, {"a": 1, "b": 1})


@pytest.mark.parametrize(
    ("name", "times", "place"),
    [
        ("micro_batch_2", 2, HostPlace("micro_batch_2")), ("micro_batch_2", 1, HostPlace("", "", "a", "b")),
        ("reward", 1, HostPlace("reward")), ("forward of the whole step", 1, HostPlace("", "", "a", "b")),
    ],
)  # fmt: skip
def test_numbered_ranges_within_steps_are_places_if_they_recur(name: str, times: int, place: HostPlace) -> None:
    trace = RankTrace("a", "torch")
    thread = trace.thread(1, 1)
    for step in range(2):
        begin = step * 1000 * US
        trace.add_mark(f"ProfilerStep#{step}", begin, begin + 1000 * US, thread)
        for operator, at in (("a", 0), ("b", 600)):
            trace.operators[thread].add(begin + at * US, begin + (at + 400) * US, trace.names[operator])
        if step < times:
            around = name.endswith("whole step")
            edges = (0, 1000 * US) if around else (400 * US, 590 * US)
            trace.add_range(name, begin + edges[0], begin + edges[1], thread, module=False)
    cuts = split(trace)
    first, _ = host_steps.host_steps(trace, cuts, range(len(cuts.segments)), [host_thread(trace, thread)])
    assert list(first.places) == [place]


SMALL: dict[str, tuple[list[tuple[int, int]], int, list[int]]] = {
    "nothing": ([], 0, [1_000_000]),
    "a short operator": ([(0, 99_999)], 99_999, [900_001]),
    "a longer one": ([(0, 100_000)], 0, [900_000]),
    "a short pause": ([(0, 500_000), (599_999, 1_000_000)], 99_999, [99_999]),
    "a longer one between": ([(0, 500_000), (600_000, 1_000_000)], 0, [100_000]),
    "a pause that is no place": ([(0, 500_000), (519_999, 1_000_000)], 19_999, []),
    "the shortest place": ([(0, 500_000), (520_000, 1_000_000)], 20_000, [20_000]),
    "an operator within another": ([(0, 500_000), (100_000, 150_000), (500_000, 1_000_000)], 0, []),
    "operators that overlap": ([(0, 500_000), (490_000, 520_000), (520_000, 1_000_000)], 20_000, []),
    "beyond both ends": ([(-50_000, 20_000), (20_000, 960_000), (960_000, 1_100_000)], 60_000, []),
}


@pytest.mark.parametrize(("operators", "small", "places"), SMALL.values(), ids=SMALL)
def test_short_operators_and_pauses_before_one_are_small(
    operators: list[tuple[int, int]], small: int, places: list[int]
) -> None:
    ranges = {name: NestedRanges(RangeColumns()) for name in ("collectives", "frames", "functions", "ranges")}
    within = [(begin, end, f"op {at}", "") for at, (begin, end) in enumerate(operators)]
    step = host_steps._host_step(7, (0, 1_000_000), within, ranges, [])
    assert (step.number, step.ns, step.small_ns, list(step.places.values())) == (7, 1_000_000, small, places)
    assert sum(step.operators.values()) + sum(places) <= step.ns
    assert sum(step.calls.values()) == len(operators)


def test_of_operators_that_end_together_the_first_is_the_one_before_a_pause() -> None:
    ranges = {name: NestedRanges(RangeColumns()) for name in ("collectives", "frames", "functions", "ranges")}
    within = [(0, 500_000, "aten::mm", ""), (100_000, 500_000, "aten::add", "")]
    step = host_steps._host_step(7, (0, 1_000_000), within, ranges, [])
    assert (dict(step.operators), [place.before for place in step.places]) == ({"aten::mm": 500_000}, ["aten::mm"])


GAPS: dict[str, tuple[list[str], list[str], list[str], HostPlace]] = {
    "nothing": ([], [], [], HostPlace("", "", "aten::rand", "aten::add")),
    "a frame": (["f.py(7): g"], [], [], HostPlace("f.py(7): g")),
    "a frame in a range": (["f.py(7): g"], ["Optimizer.step"], [], HostPlace("f.py(7): g", "Optimizer.step")),
    "a range": ([], ["Optimizer.step"], [], HostPlace("Optimizer.step")),
    "a library's frame": (["f.py(7): g", "h.py(8): i", "random.py(9): choices"], [], [], HostPlace("random.py(9): choices", "h.py(8): i")),
    "the function of the standard library that was called": (["h.py(8): i", "copy.py(1): deepcopy", "copy.py(2): _dict"], [], [], HostPlace("copy.py(1): deepcopy", "h.py(8): i")),
    "the function that waits": (["h.py(8): i", "queue.py(1): get", "built-in method acquire"], [], [], HostPlace("queue.py(1): get", "h.py(8): i")),
    "a call that waits within another function": (["h.py(8): i", "subprocess.py(5): run", "built-in method poll"], [], [], HostPlace("built-in method poll", "h.py(8): i")),
    "a function that torch called": (["h.py(8): i", "torch/x.py(1): f", "random.py(9): choices"], [], [], HostPlace("random.py(9): choices", "h.py(8): i")),
    "a library's frame alone": (["random.py(9): choices"], [], [], HostPlace("random.py(9): choices")),
    "a library's frame in a module": (["h.py(8): i", "nn.Module: M_0", "random.py(9): choices"], [], [], HostPlace("random.py(9): choices", "h.py(8): i")),
    "the collector": (["f.py(7): g", "Python GC"], ["Python GC"], [], HostPlace("Python GC")),
    "the collector around a frame": (["f.py(7): g"], ["Python GC"], [], HostPlace("Python GC")),
    "the function of an operator": (["f.py(7): g", "built-in method rand of type"], [], [], HostPlace("built-in method rand of type", "f.py(7): g")),
    "a collective in which backward waits": (["built-in method run_backward"], [], ["gloo:all_reduce"], HostPlace("gloo:all_reduce")),
    "a collective beside other work": (["f.py(7): sleep"], [], ["gloo:all_reduce"], HostPlace("f.py(7): sleep")),
    "a collective in the range that started it": ([], ["grad_sync"], ["gloo:all_reduce"], HostPlace("gloo:all_reduce", "grad_sync")),
    "a collective beside a function in the range": (["f.py(7): sleep"], ["grad_sync"], ["gloo:all_reduce"], HostPlace("f.py(7): sleep", "grad_sync")),
    "a collective without a frame": ([], [], ["gloo:all_reduce"], HostPlace("gloo:all_reduce")),
}  # fmt: skip


@pytest.mark.parametrize("name", GAPS)
def test_a_gap_has_the_frame_and_the_range_around_it(name: str) -> None:
    """The frames, ranges and collectives are from the outer to the inner one; a range is among the frames, too."""
    frames, ranges, collectives, place = GAPS[name]
    texts = list(dict.fromkeys((*frames, *ranges, *collectives)))
    nested = {}
    for kind, inside in {"frames": [*ranges, *frames], "ranges": ranges, "collectives": collectives}.items():
        columns = RangeColumns()
        for depth, text in enumerate(dict.fromkeys(inside)):
            columns.add(depth, 100 - depth, texts.index(text))
        nested[kind] = NestedRanges(columns)
    assert host_steps._place_of_gap(nested, (10, 90), ("aten::rand", "aten::add"), texts) == place


def test_frames_of_a_step_are_those_within_it() -> None:
    """The frame of a loop's body, around all operators, tells nothing."""
    assert steps([("a", 0, 100, 1), ("b", 500, 900, 1)]).frames == {}
    inner = steps([("a", -10, 100, 1), ("b", 500, 1000, 1)], ends=900)
    assert {frame: sum(places.values()) for frame, places in inner.frames.items()} == {"f.py(7): g": 400 * US}


def test_operators_that_end_with_the_begin_of_a_step_or_begin_with_its_end_are_not_in_it() -> None:
    assert steps([("a", -500, 100, 1), ("b", -100, 0, 2), ("c", 500, 1000, 2), ("d", 1000, 1200, 2)]).calls == {
        "a": 1,
        "c": 1,
    }


def test_a_step_without_an_operator_has_only_its_time() -> None:
    trace = RankTrace("a", "torch")
    thread = trace.thread(1, 1)
    for number in range(3):
        trace.add_mark(f"ProfilerStep#{number}", number * 1000 * US, (number + 1) * 1000 * US, thread)
    trace.operators[thread].add(100 * US, 400 * US, trace.names["a"])
    cuts = split(trace)
    found = host_steps.host_steps(trace, cuts, [2, 0, 1], [host_thread(trace, thread)])
    assert [(step.number, step.calls, step.idle_ns // US) for step in found] == [
        (0, {"a": 1}, 700), (1, {}, 1000), (2, {}, 1000)
    ]  # fmt: skip
    assert host_steps.host_steps(RankTrace("b", "torch"), cuts, [0], []) == ()


@pytest.mark.parametrize(
    ("ranges", "around"),
    [
        ([(0, 100)], {0}), ([(0, 100), (5, 95)], {0, 1}), ([(0, 100), (5, 90)], {0, 1}), ([(0, 100), (5, 89)], {0}), ([(0, 100), (12, 99)], {0}),
        ([(0, 100), (20, 99)], {0}), ([(10, 90)], {0}), ([(11, 90)], set()),
    ],
)  # fmt: skip
def test_frames_around_all_operators_are_of_the_step(ranges: list[tuple[int, int]], around: set[int]) -> None:
    columns = RangeColumns()
    for name, (begin, end) in enumerate(ranges):
        columns.add(begin, end, name)
    operators = [(10, 15, "a", ""), (25, 90, "b", ""), (30, 40, "c", "")]
    assert host_steps._frames_around(NestedRanges(columns), operators) == around
    assert host_steps._frames_around(NestedRanges(columns), []) == set()


@pytest.mark.parametrize(
    ("frames", "parts"),
    [
        ([], [(0, 100)]), ([(20, 80)], [(0, 20), (20, 80), (80, 100)]), ([(19.999, 80)], [(0, 80), (80, 100)]),
        ([(20, 80.001)], [(0, 20), (20, 100)]), ([(0, 80)], [(0, 80), (80, 100)]), ([(0, 40), (60, 100)], [(0, 40), (40, 60), (60, 100)]),
    ],
    ids=str,
)  # fmt: skip
def test_a_gap_is_divided_where_20_us_of_it_lie_beside_a_frame(
    frames: list[tuple[float, float]], parts: list[tuple[float, float]]
) -> None:
    """Times are in µs; each frame has a name of its own."""
    columns = RangeColumns()
    for name, (begin, end) in enumerate(frames):
        columns.add(round(begin * US), round(end * US), name)
    ranges = {"collectives": NestedRanges(RangeColumns()), "frames": NestedRanges(columns)}
    expected = [(round(begin * US), round(end * US)) for begin, end in parts]
    assert host_steps._parts_of_gap(ranges, 0, 100 * US) == expected


@pytest.mark.parametrize(
    ("frames", "large"),
    [
        ([(0, 90, 7), (0, 50, 8)], [1]), ([(0, 89, 7), (0, 50, 8)], [0]), ([(0, 50, 7), (50, 70, 8)], [0, 1]), ([(0, 50, 7), (50, 69, 8)], [0]),
        ([(0, 45, 7), (0, 30, 8), (50, 95, 7)], [1]), ([(0, 95, 7)], []), ([(-50, 19, 7), (80, 150, 8)], [1]),
    ],
    ids=str,
)  # fmt: skip
def test_a_frame_with_a_fifth_of_a_gap_is_large_and_one_with_nine_tenths_is_looked_into(
    frames: list[tuple[int, int, int]], large: list[int]
) -> None:
    """The gap is from 0 to 100; frames are (begin, end, name)."""
    columns = RangeColumns()
    for row in frames:
        columns.add(*row)
    nested = NestedRanges(columns)
    order = sorted(frames, key=lambda row: (row[0], -row[1]))
    assert [order[index] for index in host_steps._large_frames(nested, 0, 100)] == [frames[at] for at in large]


@pytest.mark.parametrize(("tensors", "saving"), [(4, True), (3, False)])
def test_four_detached_tensors_before_a_gap_are_a_checkpoint(tensors: int, saving: bool) -> None:
    detached = [("aten::detach", at, at + 1, 1) for at in range(tensors)]
    (place,) = steps([*detached, ("a", 500, 1000, 1)], ends=1).places
    assert place.saving == saving


@pytest.mark.parametrize(("name", "own"), [("f.py(7): g", True), ("torch/f.py(7): g", False), ("range", False)])
def test_functions_are_frames_of_the_program(name: str, own: bool) -> None:
    trace = RankTrace("a", "torch")
    thread = trace.thread(1, 1)
    trace.add_mark("ProfilerStep#3", 0, 1000 * US, thread)
    for begin in (0, 900):
        trace.operators[thread].add(begin * US, (begin + 100) * US, trace.names["a"])
    trace.frames.setdefault(thread, RangeColumns()).add(200 * US, 800 * US, trace.names[name])
    cuts = split(trace)
    (step,) = host_steps.host_steps(trace, cuts, range(len(cuts.segments)), [host_thread(trace, thread)])
    assert step.functions == ({name: 600 * US} if own else {})
    assert step.ranges == ({name: 600 * US} if name == "range" else {})
