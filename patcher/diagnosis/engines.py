"""The engines of a run, and their iterations from the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from patcher.diagnosis.iterations import Floats, Iterations, iterations
from patcher.timeline.files import Reader
from patcher.timeline.runs import Process
from patcher.timeline.windows import ENGINES

NEWEST = 4
"""Number of newest rollouts by which windows of the next one are planned."""


@dataclass(frozen=True)
class Engine:
    """One engine process: host, process id, replica (None if unknown) and package, and all its iterations.

    ``between`` has the seconds from each iteration's end to the next one in its rollout.
    """

    host: str
    pid: int
    replica: int | None
    package: str
    iterations: Iterations
    between: Floats

    @property
    def between_seconds(self) -> float:
        """Seconds between iterations, without those of the first rollout, which is a warm-up, if there are others."""
        return float(self.between[self.iterations.after_warm_up].sum())

    @property
    def rollouts(self) -> int:
        """Number of rollouts, with the one that may still go on."""
        return int(self.iterations.rollout.max(initial=-1)) + 1

    @property
    def whole_rollouts(self) -> list[Iterations]:
        """The iterations of up to four rollouts, oldest first: the newest ones that have ended for sure.

        The last rollout, which may go on, is in it only if it is the only one. The first, which warms up, is in it only
        if no other is.
        """
        last = max(self.rollouts - 2, 0)
        numbers = range(min(max(last + 1 - NEWEST, 1), last), min(last + 1, self.rollouts))
        return [self.iterations.chosen(self.iterations.rollout == number) for number in numbers]


def engines(processes: Sequence[Process]) -> list[Engine]:
    """Read the iterations of all engines among the processes of a run."""
    return [read_engine(process) for process in processes if "engine" in process.roles]


def read_engine(process: Process) -> Engine:
    """Read the iterations of an engine's process from its timeline files, in seconds of its host's wall clock.

    They are sorted by start. The package counts as vllm if the files name no known engine.
    """
    monotonic, wall = process.head.clocks
    reader = Reader(process.paths, 0, wall - monotonic)
    while reader.read_block():
        reader.spans.clear()  # a long run has millions of them
    columns = reader.iterations
    in_order = np.argsort(np.asarray(columns.start), kind="stable")
    start, end, requests, tokens, context = (
        np.asarray(column, dtype=np.float64)[in_order]
        for column in (columns.start, columns.end, columns.requests, columns.tokens, columns.context)
    )
    identity, rollout = (np.asarray(column, dtype=np.int64)[in_order] for column in (columns.id, columns.rollout))
    head = process.head
    package = head.package.partition(" ")[0]  # that of the trainer where both share a process
    package = package if package in ENGINES else "vllm"
    all_iterations = iterations(start / 1e6, (end - start) / 1e6, requests, tokens, context, rollout, identity)
    between = np.maximum(all_iterations.seconds - (end - start) / 1e6, 0.0)
    return Engine(head.host, head.pid, process.replica, package, all_iterations, between)
