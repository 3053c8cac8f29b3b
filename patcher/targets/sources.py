"""The source of a module as Python would load it, or the reason why it would load something else."""

from __future__ import annotations

import os
from pathlib import Path

from patcher.messages import Kind, Problem, Text, permission_problem, problem_of

_EXTENSIONS = (".so", ".pyd")
_AGAIN = Text("install the project again: the installed release should contain the file")


def module_exists(file: Path) -> bool:
    """Tell whether the module `file` exists, also compiled. Raises Problem (ENVIRONMENT) if its folder is closed."""
    try:
        os.lstat(file)
    except PermissionError as error:
        raise permission_problem(error) from None
    except OSError:
        return bool(_compiled(file))
    return True


def read(file: Path) -> bytes:
    """Return the bytes of the module `file`.

    Raises Problem: STRUCTURE if it does not exist, ENVIRONMENT if it cannot be read or Python would load another file.
    """
    refuse_other_forms(file)
    try:
        if os.path.lexists(file) and not file.is_file():  # to read a pipe would wait for somebody who writes
            cause = Text("{file} is neither a regular file nor a link to a regular file", file.name)
            raise Problem(Kind.ENVIRONMENT, cause, str(file), _AGAIN)
        return file.read_bytes()
    except FileNotFoundError:
        raise Problem(Kind.STRUCTURE, Text("{file} does not exist", file.name), str(file), _AGAIN) from None
    except OSError as error:
        raise problem_of(error) from None


def refuse_other_forms(file: Path) -> None:
    """Raise Problem (ENVIRONMENT) if Python would load an extension, bytecode or a package instead of ``file``."""
    compiled = _compiled(file)
    package = file.with_suffix("")
    if file.is_file() and (package / "__init__.py").is_file():
        compiled.append(package)
    if compiled:
        cause = Text("{file} cannot be patched: the source is missing, and only {other_file} exists")
        if os.path.lexists(file):
            cause = Text("{file} cannot be patched, because Python loads {other_file} instead")
        cause = cause.filled(file=file.name, other_file=compiled[0].name)
        hint = Text("install the project from source, with its .py files")
        raise Problem(Kind.ENVIRONMENT, cause, str(compiled[0]), hint)


def text(file: Path) -> str | None:
    """Return the text of a metadata file, other bytes than UTF-8 replaced; None if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def entries(folder: Path) -> list[str]:
    """Return the names in a folder, [] if it cannot be listed."""
    try:
        return os.listdir(folder)  # noqa: PTH208  (names only: site-packages has thousands of them)
    except OSError:
        return []


def _compiled(file: Path) -> list[Path]:
    """Return the extension modules with the name of `file`, then its `.pyc` beside it if the source is missing."""
    names = [name for name in entries(file.parent) if name.partition(".")[0] == file.stem]
    extensions = [name for name in names if name.endswith(_EXTENSIONS)]
    alone = [] if file.name in names else [name for name in names if name == f"{file.stem}.pyc"]
    return [file.parent / name for name in sorted(extensions) + alone]
