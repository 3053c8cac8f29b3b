"""Join of a long run, and what it keeps in memory."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fixtures.timeline.small import MS, STEP, WALL, ZERO, small
from fixtures.timeline.writer import Writer
from patcher.timeline import causes, clocks, costs, recorded, runs
from patcher.timeline import join as joining
from patcher.timeline.files import IterationColumns, KeptSpan, paths
from patcher.timeline.intervals import TimeRange
from patcher.timeline.model import OVERLAP, Cause, Clock, Imbalance, RunTimeline, Tail
from patcher.timeline.path import PathPiece
from patcher.timeline.step_records import StepRecords
from patcher.timeline.windows import Collector


def piece(start: int, end: int) -> PathPiece:
    return PathPiece(start, end, "driver", "phase", str(start), "", 0)


@pytest.mark.parametrize(
    ("ends", "most", "kept"),
    [
        ([5, 9], 2, [(0, 5), (5, 9)]),
        ([5, 9], 1, [(0, 9)]),
        ([1, 8, 9, 20], 2, [(0, 9), (9, 20)]),
        ([1, 8, 9, 20], 3, [(0, 1), (1, 9), (9, 20)]),
        ([2, 4, 6, 8, 10], 2, [(0, 8), (8, 10)]),
        ([2, 4, 6, 8, 10], 4, [(0, 4), (4, 6), (6, 8), (8, 10)]),
    ],
)
def test_the_shortest_pieces_of_a_path_go_to_those_before_them(
    ends: list[int], most: int, kept: list[tuple[int, int]]
) -> None:
    path = [piece(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    assert [(one.start, one.end) for one in joining.thinned(path, most)] == kept


def test_a_long_run_has_shorter_paths_and_the_same_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path, steps=40)

    def joined() -> RunTimeline:
        run, processes = runs.survey(paths(tmp_path)).runs[0]
        found = joining.join(run, processes)
        for step in found.steps:
            assert sum(one.seconds for one in step.critical_path) == pytest.approx(step.seconds)
        return found

    whole = joined()
    monkeypatch.setattr(joining, "MOST_SEGMENTS", 150)
    monkeypatch.setattr(joining, "FEWEST_PIECES", 4)
    monkeypatch.setattr(joining, "MOST_POINTS", len(whole.requests))
    bounded = joined()
    assert bounded.requests == whole.requests
    assert {len(step.critical_path) for step in bounded.steps} == {4}
    assert min(len(step.critical_path) for step in whole.steps) > 4
    assert bounded.path_seconds == whole.path_seconds
    assert len(whole.path_seconds) > 4
    for ours, theirs in zip(bounded.causes, whole.causes, strict=True):
        assert (ours.title, ours.seconds, ours.steps) == (theirs.title, theirs.seconds, theirs.steps)
    monkeypatch.setattr(joining, "MOST_POINTS", len(whole.requests) // 2)
    assert len(joined().requests) <= len(whole.requests) // 2


def test_a_step_that_the_driver_marks_twice_is_one(tmp_path: Path) -> None:
    """As verl's fully_async: it logs the metrics of its rollouts, and a moment later those of the training."""
    small(tmp_path, steps=4, twice=True)
    run, processes = runs.survey(paths(tmp_path)).runs[0]
    steps = joining.join(run, processes).steps
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert [step.seconds for step in steps] == pytest.approx([1.0] * 4)


def append(folder: Path, pid: int, *spans: tuple[str, str, int, int]) -> None:
    """Add spans to the last line of a process's file, each with kind, name, start and end in microseconds."""
    (path,) = (path for path in paths(folder) if f"_{pid}_" in path.name)
    *lines, last = gzip.decompress(path.read_bytes()).splitlines()
    block = json.loads(last)
    rows = [
        [9_000 + at, 0, kind, name, start - block["at"][0], end - start]
        for at, (kind, name, start, end) in enumerate(spans)
    ]
    block["spans"] = [*block.get("spans", ()), *rows]
    path.write_bytes(gzip.compress(b"\n".join([*lines, json.dumps(block).encode(), b""])))


