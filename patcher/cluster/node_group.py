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
    """Target on a node; `packages` are the installed packages, out of those asked for, in the same environment."""

    target: Target
    packages: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, Path]:
        """Name of the project, and the target's root."""
        return self.target.project.name, self.target.root


class NodeSurvey(NamedTuple):
    """Targets and patches of a node.

    `requested` maps each word of the command to its target or problem. `roots` are those of all targets and stores, in
    the same order on identical nodes. `files` maps each file that planning reads to its digest, `unfinished` are roots
    with an interrupted command.
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
    def targets_by_word(self) -> dict[str, NodeTarget]:
        """Targets of the words that name a target, by word."""
        return {word: target for word, target in self.requested.items() if isinstance(target, NodeTarget)}

    @property
    def targets(self) -> tuple[NodeTarget, ...]:
        """All targets, those named by the command first."""
        return tuple({target.place: target for target in (*self.targets_by_word.values(), *self.discovered)}.values())


@dataclass(frozen=True)
class NodeStatus:
    """State of a node: versions by target, patches, processes that may run patched code, free disk space in bytes."""

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
    """Edit of a root on a node, and the records of the patches that the root had before."""

    edit: Edit
    records: tuple[Record, ...]


class Answer(NamedTuple):
    """Answer of a node: a value, a problem, or in `lost` why none came; then the work may or may not be done."""

    value: Any = None
    problem: Problem | None = None
    lost: str = ""

    @property
    def ok(self) -> bool:
        """Whether the node answered without a problem."""
        return self.problem is None and not self.lost


class NodeGroup(Protocol):
    """Nodes that can be called, by the names that users know."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all nodes, always in the same order."""

    def call(self, method: str, arguments: Mapping[str, Sequence[Any]]) -> dict[str, Answer]:
        """Call `method` of `NodeWorker` in parallel on each node in `arguments`; a missing answer is `lost`."""

    def close(self) -> None:
        """Disconnect from the nodes."""


def all_of(names: Iterable[str], *arguments: object) -> dict[str, Sequence[Any]]:
    """Return a map from each of `names` to the same arguments."""
    return dict.fromkeys(names, arguments)


def values(answers: Mapping[str, Answer]) -> dict[str, Any]:
    """Return the values of the answers without a problem, by node."""
    return {name: answer.value for name, answer in answers.items() if answer.ok}


def failed(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Return the answers of nodes that have a problem or were lost, by node."""
    return {name: answer for name, answer in answers.items() if not answer.ok}


def unreachable(why: str) -> Problem:
    """Return the problem that a node did not answer, before anything was changed on it; `why` is the reason."""
    return Problem(
        Kind.ENVIRONMENT,
        Text("no answer from the node: {reason}", why),
        hint=Text("check the node with `ray status`, or leave this node out of --nodes"),
    )


def problems(answers: Mapping[str, Answer], lost: Callable[[str], Problem] = unreachable) -> list[Problem]:
    """Return each distinct problem once, with its nodes; `lost` makes a Problem of the reason why a node was lost."""
    return merge_problems((name, answer.problem or lost(answer.lost)) for name, answer in failed(answers).items())


def merge_problems(node_problems: Iterable[tuple[str, Problem]]) -> list[Problem]:
    """Return each distinct problem of the (node, problem) pairs once, with the names of all nodes that have it."""
    nodes: dict[tuple[object, ...], tuple[Problem, list[str]]] = {}
    for name, problem in node_problems:
        nodes.setdefault(problem.args, (problem, []))[1].append(name)
    return [problem.replace(node=listed(names)) for problem, names in nodes.values()]


def listed(names: Collection[str], most: int = 8) -> str:
    """Return the sorted names, separated by commas; beyond `most`, the first names and the total."""
    first_names = ", ".join(sorted(names, key=natural)[:most])
    if len(names) <= most:
        return first_names
    return Text("{names}, … ({count} nodes in total)", names=first_names, count=len(names))


def combine_problems(several: Sequence[Problem]) -> Problem:
    """Return the first problem, which decides the exit code, with causes and hints of the others in its notes."""
    first, *other_problems = several
    notes = [*first.notes]
    for other in other_problems:
        notes += [Text("{cause} ({place})", cause=other.cause, place=other.place), Text("  next: {hint}", other.hint)]
    return first.replace(notes=tuple(notes))


def natural(name: str) -> list[str | int]:
    """Return the key by which people sort names: n2 comes before n10."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"([0-9]+)", name))]
