"""Causes that made a step longer than the steps before and after it."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from math import inf
from typing import NamedTuple, TypeVar

from patcher.messages import COMMA, Text, joined
from patcher.timeline.intervals import TimeRange, overlaps
from patcher.timeline.model import NOT_KNOWN, ROLES, SEVERAL, TYPICAL, Cause, Part
from patcher.timeline.path import PathPiece
from patcher.timeline.shares import NOTHING, VALIDATING, Amounts, seconds
from patcher.timeline.step_records import GENERATING

T = TypeVar("T")

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


class Clear(NamedTuple):
    """Multiple of an activity's usual spread, a share of the step, and how many other steps the spread must come from.

    An activity that exceeds the typical step by both stands out even if whole steps vary much.
    """

    spreads: float
    share: float
    fewest_steps: int = 0


CLEAR = (Clear(12, 0.3), Clear(100, 0.2), Clear(15, 0.12, 12))
"""The spread of few steps may be small by chance, so the last row needs twelve of them."""

FEWEST_FOR_DELAYS = 12
"""Steps to compare with, below which the usual delays of a rank are not known."""

LATE_SPREADS, LATE_SHARE = 4, 0.15
"""Multiple of a rank's usual delay, which nine tenths of the other steps stay below, and share of the step.

A rank that is later than the other ranks by both stands out even if whole steps vary much.
"""

SHARE = 0.05
"""Share of the typical step that an excess must have to stand out."""

LEAST = 0.15
"""Share of an excess by which the step itself must be longer than the typical one: polling may hide a part of it."""

MOSTLY = 0.5
"""Share of an excess that one rank or replica must account for to be named."""

SINGLE = 0.3
"""Share of a step's extra time that a single cause must account for."""

TOGETHER = 3
"""Number of roles that take longer in one phase if their machine is overloaded."""

BESIDE = 0.25
"""Share of the largest excess in a phase that other roles must have if their machine is overloaded."""


class Activity(NamedTuple):
    """Activity whose time is compared between steps: role, span kind, name and phase, of any rank or replica."""

    role: str
    kind: str
    what: str
    phase: str

    def as_cause(self, us: float) -> Cause:
        """Return the activity with its microseconds as a cause without an excess."""
        return Cause(self.role, None, None, self.what, self.phase, seconds(us), 0.0, self.kind)


CPU_WAIT = Activity("host", "cpu-wait", Text("waiting for a free CPU"), "")
"""Time in which a thread of the process that a step waited for was ready to run but had no CPU."""


@dataclass(frozen=True)
class StepTimes:
    """Times of one step's critical path by activity, in microseconds.

    ``late`` is the delay of each rank after the others and ``by_process`` the time on the path, by the process's index.
    ``last_replica`` is the replica that finished last, and its delay after the next to last. ``sync`` is how long each
    process worked for each part of the weight sync. ``incomplete`` says that a trainer stopped recording before the end
    of the step, "" if none did. ``stalled`` and ``cpu_waits`` are how long each process stood still, or waited for a
    CPU, during an activity. ``amounts`` is how much there was to do, ``rewards_delay`` by how much a rollout would end
    earlier without rewards.
    """

    total: int
    us: Mapping[Activity, int]
    late: Mapping[Activity, Mapping[int, int]]
    by_process: Mapping[Activity, Mapping[int | None, int]]
    last_replica: tuple[int | None, int] = (None, 0)
    sync: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    incomplete: str = ""
    stalled: Mapping[Activity, Mapping[int, int]] = field(default_factory=dict)
    amounts: Amounts = NOTHING
    rewards_delay: int = 0
    cpu_waits: Mapping[Activity, Mapping[int | None, int]] = field(default_factory=dict)

    @cached_property
    def phases(self) -> frozenset[str]:
        """Return the driver's phases on the critical path."""
        return frozenset(activity.phase for activity in self.us if activity != CPU_WAIT)


class ProcessWait(NamedTuple):
    """Wait for a CPU: the index of the process that had none, and for how many microseconds."""

    process: int | None
    us: int


NO_WAIT = ProcessWait(None, 0)


