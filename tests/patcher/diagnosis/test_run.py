"""The diagnosis of engines by few iterations that are all alike: what limits it, and what to record next."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace as Some
from typing import Any

import numpy as np
import pytest

from fixtures.iterations import decodes
from patcher.diagnosis import composition, run
from patcher.diagnosis.engines import Engine
from patcher.diagnosis.iterations import Iterations
from patcher.diagnosis.run import diagnose, planned_windows


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


@pytest.fixture
def _without_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit once, since 40 fits take half a second."""
    monkeypatch.setattr(composition, "RESAMPLES", 1)


def recorded(*numbers: int, ns: int = 10**9) -> Any:
    """A profile of the iterations with these ids, of which each has ``ns`` of matmuls."""
    return Some(
        units=[Some(number=number, classes={"gemm": ns}) for number in numbers], cold=(), kernels=(), source="/t/a.json",
        facts={"units": [{"number": number, "iteration": number} for number in numbers]},
        metadata=Some(stage="rollout", pid=7, host="node0", unit="iterations", window=None),
    )  # fmt: skip


def forty_each(usual: float = 1.0, **seconds: float) -> Engine:
    """Two rollouts of 40 iterations of ``usual`` seconds, but for those of some ids (``at`` and the id)."""
    ids, took = np.arange(1, 81), np.full(80, usual)
    for name, length in seconds.items():
        took[int(name.removeprefix("at")) - 1] = length
    return engine(replace(decodes([4] * 80, took.tolist()), rollout=np.repeat([0, 1], 40), id=ids))


@pytest.mark.usefixtures("_without_intervals")
@pytest.mark.parametrize(("count", "classes"), [(0, []), (1, []), (2, []), (3, ["gemm"]), (5, ["gemm"])])
def test_three_recorded_iterations_tell_the_classes(count: int, classes: list[str]) -> None:
    diagnosis = diagnose([forty_each(0.01)], [recorded(*range(50, 50 + count), ns=10**7)], replays=False)
    (stage,) = diagnosis.stages
    assert (stage.recorded, stage.supported) == (count, bool(classes))
    assert (stage.recording_seconds, stage.waiting_seconds) == (0, 0)
    assert stage.seconds == pytest.approx(0.4)
    assert [(part.share, part.ms_each) for part in stage.by_load] == [pytest.approx((1, 10))]
    assert [part.name for part in stage.classes] == classes
    assert [part.share for part in stage.classes] == pytest.approx([1.0] * len(classes))
    assert [(part.load, part.iterations, part.supported, part.error is None) for part in stage.by_load] == [
        ("full", 40, bool(classes), not classes)
    ]
    assert bool(stage.why) == (not classes)
    assert (diagnosis.planned is None, diagnosis.planned_decodes is None) == (bool(classes),) * 2


@pytest.mark.usefixtures("_without_intervals")
@pytest.mark.parametrize(
    ("seconds", "recording", "waiting"),
    [
        ({"at51": 1.55}, 0.55, 0), ({"at51": 1.45}, 0, 0), ({"at54": 1.55}, 0.55, 0), ({"at55": 1.55}, 0, 0), ({"at48": 1.55}, 0.55, 0),
        ({"at47": 1.55}, 0, 0), ({"at70": 3.05}, 0, 2.05), ({"at70": 2.95}, 0, 0), ({"at51": 9, "at70": 5}, 8, 4), ({"at9": 9}, 0, 0),
    ],
    ids=str,
)  # fmt: skip
def test_the_cost_of_recording_and_waits_are_no_work(
    seconds: dict[str, float], recording: float, waiting: float
) -> None:
    """Iterations 50 to 52 of ids 41 to 80 were recorded."""
    diagnosis = diagnose([forty_each(**seconds)], [recorded(50, 51, 52)], replays=False)
    (stage,) = diagnosis.stages
    assert (stage.recording_seconds, stage.waiting_seconds) == pytest.approx((recording, waiting), abs=0.01)
    whole = 40 + sum(length - 1 for name, length in seconds.items() if name != "at9")
    assert stage.seconds == pytest.approx(whole - recording - waiting, abs=0.01)
    assert any("waiting" in note for note in diagnosis.notes) == (waiting > 0.05 * stage.seconds)


