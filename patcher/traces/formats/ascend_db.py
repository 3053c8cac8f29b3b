"""The export of torch_npu.profiler as db: SQLite, with names as numbers into ``STRING_IDS``.

The tables are those of ``ascend_pytorch_profiler_<rank>.db`` (schema 1). ``PYTORCH_API`` holds its times as text. A
task is linked to its operator by ``CONNECTION_IDS``, and to the call of CANN that launched it by its ``connectionId``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patcher.messages import Kind, Problem, Text
from patcher.traces.formats import ascend, database
from patcher.traces.formats.ascend_db_kernels import AlikeTasks
from patcher.traces.marks import NUMBERED
from patcher.traces.measured import KernelUse
from patcher.traces.messages import LinkPiece, message
from patcher.traces.model import COMPUTE
from patcher.traces.rank_trace import LONG_CALL, NN_MODULE, RankTrace, several_problem
from patcher.traces.trace_columns import UNKNOWN, HostCalls

if TYPE_CHECKING:
    import re
    import sqlite3

_NEEDED = {
    "TASK": {"startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "taskType", "streamId"},
    "STRING_IDS": {"id", "value"},
}
_TABLES = _NEEDED.keys() | {
    "CANN_API", "COMMUNICATION_OP", "COMPUTE_TASK_INFO", "CONNECTION_IDS", "ENUM_HCCL_DATA_TYPE", "MSTX_EVENTS",
    "NPU_INFO", "PYTORCH_API", "RANK_DEVICE_MAP", "STEP_TIME", "TASK_PMU_INFO",
}  # fmt: skip
_PARSE_AGAIN = Text("if the folder PROF_… still exists, parse the trace again with `rlpatch analyse`")
_COMPUTING = "LEFT JOIN COMPUTE_TASK_INFO i ON i.globalTaskId = t.globalTaskId"
_OPERATOR, _TRACE = 50001, 50003  # of ENUM_API_TYPE: op, and functions of Python
_LAUNCHES = """SELECT connectionId, MIN(startNs), globalTid FROM CANN_API
 WHERE connectionId IN ({}) GROUP BY connectionId"""
_LONG = f"SELECT {{}} FROM CANN_API WHERE endNs - startNs >= {LONG_CALL}"  # noqa: S608
_OPERATORS = f"""SELECT c.connectionId, MIN(CAST(p.startNs AS INTEGER)), p.globalTid
 FROM PYTORCH_API p JOIN CONNECTION_IDS c ON c.id = p.connectionId WHERE p.type = {_OPERATOR}
 AND p.startNs IS NOT NULL AND c.connectionId IN ({{}}) GROUP BY c.connectionId"""  # noqa: S608
"""The calls of tasks: there are many more that no task is connected with, and those are not to be loaded."""
_HOST = f"""SELECT CAST(startNs AS INTEGER), CAST(endNs AS INTEGER), globalTid, name, fwdThreadId, type
 FROM PYTORCH_API WHERE startNs IS NOT NULL AND endNs IS NOT NULL AND (type = {_OPERATOR}
 OR (type = {_TRACE} AND name IN (SELECT id FROM STRING_IDS WHERE value GLOB '{NN_MODULE}*')))"""  # noqa: S608


def read(file: Path, mark_pattern: re.Pattern[str] | None = None) -> RankTrace:
    """Return the trace in a database of torch_npu.

    ``mark_pattern`` matches further names of ranges that mark steps, beside the known ones (None: no others). Raises
    Problem (TRACE) if the database is unreadable, or of another schema.
    """
    trace = DatabaseTrace(file, mark_pattern)
    with trace.opened() as db:
        trace.fill(db)
    return trace


class DatabaseTrace(RankTrace):
    """A trace whose kernels have their measures in the database ``file``.

    The key of a task is its ``connectionId``. ``tables`` are the columns of each table, ``analysis`` is the vendor's
    own database.
    """

    def __init__(self, file: Path, mark_pattern: re.Pattern[str] | None = None) -> None:
        super().__init__(str(file), "ascend-db", mark_pattern)
        self.file, self.analysis = file, file.with_name("analysis.db")
        self.tables: dict[str, set[str]] = {}
        self.alike = AlikeTasks()

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """Yield a read-only connection to the database. Raises Problem (TRACE) if opening or reading fails.

        TypeError, ValueError and OverflowError of the caller's block count as values of another type in a column.
        """
        import sqlite3

        try:
            with database.opened(self.file) as db:
                yield db
        except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
            cause = Text("{file} cannot be read: {reason}", file=self.file.name, reason=database.failure_reason(error))
            raise Problem(Kind.TRACE, cause, str(self.file), _PARSE_AGAIN) from None

    def kernel_uses(self, segments: Sequence[int], units: Mapping[int, int]) -> tuple[KernelUse, ...]:
        """Return the measures of kernels as `RankTrace.kernel_uses` does; empty without types and shapes.

        Raises Problem (TRACE) if the database cannot be read.
        """
        if not self.alike.kinds:
            return ()
        with self.opened() as db:
            return self.alike.uses(db, self.tasks, segments, units)

    def fill(self, db: sqlite3.Connection) -> None:
        """Read everything into this trace but the kernels' pipeline ratios, which `kernel_uses` reads later.

        Raises Problem (TRACE) for another schema.
        """
        self.tables = database.columns(db)
        self._check(db)
        ascend.set_rank(self, self.file.parent)
        self.rank = self._rank(db)
        names = _column(db, "SELECT name FROM NPU_INFO LIMIT 1") if "NPU_INFO" in self.tables else []
        self.device = str(names[0]) if names else "Ascend NPU"
        self.vendor = _vendor_steps(self.analysis) or ascend.vendor_steps(self.file.parent)
        if "TASK" in self.tables:
            self._add_tasks(db)
            if "COMMUNICATION_OP" in self.tables:
                self._add_collectives(db)
        if "PYTORCH_API" in self.tables:
            self._add_operators(db)
        if "MSTX_EVENTS" in self.tables:
            self._add_ranges(db)
        if "STEP_TIME" in self.tables and not any(mark.family == NUMBERED for _, mark in self.marks):
            for number, begin, end in db.execute("SELECT id, startNs, endNs FROM STEP_TIME"):
                self.add_mark(f"{NUMBERED}{number}", begin, end, self.thread(0, "steps"))
        self._link(db)

    def _link(self, db: sqlite3.Connection) -> None:
        """Link tasks with the CANN calls that launched them, and with the operators that enqueued them."""
        if "CANN_API" in self.tables:
            self.tasks.link(self._calls(db, _LAUNCHES), self.tasks.key)
            if {"name", "endNs"} <= self.tables["CANN_API"]:
                self._add_calls(db)
        if {"CONNECTION_IDS", "PYTORCH_API"} <= self.tables.keys():
            self.tasks.link(self._calls(db, _OPERATORS), self.tasks.key)

    def _check(self, db: sqlite3.Connection) -> None:
        """Raise Problem (TRACE) if a needed table or column is missing, or a table is a view or is computed.

        The table of tasks is not needed beside a table of operators: then nothing ran on a device.
        """
        names = {name.upper() for name in _column(db, "SELECT name FROM sqlite_master")}
        if computed := sorted((_TABLES & names) - self.tables.keys()):
            cause = Text(
                "{file} cannot be read: {table} is a view or a virtual table, or has generated columns, but "
                "torch_npu writes plain tables",
                file=self.file.name,
                table=computed[0],
            )
            raise Problem(Kind.TRACE, cause, str(self.file), _PARSE_AGAIN)
        for table, columns in _NEEDED.items():
            if table == "TASK" and table not in self.tables and "PYTORCH_API" in self.tables:
                continue  # nothing ran on a device: then torch_npu leaves the table out
            if lacking := ", ".join(sorted(columns - self.tables.get(table, set()))):
                what = Text("the table {table}", table)
                if table in self.tables:
                    what = Text("the column {columns} of the table {table}", columns=lacking, table=table)
                cause = Text(
                    "{file} is not a database of torch_npu.profiler: {missing_part} is missing",
                    file=self.file.name,
                    missing_part=what,
                )
                hint = Text("rlpatch reads only the file ascend_pytorch_profiler_<rank>.db of torch_npu.profiler")
                raise Problem(Kind.TRACE, cause, str(self.file), hint)

    def _rank(self, db: sqlite3.Connection) -> int | None:
        """Return the rank in the database, else that known so far (or None). Raises Problem (TRACE) for several."""
        has_map = "RANK_DEVICE_MAP" in self.tables
        ranks = _column(db, "SELECT DISTINCT rankId FROM RANK_DEVICE_MAP") if has_map else []
        if len(ranks) > 1:
            raise several_problem(self.file, "ranks", ranks)
        return next((rank for rank in ranks if isinstance(rank, int) and rank >= 0), self.rank)

    def _add_tasks(self, db: sqlite3.Connection) -> None:
        """Add the tasks of the device that compute or copy; tasks that only order others are left out.

        If the database has a table of computing tasks, computing tasks that it lacks are left out, too. A type for
        which rlpatch has no rule is noted as unknown. Raises Problem (TRACE) for tasks of several devices.
        """
        devices = _column(db, "SELECT DISTINCT deviceId FROM TASK WHERE taskType IS NOT NULL")
        if len(devices) > 1:
            raise several_problem(self.file, "devices", devices)
        columns, join, types = f"NULL, NULL, {self.alike.columns}", "", "SELECT taskType FROM TASK"
        computing = "COMPUTE_TASK_INFO" in self.tables and _column(db, "SELECT 1 FROM COMPUTE_TASK_INFO LIMIT 1")
        if computing:
            self.alike.select(self.tables["COMPUTE_TASK_INFO"])
            columns, join = f"i.opType, i.globalTaskId, {self.alike.columns}", _COMPUTING
            types += " UNION SELECT opType FROM COMPUTE_TASK_INFO"
        texts = database.texts(db, types)
        query = f"SELECT t.startNs, t.endNs, t.streamId, t.connectionId, t.taskType, {columns} FROM TASK t {join}"  # noqa: S608
        for begin, end, stream, connection, type_id, operator_id, computed, *alike in db.execute(query):
            task_type, operator = texts.get(type_id, ""), texts.get(operator_id)
            kind = COMPUTE if computed is not None else ascend.kind_of_task(task_type, "")
            if kind is None or (kind == COMPUTE and computed is None and computing):  # the vendor counts neither
                continue
            if computed is None and not ascend.is_known(task_type):
                self.unknown.add(task_type)
            self.add_task(begin, end, kind, operator or task_type, f"stream {stream}", connection)
            self.alike.add(computed, tuple(alike))

    def _add_collectives(self, db: sqlite3.Connection) -> None:
        """Add the collectives by begin, with their message sizes, and their times if ``analysis.db`` tells them."""
        transits, types = _transits(self.analysis), {}
        columns = "NULL, NULL"
        if {"count", "dataType"} <= self.tables["COMMUNICATION_OP"] and "ENUM_HCCL_DATA_TYPE" in self.tables:
            columns = "count, dataType"
            types = dict(db.execute("SELECT id, name FROM ENUM_HCCL_DATA_TYPE"))
        texts = database.texts(db, "SELECT opName FROM COMMUNICATION_OP UNION SELECT groupName FROM COMMUNICATION_OP")
        query = f"SELECT startNs, endNs, connectionId, opName, groupName, {columns} FROM COMMUNICATION_OP"  # noqa: S608
        for begin, end, connection, name, group, elements, dtype in db.execute(f"{query} ORDER BY startNs"):
            words = texts.get(name) or "collective", texts.get(group, "")
            carried = message("", elements, None, types.get(dtype), None)
            ascend.add_collective(self, (begin, end), *words, transits, connection, carried)

    def _add_operators(self, db: sqlite3.Connection) -> None:
        """Add the operators and modules of the framework, and note which threads run backward."""
        texts = database.texts(db, "SELECT name FROM PYTORCH_API")
        for begin, end, thread_id, name, forward, kind in db.execute(_HOST):
            thread, text = self.thread(0, thread_id), texts.get(name)
            if text is None:
                continue
            if kind == _TRACE:
                self.add_module(text, begin, end, thread)
            else:
                self.add_operator(text, begin, end, thread, backward=bool(forward))

    def _add_ranges(self, db: sqlite3.Connection) -> None:
        """Add the ranges of mstx: the marks of steps, those of the domain ``Module`` as modules, others as frames."""
        texts = database.texts(db, "SELECT message FROM MSTX_EVENTS UNION SELECT domainId FROM MSTX_EVENTS")
        times = "startNs IS NOT NULL AND endNs IS NOT NULL"
        rows = db.execute(f"SELECT startNs, endNs, globalTid, message, domainId FROM MSTX_EVENTS WHERE {times}")  # noqa: S608
        for begin, end, thread_id, message_id, domain in rows:
            if message_id in texts:
                module = texts.get(domain) == "Module"
                self.add_range(texts[message_id], begin, end, self.thread(0, thread_id), module=module)

    def _add_calls(self, db: sqlite3.Connection) -> None:
        """Add the calls of CANN of 20 µs or more, with the thread of the framework, UNKNOWN if it has no operator."""
        texts = database.texts(db, _LONG.format("name"))
        for begin, end, thread, name in db.execute(_LONG.format("startNs, endNs, globalTid, name")):
            self.add_call(texts.get(name, "call"), begin, end, self.threads.get((0, thread), UNKNOWN))

    def _calls(self, db: sqlite3.Connection, query: str) -> HostCalls:
        """Return the calls on the host that the SQL ``query`` selects, by connection id, begin in ns, and thread.

        ``{}`` in the query is replaced by a query for the connection ids of all tasks and collectives.
        """
        tables = {"TASK", "COMMUNICATION_OP"} & self.tables.keys()
        launching = " UNION ".join(f"SELECT connectionId FROM {table}" for table in tables)  # noqa: S608
        calls = HostCalls()
        for key, time, thread in db.execute(query.format(launching)):
            calls.add(key, time, self.thread(0, thread))
        return calls


def _column(db: sqlite3.Connection, query: str) -> list[Any]:
    return [value for (value,) in db.execute(query)]


def _vendor_steps(analysis: Path) -> dict[str, dict[str, int]] | None:
    """Return the vendor's times of each step in ``analysis.db``; None without any."""
    names = ascend.COLUMNS.values()
    query = f"SELECT step, {', '.join(name.removesuffix('_ns') for name in names)} FROM StepTraceTime"  # noqa: S608
    steps = {
        str(step): {name: round(value * 1000) for name, value in zip(names, values, strict=True) if value is not None}
        for step, *values in database.rows(analysis, query) or ()
    }
    return steps or None


