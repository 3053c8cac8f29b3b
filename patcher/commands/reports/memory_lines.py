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

FAILURES = 3
"""Failed allocations that are listed; a program that catches them may try again and again."""


def report(snapshot: Snapshot) -> Iterator[str]:
    """Yield the lines on a memory snapshot: for each device the peak, what holds it, its steps, and unused cache."""
    yield from ("", Path(snapshot.source).name)
    if not snapshot.devices:
        yield Text("  no memory was allocated on any device")
    for device in snapshot.devices:
        yield from device_lines(device)
        for table in memory_tables.tables(device):
            if table.rows:
                yield Text("  {title}", table.title)
                yield from table_lines.lines(table)
    if snapshot.cut:
        yield from wrapped(
            Text(
                "the allocation history was full and lost its oldest entries, so the step and stack of the oldest"
                " allocations are unknown"
            ),
            "  ",
        )


def device_lines(device: DeviceMemory) -> Iterator[str]:
    """Yield indented lines on a device's memory: peak, failed allocations, memory without a stack, and unused cache."""
    yield from wrapped(memory_tables.peak_line(device), "  ")
    for failure in device.failures[:FAILURES]:
        free = Text("unknown") if failure.free is None else size(failure.free)
        where = Text("outside of the recorded steps") if failure.unit is None else Text("in step {step}", failure.unit)
        text = Text(
            "out of memory {where}: {size} requested, {free} free on the device, {unused} cached but unused",
            where=where,
            size=size(failure.requested),
            free=free,
            unused=size(failure.unused),
        )
        yield from wrapped(text, "  ", "    ")
    if len(device.failures) > FAILURES:
        yield Text("  … {count:,} more failed allocations in --json", len(device.failures) - FAILURES)
    if device.unknown:
        yield from wrapped(
            Text(
                "for {size} of the peak, the call stack is unknown, because this memory was allocated before the"
                " recording window",
                size(device.unknown),
            ),
            "  ",
        )
    yield from wrapped(memory_tables.end_line(device), "  ", "    ")
