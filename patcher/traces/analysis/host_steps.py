"""The steps of a trace without a device: for how long an operator ran on the host, and what the host did in between."""

from __future__ import annotations

import itertools
import operator
import re
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from patcher.traces.analysis.activities import covering, covering_names, main_thread, overlapping
from patcher.traces.analysis.nested import HostThread, NestedRanges, covered_ns
from patcher.traces.analysis.segments import Split
from patcher.traces.families import COLLECTIVE
from patcher.traces.model import HostPlace, HostStep
from patcher.traces.operator_families import operator_family
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import UNKNOWN, RangeColumns

SMALL_NS, SHORT_NS = 20_000, 100_000
"""Mean time from one operator to the next below which their number counts, and the length below which one is short."""

COMPILES = re.compile(
    r"\(dynamo_timed\)$|^dynamo$|^Torch-?Compile|^inductor_|^entire_\w+_compile$|^backend_compile$"
    r"|^compile_attempt",
    re.IGNORECASE,
)
"""Ranges within which torch.compile works (``torch/_dynamo/utils.py`` names them)."""

_RANGES = re.compile(
    rf"enumerate\(DataLoader\)|^Optimizer\.|^PythonDispatchMode$|DataParallel\.forward$|{COMPILES.pattern}",
    re.IGNORECASE,
)
"""Names of ranges that torch records as operators, and that are around some: no work by themselves."""

_UNNAMED = re.compile(r"<?unknown>?", re.IGNORECASE)
"""Name of a frame or range that the profiler could not name: what is around it, or in it, tells more."""

_FRAME = re.compile(r"\(\d+\): ")
"""Part of the name of a frame: ``loader.py(12): next``."""

_DETACH, _TENSORS = "aten::detach", 4
"""The operator that ``Module.state_dict`` calls for each tensor, and how many in a row tell it from other code."""

COLLECTION = "Python GC"
"""The range of a garbage collection of Python (torch's ``record_python_gc_info``)."""

_LIBRARY = re.compile(
    rf"(?:{'|'.join(map(re.escape, sys.stdlib_module_names))}|torch|numpy)(?:\.py\(|/)|built-in |<frozen "
)
"""Begin of the name of a frame of a library."""

BLOCKS = re.compile(
    r"(?:function|method) (?:acquire|wait|waitpid|poll|select|recv\w*|read|readline|readinto|accept|connect|sleep"
    r"|join|get)$"
    r"|^(?:threading|queue|selectors|subprocess|(?:concurrent|multiprocessing)/[\w/]+)\.py\(\d+\): "
    r"_?(?:wait|join|get|result|select|acquire|poll)"
)
"""Built-in functions, and those of Python's library, in which a thread does nothing but wait."""

_STANDARD = re.compile(rf"(?:{'|'.join(map(re.escape, sys.stdlib_module_names))})(?:\.py\(|/)|<frozen ")
"""Begin of the name of a frame of Python's standard library."""

IMPORTS = re.compile(r"<frozen importlib\._bootstrap>\(\d+\): _find_and_load$")
"""Frame of Python in which it imports a module."""

BACKWARD = "autograd::engine::evaluate_function: "
"""Begin of the name of an operator of autograd, one for each node of the graph."""

_WAITS = re.compile(r"wait|synchronize|run_backward")
"""Frames that only wait, for the work of a collective or for autograd, in which DistributedDataParallel waits."""

_NO_SHAPES = ("",)

_END = 10
"""Part of a stretch, its last, in which a collective still runs if the host only waits for it.

An import of a module may begin and end as far outside of a stretch.
"""

_NEARLY_ALL, LARGE = 0.9, 0.2
"""Share of a stretch from which on one frame covers it, and from which on a frame is a place of its own."""

_Stretch = tuple[int, int, str, str]
"""Begin and end of an operator, its name, and the shapes of its inputs in JSON, "" if unknown."""

