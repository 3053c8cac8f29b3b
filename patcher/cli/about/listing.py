"""``rlpatch list``."""

from __future__ import annotations

from patcher.cli import options
from patcher.commands.about import knowledge
from patcher.messages import CommandResult, Text, tables


@options.command("list", options.targets("[TARGET[==VERSION]]..."))
def command(targets: tuple[str, ...]) -> CommandResult:
    """List the targets, releases, stages and windows that rlpatch supports. With TARGET, also list the files it
    patches.

    A structure (A, B, …) is a group of releases with the same code at the places that rlpatch patches.

    \b
    Examples:
      rlpatch list
      rlpatch list vllm
      rlpatch list vllm-ascend==0.11.0rc1
    """
    report = knowledge.listing(targets)
    if targets:
        report.lines = tables.places(report.data, tables.room())
    else:
        report.lines = tables.targets(knowledge.stages(), tables.room())
        report.lines += ["", Text("next: `rlpatch list TARGET` also shows the files of a target")]
    return report
