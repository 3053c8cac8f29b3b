"""The counting of the probe as a table, with a profiler that writes down what it is told.

What a real profiler then records is proven in ``test_on_torch_npu``.
"""

from __future__ import annotations

import atexit
import contextlib
import re
import sys
import threading
from collections.abc import Iterator
from functools import partial
from multiprocessing import util
from multiprocessing.util import Finalize
from types import SimpleNamespace
from typing import Any

import pytest

from patches.probes.tools import NpuProfiler, TorchProfiler
from tests.patches.rollout_workers import V0Worker, V1Worker, batch, recorded, rollout, steps
from tests.patches.standin import Console, Profiler

pytestmark = pytest.mark.usefixtures("stand_in_torch")


@pytest.mark.parametrize(
    ("window", "constants", "expected"),
    [
        ("3:6", {}, steps(3, 6)),
        ("1:3", {}, steps(1, 3)),
        ("1:3", {"WARMUP": 0}, steps(1, 3)),
        ("5:6", {"WARMUP": 0}, steps(5, 6)),
        ("5:7", {"WARMUP": 3}, steps(5, 7)),
        ("2:4", {"WARMUP": 9}, steps(2, 4)),
        ("8:99", {}, steps(8, 11)),
        ("0:1", {"UNIT": "prefill", "FIRST": 0}, {0: ["prefill"]}),
        (
            "0:3",
            {"UNIT": "iterations", "FIRST": 0},
            {0: ["prefill"], 1: ["decode 1"], 2: ["decode 2"]},
        ),
        ("2:4", {"UNIT": "iterations", "FIRST": 0}, {2: ["decode 2"], 3: ["decode 3"]}),
    ],
)
def test_exactly_the_window_with_its_own_numbers(
    window: str, constants: dict[str, Any], expected: dict[int, list[str]]
) -> None:
    worker = V1Worker(WINDOW=window, **constants)
    rollout(worker, 10)
    worker.iterate(batch({}, done=("a",)), "empty")
    assert recorded(worker) == [expected]
    assert worker._rlpatch_stage_probe is None, "after the window a call is a test for None"


@pytest.mark.parametrize(
    ("before", "behind"),
    [(0, 0), (3, 0), (0, 2), (2, 3)],
)
def test_ranks_that_run_in_step_count_alike(before: int, behind: int, console: Console) -> None:
    """One has requests all the time, the other runs dummy batches ``before`` its own and ``behind`` it."""
    constants: dict[str, Any] = {"WINDOW": "2:7", "UNIT": "aligned", "FIRST": 0, "REPEAT": 2, "RANKS": "all"}
    busy, other = V1Worker(**constants), V1Worker(rank=1, **constants)
    own = 8 - before - behind
    for _ in range(2):
        rollout(busy, 7)
        for _ in range(before):
            other.iterate(None, "dummy")
        rollout(other, own - 1)
        other.iterate(batch({}, done=("a",)), "empty")  # as where no request is left: not a step
        for _ in range(behind):
            other.iterate(None, "dummy")
        for worker in (busy, other):
            worker._rlpatch_stage("end_rollout", "sleep()")
    labels = [*["dummy"] * before, "prefill", *(f"decode {n}" for n in range(1, own)), *["dummy"] * behind]
    assert recorded(busy) == [{2: ["decode 2"], 3: ["decode 3"], 4: ["decode 4"], 5: ["decode 5"], 6: ["decode 6"]}] * 2
    found = [{n: [one for one in labels if one != "empty"] for n, labels in unit.items()} for unit in recorded(other)]
    assert found == [{n: [labels[n]] for n in range(2, 7)}] * 2
    assert "aligned 2:7 of rollout 1: complete, recorded 5 of 5 iterations" in console.text


def test_an_aligned_window_that_nobody_reaches_is_reported(console: Console) -> None:
    worker = V1Worker(WINDOW="9:12", UNIT="aligned", FIRST=0)
    for _ in range(4):
        worker.iterate(None, "dummy")
    worker._rlpatch_stage("end_rollout", "sleep()")
    assert re.search(r"aligned 9:12 .*sleep\(\).*\b4 iterations", console.text)


def test_the_schedule_is_that_of_the_guides() -> None:
    worker = V1Worker()
    rollout(worker, 61)
    assert worker.made[0].schedule == (29, 1, 30)
    assert recorded(worker) == [steps(30, 60)]


def test_a_window_that_nobody_reaches_is_reported(console: Console) -> None:
    worker = V1Worker(WINDOW="20:30")
    rollout(worker, 10)
    worker._rlpatch_stage("end_rollout", "sleep()")
    assert recorded(worker) == []
    assert "decode 20:30 of rollout 0: not recorded: sleep() after 10 decode steps" in console.text
    assert worker._rlpatch_stage_probe is None


