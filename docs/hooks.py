"""What is done to the pages when the site is built: the options of every command go in, Chinese lines are joined."""

from __future__ import annotations

import re
from typing import Any

PLACE = "<!-- commands -->"
WIDE = r"[\u3000-\u9fff\uff00-\uffef]"
POINT = r"[\u3000-\u303f\uff00-\uffef]"
LINE_END = "|".join(
    (
        rf"(?<={WIDE})\n {{0,3}}(?={WIDE})",
        rf"(?<={POINT})\n {{0,3}}(?![|#\s]|[-*] |\d+\. )",
        rf"(?<=[^\s|])\n {{0,3}}(?={POINT})",
    )
)


def on_page_markdown(markdown: str, **_page: Any) -> str:
    """Put the reference of the command line where its place is marked, and join the lines of Chinese sentences."""
    return joined(markdown.replace(PLACE, commands()) if PLACE in markdown else markdown)


def joined(markdown: str) -> str:
    """``markdown`` without the line ends that a browser would show as a blank in or beside Chinese text.

    They go between two Chinese characters and on both sides of Chinese punctuation. A row of a table, an item of a
    list, a heading and an indented block still begin a line of their own.
    """
    return re.sub(LINE_END, "", markdown)


def commands() -> str:
    """The help of every command below a heading of its own."""
    import click

    from patcher.cli import rlpatch

    # As the group is run: a command keeps the names of its help from the first context that it is shown in.
    settings = {**rlpatch.context_settings, "max_content_width": 78}
    root = click.Context(rlpatch, info_name="rlpatch", terminal_width=78, **settings)
    parts = []
    for name in rlpatch.list_commands(root):
        command = rlpatch.get_command(root, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=root, terminal_width=78, max_content_width=78)
        parts.append(f"## {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)
