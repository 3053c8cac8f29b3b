"""What a node does when it is called: it reads and writes its own machine, with the store that every command uses."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patcher.changes.change import Change, Edit, Record
from patcher.cluster.node_group import NodeEdit, NodeStatus, NodeSurvey, NodeTarget
from patcher.commands.finding import LaunchOptions, SearchOptions
from patcher.messages.errors import Kind, Problem, failed
from patcher.messages.notes import Note
from patcher.store import STORE
from patcher.store import transaction as store
from patcher.store.filesystem.files import behind, digest
from patcher.store.folder import STATE, StoreFolder
from patcher.store.transaction import Outcome, Recovered
from patcher.targets.target import Target

if TYPE_CHECKING:
    from patcher.commands.applied import PatchPayload
    from patcher.messages.report import CommandResult, StepResult
    from patcher.processes import Processes, RunningProcess


class NodeWorker:
    """The methods that a `patcher.cluster.node_group.NodeGroup` calls on one node.

    ``search`` is where it looks for targets, ``origin`` what the user typed for that, ``wait`` how many seconds it
    waits for a lock.
    """

    def __init__(self, search: SearchOptions, origin: tuple[str, ...] = (), wait: float = 20) -> None:
        self._options = replace(search, origin=origin)
        self._wait = wait

    @cached_property
    def _search(self) -> SearchOptions:
        """Where it looks. The interpreter is run once for what it imports: that takes longer than all else here."""
        return self._options.with_environment()

    def survey(self, words: Sequence[str], command: str, packages: Mapping[str, Collection[str]]) -> NodeSurvey:
        """What is here; nothing is written. ``packages`` are to be looked for beside a project, by its name.

        No recipe is imported for it: what they know of a project the driver sends.
        """
        requested = {word: self._requested(word, command, packages) for word in words}
        discovery = self._search.discover()
        discovered = tuple(self._described(target, packages) for target in discovery.targets)
        found = NodeSurvey(requested, discovered, discovery.stores, (), discovery.searched, {}, {}, ())
        roots = tuple(dict.fromkeys([*(one.target.root for one in found.targets), *discovery.stores]))
        files: dict[str, str] = {}
        records: dict[str, tuple[Record, ...]] = {}
        for target, _ in found.targets:
            # What planning reads: the modules that recipes name, and what tells of the released ones.
            beside = (f"{target.project.package}/__init__.py", f"{target.version_from}/RECORD")
            files |= _digests(target.root, (*target.project.files, *beside))
        for root in roots:
            if state := _digests(root, [f"{STORE}/{STATE}"]):
                records[str(root)] = StoreFolder(root).records()
                patched = {file for record in records[str(root)] for file in record.files}
                files |= state | _digests(root, patched)
        unfinished = tuple(root for root in roots if StoreFolder(root).unfinished())
        return found._replace(roots=roots, files=files, records=records, unfinished=unfinished)

    def contents(self, paths: Iterable[str]) -> dict[str, bytes]:
        """The bytes of the files."""
        return {path: behind(Path(path)) for path in paths}

    def timeline(self, folder: str, have: Mapping[str, int]) -> dict[str, bytes]:
        """The timeline's files below ``folder``, by their names, but for those of which there are as many bytes."""
        found = {path.name: path for path in Path(folder, "timeline").glob("[!.]*.jsonl.gz*") if path.is_file()}
        return {name: behind(path) for name, path in found.items() if path.stat().st_size > have.get(name, 0)}

    def status(self, words: Sequence[str], engines: Mapping[str, Processes]) -> CommandResult:
        """The report on what is patched, with a `NodeStatus`; ``engines`` has the processes of each project."""
        from patcher.commands.patching import status

        report = status.status(words, self._search)
        targets, stores = self._search.discover()[:2]
        roots = tuple(dict.fromkeys([*(target.root for target in targets), *stores]))
        unfinished, patches = tuple(str(root) for root in roots if StoreFolder(root).unfinished()), report.data.patches
        known = [engines[target.project.name] for target in targets]
        report.data = NodeStatus(
            os.uname().nodename,
            "interrupted" if unfinished else _state(patches, targets),
            {target.project.name: target.version for target in targets},
            tuple(sorted({str(target.root) for target in targets})),
            patches,
            unfinished,
            tuple(one.line for one in self.running(known, [f"{one.root}/{one.project.package}" for one in targets])),
            shutil.disk_usage(roots[0]).free if roots else None,
        )
        return report

    def check(self, words: Sequence[str]) -> CommandResult:
        """What the environment of this node, and what is installed here, says of other profilers."""
        from patcher.commands.guarding import check

        return check(words, self._search, LaunchOptions(os.environ))

    def guard(self, word: str, profiler: str, force: bool) -> StepResult:
        """The same for the target of ``word``, whose ``profiler`` is set up, as `apply` wants it."""
        from patcher.commands.guarding import guard

        upstream, target = self._search.find(word, "apply")
        launch = LaunchOptions(os.environ)
        return guard(upstream, target.version, launch, force=force, target=target, profiler=profiler)

    def preflight(self, edits: Sequence[Edit]) -> tuple[Note, ...]:
        """See the store."""
        return store.preflight(edits)

    def mark(self, run: str, node: str, roots: Sequence[str]) -> dict[str, str]:
        """Put a marker of ``run`` into the store of each root, and return whose stands there, NODE:ROOT."""
        return {root: StoreFolder(Path(root)).mark(run, f"{node}:{root}") for root in roots}

    def unmark(self, run: str, roots: Sequence[str]) -> None:
        """Remove the markers of ``run``."""
        for root in roots:
            store.take_marker(Path(root), run)

    def commit(self, edits: Sequence[Edit]) -> Outcome:
        """Do all of ``edits`` or nothing. Raises Problem as the store does."""
        return store.commit(edits, wait=self._wait)

    def undo(self, edits: Sequence[NodeEdit]) -> None:
        """Bring the roots back to before ``edits``, done or not. Raises Problem as the store does."""
        self._recover([edit.root for edit, _ in edits])
        store.commit([_inverse(edit, records) for edit, records in edits], wait=self._wait)

    def recover(self) -> list[Recovered]:
        """End the interrupted runs of all roots here."""
        return self._recover(self._search.discover().stores)

    def _recover(self, roots: Sequence[Path]) -> list[Recovered]:
        return store.recover(roots, wait=self._wait)

    def verify(self, files: Mapping[str, str]) -> list[str]:
        """Those of the files that have another digest, or are not there."""
        there = _digests(Path("/"), files)
        return [path for path, wanted in files.items() if there.get(path) != wanted]

    def running(self, known: Sequence[Processes], packages: Sequence[str]) -> tuple[RunningProcess, ...]:
        """See `patcher.processes`."""
        from patcher import processes

        return processes.running(known, map(Path, packages))

    def _requested(self, word: str, command: str, packages: Mapping[str, Collection[str]]) -> NodeTarget | Problem:
        try:
            return self._described(self._search.target(word, command), packages)
        except Problem as problem:
            return problem

    def _described(self, target: Target, packages: Mapping[str, Collection[str]]) -> NodeTarget:
        """The target without what only this machine can use: the folders along which it imports."""
        beside = tuple(package for package in packages.get(target.project.name, ()) if target.beside(package))
        if self._search.python and "--python" not in self._search.words:
            target = target._replace(found_by=f"the Python of Ray's workers, {self._search.python}")
        return NodeTarget(target._replace(search=(), prefix=""), beside)


