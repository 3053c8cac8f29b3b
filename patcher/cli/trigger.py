"""``rlpatch trigger``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patcher.cli import options, waiting
from patcher.cli.command import Command, Group, Option
from patcher.cli.recording import option
from patcher.commands import triggering
from patcher.commands.triggering import EXPIRES_S, TriggerOptions
from patcher.commands.watching import WatchOptions
from patcher.config import UNITS
from patcher.errors import Kind, Problem
from patcher.headings import OUTPUT, WAITED, WHOSE, WINDOW
from patcher.option import Number
from patcher.option import Option as Declared
from patcher.request import OPTIONS

if TYPE_CHECKING:
    from patcher.commands.triggering import TriggerOptions
    from patcher.report import Report


def _asked(values: Mapping[str, Any]) -> TriggerOptions:
    windows = {unit: values[unit.replace("-", "_")] for unit in UNITS if values[unit.replace("-", "_")] is not None}
    if len(windows) != 1:
        said = " and ".join(f"--{unit}" for unit in windows)
        cause = f"{said}: a request asks for one kind of window" if windows else "no window is given"
        hint = "leave all but one out" if windows else "rlpatch trigger --decode 30:60, or --micro-batch 0:1"
        raise Problem(Kind.USAGE, cause, hint=hint)
    ((unit, window),) = windows.items()
    return TriggerOptions(
        unit, window, stage=values["stage"] or "", ranks=values["ranks"],
        load=values["at_load"], tail=values["at_tail"], context=values["at_context"],
        at=values["at"], expires=values["expires"] or EXPIRES_S, replace=values["replace"], dry_run=values["dry_run"],
    )  # fmt: skip


CONDITIONS = ("at_load", "at_tail", "at_context")
"""The options of a rollout that a request has, too."""
STAGE = OPTIONS["stage"]._replace(about="The stage that is meant, where several count this unit.", value="", shown="")
OWN = (
    Declared(
        "at", Number(0), WHOSE, "The rollout, from 0, or training step, from 1.", shown="the one after the furthest"
    ),
    Declared("expires", Number(1), WHOSE, "Seconds after which nobody takes it any more.", shown="a day"),
)

ASK = Group(
    "asked",
    _asked,
    *(Option([f"--{unit.name}"], heading=WINDOW, metavar="A:B", help=unit.about) for unit in UNITS.values()),
    *map(option, (*(OPTIONS[name] for name in CONDITIONS), STAGE, OPTIONS["ranks"], *OWN)),
    Option(["--replace"], heading=WHOSE, is_flag=True, help="Take the place of a request that is still to be served."),
    options.dry_run(),
)  # fmt: skip


@click.command(
    "trigger",
    cls=Command,
    params=[
        options.targets("[TARGET]", nargs=1),
        Option(
            ["--save-path"],
            heading=OUTPUT,
            type=click.Path(path_type=Path),
            default="rlpatch_traces",
            metavar="DIR",
            help="The folder that the traces of the run go to. Default: rlpatch_traces in the working directory.",
        ),
        Option(["--wait"], heading=WAITED, is_flag=True, help="Wait until it is served, as `watch` does."),
        waiting.timeout(),
    ],
    groups=(ASK,),
)
def command(target: str | None, save_path: Path, wait: bool, timeout: float | None, asked: TriggerOptions) -> Report:
    """Ask workers that run for a window. They were patched with `--on-demand`, and wait for it.

    Each worker looks for a request where a rollout or a training step begins, and serves it once.

    \b
    Examples:
      rlpatch trigger --decode 30:60
      rlpatch trigger --decode 0:10 --at-tail 8 --ranks all --wait --timeout 3600
      rlpatch trigger verl --stage update-policy --micro-batch 0:1
      rlpatch trigger --prefill 0:4 --at 7 --replace --save-path /data/traces
    """
    if timeout is not None and not wait:
        raise Problem(Kind.USAGE, "--timeout without --wait: nothing is waited for", hint="--wait --timeout SECONDS")
    until = WatchOptions(timeout=timeout) if wait else None
    return triggering.trigger(save_path, asked._replace(target=target or ""), until, waiting.screen)
