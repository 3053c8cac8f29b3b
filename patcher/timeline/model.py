"""The timeline: the values that the table of steps, ``--json`` and the page are made of.

All times are seconds on one clock, from the first record of the run on; ``seconds`` is a length. Text comes from the
files of a run: it is bounded and holds nothing that a terminal obeys, and a page escapes it all the same.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

from patcher.messages import Text

TYPICAL, SEVERAL, NOT_KNOWN = Text("typical"), Text("several"), Text("not known")
"""What is said of a step that nothing limits; of any other it is what limited it."""

NO_TAIL, BALANCE = Text("no tail"), Text("perfect balance")
FREE_SYNC, OVERLAP = Text("free weight sync"), Text("overlap")
"""Names of the bounds of a step."""

ROLES = {
    "driver": Text("driver"),
    "trainer": Text("trainer"),
    "engine": Text("engine"),
    "server": Text("server"),
    "agent": Text("agent loop"),
    "reward": Text("reward"),
    "other": Text("other"),
    "unrecorded": Text("not recorded"),
}
"""What a process does in a run, in the order of the lanes, as people read it; ``unrecorded`` has no lane."""


class LaneSpan(NamedTuple):
    """Something with a start and an end in one process; ``end`` is None while it goes on.

    ``kind`` is that of the records (``phase``, ``call``, ``work``, ``unit``, ``wait``, ``sync``, ``sleep``, ``poll``,
    ``trajectory``, ``reward``, ``request``, ``serve``).
    """

    start: float
    end: float | None
    kind: str
    name: str


class IterationRun(NamedTuple):
    """Iterations of an engine head to head: how many, how many of them only decode, and the most requests in one."""

    start: float
    end: float
    iterations: int
    decodes: int
    requests: int


@dataclasses.dataclass(frozen=True)
class Lane:
    """One process in one role. ``number`` counts the lanes of a role; ``rank`` and ``replica`` are None if not known.

    ``spans`` are sorted by their start; where a run has too many, the short ones are in ``left_out``, which counts
    them. ``seen`` is when its first record began and its last one ended; ``ended`` says that it ended by itself.
    ``dropped`` counts records that the process could not keep.
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
        """Without what only a page draws: a long run has a million spans."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if name not in ("spans", "iterations", "left_out")}

    @property
    def label(self) -> str:
        """Its name for people: ``engine, replica 1, rank 0``."""
        return label(self.role, self.replica, self.rank)


def label(role: str, replica: int | None, rank: int | None) -> str:
    """Return who it is, for people: ``trainer, rank 1``."""
    name: str = ROLES.get(role, role)
    if replica is not None:
        name = Text("{who}, replica {number}", name, replica)
    return name if rank is None else Text("{who}, rank {number}", name, rank)


def doing(who: str, what: str, phase: str) -> Text:
    """Return who did what, and in which phase if that says more."""
    text = Text("{who}: {what}", who, what)
    return text if phase in ("", what, "step") else Text("{doing} in {phase}", text, phase)


@dataclasses.dataclass(frozen=True, slots=True)
class PathSegment:
    """A piece of a critical path: who the step waited for, and what that did, in which phase of the driver.

    ``lane`` is an index into ``RunTimeline.lanes``; None, as ``rank`` then is, where all ranks arrived together or
    where nothing is recorded. ``kind`` is that of the span, ``iteration``, or ``gap`` where no span
    covers it: it belongs to the process that waited then. ``late_seconds`` is by how much this rank came after the
    others.
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
    """The cause that limited a step: ``seconds`` of its critical path, ``excess_seconds`` above the typical step."""

    role: str
    replica: int | None
    rank: int | None
    what: str
    phase: str
    seconds: float
    excess_seconds: float
    kind: str = ""

    @property
    def label(self) -> str:
        """Return who did what in which phase, for people: ``trainer, rank 1: micro-batch in update_actor``."""
        return doing(label(self.role, self.replica, self.rank), self.what, self.phase)


