"""The memory that a trace of torch.profiler tells of, against a trace of known allocations."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patcher.traces import analysis, formats, tables
from patcher.traces.analysis import allocations
from patcher.traces.analysis.allocations import join_pieces
from patcher.traces.analysis.segments import Segment, Split
from patcher.traces.marks import Mark
from patcher.traces.measured import AllocatingCode, DeviceAllocations, UnitAllocations
from patcher.traces.model import RankProfile
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import UNKNOWN, AllocationColumns

MB = 10**6


def allocation(at: float, size: int, total: int | None, **args: Any) -> dict[str, Any]:
    """An event as torch 2.13 writes it (``torch/csrc/profiler/kineto``), at so many microseconds."""
    totals = {} if total is None else {"Total Allocated": total, "Total Reserved": 5 * total}
    fields = {"Bytes": size, "Device Id": 0, "Device Type": 1, "Addr": 512, "Ev Idx": 7, **totals, **args}
    return {
        "ph": "i",
        "s": "t",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": 1,
        "tid": 1,
        "ts": at,
        "args": fields,
    }


def span(cat: str, name: str, begin: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": begin, "dur": end - begin}


def events(*, totals: bool = True) -> Iterator[dict[str, Any]]:
    """Two steps: in each a module's operator has 30 MB for a moment, and 2 MB stay that no operator allocates."""
    total = 100 * MB
    for step in (3, 4):
        begin = 1000.0 * step
        yield span("user_annotation", f"ProfilerStep#{step}", begin, begin + 900)
        yield span("python_function", "nn.Module: Linear_0", begin + 100, begin + 300)
        yield span("cpu_op", "aten::linear", begin + 110, begin + 290)
        yield span("cpu_op", "aten::addmm", begin + 120, begin + 280)
        for at, size in ((150, 30 * MB), (200, -30 * MB), (500, 2 * MB)):
            total += size
            yield allocation(begin + at, size, total if totals else None)
        yield allocation(begin + 600, 77, 5, **{"Device Type": 0})


def profile(tmp_path: Path, *traced: dict[str, Any]) -> RankProfile:
    path = tmp_path / "a.pt.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": traced}))
    (trace,) = formats.read(path)
    return analysis.attributed(trace).profile


def test_each_unit_has_its_memory_and_each_operator_its_share(tmp_path: Path) -> None:
    (memory,) = profile(tmp_path, *events()).memory
    assert [(unit.number, unit.start, unit.peak, unit.end) for unit in memory.units] == [
        (3, 100 * MB, 130 * MB, 102 * MB), (4, 102 * MB, 132 * MB, 104 * MB),
    ]  # fmt: skip
    assert [(unit.allocated, unit.allocations) for unit in memory.units] == [(32 * MB, 2)] * 2
    assert (memory.peak, memory.peak_unit) == (132 * MB, 4)
    assert [(row.module, row.operator, row.bytes, row.allocations) for row in memory.code] == [
        ("Linear", "aten::linear", 60 * MB, 2), ("", "", 4 * MB, 2),
    ]  # fmt: skip


def test_without_totals_the_memory_is_what_was_allocated_since(tmp_path: Path) -> None:
    (memory,) = profile(tmp_path, *events(totals=False)).memory
    assert [(unit.start, unit.peak) for unit in memory.units] == [(0, 30 * MB), (2 * MB, 32 * MB)]


def test_a_unit_starts_with_what_lies_between_it_and_the_unit_before(tmp_path: Path) -> None:
    between = allocation(3_950, 7 * MB, 109 * MB)
    rows = [row for row in events() if row["ts"] < 3_950]
    later = [
        {**row, "args": {**row["args"], "Total Allocated": row["args"]["Total Allocated"] + 7 * MB}}
        if "Bytes" in row.get("args", {})
        else row
        for row in events()
        if row["ts"] > 3_950
    ]
    (memory,) = profile(tmp_path, *rows, between, *later).memory
    assert [(unit.start, unit.peak, unit.end) for unit in memory.units] == [
        (100 * MB, 130 * MB, 102 * MB), (109 * MB, 139 * MB, 111 * MB)
    ]  # fmt: skip
    assert [unit.allocated for unit in memory.units] == [32 * MB] * 2


def test_the_tables_are_per_unit(tmp_path: Path) -> None:
    by_unit, by_code = tables.allocations(profile(tmp_path, *events()))
    assert [row[0] for row in by_unit.rows] == [3, 4]
    assert by_code.rows[0][:2] == (30 * MB, 1)


@pytest.mark.parametrize(
    "args",
    [
        {"Bytes": "x"},
        {"Bytes": 1 << 70},
        {"Total Allocated": -5},
        {"Device Id": None},
        {"Device Id": {}},
        {"Bytes": None},
    ],
)
def test_events_of_another_form_are_left_out(tmp_path: Path, args: dict[str, Any]) -> None:
    spoilt = allocation(3160, 9 * MB, 109 * MB, **args)
    (memory,) = profile(tmp_path, *events(), spoilt).memory
    assert (memory.peak, memory.units[0].allocations) == (132 * MB, 2)


