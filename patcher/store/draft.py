"""What a transaction will do below one root, worked out before anything is written.

Every file is compared with what planning read, its bytecode is found, and each path gets what it shall hold and with
whose rights. A draft is a value: nothing here writes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from patcher.change import Change, Edit, PatchId, Record
from patcher.store.filesystem import bytecode, files, rights
from patcher.store.filesystem.files import BYTECODE, digest, observe, same
from patcher.store.filesystem.opened import resolved
from patcher.store.filesystem.rights import Node
from patcher.store.folder import StoreFolder
from patcher.store.preflight import current, lost_link
from patcher.store.registry import Entry, Move, Registry

_SECOND = 1_000_000_000


class Draft(NamedTuple):
    """One root's part of a transaction, complete before anything is written.

    ``backups`` are the bytes to be kept, those of after too, and who may read them.
    """

    store: StoreFolder
    moves: tuple[Move, ...]
    backups: tuple[tuple[bytes, Node], ...]
    registry: Registry
    back: dict[str, files.Folder | None]
    ahead: dict[str, files.Folder | None]


def idle(store: StoreFolder, edit: Edit) -> bool:
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


class _Sheet(NamedTuple):
    """A draft in the making: the registry's files as they will be, the moves so far, the bytes they need.

    ``standing`` are the files with lines that this edit neither writes nor takes out.
    """

    store: StoreFolder
    entries: dict[str, Entry]
    sources: list[Move]
    caches: list[Move]
    entered: set[str]
    backups: list[tuple[bytes, Node]]
    pristine_now: set[str]
    standing: frozenset[str]


def drafted(store: StoreFolder, edit: Edit) -> Draft:
    """Everything that will be done below one root; compares every file with what planning read."""
    registry = store.registry()
    renewed = {*edit.remove, *(record.patch for record in edit.add)}
    others = [record for record in registry.records if record.patch not in renewed]
    standing = frozenset(file for record in others for file in record.files)
    sheet = _Sheet(store, dict(registry.files), [], [], set(), [], set(), standing)
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
        backups=tuple(sheet.backups),
        registry=Registry(applied, entries, {name: first[name] for name in _folders(entries.keys())}),
        back={name: now[name] for name in _folders(touched)},
        ahead={name: first[name] for name in _folders(touched)},
    )


def _enter(sheet: _Sheet, change: Change) -> None:
    """Work one change out: its file, its bytecode, and what the registry will remember of them."""
    path = sheet.store.locate(change.path)
    key = _key(sheet.store, path)
    if key in sheet.entered:
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
    sheet.entered.add(key)
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
    sheet.backups.extend([(change.before, readers), (change.after, readers)])
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
