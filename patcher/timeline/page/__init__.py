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

MOST_LISTED = 200
"""Entries of a list, the first ones."""

_FINEST = 50_000  # bars that fit beside each other; a fourth of them where the page would be too large
_COARSEST = 195


def page(found: RunTimeline, *, language: str = "en") -> str:
    """The page of a run in one of ``LANGUAGES``, below ``LIMIT`` bytes.

    Before it is reached short bars and rare names are joined, and then older steps left out; the page says so.
    """
    say = saying(language)
    found = in_chinese(found) if language == "zh" else found
    found = _shortened(found, say)
    style, script = (Path(__file__).with_name(f"timeline.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    text, parts, steps = "", _FINEST, MOST_STEPS
    while steps:
        body = _body(_newest(found, say, steps), say, parts)
        text = document(say("title"), body, language=language, style=style, script=script)
        if len(text.encode()) < LIMIT:
            break
        if parts // 4 >= _COARSEST:
            parts //= 4
        else:
            steps //= 4
    return text


def _shortened(found: RunTimeline, say: Say) -> RunTimeline:
    """The run with the first entries of its lists, and a note on each that has more."""
    most = MOST_LISTED
    lists = (found.missing, "notes"), (found.notes, "notes"), (found.windows, "windows"), (found.recorded, "recorded")
    notes = [
        say("listed", count=most, all=f"{len(entries):,}", what=say(key))
        for entries, key in (*lists, (found.clocks, "clocks"))
        if len(entries) > most
    ]
    return dataclasses.replace(
        found, missing=(*notes, *found.missing[:most]), notes=found.notes[:most], windows=found.windows[:most],
        recorded=found.recorded[:most], clocks=found.clocks[:most],
    )  # fmt: skip


def _newest(found: RunTimeline, say: Say, steps: int) -> RunTimeline:
    """The run with the newest ``steps`` of its steps, and a note on that."""
    if len(found.steps) <= steps:
        return found
    note = say("newest", count=steps, all=len(found.steps))
    return dataclasses.replace(found, steps=found.steps[-steps:], missing=(note, *found.missing))


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