def test_a_trace_without_memory_has_none(tmp_path: Path) -> None:
    bare = profile(tmp_path, *(event for event in events() if event["ph"] == "X"))
    assert bare.memory == ()
    assert [table.rows for table in tables.allocations(bare)] == [[], []]


def test_pieces_of_a_window_are_put_together(tmp_path: Path) -> None:
    memory = profile(tmp_path, *events()).memory
    (both,) = join_pieces([memory, memory])
    assert isinstance(both, DeviceAllocations)
    assert len(both.units) == 4
    assert [row.bytes for row in both.code] == [120 * MB, 8 * MB]


def columns(*rows: tuple[int, int, int]) -> AllocationColumns:
    """Return events of (time, size, total)."""
    made = AllocationColumns()
    for time, size, total in rows:
        made.add(0, time, size, total)
    return made


ROWS = ((10, 5, 105), (20, -5, 100), (30, 50, 150), (40, 7, 157), (50, -57, 100))
UNITS: dict[tuple[int, int], tuple[int, int, int, int, int]] = {
    (0, 5): (100, 100, 157, 62, 3), (0, 1): (100, 105, 105, 5, 1), (1, 2): (105, 100, 105, 0, 0), (2, 4): (100, 157, 157, 57, 2),
    (4, 5): (157, 100, 157, 0, 0), (5, 5): (100, 100, 100, 0, 0), (0, 0): (100, 100, 100, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("places", UNITS)
def test_a_unit_has_memory_at_its_start_and_end_and_its_peak(places: tuple[int, int]) -> None:
    unit = allocations._step_memory(columns(*ROWS), range(5), places, 7)
    assert (unit.number, unit.start, unit.end, unit.peak, unit.allocated, unit.allocations) == (7, *UNITS[places])


def test_before_the_first_event_there_is_no_less_than_nothing() -> None:
    assert allocations._step_memory(columns((10, 50, 20)), range(1), (0, 1), 0).start == 0
    assert allocations._step_memory(columns(), range(0), (0, 0), 0) == UnitAllocations(0, 0, 0, 0, 0, 0)


def test_an_event_without_bytes_is_no_allocation() -> None:
    events = columns((10, 0, 5), (11, -3, 2))
    assert allocations._step_memory(events, range(2), (0, 2), 0) == UnitAllocations(0, 5, 2, 5, 0, 0)
    assert allocations._allocating_code(RankTrace("a", "torch"), events, [0, 1], []) == ()


def test_pieces_of_a_window_are_joined_by_device() -> None:
    def piece(device: int, peak: int, number: int, *code: tuple[str, str, int, int]) -> DeviceAllocations:
        unit = UnitAllocations(number, 0, 0, peak, 0, 0)
        return DeviceAllocations(device, peak, number, (unit,), tuple(AllocatingCode(*row) for row in code))

    pieces = [
        [piece(0, 5, 1, ("m", "a", 10, 1), ("m", "b", 3, 1)), piece(1, 9, 1)], [piece(0, 7, 2, ("m", "b", 9, 2), ("", "a", 10, 5))],
        [piece(0, 6, 3)],
    ]  # fmt: skip
    first, second = join_pieces(pieces)
    assert (first.device, first.peak, first.peak_unit, [unit.number for unit in first.units]) == (0, 7, 2, [1, 2, 3])
    assert [(row.module, row.operator, row.bytes, row.allocations) for row in first.code] == [
        ("m", "b", 12, 3), ("", "a", 10, 5), ("m", "a", 10, 1)
    ]  # fmt: skip
    assert (second.device, second.peak, second.code) == (1, 9, ())


@pytest.mark.parametrize("number", [0, None])
def test_a_step_with_number_0_or_without_one_has_number_0(number: int | None) -> None:
    trace = RankTrace("a", "torch")
    trace.allocations[3] = AllocationColumns()
    for time, size, total in ROWS:
        trace.allocations[3].add(UNKNOWN, time, size, total)
    segment = Segment(15, 35, Mark("x", "x", 15, 35, number))
    (memory,) = allocations.device_allocations(trace, Split("x", [segment], array("i"), []), [0], [])
    assert memory.units == (UnitAllocations(0, 105, 150, 150, 50, 1),)
    assert (memory.device, memory.peak, memory.peak_unit, [row.bytes for row in memory.code]) == (3, 150, 0, [50])


def test_the_200_places_with_most_bytes_are_kept() -> None:
    rows = tuple(AllocatingCode("m", f"{number:03}", number, 1) for number in range(201))
    (joined,) = join_pieces([[DeviceAllocations(0, 5, 1, (UnitAllocations(1, 0, 0, 5, 0, 0),), rows)]])
    assert [row.bytes for row in joined.code] == [*range(200, 0, -1)]


def test_a_device_that_only_freed_is_left_out(tmp_path: Path) -> None:
    freed = [
        allocation(3_150, -5 * MB, 10 * MB, **{"Device Id": 1}),
        allocation(3_160, -5 * MB, 5 * MB, **{"Device Id": 1}),
    ]
    assert [memory.device for memory in profile(tmp_path, *events(), *freed).memory] == [0]
    once = allocation(3_150, 5 * MB, 5 * MB, **{"Device Id": 1})
    assert [memory.device for memory in profile(tmp_path, *events(), once).memory] == [0, 1]
