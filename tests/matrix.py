"""The short run sees a few cases of every long list; the others carry the mark ``matrix``, or ``crash``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")
MATRIX, CRASH = pytest.mark.matrix, pytest.mark.crash


def thinned(cases: Sequence[T], short: Collection[T], mark: pytest.MarkDecorator = MATRIX) -> list[T | ParameterSet]:
    """``cases`` for ``parametrize``, all but ``short`` marked."""
    assert set(short) <= set(cases), short
    return [case if case in short else pytest.param(case, marks=mark) for case in cases]


def ends(releases: Sequence[T]) -> tuple[T, T]:
    """The oldest and the newest one."""
    return releases[0], releases[-1]
