"""The roots that hold patches of ours, registered in their store or only marked in their files."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from patcher import markers
from patcher.change import Record
from patcher.errors import Kind, Problem
from patcher.state import file_state
from patcher.store.filesystem import files as store_files
from patcher.store.folder import StoreFolder

if TYPE_CHECKING:
    from patcher.change import PatchId, Record
    from patcher.state import FileState
    from patcher.targets.target import Discovery, Target


class PatchedRoot(NamedTuple):
    """One root with patches.

    ``records`` are the wanted ones: those of the store, and one without a date for each patch whose marks stand in a
    file while the store does not know it. ``files`` are those that exist and may carry marks, ``pending`` says that
    a run was interrupted here.
    """

    path: Path
    targets: tuple[Target, ...]
    records: tuple[Record, ...]
    files: tuple[str, ...]
    pending: bool

    def read(self, path: PurePosixPath) -> bytes | None:
        """The bytes of a file below the root, None where it is gone."""
        try:
            return store_files.behind(self.path / path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            cause = f"cannot be read: {error.strerror}"
            raise Problem(
                Kind.ENVIRONMENT, cause, str(self.path / path), "run rlpatch as the owner of the file"
            ) from None

    def marked(self) -> dict[str, bytes]:
        """The files in which something of ours stands, and their bytes."""
        return {file: data for file in self.files if (data := self.read(PurePosixPath(file))) and b" rlpatch " in data}

    def states(self, record: Record) -> list[FileState]:
        """How the files of one of the records stand today."""
        states, store = [], StoreFolder(self.path)
        for path in map(PurePosixPath, record.files):
            data = self.read(path)
            pristine = None if data is None else store.backup(path)
            changed = "" if data is None else store.changed_rights(path)
            left = None if data is None else store.as_written(path, data)
            states.append(file_state(data, pristine, record.patch, str(path), changed, left))
        return states


def patched(found: Discovery, wanted: Collection[str] = ()) -> list[PatchedRoot]:
    """Every root of what was ``found`` that holds patches of the targets ``wanted`` (none: of any).

    Raises Problem(ENVIRONMENT) for a store or a file that cannot be read.
    """
    roots = []
    for path in dict.fromkeys([*found.stores, *(target.root for target in found.targets)]):
        here = tuple(target for target in found.targets if target.root == path)
        stored, pending = _stored(path) if path in found.stores else ((), False)
        records = tuple(record for record in stored if not wanted or record.patch.target in wanted)
        places = (file for target in here for file in target.project.files)
        files = dict.fromkeys([*(file for record in records for file in record.files), *places])
        root = PatchedRoot(path, here, records, tuple(file for file in files if (path / file).is_file()), pending)
        lost = tuple(r for r in _unregistered(root) if not wanted or r.patch.target in wanted)
        if records or lost or root.pending:
            roots.append(PatchedRoot(path, here, (*records, *lost), root.files, root.pending))
    return roots


def _stored(path: Path) -> tuple[tuple[Record, ...], bool]:
    """What the store below ``path`` has registered, and whether a run was interrupted there."""
    store_folder = StoreFolder(path)
    return store_folder.records(), store_folder.unfinished()


def _unregistered(root: PatchedRoot) -> list[Record]:
    """A record for each patch that only its marks tell of, as after `git clean -xdf`."""
    marked = root.marked()
    if not marked:
        return []
    known = {(record.patch, file) for record in root.records for file in record.files}
    lost: dict[PatchId, list[str]] = {}
    for file, data in marked.items():
        try:
            found = markers.marked(data)
        except Problem:  # broken marks: `status` says so of the record, and without one nobody knows what they were
            continue
        for patch in (mark.patch for mark in found):
            if (patch, file) not in known and not patch.shared:
                lost.setdefault(patch, []).append(file)
    return [Record(patch, "", (), tuple(files), "", "") for patch, files in lost.items()]
