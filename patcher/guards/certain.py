"""Lines of a Python program or of a YAML file that certainly count if a launch names the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_STATEMENT = r"(?m)^(?=[^\s)\]}#])"  # the beginning of one at the outermost level
_DEFINES = r"(async )?def\b|class\b"
_BRANCHES = r"(if|elif|else|for|while|try|except|finally|with|match|async)\b"
_CHOOSES = r"\b(if|or|and|lambda|for)\b"
_LEAVES = r"\b(raise|_?exit|quit|abort)\b"


class LaunchText(NamedTuple):
    """A word of a command, or a line of a file, without quotes.

    ``plain`` tells that the launch surely passes there, and exports the text or starts Python with it.
    """

    where: str
    text: str
    plain: bool = False


def normal(text: str) -> str:
    """Return ``text`` without quotes, backslashes, line continuations and marks, so that a name is in one piece."""
    return re.sub(r"\\\n|[\"'\\\2]", "", text)


def certain(path: Path, text: str) -> list[LaunchText]:
    """Return the lines of a file that certainly count, each with the line after it: all of YAML.

    Of Python, these are the statements about a ``runtime_env`` at the outermost level.
    """
    lines = [*text.splitlines(), ""]
    numbers: Iterable[int] = range(1, len(lines)) if path.suffix in (".yaml", ".yml") else _outermost(text)
    return [LaunchText(f"{path}:{at}", normal("\n".join(lines[at - 1 : at + 1])), plain=True) for at in numbers]


def _outermost(text: str) -> Iterator[int]:
    """Yield the numbers of lines that a Python program certainly runs, up to a statement that may end it."""
    text = re.sub(r"(?s)(\"\"\"|''').*?\1", lambda match: "\n" * match[0].count("\n"), text)
    at = 1
    for statement in re.split(_STATEMENT, text):
        is_definition = re.match(_DEFINES, statement)
        if not is_definition and re.search(_LEAVES, statement):
            return
        chooses = is_definition or re.match(_BRANCHES, statement) or re.search(_CHOOSES, statement)
        if "runtime_env" in statement and not chooses:
            yield from range(at, at + statement.count("\n"))
        at += statement.count("\n")
