from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.timeline.small import small
from fixtures.timeline.writer import Writer
from patcher.timeline import clocks, files, runs
from patcher.timeline.clocks import (
    ClockBound,
    _bounds_from_requests,
    _bounds_from_rollouts,
    _busy_periods,
    solve_offsets,
)
from patcher.timeline.files import KeptSpan

CASES: dict[str, tuple[list[ClockBound], dict[str, tuple[int, int | None, str, bool]]]] = {
    "nothing is known": ([], {"b": (500, None, "wall clock", False)}),
    "one side only, the wall within it": ([ClockBound("a", "b", 300)], {"b": (500, None, "wall clock", False)}),
    "one side only, the wall beyond it": ([ClockBound("a", "b", 800)], {"b": (800, None, "wall clock", False)}),
    "both sides": ([ClockBound("a", "b", 300), ClockBound("b", "a", -340)], {"b": (320, 20, "causality", False)}),
    "the narrowest of many": (
        [ClockBound("a", "b", 300), ClockBound("a", "b", 320), ClockBound("b", "a", -400), ClockBound("b", "a", -340)],
        {"b": (330, 10, "causality", False)},
    ),
    "over another machine": (
        [ClockBound("a", "b", 100), ClockBound("b", "a", -120), ClockBound("b", "c", 1_000), ClockBound("c", "b", -1_040)],
        {"b": (110, 10, "causality", False), "c": (1_130, 30, "causality", False)},
    ),
    "a contradiction": ([ClockBound("a", "b", 9_000), ClockBound("b", "a", -1_000)], {"b": (5_000, 4_000, "causality", True)}),
    "a contradiction within what two readings differ": (
        [ClockBound("a", "b", 1_500), ClockBound("b", "a", -1_000)], {"b": (1_250, 250, "causality", False)}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bounds_are_narrowed_over_the_graph_of_machines(name: str) -> None:
    bounds, expected = CASES[name]
    found = solve_offsets(bounds, "a", {"a": 0, **dict.fromkeys(expected, 500)})
    assert found.pop("a") == (0, 0, "same clock", False)
    assert found == expected


def pair(folder: Path, *, ends_after_us: int, nested: bool = False, lost: int = 0) -> clocks.Alignment:
    """A driver and a worker on a machine whose clock is 3 s ahead: works of 10 ms, 100 µs on their way there and back.

    With `nested`, each work calls itself once more. The first `lost` works were not written.
    """
    driver, worker = Writer(folder, "a", boot="a", pid=1, run="r"), Writer(folder, "b", boot="b", pid=2, run="r")
    for number in range(5):
        begin = 1_000_000 * (number + 1)
        driver.add("call", "group_train", begin, begin + 10_100 + ends_after_us)
        outer = worker.begin()
        if number < lost:
            continue
        worker.add("work", "train", begin + 3_000_100, begin + 3_010_100, identity=outer)
        if nested:
            worker.add("work", "train", begin + 3_005_000, begin + 3_006_000, parent=outer)
    driver.add("step", "", 6_000_000, 6_000_000, amount=1)
    wall = driver.wall()
    driver.close((7_000_000, wall))
    worker.close((9_500_000, wall))
    ((_, processes),) = runs.survey(files.paths(folder)).runs
    return clocks.align(processes, 0)


@pytest.mark.parametrize("nested", [False, True])
def test_a_call_that_waits_bounds_a_clock_on_both_sides(nested: bool, tmp_path: Path) -> None:
    found = pair(tmp_path, ends_after_us=100, nested=nested)
    assert found.offsets["b"] == pytest.approx(-3_000_000, abs=101)
    assert [clock.source for clock in found.clocks] == ["same clock", "causality"]
    assert found.clocks[1].error_seconds == pytest.approx(100e-6)
    assert [clock.ahead_seconds for clock in found.clocks] == [0, (-2_500_000 - found.offsets["b"]) / 1e6]


def test_a_call_that_gives_a_future_bounds_one_side(tmp_path: Path) -> None:
    found = pair(tmp_path, ends_after_us=-10_000)
    assert found.clocks[1].source == "wall clock"
    assert found.clocks[1].error_seconds is None


def test_calls_bound_no_clock_if_works_were_lost(tmp_path: Path) -> None:
    assert pair(tmp_path, ends_after_us=100, lost=1).clocks[1].source == "wall clock"


SERVERS = {"b": 3_000_000, "c": -5_000_000}
"""Machines of servers, and how far their clocks are ahead in microseconds."""


def rollouts(folder: Path, *, lost: int = 0, uneven: int = -1) -> clocks.Alignment:
    """Four rollouts of requests of one length to two servers, each 200 µs on its way; the last `lost` were not written.

    The rollout with the number `uneven` goes to one server alone.
    """
    agent = Writer(folder, "a", boot="a", pid=1, run="r")
    servers = {
        host: Writer(folder, host, boot=host, pid=2, run="r", environ={"VERL_REPLICA_RANK": "0"}) for host in SERVERS
    }
    for rollout in range(4):
        for number in range(10):
            begin = 10_000_000 + rollout * 1_000_000 + number * 1_000 + rollout**2 * 20_000
            end = begin + 300_000 + number * 3_000
            host = "b" if number % 2 or rollout == uneven else "c"
            ahead = SERVERS[host]
            servers[host].add("serve", "generate", begin + ahead + 200, end + ahead - 200, amount=20)
            if rollout < 3 or number < 10 - lost:
                agent.add("request", "generate", begin, end, amount=20)
    for host, writer in {"a": agent, **servers}.items():
        writer.close((20_000_000 + SERVERS.get(host, 0), writer.wall()))
    ((_, processes),) = runs.survey(files.paths(folder)).runs
    return clocks.align(processes, next(at for at, one in enumerate(processes) if one.head.host == "a"))


@pytest.mark.parametrize(
    ("lost", "uneven", "error_us"), [(0, -1, 4_200), (5, -1, 4_200), (0, 1, 4_200), (5, 1, None), (5, 3, 4_200)]
)
def test_requests_that_servers_rename_bound_their_clocks(
    lost: int, uneven: int, error_us: int | None, tmp_path: Path
) -> None:
    found = rollouts(tmp_path, lost=lost, uneven=uneven)
    for clock in found.clocks:
        (host,) = clock.hosts
        if host == "a":
            continue
        assert clock.source == ("wall clock" if error_us is None else "causality")
        assert not clock.contradicts
        if error_us is not None:
            assert (clock.error_seconds or 1) * 1e6 < error_us
            assert found.offsets[host] == pytest.approx(-SERVERS[host], abs=(clock.error_seconds or 0) * 1e6 + 1)


def test_one_machine_has_one_clock(tmp_path: Path) -> None:
    small(tmp_path)
    ((_, processes),) = runs.survey(files.paths(tmp_path)).runs
    assert set(clocks.align(processes, 0).offsets.values()) == {0}


CALL_BOUNDS: dict[str, tuple[list[tuple[int, int | None]], list[tuple[int, int | None]], list[tuple[str, int]]]] = {
    "starts alone": ([(0, None)], [(5, None)], [("a", -5)]),
    "a call that goes on": ([(0, None)], [(5, 9)], [("a", -5)]),
    "a work that goes on": ([(0, 20)], [(5, None)], [("a", -5)]),
    "both have ended": ([(0, 20)], [(5, 9)], [("a", -5), ("b", -11)]),
    "a call that is too short to have waited": ([(0, 3)], [(5, 9)], [("a", -5)]),
    "a call as long as its work": ([(0, 4)], [(5, 9)], [("a", -5), ("b", 5)]),
    "one of two is too short": ([(0, 20), (30, 31)], [(5, 9), (35, 39)], [("a", -5), ("a", -5)]),
    "one of two goes on": ([(0, 20), (30, None)], [(5, 9), (35, 39)], [("a", -5), ("a", -5), ("b", -11)]),
    "by their starts": ([(30, 50), (0, 20)], [(5, 9), (36, 39)], [("a", -5), ("a", -6), ("b", -11), ("b", -11)]),
}


@pytest.mark.parametrize("name", CALL_BOUNDS)
def test_each_call_and_its_work_bound_the_clocks(name: str) -> None:
    calls, works, expected = CALL_BOUNDS[name]
    spans = [
        [KeptSpan(start, end, kind, "train", None, 1, 0, 0) for start, end in pairs]
        for kind, pairs in (("call", calls), ("work", works))
    ]
    found = [*clocks._bounds_from_calls("a", "b", *spans)]
    assert [(bound[0], bound[2]) for bound in found] == expected
    assert {bound[:2] for bound in found} <= {("a", "b"), ("b", "a")}


@pytest.mark.parametrize(
    ("spans", "periods"),
    [
        ([], []), ([(0, 5)], [(0, 5, 1)]), ([(3, 9), (0, 3)], [(0, 9, 2)]), ([(4, 9), (0, 3)], [(0, 3, 1), (4, 9, 1)]), ([(0, 9), (2, 5), (8, 12)], [(0, 12, 3)]),
    ],
)  # fmt: skip
def test_requests_that_touch_are_one_busy_period(
    spans: list[tuple[int, int]], periods: list[tuple[int, int, int]]
) -> None:
    assert _busy_periods(spans) == periods


def rows(*ends: tuple[int, int | None]) -> list[KeptSpan]:
    return [KeptSpan(start, end, "request", "generate", 7, at, 0, 0) for at, (start, end) in enumerate(ends)]


REQUESTS: dict[str, tuple[dict[tuple[str, int], list[tuple[int, int | None]]], dict[tuple[str, int], list[tuple[int, int | None]]], list[tuple[str, str, int]]]] = {
    "one request": ({("a", 0): [(0, 20)]}, {("b", 1): [(105, 109)]}, [("a", "b", -105), ("b", "a", 89)]),
    "two, whose order is unknown": (
        {("a", 0): [(0, 20), (10, 50)]}, {("b", 1): [(115, 119), (105, 140)]}, [("a", "b", -105), ("a", "b", -105), ("b", "a", 90), ("b", "a", 99)],
    ),
    "on the same machine": ({("a", 0): [(0, 20)]}, {("a", 1): [(5, 9)]}, []),
    "one of two elsewhere": ({("a", 0): [(0, 20), (10, 50)]}, {("a", 1): [(5, 9)], ("b", 2): [(115, 119)]}, [("a", "b", -115), ("b", "a", 69)]),
    "one was lost": ({("a", 0): [(0, 20), (10, 50)]}, {("b", 1): [(105, 109)]}, []), "one goes on": ({("a", 0): [(0, None)]}, {("b", 1): [(105, 109)]}, []),
    "two senders": ({("a", 0): [(0, 20)], ("c", 3): [(0, 20)]}, {("b", 1): [(105, 109), (105, 109)]}, []), "none was served": ({("a", 0): [(0, 20)]}, {}, []),
    "two processes of one sender": ({("a", 0): [(0, 20)], ("a", 3): [(0, 20)]}, {("b", 1): [(105, 109), (105, 109)]}, [("a", "b", -105)] * 2 + [("b", "a", 89)] * 2),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_of_one_length_bound_the_clock_of_their_server(name: str) -> None:
    sent, served, bounds = REQUESTS[name]
    by_sender, by_server = ({place: rows(*ends) for place, ends in side.items()} for side in (sent, served))
    assert [tuple(bound) for bound in _bounds_from_requests(by_sender, by_server)] == bounds


@pytest.mark.parametrize(
    ("served", "bounds"),
    [
        ([(105, 109), (205, 209), (305, 309)], (-105, 89)), ([(103, 109), (205, 219), (305, 309)], (-103, 99)), ([(105, 109), (205, 209)], None), ([(105, 109), (106, 108), (205, 209), (305, 309)], None),
        ([(105, 1_150), (205, 209), (305, 309)], None), ([(105, 1_119), (1_205, 1_209), (2_305, 2_309)], None), ([(105, 109), (205, 209), (305, 309), (405, 409), (406, 408)], (-105, 89)),
    ],
)  # fmt: skip
def test_three_rollouts_bound_a_clock_if_they_agree(
    served: list[tuple[int, int]], bounds: tuple[int, int] | None
) -> None:
    """One request a rollout is sent, from 0 to 20, 100 to 120, and so on; a server's clock is 100 ahead."""
    sent = {"a": [(at * 100, at * 100 + 20) for at in range(4)]}
    found = [tuple(bound) for bound in _bounds_from_rollouts(sent, {"b": served})]
    assert found == ([("a", "b", bounds[0]), ("b", "a", bounds[1])] if bounds else [])
    assert [*_bounds_from_rollouts({**sent, "c": []}, {"b": served})] == []
    assert [*_bounds_from_rollouts(sent, {"a": served})] == []
