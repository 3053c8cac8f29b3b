"""The only code that writes to a target: all files of all roots, or none.

A transaction has steps. *Prepare*: lock every root (sorted); compare every file with what planning read; put the
bytes of before and of after and the next registry into each store; write and sync each journal. *Commit*: replace
the files; set the commit mark, in the first root first. *Finish*: swap in the registries and tidy up. Whatever
stops it in between, `patcher.store.journal` brings the roots back to before (*abort*), or ahead to after once the
mark is set: at once when the process lives, else with the next command. Applying, replacing and reverting a patch
are all the same transaction.

`commit` takes all steps on this machine. Over several machines each takes them one by one, on request
(`prepare`, `commit_prepared`, `finish`, `abort`): all prepare; the one with the first participant commits, which
decides; the others commit; they finish, and the first one last. Between two steps the journal is the lock, so
each may be a process of its own; one process that takes them all keeps others out in between (`locked`). Machines that
see the same folder (NFS, say) elect the one that works on it (`StoreFolder.elect`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple

from patcher import interrupts
from patcher.changes.change import Edit
from patcher.messages.command_line import CommandLine
from patcher.messages.errors import Kind, Problem
from patcher.messages.notes import Note
from patcher.store.draft import Draft, drafted, idle
from patcher.store.draft import TransactionMembership as TransactionMembership
from patcher.store.filesystem import lock
from patcher.store.filesystem.files import sync
from patcher.store.folder import IGNORE, JOURNAL, NEXT, TREE, StoreFolder
from patcher.store.journal import NOTHING, Elsewhere, perform, settle
from patcher.store.journal import Recovered as Recovered
from patcher.store.preflight import preflight as preflight
from patcher.store.registry import Journal, text_of

OnWait = Callable[[str], None]
"""Gets one line for each owner of a lock that is waited for."""


class Outcome(NamedTuple):
    """What a commit did: the files that now hold other bytes, and the interrupted runs it ended before.

    ``notes`` say what could not be as it was.
    """

    written: tuple[Path, ...] = ()
    recovered: tuple[Recovered, ...] = ()
    notes: tuple[Note, ...] = ()


class _Gone(Exception):  # noqa: N818  (nothing has gone wrong)
    """A store was removed by its last user while its lock was waited for."""


def commit(edits: Sequence[Edit], *, wait: float = 60, on_wait: OnWait = lock.silent) -> Outcome:
    """Do all of ``edits`` or nothing, and say which files hold other bytes now.

    When no file and no registry would change, nothing is written, and no lock is taken. An added record takes
    the place of one with the same id, or comes last. ``on_wait`` gets a line for each owner of a lock that is
    waited for, ``wait`` seconds at most.

    Raises Problem: ENVIRONMENT (permissions, lock, damaged store), FOREIGN_EDIT (a file is not as planned),
    ROLLED_BACK or INTERRUPTED (failed on the way, everything as before), ROLLBACK_INCOMPLETE. Raises
    ValueError for two changes of one file.
    """
    return _carry_out(edits, None, wait, on_wait)


def prepare(
    edits: Sequence[Edit], membership: TransactionMembership, *, wait: float = 60, on_wait: OnWait = lock.silent
) -> Outcome:
    """Bring ``edits`` to the disk so that they can go ahead or back, in any process; no file is changed yet.

    Until then a root that is not the first participant refuses every other transaction. Raises as `commit`, and
    leaves nothing behind then.
    """
    return _carry_out(edits, membership, wait, on_wait)


def commit_prepared(
    roots: Sequence[Path], transaction: str, *, wait: float = 60, on_wait: OnWait = lock.silent
) -> None:
    """Replace the files that were prepared and set the marks; with the first participant's this is the decision.

    A root that was committed already is left as it is. Raises Problem: where the first participant is here, as
    `commit`, and the transaction has been aborted here; else ROLLBACK_INCOMPLETE, and it is still prepared.
    """
    done = False
    stores = [store for store in map(StoreFolder, roots) if store.exists()]
    missing = Problem(Kind.ROLLED_BACK, f"transaction {transaction} is not prepared here", hint="prepare it again")
    try:
        with interrupts.deferred(), _hold_locks(stores, wait, on_wait, make=False):
            found = [(store, journal) for store in stores if (journal := store.journal())]
            if len(found) < len(roots) or any(journal.transaction != transaction for _store, journal in found):
                raise missing
            _commit_as_prepared(sorted(found, key=lambda one: one[1].position))
            done = True
    except _Gone:
        raise missing from None
    except OSError as error:
        raise _incomplete(error, stores) from error
    except KeyboardInterrupt as error:
        if not done:  # else there is nothing left to stop
            raise _failure(error) from None


def _commit_as_prepared(found: Sequence[tuple[StoreFolder, Journal]]) -> None:
    """Commit what is not committed yet; undone on failure only where the first participant is here and undecided."""
    stores = [store for store, _journal in found]
    try:
        _commit([(store, journal) for store, journal in found if not journal.committed])
    except BaseException as error:
        first = stores[0].journal()
        if first is None or first.position or first.committed:  # the decision has been made
            raise _incomplete(error, stores, found[0][1].hint or "rlpatch recover --ray") from error
        _abandon(stores, first.transaction, error)


def finish(
    roots: Sequence[Path], transaction: str, ended: Collection[str] = (), *, wait: float = 60
) -> list[Recovered]:
    """Bring a transaction that was decided to its end below ``roots``, also where it was only prepared.

    ``ended`` are the participants elsewhere whose part has ended: the first keeps its mark until all others are among
    them. Raises as `recover`.
    """
    return recover(roots, wait=wait, elsewhere=Elsewhere(frozenset(ended), {transaction: True}))


def abort(roots: Sequence[Path], transaction: str, *, wait: float = 60) -> list[Recovered]:
    """Bring ``roots`` back from a transaction that the first participant has not decided, and never will.

    A root that is committed goes ahead all the same. Raises as `recover`.
    """
    return recover(roots, wait=wait, elsewhere=Elsewhere(decided={transaction: False}))


def _carry_out(
    edits: Sequence[Edit], membership: TransactionMembership | None, wait: float, on_wait: OnWait
) -> Outcome:
    """All steps of a transaction of these roots alone, or, with ``membership``, the first one of a larger one."""
    ended: list[Recovered] = []
    done: list[Path] | None = None
    notes: tuple[Note, ...] = ()
    roots = [edit.root for edit in edits]
    try:
        with interrupts.deferred():
            ended += recover(roots, wait=wait, on_wait=on_wait)
            merged = [(store, edit) for store, edit in _merged(edits) if membership or not idle(store, edit)]
            if not merged:
                return Outcome(recovered=tuple(ended))
            notes = preflight([edit for _store, edit in merged])
            names = {store.root: str(store.root) for store, _edit in merged}
            ours = membership or TransactionMembership(os.urandom(8).hex(), tuple(names.values()), names)
            stores = [store for store, _edit in merged]
            with _hold_locks(stores, wait, on_wait, make=True):
                ended += settle(stores, roots)
                done = _transact([drafted(store, edit, ours) for store, edit in merged], only_prepare=bool(membership))
    except (KeyboardInterrupt, OSError, Problem) as error:
        if done is None or isinstance(error, Problem):  # else there is nothing left to stop
            failure = _failure(error)
            again = ("an interrupted run was completed first, so plan again",) if ended else ()
            cause = error if isinstance(error, OSError) else error.__cause__
            raise failure.replace(notes=failure.notes + again) from cause
    return Outcome(tuple(done or ()), tuple(ended), notes)


def _failure(error: BaseException) -> Problem:
    """What is reported of a transaction that changed nothing."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Problem(Kind.INTERRUPTED, "stopped by the keyboard; nothing was changed")
    where = str(error.filename or "") if isinstance(error, OSError) else ""
    cause = f"{_reason(error)}; everything is as it was"
    return Problem(Kind.ROLLED_BACK, cause, where, "remove the cause and try again")


