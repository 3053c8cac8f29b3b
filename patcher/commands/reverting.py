"""``revert``: take patches out of every root that has them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from patcher import edits
from patcher.commands.applying import on, restart
from patcher.commands.patched import PatchedRoot, patched_roots, report_nothing
from patcher.commands.where import Committed
from patcher.errors import Kind, Problem
from patcher.report import OMIT_NONE, Report, StepResult
from patches import projects

if TYPE_CHECKING:
    from patcher.change import Edit, PatchId
    from patcher.commands.finding import Search
    from patcher.commands.where import Where


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


class _Planned(NamedTuple):
    """What is taken out of one root."""

    search: Search
    root: PatchedRoot
    edit: Edit

    @property
    def outcomes(self) -> Iterator[tuple[PatchId, str, bool | None]]:
        """Each patch and its files: whether lines of another patch stay there, None for a file that was replaced."""
        changed = {str(change.path): change for change in self.edit.changes if change.before != change.after}
        for record in (record for record in self.root.records if record.patch in self.edit.remove):
            for file in record.files:
                change = changed.get(file)
                yield record.patch, file, None if change is None else change.after != change.pristine


def revert(words: Sequence[str], where: Where, *, stage: str | None, role: str | None, dry_run: bool) -> Report:
    """Take the patches of ``words`` (none: all) out of every root that was found, all or nothing.

    ``stage`` and ``role`` leave those of other stages and roles in; Problem (USAGE) where none of that kind is applied.
    """
    patched, nothing, step = _found(words, where, dry_run=dry_run)
    wanted = _wanted([root for _, root in patched], stage, role)
    tried = [_planned(search, root, wanted) for search, root in patched]
    step += StepResult(problems=tuple(one for one in tried if isinstance(one, Problem)))
    if step.problems:
        return Report("revert", step, data=Reverted(dry_run))
    planned = [one for one in tried if isinstance(one, _Planned)]
    work = [(one.search, one.edit) for one in planned]
    committed = Committed(where.preflight(work)) if dry_run else where.commit(work, "reverted")
    step += committed.step
    if not planned:
        return Report("revert", step + nothing, data=Reverted(dry_run, nodes=committed.nodes))
    step += StepResult(tuple(_lines(planned, dry_run=dry_run)))
    files = tuple(file for one in planned for file in _files(one))
    if dry_run:
        return Report("revert", step, data=Reverted(dry_run, files))
    running = _running(where, planned)
    return Report("revert", step + restart(running), data=Reverted(dry_run, files, committed.nodes, running))


def _found(
    words: Sequence[str], where: Where, *, dry_run: bool
) -> tuple[list[tuple[Search, PatchedRoot]], StepResult, StepResult]:
    """The roots with patches, what to say if there is none, and what came of ending interrupted runs."""
    searches, step = where.searches(words, "revert", writes=not dry_run)
    patched: list[tuple[Search, PatchedRoot]] = []
    nothing = StepResult()
    for search in searches:
        roots, found = patched_roots(words, search)
        if any(root.pending for root in roots) and not dry_run:
            step += where.settle(search)
            roots, found = patched_roots(words, search)
        patched += [(search, root) for root in roots]
        nothing = report_nothing(words, found)
    return patched, nothing, step


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
    upstreams = {name: projects.upstream(name) for name, _ in reverted if name in known}
    return tuple(
        where.running([(search, upstreams[name], root) for (name, root), search in reverted.items() if name in known])
    )


def _lines(planned: Sequence[_Planned], *, dry_run: bool) -> Iterator[str]:
    verb = "would revert" if dry_run else "reverted"
    shown: list[object] = []
    for one in planned:
        if one.search not in shown:
            yield from on(one.search)
        shown.append(one.search)
        for patch, file, others in one.outcomes:
            if (one.root.path, patch) not in shown:
                yield f"{patch} in {one.root.path}"
            shown.append((one.root.path, patch))
            if others is None:
                yield f"  forgotten: {file} was replaced meanwhile and has no line of ours"
            else:
                yield f"  {verb} {file}: {'the lines of another patch stay' if others else 'none of our lines is left'}"


def _files(one: _Planned) -> Iterator[RevertedFile]:
    for _, file, others in one.outcomes:
        yield RevertedFile(str(one.root.path), file, others is not None, one.search.nodes or None)