@pytest.mark.parametrize("last", [1, 2, 128], ids="last chunk {}".format)
def test_chunked_prefill_is_not_decode_however_short_its_last_chunk(last: int) -> None:
    worker = V1Worker(WINDOW="1:3")
    worker.iterate(batch({"a": 128}, {"a": 256 + last}), "prefill 1")
    worker.iterate(batch({"a": 128}), "prefill 2")
    worker.iterate(batch({"a": last}), "prefill 3")
    for n in range(1, 5):
        worker.iterate(batch({"a": 1}), f"decode {n}")
    assert recorded(worker) == [steps(1, 3)]


def test_a_prompt_that_was_cached_but_for_one_token_prefills_once() -> None:
    worker = V1Worker(WINDOW="1:2")
    first = batch({"a": 1}, {"a": 40})
    first.scheduled_new_reqs[0].num_computed_tokens = 39
    worker.iterate(first, "prefill")
    for n in (1, 2):
        worker.iterate(batch({"a": 1}), f"decode {n}")
    assert recorded(worker) == [steps(1, 2)]


def test_embeddings_instead_of_tokens_have_a_length_too() -> None:
    worker = V1Worker(WINDOW="1:2")
    first = batch({"a": 3}, {"a": 3})
    first.scheduled_new_reqs[0].prompt_token_ids = None
    first.scheduled_new_reqs[0].prompt_embeds = [0] * 4
    for item, label in (
        (first, "prefill"),
        (batch({"a": 1}), "last chunk"),
        (batch({"a": 1}), "decode 1"),
        (batch({"a": 1}), "decode 2"),
    ):
        worker.iterate(item, label)
    assert recorded(worker) == [steps(1, 2)]


def test_speculative_tokens_are_decode() -> None:
    worker = V1Worker(WINDOW="1:3")
    worker.iterate(batch({"a": 8}, {"a": 8}), "prefill")
    for n in range(1, 4):
        worker.iterate(batch({"a": 4}, drafts={"a": [1, 2, 3]}), f"decode {n}")
    assert recorded(worker) == [steps(1, 3)]


def test_a_prefill_between_two_steps_is_marked_and_reported(console: Console) -> None:
    worker = V1Worker(WINDOW="2:4")
    rollout(worker, 2)
    worker.iterate(batch({"a": 1, "b": 9}, {"b": 9}), "mixed")
    worker.iterate(batch({}), "empty")
    worker.iterate(batch({"a": 1, "b": 1}), "decode 3")
    worker.iterate(batch({"a": 1, "b": 9}, {"c": 9}), "after")
    assert recorded(worker) == [{2: ["decode 2", "mixed", "empty"], 3: ["decode 3"]}]
    assert "recorded 2 of 2 decode steps with 1 uncounted iterations between them" in console.text


