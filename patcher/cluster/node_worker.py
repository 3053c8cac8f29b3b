"""Methods that the driver calls on a node: they read and write its own machine, with the store of every command."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patcher.changes.change import Change, Edit, Record
from patcher.cluster.node_group import NodeEdit, NodeStatus, NodeSurvey, NodeTarget
from patcher.commands.finding import SearchOptions
from patcher.messages import COMMA, Kind, Note, Problem, Text, joined, problem_of
from patcher.store import STORE
from patcher.store import transaction as store
from patcher.store.filesystem.files import digest, read_resolved
from patcher.store.folder import STATE, StoreFolder
from patcher.store.transaction import Outcome, Recovered
from patcher.targets.target import Target

if TYPE_CHECKING:
    from patcher.commands.applied import PatchPayload
    from patcher.messages.report import CommandResult, StepResult
    from patcher.processes import Processes, RunningProcess


class NodeWorker:
    """Methods that a `patcher.cluster.node_group.NodeGroup` calls on a node; `wait` is the limit for a lock in s."""

    def __init__(self, search: SearchOptions, origin: tuple[str, ...] = (), wait: float = 20) -> None:
        self._search = search.replace(origin=origin)
        self._wait = wait

    def survey(self, words: Sequence[str], command: str, packages: Mapping[str, Collection[str]]) -> NodeSurvey:
        """Return the targets and patches of this node, and for each of `words` its target or the Problem of finding it.

        `packages` maps a project to the packages to look for in its environment.
        """
        requested = {word: self._find_requested(word, command, packages) for word in words}
        discovery = self._search.discover()
        discovered = tuple(self._described(target, packages) for target in discovery.targets)
        survey = NodeSurvey(requested, discovered, discovery.stores, (), discovery.searched, {}, {}, ())
        roots = tuple(dict.fromkeys([*(target.root for target, _ in survey.targets), *discovery.stores]))
        files: dict[str, str] = {}
        records: dict[str, tuple[Record, ...]] = {}
        for target, _ in survey.targets:
            # What planning reads: the modules that recipes name, and what tells of the released ones.
            beside = (f"{target.project.package}/__init__.py", f"{target.version_from}/RECORD")
            files |= _digests(target.root, (*target.project.files, *beside))
        for root in roots:
            if state := _digests(root, [f"{STORE}/{STATE}"]):
                records[str(root)] = StoreFolder(root).records()
                patched = {file for record in records[str(root)] for file in record.files}
                files |= state | _digests(root, patched)
        unfinished = tuple(root for root in roots if StoreFolder(root).unfinished())
        return survey._replace(roots=roots, files=files, records=records, unfinished=unfinished)

    def contents(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Return the bytes of each path. Raises OSError."""
        return {path: read_resolved(Path(path)) for path in paths}

    def timeline(self, folder: str, have: Mapping[str, int]) -> dict[str, bytes]:
        """Return by name the timeline files below `folder` that have more bytes than `have` gives for them."""
        paths = {path.name: path for path in Path(folder, "timeline").glob("[!.]*.jsonl.gz*") if path.is_file()}
        return {name: read_resolved(path) for name, path in paths.items() if path.stat().st_size > have.get(name, 0)}

    def status(self, words: Sequence[str], engines: Mapping[str, Processes]) -> CommandResult:
        """Report the patches of this node for the targets `words` (none: all), with a `NodeStatus` as data."""
        from patcher.commands.patching import status

        report = status.status(words, self._search)
        targets, stores = self._search.discover()[:2]
        roots = tuple(dict.fromkeys([*(target.root for target in targets), *stores]))
        unfinished, patches = tuple(str(root) for root in roots if StoreFolder(root).unfinished()), report.data.patches
        processes = [engines[target.project.name] for target in targets]
        packages = [f"{target.root}/{target.project.package}" for target in targets]
        report.data = NodeStatus(
            os.uname().nodename,
            "interrupted" if unfinished else _state(patches, targets),
            {target.project.name: target.version for target in targets},
            tuple(sorted({str(target.root) for target in targets})),
            patches,
            unfinished,
            tuple(process.line for process in self.running(processes, packages)),
            shutil.disk_usage(roots[0]).free if roots else None,
        )
        return report

    def check(self, words: Sequence[str]) -> CommandResult:
        """Report other profilers that the environment or the files of the targets `words` (none: all) switch on."""
        from patcher.commands.guarding import check
        from patcher.guards.result import Launch

        return check(words, self._search, Launch(environ=os.environ))

    def guard(self, word: str, profiler: str, force: bool, recorder: str) -> StepResult:
        """Return a problem or warning for each other profiler that is on for the target `word`; see `guarding`."""
        from patcher.commands.guarding import guard
        from patcher.guards.result import Launch

        upstream, target = self._search.find(word, "apply")
        launch = Launch(environ=os.environ)
        return guard(upstream, target.version, launch, force=force, target=target, profiler=profiler, recorder=recorder)

    def preflight(self, edits: Sequence[Edit]) -> tuple[Note, ...]:
        """Check edits as the store does before writing, and return its notes. Raises Problem."""
        return store.preflight(edits)

    def mark(self, run: str, node: str, roots: Sequence[str]) -> dict[str, str]:
        """Put a marker into each root's store unless it has one from `run`; return the marker there, as NODE:ROOT."""
        return {root: StoreFolder(Path(root)).mark(run, f"{node}:{root}") for root in roots}

    def unmark(self, run: str, roots: Sequence[str]) -> None:
        """Remove the markers of `run` from the stores of `roots`."""
        for root in roots:
            store.remove_marker(Path(root), run)

    def commit(self, edits: Sequence[Edit]) -> Outcome:
        """Commit all of `edits` or none. Raises Problem as the store does."""
        return store.commit(edits, wait=self._wait)

    def undo(self, edits: Sequence[NodeEdit]) -> None:
        """Restore the roots to their state before `edits`, done or not. Raises Problem as the store does."""
        store.recover([edit.root for edit, _ in edits], wait=self._wait)
        store.commit([_inverse_edit(edit, records) for edit, records in edits], wait=self._wait)

    def recover(self) -> list[Recovered]:
        """Complete or roll back the interrupted commands of all roots on this node."""
        return store.recover(self._search.discover().stores, wait=self._wait)

    def verify(self, files: Mapping[str, str]) -> list[str]:
        """Return the paths in `files` (path to digest) that have another digest or are missing."""
        present = _digests(Path("/"), files)
        return [path for path, expected in files.items() if present.get(path) != expected]

    def running(self, engines: Sequence[Processes], packages: Sequence[str]) -> tuple[RunningProcess, ...]:
        """Return the processes of this node that match `engines` or have loaded code from the folders `packages`."""
        from patcher import processes

        return processes.running(engines, map(Path, packages))

    def _find_requested(self, word: str, command: str, packages: Mapping[str, Collection[str]]) -> NodeTarget | Problem:
        try:
            return self._described(self._search.find_target(word, command), packages)
        except Problem as problem:
            return problem

    def _described(self, target: Target, packages: Mapping[str, Collection[str]]) -> NodeTarget:
        """Return the target, without import paths (they mean nothing on the driver), and the packages beside it."""
        beside = tuple(package for package in packages.get(target.project.name, ()) if target.beside(package))
        if self._search.python and "--python" not in self._search.words:
            target = target._replace(found_by=Text("the Python of Ray's workers, {python}", self._search.python))
        return NodeTarget(target._replace(search=(), prefix=""), beside)


