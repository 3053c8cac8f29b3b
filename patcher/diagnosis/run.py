"""The diagnosis of a run: its stages, what to do, and what to record next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from patcher.diagnosis import loads
from patcher.diagnosis.actions import actions
from patcher.diagnosis.engines import Engine
from patcher.diagnosis.iterations import Iterations
from patcher.diagnosis.model import PlannedWindows, RunDiagnosis
from patcher.diagnosis.plan import choose_windows, state
from patcher.diagnosis.rollout import DiagnosedRollouts, diagnose_rollouts
from patcher.messages import Text
from patcher.traces.model import RankProfile

SETTLED = 1
"""The first iteration of a rollout that a window may begin with: the one before it warms the profiler up."""

ALIKE = 1.1
"""Rollouts are alike if the longest has at most this many times the iterations of the shortest."""


def diagnose(engines: Sequence[Engine], profiles: Iterable[RankProfile]) -> RunDiagnosis:
    """Diagnose a run from the iterations of its engines, and the profiles of the windows recorded in it."""
    rollouts = diagnose_rollouts(engines, profiles)
    stage = rollouts.stage
    return RunDiagnosis(
        stages=(stage,),
        actions=actions(stage, rollouts.iterations),
        windows=rollouts.windows,
        planned=None if stage.supported else planned_windows(engines, rollouts),
        planned_decodes=None if stage.supported else planned_windows(engines, rollouts, decode_only=True),
        notes=tuple(_notes(engines, rollouts)),
        package=engines[0].package,
    )


def planned_windows(
    engines: Sequence[Engine], rollouts: DiagnosedRollouts | None = None, *, decode_only: bool = False
) -> PlannedWindows | None:
    """Return the windows to record in a later rollout; None if there is no iteration.

    They are chosen in the newest rollouts of the first engine that has any, in the one that took longest. What
    ``rollouts`` have of them already counts, and loads that these do not support come first. Where rollouts differ in
    length, the numbers of one mean little in the next, so the windows for such a load count from where it begins. With
    ``decode_only`` the numbers are those of decode steps, which count from 1; else of iterations, from 0.
    """
    for engine in engines:
        studied = [_countable(rollout, decode_only=decode_only) for rollout in engine.whole_rollouts]
        if not any(map(len, studied)):
            continue
        rollout = max(studied, key=lambda iterations: float(iterations.seconds.sum()))
        masks = loads.by_load(rollout)
        withheld = [load for load in (rollouts.withheld if rollouts else ()) if load in masks]
        alike = max(map(len, studied)) <= ALIKE * min(map(len, studied))
        least, most, origin = (0, 0, 0) if alike or not withheld else state(rollout, withheld[0])
        wanted = withheld if alike else withheld[:1]
        windows = choose_windows(
            rollout,
            first=max(SETTLED, origin),
            recorded=rollouts.recorded_features if rollouts else None,
            taken=rollouts.recorded_numbers if rollouts and alike and not decode_only else (),
            lacking=np.logical_or.reduce([masks[load] for load in wanted]) if wanted else None,
        )
        before = origin if least or most else -int(decode_only)
        return PlannedWindows(tuple((start - before, end - before) for start, end in windows), least, most)
    return None


def _countable(rollout: Iterations, *, decode_only: bool) -> Iterations:
    """Return the iterations of a rollout that windows count: all, or those that only decode."""
    return rollout.chosen(rollout.prefill == 0) if decode_only else rollout


def _notes(engines: Sequence[Engine], rollouts: DiagnosedRollouts) -> Iterator[str]:
    """Yield what the reader has to know of the numbers."""
    stage = rollouts.stage
    if all(int(engine.iterations.rollout.max(initial=0)) == 0 for engine in engines):
        yield Text("the run has one rollout, so its warm-up is included")
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
