"""What CANN measured of each kernel: ``kernel_details.csv``, msprof's ``op_summary_*.csv``, and two tables of a db.

The table of all kernels is walked row by row, and only sums of alike kernels are kept.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from patcher.traces.formats import ascend
from patcher.traces.formats.chrome import nanoseconds
from patcher.traces.measured import KernelUse, bound_of
from patcher.traces.timeline import NUMBERED, UNCOUNTED, Timeline

RATIO = re.compile(r"((?:ai[cv]_)?(?:mac|cube|vec|scalar|mte[123]|fixpipe))_ratio")
"""A column, or a metric of a db, that says for which share of its cycles a pipe worked."""

MOST = 20_000
"""Kinds of alike kernels: with more shapes than these, the rest of a type is one."""

_LONGEST = 1000
"""Characters of a cell that are kept: an optimizer's kernel has the shape of each parameter."""

_ALIKE = (
    ("Type", "OP Type"), ("Accelerator Core", "Task Type"), ("Input Shapes",), ("Input Data Types",),
    ("OP State", "OP_State"), ("Block Num", "Block Dim"),
)  # fmt: skip
_STEP, _TOOK, _CUBE = ("Step Id",), ("Duration(us)", "Task Duration(us)"), "cube_utilization(%)"
"""How torch_npu, and msprof, name a column: first what alike kernels have in common."""


class TextTimeline(Timeline):
    """A timeline beside which the table of all kernels lies, in the folder of its file."""

    def __init__(self, file: Path, wanted: re.Pattern[str] | None = None) -> None:
        super().__init__(str(file), "ascend-text", wanted)
        self.output = file.parent

    def kernel_uses(self, _owner: Sequence[int], units: Mapping[int, int]) -> tuple[KernelUse, ...]:
        """The kernels of the units as the vendor counts them, of all where units are no steps of the profiler."""
        families = {mark.family for _, mark in self.marks} - {UNCOUNTED}
        return uses(self.output, units.values() if families == {NUMBERED} else None)


def uses(output: Path, steps: Collection[int] | None) -> tuple[KernelUse, ...]:
    """The alike kernels of some steps, of all for None: what takes longest first; nothing where no table is."""
    table = output / ascend.DETAILS
    files = [table] if table.is_file() else sorted(output.glob("op_summary_*.csv"))
    sums = _Sums(None if steps is None else {"", *map(str, steps)})  # without steps the column is empty
    for file in files:
        sums.add(file)
    return ordered(sums.found())


class _Sums:
    """Alike kernels by the cells that they have in common → calls and time, and the sums of their measures."""

    def __init__(self, steps: Collection[str] | None) -> None:
        self.steps = steps
        self.measures: tuple[str, ...] = ()
        self.alike: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}

    def add(self, file: Path) -> None:
        """The rows of a table; none where a column is missing, or it has others than the tables before."""
        rows = ascend.cells(file)
        heads = next(rows, [])
        places = _places(heads)
        if places is None or (self.alike and self.measures != (*places.measures,)):
            return
        self.measures = (*places.measures,)
        values = [*places.measures.values()]
        for row in rows:
            if len(row) < len(heads) or not self._wanted(row, places.step):
                continue
            own = self._own(tuple(row[at][:_LONGEST] if at >= 0 else "" for at in places.alike))
            if own is not None:
                own[0][0] += 1
                own[0][1] += _nanoseconds(row[places.took])
                own[1][:] = map(operator.add, own[1], _numbers(row, values))

    def _wanted(self, row: Sequence[str], step: int) -> bool:
        return self.steps is None or step < 0 or row[step] in self.steps

    def _own(self, key: tuple[str, ...]) -> tuple[list[int], list[float]] | None:
        """The sums of a kernel; None for a collective, which stands in this table, too."""
        own = self.alike.get(key)
        if own is None:
            name, core, *_ = key
            if core in ascend.COMMUNICATING or name.startswith("hcom_"):
                return None
            if len(self.alike) >= MOST:
                key = (name, core, "", "", "", "")
            own = self.alike.setdefault(key, ([0, 0], [0.0] * len(self.measures)))
        return own

    def found(self) -> Iterator[KernelUse]:
        for (name, core, shapes, types, state, blocks), ((calls, ns), sums) in self.alike.items():
            means = {measure: total / calls for measure, total in zip(self.measures, sums, strict=True)}
            blocks_used = int(blocks) if blocks.isdecimal() else None
            yield used(name, core, shapes, types, blocks_used, calls, ns, means, state)


class _Places(NamedTuple):
    """Where the columns of a table are: what alike kernels have in common (-1: not there), step, time, measures."""

    alike: tuple[int, ...]
    step: int
    took: int
    measures: Mapping[str, int]


def _places(heads: Sequence[str]) -> _Places | None:
    """The columns of a table; None for one without a name or a time."""
    places = {head: at for at, head in enumerate(heads)}
    *alike, step, took = (
        next((places[head] for head in names if head in places), -1) for names in (*_ALIKE, _STEP, _TOOK)
    )
    measures = {found[1]: at for head, at in places.items() if (found := RATIO.fullmatch(head))}
    measures |= {_CUBE: places[_CUBE]} if _CUBE in places else {}
    return _Places(tuple(alike), step, took, measures) if alike[0] >= 0 and took >= 0 else None


def _numbers(row: Sequence[str], places: Sequence[int]) -> list[float]:
    """What a row has in these places; 0 for N/A: nothing was recorded there."""
    try:
        return [float(row[at]) for at in places]
    except ValueError:
        return [_number(row[at]) for at in places]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _nanoseconds(text: str) -> int:
    try:
        return nanoseconds(text.strip())
    except ValueError:
        return 0


def used(
    name: str, core: str, shapes: str, types: str, blocks: int | None, calls: int, ns: int, means: Mapping[str, float],
    state: str,
) -> KernelUse:  # fmt: skip
    """Alike kernels with the means of what was measured; a pipe that never worked is left out."""
    ratios = {pipe: round(mean, 4) for pipe, mean in sorted(means.items()) if 0 < mean < 100 and pipe != _CUBE}
    cube = round(means.get(_CUBE, 0) / 100, 4) if "aic_mac" in ratios else 0
    shapes, types = (text.strip('"').replace("N/A", "") for text in (shapes, types))
    state = state.lower() if state.lower() in ("dynamic", "static") else ""
    return KernelUse(name, core, shapes, types, blocks, calls, ns, ratios, cube or None, bound_of(ratios), state)


def ordered(found: Iterable[KernelUse]) -> tuple[KernelUse, ...]:
    """Alike kernels, those that take longest first."""
    return tuple(sorted(found, key=lambda one: (-one.ns, one.name, one.shapes)))
