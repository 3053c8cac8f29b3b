"""What the user may choose, and what is refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from patcher.capture import BUILTIN, OPEN_END, WHOLE, Capture, Window
from patcher.errors import Kind, Problem


def capture(text: str = "30:60", unit: str = "decode", **choice: Any) -> Capture:
    return Capture(Window.parse(unit, text), **{"save_path": "/tmp/traces", **choice})


@pytest.mark.parametrize(
    ("unit", "text", "window"),
    [
        ("decode", "30:60", Window("decode", 30, 60)),
        ("decode", " 1:2 ", Window("decode", 1, 2)),
        ("prefill", "0:4", Window("prefill", 0, 4)),
        ("iterations", "0:1", Window("iterations", 0, 1)),
        ("decode", "30:", Window("decode", 30, OPEN_END)),
    ],
)
def test_windows(unit: str, text: str, window: Window) -> None:
    assert Window.parse(unit, text) == window
    assert len(window) == window.end - window.first


@pytest.mark.parametrize(
    ("unit", "text", "cause", "hint"),
    [
        ("decode", "30", "not a window", "--decode 30:60"),
        ("decode", "-3:5", "not a window", "--decode A:B"),
        ("decode", "a:b", "not a window", "--decode A:B"),
        ("decode", "30:60:2", "not a window", "--decode A:B"),
        ("decode", "", "not a window", "--decode A:B"),
        ("prefill", "\N{ARABIC-INDIC DIGIT THREE}:5", "not a window", "--prefill A:B"),
        ("decode", "60:30", "is empty", "--decode 60:61 records one unit"),
        ("prefill", "4:4", "is empty", "--prefill 4:5 records one unit"),
        ("decode", "0:30", "prefill produces token 0", "--decode 1:30"),
        ("decode", "0:1", "prefill produces token 0", "--decode 1:2"),
    ],
)
def test_windows_that_are_none(unit: str, text: str, cause: str, hint: str) -> None:
    with pytest.raises(Problem, match=cause) as caught:
        Window.parse(unit, text)
    assert caught.value.kind is Kind.USAGE
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("choice", "cause"),
    [
        ({"aic_metrics": "memory", "level": "level0"}, "collects them from level1 on"),
        ({"aic_metrics": "memory", "level": "level_none"}, "collects them from level1 on"),
        ({"contents": ("memory",)}, "neither npu nor cpu"),
        ({"contents": ()}, "neither npu nor cpu"),
        ({"level": "level_none"}, "records nothing but marks"),
        ({"module_pattern": "MLP"}, "no ranges of modules"),
        ({"module_ranges": True, "module_pattern": "("}, "not a regular expression"),
        ({"module_ranges": True, "export_type": ("text",)}, "module_statistic reads"),
        ({"module_ranges": True, "contents": ("cpu",)}, "--module-ranges would leave nothing in the trace without npu"),
        ({"markers": True, "contents": ("cpu",)}, "--markers would leave nothing in the trace without npu"),
        (
            {"markers": True, "contents": ("npu",), "backend": "torch"},
            "--markers would leave nothing in the trace without cpu",
        ),
        ({"contents": ("npu", "memory")}, "allocations are seen on the host"),
        ({"save_path": "relative"}, "torch_npu refuses this path"),
        ({"save_path": "/tmp/it's"}, "torch_npu refuses this path"),
        ({"save_path": '/tmp/"""'}, "torch_npu refuses this path"),
        ({"save_path": "/tmp/{x}"}, "torch_npu refuses this path"),
        ({"save_path": "/tmp/a\nb"}, "torch_npu refuses this path"),
        ({"save_path": "/tmp/traces\n"}, "torch_npu refuses this path"),
        ({"backend": "torch", "level": "level1"}, "--level does not exist in torch.profiler"),
        ({"backend": "torch", "export_type": ("db",)}, "--export-type does not exist"),
        ({"backend": "torch", "aic_metrics": "none"}, "--aic-metrics does not exist"),
        ({"backend": "torch", "l2_cache": True}, "--l2-cache does not exist"),
        ({"backend": "torch", "mstx": True}, "--mstx does not exist"),
        ({"backend": "torch", "analysis": True}, "--analysis does not exist"),
    ],
)
def test_combinations_that_no_profiler_takes(choice: dict[str, Any], cause: str) -> None:
    with pytest.raises(Problem, match=cause) as caught:
        capture(**choice)
    assert caught.value.kind is Kind.USAGE
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "unit", "choice", "note"),
    [
        ("0:4", "prefill", {}, "begins with unit 0"),
        ("30:60", "decode", {"warmup": 0}, "without warm-up"),
        ("1:200", "decode", {}, "199 units: a trace of more than 128"),
        ("30:", "decode", {}, "a window without an end: a trace of more than 128"),
        ("30:60", "decode", {"ranks": None}, "every rank writes a trace"),
        ("30:60", "decode", {"contents": ("npu", "cpu", "stack")}, "crash torch_npu 2.10.0.post4"),
        ("30:60", "decode", {"analysis": True}, "daemon processes"),
        ("30:60", "decode", {"contents": ("cpu",)}, "ignores level"),
        ("30:60", "decode", {"export_type": ("db",)}, "needs CANN's msprof"),
        ("30:60", "decode", {"module_ranges": True, "backend": "torch"}, "call no modules when they run"),
        ("30:60", "decode", {"save_path": "/home/me/my-run"}, "documents only letters"),
    ],
)
def test_what_is_worth_a_note(text: str, unit: str, choice: dict[str, Any], note: str) -> None:
    (said,) = capture(text, unit, **choice).notes
    assert note in " ".join(said.lines)
    assert len(said.text) <= 75, "on a terminal of 80 columns, behind what says that it is a note"


