"""A run as the profiles by which RL-Insight (0.3.0, ``timeline.parser.type=torch``) draws its timeline.

It takes a bar for each file: its name is that of the folder, its row the rank, and its ends are those of the events.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from patcher.timeline.model import Lane, RunTimeline, TrainingStep


class _Bar(NamedTuple):
    name: str
    rank: int
    start: float
    end: float


def files(found: RunTimeline) -> Iterator[tuple[str, bytes]]:
    """The files of the steps of a run: path below the folder, and what stands in it."""
    world = {"backend": "not known", "world_size": sum(lane.role == "trainer" for lane in found.lanes)}
    bars = sorted(bar for lane in found.lanes for step in found.steps for bar in _bars(lane, step))
    for (name, rank), own in groupby(bars, lambda bar: bar[:2]):
        for number, bar in enumerate(own):
            start = round(bar.start * 1e6)
            event = {"ph": "X", "name": name, "pid": rank, "tid": 0, "ts": start, "dur": round(bar.end * 1e6) - start}
            document = {"distributedInfo": {**world, "rank": rank}, "traceEvents": [event]}
            yield f"{name}/prof_rank{rank}_{number}.json.gz", gzip.compress(json.dumps(document).encode(), mtime=0)


def _bars(lane: Lane, step: TrainingStep) -> Iterator[_Bar]:
    """What a trainer did for the driver, and when an engine had requests, in a step."""
    if lane.role == "trainer":
        yield from _works(lane, step)
    elif lane.role == "engine":
        runs = [run for run in lane.iterations if step.start <= run.start < step.end]
        if runs:
            name = f"rollout_replica_{lane.replica or 0}"
            yield _Bar(name, lane.rank or 0, runs[0].start, max(run.end for run in runs))


def _works(lane: Lane, step: TrainingStep) -> Iterator[_Bar]:
    until = step.start
    for span in lane.spans:
        public = span.kind == "work" and not span.name.startswith("_")
        if public and span.end is not None and until <= span.start < step.end:
            yield _Bar(re.sub(r"[^\w-]", "_", span.name) or "work", lane.rank or 0, span.start, span.end)
            until = span.end  # what it calls lies within it
