"""Requests for the micro-batches of each training stage, while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from patcher.diagnosis.model import PlannedWindows
from patcher.diagnosis.training import TrainerStage, next_micro_batches, slowest_rank, trainer_stages
from patcher.messages import Text
from patcher.timeline.runs import Process
from patcher.workers import progress
from patcher.workers.folder import StateFolder
from patcher.workers.progress import AT_WORK, DONE, LOST, WorkerProgress
from patcher.workers.request import FiledRequest, TriggerRequest
from patcher.workers.worker import FAILED

STUDIED = 2
"""Calls of a stage that have to end before micro-batches are chosen: the warm-up, and one to choose them from."""


@dataclass
class _StageRequests:
    """Requests for one stage so far: the last one, how many, and whether its windows have been read."""

    last: FiledRequest | None = None
    count: int = 0
    windows_read: bool = False


class TrainingRequests:
    """Asks the trainers of a run for the shortest and the longest micro-batch of each of their stages.

    `rounds` is the most requests for a stage, `say` gets a line for each.
    """

    def __init__(self, states: StateFolder, rounds: int, say: Callable[[str], None]) -> None:
        self.states, self.rounds, self.say = states, rounds, say
        self.requests: dict[str, _StageRequests] = {}
        self.pending = False
        self.has_new_windows = False

    def request_missing(self, processes: Sequence[Process], supported: Collection[str]) -> None:
        """Request the micro-batches that the diagnosis lacks; `supported` are its stages that need no more windows.

        Afterwards `pending` tells whether a stage may still be recorded, and `has_new_windows` whether windows have
        been saved since the last call. Raises OSError.
        """
        self.pending = self.has_new_windows = False
        by_stage = dict[str, list[TrainerStage]]()
        for stage in trainer_stages(processes):
            by_stage.setdefault(stage.stage, []).append(stage)
        for name, stages in by_stage.items():
            self._request_if_idle(name, stages, [stage for stage in stages if stage.name not in supported])

    def notes(self) -> Iterator[str]:
        """Yield a sentence on each worker that was asked for a window and recorded nothing. Raises OSError."""
        for name, requests in self.requests.items():
            for row in self._workers(name, requests.last) if requests.last is not None else ():
                if row.outcome == LOST and row.worker.state != FAILED:  # `failure_notes` has those
                    worker = {"host": row.worker.host, "pid": row.worker.pid, "rank": row.worker.rank}
                    text = Text("{stage}: {host}, process {pid}, rank {rank} recorded nothing: {reason}")
                    yield text.filled(stage=name, **worker, reason=row.why)

    def _request_if_idle(self, name: str, stages: Sequence[TrainerStage], missing: Sequence[TrainerStage]) -> None:
        """Request the windows that stage ``name`` lacks, unless workers are recording or there are new windows.

        ``stages`` has this stage once for each rank and role, ``missing`` those that need more windows. It gets none
        after `rounds` requests, nor without a live worker. Sets `pending` if the stage may still be recorded, and
        `has_new_windows` if windows were saved that the diagnosis has not read.
        """
        requests = self.requests.setdefault(name, _StageRequests())
        rows = self._workers(name, requests.last)
        living = [row for row in rows if not row.life.has_ended]
        if requests.last is not None and any(row.outcome == AT_WORK for row in living):
            self.pending = True
            return
        if not requests.windows_read and any(row.outcome == DONE for row in rows):
            requests.windows_read = self.has_new_windows = True
        if living and missing and requests.count < self.rounds:
            self.pending = True
            if not self.has_new_windows:  # else the diagnosis says first whether that was enough
                roles = {stage.role for stage in missing}
                one_of_several = len(roles) == 1 and len({stage.role for stage in stages}) > 1
                self._request_micro_batches(name, missing, living, role=roles.pop() if one_of_several else "")

    def _workers(self, name: str, request: FiledRequest | None) -> list[WorkerProgress]:
        """Return the progress on ``request`` (None: that in the folder) of the on-demand workers of stage ``name``."""
        return [
            row
            for row in progress.collect(self.states, time.time(), requested=request).rows
            if row.worker.on_demand and row.worker.stage == name
        ]

    def _request_micro_batches(
        self, name: str, stages: Sequence[TrainerStage], living: Sequence[WorkerProgress], *, role: str
    ) -> None:
        """Request the shortest and the longest micro-batch of the slowest rank in the next training step.

        ``role`` is the only role to record, "" for all. Nothing is requested if the rank has ended too few calls to
        choose from, or if no worker has counted a step.
        """
        requests = self.requests[name]
        rank = slowest_rank(stages)
        of_rank = [stage for stage in stages if stage.rank == rank and len(stage.call_seconds) >= STUDIED]
        windows = next_micro_batches(of_rank[0], again=requests.windows_read) if of_rank else []
        turns = [row.worker.turn for row in living if row.worker.turn is not None]
        if not windows or not turns:
            return
        window = PlannedWindows(tuple(windows)).option
        request = TriggerRequest(window=window, ranks=str(rank or 0), at=max(turns) + 1, role=role)
        micro_batches = f"--micro-batch {window}"
        requests.last = self.states.write(name, request)
        requests.windows_read = False
        requests.count += 1
        text = Text("asked trainer rank {rank} to record stage {stage} of training step {step} with {window}")
        chosen = f"--role {role} {micro_batches}" if role else micro_batches
        self.say(text.filled(rank=request.ranks, stage=name, step=request.at, window=chosen))
