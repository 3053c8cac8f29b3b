"""The only code that writes to a target: all files of all roots, or none.

A transaction has steps. *Prepare*: lock every root (sorted); compare every file with what planning read; put the
bytes of before and of after and the next registry into each store; write and sync each journal. *Commit*: replace
the files; set the commit mark, in the first root first. *Finish*: swap in the registries and tidy up. Whatever
stops it in between, `patcher.store.journal` brings the roots back to before (*abort*), or ahead to after once the
mark is set: at once when the process lives, else with the next command. Applying, replacing and reverting a patch
are all the same transaction.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple

from patcher import interrupts
from patcher.changes.change import Edit
from patcher.messages import CommandLine, Kind, Note, Problem, Text
from patcher.store.draft import Draft, changes_nothing, draft_edit
from patcher.store.filesystem import lock
from patcher.store.filesystem.files import sync
from patcher.store.folder import IGNORE, JOURNAL, NEXT, TREE, StoreFolder
from patcher.store.journal import Recovered as Recovered
from patcher.store.journal import end_interrupted, perform
from patcher.store.preflight import preflight as preflight
from patcher.store.registry import Journal, text_of

OnWait = Callable[[str], None]
"""Gets one line for each owner of a lock that is waited for."""


class Outcome(NamedTuple):
    """Result of a commit: the files with new bytes, and the interrupted commands that were ended before.

    ``notes`` say what could not be restored or kept exactly.
    """

    written: tuple[Path, ...] = ()
    recovered: tuple[Recovered, ...] = ()
    notes: tuple[Note, ...] = ()


class _Gone(Exception):  # noqa: N818  (nothing has gone wrong)
    """Signal that another process removed a store while this process waited for its lock."""


def commit(edits: Sequence[Edit], *, wait: float = 60, on_wait: OnWait = lock.silent) -> Outcome:
    """Carry out all of ``edits`` or nothing, and return the outcome; first end interrupted transactions of their roots.

    If no file and no registry would change, nothing is written and no lock is taken. An added record replaces the
    record with the same id, or comes last. ``on_wait`` gets a line for each owner of a lock that is waited for,
    ``wait`` seconds at most.

    Raises Problem: ENVIRONMENT (permissions, lock, damaged store), FOREIGN_EDIT (a file is not as planned), ROLLED_BACK
    or INTERRUPTED (failed on the way, everything as before), ROLLBACK_INCOMPLETE. Raises ValueError for two changes of
    one file.
    """
    recovered: list[Recovered] = []
    written: list[Path] | None = None
    notes: tuple[Note, ...] = ()
    roots = [edit.root for edit in edits]
    try:
        with interrupts.deferred():
            recovered += recover(roots, wait=wait, on_wait=on_wait)
            merged = [(store, edit) for store, edit in _edits_by_store(edits) if not changes_nothing(store, edit)]
            if not merged:
                return Outcome(recovered=tuple(recovered))
            notes = preflight([edit for _store, edit in merged])
            stores = [store for store, _edit in merged]
            participants = tuple(str(store.root) for store in stores)
            transaction = os.urandom(8).hex()
            with _hold_locks(stores, wait, on_wait, make=True):
                recovered += end_interrupted(stores, roots)
                written = _transact([draft_edit(store, edit, transaction, participants) for store, edit in merged])
    except (KeyboardInterrupt, OSError, Problem) as error:
        if written is None or isinstance(error, Problem):  # else there is nothing left to stop
            failure = _failure(error)
            again = (
                (
                    Text(
                        "an earlier rlpatch command was interrupted, and rlpatch has recovered from it."
                        " Run your command again"
                    ),
                )
                if recovered
                else ()
            )
            cause = error if isinstance(error, OSError) else error.__cause__
            raise failure.replace(notes=failure.notes + again) from cause
    return Outcome(tuple(written or ()), tuple(recovered), notes)


def _failure(error: BaseException) -> Problem:
    """Return the Problem to report for a transaction that ``error`` stopped and that changed nothing.

    A Problem is returned as it is. Ctrl-C becomes INTERRUPTED, any other exception ROLLED_BACK.
    """
    if isinstance(error, Problem):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Problem(Kind.INTERRUPTED, Text("stopped by Ctrl-C; nothing was changed"))
    where = str(error.filename or "") if isinstance(error, OSError) else ""
    cause = Text("an error stopped rlpatch, and all changes were undone: {error}", _reason(error))
    return Problem(Kind.ROLLED_BACK, cause, where, Text("fix the cause of the error, then try again"))


def remove_marker(root: Path, run: str) -> None:
    """Remove the marker that ``run``, a command over several machines, put into the store of ``root``; ignore errors.

    A store that then has no patch is removed, too.
    """
    store = StoreFolder(root)
    with contextlib.suppress(OSError, Problem, _Gone):
        store.remove(f"{TREE}{run}")  # no other run has that name
        with _hold_locks([store], 0, lock.silent, make=False):
            pass  # the folder may have been made for the marker: whoever lets go of it last removes it


def recover(roots: Sequence[Path], *, wait: float = 60, on_wait: OnWait = lock.silent) -> list[Recovered]:
    """End the interrupted transactions of ``roots``, and return what became of each (empty: none was interrupted).

    Each root is then exactly as before or as after. Only these roots are visited, whatever paths a journal names. Roots
    without an interrupted transaction are neither locked nor written. ``on_wait`` gets a line for each owner of a lock
    that is waited for, at most ``wait`` seconds.

    Raises Problem: ROLLBACK_INCOMPLETE for a transaction that needs a root that is not among ``roots``, or whose backup
    is gone; ENVIRONMENT (lock, damaged store); INTERRUPTED.
    """
    try:
        with interrupts.deferred():
            stores = list({store.root: store for store in map(StoreFolder, roots)}.values())
            while any(store.unfinished() for store in stores):
                present = [store for store in stores if store.exists()]
                try:
                    # Where the lock's owner has ended it and removed the store, the loop looks again.
                    with contextlib.suppress(_Gone), _hold_locks(present, wait, on_wait, make=False):
                        # A store that appeared meanwhile may hold the mark that decides: then lock that one, too.
                        if present == [store for store in stores if store.exists()]:
                            return end_interrupted(present, roots)
                except OSError as error:
                    raise _incomplete(error, present) from error
    except KeyboardInterrupt:
        raise Problem(Kind.INTERRUPTED, Text("stopped by Ctrl-C"), hint=CommandLine("recover")) from None
    return []


def _incomplete(error: BaseException, stores: Sequence[StoreFolder]) -> Problem:
    """Return ``error`` as a Problem (ROLLBACK_INCOMPLETE).

    If it is no Problem yet, the new one names the roots of ``stores`` and proposes `rlpatch recover`.
    """
    if isinstance(error, Problem):
        return error.replace(kind=Kind.ROLLBACK_INCOMPLETE)
    cause = Text("an error stopped rlpatch in the middle of changing files: {error}", _reason(error))
    where = ", ".join(str(store.root) for store in stores)
    return Problem(Kind.ROLLBACK_INCOMPLETE, cause, where, CommandLine("recover"))


def _reason(error: BaseException) -> str:
    """Return the error of the system in words, else the exception with its type."""
    return (isinstance(error, OSError) and error.strerror) or f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _hold_locks(stores: Sequence[StoreFolder], wait: float, on_wait: OnWait, *, make: bool) -> Iterator[None]:
    """Hold the locks of all stores for the body of a ``with`` statement; then remove stores that are empty.

    With ``make``, missing stores are created; else raises _Gone for a missing store. Raises Problem (ENVIRONMENT)
    if a lock is not free after ``wait`` seconds, and OSError. ``on_wait`` gets a line for each owner waited for.
    """
    with contextlib.ExitStack() as stack:
        for store in sorted(stores, key=lambda store: str(store.root)):  # two commands must not cross
            prepare = store.prepare if make else partial(_require, store)
            stack.enter_context(lock.hold(store.path, prepare=prepare, wait=wait, on_wait=on_wait))
            stack.callback(_sweep, store)
        yield


def _require(store: StoreFolder) -> None:
    """Raise _Gone without the store."""
    if not store.exists():
        raise _Gone


def _sweep(store: StoreFolder) -> None:
    """Remove what the store does not need; ignore errors."""
    with contextlib.suppress(OSError, Problem):  # what stays lies in the store and harms nobody
        store.sweep()


def _edits_by_store(edits: Sequence[Edit]) -> list[tuple[StoreFolder, Edit]]:
    """Merge the edits of each root into one, also of links to it; return each with its store, sorted by the real root.

    Two changes of one file both stay in the merged edit.
    """
    by_root: dict[Path, tuple[StoreFolder, Edit]] = {}
    for edit in edits:
        store = StoreFolder(edit.root)
        if store.root in by_root:
            store, first = by_root[store.root]
            edit = Edit(first.root, first.changes + edit.changes, first.add + edit.add, first.remove + edit.remove)
        by_root[store.root] = (store, edit)
    return [by_root[root] for root in sorted(by_root, key=str)]


def _transact(drafts: Sequence[Draft]) -> list[Path]:
    """Carry out ``drafts``, or restore everything; the caller holds the locks. Return the files with new bytes.

    Raises KeyboardInterrupt, or Problem for any other failure. A failure after the first commit mark is ignored: the
    transaction is then finished.
    """
    stores = [draft.store for draft in drafts]
    try:
        for draft in drafts:
            _prepare(draft)
        _commit([(draft.store, draft.journal) for draft in drafts])
    except BaseException as error:  # also Ctrl-C
        # After the first mark it has stopped nothing.
        if not any(ended.forward for ended in _end_transactions(stores, error)):
            raise error if isinstance(error, KeyboardInterrupt) else _failure(error) from error
    else:
        _end_transactions(stores)
    return [draft.store.inside(move.path) for draft in drafts for move in draft.journal.moves]


def _prepare(draft: Draft) -> None:
    """Write the backups and the next registry of ``draft`` into its store, and last the journal.

    Once the journal is there, a later command can end the transaction. Raises KeyboardInterrupt, OSError and Problem.
    """
    interrupts.raise_pending()
    store = draft.store
    if store.read(IGNORE) is None:
        store.write(IGNORE, b"*\n")
    for content, state in draft.backups:
        store.keep_backup(content, state)
    if not draft.journal.empties:
        store.write(NEXT, text_of(draft.registry))
    store.write(JOURNAL, text_of(draft.journal))
    store.sync()
    sync(store.root)  # which may have got the store only now


def _commit(prepared: Sequence[tuple[StoreFolder, Journal]]) -> None:
    """Replace the files of all ``prepared`` roots, then set the commit marks, that of the first participant first.

    Raises Problem (FOREIGN_EDIT if somebody changes a file meanwhile, ENVIRONMENT for a damaged store), OSError and
    KeyboardInterrupt. Then some files may be replaced; the caller ends the transactions, which restores them.
    """
    for store, journal in prepared:
        if foreign := perform(store, journal.moves, interrupts.raise_pending):
            cause = Text(
                "somebody else changed the file while rlpatch was running, so rlpatch undid its own changes"
                " to all files"
            )
            raise Problem(Kind.FOREIGN_EDIT, cause, str(store.inside(foreign[0])), Text("run the command again"))
    interrupts.raise_pending()
    for store, _journal in prepared:
        store.commit()


def _end_transactions(stores: Sequence[StoreFolder], failure: BaseException | None = None) -> list[Recovered]:
    """Complete or undo the unfinished transactions of ``stores``, and return what became of each root.

    ``failure`` is the error that stopped them, if any. Raises Problem (ROLLBACK_INCOMPLETE) if they cannot be ended.
    """
    try:
        return end_interrupted(stores, [store.root for store in stores])
    except (OSError, Problem) as error:
        raise _incomplete(error, stores) from (failure or error)
