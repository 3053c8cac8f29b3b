"""What ``rlpatch report`` and ``rlpatch compare`` have in common: which traces, which of their units, and the page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patcher.cli.command import Group, Option
from patcher.commands.reports.reporting import ReadOptions
from patcher.messages.errors import Kind, Problem
from patcher.options.headings import OUTPUT, READ

if TYPE_CHECKING:
    AnyType = click.ParamType[Any]
    from patcher.commands.reports.reporting import ReadOptions
else:  # click's types have no parameter before 8.5
    AnyType = click.ParamType


class _Units(AnyType):
    """A half-open range of units, ``A:B``."""

    name = "A:B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        """The two numbers; Problem (USAGE) for anything else."""
        found = re.fullmatch(r"(\d{1,18}):(\d{1,18})", str(value))
        if found and int(found[1]) < int(found[2]):
            return int(found[1]), int(found[2])
        numbers = re.findall(r"\d{1,18}", str(value))
        first = int(numbers[0]) if numbers else 30
        last = int(numbers[1]) if len(numbers) > 1 and int(numbers[1]) > first else first + 1
        raise Problem(
            Kind.USAGE, f"--units {value}: a range of units is A:B, without B itself", hint=f"--units {first}:{last}"
        )


def _reading(values: Mapping[str, Any]) -> ReadOptions:
    return ReadOptions(values["units"], values["page"])


READING = Group(
    "options",
    _reading,
    Option(
        ["--units"], heading=READ, type=_Units(), metavar="A:B", help="Only these units; B itself is not one of them."
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
