"""The timeline: the values that the table of steps, ``--json`` and the page are made of.

All times are seconds on one clock, from the first record of the run on; ``seconds`` is a length. Text comes from the
files of a run: it is bounded and holds nothing that a terminal obeys, and a page escapes it all the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from patcher.messages import Text

TYPICAL, SEVERAL, NOT_KNOWN = Text("typical"), Text("several"), Text("not known")
"""Verdicts on a step that no single cause limits; the verdict on any other step is the name of its cause."""

NO_TAIL, BALANCE = Text("no long tail"), Text("perfect balance")
FREE_SYNC, OVERLAP = Text("no waiting for the weight sync"), Text("overlap")
FREE_REWARDS = Text("no waiting for rewards")
"""Names of the bounds of a step."""

ROLES = {
    "driver": Text("driver"),
    "trainer": Text("trainer"),
    "engine": Text("engine"),
    "server": Text("server"),
    "agent": Text("agent loop"),
    "balancer": Text("load balancer"),
    "reward": Text("reward"),
    "other": Text("other"),
    "unrecorded": Text("not recorded"),
    "rlpatch": Text("rlpatch itself"),
    "host": Text("host"),
}
"""Name of a process's role as people read it, in the order of the lanes; the last three have no lane."""


class LaneSpan(NamedTuple):
    """A span of one process, in seconds; ``end`` is None while the span goes on.

    ``kind`` is that of the record (``phase``, ``call``, ``work``, ``unit``, ``wait``, ``sync``, ``sleep``, ``poll``,
    ``batch``, ``trajectory``, ``reward``, ``request``, ``route``, ``serve``, ``send``, ``gc``).
    """

    start: float
    end: float | None
    kind: str
    name: str


class IterationRun(NamedTuple):
    """Engine iterations without gaps between them, in seconds.

    ``decodes`` is the number of iterations that only decode, ``requests`` the most requests in one iteration.
    """

    start: float
    end: float
    iterations: int
    decodes: int
    requests: int


@dataclasses.dataclass(frozen=True)
class Lane:
    """One process in one role.

    ``number`` counts the lanes of a role. ``rank`` and ``replica`` are None if unknown. ``spans`` are sorted by start;
    ``left_out`` is the number of short spans dropped from a long run. ``seen`` is the start of the first record and the
    end of the last. ``ended`` tells that the process ended by itself. ``dropped`` is the number of records that the
    process could not keep.
    """

    role: str
    number: int
    replica: int | None
    rank: int | None
    host: str
    pid: int
    command: str
    spans: tuple[LaneSpan, ...] = ()
    iterations: tuple[IterationRun, ...] = ()
    left_out: int = 0
    seen: tuple[float, float] = (0.0, 0.0)
    ended: bool = False
    dropped: int = 0

    def as_json(self) -> dict[str, object]:
        """Return the fields for JSON, without spans and iterations: a long run has a million spans."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if name not in ("spans", "iterations", "left_out")}

    @property
    def label(self) -> str:
        """Return the name for people: ``engine, replica 1, rank 0``."""
        return label(self.role, self.replica, self.rank)


def label(role: str, replica: int | None, rank: int | None) -> str:
    """Return the name of a process for people, in the reader's language: ``trainer, rank 1``.

    Replica and rank are left out if they are None. An unknown role is shown as it is.
    """
    name: str = ROLES.get(role, role)
    if replica is not None:
        name = Text("{role}, replica {replica}", role=name, replica=replica)
    return name if rank is None else Text("{process}, rank {rank}", process=name, rank=rank)


def doing(process: str, activity: str, phase: str) -> Text:
    """Return a text such as ``trainer, rank 1: micro-batch in update_actor``.

    The phase is left out if it is empty, "step", or the same as the activity.
    """
    text = Text("{process}: {activity}", process=process, activity=activity)
    return text if phase in ("", activity, "step") else Text("{activity} in {phase}", activity=text, phase=phase)


@dataclasses.dataclass(frozen=True, slots=True)
class PathSegment:
    """A segment of a critical path: the process that the step waited for, and its activity.

    ``lane`` is an index into ``RunTimeline.lanes``; ``lane`` and ``rank`` are None if all ranks arrived together or
    nothing is recorded. ``kind`` is that of the span, ``iteration``, or ``gap`` for time that no span covers, which
    belongs to the waiting process. ``phase`` is that of the driver. ``late_seconds`` is the delay of a straggler after
    the other ranks.
    """

    start: float
    end: float
    seconds: float
    role: str
    replica: int | None
    rank: int | None
    kind: str
    what: str
    phase: str
    lane: int | None
    late_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Cause:
    """Cause of a slow step: its ``seconds`` on the critical path, and ``excess_seconds`` over the typical step.

    ``saves_seconds`` is how much shorter the step would be at most without the excess: then something else is waited
    for. It is None if that is unknown.
    """

    role: str
    replica: int | None
    rank: int | None
    what: str
    phase: str
    seconds: float
    excess_seconds: float
    kind: str = ""
    saves_seconds: float | None = None

    @property
    def label(self) -> str:
        """Return process, activity and phase for people: ``trainer, rank 1: micro-batch in update_actor``."""
        return doing(label(self.role, self.replica, self.rank), self.what, self.phase)


@dataclasses.dataclass(frozen=True)
class IdleReason:
    """Activity on the critical path while a role idled; ``seconds`` is the mean over the idle role's lanes."""

    role: str
    what: str
    phase: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class RoleUse:
    """Busy time of a role in a step, as the mean over its lanes; ``busy_share`` is 0 to 1."""

    role: str
    lanes: int
    busy_seconds: float
    idle_seconds: float
    busy_share: float
    idle_for: tuple[IdleReason, ...] = ()


