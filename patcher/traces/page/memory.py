"""The page of memory snapshots: one section a device, with its tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from patcher.messages import Text
from patcher.page import document
from patcher.page.markup import faint, section, tag
from patcher.page.table import table_section
from patcher.traces import memory_tables
from patcher.traces.snapshots import DeviceMemory, Snapshot

MOST = 200
"""Rows of a table, and devices, on a page."""


def page(snapshots: Sequence[Snapshot]) -> str:
    """Return the HTML page of a report on memory snapshots; only the first 200 devices of all of them are shown."""
    devices = [(snapshot, device) for snapshot in snapshots for device in snapshot.devices]
    body = (
        tag("header", tag("h1", Text("rlpatch: memory"))),
        [_device_section(snapshot, device) for snapshot, device in devices[:MOST]],
        len(devices) > MOST
        and faint(Text("{count:,} more devices are not shown here; `--json` lists them.", len(devices) - MOST)),
    )
    return document(Text("rlpatch: memory"), body)


def _device_section(snapshot: Snapshot, device: DeviceMemory) -> object:
    return section(
        Text("{name}, device {device}", name=Path(snapshot.source).name, device=device.device),
        tag("p", memory_tables.peak_line(device)),
        faint(memory_tables.end_line(device)),
        [table_section(table, MOST) for table in memory_tables.tables(device)],
    )
