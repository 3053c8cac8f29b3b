"""The diagnosis of the rollouts of a run, from its timeline and the iterations that were recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from patcher.diagnosis import loads
from patcher.diagnosis.composition import (
    RecordedIterations,
    estimate_composition,
    fit,
    predict_from_other_windows,
    weighted,
)
from patcher.diagnosis.engines import Engine
from patcher.diagnosis.iterations import Floats, Iterations, concatenated
from patcher.diagnosis.loads import LOADS, LoadCheck
from patcher.diagnosis.model import ClassShare, DiagnosedWindow, LoadPart, StageDiagnosis
from patcher.diagnosis.windows import NAMES, Joined, disturbed_by_recording, join
from patcher.messages import Text
from patcher.traces.model import RankProfile

STAGE = "rollout"

FEWEST_RECORDED = 3
"""Recorded iterations below which nothing can be fitted."""

SLOWED = 1.5
"""In or beside a window, an iteration of this many times its predicted time was slowed down by the recording."""


@dataclass(frozen=True)
class DiagnosedRollouts:
    """The stage's diagnosis, its iterations without waits and recording cost, and the windows that were joined.

    ``recorded_features`` are those of the recorded iterations, and ``recorded_numbers`` count from 0 in each rollout.
    """

    stage: StageDiagnosis
    iterations: Iterations
    windows: tuple[DiagnosedWindow, ...]
    recorded_features: Floats
    recorded_numbers: tuple[int, ...]

    @property
    def withheld(self) -> tuple[str, ...]:
        """Names of the loads that were checked and are not supported, the one with the largest share first."""
        parts = [part for part in self.stage.by_load if part.error is not None and not part.supported]
        return tuple(part.load for part in sorted(parts, key=lambda part: -part.share))


def diagnose_rollouts(engines: Sequence[Engine], profiles: Iterable[RankProfile]) -> DiagnosedRollouts:
    """Find where the time of the rollouts of all ``engines`` goes, by the ``profiles`` of windows recorded in them.

    There must be one engine at least. An engine's first rollout is a warm-up and left out if the engine has others. The
    stage has no classes of work below three recorded iterations, or if these do not support the result.
    """
    profiles = tuple(profiles)
    joined = [join(engine, profiles) for engine in engines]
    all_iterations = concatenated([engine.iterations for engine in engines])
    recorded, places = _recorded_iterations(engines, joined, all_iterations)
    begins = np.searchsorted(all_iterations.rollout, all_iterations.rollout[places])
    numbers = tuple(int(place - begin) for place, begin in zip(places, begins, strict=True))
    disturbed = disturbed_by_recording(places, len(all_iterations))
    warm = np.concatenate([engine.iterations.after_warm_up for engine in engines])
    windows = tuple(window for part in joined for window in part.windows)
    if len(places) < FEWEST_RECORDED:
        stage, working = _without_classes(all_iterations.chosen(warm), len(places)), all_iterations.chosen(warm)
    else:
        stage, working = _diagnose(all_iterations, warm, recorded, places, disturbed)
    return DiagnosedRollouts(stage, working, windows, recorded.features, numbers)


def _diagnose(
    all_iterations: Iterations,
    counted: NDArray[np.bool_],
    recorded: RecordedIterations,
    places: NDArray[np.int64],
    disturbed: NDArray[np.bool_],
) -> tuple[StageDiagnosis, Iterations]:
    """Return (rollout stage with the shares of its classes, ``counted`` iterations with their seconds of work alone).

    A class is a kind of work; a stage that the recorded iterations do not support has none. ``all_iterations`` are
    those of all engines; ``places`` are the indices of the ``recorded`` ones. The masks tell which count, and which the
    recording may have slowed down (``disturbed``). Seconds of work lack those above the prediction, if a disturbed
    iteration takes 1.5 times as long as predicted, or any three times (it waited).
    """
    on_device = not recorded.stretched.all()
    features = all_iterations.features_beside_device if on_device else all_iterations.features
    recorded = replace(recorded, features=features[places])
    predicted = _predicted_seconds(recorded, features, all_iterations.seconds, counted & ~disturbed)
    cost = np.where(disturbed, loads.excess(all_iterations.seconds, predicted, SLOWED), 0.0)
    waits = loads.excess(all_iterations.seconds - cost, predicted, loads.WAIT)
    working = replace(all_iterations, seconds=all_iterations.seconds - cost - waits).chosen(counted)
    composition = estimate_composition(recorded, features[counted], working.seconds)
    if on_device:
        errors = _busy_errors(recorded, features[counted], working, places, counted)
    else:
        errors = loads.total_errors(predicted[counted], working)
    checks = loads.check_loads(errors, working, all_iterations.features[places])
    masks = loads.by_load(working)
    why = unsupported_reason(checks)
    total = float(working.seconds.sum())
    stage = StageDiagnosis(
        stage=STAGE, seconds=total, supported=not why, why=why,
        turns=len(np.unique(working.rollout)), iterations=len(working), recorded=int(counted[places].sum()),
        recording_seconds=float(cost[counted].sum()), waiting_seconds=float(waits[counted].sum()),
        classes=() if why else class_shares(composition.shares, composition.half_widths, total),
        by_load=tuple(
            load_part(
                check, masks[check.load], working.seconds, composition.by_iteration, composition.half_widths,
                check.relative,
            )
            for check in checks
        ),
    )  # fmt: skip
    return stage, working


def _predicted_seconds(
    recorded: RecordedIterations, features: Floats, seconds: Floats, undisturbed: NDArray[np.bool_]
) -> Floats:
    """Return the predicted seconds of each iteration without a profiler, from the ``recorded`` ones.

    ``features``, of shape (iterations, features), and ``seconds`` are those of all iterations in the timeline. The
    profiler made some classes longer, by a factor that the ``undisturbed`` iterations tell.
    """
    class_seconds = features @ fit(recorded)
    unstretched = class_seconds[:, ~recorded.stretched].sum(axis=1)
    stretched = class_seconds[:, recorded.stretched].sum(axis=1)
    remaining = np.maximum(seconds - unstretched, 0.0)
    predicted: Floats = unstretched + stretched * loads.median_ratio(remaining[undisturbed], stretched[undisturbed])
    return predicted


def _busy_errors(
    recorded: RecordedIterations,
    features: Floats,
    working: Iterations,
    places: NDArray[np.int64],
    counted: NDArray[np.bool_],
) -> dict[str, float]:
    """Return load → seconds by which the device's busy time in ``working`` is predicted too long (negative: too short).

    Loads are prefill, full, middle and tail. The error is the predicted busy time times the relative error of the
    ``recorded`` iterations of this load, each predicted from the other windows alone. If none was recorded, it is the
    busy time beyond the measured time. ``working`` and ``features`` have the iterations where ``counted`` is True;
    ``places`` has the recorded ones' indices in that mask.
    """
    busy_classes = ~recorded.stretched
    measured = recorded.class_seconds[:, busy_classes].sum(axis=1)
    predicted = predict_from_other_windows(recorded)[:, busy_classes].sum(axis=1)
    busy = (features @ fit(recorded))[:, busy_classes].sum(axis=1)
    errors = dict[str, float]()
    for load, mask in loads.by_load(working).items():
        of_load = np.zeros(len(counted), dtype=bool)
        of_load[np.flatnonzero(counted)[mask]] = True
        recorded_of_load = of_load[places]
        if recorded_of_load.any():
            ratio = predicted[recorded_of_load].sum() / max(measured[recorded_of_load].sum(), 1e-12)
            errors[load] = float(busy[mask].sum() * (ratio - 1))
        else:
            errors[load] = float(np.maximum(busy - working.seconds, 0.0)[mask].sum())
    return errors


def _recorded_iterations(
    engines: Sequence[Engine], joined: Sequence[Joined], all_iterations: Iterations
) -> tuple[RecordedIterations, NDArray[np.int64]]:
    """Return the recorded iterations of all engines, and their indices in ``all_iterations``.

    ``all_iterations`` are those of all engines, one engine after the other. ``joined`` has the recorded iterations of
    each engine. Their windows are numbered consecutively over all engines.
    """
    features = all_iterations.features
    parts, places = list[RecordedIterations](), list[NDArray[np.int64]]()
    before, windows = 0, 0
    for engine, part in zip(engines, joined, strict=True):
        recorded = part.recorded_iterations(features[before : before + len(engine.iterations)])
        parts.append(replace(recorded, window_numbers=recorded.window_numbers + windows))
        places.append(part.places + before)
        before += len(engine.iterations)
        windows += int(recorded.window_numbers.max(initial=-1)) + 1
    return (
        RecordedIterations(
            np.concatenate([part.features for part in parts]),
            np.concatenate([part.class_seconds for part in parts]),
            np.concatenate([part.window_numbers for part in parts]),
            np.all([part.stretched for part in parts], axis=0),
        ),
        np.concatenate(places),
    )


def _without_classes(iterations: Iterations, recorded: int) -> StageDiagnosis:
    """Return the rollout's diagnosis without classes of work, because too few iterations are ``recorded`` (a number).

    It has the share and the mean length of each load's iterations (prefill, full, middle, tail), and the reason.
    """
    why = Text("recorded iterations: {count}; at least {least} are needed", count=recorded, least=FEWEST_RECORDED)
    if not recorded:
        why = Text("no iteration was recorded")
    total = float(iterations.seconds.sum())
    parts = []
    for load, mask in loads.by_load(iterations).items():
        seconds, count = float(iterations.seconds[mask].sum()), int(mask.sum())
        parts.append(
            LoadPart(load, seconds / max(total, 1e-12), count, 1e3 * seconds / count, (), None, supported=False)
        )
    return StageDiagnosis(
        stage=STAGE, seconds=total, supported=False, why=why, turns=len(np.unique(iterations.rollout)),
        iterations=len(iterations), recorded=recorded, by_load=tuple(parts),
    )  # fmt: skip


def class_shares(shares: Floats, half_widths: Floats, seconds: float) -> tuple[ClassShare, ...]:
    """Return each class with a share above 0, its interval's half-width and its part of ``seconds``, largest first.

    A class is a kind of work, such as collectives. ``shares`` and ``half_widths``, from 0 to 1, have a value for each
    class, in the order of `NAMES`.
    """
    rows = [
        ClassShare(name, float(share), float(half_width), float(share) * seconds)
        for name, share, half_width in zip(NAMES, shares, half_widths, strict=True)
        if share > 0
    ]
    return tuple(sorted(rows, key=lambda row: -row.share))


def load_part(
    load_check: LoadCheck,
    mask: NDArray[np.bool_],
    seconds: Floats,
    shares: Floats,
    half_widths: Floats,
    error: float | None,
) -> LoadPart:
    """Return the results for one load: its share, the mean ms of its iterations, and its classes if they are supported.

    A load is prefill, full, middle or tail, or the length of a micro-batch. ``mask`` selects it, with at least one
    iteration or micro-batch. ``seconds`` and ``shares`` of each class, of shape (iterations, classes), are those of
    all; ``error`` is the relative error of the load's predicted time.
    """
    of_load, count = float(seconds[mask].sum()), int(mask.sum())
    classes: tuple[ClassShare, ...] = ()
    if load_check.supported:
        classes = class_shares(weighted(shares[mask], seconds[mask]), half_widths, of_load)
    return LoadPart(
        load=load_check.load, share=of_load / max(float(seconds.sum()), 1e-12), iterations=count,
        ms_each=1e3 * of_load / count, classes=classes, error=error, supported=load_check.supported,
        why="" if load_check.supported else reason(load_check),
    )  # fmt: skip


def reason(load_check: LoadCheck) -> str:
    """Return what is wrong with the predicted time of a load, such as prefill or the tail.

    Either it cannot be predicted, as no recorded iteration is like those of the load, or it differs from the measured
    time by so many percent. ``load_check`` must be one that failed.
    """
    if not load_check.is_known:
        return Text(
            "the time at this load level cannot be predicted: the recorded iterations differ too much from those at"
            " this level"
        )
    return Text(
        "the time predicted from what was recorded differs from the measured time by {error:+.0f} %",
        100 * load_check.relative,
    )


def unsupported_reason(checks: Sequence[LoadCheck]) -> str:
    """Return why the recorded iterations do not support all loads: a text on the worst load; "" if they do.

    The worst load is one that is too unlike what was recorded, else the one with the largest error.
    """
    failed = [load_check for load_check in checks if not load_check.supported]
    if not failed:
        return ""
    worst = max(failed, key=lambda load_check: (not load_check.is_known, abs(load_check.of_whole)))
    return Text("{load}: {reason}", load=LOADS[worst.load], reason=reason(worst))
