"""The counting of the training stages as a table, with a profiler that writes down what it is told.

What real profilers record of verl's real classes is proven in ``test_on_verl``.
"""

from __future__ import annotations

import atexit
import json
import re
import threading
from functools import partial
from multiprocessing import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patches.probes import live
from patches.probes.members import ForeignLoops
from patches.probes.rollout import RolloutUnits
from patches.probes.training import TrainingSteps
from tests.patches.rollout_workers import V1Worker, batch
from tests.patches.standin import Console, Profiler
from tests.patches.step_metadata import Traces, facts, states
from tests.patches.training_stages import Failed, Stage, minis, recipe
from tests.patches.triggered import WAITING

pytestmark = pytest.mark.usefixtures("stand_in_torch")


@pytest.mark.parametrize(
    ("constants", "expected"),
    [
        ({"WINDOW": "0:1"}, minis(0, 1)),
        ({"WINDOW": "1:3"}, minis(1, 3)),
        ({"WINDOW": "1:3", "WARMUP": 0}, minis(1, 3)),
        ({"WINDOW": "2:4", "WARMUP": 5}, minis(2, 4)),
        ({"WINDOW": "2:99"}, minis(2, 4)),
    ],
    ids=str,
)
def test_mini_batches_are_counted_over_the_epochs(constants: dict[str, Any], expected: dict[int, list[str]]) -> None:
    stage = Stage(UNIT="mini-batch", **constants)
    stage.update(epochs=2, minis=2)
    assert stage.recorded == [expected]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ("0:1", {0: ["micro 0.0"]}),
        ("1:3", {1: ["micro 0.1"], 2: ["micro 0.2"]}),
        ("2:4", {2: ["micro 0.2", "step 0"], 3: ["micro 1.0"]}),
        ("3:4", {3: ["micro 1.0"]}),
        ("4:99", {4: ["micro 1.1"], 5: ["micro 1.2", "step 1"]}),
    ],
)
def test_micro_batches_of_an_update_are_counted_over_its_mini_batches(window: str, expected: Any) -> None:
    stage = Stage(WINDOW=window)
    stage.update()
    stage.update()
    assert stage.recorded == [expected]


