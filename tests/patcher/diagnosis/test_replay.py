"""Requests told from the iterations of a rollout, and what they take under other settings."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from fixtures import rollouts
from fixtures.iterations import decodes
from patcher.diagnosis import whatif
from patcher.diagnosis.actions import with_bounds
from patcher.diagnosis.iterations import Iterations
from patcher.diagnosis.model import RunDiagnosis, WhatIf
from patcher.diagnosis.replay import (
    Request,
    Scheduler,
    _choose_by_context,
    _choose_nearest,
    _guess_ended,
    _Reconstruction,
    _Running,
    requests_of,
    simulate,
)
from patcher.diagnosis.whatif import ERROR, MAX_NUM_SEQS, TAIL_CUT, replay, what_ifs
from patcher.timeline.model import BALANCE, FREE_SYNC, Bound, TrainingStep


def requests(seed: int, count: int, median: int) -> list[rollouts.Request]:
    generator = random.Random(seed)
    outputs = (max(5, min(8 * median, round(median * math.exp(generator.gauss(0, 0.9))))) for _ in range(count))
    return [rollouts.Request(generator.randint(40, 300), output) for output in outputs]


def seconds(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of iterations of an engine: a constant, and what requests, prompts and contexts take."""
    count, tokens, context = rows[:, :3].T
    prefill = tokens - count
    took: NDArray[np.float64] = 4 + 0.15 * count + 0.1 * prefill + 0.001 * context + 0.0004 * prefill * context / count
    return took / 1000


def iterations(*rows: Sequence[tuple[int, ...]]) -> Iterations:
    """Rollouts of these requests, tokens and contexts, one after the other."""
    columns = np.concatenate([np.array(part, dtype=float)[:, :3] for part in rows])
    took = seconds(columns)
    rollout = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
    return Iterations(
        np.cumsum(took), took, columns[:, 0], columns[:, 1], columns[:, 2], rollout, np.zeros_like(rollout)
    )


