"""What planning reads of the nodes' files, copied to the driver: one folder for each kind of installation.

LibCST, and all that knows recipes, runs in the driver alone. Below the folder of a kind every path is that of the
nodes, so that what is said of a file names it as it is there (`Mirrors.told`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from patcher.cluster.values import Found, Survey
from patcher.commands.finding import SearchOptions
from patcher.errors import Kind, Problem
from patcher.notes import Said
from patcher.recipe import Upstream
from patcher.report import Detail, Report
from patcher.store import STORE
from patcher.store.folder import STATE
from patcher.targets.target import Discovery, Target
from patches import projects


class Mirror:
    """A search in the installation that some nodes have in common; see `patcher.commands.finding.Search`."""

    def __init__(self, folder: Path, surveys: Mapping[str, Survey], typed: SearchOptions, option: str) -> None:
        self.folder, self.nodes = folder, tuple(surveys)
        self.survey = surveys[self.nodes[0]]
        self._roots = {node: survey.roots for node, survey in surveys.items()}
        self._typed, self._option = typed, option

    @property
    def option(self) -> str:
        """As every search."""
        return self._option

    def alone(self, root: Path) -> str:  # noqa: ARG002
        """As every search."""
        return f"--nodes {shlex.quote(self.nodes[0])}"

    def place(self, root: Path, node: str) -> str:
        """The path on ``node`` of a root that lies here."""
        return self._roots[node][self.survey.roots.index(f"/{root.relative_to(self.folder)}")]

    def again(self, word: str, instead: str) -> str:
        """As every search."""
        return self._typed.again(word, instead)

    def find(self, word: str, command: str) -> tuple[Upstream, Target]:  # noqa: ARG002
        """As every search."""
        found = self.survey.asked[word]
        if isinstance(found, Problem):
            hint = found.hint
            if found.kind is Kind.NO_TARGET:
                hint = f"--nodes has-target leaves such nodes out; or {hint}"
            raise Problem(found.kind, found.cause, f"{self.folder}{found.where}", hint, found.notes)
        return projects.upstream(found.project), self._target(found)

    def discover(self) -> Discovery:
        """As every search."""
        stores = tuple(self._inside(root) for root in self.survey.stores)
        return Discovery(tuple(map(self._target, self.survey.found)), stores, (), self.survey.searched)

    def fill(self, contents: Mapping[str, bytes]) -> None:
        """Write the files of the nodes, and the folders that only have to be there."""
        found = self.survey.targets
        for one in found:
            for package in one.packages:
                (self._inside(one.root) / package).mkdir(parents=True, exist_ok=True)
        for root in (*self.survey.stores, *(one.root for one in found)):
            self._inside(root).mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():
            place = self._inside(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        for root in self.survey.stores:
            store = self._inside(root) / STORE
            if store.is_dir():
                store.chmod(0o700)

    def _inside(self, path: str) -> Path:
        return self.folder / path.lstrip("/")

    def _target(self, found: Found) -> Target:
        project = projects.upstream(found.project).project
        return Target(project, found.version, self._inside(found.root), *found[3:7])


class Mirrors:
    """All mirrors of a command; they go with it."""

    def __init__(self) -> None:
        # Of the folder's own name nothing may be known when texts are told: it must not lie below another link.
        self._folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="rlpatch-nodes-")))
        self.all: list[Mirror] = []

    def make(
        self,
        surveys: Mapping[str, Survey],
        contents: Callable[[str, Iterable[str]], Mapping[str, bytes]],
        typed: SearchOptions,
        option: str,
    ) -> list[Mirror]:
        """A mirror for each kind among ``surveys``, by its node; ``contents`` fetches files of one."""
        kinds: dict[str, list[str]] = {}
        for node, survey in surveys.items():
            kinds.setdefault(_kind(survey), []).append(node)
        made = []
        for nodes in kinds.values():
            name = f"{len(self.all):06}"  # none may be how another begins: they are replaced in texts
            mirror = Mirror(self._folder / name, {node: surveys[node] for node in nodes}, typed, option)
            mirror.fill(contents(nodes[0], mirror.survey.files))
            self.all.append(mirror)
            made.append(mirror)
        return made

    def of(self, root: Path) -> Mirror:
        """The mirror that ``root`` lies in."""
        return next(mirror for mirror in self.all if mirror.folder in root.parents)

    def told(self, report: Report) -> Report:
        """``report`` with the paths of the nodes, and in what failed with their names."""
        report.lines = [
            type(line)(self._plain(line)) if isinstance(line, Detail) else self._plain(line) for line in report.lines
        ]
        report.data = self._plain(report.data)
        report.done = self._plain(report.done)
        report.notes = [Said(*map(self._plain, note)) for note in report.notes]
        report.problems = [self.named(problem) for problem in report.problems]
        return report

    def named(self, problem: Problem) -> Problem:
        """``problem`` as the nodes have it."""
        where = problem.where
        for mirror in self.all:
            where = where.replace(str(mirror.folder), f"{', '.join(mirror.nodes)}: ")
        return Problem(
            problem.kind, self._plain(problem.cause), where, self._plain(problem.hint), self._plain(problem.notes)
        )

    def close(self) -> None:
        """Remove them."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, str):
            for mirror in self.all:
                value = value.replace(str(mirror.folder), "")
            return value
        if isinstance(value, dict):
            return {key: self._plain(one) for key, one in value.items()}
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(map(self._plain, value))
        return value


def _kind(survey: Survey) -> str:
    """What nodes must have in common to be planned for as one: not where it lies, and of a store not since when."""
    asked = {word: str(found) if isinstance(found, Problem) else found for word, found in survey.asked.items()}
    files = sorted(item for item in survey.files.items() if not item[0].endswith(f"/{STORE}/{STATE}"))
    records = {root: [one._replace(applied_at="") for one in applied] for root, applied in survey.records.items()}
    held = repr((asked, survey.found, survey.stores, files, records))
    for number, root in enumerate(survey.roots):
        held = held.replace(root, f"<root {number}>")
    return held
