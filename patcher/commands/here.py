"""The machine that rlpatch runs on (`patcher.commands.where.Where`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from patcher import interrupts, processes
from patcher.commands.guarding import check, guard
from patcher.commands.inspecting import status
from patcher.commands.where import Committed
from patcher.errors import Kind, Problem
from patcher.report import Report, StepResult
from patcher.store import outcomes
from patcher.store import transaction as store

if TYPE_CHECKING:  # `status` of a machine where nothing is patched needs none of it
    from patcher.commands.finding import LaunchOptions, Search, SearchOptions
    from patcher.commands.where import Work
    from patcher.recipe import Upstream
    from patcher.targets.target import Target

OnWait = Callable[[str], None]


@dataclass(frozen=True)
class Recovered:
    """``roots`` are those whose interrupted runs were ended (`patcher.store.outcomes.as_json`)."""

    roots: tuple[dict[str, object], ...]


class Here(NamedTuple):
    """The machine that rlpatch runs on."""

    search: SearchOptions
    on_wait: OnWait

    def within(self, work: Callable[[], Report]) -> Report:
        """See `Where`."""
        return work()

    def searches(self, words: Sequence[str], command: str, *, writes: bool) -> tuple[Sequence[Search], StepResult]:  # noqa: ARG002
        """See `Where`: the one of the command line."""
        return (self.search,), StepResult()

    def settle(self, search: Search) -> StepResult:
        """See `Where`."""
        found = search.discover()
        ended = StepResult()
        try:
            with interrupts.deferred():
                ended = outcomes.ended(store.recover(found.stores, on_wait=self.on_wait))
        except KeyboardInterrupt:
            raise Problem(Kind.INTERRUPTED, "stopped by the keyboard", notes=ended.done) from None
        return ended

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
        report = Report("guard")
        guard(report, upstream, target.version, launch, force=force, target=target, profiler=profiler)
        return report.step

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

    def recover(self) -> Report:
        """See `Where`."""
        found = self.search.discover()
        with interrupts.deferred():
            ended = store.recover(found.stores, on_wait=self.on_wait)
            if ended:
                interrupts.ignore()
        nothing = () if ended else (f"nothing to recover; looked in: {'; '.join(found.searched)}",)
        step = outcomes.ended(ended) + StepResult(nothing)
        return Report("recover", step, data=Recovered(tuple(outcomes.as_json(one) for one in ended)))

    def status(self, words: Sequence[str]) -> Report:
        """See `Where`."""
        return status(words, self.search)

    def check(self, words: Sequence[str], launch: LaunchOptions) -> Report:
        """See `Where`."""
        return check(words, self.search, launch)
