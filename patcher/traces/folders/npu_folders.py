"""A folder of torch_npu on disk: what was recorded, what it was parsed into, and who is at work there."""

from __future__ import annotations

import fcntl
from contextlib import suppress
from pathlib import Path
from typing import Any

from patcher.messages import Text
from patcher.processes import alive
from patcher.progress import Progress, ignore
from patcher.store.filesystem.opened import opened
from patcher.traces import names
from patcher.traces.folders import states
from patcher.traces.formats import ascend, ascend_tables, database
from patcher.traces.formats.chrome import is_closed, scan
from patcher.traces.names import OUTPUT
from patcher.traces.sidecar import NEVER, Extent, UnitWindow

BEFORE = f"{OUTPUT}.before"
"""Folder in which `analyse` keeps an older result until it has the new one."""
LOCK = "analyse.lock"
STORE = ".rlpatch"


def inspect(path: Path, progress: Progress = ignore) -> states.RecordedTrace:
    """Return the state and origin of the folder of one rank, from its name, settings, tables and files.

    ``progress`` gets the number of bytes of each read for step numbers.
    """
    name = names.of(path)
    info = next(iter(sorted(path.glob("profiler_info*.json"))), None)
    settings = ascend.read_json(info) if info else None
    settings = settings if isinstance(settings, dict) else None
    steps = steps_of(path, progress)
    fields = dict(name.fields)
    if settings:
        extent = _scheduled_window(settings)
        fields["window"] = extent and UnitWindow(extent)
        if fields.get("rank") is None and isinstance(settings.get("rank_id"), int):
            fields["rank"] = max(settings["rank_id"], 0)
    state, why = _state(path, name, info, settings, steps)
    if state == states.WHOLE and not fields["ours"]:
        state, why = states.FOREIGN, Text("torch_npu recorded the trace without rlpatch")
    return states.RecordedTrace(
        path, "npu", state, states.size(path), why, exports=exported(path), raw=has_raw(path), steps=steps,
        ended=name.ended or states.changed(path), **fields,
    )  # fmt: skip


def has_raw(path: Path) -> bool:
    """Tell whether a folder holds raw data of torch_npu, which can be parsed."""
    return (path / "FRAMEWORK").is_dir() or any(path.glob("PROF_*"))


def _state(
    path: Path, name: names.Name, info: Path | None, settings: Any, steps: tuple[int, ...] | None
) -> tuple[str, str]:
    """Return the state of a rank's folder, one of `states`, and the reason for it, "" if there is nothing to add."""
    if is_being_parsed(path):
        return states.WRITING, Text("another `rlpatch analyse` or torch_npu is parsing this folder")
    if info is None and not exported(path) and not tables(path):
        return _state_without_info(path, name)
    if info is not None and settings is None:
        if not info.stat().st_size:
            return states.EMPTY, Text("{name} is empty", info.name)
        return states.CUT, Text("{name} is incomplete", info.name)
    if (path / BEFORE).is_dir():
        return states.HALF_PARSED, Text(
            "`rlpatch analyse` was killed while it parsed this folder; the previous result is in {backup_folder}",
            BEFORE,
        )
    if (path / OUTPUT).is_dir():
        why = parsing_defect(path)
        return (states.HALF_PARSED, why) if why else (states.WHOLE, "")
    if not steps and not _device_data(path):
        return states.EMPTY, Text("the folder contains no recorded step and no device data")
    return states.NOT_PARSED, ""


def _state_without_info(path: Path, name: names.Name) -> tuple[str, str]:
    """Return the state of a folder without profiler_info.json and the reason: still written, empty, or killed."""
    pid = name.fields["pid"]
    if pid and name.here and alive(pid, states.changed(path)):
        return states.WRITING, Text("process {pid} is recording into this folder", pid)
    if not any((path / "FRAMEWORK").glob("*")) and not any(path.glob("PROF_*/*/*")):
        return states.EMPTY, Text("in the folder, neither FRAMEWORK nor PROF_… contains any data")
    return states.KILLED, Text("profiler_info.json is missing")