_Gap = tuple[int, int, tuple[str, str], bool]
"""Begin and end of a stretch without an operator, the operators around it, "" at the edge of the step, and whether the
one before has run once for each tensor."""


def host_steps(
    trace: RankTrace, cuts: Split, chosen: Collection[int], threads: Sequence[HostThread]
) -> tuple[HostStep, ...]:
    """Return for each chosen step where its time goes on the host; empty if anything ran on a device.

    ``chosen`` has indices of segments (steps) in ``cuts``; ``threads`` has the operators of each thread. Empty without
    operators, too.
    """
    if len(trace.tasks) or not any(len(thread.operators.begin) for thread in threads):
        return ()
    busiest = max(range(len(threads)), key=lambda thread: len(threads[thread].operators.begin))
    main = main_thread(trace)
    main = busiest if main == UNKNOWN else main
    outermost = sorted(
        stretch
        for number, thread in enumerate(threads)
        for stretch in _outside_collectives(_outermost(thread.operators, trace), trace, number, main)
    )
    steps_of_main = {(segment.begin, segment.mark.end) for segment in cuts.segments if segment.mark is not None}
    covering_ranges = _covering_ranges(trace, threads, main, steps_of_main)
    steps, first = [], 0
    for number in sorted(chosen):
        segment = cuts.segments[number]
        begin, end = segment.begin, segment.step.end
        while first < len(outermost) and outermost[first][1] <= begin:
            first += 1
        until = bisect_left(outermost, end, first, key=operator.itemgetter(0))
        within = [stretch for stretch in outermost[first:until] if stretch[1] > begin]
        steps.append(_host_step(segment.step.number or 0, (begin, end), within, covering_ranges, trace.names.texts))
    return tuple(steps)


def _outermost(operators: NestedRanges, trace: RankTrace) -> Iterator[_Stretch]:
    """Yield (begin, end, name, shapes) of each operator of a thread that lies in no other operator, in order of time.

    Begin and end are in ns, shapes are JSON, "" if unknown. Ranges that only surround operators, such as
    ``Optimizer.step``, are no operators.
    """
    texts, until = trace.names.texts, -(1 << 63)
    for begin, end, name in zip(operators.begin, operators.end, operators.name, strict=True):
        if begin >= until and not _RANGES.search(texts[name]):
            yield begin, end, texts[name], trace.shapes.get(name, _NO_SHAPES)[0]
            until = end


def _outside_collectives(stretches: Iterable[_Stretch], trace: RankTrace, thread: int, main: int) -> Iterator[_Stretch]:
    """Yield the ``stretches`` of a thread without those that a collective runs on another thread than ``main``.

    Gloo copies and sums tensors there, while the main thread waits.
    """
    frames = trace.frames.get(thread)
    if thread == main or frames is None:
        yield from stretches
        return
    rows = [*stretches]
    inside = _collectives([frames], trace.names.texts).innermost([begin for begin, _, _, _ in rows])
    yield from (row for row, collective in zip(rows, inside, strict=True) if collective == UNKNOWN)


def _covering_ranges(
    trace: RankTrace, threads: Sequence[HostThread], main: int, steps: Collection[tuple[int, int]]
) -> Mapping[str, NestedRanges]:
    """Return the ranges that may tell what runs on the thread ``main`` while no operator does, by kind.

    Kinds are "ranges", which only surround operators; "frames", all of these with the Python frames and C functions, so
    that the inner one is found; "functions", the Python frames of the program's own code; and "collectives", those on
    all threads. Marks other than the ``steps`` (begin and end in ns) are ranges, too, if their name occurs again.
    """
    ranges, frames = RangeColumns(), RangeColumns()
    operators, texts = threads[main].operators, trace.names.texts
    for columns in (operators, trace.frames.get(main, RangeColumns())):
        for begin, end, name in zip(columns.begin, columns.end, columns.name, strict=True):
            if _UNNAMED.fullmatch(texts[name]):
                continue
            is_frame = _FRAME.search(texts[name]) is not None
            if not is_frame and (columns is not operators or _RANGES.search(texts[name])):
                ranges.add(begin, end, name)
            elif columns is not operators:
                frames.add(begin, end, name)
    _add_repeated_marks(ranges, trace, main, steps)
    functions = _functions_of_program(frames, texts)
    frames.extend(ranges)
    if main in trace.functions:
        frames.extend(trace.functions[main])
    return {
        "frames": NestedRanges(frames), "ranges": NestedRanges(ranges), "functions": NestedRanges(functions),
        "collectives": _collectives(trace.frames.values(), texts),
    }  # fmt: skip


