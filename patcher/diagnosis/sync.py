"""The diagnosis of the weight sync, from the recording of a single sync."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from patcher.diagnosis.composition import ONE_WINDOW_HALF_WIDTH
from patcher.diagnosis.loads import WAIT
from patcher.diagnosis.model import DiagnosedWindow, StageDiagnosis
from patcher.diagnosis.rollout import class_shares
from patcher.diagnosis.windows import NAMES, diagnosed_window, stage_of
from patcher.messages import Text
from patcher.traces.model import RankProfile

STAGE = "weight-sync"


def diagnose_sync(profiles: Sequence[RankProfile]) -> tuple[tuple[StageDiagnosis, ...], tuple[DiagnosedWindow, ...]]:
    """Return the weight sync as a stage, by one recorded sync, and all windows in which syncs were recorded.

    A trainer's recording is preferred. The stage is not supported if its trace has no kernels. Both are () if no
    profile has a recorded weight sync.
    """
    of_sync = [profile for profile in profiles if stage_of(profile) == STAGE and profile.units]
    windows = tuple(diagnosed_window(profile, len(profile.units)) for profile in of_sync)
    if not of_sync:
        return (), ()
    chosen = max(of_sync, key=lambda profile: profile.metadata is not None and profile.metadata.role == "trainer")
    seconds = np.array([sum(unit.classes.get(name, 0) for unit in chosen.units) / 1e9 for name in NAMES])
    total = float(seconds.sum())
    half_widths = np.full(len(NAMES), ONE_WINDOW_HALF_WIDTH)
    stage = StageDiagnosis(
        stage=STAGE, seconds=total, supported=total > 0,
        why="" if total else Text("the trace of the weight sync has no kernels"),
        turns=1, iterations=len(chosen.units), recorded=len(chosen.units),
        classes=class_shares(seconds / max(total, 1e-12), half_widths, total),
    )  # fmt: skip
    return (stage,), windows


def scaled(stage: StageDiagnosis, seconds: float, steps: int) -> StageDiagnosis:
    """Scale the ``stage`` of one recorded weight sync to all syncs of ``steps`` steps, which take ``seconds`` together.

    It becomes unsupported, without classes of work, if the recorded sync took over three times the average.
    """
    usual = seconds / max(steps, 1)
    if usual and stage.seconds > WAIT * usual:
        times = stage.seconds / usual
        why = Text("the recorded weight sync took {times:.0f} times as long as the average weight sync", times)
        return replace(stage, seconds=seconds, turns=steps, supported=False, why=why, classes=())
    classes = tuple(replace(part, seconds=part.share * seconds) for part in stage.classes)
    return replace(stage, seconds=seconds, turns=steps, classes=classes)
