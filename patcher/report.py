"""What a command has to say, for people and for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import click

from patcher import __version__
from patcher.errors import Problem

SCHEMA = 1
"""Of the JSON envelope; it grows by fields, and the number changes when one goes or means something else."""


class Report:
    """The result of one command.

    ``lines`` are for people and go to stdout, ``data`` is what ``--json`` prints there instead; ``raw`` is output
    that must not be touched (a diff). ``messages`` and ``problems`` go to stderr. The exit code is that of the
    first problem.
    """

    def __init__(
        self, command: str, *, data: Mapping[str, object] | None = None, problems: Sequence[Problem] = ()
    ) -> None:
        self.command = command
        self.lines: list[str] = []
        self.data: dict[str, object] = dict(data or {})
        self.raw: bytes | None = None
        self.messages: list[str] = []
        self.problems: list[Problem] = list(problems)

    @property
    def exit_code(self) -> int:
        """0, or the code of the first problem."""
        return self.problems[0].kind.exit_code if self.problems else 0

    def show(self, *, as_json: bool, quiet: bool, color: bool | None) -> None:
        """Print everything; ``color`` None means: on a terminal only, and not with NO_COLOR."""
        for message in [] if quiet else self.messages:
            click.echo(_tinted(message), err=True, color=_color(color))
        for problem in self.problems:
            click.echo(click.style("Error: ", fg="red", bold=True) + str(problem), err=True, color=_color(color))
        if as_json:
            import json  # 2 ms, and most runs print text

            click.echo(json.dumps(self.envelope(), indent=2, ensure_ascii=False, default=str))
        elif self.raw is not None:
            self._show_raw(_color(color))
        elif not quiet:
            for line in self.lines:
                click.echo(_tinted(line), color=_color(color))

    def envelope(self) -> dict[str, object]:
        """The versioned JSON document."""
        problems = [
            {
                "kind": p.kind.name.lower(), "exit_code": p.kind.exit_code, "title": p.kind.title,
                "cause": p.cause, "where": p.where, "next": p.hint, "notes": list(p.notes),
            }
            for p in self.problems
        ]  # fmt: skip
        return {
            "schema": SCHEMA,
            "rlpatch": __version__,
            "command": self.command,
            "exit_code": self.exit_code,
            "result": self.data,
            "messages": self.messages,
            "problems": problems,
        }

    def _show_raw(self, color: bool | None) -> None:
        data = self.raw or b""
        if (color is None and sys.stdout.isatty()) or color:
            for line in data.decode("utf-8", "replace").splitlines():
                tint = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
                click.echo(click.style(line, fg=tint, bold=line.startswith(("+++", "---", "diff"))), color=True)
        else:
            # Bytes, because the context lines of a diff come in whatever encoding the file has.
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def _color(wanted: bool | None) -> bool | None:
    return False if wanted is None and os.environ.get("NO_COLOR") else wanted


_TINTS = {
    **dict.fromkeys(("patched", "reverted", "intact", "off"), "green"),
    **dict.fromkeys(("warning", "edited", "lost", "missing", "armed", "unknown"), "yellow"),
    **dict.fromkeys(("tampered", "on"), "red"),
    **dict.fromkeys(("note", "next"), "cyan"),
}


def _tinted(line: str) -> str:
    """``line`` with its first word coloured, if it is one of those that open a line of a report."""
    bare = line.lstrip()
    word = bare.partition(" ")[0].rstrip(":")
    if word not in _TINTS:
        return line
    indent = line[: len(line) - len(bare)]
    return indent + click.style(word, fg=_TINTS[word]) + bare[len(word) :]