def test_the_optimizer_step_between_two_micro_batches_is_marked_and_reported(
    monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    marked: list[str] = []
    monkeypatch.setattr("torch.profiler.record_function", lambda name: Range(marked, name))
    step = Profiler.step

    def next_unit(profiler: Profiler) -> None:
        marked.append("next unit")
        step(profiler)

    monkeypatch.setattr(Profiler, "step", next_unit)
    stage = Stage(WINDOW="1:5")
    stage.update()
    between = ["rlpatch:uncounted begins", "rlpatch:uncounted ends"]
    assert marked == [*["next unit"] * 2, *between, *["next unit"] * 3]
    assert "complete, recorded 4 of 4 micro-batches with 1 optimizer steps between them: 0\n" in console.text


class Range:
    """A range that says when it begins and ends."""

    def __init__(self, said: list[str], name: str) -> None:
        self.said, self.name = said, name

    def __enter__(self) -> None:
        self.said.append(f"{self.name} begins")

    def __exit__(self, *_: object) -> None:
        self.said.append(f"{self.name} ends")


@pytest.mark.parametrize(
    ("window", "expected", "said"),
    [
        ("0:2", {0: ["micro 0"], 1: ["micro 1"]}, "complete, recorded 2 of 2"),
        ("3:4", {3: ["micro 3"]}, "complete, recorded 1 of 1"),
        ("2:9", {2: ["micro 2"], 3: ["micro 3"]}, "the call ends, recorded 2 of 7"),
    ],
)
def test_a_stage_of_one_loop_ends_with_it(window: str, expected: Any, said: str, console: Console) -> None:
    stage = Stage(WINDOW=window)
    stage.infer()
    assert stage.recorded == [expected]
    assert f"actor, micro-batch {window} of training step 1: {said}" in console.text


def test_a_window_that_nobody_reaches_is_reported(console: Console) -> None:
    stage = Stage(WINDOW="7:9")
    stage.infer(4)
    assert stage.recorded == []
    assert "micro-batch 7:9 of training step 1: not recorded: the call ends after 4 micro-batches" in console.text


def test_a_loop_that_two_stages_of_a_class_count_is_told_to_both() -> None:
    told: list[str] = []

    class Told:
        def __init__(self, name: str) -> None:
            self.name = name

        def call(self, event: str, *_: Any) -> None:
            told.append(f"{self.name} {event}")

    loop, actor, ref = Stage()._RlpatchStage.Loop, Told("actor"), Told("ref")
    units = loop(ref.call, "micro-batch", loop(actor.call, "micro-batch", [1], False), False)
    assert list(units) == [1]
    assert sorted(told) == sorted(
        f"{name} {event}" for name in ("actor", "ref") for event in ("start", "stop", "end_loop")
    )
    assert loop(ref.call, "micro-batch", units, False).units is units.units, "of the epoch before"


@pytest.mark.parametrize(
    ("constants", "environ", "steps"),
    [
        ({}, {}, [1]),
        ({"STEPS": "2"}, {}, [2]),
        ({"STEPS": "2,5"}, {}, [2, 5]),
        ({"REPEAT": 3}, {}, [1, 2, 3]),
        ({"STEPS": "2,5", "REPEAT": 2}, {}, [2, 3, 5, 6]),
        ({}, {"RLPATCH_TRAINING_STEPS": "3"}, [3]),
        ({}, {"RLPATCH_UPDATE_POLICY_TRAINING_STEPS": "4", "RLPATCH_TRAINING_STEPS": "3"}, [4]),
        ({}, {"RLPATCH_COMPUTE_VALUES_TRAINING_STEPS": "4"}, [1]),
        ({}, {"RLPATCH": "0"}, []),
        ({}, {"RLPATCH_RANKS": "1"}, []),
        ({"RANKS": "1"}, {"RANK": "1"}, [1]),
    ],
    ids=str,
)
def test_training_steps(
    monkeypatch: pytest.MonkeyPatch, constants: Any, environ: dict[str, str], steps: list[int]
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    stage = Stage(**constants)
    seen = []
    for step in range(1, 9):
        before = len(stage.made)
        stage.infer()
        seen += [step] * (len(stage.made) - before)
    assert seen == steps
    assert stage._rlpatch_stage_probe is None, "after its last step a call is a test for None"
    units = [1, 2]
    assert stage._rlpatch_stage_units("micro-batch", units) is units


def test_a_step_name_carries_stage_role_step_rank_and_process(console: Console) -> None:
    import os

    Stage(STEPS="2").infer()
    stage = Stage(STEPS="2")
    stage.infer()
    stage.infer()
    assert f"_update_policy_actor_step2_rank0_{os.getpid()}, update-policy, actor" in console.text


@pytest.mark.parametrize(
    ("unit", "window", "fail", "expected"),
    [
        ("micro-batch", "1:5", "micro 0.2", {1: ["micro 0.1"], 2: ["micro 0.2"]}),
        ("micro-batch", "1:5", "step 0", {1: ["micro 0.1"], 2: ["micro 0.2"]}),
        ("micro-batch", "1:5", "micro 1.0", {1: ["micro 0.1"], 2: ["micro 0.2", "step 0"], 3: ["micro 1.0"]}),
        ("mini-batch", "0:2", "micro 1.1", {**minis(0, 1), 1: ["micro 1.0", "micro 1.1"]}),
        ("mini-batch", "0:2", "step 1", {**minis(0, 1), 1: ["micro 1.0", "micro 1.1", "micro 1.2"]}),
    ],
)
def test_the_trace_is_written_when_the_loop_raises(
    console: Console, unit: str, window: str, fail: str, expected: Any
) -> None:
    stage = Stage(UNIT=unit, WINDOW=window, STEPS="1,2")
    with pytest.raises(Failed):
        stage.update(fail=fail)
    assert stage.made[0].calls[-1] == "stop"
    assert "the loop ended early, recorded" in console.text
    stage.update()
    assert stage.recorded[0] == expected
    assert len(stage.recorded) == 2, "and the next training step is recorded as asked"


def test_a_failure_of_the_profiler_does_not_touch_the_loop(monkeypatch: pytest.MonkeyPatch, console: Console) -> None:
    stage = Stage(WINDOW="1:3")
    monkeypatch.setattr(Profiler, "step", lambda _self: (_ for _ in ()).throw(OSError("no space left")))
    stage.update()
    assert stage._rlpatch_stage_probe is None
    assert len(console.failures) == 1


class Actor(Stage):
    """verl's DataParallelPPOActor as the probe sees it."""

    recipe = recipe("FSDP worker", "compute-log-prob")

    def __init__(self, *, optimizer: object, **constants: Any) -> None:
        super().__init__(STAGE="compute-log-prob", ROLES=("actor", "ref"), **constants)
        self.actor_optimizer, self.adapters = optimizer, [SimpleNamespace(_disable_adapters=False)]
        self.actor_module = SimpleNamespace(modules=lambda: [object(), *self.adapters])

    def reference(self) -> None:
        """The pass of the reference on the actor, as with LoRA."""
        self.adapters[0]._disable_adapters = True
        self.infer()
        self.adapters[0]._disable_adapters = False


@pytest.mark.parametrize(
    ("roles", "optimizer", "names"),
    [
        (("actor", "ref"), object(), ["actor_step1"]),
        (("actor", "ref"), None, ["ref_step1"]),
        (("actor",), None, []),
        (("ref",), object(), []),
    ],
)
def test_the_reference_has_no_optimizer(
    console: Console, monkeypatch: pytest.MonkeyPatch, roles: tuple[str, ...], optimizer: object, names: Any
) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr(util, "Finalize", lambda _, function, arguments, **_more: partial(function, *arguments))
    monkeypatch.setattr(atexit, "register", at_exit.append)
    actor = Actor(optimizer=optimizer)
    actor._RlpatchStage.ROLES = roles
    for _ in range(3):
        actor.infer()
    for ending in at_exit:
        ending()
    said = [message.split("log_prob_")[1].split("_rank")[0] for message in console.messages]
    assert said == names


@pytest.mark.parametrize(
    ("roles", "steps", "names"),
    [
        (("actor", "ref"), "1", ["actor_step1", "ref_step1"]),
        (("ref",), "2", ["ref_step2"]),
        (("actor",), "2", ["actor_step2"]),
        (("actor", "ref"), "2", ["actor_step2", "ref_step2"]),
    ],
)
def test_with_lora_both_roles_share_the_actor(console: Console, roles: tuple[str, ...], steps: str, names: Any) -> None:
    actor = Actor(optimizer=object(), STEPS=steps)
    actor._RlpatchStage.ROLES = roles
    for _ in range(4):
        actor.infer()
        actor.reference()
    said = [message.split("log_prob_")[1].split("_rank")[0] for message in console.messages]
    assert said == names
    assert actor._rlpatch_stage_probe is None


class Worker(Stage):
    """verl's TrainingWorker, whose engine has the loop over the micro-batches."""

    recipe = recipe("engine worker, micro-batches", "update-policy")

    def __init__(self, *, model_type: str = "language_model", forward_only: bool = False, **constants: Any) -> None:
        super().__init__(**constants)
        self.config = SimpleNamespace(model_type=model_type)
        self.engine_config = SimpleNamespace(forward_only=forward_only)
        self.engine: Any = ForeignLoops()

    def _forward(self, number: str = "", last: bool = False) -> None:
        for micro in self.engine._rlpatch_stage_units("micro-batch", range(3), last):
            self.run(f"micro {number}{micro}")

    def train(self, data: dict[str, Any]) -> None:
        self._rlpatch_stage("enter", data)
        self.engine._rlpatch_stage_units = self._rlpatch_stage_units
        for mini in self._rlpatch_stage_units("mini-batch", range(2), last=True):
            self._forward(f"{mini}.")
            self.run(f"step {mini}")

    def infer_batch(self, data: dict[str, Any]) -> None:
        self._rlpatch_stage("enter", data)
        self.engine._rlpatch_stage_units = self._rlpatch_stage_units
        self._forward(last=True)


@pytest.mark.parametrize(
    ("unit", "window", "expected"),
    [
        ("micro-batch", "2:4", {2: ["micro 0.2", "step 0"], 3: ["micro 1.0"]}),
        ("micro-batch", "4:9", {4: ["micro 1.1"], 5: ["micro 1.2", "step 1"]}),
        ("mini-batch", "1:2", {1: ["micro 1.0", "micro 1.1", "micro 1.2", "step 1"]}),
    ],
)
def test_an_engine_lends_its_loop_to_its_worker(unit: str, window: str, expected: Any) -> None:
    worker = Worker(UNIT=unit, WINDOW=window)
    worker._forward()  # no worker has called it yet
    worker.train({})
    worker.train({})
    assert worker.recorded == [expected]


class Asynchronous(Worker):
    """Its trainer calls the update several times in a training step, and sends the weights on at its end."""

    _rlpatch_parameter_version: int

    def in_step(self, step: int) -> None:
        self._rlpatch_parameter_version = step - 1
        for call in range(2):
            self.run(f"between {step}.{call}")
            self.train({})


MINI: dict[str, Any] = {"UNIT": "mini-batch"}


@pytest.mark.parametrize(
    ("settings", "traces", "said"),
    [
        ({"WINDOW": "0:1", "STEPS": "2", **MINI}, [[0]], ["complete, recorded 1 of 1"]),
        (
            {"WINDOW": "3:4", "STEPS": "2", **MINI},
            [[3]],
            ["not recorded: the call ends after 2", "complete, recorded 1 of 1"],
        ),
        (
            {"WINDOW": "1:3", "STEPS": "2", **MINI},
            [[1], [2]],
            ["the call ends, recorded 1 of 2", "complete, recorded 1 of 1"],
        ),
        ({"WINDOW": "0:", "STEPS": "2", **MINI}, [[0, 1], [2, 3]], ["the call ends, recorded 2 of"] * 2),
        (
            {"WINDOW": "7:10", "STEPS": "2"},
            [[7, 8, 9]],
            ["not recorded: the call ends after 6", "complete, recorded 3 of 3"],
        ),
        (
            {"WINDOW": "0:1,2:3", "STEPS": "2", "SEVERAL": True, **MINI},
            [[0], [2]],
            ["complete", "the call ends, recorded 0 of 1", "complete"],
        ),
        (
            {"WINDOW": "4:5", "STEPS": "2", **MINI},
            [],
            ["not recorded: the call ends after 2", "the call ends, recorded 0 of 1"],
        ),
    ],
    ids=str,
)
def test_a_training_step_is_one_of_the_log_however_many_calls_it_has(
    settings: dict[str, Any], traces: list[list[int]], said: list[str], console: Console
) -> None:
    worker = Asynchronous(**settings)
    for step in (1, 2, 3):
        worker.in_step(step)
    assert [[*units] for units in worker.recorded if units] == traces
    assert not any("between" in label for units in worker.recorded for labels in units.values() for label in labels)
    assert all("of training step 2 (parameter version 1): " in line for line in console.messages)
    ends = [line.partition("): ")[2] for line in console.messages]
    assert [end[: len(start)] for end, start in zip(ends, said, strict=True)] == said
    assert worker._rlpatch_stage_probe is None


def test_a_run_that_begins_behind_its_training_steps_says_so(console: Console) -> None:
    worker = Asynchronous()
    worker.in_step(8)
    assert console.messages[0].endswith(
        "training step 8 (parameter version 7): not recorded: the first call is already in training step 8"
    )
    worker.in_step(9)
    assert (len(console.messages), worker.made) == (1, [])


def test_facts_and_state_hold_the_number_of_the_weights(tmp_path: Path) -> None:
    worker = Asynchronous(parts=(Traces,), WINDOW="0:1", METADATA=True, SAVE_PATH=str(tmp_path), **MINI)
    worker.in_step(1)  # its second call records nothing, and takes nothing back
    (fact,), (state,) = facts(tmp_path), states(tmp_path).values()
    assert [(one["step"], one["parameter_version"], one["state"]) for one in (fact, state)] == [(1, 0, "saved")] * 2


def test_a_request_for_a_training_step_that_has_begun_is_refused_in_the_next(tmp_path: Path, console: Console) -> None:
    """Its units are not numbered any more, for nobody wanted them when it began."""
    worker = Asynchronous(parts=(Traces,), **{**WAITING, "SAVE_PATH": str(tmp_path)}, **MINI)
    request = {"RLPATCH_REQUEST": "a1", "RLPATCH_WINDOW": "0:1", "RLPATCH_RANKS": "0", "RLPATCH_TRAINING_STEPS": "1"}
    worker._rlpatch_parameter_version = 0
    worker.train({})
    (tmp_path / ".rlpatch/update-policy.request").write_text(json.dumps({**request, "expires": "9e9"}))
    worker.train({})
    assert not console.text
    worker.in_step(2)
    assert "request refused: the request is for rollout or step 1, and this worker is at 2" in console.text
    assert worker.made == []


def test_a_request_is_served_in_every_call_of_its_training_step(tmp_path: Path) -> None:
    worker = Asynchronous(parts=(Traces,), **{**WAITING, "SAVE_PATH": str(tmp_path)}, **MINI)
    request = {"RLPATCH_REQUEST": "a1", "RLPATCH_WINDOW": "1:3", "RLPATCH_RANKS": "0", "RLPATCH_TRAINING_STEPS": "2"}
    worker.in_step(1)
    (tmp_path / ".rlpatch/update-policy.request").write_text(json.dumps({**request, "expires": "9e9"}))
    for step in (2, 3):
        worker.in_step(step)
    assert [[*units] for units in worker.recorded] == [[1], [2]]


def test_calls_are_counted_where_nothing_tells_of_training_steps(console: Console) -> None:
    worker = Worker(STEPS="2")
    worker.train({})
    worker.train({})
    assert [line.partition(" of training step ")[2].partition(":")[0] for line in console.messages] == [
        "2 (calls counted)"
    ]


class Unlooped(Worker):
    """Called for single batches, by fine-tuning, or in parts by a client of Tinker."""

    def train_batch(self, number: str) -> None:
        self._rlpatch_stage("begin_batch", {})
        self.engine._rlpatch_stage_units = self._rlpatch_stage_units
        self._forward(number)
        self.run(f"step {number}")
        self._rlpatch_stage("end_batch")

    def in_parts(self, number: str) -> None:
        for part in range(2):
            self._rlpatch_stage("begin_batch", {}, True)
            self.engine._rlpatch_stage_units = self._rlpatch_stage_units
            self._forward(f"{number}{part}.")
        self.run(f"step {number}")
        self._rlpatch_stage("end_batch")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"WINDOW": "1:2"}, {1: ["micro b1"]}),
        ({"WINDOW": "2:9"}, {2: ["micro b2", "step b"]}),
        ({"WINDOW": "0:1", **MINI}, {0: ["micro b0", "micro b1", "micro b2", "step b"]}),
        ({"WINDOW": "1:2", **MINI}, {}),
    ],
    ids=str,
)
def test_a_batch_by_itself_is_a_training_step_of_one_mini_batch(settings: Any, expected: Any, console: Console) -> None:
    worker = Unlooped(STEPS="2", **settings)
    for number in "abc":
        worker.train_batch(number)
    assert [units for units in worker.recorded if units] == ([expected] if expected else [])
    assert "the previous call did not end" not in console.text


