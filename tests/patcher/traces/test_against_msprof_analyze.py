"""Ascend's own analysis of a cluster as an oracle: its recipe of times says of real ranks what our report says."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fixtures import environments
from patcher.traces import analysis, folders, formats
from patcher.traces.analysis import ranks
from patcher.traces.tools import recipes
from tests.patcher.traces.recorded import SHARED, shared

pytestmark = [shared, pytest.mark.engine]

RECIPE = "cluster_time_summary"


def test_the_times_of_a_cluster_are_those_of_the_report(tmp_path: Path) -> None:
    """To the nanosecond: the step on the host, the parts on the device, and who waits for whom."""
    folder = Path(shutil.copytree(SHARED / "npu" / "db-level1", tmp_path / "db", copy_function=shutil.copyfile))
    for place in (folder, *filter(Path.is_dir, folder.rglob("*"))):
        place.chmod(0o755)  # the shared ones may only be read
    exe = environments.environment(environments.MSPROF_ANALYZE).with_name(recipes.PROGRAM)
    (left,) = recipes.run(str(exe), folder, [RECIPE], patience=300, done=lambda _: None)
    (file,) = left.files
    with closing(sqlite3.connect(file)) as database:
        database.row_factory = sqlite3.Row
        rows = {row["rank"]: row for row in database.execute("SELECT * FROM ClusterTimeSummary")}
    captures = []
    for path in folders.readable(folder):
        (timeline,) = formats.read(path)
        captures.append(analysis.checked(timeline, analysis.attributed(timeline)))
    found, exact = ranks.met(captures)
    assert exact
    assert sorted(rows) == [capture.rank for capture in captures] == [0, 1]
    for capture, met in zip(captures, found, strict=True):
        (unit,) = capture.units
        told = {
            "step": unit.number,
            "stepTime": unit.host_ns,
            "computation": unit.compute_ns + unit.overlap_ns,
            "communicationOverlapComputation": unit.overlap_ns,
            "communicationNotOverlapComputation": unit.communication_ns,
            "communication": unit.communication_ns + unit.overlap_ns,
            "communicationWaitStageTime": met.waits_ns,
        }
        row = rows[capture.rank]
        assert {name: row[name] if name == "step" else round(row[name] * 1000) for name in told} == told
