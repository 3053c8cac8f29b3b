"""What `status`, `diff`, `revert` and `recover` do with the roots that were found, in rlpatch and in a bundle alike."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Callable, Dict, List, NamedTuple, Tuple

from patcher import interrupts
from patcher.changes import edits, markers
from patcher.messages.command_line import CommandLine
from patcher.messages.errors import Kind, Problem
from patcher.messages.report import OMIT_NONE, CommandResult, StepResult, Verbatim
from patcher.store import outcomes
from patcher.store import transaction as store
from patcher.targets.patched import PatchedRoot, patched

if TYPE_CHECKING:
    from patcher.changes.change import Edit, PatchId, Record
    from patcher.changes.state import FileState
    from patcher.store.transaction import Recovered
    from patcher.targets.target import Discovery

Files = Dict[Path, List[Tuple[str, bytes, bytes]]]
"""Root → path, pristine and patched bytes of each file."""


@dataclass(frozen=True)
class PatchPayload:
    """An applied patch; ``installed`` is the version that is there now, None where nothing tells."""

    target: str
    stage: str
    role: str
    root: str
    version: str
    installed: str | None
    since: str
    options: tuple[str, ...]
    files: tuple[FileState, ...]


def status(
    root: PatchedRoot, apply_command: Callable[[Record], str] = lambda _record: ""
) -> tuple[StepResult, tuple[PatchPayload, ...]]:
    """The patches of a root, since when they are there, and whether their files are still as they were left.

    ``apply_command`` gives the command line that applies a record again, "" for none.
    """
    step, patches = StepResult(problems=root.broken), []
    for record in root.records:
        states, installed = tuple(root.states(record)), _installed(root, record)
        step += StepResult(tuple(_status_lines(root, record, states, installed, apply_command(record))))
        patches.append(
            PatchPayload(
                *record.patch, str(root.path), record.version, installed, record.applied_at, record.options, states
            )
        )
    return step, tuple(patches)


def _installed(root: PatchedRoot, record: Record) -> str | None:
    # What a checkout is costs git 0.1 s; there the state of the files has to tell.
    wheels = (target for target in root.targets if target.installed_as in ("wheel", "unpacked"))
    return next((target.version for target in wheels if target.project.name == record.patch.target), None)


def _status_lines(
    root: PatchedRoot, record: Record, states: Sequence[FileState], installed: str | None, apply_command: str
) -> Iterator[str]:
    since = f"since {record.applied_at}" if record.applied_at else "known by its marks only (was .rlpatch removed?)"
    yield f"{record.patch} on {record.version or installed or '(unknown version)'} in {root.path}, {since}"
    if apply_command:
        yield f"  {apply_command}"
    if installed is not None and record.version and installed != record.version:
        yield f"  warning: {installed or 'an unknown version'} is installed there now"
    for one in states:
        yield f"  {one.state} {one.path}" + (f": {one.detail}" if one.detail else "")


@dataclass(frozen=True)
class Diff:
    """The result of ``diff``: the first root with a difference ("" for none), and the text."""

    root: str
    diff: str


def patched_files(roots: Iterable[PatchedRoot]) -> Files:
    """The files of ``roots`` with lines of their records. Raises Problem (FOREIGN_EDIT) for marks that are broken."""
    files: Files = {}
    for root in roots:
        refuse_broken(root)
        wanted = {file for record in root.records for file in record.files}
        for file, data in root.marked().items():
            if file in wanted:
                pristine = markers.strip(data, where=str(root.path / file))
                files.setdefault(root.path, []).append((file, pristine, data))
    return files


def refuse_broken(root: PatchedRoot) -> None:
    """Raise Problem (FOREIGN_EDIT) where marks of ours do not pair, and no store knows what they were."""
    if root.broken:
        raise root.broken[0]


def refuse_several(options: Collection[str]) -> None:
    """Raise Problem (USAGE) where there is more than one way to choose a root, each with the ``options`` for it."""
    if len(options) > 1:
        cause = "the patched files are below several roots, and a diff has only one"
        raise Problem(Kind.USAGE, cause, hint=" or ".join(dict.fromkeys(options)))


@dataclass(frozen=True)
class RevertedFile:
    """A file of a patch that was taken out; not ``reverted`` where it had been replaced and has no line of ours."""

    root: str
    path: str
    reverted: bool
    nodes: tuple[str, ...] | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class Reverted:
    """The result of ``revert``; ``nodes`` is what was written on which node of a cluster.

    ``restart`` are the processes that may hold the code as it was, where they were looked for.
    """

    dry_run: bool
    files: tuple[RevertedFile, ...] = ()
    nodes: Mapping[str, Mapping[str, object]] | None = field(default=None, metadata=OMIT_NONE)
    restart: tuple[str, ...] | None = field(default=None, metadata=OMIT_NONE)


class Removal(NamedTuple):
    """What is taken out of one root; ``restored`` are files that become their backups, and what others lose by that."""

    root: PatchedRoot
    edit: Edit
    restored: Mapping[str, bytes] = MappingProxyType({})

    def lines(self, *, dry_run: bool) -> Iterator[str]:
        """Each patch and what becomes of its files."""
        verb, last = "would revert" if dry_run else "reverted", None
        for patch, file, others in self._files():
            if patch != last:
                yield f"{patch} in {self.root.path}"
            last = patch
            if others is None:
                yield f"  forgotten: {file} was replaced in the meantime and has no line of the patch"
            else:
                yield f"  {verb} {file}: {'the lines of another patch stay' if others else 'none of our lines is left'}"
        for file, lost in self.restored.items():
            what = "this goes with it:" if lost else "nobody else had changed it"
            yield f"  {'would restore' if dry_run else 'restored'} {file} from its backup; {what}"
            yield from (Verbatim(f"    {line}") for line in lost.decode("utf-8", "replace").splitlines())

    def payload(self, nodes: tuple[str, ...] = ()) -> Iterator[RevertedFile]:
        """The same for programs, on the ``nodes`` of a cluster if there are any."""
        for _, file, others in self._files():
            yield RevertedFile(str(self.root.path), file, others is not None, nodes or None)

    def _files(self) -> Iterator[tuple[PatchId, str, bool | None]]:
        """Each patch and file: whether lines of another patch stay there, None for a file that was replaced."""
        changed = {str(change.path): change for change in self.edit.changes if change.before != change.after}
        for record in (record for record in self.root.records if record.patch in self.edit.remove):
            for file in record.files:
                change = changed.get(file)
                yield record.patch, file, None if change is None else change.after != change.pristine


def removal(root: PatchedRoot, wanted: Collection[PatchId], *, restore: bool = False) -> Removal | None:
    """What takes the ``wanted`` patches out of ``root``, None where it has none. Raises Problem (FOREIGN_EDIT).

    With ``restore`` a file in which lines of ours were edited becomes its backup, which holds no patch at all.
    """
    edited = [*edited_files(root, wanted)] if restore else []
    patches = [one.patch for one in root.records if one.patch in wanted or not {*edited}.isdisjoint(one.files)]
    backups = {file: root.backup(PurePosixPath(file)) for file in edited}
    if missing := [file for file, backup in backups.items() if backup is None]:
        cause = "our lines were edited, and there is no backup that can be read"
        raise Problem(Kind.FOREIGN_EDIT, cause, str(root.path / missing[0]), markers.REINSTALL)
    kept = {file: backup for file, backup in backups.items() if backup is not None}
    lost = {file: edits.diff(file, markers.others(root.marked()[file]), backup) for file, backup in kept.items()}
    return Removal(root, edits.revert(root.path, root.read, root.records, patches, kept), lost) if patches else None


def edited_files(root: PatchedRoot, wanted: Collection[PatchId]) -> Iterator[str]:
    """The files of the ``wanted`` patches from which our lines cannot be taken, because somebody has edited them."""
    files = {file for record in root.records if record.patch in wanted for file in record.files}
    for file, data in root.marked().items():
        try:
            markers.strip(data if file in files else b"")
        except Problem:
            yield file


@dataclass(frozen=True)
class RecoveredRoots:
    """``roots`` are those whose interrupted runs were ended."""

    roots: tuple[Recovered, ...]


def settle(found: Discovery, on_wait: store.OnWait) -> StepResult:
    """End the interrupted runs of every root before a command that writes; Problem for one that waits for others."""
    ended = StepResult()
    try:
        with interrupts.deferred():
            ended = outcomes.ended(store.recover(found.stores, on_wait=on_wait))
    except KeyboardInterrupt:
        raise Problem(Kind.INTERRUPTED, "stopped by the keyboard", notes=ended.done) from None
    return ended


def recover(found: Discovery, on_wait: store.OnWait) -> CommandResult:
    """End the interrupted runs of every root; once one is ended, Ctrl-C has nothing to stop."""
    with interrupts.deferred():
        ended = store.recover(found.stores, on_wait=on_wait)
        if ended:
            interrupts.ignore()
    broken = tuple(problem for root in patched(found) for problem in root.broken)
    nothing = () if ended else (f"nothing to recover; looked in: {'; '.join(found.searched)}",)
    step = outcomes.ended(ended) + StepResult(nothing, problems=broken)
    return CommandResult("recover", step, data=RecoveredRoots(tuple(ended)))


def next_lines(*words: str) -> list[str]:
    """What can be done with what is applied now; ``words`` lead to it."""
    shown, out = (CommandLine(command, *words) for command in ("diff", "revert"))
    return [f"next: `{shown}` shows every line", f"      `{out}` removes it again"]


def restart_lines(running: Sequence[str] = ()) -> list[str]:
    """That processes which run already hold the code as it was; ``running`` are those that are known."""
    if not running:
        return ["next: restart the engine: a running one still has the old code"]
    return ["next: restart these processes, which may still have the old code:", *(f"  {one}" for one in running)]