@dataclasses.dataclass(frozen=True)
class Tail:
    """End of a rollout with fewer requests alive than a tenth of the step's maximum (``peak``).

    ``saves_seconds`` is the upper bound of the saving: the part of the tail on the critical path.
    """

    start: float
    end: float
    seconds: float
    peak: int
    saves_seconds: float


@dataclasses.dataclass(frozen=True)
class Part:
    """A named part of a duration, in seconds."""

    name: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Bound:
    """Lower bound of a step's duration if one thing were different; ``why`` justifies the bound.

    ``name`` is `NO_TAIL`, `BALANCE`, `FREE_SYNC`, `FREE_REWARDS` or `OVERLAP`.
    """

    name: str
    seconds: float
    saves_seconds: float
    why: str


@dataclasses.dataclass(frozen=True)
class Imbalance:
    """Imbalance between replicas or ranks (``of``).

    ``done`` has a number and seconds: for a replica, from the start of the step to its last answer; for a rank, its
    time in works without waiting for later ranks. ``seconds`` is by how much the last one finishes later than the mean.
    """

    of: str
    done: tuple[tuple[int, float], ...]
    seconds: float


@dataclasses.dataclass(frozen=True)
class TrainingStep:
    """One step of the trainer, with the driver's number.

    ``verdict`` is ``limited`` (``limited_by`` is then set), ``typical`` if nothing stands out, ``several`` if many
    parts were slower, or ``not known`` if data is missing; ``why`` explains it. ``also`` are further causes that made
    the step longer, the costliest first; ``beside`` are long phases that most steps lack, validation for example.
    ``mostly`` is the activity with most of the critical path, whose segments sum to ``seconds``. ``warm_up`` marks the
    first step of the run. ``poll_seconds`` is the driver's waiting after the last trajectory had ended.
    ``stale_versions`` is the mean age, in steps, of the weights with which trajectories began; None if the trainer does
    not log it. ``decode_steps`` are those of the replica with most of them, ``tokens`` those that all replicas
    generated. ``prefill_tokens`` are those of engine iterations that prefill, ``decode_tokens`` of those that only
    decode; None without an engine's file. ``pause_seconds`` is the part of the critical path in which rlpatch's own
    recorders opened or saved a window; no verdict counts it.
    """

    step: int
    start: float
    end: float
    seconds: float
    verdict: str
    why: str
    limited_by: Cause | None
    mostly: Cause | None
    critical_path: tuple[PathSegment, ...]
    roles: tuple[RoleUse, ...]
    tail_seconds: float
    tail: Tail | None
    sync_seconds: float
    sync: tuple[Part, ...]
    poll_seconds: float
    phases: tuple[Part, ...]
    imbalance: tuple[Imbalance, ...] = ()
    what_if: tuple[Bound, ...] = ()
    requests: int = 0
    stale_versions: float | None = None
    warm_up: bool = False
    missing: tuple[str, ...] = ()
    also: tuple[Cause, ...] = ()
    beside: tuple[Part, ...] = ()
    decode_steps: int = 0
    tokens: int = 0
    pause_seconds: float = 0.0
    prefill_tokens: int | None = None
    decode_tokens: int | None = None


