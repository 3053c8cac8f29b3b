"""A simulated run, joined from its files: two hosts, two replicas, and spans that still go on; no clock is waited for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.timeline.scene import Injected, Scene, drawn, fault, joined
from patcher.commands.reports import timeline_lines
from patcher.messages import Detail
from patcher.timeline import costs, model, page, perfetto
from patcher.timeline.lengths import brief, seconds


def test_a_run_that_goes_on_is_joined_up_to_its_last_step(tmp_path: Path) -> None:
    Scene(tmp_path, seed=3, steps=7).write(ended=False)
    run = joined(tmp_path)
    assert [step.step for step in run.steps] == [1, 2, 3, 4, 5, 6]
    assert {lane.role: (lane.replica, lane.rank) for lane in run.lanes if not lane.ended}["server"] == (1, None)
    assert sorted((lane.role, lane.replica, lane.rank, lane.host) for lane in run.lanes if lane.role != "other") == [
        ("agent", None, None, "host0"), ("driver", None, None, "host0"), ("engine", 0, None, "host0"),
        ("engine", 1, None, "host1"), ("reward", None, None, "host1"), ("server", 0, None, "host0"),
        ("server", 1, None, "host1"), ("trainer", None, 0, "host0"), ("trainer", None, 1, "host1"),
    ]  # fmt: skip
    going_on = {lane.role for lane in run.lanes for span in lane.spans if span.end is None}
    assert going_on == {"driver", "trainer", "agent", "server"}
    assert [clock.source for clock in run.clocks] == ["same clock", "causality"]
    assert [clock.ahead_seconds for clock in run.clocks] == pytest.approx([0, 0], abs=0.01)
    assert run.missing == ()
    for step in run.steps:
        assert sum(piece.seconds for piece in step.critical_path) == pytest.approx(step.seconds, rel=1e-6)
        assert {uneven.of for uneven in step.imbalance} == {"replicas", "ranks"}
        assert step.requests == 12
        assert 20 < step.decode_steps < 50
        assert step.tokens > 6 * step.decode_steps


def test_all_that_is_shown_of_a_run_can_be_shown_while_it_goes_on(tmp_path: Path) -> None:
    Scene(tmp_path, seed=3, steps=14, answers=(20, 200)).write(ended=False)
    run = joined(tmp_path)
    lines = [str(line) for line in timeline_lines.report(run, 100)]
    assert any(line.startswith("trend: ") for line in lines)
    for count, without_details in ((3, 3), (4, 0)):
        recorded = [
            model.RecordedWindow(Path(f"/traces/{number}"), "decode", 1, 2, 0, "report") for number in range(count)
        ]
        lines = timeline_lines.report(replace(run, recorded=(*recorded,)), 100)
        of_windows = [line for line in lines if "window recorded" in line]
        assert len(of_windows) == count
        assert sum(not isinstance(line, Detail) for line in of_windows) == without_details
    assert "step-13" in page.page(run)
    assert json.loads("".join(perfetto.trace(run)))["traceEvents"]


def test_causes_are_named_and_nobody_else_is_accused(tmp_path: Path) -> None:
    causes = {cause.step: cause for cause in drawn(5, 40)}
    Scene(tmp_path, 5, 40, injected=[*causes.values()], saves=13, validates=17).write()
    faults = {step.step: fault(step, causes.get(step.step)) for step in joined(tmp_path).steps[1:]}
    assert len({cause.kind for cause in causes.values()}) > 7
    assert {step: text for step, text in faults.items() if text not in ("", "seconds")} == {}


@pytest.mark.parametrize("measured", [False, True])
def test_long_garbage_collections_are_named(measured: bool, tmp_path: Path) -> None:
    """In step 6 one rank collects, in step 9 the other one for longer, in step 12 an optimizer is slow by itself."""
    slow = [Injected("optimizer", *rest) for rest in ((6, 1.2, 1), (9, 0.7, 1), (9, 1.5, 0), (12, 1.3, 0))]
    Scene(tmp_path, 3, 16, injected=slow, collecting=(6, 9), measured=measured).write()
    run = joined(tmp_path)
    causes = {step.step: step.limited_by for step in run.steps if step.limited_by}
    assert {step: (cause.label, round(cause.excess_seconds, 1)) for step, cause in causes.items()} == {
        6: ("trainer, rank 1: garbage collection in update_actor", 1.2),
        9: ("trainer, rank 0: garbage collection in update_actor", 1.5),
        12: ("trainer, rank 0: update_actor", 1.3),
    }
    advice = {cause.cause.what: cause.advice for cause in run.causes if cause.cause and cause.cause.excess_seconds}
    assert advice["garbage collection"] == costs.ADVICE["gc"]
    assert run.notes == ()


def test_no_cause_is_made_up_in_a_run_of_noise(tmp_path: Path) -> None:
    Scene(tmp_path, 11, 30, noise=0.3).write()
    assert [step.limited_by for step in joined(tmp_path).steps[1:] if step.limited_by] == []


def test_a_step_in_which_no_cpu_was_free_accuses_nobody(tmp_path: Path) -> None:
    """A rank is slow in a step with waits, too, and in one without."""
    slow = [Injected("optimizer", 9, 6, 1), Injected("optimizer", 12, 2, 1)]
    Scene(tmp_path, 3, 16, injected=slow, starved=(6, 9, 14)).write()
    run = joined(tmp_path)
    limits = {step.step: (step.limited_by.role, step.limited_by.rank) for step in run.steps[1:] if step.limited_by}
    assert limits == {6: ("host", None), 9: ("trainer", 1), 12: ("trainer", 1), 14: ("host", None)}
    assert "trainer, rank" in run.steps[5].why
    (cost,) = (cause for cause in run.causes if cause.cause and cause.cause.role == "host")
    assert (cost.steps, cost.advice) == ((6, 9, 14), costs.ADVICE["host"])
    assert any("waiting for a CPU core" in note for note in run.notes)


def test_answers_that_grow_are_a_trend_and_no_cause(tmp_path: Path) -> None:
    Scene(tmp_path, 1, 25, answers=(20, 300), noise=0.1).write()
    run = joined(tmp_path)
    assert [step.limited_by for step in run.steps[1:] if step.limited_by] == []
    assert run.trend is not None
    assert run.trend.after_seconds > 1.5 * run.trend.before_seconds
    assert run.trend.parts[0].name == "engine: decode in gen"
    assert [driver.name for driver in run.trend.drivers] == ["generated tokens", "number of decode steps"]
    assert all(driver.correlation > 0.9 for driver in run.trend.drivers)


def test_what_each_step_loses_is_among_what_costs_most(tmp_path: Path) -> None:
    Scene(tmp_path, 1, 12, slow_rank=1, slow_seconds=0.5, reward_seconds=0.4, noise=0.05).write()
    run = joined(tmp_path)
    costs = {str(cause.title).partition(":")[0]: cause for cause in run.causes}
    rank, reward = costs["waiting for the last rank"], costs["reward computation at the end of the rollout"]
    assert "1 in 11 of 11 steps" in str(rank.title)
    assert rank.seconds == pytest.approx(11 * 0.25, rel=0.1)
    assert reward.seconds == pytest.approx(11 * 0.4, rel=0.15)
    assert "trainer" in costs
    assert [step.limited_by for step in run.steps[1:] if step.limited_by] == []


def test_the_micro_batch_of_all_ranks_is_proposed_where_none_is_known_to_be_slow(tmp_path: Path) -> None:
    for kind, words in (("hidden micro-batch", "--ranks all"), ("stopped rank", "--ranks 1")):
        folder = tmp_path / kind
        Scene(folder, 1, 12, injected=[Injected(kind, 10, 2, 1)]).write()
        (window,) = (window for window in joined(folder).windows if window.what == "slow micro-batch")
        assert words in window.command
        assert window.step == 10
        assert window.command.endswith("--training-steps 10")


@pytest.mark.parametrize(("measured", "rank"), [(False, None), (True, 1)])
def test_a_rank_that_the_others_wait_for_within_a_micro_batch_is_named_if_their_waits_are_measured(
    measured: bool, rank: int | None, tmp_path: Path
) -> None:
    Scene(tmp_path, 1, 16, measured=measured, injected=[Injected("hidden micro-batch", 10, 2, 1)]).write()
    run = joined(tmp_path)
    (cause,) = (cause for step in run.steps[1:] if (cause := step.limited_by))
    assert (cause.phase, cause.rank) == ("old_log_prob", rank)
    (window,) = (window for window in run.windows if window.what == "slow micro-batch")
    assert window.rank == rank
    alone = {cause.rank for step in run.steps[1:] for cause in step.also}
    assert alone <= {None}


def test_the_second_cause_the_saving_and_the_phases_beside_are_shown(tmp_path: Path) -> None:
    """Two replicas have a long answer each: a fix of one of the delays saves what the other does not hide."""
    causes = [
        Injected("reward", 9, 2), Injected("long answer", 9, 1.5, 1), Injected("advantage", 12, 2), Injected("send", 12, 1, 1)
    ]  # fmt: skip
    Scene(tmp_path, 2, 14, injected=causes, validates=11, noise=0.05).write()
    run = joined(tmp_path)
    steps = {step.step: step for step in run.steps}
    assert [(cause.phase, cause.rank) for cause in steps[12].also] == [("update_weights", 1)]
    assert [phase.name for phase in steps[11].beside] == ["testing"]
    assert steps[11].verdict == "typical"
    lines = [str(line).strip() for line in timeline_lines.report(run, 200)]
    assert any(
        line.startswith("also longer than in the typical step: trainer, rank 1: update_weights 1.0") for line in lines
    )
    assert any(line.startswith("11") and "typical; testing (0." in line for line in lines)
    shown = page.page(run)
    assert "not compared with other steps: testing, " in shown
    assert "; +1.0" in shown
    for bound in run.steps[11].what_if:
        assert any(f"{bound.name} {brief(bound.saves_seconds)} s" in line for line in lines)
    for cause in run.causes:
        if cause.saves_seconds is not None and cause.saves_seconds < 0.9 * cause.seconds:
            assert any(f"a fix saves at most {brief(cause.saves_seconds)} s" in line for line in lines)
            assert f"a fix saves at most {seconds(cause.saves_seconds)}" in shown
            break
    else:
        pytest.fail("no cause hides another one")
