"""``rlpatch explain``."""

from __future__ import annotations

from patcher.cli import options
from patcher.cli.profile import STAGE
from patcher.cli.search import SEARCH
from patcher.commands.about import knowledge
from patcher.commands.finding import SearchOptions
from patcher.messages import CommandResult


@options.command("explain", options.targets("TARGET[==VERSION]", nargs=1, required=True), STAGE, groups=(SEARCH,))
def command(target: str, stage: str | None, search: SearchOptions) -> CommandResult:
    """Show where and why rlpatch inserts code into TARGET, and which profiler settings TARGET itself has.

    \b
    Examples:
      rlpatch explain vllm-ascend
      rlpatch explain vllm-ascend==0.30.0rc2
      rlpatch explain verl==0.9.1 --stage update-policy
    """
    return knowledge.explain(target, search, stage)
