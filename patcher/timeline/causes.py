"""The causes that limited each step, compared with the others."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import NamedTuple

from patcher.messages import COMMA, Text, joined
from patcher.timeline.intervals import TimeRange, overlaps
from patcher.timeline.model import (
    NOT_KNOWN,
    ROLES,
    SEVERAL,
    TYPICAL,
    Cause,
    Part,
)
from patcher.timeline.path import GENERATING, PathPiece
from patcher.timeline.shares import NOTHING, VALIDATING, Amounts, seconds

NEIGHBOURS = 40
"""Steps before and behind a step that it is compared with: answers become longer while a model learns."""

FEWEST = 2
"""Steps to compare with, below which nothing can stand out."""

FEWEST_IN_THIRD = 4
"""Steps in a third of those compared with, below which a trend is not told from chance."""

SPREADS = 4
"""Multiple of the usual spread by which an activity must exceed the typical step to stand out."""

STEP_SPREADS = 3
"""Multiple of the usual spread of whole steps by which a step and a cause must exceed the typical step."""

CLEAR_SPREADS = 12
"""Multiple of its usual spread by which an activity must exceed the typical step to stand out of uneven steps."""

CLEAR = 0.3
"""Share of its step that such an excess must have."""

SHARE = 0.05
"""Share of the typical step that an excess must have to stand out."""

LEAST = 0.15
"""Share of an excess by which the step itself must be longer than the typical one: polling may hide a part of it."""

MOSTLY = 0.5
"""Share of an excess that one rank or replica must account for to be named."""

SINGLE = 0.3
"""Share of a step's extra time that a single cause must account for."""

TOGETHER = 3
"""Roles that take longer in one phase if their machine is overloaded."""

BESIDE = 0.25
"""Share of the largest excess in a phase that other roles must have if their machine is overloaded."""


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
    ``replica_late`` is the last replica and its delay. ``sync`` is how long each process worked for each part of the
    weight sync. ``unsafe`` says that a trainer stopped recording before the end of the step, "" if none did.
    ``stalled`` is how long each process stood still during an activity, ``stopped`` how long a whole machine did.
    ``amounts`` is how much there was to do, ``rewards_delay`` by how much a rollout would end earlier without rewards.
    """

    total: int
    us: Mapping[What, int]
    late: Mapping[What, Mapping[int, int]]
    by_process: Mapping[What, Mapping[int | None, int]]
    replica_late: tuple[int | None, int] = (None, 0)
    sync: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    unsafe: str = ""
    stalled: Mapping[What, Mapping[int, int]] = field(default_factory=dict)
    stopped: Mapping[What, int] = field(default_factory=dict)
    amounts: Amounts = NOTHING
    rewards_delay: int = 0

    @cached_property
    def phases(self) -> frozenset[str]:
        """Return the driver's phases on the critical path."""
        return frozenset(key.phase for key in self.us)


def spent(
    path: Sequence[PathPiece],
    replica_late: tuple[int | None, int],
    sync: Mapping[str, Mapping[int, int]],
    unsafe: str,
    stalls: Mapping[int, Sequence[TimeRange]] | None = None,
    machine_stalls: Sequence[TimeRange] = (),
) -> Spent:
    """Sum a step's critical path by activity, and return the times that are compared between steps.

    ``stalls`` has the ranges in which each process stood still, by its index, ``machine_stalls`` those of a whole
    machine. ``replica_late``, ``sync`` and ``unsafe`` become fields of the result as they are.
    """
    us = defaultdict[What, int](int)
    late = defaultdict[What, defaultdict[int, int]](lambda: defaultdict(int))
    by_process = defaultdict[What, defaultdict[int | None, int]](lambda: defaultdict(int))
    for piece in path:
        key = _what(piece)
        us[key] += piece.end - piece.start
        by_process[key][piece.process] += piece.end - piece.start
        if piece.process is not None and piece.late:
            late[key][piece.process] += piece.late
    stalled = defaultdict[What, dict[int, int]](dict)
    for process, ranges in (stalls or {}).items():
        for key, overlap in _during(path, ranges).items():
            stalled[key][process] = overlap
    stopped = _during(path, machine_stalls)
    return Spent(sum(us.values()), us, late, by_process, replica_late, sync, unsafe, stalled, stopped)


