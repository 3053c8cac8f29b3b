"""Engine iterations as arrays, and the features by which the time of one is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Iterations:
    """Iterations of one engine in order, an array for each property.

    ``start`` is in seconds since 1970. ``seconds`` reaches from an iteration's start to that of the next one in its
    rollout; the last one of a rollout takes its own time. ``tokens`` are the scheduled ones without drafts, ``context``
    is the sum over the requests, and ``rollout`` counts from 0. ``id`` is the timeline's, 0 where that has none.
    """

    start: Floats
    seconds: Floats
    requests: Floats
    tokens: Floats
    context: Floats
    rollout: Numbers
    id: Numbers

    def __len__(self) -> int:
        return len(self.start)

    def chosen(self, selection: NDArray[np.bool_]) -> Iterations:
        """Return the iterations where ``selection`` is True."""
        return Iterations(*(getattr(self, field.name)[selection] for field in fields(self)))

    @property
    def after_warm_up(self) -> NDArray[np.bool_]:
        """Mask of the iterations after the first rollout; of all if there is only one rollout."""
        later: NDArray[np.bool_] = self.rollout > 0
        return later if later.any() else ~later

    @property
    def prefill(self) -> Floats:
        """Prompt tokens of each iteration: a request that decodes has one token, the others are of prompts."""
        return np.maximum(self.tokens - self.requests, 0.0)

    @property
    def features(self) -> Floats:
        """Features of each iteration, with which its time grows: an array of shape (iterations, 6).

        They are 1 for the iteration itself, requests, prefill tokens, context, prefill tokens times mean context, and
        the square root of requests: a matmul of twice as many requests takes less than twice as long.
        """
        mean_context = self.context / np.maximum(self.requests, 1)
        columns = (
            np.ones(len(self)), self.requests, self.prefill, self.context, self.prefill * mean_context,
            np.sqrt(self.requests),
        )  # fmt: skip
        return np.stack(columns, axis=1)

    @property
    def features_beside_device(self) -> Floats:
        """`features` with one more column: 1 if the iteration has prefill, else 0.

        With prefill no whole graph is replayed, so the host takes longer.
        """
        return np.column_stack([self.features, self.prefill > 0])


def iterations(
    start: Floats,
    length: Floats,
    requests: Floats,
    tokens: Floats,
    context: Floats,
    rollout: Numbers | None = None,
    identity: Numbers | None = None,
) -> Iterations:
    """Build the iterations of an engine from columns, with rollouts numbered from 0; they must be sorted by ``start``.

    ``start`` and ``length`` are in seconds. The result's ``seconds`` last until the next iteration starts; only for the
    last one of a rollout they are its ``length``. ``rollout`` has the engine's own number of each iteration's rollout.
    If it is None or all 0, a rollout begins at each iteration whose scheduled tokens are all the context; prefix
    caching hides such iterations. ``identity`` has the iterations' ids, None if they are unknown (0).
    """
    begins = tokens >= context if rollout is None or not rollout.any() else np.diff(rollout, prepend=0) != 0
    begins[:1] = True
    numbers = (np.cumsum(begins) - 1).astype(np.int64)
    seconds = length.copy()
    goes_on = numbers[1:] == numbers[:-1]
    seconds[:-1][goes_on] = np.diff(start)[goes_on]
    ids = np.zeros(len(start), dtype=np.int64) if identity is None else identity
    return Iterations(start, seconds, requests, tokens, context, numbers, ids)


def concatenated(parts: Sequence[Iterations]) -> Iterations:
    """Join the iterations of one or more engines, one after the other, and number the rollouts of all consecutively."""
    ends = np.cumsum([0, *(int(part.rollout.max(initial=-1)) + 1 for part in parts[:-1])])
    numbered = [replace(part, rollout=part.rollout + before) for part, before in zip(parts, ends, strict=True)]
    return Iterations(
        *(np.concatenate([getattr(part, field.name) for part in numbered]) for field in fields(Iterations))
    )