def _add_repeated_marks(ranges: RangeColumns, trace: RankTrace, main: int, steps: Collection[tuple[int, int]]) -> None:
    """Add to ``ranges`` the marks of the thread ``main`` whose name occurs again.

    Marks of ``steps``, begin and end in ns, are left out.
    """
    inner = [mark for thread, mark in trace.marks if thread == main and (mark.begin, mark.end) not in steps]
    count = Counter(mark.name for mark in inner)
    for mark in inner:
        if count[mark.name] > 1:  # a name that numbers the steps tells nothing
            ranges.add(mark.begin, mark.end, trace.names[mark.name])


def _functions_of_program(frames: RangeColumns, texts: Sequence[str]) -> RangeColumns:
    """Return the Python frames of the program's own code among ``frames``; ``texts`` are the names by number."""
    functions = RangeColumns()
    is_own = {name: _FRAME.search(texts[name]) is not None and not is_library(texts[name]) for name in set(frames.name)}
    for begin, end, name in zip(frames.begin, frames.end, frames.name, strict=True):
        if is_own[name]:
            functions.add(begin, end, name)
    return functions


def _collectives(frames: Iterable[RangeColumns], texts: Sequence[str]) -> NestedRanges:
    """Return the ranges of collectives on the CPU, such as ``gloo:all_reduce``, among the ``frames`` of some threads.

    Of a range that overlaps an earlier one, only the part after that one is kept. ``texts`` are the names by number.
    """
    merged = RangeColumns()
    spans = sorted(
        (begin, end, name)
        for columns in frames
        for begin, end, name in zip(columns.begin, columns.end, columns.name, strict=True)
        if operator_family(texts[name]) == COLLECTIVE
    )
    reach = spans[0][0] if spans else 0
    for begin, end, name in spans:
        if end > reach:
            merged.add(max(begin, reach), end, name)
            reach = end
    return NestedRanges(merged)


def _host_step(
    number: int, window: tuple[int, int], within: Sequence[_Stretch], covering_ranges: Mapping[str, NestedRanges],
    texts: Sequence[str],
) -> HostStep:  # fmt: skip
    """Return where the time of step ``number`` goes on the host: operators, places without any, and torch.compile.

    ``window`` is its begin and end in ns, ``within`` has the outermost operators that overlap it, of all threads, by
    begin. ``covering_ranges`` has the ranges that may tell what runs between operators: "ranges", "frames", "functions"
    and "collectives". ``texts`` are the names by number.
    """
    begin, end = window
    operators, count, inputs = Counter[str](), Counter[str](), dict[str, Counter[str]]()
    gaps: list[_Gap] = []
    small: list[tuple[int, int]] = []
    reach, before, same, backward = begin, "", 0, 0
    for first, last, name, shapes in (*within, (end, end, "", "")):
        first, last = max(first, begin), min(last, end)
        if first - reach >= SMALL_NS:
            gaps.append((reach, first, (before, name), before == _DETACH and same >= _TENSORS))
        same = same + 1 if name == before else 1
        if reach < first < reach + SHORT_NS:
            small.append((reach, first - reach))
        if last > reach:
            if last - first < SHORT_NS:
                small.append((max(first, reach), last - max(first, reach)))
            operators[name] += last - max(first, reach)
            if name.startswith(BACKWARD):
                backward += last - (reach if before.startswith(BACKWARD) else max(first, reach))
            reach, before = last, name
        count[name] += bool(name)
        if shapes:
            inputs.setdefault(name, Counter())[shapes] += 1
    del count[""], operators[""]  # of the end of the step
    outermost = _frames_around(covering_ranges["frames"], within)
    places, frames = _times_without_operators(covering_ranges, gaps, outermost, texts)
    ranges_ns, small_ranges = _times_within(covering_ranges["ranges"], window, small, texts)
    functions_ns, small_functions = _times_within(covering_ranges["functions"], window, small, texts)
    for frame in outermost:
        functions_ns.pop(texts[frame], None)
        small_functions.pop(texts[frame], None)
    large = [name for name, ns in {**functions_ns, **ranges_ns}.items() if ns >= LARGE * (end - begin)]
    return HostStep(
        number=number, ns=end - begin, operators=operators, calls=count, places=places,
        small_ns=sum(ns for _, ns in small), compiling_ns=_compiling_ns(covering_ranges["ranges"], window, texts),
        inputs=inputs, frames=frames, ranges=ranges_ns, small_ranges=small_ranges, functions=functions_ns,
        small_functions=small_functions, around=_ranges_around(covering_ranges["frames"], window, large, texts),
        collectives=_times_of_calls(covering_ranges["collectives"], window, texts), backward_ns=backward,
    )  # fmt: skip


