"""CANN's measurements of each kernel: ``kernel_details.csv`` of torch_npu, or ``op_summary_*.csv`` of msprof.

A table is walked once, row by row, and only sums of alike kernels are kept.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from patcher.traces.formats.chrome import nanoseconds
from patcher.traces.formats.csv_tables import cells
from patcher.traces.measured import KernelUse, bound_of

DETAILS = "kernel_details.csv"
"""Name of the table of all kernels."""

RATIO = re.compile(r"((?:ai[cv]_)?(?:mac|cube|vec|scalar|mte[123]|fixpipe))_ratio")
"""A column, or a metric of a database, that says for which share of its cycles a pipe worked."""

MOST = 20_000
"""Largest number of kinds of alike kernels: with more shapes than these, the rest of a type is one."""

COLLECTIVE = "hcom_"
"""Prefix of the names of collectives, which stand in tables of kernels, too."""

_COMMUNICATING = ("HCCL", "COMMUNICATION")
"""Names in releases of CANN of the core that a collective runs on."""

_LONGEST = 1000
"""Number of characters of a cell that are kept: an optimizer's kernel has the shape of each parameter."""

_ALIKE = (
    ("Type", "OP Type"), ("Accelerator Core", "Task Type"), ("Input Shapes",), ("Input Data Types",),
    ("OP State", "OP_State"), ("Block Num", "Block Dim"),
)  # fmt: skip
_NAME, _STEP, _TOOK = ("Name", "Op Name"), ("Step Id",), ("Duration(us)", "Task Duration(us)")
"""Names of the columns at torch_npu and at msprof; the first are those that alike kernels have in common."""

_CUBE = "cube_utilization(%)"


class Alike(NamedTuple):
    """The common values of alike kernels, as CANN writes them."""

    name: str
    core: str
    shapes: str = ""
    types: str = ""
    state: str = ""
    blocks: int | None = None


class KernelSums(NamedTuple):
    """Sums over the kernels of a type: calls, ns in all, and ns of the longest one."""

    calls: int = 0
    ns: int = 0
    longest_ns: int = 0

    def plus(self, calls: int, ns: int, longest_ns: int) -> KernelSums:
        """Return the sums with those of more kernels."""
        return KernelSums(self.calls + calls, self.ns + ns, max(self.longest_ns, longest_ns))


class _Columns(NamedTuple):
    """Places of the columns in a table; -1 for a missing column, which ``measures`` lacks."""

    alike: tuple[int, ...]
    name: int
    step: int
    took: int
    measures: Mapping[str, int]