@pytest.mark.parametrize(
    ("goes_on", "calls"),
    [
        (True, ["sync", "step", "uncounted", "/uncounted", "uncounted", "/uncounted", "step", "sync", "step", "stop"]),
        (False, ["sync", "step", "uncounted", "/uncounted", "uncounted", "/uncounted", "sync", "stop"]),
    ],
    ids=["the next unit", "the end of the rollout"],
)
def test_a_range_in_the_trace_marks_what_is_uncounted_until_the_unit_or_the_window_ends(
    goes_on: bool, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = V1Worker(WINDOW="2:4", WARMUP=1)

    @contextlib.contextmanager
    def noted(name: str) -> Iterator[None]:
        worker.made[0].calls.append(name.removeprefix("rlpatch:"))
        yield
        worker.made[0].calls.append(f"/{name.removeprefix('rlpatch:')}")

    monkeypatch.setattr("torch.profiler.record_function", noted)
    rollout(worker, 2)
    for _ in range(2):
        worker.iterate(batch({"a": 1, "b": 9}, {"b": 9}), "mixed")
    for number in (3, 4) if goes_on else ():
        worker.iterate(batch({"a": 1, "b": 1}), f"decode {number}")
    worker._rlpatch_stage("end_rollout", "sleep()")
    assert worker.made[0].calls[worker.made[0].calls.index("sync") :] == calls


SHAPES = {
    "one object a request, before vLLM 0.9.2": lambda name: [
        SimpleNamespace(req_id=name, resumed_from_preemption=True)
    ],
    "lists, before 0.12": lambda name: SimpleNamespace(req_ids=["x", name], resumed_from_preemption=[False, True]),
    "a set, from 0.12": lambda name: SimpleNamespace(resumed_req_ids={name}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_resumed_request_prefills_until_it_needs_one_token(shape: str) -> None:
    worker = V1Worker(WINDOW="2:4")
    worker.iterate(batch({"a": 4, "b": 4}, {"a": 4, "b": 4}), "prefill")
    worker.iterate(batch({"a": 1, "b": 1}), "decode 1")
    worker.iterate(batch({"a": 1}), "decode 2")  # b is preempted
    worker.iterate(batch({"a": 1, "b": 4}, cached=SHAPES[shape]("b")), "recompute")
    worker.iterate(batch({"a": 1, "b": 2}), "recompute")
    worker.iterate(batch({"a": 1, "b": 1}), "decode 3")
    worker.iterate(batch({"a": 1, "b": 1}), "decode 4")
    assert recorded(worker) == [{2: ["decode 2", "recompute", "recompute"], 3: ["decode 3"]}]


@pytest.mark.parametrize("release", ["0.9.1", "0.11.0rc1", "0.12.0rc1"])
def test_a_resumed_request_is_seen_where_another_one_is_left_out(release: str) -> None:
    """As many requests as before are scheduled: one is back after a preemption, and the pipeline has another one."""
    shapes = dict(zip(("0.9.1", "0.11.0rc1", "0.12.0rc1"), SHAPES.values(), strict=True))
    worker = V1Worker(WINDOW="2:4", release=release)

    def iterate(counts: dict[str, int], label: str, cached: Any = None, **new: Any) -> None:
        listed = SimpleNamespace(req_ids=[], resumed_from_preemption=[], resumed_req_ids=set(), num_computed_tokens=[])
        one = batch(counts, new.get("new"), cached=cached or ([] if release == "0.9.1" else listed))
        for request in one.scheduled_new_reqs:
            request.prompt_embeds = request.prefill_token_ids = None
        worker.iterate(one, label)

    iterate({"a": 4, "b": 4}, "prefill", new={"a": 4, "b": 4})
    iterate({"a": 1, "b": 1}, "decode 1")
    iterate({"a": 1}, "decode 2")  # b is preempted
    iterate({"b": 5}, "recompute", shapes[release]("b"))  # and a is left out
    for n in (3, 4):
        iterate({"a": 1, "b": 1}, f"decode {n}")
    assert recorded(worker) == [{2: ["decode 2", "recompute"], 3: ["decode 3"]}]


def test_a_resumed_request_that_is_reported_as_new_begins_no_rollout() -> None:
    worker = V1Worker(WINDOW="2:4")
    rollout(worker, 2)
    again = batch({"a": 5}, {"a": 1})
    again.scheduled_new_reqs[0].prefill_token_ids = [0] * 5
    worker.iterate(again, "recompute")
    worker.iterate(batch({"a": 1}), "decode 3")
    worker.iterate(batch({"a": 1}), "decode 4")
    assert recorded(worker) == [{2: ["decode 2", "recompute"], 3: ["decode 3"]}]


@pytest.mark.parametrize("name", ["_warmup_0_", "_v2_mixed_warmup_decode_", "_sparse_mla_v2_warmup_prefill_"])
@pytest.mark.parametrize("constants", [{"WINDOW": "1:3"}, {"WINDOW": "0:2", "FIRST": 0, "UNIT": "iterations"}])
def test_the_warm_up_of_the_second_model_runner_is_no_rollout(name: str, constants: dict[str, Any]) -> None:
    worker = V1Worker(**constants)
    rollout(worker, 4, name=name)
    worker.iterate(batch({}, done=(name,)), "empty")
    assert not worker.made
    rollout(worker, 4)
    assert [{*profiler.recorded} for profiler in worker.made] == [{*range(*map(int, constants["WINDOW"].split(":")))}]


@pytest.mark.parametrize("name", ["_", "warmup_0_", "my_warmup_0_"])
def test_a_request_of_a_user_makes_a_rollout_whatever_its_name(name: str) -> None:
    worker = V1Worker(WINDOW="1:3")
    rollout(worker, 4, name=name)
    assert recorded(worker) == [steps(1, 3)]


@pytest.mark.parametrize("last", [1, 5])
def test_a_request_that_waits_for_its_next_chunk_still_has_prompt_left(last: int) -> None:
    worker = V1Worker(WINDOW="1:3")
    worker.iterate(batch({"a": 4, "b": 4}, {"a": 4, "b": 4 + last}), "prefill")
    worker.iterate(batch({"a": 1}), "decode 1")
    worker.iterate(batch({"a": 1, "b": last}), "prefill of b")
    worker.iterate(batch({"a": 1, "b": 1}), "decode 2")
    worker.iterate(batch({"a": 1, "b": 1}), "decode 3")
    assert recorded(worker) == [{1: ["decode 1", "prefill of b"], 2: ["decode 2"]}]


def test_a_request_that_is_aborted_in_its_prefill_leaves_nothing_behind() -> None:
    worker = V1Worker(WINDOW="1:2")
    worker.iterate(batch({"a": 4, "b": 4}, {"a": 4, "b": 9}), "prefill")
    worker.iterate(batch({"a": 1}, done=("b",)), "decode 1")
    worker.iterate(batch({"a": 1}), "decode 2")
    assert recorded(worker) == [steps(1, 2)]


ENDS = {
    "the next request": lambda worker: None,
    "an empty batch": lambda worker: worker.iterate(batch({}, done=("a",)), "empty"),
    "sleep()": lambda worker: worker._rlpatch_stage("end_rollout", "sleep()"),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("constants", "expected"),
    [
        ({}, [steps(2, 4)]),
        ({"ROLLOUT": "1"}, [steps(2, 4)]),
        ({"REPEAT": 2}, [steps(2, 4), steps(2, 4)]),
        ({"WINDOW": "3:9"}, [steps(3, 6)]),
        ({"WINDOW": "3:9", "REPEAT": 3}, [steps(3, 6)] * 3),
        ({"ROLLOUT": "1", "REPEAT": 9}, [steps(2, 4)] * 2),
        ({"WINDOW": "1:3", "REPEAT": 2}, [steps(1, 3)] * 2),
    ],
)
def test_rollouts_are_told_apart(end: str, constants: dict[str, Any], expected: list[dict[int, list[str]]]) -> None:
    worker = V1Worker(**{"WINDOW": "2:4", **constants})
    for _ in range(3):
        rollout(worker, 5, done=("a",))
        ENDS[end](worker)
    worker._rlpatch_stage("end_rollout", "sleep()")
    assert recorded(worker) == expected
    assert all("stop" in profiler.calls for profiler in worker.made)


def test_a_rollout_that_ends_in_the_warm_up_opens_no_second_window() -> None:
    worker = V1Worker(WINDOW="1:3")
    rollout(worker, 0)
    rollout(worker, 4, done=("a",))
    assert recorded(worker) == [{}]


def test_sleep_without_a_rollout_counts_nothing() -> None:
    worker = V1Worker(WINDOW="1:2")
    worker._rlpatch_stage("end_rollout", "sleep()")
    worker._rlpatch_stage("end_rollout", "sleep()")
    rollout(worker, 3)
    assert recorded(worker) == [steps(1, 2)]


def test_the_device_is_idle_before_the_first_unit_and_after_the_last() -> None:
    worker = V1Worker(WINDOW="2:4")
    rollout(worker, 6)
    assert worker.made[0].calls == ["start", "step", "sync", "step", "step", "sync", "step", "stop"]


def test_the_frameworks_profiler_comes_first(monkeypatch: pytest.MonkeyPatch, console: Console) -> None:
    worker = V1Worker(WINDOW="2:6", REPEAT=3)
    rollout(worker, 3)
    worker._rlpatch_stage("close", "the framework's own profiler was called")
    assert worker.made[0].calls[-1] == "stop"
    assert "the framework's own profiler was called, recorded 2 of 4 decode steps" in console.text
    running = SimpleNamespace(ProfPathCreator=lambda: SimpleNamespace(is_prof_inited=True))
    monkeypatch.setitem(sys.modules, "torch_npu.profiler._profiler_path_creator", running)
    rollout(worker, 7, done=("a",))
    assert len(worker.made) == 1
    assert "not recorded: another torch_npu profiler is running" in console.text
    monkeypatch.delitem(sys.modules, "torch_npu.profiler._profiler_path_creator")
    worker._rlpatch_stage("close", "the framework's own profiler was called")
    rollout(worker, 7, done=("a",))
    assert recorded(worker)[1:] == [steps(2, 6)]


@pytest.mark.parametrize(
    ("worker", "ranks", "records"),
    [
        ({"rank": 0}, "0", True),
        ({"rank": 1}, "0", False),
        ({"rank": 1}, "all", True),
        ({"rank": 3}, "1,3", True),
        ({"rank": 0, "replica": 1, "size": 2}, "0", False),
        ({"rank": 1, "replica": 2, "size": 2}, "5", True),
    ],
)
def test_only_the_chosen_ranks(worker: dict[str, Any], ranks: str, records: bool) -> None:
    one = V1Worker(**worker, RANKS=ranks, WINDOW="1:2")
    rollout(one, 3)
    assert bool(one.made) is records
    assert one._rlpatch_stage_probe is None


def test_the_rank_in_a_world_is_the_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    world = sys.modules["torch.distributed"]
    for name, value in {
        "is_available": True,
        "is_initialized": True,
        "get_world_size": 8,
        "get_rank": 5,
    }.items():
        monkeypatch.setattr(world, name, lambda value=value: value, raising=False)
    one = V1Worker(rank=1, size=2, RANKS="5", WINDOW="1:2")
    rollout(one, 3)
    assert one.made


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("", "0", []),
        ("", "1", [steps(2, 4)]),
        ("", "", [steps(2, 4)]),
        ("_WINDOW", "3:5", [steps(3, 5)]),
        ("_RANKS", "all", [steps(2, 4)]),
        ("_RANKS", "1", []),
        ("_ROLLOUT", "1", [steps(2, 4)]),
        ("_SAVE_PATH", "/tmp/other", [steps(2, 4)]),
    ],
)
def test_the_environment_steers(monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: Any) -> None:
    monkeypatch.setenv(f"RLPATCH{name}", value)
    worker = V1Worker(WINDOW="2:4")
    for _ in range(2):
        rollout(worker, 6, done=("a",))
    assert recorded(worker) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", "yes"), ("_WINDOW", "3"), ("_WINDOW", "5:3"), ("_WINDOW", "0:3"), ("_WINDOW", "a:b"), ("_WINDOW", "1:2:3"),
        ("_RANKS", "x"), ("_RANKS", "0,"), ("_ROLLOUT", "-1"), ("_ROLLOUT", "x"), ("_SAVE_PATH", "relative"),
    ],
)  # fmt: skip
def test_a_bad_value_switches_the_probe_off_with_one_error(
    monkeypatch: pytest.MonkeyPatch, console: Console, name: str, value: str
) -> None:
    monkeypatch.setenv(f"RLPATCH{name}", value)
    worker = V1Worker(WINDOW="2:4")
    rollout(worker, 6)
    assert recorded(worker) == []
    (error,) = console.failures
    assert re.search(rf"RLPATCH{name}='?{re.escape(value)}'? ", console.text)
    assert "Traceback" in error


