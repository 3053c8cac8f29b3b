"""The roots that hold patches of ours, registered in their store or only marked in their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from patcher.commands.finding import SearchOptions
from patcher.errors import Kind, Problem
from patcher.report import Report
from patcher.targets import find as targets

if TYPE_CHECKING:
    from patcher.change import PatchId, Record
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
        from patcher.store import files  # not where nothing is patched

        try:
            return files.behind(self.path / path)
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


def patched_roots(names: Sequence[str], search: SearchOptions) -> tuple[list[PatchedRoot], Discovery]:
    """Every root that holds patches of the targets ``names`` (none: of any), and what was found altogether."""
    from patches.projects import projects

    known = projects()
    wanted = set()
    for word in names:
        name, _ = targets.parse(word.partition("==")[0], known)
        if "==" in word:
            cause = f"{word}: what is applied is known by its target, not by a version"
            raise Problem(Kind.USAGE, cause, hint=search.again(word, name))
        wanted.add(name)
    found = targets.discover(known, path=search.path, python=search.python, git=False)
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
    return roots, found


def _stored(path: Path) -> tuple[tuple[Record, ...], bool]:
    """What the store below ``path`` has registered, and whether a run was interrupted there."""
    from patcher.store.folder import StoreFolder  # not where nothing is patched

    store_folder = StoreFolder(path)
    return store_folder.records(), store_folder.unfinished()


def _unregistered(root: PatchedRoot) -> list[Record]:
    """A record for each patch that only its marks tell of, as after `git clean -xdf`."""
    marked = root.marked()
    if not marked:
        return []
    from patcher import markers
    from patcher.change import Record

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


def report_nothing(report: Report, names: Sequence[str], found: Discovery) -> tuple[str, str]:
    """Say that no patch was found, and where was looked; both come out, too."""
    what = f"no patch of {', '.join(names)}" if names else "nothing is patched"
    looked = f"looked in: {'; '.join(found.searched)}"
    report.lines.append(f"{what}; {looked}")
    for problem in found.problems:
        report.warn(*problem.note)
    return what, looked
