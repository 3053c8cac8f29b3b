"""What limited each step, compared with the others, and what costs the run most."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from patcher.messages.text import Text
from patcher.timeline.model import (
    BALANCE,
    FREE_SYNC,
    NO_TAIL,
    NOT_KNOWN,
    SEVERAL,
    TYPICAL,
    Cause,
    RunCause,
    TrainingStep,
)
from patcher.timeline.path import PathPiece
from patcher.timeline.shares import seconds

NEIGHBOURS = 40
"""Steps before and behind a step that it is compared with: answers become longer while a model learns."""

FEWEST = 2
"""Steps to compare with, below which nothing can stand out."""

SPREADS = 4
"""How many times the usual spread something lies above the typical step where it stands out."""

SHARE = 0.05
"""Of the typical step, which what stands out takes more at least."""

LEAST = 0.15
"""Of an excess, by which a step has to be longer than the typical one: polling, for example, hides a part of it."""

MOSTLY = 0.5
"""Of an excess, which one rank or replica has to account for where it is named."""

SINGLE = 0.3
"""Of what a step takes longer than the typical one, which its cause has to account for."""

LARGEST = 3
"""Causes that are said of a run."""


NOTHING: Mapping[str, Any] = {}


class What(NamedTuple):
    """What is compared between steps: who did what in which phase, whichever of them it was."""

    role: str
    kind: str
    what: str
    phase: str


@dataclass(frozen=True)
class Spent:
    """What the critical path of a step was spent on, in microseconds.

    ``late`` says for each rank (by the place of its process) by how much it came after the others, ``by_process`` how
    much of the path was whose. ``replica_late`` is by how much the last replica was done after the others.
    ``sync`` says how long each part of the weight sync took in each process.
    ``unsafe`` are the roles of which a process has stopped to record before the end of the step, with what to say.
    """

    total: int
    us: Mapping[What, int]
    late: Mapping[What, Mapping[int, int]]
    by_process: Mapping[What, Mapping[int | None, int]]
    replica_late: tuple[int | None, int] = (None, 0)
    sync: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    unsafe: Mapping[str, str] = field(default_factory=dict)


def spent(
    path: Iterable[PathPiece],
    replica_late: tuple[int | None, int] = (None, 0),
    sync: Mapping[str, Mapping[int, int]] = NOTHING,
    unsafe: Mapping[str, str] = NOTHING,
) -> Spent:
    """Return the sums of a path, with what else is known of its step."""
    us = defaultdict[What, int](int)
    late = defaultdict[What, defaultdict[int, int]](lambda: defaultdict(int))
    by_process = defaultdict[What, defaultdict[int | None, int]](lambda: defaultdict(int))
    for piece in path:
        key = What(piece.role, piece.kind, piece.what, piece.phase)
        us[key] += piece.end - piece.start
        by_process[key][piece.process] += piece.end - piece.start
        if piece.process is not None and piece.late:
            late[key][piece.process] += piece.late
    return Spent(sum(us.values()), us, late, by_process, replica_late, sync, unsafe)


@dataclass(frozen=True)
class StepVerdict:
    """What limited a step, with the words of ``TrainingStep``."""

    verdict: str
    why: str
    limited_by: Cause | None
    mostly: Cause | None


class Who(NamedTuple):
    """Replica and rank of a process, None where it has none or nobody knows."""

    replica: int | None
    rank: int | None


NOBODY = Who(None, None)


def verdicts(steps: Sequence[Spent], who: Sequence[Who]) -> list[StepVerdict]:
    """Return the verdict on each step; the first one, which has its warm-up, is no measure for the others."""
    return [_verdict(step, _others(steps, at), who) for at, step in enumerate(steps)]


def _others(steps: Sequence[Spent], at: int) -> list[Spent]:
    first = max(at - NEIGHBOURS, 0)
    near = list(enumerate(steps[first : at + NEIGHBOURS + 1], first))
    others = [neighbour for place, neighbour in near if place not in (0, at)]
    return others if len(others) >= FEWEST else [neighbour for place, neighbour in near if place != at]


def _verdict(step: Spent, others: Sequence[Spent], who: Sequence[Who]) -> StepVerdict:
    most = max(step.us, key=lambda key: step.us[key], default=None)
    mostly = _cause(step, most, others, who) if most else None
    if len(others) < FEWEST:
        return StepVerdict(TYPICAL, Text("there are too few steps to compare it with"), None, mostly)
    typical = statistics.median(other.total for other in others)
    standing = [(excess, key) for key in step.us if (excess := _stands_out(step, key, others, typical)) > 0]
    if not standing:
        return StepVerdict(TYPICAL, Text("nothing stands out over the other steps"), None, mostly)
    excess, key = max(standing)
    longer = step.total - typical
    if excess < SINGLE * longer:
        own, more = seconds(excess), seconds(longer)
        several = Text(
            "no single cause: {what} accounts for {seconds:.2f} s of {excess:.2f} s more", key.what, own, more
        )
        return StepVerdict(SEVERAL, several, None, mostly)
    if longer < LEAST * excess:
        return StepVerdict(TYPICAL, Text("it took no longer than the other steps"), None, mostly)
    if key.role == "unrecorded":
        return StepVerdict(
            NOT_KNOWN, Text("{what} took longer, and what did it left no record", key.what), None, mostly
        )
    if key.role in step.unsafe:
        return StepVerdict(NOT_KNOWN, step.unsafe[key.role], None, mostly)
    hidden = Text(
        "the step is {seconds:.2f} s longer: the rest would have passed anyway, with polling for example",
        seconds(longer),
    )
    return StepVerdict("limited", hidden if longer < MOSTLY * excess else "", _cause(step, key, others, who), mostly)


def _usual(key: What, others: Sequence[Spent]) -> tuple[float, float]:
    """Return the median of what the other steps spent on it, and the spread of that, as a standard deviation."""
    values = [other.us.get(key, 0) for other in others]
    middle = statistics.median(values)
    return middle, 1.4826 * statistics.median(abs(value - middle) for value in values)


def _stands_out(step: Spent, key: What, others: Sequence[Spent], typical: float) -> float:
    """Return by how much it lies above the typical step; 0 where that is nothing out of the ordinary."""
    middle, spread = _usual(key, others)
    excess = step.us[key] - middle
    return excess if excess > max(SPREADS * spread, SHARE * typical) else 0


def _cause(step: Spent, key: What, others: Sequence[Spent], who: Sequence[Who]) -> Cause:
    middle, _ = _usual(key, others) if others else (0.0, 0.0)
    excess = max(step.us[key] - middle, 0)
    replica, rank = _named(step, key, excess, others, who)
    return Cause(key.role, replica, rank, key.what, key.phase, seconds(step.us[key]), seconds(excess), key.kind)


def _named(step: Spent, key: What, excess: float, others: Sequence[Spent], who: Sequence[Who]) -> Who:
    """Return the rank or replica that has most of an excess; nobody where several share it, or it cannot be known.

    Who always comes last does not count: by how much more than usual is compared.
    """
    shares = step.by_process[key]
    top = max(shares, key=lambda process: shares[process])
    if key.kind == "sync":
        return _longest(step.sync.get(key.what, {}), excess, who)
    if key.role == "trainer":
        return Who(None, _rank(step, key, excess, others, who))
    if key.role in ("engine", "server") and top is not None:
        return Who(_replica(step, who[top].replica, excess, others, who), None)
    return NOBODY


def _rank(step: Spent, key: What, excess: float, others: Sequence[Spent], who: Sequence[Who]) -> int | None:
    late = step.late.get(key, {})
    last = max(late, key=lambda process: late[process], default=None)
    if last is not None and excess:
        usual = _median(other.late.get(key, {}).get(last, 0) for other in others)
        if late[last] - usual >= MOSTLY * excess:
            return who[last].rank
    trainers = [process for process in who if process.rank is not None and process.replica is None]
    processes = {process for process in step.by_process[key] if process is not None}
    return trainers[0].rank if len(trainers) == 1 and processes else None


def _replica(
    step: Spent, replica: int | None, excess: float, others: Sequence[Spent], who: Sequence[Who]
) -> int | None:
    if len({process.replica for process in who if process.replica is not None}) == 1:
        return replica
    last, late = step.replica_late
    usual = _median(other.replica_late[1] if other.replica_late[0] == replica else 0 for other in others)
    return replica if replica == last and excess and late - usual >= MOSTLY * excess else None


def _median(values: Iterable[float]) -> float:
    numbers = [*values]
    return statistics.median(numbers) if numbers else 0.0


def _longest(lengths: Mapping[int, int], excess: float, who: Sequence[Who]) -> Who:
    """Return who took so much longer than all others that it makes most of the excess."""
    ordered = sorted(lengths, key=lambda process: lengths[process])
    if len(ordered) < 2 or not excess or lengths[ordered[-1]] - lengths[ordered[-2]] < MOSTLY * excess:
        return NOBODY
    return who[ordered[-1]]


# ---------------------------------------------------------------- the run


ADVICE = {
    "poll": Text("poll more often: shorten the interval of the replay buffer (poll_interval), or let it be notified"),
    "tail": Text("cut or refill the tail: partial rollouts, more prompts than needed, a lower limit of tokens"),
    "sync": Text("look at its parts; send larger buckets, or overlap it with the end of the update"),
    "gap": Text("profile the driver here (py-spy dump --pid): it computes between its phases"),
    "reward": Text("compute rewards while the rollout goes on, in workers of their own"),
    "driver": Text("profile the driver in this phase (py-spy record --pid)"),
    "queue": Text("check whether the worker was still busy with an earlier call"),
    "trainer": Text("record the micro-batch that the proposed window names"),
    "rank": Text("look at this rank's host and data: sequence lengths (balance_batch), clocks, other processes"),
    "engine": Text("record the decode steps that the proposed window names"),
    "replica": Text("look at this replica's host and at how requests are spread over the replicas"),
}
"""What to do next, by what costs time."""


def run_causes(steps: Sequence[TrainingStep], paths: Sequence[Spent]) -> tuple[RunCause, ...]:
    """What costs the run most over all steps but the first: what stood out, and what could be saved in every step.

    ``paths`` are what those of the steps were spent on: where a run is long, the steps have them in larger pieces.
    """
    counted = list(steps[1:] or steps)
    whole = sum(step.seconds for step in counted)
    causes = [*_lasting(counted, paths[1:] or paths), *_outstanding(counted)]
    rows = [
        RunCause(title, round(total, 6), round(total / whole, 4), tuple(numbers), ADVICE[advice], cause)
        for title, total, numbers, advice, cause in causes
        if whole and total > 0.01 * whole
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds)[:LARGEST])


_Row = tuple[str, float, list[int], str, "Cause | None"]


def _outstanding(steps: Iterable[TrainingStep]) -> list[_Row]:
    """Excesses of the same cause together."""
    grouped = defaultdict[tuple[object, ...], list[tuple[int, Cause]]](list)
    for step in steps:
        limit = step.limited_by
        if limit is not None:
            grouped[limit.role, limit.replica, limit.rank, limit.kind, limit.what, limit.phase].append(
                (step.step, limit)
            )
    rows: list[_Row] = []
    for group in grouped.values():
        largest = max((limit for _, limit in group), key=lambda member: member.excess_seconds)
        total = sum(limit.excess_seconds for _, limit in group)
        rows.append(
            (
                Text("{label}, over the typical step", largest.label),
                total,
                [at for at, _ in group],
                advice(largest),
                largest,
            )
        )
    return rows


def advice(cause: Cause) -> str:
    """Return the key of ``ADVICE`` for a cause."""
    if cause.kind in ("poll", "sync", "gap", "reward") and cause.role != "engine":
        return cause.kind
    if cause.what.startswith("start of "):
        return "queue"
    if cause.role in ("engine", "server"):
        return "replica" if cause.replica is not None else "engine"
    if cause.role == "trainer":
        return "rank" if cause.rank is not None else "trainer"
    return "reward" if cause.role == "reward" else "driver"


def _lasting(steps: Sequence[TrainingStep], paths: Sequence[Spent]) -> list[_Row]:
    """Return what every step could do without, beside what made it stand out."""

    def over(name: str, title: str, key: str, values: Sequence[float]) -> _Row:
        values = [max(value - _counted(step, key), 0) for step, value in zip(steps, values, strict=True)]
        numbers = [step.step for step, value in zip(steps, values, strict=True) if value > 0.01 * step.seconds]
        cause = next((_path_cause(step, name) for step in steps if step.step in numbers), None)
        return title, sum(values), numbers, key, cause

    def saved(name: str) -> list[float]:
        return [sum(bound.saves_seconds for bound in step.what_if if bound.name == name) for step in steps]

    rows = [
        over("poll", _poll_title(paths), "poll", [step.poll_seconds for step in steps]),
        over("", Text("the tail of the rollout, with fewer than a tenth of its requests"), "tail", saved(NO_TAIL)),
        over("sync", Text("weight sync"), "sync", saved(FREE_SYNC)),
        over("gap", Text("the driver between its phases"), "gap", list(map(_gaps, paths))),
        over("", Text("waiting for the last replica and the last rank"), "replica", saved(BALANCE)),
    ]
    return [row for row in rows if row[1] > 0]


def _counted(step: TrainingStep, key: str) -> float:
    """Return what of it the cause of the step is already."""
    cause = step.limited_by
    if cause is None:
        return 0.0
    alike = cause.kind == key or (key == "replica" and (cause.rank, cause.replica) != (None, None))
    return cause.excess_seconds if alike else 0.0


def _poll_title(paths: Iterable[Spent]) -> str:
    names = {key.what for path in paths for key in path.us if key.kind == "poll"}
    return Text("polling ({names}) after the last trajectory had ended", ", ".join(sorted(names)[:2]))


def _gaps(path: Spent) -> float:
    return seconds(sum(us for key, us in path.us.items() if key.kind == "gap" and key.role == "driver"))


def _path_cause(step: TrainingStep, kind: str) -> Cause | None:
    """Return the longest piece of this kind on a path, as a cause without an excess."""
    segments = [segment for segment in step.critical_path if kind and segment.kind == kind]
    if not segments:
        return None
    longest = max(segments, key=lambda piece: piece.seconds)
    return Cause(
        longest.role, longest.replica, longest.rank, longest.what, longest.phase, longest.seconds, 0.0, longest.kind
    )


def path_seconds(paths: Sequence[Spent]) -> tuple[Cause, ...]:
    """Return the critical paths of all steps but the first, summed by what was done; the most first."""
    sums = Counter[What]()
    for path in paths[1:] or paths:
        sums.update(path.us)
    return tuple(
        Cause(key.role, None, None, key.what, key.phase, seconds(us), 0.0, key.kind) for key, us in sums.most_common()
    )
