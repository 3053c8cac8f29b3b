"""The commands of a bundle: those of rlpatch on one machine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from patcher.bundle.fitting import FittedPlan, fit
from patcher.bundle.plans import Bundle
from patcher.changes import edits
from patcher.changes.change import Edit
from patcher.commands import applied
from patcher.commands.applied import Diff, Files, PatchPayload, Removal, Reverted
from patcher.messages import CommandLine, Kind, Problem, problem_of
from patcher.messages.report import OMIT_NONE, CommandResult, StepResult
from patcher.store import outcomes
from patcher.store import transaction as store
from patcher.store.folder import StoreFolder
from patcher.targets import find as targets
from patcher.targets.patched import PatchedRoot, patched
from patcher.targets.target import Discovery, Project, Target

_TRIES = 5


class Machine(NamedTuple):
    """Bundle and the place where it looks for targets; `words` are the options for this place, as typed.

    `on_wait` gets a line for each lock that is waited for.
    """

    bundle: Bundle
    path: Path | None
    python: str | None
    on_wait: Callable[[str], None]
    words: tuple[str, ...] = ()

    def discover(self) -> Discovery:
        """Return the installed targets of the bundle and every root with a store."""
        paths = [self.path] if self.path else []
        return targets.discover(self.bundle.projects, paths=paths, python=self.python, git=False)

    def patched(self, discovery: Discovery) -> list[PatchedRoot]:
        """Return the roots with patches of the bundle's projects, whether the bundle applied them or not."""
        return patched(discovery, {project.name for project in self.bundle.projects})

    def plan(self, discovery: Discovery) -> tuple[list[FittedPlan], tuple[Problem, ...]]:
        """Return the plan for each target, and the problems: of the discovery, and of projects that do not fit."""
        plans: list[FittedPlan] = []
        problems = [*discovery.problems]
        for project in self.bundle.projects:
            target = next((target for target in discovery.targets if target.project == project), None)
            try:
                if target:
                    plans.append(fit(self.bundle, target))
                elif not discovery.problems:
                    problems.append(_absent(project, discovery))
            except (Problem, PermissionError) as error:
                problems.append(problem_of(error))
        return plans, tuple(problems)


def _absent(project: Project, discovery: Discovery) -> Problem:
    cause = f"{project.name} (package {project.package}) is not installed here"
    hint = "name the folder that holds the package (--path), or the interpreter that imports it (--python)"
    return Problem(Kind.NO_TARGET, cause, "; ".join(discovery.searched), hint)


@dataclass(frozen=True)
class PlannedTarget:
    """Target with its plan, for JSON; `save_path` is None if the framework decides where traces go."""

    target: str
    version: str
    root: str
    kind: str
    stage: str
    role: str
    options: tuple[str, ...]
    save_path: str | None
    files: tuple[dict[str, object], ...]


@dataclass(frozen=True)
class AppliedBundle:
    """Result of `apply`; `targets` is None after a problem."""

    dry_run: bool
    targets: tuple[PlannedTarget, ...] | None = field(default=None, metadata=OMIT_NONE)


def _retried(command: Callable[..., CommandResult]) -> Callable[..., CommandResult]:
    """Call `command` again while it raises FOREIGN_EDIT, `_TRIES` times in all: another machine may see the folder."""

    @functools.wraps(command)
    def retried(machine: Machine, *, dry_run: bool) -> CommandResult:
        for _ in range(_TRIES - 1):
            try:
                return command(machine, dry_run=dry_run)
            except Problem as problem:
                if problem.kind is not Kind.FOREIGN_EDIT:
                    raise
        return command(machine, dry_run=dry_run)

    return retried


@_retried
def apply(machine: Machine, *, dry_run: bool) -> CommandResult:
    """Complete or roll back interrupted commands, then patch all targets or, if one has a problem, none.

    Raises Problem if the change itself fails; earlier problems are in the result. With `dry_run` nothing is written.
    """
    discovery = machine.discover()
    step = StepResult() if dry_run else applied.end_interrupted(discovery, machine.on_wait)
    plans, problems = machine.plan(discovery)
    if problems:
        return CommandResult("apply", step + StepResult(problems=problems), data=AppliedBundle(dry_run))
    step += _carry_out(machine, [plan.edit for plan in plans], "patched", dry_run=dry_run)
    lines = [*_plan_lines(plans, "would patch" if dry_run else "patched")]
    if any(plan.changed for plan in plans) and not dry_run:
        lines += [*applied.next_lines(*machine.words), *applied.restart_lines()]
    return CommandResult("apply", step + StepResult(tuple(lines)), data=AppliedBundle(dry_run, _payload(plans)))


@_retried
def revert(machine: Machine, *, dry_run: bool) -> CommandResult:
    """Complete or roll back interrupted commands, then remove all the bundle's patches or, if there is a problem, none.

    Raises Problem if the change itself fails; earlier problems are in the result. With `dry_run` nothing is written.
    """
    discovery = machine.discover()
    step = StepResult() if dry_run else applied.end_interrupted(discovery, machine.on_wait)
    removals, removal_step = _removals(machine, discovery)
    step += removal_step
    if step.problems:
        return CommandResult("revert", step, data=Reverted(dry_run))
    step += _carry_out(machine, [removal.edit for removal in removals], "reverted", dry_run=dry_run)
    lines = [line for removal in removals for line in removal.lines(dry_run=dry_run)]
    if not removals:
        lines.append(f"no patch of this bundle is applied; looked in: {'; '.join(discovery.searched)}")
    elif not dry_run:
        lines += applied.restart_lines()
    files = tuple(file for removal in removals for file in removal.payload())
    return CommandResult("revert", step + StepResult(tuple(lines)), data=Reverted(dry_run, files))


