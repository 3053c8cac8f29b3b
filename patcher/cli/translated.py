"""The help in another language than English: what click, and the commands, write is said in it, and then wrapped."""

from __future__ import annotations

from collections.abc import Iterable

import click

from patcher.cli.options import help_lines
from patcher.messages import Text
from patcher.messages.language import terminal_translations, translate
from patcher.messages.notes import wrapped


def formatter() -> type[click.HelpFormatter]:
    """Return the class that formats help: translated if the terminal's language is not English."""
    return Formatter if terminal_translations() else click.HelpFormatter


class Formatter(click.HelpFormatter):
    """Help formatter that translates each text before wrapping the line."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:  # noqa: ARG002
        """Write the translated usage line for `prog` with `args`."""
        lines = wrapped(Text("Usage: {command}", f"{prog} {args}"), further=" " * 6, width=self.width)
        self.write("".join(f"{line}\n" for line in lines))

    def write_heading(self, heading: str) -> None:
        """Write a translated heading."""
        title = translate(Text("{heading}:", Text(heading)))
        self.write(f"{'':{self.current_indent}}{title}\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs, translated; a paragraph that begins with the control character BS keeps its lines."""
        indent = " " * self.current_indent
        for number, paragraph in enumerate(text.split("\n\n")):
            raw = paragraph.startswith("\b\n")
            lines = [indent + translate(Text(line)) for line in paragraph.splitlines()[1:]] if raw else []
            joined = " ".join(paragraph.split())
            lines_shown = lines or wrapped(Text(joined), indent, indent, self.width)
            self.write("\n" * (number > 0) + "".join(f"{line}\n" for line in lines_shown))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:  # noqa: ARG002
        """Write terms and their descriptions in two columns, translated."""
        self.write("".join(help_lines([*rows], self.width)))
