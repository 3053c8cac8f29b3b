"""The trainers of a run that goes on are asked for micro-batches, until these are enough."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fixtures.micro_batches import SimulatedTrainer, dynamic
from patcher.commands.diagnosis import reading
from patcher.commands.diagnosis.following import Follower
from patcher.messages.text import Text
from tests.patcher.workers.maker import ON_DEMAND, Saved, here


class LiveTrainer:
    """A simulated trainer whose worker is this process, and what it has been asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.saved = folder, Saved(folder)
        self.trainer = SimulatedTrainer(pid=os.getpid(), host=here()["host"])
        self.traces: list[str] = []
        self.said: list[str] = []
        self.sizes = True
        self.follower = Follower(folder, 2, self.said.append)

    def call(self, sizes: list[int] | None = None) -> None:
        """Make another call, and begin the step after it."""
        self.trainer.call(sizes or dynamic(1))
        for path in self.folder.glob("timeline/*"):
            path.unlink()
        self.trainer.write_timeline(self.folder, sizes=self.sizes)
        self.state()

    def state(self, **more: Any) -> None:
        step = len(self.trainer.calls)
        told = {"stage": "update-policy", "step": step, **ON_DEMAND, **here(), "done": False, "traces": self.traces}
        self.saved.state("installed", **{**told, **more})

    def asked(self) -> dict[str, Any]:
        file = self.saved.folder / "update-policy.request"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def serve(self, *, back: int = 1) -> None:
        """Record what was asked for, as the worker would, in the last call or one ``back``."""
        request = self.asked()
        for window in request["RLPATCH_WINDOW"].split(","):
            first, end = map(int, window.split(":"))
            self.traces.append(self.trainer.write_window(self.folder, len(self.trainer.calls) - back, first, end).name)
        self.state(request=request["RLPATCH_REQUEST"])


def units_of(live: LiveTrainer) -> int:
    """How many micro-batches were asked for last."""
    windows = [map(int, window.split(":")) for window in live.asked()["RLPATCH_WINDOW"].split(",")]
    return sum(end - first for first, end in windows)


@pytest.fixture
def live(tmp_path: Path) -> LiveTrainer:
    return LiveTrainer(tmp_path)


def test_it_asks_once_a_call_behind_the_warm_up_has_ended(live: LiveTrainer) -> None:
    live.follower.look()
    live.call()
    live.follower.look()
    assert not live.asked()
    live.call()
    live.follower.look()
    request = live.asked()
    assert (request["RLPATCH_TRAINING_STEPS"], request["RLPATCH_RANKS"], len(live.said)) == ("3", "0", 1)
    assert request["RLPATCH_WINDOW"].count(":") == 2
    values = {"rank": "0", "stage": "update-policy", "step": 3, "window": f"--micro-batch {request['RLPATCH_WINDOW']}"}
    assert isinstance(live.said[0], Text)
    assert live.said[0].values == values
    live.follower.look()  # it waits
    assert (live.asked()["RLPATCH_REQUEST"], len(live.said)) == (request["RLPATCH_REQUEST"], 1)


def test_it_ends_where_the_micro_batches_support_the_stage(live: LiveTrainer) -> None:
    for _ in range(2):
        live.call()
    live.follower.look()
    for _ in range(2):
        live.call()
    live.serve()
    live.follower.look()
    assert live.follower.diagnosis is not None
    assert live.follower.diagnosis.supported == {"update-policy"}
    live.follower.look()
    assert (len(live.said), live.follower.training.pending) == (1, False)


def test_it_asks_again_where_they_do_not_and_gives_up_after_some_rounds(live: LiveTrainer) -> None:
    for _ in range(2):
        live.call()
    live.follower.look()
    for passed in (99, 199):
        live.call()
        live.state(request=live.asked()["RLPATCH_REQUEST"], step=passed)  # it has passed without a trace
        live.follower.look()
    live.follower.look()
    assert (len(live.said), live.follower.training.pending) == (2, False)
    assert live.asked()["RLPATCH_TRAINING_STEPS"] == "100"


def test_it_asks_again_where_no_size_tells_how_long_a_micro_batch_takes(live: LiveTrainer) -> None:
    live.sizes = False
    for _ in range(2):
        live.call()
    live.follower.look()
    live.call()
    live.call([9_000] * 8)  # no recorded micro-batch is like these
    at_first = units_of(live)
    live.serve(back=2)
    for _ in range(2):
        live.follower.look()
    assert live.follower.diagnosis is not None
    assert not live.follower.diagnosis.supported
    assert (len(live.said), live.follower.training.pending) == (2, True)
    assert units_of(live) < at_first == 4


def test_a_stage_without_workers_on_demand_is_not_waited_for(live: LiveTrainer) -> None:
    for _ in range(3):
        live.call()
    live.state(on_demand=False)
    live.follower.look()
    assert not live.asked()
    assert not live.follower.training.pending


@pytest.mark.parametrize(("supported", "role"), [((), ""), (("compute-log-prob",), "ref")])
def test_only_the_role_that_lacks_windows_is_asked(supported: tuple[str, ...], role: str, live: LiveTrainer) -> None:
    for number in range(2):
        for stage in ("compute-log-prob", "compute-ref-log-prob"):
            live.trainer.call(dynamic(number), stage)
    live.trainer.write_timeline(live.folder)
    for worker in ("actor", "ref"):
        more = {**ON_DEMAND, **here(), "stage": "compute-log-prob", "role": worker, "step": 2}
        live.saved.state("installed", **more)
    live.follower.training.request_missing(reading.newest_since(live.folder, 0.0), supported)
    request = json.loads((live.saved.folder / "compute-log-prob.request").read_text())
    assert request["RLPATCH_ROLE"] == role
    assert (f"--role {role}" in str(live.said[0])) == bool(role)
