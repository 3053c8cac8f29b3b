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
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from patcher import interrupts
from patcher.change import Change, Edit, PatchId, Record
from patcher.errors import Kind, Problem
from patcher.notes import Note
from patcher.store import bytecode, files, lock, rights
from patcher.store.files import BYTECODE, digest, observe, put, remove, same, sync
from patcher.store.folder import IGNORE, JOURNAL, NEXT, StoreFolder
from patcher.store.journal import Recovered, settle
from patcher.store.opened import resolved
from patcher.store.preflight import current, lost_link, preflight
from patcher.store.registry import Entry, Journal, Move, Registry, journal_text, registry_text
from patcher.store.rights import Node

__all__ = ["Outcome", "Recovered", "commit", "pending", "preflight", "records", "recover"]

_SECOND = 1_000_000_000


class Outcome(NamedTuple):
    """What a commit did: the files that now hold other bytes, and the interrupted runs it ended before.

    ``notes`` say what could not be as it was.
    """

    written: tuple[Path, ...] = ()
    recovered: tuple[Recovered, ...] = ()
    notes: tuple[Note, ...] = ()


class _Gone(Exception):  # noqa: N818  (nothing has gone wrong)
    """A store was removed by its last user while its lock was waited for."""


class Draft(NamedTuple):
    """One root's part of a transaction, complete before anything is written.

    ``contents`` are the bytes of the nodes to be placed, ``backups`` the bytes to be kept and whose they are.
    """

    store: StoreFolder
    moves: tuple[Move, ...]
    contents: dict[str, bytes]
    backups: tuple[tuple[bytes, Node], ...]
    registry: Registry
    back: dict[str, files.Folder | None]
    ahead: dict[str, files.Folder | None]


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
            merged = [(store, edit) for store, edit in _merged(edits) if not _idle(store, edit)]
            if not merged:
                return Outcome(recovered=tuple(ended))
            notes = preflight([edit for _store, edit in merged])
            stores = [store for store, _edit in merged]
            with _locked(stores, wait, on_wait, make=True):
                ended += settle(stores, roots)
                done = _transact([_draft(store, edit) for store, edit in merged])
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


def _idle(store: StoreFolder, edit: Edit) -> bool:
    """Whether nothing would change; raises Problem(FOREIGN_EDIT) when a file is not as planned."""
    for change in edit.changes:
        current(store.locate(change.path), change)
    if any(change.before != change.after for change in edit.changes):
        return False
    now = store.records()
    return _undated(_registered(now, edit)) == _undated(now)


def _undated(applied: tuple[Record, ...]) -> list[Record]:
    return [record._replace(applied_at="") for record in applied]


def _registered(now: tuple[Record, ...], edit: Edit) -> tuple[Record, ...]:
    kept: dict[PatchId, Record] = {record.patch: record for record in now if record.patch not in edit.remove}
    kept.update({record.patch: record for record in edit.add})
    return tuple(kept.values())


def _key(store: StoreFolder, path: Path) -> str:
    return path.relative_to(store.root).as_posix()


@dataclass
class _Sheet:
    """A draft in the making: the registry's files as they will be, the moves so far, the bytes they need.

    ``standing`` are the files with lines that this edit neither writes nor takes out.
    """

    store: StoreFolder
    entries: dict[str, Entry]
    sources: list[Move]
    caches: list[Move]
    contents: dict[str, bytes]
    backups: list[tuple[bytes, Node]]
    pristine_now: set[str]
    standing: frozenset[str]


def _draft(store: StoreFolder, edit: Edit) -> Draft:
    """Everything that will be done below one root; compares every file with what planning read."""
    registry = store.registry()
    renewed = {*edit.remove, *(record.patch for record in edit.add)}
    others = [record for record in registry.records if record.patch not in renewed]
    standing = frozenset(file for record in others for file in record.files)
    sheet = _Sheet(store, dict(registry.files), [], [], {}, [], set(), standing)
    for change in edit.changes:
        _enter(sheet, change)
    applied = _registered(registry.records, edit)
    touched = {move.path for move in sheet.sources}
    # Without any patch, an entry that is left is of a file that was upgraded under us.
    entries = sheet.entries if applied else {k: entry for k, entry in sheet.entries.items() if k in touched}
    # How a folder was at first is remembered as long as a file in it carries lines of ours without a break.
    alive = _folders(registry.files.keys() - sheet.pristine_now) & registry.folders.keys()
    now = {name: files.folder(_at(store, name)) for name in _folders(touched) | _folders(entries.keys())}
    first = {name: registry.folders[name] if name in alive else now[name] for name in now}
    return Draft(
        store=store,
        moves=(*sheet.sources, *sheet.caches),
        contents=sheet.contents,
        backups=tuple(sheet.backups),
        registry=Registry(applied, entries, {name: first[name] for name in _folders(entries.keys())}),
        back={name: now[name] for name in _folders(touched)},
        ahead={name: first[name] for name in _folders(touched)},
    )


