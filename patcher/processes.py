"""Running engines: they hold the code as it was when they started."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def running(words: Iterable[str], proc: Path = Path("/proc")) -> tuple[str, ...]:
    """``PID COMMAND`` of each process that can be seen and runs one of ``words``.

    A word is the name of a program, the beginning of a module's, or of a title that a process gave itself.
    """
    wanted = tuple(words)
    found = []
    for folder in proc.glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:  # gone meanwhile, or not ours to see
            continue
        argv = command.decode("utf-8", "replace").split("\0")
        if folder.name != str(os.getpid()) and any(name.startswith(wanted) for name in _names(argv)):
            found.append(f"{folder.name} {' '.join(argv).strip()[:80]}")
    return tuple(sorted(found))


def _names(argv: list[str]) -> list[str]:
    """What ``argv`` runs: the program, the script that an interpreter runs, or the module behind its ``-m``."""
    module = argv[argv.index("-m") + 1 : argv.index("-m") + 2] if "-m" in argv else []
    return [*(os.path.basename(word) for word in argv[:2] if not word.startswith("-")), *module]  # noqa: PTH119
