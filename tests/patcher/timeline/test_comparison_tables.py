"""Tables of two compared runs: their cells, words and hues."""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import Any

import pytest

from patcher.timeline import comparison_tables as tables
from patcher.timeline.run_comparison import CAME, LONGER, SHORTER, UNCLEAR, WENT, _cause_verdict, _probability_by_chance


def change(seconds: float, changed: str = LONGER, **fields: Any) -> Any:
    interval = Some(low=seconds - 1, high=seconds + 1, change=seconds)
    values = {"name": "update", "before_seconds": 2.0, "after_seconds": 2.0 + seconds, "change_seconds": seconds, "raw": interval,
              "equal_tokens": interval, "changed": changed, "changed_at_equal_tokens": changed}  # fmt: skip
    return Some(**{**values, **fields})


def test_a_part_has_its_seconds_interval_and_hue() -> None:
    rows = [change(3.0), change(-0.5, SHORTER, name="decode"), change(0.0, UNCLEAR, raw=None, equal_tokens=None)]
    table = tables._changes("parts", "x", rows, "y")
    assert table.hues == ["slower", "faster", "faster"]
    keys = [column.key for column in table.columns]
    cells = [{key: cell for key, cell in zip(keys, row, strict=True) if key} for row in table.rows]
    assert cells[0] == {
        "part": "update", "before_seconds": 2.0, "after_seconds": 5.0, "change_seconds": 3.0, "low_seconds": 2.0, "high_seconds": 4.0,
        "equal_tokens_seconds": 3.0, "equal_tokens_low_seconds": 2.0, "equal_tokens_high_seconds": 4.0, "changed": LONGER,
        "changed_at_equal_tokens": LONGER,
    }  # fmt: skip
    assert (cells[1]["part"], cells[1]["change_seconds"]) == ("decode", -0.5)
    assert [cells[2][key] for key in keys if key.endswith(("low_seconds", "high_seconds", "tokens_seconds"))] == [
        None
    ] * 5


@pytest.mark.parametrize("changed", [CAME, WENT, LONGER, SHORTER, UNCLEAR])
def test_a_cause_has_its_steps_on_each_side_and_what_changed(changed: str) -> None:
    cause = Some(label="reward: score")
    row: Any = Some(
        label="reward: score", before_steps=1, after_steps=2, before_seconds=3.0, after_seconds=4.0, changed=changed
    )
    table = tables.causes(Some(causes=[row]))  # type: ignore[arg-type]
    assert table.rows == [(cause.label, 1, 2, 3.0, 4.0, tables.cause_verdict(row))]
    words: dict[str, str] = {LONGER: "more often", SHORTER: "less often", UNCLEAR: "may be chance"}
    assert tables.cause_verdict(row) == words.get(changed, changed)


@pytest.mark.parametrize(
    ("counts", "steps", "probability"),
    [
        ((1, 1), (2, 2), 1.0), ((0, 2), (2, 2), 1 / 3), ((2, 0), (2, 2), 1 / 3), ((0, 3), (3, 3), 0.1), ((1, 2), (3, 3), 1.0),
        ((0, 1), (1, 9), 1.0), ((1, 0), (1, 9), 0.1), ((0, 0), (3, 3), 1.0), ((3, 3), (3, 3), 1.0), ((1, 5), (6, 6), 74 / 924),
    ],
)  # fmt: skip
def test_fishers_exact_test(counts: tuple[int, int], steps: tuple[int, int], probability: float) -> None:
    assert _probability_by_chance(counts, steps) == pytest.approx(probability)


@pytest.mark.parametrize(
    ("counts", "steps", "probability", "changed"),
    [
        ((0, 3), (9, 9), 0.01, CAME), ((3, 0), (9, 9), 0.01, WENT), ((1, 5), (9, 9), 0.01, LONGER), ((5, 1), (9, 9), 0.01, SHORTER),
        ((3, 4), (3, 40), 0.01, SHORTER), ((4, 3), (40, 3), 0.01, LONGER), ((1, 5), (9, 9), 0.5, UNCLEAR), ((0, 3), (9, 9), 0.5, UNCLEAR),
    ],
)  # fmt: skip
def test_a_cause_changed_by_its_share_of_each_side(
    counts: tuple[int, int], steps: tuple[int, int], probability: float, changed: str
) -> None:
    sides: Any = [[None] * count for count in steps]
    assert _cause_verdict(counts, sides, probability) == changed


@pytest.mark.parametrize(
    ("raw", "equal", "marks"),
    [(LONGER, LONGER, ""), (LONGER, "unknown", ""), (LONGER, UNCLEAR, "raw only"), (UNCLEAR, UNCLEAR, ""), (LONGER, SHORTER, "equal token"), (UNCLEAR, LONGER, "equal token")],
)  # fmt: skip
def test_a_change_is_marked_where_it_differs_at_equal_tokens(raw: str, equal: str, marks: str) -> None:
    text = tables.change_verdict(change(1.0, raw, changed_at_equal_tokens=equal))
    assert [mark for mark in ("raw only", "equal token") if mark in text] == [marks] * bool(marks)
    assert (raw if marks != "equal token" else equal) in text
