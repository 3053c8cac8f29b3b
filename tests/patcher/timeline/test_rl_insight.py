"""The files for RL-Insight: what its documents ask of them, and a bar for each piece of work of a step."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from fixtures.timeline import made
from patcher.timeline import rl_insight
from patcher.timeline.model import IterationRun, Lane, LaneSpan

WORKS = (
    LaneSpan(0.5, 0.9, "work", "before", 0), LaneSpan(1, 2, "work", "update_actor", 0), LaneSpan(1.2, 1.4, "work", "train", 1),
    LaneSpan(2, 3, "unit", "micro-batch", 0), LaneSpan(3, 4, "work", "../load model", 0), LaneSpan(4, 5, "work", "_query", 0),
    LaneSpan(6, None, "work", "goes_on", 0),
)  # fmt: skip


def bars(*lanes: Lane) -> dict[str, dict[str, Any]]:
    """What stands in each file, for a run with one step from 1 to 10 s."""
    (step,) = made.run(steps=1).steps
    run = replace(made.empty(), lanes=lanes, steps=(replace(step, start=1.0, end=10.0),))
    return {name: json.loads(gzip.decompress(content)) for name, content in rl_insight.files(run)}


def test_a_bar_is_what_the_driver_called_or_when_an_engine_had_requests() -> None:
    trainer = Lane("trainer", 0, None, 1, "a", 1, "c", WORKS)
    runs = (IterationRun(0, 0.5, 9, 9, 1), IterationRun(2, 3, 9, 9, 1), IterationRun(4, 5.5, 9, 9, 1))
    engine = Lane("engine", 0, 2, None, "a", 2, "c", iterations=runs)
    found = bars(
        trainer, engine, Lane("engine", 1, 3, 0, "a", 3, "c"), Lane("driver", 0, None, None, "a", 4, "c", WORKS)
    )
    shown = {name: [(one["ts"], one["dur"]) for one in document["traceEvents"]] for name, document in found.items()}
    assert shown == {
        "update_actor/prof_rank1_0.json.gz": [(1_000_000, 1_000_000)],
        "___load_model/prof_rank1_0.json.gz": [(3_000_000, 1_000_000)],
        "rollout_replica_2/prof_rank0_0.json.gz": [(2_000_000, 3_500_000)],
    }


def test_each_file_has_what_rl_insight_asks_for() -> None:
    run = made.run(steps=2, name="\x1b</x>")
    files = [*rl_insight.files(run)]
    assert len({name for name, _ in files}) == len(files) > 10
    for name, content in files:
        path, document = PurePosixPath(name), json.loads(gzip.decompress(content))
        assert len(path.parts) == 2
        assert not {"..", "."} & {*path.parts}
        assert path.parent.name.replace("_", "a").isalnum()
        assert {"backend", "rank", "world_size"} == {*document["distributedInfo"]}
        assert all({"ph", "name", "pid", "tid", "ts", "dur"} <= {*one} for one in document["traceEvents"])
