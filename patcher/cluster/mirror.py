"""What planning reads of the nodes' files, copied to the driver: one folder for each kind of installation.

LibCST, and all that knows recipes, runs in the driver alone. Targets have the paths of the nodes, and read below the
folder of their kind.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from patcher.cluster.node_group import NodeSurvey, NodeTarget
from patcher.commands.finding import SearchOptions
from patcher.messages.command_line import CommandLine
from patcher.messages.errors import Kind, Problem
from patcher.recipe import Upstream
from patcher.store import STORE
from patcher.store.folder import STATE
from patcher.targets.target import Discovery, Target, within
from patches import projects


class Mirror:
    """A search in the installation that some nodes have in common; see `patcher.commands.finding.Search`."""

    def __init__(
        self, folder: Path, surveys: Mapping[str, NodeSurvey], typed: SearchOptions, words: tuple[str, ...]
    ) -> None:
        self.folder, self.nodes, self.words = folder, tuple(surveys), words
        self._survey = surveys[self.nodes[0]]
        self._roots = {node: survey.roots for node, survey in surveys.items()}
        self._typed = typed

    def place(self, root: Path, node: str) -> Path:
        """The path on ``node`` of a root, which is that of the first node."""
        return self._roots[node][self._survey.roots.index(root)]

    def again(self, word: str, instead: str) -> CommandLine:
        """See `Search`."""
        return self._typed.again(word, instead)

    def find(self, word: str, command: str) -> tuple[Upstream, Target]:  # noqa: ARG002
        """See `Search`."""
        found = self._survey.requested[word]
        if isinstance(found, NodeTarget):
            return projects.upstream(found.target.project.name), self._mirrored(found)
        if found.kind is Kind.NO_TARGET:
            raise found.replace(hint=f"--nodes has-target leaves such nodes out; or {found.hint}")
        raise found.replace()

    def discover(self) -> Discovery:
        """See `Search`."""
        survey = self._survey
        return Discovery(tuple(map(self._mirrored, survey.discovered)), survey.stores, (), survey.searched, self.folder)

    def fill(self, contents: Callable[[str, Iterable[str]], Mapping[str, bytes]]) -> None:
        """Write the files of the first node, which ``contents`` fetches, and the folders that only have to be there."""
        for one in self._survey.targets:
            for package in ("", *one.packages):
                (self._inside(one.target.root) / package).mkdir(parents=True, exist_ok=True)
        for root in self._survey.stores:
            self._inside(root).mkdir(parents=True, exist_ok=True)
        for path, content in contents(self.nodes[0], self._survey.files).items():
            place = self._inside(Path(path))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        for store in (self._inside(root) / STORE for root in self._survey.stores):
            if store.is_dir():
                store.chmod(0o700)

    def _inside(self, path: Path) -> Path:
        return within(self.folder, path)

    def _mirrored(self, found: NodeTarget) -> Target:
        return found.target._replace(mirror=self.folder)


class Mirrors:
    """All mirrors of a command; they go with it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rlpatch-nodes-"))
        self._count = 0

    def make(
        self,
        surveys: Mapping[str, NodeSurvey],
        contents: Callable[[str, Iterable[str]], Mapping[str, bytes]],
        typed: SearchOptions,
        words: tuple[str, ...],
    ) -> list[Mirror]:
        """A mirror for each kind among ``surveys``, by its node; ``contents`` fetches files of one."""
        kinds: dict[str, dict[str, NodeSurvey]] = {}
        for node, survey in surveys.items():
            kinds.setdefault(_kind(survey), {})[node] = survey
        made = []
        for alike in kinds.values():
            made.append(Mirror(self._folder / str(self._count), alike, typed, words))
            made[-1].fill(contents)
            self._count += 1
        return made

    def close(self) -> None:
        """Remove them."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _kind(survey: NodeSurvey) -> str:
    """What nodes must have in common to be planned for as one: not where it lies, and of a store not since when."""
    requested = {word: str(found) if isinstance(found, Problem) else found for word, found in survey.requested.items()}
    files = sorted(item for item in survey.files.items() if not item[0].endswith(f"/{STORE}/{STATE}"))
    records = {root: [one._replace(applied_at="") for one in applied] for root, applied in survey.records.items()}
    kind = repr((requested, survey.discovered, [str(root) for root in survey.stores], files, records))
    for number, root in enumerate(survey.roots):
        kind = kind.replace(str(root), f"<root {number}>")
    return kind
