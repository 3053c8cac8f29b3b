from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fixtures.timeline.small import small
from fixtures.timeline.writer import Writer
from patcher.timeline import files, runs
from patcher.timeline.join import join


def survey(folder: Path) -> runs.Surveyed:
    return runs.survey(files.paths(folder))


def test_roles_replicas_and_ranks(tmp_path: Path) -> None:
    small(tmp_path)
    ((run, processes),) = survey(tmp_path).runs
    found = [(one.head.pid, one.role, one.replica, one.rank) for one in processes]
    assert found == [
        (10, "driver", None, None), (20, "trainer", None, 0), (21, "trainer", None, 1),
        (31, "engine", 0, None), (30, "server", 0, None), (40, "agent", None, None),
    ]  # fmt: skip
    assert (run.processes, run.packages) == (6, ("verl 0.9.1", "vllm 0.9.1"))


def test_where_each_rank_runs_by_itself_all_are_trainers_and_there_is_no_driver(
    tmp_path: Path,
) -> None:
    for rank in (0, 1):
        writer = Writer(tmp_path, pid=20 + rank, run="r", environ={"RANK": str(rank)}, started_ms=50)
        for number in (7, 8):
            begin = number * 100_000 + 2 * rank
            writer.add("work", "train", begin, begin + 90_000, amount=number)
            if rank == 0:
                writer.add("step", "", begin + 90_001, begin + 90_001, amount=number)
        writer.close((1_000_000, 1_000_000))
    ((run, processes),) = survey(tmp_path).runs
    assert [(one.roles, one.rank) for one in processes] == [(("trainer",), 0), (("trainer",), 1)]
    found = join(run, processes)
    assert [(step.step, step.seconds) for step in found.steps] == [(7, 0.090001), (8, 0.1)]
    assert [(use.role, use.lanes, use.busy_share > 0.8) for use in found.steps[1].roles] == [
        ("trainer", 2, True)
    ]  # fmt: skip
    assert (found.missing, found.notes) == ((), ())
    assert [(step.requests, step.tail, step.tail_seconds, step.sync_seconds) for step in found.steps] == [
        (0, None, 0, 0)
    ] * 2


@pytest.mark.parametrize(("first", "second", "count"), [("a", "b", 2), ("a", "a", 2), ("", "", 2)])
def test_runs_are_told_apart_by_their_name_and_by_their_time(
    first: str, second: str, count: int, tmp_path: Path
) -> None:
    small(tmp_path, run=first)
    small(tmp_path, run=second, after_ms=60_000)
    found = survey(tmp_path).runs
    assert [run.processes for run, _ in found] == [6] * count
    assert found[0][0].started < found[1][0].started


def test_two_runs_at_once_are_told_apart_by_their_name(tmp_path: Path) -> None:
    for name, pid in (("a", 1), ("b", 2)):
        writer = Writer(tmp_path, pid=pid, run=name)
        writer.add("work", "x", writer.now() - 10, writer.now())
        writer.close()
    assert [run.name for run, _ in survey(tmp_path).runs] == ["a", "b"]


def test_a_process_that_does_not_know_its_run_is_of_the_one_that_it_meets(tmp_path: Path) -> None:
    """Such as an engine's worker whose parent recorded nothing."""
    small(tmp_path)
    writer = Writer(tmp_path, pid=77, parent=76, started_ms=1_790_000_000_500)
    writer.iterate(50_000_000, 50_000_010, 1, 1)
    writer.close((50_600_000, 1_790_000_000_600_000))
    ((_, processes),) = survey(tmp_path).runs
    assert 77 in [one.head.pid for one in processes]


@pytest.mark.parametrize(("parents", "replicas"), [((51, 50), [0, 1, 1, 0]), ((1, 1), [0, 1, 0, 1])])
def test_an_engine_has_the_number_of_its_server(parents: tuple[int, int], replicas: list[int], tmp_path: Path) -> None:
    """Where nothing names the replicas, servers are numbered by their start, and engines that run below none."""
    for number, parent in enumerate(parents):
        server = Writer(tmp_path, pid=50 + number, run="r", started_ms=number + 1)
        server.add("serve", "generate", 10, 20, amount=7)
        engine = Writer(tmp_path, pid=60 + number, parent=parent, run="r", started_ms=number + 1)
        engine.iterate(10, 20, 1, 1)
        for writer in (server, engine):
            writer.close((1_000, 1_000_000))
    ((_, processes),) = survey(tmp_path).runs
    known = {one.head.pid: one.replica for one in processes}
    assert [known[pid] for pid in (50, 51, 60, 61)] == replicas


