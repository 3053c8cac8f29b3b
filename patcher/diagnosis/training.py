"""The training stages of a run: their calls and micro-batches, from the timeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from patcher.diagnosis.iterations import Floats
from patcher.timeline.files import KeptSpan, Reader
from patcher.timeline.intervals import ENDLESS, covered, end_of
from patcher.timeline.runs import Process
from patcher.timeline.windows import STAGES

MICRO_BATCH = "micro-batch"

LAST_S = 0.001
"""Seconds by which the last micro-batch of a call may end after it, because both are rounded."""


SIZED, FEWEST = 0.5, 4
"""Rank correlation from which on a size predicts a length, and the fewest micro-batches for it."""

LENGTH, NEXT_LENGTH = 2, 1
"""Micro-batches of a window at first, and once others were recorded.

Two equal ones of a real update differed by 1.9 points in some class, two pairs by 1.1. Of six or eight recorded ones,
the intervals were equally wide.
"""

SLOWER = 1.05
"""Length of a rank's call in relation to the median from which on that rank is recorded instead of the first."""


@dataclass(frozen=True)
class MicroBatches:
    """Micro-batches of one stage in one process, in order, an array for each property.

    ``start`` is in seconds since 1970. ``seconds`` are without the pauses of rlpatch's own recorders. ``size`` are the
    tokens, with or without padding, nan where the timeline has none. ``length`` are the seconds, or those of CPU time
    where the sizes explain these better: on a host that others use. ``call`` counts the calls of the stage from 0, and
    ``number`` the micro-batches of a call.
    """

    start: Floats
    seconds: Floats
    size: Floats
    length: Floats
    call: NDArray[np.int64]
    number: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def sized(self) -> bool:
        """Whether larger micro-batches take longer, so that a size predicts a length."""
        return correlation(self.size, self.length) >= SIZED

    def chosen(self, selection: NDArray[np.bool_]) -> MicroBatches:
        """Return the micro-batches where the mask ``selection`` is True."""
        return MicroBatches(*(getattr(self, field.name)[selection] for field in fields(self)))


@dataclass(frozen=True)
class TrainerStage:
    """One stage in one process: the stage and the role by which a window of it is requested, and where it runs.

    ``call_seconds`` has the length of each call, without the pauses of rlpatch's own recorders. ``package`` is that of
    the trainer.
    """

    stage: str
    role: str
    host: str
    pid: int
    rank: int | None
    package: str
    micro_batches: MicroBatches
    call_seconds: Floats

    @property
    def name(self) -> str:
        """Name of the stage in a diagnosis, by which the reference differs from the actor."""
        return stage_name(self.stage, self.role)

    @property
    def newest_call(self) -> MicroBatches:
        """Micro-batches of the last call."""
        every = self.micro_batches
        return every.chosen(every.call == len(self.call_seconds) - 1)


def stage_name(stage: str, role: str) -> str:
    """Return the name of a stage in a diagnosis, as in ``compute-ref-log-prob``."""
    return "compute-ref-log-prob" if role == "ref" else stage


def trainer_stages(processes: Sequence[Process]) -> list[TrainerStage]:
    """Read the training stages of each trainer among the processes of a run."""
    trainers = [process for process in processes if "trainer" in process.roles]
    return [stage for process in trainers for stage in _read_stages(process)]


def _read_stages(process: Process) -> Iterator[TrainerStage]:
    """Read a trainer process's timeline, and yield each of its training stages with calls and micro-batches.

    Calls have lengths in seconds, without the pauses for recording. Micro-batches also have begins, in seconds of the
    host's wall clock.
    """
    monotonic, wall = process.head.clocks
    reader = Reader(process.paths, 0, wall - monotonic)
    works, units, pauses = list[KeptSpan](), list[KeptSpan](), list[KeptSpan]()
    while reader.read_block():
        works += [span for span in reader.spans if span.kind == "work" and span.name in STAGES]
        units += [span for span in reader.spans if (span.kind, span.name) == ("unit", MICRO_BATCH)]
        pauses += [span for span in reader.spans if span.kind == "pause"]
        reader.spans.clear()
        reader.iterations.forget(len(reader.iterations))
    head, paused = process.head, _Paused(pauses)
    units.sort(key=lambda span: span.start)
    by_stage = dict[tuple[str, str], list[KeptSpan]]()
    for work in sorted(works, key=lambda span: span.start):
        by_stage.setdefault(STAGES[work.name], []).append(work)
    for (stage, role), calls in by_stage.items():
        seconds = np.array([paused.seconds_without_pauses(call) for call in calls])
        yield TrainerStage(
            stage, role, head.host, head.pid, process.rank, head.package.partition(" ")[0],
            _micro_batches_of_stage(units, calls, paused), seconds,
        )  # fmt: skip


class _Paused:
    """Times in which rlpatch's own recorders held a process back."""

    def __init__(self, pauses: Sequence[KeptSpan]) -> None:
        merged = covered(pauses, -ENDLESS, ENDLESS)
        self.times = np.array([time for pause in merged for time in pause], dtype=np.float64)
        lengths = np.array([length for pause in merged for length in (0, pause.end - pause.start)], dtype=np.float64)
        self.until = np.cumsum(lengths)

    def seconds_without_pauses(self, span: KeptSpan) -> float:
        """Return the length of ``span`` in seconds, without pauses of rlpatch's own recorders."""
        start, end = span.start, end_of(span)
        if not len(self.times):
            return (end - start) / 1e6
        before, after = map(float, np.interp(np.array([start, end], dtype=np.float64), self.times, self.until))
        return (end - start - (after - before)) / 1e6


