"""The causes that limited each step, compared with the others, and those that cost the run most."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from patcher.messages import Text
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
"""Multiple of the usual spread by which an activity must exceed the typical step to stand out."""

SHARE = 0.05
"""Share of the typical step that an excess must have to stand out."""

LEAST = 0.15
"""Share of an excess by which the step itself must be longer than the typical one: polling may hide a part of it."""

MOSTLY = 0.5
"""Share of an excess that one rank or replica must account for to be named."""

SINGLE = 0.3
"""Share of a step's extra time that a single cause must account for."""

LARGEST = 3
"""Causes that are said of a run."""


class What(NamedTuple):
    """Key of a comparison between steps: role, activity and phase, without the individual rank or replica."""

    role: str
    kind: str
    what: str
    phase: str


@dataclass(frozen=True)
class Spent:
    """Times of one step's critical path by activity, in microseconds.

    ``late`` is the delay of each rank after the others and ``by_process`` the time on the path, by the process's index.
    ``replica_late`` is the last replica and its delay. ``sync`` is the time of each part of the weight sync in each
    process. ``unsafe`` says that a trainer stopped recording before the end of the step, "" if none did.
    """

    total: int
    us: Mapping[What, int]
    late: Mapping[What, Mapping[int, int]]
    by_process: Mapping[What, Mapping[int | None, int]]
    replica_late: tuple[int | None, int] = (None, 0)
    sync: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    unsafe: str = ""


def spent(
    path: Iterable[PathPiece],
    replica_late: tuple[int | None, int],
    sync: Mapping[str, Mapping[int, int]],
    unsafe: str,
) -> Spent:
    """Sum a critical path by activity; the other arguments are stored unchanged."""
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
    """Verdict on a step, with the fields of ``TrainingStep``."""

    verdict: str
    why: str
    limited_by: Cause | None
    mostly: Cause | None


class Who(NamedTuple):
    """Replica and rank of a process; None if it has none or the number is unknown."""

    replica: int | None
    rank: int | None


NOBODY = Who(None, None)


def verdicts(steps: Sequence[Spent], who: Sequence[Who]) -> list[StepVerdict]:
    """Return the verdict on each step, compared with up to 40 steps on either side, if possible without the first."""
    return [_Comparison(step, _neighbours(steps, at), who).verdict() for at, step in enumerate(steps)]


def _neighbours(steps: Sequence[Spent], at: int) -> list[Spent]:
    first = max(at - NEIGHBOURS, 0)
    near = [(place, step) for place, step in enumerate(steps[first : at + NEIGHBOURS + 1], first) if place != at]
    behind_first = [step for place, step in near if place]
    return behind_first if len(behind_first) >= FEWEST else [step for _, step in near]


