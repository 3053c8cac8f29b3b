"""Kernels as CANN measured them: shapes, blocks, busy pipes and the bound that they show, in tables and databases."""

from __future__ import annotations

import csv
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patcher.commands.reports import reporting
from patcher.messages.report import json_of
from patcher.traces import page
from patcher.traces.formats import ascend_db_kernels, ascend_kernels, csv_tables
from patcher.traces.formats.ascend_kernels import KernelTable
from patcher.traces.measured import KernelUse, bound_of, bounds, states
from patcher.traces.model import RankProfile
from patcher.traces.names import OUTPUT
from tests.patcher.traces.recorded import MS, SHARED, Range, Task, shared, steps

HEADS = (
    "Step Id,Name,Type,Accelerator Core,Duration(us),Block Dim,Input Shapes,Input Data Types,aic_mac_ratio,aic_mte2_ratio,"
    "aiv_vec_ratio,aiv_icache_miss_rate,cube_utilization(%)"
)
ROWS = (
    '30,mm_1,MatMulV3,AI_CORE,60.5,24,"""8,64;64,8""",DT_BF16;DT_BF16,0.9,0.5,0.0,0.1,80.0',
    '31,mm_2,MatMulV3,AI_CORE,40.25,24,"""8,64;64,8""",DT_BF16;DT_BF16,0.8,0.7,0.0,0.1,90.0',
    '31,mm_3,MatMulV3,AI_CORE,10,24,"""8,32;32,8""",DT_BF16;DT_BF16,0.3,0.85,N/A,0.1,40.0',
    '31,add,Add,AI_VECTOR_CORE,5,48,"""8,64""",FLOAT,0.0,0.0,0.4,0.1,0',
    '31,rand,DSARandom,DSA_SQE,3,0,"""8""",FLOAT,N/A,N/A,N/A,N/A,N/A',
    "31,hcom_allReduce__586_0_1,hcom_allReduce_,HCCL,70,0,N/A,N/A,N/A,N/A,N/A,N/A,N/A",
    "31,cut",
)


def written(output: Path, *rows: str, heads: str = HEADS, name: str = "kernel_details.csv") -> Path:
    output.mkdir(parents=True, exist_ok=True)
    (output / name).write_text("\n".join((heads, *rows)))
    return output


def told(found: Iterable[KernelUse]) -> list[tuple[object, ...]]:
    return [(one.name, one.shapes, one.block_dim, one.calls, one.ns, one.bound, one.cube_utilization) for one in found]


def test_alike_kernels_are_one_with_the_means_of_their_ratios(tmp_path: Path) -> None:
    found = KernelTable(written(tmp_path, *ROWS)).uses(None)
    assert told(found) == [
        ("MatMulV3", "8,64;64,8", 24, 2, 100_750, "cube", 0.85),
        ("MatMulV3", "8,32;32,8", 24, 1, 10_000, "mte2", 0.4),
        ("Add", "8,64", 48, 1, 5000, "nothing", None),
        ("DSARandom", "8", 0, 1, 3000, None, None),
    ]
    assert found[0].ratios == {"aic_mac": 0.85, "aic_mte2": 0.6}
    assert bounds(found) == {"cube": 100_750 / 115_750, "mte2": 10_000 / 115_750, "nothing": 5000 / 115_750}


@pytest.mark.parametrize("form", ["text", "tables"])
def test_the_table_of_kernels_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    folder = steps().text(tmp_path / "rank0_ascend_pt")
    output = written(folder / OUTPUT, *ROWS)
    (output / "step_trace_time.csv").write_text("Step,Computing,Free\n30,60.5,1\n")
    if form == "tables":
        (output / "trace_view.json").unlink()
    opened: list[str] = []

    def watched(file: Path) -> Iterator[list[str]]:
        opened.append(file.name)
        return csv_tables.cells(file)

    monkeypatch.setattr(ascend_kernels, "cells", watched)
    (profile,) = reporting.report([folder], reporting.ReadOptions()).data.captures
    assert opened == ["kernel_details.csv"]
    assert profile.kernel_uses


def test_newer_releases_call_blocks_otherwise_and_shapes_were_compiled_for_any_or_for_one(tmp_path: Path) -> None:
    heads = HEADS.replace("Block Dim", "Block Num") + ",OP State"
    rows = (*(f"{row},{state}" for row, state in zip(ROWS, ("dynamic", "Static", "N/A"), strict=False)), ROWS[3])
    found = KernelTable(written(tmp_path, *rows, heads=heads)).uses(None)
    assert [(one.block_dim, one.calls, one.state) for one in found] == [
        (24, 1, "dynamic"),
        (24, 1, "static"),
        (24, 1, ""),
    ]
    assert states(found) == {"dynamic": 60_500 / 100_750, "static": 40_250 / 100_750}


