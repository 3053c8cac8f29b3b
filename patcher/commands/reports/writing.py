"""Files that a command writes because they were asked for: beside and over, so that no reader sees half of one."""

from __future__ import annotations

import contextlib
import errno
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from patcher.messages import CommandResult, Kind, Problem, Text


def write(result: CommandResult, file: Path, texts: Iterable[str], option: str) -> None:
    """Replace `file` atomically by `texts`; report success as a line, an OSError as a problem of `result`.

    `option` is the option that names another file, for the hint.
    """
    with _reported(result, file, option):
        _replace({file: texts}, file.parent)


def write_folder(result: CommandResult, folder: Path, texts: Mapping[str, str], option: str) -> None:
    """Write `texts`, by file name, into `folder`, none before all are complete; other files in `folder` stay.

    The outcome goes to `result`, as in `write`. A folder that was created is removed if writing fails.
    """
    with _reported(result, folder, option):
        is_new = not folder.exists()
        folder.mkdir(exist_ok=True)
        try:
            _replace({folder / name: [text] for name, text in texts.items()}, folder)
        except BaseException:
            if is_new:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise


def _replace(files: Mapping[Path, Iterable[str]], folder: Path) -> None:
    """Write each text to its file, all by way of a temporary folder in `folder`; existing files are replaced.

    Raises OSError, also if something other than a regular file is in the place of one; then no file has changed.
    """
    for file in files:
        if file.exists() and not file.is_file():
            raise OSError(errno.EINVAL, Text("{file} is not a regular file", file.name))
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as beside:
        for file, texts in files.items():
            with Path(beside, file.name).open("w", encoding="utf-8") as out:
                out.writelines(texts)
        for file in files:
            Path(beside, file.name).replace(file)


@contextlib.contextmanager
def _reported(result: CommandResult, path: Path, option: str) -> Iterator[None]:
    """Add to `result` that the block wrote `path`, or turn its OSError into a problem with a hint."""
    try:
        yield
    except OSError as error:
        missing = not path.parent.exists()
        hint = (
            f"mkdir -p {shlex.quote(str(path.parent))}" if missing else Text("write to another place: {option}", option)
        )
        cause = Text("{file} cannot be written: {error}", path, error.strerror or error)
        result.problems.append(Problem(Kind.ENVIRONMENT, cause, str(path), hint))
    else:
        result.done.append(Text("wrote {file}", path))
        result.lines += ["", Text("wrote {file}", path)]
