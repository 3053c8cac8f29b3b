"""Runs that never were, written as each profiler would: times are whole nanoseconds, and the answer is known."""

from __future__ import annotations

import gzip
import json
import os
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from patcher.traces.model import FREE, RecordedUnit
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import RangeColumns

SHARED = Path(os.environ.get("RLPATCH_TEST_SHARED") or Path(__file__).resolve().parents[4] / "shared") / "traces"
"""Captures of real devices, which the repository does not have: ``traces`` in ``$RLPATCH_TEST_SHARED`` or ../shared."""

NO_CAPTURES = "needs captures of real devices, in $RLPATCH_TEST_SHARED/traces (CONTRIBUTING.md, Test)"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason=NO_CAPTURES)

START = 1_736_408_883_000_000_000
"""When every run begins on the host's clock: since the epoch, for a float of it loses nanoseconds."""

TYPES = {"compute": "AI_CORE", "copy": "PCIE_DMA_SQE"}


@dataclass(frozen=True)
class Task:
    """One task of the device; ``launch`` is when it was handed over, ``ask`` when its operator asked for it.

    ``call`` is what launches it and how long that takes; all tasks of one ``replay`` have the call of the first.
    """

    begin: int
    end: int
    kind: str = "compute"
    name: str = "MatMul"
    stream: int = 7
    launch: int | None = None
    ask: int | None = None
    call: tuple[str, int] = ("cudaLaunchKernel", 1)
    replay: int = 0
    thread: int = 1

    @property
    def asked(self) -> int | None:
        return self.launch if self.ask is None else self.ask


@dataclass(frozen=True)
class Range:
    name: str
    begin: int
    end: int
    thread: int = 1
    forward: int = 0