def sum_step_times(
    path: Sequence[PathPiece],
    last_replica: tuple[int | None, int],
    sync: Mapping[str, Mapping[int, int]],
    incomplete: str,
    stalls: Mapping[int, Sequence[TimeRange]] | None = None,
    cpu_waits: Iterable[ProcessWait] = repeat(NO_WAIT),
) -> StepTimes:
    """Sum a step's critical path by activity, and by the process of each.

    Parameters are the fields of `StepTimes`, except that ``stalls`` has the ranges in which each process stood still,
    by its index, and ``cpu_waits`` the wait for a CPU during each piece of ``path``. It is summed as `CPU_WAIT`, and
    missing from the piece's own activity and delay.
    """
    us = defaultdict[Activity, int](int)
    late = defaultdict[Activity, defaultdict[int, int]](lambda: defaultdict(int))
    by_process = defaultdict[Activity, defaultdict[int | None, int]](lambda: defaultdict(int))
    waits_of = defaultdict[Activity, defaultdict[int | None, int]](lambda: defaultdict(int))
    for piece, wait in zip(path, cpu_waits, strict=False):
        activity = _activity_of(piece)
        us[activity] += piece.end - piece.start - wait.us
        by_process[activity][piece.process] += piece.end - piece.start - wait.us
        if wait.us:
            us[CPU_WAIT] += wait.us
            by_process[CPU_WAIT][wait.process] += wait.us
            waits_of[activity][wait.process] += wait.us
        if piece.process is not None and piece.late > wait.us:
            late[activity][piece.process] += piece.late - wait.us
    stalled = defaultdict[Activity, dict[int, int]](dict)
    for process, ranges in (stalls or {}).items():
        for activity, overlap in _time_within(path, ranges).items():
            stalled[activity][process] = overlap
    return StepTimes(
        sum(us.values()), us, late, by_process, last_replica, sync, incomplete, stalled, cpu_waits=waits_of
    )  # fmt: skip


def _activity_of(piece: PathPiece) -> Activity:
    return Activity(piece.role, piece.kind, piece.what, piece.phase)


def _time_within(path: Sequence[PathPiece], ranges: Sequence[TimeRange]) -> dict[Activity, int]:
    """Return activity → its microseconds on the critical ``path`` during ``ranges``, without activities of 0."""
    during = Counter[Activity]()
    for piece, us in overlaps(path, ranges):
        during[_activity_of(piece)] += us
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


class ProcessRank(NamedTuple):
    """Replica and rank of a process; None if it has none or the number is unknown."""

    replica: int | None
    rank: int | None


NOBODY = ProcessRank(None, None)


def verdicts(steps: Sequence[StepTimes], processes: Sequence[ProcessRank]) -> list[StepVerdict]:
    """Return the verdict on each step, in order, from a comparison with up to 40 steps before and 40 after it.

    The first step, a warm-up, is not compared with if two others remain.
    """
    steps = [_with_waits_as_work(step, _near(steps, at)) for at, step in enumerate(steps)]
    comparisons = [_Comparison(step, _near(steps, at), processes) for at, step in enumerate(steps)]
    regular_us = [comparison.regular_us() for comparison in comparisons]
    return [comparison.verdict(_near(regular_us, at)) for at, comparison in enumerate(comparisons)]


def _near(values: Sequence[T], step: int) -> list[tuple[int, T]]:
    """Return (distance in steps, value) of each step to compare ``step`` with; ``values`` has one for every step."""
    return [(other - step, values[other]) for other in _steps_to_compare(len(values), step)]


def _steps_to_compare(count: int, step: int) -> list[int]:
    """Return the indices of up to 40 steps before and 40 after ``step``, if possible without step 0, the warm-up."""
    near = [other for other in range(max(step - NEIGHBOURS, 0), min(step + NEIGHBOURS + 1, count)) if other != step]
    return near[1:] if near[:1] == [0] and len(near) > FEWEST else near


def _usual_decode_steps(step: StepTimes, other_steps: Sequence[tuple[int, StepTimes]]) -> float | None:
    """Return the expected number of decode steps in ``step`` if it has clearly more than that, else None."""
    middle, spread = expected_and_spread([(at, other.amounts.decode_steps) for at, other in other_steps])
    return middle if step.amounts.decode_steps - middle > SPREADS * spread else None