def test_a_single_engine_has_no_number_if_a_driver_iterates_too(tmp_path: Path) -> None:
    for pid in (1, 2):
        writer = Writer(tmp_path, pid=pid, run="r", started_ms=1)
        writer.iterate(10, 20, 1, 1)
        if pid == 1:
            writer.add("call", "generate", 5, 30)
        writer.close((1_000, 1_000_000))
    ((_, processes),) = survey(tmp_path).runs
    assert [(process.roles, process.replica) for process in processes] == [
        (("driver", "engine"), None),
        (("engine",), None),
    ]


def test_a_circle_of_parents_ends(tmp_path: Path) -> None:
    for pid, parent in ((1, 2), (2, 1), (3, 3)):
        writer = Writer(tmp_path, pid=pid, parent=parent, started_ms=5)
        writer.add("work", "x", 1, 2)
        writer.close((3, 5_003))
    assert len(survey(tmp_path).runs) == 1


def test_ranks_without_a_file_are_known(tmp_path: Path) -> None:
    small(tmp_path, world=4)
    ((_, processes),) = survey(tmp_path).runs
    assert runs.missing_ranks(processes) == {4: [2, 3]}


def test_folders_of_several_machines_are_found(tmp_path: Path) -> None:
    small(tmp_path / "node0")
    small(tmp_path / "node1")
    assert len(files.paths(tmp_path)) == 12


def block(folder: Path, pid: int, started_s: int, *, kind: str = "work", host: str = "a", parent: int = 7) -> None:
    """A process of the run `r` that has written once, an open span, and goes on."""
    writer = Writer(folder, host, boot=f"boot {host}", pid=pid, parent=parent, run="r", started_ms=started_s * 1000)
    writer.add(kind, "init_model", started_s * 1_000_000 - 1, None)
    writer.flush((started_s * 1_000_000, started_s * 1_000_000))


def lived(start_s: float, end_s: float, role: str = "engine", **more: Any) -> runs.Process:
    """A process from ``start_s`` to ``end_s``, in seconds since 1970."""
    head = files.ProcessFile(
        path=Path("x"), started=round(start_s * 1000), package="", begin=0, first=None, last=(0, round(end_s * 1e6)),
        kinds=frozenset(), rank=None, ended=True, cut=False, environ=more.pop("environ", {}),
    )  # fmt: skip
    return runs.Process((head,), (role,), **{"replica": None, "rank": None, **more})


@pytest.mark.parametrize(
    ("other", "overlaps"), [((0, 4), False), ((0, 5), True), ((6, 7), True), ((9, 12), True), ((9.5, 12), False), ((0, 12), True)]
)  # fmt: skip
def test_lifetimes_overlap_where_one_begins_before_the_other_ends(other: tuple[float, float], overlaps: bool) -> None:
    assert runs._lifetimes_overlap(lived(5, 9), lived(*other)) is overlaps
    assert runs._lifetimes_overlap(lived(*other), lived(5, 9)) is overlaps


@pytest.mark.parametrize(
    ("boots", "sizes"),
    [("xyy", [1, 2]), ("xyx", [2, 1]), ("xyz", [1, 1, 1]), ("xxx", [1, 1, 1]), ("xz", [2]), ("z", [1])],
)
def test_a_process_without_a_run_joins_the_only_one_that_it_meets_or_that_of_its_machine(
    boots: str, sizes: list[int]
) -> None:
    """The last process has no run; each of the others is one, and two more have ended before."""
    processes = []
    for at, boot in enumerate(boots):
        process = lived(5, 9)
        head = msgspec.structs.replace(process.head, boot=boot, run="" if at == len(boots) - 1 else f"run {at}")
        processes.append(replace(process, parts=(head,), run=head.run))
    ended = replace(lived(0, 4), run="earlier")
    assert [len(run) for run in runs._group_into_runs([*processes, ended]) if ended not in run] == sizes


