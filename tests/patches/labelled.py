"""Labels of a driver in the traces of training stages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fixtures.ascend import trace

NAME = re.compile(
    r"_(?P<stage>(update|compute)_(policy|critic|log_prob|values))_(?P<role>actor|ref|critic)_step(?P<step>\d+)_rank0_"
)
LABEL = re.compile(r"(generate|infer|loss|forward|backward|optimizer)( \d+)+")

Units = dict[int, list[str]]
Recorded = dict[tuple[str, str, int], Units]
"""Stage, role and training step of each trace, with the labels of its units."""


def recorded(folder: Path) -> Iterator[tuple[Any, Units]]:
    """The items of a Recorded; what is marked as uncounted belongs to no unit."""
    for path in trace.find(folder):
        name = NAME.search(path.name)
        assert name, path.name
        whole = trace.read(path)
        between = [one for one in whole.ranges if one.name == "rlpatch:uncounted"]
        units = {
            unit.number: [
                one.name
                for one in unit.ranges
                if LABEL.fullmatch(one.name) and not any(pause.holds(one) for pause in between)
            ]
            for unit in whole.units
        }
        assert [one.name for one in whole.outside if LABEL.fullmatch(one.name)] == [], path.name
        yield (name["stage"].replace("_", "-"), name["role"], int(name["step"])), units
