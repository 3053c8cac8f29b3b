"""The bubble of a pipeline: how long a stage is in sends and receives, and how unequally stages compute.

The vendor's own Bubble counts ``hcom_receive`` alone, and is 0 where a stage sends and receives at once. A kernel of
NCCL does not say whether its SendRecv is one of two ranks or an all-to-all: there the name that kineto writes decides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from patcher.messages import Text, sentences
from patcher.traces.model import Collective, Diagnosis, RankProfile
from patcher.traces.words import in_ms, percent

NOTABLE = 0.10
"""The share of the time from which on it is worth a finding."""

UNEQUAL = 1.1
"""Stages are unequal where one computes so many times as long as another."""

_KINDS = re.compile(r"send|recv|hcom_(?:send|receive|batchSendRecv)", re.ASCII)


def between_two(collective: Collective) -> bool:
    """Tell whether a collective is a send or a receive between two ranks."""
    return bool(_KINDS.fullmatch(collective.kind or collective.name))


def bubble(profile: RankProfile, profiles: Sequence[RankProfile]) -> Diagnosis | None:
    """Diagnose exposed sends and receives of a pipeline stage; None if they take under 10 % of the time.

    The evidence compares the compute time of ``profiles``, the stages, if it is unequal.
    """
    transfers = [collective for collective in profile.collectives if between_two(collective)]
    times: Counter[int] = Counter()
    for collective in transfers:
        times[collective.unit] += collective.ns
    waits = sum(min(times[unit.number], unit.communication_ns) for unit in profile.units)
    if not transfers or waits < NOTABLE * profile.total_ns:
        return None
    evidence = Text(
        "For up to {waits} of the time it is in sends and receives that nothing hides ({count:,.0f} per unit).",
        percent(waits / profile.total_ns),
        len(transfers) / len(profile.units),
    )
    advice = Text("more micro-batches, or an interleaved schedule: the transfer itself is the smaller part")
    stages = [(profile.sum_ns("compute_ns", "overlap_ns") // len(profile.units), profile) for profile in profiles]
    (least, fast), (most, slow) = (pick(stages, key=lambda stage: stage[0]) for pick in (min, max))
    if len(profiles) > 1 and most > UNEQUAL * least:
        values = slow.label, in_ms(most), fast.label, in_ms(least)
        evidence = sentences(evidence, Text("{slow} computes {most} per unit, {fast} {least}.", *values))
        advice = Text("give the stage that computes longest fewer layers; then more micro-batches")
    saving = waits // len(profile.units)
    certainty = Text("upper bound; the transfer is in it")
    return Diagnosis("pipeline-bubble", "warning", evidence, saving, certainty, advice, profile.source)
