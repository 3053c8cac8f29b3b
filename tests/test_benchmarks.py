"""Results of benchmarks: printed, kept by version and shown; no test looks at how long anything takes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks import ratios
from tests import site


@pytest.mark.parametrize(
    ("most", "said"),
    [
        (None, "  a / b: ratio 1.500\n"),
        (2.0, "  a / b: ratio 1.500 (at most 2)\n"),
        (1.3, "  a / b: ratio 1.500 (at most 1.3, MISSED)\n"),
    ],
)
def test_a_ratio_is_told(
    most: float | None,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RLPATCH_RATIOS", str(tmp_path / "told"))
    ratios.tell("a / b", 1.5, most)
    assert capsys.readouterr().out == said
    assert json.loads((tmp_path / "told").read_text()) == ["a / b", 1.5, most]


def test_the_memory_of_a_process_is_its_own_and_not_that_of_who_measures() -> None:
    held = bytearray(200 << 20)
    seconds, small = ratios.measured([sys.executable, "-c", ""])
    _, large = ratios.measured([sys.executable, "-c", "bytearray(80 << 20)"])
    assert len(held) > 2 * small * (1 << 20)
    assert 75 < large - small < 90
    assert 0 < seconds < 60


def test_a_process_that_fails_is_no_measurement() -> None:
    with pytest.raises(SystemExit, match="exit 3: "):
        ratios.measured([sys.executable, "-c", "raise SystemExit(3)"])


def test_a_later_run_of_a_version_replaces_its_ratios_and_keeps_the_others() -> None:
    first = ratios.added({}, "startup", "0.1.0", [["a", 2.0, None], ["b", 3.0, 4.0]])
    again = ratios.added(first, "startup", "0.1.0", [["a", 1.9, None]])
    later = ratios.added(again, "startup", "0.2.0", [["a", 1.5, 1.6]])
    assert later == {
        "startup": {
            "a": {"most": 1.6, "by_version": {"0.1.0": 1.9, "0.2.0": 1.5}},
            "b": {"most": 4.0, "by_version": {"0.1.0": 3.0}},
        }
    }


def test_the_page_shows_every_ratio_with_its_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = site.hooks()
    monkeypatch.setattr(hooks, "HISTORY", tmp_path / "history.json")
    rows = [["a <b> / c", 2.0, 1.3], ["d / e", 0.5, None]]
    history = ratios.added({}, "startup", "0.1.0", rows)
    hooks.HISTORY.write_text(json.dumps(ratios.added(history, "startup", "0.2.0", [["a <b> / c", 1.2, 1.3]])))
    page = hooks.on_page_markdown("<!-- ratios -->")
    assert "## benchmarks/startup.py" in page
    assert "| a &lt;b&gt; / c | 1.3 | 2.0 | 1.2 | <svg" in page
    assert "| d / e |  | 0.5 |  | <svg" in page
    assert [len(re.findall("<circle", row)) for row in page.splitlines() if "<svg" in row] == [2, 1]


def test_the_history_is_of_benchmarks_that_are_there() -> None:
    history = json.loads(ratios.HISTORY.read_text())
    assert {f"{name}.py" for name in history} <= {path.name for path in ratios.HERE.glob("*.py")}
    assert site.hooks().on_page_markdown((site.DOCS / "explanation/benchmarks.md").read_text()).count("<svg") > 1
