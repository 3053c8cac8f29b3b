"""Recorded iterations and micro-batches, matched with those of the timeline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patcher.diagnosis.composition import RecordedIterations
from patcher.diagnosis.engines import Engine
from patcher.diagnosis.model import CLASSES, DiagnosedWindow
from patcher.diagnosis.training import TrainerStage
from patcher.messages import CommandLine
from patcher.traces import sidecar
from patcher.traces.families import HOST_BOUND, OUTSIDE_FORWARD
from patcher.traces.model import RankProfile, RecordedUnit
from patcher.workers.life import plain_host

NAMES = tuple(CLASSES)
"""Classes in the order of the columns of class seconds."""

FARTHEST_S = 0.5
"""Seconds between the begin of a recorded iteration by its metadata, and that of the same iteration in the timeline."""

IDLE = np.array([name in (HOST_BOUND, OUTSIDE_FORWARD) for name in NAMES])
"""Mask of the classes in which a device waits for the host."""

LONGEST_WINDOW = 25
"""Iterations of a long window that count as one window: those further apart differ as much as windows do."""


@dataclass(frozen=True)
class Joined:
    """Recorded iterations or micro-batches of one process: their places in its timeline, class seconds, and windows.

    ``class_seconds`` has the shape (iterations, classes) with the classes of `NAMES`. ``window_numbers`` has the number
    of each one's window. ``on_device`` tells whether these are seconds of a device.
    """

    places: NDArray[np.int64]
    class_seconds: NDArray[np.float64]
    window_numbers: NDArray[np.int64]
    windows: tuple[DiagnosedWindow, ...]
    on_device: bool

    def recorded_iterations(self, features: NDArray[np.float64]) -> RecordedIterations:
        """Return the recorded iterations with their ``features``, those of all iterations of the engine."""
        return RecordedIterations(features[self.places], self.class_seconds, self.window_numbers, self.stretched)

    @property
    def stretched(self) -> NDArray[np.bool_]:
        """Mask of the classes that a profiler makes longer: it slows down the host, but no kernel."""
        return IDLE if self.on_device else np.ones(len(NAMES), dtype=bool)


def recorded_traces(folder: Path, engines: Iterable[Engine], trainers: Iterable[TrainerStage] = ()) -> list[Path]:
    """Return the traces in ``folder`` of windows, weight syncs included, that ``engines`` or ``trainers`` recorded.

    The metadata beside a trace tell; metadata that cannot be read are skipped. The traces are sorted by these files'
    names.
    """
    places = [("rollout", engine.pid, engine.host) for engine in engines]
    places += [(trainer.stage, trainer.pid, trainer.host) for trainer in trainers]
    places += [("weight-sync", pid, host) for _, pid, host in places]
    processes = {(stage, pid, plain_host(host)) for stage, pid, host in places}
    recorded = list[Path]()
    for file in sorted(folder.glob(f"*{sidecar.SUFFIX}")):
        with contextlib.suppress(ValueError):  # damaged, or of a newer rlpatch
            metadata = sidecar.read(file)
            if (metadata.stage, metadata.pid, plain_host(metadata.host)) in processes:
                recorded.append(sidecar.trace_of(file))
    return recorded


def stage_of(profile: RankProfile) -> str:
    """Return the stage that a profile is of by its metadata; "" without any."""
    return profile.metadata.stage if profile.metadata else ""


def join(engine: Engine, profiles: Iterable[RankProfile]) -> Joined:
    """Find the recorded iterations of ``profiles`` among those of an engine in the timeline.

    The id in the metadata tells which iteration it is. Without an id (older rlpatch), it is the iteration with the same
    requests, tokens and context that began nearest by the host's clock, within 0.5 s. Profiles of other processes,
    iterations without metadata, and those that include the profiler's start are left out. So is the last iteration of a
    rollout, since its window may last until the next rollout begins.
    """
    engine_profiles = [profile for profile in profiles if recorded_by(profile, engine.pid, engine.host)]
    last_of_rollouts = set(np.flatnonzero(np.diff(engine.iterations.rollout, append=-1)).tolist())

    def place_of(unit: RecordedUnit, entry: Mapping[str, Any]) -> int | None:
        """Return the index of a recorded iteration, None if it is the last of a rollout or not in the timeline."""
        place = _find_iteration(engine, unit, entry)
        return None if place in last_of_rollouts else place

    return join_units(engine_profiles, place_of, LONGEST_WINDOW)


def join_units(
    profiles: Iterable[RankProfile], place_of: Callable[[RecordedUnit, Mapping[str, Any]], int | None], longest: int
) -> Joined:
    """Find recorded units (iterations or micro-batches) of ``profiles`` in the timeline.

    ``place_of`` takes a unit and its metadata, and returns the unit's index in the timeline or None. Units without an
    index, without classes, or that include the profiler's start are left out. More than ``longest`` units in a window
    count as several windows.
    """
    profiles = tuple(profiles)
    places: list[int] = []
    class_seconds: list[list[float]] = []
    window_numbers: list[int] = []
    windows: list[DiagnosedWindow] = []
    number = 0
    for profile in profiles:
        cold, entries = set(profile.cold), unit_entries(profile)
        count = 0
        for unit in profile.units:
            place = place_of(unit, entries.get(unit.number, {}))
            if place is None or unit.number in cold or not unit.classes:
                continue
            places.append(place)
            class_seconds.append([unit.classes.get(name, 0) / 1e9 for name in NAMES])
            window_numbers.append(number + count // longest)
            count += 1
        number += 1 + count // longest
        windows.append(diagnosed_window(profile, count))
    return Joined(
        np.array(places, dtype=np.int64),
        np.array(class_seconds, dtype=np.float64).reshape(len(places), len(NAMES)),
        np.array(window_numbers, dtype=np.int64),
        tuple(windows),
        on_device=any(profile.kernels for profile in profiles),
    )


def recorded_by(profile: RankProfile, pid: int, host: str) -> bool:
    """Tell whether the process ``pid`` of ``host`` recorded a profile, by its metadata; False without any."""
    metadata = profile.metadata
    return metadata is not None and metadata.pid == pid and plain_host(metadata.host) == plain_host(host)


def unit_entries(profile: RankProfile) -> dict[object, Mapping[str, Any]]:
    """Return unit → its entry in the metadata."""
    return {entry.get("number"): entry for entry in sidecar.listed_units(profile.facts or {})}


def _find_iteration(engine: Engine, unit: RecordedUnit, entry: Mapping[str, Any]) -> int | None:
    """Return the index of a recorded iteration ``unit`` among the engine's iterations; None if it is not there.

    ``entry`` is its metadata: the id of the iteration, or else its begin in ns since 1970. By the begin it is the
    nearest iteration within 0.5 s that has the unit's requests, tokens and context.
    """
    iterations, identity, begin = engine.iterations, entry.get("iteration"), entry.get("begin")
    if type(identity) is int:
        places = np.flatnonzero(iterations.id == identity)
        return int(places[0]) if len(places) else None
    if type(begin) is not int or unit.requests is None or unit.tokens is None:
        return None
    begin_s = begin / 1e9
    first, end = np.searchsorted(iterations.start, (begin_s - FARTHEST_S, begin_s + FARTHEST_S))
    near = slice(int(first), int(end))
    same = (iterations.requests[near] == unit.requests) & (iterations.tokens[near] == unit.tokens - (unit.drafts or 0))
    if unit.context is not None:
        same &= iterations.context[near] == unit.context
    candidates = np.flatnonzero(same) + int(first)
    if not len(candidates):
        return None
    return int(candidates[np.argmin(np.abs(iterations.start[candidates] - begin_s))])


def diagnosed_window(profile: RankProfile, joined: int) -> DiagnosedWindow:
    """Return the summary of a profile's window, with the command to report on it.

    A window is the range of iterations or micro-batches that the profile recorded; its text is "" without metadata.
    ``joined`` is how many of them are in the timeline.
    """
    metadata = profile.metadata
    window = f"--{metadata.unit} {metadata.window.text}" if metadata and metadata.window else ""
    report = str(CommandLine("report", profile.source))
    return DiagnosedWindow(stage_of(profile), window, profile.source, len(profile.units), joined, report)


def disturbed_by_recording(joined: Sequence[int] | NDArray[np.int64], count: int, beside: int = 2) -> NDArray[np.bool_]:
    """Return a mask of ``count`` iterations or micro-batches, True where recording disturbs their time.

    Disturbed are the recorded ones, with the indices ``joined``, and ``beside`` of them before and after each.
    """
    mask = np.zeros(count, dtype=bool)
    for place in joined:
        mask[max(place - beside, 0) : place + beside + 1] = True
    return mask
