"""The outcomes of the store, in words that are the same on this machine, on a node and in a bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from patcher import interrupts
from patcher.changes.change import Edit
from patcher.messages import Message, StepResult, Text
from patcher.store import transaction as store
from patcher.store.transaction import Recovered


def commit(edits: Sequence[Edit], verb: str, on_wait: Callable[[str], None]) -> StepResult:
    """Carry out ``edits``, all or nothing, and return the messages, such as "patched x.py" for the ``verb`` "patched".

    ``on_wait`` gets a line for each process whose lock is waited for. After success, Ctrl-C is ignored, since nothing
    is left to stop. Raises Problem: ENVIRONMENT (permissions, lock, damaged store), FOREIGN_EDIT (a file is not as
    planned), ROLLED_BACK or INTERRUPTED (everything as before), ROLLBACK_INCOMPLETE.
    """
    with interrupts.deferred():
        outcome = store.commit(edits, on_wait=on_wait)
        if outcome.written or outcome.recovered:
            interrupts.ignore()
    written = StepResult(done=tuple(Text("{action} {path}", action=verb, path=path) for path in outcome.written))
    return StepResult.noted(outcome.notes) + written + recovery_messages(outcome.recovered)


def recovery_messages(recovered: Iterable[Recovered], node: str = "") -> StepResult:
    """Return messages on the ``recovered`` roots, whose interrupted commands were undone or finished.

    A warning names each file that was left alone. ``node`` names the machine, "" for a single machine.
    """
    lines: list[Text] = []
    warnings: list[Message] = []
    for outcome in recovered:
        line = Text("undid an interrupted command in {root}", outcome.root)
        if outcome.forward:
            line = Text("completed an interrupted command in {root}", outcome.root)
        lines.append(Text("{node}: {message}", node=node, message=line) if node else line)
        where = (
            Text("in the folder {root} on {node}", root=outcome.root, node=node)
            if node
            else Text("in the folder {root}", outcome.root)
        )
        for path in outcome.left:
            text = Text(
                "rlpatch did not touch {path}: somebody changed the file after an rlpatch command was interrupted", path
            )
            warnings.append(Message("warning", text, where))
    return StepResult(tuple(lines), tuple(warnings), done=tuple(lines))
