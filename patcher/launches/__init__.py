"""What a launch starts. This is the door: an environment, a script and a command go in, invocations come out.

Other rooms import from here alone; the modules behind it know shells, Python and programs that start others, and know
nothing of what is looked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from patcher.launches.invocation import (
    ANY,
    RUN_TIME,
    Argument,
    Assignment,
    Invocation,
    Placed,
    Variables,
    inherited,
    known,
    quoted,
)  # fmt: skip
from patcher.launches.program import CONTAINERS, Program, decorator, is_python, name_of, programs

__all__ = [
    "ANY", "CONTAINERS", "RUN_TIME", "Argument", "Assignment", "Invocation", "Placed", "Program", "Variables",
    "decorator", "is_python", "known", "name_of", "programs", "quoted", "read",
]  # fmt: skip


def read(
    environ: Mapping[str, str], script: Path | None = None, command: Sequence[str] = (), *, pythons: Sequence[str] = ()
) -> tuple[Invocation, ...]:
    """Every invocation of a script and a command; without any, one invocation with the environment alone.

    ``pythons`` are asked for what a library has to read that we may lack, the YAML of a job of Ray. Raises
    Problem(USAGE) if a script that the caller names is missing, unreadable, or not a script.
    """
    if script is None and not command:
        return (Invocation("environment", (), inherited(environ)),)
    from patcher.launches.reading import invocations  # 20 ms, and most commands of rlpatch name nothing to read

    return invocations(environ, script, command, pythons)