def test_a_database_beside_text_is_worth_two() -> None:
    assert [note.text[:20] for note in capture(export_type=("text", "db")).notes] == [
        "db export: torch_npu",
        "--export-type with t",
    ]


@pytest.mark.parametrize(
    ("choice", "notes"),
    [
        ({}, ("needs CANN's msprof", "call no modules when they run", "needs torch_npu 2.7")),
        (
            {"contents": ("npu",)},
            ("needs CANN's msprof", "call no modules when they run", "needs torch_npu 2.7", "needs cpu in --contents"),
        ),
        (
            {"level": "level_none"},
            ("needs CANN's msprof", "call no modules when they run", "needs torch_npu 2.7", "needs cpu in --contents"),
        ),
    ],
)
def test_ranges_of_modules_are_worth_several(choice: dict[str, Any], notes: tuple[str, ...]) -> None:
    said = capture(module_ranges=True, **choice).notes
    assert len(said) == len(notes)
    assert all(wanted in " ".join(note.lines) for wanted, note in zip(notes, said, strict=True))


@pytest.mark.parametrize(
    ("unit", "choice", "units"),
    [
        ("decode", {"markers": True}, ("decode",)),
        ("mini-batch", {}, ("mini-batch",)),
        ("mini-batch", {"markers": True}, ("micro-batch", "mini-batch")),
        ("micro-batch", {"markers": True}, ("micro-batch", "mini-batch")),
    ],
)
def test_markers_show_every_loop_of_a_training_stage(unit: str, choice: dict[str, Any], units: tuple[str, ...]) -> None:
    assert capture("1:2", unit, stage="x", **choice).units == units


def test_a_plain_window_is_worth_none() -> None:
    assert capture().notes == ()


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({}, ""),
        ({"ranks": None}, "--ranks all"),
        ({"ranks": (0, 8)}, "--ranks 0,8"),
        ({"rollout": 2, "repeat": 3, "warmup": 0}, "--rollout 2 --repeat 3 --warmup 0"),
        ({"level": "level2", "l2_cache": True}, "--level level2 --l2-cache"),
        ({"contents": ("cpu",)}, "--contents cpu"),
        ({"backend": "torch"}, "--backend torch"),
        ({"export_type": ("text", "db")}, "--export-type text,db"),
        ({"level": "level_none", "markers": True}, "--level level_none --markers"),
        ({"module_ranges": True, "module_pattern": "MLP$"}, "--module-ranges --module-pattern MLP$"),
    ],
)
def test_the_words_repeat_the_choice(choice: dict[str, Any], words: str) -> None:
    assert capture(**choice).words == ("--decode", "30:60", *words.split(), "--save-path", "/tmp/traces")


@pytest.mark.parametrize(
    ("stage", "choice", "words"),
    [
        ("graph-capture", {}, "--stage graph-capture --save-path /tmp/traces"),
        ("graph-capture", {"ranks": None}, "--stage graph-capture --ranks all --save-path /tmp/traces"),
        (BUILTIN, {"level": "level2", "settings": ("level",)}, "--builtin --level level2"),
        (
            BUILTIN,
            {"contents": ("npu", "cpu"), "settings": ("contents", "mstx")},
            "--builtin --contents npu,cpu --no-mstx",
        ),
    ],
)
def test_a_stage_without_a_window(stage: str, choice: dict[str, Any], words: str) -> None:
    whole = Capture(Window.whole(), "/tmp/traces", stage=stage, **choice)
    assert whole.window.unit == WHOLE
    assert whole.words == tuple(words.split())
    assert not [note for note in whole.notes if "warm-up" in note.text]


@pytest.mark.parametrize(
    ("stage", "choice", "cause"),
    [
        ("graph-capture", {"rollout": 1}, "--rollout belongs to rollout stages, and --stage graph-capture"),
        ("graph-capture", {"warmup": 0}, "--warmup: graph-capture is recorded as a whole"),
        ("graph-capture", {"markers": True}, "--markers: graph-capture is recorded as a whole"),
        ("graph-capture", {"module_ranges": True}, "--module-ranges: graph-capture is recorded as a whole"),
        ("graph-capture", {"role": "ref"}, "--role belongs to training stages, and --stage graph-capture"),
        (BUILTIN, {}, "nothing would change"),
    ],
)
def test_what_a_stage_without_a_window_does_not_take(stage: str, choice: dict[str, Any], cause: str) -> None:
    with pytest.raises(Problem, match=cause) as caught:
        Capture(Window.whole(), "/tmp/traces", stage=stage, **choice)
    assert caught.value.hint
