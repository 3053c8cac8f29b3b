"""What the user may choose, and what is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from patcher.config import (
    OPEN_END,
    WHOLE,
    BuiltinStage,
    ProfileConfig,
    RolloutStage,
    TorchNpuProfiler,
    TorchProfiler,
    TrainingStage,
    Window,
)
from patcher.errors import Kind, Problem
from tests.choices import config


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
        ("decode", "0:", "prefill produces token 0", "--decode 1:, or --prefill, or --iterations 0:"),
        ("decode", "10-20", "not a window", "--decode 10:20"),
        ("decode", "10,20", "not a window", "--decode 10:20"),
        ("decode", "10..20", "not a window", "--decode 10:20"),
        ("decode", "10 20", "not a window", "--decode 10:20"),
        ("decode", "10 - 20", "not a window", "--decode 10:20"),
        ("decode", "[10,20)", "not a window", "--decode 10:20"),
        ("decode", "10 to 20", "not a window", "--decode 10:20"),
        ("mini-batch", "20-10", "not a window", "--mini-batch 20:21"),
        ("decode", "0-10", "not a window", "--decode 1:10"),
        ("decode", "100", "not a window", "--decode 100:130"),
        ("decode", "30:60,50:70", "windows in order", "--decode 30:70"),
        ("decode", "30:60,60:70", "with a unit between them", "--decode 30:70"),
        ("decode", "90:99,30:60", "windows in order", "--decode 30:60,90:99"),
        ("decode", "30:,60:70", "windows in order", "--decode 30:"),
        ("decode", "30:60,9:9", "is empty", "--decode 9:10 records one unit"),
        ("decode", "30:60,", "not a window", "--decode 30:60"),
        ("micro-batch", "0:2,x", "not a window", "--micro-batch"),
        ("micro-batch", "5", "not a window", "--micro-batch 5:35"),
        ("decode", f"30:{10**24}", "no loop has as many units", "--decode 30:"),
        ("decode", f"{10**24}:30", "no loop has as many units", "--decode 1:"),
        ("decode", "30:1000000000", "no loop has as many units", "below 1000000000"),
        ("decode", f"30:{'9' * 5000}", "no loop has as many units", "--decode 30:"),
        ("decode", "9" * 5000, "not a window", "--decode 30:60"),
        ("decode", "10-" + "9" * 5000, "not a window", "--decode 10:40"),
    ],
)
def test_windows_that_are_none(unit: str, text: str, cause: str, hint: str) -> None:
    with pytest.raises(Problem, match=cause) as caught:
        Window.parse(unit, text).check()
    assert caught.value.kind is Kind.USAGE
    assert hint in caught.value.hint
    assert len(str(caught.value)) < 300


def test_a_window_in_two_words_is_seen_in_the_one_that_follows() -> None:
    with pytest.raises(Problem) as caught:
        Window.parse("decode", "10", "20")
    assert caught.value.hint == "--decode 10:20"


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("--aic-metrics memory --level level0", "collects them from level1 on"),
        ("--aic-metrics memory --level level_none", "collects them from level1 on"),
        ("--contents memory", "neither npu nor cpu"),
        ("--contents ''", "neither npu nor cpu"),
        ("--level level_none", "records nothing but marks"),
        ("--module-pattern MLP", "no ranges of modules"),
        ("--module-ranges --module-pattern (", "not a regular expression"),
        ("--module-ranges --module-pattern a{99999999999999999999}", "not a regular expression"),
        ("--module-ranges --export-type text", "module_statistic reads"),
        ("--module-ranges --contents cpu", "--module-ranges would leave nothing in the trace without npu"),
        ("--markers --contents cpu", "--markers would leave nothing in the trace without npu"),
        ("--markers --contents npu --backend torch", "--markers would leave nothing in the trace without cpu"),
        ("--contents npu,memory", "allocations are seen on the host"),
        ("--save-path ''", "no folder is named"),
        ("--live --no-facts", "a worker is not seen without them"),
        ("--on-demand --no-facts", "a worker is not seen without them"),
        ("--on-demand --repeat 2", "a request means one of them"),
        ("--save-path /tmp/it\\'s", "torch_npu refuses this path"),
        ('--save-path \'/tmp/"""\'', "torch_npu refuses this path"),
        ("--save-path '/tmp/{x}'", "torch_npu refuses this path"),
        ("--save-path '/tmp/a\nb'", "torch_npu refuses this path"),
        ("--save-path '/tmp/traces\n'", "torch_npu refuses this path"),
        ("--backend torch --level level1", "--level does not exist in torch.profiler"),
        ("--backend torch --export-type db", "--export-type does not exist"),
        ("--backend torch --aic-metrics none", "--aic-metrics does not exist"),
        ("--backend torch --l2-cache", "--l2-cache does not exist"),
        ("--backend torch --mstx", "--mstx does not exist"),
        ("--backend torch --analysis", "--analysis does not exist"),
    ],
)
def test_combinations_that_no_profiler_takes(words: str, cause: str) -> None:
    with pytest.raises(Problem, match=cause) as caught:
        config(f"--decode 30:60 {words}")
    assert caught.value.kind is Kind.USAGE
    assert caught.value.hint


