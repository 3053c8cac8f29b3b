"""Whether a trace has what the programs read that people look at it with, and what to open there.

What MindStudio Insight and msprof-analyze read is known from the folders that torch_npu writes for them
(``torch_npu/profiler/analysis/prof_view``) and from ``msprof_analyze/cluster_analyse`` and ``prof_common/constant.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from patcher.traces.database import NAMED
from patcher.traces.folders import common
from patcher.traces.names import OUTPUT
from patcher.traces.states import Trace

INSIGHT, ANALYZE, PERFETTO = "MindStudio Insight", "msprof-analyze", "Perfetto"
PERFETTO_BYTES = 2_000_000_000
"""Perfetto's page cannot hold more than the memory that a browser gives WebAssembly."""


class Part(NamedTuple):
    """A file that a program reads: ``shows`` is what is missing there without it.

    ``unless`` says when it is no fault that there is none; a part without it has to be there.
    """

    name: str
    shows: str
    unless: str = ""


TEXT = (
    Part("trace_view.json", "the timeline"),
    Part("kernel_details.csv", "the operators of the device", "nothing ran on a device"),
    Part("step_trace_time.csv", "the summary", "there is no ProfilerStep, or nothing ran on a device"),
    Part("communication.json", "communication", "no collective was recorded"),
    Part("communication_matrix.json", "the links between ranks", "no collective was recorded"),
)
DATABASE = (
    Part(NAMED, "everything"),
    Part("analysis.db", "communication", "no collective was recorded"),
)


class Look(NamedTuple):
    """What was found of one part in one trace."""

    trace: Path
    part: Part
    there: bool


class Opens(NamedTuple):
    """What to open, in which program; ``lacks`` are the reasons why that shows less than it could, or fails."""

    program: str
    where: Path
    how: str
    looks: tuple[Look, ...] = ()
    lacks: tuple[str, ...] = ()


def opens(traces: Sequence[Trace]) -> Iterator[Opens]:
    """For the traces of one folder: the one thing to open for those of NPUs, and each file of torch.profiler."""
    npu = [trace for trace in traces if trace.form == "npu" and trace.exports]
    if npu:
        looks = tuple(look for trace in npu for look in _looks(trace))
        where = common(trace.path for trace in npu)
        yield Opens(INSIGHT, where, "Import Data, and choose this folder", looks, tuple(_lacking(looks)))
        yield Opens(ANALYZE, where, f"{ANALYZE} cluster -d DIR", (), tuple(_ranked(npu)))
    for trace in traces:
        if trace.form == "torch" and trace.size:
            yield Opens(PERFETTO, trace.path, "ui.perfetto.dev, Open trace file", (), tuple(_whole(trace)))


def _looks(trace: Trace) -> Iterator[Look]:
    output = trace.path / OUTPUT
    for export, parts in (("text", TEXT), ("db", DATABASE)):
        if export in trace.exports:
            for part in parts:
                yield Look(trace.path, part, any(file.stat().st_size for file in output.glob(part.name)))


def _lacking(looks: Sequence[Look]) -> Iterator[str]:
    for part in (*TEXT, *DATABASE):
        of = [look for look in looks if look.part == part]
        missing = sum(not look.there for look in of)
        if not missing:
            continue
        where = f" in {missing} of {len(of)} traces" if len(of) > 1 else ""
        yield f"no {part.name}{where}, for {part.shows}{f': right if {part.unless}' if part.unless else ''}"


def _ranked(traces: Sequence[Trace]) -> Iterator[str]:
    """msprof-analyze takes a rank's number from the name of its profiler_info, and a rank only once."""
    numbers = []
    for trace in traces:
        names = (
            re.fullmatch(r"profiler_info_(\d+)\.json", file.name) for file in trace.path.glob("profiler_info*.json")
        )
        found = [int(name[1]) for name in names if name]
        numbers += found
        if not found:
            yield f"{trace.path.name} has no profiler_info_RANK.json: without torch.distributed torch_npu knows no rank"
    if len(set(numbers)) < len(numbers):
        yield "the same rank is there more than once: several windows would be mixed, so name one of them"


def _whole(trace: Trace) -> Iterator[str]:
    if trace.state not in ("whole", "of another tool"):
        yield f"it is {trace.state}: {trace.why}"
    if trace.size > PERFETTO_BYTES and trace.path.suffix != ".gz":
        yield "it is larger than a browser can hold: trace_processor --httpd FILE opens it there"