def test_a_batch_in_the_loop_is_no_training_step_and_one_behind_it_is() -> None:
    worker = Unlooped(WINDOW="0:2", STEPS="1,2", **MINI)
    worker._rlpatch_stage("enter", {})
    for mini in worker._rlpatch_stage_units("mini-batch", range(2), last=True):
        worker.train_batch(f"{mini}.")
    worker.train_batch("after")
    assert [[*units] for units in worker.recorded] == [[0, 1], [0]]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"WINDOW": "2:4"}, {2: ["micro b0.2"], 3: ["micro b1.0"]}),
        ({"WINDOW": "5:6"}, {5: ["micro b1.2"]}),
        (
            {"WINDOW": "0:1", **MINI},
            {0: [*(f"micro b{part}.{micro}" for part in range(2) for micro in range(3)), "step b"]},
        ),
    ],
    ids=str,
)
def test_parts_are_a_mini_batch_up_to_the_optimizer_step(settings: Any, expected: Any) -> None:
    worker = Unlooped(STEPS="2", **settings)
    for number in "abc":
        worker.in_parts(number)
    assert worker.recorded == [expected]


@pytest.mark.parametrize(
    ("kind", "data", "role"),
    [
        ({}, {}, "actor"),
        ({}, {"no_lora_adapter": False}, "actor"),
        ({}, {"no_lora_adapter": SimpleNamespace(data=False)}, "actor"),
        ({}, {"no_lora_adapter": SimpleNamespace(data=True)}, "ref"),
        ({}, {"no_lora_adapter": True}, "ref"),
        ({"forward_only": True}, {}, "ref"),
        ({"model_type": "value_model"}, {}, "critic"),
        ({"model_type": "value_model", "forward_only": True}, {}, "critic"),
    ],
    ids=str,
)
def test_the_role_of_a_training_worker(console: Console, kind: dict[str, Any], data: dict[str, Any], role: str) -> None:
    worker = Worker(ROLES=("actor", "ref", "critic"), STAGE="compute", **kind)
    worker.infer_batch(data)
    assert f"compute, {role}, micro-batch" in console.text


