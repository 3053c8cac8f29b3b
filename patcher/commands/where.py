"""The machines that a command works on: this one, or the nodes of a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from patcher import processes
from patcher.changes.change import Edit
from patcher.commands import elsewhere
from patcher.commands.finding import Search, SearchOptions
from patcher.digests import sha256
from patcher.guards.result import Launch
from patcher.messages import StepResult
from patcher.recipe import Upstream
from patcher.store import outcomes
from patcher.store import transaction as store
from patcher.store.filesystem import files
from patcher.store.filesystem.opened import opened
from patcher.store.filesystem.rights import PathState
from patcher.targets.target import Target

Work = Sequence[tuple[Search, Edit]]
"""Edits, each with the search that has found its root."""
PatchedTargets = Sequence[tuple[Search, Upstream, Path]]
"""Searches with a project that was changed and its root."""


class Committed(NamedTuple):
    """Result of a change: the report, and what was done on each cluster node (None on this machine)."""

    step: StepResult
    nodes: Mapping[str, Mapping[str, object]] | None = None


class NodeCommands(Protocol):
    """Cluster nodes as the commands need them; see `patcher.cluster.nodes.Nodes`."""

    def searches(self, words: Sequence[str], command: str, *, writes: bool) -> tuple[Sequence[Search], StepResult]:
        """Return a search for each kind of installation, and a report; see `searches` of this module."""

    def guard(
        self, search: Search, upstream: Upstream, target: Target, profiler: str, launch: Launch, *, force: bool,
        recorder: str,
    ) -> StepResult:  # fmt: skip
        """Report other profilers on the nodes of `search` for `target`; see `patcher.commands.guarding.guard`."""

    def carry_out(self, work: Work, verb: str, *, dry_run: bool) -> Committed:
        """Commit the edits of `work` on all nodes or on none; with `dry_run` only check them."""

    def running(self, patched: PatchedTargets) -> Sequence[processes.RunningProcess]:
        """Return the processes on the nodes that may still run the code from before a change."""


class Where(NamedTuple):
    """Machines of a command: cluster `nodes`, or this machine if None; `on_wait` gets a line for each awaited lock."""

    search: SearchOptions
    on_wait: store.OnWait
    nodes: NodeCommands | None = None


def searches(where: Where, words: Sequence[str], command: str, *, writes: bool) -> tuple[Sequence[Search], StepResult]:
    """Return a search for this machine, or one for each group of identical nodes, and the report of a cluster."""
    if where.nodes:
        return where.nodes.searches(words, command, writes=writes)
    return (where.search,), StepResult()


def carry_out(where: Where, work: Work, verb: str, *, dry_run: bool) -> Committed:
    """Write all edits of `work` or none, and report each file after a `verb` such as "patched".

    After success, Ctrl-C is ignored. With `dry_run` only check whether they can be written. Raises Problem if a file is
    not as planned, or the edits fail.
    """
    if where.nodes:
        return where.nodes.carry_out(work, verb, dry_run=dry_run)
    edits = [edit for _, edit in work]
    if dry_run:
        return Committed(StepResult.noted(store.preflight(edits)))
    remember(edit.root for edit in edits if edit.add)  # before: it may be killed behind
    return Committed(outcomes.commit(edits, verb, where.on_wait))


def remember(roots: Iterable[Path]) -> None:
    """Store the path of each root, links resolved, in a file of its own for `status --everywhere`; ignore failures."""
    with suppress(OSError, RuntimeError):  # RuntimeError: there is no home
        path = elsewhere.folder()
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        for folder in (path.parent, path):
            with opened(folder.parent) as above, suppress(FileExistsError):
                os.mkdir(folder.name, dir_fd=above.descriptor)
        with opened(path) as place:
            for root in map(os.fsencode, map(os.path.realpath, roots)):
                with suppress(OSError):  # the others are kept
                    files.place(place, sha256(root).hexdigest()[:16], PathState("", None, 0o600, -1, -1), root)


def running(where: Where, patched: PatchedTargets) -> Sequence[processes.RunningProcess]:
    """Return the processes that may still run the code from before a change, here or on the nodes of `where`."""
    if where.nodes:
        return where.nodes.running(patched)
    packages: Iterable[Path] = dict.fromkeys(root / upstream.project.package for _, upstream, root in patched)
    return processes.running(dict.fromkeys(upstream.processes for _, upstream, _ in patched), packages)
