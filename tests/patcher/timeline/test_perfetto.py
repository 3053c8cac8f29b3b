from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.timeline import made
from patcher.timeline import perfetto
from patcher.timeline.model import IterationRun, Lane, LaneSpan, RunTimeline
from tests.alarms import at_most
from tests.matrix import MATRIX, examples
from tests.pages import HOSTILE


def events(found: RunTimeline) -> list[dict[str, Any]]:
    document = json.loads("".join(perfetto.trace(found)))
    return list(document["traceEvents"])


def test_every_event_is_one_that_perfetto_reads() -> None:
    """As in the format of trace events: a phase, whole numbers, and the names of processes and threads."""
    found = events(made.run())
    assert {one["ph"] for one in found} == {"M", "X", "C"}
    for one in found:
        assert isinstance(one["pid"], int)
        assert isinstance(one["tid"], int)
        assert one["ph"] == "M" or isinstance(one["ts"], int)
        assert one["ph"] != "X" or (one["name"] and one["dur"] >= 0)
    named = {(one["pid"], one["tid"]) for one in found if one["name"] == "thread_name"}
    assert {(one["pid"], one["tid"]) for one in found if one["ph"] == "X"} <= named


def test_a_process_for_each_lane_with_all_that_it_did() -> None:
    run = made.run()
    found = events(run)
    names = {one["pid"]: one["args"]["name"] for one in found if one["name"] == "process_name"}
    assert len(names) == len(run.lanes) + 1
    assert names[2] == "driver (node0, 1000)"
    assert "trainer, rank 1 (node0, 1008)" in names.values()
    for at, lane in enumerate(run.lanes):
        slices = [one for one in found if one["ph"] == "X" and one["pid"] == at + 2]
        assert len(slices) == len(lane.spans) + len(lane.iterations)


@pytest.mark.parametrize("prompts", [2, 40])
def test_slices_of_a_thread_lie_in_each_other_or_apart(prompts: int) -> None:
    """Else Perfetto drops some of them."""
    threads = defaultdict[tuple[int, int], list[tuple[int, int]]](list)
    for one in events(made.run(steps=2, prompts=prompts)):
        if one["ph"] == "X":
            threads[one["pid"], one["tid"]].append((one["ts"], -one["dur"]))
    for slices in threads.values():
        around: list[int] = []
        for start, length in sorted(slices):
            while around and around[-1] <= start:
                around.pop()
            assert not around or start - length <= around[-1]
            around.append(start - length)


def test_the_critical_path_and_the_steps_are_tracks_of_their_own() -> None:
    run = made.run()
    whole = [one for one in events(run) if one["pid"] == perfetto.RUN and one["ph"] == "X"]
    path = [one for one in whole if one["tid"] == perfetto.PATH]
    assert sum(one["dur"] for one in path) == pytest.approx(
        sum(step.seconds for step in run.steps) * 1e6, abs=len(path)
    )
    steps = [one for one in whole if one["tid"] == perfetto.STEPS]
    assert [one["name"] for one in steps] == [f"step {step.step}" for step in run.steps]
    assert steps[1]["args"]["limited by"] == "engine, replica 0: micro-batch in gen"
    assert steps[1]["args"]["excess seconds"] == 1.5
    assert {("why" in one["args"], "limited by" in one["args"]) for one in steps[:3]} == {(False, False), (False, True)}
    assert steps[4]["args"] == {
        "verdict": "not known",
        "tail seconds": run.steps[4].tail_seconds,
        "why": run.steps[4].why,
    }
    segment = run.steps[0].critical_path[0]
    assert (path[0]["name"], path[0]["cat"]) == ("driver: gen", segment.kind)
    assert path[0]["args"] == {"phase": "gen", "step": 1}


def test_windows_that_were_recorded_and_those_to_record_are_tracks_of_their_own() -> None:
    run = made.run(steps=2)
    run = dataclasses.replace(run, windows=run.windows[:1])
    whole = [one for one in events(run) if one["pid"] == perfetto.RUN and one["ph"] == "X" and one["cat"] == "window"]
    (decode,), (recorded,) = run.windows, run.recorded
    windows = [(one["tid"], one["name"], one["ts"], one["dur"], one["args"]) for one in whole]
    assert windows == [
        (perfetto.RECORDED, recorded.title, 1_000_000, 400_000, {"trace": str(recorded.trace)}),
        (perfetto.PROPOSED, "typical decode", round(decode.start * 1e6), 200_000, {"command": decode.command}),
    ]


