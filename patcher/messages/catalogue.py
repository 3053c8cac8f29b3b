"""Texts in Chinese: those of ``zh.po``, whose keys are the English ones, with ``{0}`` for what is filled in.

A text with values is found by its template, and values that are texts are said in Chinese, too: ``{0!s}`` is one that
never is, ``{0!a}`` one that is also where it is a single word, which may as well be the name of a file. ``{n}`` begins
with a digit. gettext's own .mo would be quicker to read by some milliseconds, but it lists no templates, and would have
to be built.
"""

from __future__ import annotations

import functools
import json
import pkgutil
import re
import textwrap
import unicodedata
from typing import Mapping, NamedTuple

_ENTRY = re.compile(r'^msgid ((?:".*"\n)+)msgstr ((?:".*"\n)+)', re.MULTILINE)
_KEY, _PLACE = re.compile(r"\{(\w+)\}"), re.compile(r"\{(\w+)(![sa])?\}")
_ENDS = re.compile(r"\. [A-Z0-9]|; ")
_PARTS = re.compile(r"(?<=[.\])]) +(?=[A-Z0-9#\[(]|rank )|(?<=:) (?=[A-Z])|(?<=[^ ])  (?=\[)|; ")
_WIDE, _OPENING, _CLOSING = r"\u2e80-\u9fff\uff00-\uffef", r"[（“《\[(]*", r"[，。、；：）”》！？…\]),.;:]*"
_WORDS = re.compile(rf"\s+|{_OPENING}(?:[{_WIDE}]|[^\s{_WIDE}]+){_CLOSING}")
"""What a line may end behind: a blank, a word, or a Chinese character with the marks that belong to it."""
_LONGEST, _MOST_LOOKUPS, _DEEPEST = 4000, 200, 8
"""Characters of a text, templates that are looked for in one, and values within values: none of ours has as many."""

_WORD = r"(?!(?:and|or|in|into|is|of|to|from|as|with|by|for|at|on|has|was|are|does|cannot) )[^\s/,;:]+"
_COMMAND = r"(?:\brlpatch (?:[^\s';,]+ )*|(?<!\w))'[^'\n]* [^'\n]*'"
_PATH = rf"(?<![\w/.~])[~.]{{0,2}}/\S*(?: (?:{_WORD} ){{0,3}}{_WORD}/\S*)+"
_KEPT = re.compile(f"{_COMMAND}|{_PATH}")
"""Values with blanks that are never said in Chinese: what is quoted for a shell, with the command of rlpatch before it,
and a path with a folder that has them.
"""

_FIRST_MARK, _MARKS = 0xE000, re.compile("[\ue000-\uf8ff]")
"""Characters for private use, each of which stands for such a value while a text is looked up."""


def entries(text: str) -> dict[str, str]:
    """English → Chinese, of the text of a .po file; what is not translated is left out."""
    found = ((_unquoted(key), _unquoted(value)) for key, value in _ENTRY.findall(text))
    return {key: value for key, value in found if key and value}


def _unquoted(lines: str) -> str:
    return "".join(map(json.loads, lines.splitlines()))


def width(text: str) -> int:
    """How many columns of a terminal ``text`` takes."""
    return sum(1 + (unicodedata.east_asian_width(one) in "WF") for one in text)


class Columns(str):
    """A text whose length is its columns."""

    __slots__ = ()

    def __len__(self) -> int:
        return width(self)

    def __format__(self, spec: str) -> str:
        blanks = " " * (int(re.sub(r"\D", "", spec) or 0) - len(self))
        return f"{blanks}{self!s}" if spec.startswith(">") else f"{self!s}{blanks}"


class _Wrapper(textwrap.TextWrapper):
    """Lines of so many columns, which may end between Chinese characters."""

    def _split(self, text: str) -> list[str]:
        return [Columns(word) for word in _WORDS.findall(text)]


def _is_torn(value: str) -> bool:
    """Whether a value would reach over the end of a sentence, or out of brackets that nobody has cut off."""
    even = "…" in value or (value.count("(") == value.count(")") and value.count("`") % 2 == 0)
    return not even or bool(_ENDS.search(value))


class _Template(NamedTuple):
    """A key between whose ``parts`` values stand, by their ``names``; ``text`` says the same in Chinese."""

    parts: list[str]
    names: list[str]
    text: str

    @property
    def open(self) -> bool:
        """Whether its last value may be anything: a name, a sentence, a column, or what stands behind a colon."""
        named = f"{{{self.names[-1]}!s}}" in self.text
        return not self.parts[-1] and (named or self.parts[-2].endswith((": ", ". ", "  ", " /")))

    def weight(self) -> tuple[int, int]:
        """The letters that it begins with, and all of its own."""
        return len(self.parts[0]), sum(map(len, self.parts))

    def values(self, text: str) -> dict[str, str] | None:
        """The values that make ``text`` of it; None if none do, or they would reach over the end of a sentence."""
        head, *between, tail = self.parts
        if not (text.startswith(head) and text.endswith(tail) and len(text) >= len(head) + len(tail)):
            return None
        found, at, end = [], len(head), len(text) - len(tail)
        for part in between:
            here = text.find(part, at, end)
            if here < 0:
                return None
            found.append(text[at:here])
            at = here + len(part)
        found.append(text[at:end])
        values = dict(zip(self.names, found))
        if any(map(_is_torn, found[:-1] if self.open else found)) or not values.get("n", "0")[:1].isdigit():
            return None
        return values


