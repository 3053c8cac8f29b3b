"""The workers of a run that record a rollout's windows on demand."""

from __future__ import annotations

import time
from pathlib import Path

from patcher.workers import progress
from patcher.workers.folder import StateFolder
from patcher.workers.progress import WorkerProgress

STAGE = "rollout"


def takes_requests(row: WorkerProgress) -> bool:
    """Tell whether a worker may be asked for windows of a rollout: it records on demand and has rank 0."""
    return row.worker.on_demand and row.worker.stage == STAGE and row.worker.rank == 0


def has_live_worker(folder: Path) -> bool:
    """Tell whether `folder` has the state of a live worker that records on demand.

    Raises OSError if the folder cannot be read.
    """
    if not folder.is_dir():
        return False
    rows = progress.collect(StateFolder(folder), time.time()).rows
    return any(row.worker.on_demand and row.life.alive for row in rows)
