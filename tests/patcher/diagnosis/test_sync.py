"""The diagnosis of a recorded weight sync, by its figures."""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import Any

import pytest

from patcher.diagnosis.model import StageDiagnosis
from patcher.diagnosis.sync import diagnose_sync, scaled


def profile(role: str, *units: dict[str, int], stage: str = "weight-sync") -> Any:
    """A profile of these units: class → ns."""
    metadata = Some(stage=stage, role=role, unit="call", window=None)
    return Some(metadata=metadata, units=[Some(classes=classes) for classes in units], source=f"/t/{role}.json")


def test_a_sync_is_that_of_the_trainer() -> None:
    rollout, trainer = profile("rollout", {"copy": 10**9}), profile("trainer", {"copy": 3 * 10**9}, {"gemm": 10**9})
    (stage,), windows = diagnose_sync([profile("actor", {"gemm": 1}, stage="update-policy"), rollout, trainer])
    assert (stage.seconds, stage.supported, stage.recorded, stage.iterations, stage.turns) == (4, True, 2, 2, 1)
    assert (stage.recording_seconds, stage.waiting_seconds) == (0, 0)
    assert [(part.name, part.share, part.interval, part.seconds) for part in stage.classes] == [
        ("copy", 0.75, 0.02, 3),
        ("gemm", 0.25, 0.02, 1),
    ]
    assert [(window.trace, window.joined) for window in windows] == [("/t/rollout.json", 1), ("/t/trainer.json", 2)]


def test_a_sync_without_kernels_says_so_and_without_a_sync_there_is_none() -> None:
    (stage,), _ = diagnose_sync([profile("trainer", {})])
    assert (stage.supported, stage.classes, bool(stage.why)) == (False, (), True)
    assert diagnose_sync([profile("trainer")]) == diagnose_sync([]) == ((), ())


@pytest.mark.parametrize(
    ("seconds", "supported", "classes"),
    [(8.0, True, [6, 2]), (4.0, True, [3, 1]), (3.99, False, []), (0.0, True, [0, 0])],
)
def test_a_sync_stands_for_all_unless_it_took_over_three_times_as_long(
    seconds: float, supported: bool, classes: list[float]
) -> None:
    """The recorded one took 4 s; there are three steps."""
    (stage,), _ = diagnose_sync([profile("trainer", {"copy": 3 * 10**9, "gemm": 10**9})])
    of_all: StageDiagnosis = scaled(stage, seconds, 3)
    assert (of_all.seconds, of_all.turns, of_all.supported, bool(of_all.why)) == (seconds, 3, supported, not supported)
    assert [part.seconds for part in of_all.classes] == pytest.approx(classes)
