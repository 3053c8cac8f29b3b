"""``status``, and what other commands find patched as it does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from patcher.changes import markers
from patcher.changes.change import Record
from patcher.commands import applied, elsewhere
from patcher.commands.applied import PatchPayload
from patcher.commands.finding import Search, SearchOptions
from patcher.messages.command_line import CommandLine
from patcher.messages.errors import Kind, Problem
from patcher.messages.notes import Note
from patcher.messages.report import CommandResult, StepResult
from patcher.messages.text import SEMICOLON, Text, joined
from patcher.targets import find as targets
from patcher.targets.patched import PatchedRoot, patched
from patcher.targets.target import Discovery
from patches.projects import projects

_NAMED = 20
"""Entries that a warning names."""


@dataclass(frozen=True)
class Status:
    """The result of ``status``; ``elsewhere`` are roots that the search does not come by."""

    patches: tuple[PatchPayload, ...] = ()
    elsewhere: tuple[str, ...] = ()


def status(names: Sequence[str], search: SearchOptions, *, everywhere: bool = False) -> CommandResult:
    """What is patched where, since when, and whether it is still as rlpatch left it.

    With ``everywhere`` also in the roots that the search does not come by.
    """
    roots, found = patched_roots(names, search)
    shown = [(search, root) for root in roots]
    others = patched_elsewhere(names, search, found) if everywhere or not search.words else []
    if everywhere:
        searches = [replace(search, path=other.path, python=None, environment=None) for other in others]
        shown += [(one, root) for one in searches for root in patched_roots(names, one)[0]]
        others = []
    unread = elsewhere.remembered().unreadable if everywhere else ()
    step = StepResult() if shown else report_nothing(names, found, here=bool(others))
    patches: list[PatchPayload] = []
    for one, root in shown:
        found_here, payloads = _status(one, root)
        step += found_here
        patches += payloads
    step += StepResult(tuple(map(elsewhere_line, others)))
    if others:
        step += StepResult((Text("next: {commandline}", CommandLine("status", *names, "--everywhere")),))
    if unread:
        step += StepResult.noted([_left_out(unread)], "warning")
    return CommandResult("status", step, data=Status(tuple(patches), tuple(str(other.path) for other in others)))


def _left_out(entries: Sequence[Path]) -> Note:
    paths = ["".join(char if char.isprintable() else " " for char in str(path)) for path in entries[:_NAMED]]
    more = [Text("and {count} more", len(entries) - _NAMED)] if len(entries) > _NAMED else []
    text = Text("left out: {count} entries of what you have patched cannot be read", len(entries))
    return Note(text, joined("\n", [Text("they are no files, or hold no path:"), *paths, *more]))


def _status(search: Search, root: PatchedRoot) -> tuple[StepResult, tuple[PatchPayload, ...]]:
    def again(record: Record) -> str:
        return CommandLine("apply", record.patch.target, *record.options, *search.words) if record.options else ""

    step = StepResult()
    if root.pending:
        text = Text("a root holds an interrupted run; next: {commandline}", CommandLine("recover", *search.words))
        step = StepResult.noted([Note(text, Text("{path} holds an interrupted run", root.path))], "warning")
    found, patches = applied.status(root, again)
    changed = [str(root.path / file.path) for patch in patches for file in patch.files if file.state == "tampered"]
    if changed:
        cause = Text("lines that rlpatch inserted were edited or moved: what they record is unknown")
        edited = [*applied.edited_files(root, {record.patch for record in root.records})]
        hint = restore_hint(root) if edited else CommandLine("revert", "--path", str(root.path))
        step += StepResult(problems=(Problem(Kind.FOREIGN_EDIT, cause, changed[0], hint),))
    return step + found, patches


def restore_hint(root: PatchedRoot) -> str:
    """How lines of ours that somebody has edited come out of the files below ``root``."""
    shown = CommandLine("revert", "--restore", "--dry-run", "--path", str(root.path))
    return Text(
        "undo the edit; or {command} shows what the backup would undo; or {reinstall}", shown, markers.REINSTALL
    )


def patched_elsewhere(names: Sequence[str], search: Search, found: Discovery) -> list[PatchedRoot]:
    """The roots with patches of ``names`` that this user has patched, and a search has not ``found``."""
    others: list[PatchedRoot] = []
    for root in elsewhere.remembered().roots:
        if root not in found.stores:
            with suppress(Problem):  # whoever looks there sees it
                others += patched(Discovery((), (root,), (), ()), _projects(names, search))
    return others


def elsewhere_line(root: PatchedRoot) -> str:
    """That a root is patched, and by what."""
    patches = ", ".join(str(record.patch) for record in root.records) or Text("an interrupted run")
    return Text("patched elsewhere: {patches} in {path}", patches, root.path)


def patched_roots(names: Sequence[str], search: Search) -> tuple[list[PatchedRoot], Discovery]:
    """Every root that holds patches of the targets ``names`` (none: of any), and what was found altogether."""
    wanted = _projects(names, search)
    found = search.discover()
    return patched(found, wanted), found


def _projects(names: Sequence[str], search: Search) -> set[str]:
    known = projects()
    wanted = set()
    for word in names:
        name, _ = targets.parse(word.partition("==")[0], known)
        if "==" in word:
            cause = Text("{word}: patches are found by target, not by version", word)
            raise Problem(Kind.USAGE, cause, hint=search.again(word, name))
        wanted.add(name)
    return wanted


def nothing_found(names: Sequence[str], found: Discovery) -> Note:
    """That no patch of ``names`` was found, and where was looked."""
    what = Text("no patch of {names}", ", ".join(names)) if names else Text("nothing is patched")
    return Note(what, Text("looked in: {places}", joined(SEMICOLON, found.searched)))


def report_nothing(names: Sequence[str], found: Discovery, *, here: bool = False) -> StepResult:
    """The same as a result, with a warning for each project that is there but cannot be patched.

    ``here``: something is patched elsewhere.
    """
    warnings = StepResult.noted((problem.note for problem in found.problems), "warning")
    text, detail = nothing_found(names, found)
    if here:
        text = Text("{nothing} here", text)
    return StepResult((joined(SEMICOLON, (text, detail)),)) + warnings
