"""Facts: what a probe leaves beside each trace. They may be missing, of a later release, or of another trace.

A value that has not its form is none; where facts and trace disagree, that is said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from patcher.traces import names

SUFFIX = ".rlpatch.json"
FORMAT = 1
NEVER = 10**9
"""The end of a window that has none; no rollout has as many units."""

HELD = ("requests", "tokens", "drafts", "longest", "context", "sequences")
"""What they may tell of a unit: of an iteration, ``longest`` and summed ``context``; ``sequences`` of a micro-batch."""

_LARGEST = 1 << 28
_MANY = 6
_PLACES = ("host", "stage", "role", "step", "rank", "pid", "replica")
_BACKENDS = ("npu", "torch")


class Facts(NamedTuple):
    """The content of one file, without what is told of the ``trace`` that it is of; ``why`` it is none, if it is."""

    file: Path
    content: Mapping[str, Any]
    why: str = ""

    def are_of(self, trace: Path) -> bool:
        """Whether they are of this trace: by what the file is called, or by the name that stands in it."""
        beside = self.file.name.removesuffix(SUFFIX).removesuffix(".gz")
        named = self.content.get("trace")
        return trace.name.removesuffix(".gz") == beside or (isinstance(named, str) and Path(named).name == trace.name)


def trace_of(path: Path) -> Path:
    """The trace of the facts at ``path``, as a shell names them beside it; any other path as it is."""
    trace = path.with_name(path.name.removesuffix(SUFFIX))
    return trace if path.name != trace.name and trace.exists() else path


def read(file: Path) -> Facts:
    """The facts in a file; without content, and with the reason, where it holds none that are understood."""
    try:
        if file.stat().st_size > _LARGEST:
            return Facts(file, {}, f"the facts beside it are larger than {_LARGEST >> 20} MB")
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return Facts(file, {}, "the facts beside it are no JSON, or not all of it")
    if not isinstance(content, dict):
        return Facts(file, {}, "the facts beside it are no JSON object")
    if content.get("format") != FORMAT:
        said = content.get("format")
        said = said if isinstance(said, int | float) else "none"
        return Facts(file, {}, f"the format of the facts beside it is {said}, and this rlpatch reads {FORMAT}")
    return Facts(file, content)


def below(folder: Path) -> dict[Path, list[Facts]]:
    """The facts below a folder, or beside a trace, by the folder that they lie in."""
    found: dict[Path, list[Facts]] = {}
    alone = not folder.is_dir() or folder.name.endswith("_ascend_pt")
    for file in sorted(folder.parent.glob(f"*{SUFFIX}") if alone else folder.rglob(f"*{SUFFIX}")):
        found.setdefault(file.parent, []).append(read(file))
    return found


def beside(trace: Path, every: Iterable[Facts] | None = None) -> Facts | None:
    """The facts of a trace, those that are called as it is before others that name it; None where there are none."""
    if every is None:
        named = trace.with_name(f"{trace.name}{SUFFIX}")
        every = [read(named)] if named.is_file() else below(trace).get(trace.parent, [])
    own = [one for one in every if one.are_of(trace)]
    return min(own, key=lambda one: not one.file.name.startswith(trace.name), default=None)


# ---------------------------------------------------------------- what they say


def text(facts: Mapping[str, Any], name: str) -> str | None:
    """A text that can be shown as it is, of a list its words with commas between them; None where there is none."""
    value = facts.get(name)
    if isinstance(value, list) and len(value) < 10_000:
        value = ",".join(map(str, value))
    return value if isinstance(value, str) and len(value) <= 100_000 and value.isprintable() else None


def number(facts: Mapping[str, Any], name: str) -> int | None:
    """A whole number from 0; None where there is none."""
    value = facts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def numbers(facts: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    """A few whole numbers, such as a shape; None where there are none."""
    value = facts.get(name)
    if not isinstance(value, list) or not 0 < len(value) <= 8:
        return None
    found = tuple(number({name: one}, name) for one in value)
    return None if None in found else tuple(one for one in found if one is not None)


def replica(facts: Mapping[str, Any]) -> int | None:
    """Which replica left it: as verl told, else by the place among those that know of each other."""
    told = facts.get("replica")
    return int(told) if isinstance(told, str) and told.isdecimal() and len(told) < 10 else number(facts, "dp")


def span(facts: Mapping[str, Any]) -> tuple[int, int | None] | None:
    """The numbers of the units that were asked for, where the window came to lie; None as the end of one without.

    Where that is not told, it is what was typed, of several windows the one that the units lie in.
    """
    first, end = number(facts, "first"), number(facts, "end")
    if first is not None and end is not None:
        return first, None if end >= NEVER else end
    windows = [_typed(one) for one in (text(facts, "window") or "").split(",")]
    recorded = min(units(facts), default=None)
    fitting = [
        one for one in windows
        if one and (len(windows) == 1 or (recorded is not None and one[0] <= recorded < (one[1] or NEVER)))
    ]  # fmt: skip
    return fitting[0] if fitting and not _conditions(facts) else None


def _typed(window: str) -> tuple[int, int | None] | None:
    asked = re.fullmatch(r"(\d{1,9}):(\d{0,9})", window, re.ASCII)
    return (int(asked[1]), int(asked[2]) if asked[2] else None) if asked else None


def closed(facts: Mapping[str, Any]) -> str:
    """Why the window was closed: complete, or what ended it before; "" where it is not told."""
    told = text(facts, "closed")
    return told if told is not None else (text(facts, "why") or "").partition(", recorded")[0]


def _conditions(facts: Mapping[str, Any]) -> str:
    """The conditions behind which the window counts, as they are read."""
    given = {name: number(facts, name) for name in ("load", "tail", "context")}
    return ", ".join(f"{name} {value}" for name, value in given.items() if value)


def window(facts: Mapping[str, Any]) -> str:
    """The window as it was asked for: of several the one that this trace is of, with the condition if there was one."""
    asked, lies = text(facts, "window") or "", span(facts)
    if conditions := _conditions(facts):
        return f"{asked} at {conditions}".strip()
    return asked if lies is None else f"{lies[0]}:{'' if lies[1] is None else lies[1]}"


def units(facts: Mapping[str, Any] | None) -> dict[int, Mapping[str, Any]]:
    """What they say of each unit, by its number; ``uncounted`` iterations are those between the unit before and it.

    A probe writes those, or all since the window was opened. The two are told apart by the sum of all, which stands
    beside the units; where it does not, it is the second.
    """
    listed = (facts or {}).get("units")
    known = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    found = {at: one for one in known if (at := number(one, "number")) is not None}
    told = [number(found[at], "uncounted") for at in sorted(found)]
    counts = [count or 0 for count in told]
    if sum(counts) != number(facts or {}, "uncounted"):
        counts = [max(count - before, 0) for count, before in zip(counts, [0, *counts], strict=False)]
    between = (None if said is None else count for said, count in zip(told, counts, strict=True))
    return {at: {**found[at], "uncounted": count} for at, count in zip(sorted(found), between, strict=True)}


def held(facts: Mapping[str, Any] | None) -> dict[str, list[int]]:
    """What they tell of the units, value by value: those of ``HELD`` of which they tell anything but 0."""
    every = units(facts).values()
    found = {name: [value for one in every if (value := number(one, name)) is not None] for name in HELD}
    return {name: values for name, values in found.items() if any(values)}


def spread(least: int, most: int) -> str:
    """Values from ``least`` to ``most``, as people read them."""
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def between(facts: Mapping[str, Any] | None) -> dict[int, int]:
    """How many uncounted iterations lie before which unit, for those that have some."""
    found = {at: number(one, "uncounted") for at, one in units(facts).items()}
    return {at: count for at, count in found.items() if count}


def lying_between(uncounted: Mapping[int, int]) -> str:
    """That iterations which do not count lie between the units: how many, and before which."""
    count = sum(uncounted.values())
    lies = "1 uncounted iteration lies" if count == 1 else f"{count:,} uncounted iterations lie"
    listed = ", ".join(f"#{at}" for at in sorted(uncounted)[:_MANY])
    return f"{lies} between its units, before {listed}{' …' if len(uncounted) > _MANY else ''}"


def told(facts: Mapping[str, Any] | None) -> Iterator[str]:
    """What tells one capture from another, in words: whose, which stage, which window of which rollout or step."""
    if not facts:
        return
    yield " ".join(filter(None, (text(facts, "target"), text(facts, "release"))))
    yield " ".join(filter(None, (text(facts, "stage"), text(facts, "role"))))
    yield " ".join(filter(None, (text(facts, "unit"), window(facts))))
    yield from (f"{name} {number(facts, name)}" for name in ("rollout", "step") if number(facts, name) is not None)
    yield text(facts, "host") or ""


def doubts(facts: Mapping[str, Any], trace: Path, form: str, steps: Sequence[int] | None) -> Iterator[str]:
    """In what they contradict the name of their trace, and the ``steps`` that are in it (None: not known)."""
    named = facts.get("trace")
    if isinstance(named, str) and Path(named).name.removesuffix(".gz") != trace.name.removesuffix(".gz"):
        yield "its facts name another trace"
    known = names.of(trace).known
    told = {**facts, "replica": replica(facts)}
    for name in _PLACES if known["ours"] else ():
        theirs = told.get(name)
        if theirs not in (None, "") and known.get(name) not in (None, "") and theirs != known[name]:
            said = number(told, name) if isinstance(theirs, int) else text(told, name)
            yield f"its name says {name} {known[name]}, its facts say {'another' if said is None else said}"
    backend = text(facts, "backend")
    if backend in _BACKENDS and form in _BACKENDS and backend != form:
        yield f"its facts say that {backend} recorded it"
    recorded = sorted(units(facts))
    if steps is not None and recorded and recorded != sorted(steps):
        yield f"its facts tell of {_numbers(recorded)}, and it holds {_numbers(sorted(steps))}"
    lies = span(facts)
    if closed(facts) == "complete" and "units" in facts and lies and lies[1] is not None:
        asked = lies[1] - lies[0]
        if len(recorded) < asked:
            yield f"its facts call it complete, with {len(recorded)} of {asked} units"


def _numbers(units: Sequence[int]) -> str:
    if len(units) < 2:
        return f"unit {units[0]}" if units else "no unit"
    whole = len(units) == units[-1] - units[0] + 1
    return f"{len(units)} units, {units[0]} to {units[-1]}" if whole else f"{len(units)} of {units[0]} to {units[-1]}"
