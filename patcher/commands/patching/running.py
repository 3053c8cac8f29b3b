"""``run``: a command whose processes import what ``apply`` would write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from patcher import plan as planning
from patcher.commands.finding import LaunchOptions, SearchOptions
from patcher.commands.guarding import guard
from patcher.commands.patching import describing
from patcher.commands.patching.planning import failures, find, plan
from patcher.guards.gaps import HookGap, hook_gaps
from patcher.hook import folder as folders
from patcher.hook import parent
from patcher.messages.errors import Kind, Problem
from patcher.messages.notes import Note
from patcher.messages.report import OMIT_NONE, CommandResult, StepResult

if TYPE_CHECKING:
    from patcher.commands.patching.describing import PlanPayload
    from patcher.plan import Plan
    from patcher.request import ProfileRequest

Show = Callable[[CommandResult], int]
# Ray's agents find out by themselves that their driver is gone: on a busy machine that took them more than 3 s.
_PATIENCE_S, _PATIENCE_WITH_RAY_S = 3.0, 15.0


@dataclass(frozen=True)
class RunPlan:
    """What ``run`` is about to do; ``losses`` are the places of the launch that lose the hook."""

    dry_run: bool
    command: tuple[str, ...]
    targets: tuple[PlanPayload, ...] = ()
    losses: tuple[HookGap, ...] | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class RunOutcome:
    """What has come of it: target → the processes in which it was patched."""

    patched: dict[str, int]


def run(
    words: Sequence[str],
    search: SearchOptions,
    request: ProfileRequest,
    launch: LaunchOptions,
    *,
    dry_run: bool,
    force: bool,
    require: bool,
) -> CommandResult:
    """Plan as ``apply`` does; the report leads to the command, unless it has problems or it is a ``dry_run``.

    With ``require`` it is a problem where a part of the run certainly goes unpatched.
    """
    if not launch.command:
        hint = f"{search.again('', '')} -- bash run.sh"
        raise Problem(Kind.USAGE, "the command to run stands behind `--`, and is missing", hint=hint)
    parent.findable(launch.command[0])
    data = RunPlan(dry_run, launch.command)
    candidates = find(words, search, request, "run")
    gaps: tuple[HookGap, ...] = ()
    before = StepResult()
    if not candidates.problems:
        readable, gaps, before = _read(launch)
        for _, upstream, target, config in candidates.values:
            profiler = planning.profiler(upstream, config)
            before += guard(upstream, target.version, readable, force=force, target=target, profiler=profiler)
        before += _foreseen(gaps, require=require)
        data = replace(data, losses=gaps)
    if before.problems:
        return CommandResult("run", before, data=data, aside=not dry_run)
    planned = plan(candidates)
    failed = failures(planned, words, request)
    if failed.problems:
        return CommandResult("run", failed, data=data, aside=not dry_run)
    verbs = describing.WOULD if dry_run else describing.LENT
    step = sum((describing.described(one.upstream, one.plan, verbs) for one in planned.values), before)
    data = replace(data, targets=tuple(describing.payload(one.plan) for one in planned.values))
    if dry_run:
        return CommandResult("run", step + StepResult((describing.NEXT_DRY_RUN,)), data=data)
    changed = [one.plan for one in planned.values if one.plan.changed]
    if changed:
        line = "nothing is changed on disk: the processes of the command import these bytes"
        then = _with_hook(changed, launch, gaps, require=require)
    else:
        line = "the targets are patched on disk like this already: the command runs as it is"
        then = partial(_alone, launch)
    return CommandResult("run", step + StepResult((line,)), data=data, aside=True, then=then)


def _read(launch: LaunchOptions) -> tuple[LaunchOptions, tuple[HookGap, ...], StepResult]:
    """The launch as the guards can read it, and where it loses the hook.

    A command that would start does so, though its script cannot be read; one that the user names is a problem.
    """
    try:
        return launch, hook_gaps(launch.environ, launch.script, launch.command, folders.VARIABLE), StepResult()
    except Problem as problem:
        if launch.script is not None and str(launch.script) == problem.where:
            raise
        note = Note("what the command starts was not looked at: its script cannot be read", str(problem))
        return replace(launch, command=()), (), StepResult.noted([note], "warning")


def _foreseen(gaps: Iterable[HookGap], *, require: bool) -> StepResult:
    """That places of the launch lose the hook, and what to write there."""
    step = StepResult()
    for gap in gaps:
        found = (f"found: {gap.found}",) if gap.found else ()
        if require and gap.sure:
            cause = f"{gap.why}: what starts there is not patched"
            step += StepResult(problems=(Problem(Kind.ENVIRONMENT, cause, gap.where, gap.instead, found),))
        else:
            note = Note(f"{gap.where}: {gap.why}; what starts there is not patched", "\n".join(found))
            step += StepResult((f"in {gap.where}: {gap.instead}",)) + StepResult.noted([note], "warning")
    return step


def _alone(launch: LaunchOptions, _show: Show) -> int:
    return parent.leave(parent.run(launch.command, launch.environ))


def _with_hook(
    plans: Sequence[Plan], launch: LaunchOptions, gaps: Sequence[HookGap], *, require: bool
) -> Callable[[Show], int]:
    """What runs the command with the hook; its folder is made now, so that a failure is in the report."""
    folders.sweep()
    folder = folders.RunFolder([plan.edit for plan in plans], require=require)

    def then(show: Show) -> int:
        try:
            status = parent.run(launch.command, folder.environ(launch.environ))
        except Problem as problem:
            folder.leave()
            return show(CommandResult("run", problems=[problem]))
        data, step = _ended(folder, plans, gaps, require=require)
        still = folder.leave(_PATIENCE_WITH_RAY_S if folder.went_to_ray else _PATIENCE_S)
        code = show(CommandResult("run", step + _still_there(folder, still), data=data, aside=True, tells_all=True))
        return code if status == 0 else parent.leave(status)

    return then


def _ended(
    folder: folders.RunFolder, plans: Sequence[Plan], gaps: Sequence[HookGap], *, require: bool
) -> tuple[RunOutcome, StepResult]:
    """What the processes of the run have left: who was patched, or why nobody was."""
    patched: dict[str, int] = {}
    step = StepResult()
    for one in plans:
        files = {one.target.root / change.path for change in one.edit.changes}
        numbers = {number for number, file in enumerate(folder.files) if file in files}
        receipts = [receipt for receipt in folder.receipts() if receipt.number in numbers]
        processes = {receipt.pid for receipt in receipts if receipt.state == "patched"}
        left = [_LEFT[state].format(path) for _, _, state, path in receipts if state in _LEFT]
        name = one.target.project.name
        patched[name] = len(processes)
        if processes:
            step += _patched(name, len(processes), left)
        elif folder.went_to_ray and not left:
            note = Note(f"{name} was patched in no process of this machine; Ray has it for its workers", _RAY)
            step += StepResult.noted([note])
        else:
            step += _unpatched(name, (*left, *_reasons(folder, one, gaps)), require=require)
    return RunOutcome(patched), step


def _still_there(folder: folders.RunFolder, processes: Sequence[int]) -> StepResult:
    if not processes:
        return StepResult()
    shown = ", ".join(map(str, processes[:3])) + (", …" if len(processes) > 3 else "")
    detail = f"they need {folder.path} to stay patched; the next rlpatch run after their end removes it"
    return StepResult.noted([Note(f"{_many(len(processes))} of the run still there ({shown})", detail)])


def _patched(name: str, processes: int, left: Iterable[str]) -> StepResult:
    step = StepResult((f"rlpatch run: {name} was patched in {_many(processes)}",))
    note = Note(f"{name} was imported unpatched, too", "\n".join(dict.fromkeys(left)))
    return step + StepResult.noted([note], "warning") if note.detail else step


def _unpatched(name: str, reasons: Iterable[str], *, require: bool) -> StepResult:
    cause, notes = f"{name} was patched in no process of the run", tuple(dict.fromkeys(reasons))
    if require:
        return StepResult(problems=(Problem(Kind.ENVIRONMENT, cause, notes=notes, hint=_IN_PLACE),))
    return StepResult.noted([Note(cause, "\n".join((*notes, f"next: {_IN_PLACE}")))], "warning")


def _many(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


_LEFT = {
    "changed": "{} is not as it was when the run was planned: start it again",
    "elsewhere": "{} is another copy than the one that was planned: --path or --python leads to it",
}
_NONE_BEGAN = (
    "no Python process began with the hook: none was started, or all with -I, -E or -S, without the variables of the"
    " run (env -i), with PYTHONPATH set anew, or behind a sitecustomize that runs no other"
)
_OTHERS = "it is passed by with -I, -E, -S, env -i and PYTHONPATH set anew, by pytest's rewriting, and in a zip"
_RAY = "those on other machines leave no word here: look for the lines of rlpatch in the log of the run"
_IN_PLACE = "`rlpatch apply` with the same options patches the files themselves, which nothing passes by"


def _reasons(folder: folders.RunFolder, plan: Plan, gaps: Sequence[HookGap]) -> list[str]:
    """What it was, as far as the processes and the scripts tell."""
    if gaps:
        return [f"{gap.where}: {gap.why} ({gap.found or 'behind it'}): {gap.instead}" for gap in gaps]
    began, prefix = folder.prefixes(), plan.target.prefix
    if not began:
        return [_NONE_BEGAN]
    if prefix and os.path.realpath(prefix) not in map(os.path.realpath, began):
        ran = ", ".join(began[:3])
        return [
            f"Python ran in other environments ({ran}), and {plan.target.project.name} is in {prefix}: --python EXE"
        ]
    files = ", ".join(str(change.path) for change in plan.edit.changes)
    return [f"Python processes began with the hook, and none imported {files}: did the run get there?", _OTHERS]
