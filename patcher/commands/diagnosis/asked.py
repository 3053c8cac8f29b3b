"""The workers of a run that record a rollout's windows on demand."""

from __future__ import annotations

import time
from pathlib import Path

from patcher.workers import progress
from patcher.workers.folder import StateFolder
from patcher.workers.progress import WorkerProgress

STAGE = "rollout"


def takes(row: WorkerProgress) -> bool:
    """Tell whether a worker records a rollout's windows on demand, and its rank is asked."""
    return row.worker.on_demand and row.worker.stage == STAGE and row.worker.rank == 0


def alive(folder: Path) -> bool:
    """Tell whether a live worker in `folder` would take a request. Raises OSError for an unreadable folder."""
    if not folder.is_dir():
        return False
    rows = progress.collect(StateFolder(folder), time.time()).rows
    return any(row.worker.on_demand and row.life.alive for row in rows)
