"""The rollout stage, whatever the engine: the windows, the probe, and how the user's choice goes into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from patcher.capture import ROLLOUT_UNITS, Capture
from patcher.recipe import Probe
from patches import recording
from patches.probes import ranges
from patches.probes.members import Calls

WINDOWS = ROLLOUT_UNITS

Traits = Callable[[str], Mapping[str, object]]
"""What is settled of an engine in a published release, or for "" in one that is not known."""


def chosen(capture: Capture) -> dict[str, object]:
    """What the user chose, as the class attributes of ``patches.probes.rollout.Rollout``."""
    return {**recording.chosen(capture), "ROLLOUT": str(capture.rollout)}


def summary(capture: Capture) -> str:
    """One line for the reader of the patched file."""
    units = {"decode": "decode steps", "prefill": "prefill iterations", "iterations": "iterations"}[capture.window.unit]
    until = "" if capture.repeat == 1 else f" to {capture.rollout + capture.repeat - 1}"
    which = f"rollout {capture.rollout}{until}"
    return f"Records {recording.units(capture, units)} of {which} on {recording.on_ranks(capture)}."


def probe(
    recorder: type, *, logger: str, members: tuple[type, ...] = (Calls,), traits: Traits = lambda _release: {}
) -> Probe:
    """The probe that counts what ``recorder`` observes."""

    def settled(capture: Capture, release: str) -> dict[str, object]:
        unit = capture.window.unit
        counting = {"UNIT": unit, "FIRST": int(unit == "decode")}  # prefill makes token 0: there is no decode step 0
        return {**recording.settled(capture), **counting, **traits(release)}

    return recording.probe(
        recorder,
        members,
        logger=logger,
        chosen=chosen,
        settled=settled,
        summary=summary,
        markers=(ranges.Markers, ranges.RolloutMarkers),
    )
