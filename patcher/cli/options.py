"""The options that commands share, and what they mean."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from patcher.errors import Kind, Problem, refused

if TYPE_CHECKING:
    from patcher.commands.asked import Launch, Where
    from patcher.report import Report

F = TypeVar("F", bound=Callable[..., Any])


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """One decorator out of several, in the order of the help."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


output = together(
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout."),
    click.option(
        "-q", "--quiet", is_flag=True, help="Print errors, and only what was asked for: a diff, a JSON document."
    ),
    click.option("-v", "--verbose", is_flag=True, help="Show details, and the traceback of an unexpected failure."),
    click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        help="Default: on a terminal, unless NO_COLOR is set.",
    ),
)
where = together(
    click.option(
        "--path",
        type=click.Path(readable=False, path_type=Path),  # `find` says more of a folder that is closed
        metavar="DIR",
        help="Site-packages, unpacked wheel or checkout that holds the package.",
    ),
    click.option("--python", metavar="EXE", help="Look in the environment of this interpreter."),
)
dry_run = click.option("-n", "--dry-run", is_flag=True, help="Say what would be done and write nothing.")
launch = together(
    click.option(
        "--script",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The launch script to look for other profilers in.",
    ),
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The YAML file that configures the run (verl), if it is not the installed one that the start names.",
    ),
)


def targets(metavar: str, *, nargs: int = -1, required: bool = False) -> Callable[[F], F]:
    """The argument for targets, which shells can complete: names, and releases after ``==``."""
    name = "target" if nargs == 1 else "targets"
    return click.argument(name, nargs=nargs, required=required, metavar=metavar, shell_complete=_complete)


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    from patches.projects import projects

    names = {project.name: project.releases for project in projects()}
    offered = [*names, *(f"{name}=={release}" for name, releases in names.items() for release in releases)]
    return [text for text in offered if text.startswith(incomplete)]


def place(words: dict[str, Any]) -> Where:
    """Where to look, by ``--path`` and ``--python``."""
    from patcher.commands.asked import Where

    typed = click.get_current_context().find_root().meta.get("typed", ())
    return Where(words["path"], words["python"], typed)


def start(words: dict[str, Any]) -> Launch:
    """How the run will be started, by ``--script``, ``--config`` and the words after ``--``."""
    import os

    from patcher.commands.asked import Launch

    command = click.get_current_context().find_root().meta.get("launch", ())
    return Launch(os.environ, words["script"], command, words["config"])


def run(command: str, words: dict[str, Any], work: Callable[[], Report]) -> NoReturn:
    """Run ``work``, show its report, and exit with its code; every failure ends as a report, too."""
    from patcher.report import Report

    as_json, quiet, verbose, color = (words[name] for name in ("as_json", "quiet", "verbose", "color"))
    try:
        report = work()
    except Problem as problem:
        report = Report(command, problems=[problem])
    except KeyboardInterrupt:  # before the store was asked: it answers for itself, and nothing that follows it waits
        report = Report(command, problems=[Problem(Kind.INTERRUPTED, "stopped by the keyboard")])
    except PermissionError as error:
        report = Report(command, problems=[refused(error)])
    except Exception as error:
        if verbose:
            raise
        cause = f"{type(error).__name__}: {error}"
        report = Report(
            command,
            problems=[Problem(Kind.UNEXPECTED, cause, hint="the same command with -v shows where; please report it")],
        )
    coloured = {"always": True, "never": False}.get(color)
    sys.exit(report.show(as_json=as_json, quiet=quiet, color=coloured, verbose=verbose))


def wait(message: str) -> None:
    """Tell the user whom the store waits for."""
    click.echo(message, err=True)