def _device_data(path: Path) -> bool:
    """Tell whether CANN has written data of a device."""
    return any(file.stat().st_size for file in path.glob("PROF_*/device_*/data/*"))


def exported(path: Path) -> tuple[str, ...]:
    """Return which exports torch_npu parsed a rank's folder into: "text", "db", both or none."""
    output = path / OUTPUT
    there = {"text": (output / "trace_view.json").is_file(), "db": bool(database.parsed_into(output))}
    return tuple(export for export, is_there in there.items() if is_there)


def tables(path: Path) -> Path | None:
    """Return the vendor's table of steps in a folder without raw data, as some are handed on; else None."""
    file = path / OUTPUT / ascend_tables.STEPS
    return file if file.is_file() and not has_raw(path) else None


def parsing_defect(path: Path) -> str:
    """Return a sentence on what is missing or incomplete in the parsed output of a rank's folder; "" if it is complete.

    Tables alone are complete if the folder has no raw data. ``analyse.done`` is ignored: newer torch_npu leaves it even
    if a part failed, and older releases never do. Raises OSError.
    """
    output = path / OUTPUT
    view, databases = output / "trace_view.json", database.parsed_into(output)
    if not view.is_file() and not databases:
        return "" if tables(path) else Text("trace_view.json and ascend_pytorch_profiler.db are both missing")
    if view.is_file() and not is_closed(view):
        return Text("trace_view.json is cut off")
    if any((output / f"{file.name}-journal").exists() for file in databases):
        return Text("{name} was not closed, so it may be incomplete", databases[0].name)
    if any(database.is_broken(file) for file in databases):
        return Text("{name} is not a database", databases[0].name)
    if _device_data(path) and view.is_file() and not any(output.glob("kernel_details*.csv")):
        return Text("the folder has device data, but no kernel_details.csv")
    return ""


def steps_of(path: Path, progress: Progress) -> tuple[int, ...] | None:
    """Return the step numbers in a rank's folder, ascending; None if unknown.

    They are those of the vendor's table, else of marks in a file that is scanned, else of the database.
    """
    if numbers := _vendor_steps(path):
        return numbers
    if file := _marked(path):
        return scan(file, progress).steps
    return next(map(database.steps_in, database.parsed_into(path / OUTPUT)), None)


def to_scan(path: Path) -> int:
    """Return the bytes that `steps_of` scans; 0 if the vendor's table has the numbers."""
    file = None if _vendor_steps(path) else _marked(path)
    return file.stat().st_size if file else 0


def _vendor_steps(path: Path) -> tuple[int, ...]:
    """Return the numbers of the steps in the vendor's table; () without it."""
    steps = ascend.vendor_steps(path / OUTPUT) or {}
    return tuple(sorted(int(step) for step in steps if step.isdigit()))


def _marked(path: Path) -> Path | None:
    """Return the file that is scanned for marks of steps: the recorded operators, else trace_view.json, else None."""
    files = path / "FRAMEWORK" / "torch.op_range", path / OUTPUT / "trace_view.json"
    return next(filter(Path.is_file, files), None)


def _scheduled_window(settings: Any) -> Extent | None:
    """Return (first step, end) of the first recording in the schedule of a ``profiler_info.json``; None if invalid.

    ``settings`` is the content of the file. The end is the step after the last, None if the recording has no end.
    """
    try:
        schedule = settings["config"]["common_config"]["schedule"]
        first = sum(int(schedule.get(name) or 0) for name in ("skip_first", "wait", "warmup"))
        end = first + int(schedule["active"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return first, None if end >= NEVER else end


def is_being_parsed(path: Path) -> bool:
    """Tell whether a running `rlpatch analyse` is working on this trace; False, too, if that cannot be read."""
    with suppress(OSError), opened(path.parent.resolve() / STORE) as store, store.reading(LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return path.name.encode() in file.read().split(b"\n")
    return False