@pytest.mark.parametrize("held_back", [False, True])
def test_what_rlpatch_does_for_a_window_is_nobodys_fault(held_back: bool, tmp_path: Path) -> None:
    """In step 4 rank 1 saves a window for the 500 ms that it is late, and the engine does so within a decode step."""
    small(tmp_path, slow={4: 500})
    if held_back:
        start = ZERO + 3 * STEP
        append(tmp_path, 21, ("pause", "window saved", start + 700 * MS, start + 1_200 * MS))
        append(tmp_path, 31, ("pause", "window saved", start + 104 * MS, start + 112 * MS))
    run, processes = runs.survey(paths(tmp_path)).runs[0]
    found = joining.join(run, processes)
    step = found.steps[3]
    assert (step.verdict == "typical") is held_back
    assert step.pause_seconds == pytest.approx(0.508 if held_back else 0)
    assert ("slow micro-batch" in [window.what for window in found.windows]) is not held_back
    assert bool(found.notes) is held_back


def test_a_decode_step_is_as_long_as_without_what_rlpatch_does_within(tmp_path: Path) -> None:
    columns = IterationColumns()
    for at in range(6):
        columns.extend([at * 1_000 * MS], [(at * 1_000 + (500 if at == 3 else 10)) * MS], [1], [1])
    for pauses, slowest in (([], 4), ([TimeRange(3_005 * MS, 3_497 * MS)], 2)):
        collector = Collector([])
        collector.feed(
            StepRecords(0, 9_000 * MS, 0, [], {1: columns}, ("driver", "engine"), (None, None), pauses={1: pauses}),
            1,
            0,
        )
        assert collector.rollouts[0].slowest.first == slowest


