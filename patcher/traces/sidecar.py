"""Step metadata that a probe leaves beside each trace (``*.rlpatch.json``), read into typed values.

It may be missing, of a later release, or of another trace. A value of the wrong type counts as missing.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from patcher.messages import Text
from patcher.store.filesystem.opened import reading
from patcher.traces import names

SUFFIX = ".rlpatch.json"
FORMAT = 1
NEVER = 10**9
"""The end of a window that has none; no rollout has as many units."""

CONTENTS = ("requests", "tokens", "drafts", "longest", "context", "sequences")
"""The counts of a unit: of an iteration, with ``longest`` and summed ``context``; ``sequences`` of a micro-batch."""

_IDENTITY = ("host", "stage", "role", "step", "rank", "pid", "replica")
_CONDITIONS = ("load", "tail", "context")
_WINDOW = re.compile(r"(?<![^,])(\d{1,9}):(\d{0,9})(?![^,])", re.ASCII)
_LARGEST = 1 << 28

Extent = tuple[int, "int | None"]
"""The half-open range of units of a window; None as the end of one that has none."""


class UnitWindow(NamedTuple):
    """A window as requested: its ``extent`` or, if only the text is known, ``typed``.

    With ``conditions`` (name and value) units are numbered from where the conditions hold, which differs between
    replicas.
    """

    extent: Extent | None = None
    typed: str = ""
    conditions: tuple[tuple[str, int], ...] = ()

    @property
    def text(self) -> str:
        """Window as users type it, such as ``30:60``, with its conditions: ``0:10 at tail 8``."""
        begin, end = self.extent or (None, None)
        text = self.typed if begin is None else f"{begin}:{'' if end is None else end}"
        conditions = ", ".join(f"{name} {value}" for name, value in self.conditions)
        return f"{text} at {conditions}".strip() if conditions else text

    @property
    def length(self) -> int | None:
        """Number of steps that were requested; None if unknown, or if the window has no end."""
        begin, end = self.extent or (0, None)
        return None if end is None else end - begin


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitMetadata:
    """The metadata of one unit; a value that was not recorded is None.

    ``longest`` is the longest context, ``context`` the sum of contexts, ``padded`` the shape of the ``sequences``.
    ``uncounted`` iterations lie between the unit before and this one. ``profiler_start`` tells whether the unit carries
    the start of the profiler, because a piece of a window begins with it.
    """

    requests: int | None = None
    tokens: int | None = None
    drafts: int | None = None
    longest: int | None = None
    context: int | None = None
    sequences: int | None = None
    padded: tuple[int, ...] | None = None
    uncounted: int | None = None
    profiler_start: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOrigin:
    """The origin of a trace by its name, metadata or profiler; "" and None for unknown values."""

    target: str = ""
    release: str = ""
    stage: str = ""
    role: str = ""
    host: str = ""
    ranks: str = ""
    rollout: int | None = None
    step: int | None = None
    sync: int | None = None
    rank: int | None = None
    pid: int | None = None
    world: int | None = None
    replica: int | None = None
    window: UnitWindow | None = None


@dataclass(frozen=True, slots=True)
class Metadata(TraceOrigin):
    """The metadata of one trace; values of the wrong type are left out. ``raw`` is the whole content of the file.

    ``closed`` is "complete", or the reason why the window was closed before its end. ``piece`` is the number, from 1,
    of a piece of a window that was saved in several traces; else None.
    """

    raw: Mapping[str, Any]
    unit: str = ""
    backend: str = ""
    closed: str = ""
    piece: int | None = None
    units: Mapping[int, UnitMetadata] = field(default_factory=dict)

    @property
    def uncounted(self) -> dict[int, int]:
        """Step number → the uncounted iterations right before it; steps without any are left out."""
        return {number: unit.uncounted for number, unit in self.units.items() if unit.uncounted}

    @property
    def identity(self) -> Iterator[str]:
        """Words that tell one profile from another: target, stage, window, rollout, step or weight sync, and host.

        Some may be "".
        """
        window = self.window.text if self.window else ""
        for group in ((self.target, self.release), (self.stage, self.role), (self.unit, window)):
            yield " ".join(filter(None, group))
        numbers = {"rollout": self.rollout, "step": self.step, "sync": self.sync}
        yield from (f"{name} {value}" for name, value in numbers.items() if value is not None)
        yield self.host


def unit_contents(units: Collection[UnitMetadata]) -> dict[str, list[int]]:
    """Return name in `CONTENTS`, such as requests → the known values of the given steps.

    Names without a value other than 0 are left out.
    """
    columns = {name: [value for unit in units if (value := getattr(unit, name)) is not None] for name in CONTENTS}
    return {name: values for name, values in columns.items() if any(values)}


_TEXTS = ("target", "release", "stage", "role", "host", "ranks", "unit", "backend")
_NUMBERS = ("rollout", "step", "sync", "rank", "pid", "world")


def metadata_from(raw: Mapping[str, Any]) -> Metadata:
    """Build the metadata from the JSON object of a file; a value of the wrong type counts as missing.

    A missing number of the replica is that within the data-parallel group.
    """
    texts = {name: _text(raw.get(name)) for name in _TEXTS}
    numbers = {name: _number(raw.get(name)) for name in _NUMBERS}
    units, typed = _units_by_number(raw), _text(raw.get("window"))
    conditions = tuple((name, value) for name in _CONDITIONS if (value := _number(raw.get(name))))
    extent = _window_of_step(typed, None if conditions else min(units, default=None))
    window = UnitWindow(extent, "" if extent else typed, conditions)
    closed = _text(raw.get("why")).partition(", recorded")[0]  # behind the reason stands what was recorded
    replica = raw.get("replica")
    # Else it is the place in a parallel group.
    is_number = isinstance(replica, str) and replica.isdecimal() and len(replica) < 10
    return Metadata(
        raw, **texts, **numbers, replica=int(replica) if is_number else _number(raw.get("dp")), closed=closed,  # type: ignore[arg-type]
        window=window if any(window) else None, units=units, piece=_number(raw.get("piece")) or None,
    )  # fmt: skip


def _text(value: object) -> str:
    """Return a printable text, of a list its items with commas between them; "" for anything else, or too long."""
    if isinstance(value, list) and len(value) < 10_000:
        value = ",".join(map(str, value))
    return value if isinstance(value, str) and len(value) <= 100_000 and value.isprintable() else ""


def _number(value: object) -> int | None:
    """Return a whole number from 0 to 2**63 - 1; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def _sizes(value: object) -> tuple[int, ...] | None:
    """Return a list of 1 to 8 sizes, whole numbers, as a tuple; None for anything else."""
    if not isinstance(value, list):
        return None
    sizes = tuple(size for item in value if (size := _number(item)) is not None)
    return sizes if 0 < len(sizes) == len(value) <= 8 else None


