"""What ``rlpatch report`` and ``rlpatch compare`` have in common: which traces, which of their units, and the page."""

from __future__ import annotations

import re
from pathlib import Path

import click

from patcher.cli.command import Group, Option
from patcher.commands.reports.reporting import ReadOptions
from patcher.messages.errors import Kind, Problem
from patcher.options.headings import OUTPUT, READ


def _units(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, int] | None:  # noqa: ARG001
    """The half-open range ``A:B`` as two numbers; Problem (USAGE) for anything else."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,18}):(\d{1,18})", value)
    if not found or int(found[1]) >= int(found[2]):
        cause = f"--units {value}: a range of units is A:B, without B itself"
        raise Problem(Kind.USAGE, cause, hint="--units 30:60, for example")
    return int(found[1]), int(found[2])


READING = Group(
    "options",
    lambda values: ReadOptions(**values),
    Option(
        ["--units"], heading=READ, callback=_units, metavar="A:B", help="Only these units; B itself is not one of them."
    ),
    Option(
        ["-o", "page"],
        heading=OUTPUT,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE.html",
        help="Write a page that needs no network, below 1 MB.",
    ),
)


def paths(metavar: str) -> click.Argument:
    """The argument for traces."""
    kind = click.Path(readable=False, path_type=Path)  # `find` says more of what is missing or closed
    return click.Argument(["paths"], nargs=-1, required=True, type=kind, metavar=metavar)