@pytest.mark.parametrize("window", ["5:3", "0:3"])
def test_a_window_that_is_none_is_told_at_the_first_call_and_not_when_its_rollout_begins(
    window: str, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    monkeypatch.setenv("RLPATCH_WINDOW", window)
    monkeypatch.setenv("RLPATCH_ROLLOUT", "7")
    worker = V1Worker(WINDOW="2:4")
    rollout(worker, 1)
    assert f"RLPATCH_WINDOW={window} " in console.text
    assert worker._rlpatch_stage_probe is None


@pytest.mark.parametrize("method", ["profile", "start", "step", "stop", "traces"])
def test_a_failure_is_logged_once_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, console: Console, method: str
) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr(util, "Finalize", lambda _, function, arguments, **_more: partial(function, *arguments))
    monkeypatch.setattr(atexit, "register", at_exit.append)

    def fail(*_args: Any) -> None:
        raise OSError("no space left")

    worker = V1Worker(WINDOW="2:4")
    owner = worker._RlpatchStage if method == "traces" else Profiler
    owner = sys.modules["torch_npu"].profiler if method == "profile" else owner
    monkeypatch.setattr(owner, method, fail)
    rollout(worker, 8)
    assert worker._rlpatch_stage_probe is None
    said = console.messages
    for ending in at_exit:
        ending()
    assert (len(console.failures), console.messages) == (1, said), "a recorder that failed has nothing to end"
    assert "the run goes on" in console.text


