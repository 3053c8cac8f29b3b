"""The progress of the workers with what was requested: who has saved, who never will, and for whom to wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from patcher.messages import Text
from patcher.workers import life
from patcher.workers.folder import SkippedFile, StateFolder
from patcher.workers.life import Life
from patcher.workers.request import FiledRequest
from patcher.workers.worker import FAILED, INSTALLED, NOT_RECORDED, SAVED, SAVING, WAITING, Worker

DONE, LOST, AT_WORK, IDLE = "done", "lost", "at work", "idle"
"""Outcomes of a worker: its trace is saved, it will leave none, it is still to save, or nothing was requested of it."""


class SavedTrace(NamedTuple):
    """A trace that a worker saved; ``written`` is in seconds since 1970, None if the trace is gone."""

    path: Path
    written: float | None


class WorkerProgress(NamedTuple):
    """A worker, its liveness, its traces and its ``outcome``: done, lost (``why`` has the reason), at work or idle."""

    worker: Worker
    life: Life
    traces: tuple[SavedTrace, ...]
    outcome: str
    why: str = ""


@dataclass(frozen=True)
class MissingRanks:
    """Requested ranks of a stage that wrote no state; ``lost`` if all other workers of the stage have ended."""

    target: str
    stage: str
    replica: str
    ranks: tuple[int, ...]
    lost: bool


class RunProgress(NamedTuple):
    """Progress of the workers of the present runs; ``earlier`` is the number of workers of earlier runs."""

    rows: tuple[WorkerProgress, ...]
    missing: tuple[MissingRanks, ...]
    requests: dict[str, FiledRequest]
    skipped: tuple[SkippedFile, ...]
    earlier: int

    @property
    def settled(self) -> bool:
        """Tell whether something was requested and no worker or rank is awaited any more."""
        outcomes = {row.outcome for row in self.rows} - {IDLE}
        return bool(outcomes) and AT_WORK not in outcomes and all(ranks.lost for ranks in self.missing)

    @property
    def complete(self) -> bool:
        """Tell whether all requested workers have saved their traces and no rank is missing."""
        return {row.outcome for row in self.rows} - {IDLE} == {DONE} and not self.missing


def collect(
    folder: StateFolder,
    now: float,
    is_watched: Callable[[Worker], bool] = lambda _worker: True,
    requested: FiledRequest | None = None,
) -> RunProgress:
    """Return the progress of the workers in ``folder`` for which ``is_watched`` is true; ``now`` is since 1970.

    A gone or silent worker is only counted if a newer one has its place. A worker on demand progresses with
    ``requested``, or without that with the request in ``folder``. Raises OSError if the folder cannot be read.
    """
    states = folder.read()
    living = [(worker, life.observe(worker, now)) for worker in states.workers if is_watched(worker)]
    newest = {worker.place: worker.at for worker, _ in sorted(living, key=lambda pair: pair[0].at)}
    rows = [
        _progress_of(folder, worker, state, states.requests.get(worker.stage), requested, now)
        for worker, state in living
        if not (state.has_ended or state.silent) or worker.at >= newest[worker.place]  # else it is of an earlier run
    ]
    rows.sort(key=_ORDER)
    earlier = len(living) - len(rows)
    return RunProgress(tuple(rows), tuple(_missing_ranks(rows)), dict(states.requests), states.skipped, earlier)


_ORDER = attrgetter(*(f"worker.{name}" for name in ("target", "stage", "replica", "rank", "host", "role", "pid")))


def _progress_of(
    folder: StateFolder,
    worker: Worker,
    state: Life,
    in_folder: FiledRequest | None,
    requested: FiledRequest | None,
    now: float,
) -> WorkerProgress:
    """Return the progress of ``worker`` with what was ``requested``, or without that with the request ``in_folder``.

    A worker on demand is idle without a request that includes its rank and role. It is lost if the request has left the
    folder before the worker took it.
    """
    traces = tuple(SavedTrace(*folder.locate_trace(name)) for name in worker.traces)
    filed = requested or in_folder
    if not worker.on_demand:
        outcome, why = _outcome(worker, state)
    elif filed is None or not filed.includes(worker.rank, worker.role):
        outcome, why = IDLE, ""
    elif worker.request == filed.id:
        outcome, why = _outcome_taken(worker, state, traces, filed)
    elif in_folder is None or in_folder.id != filed.id:
        outcome, why = LOST, Text("the recording request was deleted or replaced before this worker recorded anything")
    else:
        outcome, why = _outcome_untaken(worker, state, filed, now)
    return WorkerProgress(worker, state, traces, outcome, why)


def _outcome_untaken(worker: Worker, state: Life, filed: FiledRequest, now: float) -> tuple[str, str]:
    """Return outcome and reason of a worker on demand that has not taken ``filed``, the request in the folder."""
    since = worker.at > filed.written
    if worker.refused and since:  # it could not even read the id
        return LOST, worker.why
    if state.has_ended:
        return (LOST, _why_incomplete(worker)) if since else (IDLE, "")
    if worker.turn is not None and worker.turn > filed.at:
        why = Text("the recording request asks for {kind} {requested}, but the worker is already at {current}")
        return LOST, why.filled(kind=worker.turns, requested=filed.at, current=worker.turn)
    return (LOST, Text("the recording request has expired")) if filed.expires < now else (AT_WORK, "")


def _outcome_taken(worker: Worker, state: Life, traces: Sequence[SavedTrace], filed: FiledRequest) -> tuple[str, str]:
    """Return outcome and reason of a worker that has taken request ``filed``.

    If it waits, it is done if a trace is as new as the request or was moved away, and lost if the rollout has passed.
    """
    if worker.state in (INSTALLED, WAITING):  # before the window or after it
        if any(trace.written is None or trace.written >= filed.written for trace in traces):
            return DONE, ""
        if worker.turn is not None and worker.turn > filed.at:
            return LOST, Text("{kind} {number} ended, but no trace was saved", kind=worker.turns, number=filed.at)
    return _outcome(worker, state)


def _outcome(worker: Worker, state: Life) -> tuple[str, str]:
    """Return outcome and reason by the state that the worker wrote and by its liveness.

    A worker with more windows to record is at work even if it has saved one. A worker that ended while it compressed
    its last trace is done.
    """
    last = worker.done or worker.on_demand
    compressing = worker.state == SAVING and worker.traces and not state.alive  # or it was: its trace is whole
    if (worker.state == SAVED or compressing) and last:
        return DONE, ""
    if worker.state == FAILED or (worker.state == NOT_RECORDED and last):
        why = worker.why or worker.state
        if window := worker.fitting_window:
            fitting = Text("{reason}; this window would fit: --{option} {window}")
            why = fitting.filled(reason=why, option=worker.unit, window=window)
        return LOST, why
    return (LOST, _why_incomplete(worker)) if state.has_ended else (AT_WORK, "")


def _why_incomplete(worker: Worker) -> str:
    """Return why a worker that has ended saved none, or not all, of its traces."""
    saved_some = worker.state == SAVED or (worker.state == SAVING and worker.traces)
    if saved_some:
        return Text("process {pid} ended before everything was recorded", worker.pid)
    return Text("process {pid} ended; its last state was {state}", pid=worker.pid, state=worker.state)


def _missing_ranks(rows: Sequence[WorkerProgress]) -> Iterable[MissingRanks]:
    """Yield the ranks, by target, stage and replica, that were requested at apply and have written no state.

    They are lost if all workers that did write have ended. Workers on demand do not count.
    """
    groups: dict[tuple[str, str, str], list[WorkerProgress]] = {}
    for row in rows:
        if not row.worker.on_demand:
            groups.setdefault((row.worker.target, row.worker.stage, row.worker.replica), []).append(row)
    for (target, stage, replica), group in groups.items():
        requested: set[int] = set()
        for worker in (row.worker for row in group):
            if worker.ranks == "all":
                requested |= set(range(min(worker.world, _MOST_RANKS)))
            elif worker.ranks:
                listed = {int(rank) for rank in worker.ranks.split(",")}
                requested |= {rank for rank in listed if not worker.world or rank < worker.world}
        to_come = sorted(requested - {row.worker.rank for row in group})
        if to_come:
            yield MissingRanks(target, stage, replica, tuple(to_come), all(row.life.has_ended for row in group))


_MOST_RANKS = 1_000_000
"""A world of more is none: a doctored file could name any number."""
