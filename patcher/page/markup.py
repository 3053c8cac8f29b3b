"""HTML and SVG in which whatever is not markup of ours is escaped: text by default, markup only by this module."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence

from patcher.messages.language import translate_for_page

VOID = frozenset(("meta", "input", "br"))
_UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Characters that are not seen, or turn the text around them: a name has to look like what it is."""

_LESS = "\\u003c"  # of a string in JSON

Content = object
"""Markup, or a value whose text is meant, or an iterable of such; None and False stand for nothing."""


class Markup(str):
    """Text that is escaped markup already, and is not escaped again."""

    __slots__ = ()


def visible(text: str) -> str:
    """Return a text with U+FFFD for characters that are invisible, or turn the text around them."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text)


def text(value: object) -> str:
    """Return a value as escaped text for use between tags and in quotes; a `Text` is in the reader's language."""
    return html.escape(visible(str(translate_for_page(value))))


def tag(name: str, /, *content: Content, **attributes: object) -> Markup:
    """Return an HTML element with ``content``, which is escaped unless it is markup.

    Attributes None or False are left out, True has no value. ``class_`` is written as class, and ``_`` as ``-``. A
    `Text` is in the reader's language. Elements that are never closed, such as input (`VOID`), get no content.
    """
    words = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            word = key.rstrip("_").replace("_", "-")
            attribute = str(value) if word in ("class", "id") and value is not True else value  # a name, no text
            words.append(word if value is True else f'{word}="{text(attribute)}"')
    opened = f"<{' '.join(words)}>"
    return Markup(opened if name in VOID else f"{opened}{joined(content)}</{name}>")


def joined(content: Content) -> Markup:
    """Return content as markup: items of an iterable one after another, Markup as it is, other values as escaped text.

    None and False give nothing.
    """
    if isinstance(content, Markup):
        return content
    if content is None or content is False:
        return Markup()
    if isinstance(content, Iterable) and not isinstance(content, str):
        return Markup("".join(joined(part) for part in content))
    return Markup(text(content))


def data_block(name: str, value: object) -> Markup:
    """Return a value as translated JSON in an element that no browser runs and whose texts cannot end it."""
    data = visible(json.dumps(_translated(value), ensure_ascii=False, separators=(",", ":")))
    return Markup(f'<script type="application/json" id="{name}">{data.replace("<", _LESS)}</script>')


def _translated(value: object) -> object:
    """Return a value with each `Text` in the reader's language, also within dicts (values), lists and tuples."""
    if isinstance(value, dict):
        return {key: _translated(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_translated(item) for item in value]
    return translate_for_page(value)


def section(title: str, *content: Content) -> Markup:
    """Return a part of a page below its heading."""
    return tag("section", tag("h2", title), *content)


def faint(content: Content) -> Markup:
    """Return a paragraph in faint type."""
    return tag("p", content, class_="faint")


def alert(head: str, lines: Sequence[str]) -> Content:
    """Return a heading and lines that a reader must not miss; nothing without lines."""
    items = tag("ul", [tag("li", line) for line in lines])
    return lines and tag("div", tag("strong", head), items, class_="withdrawn", role="alert")
