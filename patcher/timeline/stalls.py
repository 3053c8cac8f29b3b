"""Stalls: times in which a process ran none of its threads, because it was stopped, swapped out, or held Python's lock.

The recorder's thread writes at least every 0.52 s if there is something to write. A block that comes later shows that
the process did nothing meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from patcher.timeline.intervals import TimeRange

WRITES_US = 520_000
"""Longest time from a record to its block, in microseconds: ``TimelineRecorder.watch`` waits 0.5 s, then 0.02 s."""

LASTING_US = 1_000_000
"""Age in microseconds from which on a span that goes on has to be written."""

SURE_US = 150_000
"""Microseconds by which a block must be late: a busy machine delays a thread, too."""

RARE = 10
"""At most one of so many blocks may be late; if more are, a slow disk may be the reason, so none counts as a stall."""


def stall_before_block(
    before: int, written: int, ended: Sequence[tuple[int, int]], begun: Sequence[int]
) -> TimeRange | None:
    """Return the range in which a process certainly did not run, because it wrote a block late; None if there is none.

    Times are in microseconds. ``before`` is when the process wrote the previous block, ``written`` when it wrote this
    one. ``ended`` has start and end of each record in the block, ``begun`` the starts of its spans that go on.
    """
    due = min([*(end for _, end in ended), *(start + LASTING_US for start in begun)], default=written)
    since = max(due, before)
    if written - since <= WRITES_US + SURE_US:
        return None
    events = {since, written, *begun, *(time for record in ended for time in record)}
    moments = sorted(time for time in events if since <= time <= written)
    start, end = max(pairwise(moments), key=lambda gap: gap[1] - gap[0])
    return TimeRange(start + WRITES_US, end) if end - start > WRITES_US + SURE_US else None
