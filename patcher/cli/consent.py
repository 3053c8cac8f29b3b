"""Consents of this user: the interpreters that a configuration may start, given by ``rlpatch trust``.

A consent holds for one file with these bytes and one program with these bytes. It is a line of hexadecimal in a record:
a file of this user for each configuration, named by a digest of its path.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from patcher.cli.nearest import ConfigurationFile, line_of, place
from patcher.commands import elsewhere
from patcher.messages import CommandLine, Kind, Problem, Text, usage
from patcher.store.filesystem import files, opened
from patcher.store.filesystem.rights import PathState
from patcher.targets import interpreters

_MOST_BYTES = 1 << 16
_LARGEST_PROGRAM = 128 << 20
MOST = 16
"""Interpreters of one file."""


def program(interpreter: str) -> Path | None:
    """Return the absolute path of the program that `--python` would start, links kept; None if it is not found."""
    with suppress(Problem):
        return Path(os.path.abspath(interpreters.executable(interpreter)))  # noqa: PTH100  (keeps links)
    return None


def is_trusted(source: ConfigurationFile, interpreter: str) -> bool:
    """Tell whether this user has trusted ``interpreter`` in this configuration, and neither has changed since then."""
    try:
        with opened.opened(_folder()) as folder:
            _require_own(folder.status(), folder.path)
            with folder.reading(_name(source.file)) as stream:
                _require_own(os.fstat(stream.fileno()), folder.path)
                lines = stream.read(_MOST_BYTES).decode("ascii", "replace").splitlines()
        return _seal(source, interpreter) in lines
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return False


def require(source: ConfigurationFile, interpreter: str) -> None:
    """Raise Problem (USAGE) if this user has not trusted the interpreter in this configuration."""
    if not is_trusted(source, interpreter):
        cause = Text("{file} names an interpreter that you have not trusted yet", source.file.name)
        where = place(source.file, line_of(source.text, "python"))
        hint = CommandLine("trust", str(source.file))
        raise usage(cause, hint, where, notes=(Text("interpreter: {interpreter}", interpreter),))


def trust(source: ConfigurationFile, names: Iterable[str]) -> None:
    """Record that this user trusts exactly these interpreters in a configuration. Raises Problem (ENVIRONMENT)."""
    try:
        seals = "".join(f"{_seal(source, interpreter)}\n" for interpreter in names)
        folder = _folder()
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        with opened.opened(_folder()) as records:
            _require_own(records.status(), folder)
            files.place(records, _name(source.file), PathState("", None, 0o600, -1, -1), seals.encode())
    except (OSError, RuntimeError) as error:
        raise _unkept(error) from None


def distrust(file: Path) -> bool:
    """Remove the record of trust in a file, and tell whether there was one. Raises Problem (ENVIRONMENT)."""
    try:
        path = _folder() / _name(file)
        there = os.path.lexists(path)
        files.remove(path)
    except (OSError, RuntimeError) as error:
        raise _unkept(error) from None
    return there


def _unkept(error: Exception) -> Problem:
    cause = Text(
        "cannot save whether rlpatch trusts this file: {reason}",
        getattr(error, "strerror", None) or error,
    )
    where = os.fsdecode(getattr(error, "filename", None) or "")
    return Problem(Kind.ENVIRONMENT, cause, where, Text("set XDG_STATE_HOME to a folder that only you can write to"))


def _folder() -> Path:
    """Return the folder of the consents; links above `trusted` are resolved, because a home may be a link."""
    return Path(os.path.realpath(elsewhere.state() / "trusted"))


def _name(file: Path) -> str:
    return hashlib.sha256(os.fsencode(file)).hexdigest()[:32]


def _require_own(status: os.stat_result, path: Path) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            0, Text("other users can write to the folder in which rlpatch records what you trust"), str(path)
        )


def _seal(source: ConfigurationFile, interpreter: str) -> str:
    """Return a SHA-256 in hexadecimal that changes with the configuration or the interpreter: path, links or bytes.

    Of an interpreter that this machine lacks, only the path counts. Raises OSError if an existing one cannot be read.
    """
    started = program(interpreter)
    parts = [source.content, os.fsencode(interpreter)]
    if started is not None:  # else it is one on the nodes of a cluster
        parts += [os.fsencode(os.path.realpath(path)) for path in (started.parent, started)]
        parts.append(_digest(started))
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _digest(path: Path) -> bytes:
    """Return the SHA-256 of a file. Raises OSError if it cannot be read, or has over 128 MiB: no interpreter does."""
    digest = hashlib.sha256()
    with opened.reading(path) as stream:
        if os.fstat(stream.fileno()).st_size > _LARGEST_PROGRAM:
            raise OSError(0, Text("the file is too large to be an interpreter"), str(path))
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.digest()
