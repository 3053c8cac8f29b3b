"""Files that a run lacks are named by what the others show of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fixtures.timeline.small import MS, WALL
from fixtures.timeline.writer import Writer
from patcher.timeline import runs
from patcher.timeline.files import KeptSpan, paths
from patcher.timeline.join import join
from patcher.timeline.missing import Counterparts, _listed
from patcher.timeline.step_records import StepRecords

DRIVER, TRAINER, AGENT, OTHER_AGENT, REWARD = 10, 20, 40, 41, 50
SERVERS, ENGINES = (30, 31), (60, 61)


def written(folder: Path) -> None:
    """A run as verl's: two replicas, two agent loops, and a reward worker."""
    common: dict[str, Any] = {"run": "r", "started_ms": WALL // 1000}
    writers = {pid: Writer(folder, pid=pid, **common) for pid in (DRIVER, TRAINER, AGENT, OTHER_AGENT, REWARD)}
    for replica, (server, engine) in enumerate(zip(SERVERS, ENGINES, strict=True)):
        for pid in (server, engine):
            writers[pid] = Writer(folder, pid=pid, environ={"VERL_REPLICA_RANK": str(replica)}, **common)
    for step in range(1, 4):
        begin = step * 1_000 * MS
        writers[DRIVER].add("phase", "gen", begin, begin + 900 * MS)
        writers[DRIVER].add("call", "group_train", begin + 900 * MS, begin + 950 * MS)
        writers[DRIVER].add("step", "", begin + 990 * MS, begin + 990 * MS, amount=step)
        writers[TRAINER].add("work", "train", begin + 901 * MS, begin + 949 * MS)
        for number in range(8):
            agent, replica = writers[(AGENT, OTHER_AGENT)[number % 2]], number // 4
            trajectory, reward = agent.begin(), agent.begin()
            agent.add("request", "generate", begin + 10 * MS, begin + 700 * MS, parent=trajectory, amount=number)
            agent.add("phase", "compute_score", begin + 710 * MS, begin + 800 * MS, parent=reward)
            agent.add("reward", "compute_score", begin + 710 * MS, begin + 800 * MS, identity=reward, parent=trajectory)
            agent.add("trajectory", "", begin + 5 * MS, begin + 810 * MS, identity=trajectory)
            writers[SERVERS[replica]].add("serve", "generate", begin + 11 * MS, begin + 699 * MS, amount=number)
            writers[REWARD].add("reward", "compute_score", begin + 712 * MS, begin + 790 * MS)
        for engine in ENGINES:
            writers[engine].iterate(begin + 12 * MS, begin + 690 * MS, 4, 4)
    for writer in writers.values():
        writer.close((5_000 * MS, WALL + 5_000 * MS))


@pytest.mark.parametrize(("start", "counted"), [(9, False), (10, True), (19, True), (20, False)])
def test_requests_count_in_the_step_in_which_they_began(start: int, counted: bool) -> None:
    spans = [KeptSpan(start, 30, "request", "generate", 1, 1, 0, 0)]
    counterparts = Counterparts()
    counterparts.feed(StepRecords(10, 20, 0, spans, {}, ("agent",), (None,)))
    assert counterparts.counts["request"] == counted


@pytest.mark.parametrize(("served", "unmatched"), [(20, 0), (18, 0), (17, 3), (0, 20), (21, 0)])
def test_a_tenth_of_the_requests_may_have_been_cut_off(served: int, unmatched: int) -> None:
    counterparts = Counterparts()
    counterparts.counts.update(request=20, serve=served)
    assert counterparts.count_unmatched("request", "serve") == unmatched


@pytest.mark.parametrize(
    ("numbers", "text"), [([3, None, 1], "1, 3"), (range(8), "0, 1, 2, 3, 4, 5, 6, 7"), (range(9), "0, 1, 2, 3, 4, 5, 6, 7 …")]
)  # fmt: skip
def test_eight_numbers_are_listed(numbers: Iterable[int | None], text: str) -> None:
    assert _listed(numbers) == text


LACKING: dict[str, tuple[tuple[int, ...], list[str]]] = {
    "nothing": ((), []),
    "a server": (SERVERS[:1], ["no server of replicas 0"]),
    "all servers": (SERVERS, ["no server wrote"]),
    "an engine": (ENGINES[1:], ["no engine of replicas 1"]),
    "all engines": (ENGINES, ["no engine wrote"]),
    "a replica": ((SERVERS[0], ENGINES[0]), ["12 requests went to servers"]),
    "an agent loop": ((AGENT,), ["12 requests came from agent loops"]),
    "all agent loops": ((AGENT, OTHER_AGENT), ["no agent loop wrote"]),
    "the reward worker": ((REWARD,), ["no reward worker wrote"]),
    "the trainer": ((TRAINER,), ["no trainer wrote"]),
    "the driver": ((DRIVER,), ["the driver wrote no timeline file"]),
}


@pytest.mark.parametrize("name", LACKING)
def test_who_left_no_file_is_named(name: str, tmp_path: Path) -> None:
    pids, expected = LACKING[name]
    written(tmp_path)
    for path in paths(tmp_path):
        if any(f"_{pid}_" in path.name for pid in pids):
            path.unlink()
    run, processes = runs.survey(paths(tmp_path)).runs[0]
    found = join(run, processes).missing
    assert [text.startswith(begin) for text, begin in zip(found, expected, strict=True)] == [True] * len(expected)