def _removals(machine: Machine, discovery: Discovery) -> tuple[list[Removal], StepResult]:
    """Return the removals of the bundle's patches by root, and a line for each patch that the bundle does not know."""
    carried = {plan.patch for plan in machine.bundle.plans}
    removals, step = [], StepResult()
    for root in machine.patched(discovery):
        unknown = (record.patch for record in root.records if record.patch not in carried)
        step += StepResult(tuple(f"{patch} stays: it is not in this bundle" for patch in unknown))
        try:
            applied.refuse_broken(root)
            if removal := applied.removal(root, carried):
                removals.append(removal)
        except Problem as problem:
            step += StepResult(problems=(problem,))
    return removals, step


def _carry_out(machine: Machine, planned_edits: Sequence[Edit], verb: str, *, dry_run: bool) -> StepResult:
    if dry_run:
        return StepResult.noted(store.preflight(planned_edits))
    return outcomes.commit(planned_edits, verb, machine.on_wait)


@dataclass(frozen=True)
class TargetState:
    """State of a target: "as released", "patched", "patched otherwise", "interrupted" or "other"."""

    target: str
    version: str
    root: str
    state: str
    detail: str


@dataclass(frozen=True)
class BundleStatus:
    """Result of `status`."""

    targets: tuple[TargetState, ...]
    patches: tuple[PatchPayload, ...]


def status(machine: Machine) -> CommandResult:
    """Report the state of each target compared with this bundle, and all patches in its projects.

    A problem of the search is a warning.
    """
    discovery = machine.discover()
    step = StepResult.noted([problem.note for problem in discovery.problems], "warning")
    states = []
    for target in discovery.targets:
        state, detail = _state(machine, target)
        line = f"{target.project.name} {target.version or '(unknown version)'} in {target.root}: {state}"
        step += StepResult((line, *([f"  {detail}"] if detail else [])))
        states.append(TargetState(target.project.name, target.version, str(target.root), state, detail))
    patches: list[PatchPayload] = []
    roots = machine.patched(discovery)
    for root in roots:
        root_step, root_patches = applied.status(root)
        step += root_step
        patches += root_patches
    if not states and not roots:
        step += StepResult((f"no target of this bundle; looked in: {'; '.join(discovery.searched)}",))
    return CommandResult("status", step, data=BundleStatus(tuple(states), tuple(patches)))


def _state(machine: Machine, target: Target) -> tuple[str, str]:
    """Return the state of a target, and the command line to type, cause or options that belong to it."""
    if StoreFolder(target.root).journal() is not None:
        return "interrupted", CommandLine("recover", *machine.words)
    try:
        plan = fit(machine.bundle, target)
    except (Problem, PermissionError) as error:
        return "other", problem_of(error).cause
    if not plan.changed:
        return "patched", ""
    return ("patched otherwise", " ".join(plan.replaces.options)) if plan.replaces else ("as released", "")


def diff(machine: Machine, *, planned: bool) -> CommandResult:
    """Return the diff of applied patches, or with `planned` of the plans. Raises Problem (USAGE, FOREIGN_EDIT)."""
    discovery = machine.discover()
    files: Files = {}
    problems: tuple[Problem, ...] = ()
    if planned:
        plans, problems = machine.plan(discovery)
        for _, _, edit, _ in plans:
            changes = ((str(change.path), change.pristine, change.after) for change in edit.changes)
            files.setdefault(edit.root, []).extend(changes)
    else:
        files = applied.patched_files(machine.patched(discovery))
    applied.refuse_several([f"--path {root}" for root in files])
    raw = b"".join(edits.diff(*file) for below in files.values() for file in below)
    data = Diff(str(next(iter(files), "")), raw.decode("utf-8", "replace"))
    return CommandResult("diff", data=data, raw=raw, problems=problems)


def recover(machine: Machine) -> CommandResult:
    """Complete or roll back the interrupted command of every root."""
    return applied.recover(machine.discover(), machine.on_wait)


def _plan_lines(plans: Iterable[FittedPlan], verb: str) -> Iterator[str]:
    """Yield the lines on each plan: target, files, replaced patch, window, folder of traces."""
    for plan, target, edit, replaces in plans:
        yield f"{target.project.name} {target.version or plan.version}: {target.installed_as} in {target.root}"
        for change in edit.changes:
            yield f"  {verb if change.before != change.after else 'unchanged'} {change.path}"
        if replaces:
            yield f"  replaces the patch of {replaces.applied_at}: {' '.join(replaces.options)}"
        yield f"  {plan.summary}"
        if plan.save_path:
            yield f"  traces go to {plan.save_path}; set RLPATCH_SAVE_PATH to use another folder for one run"


def _payload(plans: Iterable[FittedPlan]) -> tuple[PlannedTarget, ...]:
    return tuple(
        PlannedTarget(
            target.project.name, target.version, str(target.root), target.installed_as, plan.patch.stage,
            plan.patch.role, plan.options, plan.save_path or None,
            tuple({"path": str(change.path), "changed": change.before != change.after} for change in edit.changes),
        )
        for plan, target, edit, _ in plans
    )  # fmt: skip
