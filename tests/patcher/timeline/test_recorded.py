from __future__ import annotations

import json
from pathlib import Path

import pytest

from fixtures.timeline.small import STEP, WALL, small
from patcher.timeline import files, recorded, runs
from patcher.timeline.join import join
from patcher.timeline.model import Lane, Run, RunTimeline
from patcher.traces.sidecar import Metadata


def joined(folder: Path) -> RunTimeline:
    ((run, processes),) = runs.survey(files.paths(folder)).runs
    return join(run, processes, folder)


def facts(folder: Path, **more: object) -> Path:
    """Facts of a window in the engine, of 100 ms in the middle of the second step."""
    begin = (WALL + 3 * STEP // 2) * 1_000
    units = [
        {"number": 30 + at, "begin": begin + at * 50_000_000, "end": begin + (at + 1) * 50_000_000} for at in (0, 1)
    ]
    known = {"format": 1, "host": "node0", "pid": 31, "unit": "decode", "window": "30:32", "units": units}
    trace = folder / "node0_dp0_rank0_31.123.pt.trace.json.gz"
    trace.write_bytes(b"")
    trace.with_name(f"{trace.name}.rlpatch.json").write_text(json.dumps({**known, **more}))
    return trace


def test_a_window_that_was_recorded_lies_where_it_was_on_the_clock_of_the_run(tmp_path: Path) -> None:
    small(tmp_path)
    trace = facts(tmp_path)
    found = joined(tmp_path)
    (window,) = found.recorded
    assert (window.trace, window.title, window.report) == (trace, "decode 30:32", f"rlpatch report {trace}")
    assert window.start == pytest.approx(found.steps[1].start + 0.5, abs=0.005)
    assert window.end - window.start == pytest.approx(0.1)
    assert window.lane is not None
    assert found.lanes[window.lane].pid == 31


@pytest.mark.parametrize(
    ("units", "times"),
    [
        ([{"begin": 1, "end": (1 << 63) - 1}], (1e-9, ((1 << 63) - 1) / 1e9)), ([{"begin": 0, "end": 5}, 3], (5e-9, 5e-9)),
        ([{"begin": 7, "end": 1 << 63}, {"begin": True, "end": 9}], (7e-9, 9e-9)), ([], None), ("x", None),
    ],
)  # fmt: skip
def test_the_times_of_a_window_are_those_of_its_first_and_last_step(
    units: object, times: tuple[float, float] | None
) -> None:
    assert recorded._begin_and_end(Metadata({"units": units})) == times


def test_windows_are_in_order_to_the_microsecond(tmp_path: Path) -> None:
    lanes = [Lane("driver", 0, None, None, "node.0", 5, ""), Lane("engine", 1, 0, 0, "node.0", 31, "")]
    for number, (begin, pid) in enumerate([(9, 31), (2, 5), (4, 7)]):
        known = {"format": 1, "host": "node_0", "pid": pid, "unit": "decode", "window": f"{number}:9"}
        units = [{"begin": begin * 10**9 + 1_234_567, "end": (begin + 1) * 10**9}]
        (tmp_path / f"{number}.json.rlpatch.json").write_text(json.dumps({**known, "units": units}))
    found = recorded.windows(tmp_path, lanes, Run(1, 1.0, 1.0, 1, (), ""), 1.0)
    assert [(window.title, window.start, window.end, window.lane) for window in found] == [
        ("decode 1:9", 1.001235, 2.0, 0), ("decode 2:9", 3.001235, 4.0, None), ("decode 0:9", 8.001235, 9.0, 1)
    ]  # fmt: skip


@pytest.mark.parametrize(("after", "shown"), [(-60.5, False), (-59.5, True), (64.5, True), (65.5, False)])
def test_a_window_is_of_a_run_from_a_minute_before_it_to_a_minute_behind_it(
    after: float, shown: bool, tmp_path: Path
) -> None:
    small(tmp_path)
    begin = WALL * 1_000 + round(after * 1e9)
    facts(tmp_path, unit="", window="", stage="weight-sync", units=[3, {"begin": begin, "end": begin + 2 * 10**9}])
    assert [(window.title, window.lane is None) for window in joined(tmp_path).recorded] == (
        [("weight-sync", False)] if shown else []
    )


@pytest.mark.parametrize(
    "more",
    [
        {"units": []},
        {"units": 3},
        {"units": [{"begin": "x"}]},
        {"format": 9},
        {"units": [{"begin": 1}]},
        {"units": [{"begin": 1 << 63, "end": 0}]},
        {"units": [{"begin": 3 << 62, "end": 0}]},
        {"units": [{"begin": 10**400}]},
    ],
    ids=lambda more: repr(more)[:40],
)
def test_facts_of_another_run_or_without_times_are_left_out(more: dict[str, object], tmp_path: Path) -> None:
    small(tmp_path)
    facts(tmp_path, **more)
    assert joined(tmp_path).recorded == ()
