"""The stages of a diagnosis with their part of the steps' critical paths, and what limits each."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from patcher.diagnosis import rollout, sync
from patcher.diagnosis.model import RunDiagnosis, StageDiagnosis
from patcher.diagnosis.training import stage_name
from patcher.messages import Text
from patcher.timeline import shares
from patcher.timeline.model import PathSegment, RunTimeline, TrainingStep, doing, label, without_warm_up
from patcher.timeline.step_records import GENERATING
from patcher.timeline.windows import STAGES

OTHER = "other"

GENERATING_ROLES = frozenset({"engine", "server", "agent", "balancer"})
"""Roles whose work is the rollout, unless it is a weight sync."""

NEIGHBOURS = 64
"""Calls that are looked at for a segment: those of as many ranks."""

OUTER = frozenset({"", "step"})
"""Phases of the driver that say nothing of what it does."""

LEAST_SHARE = 0.005
"""Share of the steps below which a stage without kernels is merged into ``other``."""


@dataclass
class _StageTime:
    """Seconds of the critical path in one stage, by process and activity; ``first`` is its begin in a step."""

    first: float
    waits_for: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def seconds(self) -> float:
        return sum(self.waits_for.values())

    @property
    def limited_by(self) -> str:
        """Text with the process and activity that have most of the seconds, and their share in percent."""
        most = max(self.waits_for, key=lambda activity: self.waits_for[activity])
        return Text(
            "{activity} ({share:.0f} %)", activity=most, share=100 * self.waits_for[most] / max(self.seconds, 1e-12)
        )


def with_steps(diagnosis: RunDiagnosis, timeline: RunTimeline) -> RunDiagnosis:
    """Add to each stage of a diagnosis its ``step_seconds`` on the critical paths of all steps, and what limits it.

    The number of steps and their length are set, too, and the ``step_seconds`` add up to that length. The stages are
    sorted by when they first come in a step, those on no critical path first. Stages of which nothing was recorded are
    added; the small ones of these, below 0.5 % of the steps, become ``other``. A recorded weight sync is scaled to all
    syncs. The first step is a warm-up and left out if there are others. Without steps the diagnosis comes back as it
    is.
    """
    steps = without_warm_up(timeline.steps)
    if not steps:
        return diagnosis
    total = sum(step.seconds for step in steps)
    diagnosed = {stage.stage: stage for stage in diagnosis.stages}
    synced = sum(step.sync_seconds for step in steps)
    stage_times = _merge_small_stages(
        _stage_times(steps, _call_times(timeline)), [*diagnosed, sync.STAGE], LEAST_SHARE * total
    )
    names = sorted({*diagnosed, *stage_times}, key=lambda name: stage_times[name].first if name in stage_times else 0.0)
    stages = []
    for name in names:
        stage_time = stage_times.get(name)
        seconds = synced if name == sync.STAGE else stage_time.seconds if stage_time else 0.0
        stage = diagnosed.get(name) or _stage_without_windows(name, seconds, len(steps))
        if name == sync.STAGE and stage.recorded:
            stage = sync.scaled(stage, synced, len(steps))
        if stage_time:
            stage = replace(stage, step_seconds=stage_time.seconds, limited_by=stage_time.limited_by)
        stages.append(stage)
    return replace(diagnosis, stages=tuple(stages), steps=len(steps), seconds=total)


def _stage_times(
    steps: Sequence[TrainingStep], call_times: Mapping[str, Sequence[tuple[float, float]]]
) -> dict[str, _StageTime]:
    """Return stage, such as rollout → its seconds on the critical paths of ``steps``, by process and activity.

    A phase of the driver counts for the stage that has most of it, else it is a stage by itself. What lies outside of
    phases counts by its own kind. ``call_times`` has stage → (start, end) of the calls of this training stage, in
    seconds, sorted.
    """
    stage_times = dict[str, _StageTime]()
    stage_of = _stage_of_each_phase([segment for step in steps for segment in step.critical_path], call_times)
    for step in steps:
        for segment in step.critical_path:
            name = stage_of.get(segment.phase) or _stage_of_segment(segment)
            stage_time = stage_times.setdefault(name, _StageTime(segment.start - step.start))
            stage_time.waits_for[_activity_text(segment)] += segment.seconds
    return stage_times


def _call_times(timeline: RunTimeline) -> Mapping[str, list[tuple[float, float]]]:
    """Return training stage → (start, end) in seconds of each of its calls on any trainer, sorted.

    Calls that have no end yet are left out.
    """
    call_times = defaultdict[str, list[tuple[float, float]]](list)
    for lane in timeline.lanes:
        for span in lane.spans:
            if span.kind == "work" and span.name in STAGES and span.end is not None:
                call_times[stage_name(*STAGES[span.name])].append((span.start, span.end))
    return {stage: sorted(times) for stage, times in call_times.items()}


def _stage_of_each_phase(
    path: Sequence[PathSegment], call_times: Mapping[str, Sequence[tuple[float, float]]]
) -> dict[str, str]:
    """Return phase of the driver → the stage with more than half of the phase's seconds on the critical path.

    A phase without such a stage is its own stage. Time outside of phases, and in the phase around the whole step, is
    left out (`OUTER`). ``call_times`` has training stage → (start, end) of its calls, in seconds, sorted.
    """
    by_phase = defaultdict[str, list[PathSegment]](list)
    for segment in path:
        if segment.phase not in OUTER:
            by_phase[segment.phase].append(segment)
    return {phase: _main_stage(segments, call_times) or phase for phase, segments in by_phase.items()}


def _main_stage(segments: Sequence[PathSegment], call_times: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Return the stage with more than half of the seconds of some path segments; "" if there is none.

    A segment counts for training for as long as calls overlap it. It also counts as a whole for the weight sync or the
    rollout if it is of one, so it may count twice. ``call_times`` has stage → (start, end) of the calls of this
    training stage, in seconds, sorted.
    """
    seconds = defaultdict[str, float](float)
    for stage, times in call_times.items():
        seconds[stage] = sum(_overlap(segment, times) for segment in segments)
    for segment in segments:
        if segment.kind == "sync" or segment.phase in shares.SYNC:
            seconds[sync.STAGE] += segment.seconds
        elif segment.role in GENERATING_ROLES:
            seconds[rollout.STAGE] += segment.seconds
    most = max(seconds, key=lambda stage: seconds[stage], default="")
    return most if seconds[most] > 0.5 * sum(segment.seconds for segment in segments) else ""


