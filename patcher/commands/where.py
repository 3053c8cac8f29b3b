"""On which machines a command works: on this one (`patcher.commands.here`), or on others that are told what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # `status` of a machine where nothing is patched needs none of it
    from patcher.change import Edit
    from patcher.commands.finding import LaunchOptions, Search
    from patcher.plan import Plan
    from patcher.recipe import Upstream
    from patcher.report import Report


class Where(Protocol):
    """The machines of a command. Planning reads through `searches`; what writes goes through here."""

    def within(self, work: Callable[[], Report]) -> Report:
        """What ``work`` reports. All that a command does with the machines, it does within."""

    def searches(self, report: Report, words: Sequence[str], command: str, *, writes: bool) -> Sequence[Search]:
        """Where planning reads ``words`` (none: all that is there): a search for each kind of installation.

        What stops a machine goes into ``report``; before a command that ``writes``, runs that were interrupted are
        ended.
        """

    def unfinished(self, root: Path) -> bool:
        """Whether an interrupted run is still to be ended below ``root``, before planning reads it."""

    def settle(self, report: Report, search: Search) -> None:
        """End the interrupted runs of every root that is found: a transaction may have gone over several."""

    def guard(self, report: Report, upstream: Upstream, plan: Plan, launch: LaunchOptions, *, force: bool) -> None:
        """Put into ``report`` what is known of other profilers in the target of ``plan``."""

    def preflight(self, report: Report, edits: Sequence[Edit]) -> None:
        """Raise, or put into ``report``, what stands in the way of ``edits``; nothing is written."""

    def commit(self, report: Report, edits: Sequence[Edit], verb: str) -> None:
        """Do all of ``edits`` on all machines or nothing; ``verb`` says what was done to a file."""

    def running(self, patched: Iterable[tuple[Upstream, Path]]) -> Sequence[str]:
        """The processes that may hold the code as it was, of each upstream below its root."""

    def recover(self, report: Report) -> None:
        """End the runs that were interrupted."""

    def status(self, words: Sequence[str]) -> Report:
        """What is patched."""

    def check(self, words: Sequence[str], launch: LaunchOptions) -> Report:
        """What is known of other profilers."""
