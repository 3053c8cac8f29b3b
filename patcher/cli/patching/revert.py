"""``rlpatch revert``."""

from __future__ import annotations

from patcher.cli import options
from patcher.cli.profile import ROLE, STAGE
from patcher.cli.search import CLUSTER, SEARCH, ClusterOptions
from patcher.commands.finding import SearchOptions
from patcher.commands.patching import reverting
from patcher.commands.where import Where
from patcher.messages import CommandResult
from patcher.options.headings import OUTPUT

RESTORE = options.switch(
    OUTPUT,
    "If inserted lines were edited, put back the backup of the whole file. All edits since the patch are"
    " lost; add -n to see them first.",
    "--restore",
)


@options.command(
    "revert", options.targets("[TARGET]..."), STAGE, ROLE, RESTORE, options.DRY_RUN, groups=(SEARCH, CLUSTER)
)
def command(
    targets: tuple[str, ...],
    stage: str | None,
    role: str | None,
    search: SearchOptions,
    cluster: ClusterOptions,
    restore: bool,
    dry_run: bool,
) -> CommandResult:
    """Remove every patch, or the patches of TARGETs. Other edits to the files stay.

    \b
    Examples:
      rlpatch revert
      rlpatch revert vllm-ascend --path /vllm-workspace/vllm-ascend
      rlpatch revert --restore --dry-run
      rlpatch revert verl --stage compute-log-prob --role ref
    """
    with cluster.connected(search) as nodes:
        where = Where(search, options.wait, nodes)
        return reverting.revert(targets, where, stage=stage, role=role or None, dry_run=dry_run, restore=restore)