def _what(piece: PathPiece) -> What:
    """Return the key under which a piece of a critical path is summed."""
    return What(piece.role, piece.kind, piece.what, piece.phase)


def _during(path: Sequence[PathPiece], ranges: Sequence[TimeRange]) -> dict[What, int]:
    """Return activity → its microseconds on ``path`` within ``ranges``; activities outside of them are absent."""
    during = Counter[What]()
    for piece, us in overlaps(path, ranges):
        during[_what(piece)] += us
    return during


@dataclass(frozen=True)
class StepVerdict:
    """Verdict on a step, with the fields of ``TrainingStep``."""

    verdict: str
    why: str
    limited_by: Cause | None
    mostly: Cause | None
    also: tuple[Cause, ...] = ()
    beside: tuple[Part, ...] = ()


class Who(NamedTuple):
    """Replica and rank of a process; None if it has none or the number is unknown."""

    replica: int | None
    rank: int | None


NOBODY = Who(None, None)


def verdicts(steps: Sequence[Spent], who: Sequence[Who]) -> list[StepVerdict]:
    """Return the verdict on each step, compared with up to 40 steps on either side, if possible without the first.

    ``who`` has the replica and rank of each process, by the process's index.
    """
    neighbours = [_neighbours(len(steps), at) for at in range(len(steps))]
    comparisons = [
        _Comparison(step, [(other - at, steps[other]) for other in neighbours[at]], who)
        for at, step in enumerate(steps)
    ]
    regular = [comparison.regular() for comparison in comparisons]
    return [
        comparison.verdict([(other - at, regular[other]) for other in neighbours[at]])
        for at, comparison in enumerate(comparisons)
    ]


def _neighbours(count: int, step: int) -> list[int]:
    """Return the indices of the steps that a step is compared with: up to 40 on either side.

    ``step`` is its index among ``count`` steps. Step 0, the warm-up, is left out if at least two others remain.
    """
    near = [other for other in range(max(step - NEIGHBOURS, 0), min(step + NEIGHBOURS + 1, count)) if other != step]
    return near[1:] if near[:1] == [0] and len(near) > FEWEST else near


