"""Files that a command writes because they were asked for: beside and over, so that no reader sees half of one."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterable
from pathlib import Path

from patcher.messages.errors import Kind, Problem
from patcher.messages.report import CommandResult
from patcher.store.filesystem.opened import require_regular


def write_folder(result: CommandResult, folder: Path, files: Iterable[tuple[str, bytes]], option: str) -> None:
    """Write files, each with its path below ``folder``, which appears with all of them in it.

    What was done is a line of ``result``; what was not is a problem of it, and ``option`` is what names another folder.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as beside:
            new, count = Path(beside, folder.name), 0
            new.mkdir()
            for name, content in files:
                count += 1
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_bytes(content)
            new.rename(folder)  # over an empty folder, and over nothing else
    except OSError as error:
        result.problems.append(_unwritten(folder, error, option, "folder"))
    else:
        _wrote(result, folder, f" ({count:,} files)")


def write(result: CommandResult, file: Path, texts: Iterable[str], option: str) -> None:
    """Write a file beside and over: whoever reads the old one meanwhile reads all of it.

    What was done is a line of ``result``; what was not is a problem of it, and ``option`` is what names another file.
    """
    try:
        if file.exists():
            require_regular(file.stat(), file)
        with tempfile.TemporaryDirectory(prefix=".", dir=file.parent) as beside:
            new = Path(beside, file.name)
            with new.open("w", encoding="utf-8") as out:
                out.writelines(texts)
            new.replace(file)
    except OSError as error:
        result.problems.append(_unwritten(file, error, option, "file"))
    else:
        _wrote(result, file)


def _unwritten(path: Path, error: OSError, option: str, what: str) -> Problem:
    missing = not path.parent.exists()
    hint = f"mkdir -p {shlex.quote(str(path.parent))}" if missing else f"name a {what} elsewhere: {option}"
    return Problem(Kind.ENVIRONMENT, f"{path} cannot be written: {error.strerror or error}", str(path), hint)


def _wrote(result: CommandResult, path: Path, more: str = "") -> None:
    result.done.append(f"wrote {path}")
    result.lines += ["", f"wrote {path}{more}"]
