"""The values of discovery: a project that can be looked for, and one that is there."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Mapping, NamedTuple

from patcher.messages import Note, Problem
from patcher.targets import sources


class Project(NamedTuple):
    """An upstream project, declared by ``patches``; the engine knows none by name.

    ``name`` is what the user types, ``package`` what Python imports, ``distributions`` the names under which
    the same package is published, ``checkout`` where the package lies in a git checkout (``""``: at the top);
    ``version_files`` are text files below the root that hold just the version, and ``files`` those in which
    patches may stand, by any release. ``placeholders`` are versions that its metadata bears whatever the release,
    ``releases`` those that were published, as far as they are known, oldest first. What the package index has under the
    name of a project that is not ``on_index``, if anything, is something else.
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
    """A project that is there.

    ``version`` is as reported (``""`` if nothing says), ``root`` the real folder that holds the package,
    ``installed_as`` one of wheel, editable, checkout, unpacked; ``version_from`` and ``found_by`` say how that is
    known; ``search`` are the folders along which its environment imports, and ``prefix`` is where that lies, as far as
    they are known. Of a target on another machine, ``mirror`` is the folder here below which a copy of its files lies.
    ``ahead`` has the bytes of files for which there is a plan already, of another patch in the same command.
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
        """The folder in which the files below the root are read."""
        return within(self.mirror, self.root)

    def beside(self, package: str) -> bool:
        """Whether ``package`` lies in the same environment."""
        return any((folder / package).is_dir() for folder in (self.folder, *self.search))

    def exists(self, path: PurePosixPath) -> bool:
        """Whether the module ``path`` (relative to the root) is there, also in a form that `read` refuses."""
        return sources.there(self.folder / path)

    def read(self, path: PurePosixPath) -> bytes:
        """The bytes of the module ``path``, relative to the root.

        Raises: Problem(ENVIRONMENT) if Python would load something else than this file (an extension module,
        a package of the same name), or if it cannot be read; Problem(STRUCTURE) if there is no such module.
        """
        planned = self.ahead.get(path) if self.ahead else None
        return sources.read(self.folder / path) if planned is None else planned


class Discovery(NamedTuple):
    """Everything found: the targets, the roots that hold a ``.rlpatch`` (also of packages that are gone), the
    projects that are there but cannot be patched, and where was searched. ``mirror`` is as that of a `Target`.
    """

    targets: tuple[Target, ...]
    stores: tuple[Path, ...]
    problems: tuple[Problem, ...]
    searched: tuple[str, ...]
    mirror: Path | None = None

    @property
    def may_be_patched(self) -> bool:
        """Whether there is a store, or a file that something of rlpatch's stands in, or that cannot be read."""
        return bool(self.stores) or any(
            _may_be_marked(within(self.mirror, target.root) / file)
            for target in self.targets
            for file in target.project.files
        )


def _may_be_marked(file: Path) -> bool:
    try:
        return b"rlpatch" in file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def within(mirror: Path | None, path: Path) -> Path:
    """Return the path to read for ``path``: itself, or for one of another machine its copy below ``mirror``."""
    return mirror / path.relative_to(path.anchor) if mirror else path
