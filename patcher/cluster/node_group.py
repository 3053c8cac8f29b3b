"""The nodes of a cluster as a group that is called, whatever carries the calls, and what they answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from patcher.changes.change import Edit, Record
from patcher.messages.errors import Kind, Problem
from patcher.targets.target import Target

if TYPE_CHECKING:
    from patcher.commands.applied import PatchPayload

LIMIT_S = 120.0
"""How long a node may take for one answer; it waits 20 s of them for a lock."""


class NodeTarget(NamedTuple):
    """A target on a node; ``packages`` are those beside it that its recipes need, where the call named them."""

    target: Target
    packages: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, Path]:
        """The name of the project, and the root."""
        return self.target.project.name, self.target.root


class NodeSurvey(NamedTuple):
    """What a node holds.

    ``requested`` has what each word of the command leads to, ``discovered`` is all that is there, ``roots`` are
    those of all, and of ``stores`` without a target, in one order. ``files`` has the digest of every file that planning
    reads, ``records`` what is applied below each root, by their paths. ``unfinished`` are roots with an interrupted
    run.
    """

    requested: Mapping[str, NodeTarget | Problem]
    discovered: tuple[NodeTarget, ...]
    stores: tuple[Path, ...]
    roots: tuple[Path, ...]
    searched: tuple[str, ...]
    files: Mapping[str, str]
    records: Mapping[str, tuple[Record, ...]]
    unfinished: tuple[Path, ...]

    @property
    def found(self) -> dict[str, NodeTarget]:
        """The words that lead to a target."""
        return {word: one for word, one in self.requested.items() if isinstance(one, NodeTarget)}

    @property
    def targets(self) -> tuple[NodeTarget, ...]:
        """All that is here, what the command names first."""
        return tuple({one.place: one for one in (*self.found.values(), *self.discovered)}.values())


@dataclass(frozen=True)
class NodeStatus:
    """A node: the version of each target, what is applied, the processes that may hold it, the free space in bytes."""

    node: str
    state: str
    targets: Mapping[str, str] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    patches: Sequence[PatchPayload] = ()
    unfinished: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    free: int | None = None
    problem: str | None = None


class NodeEdit(NamedTuple):
    """An edit of a root on a node, and the patches that the root has before."""

    edit: Edit
    records: tuple[Record, ...]


class Answer(NamedTuple):
    """The answer of a node: a value, a problem that it has, or the reason why nothing is known.

    Where the node was lost, what it was to do may be done or not.
    """

    value: Any = None
    problem: Problem | None = None
    lost: str = ""

    @property
    def ok(self) -> bool:
        """Whether it has done what it was to do."""
        return self.problem is None and not self.lost


class NodeGroup(Protocol):
    """The nodes that can be called, by names that people know them by."""

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in one order."""

    def call(self, method: str, arguments: Mapping[str, Sequence[Any]], limit_s: float = LIMIT_S) -> dict[str, Answer]:
        """Call ``method`` of `patcher.cluster.node_worker.NodeWorker` on all nodes that have ``arguments``, at once.

        Every node has an answer, after ``limit_s`` seconds at the latest.
        """

    def close(self) -> None:
        """Let go of the nodes."""


def all_of(names: Iterable[str], *arguments: object) -> dict[str, Sequence[Any]]:
    """The same arguments for every node."""
    return dict.fromkeys(names, arguments)


def values(answers: Mapping[str, Answer]) -> dict[str, Any]:
    """The values of the nodes that have done what they were to do."""
    return {name: answer.value for name, answer in answers.items() if answer.ok}


def failed(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """The answers of the others: problems, and nodes that were lost."""
    return {name: answer for name, answer in answers.items() if not answer.ok}


def unreachable(why: str) -> Problem:
    """A node that gives no answer while nothing has been changed."""
    return Problem(Kind.ENVIRONMENT, f"no answer: {why}", hint="see `ray status`, or leave it out with --nodes")


def problems(answers: Mapping[str, Answer], lost: Callable[[str], Problem] = unreachable) -> list[Problem]:
    """Each problem once, with all nodes that have it; ``lost`` makes one of the reason why a node was lost."""
    return merged((name, answer.problem or lost(answer.lost)) for name, answer in failed(answers).items())


def merged(found: Iterable[tuple[str, Problem]]) -> list[Problem]:
    """Each problem once, with all nodes that have it."""
    nodes: dict[tuple[object, ...], tuple[Problem, list[str]]] = {}
    for name, problem in found:
        nodes.setdefault(problem.args, (problem, []))[1].append(name)
    return [problem.replace(node=listed(names)) for problem, names in nodes.values()]


def listed(names: Collection[str], most: int = 8) -> str:
    """The names, or the first of them and how many there are."""
    shown = ", ".join(sorted(names, key=natural)[:most])
    return shown if len(names) <= most else f"{shown}, … ({len(names)} nodes)"


def together(found: Sequence[Problem]) -> Problem:
    """One problem that has all others in its notes; the first decides the exit code."""
    first, *others = found
    lines = tuple(line for other in others for line in (f"{other.cause} ({other.place})", f"  next: {other.hint}"))
    return first.replace(notes=(*first.notes, *lines))


def natural(name: str) -> list[str | int]:
    """What names are sorted by for people: n2 comes before n10."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"([0-9]+)", name))]
