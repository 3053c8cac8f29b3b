"""``rlpatch compare``."""

from __future__ import annotations

import shlex
from pathlib import Path

from patcher.cli import options
from patcher.cli.reports.report import READING, paths
from patcher.commands.reports import reporting
from patcher.commands.reports.reporting import ReadOptions
from patcher.messages.errors import Kind, Problem
from patcher.messages.report import CommandResult
from patcher.options.headings import READ

FORCE = options.switch(READ, "Compare also what should not be, and say why not.", "--force")
VENDOR = options.switch(
    READ, "Have msprof-analyze compare them, too (the first capture of each side).", "--msprof-analyze", "vendor"
)


@options.command("compare", paths("BEFORE... AFTER..."), FORCE, VENDOR, groups=(READING,))
def command(paths: tuple[Path, ...], force: bool, vendor: bool, options: ReadOptions) -> CommandResult:
    """Say what changed from one capture to another, how sure that is, and where it comes from.

    With several captures a side, `--` stands between the sides.

    \b
    Examples:
      rlpatch compare before/ after/
      rlpatch compare before/ after/ -o compared.html
      rlpatch compare run1/ run2/ -- run3/ run4/
    """
    return reporting.compare(*_sides(paths), options, force=force, vendor=vendor)


def _sides(paths: tuple[Path, ...]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The paths of both sides: those before and behind ``--``, or one a side."""
    typed = options.typed_words()
    at = len(paths) - len(typed) + typed.index("--") + 1 if "--" in typed else max(len(paths) // 2, 1)
    before, after = paths[:at], paths[at:]
    if before and after and ("--" in typed or len(paths) == 2):
        return before, after
    first, second = (shlex.join(map(str, side)) for side in (before or ("BEFORE",), after or ("AFTER",)))
    cause = "two sides are compared: one path each, or several with `--` between the sides"
    raise Problem(Kind.USAGE, cause, hint=f"rlpatch compare {first} -- {second}")