def _times_without_operators(
    covering_ranges: Mapping[str, NestedRanges], gaps: Iterable[_Gap], outermost: Collection[int], texts: Sequence[str]
) -> tuple[Counter[HostPlace], dict[str, Counter[HostPlace]]]:
    """Return the ns of each place in the ``gaps`` of a step, and by the name of a frame those of the places within it.

    ``outermost`` are the frames around all operators of the step, as numbers of ``texts``: they tell nothing.
    """
    places, frames = Counter[HostPlace](), dict[str, Counter[HostPlace]]()
    ranges_of_step = {texts[frame] for frame in outermost if not _FRAME.search(texts[frame])}
    for begin, end, neighbours, saving in gaps:
        for part in _parts_of_gap(covering_ranges, begin, end):
            ns = part[1] - part[0]
            place = _place_of_gap(covering_ranges, part, neighbours, texts)
            if place.inside in ranges_of_step:
                place = HostPlace("", "", *neighbours)
            places[place._replace(saving=saving and not place.inside)] += ns
            for frame in set(covering_names(covering_ranges["frames"], *part)).difference(outermost):
                frames.setdefault(texts[frame], Counter())[place] += ns
    return places, frames


def _beginning_in(ranges: NestedRanges, window: tuple[int, int]) -> range:
    """Return the indices of the ranges that begin in ``window``, begin and end in ns."""
    return range(bisect_left(ranges.begin, window[0]), bisect_left(ranges.begin, window[1]))


def _ranges_around(
    frames: NestedRanges, window: tuple[int, int], names: Iterable[str], texts: Sequence[str]
) -> dict[str, set[str]]:
    """Return for each of the ``names`` those of the ranges and frames around its ranges that begin in a step."""
    around = {name: set[str]() for name in names}
    for index in _beginning_in(frames, window):
        if (name := texts[frames.name[index]]) in around:
            around[name] |= {texts[frames.name[outer]] for outer in frames.around(frames.parent[index])}
    return around


def _times_of_calls(ranges: NestedRanges, window: tuple[int, int], texts: Sequence[str]) -> dict[str, list[int]]:
    """Return by name the ns of each range that begins in a step, in order of time."""
    times: dict[str, list[int]] = {}
    for index in _beginning_in(ranges, window):
        times.setdefault(texts[ranges.name[index]], []).append(ranges.end[index] - ranges.begin[index])
    return times


