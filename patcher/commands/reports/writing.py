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
    with _reporting_outcome(result, file, option):
        _replace_files({file: texts}, file.parent)


def write_folder(result: CommandResult, folder: Path, texts: Mapping[str, str], option: str) -> None:
    """Write `texts`, by file name, into `folder`; no file is replaced before all texts are complete.

    A missing folder is created, but not its parent. `result` gets a line for success, or the OSError as a problem with
    the hint to choose another folder by `option`. A folder that was created is removed if writing fails.
    """
    with _reporting_outcome(result, folder, option):
        is_new = not folder.exists()
        folder.mkdir(exist_ok=True)
        try:
            _replace_files({folder / name: [text] for name, text in texts.items()}, folder)
        except BaseException:
            if is_new:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise


def _replace_files(files: Mapping[Path, Iterable[str]], folder: Path) -> None:
    """Replace each file by its texts, by way of a temporary folder in `folder`.

    Raises OSError if that fails, or if an existing path is not a regular file; in the latter case no file has changed.
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
def _reporting_outcome(result: CommandResult, path: Path, option: str) -> Iterator[None]:
    """Context in which `path` is written: report that in `result`, or an OSError as a problem of `result`."""
    try:
        yield
    except OSError as error:
        missing = not path.parent.exists()
        hint = (
            f"mkdir -p {shlex.quote(str(path.parent))}" if missing else Text("write to another place: {option}", option)
        )
        cause = Text("{file} cannot be written: {error}", file=path, error=error.strerror or error)
        result.problems.append(Problem(Kind.ENVIRONMENT, cause, str(path), hint))
    else:
        result.done.append(Text("wrote {file}", path))
        result.lines += ["", Text("wrote {file}", path)]
