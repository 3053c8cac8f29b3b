"""The Python programs among the words of an invocation, and the files behind them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from patcher.launches.invocation import Argument, Invocation
from patcher.launches.names import LAUNCHERS, is_python, name_of


class Program(NamedTuple):
    """A Python program that is started: a file, or a ``module`` by its dotted name, and the words behind it."""

    name: str
    module: bool
    words: tuple[Argument, ...]

    def file(self, folders: Sequence[Path]) -> Path | None:
        """The file of the program in the first of ``folders`` that has it, None if none of them has."""
        path = self.name.replace(".", "/")
        names = [f"{path}.py", f"{path}/__main__.py"] if self.module else [self.name]
        for file in (folder / name for folder in folders for name in names):
            with suppress(OSError, ValueError):
                if file.is_file():
                    return file.absolute()
        return None


def programs(invocation: Invocation) -> Iterator[Program]:
    """What may be a Python program among the words: behind ``-m``, or a file that Python or a launcher is given."""
    argv = invocation.argv
    head = name_of(argv[0]) if argv else ""
    for at, word in enumerate(argv):
        module = bool(at) and argv[at - 1] == "-m"
        takes_files = not at or is_python(head) or head in LAUNCHERS
        if word is not None and (module or (takes_files and word.endswith(".py"))):
            yield Program(word, module, argv[at + 1 :])


def decorator(text: str, name: str) -> dict[str | int, object] | None:
    """The constants that a decorator of that dotted name is given in a Python text, by keyword or place.

    None where no function of the module has it, or where the text is no Python.
    """
    try:
        functions = [one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for call in (call for function in functions for call in function.decorator_list):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == name:
            given: list[tuple[str | int | None, ast.expr]] = [*enumerate(call.args)]
            given += [(keyword.arg, keyword.value) for keyword in call.keywords]
            return {key: one.value for key, one in given if key is not None and isinstance(one, ast.Constant)}
    return None
