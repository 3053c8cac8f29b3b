"""Facts beside a trace: what is taken from them, what is not, and what they contradict."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patcher.commands.reports import tracing
from patcher.messages import tables
from patcher.messages.report import CommandResult, json_of
from patcher.traces import analysis, formats, sidecar
from tests.alarms import at_most
from tests.matrix import examples
from tests.patcher.workers.maker import ROLLOUT, TRAINING, VALUES, Saved

NAME = "node1_dp0_rank0_4711.1732262400.pt.trace.json"


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path / "traces")


def steps(*numbers: int) -> str:
    events = [{"ph": "X", "name": f"ProfilerStep#{number}", "ts": number, "dur": 1} for number in numbers]
    return json.dumps({"traceEvents": events})


def told(saved: Saved) -> tuple[CommandResult, list[dict[str, Any]]]:
    report = tracing.traces(saved.path)
    rows: Any = report.data["captures"]
    return report, rows


def test_the_row_of_a_trace_has_what_the_facts_say(saved: Saved) -> None:
    saved.trace(NAME, steps(*range(30, 60)), ranks="0,3", world=8, rollout=4)
    report, (row,) = told(saved)
    assert (row["target"], row["release"], row["stage"], row["rollout"]) == ("vllm", "0.32.0", "rollout", 4)
    assert (row["asked"], row["got"], row["ranks"]) == ("30:60", "30:60", "0, missing 3")
    assert report.messages == ()


def test_a_trace_without_facts_stays_as_it_was(saved: Saved) -> None:
    saved.trace(NAME, steps(30)).with_name(f"{NAME}.rlpatch.json").unlink()
    report, (row,) = told(saved)
    assert (row["target"], row["asked"], row["got"], row["uncounted"]) == ("", "", "30:31", {})
    assert report.messages == ()


def test_facts_that_are_a_pipe_are_not_waited_for(saved: Saved) -> None:
    saved.path.mkdir(exist_ok=True)
    (saved.path / NAME).write_text(steps(30, 31))
    os.mkfifo(saved.path / f"{NAME}.rlpatch.json")
    with at_most(30):
        assert told(saved)[1][0]["state"] == "whole"


def test_every_form_of_a_trace_finds_its_facts(saved: Saved) -> None:
    folder = saved.path / "node1_dp0_rank0_4711_20261122041741276_ascend_pt"
    (folder / "FRAMEWORK").mkdir(parents=True)
    packed = saved.trace(f"{NAME}.gz", "x")
    saved.facts(folder, backend="npu")
    for trace in (folder, packed):
        found = sidecar.read_beside(trace)
        assert found is not None
        assert found.units
    saved.facts(saved.path / NAME)
    assert sidecar.read_beside(packed.with_suffix("")) is not None


WINDOWS: dict[str, tuple[dict[str, Any], str, tuple[int, int | None] | None]] = {
    "a window": ({}, "30:60", (30, 60)),
    "or leave the end out: --": ({"window": "30:"}, "30:", (30, None)),
    "one of several": ({"window": "30:60,100:110", "units": [{"number": 100}]}, "100:110", (100, 110)),
    "behind a condition": ({"window": "0:10", "tail": 8}, "0:10 at tail 8", (0, 10)),
    "behind several": ({"window": "0:10", "load": 256, "context": 8192}, "0:10 at load 256, context 8192", (0, 10)),
    "of which nothing is there": ({"window": "1:2,5:6"}, "1:2,5:6", None),
    "nothing": ({"window": 5}, "", None),
}  # fmt: skip


@pytest.mark.parametrize(("more", "words", "span"), WINDOWS.values(), ids=WINDOWS)
def test_the_window_that_was_asked_for(more: dict[str, Any], words: str, span: object) -> None:
    content = {name: value for name, value in {**ROLLOUT, **more}.items() if value is not None}
    found = sidecar.metadata_from(content)
    assert (found.window.text if found.window else "", found.window and found.window.extent) == (words, span)


def test_uncounted_iterations_are_told_since_the_window_was_opened() -> None:
    units = [{"number": at, "uncounted": count} for at, count in ((30, 0), (31, 2), (32, 2), (33, 5))]
    assert sidecar.metadata_from({"units": units}).uncounted == {31: 2, 33: 3}


def test_what_a_probe_says_in_other_words() -> None:
    told = {
        "window": "30:60,100:110", "ranks": ["0", "3"], "units": [{"number": at} for at in range(100, 104)],
        "why": "all requests have finished, recorded 4 of 10 decode steps with 0 uncounted iterations between them: /t/a",
    }  # fmt: skip
    found = sidecar.metadata_from(told)
    assert (found.window, found.ranks) == (sidecar.UnitWindow((100, 110)), "0,3")
    assert found.closed == "all requests have finished"


def test_several_windows_are_several_captures_and_replicas_of_one_condition_are_one(saved: Saved) -> None:
    for first, end in ((30, 60), (100, 110)):
        name = f"node1_dp0_rank0_4711.{first}.pt.trace.json"
        saved.trace(name, steps(*range(first, end)), units=range(first, end), window="30:60,100:110")
    for rank, first in enumerate((2063, 1999)):
        name = f"node1_dp{rank}_rank{rank}_{rank}.7.pt.trace.json"
        more = {
            "window": "0:10",
            "tail": 8,
            "rank": rank,
            "dp": rank,
            "pid": rank,
            "ranks": "all",
            "world": 2,
            "target": "sglang",
        }
        saved.trace(name, steps(*range(first, first + 10)), units=range(first, first + 10), **more)
    report, rows = told(saved)
    assert sorted((row["asked"], row["got"], row["ranks"]) for row in rows) == [
        ("0:10 at tail 8", "10 steps per worker", "0,1"), ("100:110", "100:110", "0"), ("30:60", "30:60", "0"),
    ]  # fmt: skip
    assert report.messages == ()


def test_why_a_window_was_closed_early_is_said(saved: Saved) -> None:
    saved.trace(
        NAME, steps(30, 31), units=range(30, 32), why="all requests have finished, recorded 2 of 30 decode steps"
    )
    report, (row,) = told(saved)
    assert (row["closed"], row["got"]) == ("all requests have finished", "30:32 (2 of 30 steps)")
    assert "  1  the recording window ended early: all requests have finished" in report.lines
    assert report.messages == ()


def test_uncounted_iterations_are_said(saved: Saved) -> None:
    path = saved.trace(NAME, steps(30, 31, 32), units=range(30, 33), window="30:33")
    content = json.loads((saved.path / f"{NAME}.rlpatch.json").read_text())
    for unit, count in zip(content["units"], (5, 5, 7), strict=True):
        unit["uncounted"] = count
    path.with_name(f"{NAME}.rlpatch.json").write_text(json.dumps(content))
    report, (row,) = told(saved)
    assert row["uncounted"] == {30: 5, 32: 2}
    assert "  1  7 iterations right before #30, #32 were not counted as steps" in report.lines


# ---------------------------------------------------------------- what they contradict

THIRTY = steps(*range(30, 60))
DOUBTS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "nothing": (THIRTY, {}, []),
    "another rank": (THIRTY, {"rank": 2}, ["rank is 0 in the trace's name, but 2 in the step metadata"]),
    "another process": (THIRTY, {"pid": 1}, ["pid is 4711 in the trace's name, but 1 in the step metadata"]),
    "another host": (THIRTY, {"host": "node2"}, ["host is node1 in the trace's name, but node2 in the step metadata"]),
    "another stage": (THIRTY, {"stage": "update-policy"}, ["stage is rollout in the trace's name, but update-policy in the step metadata"]),
    "another replica": (THIRTY, {"dp": 3}, ["replica is 0 in the trace's name, but 3 in the step metadata"]),
    "another profiler": (THIRTY, {"backend": "npu"}, ["the step metadata says that npu recorded this trace, but the trace has another format"]),
    "the steps are marked differently: by": (
        THIRTY, {"units": range(60, 90)}, ["the step metadata lists 30 steps, 60 to 89, but the trace has 30 steps, 30 to 59"]),
    "more steps": (
        steps(30, 31, 35), {"why": "the rollout ended"},
        ["the step metadata lists 30 steps, 30 to 59, but the trace has 3 of the steps 30 to 35"]),
    "none": (steps(), {}, ["the step metadata lists 30 steps, 30 to 59, but the trace has no steps"]),
    "complete with too few": (
        steps(30, 31), {"units": range(30, 32)}, ["the step metadata says that the recording window is complete, but lists only 2 of 30 steps"]),
    "complete with too few from where a condition holds": (
        steps(70, 71), {"units": range(70, 72), "window": "0:10", "tail": 8},
        ["the step metadata says that the recording window is complete, but lists only 2 of 10 steps"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "more", "doubts"), DOUBTS.values(), ids=DOUBTS)
def test_what_contradicts_the_trace_is_said(saved: Saved, text: str, more: dict[str, Any], doubts: list[str]) -> None:
    saved.trace(NAME, text, **more)
    report, (row,) = told(saved)
    assert row["traces"][0]["doubts"] == doubts
    assert list(report.messages) == [f"warning: {NAME}: {doubt}" for doubt in doubts]


def test_training_stages_have_step_and_role(saved: Saved) -> None:
    name = "node1_update_policy_actor_step1_rank0_4711.7.pt.trace.json"
    units = [{"number": 0, "sequences": 4, "padded": [4, 1024]}]
    more = {**TRAINING, "rollout": None, "dp": None, "units": units}
    path = saved.path / name
    path.write_text(steps(0))
    content = {key: value for key, value in {"why": "complete", **more}.items() if value is not None}
    (saved.path / f"{name}.rlpatch.json").write_text(json.dumps(content))
    report, (row,) = told(saved)
    assert (row["target"], row["stage"], row["role"], row["step"], row["rollout"]) == (
        "verl",
        "update-policy",
        "actor",
        1,
        None,
    )
    assert report.messages == ()
    assert sidecar.unit_contents(sidecar.metadata_from(content).units.values()) == {"sequences": [4]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the step metadata beside the trace is not a JSON object, or is incomplete"),
        ('{"format": 1, "units": [', "the step metadata beside the trace is not a JSON object, or is incomplete"),
        ("[" * 100_000, "the step metadata beside the trace is not a JSON object, or is incomplete"),
        ("[1]", "the step metadata beside the trace is not a JSON object, or is incomplete"),
        ('{"format": 7}', "the step metadata beside the trace has format 7, but this rlpatch reads only format 1"),
        (
            '{"format": "\\u001b[2J"}',
            "the step metadata beside the trace has format none, but this rlpatch reads only format 1",
        ),
    ],
)
def test_facts_that_are_none_are_said_and_nothing_else_is_taken(saved: Saved, text: str, why: str) -> None:
    saved.trace(NAME, THIRTY).with_name(f"{NAME}.rlpatch.json").write_text(text)
    report, (row,) = told(saved)
    assert row["target"] == ""
    assert list(report.messages) == [f"warning: {NAME}: {why}"]


def test_what_would_move_the_cursor_is_not_taken(saved: Saved) -> None:
    saved.trace(NAME, THIRTY, target="a\x1b[2J", release=3, window="\x1b[2J")
    _, (row,) = told(saved)
    assert (row["target"], row["release"], row["asked"]) == ("", "", "")


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_doctored_facts_end_in_no_traceback_and_move_no_cursor(saved: Saved, data: st.DataObject) -> None:
    keys = (*ROLLOUT, "why", "units", "step", "role")
    changed = {data.draw(st.sampled_from(keys)): data.draw(VALUES) for _ in range(3)}
    unit = {name: data.draw(VALUES) for name in ("number", "requests", "padded", "uncounted", "context")}
    trace = saved.trace(NAME, steps(30))
    content = {**ROLLOUT, "window": "30:31", "why": "complete", "units": [unit, {"number": 30}], **changed}
    trace.with_name(f"{NAME}.rlpatch.json").write_text(json.dumps({**content, "format": 1}))
    report, _ = told(saved)
    lines = [*tables.traces(report.data), *report.lines, *report.messages]
    assert all(line.isprintable() for line in lines)
    (read,) = formats.read(trace)
    capture = analysis.checked(read, analysis.attributed(read))
    assert json.dumps(json_of(analysis.reported(analysis.labelled([capture]))))
