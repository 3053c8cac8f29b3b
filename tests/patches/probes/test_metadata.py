"""Metadata that a recorder leaves beside its traces, against what the scheduler handed out."""

from __future__ import annotations

import builtins
import json
import mmap
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from fixtures.ascend import standins
from patcher.changes.change import SHARED, PatchId
from patcher.editing.rendering import render
from patches.probes.facts import CompressedMetadata
from patches.probes.pauses import NamedIterations
from patches.vllm import recipes as vllm
from patches.vllm_ascend import recipes as vllm_ascend
from tests.choices import config
from tests.patches.graph_workers import Worker as Capturing
from tests.patches.rollout_workers import V0Worker, V1Worker, batch
from tests.patches.schedules import RELEASES
from tests.patches.sglang_schedulers import Scheduler
from tests.patches.standin import Console, Profiler
from tests.patches.step_metadata import Traces, facts, states, with_lists
from tests.patches.training_stages import Stage

pytestmark = pytest.mark.usefixtures("stand_in_torch")


@pytest.fixture
def told(tmp_path: Path) -> dict[str, Any]:
    return {"METADATA": True, "SAVE_PATH": str(tmp_path), "parts": (Traces,)}


class Known(NamedTuple):
    """An iteration, and what the scheduler knew of it when it handed it out: both change as it goes on."""

    one: standins.Iteration
    contexts: list[int]
    drafted: int


def run(worker: Any, scheduler: standins.Scheduler, shape: Any) -> list[Known]:
    """Everything that the scheduler has, and what it knew of each iteration."""
    seen = []
    while scheduler.live or scheduler.finished:
        one = scheduler.schedule()
        contexts = [(r.computed + one.counts[r.id]) for r in (*one.new, *one.running, *one.resumed)]
        seen.append(Known(one, contexts, sum(map(len, one.drafts.values()))))
        if isinstance(worker, V0Worker):
            worker.execute(shape(one).inputs, one.label, len(contexts))
        else:
            worker.iterate(shape(one), one.label)
        scheduler.done(one)
    return seen


def load() -> standins.Scheduler:
    scheduler = standins.Scheduler(48)
    for number, (prompt, outputs, drafts) in enumerate([(9, 20, 0), (30, 14, 2), (60, 12, 0), (3, 7, 1)]):
        scheduler.add(standins.Request(f"r{number}", prompt, outputs, drafts))
    return scheduler


@pytest.mark.parametrize(("release", "shape"), RELEASES)
@pytest.mark.parametrize(("unit", "window"), [("decode", "3:8"), ("prefill", "1:4"), ("iterations", "2:9")])
def test_each_unit_holds_what_the_scheduler_handed_out(
    release: str, shape: str, unit: str, window: str, told: dict[str, Any], tmp_path: Path
) -> None:
    begun = time.time_ns()
    worker = V1Worker(release=release, UNIT=unit, FIRST=int(unit == "decode"), WINDOW=window, **told)
    seen = run(worker, load(), standins.SHAPES[shape])
    first, end = map(int, window.split(":"))
    wanted = {known.one.numbers[unit]: known for known in seen if first <= known.one.numbers.get(unit, -1) < end}
    (found,) = facts(tmp_path)
    assert [held["number"] for held in found["units"]] == list(wanted)
    for held in found["units"]:
        truth = wanted[held["number"]]
        said = {name: held[name] for name in ("requests", "tokens", "drafts", "longest", "context")}
        assert said == {
            "requests": len(truth.one.counts),
            "tokens": sum(truth.one.counts.values()),
            "drafts": truth.drafted,
            "longest": max(truth.contexts),
            "context": sum(truth.contexts),
        }
        between = [known for known in seen if known.one.kind and unit not in known.one.numbers]
        inside = [known for known in between if seen.index(known) > seen.index(wanted[first])]
        assert held["uncounted"] == sum(seen.index(known) < seen.index(truth) for known in inside)
    times = [held["begin"] for held in found["units"]]
    assert begun < times[0]
    assert times == sorted(times)
    assert times[-1] < found["units"][-1]["end"] < time.time_ns()
    assert 0 <= found["saving_s"] < (time.time_ns() - times[-1]) / 1e9


