"""``rlpatch watch``."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import click

from patcher.cli import options
from patcher.cli.options import Group, Option
from patcher.cli.reports.traces import folder as traces_folder
from patcher.cli.workers import waiting
from patcher.commands.reports import timelines
from patcher.commands.workers import watching
from patcher.commands.workers.watching import WatchOptions
from patcher.messages import CommandResult, Text, tables, usage
from patcher.options.headings import WAITED
from patcher.request import OPTIONS

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _since(context: click.Context, parameter: click.Parameter, value: str | None) -> float:  # noqa: ARG001
    """Return `--since` as seconds since 1970: typed as such, or as a duration before now, such as 10m."""
    if value is None:
        return 0.0
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?)([smhd]?)", value.strip(), re.ASCII)
    if not match:
        cause = Text("--since {time} is neither a time in seconds since 1970 nor a duration such as 10m", value)
        hint = Text("use --since 10m, or run `date +%s` before the run starts and pass its output to --since")
        raise usage(cause, hint)
    return time.time() - float(match[1]) * _SECONDS[match[2]] if match[2] else float(match[1])


def _stages(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:  # noqa: ARG001
    words = [word for word in (value or "").split(",") if word.strip()]
    return tuple(dict.fromkeys(OPTIONS["stage"].notation.read("--stage", word) for word in words))


WATCH = Group(
    "watch_options",
    lambda values: WatchOptions(**values),
    Option(
        ["--stage", "stages"],
        heading=WAITED,
        callback=_stages,
        metavar="NAMES",
        shell_complete=options.value_completion(OPTIONS["stage"]),
        help="Wait until each stage in this list, such as rollout,update-policy, has saved a trace. Default: all"
        " stages whose workers have reported their status.",
    ),
    Option(
        ["--since"],
        heading=WAITED,
        callback=_since,
        metavar="TIME",
        help="Show only workers that reported their status within this time (10m, 2h) or since this moment (from"
        " `date +%s`).",
    ),
    options.switch(WAITED, "Print the state of the workers once; do not wait.", "--once"),
    options.switch(
        WAITED,
        "While the run goes on, show what limited each training step, instead of the state of each worker.",
        "--timeline",
    ),
    waiting.TIMEOUT,
)


THEN = Option(
    ["--then"],
    heading=WAITED,
    metavar="COMMAND",
    help=(
        "Run this shell command as soon as all workers have saved their traces; watch then exits with the exit code"
        " of this command."
    ),
)


@options.command("watch", traces_folder(), THEN, groups=(WATCH,))
def command(folder: Path, then: str | None, watch_options: WatchOptions) -> CommandResult:
    """Show the state of every worker until all of the workers that were asked to record have saved their traces.

    DIR is the folder of the traces; default: rlpatch_traces in the working directory. The exit code is 0 once every
    worker that was asked to record has saved its trace. The exit code is 3 if such a worker can no longer save a
    trace, or at the timeout.

    \b
    Examples:
      rlpatch watch
      rlpatch watch /data/rlpatch_traces --timeout 7200 --since 10m
      rlpatch watch --stage rollout,update-policy --json
      rlpatch watch --once
      rlpatch watch --timeline
      rlpatch watch --then "rlpatch report -o report.html"
    """
    if watch_options.timeline:
        if then:
            cause = Text("--then and --timeline cannot be combined: --then waits for traces, --timeline does not")
            raise usage(cause, Text("leave out one of these two options"))
        with waiting.line_display() as show:
            return timelines.follow(
                folder,
                show,
                tables.room(),
                once=watch_options.once,
                timeout=watch_options.timeout,
                height=waiting.height(),
            )
    report = watching.watch(folder, watch_options, waiting.worker_display)
    if then and report.data and report.data.ended == watching.SAVED:
        report.then = lambda _show: _code(subprocess.run(then, shell=True, check=False).returncode)  # noqa: S602
    return report


def _code(returned: int) -> int:
    """Return the exit code of a process as a shell has it: 128 + N for signal N, which is -N in `returned`."""
    return returned if returned >= 0 else 128 - returned
