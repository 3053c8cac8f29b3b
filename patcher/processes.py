"""Running engines: they hold the code as it was when they started."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

_PYTHON = re.compile(r"(python|pypy)[\d.]*t?")


class Processes(NamedTuple):
    """By what the processes of an engine are known, whatever else stands in their command lines.

    ``modules`` are started with ``python -m``, they or one within; ``scripts`` are the names of programs that Python
    runs, such as the entry points that pip installs; ``titles`` begin the names that processes give themselves.
    """

    modules: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()


class _Process(NamedTuple):
    """One process: its folder below /proc, the words of its command line, and whether it is an interpreter."""

    folder: str
    argv: tuple[str, ...]
    python: bool


def running(known: Iterable[Processes], packages: Iterable[Path] = (), proc: Path = Path("/proc")) -> tuple[str, ...]:
    """``PID COMMAND`` of each process that can be seen and is one of ``known``, or has loaded ``packages``.

    ``packages`` are the folders of the code that changed. What a process has imported, /proc does not tell: a module of
    Python is read and closed again. It does tell

    - which extensions are in its memory. One of ``packages`` means that it has imported that package; and those of
      others name the site-packages of its environment, also where it has given itself another title;
    - where Python began to look for modules: its PYTHONPATH and its working directory.

    So an interpreter with a file of ``packages`` in its memory is named, whatever it is called. One of ``known`` is
    named unless another copy of each of them comes first on that way; what a program adds to its ``sys.path`` by itself
    cannot be seen. Where the process of another user hides all that, its line says so.
    """
    wanted, folders = tuple(known), tuple(Path(os.path.realpath(package)) for package in packages)
    ours = str(os.getpid())
    found = []
    for pid in _pids(proc):
        command = _read(f"{proc}/{pid}", "cmdline")
        if pid != ours and command:  # else one of the kernel's, gone meanwhile, or not ours to see
            found.append(_line(pid, command, wanted, folders, proc))
    return tuple(sorted(filter(None, found)))


def _line(pid: str, command: bytes, known: Sequence[Processes], packages: Sequence[Path], proc: Path) -> str:
    """``PID COMMAND`` of a process that `running` names, else ``""``."""
    folder, argv = f"{proc}/{pid}", tuple(command.decode("utf-8", "replace").split("\0"))
    process = _Process(folder, argv, _is_python(folder, argv))
    script = _script(process, known)
    if script is None and not process.python:
        return ""  # the memory of all others is not read: that takes a millisecond for a large one
    line = f"{pid} {' '.join(argv).strip()[:80]}"
    maps = _read(folder, "maps") if packages else None
    imported = process.python and _has_mapped(maps or b"", packages)
    if script is None or imported or not packages:
        return line if imported or script is not None else ""
    search = _search(folder)
    if search is not None and _has_others(process, script, maps or b"", search, packages):
        return ""
    return f"{line} (of another user: what it has loaded cannot be seen)" if None in (maps, search) else line


def _script(process: _Process, known: Sequence[Processes]) -> str | None:
    """The script that one of ``known`` runs, "" if it is a module or has a title; None for any other process."""
    if process.argv[0].startswith(tuple(title for one in known for title in one.titles)):
        return ""
    if not process.python:
        return None
    module, script = _program(process.argv)
    named = any(f"{module}.".startswith(f"{name}.") for one in known for name in one.modules)
    scripts = {name for one in known for name in one.scripts}
    return script if named or os.path.basename(script) in scripts else None  # noqa: PTH119


def _has_others(process: _Process, script: str, maps: bytes, search: Sequence[str], packages: Sequence[Path]) -> bool:
    """Whether a process imports another copy of each of ``packages``."""
    sites = _sites(process, script, _loaded(maps))
    return all(_has_another(package, search, sites) for package in packages)


def _has_mapped(maps: bytes, packages: Sequence[Path]) -> bool:
    """Whether a file of ``packages``, an extension say, is among those in a process's memory."""
    return any(os.fsencode(f" {package}{os.sep}") in maps for package in packages)