def _micro_batches_of_stage(units: Sequence[KeptSpan], calls: Sequence[KeptSpan], paused: _Paused) -> MicroBatches:
    """Return those of ``units``, micro-batches of all stages, that lie within the ``calls`` of one stage.

    Both are sorted by start, in microseconds; a micro-batch may end up to 1 ms after its call. ``paused`` has the
    pauses to subtract from their lengths. Micro-batches have two sizes (tokens with and without padding) and two
    lengths (seconds and CPU seconds, both without pauses): the pair with the highest rank correlation is kept.
    """
    starts = np.array([call.start for call in calls], dtype=np.float64)
    ends = np.array([end_of(call) for call in calls], dtype=np.float64)
    begins = np.array([unit.start for unit in units], dtype=np.float64)
    until = np.array([end_of(unit) for unit in units], dtype=np.float64)
    of_call = np.searchsorted(starts, begins, side="right") - 1
    inside = (of_call >= 0) & (until <= ends[of_call] + 1e6 * LAST_S)
    call = of_call[inside]
    within = [unit for unit, chosen in zip(units, inside, strict=True) if chosen]
    seconds = np.array([paused.seconds_without_pauses(unit) for unit in within], dtype=np.float64)
    tokens, padded, cpu = (
        (
            np.array([np.nan if value is None else value for value in column], dtype=np.float64)
            for column in zip(*((unit.amount, *unit.more, None, None)[:3] for unit in within), strict=True)
        )
        if within
        else (seconds, seconds, seconds)
    )
    paused_seconds = (until - begins)[inside] / 1e6 - seconds
    working = np.maximum(cpu / 1e6 - paused_seconds, 0.0)  # a recorder that starts or saves keeps the CPU busy
    pairs = [(size, length) for length in (seconds, working) for size in (tokens, padded)]
    size, length = max(pairs, key=lambda pair: correlation(*pair))
    return MicroBatches(
        begins[inside] / 1e6,
        seconds,
        size,
        length,
        call.astype(np.int64),
        (np.arange(len(call)) - np.searchsorted(call, call)).astype(np.int64),
    )


def correlation(sizes: Floats, seconds: Floats) -> float:
    """Return the rank correlation of sizes and seconds, -1 to 1.

    It is -1 for fewer than four values, for any that is not finite, and if sizes or seconds do not vary.
    """
    finite = len(sizes) >= FEWEST and bool(np.isfinite(sizes).all() and np.isfinite(seconds).all())
    if not finite or np.ptp(sizes) == 0 or np.ptp(seconds) == 0:
        return -1.0
    first, second = (np.searchsorted(np.sort(column), column).astype(np.float64) for column in (sizes, seconds))
    first, second = first - first.mean(), second - second.mean()
    return float((first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum()))


def choose_micro_batches(call: MicroBatches, *, sized: bool, length: int = LENGTH) -> list[tuple[int, int]]:
    """Choose the micro-batches of a call to record: half-open ranges around the shortest and the longest; [] if empty.

    A range has ``length`` micro-batches. Where the two would touch, a single one has all between the two, and twice as
    many if there is room. Before each range, one is left in which the profiler warms up. So the first of the call is
    chosen only if it is alone. Short and long are by tokens if ``sized``, else by duration.
    """
    if not len(call):
        return []
    if len(call) == 1:
        return [(0, 1)]
    candidates = call.chosen(call.number > 0)
    order = np.lexsort((candidates.length, candidates.size)) if sized else np.argsort(candidates.length)
    first, last = sorted((int(candidates.number[order[0]]), int(candidates.number[order[-1]])))
    if last - first > length + 1:
        return [(first, first + length), (last + 1 - length, last + 1)]
    end = min(max(last + 1, first + 2 * length), len(call))
    return [(max(min(first, end - 2 * length), 1), end)]


def slowest_rank(stages: Sequence[TrainerStage]) -> int | None:
    """Return the slowest rank of the last call if it took over 5 % longer than the median rank, else the lowest rank.

    ``stages`` has one stage as each process ran it, at least one; a rank may be None (unknown).
    """
    lengths = {stage.rank: float(stage.call_seconds[-1]) for stage in stages}
    ranks = sorted(lengths, key=lambda rank: rank or 0)
    slowest = max(ranks, key=lambda rank: lengths[rank])
    usual = float(np.median([*lengths.values()]))
    return slowest if lengths[slowest] > SLOWER * usual else ranks[0]


def next_micro_batches(stage: TrainerStage, *, again: bool = False) -> list[tuple[int, int]]:
    """Choose the micro-batches to record in a later call of a stage, by its last call: half-open ranges, or [].

    ``again`` tells that some were recorded before: then half as many are enough.
    """
    length = NEXT_LENGTH if again else LENGTH
    return choose_micro_batches(stage.newest_call, sized=stage.micro_batches.sized, length=length)
