"""One transaction over all nodes: prepare, check that all live, commit, finish.

The steps are the store's, and its rules decide: nothing is changed before all are prepared; the commit of the first
participant is the decision; it keeps its mark until every other one has ended. So whoever dies, and wherever, what the
store of the first participant says is true, and `patcher.cluster.recovery` brings all others there.

Nodes that see the same folder elect one of them, and that one is the participant.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from patcher import interrupts
from patcher.changes.change import Edit
from patcher.cluster.node_group import Answer, NodeGroup, all_of, failed, listed, problems, together, values
from patcher.messages.errors import Kind, Problem
from patcher.messages.report import StepResult
from patcher.store import outcomes
from patcher.store.filesystem.files import digest
from patcher.store.transaction import Recovered


class TransactionResult(NamedTuple):
    """What a transaction did.

    ``written`` has for each node the files that hold other bytes now, ``followers`` who works on a tree that others
    see, too; ``stale`` are nodes that do not see (yet) what was written. ``step`` is what the nodes had to say.
    """

    written: Mapping[str, tuple[str, ...]]
    followers: Mapping[str, str]
    stale: tuple[str, ...]
    step: StepResult


class _Transaction(NamedTuple):
    """Who takes part: the participants in their order, and per node its edits and its roots with their names.

    ``recover_command`` goes on with what was interrupted.
    """

    group: NodeGroup
    name: str
    participants: tuple[str, ...]
    edits: Mapping[str, Sequence[Edit]]
    roots: Mapping[str, Mapping[str, str]]
    recover_command: str

    @property
    def first(self) -> str:
        """The node whose commit decides."""
        return next(node for node, roots in self.roots.items() if self.participants[0] in roots.values())

    @property
    def others(self) -> list[str]:
        """All the other nodes."""
        return [node for node in self.roots if node != self.first]

    def call(self, method: str, nodes: Iterable[str], *arguments: object) -> dict[str, Answer]:
        """Call a step of the transaction on ``nodes``, each for its roots."""
        each = {node: (list(self.roots[node]), self.name, *arguments) for node in nodes}
        return self.group.call(method, each)


def transact(
    group: NodeGroup, work: Mapping[str, Sequence[Edit]], recover_command: str = "rlpatch recover --ray"
) -> TransactionResult:
    """Do the edits of all nodes, or nothing; ``recover_command`` goes on with what was interrupted.

    Raises Problem: what a node says (nothing is changed then), ROLLED_BACK where one was lost before the decision,
    ROLLBACK_INCOMPLETE where one was lost after it, FOREIGN_EDIT where all ended but files were changed meanwhile,
    INTERRUPTED.
    """
    with interrupts.deferred():
        transaction, followers = _elect(group, work, recover_command)
        try:
            prepared = _prepare(transaction)
            interrupts.look()
            _decide(transaction)
        except KeyboardInterrupt:
            unreached = _abort(transaction)
            notes = (_goes_back(transaction, unreached),) if unreached else ()
            raise Problem(Kind.INTERRUPTED, "stopped by the keyboard; nothing was changed", notes=notes) from None
        interrupts.ignore()
        _go_ahead(transaction)
    written = {
        node: tuple(
            str(edit.root / change.path) for edit in edits for change in edit.changes if change.before != change.after
        )
        for node, edits in transaction.edits.items()
    }
    step = StepResult.noted(dict.fromkeys(note for notes, _ in prepared.values() for note in notes))
    step = sum((outcomes.ended(recovered, node) for node, (_, recovered) in prepared.items()), step)
    return TransactionResult(written, followers, _stale(group, work), step)


def _elect(
    group: NodeGroup, work: Mapping[str, Sequence[Edit]], recover_command: str
) -> tuple[_Transaction, dict[str, str]]:
    """The participants; and the nodes that leave the work to others, each with the one that does it."""
    name = os.urandom(8).hex()
    names = {node: {str(edit.root): f"{node}:{edit.root}" for edit in edits} for node, edits in work.items()}
    answers = group.call("elect", {node: (name, roots) for node, roots in names.items()})
    if failed(answers):
        _abort(_Transaction(group, name, (), work, names, recover_command))
        raise together(problems(answers))
    roots: dict[str, dict[str, str]] = {}
    leaders: dict[str, dict[str, None]] = {}
    for node, elected in values(answers).items():
        for root, leader in elected.items():
            if leader == names[node][root]:
                roots.setdefault(node, {})[root] = leader
            else:
                leaders.setdefault(node, {})[leader] = None
    edits = {node: [edit for edit in work[node] if str(edit.root) in mine] for node, mine in roots.items()}
    participants = tuple(sorted(name for mine in roots.values() for name in mine.values()))
    transaction = _Transaction(group, name, participants, edits, roots, recover_command)
    return transaction, {node: ", ".join(others) for node, others in leaders.items()}


def _prepare(transaction: _Transaction) -> dict[str, Any]:
    """Prepare the first participant before all others: of two runs at once the second waits there, with nothing begun.

    Gives the notes of each node, and the interrupted runs that it has ended.
    """
    answers: dict[str, Answer] = {}
    for nodes in ([transaction.first], transaction.others):
        answers |= transaction.group.call(
            "prepare",
            {
                node: (transaction.edits[node], transaction.name, transaction.participants, transaction.roots[node])
                for node in nodes
            },
        )
        if failed(answers):
            raise _abandoned(transaction, answers)
    alive = transaction.group.call("ping", all_of(transaction.roots))
    if failed(alive):
        raise _abandoned(transaction, alive)
    return values(answers)


def _decide(transaction: _Transaction) -> None:
    """Let the first participant commit. What is not known its journal tells; what nobody knows stays as it is."""
    first = transaction.first
    (answer,) = transaction.call("commit", [first]).values()
    if answer.ok:
        return
    reached = not answer.lost or transaction.group.reconnect(first)
    pending = values(transaction.group.call("pending", {first: ()})).get(first) if reached else None
    mine = [one for one in pending or () if one.transaction == transaction.name]
    if any(one.committed and one.position == 0 for one in mine):
        return
    # Its commit may still be under way: only once it has gone back it never decides.
    back = {} if pending is None else transaction.call("abort", [first])
    if any(one.forward for one in _ended(back)):  # it decided meanwhile
        return
    if not back or failed(back):
        raise Problem(
            Kind.ROLLBACK_INCOMPLETE,
            "the deciding node was lost, and only its journal knows whether it has decided",
            where=first,
            hint=f"when it is back: {transaction.recover_command}",
            notes=("all others are prepared: their files are as before, and they refuse other runs until then",),
        )
    raise _abandoned(transaction, {first: answer})


def _abandoned(transaction: _Transaction, answers: Mapping[str, Answer]) -> Problem:
    """Bring all back before the decision; gives the problem to raise."""
    lost = "the node was lost before anything was changed ({}); everything is as it was"
    hint = "the same command again; --nodes leaves a node out"
    problem = together(problems(answers, lambda why: Problem(Kind.ROLLED_BACK, lost.format(why), hint=hint)))
    unreached = _abort(transaction)
    if unreached:
        problem = problem.replace(notes=(*problem.notes, _goes_back(transaction, unreached)))
    if not {node for node, answer in answers.items() if answer.lost}.issuperset(unreached):
        problem = problem.replace(kind=Kind.ROLLBACK_INCOMPLETE, hint=transaction.recover_command)
    return problem


def _goes_back(transaction: _Transaction, unreached: Sequence[str]) -> str:
    again = f"`{transaction.recover_command}` rolls it back when it is there again"
    return f"not reached: {listed(unreached)}; {again}"


def _abort(transaction: _Transaction) -> list[str]:
    """Bring all back, the first participant before all others: then it can never decide. Gives who was not reached."""
    first = [transaction.first] if transaction.participants else []
    others = [node for node in transaction.roots if node not in first]
    return [node for nodes in (first, others) for node in failed(transaction.call("abort", nodes))]


def _go_ahead(transaction: _Transaction) -> None:
    """After the decision: all others commit and end; then the first one, if none is missing.

    Raises Problem: ROLLBACK_INCOMPLETE for who is missing, FOREIGN_EDIT for files that hold somebody else's bytes now.
    """
    transaction.call("commit", transaction.others)  # who could not is brought ahead by the next step
    finished = transaction.call("finish", transaction.others)
    missing = failed(finished)
    if not missing:
        ended = [name for node in finished for name in transaction.roots[node].values()]
        missing = failed(transaction.call("finish", [transaction.first], ended))
    left = [f"{node}: {one.root / path}" for node in finished for one in _ended({node: finished[node]})
            for path in one.left]  # fmt: skip
    if missing:
        cause = together(problems(missing, lambda why: Problem(Kind.ROLLBACK_INCOMPLETE, f"no answer: {why}")))
        raise cause.replace(
            kind=Kind.ROLLBACK_INCOMPLETE,
            cause=f"the change is made, but not yet on {listed(missing)}: {cause.cause}",
            hint=f"when it is there again: {transaction.recover_command}",
            notes=(
                f"{transaction.first} remembers the decision until then, and refuses other runs",
                *(f"somebody changed it in the meantime, left alone: {path}" for path in left),
                *cause.notes,
            ),
        )
    if left:
        raise Problem(
            Kind.FOREIGN_EDIT,
            "the change is made, but not in these files: somebody changed them since they were prepared, left alone",
            where=", ".join(left),
            hint="look at what was changed, then the same command again",
        )


def _ended(answers: Mapping[str, Answer]) -> list[Recovered]:
    """The roots that were brought to an end."""
    return [one for recovered in values(answers).values() for one in recovered]


def _stale(group: NodeGroup, work: Mapping[str, Sequence[Edit]], tries: int = 5) -> tuple[str, ...]:
    """The nodes that do not see what was written; a shared folder may be late, so they are called several times."""
    wanted = {
        node: {str(edit.root / change.path): digest(change.after) for edit in edits for change in edit.changes}
        for node, edits in work.items()
    }
    for attempt in range(tries):
        answers = group.call("verify", {node: (files,) for node, files in wanted.items()})
        wanted = {node: wanted[node] for node, answer in answers.items() if not answer.ok or answer.value}
        if not wanted or any(answers[node].lost for node in wanted):
            break
        time.sleep(0.2 * 2**attempt)
    return tuple(wanted)
