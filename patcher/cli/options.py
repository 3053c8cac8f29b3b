"""The options and arguments that commands share, and what they mean."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patcher.cli.command import Group, Option
from patcher.commands.finding import LaunchOptions, SearchOptions
from patcher.commands.here import Here
from patcher.errors import Kind, Problem
from patcher.headings import OUTPUT, PLACE, PROFILERS, WHOSE, WINDOW
from patcher.request import OPTIONS
from patches.projects import projects

if TYPE_CHECKING:
    AnyType = click.ParamType[Any]
    from patcher.commands.finding import LaunchOptions, SearchOptions
    from patcher.commands.where import Where
else:  # click's types have no parameter before 8.5
    AnyType = click.ParamType


def _search(values: Mapping[str, Any]) -> SearchOptions:
    return SearchOptions(values["path"], values["python"], click.get_current_context().meta.get("typed", ()))


def _launch(values: Mapping[str, Any]) -> LaunchOptions:
    command = click.get_current_context().meta.get("launch", ())
    return LaunchOptions(os.environ, values["script"], command, values["config"])


SEARCH = Group(
    "search",
    _search,
    Option(
        ["--path"],
        heading=PLACE,
        type=click.Path(readable=False, path_type=Path),  # `find` says more of a folder that is closed
        metavar="DIR",
        help="Site-packages, unpacked wheel or checkout that holds the package.",
    ),
    Option(["--python"], heading=PLACE, metavar="EXE", help="Look in the environment of this interpreter."),
)


def _where(values: Mapping[str, Any]) -> Where:
    search = _search(values)
    address, nodes = values["ray"], values["nodes"]
    alone = [f"--{name}" for name in ("nodes", "gone") if values.get(name) is not None]
    if address is None and not alone:
        return Here(search, wait)
    if address is None:
        typed = list(search.typed)
        at = next((number for number, word in enumerate(typed) if word.startswith(alone[0])), len(typed))
        again = shlex.join(["rlpatch", *typed[:at], "--ray", *typed[at:]])
        raise Problem(Kind.USAGE, f"{alone[0]} is given without --ray", hint=again)
    from patcher.cluster.connecting import connect

    return connect(address, nodes, search, values.get("gone"))


WHERE = Group(
    "where",
    _where,
    *SEARCH.options,
    Option(
        ["--ray"],
        heading=PLACE,
        is_flag=False,
        flag_value="auto",
        metavar="[ADDRESS]",
        help="On all nodes of a Ray cluster, or none: the one that runs here, or that of HOST:PORT.",
    ),
    Option(
        ["--nodes"],
        heading=PLACE,
        metavar="LIST",
        help="With --ray, only these: names or addresses (* stands for any letters), NPU>0 for those with a resource of"
        " Ray, has-target for those with the target; several with commas.",
    ),
)
RECOVER = Group(
    "where",
    _where,
    *WHERE.options,
    Option(
        ["--gone"],
        heading=PLACE,
        metavar="LIST",
        help="With --ray, nodes that will never come back: the others need not remember anything for them.",
    ),
)
LAUNCH = Group(
    "launch",
    _launch,
    Option(
        ["--script"],
        heading=PROFILERS,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The launch script to look for other profilers in.",
    ),
    Option(
        ["--config"],
        heading=PROFILERS,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The YAML file that configures the run (verl), if it is not the installed one that the start names.",
    ),
)


class _Named(AnyType):
    """A value that is read as the option ``name`` of `apply` reads it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        """What `apply` would make of it; Problem (USAGE) for what it does not understand."""
        return OPTIONS[self.name].notation.read(f"--{self.name}", value)


def only_stage() -> Option:
    """The option of commands that show or revert what is known by its stage."""
    return Option(["--stage"], heading=WINDOW, type=_Named("stage"), metavar="NAME", help="Only this stage.")


def only_role() -> Option:
    """The option of commands that revert what is known by its role."""
    about = "Only the patches for this role."
    return Option(["--role"], heading=WHOSE, type=_Named("role"), metavar="NAME", help=about)


def dry_run() -> Option:
    """The option of commands that write."""
    about = "Say what would be done and write nothing."
    return Option(["-n", "--dry-run"], heading=OUTPUT, is_flag=True, help=about)


def targets(metavar: str, *, nargs: int = -1, required: bool = False) -> click.Argument:
    """The argument for targets, which shells can complete: names, and releases after ``==``."""
    name = "target" if nargs == 1 else "targets"
    return click.Argument([name], nargs=nargs, required=required, metavar=metavar, shell_complete=_complete)


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    names = {project.name: project.releases for project in projects()}
    offered = [*names, *(f"{name}=={release}" for name, releases in names.items() for release in releases)]
    return [text for text in offered if text.startswith(incomplete)]


def wait(message: str) -> None:
    """Tell the user whom the store waits for."""
    click.echo(message, err=True)