def test_a_missing_trace_is_told(console: Console) -> None:
    worker = V1Worker(WINDOW="2:4", leaves_trace=False)
    rollout(worker, 8)
    (line,) = console.messages
    assert line.endswith("recorded 2 of 2 decode steps with 0 uncounted iterations between them: no trace")


def test_the_end_of_the_process_closes_the_window(monkeypatch: pytest.MonkeyPatch, console: Console) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr(util, "Finalize", Finalize)
    monkeypatch.setattr(atexit, "register", at_exit.append)
    worker = V1Worker(WINDOW="2:9")
    rollout(worker, 4)
    (ending,) = at_exit
    assert isinstance(ending, Finalize), "multiprocessing's children run only finalizers"
    for _ in range(2):
        ending()
        assert recorded(worker) == [steps(2, 5)]
        assert worker.made[0].calls.count("stop") == 1
    assert console.text.count("the process ends, recorded 3 of 7 decode steps") == 1


@pytest.mark.parametrize(
    ("settings", "steps", "said"),
    [
        ({"WINDOW": "9:12"}, 4, "9:12 0 4"),  # the window, the rollout, and how far it came
        ({"ROLLOUT": "2"}, 4, "30:60 2 2"),  # headed by the rollout that was asked for
        ({"WINDOW": "1:3", "REPEAT": 3}, 4, "1:3 0 1"),
        ({"WINDOW": "1:3,6:8", "SEVERAL": True}, 4, "6:8 0 4"),
        ({"WINDOW": "0:3", "RELATIVE": True, "BY_LOAD": True, "AT": {"load": "9"}}, 4, "0:3 0 4 1 1"),
        ({"WINDOW": "1:3"}, 4, ""),  # it is saved
        ({"WINDOW": "9:12", "RANKS": "1"}, 4, ""),  # nothing was requested here
    ],
)
def test_what_was_not_reached_when_the_process_ends_is_said_once(
    settings: Any, steps: int, said: str, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    """One request that is not known to have ended: in one process no empty batch follows the last."""
    at_exit: list[Any] = []
    monkeypatch.setattr(util, "Finalize", lambda _, function, arguments, **_more: partial(function, *arguments))
    monkeypatch.setattr(atexit, "register", at_exit.append)
    rollout(V1Worker(**settings), steps)
    for ending in at_exit:
        ending()
    lines = [line for line in console.messages if "not recorded" in line]
    texts = [line.partition(", decode ")[2].partition("; RLPATCH_")[0] for line in lines]
    assert [" ".join(re.findall(r"\d+(?::\d+)?", text)) for text in texts] == ([said] if said else [])


def test_a_failure_at_exit_is_told_once(monkeypatch: pytest.MonkeyPatch, console: Console) -> None:
    worker = V1Worker(WINDOW="2:9")
    rollout(worker, 4)
    monkeypatch.setattr(worker._RlpatchStage, "traces", lambda _: 1 / 0)
    worker._rlpatch_stage("exit")
    (error,) = console.failures
    assert re.match(r"rlpatch: \w+_dp0_rank0_\d+, rollout: recording failed(.|\n)*ZeroDivisionError", error)


def test_the_profiler_is_stopped_even_if_the_device_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = V1Worker(WINDOW="2:4")
    rollout(worker, 3)

    def fail(_self: Any) -> None:
        raise RuntimeError("device lost")

    monkeypatch.setattr(worker._RlpatchStage, "synchronize", fail)
    worker.iterate(batch({"a": 1}), "decode 4")
    assert worker.made[0].calls[-1] == "stop"


def test_a_request_that_goes_on_after_sleep_makes_a_rollout_of_its_own() -> None:
    worker = V1Worker(WINDOW="2:4", REPEAT=2)
    rollout(worker, 1)
    worker._rlpatch_stage("end_rollout", "sleep()")
    for n in range(1, 3):
        worker.iterate(batch({"a": 1}), f"decode {n}")
    worker.iterate(batch({}, done=("a",)), "empty")
    rollout(worker, 5, name="b")
    assert recorded(worker) == [{}, {2: ["decode 2"]}]


def model_input(prefills: int, names: tuple[str, ...] = ("a",), done: tuple[str, ...] = ()) -> Any:
    metadata = SimpleNamespace(num_prefills=prefills)
    return (
        SimpleNamespace(
            attn_metadata=metadata,
            request_ids_to_seq_ids={name: [0] for name in names},
            finished_requests_ids=list(done),
        ),
        None,
        {},
    )


@pytest.mark.parametrize("ends", ["the next request", "no request is left", "an empty batch"])
def test_v0_tells_by_the_model_input(ends: str) -> None:
    worker = V0Worker(WINDOW="2:4", REPEAT=2)
    for _ in range(2):
        worker.execute(model_input(1, done=("a",)), "prefill")
        worker.execute(model_input(1), "last chunk")
        for n in range(1, 4):
            worker.execute(model_input(0), f"decode {n}")
        if ends == "no request is left":
            worker.execute(None, "")
        elif ends == "an empty batch":
            worker.execute(model_input(0), "empty", groups=0)
    worker.execute(None, "")
    assert recorded(worker) == [steps(2, 4)] * 2


def test_v0_says_what_it_cannot_count(console: Console) -> None:
    worker = V0Worker(WINDOW="1:2")
    worker.iterate(SimpleNamespace(num_seq_groups=1), "a multi-step worker prepares its input by itself")
    assert ["multi-step" in failure for failure in console.failures] == [True]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ""), ({"PROFILING_MODE": ""}, ""), ({"PROFILING_MODE": "0"}, "PROFILING_MODE=0"),
        ({"PROFILING_MODE": "true"}, "PROFILING_MODE=true"), ({"PROFILER_SAMPLECONFIG": "{}"}, "PROFILER_SAMPLECONFIG={}"),
    ],
)  # fmt: skip
def test_npu_sees_cann_profiling(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], expected: str) -> None:
    for name in ("PROFILING_MODE", "PROFILER_SAMPLECONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    conflict = object.__new__(NpuProfiler).conflict().strip()
    assert conflict.startswith(expected)
    assert bool(conflict) == bool(expected)


@pytest.mark.parametrize("recording", [True, False])
def test_torch_sees_another_profiler(monkeypatch: pytest.MonkeyPatch, recording: bool) -> None:
    torch = sys.modules["torch"]
    monkeypatch.setattr(torch, "autograd", SimpleNamespace(_profiler_enabled=lambda: recording), raising=False)
    monkeypatch.setattr(torch, "_C", SimpleNamespace(), raising=False)
    assert bool(object.__new__(TorchProfiler).conflict()) is recording


@pytest.mark.parametrize(
    ("unit", "same_thread", "enabled", "taken"),
    [(3, True, False, True), (3, True, True, False), (2, True, False, False), (3, False, False, False)],
    ids=["taken", "ours", "in the warm-up", "seen from another thread"],
)
def test_torch_tells_that_its_data_was_taken(
    monkeypatch: pytest.MonkeyPatch, unit: int, same_thread: bool, enabled: bool, taken: bool
) -> None:
    monkeypatch.setattr(
        sys.modules["torch"], "autograd", SimpleNamespace(_profiler_enabled=lambda: enabled), raising=False
    )
    recorder = object.__new__(TorchProfiler)
    recorder.unit, recorder.first = unit, 2
    recorder.thread = threading.get_ident() + (not same_thread)
    assert recorder.is_taken() is taken


@pytest.mark.parametrize(
    ("unit", "taken", "has_range", "calls"),
    [(4, True, True, ["end of the step"]), (4, True, False, []), (4, False, True, ["stop"]), (5, True, True, ["stop"])],
)
def test_torch_stops_nothing_whose_data_was_taken(
    monkeypatch: pytest.MonkeyPatch, unit: int, taken: bool, has_range: bool, calls: list[str]
) -> None:
    """Of a window that is complete the last step has stopped the recording, which looks the same."""
    made: list[str] = []
    recorder = object.__new__(TorchProfiler)
    recorder.unit, recorder.end = unit, 5
    recorder.prof = SimpleNamespace(stop=lambda: made.append("stop"))
    if has_range:
        recorder.prof.step_rec_fn = SimpleNamespace(__exit__=lambda *_: made.append("end of the step"))
    monkeypatch.setattr(TorchProfiler, "is_taken", lambda _: taken)
    recorder.stop_unless_taken()
    assert made == calls


@pytest.mark.parametrize("session", ["", "123"])
def test_torch_records_nothing_under_nsys(monkeypatch: pytest.MonkeyPatch, session: str) -> None:
    idle = SimpleNamespace(_profiler_enabled=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=SimpleNamespace(), autograd=idle))
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", session)
    assert ("nsys" in object.__new__(TorchProfiler).conflict()) is bool(session)


