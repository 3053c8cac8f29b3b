"""One transaction over all nodes: prepare, look whether all live, commit, finish.

The steps are the store's, and its rules decide: nothing is changed before all are prepared; the commit of the first
participant is the decision; it keeps its mark until every other one has ended. So whoever dies, and wherever, what the
store of the first participant says is true, and `patcher.cluster.recovery` brings all others there.

Nodes that see the same folder elect one of them, and that one is the participant.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

from patcher import interrupts
from patcher.change import Edit
from patcher.cluster.crew import Crew, all_of, failed, listed, problems, together, unreachable
from patcher.cluster.values import Answer, Standing
from patcher.errors import Kind, Problem
from patcher.notes import Note
from patcher.store.filesystem.files import digest
from patcher.store.transaction import Recovered

_LEFT = "look at what was changed, then the same command again"
Tell = Callable[[str], None]


class Done(NamedTuple):
    """What a transaction did: node → the files that hold other bytes now; who works on a tree that others see, too.

    ``unlike`` are nodes that do not see (yet) what was written.
    """

    written: Mapping[str, tuple[str, ...]]
    notes: tuple[Note, ...] = ()
    recovered: tuple[tuple[str, Recovered], ...] = ()
    followers: Mapping[str, str] = {}
    unlike: tuple[str, ...] = ()


class _Parts(NamedTuple):
    """Who takes part: the participants in their order, and per node its edits and its roots with their names.

    ``again`` is the command line that goes on with what was interrupted.
    """

    transaction: str
    participants: tuple[str, ...]
    edits: Mapping[str, Sequence[Edit]]
    roots: Mapping[str, Mapping[str, str]]
    again: str

    @property
    def first(self) -> str:
        """The node whose commit decides."""
        return next(node for node, roots in self.roots.items() if self.participants[0] in roots.values())

    @property
    def others(self) -> list[str]:
        """All the other nodes."""
        return [node for node in self.roots if node != self.first]

    def names(self, node: str) -> tuple[str, ...]:
        """The participants that are on a node."""
        return tuple(self.roots[node].values())


def transact(crew: Crew, work: Mapping[str, Sequence[Edit]], tell: Tell, again: str = "rlpatch recover --ray") -> Done:
    """Do the edits of all nodes, or nothing. ``tell`` hears of each phase; ``again`` is the command line
    that goes on with what was interrupted.

    Raises Problem: what a node says (nothing is changed then), ROLLED_BACK where one was lost before the decision,
    ROLLBACK_INCOMPLETE where one was lost after it, FOREIGN_EDIT where all ended but files were changed meanwhile,
    INTERRUPTED.
    """
    with interrupts.deferred():
        parts, followers = _elected(crew, work, again)
        try:
            tell(f"prepare on {len(parts.roots)} nodes")
            prepared = _prepare(crew, parts)
            interrupts.look()
            tell("commit")
            _decide(crew, parts)
        except KeyboardInterrupt:
            still = _abort(crew, parts)
            notes = (_goes_back(still, parts.again),) if still else ()
            raise Problem(Kind.INTERRUPTED, "stopped by the keyboard; nothing was changed", notes=notes) from None
        interrupts.ignore()
        _go_ahead(crew, parts)
    tell("verify")
    told = [cast("tuple[tuple[Note, ...], tuple[Recovered, ...]]", answer.value) for answer in prepared.values()]
    recovered = [(node, one) for node, said in zip(prepared, told, strict=True) for one in said[1]]
    return Done(
        {node: _written(edits) for node, edits in parts.edits.items()},
        tuple(dict.fromkeys(note for said in told for note in said[0])),
        tuple(recovered),
        followers,
        _unlike(crew, work),
    )


def _elected(crew: Crew, work: Mapping[str, Sequence[Edit]], again: str) -> tuple[_Parts, dict[str, str]]:
    """The participants; and the nodes that leave the work to others, each with the one that does it."""
    transaction = os.urandom(8).hex()
    names = {
        node: {str(edit.root): f"{node}:{edit.root}" for edit in edits} for node, edits in work.items()
    }  # fmt: skip
    answers = crew.ask("elect", {node: (transaction, roots) for node, roots in names.items()})
    if failed(answers):
        everyone = _Parts(transaction, (), work, names, again)
        _abort(crew, everyone)
        raise together(problems(answers, unreachable))
    elected = {node: cast("dict[str, str]", answer.value) for node, answer in answers.items()}
    ours = {
        node: {root: name for root, name in roots.items() if elected[node][root] == name}
        for node, roots in names.items()
    }
    roots = {node: mine for node, mine in ours.items() if mine}
    edits = {node: [edit for edit in work[node] if str(edit.root) in mine] for node, mine in roots.items()}
    participants = tuple(sorted(name for mine in roots.values() for name in mine.values()))
    others = {
        node: dict.fromkeys(elected[node][root] for root in names[node] if root not in ours[node]) for node in names
    }
    followers = {node: ", ".join(leaders) for node, leaders in others.items() if leaders}
    return _Parts(transaction, participants, edits, roots, again), followers


def _prepare(crew: Crew, parts: _Parts) -> dict[str, Answer]:
    """The first participant before all others: of two runs at once the second one waits there, with nothing begun."""

    def ask(nodes: Sequence[str]) -> dict[str, Answer]:
        each = {
            node: (parts.edits[node], parts.transaction, parts.participants, parts.roots[node]) for node in nodes
        }  # fmt: skip
        return crew.ask("prepare", each)

    answers: dict[str, Answer] = {}
    for nodes in ([parts.first], parts.others):
        answers |= ask(nodes)
        if failed(answers):
            raise _abandoned(crew, parts, answers)
    alive = crew.ask("ping", all_of(parts.roots))
    if failed(alive):
        raise _abandoned(crew, parts, alive)
    return answers


def _decide(crew: Crew, parts: _Parts) -> None:
    """Let the first participant commit. What is not known is asked of its journal; what nobody knows stays as it is."""
    first = parts.first
    (answer,) = crew.ask("commit", {first: (list(parts.roots[first]), parts.transaction)}).values()
    if answer.good:
        return
    standing = _standing(crew, first, anew=bool(answer.lost))
    mine = [one for one in standing or () if one.transaction == parts.transaction]
    if any(one.committed and one.position == 0 for one in mine):
        return
    # What was asked of it may still be under way: only once it has gone back it never decides.
    roots = (list(parts.roots[first]), parts.transaction)
    back = {} if standing is None else crew.ask("abort", {first: roots})
    if any(one.forward for one in _ended(back)):  # it decided meanwhile
        return
    if not back or failed(back):
        raise Problem(
            Kind.ROLLBACK_INCOMPLETE,
            "the node that decides was lost, and whether it has decided only its journal knows",
            where=first,
            hint=f"when it is back: {parts.again}",
            notes=("all others are prepared: their files are as before, and they refuse other runs until then",),
        )
    raise _abandoned(crew, parts, {first: answer})


def _standing(crew: Crew, node: str, *, anew: bool) -> tuple[Standing, ...] | None:
    """The transactions that are on their way on a node, None where it cannot be asked."""
    if anew and not crew.again(node):
        return None
    (answer,) = crew.ask("standing", {node: ()}).values()
    return cast("tuple[Standing, ...]", answer.value) if answer.good else None


def _abandoned(crew: Crew, parts: _Parts, answers: Mapping[str, Answer]) -> Problem:
    """Bring all back before the decision; what there is to say of it."""
    said = problems(answers, _lost_before)
    still = _abort(crew, parts)
    if still:
        lost = {node for node, answer in answers.items() if answer.lost}
        notes = (_goes_back(still, parts.again),)
        if set(still) - lost:
            problem = together(said)
            return problem.replace(kind=Kind.ROLLBACK_INCOMPLETE, hint=parts.again, notes=(*problem.notes, *notes))
        said = [one.replace(notes=(*one.notes, *notes)) for one in said]
    return together(said)


def _goes_back(unreached: Sequence[str], again: str) -> str:
    return f"not reached: {listed(unreached)}; it goes back with `{again}` when it is there again"


def _lost_before(why: str) -> Problem:
    return Problem(
        Kind.ROLLED_BACK,
        f"the node was lost before anything was changed ({why}); everything is as it was",
        hint="the same command again; --nodes leaves a node out",
    )


def _abort(crew: Crew, parts: _Parts) -> list[str]:
    """Bring all back, the first participant before all others: then it can never decide. Gives who was not reached."""
    first = [parts.first] if parts.participants else []
    unreached: list[str] = []
    for nodes in (first, [node for node in parts.roots if node not in first]):
        each = {node: (list(parts.roots[node]), parts.transaction) for node in nodes}
        unreached += failed(crew.ask("abort", each))
    return unreached


def _go_ahead(crew: Crew, parts: _Parts) -> None:
    """After the decision: all others commit and end; then the first one, if none is missing.

    Raises Problem: ROLLBACK_INCOMPLETE for who is missing, FOREIGN_EDIT for files that hold somebody else's bytes now.
    """
    each = {node: (list(parts.roots[node]), parts.transaction) for node in parts.others}
    crew.ask("commit", each)  # who could not is brought ahead by the next step
    finished = crew.ask("finish", each)
    missing = failed(finished)
    ended = [name for node in finished if node not in missing for name in parts.names(node)]
    if not missing:
        last = (list(parts.roots[parts.first]), parts.transaction, ended)
        missing = failed(crew.ask("finish", {parts.first: last}))
    left = [
        f"{node}: {one.root / path}"
        for node, answer in finished.items()
        for one in _ended({node: answer})
        for path in one.left
    ]
    if missing:
        said = together(problems(missing, lambda why: Problem(Kind.ROLLBACK_INCOMPLETE, f"no answer: {why}")))
        raise Problem(
            Kind.ROLLBACK_INCOMPLETE,
            f"the change is made, but not yet on {listed(missing)}: {said.cause}",
            where=said.where,
            node=said.node,
            hint=f"when it is there again: {parts.again}",
            notes=(
                f"{parts.first} remembers the decision until then, and refuses other runs",
                *(f"somebody changed it meanwhile, left alone: {path}" for path in left),
                *said.notes,
            ),
        )
    if left:
        raise Problem(
            Kind.FOREIGN_EDIT,
            "the change is made, but not in these files: somebody changed them since they were prepared, left alone",
            where=", ".join(left),
            hint=_LEFT,
        )


def _ended(answers: Mapping[str, Answer]) -> list[Recovered]:
    """The roots that were brought to an end."""
    return [one for answer in answers.values() for one in cast("list[Recovered]", answer.value or [])]


def _written(edits: Sequence[Edit]) -> tuple[str, ...]:
    return tuple(
        str(edit.root / change.path) for edit in edits for change in edit.changes if change.before != change.after
    )


def _unlike(crew: Crew, work: Mapping[str, Sequence[Edit]], tries: int = 5) -> tuple[str, ...]:
    """The nodes that do not see what was written; a shared folder may be late, so they are asked several times."""
    wanted = {
        node: {str(edit.root / change.path): digest(change.after) for edit in edits for change in edit.changes}
        for node, edits in work.items()
    }
    for attempt in range(tries):
        answers = crew.ask("verify", {node: (files,) for node, files in wanted.items()})
        wanted = {node: wanted[node] for node, answer in answers.items() if not answer.good or answer.value}
        if not wanted or any(answers[node].lost for node in wanted):
            break
        time.sleep(0.2 * 2**attempt)
    return tuple(wanted)
