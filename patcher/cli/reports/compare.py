"""``rlpatch compare``."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from patcher.cli import options, terminal
from patcher.cli.options import Option
from patcher.cli.reports.report import READING, paths
from patcher.commands.reports import reporting
from patcher.commands.reports.reporting import ReadOptions
from patcher.messages import CommandResult, Kind, Problem, Text
from patcher.options.headings import READ

FORCE = options.switch(READ, "Compare even what should not be compared, and say why not.", "--force")

FAIL_ABOVE = Option(
    ["--fail-above"], heading=READ, type=click.FloatRange(min=0), metavar="PERCENT",
    help="Exit with 9 if it is certainly slower by more: the whole interval lies above. Needs two captures a side.",
)  # fmt: skip


@options.command("compare", paths("BEFORE... AFTER..."), FORCE, FAIL_ABOVE, groups=(READING,))
def command(paths: tuple[Path, ...], force: bool, fail_above: float | None, options: ReadOptions) -> CommandResult:
    """Show what changed between two captures, how sure that is, and where it comes from.

    With several captures on a side, put `--` between the sides.

    \b
    Examples:
      rlpatch compare before/ after/
      rlpatch compare before/ after/ -o compared.html
      rlpatch compare run1/ run2/ -- run3/ run4/
      rlpatch compare main1/ main2/ --fail-above 5 -- branch1/ branch2/
    """
    return reporting.compare(*_sides(paths), options, terminal.reading, force=force, most=fail_above)


def _sides(paths: tuple[Path, ...]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the paths before and after `--`, or a path for each side. Raises Problem (USAGE) for anything else."""
    typed = options.typed_words()
    at = len(paths) - len(typed) + typed.index("--") + 1 if "--" in typed else max(len(paths) // 2, 1)
    before, after = paths[:at], paths[at:]
    if before and after and ("--" in typed or len(paths) == 2):
        return before, after
    first, second = (shlex.join(map(str, side)) for side in (before or ("BEFORE",), after or ("AFTER",)))
    cause = Text("two sides are compared: one path each, or several with `--` between the sides")
    raise Problem(Kind.USAGE, cause, hint=f"rlpatch compare {first} -- {second}")
