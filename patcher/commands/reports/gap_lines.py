"""Where the device was free, as ``report`` shows it in the terminal: the places with the most time."""

from __future__ import annotations

from collections.abc import Iterator

from patcher.messages.language import cell
from patcher.messages.notes import WIDTH, wrapped
from patcher.messages.report import Detail
from patcher.messages.text import SEMICOLON, Text, joined
from patcher.traces import model
from patcher.traces.places import behind, place_of, share_of, why
from patcher.traces.words import millis

FIRST, MOST = 3, 10
"""Places that are always shown, and with -v."""

WORTH = 0.01
"""The share of the time from which on a place is shown without -v."""


def gaps(profile: model.RankProfile, label: str) -> Iterator[str]:
    """Return the places with the most time of one profile, which has a ``label`` where there are several."""
    count, total = len(profile.units), profile.total_ns
    worth = [gap for gap in profile.gaps[:FIRST] if gap.ns >= WORTH * total]
    if not worth:
        return
    title = Text("where the device was free")
    yield Text("{title} of {profile}", title, label) if label else title
    heads = (Text("ms/unit"), Text("share"), Text("units"), Text("place"))
    yield "{:>11}{:>9}{:>7}  {}".format(*map(cell, heads))
    for at, gap in enumerate(profile.gaps[:MOST]):
        place = cell(place_of(gap, WIDTH - 29))
        lines = [f"{millis(gap.ns / count):>11}{share_of(gap, profile):>9}{gap.units:>7,}  {place}"]
        lines += wrapped(joined(SEMICOLON, (behind(gap), why(gap), _most(gap))), "    ", "    ")
        yield from lines if at < len(worth) else map(Detail, lines)
    if len(profile.gaps) > len(worth):
        yield Text("  {count:,} places in all: -o FILE.html and --json have them", len(profile.gaps))


def _most(gap: model.FreeGap) -> str:
    """The unit that has most of it, where not every one has as much."""
    if gap.units == 1:
        return f"#{gap.unit}"
    return Text("most in #{unit}", gap.unit) if 2 * gap.unit_ns > gap.ns else ""
