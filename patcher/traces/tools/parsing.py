"""The offline parsing of what torch_npu recorded: one process of the target's interpreter for each trace.

Whether it worked is read from the files that it left, never from an exit code. A parsing that is interrupted, dies or
hangs leaves the folder as it was before.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TextIO

from patcher import interrupts
from patcher.messages import Kind, Problem, Text
from patcher.store.filesystem.opened import opened, require_regular
from patcher.traces.folders import npu_folders, states
from patcher.traces.folders.npu_folders import BEFORE, LOCK, STORE
from patcher.traces.names import OUTPUT
from patcher.traces.tools import offline

_PAUSE_S = 0.1
_LOOK_S = 2.0  # between two looks at whether a parser still works
_GONE_S = 10.0  # a process that waits for a file system that hangs does not even end when it is killed
_GONE_PAUSE_S = 0.005
_BUSY_S = 0.05  # of CPU between two looks: one that waits for a file in a loop takes less

DONE, KEPT, BACK = Text("parsed"), Text("incomplete"), Text("restored")


@dataclass(frozen=True, slots=True)
class ParseResult:
    """Result of parsing one trace: ``ended`` is `DONE`, `KEPT` (incomplete, but kept) or `BACK` (folder restored).

    ``why`` says what went wrong, ``output`` has the related lines of torch_npu, ``exports`` the exports in the folder.
    """

    path: Path
    ended: str
    why: str = ""
    output: tuple[str, ...] = ()
    seconds: float = 0.0
    exports: tuple[str, ...] = ()


class ToolProcess:
    """A started process in a session of its own, with its output in ``log``; it holds the ``locks`` (descriptors)."""

    def __init__(self, command: Sequence[str], folder: Path, log: IO[bytes], locks: Sequence[int] = ()) -> None:
        self.log, self.began = log, time.monotonic()
        # It holds the locks on, should rlpatch be killed.
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=folder,
            start_new_session=True, pass_fds=tuple(locks),
        )  # fmt: skip
        self.seen: tuple[object, float] = ((), 0.0)
        self.worked = self.looked = self.began

    def is_idle(self, watched: Path, patience: float) -> bool:
        """Tell whether the process neither computed, nor wrote below ``watched``, for over ``patience`` seconds.

        Call it again and again: the process is only checked every 2 s, or every half of ``patience`` if that is less.
        In between it counts as busy.
        """
        now = time.monotonic()
        if now - self.looked < min(_LOOK_S, patience / 2):
            return False
        self.looked = now
        before, self.seen = self.seen, (_written(watched), _cpu(self.process.pid))
        if self.seen[0] != before[0] or self.seen[1] - before[1] > _BUSY_S:
            self.worked = now
        return now - self.worked > patience

    def stop(self) -> None:
        """Kill the process and all that it started, and wait up to 10 s until none of them is alive."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # The others end when the kernel comes to it: until then they may write, and hold the locks of the folder.
        end = time.monotonic() + _GONE_S
        while (living := _alive(self.process.pid)) and time.monotonic() < end:
            for pid in living:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_GONE_PAUSE_S)

    def last_lines(self, *words: str) -> tuple[str, ...]:
        """Return the last three lines of output that contain one of ``words``, cut to 300 characters.

        Without words, they are the last three of all output. Blank lines do not count.
        """
        self.log.seek(0)
        text = self.log.read().decode("utf-8", "replace")
        lines = ("".join(c if c.isprintable() else " " for c in line).strip() for line in text.splitlines())
        return tuple(line[:300] for line in lines if line and any(word in line for word in words or ("",)))[-3:]


class Parser:
    """A process that parses one trace, started at once; an earlier result is moved aside, and restored on failure."""

    def __init__(self, path: Path, command: Sequence[str], log: IO[bytes], locks: Sequence[int]) -> None:
        self.path, self.output, self.before = path, path / OUTPUT, path / BEFORE
        if self.before.is_dir():  # the last one was killed, and what it left is half
            shutil.rmtree(self.output, ignore_errors=True)
        elif self.output.is_dir():
            self.output.rename(self.before)
        try:
            self.child = ToolProcess(command, path.parent, log, locks)
        except BaseException:
            self._restore()
            raise

    def result_if_ended(self, patience: float) -> ParseResult | None:
        """Return the result if the parser has ended, else None; kill a parser that was idle for ``patience`` seconds.

        Complete output replaces that of an earlier parsing. If parsing failed, or its output is incomplete, restore the
        folder. But incomplete output of a parser that ended without an error stays if the folder had none before.
        """
        code = self.child.process.poll()
        if code is None:
            if not self.child.is_idle(self.path, patience):
                return None
            self.stop()
            why: str = Text("the parser made no progress for {seconds:g} s and was stopped", patience)
            return self._result(BACK, why)
        self.child.stop()
        why = npu_folders.parsing_defect(self.path)
        if not why:
            shutil.rmtree(self.before, ignore_errors=True)
            return self._result(DONE, "")
        died = (
            Text("the parser was killed by signal {signal}", -code)
            if code < 0
            else Text("the parser failed (exit code {code})", code)
            if code
            else ""
        )
        if not died and not self.before.is_dir() and npu_folders.exported(self.path):
            return self._result(KEPT, why)
        self._restore()
        return self._result(BACK, died or why)

    def _result(self, ended: str, why: str) -> ParseResult:
        lines, seconds = self.child.last_lines, time.monotonic() - self.child.began
        output = lines("[ERROR]", "Error:") or lines() if why else lines("[ERROR]")
        return ParseResult(self.path, ended, why, output, seconds, npu_folders.exported(self.path))

    def stop(self) -> None:
        """Kill the parser with all its children, and restore the folder as it was."""
        self.child.stop()
        self._restore()

    def _restore(self) -> None:
        shutil.rmtree(self.output, ignore_errors=True)
        if self.before.is_dir():
            self.before.rename(self.output)


