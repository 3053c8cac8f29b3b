"""``rlpatch trigger``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patcher.cli import options
from patcher.cli.options import Group, click_option, typed_values
from patcher.cli.profile import WINDOWS, selecting_option, typed_windows
from patcher.cli.workers import waiting
from patcher.commands.workers import triggering
from patcher.commands.workers.triggering import TriggerOptions
from patcher.commands.workers.watching import WatchOptions
from patcher.messages import CommandResult, Text, usage
from patcher.options import OptionSpec
from patcher.options.headings import WAITED, WHOSE
from patcher.options.notations import Number
from patcher.request import OPTIONS


def _options(values: Mapping[str, Any]) -> TriggerOptions:
    """Return the request for the typed window. Raises Problem (USAGE) unless exactly one kind of window is typed."""
    windows = typed_windows(values)
    if not windows:
        example = Text("for example rlpatch trigger --decode 30:60, or --micro-batch 0:1")
        raise usage(Text("no recording window was given"), example)
    if len(windows) > 1:
        flags = " and ".join(f"--{window.unit}" for window in windows)
        cause = Text("{options}: a recording request has only one window", flags)
        raise usage(cause, Text("keep only one of these options"))
    more = typed_values(values, ("stage", "role", "ranks", "at", "expires", "replace", "dry_run", *CONDITIONS))
    return TriggerOptions(windows[0], **more)


CONDITIONS = ("at_load", "at_tail", "at_context")
"""The options of a rollout that a request has, too."""
_AT = "Which rollout (counted from 0) or training step (from 1) to record."
OWN = (
    OptionSpec("at", Number(0), WHOSE, _AT, None, "the first one that no worker has begun yet"),
    OptionSpec("expires", Number(1), WHOSE, "Seconds after which the recording request expires.", None, "a day"),
)
TRIGGER = Group(
    "trigger_options",
    _options,
    *WINDOWS,
    *(click_option(OPTIONS[name]) for name in CONDITIONS),
    selecting_option("stage", "Stage to record; needed if several stages support the chosen kind of window."),
    click_option(OPTIONS["role"]),
    click_option(OPTIONS["ranks"]),
    *map(click_option, OWN),
    options.switch(WHOSE, "Replace an earlier recording request that no worker has served yet.", "--replace"),
    options.DRY_RUN,
)


SAVE_PATH = options.save_path("Folder for the traces of the run. Default: rlpatch_traces in the working directory.")
WAIT = options.switch(WAITED, "Wait until the workers have saved the traces, as `rlpatch watch` does.", "--wait")


@options.command("trigger", options.targets("[TARGET]", nargs=1), SAVE_PATH, WAIT, waiting.TIMEOUT, groups=(TRIGGER,))
def command(
    target: str | None, save_path: Path, wait: bool, timeout: float | None, trigger_options: TriggerOptions
) -> CommandResult:
    """Ask running workers to record a window. They must have been patched with `--on-demand`.

    Each worker looks for a recording request when a rollout or training step begins, and serves each request once.

    \b
    Examples:
      rlpatch trigger --decode 30:60
      rlpatch trigger --decode 0:10 --at-tail 8 --ranks all --wait --timeout 3600
      rlpatch trigger verl --stage update-policy --micro-batch 0:1
      rlpatch trigger --prefill 0:4 --at 7 --replace --save-path /data/traces
    """
    if timeout is not None and not wait:
        raise usage(Text("--timeout has no effect without --wait"), "--wait --timeout SECONDS")
    until = WatchOptions(timeout=timeout) if wait else None
    return triggering.trigger(save_path, trigger_options._replace(target=target or ""), until, waiting.worker_display)
