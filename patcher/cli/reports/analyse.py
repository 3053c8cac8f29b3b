"""``rlpatch analyse``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patcher.cli.command import Command, Group, Option
from patcher.cli.reports.traces import folder as traces_folder
from patcher.commands.reports import tracing
from patcher.commands.reports.tracing import ParseOptions
from patcher.options.headings import PARSED

if TYPE_CHECKING:
    from patcher.commands.reports.tracing import ParseOptions
    from patcher.messages.report import CommandResult

EXPORTS = ("text", "db")


def _exports(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    chosen = tuple(word.strip() for word in (value or "").split(",") if word.strip())
    if set(chosen) - set(EXPORTS):
        raise click.BadParameter(f"{value} is none of text, db and text,db", context, parameter)
    return tuple(sorted(set(chosen), key=EXPORTS.index))


def _options(values: Mapping[str, Any]) -> ParseOptions:
    return ParseOptions(
        values["python"], values["exports"], values["jobs"], values["patience"], values["advise"], values["modules"],
        values["analyze"],
    )  # fmt: skip


PARSE = Group(
    "parse",
    _options,
    Option(["--python"], heading=PARSED, metavar="EXE", help="The interpreter with the torch_npu that recorded."),
    Option(
        ["--export", "exports"],
        heading=PARSED,
        metavar="text,db",
        callback=_exports,
        help="What to export. Default: what was asked for when it was recorded.",
    ),
    Option(
        ["--jobs"],
        heading=PARSED,
        type=click.IntRange(1),
        metavar="N",
        help="How many traces at a time. Default: half as many as there are cores.",
    ),
    Option(
        ["--timeout", "patience"],
        heading=PARSED,
        type=click.FloatRange(0, min_open=True),
        default=600.0,
        metavar="SECONDS",
        help="End a parser that neither computes nor writes for this long. Default: 600.",
    ),
    Option(["--advise"], heading=PARSED, is_flag=True, help="Run the advisor of msprof-analyze, too."),
    Option(
        ["--modules"],
        heading=PARSED,
        is_flag=True,
        help="Break the time down by module, which needs `apply --module-ranges` and a database.",
    ),
    Option(
        ["--msprof-analyze", "analyze"],
        heading=PARSED,
        default="",
        metavar="EXE",
        help="Default: beside the interpreter, beside rlpatch, or on PATH.",
    ),
)


class _Lines:
    """Progress where nobody looks at a terminal: nothing until something is done, then one line."""

    def begin(self, what: str, total: int) -> None:
        """Remember it."""
        self.what, self.total, self.count = what, total, 0

    def at_work(self, names: Sequence[str]) -> None:
        """Say nothing."""

    def done(self, line: str) -> None:
        """Say it, unless nothing is to be said."""
        self.count += 1
        if not {"-q", "--quiet"} & set(click.get_current_context().meta.get("typed", ())):
            click.echo(f"{self.what} {self.count} of {self.total}: {line}", err=True)


@contextlib.contextmanager
def _shown() -> Iterator[Any]:
    """A bar on a terminal, a line for each trace elsewhere; both on stderr."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    with _bar() as bar:
        yield bar


@contextlib.contextmanager
def _bar() -> Iterator[Any]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("{task.fields[names]}"),
    )  # fmt: skip

    class Bar:
        def begin(self, what: str, total: int) -> None:
            self.task = progress.add_task(what, total=total, names="")

        def at_work(self, names: Sequence[str]) -> None:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            progress.update(self.task, names=escape(f"{names[0]}{more}" if names else ""))

        def done(self, _line: str) -> None:
            progress.advance(self.task)

    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar()


@click.command("analyse", cls=Command, params=[traces_folder()], groups=(PARSE,))
def command(folder: Path, parse: ParseOptions) -> CommandResult:
    """Parse what torch_npu recorded, with the torch_npu that recorded it, and run msprof-analyze where it is found.

    DIR is the folder that traces go to, by default rlpatch_traces in the working directory, or one trace. Traces of
    torch.profiler need nothing. A parsing that fails leaves the folder as it was.

    \b
    Examples:
      rlpatch analyse
      rlpatch analyse /data/traces --python /opt/venv/bin/python
      rlpatch analyse --export text,db --modules --advise
    """
    return tracing.analyse(folder, parse, _shown)
