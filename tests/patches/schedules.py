"""Random schedules, and the rollouts that a worker can see in them."""

from __future__ import annotations

import random
from typing import Any

from fixtures.ascend import standins

# A release of each shape of the batches, and "" for one that is not known and finds out by itself.
RELEASES = [("0.9.1", "A"), ("0.11.0rc1", "C"), ("0.12.0rc1", "D"), ("0.26.0rc1", "E")]


RELEASES += [("", shape) for _, shape in RELEASES]


def schedule(seed: int) -> Any:
    """Batches in turn, and None where the trainer puts the engine to sleep."""
    chance = random.Random(seed)
    scheduler, number = standins.Scheduler(chance.choice([32, 64])), 0
    for turn in range(chance.randint(20, 70)):
        event = chance.random()
        if event < 0.25 or not turn:
            for _ in range(chance.randint(1, 3)):
                scheduler.add(
                    standins.Request(f"r{number}", chance.randint(1, 40), chance.randint(1, 12), chance.randint(0, 2))
                )
                number += 1
        elif event < 0.32 and scheduler.running:
            scheduler.preempt(chance.choice(scheduler.running).id)
        elif event < 0.45:
            for request in [waiting for waiting in scheduler.waiting if waiting.held]:
                scheduler.resume(request.id)
        elif event < 0.48 and scheduler.running:
            scheduler.abort(chance.choice(scheduler.running).id)
        elif event < 0.52 and not scheduler.waiting and not any(request.prefills for request in scheduler.running):
            yield None
        batch = scheduler.schedule()
        yield batch
        scheduler.done(batch)


class Seen:
    """The rollouts as a worker can see them: it learns of a request when it is scheduled, and then that it is done."""

    def __init__(self) -> None:
        self.rollout, self.live, self.numbers = -1, set[str](), dict[str, int]()

    def end(self) -> None:
        self.live, self.numbers = set(), {}

    def number(self, batch: standins.Iteration, unit: str) -> int:
        """The number of the batch in its rollout, -1 where it does not count as ``unit``."""
        if self.live and self.live <= batch.finished:
            self.end()
        self.live = (self.live or set(batch.counts)) - batch.finished | {request.id for request in batch.new}
        if not batch.kind:
            return -1
        if not self.numbers:
            self.rollout, self.numbers = self.rollout + 1, {"decode": 0, "prefill": -1, "iterations": -1}
        mine = "decode" if batch.kind == "decode" else "prefill"
        for counted in (mine, "iterations"):
            self.numbers[counted] += 1
        return self.numbers[unit] if unit in (mine, "iterations") else -1