def test_those_of_some_steps(tmp_path: Path) -> None:
    output = written(tmp_path, *ROWS)
    assert [one.calls for one in KernelTable(output).uses({30})] == [1]
    assert KernelTable(output).uses({7}) == ()


def test_what_msprof_exported_is_read_too(tmp_path: Path) -> None:
    heads = "Op Name,OP Type,Task Type,Task Duration(us),Block Dim,Input Shapes,vec_ratio,mte2_ratio"
    rows = ('a,Mul,AI_CORE,12.5,16,"""4""",0.95,0.2', 'b,Mul,AI_CORE,12.5,16,"""4""",0.85,nan')
    output = written(tmp_path, rows[0], heads=heads, name="op_summary_0_1.csv")
    written(tmp_path, rows[1], heads=heads, name="op_summary_0_2.csv")
    assert told(KernelTable(output).uses(None)) == [("Mul", "4", 16, 2, 25_000, "vector", None)]


@pytest.mark.parametrize("heads", ["", "Name,Type", "Step Id,Type,Duration(us)"])
def test_a_table_without_a_column_says_nothing_of_it(tmp_path: Path, heads: str) -> None:
    assert told(KernelTable(written(tmp_path, "30,Add,5", heads=heads)).uses(None)) == (
        [("Add", "", None, 1, 5000, None, None)] if "Duration" in heads else []
    )


def test_what_is_no_table_ends_it(tmp_path: Path) -> None:
    """A cell of more than 128 KB, which the csv of Python refuses; before it the rows count, also those of no step."""
    odd = ROWS[3].replace("31,", ",", 1)
    found = KernelTable(written(tmp_path, odd, '30,"' + "x" * 200_000, ROWS[0])).uses({7})
    assert [(one.name, one.calls) for one in found] == [("Add", 1)]


def test_memory_stays_bounded_with_the_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascend_kernels, "MOST", 3)
    rows = [f'30,x,Add,AI_VECTOR_CORE,5,48,"""{at}""",FLOAT,0,0,0.4,0.1,0' for at in range(9)]
    found = KernelTable(written(tmp_path, *rows)).uses(None)
    assert [(one.shapes, one.calls) for one in found] == [("", 6), ("0", 1), ("1", 1), ("2", 1)]


@pytest.mark.parametrize(
    ("ratios", "bound"),
    [
        ({}, None),
        ({"aiv_vec": 0.8}, "vector"),
        ({"aic_mac": 0.79, "aic_mte1": 0.2}, "nothing"),
        ({"mte3": 0.9}, "mte3"),
        ({"aiv_vec": 0.2, "aiv_mte2": 0.4, "aiv_mte3": 0.3}, "pipes in turn"),
        ({"aiv_vec": 0.2, "aiv_mte2": 0.85, "aiv_mte3": 0.3}, "mte2"),
        ({"aiv_vec": 0.1, "aiv_mte2": 0.4, "aiv_mte3": 0.3, "aiv_scalar": 0.5}, "nothing"),
        ({"aic_mac": 0.4, "aic_mte2": 0.6}, "nothing"),
    ],
)
def test_a_pipe_bounds_a_kernel_from_80_percent_on(ratios: dict[str, float], bound: str | None) -> None:
    assert bound_of(ratios) == bound


def reported(path: Path, **options: Any) -> RankProfile:
    (found,) = reporting.report([path], reporting.ReadOptions(**options)).data.captures
    return found  # type: ignore[no-any-return]


def measured(folder: Path, *pmu: tuple[int, str, object]) -> Path:
    """The database of `steps` with shapes of each kernel, and these rows of a task's measures."""
    file = next(steps(2).db(folder).rglob("ascend_pytorch_profiler_0.db"))
    with closing(sqlite3.connect(file)) as db, db:
        texts = {
            text: 9000 + at
            for at, text in enumerate(("AI_CORE", '"8,64"', "DT_BF16", *sorted({one[1] for one in pmu})))
        }
        db.executemany("INSERT INTO STRING_IDS VALUES (?,?)", [(number, text) for text, number in texts.items()])
        for column, text in (("taskType", "AI_CORE"), ("inputShapes", '"8,64"'), ("inputDataTypes", "DT_BF16")):
            db.execute(f"ALTER TABLE COMPUTE_TASK_INFO ADD COLUMN {column} INTEGER")
            db.execute(f"UPDATE COMPUTE_TASK_INFO SET {column} = {texts[text]}")
        db.execute("ALTER TABLE COMPUTE_TASK_INFO ADD COLUMN blockDim INTEGER")
        db.execute("UPDATE COMPUTE_TASK_INFO SET blockDim = 24")
        db.execute("CREATE TABLE TASK_PMU_INFO (globalTaskId INTEGER, name INTEGER, value NUMERIC)")
        db.executemany(
            "INSERT INTO TASK_PMU_INFO VALUES (?,?,?)", [(task, texts[name], value) for task, name, value in pmu]
        )
    return folder


