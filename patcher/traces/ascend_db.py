"""What torch_npu.profiler exports as db: SQLite, with names as numbers into ``STRING_IDS``.

The tables are those of ``ascend_pytorch_profiler_<rank>.db`` (schema 1). ``PYTORCH_API`` holds its times as text. A
task is linked to its operator by ``CONNECTION_IDS``, and to the call of CANN that launched it by its ``connectionId``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patcher.errors import Kind, Problem
from patcher.traces import ascend, database
from patcher.traces.model import COMMUNICATION, COMPUTE
from patcher.traces.names import OUTPUT
from patcher.traces.timeline import NN_MODULE, UNKNOWN, Row, Timeline, in_order, module_class

if TYPE_CHECKING:
    import sqlite3

_NEEDED = {
    "TASK": {"startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "taskType", "streamId"},
    "STRING_IDS": {"id", "value"},
}
_COMPUTING = "LEFT JOIN COMPUTE_TASK_INFO i ON i.globalTaskId = t.globalTaskId"
_PIECE = 1 << 10
"""Operators that are walked at once."""

_OPERATOR, _TRACE = 50001, 50003  # of ENUM_API_TYPE: op, and functions of Python
_HOST = f"""FROM PYTORCH_API WHERE startNs IS NOT NULL AND endNs IS NOT NULL AND (type = {_OPERATOR}
 OR (type = {_TRACE} AND name IN (SELECT id FROM STRING_IDS WHERE value GLOB '{NN_MODULE}*')))"""  # noqa: S608


def read(file: Path) -> Timeline:
    """The timeline of the rank in the database ``file``; Problem (TRACE) if it is none, or of another schema."""
    found = Stored(file)
    with found.opened() as db:
        _read(db, file, found)
    return found


class Stored(Timeline):
    """A timeline whose operators stay in their database: they are most of it, and are walked without being held.

    ``span`` is from when to when there are some, ``ordered`` whether those of each thread lie in the order of their
    begin, as torch_npu writes them; else SQLite sorts them, in files of its own.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(str(file), "ascend-db")
        self.file = file
        self.numbers: dict[int, int] = {}
        self.span: tuple[int, int] | None = None
        self.ordered = True

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """The database, in which what cannot be read is a Problem (TRACE)."""
        import sqlite3

        try:
            with database.opened(self.file) as db:
                db.text_factory = lambda data: data.decode("utf-8", "replace")
                yield db
        except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
            what = error if isinstance(error, sqlite3.Error) else "a column holds what is not of its type"
            hint = "parse the folder again with `rlpatch analyse`, if PROF_… is still there"
            raise Problem(Kind.TRACE, f"{self.file.name} cannot be read: {what}", str(self.file), hint) from None

    def add_operators(self, db: sqlite3.Connection) -> None:
        """Take their names, threads and times, and of marks and modules all."""
        texts, latest = _texts(db, "SELECT name FROM PYTORCH_API"), dict[int, tuple[int, int]]()
        columns = "CAST(startNs AS INTEGER), CAST(endNs AS INTEGER), globalTid, name, fwdThreadId, type"
        for begin, end, thread_id, name, forward, kind in db.execute(f"SELECT {columns} {_HOST}"):
            thread, text = self.thread(0, thread_id), texts.get(name)
            if text is None:
                continue
            if kind == _TRACE:
                self.modules[thread].add(begin, end, self.names(module_class(text)))
                continue
            if self.mark(text, begin, end, thread):
                continue
            if name not in self.numbers:
                self.numbers[name] = self.names(text)
            if forward:
                self.backward.add(thread)
            before = latest.get(thread_id, (begin, end))
            self.ordered &= before[0] < begin or (before[0] == begin and before[1] >= end)
            latest[thread_id] = begin, end
            low, high = self.span or (begin, end)
            self.span = (min(low, begin), max(high, end))

    def operators_in_order(self) -> Iterator[tuple[int, Iterable[Row]]]:
        """The operators of each thread in the order of their begin, read a second time."""
        if self.span is None:
            return
        order = "" if self.ordered else "ORDER BY 3, 1, 2 DESC"
        columns = "CAST(startNs AS INTEGER), CAST(endNs AS INTEGER), globalTid, name"
        numbers = self.numbers
        with self.opened() as db:
            found = db.execute(f"SELECT {columns} {_HOST} AND type = {_OPERATOR} {order}")
            while piece := found.fetchmany(_PIECE):
                threads: dict[int, list[Row]] = {}
                for begin, end, thread, name in piece:
                    if name in numbers:
                        threads.setdefault(thread, []).append((begin, end, numbers[name]))
                for thread, rows in threads.items():
                    yield self.thread(0, thread), rows

    def spans(self) -> Iterator[tuple[int, int]]:
        """From when to when there are operators, and tasks."""
        yield from super().spans()
        if self.span is not None:
            yield self.span


