"""The diagnosis of a run: its stages, what to do, and what to record next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from patcher.diagnosis import loads
from patcher.diagnosis.actions import actions
from patcher.diagnosis.engines import Engine
from patcher.diagnosis.iterations import Iterations
from patcher.diagnosis.model import PlannedWindows, RunDiagnosis
from patcher.diagnosis.plan import FROM_START, choose_windows, load_condition
from patcher.diagnosis.rollout import STAGE, DiagnosedRollouts, diagnose_rollouts
from patcher.diagnosis.sync import diagnose_sync
from patcher.diagnosis.training import TrainerStage
from patcher.diagnosis.training_composition import diagnose_training
from patcher.diagnosis.whatif import what_ifs
from patcher.diagnosis.windows import stage_of
from patcher.messages import Text
from patcher.traces.model import RankProfile

SETTLED = 1
"""First iteration of a rollout that a window may contain: in the one before it the profiler warms up."""

ALIKE = 1.1
"""Rollouts are alike if the longest has at most this many times the iterations of the shortest."""


def diagnose(
    engines: Sequence[Engine],
    profiles: Iterable[RankProfile],
    trainers: Sequence[TrainerStage] = (),
    *,
    replays: bool = True,
) -> RunDiagnosis:
    """Find where a run's time goes, from iterations of engines, micro-batches of trainers, and profiles of windows.

    Windows are the iterations or micro-batches that a profiler recorded. Without any iteration, only the trainers'
    stages and the weight sync are in the result. With ``replays``, the time under other settings is estimated too,
    which may need seconds for thousands of requests. Windows to record are proposed only if the rollout's data do not
    suffice.
    """
    profiles = tuple(profiles)
    training, training_windows = diagnose_training(trainers, profiles)
    synced, sync_windows = diagnose_sync(profiles)
    stages, windows = (*training, *synced), (*training_windows, *sync_windows)
    if not any(len(engine.iterations) for engine in engines):
        return RunDiagnosis(stages=stages, actions=(), windows=windows)
    rollouts = diagnose_rollouts(engines, [profile for profile in profiles if stage_of(profile) == STAGE])
    stage = replace(rollouts.stage, between_seconds=sum(engine.between_seconds for engine in engines))
    replayed = tuple(what_ifs(rollouts.iterations)) if replays else ()
    return RunDiagnosis(
        stages=(stage, *stages),
        actions=actions(stage, rollouts.iterations, replayed),
        what_ifs=replayed,
        rollouts=max(engine.rollouts for engine in engines),
        windows=(*rollouts.windows, *windows),
        planned=None if stage.supported else planned_windows(engines, rollouts),
        planned_decodes=None if stage.supported else planned_windows(engines, rollouts, decode_only=True),
        notes=tuple(_caveats(engines, rollouts)),
        package=engines[0].package,
    )


def planned_windows(
    engines: Sequence[Engine], rollouts: DiagnosedRollouts | None = None, *, decode_only: bool = False
) -> PlannedWindows | None:
    """Return the windows to record in a later rollout; None if no engine has an iteration (or decode step) to record.

    They are chosen in the longest of the newest rollouts of the first engine that has any. With ``rollouts``, the
    results so far, they complete what is recorded: loads whose results are not supported come first. If rollouts differ
    in length, a worker starts to count when such a load begins, else with the rollout. It counts iterations from 0;
    with ``decode_only`` decode steps from 1.
    """
    for engine in engines:
        studied = engine.whole_rollouts
        if decode_only:
            studied = [rollout.chosen(rollout.prefill == 0) for rollout in studied]
        if any(map(len, studied)):
            return _plan_windows(studied, rollouts, decode_only=decode_only)
    return None


def _plan_windows(
    studied: Sequence[Iterations], rollouts: DiagnosedRollouts | None, *, decode_only: bool
) -> PlannedWindows:
    """Return the windows to record in a later rollout, chosen in the longest of the ``studied`` rollouts.

    ``studied``, at least one, hold only the iterations that windows count: all, which count from 0, or with
    ``decode_only`` the decode steps, which count from 1. ``rollouts`` has the results of what is recorded so far, None
    if that is nothing. Loads whose results are withheld, as the recorded iterations predict them badly, come first.
    """
    rollout = max(studied, key=lambda iterations: float(iterations.seconds.sum()))
    begins = FROM_START._replace(origin=-int(decode_only))
    if rollouts is None:
        windows = choose_windows(rollout, first=SETTLED)
    else:
        alike = max(map(len, studied)) <= ALIKE * min(map(len, studied))
        masks = loads.by_load(rollout)
        withheld = [load for load in rollouts.withheld if load in masks]
        if withheld and not alike:
            withheld = withheld[:1]
            condition = load_condition(rollout, withheld[0])
            begins = condition if condition.least or condition.most else begins
        windows = choose_windows(
            rollout,
            first=max(SETTLED, begins.origin),
            recorded=rollouts.recorded_features,
            taken=rollouts.recorded_numbers if alike and not decode_only else (),
            lacking=np.logical_or.reduce([masks[load] for load in withheld]) if withheld else None,
        )
    numbered = tuple((start - begins.origin, end - begins.origin) for start, end in windows)
    return PlannedWindows(numbered, begins.least, begins.most)


def _caveats(engines: Sequence[Engine], rollouts: DiagnosedRollouts) -> Iterator[str]:
    """Yield a text for each limit that the results have, such as iterations that were left out.

    The limits: a single rollout, several engines, recorded iterations that do not count, over 5 % of the time spent
    waiting, and no context lengths.
    """
    stage = rollouts.stage
    if all(int(engine.iterations.rollout.max(initial=0)) == 0 for engine in engines):
        yield Text("the run has only one rollout, so the times include the warm-up")
    replicas = sum(engine.rollouts > 0 for engine in engines)
    if replicas > 1:
        yield Text("{count} engines: the counts and times of rollouts are summed over all engines", replicas)
    joined = sum(window.joined for window in rollouts.windows)
    recorded = sum(window.iterations for window in rollouts.windows)
    if joined < recorded:
        yield Text(
            "the diagnosis leaves out {count} of {recorded} recorded iterations, because each of these includes the"
            " profiler's start, is the last iteration of a rollout, or is not in the timeline",
            count=recorded - joined,
            recorded=recorded,
        )
    if stage.waiting_seconds > 0.05 * max(stage.seconds, 1e-9):
        yield Text(
            "some iterations took over three times as long as predicted, {seconds:.1f} s more in total; rlpatch counts"
            " this time as waiting, not as work",
            stage.waiting_seconds,
        )
    if not np.any([engine.iterations.context.any() for engine in engines]):
        yield Text("the timeline has no context lengths, so attention is predicted from the number of requests alone")
