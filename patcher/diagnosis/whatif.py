"""Bounds of how long the same work would take under other settings, with the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from patcher.diagnosis.composition import fit_seconds
from patcher.diagnosis.iterations import Floats, Iterations
from patcher.diagnosis.model import WhatIf
from patcher.diagnosis.replay import Request, Scheduler, requests_of, simulate
from patcher.messages import Text
from patcher.timeline.model import BALANCE, FREE_SYNC, TrainingStep, without_warm_up

MAX_NUM_SEQS, TAIL_CUT, FREE_WEIGHT_SYNC, PERFECT_BALANCE = (
    "max-num-seqs", "tail-cut", "free-weight-sync", "perfect-balance",
)  # fmt: skip

FACTORS = (0.5, 2.0, 4.0)
"""Multiples of the most requests at once that are looked at."""

CUT_AT = 95
"""Percentile of the output lengths at which the tail is cut."""

ERROR = 0.08
"""Relative error of a replay within what was seen. On 60 simulated batches of 48 to 500 requests half as many at once
were at most 4.1 % off, and cut tails 7.3 %; docs/howto/diagnose.md has real ones.
"""

BOUND_ERROR = 0.02
"""Relative error by which bounds are widened: without it the truth was outside of 3 of 118, by up to 0.3 %."""

LEAST_AGREEMENT, MOST_CONTEXT_ERROR = 0.9, 0.1
"""Share of the iterations that a replay under the same setting must repeat, and its error of all contexts."""

LATEST_ARRIVAL = 0.1
"""Share of a rollout's iterations by which all requests are there, if they came as one batch."""

BINS, FEWEST_IN_BIN = 2, 5
"""Loads that are told apart from one number of requests to twice as many, and the fewest iterations of one."""

MOST_ITERATIONS = 20_000
"""Iterations of the newest rollouts that are replayed."""

MOST_AT_ONCE, MOST_REQUESTS = 4_096, 500_000
"""Requests at once, and in all replayed rollouts, up to which they are told apart: damage may make any number."""

_OF_STEPS = {FREE_SYNC: FREE_WEIGHT_SYNC, BALANCE: PERFECT_BALANCE}


@dataclass(frozen=True)
class Replayed:
    """Rollouts that a first-come scheduler repeats; ``why`` says why not, "" if it does.

    ``seconds`` are those of all rollouts; ``agreement`` is the share of iterations with the same requests and tokens.
    """

    iterations: Iterations
    seconds: float
    scheduler: Scheduler
    requests: tuple[tuple[Request, ...], ...]
    agreement: float
    why: str

    def replay_under(self, scheduler: Scheduler, cut: float = float("inf")) -> Floats:
        """Replay the reconstructed rollouts under another ``scheduler``, with outputs of at most ``cut`` tokens.

        Return requests, tokens and context of each iteration: shape (iterations, 3).
        """
        return np.concatenate([
            simulate([request._replace(output=int(min(request.output, cut))) for request in of_rollout], scheduler)
            for of_rollout in self.requests
        ])  # fmt: skip


def replay(iterations: Iterations) -> Replayed | None:
    """Reconstruct the requests of the newest rollouts, and replay them under the settings that these ran with.

    None without iterations. ``why`` of the result says why a replay is no model of them: contexts are missing, requests
    are too many or arrive late, fewer than 90 % of the iterations come out as they were, or their contexts do not.
    Without contexts or with too many requests, nothing is replayed, and ``seconds`` is 0.
    """
    if not len(iterations):
        return None
    rollouts = _newest_rollouts(iterations)
    scheduler = Scheduler(int(iterations.requests.max()), float(iterations.tokens.max()))
    came = sum(float(np.maximum(np.diff(rollout.requests, prepend=0), 0).sum()) for rollout in rollouts)
    why: str = ""
    if not iterations.context.any():
        why = Text("the timeline has no context lengths")
    elif scheduler.requests > MOST_AT_ONCE or came > MOST_REQUESTS:
        why = Text("there are too many requests to replay them one by one")
    if why:
        return Replayed(iterations, 0.0, scheduler, (), 0.0, why)
    requests = tuple(tuple(requests_of(rollout, scheduler.requests)) for rollout in rollouts)
    same, contexts = 0, np.zeros(2)
    for rollout, of_rollout in zip(rollouts, requests, strict=True):
        rows = simulate(of_rollout, scheduler, 2 * len(rollout))  # damaged columns may tell of any number of tokens
        count = min(len(rows), len(rollout))
        repeated = (rows[:count, 0] == rollout.requests[:count]) & (rows[:count, 1] == rollout.tokens[:count])
        same += int(repeated.sum())
        contexts += rows[:, 2].sum(), rollout.context.sum()
    replayed = iterations.chosen(np.isin(iterations.rollout, [rollout.rollout[0] for rollout in rollouts]))
    agreement = same / len(replayed)
    late = any(
        of_rollout[-1].arrival > LATEST_ARRIVAL * len(rollout)
        for rollout, of_rollout in zip(rollouts, requests, strict=True)
        if of_rollout
    )
    if late:
        why = Text(
            "requests arrive throughout the rollout; with another setting they would arrive at other times, and a"
            " replay cannot predict these times"
        )
    elif agreement < LEAST_AGREEMENT:
        why = Text(
            "if the requests are replayed in order of arrival, only {share:.0f} % of the iterations are reproduced."
            " Likely reasons: prefix caching, speculative decoding, preemption, or a scheduler with another order",
            100 * agreement,
        )
    elif abs(contexts[0] - contexts[1]) > MOST_CONTEXT_ERROR * contexts[1]:
        why = Text(
            "if the requests are replayed in order of arrival, their contexts differ from the measured ones by"
            " {error:+.0f} %. Likely reasons: prefix caching, preemption, or a scheduler with another order",
            100 * (contexts[0] / contexts[1] - 1),
        )
    return Replayed(replayed, float(iterations.seconds.sum()), scheduler, requests, agreement, why)


