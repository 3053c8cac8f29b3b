"""What travels between the driver and the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from patcher.change import Record
from patcher.errors import Problem
from patcher.notes import Note


class Found(NamedTuple):
    """A target on a node; the fields are those of `patcher.targets.target.Target`.

    ``packages`` are those beside it that its recipes ask for, where they were asked for.
    """

    project: str
    version: str
    root: str
    installed_as: str
    version_from: str
    found_by: str
    notes: tuple[Note, ...]
    packages: tuple[str, ...]


class Survey(NamedTuple):
    """What a node holds.

    ``asked`` are the words of the command and what they lead to, ``found`` is all that is there, ``roots`` are
    those of all, and of stores without a target, in one order. ``files`` has the
    digest of every file that planning reads, ``records`` what is applied below each root. ``unfinished`` are roots with
    an interrupted run, ``free`` is the space in bytes where the first root lies.
    """

    asked: Mapping[str, Found | Problem]
    found: tuple[Found, ...]
    stores: tuple[str, ...]
    roots: tuple[str, ...]
    searched: tuple[str, ...]
    files: Mapping[str, str]
    records: Mapping[str, tuple[Record, ...]]
    unfinished: tuple[str, ...]
    free: int | None

    @property
    def targets(self) -> tuple[Found, ...]:
        """All that is here, what was asked for first."""
        asked = (one for one in self.asked.values() if isinstance(one, Found))
        return tuple({(one.project, one.root): one for one in (*asked, *self.found)}.values())


class Standing(NamedTuple):
    """A root's part of a transaction that is on its way there; see `patcher.store.registry.Journal`."""

    root: str
    transaction: str
    participants: tuple[str, ...]
    position: int
    committed: bool
    hint: str = ""

    @property
    def name(self) -> str:
        """The participant that the root is."""
        return self.participants[self.position]


class Answer(NamedTuple):
    """What came of a question to a node: a value, a problem that it has, or the reason why nothing is known.

    Where the node was lost, what it was asked to do may be done or not.
    """

    value: object = None
    problem: Problem | None = None
    lost: str = ""

    @property
    def good(self) -> bool:
        """Whether it has done what it was asked."""
        return self.problem is None and not self.lost
