"""The machine that rlpatch runs on (`patcher.commands.where.Where`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from patcher import interrupts, processes
from patcher.commands.guarding import check, guard
from patcher.commands.status import status
from patcher.errors import Kind, Problem
from patcher.store import outcomes
from patcher.store import transaction as store

if TYPE_CHECKING:  # `status` of a machine where nothing is patched needs none of it
    from patcher.change import Edit
    from patcher.commands.finding import LaunchOptions, Search, SearchOptions
    from patcher.plan import Plan
    from patcher.recipe import Upstream
    from patcher.report import Report

OnWait = Callable[[str], None]


class Here(NamedTuple):
    """The machine that rlpatch runs on."""

    search: SearchOptions
    on_wait: OnWait

    def within(self, work: Callable[[], Report]) -> Report:
        """See `Where`."""
        return work()

    def searches(self, report: Report, words: Sequence[str], command: str, *, writes: bool) -> Sequence[Search]:  # noqa: ARG002
        """The one of the command line."""
        return (self.search,)

    def unfinished(self, root: Path) -> bool:
        """As the store says."""
        return store.pending(root)

    def settle(self, report: Report, search: Search) -> None:
        """See `Where`."""
        found = search.discover()
        try:
            with interrupts.deferred():
                outcomes.ended(report, store.recover(found.stores, on_wait=self.on_wait))
        except KeyboardInterrupt:
            raise Problem(Kind.INTERRUPTED, "stopped by the keyboard", notes=tuple(report.done)) from None

    def guard(self, report: Report, upstream: Upstream, plan: Plan, launch: LaunchOptions, *, force: bool) -> None:
        """See `Where`."""
        target = plan.target
        guard(report, upstream, target.version, launch, force=force, target=target, profiler=plan.profiler)

    def preflight(self, report: Report, edits: Sequence[Edit]) -> None:
        """See `Where`."""
        outcomes.noted(report, store.preflight(edits))

    def commit(self, report: Report, edits: Sequence[Edit], verb: str) -> None:
        """See `Where`."""
        outcomes.commit(report, edits, verb, self.on_wait)

    def running(self, patched: Iterable[tuple[Upstream, Path]]) -> Sequence[str]:
        """See `Where`."""
        known = list(patched)
        packages = dict.fromkeys(root / upstream.project.package for upstream, root in known)
        return processes.running(dict.fromkeys(upstream.processes for upstream, _ in known), packages)

    def recover(self, report: Report) -> None:
        """See `Where`."""
        found = self.search.discover()
        with interrupts.deferred():
            ended = store.recover(found.stores, on_wait=self.on_wait)
            if ended:
                interrupts.ignore()
        outcomes.ended(report, ended)
        report.data["roots"] = [outcomes.as_json(one) for one in ended]
        if not ended:
            report.lines.append(f"nothing to recover; looked in: {'; '.join(found.searched)}")

    def status(self, words: Sequence[str]) -> Report:
        """See `Where`."""
        return status(words, self.search)

    def check(self, words: Sequence[str], launch: LaunchOptions) -> Report:
        """See `Where`."""
        return check(words, self.search, launch)