def test_threads_and_slices_have_their_numbers() -> None:
    """Spans that nest are one thread; requests at once are a thread each, behind that of the iterations."""
    spans = (
        LaneSpan(1.0, 4.0, "serve", "generate"), LaneSpan(1.5, None, "serve", ""), LaneSpan(0.5, 0.75, "work", "sync"),
        LaneSpan(0.5, 0.625, "unit", "part"), LaneSpan(4.0, 4.5, "serve", "again"),
    )  # fmt: skip
    lane = Lane("engine", 0, 1, None, "a", 7, "c", spans, (IterationRun(1, 3, 60, 59, 8),), seen=(0, 5))
    found = [one for one in events(dataclasses.replace(made.empty(), lanes=(lane,))) if one["pid"] == 2]
    threads = {one["tid"]: one["args"] for one in found if one["name"] == "thread_name"}
    assert threads == {1: {"name": "iterations"}, 2: {"name": "spans"}, 3: {"name": "serve"}, 4: {"name": "serve 2"}}
    orders = [(one["tid"], one["args"]["sort_index"]) for one in found if one["name"].endswith("sort_index")]
    assert sorted(orders) == [(0, 2), (1, 1), (2, 2), (3, 3), (4, 4)]
    slices = [(one["tid"], one["name"], one["cat"], one["ts"], one["dur"]) for one in found if one["ph"] == "X"]
    assert sorted(slices) == [
        (1, "iterations", "iteration", 1_000_000, 2_000_000), (2, "part", "unit", 500_000, 125_000),
        (2, "sync", "work", 500_000, 250_000), (3, "again", "serve", 4_000_000, 500_000),
        (3, "generate", "serve", 1_000_000, 3_000_000), (4, "serve", "serve", 1_500_000, 3_500_000),
    ]  # fmt: skip
    (run,) = (one["args"] for one in found if one["name"] == "iterations" and one["ph"] == "X")
    assert run == {"iterations": 60, "only decode": 59, "most requests": 8}


def test_requests_alive_are_a_counter() -> None:
    run = made.run()
    counted = [one["args"]["requests"] for one in events(run) if one["ph"] == "C"]
    assert counted == [count for _, count in run.requests]


def test_names_are_text() -> None:
    name = "".join(HOSTILE)
    assert any(one["name"] == f"gen{name}" for one in events(made.run(steps=1, name=name)))


def test_a_run_that_has_just_begun() -> None:
    assert {one["ph"] for one in events(made.empty())} == {"M"}


@MATRIX
def test_threads_of_many_requests_at_once_are_found_in_time() -> None:
    """Each of these needs a thread of its own, so whoever looks at all threads for each looks 3 600 million times."""
    count = 60_000
    spans = tuple(LaneSpan(float(at), float(at + count), "request", "") for at in range(count))
    run = made.run()
    run = dataclasses.replace(run, lanes=(dataclasses.replace(run.lanes[0], spans=spans), *run.lanes[1:]))
    with at_most(30):
        found = events(run)
    assert len({one["tid"] for one in found if one["pid"] == 2 and one["ph"] == "X"}) >= count


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))), st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_a_span_is_on_the_first_thread_that_has_room(ends: list[tuple[int, int]], nests: bool) -> None:
    spans = [LaneSpan(start, start + length, "request", "") for start, length in ends]
    expected: list[list[tuple[float, float]]] = []
    for start, length in sorted(ends, key=lambda one: (one[0], -one[1])):
        end = start + length
        running = [[until for _, until in thread if until > start] for thread in expected]
        fitting = [at for at, untils in enumerate(running) if not untils or (nests and end <= min(untils))]
        at = fitting[0] if fitting else len(expected)
        expected[at : at + 1] = [[*(expected[at] if fitting else []), (start, end)]]
    threads = perfetto._assign_threads(spans, 50, nests=nests)
    assert [[(span.start, end) for span, end in thread] for thread in threads] == expected
