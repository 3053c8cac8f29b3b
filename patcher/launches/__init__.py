"""What a launch starts. This is the door: an environment, a script and a command go in, invocations come out.

Other rooms import from here alone; the modules behind it know shells, Python and programs that start others, and know
nothing of what is looked for.
"""

from patcher.launches.invocation import (
    ANY,
    RUN_TIME,
    Argument,
    Assignment,
    Invocation,
    Placed,
    Variables,
    known,
    quoted,
)
from patcher.launches.names import CONTAINERS, is_python, name_of
from patcher.launches.program import Program, decorator, programs
from patcher.launches.reading import read

__all__ = [
    "ANY", "CONTAINERS", "RUN_TIME", "Argument", "Assignment", "Invocation", "Placed", "Program", "Variables",
    "decorator", "is_python", "known", "name_of", "programs", "quoted", "read",
]  # fmt: skip