def without_warm_up(steps: Sequence[TrainingStep]) -> Sequence[TrainingStep]:
    """Return the steps without the warm-up, unless there is no other."""
    return [step for step in steps if not step.warm_up] or steps


@dataclasses.dataclass(frozen=True)
class RunCause:
    """One of the costliest causes of a run, with its seconds over all steps, and advice.

    ``share`` (0 to 1) is that of the time of all steps, without the first one if there are others. ``steps`` are the
    numbers of the steps concerned. ``saves_seconds`` is what a fix saves at most, in all of them; None if that is
    unknown. Savings of different causes may overlap.
    """

    title: str
    seconds: float
    share: float
    steps: tuple[int, ...]
    advice: str
    cause: Cause | None = None
    saves_seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class Driver:
    """Quantity that changes with the length of the steps: its median in the first and the last third of them.

    ``correlation`` is the rank correlation over all steps.
    """

    name: str
    before: float
    after: float
    correlation: float


@dataclasses.dataclass(frozen=True)
class Trend:
    """Change of the steps over a run: median seconds of the first and the last third, without single slow steps.

    ``first`` and ``last`` are the first and last number of these steps. ``parts`` have the changes of activities in
    seconds, the largest first. If a part changes at once and for good, the two parts of the run are those before and
    from ``since`` on, which is the number of a step; else it is None.
    """

    first: tuple[int, int]
    last: tuple[int, int]
    before_seconds: float
    after_seconds: float
    parts: tuple[Part, ...]
    drivers: tuple[Driver, ...]
    since: int | None = None


@dataclasses.dataclass(frozen=True)
class ProposedWindow:
    """A window worth recording: ``command`` for the next run, ``trigger`` for the present run.

    ``what`` is ``typical decode``, ``slowest decode``, ``tail`` or ``slow micro-batch``. The window was found in
    ``step``, from ``start`` to ``end``.
    """

    what: str
    command: str
    trigger: str
    why: str
    step: int
    replica: int | None
    rank: int | None
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class RecordedWindow:
    """A window that a profiler recorded in this run, with its trace; ``lane`` is None if unknown."""

    trace: Path
    title: str
    start: float
    end: float
    lane: int | None
    report: str


@dataclasses.dataclass(frozen=True)
class Clock:
    """Clock of a machine: ``ahead_seconds`` is its wall clock's lead over the driver's.

    ``error_seconds`` is None if nothing bounds the error. ``source`` is ``same clock``, ``causality`` or ``wall
    clock``; ``contradicts`` tells that the bounds do not meet.
    """

    hosts: tuple[str, ...]
    ahead_seconds: float
    error_seconds: float | None
    source: str
    contradicts: bool = False


@dataclasses.dataclass(frozen=True)
class Run:
    """One run among the files of a folder: its number for ``--run``, and ``started`` in seconds since 1970."""

    number: int
    started: float
    seconds: float
    processes: int
    packages: tuple[str, ...]
    name: str = ""


class MemoryHolder(NamedTuple):
    """Memory that a process holds at a peak, in bytes; ``doing`` is its span then.

    ``lane`` is its index in ``RunTimeline.lanes``. ``asleep`` tells that its last sleep has not ended.
    """

    who: str
    lane: int
    bytes: int
    asleep: bool = False
    doing: str = ""


@dataclasses.dataclass(frozen=True)
class MemoryPeak:
    """Most memory in use at once in a step, in bytes, and who held it, the largest first.

    ``of`` is ``device`` or ``host``, ``place`` names it. ``step`` is None after the last step that ended. ``other`` is
    in use and belongs to no recorded process: contexts and libraries, shared memory, other programs. ``phase`` is the
    driver's, ``at`` in seconds.
    """

    of: str
    place: str
    step: int | None
    at: float
    phase: str
    used: int
    total: int
    holders: tuple[MemoryHolder, ...]
    other: int


@dataclasses.dataclass(frozen=True)
class MemoryChange:
    """Device memory given back by a process of a role in ``what``, in bytes: median and maximum over ``times``.

    ``kind`` is ``sleep`` (negative if memory is taken back), ``offload`` (less reserved at the end of a work than in
    it), or ``sync`` (needed beside what is in use at its start and its end; ``role`` is then empty).
    """

    kind: str
    role: str
    what: str
    times: int
    median: int
    most: int


