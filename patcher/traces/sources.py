"""Which traces lie at a path, and what reads each: what a file holds decides, not what it is called."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from patcher.errors import Kind, Problem
from patcher.traces import ascend_db, ascend_text, blocks, database, facts, names, torch
from patcher.traces.names import OUTPUT
from patcher.traces.timeline import Timeline

_NUMBERED = "ProfilerStep#"
"""Marks that carry the number of a unit as the probe counts it."""
_STAGES = re.compile(
    r"_(compute_log_prob|update_policy|compute_values|update_critic)_|_dp\d+_rank\d+_|_(graph_capture)"
)


def find(path: Path) -> list[Path]:
    """The traces at ``path``, in the order of their names: the file itself, or what lies below a folder.

    A folder of torch_npu is one, by what it was parsed into: db where both exports are there, for it is exact. Raises
    Problem: NO_TRACE where nothing is, or only what has to be parsed first.
    """
    if not path.exists():
        raise Problem(Kind.NO_TRACE, f"{path} does not exist", hint="rlpatch traces shows what was recorded")
    if not path.is_dir():
        named = facts.trace_of(path)
        return [path] if named == path else find(named)
    output = _output(path)
    if output is not None:
        return [_parsed(output)]
    found: list[Path] = []
    unparsed: list[Path] = []
    for name in sorted(_below(path)):
        if name.is_dir():
            output = _output(name)
            (unparsed if output is None else found).append(name if output is None else _parsed(output))
        else:
            found.append(name)
    if found:
        return found
    if unparsed or _is_raw(path) or (path / OUTPUT).is_dir():
        raise _not_parsed(unparsed[0] if unparsed else path, path)
    hint = "rlpatch traces shows what was recorded, and where"
    raise Problem(Kind.NO_TRACE, f"no trace lies in {path.name or path}", str(path), hint)


def read(path: Path) -> Timeline:
    """The timeline of the trace at ``path``, with the facts that lie beside it; Problem (TRACE) if it is none."""
    with path.open("rb") as file:
        head = file.read(16)
    if head.startswith(b"SQLite format 3\0"):
        found = ascend_db.read(path)
    elif path.name.startswith("trace_view") and path.suffix == ".json":
        found = ascend_text.read(path)
    else:
        found = torch.read(path)
    place = path.parent.parent if path.parent.name == OUTPUT else path
    if place != path:
        found.source = str(place)
    _tell(found, place)
    return found


def _tell(found: Timeline, place: Path) -> None:
    """Put into the timeline what the facts beside its trace say, and in what they contradict it."""
    own = facts.beside(place)
    if own is None:
        return
    if own.why:
        found.doubts = (own.why,)
        return
    steps = sorted({mark.number for _, mark in found.marks if mark.number is not None and mark.family == _NUMBERED})
    form = "torch" if found.form == "torch" else "npu"
    found.facts = own.content
    found.doubts = tuple(facts.doubts(own.content, place, form, steps or None))
    if found.rank is None:
        found.rank = facts.number(own.content, "rank")


def stage_of(source: str, told: Mapping[str, Any] | None) -> str:
    """The stage of a capture: from its facts, else from the name that our probe gives; "" where neither tells."""
    said = facts.text(told or {}, "stage")
    if said is not None:
        return said
    found = _STAGES.search(Path(source).name)
    return (found[1] or found[2] or "rollout").replace("_", "-") if found else ""


def _output(folder: Path) -> Path | None:
    """Where torch_npu parsed ``folder`` into, if that holds something that can be read."""
    for output in (folder / OUTPUT, folder):
        if output.name == OUTPUT and (database.parsed_into(output) or (output / "trace_view.json").is_file()):
            return output
    return None


def _parsed(output: Path) -> Path:
    databases = database.parsed_into(output)
    if len(databases) > 1:
        several = ", ".join(file.name for file in databases)
        hint = "give each rank a folder of its own, or name the one database that is meant"
        raise Problem(Kind.TRACE, f"{output.parent.name} holds several ranks: {several}", str(output), hint)
    return databases[0] if databases else output / "trace_view.json"


def _below(folder: Path) -> Iterator[Path]:
    """Folders of torch_npu, traces in JSON and databases below ``folder``; nothing inside another trace."""
    for entry in folder.iterdir():
        if entry.is_dir():
            if entry.name.endswith("_ascend_pt") or (entry / OUTPUT).is_dir():
                yield entry
            elif not entry.name.startswith((".", "PROF_")) and not entry.is_symlink():
                yield from _below(entry)
        elif _is_trace(entry):
            yield entry


def _is_trace(file: Path) -> bool:
    if file.name.endswith(facts.SUFFIX):
        return False
    if file.name.endswith(names.JSON):
        return names.is_torch(file.name) or blocks.says_events(file)
    return file.match(database.NAMED)


def _is_raw(folder: Path) -> bool:
    return folder.name.startswith("PROF_") or any(folder.glob("PROF_*")) or (folder / "FRAMEWORK").is_dir()


def _not_parsed(folder: Path, asked: Path) -> Problem:
    if (folder / OUTPUT).is_dir():
        cause = f"{folder.name} holds tables of torch_npu, but neither trace_view.json nor a database"
    elif _is_raw(folder):
        cause = f"{folder.name} has not been parsed"
    else:
        cause = f"{folder.name} holds nothing that torch_npu recorded"
        return Problem(Kind.NO_TRACE, cause, str(folder), f"rlpatch traces {shlex.quote(str(asked))}")
    hint = f"rlpatch analyse {shlex.quote(str(asked))}"
    return Problem(Kind.NO_TRACE, cause, str(folder), hint)