def test_units_of_vllm_v0_hold_what_the_scheduler_handed_out(told: dict[str, Any], tmp_path: Path) -> None:
    worker = V0Worker(WINDOW="3:8", **told)
    scheduler = standins.Scheduler(48)
    for name, prompt, outputs in (("a", 9, 20), ("b", 30, 14)):
        scheduler.add(standins.Request(name, prompt, outputs))
    seen = run(worker, scheduler, standins.v0)
    worker.prepare_input(None)
    wanted = [known for known in seen if 3 <= known.one.numbers.get("decode", 0) < 8]
    (found,) = facts(tmp_path)
    assert [(held["requests"], held["tokens"], held["longest"]) for held in found["units"]] == [
        (len(known.one.counts), sum(known.one.counts.values()), max(known.contexts)) for known in wanted
    ]


def test_units_of_sglang_hold_what_the_scheduler_handed_out(told: dict[str, Any], tmp_path: Path) -> None:
    scheduler = Scheduler(WINDOW="2:4", **{key: value for key, value in told.items() if key != "parts"})
    scheduler._RlpatchStage = type("Recorder", (Traces, scheduler._RlpatchStage), {})
    for n in range(6):
        requests = [SimpleNamespace(rid=rid, origin_input_ids=[0] * 5, output_ids=[0] * n) for rid in "ab"]
        mode = SimpleNamespace(name="DECODE" if n else "EXTEND")
        lengths = {"seq_lens_sum": 2 * (5 + n), "prefix_lens": [0, 0], "extend_lens": [5, 5], "extend_num_tokens": 10}
        scheduler._rlpatch_stage("schedule", SimpleNamespace(forward_mode=mode, reqs=requests, **lengths))
        for profiler in scheduler.made:
            profiler.run(str(n))
    scheduler._rlpatch_stage("idle")
    (found,) = facts(tmp_path)
    assert [
        [held[name] for name in ("number", "requests", "tokens", "longest", "context")] for held in found["units"]
    ] == [
        [2, 2, 2, 7, 14],
        [3, 2, 2, 8, 16],
    ]


class Tokens:
    """A tensor, as far as its shape goes."""

    is_nested = False

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def size(self, axis: int) -> int:
        return self.shape[axis]


class Nested(Tokens):
    """A jagged one: its sequences lie one behind the other."""

    is_nested = True

    def values(self) -> Tokens:
        return Tokens(77)


BATCHES = [
    (SimpleNamespace(batch={"input_ids": Tokens(4, 512)}), {"sequences": 4, "padded": [4, 512]}),
    ({"input_ids": Tokens(2, 64)}, {"sequences": 2, "padded": [2, 64]}),
    ({"input_ids": Nested(3)}, {"sequences": 3, "tokens": 77}),
    ({"responses": Tokens(2, 64)}, {}),
    (17, {}),
]


@pytest.mark.parametrize(("micro_batch", "held"), BATCHES)
def test_a_micro_batch_is_told_by_its_shape(
    micro_batch: Any, held: dict[str, Any], told: dict[str, Any], tmp_path: Path
) -> None:
    stage = Stage(WINDOW="1:3", **told)
    stage._rlpatch_stage("enter")
    for turn, _ in enumerate(stage._rlpatch_stage_units("micro-batch", [micro_batch] * 4, last=True)):
        stage.run(f"micro {turn}")
    (found,) = facts(tmp_path)
    times = {"number", "begin", "end", "uncounted"}
    assert [{key: one[key] for key in one.keys() - times} for one in found["units"]] == [held, held]
    assert (found["step"], found["role"], found["state"]) == (1, "actor", "saved")


