"""The page of a run: where its steps went, on one file that needs no network, and no script to be read.

A pure function of the values of ``model``. Names of the run go through ``patcher.page.markup`` as text; a run that is
too much for the page is drawn more coarsely, and the page says so.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from patcher.page import document
from patcher.page.markup import Content, section
from patcher.timeline.model import RunTimeline
from patcher.timeline.page import sections
from patcher.timeline.page.picture import picture
from patcher.timeline.page.sentences import in_chinese
from patcher.timeline.page.texts import LANGUAGES, Say, saying

__all__ = ["LANGUAGES", "LIMIT", "page"]

LIMIT = 2_000_000
"""Bytes that no page of a run of a hundred steps and 64 ranks reaches."""

MOST_STEPS = 400
"""On one page, the newest ones."""

_FINEST = 50_000  # bars that fit beside each other; a fourth of them where the page would be too large


def page(found: RunTimeline, *, language: str = "en") -> str:
    """The page of a run in one of ``LANGUAGES``, below ``LIMIT`` bytes: short bars are joined before it is reached."""
    say = saying(language)
    found = in_chinese(found) if language == "zh" else found
    if len(found.steps) > MOST_STEPS:
        note = say("newest", count=MOST_STEPS, all=len(found.steps))
        found = dataclasses.replace(found, steps=found.steps[-MOST_STEPS:], missing=(note, *found.missing))
    style, script = (Path(__file__).with_name(f"timeline.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    text, parts = "", _FINEST
    while parts > 100:
        body = _body(found, say, parts)
        text = document(say("title"), body, language=language, style=style, script=script)
        if len(text.encode()) < LIMIT:
            break
        parts //= 4
    return text


def _body(found: RunTimeline, say: Say, parts: int) -> Content:
    drawn = picture(found, say, parts)
    return (
        sections.head(found, say),
        sections.causes(found, say),
        drawn and section(say("picture"), drawn),
        sections.steps(found, say),
        sections.what_if(found, say),
        sections.roles(found, say),
        sections.sync(found, say),
        sections.imbalance(found, say),
        sections.windows(found, say),
        sections.recorded(found, say),
        sections.rest(found, say),
    )
