"""The Python environments and what they would import: the running one, and others by asking.

What it takes to ask is loaded where one is asked: that is a tenth of the time of `status`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from patcher.messages import Kind, Problem, Text
from patcher.targets.interpreters import locate

TIMEOUT_S = 30.0
_HINT = Text("choose a Python: --python /path/to/bin/python")


class Package(NamedTuple):
    """Package that an interpreter would import; `origin` is None for a folder without `__init__.py`."""

    origin: str | None
    locations: tuple[str, ...]


class Environment(NamedTuple):
    """Interpreter: its name for messages, its `sys.prefix`, its import path, and the packages found on it."""

    name: str
    prefix: str
    path: tuple[str, ...]
    packages: dict[str, Package]


def running_environment(packages: Sequence[str]) -> Environment:
    """Return the environment of the running interpreter, with those of `packages` that it would import."""
    path = [entry for entry in sys.path if entry]
    as_module = getattr(sys.modules.get("__main__"), "__spec__", None)
    if as_module and path and os.path.realpath(path[0]) == os.path.realpath(Path.cwd()):
        # `python -m patcher` puts the working directory first, which is no environment.
        del path[0]
    return Environment(
        name=Text("the interpreter of rlpatch itself ({executable})", sys.executable),
        prefix=sys.prefix,
        path=tuple(str(Path(entry).absolute()) for entry in path),
        packages=_packages(locate.locate(list(packages), path)),
    )


def ask(exe: str, packages: Sequence[str], name: str, timeout: float = TIMEOUT_S) -> Environment:
    """Start another interpreter and return its environment, with those of `packages` that it would import.

    `exe` is an executable, an environment's folder or a name on PATH. Raises Problem: USAGE if there is no such program
    or it is no Python, ENVIRONMENT if it fails, is too old, or does not answer.
    """
    import json  # noqa: PLC0415

    program = executable(exe)
    code, out, err = _run(program, packages, timeout)
    _, marker, tail = out.rpartition(locate.MARKER.encode())
    if not marker:
        raise _no_answer(program, code, (err.strip() or out.strip()).decode(errors="replace"))
    answer = json.loads(tail.splitlines()[0])
    return Environment(name, answer["prefix"], tuple(answer["path"]), _packages(answer["found"]))


def environments(packages: Sequence[str], searched: list[str]) -> Iterator[Environment]:
    """Yield the environment of the running interpreter and of each of `more_interpreters` that answers."""
    yield running_environment(packages)
    for name, exe in more_interpreters():
        try:
            yield ask(exe, packages, name)
        except Problem as problem:
            searched.append(Text("{place}: {reason}", place=name, reason=problem.cause))


def more_interpreters() -> Iterator[tuple[str, str]]:
    """Yield (name for messages, program) of $VIRTUAL_ENV, $CONDA_PREFIX and python3, each environment only once."""
    from shutil import which  # noqa: PLC0415

    prefixes = {os.path.realpath(sys.prefix)}
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = os.environ.get(variable)
        if prefix and os.path.realpath(prefix) not in prefixes:
            prefixes.add(os.path.realpath(prefix))
            exe = Path(prefix, "bin", "python")
            yield f"${variable} ({exe})", str(exe)
    python3 = which("python3")
    if python3 and os.path.realpath(Path(python3).parent.parent) not in prefixes:
        yield Text("python3 on PATH ({path})", python3), python3


def _packages(specs: dict[str, dict[str, Any]]) -> dict[str, Package]:
    return {name: Package(spec["origin"], tuple(spec["locations"])) for name, spec in specs.items()}


def executable(exe: str) -> str:
    """Return the path of an interpreter given by path, environment folder or name. Raises Problem (USAGE)."""
    from shutil import which  # noqa: PLC0415

    program = Path(os.path.expanduser(exe))  # noqa: PTH111  (which keeps the name of a user that is not there)
    if program.is_dir():
        program = program / "bin" / "python"
    if interpreter := which(str(program.absolute()) if program.is_file() else exe):
        return interpreter
    cause = Text("the interpreter {path} does not exist", program)
    if program.exists():
        cause = Text("{interpreter} cannot be executed", exe)
    hint = Text("for a folder with packages, use --path {folder}", exe) if Path(exe).is_dir() else _HINT
    raise Problem(Kind.USAGE, cause, str(program), hint)


def _run(program: str, packages: Sequence[str], timeout: float) -> tuple[int, bytes, bytes]:
    """Run the module `locate` in the interpreter `program`, for `packages`; return exit code, stdout and stderr."""
    import pkgutil  # noqa: PLC0415
    import signal  # noqa: PLC0415
    import subprocess  # noqa: PLC0415

    from patcher import interrupts  # noqa: PLC0415

    # Not by its path: a bundle has it in a zip.
    source = (pkgutil.get_data(__package__, "locate.py") or b"").decode()
    # -B: to look at an environment writes nothing into it.
    command = [program, "-B", "-c", source, *packages]
    process: subprocess.Popen[bytes] | None = None
    try:
        with interrupts.deferred():  # between the start and the assignment nobody could end it
            # A session of its own, so that children which hold the pipe open can be ended with it.
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
            )
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        cause = Text("the interpreter did not answer in {timeout:g} s", timeout)
        hint = Text("check whether this command ends: {program} -c pass", program)
        raise Problem(Kind.ENVIRONMENT, cause, program, hint) from None
    except OSError as error:
        raise _not_python(program, error.strerror or str(error)) from None
    finally:
        if process is not None and process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, out, err


def _no_answer(program: str, code: int, text: str) -> Problem:
    """Return the problem that `program` is too old a Python, failed, or is no Python; `text` is what it printed."""
    last = text.splitlines()[-1].strip() if text else Text("the program printed nothing")
    if last.startswith("SyntaxError"):
        cause = Text("the Python version of the interpreter is below 3.7")
        hint = Text("use --path DIR with the site-packages folder of this interpreter")
        return Problem(Kind.ENVIRONMENT, cause, program, hint)
    if "Traceback" in text or text.startswith("Fatal Python error") or code < 0:
        cause = Text("the interpreter failed (exit code {code}): {last_line}", code=code, last_line=last)
        hint = Text("check whether this command works: {program} -c pass", program)
        return Problem(Kind.ENVIRONMENT, cause, program, hint)
    return _not_python(program, last)


def _not_python(program: str, why: str) -> Problem:
    cause = Text("{program} is not a Python interpreter: {reason}", program=program, reason=why)
    return Problem(Kind.USAGE, cause, hint=_HINT)
