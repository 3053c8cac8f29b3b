"""``apply``: find the targets, end what was interrupted, look for other profilers, plan, commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from patcher import plan as planning
from patcher.commands.finding import LaunchOptions, Search
from patcher.commands.patching import describing
from patcher.commands.patching.planning import failures, find, plan
from patcher.commands.where import Committed
from patcher.messages.report import OMIT_NONE, CommandResult, StepResult
from patcher.store import transaction as store
from patcher.targets import applied

if TYPE_CHECKING:
    from patcher.commands.patching.describing import PlanPayload
    from patcher.commands.patching.planning import Attempted, Candidate, Planned
    from patcher.commands.where import Where
    from patcher.request import ProfileRequest


@dataclass(frozen=True)
class Applied:
    """The result of ``apply``; ``nodes`` is what was written on which node of a cluster."""

    dry_run: bool
    targets: tuple[PlanPayload, ...] = ()
    nodes: Mapping[str, Mapping[str, object]] | None = field(default=None, metadata=OMIT_NONE)
    restart: tuple[str, ...] | None = field(default=None, metadata=OMIT_NONE)


def apply(
    words: Sequence[str], where: Where, request: ProfileRequest, launch: LaunchOptions, *, dry_run: bool, force: bool
) -> CommandResult:
    """Patch every target of ``words`` or none; with ``dry_run`` only the plan and its checks."""
    searches, before = where.searches(words, "apply", writes=not dry_run)
    found = [find(words, search, request, "apply") for search in searches]
    before += StepResult() if dry_run else _settle(where, found)
    guarded = StepResult() if before.problems else _guard(where, found, launch, force=force)
    if guarded.problems:
        return CommandResult("apply", before + guarded, data=Applied(dry_run))
    planned = [plan(tried) for tried in found]
    failed = sum((failures(tried, words, request) for tried in planned), before)
    if failed.problems:
        return CommandResult("apply", failed, data=Applied(dry_run))
    plans = [one for tried in planned for one in tried.values]
    work = [(one.search, one.plan.edit) for one in plans]
    committed = Committed(where.preflight(work)) if dry_run else where.commit(work, "patched")
    return _applied(before + guarded + committed.step, plans, committed, where, dry_run=dry_run)


def _settle(where: Where, found: Sequence[Attempted[Candidate]]) -> StepResult:
    """End interrupted runs before planning: until then a file is not what it will be."""
    pending = (tried for tried in found if any(store.pending(one.target.folder) for one in tried.values))
    return sum((where.settle(tried.search) for tried in pending), StepResult())


def _guard(where: Where, found: Sequence[Attempted[Candidate]], launch: LaunchOptions, *, force: bool) -> StepResult:
    """What is known of other profilers, if every target is there."""
    step = StepResult()
    if not any(tried.problems for tried in found):
        for search, upstream, target, config in (one for tried in found for one in tried.values):
            profiler = planning.profiler(upstream, config)
            step += where.guard(search, upstream, target, profiler, launch, force=force)
    return step


def _applied(
    step: StepResult, plans: Sequence[Planned], committed: Committed, where: Where, *, dry_run: bool
) -> CommandResult:
    verbs = describing.WOULD if dry_run else describing.DONE
    shown: list[Search] = []
    for one in plans:
        step += StepResult(() if one.search in shown else on(one.search))
        step += describing.described(one.upstream, one.plan, verbs)
        shown.append(one.search)
    payloads = tuple(describing.payload(one.plan, one.search.nodes) for one in plans)
    if dry_run:
        return CommandResult("apply", step + StepResult((describing.NEXT_DRY_RUN,)), data=Applied(dry_run, payloads))
    marked = [one for one in plans if any(place.marked for place in one.plan.places)]
    if marked:
        names = dict.fromkeys(one.plan.target.project.name for one in marked)
        step += StepResult(tuple(applied.next_lines(*names, *plans[-1].search.words)))
    if not any(one.plan.changed for one in plans):
        return CommandResult("apply", step, data=Applied(dry_run, payloads, committed.nodes))
    running = tuple(where.running([(one.search, one.upstream, one.plan.target.root) for one in plans]))
    step += StepResult(tuple(applied.restart_lines(running)))
    return CommandResult("apply", step, data=Applied(dry_run, payloads, committed.nodes, running))


def on(search: Search) -> tuple[str, ...]:
    """The line above the results of some nodes of a cluster; none for this machine."""
    if not search.nodes:
        return ()
    count = "1 node" if len(search.nodes) == 1 else f"{len(search.nodes)} nodes"
    named = ", ".join(search.nodes[:8]) + (", …" if len(search.nodes) > 8 else "")
    return (f"on {count} ({named}):",)