@dataclasses.dataclass(frozen=True)
class MemoryGrowth:
    """Memory of a process that grows over the steps: bytes at the first and last of ``steps``, and for each step.

    ``of`` is ``device`` (allocated), ``cached`` (reserved on the device but not allocated) or ``host`` (private).
    ``full_in`` is in how many steps that alone fills what is free, None if unknown.
    """

    of: str
    who: str
    lane: int
    first: int
    last: int
    per_step: int
    steps: int
    full_in: int | None = None


@dataclasses.dataclass(frozen=True)
class MemoryExcess:
    """Step in which a process had more private memory than usual: ``bytes`` more than ``usual``, for ``seconds``.

    ``step`` is None after the last step that ended.
    """

    who: str
    lane: int
    step: int | None
    at: float
    seconds: float
    bytes: int
    usual: int
    doing: str


@dataclasses.dataclass(frozen=True)
class CacheUse:
    """Most KV-cache blocks in use at once in an engine, of ``total``; SGLang counts tokens."""

    who: str
    lane: int
    step: int | None
    used: int
    total: int


@dataclasses.dataclass(frozen=True)
class MemoryPlace:
    """A device or host: ``joined_by`` tells how its processes were found (``uuid``, ``index`` or ``host``).

    ``points`` are times in seconds, with the bytes in use and those that each of ``roles`` holds.
    """

    of: str
    place: str
    joined_by: str
    identity: str
    name: str
    total: int
    lanes: tuple[int, ...]
    roles: tuple[str, ...] = ()
    points: tuple[tuple[float, int, tuple[int, ...]], ...] = ()


@dataclasses.dataclass(frozen=True)
class RunMemory:
    """Memory of a run: its places, the peak of each in each step, and what changes it."""

    places: tuple[MemoryPlace, ...] = ()
    peaks: tuple[MemoryPeak, ...] = ()
    changes: tuple[MemoryChange, ...] = ()
    growth: tuple[MemoryGrowth, ...] = ()
    excesses: tuple[MemoryExcess, ...] = ()
    cache: tuple[CacheUse, ...] = ()

    def highest(self) -> tuple[MemoryPeak, ...]:
        """Return the highest peak of each device and host over all steps: devices first, the fullest first."""
        best: dict[tuple[str, str], MemoryPeak] = {}
        for peak in self.peaks:
            key = (peak.of, peak.place)
            best[key] = max(best.get(key, peak), peak, key=lambda candidate: candidate.used)
        return tuple(sorted(best.values(), key=lambda peak: (peak.of, -peak.used / max(peak.total, 1))))


class StepIterations(NamedTuple):
    """Iterations of one engine that start in one training step, as columns of equal length.

    ``lane`` is the engine's index in the lanes. ``start`` (from the first record of the run) and ``seconds`` are in
    seconds, ``context`` is the sum over the requests in tokens, ``longest`` the longest of them, ``rollout`` counts
    from 1 in the process. Columns that the file does not have are 0.
    """

    step: int
    lane: int
    start: tuple[float, ...]
    seconds: tuple[float, ...]
    requests: tuple[int, ...]
    tokens: tuple[int, ...]
    context: tuple[int, ...]
    longest: tuple[int, ...]
    rollout: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class RunTimeline:
    """All results for one run.

    ``requests`` is a step curve: a time, and the number of requests alive from then on. ``missing`` are texts on
    processes without a file and on what is unknown for that reason; ``notes`` are other remarks. ``path_seconds`` is
    the critical path of all steps but the first, summed by activity. ``trend`` is None if the steps stay about as long.
    ``iterations`` are those of the steps that were asked for by number.
    """

    run: Run
    seconds: float
    lanes: tuple[Lane, ...]
    steps: tuple[TrainingStep, ...]
    causes: tuple[RunCause, ...]
    windows: tuple[ProposedWindow, ...]
    recorded: tuple[RecordedWindow, ...] = ()
    requests: tuple[tuple[float, int], ...] = ()
    clocks: tuple[Clock, ...] = ()
    path_seconds: tuple[Cause, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    trend: Trend | None = None
    memory: RunMemory = RunMemory()
    iterations: tuple[StepIterations, ...] = ()
