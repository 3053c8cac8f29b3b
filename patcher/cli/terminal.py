"""The display of a terminal while a command works: bars on stderr, which are gone when it is done."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import click

from patcher.cli import options
from patcher.commands.reports.tracing import WorkDisplay
from patcher.messages import Text
from patcher.messages.language import translate
from patcher.progress import Progress, ignore

DELAY_S = 1.0
"""Seconds for which nothing is shown: what ends within them needs no bar."""


def redraws() -> bool:
    """Tell whether stderr is a terminal that can be redrawn, and `-q` is not typed."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    return terminal and os.environ.get("TERM") != "dumb" and not options.quiet()


@contextlib.contextmanager
def reading(action: str, total: int) -> Iterator[Progress]:
    """Show a progress bar of `total` bytes, labelled `action`, after `DELAY_S` seconds; yield its function."""
    if "--json" in options.typed_words() or not redraws():
        yield ignore
        return
    from rich.progress import DownloadColumn, TimeElapsedColumn

    bar = _bar(DownloadColumn(), TimeElapsedColumn())
    task = bar.add_task(translate(action), total=total + 1)  # it stands still where it is complete

    def read(count: int) -> None:
        bar.advance(task, count)
        if bar.tasks[0].completed >= total:
            bar.update(task, description=translate(Text("analysing")))

    late = threading.Timer(DELAY_S, bar.start)
    late.daemon = True
    late.start()
    try:
        yield read
    finally:
        late.cancel()
        late.join()
        bar.stop()


@contextlib.contextmanager
def working(action: str, total: int) -> Iterator[WorkDisplay]:
    """Show a bar of `total` items, labelled `action`, or print a line for each finished item unless `-q` is typed."""
    from rich.markup import escape
    from rich.progress import MofNCompleteColumn, TextColumn, TimeElapsedColumn

    bar = _bar(MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[names]}"))
    drawn = redraws()
    silent = drawn or options.quiet()
    task = bar.add_task(translate(action), total=total, names="")

    def at_work(names: Sequence[str]) -> None:
        """Show the first of `names` beside the bar, and how many more are in progress."""
        name = "".join(names[:1])
        if len(names) > 1:
            name = Text("{name} and {count} more", name=names[0], count=len(names) - 1)
        bar.update(task, names=escape(translate(name)))

    def done(line: str) -> None:
        """Advance the bar by one item; if no bar is drawn, print the item's ``line`` to stderr, but not with `-q`."""
        bar.advance(task)
        if not silent:
            text = Text("{action} {number:.0f} of {total}: {item}")
            progress_line = text.filled(action=action, number=bar.tasks[0].completed, total=total, item=line)
            click.echo(translate(progress_line), err=True)

    with bar if drawn else contextlib.nullcontext():
        yield WorkDisplay(at_work, done)


def _bar(*columns: Any) -> Any:
    """Return a transient rich progress bar on stderr, with `columns` to the right of the bar."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    front = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20))
    return Progress(*front, *columns, console=Console(stderr=True), transient=True)