@pytest.mark.parametrize("recording", [True, False])
def test_a_history_of_the_memory_is_a_profiler(monkeypatch: pytest.MonkeyPatch, recording: bool) -> None:
    """verl's torch_memory keeps one (of CUDA alone), which slows each allocation down."""
    native = SimpleNamespace(_cuda_isHistoryEnabled=lambda: recording)
    idle = SimpleNamespace(_profiler_enabled=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=native, autograd=idle))
    assert ("memory history" in object.__new__(TorchProfiler).conflict()) is recording


def test_ours_yields_to_another_profiler_that_starts_later(monkeypatch: pytest.MonkeyPatch, console: Console) -> None:
    idle = SimpleNamespace(_profiler_enabled=lambda: True)
    monkeypatch.setattr(sys.modules["torch"], "autograd", idle, raising=False)
    worker = V1Worker(WINDOW="2:9", backend="torch")
    start = Profiler.start
    rollout(worker, 4)
    Profiler(0, 0, 1).start()
    assert worker.made[0].calls[-1] == "stop"
    assert "another profiler starts, recorded 3 of 7 decode steps" in console.text
    assert Profiler.start is start, "nothing of ours is left there"


def test_a_child_that_was_forked_inside_the_window_leaves_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = SimpleNamespace(_profiler_enabled=lambda: True)
    monkeypatch.setattr(sys.modules["torch"], "autograd", idle, raising=False)
    worker = V1Worker(WINDOW="2:9", backend="torch")
    rollout(worker, 4)
    monkeypatch.setattr("os.getpid", lambda: 1)
    Profiler(0, 0, 1).start()
    assert "stop" not in worker.made[0].calls


