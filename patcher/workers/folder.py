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
"""How the file of facts beside a trace ends."""

LARGEST = 1 << 26
"""Bytes of a file of ours: a state may tell of every unit of its last window."""


@dataclass(frozen=True)
class SkippedFile:
    """A file that is no state and no request, and why it is left out."""

    file: Path
    why: str


class FolderContents(NamedTuple):
    """The contents of the folder; ``requests`` by stage."""

    workers: tuple[Worker, ...] = ()
    requests: Mapping[str, FiledRequest] = {}
    skipped: tuple[SkippedFile, ...] = ()


class StateFolder:
    """The folder of states below ``save_path``. A file is read again only when another one has taken its place."""

    def __init__(self, save_path: Path) -> None:
        self.save_path, self.path = save_path, save_path / NAME
        self._known: dict[str, tuple[tuple[int, ...], Any]] = {}

    def read(self) -> FolderContents:
        """Return what lies there now, nothing without a folder. Raises OSError for one that is a link or unreadable."""
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
            value = read and self._value(name, read, earlier.get(name))
            if isinstance(value, Worker):
                states.append(value)
            elif isinstance(value, FiledRequest):
                filed[name.removesuffix(requests.SUFFIX)] = value
            elif value is not None:
                skipped.append(SkippedFile(self.path / name, value))
        return FolderContents(tuple(states), filed, tuple(skipped))

    def _value(self, name: str, read: Callable[[bytes, float], Any], before: tuple[tuple[int, ...], Any] | None) -> Any:
        """Return what ``read`` makes of a file, or why it makes nothing of it; None where it has gone meanwhile."""
        try:
            status = os.lstat(self.path / name)
            key = (status.st_ino, status.st_mtime_ns, status.st_size)
            value = before[1] if before and before[0] == key else read(content(self.path / name), status.st_mtime)
        except FileNotFoundError:
            return None
        except OSError as error:
            return error.strerror or str(error)
        except ValueError as error:
            value = error.args[0]
        self._known[name] = key, value
        return value

    def trace(self, name: str) -> tuple[Path, float | None]:
        """Return where a trace is that a worker names, and when it was closed; None where it is no longer there.

        Its facts are written once, but a folder of torch_npu is parsed later, and a file compressed.
        """
        for form in (name, f"{name}.gz"):
            path = self.save_path / form
            for file in (self.save_path / f"{form}{FACTS}", path):
                with contextlib.suppress(OSError):
                    status = os.lstat(file)
                    if not stat.S_ISLNK(status.st_mode) and os.path.lexists(path):
                        return path, status.st_mtime
        return self.save_path / name, None

    def file(self, stage: str) -> Path:
        """The request to a stage."""
        return self.path / f"{stage}{requests.SUFFIX}"

    def write(self, stage: str, request: TriggerRequest) -> FiledRequest:
        """Put a request there in one step, over the one that lies there; OSError where that cannot be, or in a link."""
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
        if self.path.is_symlink():
            raise OSError(
                errno.ELOOP,
                Text("this is a link, and none is followed here: somebody may have planted it"),
                str(self.path),
            )


_READERS: Mapping[str, Callable[[bytes, float], Any]] = {
    ".json": lambda text, _written: workers.read(text),
    requests.SUFFIX: lambda text, written: FiledRequest(**vars(requests.read(text)), written=written),
}


def content(file: Path) -> bytes:
    """The bytes of a regular file; OSError where it cannot be read or is something else, ValueError if it is larger."""
    with opened(file.parent.resolve()) as folder, folder.reading(file.name) as stream:
        text = stream.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise ValueError(Text("it is larger than {size} MB", LARGEST >> 20))
    return text