def _times_within(
    ranges: NestedRanges, window: tuple[int, int], small: Sequence[tuple[int, int]], texts: Sequence[str]
) -> tuple[Counter[str], Counter[str]]:
    """Return by name the ns of the ranges that begin in a step, and the part of these ns that is ``small``.

    ``window`` is the begin and end of the step in ns. ``small`` has (begin, ns) of its operators and pauses below
    0.1 ms, in order of time. ``texts`` are the names by number. A range inside another one of its name, such as a
    recursive call, does not count again.
    """
    times, small_times, reach = Counter[str](), Counter[str](), dict[int, int]()
    begins, sums = [at for at, _ in small], [0, *itertools.accumulate(ns for _, ns in small)]
    for index in _beginning_in(ranges, window):
        begin, end, name = ranges.begin[index], ranges.end[index], ranges.name[index]
        if begin < reach.get(name, begin):
            continue
        reach[name] = end
        times[texts[name]] += end - begin
        small_times[texts[name]] += sums[bisect_left(begins, end)] - sums[bisect_left(begins, begin)]
    return times, small_times


def _frames_around(frames: NestedRanges, operators: Sequence[_Stretch]) -> set[int]:
    """Return the names, as numbers, of the ``frames`` around all ``operators`` of a step, which are sorted by begin.

    The result is empty without operators.
    """
    if not operators:
        return set()
    end = max(last for _, last, _, _ in operators)
    (innermost,) = frames.innermost([operators[0][0]])
    return {frames.name[frame] for frame in frames.around(innermost) if frames.end[frame] >= end}


def _parts_of_gap(covering_ranges: Mapping[str, NestedRanges], begin: int, end: int) -> list[tuple[int, int]]:
    """Return the parts (begin and end in ns) of a stretch without an operator that are places of their own.

    These are the frames and ranges beside each other that take a fifth of the stretch by name, and what lies between
    them. Less than 20 µs between two of them belongs to the later one. During a collective, the stretch is one part.
    """
    if covering(covering_ranges["collectives"], begin, end, 0) is not None:
        return [(begin, end)]
    frames = covering_ranges["frames"]
    parts: list[tuple[int, int]] = []
    reach, before = begin, UNKNOWN
    for index in _large_frames(frames, begin, end):
        name, first, last = frames.name[index], max(frames.begin[index], reach), min(frames.end[index], end)
        if last <= first:
            continue
        if first - reach >= SMALL_NS:
            parts.append((reach, first))
            reach, before = first, UNKNOWN
        if name == before:
            parts[-1] = (parts[-1][0], last)
        else:
            parts.append((reach, last))
        reach, before = last, name
    if not parts or end - reach >= SMALL_NS:
        return [*parts, (reach, end)]
    return [*parts[:-1], (parts[-1][0], end)]


def _large_frames(frames: NestedRanges, begin: int, end: int) -> list[int]:
    """Return the indices of frames beside each other that take a fifth of ``begin`` to ``end`` (ns), in order of time.

    Frames of one name count together. If one name has nine tenths of the time, the frames inside it are returned. The
    result is empty without any.
    """
    children: dict[int, list[int]] = {}
    for index in overlapping(frames, begin, end):
        children.setdefault(frames.parent[index], []).append(index)
    siblings = children.get(UNKNOWN, [])
    while siblings:
        times = Counter[int]()
        for index in siblings:
            times[frames.name[index]] += min(frames.end[index], end) - max(frames.begin[index], begin)
        ((longest, ns),) = times.most_common(1)
        if ns < _NEARLY_ALL * (end - begin):
            return [index for index in siblings if times[frames.name[index]] >= LARGE * (end - begin)]
        siblings = [child for index in siblings if frames.name[index] == longest for child in children.get(index, ())]
    return []


