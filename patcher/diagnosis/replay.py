"""The requests of a rollout, reconstructed from its iterations, and a simulated scheduler that replays them.

A request that ends takes its context with it, and nothing else makes the sum of contexts smaller. So the iterations
tell when a request came, with which prompt, and when it ended. With chunked prefill as in vLLM's V1 scheduler, requests
that run go first and get one token each, then prompts in the order of their arrival, up to a budget of tokens.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from patcher.diagnosis.iterations import Floats, Iterations

MOST_AT_ONCE = 4
"""Requests more than necessary that may have ended together."""

MOST_TRIED = 4
"""Requests without a prompt of their own that are tried as one that ended: those with the likeliest contexts."""


class Request(NamedTuple):
    """Tokens of a request, and the iteration in which it was there at the latest."""

    prompt: int
    output: int
    arrival: int = 0


class Scheduler(NamedTuple):
    """Most requests at once, and most tokens of an iteration."""

    requests: int
    tokens: float


@dataclass(slots=True)
class _Running:
    """A request that runs: tokens so far, the iteration that ended its prompt, and its place in the queue.

    ``error`` is by how much ``computed`` may be wrong, 0 if the prompt came alone, and not with others.
    """

    order: int
    arrival: int
    computed: float = 0.0
    since: int = -1
    error: float = 0.0

    @property
    def exact(self) -> bool:
        return self.error == 0


@dataclass
class _Reconstruction:
    """The requests of a rollout so far."""

    running: list[_Running] = field(default_factory=list)
    partial: _Running | None = None
    requests: dict[int, Request] = field(default_factory=dict)
    came: int = 0
    prompt_tokens: float = 0.0

    def finish(self, ended: Sequence[_Running], iteration: int, context: float) -> None:
        """Move requests that ended before ``iteration`` to the finished ones, with their prompts and outputs in tokens.

        ``context`` is the number of tokens that they had together. If the estimates of their tokens have another sum,
        the difference is shared out in proportion to each prompt's uncertainty, or evenly if all are certain.
        """
        missing = _missing(ended, context)
        errors = sum(request.error for request in ended)
        for request in ended:
            correction = missing * request.error / errors if errors else missing / len(ended)
            output = max(iteration - request.since, 1)
            prompt = max(round(request.computed + correction) - output + 1, 1)
            self.requests[request.order] = Request(prompt, output, request.arrival)
        ids = {request.order for request in ended}
        self.running = [request for request in self.running if request.order not in ids]

    def admit(self, count: int, tokens: float, iteration: int, arrival: int, *, full: bool) -> None:
        """Add ``count`` new requests, and divide ``tokens`` of prompts among them and the partial request.

        The partial request is one whose prompt is not computed to its end yet. ``iteration`` computes these tokens;
        ``arrival`` is the iteration by which the requests came. A ``full`` iteration has no room for more tokens, so
        the last request becomes the partial one. Without new requests, a single token shows that the partial request's
        prompt was complete.
        """
        new = [_Running(self.came + number, arrival) for number in range(count)]
        self.came += count
        self.running += new
        if self.partial and not new and tokens == 1:  # its prompt was whole already
            self.partial.computed += 1
            self.partial = None
            return
        prefilling = [self.partial, *new] if self.partial else new
        tokens = max(tokens, 0.0)
        self.prompt_tokens += tokens
        # The first and the last one may have only a part of their prompts in this iteration.
        weights = [1.0] * len(prefilling)
        if self.partial:
            weights[0] = 0.5
        if full and weights:
            weights[-1] = 0.5
        for request, weight in zip(prefilling, weights, strict=True):
            share = tokens * weight / sum(weights)
            request.computed += share
            request.since = iteration
            request.error += share if len(prefilling) > 1 else 0.0
        self.partial = prefilling[-1] if full and prefilling else None


def requests_of(rollout: Iterations, at_once: int) -> list[Request]:
    """Reconstruct the requests of a rollout from its iterations, in order of arrival.

    ``at_once`` is the most requests that ran at once. Requests that still run in the last iteration count as ended
    after it. Requests that end together, and prompts that come together, can only be told apart as far as their sums
    allow.
    """
    rebuilt = _Reconstruction()
    most_tokens = rollout.tokens.max(initial=1)
    arrival, before = 0, 0.0
    columns = zip(rollout.requests.tolist(), rollout.tokens.tolist(), rollout.context.tolist(), strict=True)
    waited = True
    for iteration, (requests, tokens, context) in enumerate(columns):
        ended_context = before + tokens - context
        ended = _guess_ended(rebuilt, ended_context, int(requests), int(tokens)) if ended_context > 0 else []
        rebuilt.finish(ended, iteration, ended_context)
        new = max(int(requests) - len(rebuilt.running), 0)
        decoding = len(rebuilt.running) - (rebuilt.partial is not None)
        arrival = arrival if waited else iteration
        full = tokens >= most_tokens
        for request in rebuilt.running:
            request.computed += request is not rebuilt.partial
        rebuilt.admit(new, tokens - decoding, iteration, arrival, full=full)
        waited = full or requests >= at_once
        before = context
    rebuilt.finish(rebuilt.running, len(rollout), sum(request.computed for request in rebuilt.running))
    return [request for _, request in sorted(rebuilt.requests.items())]


def _guess_ended(rebuilt: _Reconstruction, context: float, requests: int, tokens: int) -> list[_Running]:
    """Return the likeliest set of running requests that ended before an iteration; [] if no request can have ended.

    Together they had about ``context`` tokens. The iteration then runs ``requests`` requests and computes ``tokens``
    tokens. A set is likelier if it is small, and if the new prompts in its place have the usual length.
    """
    candidates = sorted(
        (request for request in rebuilt.running if request is not rebuilt.partial),
        key=lambda request: request.computed,
    )
    least = min(max(len(rebuilt.running) - requests, 1), len(candidates))
    if tokens == requests and rebuilt.partial is None:  # there is no prompt, so nobody came
        return _choose_by_context(candidates, context, least)
    most = min(least + MOST_AT_ONCE, len(candidates))
    choices = [_choose_by_context(candidates, context, count) for count in range(least, most + 1)]
    usual = rebuilt.prompt_tokens / max(rebuilt.came, 1)

    def unlikeliness(chosen: Sequence[_Running]) -> float:
        """Return a penalty for the choice of requests that ended, lower for a likelier one.

        It is their number, plus how far the prompts that came in their place are from the usual length, plus how far
        their context is from the known one.
        """
        remaining_requests = len(rebuilt.running) - len(chosen)
        mean_prompt = (tokens - remaining_requests) / max(requests - remaining_requests, 1)
        unusual = abs(math.log2(max(mean_prompt, 1) / max(usual, 1)))
        missing = abs(_missing(chosen, context))
        return len(chosen) + unusual + missing / max(sum(request.error for request in chosen), 1)

    return min(choices, key=unlikeliness, default=[])


def _choose_by_context(candidates: Sequence[_Running], context: float, count: int) -> list[_Running]:
    """Return ``count`` candidates whose contexts add up to ``context`` tokens, or to the nearest sum that was tried.

    ``candidates`` must be sorted by context. Those whose context is known exactly are tried first.
    """
    exact = _choose_nearest([request for request in candidates if request.exact], context, count)
    if len(exact) == count and _missing(exact, context) == 0:
        return exact
    shared = [request for request in candidates if not request.exact]
    likely = heapq.nsmallest(MOST_TRIED, shared, key=lambda request: abs(request.computed - context / max(count, 1)))
    choices = [_choose_with(request, candidates, context, count) for request in likely]
    choices = choices or [_choose_nearest(candidates, context, count)]
    return min(choices, key=lambda chosen: abs(_missing(chosen, context)))


def _missing(chosen: Sequence[_Running], context: float) -> float:
    """Return the tokens that the contexts of ``chosen`` are short of ``context``; below 0 if they have more."""
    return context - sum(request.computed for request in chosen)


def _choose_with(request: _Running, candidates: Sequence[_Running], context: float, count: int) -> list[_Running]:
    """Return ``count`` candidates, a given one among them, whose contexts add up to about ``context``."""
    other_candidates = [candidate for candidate in candidates if candidate is not request]
    return [request, *_choose_nearest(other_candidates, context - request.computed, count - 1)]


def _choose_nearest(candidates: Sequence[_Running], context: float, count: int) -> list[_Running]:
    """Return ``count`` requests whose contexts add up to about ``context`` tokens; all if there are fewer.

    ``candidates`` must be sorted by context. The choice is greedy, and exact for the last two.
    """
    chosen, remaining = list[_Running](), list(candidates)
    while len(chosen) < count and remaining:
        to_choose = count - len(chosen)
        if to_choose == 2 and len(remaining) > 1:
            return chosen + _choose_pair(remaining, context)
        target = context / to_choose
        at = bisect_left(remaining, target, key=lambda request: request.computed)
        around = range(max(at - 1, 0), min(at + 1, len(remaining)))
        best = remaining.pop(min(around, key=lambda place: abs(remaining[place].computed - target)))
        chosen.append(best)
        context -= best.computed
    return chosen


def _choose_pair(ordered: Sequence[_Running], context: float) -> list[_Running]:
    """Return the two requests whose contexts have the sum nearest to ``context``.

    ``ordered`` are at least two requests, sorted by context.
    """
    low, high = 0, len(ordered) - 1
    best, distance = (low, high), float("inf")
    while low < high:
        error = ordered[low].computed + ordered[high].computed - context
        if abs(error) < distance:
            best, distance = (low, high), abs(error)
        if error < 0:
            low += 1
        else:
            high -= 1
    return [ordered[place] for place in best]


def simulate(requests: Sequence[Request], scheduler: Scheduler, most: float = math.inf) -> Floats:
    """Simulate a first-come-first-served scheduler with chunked prefill until all ``requests`` have ended.

    ``requests`` must be in order of arrival, which is an iteration's number. Returns the number of requests, tokens and
    context tokens of each iteration, of shape (iterations, 3); at most ``most`` iterations. Iterations in which no
    request is there have no row.
    """
    rows = list[tuple[int, int, int]]()
    ends = list[tuple[int, int]]()  # the last iteration of each request that decodes, and its context then
    decoding = context = at = now = 0
    partial: tuple[Request, int] | None = None
    while (at < len(requests) or decoding or partial) and len(rows) < most:
        if not decoding and partial is None:
            now = max(now, requests[at].arrival)
        remaining_tokens = max(scheduler.tokens - decoding, 0)
        context += decoding
        prefilling = [partial] if partial else []
        room = scheduler.requests - decoding - len(prefilling)
        prompt_tokens = sum(request.prompt - computed for request, computed in prefilling)
        while at < len(requests) and room > 0 and prompt_tokens < remaining_tokens and requests[at].arrival <= now:
            prefilling.append((requests[at], 0))
            prompt_tokens += requests[at].prompt
            at, room = at + 1, room - 1
        tokens, partial = decoding, None
        scheduled_here = decoding + len(prefilling)
        for request, computed in prefilling:
            part = int(min(request.prompt - computed, remaining_tokens))
            remaining_tokens, tokens = remaining_tokens - part, tokens + part
            if computed + part < request.prompt:
                partial = (request, computed + part)
            else:
                heapq.heappush(ends, (now + request.output - 1, request.prompt + request.output - 1))
                decoding, context = decoding + 1, context + request.prompt
        rows.append((scheduled_here, tokens, context + (partial[1] if partial else 0)))
        while ends and ends[0][0] <= now:
            context -= heapq.heappop(ends)[1]
            decoding -= 1
        now += 1
    return np.array(rows, dtype=np.float64).reshape(len(rows), 3)