@dataclasses.dataclass(frozen=True)
class IdleReason:
    """For whom a role waited: what was on the critical path meanwhile (``seconds``, the mean of its lanes)."""

    role: str
    what: str
    phase: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class RoleUse:
    """The busy time of a role in a step: seconds and share (0 to 1), the mean of its lanes."""

    role: str
    lanes: int
    busy_seconds: float
    idle_seconds: float
    busy_share: float
    idle_for: tuple[IdleReason, ...] = ()


@dataclasses.dataclass(frozen=True)
class Tail:
    """The end of a rollout with below a tenth of the step's most requests alive (``peak``).

    ``saves_seconds`` is at most gained by cutting it: what of it lies on the critical path.
    """

    start: float
    end: float
    seconds: float
    peak: int
    saves_seconds: float


@dataclasses.dataclass(frozen=True)
class Part:
    """A named part of something: seconds of it."""

    name: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Bound:
    """The least time of a step if something were different, and why that is a bound.

    ``name`` is `NO_TAIL`, `BALANCE`, `FREE_SYNC` or `OVERLAP`.
    """

    name: str
    seconds: float
    saves_seconds: float
    why: str


@dataclasses.dataclass(frozen=True)
class Imbalance:
    """The imbalance of the replicas or the ranks (``of``): when each was done, from the start of the step on.

    ``seconds`` is how much later the last one was done than the mean.
    """

    of: str
    done: tuple[tuple[int, float], ...]
    seconds: float


@dataclasses.dataclass(frozen=True)
class TrainingStep:
    """One step of the trainer, by the number that the driver gives it.

    ``verdict`` is ``limited`` (then ``limited_by`` is not None), ``typical`` where nothing stands out,
    ``several`` where it was slower in many parts, or ``not known`` where data is missing; ``why`` says more.
    ``mostly`` is what most of the critical path was spent on.
    The segments of ``critical_path`` sum to ``seconds``. ``warm_up``: the first step of the run.
    ``poll_seconds`` is waiting of the driver after the last trajectory had ended. ``stale_versions`` is how many steps
    older the weights are with which a trajectory began than those that are trained on it, on average, as the trainer
    logs it; None where it logs none.
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


@dataclasses.dataclass(frozen=True)
class RunCause:
    """A cause that cost the run most: seconds over all steps, its share, in which steps, and what to do next."""

    title: str
    seconds: float
    share: float
    steps: tuple[int, ...]
    advice: str
    cause: Cause | None = None


@dataclasses.dataclass(frozen=True)
class ProposedWindow:
    """A window that is worth recording: ``command`` for the next run, ``trigger`` while this one goes on.

    ``what`` is one of ``typical decode``, ``slowest decode``, ``tail``, ``slow micro-batch``; ``step`` is the step from
    which it comes, ``start`` and ``end`` where it lay then.
    """

    what: str
    command: str
    trigger: str
    why: str
    step: int | None = None
    replica: int | None = None
    rank: int | None = None
    start: float | None = None
    end: float | None = None


@dataclasses.dataclass(frozen=True)
class RecordedWindow:
    """A window of a profiler that was recorded in this run, with the trace that it left and the lane that it is of."""

    trace: Path
    title: str
    start: float
    end: float
    lane: int | None
    report: str = ""


@dataclasses.dataclass(frozen=True)
class Clock:
    """The clock of a machine: how far that on its wall is ahead of the driver's, in seconds, and how wrong that may be.

    ``error_seconds`` is None where nothing bounds it. ``source`` is ``same clock``, ``causality`` or
    ``wall clock``; ``contradicts`` says that its bounds do not meet.
    """

    hosts: tuple[str, ...]
    ahead_seconds: float
    error_seconds: float | None
    source: str
    contradicts: bool = False


@dataclasses.dataclass(frozen=True)
class Run:
    """One run among the files of a folder: its number for ``--run``, its start (seconds since the epoch), processes."""

    number: int
    started: float
    seconds: float
    processes: int
    packages: tuple[str, ...]
    name: str = ""


@dataclasses.dataclass(frozen=True)
class RunTimeline:
    """One run, joined.

    ``requests`` are points of a curve: from that time on, so many requests are alive. ``missing`` says which processes
    have no file, and what cannot be known then; ``notes`` what else a reader should know. ``path_seconds`` sums the
    critical path by what was done, over all steps but the first.
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
