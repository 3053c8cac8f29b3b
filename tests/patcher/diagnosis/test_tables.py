"""The tables of a diagnosis: their rows, and the units of their columns."""

from __future__ import annotations

import pytest

from patcher.diagnosis import tables
from patcher.diagnosis.model import Action, ClassShare, DiagnosedWindow, LoadPart, RunDiagnosis, StageDiagnosis, WhatIf
from patcher.table import Unit

SHARE = ClassShare("gemm", 0.25, 0.012, 1.5)
STAGE = StageDiagnosis(
    "rollout", 6, supported=True, why="", turns=1, iterations=4, recorded=2, recording_seconds=0, waiting_seconds=0,
    classes=(SHARE,), by_load=(LoadPart("full", 0.5, 3, 1_234.5, (SHARE,), -0.04, supported=False, why="a reason"),),
    step_seconds=2, limited_by="an engine",
)  # fmt: skip
DIAGNOSIS = RunDiagnosis(
    (STAGE,), (Action("what", 3, "because"),), (DiagnosedWindow("rollout", "--decode 3:7", "a.json", 4, 2, "report"),),
    what_ifs=(WhatIf("tail-cut", 1_000, None, 2, 3, "because"),), steps=2, seconds=8,
)  # fmt: skip


def test_each_table_has_its_rows() -> None:
    assert [(dict(more), table.name, [[*row] for row in table.rows]) for more, table in tables.of_diagnosis(DIAGNOSIS)] == [
        ({}, "diagnosed_stages", [["rollout", 2, 0.25, 6, "an engine", True, ""]]),
        ({"stage": "rollout"}, "diagnosed_classes", [["matmul", "gemm", 0.25, 0.012, 1.5]]),
        ({"stage": "rollout"}, "diagnosed_loads", [["full load", "full", 0.5, 3, 1_234.5, -0.04, False, "a reason"]]),
        ({"stage": "rollout"}, "diagnosed_load_classes", [["full load", "full", "matmul", "gemm", 0.25, 1.5]]),
        ({}, "diagnosed_actions", [["what", 3, "because"]]),
        ({}, "diagnosed_what_ifs", [["tail-cut", 1_000, None, 2, 3, "because"]]),
        ({}, "diagnosed_windows", [["rollout", "--decode 3:7", 4, 2, "report", "a.json"]]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        (tables.SECONDS, "1,000.0 s"), (tables.ESTIMATE, "1,000.0 s"), (tables.SHARE, "100000.0 %"),
        (tables.HALF_WIDTH, "± 100000.0 %"), (tables.SIGNED, "+100000 %"), (tables.MILLISECONDS, "1,000.0 ms"),
    ],
)  # fmt: skip
def test_numbers_have_their_units(unit: Unit, text: str) -> None:
    assert unit.text(1_000) == text


def test_what_fills_a_cell_and_what_is_optional() -> None:
    columns = {
        (table.name.removeprefix("diagnosed_"), column.key): column
        for _, table in tables.of_diagnosis(DIAGNOSIS)
        for column in table.columns
    }
    assert {key for key, column in columns.items() if column.bar} == {
        ("stages", "step_seconds"), ("classes", "share"), ("loads", "share"), ("load_classes", "share"),
        ("actions", "bound_seconds"),
    }  # fmt: skip
    assert {key for key, column in columns.items() if column.optional} == {("stages", "why"), ("loads", "why")}
    assert tables.SHARE.whole == 1
    for key in ("stages", "loads"):
        assert [columns[key, "supported"].unit.text(supported) for supported in (True, False)] == ["yes", "no"]
    assert columns["what_ifs", "setting"].unit.text(1_000) == "1,000"
    assert [columns["what_ifs", key].unit.missing for key in ("setting", "seconds")] == ["-", "-"]
