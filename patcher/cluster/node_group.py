"""The nodes of a cluster as a group that is called, whatever carries the calls, and what they answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from patcher.changes.change import Edit, Record
from patcher.messages import Kind, Problem, Text
from patcher.targets.target import Target

if TYPE_CHECKING:
    from patcher.commands.applied import PatchPayload


class NodeTarget(NamedTuple):
    """A target on a node; ``packages`` are those beside it that its recipes need, where the call named them."""

    target: Target
    packages: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, Path]:
        """The name of the project, and the root."""
        return self.target.project.name, self.target.root


class NodeSurvey(NamedTuple):
    """Targets and patches of a node.

    ``requested`` has the target of each word of the command, ``discovered`` all that are there, ``roots`` those of all
    targets and ``stores``, in one order. ``files`` has the digest of every file that planning reads, ``records`` the
    applied patches of each root, by their paths. ``unfinished`` are roots with an interrupted run.
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
        """Targets of the words that lead to one."""
        return {word: target for word, target in self.requested.items() if isinstance(target, NodeTarget)}

    @property
    def targets(self) -> tuple[NodeTarget, ...]:
        """All targets, those that the command names first."""
        return tuple({target.place: target for target in (*self.found.values(), *self.discovered)}.values())


@dataclass(frozen=True)
class NodeStatus:
    """State of a node: versions of targets, patches, processes that may hold them, free space in bytes."""

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
    """Answer of a node: a value, a problem, or the reason why there is none: then its work may be done or not."""

    value: Any = None
    problem: Problem | None = None
    lost: str = ""

    @property
    def ok(self) -> bool:
        """Whether the node has done its work."""
        return self.problem is None and not self.lost


class NodeGroup(Protocol):
    """Nodes that can be called, by names that people know them by."""

    @property
    def names(self) -> tuple[str, ...]:
        """All nodes, in one order."""

    def call(self, method: str, arguments: Mapping[str, Sequence[Any]]) -> dict[str, Answer]:
        """Call ``method`` of `patcher.cluster.node_worker.NodeWorker` on all nodes that have ``arguments``, at once.

        Every node has an answer: after some time it counts as lost.
        """

    def close(self) -> None:
        """Let go of the nodes."""


def all_of(names: Iterable[str], *arguments: object) -> dict[str, Sequence[Any]]:
    """Return the same arguments for every node."""
    return dict.fromkeys(names, arguments)


def values(answers: Mapping[str, Answer]) -> dict[str, Any]:
    """Return the values of the nodes that have done their work."""
    return {name: answer.value for name, answer in answers.items() if answer.ok}


def failed(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Return the answers of nodes that have a problem, or were lost."""
    return {name: answer for name, answer in answers.items() if not answer.ok}


def unreachable(why: str) -> Problem:
    """Problem of a node that gives no answer while nothing has been changed."""
    return Problem(
        Kind.ENVIRONMENT, Text("no answer: {why}", why), hint=Text("see `ray status`, or leave it out with --nodes")
    )


def problems(answers: Mapping[str, Answer], lost: Callable[[str], Problem] = unreachable) -> list[Problem]:
    """Return each problem once, with all nodes that have it; ``lost`` makes one of the reason why a node was lost."""
    return merged((name, answer.problem or lost(answer.lost)) for name, answer in failed(answers).items())


def merged(node_problems: Iterable[tuple[str, Problem]]) -> list[Problem]:
    """Return each problem once, with all nodes that have it."""
    nodes: dict[tuple[object, ...], tuple[Problem, list[str]]] = {}
    for name, problem in node_problems:
        nodes.setdefault(problem.args, (problem, []))[1].append(name)
    return [problem.replace(node=listed(names)) for problem, names in nodes.values()]


def listed(names: Collection[str], most: int = 8) -> str:
    """Join the names, or the first of them and how many there are."""
    first_names = ", ".join(sorted(names, key=natural)[:most])
    return first_names if len(names) <= most else Text("{names}, … ({count} nodes)", first_names, len(names))


def together(several: Sequence[Problem]) -> Problem:
    """Return one problem that has all others in its notes; the first decides the exit code."""
    first, *other_problems = several
    lines = tuple(
        line
        for other in other_problems
        for line in (Text("{cause} ({place})", other.cause, other.place), Text("  next: {hint}", other.hint))
    )
    return first.replace(notes=(*first.notes, *lines))


def natural(name: str) -> list[str | int]:
    """Return the key by which people sort names: n2 comes before n10."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"([0-9]+)", name))]