@pytest.mark.parametrize(
    ("told", "replicas", "variable", "records"),
    [
        ("0", None, "", True),
        ("1", None, "", False),
        ("3", "0,3", "", True),
        ("1", "0,3", "", False),
        ("7", "all", "", True),
        ("1", None, "1,2", True),
        ("0", "0", "all", True),
        ("0", "0", "1", False),
        ("", "3", "", True),  # nothing tells: as where there are no replicas
        ("", None, "5", True),
    ],
)
def test_one_of_verls_replicas_records(
    monkeypatch: pytest.MonkeyPatch, told: str, replicas: str | None, variable: str, records: bool
) -> None:
    monkeypatch.setenv("VERL_REPLICA_RANK", told)
    monkeypatch.setenv("RLPATCH_REPLICAS", variable)
    chosen: dict[str, Any] = {} if replicas is None else {"REPLICAS": replicas}
    worker = V1Worker(WINDOW="2:4", **chosen)
    rollout(worker, 5)
    assert recorded(worker) == ([steps(2, 4)] if records else [])


@pytest.mark.parametrize(
    ("serves", "told", "replicas", "variable", "records"),
    [
        ("kv_consumer", "0", "decode", "", True),
        ("kv_producer", "0", "decode", "", False),
        ("kv_producer", "5", "prefill", "", True),
        ("kv_consumer", "", "decode", "", True),  # nothing tells which replica it is
        ("kv_both", "0", "decode", "", False),
        (None, "0", "decode", "", False),
        ("kv_consumer", "3", "3,prefill", "", True),
        ("kv_consumer", "2", "3,prefill", "", False),
        ("kv_consumer", "2", "prefill", "decode", True),
        ("kv_consumer", "2", "prefill", "all", True),
    ],
)
def test_servers_that_a_replica_has_for_prefill_or_decode(
    monkeypatch: pytest.MonkeyPatch, serves: str | None, told: str, replicas: str, variable: str, records: bool
) -> None:
    monkeypatch.setenv("VERL_REPLICA_RANK", told)
    monkeypatch.setenv("RLPATCH_REPLICAS", variable)
    worker = V1Worker(WINDOW="2:4", REPLICAS=replicas, BY_SERVER=True)
    worker.vllm_config.kv_transfer_config = serves and SimpleNamespace(kv_role=serves)
    rollout(worker, 5)
    assert recorded(worker) == ([steps(2, 4)] if records else [])


