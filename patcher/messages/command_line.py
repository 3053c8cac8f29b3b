"""Command lines that the reader is told to type."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

_program = "rlpatch"


class CommandLine(str):
    """Command line of this program, quoted for a shell; `words` are the arguments.

    It begins with the command that started this process: `rlpatch`, or `python3 patch.pyz` for a bundle.
    """

    __slots__ = ("words",)
    words: tuple[str, ...]

    def __new__(cls, *words: str) -> CommandLine:  # noqa: D102
        line = super().__new__(cls, f"{_program} {quoted(words)}".rstrip())
        line.words = words
        return line

    def __getnewargs__(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.words


def quoted(words: Iterable[str]) -> str:
    """Return `words` as they are typed in a shell, each in quotes where it needs them."""
    import shlex  # noqa: PLC0415  (`status` prints no command where nothing is patched)

    return shlex.join(words)


@contextlib.contextmanager
def started_as(program: str) -> Iterator[None]:
    """Context manager in which every `CommandLine` that is built begins with `program`, already quoted for a shell."""
    global _program
    before, _program = _program, program
    try:
        yield
    finally:
        _program = before
