"""The workers of a run that were asked for windows: who may be asked, and who could not record."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from patcher.messages import Text
from patcher.timeline.runs import Process
from patcher.workers import progress
from patcher.workers.folder import StateFolder
from patcher.workers.life import plain_host
from patcher.workers.progress import WorkerProgress
from patcher.workers.worker import FAILED

STAGE = "rollout"


def takes_requests(row: WorkerProgress) -> bool:
    """Tell whether a worker may be asked for windows of a rollout: it records on demand and has rank 0."""
    return row.worker.on_demand and row.worker.stage == STAGE and row.worker.rank == 0


def has_live_on_demand_worker(folder: Path) -> bool:
    """Tell whether `folder` has the state of a live worker that records on demand. Raises OSError."""
    if not folder.is_dir():
        return False
    rows = progress.collect(StateFolder(folder), time.time()).rows
    return any(row.worker.on_demand and row.life.alive for row in rows)


def failure_notes(folder: Path, processes: Sequence[Process]) -> Iterator[tuple[str, str]]:
    """Yield (sentence with the reason, sentence with the process) for each worker that failed to record."""
    places = {(process.head.pid, plain_host(process.head.host)) for process in processes}
    with contextlib.suppress(OSError):
        for worker in (row.worker for row in progress.collect(StateFolder(folder), time.time()).rows):
            if worker.state == FAILED and (worker.pid, plain_host(worker.host)) in places:
                reason = re.sub(r"""^\w+\((["'])(.*)\1\)$""", r"\2", worker.why)  # the message of an exception
                text = Text("{stage}, rank {rank}, was not recorded: {reason}")
                text = text.filled(stage=worker.stage, rank=worker.rank, reason=reason)
                yield text, Text("{host}, process {pid}", host=worker.host, pid=worker.pid)