def test_the_replica_is_in_the_name_if_it_is_known(monkeypatch: pytest.MonkeyPatch, console: Console) -> None:
    monkeypatch.setenv("VERL_REPLICA_RANK", "2")
    rollout(V1Worker(WINDOW="2:4", REPLICAS="all"), 5)
    monkeypatch.delenv("VERL_REPLICA_RANK")
    rollout(V1Worker(WINDOW="2:4"), 5)
    assert re.findall(r"_((?:replica\d+_)?dp\d+_rank\d+)_", console.text) == ["replica2_dp0_rank0", "dp0_rank0"]


def test_replicas_that_are_no_numbers_are_one_error(monkeypatch: pytest.MonkeyPatch, console: Console) -> None:
    monkeypatch.setenv("RLPATCH_REPLICAS", "first")
    worker = V1Worker()
    rollout(worker, 5)
    assert worker._rlpatch_stage_probe is None
    assert "RLPATCH_REPLICAS='first' is not valid; without it, the patch uses 0" in console.text


@pytest.mark.parametrize(("first", "before"), [(1, 0), (2, 1), (30, 1), (5_000, 1)])
def test_a_late_window_opens_with_one_step_of_the_profiler(first: int, before: int) -> None:
    """The profiler is told the number of the unit: to step through those before took 17 µs each, within a rollout."""
    worker = V1Worker(WINDOW=f"{first}:{first + 2}")
    rollout(worker, first - 1)
    assert [profiler.calls.count("step") for profiler in worker.made] == [before]
    for n in range(first, first + 3):
        worker.iterate(batch({"a": 1}), f"decode {n}")
    assert recorded(worker) == [steps(first, first + 2)]
