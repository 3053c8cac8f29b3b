"""The machines that a command works on: this one, or the nodes of a cluster."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from patcher import processes
from patcher.changes.change import Edit
from patcher.commands import elsewhere
from patcher.commands.finding import Search, SearchOptions
from patcher.guards.result import Launch
from patcher.messages import StepResult
from patcher.recipe import Upstream
from patcher.store import outcomes
from patcher.store import transaction as store
from patcher.store.filesystem import files
from patcher.store.filesystem.opened import opened
from patcher.store.filesystem.rights import Node
from patcher.targets.target import Target

Work = Sequence[tuple[Search, Edit]]
"""Edits, each with the search that has found its root."""
PatchedTargets = Sequence[tuple[Search, Upstream, Path]]
"""Where a project was changed: the search that has found it, the project, and its root."""


class Committed(NamedTuple):
    """The result of a change: ``nodes`` has what was done on each node of a cluster, None on this machine."""

    step: StepResult
    nodes: Mapping[str, Mapping[str, object]] | None = None


class NodeCommands(Protocol):
    """The nodes of a cluster as the commands need them; see `patcher.cluster.nodes.Nodes`."""

    def searches(self, words: Sequence[str], command: str, *, writes: bool) -> tuple[Sequence[Search], StepResult]:
        """Search in each kind of installation; before a command that ``writes``, end interrupted runs."""

    def guard(
        self, search: Search, upstream: Upstream, target: Target, profiler: str, launch: Launch, *, force: bool
    ) -> StepResult:
        """Look for other profilers on the nodes of ``search``."""

    def carry_out(self, work: Work, verb: str, *, dry_run: bool) -> Committed:
        """Do ``work`` on all nodes or on none; with ``dry_run`` only check it."""

    def running(self, patched: PatchedTargets) -> Sequence[processes.RunningProcess]:
        """Return the processes that may hold the code as it was."""


@dataclass(frozen=True)
class Where:
    """``nodes`` of a cluster, or this machine; ``on_wait`` gets a line for each lock that is waited for here."""

    search: SearchOptions
    on_wait: store.OnWait
    nodes: NodeCommands | None = None


def searches(where: Where, words: Sequence[str], command: str, *, writes: bool) -> tuple[Sequence[Search], StepResult]:
    """Return a search for each kind of installation that has ``words``; what stops a node is a problem of the step."""
    if where.nodes:
        return where.nodes.searches(words, command, writes=writes)
    return (where.search,), StepResult()


def carry_out(where: Where, work: Work, verb: str, *, dry_run: bool) -> Committed:
    """Do all of ``work`` or nothing; ``verb`` says what was done to a file. With ``dry_run`` only check it.

    Raises Problem as the store does.
    """
    if where.nodes:
        return where.nodes.carry_out(work, verb, dry_run=dry_run)
    edits = [edit for _, edit in work]
    if dry_run:
        return Committed(StepResult.noted(store.preflight(edits)))
    remember(edit.root for edit in edits if edit.add)  # before: it may be killed behind
    return Committed(outcomes.commit(edits, verb, where.on_wait))


def remember(roots: Iterable[Path]) -> None:
    """Keep the names of ``roots`` that are patched, each in a file of its own: so two commands are in nobody's way."""
    with suppress(OSError, RuntimeError):  # RuntimeError: there is no home
        path = elsewhere.folder()
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        for folder in (path.parent, path):
            with opened(folder.parent) as above, suppress(FileExistsError):
                os.mkdir(folder.name, dir_fd=above.descriptor)
        with opened(path) as place:
            for root in map(os.fsencode, map(os.path.realpath, roots)):
                with suppress(OSError):  # the others are kept
                    files.place(place, hashlib.sha256(root).hexdigest()[:16], Node("", None, 0o600, -1, -1), root)


def running(where: Where, patched: PatchedTargets) -> Sequence[processes.RunningProcess]:
    """Return the processes that may hold the code as it was, of each project below its root."""
    if where.nodes:
        return where.nodes.running(patched)
    packages: Iterable[Path] = dict.fromkeys(root / upstream.project.package for _, upstream, root in patched)
    return processes.running(dict.fromkeys(upstream.processes for _, upstream, _ in patched), packages)
