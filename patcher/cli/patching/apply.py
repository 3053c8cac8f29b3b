"""``rlpatch apply``."""

from __future__ import annotations

from patcher.cli import options
from patcher.cli.launch import LAUNCH
from patcher.cli.profile import PROFILE
from patcher.cli.search import CLUSTER, SEARCH, ClusterOptions
from patcher.commands.finding import SearchOptions
from patcher.commands.patching import applying
from patcher.commands.where import Where
from patcher.guards.result import Launch
from patcher.messages import CommandResult
from patcher.options.headings import PROFILERS
from patcher.request import ProfileRequest

TARGETS = options.targets("TARGET[==VERSION]...", required=True)
FORCE = options.switch(PROFILERS, "Patch even if another profiler is switched on.", "--force")


@options.command("apply", TARGETS, options.DRY_RUN, FORCE, groups=(PROFILE, SEARCH, CLUSTER, LAUNCH))
def command(
    targets: tuple[str, ...],
    request: ProfileRequest,
    search: SearchOptions,
    cluster: ClusterOptions,
    launch: Launch,
    force: bool,
    dry_run: bool,
) -> CommandResult:
    """Patch TARGETs. If one of them fails, none is patched.

    After `--`, type the command that will start the run. rlpatch does not run this command, but looks for other
    profilers in it.

    \b
    Examples:
      rlpatch apply vllm-ascend==0.11.0rc1 --decode 30:60
      rlpatch apply vllm-ascend --prefill 0:4 --ranks all --rollout 2
      rlpatch apply vllm-ascend --decode 30:60 --path /vllm-workspace/vllm-ascend
      rlpatch apply vllm-ascend --decode 30:60 -- bash run_grpo.sh
      rlpatch apply verl==0.6.1 --stage update-policy --mini-batch 0:1
      rlpatch apply verl --stage compute-log-prob --role ref --micro-batch 0:1
      rlpatch apply vllm-ascend verl --decode 30:60 --mini-batch 0:1
      rlpatch apply vllm-ascend --builtin --level level2 --export-type db,text
    """
    checked = request.checked()
    with cluster.connected(search) as nodes:
        where = Where(search, options.wait, nodes)
        return applying.apply(targets, where, checked, launch, dry_run=dry_run, force=force)