def _transits(analysis: Path) -> ascend.Transits:
    """Return name of a collective, without ``@…`` → times (ns) and bytes of its executions, in order of their begin.

    ``analysis`` is the path of ``analysis.db``; {} if it cannot be read. Totals, and executions of which a time is
    missing, are left out.
    """
    query = "SELECT hccl_op_name, step, transit_time, wait_time, idle_time FROM CommAnalyzerTime WHERE type != 'total'"
    by_name: ascend.Transits = {}
    sent, pieces = _sent_bytes(analysis), _pieces(analysis)
    for name, step, *values in database.rows(analysis, f"{query} ORDER BY start_timestamp") or ():
        if all(isinstance(value, int | float) for value in values):
            transit, wait, idle = (round(value * 1_000_000) for value in values)
            link_pieces = tuple(pieces.get((name, step), ()))
            times = ascend.CollectiveTimes((transit, wait, idle), sent.get((name, step)), link_pieces)
            by_name.setdefault(str(name).partition("@")[0], []).append(times)
    return by_name


def _pieces(analysis: Path) -> dict[tuple[object, object], list[LinkPiece]]:
    """Return (collective, step) → what it moved over links within the node, by message size; empty without a table.

    Rows without a size, a count or a time are skipped.
    """
    links = " OR ".join(f"transport_type = '{link}'" for link in ascend.WITHIN)
    columns = "hccl_op_name, step, package_size, count, total_duration"
    query = f"SELECT {columns} FROM CommAnalyzerBandwidth WHERE {links}"  # noqa: S608
    pieces = defaultdict[tuple[object, object], list[LinkPiece]](list)
    for name, step, *values in database.rows(analysis, query) or ():
        with suppress(ValueError):
            pieces[name, step].append(ascend.piece(*values))
    return pieces


def _sent_bytes(analysis: Path) -> dict[tuple[object, object], int]:
    """Return (collective, step) → the bytes that it moved over links, summed over kinds of links.

    Rows for each message size repeat the sum, so the largest row counts. Empty without a table.
    """
    links = " OR ".join(f"transport_type = '{link}'" for link in ascend.LINKS)
    query = f"SELECT hccl_op_name, step, MAX(transit_size) FROM CommAnalyzerBandwidth WHERE {links}"  # noqa: S608
    sent = Counter[tuple[object, object]]()
    for name, step, size in database.rows(analysis, f"{query} GROUP BY hccl_op_name, step, transport_type") or ():
        if size_bytes := ascend.bytes_of(size):
            sent[name, step] += size_bytes
    return sent
