"""Join of a long run, and what it keeps in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.timeline.small import small
from patcher.timeline import join as joining
from patcher.timeline import runs
from patcher.timeline.files import paths
from patcher.timeline.model import RunTimeline
from patcher.timeline.path import PathPiece


def piece(start: int, end: int) -> PathPiece:
    return PathPiece(start, end, "driver", "phase", str(start), "", 0)


@pytest.mark.parametrize(
    ("ends", "most", "kept"),
    [
        ([5, 9], 2, [(0, 5), (5, 9)]),
        ([1, 8, 9, 20], 2, [(0, 9), (9, 20)]),
        ([1, 8, 9, 20], 3, [(0, 1), (1, 9), (9, 20)]),
        ([2, 4, 6, 8, 10], 2, [(0, 8), (8, 10)]),
        ([2, 4, 6, 8, 10], 4, [(0, 4), (4, 6), (6, 8), (8, 10)]),
    ],
)
def test_the_shortest_pieces_of_a_path_go_to_those_before_them(
    ends: list[int], most: int, kept: list[tuple[int, int]]
) -> None:
    path = [piece(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    assert [(one.start, one.end) for one in joining.thinned(path, most)] == kept


def test_a_long_run_has_shorter_paths_and_the_same_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path, steps=40)

    def joined() -> RunTimeline:
        run, processes = runs.survey(paths(tmp_path)).runs[0]
        found = joining.join(run, processes)
        for step in found.steps:
            assert sum(one.seconds for one in step.critical_path) == pytest.approx(step.seconds)
        return found

    whole = joined()
    monkeypatch.setattr(joining, "MOST_SEGMENTS", 150)
    monkeypatch.setattr(joining, "FEWEST_PIECES", 4)
    bounded = joined()
    assert {len(step.critical_path) for step in bounded.steps} == {4}
    assert min(len(step.critical_path) for step in whole.steps) > 4
    assert bounded.path_seconds == whole.path_seconds
    assert len(whole.path_seconds) > 4
    for ours, theirs in zip(bounded.causes, whole.causes, strict=True):
        assert (ours.title, ours.seconds, ours.steps) == (theirs.title, theirs.seconds, theirs.steps)


def test_a_step_that_the_driver_marks_twice_is_one(tmp_path: Path) -> None:
    """As verl's fully_async: it logs the metrics of its rollouts, and a moment later those of the training."""
    small(tmp_path, steps=4, twice=True)
    run, processes = runs.survey(paths(tmp_path)).runs[0]
    steps = joining.join(run, processes).steps
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert [step.seconds for step in steps] == pytest.approx([1.0] * 4)
