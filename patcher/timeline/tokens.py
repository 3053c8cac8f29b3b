"""The tokens that the engines of a run computed in a step."""

from __future__ import annotations

from collections.abc import Mapping

from patcher.timeline.files import IterationColumns
from patcher.timeline.path import StepRecords


def prefill_and_decode_tokens(
    records: StepRecords, ranks: Mapping[int, int | None]
) -> tuple[int, int] | tuple[None, None]:
    """Return how many tokens engines computed in a step: in iterations that prefill, and in those that only decode.

    An iteration belongs to the step in which it ends. ``ranks`` has the ranks of engines, by the process's index: only
    the lowest rank of a replica counts, because all ranks compute the same tokens. (None, None) without engines.
    """
    lowest = dict[int | None, int]()
    for at, rank in ranks.items():
        replica = records.replica_of[at]
        lowest[replica] = min(lowest.get(replica, rank or 0), rank or 0)
    prefills = decodes = 0
    for at, rank in ranks.items():
        if lowest[records.replica_of[at]] == (rank or 0):
            for _, end, requests, count in records.iterations.get(at, IterationColumns()):
                if records.start < end <= records.end:
                    prefills, decodes = (prefills + count, decodes) if count > requests else (prefills, decodes + count)
    return (prefills, decodes) if ranks else (None, None)
