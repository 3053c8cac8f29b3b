"""What is said of a run is there in Chinese, too: the catalogue has every text, and the page takes it from there."""

from __future__ import annotations

import re
from pathlib import Path

from fixtures.timeline.small import small
from patcher.timeline import files, page, runs
from patcher.timeline.join import join
from patcher.timeline.page.sentences import in_chinese

CHINESE = re.compile("[\u4e00-\u9fff]")


def test_a_page_in_chinese_says_nothing_in_english(tmp_path: Path) -> None:
    small(tmp_path, slow={4: 500}, ranks=1, world=2)
    ((run, processes),) = runs.survey(files.paths(tmp_path)).runs
    found = join(run, processes)
    texts = [one.title for one in found.causes] + [one.advice for one in found.causes]
    texts += [*found.missing, *(one.why for one in found.windows), *(step.why for step in found.steps)]
    texts = [text for text in texts if text]
    assert len(texts) > 5
    assert [text for text in texts if text in page.page(found, language="zh")] == []
    translated = in_chinese(found)
    assert all(CHINESE.search(one.advice) and CHINESE.search(one.title) for one in translated.causes)
    assert all(map(CHINESE.search, translated.missing))
