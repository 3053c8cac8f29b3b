"""Memory planted in simulated runs: who is named for it, with its step, seconds and bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fixtures.timeline.simulation import joined
from fixtures.timeline.small import MS, STEP, WALL, ZERO
from fixtures.timeline.writer import Writer
from patcher.timeline.model import MemoryPeak, RunTimeline

MIB, GIB = 1 << 20, 1 << 30
STEPS = 10
HOST, DEVICE, CONTEXTS = 64_000, 80 * 1024, 2 * 1024
PARTS = ((100, 40, 4), (300, 2, 4), (500, 2, 30), (700, 2, 4), (900, 40, 4))
"""Milliseconds in a step → GiB of a device that the engine and each trainer have from then on: the engine sleeps."""
WORKERS: Mapping[str, tuple[str, str, int]] = {
    "trainer 0": ("work", "update_actor", 2_000), "trainer 1": ("work", "update_actor", 2_000),
    "engine": ("work", "execute", 3_000), "agent": ("trajectory", "agent", 800), "reward": ("reward", "score", 600),
}  # fmt: skip
"""Name of a process → kind and name of its span in the middle of each step, and its usual private memory in MiB."""

DEVICES = {"trainer 0": 0, "engine": 0, "trainer 1": 1}
NAMED = {"trainer 0": "trainer, rank 0", "trainer 1": "trainer, rank 1", "engine": "engine, replica 0",
         "agent": "agent loop", "reward": "reward"}  # fmt: skip


class Extra(NamedTuple):
    """Memory in MiB beyond the usual: of a process on the host, in shared pages, and on the device."""

    private: int = 0
    shared: int = 0
    allocated: int = 0
    reserved: int = 0


@dataclass
class Plant:
    """What is planted: ``extra`` by process, step and part of the step; on the host and a device by step in MiB.

    In step ``restarts`` trainer 1 is replaced by a new process; ``killed``: it could not say that it ended.
    """

    extra: Callable[[str, int, int], Extra] = lambda _who, _step, _part: Extra()
    on_host: Callable[[int], int] = lambda _step: 0
    on_device: Callable[[int], int] = lambda _step: 0
    restarts: int = 0
    killed: bool = False


def _writers(folder: Path, who: str, pid: int, started: int = 0) -> Writer:
    environ = {"engine": {"VERL_REPLICA_RANK": "0"}, "trainer 0": {"RANK": "0", "WORLD_SIZE": "2"},
               "trainer 1": {"RANK": "1", "WORLD_SIZE": "2"}}.get(who, {})  # fmt: skip
    package = "vllm" if who == "engine" else "verl"
    started_ms = (WALL + started) // 1000
    writer = Writer(folder, pid=pid, run="r", started_ms=started_ms, environ=environ, package=package)
    if who in DEVICES:
        writer.more["device"] = {"index": DEVICES[who], "visible": "", "name": "H100", "total": DEVICE}
    return writer


def play(folder: Path, plant: Plant) -> RunTimeline:
    """Write a run of ten steps, and return its timeline."""
    driver = _writers(folder, "driver", 10)
    writers = {who: _writers(folder, who, 20 + number) for number, who in enumerate(WORKERS)}
    for step in range(1, STEPS + 1):
        begin = ZERO + (step - 1) * STEP
        if step == plant.restarts:
            before = writers["trainer 1"]
            before.file.close() if plant.killed else before.close((begin, WALL + begin - ZERO))
            writers["trainer 1"] = _writers(folder, "trainer 1", 99, begin - ZERO)
        for part in range(len(PARTS)):
            _note(writers, plant, step, part)
        for who, writer in writers.items():
            kind, name, _ = WORKERS[who]
            if who != "engine":
                writer.add(kind, name, begin + 400 * MS, begin + 690 * MS)
        writers["engine"].iterate(begin + 100 * MS, begin + 280 * MS, 1, 1)
        writers["engine"].add("sleep", "sleep", begin + 290 * MS, begin + 299 * MS)
        writers["engine"].add("sleep", "wake_up", begin + 810 * MS, begin + 820 * MS)
        driver.add("phase", "gen", begin, begin + 390 * MS)
        driver.add("phase", "update_actor", begin + 390 * MS, begin + 810 * MS)
        driver.add("phase", "step", begin, begin + STEP)
        driver.add("step", "", begin + STEP, begin + STEP, amount=step)
        privates = sum(
            private + plant.extra(who, step, len(PARTS) - 1).private for who, (_, _, private) in WORKERS.items()
        )
        driver.more["host"] = [HOST - privates - plant.on_host(step), HOST]
        for writer in (driver, *writers.values()):
            writer.flush((begin + STEP + MS, WALL + begin + STEP - ZERO))
    for writer in (driver, *writers.values()):
        writer.close((ZERO + STEPS * STEP + 2 * MS, WALL + STEPS * STEP))
    return joined(folder)


def _note(writers: Mapping[str, Writer], plant: Plant, step: int, part: int) -> None:
    """Note the memory of all processes in a part of a step."""
    extra = {who: plant.extra(who, step, part) for who in WORKERS}
    milliseconds, engine, trainer = PARTS[part]
    at = ZERO + (step - 1) * STEP + milliseconds * MS
    allocated = {who: (engine if who == "engine" else trainer) * 1024 for who in DEVICES}
    reserved = {who: size + extra[who].allocated + extra[who].reserved for who, size in allocated.items()}
    for who, writer in writers.items():
        private, shared = WORKERS[who][2] + extra[who].private, 10 + extra[who].shared
        row = [at, private + shared, shared]
        if who in DEVICES:
            of_device = sum(reserved[other] for other, device in DEVICES.items() if device == DEVICES[who])
            free = DEVICE - CONTEXTS - of_device - (plant.on_device(step) if DEVICES[who] == 0 else 0)
            row += [free, allocated[who] + extra[who].allocated, reserved[who], 0]
        writer.memory.append(row)


def told(run: RunTimeline) -> set[tuple[object, ...]]:
    """Return the growth and the excesses of a run, each with process, step or place, bytes in MiB, and seconds."""
    growth = {("growth", row.of, row.who, round(row.per_step / MIB)) for row in run.memory.growth}
    return growth | {
        ("excess", row.who, row.step, round(row.bytes / MIB), round(row.seconds, 1)) for row in run.memory.excesses
    }


def peaks(run: RunTimeline) -> dict[str, MemoryPeak]:
    """Return place → its highest peak."""
    return {peak.place: peak for peak in run.memory.highest()}


def leak(who: str, private: int = 100, **of_device: int) -> Callable[[str, int, int], Extra]:
    """Plant so many MiB more in each step."""
    return lambda name, step, _part: (
        Extra(private=private * step, **{key: size * step for key, size in of_device.items()})
        if name == who
        else Extra()
    )


def hog(who: str, number: int, private: int = 1_000) -> Callable[[str, int, int], Extra]:
    """Plant so many MiB in the middle of one step, for the 200 ms until the next note."""
    return lambda name, step, part: Extra(private * (name == who and step == number and part == 2))


def both(*plants: Callable[[str, int, int], Extra]) -> Callable[[str, int, int], Extra]:
    """Plant several at once."""
    return lambda *of: Extra(*map(sum, zip(*(plant(*of) for plant in plants), strict=True)))


def noisy(who: str) -> Callable[[str, int, int], Extra]:
    """Plant memory that follows the lengths of answers, which differ from step to step."""
    dice = random.Random(who)
    sizes = [dice.randint(0, 60) for _ in range(STEPS + 1)]
    return lambda name, step, part: Extra(sizes[step] * (name == who and part == 2))


PLANTS: dict[str, tuple[Plant, set[tuple[object, ...]]]] = {
    **{f"a leak in {who}": (Plant(leak(who)), {("growth", "host", NAMED[who], 100)}) for who in WORKERS},
    **{
        f"a hog in {who}": (Plant(hog(who, step)), {("excess", NAMED[who], step, 1_000, 0.2)})
        for step, who in enumerate(WORKERS, 3)
    },
    "a leak and a hog": (
        Plant(both(leak("agent", 40), hog("reward", 6, 700))),
        {("growth", "host", "agent loop", 40), ("excess", "reward", 6, 700, 0.2)},
    ),
    "two hogs in one process": (
        Plant(both(hog("trainer 0", 4), hog("trainer 0", 8, 500))),
        {("excess", "trainer, rank 0", 4, 1_000, 0.2), ("excess", "trainer, rank 0", 8, 500, 0.2)},
    ),
    "a leak on the device of a trainer": (
        Plant(leak("trainer 1", 0, allocated=500)), {("growth", "device", "trainer, rank 1", 500)},
    ),
    "a leak on the device of an engine": (
        Plant(leak("engine", 0, allocated=900)), {("growth", "device", "engine, replica 0", 900)},
    ),
    "answers that get longer": (Plant(leak("agent", 25)), {("growth", "host", "agent loop", 25)}),
    "answers of different lengths": (Plant(noisy("agent")), set()),
    "mapped files": (Plant(leak("trainer 0", 0, shared=300)), set()),
    "nothing": (Plant(), set()),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANTS)
def test_leaks_and_hogs_are_named_and_nothing_else(case: str, tmp_path: Path) -> None:
    plant, expected = PLANTS[case]
    assert told(play(tmp_path, plant)) == expected


def _holders(peak: MemoryPeak) -> dict[str, int]:
    return {holder.who: holder.bytes // GIB for holder in peak.holders}


def test_an_engine_that_keeps_memory_asleep_is_named(tmp_path: Path) -> None:
    extra: Any = lambda who, _step, part: Extra(reserved=25 * 1024 * (who == "engine" and part in (1, 2, 3)))  # noqa: E731
    peak = peaks(play(tmp_path, Plant(extra)))["node0:0"]
    assert _holders(peak) == {"trainer, rank 0": 30, "engine, replica 0": 27}
    assert [holder.asleep for holder in peak.holders] == [False, True]


@pytest.mark.parametrize(
    ("plant", "place", "step", "other"),
    [
        (Plant(on_device=lambda step: 20 * 1024 * (step == 5)), "node0:0", 5, 22 * GIB),
        (Plant(on_host=lambda step: 20_000 * (step == 7)), "node0", 8, 20_000 * MIB),
    ],
    ids=["another program on a device", "an object store in /dev/shm"],
)
def test_memory_of_no_recorded_process_is_told_apart(
    plant: Plant, place: str, step: int, other: int, tmp_path: Path
) -> None:
    run = play(tmp_path, plant)
    peak = peaks(run)[place]
    assert (peak.step, peak.other) == (step, other)
    assert told(run) == set()


def test_a_peak_of_one_step_is_told_for_its_device(tmp_path: Path) -> None:
    def extra(who: str, step: int, part: int) -> Extra:
        return Extra(allocated=40 * 1024 * (who == "trainer 1" and step == 7 and part == 2))

    peak = peaks(play(tmp_path, Plant(extra)))["node0:1"]
    assert (peak.step, peak.phase, _holders(peak)) == (7, "update_actor", {"trainer, rank 1": 70})


def test_fragments_count_for_who_reserved_them(tmp_path: Path) -> None:
    run = play(tmp_path, Plant(leak("trainer 1", 0, reserved=2 * 1024)))
    assert _holders(peaks(run)["node0:1"]) == {"trainer, rank 1": 50}
    assert told(run) == {("growth", "cached", "trainer, rank 1", 2 * 1024)}


@pytest.mark.parametrize("killed", [False, True])
def test_a_process_that_was_replaced_holds_nothing(killed: bool, tmp_path: Path) -> None:
    run = play(tmp_path, Plant(restarts=6, killed=killed))
    after = [peak for peak in run.memory.peaks if peak.step == 8]
    assert len(after) == 3
    for peak in after:
        names = [holder.who for holder in peak.holders]
        assert len({*names}) == len(names), peak