class Catalogue:
    """Texts by their keys."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = {key: text for key, text in texts.items() if not _KEY.search(key)}
        made = ((_KEY.split(key), text) for key, text in texts.items() if key not in self.texts)
        # What a text begins with says best what it is, then how much of it is no value.
        templates = sorted(
            (_Template(key[::2], key[1::2], text) for key, text in made), key=_Template.weight, reverse=True
        )
        self.templates: dict[str, list[_Template]] = {}
        for one in templates:
            self.templates.setdefault(one.parts[0][:1], []).append(one)

    @functools.lru_cache(maxsize=4096)  # noqa: B019  (there is one catalogue)
    def translate(self, text: str) -> str:
        """``text`` in Chinese, between the blanks that it has around it; what is not found stays English."""
        if len(text) > _LONGEST or _MARKS.search(text):
            return text
        kept: list[str] = []

        def mark(value: re.Match[str]) -> str:
            kept.append(value[0])
            return chr(_FIRST_MARK + len(kept) - 1)

        try:
            said = _Lookup(self).translate(_KEPT.sub(mark, text))
        except _TooMany:
            return text
        return _MARKS.sub(lambda found: kept[ord(found[0]) - _FIRST_MARK], said)

    def cell(self, text: str) -> str:
        """See `patcher.messages.language.cell`."""
        return Columns(self.translate(text))

    @staticmethod
    def wrapped(text: str, indent: str, further: str, columns: int) -> list[str]:
        """Lines of so many columns, those after the first behind ``further``; a longer word stays whole."""
        wrapper = _Wrapper(columns, initial_indent=indent, subsequent_indent=further, break_long_words=False)
        return wrapper.wrap(text)


class _TooMany(Exception):  # noqa: N818  (no error: the text stays English)
    """A text for which more would be looked up than any of ours needs."""


class _Lookup:
    """One text that is looked up, with the texts that are its values."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.texts, self.templates = catalogue.texts, catalogue.templates
        self.lookups = self.depth = 0

    def translate(self, text: str) -> str:
        """See `Catalogue.translate`. Raises _TooMany."""
        bare = text.strip()
        if not bare:
            return text
        lead, _, trail = text.partition(bare)
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _TooMany
        said = self._translate(bare)
        self.depth -= 1
        return f"{lead}{said}{trail}"

    def _translate(self, text: str) -> str:
        whole = self._listed(text) or self._found(text)
        if whole is not None:
            return whole
        if "\n" in text:
            return "\n".join(map(self.translate, text.split("\n")))
        for end in [*_PARTS.finditer(text)][::-1]:
            before, after = text[: end.start()], text[end.end() :]
            first, rest = self._found(before), self.translate(after)
            if first is None and rest != after and (end[0] == "; " or " " not in before):  # a command, or a name
                first = before
            if first is not None:
                between = "；" if end[0] == "; " else "" if first.endswith(("。", "：")) else end[0]
                return f"{first}{between}{rest}"
        return text

    def _found(self, text: str) -> str | None:
        """What the catalogue has for a text, by itself or by its template."""
        known = self.texts.get(text) or self.texts.get(f"{text[:1].upper()}{text[1:]}")
        if known is not None:
            return known
        template = self._template(text)
        return self._filled(template.text, template.values(text) or {}) if template else None

    def _listed(self, text: str) -> str | None:
        """The same for a list: each of its parts is found, and the first does not take the others to itself."""
        parts, whole = text.split(", "), self._template(text)
        if len(parts) == 1 or text in self.texts or (whole and any(", " in part for part in whole.parts)):
            return None
        takes = [template is not None and template.open for template in map(self._template, parts)]
        found = [*map(self._found, parts)] if all(takes) or not takes[0] else [None]
        return None if None in found else "，".join(map(str, found))

    def _template(self, text: str) -> _Template | None:
        self.lookups += 1
        if self.lookups > _MOST_LOOKUPS:
            raise _TooMany
        among = (*self.templates.get(text[:1], ()), *self.templates.get("", ()))
        return next((one for one in among if one.values(text)), None)

    def _filled(self, text: str, values: Mapping[str, str]) -> str:
        def filled(at: re.Match[str]) -> str:
            value = values[at[1]]
            return self.translate(value) if at[2] == "!a" or (" " in value and at[2] is None) else value

        return _PLACE.sub(filled, text)


@functools.lru_cache(maxsize=None)
def chinese() -> Catalogue:
    """The catalogue beside this module."""
    return Catalogue(entries((pkgutil.get_data(__package__, "zh.po") or b"").decode()))
