"""``rlpatch list``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from patcher.cli import options
from patcher.commands.about import knowledge
from patcher.commands.finding import SearchOptions
from patcher.messages import CommandLine, CommandResult, Text, tables

if TYPE_CHECKING:
    from patcher.targets.target import Target

MOST_LINES = 50
"""Lines of a listing with files; a longer one shows the stages alone."""


@options.command("list", options.targets("[TARGET[==VERSION]]..."))
def command(targets: tuple[str, ...]) -> CommandResult:
    """List the targets, releases, stages and windows that rlpatch supports. With TARGET==VERSION, also list the files
    that rlpatch patches.

    A structure (A, B, …) is a group of releases with the same code at the places that rlpatch patches.

    \b
    Examples:
      rlpatch list
      rlpatch list vllm
      rlpatch list vllm-ascend==0.11.0rc1
    """
    report = knowledge.listing(targets)
    if not targets:
        report.lines = tables.targets(knowledge.stages(), tables.room())
        report.lines += ["", Text("next: `rlpatch list TARGET` also shows the files of a target")]
        return report
    names = dict.fromkeys(row.target for row in report.data.targets)
    installed = knowledge.installed(names, SearchOptions())
    report.lines = tables.recipes(report.data, tables.room())
    if len(report.lines) > MOST_LINES and not any("==" in word for word in targets):
        report.lines = tables.targets(knowledge.stages(names), tables.room())
        report.lines += [Text("next: {command} shows the files", _of_release(name, installed)) for name in names]
    place = Text("{name} {version} is installed in {root}")
    here = [place.filled(name=target.project.name, version=target.version, root=target.root) for target in installed]
    report.lines[:0] = [*here, *([""] if here else [])]
    return report


def _of_release(name: str, installed: Sequence[Target]) -> CommandLine:
    """Return the command line that lists the installed release of a target, the newest if none is."""
    releases = knowledge.releases(name)
    here = [target.version for target in installed if target.project.name == name and target.version in releases]
    return CommandLine("list", f"{name}=={(here or releases)[-1]}")
