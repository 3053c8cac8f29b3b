"""What is done to the pages when the site is built: commands and ratios go in, Chinese lines are joined."""

from __future__ import annotations

import json
import math
import os
import re
from html import escape
from pathlib import Path
from typing import Any

HISTORY = Path(__file__).resolve().parent.parent / "benchmarks" / "history.json"
WIDE = r"[\u3000-\u9fff\uff00-\uffef]"
POINT = r"[\u3000-\u303f\uff00-\uffef]"
LINE_END = "|".join(
    (
        rf"(?<={WIDE})\n {{0,3}}(?={WIDE})",
        rf"(?<={POINT})\n {{0,3}}(?![|#\s]|[-*] |\d+\. )",
        rf"(?<=[^\s|])\n {{0,3}}(?={POINT})",
    )
)


def on_page_markdown(markdown: str, page: Any = None, **_rest: Any) -> str:
    """Put the parts that are made where their places are marked, and join the lines of Chinese sentences."""
    chinese = page is not None and page.file.src_uri.endswith(".zh.md")
    made = {"<!-- commands -->": lambda: commands("zh" if chinese else "en"), "<!-- ratios -->": ratios}
    markdown = joined(markdown)
    for place, part in made.items():
        markdown = markdown.replace(place, part()) if place in markdown else markdown
    return markdown


def joined(markdown: str) -> str:
    """``markdown`` without the line ends that a browser would show as a blank in or beside Chinese text.

    They go between two Chinese characters and on both sides of Chinese punctuation. A row of a table, an item of a
    list, a heading and an indented block still begin a line of their own.
    """
    return re.sub(LINE_END, "", markdown)


def commands(language: str = "en") -> str:
    """The help of every command below a heading of its own."""
    before = os.environ.get("RLPATCH_LANG")
    os.environ["RLPATCH_LANG"] = language
    try:
        return _commands()
    finally:
        os.environ["RLPATCH_LANG"] = before or ""


def _commands() -> str:
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


def ratios() -> str:
    """A table and a plot of every ratio in the history, by benchmark."""
    parts = []
    for benchmark, told in json.loads(HISTORY.read_text(encoding="utf-8")).items():
        versions = list(dict.fromkeys(version for one in told.values() for version in one["by_version"]))
        rows = [
            f"| {escape(name)} | {'' if one['most'] is None else one['most']} | "
            + " | ".join(str(one["by_version"].get(version, "")) for version in versions)
            + f" | {_plot(name, versions, one)} |"
            for name, one in told.items()
        ]
        head = f"| ratio | at most | {' | '.join(versions)} | |\n|---|---|{'---|' * len(versions)}---|"
        parts.append("\n".join([f"## benchmarks/{benchmark}.py\n", head, *rows]))
    return "\n\n".join(parts)


def _plot(name: str, versions: list[str], told: dict[str, Any], width: int = 160, height: int = 36) -> str:
    """The versions from left to right, their ratios upwards; a dashed line is the most that it may be, or 1."""
    line = told["most"] or 1.0
    values = [*told["by_version"].values(), line]
    low, high = math.log(min(values)), math.log(max(values))

    def at(ratio: float) -> float:
        return height / 2 if high == low else height - 5 - (math.log(ratio) - low) / (high - low) * (height - 10)

    step = (width - 20) / max(len(versions) - 1, 1)
    points = [(10 + versions.index(version) * step, at(ratio)) for version, ratio in told["by_version"].items()]
    dots = "".join(f'<circle cx="{x:.0f}" cy="{y:.1f}" r="3" fill="currentColor"/>' for x, y in points)
    path = " ".join(f"{x:.0f},{y:.1f}" for x, y in points)
    return (
        f'<svg role="img" aria-label="{escape(name)}" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f'<line x1="0" x2="{width}" y1="{at(line):.1f}" y2="{at(line):.1f}" stroke="currentColor" stroke-dasharray="3"'
        f' opacity="0.5"/><polyline points="{path}" fill="none" stroke="currentColor"/>{dots}</svg>'
    )
