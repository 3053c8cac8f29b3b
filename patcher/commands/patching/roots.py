"""The roots that hold patches of some targets: what `status` shows of them, and where `diff` and `revert` look."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from patcher.changes.change import Record
from patcher.commands import applied, elsewhere
from patcher.commands.applied import PatchPayload
from patcher.commands.finding import Search, SearchOptions, named_projects, report_nothing
from patcher.messages import CommandLine, Kind, Note, Problem, StepResult, Text
from patcher.targets.patched import PatchedRoot, patched
from patcher.targets.target import Discovery

_LOOKS = 5
"""Times that `status` looks at most: while another command changes a file, it may seem to have lost its patch."""


class RootsReport(NamedTuple):
    """Report on roots with patches, the patches for JSON, and the roots `elsewhere` that the report only names."""

    step: StepResult
    patches: tuple[PatchPayload, ...]
    elsewhere: Sequence[PatchedRoot]


def status(names: Sequence[str], search: SearchOptions, discovery: Discovery, *, everywhere: bool) -> RootsReport:
    """Return the report on all roots with patches of the targets `names` (none: of any).

    Roots in `discovery` are reported; roots elsewhere are only named, unless `everywhere`. If a file is not intact, the
    roots are read again until two looks agree, up to `_LOOKS` times: another command may be changing the file.
    """
    payloads: list[tuple[PatchPayload, ...]] = []
    for _ in range(_LOOKS):
        roots, previous = _find_roots(names, search, discovery, everywhere=everywhere), payloads
        reports = [_root_status(place, root) for place, root in roots.local]
        payloads = [patches for _, patches in reports]
        unchanged = all(file.state == "intact" for patches in payloads for patch in patches for file in patch.files)
        if unchanged or payloads == previous:
            break
    step = StepResult() if roots.local else report_nothing(names, discovery, is_elsewhere=bool(roots.elsewhere))
    for report, _ in reports:
        step += report
    step += StepResult(tuple(map(elsewhere_line, roots.elsewhere)))
    if roots.elsewhere:
        step += StepResult((Text("next: {command}", CommandLine("status", *names, "--everywhere")),))
    return RootsReport(step, tuple(patch for patches in payloads for patch in patches), roots.elsewhere)


class _Roots(NamedTuple):
    """Patched roots to report in full, each with the search that leads to it, and the ones to name only."""

    local: Sequence[tuple[Search, PatchedRoot]]
    elsewhere: Sequence[PatchedRoot]


def _find_roots(names: Sequence[str], search: SearchOptions, discovery: Discovery, *, everywhere: bool) -> _Roots:
    """Return the roots with patches of the targets `names`: `local` ones with their searches, and those elsewhere.

    Roots outside of `discovery` are local with `everywhere`, and left out if the search is restricted.
    """
    several = len(search.path) > 1
    local: list[tuple[Search, PatchedRoot]] = [
        (search.replace(path=(root.path,)) if several else search, root)
        for root in patched(discovery, named_projects(names, search))
    ]
    elsewhere = patched_elsewhere(names, search, discovery) if everywhere or not search.words else []
    if not everywhere:
        return _Roots(local, elsewhere)
    searches = [search.replace(path=(other.path,), python=None) for other in elsewhere]
    return _Roots(local + [(other, root) for other in searches for root in patched_roots(names, other)[0]], ())


def _root_status(search: Search, root: PatchedRoot) -> tuple[StepResult, tuple[PatchPayload, ...]]:
    """Return the report and the JSON of all patches in a root.

    An interrupted command is a warning; edited lines and files that have lost their patch are problems.
    """

    def again(record: Record) -> str:
        return CommandLine("apply", record.patch.target, *record.options, *search.words) if record.options else ""

    step = StepResult()
    if root.pending:
        recover = CommandLine("recover", *search.words)
        text = Text("an rlpatch command was interrupted in this folder; type {command}", recover)
        where = Text("an rlpatch command was interrupted in {path}", root.path)
        step = StepResult.noted([Note(text, where)], "warning")
    state, patches = applied.status(root, again)
    changed = [str(root.path / file.path) for patch in patches for file in patch.files if file.state == "tampered"]
    if changed:
        cause = Text("somebody edited or moved lines that rlpatch inserted, so the recording cannot be trusted")
        edited = [*applied.edited_files(root, {record.patch for record in root.records})]
        hint = applied.restore_hint(root.path) if edited else CommandLine("revert", "--path", str(root.path))
        step += StepResult(problems=(Problem(Kind.FOREIGN_EDIT, cause, changed[0], hint),))
    for record, patch in zip(root.records, patches, strict=True):
        for file in [file for file in patch.files if file.state in ("lost", "missing")][:1]:
            cause = Text("{patch} no longer records anything in this file: {reason}")
            cause = cause.filled(patch=record.patch, reason=file.detail)
            forget = CommandLine("revert", record.patch.target, "--path", str(root.path))
            hint = (file.state == "lost" and again(record)) or forget
            if root.pending:
                cause = Text(
                    "an rlpatch command that changes {patch} was interrupted or is still running", record.patch
                )
                hint = CommandLine("recover", *search.words)
            step += StepResult(problems=(Problem(Kind.LOST, cause, str(root.path / file.path), hint),))
    return step + state, patches


def patched_elsewhere(names: Sequence[str], search: Search, discovery: Discovery) -> list[PatchedRoot]:
    """Return the roots outside of `discovery` in which this user applied patches of `names` (none: of any target)."""
    roots: list[PatchedRoot] = []
    for root in elsewhere.remembered_roots().roots:
        if root not in discovery.stores:
            with suppress(Problem):  # whoever looks there sees it
                roots += patched(Discovery((), (root,), (), ()), named_projects(names, search))
    return roots


def elsewhere_line(root: PatchedRoot) -> str:
    """Return a line that names a root outside of the search and its patches."""
    patches = ", ".join(str(record.patch) for record in root.records) or Text("an interrupted command")
    return Text("also patched: {patches} in {folder}", patches=patches, folder=root.path)


def patched_roots(names: Sequence[str], search: Search) -> tuple[list[PatchedRoot], Discovery]:
    """Return the roots with patches of `names` (none: of any), and all that was discovered. Raises Problem."""
    names_of_projects = named_projects(names, search)
    discovery = search.discover()
    return patched(discovery, names_of_projects), discovery
