"""The export of Nsight Systems: SQLite as ``nsys export --type sqlite`` writes it.

One file holds every process below ``nsys profile``: a trace is what one process ran on one GPU. nsys creates a table
only for what it recorded, and renames columns from version to version (its "SQLite Schema Reference"; read here with
exports of 2019 to 2026). Names are numbers into ``StringIds``. A call of CUDA and what it launched share their
``correlationId`` within a process; a ``globalTid`` without its lower 24 bits is the ``globalPid``. The ranges of NVTX
are the marks of units, the operators if torch emits them (``emit_nvtx``, ``nsys profile --pytorch=autograd-nvtx``),
and the ranges of the user.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from patcher.messages import Kind, Problem, Text
from patcher.traces import names
from patcher.traces.formats import database
from patcher.traces.model import COMPUTE, COPY, CPU
from patcher.traces.rank_trace import LONG_CALL, RankTrace
from patcher.traces.trace_columns import HostCalls

if TYPE_CHECKING:
    import sqlite3

_PREFIX = "CUPTI_ACTIVITY_KIND_"
_KERNELS, _CALLS, _RANGES, _TEXTS = f"{_PREFIX}KERNEL", f"{_PREFIX}RUNTIME", "NVTX_EVENTS", "StringIds"
_COPIES, _FILLS, _GRAPHS = f"{_PREFIX}MEMCPY", f"{_PREFIX}MEMSET", f"{_PREFIX}GRAPH_TRACE"
_TASKS = {_KERNELS: COMPUTE, _COPIES: COPY, _FILLS: COPY, _GRAPHS: COMPUTE}
"""Table of tasks → their kind."""
_ON_DEVICE = {"start", "end", "deviceId", "streamId", "correlationId"}
_COLUMNS: Mapping[str, set[str]] = {
    _KERNELS: {*_ON_DEVICE, "demangledName"},
    **dict.fromkeys((_COPIES, _FILLS, _GRAPHS), _ON_DEVICE),
    _CALLS: {"start", "end", "correlationId", "globalTid", "nameId"},
    _RANGES: {"start", "end", "eventType", "text", "globalTid"},
    _TEXTS: {"id", "value"},
}
"""Table → the columns that are read in every version."""

_WITHOUT: Mapping[str, str] = {
    _KERNELS: Text("nothing ran on a GPU, or nsys did not record CUDA (record with --trace=cuda,nvtx)"),
    _CALLS: Text("the calls that launched the kernels are unknown (record with --trace=cuda,nvtx)"),
    _RANGES: Text("steps and operators are not marked by ranges (record with --trace=cuda,nvtx)"),
}
"""Table that an export may lack → what a report lacks then."""

_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""Number of ``copyKind`` (``CUpti_ActivityMemcpyKind`` of cupti_activity.h) → its name in kineto's traces."""

_PUSHED, _STARTED = 59, 60
"""Numbers of ``eventType`` (``ENUM_NSYS_EVENT_TYPE``): ranges of a thread, and of a process."""

_PROCESS = ~0xFFFFFF
_VERSIONED = re.compile(r"(_ptsz|_ptds)?_v\d+$")
_EMITTED = re.compile(r", (?:seq|op_id) = -?\d+(?:, |$).*", re.DOTALL)
"""What torch writes behind the name of an operator (``torch/csrc/profiler/util.cpp`` ``getNvtxStr``)."""

_WINDOW = re.compile(r"rlpatch:(?P<stage>[\w-]+) (?P<turn>\d{1,9}) (?P<name>\w+)", re.ASCII)
"""Name of the range around a window's units (``patches/probes/nsys.py``): ``rlpatch:rollout 0 HOST_dp0_rank0_7``."""

SUFFIX = ".nsys"
"""End of the name of a window, by which its step metadata are found beside the export."""


def is_export(file: Path) -> bool:
    """Tell whether a file is an SQLite export of Nsight Systems; False if it cannot be read."""
    tables = f"name LIKE '{_PREFIX}%' OR name LIKE 'TARGET_INFO_%' OR name IN ('{_RANGES}', 'ANALYSIS_DETAILS')"
    return bool(database.rows(file, f"SELECT 1 FROM sqlite_master WHERE {tables} LIMIT 1"))  # noqa: S608


