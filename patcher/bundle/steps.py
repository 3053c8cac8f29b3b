"""The commands of a bundle: those of rlpatch on a machine, and the steps of a transaction over several machines.

Over several machines whoever drives them decides. So the first participant, whose mark decides, is nobody's root: what
is prepared waits for `commit` or `abort`, and refuses everybody else until then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from patcher.bundle.fitting import FittedPlan, fit
from patcher.bundle.plans import Bundle
from patcher.changes import edits
from patcher.changes.change import Edit
from patcher.messages.command_line import CommandLine
from patcher.messages.errors import Kind, Problem, failed
from patcher.messages.report import OMIT_NONE, CommandResult, StepResult
from patcher.store import outcomes
from patcher.store import transaction as store
from patcher.store.folder import StoreFolder
from patcher.store.registry import Journal
from patcher.targets import applied
from patcher.targets import find as targets
from patcher.targets.applied import Diff, Files, PatchPayload, Removal, Reverted
from patcher.targets.patched import PatchedRoot, patched
from patcher.targets.target import Discovery, Project, Target

_DRIVER = "whoever drives it"
_TRIES = 5


class Machine(NamedTuple):
    """A bundle and where it looks for its targets; ``on_wait`` gets a line for each lock that is waited for."""

    bundle: Bundle
    path: Path | None
    python: str | None
    on_wait: Callable[[str], None]
    words: tuple[str, ...] = ()
    """The options that lead there, as they were typed."""

    def command(self, *words: str) -> CommandLine:
        """The command line with these words that looks in the same place."""
        return CommandLine(*words, *self.words)

    def discover(self) -> Discovery:
        """The targets of the bundle that are there, and every root with a store."""
        return targets.discover(self.bundle.projects, path=self.path, python=self.python, git=False)

    def patched(self, found: Discovery) -> list[PatchedRoot]:
        """The roots that hold patches of its targets, whoever has applied them."""
        return patched(found, {project.name for project in self.bundle.projects})

    def plan(self, found: Discovery) -> tuple[list[FittedPlan], tuple[Problem, ...]]:
        """The plan for each target, and all that stands in the way."""
        plans: list[FittedPlan] = []
        problems = [*found.problems]
        for project in self.bundle.projects:
            target = next((target for target in found.targets if target.project == project), None)
            try:
                if target:
                    plans.append(fit(self.bundle, target))
                elif not found.problems:
                    problems.append(_absent(project, found))
            except (Problem, PermissionError) as error:
                problems.append(failed(error))
        return plans, tuple(problems)


def _absent(project: Project, found: Discovery) -> Problem:
    cause = f"{project.name} (the package {project.package}) is not there"
    hint = "name the folder that holds the package (--path), or the interpreter that imports it (--python)"
    return Problem(Kind.NO_TARGET, cause, "; ".join(found.searched), hint)


@dataclass(frozen=True)
class PlannedTarget:
    """A target and what becomes of its files; ``save_path`` None where the framework knows."""

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
    """The result of ``apply``."""

    dry_run: bool
    targets: tuple[PlannedTarget, ...] | None = field(default=None, metadata=OMIT_NONE)


def apply(machine: Machine, *, dry_run: bool) -> CommandResult:
    """Patch all targets or none; of several machines that see the same folder one does it, and the others find it."""
    return _repeated(lambda: _apply(machine, dry_run))


def _apply(machine: Machine, dry_run: bool) -> CommandResult:
    found = machine.discover()
    step = StepResult() if dry_run else applied.settle(found, machine.on_wait)
    plans, problems = machine.plan(found)
    if problems:
        return CommandResult("apply", step + StepResult(problems=problems), data=AppliedBundle(dry_run))
    step += _carry_out(machine, [plan.edit for plan in plans], "patched", dry_run=dry_run)
    lines = [*_lines(plans, "would patch" if dry_run else "patched")]
    if any(plan.changed for plan in plans) and not dry_run:
        lines += [*applied.next_lines(*machine.words), *applied.restart_lines()]
    return CommandResult("apply", step + StepResult(tuple(lines)), data=AppliedBundle(dry_run, _payload(plans)))


def revert(machine: Machine, *, dry_run: bool) -> CommandResult:
    """Take the patches that the bundle knows out of every root, all or nothing; others stay.

    Of several machines that see the same folder one does it, as with `apply`.
    """
    return _repeated(lambda: _revert(machine, dry_run))


def _revert(machine: Machine, dry_run: bool) -> CommandResult:
    found = machine.discover()
    step = StepResult() if dry_run else applied.settle(found, machine.on_wait)
    planned, stays = _removals(machine, found)
    step += stays
    if step.problems:
        return CommandResult("revert", step, data=Reverted(dry_run))
    step += _carry_out(machine, [one.edit for one in planned], "reverted", dry_run=dry_run)
    lines = [line for one in planned for line in one.lines(dry_run=dry_run)]
    if not planned:
        lines.append(f"nothing of this bundle is applied; looked in: {'; '.join(found.searched)}")
    elif not dry_run:
        lines += applied.restart_lines()
    files = tuple(file for one in planned for file in one.payload())
    return CommandResult("revert", step + StepResult(tuple(lines)), data=Reverted(dry_run, files))


def _removals(machine: Machine, found: Discovery) -> tuple[list[Removal], StepResult]:
    """What takes the patches of the bundle out, and which others stay."""
    known = {plan.patch for plan in machine.bundle.plans}
    removals, step = [], StepResult()
    for root in machine.patched(found):
        unknown = (record.patch for record in root.records if record.patch not in known)
        step += StepResult(tuple(f"{patch} stays: this bundle does not know it" for patch in unknown))
        try:
            applied.refuse_broken(root)
            removals.append(applied.removal(root, known))
        except Problem as problem:
            step += StepResult(problems=(problem,))
    return [one for one in removals if one], step


def _repeated(attempt: Callable[[], CommandResult]) -> CommandResult:
    """The result of ``attempt``, made once more wherever another process has changed a file since it was planned."""
    for _ in range(_TRIES - 1):
        try:
            return attempt()
        except Problem as problem:
            if problem.kind is not Kind.FOREIGN_EDIT:
                raise
    return attempt()


def _carry_out(machine: Machine, planned: Sequence[Edit], verb: str, *, dry_run: bool) -> StepResult:
    if dry_run:
        return StepResult.noted(store.preflight(planned))
    return outcomes.commit(planned, verb, machine.on_wait)


@dataclass(frozen=True)
class TargetState:
    """How a target stands to the bundle: as released, patched, patched otherwise, prepared, interrupted or other."""

    target: str
    version: str
    root: str
    state: str
    detail: str


@dataclass(frozen=True)
class BundleStatus:
    """The result of ``status``."""

    targets: tuple[TargetState, ...]
    patches: tuple[PatchPayload, ...]


def status(machine: Machine) -> CommandResult:
    """What is patched, by whomever, and how each target stands to this bundle."""
    found = machine.discover()
    step = StepResult.noted([problem.note for problem in found.problems], "warning")
    states = []
    for target in found.targets:
        state, detail = _state(machine, target)
        line = f"{target.project.name} {target.version or '(unknown version)'} in {target.root}: {state}"
        step += StepResult((line, *([f"  {detail}"] if detail else [])))
        states.append(TargetState(target.project.name, target.version, str(target.root), state, detail))
    roots = [applied.status(root) for root in machine.patched(found)]
    if not states and not roots:
        step += StepResult((f"no target of this bundle; looked in: {'; '.join(found.searched)}",))
    step = sum((below for below, _ in roots), step)
    patches = tuple(one for _, below in roots for one in below)
    return CommandResult("status", step, data=BundleStatus(tuple(states), patches))


def _state(machine: Machine, target: Target) -> tuple[str, str]:
    """The state of a target, and what is to be known of it."""
    journal = StoreFolder(target.root).journal()
    if journal is not None:
        return ("prepared", journal.transaction) if journal.hint else ("interrupted", machine.command("recover"))
    try:
        plan = fit(machine.bundle, target)
    except (Problem, PermissionError) as error:
        return "other", failed(error).cause
    if not plan.changed:
        return "patched", ""
    return ("patched otherwise", " ".join(plan.replaces.options)) if plan.replaces else ("as released", "")


def diff(machine: Machine, *, planned: bool) -> CommandResult:
    """A diff from pristine to patched of what is applied, or with ``planned`` of what would be."""
    found = machine.discover()
    files: Files = {}
    problems: tuple[Problem, ...] = ()
    if planned:
        plans, problems = machine.plan(found)
        for edit in (plan.edit for plan in plans):
            files.setdefault(edit.root, []).extend((str(one.path), one.pristine, one.after) for one in edit.changes)
    else:
        files = applied.patched_files(machine.patched(found))
    applied.refuse_several([f"--path {root}" for root in files])
    raw = b"".join(edits.diff(*file) for below in files.values() for file in below)
    data = Diff(str(next(iter(files), "")), raw.decode("utf-8", "replace"))
    return CommandResult("diff", data=data, raw=raw, problems=problems)


def recover(machine: Machine) -> CommandResult:
    """End what was interrupted below every root that is found; what is prepared waits for its driver."""
    return applied.recover(machine.discover(), machine.on_wait)


@dataclass(frozen=True)
class Transacted:
    """The result of a step of ``transaction``: the targets that were prepared, or the files that were committed."""

    transaction: str
    targets: tuple[PlannedTarget, ...] | None = field(default=None, metadata=OMIT_NONE)
    files: tuple[str, ...] | None = field(default=None, metadata=OMIT_NONE)


def prepare(machine: Machine, transaction: str) -> CommandResult:
    """Bring all that `commit` needs to the disk, without changing a file; again is no failure."""
    report, found = CommandResult("prepare", data=Transacted(transaction)), machine.discover()
    if not _prepared(transaction, found):
        try:
            report = _prepare(machine, found, transaction)
        except Problem:
            if not _prepared(transaction, found):  # else a machine that sees the same folder was quicker
                raise
        if report.problems:
            return report
    report.lines += [f"prepared as {transaction}: {root}" for root in _prepared(transaction, found)]
    report.lines += [
        f"next: `{machine.command('commit', transaction)}`, if all machines are prepared",
        f"      `{machine.command('abort', transaction)}` otherwise; until then it waits",
    ]
    return report


def _prepare(machine: Machine, found: Discovery, transaction: str) -> CommandResult:
    step = applied.settle(found, machine.on_wait)
    plans, problems = machine.plan(found)
    if problems:
        return CommandResult("prepare", step + StepResult(problems=problems), data=Transacted(transaction))
    names = {Path(os.path.realpath(plan.target.root)): str(plan.target.root) for plan in plans}
    commit, abort = (machine.command(command, transaction) for command in ("commit", "abort"))
    hint = f"{commit}, if all machines are prepared, or {abort}, on all of them"
    membership = store.TransactionMembership(transaction, (_DRIVER, *names.values()), names, hint)
    outcome = store.prepare([plan.edit for plan in plans], membership, on_wait=machine.on_wait)
    step += StepResult.noted(outcome.notes) + outcomes.ended(outcome.recovered)
    step += StepResult(tuple(_lines(plans, "prepared")))
    return CommandResult("prepare", step, data=Transacted(transaction, _payload(plans)))


def commit(machine: Machine, transaction: str) -> CommandResult:
    """Replace what was prepared; where that was done before, nothing is left to do."""
    found = machine.discover()
    prepared = _prepared(transaction, found)
    moves = [root / move.path for root, journal in prepared.items() for move in journal.moves]
    files = tuple(str(path) for path in moves if path.suffix != ".pyc")
    try:
        if prepared:
            store.commit_prepared(list(prepared), transaction, on_wait=machine.on_wait)
            store.finish(list(prepared), transaction)
    except Problem:
        if _prepared(transaction, found):  # else a machine that sees the same folder was quicker
            raise
    if files:
        lines = [*(f"patched {file}" for file in files), *applied.restart_lines()]
    else:
        plans, problems = machine.plan(found)
        if problems or any(plan.changed for plan in plans):
            cause = f"the transaction {transaction} is not prepared here"
            raise Problem(Kind.ROLLED_BACK, cause, hint=machine.command("prepare", transaction))
        lines = ["nothing is left to do: the targets are patched as this bundle has it"]
    return CommandResult("commit", StepResult(tuple(lines), done=files), data=Transacted(transaction, files=files))


def abort(machine: Machine, transaction: str) -> CommandResult:
    """Forget what was prepared. Where `commit` had begun it is brought to its end instead, and that is a problem."""
    ended = store.abort(list(_prepared(transaction, machine.discover())), transaction)
    lines = [f"{'committed' if one.forward else 'as before'}: {one.root}" for one in ended]
    committed = [one for one in ended if one.forward]
    why, hint = "somebody changed the file since it was prepared: it was left alone", "revert it, and apply again"
    problems = [Problem(Kind.FOREIGN_EDIT, why, str(one.root / left), hint) for one in committed for left in one.left]
    if committed:
        cause = f"the transaction {transaction} was being committed here, so it went ahead"
        commit, revert = machine.command("commit", transaction), machine.command("revert")
        hint = f"`{commit}` on the other machines, or `{revert}` on this one"
        where = ", ".join(str(one.root) for one in committed)
        problems.append(Problem(Kind.ROLLBACK_INCOMPLETE, cause, where, hint))
    if not ended:
        lines.append(f"nothing is prepared as {transaction}")
    return CommandResult("abort", StepResult(tuple(lines), problems=tuple(problems)), data=Transacted(transaction))


def _prepared(transaction: str, found: Discovery) -> dict[Path, Journal]:
    """The roots that hold a part of ``transaction``, and how far it is there."""
    roots = dict.fromkeys([*found.stores, *(target.root for target in found.targets)])
    journals = ((root, StoreFolder(root).journal()) for root in roots)
    return {root: journal for root, journal in journals if journal and journal.transaction == transaction}


def _lines(plans: Iterable[FittedPlan], verb: str) -> Iterator[str]:
    for plan, target, edit, replaces in plans:
        yield f"{target.project.name} {target.version or plan.version}: {target.installed_as} in {target.root}"
        for change in edit.changes:
            yield f"  {verb if change.before != change.after else 'unchanged'} {change.path}"
        if replaces:
            yield f"  replaces: {' '.join(replaces.options)} (since {replaces.applied_at})"
        yield f"  {plan.summary}"
        if plan.save_path:
            yield f"  traces go to {plan.save_path}; RLPATCH_SAVE_PATH changes that for a run"


def _payload(plans: Iterable[FittedPlan]) -> tuple[PlannedTarget, ...]:
    return tuple(
        PlannedTarget(
            target.project.name, target.version, str(target.root), target.installed_as, plan.patch.stage,
            plan.patch.role, plan.options, plan.save_path or None,
            tuple({"path": str(one.path), "changed": one.before != one.after} for one in edit.changes),
        )
        for plan, target, edit, _ in plans
    )  # fmt: skip
