"""The page of a run: an HTML file with its steps, which needs no network, and can be read without its script.

A pure function of the values of ``model``. Names of the run go through ``patcher.page.markup`` as text; a run that is
too much for the page is drawn more coarsely, and the page says so.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from patcher.messages import Text
from patcher.page import document
from patcher.page.markup import Content, section
from patcher.timeline.model import RunTimeline
from patcher.timeline.page import sections
from patcher.timeline.page.picture import RECORDED, WINDOWS, picture

__all__ = ["LIMIT", "page"]

LIMIT = 2_000_000
"""Most bytes of a page: more than a run of a hundred steps and 64 ranks needs."""

MOST_STEPS = 400
"""Most steps on a page; the newest are shown."""

MOST_LISTED = 200
"""Most entries of a list; the first are shown."""

_FINEST = 50_000  # bars that fit side by side; a fourth of them where the page would be too large
_COARSEST = 195


def page(timeline: RunTimeline) -> str:
    """Return the page of a run in the reader's language, as HTML, if possible below ``LIMIT`` bytes.

    Long lists, such as notes, are cut to 200 entries. If the run is too large, short bars and rare names are merged,
    then older steps are omitted; the page says so.
    """
    timeline = _shortened(timeline)
    style, script = (Path(__file__).with_name(f"timeline.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    text, bars_across, steps = "", _FINEST, MOST_STEPS
    while steps:
        body = _body(_newest(timeline, steps), bars_across)
        text = document(Text("rlpatch timeline"), body, style=style, script=script)
        if len(text.encode()) < LIMIT:
            break
        if bars_across // 4 >= _COARSEST:
            bars_across //= 4
        else:
            steps //= 4
    return text


def _shortened(timeline: RunTimeline) -> RunTimeline:
    """Return the run with each list of notes, windows and clocks cut to its first 200 entries.

    ``missing`` begins with a new note for each list that was cut.
    """
    most = MOST_LISTED
    lists = (
        (timeline.missing, sections.NOTES),
        (timeline.notes, sections.NOTES),
        (timeline.windows, WINDOWS),
        (timeline.recorded, RECORDED),
        (timeline.clocks, sections.CLOCKS),
    )
    notes = [
        Text(
            "this page shows only {count} of {total} entries of the list “{list}”; `rlpatch timeline --json` has all",
            count=most,
            total=f"{len(entries):,}",
            list=title,
        )
        for entries, title in lists
        if len(entries) > most
    ]
    return dataclasses.replace(
        timeline,
        missing=(*notes, *timeline.missing[:most]),
        notes=timeline.notes[:most],
        windows=timeline.windows[:most],
        recorded=timeline.recorded[:most],
        clocks=timeline.clocks[:most],
    )


def _newest(timeline: RunTimeline, step_count: int) -> RunTimeline:
    """Return the run with only its newest ``step_count`` steps, and with a note on the page if that leaves some out."""
    if len(timeline.steps) <= step_count:
        return timeline
    note = Text(
        "this page shows the newest {count} of {total} steps; `rlpatch timeline --steps A:B` shows other steps",
        count=step_count,
        total=len(timeline.steps),
    )
    return dataclasses.replace(timeline, steps=timeline.steps[-step_count:], missing=(note, *timeline.missing))


def _body(timeline: RunTimeline, bars_across: int) -> Content:
    """Return the body of the page; ``bars_across`` is the number of bars that fit side by side."""
    drawn = picture(timeline, bars_across)
    return (
        sections.head(timeline),
        sections.causes(timeline),
        sections.trend(timeline),
        drawn and section(Text("The run"), drawn),
        sections.steps(timeline),
        sections.table_sections(timeline),
        sections.windows(timeline),
        sections.recorded(timeline),
        sections.clocks_and_notes(timeline),
    )
