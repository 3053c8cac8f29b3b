"""The one walk over folders of traces: what below a folder is a trace, of which tool, and which of it can be read."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from patcher.messages import Kind, Problem, Text
from patcher.progress import Progress, ignore
from patcher.traces import names, sidecar
from patcher.traces.folders import chrome_files, foreign, npu_folders
from patcher.traces.folders.npu_folders import STORE
from patcher.traces.folders.states import FOREIGN, WHOLE, RecordedTrace, size
from patcher.traces.formats import ascend_tables, database, is_ascend_text, nsys
from patcher.traces.formats.chrome import has_events
from patcher.traces.names import OUTPUT
from patcher.traces.rank_trace import several_problem
from patcher.traces.sidecar import SUFFIX, TraceOrigin

NPU, CANN, CHROME, DATABASE, NSYS, OTHER = "npu", "cann", "chrome", "database", "nsys", "other"
SNAPSHOT = "snapshot"


def walk(top: Path, failed: Callable[[OSError], None]) -> Iterator[tuple[Path, str]]:
    """Yield every trace below the folder ``top`` with its kind, a constant of this module such as `NPU` or `CHROME`.

    Folders that are traces are not entered, nor are rlpatch's own. A trace of torch.profiler next to its
    compressed copy is left out. ``failed`` is called with the OSError of each folder that cannot be listed.
    """
    for place, folders, files in os.walk(top, onerror=failed):
        kinds = {name: _folder_kind(Path(place, name)) for name in folders}
        folders[:] = [name for name in folders if not kinds[name] and name != STORE]
        packed = {name.removesuffix(".gz") for name in files if name.endswith(".gz")}  # of one that is just compressed
        kinds |= {
            name: _file_kind(Path(place, name)) for name in files if not (name in packed and names.is_torch(name))
        }
        yield from ((Path(place, name), kind) for name, kind in kinds.items() if kind)


def _folder_kind(folder: Path) -> str:
    if names.is_npu(folder) or (folder / OUTPUT).is_dir():
        return NPU
    return CANN if folder.name.startswith("PROF_") else ""


def _file_kind(file: Path) -> str:
    """Return the kind of a file that is a trace, such as `CHROME`; "" for any other file, and for step metadata."""
    if file.name.endswith(SUFFIX):
        return ""
    if names.is_snapshot(file.name):
        return SNAPSHOT
    if names.is_torch(file.name) or (file.name.endswith(names.JSON) and has_events(file)):
        return CHROME
    if foreign.by_name(file) or (file.name.endswith(names.JSON) and foreign.by_content(file)):
        return OTHER
    if file.name.endswith(".sqlite") and nsys.is_export(file):
        return NSYS
    return DATABASE if file.match(database.NAMED) else ""


# ---------------------------------------------------------------- everything that was recorded


def traces_below(folder: Path) -> list[Path]:
    """Return the traces of any tool below ``folder``, sorted, or only ``folder`` if it is a trace or no folder.

    For a file of step metadata, its trace counts. A parsed database inside another folder is left out. Raises OSError
    if ``folder`` is one that cannot be listed; folders below it that cannot be listed are skipped.
    """
    folder = sidecar.trace_of(folder)
    if not folder.is_dir() or _folder_kind(folder) == NPU:
        return [folder]

    def failed(error: OSError) -> None:
        """Raise the error if it is about the folder that the caller asked for."""
        if error.filename == str(folder):
            raise error

    return sorted(path for path, kind in walk(folder, failed) if kind != DATABASE)


def to_scan(path: Path) -> int:
    """Return how many bytes `inspect` will read of a trace, for a progress bar; 0 if it needs only names and tables."""
    if path.is_dir():
        return npu_folders.to_scan(path) if _folder_kind(path) == NPU else 0
    return 0 if _file_kind(path) in (NSYS, SNAPSHOT, OTHER) or foreign.by_content(path) else path.stat().st_size


def inspect(path: Path, progress: Progress = ignore) -> RecordedTrace:
    """Return the state and origin of a trace of any tool; step metadata beside it override what its name says.

    ``progress`` gets the number of bytes of each read. Raises OSError if there is no such file.
    """
    kind = _folder_kind(path) if path.is_dir() else _file_kind(path)
    if kind == NPU:
        trace = npu_folders.inspect(path, progress)
    elif path.is_dir():
        why = Text("the folder is a trace that CANN recorded without torch_npu")
        trace = RecordedTrace(path, "other", FOREIGN, size(path), why)
    elif kind == SNAPSHOT:
        trace = RecordedTrace(path, "memory", WHOLE, size(path))
    elif kind == NSYS:
        why = Text("nsys recorded the trace, and rlpatch cannot tell whether the trace is complete")
        trace = RecordedTrace(path, "nsys", FOREIGN, size(path), why)
    elif other := foreign.by_name(path) or foreign.by_content(path):
        trace = RecordedTrace(path, "other", FOREIGN, size(path), other.what)
    else:
        trace = chrome_files.inspect(path, progress)
        if trace.state == FOREIGN and is_ascend_text(path):
            why = Text("torch_npu or msprof exported this file, but the folder that it belongs to is missing")
            trace = replace(trace, form="npu", exports=("text",), why=why)
    metadata, doubts = sidecar.read_and_check(path, trace.form, trace.steps)
    if metadata is None:
        return replace(trace, doubts=doubts)
    origin = {field.name: getattr(metadata, field.name) for field in fields(TraceOrigin)}
    origin_fields: dict[str, Any] = {key: value for key, value in origin.items() if value not in (None, "")}
    steps = tuple(metadata.units) if trace.steps is None and metadata.units else trace.steps
    return replace(trace, ours=True, metadata=metadata, steps=steps, doubts=doubts, **origin_fields)


# ---------------------------------------------------------------- what a report reads


def traces_to_read(path: Path) -> list[Path]:
    """Return the files or folders that a report on ``path`` reads: ``path`` itself, or the traces below it.

    A folder of torch_npu is one trace: its db export, which is exact, else its text. For a missing file, its compressed
    copy (.gz) is returned, and for step metadata their trace. Raises Problem: TRACE for a format that rlpatch does not
    read, or a folder with several databases; NO_TRACE if there is nothing, or only raw data to parse. Raises OSError
    for a folder that cannot be listed.
    """
    if not path.exists() and (packed := path.with_name(f"{path.name}.gz")).is_file():  # compressed since
        return [packed]
    if not path.exists():
        raise missing(path)
    if path.name.endswith(f"{nsys.SUFFIX}{SUFFIX}"):  # the window lies in a report of nsys, whose name nobody knows
        return traces_to_read(path.parent)
    if not path.is_dir():
        trace = sidecar.trace_of(path)
        if trace == path and (other := foreign.by_name_or_content(path)):
            cause = Text("{file} is {format}, which rlpatch cannot read", file=path.name, format=other.what)
            raise Problem(Kind.TRACE, cause, str(path), other.hint)
        return [path] if trace == path else traces_to_read(trace)
    if export := _exported_file(path) or _msprof(path):
        return [export]
    trace_kind = NPU if names.is_npu(path) else CANN if _folder_kind(path) == CANN else ""
    everything = [(path, trace_kind)] if trace_kind else sorted(walk(path, _raised))
    exports = {place: _EXPORTS[kind](place) for place, kind in everything if kind in _EXPORTS}
    if there := list(filter(None, exports.values())):
        return there
    raise _nothing(path, next(iter(exports), None), [file for file, kind in everything if kind == OTHER])


def _nothing(path: Path, unparsed: Path | None, foreign_files: Sequence[Path]) -> Problem:
    """Build the Problem (NO_TRACE) on a folder without anything to read, with a hint on what to do instead.

    ``unparsed`` is the first trace in it, if any, which must be parsed or exported; ``foreign_files`` are files of
    other tools.
    """
    hint = f"rlpatch analyse {shlex.quote(str(path))}"
    if unparsed is None and not (_folder_kind(path) or npu_folders.has_raw(path)):
        if other := next(filter(None, map(foreign.by_name, foreign_files)), None):
            folder = path.name or path
            cause = Text("{folder} contains {format}, which rlpatch cannot read", folder=folder, format=other.what)
            return Problem(Kind.NO_TRACE, cause, str(path), other.hint)
        return empty(path)
    trace = unparsed or path
    cause = Text("the raw data of torch_npu in {folder} has not been parsed", trace.name)
    if (trace / OUTPUT).is_dir():
        cause = Text("{folder} has tables of torch_npu, but neither trace_view.json nor a database", trace.name)
        if not npu_folders.has_raw(trace):
            hint = Text(
                "the raw data was deleted, so the trace cannot be parsed again: if you have trace_view.json, the"
                " database or {step_table} elsewhere, copy one of them into this folder",
                ascend_tables.STEPS,
            )
    elif _folder_kind(trace) == CANN:
        cause = Text("msprof has not exported the data in {folder} yet", trace.name)
        hint = f"msprof --export=on --output={shlex.quote(str(trace))}"
    return Problem(Kind.NO_TRACE, cause, str(trace), hint)


NOT_RESTARTED = Text(
    "an engine that was already running when the patch was applied records nothing until it is restarted"
)


_WHERE = Text("to find the folder of the traces, look into the log of the run, or run `rlpatch status`")


def empty(folder: Path) -> Problem:
    """Return the problem that a folder holds no trace of any tool."""
    cause = Text("no traces found in {folder}", folder.name or folder)
    return Problem(Kind.NO_TRACE, cause, str(folder), _WHERE, notes=(NOT_RESTARTED,))


def missing(path: Path) -> Problem:
    """Return the problem that there is nothing at ``path``."""
    return Problem(Kind.NO_TRACE, Text("{path} does not exist", path), hint=_WHERE, notes=(NOT_RESTARTED,))


def _raised(error: OSError) -> None:
    raise error


def _exported_file(folder: Path) -> Path | None:
    """Return the file to read in a rank's folder or its parsed output; None without one.

    The database comes before trace_view.json, and that before the table of steps. Raises Problem (TRACE) for several
    databases.
    """
    output = folder if folder.name == OUTPUT else folder / OUTPUT
    databases = database.parsed_into(output)
    if len(databases) > 1:
        raise several_problem(output.parent, "ranks", [file.name for file in databases])
    view = next((file for file in (*databases, output / "trace_view.json") if file.is_file()), None)
    return view or npu_folders.tables(output.parent)


def _msprof(folder: Path) -> Path | None:
    """Return the trace that msprof exported in a folder ``PROF_…``; None if there is none, or several parts."""
    files = sorted((folder / "mindstudio_profiler_output").glob("msprof_*.json"))
    return files[0] if len(files) == 1 else None


_EXPORTS: Mapping[str, Callable[[Path], Path | None]] = {
    NPU: _exported_file,
    CANN: _msprof,
    CHROME: Path,
    DATABASE: Path,
    NSYS: Path,
}
"""Kind of what a report may read → the file in it that it reads."""