def _window_of_step(typed: str, recorded: int | None) -> Extent | None:
    """Return the window in ``typed``, such as ``30:60``, as (first step, end or None); None without one.

    The end is the step after the last. If ``typed`` has several windows, it is the one that contains step ``recorded``,
    and None if none does or ``recorded`` is None.
    """
    windows = [(int(begin), int(end) if end else None) for begin, end in _WINDOW.findall(typed)]
    if len(windows) > 1:
        windows = [
            window for window in windows if recorded is not None and window[0] <= recorded < (window[1] or NEVER)
        ]
    return windows[0] if windows else None


def _units_by_number(raw: Mapping[str, Any]) -> dict[int, UnitMetadata]:
    """Return step number → its metadata, from ``raw``, the JSON object of a file.

    Entries without a number are left out. A probe writes the uncounted iterations since the window was opened; each
    step gets those since the step before. The first step of a later piece of a window gets 0, because its number is
    only known with the piece before (:func:`uncounted_total`).
    """
    entries = {number: entry for entry in listed_units(raw) if (number := _number(entry.get("number"))) is not None}
    units, before = dict[int, UnitMetadata](), 0
    if entries and (_number(raw.get("piece")) or 1) > 1:
        before = _number(entries[min(entries)].get("uncounted")) or 0
    for number, unit in sorted(entries.items()):
        contents = {name: _number(unit.get(name)) for name in CONTENTS}
        total = _number(unit.get("uncounted"))
        uncounted = None if total is None else max(total - before, 0)
        start, padded = unit.get("profiler_start") is True, _sizes(unit.get("padded"))
        units[number] = UnitMetadata(**contents, padded=padded, uncounted=uncounted, profiler_start=start)
        before = total or 0
    return units


def uncounted_total(metadata: Metadata, number: int) -> int:
    """Return the uncounted iterations from the opening of the window to step ``number``; 0 if unknown."""
    units = listed_units(metadata.raw)
    return next((_number(unit.get("uncounted")) or 0 for unit in units if unit.get("number") == number), 0)


