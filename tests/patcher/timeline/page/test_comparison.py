from __future__ import annotations

import re
from pathlib import Path

from patcher.page.table import table_section
from patcher.timeline import comparison_tables
from patcher.timeline.model import Cause
from patcher.timeline.page.comparison import comparison_page
from patcher.timeline.run_comparison import CauseChange, RunComparison, RunSide, SecondsChange
from tests.pages import Seen


def test_the_page_has_the_sentences_what_differs_and_all_tables() -> None:
    side = RunSide(Path("a"), (), (1,), {}, 2.0, None, None, None)
    change = SecondsChange("step", 2.0, 3.0, 1.0, None, None, "unknown", "unknown")
    causes = tuple(
        CauseChange(Cause("reward", None, at, f"score {at}", "gen", 1, 1), 0, 1, 0, 1, "came") for at in range(201)
    )
    comparison = RunComparison(
        side, side, change, "slower", (change,), (change,), causes, ("packages",), ("other <trainers>",), ("few steps",)
    )  # fmt: skip
    text = comparison_page(comparison, ["slower by 1 s", "before: a", "after: b", "tokens unknown", "no more"])
    assert re.findall(r"<h1>(.*?)</h1><p class=\"faint\">(.*?)</p><p class=\"faint\">(.*?)</p></header>", text) == [
        ("rlpatch compare", "before: a", "after: b")
    ]  # fmt: skip
    assert re.findall(r"<p class=\"verdict\">(.*?)</p>|<p>(.*?)</p>", text)[:5] == [
        ("slower by 1 s", ""), ("", "tokens unknown"), ("", "no more"), ("", "Difference between the two sides: packages."), ("", "few steps")
    ]  # fmt: skip
    assert "for these reasons:other <trainers>" in Seen(text).text
    for _, table in comparison_tables.of_comparison(comparison):
        assert str(table_section(table, 200)) in text
    assert "score 199" in text
    assert "score 200" not in text