def _texts(db: sqlite3.Connection, wanted: str) -> dict[int, str]:
    """The texts of the numbers that the query ``wanted`` gives, by number.

    All in one query: torch_npu keeps them without a key, so each that is asked for alone is a walk through all.
    """
    query = f"SELECT n.id, n.value FROM STRING_IDS n WHERE n.id IN ({wanted}) AND n.value IS NOT NULL"  # noqa: S608
    found: dict[int, str] = {}
    for number, text in db.execute(query):
        found.setdefault(number, str(text))
    return found


def _read(db: sqlite3.Connection, file: Path, found: Stored) -> None:
    tables = _tables(db)
    for table, columns in _NEEDED.items():
        if table == "TASK" and table not in tables and "PYTORCH_API" in tables:
            continue  # nothing ran on a device: then torch_npu leaves the table out
        missing = columns - tables.get(table, set())
        if missing:
            what = f"the table {table}" if table not in tables else f"{', '.join(sorted(missing))} in the table {table}"
            cause = f"{file.name} is a database of another schema: it lacks {what}"
            hint = "a report reads ascend_pytorch_profiler_<rank>.db of torch_npu.profiler"
            raise Problem(Kind.TRACE, cause, str(file), hint)
    folder = file.parent.parent if file.parent.name == OUTPUT else file.parent
    if "RANK_DEVICE_MAP" in tables:
        ranks = [rank for (rank,) in db.execute("SELECT DISTINCT rankId FROM RANK_DEVICE_MAP")]
        if len(ranks) > 1:
            raise Problem(
                Kind.TRACE,
                f"{file.name} holds several ranks: {ranks}",
                str(file),
                "parse each rank into a folder of its own",
            )
        found.rank = next((rank for rank in ranks if isinstance(rank, int) and rank >= 0), None)
    found.rank = ascend.info(folder)[0] if found.rank is None else found.rank
    names = [row[0] for row in db.execute("SELECT name FROM NPU_INFO LIMIT 1")] if "NPU_INFO" in tables else []
    found.device = str(names[0]) if names else "Ascend NPU"
    found.vendor = _vendor(file.parent / "analysis.db") or ascend.vendor_steps(file.parent)
    connections = _add_tasks(db, tables, found, file)
    _add_host(db, tables, found)
    _link(db, tables, found, connections)


def _tables(db: sqlite3.Connection) -> dict[str, set[str]]:
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
    return {
        name: {row[1] for row in db.execute('PRAGMA table_info("{}")'.format(name.replace('"', '""')))}
        for name in names
    }


def _add_tasks(db: sqlite3.Connection, tables: dict[str, set[str]], found: Timeline, file: Path) -> array[int]:
    """Fill in what ran on the device; the ``connectionId`` of each task is given."""
    connections = array("q")

    def add(begin: int, end: int, kind: str, name: str, stream: str, connection: int | None) -> None:
        found.tasks.add(begin, end, kind, found.names(name), found.names(stream))
        connections.append(UNKNOWN if connection is None else connection)

    if "TASK" not in tables:
        return connections
    devices = {device for (device,) in db.execute("SELECT DISTINCT deviceId FROM TASK WHERE taskType IS NOT NULL")}
    if len(devices) > 1:
        several = ", ".join(sorted(map(str, devices)))
        cause = f"{file.name} holds the tasks of several devices: {several}"
        raise Problem(Kind.TRACE, cause, str(file), "parse each rank into a folder of its own")
    computing = "COMPUTE_TASK_INFO" in tables and bool(db.execute("SELECT 1 FROM COMPUTE_TASK_INFO LIMIT 1").fetchall())
    columns, joins = ("NULL, NULL", "") if not computing else ("i.opType, i.globalTaskId", _COMPUTING)
    rows = db.execute(
        f"SELECT t.startNs, t.endNs, t.streamId, t.connectionId, t.taskType, {columns} FROM TASK t {joins}"  # noqa: S608
    )
    operators = " UNION SELECT opType FROM COMPUTE_TASK_INFO" if computing else ""
    texts = _texts(db, f"SELECT taskType FROM TASK{operators}")  # noqa: S608
    for begin, end, stream, connection, type_id, operator_id, computed in rows:
        task_type, operator = texts.get(type_id, ""), texts.get(operator_id)
        kind = COMPUTE if computed is not None else ascend.kind_of(task_type)
        if kind == COMPUTE and computed is None and computing:  # the vendor does not count it either
            continue
        if kind is not None:
            if computed is None and not ascend.is_known(task_type):
                found.unknown.add(task_type)
            add(begin, end, kind, operator or task_type, f"stream {stream}", connection)
    if "COMMUNICATION_OP" in tables:
        transits = _transits(file.parent / "analysis.db")
        rows = db.execute(
            "SELECT o.startNs, o.endNs, o.connectionId, n.value, g.value FROM COMMUNICATION_OP o"
            " LEFT JOIN STRING_IDS n ON n.id = o.opName LEFT JOIN STRING_IDS g ON g.id = o.groupName ORDER BY o.startNs"
        )
        for begin, end, connection, name, group in rows:
            operator, short = ascend.collective(str(name or "collective"))
            at = len(found.tasks)
            add(begin, end, COMMUNICATION, operator, f"group {short or group}", connection)
            found.groups[at] = str(group or short)
            known = transits.get(str(name), [])
            if known:
                found.transits[at] = known.pop(0)
    return connections