def asynchronous(folder: Path, release: str = "0.9.1") -> RunTimeline:
    """A run as verl's separate_async: two updates of four micro-batches in a step, beside a rollout.

    The last but one micro-batch of step 4 takes 100 ms more. The weights of each step go to a worker of the rollout.
    """
    common: dict[str, Any] = {"run": "r", "started_ms": WALL // 1000}
    driver = Writer(folder, pid=10, **common)
    trainer = Writer(folder, pid=20, environ={"RANK": "0", "WORLD_SIZE": "1", "WG_PREFIX": "a1B2c3"}, **common)
    receiver = Writer(
        folder, pid=21, environ={"RANK": "0", "WORLD_SIZE": "1", "WG_PREFIX": "rollout_standalone_3"}, **common
    )
    server = Writer(folder, pid=30, environ={"VERL_REPLICA_RANK": "3"}, **common)
    engine = Writer(folder, pid=31, package="vllm", environ={"VERL_REPLICA_RANK": "3"}, **common)
    writers = (driver, trainer, receiver, server, engine)

    def sync(begin: int) -> None:
        for writer in (trainer, receiver):
            writer.add("work", "update_weights", begin, begin + 10 * MS)

    sync(ZERO - 20 * MS)
    for step in range(1, 7):
        begin = ZERO + (step - 1) * STEP
        whole = driver.begin()
        for call in range(2):
            start = begin + call * 450 * MS
            work = trainer.begin()
            for unit in range(4):
                more = 100 * MS if (step, call, unit) == (4, 1, 2) else 0
                at = start + unit * 20 * MS + (100 * MS if (step, call, unit) == (4, 1, 3) else 0)
                trainer.add("unit", "micro-batch", at, at + 20 * MS + more, parent=work)
            trainer.add("work", "update_actor", start, start + 440 * MS, identity=work)
            driver.add("call", "actor_update_actor", start, start + 445 * MS, parent=whole)
        sync(begin + 950 * MS)
        driver.add("phase", "step", begin, begin + STEP, identity=whole)
        driver.add("step", "", begin + STEP, begin + STEP, amount=step)
        server.add("serve", "generate", begin + MS, begin + 940 * MS, amount=9)
        for at in range(2, 930, 10):
            engine.iterate(begin + at * MS, begin + (at + 8) * MS, 1, 1)
        for writer in writers:
            writer.flush((begin + STEP + MS, WALL + step * STEP))
    for writer in writers:
        writer.close((ZERO + 7 * STEP, WALL + 7 * STEP))
    for path in paths(folder):
        text = gzip.decompress(path.read_bytes()).replace(b'"release":"0.9.1"', b'"release":"%s"' % release.encode())
        path.write_bytes(gzip.compress(text))
    run, processes = runs.survey(paths(folder)).runs[0]
    return joining.join(run, processes)


def test_who_receives_weights_for_a_rollout_is_no_trainer(tmp_path: Path) -> None:
    found = asynchronous(tmp_path)
    lanes = [(lane.role, lane.replica, lane.pid) for lane in found.lanes]
    assert lanes == [
        ("driver", None, 10),
        ("trainer", None, 20),
        ("engine", 3, 31),
        ("server", 3, 21),
        ("server", 3, 30),
    ]
    shares = {use.role: use.busy_share for use in found.steps[2].roles}
    assert shares["trainer"] == pytest.approx(0.89, abs=0.01)
    assert [text.partition(",")[0] for text in found.missing] == ["no agent loop wrote a timeline file"]


@pytest.mark.parametrize(
    ("release", "words"),
    [
        ("0.9.1", "--micro-batch 6:7 --ranks 0 --training-steps 4"),
        ("0.7.1", "--micro-batch 2:3 --ranks 0 --training-steps 8"),
    ],
)
def test_several_calls_between_two_versions_of_the_weights_are_one_training_step(
    release: str, words: str, tmp_path: Path
) -> None:
    """From verl 0.8.0 on its probe counts so; before that it counts calls."""
    (slow,) = (window for window in asynchronous(tmp_path, release).windows if window.what == "slow micro-batch")
    assert slow.command.endswith(words)


def test_what_an_asynchronous_trainer_has_is_not_offered_to_it(tmp_path: Path) -> None:
    small(tmp_path / "beside")
    run, processes = runs.survey(paths(tmp_path / "beside")).runs[0]
    offered = [bound.name for step in joining.join(run, processes).steps for bound in step.what_if]
    assert OVERLAP in offered
    assert OVERLAP not in [bound.name for step in asynchronous(tmp_path).steps for bound in step.what_if]


def test_no_advice_names_a_window_that_is_not_proposed_or_compares_a_single_rank(tmp_path: Path) -> None:
    """TRL's GRPO on one rank, whose third step takes longer before its first loss, then in its second micro-batch."""
    writer = Writer(tmp_path, pid=20, run="r", package="trl", started_ms=1)
    begin = ZERO
    for step in range(1, 9):
        work, at = writer.begin(), begin
        for unit in range(2):
            phase, more = writer.begin(), 400 * MS if (step, unit) == (6, 1) else 0
            generates = 300 * MS if unit == 0 else 0
            writer.add("phase", "compute_loss", at + generates, at + generates + 20 * MS + more, parent=phase)
            at += generates + 40 * MS + more
            writer.add("phase", "training_step", at - generates - 40 * MS - more, at, identity=phase, parent=work)
        writer.add("work", "train", begin, at + 10 * MS, identity=work, amount=step)
        begin = at + 10 * MS
        writer.add("step", "", begin, begin, amount=step)
        writer.flush((begin + MS, WALL + begin - ZERO))
    writer.close((begin + 2 * MS, WALL + begin - ZERO))
    run, processes = runs.survey(paths(tmp_path)).runs[0]
    found = joining.join(run, processes)
    (window,) = found.windows
    assert window.command == "rlpatch apply trl --micro-batch 1:2 --training-steps 6"
    assert {lane.role for lane in found.lanes} == {"trainer"}
    assert {use.role for step in found.steps for use in step.roles} == {"trainer"}
    advice = {cause.advice for cause in found.causes}
    assert costs.ADVICE["rank"] not in advice
    assert costs.ADVICE["trainer"] in advice
    none = {cause.advice for cause in costs.with_applicable_advice(found.causes, (), 1)}
    assert costs.ADVICE["unit"] in none
    assert costs.ADVICE["trainer"] not in none


def test_of_two_replicas_the_delay_of_the_last_one_counts() -> None:
    replicas = Imbalance("replicas", ((0, 1.5), (1, 4.25), (2, 3.0)), 1.3)
    assert joining._last_replica([Imbalance("ranks", ((0, 1.0), (1, 9.0)), 4.0), replicas]) == (1, 1_250_000)
    assert joining._last_replica([]) == (None, 0)


def joined(folder: Path) -> RunTimeline:
    run, processes = runs.survey(paths(folder)).runs[0]
    return joining.join(run, processes)


def test_each_value_of_a_step_follows_from_its_records(tmp_path: Path) -> None:
    small(tmp_path, slow={4: 300}, stale={4: 1.5})
    run = joined(tmp_path)
    step = run.steps[3]
    path = [
        (piece.seconds, piece.role, piece.replica, piece.rank, piece.kind, piece.what, piece.phase, piece.late_seconds)
        for piece in step.critical_path
    ]
    assert path == [
        (0.001, "agent", None, None, "trajectory", "trajectory", "gen", 0),
        (0.001, "server", 0, None, "serve", "start of generate", "gen", 0),
        (0.001, "server", 0, None, "serve", "generate", "gen", 0),
        (0.02, "engine", 0, None, "iteration", "prefill", "gen", 0),
        (0.366, "engine", 0, None, "iteration", "decode", "gen", 0),
        (0.001, "agent", None, None, "request", "request", "gen", 0),
        (0.001, "agent", None, None, "trajectory", "trajectory", "gen", 0),
        (0.009, "driver", None, None, "phase", "gen", "gen", 0),
        (0.1, "driver", None, None, "phase", "adv", "adv", 0),
        (0.001, "driver", None, None, "call", "call group_update_actor", "update_actor", 0),
        (0.149, "trainer", None, None, "unit", "micro-batch", "update_actor", 0),
        (0.45, "trainer", None, 1, "unit", "micro-batch", "update_actor", 0.3),
        (0.01, "trainer", None, None, "wait", "all_gather_object", "update_actor", 0),
        (0.088, "trainer", None, None, "unit", "optimizer-step", "update_actor", 0),
        (0.001, "trainer", None, None, "work", "update_actor", "update_actor", 0),
        (0.001, "driver", None, None, "call", "call group_update_actor", "update_actor", 0),
        (0.1, "driver", None, None, "phase", "update_weights", "update_weights", 0),
    ]
    assert [run.lanes[piece.lane].role for piece in step.critical_path if piece.lane is not None] == [
        role for _, role, _, rank, *_ in path if role != "trainer" or rank == 1
    ]
    at = 3.0
    for piece in step.critical_path:
        assert piece.start == pytest.approx(at)
        at = piece.end
    cause = Cause("trainer", None, 1, "micro-batch", "update_actor", 0.599, 0.3, "unit", 0.3)
    assert (step.step, step.start, step.end, step.seconds, step.warm_up, step.missing) == (4, 3, 4.3, 1.3, False, ())
    assert (step.verdict, step.limited_by, step.mostly, step.also, step.beside) == ("limited", cause, cause, (), ())
    assert step.tail == Tail(3.289, 3.389, 0.1, 12, 0.1)
    assert (step.tail_seconds, step.sync_seconds, step.sync, step.poll_seconds) == (0.1, 0.1, (), 0)
    assert (step.requests, step.decode_steps, step.tokens, step.stale_versions) == (12, 37, 346, 1.5)
    assert (step.prefill_tokens, step.decode_tokens, step.pause_seconds) == (1200, 334, 0)
    assert {part.name: part.seconds for part in step.phases} == {
        "gen": 0.4, "step": 1.3, "adv": 0.1, "update_actor": 0.7, "update_weights": 0.1
    }  # fmt: skip
    assert step.imbalance == (Imbalance("ranks", ((0, 0.398), (1, 0.698)), 0.15),)
    assert {bound.name: bound.saves_seconds for bound in step.what_if} == {
        "no long tail": 0.1, "perfect balance": 0.15, "no waiting for the weight sync": 0.1, "overlap": 0.391
    }  # fmt: skip
    assert {use.role: (use.lanes, use.busy_seconds, use.idle_seconds) for use in step.roles} == {
        "driver": (1, 0.209, 1.091), "trainer": (2, 0.538, 0.762), "engine": (1, 0.39, 0.91),
    }  # fmt: skip
    decode, late = ("engine", "decode", "gen"), ("trainer", "micro-batch", "update_actor")
    adv, sync = ("driver", "adv", "adv"), ("driver", "update_weights", "update_weights")
    assert {use.role: [(idle.role, idle.what, idle.phase, idle.seconds) for idle in use.idle_for] for use in step.roles} == {
        "driver": [(*late, 0.599), (*decode, 0.366), ("trainer", "optimizer-step", "update_actor", 0.088)],
        "trainer": [(*decode, 0.366), (*late, 0.15), (*adv, 0.1)], "engine": [(*late, 0.599), (*adv, 0.1), (*sync, 0.1)],
    }  # fmt: skip


def test_windows_and_advice_are_of_the_step_that_stands_out(tmp_path: Path) -> None:
    small(tmp_path, slow={4: 300})
    run = joined(tmp_path)
    assert {str(window.what): window.command for window in run.windows} == {
        "typical decode": "rlpatch apply vllm --decode 19:38 --rollout 4 --replicas 0",
        "tail": "rlpatch apply vllm --decode 0:20 --at-tail 1 --rollout 1 --replicas 0",
        "slow micro-batch": "rlpatch apply verl --micro-batch 1:2 --ranks 1 --training-steps 4",
    }
    costly = {str(cause.title).partition(":")[0]: (cause.seconds, cause.steps, cause.advice) for cause in run.causes}
    assert costly["trainer, rank 1"] == (0.3, (4,), costs.ADVICE["rank"])
    assert costly["weight sync"] == (0.4, (2, 3, 4, 5), costs.ADVICE["sync"])


def test_a_rollout_before_the_first_step_counts_in_the_windows(tmp_path: Path) -> None:
    small(tmp_path, validates=True)
    commands = {str(window.what): window.command for window in joined(tmp_path).windows}
    assert commands["typical decode"].endswith("--decode 19:38 --rollout 4 --replicas 0")
    assert commands["tail"].endswith("--decode 0:20 --at-tail 1 --rollout 2 --replicas 0")


def test_recorded_windows_are_put_on_the_clock_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path)
    starts = list[float]()

    def windows(_folder: Path, _lanes: object, _run: object, start: float) -> tuple[()]:
        starts.append(start)
        return ()

    monkeypatch.setattr(recorded, "windows", windows)
    run, processes = runs.survey(paths(tmp_path)).runs[0]
    joining.join(run, processes, tmp_path)
    joining.join(run, processes)
    assert starts == [pytest.approx(WALL / 1e6, abs=0.01, rel=0)]


