"""Stored baseline of ``compare``: a folder with one JSON file for each run, of what a comparison needs of its captures.

``profiles_of(summary(profiles))`` are the same profiles without drawings, gaps, collectives and checks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from patcher.messages import Kind, Problem, Text
from patcher.store.filesystem.opened import reading
from patcher.traces import model, sidecar
from patcher.traces.model import CallSums, Kernel, RankProfile, RecordedUnit

FORMAT = 1
KEEP = 30
"""Runs that are kept: older ones tell of a machine and a program that have changed since."""

_NAME = f"{'[0-9]' * 8}T{'[0-9]' * 12}Z.json"
"""Names of the files that are ours: of those, and of no other file in the folder, old ones are removed."""
_LARGEST = 1 << 26
_TEXTS = ("form", "device", "marks")
_CALLS = CallSums, ("name", "calls", "kernels", "ns", "host_ns")
_ROWS: Mapping[str, tuple[type[Any], tuple[str, ...]]] = {
    "kernels": (Kernel, ("name", "kind", "calls", "ns")),
    "operators": _CALLS,
    "modules": _CALLS,
}
_COUNTS = ("number", "host_ns", "kernels", *model.PARTS, model.LEAD_IN, *sidecar.CONTENTS, "uncounted")
_KINDS = {str(kind): kind for kind in model.KINDS}


def files(folder: Path) -> list[Path]:
    """Return the files of the runs in a baseline, oldest first; empty if there is no such folder. Raises OSError."""
    return sorted(folder.glob(_NAME)) if folder.is_dir() else []


def new_file(folder: Path) -> Path:
    """Return the path for a run that is added now; its name sorts behind those of all runs before."""
    return folder / f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S%fZ}.json"


def summary(profiles: Sequence[RankProfile]) -> str:
    """Return the content of the file for a run."""
    return json.dumps({"format": FORMAT, "profiles": [*map(_for_storage, profiles)]}, separators=(",", ":")) + "\n"


def _for_storage(profile: RankProfile) -> dict[str, Any]:
    """Return what a baseline keeps of a profile, for JSON: the times and counts of its steps, and the compared rows.

    Of the step metadata, only the first step stays.
    """
    units = [{name: value for name in _COUNTS if (value := getattr(unit, name)) is not None} for unit in profile.units]
    rows = {
        field: [[getattr(row, name) for name in names] for row in getattr(profile, field)]
        for field, (_, names) in _ROWS.items()
    }
    metadata = {**profile.metadata.raw, "units": units[:1]} if profile.metadata else None
    stored = {name: getattr(profile, name) for name in ("source", *_TEXTS, "rank", "world")}
    return {**stored, "settings": dict(profile.settings), "metadata": metadata, "units": units, **rows}


def read(file: Path) -> list[RankProfile]:
    """Return the profiles of a stored run.

    Raises OSError, and Problem (TRACE) if the file is damaged or of another format.
    """
    with reading(file) as stream:
        text = stream.read(_LARGEST + 1)
    why = Text("the file does not come from rlpatch, or it is incomplete")
    try:
        content: Any = json.loads(text) if len(text) <= _LARGEST else None
        if content["format"] != FORMAT:
            why = Text(
                "the file has format {format}, but this rlpatch reads only format {supported}",
                format=content["format"],
                supported=FORMAT,
            )
            raise ValueError(why)
        profiles = [_profile_from(profile, file) for profile in content["profiles"]]
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        cause = Text("{file} of the baseline cannot be read: {reason}", file=file.name, reason=why)
        raise Problem(
            Kind.TRACE, cause, str(file), Text("remove the file; the baseline keeps its other runs")
        ) from None
    return profiles


def _profile_from(stored: Mapping[str, Any], file: Path) -> RankProfile:
    """Build the profile of an entry in the baseline's ``file``; its source begins with that file's path.

    Raises LookupError, TypeError, ValueError or AttributeError if the entry is invalid, or has no steps.
    """
    units = [RecordedUnit(**_unit_fields(unit)) for unit in stored["units"]]
    kernels, operators, modules = (tuple(_row_from(*_ROWS[field], row) for row in stored[field]) for field in _ROWS)
    form, device, marks = (_text(stored[name]) for name in _TEXTS)
    if not units or form not in model.FORMS:
        raise ValueError(form)
    settings = {_text(name): _text(value) for name, value in stored["settings"].items()}
    metadata = stored["metadata"] and sidecar.metadata_from({**stored["metadata"]})
    rank, world = (None if stored[name] is None else _count(stored[name]) for name in ("rank", "world"))
    return RankProfile(
        f"{file}:{_text(stored['source'])}", form, rank, device, tuple(units), kernels, operators, modules,
        metadata=metadata or None, world=world, settings=settings, marks=marks, baseline_run=file.name,
    )  # fmt: skip


def _unit_fields(unit: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a stored step by name, whole numbers of at least 0.

    Raises ValueError for an unknown name or any other value.
    """
    if not unit.keys() <= {*_COUNTS}:
        raise ValueError(unit.keys())
    return {name: _count(value) for name, value in unit.items()}


def _row_from(kind: type[Any], names: Sequence[str], values: Sequence[Any]) -> Any:
    """Build a ``kind``, such as `Kernel`, from the stored values of its fields ``names``.

    Raises TypeError, ValueError or KeyError for an invalid value.
    """
    typed: dict[str, Any] = {
        name: _text(value) if name in ("name", "kind") else _count(value)
        for name, value in zip(names, values, strict=True)
    }
    if "kind" in typed:
        typed["kind"] = _KINDS[typed["kind"]]
    return kind(**typed)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _count(value: Any) -> int:
    """Return a whole number that is not negative. Raises ValueError for anything else."""
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value
