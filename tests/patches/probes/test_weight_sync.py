"""Weight syncs as tables, with a profiler that writes down what it is told; real ones are in ``test_on_verl_weights``."""

from __future__ import annotations

import ast
import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patcher.changes.change import SHARED, PatchId
from patcher.editing.rendering import render
from patches.probes.recorder import OneWorld
from patches.probes.weight_sync import WeightSync
from patches.verl import verl_weights as verl
from tests.choices import config
from tests.patches.standin import Backend, Console, Profiler, rendered
from tests.patches.step_metadata import states

pytestmark = pytest.mark.usefixtures("stand_in_torch")


class Sides:
    """The functions of a trainer, of an engine that takes all at once, and of one that takes one bucket in each call."""

    def __init__(self, made: list[Profiler], monkeypatch: pytest.MonkeyPatch, **constants: Any) -> None:
        space: dict[str, Any] = {}
        exec("\n".join(rendered(verl.RECIPES[0], {"STAGE": "weight-sync", **constants})), space)
        recorder = type("Recorder", (Backend, space["_RlpatchStage"]), {"made": made})
        self.syncs: Any = recorder.__dict__.get("Syncs", space["_RlpatchStage"].Syncs)(recorder)
        self.made, self.ranges = made, list[str]()
        monkeypatch.setattr("torch.profiler.record_function", self.marked, raising=False)

    def marked(self, name: str) -> Any:
        name = name.removeprefix("rlpatch:")
        ends: Callable[..., None] = lambda *_: self.ranges.append(f"/{name}")  # noqa: E731
        return SimpleNamespace(__enter__=lambda: self.ranges.append(name), __exit__=ends)

    def run(self, label: str) -> None:
        for profiler in self.made:
            profiler.run(label)

    def train(self, label: str, *, fails: bool = False) -> None:
        _range = self.syncs.sync(self, "trainer", "update_weights")
        self.adapt(label, iter("ab"), fails=fails)
        del _range

    def adapt(self, label: str, weights: Any, *, fails: bool) -> None:
        _range = self.syncs.sync(self, "trainer", "nested")
        weights = self.syncs.weights(weights)
        for one in weights:
            self.run(label + one)
            if fails:
                raise KeyError(one)
        del _range

    def load(self, label: str) -> None:
        _range = self.syncs.sync(self, "rollout", "update_weights_from_tensor", True)
        self.run(label)
        del _range

    def forward(self, label: str) -> None:
        self.syncs.ended()
        self.run(label)


@pytest.fixture
def made() -> list[Profiler]:
    return []


