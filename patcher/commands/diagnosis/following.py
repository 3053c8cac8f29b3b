"""Following a run: its workers are asked for the windows that a diagnosis lacks, until it supports itself."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from patcher.commands.diagnosis import reading
from patcher.commands.diagnosis.asked import STAGE, has_live_on_demand_worker, takes_requests
from patcher.commands.diagnosis.training_requests import TrainingRequests
from patcher.diagnosis.engines import Engine, engines
from patcher.diagnosis.model import PlannedWindows, RunDiagnosis
from patcher.diagnosis.run import planned_windows
from patcher.messages import CommandResult, Kind, Problem, Text, problem_of
from patcher.progress import silent
from patcher.timeline.files import Reader
from patcher.timeline.runs import Process
from patcher.workers import progress
from patcher.workers.folder import StateFolder
from patcher.workers.progress import AT_WORK, DONE, LOST, WorkerProgress
from patcher.workers.request import FiledRequest, TriggerRequest
from patcher.workers.worker import FAILED

LOOK_S = 2.0
"""Seconds between two looks at a run."""

LEAST_PAUSE = 50.0
"""A look is followed by a pause of so many times its CPU time, so that looking takes 2 % of a core at most. Reading
windows does not count: it happens once for each request.
"""

STUDIED = 1
"""The rollout in which windows are chosen first; the one before it is the warm-up."""

PATIENCE = 3
"""Rollouts that begin while a worker has not answered, after which nobody waits for it."""


class Follower:
    """Asks the workers of a run for windows, reads these, and asks again while the diagnosis is not supported.

    `rounds` is the most requests, `say` gets a line for each. `finished` tells that nothing is asked for any more, and
    `reached` that the run has made `steps` steps; None for any number. `started` is in seconds since 1970: runs that
    began before it are of no interest.
    """

    def __init__(
        self, folder: Path, rounds: int, say: Callable[[str], None], started: float = 0.0, steps: int | None = None
    ) -> None:
        self.folder = folder
        self.rounds, self.say = rounds, say
        self.started, self.steps = started, steps
        self.states = StateFolder(folder)
        self.last_request: FiledRequest | None = None
        self.last_requested_in = self.rollouts = 0
        self.requests = 0
        self.finished = self.rollouts_finished = self.reached = False
        self.trouble = ""
        self.reading_s = 0.0
        self.diagnosis: RunDiagnosis | None = None
        self.training = TrainingRequests(self.states, rounds, say)

    @property
    def over(self) -> bool:
        """Whether another look would change nothing."""
        return self.reached or (self.finished and self.steps is None)

    def look(self) -> None:
        """Look at the run once: read the windows that have been saved, and request those that the diagnosis lacks.

        Windows of a rollout are requested from the third rollout on. Raises OSError.
        """
        processes = reading.newest_since(self.folder, self.started)
        if not self.finished:
            self.training.request_missing(processes, self.diagnosis.supported if self.diagnosis else ())
            if self.training.has_new_windows:
                self._read_windows(processes)
        run_engines = [engine for engine in engines(processes) if len(engine.iterations)]
        self.rollouts = max((engine.rollouts for engine in run_engines), default=0)
        self.reached = self.steps is not None and steps_ended(processes, run_engines) >= self.steps
        if not (self.rollouts_finished or self.rollouts <= STUDIED + 1):
            self._look_at_rollouts(processes, run_engines)
        self.finished = self.finished or (self.rollouts_finished and not self.training.pending)

    def _look_at_rollouts(self, processes: tuple[Process, ...], run_engines: Sequence[Engine]) -> None:
        """Read the windows that the rollout workers have saved, then request more; do nothing while one still records.

        A worker that still records `PATIENCE` rollouts after the request is not waited for.
        """
        rows = self._rollout_workers()
        living = [row for row in rows if not row.life.has_ended]
        if self.rollouts <= self.last_requested_in + PATIENCE and any(row.outcome == AT_WORK for row in living):
            return
        if self.last_request is not None and any(row.outcome == DONE for row in rows):
            self._read_windows(processes)
        self.rollouts_finished = self._supported or self.requests >= self.rounds
        if living and not self.rollouts_finished:
            self._request_windows(run_engines, living)

    def look_safely(self) -> None:
        """Look at the run once, and catch every error, so that the run is not disturbed; `trouble` keeps its text.

        An OSError may pass; any other error also ends the diagnosis.
        """
        try:
            self.look()
            self.trouble = ""
        except OSError as error:  # a file that is being replaced, or a full disk
            self.trouble = error_line(error)
        except Exception as error:
            self.finished, self.steps = True, None
            self.trouble = Text("the run goes on, but the diagnosis no longer follows it: {error}", error_line(error))
            self.say(self.trouble)

    def notes(self) -> Iterator[str]:
        """Yield reasons why the diagnosis lacks windows, such as an error, no worker, no request yet, or no answer."""
        if self.trouble:
            yield self.trouble
        with contextlib.suppress(OSError):
            yield from self.training.notes()
        if self._supported:
            return
        rows = list[WorkerProgress]()
        with contextlib.suppress(OSError):
            rows = self._rollout_workers()
        if not rows:
            yield Text("no worker that records rollouts on demand has started")
        elif self.last_request is None:
            text = Text(
                "no recording window was requested: rlpatch requests windows from the third rollout on, but the run has"
                " had only {count} so far"
            )
            yield text.filled(self.rollouts)
        for row in rows if self.last_request is not None else ():
            worker = {"host": row.worker.host, "pid": row.worker.pid, "rank": row.worker.rank}
            if row.outcome == LOST and row.worker.state != FAILED:  # `failure_notes` has those
                yield Text("{host}, process {pid}, rank {rank} recorded nothing: {reason}", **worker, reason=row.why)
            elif row.outcome == AT_WORK:
                yield Text("{host}, process {pid}, rank {rank} has not answered the request to record yet", **worker)

    def _rollout_workers(self) -> list[WorkerProgress]:
        collected = progress.collect(self.states, time.time(), requested=self.last_request).rows
        return [row for row in collected if takes_requests(row)]

    @property
    def _supported(self) -> bool:
        return self.diagnosis is not None and STAGE in self.diagnosis.supported

    def _read_windows(self, processes: tuple[Process, ...]) -> None:
        """Set `diagnosis` to that of the windows saved so far; keep the last one if they cannot be read yet."""
        before = time.thread_time()
        with contextlib.suppress(Problem):
            self.diagnosis = reading.diagnose_processes(self.folder, processes, silent, CommandResult("diagnose"))
        self.reading_s += time.thread_time() - before

    def _request_windows(self, run_engines: Sequence[Engine], living: Sequence[WorkerProgress]) -> None:
        """Request the windows that the diagnosis lacks, for the next rollout, from workers of rank 0.

        Nothing is requested if no windows are lacking, or if no worker has counted a rollout yet. Raises OSError.
        """
        units = {row.worker.unit for row in living}
        planned = self._lacking_windows(run_engines, decode_only="iterations" not in units)
        turns = [row.worker.turn for row in living if row.worker.turn is not None]
        if planned is None or not planned.windows or not turns:
            return
        request = TriggerRequest(
            window=planned.option, ranks="0", at=max(turns) + 1, load=planned.load, tail=planned.tail
        )
        self.last_request = self.states.write(STAGE, request)
        self.last_requested_in = self.rollouts
        self.requests += 1
        unit = "iterations" if "iterations" in units else "decode"
        window = " ".join((planned.option, *planned.conditions))
        text = Text("asked the rollout workers of rank 0 to record rollout {number} with --{unit} {window}")
        self.say(text.filled(number=request.at, unit=unit, window=window))

    def _lacking_windows(self, run_engines: Sequence[Engine], *, decode_only: bool) -> PlannedWindows | None:
        """Return the windows that the last diagnosis lacks, or before it those to begin with; None for none."""
        if self.diagnosis is None:
            return planned_windows(run_engines, decode_only=decode_only)
        return self.diagnosis.planned_decodes if decode_only else self.diagnosis.planned


def steps_ended(processes: Sequence[Process], run_engines: Sequence[Engine]) -> int:
    """Return how many steps of a run have ended: those that its trainer marks, or else rollouts before the last."""
    marked = [_count_marked_steps(process) for process in processes if process.marks]
    return max(marked or [engine.rollouts - 1 for engine in run_engines], default=0)


def _count_marked_steps(process: Process) -> int:
    """Return how many steps the timeline of a process marks as ended; a step that is marked twice counts once."""
    reader = Reader(process.paths, 0)
    while reader.read_block():
        reader.spans.clear()
    return len({mark.id if mark.amount is None else mark.amount for mark in reader.marks if mark.kind == "step"})


def problem_with_place(error: BaseException) -> Problem:
    """Return the problem that describes an exception; that of an unexpected one names the line that raised it."""
    problem = problem_of(error)
    if problem.kind is not Kind.UNEXPECTED:
        return problem
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return problem.replace(
        where=f"{frame.filename}:{frame.lineno}", hint=Text("please report this error as a bug of rlpatch")
    )


def error_line(error: BaseException) -> Text:
    """Return place and cause of an error in a line."""
    problem = problem_with_place(error)
    return Text("{place}: {cause}", place=problem.where, cause=problem.cause)


def follow(follower: Follower, ended: Callable[[float], bool]) -> None:
    """Let the follower look at its run repeatedly, until it is over or `ended` returns True.

    `ended` is called between two looks with the seconds to wait; it waits, and tells whether to stop.
    """
    while not follower.over:
        before = time.thread_time() - follower.reading_s
        follower.look_safely()
        if ended(max(LOOK_S, LEAST_PAUSE * (time.thread_time() - follower.reading_s - before))):
            return


def start(follower: Follower) -> Callable[[], None]:
    """Follow a run in a thread of its own, which gets no signals; return a function that stops the thread."""
    stop = threading.Event()
    thread = threading.Thread(target=follow, args=(follower, stop.wait), name="rlpatch-diagnose", daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def end() -> None:
        stop.set()
        thread.join(timeout=10)

    return end


def wait(follower: Follower) -> None:
    """Follow a run until it is over, no live worker records on demand, or Ctrl-C is pressed. Raises OSError."""

    def ended(seconds: float) -> bool:
        time.sleep(seconds)
        return not has_live_on_demand_worker(follower.folder)

    with contextlib.suppress(KeyboardInterrupt):
        follow(follower, ended)
