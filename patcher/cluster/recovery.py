"""All reachable nodes to the same side of every transaction that was interrupted."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, cast

from patcher.cluster.crew import Crew, all_of, failed, listed, natural, on
from patcher.cluster.values import Answer, Standing
from patcher.errors import Kind, Problem
from patcher.store.transaction import Recovered

Member = tuple[str, Standing]
"""A node, and its part in a transaction."""


class Ended(NamedTuple):
    """What a recovery did: the roots that were brought to an end, by their nodes, and what stands in the way.

    ``again`` is the command line that goes on with it.
    """

    roots: list[tuple[str, Recovered]]
    problems: list[Problem]
    unreached: list[str]
    again: str


def recover(crew: Crew, gone: Collection[str] = (), again: str = "rlpatch recover --ray") -> Ended:
    """End every transaction that is on its way on a node; ``gone`` are nodes that will never come back.

    The first participant decides: ahead if its mark is set, or that of any other, for those set theirs later; back if
    it is there without one, since then it never will. Where it cannot be asked nothing is decided, and nothing touched.
    Who takes part is a root, not a node: one that no search finds is looked into all the same, or it is not known of.
    """
    ended = Ended([], [], [], again)
    answers = crew.ask("recover", all_of(crew.names))
    _collect(ended, answers)
    asked = crew.ask("standing", all_of([node for node, answer in answers.items() if not answer.lost]))
    _collect(ended, asked)
    found = {node: cast("tuple[Standing, ...]", answer.value) for node, answer in asked.items() if answer.good}
    foreign: dict[str, list[Member]] = {}
    members: dict[str, dict[int, Member]] = {}
    for node, one in [(node, one) for node, standing in found.items() for one in standing]:
        if one.hint:
            foreign.setdefault(one.transaction, []).append((node, one))
        elif not one.participants[0].startswith("/"):  # else of one machine, which has answered for it
            members.setdefault(one.transaction, {}).setdefault(one.position, (node, one))
    ended.problems.extend(_driven(transaction, parts) for transaction, parts in foreign.items())
    visited = _visited(crew, ended, members, found)
    for transaction, parts in members.items():
        known = {name for name in _names(parts) if name in visited or _node(name) in gone}
        _end(crew, ended, transaction, parts, known)
    return ended


def _driven(transaction: str, parts: Sequence[Member]) -> Problem:
    """What to say of a transaction that somebody else drives: it is not ours to end."""
    cause = f"the transaction {transaction} is prepared here and not decided yet: not by this command, left alone"
    said = "".join(char if char.isprintable() else "?" for char in parts[0][1].hint)  # of another process
    return Problem(Kind.ROLLBACK_INCOMPLETE, cause, listed([f"{node}: {one.root}" for node, one in parts]), said[:500])


def _visited(crew: Crew, ended: Ended, members: Mapping[str, dict[int, Member]], reached: Collection[str]) -> set[str]:
    """The participants whose roots have been looked into although no search found them; their parts join ``members``.

    Their names stand in somebody's store, so a root counts only if it names itself likewise, in the same transaction.
    """
    asked: dict[str, list[str]] = {}
    for parts in members.values():
        for position, name in enumerate(_names(parts)):
            node, colon, root = name.partition(":/")
            if colon and position not in parts and node in reached:
                asked.setdefault(node, []).append(f"/{root}")
    answers = crew.ask("visit", {node: (roots,) for node, roots in asked.items()})
    _collect(ended, answers)
    visited = set()
    for node, answer in answers.items():
        for root, one in cast("dict[str, Standing | None]", answer.value or {}).items():
            name = f"{node}:{root}"
            if one and one.transaction in members:
                parts = members[one.transaction]
                if (one.participants, one.name) != (_names(parts), name):
                    continue
                parts.setdefault(one.position, (node, one))
            visited.add(name)
    return visited


def _end(crew: Crew, ended: Ended, transaction: str, parts: Mapping[int, Member], known: Collection[str]) -> None:
    """Bring all parts to one side; of those that are missing ``known`` are the ones that have ended."""
    names = _names(parts)
    first = parts.get(0)
    forward = any(one.committed for _, one in parts.values())
    if not forward and first is None and names[0] not in known:
        roots = {node for node, _ in parts.values()}
        cause = f"{names[0]} decides and cannot be asked, so nothing was decided"
        hint = _when_there(ended, [names[0]])
        ended.problems.append(Problem(Kind.ROLLBACK_INCOMPLETE, cause, listed(roots), hint))
        return
    others = [part for position, part in parts.items() if position]
    if first and not forward and not _step(crew, ended, transaction, [first], "abort"):
        return
    step = "finish" if forward else "abort"
    open_ends = [part[1].name for part in others if not _step(crew, ended, transaction, [part], step)]
    if first and forward:
        away = [name for position, name in enumerate(names) if position not in parts and name not in known]
        if missing := [*open_ends, *away]:
            cause = "the change is made, but the node that decides must remember it until all others have ended"
            where = f"not reached: {listed(missing)}"
            hint = _when_there(ended, missing)
            ended.problems.append(Problem(Kind.ROLLBACK_INCOMPLETE, cause, where, hint))
        else:
            _step(crew, ended, transaction, [first], "finish", names)


def _when_there(ended: Ended, missing: Collection[str]) -> str:
    nodes = sorted({_node(name) for name in missing}, key=natural)
    gone = shlex.quote(",".join(nodes))
    return f"`{ended.again}` when {listed(nodes)} is there; is it gone for good: `{ended.again} --gone {gone}`"


def _step(crew: Crew, ended: Ended, transaction: str, parts: Sequence[Member], question: str, *names: object) -> bool:
    """Whether the parts have ended."""
    answers = crew.ask(question, {node: ([one.root], transaction, *names) for node, one in parts})
    _collect(ended, answers)
    for node, answer in answers.items():
        if answer.lost:
            cause, hint = f"no answer while it was brought to an end: {answer.lost}", f"`{ended.again}`, once more"
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


def _names(parts: Mapping[int, Member]) -> tuple[str, ...]:
    """All who take part."""
    return next(iter(parts.values()))[1].participants


def _node(name: str) -> str:
    """The node of a participant, NODE:/ROOT."""
    return name.partition(":/")[0]