@dataclass(frozen=True)
class _Comparison:
    """A step and the steps to compare it with.

    ``others`` has their distance in steps, negative before the step; ``who`` has replica and rank by the process's
    index.
    """

    step: Spent
    others: Sequence[tuple[int, Spent]]
    who: Sequence[Who]

    @cached_property
    def with_phase(self) -> Mapping[str, Sequence[tuple[int, Spent]]]:
        """Return each rare phase of this step → the other steps that have it, with their distance.

        A phase is rare if most of the other steps lack it.
        """
        phases = {key.phase for key in self.step.us}
        steps = {phase: [other for other in self.others if phase in other[1].phases] for phase in phases}
        return {phase: having for phase, having in steps.items() if 2 * len(having) < len(self.others)}

    @cached_property
    def usual(self) -> Mapping[What, tuple[float, float]]:
        """Return activity → its usual time at this step and the robust standard deviation, in microseconds.

        An activity of a phase that most steps lack is compared with the steps that have the phase.
        """
        return {
            key: usual([(at, other.us.get(key, 0)) for at, other in self.with_phase.get(key.phase, self.others)])
            for key in self.step.us
        }

    @cached_property
    def incomparable(self) -> frozenset[str]:
        """Return the phases in which nothing can stand out: validation, and those of too few other steps."""
        few = {phase for phase, having in self.with_phase.items() if len(having) < FEWEST}
        return frozenset(few | ({key.phase for key in self.step.us} & {*VALIDATING}))

    @cached_property
    def excesses(self) -> Mapping[What, float]:
        """Return the activities that stand out → their microseconds over the usual time.

        These exceed four times the usual spread, and 5 % of a step in which each activity takes as long as usual.
        """
        least = SHARE * sum(middle for middle, _ in self.usual.values())
        excesses = {key: self.step.us[key] - middle for key, (middle, _) in self.usual.items()}
        return {
            key: excess
            for key, excess in excesses.items()
            if key.phase not in self.incomparable and excess > max(SPREADS * self.usual[key][1], least)
        }

    def regular(self) -> float:
        """Return the step's microseconds without what stands out and without phases that most steps lack."""
        rare = {*self.with_phase, *self.incomparable}
        regular = sum(us for key, us in self.step.us.items() if key.phase not in rare)
        return regular - sum(excess for key, excess in self.excesses.items() if key.phase not in rare)

    def verdict(self, regular: Sequence[tuple[int, float]]) -> StepVerdict:
        """Return the verdict, the causes that limited the step, and the largest activity.

        ``regular`` has the results of `regular` for the other steps, by their distance.
        """
        us = self.step.us
        verdict, why, limits = self._judge(regular)
        mostly = max(us, key=us.__getitem__) if us else None
        causes = [*map(self._cause, limits)]
        return StepVerdict(
            verdict,
            why,
            causes[0] if causes else None,
            self._cause(mostly) if mostly else None,
            tuple(causes[1:]),
            tuple(self._beside()),
        )

    def _beside(self) -> Iterator[Part]:
        """Yield the phases in which nothing can stand out, with their seconds, if they have over 5 % of the step."""
        for phase in sorted(self.incomparable):
            us = sum(us for key, us in self.step.us.items() if key.phase == phase)
            if phase and us > SHARE * self.step.total:
                yield Part(phase, seconds(us))

    def _longer(self, typical: float) -> float:
        """Return by how many microseconds the step is longer than a typical one with the same rare phases.

        ``typical`` is the length of a typical step without rare phases, in microseconds. A rare phase that takes less
        than usual does not hide what takes longer.
        """
        rare = {*self.with_phase, *self.incomparable}
        expected = sum(
            us if key.phase in self.incomparable else min(us, self.usual[key][0])
            for key, us in self.step.us.items()
            if key.phase in rare
        )
        return self.step.total - typical - expected

    def _judge(self, regular: Sequence[tuple[int, float]]) -> tuple[str, str, Sequence[What]]:
        """Return the verdict, the reason for it, and the activities that limited the step, the costliest first.

        ``regular`` has the results of `regular` for the other steps, by their distance. The activities are empty
        unless the verdict is ``limited``.
        """
        if len(self.others) < FEWEST:
            return TYPICAL, Text("too few other steps for a comparison"), ()
        if not self.excesses:
            return TYPICAL, Text("no part of this step is unusually long"), ()
        typical, spread = usual(regular)
        longer, least = self._longer(typical), STEP_SPREADS * spread
        ordered = sorted(self.excesses, key=self.excesses.__getitem__, reverse=True)
        standing = [
            key for key in ordered if self.excesses[key] > least or self._is_clear(key) or self.longer_answers(key)
        ]
        if not standing or longer < LEAST * self.excesses[standing[0]]:
            return TYPICAL, Text("the step took no longer than the others"), ()
        key, excess = standing[0], self.excesses[standing[0]]
        if excess < SINGLE * longer:
            why = Text(
                "no single cause: {activity} accounts for only {seconds:.2f} s of the additional {excess:.2f} s",
                key.what,
                seconds(excess),
                seconds(longer),
            )
            return SEVERAL, why, ()
        if roles := self._slower_together(key):
            why = Text(
                "no single cause: {roles} slowed down at the same time, as on an overloaded machine",
                joined(COMMA, roles),
            )
            return SEVERAL, why, ()
        if unknown := self._unknown(key):
            return NOT_KNOWN, unknown, ()
        hidden = Text(
            "the step became only {seconds:.2f} s longer: the rest of the delay overlaps with time that passes in any"
            " case, such as waiting for the next poll",
            seconds(longer),
        )
        also = [other for other in standing[1:] if other.role != "unrecorded"]
        is_hidden = longer < MOSTLY * excess and excess - longer > least
        return "limited", hidden if is_hidden else self.longer_answers(key), [key, *also]

    def _is_clear(self, key: What) -> bool:
        """Tell whether an activity's excess cannot be chance, however much the lengths of whole steps vary."""
        excess = self.excesses[key]
        return excess > max(CLEAR_SPREADS * self.usual[key][1], CLEAR * self.step.total)

    def _slower_together(self, key: What) -> Sequence[str]:
        """Return the names of all roles that took longer in the phase of ``key``, the role with most of it first.

        () if they are fewer than three, or if the others took longer by less than a quarter of the excess of ``key``.
        """
        excesses = Counter[str]()
        for other, excess in self.excesses.items():
            if other.phase == key.phase and other.role not in ("unrecorded", "rlpatch"):
                excesses[other.role] += round(excess)
        beside = excesses.total() - excesses[key.role]
        if len(excesses) < TOGETHER or beside < BESIDE * self.excesses[key]:
            return ()
        return [ROLES[role] for role, _ in excesses.most_common()]

    def longer_answers(self, key: What) -> str:
        """Return a text if ``key`` is decoding, and more decode steps than usual explain half of its excess, else "".

        A count is exact on a busy machine, too.
        """
        count = self.step.amounts.decode_steps
        middle, spread = usual([(at, other.amounts.decode_steps) for at, other in self.others])
        if (key.role, key.what) != ("engine", "decode") or count - middle <= SPREADS * spread:
            return ""
        explained = (1 - middle / count) * self.step.us[key]
        if explained < MOSTLY * self.excesses[key]:
            return ""
        return Text("{count} decode steps instead of the usual {usual:.0f}", count, middle)

    def _unknown(self, key: What) -> str:
        """Return why the cause of the longer activity ``key`` is unknown; "" if it is known.

        It is unknown without a record, if the whole machine stood still, or if a trainer stopped recording.
        """
        if key.role == "unrecorded":
            return Text("{activity} took longer, but the process that ran it recorded nothing", key.what)
        stopped = self.step.stopped.get(key, 0)
        if stopped >= MOSTLY * self.excesses[key]:
            return Text(
                "several processes stopped at the same time for {seconds:.2f} s: their machine was overloaded or"
                " paused",
                seconds(stopped),
            )
        return self.step.unsafe if key.role == "trainer" else ""

    def _cause(self, key: What) -> Cause:
        """Return the activity ``key`` as a cause, with its excess, the possible saving, and the responsible process.

        Rank and replica are None if none is responsible.
        """
        us = self.step.us[key]
        excess = max(us - self.usual[key][0], 0)
        replica, rank = self._responsible(key, excess)
        saves = seconds(min(excess, self._lead_of(key, replica)))
        return Cause(key.role, replica, rank, key.what, key.phase, seconds(us), seconds(excess), key.kind, saves)

    def _lead_of(self, key: What, replica: int | None) -> float:
        """Return by how many microseconds the activity ``key`` can shrink before the step waits for something else.

        ``replica`` is the responsible one, or None. Infinite if nothing is known that goes on beside it.
        """
        if key.kind == "iteration":
            return self.step.replica_late[1] if replica is not None and self.step.replica_late[0] == replica else inf
        return self.step.rewards_delay if key.role == "reward" and key.phase in GENERATING else inf

    def _responsible(self, key: What, excess: float) -> Who:
        """Return the rank or replica that causes at least half of an activity's ``excess`` (microseconds), else NOBODY.

        ``key`` is the activity. The usual delay of a rank or replica is subtracted, so a permanent straggler does not
        count.
        """
        shares = self.step.by_process[key]
        top = max(shares, key=lambda process: shares[process])
        if key.kind == "sync":
            return self._longest(key, excess) if key.what in self.step.sync else self._latest(key, excess)
        if key.role == "trainer":
            return Who(None, self._rank(key, excess))
        if key.role in ("engine", "server") and top is not None:
            return Who(self._replica(self.who[top].replica, excess), None)
        return NOBODY

    def _rank(self, key: What, excess: float) -> int | None:
        """Return the rank whose unusual delay is at least half of ``excess`` (microseconds); None if there is none.

        ``key`` is the activity. Otherwise the only rank that stood still is named, if it did so for half of the excess,
        or the rank of the only trainer.
        """
        latest = self._latest(key, excess)
        if latest != NOBODY:
            return latest.rank
        trainers = [at for at, process in enumerate(self.who) if process.rank is not None and process.replica is None]
        stalled = self.step.stalled.get(key, {})
        still = [at for at in trainers if stalled.get(at, 0)]
        if len(still) == 1 and excess and stalled[still[0]] >= MOSTLY * excess:
            return self.who[still[0]].rank
        alone = len(trainers) == 1 and any(process is not None for process in self.step.by_process[key])
        return self.who[trainers[0]].rank if alone else None

    def _latest(self, key: What, excess: float) -> Who:
        """Return the process whose unusual delay after the others is at least half of ``excess``, else NOBODY.

        ``key`` is the activity, ``excess`` in microseconds.
        """
        late = self.step.late.get(key, {})
        last = max(late, key=lambda process: late[process], default=None)
        if last is None or not excess:
            return NOBODY
        usual = _median(other.late.get(key, {}).get(last, 0) for _, other in self.others)
        return self.who[last] if late[last] - usual >= MOSTLY * excess else NOBODY

    def _replica(self, replica: int | None, excess: float) -> int | None:
        """Return ``replica`` if it is the run's only one, or caused half of ``excess`` (microseconds); else None.

        It caused that if it finished last in the step, later than usual by half of the excess.
        """
        if len({process.replica for process in self.who if process.replica is not None}) == 1:
            return replica
        last, late = self.step.replica_late
        usual = _median(other.replica_late[1] if other.replica_late[0] == replica else 0 for _, other in self.others)
        return replica if replica == last and excess and late - usual >= MOSTLY * excess else None

    def _longest(self, key: What, excess: float) -> Who:
        """Return the process that took longest for the part ``key`` of the weight sync, else NOBODY.

        It must take longer than the next process of its role by half of ``excess`` (microseconds) more than usual.
        """
        later, process = self._slowest_in_sync(self.step, key)
        before = [self._slowest_in_sync(other, key) for _, other in self.others]
        usual = _median(other_later if other_process == process else 0 for other_later, other_process in before)
        return self.who[process] if process is not None and excess and later - usual >= MOSTLY * excess else NOBODY

    def _slowest_in_sync(self, step: Spent, key: What) -> tuple[int, int | None]:
        """Return the slowest process in part ``key`` of the weight sync in ``step``, among those of the part's role.

        The values are the microseconds by which it exceeds the next slowest, and its index; (0, None) for fewer than
        two processes.
        """
        lengths = {
            process: us
            for process, us in step.sync.get(key.what, {}).items()
            if self.who[process] != NOBODY and (self.who[process].replica is None) == (key.role == "trainer")
        }
        ordered = sorted(lengths, key=lambda process: lengths[process])
        return (lengths[ordered[-1]] - lengths[ordered[-2]], ordered[-1]) if len(ordered) > 1 else (0, None)


def _median(values: Iterable[float]) -> float:
    numbers = [*values]
    return statistics.median(numbers) if numbers else 0.0


def usual(values: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return the value to expect at distance 0, at least 0, and the robust standard deviation around it.

    ``values`` are pairs (distance in steps, value). With enough of them, the trend is taken out: the line from the
    median of the first third to that of the last.
    """
    third = len(values) // 3
    slope = 0.0
    if third >= FEWEST_IN_THIRD:
        (first, before), (last, behind) = (
            (_median(at for at, _ in part), _median(value for _, value in part))
            for part in (values[:third], values[-third:])
        )
        slope = (behind - before) / (last - first)
    level = [value - slope * at for at, value in values]
    middle = _median(level)
    return max(middle, 0.0), 1.4826 * _median(abs(value - middle) for value in level)
