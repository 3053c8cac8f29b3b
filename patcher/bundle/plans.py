"""What a bundle carries: for each release of a target the bytes that its files shall have, as what is inserted.

A node knows the file of before by its digest, and makes the one of after of it; the digest of that is checked, too.
"""

from __future__ import annotations

import difflib
import json
from typing import Any, NamedTuple, Tuple

from patcher.changes import lines
from patcher.changes.change import PatchId
from patcher.store.filesystem.files import digest
from patcher.targets.target import Project

NAME = "plans.json"
"""What the bundle is called in the archive, beside this module."""

Script = Tuple[Tuple[int, int, str], ...]
"""At which line of the file, how many lines go, and what comes there."""


class FilePlan(NamedTuple):
    """One file of a release: the digests of its bytes before and after, and what leads from the one to the other."""

    path: str
    before: str
    after: str
    script: Script

    def applied(self, pristine: bytes) -> bytes:
        """The bytes of after; ``pristine`` are those of before. Raises ValueError where they do not come out."""
        old = lines.split(pristine.decode("utf-8", "surrogateescape"))
        new, done = [], 0
        for first, gone, text in self.script:
            new += [*old[done:first], text]
            done = first + gone
        made = "".join([*new, *old[done:]]).encode("utf-8", "surrogateescape")
        if digest(made) != self.after:
            raise ValueError(self.path)
        return made


class BundledPlan(NamedTuple):
    """What a release of a target gets: the patch, its options as they would be typed, and its files.

    ``summary`` says what is recorded, ``save_path`` where the traces go ("" where the framework knows).
    """

    patch: PatchId
    version: str
    options: tuple[str, ...]
    summary: str
    save_path: str
    files: tuple[FilePlan, ...]


class Bundle(NamedTuple):
    """All that a bundle knows; ``tool`` is the rlpatch that planned it."""

    tool: str
    projects: tuple[Project, ...]
    plans: tuple[BundledPlan, ...]


def planned(path: str, before: bytes, after: bytes) -> FilePlan:
    """The plan that makes ``after`` of ``before``."""
    old, new = (lines.split(data.decode("utf-8", "surrogateescape")) for data in (before, after))
    changes = difflib.SequenceMatcher(None, old, new).get_opcodes()
    script = tuple((i, j - i, "".join(new[k:m])) for tag, i, j, k, m in changes if tag != "equal")
    return FilePlan(path, digest(before), digest(after), script)


def text_of(bundle: Bundle) -> bytes:
    """The bundle as it lies in the archive."""
    projects = [project._replace(releases=())._asdict() for project in bundle.projects]
    plans = [{**plan._asdict(), "files": [file._asdict() for file in plan.files]} for plan in bundle.plans]
    return json.dumps({"tool": bundle.tool, "projects": projects, "plans": plans}, indent=0).encode() + b"\n"


def read(content: bytes) -> Bundle:
    """The bundle from its text, which was written by `text_of` of the same release."""
    top = json.loads(content)
    projects = tuple(Project(**{name: _plain(value) for name, value in one.items()}) for one in top["projects"])
    return Bundle(top["tool"], projects, tuple(map(_plan, top["plans"])))


def _plan(one: dict[str, Any]) -> BundledPlan:
    files = tuple(FilePlan(**{**file, "script": tuple(map(tuple, file["script"]))}) for file in one["files"])
    return BundledPlan(**{**one, "patch": PatchId(*one["patch"]), "options": tuple(one["options"]), "files": files})


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
