"""``rlpatch diff``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patcher.cli import options
from patcher.cli.command import Command, Option
from patcher.cli.recording import RECORD
from patcher.commands import inspecting
from patcher.errors import Kind, Problem
from patcher.headings import OUTPUT
from patcher.option import flag

if TYPE_CHECKING:
    from patcher.commands.where import Where
    from patcher.report import Report
    from patcher.request import RecordOptions

CALLS = Option(
    ["--calls"],
    heading=OUTPUT,
    is_flag=True,
    help="Fold each inserted block to its first line and a count, so that the call sites stand out: for people, not for"
    " git apply.",
)


@click.command("diff", cls=Command, params=[options.targets("[TARGET]..."), CALLS], groups=(RECORD, options.WHERE))
def command(targets: tuple[str, ...], record: RecordOptions, where: Where, calls: bool) -> Report:
    """Show what is applied, or with a window what would be, from pristine to patched; `git apply` takes it.

    \b
    Examples:
      rlpatch diff
      rlpatch diff --calls
      rlpatch diff vllm-ascend --decode 30:60
      rlpatch diff --path /vllm-workspace/vllm-ascend | git apply --check -R
    """
    if record.asked and not targets:
        hint = "rlpatch diff vllm-ascend --decode 30:60"
        raise Problem(Kind.USAGE, "a window is given, but no target", hint=hint)
    if record.choices and not record.asked:
        option = flag(next(iter(record.choices)))
        raise Problem(
            Kind.USAGE,
            f"{option} without a window: without one, diff shows what is applied",
            hint=f"add --decode 30:60, or leave {option} out",
        )
    request = record.request() if record.asked else None
    return where.within(lambda: inspecting.diff(targets, where, request, calls=calls))
