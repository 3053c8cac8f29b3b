"""Parts of `status`, `diff`, `revert` and `recover` that rlpatch and a bundle share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Callable, Dict, List, NamedTuple, Tuple

from patcher import interrupts
from patcher.changes import edits, markers
from patcher.messages import OR, SEMICOLON, CommandLine, Kind, Problem, Text, joined, usage
from patcher.messages.report import OMIT_NONE, CommandResult, StepResult, Verbatim
from patcher.store import outcomes
from patcher.store import transaction as store
from patcher.targets.patched import PatchedRoot, patched

if TYPE_CHECKING:
    from patcher.changes.change import Edit, PatchId, Record
    from patcher.changes.state import FileState
    from patcher.processes import RunningProcess
    from patcher.store.transaction import Recovered
    from patcher.targets.target import Discovery

Files = Dict[Path, List[Tuple[str, bytes, bytes]]]
"""Root → path, pristine and patched bytes of each file."""


class PatchPayload(NamedTuple):
    """Applied patch; `installed` is the version installed now, None if unknown; `since` is "" if no record tells."""

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
    """Return the report and the payloads of all patches in a root, with the state of each patched file.

    `apply_command` returns the command line that applies a record again, "" for none.
    """
    step, patches = StepResult(problems=root.broken), []
    for record in root.records:
        states, installed = tuple(root.states(record)), _installed(root, record)
        step += StepResult(tuple(_status_lines(root, record, states, installed, apply_command(record))))
        patch, version, since = record.patch, record.version, record.applied_at
        patches.append(PatchPayload(*patch, str(root.path), version, installed, since, record.options, states))
    return step, tuple(patches)


def _installed(root: PatchedRoot, record: Record) -> str | None:
    """Return the installed version of the record's target; None if unknown, as in a checkout, where it takes long."""
    # What a checkout is costs git 0.1 s; there the state of the files has to tell.
    wheels = (target for target in root.targets if target.installed_as in ("wheel", "unpacked"))
    return next((target.version for target in wheels if target.project.name == record.patch.target), None)


def _status_lines(
    root: PatchedRoot, record: Record, states: Sequence[FileState], installed: str | None, apply_command: str
) -> Iterator[str]:
    """Yield a header for a patch, its command line, a warning if another version is installed, and a line per file."""
    version = record.version or installed or Text("(unknown version)")
    since = Text("patch found only by the marker comments in the files (was the folder .rlpatch removed?)")
    if record.applied_at:
        since = Text("since {time}", record.applied_at)
    head = Text("{patch} on {version} in {folder}, {applied_since}")
    yield head.filled(patch=record.patch, version=version, folder=root.path, applied_since=since)
    if apply_command:
        yield f"  {apply_command}"
    if installed is not None and record.version and installed != record.version:
        warning = Text(
            "  warning: the version in this folder changed after the patch was applied, and is now {version}"
        )
        yield warning.filled(installed or Text("an unknown version"))
    for file in states:
        line = Text("  {state} {path}", state=file.state, path=file.path)
        yield Text("{file}: {detail}", file=line, detail=file.detail) if file.detail else line


class Diff(NamedTuple):
    """Result of `diff`: the first root with a difference ("" if there is none), and the text of the diff."""

    root: str
    diff: str


def patched_files(roots: Iterable[PatchedRoot]) -> Files:
    """Return root → (path, pristine bytes, patched bytes) of each registered file that has rlpatch's marker comments.

    Raises Problem (FOREIGN_EDIT) if marker comments do not pair, or if somebody edited inserted lines.
    """
    files: Files = {}
    for root in roots:
        refuse_broken(root)
        recorded = {file for record in root.records for file in record.files}
        for file, data in root.marked().items():
            if file in recorded:
                pristine = markers.strip(data, where=str(root.path / file))
                files.setdefault(root.path, []).append((file, pristine, data))
    return files


def refuse_broken(root: PatchedRoot) -> None:
    """Raise Problem (FOREIGN_EDIT) if the root has marks that do not pair and no store has their original."""
    if root.broken:
        raise root.broken[0]


