"""Works out what a transaction does below one root, before anything is written.

Every file is compared with what planning read, and each path gets what it will hold and whose rights. A draft is a
value: nothing here writes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from patcher.changes.change import Change, Edit, PatchId, Record
from patcher.store.filesystem import files, rights
from patcher.store.filesystem.files import digest, observe
from patcher.store.filesystem.opened import resolved
from patcher.store.filesystem.rights import PathState
from patcher.store.folder import StoreFolder
from patcher.store.preflight import current_states, lost_link, not_as_planned
from patcher.store.registry import LATEST_S, Entry, Journal, Move, Registry

_SECOND = 1_000_000_000


class Draft(NamedTuple):
    """One root's part of a transaction, complete before anything is written.

    ``journal`` and ``registry`` are written into the store, the registry only while a patch remains. ``backups`` are
    the bytes to keep, from before and after, each with a state whose owner and mode the backup gets.
    """

    store: StoreFolder
    journal: Journal
    registry: Registry
    backups: tuple[tuple[bytes, PathState], ...]


def changes_nothing(store: StoreFolder, edit: Edit) -> bool:
    """Tell whether ``edit`` would change neither a file nor the applied patches, apart from apply times.

    Raises Problem (FOREIGN_EDIT) if a file is not as planned, Problem (ENVIRONMENT) if a file cannot be read.
    """
    for change in edit.changes:
        current_states(store.locate(change.path), change)
    if any(change.before != change.after for change in edit.changes):
        return False
    present = store.records()
    return _undated(_registered(present, edit)) == _undated(present)


def _undated(applied: tuple[Record, ...]) -> list[Record]:
    """Return the records without their apply times, to compare them."""
    return [record._replace(applied_at="") for record in applied]


def _registered(present: tuple[Record, ...], edit: Edit) -> tuple[Record, ...]:
    """Return the records that the registry has after ``edit``.

    An added record takes the place of the one with the same id, or comes last.
    """
    records: dict[PatchId, Record] = {record.patch: record for record in present if record.patch not in edit.remove}
    records.update({record.patch: record for record in edit.add})
    return tuple(records.values())


def draft_edit(store: StoreFolder, edit: Edit, transaction: str, participants: tuple[str, ...]) -> Draft:
    """Return the part of the transaction with the id ``transaction`` that ``edit`` makes in its root; write nothing.

    ``participants`` are the sorted roots of the transaction; the first one decides whether it is kept. Raises Problem
    (FOREIGN_EDIT) if a file is not what planning read or would keep rlpatch's lines without a patch, Problem
    (ENVIRONMENT) if a file cannot be read, ValueError for two changes of one file, and OSError.
    """
    registry = store.registry()
    builder = ChangeBuilder(store, registry, edit)
    for change in edit.changes:
        builder.add_change(change)
    applied = _registered(registry.records, edit)
    touched = {move.path for move in builder.moves}
    entries = builder.entries
    if not applied:  # an entry that remains is of a file that was upgraded under us, or was not looked at
        _require_rest_unpatched(store, {k: entry for k, entry in entries.items() if k not in touched})
        entries = {k: entry for k, entry in entries.items() if k in touched}
    # Keep a folder's original times while any file in it stays patched.
    alive = _folders(registry.files.keys() - builder.pristine) & registry.folders.keys()
    present = {name: files.folder_state(store.root / name) for name in _folders(touched) | _folders(entries.keys())}
    first = {name: registry.folders[name] if name in alive else present[name] for name in present}
    becomes = Registry(applied, entries, {name: first[name] for name in _folders(entries.keys())})
    journal = Journal(
        transaction,
        participants,
        position=participants.index(str(store.root)),
        moves=tuple(builder.moves),
        back={name: present[name] for name in _folders(touched)},
        ahead={name: first[name] for name in _folders(touched)},
        empties=becomes == Registry(),
    )
    return Draft(store, journal, becomes, tuple(builder.backups))


def _require_rest_unpatched(store: StoreFolder, entries: Mapping[str, Entry]) -> None:
    """Raise Problem (FOREIGN_EDIT) if a file of ``entries`` still has exactly the bytes that rlpatch wrote.

    ``entries`` are the registry entries about to be dropped, by path relative to the root. Files that are missing or
    cannot be read pass. Such bytes remain if another command was still applying the patch when this one planned.
    """
    for key, entry in entries.items():
        with suppress(OSError):  # rlpatch cannot judge a file that it cannot read
            present, _ = observe(store.root / key)
            if present and entry.expected and present.digest == entry.expected.digest != entry.digest:
                raise not_as_planned(store.root / key)


class ChangeBuilder:
    """Collector of moves, backups and registry entries, change by change.

    ``pristine`` are the keys of files without rlpatch lines so far.
    """

    def __init__(self, store: StoreFolder, registry: Registry, edit: Edit) -> None:
        """Start from the files in ``registry``; remember which files patches outside of ``edit`` change."""
        renewed = {*edit.remove, *(record.patch for record in edit.add)}
        remaining = [record for record in registry.records if record.patch not in renewed]
        self.entries: dict[str, Entry] = dict(registry.files)
        self.moves: list[Move] = []
        self.backups: list[tuple[bytes, PathState]] = []
        self.pristine: set[str] = set()
        self._store = store
        self._added: set[str] = set()
        self._standing = {file for record in remaining for file in record.files}

    def add_change(self, change: Change) -> None:
        """Add the move, backups and registry entry of ``change``; write nothing.

        A file without new bytes gets no move, and a reverted file loses its entry. Raises Problem (FOREIGN_EDIT) if the
        file is not what planning read, Problem (ENVIRONMENT) if the file cannot be read, ValueError for a second change
        of one file, and OSError.
        """
        path, root, pristine = self._store.locate(change.path), self._store.root, digest(change.pristine)
        key = self._store.key(path)
        if key in self._added:
            raise ValueError(f"{change.path}: two changes of one file")
        self._added.add(key)
        state, file = current_states(path, change)
        target = resolved(path)
        plain = rights.replacement(state, file, target, root)._replace(atime_ns=None)
        earlier = self.entries.pop(key, None)
        if earlier is not None and (change.before == change.pristine or earlier.digest != pristine):
            earlier = None  # of a file that was replaced since
        if change.before == change.pristine:
            self.pristine.add(key)
            first = Entry(pristine, state)
        else:  # without an entry it was upgraded, or edited by others: no time of before fits these bytes
            first = Entry(pristine, plain._replace(digest=pristine, mtime_ns=None))
        entry = earlier or first
        if earlier is None or change.before != change.after:
            entry = _update_entry(entry, plain, path, self._expected_digest(key, change, earlier))
        readers = rights.backup_state(target, root, file)
        reverts = change.after == change.pristine
        if not reverts:
            self.entries[key] = entry
            self.backups.append((change.pristine, readers))
        if change.before == change.after:
            return
        self.backups.extend([(change.before, readers), (change.after, readers)])
        if reverts and earlier is not None and not lost_link(path, earlier):
            self.moves.append(Move(key, state, rights.with_rights_of(earlier.pristine, state)))
        else:
            written = plain._replace(digest=digest(change.after), mtime_ns=_new_mtime(state))
            self.moves.append(Move(key, state, written))

    def _expected_digest(self, key: str, change: Change, entry: Entry | None) -> str:
        """Return the sha256 of the file ``key`` to put into the registry, with which `status` compares the file.

        It is the digest after ``change``, unless somebody has moved inserted lines and another patch stays in the file.
        Then it stays that of ``entry``, the file's present entry (None: without one), and `status` still shows the
        move.
        """
        expected = entry and entry.expected
        if expected and key in self._standing and expected.digest != digest(change.before):
            return expected.digest  # somebody has moved inserted lines, and those that stay are still not in place
        return digest(change.after)


def _update_entry(entry: Entry, plain: PathState, path: Path, content_digest: str) -> Entry:
    """Return ``entry`` with the expected content and rights of ``path``, from which `status` finds later changes.

    ``content_digest`` is the sha256 of the new bytes, ``plain`` has the new rights. A group that the file cannot have
    is recorded as -1. Raises OSError.
    """
    probe = rights.try_rights(path.parent, plain)
    group_stays = probe.gid == plain.gid if probe else rights.in_group(plain.gid, os.stat(path.parent))  # noqa: PTH116
    expected = plain._replace(digest=content_digest, mtime_ns=None, gid=plain.gid if group_stays else -1)
    return entry._replace(expected=expected, numbering=rights.numbering())


def _new_mtime(state: PathState) -> int:
    """Return the modification time in nanoseconds for a file that replaces another, with the former ``state``.

    It is now, or if that is no later second than the former time, the second after it: Python compares seconds and
    size with its bytecode. So it sees that bytecode is stale that rlpatch does not find (PYTHONPYCACHEPREFIX).
    """
    before = (state.mtime_ns or 0) // _SECOND
    present = time.time_ns()
    return present if present // _SECOND > before else min(before + 1, LATEST_S) * _SECOND


def _folders(keys: Iterable[str]) -> set[str]:
    """Return the parent folders of files, as texts relative to the root."""
    return {str(PurePosixPath(key).parent) for key in keys}
