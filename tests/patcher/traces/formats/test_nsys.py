"""Exports of Nsight Systems: several GPUs in one file, every version of the schema, and files that are damaged."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patcher.messages import Kind, Problem
from patcher.traces import analysis, folders, formats
from patcher.traces.formats import nsys
from patcher.traces.trace_columns import UNKNOWN
from tests.alarms import at_most
from tests.patcher.reliability.package import invoked
from tests.patcher.traces.recorded import MS, NSYS_TABLES, SHARED, Range, Run, steps

EXPORT = SHARED / "2026-11/nsys_h100_2gpu_1s.sqlite.gz"
"""A second of two H100 by nsys 2026.2, from GindaChen/nsys-ai."""

_TASKS = ("KERNEL", "MEMCPY", "MEMSET")


def captures(file: Path) -> list[dict[str, Any]]:
    return list(json.loads(invoked("report", file, "--json").stdout)["result"]["captures"])


def changed(file: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(file)) as db, db:
        for statement in statements:
            db.execute(statement)
    return file


def named(run: Run, name: str = "decode {}, {} requests, 8 tokens, 800 context") -> Run:
    """The units of ``run`` as a window of rlpatch marks them for nsys."""
    marks = [replace(mark, name=name.format(number, 60 + number)) for number, mark in enumerate(run.marks, 30)]
    return replace(run, marks=tuple(marks))


@pytest.mark.skipif(
    not EXPORT.is_file(), reason="needs 2026-11/nsys_h100_2gpu_1s.sqlite.gz in $RLPATCH_TEST_SHARED/traces"
)
def test_a_public_export_counts_what_sql_counts(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite"
    file.write_bytes(gzip.decompress(EXPORT.read_bytes()))
    before = file.read_bytes()
    traces = nsys.read(file)
    assert file.read_bytes() == before
    assert [*tmp_path.iterdir()] == [file]
    with closing(sqlite3.connect(file)) as db:
        for device, trace in enumerate(traces):
            counts = [
                db.execute(
                    f"SELECT COUNT(*), SUM(end - start) FROM CUPTI_ACTIVITY_KIND_{table} WHERE deviceId = {device}"
                ).fetchone()
                for table in _TASKS
            ]
            tasks = trace.tasks
            assert len(tasks) == sum(count for count, _ in counts) == 2184
            assert sum(tasks.end) - sum(tasks.begin) == sum(ns for _, ns in counts)
            linked = db.execute(
                " UNION ALL ".join(
                    f"""SELECT k.start, MIN(r.start) FROM CUPTI_ACTIVITY_KIND_{table} k
 JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId AND (r.globalTid >> 24) << 24 = k.globalPid
 WHERE k.deviceId = {device} GROUP BY k.start, k.correlationId"""
                    for table in _TASKS
                )
            ).fetchall()
            launched = [pair for pair in zip(tasks.begin, tasks.launched, strict=True) if pair[1] != UNKNOWN]
            assert sorted(launched) == sorted(linked)
            process = db.execute(
                f"SELECT DISTINCT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE deviceId = {device}"
            ).fetchone()[0]
            operators = db.execute(
                f"SELECT COUNT(*) FROM NVTX_EVENTS WHERE (globalTid >> 24) << 24 = {process} AND text GLOB '*op_id*'"
            )
            assert sum(map(len, trace.operators)) == operators.fetchone()[0]
    profiles = [analysis.attributed(trace).profile for trace in traces]
    assert [(profile.rank, profile.form, len(profile.units)) for profile in profiles] == [
        (0, "nsys", 1),
        (1, "nsys", 1),
    ]
    assert [sum(unit.kernels for unit in profile.units) for profile in profiles] == [2184, 2184], (
        "of tasks without a launch, too"
    )


def test_units_have_the_contents_that_their_ranges_name(tmp_path: Path) -> None:
    (report,) = captures(named(steps()).nsys(tmp_path / "a.sqlite"))
    assert [(unit["number"], unit["requests"], unit["tokens"], unit["context"]) for unit in report["units"]] == [
        (number, 60 + number, 8, 800) for number in range(30, 34)
    ]
    assert (report["rank"], report["device"]) == (0, "NVIDIA H100")


@pytest.mark.parametrize("devices", [(0, 1), (0, 0)], ids=["GPUs", "every process sees one GPU"])
def test_each_process_on_each_gpu_is_a_trace(tmp_path: Path, devices: tuple[int, int]) -> None:
    """Their correlations are the same numbers, and belong to their process."""
    late = [steps(4), steps(4, late={31: 3 * MS})]
    for rank, (run, device) in enumerate(zip(late, devices, strict=True)):
        replace(run, rank=rank).nsys(tmp_path / "a.sqlite", 4711 + rank, device)
    traces = formats.read(tmp_path / "a.sqlite")
    assert [trace.rank for trace in traces] == [0, 1]
    for trace, run in zip(traces, late, strict=True):
        assert sorted(trace.tasks.launched) == [task.launch for task in run.tasks]
    assert [capture["rank"] for capture in captures(tmp_path / "a.sqlite")] == [0, 1]


@pytest.mark.parametrize(("devices", "ranks"), [((0, 1), [0, 1]), ((0, 0), [None, None])])
def test_without_a_window_of_rlpatch_gpus_are_ranks_if_each_process_has_its_own(
    tmp_path: Path, devices: tuple[int, int], ranks: list[int | None]
) -> None:
    for number, device in enumerate(devices):
        replace(steps(), rank=None).nsys(tmp_path / "a.sqlite", 4711 + number, device)
    traces = formats.read(tmp_path / "a.sqlite")
    assert [trace.rank for trace in traces] == ranks
    assert len({trace.source for trace in traces}) == 2


def test_two_gpus_of_one_process_share_its_host(tmp_path: Path) -> None:
    steps().nsys(tmp_path / "a.sqlite", 4711, 0)
    replace(steps(), marks=(), operators=()).nsys(tmp_path / "a.sqlite", 4711, 1)
    assert [len(trace.marks) for trace in formats.read(tmp_path / "a.sqlite")] == [4, 4]


def test_the_step_metadata_beside_an_export_are_those_of_its_window(tmp_path: Path) -> None:
    file = steps().nsys(tmp_path / "a.sqlite")
    (tmp_path / "host_dp0_rank0_4711.nsys.rlpatch.json").write_text(
        '{"format": 1, "backend": "nsys", "stage": "rollout", "rank": 0, "target": "vllm", "world": 4,'
        ' "units": [{"number": 30, "requests": 5}]}'
    )
    assert folders.traces_to_read(tmp_path / "host_dp0_rank0_4711.nsys.rlpatch.json") == [file]
    (trace,) = formats.read(file)
    assert trace.metadata is not None
    assert (trace.metadata.target, trace.world, trace.metadata.units[30].requests) == ("vllm", 4, 5)


def test_an_old_export_has_neither_processes_nor_numbered_texts(tmp_path: Path) -> None:
    file = steps().nsys(tmp_path / "a.sqlite")
    changed(
        file,
        "UPDATE NVTX_EVENTS SET text = (SELECT value FROM StringIds WHERE id = textId) WHERE text IS NULL",
        "ALTER TABLE NVTX_EVENTS DROP COLUMN textId",
        "ALTER TABLE NVTX_EVENTS DROP COLUMN domainId",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid",
        "DROP TABLE TARGET_INFO_CUDA_DEVICE",
    )
    (trace,) = formats.read(file)
    assert (len(trace.marks), trace.device) == (4, "NVIDIA GPU")
    assert UNKNOWN not in trace.tasks.launched


def test_a_replayed_graph_without_its_kernels_is_one_task_and_said(tmp_path: Path) -> None:
    file = changed(
        steps().nsys(tmp_path / "a.sqlite"),
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE ({NSYS_TABLES['CUPTI_ACTIVITY_KIND_KERNEL'].rpartition(',')[0]})",
        "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE SELECT start, end, deviceId, streamId, correlationId, globalPid"
        " FROM CUPTI_ACTIVITY_KIND_KERNEL",
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
    )
    (trace,) = formats.read(file)
    assert {trace.names.texts[name] for name in trace.tasks.name} == {"CUDA graph"}
    assert "--cuda-graph-trace=node" in invoked("report", file).output


@pytest.mark.parametrize(
    ("table", "lacks"),
    [
        ("CUPTI_ACTIVITY_KIND_RUNTIME", True),
        ("NVTX_EVENTS", True),
        ("CUPTI_ACTIVITY_KIND_KERNEL", True),
        ("TARGET_INFO_GPU", False),
    ],
)
def test_a_table_that_nsys_did_not_write_is_named(tmp_path: Path, table: str, lacks: bool) -> None:
    file = changed(steps().nsys(tmp_path / "a.sqlite"), f"DROP TABLE {table}")
    result = invoked("report", file)
    assert result.exit_code == 0, result.output
    assert (table in result.output) is lacks
    assert "No device" not in result.output


BROKEN = {
    "no names": ("StringIds", ("DROP TABLE StringIds",)),
    "a column is missing": ("correlationId", ("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN correlationId",)),
    "a text for a time": ("CUPTI_ACTIVITY_KIND_KERNEL", ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'",)),
    "a fraction for a time": ("NVTX_EVENTS", ("UPDATE NVTX_EVENTS SET end = 0.5",)),
    "no device": ("CUPTI_ACTIVITY_KIND_MEMCPY", (
        "DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY",
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({NSYS_TABLES['CUPTI_ACTIVITY_KIND_MEMCPY'].replace('NOT NULL', '')})",
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (start, end, streamId) VALUES (1, 2, 'x')",
    )),
    "a text for a thread": ("CUPTI_ACTIVITY_KIND_RUNTIME", ("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET globalTid = 'x'",)),
    "a blob for a text": ("StringIds", ("DROP TABLE StringIds", "CREATE VIEW StringIds AS SELECT 1 AS id, 'x' AS value")),
    "an endless view": ("CUPTI_ACTIVITY_KIND_MEMSET", (
        ("CREATE VIEW CUPTI_ACTIVITY_KIND_MEMSET AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r)"
        " SELECT x AS start, x AS end, 0 AS deviceId, 0 AS streamId, 0 AS correlationId FROM r"),
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_export_ends_with_its_table_and_what_to_type(tmp_path: Path, name: str) -> None:
    table, statements = BROKEN[name]
    file = changed(steps().nsys(tmp_path / "run 1.sqlite"), *statements)
    with at_most(20), pytest.raises(Problem, match=table) as raised:
        nsys.read(file)
    assert raised.value.kind == Kind.TRACE
    assert "nsys export --type sqlite" in raised.value.hint
    assert "run 1.nsys-rep'" in raised.value.hint, "quoted"
    assert invoked("report", file).exit_code == 4


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_an_export_that_ends_early_is_a_problem(tmp_path: Path, share: float) -> None:
    file = steps(40).nsys(tmp_path / "a.sqlite")
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    result = invoked("report", file)
    assert result.exit_code == 4, result.output
    assert "Traceback" not in result.output


def files(folder: Path) -> Iterable[str]:
    return (path.name for path in folders.traces_to_read(folder))


def test_a_folder_is_read_for_its_exports_and_a_report_that_was_not_exported_gets_the_command(tmp_path: Path) -> None:
    (tmp_path / "run.nsys-rep").write_bytes(b"x")
    with pytest.raises(Problem, match="not been exported") as raised:
        folders.traces_to_read(tmp_path)
    assert f"nsys export --type sqlite {tmp_path}/run.nsys-rep" in raised.value.hint
    steps().nsys(tmp_path / "run.sqlite")
    shutil.copy(tmp_path / "run.sqlite", tmp_path / "run.db")
    changed(tmp_path / "other.sqlite", "CREATE TABLE t (x)")
    assert [*files(tmp_path)] == ["run.sqlite"]
    assert [*files(tmp_path / "run.db")] == ["run.db"]
    assert len(formats.read(tmp_path / "run.db")) == 1
    listed = [trace.form for group in folders.trace_groups(tmp_path) for trace in group.traces]
    assert sorted(listed) == ["nsys", "other"]


def test_ranges_of_libraries_are_no_operators(tmp_path: Path) -> None:
    run = replace(steps(), annotations=(Range("ncclAllReduce", 0, MS), Range("Attention", MS, 2 * MS)))
    file = run.nsys(tmp_path / "a.sqlite")
    changed(
        file,
        "UPDATE NVTX_EVENTS SET domainId = 3 WHERE text = 'Attention' OR textId = (SELECT id FROM StringIds WHERE value = 'Attention')",
    )
    (trace,) = formats.read(file)
    assert sum(map(len, trace.operators)) == len(run.operators)
    assert [len(modules) for modules in trace.modules if len(modules)] == []
    assert sorted(trace.names.texts[name] for columns in trace.frames.values() for name in columns.name) == [
        "Attention",
        "ncclAllReduce",
    ]
