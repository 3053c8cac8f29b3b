"""What a bundle does on a machine: what `rlpatch` does there, and the steps of a transaction over several machines.

Over several machines whoever drives them decides. So the first participant, whose mark decides, is nobody's root: what
is prepared waits until `commit` or `abort` is said, and refuses everybody else until then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from patcher import edits, interrupts, markers
from patcher.bundle.fitting import Fitted, fitted
from patcher.bundle.plans import Bundle
from patcher.change import Edit
from patcher.errors import Kind, Problem, refused
from patcher.report import Report, StepResult
from patcher.store import outcomes
from patcher.store import transaction as store
from patcher.store.registry import Journal
from patcher.targets import find as targets
from patcher.targets.patched import PatchedRoot, patched
from patcher.targets.target import Discovery

_DRIVER = "whoever drives it"
_TRIES = 5
_RESTART = "note: an engine that runs already holds the code as it was; restart it"


class Machine(NamedTuple):
    """A bundle and where it looks for its targets; ``start`` and ``where`` were typed, ``on_wait`` tells of a lock."""

    bundle: Bundle
    path: Path | None
    python: str | None
    start: str
    on_wait: Callable[[str], None]
    where: str = ""

    def again(self, *words: str) -> str:
        """The command line with these words that looks in the same place."""
        return " ".join(filter(None, [self.start, *words, self.where]))

    def discover(self) -> Discovery:
        """The targets of the bundle that are there, and every root with a store."""
        return targets.discover(self.bundle.projects, path=self.path, python=self.python, git=False)

    def patched(self, found: Discovery) -> list[PatchedRoot]:
        """The roots that hold patches of its targets, whoever has applied them."""
        return patched(found, {project.name for project in self.bundle.projects})

    def plan(self, report: Report, found: Discovery) -> list[Fitted]:
        """The plan for each target; what stands in the way goes into the report, all of it."""
        report.problems += found.problems
        fitting = []
        for project in self.bundle.projects:
            target = next((target for target in found.targets if target.project == project), None)
            try:
                if target:
                    fitting.append(fitted(self.bundle, target))
                elif not found.problems:
                    cause = f"{project.name} (the package {project.package}) is not there"
                    hint = "name the folder that holds the package (--path), or the interpreter that imports it"
                    raise Problem(Kind.NO_TARGET, cause, "; ".join(found.searched), f"{hint} (--python)")
            except Problem as problem:
                report.problems.append(problem)
            except PermissionError as error:
                report.problems.append(refused(error))
        return fitting


def apply(machine: Machine, *, dry_run: bool) -> Report:
    """Patch all targets or none; of several machines that see the same folder one does it, and the others find it."""
    return _looking_again(lambda: _apply(machine, dry_run))


def _apply(machine: Machine, dry_run: bool) -> Report:
    report = Report("apply", data={"dry_run": dry_run})
    found = machine.discover()
    if not dry_run:
        _settle(machine, report, found)
    fitting = machine.plan(report, found)
    if report.problems:
        return report
    _commit(machine, report, [one.edit for one in fitting], "patched", dry_run=dry_run)
    _describe(report, fitting, "would patch" if dry_run else "patched")
    if any(one.changed for one in fitting) and not dry_run:
        report.lines += [
            f"next: `{machine.again('diff')}` shows every line",
            f"      `{machine.again('revert')}` takes it out again",
            _RESTART,
        ]
    return report


def revert(machine: Machine, *, dry_run: bool) -> Report:
    """Take the patches that the bundle knows out of every root, all or nothing; others stay.

    Of several machines that see the same folder one does it, as with `apply`.
    """
    return _looking_again(lambda: _revert(machine, dry_run))


def _revert(machine: Machine, dry_run: bool) -> Report:
    report = Report("revert", data={"dry_run": dry_run, "files": []})
    found = machine.discover()
    if not dry_run:
        _settle(machine, report, found)
    known = {plan.patch for plan in machine.bundle.plans}
    taken: list[Edit] = []
    for root in machine.patched(found):
        patches = [record.patch for record in root.records if record.patch in known]
        report.lines += [f"{record.patch} stays: this bundle does not know it" for record in root.records
                         if record.patch not in known]  # fmt: skip
        try:
            taken += [edits.revert(root.path, root.read, root.records, patches)] if patches else []
        except Problem as problem:
            report.problems.append(problem)
    if report.problems:
        return report
    _commit(machine, report, taken, "reverted", dry_run=dry_run)
    verb = "would revert" if dry_run else "reverted"
    for edit in taken:
        report.lines.append(f"{', '.join(map(str, edit.remove))} in {edit.root}")
        report.lines += [f"  {verb} {change.path}" for change in edit.changes if change.before != change.after]
    report.data["files"] = [
        {"root": str(edit.root), "path": str(change.path), "reverted": change.before != change.after}
        for edit in taken
        for change in edit.changes
    ]
    if not taken:
        report.lines.append(f"nothing of this bundle is applied; looked in: {'; '.join(found.searched)}")
    elif not dry_run:
        report.lines.append(_RESTART)
    return report


def _looking_again(turn: Callable[[], Report]) -> Report:
    """Take ``turn`` once more wherever another process has changed a file between its look and its turn."""
    for _ in range(_TRIES - 1):
        try:
            return turn()
        except Problem as problem:
            if problem.kind is not Kind.FOREIGN_EDIT:
                raise
    return turn()


def status(machine: Machine) -> Report:
    """What is patched, by whomever, and how each target stands to this bundle."""
    found = machine.discover()
    roots = machine.patched(found)
    patches: list[dict[str, object]] = []
    standing: list[dict[str, object]] = []
    report = Report("status", data={"targets": standing, "patches": patches})
    for problem in found.problems:
        report.warn(*problem.note)
    for target in found.targets:
        state, detail = _standing(machine, found, target.root)
        said = f"{target.project.name} {target.version or '(unknown version)'} in {target.root}: {state}"
        report.lines += [said, *([f"  {detail}"] if detail else [])]
        standing.append(
            {"target": target.project.name, "version": target.version, "root": str(target.root), "state": state,
             "detail": detail}
        )  # fmt: skip
    for root in roots:
        for record in root.records:
            states = root.states(record)
            since = f"since {record.applied_at}" if record.applied_at else "known by its marks only"
            report.lines.append(f"{record.patch} on {record.version or '(unknown version)'} in {root.path}, {since}")
            report.lines += [f"  {one.state} {one.path}" + (f": {one.detail}" if one.detail else "") for one in states]
            patches.append(
                {"target": record.patch.target, "stage": record.patch.stage, "role": record.patch.role,
                 "root": str(root.path), "version": record.version, "since": record.applied_at,
                 "options": list(record.options), "files": [one._asdict() for one in states]}
            )  # fmt: skip
    if not found.targets and not roots:
        report.lines.append(f"no target of this bundle; looked in: {'; '.join(found.searched)}")
    return report


def _standing(machine: Machine, found: Discovery, root: Path) -> tuple[str, str]:
    """In a word how a target stands, and what is to be known of it."""
    journal = store.standing(root)
    if journal is not None:
        return ("prepared", journal.transaction) if journal.hint else ("interrupted", machine.again("recover"))
    tried = Report("status")
    here = found._replace(targets=tuple(target for target in found.targets if target.root == root), problems=())
    names = {target.project for target in here.targets}
    alone = machine._replace(bundle=machine.bundle._replace(projects=tuple(names)))
    fitting = alone.plan(tried, here)
    if tried.problems:
        return "other", str(tried.problems[0].cause)
    if not any(one.changed for one in fitting):
        return "patched", ""
    other = next((one.replaces for one in fitting if one.replaces), None)
    return ("patched otherwise", " ".join(other.options)) if other else ("as released", "")


def diff(machine: Machine, *, planned: bool) -> Report:
    """A diff from pristine to patched of what is applied, or with ``planned`` of what would be."""
    report, found = Report("diff"), machine.discover()
    files: dict[Path, list[tuple[str, bytes, bytes]]] = {}
    if planned:
        for one in machine.plan(report, found):
            changes = [(str(change.path), change.pristine, change.after) for change in one.edit.changes]
            files.setdefault(one.target.root, []).extend(changes)
    else:
        for root in machine.patched(found):
            ours = {file for record in root.records for file in record.files}
            for file, data in root.marked().items():
                if file in ours:
                    pristine = markers.strip(data, where=str(root.path / file))
                    files.setdefault(root.path, []).append((file, pristine, data))
    if len(files) > 1:
        choose = " or ".join(f"--path {root}" for root in files)
        raise Problem(Kind.USAGE, "the patched files lie below several roots, and a diff has only one", hint=choose)
    report.raw = b"".join(edits.diff(*file) for below in files.values() for file in below)
    report.data = {"root": str(next(iter(files), "")), "diff": report.raw.decode("utf-8", "replace")}
    return report


def recover(machine: Machine) -> Report:
    """End what was interrupted below every root that is found; what is prepared waits for its driver."""
    report, found = Report("recover", data={"roots": []}), machine.discover()
    _settle(machine, report, found)
    if not report.lines:
        report.lines.append(f"nothing to recover; looked in: {'; '.join(found.searched)}")
    return report


def prepare(machine: Machine, transaction: str) -> Report:
    """Bring all that `commit` needs to the disk, without changing a file; again is no failure."""
    report, found = Report("prepare", data={"transaction": transaction}), machine.discover()
    if not _of(transaction, found):
        try:
            _prepare(machine, report, found, transaction)
        except Problem:
            if not _of(transaction, found):  # else a machine that sees the same folder was quicker
                raise
        if report.problems:
            return report
    report.lines += [f"prepared as {transaction}: {root}" for root in _of(transaction, found)]
    report.lines += [
        f"next: `{machine.again('commit', transaction)}`, if all machines are prepared",
        f"      `{machine.again('abort', transaction)}` otherwise; until then it waits",
    ]
    return report


def _prepare(machine: Machine, report: Report, found: Discovery, transaction: str) -> None:
    _settle(machine, report, found)
    fitting = machine.plan(report, found)
    if report.problems:
        return
    names = {Path(os.path.realpath(one.target.root)): str(one.target.root) for one in fitting}
    again = [machine.again(step, transaction) for step in ("commit", "abort")]
    hint = f"{again[0]}, if all machines are prepared, or {again[1]}, on all of them"
    membership = store.TransactionMembership(transaction, (_DRIVER, *names.values()), names, hint)
    outcome = store.prepare([one.edit for one in fitting], membership, on_wait=machine.on_wait)
    report.add(StepResult.noted(outcome.notes) + outcomes.ended(outcome.recovered))
    _describe(report, fitting, "prepared")


def commit(machine: Machine, transaction: str) -> Report:
    """Replace what was prepared; where that was done before, nothing is left to do."""
    report, found = Report("commit", data={"transaction": transaction}), machine.discover()
    prepared = _of(transaction, found)
    moves = [root / move.path for root, journal in prepared.items() for move in journal.moves]
    files = [str(path) for path in moves if path.suffix != ".pyc"]
    try:
        if prepared:
            store.commit_prepared(list(prepared), transaction, on_wait=machine.on_wait)
            store.finish(list(prepared), transaction)
    except Problem:
        if _of(transaction, found):  # else a machine that sees the same folder was quicker
            raise
    if not files:
        tried = Report("commit")
        fitting = machine.plan(tried, found)
        if tried.problems or any(one.changed for one in fitting):
            cause = f"the transaction {transaction} is not prepared here"
            raise Problem(Kind.ROLLED_BACK, cause, hint=machine.again("prepare", transaction))
        report.lines.append("nothing is left to do: the targets are patched as this bundle has it")
    report.data["files"] = files
    report.done += files
    report.lines += [*(f"patched {file}" for file in files), *([_RESTART] if files else [])]
    return report


def abort(machine: Machine, transaction: str) -> Report:
    """Forget what was prepared. Where `commit` had begun it is brought to its end instead, and that is a problem."""
    report, found = Report("abort", data={"transaction": transaction}), machine.discover()
    ended = store.abort(list(_of(transaction, found)), transaction)
    for one in ended:
        report.lines.append(f"{'committed' if one.forward else 'as before'}: {one.root}")
        report.problems += [_left(one.root / left) for left in one.left if one.forward]
    if ahead := [str(one.root) for one in ended if one.forward]:
        cause = f"the transaction {transaction} was being committed here, so it went ahead"
        commit, revert_here = machine.again("commit", transaction), machine.again("revert")
        hint = f"`{commit}` on the other machines, or `{revert_here}` on this one"
        report.problems.append(Problem(Kind.ROLLBACK_INCOMPLETE, cause, ", ".join(ahead), hint))
    if not ended:
        report.lines.append(f"nothing is prepared as {transaction}")
    return report


def _of(transaction: str, found: Discovery) -> dict[Path, Journal]:
    """The roots that hold a part of ``transaction``, and how far it is there."""
    standing = (
        (root, store.standing(root))
        for root in dict.fromkeys([*found.stores, *(target.root for target in found.targets)])
    )
    return {root: journal for root, journal in standing if journal and journal.transaction == transaction}


def _settle(machine: Machine, report: Report, found: Discovery) -> None:
    """End the interrupted runs of every root; Problem (ROLLBACK_INCOMPLETE) for what waits for a decision."""
    with interrupts.deferred():
        ended = store.recover(found.stores, on_wait=machine.on_wait)
        report.add(outcomes.ended(ended))
    if "roots" in report.data:
        report.data["roots"] = [outcomes.as_json(one) for one in ended]


def _commit(machine: Machine, report: Report, planned: Sequence[Edit], verb: str, *, dry_run: bool) -> None:
    if dry_run:
        report.add(StepResult.noted(store.preflight(planned)))
    else:
        report.add(outcomes.commit(planned, verb, machine.on_wait))


def _left(path: Path) -> Problem:
    cause = "somebody changed the file since it was prepared: it was left alone"
    return Problem(Kind.FOREIGN_EDIT, cause, str(path), "look at it, then revert, and apply again")


def _describe(report: Report, fitting: Sequence[Fitted], verb: str) -> None:
    """Say what is done to each target, for people and for programs."""
    entries = []
    for plan, target, edit, replaces in fitting:
        name, changes = target.project.name, edit.changes
        report.lines.append(f"{name} {target.version or plan.version}: {target.installed_as} in {target.root}")
        for change in changes:
            report.lines.append(f"  {verb if change.before != change.after else 'unchanged'} {change.path}")
        if replaces:
            report.lines.append(f"  replaces: {' '.join(replaces.options)} (since {replaces.applied_at})")
        report.lines.append(f"  {plan.summary}")
        if plan.save_path:
            report.lines.append(f"  traces go to {plan.save_path}; RLPATCH_SAVE_PATH changes that for a run")
        entries.append(
            {"target": name, "version": target.version, "root": str(target.root), "kind": target.installed_as,
             "stage": plan.patch.stage, "role": plan.patch.role, "options": list(plan.options),
             "save_path": plan.save_path or None,
             "files": [{"path": str(one.path), "changed": one.before != one.after} for one in changes]}
        )  # fmt: skip
    report.data["targets"] = entries
