"""Files that a command writes because they were asked for: beside and over, so that no reader sees half of one."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterable
from pathlib import Path

from patcher.messages.errors import Kind, Problem
from patcher.messages.report import CommandResult
from patcher.messages.text import Text
from patcher.store.filesystem.opened import require_regular


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
        missing = not file.parent.exists()
        hint = (
            f"mkdir -p {shlex.quote(str(file.parent))}" if missing else Text("name a file elsewhere: {option}", option)
        )
        cause = Text("{file} cannot be written: {error}", file, error.strerror or error)
        result.problems.append(Problem(Kind.ENVIRONMENT, cause, str(file), hint))
    else:
        result.done.append(Text("wrote {file}", file))
        result.lines += ["", Text("wrote {file}", file)]