@pytest.mark.parametrize("path", ["relative", ""])
def test_the_folder_of_the_traces_is_absolute(path: str) -> None:
    with pytest.raises(Problem, match="torch_npu refuses this path"):
        replace(config("--decode 30:60"), save_path=path)


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("--prefill 0:4", "begins with unit 0"),
        ("--decode 30:60 --warmup 0", "without warm-up"),
        ("--decode 1:200", "199 units: a trace of more than 128"),
        ("--decode 30:", "a window without an end: a trace of more than 128"),
        ("--decode 30:60 --ranks all", "every rank writes a trace"),
        ("--decode 30:60 --contents npu,cpu,stack", "crash torch_npu 2.10.0.post4"),
        ("--decode 30:60 --analysis", "daemon processes"),
        ("--decode 30:60 --contents cpu", "ignores level"),
        ("--decode 30:60 --export-type db", "needs CANN's msprof"),
        ("--decode 30:60 --module-ranges --backend torch", "call no modules when they run"),
        ("--decode 30:60 --save-path /home/me/my-run", "documents only letters"),
    ],
)
def test_what_is_worth_a_note(words: str, note: str) -> None:
    (said,) = config(words).notes
    assert note in " ".join(said.lines)
    assert len(said.text) <= 75, "on a terminal of 80 columns, behind what says that it is a note"


def test_what_torch_npu_says_of_a_path_concerns_no_other_profiler() -> None:
    assert config("--decode 30:60 --backend torch --save-path /home/me/my-run").notes == ()


def test_a_database_beside_text_is_worth_two() -> None:
    assert [note.text[:20] for note in config("--decode 30:60 --export-type text,db").notes] == [
        "db export: torch_npu",
        "--export-type with t",
    ]


@pytest.mark.parametrize(
    ("words", "notes"),
    [
        ("", ("needs CANN's msprof", "call no modules when they run", "needs torch_npu 2.7")),
        (
            "--contents npu",
            ("needs CANN's msprof", "call no modules when they run", "needs torch_npu 2.7", "needs cpu in --contents"),
        ),
        (
            "--level level_none",
            ("needs CANN's msprof", "call no modules when they run", "needs torch_npu 2.7", "needs cpu in --contents"),
        ),
    ],
)
def test_ranges_of_modules_are_worth_several(words: str, notes: tuple[str, ...]) -> None:
    said = config(f"--decode 30:60 --module-ranges {words}").notes
    assert len(said) == len(notes)
    assert all(wanted in " ".join(note.lines) for wanted, note in zip(notes, said, strict=True))


@pytest.mark.parametrize(
    ("words", "units"),
    [
        ("--decode 1:2 --markers", ("decode",)),
        ("--mini-batch 1:2", ("mini-batch",)),
        ("--mini-batch 1:2 --markers", ("micro-batch", "mini-batch")),
        ("--micro-batch 1:2 --markers", ("micro-batch", "mini-batch")),
    ],
)
def test_markers_show_every_loop_of_a_training_stage(words: str, units: tuple[str, ...]) -> None:
    assert config(words).stage.marked == units