class Rollout(V1Worker):
    """A worker of an engine in the trainer's process, whose window stays open."""

    def __init__(self) -> None:
        super().__init__(WINDOW="1:9")

    def step(self, prompt: int = 0) -> None:
        self.iterate(batch({"a": 1}, {"a": 1} if prompt else None), "iteration")


class TestTwoOfOurs:
    """Profilers that share a process: never two at a time."""

    def opened(self) -> Rollout:
        rollout = Rollout()
        rollout.step(prompt=1)
        rollout.step()
        assert rollout.made[0].calls[-1] != "stop"
        return rollout

    def test_a_rollout_that_is_still_open_is_closed_when_training_starts(self, console: Console) -> None:
        rollout, stage = self.opened(), Stage(WINDOW="1:2")
        stage.infer()
        assert rollout.made[0].calls[-1] == "stop"
        assert "decode 1:9 of rollout 0: update-policy starts, recorded 1 of 8" in console.text
        assert stage.recorded == [{1: ["micro 1"]}]

    def test_an_open_rollout_is_closed_by_a_training_step_that_is_not_recorded(self) -> None:
        rollout, stage = self.opened(), Stage(STEPS="2")
        stage.infer()
        assert rollout.made[0].calls[-1] == "stop"
        assert stage.recorded == []

    def test_an_open_rollout_is_not_closed_from_another_thread(self, console: Console) -> None:
        rollout, stage = self.opened(), Stage(WINDOW="1:2")
        thread = threading.Thread(target=stage.infer)
        thread.start()
        thread.join()
        assert "stop" not in rollout.made[0].calls
        assert stage.recorded == []
        assert "_dp0_rank0_" in console.text
        assert "already recording" in console.text

    def test_a_stage_does_not_open_while_another_records(self, console: Console) -> None:
        outer, inner = Stage(UNIT="mini-batch", WINDOW="0:2"), Stage(WINDOW="0:1", STAGE="compute-values")
        outer._rlpatch_stage("enter")
        for _ in outer._rlpatch_stage_units("mini-batch", range(2), last=True):
            inner.infer()
        assert inner.made == []
        assert "compute-values, actor, micro-batch 0:1 of training step 1: not recorded: " in console.text
        assert "_update_policy_actor_step1_rank0_" in console.text

    def test_a_failed_end_of_the_other_is_its_own_failure(self, monkeypatch: Any, console: Console) -> None:
        rollout, stage = self.opened(), Stage(WINDOW="1:2")
        monkeypatch.setattr(rollout._RlpatchStage, "traces", lambda _: 1 / 0)
        stage.infer()
        assert stage.recorded == [{1: ["micro 1"]}]
        (error,) = console.failures
        assert re.match(r"rlpatch: \w+_dp0_rank0_\d+, rollout: recording failed, the run goes on: ", error)


