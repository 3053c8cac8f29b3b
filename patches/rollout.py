"""The rollout stage, whatever the engine: the windows, the probe, and how the user's choice goes into it."""

from __future__ import annotations

from patcher.capture import Capture, Rollout
from patcher.recipe import Probe
from patches import recording

WINDOWS = tuple(unit.name for unit in Rollout.UNITS)

KINDS = {"decode": ("decode",), "prefill": ("prefill",), "iterations": ("decode", "prefill")}


def chosen(capture: Capture[Rollout]) -> dict[str, object]:
    """The class attributes of ``patches.probes.rollout.Rollouts`` for this capture."""
    return {
        **recording.chosen(capture),
        "KINDS": KINDS[capture.stage.window.unit],
        "ROLLOUT": str(capture.stage.rollout),
    }


def summary(capture: Capture[Rollout]) -> str:
    """One line for the reader of the patched file."""
    units = {"decode": "decode steps", "prefill": "prefill iterations", "iterations": "iterations"}[
        capture.stage.window.unit
    ]
    first, repeat = capture.stage.rollout, capture.stage.repeat
    until = "" if repeat == 1 else f" to {first + repeat - 1}"
    return f"Records {recording.units(capture, units)} of rollout {first}{until} on {recording.ranks(capture)}."


def probe(*parts: str, members: tuple[str, ...] = (), logger: str) -> Probe:
    """The probe that counts what ``parts`` observe; a name without a module is of ``patches.probes.rollout``."""
    counted = tuple(part if "." in part else f"rollout.{part}" for part in ("Rollouts", *parts))
    beside = tuple(member if "." in member else f"rollout.{member}" for member in members)
    marked = "ranges.RolloutMarkers"
    return recording.probe(counted, beside, logger=logger, markers=marked, chosen=chosen, summary=summary)
