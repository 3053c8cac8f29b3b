"""The values of discovery: a project that can be looked for, and one that is there."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Mapping, NamedTuple

from patcher.messages import Note, Problem
from patcher.targets import sources


class Project(NamedTuple):
    """Upstream project that can be patched, declared in `patches`.

    `name` is what the user types, `package` what Python imports, `distributions` the names under which it is published,
    `checkout` the package's folder in a git checkout ("" for the top). `version_files` are text files below the root
    with just the version; `files` are those that any release may have patched. `placeholders` are versions that the
    metadata has in every release; `releases` are the known published releases, oldest first. If `on_index` is False,
    the package index may have another project with this name.
    """

    name: str
    package: str
    distributions: tuple[str, ...]
    checkout: str = ""
    version_files: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    placeholders: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    on_index: bool = True


class Target(NamedTuple):
    """Installed project.

    `version` is as reported ("" if unknown), `root` the real folder that holds the package, `installed_as` one of
    wheel, editable, checkout, unpacked. `version_from` and `found_by` say how these are known. `search` is the import
    path of its environment, `prefix` that environment's folder, as far as known. For a target on another machine,
    `mirror` is the local folder with a copy of its files. `ahead` has the bytes of files that another plan of the same
    command has changed.
    """

    project: Project
    version: str
    root: Path
    installed_as: str
    version_from: str
    found_by: str
    notes: tuple[Note, ...] = ()
    search: tuple[Path, ...] = ()
    prefix: str = ""
    mirror: Path | None = None
    ahead: Mapping[PurePosixPath, bytes] | None = None

    @property
    def folder(self) -> Path:
        """Folder to read the root's files in: the root itself, or its copy below `mirror`."""
        return within(self.mirror, self.root)

    def beside(self, package: str) -> bool:
        """Tell whether `package` is installed in the same environment."""
        return any((folder / package).is_dir() for folder in (self.folder, *self.search))

    def exists(self, path: PurePosixPath) -> bool:
        """Tell whether the module `path`, relative to the root, exists, also compiled, which `read` refuses."""
        return sources.module_exists(self.folder / path)

    def read(self, path: PurePosixPath) -> bytes:
        """Return the bytes of the module `path` as earlier plans leave it. Raises Problem as `sources.read`."""
        planned = self.ahead.get(path) if self.ahead else None
        return sources.read(self.folder / path) if planned is None else planned

    def read_existing(self, path: PurePosixPath) -> bytes | None:
        """Return what `read` does, but None if the module `path` does not exist."""
        return self.read(path) if self.exists(path) else None


class Discovery(NamedTuple):
    """Result of a search.

    `targets` are installed, `stores` are roots with a `.rlpatch` folder (also without the package), `problems` concern
    projects that cannot be patched, `searched` names the places. `mirror` is as in `Target`.
    """

    targets: tuple[Target, ...]
    stores: tuple[Path, ...]
    problems: tuple[Problem, ...]
    searched: tuple[str, ...]
    mirror: Path | None = None

    @property
    def may_be_patched(self) -> bool:
        """Tell whether any root has a store, or any file that recipes patch mentions rlpatch or cannot be read."""
        return bool(self.stores) or any(
            _may_be_marked(within(self.mirror, target.root) / file)
            for target in self.targets
            for file in target.project.files
        )


def _may_be_marked(file: Path) -> bool:
    """Tell whether a regular file mentions rlpatch; True if it cannot be read."""
    try:
        return file.is_file() and b"rlpatch" in file.read_bytes()
    except OSError:
        return True


def within(mirror: Path | None, path: Path) -> Path:
    """Return `path`, or its copy below `mirror` for a path on another machine."""
    return mirror / path.relative_to(path.anchor) if mirror else path
