"""Following a run: its workers are asked for the windows that a diagnosis lacks, until it supports itself."""

from __future__ import annotations

import contextlib
import secrets
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from patcher.commands.diagnosis import reading
from patcher.commands.diagnosis.asked import STAGE, alive, takes
from patcher.commands.diagnosis.training_requests import TrainingRequests
from patcher.diagnosis.engines import Engine, engines
from patcher.diagnosis.model import RunDiagnosis
from patcher.diagnosis.run import next_windows
from patcher.messages import CommandResult, Problem, Text
from patcher.progress import silent
from patcher.timeline.runs import Process
from patcher.workers import progress
from patcher.workers.folder import StateFolder
from patcher.workers.progress import AT_WORK, DONE, WorkerProgress
from patcher.workers.request import FiledRequest, TriggerRequest

LOOK_S = 2.0
"""Seconds between two looks at a run."""

LEAST_PAUSE = 50.0
"""A look is followed by a pause of so many times its CPU time, so that it takes 2 % of a core at most."""

STUDIED = 1
"""The rollout in which windows are chosen first; the one before it is the warm-up."""

EXPIRES_S = 86_400.0


class Follower:
    """Asks the workers of a run for windows, reads these, and asks again while the diagnosis is not supported.

    `rounds` is the most requests, `say` gets a line for each. `finished` tells that nothing is asked for any more;
    `started` is in seconds since 1970: runs that began before it are of no interest.
    """

    def __init__(self, folder: Path, rounds: int, say: Callable[[str], None], started: float = 0.0) -> None:
        self.folder, self.rounds, self.say, self.started = folder, rounds, say, started
        self.states = StateFolder(folder)
        self.asked: FiledRequest | None = None
        self.requests = 0
        self.finished = self.rollouts_finished = False
        self.diagnosis: RunDiagnosis | None = None
        self.training = TrainingRequests(self.states, rounds, say)

    def look(self) -> None:
        """Look at the run once: ask for windows if it is time to, or read those that have been saved."""
        processes = reading.newest_since(self.folder, self.started)
        self.training.look(processes, self.diagnosis.supported if self.diagnosis else ())
        if self.training.news:
            self._read(processes)
        self._look_at_rollouts(processes)
        self.finished = self.rollouts_finished and not self.training.pending

    def _look_at_rollouts(self, processes: tuple[Process, ...]) -> None:
        rows = [row for row in progress.collect(self.states, time.time(), requested=self.asked).rows if takes(row)]
        living = [row for row in rows if not row.life.gone]
        if self.asked is not None and any(row.outcome == AT_WORK for row in living):
            return
        of_run = [engine for engine in engines(processes) if len(engine.iterations)]
        if max((engine.rollouts for engine in of_run), default=0) <= STUDIED + 1:
            return
        if self.asked is not None and any(row.outcome == DONE for row in rows):
            self._read(processes)
        self.rollouts_finished = self._supported or self.requests >= self.rounds
        if living and not self.rollouts_finished:
            self._ask(of_run, living)

    @property
    def _supported(self) -> bool:
        return self.diagnosis is not None and STAGE in self.diagnosis.supported

    def _read(self, processes: tuple[Process, ...]) -> None:
        """Diagnose what has been recorded so far; what cannot be read now may be readable later."""
        with contextlib.suppress(Problem):
            self.diagnosis = reading.of_processes(self.folder, processes, silent, CommandResult("diagnose"))

    def _ask(self, of_run: Sequence[Engine], living: Sequence[WorkerProgress]) -> None:
        """Write a request for the rollout after the present one."""
        units = {row.worker.unit for row in living}
        window = next_windows(of_run, decode_only="iterations" not in units)
        turns = [row.worker.turn for row in living if row.worker.turn is not None]
        if not window or not turns:
            return
        request = TriggerRequest(
            id=secrets.token_hex(6), window=window, ranks="0", at=max(turns) + 1, expires=time.time() + EXPIRES_S
        )
        self.asked = self.states.write(STAGE, request)
        self.requests += 1
        unit = "iterations" if "iterations" in units else "decode"
        self.say(Text("asked for --{unit} {window} of rollout {number}", unit, window, request.at))


def follow(follower: Follower, ended: Callable[[float], bool]) -> None:
    """Look again and again until the follower has finished; `ended` waits for seconds, and tells whether to stop."""
    while not follower.finished:
        before = time.thread_time()  # not by a clock on the wall: the run's own load would make it look less often
        with contextlib.suppress(OSError):  # a file that is being replaced
            follower.look()
        if ended(max(LOOK_S, LEAST_PAUSE * (time.thread_time() - before))):
            return


def start(follower: Follower) -> Callable[[], None]:
    """Follow a run in a thread, which gets no signal; return what ends it."""
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
    """Follow a run until the diagnosis is supported, the run ends, or Ctrl-C."""

    def ended(seconds: float) -> bool:
        """Wait, and tell whether no worker is left that takes a request."""
        time.sleep(seconds)
        return not alive(follower.folder)

    with contextlib.suppress(KeyboardInterrupt):
        follow(follower, ended)
