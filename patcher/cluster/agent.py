"""What a node does when it is told to: it reads and writes its own machine, with the store that every command uses."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from patcher import processes
from patcher.change import Edit, Record
from patcher.cluster.values import Found, Standing, Survey
from patcher.commands.finding import LaunchOptions, SearchOptions
from patcher.commands.guarding import guard
from patcher.commands.here import Here
from patcher.errors import Kind, Problem, failed
from patcher.notes import Note
from patcher.report import Report
from patcher.store import STORE
from patcher.store import transaction as store
from patcher.store.filesystem.files import behind, digest
from patcher.store.filesystem.lock import silent
from patcher.store.folder import STATE
from patcher.store.transaction import Recovered, TransactionMembership
from patcher.targets.target import Discovery, Target


class Agent:
    """The commands of one node.

    ``search`` is where it looks for targets, ``origin`` what the user typed for that, ``wait`` how long it waits for a
    lock.
    """

    def __init__(self, search: SearchOptions, origin: tuple[str, ...] = (), wait: float = 20) -> None:
        self._given = search._replace(origin=origin)
        self._wait = wait
        self._held = contextlib.ExitStack()

    @cached_property
    def _search(self) -> SearchOptions:
        """Where it looks. What the interpreter imports it is asked once: an answer takes longer than all else here."""
        return self._given.asked()

    @property
    def _here(self) -> Here:
        return Here(self._search, silent)

    def ping(self) -> str:
        """Say that it lives."""
        return os.uname().nodename

    def survey(self, words: Sequence[str], command: str, packages: Mapping[str, Collection[str]]) -> Survey:
        """What is here; nothing is written. ``packages`` are to be looked for beside a project, by its name.

        No recipe is imported for it: what they know of a project the driver sends.
        """
        asked: dict[str, Found | Problem] = {}
        targets: dict[tuple[str, Path], Target] = {}
        for word in words:
            try:
                target = self._search.target(word, command)
            except Problem as problem:
                asked[word] = problem
            else:
                asked[word] = self._found(target, packages)
                targets[target.project.name, target.root] = target
        discovered = self._search.discover()
        for target in discovered.targets:
            targets.setdefault((target.project.name, target.root), target)
        roots = dict.fromkeys([*(target.root for target in targets.values()), *discovered.stores])
        files: dict[str, str] = {}
        records: dict[str, tuple[Record, ...]] = {}
        for target in targets.values():
            files |= _digests(target)
        for root in roots:
            if (state := _bytes(root / STORE / STATE)) is not None:
                files[str(root / STORE / STATE)] = digest(state)
                records[str(root)] = store.records(root)
                named = {file for record in records[str(root)] for file in record.files}
                files |= {str(root / file): digest(data) for file in named if (data := _bytes(root / file)) is not None}
        return Survey(
            asked=asked,
            found=tuple(self._found(target, packages) for target in discovered.targets),
            stores=tuple(map(str, discovered.stores)),
            roots=tuple(map(str, roots)),
            searched=discovered.searched,
            files=files,
            records=records,
            unfinished=tuple(str(root) for root in roots if store.pending(root)),
            free=shutil.disk_usage(next(iter(roots))).free if roots else None,
        )

    def contents(self, paths: Iterable[str]) -> dict[str, bytes]:
        """The bytes of the files."""
        return {path: behind(Path(path)) for path in paths}

    def status(self, words: Sequence[str]) -> Report:
        """What is patched here."""
        return self._here.status(words)

    def check(self, words: Sequence[str]) -> Report:
        """What the environment of this node, and what is installed here, says of other profilers."""
        return self._here.check(words, LaunchOptions(os.environ))

    def guard(self, targets: Mapping[str, str], force: bool) -> Report:
        """The same for ``targets`` (word → the profiler that is set up) as `apply` wants it."""
        report = Report("apply")
        for word, profiler in targets.items():
            upstream, target = self._search.find(word, "apply")
            environment = LaunchOptions(os.environ)
            guard(report, upstream, target.version, environment, force=force, target=target, profiler=profiler)
        return report

    def preflight(self, edits: Sequence[Edit]) -> tuple[Note, ...]:
        """See the store."""
        return store.preflight(edits)

    def elect(self, transaction: str, names: Mapping[str, str]) -> dict[str, str]:
        """Root → the participant that works on it: the one that ``names`` has for it, or another node's."""
        return {root: store.elect(Path(root), transaction, name) for root, name in names.items()}

    def prepare(
        self, edits: Sequence[Edit], transaction: str, participants: tuple[str, ...], names: Mapping[str, str]
    ) -> tuple[tuple[Note, ...], tuple[Recovered, ...]]:
        """See the store; the locks stay with this process until the transaction ends, so others wait for it."""
        roots = {Path(root): name for root, name in names.items()}
        store.preflight(edits)
        self._held.enter_context(store.locked(list(roots), wait=self._wait))
        membership = TransactionMembership(
            transaction, participants, {Path(os.path.realpath(root)): roots[root] for root in roots}
        )
        outcome = store.prepare(edits, membership)
        return outcome.notes, outcome.recovered

    def commit(self, roots: Sequence[str], transaction: str) -> None:
        """See the store."""
        store.commit_prepared(list(map(Path, roots)), transaction, wait=self._wait)

    def finish(self, roots: Sequence[str], transaction: str, ended: Collection[str] = ()) -> list[Recovered]:
        """See the store."""
        with self._released():
            return store.finish(list(map(Path, roots)), transaction, ended, wait=self._wait)

    def abort(self, roots: Sequence[str], transaction: str) -> list[Recovered]:
        """See the store; a root that another run holds meanwhile is left to that one."""
        prepared = {one.root for one in self._standing(map(Path, roots)) if one.transaction == transaction}
        with self._released():
            ended = store.abort(list(map(Path, prepared)), transaction, wait=self._wait) if prepared else []
        for root in map(Path, set(roots) - prepared):
            if (root / STORE).is_dir():  # made for nothing, perhaps: whoever lets go of it last removes it
                with contextlib.suppress(Problem), store.locked([root], wait=0):
                    pass
        return ended

    def standing(self) -> tuple[Standing, ...]:
        """The transactions that are on their way in any root."""
        return self._standing(self._discovered().stores)

    def visit(self, roots: Sequence[str]) -> dict[str, Standing | None]:
        """The same for roots that others name, found here or not: root → its part, None where it has none.

        What is not there, or lies behind a link, is left out: of that nothing is known.
        """
        found = {os.path.realpath(store) for store in self._discovered().stores}
        known = [root for root in roots if os.path.realpath(root) in found or _plain_folder(root)]
        return {root: next(iter(self._standing([Path(root)])), None) for root in known}

    def recover(self) -> list[Recovered]:
        """End what this machine began by itself, and remove what was left before a transaction counted."""
        roots = self._discovered().stores
        journals = {root: store.standing(root) for root in roots}
        ours = [root for root, one in journals.items() if one is None or one.participants[0].startswith("/")]
        return store.recover(ours, wait=self._wait)

    def verify(self, files: Mapping[str, str]) -> list[str]:
        """Those of the files that have another digest, or are not there."""
        return [
            path for path, wanted in files.items() if (data := _bytes(Path(path))) is None or digest(data) != wanted
        ]

    def running(self, known: Sequence[processes.Processes], packages: Sequence[str]) -> tuple[str, ...]:
        """See `patcher.processes`."""
        return processes.running(known, map(Path, packages))

    def _found(self, target: Target, packages: Mapping[str, Collection[str]]) -> Found:
        beside = tuple(package for package in packages.get(target.project.name, ()) if target.beside(package))
        root, installed_as, version_from, found_by, notes = target[2:7]
        if self._search.python and "--python" not in self._search.words:
            found_by = f"the Python of Ray's workers, {self._search.python}"
        return Found(
            target.project.name, target.version, str(root), installed_as, version_from, found_by, notes, beside
        )

    def _standing(self, roots: Iterable[Path]) -> tuple[Standing, ...]:
        journals = {root: store.standing(root) for root in roots}
        return tuple(Standing(str(root), *one[:3], one.committed, one.hint) for root, one in journals.items() if one)

    def _discovered(self) -> Discovery:
        return self._search.discover()

    @contextlib.contextmanager
    def _released(self) -> Any:
        try:
            yield
        finally:
            self._held.close()


def answer(agent: Agent, question: str, arguments: Sequence[Any]) -> tuple[object, Problem | None]:
    """What the agent answers: a value or a problem; a failure that nobody thought of is one, too."""
    method: Callable[..., object] = getattr(agent, question)
    try:
        return method(*arguments), None
    except Problem as problem:
        return None, problem.replace()
    except OSError as error:
        return None, failed(error)
    except Exception as error:
        cause, hint = f"{type(error).__name__}: {error}", "please report it"
        return None, Problem(Kind.UNEXPECTED, cause, sys.executable, hint)


def _digests(target: Target) -> dict[str, str]:
    """What planning reads of a target: the modules that recipes name, and what tells of the released ones."""
    project = target.project
    named = (*project.files, f"{project.package}/__init__.py", f"{target.version_from}/RECORD")
    found = {}
    for path in map(PurePosixPath, named):
        if (data := _bytes(target.root / path)) is not None:
            found[str(target.root / path)] = digest(data)
    return found


def _plain_folder(path: str) -> bool:
    """Whether the folder is there, and no link leads to it."""
    return os.path.realpath(path) == path and os.path.isdir(path)  # noqa: PTH112  (False for what cannot be a path)


def _bytes(path: Path) -> bytes | None:
    try:
        return behind(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