BATCHES = [(48, 16, 512, 60), (60, 4, 512, 30), (120, 32, 2048, 80), (40, 64, 10**6, 50)]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("count", "at_once", "budget", "median"), BATCHES)
def test_a_replay_takes_what_the_requests_take(seed: int, count: int, at_once: int, budget: int, median: int) -> None:
    of = requests(seed, count, median)
    rollout = iterations(rollouts.schedule(of, at_once, budget))
    replayed = requests_of(rollout, at_once)
    assert len(replayed) == pytest.approx(count, rel=0.06)
    assert sum(request.output for request in replayed) == pytest.approx(sum(request.output for request in of), rel=0.02)
    for setting in (at_once // 4, at_once // 2, at_once, 2 * at_once):
        truth = seconds(np.array(rollouts.schedule(of, setting, budget), dtype=float)).sum()
        assert seconds(simulate(replayed, Scheduler(setting, budget))).sum() == pytest.approx(truth, rel=ERROR)


@pytest.mark.parametrize(("count", "at_once", "budget", "median"), BATCHES)
def test_the_scheduler_repeats_known_requests_exactly(count: int, at_once: int, budget: int, median: int) -> None:
    of = requests(5, count, median)
    rows = simulate([Request(*request) for request in of], Scheduler(at_once, budget))
    assert rows.tolist() == [list(map(float, row[:3])) for row in rollouts.schedule(of, at_once, budget)]
    assert len(simulate([Request(*request) for request in of], Scheduler(at_once, budget), most=7)) == 7


def test_requests_that_come_alone_are_told_exactly() -> None:
    of = [rollouts.Request(90, 30), *requests(1, 20, 40)]
    rollout = iterations(rollouts.schedule(of, 1, 10**6))
    assert requests_of(rollout, 1) == [Request(*request, arrival=0) for request in of]
    (cut,) = (what_if.setting for what_if in what_ifs(rollout) if what_if.name == TAIL_CUT)
    assert cut == sorted(request.output for request in of)[19]  # of 21


@pytest.mark.parametrize(
    ("at_once", "all_requests", "replayed"), [(3, 5, True), (2, 5, False), (3, 4, False), (4_096, 500_000, True)]
)
def test_too_many_requests_are_not_replayed(
    at_once: int, all_requests: int, replayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 3 at once, and 3 + 2 in all."""
    monkeypatch.setattr(whatif, "MOST_AT_ONCE", at_once)
    monkeypatch.setattr(whatif, "MOST_REQUESTS", all_requests)
    found = replay(iterations([(3, 90, 90), (1, 1, 31), (3, 61, 92)]))
    assert found is not None
    assert ("too many" in found.why) != replayed


@pytest.mark.parametrize(("most", "count"), [(2, 1), (9, 1), (10, 2), (14, 2), (15, 3)])
def test_the_newest_rollouts_are_replayed(most: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whatif, "MOST_ITERATIONS", most)
    rows = [(1, 9, 9), *((1, 1, 10 + at) for at in range(4))]
    found = replay(iterations(rows, rows, rows))
    assert found is not None
    assert (len(found.requests), len(found.iterations), found.agreement) == (count, 5 * count, 1)
    assert {*found.iterations.rollout.tolist()} == {*range(3 - count, 3)}
    assert found.seconds == pytest.approx(seconds(np.array(rows * 3, dtype=float)).sum())


@pytest.mark.parametrize(("arrivals", "late"), [([4, 4], False), ([5, 0], True), ([0, 5], True), ([5, 5], True)])
def test_requests_come_late_behind_a_tenth_of_their_rollout(
    arrivals: list[int], late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, last = [(1, 9, 9), *((1, 1, 10 + at) for at in range(39))], iter(arrivals)
    monkeypatch.setattr(whatif, "requests_of", lambda *_: [Request(9, 40, 0), Request(9, 1, next(last))])
    found = replay(iterations(rows, rows))
    assert found is not None
    assert ("arrive throughout" in found.why) == late


def test_a_prompt_that_may_be_cut_counts_as_half_of_one() -> None:
    """100 tokens fill an iteration, in which two requests come; the rest of the second prompt follows."""
    rows = [(2, 100, 100), (2, 51, 151), (2, 2, 153), (2, 2, 155), (1, 1, 90)]
    assert [request.prompt for request in requests_of(iterations(rows), 2)] == [63, 83]


def test_requests_arrived_at_the_latest_when_there_was_room_for_them() -> None:
    """The third of up to three comes in the third iteration; the fourth may have waited for it to end."""
    rows = [(2, 20, 20), (2, 2, 22), (3, 12, 34), (3, 3, 37), (3, 12, 36), (3, 3, 39)]
    assert [request.arrival for request in requests_of(iterations(rows), 3)] == [0, 0, 2, 2]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([(2, 11, 11), (1, 1, 11), (2, 21, 32)], [(1, 1, 0), (6, 3, 0), (20, 1, 2)]),
        ([(2, 20, 20), (1, 1, 30), (3, 12, 42)], [(13, 3, 0), (7, 2, 0), (10, 1, 2)]),
    ],
    ids=["a prompt of a single token", "fewer requests, whose contexts are longer"],
)
def test_the_context_that_is_missing_tells_which_requests_ended(
    rows: list[tuple[int, ...]], told: list[tuple[int, int, int]]
) -> None:
    assert requests_of(iterations(rows), 3) == [Request(*request) for request in told]


def running(*contexts: float, exact: bool = False) -> list[_Running]:
    return [_Running(at, 0, context, 0, 0.0 if exact else 1.0) for at, context in enumerate(contexts)]


@pytest.mark.parametrize(
    ("contexts", "context", "count", "exact", "chosen"),
    [
        ([40, 47, 48, 49, 60], 100, 2, False, [40, 60]), ([40, 46, 47, 48, 49, 60], 100, 2, False, [48, 49]),
        ([40, 46, 47, 48, 49, 60], 100, 2, True, [40, 60]), ([10, 20, 31], 30, 1, False, [31]), ([10, 20, 31], 61, 3, False, [10, 20, 31]),
        ([10, 20, 31], 55, 2, True, [20, 31]), ([10], 55, 2, False, [10]),
        ([1, 3, 6, 9, 20], 10, 2, True, [1, 9]), ([1, 3, 6, 20], 9, 2, True, [3, 6]), ([1, 3, 6, 20, 30], 57, 3, True, [6, 20, 30]),
    ],
)  # fmt: skip
def test_requests_with_about_the_context_are_chosen(
    contexts: list[float], context: float, count: int, exact: bool, chosen: list[float]
) -> None:
    """Of requests whose context is not known exactly the four likeliest are tried, each with the others."""
    found = _choose_by_context(running(*contexts, exact=exact), context, count)
    assert sorted(request.computed for request in found) == chosen


@pytest.mark.parametrize(
    ("context", "count", "chosen"),
    [
        (330, 3, [100, 30, 200]), (230, 2, [30, 200]), (29, 1, [30]), (26, 1, [30]), (24, 1, [20]), (5, 1, [10]),
        (900, 1, [200]), (0, 0, []), (0, 7, [10, 20, 30, 40, 100, 200]),
    ],
)  # fmt: skip
def test_the_nearest_context_is_taken_and_what_is_left_is_divided_again(
    context: float, count: int, chosen: list[float]
) -> None:
    found = _choose_nearest(running(10, 20, 30, 40, 100, 200), context, count)
    assert [request.computed for request in found] == chosen
    assert [request.computed for request in _choose_nearest(running(10), context, 2)] == [10]


@pytest.mark.parametrize(
    ("requests", "tokens", "context", "ended"), [(10, 64, 60, 5), (10, 55, 50, 5), (10, 28, 20, 2), (8, 8, 20, 2), (0, 0, 100, 10)]
)  # fmt: skip
def test_at_most_four_more_than_necessary_ended_together(
    requests: int, tokens: int, context: float, ended: int
) -> None:
    """Ten run with 10 tokens each, as usual prompts have; those that come have the usual prompts, too."""
    rebuilt = _Reconstruction(running=running(*[10.0] * 10), came=10, prompt_tokens=100)
    assert len(_guess_ended(rebuilt, context, requests, tokens)) == ended


def test_a_request_whose_prompt_goes_on_has_not_ended() -> None:
    waiting, decoding, longer = running(60, 40, 90, exact=True)
    rebuilt = _Reconstruction(running=[waiting, decoding, longer], came=3, prompt_tokens=190)
    assert _guess_ended(rebuilt, 60, 2, 20) == [waiting]
    rebuilt.partial = waiting
    assert _guess_ended(rebuilt, 60, 2, 20) == [decoding]


def test_decodes_are_corrected_by_their_load_and_prompts_are_not() -> None:
    """No sum of costs is 1 s for one request, 10 s for four and 3 s for sixteen."""
    took = {1: 1.0, 4: 10.0, 16: 3.0}
    cost_model = whatif._CostModel(decodes(np.repeat([*took], 5).tolist(), np.repeat([*took.values()], 5).tolist()))
    for count, length in took.items():
        assert cost_model.seconds(np.array([[count, count, 100.0]])) == pytest.approx(length)
        fitted = float((decodes([count], [length], prompts=1).features @ cost_model.cost)[0])
        assert cost_model.seconds(np.array([[count, count + 1, 100.0]])) == pytest.approx(fitted)
        assert (abs(fitted / length - 1) > 0.2) == (count == 4)
    assert cost_model.loads.tolist() == [0, 2, 4]
    assert whatif._CostModel(decodes([3] * 4, [1.0] * 4)).ratios.tolist() == [1]


@pytest.mark.parametrize(
    ("row", "flat", "proportional"),
    [((4, 4, 100), 1, 1), ((8, 8, 100), 1, 2), ((5, 5, 300), 1, None), ((4, 4, 300), 1, None)],
)
def test_more_requests_than_were_seen_cost_nothing_or_as_much_as_at_full_load(
    row: tuple[float, float, float], flat: float, proportional: float | None
) -> None:
    """Four requests took a second together."""
    cost_model, rows = whatif._CostModel(decodes([4] * 6, [1.0] * 6)), np.array([row, row], dtype=float)
    assert cost_model.flat(rows) == pytest.approx(2 * flat)
    expected = 2 * proportional if proportional else max(cost_model.seconds(rows), 2 * row[0] / 4 * (row[0] > 4))
    assert cost_model.proportional(rows) == pytest.approx(expected)


def by_setting(rollout: Iterations) -> dict[tuple[str, int | None], WhatIf]:
    return {(what_if.name, what_if.setting): what_if for what_if in what_ifs(rollout)}


def test_loads_of_about_as_many_requests_are_told_together() -> None:
    """From one number of requests to twice as many there are two loads, each of at least five iterations."""
    requests_of_each = np.repeat(np.arange(1.0, 18), [5] * 16 + [4])
    rows = np.stack([requests_of_each, requests_of_each, 90 * requests_of_each], axis=1)
    assert len(whatif._CostModel(iterations([tuple(row) for row in rows.tolist()])).loads) == 8


def test_less_is_estimated_and_more_is_bounded() -> None:
    of = requests(3, 64, 60)
    by_name = by_setting(iterations(*[rollouts.schedule(of, 16)] * 2))
    assert [setting for name, setting in by_name if name == MAX_NUM_SEQS] == [8, 32, 64]
    truth = {setting: 2 * seconds(np.array(rollouts.schedule(of, setting), dtype=float)).sum() for setting in (8, 32)}
    fewer, more = by_name[MAX_NUM_SEQS, 8], by_name[MAX_NUM_SEQS, 32]
    assert fewer.seconds is not None
    assert fewer.seconds == pytest.approx(truth[8], rel=ERROR)
    assert more.seconds is None
    assert more.least_seconds is not None
    assert more.most_seconds is not None
    assert more.least_seconds <= truth[32] <= more.most_seconds
    assert (more.least_seconds, more.most_seconds) == pytest.approx((12.71, 14.56), rel=0.005)
    assert (fewer.least_seconds, fewer.most_seconds) == pytest.approx((0.92 * fewer.seconds, 1.08 * fewer.seconds))
    (cut,) = [what_if for (name, _), what_if in by_name.items() if name == TAIL_CUT]
    longest = sorted(request.output for request in of)[-4:]
    assert cut.setting is not None
    assert longest[0] * 0.7 < cut.setting < longest[-1]


def test_more_places_than_requests_change_nothing() -> None:
    rollout = iterations(rollouts.schedule(requests(3, 20, 60), 64))
    more = by_setting(rollout)[MAX_NUM_SEQS, 40]
    assert more.seconds == more.least_seconds == more.most_seconds == pytest.approx(rollout.seconds.sum())


def cached(rows: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The same iterations if two thirds of each prompt were cached."""
    return [(count, count + (tokens - count) // 3, context, 0) for count, tokens, context, *_ in rows]


def later(rows: Sequence[tuple[int, ...]], times: int = 12) -> list[tuple[int, ...]]:
    """Three requests at once, and then one after the other."""
    return [*rollouts.schedule(requests(3, 3, 60)), *[row for _ in range(times) for row in rows]]


def longer(rows: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The same iterations with contexts 15 % longer than their tokens explain."""
    return [(count, tokens, round(1.15 * context), 0) for count, tokens, context, *_ in rows]


@pytest.mark.parametrize("changed", [cached, later, longer])
def test_what_cannot_be_replayed_says_why(changed: object) -> None:
    assert callable(changed)
    rows = rollouts.schedule(requests(3, 48 if changed is cached else 1, 60))
    for what_if in what_ifs(iterations(changed(rows))):
        assert (what_if.seconds, what_if.least_seconds, what_if.most_seconds) == (None, None, None)
        assert what_if.because


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_iterations(count: int) -> None:
    rows = rollouts.schedule(requests(0, 1, 10))[:count]
    few = iterations(rows) if count else iterations([(1, 1, 1)]).chosen(np.zeros(1, dtype=bool))
    assert (replay(few) is None) == (count == 0)
    list(what_ifs(few))


def test_other_contexts_are_a_reason_of_their_own() -> None:
    scheduled = rollouts.schedule(requests(3, 4, 60))
    rows = [(count, tokens, 2 * context, *more) for count, tokens, context, *more in scheduled]
    found = replay(iterations(rows))
    assert found is not None
    assert found.agreement > 0.9
    assert "contexts differ" in found.why


def test_without_contexts_nothing_is_replayed() -> None:
    rows = [(count, tokens, 0) for count, tokens, *_ in rollouts.schedule(requests(3, 8, 60))]
    assert {what_if.because for what_if in what_ifs(iterations(rows))} == {"the timeline has no context lengths"}
    assert {what_if.least_seconds for what_if in what_ifs(iterations(rows))} == {None}


def test_what_grows_less_than_the_requests_is_fitted_at_each_load() -> None:
    def took(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        seconds_each: NDArray[np.float64] = (6 * np.sqrt(rows[:, 0]) + 0.1 * (rows[:, 1] - rows[:, 0])) / 1000
        return seconds_each

    of = requests(3, 120, 60)
    rollout = iterations(rollouts.schedule(of, 16))
    rows = np.stack([rollout.requests, rollout.tokens, rollout.context], axis=1)
    fewer = by_setting(replace(rollout, seconds=took(rows)))[MAX_NUM_SEQS, 8]
    truth = took(np.array(rollouts.schedule(of, 8), dtype=float)).sum()
    assert fewer.seconds == pytest.approx(truth, rel=ERROR / 2)


def step(number: int, sync: float, balance: float, *, warm_up: bool = False) -> TrainingStep:
    bounds = tuple(Bound(name, 10 - saved, saved, "why") for name, saved in ((FREE_SYNC, sync), (BALANCE, balance)))
    return TrainingStep(
        step=number, start=0, end=10, seconds=10, verdict="", why="", limited_by=None, mostly=None, critical_path=(),
        roles=(), tail_seconds=0, tail=None, sync_seconds=0, sync=(), poll_seconds=0, phases=(),
        what_if=tuple(bound for bound in bounds if bound.saves_seconds), warm_up=warm_up,
    )  # fmt: skip


def test_of_steps_sync_and_balance_are_bounded() -> None:
    steps = [step(1, 9, 9, warm_up=True), step(2, 2, 0), step(3, 3, 0.5)]
    diagnosis = with_bounds(RunDiagnosis((), (), (), rollouts=9), steps)
    assert "9 rollouts" in diagnosis.notes[0]
    assert [(what_if.name, what_if.least_seconds, what_if.most_seconds) for what_if in diagnosis.what_ifs] == [
        ("free-weight-sync", 15, 20),
        ("perfect-balance", 19.5, 20),
    ]
    assert [(action.what, action.bound_seconds) for action in diagnosis.actions] == [
        ("no waiting for the weight sync", 5),
        ("perfect balance", 0.5),
    ]


@pytest.mark.parametrize("most", [2, 50, 10**17])
def test_columns_that_no_engine_writes_end_in_an_answer(most: int) -> None:
    generator = np.random.default_rng(most)
    for _ in range(8):
        count = int(generator.integers(1, 40))
        columns = generator.integers(0, most, (3, count)).astype(float)
        took = generator.random(count) * generator.integers(0, 2)
        for what_if in what_ifs(Iterations(np.cumsum(took), took, *columns, *np.zeros((2, count), dtype=np.int64))):
            assert what_if.because
