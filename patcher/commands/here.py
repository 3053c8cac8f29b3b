"""The machine that rlpatch runs on (`patcher.commands.where.Where`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from patcher import processes
from patcher.commands.guarding import check, guard
from patcher.commands.patching.status import status
from patcher.commands.where import Committed
from patcher.messages.report import CommandResult, StepResult
from patcher.store import outcomes
from patcher.store import transaction as store
from patcher.targets import applied

if TYPE_CHECKING:  # `status` of a machine where nothing is patched needs none of it
    from patcher.commands.finding import LaunchOptions, Search, SearchOptions
    from patcher.commands.where import Work
    from patcher.recipe import Upstream
    from patcher.targets.target import Target


class Here(NamedTuple):
    """The machine that rlpatch runs on."""

    search: SearchOptions
    on_wait: store.OnWait

    def within(self, work: Callable[[], CommandResult]) -> CommandResult:
        """See `Where`."""
        return work()

    def searches(self, words: Sequence[str], command: str, *, writes: bool) -> tuple[Sequence[Search], StepResult]:  # noqa: ARG002
        """See `Where`: the one of the command line."""
        return (self.search,), StepResult()

    def settle(self, search: Search) -> StepResult:
        """See `Where`."""
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
        """See `Where`."""
        return guarded(upstream, target, profiler, launch, force=force)

    def preflight(self, work: Work) -> StepResult:
        """See `Where`."""
        return StepResult.noted(store.preflight([edit for _, edit in work]))

    def commit(self, work: Work, verb: str) -> Committed:
        """See `Where`."""
        return Committed(outcomes.commit([edit for _, edit in work], verb, self.on_wait))

    def running(self, patched: Iterable[tuple[Search, Upstream, Path]]) -> Sequence[str]:
        """See `Where`."""
        known = list(patched)
        packages = dict.fromkeys(root / upstream.project.package for _, upstream, root in known)
        return processes.running(dict.fromkeys(upstream.processes for _, upstream, _ in known), packages)

    def recover(self) -> CommandResult:
        """See `Where`."""
        return applied.recover(self.search.discover(), self.on_wait)

    def status(self, words: Sequence[str]) -> CommandResult:
        """See `Where`."""
        return status(words, self.search)

    def check(self, words: Sequence[str], launch: LaunchOptions) -> CommandResult:
        """See `Where`."""
        return check(words, self.search, launch)


def guarded(upstream: Upstream, target: Target, profiler: str, launch: LaunchOptions, *, force: bool) -> StepResult:
    """What is known of other profilers in ``target``; see `Where`."""
    report = CommandResult("guard")
    guard(report, upstream, target.version, launch, force=force, target=target, profiler=profiler)
    return report.step
