"""Windows as they are typed, and what is refused with the window that was probably meant."""

from __future__ import annotations

import pytest

from patcher.config import OPEN_END, Window
from patcher.messages.errors import Kind, Problem


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
def test_a_window_is_parsed_into_its_units(unit: str, text: str, window: Window) -> None:
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
        ("decode", "60:30", "is empty", "--decode 60:61 is the shortest window"),
        ("prefill", "4:4", "is empty", "--prefill 4:5 is the shortest window"),
        ("decode", "0:30", "decode steps start at 1", "--decode 1:30"),
        ("decode", "0:1", "decode steps start at 1", "--decode 1:2"),
        (
            "decode",
            "0:",
            "decode steps start at 1",
            "--decode 1:, or --iterations 0:",
        ),
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
        (
            "decode",
            "30:60,50:70",
            "windows must be in ascending order",
            "--decode 30:70",
        ),
        (
            "decode",
            "30:60,60:70",
            "windows must be in ascending order",
            "--decode 30:70",
        ),
        (
            "decode",
            "90:99,30:60",
            "windows must be in ascending order",
            "--decode 30:60,90:99",
        ),
        (
            "decode",
            "30:,60:70",
            "windows must be in ascending order",
            "--decode 30:",
        ),
        ("decode", "30:60,9:9", "is empty", "--decode 9:10 is the shortest window"),
        ("decode", "30:60,", "not a window", "--decode 30:60"),
        ("micro-batch", "0:2,x", "not a window", "--micro-batch"),
        ("micro-batch", "5", "not a window", "--micro-batch 5:35"),
        ("decode", f"30:{10**24}", "the number is too large", "--decode 30:"),
        ("decode", f"{10**24}:30", "the number is too large", "--decode 1:"),
        ("decode", "30:1000000000", "the number is too large", "below 1000000000"),
        ("decode", f"30:{'9' * 5000}", "the number is too large", "--decode 30:"),
        ("decode", "9" * 5000, "not a window", "--decode 30:60"),
        ("decode", "10-" + "9" * 5000, "not a window", "--decode 10:40"),
    ],
)
def test_a_wrong_window_is_refused_with_the_one_probably_meant(unit: str, text: str, cause: str, hint: str) -> None:
    with pytest.raises(Problem, match=cause) as caught:
        Window.parse(unit, text).check()
    assert caught.value.kind is Kind.USAGE
    assert hint in caught.value.hint
    assert len(str(caught.value)) < 300


def test_a_window_in_two_words_is_seen_in_the_one_that_follows() -> None:
    with pytest.raises(Problem) as caught:
        Window.parse("decode", "10", "20")
    assert caught.value.hint == "--decode 10:20"