def start(search: Mapping[str, Any], typed: Sequence[str]) -> NodeWorker:
    """The worker of this process, for the ``search`` of `patcher.cluster.rays` and the whole command line."""
    path = search["path"]
    # What a clean interpreter of the workers' environment would import, without what Ray has put on this path.
    python = search["python"] or (None if path else sys.executable)
    return NodeWorker(SearchOptions(path and Path(path), python, tuple(typed[1:])), search["origin"])


def answer(worker: NodeWorker, method: str, arguments: Sequence[Any]) -> tuple[object, Problem | None]:
    """The value that a method of the worker gives, or a problem; a failure that nobody expects is one, too."""
    called: Callable[..., object] = getattr(worker, method)
    try:
        return called(*arguments), None
    except Problem as problem:
        return None, problem.replace()
    except OSError as error:
        return None, failed(error)
    except Exception as error:
        cause, hint = f"{type(error).__name__}: {error}", "please report it"
        return None, Problem(Kind.UNEXPECTED, cause, sys.executable, hint)


def _state(patches: Sequence[PatchPayload], targets: Sequence[Target]) -> str:
    """One word for a node without an interrupted run."""
    if not patches:
        return "as released" if targets else "no target"
    states = dict.fromkeys(file.state for patch in patches for file in patch.files)
    return "patched" if list(states) == ["intact"] else ", ".join(state for state in states if state != "intact")


def _inverse(edit: Edit, records: tuple[Record, ...]) -> Edit:
    """Return what brings a root back to before ``edit``, when it had ``records``; nothing where it is so."""
    changes = tuple(
        Change(change.path, change.after, change.before, change.pristine)
        for change in edit.changes
        if behind(edit.root / change.path) != change.before
    )
    present = tuple(record.patch for record in StoreFolder(edit.root).records())
    return Edit(edit.root, changes, add=records, remove=present)


def _digests(root: Path, files: Iterable[str]) -> dict[str, str]:
    """The path of each of the files that is there, and its digest."""
    found = {}
    for path in (root / file for file in files):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            found[str(path)] = digest(behind(path))
    return found
