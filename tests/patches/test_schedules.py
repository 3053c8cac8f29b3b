"""Random schedules, held against the scheduler that made them: what is recorded are the units that were asked for.

Chunked prefill, drafts, preemption, aborted requests and ``sleep()``, in each shape in which vLLM's V1 engine
hands its batches to the worker.
"""

from __future__ import annotations

import pytest

from fixtures.ascend import standins
from tests.matrix import thinned_rows
from tests.patches.rollout_workers import V1Worker
from tests.patches.schedules import RELEASES, Seen, schedule

pytestmark = pytest.mark.usefixtures("stand_in_torch")

WINDOWS = [("decode", 1, 3), ("decode", 3, 8), ("prefill", 0, 2), ("iterations", 2, 9)]


@pytest.mark.parametrize(("unit", "first", "end"), WINDOWS)
@pytest.mark.parametrize(("release", "shape"), thinned_rows(RELEASES, (RELEASES[0], RELEASES[3])))
def test_what_is_recorded_are_the_units_asked_for(release: str, shape: str, unit: str, first: int, end: int) -> None:
    opened = 0
    for seed in range(25):
        worker = V1Worker(release=release, UNIT=unit, FIRST=int(unit == "decode"), WINDOW=f"{first}:{end}", REPEAT=99)
        seen, wanted = Seen(), dict[int, list[str]]()
        for batch in schedule(seed):
            if batch is None:
                worker._rlpatch_stage("end_rollout", "sleep()")
                seen.end()
                continue
            number = seen.number(batch, unit)
            worker.iterate(standins.SHAPES[shape](batch), batch.label)
            if first <= number < end:
                wanted.setdefault(seen.rollout, []).append(f"{number}: {batch.label}")
        if worker._rlpatch_stage_probe:
            worker._rlpatch_stage("close", "the process ends")  # else it keeps the next one from recording
        recorded = [
            [f"{number}: {labels[0]}" for number, labels in sorted(profiler.recorded.items())]
            for profiler in worker.made
        ]
        assert [units for units in recorded if units] == list(wanted.values()), seed
        opened += len(worker.made)
    assert opened > 25