def _pids(proc: Path) -> list[str]:
    """The numbers of all processes; none where /proc is not there."""
    try:
        return [name for name in os.listdir(proc) if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []


def _read(folder: str, name: str) -> bytes | None:
    """What a file in the folder of a process holds; None if it is gone, or not ours to see.

    A machine has hundreds of processes: without the buffers of Python that is half as much time for each.
    """
    try:
        with open(f"{folder}/{name}", "rb", buffering=0) as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return None


def _is_python(folder: str, argv: Sequence[str]) -> bool:
    """Whether an interpreter runs there: by its file, or where that is not ours to see, by its name."""
    try:
        program = os.readlink(f"{folder}/exe").removesuffix(" (deleted)")  # noqa: PTH115
    except OSError:
        program = argv[0]
    return bool(_PYTHON.fullmatch(os.path.basename(program)))  # noqa: PTH119


def _program(argv: Sequence[str]) -> tuple[str, str]:
    """The module behind ``-m`` and the script that an interpreter runs; one of them is empty, or both."""
    words = iter(argv[1:])
    for word in words:
        if not word.startswith("-") or word == "-":
            return "", word
        if word == "--check-hash-based-pycs":
            next(words, "")
        for at, flag in enumerate(word[1:] if not word.startswith("--") else "", 2):
            if flag == "m":
                return word[at:] or next(words, ""), ""
            if flag == "c":
                return "", ""
            if flag in "WX":  # the rest of the word is its value, or the next one
                if not word[at:]:
                    next(words, "")
                break
    return "", ""


def _loaded(maps: bytes) -> list[str]:
    """The files in a memory."""
    return [*dict.fromkeys(re.findall(r" (/.+)$", maps.decode("utf-8", "surrogateescape"), re.MULTILINE))]


def _search(folder: str) -> list[str] | None:
    """Where Python looks first: the working directory and PYTHONPATH; None if it is not ours to see."""
    environ = _read(folder, "environ")
    try:
        here = os.path.realpath(os.readlink(f"{folder}/cwd"))  # noqa: PTH115
    except OSError:
        return None
    if environ is None:
        return None
    variables = environ.decode("utf-8", "surrogateescape").split("\0")
    paths = [entry.partition("=")[2] for entry in variables if entry.startswith("PYTHONPATH=")]
    return [here, *(os.path.realpath(os.path.join(here, entry)) for path in paths for entry in path.split(os.pathsep))]  # noqa: PTH118


def _sites(process: _Process, script: str, loaded: Sequence[str]) -> list[Path]:
    """The site-packages of a process: by the files that it has loaded, by its interpreter and by its script."""
    prefixes = {Path(word).parent.parent for word in (process.argv[0], script) if os.path.isabs(word)}  # noqa: PTH117
    found = [site for prefix in prefixes for site in prefix.glob("lib*/python3*/*-packages")]
    of_files = {match[0] for file in loaded if (match := re.match(r".*?/(?:site|dist)-packages(?=/)", file))}
    return [*found, *map(Path, sorted(of_files))]


def _has_another(package: Path, search: Sequence[str], sites: Sequence[Path]) -> bool:
    """Whether a process imports another copy of ``package``, as far as can be told from outside."""
    here, *paths = search
    if here == str(package.parent):
        return False
    for path in paths:
        if os.path.realpath(os.path.join(path, package.name)) == str(package):  # noqa: PTH118
            return False
        if os.path.isfile(os.path.join(path, package.name, "__init__.py")):  # noqa: PTH113, PTH118
            return True
    copies = {os.path.realpath(site / package.name) for site in sites if (site / package.name).is_dir()}
    return bool(copies) and str(package) not in copies


def alive(pid: int, since: float, proc: Path = Path("/proc")) -> bool:
    """Whether this process runs and began before ``since``, so that it is not another one with its number."""
    try:
        fields = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        booted = re.search(r"^btime (\d+)", (proc / "stat").read_text(encoding="utf-8"), re.MULTILINE)
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK") + int(booted[1] if booted else 0)
    except (OSError, ValueError, IndexError):
        return False
    return fields[0] not in ("Z", "X") and began <= since + 2
