"""On which machines a command works: on this one, or on the nodes of a cluster (`patcher.cluster.nodes.Nodes`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from patcher import processes
from patcher.changes.change import Edit
from patcher.commands import elsewhere, guarding
from patcher.commands.finding import LaunchOptions, Search, SearchOptions
from patcher.commands.patching import status
from patcher.messages.report import CommandResult, StepResult
from patcher.recipe import Upstream
from patcher.store import outcomes
from patcher.store import transaction as store
from patcher.targets import applied
from patcher.targets.target import Target

Work = Sequence[tuple[Search, Edit]]
"""Edits, each with the search that has found its root."""


class Committed(NamedTuple):
    """What a transaction did: ``nodes`` has what is known of each node of a cluster, None on this machine."""

    step: StepResult
    nodes: Mapping[str, Mapping[str, object]] | None = None


class Where:
    """The machine that rlpatch runs on. Planning reads through `searches`; what writes goes through here, too."""

    def __init__(self, search: SearchOptions, on_wait: store.OnWait) -> None:
        self.search, self.on_wait = search, on_wait

    def within(self, work: Callable[[], CommandResult]) -> CommandResult:
        """The report of ``work``. All that a command does with the machines, it does within."""
        return work()

    def searches(self, words: Sequence[str], command: str, *, writes: bool) -> tuple[Sequence[Search], StepResult]:  # noqa: ARG002
        """Where planning reads ``words`` (none: all that is there): a search for each kind of installation.

        What stops a machine is a problem of the step; before a command that ``writes``, the interrupted runs of a
        cluster are ended.
        """
        return (self.search,), StepResult()

    def settle(self, search: Search) -> StepResult:
        """End the interrupted runs of every root that is found: a transaction may have gone over several."""
        return applied.settle(search.discover(), self.on_wait)

    def guard(
        self,
        search: Search,  # noqa: ARG002
        upstream: Upstream,
        target: Target,
        profiler: str,
        launch: LaunchOptions,
        *,
        force: bool,
    ) -> StepResult:
        """What is known of other profilers in ``target``, where ``profiler`` (or one of ours) is to record."""
        return guarding.guard(upstream, target.version, launch, force=force, target=target, profiler=profiler)

    def preflight(self, work: Work) -> StepResult:
        """Raise, or give, what stands in the way of ``work``; nothing is written."""
        return StepResult.noted(store.preflight([edit for _, edit in work]))

    def commit(self, work: Work, verb: str) -> Committed:
        """Do all of ``work`` on all machines or nothing; ``verb`` says what was done to a file."""
        elsewhere.remember(edit.root for _, edit in work if edit.add)  # before: it may be killed behind
        return Committed(outcomes.commit([edit for _, edit in work], verb, self.on_wait))

    def running(self, patched: Iterable[tuple[Search, Upstream, Path]]) -> Sequence[processes.RunningProcess]:
        """The processes that may hold the code as it was, of each upstream below its root."""
        known = list(patched)
        packages = dict.fromkeys(root / upstream.project.package for _, upstream, root in known)
        return processes.running(dict.fromkeys(upstream.processes for _, upstream, _ in known), packages)

    def recover(self) -> CommandResult:
        """End the runs that were interrupted."""
        return applied.recover(self.search.discover(), self.on_wait)

    def status(self, words: Sequence[str]) -> CommandResult:
        """What is patched."""
        return status.status(words, self.search)

    def check(self, words: Sequence[str], launch: LaunchOptions) -> CommandResult:
        """What is known of other profilers."""
        return guarding.check(words, self.search, launch)
