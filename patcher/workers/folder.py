"""``SAVE_PATH/.rlpatch``: the states that workers keep there, and the requests to them. Anybody may write into it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from patcher.messages import Text
from patcher.store.filesystem.opened import opened
from patcher.workers import request as requests
from patcher.workers import worker as workers
from patcher.workers.request import FiledRequest, TriggerRequest
from patcher.workers.worker import Worker

NAME = ".rlpatch"
FACTS = ".rlpatch.json"
"""Suffix of the step metadata's file beside a trace."""

NSYS = ".nsys"
"""End of the name of a window that nsys recorded: its step metadata are all that lies here by this name."""

LARGEST = 1 << 26
"""Bytes of a file that a worker wrote: a state may have every step of its last window."""


@dataclass(frozen=True)
class SkippedFile:
    """A file that is neither a state nor a request; ``why`` says why it was skipped."""

    file: Path
    why: str


class FolderContents(NamedTuple):
    """Contents of the state folder: worker states, requests by stage, and skipped files."""

    workers: tuple[Worker, ...] = ()
    requests: Mapping[str, FiledRequest] = {}
    skipped: tuple[SkippedFile, ...] = ()


class StateFolder:
    """Folder of worker states below ``save_path``; a file is parsed again only after it was replaced."""

    def __init__(self, save_path: Path) -> None:
        self.save_path, self.path = save_path, save_path / NAME
        self._known: dict[str, tuple[tuple[int, ...], Any]] = {}

    def read(self) -> FolderContents:
        """Return the present states, requests and skipped files, sorted by file name; empty without a folder.

        Raises OSError if the folder is a link or unreadable.
        """
        self._refuse_link()
        try:
            with os.scandir(self.path) as entries:
                names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
        except FileNotFoundError:
            return FolderContents()
        earlier, self._known = self._known, {}
        states: list[Worker] = []
        filed: dict[str, FiledRequest] = {}
        skipped = []
        for name in names:
            read = _READERS.get(os.path.splitext(name)[1])  # noqa: PTH122
            value = read and self._parse_file(name, read, earlier.get(name))
            if isinstance(value, Worker):
                states.append(value)
            elif isinstance(value, FiledRequest):
                filed[name.removesuffix(requests.SUFFIX)] = value
            elif value is not None:
                skipped.append(SkippedFile(self.path / name, value))
        return FolderContents(tuple(states), filed, tuple(skipped))

    def _parse_file(
        self, name: str, parse: Callable[[bytes, float], Any], cached: tuple[tuple[int, ...], Any] | None
    ) -> Any:
        """Return the parsed file ``name``, or why it cannot be read or is invalid; None if the file is gone.

        ``cached`` is the file's key (inode, time, size) and value of the last call, which stands while the key is the
        same.
        """
        try:
            status = os.lstat(self.path / name)
            key = (status.st_ino, status.st_mtime_ns, status.st_size)
            value = cached[1] if cached and cached[0] == key else parse(read_regular(self.path / name), status.st_mtime)
        except FileNotFoundError:
            return None
        except OSError as error:
            return error.strerror or str(error)
        except ValueError as error:
            value = error.args[0]
        self._known[name] = key, value
        return value

    def locate_trace(self, name: str) -> tuple[Path, float | None]:
        """Return the path of the trace ``name`` below the save path, with .gz if compressed, and the time of writing.

        The time is in seconds since 1970, None if the file is gone: that of the metadata file, if there is one, because
        the trace itself may be parsed (torch_npu) or compressed later. For nsys the metadata file stands for the trace.
        """
        name = f"{name}{FACTS}" if name.endswith(NSYS) else name
        for form in (name, f"{name}.gz"):
            path = self.save_path / form
            for file in (self.save_path / f"{form}{FACTS}", path):
                with contextlib.suppress(OSError):
                    status = os.lstat(file)
                    if not stat.S_ISLNK(status.st_mode) and os.path.lexists(path):
                        return path, status.st_mtime
        return self.save_path / name, None

    def file(self, stage: str) -> Path:
        """Return the path of the request file of ``stage``."""
        return self.path / f"{stage}{requests.SUFFIX}"

    def write(self, stage: str, request: TriggerRequest) -> FiledRequest:
        """Store ``request`` atomically, in place of an earlier one for ``stage``. Raises OSError."""
        self._refuse_link()
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.file(stage)
        with tempfile.TemporaryDirectory(prefix=".", dir=self.path) as adjacent:  # goes, whatever fails
            new = Path(adjacent, file.name)
            with new.open("wb") as stream:
                stream.write(request.text)
                stream.flush()
                os.fsync(stream.fileno())
            new.replace(file)
        return FiledRequest(**vars(request), written=os.lstat(file).st_mtime)

    def _refuse_link(self) -> None:
        """Raise OSError if the folder is a symbolic link."""
        if self.path.is_symlink():
            why = Text(
                "this folder is a symbolic link; rlpatch does not follow links here, because another user may have"
                " created the link"
            )
            raise OSError(errno.ELOOP, why, str(self.path))


_READERS: Mapping[str, Callable[[bytes, float], Any]] = {
    ".json": lambda text, _written: workers.read(text),
    requests.SUFFIX: lambda text, written: FiledRequest(**vars(requests.read(text)), written=written),
}


def read_regular(file: Path) -> bytes:
    """Return the bytes of a regular file. Raises OSError for a link or any other file, ValueError above 64 MiB."""
    with opened(file.parent.resolve()) as folder, folder.reading(file.name) as stream:
        text = stream.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise ValueError(Text("the file is larger than {size} MB", LARGEST >> 20))
    return text
