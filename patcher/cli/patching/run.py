"""``rlpatch run``."""

from __future__ import annotations

from patcher.cli import options
from patcher.cli.launch import LAUNCH
from patcher.cli.patching.apply import FORCE, TARGETS
from patcher.cli.profile import PROFILE
from patcher.cli.search import SEARCH
from patcher.commands.finding import SearchOptions
from patcher.commands.patching import running
from patcher.guards.result import Launch
from patcher.messages import CommandResult
from patcher.options.headings import OUTPUT
from patcher.request import ProfileRequest

REQUIRE = options.switch(OUTPUT, "Fail, instead of warning, if part of the run would stay unpatched.", "--require")


@options.command("run", TARGETS, options.DRY_RUN, FORCE, REQUIRE, groups=(PROFILE, SEARCH, LAUNCH))
def command(
    targets: tuple[str, ...],
    request: ProfileRequest,
    search: SearchOptions,
    launch: Launch,
    force: bool,
    require: bool,
    dry_run: bool,
) -> CommandResult:
    """Run the command after `--` with patched TARGETs. The Python processes of the command import the code that `apply`
    would write.

    Nothing changes on disk, so there is nothing to revert. Exit code and stdout come from the command; rlpatch writes
    its own messages to stderr.

    \b
    Examples:
      rlpatch run vllm-ascend==0.11.0rc1 --decode 30:60 -- bash run_grpo.sh
      rlpatch run verl==0.6.1 --mini-batch 0:1 -- bash run_grpo.sh
      rlpatch run verl --mini-batch 0:1 --require -- bash run_grpo.sh
      rlpatch run vllm --decode 30:60 -n -- vllm serve MODEL
    """
    return running.run(targets, search, request.checked(), launch, dry_run=dry_run, force=force, require=require)
