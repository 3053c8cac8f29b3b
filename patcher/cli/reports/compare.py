"""``rlpatch compare``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patcher.cli.command import Command, Option
from patcher.cli.reports import reporting
from patcher.commands.reports import reporting as work
from patcher.messages.errors import Kind, Problem
from patcher.options.headings import READ

if TYPE_CHECKING:
    from patcher.commands.reports.reporting import ReadOptions
    from patcher.messages.report import CommandResult


@click.command(
    "compare",
    cls=Command,
    params=[
        reporting.paths("BEFORE... AFTER..."),
        Option(["--force"], heading=READ, is_flag=True, help="Compare also what should not be, and say why not."),
        Option(
            ["--msprof-analyze", "vendor"],
            heading=READ,
            is_flag=True,
            help="Have msprof-analyze compare them, too (the first capture of each side).",
        ),
    ],
    groups=(reporting.READING,),
)
def command(paths: tuple[Path, ...], force: bool, vendor: bool, options: ReadOptions) -> CommandResult:
    """Say what changed from one capture to another, how sure that is, and where it comes from.

    With several captures a side, `--` stands between the sides.

    \b
    Examples:
      rlpatch compare before/ after/
      rlpatch compare before/ after/ -o compared.html
      rlpatch compare run1/ run2/ -- run3/ run4/
    """
    before, after = _sides(paths)
    return work.compare(before, after, options._replace(vendor=vendor), force=force)


def _sides(paths: tuple[Path, ...]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The paths of both sides: those before and behind ``--``, or one a side."""
    typed = list(click.get_current_context().meta.get("typed", ()))
    if "--" in typed:
        behind = len(typed) - typed.index("--") - 1
        before, after = paths[: len(paths) - behind], paths[len(paths) - behind :]
        if before and after:
            return before, after
    elif len(paths) == 2:
        return paths[:1], paths[1:]
    half = max(len(paths) // 2, 1)
    first, second = (shlex.join(map(str, side)) for side in (paths[:half], paths[half:] or (Path("AFTER"),)))
    cause = "two sides are compared: one path each, or several with `--` between the sides"
    raise Problem(Kind.USAGE, cause, hint=f"rlpatch compare {first} -- {second}")
