"""Times and numbers as people read them."""

from __future__ import annotations

import pytest

from patcher.traces import words


@pytest.mark.parametrize(
    ("ns", "said"),
    [
        (0, "0"),
        (1, "1 ns"),
        (999, "999 ns"),
        (1000, "1.00 µs"),
        (-1500, "-1.50 µs"),
        (999_999, "1,000.00 µs"),
        (1_000_000, "1.00 ms"),
        (1_000_000_000, "1.00 s"),
        (-61_250_000_000, "-61.25 s"),
    ],
)
def test_a_time_has_the_unit_that_fits(ns: int, said: str) -> None:
    assert words.duration(ns) == said


@pytest.mark.parametrize(("ns", "said"), [(1500, "+1.50 µs"), (-1500, "\N{MINUS SIGN}1.50 µs"), (0, "±0")])
def test_a_difference_has_its_sign(ns: int, said: str) -> None:
    assert words.signed(ns) == said


def test_a_name_fits_and_moves_no_cursor() -> None:
    assert (words.short("a" * 40), words.short("a" * 30 + "b" * 11)) == ("a" * 40, "a" * 20 + "…" + "a" * 8 + "b" * 11)
    assert words.short("a\x1b[2J\u202eb") == "a?[2J?b"
    assert (words.cut("abc", 3), words.cut("abcd", 3)) == ("abc", "ab…")


@pytest.mark.parametrize(
    ("name", "shortened"),
    [
        ("a/b.py(1): f", "a/b.py(1): f"),
        (f"{'folder/' * 8}runner.py(545): capture", f"…/{'folder/' * 5}runner.py(545): capture"),
        (f"folder/{'x' * 50}.py(5): capture", f"…/{'x' * 28}…{'x' * 14}.py(5): capture"),
        ("r" * 80, f"{'r' * 30}…{'r' * 29}"),
    ],
)
def test_frames_keep_their_file_and_function(name: str, shortened: str) -> None:
    assert words.host_name(name) == shortened


GEMM = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT{}_MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1_CLR1_WG32_8_1"
ALIKE: list[tuple[list[str], list[str]]] = [
    (["aten::mm", "x" * 99], ["aten::mm", "x" * 20 + "…" + "x" * 19]),
    (
        [GEMM.format("256x128x64"), GEMM.format("32x64x128")],
        ["Cijk_Alik_Blj…rgs_MT256x128x64_MI16x16x…", "Cijk_Alik_Blj…rgs_MT32x64x128_MI16x16x1…"],
    ),
    (
        ["f<" + "a" * 90 + ">", "f<" + "a" * 60 + ">"],
        ["f<" + "a" * 11 + "…" + "a" * 25 + "…", "f<" + "a" * 11 + "…" + "aaaaaa>"],
    ),
    (["k" * 99, "k" * 99], ["k" * 20 + "…" + "k" * 19] * 2),
]


@pytest.mark.parametrize(("names", "shown"), ALIKE)
def test_names_that_would_look_alike_are_told_apart(names: list[str], shown: list[str]) -> None:
    assert words.shorten_distinct(names) == shown
    assert len(set(shown)) == len(set(names))
    assert all(len(name) <= 40 for name in shown)


def test_what_is_alike_but_for_its_last_character_is_told_apart() -> None:
    names = ["k" * 200 + end for end in "abcdefgh"]
    assert len(set(words.shorten_distinct(names, 30))) == len(names)


@pytest.mark.parametrize(
    ("ns", "said"),
    [
        (0, "0"), (2_000_000, "2 ms"), (2_500_000, "2.5 ms"), (1_250_000_000, "1.25 s"), (10_000_000, "10 ms"), (250, "250 ns"),
        (12_500, "12.5 µs"), (2_000_000_000_000, "2,000 s"),
    ],
)  # fmt: skip
def test_a_label_of_an_axis_is_not_rounded(ns: int, said: str) -> None:
    assert words.tick(ns) == said
