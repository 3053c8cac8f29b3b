"""The diagnosis of a run: its stages, what to do, and what to record next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from patcher.diagnosis.actions import actions
from patcher.diagnosis.engines import Engine
from patcher.diagnosis.model import RunDiagnosis
from patcher.diagnosis.plan import as_option, choose_windows
from patcher.diagnosis.rollout import STAGE, DiagnosedRollouts, diagnose_rollouts
from patcher.diagnosis.sync import diagnose_sync
from patcher.diagnosis.training import TrainerStage
from patcher.diagnosis.training_composition import diagnose_training
from patcher.diagnosis.whatif import what_ifs
from patcher.diagnosis.windows import stage_of
from patcher.messages import Text
from patcher.traces.model import RankProfile

SETTLED = 1
"""The first iteration of a rollout that a window may begin with: the one before it warms the profiler up."""


def diagnose(
    engines: Sequence[Engine], profiles: Iterable[RankProfile], trainers: Sequence[TrainerStage] = ()
) -> RunDiagnosis:
    """Diagnose a run from its engines' iterations, its trainers' micro-batches, and profiles of recorded windows."""
    profiles = tuple(profiles)
    training, (synced, sync_windows) = diagnose_training(trainers, profiles), diagnose_sync(profiles)
    stages, windows = (*training.stages, *synced), (*training.windows, *sync_windows)
    if not any(len(engine.iterations) for engine in engines):
        return RunDiagnosis(stages=stages, actions=(), windows=windows)
    rollouts = diagnose_rollouts(engines, [profile for profile in profiles if stage_of(profile) == STAGE])
    stage = replace(rollouts.stage, between_seconds=sum(engine.between_seconds for engine in engines))
    replayed = tuple(what_ifs(rollouts.iterations))
    return RunDiagnosis(
        stages=(stage, *stages),
        actions=actions(stage, rollouts.iterations, replayed),
        what_ifs=replayed,
        rollouts=max(engine.rollouts for engine in engines),
        windows=(*rollouts.windows, *windows),
        next_windows="" if stage.supported else next_windows(engines),
        notes=tuple(_notes(engines, rollouts)),
        package=engines[0].package,
    )


def next_windows(engines: Sequence[Engine], *, decode_only: bool = False) -> str:
    """Return the windows to record in a later rollout, as typed; "" if there is no iteration.

    They are chosen in the newest whole rollout of the first engine that has one. With ``decode_only`` the numbers are
    those of decode steps, which count from 1; else of iterations, from 0.
    """
    for engine in engines:
        rollout = engine.newest_whole_rollout
        if decode_only:
            rollout = rollout.chosen(rollout.prefill == 0)
        if len(rollout):
            first = int(decode_only)
            return as_option([(start + first, end + first) for start, end in choose_windows(rollout, first=SETTLED)])
    return ""


def _notes(engines: Sequence[Engine], rollouts: DiagnosedRollouts) -> Iterator[str]:
    """Yield what the reader has to know of the numbers."""
    stage = rollouts.stage
    if all(int(engine.iterations.rollout.max(initial=0)) == 0 for engine in engines):
        yield Text("the run has one rollout, so its warm-up is included")
    replicas = sum(engine.rollouts > 0 for engine in engines)
    if replicas > 1:
        yield Text("{count} engines: rollouts and seconds are those of all of them together", replicas)
    joined = sum(window.joined for window in rollouts.windows)
    recorded = sum(window.iterations for window in rollouts.windows)
    if joined < recorded:
        yield Text(
            "{count} of {recorded} recorded iterations were left out: the profiler's start, or not in the timeline",
            recorded - joined,
            recorded,
        )
    if stage.waiting_seconds > 0.05 * max(stage.seconds, 1e-9):
        yield Text(
            "{seconds:.1f} s lie in iterations that took over three times as long as recorded ones like them",
            stage.waiting_seconds,
        )
    if not np.any([engine.iterations.context.any() for engine in engines]):
        yield Text("the timeline has no context lengths, so attention is predicted from the number of requests alone")
