"""``run``: a command whose processes import what ``apply`` would write."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from patcher import plan as planning
from patcher.changes import edits
from patcher.commands.finding import SearchOptions
from patcher.commands.guarding import guard
from patcher.commands.patching import describing
from patcher.commands.patching.describing import PlanPayload
from patcher.commands.patching.planning import failures, find, plan
from patcher.guards.gaps import HookGap, hook_gaps
from patcher.guards.result import Launch
from patcher.hook import folder as folders
from patcher.hook import parent
from patcher.messages import Kind, Note, Problem, Text, joined, usage
from patcher.messages.report import OMIT_NONE, CommandResult, StepResult
from patcher.plan import Plan
from patcher.request import ProfileRequest

Show = Callable[[CommandResult], int]
# Ray's agents find out by themselves that their driver is gone: on a busy machine that took them more than 3 s.
_PATIENCE_S, _PATIENCE_WITH_RAY_S = 3.0, 15.0


@dataclass(frozen=True)
class RunPlan:
    """The plan of ``run``; ``losses`` are the places of the launch that lose the hook."""

    dry_run: bool
    command: tuple[str, ...]
    targets: tuple[PlanPayload, ...] = ()
    losses: tuple[HookGap, ...] | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of a run: target → the processes in which it was patched."""

    patched: dict[str, int]


def run(
    words: Sequence[str],
    search: SearchOptions,
    request: ProfileRequest,
    launch: Launch,
    *,
    dry_run: bool,
    force: bool,
    require: bool,
) -> CommandResult:
    """Plan as ``apply`` does; the report leads to the command, unless it has problems or it is a ``dry_run``.

    With ``require`` it is a problem where a part of the run certainly goes unpatched.
    """
    if not launch.command:
        raise usage(Text("the command to run is missing: type it after `--`"), f"{search.again('', '')} -- bash run.sh")
    parent.findable(launch.command[0])
    data = RunPlan(dry_run, launch.command)
    candidates = find(words, search, request, "run")
    gaps: tuple[HookGap, ...] = ()
    step = StepResult()
    if not candidates.problems:
        readable, gaps, step = _read(launch)
        for _, upstream, target, config, _ in (item for item in candidates.values if item.config.profiler.MODULE):
            profiler = planning.profiler(upstream, config)
            step += guard(upstream, target.version, readable, force=force, target=target, profiler=profiler)
        step = sum((_foreseen(gap, require=require) for gap in gaps), step)
        data = replace(data, losses=gaps)
    if not step.problems:
        planned = plan(candidates)
        step += failures(planned, words, request)
    if step.problems:
        return CommandResult("run", step, data=data, aside=not dry_run)
    verb = describing.WOULD if dry_run else describing.LENT
    step = sum((describing.described(candidate.upstream, candidate.plan, verb) for candidate in planned.values), step)
    data = replace(data, targets=tuple(describing.payload(candidate.plan) for candidate in planned.values))
    if dry_run:
        return CommandResult("run", step + StepResult((describing.NEXT_DRY_RUN,)), data=data)
    changed = [candidate.plan for candidate in planned.values if candidate.plan.changed]
    result = CommandResult("run", step, data=data, aside=True)
    if changed:
        result.lines.append(Text("nothing changes on disk: the processes of the command import these bytes"))
        result.then = _with_hook(changed, launch, gaps, require=require)
    else:
        result.lines.append(Text("the targets are already patched like this on disk: the command runs as it is"))
        result.then = lambda _show: parent.leave(parent.run(launch.command, launch.environ))
    return result


def _read(launch: Launch) -> tuple[Launch, tuple[HookGap, ...], StepResult]:
    """The launch as the guards can read it, and where it loses the hook.

    A command that would start does so, though its script cannot be read; one that the user names is a problem.
    """
    try:
        return launch, hook_gaps(Launch(launch.environ, launch.script, launch.command), folders.VARIABLE), StepResult()
    except Problem as problem:
        if launch.script is not None and str(launch.script) == problem.where:
            raise
        note = Note(Text("what the command starts was not checked: its script cannot be read"), str(problem))
        return replace(launch, command=()), (), StepResult.noted([note], "warning")


def _foreseen(gap: HookGap, *, require: bool) -> StepResult:
    seen_text = (Text("found: {found}", gap.found),) if gap.found else ()
    if require and gap.sure:
        cause = Text("{why}: what starts there is not patched", gap.why)
        return StepResult(problems=(Problem(Kind.ENVIRONMENT, cause, gap.where, gap.instead, seen_text),))
    note = Note(Text("{where}: {why}; what starts there is not patched", gap.where, gap.why), joined("\n", seen_text))
    return StepResult((Text("in {where}: {advice}", gap.where, gap.instead),)) + StepResult.noted([note], "warning")


