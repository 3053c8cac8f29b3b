"""Measurements of a step beside its critical path: busy time, the rollout's tail, imbalance, and weight sync."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import NamedTuple, TypeVar

from patcher.messages import Text
from patcher.timeline.files import IterationColumns, KeptSpan
from patcher.timeline.intervals import TimeRange, by_start, covered, end_of, length, overlap_counts, overlaps, uncovered
from patcher.timeline.model import (
    BALANCE,
    FREE_REWARDS,
    FREE_SYNC,
    NO_TAIL,
    OVERLAP,
    Bound,
    IdleReason,
    Imbalance,
    Part,
    RoleUse,
    Tail,
)
from patcher.timeline.path import PathPiece, largest_joined_gap, work_without_waits
from patcher.timeline.step_records import StepRecords

T = TypeVar("T")

TAIL = 10
"""A tail has fewer requests than the maximum divided by this."""

ROLLOUT = ("engine", "server", "agent", "balancer", "reward")
"""The roles that make a rollout."""

SYNC = ("update_weights", "sync_rollout_weights", "weight_sync", "sync_weights")
"""Names in frameworks of the phase in which weights go from the trainer to the engines."""

BESIDE = 0.02
"""Share of the time of trainers' units in which engines iterate: less may be an error of the clocks."""

VALIDATING = ("testing", "validate", "validation", "evaluate", "eval", "prediction_step")
"""Names in frameworks of the phase that validates: it takes time in some steps, and is no fault of a step."""

REASONS = 3
"""Most reasons for idling that are reported for a role."""


def seconds(us: float) -> float:
    """Convert microseconds to seconds, rounded to a microsecond."""
    return round(us / 1e6, 6)


# ---------------------------------------------------------------- busy and idle


def role_uses(
    records: StepRecords, path: Sequence[PathPiece], processes: Mapping[str, Sequence[int]]
) -> tuple[RoleUse, ...]:
    """Return how busy each role was in a step, and what it waited for: driver, trainers, engines and reward workers.

    Roles without processes are left out, and so are those that were never busy, except the driver.
    """
    by_process = defaultdict[int, list[KeptSpan]](list)
    for span in records.spans:
        by_process[span.process].append(span)
    uses = []
    for role in ("driver", "trainer", "engine", "reward"):
        lanes = processes.get(role, ())
        busy = [_busy_ranges(role, records, path, at, by_process[at]) for at in lanes]
        if lanes and (any(busy) or role == "driver"):
            uses.append(_mean_use(role, busy, path, records))
    return tuple(uses)


def _busy_ranges(
    role: str, records: StepRecords, path: Sequence[PathPiece], process: int, spans: Sequence[KeptSpan]
) -> list[TimeRange]:
    """Return the ranges in which ``process`` (an index) was busy in ``role`` during the step, in microseconds.

    The driver is busy in its own pieces of ``path``, an engine in iterations and small gaps between them, a trainer in
    executed methods except waits, and a reward worker in rewards.
    """
    low, high = records.start, records.end

    def of_kind(kind: str) -> list[TimeRange]:
        """Return the ranges in which a span of ``kind`` runs."""
        return covered((span for span in spans if span.kind == kind), low, high)

    if role == "driver":
        # What it does of its own, rather than wait for what it called or polls for.
        computes = (piece for piece in path if piece.role != "trainer" and piece.kind not in ("poll", "call"))
        return covered((piece for piece in computes if piece.process == process), low, high)
    if role == "engine":
        columns = records.iterations.get(process, IterationColumns())
        room = largest_joined_gap(columns, 0, len(columns))
        return covered(covered(map(TimeRange, columns.start, columns.end), gap=room), low, high)
    if role == "reward":
        return of_kind("reward")
    waits = of_kind("wait")
    return [busy for work in of_kind("work") for busy in uncovered(covered(waits, *work), *work)]