def read(file: Path, mark_pattern: re.Pattern[str] | None = None) -> list[NsysTrace]:
    """Return the trace of each process on each GPU in an SQLite export of nsys.

    Besides the known marks, a range whose name matches ``mark_pattern`` marks a step (None: no other range). Raises
    Problem (TRACE), which names the table that cannot be read.
    """
    export = _Export(file, mark_pattern)
    with _as_trace_problem(file, Text("the database schema")), database.opened(file) as db:
        export.fill(db)
    return export.traces()


class NsysTrace(RankTrace):
    """The trace of one process on one GPU; ``window`` is the name that rlpatch gave the window, "" without one."""

    window = ""


class _Row(NamedTuple):
    """A range of NVTX: its thread, times, text, and whether it is in no domain of a library."""

    thread: int
    begin: int
    end: int
    text: str
    plain: bool


class _Export:
    """Reader of one file: first the tasks, each into the trace of its process and GPU, then the host of each trace."""

    def __init__(self, file: Path, mark_pattern: re.Pattern[str] | None) -> None:
        self.file, self.mark_pattern = file, mark_pattern
        self.tables: dict[str, set[str]] = {}
        self.by_place: dict[tuple[int, int | None], NsysTrace] = {}

    def fill(self, db: sqlite3.Connection) -> None:
        """Read the tasks, calls, ranges and devices in an export of Nsight Systems into the traces of its processes.

        Raises Problem (TRACE) for a missing column, or values of another type.
        """
        self.tables = database.columns(db)
        self._check(db)
        for table in _TASKS:
            self._each(db, table, self._add_tasks)
        if not self.by_place:
            self._each(db, _RANGES, self._add_processes)
        for table, add in ((_CALLS, self._add_calls), (_RANGES, self._add_ranges)):
            self._each(db, table, add)
        self._each(db, "TARGET_INFO_CUDA_DEVICE", self._add_devices)

    def _each(self, db: sqlite3.Connection, table: str, add: Callable[[sqlite3.Connection, str], None]) -> None:
        """Call ``add`` with the connection and a table if the export has it. Raises Problem (TRACE) if that fails."""
        if table in self.tables:
            with _as_trace_problem(self.file, Text("the table {table}", table)):
                add(db, table)

    def _check(self, db: sqlite3.Connection) -> None:
        """Raise Problem (TRACE) if a table that rlpatch reads is computed (a view, say) or lacks a column.

        Tables may be missing, except the one with the texts beside any table that refers to it.
        """
        there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        if computed := sorted((_COLUMNS.keys() & there) - self.tables.keys()):
            raise _unreadable(
                self.file, Text("the table {table} is a view or a virtual table, or has generated columns", computed[0])
            )
        for table, needed in _COLUMNS.items():
            if lacking := ", ".join(sorted(needed - self.tables.get(table, needed))):
                raise _unreadable(self.file, Text("the table {table} lacks {columns}", table=table, columns=lacking))
        if _TEXTS not in self.tables and self.tables.keys() & {_KERNELS, _CALLS, _RANGES}:
            raise _unreadable(self.file, Text("the table {table} is missing", _TEXTS))

    def _trace(self, process: int, device: int | None) -> NsysTrace:
        """Return the trace of a process (``globalPid``) on a GPU, made if missing; device None is the host alone."""
        trace = self.by_place.get((process, device))
        if trace is None:
            trace = self.by_place[process, device] = NsysTrace(str(self.file), "nsys", self.mark_pattern)
            trace.device = CPU if device is None and _CALLS not in self.tables else "NVIDIA GPU"
        return trace

    def _add_tasks(self, db: sqlite3.Connection, table: str) -> None:
        """Add the rows of a table of the device as tasks; a replayed graph that is one row is a task, too.

        Raises TypeError if a time or stream is no whole number.
        """
        columns = self.tables[table]
        process = "globalPid" if "globalPid" in columns else "0"
        detail = {_KERNELS: "demangledName", _COPIES: "copyKind" if "copyKind" in columns else "0"}.get(table, "0")
        texts = _texts(db, "demangledName", table) if table == _KERNELS else {}
        query = f"SELECT {process}, deviceId, start, end, streamId, correlationId, {detail} FROM {table}"  # noqa: S608
        for pid, device, begin, end, stream, key, value in db.execute(query):
            _check_whole(begin, end, stream)
            name = "Memset" if table == _FILLS else "CUDA graph"
            if table == _KERNELS:
                name = texts.get(value) or f"kernel {value}"
            elif table == _COPIES:
                name = f"Memcpy {_COPY_KINDS.get(value, '')}".rstrip()
            self._trace(pid or 0, device).add_task(begin, end, _TASKS[table], name, f"stream {stream}", key)

    def _add_processes(self, db: sqlite3.Connection, table: str) -> None:
        """Add a trace without a GPU for each process with ranges: for an export without any task of a device."""
        for (process,) in db.execute(f"SELECT DISTINCT globalTid & {_PROCESS} FROM {table} WHERE end IS NOT NULL"):  # noqa: S608
            self._trace(process or 0, None)

    def _traces_of(self) -> dict[int, list[NsysTrace]]:
        """Return process (``globalPid``) → its traces; 0 is the key where an old export names no process."""
        traces: dict[int, list[NsysTrace]] = {}
        for (process, _), trace in self.by_place.items():
            traces.setdefault(process, []).append(trace)
        return traces

    def _add_calls(self, db: sqlite3.Connection, table: str) -> None:
        """Link tasks with the CUDA calls in ``table`` that launched them, and add the calls of 20 µs or more."""
        by_process, calls = self._traces_of(), {trace: HostCalls() for trace in self.by_place.values()}
        texts = _texts(db, "nameId", table, f"end - start >= {LONG_CALL}")
        launching = {trace: set(trace.tasks.key) for trace in calls}
        query = f"SELECT start, end, globalTid, correlationId, nameId FROM {table}"  # noqa: S608
        for begin, end, thread_id, key, name in db.execute(query):
            for trace in _traces_of_thread(by_process, thread_id):
                if key in launching[trace]:
                    calls[trace].add(key, begin, trace.thread(0, thread_id))
                if end - begin >= LONG_CALL:
                    text = _VERSIONED.sub("", texts.get(name, "call"))
                    trace.add_call(text, begin, end, trace.thread(0, thread_id))
        for trace, launches in calls.items():
            trace.tasks.link(launches, trace.tasks.key)

    def _add_ranges(self, db: sqlite3.Connection, table: str) -> None:
        """Add the ranges of NVTX in a table to each trace of their process."""
        by_process = self._traces_of()
        for row in self._ranges(db, table):
            for trace in _traces_of_thread(by_process, row.thread):
                _add_range(trace, row)

    def _ranges(self, db: sqlite3.Connection, table: str) -> Iterator[_Row]:
        """Yield the ranges of NVTX in ``table`` that have ended: those pushed in a thread or started in a process.

        Raises TypeError if a time is no whole number.
        """
        columns = self.tables[table]
        text = f"text, {'textId' if 'textId' in columns else 'NULL'}, {'domainId' if 'domainId' in columns else '0'}"
        texts = _texts(db, "textId", table) if "textId" in columns else {}
        query = f"""SELECT globalTid, start, end, {text} FROM {table}
 WHERE eventType IN ({_PUSHED}, {_STARTED}) AND end IS NOT NULL"""  # noqa: S608
        for thread, begin, end, plain_text, text_id, domain in db.execute(query):
            _check_whole(begin, end)
            text = plain_text if plain_text is not None else texts.get(text_id, "")
            yield _Row(thread, begin, end, str(text), not domain)

    def _add_devices(self, db: sqlite3.Connection, table: str) -> None:
        """Set the name of the GPU of each trace; ``table`` maps the GPU numbers of each process to GPUs.

        A process that the table lacks gets the GPU with its number in any other process. Traces keep their general name
        if the export names no GPU.
        """
        query = f"SELECT d.pid, d.cudaId, g.name FROM {table} d JOIN TARGET_INFO_GPU g ON g.id = d.gpuId"  # noqa: S608
        if not {"pid", "cudaId", "gpuId"} <= self.tables[table] or "TARGET_INFO_GPU" not in self.tables:
            return
        names = {(pid, number): str(name) for pid, number, name in db.execute(query) if name}
        for (process, device), trace in self.by_place.items():
            same = (name for (_, number), name in names.items() if number == device)
            trace.device = names.get((_pid(process), device)) or next(same, trace.device)

    def traces(self) -> list[NsysTrace]:
        """Return the trace of each process on each GPU, after setting its source, rank and doubts.

        The rank is that in the window's name; else the GPU's number, if each of several traces has a GPU of its own;
        else None.
        """
        devices = [device for _, device in self.by_place]
        apart, several, doubts = len(set(devices)) == len(devices), len(devices) > 1, tuple(self._doubts())
        for (process, device), trace in self.by_place.items():
            place = f"GPU {device}" if apart else f"process {_pid(process)}, GPU {device}"
            trace.source = f"{self.file} [{place}]" if several else trace.source
            fields: Mapping[str, Any] = names.of(Path(trace.window)).fields if trace.window else {}
            trace.rank = fields.get("rank", device if apart and several else None)
            trace.doubts = doubts
        return [*self.by_place.values()]

    def _doubts(self) -> Iterator[str]:
        """Yield a sentence on each table that is missing, and one if graphs were recorded whole, not by kernel."""
        for table, what in _WITHOUT.items():
            if table not in self.tables and (table != _KERNELS or _GRAPHS not in self.tables):
                yield Text("the table {table} is missing: {consequence}", table=table, consequence=what)
        if _GRAPHS in self.tables:
            yield _WHOLE_GRAPHS


