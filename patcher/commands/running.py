"""``run``: a command whose processes import what ``apply`` would write."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from patcher.commands.applying import LENT, WOULD, describe, plans_for
from patcher.commands.finding import LaunchOptions, SearchOptions
from patcher.commands.guarding import guard
from patcher.errors import Kind, Problem
from patcher.guards.gaps import HookGap, hook_gaps
from patcher.hook import folder as folders
from patcher.hook import parent
from patcher.report import Report

if TYPE_CHECKING:
    from patcher.plan import Plan
    from patcher.request import Request

Show = Callable[[Report], int]
# Ray's agents find out by themselves that their driver is gone: on a busy machine that took them more than 3 s.
_PATIENCE_S, _PATIENCE_WITH_RAY_S = 3.0, 15.0


def run(
    words: Sequence[str],
    search: SearchOptions,
    request: Request,
    launch: LaunchOptions,
    *,
    dry_run: bool,
    force: bool,
    require: bool,
) -> Report:
    """Plan as ``apply`` does; the report leads to the command, unless it has problems or it is a ``dry_run``.

    With ``require`` it is a problem where a part of the run certainly goes unpatched.
    """
    if not launch.command:
        hint = search.again("", "") + " -- bash run.sh"
        raise Problem(Kind.USAGE, "the command to run stands behind `--`, and is missing", hint=hint)
    parent.findable(launch.command[0])
    entries: list[dict[str, object]] = []
    report = Report("run", data={"dry_run": dry_run, "command": list(launch.command), "targets": entries})
    report.aside = not dry_run
    plans = plans_for(report, words, search, request, "run")
    gaps: tuple[HookGap, ...] = ()
    if not report.problems:
        readable, gaps = _read(report, launch)
        for upstream, plan in plans:
            target = plan.target
            guard(report, upstream, target.version, readable, force=force, target=target, profiler=plan.profiler)
        report.data["losses"] = [gap._asdict() for gap in gaps]
        for gap in gaps:
            _foresee(report, gap, require=require)
    if report.problems:
        return report
    verbs = WOULD if dry_run else LENT
    entries.extend(describe(report, upstream, plan, verbs) for upstream, plan in plans)
    changed = [plan for _, plan in plans if plan.changed]
    if dry_run:
        report.lines.append("next: the same without --dry-run; `rlpatch diff` with the same options shows every line")
    elif changed:
        report.lines.append("nothing is changed on disk: the processes of the command import these bytes")
        report.then = _with_hook(changed, launch, gaps, require=require)
    else:
        report.lines.append("the targets are patched on disk like this already: the command runs as it is")
        report.then = partial(_alone, launch)
    return report


def _read(report: Report, launch: LaunchOptions) -> tuple[LaunchOptions, tuple[HookGap, ...]]:
    """Where the launch loses the hook, and the launch as the guards can read it.

    A command that would start does so, though its script cannot be read; one that the user names is a problem.
    """
    try:
        return launch, hook_gaps(launch.environ, launch.script, launch.command, folders.VARIABLE)
    except Problem as problem:
        if launch.script is not None and str(launch.script) == problem.where:
            raise
        report.warn("what the command starts was not looked at: its script cannot be read", str(problem))
        return launch._replace(command=()), ()


def _foresee(report: Report, gap: HookGap, *, require: bool) -> None:
    """Say of a place of the launch that it loses the hook, and what to write there."""
    found = (f"found: {gap.found}",) if gap.found else ()
    if require and gap.sure:
        cause = f"{gap.why}: what starts there is not patched"
        report.problems.append(Problem(Kind.ENVIRONMENT, cause, gap.where, gap.instead, found))
    else:
        report.warn(f"{gap.where}: {gap.why}; what starts there is not patched", "\n".join(found))
        report.lines.append(f"in {gap.where}: {gap.instead}")


def _alone(launch: LaunchOptions, _show: Show) -> int:
    return parent.leave(parent.run(launch.command, launch.environ))


def _with_hook(
    plans: Sequence[Plan], launch: LaunchOptions, gaps: Sequence[HookGap], *, require: bool
) -> Callable[[Show], int]:
    """What runs the command in a folder that is made now, so that a failure to do so is told with the rest."""
    folders.sweep()
    folder = folders.RunFolder([plan.edit for plan in plans], require=require)

    def then(show: Show) -> int:
        try:
            status = parent.run(launch.command, folder.environ(launch.environ))
        except Problem as problem:
            folder.leave()
            return show(Report("run", problems=[problem]))
        report = _ended(folder, plans, gaps, require=require)
        still = folder.leave(_PATIENCE_WITH_RAY_S if folder.went_to_ray else _PATIENCE_S)
        if still:
            shown = ", ".join(map(str, still[:3])) + (", …" if len(still) > 3 else "")
            detail = f"they need {folder.path} to stay patched; the next rlpatch run after their end removes it"
            report.note(f"{_many(len(still))} of the run still there ({shown})", detail)
        code = show(report)
        return code if status == 0 else parent.leave(status)

    return then


def _ended(folder: folders.RunFolder, plans: Sequence[Plan], gaps: Sequence[HookGap], *, require: bool) -> Report:
    """What the processes of the run have left: who was patched, or why nobody was."""
    entries: dict[str, object] = {}
    report = Report("run", data={"patched": entries})
    report.aside = report.tells_all = True
    receipts = folder.receipts()
    for plan in plans:
        files = {plan.target.root / change.path for change in plan.edit.changes}
        numbers = {number for number, file in enumerate(folder.files) if file in files}
        mine = [receipt for receipt in receipts if receipt.number in numbers]
        processes = {receipt.pid for receipt in mine if receipt.state == "patched"}
        name = plan.target.project.name
        entries[name] = len(processes)
        if processes:
            report.lines.append(f"rlpatch run: {name} was patched in {_many(len(processes))}")
        left = [_LEFT[state].format(path) for _, _, state, path in mine if state in _LEFT]
        if processes and left:
            report.warn(f"{name} was imported unpatched, too", "\n".join(dict.fromkeys(left)))
        elif not processes and folder.went_to_ray and not left:
            report.note(f"{name} was patched in no process of this machine; Ray has it for its workers", _RAY)
        elif not processes:
            reasons = tuple(dict.fromkeys((*left, *_reasons(folder, plan, gaps))))
            cause = f"{name} was patched in no process of the run"
            if require:
                report.problems.append(Problem(Kind.ENVIRONMENT, cause, notes=reasons, hint=_IN_PLACE))
            else:
                report.warn(cause, "\n".join((*reasons, f"next: {_IN_PLACE}")))
    return report


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