def test_lanes_have_all_that_was_recorded_from_the_first_record_on(tmp_path: Path) -> None:
    small(tmp_path)
    append(tmp_path, 20, ("unit", "late", ZERO + 6 * STEP, ZERO + 12 * STEP))
    run = joined(tmp_path)
    assert [(lane.role, lane.rank, lane.seen, len(lane.spans), lane.dropped) for lane in run.lanes] == [
        ("driver", None, (0, 5), 30, 0), ("trainer", 0, (0.501, 12), 26, 8974), ("trainer", 1, (0.501, 4.899), 25, 0),
        ("engine", None, (0.003, 4.393), 0, 0), ("server", None, (0.002, 4.389), 60, 0), ("agent", None, (0, 4.391), 120, 0),
    ]  # fmt: skip
    (engine,) = (lane for lane in run.lanes if lane.role == "engine")
    assert [(part.start, part.end, part.iterations, part.decodes, part.requests) for part in engine.iterations] == [
        (at + 0.003, at + 0.393, 38, 37, 12) for at in range(5)
    ]
    assert [*run.requests][:6] == [(0.002, 12), (0.289, 1), (0.389, 0), (1.002, 12), (1.289, 1), (1.389, 0)]
    assert run.seconds == pytest.approx(5.002)
    assert [("trainer, rank 0 (pid 20)" in note, "8,974" in note) for note in run.notes] == [(True, True)]


