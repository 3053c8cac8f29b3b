"""The table of targets, stages, windows and releases in the pages of both languages, as the recipes have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from patcher.config import WHOLE, BuiltinStage
from patcher.messages import Kind, Problem
from patcher.recipe import Recipe, Upstream
from patches.projects import upstreams
from patches.rollout import ALIGNED
from patches.training import CALL, MICRO, MINI

PAGES = ("README.md", "README.zh.md", "docs/reference/targets.md", "docs/reference/targets.zh.md")
"""The files that have the table, relative to the repository."""


class Words(NamedTuple):
    """Words of the table in a language."""

    head: str
    also: str
    settings: str
    none: str
    whole: str


ENGLISH = Words(
    "| target | stage | windows | releases |",
    "{} (also {})",
    "{}: settings of its own profiler",
    "none",
    "none: as a whole",
)
CHINESE = Words("| 目标 | 阶段 | 窗口 | 版本 |", "{}（另有 {}）", "{}：自带 profiler 的设置", "无", "无：整段采集")  # noqa: RUF001
(_BUILTIN,) = BuiltinStage.NAMES
_ORDER = (*ALIGNED, MICRO, MINI, CALL, WHOLE)


class StageGroup(NamedTuple):
    """Stages of a project that have the same windows in the same releases."""

    upstream: Upstream
    stages: tuple[str, ...]
    windows: tuple[str, ...]
    releases: tuple[str, ...]


def table(words: Words = ENGLISH, *, short: bool = False) -> list[str]:
    """Return the lines of the Markdown table of targets, in the language of `words`.

    Rollouts come first, then training stages, stages recorded as a whole, and settings of frameworks' own profilers.
    The `short` table has a row for each project, with its windows alone.
    """
    rows = [row for upstream in upstreams() for row in (windowed(upstream) if short else grouped(upstream))]
    rows.sort(key=lambda row: (_BUILTIN in row.stages, _ORDER.index(row.windows[0])))
    return [words.head, "|---|---|---|---|", *(_row(row, words) for row in rows)]


def rewrite_table(file: Path) -> str:
    """Replace the table in `file`, whose name tells its language, and return a sentence on what was done.

    A README gets the short table. Raises Problem (STRUCTURE) unless the head of the table occurs exactly once.
    """
    words = CHINESE if file.name.endswith(".zh.md") else ENGLISH
    lines = file.read_text("utf-8").split("\n")
    if lines.count(words.head) != 1:
        cause = f"{lines.count(words.head)} tables that begin with “{words.head}”"
        raise Problem(Kind.STRUCTURE, cause, str(file), f"put this line where the table goes: {words.head}")
    first = lines.index(words.head)
    end = next((at for at in range(first, len(lines)) if not lines[at].startswith("|")), len(lines))
    after = [*lines[:first], *table(words, short=file.name.startswith("README")), *lines[end:]]
    if after == lines:
        return f"{file} is as the recipes say"
    file.write_text("\n".join(after), "utf-8")
    return f"{file} has the table of the recipes now"


def windowed(upstream: Upstream) -> Iterator[StageGroup]:
    """Yield the project's stages with a window as a single group, with all their windows and releases."""
    recipes = [recipe for recipe in upstream.recipes if recipe.windows != (WHOLE,)]
    stages = tuple(dict.fromkeys(recipe.stage for recipe in recipes))
    yield StageGroup(upstream, stages, _windows(recipes), _releases(upstream, recipes))


def grouped(upstream: Upstream) -> Iterator[StageGroup]:
    """Yield the project's stages; those with the same windows and releases share a group."""
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for stage in dict.fromkeys(recipe.stage for recipe in upstream.recipes):
        recipes = [recipe for recipe in upstream.recipes if recipe.stage == stage]
        alike.setdefault((_windows(recipes), _releases(upstream, recipes)), []).append(stage)
    return (StageGroup(upstream, tuple(stages), *same) for same, stages in alike.items())


def _windows(recipes: Sequence[Recipe]) -> tuple[str, ...]:
    return tuple(sorted({unit for recipe in recipes for unit in recipe.windows}, key=_ORDER.index))


def _releases(upstream: Upstream, recipes: Sequence[Recipe]) -> tuple[str, ...]:
    recipe_releases = {release for recipe in recipes for release in recipe.releases}
    return tuple(release for release in upstream.project.releases if release in recipe_releases)


def _row(row: StageGroup, table_words: Words) -> str:
    """Return the Markdown row of a group of stages, in the language of `table_words`.

    Its cells are target, stages, windows and releases; more than three releases are given as "first … last (count)".
    """
    project = row.upstream.project
    other_names = [f"`{name}`" for name in project.distributions if name != project.name]
    target = table_words.also.format(project.name, ", ".join(other_names)) if other_names else project.name
    stages, windows = ", ".join(row.stages), ", ".join(f"`--{unit}`" for unit in row.windows)
    if row.windows == (WHOLE,):
        windows = table_words.none if row.stages == (_BUILTIN,) else table_words.whole
    if row.stages == (_BUILTIN,):
        stages = table_words.settings.format(f"`--{_BUILTIN}`")
    first, *_, last = (*row.releases, row.releases[-1])
    span = f"{first} … {last} ({len(row.releases)})" if len(row.releases) > 3 else ", ".join(row.releases)
    return f"| {target} | {stages} | {windows} | {span} |"
