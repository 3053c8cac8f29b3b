"""The folder of a run in the temporary directory: what its processes read there, and what they leave."""

from __future__ import annotations

import contextlib
import fcntl
import os
import py_compile
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from patcher.changes.change import Edit
from patcher.messages import Kind, Problem, Text
from patcher.store.filesystem.opened import Opened, opened

PREFIX = "rlpatch-run-"
VARIABLE = "RLPATCH_RUN"
"""Names the package in the environment of every process of a run; Ray takes it as a module."""
_PACKAGE, _ALIVE, _RECEIPTS = "sitecustomize", "alive", "receipts"
_MARKER = b"the folder of a run of rlpatch: removed when its processes have ended\n"
"""Contents of `alive`; a folder without it was not made by rlpatch."""
_RECEIPT = re.compile(r"(\d+)-(\d+)-(patched|changed|elsewhere)")
_FOLDERS = re.compile(f"{_PACKAGE}|{_RECEIPTS}|__pycache__")
_FILES = re.compile(
    rf"{_ALIVE}(\.new)?|started|ray|plan|\d+\.(before|after)|__init__\.(py|\S+\.pyc[.\d]*)|{_RECEIPT.pattern}"
)
_BEGUN = re.compile(rf"{PREFIX}[a-z0-9_]{{8}}")
"""Folder name that `tempfile` makes."""
_NEW_S, _PAUSE_S = 60.0, 0.1
_STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Receipt(NamedTuple):
    """Report of one process ``pid`` on the planned file ``number``.

    ``state`` is patched, changed or elsewhere; ``path`` is the path that the process imported.
    """

    pid: int
    number: int
    state: str
    path: str


class RunFolder:
    """Temporary folder whose package ``sitecustomize`` hands out the planned bytes; it also collects receipts.

    ``files`` are the real paths of the planned files. No other run removes the folder while its creator lives.
    """

    def __init__(self, edits: Iterable[Edit], *, require: bool = False) -> None:
        scratch = Path(tempfile.gettempdir()).resolve()
        if os.pathsep in str(scratch):
            cause = Text(
                "the path of the temporary directory contains {separator}, but this character separates the entries of"
                " PYTHONPATH"
            )
            hint = Text("use another temporary directory: TMPDIR=DIR rlpatch run …")
            raise Problem(Kind.ENVIRONMENT, cause.filled(os.pathsep), str(scratch), hint)
        changes = [(edit.root, change) for edit in edits for change in edit.changes if change.before != change.after]
        self.files = tuple(root / change.path for root, change in changes)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=scratch))
        try:
            self._lock = _create_locked(self.path / _ALIVE)
            self.package.mkdir()
            (self.path / _RECEIPTS).mkdir()
            for number, (_, change) in enumerate(changes):
                (self.package / f"{number}.before").write_bytes(change.before)
                (self.package / f"{number}.after").write_bytes(change.after)
            pairs = (part for root, change in changes for part in (root, change.path))
            fields = [self.path, "1" if require else "", *pairs]
            (self.package / "plan").write_bytes(b"".join(os.fsencode(str(field)) + b"\0" for field in fields))
            program = shutil.copyfile(Path(__file__).with_name("startup.py"), self.package / "__init__.py")
            # Each process reads it: one that must not write bytecode would compile it each time.
            py_compile.compile(str(program), doraise=True)
        except BaseException:
            _erase(self.path)
            raise

    @property
    def package(self) -> Path:
        """Return the path of the package, in the form of Ray's ``py_modules``."""
        return self.path / _PACKAGE

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return ``environ`` with this folder first in PYTHONPATH and the package in RLPATCH_RUN."""
        path = [str(self.path), environ.get("PYTHONPATH")]
        # An empty entry would be the working directory.
        return {**environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), VARIABLE: str(self.package)}

    def receipts(self) -> tuple[Receipt, ...]:
        """Return what this machine's processes have reported of their patched files so far, sorted by process id."""
        receipts = []
        with contextlib.suppress(OSError), opened(self.path / _RECEIPTS) as folder:
            for name in filter(_RECEIPT.fullmatch, folder.names()):
                pid, number, state = name.split("-")
                text = _text_of(folder, name)
                receipts += [] if text is None else [Receipt(int(pid), int(number), state, text)]
        return tuple(sorted(receipts))

    def prefixes(self) -> tuple[str, ...]:
        """Return each environment (``sys.prefix``) whose Python processes started with the hook, in order of start.

        Return () if none did, or if the folder was removed.
        """
        with contextlib.suppress(OSError), opened(self.path) as folder:
            lines = (_text_of(folder, "started") or "").splitlines()
            return tuple(dict.fromkeys(line.partition(" ")[2] for line in lines))
        return ()

    @property
    def went_to_ray(self) -> bool:
        """Tell whether a process gave the package to Ray."""
        return (self.path / "ray").exists()

    def leave(self, patience: float = 0.0) -> tuple[int, ...]:
        """Remove the folder unless processes still use it, and release its lock; return the ids of these processes.

        Wait up to ``patience`` seconds for them: Ray's processes end shortly after the driver. A pending stop signal,
        which `parent.run` blocks, ends the wait. A folder that stays is removed by a later run.
        """
        limit = time.monotonic() + patience
        while (users := _pids_using(self.package)) and time.monotonic() < limit and not signal.sigpending() & _STOPPING:
            time.sleep(_PAUSE_S)
        if not users:
            _erase(self.path)
        os.close(self._lock)
        return users


