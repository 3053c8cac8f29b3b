"""Memory of a run: who holds what at each peak, what gives it back, what grows, and what a damaged file does to it."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.timeline import hogs
from fixtures.timeline.simulation import joined
from fixtures.timeline.small import MS, STEP, WALL, ZERO
from fixtures.timeline.writer import Writer
from patcher.timeline import memory_tables
from patcher.timeline.files import CacheNote, HostNote, KeptSpan, MemoryNote, ProcessDevice, ProcessFile
from patcher.timeline.lanes import RunLanes
from patcher.timeline.memory import (
    MemoryCollector,
    _activity_at,
    _Curve,
    _growth_rate,
    _Held,
    _memory_freed_by_sleeps,
    _Moment,
    device_home,
)
from patcher.timeline.model import (
    CacheUse,
    MemoryChange,
    MemoryExcess,
    MemoryGrowth,
    MemoryHolder,
    MemoryPeak,
    RunMemory,
    RunTimeline,
)
from patcher.timeline.runs import Process
from tests.matrix import CRASH, thinned

GIB = 1 << 30
UUID = {"index": 0, "visible": "", "name": "H100", "uuid": "GPU-1", "total": 80 * 1024}
TOTAL, CONTEXTS = 80 * 1024, 3 * 1024


def colocated(
    folder: Path, *, steps: int = 5, device: dict[str, object] = UUID, second: dict[str, object] | None = None,
    asleep: int = 20, leak: int = 0, ended: bool = True, hog: Sequence[int] = (),
) -> RunTimeline:  # fmt: skip
    """A trainer and an engine on one device: the engine keeps ``asleep`` of its 60 GiB while the trainer holds 48.

    In each step: rollout (engine 60, trainer 4), sleep, update (trainer 48), offload, weight sync with buckets of 6,
    wake-up. The trainer's host memory grows by ``leak`` MiB a step; in a step of ``hog`` it has 1,000 MiB more.
    """
    common = {"run": "r", "started_ms": WALL // 1000}
    driver = Writer(folder, pid=10, **common)  # type: ignore[arg-type]
    trainer = Writer(folder, pid=20, environ={"RANK": "0", "WORLD_SIZE": "1"}, **common)  # type: ignore[arg-type]
    engine = Writer(folder, pid=31, package="vllm", environ={"VERL_REPLICA_RANK": "0"}, **common)  # type: ignore[arg-type]
    trainer.more["device"], engine.more["device"] = device, second or device
    reserved = {"trainer": 4 * 1024, "engine": 60 * 1024}  # what their allocators say
    real = dict(reserved)  # what they have on the device

    def note(writer: Writer, who: str, at: int, private: int = 500) -> None:
        free = TOTAL - CONTEXTS - sum(real.values())
        writer.note(at, private, free, reserved[who] - 100, reserved[who], 70 * 1024)

    for step in range(1, steps + 1):
        begin = ZERO + (step - 1) * STEP
        driver.add("phase", "gen", begin, begin + 400 * MS)
        for at in range(10, 380, 10):
            engine.iterate(begin + at * MS, begin + at * MS + 9 * MS, 4, 4)
        engine.more["blocks"] = [1000, [(begin + 100 * MS) - (begin + STEP + MS), 10 * MS], [400 + step, 50]]
        note(engine, "engine", begin + 380 * MS)
        engine.add("sleep", "sleep", begin + 380 * MS, begin + 390 * MS)
        real["engine"] = asleep * 1024
        note(engine, "engine", begin + 390 * MS + 1)
        update, done = begin + 450 * MS, begin + 850 * MS
        driver.add("phase", "update_actor", update - MS, done + MS)
        driver.add("call", "update_actor", update - MS, done + MS)
        note(trainer, "trainer", update, 500 + leak * step)
        trainer.add("work", "update_actor", update, done)
        reserved["trainer"] = real["trainer"] = 48 * 1024
        note(trainer, "trainer", update + 100 * MS, 500 + leak * step + (1_000 if step in hog else 0))
        trainer.add("unit", "micro-batch", update + 100 * MS, update + 300 * MS)
        reserved["trainer"] = real["trainer"] = 4 * 1024
        note(trainer, "trainer", done + 1, 500 + leak * step)
        sync = done + 10 * MS
        for at, size in ((0, 4), (50, 10), (99, 4)):
            reserved["trainer"] = real["trainer"] = size * 1024
            note(trainer, "trainer", sync + at * MS, 500 + leak * step)
        trainer.add("sync", "update_weights", sync, sync + 99 * MS)
        note(engine, "engine", sync + 100 * MS)
        trainer.add(
            "work", "without a note", begin + 980 * MS, begin + 990 * MS
        )  # none within, and none behind the last
        engine.add("sleep", "wake_up", sync + 100 * MS, sync + 110 * MS)
        real["engine"] = 60 * 1024
        note(engine, "engine", sync + 110 * MS + 1)
        end = begin + STEP
        if ended:
            driver.add("phase", "step", begin, end)
            driver.add("step", "", end, end, amount=step)
        for writer in (driver, trainer, engine):
            writer.more["host"] = [60_000 - leak * step, 64_000]
            writer.flush((end + MS, WALL + end - ZERO))
    for writer in (driver, trainer, engine):
        writer.close((ZERO + steps * STEP + 2 * MS, WALL + steps * STEP))
    return joined(folder)


def test_at_the_peak_it_is_said_who_holds_what(tmp_path: Path) -> None:
    run = colocated(tmp_path)
    (peak,) = (peak for peak in run.memory.highest() if peak.of == "device")
    # In rollouts 3 + 4 + 60 GiB; in the update 3 + 48 + 20; before a wake-up the trainer has 4 again.
    assert (peak.used, peak.total, peak.phase) == (71 * GIB, 80 * GIB, "update_actor")
    assert [(held.who, held.bytes, held.asleep) for held in peak.holders] == [
        ("trainer, rank 0", 48 * GIB, False), ("engine, replica 0", 20 * GIB, True),
    ]  # fmt: skip
    assert peak.holders[0].doing == "update_actor"
    assert peak.other == CONTEXTS << 20
    assert {of.step for of in run.memory.peaks} == {1, 2, 3, 4, 5, None}


def test_the_curve_of_a_place_has_what_each_role_holds_then(tmp_path: Path) -> None:
    device, host = colocated(tmp_path, steps=2).memory.places
    assert (device.of, device.joined_by, device.roles, device.lanes) == (
        "device",
        "uuid",
        ("trainer", "engine"),
        (1, 2),
    )
    # What is in use, and of it the trainer's and the engine's: before the trainer's first note its 4 GiB are nobody's.
    before = [(67, 0, 60), (27, 0, 20)]
    update_and_sync = [
        (27, 4, 20),
        (71, 48, 20),
        (27, 4, 20),
        (27, 4, 20),
        (33, 10, 20),
        (27, 4, 20),
        (27, 4, 20),
        (67, 4, 60),
    ]
    points = [(used / GIB, *(size / GIB for size in sizes)) for _, used, sizes in device.points]
    assert points[:10] == [*before, *update_and_sync]
    assert (host.of, host.joined_by, host.roles) == ("host", "host", ("trainer", "engine"))
    assert {(at, *sizes) for at, _, sizes in host.points} == {(at, 500 << 20, 500 << 20) for at in (1.001, 2.001)}
    assert {used for _, used, _ in host.points} == {4_000 << 20}


def test_what_sleep_and_offload_give_back_and_a_sync_needs(tmp_path: Path) -> None:
    changes = {
        (change.kind, change.role, change.what): (change.median, change.times)
        for change in colocated(tmp_path).memory.changes
    }
    assert changes == {
        ("sleep", "engine", "sleep"): (40 * GIB, 5),
        ("sleep", "engine", "wake_up"): (-40 * GIB, 5),
        ("offload", "trainer", "update_actor"): (44 * GIB, 5),
        ("sync", "", "update_weights"): (6 * GIB, 5),
    }


def test_the_kv_cache_is_told_where_it_was_fullest(tmp_path: Path) -> None:
    (cache,) = colocated(tmp_path).memory.cache
    assert (cache.who, cache.step, cache.used, cache.total) == ("engine, replica 0", 5, 455, 1000)


INDEX = {"index": 1, "visible": "", "name": "Ascend 910B", "total": TOTAL}


@pytest.mark.parametrize(
    ("first", "second", "places", "joined_by"),
    [
        (UUID, {**UUID, "index": 3}, ["node0:0"], "uuid"),
        (UUID, {**UUID, "uuid": "GPU-2"}, ["node0:0", "node0:0 GPU-2"], "uuid"),
        (INDEX, {**INDEX, "index": 0, "visible": "1,2"}, ["node0:1"], "index"),
        (INDEX, {**INDEX, "index": 1, "visible": "1,2"}, ["node0:1", "node0:2"], "index"),
    ],
)
def test_processes_of_a_device_are_joined_by_what_identifies_it(
    tmp_path: Path, first: dict[str, object], second: dict[str, object], places: list[str], joined_by: str
) -> None:
    run = colocated(tmp_path, device=first, second=second)
    devices = [place for place in run.memory.places if place.of == "device"]
    assert [place.place for place in devices] == places
    assert {place.joined_by for place in devices} == {joined_by}
    assert [len(place.lanes) for place in devices] == [2 // len(places)] * len(places)


def test_a_run_that_dies_in_its_first_step_has_its_peak(tmp_path: Path) -> None:
    run = colocated(tmp_path, steps=1, ended=False)
    assert not run.steps
    assert [(peak.step, peak.used) for peak in run.memory.highest() if peak.of == "device"] == [(None, 71 * GIB)]


def test_what_grows_is_told_with_its_rate_and_its_end(tmp_path: Path) -> None:
    (found,) = colocated(tmp_path, steps=8, leak=100).memory.growth
    assert (found.of, found.who, found.per_step, found.steps) == ("host", "trainer, rank 0", 100 << 20, 7)
    assert found.full_in == (60_000 - 800) // 100


def test_a_step_with_more_than_usual_memory_is_told_with_its_time(tmp_path: Path) -> None:
    """Step 3 has 1,000 MiB more from 550 to 850 ms, step 6 too; what grows is usual."""
    memory = colocated(tmp_path, steps=8, leak=100, hog=(3, 6)).memory
    assert [dataclasses.astuple(found) for found in memory.excesses] == [
        ("trainer, rank 0", 1, 3, 2.55, 0.300001, 1_000 << 20, 800 << 20, "update_actor"),
        ("trainer, rank 0", 1, 6, 5.55, 0.300001, 1_000 << 20, 1_100 << 20, "update_actor"),
    ]  # fmt: skip
    assert [found.per_step for found in memory.growth] == [100 << 20]


def test_tables_and_sentences_have_the_bytes_of_the_run(tmp_path: Path) -> None:
    run = colocated(tmp_path, steps=8, leak=100, hog=(5,))
    peaks, changes, cache, growth = memory_tables.tables(run)
    device, host = peaks.rows[0], peaks.rows[-1]
    assert (*device[:7], device[8]) == ("device", "node0:0", 1, "update_actor", 0.55, 71 * GIB, 80 * GIB, 3 * GIB)
    assert device[7] == "trainer, rank 0 (51.5 GB), engine, replica 0 (holds 21.5 GB while asleep)"
    assert (*host[:4], *host[5:7]) == ("host", "node0", None, "", 4_800 << 20, 64_000 << 20)
    assert [row[1:] for row in changes.rows] == [
        ("trainer", "update_actor", 8, 44 * GIB, 44 * GIB), ("engine", "sleep", 8, 40 * GIB, 40 * GIB),
        ("engine", "wake_up", 8, -40 * GIB, -40 * GIB), ("", "update_weights", 8, 6 * GIB, 6 * GIB),
    ]  # fmt: skip
    assert [str(row[0]).split()[-1] for row in changes.rows] == ["ends", "wakes", "wakes", "sync"]
    assert [changes.columns[4].unit.text(number) for number in (1_500_000, -1_500_000, 0, -1)] == [
        "1.5 MB", "−1.5 MB", "0 B", "−1 B"
    ]  # fmt: skip
    assert cache.rows == [("engine, replica 0", 8, 458, 1000, 0.458)]
    columns = [column for table in (peaks, changes, cache, growth) for column in table.columns]
    assert [column.key for column in columns if column.bar] == ["used_bytes"]
    assert [column.key for column in columns if column.optional] == ["step", "per_step_bytes", "seconds", "doing"]
    assert [column.key for column in columns if column.unit.whole == 1] == ["share"]
    empty = replace(run, memory=RunMemory(cache=(CacheUse("e", 0, 2, 0, 0),)))
    assert memory_tables.cache(empty).rows == [("e", 2, 0, 0, 0)]
    assert "0 % (0 of 0" in memory_tables.cache_line(empty.memory.cache[0])
    assert growth.rows == [
        ("trainer, rank 0", "host", None, 100 << 20, 700 << 20, 1_300 << 20, None, ""),
        ("trainer, rank 0", "host", 5, None, 1_000 << 20, 2_000 << 20, 0.300001, "update_actor"),
    ]
    peak = replace(run.memory.peaks[-1], step=4)
    assert re.findall(r"[\d.]+ .B", memory_tables.peak_line(peak)) == [
        "5.0 GB",
        "67.1 GB",
        "1.4 GB",
        "524.3 MB",
        "3.1 GB",
    ]
    assert memory_tables.peak_line(peak).startswith("host node0, step 4: ")
    assert memory_tables.peak_line(run.memory.peaks[0]).startswith("device node0:0, step 1, update_actor: ")
    lines = [memory_tables.change_line(change) for change in run.memory.changes]
    assert [re.findall(r"end of|frees|takes|needs|[\d.]+ .B|\d+(?= times| measurements)", line) for line in lines] == [
        ["end of", "frees", "47.2 GB", "8", "47.2 GB"], ["frees", "42.9 GB", "8", "42.9 GB"],
        ["takes", "42.9 GB", "8", "42.9 GB"], ["needs", "6.4 GB", "8", "6.4 GB"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "median", "words"),
    [
        ("sleep", 1, "frees"), ("sleep", 0, "frees"), ("sleep", -1, "takes"), ("sync", -1, "needs"), ("offload", 0, "end of frees"), ("offload", -1, "takes"),
    ],
)  # fmt: skip
def test_a_sleep_frees_or_takes_memory(kind: str, median: int, words: str) -> None:
    line = memory_tables.change_line(MemoryChange(kind, "engine", "sleep", 3, median, median))
    assert " ".join(re.findall(r"end of|frees|takes|needs", line)) == words


def test_a_sentence_names_four_holders_and_sums_the_others() -> None:
    holders = tuple(MemoryHolder(f"p{at}", at, 10**9, asleep=at == 1) for at in range(6))
    peak = MemoryPeak("host", "a", 1, 0.0, "", 6 * 10**9, 10**10, holders, 0)
    assert (
        memory_tables.holders(peak)
        == "p0 (1.0 GB), p1 (holds 1.0 GB while asleep), p2 (1.0 GB), p3 (1.0 GB), 2 more processes (2.0 GB)"
    )
    five = memory_tables.holders(replace(peak, holders=holders[:5]))
    assert five.endswith("p4 (1.0 GB)")
    growth = MemoryGrowth("device", "p", 0, 10**9, 3 * 10**9, 5 * 10**8, 5)
    assert "fills" not in memory_tables.growth_line(growth)
    assert memory_tables.growth_line(growth).startswith("p: device ")
    assert "used up: 7" in memory_tables.growth_line(replace(growth, full_in=7))
    assert "p: host " in memory_tables.growth_line(replace(growth, of="host", full_in=7))
    assert "46 % (458 of 1,000" in memory_tables.cache_line(CacheUse("e", 0, 2, 458, 1_000))
    excess = MemoryExcess("p", 0, 3, 1.0, 0.3, 10**9, 5 * 10**8, "gen")
    assert re.findall(r"\d[\d.]*", memory_tables.excess_line(excess)) == ["3", "300", "1.0", "500.0"]


MB = 10**6


def _noise(seed: int, count: int, spread: int) -> list[int]:
    dice = random.Random(seed)
    return [5000 * MB + dice.randint(-spread, spread) * MB for _ in range(count)]


@pytest.mark.parametrize(
    ("values", "slope"),
    [
        ([1000 * MB + 50 * MB * at for at in range(8)], 50 * MB),
        ([1000 * MB + 50 * MB * at for at in range(3)], None),  # too few
        ([1000 * MB + 50 * MB * at for at in range(4)], 50 * MB),
        ([1000 * MB + 16 * MB * at for at in range(5)], None),  # 64 MB
        ([1000 * MB + 16_000_001 * at for at in range(5)], 16_000_001),
        ([10_000 * MB + 50 * MB * at for at in range(5)], None),  # a fiftieth
        ([10_000 * MB + 50_000_001 * at for at in range(5)], 50_000_001),
        ([1000 * MB] * 3 + [3000 * MB] * 7, None),  # a jump
        ([1000 * MB + MB * at for at in range(20)], None),  # as much as allocators keep
        ([9000 * MB - 50 * MB * at for at in range(20)], None),
        ([1000 * MB + 100 * MB * (at // 3) for at in range(30)], 33 * MB),  # noted now and then
        ([1000 * MB + 300 * MB * (at // 6) for at in range(24)], 46 * MB),  # even more rarely
        ([value + 50 * MB * at for at, value in enumerate(_noise(1, 40, 60))], 50 * MB),
        ([1000 * MB + 10 * MB * at for at in range(1000)], 10 * MB),
        *((_noise(seed, 12, 300), None) for seed in range(20)),
    ],
)
def test_growth_is_what_goes_on(values: Sequence[int], slope: int | None) -> None:
    found = _growth_rate([*enumerate(values)])
    assert found is None if slope is None else found == pytest.approx(slope, rel=0.1)


def test_growth_is_per_step_where_some_steps_have_no_note() -> None:
    assert _growth_rate([(step, 50 * MB * step) for step in (2, 3, 4, 6, 8)]) == 50 * MB
    assert _growth_rate([(step + 500, MB * (10_000 + 50 * step)) for step in range(5)]) is None  # a fiftieth
    assert _growth_rate([(step, 50 * MB * step) for step in range(0, 2000, 2)]) == pytest.approx(50 * MB)
    memory = collector()
    steps: dict[int | None, int] = {step: step * 50 * MB for step in (1, 2, 3, 4, 6, 8)}
    memory.series[0].private, memory.held = steps, {0: _Held(MemoryNote(0, 1, 1, 1, 1))}
    (grown,) = memory._growth(0)
    assert (grown.first, grown.last, grown.per_step, grown.steps) == (100 * MB, 400 * MB, 50 * MB, 7)
    memory.series[0].most = {step: (size, step or 0, 1, "gen") for step, size in steps.items()}
    assert [*memory._excesses(0, {(grown.lane, "host"): grown.per_step})] == []


@pytest.mark.parametrize(
    ("key", "value", "losses"),
    [
        ("memory", [[1, 2]], 0),
        ("memory", [[0, -5, 1]], 0),
        ("memory", [[0, 1 << 200, 1, 1, 1, 1, 1]], 0),
        ("memory", [["a", {}, 1]], 1),
        ("memory", "[" * 5, 1),
        ("host", [-1, 5], 1),
        ("host", {"total": 1}, 1),
        ("blocks", [10, [1], [50]], 0),
        ("blocks", [10, [1, 2], [5]], 0),
        ("blocks", [10, [1 << 59] * 40, [0] * 40], 0),
        ("blocks", 7, 1),
        ("device", {"index": "no"}, 1),
        ("device", [], 1),
    ],
)
def test_memory_that_is_none_costs_no_more_than_itself(tmp_path: Path, key: str, value: object, losses: int) -> None:
    writer = Writer(tmp_path, pid=5, started_ms=WALL // 1000)
    writer.add("work", "train", ZERO, ZERO + MS)
    writer.more[key] = value
    writer.close((ZERO + STEP, WALL))
    run = joined(tmp_path)
    assert [span.name for span in run.lanes[0].spans] == ["train"]
    assert not run.memory.peaks
    assert not run.memory.cache
    assert len(run.notes) == losses


def test_a_process_that_has_nothing_yet_is_noted(tmp_path: Path) -> None:
    writer = Writer(tmp_path, pid=5, started_ms=WALL // 1000)
    writer.more.update(device=UUID, memory=[[-MS, 3, 0, 80_000, 0, 0, 0]], host=[0, 64_000])
    writer.close((ZERO + STEP, WALL))
    peaks = {
        peak.of: (peak.used >> 20, [held.bytes >> 20 for held in peak.holders])
        for peak in joined(tmp_path).memory.peaks
    }
    assert peaks == {"device": (1_920, []), "host": (64_000, [3])}


def test_runs_without_notes_say_nothing_of_memory(tmp_path: Path) -> None:
    writer = Writer(tmp_path, pid=5, started_ms=WALL // 1000)
    writer.add("work", "train", ZERO, ZERO + MS)
    writer.close((ZERO + STEP, WALL))
    assert joined(tmp_path).memory == RunMemory()


def test_leaks_and_hogs_of_real_processes_are_named(tmp_path: Path, seed: int) -> None:
    run, planted = hogs.play(tmp_path, hogs.plant(seed))
    assert [*hogs.faults(run, planted)] == []


def test_a_quiet_run_of_real_processes_names_nobody(tmp_path: Path, quiet: int) -> None:
    run, _ = hogs.play(tmp_path, hogs.Plant("", quiet))
    assert (run.memory.growth, run.memory.excesses) == ((), ())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, count in (("seed", 20), ("quiet", 3)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, thinned(range(count), [], CRASH))


def test_points_of_a_curve_are_bounded_and_keep_the_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patcher.timeline.memory.POINTS", 60)
    run = colocated(tmp_path, steps=20)
    for place in run.memory.places:
        assert len(place.points) <= 60
        assert max(used for _, used, _ in place.points) == max(
            peak.used for peak in run.memory.peaks if peak.place == place.place and peak.of == place.of
        )
    assert dataclasses.asdict(run.memory)


def test_the_highest_peak_of_each_place_comes_devices_first_and_the_fullest_first() -> None:
    peaks = [
        MemoryPeak("host", "a", 1, 0.0, "", 50, 100, (), 0), MemoryPeak("device", "a:0", 1, 0.0, "", 60, 100, (), 0),
        MemoryPeak("device", "a:1", 1, 0.0, "", 40, 50, (), 0), MemoryPeak("device", "a:0", 2, 0.0, "", 70, 100, (), 0),
        MemoryPeak("device", "a:0", 3, 0.0, "", 65, 100, (), 0), MemoryPeak("device", "a:2", 1, 0.0, "", 0, 0, (), 0),
    ]  # fmt: skip
    highest = RunMemory(peaks=tuple(peaks)).highest()
    assert [(peak.place, peak.step, peak.used) for peak in highest] == [
        ("a:1", 1, 40), ("a:0", 2, 70), ("a:2", 1, 0), ("a", 1, 50)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("used", "kept"),
    [([1, 2, 3, 4], [1, 2, 3, 4]), ([1, 2, 4, 3, 9], [2, 4, 9]), ([5, 1, 1, 5, 2, 7], [5, 5, 2, 7])],
)
def test_of_too_many_points_the_higher_of_each_two_and_the_newest_are_kept(used: list[int], kept: list[int]) -> None:
    curve = _Curve()
    for at, size in enumerate(used):
        curve.add(at, size, {}, 2)
    assert [size for _, size, _ in curve.points] == kept


NOTES = [MemoryNote(at, 0, free, 0, reserved, 0) for at, free, reserved in ((0, 9, 60), (10, 10, 60), (20, 50, 55))]
SLEEPS: dict[str, tuple[list[tuple[int, int | None, str]], list[tuple[int, int, int]]]] = {
    "between two notes": ([(11, 19, "sleep")], [(20, 40, 5)]),
    "from one note to the next": ([(10, 20, "sleep")], [(20, 40, 5)]),
    "across a note": ([(1, 19, "sleep")], [(20, 41, 5)]),
    "before the first note": ([(-5, 5, "sleep")], []),
    "behind the last note": ([(15, 21, "sleep")], []),
    "one that goes on": ([(11, None, "sleep")], []),
    "one within another": ([(1, 19, "sleep"), (2, 9, "sleep")], [(20, 41, 5)]),
    "one behind another": ([(1, 9, "sleep"), (9, 12, "sleep")], [(10, 1, 0), (20, 41, 5)]),
    "no sleep": ([(11, 19, "work")], []),
}


@pytest.mark.parametrize("case", SLEEPS)
def test_a_sleep_gives_back_what_is_free_behind_it_and_was_not_before(case: str) -> None:
    rows, expected = SLEEPS[case]
    spans = [KeptSpan(start, end, kind, "x", None, at, 0, 0) for at, (start, end, kind) in enumerate(rows)]
    without_device = MemoryNote(15, 7)
    found = [*_memory_freed_by_sleeps(spans, [*NOTES[:2], without_device, NOTES[2]])]
    assert found == [(at, (freed, returned, "x")) for at, freed, returned in expected]


@pytest.mark.parametrize(
    ("sizes", "change"),
    [
        ([99_999_999, -5], None),
        ([100_000_000, 0], (50_000_000, 100_000_000)),
        ([-100_000_000, 5, 7], (5, -100_000_000)),
    ],
)
def test_changes_of_a_hundred_megabytes_are_told(sizes: list[int], change: tuple[int, int] | None) -> None:
    collector = MemoryCollector([], None, RunLanes([]), {})
    collector.changes["sleep", "engine", "sleep"] = sizes
    found = [(row.median, row.most, row.times) for row in collector.result().changes]
    assert found == ([(*change, len(sizes))] if change else [])


def collector() -> MemoryCollector:
    """Return a collector of one trainer, rank 0."""
    head = ProcessFile(
        path=Path("x"), started=0, begin=0, first=None, last=None, kinds=frozenset(), rank=0, ended=True, cut=False,
        package="verl", host="node0", boot="b",
    )  # fmt: skip
    processes = [Process((head,), ("trainer",), None, 0)]
    return MemoryCollector(processes, None, RunLanes(processes), {})


@pytest.mark.parametrize(
    ("private", "expected"),
    [
        ([(0, 10), (10, 30), (15, 20), (20, 5)], (30, 10, 10)), ([(0, 0), (10, 20), (15, 10), (20, 0)], (20, 10, 5)),
        ([(0, 7)], (7, 0, 0)), ([(0, 0)], (0, 0, 0)), ([(0, 9), (4, 9), (9, 9)], (9, 0, 0)), ([(0, 9), (4, 1), (6, 9), (9, 9)], (9, 0, 7)),
    ],
)  # fmt: skip
def test_a_step_has_the_most_memory_and_how_long_it_was_above_the_middle(
    private: list[tuple[int, int]], expected: tuple[int, int, int]
) -> None:
    memory = collector()
    memory._keep_step_memory(3, 0, [MemoryNote(at, size) for at, size in private], [])
    series = memory.series[0]
    assert series.most[3] == (*expected, "")
    assert (series.private[3], series.allocated[3], series.unused[3]) == (private[-1][1], 0, 0)


def test_a_step_that_is_fed_twice_keeps_the_higher_memory_and_the_newest_of_the_device() -> None:
    memory = collector()
    for at, (size, allocated) in enumerate([(20, 5), (10, None), (20, 0)]):
        memory._keep_step_memory(3, 0, [MemoryNote(at, size, 1, allocated), MemoryNote(at, 1)], [])
        assert memory.series[0].most[3][1] == (2 if at == 2 else 0)
        assert memory.series[0].allocated[3] == (5 if at == 0 else 0)
    memory._keep_step_memory(4, 0, [], [])
    assert [*memory.series[0].most] == [3]


def test_the_fullest_cache_comes_first_and_one_without_blocks_last() -> None:
    memory = collector()
    memory.cache = {
        at: CacheUse("engine", at, 1, used, total) for at, (used, total) in enumerate([(0, 0), (5, 10), (4, 5)])
    }
    assert [cache.lane for cache in memory.result().cache] == [2, 1, 0]


def test_of_two_steps_that_used_as_many_blocks_the_first_is_told() -> None:
    memory = collector()
    for step, used in ((1, [5, 7]), (2, [7]), (3, [])):
        memory._keep_cache_peak(step, 0, [CacheNote(step, blocks, 10) for blocks in used])
    assert memory.cache == {0: CacheUse("trainer, rank 0", 0, 1, 7, 10)}


@pytest.mark.parametrize(
    ("sizes", "host", "steps"),
    [
        ([9 * MB, *[MB] * 4, 65 * MB], None, []), ([9 * MB, *[MB] * 4, 65 * MB + 1], None, [6]), ([0, *[MB] * 2, 900 * MB], None, []),
        ([0, *[MB] * 3, 900 * MB], None, [5]), ([0, *[5_000 * MB] * 4, 5_100 * MB], None, []), ([0, *[5_000 * MB] * 4, 5_101 * MB], None, [6]),
        ([0, *[MB] * 4, 101 * MB], 50_000 * MB, []), ([0, *[MB] * 4, 102 * MB], 50_000 * MB, [6]),
        ([0, *[MB] * 4, 900 * MB, 800 * MB, MB, 700 * MB], None, [6, 7, 9]),
        ([0, 100 * MB, 200 * MB, 300 * MB, 400 * MB, 700 * MB], None, []),
    ],
)  # fmt: skip
def test_more_than_usual_is_beyond_the_noise_of_the_process_and_of_its_host(
    sizes: list[int], host: int | None, steps: list[int]
) -> None:
    memory = collector()
    memory.series[0].most = {step: (size, step, 1, "gen") for step, size in enumerate(sizes, 1)}
    if host is not None:
        memory.host_notes[memory.hosts[0]] = HostNote(0, host, host)
    assert [found.step for found in memory._excesses(0, {})] == steps


def test_steps_in_which_nothing_new_was_noted_are_one_with_the_step_before() -> None:
    memory = collector()
    moments = [(MB, 1), (MB, 2), (MB, 3), (MB, 4), (900 * MB, 5), (900 * MB, 5), (MB, 6), (900 * MB, 7)]
    memory.series[0].most = {step: (size, at, 1_000_000, "gen") for step, (size, at) in enumerate([(0, 0), *moments])}
    found = [(excess.step, excess.seconds, excess.bytes, excess.usual) for excess in memory._excesses(0, {})]
    assert found == [(5, 2.0, 899 * MB, MB), (8, 1.0, 899 * MB, MB)]


@pytest.mark.parametrize(
    ("index", "visible", "name"),
    [
        (1, "", "node0:1"),
        (1, "4, 6", "node0:6"),
        (2, "4,6", "node0:2"),
        (0, ",6", "node0:0"),
        (0, "GPU-a", "node0:GPU-a"),
    ],
)
def test_a_device_has_the_number_that_the_process_was_given(index: int, visible: str, name: str) -> None:
    process = collector().processes[0]
    assert device_home(process, ProcessDevice(index, visible)) == ("device", name, "index", name)
    assert device_home(process, ProcessDevice(index, visible, uuid="GPU-1")) == ("device", name, "uuid", "GPU-1")


@pytest.mark.parametrize(
    ("at", "doing"), [(-1, ""), (0, "gen"), (5, "update"), (9, "update"), (10, "gen"), (20, "gen"), (21, "")]
)
def test_what_goes_on_is_the_innermost_of_those_that_have_a_name(at: int, doing: str) -> None:
    rows = [(0, 20, "phase", "gen"), (0, 30, "phase", "step"), (5, 9, "work", "update"), (6, 7, "request", "generate")]
    spans = [KeptSpan(start, end, kind, name, None, 1, 0, 0) for start, end, kind, name in rows]
    assert _activity_at(spans, at) == doing


@pytest.mark.parametrize(
    ("used", "needed"),
    [([5, 9, 6], [3]), ([5, 9], []), ([9, 4, 5], [0]), ([5, 7, 9, 8], [1]), ([], [])],
)
def test_a_weight_sync_needs_what_it_has_beyond_its_start_and_end(used: list[int], needed: list[int]) -> None:
    memory = collector()
    device = memory.devices[0] = device_home(memory.processes[0], ProcessDevice(0))
    memory.curves[device].total = 100
    notes = [MemoryNote(10 + at, 1, 100 - size) for at, size in enumerate([50, *used, 60], -1)]
    sync = KeptSpan(10, 9 + len(used), "sync", "send", None, 1, 0, 0)
    memory._add_sync_changes({0: [sync]}, {0: notes})
    assert memory.changes["sync", "", "send"] == needed


@pytest.mark.parametrize(
    ("start", "end", "freed"),
    [(10, 30, [40]), (11, 30, [40]), (10, 31, []), (5, 20, [-20]), (20, 30, [40]), (10, None, []), (1, 9, [])],
)
def test_a_work_gives_back_what_it_reserved_until_its_end(start: int, end: int | None, freed: list[int]) -> None:
    memory = collector()
    notes = [MemoryNote(at, 1, 1, 1, reserved) for at, reserved in ((0, 90), (10, 30), (20, 50), (30, 10))]
    work = KeptSpan(start, end, "work", "update", None, 1, 0, 0)
    memory._add_freed_memory(0, [work], [*notes[:3], MemoryNote(25, 1), *notes[3:]], [])
    assert memory.changes["offload", "trainer", "update"] == freed


@pytest.mark.parametrize(("reserved", "unmapped", "held"), [(9, 0, 9), (9, 4, 5), (9, 9, 0), (9, 10, 0), (None, 0, 0)])
def test_a_process_holds_on_a_device_what_its_sleep_did_not_take(
    reserved: int | None, unmapped: int, held: int
) -> None:
    assert _Held(MemoryNote(0, 1, 1, 1, reserved), unmapped).on_device == held


def test_a_process_holds_memory_on_its_host_and_device_until_it_ends() -> None:
    memory = collector()
    memory.ends, memory.held = {0: 10}, {0: _Held(MemoryNote(0, 7, 1, 1, 5))}
    device = memory.devices[0] = device_home(memory.processes[0], ProcessDevice(0))
    other = device._replace(name="another")
    for place, held in ((memory.hosts[0], 7), (device, 5), (other, None), (memory.hosts[0]._replace(name="b"), None)):
        assert [*memory._holders(place, 10)] == ([] if held is None else [(0, held)])
        assert [*memory._holders(place, 11)] == []


@pytest.mark.parametrize(("processes", "listed"), [(64, 64), (65, 12)])
def test_a_peak_of_a_large_run_lists_its_twelve_largest_holders(processes: int, listed: int) -> None:
    memory = collector()
    memory.processes, memory.lane_of = [*memory.processes] * processes, [*range(processes)]
    host = memory.hosts[0]
    memory.curves[host].total = 9_999
    sizes = [(at, at + 1, at % 2 == 1) for at in range(processes - 1)]
    moment = _Moment(2_500_000, 5_000, [*sizes, (processes - 1, 0, True)])
    peak = memory._peak(host, 3, moment, {0: [KeptSpan(0, 3_000_000, "work", "update", None, 1, 0, 0)]})
    assert [held.lane for held in peak.holders] == [*range(processes - 2, -1, -1)][:listed]
    assert {held.asleep for held in peak.holders} == {False}
    assert (peak.holders[-1].doing, peak.phase) == ("update" if processes == 64 else "", "")
    assert (peak.of, peak.place, peak.step, peak.at, peak.used, peak.total) == ("host", "node0", 3, 2.5, 5_000, 9_999)
    assert peak.other == 5_000 - sum(range(processes))
    memory.driver = 0
    device = memory._peak(
        host._replace(of="device"), 3, moment._replace(used=1), {0: [KeptSpan(0, 9**9, "phase", "gen", None, 1, 0, 0)]}
    )
    assert (device.other, device.phase, {held.asleep for held in device.holders}) == (0, "gen", {False, True})


def test_growth_is_of_the_steps_behind_the_first_and_tells_when_nothing_is_left() -> None:
    memory = collector()
    memory.held = {0: _Held(MemoryNote(0, 1, 900 * MB, 1, 1))}
    steps: dict[int | None, int] = {1: 9_000 * MB, **{at: at * 50 * MB for at in range(2, 10)}, None: 0}
    memory.series[0].private = memory.series[0].allocated = memory.series[0].unused = steps
    memory.devices[0] = device_home(memory.processes[0], ProcessDevice(0))
    memory.host_notes[memory.hosts[0]] = HostNote(0, 499 * MB, 10**12)
    grown = [
        MemoryGrowth(of, "trainer, rank 0", 0, 100 * MB, 450 * MB, 50 * MB, 8, left)
        for of, left in (("device", 18), ("cached", 18), ("host", 9))
    ]
    assert [*memory._growth(0)] == grown
    memory.devices.clear()
    memory.host_notes.clear()
    assert [row.full_in for row in memory._growth(0)] == [None] * 3
