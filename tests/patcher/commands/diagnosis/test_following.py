"""A run that goes on is asked for windows, until the diagnosis supports itself."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fixtures.rollouts import START_S, SimulatedEngine, requests
from fixtures.timeline.writer import Writer
from patcher.commands.diagnosis import asked, following, reading
from patcher.commands.diagnosis.following import Follower
from patcher.diagnosis.plan import WINDOWS
from patcher.messages.text import Text
from tests.patcher.workers.maker import ON_DEMAND, Saved, here


class LiveRun:
    """A simulated engine whose worker is this process, and what it has been asked for."""

    def __init__(self, folder: Path, unit: str = "iterations") -> None:
        self.folder, self.unit, self.saved = folder, unit, Saved(folder)
        self.engine = SimulatedEngine(pid=os.getpid(), host=here()["host"])
        self.traces: list[str] = []

    def rollout(self, of: Any = None, *, state: str = "installed", **more: Any) -> None:
        """Run another rollout, and begin the one after it."""
        self.engine.run(of or requests(0))
        for path in self.folder.glob("timeline/*"):
            path.unlink()
        self.engine.write_timeline(self.folder, ended=False)
        self.state(state, **more)

    def state(self, state: str = "installed", **more: Any) -> None:
        told = {"target": "vllm", "unit": self.unit, **ON_DEMAND, "rollout": len(self.engine.rollouts), "done": False}
        self.saved.state(state, **{**told, **here(), "traces": self.traces, **more})

    def asked(self) -> dict[str, Any]:
        file = self.saved.folder / "rollout.request"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def serve(self) -> None:
        """Record what was asked for, as its worker would, in the last rollout."""
        request = self.asked()
        for window in request["RLPATCH_WINDOW"].split(","):
            first, end = map(int, window.split(":"))
            self.traces.append(self.engine.write_window(self.folder, len(self.engine.rollouts) - 1, first, end).name)
        self.state(request=request["RLPATCH_REQUEST"])


@pytest.fixture
def live(tmp_path: Path) -> LiveRun:
    return LiveRun(tmp_path)


def test_it_asks_once_the_first_rollout_behind_the_warm_up_has_ended(live: LiveRun) -> None:
    said: list[str] = []
    follower = Follower(live.folder, 3, said.append)
    follower.look()  # nothing is there yet
    live.state(rollout=0)
    live.rollout(requests(99, 4))
    live.rollout()
    follower.look()
    assert not live.asked()
    live.rollout()
    follower.look()
    request = live.asked()
    assert (request["RLPATCH_ROLLOUT"], request["RLPATCH_RANKS"]) == ("4", "0")
    assert request["RLPATCH_WINDOW"].count(":") == WINDOWS
    assert len(said) == 1
    assert isinstance(said[0], Text)
    assert said[0].values == {"number": 4, "unit": "iterations", "window": request["RLPATCH_WINDOW"]}
    follower.look()  # it waits
    assert (live.asked()["RLPATCH_REQUEST"], len(said)) == (request["RLPATCH_REQUEST"], 1)


def test_it_ends_where_the_windows_support_the_diagnosis(live: LiveRun) -> None:
    follower = Follower(live.folder, 3, lambda _text: None)
    for of in (requests(99, 4), None, None):
        live.rollout(of)
    follower.look()
    live.rollout()
    live.rollout()
    live.serve()
    follower.look()
    assert follower.finished
    assert follower.diagnosis is not None
    assert follower.diagnosis.supported
    assert follower.diagnosis.what_ifs == (), "the requests are replayed once, at the end"
    assert follower.requests == 1


def test_an_earlier_run_with_a_driver_is_not_read_instead(live: LiveRun) -> None:
    before = Writer(live.folder, pid=7, started_ms=(START_S - 10_000) * 1000, run="before")
    before.add("step", "", 0, 1_000, amount=1)
    before.close((2_000, (START_S - 9_000) * 10**6))
    earlier = before.path.rename(live.folder / before.path.name)  # the simulation writes its own anew
    follower = Follower(live.folder, 3, lambda _text: None, started=START_S)
    for of in (requests(99, 4), None, None):
        live.rollout(of)
    follower.look()
    live.rollout()
    live.rollout()
    live.serve()
    follower.look()
    assert earlier.exists()
    assert follower.diagnosis is not None
    assert follower.diagnosis.supported


def test_it_asks_again_where_they_do_not_and_gives_up_after_some_rounds(live: LiveRun) -> None:
    follower = Follower(live.folder, 2, lambda _text: None)
    for of in (requests(99, 4), None, None):
        live.rollout(of)
    follower.look()
    first = live.asked()["RLPATCH_REQUEST"]
    for turn in (99, 199):
        live.rollout()
        live.state("installed", request=live.asked()["RLPATCH_REQUEST"], rollout=turn)  # it has passed without a trace
        follower.look()
    assert follower.finished
    assert (follower.requests, live.asked()["RLPATCH_REQUEST"] != first) == (2, True)


def test_of_decode_steps_it_asks_by_their_numbers(tmp_path: Path) -> None:
    live = LiveRun(tmp_path, unit="decode")
    follower = Follower(live.folder, 3, lambda _text: None)
    for of in (requests(99, 4), None, None):
        live.rollout(of)
    follower.look()
    decodes = sum(iteration.tokens == iteration.requests for iteration in live.engine.rollouts[1])
    numbers = [int(number) for window in live.asked()["RLPATCH_WINDOW"].split(",") for number in window.split(":")]
    assert numbers[0] >= 2
    assert numbers[-1] <= decodes + 1


def test_a_run_that_was_there_before_is_of_no_interest(live: LiveRun) -> None:
    follower = Follower(live.folder, 3, lambda _text: None, started=live.engine.now / 1e6 + 1000)
    for of in (requests(99, 4), None, None):
        live.rollout(of)
    follower.look()
    assert not live.asked()


def test_a_thread_follows_until_it_is_told_to_end(live: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LOOK_S", 0.01)
    monkeypatch.setattr(following, "LEAST_PAUSE", 0.0)
    said = threading.Event()
    end = following.start(Follower(live.folder, 3, lambda _text: said.set()))
    for of in (requests(99, 4), None, None):
        live.rollout(of)
    assert said.wait(20)
    end()
    assert not [thread for thread in threading.enumerate() if thread.name == "rlpatch-diagnose"]
    assert asked.has_live_on_demand_worker(live.folder)
    assert not asked.has_live_on_demand_worker(live.folder / "nothing")


def test_it_waits_until_no_worker_is_left(live: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LOOK_S", 0.01)
    monkeypatch.setattr(following, "LEAST_PAUSE", 0.0)
    live.state(rollout=0)

    def leave() -> None:
        for path in live.saved.folder.iterdir():
            path.unlink()

    threading.Timer(0.2, leave).start()
    following.wait(Follower(live.folder, 3, lambda _text: None))
    assert not asked.has_live_on_demand_worker(live.folder)


def test_ctrl_c_ends_the_diagnosis_alone(live: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupted)
    live.state(rollout=0)
    following.wait(Follower(live.folder, 3, lambda _text: None))
    assert asked.has_live_on_demand_worker(live.folder)


def test_an_unexpected_fault_ends_the_diagnosis_with_its_place(live: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "engines", lambda _processes: 1 // 0)
    said: list[str] = []
    follower = Follower(live.folder, 3, said.append, steps=9)
    end = following.start(follower)
    end()
    assert follower.over
    assert "test_following.py:" in said[0]
    assert "ZeroDivisionError" in said[0]
    assert said[0] in list(follower.notes())


def test_a_full_disk_is_told_and_tried_again(live: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "rollout.request")

    follower = Follower(live.folder, 3, lambda _text: None)
    with monkeypatch.context() as patched:
        patched.setattr(follower.states, "write", full)
        for of in (requests(99, 4), None, None):
            live.rollout(of)
        follower.look_safely()
    assert any("No space left" in note for note in follower.notes())
    follower.look_safely()
    assert live.asked()
    assert not follower.trouble


def test_a_worker_that_never_answers_is_named_and_no_longer_waited_for(live: LiveRun) -> None:
    follower = Follower(live.folder, 2, lambda _text: None)
    live.state(rollout=0)
    for of in (requests(99, 4), None, None):
        live.rollout(of)
        live.state(rollout=0)  # as if it were stuck
    follower.look()
    assert any("has not answered" in note for note in follower.notes())
    for _ in range(2 * (following.PATIENCE + 1)):
        live.rollout()
        live.state(rollout=0)
        follower.look()
    assert (follower.requests, follower.finished) == (2, True)


def test_a_worker_that_failed_to_record_is_named_with_the_reason(live: LiveRun) -> None:
    for of in (requests(99, 4), None, None):
        live.rollout(of)
    live.state("failed", why="""ModuleNotFoundError("No module named 'torch_npu'")""")
    notes = [note.text for note in reading.diagnose(live.folder, None).notes]
    reasons = [note for note in notes if "torch_npu" in note]
    assert reasons == ["rollout, rank 0, was not recorded: No module named 'torch_npu'"]


@pytest.mark.parametrize(
    ("rollouts", "worker", "said"),
    [(1, True, "only 1 so far"), (2, True, "only 2 so far"), (4, False, "no worker")],
)
def test_it_says_why_nothing_was_recorded(rollouts: int, worker: bool, said: str, live: LiveRun) -> None:
    follower = Follower(live.folder, 3, lambda _text: None)
    for _ in range(rollouts):
        live.rollout()
    if not worker:
        for path in live.saved.folder.iterdir():
            path.unlink()
    follower.look()
    assert any(said in note for note in follower.notes())


def test_it_tells_when_the_run_has_made_its_steps(live: LiveRun) -> None:
    follower = Follower(live.folder, 3, lambda _text: None, steps=2)
    for reached in (False, False, True):
        live.rollout()
        follower.look()
        assert follower.reached is reached


def test_steps_are_those_of_a_trainer_that_marks_them(live: LiveRun) -> None:
    follower = Follower(live.folder, 3, lambda _text: None, steps=2)
    for _ in range(4):
        live.rollout()
    started_ms = START_S * 1000
    trainer = Writer(live.folder, pid=7, started_ms=started_ms, run=live.engine.name)
    for number, at in ((1, 1_000_000), (1, 1_000_100), (2, 2_000_000)):  # the first one twice
        trainer.add("step", "", at, at, amount=number)
        trainer.flush((at, START_S * 10**6 + at))
        follower.look()
        assert follower.reached is (number == 2)


def test_a_look_is_followed_by_a_pause_but_for_the_windows_that_were_read(
    live: LiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def burn(seconds: float) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    def look(self: Follower) -> None:
        burn(0.05)
        self._read_windows(())

    monkeypatch.setattr(Follower, "look", look)
    monkeypatch.setattr(reading, "diagnose_processes", lambda *_: burn(0.4))

    def ended(seconds: float) -> bool:
        pauses.append(seconds)
        return True

    following.follow(Follower(live.folder, 3, lambda _text: None), ended)
    assert following.LEAST_PAUSE * 0.05 <= pauses[0] < following.LEAST_PAUSE * 0.2