@dataclass(frozen=True)
class Run:
    """What one rank did, relative to ``START``."""

    tasks: tuple[Task, ...]
    marks: tuple[Range, ...]
    operators: tuple[Range, ...] = ()
    annotations: tuple[Range, ...] = ()
    calls: tuple[Range, ...] = ()
    modules: tuple[Range, ...] = ()
    functions: tuple[Range, ...] = ()
    rank: int | None = 0
    group: str = "586"
    extra: dict[str, Any] = field(default_factory=dict)

    def keyed(self) -> list[tuple[int, Task, bool]]:
        """The tasks, what each shares with its launch, and whether it is the first that does."""
        known: dict[int, int] = {}
        keyed = [(task.replay or number, task, number) for number, task in enumerate(self.tasks, 1)]
        return [(key, task, known.setdefault(key, number) == number) for key, task, number in keyed]

    # ------------------------------------------------------------ torch.profiler

    def events(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [
            {"ph": "X", "cat": "user_annotation", "name": one.name, "pid": 1, "tid": one.thread, **self._span(one)}
            for one in (*self.marks, *self.annotations)
        ]
        rows += [
            {"ph": "X", "cat": "cpu_op", "name": one.name, "pid": 1, "tid": one.thread, **self._span(one),
             "args": {"External id": 1, "Fwd thread id": one.forward}}
            for one in self.operators
        ]  # fmt: skip
        rows += [
            {"ph": "X", "cat": "cuda_runtime", "name": one.name, "pid": 1, "tid": one.thread, **self._span(one)}
            for one in self.calls
        ]
        rows += [
            {"ph": "X", "cat": "python_function", "name": one.name, "pid": 1, "tid": one.thread, **self._span(one)}
            for one in self.functions
        ]
        rows += [
            {"ph": "X", "cat": "python_function", "name": f"nn.Module: {one.name}_0", "pid": 1, "tid": one.thread,
             **self._span(one)}
            for one in self.modules
        ]  # fmt: skip
        for number, task, first in self.keyed():
            name = f"nccl{task.name}" if task.kind == "communication" else task.name
            args: dict[str, Any] = {"device": 0, "stream": task.stream, "correlation": number}
            if task.kind == "communication" and self.group:
                args["Process Group Name"] = self.group
            cat = "gpu_memcpy" if task.kind == "copy" else "kernel"
            rows.append({"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, **self._span(task), "args": args})
            if task.launch is not None and first:
                call, ns = task.call
                span = {"ts": _us(task.launch), "dur": ns / 1000}
                args = {"correlation": number}
                rows.append(
                    {
                        "ph": "X",
                        "cat": "cuda_runtime",
                        "name": call,
                        "pid": 1,
                        "tid": task.thread,
                        **span,
                        "args": args,
                    }
                )
                rows.append(
                    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": number, "pid": 1, "tid": 1, "ts": span["ts"]}
                )
        return rows

    def torch(self, path: Path) -> Path:
        head = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "distributedInfo": {"rank": self.rank}}
        text = json.dumps({"schemaVersion": 1, **head, "traceEvents": self.events(), "traceName": path.name})
        # Written as text: Python's own float would round what a profiler does not.
        text = _EXACT.sub(r"\1", text)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        return path

    def _span(self, one: Task | Range) -> dict[str, Any]:
        return {"ts": _us(one.begin), "dur": (one.end - one.begin) / 1000}

    # ------------------------------------------------------------ torch_npu, text

    def text(self, folder: Path) -> Path:
        output = folder / "ASCEND_PROFILER_OUTPUT"
        output.mkdir(parents=True)
        rows: list[dict[str, Any]] = [
            {"ph": "X", "cat": "cpu_op", "name": one.name, "pid": 1, "tid": one.thread, "ts": _text(one.begin),
             "dur": (one.end - one.begin) / 1000, "args": {"Fwd thread id": one.forward}}
            for one in (*self.marks, *self.operators, *self.annotations)
        ]  # fmt: skip
        rows += [
            {"ph": "X", "name": f"AscendCL@{one.name}", "pid": 800, "tid": one.thread, "ts": _text(one.begin),
             "dur": (one.end - one.begin) / 1000, "args": {"level": "acl", "connection_id": 10**7 + number}}
            for number, one in enumerate(self.calls)
        ]  # fmt: skip
        rows += [
            {"ph": "X", "cat": "python_function", "name": f"nn.Module: {one.name}_0", "pid": 1, "tid": one.thread,
             "ts": _text(one.begin), "dur": (one.end - one.begin) / 1000}
            for one in self.modules
        ]  # fmt: skip
        for number, task, first in self.keyed():
            args: dict[str, Any] = {"connection_id": number}
            pid, name = 900, task.name
            if task.kind == "communication":
                pid, name = 901, f"hcom_{task.name}__{self.group}_{number}_1"
                args |= {"data_type": "FP32", "alg_type": "MESH-RING"}
            else:
                args |= {"Task Type": TYPES[task.kind], "Physic Stream Id": task.stream}
            span = {"ts": _text(task.begin), "dur": (task.end - task.begin) / 1000}
            rows.append({"ph": "X", "name": name, "pid": pid, "tid": task.stream, **span, "args": args})
            if task.launch is not None and first:
                args = {"level": "node", "connection_id": number}
                rows.append(
                    {
                        "ph": "X",
                        "name": "Node@launch",
                        "pid": 800,
                        "tid": 1,
                        "ts": _text(task.launch),
                        "dur": 0.5,
                        "args": args,
                    }
                )
            if task.ask is not None:
                flow = {"cat": "async_npu", "name": "torch_to_npu", "id": START + task.begin}
                rows.append({"ph": "s", "pid": 1, "tid": 1, "ts": _text(task.ask), **flow})
                rows.append({"ph": "f", "pid": pid, "tid": task.stream, "ts": _text(task.begin), **flow})
        rows.append({"ph": "X", "name": "EVENT_WAIT", "pid": 900, "tid": 7, "ts": _text(0), "dur": 1.0,
                     "args": {"Task Type": "EVENT_WAIT_SQE", "connection_id": 10**6}})  # fmt: skip
        rows.append({"ph": "C", "name": "HBM", "pid": 3, "tid": 0, "ts": _text(0), "args": {"MB": 3}})
        (output / "trace_view.json").write_text(json.dumps(rows))
        (folder / f"profiler_info_{self.rank or 0}.json").write_text(json.dumps({"rank_id": self.rank}))
        return folder

    # ------------------------------------------------------------ torch_npu, db

    def db(self, folder: Path) -> Path:
        output = folder / "ASCEND_PROFILER_OUTPUT"
        output.mkdir(parents=True)
        file = output / f"ascend_pytorch_profiler_{self.rank or 0}.db"
        texts: dict[str, int] = {}

        def text(value: str) -> int:
            return texts.setdefault(value, len(texts))

        with closing(sqlite3.connect(file)) as db, db:
            for table, columns in _TABLES.items():
                db.execute(f"CREATE TABLE {table} ({columns})")
            for one in (*self.marks, *self.operators, *self.annotations):
                row = (
                    str(START + one.begin),
                    str(START + one.end),
                    one.thread,
                    None,
                    text(one.name),
                    one.forward or None,
                    50001,
                )
                db.execute("INSERT INTO PYTORCH_API VALUES (?,?,?,?,?,?,?)", row)
            for one in self.modules:
                name = text(f"nn.Module: {one.name}_0")
                row = (str(START + one.begin), str(START + one.end), one.thread, None, name, None, 50003)
                db.execute("INSERT INTO PYTORCH_API VALUES (?,?,?,?,?,?,?)", row)
            for number, one in enumerate(self.calls):
                call = (START + one.begin, 10**7 + number, one.thread, START + one.end, text(one.name))
                db.execute("INSERT INTO CANN_API VALUES (?,?,?,?,?)", call)
            for at, (number, task, first) in enumerate(self.keyed(), 1):
                begin, end = START + task.begin, START + task.end
                if task.kind == "communication":
                    name = text(f"hcom_{task.name}__{self.group}_{number}_1")
                    db.execute(
                        "INSERT INTO COMMUNICATION_OP VALUES (?,?,?,?,?)", (name, begin, end, number, text(self.group))
                    )
                else:
                    kind = text("MEMCPY_ASYNC" if task.kind == "copy" else "KERNEL_AICORE")
                    db.execute("INSERT INTO TASK VALUES (?,?,0,?,?,?,?)", (begin, end, number, at, kind, task.stream))
                if task.kind == "compute":
                    db.execute("INSERT INTO COMPUTE_TASK_INFO VALUES (?,?)", (at, text(task.name)))
                if task.launch is not None and first:
                    call = (START + task.launch, number, task.thread, START + task.launch + 500, text("launch"))
                    db.execute("INSERT INTO CANN_API VALUES (?,?,?,?,?)", call)
                if task.ask is not None:
                    db.execute("INSERT INTO CONNECTION_IDS VALUES (?,?)", (10_000 + number, number))
                    db.execute(
                        "INSERT INTO PYTORCH_API VALUES (?,?,1,?,?,NULL,50001)",
                        (str(START + task.ask), str(START + task.ask + 1), 10_000 + number, text("asks")),
                    )
            db.execute("INSERT INTO RANK_DEVICE_MAP VALUES (?,0)", (self.rank,))
            db.execute("INSERT INTO NPU_INFO VALUES (0,'Ascend910B')")
            db.executemany("INSERT INTO STRING_IDS VALUES (?,?)", [(number, value) for value, number in texts.items()])
        return folder

    # ------------------------------------------------------------ Nsight Systems, exported as SQLite

    def nsys(self, file: Path, pid: int = 4711, device: int = 0) -> Path:
        """Write, or add to what lies there, what one process did on one GPU."""
        process = pid << 24
        file.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(file)) as db, db:
            for table, columns in NSYS_TABLES.items():
                db.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")

            def text(value: str) -> int:
                db.execute("INSERT OR IGNORE INTO StringIds (value) VALUES (?)", (value,))
                return int(db.execute("SELECT id FROM StringIds WHERE value = ?", (value,)).fetchone()[0])

            ranges = [(one, one.name) for one in (*self.marks, *self.annotations, *self.modules)]
            ranges += [(one, f"{one.name}, op_id = {number}") for number, one in enumerate(self.operators)]
            if self.rank is not None and self.tasks:
                name = f"rlpatch:rollout 0 host_dp0_rank{self.rank}_{pid}"
                ranges.append((Range(name, 0, max(task.end for task in self.tasks)), name))
            for number, (one, name) in enumerate(ranges):  # a registered text is a number
                texts = (name, None) if number % 2 else (None, text(name))
                row = (one.begin, one.end, 59, *texts, process + one.thread, 0)
                db.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?,?)", row)
            db.execute("INSERT INTO NVTX_EVENTS VALUES (0, NULL, 34, 'a moment', NULL, ?, 0)", (process + 1,))
            for one in self.calls:
                call = (one.begin, one.end, process + one.thread, None, text(f"{one.name}_v3020"))
                db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?)", call)
            for number, task, first in self.keyed():
                on_device = (task.begin, task.end, device, task.stream, number, process)
                if task.kind == "copy":
                    db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,?,?,?,1)", on_device)
                else:
                    name = f"nccl{task.name}" if task.kind == "communication" else task.name
                    kernel = (*on_device, text(name))
                    db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?,?)", kernel)
                if task.launch is not None and first:
                    words, ns = task.call
                    launch = (task.launch, task.launch + ns, process + task.thread, number, text(f"{words}_v7000"))
                    db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?)", launch)
            db.execute("INSERT OR REPLACE INTO TARGET_INFO_GPU VALUES (?, 'NVIDIA H100')", (device,))
            db.execute("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (?, ?, ?)", (device, device, pid))
        return file


