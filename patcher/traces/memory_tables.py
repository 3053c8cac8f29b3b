"""The tables of memory snapshots, in bytes; the terminal, the page and CSV files show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from patcher.messages import Text, joined
from patcher.table import COUNT, NUMBER, Column, Table
from patcher.traces.snapshots import DeviceMemory, LiveMemory, Origin, Snapshot
from patcher.traces.tables import BYTES, CSV, NAME, TERMINAL, UNIT_MEMORY
from patcher.traces.words import number_ranges, size


def of_snapshots(snapshots: Sequence[Snapshot]) -> Iterator[tuple[Mapping[str, object], Table]]:
    """Yield each table of each device in the snapshots, as (origin of its rows, table).

    The origin maps "source" and "device" to that of the snapshot and the device.
    """
    for snapshot in snapshots:
        for device in snapshot.devices:
            origin = {"source": snapshot.source, "device": device.device}
            for table in tables(device):
                yield origin, table


def tables(device: DeviceMemory) -> Iterator[Table]:
    """Yield a device's tables: memory in use at the peak, in each step, after the last step, and its largest blocks."""
    yield live_memory("memory_holders", Text("Memory in use at the peak"), device.holders)
    yield units(device)
    yield live_memory("memory_left", Text("Allocated in steps, and still in use after the last step"), device.growth)
    yield live_memory("memory_blocks", Text("Largest memory blocks in use at the end"), device.blocks)


def peak_line(device: DeviceMemory) -> Text:
    """Return a text on the memory peak of a device; with marked steps also on the step that it is in, if any."""
    peak = Text("device {device}: memory peak {size}", device=device.device, size=size(device.peak))
    if device.peak_unit is not None:
        return Text("{peak}, in step {step}", peak=peak, step=device.peak_unit)
    return Text("{peak}, not inside any step", peak) if device.units else peak


def end_line(device: DeviceMemory) -> Text:
    """Return a text on the memory of a device at the end: in use, reserved, cached but unused, largest free block."""
    return Text(
        "at the end of the recording: {used} of {reserved} reserved memory in use; {unused} cached but unused; the"
        " largest free block has {free}",
        used=size(device.in_use),
        reserved=size(device.reserved),
        unused=size(device.unused),
        free=size(device.largest_free),
    )


def origin_name(origin: Origin) -> str:
    """Return the code that allocated memory as text for people: frame outside of torch, module and operator.

    If none of them is known, it says that the history or the stack is missing.
    """
    parts = [
        part for part in (origin.frame, origin.module if origin.module != origin.frame else "", origin.operator) if part
    ]
    return (
        joined(Text(", "), parts)
        if parts
        else Text("allocated before the recorded history began, or recorded without a stack")
    )


def live_memory(name: str, title: Text, live: Sequence[LiveMemory]) -> Table:
    """Return the table ``name`` of live memory by origin, in the order of ``live``."""
    columns = (
        Column("bytes", Text("memory"), BYTES, TERMINAL, bar=True),
        Column("blocks", Text("blocks"), COUNT, TERMINAL),
        Column("steps", Text("steps"), optional=True),
        Column("", Text("allocated in"), NAME, TERMINAL),
        Column("frame", shown_in=CSV), Column("module", shown_in=CSV), Column("operator", shown_in=CSV),
    )  # fmt: skip
    rows = [
        (group.bytes, group.blocks, number_ranges(group.units), origin_name(group.origin), group.origin.frame,
         group.origin.module, group.origin.operator)
        for group in live
    ]  # fmt: skip
    return Table(name, title, columns, rows)


def units(device: DeviceMemory) -> Table:
    """Return the table of a device's memory in each step of the recording window."""
    columns = (
        Column("step", Text("step"), NUMBER, TERMINAL),
        *UNIT_MEMORY,
        Column("left_bytes", Text("left behind"), BYTES, TERMINAL),
    )
    rows = [*map(attrgetter("number", "start", "peak", "end", "allocated", "allocations", "left"), device.units)]
    about = Text(
        "Left behind: memory that was allocated in this step and is still in use after the last step of the trace."
    )
    return Table("memory_units", Text("Memory by step"), columns, rows, about)
