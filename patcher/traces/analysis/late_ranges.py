"""The range of the host in which most host-bound time lies, although the host spends less of its time there."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate

from patcher.traces import model
from patcher.traces.analysis.copy_launches import is_of_program
from patcher.traces.analysis.idle import Idle
from patcher.traces.analysis.nested import HostThread, NestedRanges, innermost_with_most
from patcher.traces.analysis.segments import Split
from patcher.traces.rank_trace import OPTIMIZER, RankTrace
from patcher.traces.trace_columns import UNKNOWN

PARTS = ("free_host_late_ns", "free_latency_ns")
"""The parts of a step that are host-bound, with the launch latency behind."""

NOTABLE = 0.10
"""The share of the steps' time on the device from which on host-bound time is looked at."""

_FEW = 2
"""Steps up to which one may have over half of the time."""

_DENSE = 0.6
"""A range tells where the host is late if its share of the host's time, or of the device's work, is at most this part
of its share of the idle time: a range around most of the step tells nothing."""


class IdleTime:
    """Stretches of idle time, in order of their begin, of which sums up to a moment can be asked for.

    ``by_segment`` has the sum of each segment.
    """

    def __init__(self) -> None:
        self.begin, self.sums = array("q"), array("q", (0,))
        self.by_segment = Counter[int]()

    def add(self, gap: Idle) -> None:
        """Add a stretch, which must begin after those before."""
        self.begin.append(gap.begin)
        self.sums.append(self.sums[-1] + gap.ns)
        self.by_segment[gap.segment] += gap.ns

    def until(self, moment: int) -> int:
        """Return the ns of idle time before ``moment``."""
        at = bisect_right(self.begin, moment)
        if not at:
            return 0
        length = self.sums[at] - self.sums[at - 1]
        return self.sums[at - 1] + min(moment - self.begin[at - 1], length)


def late_range(
    trace: RankTrace,
    cuts: Split,
    chosen: Sequence[int],
    threads: Sequence[HostThread],
    frames: Mapping[int, NestedRanges],
    late: IdleTime,
    *,
    in_one: bool = False,
) -> model.HostRange | None:
    """Return the frame, range, module or optimizer with over half of the host-bound time; None without one.

    It must have a larger part of this time than of the host's time in the ``chosen`` segments, or than of the work
    launched in them, see `_DENSE`. Only the threads that launch tasks count. ``threads`` and ``frames`` have what they
    ran, ``late`` the host-bound time. None, too, if one of several segments has over half of the time, unless it may
    be ``in_one``: that is a slow step.
    """
    segments = [cuts.segments[number] for number in chosen]
    whole = late.sums[-1]
    if not whole or whole < NOTABLE * sum(segment.ends - segment.starts for segment in segments):
        return None
    if not in_one and len(segments) > _FEW and 2 * max(late.by_segment.values()) > whole:
        return None
    host_ns = sum(segment.step.end - segment.begin for segment in segments)
    sums = _times_by_name(trace, (segments[0].begin, segments[-1].end), threads, frames, late)
    work = sum(segment.ends - segment.starts for segment in segments) - whole
    telling = {
        name: (idle, ns)
        for name, (idle, ns, work_ns) in sums.items()
        if 2 * idle > whole and min(ns * work, work_ns * host_ns) * whole <= _DENSE * idle * host_ns * work
    }
    if not telling:
        return None
    of_program = {name: sums for name, sums in telling.items() if is_of_program(trace.names.texts[name])} or telling
    name = innermost_with_most(*({name: times[at] for name, times in of_program.items()} for at in (0, 1)))
    idle, ns = telling[name]
    return model.HostRange(trace.names.texts[name], idle, ns)


def _times_by_name(
    trace: RankTrace,
    window: tuple[int, int],
    threads: Sequence[HostThread],
    frames: Mapping[int, NestedRanges],
    late: IdleTime,
) -> dict[int, list[int]]:
    """Return name → host-bound ns, all ns, and launched ns of its ranges within ``window``, begin and end in ns.

    Launched are the tasks that any thread enqueued meanwhile.
    Names are numbers. Only ranges of the threads that launch tasks count; ``threads`` and ``frames`` have them by
    thread. ``late`` is the host-bound time.
    """
    first, last = window
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    tasks = trace.tasks
    order = sorted(range(len(tasks)), key=tasks.enqueued.__getitem__)
    enqueued = [tasks.enqueued[task] for task in order]
    launched = [0, *accumulate(tasks.end[task] - tasks.begin[task] for task in order)]
    optimizers = {number for number, text in enumerate(trace.names.texts) if text.startswith(OPTIMIZER)}
    for thread in {*trace.tasks.thread} - {UNKNOWN}:
        for begin, end, name in _ranges(threads[thread], frames.get(thread), optimizers):
            begin, end = max(begin, first), min(end, last)
            if begin < end:
                row = sums[name]
                row[0] += late.until(end) - late.until(begin)
                row[1] += end - begin
                row[2] += launched[bisect_left(enqueued, end)] - launched[bisect_left(enqueued, begin)]
    return sums


def _ranges(
    host: HostThread, frames: NestedRanges | None, optimizers: Collection[int]
) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and name of the modules, ``frames`` and ``optimizers`` (names of operators) of a thread.

    A range within another one of its name is left out.
    """
    yield from _outermost_of_name(host.modules)
    if frames is not None:
        yield from _outermost_of_name(frames)
    if optimizers:
        yield from (row for row in _outermost_of_name(host.operators) if row[2] in optimizers)


def _outermost_of_name(ranges: NestedRanges) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and name of each range that lies within none of its own name."""
    open_until = dict[int, int]()
    for begin, end, name in zip(ranges.begin, ranges.end, ranges.name, strict=True):
        if open_until.get(name, begin) <= begin:
            open_until[name] = end
            yield begin, end, name