class Whole(Stage):
    """A window of calls."""

    def __init__(self, **constants: Any) -> None:
        super().__init__(UNIT="call", **constants)


def test_a_call_is_a_unit_from_its_beginning_to_its_end(console: Console) -> None:
    stage = Whole()
    stage.update()
    stage.update()
    assert stage.recorded == [{0: [label for labels in minis(0, 2).values() for label in labels]}]
    assert "update-policy, actor, call 0:1 of training step 1: complete, recorded 1 of 1 " in console.text


def test_a_call_that_raises_is_closed_by_the_next_one(console: Console) -> None:
    stage = Whole(STEPS="1,2")
    stage._rlpatch_stage("enter")
    stage.run("that raises")
    stage.update(minis=1, micros=1)
    assert stage.recorded == [{0: ["that raises"]}, {0: ["micro 0.0", "step 0"]}]
    assert console.text.count("the previous call did not end, recorded 1 of 1 micro-batches") == 1
    assert console.text.count("complete, recorded 1 of 1 micro-batches") == 1


def test_the_second_call_of_a_training_step_that_has_one_is_said(console: Console) -> None:
    stage = Whole(WINDOW="1:2")
    stage.update()
    assert "not recorded" not in console.text, "its warm-up is the first one"
    assert "the call ends, recorded 0 of 1 micro-batches" in console.text


