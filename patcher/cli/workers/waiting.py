"""The wait of ``rlpatch watch`` and ``rlpatch trigger --wait``: how long it is, and what is seen of it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from patcher.cli import options, terminal
from patcher.cli.options import Option
from patcher.commands.workers import watching
from patcher.commands.workers.watching import WatchData
from patcher.messages import Text, tables
from patcher.messages.language import translate
from patcher.messages.notes import wrapped
from patcher.options.headings import WAITED
from patcher.workers.worker import worker_name

TIMEOUT = Option(
    ["--timeout"],
    heading=WAITED,
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Wait at most this many seconds. Default: without limit.",
)
"""The option of commands that wait."""


@contextlib.contextmanager
def worker_display(head: Sequence[str]) -> Iterator[Callable[[WatchData], None]]:
    """Yield a function that shows the workers on stderr, below the lines `head`; with `-q` it shows nothing.

    On a terminal, the function redraws a table; else it prints a line for each change.
    """
    if options.quiet():
        yield lambda _data: None
    elif not terminal.redraws():
        yield _change_printer(head)
    else:
        with _live() as live:
            yield _table_drawer(live, head)


@contextlib.contextmanager
def line_display() -> Iterator[Callable[[Sequence[str], Sequence[str]], None]]:
    """Yield a function that shows (all lines, new lines) on stderr; with `-q` it shows nothing.

    A terminal that can be redrawn shows all lines that fit its height; otherwise the new lines are printed.
    """
    if options.quiet():
        yield lambda _lines, _news: None
    elif not terminal.redraws():
        yield _print_news
    else:

        def draw(lines: Sequence[str], news: Sequence[str]) -> None:  # noqa: ARG001
            _update(live, lines[: live.console.size.height - 1])

        with _live() as live:
            yield draw


def height() -> int | None:
    """Return the lines of the terminal that `line_display` redraws; None if there is none."""
    return shutil.get_terminal_size().lines if terminal.redraws() else None


def _live() -> Any:
    """Return a rich Live display on stderr, which is redrawn only on request."""
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(stderr=True), auto_refresh=False, transient=True)


def _update(live: Any, lines: Sequence[str]) -> None:
    from rich.text import Text as RichText

    live.update(RichText("\n".join(map(translate, lines)), no_wrap=True, overflow="ellipsis"), refresh=True)


def _print_news(_lines: Sequence[str], news: Sequence[str]) -> None:
    for line in news:
        click.echo(translate(line), err=True)


def _change_printer(head: Sequence[str]) -> Callable[[WatchData], None]:
    """Print `head` to stderr, and return a function that prints new states of workers there, and what is awaited."""
    states: dict[tuple[object, ...], str] = {}
    before = printed = ""
    for line in head:
        click.echo(translate(line), err=True)

    def show(data: WatchData) -> None:
        nonlocal before, printed
        awaited = watching.awaited_sentence(data)
        if before == awaited != printed:  # not at the first look, at which it may be over
            for line in wrapped(awaited):
                click.echo(line, err=True)
            printed = awaited
        before = awaited
        for row in data.workers:
            key = (row.target, row.stage, row.role, row.host, row.pid)
            state = row.state
            if row.alive is False:
                state = Text("{state}, process ended", state)
            if states.get(key) != state:
                states[key] = state
                worker = worker_name(row.host, row.replica, row.rank)
                line = Text("{stage} {worker}: {state}", stage=row.stage, worker=worker, state=state)
                if row.number is not None:
                    line = Text("{worker_state}, step {number}", worker_state=line, number=row.number)
                click.echo(translate(line), err=True)

    return show


def _table_drawer(live: Any, head: Sequence[str]) -> Callable[[WatchData], None]:
    """Return a function that draws `head`, the table, the lines below it and what is awaited, if changed."""
    drawn: list[str] = []

    def show(data: WatchData) -> None:
        nonlocal drawn
        size = live.console.size
        table = tables.workers(data.workers, size.width) if data.workers else []
        waits = wrapped(watching.awaited_sentence(data), width=size.width)
        lines = [*head, *table, *watching.lines_below_table(data), *waits]
        if len(lines) >= size.height:
            lines = [*lines[: size.height - 2], Text("… {count} more lines", len(lines) - size.height + 2)]
        if lines != drawn:
            drawn = lines
            _update(live, lines)

    return show
