"""Files of other tools that rlpatch does not read: what each is, and what reads it. `traces` and `report` ask here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from patcher.messages import Text
from patcher.store.filesystem.opened import reading
from patcher.traces.formats.chrome import first_bytes


class Foreign(NamedTuple):
    """A format of another tool in words, and a hint on what reads it."""

    what: str
    hint: str


_SNAPSHOT = Foreign(
    Text("a memory snapshot of torch"),
    Text(
        "`rlpatch report` reads memory snapshots, and `python -m torch.cuda._memory_viz trace_plot FILE -o"
        " F.html` draws a snapshot"
    ),
)
_ZIP = Foreign(Text("a zip archive"), Text("unpack the archive, then run the same command with the unpacked folder"))
_PERFETTO = Foreign(Text("a trace written by Perfetto"), Text("open the file in ui.perfetto.dev"))

_ARCHIVE = Foreign(Text("an archive"), Text("unpack the archive, then run the same command with the unpacked folder"))
_PACKED = Foreign(
    Text("a compressed database"), Text("unpack the file with gunzip, then run the same command with the unpacked file")
)

_BEGINS = {
    rb'\{\s*"rocprofiler-sdk(?:-json)?-tool"': Foreign(
        Text("a trace of rocprofv3"),
        Text("run rocprofv3 with --output-format pftrace, and open the result in ui.perfetto.dev"),
    ),
    rb'(?s)\{\s*"schema"\s*:\s*"[^"]{1,40}".*"nodes"\s*:\s*\[': Foreign(
        Text("an execution trace of torch (ExecutionTraceObserver)"),
        Text("read the file with the tools of Chakra or PARAM; `rlpatch report` needs a trace of torch.profiler"),
    ),
    rb'\[\s*\{"name": "[^"]{1,1000}", "ph": "X", [^{}]{1,200}"pid": "(?:CPU|CUDA) functions"': Foreign(
        Text("a list of events of torch.autograd.profiler"),
        Text("record with torch.profiler instead, and export the trace with its export_chrome_trace()"),
    ),
    rb"\[\s*\[\s*-?\d": Foreign(
        Text("a memory timeline of torch"),
        Text("to draw the timeline, call export_memory_timeline with a file name that ends in .html"),
    ),
    rb"(?i)\s*<(?:!doctype html|html)": Foreign(
        Text("an HTML page"),
        Text("open the page in a browser; `rlpatch report` needs the trace that the page was made from"),
    ),
    rb"(?s).{257}ustar": _ARCHIVE,
    rb"SQLite format 3\0": _PACKED,
}
"""Begin of a file, unpacked if it is gzip → what it is: of rocprofiler-sdk, torch, a browser, or tar."""

_ENDS = {
    ".ncu-rep": Foreign(Text("a trace of Nsight Compute"), Text("open the file with ncu-ui or `ncu --import FILE`")),
    ".pftrace": _PERFETTO, ".perfetto-trace": _PERFETTO,
    ".rpd": Foreign(Text("a trace of rocmProfileData"), Text("open the file with the tools of rocmProfileData")),
    ".xplane.pb": Foreign(Text("a trace written by XLA's profiler"), Text("open the file in TensorBoard")),
    "snapshot.pickle": _SNAPSHOT, "memory.pickle": _SNAPSHOT, ".zip": _ZIP,
    ".tar": _ARCHIVE, ".tar.gz": _ARCHIVE, ".tgz": _ARCHIVE, ".tar.xz": _ARCHIVE, ".tar.zst": _ARCHIVE,
    ".tar.bz2": _ARCHIVE, ".7z": _ARCHIVE,
}  # fmt: skip
"""End of the name → what it is, where the name alone says so."""


def by_name(file: Path) -> Foreign | None:
    """Return what the file of another tool is, and what reads it, by the end of its name; None for any other file."""
    if file.name.endswith((".nsys-rep", ".qdrep")):
        report, export = shlex.quote(str(file)), shlex.quote(str(file.with_suffix(".sqlite")))
        hint = Text(
            "run nsys export --type sqlite {report}, then rlpatch report {export}", report=report, export=export
        )
        return Foreign(Text("a report of Nsight Systems that has not been exported"), hint)
    return next((foreign for end, foreign in _ENDS.items() if file.name.endswith(end)), None)


def by_content(file: Path) -> Foreign | None:
    """Return what the file of another tool is, and what reads it, by the text at its begin; None for any other file.

    A gzip file is unpacked. A file that cannot be read counts as any other.
    """
    begin = first_bytes(file).lstrip(b" \r\n\t")
    return next((foreign for pattern, foreign in _BEGINS.items() if re.match(pattern, begin)), None)


def by_name_or_content(file: Path) -> Foreign | None:
    """Return what the file of another tool is, and what reads it, by its name or first bytes; None for any other file.

    Raises OSError if the file cannot be read.
    """
    if foreign := by_name(file):
        return foreign
    with reading(file) as stream:
        head = stream.read(16)
    if head.startswith(b"PK\3\4"):
        return _ZIP
    if head.startswith(b"SQLite format 3\0"):
        return None
    if re.match(rb"\x80[\2-\5]", head):
        return _SNAPSHOT
    return by_content(file)