def _enter(sheet: _Sheet, change: Change) -> None:
    """Work one change out: its file, its bytecode, and what the registry will remember of them."""
    path = sheet.store.locate(change.path)
    key = _key(sheet.store, path)
    if key in sheet.contents:
        raise ValueError(f"{change.path}: two changes of one file")
    node, file = current(path, change)
    target = resolved(path)
    plain = rights.copied(node, file, target, sheet.store.root)._replace(atime_ns=None)
    compiled = _compiled(sheet, path)
    entry = sheet.entries.pop(key, None)
    fits = entry is not None and change.before != change.pristine and entry.digest == digest(change.pristine)
    if change.before == change.pristine:
        sheet.pristine_now.add(key)
        entry = _gave(Entry(digest(change.pristine), node, compiled), plain, path, digest(change.after))
    elif entry is None or not fits:
        # Upgraded, or edited by others, while our lines were in it: no time of before fits these bytes.
        pristine = plain._replace(digest=digest(change.pristine), mtime_ns=None)
        entry = _gave(Entry(digest(change.pristine), pristine), plain, path, digest(change.after))
    elif change.before != change.after:
        known = digest(change.after)
        if entry.given is not None and key in sheet.standing and entry.given.digest != digest(change.before):
            known = entry.given.digest  # somebody has moved lines of ours, and those that stay are still not in place
        entry = _gave(entry, plain, path, known)
    sheet.contents[key] = change.after
    reverts = change.after == change.pristine
    readers = rights.backup(target, sheet.store.root, file)
    if not reverts:
        sheet.entries[key] = entry
        sheet.backups.append((change.pristine, readers))
    if change.before == change.after:
        return
    written = plain._replace(digest=digest(change.after), mtime_ns=_fresh(node))
    back = reverts and fits and not lost_link(path, entry)
    sheet.sources.append(Move(key, node, rights.like(entry.pristine, node) if back else written))
    sheet.backups.append((change.before, readers))
    _enter_bytecode(sheet, compiled, entry.bytecode if back else {})


def _gave(entry: Entry, plain: Node, path: Path, known: str) -> Entry:
    """What the file will have, so that `status` can tell what others have changed: of another's group it cannot be."""
    made = rights.tried(path.parent, plain)
    kept = made.gid == plain.gid if made else rights.in_group(plain.gid, os.stat(path.parent))  # noqa: PTH116
    given = plain._replace(digest=known, mtime_ns=None, gid=plain.gid if kept else -1)
    return entry._replace(given=given, numbering=rights.numbering())


def _compiled(sheet: _Sheet, source: Path) -> dict[str, Node]:
    """The bytecode of ``source`` that is there, its bytes kept for the way back."""
    found = {}
    for path in bytecode.beside(source):
        node, content = observe(path)
        if node is not None:
            found[_key(sheet.store, path)] = node
            if node.link is None:
                sheet.backups.append((content, rights.backup(path, sheet.store.root, node)))
    return found


def _enter_bytecode(sheet: _Sheet, there: Mapping[str, Node], wanted: Mapping[str, Node]) -> None:
    """Remove all that was compiled from the bytes of before, and put back what belongs to those of after."""
    for key in sorted({*there, *wanted}):
        before, after = there.get(key), wanted.get(key)
        if after is not None and after.link is None:
            content = sheet.store.blob(after.digest)
            if content is None or not files.can_come_back(sheet.store.inside(key), after):
                after = None  # a cache: it is gone, or not ours to make, and Python makes it again
            else:
                sheet.contents[key] = content
        if not same(before, after):
            sheet.caches.append(Move(key, before, after))


def _fresh(node: Node) -> int:
    """A time of change in a later second than before: bytecode is told apart by the second and the size.

    Whoever keeps bytecode where we do not find it (another PYTHONPYCACHEPREFIX) then sees that it is stale.
    """
    before = (node.mtime_ns or 0) // _SECOND
    now = time.time_ns()
    return now if now // _SECOND > before else (before + 1) * _SECOND


def _folders(keys: Iterable[str]) -> set[str]:
    """The folders that change with these files, as texts relative to the root."""
    parents = {PurePosixPath(key).parent for key in keys}
    return {str(folder) for parent in parents for folder in (parent, parent / BYTECODE)}


def _at(store: StoreFolder, name: str) -> Path:
    return store.root / name


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
