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
    """One process: its folder below /proc, and the words of its command line."""

    folder: Path
    argv: tuple[str, ...]


def running(known: Iterable[Processes], packages: Iterable[Path] = (), proc: Path = Path("/proc")) -> tuple[str, ...]:
    """``PID COMMAND`` of each process that can be seen and is one of ``known``, or has loaded ``packages``.

    ``packages`` are the folders of the code that changed: an interpreter that has mapped a file in one of them has
    imported it, and one whose environment has another copy of all of them has not.
    """
    wanted, folders = tuple(known), tuple(Path(os.path.realpath(package)) for package in packages)
    found = []
    for folder in proc.glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:  # gone meanwhile, or not ours to see
            continue
        process = _Process(folder, tuple(command.decode("utf-8", "replace").split("\0")))
        if folder.name != str(os.getpid()) and _is_engine(process, wanted, folders):
            found.append(f"{folder.name} {' '.join(process.argv).strip()[:80]}")
    return tuple(sorted(found))


def _is_engine(process: _Process, known: Sequence[Processes], packages: Sequence[Path]) -> bool:
    titles = tuple(title for one in known for title in one.titles)
    if process.argv[0].startswith(titles):
        return True
    if not _is_python(process):
        return False
    module, script = _program(process.argv)
    modules = {name for one in known for name in one.modules}
    named = any(module == name or module.startswith(f"{name}.") for name in modules)
    named = named or os.path.basename(script) in {name for one in known for name in one.scripts}  # noqa: PTH119
    return (named and not _has_others(process, script, packages)) or _has_mapped(process, packages)


def _is_python(process: _Process) -> bool:
    """Whether an interpreter runs there: by its file, or where that is not ours to see, by its name."""
    try:
        program = str((process.folder / "exe").readlink()).removesuffix(" (deleted)")
    except OSError:
        program = process.argv[0]
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


def _has_others(process: _Process, script: str, packages: Sequence[Path]) -> bool:
    """Whether the environment of the process has a copy of its own of every package, and nothing leads to ours."""
    prefixes = {Path(word).parent.parent for word in (process.argv[0], script) if os.path.isabs(word)}  # noqa: PTH117
    places = [site for prefix in prefixes for site in prefix.glob("lib*/python3*/*-packages")]
    try:
        variables = (process.folder / "environ").read_bytes().decode("utf-8", "replace").split("\0")
        search = [os.path.realpath(process.folder / "cwd")]
    except OSError:
        return False
    for variable in variables:
        name, _, value = variable.partition("=")
        search += value.split(os.pathsep) if name == "PYTHONPATH" else []
    leads_here = {os.path.realpath(entry) for entry in search if entry}
    for package in packages:
        copies = {os.path.realpath(site / package.name) for site in places if (site / package.name).is_dir()}
        if not copies or str(package) in copies or str(package.parent) in leads_here:
            return False
    return bool(packages)


def _has_mapped(process: _Process, packages: Sequence[Path]) -> bool:
    """Whether a file of ``packages``, an extension say, is in the memory of the process."""
    try:
        maps = (process.folder / "maps").read_bytes().decode("utf-8", "surrogateescape") if packages else ""
    except OSError:
        return False
    return any(f" {package}{os.sep}" in maps for package in packages)