def test_a_process_ended_if_it_says_so_or_was_replaced() -> None:
    def one(last_us: int, begin: int, ended: bool = False, **more: Any) -> runs.Process:
        process = lived(0, 1, "trainer", **{"rank": 3, **more})
        head = msgspec.structs.replace(process.head, last=(last_us, 0), begin=begin, ended=ended, pid=begin)
        return replace(process, parts=(head,))

    assert runs.end_times([one(50, 1), one(90, 51)]) == {0: 50}
    assert runs.end_times([one(90, 51), one(50, 1)]) == {1: 50}
    assert runs.end_times([one(50, 1), one(90, 50)]) == {}
    assert runs.end_times([one(50, 1), one(90, 51, rank=2)]) == {}
    assert runs.end_times([one(50, 1, rank=None), one(90, 51, rank=None)]) == {}
    assert runs.end_times([one(50, 1, rank=None, replica=0), one(90, 51, rank=None, replica=0)]) == {0: 50}
    assert runs.end_times([one(50, 1, ended=True), one(90, 2)]) == {0: 50}
    assert runs.end_times([one(0, 1), one(90, 51)]) == {}


def test_the_lanes_of_a_role_are_in_the_order_of_replica_rank_and_start() -> None:
    places = [(1, 0, 1), (0, 1, 1), (None, 0, 2), (0, 0, 1), (0, None, 3), (None, 1, 0)]
    ordered = runs._in_lane_order(lived(start, 9, replica=replica, rank=rank) for replica, rank, start in places)
    assert [(one.replica, one.rank, one.wall[0] // 10**6) for one in ordered] == [
        (0, 0, 1), (None, 0, 2), (0, None, 3), (None, 1, 0), (0, 1, 1), (1, 0, 1)
    ]  # fmt: skip


def test_of_a_very_large_world_the_first_ranks_are_looked_at() -> None:
    trainer = lived(0, 9, "trainer", rank=3, environ={"WORLD_SIZE": "70000"})
    assert runs.missing_ranks([trainer]) == {70_000: [0, 1, 2, *range(4, 65_536)]}
    assert runs.missing_ranks([lived(0, 9, "trainer", environ={"WORLD_SIZE": "2"})]) == {}


def test_the_rank_that_a_process_reported_is_better_than_that_of_its_environment(tmp_path: Path) -> None:
    for pid, ranks in ((1, []), (2, [4]), (3, [4, 0])):
        writer = Writer(tmp_path, pid=pid, run="r", started_ms=1, environ={"RANK": "7"})
        writer.add("work", "x", 1, 2)
        for rank in ranks:
            writer.line({"at": [5, 5], "who": {"rank": rank}})
        writer.close((10, 10_000))
    ((_, processes),) = survey(tmp_path).runs
    assert {process.head.pid: process.rank for process in processes} == {1: 7, 2: 4, 3: 0}


STARTING: dict[str, tuple[tuple[dict[str, Any], ...], list[int]]] = {
    "below one raylet": (({"kind": "call"}, {}), [2]),
    "below raylets of two clusters": (({"kind": "call"}, {"parent": 8}), [1, 1]),
    "adopted orphans": (({"kind": "call", "parent": 1}, {"parent": 1}), [1, 1]),
    "a pid that was given anew": (({"kind": "call", "pid": 3}, {"pid": 3}), [1, 1]),
    "the first worker on another machine": (({"kind": "call"}, {"host": "b"}), [2]),
    "two drivers on two machines": (({"kind": "call"}, {"kind": "call", "host": "b"}), [1, 1]),
    "a run that was started anew": (({"kind": "call"}, {"kind": "call", "parent": 8}, {"parent": 8}), [1, 2]),
}


@pytest.mark.parametrize("name", STARTING)
def test_processes_of_a_run_that_starts_are_silent_for_minutes(name: str, tmp_path: Path) -> None:
    groups, sizes = STARTING[name]
    for at, words in enumerate(groups):
        block(tmp_path, **{"pid": 20 + at, "started_s": 1_000 + 100 * at, **words})
    assert [len(processes) for _, processes in survey(tmp_path).runs] == sizes


def test_a_name_that_is_also_a_kind_makes_no_role(tmp_path: Path) -> None:
    """verl's driver has phases that are called `reward` and `step`."""
    writer = Writer(tmp_path, pid=1)
    for at, name in enumerate(("reward", "step", 'a "work"', "\u00e9")):
        writer.add("phase", name, at, at + 1)
    writer.add("work", "\u00e9", 9, 10)
    writer.close((20, 20))
    ((_, (process,)),) = survey(tmp_path).runs
    assert process.head.kinds == {"phase", "work"}


@pytest.mark.parametrize(("worker", "roles"), [(True, ("agent",)), (False, ("agent", "reward"))])
def test_an_agent_loop_that_waits_for_reward_workers_is_none(
    worker: bool, roles: tuple[str, ...], tmp_path: Path
) -> None:
    agent = Writer(tmp_path, pid=1, run="r", started_ms=1)
    agent.add("trajectory", "", 1, 9)
    agent.add("reward", "compute_score", 2, 8)
    reward = Writer(tmp_path, pid=2, run="r", started_ms=1)
    reward.add("reward" if worker else "sleep", "compute_score", 3, 7)
    for writer in (agent, reward):
        writer.close((20, 20_000))
    ((_, processes),) = survey(tmp_path).runs
    assert [process.roles for process in processes if process.head.pid == 1] == [roles]


def test_what_the_rights_hide_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path / "node0")
    hidden = tmp_path / "node1" / files.FOLDER
    hidden.mkdir(parents=True)
    listed = Path.iterdir

    def iterdir(path: Path) -> object:
        if path == hidden:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    found = survey(tmp_path)
    assert found.unread == (runs.Unread(hidden, "Permission denied"),)
    assert len(found.runs) == 1


