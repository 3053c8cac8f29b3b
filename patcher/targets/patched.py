"""The roots that hold patches, registered in their store or only marked in their files."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from patcher.changes import markers
from patcher.changes.change import PatchId, Record
from patcher.changes.state import FileState, file_state
from patcher.messages import Problem, problem_of
from patcher.store.filesystem import files as store_files
from patcher.store.folder import StoreFolder
from patcher.targets.target import Discovery, Target, within


class PatchedRoot(NamedTuple):
    """Root with patches.

    `records` come from the store; a patch known only by its marks has a record without a date. `files` exist and may
    carry marks. `pending` means that a command was interrupted. `mirror` is as in `Target`. `broken` has a Problem
    (FOREIGN_EDIT) for each file whose marks do not pair and whose original no store has.
    """

    path: Path
    targets: tuple[Target, ...]
    records: tuple[Record, ...]
    files: tuple[str, ...]
    pending: bool
    mirror: Path | None = None
    broken: tuple[Problem, ...] = ()

    @property
    def folder(self) -> Path:
        """Folder to read the root's files in: the root itself, or its copy below `mirror`."""
        return within(self.mirror, self.path)

    def read(self, path: PurePosixPath) -> bytes | None:
        """Return the bytes that a file in `folder` has now, patched or not; None if it does not exist.

        Raises Problem for other errors.
        """
        try:
            return store_files.read_resolved(self.folder / path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise problem_of(error) from None

    def backup(self, path: PurePosixPath) -> bytes | None:
        """Return the bytes of a file from before the first patch, None without a good backup. Raises Problem."""
        data = self.read(path)
        return None if data is None else StoreFolder(self.folder).compare(path, data)[0]

    def marked(self) -> dict[str, bytes]:
        """Return the bytes of each file, by path, that contains the bytes "rlpatch"."""
        return {file: data for file in self.files if (data := self.read(PurePosixPath(file))) and b"rlpatch" in data}

    def states(self, record: Record) -> list[FileState]:
        """Return whether each file of `record` is intact, edited, tampered, lost or missing. Raises Problem."""
        states, store = [], StoreFolder(self.folder)
        for path in map(PurePosixPath, record.files):
            data = self.read(path)
            pristine, changed, in_place = (None, "", None) if data is None else store.compare(path, data)
            states.append(file_state(data, pristine, record.patch, str(path), changed, in_place))
        return states


def patched(discovery: Discovery, names: Collection[str] = ()) -> list[PatchedRoot]:
    """Return the roots with patches, interrupted commands or broken marks of `names` (empty: any). Raises Problem."""
    paths = dict.fromkeys([*discovery.stores, *(target.root for target in discovery.targets)])
    roots = (_root(path, discovery, names) for path in paths)
    return [root for root in roots if root.records or root.pending or root.broken]


def _root(path: Path, discovery: Discovery, names: Collection[str]) -> PatchedRoot:
    """Return the root at `path` with its patches of the targets `names`: those in the store, then those only marked."""
    targets = tuple(target for target in discovery.targets if target.root == path)
    folder = within(discovery.mirror, path)
    store = StoreFolder(folder) if path in discovery.stores else None
    records = _wanted(store.records() if store else (), names)
    listed = [file for record in records for file in record.files]
    listed += [file for target in targets for file in target.project.files]
    files = tuple(file for file in dict.fromkeys(listed) if (folder / file).is_file())
    pending = store is not None and store.unfinished()
    root = PatchedRoot(path, targets, records, files, pending, discovery.mirror)
    unregistered, broken = _unregistered(root, names)
    return root._replace(records=records + _wanted(unregistered, names), broken=broken)


def _wanted(records: Iterable[Record], targets: Collection[str]) -> tuple[Record, ...]:
    """Return the records whose target is in `targets`, all records if `targets` is empty."""
    return tuple(record for record in records if not targets or record.patch.target in targets)


def _unregistered(root: PatchedRoot, names: Collection[str]) -> tuple[list[Record], tuple[Problem, ...]]:
    """Return records of marks in files that the store does not list, as after `git clean -xdf`; and broken marks.

    Broken marks are reported for files of the targets `names` (empty: any), unless a patch of the store lists the file.
    """
    marked = root.marked()
    registered = {(record.patch, file) for record in root.records for file in record.files}
    recorded = {file for _, file in registered}
    whose = {file: target.project.name for target in root.targets for file in target.project.files}
    lost: dict[PatchId, list[str]] = {}
    broken = []
    for file, data in marked.items():
        try:
            marks = markers.marked(data)
        except Problem as problem:
            if file not in recorded and (not names or whose.get(file) in names):  # else `status` says so of the record
                broken.append(problem.replace(where=f"{root.path / file}:{problem.where}"))
            continue
        for patch in (mark.patch for mark in marks):
            if (patch, file) not in registered and not patch.shared:
                lost.setdefault(patch, []).append(file)
    return [Record(patch, "", (), tuple(files), "", "") for patch, files in lost.items()], tuple(broken)
