"""Traces of torch.profiler, also merged: a file into which SGLang put several ranks."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patcher.messages.errors import Problem
from patcher.traces import analysis, folders, formats
from patcher.traces.analysis.ranks import match_collectives
from patcher.traces.model import RankProfile
from tests.patcher.traces.recorded import MARKS, MS, Range, Run, Task, steps


def loaded(run: Run, file: Path) -> dict[str, Any]:
    return dict(json.loads(run.torch(file).read_text(), parse_float=str))


def merged(folder: Path, runs: Mapping[str, Run]) -> Path:
    """A file of all runs as SGLang makes it: their labels before the processes, the fields of the first one."""
    events = []
    for label, run in runs.items():
        content = loaded(run, folder / f"1-{label}.trace.json")
        events += [{**event, "pid": f"[{label}] {event['pid']}"} for event in content["traceEvents"]]
    file = folder / "merged-1.trace.json.gz"
    file.write_bytes(gzip.compress(json.dumps({**content, "traceEvents": events}).encode()))
    return file


def profiles(file: Path) -> list[RankProfile]:
    return [analysis.checked(one, analysis.attributed(one)) for one in formats.read(file)]


def waiting(ns: int) -> Run:
    """A rank whose collective takes so long in each unit."""
    tasks = [
        Task(begin, begin + length, kind, name, stream, begin - 5)
        for mark in MARKS
        for begin, length, kind, name, stream in (
            (mark.begin + 10, 20, "compute", "MatMul", 7),
            (mark.begin + 30, ns, "communication", "AllReduce", 9),
        )
    ]
    return Run(tuple(tasks), MARKS, (Range("autograd", 1, 9, thread=2, forward=1), Range("aten::mm", 2, 8)))


def test_a_merged_file_is_a_capture_for_each_rank(tmp_path: Path) -> None:
    runs = {"TP00": steps(4, late={31: 3 * MS}), "TP01": steps(3)}
    file = merged(tmp_path, runs)
    found = profiles(file)
    assert [(one.rank, one.source) for one in found] == [(0, f"{file} [TP00]"), (1, f"{file} [TP01]")]
    for one, run in zip(found, runs.values(), strict=True):
        (alone,) = profiles(run.torch(tmp_path / "alone.json"))
        assert replace(one, rank=0, source=alone.source) == replace(alone, rank=0)


def test_the_ranks_of_a_merged_file_meet_in_their_collectives(tmp_path: Path) -> None:
    ranks, *_ = match_collectives(profiles(merged(tmp_path, {"TP00": waiting(60), "TP01": waiting(40)})))
    assert [(one.rank, one.collectives, one.waits_ns, one.last) for one in ranks] == [(0, 2, 40, 0), (1, 2, 0, 2)]


LABELS: dict[str, tuple[list[str], list[int | None]]] = {
    "tensors": (["TP00", "TP01", "TP10"], [0, 1, 10]),
    "tensors within pipelines": (["TP00-PP00", "TP00-PP01", "TP01-PP00", "TP01-PP01"], [0, 2, 1, 3]),
    "experts beside tensors": (["TP00-EP00", "TP01-EP01"], [0, 1]),
    "replicas have the same": (["TP00-DP00", "TP00-DP01"], [None, None]),
}


@pytest.mark.parametrize(("labels", "ranks"), LABELS.values(), ids=LABELS)
def test_the_rank_of_a_label(tmp_path: Path, labels: list[str], ranks: list[int | None]) -> None:
    assert [one.rank for one in formats.read(merged(tmp_path, dict.fromkeys(labels, waiting(60))))] == ranks


@pytest.mark.parametrize("category", ["Operator", "cpu_op", "operator"])
def test_steps_that_kineto_wrote_as_operators_are_marks(tmp_path: Path, category: str) -> None:
    content = loaded(waiting(60), tmp_path / "new.json")
    for event in content["traceEvents"]:
        event["cat"] = category if event["cat"] in ("user_annotation", "cpu_op") else event["cat"]
    (tmp_path / "old.json").write_text(json.dumps(content))
    (old,), (new,) = profiles(tmp_path / "old.json"), profiles(tmp_path / "new.json")
    assert replace(old, source=new.source) == new
    assert [unit.number for unit in old.units] == [1, 2]


@pytest.mark.parametrize(
    ("text", "us", "noted"),
    [("7000000.250", 19, {7000}), ("7000000.250", 20, set()), ("7000000", 19, {7000}), ("250.000", 19, set())],
)
@pytest.mark.parametrize("name", ["a.py(3): f", "<built-in function len>"])
def test_of_short_functions_only_the_millisecond_is_kept(
    tmp_path: Path, name: str, text: str, us: int, noted: set[int]
) -> None:
    event = {"ph": "X", "cat": "python_function", "name": name, "pid": 1, "tid": 1, "ts": 1, "dur": us}
    (tmp_path / "run.json").write_text(json.dumps({"traceEvents": [event]}).replace('"ts": 1', f'"ts": {text}'))
    (trace,) = formats.read(tmp_path / "run.json")
    assert trace.short_events == noted
    assert trace.has_stacks


@pytest.mark.parametrize(
    ("name", "us", "read"),
    [
        ("Runtime Triggered Module Loading", 20, 1),
        ("Activity Buffer Request", 20, 1),
        ("Activity Buffer Request", 19, 0),
        ("UVM Activity Init", 20, 1),
        ("Driver Compiler", 20, 1),
        ("Buffer Flush", 20, 0),
    ],
)
def test_overheads_that_hold_the_host_are_read(tmp_path: Path, name: str, us: int, read: int) -> None:
    event = {"ph": "X", "cat": "overhead", "name": name, "pid": -1, "tid": 0, "ts": 1, "dur": us}
    (tmp_path / "run.json").write_text(json.dumps({"traceEvents": [event]}))
    (trace,) = formats.read(tmp_path / "run.json")
    assert len(trace.overheads.begin) == read
    assert not trace.unread


def test_overheads_in_a_merged_file_are_of_no_rank(tmp_path: Path) -> None:
    file = merged(tmp_path, {"TP00": steps(3), "TP01": steps(3)})
    content = json.loads(gzip.decompress(file.read_bytes()))
    event = {"ph": "X", "cat": "overhead", "name": "Driver Compiler", "pid": -1, "tid": 0, "ts": 1, "dur": 20}
    content["traceEvents"].append(event)
    file.write_bytes(gzip.compress(json.dumps(content).encode()))
    assert [len(trace.overheads.begin) for trace in formats.read(file)] == [0, 0]


def test_how_many_ranks_there_are_is_read(tmp_path: Path) -> None:
    head = {"rank": 1, "world_size": 4}
    (tmp_path / "t.json").write_text(json.dumps({"distributedInfo": head, "traceEvents": []}))
    waiting(60).text(folder := tmp_path / "x_ascend_pt")
    waiting(60).db(tmp_path / "db_ascend_pt")
    for place in (folder, tmp_path / "db_ascend_pt"):
        (place / "profiler_metadata.json").write_text(json.dumps({"distributed_args": {"rank": 0, "world_size": 8}}))
    found = [
        formats.read(file)[0].world for place in sorted(tmp_path.iterdir()) for file in folders.traces_to_read(place)
    ]
    assert found == [8, 4, 8]


def test_a_rank_of_two_devices_is_refused(tmp_path: Path) -> None:
    file = merged(tmp_path, {"TP00": waiting(60), "TP01": waiting(40)})
    content = json.loads(gzip.decompress(file.read_bytes()))
    kernels = [event for event in content["traceEvents"] if event["cat"] == "kernel"]
    for kernel in kernels[len(kernels) // 2 :]:
        kernel["args"]["device"] = 1
    file.write_text(json.dumps(content))
    assert [one.rank for one in formats.read(file)] == [0, 1], "one device each"
    kernels[0]["args"]["device"] = 1
    file.write_text(json.dumps(content))
    with pytest.raises(Problem, match="several devices"):
        formats.read(file)


def test_what_a_collective_carries_is_read(tmp_path: Path) -> None:
    """As torch 2.4 and later write it; what is odd is unknown, and stops nothing."""
    told = {
        "Collective name": "_allgather_base",
        "In msg nelems": 100,
        "Out msg nelems": 800,
        "dtype": "BFloat16",
        "Group size": 8,
    }
    odd = {"Collective name": 7, "In msg nelems": "many", "dtype": 1.5, "Group size": "[0, 1]"}
    file = tmp_path / "run.json"
    content = loaded(waiting(40), file)
    kernels = [one for one in content["traceEvents"] if one["name"] == "ncclAllReduce"]
    for kernel, args in zip(kernels, (told, odd), strict=True):
        kernel["args"] |= args
    file.write_text(json.dumps(content))
    (found,) = profiles(file)
    assert [(one.kind, one.bytes, one.ranks, one.ns) for one in found.collectives] == [
        ("_allgather_base", 1600, 8, 40), ("", None, None, 40),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("17.250", 17_250), ("17.25", 17_250), ("17", 17_000), ("7", 7000), ("17.2504", 17_250), ("1.7e5", 170_000_000),
        ('"17.250"', 17_250), ('"1.75"', 1750), ("-3.250", -3250),
    ],
)  # fmt: skip
def test_an_operator_begins_when_its_time_says_however_that_is_written(tmp_path: Path, text: str, begin: int) -> None:
    one = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": %s, "ts": %s, "dur": 1.5}'
    file = tmp_path / "times.json"
    rows = [one % ("1", text), one % ("1", '"1.2.345"'), one % ("1", "1.0e99"), one % ('"1"', text), one % ("2", text)]
    file.write_text(f'{{"traceEvents": [{", ".join(rows)}]}}')
    (found,) = formats.read(file)
    assert found.lost == 2
    assert [[*zip(own.begin, own.end, own.name, strict=True)] for own in found.operators] == [
        [(begin, begin + 1500, 0)]
    ] * 3


def test_a_launch_of_a_kernel_that_is_missing_is_counted(tmp_path: Path) -> None:
    tasks = tuple(Task(100 * at, 100 * at + 50, launch=100 * at - 50) for at in range(1, 9))
    file = Run(tasks, (Range("ProfilerStep#1", 0, 900),)).torch(tmp_path / "a.json")
    content = json.loads(file.read_text())
    kernels = [event for event in content["traceEvents"] if event.get("cat") == "kernel"]
    (read,) = formats.read(file)
    assert (read.kernel_launches, read.lost_kernels) == (8, 0)
    content["traceEvents"] = [event for event in content["traceEvents"] if event not in kernels[::3]]
    file.write_text(json.dumps(content))
    (read,) = formats.read(file)
    assert (read.kernel_launches, read.lost_kernels) == (8, 3)
