"""Where a window by state is placed, and when its condition holds, as tables; real schedules are in tests/patches."""

from __future__ import annotations

import re
from types import SimpleNamespace as Some
from typing import Any

import pytest

from patches.probes import states
from patches.probes.recorder import MovedWindow
from patches.probes.rollout import RolloutUnits


def probe(kind: Any, **fields: Any) -> Any:
    made = kind.__new__(kind)
    for name, value in {"KINDS": ("decode",), "FIRST": 1, "WARMUP": 1, **fields}.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []

    def place(self: Any) -> None:
        self.first, self.end, self.open_at = 2, 5, 1

    monkeypatch.setattr(MovedWindow, "place_window", place)
    monkeypatch.setattr(RolloutUnits, "begin_rollout", lambda _: calls.append("begin"))
    monkeypatch.setattr(RolloutUnits, "end_rollout", lambda _, why: calls.append(f"end: {why}"))
    monkeypatch.setattr(RolloutUnits, "finish", lambda _self, report, _traces=(): calls.append(report))
    return calls


def test_a_window_waits_for_its_state_and_is_placed_behind_it(log: list[str]) -> None:
    made = probe(states.RelativeWindow, unit=7)
    made.begin_rollout()
    made.place_window()
    assert (made.awaited, made.open_at, made.fewest, made.most) == (True, 10**9, 10**9, 0)
    made.check_state(None, 3, None)
    assert made.awaited
    made.check_state("decode", 3, None)
    assert (made.awaited, made.origin, made.first, made.end, made.open_at) == (False, 8, 10, 13, 9)
    made.check_state("decode", 9, None)
    assert (made.fewest, made.most) == (3, 3)
    again = probe(states.RelativeWindow, unit=7, WARMUP=99)
    again.begin_rollout()
    again.place_window()
    again.check_state("prefill", 3, None)
    assert (again.origin, again.open_at, log) == (7, 0, ["begin", "begin"])


@pytest.mark.parametrize(
    ("awaited", "open_at", "prof", "reported"),
    [
        (True, 10**9, None, "6 3 9"), (False, 20, None, "6"), (False, None, None, ""),
        (False, 20, "running", ""),
    ],
)  # fmt: skip
def test_a_state_that_was_not_reached_is_reported(
    awaited: bool, open_at: int | None, prof: object, reported: str, log: list[str]
) -> None:
    made = probe(states.RelativeWindow, unit=7, awaited=awaited, open_at=open_at, prof=prof, fewest=3, most=9)
    made.end_rollout("why")
    assert log[-1] == "end: why"
    assert [" ".join(re.findall(r"\d+", line)) for line in log[:-1]] == [reported] * bool(reported)


@pytest.mark.parametrize(("unit", "numbers"), [(13, "3 3 10 2"), (11, "1 3 10 2"), (9, "0 3 10 2")])
def test_the_end_of_a_window_has_its_units_and_their_first_number(unit: int, numbers: str, log: list[str]) -> None:
    made = probe(states.RelativeWindow, unit=unit, first=10, end=13, uncounted=2)
    made.conclude("complete", ["a", "b"])
    made.conclude("complete", [])
    assert [" ".join(re.findall(r"\d+", line)) for line in log] == [numbers] * 2
    assert (log[0].endswith(": a, b"), log[1].endswith(": no trace")) == (True, True)


HOLDS: list[tuple[type[Any], dict[str, int], int, int, bool]] = [
    (states.Loaded, {"load": 8}, 8, 0, True), (states.Loaded, {"load": 8}, 7, 0, False), (states.Loaded, {"load": 8}, 9, 0, True),
    (states.Drained, {"tail": 0}, 5, 5, True), (states.Drained, {"tail": 2}, 2, 3, True), (states.Drained, {"tail": 2}, 2, 2, False),
    (states.Drained, {"tail": 2}, 3, 9, False), (states.Drained, {"tail": 2}, 1, 9, True),
    (states.LongContexts, {"context": 50}, 1, 1, True), (states.LongContexts, {"context": 51}, 1, 1, False),
    (states.LongContexts, {"context": 49}, 1, 1, True),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "at", "load", "most", "holds"), HOLDS)
def test_a_state_holds_from_its_number_on(
    kind: type[Any], at: dict[str, int], load: int, most: int, holds: bool
) -> None:
    made = probe(kind, at=at, most=most, longest_context=lambda _batch, _threshold, _decisive: 50)
    assert made.is_reached(load, None) == holds


def test_a_context_is_looked_up_for_what_else_decides() -> None:
    class Both(states.LongContexts, states.Loaded): ...

    told: list[tuple[int, bool]] = []

    def longest(_batch: object, least: int, decisive: bool) -> int:
        told.append((least, decisive))
        return 50

    made = probe(Both, at={"load": 8, "context": 40}, longest_context=longest)
    assert (made.is_reached(8, None), made.is_reached(7, None), told) == (True, False, [(40, True), (40, False)])


@pytest.mark.parametrize(("near", "awaited", "told"), [(True, False, 1), (False, True, 1), (False, False, 0)])
def test_sglang_tells_the_load_while_that_may_place_a_window(near: bool, awaited: bool, told: int) -> None:
    calls: list[tuple[Any, ...]] = []
    made = probe(states.RelativeBatches, near=near, awaited=awaited, hand_over=lambda *words: calls.append(words))
    batch = Some(reqs=[1, 2, 3])
    made.hand_over_load("decode", batch)
    assert calls == [("check_state", "decode", 3, batch)] * told
