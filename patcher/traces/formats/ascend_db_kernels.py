"""CANN's measurements of each kernel, in a database: ``COMPUTE_TASK_INFO`` and ``TASK_PMU_INFO``.

Tasks with the same type, shapes and blocks are alike. Only the number of their kind is kept of each, and of a kind the
first few tasks: a table of 28 rows for each task, without a key, is walked for the ratios of these alone.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from patcher.traces.formats import database
from patcher.traces.formats.ascend_kernels import MOST, RATIO, Alike, in_order, kernel_use
from patcher.traces.measured import KernelUse
from patcher.traces.trace_columns import UNKNOWN, Tasks

if TYPE_CHECKING:
    import sqlite3

_PMU = "TASK_PMU_INFO"
_COLUMNS = (("opType",), ("taskType",), ("inputShapes",), ("inputDataTypes",), ("opState",), ("blockNum", "blockDim"))
"""Columns that alike tasks have in common, by their names in new and old releases; all but the last are text ids."""

_SAMPLES, _RATED = 8, 2000
"""Tasks of a kind of which ratios are read, and kinds: those that take longest."""

Key = tuple[Any, ...]


class AlikeTasks:
    """The kind of each task, as given by the values of ``_COLUMNS``; UNKNOWN for a task that does not compute."""

    def __init__(self) -> None:
        self.kinds: dict[Key, int] = {}
        self.samples: list[list[int]] = []
        self.kind_of = array("i")
        self.columns = ", ".join("NULL" for _ in _COLUMNS)

    def select(self, columns: Collection[str]) -> None:
        """Set ``self.columns``, the list of SQL expressions to query; a column that is not in ``columns`` is NULL."""
        expressions = (next((f"i.{name}" for name in names if name in columns), "NULL") for names in _COLUMNS)
        self.columns = ", ".join(expressions)

    def add(self, task: int | None, key: Key) -> None:
        """Note the kind of the next task; tasks whose columns have equal values (``key``) are of one kind.

        ``task`` is its id, None for a task that does not compute, whose kind is UNKNOWN. Beyond 20,000 kinds, only type
        and core tell tasks apart. The ids of the first eight tasks of a kind are kept as samples.
        """
        if task is None:
            self.kind_of.append(UNKNOWN)
            return
        if key not in self.kinds and len(self.kinds) >= MOST:
            key = (*key[:2], *(None for _ in key[2:]))
        kind = self.kinds.setdefault(key, len(self.kinds))
        if kind == len(self.samples):
            self.samples.append([])
        if len(self.samples[kind]) < _SAMPLES:
            self.samples[kind].append(task)
        self.kind_of.append(kind)

    def uses(
        self, db: sqlite3.Connection, tasks: Tasks, segments: Sequence[int], units: Mapping[int, int]
    ) -> tuple[KernelUse, ...]:
        """Return the measures of kernels as `RankTrace.kernel_uses` does, the longest first.

        Ratios are means of the first eight kernels of a type and shape, of only the 2000 that take longest.
        """
        calls, ns = Counter[int](), Counter[int]()
        for kind, segment, begin, end in zip(self.kind_of, segments, tasks.begin, tasks.end, strict=False):
            if kind != UNKNOWN and segment in units:
                calls[kind] += 1
                ns[kind] += end - begin
        launched = {kind: key for key, kind in self.kinds.items() if calls[kind]}
        texts = database.texts(db, _listed({number for key in launched.values() for number in key[:-1]}))
        means = self._means(db, [kind for kind, _ in ns.most_common(_RATED)])
        uses = []
        for kind, (*numbers, blocks) in launched.items():
            name, core, shapes, types, state = (texts.get(number, "") for number in numbers)
            alike = Alike(name, core, shapes, types, state, blocks if isinstance(blocks, int) else None)
            uses.append(kernel_use(alike, calls[kind], ns[kind], means[kind]))
        return in_order(uses)

    def _means(self, db: sqlite3.Connection, kinds: Sequence[int]) -> Mapping[int, Mapping[str, float]]:
        """Return kind → pipe, such as ``aic_mac`` → mean ratio, 0 to 1, of the sampled tasks; empty without ratios."""
        means: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (_PMU,)).fetchone():
            return means
        texts = db.execute("SELECT id, value FROM STRING_IDS WHERE value GLOB '*_ratio'")
        pipes = {number: match[1] for number, text in texts if (match := RATIO.fullmatch(text))}
        kind_of = {task: kind for kind in kinds for task in self.samples[kind]}
        query = (
            f"SELECT globalTaskId, name, value FROM {_PMU}"  # noqa: S608
            f" WHERE value > 0 AND typeof(value) != 'text' AND globalTaskId IN ({_listed(kind_of)})"
            f" AND name IN ({_listed(pipes)})"
        )
        for task, pipe, value in db.execute(query):
            kind = kind_of[task]
            means[kind][pipes[pipe]] += value / len(self.samples[kind])
        return means


def _listed(numbers: Collection[Any]) -> str:
    return ", ".join(str(number) for number in numbers if isinstance(number, int))
