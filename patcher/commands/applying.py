"""``apply``: find the targets, end what was interrupted, look for other profilers, plan, commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from patcher.command_line import CommandLine
from patcher.commands import describing
from patcher.commands.finding import LaunchOptions, Search
from patcher.commands.planning import configure, failures, find, plan
from patcher.report import OMIT_NONE, Report, StepResult
from patcher.store import transaction as store

if TYPE_CHECKING:
    from patcher.commands.describing import PlanPayload
    from patcher.commands.planning import Attempted, Candidate, Planned
    from patcher.commands.where import Where
    from patcher.request import Request


@dataclass(frozen=True)
class Applied:
    """The result of ``apply``; ``nodes`` is what was written on which node of a cluster."""

    dry_run: bool
    targets: tuple[PlanPayload, ...] = ()
    nodes: Mapping[str, Mapping[str, object]] | None = field(default=None, metadata=OMIT_NONE)
    restart: tuple[str, ...] | None = field(default=None, metadata=OMIT_NONE)


def apply(
    words: Sequence[str],
    where: Where,
    request: Request,
    launch: LaunchOptions,
    *,
    dry_run: bool,
    force: bool,
) -> Report:
    """Patch every target of ``words`` or none; with ``dry_run`` only the plan and its checks."""
    searches, before = where.searches(words, "apply", writes=not dry_run)
    candidates: list[tuple[Search, Attempted[Candidate]]] = []
    for search in searches:
        found = find(words, search, "apply")
        if not dry_run and any(store.pending(target.folder) for _, target in found.values):
            before += where.settle(search)
        candidates.append((search, configure(found, search, request)))
    guarded = StepResult()
    if not before.problems and not any(one.problems for _, one in candidates):
        guarded = _guard(where, [one for _, tried in candidates for one in tried.values], launch, force=force)
    if guarded.problems:
        return Report("apply", before + guarded, data=Applied(dry_run))
    planned = [(search, plan(tried, search)) for search, tried in candidates]
    failed = reduce(add, (failures(tried, words, request) for _, tried in planned), before)
    if failed.problems:
        return Report("apply", failed, data=Applied(dry_run))
    plans = [one for _, tried in planned for one in tried.values]
    return _carry_out(before + guarded, plans, where, dry_run=dry_run)


def _guard(where: Where, candidates: Sequence[Candidate], launch: LaunchOptions, *, force: bool) -> StepResult:
    looks = (where.guard(one.search, one.upstream, one.target, one.profiler, launch, force=force) for one in candidates)
    return reduce(add, looks, StepResult())


def _carry_out(before: StepResult, plans: Sequence[Planned], where: Where, *, dry_run: bool) -> Report:
    work = [(one.search, one.plan.edit) for one in plans]
    nodes = None
    if dry_run:
        step = before + where.preflight(work)
    else:
        committed = where.commit(work, "patched")
        step, nodes = before + committed.step, committed.nodes
    verbs = describing.WOULD if dry_run else describing.DONE
    lines: list[str] = []
    for search in {id(one.search): one.search for one in plans}.values():
        lines += on(search)
        for one in (one for one in plans if one.search is search):
            lines += describing.lines(one.upstream, one.plan, verbs)
    payloads = tuple(describing.payload(one.plan, one.search.nodes) for one in plans)
    step = reduce(add, (describing.notes(one.plan) for one in plans), step)
    restart = None
    if dry_run:
        lines.append("next: the same without --dry-run; `rlpatch diff` with the same options shows every line")
    else:
        lines += _next(plans)
        if any(one.plan.changed for one in plans):
            restart = tuple(where.running([(one.search, one.upstream, one.plan.target.root) for one in plans]))
            lines += restart_lines(restart)
    return Report("apply", step + StepResult(tuple(lines)), data=Applied(dry_run, payloads, nodes, restart))


def on(search: Search) -> list[str]:
    """The line above the results of some nodes of a cluster; none for this machine."""
    if not search.nodes:
        return []
    count = "1 node" if len(search.nodes) == 1 else f"{len(search.nodes)} nodes"
    named = ", ".join(search.nodes[:8]) + (", …" if len(search.nodes) > 8 else "")
    return [f"on {count} ({named}):"]


def _next(plans: Sequence[Planned]) -> list[str]:
    """What can be done with what is applied now, if anything is."""
    applied = [one for one in plans if any(place.marked for place in one.plan.places)]
    if not applied:
        return []
    names = dict.fromkeys(one.plan.target.project.name for one in applied)
    shown, out = (CommandLine(command, *names, *plans[-1].search.words) for command in ("diff", "revert"))
    return [f"next: `{shown}` shows every line", f"      `{out}` takes it out again"]


def restart_lines(running: Sequence[str]) -> list[str]:
    """That what runs already holds the code as it was."""
    if not running:
        return ["note: an engine that runs already holds the code as it was; restart it"]
    return ["note: these processes may hold the code as it was; restart them:", *(f"  {one}" for one in running)]
