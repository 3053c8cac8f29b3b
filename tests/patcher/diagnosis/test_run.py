"""The diagnosis of engines without a recorded window: what limits it, and what to record next."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from patcher.diagnosis.engines import Engine
from patcher.diagnosis.iterations import Iterations
from patcher.diagnosis.run import diagnose, planned_windows
from tests.patcher.diagnosis.test_actions import decodes


def engine(iterations: Iterations, between: float = 0.0, package: str = "sglang") -> Engine:
    return Engine("node0", 7, None, package, iterations, np.full(len(iterations), between))


def two_rollouts(context: int = 100) -> Iterations:
    iterations = decodes([4] * 12, [1.0] * 12, context=context)
    return replace(iterations, rollout=np.repeat([0, 1], 6))


@pytest.mark.parametrize(
    ("engines", "notes"),
    [
        ([engine(two_rollouts())], []),
        ([engine(two_rollouts(context=0))], ["context lengths"]),
        ([engine(decodes([4] * 6, [1.0] * 6))], ["only one rollout"]),
        ([engine(two_rollouts()), engine(decodes([4] * 6, [1.0] * 6))], ["2 engines"]),
        ([engine(two_rollouts()), engine(decodes([], []))], []),
    ],
    ids=["two rollouts", "no contexts", "one rollout", "two engines", "one without iterations"],
)
def test_what_limits_a_diagnosis_is_noted(engines: list[Engine], notes: list[str]) -> None:
    diagnosis = diagnose(engines, [], replays=False)
    assert len(diagnosis.notes) == len(notes)
    assert all(words in note for words, note in zip(notes, diagnosis.notes, strict=True))
    assert (diagnosis.package, diagnosis.what_ifs) == ("sglang", ())
    assert diagnosis.rollouts == max(each.rollouts for each in engines)
    assert diagnose(engines, []).what_ifs


def test_the_first_rollout_is_a_warm_up() -> None:
    diagnosis = diagnose([engine(two_rollouts(), between=0.25)], [], replays=False)
    (stage,), planned, planned_decodes = diagnosis.stages, diagnosis.planned, diagnosis.planned_decodes
    assert [each and each.windows for each in (planned, planned_decodes)] == [((1, 6),), ((2, 7),)]
    assert (stage.seconds, stage.iterations, stage.turns, stage.between_seconds) == (6, 6, 1, 1.5)
    (only,) = diagnose([engine(decodes([4] * 6, [1.0] * 6), between=0.25)], [], replays=False).stages
    assert (only.seconds, only.between_seconds) == (6, 1.5)


@pytest.mark.parametrize(("decode_only", "windows"), [(False, ((1, 6),)), (True, ((2, 7),))])
def test_decode_steps_count_from_one(decode_only: bool, windows: tuple[tuple[int, int], ...]) -> None:
    six = engine(decodes([4] * 6, [1.0] * 6))
    planned = planned_windows([engine(decodes([], [])), six], decode_only=decode_only)
    assert planned is not None
    assert (planned.windows, planned.load, planned.tail) == (windows, 0, 0)
    of_prompts = engine(decodes([4] * 6, [1.0] * 6, prompts=9))
    assert (planned_windows([of_prompts], decode_only=decode_only) is None) == decode_only


@pytest.mark.parametrize(
    ("rollouts", "studied"), [(0, []), (1, [0]), (2, [0]), (3, [1]), (6, [1, 2, 3, 4]), (7, [2, 3, 4, 5])]
)
def test_windows_are_planned_by_the_newest_rollouts_that_have_ended(rollouts: int, studied: list[int]) -> None:
    iterations = replace(decodes([4] * rollouts, [1.0] * rollouts), rollout=np.arange(rollouts))
    assert [of.rollout.tolist() for of in engine(iterations).whole_rollouts] == [[number] for number in studied]
    assert engine(iterations).rollouts == rollouts