def start(search: Mapping[str, Any], typed: Sequence[str]) -> NodeWorker:
    """Return the worker for the `search` that `patcher.cluster.rays` sends; `typed` is the whole command line."""
    path = tuple(map(Path, search["path"]))
    # What a clean interpreter of the workers' environment would import, without what Ray has put on this path.
    python = search["python"] or (None if path else sys.executable)
    return NodeWorker(SearchOptions(path=path, python=python, typed=tuple(typed[1:])), search["origin"])


def answer(worker: NodeWorker, method: str, arguments: Sequence[Any]) -> tuple[object, Problem | None]:
    """Call a method of the worker with `arguments`; return (its value, None), or (None, problem) for any exception."""
    called: Callable[..., object] = getattr(worker, method)
    try:
        return called(*arguments), None
    except Problem as problem:
        return None, problem.replace()
    except OSError as error:
        return None, problem_of(error)
    except Exception as error:
        cause, hint = f"{type(error).__name__}: {error}", Text("please report this as a bug of rlpatch")
        return None, Problem(Kind.UNEXPECTED, cause, sys.executable, hint)


def _state(patches: Sequence[PatchPayload], targets: Sequence[Target]) -> str:
    """Return the state of a node for a table: no target, as released, patched, or the states of changed files."""
    if not patches:
        return Text("as released") if targets else Text("no target installed")
    states = dict.fromkeys(file.state for patch in patches for file in patch.files)
    if list(states) == ["intact"]:
        return Text("patched")
    return joined(COMMA, (state for state in states if state != "intact"))


def _inverse_edit(edit: Edit, records: tuple[Record, ...]) -> Edit:
    """Return the edit that undoes `edit`, and replaces the records of patches by those from before it."""
    changes = tuple(
        Change(change.path, change.after, change.before, change.pristine)
        for change in edit.changes
        if read_resolved(edit.root / change.path) != change.before
    )
    present = tuple(record.patch for record in StoreFolder(edit.root).records())
    return Edit(edit.root, changes, add=records, remove=present)


def _digests(root: Path, files: Iterable[str]) -> dict[str, str]:
    """Return the sha256 of each of `files` below `root`, by absolute path; missing files and folders are left out."""
    digests = {}
    for path in (root / file for file in files):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            digests[str(path)] = digest(read_resolved(path))
    return digests
