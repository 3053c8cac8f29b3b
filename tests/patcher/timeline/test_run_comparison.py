"""Two runs side by side: changes that were made are found, by part and at equal tokens, and chance is none."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from patcher.timeline.model import (
    Cause,
    Imbalance,
    Lane,
    PathSegment,
    RoleUse,
    Run,
    RunTimeline,
    TrainingStep,
)
from patcher.timeline.run_comparison import (
    FASTER,
    FEW,
    NO_DIFFERENCE,
    SLOWER,
    ChangeInterval,
    ChosenSteps,
    RunComparison,
    RunSide,
    SecondsChange,
    _change_with_interval,
    _phase_seconds,
    _probability_by_chance,
    compared,
)

KINDS = {
    "decode": ("engine", "iteration", "decode", "gen"),
    "prefill": ("engine", "iteration", "prefill", "gen"),
    "rollout": ("engine", "gap", "no iteration", "gen"),
    "reward": ("reward", "reward", "compute_score", "gen"),
    "poll": ("driver", "poll", "sample", "gen"),
    "log_probs": ("trainer", "unit", "micro-batch", "old_log_prob"),
    "update": ("trainer", "unit", "micro-batch", "update_actor"),
    "sync": ("trainer", "work", "update_weights", "update_weights"),
    "trainer": ("trainer", "work", "save_model", "save"),
    "driver": ("driver", "phase", "adv", "adv"),
    "unrecorded": ("unrecorded", "work", "gen", "gen"),
}
MORE_KINDS = {
    ("trainer", "pause", "saving", "update_actor"): "pause",
    ("server", "serve", "generate", "gen"): "rollout",
    ("agent", "request", "request", "gen"): "rollout",
    ("balancer", "route", "acquire_server", "gen"): "rollout",
    ("server", "sync", "abort_all_requests", "gen"): "sync",
    ("driver", "call", "call update_weights", "update_weights"): "sync",
    ("trainer", "work", "generate", ""): "rollout",  # of TRL, whose ranks do all of it
    ("trainer", "phase", "calculate_rewards", ""): "reward",
    ("trainer", "work", "train", ""): "update",
    ("trainer", "unit", "optimizer-step", ""): "update",
    ("trainer", "phase", "compute_loss", ""): "update",
    ("trainer", "phase", "get_per_token_logps_and_entropies", ""): "log_probs",
    ("trainer", "work", "compute_logp", "recompute_logp"): "log_probs",  # of AReaL
    ("trainer", "work", "fit", "ppo_train"): "update",  # of OpenRLHF
    ("trainer", "work", "save_checkpoint", ""): "trainer",
    ("trainer", "unit", "micro-batch", "ref"): "log_probs",
}


def segment(kind: tuple[str, str, str, str], seconds: float) -> PathSegment:
    role, kind_, what, phase = kind
    return PathSegment(0, seconds, seconds, role, None, None, kind_, what, phase, 0)


def step(
    number: int, parts: Mapping[str, float], tokens: int | None = 1000, cause: Cause | None = None, **more: Any
) -> TrainingStep:
    path = tuple(segment(KINDS[name], seconds) for name, seconds in parts.items())
    whole = sum(parts.values())
    made = TrainingStep(
        number, 0, whole, whole, "limited" if cause else "typical", "", cause, None, path, (), 0, None, 0, (), 0, (),
        prefill_tokens=None if tokens is None else 400, decode_tokens=tokens,
    )  # fmt: skip
    return replace(made, **more)


def side(steps: Sequence[TrainingStep], name: str = "a", number: int = 1, **more: Any) -> ChosenSteps:
    run = Run(number, 0, 0, 1, ("verl 0.9.1", "vllm 0.27.0"))
    return ChosenSteps(Path(name), replace(RunTimeline(run, 1, (), tuple(steps), (), ()), **more))


def noisy(
    seed: int, count: int = 12, *, spread: float = 0.05, tokens: range = range(1000, 1001), **more: float
) -> list[TrainingStep]:
    """Steps of 1 s of decode, 0.5 s of update and 0.2 s of the driver, and what they take ``more``."""
    draw = Random(seed)
    parts = {"decode": 1.0, "update": 0.5, "driver": 0.2}
    parts |= {name: parts.get(name, 0) + seconds for name, seconds in more.items()}
    return [
        step(
            number,
            {name: seconds * draw.lognormvariate(0, spread) for name, seconds in parts.items()},
            draw.choice(tokens),
        )
        for number in range(1, count + 1)
    ]


def named(changes: Sequence[SecondsChange]) -> dict[str, str]:
    return {change.name: str(change.changed) for change in changes}


def test_a_change_is_found_in_the_part_where_it_was_made() -> None:
    found = compared(side(noisy(1)), side(noisy(2, decode=0.8, reward=0.3), "b"))
    assert (found.verdict, found.step.changed) == (SLOWER, "longer")
    assert named(found.parts) == {
        "decode": "longer", "reward": "longer", "update": "no clear change", "driver": "no clear change"
    }  # fmt: skip
    assert sum(part.change_seconds for part in found.parts) == pytest.approx(found.step.change_seconds)
    assert found.step.change_seconds == pytest.approx(1.1, abs=0.15)
    assert found.step.raw is not None
    assert found.step.raw.low < found.step.change_seconds < found.step.raw.high
    assert compared(side(noisy(2, decode=0.8)), side(noisy(1), "b")).verdict == FASTER


@pytest.mark.parametrize("kind", [*KINDS.items(), *((part, kind) for kind, part in MORE_KINDS.items())], ids=str)
def test_each_segment_of_a_path_belongs_to_one_part(kind: tuple[str, tuple[str, str, str, str]]) -> None:
    part, of_segment = kind
    one = replace(step(1, {}), critical_path=(segment(of_segment, 2.0),), seconds=2.0)
    found = compared(side([one]), side([one], "b"))
    assert [(change.name, change.before_seconds) for change in found.parts] == [(part, 2.0)]


def with_tokens(tokens: Sequence[int], more: float = 0.0, seed: int = 0) -> list[TrainingStep]:
    """Steps whose decode takes a millisecond a token, and ``more`` seconds."""
    draw = Random(seed)
    return [
        step(at, {"decode": 0.001 * count + more + draw.gauss(0, 0.01), "update": 0.5}, count)
        for at, count in enumerate(tokens, 1)
    ]


def test_a_change_that_tokens_explain_is_none_at_equal_tokens() -> None:
    """The answers of the later steps are longer: that alone makes decode longer."""
    early, late = with_tokens(range(500, 1700, 100)), with_tokens(range(1300, 2500, 100), seed=1)
    found = compared(side(early), side(late, "b"))
    assert (found.step.changed, found.step.changed_at_equal_tokens) == ("longer", "no clear change")
    decode = found.parts[0]
    assert decode.equal_tokens is not None
    assert decode.change_seconds == pytest.approx(0.8, abs=0.05)
    assert decode.equal_tokens.change == pytest.approx(0, abs=0.03)
    assert (found.before.decode_tokens, found.after.decode_tokens) == (1050, 1850)
    assert found.before.tokens_per_second == pytest.approx(1050 / 1.55, rel=0.02)


def test_a_change_that_tokens_hide_is_found_at_equal_tokens() -> None:
    found = compared(
        side(with_tokens(range(1300, 2500, 100))), side(with_tokens(range(500, 1700, 100), more=0.8, seed=1), "b")
    )
    assert (found.step.changed, found.step.changed_at_equal_tokens) == ("no clear change", "longer")
    assert found.step.equal_tokens is not None
    assert found.step.equal_tokens.change == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (with_tokens([500] * 8), with_tokens([1700] * 8, seed=1), "either all steps on one side"),
        (
            [step(at, {"decode": 1}, None) for at in range(8)],
            with_tokens(range(500, 1300, 100)),
            "an engine wrote no timeline file",
        ),
        (with_tokens([500] * 8), with_tokens([500] * 8, seed=1), "all steps have the same number of tokens"),
    ],
)
def test_what_equal_tokens_would_give_is_unknown_where_nothing_tells(
    before: list[TrainingStep], after: list[TrainingStep], reason: str
) -> None:
    found = compared(side(before), side(after, "b"))
    assert (found.step.equal_tokens, found.step.changed_at_equal_tokens) == (None, "unknown")
    assert any(reason in note for note in found.notes)


def test_chance_changes_nothing() -> None:
    """Steps of the same program, of which one in four has a delay of its own."""

    def half(draw: Random) -> list[TrainingStep]:
        delays = [draw.choice(["decode", "update", "driver"]) if draw.random() < 0.25 else "" for _ in range(20)]
        return [
            replace(of_delay, step=at)
            for at, delay in enumerate(delays)
            for of_delay in noisy(
                draw.randrange(1 << 30), 1, tokens=range(900, 1100), **({delay: 1.5} if delay else {})
            )
        ]

    draw = Random(0)
    found = [compared(side(half(draw)), side(half(draw), "b")) for _ in range(60)]
    assert sum(one.verdict != NO_DIFFERENCE for one in found) <= 6  # 3 are expected
    assert sum(any(part.changed != "no clear change" for part in one.parts) for one in found) <= 6


def test_a_change_has_the_interval_of_welchs_test() -> None:
    low, change, high = _change_with_interval([1, 2, 3, 4], [2, 4, 6, 8, 20], 1.959964)
    assert (low, change, high) == pytest.approx((-3.080, 5.5, 14.080), abs=0.001)  # 2.66 errors of 3.23: 4.33 degrees
    assert _change_with_interval([1, 1], [3, 3], 2) == (2, 2, 2)


@pytest.mark.parametrize(
    ("counts", "steps", "probability"),
    [
        ((0, 6), (12, 12), 0.013729), ((3, 0), (4, 4), 0.142857), ((1, 9), (12, 12), 0.002759), ((2, 2), (4, 4), 1.0),
        ((5, 0), (5, 3), 0.017857), ((0, 1), (2, 1), 0.333333), ((0, 0), (3, 4), 1.0),
    ],
)  # fmt: skip
def test_the_probability_of_a_difference_by_chance_is_that_of_fishers_test(
    counts: tuple[int, int], steps: tuple[int, int], probability: float
) -> None:
    assert _probability_by_chance(counts, steps) == pytest.approx(probability, abs=1e-6)


@pytest.mark.parametrize(
    ("low", "high", "direction"),
    [(0, 1, "no clear change"), (0.1, 1, "longer"), (-1, 0, "no clear change"), (-1, -0.1, "shorter")],
)
def test_a_change_is_clear_if_its_interval_is_on_one_side_of_0(low: float, high: float, direction: str) -> None:
    assert ChangeInterval(low, (low + high) / 2, high).direction == direction


def test_a_side_is_described_by_its_steps() -> None:
    steps = [
        step(at, {"decode": seconds}, tokens) for at, (seconds, tokens) in enumerate([(1, 100), (2, 300), (6, 500)], 1)
    ]
    lanes = (
        Lane("trainer", 0, None, 0, "a", 1, ""),
        Lane("trainer", 1, None, 1, "a", 2, ""),
        Lane("driver", 0, None, None, "a", 3, ""),
    )
    found = compared(side(steps, lanes=lanes), side([step(1, {"decode": 1}, None), *steps[:1]], "b"))
    packages = ("verl 0.9.1", "vllm 0.27.0")
    assert found.before == RunSide(Path("a"), packages, (1, 2, 3), {"trainer": 2, "driver": 1}, 2, 300, 400, 100)
    assert found.after == RunSide(Path("b"), packages, (1, 1), {}, 1, None, None, None)
    assert (found.step.before_seconds, found.step.after_seconds, found.step.change_seconds) == (3, 1, -2)


def width(change: SecondsChange) -> float:
    assert change.raw is not None
    return change.raw.high - change.raw.low


def test_the_more_parts_the_wider_their_intervals() -> None:
    """The only part is as long as the step, but idle roles are compared, too: all shall hold together."""

    def steps(seed: int) -> list[TrainingStep]:
        uses = tuple(RoleUse(role, 1, 1, 1, 0.5) for role in ("driver", "trainer", "engine", "reward"))
        return [replace(step(one.step, {"decode": one.seconds}), roles=uses) for one in noisy(seed)]

    found = compared(side(steps(1)), side(steps(2), "b"))
    assert 1.25 < width(found.parts[0]) / width(found.step) < 1.6  # 2.8 and 2.1 standard errors


def test_a_side_of_few_steps_that_scatter_widens_the_interval() -> None:
    few, many = noisy(1, 4, spread=0.5), noisy(2, 60, spread=0.01)
    errors = (statistics.variance(one.seconds for one in few) / 4) ** 0.5
    assert width(compared(side(few), side(many, "b")).step) / 2 > 2.9 * errors  # Student's t of three degrees


@pytest.mark.parametrize("count", [1, 3, 4])
def test_few_steps_have_no_interval(count: int) -> None:
    found = compared(side(noisy(1, count)), side(noisy(2, 9, decode=5), "b"))
    assert (found.step.raw is None, found.verdict == FEW) == (count < 4, count < 4)
    assert found.step.change_seconds == pytest.approx(5, abs=1)
    assert any("too few steps for a confidence interval" in note for note in found.notes) == (count < 4)
    assert {part.changed for part in found.parts} != {"unknown"} or count < 4


def test_the_warm_up_is_no_step_of_a_run_but_where_it_is_all() -> None:
    steps = noisy(1, 6)
    steps[0] = replace(steps[0], warm_up=True, seconds=99.0)
    assert compared(side(steps), side(noisy(2), "b")).before.steps == (2, 3, 4, 5, 6)
    alone = compared(side(steps[:1]), side(noisy(2), "b"))
    assert alone.before.steps == (1,)
    assert any("warm-up" in note for note in alone.notes)


def limited(steps: Sequence[TrainingStep], count: int, **cause: Any) -> list[TrainingStep]:
    what = Cause(**{
        "role": "reward", "replica": None, "rank": None, "what": "compute_score", "phase": "gen", "seconds": 2.0,
        "excess_seconds": 1.5, **cause,
    })  # fmt: skip
    return [replace(step, limited_by=what if at < count else None) for at, step in enumerate(steps)]


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (0, 6, "came"), (6, 0, "went"), (1, 11, "longer"), (11, 1, "shorter"), (0, 1, "no clear change"),
        (2, 0, "no clear change"), (5, 6, "no clear change"), (12, 12, "no clear change"),
    ],
)  # fmt: skip
def test_a_cause_came_or_went_if_chance_would_hardly_do_that(before: int, after: int, changed: str) -> None:
    steps = noisy(1, 12)
    (row,) = compared(side(limited(steps, before)), side(limited(steps, after), "b")).causes
    assert (row.before_steps, row.after_steps, row.changed) == (before, after, changed)
    assert (row.before_seconds, row.after_seconds) == (1.5 * before, 1.5 * after)


def test_the_cause_that_costs_most_on_either_side_comes_first() -> None:
    steps = noisy(1, 12)
    before = limited(steps, 3) + limited(steps, 1, role="agent")[:1]
    found = compared(side(before), side(limited(steps, 2, role="trainer"), "b"))
    assert [row.cause.role for row in found.causes] == ["reward", "trainer", "agent"]


def test_of_many_causes_chance_makes_some_come() -> None:
    """Five steps against none are rare for one cause, but not for each of thirteen."""
    steps = noisy(1, 12)
    one = compared(side(steps), side(limited(steps, 5), "b")).causes
    others = [limited([one], 1, rank=rank)[0] for rank, one in enumerate(steps)]
    many = compared(side(others), side(limited(steps, 5), "b")).causes
    assert (one[0].changed, {row.changed for row in many}) == ("came", {"no clear change"})


def test_the_time_beside_the_parts_is_compared_too() -> None:
    def steps(seed: int, more: float) -> list[TrainingStep]:
        return [
            replace(
                one, tail_seconds=0.1, imbalance=(Imbalance("ranks", ((0, 1.0), (1, 1.5)), more + one.seconds / 9),),
                roles=(RoleUse("trainer", 2, 1.0, more + one.seconds / 2, 0.5),),
            )
            for one in noisy(seed)
        ]  # fmt: skip

    found = compared(side(steps(1, 0.1)), side(steps(2, 0.9), "b"))
    assert named(found.beside) == {"tail": "no clear change", "ranks": "longer", "idle_trainer": "longer"}


def trl(count: int) -> list[TrainingStep]:
    path = tuple(segment(("trainer", "work", what, ""), 1.0) for what in ("generate", "train"))
    return [replace(step(at, {}), critical_path=path, seconds=2.0) for at in range(1, count + 1)]


def test_other_trainers_are_refused() -> None:
    (refusal,) = compared(side(noisy(1)), side(trl(9), "b")).refused
    assert re.findall(r"\(phases: .*?\)", refusal) == ["(phases: gen, update_actor, adv)", "(phases: generate, train)"]
    assert compared(side(trl(9)), side(trl(9), "b")).refused == ()
    silent = [replace(one, critical_path=()) for one in noisy(1)]
    assert [
        len(compared(*sides).refused) for sides in ((side(noisy(1)), side(silent)), (side(silent), side(silent)))
    ] == [1, 0]
    validating = [replace(one, critical_path=(*one.critical_path, segment(("driver", "phase", "testing", "testing"), 3)))
                  for one in noisy(2)]  # fmt: skip
    assert compared(side(noisy(1)), side(validating, "b")).refused == ()


def test_the_time_of_a_trainer_is_that_of_its_phases_and_of_works_without_one() -> None:
    kinds = [("engine", "iteration", "decode", "gen"), ("trainer", "work", "train", "gen"), ("trainer", "work", "train", ""),
             ("driver", "gap", "between phases", "")]  # fmt: skip
    path = tuple(segment(kind, seconds) for kind, seconds in zip(kinds, (1, 2, 4, 8), strict=True))
    assert _phase_seconds(side([replace(step(1, {}), critical_path=path)])) == {"gen": 3, "train": 4}


def test_what_differs_of_the_runs_is_said() -> None:
    lane = Lane("trainer", 0, None, 0, "host", 1, "python")
    other = side(noisy(2), "b", lanes=(lane,))
    other = other._replace(run=replace(other.run, run=replace(other.run.run, packages=("verl 0.10.0",))))
    found = compared(side(noisy(1), lanes=(lane, lane)), other)
    assert len(found.differs) == 2
    assert found.before.lanes == {"trainer": 2}


def test_a_run_is_compared_with_itself_without_a_word_on_samples() -> None:
    steps = noisy(1, 24)

    def notes(found: RunComparison) -> tuple[bool, bool]:
        text = " ".join(found.notes)
        return "one run per side" in text, "both sides" in text

    assert notes(compared(side(steps[:12]), side(steps[12:]))) == (False, False)
    assert notes(compared(side(steps[:12]), side(steps[8:]))) == (False, True)
    assert notes(compared(side(steps[:12]), side(steps[12:], "b", 2))) == (True, False)
    assert (
        compared(side(steps, missing=("no engine wrote a timeline file",)), side(steps))
        .notes[-1]
        .endswith("wrote a timeline file")
    )