class Scheduled(Stage):
    """Its micro-batches are taken by what plays Megatron's schedule; ``overlap`` is that of the experts."""

    recipe = recipe("Megatron worker, micro-batches", "update-policy")
    _rlpatch_stage_scheduled: Any
    _rlpatch_stage_ended: Any

    def drive(self, *, stages: int = 1, chunks: int = 1, overlap: bool = False, last: bool = False) -> None:
        """Labels as of ``update``."""
        mpu = SimpleNamespace(get_pipeline_model_parallel_world_size=lambda: stages)
        self.tf_config = SimpleNamespace(**({"overlap_moe_expert_parallel_comm": True} if overlap else {}))
        self._rlpatch_stage("enter")
        for mini in self._rlpatch_stage_units("mini-batch", range(1 if last else 2), last=not last):
            of_call = {"last": True} if last else {}
            batches = self._rlpatch_stage_scheduled("micro-batch", iter(range(3)), mpu, [self] * chunks, **of_call)
            for _ in range(3):
                self.run(f"micro {mini}.{next(batches)}")
            self._rlpatch_stage_ended(batches)
            self.run(f"step {mini}")


@pytest.mark.parametrize(
    ("window", "last", "expected"),
    [
        ("0:1", False, {0: ["micro 0.0"]}),
        ("2:4", False, {2: ["micro 0.2", "step 0"], 3: ["micro 1.0"]}),
        ("5:6", False, {5: ["micro 1.2"]}),
        ("2:9", True, {2: ["micro 0.2"]}),
    ],
)
def test_the_micro_batches_that_a_schedule_takes(window: str, last: bool, expected: Any) -> None:
    stage = Scheduled(WINDOW=window)
    stage.drive(last=last)
    assert stage.recorded == [expected]