def test_a_database_says_the_same_of_the_units_that_are_chosen(tmp_path: Path) -> None:
    """Tasks 1 to 10 are of the first step, kernel0 to kernel9; 11 to 20 are those of the second one."""
    pmu = [
        (1, "aic_mac_ratio", 0.9), (11, "aic_mac_ratio", 0.8), (1, "aic_mte2_ratio", 0.5), (11, "aic_mte2_ratio", 0),
        (2, "aic_total_cycles", 7), (12, "aic_mac_ratio", "broken"), (3, "aiv_vec_ratio", 1), (13, "aiv_vec_ratio", 0.2),
    ]  # fmt: skip
    folder = measured(tmp_path / "rank0_ascend_pt", *pmu)
    both, one = reported(folder).kernel_uses, reported(folder, units=(31, 32)).kernel_uses
    assert [(use.name, use.core, use.shapes, use.types, use.block_dim) for use in both] == [
        (f"kernel{at}", "AI_CORE", "8,64", "DT_BF16", 24) for at in range(10)
    ]
    assert [(use.calls, use.ns) for use in both] == [(2, MS)] * 10
    assert [(use.calls, use.ns) for use in one] == [(1, MS // 2)] * 10
    assert [(use.ratios, use.bound) for use in both[:4]] == [
        ({"aic_mac": pytest.approx(0.85), "aic_mte2": 0.25}, "cube"), ({}, None), ({"aiv_vec": 0.6}, "nothing"), ({}, None),
    ]  # fmt: skip


def test_a_database_of_a_newer_release_calls_blocks_otherwise_and_has_states(tmp_path: Path) -> None:
    folder = measured(tmp_path / "rank0_ascend_pt", (1, "aic_mac_ratio", 0.9))
    with closing(sqlite3.connect(next(folder.rglob("ascend_pytorch_profiler_0.db")))) as db, db:
        db.execute("ALTER TABLE COMPUTE_TASK_INFO RENAME COLUMN blockDim TO blockNum")
        db.execute("ALTER TABLE COMPUTE_TASK_INFO ADD COLUMN opState INTEGER")
        db.execute("INSERT INTO STRING_IDS VALUES (9900, 'dynamic')")
        db.execute("UPDATE COMPUTE_TASK_INFO SET opState = 9900 WHERE globalTaskId <= 10")
    result = reporting.report([folder], reporting.ReadOptions())
    found = result.data.captures[0].kernel_uses
    assert sorted((one.name, one.block_dim, one.state) for one in found)[:2] == [
        ("kernel0", 24, ""),
        ("kernel0", 24, "dynamic"),
    ]
    assert "for static and for dynamic shapes: dynamic 100.0 %" in " ".join(map(str.strip, result.lines))
    assert ">compilation</button>" in page.page(result.data)


def test_a_database_without_measures_or_shapes_is_read(tmp_path: Path) -> None:
    found = reported(steps(2).db(tmp_path / "rank0_ascend_pt")).kernel_uses
    assert {(one.shapes, one.block_dim, one.calls, one.bound) for one in found} == {("", None, 2, None)}


def test_more_kinds_than_are_kept_are_one_of_each_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascend_db_kernels, "MOST", 4)
    found = reported(measured(tmp_path / "rank0_ascend_pt")).kernel_uses
    assert sorted(one.shapes for one in found) == [""] * 6 + ["8,64"] * 4
    assert sum(one.calls for one in found) == 20


def test_json_page_and_terminal_have_them(tmp_path: Path) -> None:
    folder = steps(2).text(tmp_path / "rank0_ascend_pt")
    written(folder / OUTPUT, *ROWS)
    result = reporting.report([folder], reporting.ReadOptions())
    (one,) = json_of(result.data)["captures"]
    assert one["kernel_uses"][0] == {
        "name": "MatMulV3", "core": "AI_CORE", "shapes": "8,64;64,8", "types": "DT_BF16;DT_BF16", "block_dim": 24,
        "calls": 2, "ns": 100_750, "ratios": {"aic_mac": 0.85, "aic_mte2": 0.6}, "cube_utilization": 0.85, "bound": "cube",
        "state": "",
    }  # fmt: skip
    assert "  kernel time by limiting resource: cube 87.0 %, mte2 8.6 %, nothing 4.3 %" in result.lines
    text = page.page(result.data).partition("<h2>Kernels by shape</h2>")[2].partition("</table>")[0]
    for shown in ("8,64;64,8", "cube 85 %, mte2 60 %", "85.0 %", "DT_BF16"):
        assert f">{shown}</td>" in text
    assert reported(folder, units=(30, 31)).kernel_uses[0].calls == 1


@pytest.mark.parametrize(
    ("annotations", "marks", "calls"),
    [
        ((), None, {30: 1, 31: 1}),
        ((Range("rlpatch:uncounted", 9 * MS, 9 * MS + 5),), None, {30: 1, 31: 1}),
        ((), "decode", {30: 2, 31: 2}),  # the vendor's steps are not those
    ],
)
def test_the_steps_of_a_table_are_the_units_where_these_are_its_steps(
    tmp_path: Path, annotations: tuple[Range, ...], marks: str | None, calls: dict[int, int]
) -> None:
    run = replace(steps(2), annotations=annotations)
    if marks:
        run = replace(
            run, marks=tuple(replace(one, name=one.name.replace("ProfilerStep#", "decode ")) for one in run.marks)
        )
    folder = run.text(tmp_path / "rank0_ascend_pt")
    written(folder / OUTPUT, *ROWS)
    for step, count in calls.items():
        found = reported(folder, units=(step, step + 1))
        assert sum(one.calls for one in found.kernel_uses if one.shapes == "8,64;64,8") == count


def test_copies_between_kernels_of_a_database_are_none_of_them(tmp_path: Path) -> None:
    run = steps(2)
    copies = [Task(one.end, one.end + 5, "copy", "copy", 7, one.launch, one.ask) for one in run.tasks]
    tasks = tuple(task for pair in zip(run.tasks, copies, strict=True) for task in pair)
    found = reported(replace(run, tasks=tasks).db(tmp_path / "rank0_ascend_pt")).kernel_uses
    assert [(one.name, one.calls, one.ns) for one in found] == [(f"kernel{at}", 2, MS) for at in range(10)]


Row = tuple[tuple[str, str, str, int], float, float]
"""Type, shapes, types and blocks of a kernel, its nanoseconds, and for how much of its cycles it moved data in."""


def rows_of_text(output: Path) -> Iterator[Row]:
    with (output / "kernel_details.csv").open() as lines:
        for row in csv.DictReader(lines):
            if row["Accelerator Core"] != "HCCL":
                key = (row["Type"], row["Input Shapes"], row["Input Data Types"], int(row["Block Dim"]))
                yield key, float(row["Duration(us)"]) * 1000, float(row["aiv_mte2_ratio"].replace("N/A", "0"))


def rows_of_db(output: Path) -> Iterator[Row]:
    (file,) = output.glob("ascend_pytorch_profiler*.db")
    with closing(sqlite3.connect(f"file:{file}?immutable=1", uri=True)) as db:
        text = dict(db.execute("SELECT id, value FROM STRING_IDS"))
        (name,) = (number for number, value in text.items() if value == "aiv_mte2_ratio")
        ratios = dict(db.execute("SELECT globalTaskId, value FROM TASK_PMU_INFO WHERE name = ?", (name,)))
        columns = "opType, inputShapes, inputDataTypes, blockDim, globalTaskId, endNs - startNs"
        for *texts, blocks, task, ns in db.execute(
            f"SELECT {columns} FROM COMPUTE_TASK_INFO JOIN TASK USING (globalTaskId)"
        ):
            kind, shapes, types = (text[number] for number in texts)
            yield (kind, shapes, types, blocks), ns, ratios.get(task, 0)


@shared
@pytest.mark.parametrize(("form", "rows"), [("text", rows_of_text), ("db", rows_of_db)])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_kernels_of_a_real_folder_are_those_of_its_tables(
    form: str, rows: Callable[[Path], Iterator[Row]], rank: int
) -> None:
    """The vendor's rows, summed by themselves; an optimizer's shapes are cut."""
    folder = SHARED / "npu" / f"{form}-level1" / f"rank{rank}_ascend_pt"
    times: dict[object, float] = defaultdict(float)
    ratios: dict[object, list[float]] = defaultdict(list)
    for (kind, shapes, types, blocks), ns, ratio in rows(folder / OUTPUT):
        key: object = kind, shapes.strip('"').replace("N/A", "")[:900], types.replace("N/A", ""), blocks
        times[key] += ns
        ratios[key].append(ratio)
    uses = reported(folder).kernel_uses
    found = {(one.name, one.shapes[:900], one.types, one.block_dim): one for one in uses}
    assert {key: one.ns for key, one in found.items()} == {key: pytest.approx(ns, abs=1) for key, ns in times.items()}
    for key, one in found.items():
        known = ratios[key] if form == "text" else ratios[key][:8]
        assert one.ratios.get("aiv_mte2", 0) == pytest.approx(sum(known) / len(known), abs=1e-3)
        assert one.calls == len(ratios[key])
    assert bounds(uses)["mte2"] == pytest.approx(0.4, abs=0.02)