def _mean_use(
    role: str, busy: Sequence[Sequence[TimeRange]], path: Sequence[PathPiece], records: StepRecords
) -> RoleUse:
    """Return busy and idle time of a role as means over its processes, and up to three reasons for idling.

    Reasons are the activities on the critical path during idle time, if they take over 1 % of the step.
    """
    whole, lanes = records.end - records.start, len(busy)
    mean = sum(map(length, busy)) / lanes
    waited = {(piece.role, piece.what, piece.phase): 0 for piece in path}
    for lane in busy:
        for piece, us in overlaps(path, uncovered(lane, records.start, records.end)):
            waited[piece.role, piece.what, piece.phase] += us
    longest = sorted(waited.items(), key=lambda pair: -pair[1])[:REASONS]
    reasons = tuple(IdleReason(*reason, seconds(us / lanes)) for reason, us in longest if us * 100 > whole * lanes)
    return RoleUse(role, lanes, seconds(mean), seconds(whole - mean), round(mean / max(whole, 1), 4), reasons)


# ---------------------------------------------------------------- the rollout


class Amounts(NamedTuple):
    """Work of a rollout: decode steps of the replica with most of them, and generated tokens of all replicas."""

    decode_steps: int
    tokens: int


NOTHING = Amounts(0, 0)


def amounts(records: StepRecords, engines: Iterable[int]) -> Amounts:
    """Return the decode steps and generated tokens of a step, from the iterations that begin in it.

    ``engines`` are process indices, one rank of each replica. Decode steps are those of the engine that has most,
    tokens are those of all ``engines`` together. Iterations during validation do not count. Each request of an
    iteration counts one token, although speculative decoding may give it several.
    """
    steps, tokens = [0], 0
    training = uncovered(validations(records), records.start, records.end)
    for columns in (records.iterations.get(engine, IterationColumns()) for engine in engines):
        decodes = 0
        for start, end in training:
            these = slice(bisect_left(columns.start, start), bisect_left(columns.start, end))
            requests = columns.requests[these]
            decodes += sum(done <= count for count, done in zip(requests, columns.tokens[these], strict=True))
            tokens += sum(requests)
        steps.append(decodes)
    return Amounts(max(steps), tokens)


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


def validations(records: StepRecords) -> list[TimeRange]:
    """Return the ranges of a step in which the driver validates."""
    phases = (phase for phase in records.by_kind["phase"] if phase.process == records.driver)
    return covered((phase for phase in phases if phase.name in VALIDATING), records.start, records.end)


def _ended_outside_validation(records: StepRecords, spans: Iterable[KeptSpan]) -> list[KeptSpan]:
    """Return the ``spans`` that end in the step while the driver does not validate."""
    ranges = validations(records)
    return [
        span for span in spans
        if records.start < end_of(span) <= records.end
        and not any(start < end_of(span) <= end for start, end in ranges)
    ]  # fmt: skip


def alive_requests(records: StepRecords) -> list[tuple[int, int]]:
    """Return a step curve of the requests alive in a step: pairs (time in microseconds, number from then on), in order.

    Requests that servers handle are counted, else those that agent loops sent, else trajectories; [] without any. Those
    from before the step count from its start; those that outlive it have no end in the curve.
    """
    spans = records.by_kind["serve"] or records.by_kind["request"] or records.by_kind["trajectory"]
    alive = ((max(span.start, records.start), end_of(span)) for span in spans)
    return [(time, count) for time, count in overlap_counts(alive) if time <= records.end]


def tail(curve: Sequence[tuple[int, int]], path: Iterable[PathPiece]) -> Tail | None:
    """Return the tail of a step's rollout: its end, with fewer than a tenth as many requests alive as at the peak.

    ``curve`` has pairs (time in microseconds, number of requests alive from then on). ``path`` is the critical path:
    the tail's part of it that waits for the rollout can be saved. None without a tail, or if requests are still alive
    at the end of the step.
    """
    peak = max((count for _, count in curve), default=0)
    if not curve or curve[-1][1]:  # the rollout goes on over the end of the step
        return None
    end, begin = curve[-1][0], None
    for time, count in reversed(curve[:-1]):
        if count * TAIL >= peak:
            break
        begin = time
    if begin is None:
        return None
    saves = length(covered((piece for piece in path if piece.role in ROLLOUT), begin, end))
    return Tail(seconds(begin), seconds(end), seconds(end - begin), peak, seconds(saves))