def _with_waits_as_work(step: StepTimes, other_steps: Sequence[tuple[int, StepTimes]]) -> StepTimes:
    """Return ``step`` with some of its waits for a CPU as times of the activities that waited.

    These are the waits during validation, in which nothing is compared, and those that additional decode steps caused:
    on a machine without a free CPU, twice as many of them wait twice as long. ``other_steps`` are the steps to compare
    with, as (distance in steps, step).
    """
    usual = _usual_decode_steps(step, other_steps)
    additional = 0.0 if usual is None else 1 - usual / step.amounts.decode_steps
    us = dict(step.us)
    by_process = {activity: dict(shares) for activity, shares in step.by_process.items()}
    for activity, waits in step.cpu_waits.items():
        share = 1.0 if activity.phase in VALIDATING else additional if _is_decode(activity) else 0.0
        for process, waited in waits.items() if share else ():
            part = round(share * waited)
            for changed, change in ((activity, part), (CPU_WAIT, -part)):
                us[changed] += change
                by_process[changed][process] = by_process[changed].get(process, 0) + change
    return replace(step, us=us, by_process=by_process)


def _is_decode(activity: Activity) -> bool:
    return (activity.role, activity.what) == ("engine", "decode")


@dataclass(frozen=True)
class _Comparison:
    """A step, the ``other_steps`` by their distance (negative before it), and ranks and replicas by process index."""

    step: StepTimes
    other_steps: Sequence[tuple[int, StepTimes]]
    processes: Sequence[ProcessRank]

    @cached_property
    def steps_with_rare_phase(self) -> Mapping[str, Sequence[tuple[int, StepTimes]]]:
        """Return each rare phase of this step → the other steps with this phase, as (distance in steps, step).

        A phase, such as validation, is rare if fewer than half of the other steps have it.
        """
        phases = self.step.phases
        steps = {phase: [other for other in self.other_steps if phase in other[1].phases] for phase in phases}
        return {phase: having for phase, having in steps.items() if 2 * len(having) < len(self.other_steps)}

    @cached_property
    def usual_times(self) -> Mapping[Activity, tuple[float, float]]:
        """Return activity → its expected time in this step and the robust standard deviation, both in microseconds.

        An activity in a rare phase is compared with steps that have it, waits for a CPU with the half of the steps that
        waited least: other programs may disturb many steps.
        """
        waits = sorted(other.us.get(CPU_WAIT, 0) for _, other in self.other_steps)
        least_waits = waits[: (len(waits) + 1) // 2]
        return {
            activity: middle_and_spread(least_waits)
            if activity == CPU_WAIT
            else expected_and_spread(
                [
                    (at, other.us.get(activity, 0))
                    for at, other in self.steps_with_rare_phase.get(activity.phase, self.other_steps)
                ]
            )
            for activity in self.step.us
        }

    @cached_property
    def incomparable(self) -> frozenset[str]:
        """Return the phases in which nothing can stand out: validation, and those of too few other steps."""
        few = {phase for phase, having in self.steps_with_rare_phase.items() if len(having) < FEWEST}
        return frozenset(few | ({activity.phase for activity in self.step.us} & {*VALIDATING}))

    @cached_property
    def excesses(self) -> Mapping[Activity, float]:
        """Return activity → its µs over the expected time, if above four times its spread and 5 % of a usual step."""
        least = SHARE * sum(middle for middle, _ in self.usual_times.values())
        excesses = {activity: self.step.us[activity] - middle for activity, (middle, _) in self.usual_times.items()}
        return {
            activity: excess
            for activity, excess in excesses.items()
            if activity.phase not in self.incomparable and excess > max(SPREADS * self.usual_times[activity][1], least)
        }

    def regular_us(self) -> float:
        """Return the microseconds of the step without waits for a CPU, rare phases, and the excesses that stand out."""
        regular = sum(us for activity, us in self.step.us.items() if not self._is_irregular(activity))
        return regular - sum(excess for activity, excess in self.excesses.items() if not self._is_irregular(activity))

    def _is_irregular(self, activity: Activity) -> bool:
        """Tell whether an activity is no part of a typical step: it waits for a CPU, or belongs to a rare phase."""
        rare = activity.phase in self.steps_with_rare_phase or activity.phase in self.incomparable
        return rare or activity == CPU_WAIT

    def verdict(self, regular_us: Sequence[tuple[int, float]]) -> StepVerdict:
        """Return the verdict on the step; ``regular_us`` has (distance in steps, `regular_us`) of the other steps."""
        us = self.step.us
        verdict, why, limits = self._judge(regular_us)
        mostly = max(us, key=us.__getitem__) if us else None
        causes = [*map(self._cause_of, limits)]
        return StepVerdict(
            verdict, why, causes[0] if causes else None, self._cause_of(mostly) if mostly else None, tuple(causes[1:]),
            tuple(self._incomparable_parts()),
        )  # fmt: skip

    def _incomparable_parts(self) -> Iterator[Part]:
        """Yield the phases without a comparison that take over 5 % of the step."""
        for phase in sorted(self.incomparable):
            of_phase = sum(us for activity, us in self.step.us.items() if activity.phase == phase)
            if phase and of_phase > SHARE * self.step.total:
                yield Part(phase, seconds(of_phase))

    def _us_over_typical(self, typical: float) -> float:
        """Return by how many microseconds the step is longer than a typical step with the same rare phases would be.

        ``typical`` is the length of a typical step without rare phases and waits for a CPU, in microseconds.
        """
        expected = sum(
            us if activity.phase in self.incomparable else min(us, self.usual_times[activity][0])
            for activity, us in self.step.us.items()
            if self._is_irregular(activity)
        )
        return self.step.total - typical - expected

    def _judge(self, regular_us: Sequence[tuple[int, float]]) -> tuple[str, str, Sequence[Activity]]:
        """Return verdict, reason, and what limited the step, the costliest activity first; none unless ``limited``."""
        if len(self.other_steps) < FEWEST:
            return TYPICAL, Text("too few other steps for a comparison"), ()
        if not self.excesses:
            return TYPICAL, Text("nothing in this step took unusually long"), ()
        typical, spread = expected_and_spread(regular_us)
        longer = self._us_over_typical(typical)
        least = STEP_SPREADS * spread
        ordered = sorted(self.excesses, key=self.excesses.__getitem__, reverse=True)
        standing = [
            activity
            for activity in ordered
            if self.excesses[activity] > least or self._is_clear(activity) or self._explain_by_decode_steps(activity)
        ]
        if not standing or longer < LEAST * self.excesses[standing[0]]:
            return TYPICAL, Text("the step took no longer than the others"), ()
        activity = standing[0]
        if several := self._why_several(activity, longer):
            return SEVERAL, several, ()
        if unknown := self._why_unknown(activity):
            return NOT_KNOWN, unknown, ()
        why = self._why_hidden(activity, longer, least) or self._explain_by_decode_steps(activity)
        also = [other for other in standing[1:] if other.role != "unrecorded"]
        return "limited", why, [activity, *also]

    def _why_several(self, activity: Activity, longer: float) -> str:
        """Return why ``activity`` is no single cause of a step ``longer`` by so many microseconds; "" if it is."""
        excess = self.excesses[activity]
        if excess < SINGLE * (longer - self._additional_wait(activity)):
            return Text(
                "no single cause: {activity} accounts for only {seconds:.2f} s of the {excess:.2f} s by which this step"
                " took longer than expected",
                activity=activity.what,
                seconds=seconds(excess),
                excess=seconds(longer),
            )
        if roles := self._slower_together(activity):
            return Text(
                "no single cause: {roles} slowed down at the same time, as happens on an overloaded machine",
                joined(COMMA, roles),
            )
        return ""

    def _why_hidden(self, activity: Activity, longer: float, least: float) -> str:
        """Return a text if ``longer``, that of the step, is less than half of the activity's excess, else "".

        The two must also differ by more than ``least``. All times are in microseconds.
        """
        excess = self.excesses[activity]
        if longer >= MOSTLY * excess or excess - longer <= least:
            return ""
        return Text(
            "the step as a whole took only {seconds:.2f} s longer; for the rest of this delay it would have waited"
            " anyway, for example for the next poll",
            seconds(longer),
        )

    def _additional_wait(self, activity: Activity) -> float:
        """Return by how many microseconds the step waited longer for a CPU than usual, 0 if ``activity`` is that wait.

        Such waits are known, so they do not count as time that nobody can explain.
        """
        usual = self.usual_times.get(CPU_WAIT)
        return max(self.step.us[CPU_WAIT] - usual[0], 0) if usual and activity != CPU_WAIT else 0

    def _is_clear(self, activity: Activity) -> bool:
        """Tell whether an activity's excess is no chance, by one of the rows of `CLEAR` or the delay of one rank.

        Its share is that of the step without waits for a CPU and phases that cannot be compared, or of the expected
        step if that is longer.
        """
        excess, spread = self.excesses[activity], self.usual_times[activity][1]
        compared = [other for other in self.usual_times if other != CPU_WAIT and other.phase not in self.incomparable]
        expected = sum(self.usual_times[other][0] for other in compared)
        worked = max(sum(self.step.us[other] for other in compared), expected)
        return self._is_delay_of_one_rank(activity, worked) or any(
            excess > max(clear.spreads * spread, clear.share * worked)
            for clear in CLEAR
            if len(self.other_steps) >= clear.fewest_steps
        )

    def _is_delay_of_one_rank(self, activity: Activity, worked: float) -> bool:
        """Tell whether one trainer rank alone was much later than usual during ``activity``, which took longer by that.

        Ranks do the same at the same time, so more work or a busy machine makes them later than each other by little.
        """
        late = self.step.late.get(activity, {})
        last = max(late, key=lambda process: late[process], default=None)
        if activity.role != "trainer" or last is None or len(self.other_steps) < FEWEST_FOR_DELAYS:
            return False
        usual = sorted(other.late.get(activity, {}).get(last, 0) for _, other in self.other_steps)
        return min(late[last], self.excesses[activity]) > max(
            LATE_SPREADS * usual[len(usual) * 9 // 10], LATE_SHARE * worked
        )

    def _slower_together(self, activity: Activity) -> Sequence[str]:
        """Return names of roles that took clearly longer than usual in the phase of ``activity``, largest excess first.

        () if they are fewer than three, or if the roles other than the activity's own have less than a quarter of its
        excess. Decoding that took longer because of more decode steps was not slower, so it does not count.
        """
        excesses = Counter[str]()
        for other, excess in self.excesses.items():
            is_more_work = bool(self._explain_by_decode_steps(other))
            if other.phase == activity.phase and other.role not in ("unrecorded", "rlpatch") and not is_more_work:
                excesses[other.role] += round(excess)
        beside = excesses.total() - excesses[activity.role]
        if len(excesses) < TOGETHER or beside < BESIDE * self.excesses[activity]:
            return ()
        return [ROLES[role] for role, _ in excesses.most_common()]

    def _explain_by_decode_steps(self, activity: Activity) -> str:
        """Return a text if ``activity`` is decoding that took longer because of more decode steps than usual, else "".

        The additional decode steps must explain half of the activity's excess. Unlike a time, their number does not
        depend on how busy the machine is.
        """
        count, usual = self.step.amounts.decode_steps, _usual_decode_steps(self.step, self.other_steps)
        if not _is_decode(activity) or usual is None:
            return ""
        explained = (1 - usual / count) * self.step.us[activity]
        if explained < MOSTLY * self.excesses[activity]:
            return ""
        return Text("{count} decode steps instead of the usual {usual:.0f}", count=count, usual=usual)

    def _why_unknown(self, activity: Activity) -> str:
        """Return why nobody can tell what made ``activity`` longer; "" if this can be told."""
        if activity.role == "unrecorded":
            return Text("{activity} took longer, but the process that ran it recorded nothing", activity.what)
        return self.step.incomplete if activity.role == "trainer" else ""

    def _cause_of(self, activity: Activity) -> Cause:
        """Return ``activity`` as a cause of the step's length, with the single process that is responsible, if any."""
        us = self.step.us[activity]
        excess = max(us - self.usual_times[activity][0], 0)
        replica, rank = self._responsible_process(activity, excess)
        saves = seconds(min(excess, self._slack(activity, replica)))
        return Cause(
            activity.role, replica, rank, activity.what, activity.phase, seconds(us), seconds(excess), activity.kind,
            saves,
        )  # fmt: skip

    def _slack(self, activity: Activity, replica: int | None) -> float:
        """Return by how much ``activity`` can shrink (µs) before the step waits for something else; inf if unknown."""
        if activity.kind == "iteration":
            return self.step.last_replica[1] if replica is not None and self.step.last_replica[0] == replica else inf
        return self.step.rewards_delay if activity.role == "reward" and activity.phase in GENERATING else inf

    def _responsible_process(self, activity: Activity, excess: float) -> ProcessRank:
        """Return the rank or replica that causes at least half of an activity's ``excess`` (microseconds), else NOBODY.

        Its usual delay is subtracted, so a permanent straggler does not count. Except in a weight sync, the only
        trainer or replica of a run is named for any excess. A driver or reward worker is never named.
        """
        if activity.kind == "sync":
            if activity.what in self.step.sync:
                return self._slowest_sync_process(activity, excess)
            return self._most_delayed_process(activity, excess)
        if activity.role == "trainer":
            return ProcessRank(None, self._responsible_rank(activity, excess))
        shares = self.step.by_process[activity]
        top = max(shares, key=lambda process: shares[process])
        if activity.role in ("engine", "server") and top is not None:
            return ProcessRank(self._responsible_replica(self.processes[top].replica, excess), None)
        return NOBODY

    def _leads_unusually(self, excess: float, lead: Callable[[StepTimes], int]) -> bool:
        """Tell whether a ``lead`` exceeds its median in the other steps by half of an ``excess`` (both in µs)."""
        usual = _median(lead(other) for _, other in self.other_steps)
        return excess > 0 and lead(self.step) - usual >= MOSTLY * excess

    def _responsible_rank(self, activity: Activity, excess: float) -> int | None:
        """Return the trainer rank that causes at least half of an activity's ``excess`` (microseconds), else None.

        It is the rank that finishes later than usual by that much, else the only rank that stood still for that long.
        The only trainer of a run is named for any excess, if some process did the activity.
        """
        latest = self._most_delayed_process(activity, excess)
        if latest != NOBODY:
            return latest.rank
        trainers = [
            at for at, process in enumerate(self.processes) if process.rank is not None and process.replica is None
        ]
        stalled = self.step.stalled.get(activity, {})
        still = [at for at in trainers if stalled.get(at, 0)]
        if len(still) == 1 and excess and stalled[still[0]] >= MOSTLY * excess:
            return self.processes[still[0]].rank
        alone = len(trainers) == 1 and any(process is not None for process in self.step.by_process[activity])
        return self.processes[trainers[0]].rank if alone else None

    def _most_delayed_process(self, activity: Activity, excess: float) -> ProcessRank:
        """Return the process that came last, if it is later than usual by half of an ``excess`` (µs), else NOBODY."""
        late = self.step.late.get(activity, {})
        last = max(late, key=lambda process: late[process], default=None)
        if last is None or not self._leads_unusually(excess, lambda step: step.late.get(activity, {}).get(last, 0)):
            return NOBODY
        return self.processes[last]

    def _responsible_replica(self, replica: int | None, excess: float) -> int | None:
        """Return ``replica`` if it is the only one, or finishes last, later than usual by half of ``excess`` (µs)."""
        if len({process.replica for process in self.processes if process.replica is not None}) == 1:
            return replica
        to_blame = self._leads_unusually(
            excess, lambda step: step.last_replica[1] if step.last_replica[0] == replica else 0
        )
        return replica if to_blame else None

    def _slowest_sync_process(self, activity: Activity, excess: float) -> ProcessRank:
        """Return the slowest process of a part of the weight sync if it causes half of the part's excess, else NOBODY.

        It does if its lead over the next slowest process of its role exceeds its usual lead by that half.
        """
        _, slowest = self._slowest_in_sync(self.step, activity)

        def lead(step: StepTimes) -> int:
            us, process = self._slowest_in_sync(step, activity)
            return us if process == slowest else 0

        return self.processes[slowest] if slowest is not None and self._leads_unusually(excess, lead) else NOBODY

    def _slowest_in_sync(self, step: StepTimes, activity: Activity) -> tuple[int, int | None]:
        """Return the lead (µs) of the slowest process in a part of the sync over the next of its role, and its index.

        (0, None) for fewer than two processes.
        """
        lengths = sorted(
            (us, process)
            for process, us in step.sync.get(activity.what, {}).items()
            if self.processes[process] != NOBODY
            and (self.processes[process].replica is None) == (activity.role == "trainer")
        )
        if len(lengths) < 2:
            return 0, None
        *_, (before, _), (longest, process) = lengths
        return longest - before, process


def _median(values: Iterable[float]) -> float:
    numbers = [*values]
    return statistics.median(numbers) if numbers else 0.0


def expected_and_spread(values: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return the value expected at distance 0, at least 0, and the robust standard deviation of ``values`` around it.

    ``values`` are pairs (distance in steps, value), in order of distance. From twelve values on, a linear trend is
    taken into account: the line through the medians of the first and of the last third.
    """
    third = len(values) // 3
    slope = 0.0
    if third >= FEWEST_IN_THIRD:
        (first, before), (last, behind) = (
            (_median(at for at, _ in part), _median(value for _, value in part))
            for part in (values[:third], values[-third:])
        )
        slope = (behind - before) / (last - first)
    middle, spread = middle_and_spread([value - slope * at for at, value in values])
    return max(middle, 0.0), spread


def middle_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the median of ``values``, and the robust standard deviation around it."""
    middle = _median(values)
    return middle, 1.4826 * _median(abs(value - middle) for value in values)