@contextlib.contextmanager
def locked(roots: Sequence[Path], *, wait: float = 60, on_wait: OnWait = lock.silent) -> Iterator[None]:
    """Keep all other processes out of ``roots`` from step to step; they are let in when this one ends, too.

    Raises Problem(ENVIRONMENT) when others keep us out for ``wait`` seconds, or the store is none to be believed.
    """
    stores = list({store.root: store for store in map(StoreFolder, roots)}.values())
    try:
        with _hold_locks(stores, wait, on_wait, make=True, keep=True):
            yield
    except KeyboardInterrupt as error:
        raise _failure(error) from None


def withdraw(root: Path, transaction: str) -> None:
    """Take back an election in ``root`` that nothing came of, also while others hold its lock; a rest harms nobody."""
    with contextlib.suppress(OSError, Problem):  # there may be no store any more
        StoreFolder(root).remove(f"{TREE}{transaction}")  # no other transaction has that name
        with locked([root], wait=0):  # the folder was made for the election, perhaps: who lets go of it last removes it
            pass


def recover(
    roots: Sequence[Path], *, wait: float = 60, on_wait: OnWait = lock.silent, elsewhere: Elsewhere = NOTHING
) -> list[Recovered]:
    """Bring each of ``roots`` to exactly before or exactly after its interrupted transaction.

    Only these roots are visited, whatever paths a journal names. Roots without one are neither locked nor
    written. ``elsewhere`` is what is known of other machines.

    Raises Problem: ROLLBACK_INCOMPLETE for a transaction that needs a root that is not among
    ``roots``, or whose backup is gone; ENVIRONMENT (lock, damaged store); INTERRUPTED.
    """
    try:
        with interrupts.deferred():
            return _recover(roots, wait, on_wait, elsewhere)
    except KeyboardInterrupt:
        raise Problem(Kind.INTERRUPTED, "stopped by the keyboard", hint=CommandLine("recover")) from None


