"""Bringing unfinished transactions to an end: exactly before, or exactly after, never between.

A journal is on the disk before the first file is replaced, and beside it the bytes of before and of after. So
every file can go either way, whoever began it, and both ways can be killed and started again anywhere.

Over several roots the mark of the first participant decides for all: it is set first, and its journal is
removed last. A root therefore knows its fate from its own mark or from the first one.
Where the first was not found, or would have to forget a mark that others may need, nothing is decided and
nothing is touched.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from patcher.messages import COMMA, SEMICOLON, CommandLine, Kind, Problem, Text, joined
from patcher.store import STORE
from patcher.store.filesystem import bytecode, files, rights
from patcher.store.filesystem.files import observe, put, remove, same, sync
from patcher.store.filesystem.opened import resolved
from patcher.store.filesystem.rights import PathState
from patcher.store.folder import COMMITTED, JOURNAL, NEXT, STATE, StoreFolder
from patcher.store.registry import Journal, Move


class Recovered(NamedTuple):
    """A root whose unfinished transaction was ended.

    ``forward`` tells whether the root now holds the state after the transaction, else the state before. ``left`` are
    the files, relative to the root, that were not touched because somebody else has changed them.
    """

    root: Path
    forward: bool
    left: tuple[str, ...] = ()


def end_interrupted(stores: Sequence[StoreFolder], roots: Sequence[Path]) -> list[Recovered]:
    """End every unfinished transaction of the locked ``stores``, and return what became of each root.

    ``roots`` are all roots that the command found. Raises Problem (ROLLBACK_INCOMPLETE), after all other transactions
    were ended, for one that needs a root that is not among them. Raises OSError or another Problem at once, such as
    for a missing backup; then the remaining transactions are not ended.
    """
    pending = [(store, journal) for store in stores if (journal := store.journal())]
    roots_known = {os.path.realpath(root) for root in roots}
    recovered, undecided = [], []
    # The first participant decides, so its journal goes last.
    for store, journal in sorted(pending, key=lambda part: part[1].position, reverse=True):
        forward = _must_finish(journal, [other for _store, other in pending], roots_known)
        if forward is None:
            undecided.append((store, journal))
        else:
            foreign = _finish(store, journal) if forward else _roll_back(store, journal)
            recovered.append(Recovered(store.root, forward, tuple(foreign)))
            roots_known.add(journal.participants[journal.position])
    if undecided:
        raise _undecidable(*undecided[0], roots_known)
    return recovered


def _undecidable(store: StoreFolder, journal: Journal, roots_known: Collection[str]) -> Problem:
    """Return the Problem (ROLLBACK_INCOMPLETE) that a transaction needs more roots than ``roots_known``.

    Its hint says which; for roots that are deleted, how to go on without them.
    """
    elsewhere = [path for path in journal.participants if path not in roots_known]
    cause = Text(
        "an interrupted command had changed files in several folders; to recover, rlpatch needs access to all of them"
    )
    roots = joined(COMMA, elsewhere)
    hint = Text(
        "run `{command}` on a machine on which {folders} exist as well", command=CommandLine("recover"), folders=roots
    )
    if missing := [path for path in elsewhere if not os.path.lexists(path)]:
        # Whether it had decided went with it, and another machine may have it: only the user knows.
        names = (store.root / f"{STORE}-old{number or ''}" for number in itertools.count())
        aside = next(path for path in names if not os.path.lexists(path))
        away = f"mv {shlex.quote(str(store.path))} {shlex.quote(str(aside))}"
        again = f"{away}; {CommandLine('revert', '--path', str(store.root))}"
        deleted = Text(
            "if somebody deleted {folders}, this command reverts the files that are still patched, by their marker"
            " comments: {command}",
            folders=", ".join(missing),
            command=again,
        )
        hint = joined(SEMICOLON, (hint, deleted))
    return Problem(Kind.ROLLBACK_INCOMPLETE, cause, str(store.root), hint)


def _must_finish(journal: Journal, journals: Sequence[Journal], roots_known: set[str]) -> bool | None:
    """Return True if one root has to finish its transaction, False if it has to undo it; None if that is not known.

    ``journal`` is that of the root, ``journals`` are all that were found. A commit mark in any journal of the
    transaction means finish. Without one, it means undo if the first participant is among ``roots_known``, since that
    one gets the mark first. The first participant goes by its own mark, and finishes only if all others are known: its
    mark may tell them what to do.
    """
    first, *participants = journal.participants
    if journal.position == 0:
        if not journal.committed:
            return False
        return True if roots_known.issuperset(participants) else None
    parts = [part for part in journals if part.transaction == journal.transaction]
    if any(part.committed for part in parts):  # whoever it is: nobody sets a mark before the first one has
        return True
    if any(part.position == 0 for part in parts):
        return False
    return False if first in roots_known else None


def perform(store: StoreFolder, moves: Sequence[Move], check: Callable[[], None] = lambda: None) -> list[str]:
    """Replace the files of ``moves`` by their new content from the store, and remove their bytecode.

    ``check`` is called before each file and may raise to stop. Files that already have the new content are skipped.
    Return the files (relative to the root) that somebody else has changed, which are not touched. Raises OSError, and
    Problem (ENVIRONMENT) if new bytes are missing from the store.
    """
    foreign = []
    for move in moves:
        check()
        path = store.inside(move.path)
        present = observe(path)[0]
        if same(present, move.after):
            continue
        if present is None or not same(present, move.before):
            foreign.append(move.path)
            continue
        content = _content(store, move.after)
        if content is None:
            hint = Text("run `{command}`, then repeat your command", CommandLine("recover"))
            raise Problem(
                Kind.ENVIRONMENT,
                Text("this file was not changed, because its new content in rlpatch's store is missing or damaged"),
                str(path),
                hint,
            )
        put(path, rights.with_rights_of(move.after, present), content)
    _remove_bytecode(store, moves)  # last: what is compiled meanwhile goes, too
    for folder in {store.inside(move.path).parent for move in moves}:
        sync(folder)
    return foreign


def _content(store: StoreFolder, state: PathState) -> bytes | None:
    """Return the bytes of ``state`` from the store, b"" for a link; None if they are missing or damaged."""
    return b"" if state.link is not None else store.blob(state.digest)


def _finish(store: StoreFolder, journal: Journal) -> list[str]:
    """Finish a transaction: replace the files, put the next registry in place, and remove the journal.

    The files are not replaced again if the journal is marked as committed. If no patch is left, the registry is
    removed. Return the files, relative to the root, that somebody else has changed, which are not touched. Raises
    OSError and Problem.
    """
    # Without a mark of its own the run was killed between the marks of two roots, or by a power cut.
    foreign = [] if journal.committed else perform(store, journal.moves)
    if journal.empties:
        store.remove(STATE)
        store.sync()
    else:
        with contextlib.suppress(FileNotFoundError):  # swapped in by the run that was killed after it
            store.rename(NEXT, STATE)
    _clean_up(store, journal, journal.ahead)
    return foreign


def _roll_back(store: StoreFolder, journal: Journal) -> list[str]:
    """Undo a transaction: restore the files, remove their bytecode and then the journal.

    Return the files, relative to the root, that somebody else has changed, which are not touched. Raises OSError and
    Problem.
    """
    foreign = [move.path for move in journal.moves if not _restore(store, move)]
    with contextlib.suppress(OSError):  # what stays is of the bytes of before, or stale by its time
        _remove_bytecode(store, journal.moves)
    _clean_up(store, journal, journal.back)
    return foreign


def _restore(store: StoreFolder, move: Move) -> bool:
    """Restore the content that the file of ``move`` had before; return False if somebody else has changed it.

    Raises OSError and Problem: ROLLBACK_INCOMPLETE if the backup is missing or another user owns the file, ENVIRONMENT
    if a link is on the way.
    """
    path = store.inside(move.path)
    present = observe(path)[0]
    if same(present, move.before):
        return True
    if not same(present, move.after):
        return False
    if present is not None and not rights.can_own(present.uid):
        cause = Text("the file belongs to user {uid}, whose rlpatch command was interrupted", present.uid)
        hint = Text("ask the owner of the file, or root, to run `{command}`", CommandLine("recover"))
        raise Problem(Kind.ROLLBACK_INCOMPLETE, cause, str(path), hint)
    content = _content(store, move.before)
    if content is None:
        hint = Text("reinstall the package, or restore the file with git; then run `{command}`", CommandLine("recover"))
        raise Problem(
            Kind.ROLLBACK_INCOMPLETE,
            Text("the file cannot be restored, because its backup is missing or damaged"),
            str(path),
            hint,
        )
    put(path, rights.with_rights_of(move.before, present), content)
    return True


def _clean_up(store: StoreFolder, journal: Journal, times: dict[str, files.FolderState | None]) -> None:
    """Clean up after a transaction: remove its temporary files, reset folder times to ``times``, remove the journal.

    ``times`` maps folders, relative to the root, to their states. A folder with None, or with other names in it than
    then, keeps its times. Raises OSError and Problem (ENVIRONMENT).
    """
    folders = {store.inside(move.path).parent for move in journal.moves}
    for folder in folders:
        files.remove_temporary(folder)
    for text, state in times.items():
        files.rewind(store.root if text == "." else store.inside(text), state)
    for folder in folders:
        sync(folder)
    store.remove(COMMITTED if journal.committed else JOURNAL)
    store.sync()


def _remove_bytecode(store: StoreFolder, moves: Sequence[Move]) -> None:
    """Remove the ``.pyc`` files of the ``moves``, so that Python compiles again.

    Raises OSError, and Problem (ENVIRONMENT) if a link is on the way. Errors below PYTHONPYCACHEPREFIX are ignored.
    """
    for move in moves:
        path = store.inside(move.path)
        compiled = bytecode.beside(path)
        for place in compiled:
            remove(place)
        for folder in {place.parent for place in compiled}:
            sync(folder)
        for source in (path, store.alias / move.path):  # the prefix has folders by either name of the root
            for place in bytecode.prefixed_bytecode(source):
                with contextlib.suppress(OSError, Problem):  # of another user; its time makes it stale anyway
                    remove(resolved(place.parent) / place.name)
