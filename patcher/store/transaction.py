"""The only code that writes to a target: all files of all roots, or none.

A transaction goes: lock every root (sorted); compare every file with what planning read; put the backups and
the next registry into each store; write and sync each journal; replace the files; set the commit mark, in
the first root first; swap in the registries and tidy up. Whatever stops it in between, `patcher.store.journal`
brings the roots back to before, or ahead to after once the mark is set: at once when the process lives, else
with the next command. Applying, replacing and reverting a patch are all the same transaction.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from patcher import interrupts
from patcher.change import Edit, Record
from patcher.errors import Kind, Problem
from patcher.notes import Note
from patcher.store import lock, rights
from patcher.store.draft import Draft, drafted, idle
from patcher.store.files import observe, put, remove, same, sync
from patcher.store.folder import IGNORE, JOURNAL, NEXT, StoreFolder
from patcher.store.journal import Recovered, settle
from patcher.store.preflight import preflight
from patcher.store.registry import Journal, Move, Registry, journal_text, registry_text

__all__ = ["Outcome", "Recovered", "commit", "pending", "preflight", "records", "recover"]


class Outcome(NamedTuple):
    """What a commit did: the files that now hold other bytes, and the interrupted runs it ended before.

    ``notes`` say what could not be as it was.
    """

    written: tuple[Path, ...] = ()
    recovered: tuple[Recovered, ...] = ()
    notes: tuple[Note, ...] = ()


class _Gone(Exception):  # noqa: N818  (nothing has gone wrong)
    """A store was removed by its last user while its lock was waited for."""


def commit(edits: Sequence[Edit], *, wait: float = 60, on_wait: Callable[[str], None] = lock.silent) -> Outcome:
    """Do all of ``edits`` or nothing, and say which files hold other bytes now.

    When no file and no registry would change, nothing is written, and no lock is taken. An added record takes
    the place of one with the same id, or comes last. ``on_wait`` gets a line for each owner of a lock that is
    waited for, ``wait`` seconds at most.

    Raises Problem: ENVIRONMENT (permissions, lock, damaged store), FOREIGN_EDIT (a file is not as planned),
    ROLLED_BACK or INTERRUPTED (failed on the way, everything as before), ROLLBACK_INCOMPLETE. Raises
    ValueError for two changes of one file.
    """
    ended: list[Recovered] = []
    done: list[Path] | None = None
    notes: tuple[Note, ...] = ()
    roots = [edit.root for edit in edits]
    try:
        with interrupts.deferred():
            ended += recover(roots, wait=wait, on_wait=on_wait)
            merged = [(store, edit) for store, edit in _merged(edits) if not idle(store, edit)]
            if not merged:
                return Outcome(recovered=tuple(ended))
            notes = preflight([edit for _store, edit in merged])
            stores = [store for store, _edit in merged]
            with _locked(stores, wait, on_wait, make=True):
                ended += settle(stores, roots)
                done = _transact([drafted(store, edit) for store, edit in merged])
    except KeyboardInterrupt:
        if done is None:  # else there is nothing left to stop
            raise Problem(
                Kind.INTERRUPTED, "stopped by the keyboard; nothing was changed", notes=_before(ended)
            ) from None
    except OSError as error:
        if done is None:
            raise _failed(error) from error
    except Problem as problem:
        problem.notes += _before(ended)
        raise
    return Outcome(tuple(done or ()), tuple(ended), notes)


def _before(ended: Sequence[Recovered]) -> tuple[str, ...]:
    return ("an interrupted run was brought to its end before, so plan again",) if ended else ()


def records(root: Path) -> tuple[Record, ...]:
    """The patches applied below ``root`` in their order; () without a store. Reads one file and writes none.

    Raises Problem(ENVIRONMENT) when the registry is damaged.
    """
    return StoreFolder(root).records()


def pending(root: Path) -> bool:
    """Whether an interrupted run, or one that is still on its way, has left something below ``root``."""
    return StoreFolder(root).unfinished()


def recover(
    roots: Sequence[Path], *, wait: float = 60, on_wait: Callable[[str], None] = lock.silent
) -> list[Recovered]:
    """Bring each of ``roots`` to exactly before or exactly after its interrupted transaction.

    Only these roots are visited, whatever paths a journal names. Roots without one are neither locked nor
    written. Raises Problem: ROLLBACK_INCOMPLETE for a transaction that needs a root that is not among
    ``roots``, or whose backup is gone; ENVIRONMENT (lock, damaged store); INTERRUPTED.
    """
    try:
        with interrupts.deferred():
            return _recover(roots, wait, on_wait)
    except KeyboardInterrupt:
        raise Problem(Kind.INTERRUPTED, "stopped by the keyboard", hint="rlpatch recover") from None


def _recover(roots: Sequence[Path], wait: float, on_wait: Callable[[str], None]) -> list[Recovered]:
    stores = list({store.root: store for store in map(StoreFolder, roots)}.values())
    while any(pending(store.root) for store in stores):
        present = [store for store in stores if store.exists()]
        try:
            with _locked(present, wait, on_wait, make=False):
                # A store that appeared meanwhile may hold the mark that decides: then lock that one, too.
                if present == [store for store in stores if store.exists()]:
                    return settle(present, roots)
        except _Gone:  # the owner of the lock has ended it and removed the store
            continue
        except OSError as error:
            raise _incomplete(error, present) from error
    return []


def _failed(error: BaseException) -> Problem:
    where = str(error.filename or "") if isinstance(error, OSError) else ""
    return Problem(
        Kind.ROLLED_BACK,
        f"{_reason(error)}; everything is as it was",
        where=where,
        hint="remove the cause and try again",
    )


def _incomplete(error: BaseException, stores: Sequence[StoreFolder]) -> Problem:
    if isinstance(error, Problem):
        return Problem(Kind.ROLLBACK_INCOMPLETE, error.cause, error.where, error.hint, error.notes)
    return Problem(
        Kind.ROLLBACK_INCOMPLETE,
        f"{_reason(error)}; an unfinished change is still there",
        where=", ".join(str(store.root) for store in stores),
        hint="rlpatch recover",
    )


def _reason(error: BaseException) -> str:
    return (isinstance(error, OSError) and error.strerror) or f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _locked(
    stores: Sequence[StoreFolder], wait: float, on_wait: Callable[[str], None], *, make: bool
) -> Iterator[None]:
    """Hold the locks of all stores, and leave no store behind that has nothing to remember."""
    with contextlib.ExitStack() as stack:
        for store in sorted(stores, key=lambda store: str(store.root)):  # two commands must not cross
            prepare = store.prepare if make else _present(store)
            stack.enter_context(lock.hold(store.path, prepare=prepare, wait=wait, on_wait=on_wait))
            stack.callback(_sweep, store)
        yield


def _present(store: StoreFolder) -> Callable[[], None]:
    def check() -> None:
        if not store.exists():
            raise _Gone

    return check


def _sweep(store: StoreFolder) -> None:
    with contextlib.suppress(OSError, Problem):  # what stays lies in our folder and harms nobody
        store.sweep()


def _merged(edits: Sequence[Edit]) -> list[tuple[StoreFolder, Edit]]:
    """One edit per root, sorted by the root's real name."""
    found: dict[Path, tuple[StoreFolder, Edit]] = {}
    for edit in edits:
        store = StoreFolder(edit.root)
        if store.root in found:
            store, first = found[store.root]
            edit = Edit(first.root, first.changes + edit.changes, first.add + edit.add, first.remove + edit.remove)
        found[store.root] = (store, edit)
    return [found[root] for root in sorted(found, key=str)]


