"""``revert``: take patches out of every root that has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from patcher.changes.change import PatchId
from patcher.commands.applied import Removal, Reverted, end_interrupted, removal, restart_lines, restore_hint
from patcher.commands.finding import Search, report_nothing
from patcher.commands.patching.applying import node_header
from patcher.commands.patching.planning import Attempted
from patcher.commands.patching.roots import elsewhere_line, patched_elsewhere, patched_roots
from patcher.commands.where import Committed, Where, carry_out, running, searches
from patcher.messages import OR, CommandLine, CommandResult, Kind, Note, Problem, StepResult, Text, joined, usage
from patcher.targets.patched import PatchedRoot
from patches import projects


def revert(
    words: Sequence[str], where: Where, *, stage: str | None, role: str | None, dry_run: bool, restore: bool = False
) -> CommandResult:
    """Remove the patches of the targets `words` (none: all) from every patched root, from all roots or from none.

    With `restore`, a file whose inserted lines were edited is replaced by its backup. `stage` and `role` select patches
    (None: any). Interrupted commands are ended first, except with `dry_run`. Raises Problem: USAGE if patches are
    applied, but none has this stage and role; others if the removal itself fails.
    """
    patched, nothing, step = _patched_roots(words, where, dry_run=dry_run)
    roots = [root for attempt in patched for root in attempt.values]
    patches = _selected_patches(roots, stage, role)
    planned = [attempt.then(lambda root: _planned_removal(root, patches, restore=restore)) for attempt in patched]
    broken = [problem for root in roots for problem in root.broken]
    step += StepResult(problems=(*broken, *(problem for attempt in planned for problem in attempt.problems)))
    if step.problems:
        return CommandResult("revert", step, data=Reverted(dry_run))
    removals = [(attempt.search, removed) for attempt in planned for removed in attempt.values if removed]
    work = [(search, removal.edit) for search, removal in removals]
    committed = carry_out(where, work, Text("reverted"), dry_run=dry_run)
    step += committed.step
    if not removals:
        return CommandResult("revert", step + nothing, data=Reverted(dry_run, nodes=committed.nodes))
    return _final_report(step, removals, committed, where, dry_run=dry_run)


def _planned_removal(root: PatchedRoot, patches: set[PatchId], *, restore: bool) -> Removal | None:
    """Return the planned removal of `patches` from `root`, None if the root has none of them.

    Without `restore`, the Problem of edited lines on this machine suggests `--restore`.
    """
    try:
        return removal(root, patches, restore=restore)
    except Problem as problem:
        if restore or root.mirror or problem.kind is not Kind.FOREIGN_EDIT:
            raise
        raise problem.replace(hint=restore_hint(root.path)) from None


def _final_report(
    step: StepResult, removals: Sequence[tuple[Search, Removal]], committed: Committed, where: Where, *, dry_run: bool
) -> CommandResult:
    """Return the result of `rlpatch revert`: `step`, each removal, and without `dry_run` the processes to restart."""
    for search, pairs in groupby(removals, key=lambda pair: pair[0]):
        lines = (line for _, removal in pairs for line in removal.lines(dry_run=dry_run))
        step += StepResult((*node_header(search), *lines))
    files = tuple(file for search, removal in removals for file in removal.payload(search.nodes))
    data = Reverted(dry_run, files, committed.nodes)
    if not dry_run:
        applied = (
            (search, removal.root.path, record.patch.target)
            for search, removal in removals
            for record in removal.root.records
        )
        names = {project.name for project in projects.projects()}
        upstreams = [(search, projects.upstream(name), root) for search, root, name in applied if name in names]
        engines = running(where, upstreams)
        step += StepResult(tuple(restart_lines(engines)))
        data = replace(data, restart=tuple(engine.line for engine in engines))
    return CommandResult("revert", step, data=data)


class _PatchedRoots(NamedTuple):
    """Patched roots of each search; the report `nothing` is shown only if nothing is reverted, `step` in any case."""

    searched: list[Attempted[PatchedRoot]]
    nothing: StepResult
    step: StepResult


def _patched_roots(words: Sequence[str], where: Where, *, dry_run: bool) -> _PatchedRoots:
    """Return the roots with patches of the targets `words` (none: of any), and reports on the search.

    Interrupted commands are ended first, on a cluster by `searches`; with `dry_run` they are not.
    """
    places, step = searches(where, words, "revert", writes=not dry_run)
    patched, nothing, elsewhere = [], StepResult(), list[PatchedRoot]()
    for search in places:
        roots, discovery = patched_roots(words, search)
        if any(root.pending for root in roots) and not dry_run and not where.nodes:
            step += end_interrupted(discovery, where.on_wait)
            roots, discovery = patched_roots(words, search)
        patched.append(Attempted(search, roots))
        if not search.words:
            elsewhere += patched_elsewhere(words, search, discovery)
        nothing = report_nothing(words, discovery, is_elsewhere=bool(elsewhere))
    if elsewhere and any(attempted.values for attempted in patched):
        command = CommandLine("status", *words, "--everywhere")
        text = Text("other places still have patches; list them with {command}", command)
        step += StepResult.noted([Note(text, joined("\n", map(elsewhere_line, elsewhere)))])
    elif elsewhere:
        nothing = StepResult(problems=(_elsewhere_problem(words, nothing, elsewhere),))
    return _PatchedRoots(patched, nothing, step)


def _elsewhere_problem(words: Sequence[str], report: StepResult, roots: Sequence[PatchedRoot]) -> Problem:
    """Return the problem that nothing was reverted, although `roots` outside of the search have patches of `words`."""
    (cause, *_) = report.lines
    hint = joined(OR, (CommandLine("revert", *words, "--path", str(root.path)) for root in roots))
    return Problem(Kind.NO_TARGET, cause, hint=hint, notes=tuple(map(elsewhere_line, roots)))


def _selected_patches(roots: Iterable[PatchedRoot], stage: str | None, role: str | None) -> set[PatchId]:
    """Return the applied patches with the given stage and role (None: any). Raises Problem (USAGE) if none matches."""
    applied = {record.patch for root in roots for record in root.records}
    patches = {patch for patch in applied if stage in (None, patch.stage) and role in (None, patch.role)}
    if applied and not patches:
        options = " ".join(f"--{option} {text}" for option, text in (("stage", stage), ("role", role)) if text)
        hint = Text("applied patches: {patches}", ", ".join(sorted(map(str, applied))))
        raise usage(Text("no applied patch matches {options}", options), hint)
    return patches