def _add_host(db: sqlite3.Connection, tables: dict[str, set[str]], found: Stored) -> None:
    """Fill in operators, modules and marks."""
    if "PYTORCH_API" in tables:
        found.add_operators(db)
    if "MSTX_EVENTS" in tables:
        rows = db.execute(
            "SELECT m.startNs, m.endNs, m.globalTid, n.value, d.value FROM MSTX_EVENTS m"
            " LEFT JOIN STRING_IDS n ON n.id = m.message LEFT JOIN STRING_IDS d ON d.id = m.domainId"
        )
        for begin, end, thread_id, name, domain in rows:
            if begin is None or end is None or name is None:
                continue
            thread = found.thread(0, thread_id)
            if not found.mark(name, begin, end, thread) and domain == "Module":
                found.modules[thread].add(begin, end, found.names(name))
    if "STEP_TIME" in tables and not any(mark.family == "ProfilerStep#" for _, mark in found.marks):
        for number, begin, end in db.execute("SELECT id, startNs, endNs FROM STEP_TIME"):
            found.mark(f"ProfilerStep#{number}", begin, end, found.thread(0, "steps"))


def _link(db: sqlite3.Connection, tables: dict[str, set[str]], found: Timeline, connections: array[int]) -> None:
    """Give each task the call of CANN that launched it, and the operator that asked for it."""
    tasks = found.tasks
    if "CANN_API" in tables:
        calls = db.execute("SELECT connectionId, startNs, globalTid FROM CANN_API WHERE connectionId IS NOT NULL")
        for task, time, thread in _earliest(connections, calls):
            tasks.launched[task] = tasks.asked[task] = time
            tasks.thread[task] = found.thread(0, thread)
    if {"CONNECTION_IDS", "PYTORCH_API"} <= tables.keys():
        calls = db.execute(
            "SELECT c.connectionId, CAST(p.startNs AS INTEGER), p.globalTid FROM PYTORCH_API p"
            " JOIN CONNECTION_IDS c ON c.id = p.connectionId WHERE p.type = ? AND p.startNs IS NOT NULL",
            (_OPERATOR,),
        )
        for task, time, thread in _earliest(connections, calls):
            tasks.asked[task], tasks.thread[task] = time, found.thread(0, thread)
            if tasks.launched[task] == UNKNOWN:
                tasks.launched[task] = time


def _earliest(wanted: array[int], calls: Iterable[tuple[int, int, object]]) -> Iterator[tuple[int, int, object]]:
    """The places of ``wanted`` with time and thread of the earliest of the calls (key, time, thread) of their key.

    There are more calls than tasks: none is held but the earliest.
    """
    order = in_order(array("i", range(len(wanted))), wanted)
    keys = array("q", map(wanted.__getitem__, order))
    times = array("q", [UNKNOWN]) * len(keys)
    known: dict[object, int] = {}  # whatever stands there for a thread
    threads = array("q", times)
    for key, time, thread in calls:
        place = bisect_left(keys, key)
        if place < len(keys) and keys[place] == key and (times[place] == UNKNOWN or time < times[place]):
            times[place], threads[place] = time, known.setdefault(thread, len(known))
    first, numbered = 0, list(known)
    for place, key in enumerate(keys):
        first = first if keys[first] == key else place
        if key != UNKNOWN and times[first] != UNKNOWN:
            yield order[place], times[first], numbered[threads[first]]


def _analysis(file: Path, query: str) -> list[tuple[Any, ...]]:
    """The rows of ``query`` in the vendor's own analysis; none where it is not there, or has not got them."""
    import sqlite3

    if not file.is_file():
        return []
    try:
        with database.opened(file) as db:
            return db.execute(query).fetchall()
    except sqlite3.Error:
        return []


def _vendor(file: Path) -> dict[str, dict[str, int]] | None:
    columns = ascend.vendor_columns()
    rows = _analysis(file, f"SELECT step, {', '.join(columns)} FROM StepTraceTime")  # noqa: S608
    steps = {
        str(step): {
            name: round(value * 1000) for name, value in zip(columns.values(), values, strict=True) if value is not None
        }
        for step, *values in rows
    }
    return steps or None


def _transits(file: Path) -> dict[str, list[tuple[int, int, int]]]:
    """Collective → its transit, waiting and idle time in nanoseconds, in the order of their begin."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    rows = _analysis(
        file,
        "SELECT hccl_op_name, transit_time, wait_time, idle_time FROM CommAnalyzerTime WHERE type != 'total'"
        " ORDER BY start_timestamp",
    )
    for name, *values in rows:
        if all(isinstance(value, int | float) for value in values):
            transit, wait, idle = (round(value * 1_000_000) for value in values)
            found.setdefault(str(name).partition("@")[0], []).append((transit, wait, idle))
    return found