def _transact(drafts: Sequence[Draft]) -> list[Path]:
    """Carry the drafts out, or bring everything back; the locks are held. Gives the files that hold other bytes."""
    stores = [draft.store for draft in drafts]
    roots = [store.root for store in stores]
    failure: BaseException | None = None
    try:
        for draft in drafts:
            _stock(draft)
        transaction = os.urandom(8).hex()
        for index, draft in enumerate(drafts):
            _announce(draft, transaction, tuple(map(str, roots)), index)
        for draft in drafts:
            _perform(draft)
        interrupts.look()
        for store in stores:
            store.commit()
    except BaseException as error:  # also Ctrl-C: it is raised again below
        failure = error
    try:
        ended = settle(stores, roots)
    except (OSError, Problem) as error:
        raise _incomplete(error, stores) from (failure or error)
    # An error after the first mark has stopped nothing: the transaction counts and has been ended.
    if failure is not None and not any(one.forward for one in ended):
        raise failure if isinstance(failure, (Problem, KeyboardInterrupt)) else _failed(failure) from failure
    moved = [(draft, move) for draft in drafts for move in draft.moves if not _cache(move)]
    return [draft.store.inside(move.path) for draft, move in moved]


def _stock(draft: Draft) -> None:
    """Put all that the way back needs, and the registry of after, into the store."""
    interrupts.look()
    store = draft.store
    if store.read(IGNORE) is None:
        store.write(IGNORE, b"*\n")
    for content, wanted in draft.backups:
        store.keep(content, wanted)
    if draft.registry != Registry():
        store.write(NEXT, registry_text(draft.registry))


def _announce(draft: Draft, transaction: str, participants: tuple[str, ...], index: int) -> None:
    journal = Journal(
        transaction, participants, index, draft.moves, draft.back, draft.ahead, draft.registry == Registry()
    )
    draft.store.write(JOURNAL, journal_text(journal))
    draft.store.sync()
    sync(draft.store.root)  # which may have got the store only now


def _perform(draft: Draft) -> None:
    for move in draft.moves:  # sources first: what is compiled meanwhile goes with the old bytecode
        interrupts.look()
        path = draft.store.inside(move.path)
        now = None if _cache(move) else observe(path)[0]
        if not _cache(move) and not same(now, move.before):
            raise Problem(
                Kind.FOREIGN_EDIT,
                "somebody changed the file while rlpatch was at work; everything is as it was",
                where=str(path),
                hint="run the command again",
            )
        if move.after is None:
            remove(path)
        else:
            put(path, rights.like(move.after, now), draft.contents.get(move.path, b""))
    for folder in {draft.store.inside(move.path).parent for move in draft.moves}:
        sync(folder)


def _cache(move: Move) -> bool:
    return move.path.endswith(".pyc")
