"""All reachable nodes to the same side of every transaction that was interrupted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, cast

from patcher.cluster.crew import Crew, all_of, failed, listed, on
from patcher.cluster.values import Answer, Standing
from patcher.errors import Kind, Problem
from patcher.store.transaction import Recovered

Member = tuple[str, Standing]
"""A node, and its part in a transaction."""


class Ended(NamedTuple):
    """What a recovery did: the roots that were brought to an end, by their nodes, and what stands in the way."""

    roots: list[tuple[str, Recovered]]
    problems: list[Problem]
    unreached: list[str]


def recover(crew: Crew, gone: Collection[str] = ()) -> Ended:
    """End every transaction that is on its way on a node; ``gone`` are nodes that will never come back.

    The first participant decides: ahead if its mark is set, or that of any other, for those set theirs later; back if
    it is there without one, since then it never will. Where it cannot be asked nothing is decided, and nothing touched.
    """
    ended = Ended([], [], [])
    answers = crew.ask("recover", all_of(crew.names))
    _collect(ended, answers)
    asked = crew.ask("standing", all_of([node for node, answer in answers.items() if not answer.lost]))
    _collect(ended, asked)
    reached = [node for node, answer in asked.items() if answer.good]
    members: dict[str, dict[int, Member]] = {}
    for node in reached:
        for one in cast("tuple[Standing, ...]", asked[node].value):
            if not one.participants[0].startswith("/"):  # else of one machine, which has answered for it
                members.setdefault(one.transaction, {}).setdefault(one.position, (node, one))
    for transaction, parts in members.items():
        _end(crew, ended, transaction, parts, {*reached, *gone})
    return ended


def _end(crew: Crew, ended: Ended, transaction: str, parts: Mapping[int, Member], known: Collection[str]) -> None:
    names = next(iter(parts.values()))[1].participants
    first = parts.get(0)
    forward = any(one.committed for _, one in parts.values())
    if not forward and first is None and _node(names[0]) not in known:
        roots = {node for node, _ in parts.values()}
        cause = "the node that decides cannot be reached, so nothing was decided"
        hint = f"`rlpatch recover --ray` when {_node(names[0])} is there; is it gone for good: --gone {_node(names[0])}"
        ended.problems.append(Problem(Kind.ROLLBACK_INCOMPLETE, cause, listed(roots), hint))
        return
    others = [part for position, part in parts.items() if position]
    if first and not forward and not _step(crew, ended, transaction, [first], "abort"):
        return
    step = "finish" if forward else "abort"
    open_ends = [part[1].name for part in others if not _step(crew, ended, transaction, [part], step)]
    if first and forward:
        here = {one.name for _, one in parts.values()}
        away = [name for name in names if name not in here and _node(name) not in known]
        if missing := [*open_ends, *away]:
            cause = "the change is made, but the node that decides must remember it until all others have ended"
            nodes = listed({_node(name) for name in missing})
            hint = f"`rlpatch recover --ray` when {nodes} is there; is it gone for good: --gone {nodes}"
            ended.problems.append(Problem(Kind.ROLLBACK_INCOMPLETE, cause, f"not reached: {nodes}", hint))
        else:
            _step(crew, ended, transaction, [first], "finish", names)


def _step(crew: Crew, ended: Ended, transaction: str, parts: Sequence[Member], question: str, *names: object) -> bool:
    """Whether the parts have ended."""
    answers = crew.ask(question, {node: ([one.root], transaction, *names) for node, one in parts})
    _collect(ended, answers)
    for node, answer in answers.items():
        if answer.lost:
            cause, hint = f"no answer while it was brought to an end: {answer.lost}", "rlpatch recover --ray, once more"
            ended.problems.append(Problem(Kind.ROLLBACK_INCOMPLETE, cause, node, hint))
    return not failed(answers)


def _collect(ended: Ended, answers: Mapping[str, Answer]) -> None:
    for node, answer in answers.items():
        if answer.problem:
            ended.problems.append(on(answer.problem, [node]))
        elif answer.lost and node not in ended.unreached:
            ended.unreached.append(node)
        elif isinstance(answer.value, list):
            ended.roots.extend((node, one) for one in answer.value)


def _node(name: str) -> str:
    """The node of a participant, NODE:/ROOT."""
    return name.partition(":/")[0]