_ON_DEVICE = "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER"
NSYS_TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT UNIQUE NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_ON_DEVICE}, demangledName INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ON_DEVICE}, copyKind INTEGER NOT NULL /* its REFERENCES say virtualAddress */",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, textId INTEGER, globalTid INTEGER, domainId INTEGER",
    "TARGET_INFO_GPU": "id INTEGER PRIMARY KEY, name TEXT",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER, pid INTEGER",
}
"""The tables of an export of nsys, with the columns that a report reads (schema 3.25 and before)."""

_TABLES = {
    "TASK": "startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, globalTaskId INTEGER,"
    " taskType INTEGER, streamId INTEGER",
    "COMPUTE_TASK_INFO": "globalTaskId INTEGER PRIMARY KEY, opType INTEGER",
    "COMMUNICATION_OP": "opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER, groupName INTEGER",
    "CANN_API": "startNs INTEGER, connectionId INTEGER, globalTid INTEGER, endNs INTEGER, name INTEGER",
    "PYTORCH_API": "startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER, name INTEGER, fwdThreadId INTEGER,"
    " type INTEGER",
    "CONNECTION_IDS": "id INTEGER, connectionId INTEGER",
    "STRING_IDS": "id INTEGER PRIMARY KEY, value TEXT",
    "RANK_DEVICE_MAP": "rankId INTEGER, deviceId INTEGER",
    "NPU_INFO": "id INTEGER, name TEXT",
}


