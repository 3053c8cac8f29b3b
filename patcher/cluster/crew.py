"""How nodes are asked, whatever carries the questions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from patcher.cluster.values import Answer
from patcher.errors import Kind, Problem

LIMIT_S = 120.0
"""How long a node may take for one answer; it waits 20 s of them for a lock."""


class Crew(Protocol):
    """The nodes that can be asked, by names that people know them by."""

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in one order."""

    def ask(self, question: str, arguments: Mapping[str, Sequence[Any]], limit_s: float = LIMIT_S) -> dict[str, Answer]:
        """Put ``question``, a method of `patcher.cluster.agent.Agent`, to all nodes that have ``arguments``, at once.

        Every node has an answer, after ``limit_s`` seconds at the latest.
        """

    def again(self, name: str) -> bool:
        """Try to reach a node anew; whether it answers."""


def all_of(names: Iterable[str], *arguments: object) -> dict[str, Sequence[Any]]:
    """The same arguments for every node."""
    return dict.fromkeys(names, arguments)


def failed(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Those that are no good."""
    return {name: answer for name, answer in answers.items() if not answer.good}


def problems(answers: Mapping[str, Answer], lost: Callable[[str], Problem]) -> list[Problem]:
    """What is said of answers that are no good: nodes with the same problem are named together."""
    said: dict[tuple[object, ...], tuple[Problem, list[str]]] = {}
    for name, answer in failed(answers).items():
        problem = answer.problem or lost(answer.lost)
        said.setdefault(problem.args, (problem, []))[1].append(name)
    return [on(problem, names) for problem, names in said.values()]


def on(problem: Problem, names: Collection[str]) -> Problem:
    """``problem`` with the nodes that have it."""
    return problem.replace(node=listed(names))


def listed(names: Collection[str], most: int = 8) -> str:
    """The names, or the first of them and how many there are."""
    shown = ", ".join(sorted(names, key=natural)[:most])
    return shown if len(names) <= most else f"{shown}, … ({len(names)} nodes)"


def unreachable(why: str) -> Problem:
    """A node that gives no answer while nothing has been changed."""
    return Problem(Kind.ENVIRONMENT, f"no answer: {why}", hint="see `ray status`, or leave it out with --nodes")


def together(found: Sequence[Problem]) -> Problem:
    """One problem that has all others in its notes; the first decides the exit code."""
    first, *others = found
    lines = tuple(line for other in others for line in (f"{other.cause} ({other.place})", f"  next: {other.hint}"))
    return first.replace(notes=(*first.notes, *lines))


def natural(name: str) -> list[str | int]:
    """What names are sorted by for people: n2 comes before n10."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"([0-9]+)", name))]
