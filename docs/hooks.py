"""What is written into the pages when the site is built: every command with its options, from click."""

from __future__ import annotations

from typing import Any

PLACE = "<!-- commands -->"


def on_page_markdown(markdown: str, **_page: Any) -> str:
    """Put the reference of the command line where its place is marked."""
    return markdown.replace(PLACE, commands()) if PLACE in markdown else markdown


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
