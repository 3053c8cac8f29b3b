"""Files of the recorder that goes into frameworks are what a reader reads: a driver and its worker make steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from patcher.timeline import files, runs
from patcher.timeline.join import join
from tests.patches.probes import timelines

WORKER = """
for _ in range(4):
    sys.stdin.readline()
    work = span("work", "train", "Worker")
    for _ in units("micro-batch", range(3)):
        time.sleep(0.01)
    for at in range(5):
        one = span("iteration", "", None, (4 - at // 2, 4 - at // 2, 100 + at))
        del one
    del work
    print("done", flush=True)
"""
DRIVER = f"""
import subprocess
worker = subprocess.Popen([sys.executable, "-c", {timelines.PRELUDE + WORKER!r}], stdin=-1, stdout=-1, text=True)

def phase(name, seconds=0.0, calls=False):
    one = span("phase", name)
    time.sleep(seconds)
    if calls:
        call = span("call", "group_train")
        print("train", file=worker.stdin, flush=True)
        worker.stdout.readline()
        del call
    del one

def train(number):
    whole = span("phase", "step")
    phase("adv", 0.3 if number == 3 else 0.01)
    phase("update", calls=True)
    del whole
    step(number)

for number in range(1, 5):
    train(number)
worker.wait()
"""


@pytest.mark.matrix
def test_what_the_recorder_keeps_is_joined(tmp_path: Path) -> None:
    left = timelines.left_by(DRIVER, tmp_path, RLPATCH_RUN="one")
    assert (left.status, left.output) == (0, "")
    ((run, processes),) = runs.survey(files.paths(tmp_path)).runs
    found = join(run, processes)
    assert [one.step for one in found.steps] == [1, 2, 3, 4]
    third = found.steps[2].limited_by
    assert third is not None
    assert (third.role, third.what) == ("driver", "adv")
    assert {one.what for one in found.steps[3].critical_path} >= {"adv", "micro-batch"}
    assert found.notes == ()
    assert all(lane.ended and lane.dropped == 0 for lane in found.lanes)
    assert sum(one.iterations for lane in found.lanes for one in lane.iterations) == 20
