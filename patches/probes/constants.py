"""The mark of an attribute that is a literal by the time that a probe goes in."""

from __future__ import annotations

from typing import Annotated, TypeVar

T = TypeVar("T")
CompileTime = Annotated[T, "a literal by the time that it goes in"]
