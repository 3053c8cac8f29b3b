"""The short run sees a few cases of every long list; the others carry the mark ``matrix``, or ``crash``.

Of what hypothesis makes up it sees a few, too, the same in each run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

from fixtures.releases import sample
from patcher.recipe import Upstream

T = TypeVar("T")
MATRIX, CRASH = pytest.mark.matrix, pytest.mark.crash


def thinned(cases: Sequence[T], short: Collection[T], mark: pytest.MarkDecorator = MATRIX) -> list[T | ParameterSet]:
    """``cases`` for ``parametrize`` with one name, all but ``short`` marked."""
    assert all(case in cases for case in short), short
    return [case if case in short else pytest.param(case, marks=mark) for case in cases]


def thinned_rows(cases: Sequence[tuple[Any, ...]], short: Collection[tuple[Any, ...]]) -> list[ParameterSet]:
    """``cases`` for ``parametrize`` with several names, all but ``short`` marked."""
    assert all(case in cases for case in short), short
    return [pytest.param(*case, marks=() if case in short else MATRIX) for case in cases]


def every(number: int, cases: Sequence[tuple[Any, ...]]) -> list[ParameterSet]:
    """``cases`` for ``parametrize`` with several names, all but the first of each ``number`` marked."""
    return thinned_rows(cases, cases[::number])


def of_releases(short: Collection[str], cases: Sequence[tuple[Any, ...]]) -> list[ParameterSet]:
    """``cases`` whose first value is a release: all but those of the ``short`` ones marked."""
    return thinned_rows(cases, [case for case in cases if case[0] in short])


def in_releases(
    metafunc: pytest.Metafunc,
    upstream: Upstream,
    windows: Collection[tuple[str, str]],
    short: Callable[[str, str, str], bool],
) -> None:
    """Windows (stage and unit) at both ends of each structure, and with --all-releases in every release."""
    versions = upstream.releases if metafunc.config.getoption("--all-releases") else sample(upstream)
    cases = [(version, *window) for version in versions for window in windows]
    metafunc.parametrize(("version", "stage", "unit"), thinned_rows(cases, [case for case in cases if short(*case)]))


def ends(releases: Sequence[T]) -> tuple[T, T]:
    """The oldest and the newest one."""
    return releases[0], releases[-1]


def examples(number: int) -> int:
    """How many of them a test sees that is slow, or else has too few: a tenth in the short run."""
    return max(2, number * settings().max_examples // 100)
