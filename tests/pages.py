"""Helpers for tests of pages: names that try to become markup, and what a parser makes of a page."""

from __future__ import annotations

import string
from html.parser import HTMLParser

from patcher.page import markup

HOSTILE = (
    "<script>said.push(1)</script>",
    "</script><script>said.push(1)</script>",
    "</style></title></textarea><img src=x onerror=alert(1)>",
    '" autofocus onfocus="alert(1)" x="',
    "' onmouseover='alert(1)",
    "<!--<script>",
    "]]><svg onload=alert(1)>",
    "{{ 7 * 7 }} {% raw %}",
    "&lt;b&gt; &#60;i&#62;",
    "javascript:alert(1)",
    "\u202eevil\u202c \x00\x1b[31m\ud800",
)


def fields(text: str) -> set[str | None]:
    """The names of the values that a template has."""
    return {name for _, name, _, _ in string.Formatter().parse(text)} - {None}


class Seen(HTMLParser):
    """What a parser makes of a page: its elements, their attributes, and its text outside of style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.raw: dict[str, str] = {}
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name) for name, _ in attrs]
        if tag not in markup.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("style", "script"):
            self.raw[self.open[-1]] = self.raw.get(self.open[-1], "") + data
        else:
            self.text += data

    def handle_comment(self, data):
        raise AssertionError(data)


def shape(text: str) -> tuple[list[str], list[tuple[str, str]]]:
    parsed = Seen(text)
    assert parsed.open == []
    return parsed.tags, parsed.attributes