class KernelTable:
    """Kernels of a folder, read from its tables; empty without a table.

    ``types`` maps the name of a kernel to its type, since aclnn names kernels after the calling function: MatMulV2,
    say. ``steps`` counts the rows of each step. ``kernels`` has the sums of each type that is no collective.
    """

    def __init__(self, output: Path) -> None:
        self.types: dict[str, str] = {}
        self.steps = Counter[str]()
        self.kernels: dict[str, KernelSums] = {}
        self._measures: tuple[str, ...] = ()
        self._alike: dict[Alike, dict[str, list[float]]] = {}  # by step: calls, nanoseconds, and sums of the measures
        details = output / DETAILS
        for file in [details] if details.is_file() else sorted(output.glob("op_summary_*.csv")):
            self._add_table(file)

    def uses(self, steps: Collection[int] | None) -> tuple[KernelUse, ...]:
        """Return the measures of kernels by shape, longest first, summed over the given steps; None takes all."""
        steps_of_rows = None if steps is None else {"", *map(str, steps)}  # without steps the column is empty
        uses = []
        for alike, by_step in self._alike.items():
            rows = [sums for step, sums in by_step.items() if steps_of_rows is None or step in steps_of_rows]
            if rows:
                calls, ns, *measures = map(sum, zip(*rows, strict=True))
                means = {measure: total / calls for measure, total in zip(self._measures, measures, strict=True)}
                uses.append(kernel_use(alike, int(calls), int(ns), means))
        return in_order(uses)

    def _add_table(self, file: Path) -> None:
        """Add the rows of a table: count those of each step, note each kernel's type, and sum up its measures.

        Measures are summed up only if the table has times, and the same measures as the tables before; those of rows
        that are shorter than the header are left out. A table without a column of types is ignored.
        """
        rows = cells(file)
        heads = next(rows, [])
        columns = _column_places(heads)
        if columns.alike[0] < 0:
            return
        measured = columns.took >= 0 and (not self._alike or self._measures == (*columns.measures,))
        if measured:
            self._measures = (*columns.measures,)
        for row in rows:
            kernel, step, name = (_cell(row, place) for place in (columns.name, columns.step, columns.alike[0]))
            self.steps[step] += 1
            if kernel and name:
                self.types[kernel] = name
            if measured and len(row) >= len(heads):
                self._add_measures(row, columns, kernel, step)

    def _add_measures(self, row: Sequence[str], columns: _Columns, kernel: str, step: str) -> None:
        """Add one row to the sums of its type, and to those of its shapes in its step; leave out collectives.

        ``kernel`` is the kernel's name, ``step`` its step id. Beyond 20,000 different shapes, rows with new shapes are
        told apart only by type and core.
        """
        ns = nanoseconds_in(row[columns.took])
        name, core, shapes, types, state, blocks = (_cell(row, place)[:_LONGEST] for place in columns.alike)
        if not kernel.startswith(COLLECTIVE):
            sums = self.kernels.get(name or kernel, KernelSums())
            self.kernels[name or kernel] = sums.plus(1, ns, ns)
        if core in _COMMUNICATING or name.startswith(COLLECTIVE):
            return
        alike = Alike(name, core, shapes, types, state, int(blocks) if blocks.isdecimal() else None)
        if alike not in self._alike and len(self._alike) >= MOST:
            alike = Alike(name, core)
        by_step = self._alike.setdefault(alike, {})
        values = (1, ns, *(_number(row[place]) for place in columns.measures.values()))
        before = by_step.get(step)
        by_step[step] = list(values if before is None else map(operator.add, before, values))


def _column_places(heads: Sequence[str]) -> _Columns:
    """Return the index of each column that rlpatch reads in a table with these ``heads``; -1 for a missing column.

    The field ``measures`` maps the measures that the table has to their columns.
    """
    places = {head: place for place, head in enumerate(heads)}
    *alike, name, step, took = (
        next((places[head] for head in names if head in places), -1) for names in (*_ALIKE, _NAME, _STEP, _TOOK)
    )
    measures = {match[1]: place for head, place in places.items() if (match := RATIO.fullmatch(head))}
    if _CUBE in places:
        measures[_CUBE] = places[_CUBE]
    return _Columns(tuple(alike), name, step, took, measures)


def _cell(row: Sequence[str], place: int) -> str:
    return row[place] if 0 <= place < len(row) else ""


def _number(text: str) -> float:
    """Return the number in a cell; 0 for one such as N/A, where nothing was recorded."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def nanoseconds_in(microseconds: str | None) -> int:
    """Convert a cell in microseconds to whole nanoseconds; 0 for a cell without a number."""
    try:
        return nanoseconds((microseconds or "0").strip())
    except ValueError:
        return 0


def kernel_use(alike: Alike, calls: int, ns: int, means: Mapping[str, float]) -> KernelUse:
    """Build the `KernelUse` of kernels of one type and shape (``alike``), with what bounds them.

    ``calls`` and ``ns`` are their number and total time, ``means`` maps a measure, such as a pipe's ratio, to its mean
    over the calls. A ratio of 0 (a pipe that never worked) or from 100 on (no ratio) is left out. So is the cube's
    utilization, in percent, if the cube has no ratio.
    """
    ratios = {pipe: round(mean, 4) for pipe, mean in sorted(means.items()) if 0 < mean < 100 and pipe != _CUBE}
    cube = round(means.get(_CUBE, 0) / 100, 4) if "aic_mac" in ratios else 0
    shapes, types = (text.strip('"').replace("N/A", "") for text in (alike.shapes, alike.types))
    state = alike.state.lower() if alike.state.lower() in ("dynamic", "static") else ""
    return KernelUse(
        alike.name, alike.core, shapes, types, alike.blocks, calls, ns, ratios, cube or None, bound_of(ratios), state
    )


def in_order(uses: Iterable[KernelUse]) -> tuple[KernelUse, ...]:
    """Return measures of kernels, longest first."""
    return tuple(sorted(uses, key=lambda use: (-use.ns, use.name, use.shapes)))
