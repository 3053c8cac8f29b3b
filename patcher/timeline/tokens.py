"""The tokens that the engines of a run computed in a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from patcher.timeline.files import IterationColumns
from patcher.timeline.step_records import StepRecords


def lowest_ranks(replica_of: Sequence[int | None], ranks: Mapping[int, int | None]) -> list[int]:
    """Return the process indices of the engines that have the lowest rank in their replica.

    All ranks of a replica compute the same tokens, so only these engines count. ``replica_of`` has the replica of each
    process, ``ranks`` the rank of each engine by its process index; an unknown rank is taken for 0.
    """
    lowest = dict[int | None, int]()
    for at, rank in ranks.items():
        lowest[replica_of[at]] = min(lowest.get(replica_of[at], rank or 0), rank or 0)
    return [at for at, rank in ranks.items() if lowest[replica_of[at]] == (rank or 0)]


def prefill_and_decode_tokens(records: StepRecords, engines: Iterable[int]) -> tuple[int, int] | tuple[None, None]:
    """Return how many tokens engines computed in a step: in iterations that prefill, and in those that only decode.

    An iteration with more tokens than requests counts as one that prefills, with all of its tokens. It belongs to the
    step in which it ends. (None, None) without engines.
    """
    columns = [records.iterations.get(at, IterationColumns()) for at in engines]
    prefills = decodes = 0
    for _, end, requests, count in chain.from_iterable(columns):
        if records.start < end <= records.end:
            prefills, decodes = (prefills + count, decodes) if count > requests else (prefills, decodes + count)
    return (prefills, decodes) if columns else (None, None)
