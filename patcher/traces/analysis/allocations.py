"""The memory that a trace of torch.profiler tells of: peak and growth by step, and the code that allocates most."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from patcher.traces.analysis.hosts import host_around
from patcher.traces.analysis.nested import HostThread
from patcher.traces.analysis.segments import Split
from patcher.traces.measured import AllocatingCode, DeviceAllocations, UnitAllocations
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import UNKNOWN, AllocationColumns, sorted_places

MOST_ROWS = 200
"""Largest number of rows of code."""


def device_allocations(
    trace: RankTrace, cuts: Split, chosen: Sequence[int], threads: Sequence[HostThread]
) -> Iterator[DeviceAllocations]:
    """Yield for each device its memory in each chosen step, its highest peak, and the code that allocated most.

    ``chosen`` has the indices of the steps' segments in ``cuts``. ``threads`` tell the operator and the module around
    each allocation. The device with most events comes first; a device that allocated nothing in these steps is left
    out.
    """
    for device, columns in sorted(trace.allocations.items(), key=lambda item: -len(item[1])):
        order = sorted_places(len(columns), columns.time.__getitem__)
        times = [columns.time[place] for place in order]
        units, inside = list[UnitAllocations](), list[int]()
        for segment in (cuts.segments[number] for number in chosen):
            first, last = bisect_left(times, segment.begin), bisect_left(times, segment.step.end)
            units.append(_step_memory(columns, order, (first, last), segment.step.number or 0))
            inside += order[first:last]
        highest = max(units, key=lambda unit: unit.peak, default=None)
        if highest is not None and any(unit.allocations for unit in units):
            code = _allocating_code(trace, columns, inside, threads)
            yield DeviceAllocations(device, highest.peak, highest.number, tuple(units), code)


def join_pieces(pieces: Iterable[Sequence[DeviceAllocations]]) -> Iterator[DeviceAllocations]:
    """Yield one `DeviceAllocations` for each device of a window that was saved in several traces (pieces).

    ``pieces`` has the devices of each piece, in order. The steps are concatenated, and the peak is the highest of all
    pieces. Allocations of the same code are added up, and the 200 rows with the most bytes are kept.
    """
    by_device = defaultdict[int, list[DeviceAllocations]](list)
    for memory in chain.from_iterable(pieces):
        by_device[memory.device].append(memory)
    for device, parts in by_device.items():
        sums = defaultdict[tuple[str, str], list[int]](lambda: [0, 0])
        for row in chain.from_iterable(part.code for part in parts):
            sums[row.module, row.operator][0] += row.bytes
            sums[row.module, row.operator][1] += row.allocations
        highest = max(parts, key=lambda part: part.peak)
        units = tuple(chain.from_iterable(part.units for part in parts))
        yield DeviceAllocations(device, highest.peak, highest.peak_unit, units, _most_allocating(sums))


def _most_allocating(sums: Mapping[tuple[str, str], Sequence[int]]) -> tuple[AllocatingCode, ...]:
    """Return at most 200 rows of allocating code, most bytes first.

    ``sums`` maps (module, operator) to [bytes, number of allocations].
    """
    rows = (AllocatingCode(*names, *values) for names, values in sums.items())
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.module, row.operator))[:MOST_ROWS])


def _step_memory(
    columns: AllocationColumns, order: Sequence[int], span: tuple[int, int], number: int
) -> UnitAllocations:
    """Return the memory of step ``number``: bytes in use at its start, end and peak, and bytes and count allocated.

    ``order`` has the indices of all events in ``columns`` by time; ``span`` is the half-open range of the step's events
    in ``order``. In use at the start is the total after the last event before the step. If there is none, it is the
    total after the first event less that event's size, at least 0.
    """
    first, last = span
    start = columns.total[order[first - 1]] if first else 0
    if not first and order:
        start = max(columns.total[order[0]] - columns.size[order[0]], 0)
    totals = [columns.total[place] for place in order[first:last]]
    sizes = [columns.size[place] for place in order[first:last] if columns.size[place] > 0]
    end, peak = totals[-1] if totals else start, max([start, *totals])
    return UnitAllocations(number, start, end, peak, sum(sizes), len(sizes))


def _allocating_code(
    trace: RankTrace, columns: AllocationColumns, places: Sequence[int], threads: Sequence[HostThread]
) -> tuple[AllocatingCode, ...]:
    """Return bytes and number of allocations of each operator within each module, at most 200 rows, most bytes first.

    ``places`` are indices of events in ``columns``; frees among them do not count. An operator or module is "" if an
    allocation lies in none.
    """
    places = [place for place in places if columns.size[place] > 0]
    moments = [(columns.thread[place], columns.time[place]) for place in places]
    sums, texts = defaultdict[tuple[str, str], list[int]](lambda: [0, 0]), trace.names.texts
    for place, around in zip(places, host_around(trace, threads, moments), strict=True):
        module, operator = ("" if name == UNKNOWN else texts[name] for name in (around.module, around.operator))
        row = sums[module, operator]
        row[0] += columns.size[place]
        row[1] += 1
    return _most_allocating(sums)
