"""``rlpatch diff``."""

from __future__ import annotations

from patcher.cli import options
from patcher.cli.profile import PROFILE
from patcher.cli.search import CLUSTER, SEARCH, ClusterOptions
from patcher.commands.finding import SearchOptions
from patcher.commands.patching import inspecting
from patcher.commands.where import Where
from patcher.messages import CommandResult, Text, usage
from patcher.options import flag
from patcher.options.headings import OUTPUT
from patcher.request import ProfileRequest

CALLS = options.switch(
    OUTPUT,
    "Show only the first line of each inserted block and the number of folded lines, so that call sites stand out."
    " The output does not work with `git apply`.",
    "--calls",
)


@options.command("diff", options.targets("[TARGET]..."), CALLS, groups=(PROFILE, SEARCH, CLUSTER))
def command(
    targets: tuple[str, ...], request: ProfileRequest, search: SearchOptions, cluster: ClusterOptions, calls: bool
) -> CommandResult:
    """Show the applied patches as a diff. If you type a recording window, show the diff that `apply` would make.
    `git apply` accepts the output.

    \b
    Examples:
      rlpatch diff
      rlpatch diff --calls
      rlpatch diff vllm-ascend --decode 30:60
      rlpatch diff --path /vllm-workspace/vllm-ascend | git apply --check -R
    """
    if request.selects and not targets:
        cause = Text("the command has a recording window, but no target, such as vllm or verl")
        raise usage(cause, "rlpatch diff vllm-ascend --decode 30:60")
    if request.choices and not request.selects:
        option = flag(next(iter(request.choices)))
        cause = Text(
            "{option} needs a recording window; without a window, diff shows the patches that are already applied",
            option,
        )
        raise usage(cause, Text("add a recording window such as --decode 30:60, or leave {option} out", option))
    requested = request.checked() if request.selects else None
    with cluster.connected(search) as nodes:
        return inspecting.diff(targets, Where(search, options.wait, nodes), requested, calls=calls)
