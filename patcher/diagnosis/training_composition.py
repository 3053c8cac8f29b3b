"""The diagnosis of the training stages: classes of all micro-batches, predicted from the few that were recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from patcher.diagnosis import loads
from patcher.diagnosis.composition import weighted
from patcher.diagnosis.expected import expected_seconds
from patcher.diagnosis.interpolation import Interpolation
from patcher.diagnosis.iterations import Floats
from patcher.diagnosis.model import CLASSES, ClassShare, DiagnosedWindow, PlannedWindows, StageDiagnosis
from patcher.diagnosis.rollout import class_shares, load_part, unsupported_reason
from patcher.diagnosis.training import MicroBatches, TrainerStage, next_micro_batches
from patcher.diagnosis.windows import FARTHEST_S, Joined, disturbed_by_recording, join_units, recorded_by
from patcher.messages import CommandLine, Text
from patcher.traces.model import RankProfile

ALIKE = 8
"""Micro-batches of about the same size among which their seconds are compared."""

MOST_HALF_WIDTH = 0.15
"""Half-width of an interval above which a share says too little for the stage to be supported."""


def diagnose_training(
    stages: Sequence[TrainerStage], profiles: Iterable[RankProfile]
) -> tuple[tuple[StageDiagnosis, ...], tuple[DiagnosedWindow, ...]]:
    """Find where the time of each training stage goes, over all its processes, by ``profiles`` of recorded windows.

    Return the stages, and the windows of them that were recorded. A training stage is a method of the trainer, such as
    update-policy. A profile of another process or stage is ignored.
    """
    profiles = tuple(profiles)
    by_name = dict[str, list[TrainerStage]]()
    for stage in stages:
        by_name.setdefault(stage.name, []).append(stage)
    diagnosed, windows = list[StageDiagnosis](), list[DiagnosedWindow]()
    for of_name in by_name.values():
        joined = [join(stage, profiles) for stage in of_name]
        windows += [window for part in joined for window in part.windows]
        diagnosed.append(_diagnose_stage(of_name, joined))
    return tuple(diagnosed), tuple(windows)


def join(stage: TrainerStage, profiles: Iterable[RankProfile]) -> Joined:
    """Return the recorded micro-batches of ``profiles``, each with its index in ``stage.micro_batches``.

    They are found by number and start. Profiles of other stages or processes, and micro-batches that include the
    profiler's start, are left out.
    """
    stage_profiles = [profile for profile in profiles if _was_recorded_in(profile, stage)]
    return join_units(
        stage_profiles,
        lambda unit, entry: _nearest_micro_batch(stage.micro_batches, unit.number, entry.get("begin")),
        longest=sys.maxsize,
    )


def _was_recorded_in(profile: RankProfile, stage: TrainerStage) -> bool:
    """Tell whether a profile was recorded by the process of ``stage``, in that stage and role, by its metadata.

    A stage without a role matches any role. False without metadata.
    """
    metadata = profile.metadata
    if metadata is None or metadata.stage != stage.stage or not recorded_by(profile, stage.pid, stage.host):
        return False
    return not stage.role or metadata.role == stage.role


def _nearest_micro_batch(micro_batches: MicroBatches, number: int, begin: object) -> int | None:
    """Return the index of the micro-batch with ``number`` in its call that began nearest to ``begin`` (ns since 1970).

    None if ``begin`` is no integer, or if none began within 0.5 s of it.
    """
    if type(begin) is not int:
        return None
    away = np.where(micro_batches.number == number, np.abs(micro_batches.start - begin / 1e9), np.inf)
    nearest = int(np.argmin(away)) if len(away) else 0
    return nearest if len(away) and away[nearest] <= FARTHEST_S else None


def _diagnose_stage(stages: Sequence[TrainerStage], joined: Sequence[Joined]) -> StageDiagnosis:
    """Find where the time of one training stage goes, from all its processes; its seconds are the mean over these.

    ``stages`` has the stage in each process, at least one, ``joined`` the recorded micro-batches there. The first call
    is a warm-up and left out if there are others. Without a recorded micro-batch the stage has no classes of work, but
    the reason.
    """
    processes, calls = len(stages), max(len(stage.call_seconds) for stage in stages)
    first = int(calls > 1)
    of_calls = sum(float(stage.call_seconds[first:].sum()) for stage in stages) / processes
    every = [stage.micro_batches for stage in stages]
    counted = np.concatenate([part.call >= first for part in every])
    measured, sizes, length = (
        np.concatenate([getattr(part, name) for part in every]) for name in ("seconds", "size", "length")
    )
    inside = float(measured[counted].sum()) / processes
    stage = StageDiagnosis(
        stage=stages[0].name, seconds=inside, supported=False, why="", turns=calls - first,
        iterations=round(int(counted.sum()) / processes), between_seconds=of_calls - inside,
        record=_record_command(stages[0]),
    )  # fmt: skip
    offsets = np.cumsum([0, *(len(part) for part in every)])
    places = np.concatenate([part.places + offset for part, offset in zip(joined, offsets, strict=False)])
    if not counted.any():
        return replace(stage, why=Text("the timeline has no micro-batches of this stage"))
    if not len(places):
        return replace(stage, why=Text("no micro-batch of this stage was recorded"))
    stretched = np.all([part.stretched for part in joined], axis=0)
    if not stretched.all():
        length = measured  # a device is busy in a part of these seconds, not of the host's CPU time
    numbers = np.concatenate([part.number for part in every])
    undisturbed = undisturbed_by_recording(places, len(measured))
    expected = expected_seconds(measured, sizes, numbers, undisturbed)
    if expected is None:
        seconds, length = (shortened_to_others(column, places) for column in (measured, length))
        cost, waits, spread = measured - seconds, np.zeros(len(measured)), noise(measured[counted], sizes[counted])
    else:
        seconds = np.where(undisturbed, measured, np.minimum(measured, expected))
        cost, waits = measured - seconds, loads.excess(seconds, expected, loads.WAIT)
        seconds = seconds - waits
        among = counted & undisturbed if (counted & undisturbed).any() else counted
        spread = float(np.sqrt(np.mean((seconds[among] / expected[among] - 1) ** 2)))
        of_length = expected_seconds(length, sizes, numbers, undisturbed)
        length = expected if of_length is None else of_length
    recorded = Interpolation(
        length[places], np.concatenate([part.class_seconds for part in joined]), stretched, expected is not None, spread
    )
    stage = replace(
        stage, seconds=float(seconds[counted].sum()) / processes, recorded=int(counted[places].sum()),
        recording_seconds=float(cost[counted].sum()) / processes,
        waiting_seconds=float(waits[counted].sum()) / processes,
    )  # fmt: skip
    return _with_classes(stage, recorded, length[counted], seconds[counted])


def noise(seconds: Floats, sizes: Floats) -> float:
    """Return the relative spread of ``seconds`` among micro-batches of similar size, as a robust standard deviation."""
    ordered = seconds[np.argsort(sizes, kind="stable")]
    near = sliding_window_view(ordered, min(ALIKE, len(ordered)))
    usual = np.median(near, axis=1)
    deviations = np.abs(near / np.maximum(usual, 1e-9)[:, None] - 1)
    return 1.4826 * float(np.median(deviations))


def _record_command(stage: TrainerStage) -> str:
    """Return an example of a command that records the shortest and longest micro-batches of a stage in a later run.

    "" if the stage has no micro-batches.
    """
    windows = PlannedWindows(tuple(next_micro_batches(stage))).option
    role = ("--role", stage.role) if stage.role else ()
    window = ("--stage", stage.stage, *role, "--micro-batch", windows, "--training-steps", "3")
    command = CommandLine("run", stage.package or "verl", "--timeline", *window, "--", "bash", "run.sh")
    return str(command) if windows else ""


def _with_classes(stage: StageDiagnosis, recorded: Interpolation, length: Floats, seconds: Floats) -> StageDiagnosis:
    """Return the stage with the shares of its classes (kinds of kernels), in all and by length of the micro-batches.

    ``recorded`` predicts the classes of a micro-batch from its ``length``; ``seconds`` has the weights. Both are in
    seconds, one for each counted micro-batch; ``length`` may be CPU time instead, see `MicroBatches`. Classes that are
    not supported are left out, and so are the parts by length where an interval is too wide. Only a stage that is not
    supported keeps its command to record more.
    """
    shares, half_widths = recorded.shares_of(length), recorded.half_widths(length)
    checks = recorded.check(length)
    of_stage = class_shares(weighted(shares, seconds), half_widths, stage.seconds)
    imprecise = _imprecise_reason(of_stage)
    why = unsupported_reason([check for check, _ in checks]) or imprecise
    parts, total = [], max(float(seconds.sum()), 1e-12)
    for check, mask in checks:
        of_load = float(seconds[mask].sum())
        error = check.of_whole * total / of_load if of_load else None
        parts.append(load_part(check, mask, seconds, shares, half_widths, error))
    return replace(
        stage, supported=not why, why=why, classes=() if why else of_stage, by_load=() if imprecise else tuple(parts),
        record=stage.record if why else "",
    )  # fmt: skip


def _imprecise_reason(classes: Sequence[ClassShare]) -> str:
    """Return why the shares of a stage say too little: the widest interval, if it is wide; else ""."""
    widest = max(classes, key=lambda row: row.interval, default=None)
    if widest is None or widest.interval <= MOST_HALF_WIDTH:
        return ""
    return Text(
        "the recorded micro-batches differ so much that the share of {name} is only known within ± {points:.0f} points",
        name=CLASSES[widest.name],
        points=100 * widest.interval,
    )


def shortened_to_others(measured: Floats, places: NDArray[np.int64]) -> Floats:
    """Return the ``measured`` seconds of micro-batches, with those at the indices ``places`` divided by one factor.

    Their median is then that of the others. So they count without what recording added, where no size tells how long
    each would have taken. If it was smaller before, or if there are no others, nothing changes.
    """
    other_seconds = np.delete(measured, places)
    if not len(other_seconds) or not len(places):
        return measured
    seconds = measured.copy()
    seconds[places] *= min(1.0, float(np.median(other_seconds)) / max(float(np.median(measured[places])), 1e-12))
    return seconds


def undisturbed_by_recording(places: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """Return a mask of ``count`` micro-batches, False at the recorded ones, with indices ``places``, and beside these.

    If that leaves none, all are True.
    """
    disturbed = disturbed_by_recording(places, count, beside=1)
    return np.ones(count, dtype=bool) if disturbed.all() else ~disturbed