def test_the_capture_of_graphs_has_facts_too(told: dict[str, Any], tmp_path: Path) -> None:
    made: list[Profiler] = []
    worker = Capturing(made, **{key: value for key, value in told.items() if key != "parts"})
    worker._RlpatchStage = type("Recorder", (Traces, worker._RlpatchStage), {})
    worker.start("a")
    (found,) = facts(tmp_path)
    assert (found["stage"], found["state"], len(found["units"])) == ("graph-capture", "saved", 1)


# --- states ---


def test_a_state_at_each_transition(told: dict[str, Any], tmp_path: Path) -> None:
    began = time.time_ns() / 1e9
    worker = V1Worker(WINDOW="2:4", ROLLOUT="1", **told)
    seen = []

    def step(one: Any, label: str) -> None:
        worker.iterate(one, label)
        (state,) = states(tmp_path).values()
        seen.append((label, state["state"], state["rollout"], state["number"], state["done"]))

    step(batch({"a": 1}, {"a": 1}), "prefill")
    step(batch({"b": 1}, {"b": 1}, ("a",)), "prefill")
    for n in range(1, 5):
        step(with_lists(batch({"b": 1}), "b"), f"decode {n}")
    assert seen == [
        ("prefill", "installed", 0, 1, False),
        ("prefill", "waiting", 1, 1, False),
        ("decode 1", "armed", 1, 1, False),
        ("decode 2", "recording", 1, 2, False),
        ("decode 3", "recording", 1, 2, False),
        ("decode 4", "saved", 1, 4, True),
    ]
    (state,) = states(tmp_path).values()
    assert [Path(trace).name for trace in state["traces"]] == [
        path.name.removesuffix(".rlpatch.json") for path in tmp_path.glob("*.rlpatch.json")
    ]
    assert {"host", "pid", "rank", "dp", "replica", "stage", "unit", "window", "ranks", "at"} <= state.keys()
    assert began <= state["at"] <= time.time_ns() / 1e9


def test_the_states_of_a_training_stage(tmp_path: Path) -> None:
    stage = Stage(
        UNIT="micro-batch", WINDOW="2:4", STEPS="2", METADATA=True, SAVE_PATH=str(tmp_path), IDENTITY=("role", "step"), parts=(Traces,)
    )  # fmt: skip
    seen = []

    def do(event: str, *words: Any) -> None:
        stage._rlpatch_stage(event, *words)
        (state,) = states(tmp_path).values()
        seen.append((state["state"], state["step"], state["number"], state["done"]))

    for _ in range(2):
        do("enter")
        for number in range(5):
            do("start", "micro-batch", number)
            stage.run(f"micro {number}")
            stage._rlpatch_stage("stop", "micro-batch")
        do("leave")
    first = [("installed", 1, 0, False)] * 7
    waiting = [("waiting", 2, 0, False)] * 2
    recorded = [("armed", 2, 1, False), ("recording", 2, 2, False), ("recording", 2, 2, False), ("saved", 2, 4, True)]
    assert seen == [*first, *waiting, *recorded, ("saved", 2, 4, True)]


def test_why_nothing_was_recorded(told: dict[str, Any], tmp_path: Path) -> None:
    worker = V1Worker(WINDOW="9:12", **told)
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    worker._rlpatch_stage("end_rollout", "sleep()")
    (state,) = states(tmp_path).values()
    assert state["state"] == "not recorded"
    assert state["why"].startswith("not recorded: sleep() after 0 decode steps")
    assert state["done"] is True