@pytest.mark.parametrize(
    ("run", "instead"),
    [
        ({"stages": 2}, "--mini-batch or --call"),
        ({"chunks": 2}, "--mini-batch or --call"),
        ({"overlap": True}, "--mini-batch or --call"),
        ({"stages": 2, "last": True}, "--call"),
    ],
)
def test_what_a_schedule_interleaves_has_no_micro_batches(run: Any, instead: str, console: Console) -> None:
    stage = Scheduled()
    stage.drive(**run)
    assert stage.recorded == []
    said = f"not recorded: Megatron's schedule interleaves the micro-batches (use {instead}) after 0 micro-batches"
    assert [message.endswith(said) for message in console.messages] == [True]
    other = Scheduled(UNIT="mini-batch")  # with --markers the line is there, too
    other.drive(**run)
    assert other.recorded == [minis(0, 1)]


def test_a_forward_alone_overlaps_with_nothing() -> None:
    stage = Scheduled()
    stage.drive(overlap=True, last=True)
    assert stage.recorded == [{0: ["micro 0.0"]}]


class Megatron(Stage):
    recipe = recipe("Megatron worker", "update-policy")

    def __init__(self, own: Any, **constants: Any) -> None:
        super().__init__(**constants)
        self.prof = own


@pytest.mark.parametrize(
    ("own", "recorded"),
    [(None, 1), (SimpleNamespace(check=lambda: False), 1), (SimpleNamespace(check=lambda: True), 0)],
)
def test_megatrons_own_profiler_comes_first(console: Console, own: Any, recorded: int) -> None:
    worker = Megatron(own, UNIT="mini-batch")
    worker.update()
    assert len(worker.made) == recorded
    assert ("verl's own torch profiler is switched on" in console.text) is not recorded


