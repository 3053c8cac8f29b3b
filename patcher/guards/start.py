"""A command of a launch after expansion, and the marks in its words."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from itertools import dropwhile
from pathlib import Path
from posixpath import basename

from patcher.guards import programs

OUTSIDE, INSIDE = "\0", "\1"
"""Stand in a word for an expansion: of what only the run tells, and of whole names that stand among the texts."""
_LOCAL_PATH = rf"(?!/(usr|s?bin|opt)/|(.*/)?({programs.PYTHON}|{programs.SHELL})$).*/"
assigns = partial(re.match, r"(?a)([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=")
wraps = partial(re.match, programs.WRAPPER)


def is_known(text: str) -> bool:
    """Tell whether ``text`` contains no part that is known only at run time."""
    return OUTSIDE not in text and INSIDE not in text


def is_hidden(word: str) -> bool:
    """Tell whether ``word`` may set any key: the part before = is unknown, or joined from several expansions.

    False for a path in a folder that is not known.
    """
    key = word.partition("=")[0].strip("[]'\",")
    is_path = re.match(r"[\0\1]+/", key)
    return not is_path and (OUTSIDE in key or (INSIDE in key and key != INSIDE))


def with_ellipses(text: object) -> str:
    """Return ``text`` for people, with … for each part that is known only at run time."""
    return re.sub("[\0\1]+", "…", str(text))


@dataclass
class Start:
    """A command; ``sure`` tells that the launch certainly runs it. Files that it names are in ``folders``.

    ``texts`` are its words behind leading assignments; ``command_words`` those from the program on, behind wrappers
    such as nohup. ``name`` is that of the program, with its path if it is a local one; ``program`` is "" unless it is
    Python or a launcher of Python, here, and gets the environment. ``is_emptied`` tells that ``env`` or ``exec`` with
    an option is before it, which may empty the environment. ``variables`` are set for it, or if the command
    ``is_export`` for what follows (None: unset). ``shape`` has the words of the program, with OUTSIDE for each that may
    set any key.
    """

    where: str
    words: tuple[str, ...]
    sure: bool = False
    folders: tuple[Path, ...] = ()
    texts: list[str] = field(init=False)
    command_words: list[str] = field(init=False)
    name: str = field(init=False)
    program: str = field(init=False)
    is_emptied: bool = field(init=False)
    is_export: bool = field(init=False)
    variables: dict[str, str | None] = field(init=False)
    shape: str = field(init=False)

    def __post_init__(self) -> None:
        self.texts = [*dropwhile(assigns, self.words)]
        self.command_words = [*dropwhile(wraps, self.texts)]
        before = self.words[: len(self.words) - len(self.command_words)]
        first = "".join(self.command_words[:1])
        self.name = first if re.match(_LOCAL_PATH, first) else basename(first)
        self.is_emptied = bool(re.search(r"(^|[\s/])(env|exec) -", " ".join(before)))
        self.program = self.name if re.fullmatch(programs.PYTHON, self.name) and not self.is_emptied else ""
        self.is_export = bool(re.fullmatch(rf"(?s){programs.EXPORTS}", " ".join(self.command_words)))
        assignments = self.command_words[1:] if self.is_export else filter(assigns, before)
        pairs = (word.partition("=") for word in assignments)
        self.variables = {name: value if equals else None for name, equals, value in pairs}
        self.shape = " ".join(OUTSIDE if is_hidden(word) else word for word in (self.name, *self.command_words[1:]))