def listed_units(raw: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries of steps in the JSON object of a file; entries of another type are skipped."""
    listed = raw.get("units")
    return [unit for unit in listed if isinstance(unit, Mapping)] if isinstance(listed, list) else []


# ---------------------------------------------------------------- on disk


def trace_of(path: Path) -> Path:
    """Return the trace of the metadata file at ``path``; any other path, or without that trace, ``path`` itself."""
    trace = path.with_name(path.name.removesuffix(SUFFIX))
    return trace if path.name != trace.name and trace.exists() else path


def read(file: Path) -> Metadata:
    """Return the step metadata in a file.

    Raises ValueError, with the reason as a text, if the file is missing, unreadable, damaged or of another format.
    """
    content = None
    with contextlib.suppress(OSError, ValueError, RecursionError), reading(file) as stream:
        text = stream.read(_LARGEST + 1)
        content = json.loads(text) if len(text) <= _LARGEST else None
    if not isinstance(content, dict):
        raise ValueError(Text("the step metadata beside the trace is not a JSON object, or is incomplete"))  # noqa: TRY004  (as for any other file)
    if (version := content.get("format")) != FORMAT:
        version_text = version if isinstance(version, int | float) else Text("none")
        raise ValueError(
            Text(
                "the step metadata beside the trace has format {format}, but this rlpatch reads only format"
                " {supported}",
                format=version_text,
                supported=FORMAT,
            )
        )
    return metadata_from(content)


def read_beside(trace: Path) -> Metadata | None:
    """Return the step metadata beside a trace, also if that was compressed or unpacked since; None without such a file.

    Raises ValueError if the file is damaged or of another format.
    """
    name = trace.name.removesuffix(".gz")
    for candidate in (trace.name, name, f"{name}.gz"):
        file = trace.with_name(f"{candidate}{SUFFIX}")
        if file.is_file() and (candidate == trace.name or trace_of(file) == file):
            return read(file)
    return None


def read_and_check(trace: Path, form: str, steps: Sequence[int] | None) -> tuple[Metadata | None, tuple[str, ...]]:
    """Return the step metadata beside a trace, or None, and sentences on what is wrong with them.

    ``form`` is npu, torch or other, ``steps`` are the step numbers in the trace, None if unknown.
    """
    try:
        metadata = read_beside(trace)
    except ValueError as error:
        return None, (error.args[0],)
    return metadata, tuple(contradictions(metadata, trace, form, steps)) if metadata else ()


def contradictions(metadata: Metadata, trace: Path, form: str, steps: Sequence[int] | None) -> Iterator[str]:
    """Yield a sentence for each contradiction between the step metadata and the trace.

    Compared are the trace's name, its format (``form``), and its step numbers (``steps``, None if unknown). If the
    window is complete and in one piece, the requested number of steps is compared, too.
    """
    fields_of_name = names.of(trace).fields
    for name in _IDENTITY if fields_of_name["ours"] else ():
        value, expected = getattr(metadata, name), fields_of_name.get(name)
        if value not in (None, "") and expected not in (None, "") and value != expected:
            yield Text(
                "{field} is {name_value} in the trace's name, but {metadata_value} in the step metadata",
                field=name,
                name_value=expected,
                metadata_value=value,
            )
    if {metadata.backend, form} == {"npu", "torch"}:
        yield Text(
            "the step metadata says that {profiler} recorded this trace, but the trace has another format",
            metadata.backend,
        )
    recorded = sorted(metadata.units)
    if steps is not None and recorded and recorded != sorted(steps):
        yield Text(
            "the step metadata lists {listed_steps}, but the trace has {traced_steps}",
            listed_steps=_steps_in_words(recorded),
            traced_steps=_steps_in_words(sorted(steps)),
        )
    total = (metadata.window.length if metadata.window else None) or 0
    whole = metadata.closed == "complete" and (metadata.piece or 1) == 1
    if whole and "units" in metadata.raw and len(recorded) < total:
        yield Text(
            "the step metadata says that the recording window is complete, but lists only {count} of {total} steps",
            count=len(recorded),
            total=total,
        )


def _steps_in_words(units: Sequence[int]) -> str:
    """Return ascending step numbers in words: ``3 steps, 5 to 7``, or ``2 of the steps 5 to 9`` if some are missing."""
    if len(units) < 2:
        return Text("step {number}", units[0]) if units else Text("no steps")
    whole = len(units) == units[-1] - units[0] + 1
    if whole:
        return Text("{count} steps, {first} to {last}", count=len(units), first=units[0], last=units[-1])
    return Text("{count} of the steps {first} to {last}", count=len(units), first=units[0], last=units[-1])
