"""``run``: a command whose processes import what ``apply`` would write."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from patcher.changes import edits
from patcher.commands.finding import SearchOptions
from patcher.commands.patching import describing, steering
from patcher.commands.patching.describing import PlanPayload
from patcher.commands.patching.planning import check_profilers, find_candidates, plan, planning_failures
from patcher.guards.gaps import HookGap, hook_gaps
from patcher.guards.result import Launch
from patcher.hook import folder as folders
from patcher.hook import parent
from patcher.hook.parent import Companion
from patcher.messages import Kind, Note, Problem, Text, Warned, joined, processes_text, usage
from patcher.messages.report import OMIT_NONE, CommandResult, StepResult
from patcher.plan import Plan
from patcher.request import ProfileRequest

Show = Callable[[CommandResult], int]
"""Prints a result, and returns its exit code."""

Meanwhile = Callable[[Show], Companion]
"""Starts a companion, such as a watch, beside the command; it gets the function that shows results."""

# Ray's agents find out by themselves that their driver is gone: on a busy machine that took them more than 3 s.
_PATIENCE_S, _PATIENCE_WITH_RAY_S = 3.0, 15.0


@dataclass(frozen=True)
class RunPlan:
    """Plan of `run`; `losses` are the places of the launch after which processes are not patched, None if unchecked."""

    dry_run: bool
    command: tuple[str, ...]
    targets: tuple[PlanPayload, ...] = ()
    losses: tuple[HookGap, ...] | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class RunOutcome:
    """Outcome of `rlpatch run`: for each target the number of processes in which its files were patched."""

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
    meanwhile: Meanwhile | None = None,
) -> CommandResult:
    """Return the plans for `words` and, as `then` of the result, a function that runs the command with the patches.

    `then` is not set with `dry_run` or with problems. With `require`, a place in the launch that certainly leaves
    processes unpatched is a problem. With `force`, other profilers that are on are only warned of. `meanwhile` starts a
    companion beside the command. Raises Problem: USAGE without a command, NO_COMMAND or NOT_EXECUTABLE if its program
    is missing or cannot be executed.
    """
    if not launch.command:
        raise usage(Text("after `--`, type the command to run"), f"{search.again({})} -- bash run.sh")
    parent.require_program(launch.command[0])
    data = RunPlan(dry_run, launch.command)
    candidates = find_candidates(words, search, request, "run")
    gaps: tuple[HookGap, ...] = ()
    step = StepResult()
    if not candidates.problems:
        readable, gaps, step = _readable_launch(launch)
        step += check_profilers(candidates.values, readable, force=force)
        step = sum((_report_gap(gap, require=require) for gap in gaps), step)
        data = replace(data, losses=gaps)
    if not step.problems:
        planned = plan(candidates)
        step += planning_failures(planned, words, request)
    if step.problems:
        return CommandResult("run", step, data=data, aside=not dry_run)
    verb = describing.WOULD if dry_run else describing.LENT
    if meanwhile is None:
        step = sum((describing.describe(item.upstream, item.plan, verb) for item in planned.values), step)
    else:
        step += describing.describe_briefly(((item.upstream, item.plan) for item in planned.values), verb)
    data = replace(data, targets=tuple(describing.payload(candidate.plan) for candidate in planned.values))
    if dry_run:
        return CommandResult("run", step + StepResult((describing.NEXT_DRY_RUN,)), data=data)
    changed = [candidate.plan for candidate in planned.values if candidate.plan.changed]
    result = CommandResult("run", step + steering.variable_warnings(launch.environ), data=data, aside=True)
    if changed:
        how = Text("no file is changed: the processes of the command import the patched code from memory")
    else:
        how = Text(
            "the installed files already have these patches, so rlpatch runs the command without changing any file"
        )
    result.lines.append(how)
    result.then = _runner(changed, launch, gaps, meanwhile, require=require)
    return result


def _readable_launch(launch: Launch) -> tuple[Launch, tuple[HookGap, ...], StepResult]:
    """Return the launch, the places in it at which rlpatch's import hook gets lost, and a report.

    If the command names a file that cannot be read, the report has a warning, and the launch goes without the command.
    But Problem is raised if the user asked to check that file (`launch.script`).
    """
    try:
        return launch, hook_gaps(launch, folders.VARIABLE), StepResult()
    except Problem as problem:
        if launch.script is not None and str(launch.script) == problem.where:
            raise
        text = Text(
            "rlpatch cannot read the script that the command runs, so the script is not checked: the script might"
            " switch on another profiler, or start Python without rlpatch's hook"
        )
        return launch.replace(command=()), (), StepResult.noted([Note(text, str(problem))], "warning")


def _report_gap(gap: HookGap, *, require: bool) -> StepResult:
    """Return a warning, with `require` perhaps a problem, that a place in the launch leaves processes unpatched."""
    seen_text = (Text("text in the launch command or script: {text}", gap.found),) if gap.found else ()
    if require and gap.sure:
        cause = Text("{reason}, so processes started this way are unpatched", gap.why)
        return StepResult(problems=(Problem(Kind.ENVIRONMENT, cause, gap.where, gap.instead, seen_text),))
    warning = Text("{place} may start unpatched processes: {reason}", place=gap.where, reason=gap.why)
    if gap.sure:
        warning = Text("{place} starts unpatched processes: {reason}", place=gap.where, reason=gap.why)
    advice = Text("in {place}: {advice}", place=gap.where, advice=gap.instead)
    return StepResult((advice,)) + StepResult.noted([Note(warning, joined("\n", seen_text))], "warning")


def _runner(
    plans: Sequence[Plan], launch: Launch, gaps: Sequence[HookGap], meanwhile: Meanwhile | None, *, require: bool
) -> Callable[[Show], int]:
    """Return a function that runs the command of `launch`, beside what `meanwhile` starts, and returns the exit code.

    With `plans`, the command gets an import hook, whose folder is created at once. If the command fails by itself, the
    function ends this process with the command's status.
    """
    folder = None
    if plans:
        folders.sweep()
        folder = folders.RunFolder(edits.merge_by_root(plan.edit for plan in plans), require=require)

    def then(show: Show) -> int:
        companion = meanwhile(show) if meanwhile else None
        try:
            environ = folder.environ(launch.environ) if folder else launch.environ
            status = parent.run(launch.command, environ, companion)
        except Problem as problem:
            if folder:
                folder.leave()
            return show(CommandResult("run", problems=[problem]))
        code = show(_hook_report(folder, plans, gaps, require=require)) if folder else 0
        if companion is not None:
            code = companion.finish() or code
        ended_here = companion is not None and companion.ends_command()
        return code if status == 0 or ended_here else parent.leave(status)

    return then


def _hook_report(
    folder: folders.RunFolder, plans: Sequence[Plan], gaps: Sequence[HookGap], *, require: bool
) -> CommandResult:
    """Leave the folder of the import hook; report the processes in which plans had an effect, and those still alive.

    A plan without any patched process is a problem with `require`.
    """
    patched, step = _report_effects(folder, plans, gaps, require=require)
    still = folder.leave(_PATIENCE_WITH_RAY_S if folder.went_to_ray else _PATIENCE_S)
    if still:
        pids = ", ".join(map(str, still[:3])) + (", …" if len(still) > 3 else "")
        text = Text("still alive after the command ended: {processes} of the run ({pids})")
        text = text.filled(processes=processes_text(len(still)), pids=pids)
        detail = Text(
            "the patch of these processes still needs {folder}; once these processes have ended, the next `rlpatch"
            " run` deletes this folder",
            folder.path,
        )
        step += StepResult.noted([Note(text, detail)])
    return CommandResult("run", step, data=RunOutcome(patched), aside=True, tells_all=True)


def _report_effects(
    folder: folders.RunFolder, plans: Sequence[Plan], gaps: Sequence[HookGap], *, require: bool
) -> tuple[dict[str, int], StepResult]:
    """Return target → in how many processes of the run the files of its plans were patched, and the report."""
    patched, step = dict[str, set[int]](), StepResult()
    for planned in plans:
        pids, ended = _report_effect(folder, planned, gaps, require=require)
        patched.setdefault(planned.target.project.name, set()).update(pids)
        step += ended
    counts = {name: len(pids) for name, pids in patched.items()}
    lines = (
        Text("rlpatch run: {target} was patched in {processes}", target=name, processes=processes_text(count))
        for name, count in counts.items()
        if count
    )
    return counts, StepResult((*lines,)) + step


def _report_effect(
    folder: folders.RunFolder, plan: Plan, gaps: Sequence[HookGap], *, require: bool
) -> tuple[set[int], StepResult]:
    """Return the ids of the processes of the run in which the files of `plan` were patched, and what went wrong.

    A run without any patched process gets a warning. With `require` that is a problem, but only a note if other nodes
    of a Ray cluster may have such processes.
    """
    name = plan.target.project.name
    files = {plan.target.root / change.path for change in plan.edit.changes}
    receipts = [receipt for receipt in folder.receipts() if folder.files[receipt.number] in files]
    pids = {receipt.pid for receipt in receipts if receipt.state == "patched"}
    unpatched = tuple(dict.fromkeys(filter(None, (_why_unpatched(state, path) for _, _, state, path in receipts))))
    if pids:
        text = Text("some processes imported {target} without the patch", name)
        notes = [Note(text, joined("\n", unpatched))] if unpatched else []
        return pids, StepResult.noted(notes, "warning")
    if folder.went_to_ray and not unpatched:
        text = Text("no process on this machine imported the patched {target}; for other nodes, see the log of the run")
        return set(), StepResult.noted([Note(text.filled(name), _RAY)])
    cause = Text("no process of the run imported the patched {target}", name)
    reasons = (*unpatched, *_reasons_unpatched(folder, plan, gaps))
    if require:
        return set(), StepResult(problems=(Problem(Kind.ENVIRONMENT, cause, notes=reasons, hint=_IN_PLACE),))
    detail = joined("\n", (*reasons, Text("next: {advice}", _IN_PLACE)))
    return set(), StepResult(notes=(Warned("warning", cause, detail),))


def _why_unpatched(state: str, path: str) -> str:
    """Return why a process imported the file `path` unpatched; "" if it did not."""
    if state == "changed":
        return Text("{path} changed after `rlpatch run` had read it: start the run again", path)
    if state == "elsewhere":
        return Text("the run imported another copy, {path}: choose this copy with --path or --python", path)
    return ""


_PASSED_BY = Text(
    "the hook of `rlpatch run` has no effect in Python processes that are started with -I, -E, -S,"
    " env -i or a new PYTHONPATH"
)
_RAY = Text(
    "processes on other machines cannot report to this command: look for lines that contain “rlpatch” in the log of"
    " the run"
)
_IN_PLACE = Text(
    "use `rlpatch apply` with the same options instead: it changes the installed files, so it works"
    " however Python is started"
)


def _reasons_unpatched(folder: folders.RunFolder, plan: Plan, gaps: Sequence[HookGap]) -> tuple[str, ...]:
    """Return likely reasons why no process imported the patched files of `plan`, each a sentence with its remedy.

    If any Python process had the hook, only `gaps` that are certain count.
    """
    began, prefix = folder.prefixes(), plan.target.prefix
    loss, behind = Text("{place}: {reason} ({text}); {advice}"), Text("from this line on")
    losses = tuple(
        loss.filled(place=gap.where, reason=gap.why, text=gap.found or behind, advice=gap.instead)
        for gap in gaps
        if gap.sure or not began
    )
    if not began and losses:
        return losses
    if not began:
        none = Text(
            "no Python process loaded rlpatch's hook: the command started no Python, or another sitecustomize hides"
            " the hook"
        )
        return none, _PASSED_BY
    if prefix and os.path.realpath(prefix) not in map(os.path.realpath, began):
        text = Text(
            "{target} is in {environment}, but the run's Python processes use other environments ({environments}):"
            " choose the environment of the run with --python EXE"
        )
        name, environments = plan.target.project.name, ", ".join(began[:3])
        return (text.filled(target=name, environment=prefix, environments=environments), *losses)
    files = ", ".join(str(change.path) for change in plan.edit.changes)
    begun = Text(
        "Python processes loaded rlpatch's hook, but none imported {files}: did the run end before it imported them?",
        files,
    )
    passed_by = Text(
        "{limits}. The hook also has no effect on modules that pytest rewrites, or that are in a zip file", _PASSED_BY
    )
    return begun, *(losses or (passed_by,))
