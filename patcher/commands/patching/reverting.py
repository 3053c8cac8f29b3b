"""``revert``: take patches out of every root that has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from patcher.changes.change import PatchId
from patcher.commands.applied import Removal, Reverted, removal, restart_lines, restore_hint, settle
from patcher.commands.finding import Search, report_nothing
from patcher.commands.patching.applying import on
from patcher.commands.patching.planning import Attempted
from patcher.commands.patching.roots import elsewhere_line, patched_elsewhere, patched_roots
from patcher.commands.patching.tampering import edited
from patcher.commands.where import Committed, Where, carry_out, running, searches
from patcher.messages import OR, CommandLine, CommandResult, Kind, Note, Problem, StepResult, Text, joined, usage
from patcher.targets.patched import PatchedRoot
from patches import projects


def revert(
    words: Sequence[str], where: Where, *, stage: str | None, role: str | None, dry_run: bool, restore: bool = False
) -> CommandResult:
    """Remove the patches of `words` (none: all) from every root that was found, all or nothing.

    With `restore`, a file whose inserted lines were edited becomes its backup. `stage` and `role` select patches.
    Raises Problem (USAGE) if none of the applied patches match.
    """
    patched, nothing, step = _patched_roots(words, where, dry_run=dry_run)
    patches = _selected([root for one in patched for root in one.values], stage, role)
    tried = [one.then(lambda root: _removal(root, patches, restore=restore)) for one in patched]
    broken = [problem for one in patched for root in one.values for problem in root.broken]
    step += StepResult(problems=(*broken, *(problem for one in tried for problem in one.problems)))
    if step.problems:
        return CommandResult("revert", step, data=Reverted(dry_run))
    taken = [(one.search, removed) for one in tried for removed in one.values if removed]
    work = [(search, one.edit) for search, one in taken]
    committed = carry_out(where, work, Text("reverted"), dry_run=dry_run)
    step += committed.step
    if not taken:
        return CommandResult("revert", step + nothing, data=Reverted(dry_run, nodes=committed.nodes))
    return _reverted(step, taken, committed, where, dry_run=dry_run)


def _removal(root: PatchedRoot, patches: set[PatchId], *, restore: bool) -> Removal | None:
    """Return what removes `patches` from `root`, None if it has none; a FOREIGN_EDIT problem suggests `--restore`."""
    try:
        return removal(root, patches, restore=restore)
    except Problem as problem:
        if restore or root.mirror or problem.kind is not Kind.FOREIGN_EDIT:
            raise
        raise edited(problem.replace(hint=restore_hint(root)), root) from None


def _reverted(
    step: StepResult, taken: Sequence[tuple[Search, Removal]], committed: Committed, where: Where, *, dry_run: bool
) -> CommandResult:
    """Return the final report: each removal, and the processes to restart unless it was a `dry_run`."""
    for search, ours in groupby(taken, key=lambda one: one[0]):
        step += StepResult((*on(search), *(line for _, one in ours for line in one.lines(dry_run=dry_run))))
    files = tuple(file for search, one in taken for file in one.payload(search.nodes))
    data = Reverted(dry_run, files, committed.nodes)
    if not dry_run:
        applied = ((search, one.root.path, record.patch.target) for search, one in taken for record in one.root.records)
        names = {project.name for project in projects.projects()}
        upstreams = [(search, projects.upstream(name), root) for search, root, name in applied if name in names]
        engines = running(where, upstreams)
        step += StepResult(tuple(restart_lines(engines)))
        data = replace(data, restart=tuple(engine.line for engine in engines))
    return CommandResult("revert", step, data=data)


def _patched_roots(
    words: Sequence[str], where: Where, *, dry_run: bool
) -> tuple[list[Attempted[PatchedRoot]], StepResult, StepResult]:
    """Return the patched roots, the report if nothing is reverted, and what became of interrupted commands."""
    places, step = searches(where, words, "revert", writes=not dry_run)
    patched, nothing, elsewhere = [], StepResult(), list[PatchedRoot]()
    for search in places:
        roots, discovery = patched_roots(words, search)
        if any(root.pending for root in roots) and not dry_run and not where.nodes:
            step += settle(discovery, where.on_wait)
            roots, discovery = patched_roots(words, search)
        patched.append(Attempted(search, roots))
        elsewhere += [] if search.words else patched_elsewhere(words, search, discovery)
        nothing = report_nothing(words, discovery, here=bool(elsewhere))
    if elsewhere and any(attempted.values for attempted in patched):
        text = Text("other places still have patches: {commandline}", CommandLine("status", *words, "--everywhere"))
        step += StepResult.noted([Note(text, joined("\n", map(elsewhere_line, elsewhere)))])
    elif elsewhere:
        nothing = StepResult(problems=(_elsewhere(words, nothing, elsewhere),))
    return patched, nothing, step


def _elsewhere(words: Sequence[str], nothing: StepResult, roots: Sequence[PatchedRoot]) -> Problem:
    """Return the problem that nothing was reverted although `roots` outside of the search are patched."""
    (cause, *_) = nothing.lines
    hint = joined(OR, (CommandLine("revert", *words, "--path", str(root.path)) for root in roots))
    return Problem(Kind.NO_TARGET, cause, hint=hint, notes=tuple(map(elsewhere_line, roots)))


def _selected(roots: Iterable[PatchedRoot], stage: str | None, role: str | None) -> set[PatchId]:
    """Return the applied patches with the given stage and role (None: any). Raises Problem (USAGE) if none match."""
    applied = {record.patch for root in roots for record in root.records}
    patches = {patch for patch in applied if stage in (None, patch.stage) and role in (None, patch.role)}
    if applied and not patches:
        options = " ".join(f"--{option} {text}" for option, text in (("stage", stage), ("role", role)) if text)
        hint = Text("applied patches: {applied}", ", ".join(sorted(map(str, applied))))
        raise usage(Text("{options}: there is no such patch", options), hint)
    return patches
