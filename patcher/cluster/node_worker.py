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

from patcher.changes.change import Edit, Record
from patcher.cluster.node_group import NodeStatus, NodeSurvey, NodeTarget, PendingTransaction
from patcher.commands.finding import LaunchOptions, SearchOptions
from patcher.messages.errors import Kind, Problem, failed
from patcher.messages.notes import Note
from patcher.store import STORE
from patcher.store import transaction as store
from patcher.store.filesystem.files import behind, digest
from patcher.store.filesystem.lock import silent
from patcher.store.folder import STATE, StoreFolder
from patcher.store.transaction import Recovered, TransactionMembership
from patcher.targets.target import Target

if TYPE_CHECKING:
    from patcher.commands.where import Where
    from patcher.messages.report import CommandResult, StepResult
    from patcher.processes import Processes, RunningProcess
    from patcher.targets.applied import PatchPayload


class NodeWorker:
    """The methods that a `patcher.cluster.node_group.NodeGroup` calls on one node.

    ``search`` is where it looks for targets, ``origin`` what the user typed for that, ``wait`` how many seconds it
    waits for a lock.
    """

    def __init__(self, search: SearchOptions, origin: tuple[str, ...] = (), wait: float = 20) -> None:
        self._options = replace(search, origin=origin)
        self._wait = wait
        self._locks = contextlib.ExitStack()

    @cached_property
    def _search(self) -> SearchOptions:
        """Where it looks. The interpreter is run once for what it imports: that takes longer than all else here."""
        return self._options.with_environment()

    @property
    def _here(self) -> Where:
        from patcher.commands.where import Where

        return Where(self._search, silent)

    def ping(self) -> str:
        """The name of the host."""
        return os.uname().nodename

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
        report = self._here.status(words)
        targets, stores = self._search.discover()[:2]
        roots = tuple(dict.fromkeys([*(target.root for target in targets), *stores]))
        unfinished, patches = tuple(str(root) for root in roots if StoreFolder(root).unfinished()), report.data.patches
        known = [engines[target.project.name] for target in targets]
        report.data = NodeStatus(
            self.ping(),
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
        return self._here.check(words, LaunchOptions(os.environ))

    def guard(self, word: str, profiler: str, force: bool) -> StepResult:
        """The same for the target of ``word``, whose ``profiler`` is set up, as `apply` wants it."""
        upstream, target = self._search.find(word, "apply")
        return self._here.guard(self._search, upstream, target, profiler, LaunchOptions(os.environ), force=force)

    def preflight(self, edits: Sequence[Edit]) -> tuple[Note, ...]:
        """See the store."""
        return store.preflight(edits)

    def elect(self, transaction: str, names: Mapping[str, str]) -> dict[str, str]:
        """Root → the participant that works on it: the one that ``names`` has for it, or another node's."""
        return {root: StoreFolder(Path(root)).elect(transaction, name) for root, name in names.items()}

    def prepare(
        self, edits: Sequence[Edit], transaction: str, participants: tuple[str, ...], names: Mapping[str, str]
    ) -> tuple[tuple[Note, ...], tuple[Recovered, ...]]:
        """See the store; the locks stay with this process until the transaction ends, so others wait for it."""
        store.preflight(edits)
        self._locks.enter_context(store.locked(list(map(Path, names)), wait=self._wait))
        real = {Path(os.path.realpath(root)): name for root, name in names.items()}
        outcome = store.prepare(edits, TransactionMembership(transaction, participants, real))
        return outcome.notes, outcome.recovered

    def commit(self, roots: Sequence[str], transaction: str) -> None:
        """See the store."""
        store.commit_prepared(list(map(Path, roots)), transaction, wait=self._wait)

    def finish(self, roots: Sequence[str], transaction: str, ended: Collection[str] = ()) -> list[Recovered]:
        """See the store; the locks go with the end."""
        with self._locks:
            return store.finish(list(map(Path, roots)), transaction, ended, wait=self._wait)

    def abort(self, roots: Sequence[str], transaction: str) -> list[Recovered]:
        """See the store; a root that another run holds meanwhile is left to that one."""
        prepared = {one.root for one in _pending(map(Path, roots)) if one.transaction == transaction}
        with self._locks:
            ended = store.abort(list(map(Path, prepared)), transaction, wait=self._wait) if prepared else []
        for root in map(Path, set(roots) - prepared):
            store.withdraw(root, transaction)
        return ended

    def pending(self) -> tuple[PendingTransaction, ...]:
        """The transactions that have not ended in any root."""
        return _pending(self._search.discover().stores)

    def visit(self, roots: Sequence[str]) -> dict[str, PendingTransaction | None]:
        """The same for roots that others name, found here or not: root → its part, None where it has none.

        What is not there, or lies behind a link, is left out: of that nothing is known.
        """
        found = {os.path.realpath(store) for store in self._search.discover().stores}
        known = [root for root in roots if os.path.realpath(root) in found or _plain_folder(root)]
        return {root: next(iter(_pending([Path(root)])), None) for root in known}

    def recover(self) -> list[Recovered]:
        """End what this machine began by itself, and remove what was left before a transaction counted."""
        journals = {root: StoreFolder(root).journal() for root in self._search.discover().stores}
        ours = [root for root, one in journals.items() if one is None or one.participants[0].startswith("/")]
        return store.recover(ours, wait=self._wait)

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


def _pending(roots: Iterable[Path]) -> tuple[PendingTransaction, ...]:
    journals = {root: StoreFolder(root).journal() for root in roots}
    return tuple(
        PendingTransaction(str(root), *one[:3], one.committed, one.hint) for root, one in journals.items() if one
    )


def _digests(root: Path, files: Iterable[str]) -> dict[str, str]:
    """The path of each of the files that is there, and its digest."""
    found = {}
    for path in (root / file for file in files):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            found[str(path)] = digest(behind(path))
    return found


def _plain_folder(path: str) -> bool:
    """Whether the folder is there, and no link leads to it."""
    return os.path.realpath(path) == path and os.path.isdir(path)  # noqa: PTH112  (False for what cannot be a path)
