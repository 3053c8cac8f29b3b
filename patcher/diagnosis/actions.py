"""Proposals that make a rollout shorter, each with an upper bound."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from patcher.diagnosis.iterations import Iterations
from patcher.diagnosis.model import Action, StageDiagnosis
from patcher.messages import Text

LEAST_SHARE = 0.02
"""Share of the stage below which nothing is proposed."""

MOST_ACTIONS = 3

AT_LOAD = 0.95
"""Share of the most requests from which on an iteration shows what a token costs at full load."""


def actions(stage: StageDiagnosis, iterations: Iterations) -> tuple[Action, ...]:
    """Return at most three things to do, the largest bound first. Bounds overlap: they do not add up."""
    proposals = [*_fuller_batches(iterations), *_of_classes(stage)]
    worthwhile = [action for action in proposals if action.bound_seconds >= LEAST_SHARE * stage.seconds]
    return tuple(sorted(worthwhile, key=lambda action: -action.bound_seconds)[:MOST_ACTIONS])


def _fuller_batches(iterations: Iterations) -> Iterator[Action]:
    """Yield what decoding would save if each token took as long as at full load."""
    decoding = iterations.chosen(iterations.prefill == 0)
    peak = float(iterations.requests.max(initial=0))
    full = decoding.requests >= AT_LOAD * peak
    if peak <= 1 or not full.any():
        return
    per_token = float(np.median(decoding.seconds[full] / decoding.requests[full]))
    tokens, took = float(decoding.requests.sum()), float(decoding.seconds.sum())
    ideal = tokens * per_token
    because = Text(
        "{tokens:,.0f} decode tokens as fast as at {peak:.0f} requests: {ideal:.1f} instead of {took:.1f} s",
        tokens,
        peak,
        ideal,
        took,
    )
    yield Action(Text("fuller batches"), took - ideal, because)


def _of_classes(stage: StageDiagnosis) -> Iterator[Action]:
    """Yield what less time on the host and hidden collectives would save."""
    seconds = {part.name: part.seconds for part in stage.classes}
    host = seconds.get("host-bound", 0.0) + seconds.get("outside-forward", 0.0)
    because = Text("no idle time between kernels or outside the forward pass: graphs, asynchronous scheduling")
    yield Action(Text("less host time"), host, because)
    exposed = seconds.get("collective", 0.0)
    yield Action(Text("hidden collectives"), exposed, Text("no collective that computing does not hide"))