@pytest.mark.parametrize(
    ("constants", "environ", "recorded"),
    [
        ({}, {}, [["0a", "0b"]]),
        ({"SYNC": "2"}, {}, [["2a", "2b"]]),
        ({"SYNC": "1", "REPEAT": 2}, {}, [["1a", "1b"], ["2a", "2b"]]),
        ({"REPEAT": 9}, {}, [["0a", "0b"], ["1a", "1b"], ["2a", "2b"]]),
        ({}, {"RLPATCH_SYNC": "1"}, [["1a", "1b"]]),
        ({}, {"RLPATCH_SYNC": "nonsense"}, []),
        ({}, {"RLPATCH_RANKS": "1"}, []),
        ({"RANKS": "1"}, {"RANK": "1"}, [["0a", "0b"]]),
        ({}, {"VERL_REPLICA_RANK": "1"}, []),
        ({}, {"VERL_REPLICA_RANK": "1", "RLPATCH_REPLICAS": "all"}, [["0a", "0b"]]),
        ({}, {"RLPATCH": "0"}, []),
    ],
)
def test_which_syncs_are_recorded(
    constants: dict[str, Any],
    environ: dict[str, str],
    recorded: list[list[str]],
    made: list[Profiler],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    sides = Sides(made, monkeypatch, **constants)
    for label in "012":
        sides.train(label)
        sides.run("between")
    assert [profiler.recorded for profiler in made] == [{0: labels} for labels in recorded]
    assert (sides.syncs.probe is None) == (constants.get("REPEAT") != 9)


def test_the_log_and_the_ranges_say_what_it_was(
    made: list[Profiler], monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    sides = Sides(made, monkeypatch)
    sides.train("0")
    sides.train("1")
    gathered = ["gather", "/gather"]
    assert sides.ranges == ["update_weights", "nested", *gathered * 3, "/nested", "/update_weights"]
    assert (made[0].schedule, made[0].calls) == ((0, 0, 1), ["start", "sync", "step", "stop"])
    (line,) = console.messages
    assert "_weight_sync_trainer_sync0_rank0_" in line
    assert line.endswith(", weight sync 0, trainer: complete, recorded: 0")


@pytest.mark.parametrize(("replica", "who"), [("", "rank0"), ("1", "replica1_rank0")])
def test_the_replica_is_in_the_names_of_the_trace_and_the_state_file_if_it_is_known(
    replica: str, who: str, made: list[Profiler], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, console: Console
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a trace of `Backend` is relative
    monkeypatch.setenv("VERL_REPLICA_RANK", replica)
    sides = Sides(made, monkeypatch, METADATA=True, REPLICAS="all", SAVE_PATH=str(tmp_path))
    sides.train("0")
    host = "".join(letter if letter.isalnum() else "_" for letter in os.uname().nodename)
    assert [*states(tmp_path)] == [f"weight-sync_trainer_{host}_{who}_{os.getpid()}"]
    assert f"{host}_weight_sync_trainer_sync0_{who}_{os.getpid()}" in console.text


def test_the_phases_are_ranges_of_nvtx_in_a_capture_of_nsys(
    made: list[Profiler], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log: list[str] = []

    def begin(name: str) -> str:
        log.append(name.removeprefix("rlpatch:"))
        return f"/{log[-1]}"

    cuda = SimpleNamespace(
        profiler=SimpleNamespace(start=lambda: log.append("start"), stop=lambda: log.append("stop")),
        nvtx=SimpleNamespace(
            range_push=lambda name: log.append(" ".join(name.split()[:2])), range_pop=lambda: log.append("pop"),
            range_start=begin, range_end=log.append,
        ),
        is_available=lambda: False,
    )  # fmt: skip
    monkeypatch.setattr("torch.cuda", cuda, raising=False)
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    sides = Sides(made, monkeypatch, backend="nsys", METADATA=True, SAVE_PATH=str(tmp_path), SYNC="1")
    for label in "012":
        sides.train(label)
    assert sides.ranges == []
    phases = ["update_weights", "nested", *["gather", "/gather"] * 3, "/nested", "/update_weights"]
    assert log == ["start", "rlpatch:weight-sync 1", "call 0", *phases, "pop", "pop", "stop"]


def test_a_sync_of_several_calls_ends_with_the_next_batch(
    made: list[Profiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = Sides(made, monkeypatch, SYNC="1")
    for sync in "01":
        for bucket in "ab":
            sides.load(sync + bucket)
            sides.run("waits")
        for step in ("forward", "again"):
            sides.forward(step)
    assert [profiler.recorded for profiler in made] == [{0: ["1a", "waits", "1b", "waits"]}]


@pytest.mark.parametrize("last", [True, False])
def test_a_protocol_of_three_calls_is_one_sync(
    last: bool, made: list[Profiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = Sides(made, monkeypatch)
    for call, goes_on in (("start", True), ("update", None), ("finish", False))[: 3 if last else 2]:
        _range = sides.syncs.sync(sides, "rollout", call, goes_on)
        sides.run(call)
        del _range
    sides.run("behind it")
    assert [profiler.recorded for profiler in made] == [
        {0: ["start", "update", *(["finish"] if last else ["behind it"])]}
    ]


def test_a_sync_that_raises_is_saved_and_the_next_one_is_another(
    made: list[Profiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = Sides(made, monkeypatch, REPEAT=2)
    with pytest.raises(KeyError):
        sides.train("0", fails=True)
    sides.train("1")
    assert [profiler.recorded for profiler in made] == [{0: ["0a"]}, {0: ["1a", "1b"]}]
    assert sides.syncs.depth == 0


def test_what_can_be_iterated_again_is_left_as_it_is(made: list[Profiler], monkeypatch: pytest.MonkeyPatch) -> None:
    sides, weights = Sides(made, monkeypatch), {"a": 1}
    _range = sides.syncs.sync(sides, "trainer", "update_weights")
    assert sides.syncs.weights(weights) is weights
    assert sides.syncs.weights(weights.items()) == weights.items()
    del _range
    one_shot = iter("a")
    assert sides.syncs.weights(one_shot) is one_shot  # nothing is recorded any more


def test_weights_that_are_awaited_are_received(made: list[Profiler], monkeypatch: pytest.MonkeyPatch) -> None:
    async def received() -> Any:
        yield "a"
        await asyncio.sleep(0)
        yield "b"

    async def hand_over() -> list[str]:
        _range = sides.syncs.sync(sides, "relay", "update_weights")
        found = [one async for one in sides.syncs.weights(received())]
        del _range
        return found

    sides = Sides(made, monkeypatch)
    assert asyncio.run(hand_over()) == ["a", "b"]
    assert sides.ranges == ["update_weights", *["receive", "/receive"] * 3, "/update_weights"]


def test_to_hand_a_bucket_over_lasts_until_it_is_answered(
    made: list[Profiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Socket:
        closed = False

        def send_pyobj(self, bucket: str) -> None:
            sides.ranges.append(bucket)

        def recv(self) -> str:
            return "answer"

    sides, real = Sides(made, monkeypatch), Socket()
    _range = sides.syncs.sync(sides, "trainer", "update_weights")
    socket = sides.syncs.socket(real)
    socket.send_pyobj("a bucket")
    assert (socket.recv(), socket.closed) == ("answer", False)
    del _range
    assert sides.ranges == ["update_weights", "send", "a bucket", "/send", "/update_weights"]
    assert sides.syncs.socket(real) is real


def test_a_sync_that_the_end_of_the_process_cuts_off_is_saved(
    made: list[Profiler], monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    sides = Sides(made, monkeypatch)
    _range = sides.syncs.sync(sides, "trainer", "update_weights")
    sides.run("0")
    sides.syncs.tell(None, "exit")
    assert [profiler.recorded for profiler in made] == [{0: ["0"]}]
    assert "the process ends, recorded: " in console.messages[0]
    del _range
    assert len(console.messages) == 1


def test_a_run_that_ends_before_the_sync_says_so(
    made: list[Profiler], monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    sides = Sides(made, monkeypatch, SYNC="7")
    sides.train("0")
    sides.syncs.tell(None, "exit")
    assert console.messages[0].endswith(" weight sync 7")


@pytest.mark.parametrize("words", ["npu", "torch", "nsys", "torch --max-trace-gb 3", "memory --max-trace-gb 0.5"])
def test_what_goes_in_compiles_on_python_3_8(words: str) -> None:
    chosen = config(f"--stage weight-sync --sync 2 --repeat 3 --ranks all --tool {words}")
    patch = PatchId("verl", "weight-sync")
    code = "\n".join(render(verl.RECIPES[0], chosen, "", patch, PatchId("verl", SHARED)).patch_lines)
    tree = ast.parse(code, feature_version=(3, 8))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.arg) and node.annotation]
    assert '"""Records weight syncs 2 to 4 of each process on every rank."""' in code
    assert ("RLPATCH_MAX_TRACE_GB" in code) is ("--max-trace-gb" in words)


@pytest.mark.parametrize(
    ("world", "environ", "parallel", "rank"),
    [
        (None, {}, None, (0, 0)), (None, {"RANK": "3"}, None, (3, 0)), (4, {"RANK": "3"}, None, (2, 0)),
        (None, {}, {"data_parallel_index": 2, "data_parallel_rank": 1, "world_size": 4}, (8, 2)), (None, {}, {"data_parallel_rank": 1, "world_size": 4}, (4, 1)),
        (4, {}, {"data_parallel_index": 2, "world_size": 4}, (10, 2)), (8, {}, {"data_parallel_index": 1, "world_size": 4}, (2, 1)), (None, {}, {"world_size": 4}, (0, 0)),
    ],
)  # fmt: skip
def test_each_data_parallel_rank_of_an_engine_has_a_world_of_its_own(
    world: int | None,
    environ: dict[str, str],
    parallel: dict[str, int] | None,
    rank: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In torch's world, if there is one, it is rank 2."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    dist = sys.modules["torch.distributed"]
    for name, result in (
        ("is_available", world is not None),
        ("is_initialized", True),
        ("get_rank", 2),
        ("get_world_size", world),
    ):
        monkeypatch.setattr(dist, name, lambda result=result: result, raising=False)
    monkeypatch.setattr(OneWorld, "__init__", lambda self, _: setattr(self, "done", False))
    worker = (
        SimpleNamespace(vllm_config=SimpleNamespace(parallel_config=SimpleNamespace(**parallel)))
        if parallel
        else object()
    )
    made = WeightSync(worker)
    assert (made.rank, made.dp) == rank
