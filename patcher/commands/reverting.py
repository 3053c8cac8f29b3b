"""``revert``: take patches out of every root that has them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from patcher import edits
from patcher.commands.applying import on, restart_lines
from patcher.commands.patched import PatchedRoot, patched_roots, report_nothing
from patcher.errors import Kind, Problem
from patcher.report import OMIT_NONE, Report, StepResult
from patches import projects

if TYPE_CHECKING:
    from patcher.change import Edit, PatchId
    from patcher.commands.finding import Search
    from patcher.commands.where import Where
    from patcher.targets.target import Discovery


@dataclass(frozen=True)
class RevertedFile:
    """A file of a patch that was taken out; not ``reverted`` where it had been replaced and has no line of ours."""

    root: str
    path: str
    reverted: bool
    nodes: tuple[str, ...] | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class Reverted:
    """The result of ``revert``; ``nodes`` is what was written on which node of a cluster."""

    dry_run: bool
    files: tuple[RevertedFile, ...] = ()
    nodes: Mapping[str, Mapping[str, object]] | None = field(default=None, metadata=OMIT_NONE)
    restart: tuple[str, ...] | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class _Planned:
    """What is taken out of one root."""

    search: Search
    root: PatchedRoot
    edit: Edit


def revert(words: Sequence[str], where: Where, *, stage: str | None, role: str | None, dry_run: bool) -> Report:
    """Take the patches of ``words`` (none: all) out of every root that was found, all or nothing.

    ``stage`` and ``role`` leave those of other stages and roles in; Problem (USAGE) where none of that kind is applied.
    """
    searches, step = where.searches(words, "revert", writes=not dry_run)
    searched: list[tuple[Search, list[PatchedRoot], Discovery]] = []
    for search in searches:
        roots, found = patched_roots(words, search)
        if any(root.pending for root in roots) and not dry_run:
            step += where.settle(search)
            roots, found = patched_roots(words, search)
        searched.append((search, roots, found))
    wanted = _wanted([root for _, roots, _ in searched for root in roots], stage, role)
    tried = [_planned(search, root, wanted) for search, roots, _ in searched for root in roots]
    planned = [one for one in tried if isinstance(one, _Planned)]
    step += StepResult(problems=tuple(one for one in tried if isinstance(one, Problem)))
    if step.problems:
        return Report("revert", step, data=Reverted(dry_run))
    work = [(one.search, one.edit) for one in planned]
    nodes = None
    if dry_run:
        step += where.preflight(work)
    else:
        committed = where.commit(work, "reverted")
        step, nodes = step + committed.step, committed.nodes
    if not planned:
        return Report("revert", step + report_nothing(words, searched[-1][2]), data=Reverted(dry_run, nodes=nodes))
    restart = None if dry_run else _running(where, planned)
    lines = (*_lines(planned, dry_run=dry_run), *(restart_lines(restart) if restart is not None else ()))
    files = tuple(file for one in planned for file in _files(one))
    return Report("revert", step + StepResult(lines), data=Reverted(dry_run, files, nodes, restart))


def _wanted(roots: Iterable[PatchedRoot], stage: str | None, role: str | None) -> set[PatchId]:
    applied = {record.patch for root in roots for record in root.records}
    wanted = {patch for patch in applied if stage in (None, patch.stage) and role in (None, patch.role)}
    if applied and not wanted:
        options = " ".join(f"--{option} {text}" for option, text in (("stage", stage), ("role", role)) if text)
        hint = f"one of: {', '.join(sorted(map(str, applied)))}"
        raise Problem(Kind.USAGE, f"{options}: no such patch is applied", hint=hint)
    return wanted


def _planned(search: Search, root: PatchedRoot, wanted: Collection[PatchId]) -> _Planned | Problem | None:
    patches = [record.patch for record in root.records if record.patch in wanted]
    try:
        return _Planned(search, root, edits.revert(root.path, root.read, root.records, patches)) if patches else None
    except Problem as problem:
        return problem.replace(node=", ".join(search.nodes))


def _running(where: Where, planned: Sequence[_Planned]) -> tuple[str, ...]:
    """The processes that may hold the patched code."""
    known = {project.name for project in projects.projects()}
    reverted = {(record.patch.target, one.root.path): one.search for one in planned for record in one.root.records}
    return tuple(
        where.running([(s, projects.upstream(name), root) for (name, root), s in reverted.items() if name in known])
    )


def _outcomes(one: _Planned) -> Iterator[tuple[PatchId, str, bool | None]]:
    """Each patch and file that is reverted: whether lines of another patch stay there, None for a replaced file."""
    changed = {str(change.path): change for change in one.edit.changes if change.before != change.after}
    for record in (record for record in one.root.records if record.patch in one.edit.remove):
        for file in record.files:
            change = changed.get(file)
            yield record.patch, file, None if change is None else change.after != change.pristine


def _lines(planned: Sequence[_Planned], *, dry_run: bool) -> Iterator[str]:
    verb = "would revert" if dry_run else "reverted"
    searches = []
    for one in planned:
        if one.search not in searches:
            searches.append(one.search)
            yield from on(one.search)
        last = None
        for patch, file, others in _outcomes(one):
            if patch != last:
                yield f"{patch} in {one.root.path}"
            last = patch
            if others is None:
                yield f"  forgotten: {file} was replaced meanwhile and has no line of ours"
            else:
                yield f"  {verb} {file}: {'the lines of another patch stay' if others else 'none of our lines is left'}"


def _files(one: _Planned) -> Iterator[RevertedFile]:
    for _, file, others in _outcomes(one):
        yield RevertedFile(str(one.root.path), file, others is not None, one.search.nodes or None)