def _text_of(folder: Opened, name: str) -> str | None:
    """Return up to 1 MB of the file ``name`` as text, "?" for unprintable characters; None if that cannot be read."""
    with contextlib.suppress(OSError), folder.reading(name) as stream:
        text = os.fsdecode(stream.read(1 << 20))
        return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
    return None


def _create_locked(path: Path) -> int:
    """Create the marker file ``path``, complete and locked; return the descriptor that holds the lock."""
    new = path.with_suffix(".new")
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, _MARKER)
    new.rename(path)
    return descriptor


def _erase(path: Path) -> None:
    """Remove what a run creates in the folder ``path``, and its bytecode; follow no link, ignore errors."""
    for place in {path, Path(f"{os.environ.get('PYTHONPYCACHEPREFIX', '')}{path}")}:
        with contextlib.suppress(OSError), opened(place) as folder:
            _clear(folder)
            place.rmdir()


def _clear(folder: Opened) -> None:
    """Remove the files and folders that a run creates in ``folder``, the marker file last; skip the rest."""
    for name in sorted(folder.names(), key=lambda name: name == _ALIVE):  # the proof that it is a run's goes last
        with contextlib.suppress(OSError):
            if not folder.is_folder(name):
                if _FILES.fullmatch(name):
                    folder.remove(name)
            elif _FOLDERS.fullmatch(name):
                with opened(folder.path / name) as inner:
                    _clear(inner)
                folder.remove_folder(name)


def sweep() -> tuple[Path, ...]:
    """Remove abandoned folders of runs, whose command was killed and that no process uses; return their paths."""
    abandoned = [path for path in Path(tempfile.gettempdir()).resolve().glob(f"{PREFIX}*") if _is_abandoned(path)]
    for path in abandoned:
        _erase(path)
    return tuple(abandoned)


def _is_abandoned(path: Path) -> bool:
    """Tell whether ``path`` is the folder of an rlpatch run of this user that has ended and that no process uses."""
    with contextlib.suppress(OSError), opened(path) as folder:
        status = folder.status()
        if status.st_uid != os.geteuid():
            return False
        if _BEGUN.fullmatch(path.name) and {*folder.names()} <= {f"{_ALIVE}.new"}:  # its maker was killed, or is at it
            return time.time() - status.st_mtime > _NEW_S
        with folder.reading(_ALIVE) as alive:
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.fstat(alive.fileno()).st_uid == status.st_uid and alive.read(len(_MARKER) + 1) == _MARKER
            return is_ours and not _pids_using(path / _PACKAGE)
    return False


def _pids_using(package: Path) -> tuple[int, ...]:
    """Return the ids of this user's processes on this machine that run with the hook in ``package``, forks included."""
    users = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone, or hidden from this user
            if _uses(process, package):
                users.append(int(process.name))
    return tuple(users)


def _uses(process: Path, package: Path) -> bool:
    """Tell whether ``process``, a folder of /proc, runs with the hook in ``package``. Raises OSError.

    Its environment names ``package``, or it has the plan there open: vLLM's engine and Ray's workers set their title,
    which overwrites their environment.
    """
    if os.fsencode(f"{VARIABLE}={package}") in (process / "environ").read_bytes().split(b"\0"):
        return True
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if descriptor.readlink() == package / "plan":
                return True
    return False
