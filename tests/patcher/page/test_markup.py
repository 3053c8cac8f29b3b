from __future__ import annotations

import pytest

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
def test_text(value, shown):
    assert markup.text(value) == shown
    assert markup.tag("p", value, title=value, hidden=None) == f'<p title="{shown}">{shown}</p>'