@dataclass(frozen=True)
class _Comparison:
    """A step and the steps to compare it with; ``who`` has replica and rank by the process's index."""

    step: Spent
    others: Sequence[Spent]
    who: Sequence[Who]

    def verdict(self) -> StepVerdict:
        """Return the verdict, the cause that limited the step if any, and the largest activity."""
        us = self.step.us
        verdict, why, limit = self._judge()
        mostly = max(us, key=us.__getitem__) if us else None
        return StepVerdict(verdict, why, self._cause(limit) if limit else None, self._cause(mostly) if mostly else None)

    def _judge(self) -> tuple[str, str, What | None]:
        """Return the verdict, the reason for it, and the activity that limited the step (None: no single one)."""
        if len(self.others) < FEWEST:
            return TYPICAL, Text("there are too few steps to compare it with"), None
        typical = statistics.median(other.total for other in self.others)
        excesses = ((self._stands_out(key, typical), key) for key in self.step.us)
        standing = [(excess, key) for excess, key in excesses if excess > 0]
        if not standing:
            return TYPICAL, Text("nothing stands out over the other steps"), None
        excess, key = max(standing)
        longer = self.step.total - typical
        if excess < SINGLE * longer:
            why = Text(
                "no single cause: {what} accounts for {seconds:.2f} s of {excess:.2f} s more",
                key.what,
                seconds(excess),
                seconds(longer),
            )
            return SEVERAL, why, None
        if longer < LEAST * excess:
            return TYPICAL, Text("it took no longer than the other steps"), None
        if key.role == "unrecorded":
            return NOT_KNOWN, Text("{what} took longer, and what did it left no record", key.what), None
        if key.role == "trainer" and self.step.unsafe:
            return NOT_KNOWN, self.step.unsafe, None
        hidden = Text(
            "the step is {seconds:.2f} s longer: the rest would have passed anyway, with polling for example",
            seconds(longer),
        )
        return "limited", hidden if longer < MOSTLY * excess else "", key

    def _usual(self, key: What) -> tuple[float, float]:
        """Return median and robust standard deviation of the activity ``key`` in the other steps (microseconds)."""
        values = [other.us.get(key, 0) for other in self.others]
        middle = _median(values)
        return middle, 1.4826 * _median(abs(value - middle) for value in values)

    def _stands_out(self, key: What, typical: float) -> float:
        """Return by how many microseconds the activity ``key`` exceeds its median in the other steps.

        Return 0 unless the excess stands out from the usual spread and is 5 % of ``typical``, the median length of a
        step.
        """
        middle, spread = self._usual(key)
        excess = self.step.us[key] - middle
        return excess if excess > max(SPREADS * spread, SHARE * typical) else 0

    def _cause(self, key: What) -> Cause:
        """Return the activity ``key`` as a cause, with its excess and, if known, the responsible rank or replica."""
        us = self.step.us[key]
        excess = max(us - self._usual(key)[0], 0)
        replica, rank = self._named(key, excess)
        return Cause(key.role, replica, rank, key.what, key.phase, seconds(us), seconds(excess), key.kind)

    def _named(self, key: What, excess: float) -> Who:
        """Return the rank or replica with at least half of an activity's ``excess`` (microseconds), else NOBODY.

        ``key`` is the activity. The usual delay of a rank or replica is subtracted, so a permanent straggler does not
        count.
        """
        shares = self.step.by_process[key]
        top = max(shares, key=lambda process: shares[process])
        if key.kind == "sync":
            return self._longest(self.step.sync.get(key.what, {}), excess)
        if key.role == "trainer":
            return Who(None, self._rank(key, excess))
        if key.role in ("engine", "server") and top is not None:
            return Who(self._replica(self.who[top].replica, excess), None)
        return NOBODY

    def _rank(self, key: What, excess: float) -> int | None:
        """Return the rank whose unusual delay is at least half of ``excess`` (microseconds), or the only trainer's.

        ``key`` is the activity. Return None if no rank can be named.
        """
        late = self.step.late.get(key, {})
        last = max(late, key=lambda process: late[process], default=None)
        if last is not None and excess:
            usual = _median(other.late.get(key, {}).get(last, 0) for other in self.others)
            if late[last] - usual >= MOSTLY * excess:
                return self.who[last].rank
        trainers = [process for process in self.who if process.rank is not None and process.replica is None]
        alone = len(trainers) == 1 and any(process is not None for process in self.step.by_process[key])
        return trainers[0].rank if alone else None

    def _replica(self, replica: int | None, excess: float) -> int | None:
        """Return ``replica`` if it is the only one, or its unusual delay is at least half of ``excess`` (microseconds).

        Return None otherwise.
        """
        if len({process.replica for process in self.who if process.replica is not None}) == 1:
            return replica
        last, late = self.step.replica_late
        usual = _median(other.replica_late[1] if other.replica_late[0] == replica else 0 for other in self.others)
        return replica if replica == last and excess and late - usual >= MOSTLY * excess else None

    def _longest(self, lengths: Mapping[int, int], excess: float) -> Who:
        """Return the process that took longest, if its lead is at least half of ``excess``, else NOBODY.

        ``lengths`` are microseconds by the process's index.
        """
        ordered = sorted(lengths, key=lambda process: lengths[process])
        if len(ordered) < 2 or not excess or lengths[ordered[-1]] - lengths[ordered[-2]] < MOSTLY * excess:
            return NOBODY
        return self.who[ordered[-1]]


def _median(values: Iterable[float]) -> float:
    numbers = [*values]
    return statistics.median(numbers) if numbers else 0.0


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
"""Advice on the next action, by cause."""


def run_causes(steps: Sequence[TrainingStep], paths: Sequence[Spent]) -> tuple[RunCause, ...]:
    """Return the costliest causes of the run, over all steps but the first: excesses, and possible savings.

    ``paths`` has the full critical path of each step; long runs keep it coarser in ``steps``.
    """
    counted = steps[1:] or steps
    causes = [*_lasting(counted, paths[1:] or paths), *_outstanding(counted)]
    whole = sum(step.seconds for step in counted)
    costly = [
        replace(cause, seconds=round(cause.seconds, 6), share=round(cause.seconds / whole, 4))
        for cause in causes
        if whole and cause.seconds > 0.01 * whole
    ]
    return tuple(sorted(costly, key=lambda cause: -cause.seconds)[:LARGEST])


