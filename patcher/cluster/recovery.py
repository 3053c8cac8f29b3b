"""All reachable nodes to the same side of every transaction that was interrupted."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from patcher.cluster.node_group import Answer, NodeGroup, PendingTransaction, all_of, listed, natural, values
from patcher.messages.errors import Kind, Problem
from patcher.store.transaction import Recovered

Participant = tuple[str, PendingTransaction]
"""A node, and its part in a transaction."""


class Recovery:
    """A recovery of all nodes of ``group``; ``recover_command`` goes on with it.

    ``roots`` are those that were brought to an end, by their nodes, ``problems`` what stands in the way, ``unreached``
    the nodes that gave no answer.
    """

    def __init__(self, group: NodeGroup, recover_command: str) -> None:
        self.roots: list[tuple[str, Recovered]] = []
        self.problems: list[Problem] = []
        self.unreached: list[str] = []
        self._group, self._command = group, recover_command

    def call(self, method: str, arguments: Mapping[str, Sequence[Any]]) -> dict[str, Answer]:
        """The answers of nodes, whose problems and ended roots are kept."""
        answers = self._group.call(method, arguments)
        for node, answer in answers.items():
            if answer.problem:
                self.problems.append(answer.problem.replace(node=node))
            elif answer.lost and node not in self.unreached:
                self.unreached.append(node)
            elif isinstance(answer.value, list):
                self.roots.extend((node, one) for one in answer.value)
        return answers

    def refuse(self, transaction: str, parts: Sequence[Participant]) -> None:
        """Leave a transaction alone that somebody else drives: it is not ours to end."""
        cause = f"the transaction {transaction} is prepared here and not decided yet: not by this command, left alone"
        hint = "".join(char if char.isprintable() else "?" for char in parts[0][1].hint)  # of another process
        self._add_problem(cause, hint[:500], where=listed([f"{node}: {one.root}" for node, one in parts]))

    def visit(self, members: Mapping[str, dict[int, Participant]], reached: Collection[str]) -> set[str]:
        """Look into the roots that no search found; their parts join ``members``. Gives the participants that they are.

        Their names stand in somebody's store, so a root counts only if it names itself likewise, in the same
        transaction.
        """
        roots: dict[str, list[str]] = {}
        for parts in members.values():
            for position, name in enumerate(_names(parts)):
                node, colon, root = name.partition(":/")
                if colon and position not in parts and node in reached:
                    roots.setdefault(node, []).append(f"/{root}")
        answers = self.call("visit", {node: (paths,) for node, paths in roots.items()})
        visited = set()
        for node, found in values(answers).items():
            for root, one in found.items():
                name = f"{node}:{root}"
                if one and one.transaction in members:
                    parts = members[one.transaction]
                    if (one.participants, one.name) != (_names(parts), name):
                        continue
                    parts.setdefault(one.position, (node, one))
                visited.add(name)
        return visited

    def end(self, parts: Mapping[int, Participant], known: Collection[str]) -> None:
        """Bring all parts to one side; of those that are missing ``known`` are the ones that have ended."""
        names = _names(parts)
        first = parts.get(0)
        others = [part for position, part in parts.items() if position]
        if any(one.committed for _, one in parts.values()):
            missing = [part[1].name for part in others if not self._step(part, "finish")]
            missing += [name for at, name in enumerate(names) if at not in parts and name not in known]
            if first:
                self._finish_first(first, names, missing)
        elif first is None and names[0] not in known:
            cause = f"{names[0]} decides and cannot be asked, so nothing was decided"
            self._add_problem(cause, self._when_there(names[:1]), node=listed({node for node, _ in parts.values()}))
        elif first is None or self._step(first, "abort"):
            for part in others:
                self._step(part, "abort")

    def _finish_first(self, first: Participant, names: tuple[str, ...], missing: Sequence[str]) -> None:
        """End the participant that decides, once no other is missing."""
        if missing:
            cause = "the change is made, but the node that decides must remember it until all others have ended"
            self._add_problem(cause, self._when_there(missing), where=f"not reached: {listed(missing)}")
        else:
            self._step(first, "finish", names)

    def _step(self, part: Participant, method: str, *names: object) -> bool:
        """Whether the part has ended."""
        node, one = part
        answer = self.call(method, {node: ([one.root], one.transaction, *names)})[node]
        if answer.lost:
            cause = f"no answer while it was being completed: {answer.lost}"
            self._add_problem(cause, f"`{self._command}`, once more", node=node)
        return answer.ok

    def _add_problem(self, cause: str, hint: str, *, where: str = "", node: str = "") -> None:
        self.problems.append(Problem(Kind.ROLLBACK_INCOMPLETE, cause, where, hint, node=node))

    def _when_there(self, missing: Collection[str]) -> str:
        nodes = sorted({_node(name) for name in missing}, key=natural)
        gone = f"{self._command} --gone {shlex.quote(','.join(nodes))}"
        return f"`{self._command}` when {listed(nodes)} is there; if it is gone for good: `{gone}`"


def recover(group: NodeGroup, gone: Collection[str] = (), recover_command: str = "rlpatch recover --ray") -> Recovery:
    """End every transaction that has not ended on a node; ``gone`` are nodes that will never come back.

    The first participant decides: ahead if its mark is set, or that of any other, for those set theirs later; back if
    it is there without one, since then it never will. Where it cannot be reached nothing is decided, and nothing
    touched. Who takes part is a root, not a node: one that no search finds is looked into all the same, or it is not
    known of.
    """
    recovery = Recovery(group, recover_command)
    answers = recovery.call("recover", all_of(group.names))
    found = values(recovery.call("pending", all_of([node for node, answer in answers.items() if not answer.lost])))
    foreign: dict[str, list[Participant]] = {}
    members: dict[str, dict[int, Participant]] = {}
    for node, one in ((node, one) for node, pending in found.items() for one in pending):
        if one.hint:
            foreign.setdefault(one.transaction, []).append((node, one))
        elif not one.participants[0].startswith("/"):  # else of one machine, which has answered for it
            members.setdefault(one.transaction, {}).setdefault(one.position, (node, one))
    for transaction, driven in foreign.items():
        recovery.refuse(transaction, driven)
    visited = recovery.visit(members, found)
    for parts in members.values():
        recovery.end(parts, {name for name in _names(parts) if name in visited or _node(name) in gone})
    return recovery


def _names(parts: Mapping[int, Participant]) -> tuple[str, ...]:
    """All who take part."""
    return next(iter(parts.values()))[1].participants


def _node(name: str) -> str:
    """The node of a participant, NODE:/ROOT."""
    return name.partition(":/")[0]