def refuse_several(options: Collection[str]) -> None:
    """Raise Problem (USAGE) if `options` has more than one element, such as "--path DIR" for each changed root."""
    if len(options) > 1:
        cause = Text("the patched files belong to several installations, and one diff can cover only one of them")
        raise usage(cause, joined(OR, dict.fromkeys(options)))


@dataclass(frozen=True)
class RevertedFile:
    """File of a removed patch; `reverted` is False if the file was replaced since and has no inserted line."""

    root: str
    path: str
    reverted: bool
    nodes: tuple[str, ...] | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class Reverted:
    """Result of `revert`; `nodes` maps each node of a cluster to what was written on it.

    `restart` names the processes that may still run the patched code, None if rlpatch did not look for them.
    """

    dry_run: bool
    files: tuple[RevertedFile, ...] = ()
    nodes: Mapping[str, Mapping[str, object]] | None = field(default=None, metadata=OMIT_NONE)
    restart: tuple[str, ...] | None = field(default=None, metadata=OMIT_NONE)


class Removal(NamedTuple):
    """Removal of patches from a root; `restored` maps each file that becomes its backup to the diff that is undone."""

    root: PatchedRoot
    edit: Edit
    restored: Mapping[str, bytes] = MappingProxyType({})

    def lines(self, *, dry_run: bool) -> Iterator[str]:
        """Yield the report: each removed patch, what happens to its files, and the edits lost by restoring backups."""
        verb, previous = Text("would revert") if dry_run else Text("reverted"), None
        for patch, file, other_patches in self._files():
            if patch != previous:
                yield Text("{patch} in {folder}", patch=patch, folder=self.root.path)
            previous = patch
            if other_patches is None:
                line = Text(
                    "  nothing to revert in {file}: it has been replaced or removed, and no longer has the patch"
                )
                yield line.filled(file)
                continue
            remains = Text("no rlpatch lines left")
            if other_patches:
                remains = Text("lines of another patch stay in the file")
            yield Text("  {verb} {file}: {remainder}", verb=verb, file=file, remainder=remains)
        for file, lost in self.restored.items():
            consequence = Text("the backup lacks these edits of the file:") if lost else Text("no edits are lost")
            restored = Text("would restore {file} from its backup", file)
            if not dry_run:
                restored = Text("restored {file} from its backup", file)
            yield Text("  {action}; {consequence}", action=restored, consequence=consequence)
            yield from (Verbatim(f"    {line}") for line in lost.decode("utf-8", "replace").splitlines())

    def payload(self, nodes: tuple[str, ...] = ()) -> Iterator[RevertedFile]:
        """Yield an entry for each file for JSON; `nodes` are the cluster nodes with this root, () on this machine."""
        for _, file, other_patches in self._files():
            yield RevertedFile(str(self.root.path), file, other_patches is not None, nodes or None)

    def _files(self) -> Iterator[tuple[PatchId, str, bool | None]]:
        """Yield (patch, file, whether lines of another patch stay in it; None if it was replaced or removed since)."""
        changed = {str(change.path): change for change in self.edit.changes if change.before != change.after}
        for record in (record for record in self.root.records if record.patch in self.edit.remove):
            for file in record.files:
                change = changed.get(file)
                yield record.patch, file, None if change is None else change.after != change.pristine


def removal(root: PatchedRoot, patches: Collection[PatchId], *, restore: bool = False) -> Removal | None:
    """Return the planned removal of `patches` from `root`, None if the root has none of them.

    With `restore`, a file whose inserted lines were edited is replaced by its backup, which drops every patch in it.
    Raises Problem (FOREIGN_EDIT) for such a file without `restore`, or without a readable backup.
    """
    edited = [*edited_files(root, patches)] if restore else []
    removed = [
        record.patch for record in root.records if record.patch in patches or not {*edited}.isdisjoint(record.files)
    ]
    backups = {file: root.backup(PurePosixPath(file)) for file in edited}
    if missing := [file for file, backup in backups.items() if backup is None]:
        cause = Text(
            "somebody edited lines that rlpatch inserted, and the file cannot be restored: its backup is missing or"
            " cannot be read"
        )
        raise Problem(Kind.FOREIGN_EDIT, cause, str(root.path / missing[0]), markers.REINSTALL)
    if not removed:
        return None
    readable = {file: backup for file, backup in backups.items() if backup is not None}
    lost = {file: edits.diff(file, markers.unmarked(root.marked()[file]), backup) for file, backup in readable.items()}
    return Removal(root, edits.revert(root.path, root.read, root.records, removed, readable), lost)