def _outstanding(steps: Iterable[TrainingStep]) -> Iterator[RunCause]:
    """Yield the steps' excesses grouped by cause; the share of the run is filled in later."""
    grouped = defaultdict[tuple[object, ...], list[tuple[int, Cause]]](list)
    for step in steps:
        cause = step.limited_by
        if cause is not None:
            group = grouped[cause.role, cause.replica, cause.rank, cause.kind, cause.what, cause.phase]
            group.append((step.step, cause))
    for group in grouped.values():
        largest = max((cause for _, cause in group), key=lambda cause: cause.excess_seconds)
        title = Text("{label}, over the typical step", largest.label)
        total = sum(cause.excess_seconds for _, cause in group)
        yield RunCause(title, total, 0.0, tuple(step for step, _ in group), ADVICE[advice(largest)], largest)


def advice(cause: Cause) -> str:
    """Return the key of ``ADVICE`` for a cause, by its kind and role, and whether one rank or replica is named."""
    if cause.kind in ("poll", "sync", "gap", "reward") and cause.role != "engine":
        return cause.kind
    if cause.what.startswith("start of "):
        return "queue"
    if cause.role in ("engine", "server"):
        return "replica" if cause.replica is not None else "engine"
    if cause.role == "trainer":
        return "rank" if cause.rank is not None else "trainer"
    return "reward" if cause.role == "reward" else "driver"


def _lasting(steps: Sequence[TrainingStep], paths: Sequence[Spent]) -> Iterator[RunCause]:
    """Yield each kind of saving, summed over all steps and less the steps' excesses; the share is filled in later."""
    polls = {key.what for path in paths for key in path.us if key.kind == "poll"}
    titles = {
        "poll": Text("polling ({names}) after the last trajectory had ended", ", ".join(sorted(polls)[:2])),
        "tail": Text("the tail of the rollout, with fewer than a tenth of its requests"),
        "sync": Text("weight sync"),
        "gap": Text("the driver between its phases"),
        "replica": Text("waiting for the last replica and the last rank"),
    }
    savings = [(step, _savings(step, path)) for step, path in zip(steps, paths, strict=True)]
    for key, title in titles.items():
        affected = [step for step, saving in savings if saving[key] > 0.01 * step.seconds]
        cause = _path_cause(affected[0], key) if affected else None
        total = sum(saving[key] for _, saving in savings)
        yield RunCause(title, total, 0.0, tuple(step.step for step in affected), ADVICE[key], cause)


def _savings(step: TrainingStep, path: Spent) -> dict[str, float]:
    """Return the upper bound of a step's savings in seconds, by key of ``ADVICE``, less its own excess."""
    bounds = {bound.name: bound.saves_seconds for bound in step.what_if}
    gaps = sum(us for key, us in path.us.items() if (key.role, key.kind) == ("driver", "gap"))
    savings = {
        "poll": step.poll_seconds, "tail": bounds.get(NO_TAIL, 0), "sync": bounds.get(FREE_SYNC, 0),
        "gap": seconds(gaps), "replica": bounds.get(BALANCE, 0),
    }  # fmt: skip
    return {key: max(value - _counted(step, key), 0) for key, value in savings.items()}


def _counted(step: TrainingStep, key: str) -> float:
    """Return the excess in seconds of the step's cause if it is of the kind ``key``, else 0."""
    cause = step.limited_by
    if cause is None:
        return 0.0
    alike = cause.kind == key or (key == "replica" and (cause.rank, cause.replica) != (None, None))
    return cause.excess_seconds if alike else 0.0


def _path_cause(step: TrainingStep, kind: str) -> Cause | None:
    """Return the longest segment of ``kind`` on the critical path as a cause without an excess; None without one."""
    segments = [segment for segment in step.critical_path if segment.kind == kind]
    if not segments:
        return None
    longest = max(segments, key=lambda segment: segment.seconds)
    return Cause(
        longest.role, longest.replica, longest.rank, longest.what, longest.phase, longest.seconds, 0.0, longest.kind
    )


def path_seconds(paths: Sequence[Spent]) -> tuple[Cause, ...]:
    """Return the critical paths of all steps but the first, summed by activity, the largest first."""
    sums = Counter[What]()
    for path in paths[1:] or paths:
        sums.update(path.us)
    return tuple(
        Cause(key.role, None, None, key.what, key.phase, seconds(us), 0.0, key.kind) for key, us in sums.most_common()
    )
