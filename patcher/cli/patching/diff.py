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
    (
        "Fold each inserted block to its first line and a count, so that the call sites stand out: for people, not for"
        " git apply."
    ),
    "--calls",
)


@options.command("diff", options.targets("[TARGET]..."), CALLS, groups=(PROFILE, SEARCH, CLUSTER))
def command(
    targets: tuple[str, ...], request: ProfileRequest, search: SearchOptions, cluster: ClusterOptions, calls: bool
) -> CommandResult:
    """Show what is applied, or with a window what would be, from pristine to patched; `git apply` takes it.

    \b
    Examples:
      rlpatch diff
      rlpatch diff --calls
      rlpatch diff vllm-ascend --decode 30:60
      rlpatch diff --path /vllm-workspace/vllm-ascend | git apply --check -R
    """
    if request.selects and not targets:
        raise usage(Text("a window is given, but no target"), "rlpatch diff vllm-ascend --decode 30:60")
    if request.choices and not request.selects:
        option = flag(next(iter(request.choices)))
        raise usage(
            Text("{option} without a window: without one, diff shows what is applied", option),
            Text("add --decode 30:60, or leave {option} out", option),
        )
    requested = request.checked() if request.selects else None
    with cluster.connected(search) as nodes:
        return inspecting.diff(targets, Where(search, options.wait, nodes), requested, calls=calls)
