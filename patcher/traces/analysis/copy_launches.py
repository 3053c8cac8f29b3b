"""The frame or range of the host that launched most of the copies of a step."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

from patcher.traces import model
from patcher.traces.analysis.host_steps import is_library
from patcher.traces.analysis.nested import NestedRanges, innermost_with_most
from patcher.traces.analysis.segments import Split
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import UNKNOWN

_LONG_NS = 20_000
"""Copies that are shorter have no launcher: there are many of them, and they take little time."""

_COPY = model.KINDS.index(model.COPY)
_TELLS_NOTHING = re.compile(r"torch_npu/|<built-in|nn\.Module: |(?:.*\(\d+\): )?(?:cu|hip|acl)[a-z]{0,2}[A-Z][\w/]*$")
"""Names of frames that tell no more than what they call, of calls of a device's runtime, and of their wrappers."""


def is_of_program(name: str) -> bool:
    """Tell whether a function or range is the program's own: of no library, and no call of a device's runtime."""
    return not is_library(name) and not _TELLS_NOTHING.match(name)


def copy_launches(
    trace: RankTrace, cuts: Split, numbers: Mapping[int, int], frames: Mapping[int, NestedRanges]
) -> Mapping[int, model.CopyLaunch]:
    """Return number of a step → the frame or range that launched over half of the time of its copies.

    Steps without one are left out, and so are frames around a whole step. ``numbers`` maps the segments of ``cuts`` to
    numbers of steps, ``frames`` has the frames and ranges of each thread.
    """
    tasks, owner = trace.tasks, cuts.owner
    begins = {number: cuts.segments[segment].begin for segment, number in numbers.items()}
    whole = Counter[int]()
    times: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    kinds: dict[int, Counter[int]] = defaultdict(Counter)
    by_thread: dict[int, list[int]] = defaultdict(list)
    for task, kind in enumerate(tasks.kind):
        if kind == _COPY and owner[task] in numbers:
            ns = tasks.end[task] - tasks.begin[task]
            number = numbers[owner[task]]
            whole[number] += ns
            kinds[number][tasks.name[task]] += ns
            if ns >= _LONG_NS and tasks.enqueued[task] != UNKNOWN:
                by_thread[tasks.thread[task]].append(task)
    for thread, copies in by_thread.items():
        ranges = frames.get(thread)
        if ranges is None:
            continue
        copies.sort(key=tasks.enqueued.__getitem__)
        for task, index in zip(copies, ranges.innermost(map(tasks.enqueued.__getitem__, copies)), strict=True):
            times[numbers[owner[task]]][thread, index] += tasks.end[task] - tasks.begin[task]
    texts = trace.names.texts
    telling = {name for name, text in enumerate(texts) if is_of_program(text)}
    launches = {}
    for number, sums in times.items():
        ns_of, depth_of = _times_around(sums, frames, begins[number], telling)
        if 2 * max(ns_of.values(), default=0) > whole[number]:
            inner = innermost_with_most(ns_of, {name: -depth for name, depth in depth_of.items()})
            kernel = max(kinds[number], key=kinds[number].__getitem__)
            launches[number] = model.CopyLaunch(texts[inner], ns_of[inner], texts[kernel])
    return launches


def _times_around(
    times: Mapping[tuple[int, int], int], frames: Mapping[int, NestedRanges], step_begin: int, telling: set[int]
) -> tuple[Counter[int], dict[int, int]]:
    """Return name → ns of the copies within its ranges, for ``telling`` names; and name → largest depth of its ranges.

    ``times`` maps the thread and the index of the innermost range around copies to their ns. Ranges that do not begin
    after ``step_begin`` are left out. ``frames`` has the frames and ranges of each thread.
    """
    ns_of, depth_of = Counter[int](), dict[int, int]()
    for (thread, index), ns in times.items():
        ranges = frames[thread]
        around = [ranges.name[at] for at in ranges.around(index) if ranges.begin[at] > step_begin]
        for depth, name in enumerate(reversed(around)):
            depth_of[name] = max(depth, depth_of.get(name, 0))
        for name in telling.intersection(around):
            ns_of[name] += ns
    return ns_of, depth_of
