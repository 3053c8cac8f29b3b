from __future__ import annotations

import pytest

from patcher.messages.text import Text
from patcher.page import markup


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("<b>", "&lt;b&gt;"),
        ("\"'", "&quot;&#x27;"),
        ("a\u202eb\x00\x1bc\ud800", "a\ufffdb\ufffd\ufffdc\ufffd"),
        ("line\nline\t", "line\nline\t"),
        (7, "7"),
    ],
)
def test_text_and_attributes_are_escaped(value, shown):
    assert markup.text(value) == shown
    assert markup.tag("p", value, title=value, hidden=None) == f'<p title="{shown}">{shown}</p>'


def test_texts_are_in_the_language_of_the_reader_and_names_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLPATCH_LANG", "zh")
    name = Text("name")
    made = markup.tag("p", name, " of ", Text("{count} steps", 3), class_=name, id=name, title=name)
    assert made == '<p class="name" id="name" title="名称">名称 of 3 个 step</p>'
    assert '{"words":["名称",1]}' in markup.data_block("run", {"words": (name, 1)})
    monkeypatch.setenv("RLPATCH_LANG", "en")
    assert markup.tag("p", name) == "<p>name</p>"