def _pid(process: int) -> int:
    return (process >> 24) & 0xFFFFFF


_WHOLE_GRAPHS = Text(
    "nsys recorded each replay of a CUDA graph as one task, without its kernels: to see the kernels, record again"
    " with --cuda-graph-trace=node"
)


def _add_range(trace: NsysTrace, row: _Row) -> None:
    """Add a range of NVTX: an operator that torch emits, a module, a mark of a step, or a range of the user."""
    thread = trace.thread(0, row.thread)
    if match := _WINDOW.fullmatch(row.text):
        trace.window = match["name"]
        return
    name, emitted = _EMITTED.subn("", row.text)
    if emitted and row.plain:
        trace.add_operator(name, row.begin, row.end, thread)
    else:
        trace.add_named_range(row.text, row.begin, row.end, thread, by_class=row.plain)


def _traces_of_thread(by_process: Mapping[int, list[NsysTrace]], thread: int) -> list[NsysTrace]:
    """Return the traces of a thread's process (its ``globalTid`` says which); key 0 is used for an unknown one."""
    return by_process.get(thread & _PROCESS) or by_process.get(0, [])


def _texts(db: sqlite3.Connection, column: str, table: str, where: str = "TRUE") -> dict[int, str]:
    """Return number → text for the numbers in a column of a table, in rows that meet the SQL condition ``where``."""
    return database.texts(db, f"SELECT {column} FROM {table} WHERE {where}", _TEXTS)  # noqa: S608


def _check_whole(*values: object) -> None:
    if not all(type(value) is int for value in values):
        raise TypeError


@contextmanager
def _as_trace_problem(file: Path, what: str) -> Iterator[None]:
    """Context manager that turns errors of SQLite, and unusable values, into a Problem (TRACE) about ``file``."""
    import sqlite3

    try:
        yield
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
        raise _unreadable(file, Text("{part}: {error}", part=what, error=database.failure_reason(error))) from None


def _unreadable(file: Path, what: str) -> Problem:
    """Build a Problem (TRACE): the export cannot be read because of ``what``; the hint exports it again."""
    report = shlex.quote(str(file.with_suffix(".nsys-rep")))
    again = Text("export the report again: nsys export --type sqlite --force-overwrite true {report}", report)
    return Problem(Kind.TRACE, Text("{file} cannot be read: {reason}", file=file.name, reason=what), str(file), again)
