"""``status``: nothing of the store is loaded where nothing is patched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from patcher.commands import elsewhere
from patcher.commands.finding import SearchOptions, named_projects, report_nothing
from patcher.messages import CommandResult, Note, StepResult, Text, joined

if TYPE_CHECKING:
    from patcher.commands.applied import PatchPayload

_NAMED = 20
"""Most entries that a warning names."""


class Status(NamedTuple):
    """Result of `status`; `elsewhere` are patched roots outside of the search."""

    patches: tuple[PatchPayload, ...] = ()
    elsewhere: tuple[str, ...] = ()


def status(names: Sequence[str], search: SearchOptions, *, everywhere: bool = False) -> CommandResult:
    """Return the result of `rlpatch status`: each patch of the targets `names` (none: all), and the state of its files.

    Patches that this user applied outside of the search are only named, unless `everywhere`. Raises Problem: USAGE for
    a name with a version, NO_TARGET for an unknown one.
    """
    named_projects(names, search)
    discovery = search.discover()
    remembered = elsewhere.remembered_roots() if everywhere or not search.words else elsewhere.Remembered()
    if discovery.may_be_patched or not set(remembered.roots).issubset(discovery.stores):
        from patcher.commands.patching import roots  # noqa: PLC0415  (it loads the store, and mostly nothing is patched)

        report = roots.status(names, search, discovery, everywhere=everywhere)
        step, data = report.step, Status(report.patches, tuple(str(root.path) for root in report.elsewhere))
    else:
        step, data = report_nothing(names, discovery), Status()
    if everywhere and remembered.unreadable:
        step += StepResult.noted([_unreadable_warning(remembered.unreadable)], "warning")
    return CommandResult("status", step, data=data)


def _unreadable_warning(entries: Sequence[Path]) -> Note:
    """Return a warning that `entries` of the list of patched folders cannot be read, with up to 20 of their paths."""
    paths = ["".join(char if char.isprintable() else " " for char in str(path)) for path in entries[:_NAMED]]
    more = [Text("and {count} more entries", len(entries) - _NAMED)] if len(entries) > _NAMED else []
    text = Text("skipped {count} unreadable entries in the list of patched folders", len(entries))
    why = Text(
        "for each patched folder, rlpatch keeps a file with its path. These are not regular files, or contain no path:"
    )
    return Note(text, joined("\n", [why, *paths, *more]))