@pytest.mark.parametrize(("longest", "alike"), [(40, True), (44, True), (45, False)])
def test_rollouts_are_alike_if_none_is_a_tenth_longer(longest: int, alike: bool) -> None:
    """The tail of the longest one was not recorded; the first and the last rollout do not count."""
    requests = [8] * 40 + [8] * 40 + [8] * 30 + [1] * (longest - 30) + [8] * 5
    iterations = decodes(requests, [1.0] * len(requests))
    iterations = replace(iterations, rollout=np.repeat([0, 1, 2, 3], [40, 40, longest, 5]))
    so_far: Any = Some(withheld=("tail",), recorded_features=iterations.features[:3], recorded_numbers=(1, 2, 3))
    planned = planned_windows([engine(iterations)], so_far)
    assert planned is not None
    assert (planned.load, planned.tail) == (0, 0 if alike else 1)
    assert alike or all(0 <= start < end <= longest - 31 for start, end in planned.windows)  # 30 is the first with one


def test_windows_count_from_a_load_that_the_studied_rollout_has() -> None:
    """It has no tail."""
    iterations = replace(decodes([8] * 130, [1.0] * 130), rollout=np.repeat([0, 1, 2, 3], [40, 40, 45, 5]))
    so_far: Any = Some(withheld=("tail", "full"), recorded_features=iterations.features[:3], recorded_numbers=(1, 2, 3))
    planned = planned_windows([engine(iterations)], so_far)
    assert planned is not None
    assert (planned.load, planned.tail) == (6, 0)
    so_far.recorded_numbers = (8, 20, 30, 40)  # of another rollout, which was not as long
    assert planned_windows([engine(iterations)], so_far) == planned


@pytest.mark.parametrize(
    ("longest", "withheld", "decode_only", "taken", "lacking"),
    [
        (44, ("middle", "tail"), False, (1, 2), range(20, 44)), (44, ("tail",), True, (), range(30, 44)),
        (45, ("middle", "tail"), False, (), range(20, 30)), (44, (), False, (1, 2), None),
    ],
)  # fmt: skip
def test_windows_lie_where_results_are_withheld_and_away_from_recorded_iterations(
    longest: int, withheld: tuple[str, ...], decode_only: bool, taken: tuple[int, ...], lacking: range | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """If rollouts differ in length, the windows are for the load with the largest share alone."""
    requests = [8] * 80 + [8] * 20 + [4] * 10 + [1] * (longest - 30) + [8] * 5
    iterations = decodes(requests, [1.0] * len(requests))
    iterations = replace(iterations, rollout=np.repeat([0, 1, 2, 3], [40, 40, longest, 5]))
    so_far: Any = Some(withheld=withheld, recorded_features=iterations.features[:2], recorded_numbers=(1, 2))
    choices = list[dict[str, Any]]()

    def choose(_: Iterations, **choice: Any) -> list[tuple[int, int]]:
        choices.append(choice)
        return [(20, 25)]

    monkeypatch.setattr(run, "choose_windows", choose)
    planned_windows([engine(iterations)], so_far, decode_only=decode_only)
    (choice,) = choices
    assert choice["taken"] == taken
    assert (choice["lacking"] is None) == (lacking is None)
    assert lacking is None or np.flatnonzero(choice["lacking"]).tolist() == [*lacking]


@pytest.mark.usefixtures("_without_intervals")
@pytest.mark.parametrize(("numbers", "note"), [((76, 77, 78, 79), ""), ((77, 78, 79, 80, 81), "2 of 5")])
def test_recorded_iterations_that_are_not_used_are_counted(numbers: tuple[int, ...], note: str) -> None:
    """80 is the last of its rollout, and 81 is not in the timeline."""
    diagnosis = diagnose([forty_each()], [recorded(*numbers)], replays=False)
    assert [note in text for text in diagnosis.notes] == [True] * bool(note)
    (window,) = diagnosis.windows
    assert (window.iterations, window.joined) == (len(numbers), len(numbers) - 2 * bool(note))
