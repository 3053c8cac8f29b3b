"""The folder of a run in the temporary directory: what its processes read there, and what they leave."""

from __future__ import annotations

import contextlib
import fcntl
import os
import py_compile
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from patcher.changes.change import Edit

PREFIX = "rlpatch-run-"
VARIABLE = "RLPATCH_RUN"
"""Names the package in the environment of every process of a run; Ray takes it as a module."""
_PACKAGE, _ALIVE, _RECEIPTS = "sitecustomize", "alive", "receipts"
_NEW_S, _PAUSE_S = 60.0, 0.1


class Receipt(NamedTuple):
    """What a process says of one file: its ``state`` is patched, changed or elsewhere, ``path`` what it imported."""

    pid: int
    number: int
    state: str
    path: str


class RunFolder:
    """A folder with a package ``sitecustomize`` that hands out the planned bytes, and a place for receipts.

    ``files`` are the real paths of what it hands out. As long as its maker lives, no other run removes it.
    """

    def __init__(self, edits: Iterable[Edit], *, require: bool = False) -> None:
        """Make it. Raises OSError where the temporary directory cannot be written to."""
        changes = [(edit.root, change) for edit in edits for change in edit.changes if change.before != change.after]
        self.files = tuple(root / change.path for root, change in changes)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        try:
            self._lock = _locked(self.path / _ALIVE)
            self.package.mkdir()
            (self.path / _RECEIPTS).mkdir()
            for number, (_, change) in enumerate(changes):
                (self.package / f"{number}.before").write_bytes(change.before)
                (self.package / f"{number}.after").write_bytes(change.after)
            fields = [self.path, "1" if require else "", *(part for root, one in changes for part in (root, one.path))]
            (self.package / "plan").write_bytes(b"".join(os.fsencode(str(field)) + b"\0" for field in fields))
            program = shutil.copyfile(Path(__file__).with_name("startup.py"), self.package / "__init__.py")
            # Each process reads it: one that must not write bytecode would compile it each time.
            py_compile.compile(str(program), doraise=True)
        except BaseException:
            _erase(self.path)
            raise

    @property
    def package(self) -> Path:
        """The package, as Ray takes it among ``py_modules``."""
        return self.path / _PACKAGE

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment of the command: as ``environ``, with this folder first in PYTHONPATH."""
        path = [str(self.path), environ.get("PYTHONPATH")]
        # An empty entry would be the working directory.
        return {**environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), VARIABLE: str(self.package)}

    def receipts(self) -> tuple[Receipt, ...]:
        """The receipts of the processes on this machine so far; nothing where somebody has removed the folder."""
        receipts = []
        with contextlib.suppress(OSError):
            for file in (self.path / _RECEIPTS).iterdir():
                pid, number, state = file.name.split("-")
                receipts.append(Receipt(int(pid), int(number), state, os.fsdecode(file.read_bytes())))
        return tuple(sorted(receipts))

    def prefixes(self) -> tuple[str, ...]:
        """The environments (``sys.prefix``) of the Python processes that began with the hook."""
        try:
            lines = os.fsdecode((self.path / "started").read_bytes()).splitlines()
        except OSError:
            return ()
        return tuple(dict.fromkeys(line.partition(" ")[2] for line in lines))

    @property
    def went_to_ray(self) -> bool:
        """Whether a process gave the package to Ray."""
        return (self.path / "ray").exists()

    def leave(self, patience: float = 0.0) -> tuple[int, ...]:
        """Remove it, unless processes of the run go on: those come out, and the run after their end removes it.

        ``patience`` are the seconds that they have to end: Ray's own do so a moment after its driver.
        """
        limit = time.monotonic() + patience
        while (users := _users(self.package)) and time.monotonic() < limit:
            time.sleep(_PAUSE_S)
        if not users:
            _erase(self.path)
        os.close(self._lock)
        return users


def _locked(name: Path) -> int:
    """Lock the file ``name``, which appears with its lock; the kernel frees it, also after SIGKILL."""
    new = name.with_suffix(".new")
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    new.rename(name)
    return descriptor


def _erase(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if prefix := os.environ.get("PYTHONPYCACHEPREFIX"):
        shutil.rmtree(f"{prefix}{path}", ignore_errors=True)


def sweep() -> tuple[Path, ...]:
    """Remove what runs have left whose command was killed, and that no process uses; which folders those were."""
    found = [path for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if _dead(path)]
    for path in found:
        _erase(path)
    return tuple(found)


def _dead(path: Path) -> bool:
    with contextlib.suppress(OSError):
        status = path.lstat()
        if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
            return False
        if not os.path.lexists(path / _ALIVE):  # its maker was killed at the first step, or is at it
            return time.time() - status.st_mtime > _NEW_S
        with os.fdopen(os.open(path / _ALIVE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)) as alive:
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return not _users(path / _PACKAGE)
    return False


def _users(package: Path) -> tuple[int, ...]:
    """The processes of this user that have the package in their environment, as it was when they began."""
    mark, users = os.fsencode(f"{VARIABLE}={package}"), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone, or not ours to see
            if mark in (process / "environ").read_bytes().split(b"\0"):
                users.append(int(process.name))
    return tuple(users)
