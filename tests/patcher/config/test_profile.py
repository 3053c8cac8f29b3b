"""The whole configuration: what is worth a note, and the words that print it again."""

from __future__ import annotations

import pytest

from patcher.messages.errors import Kind, Problem
from tests.choices import config


@pytest.mark.parametrize("path", ["relative", ""])
def test_the_folder_of_the_traces_is_absolute(path: str) -> None:
    with pytest.raises(Problem) as caught:
        config("--decode 30:60").replace(save_path=path)
    assert (caught.value.kind, "--save-path" in caught.value.cause) == (Kind.USAGE, True)


@pytest.mark.parametrize(
    ("words", "records"),
    [
        ("--prefill 0:4", True),
        ("--mini-batch 0:1", True),
        ("--micro-batch 0:2,8:9", True),
        ("--decode 30:60", False),
        ("--decode 0:10 --at-tail 8", False),
        ("--stage graph-capture", False),
        ("--timeline", False),
    ],
)
def test_step_zero_is_recorded_if_the_window_begins_there_without_a_condition(words: str, records: bool) -> None:
    assert config(words).records_step_zero is records


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("--decode 30:60 --warmup 0", "without warm-up"),
        ("--decode 1:100", "saving all 99 steps takes about 3.0 s, more than --max-stall 2 allows"),
        (
            "--decode 1:200 --max-stall 9",
            "a trace of over 128 steps opens slowly, if at all; the window has 199 steps",
        ),
        (
            "--decode 30:60 --tool torch --contents cpu,stack",
            "saving all 30 steps takes about 4.0 s, more than",
        ),
        ("--mini-batch 0:1 --tool torch --contents cpu,stack,shapes", "saving a single step takes about 2.3 s"),
        ("--decode 30:", "a trace of over 128 steps opens slowly, if at all; this window has no end"),
        ("--decode 30:60 --ranks all", "every rank will write a trace"),
        ("--decode 30:60 --contents npu,cpu,stack --max-stall 5", "torch_npu 2.10.0.post4 crashes when"),
        ("--decode 30:60 --analysis", "a daemon process"),
        ("--decode 30:60 --contents cpu", "ignores level"),
        ("--decode 30:60 --export-type db", "needs CANN's msprof"),
        ("--decode 30:60 --module-ranges --tool torch", "calls no module when it runs"),
        ("--decode 30:60 --save-path /home/me/my-run", "supports only letters, digits and underscores in paths"),
    ],
)
def test_what_is_worth_a_note(words: str, note: str) -> None:
    (found,) = config(words).notes
    assert note in " ".join(found.lines)
    assert len(found.text) <= 75, "on a terminal of 80 columns, behind what says that it is a note"


def test_what_torch_npu_says_of_a_path_concerns_no_other_profiler() -> None:
    assert config("--decode 30:60 --tool torch --save-path /home/me/my-run").notes == ()


def test_a_database_beside_text_is_worth_two() -> None:
    assert [note.text[:20] for note in config("--decode 30:60 --export-type text,db").notes] == [
        "to export a database",
        "with several values ",
    ]


@pytest.mark.parametrize(
    ("words", "notes"),
    [
        ("", ("msprof", "graphs", "torch_npu 2.7")),
        (
            "--contents npu",
            ("msprof", "graphs", "torch_npu 2.7", "--contents"),
        ),
        (
            "--level level_none",
            ("msprof", "graphs", "torch_npu 2.7", "--contents"),
        ),
    ],
)
def test_ranges_of_modules_are_worth_several(words: str, notes: tuple[str, ...]) -> None:
    found = config(f"--decode 30:60 --module-ranges {words}").notes
    assert len(found) == len(notes)
    assert all(wanted in " ".join(note.lines) for wanted, note in zip(notes, found, strict=True))


@pytest.mark.parametrize("words", ["--decode 30:60", "--decode 1:60", "--decode 30:60 --contents npu,cpu,memory"])
def test_what_is_usual_is_worth_none(words: str) -> None:
    assert config(words).notes == ()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--decode 30:60", "--decode 30:60 --tool npu"),
        ("--decode 30:60 --ranks all", "--decode 30:60 --tool npu --ranks all"),
        ("--decode 30:60 --ranks 8,0", "--decode 30:60 --tool npu --ranks 0,8"),
        ("--decode 30:60 --warmup 0 --repeat 3 --rollout 2", "--decode 30:60 --repeat 3 --warmup 0 --rollout 2 --tool npu"),
        ("--decode 30:60 --l2-cache --level level2", "--decode 30:60 --tool npu --level level2 --l2-cache"),
        ("--decode 30:60 --contents cpu", "--decode 30:60 --tool npu --contents cpu"),
        ("--decode 30:60 --tool torch", "--decode 30:60 --tool torch"),
        ("--decode 30:60 --export-type db,text", "--decode 30:60 --tool npu --export-type text,db"),
        ("--decode 30:60 --level level_none --markers", "--decode 30:60 --tool npu --level level_none --markers"),
        (
            "--decode 30:60 --module-ranges --module-pattern MLP$",
            "--decode 30:60 --tool npu --module-ranges --module-pattern MLP$",
        ),
        ("--decode 30:60 --replicas 3,0", "--decode 30:60 --replicas 0,3 --tool npu"),
        ("--decode 30:60 --replicas Decode,3,0", "--decode 30:60 --replicas 0,3,decode --tool npu"),
        ("--stage graph-capture --replicas ALL", "--stage graph-capture --replicas all --tool npu"),
        ("--decode 0:9 --at-load 1 --at-tail 1 --at-context 1", "--decode 0:9 --at-load 1 --at-tail 1 --at-context 1 --tool npu"),
        ("--decode 30:60 --facts", "--decode 30:60 --tool npu"),
        ("--mini-batch 0:1 --strategy veomni", "--mini-batch 0:1 --strategy veomni --tool npu"),
        ("--mini-batch 0:1 --rollout 0", "--mini-batch 0:1 --tool npu"),
        ("--mini-batch 0:", "--mini-batch 0: --tool npu"),
        ("--stage update-policy --mini-batch 0:1", "--mini-batch 0:1 --tool npu"),
        (
            "--micro-batch 2:4 --stage compute-log-prob --role ref",
            "--stage compute-log-prob --micro-batch 2:4 --role ref --tool npu",
        ),
        ("--stage graph-capture", "--stage graph-capture --tool npu"),
        ("--stage graph-capture --ranks all", "--stage graph-capture --tool npu --ranks all"),
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
