"""Copies of the nodes' files that planning reads: one folder on the driver for each kind of installation.

LibCST, and all that knows recipes, runs in the driver alone. Targets have the paths of the nodes, and read below the
folder of their kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from patcher.cluster.node_group import NodeSurvey, NodeTarget
from patcher.commands.finding import SearchOptions
from patcher.messages import CommandLine, Kind, Problem, Text
from patcher.recipe import Upstream
from patcher.store import STORE
from patcher.store.folder import STATE
from patcher.targets.target import Discovery, Target, within
from patches import projects


@dataclass(frozen=True, eq=False)
class Mirror:
    """Search in a local copy of the installation that several nodes share; see `patcher.commands.finding.Search`.

    `folder` holds the copy, `surveys` maps each node to its survey, `words` are the options to type again.
    """

    folder: Path
    surveys: Mapping[str, NodeSurvey]
    typed: SearchOptions
    words: tuple[str, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """See `Search`."""
        return tuple(self.surveys)

    @property
    def _survey(self) -> NodeSurvey:
        return self.surveys[self.nodes[0]]

    def place(self, root: Path, node: str) -> Path:
        """Return the path on `node` that corresponds to `root`, a path on the first node."""
        return self.surveys[node].roots[self._survey.roots.index(root)]

    def again(self, instead: Mapping[str, Sequence[str]]) -> CommandLine:
        """See `Search`."""
        return self.typed.again(instead)

    def find(self, word: str, command: str) -> tuple[Upstream, Target]:  # noqa: ARG002
        """Return the project and the copy of the target that the typed `word` names, or raise the node's Problem."""
        answer = self._survey.requested[word]
        if isinstance(answer, NodeTarget):
            return projects.upstream(answer.target.project.name), self._mirrored(answer)
        if answer.kind is Kind.NO_TARGET:
            hint = Text(
                "use --nodes has-target to leave out the nodes that lack the target, or {alternative}", answer.hint
            )
            answer = answer.replace(hint=hint)
        raise answer

    def discover(self) -> Discovery:
        """See `Search`."""
        survey = self._survey
        return Discovery(tuple(map(self._mirrored, survey.discovered)), survey.stores, (), survey.searched, self.folder)

    @property
    def files(self) -> tuple[str, ...]:
        """Paths on the first node of the files to copy for planning."""
        return tuple(self._survey.files)

    def fill(self, contents: Mapping[str, bytes]) -> None:
        """Create the folders of all targets and stores in the local copy, and write `contents`, by path, into it.

        Planning needs the folders even if they are empty, and trusts only private stores (mode 0700).
        """
        packages = [target.root / package for target, beside in self._survey.targets for package in ("", *beside)]
        for folder in (*packages, *self._survey.stores):
            within(self.folder, folder).mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():
            place = within(self.folder, Path(path))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        for store in (within(self.folder, root) / STORE for root in self._survey.stores):
            if store.is_dir():
                store.chmod(0o700)

    def _mirrored(self, node_target: NodeTarget) -> Target:
        return node_target.target._replace(mirror=self.folder)


def group_identical(surveys: Mapping[str, NodeSurvey]) -> list[dict[str, NodeSurvey]]:
    """Return groups of nodes with identical installations, each as a map from node to survey: one plan serves it."""
    kinds: dict[str, dict[str, NodeSurvey]] = {}
    for node, survey in surveys.items():
        kinds.setdefault(_install_key(survey), {})[node] = survey
    return list(kinds.values())


def _install_key(survey: NodeSurvey) -> str:
    """Return a text that is equal for nodes whose installs are identical; it ignores paths and apply times."""
    requested = {
        word: str(answer) if isinstance(answer, Problem) else answer for word, answer in survey.requested.items()
    }
    files = sorted(item for item in survey.files.items() if not item[0].endswith(f"/{STORE}/{STATE}"))
    records = {root: [record._replace(applied_at="") for record in below] for root, below in survey.records.items()}
    kind = repr((requested, survey.discovered, [str(root) for root in survey.stores], files, records))
    for number, root in enumerate(survey.roots):
        kind = kind.replace(str(root), f"<root {number}>")
    return kind