def _recover(roots: Sequence[Path], wait: float, on_wait: OnWait, elsewhere: Elsewhere) -> list[Recovered]:
    stores = list({store.root: store for store in map(StoreFolder, roots)}.values())
    while any(store.unfinished() for store in stores):
        present = [store for store in stores if store.exists()]
        try:
            # Where the lock's owner has ended it and removed the store, the loop looks again.
            with contextlib.suppress(_Gone), _hold_locks(present, wait, on_wait, make=False):
                # A store that appeared meanwhile may hold the mark that decides: then lock that one, too.
                if present == [store for store in stores if store.exists()]:
                    return settle(present, roots, elsewhere)
        except OSError as error:
            raise _incomplete(error, present) from error
    return []


def _incomplete(error: BaseException, stores: Sequence[StoreFolder], undecided: str = "") -> Problem:
    """What is reported where something is unfinished; ``undecided`` ends what participants elsewhere may have begun."""
    if undecided and isinstance(error, Problem) and error.kind is Kind.FOREIGN_EDIT:
        cause = "somebody changed the file since it was prepared; others of the transaction may be replaced already"
        error = error.replace(cause=cause, hint=f"put it back, then {undecided}", notes=())
    if isinstance(error, Problem):
        return error.replace(kind=Kind.ROLLBACK_INCOMPLETE)
    cause = f"{_reason(error)}; an unfinished change is still there"
    where = ", ".join(str(store.root) for store in stores)
    return Problem(Kind.ROLLBACK_INCOMPLETE, cause, where, CommandLine("recover"))


def _reason(error: BaseException) -> str:
    return (isinstance(error, OSError) and error.strerror) or f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _hold_locks(
    stores: Sequence[StoreFolder], wait: float, on_wait: OnWait, *, make: bool, keep: bool = False
) -> Iterator[None]:
    """Hold the locks of all stores, and leave no store behind that has nothing to remember."""
    with contextlib.ExitStack() as stack:
        for store in sorted(stores, key=lambda store: str(store.root)):  # two commands must not cross
            prepare = store.prepare if make else partial(_require, store)
            within = lock.keeps(store.path)  # a step of a turn that is kept: whoever ends that sweeps
            stack.enter_context(lock.hold(store.path, prepare=prepare, wait=wait, on_wait=on_wait, keep=keep))
            if not within:
                stack.callback(_sweep, store)
        yield


def _require(store: StoreFolder) -> None:
    if not store.exists():
        raise _Gone


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


def _transact(drafts: Sequence[Draft], *, only_prepare: bool) -> list[Path]:
    """Carry the drafts out, or bring everything back; the locks are ours. Returns the files that hold other bytes."""
    stores = [draft.store for draft in drafts]
    try:
        for draft in drafts:
            _prepare(draft)
        if only_prepare:
            return []
        _commit([(draft.store, draft.journal) for draft in drafts])
    except BaseException as error:  # also Ctrl-C: it is raised again below
        _abandon(stores, drafts[0].journal.transaction, error)
    else:
        _settle(stores, NOTHING)
    return [draft.store.inside(move.path) for draft in drafts for move in draft.journal.moves]


def _prepare(draft: Draft) -> None:
    """Put all that either way needs into the store, and last the journal, which makes it count."""
    interrupts.look()
    store = draft.store
    if store.read(IGNORE) is None:
        store.write(IGNORE, b"*\n")
    for content, wanted in draft.backups:
        store.keep(content, wanted)
    if not draft.journal.empties:
        store.write(NEXT, text_of(draft.registry))
    store.write(JOURNAL, text_of(draft.journal))
    store.sync()
    sync(store.root)  # which may have got the store only now


def _commit(prepared: Sequence[tuple[StoreFolder, Journal]]) -> None:
    """Replace the files of all roots, then set their marks, the first participant's first."""
    for store, journal in prepared:
        if foreign := perform(store, journal.moves, interrupts.look):
            cause = "somebody changed the file while rlpatch was at work; everything is as it was"
            raise Problem(Kind.FOREIGN_EDIT, cause, str(store.inside(foreign[0])), "run the command again")
    interrupts.look()
    for store, _journal in prepared:
        store.commit()


def _abandon(stores: Sequence[StoreFolder], transaction: str, failure: BaseException) -> None:
    """Bring everything back after ``failure`` and raise that; after the first mark it has stopped nothing."""
    ended = _settle(stores, Elsewhere(decided={transaction: False}), failure)
    if not any(one.forward for one in ended):
        raise failure if isinstance(failure, KeyboardInterrupt) else _failure(failure) from failure


def _settle(
    stores: Sequence[StoreFolder], elsewhere: Elsewhere, failure: BaseException | None = None
) -> list[Recovered]:
    try:
        return settle(stores, [store.root for store in stores], elsewhere)
    except (OSError, Problem) as error:
        raise _incomplete(error, stores) from (failure or error)