def test_a_file_that_cannot_be_read_is_named_with_the_words_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def survey_file(path: Path, progress: object) -> None:
        raise OSError("no words") if path.name == "a" else OSError(5, "Input/output error")

    monkeypatch.setattr(files, "survey", survey_file)
    found = runs.survey([tmp_path / "a", tmp_path / "b"])
    assert [unread.why for unread in found.unread] == ["no words", "Input/output error"]


@pytest.mark.parametrize(("size", "named"), [(0, False), (200, False), (201, True)])
def test_a_file_that_is_no_timeline_is_named_unless_its_header_may_come(size: int, named: bool, tmp_path: Path) -> None:
    small(tmp_path)
    path = tmp_path / "timeline" / "node0_99_5.jsonl.gz"
    path.write_bytes(b"\x1f\x8b" + b"x" * (size - 2) if size else b"")
    found = survey(tmp_path)
    assert found.unread == ((runs.Unread(path),) if named else ())
    assert [run.processes for run, _ in found.runs] == [6]


ROLES: dict[tuple[tuple[str, ...], str], tuple[str, ...]] = {
    (("call", "step", "phase"), ""): ("driver",),
    (("call", "work", "step"), ""): ("driver", "trainer"),
    (("work", "step"), ""): ("trainer",),
    (("step",), ""): ("driver",),
    (("phase",), "x"): ("other",),
    (("route",), ""): ("balancer",),
    (("batch", "trajectory"), ""): ("agent",),
    (("work", "phase"), "rollout_standalone_0"): ("server",),
    (("work", "phase"), "actor_0"): ("trainer",),
    (("phase",), "rollout_colocate_0"): ("other",),
}


@pytest.mark.parametrize(("kinds", "group"), ROLES)
def test_kinds_of_spans_make_roles(kinds: tuple[str, ...], group: str, tmp_path: Path) -> None:
    writer = Writer(tmp_path, pid=1, run="r", started_ms=1, environ={"WG_PREFIX": group} if group else {})
    for at, kind in enumerate(kinds):
        writer.add(kind, "x", at, at + 1)
    writer.close((20, 20_000))
    ((_, (process,)),) = survey(tmp_path).runs
    assert process.roles == ROLES[kinds, group]
