"""The lines of ``report`` on a memory snapshot in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from patcher.commands.reports import table_lines
from patcher.messages import Text
from patcher.messages.notes import wrapped
from patcher.traces import memory_tables
from patcher.traces.snapshots import DeviceMemory, Snapshot
from patcher.traces.words import size


def report(snapshot: Snapshot) -> Iterator[str]:
    """Yield the lines on a snapshot: the peak of each device, its holders and units, and what is cached but unused."""
    yield from ("", Path(snapshot.source).name)
    if not snapshot.devices:
        yield Text("  no memory was allocated on a device")
    for device in snapshot.devices:
        yield from verdict(device)
        for table in memory_tables.tables(device):
            if table.rows:
                yield Text("  {title}", table.title)
                yield from table_lines.lines(table)
    if snapshot.cut:
        yield from wrapped(
            Text(
                "the allocation history was full and lost its oldest entries: earlier allocations have no step"
                " and no stack"
            ),
            "  ",
        )


def verdict(device: DeviceMemory) -> Iterator[str]:
    """Yield the sentences on a device: peak, failed allocations, memory without a stack, and the cache."""
    yield from wrapped(memory_tables.peak_line(device), "  ")
    for failure in device.failures:
        free = Text("unknown") if failure.free is None else size(failure.free)
        where = Text("outside of the steps") if failure.unit is None else Text("step {step}", failure.unit)
        values = (where, size(failure.requested), free, size(failure.unused))
        text = Text("out of memory in {where}: {size} requested, {free} free on the device, {unused} cached", *values)
        yield from wrapped(text, "  ", "    ")
    if device.unknown:
        yield from wrapped(
            Text("{size} of the peak has no stack: it was allocated before the window", size(device.unknown)), "  "
        )
    yield from wrapped(memory_tables.end_line(device), "  ", "    ")