def parse(
    paths: Sequence[Path],
    program: str,
    exports: str,
    *,
    jobs: int,
    patience: float,
    done: Callable[[ParseResult], None],
    at_work: Callable[[Sequence[Path]], None] = lambda _paths: None,
) -> list[ParseResult]:
    """Parse traces, ``jobs`` at a time, with the interpreter ``program``; return the results in order of their end.

    ``exports`` are torch_npu's, such as ``text,db``. ``done`` is called with each result, ``at_work`` every 0.1 s with
    the paths that are being parsed. A parser idle for ``patience`` seconds is killed. Raises KeyboardInterrupt, for
    SIGTERM, too, with unfinished traces restored; Problem (ENVIRONMENT) if a folder is locked or read-only.
    """
    source = Path(offline.__file__).read_text(encoding="utf-8")
    waiting, ended = list(paths), list[ParseResult]()
    working: list[Parser] = []
    # An exception between any two steps would leave a parser that nobody ends, or a folder half moved.
    with interrupts.deferred(terminated=True), lock_folders(paths) as locks, contextlib.ExitStack() as logs:
        try:
            while waiting or working:
                interrupts.raise_pending()
                while waiting and len(working) < jobs:
                    path = waiting.pop(0)
                    log = logs.enter_context(tempfile.TemporaryFile())
                    words = [program, "-c", source, str(path), exports]
                    working.append(Parser(path, words, log, locks))
                at_work([parser.path for parser in working])
                for parser in list(working):
                    how = parser.result_if_ended(patience)
                    if how is not None:
                        working.remove(parser)
                        ended.append(how)
                        done(how)
                time.sleep(_PAUSE_S if working else 0)
        finally:
            for parser in working:
                parser.stop()
    return ended


@contextlib.contextmanager
def lock_folders(paths: Sequence[Path]) -> Iterator[tuple[int, ...]]:
    """Context manager that holds the lock of each folder in which one of the traces ``paths`` lies.

    Its value has the descriptors of the lock files. A lock file has the names of the traces while it is held, and is
    empty afterwards. Raises Problem (ENVIRONMENT) if another `analyse` holds a lock, or a folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        descriptors = []
        for folder in sorted({path.parent for path in paths}):
            try:
                file = stack.enter_context(_lock_file(folder))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                cause = Text("another `rlpatch analyse` is working in this folder")
                raise Problem(
                    Kind.ENVIRONMENT, cause, str(folder), Text("wait until the other command has ended")
                ) from None
            except OSError as error:
                cause = Text("the folder of the traces is not writable: {error}", error.strerror)
                hint = Text("parse a copy of the folder, or run rlpatch as the owner of the folder")
                raise Problem(Kind.ENVIRONMENT, cause, error.filename or str(folder), hint) from None
            file.truncate(0)
            file.write("\n".join(path.name for path in paths if path.parent == folder))
            file.flush()
            stack.callback(file.truncate, 0)  # it stays: who removes it lets two hold it
            descriptors.append(file.fileno())
        yield tuple(descriptors)


def _lock_file(folder: Path) -> TextIO:
    """Open the lock file of a folder for reading and writing, without locking it.

    Create it, and ``.rlpatch`` around it, if missing. Raises OSError if that fails, or for a link or a special file.
    """
    store = folder.resolve() / STORE
    store.mkdir(exist_ok=True)
    with opened(store) as inside:
        descriptor = inside.open(LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        require_regular(os.fstat(descriptor), store / LOCK)
        return os.fdopen(descriptor, "r+", encoding="utf-8")
    except BaseException:
        os.close(descriptor)
        raise


def _written(path: Path) -> object:
    """Return a value that changes with each write below a path: number, bytes and times of its files."""
    files = [(file.st_size, file.st_mtime_ns) for file in states.files_below(path)]
    return len(files), *map(sum, zip(*files, strict=True))


def _alive(session: int) -> list[int]:
    """Return the ids of the processes of a session that have not ended; zombies count as ended."""
    return [pid for pid, state, _ in _process_stats(session) if state not in "ZX"]


def _cpu(session: int) -> float:
    """Return the seconds of CPU that the processes of a session have used, with the children they waited for."""
    return sum(ticks for _, _, ticks in _process_stats(session)) / os.sysconf("SC_CLK_TCK")


def _process_stats(session: int) -> Iterator[tuple[int, str, int]]:
    """Yield id, state letter and CPU ticks (with those of ended children) of each process in a session, from /proc.

    Processes that end meanwhile are skipped.
    """
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            yield int(file.parent.name), fields[0], sum(map(int, fields[11:15]))
