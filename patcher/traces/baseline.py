"""Stored baseline of ``compare``: a folder with one JSON file for each run, of what a comparison needs of its captures.

``profiles_of(summary(profiles))`` are the same profiles without drawings, gaps, collectives and checks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec

from patcher.messages import Kind, Problem, Text
from patcher.store.filesystem.opened import reading
from patcher.traces import model, sidecar
from patcher.traces.model import KINDS, CallSums, Kernel, RankProfile, RecordedUnit

FORMAT = 1
KEEP = 30
"""Runs that are kept: older ones tell of a machine and a program that have changed since."""

_NAME = f"{'[0-9]' * 8}T{'[0-9]' * 12}Z.json"
"""Names of the files that are ours: of those, and of no other file in the folder, old ones are removed."""
_LARGEST = 1 << 26
"""Bytes of a file that are read; what goes on behind them is no JSON."""
_COUNTS = ("number", "host_ns", "kernels", *model.PARTS, model.LEAD_IN, *sidecar.CONTENTS, "uncounted")
_KERNEL, _CALLS = ("name", "kind", "calls", "ns"), ("name", "calls", "kernels", "ns", "host_ns")

Count = Annotated[int, msgspec.Meta(ge=0)]
Calls = tuple[str, Count, Count, Count, Count]


class _StoredProfile(msgspec.Struct):
    """A profile as a baseline stores it: the counts of its steps, and rows with the values of `_KERNEL` or `_CALLS`."""

    source: str
    form: str
    device: str
    marks: str
    rank: Count | None
    world: Count | None
    settings: dict[str, str]
    metadata: dict[str, Any] | None
    units: list[dict[str, Count]]
    kernels: list[tuple[str, str, Count, Count]]
    operators: list[Calls]
    modules: list[Calls]


class _StoredRun(msgspec.Struct):
    """The content of a file; ``profiles`` are JSON texts, of `_StoredProfile` if the ``format`` is known."""

    format: Any
    profiles: list[msgspec.Raw]


def files(folder: Path) -> list[Path]:
    """Return the files of the runs in a baseline, oldest first; empty if there is no such folder. Raises OSError."""
    return sorted(folder.glob(_NAME)) if folder.is_dir() else []


def new_file(folder: Path) -> Path:
    """Return the path for a run that is added now; its name sorts behind those of all runs before."""
    return folder / f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S%fZ}.json"


def summary(profiles: Sequence[RankProfile]) -> str:
    """Return the content of the file for a run."""
    stored = [msgspec.structs.asdict(_for_storage(profile)) for profile in profiles]
    return json.dumps({"format": FORMAT, "profiles": stored}, separators=(",", ":")) + "\n"


def _for_storage(profile: RankProfile) -> _StoredProfile:
    """Return what a baseline keeps of a profile. Of the step metadata, only the first step stays."""
    units = [{name: value for name in _COUNTS if (value := getattr(unit, name)) is not None} for unit in profile.units]
    kernel_row, call_row = attrgetter(*_KERNEL), attrgetter(*_CALLS)
    return _StoredProfile(
        profile.source, profile.form, profile.device, profile.marks, profile.rank, profile.world,
        settings=dict(profile.settings),
        metadata={**profile.metadata.raw, "units": units[:1]} if profile.metadata else None,
        units=units,
        kernels=[*map(kernel_row, profile.kernels)],
        operators=[*map(call_row, profile.operators)],
        modules=[*map(call_row, profile.modules)],
    )  # fmt: skip


def read(file: Path) -> list[RankProfile]:
    """Return the profiles of a stored run.

    Raises OSError, and Problem (TRACE) if the file is damaged or of another format.
    """
    with reading(file) as stream:
        content = stream.read(_LARGEST)
    why = Text("the file does not come from rlpatch, or it is incomplete")
    try:
        run = msgspec.json.decode(content, type=_StoredRun)
        if run.format != FORMAT:
            why = Text(
                "the file has format {format}, but this rlpatch reads only format {supported}",
                format=run.format,
                supported=FORMAT,
            )
            raise ValueError(why)
        return [_profile_from(msgspec.json.decode(text, type=_StoredProfile), file) for text in run.profiles]
    except (TypeError, ValueError, RecursionError):
        cause = Text("{file} of the baseline cannot be read: {reason}", file=file.name, reason=why)
        raise Problem(
            Kind.TRACE, cause, str(file), Text("remove the file; the baseline keeps its other runs")
        ) from None


def _profile_from(stored: _StoredProfile, file: Path) -> RankProfile:
    """Build the profile of an entry in the baseline's ``file``; its source begins with that file's path.

    Raises TypeError or ValueError if the entry is invalid, or has no steps.
    """
    units: Sequence[Mapping[str, Any]] = stored.units
    if not units or stored.form not in model.FORMS or not {*_COUNTS}.issuperset(chain.from_iterable(units)):
        raise ValueError(stored.form)
    kernels = (Kernel(name, KINDS[KINDS.index(kind)], calls, ns) for name, kind, calls, ns in stored.kernels)
    operators, modules = (tuple(CallSums(*row) for row in rows) for rows in (stored.operators, stored.modules))
    return RankProfile(
        f"{file}:{stored.source}", stored.form, stored.rank, stored.device,
        tuple(RecordedUnit(**unit) for unit in units), tuple(kernels), operators, modules,
        metadata=sidecar.metadata_from(stored.metadata) if stored.metadata else None, world=stored.world,
        settings=stored.settings, marks=stored.marks, baseline_run=file.name,
    )  # fmt: skip
