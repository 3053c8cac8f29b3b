from __future__ import annotations

import pytest

from patcher.timeline.intervals import TimeRange
from patcher.timeline.stalls import stall_before_block

MS = 1_000
NOW = 10_000 * MS


def ago(*milliseconds: float) -> list[int]:
    return [NOW - round(ms * MS) for ms in milliseconds]


CASES = {
    "nothing to write": ((9_000, [], []), None),
    "in time": ((600, [(700, 500)], []), None),
    "late, and nothing was done": ((3_000, [(2_400, 2_300), (2_300, 0)], []), (1_780, 0)),
    "a span that goes on was due when it was a second old": ((4_000, [], [2_500]), (980, 0)),
    "a span that goes on was not due yet": ((4_000, [], [1_400]), None),
    "it did something meanwhile": ((3_000, [(2_400, 2_300), (2_300, 1_900), (1_900, 1_400)], [1_000, 500]), (None)),
    "a part of the time": ((3_000, [(2_400, 2_300), (2_300, 1_600)], []), (1_080, 0)),
    "then it did something": ((3_000, [(2_400, 2_300), (200, 100)], []), (1_780, 200)),
    "what began long before is no stall": ((9_000, [(8_000, 900)], []), (380, 0)),
    "it did something just in time": ((9_000, [(2_400, 1_340), (1_340, 670), (670, 0)], []), None),
    "it did something a moment too late": ((9_000, [(2_400, 1_341), (1_341, 670), (670, 0)], []), (821, 670)),
    "the block before had what was due before": ((600, [(2_400, 2_300)], []), None),
    "as late as a busy machine may be": ((9_000, [(700, 670)], []), None),
    "later than a busy machine may be": ((9_000, [(700, 671)], []), (151, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_process_stands_still_if_it_is_late_to_write_and_did_nothing(name: str) -> None:
    (before, ended, begun), expected = CASES[name]
    ranges = [(ago(start)[0], ago(end)[0]) for start, end in ended]
    found = stall_before_block(ago(before)[0], NOW, ranges, ago(*begun))
    assert found == (TimeRange(*ago(*expected)) if expected else None)