def _text(time: int) -> str:
    whole, rest = divmod(START + time, 1000)
    return f"{whole}.{rest:03}"


def _us(time: int) -> str:
    return f"<{_text(time)}>"


_EXACT = re.compile(r'"<(\d+\.\d{3})>"')

MS = 1_000_000


def steps(count: int = 4, *, first: int = 30, late: Mapping[int, int] | None = None, host: int = 10 * MS) -> Run:
    """Decode steps of 10 ms on the host, ten kernels each, launched 0.1 ms apart as soon as the step begins.

    On the device a kernel takes 0.5 ms, so a step's kernels follow each other without a gap and the device is free for
    5 ms. ``late`` says by how much the host stops before it launches the sixth kernel of a step, which then ends
    as much later.
    """
    tasks, marks, operators = [], [], []
    free = begin = 0
    for number in range(first, first + count):
        stop = (late or {}).get(number, 0)
        marks.append(Range(f"ProfilerStep#{number}", begin, begin + host + stop))
        for index in range(10):
            launch = begin + (index + 1) * MS // 10 + (stop if index >= 5 else 0)
            start = max(free, launch + MS // 100)
            free = start + MS // 2
            tasks.append(Task(start, free, name=f"kernel{index}", launch=launch, ask=launch - 2000))
            operators.append(Range("aten::mm", launch - 2000, launch + 5000))
        begin += host + stop
    return Run(tuple(tasks), tuple(marks), tuple(operators))


def shifted(run: Run, by: int) -> Run:
    """The same run, with the device's clock set forward."""
    return replace(run, tasks=tuple(replace(task, begin=task.begin + by, end=task.end + by) for task in run.tasks))


MARKS = (Range("ProfilerStep#1", 0, 100), Range("ProfilerStep#2", 100, 200))


def timeline(run: Run) -> RankTrace:
    """``run`` without a file."""
    found = RankTrace("a run", "torch")
    for one in run.marks:
        found.add_mark(one.name, one.begin, one.end, found.thread(1, one.thread))
    for one in run.operators:
        found.operators[found.thread(1, one.thread)].add(one.begin, one.end, found.names[one.name])
    for one in run.calls:
        found.add_call(one.name, one.begin, one.end, found.thread(1, one.thread))
    for one in run.functions:
        columns = found.functions.setdefault(found.thread(1, one.thread), RangeColumns())
        columns.add(one.begin, one.end, found.names[one.name])
    for task in run.tasks:
        found.tasks.add(task.begin, task.end, task.kind, found.names[task.name], found.names[f"stream {task.stream}"])
        if task.launch is not None:
            found.tasks.launched[-1] = task.launch
        if task.asked is not None:
            found.tasks.enqueued[-1], found.tasks.thread[-1] = task.asked, 0
    return found


def free_ns(unit: RecordedUnit) -> int:
    """How long nothing ran on the device in a unit."""
    return sum(getattr(unit, part) for part in FREE)
