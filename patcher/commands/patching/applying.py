"""``apply``: find the targets, end what was interrupted, look for other profilers, plan, commit."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from patcher.commands import applied
from patcher.commands.finding import Search
from patcher.commands.patching import describing
from patcher.commands.patching.describing import PlanPayload
from patcher.commands.patching.planning import (
    Attempted,
    Candidate,
    Planned,
    check_profilers,
    edits_by_root,
    find_candidates,
    plan,
    planning_failures,
)
from patcher.commands.where import Committed, Where, carry_out, running, searches
from patcher.guards.result import Launch
from patcher.messages import AND, SEMICOLON, Note, Text, joined
from patcher.messages.report import OMIT_NONE, CommandResult, StepResult
from patcher.processes import RunningProcess
from patcher.request import ProfileRequest
from patcher.store.folder import StoreFolder
from patcher.targets import interpreters


@dataclass(frozen=True)
class Applied:
    """Result of `apply`; `nodes` maps each cluster node to what was written; `restart` has processes with old code."""

    dry_run: bool
    targets: tuple[PlanPayload, ...] = ()
    nodes: Mapping[str, Mapping[str, object]] | None = field(default=None, metadata=OMIT_NONE)
    restart: tuple[str, ...] | None = field(default=None, metadata=OMIT_NONE)


def apply(
    words: Sequence[str], where: Where, request: ProfileRequest, launch: Launch, *, dry_run: bool, force: bool
) -> CommandResult:
    """Patch every target of `words` on this machine or the nodes of `where`, or none if any has a problem.

    With `dry_run` only plan and check; else interrupted commands are ended first. `launch` will start the run: another
    profiler in it that is on is a problem, with `force` a warning. Problems of planning are in the result; Problem is
    raised if searching, recovering or writing fails.
    """
    places, step = searches(where, words, "apply", writes=not dry_run)
    candidates = [find_candidates(words, search, request, "apply") for search in places]
    if not dry_run and not where.nodes:
        step += _end_interrupted(candidates, where)
    if not any(attempt.problems for attempt in candidates):  # which the reader mends first
        all_candidates = [candidate for attempt in candidates for candidate in attempt.values]
        step += check_profilers(all_candidates, launch, force=force, nodes=where.nodes)
    if not step.problems:
        planned = [plan(attempt) for attempt in candidates]
        step = sum((planning_failures(attempt, words, request) for attempt in planned), step)
    if step.problems:
        return CommandResult("apply", step, data=Applied(dry_run))
    plans = [target_plan for attempt in planned for target_plan in attempt.values]
    committed = carry_out(where, edits_by_root(plans), Text("patched"), dry_run=dry_run)
    return _final_report(step + committed.step, plans, committed, where, dry_run=dry_run)


def _end_interrupted(candidates: Sequence[Attempted[Candidate]], where: Where) -> StepResult:
    """End all interrupted commands in the search, if a candidate's root has one; report the outcome."""
    targets = [candidate.target for attempt in candidates for candidate in attempt.values]
    if not any(StoreFolder(target.folder).unfinished() for target in targets):
        return StepResult()
    return applied.end_interrupted(where.search.discover(), where.on_wait)


def _final_report(
    step: StepResult, plans: Sequence[Planned], committed: Committed, where: Where, *, dry_run: bool
) -> CommandResult:
    """Return the result of `rlpatch apply`: `step`, then the plans, the next commands, and the processes to restart."""
    verb = describing.WOULD if dry_run else describing.DONE
    for search, search_plans in groupby(plans, key=lambda planned: planned.search):
        step = sum(
            (describing.describe(planned.upstream, planned.plan, verb) for planned in search_plans),
            step + StepResult(node_header(search)),
        )
    data = Applied(
        dry_run, tuple(describing.payload(planned.plan, planned.search.nodes) for planned in plans), committed.nodes
    )
    if dry_run:
        return CommandResult("apply", step + StepResult((describing.NEXT_DRY_RUN,)), data=data)
    marked = [
        planned.plan.target.project.name for planned in plans if any(place.marked for place in planned.plan.places)
    ]
    if marked:
        step += StepResult(tuple(applied.next_lines(*dict.fromkeys(marked), *_place_options(plans))))
    if any(planned.plan.changed for planned in plans):
        engines = running(where, [(planned.search, planned.upstream, planned.plan.target.root) for planned in plans])
        step = _warn_of_other_users(engines, plans) + step + StepResult(tuple(applied.restart_lines(engines)))
        data = replace(data, restart=tuple(engine.line for engine in engines))
    return CommandResult("apply", step, data=data)


def _place_options(plans: Sequence[Planned]) -> tuple[str, ...]:
    """Return the options with which `diff` and `revert` find the patched files from any folder and environment.

    They are absolute, or those of a cluster; () if none are needed, or if they cannot name several environments.
    """
    words, targets = plans[-1].search.words, [planned.plan.target for planned in plans]
    own_path = {*sys.path} - {*os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    if words[:1] == ("--python",):
        return ("--python", interpreters.executable(words[1]))
    if words[:1] == ("--ray",) or (not words and all(str(target.root) in own_path for target in targets)):
        return words
    if len({target.root for target in targets}) == 1:
        return ("--path", str(targets[0].root))
    if words:
        return tuple(word for path in words[1::2] for word in ("--path", str(Path(path).absolute())))
    prefixes = {target.prefix for target in targets}
    return ("--python", str(Path(targets[0].prefix, "bin", "python"))) if len(prefixes) == 1 else ()


def _warn_of_other_users(engines: Iterable[RunningProcess], plans: Sequence[Planned]) -> StepResult:
    """Return a warning that the engines of other users will record from their next start on; empty without any."""
    users = sorted({engine.user for engine in engines if engine.user})
    if not users:
        return StepResult()
    folders = dict.fromkeys(planned.plan.config.save_path for planned in plans if planned.plan.config.save_path)
    text = Text(
        "if engines of {users} use this installation, too, they will record from their next start on", ", ".join(users)
    )
    detail = Text("`rlpatch run` with the same options patches only a single run")
    if folders:
        detail = joined(SEMICOLON, (Text("the traces of these engines go to {folders}", joined(AND, folders)), detail))
    return StepResult.noted([Note(text, detail)], "warning")


def node_header(search: Search) -> tuple[str, ...]:
    """Return the line above the results of the cluster nodes in a search; () for this machine."""
    if not search.nodes:
        return ()
    names = ", ".join(search.nodes[:8]) + (", …" if len(search.nodes) > 8 else "")
    if len(search.nodes) == 1:
        return (Text("on 1 node ({names}):", names),)
    return (Text("on {count} nodes ({names}):", count=len(search.nodes), names=names),)
