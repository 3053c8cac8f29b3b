"""Bringing unfinished transactions to an end: exactly before, or exactly after, never between.

A journal is on the disk before the first file is replaced. Until the commit mark every file can go back to
its bytes of before; the mark is set only when all files of all roots hold the new ones, so going ahead has
nothing left to do but to swap in the registry and to tidy up. Both can be killed and started again anywhere.

Over several roots the mark of the first root, in sorted order, decides for all: it is set first, and its
journal is removed last. A root therefore knows its fate from its own mark or from the first root. Where the
first root was not given, or would have to forget a mark that others may need, nothing is decided and nothing
is touched.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from patcher.errors import Kind, Problem
from patcher.store import bytecode, files, rights
from patcher.store.files import observe, put, remove, same, sync
from patcher.store.folder import COMMITTED, JOURNAL, NEXT, STATE, StoreFolder
from patcher.store.opened import resolved
from patcher.store.registry import Journal, Move


class Recovered(NamedTuple):
    """A root whose unfinished transaction has been ended.

    ``forward`` tells whether it holds the state after the transaction or the one before; ``left`` are the
    files, relative to the root, that somebody else changed since and that were therefore not touched.
    """

    root: Path
    forward: bool
    left: tuple[str, ...] = ()


def settle(stores: Sequence[StoreFolder], given: Sequence[Path]) -> list[Recovered]:
    """End every unfinished transaction of the locked ``stores``; ``given`` are all roots that are known.

    Raises Problem(ROLLBACK_INCOMPLETE) for a transaction that cannot be decided, after all others were ended.
    """
    pending = {str(store.root): journal for store in stores if (journal := store.journal())}
    known = {os.path.realpath(root) for root in given}
    done, open_ends = [], []
    # The first root of a transaction decides, so its journal goes last.
    for store in sorted(stores, key=lambda store: str(store.root), reverse=True):
        journal = pending.get(str(store.root))
        if journal is None:
            continue
        forward = _verdict(journal, pending, known)
        if forward is None:
            open_ends.append((store, journal))
        else:
            left = _ahead(store, journal) if forward else _back(store, journal)
            done.append(Recovered(store.root, forward, tuple(left)))
    for store, journal in open_ends:
        others = [path for path in journal.participants if path not in known]
        hint = f"run `rlpatch recover` where these are found too: {', '.join(others)}"
        if gone := [path for path in others if not os.path.lexists(path)]:
            # Whether it had decided went with it, and another machine may have it: only the user knows.
            away = f"mv {shlex.quote(str(store.path))} {shlex.quote(str(store.aside()))}"
            again = f"{away}; rlpatch revert --path {shlex.quote(str(store.root))}"
            hint += f"; if {', '.join(gone)} was deleted, go on without it, by the marks alone: {again}"
        cause = "an interrupted run over several roots can only be ended with all of them"
        raise Problem(Kind.ROLLBACK_INCOMPLETE, cause, where=str(store.root), hint=hint)
    return done


def _verdict(journal: Journal, pending: dict[str, Journal], known: set[str]) -> bool | None:
    """Ahead, back, or (None) not to be decided with what is known."""
    first, *others = journal.participants
    if journal.position == 0:
        if not journal.committed:
            return False
        return True if known.issuperset(others) else None
    if journal.committed:
        return True
    if first not in known:
        return None
    decider = pending.get(first)
    return decider is not None and decider.transaction == journal.transaction and decider.committed


def _ahead(store: StoreFolder, journal: Journal) -> list[str]:
    for source in _sources(store, journal):
        _forget_elsewhere(source)
    if journal.empties:
        store.remove(STATE)
        store.sync()
    else:
        with contextlib.suppress(FileNotFoundError):  # swapped in by the run that was killed after it
            store.rename(NEXT, STATE)
    _end(store, journal, journal.ahead)
    return []


def _back(store: StoreFolder, journal: Journal) -> list[str]:
    left = [move.path for move in journal.moves if not _undo(store, move)]
    for source in _sources(store, journal):
        _forget_elsewhere(source)
    _end(store, journal, journal.back)
    return left


def _undo(store: StoreFolder, move: Move) -> bool:
    """Put back what the path held before; False when it holds somebody else's file."""
    path = store.inside(move.path)
    cache = path.suffix == ".pyc"
    now = observe(path)[0]
    if same(now, move.before):
        return True
    if not cache and not same(now, move.after):
        return False
    if now is not None and not cache and not rights.can_own(now.uid):
        raise Problem(
            Kind.ROLLBACK_INCOMPLETE,
            f"the file belongs to user {now.uid}, whose run was interrupted",
            where=str(path),
            hint="let that user, or root, run `rlpatch recover`",
        )
    if move.before is None:
        remove(path)
        return True
    content = b"" if move.before.link is not None else store.blob(move.before.digest)
    if content is None:
        if cache:  # it can be compiled again
            remove(path)
            return True
        raise Problem(
            Kind.ROLLBACK_INCOMPLETE,
            "its backup is gone or damaged",
            where=str(path),
            hint="reinstall the package, or put the file back from git; then `rlpatch recover`",
        )
    if cache and not files.can_come_back(path, move.before):
        remove(path)
        return True
    put(path, move.before if cache else rights.like(move.before, now), content)
    return True


def _end(store: StoreFolder, journal: Journal, times: dict[str, files.Folder | None]) -> None:
    folders = {store.inside(move.path).parent for move in journal.moves}
    for folder in folders:
        files.clean(folder)
    rewound = {_folder(store, text): kept for text, kept in times.items()}
    # The deepest first: a bytecode folder that is removed moves the time of its parent.
    for folder in sorted(rewound, key=lambda path: len(path.parts), reverse=True):
        files.rewind(folder, rewound[folder])
    for folder in folders:
        if folder.is_dir():
            sync(folder)
    store.remove(COMMITTED if journal.committed else JOURNAL)
    store.sync()


def _folder(store: StoreFolder, text: str) -> Path:
    return store.root if text == "." else store.inside(text)


def _sources(store: StoreFolder, journal: Journal) -> Iterator[Path]:
    """The source files of the transaction, by the root's real name and by the one that was given."""
    for move in journal.moves:
        if not move.path.endswith(".pyc"):
            yield store.inside(move.path)
            yield store.given / move.path


def _forget_elsewhere(source: Path) -> None:
    for path in bytecode.elsewhere(source):
        with contextlib.suppress(OSError, Problem):  # perhaps not ours to remove; its time makes it stale in any case
            remove(resolved(path.parent) / path.name)
