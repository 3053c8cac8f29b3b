"""The one place that writes a drawing: lengths become text here, and names are escaped by ``markup``.

Whole numbers are written as they are, others with one decimal: a tenth of a unit of the drawing is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from patcher.page.markup import Content, Markup, tag

WIDTH = 1000
"""Width of every drawing, in its own units."""


class Scale(NamedTuple):
    """A linear axis that maps values from ``low`` to ``high`` to places from ``begin`` to ``end``."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a value on the axis."""
        return self.begin + (value - self.low) * self.factor

    @property
    def factor(self) -> float:
        """Length on the axis of a difference of 1; negative if the axis runs backwards."""
        return (self.end - self.begin) / (self.high - self.low)

    def length(self, value: float) -> float:
        """Return the length of a difference on the axis."""
        return value * abs(self.factor)


def drawing(content: Content, height: float, label: str) -> Markup:
    """Return a drawing as wide as the page; ``label`` is its text for screen readers."""
    return tag("svg", content, viewBox=f"0 0 {WIDTH} {_number(height)}", role="img", aria_label=label)


def shape(name: str, content: Content = None, *, title: str | None = None, **attributes: object) -> Markup:
    """Return an element with floats rounded to one decimal; ``title`` is its tooltip."""
    hint = None if title is None else tag("title", title)
    return tag(name, content, hint, **{key: _number(value) for key, value in attributes.items()})


def box(x: float, y: float, width: float, height: float) -> str:
    """Return the outline of a rectangle as a piece of a path."""
    return f"M{_number(x)} {_number(y)}h{_number(width)}v{_number(height)}h{_number(-width)}z"


def stroke(x: float, y: float, width: float) -> str:
    """Return a horizontal line as a piece of a path."""
    return f"M{_number(x)} {_number(y)}h{_number(width)}"


def path(pieces: Sequence[str], class_: str) -> Markup:
    """Return pieces (outlines or lines) as one path element."""
    return tag("path", d="".join(pieces), class_=class_)


def rule(x: float, y: float, class_: str) -> Markup:
    """Return a horizontal line from ``x`` to the right end of the drawing."""
    return path([f"M{_number(x)} {_number(y)}H{WIDTH}"], class_)


def icon(content: Markup) -> Markup:
    """Return a small drawing beside a text that says the same; screen readers skip the drawing."""
    return tag("svg", content, viewBox="0 0 10 10", aria_hidden="true")


def swatch(class_: str) -> Markup:
    """Return the rectangle of an icon."""
    return tag("rect", width=10, height=10, rx=2, class_=class_)


def ticks(top: float) -> list[float]:
    """Return three to six round numbers from 0 up to at most ``top``, evenly spaced; [0] if ``top`` is not above 0."""
    step = 10 ** math.floor(math.log10(top / 4)) if top > 0 else 1.0
    step = next((step * more for more in (1, 2, 2.5, 5, 10) if step * more * 5 >= top), step * 10)
    return [step * at for at in range(int(top / step) + 1)]


def _number(value: object) -> object:
    return f"{value:.1f}" if isinstance(value, float) else value