def _place_of_gap(
    covering_ranges: Mapping[str, NestedRanges],
    stretch: tuple[int, int],
    neighbours: tuple[str, str],
    texts: Sequence[str],
) -> HostPlace:
    """Return the frame or range that covers most of a stretch without an operator, else the operators around it.

    A collective that covers most of it takes precedence, unless a frame covers it that does more than wait, or a range
    that began during the collective, or goes on after it. ``stretch`` is begin and end in ns, ``covering_ranges`` has
    the "ranges", "frames" and "collectives" to look at. ``neighbours`` are the names of the operators before and after,
    "" at the edge of the step; ``texts`` has the names by number. A frame of a library comes with its caller. Python's
    garbage collection is returned instead of the frame that it interrupts.
    """
    collective, frame, inside = (
        covering(covering_ranges[kind], *stretch, 0) for kind in ("collectives", "frames", "ranges")
    )
    if collective is not None and (frame is None or _WAITS.search(texts[frame.name])):
        return HostPlace(texts[collective.name])
    if frame is None:
        return HostPlace("", "", *neighbours)
    if collective is not None and frame == inside and frame.begin <= collective.begin:  # the range has started it
        begin, end = stretch
        if covering(covering_ranges["collectives"], end - (end - begin) // _END, end, 0) is not None:
            return HostPlace(texts[collective.name], texts[frame.name])
    name, around_name = texts[frame.name], texts[inside.name] if inside else ""
    if around_name == COLLECTION:  # whatever frame it interrupts, or calls
        return HostPlace(COLLECTION)
    caller, called = _caller(covering_ranges["frames"], stretch, name, texts)
    if name == around_name or not around_name or (caller and IMPORTS.match(called)):
        around_name = caller
    return HostPlace(called, around_name)


def _caller(frames: NestedRanges, stretch: tuple[int, int], name: str, texts: Sequence[str]) -> tuple[str, str]:
    """Return the innermost frame of a program's own code that covers most of ``stretch``, and the frame that it called.

    ``stretch`` is begin and end in ns, ``texts`` are the names by number. The first one is "" if there is none, or if
    ``name`` is such code itself: the frame or range that covers the stretch. The second one is ``name``, unless the
    program called the standard library, which led to ``name``: ``copy.deepcopy`` tells more than what it calls. But if
    ``name`` only waits, and that function does not by its name, ``name`` tells more. The import of a module is named
    before what the module does.
    """
    if not is_library(name):
        return "", name
    around = [texts[frame] for frame in covering_names(frames, *stretch)]
    of_program = [at for at, frame in enumerate(around) if _FRAME.search(frame) and not is_library(frame)]
    if not of_program:
        return "", name
    caller, called = around[of_program[-1]], next(iter(around[of_program[-1] + 1 :]), name)
    importing = next(filter(IMPORTS.match, around), "")
    if importing and _imports_mostly(frames, stretch, texts):
        return caller, importing
    tells_more = _STANDARD.match(called) and (BLOCKS.search(called) or not BLOCKS.search(name))
    return caller, called if tells_more else name


def _imports_mostly(frames: NestedRanges, stretch: tuple[int, int], texts: Sequence[str]) -> bool:
    """Tell whether imports of modules take at least half of ``stretch``, begin and end in ns.

    An import that is around more than a stretch without operators is that of the whole program. ``texts`` are the names
    of ``frames`` by number.
    """
    begin, end = stretch
    around = (end - begin) // _END
    imports = (
        (frames.begin[index], frames.end[index])
        for index in overlapping(frames, begin, end)
        if IMPORTS.match(texts[frames.name[index]])
        and begin - around <= frames.begin[index]
        and frames.end[index] <= end + around
    )
    return 2 * covered_ns(imports, begin, end) >= end - begin


def is_library(frame: str) -> bool:
    """Tell whether a frame lies in Python's standard library, torch or numpy, or in no file, by its name."""
    return _LIBRARY.match(frame) is not None


def _compiling_ns(ranges: NestedRanges, window: tuple[int, int], texts: Sequence[str]) -> int:
    """Return for how many ns of a step torch.compile worked; overlapping ranges count once.

    ``window`` is the begin and end of the step in ns, ``texts`` the names by number.
    """
    spans = (
        (begin, end)
        for begin, end, name in zip(ranges.begin, ranges.end, ranges.name, strict=True)
        if COMPILES.search(texts[name])
    )
    return covered_ns(spans, *window)
