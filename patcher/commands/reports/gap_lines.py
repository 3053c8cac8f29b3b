"""Where the device was free, as ``report`` shows it in the terminal: the places with the most time."""

from __future__ import annotations

from collections.abc import Iterator

from patcher.commands.reports import table_lines
from patcher.messages.notes import wrapped
from patcher.messages.report import Detail
from patcher.messages.text import SEMICOLON, Text, joined
from patcher.traces import model, tables
from patcher.traces.places import behind, why

FIRST, MOST = 3, 10
"""Places that are always shown, and with -v."""

WORTH = 0.01
"""The share of the time from which on a place is shown without -v."""


def gaps(profile: model.RankProfile, label: str) -> Iterator[str]:
    """Return the places with the most time of one profile, which has a ``label`` where there are several."""
    total = profile.total_ns
    worth = [gap for gap in profile.gaps[:FIRST] if gap.ns >= WORTH * total]
    if not worth:
        return
    title, head, *rows = table_lines.titled(tables.gaps(profile), label)
    yield from (title, head)
    for at, (gap, row) in enumerate(zip(profile.gaps[:MOST], rows, strict=False)):
        lines = [row, *wrapped(joined(SEMICOLON, (behind(gap), why(gap), _most(gap))), "    ", "    ")]
        yield from lines if at < len(worth) else map(Detail, lines)
    if len(profile.gaps) > len(worth):
        yield Text("  {count:,} places in all: -o FILE.html and --json have them", len(profile.gaps))


def _most(gap: model.FreeGap) -> str:
    """The unit that has most of it, where not every one has as much."""
    if gap.units == 1:
        return f"#{gap.unit}"
    return Text("most in #{unit}", gap.unit) if 2 * gap.unit_ns > gap.ns else ""
