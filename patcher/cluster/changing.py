"""Change the files of all nodes, or of none: check all, commit on each, undo what is done where one fails.

Each node commits by itself, as the store does. Nothing is remembered of the others: a node that is lost on the way is
named, and `status --ray` or the next command shows how it is. Nodes that see the same folder change it once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from patcher import interrupts
from patcher.changes.change import Edit
from patcher.cluster.node_group import Answer, NodeEdit, NodeGroup, combine_problems, failed, listed, problems, values
from patcher.messages import Kind, Problem, StepResult, Text
from patcher.store import outcomes
from patcher.store.filesystem.files import digest
from patcher.store.transaction import Outcome

Work = Mapping[str, Sequence[NodeEdit]]
"""Node → its edits."""


class ClusterChange(NamedTuple):
    """Result of a change on all nodes.

    `written` maps each node to its changed files. `shares` maps a node to the nodes with which it shares a folder.
    `late` are nodes that do not see the change in a shared folder yet. `step` is the report.
    """

    written: Mapping[str, tuple[str, ...]]
    shares: Mapping[str, str]
    late: tuple[str, ...]
    step: StepResult


def check(group: NodeGroup, work: Work) -> StepResult:
    """Check the edits of each node in `work` without writing; return each distinct problem and note once."""
    answers = group.call("preflight", _arguments(work))
    notes = [note for node_notes in values(answers).values() for note in node_notes]
    return StepResult.noted(dict.fromkeys(notes)) + StepResult(problems=tuple(problems(answers)))


def change(group: NodeGroup, work: Work, status: str) -> ClusterChange:
    """Commit `work`, the edits of each node of `group`, on all nodes or on none, and return what was changed.

    All nodes check first, and a folder that several nodes share is written once. `status` is the command line that
    shows the state of the nodes. Ctrl-C is ignored from the answers on, until the process ends. Raises Problem with
    every file as before: a node's own, ROLLED_BACK if a node was lost, or INTERRUPTED. Raises Problem
    (ROLLBACK_INCOMPLETE) if a node may be left changed.
    """
    try:
        with interrupts.deferred():
            if hindrances := check(group, work).problems:
                raise combine_problems(hindrances)
            edits_of_node, shares = _one_node_per_folder(group, work)
            interrupts.raise_pending()
            answers = group.call("commit", _arguments(edits_of_node))
            interrupts.ignore()
            if failed(answers):
                raise _undo_all(group, edits_of_node, answers, status)
    except KeyboardInterrupt:
        raise Problem(Kind.INTERRUPTED, Text("stopped by Ctrl-C; nothing was changed")) from None
    committed: dict[str, Outcome] = values(answers)
    step = StepResult.noted(dict.fromkeys(note for outcome in committed.values() for note in outcome.notes))
    step = sum((outcomes.recovery_messages(outcome.recovered, node) for node, outcome in committed.items()), step)
    written = {node: tuple(map(str, outcome.written)) for node, outcome in committed.items()}
    return ClusterChange(written, shares, _nodes_with_old_bytes(group, {node: work[node] for node in shares}), step)


def _one_node_per_folder(group: NodeGroup, work: Work) -> tuple[dict[str, list[NodeEdit]], dict[str, str]]:
    """Return the edits that each node makes, with one writer per shared folder, and who writes for the others.

    A marker in each store tells which nodes see the same folder: the first to set it makes the edits. The second map
    has "node:root" of the writers for a node. Raises Problem if a node cannot write its marker.
    """
    run = os.urandom(8).hex()
    roots = {node: [str(edit.root) for edit, _ in edits] for node, edits in work.items()}
    answers = group.call("mark", {node: (run, node, roots[node]) for node in work})
    edits_of_node: dict[str, list[NodeEdit]] = {}
    shares: dict[str, str] = {}
    for node, names in values(answers).items():
        marked_here = {root for root, name in names.items() if name == f"{node}:{root}"}
        if edits := [node_edit for node_edit in work[node] if str(node_edit.edit.root) in marked_here]:
            edits_of_node[node] = edits
        other_nodes = dict.fromkeys(name for root, name in names.items() if root not in marked_here)
        if other_nodes:
            shares[node] = ", ".join(other_nodes)
    group.call("unmark", {node: (run, [str(edit.root) for edit, _ in edits]) for node, edits in edits_of_node.items()})
    if failed(answers):
        raise combine_problems(problems(answers))
    return edits_of_node, shares


def _arguments(work: Work) -> dict[str, tuple[list[Edit]]]:
    return {node: ([edit for edit, _ in edits],) for node, edits in work.items()}


def _undo_all(group: NodeGroup, work: Work, answers: Mapping[str, Answer], status: str) -> Problem:
    """Undo the edits on all nodes that did or may have done them, and return the problem to raise."""
    causes, incomplete = failed(answers), Kind.ROLLBACK_INCOMPLETE
    changed = [node for node, answer in answers.items() if not answer.problem or answer.problem.kind is incomplete]
    still_changed = failed(group.call("undo", {node: (work[node],) for node in changed}))
    problem = combine_problems(problems(causes, _rolled_back))
    if not still_changed:
        return problem
    unclear = problems(still_changed, lambda why: Problem(incomplete, Text("no answer from the node: {reason}", why)))
    first = combine_problems([problem.replace(kind=incomplete) for problem in unclear])
    other_problems = problems({node: answer for node, answer in causes.items() if node not in still_changed})
    undone = (
        Text(
            "{place} failed, so rlpatch undid the changes on the other nodes. Cause: {reason}",
            place=other.place,
            reason=other.cause,
        )
        for other in other_problems
    )
    return first.replace(
        cause=Text(
            "changed files might remain on {nodes}; on all other nodes, rlpatch undid the changes. Cause: {reason}",
            nodes=listed(still_changed),
            reason=first.cause,
        ),
        hint=Text(
            "when the node answers again, check it with `{command}`. Then repeat your command, or run `rlpatch revert`",
            status,
        ),
        notes=(*first.notes, *undone),
    )


def _rolled_back(reason: str) -> Problem:
    """Return the problem that a node was lost during a change for this `reason`, and all files are as before."""
    cause = Text(
        "rlpatch lost the connection to this node while changing files there ({reason}), and undid the changes on all"
        " nodes",
        reason,
    )
    return Problem(Kind.ROLLED_BACK, cause, hint=Text("repeat your command, or leave this node out of --nodes"))


def _nodes_with_old_bytes(group: NodeGroup, work: Work) -> tuple[str, ...]:
    """Return the nodes that do not see the new bytes of `work` in a shared folder, after five looks; () if all do."""
    unseen = {
        node: {str(edit.root / change.path): digest(change.after) for edit, _ in edits for change in edit.changes}
        for node, edits in work.items()
    }
    for attempt in range(5):
        if not unseen:
            break
        time.sleep(0.2 * 2**attempt if attempt else 0)
        answers = group.call("verify", {node: (files,) for node, files in unseen.items()})
        unseen = {node: unseen[node] for node, answer in answers.items() if not answer.ok or answer.value}
        if any(answers[node].lost for node in unseen):
            break
    return tuple(unseen)