@pytest.mark.parametrize("active", [None, object()])
def test_verls_own_profiler_comes_first(monkeypatch: Any, console: Console, active: object) -> None:
    import sys

    module = SimpleNamespace(Profiler=SimpleNamespace(_active_prof=active))
    monkeypatch.setitem(sys.modules, "verl.utils.profiler.torch_profile", module)
    worker = Worker()
    worker.infer_batch({})
    assert len(worker.made) == (active is None)
    assert ("verl's own torch profiler is running" in console.text) is (active is not None)


@pytest.mark.parametrize(
    ("settings", "calls", "said"),
    [
        (
            {"STEPS": "2,5"},
            3,
            "micro-batch 0:1 3 5",
        ),
        (
            {"WINDOW": "0:1", "REPEAT": 3},
            2,
            "micro-batch 0:1 2 3",
        ),
        ({"STEPS": "2"}, 3, ""),
        ({"STEPS": "2"}, 0, ""),  # an object that never computed this stage
    ],
)
def test_a_step_that_is_not_reached_when_the_process_ends_is_said(
    settings: Any, calls: int, said: str, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr(util, "Finalize", lambda _, function, arguments, **_more: partial(function, *arguments))
    monkeypatch.setattr(atexit, "register", at_exit.append)
    stage = Stage(**settings)
    for _ in range(calls):
        stage.update()
    stage._rlpatch_stage("end_loop", "micro-batch", False, True)
    for ending in at_exit:
        ending()
    lines = [line for line in console.messages if "not recorded" in line]
    found = [re.findall(r"micro-batch|\d+(?::\d+)?", line.partition("update-policy, ")[2]) for line in lines]
    assert [" ".join(words) for words in found] == ([said] if said else [])


def test_a_call_that_the_end_of_the_process_cuts_off_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr(util, "Finalize", lambda _, function, arguments, **_more: partial(function, *arguments))
    monkeypatch.setattr(atexit, "register", at_exit.append)
    stage = Stage(WINDOW="7:9")
    stage._rlpatch_stage("enter")
    list(stage._rlpatch_stage_units("micro-batch", range(4)))
    at_exit[0]()
    assert console.messages[0].endswith("training step 1: not recorded: the process ends after 4 micro-batches")
    assert len(console.messages) == 1


@pytest.mark.parametrize(
    ("step", "calls", "states", "done"),
    [
        (1, {"actor": 1}, ["installed", "waiting"], False), (2, {"actor": 2}, ["installed"], False), (4, {"actor": 4}, ["installed", "waiting"], False),
        (5, {"actor": 5}, [], True), (5, {"actor": 5, "ref": 3}, [], False), (5, {"actor": 5, "ref": 4}, [], True), (9, {"ref": 9}, [], True),
    ],
)  # fmt: skip
def test_a_stage_is_done_behind_the_last_step_of_all_of_its_roles(
    step: int, calls: dict[str, int], states: list[str], done: bool
) -> None:
    """Steps 1 and 4 are chosen."""
    told: list[Any] = []
    steps: Any = TrainingSteps.__new__(TrainingSteps)
    for name, value in {
        "step": step,
        "calls": calls,
        "steps": {1, 4},
        "write_state": told.append,
        "place_window": lambda: told.append("placed"),
    }.items():
        setattr(steps, name, value)
    steps.begin_step()
    assert ([word for word in told if word != "placed"], steps.done) == (states, done)
    assert ("placed" in told) == (step in (1, 4))


@pytest.mark.parametrize(
    ("kind", "base", "method", "words"),
    [
        (live.LiveUnit, TrainingSteps, "start", ("micro-batch", None)),
        (live.LiveIteration, RolloutUnits, "step", (None,)),
    ],
)
def test_the_number_of_the_next_unit_is_published(
    kind: Any, base: Any, method: str, words: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, method, lambda self, *_: setattr(self, "unit", self.unit + 1))
    made = kind.__new__(kind)
    made.unit, made.live_number = 6, [0, 0]
    getattr(made, method)(*words)
    assert made.live_number == [7, 0]
