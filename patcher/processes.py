"""Running engines: they hold the code as it was when they started."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from patcher.messages import Text

_PYTHON = r"(python|pypy)[\d.]*t?"
_STARTED = r"""(?x)[^\0]*\0
    (?: -[^-\0cmWX]+\0 | -[^-\0cmWX]*[WX](?:\0[^\0]*|[^\0]+)\0 | --check-hash-based-pycs\0[^\0]*\0 | --[^\0]*\0 )*
    (?: -[^-\0cmWX]*m\0? (?P<module>[^\0]+) | (?P<script>-|[^-\0][^\0]*) ) (?:\0|$)"""
"""The command line of an interpreter: options of its own, then a module or a script (and neither with ``-c``)."""


class Processes(NamedTuple):
    """Signs of an engine's processes in their command lines.

    `modules` are started with `python -m`, themselves or a submodule. `scripts` are programs that Python runs, such as
    entry points. `titles` are the beginnings of names that processes give themselves.
    """

    modules: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()


class RunningProcess(NamedTuple):
    """Process as `PID COMMAND`; for another user's process the line also has the user and start time.

    `here` tells that it has loaded the code, or would find it first where it looks for modules.
    """

    line: str
    user: str = ""
    here: bool = False


def running(
    declared: Iterable[Processes], packages: Iterable[Path] = (), proc: Path = Path("/proc")
) -> tuple[RunningProcess, ...]:
    """Return the other processes that match `declared` or have loaded code from `packages`, as far as /proc tells.

    Without `packages` loaded code is not looked at. A process that matches `declared` is left out if its PYTHONPATH,
    working directory or site-packages lead to other copies of all `packages`. If a process of another user hides what
    it has loaded, its `line` says so.
    """
    declared_processes, folders = tuple(declared), tuple(Path(os.path.realpath(package)) for package in packages)
    processes = (process for process in proc.glob("[0-9]*") if process.name != str(os.getpid()))
    matches = (_matching_process(process, declared_processes, folders) for process in processes)
    return tuple(sorted(filter(None, matches)))


def _matching_process(process: Path, declared: Sequence[Processes], packages: Sequence[Path]) -> RunningProcess | None:
    """Return the process if it has loaded code from `packages`, or if it matches `declared` and may have; else None."""
    command = (_read_proc_file(process / "cmdline") or b"").decode("utf-8", "replace")
    argv = command.split("\0")
    python = _is_python(process, argv[0])
    script = _matching_script(command, python=python, declared=declared)
    if script is None and not python:
        return None  # the memory of all others is not read: that takes a millisecond for a large one
    described = _describe(process, " ".join(argv).strip()[:80])
    if not packages:
        return described if script is not None else None
    maps = _read_proc_file(process / "maps")
    loaded = maps or b""
    if python and any(os.fsencode(f" {package}{os.sep}") in loaded for package in packages):
        return described._replace(here=True)
    if script is None:
        return None
    search = _search_path(process)
    sites = _site_packages((argv[0], script), loaded)
    finds = [_imports(package, search or [Path(os.devnull)], sites) for package in packages]
    if all(find is False for find in finds):
        return None
    described = described._replace(here=True in finds)
    if None in (maps, search):
        hidden = Text("{process} (rlpatch cannot see which code the process loaded)", described.line)
        described = described._replace(line=hidden)
    return described


def _describe(process: Path, command: str) -> RunningProcess:
    """Return a process with a line of its id and `command`, and with user and start time if it is another user's."""
    line: str = f"{process.name} {command}"
    user = ""
    with contextlib.suppress(OSError):
        owner = process.stat().st_uid
        if owner != os.geteuid():
            try:
                user = process.owner()
            except KeyError:
                user = Text("user {uid}", owner)
            began, values = _start_time(process), {"process": line, "user": user}
            line = Text("{process} (of {user})", **values)
            if began:
                since = time.strftime("%Y-%m-%d %H:%M", time.localtime(began))
                line = Text("{process} (of {user}, running since {time})", **values, time=since)
    return RunningProcess(line, user)


def _matching_script(command: str, *, python: bool, declared: Sequence[Processes]) -> str | None:
    """Return the script of a process whose command line matches `declared` ("" for a module or title), else None."""
    if command.startswith(tuple(title for processes in declared for title in processes.titles)):
        return ""
    started = re.match(_STARTED, command) if python else None
    if started is None:
        return None
    module, script = started["module"], started["script"] or ""
    is_named = any(f"{module}.".startswith(f"{name}.") for processes in declared for name in processes.modules)
    return script if is_named or any(Path(script).name in processes.scripts for processes in declared) else None


def _read_proc_file(file: Path) -> bytes | None:
    """Return the content of a file in /proc; None if the process is gone or hides it."""
    try:
        return file.read_bytes()
    except OSError:
        return None


def _is_python(process: Path, name: str) -> bool:
    """Tell whether a process runs a Python interpreter, by its executable or else by `name`."""
    with contextlib.suppress(OSError):
        name = str((process / "exe").readlink()).removesuffix(" (deleted)")
    return bool(re.fullmatch(_PYTHON, Path(name).name))


def _search_path(process: Path) -> list[Path] | None:
    """Return a process's working directory, then the folders of its PYTHONPATH; None if these cannot be read."""
    try:
        here = (process / "cwd").resolve(strict=True)
        environ = (process / "environ").read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return None
    paths = [entry.partition("=")[2] for entry in environ.split("\0") if entry.startswith("PYTHONPATH=")]
    return [here, *((here / entry).resolve() for path in paths for entry in path.split(os.pathsep))]


def _site_packages(programs: Iterable[str], maps: bytes) -> set[Path]:
    """Return the site-packages folders of a process: those of its `programs`, and those of the files in its memory."""
    prefixes = {Path(word).parent.parent for word in programs if word.startswith("/")}
    mapped = re.findall(r" (/.*?/(?:site|dist)-packages)/", maps.decode("utf-8", "surrogateescape"))
    return {site for prefix in prefixes for site in prefix.glob("lib*/python3*/*-packages")} | set(map(Path, mapped))


def _imports(package: Path, search: Sequence[Path], sites: Iterable[Path]) -> bool | None:
    """Tell whether a process imports `package` from this very folder; None if it finds no copy of the package."""
    here, *paths = search
    if here == package.parent:
        return True
    for copy in (path / package.name for path in paths):
        if copy == package or (copy / "__init__.py").is_file():
            return copy.resolve() == package
    copies = {(site / package.name).resolve() for site in sites if (site / package.name).is_dir()}
    return package in copies if copies else None


def alive(pid: int, since: float, proc: Path = Path("/proc")) -> bool:
    """Tell whether the process `pid` runs, and is the one that ran at `since` (seconds since 1970), not a later one."""
    began = _start_time(proc / str(pid))
    return began is not None and began <= since + 2


def _start_time(process: Path) -> float | None:
    """Return when a process began, in seconds since 1970; None if it has ended, as a zombie has, or is unknown."""
    try:
        fields = (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        booted = re.search(r"^btime (\d+)", (process.parent / "stat").read_text(encoding="utf-8"), re.MULTILINE)
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK") + int(booted[1] if booted else 0)
    except (OSError, ValueError, IndexError):
        return None
    return None if fields[0] in ("Z", "X") else began
