"""Runs a command as if nobody stood between it and its caller: terminal, signals and exit code are its own."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from patcher.messages import Kind, Problem, Text
from patcher.store.filesystem.mounts import kernel_text

_OTHERS = frozenset(
    {signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT, signal.SIGWINCH}
    | {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
    | {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGURG}
)
"""Signals that are not forwarded: uncatchable ones, job control, faults of this process, and ignored ones."""
_OURS = signal.valid_signals() - _OTHERS
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores from its start on, and that a command expects to have their default action."""
_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)
"""Signals that stop a process of another group which reads from the terminal, or sets it."""
_ENDING = ((signal.SIGINT, 30.0), (signal.SIGTERM, 30.0), (signal.SIGKILL, math.inf))
"""Signals that end a command, and the seconds after which the next one follows."""


class Companion(Protocol):
    """Something that goes on beside a command, which then has a process group of its own."""

    def interrupted(self) -> None:
        """Handle the first Ctrl-C, which the command does not get; it gets the next one."""

    def ends_command(self) -> bool:
        """Tell whether to end the command now; called about once a second."""

    def finish(self) -> int:
        """Show the result after the command's end, and return the exit code."""


def require_program(program: str) -> None:
    """Raise Problem if ``program`` is not found (NO_COMMAND), or is a path that cannot be executed (NOT_EXECUTABLE)."""
    if shutil.which(program):
        return
    if "/" in program and os.path.exists(program):  # noqa: PTH110  (also for "", which is no path)
        raise Problem(Kind.NOT_EXECUTABLE, Text("the program {program} cannot be executed", program), hint=_HINT)
    raise Problem(Kind.NO_COMMAND, Text("the program {program} does not exist", program), hint=_HINT)


_HINT = Text("after `--`, type the command exactly as you would without rlpatch; for a script: -- bash run.sh")


def run(command: Sequence[str], environ: Mapping[str, str], companion: Companion | None = None) -> int:
    """Run ``command`` to its end; return its status as ``os.waitpid`` gives it.

    Signals that are sent to this process alone are forwarded. On return they stay blocked until `leave`, so that none
    prevents the report. With a ``companion`` the command has a process group of its own, and cannot read from the
    terminal. Raises Problem (NO_COMMAND or NOT_EXECUTABLE) if the command does not start.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a caller that ignores it would take the status away
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)
    try:
        pid = _spawn(command, environ, before) if companion is None else _spawn_apart(command, environ, before)
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        kind = Kind.NO_COMMAND if isinstance(error, FileNotFoundError) else Kind.NOT_EXECUTABLE
        raise Problem(kind, f"{command[0]}: {error.strerror}", hint=_HINT) from None
    return _follow(pid, companion)


def _spawn_apart(command: Sequence[str], environ: Mapping[str, str], mask: Collection[int]) -> int:
    """Start ``command`` in a process group of its own, which the terminal does not stop; return its process id."""
    handlers = [signal.signal(number, signal.SIG_IGN) for number in _TERMINAL]
    try:
        return _spawn(command, environ, mask, setpgroup=0)
    finally:
        for number, handler in zip(_TERMINAL, handlers, strict=True):
            signal.signal(number, handler)


def _spawn(command: Sequence[str], environ: Mapping[str, str], mask: Collection[int], **more: Any) -> int:
    """Start ``command`` with the signals of ``mask`` blocked, and return its process id; raises OSError."""
    try:
        return os.posix_spawnp(command[0], [*command], environ, setsigmask=mask, setsigdef=_RESTORED, **more)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        shell = ["/bin/sh", shutil.which(command[0]) or command[0], *command[1:]]  # a script that does not name its own
        return os.posix_spawnp(shell[0], shell, environ, setsigmask=mask, setsigdef=_RESTORED, **more)


class _Witness:
    """Helper process in this process group that blocks every signal.

    A signal that is pending on the helper was sent to the whole group. The helper ends when this process ends.
    """

    def __init__(self) -> None:
        self._process, none = None, subprocess.DEVNULL
        with contextlib.suppress(OSError):  # without it everything is sent on
            self._process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=none, stderr=none, env={})

    def group_received(self, number: int) -> bool:
        """Tell whether the signal ``number`` was sent to the whole process group; False without a helper.

        Some senders signal one process after the other, hence the pause.
        """
        time.sleep(0.01)  # as Slurm does
        text = kernel_text(f"/proc/{self._process.pid}/status") if self._process else ""
        pending = re.search(r"^ShdPnd:\s*(\w+)", text, re.MULTILINE)
        return pending is not None and bool(int(pending[1], 16) >> (number - 1) & 1)

    def close(self) -> None:
        if self._process:
            self._process.kill()
            self._process.communicate()


def _follow(pid: int, companion: Companion | None) -> int:
    """Wait until the process ``pid`` ends; return its status as ``os.waitpid`` gives it.

    Signals to this process alone are passed on to ``pid``; one to this process's whole group reaches ``pid``, or with a
    ``companion`` is passed on to the group that ``pid`` leads. The first SIGINT goes to ``companion`` instead. If it
    wants the command to end, that group gets the signals `_ENDING`. The caller has blocked all signals before.
    """
    witness, interrupted, ending, due = _Witness(), False, iter(_ENDING), 0.0
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            witness.close()
            return status
        if companion and time.monotonic() >= due and companion.ends_command():
            number, patience = next(ending)
            os.killpg(pid, number)
            due = time.monotonic() + patience
        info = signal.sigtimedwait(_OURS, 1)  # for another thread of a caller may have got SIGCHLD
        if info is None or info.si_signo == signal.SIGCHLD or info.si_pid == pid:
            continue  # none, or from the command to its caller
        apart = companion is None and os.getpgid(pid) != os.getpgrp()
        of_group = info.si_code > 0 or (not apart and witness.group_received(info.si_signo))  # the terminal's, or other
        if companion and info.si_signo == signal.SIGINT and not interrupted:
            interrupted = True
            companion.interrupted()
        elif companion and of_group:
            os.killpg(pid, info.si_signo)
        elif not of_group:
            os.kill(pid, info.si_signo)
        if of_group:
            witness.close()
            witness = _Witness()  # on which it is not pending


def leave(status: int) -> NoReturn:
    """Exit like the process that ended with the wait ``status``: with its exit code, or by its signal.

    The signal leaves no core dump of this process. Code 128 + N stands for a signal N that this process ignores.
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os._exit(128 + number)  # one that this process is told to ignore
    sys.exit(os.waitstatus_to_exitcode(status))