def thinned(curve: Sequence[tuple[T, int]], point_count: int) -> list[tuple[T, int]]:
    """Return a curve of (time, count) with at most about ``point_count`` points: highest and last of each stretch."""
    if len(curve) <= point_count:
        return list(curve)
    size = -(-len(curve) // (point_count // 2))
    parts = (curve[at : at + size] for at in range(0, len(curve), size))
    return [point for part in parts for point in highest_and_last(part)]


def highest_and_last(part: Sequence[tuple[T, int]]) -> list[tuple[T, int]]:
    """Return the highest and the last point of a part of a curve; one point if both are the same."""
    highest = max(part, key=lambda point: point[1])
    return [highest] if highest is part[-1] else [highest, part[-1]]


def coarser(curve: Iterable[tuple[float, int]], shortest: float) -> Iterator[tuple[float, int]]:
    """Yield the points of a curve (time, number), of each stretch of ``shortest`` only the highest and the last."""
    for _, part in groupby(curve, key=lambda point: int(point[0] / shortest)):
        yield from highest_and_last(list(part))


def imbalances(
    records: StepRecords, path: Iterable[PathPiece], ranks: Mapping[int, int | None]
) -> tuple[Imbalance, ...]:
    """Return the imbalance between replicas, by their last answers, and that between trainer ranks, by their work.

    Answers during validation do not count. ``ranks`` has the ranks of trainers, by the process's index. Ranks that wait
    for each other take equally long, so a rank's work is estimated from its delays on the critical ``path``.
    """
    ends = defaultdict[int, int](int)
    for serve in _ended_outside_validation(records, records.by_kind["serve"]):
        replica = records.replica_of[serve.process]
        if replica is not None:
            ends[replica] = max(ends[replica], end_of(serve) - records.start)
    works = defaultdict[int, list[KeptSpan]](list)
    for work in records.by_kind["work"]:
        rank = ranks.get(work.process)
        if rank is not None:
            works[rank].append(work)
    late = dict.fromkeys(works, 0)
    for piece in path:
        rank = ranks.get(piece.process) if piece.process is not None else None
        if rank in late:
            late[rank] += piece.late
    longest = max((length(covered(spans, records.start, records.end)) for spans in works.values()), default=0)
    done = {rank: longest - sum(late.values()) + us for rank, us in late.items()}
    return tuple(_imbalance_between(of, times) for of, times in (("replicas", ends), ("ranks", done)) if len(times) > 1)


def _imbalance_between(of: str, times: Mapping[int, int]) -> Imbalance:
    """Return by how much the last of the replicas or ranks (``of``) finished after their mean, from times in µs."""
    us = max(times.values()) - sum(times.values()) / len(times)
    return Imbalance(of, tuple((number, seconds(time)) for number, time in sorted(times.items())), seconds(us))


# ---------------------------------------------------------------- weight sync, and what if


def sync_intervals(records: StepRecords) -> list[TimeRange]:
    """Return the ranges of the weight sync within the step, in microseconds; [] if no process recorded any.

    The driver's syncs and its phases of weight sync count; without any, the syncs of all processes.
    """
    syncs = records.by_kind["sync"]
    phases = (phase for phase in records.by_kind["phase"] if phase.name in SYNC)
    of_driver = [span for span in (*syncs, *phases) if span.process == records.driver]
    return covered(of_driver or syncs, records.start, records.end)


def sync_by_process(records: StepRecords) -> dict[str, dict[int, int]]:
    """Return name of a part of the weight sync → process index → microseconds that it takes in the step.

    The parts are the names of the sync spans.
    """
    by_name = defaultdict[str, defaultdict[int, list[KeptSpan]]](lambda: defaultdict(list))
    for sync in records.by_kind["sync"]:
        by_name[sync.name][sync.process].append(sync)
    return {
        name: {at: length(covered(syncs, records.start, records.end)) for at, syncs in by_process.items()}
        for name, by_process in by_name.items()
    }


def sync_work(records: StepRecords) -> dict[str, dict[int, int]]:
    """Return name of a part of the weight sync → process index → microseconds, without waits in collectives.

    Waits for other ranks are subtracted only for trainers, and only in parts for which they are known of all trainers.
    """
    lengths = sync_by_process(records)
    for name, by_process in lengths.items():
        syncs = [
            sync for sync in records.by_kind["sync"] if sync.name == name and records.roles[sync.process] == "trainer"
        ]
        if work_without_waits(syncs):
            for sync in syncs:
                by_process[sync.process] = max(by_process[sync.process] - (sync.waited or 0), 0)
    return lengths


def sync_parts(by_process: Mapping[str, Mapping[int, int]]) -> tuple[Part, ...]:
    """Return the parts of the weight sync in seconds, the longest first; each as long as in its slowest process.

    Parts of length 0 are left out.
    """
    parts = [Part(name, seconds(max(lengths.values()))) for name, lengths in by_process.items()]
    return tuple(sorted((part for part in parts if part.seconds), key=lambda part: -part.seconds))


def trains_during_rollout(records: StepRecords) -> bool:
    """Tell whether engines iterate for over 2 % of the time in which trainers train, as in asynchronous training."""
    units = (span for span in records.by_kind["unit"] if records.start <= span.start and end_of(span) <= records.end)
    union = covered(units)
    overlapping = sum(
        us
        for columns in records.iterations.values()
        for _, us in overlaps(map(TimeRange, columns.start, columns.end), union)
    )
    return overlapping > BESIDE * length(union)


def rewards_delay(records: StepRecords) -> int:
    """Return by how many microseconds the rollout would end earlier without rewards; 0 without trajectories.

    Each would end earlier by the time of its own rewards, so another one may then be the last.
    """
    rewards = defaultdict[tuple[int, int], int](int)
    for reward in records.by_kind["reward"]:
        rewards[reward.process, reward.parent] += min(end_of(reward), records.end) - reward.start
    trajectories = _ended_outside_validation(records, records.by_kind["trajectory"])
    end = max(map(end_of, trajectories), default=0)
    return end - max((end_of(span) - rewards[span.process, span.id] for span in trajectories), default=0)


def what_if(
    step_us: int,
    path: Sequence[PathPiece],
    tail: Tail | None,
    step_imbalances: Sequence[Imbalance],
    sync: Sequence[TimeRange],
    rewards_us: int = 0,
) -> tuple[Bound, ...]:
    """Return a lower bound of a step's duration for each possible improvement; omit savings of at most 0.1 %.

    ``step_us`` is the duration in microseconds, ``path`` the critical path, ``sync`` the ranges of the weight sync, and
    ``rewards_us`` by how many microseconds the rollout would end earlier without rewards.
    """
    of_rollout = length(piece for piece in path if piece.role in ROLLOUT or piece.kind == "poll")
    of_trainer = length(piece for piece in path if piece.role == "trainer")
    balance = sum(
        min(round(imbalance.seconds * 1e6), of_rollout if imbalance.of == "replicas" else of_trainer)
        for imbalance in step_imbalances
    )
    saved = (
        (
            NO_TAIL, round(tail.saves_seconds * 1e6) if tail else 0,
            Text("this bound assumes that the step does not wait for the last requests: their remaining work is done"
                " later, or not at all"),
        ),
        (
            BALANCE, balance,
            Text(
                "this bound assumes that the total work stays as it is, and is spread so that all replicas and ranks"
                " finish together"
            ),
        ),
        (
            FREE_SYNC, sum(us for piece, us in overlaps(path, sync) if piece.kind != "iteration"),
            Text(
                "this bound assumes that nothing waits for the weights; sync time that overlaps with work does not"
                " count"
            ),
        ),
        (
            FREE_REWARDS, min(rewards_us, length(piece for piece in path if piece.role == "reward")),
            Text("this bound assumes that the rollout ends with its last answer, without waiting for the last reward"),
        ),
        (
            OVERLAP, min(of_rollout, of_trainer),
            Text(
                "this bound assumes that rollout and training run at the same time, as in an asynchronous trainer;"
                " the bound includes only the longer of the two"
            ),
        ),
    )  # fmt: skip
    return tuple(Bound(name, seconds(step_us - us), seconds(us), why) for name, us, why in saved if us * 1000 > step_us)


def phase_parts(records: StepRecords) -> tuple[Part, ...]:
    """Return the seconds of each phase of the driver in a step, by name, in the order of their first starts.

    Phases may lie within each other, so they need not sum to the step.
    """
    by_name = defaultdict[str, list[KeptSpan]](list)
    for phase in sorted(records.by_kind["phase"], key=by_start):
        if phase.process == records.driver:
            by_name[phase.name].append(phase)
    unions = {name: covered(phases, records.start, records.end) for name, phases in by_name.items()}
    return tuple(Part(name, seconds(length(union))) for name, union in unions.items() if union)
