"""What ``rlpatch watch`` and ``rlpatch trigger --wait`` have in common: how long they wait, and what is seen of it."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from patcher.cli.command import Option
from patcher.commands.workers import watching
from patcher.commands.workers.watching import WatchData
from patcher.messages import tables
from patcher.options.headings import WAITED


def timeout() -> Option:
    """The option of commands that wait."""
    return Option(
        ["--timeout"],
        heading=WAITED,
        type=click.FloatRange(0),
        metavar="SECONDS",
        help="Wait no longer than this. Default: as long as it takes.",
    )


class _Lines:
    """What changes where nobody looks at a terminal: a line for each worker that has gone on."""

    def __init__(self, head: Sequence[str]) -> None:
        self._known: dict[tuple[object, ...], str] = {}
        self._say(head)

    def show(self, data: WatchData) -> None:
        """Say who has come, gone on, or died since the last time."""
        for row in data.workers:
            key = (row.target, row.stage, row.role, row.host, row.pid)
            state = row.state if row.alive is not False else f"{row.state}, gone"
            if self._known.get(key) != state:
                self._known[key] = state
                unit = "" if row.number is None else f", unit {row.number}"
                replica = f" replica {row.replica}" if row.replica else ""
                self._say([f"{row.stage} {row.host}{replica} rank {row.rank}: {state}{unit}"])

    def table(self, data: WatchData) -> list[str]:
        """The lines of the table in the report, which changes led to."""
        self.show(data)
        return _table(data)

    def _say(self, lines: Sequence[str]) -> None:
        for line in () if _quiet() else lines:
            click.echo(line, err=True)


class _Drawn:
    """The table on a terminal. It is drawn again only where it has changed, so it does not flicker."""

    def __init__(self, live: Any, head: Sequence[str]) -> None:
        self._live, self._head, self._text = live, tuple(head), ""

    def show(self, data: WatchData) -> None:
        """Draw it, as high as the terminal is."""
        from rich.text import Text

        size = self._live.console.size
        table = (
            tables.workers(data.workers, size.width)
            if data.workers
            else ["no worker has written yet; Ctrl-C ends this"]
        )
        lines = [*self._head, *table, *watching.below(data)]
        if len(lines) >= size.height:
            lines = [*lines[: size.height - 2], f"… {len(lines) - size.height + 2} more lines"]
        text = "\n".join(lines)
        if text != self._text:
            self._text = text
            self._live.start()
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def table(self, data: WatchData) -> list[str]:
        """The lines of the table in the report."""
        return _table(data)


@contextlib.contextmanager
def screen(head: Sequence[str]) -> Iterator[Any]:
    """A table that is drawn anew on a terminal, a line for each change elsewhere; both on stderr, below ``head``."""
    if not sys.stderr.isatty() or _quiet():
        yield _Lines(head)
        return
    from rich.console import Console
    from rich.live import Live

    live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
    try:
        yield _Drawn(live, head)
    finally:
        live.stop()


def _quiet() -> bool:
    return bool({"-q", "--quiet"} & set(click.get_current_context().meta.get("typed", ())))


def _table(data: WatchData) -> list[str]:
    return tables.workers(data.workers, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)
