"""Whether a trace has the files that programs which show it read, and what to open there.

What MindStudio Insight and msprof-analyze read is known from the folders that torch_npu writes for them
(``torch_npu/profiler/analysis/prof_view``) and from ``msprof_analyze/cluster_analyse`` and ``prof_common/constant.py``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from patcher.messages import Text
from patcher.traces.folders import RecordedTrace, common
from patcher.traces.folders.states import FOREIGN, WHOLE
from patcher.traces.formats.database import NAMED
from patcher.traces.model import Payload
from patcher.traces.names import OUTPUT

INSIGHT, ANALYZE, PERFETTO = "MindStudio Insight", "msprof-analyze", "Perfetto"
PERFETTO_BYTES = 2_000_000_000
"""Perfetto's page cannot hold more than the memory that a browser gives WebAssembly."""


class ExpectedFile(NamedTuple):
    """A file that a program reads; ``shows`` is what the program cannot show without it.

    ``unless`` says when the file may be missing; "" if it always has to be there.
    """

    name: str
    shows: str
    unless: str = ""


EXPECTED = {
    "text": (
        ExpectedFile("trace_view.json", Text("the timeline")),
        ExpectedFile("kernel_details.csv", Text("the operators on the device"), Text("no kernel ran on a device")),
        ExpectedFile(
            "step_trace_time.csv",
            Text("the summary of each step's time"),
            Text("the trace has no ProfilerStep, or no kernel ran on a device"),
        ),
        ExpectedFile("communication.json", Text("communication"), Text("no collective was recorded")),
        ExpectedFile(
            "communication_matrix.json",
            Text("the communication links between ranks"),
            Text("no collective was recorded"),
        ),
    ),
    "db": (
        ExpectedFile(NAMED, Text("everything")),
        ExpectedFile("analysis.db", Text("communication"), Text("no collective was recorded")),
    ),
}
"""Export of torch_npu → the files that belong to it."""


@dataclass(frozen=True, slots=True)
class FileCheck:
    """Whether an expected file of one trace exists and is not empty."""

    trace: Path
    name: str
    there: bool
    shows: str


@dataclass(frozen=True, slots=True)
class Viewer(Payload):
    """A file to open, and the program for it; ``lacks`` has the reasons why the program shows less, or fails."""

    KEYS = ("program", "where", "how", "lacks", "files")

    program: str
    where: Path
    how: str
    lacks: tuple[str, ...] = ()
    files: tuple[FileCheck, ...] = ()


def viewers(traces: Sequence[RecordedTrace]) -> Iterator[Viewer]:
    """Yield the viewers of a folder's traces: Insight and msprof-analyze for all parsed NPU traces together."""
    npu = [trace for trace in traces if trace.form == "npu" and trace.exports]
    if npu:
        files = tuple(file for trace in npu for file in _expected_files(trace))
        where = common(trace.path for trace in npu)
        yield Viewer(INSIGHT, where, Text("choose Import Data, then this folder"), tuple(_missing_files(files)), files)
        yield _analyze_viewer(npu, where)
    for trace in traces:
        if trace.form == "torch" and trace.size:
            yield Viewer(
                PERFETTO,
                trace.path,
                Text("go to ui.perfetto.dev and choose Open trace file"),
                tuple(_perfetto_limits(trace)),
            )


def _expected_files(trace: RecordedTrace) -> Iterator[FileCheck]:
    """Yield each file that the trace's exports should have, and whether it exists and is not empty."""
    for export, files in EXPECTED.items():
        for name, shows, _ in files if export in trace.exports else ():
            there = any(file.stat().st_size for file in (trace.path / OUTPUT).glob(name))
            yield FileCheck(trace.path, name, there, shows)


def _missing_files(files: Sequence[FileCheck]) -> Iterator[str]:
    """Yield a sentence for each file that traces lack: what it would show, and when its absence is normal."""
    for name, shows, unless in (file for export in EXPECTED.values() for file in export):
        checks = [file for file in files if file.name == name]
        missing = sum(not file.there for file in checks)
        if missing:
            lack = Text("{file} is missing; it is needed for {view}", file=name, view=shows)
            if len(checks) > 1:
                lack = Text(
                    "{file} is missing in {missing} of {count} traces; it is needed for {view}",
                    file=name,
                    missing=missing,
                    count=len(checks),
                    view=shows,
                )
            yield Text("{problem}. This is normal if {condition}", problem=lack, condition=unless) if unless else lack


def _analyze_viewer(traces: Sequence[RecordedTrace], where: Path) -> Viewer:
    """Return the viewer msprof-analyze with its command for the folder ``where`` of some NPU traces."""
    ranks: list[str] = []
    lacks = []
    for trace in traces:
        names = (
            re.fullmatch(r"profiler_info_(\d+)\.json", file.name) for file in trace.path.glob("profiler_info*.json")
        )
        trace_ranks = [name[1] for name in names if name]
        ranks += trace_ranks
        if not trace_ranks:
            unknown = Text("torch_npu knows the rank only if torch.distributed is in use")
            lacks.append(
                Text("{folder} has no profiler_info_RANK.json: {reason}", folder=trace.path.name, reason=unknown)
            )
    if len(set(map(int, ranks))) < len(ranks):
        lacks.append(
            Text(
                "several traces have the same rank, so msprof-analyze would mix them: choose the folder of "
                "a single recording window"
            )
        )
    command = shlex.join([ANALYZE, "cluster", "-m", "all", "-d", str(where)])
    return Viewer(ANALYZE, where, command, tuple(lacks))


def _perfetto_limits(trace: RecordedTrace) -> Iterator[str]:
    """Yield sentences on what keeps Perfetto from showing a trace: it is not whole, or over 2 GB without gzip."""
    if trace.state not in (WHOLE, FOREIGN):
        yield Text("the trace is {state}: {reason}", state=trace.state, reason=trace.why)
    if trace.size > PERFETTO_BYTES and trace.path.suffix != ".gz":
        yield Text("the file is too large for a browser: run `trace_processor --httpd FILE`, then open Perfetto")