def restore_hint(root: Path) -> str:
    """Return a hint for edited rlpatch lines below `root`: undo the edit, see what a restore loses, or reinstall."""
    preview = CommandLine("revert", "--restore", "--dry-run", "--path", str(root))
    hint = Text(
        "undo the edit; or run {command} to see which edits are lost when the backup is restored; or {reinstall}"
    )
    return hint.filled(command=preview, reinstall=markers.REINSTALL)


def edited_files(root: PatchedRoot, patches: Collection[PatchId]) -> Iterator[str]:
    """Yield those files of `patches` in which somebody has edited inserted lines, of these or other patches."""
    files = {file for record in root.records if record.patch in patches for file in record.files}
    for file, data in root.marked().items():
        try:
            markers.strip(data if file in files else b"")
        except Problem:
            yield file


class RecoveredRoots(NamedTuple):
    """Result of `recover`: the roots in which an interrupted command was ended."""

    roots: tuple[Recovered, ...]


def end_interrupted(discovery: Discovery, on_wait: store.OnWait) -> StepResult:
    """Complete or roll back the interrupted command of each root in `discovery`, and report the outcome, if any.

    `on_wait` gets a line for each owner of a lock that is waited for. Raises Problem: INTERRUPTED after Ctrl-C, with
    what was done before in its notes; ENVIRONMENT (lock, damaged store), ROLLBACK_INCOMPLETE.
    """
    step = StepResult()
    try:
        with interrupts.deferred():
            step = outcomes.recovery_messages(store.recover(discovery.stores, on_wait=on_wait))
    except KeyboardInterrupt:
        raise Problem(Kind.INTERRUPTED, Text("stopped by Ctrl-C"), notes=step.done) from None
    return step


def recover(discovery: Discovery, on_wait: store.OnWait) -> CommandResult:
    """Complete or roll back the interrupted command of each root in `discovery`; return `rlpatch recover`'s result.

    Ctrl-C is ignored once a root has been recovered. Files whose marker comments do not pair are problems.
    """
    with interrupts.deferred():
        recovered = store.recover(discovery.stores, on_wait=on_wait)
        if recovered:
            interrupts.ignore()
    broken = tuple(problem for root in patched(discovery) for problem in root.broken)
    step = outcomes.recovery_messages(recovered) + StepResult(problems=broken)
    if not recovered:
        searched = joined(SEMICOLON, discovery.searched)
        step += StepResult((Text("nothing to recover: no rlpatch command was interrupted in {places}", searched),))
    return CommandResult("recover", step, data=RecoveredRoots(tuple(recovered)))


def next_lines(*words: str) -> list[str]:
    """Return two lines that tell the user to type `diff` or `revert`, each followed by the arguments `words`."""
    diff, revert = (CommandLine(command, *words) for command in ("diff", "revert"))
    return [
        Text("next: `{command}` shows every inserted line", diff),
        Text("      `{command}` removes the patch", revert),
    ]


def restart_lines(running: Sequence[RunningProcess] = ()) -> list[str]:
    """Return lines that tell the user to restart the processes `running`, or the engine if none is known."""
    here = [process.line for process in running if process.here]
    elsewhere = [process.line for process in running if not process.here]
    if not here and not elsewhere:
        return [Text("next: restart the engine; an engine that is already running has the old code")]
    lines: list[str] = [Text("next: restart these processes, which might still run the old code:")] if here else []
    lines += [f"  {line}" for line in here]
    if here and elsewhere:
        lines.append(Text("also restart these engines if they use this environment:"))
    elif elsewhere:
        lines.append(Text("next: restart these engines if they use this environment:"))
    return lines + [f"  {line}" for line in elsewhere]
