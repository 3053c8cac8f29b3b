"""Sentences that know what they were made of, so that they can be said in another language."""

from __future__ import annotations

from typing import Any, Mapping


class Sentence(str):
    """A sentence in English: ``template`` with ``values`` filled in, as `str.format` does it."""

    template: str
    values: Mapping[str, Any]

    def __new__(cls, template: str, **values: Any) -> Sentence:
        """Raises KeyError where the template has a name that ``values`` lack."""
        self = super().__new__(cls, template.format(**values))
        self.template, self.values = template, values
        return self

    def translated(self, templates: Mapping[str, str]) -> str:
        """The same, and the sentences in it, by the templates of another language; KeyError where there is none."""
        values = {name: translated(value, templates) for name, value in self.values.items()}
        return templates[self.template].format(**values)


def translated(value: Any, templates: Mapping[str, str]) -> Any:
    """A sentence in another language; anything else as it is."""
    return value.translated(templates) if isinstance(value, Sentence) else value