Row = tuple[str, str, int, int | None]
FIRST_STEPS: dict[str, tuple[list[Row], float | None]] = {
    "its phase named step": ([("phase", "gen", 50, 100), ("phase", "step", 100, 1_000), ("phase", "x", 80, 90)], 0.9),
    "the first of those that ended": ([("phase", "gen", 200, 300), ("phase", "adv", 150, 400), ("phase", "x", 10, None)], 0.85),
    "one that goes on": ([("phase", "gen", 300, None), ("work", "train", 400, None)], 0.7),
    "one that ends behind it": ([("phase", "gen", 600, 1_400)], 0.4),
    "a work": ([("work", "train", 250, 900)], 0.75),
    "no call": ([("call", "train", 250, 900)], None),
    "nothing that begins with its end": ([("phase", "log", 1_000, 1_100)], None),
    "a step that began before the first record": ([("phase", "step", -500, 1_000)], 1.5),
}  # fmt: skip


@pytest.mark.parametrize("case", FIRST_STEPS)
def test_the_first_step_begins_with(case: str, tmp_path: Path) -> None:
    rows, seconds = FIRST_STEPS[case]
    writer = Writer(tmp_path, pid=10, started_ms=WALL // 1000)
    for kind, name, start, end in rows:
        writer.add(kind, name, ZERO + start * MS, None if end is None else ZERO + end * MS)
    writer.add("step", "", ZERO + STEP, ZERO + STEP, amount=1)
    writer.close((ZERO + 2 * STEP, WALL))
    assert [step.seconds for step in joined(tmp_path).steps] == ([] if seconds is None else [pytest.approx(seconds)])


def test_a_pause_of_the_driver_is_rlpatchs_own(tmp_path: Path) -> None:
    small(tmp_path)
    append(tmp_path, 10, ("pause", "window saved", ZERO + 3_420 * MS, ZERO + 3_450 * MS))
    step = joined(tmp_path).steps[3]
    assert [(piece.what, piece.seconds) for piece in step.critical_path if piece.start > 3.39 and piece.end < 3.501] == [
        ("gen", 0.009), ("adv", 0.02), ("rlpatch opens a recording window or saves a trace", 0.03), ("adv", 0.05)
    ]  # fmt: skip
    assert step.pause_seconds == pytest.approx(0.03)


def test_a_garbage_collection_of_the_driver_is_a_part_of_the_step(tmp_path: Path) -> None:
    small(tmp_path)
    append(tmp_path, 10, ("gc", "garbage collection", ZERO + 3_420 * MS, ZERO + 3_450 * MS))
    run = joined(tmp_path)
    assert [
        (piece.kind, piece.what, piece.phase, piece.seconds)
        for piece in run.steps[3].critical_path
        if piece.start > 3.39 and piece.end < 3.501
    ] == [
        ("phase", "gen", "gen", 0.009), ("phase", "adv", "adv", 0.02), ("gc", "garbage collection", "adv", 0.03),
        ("phase", "adv", "adv", 0.05),
    ]  # fmt: skip
    assert run.steps[3].pause_seconds == 0


@pytest.mark.parametrize(("spmd", "killed"), [(False, 1), (True, 1), (False, 2)])
def test_ranks_that_recorded_nothing_of_a_call_are_counted(spmd: bool, killed: int, tmp_path: Path) -> None:
    """Ranks are killed in the last step; without a driver their works are told by their number."""
    if spmd:
        for rank in range(2):
            writer = Writer(tmp_path, pid=21 + rank, run="r", environ={"RANK": str(rank)}, started_ms=WALL // 1000)
            for step in range(1, 6 - rank):
                end = ZERO + step * STEP
                writer.add("work", "train", end - STEP + MS, end - MS, amount=step)
                writer.add("step", "", end, end, amount=step)
                writer.flush((end, WALL + end - ZERO))
            writer.close((ZERO + 6 * STEP, WALL + 6 * STEP))
    else:
        small(tmp_path)
        for path in [path for path in paths(tmp_path) if re.search("_2[01]_", path.name)][-killed:]:
            path.write_bytes(gzip.compress(b"".join(gzip.decompress(path.read_bytes()).splitlines(keepends=True)[:5])))
    run = joined(tmp_path)
    text = f"{killed} of 2 ranks have no record of {'train' if spmd else 'group_update_actor'}"
    assert [step.missing for step in run.steps] == [(), (), (), (), (text,)]
    assert [note for note in run.missing if text in note and note.startswith("step 5: ")]


def test_only_of_the_last_step_it_is_said_that_ranks_recorded_nothing(tmp_path: Path) -> None:
    small(tmp_path)
    append(tmp_path, 10, ("call", "group_save", ZERO + 4 * STEP + MS, ZERO + 4 * STEP + 2 * MS))
    (path,) = (path for path in paths(tmp_path) if "_21_" in path.name)
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join([*lines[:3], *lines[4:]])))
    run = joined(tmp_path)
    assert [len(step.missing) for step in run.steps] == [0, 0, 1, 0, 0]
    assert run.missing == ()


