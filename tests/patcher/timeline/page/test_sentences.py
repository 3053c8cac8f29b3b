"""What is said of a run is there in Chinese, too."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from fixtures.timeline.small import small
from patcher import timeline
from patcher.timeline import causes, files, page, runs
from patcher.timeline.join import join
from patcher.timeline.page.sentences import CHINESE, in_chinese
from tests.pages import fields

SAYING = ("causes", "join", "shares", "windows")
NAMES = {"Cause | None", "free weight sync"}
"""Texts of more than two words that are no sentences."""


def said_by(module: str) -> set[str]:
    """The texts of a module that are sentences: neither its docstrings nor parts of a text that is put together."""
    tree = ast.parse(Path(timeline.__file__).with_name(f"{module}.py").read_text())
    docs = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    parts = {id(part) for one in ast.walk(tree) if isinstance(one, ast.JoinedStr) for part in one.values}
    texts = (one for one in ast.walk(tree) if isinstance(one, ast.Constant) and id(one) not in docs | parts)
    return {text for one in texts if isinstance(text := one.value, str) and len(text.split()) > 2}


def test_every_sentence_has_its_translation_and_none_is_left_over() -> None:
    said = set().union(*map(said_by, SAYING))
    assert said - {*CHINESE} == NAMES
    assert {*CHINESE} - said == {"weight sync"}


@pytest.mark.parametrize("english", CHINESE)
def test_a_translation_has_the_same_values_and_is_chinese(english: str) -> None:
    chinese = CHINESE[english]
    assert fields(english) == fields(chinese)
    assert re.search("[\u4e00-\u9fff]", chinese)
    assert not re.search("[,;:] ", chinese.replace("{", "").replace(":,", "").replace("TCP: ", ""))


def test_a_page_in_chinese_says_nothing_in_english(tmp_path: Path) -> None:
    small(tmp_path, slow={4: 500}, ranks=1, world=2)
    ((run, processes),) = runs.survey(files.paths(tmp_path)).runs
    found = join(run, processes)
    texts = [one.title for one in found.causes] + [one.advice for one in found.causes]
    texts += [*found.missing, *(one.why for one in found.windows), *(step.why for step in found.steps)]
    texts = [text for text in texts if text]
    assert len(texts) > 5
    assert [text for text in texts if text in page.page(found, language="zh")] == []
    assert in_chinese(found).causes[0].advice in {CHINESE[one] for one in causes.ADVICE.values()}
