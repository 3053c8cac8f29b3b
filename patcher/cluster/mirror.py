"""What planning reads of the nodes' files, copied to the driver: one folder for each kind of installation.

LibCST, and all that knows recipes, runs in the driver alone. Targets have the paths of the nodes, and read below the
folder of their kind.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from patcher.cluster.values import Found, Survey
from patcher.command_line import CommandLine
from patcher.commands.finding import SearchOptions
from patcher.errors import Kind, Problem
from patcher.recipe import Upstream
from patcher.store import STORE
from patcher.store.folder import STATE
from patcher.targets.target import Discovery, Target, within
from patches import projects


class Mirror:
    """A search in the installation that some nodes have in common; see `patcher.commands.finding.Search`."""

    def __init__(
        self, folder: Path, surveys: Mapping[str, Survey], typed: SearchOptions, words: tuple[str, ...]
    ) -> None:
        self.folder, self.nodes = folder, tuple(surveys)
        self.survey = surveys[self.nodes[0]]
        self._roots = {node: survey.roots for node, survey in surveys.items()}
        self._typed, self.words = typed, words

    def alone(self, root: Path) -> tuple[str, ...]:  # noqa: ARG002
        """As every search."""
        return ("--nodes", self.nodes[0])

    def place(self, root: Path, node: str) -> str:
        """The path on ``node`` of a root, which is that of the first node."""
        return self._roots[node][self.survey.roots.index(str(root))]

    def again(self, word: str, instead: str) -> CommandLine:
        """As every search."""
        return self._typed.again(word, instead)

    def find(self, word: str, command: str) -> tuple[Upstream, Target]:  # noqa: ARG002
        """As every search."""
        found = self.survey.asked[word]
        if isinstance(found, Problem):
            hint = found.hint
            if found.kind is Kind.NO_TARGET:
                hint = f"--nodes has-target leaves such nodes out; or {hint}"
            raise found.replace(hint=hint)
        return projects.upstream(found.project), self._target(found)

    def discover(self) -> Discovery:
        """As every search."""
        stores = tuple(map(Path, self.survey.stores))
        return Discovery(tuple(map(self._target, self.survey.found)), stores, (), self.survey.searched, self.folder)

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
        return within(self.folder, Path(path))

    def _target(self, found: Found) -> Target:
        project = projects.upstream(found.project).project
        return Target(project, found.version, Path(found.root), *found[3:7], mirror=self.folder)


class Mirrors:
    """All mirrors of a command; they go with it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rlpatch-nodes-"))
        self.all: list[Mirror] = []

    def make(
        self,
        surveys: Mapping[str, Survey],
        contents: Callable[[str, Iterable[str]], Mapping[str, bytes]],
        typed: SearchOptions,
        words: tuple[str, ...],
    ) -> list[Mirror]:
        """A mirror for each kind among ``surveys``, by its node; ``contents`` fetches files of one."""
        kinds: dict[str, list[str]] = {}
        for node, survey in surveys.items():
            kinds.setdefault(_kind(survey), []).append(node)
        made = []
        for nodes in kinds.values():
            mirror = Mirror(self._folder / str(len(self.all)), {node: surveys[node] for node in nodes}, typed, words)
            mirror.fill(contents(nodes[0], mirror.survey.files))
            self.all.append(mirror)
            made.append(mirror)
        return made

    def close(self) -> None:
        """Remove them."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _kind(survey: Survey) -> str:
    """What nodes must have in common to be planned for as one: not where it lies, and of a store not since when."""
    asked = {word: str(found) if isinstance(found, Problem) else found for word, found in survey.asked.items()}
    files = sorted(item for item in survey.files.items() if not item[0].endswith(f"/{STORE}/{STATE}"))
    records = {root: [one._replace(applied_at="") for one in applied] for root, applied in survey.records.items()}
    held = repr((asked, survey.found, survey.stores, files, records))
    for number, root in enumerate(survey.roots):
        held = held.replace(root, f"<root {number}>")
    return held
