"""Contents of a bundle: for each release of a target the lines that go into its files.

A machine checks the digest of a file before it inserts the lines, and that of the result.
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
"""Name of the bundle in the archive, beside this module."""

Script = Tuple[Tuple[int, int, str], ...]
"""Entries: index of a line, how many lines are removed there, and the text that is inserted."""


class FilePlan(NamedTuple):
    """File of a release: digests of its bytes before and after, and the script of edits between them."""

    path: str
    before: str
    after: str
    script: Script

    def applied(self, pristine: bytes) -> bytes:
        """Return the patched bytes of the `pristine` file. Raises ValueError if their digest is not as planned."""
        old = lines.split(pristine.decode("utf-8", "surrogateescape"))
        new, position = [], 0
        for first, removed, text in self.script:
            new += [*old[position:first], text]
            position = first + removed
        content = "".join([*new, *old[position:]]).encode("utf-8", "surrogateescape")
        if digest(content) != self.after:
            raise ValueError(self.path)
        return content


class BundledPlan(NamedTuple):
    """Plan for a release of a target: patch, options as typed, and files.

    `summary` says what is recorded. `save_path` is where the traces go, "" if the framework decides.
    """

    patch: PatchId
    version: str
    options: tuple[str, ...]
    summary: str
    save_path: str
    files: tuple[FilePlan, ...]


class Bundle(NamedTuple):
    """Plans and their projects; `tool` is the version of rlpatch that made them."""

    tool: str
    projects: tuple[Project, ...]
    plans: tuple[BundledPlan, ...]


def plan_file(path: str, before: bytes, after: bytes) -> FilePlan:
    """Return the plan that turns `before` into `after` for the file `path`, as edits of whole lines."""
    old, new = (lines.split(data.decode("utf-8", "surrogateescape")) for data in (before, after))
    changes = difflib.SequenceMatcher(None, old, new).get_opcodes()
    script = tuple((i, j - i, "".join(new[k:m])) for tag, i, j, k, m in changes if tag != "equal")
    return FilePlan(path, digest(before), digest(after), script)


def text_of(bundle: Bundle) -> bytes:
    """Return the bundle as JSON bytes, without the projects' releases."""
    projects = [project._replace(releases=())._asdict() for project in bundle.projects]
    plans = [{**plan._asdict(), "files": [file._asdict() for file in plan.files]} for plan in bundle.plans]
    return json.dumps({"tool": bundle.tool, "projects": projects, "plans": plans}, indent=0).encode() + b"\n"


def read(content: bytes) -> Bundle:
    """Return the bundle in JSON written by `text_of` of the same release."""
    top = json.loads(content)
    return Bundle(top["tool"], tuple(map(_project, top["projects"])), tuple(map(_plan, top["plans"])))


def _project(fields: dict[str, Any]) -> Project:
    """Return the project with these fields from JSON, whose lists become tuples."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    return Project(**values)


def _plan(fields: dict[str, Any]) -> BundledPlan:
    files = tuple(FilePlan(**{**file, "script": tuple(map(tuple, file["script"]))}) for file in fields["files"])
    patch, options = PatchId(*fields["patch"]), tuple(fields["options"])
    return BundledPlan(**{**fields, "patch": patch, "options": options, "files": files})
