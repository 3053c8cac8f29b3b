"""``status``: what is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from patcher.changes.change import Record
from patcher.commands.finding import SearchOptions
from patcher.commands.patching.patched import patched_roots, report_nothing
from patcher.messages.command_line import CommandLine
from patcher.messages.notes import Note
from patcher.messages.report import CommandResult, StepResult
from patcher.targets import applied
from patcher.targets.applied import PatchPayload


@dataclass(frozen=True)
class Status:
    """The result of ``status``."""

    patches: tuple[PatchPayload, ...] = ()


def status(names: Sequence[str], search: SearchOptions) -> CommandResult:
    """What is patched where, since when, and whether it is still as rlpatch left it."""

    def again(record: Record) -> str:
        return CommandLine("apply", record.patch.target, *record.options, *search.words) if record.options else ""

    roots, found = patched_roots(names, search)
    step = StepResult() if roots else report_nothing(names, found)
    patches: list[PatchPayload] = []
    for root in roots:
        if root.pending:
            text = f"a root holds an interrupted run; next: {CommandLine('recover', *search.words)}"
            step += StepResult.noted([Note(text, f"{root.path} holds an interrupted run")], "warning")
        found_here, payloads = applied.status(root, again)
        step += found_here
        patches += payloads
    return CommandResult("status", step, data=Status(tuple(patches)))
