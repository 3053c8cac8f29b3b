"""What the store does, and a report of it in words that are the same on this machine, on a node and in a bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from patcher import interrupts
from patcher.change import Edit
from patcher.notes import Note
from patcher.report import Report
from patcher.store import transaction as store
from patcher.store.transaction import Recovered


def commit(report: Report, edits: Sequence[Edit], verb: str, on_wait: Callable[[str], None]) -> None:
    """Do ``edits``, all or nothing; once that is done, Ctrl-C has nothing to stop. Raises Problem as the store does.

    ``verb`` says what was done to a file.
    """
    with interrupts.deferred():
        outcome = store.commit(edits, on_wait=on_wait)
        if outcome.written or outcome.recovered:
            interrupts.ignore()
        noted(report, outcome.notes)
        report.done += [f"{verb} {path}" for path in outcome.written]
        ended(report, outcome.recovered)


def noted(report: Report, notes: Iterable[Note]) -> None:
    """Say what cannot be as it was."""
    for note in notes:
        report.note(*note)


def ended(report: Report, runs: Iterable[Recovered], node: str = "") -> None:
    """Say which interrupted runs were ended, and how, on which ``node`` where there are several."""
    for one in runs:
        said = f"an interrupted run in {one.root} was {'finished' if one.forward else 'undone'}"
        report.lines.append(f"{node}: {said}" if node else said)
        report.done.append(f"{node}: {said}" if node else said)
        for left in one.left:
            where = f"it lies in {one.root} on {node}" if node else f"it lies in {one.root}"
            report.warn(f"{left} was changed by someone else since: left alone", where)


def as_json(one: Recovered) -> dict[str, object]:
    """The same for programs."""
    return {"root": str(one.root), "forward": one.forward, "left": list(one.left)}
