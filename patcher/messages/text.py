"""Texts that can still be said in another language: English, with the template and the values it is made of."""

from __future__ import annotations

import functools
import re
from typing import Any, Iterable, Mapping


class Text(str):
    """English sentence that keeps its `template` and `values`, so that it can be translated.

    The template is the key of the catalogue and names its values in braces, as `str.format` does. Several values are
    given by name; a single one may follow the template. Values that are Text are translated, too. Raises ValueError
    if the template does not name exactly these values.
    """

    __slots__ = ("template", "values")
    template: str
    values: Mapping[str, Any]

    def __new__(cls, template: str, /, *only_value: Any, **values: Any) -> Text:  # noqa: D102
        if isinstance(template, Text):
            values = {**template.values, **values}
            template = template.template
        if only_value:
            names = _names(template)
            if len(names) != 1 or len(only_value) != 1 or values:
                raise ValueError(f"{template!r} does not name a single value")
            values = {names[0]: only_value[0]}
        elif values and values.keys() != {*_names(template)}:
            raise ValueError(f"{template!r} does not name the values {', '.join(values)}")
        text = super().__new__(cls, template.format(**values) if values else template)
        text.template, text.values = template, values
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.template, dict(self.values))

    def filled(self, *only_value: Any, **values: Any) -> Text:
        """Return this text, which is a template so far, with its values, as the constructor takes them."""
        return Text(self, *only_value, **values)

    def rendered(self, translations: Mapping[str, str]) -> str:
        """Return the text in another language; `translations` maps English templates to translated ones.

        A template without a translation stays English. Values that are Text are translated, too.
        """
        template = translations.get(self.template) or self.template
        if not self.values:
            return template
        values = self.values.items()
        return template.format(**{name: rendered(value, translations) for name, value in values})


def rendered(value: Any, translations: Mapping[str, str]) -> Any:
    """Return a Text translated by `translations`, and any other value unchanged."""
    return value.rendered(translations) if isinstance(value, Text) else value


def _restored(kind: type[Text], template: str, values: Mapping[str, Any]) -> Text:
    return kind(template, **values)


@functools.lru_cache(maxsize=None)
def _names(template: str) -> tuple[str, ...]:
    """Return the distinct names of values in a template, in order."""
    return tuple(dict.fromkeys(re.findall(r"(?<!\{)\{(\w+)", template)))


COMMA, SEMICOLON, AND, OR = Text(", "), Text("; "), Text(" and "), Text(" or ")
"""Separators of `joined`; between paths, numbers and words to be typed a plain ``", "`` stays."""


def lines(text: str) -> list[str]:
    """Return the lines of a text; lines put together by `joined` stay translatable. Empty for ""."""
    if isinstance(text, Text) and "\n" in text.values.values():
        return [value for value in text.values.values() if value != "\n"]
    return text.splitlines() if "\n" in text else [text] if text else []


def sentences(*texts: str) -> Text:
    """Return the non-empty `texts` as a single Text, with blanks between them. There must be at least one."""
    first, *more = filter(None, texts)
    paragraph = Text("{sentence}", first)
    for sentence in more:
        paragraph = Text("{sentences} {sentence}", sentences=paragraph, sentence=sentence)
    return paragraph


def processes_text(count: int) -> Text:
    """Return "1 process", "2 processes" and so on."""
    return Text("1 process") if count == 1 else Text("{count} processes", count)


def steps_text(count: int) -> Text:
    """Return "1 step", "2 steps" and so on."""
    return Text("1 step") if count == 1 else Text("{count} steps", count)


def joined(separator: str, texts: Iterable[str]) -> Text:
    """Return the non-empty `texts` as a single Text with `separator` between them; an empty Text without any."""
    parts: dict[str, str] = {}
    for text in filter(None, texts):
        if parts:
            parts[f"part{len(parts)}"] = separator
        parts[f"part{len(parts)}"] = text
    template = "".join(f"{{{name}}}" for name in parts)
    return Text(template, **parts)