def _with_hook(
    plans: Sequence[Plan], launch: Launch, gaps: Sequence[HookGap], *, require: bool
) -> Callable[[Show], int]:
    """Return what runs the command with the hook; its folder is made now, so that a failure is in the report."""
    folders.sweep()
    folder = folders.RunFolder(edits.composed(plan.edit for plan in plans), require=require)

    def then(show: Show) -> int:
        try:
            status = parent.run(launch.command, folder.environ(launch.environ))
        except Problem as problem:
            folder.leave()
            return show(CommandResult("run", problems=[problem]))
        patched, step = {}, StepResult()
        for planned in plans:
            patched[planned.target.project.name], ended = _ended(folder, planned, gaps, require=require)
            step += ended
        still = folder.leave(_PATIENCE_WITH_RAY_S if folder.went_to_ray else _PATIENCE_S)
        if still:
            processes = ", ".join(map(str, still[:3])) + (", …" if len(still) > 3 else "")
            needed = folder.path
            detail = Text("they need {path} to stay patched; the next rlpatch run after their end removes it", needed)
            text = Text("{count} of the run still there ({processes})", _processes(len(still)), processes)
            step += StepResult.noted([Note(text, detail)])
        code = show(CommandResult("run", step, data=RunOutcome(patched), aside=True, tells_all=True))
        return code if status == 0 else parent.leave(status)

    return then


def _ended(folder: folders.RunFolder, plan: Plan, gaps: Sequence[HookGap], *, require: bool) -> tuple[int, StepResult]:
    """Return what the processes of the run have left: in how many it was patched, or why in none."""
    name = plan.target.project.name
    files = {plan.target.root / change.path for change in plan.edit.changes}
    receipts = [receipt for receipt in folder.receipts() if folder.files[receipt.number] in files]
    count = len({receipt.pid for receipt in receipts if receipt.state == "patched"})
    unpatched = tuple(dict.fromkeys(filter(None, (_left(state, path) for _, _, state, path in receipts))))
    if count:
        step = StepResult((Text("rlpatch run: {name} was patched in {processes}", name, _processes(count)),))
        text = Text("{name} was also imported unpatched", name)
        notes = [Note(text, joined("\n", unpatched))] if unpatched else []
        return count, step + StepResult.noted(notes, "warning")
    if folder.went_to_ray and not unpatched:
        note = Note(Text("{name} was patched in no process of this machine; Ray has it for its workers", name), _RAY)
        return 0, StepResult.noted([note])
    cause = Text("{name} was patched in no process of the run", name)
    reasons = (*unpatched, *_reasons(folder, plan, gaps))
    if require:
        return 0, StepResult(problems=(Problem(Kind.ENVIRONMENT, cause, notes=reasons, hint=_IN_PLACE),))
    return 0, StepResult.noted([Note(cause, joined("\n", (*reasons, Text("next: {hint}", _IN_PLACE))))], "warning")


def _processes(count: int) -> str:
    return Text("1 process") if count == 1 else Text("{count} processes", count)


def _left(state: str, path: str) -> str:
    """Return why a file was imported unpatched; "" where it was not."""
    if state == "changed":
        return Text("{path} has changed since the run was planned: start it again", path)
    if state == "elsewhere":
        return Text("{path} is another copy than the planned one: --path or --python selects it", path)
    return ""


_PASSED_BY = Text("-I, -E, -S, env -i and a new PYTHONPATH bypass the hook")
_RAY = Text("processes on other machines report nothing here: look for rlpatch lines in the log of the run")
_IN_PLACE = Text("`rlpatch apply` with the same options patches the files themselves, which nothing bypasses")


def _reasons(folder: folders.RunFolder, plan: Plan, gaps: Sequence[HookGap]) -> tuple[str, ...]:
    """Return what it was, as far as the processes and the scripts tell."""
    if gaps:
        texts = [(gap.where, gap.why, gap.found or Text("behind it"), gap.instead) for gap in gaps]
        return tuple(Text("{where}: {why} ({text}): {advice}", *values) for values in texts)
    began, prefix = folder.prefixes(), plan.target.prefix
    if not began:
        none = Text("no Python process started with the hook: none was started, or another sitecustomize hides it")
        return none, _PASSED_BY
    if prefix and os.path.realpath(prefix) not in map(os.path.realpath, began):
        values = ", ".join(began[:3]), plan.target.project.name, prefix
        return (Text("Python ran in other environments ({ran}), and {name} is in {prefix}: --python EXE", *values),)
    files = ", ".join(str(change.path) for change in plan.edit.changes)
    begun = Text("Python processes started with the hook, but none imported {files}: did the run get there?", files)
    return begun, Text("{passed_by}; so do pytest's rewriting, and a zip", _PASSED_BY)