@pytest.mark.parametrize("words", ["--decode 30:60", "--decode 1:129", "--decode 30:60 --contents npu,cpu,memory"])
def test_what_is_usual_is_worth_none(words: str) -> None:
    assert config(words).notes == ()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--decode 30:60", "--decode 30:60 --backend npu"),
        ("--decode 30:60 --ranks all", "--decode 30:60 --backend npu --ranks all"),
        ("--decode 30:60 --ranks 8,0", "--decode 30:60 --backend npu --ranks 0,8"),
        ("--decode 30:60 --warmup 0 --repeat 3 --rollout 2", "--decode 30:60 --repeat 3 --warmup 0 --rollout 2 --backend npu"),
        ("--decode 30:60 --l2-cache --level level2", "--decode 30:60 --backend npu --level level2 --l2-cache"),
        ("--decode 30:60 --contents cpu", "--decode 30:60 --backend npu --contents cpu"),
        ("--decode 30:60 --backend torch", "--decode 30:60 --backend torch"),
        ("--decode 30:60 --export-type db,text", "--decode 30:60 --backend npu --export-type text,db"),
        ("--decode 30:60 --level level_none --markers", "--decode 30:60 --backend npu --level level_none --markers"),
        (
            "--decode 30:60 --module-ranges --module-pattern MLP$",
            "--decode 30:60 --backend npu --module-ranges --module-pattern MLP$",
        ),
        ("--decode 30:60 --replicas 3,0", "--decode 30:60 --replicas 0,3 --backend npu"),
        ("--stage graph-capture --replicas ALL", "--stage graph-capture --replicas all --backend npu"),
        ("--decode 0:9 --at-load 1 --at-tail 1 --at-context 1", "--decode 0:9 --at-load 1 --at-tail 1 --at-context 1 --backend npu"),
        ("--decode 30:60 --facts", "--decode 30:60 --backend npu"),
        ("--mini-batch 0:1 --strategy veomni", "--mini-batch 0:1 --strategy veomni --backend npu"),
        ("--mini-batch 0:1 --rollout 0", "--mini-batch 0:1 --backend npu"),
        ("--mini-batch 0:", "--mini-batch 0: --backend npu"),
        ("--stage update-policy --mini-batch 0:1", "--mini-batch 0:1 --backend npu"),
        (
            "--micro-batch 2:4 --stage compute-log-prob --role ref",
            "--stage compute-log-prob --micro-batch 2:4 --role ref --backend npu",
        ),
        ("--stage graph-capture", "--stage graph-capture --backend npu"),
        ("--stage graph-capture --ranks all", "--stage graph-capture --backend npu --ranks all"),
    ],
)  # fmt: skip
def test_the_words_repeat_the_choice(typed: str, words: str) -> None:
    assert config(typed).words == (*words.split(), "--save-path", "/tmp/traces")


@pytest.mark.parametrize(
    "words", ["--builtin --level level2", "--builtin --contents npu,cpu --no-mstx", "--builtin --analysis"]
)
def test_a_setting_that_was_named_is_printed_whatever_its_default_is(words: str) -> None:
    whole = config(words)
    assert whole.words == tuple(words.split())
    assert (whole.save_path, whole.ranks) == ("", (0,))


@pytest.mark.parametrize("words", ["--stage graph-capture", "--builtin --level level2"])
def test_a_stage_without_a_window(words: str) -> None:
    whole = config(words)
    assert whole.stage.window.unit == WHOLE
    assert not [note for note in whole.notes if "warm-up" in note.text]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("--stage graph-capture --rollout 1", "--rollout belongs to rollout stages, and --stage graph-capture"),
        ("--stage graph-capture --warmup 0", "--warmup: graph-capture is recorded as a whole"),
        ("--stage graph-capture --markers", "--markers: graph-capture is recorded as a whole"),
        ("--stage graph-capture --module-ranges", "--module-ranges: graph-capture is recorded as a whole"),
        ("--stage graph-capture --role ref", "--role belongs to training stages, and --stage graph-capture"),
        ("--builtin", "nothing would change"),
        ("--mini-batch 0:1 --rollout 1", "--rollout belongs to rollout stages, and --mini-batch"),
        ("--decode 1:2 --training-steps 2", "--training-steps belongs to training stages, and --decode"),
    ],
)
def test_what_a_stage_of_another_kind_does_not_take(words: str, cause: str) -> None:
    with pytest.raises(Problem, match=cause) as caught:
        config(words)
    assert caught.value.hint


@pytest.mark.parametrize(
    "build",
    [
        lambda: RolloutStage(name="rollout", window=Window("mini-batch", 0, 1)),
        lambda: TrainingStage(name="update-policy", window=Window.whole()),
        lambda: ProfileConfig(
            stage=BuiltinStage(named=("level",)), profiler=TorchNpuProfiler(level="level1"), ranks=None
        ),
        lambda: ProfileConfig(stage=BuiltinStage(named=("level",)), profiler=TorchNpuProfiler(mstx=True)),
        lambda: ProfileConfig(stage=BuiltinStage(named=("contents",)), profiler=TorchProfiler()),
    ],
)
def test_what_cannot_be_is_no_value(build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"is no unit of|are no settings"):
        build()
