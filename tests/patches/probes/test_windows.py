"""Several windows and repeated ones: which are opened, and which is the last, as tables."""

from __future__ import annotations

from typing import Any

import pytest

from patches.probes import on_demand, windows
from patches.probes.graphs import GraphCapture
from patches.probes.recorder import MovedWindow, Recorder
from patches.probes.rollout import RolloutUnits
from patches.probes.training import TrainingSteps
from patches.probes.weight_sync import WeightSync


def probe(kind: Any, **fields: Any) -> Any:
    """Return a recorder that was not set up."""
    made = kind.__new__(kind)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the layers hand on to the recorder below them."""
    log: list[str] = []
    for kind, names in {
        Recorder: ("reopen", "close", "finish"), RolloutUnits: ("begin_rollout", "end_rollout", "read_settings", "exit", "finish"),
        TrainingSteps: ("enter", "end_call", "read_settings"), WeightSync: ("exit", "read_settings"), GraphCapture: ("open", "exit"),
    }.items():  # fmt: skip
        for name in names:
            log_call = lambda _self, *words, name=name: log.append(" ".join([name, *map(str, words)]))  # noqa: E731
            monkeypatch.setattr(kind, name, log_call, raising=False)
    return log


LISTS = {
    "2:4,5:6": True, "2:4,5:": True, "2:": True, "1:2": True, "0:2": False, "2:4,4:6": False, "2:4,3:6": False, "4:2": False,
    "2:2": False, "5:6,2:4": False, "2:,5:6": False,
}  # fmt: skip


@pytest.mark.parametrize("text", LISTS)
def test_a_list_of_windows_is_in_order_and_begins_with_the_first_unit_or_later(text: str) -> None:
    several = probe(windows.SeveralWindows, window=text, LOWEST=1)
    if LISTS[text]:
        several.read_windows()
        assert several.windows == text
    else:
        with pytest.raises(ValueError, match="RLPATCH_WINDOW="):
            several.read_windows()


@pytest.mark.parametrize(
    ("unit", "placed", "left"), [(0, "2:4", ["5:6", "8:9"]), (3, "5:6", ["8:9"]), (7, "8:9", []), (9, None, [])]
)
def test_windows_that_lie_behind_are_left_out(
    unit: int, placed: str | None, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(self: Any) -> None:
        first = int(self.window.partition(":")[0])
        self.open_at = first if first >= unit else None

    monkeypatch.setattr(MovedWindow, "place_window", place)
    several = probe(windows.SeveralWindows, windows="2:4,5:6,8:9", done=True)
    several.place_window()
    assert (several.open_at is not None, [*several.next_windows]) == (placed is not None, left)
    assert placed is None or several.window == placed


@pytest.mark.parametrize(
    ("done", "left", "ends"), [(True, [], True), (True, ["5:6"], False), (False, [], False), (False, ["5:6"], False)]
)
def test_a_recorder_ends_behind_the_last_window_of_its_list(
    done: bool, left: list[str], ends: bool, calls: list[str]
) -> None:
    several = probe(windows.SeveralInRollout, done=done, next_windows=left, windows="2:4,5:6")
    several.reopen()
    assert (several.done, calls) == (ends, ["reopen"])
    several.end_rollout("no request is left")
    assert calls[1:] == ["end_rollout no request is left" + " before 5:6" * bool(left)]
    assert not several.next_windows
    several.begin_rollout()
    assert several.window == "2:4,5:6"
    in_call = probe(windows.SeveralInCall, next_windows=left, windows="2:4,5:6")
    in_call.end_call("x")
    assert not in_call.next_windows
    in_call.enter("actor")
    assert (in_call.window, calls[-2:]) == ("2:4,5:6", ["end_call x", "enter actor"])


@pytest.mark.parametrize(
    ("rollout", "chosen", "last"),
    [(-1, 2, False), (1, 2, False), (2, 3, False), (3, 4, True), (4, 4, True), (9, 4, True)],
)
def test_a_window_is_repeated_in_the_rollouts_behind_the_chosen_one(
    rollout: int, chosen: int, last: bool, calls: list[str]
) -> None:
    """Three of them, from number 2 on; ``rollout`` is the one before the next."""
    repeated = probe(windows.RepeatedRollouts, REPEAT=3, chosen=2, rollout=rollout)
    repeated.read_settings()
    assert repeated.rollouts_end == 5
    repeated.begin_rollout()
    assert (repeated.chosen, repeated.is_last()) == (chosen, rollout >= 4)
    assert last == (chosen == 4)
    repeated.reopen()
    assert repeated.done == (rollout >= 4)
    repeated.exit()
    repeated.reopen()
    assert repeated.done
    assert calls == ["read_settings", "begin_rollout", "reopen", "end_rollout the process ends", "exit", "reopen"]


@pytest.mark.parametrize(
    ("sync", "chosen", "last"),
    [(0, False, False), (1, True, False), (2, True, True), (3, False, True), (9, False, True)],
)
def test_weight_syncs_are_repeated_from_the_chosen_one_on(
    sync: int, chosen: bool, last: bool, calls: list[str]
) -> None:
    repeated = probe(windows.RepeatedSyncs, REPEAT=2, sync=sync, chosen_sync=1, exits=False)
    assert (repeated.is_chosen(), repeated.is_last()) == (chosen, last)
    repeated.exit()
    repeated.reopen()
    assert (repeated.done, calls) == (True, ["close the process ends", "exit", "reopen"])


@pytest.mark.parametrize("kind", [on_demand.OnDemandRollouts, on_demand.OnDemandSteps])
def test_a_recorder_on_demand_stays_ready_behind_a_window(kind: Any) -> None:
    ready = probe(kind, done=True)
    ready.reopen()
    assert not ready.done


def test_captures_and_training_steps_are_repeated(calls: list[str]) -> None:
    captures = probe(windows.RepeatedCaptures, REPEAT=2)
    assert [(captures.is_last(), captures.open(0, None)) for _ in range(3)] == [
        (False, None),
        (False, None),
        (True, None),
    ]
    assert calls == ["open 0 None"] * 3
    steps = probe(windows.RepeatedSteps, REPEAT=3, steps={2, 9})
    steps.read_settings()
    assert steps.steps == {2, 3, 4, 9, 10, 11}
