"""On which machines a command works: on this one (`patcher.commands.here`), or on the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from patcher.messages.report import StepResult

if TYPE_CHECKING:  # `status` of a machine where nothing is patched needs none of it
    from patcher.changes.change import Edit
    from patcher.commands.finding import LaunchOptions, Search
    from patcher.messages.report import CommandResult
    from patcher.recipe import Upstream
    from patcher.targets.target import Target

    Work = Sequence[tuple[Search, Edit]]
    """Edits, each with the search that has found its root."""


class Committed(NamedTuple):
    """What a transaction did: ``nodes`` has what is known of each node of a cluster, None on this machine."""

    step: StepResult
    nodes: Mapping[str, Mapping[str, object]] | None = None


class Where(Protocol):
    """The machines of a command. Planning reads through `searches`; what writes goes through here."""

    def within(self, work: Callable[[], CommandResult]) -> CommandResult:
        """The report of ``work``. All that a command does with the machines, it does within."""

    def searches(self, words: Sequence[str], command: str, *, writes: bool) -> tuple[Sequence[Search], StepResult]:
        """Where planning reads ``words`` (none: all that is there): a search for each kind of installation.

        What stops a machine is a problem of the step; before a command that ``writes``, the interrupted runs of a
        cluster are ended.
        """

    def settle(self, search: Search) -> StepResult:
        """End the interrupted runs of every root that is found: a transaction may have gone over several."""

    def guard(
        self, search: Search, upstream: Upstream, target: Target, profiler: str, launch: LaunchOptions, *, force: bool
    ) -> StepResult:
        """What is known of other profilers in ``target``, where ``profiler`` (or one of ours) is to record."""

    def preflight(self, work: Work) -> StepResult:
        """Raise, or give, what stands in the way of ``work``; nothing is written."""

    def commit(self, work: Work, verb: str) -> Committed:
        """Do all of ``work`` on all machines or nothing; ``verb`` says what was done to a file."""

    def running(self, patched: Iterable[tuple[Search, Upstream, Path]]) -> Sequence[str]:
        """The processes that may hold the code as it was, of each upstream below its root."""

    def recover(self) -> CommandResult:
        """End the runs that were interrupted."""

    def status(self, words: Sequence[str]) -> CommandResult:
        """What is patched."""

    def check(self, words: Sequence[str], launch: LaunchOptions) -> CommandResult:
        """What is known of other profilers."""
