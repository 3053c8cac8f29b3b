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

FORCE = options.switch(READ, "Compare captures even if they are not comparable, and say why they are not.", "--force")

FAIL_ABOVE = Option(
    ["--fail-above"], heading=READ, type=click.FloatRange(min=0), metavar="PERCENT",
    help="Exit with 9 if it is certainly slower by more than that: the whole 95 % interval lies above.",
)  # fmt: skip


@options.command("compare", paths("BEFORE... AFTER..."), FORCE, FAIL_ABOVE, groups=(READING,))
def command(paths: tuple[Path, ...], force: bool, fail_above: float | None, options: ReadOptions) -> CommandResult:
    """Show what changed between two captures, how sure the change is, and which kernels or code it comes from.

    To compare several captures on each side, type `--` between the sides.

    \b
    Examples:
      rlpatch compare before/ after/
      rlpatch compare before/ after/ -o compared.html
      rlpatch compare run1/ run2/ -- run3/ run4/
      rlpatch compare main/ branch/ --fail-above 5
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
    cause = Text("compare needs two sides: one path each, or several paths each with `--` between the sides")
    raise Problem(Kind.USAGE, cause, hint=f"rlpatch compare {first} -- {second}")
