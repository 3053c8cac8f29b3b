"""Lanes: what a page shows of each process, and what it leaves out of a long run."""

from __future__ import annotations

from pathlib import Path

import pytest

from patcher.timeline import lanes
from patcher.timeline.files import IterationColumns, KeptSpan, ProcessFile, Reader
from patcher.timeline.lanes import LaneBuilder, RunLanes
from patcher.timeline.model import IterationRun, LaneSpan
from patcher.timeline.runs import Process

MS = 1_000


def process(*roles: str, rank: int | None = None) -> Process:
    head = ProcessFile(
        path=Path("x"), started=0, begin=0, first=None, last=None, kinds=frozenset(), rank=rank, ended=True, cut=False,
        package="verl 0.9.1", host="node7", pid=11, command="work",
    )  # fmt: skip
    return Process((head,), roles, 3, rank)


def columns(*rows: tuple[int, int, int, int]) -> IterationColumns:
    """Return iterations of (start and end in milliseconds, requests, tokens)."""
    iterations = IterationColumns()
    for start, end, requests, tokens in rows:
        iterations.extend([start * MS], [end * MS], [requests], [tokens])
    return iterations


def span(start: int, end: int | None, kind: str = "unit", name: str = "x", number: int = 1) -> KeptSpan:
    return KeptSpan(start * MS, None if end is None else end * MS, kind, name, None, number, 0, 0)


RUNS = {
    "head to head": ([(0, 10, 4, 40), (10, 20, 4, 4), (20, 30, 6, 6)], [(0, 30, 3, 2, 6)]),
    "20 ms apart": ([(0, 10, 4, 4), (30, 40, 3, 3)], [(0, 40, 2, 2, 4)]),
    "21 ms apart": ([(0, 10, 4, 4), (31, 40, 3, 9)], [(0, 10, 1, 1, 4), (31, 40, 1, 0, 3)]),
    "apart, then head to head": (
        [(0, 10, 1, 1), (40, 50, 2, 2), (50, 60, 3, 3)],
        [(0, 10, 1, 1, 1), (40, 60, 2, 2, 3)],
    ),
    "one within the other": ([(0, 50, 1, 1), (5, 10, 1, 1), (60, 70, 1, 1)], [(0, 70, 3, 3, 1)]),
    "one that ends behind what is taken": ([(0, 10, 1, 1), (95, 101, 1, 1)], [(0, 10, 1, 1, 1)]),
    "one that ends with it": ([(0, 10, 1, 1), (95, 100, 1, 1)], [(0, 10, 1, 1, 1), (95, 100, 1, 1, 1)]),
}


@pytest.mark.parametrize("case", RUNS)
def test_iterations_head_to_head_are_one_run(case: str) -> None:
    rows, expected = RUNS[case]
    builder = LaneBuilder(process("engine"), "engine", 1)
    builder.add_iterations(columns(*rows), 100 * MS)
    assert [(run.start // MS, run.end // MS, *run[2:]) for run in builder.runs] == expected
    lane = builder.build(0)
    assert lane.iterations[0] == IterationRun(expected[0][0] / 1e3, expected[0][1] / 1e3, *expected[0][2:])


def test_of_too_many_runs_those_with_the_smallest_gaps_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MOST", 12)
    monkeypatch.setattr(lanes, "LEAST", 1)
    builder = LaneBuilder(process("engine"), "engine", 4)
    rows = [(0, 10), (40, 50), (80, 90), (300, 310), (420, 430)]
    builder.add_iterations(columns(*[(start, end, 1, 1) for start, end in rows[:3]]), 1_000 * MS)
    assert len(builder.runs) == 3
    builder.add_iterations(columns(*[(start, end, 1, 1) for start, end in rows[3:]]), 1_000 * MS)
    assert [(run.start // MS, run.end // MS, run.iterations) for run in builder.runs] == [
        (0, 90, 3), (300, 310, 1), (420, 430, 1)
    ]  # fmt: skip


def test_of_too_many_spans_the_shortest_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MOST", 6)
    monkeypatch.setattr(lanes, "LEAST", 3)
    builder = LaneBuilder(process("trainer", rank=1), "trainer", 9)
    builder.add([span(at * 10, at * 10 + length) for at, length in enumerate((5, 1, 4))])
    builder.add([span(9, 10, "step")])
    builder.add([span(100, 109), span(200, 201), span(300, 306)])
    assert (len(builder.spans), builder.left_out) == (6, 0)
    builder.add([span(400, None)])
    assert (len(builder.spans), builder.left_out) == (3, 4)
    builder.add([span(500, 507)])
    lane = builder.build(2)
    assert [(part.start, part.end) for part in lane.spans] == [(0.1, 0.109), (0.4, None), (0.5, 0.507)]
    assert (lane.left_out, lane.seen, lane.number, lane.replica, lane.rank) == (5, (0.1, 0.507), 2, 3, 1)
    assert (lane.role, lane.host, lane.pid, lane.command, lane.ended) == ("trainer", "node7", 11, "work", True)


def test_an_outer_span_comes_before_those_that_begin_with_it() -> None:
    builder = LaneBuilder(process("trainer"), "trainer", 1)
    builder.add([span(0, 5, name="inner"), span(0, 9, name="outer"), span(2, 3, name="last")])
    assert builder.build(0).spans[0] == LaneSpan(0.0, 0.009, "unit", "outer")
    assert [part.name for part in builder.build(0).spans] == ["outer", "inner", "last"]
    assert LaneBuilder(process("other"), "other", 1).build(0).seen == (0.0, 0.0)


def test_an_engine_in_the_process_of_a_trainer_has_a_lane_of_its_own() -> None:
    run = RunLanes([process("trainer"), process("engine", "trainer"), process("engine"), process("trainer", "engine")])
    assert run.places == [(0, "trainer"), (1, "engine"), (1, "trainer"), (2, "engine"), (3, "trainer")]
    assert [run.index(1, role) for role in ("engine", "trainer", "driver", "")] == [1, 2, 1, 1]
    assert [run.index(process, "trainer") for process in (0, 2, 3)] == [0, 3, 4]
    reader = Reader((), 1)
    reader.iterations = columns((0, 10, 2, 2), (90, 110, 2, 2))
    reader.spans = [span(0, 50), span(60, 120)]
    run.take_from(1, reader, 100 * MS)
    assert ([end // MS for end in reader.iterations.end], [left.start // MS for left in reader.spans]) == ([110], [60])
    built = run.built()
    assert [(lane.role, lane.number) for lane in built] == [
        ("trainer", 0), ("engine", 0), ("trainer", 1), ("engine", 1), ("trainer", 2)
    ]  # fmt: skip
    assert [(len(lane.spans), len(lane.iterations)) for lane in built[1:3]] == [(0, 1), (1, 0)]