def _overlap(segment: PathSegment, times: Sequence[tuple[float, float]]) -> float:
    """Return for how many seconds a call overlaps a segment of the path, the most of any call; 0 if none does.

    ``times`` has (start, end) of the calls, sorted. Only the last 64 that begin before the segment's end are looked at:
    ranks make a call together.
    """
    until = bisect_left(times, (segment.end, 0.0))
    near = times[max(until - NEIGHBOURS, 0) : until]
    return max([0.0, *(min(segment.end, end) - max(segment.start, start) for start, end in near)])


def _stage_of_segment(segment: PathSegment) -> str:
    """Return the stage of a path segment that lies in no phase of the driver, by its activity; else ``other``."""
    if segment.kind == "sync":
        return sync.STAGE
    if segment.role in GENERATING_ROLES:
        return rollout.STAGE
    return stage_name(*STAGES[segment.what]) if segment.what in STAGES else OTHER


def _activity_text(segment: PathSegment) -> str:
    """Return who does what on a segment of the critical path, in words."""
    return doing(label(segment.role, segment.replica, segment.rank), segment.what, "")


def _merge_small_stages(
    stage_times: Mapping[str, _StageTime], keep: Iterable[str], least: float
) -> dict[str, _StageTime]:
    """Merge stages with less than ``least`` seconds on the critical path into ``other``, except those in ``keep``.

    ``other`` comes last, and is absent if nothing is in it. The arguments are not changed.
    """
    merged, other = dict[str, _StageTime](), _StageTime(float("inf"))
    for name, stage_time in stage_times.items():
        if name in keep or (name != OTHER and stage_time.seconds >= least):
            merged[name] = stage_time
        else:
            for activity, seconds in stage_time.waits_for.items():
                other.waits_for[activity] += seconds
    return {**merged, OTHER: other} if other.waits_for else merged


def _stage_without_windows(name: str, seconds: float, steps: int) -> StageDiagnosis:
    """Return the results for a stage that has not been diagnosed from windows: no classes, but the reason.

    ``name`` is that of the stage, ``seconds`` its part of the critical paths of ``steps`` steps. A rollout is such a
    stage if no engine wrote a timeline file.
    """
    why = Text("rlpatch cannot record windows of this stage")
    if name == sync.STAGE:
        why = Text("the weight sync was not recorded")
    elif name in (rollout.STAGE, *GENERATING):
        why = Text("no engine wrote a timeline file")
    return StageDiagnosis(
        stage=name, seconds=seconds, supported=False, why=why, turns=steps, iterations=0,
    )  # fmt: skip
