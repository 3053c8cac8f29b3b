"""A window of nsys: where the capture begins and ends, and the ranges within, against what was handed out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures.ascend import standins
from patcher.config import PROFILERS
from patcher.traces import names
from patcher.traces.formats import nsys as export
from patcher.traces.marks import mark_named
from patcher.workers.folder import StateFolder
from patches.probes.nsys import NsysCapture, NvtxPhases, NvtxRanges
from patches.shared_switches import NSYS
from patches.vllm import recipes as vllm
from tests.choices import config
from tests.patches.graph_workers import Worker as Capturing
from tests.patches.rollout_workers import V1Worker, batch, rollout
from tests.patches.schedules import RELEASES
from tests.patches.step_metadata import facts, states
from tests.patches.training_stages import Stage

pytestmark = pytest.mark.usefixtures("stand_in_torch")


@pytest.fixture
def chosen(tmp_path: Path) -> dict[str, Any]:
    return {"backend": "nsys", "METADATA": True, "SAVE_PATH": str(tmp_path)}


def captures(log: list[str]) -> list[list[tuple[str, list[str]]]]:
    """Each capture as its ranges below the outermost one, with the labels in each; a label beside all is in ""."""
    found: list[list[tuple[str, list[str]]]] = []
    depth, capturing = 0, False
    for event in log:
        kind, _, name = event.partition(" ")
        if kind == "start":
            assert not capturing
            capturing, depth = True, 0
            found.append([])
        elif kind == "stop":
            assert (capturing, depth) == (True, 0)
            capturing = False
        elif kind in ("push", "pop"):
            assert capturing
            depth += 1 if kind == "push" else -1
            if kind == "push":
                found[-1].append((name, []))
        elif capturing:
            found[-1][-1 if depth == 2 else 0][1].append(name)
    assert not capturing
    return found


def worker(log: list[str], **constants: Any) -> V1Worker:
    made = V1Worker(**constants)
    made.recipe = vllm.WORKER
    step = made._rlpatch_stage

    def iterate(one: Any, label: str) -> None:
        step("step", one)
        log.append(f"run {label}")

    made.iterate = iterate  # type: ignore[method-assign, assignment]
    return made


@pytest.mark.parametrize(("release", "shape"), RELEASES)
@pytest.mark.parametrize(
    ("unit", "window", "warmup"), [("decode", "3:8", 1), ("prefill", "1:4", 0), ("iterations", "2:9", 2)]
)
def test_the_capture_holds_exactly_the_warm_up_and_the_units(
    release: str,
    shape: str,
    unit: str,
    window: str,
    warmup: int,
    log: list[str],
    chosen: dict[str, Any],
    tmp_path: Path,
) -> None:
    made = worker(log, release=release, UNIT=unit, FIRST=int(unit == "decode"), WINDOW=window, WARMUP=warmup, **chosen)
    scheduler = standins.Scheduler(48)
    for name, prompt, outputs in (("a", 9, 20), ("b", 30, 14), ("c", 60, 12)):
        scheduler.add(standins.Request(name, prompt, outputs, 0))
    handed = []
    while scheduler.live or scheduler.finished:
        one = scheduler.schedule()
        contexts = [
            one_request.computed + one.counts[one_request.id] for one_request in (*one.new, *one.running, *one.resumed)
        ]
        handed.append((one, len(one.counts), sum(one.counts.values()), sum(contexts)))
        made.iterate(standins.SHAPES[shape](one), one.label)
        scheduler.done(one)
    first, end = map(int, window.split(":"))
    ((outer, *ranges),) = captures(log)
    expected = []
    for one, requests, tokens, context in handed:
        number = one.numbers.get(unit)
        if number is not None and first - warmup <= number < end:
            name = f"{'warm-up ' if number < first else ''}{unit.rstrip('s')} {number}, {requests} requests, {tokens} tokens"
            expected.append((name, context, one.label))
    units = [(name, labels) for name, labels in ranges if name != "rlpatch:uncounted"]
    assert len(units) == len(expected)
    for (range_name, labels), (begin, context, label) in zip(units, expected, strict=True):
        assert range_name.startswith(begin)
        assert f", {context} context" in range_name
        assert labels[:1] == [label]
        assert labels[1:] == [] or range_name.startswith("warm-up"), (
            "what is uncounted within the warm-up is not told apart"
        )
        mark = mark_named(range_name)
        assert (mark is None) is range_name.startswith("warm-up")
        assert mark is None or mark.contents["context"] == context
    assert outer[1] == []
    inside = [one.label for one, *_ in handed[handed.index(next(h for h in handed if h[0].label == expected[0][2])) :]]
    held = [label for _, labels in ranges for label in labels]
    assert held == inside[: len(held)], "nothing between the first and the last unit is left out"


def test_the_range_around_the_units_names_the_window_and_its_metadata(
    log: list[str], chosen: dict[str, Any], tmp_path: Path
) -> None:
    made = worker(log, WINDOW="2:4", ROLLOUT="1", **chosen)
    for number, name in enumerate("abc"):
        rollout(made, 5, name=name, done=("abc"[number - 1],) if number else ())
    ((outer, *_),) = captures(log)
    match = export._WINDOW.fullmatch(outer[0])
    assert match
    assert (match["stage"], match["turn"]) == ("rollout", "1")
    fields = names.of(Path(match["name"])).fields
    assert (fields["rank"], fields["stage"], fields["ours"]) == (0, "rollout", True)
    assert (tmp_path / f"{match['name']}{export.SUFFIX}.rlpatch.json").is_file()
    (state,) = states(tmp_path).values()
    assert state["state"] == "saved"
    assert StateFolder(tmp_path).locate_trace(Path(state["traces"][0]).name)[1], "`watch` finds that it was saved"
    assert [unit["number"] for unit in facts(tmp_path)[0]["units"]] == [2, 3]


@pytest.mark.parametrize(
    ("constants", "expected"),
    [
        ({"WINDOW": "2:4,6:7", "SEVERAL": True}, [["2", "3"], ["6"]]),
        ({"WINDOW": "2:4", "REPEAT": 2}, [["2", "3"], ["2", "3"]]),
        ({"WINDOW": "7:"}, [["7", "8"]]),
        ({"WINDOW": "1:100"}, [[str(n) for n in range(1, 9)]]),
        ({"WINDOW": "2:4", "ROLLOUT": "7"}, []),
        ({"WINDOW": "2:4", "RANKS": "1"}, []),
    ],
    ids=["several", "repeated", "without an end", "ends early", "another rollout", "another rank"],
)
def test_each_window_is_a_capture(
    constants: dict[str, Any], expected: list[list[str]], log: list[str], chosen: dict[str, Any]
) -> None:
    made = worker(log, **constants, **chosen)
    for number, name in enumerate("ab"):
        rollout(made, 8, name=name, done=("a",) * number)
    made._rlpatch_stage("end_rollout", "the test ends")
    units = [
        [name.split()[1].rstrip(",") for name, _ in ranges if name.startswith("decode ")] for ranges in captures(log)
    ]
    assert units == expected


def test_a_capture_ends_where_training_begins(log: list[str], chosen: dict[str, Any]) -> None:
    made = worker(log, WINDOW="2:100", **chosen)
    made.iterate(batch({"a": 3}, {"a": 3}), "prefill")
    for step in range(1, 5):
        made.iterate(batch({"a": 1}), f"decode {step}")
    made._rlpatch_stage("close", "update-policy starts")
    made.iterate(batch({"a": 1}), "decode 5")
    ((_, *ranges),) = captures(log)
    assert [labels for name, labels in ranges if name.startswith("decode ")] == [
        ["decode 2"],
        ["decode 3"],
        ["decode 4"],
    ]


def test_a_stage_of_training(log: list[str], chosen: dict[str, Any]) -> None:
    stage = Stage(UNIT="micro-batch", WINDOW="1:3", **chosen)
    stage.update(minis=2, micros=2)
    ((outer, *ranges),) = captures(log)
    assert outer[0].startswith("rlpatch:update-policy 1 ")
    shown = [name.partition(",")[0] for name, _ in ranges]
    assert shown == ["warm-up micro-batch 0", "micro-batch 1", "rlpatch:uncounted", "micro-batch 2"], (
        "an optimizer step"
    )


def test_the_capture_of_graphs_is_one_unit(log: list[str], chosen: dict[str, Any]) -> None:
    Capturing([], **chosen).start("capture")
    ((outer, unit),) = captures(log)
    assert outer[0].startswith("rlpatch:graph-capture 0 ")
    assert unit[0] == "call 0"


@pytest.mark.parametrize(
    ("turn", "number"), [({"rollout": 2, "step": 5}, 2), ({"step": 5, "sync": 4}, 5), ({"sync": 4}, 4), ({}, 0)]
)
@pytest.mark.parametrize(("available", "initialized"), [(True, True), (True, False), (False, True)])
def test_a_capture_waits_for_a_device_that_was_started_and_closes_its_ranges(
    turn: dict[str, int],
    number: int,
    available: bool,
    initialized: bool,
    log: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = sys.modules["torch"].cuda
    cuda.is_available, cuda.is_initialized = lambda: available, lambda: initialized
    cuda.synchronize = lambda: log.append("synchronize")
    monkeypatch.setattr("time.time_ns", lambda: 1_234_567_890)
    capture = NsysCapture()
    capture.name, capture.save_path, capture.STAGE = "host_rank0", "/t", "weights"
    for name, value in turn.items():
        setattr(capture, name, value)
    capture.open_window(0)
    capture.push("one")
    capture.push("two")
    assert capture.close_window() == ["/t/host_rank0_1234.nsys"]
    waits = ["synchronize"] * (available and initialized)
    opened = [*waits, "start", f"push rlpatch:weights {number} host_rank0_1234", "push one", "push two"]
    assert log == [*opened, *["pop"] * 3, "stop"]
    assert (capture.prof, capture.depth) == (None, 0)


@pytest.mark.parametrize(("name", "calls"), [("send", ["start rlpatch:send", "end 7", "left"]), ("", ["left"])])
def test_a_phase_ends_with_its_last_name_and_lets_go_of_the_call_around_it(
    name: str, calls: list[str], log: list[str]
) -> None:
    nvtx: Any = sys.modules["torch"].cuda.nvtx

    def range_start(text: str) -> int:
        log.append(f"start {text}")
        return 7

    nvtx.range_start, nvtx.range_end = range_start, lambda mark: log.append(f"end {mark}")
    for leave in (lambda: log.append("left"), None):
        phase = NvtxPhases.Range(name)
        phase.leave_call = leave
        del phase
        assert log == [call for call in calls if leave or call != "left"]
        log.clear()


def test_a_range_is_of_its_thread_and_has_no_domain(log: list[str]) -> None:
    ranges = NvtxRanges.__new__(NvtxRanges)
    assert ranges.begin_range("layer", "Module") == "layer"
    ranges.end_range("layer", "Module")
    assert (log, ranges.domain_obstacle()) == (["push layer", "pop"], "")


def test_a_process_that_nsys_did_not_start_says_so(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> None:
    assert NsysCapture().conflict() == ""
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID")
    assert "NSYS_PROFILING_SESSION_ID" in NsysCapture().conflict()


def test_its_settings_name_what_the_guards_look_for() -> None:
    assert PROFILERS["nsys"].STARTED_BY == NSYS
    assert [kind.TOOL for kind in PROFILERS.values() if kind.STARTED_BY] == ["nsys"]


@pytest.mark.parametrize("window", ["30:", "0:5000", "3:4,9:900"])
def test_nothing_is_saved_in_pieces(window: str) -> None:
    settings = config(f"--decode {window.replace('0:5', '1:5')} --tool nsys")
    assert (settings.in_pieces, settings.unit_stall_ms) == (False, 0)
    assert settings.first_piece > 5000