def _newest_rollouts(iterations: Iterations) -> list[Iterations]:
    """Return the newest rollouts, newest first, with at most 20,000 iterations together; at least one rollout."""
    rollouts, count = list[Iterations](), 0
    for number in np.unique(iterations.rollout)[::-1]:
        rollout = iterations.chosen(iterations.rollout == number)
        count += len(rollout)
        if rollouts and count > MOST_ITERATIONS:
            break
        rollouts.append(rollout)
    return rollouts


def what_ifs(iterations: Iterations) -> Iterator[WhatIf]:
    """Yield the time of rollouts with other ``max_num_seqs`` (0.5, 2 and 4 times the peak), and with outputs cut.

    Outputs are cut at the 95th percentile of their lengths. The newest rollouts are replayed, and their times scaled to
    all rollouts. If they cannot be replayed, each result has a reason instead of a time. A setting equal to the peak is
    left out, and nothing is yielded without iterations.
    """
    replayed = replay(iterations)
    if replayed is None:
        return
    peak = replayed.scheduler.requests
    cost_model = _CostModel(replayed.iterations)
    for setting in dict.fromkeys(max(round(peak * factor), 1) for factor in FACTORS):
        if setting != peak:
            yield _estimate(MAX_NUM_SEQS, setting, replayed, cost_model, replayed.scheduler._replace(requests=setting))
    cut = int(np.percentile([request.output for of in replayed.requests for request in of] or [1], CUT_AT))
    yield _estimate(TAIL_CUT, cut, replayed, cost_model, replayed.scheduler, cut)


def _estimate(
    name: str, setting: int, replayed: Replayed, cost_model: _CostModel, scheduler: Scheduler, cut: float = float("inf")
) -> WhatIf:
    """Estimate the time of all rollouts under another setting: replay the newest ones under ``scheduler``, and scale.

    ``name`` and ``setting`` are those of the what-if; outputs are cut at ``cut`` tokens. ``cost_model`` predicts the
    seconds of replayed iterations. If an iteration has more requests than were ever seen, the result has bounds but no
    estimate. If the rollouts cannot be replayed, it has a reason only.
    """
    if replayed.why:
        return WhatIf(name, setting, None, None, None, replayed.why)
    rows = replayed.replay_under(scheduler, cut)
    scale = replayed.seconds / max(cost_model.seconds(replayed.replay_under(replayed.scheduler)), 1e-12)
    if rows[:, 0].max() <= cost_model.most_requests:
        seconds = scale * cost_model.seconds(rows)
        error = 0.0 if np.isclose(seconds, replayed.seconds) else ERROR  # where it changes nothing
        because = Text(
            "estimated by replaying the schedule; {agreement:.0f} % of this run's iterations come out the same",
            100 * replayed.agreement,
        )
        return WhatIf(name, setting, seconds, seconds * (1 - error), seconds * (1 + error), because)
    least, most = sorted((cost_model.flat(rows), cost_model.proportional(rows)))
    because = Text(
        "estimated by replay, as a range: the iterations that the replay is based on had at most {peak:.0f} requests."
        " Lower end: further requests add no time. Upper end: each further request adds the mean time per request of a"
        " fully loaded iteration",
        cost_model.most_requests,
    )
    return WhatIf(name, setting, None, scale * least * (1 - BOUND_ERROR), scale * most * (1 + BOUND_ERROR), because)