def test_before_the_first_step_has_ended_nobody_is_missing(tmp_path: Path) -> None:
    writer = Writer(tmp_path, pid=10, started_ms=WALL // 1000)
    writer.add("call", "group_init_model", ZERO, ZERO + STEP)
    writer.close((ZERO + 2 * STEP, WALL))
    run = joined(tmp_path)
    assert (run.steps, run.missing) == ((), ())


def test_a_clock_without_a_bound_or_against_the_order_of_calls_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(tmp_path)
    run, processes = runs.survey(paths(tmp_path)).runs[0]
    state = joining._Join(run, processes, lambda _count: None)
    assert [*state._note_texts()] == []
    hosts = tuple(f"node{at}" for at in range(9))
    unbounded = Clock(hosts, 0.0, None, "wall clock")
    wrong = Clock(("other",), 0.0, 0.25, "causality", contradicts=True)
    slightly = replace(wrong, error_seconds=0.0)
    state.aligned = state.aligned._replace(clocks=(*state.aligned.clocks, unbounded, wrong, slightly))
    first, second, third = map(str, state._note_texts())
    assert "0.000 s" in third
    assert "node0, node1, " in first
    assert "node7 …" in first
    assert "node8" not in first
    assert "other" in second
    assert "0.250 s" in second
    state.aligned = state.aligned._replace(clocks=(replace(unbounded, hosts=hosts[:8]),))
    (eight,) = map(str, state._note_texts())
    assert "node6, node7 could" in eight
    aligned = state.aligned
    monkeypatch.setattr(
        clocks, "align", lambda *_: aligned._replace(clocks=(*aligned.clocks, replace(wrong, error_seconds=2.5)))
    )
    assert (state.tolerance, joining._Join(run, processes, lambda _count: None).tolerance) == (1_000, 2_501_000)


def test_a_run_begins_with_the_first_record_of_any_older_file(tmp_path: Path) -> None:
    small(tmp_path)
    run, processes = runs.survey(paths(tmp_path)).runs[0]

    def origin(parts: dict[int, list[dict[str, object]]]) -> int:
        """Return the origin of the run where a process, by index, has files with these fields."""
        heads = [process.head for process in processes]
        changed = [
            replace(process, parts=tuple(msgspec.structs.replace(head, **fields) for fields in parts.get(at, [{}])))
            for at, (process, head) in enumerate(zip(processes, heads, strict=True))
        ]
        return joining._Join(run, tuple(changed), lambda _count: None).origin

    begins = [process.head.begin for process in processes]
    early = min(begins) - STEP
    assert origin({}) == min(begins)
    assert origin({1: [{"begin": early}, {}]}) == early
    assert origin({1: [{}, {"begin": early}]}) == min(begins)
    assert origin({1: [{"begin": 0, "first": None}]}) == min(begins[:1] + begins[2:])


@pytest.mark.parametrize("host", ["a", "c"])
def test_the_clock_of_a_run_is_that_of_its_driver(host: str, tmp_path: Path) -> None:
    driver, worker = (Writer(tmp_path, name, boot=name, pid=7, run="r") for name in (host, "b"))
    driver.add("call", "group_train", ZERO, ZERO + STEP)
    driver.add("step", "", ZERO + STEP, ZERO + STEP, amount=1)
    worker.add("work", "train", ZERO - 5 * STEP, ZERO - 4 * STEP)  # its clock is five steps behind
    wall = worker.wall()
    driver.close((ZERO + STEP, wall))
    worker.close((ZERO - 4 * STEP, wall))
    ((run, processes),) = runs.survey(paths(tmp_path)).runs
    state = joining._Join(run, processes, lambda _count: None)
    assert [clock.hosts for clock in state.aligned.clocks if clock.source == "same clock"] == [(host,)]
    assert state.origin == ZERO


def test_a_trainer_is_known_by_its_rank_and_any_other_process_by_its_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(tmp_path)
    run, processes = runs.survey(paths(tmp_path)).runs[0]
    known = list[tuple[int | None, ...]]()

    def verdicts(_: object, who: list[causes.ProcessRank]) -> list[causes.StepVerdict]:
        known.extend(map(tuple, who))
        return []

    monkeypatch.setattr(causes, "verdicts", verdicts)
    joining._Join(
        run, [replace(one, replica=4, rank=one.head.pid) for one in processes], lambda _: None
    )._steps_with_verdicts()
    assert known == [(4, None), (None, 20), (None, 21), (4, None), (4, None), (4, None)]


def test_a_driver_that_marks_no_steps_has_its_phases_counted(tmp_path: Path) -> None:
    writer = Writer(tmp_path, pid=10, started_ms=WALL // 1000)
    writer.add("call", "init_model", ZERO, ZERO + MS)
    for step in range(3):
        writer.add("phase", "step", ZERO + step * STEP, ZERO + (step + 1) * STEP - MS)
    writer.close((ZERO + 4 * STEP, WALL))
    run = joined(tmp_path)
    assert [(step.step, step.seconds) for step in run.steps] == [(1, 0.999), (2, 1.0), (3, 1.0)]
    assert len(run.notes) == 1
    assert "`step`" in run.notes[0]


@pytest.mark.parametrize(
    ("ended", "missing", "dropped"), [(True, 1, 1), (True, 0, 0), (False, 1_000, 0), (False, 1_001, 1_001)]
)
def test_records_are_lost_where_ids_are_missing(ended: bool, missing: int, dropped: int, tmp_path: Path) -> None:
    """A process that was killed had spans open, whose ids are missing, too."""
    writer = Writer(tmp_path, pid=10, started_ms=WALL // 1000)
    writer.last_id = missing
    writer.add("phase", "gen", ZERO, ZERO + STEP)
    if ended:
        writer.close((ZERO + 2 * STEP, WALL))
    else:
        writer.flush((ZERO + 2 * STEP, WALL))
    assert [lane.dropped for lane in joined(tmp_path).lanes] == [dropped]


FIRST: dict[str, tuple[list[tuple[str, str, int, int | None]], int]] = {
    "nothing": ([], 100),
    "a phase named step": ([("phase", "step", 40, 99), ("phase", "gen", 10, 90)], 40),
    "the first ended phase": ([("phase", "a", 20, None), ("phase", "b", 30, 50), ("work", "c", 35, 40)], 30),
    "a phase that ends with the step": (
        [("phase", "a", 20, None), ("phase", "b", 30, 100), ("poll", "c", 25, 101)],
        30,
    ),
    "none has ended": ([("phase", "a", 20, None), ("poll", "b", 15, None)], 15),
    "one that begins with the end": ([("phase", "step", 100, None), ("work", "a", 99, None)], 99),
    "other kinds": ([("call", "a", 20, 30), ("request", "b", 15, 20)], 100),
}


@pytest.mark.parametrize("name", FIRST)
def test_the_first_step_starts_with_its_first_phase(name: str) -> None:
    spans, start = FIRST[name]
    kept = [KeptSpan(begin, end, kind, what, None, at, 0, 0) for at, (kind, what, begin, end) in enumerate(spans)]
    reader = SimpleNamespace(
        spans=[span for span in kept if span.end], open={span.id: span for span in kept if not span.end}
    )
    assert joining._Join._start_of_first_step(None, reader, 100) == start  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "waited", "counts"),
    [("gap", 51, True), ("gap", 50, False), ("iteration", 50, True), ("iteration", 1, True)],
)
def test_an_engine_that_polls_without_a_cpu_is_delayed_only_if_it_waits_for_most_of_the_gap(
    kind: str, waited: int, counts: bool
) -> None:
    reader = SimpleNamespace(cpu_wait=lambda start, end: waited)
    run = SimpleNamespace(roles={"engine": [0]}, readers=[reader])
    found = joining._Join._cpu_wait(run, PathPiece(0, 100, "engine", kind, "", "gen", 0))  # type: ignore[arg-type]
    assert found == (causes.ProcessWait(0, waited) if counts else causes.NO_WAIT)


LAST: list[tuple[list[Imbalance], tuple[int | None, int]]] = [
    ([], (None, 0)),
    ([Imbalance("ranks", ((0, 1.0), (1, 3.0)), 1.0)], (None, 0)),
    ([Imbalance("replicas", ((0, 1.0), (1, 3.0)), 1.0)], (1, 2_000_000)),
    ([Imbalance("ranks", ((0, 1.0), (1, 9.0)), 1.0), Imbalance("replicas", ((0, 5.0), (1, 3.0), (2, 4.5)), 1.0)], (0, 500_000)),
]  # fmt: skip


@pytest.mark.parametrize(("uneven", "last"), LAST)
def test_the_last_replica_is_late_by_what_it_ends_after_the_next_to_last(
    uneven: list[Imbalance], last: tuple[int | None, int]
) -> None:
    assert joining._last_replica(uneven) == last