def test_a_failure(told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = V1Worker(WINDOW="1:3", **told)
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    worker._rlpatch_stage("step", None)
    (state,) = states(tmp_path).values()
    assert state["state"] == "failed"
    assert "num_scheduled_tokens" in state["why"]


def test_a_rank_that_was_not_asked_for_writes_nothing(told: dict[str, Any], tmp_path: Path) -> None:
    worker = V1Worker(WINDOW="1:3", rank=3, **told)
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_said_and_stops_nothing(
    told: dict[str, Any], tmp_path: Path, console: Console
) -> None:
    (tmp_path / ".rlpatch").write_text("a file stands in the way")
    worker = V1Worker(WINDOW="1:3", **told)
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    for n in range(1, 4):
        worker.iterate(with_lists(batch({"a": 1}), "a"), f"decode {n}")
    assert [[*profiler.recorded] for profiler in worker.made] == [[1, 2]]
    assert console.text.count("cannot be written: ") == 1


def test_a_disk_that_is_full_by_then_is_said_once(
    told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    """The state and the facts are written one after the other, and neither can be."""
    worker = V1Worker(WINDOW="1:2", **told)
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    worker.iterate(with_lists(batch({"a": 1}), "a"), "decode 1")

    def full(new: str, old: str) -> None:
        raise OSError(28, "No space left on device", old)

    monkeypatch.setattr(os, "replace", full)
    worker.iterate(with_lists(batch({"a": 1}), "a"), "decode 2")
    assert console.text.count("cannot be written: ") == 1
    assert "complete, recorded 1 of 1" in console.text


def test_a_batch_of_another_form_has_facts_without_contexts(told: dict[str, Any], tmp_path: Path) -> None:
    """A fork may hand its batches over in another way; what is recorded is more than what is told of it."""
    worker = V1Worker(WINDOW="1:3", **told)
    for n, new in enumerate(({"a": 1}, None, None, None)):
        one = batch({"a": 1}, new)
        one.scheduled_cached_reqs = SimpleNamespace(resumed_req_ids=set())
        worker.iterate(one, f"decode {n}")
    (found,) = facts(tmp_path)
    assert [held["number"] for held in found["units"]] == [1, 2]


def test_no_file_is_ever_half_written(told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = []
    replace = os.replace

    def looked(new: str, old: str) -> None:
        json.loads(Path(new).read_text())
        replaced.append(Path(old).name)
        replace(new, old)

    monkeypatch.setattr(os, "replace", looked)
    worker = V1Worker(WINDOW="1:2", **told)
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    worker.iterate(with_lists(batch({"a": 1}), "a"), "decode 1")
    worker._rlpatch_stage("end_rollout", "sleep()")
    assert len(replaced) == 6  # waiting, armed, recording, saving, saved, and the metadata
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == set(replaced), "and nothing else is left"


def test_a_rollout_that_goes_on_after_a_sleep_begins_with_a_decode_step(told: dict[str, Any], tmp_path: Path) -> None:
    worker = V1Worker(WINDOW="1:5", ROLLOUT="1", **told)
    worker.iterate(batch({"a": 3}, {"a": 3}), "prefill")
    worker._rlpatch_stage("end_rollout", "sleep()")
    for n in range(1, 7):
        worker.iterate(with_lists(batch({"a": 1}), "a"), f"decode {n}")
    (one,) = facts(tmp_path)
    assert [unit["number"] for unit in one["units"]] == [*worker.made[0].recorded] == [1, 2, 3, 4]


@pytest.mark.parametrize("relative", [False, True])
def test_of_several_windows_each_is_named_by_its_own_facts(
    relative: bool, told: dict[str, Any], tmp_path: Path
) -> None:
    state: dict[str, Any] = {"RELATIVE": True, "BY_LOAD": True, "AT": {"load": "1"}} if relative else {}
    worker = V1Worker(WINDOW="2:3,5:6", SEVERAL=True, **state, **told)
    worker.iterate(batch({"a": 3}, {"a": 3}), "prefill")
    for n in range(1, 9):
        worker.iterate(with_lists(batch({"a": 1}), "a"), f"decode {n}")
    assert [one["window"] for one in facts(tmp_path)] == ["2:3", "5:6"]
    (known,) = states(tmp_path).values()
    assert (known["window"], known.get("origin")) == ("5:6", 1 if relative else None)


@pytest.mark.parametrize(
    ("traces", "renamed"),
    [
        (["a", "b"], ["a.gz", "b.gz"]),
        (["before", "a", "b"], ["before", "a.gz", "b.gz"]),
        (["b", "next"], ["b", "next"]),
    ],
)
def test_traces_that_were_compressed_are_renamed_unless_the_next_window_has_begun(
    tmp_path: Path, traces: list[str], renamed: list[str]
) -> None:
    state, metadata = tmp_path / "state", tmp_path / "a.json.rlpatch.json"
    for file in (state, metadata):
        file.write_text(json.dumps({"traces": traces}))
    files = [str(file) for file in (state, tmp_path / "none", metadata)]
    CompressedMetadata.__new__(CompressedMetadata).update_trace_names(["a", "b"], files, str(tmp_path / "new"))
    assert json.loads(state.read_text()) == {"traces": renamed}
    assert [file.name for file in tmp_path.iterdir() if file != state] == ["a.json.gz.rlpatch.json"] * (
        renamed != traces
    )


@pytest.mark.parametrize("first", [True, False], ids=["before all", "between"])
def test_several_windows_and_a_sleep(first: bool, told: dict[str, Any]) -> None:
    """verl lets an engine sleep right after it was built."""
    worker = V1Worker(WINDOW="2:3,5:6", SEVERAL=True, **told)
    if first:
        worker._rlpatch_stage("end_rollout", "sleep()")
    worker.iterate(batch({"a": 3}, {"a": 3}), "prefill")
    for n in range(1, 7):
        worker.iterate(with_lists(batch({"a": 1}), "a"), f"decode {n}")
    worker._rlpatch_stage("end_rollout", "sleep()")
    assert [[*one.recorded] for one in worker.made] == [[2], [5]]


def test_no_link_is_written_through(told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the traces may be one that others can write to, but not where a file is written at first."""
    (tmp_path / "theirs").write_text("all files were restored")
    opened: list[int] = []

    def seen(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        if mode == "w":
            opened.append(Path(file).parent.stat().st_mode & 0o777)
        return really(file, mode, *more, **options)

    really = builtins.open
    monkeypatch.setattr(builtins, "open", seen)
    worker = V1Worker(WINDOW="1:2", **told)
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    (state,) = (tmp_path / ".rlpatch").iterdir()
    state.unlink()
    state.symlink_to(tmp_path / "theirs")
    worker._rlpatch_stage("end_rollout", "sleep()")
    monkeypatch.undo()
    assert set(opened) == {0o700}
    assert not state.is_symlink()
    assert (tmp_path / "theirs").read_text() == "all files were restored"


@pytest.mark.parametrize("failing", ["open", "write", "replace"])
def test_a_full_disk_leaves_nothing_beside_the_state(
    failing: str,
    told: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    console: Console,
) -> None:
    worker = V1Worker(WINDOW="1:2", **told)
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    before = sorted(tmp_path.rglob("*"))

    def full(*_args: Any, **_options: Any) -> None:
        raise OSError(28, "No space left on device")

    where = {"open": (builtins, "open"), "write": (json, "dump"), "replace": (os, "replace")}[failing]
    monkeypatch.setattr(*where, full)
    worker._rlpatch_stage("end_rollout", "sleep()")
    monkeypatch.undo()
    assert sorted(tmp_path.rglob("*")) == before
    assert console.text.count("cannot be written: [Errno 28]") == 1


@pytest.mark.parametrize(("free", "opens"), [(10**9 - 1, False), (10**9, True)])
def test_a_disk_that_is_almost_full_opens_no_window(
    free: int, opens: bool, told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=1, f_blocks=10**12, f_bfree=0))
    worker = V1Worker(WINDOW="1:3", **told)
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    assert bool(worker.made) == opens
    assert (f"not recorded: less than 1 GB is free in {tmp_path}" in console.text) != opens


def test_the_number_is_seen_live(told: dict[str, Any], tmp_path: Path) -> None:
    worker = V1Worker(WINDOW="9:12", LIVE=True, **told)
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    (state,) = states(tmp_path).values()
    link = Path(f"/proc/{os.getpid()}/fd/{state['live']}")
    assert str(link.readlink()).startswith("/dev/shm/")
    for n in range(1, 5):
        worker.iterate(batch({"a": 1}), f"decode {n}")
        with link.open("rb") as file, mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ) as seen:
            assert int.from_bytes(seen[:], "little") == n + 1
    assert not worker.made


@pytest.mark.parametrize("goes_on", [True, False])
def test_each_unit_names_its_iteration_in_the_timeline(
    goes_on: bool, told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [[17 + n, 0, "iteration", "", 0, None if goes_on else 1, None, ()] for n in range(5)]
    timeline = SimpleNamespace(iterating=None, span=lambda *_: None)
    monkeypatch.setitem(vars(sys), "_rlpatch_timeline_1", timeline)
    worker = V1Worker(WINDOW="2:4", layers=(NamedIterations,), **told)
    worker.iterate(batch({"a": 5}, {"a": 5}), "prefill")
    for row in rows:
        timeline.iterating = row
        worker.iterate(with_lists(batch({"a": 1}), "a"), "decode")
    (found,) = facts(tmp_path)
    assert [unit.get("iteration") for unit in found["units"]] == ([18, 19] if goes_on else [None, None])


# --- lines ---


def lines(words: str) -> int:
    window = "" if "--decode" in words else "--decode 30:60"
    asked = config(f"{window} --tool npu {words}")
    about = {"format": 1, "rlpatch": "0.1.0", "target": "vllm-ascend", "release": "0.11.0rc1"}
    text = render(vllm_ascend.V1, asked, "0.11.0rc1", PatchId("t", "rollout"), PatchId("t", SHARED), about)
    assert max(map(len, text.patch_lines)) <= 116, max(text.patch_lines, key=len)
    return len(text.patch_lines) + 3


@pytest.mark.parametrize(
    ("words", "most"),
    [("", 258), ("--no-facts", 211), ("--at-tail 8", 337), ("--decode 1:200", 371), ("--on-demand", 618)],
)
def test_what_is_asked_for_takes_few_lines(words: str, most: int) -> None:
    assert lines(words) <= most


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", ("def look", "def aim", "check_state", "mmap", "self.saved", "AT_")),
        ("--live", ("def look", "def aim", "check_state", "AT_")),
        ("--at-load 3", ("def look", "at_tail", "at_context", "def context_lengths")),
        ("--decode 1:2,5:6", ("def look", "check_state", "AT_")),
        ("--no-facts", ("def write_state", "ABOUT", "clock", ".rlpatch/")),
    ],
)
def test_what_was_not_asked_for_does_not_go_in(words: str, names: tuple[str, ...]) -> None:
    window = "" if "--decode" in words else "--decode 30:60"
    asked = config(f"{window} --tool npu {words}")
    text = render(vllm.WORKER, asked, "0.11.0", PatchId("target", "rollout"), PatchId("target", SHARED), {"format": 1})
    code = "\n".join(text.patch_lines)
    assert not [name for name in names if name in code]


@pytest.mark.parametrize(
    ("constants", "said"),
    [
        ({}, {}),
        ({"EVERY_RANK": True, "RANKS": "all", "size": 4}, {"world": 8, "ranks": ["all"]}),
        ({"REPEAT": 3}, {"repeat": 3}),
        ({"RELATIVE": True, "BY_TAIL": True, "AT": {"tail": "8"}}, {"tail": 8}),
        (
            {
                **dict.fromkeys(("ON_DEMAND", "RELATIVE", "BY_LOAD", "BY_TAIL", "BY_CONTEXT"), True),
                "AT": {"load": "0", "tail": "0", "context": "0"},
            },
            {"request": "", "load": 0, "tail": 0, "context": 0},
        ),
    ],
)
def test_a_state_says_what_was_asked(
    constants: dict[str, Any], said: dict[str, Any], told: dict[str, Any], tmp_path: Path
) -> None:
    worker = V1Worker(WINDOW="3:6", **told, **constants)
    worker.vllm_config.parallel_config.data_parallel_size = 2
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    (state,) = states(tmp_path).values()
    asked = ("world", "repeat", "load", "tail", "context", "request")
    assert {name: state[name] for name in asked if name in state} == {k: v for k, v in said.items() if k != "ranks"}
    assert state["ranks"] == said.get("ranks", ["0"])