class _CostModel:
    """Seconds of iterations by their requests, tokens and contexts, as fitted to those that were seen.

    The time of decoding grows less than its requests do, so the fit is corrected by the median error at each load.
    """

    def __init__(self, iterations: Iterations) -> None:
        self.cost = fit_seconds(iterations.features, iterations.seconds)
        self.most_requests, self.most_context = float(iterations.requests.max()), float(iterations.context.max())
        decoding = iterations.chosen(iterations.prefill == 0)
        heavy = decoding.requests >= np.quantile(decoding.requests, 0.9) if len(decoding) else slice(0)
        per_request = decoding.seconds[heavy] / np.maximum(decoding.requests[heavy], 1)
        self.seconds_per_request = float(np.median(per_request)) if len(per_request) else 0.0
        self.loads, self.ratios = _correction_by_load(decoding, decoding.features @ self.cost)

    def _predict_seconds(self, rows: Floats) -> Floats:
        """Return the predicted seconds of each iteration; each row of ``rows`` has its requests, tokens and context."""
        requests, tokens, context = rows.T
        unset, no_numbers = np.zeros(len(rows)), np.zeros(len(rows), dtype=np.int64)
        iterations = Iterations(unset, unset, requests, tokens, context, no_numbers, no_numbers)
        ratios = np.interp(np.log2(np.maximum(requests, 1)), self.loads, self.ratios)
        seconds: Floats = iterations.features @ self.cost * np.where(iterations.prefill > 0, 1.0, ratios)
        return seconds

    def seconds(self, rows: Floats) -> float:
        """Return the predicted seconds of all iterations together; a row has requests, tokens and context."""
        return float(self._predict_seconds(rows).sum())

    def flat(self, rows: Floats) -> float:
        """Return the seconds of all iterations if requests and contexts beyond the most that were seen cost nothing.

        Each row of ``rows`` is an iteration: requests, tokens and context.
        """
        more = np.maximum(rows[:, 0] - self.most_requests, 0)  # which get one token each
        requests, context = rows[:, 0] - more, np.minimum(rows[:, 2], self.most_context)
        return self.seconds(np.stack([requests, rows[:, 1] - more, context], axis=1))

    def proportional(self, rows: Floats) -> float:
        """Return the seconds of all iterations if requests beyond the most that were seen are as costly as the others.

        In iterations with more requests than were seen, each request costs at least its share of an iteration at full
        load. Each row of ``rows`` is an iteration: requests, tokens and context.
        """
        beyond = rows[:, 0] > self.most_requests
        seconds = self._predict_seconds(rows)
        return float(np.where(beyond, np.maximum(seconds, rows[:, 0] * self.seconds_per_request), seconds).sum())


def _correction_by_load(decoding: Iterations, fitted_seconds: Floats) -> tuple[Floats, Floats]:
    """Return numbers of requests (log2), and for each the factor by which to correct fitted seconds there.

    A factor is the median of measured over fitted seconds in a group of at least five iterations of ``decoding`` with
    similar numbers of requests. Without such a group, the factor is 1.
    """
    ratios = decoding.seconds / np.maximum(fitted_seconds, 1e-9)
    logarithms = np.log2(np.maximum(decoding.requests, 1))
    bins = np.round(BINS * logarithms)
    groups = [group for group in (bins == number for number in np.unique(bins)) if group.sum() >= FEWEST_IN_BIN]
    if not groups:
        return np.zeros(1), np.ones(1)
    loads = [logarithms[group].mean() for group in groups]
    return np.array(loads), np.array([np.median(ratios[group]) for group in groups])


def what_ifs_of_steps(steps: Sequence[TrainingStep]) -> Iterator[WhatIf]:
    """Yield lower and upper bounds of the steps' seconds with a free weight sync, and with perfect balance.

    A bound that the steps do not have is left out. The first step is a warm-up and left out if there are others.
    """
    settled = without_warm_up(steps)
    took = sum(step.seconds for step in settled)
    for bound_name, name in _OF_STEPS.items():
        bounds = [bound for step in settled for bound in step.what_if if bound.name == bound_name]
        if bounds:
            yield WhatIf(name, None, None, took - sum(bound.saves_seconds for bound in bounds), took, bounds[0].why)
