"""The training stages, whatever the framework: the windows, the probe, and how the user's choice goes into it."""

from __future__ import annotations

from collections.abc import Callable

from patcher.capture import Capture
from patcher.recipe import Probe
from patches import recording
from patches.probes import ranges
from patches.probes.members import ForeignLoops, Loops
from patches.probes.training import Training

MICRO, MINI = "micro-batch", "mini-batch"
ROLES = {
    "update-policy": ("actor",),
    "compute-log-prob": ("actor", "ref"),
    "update-critic": ("critic",),
    "compute-values": ("critic",),
}
"""Each stage of a training step with the roles that it works for."""
UPDATES = ("update-policy", "update-critic")
"""The stages with mini-batches: an optimizer steps after each."""


def chosen(roles: tuple[str, ...]) -> Callable[[Capture], dict[str, object]]:
    """What the user chose, as the class attributes of ``probes.training.Training`` in a stage for ``roles``."""

    def attributes(capture: Capture) -> dict[str, object]:
        return {
            **recording.chosen(capture),
            "UNIT": capture.window.unit,
            "ROLES": (capture.role,) if capture.role else roles,
            "STEPS": ",".join(map(str, capture.training_steps)),
        }

    return attributes


def summary(capture: Capture) -> str:
    """One line for the reader of the patched file."""
    steps = sorted({step + more for step in capture.training_steps for more in range(capture.repeat)})
    units = recording.units(capture, capture.window.unit.replace("batch", "batches"))
    role = f" for the {capture.role}" if capture.role else ""
    of = f"training step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"
    return f"Records {units} of {of} in {capture.stage}{role} on {recording.on_ranks(capture)}."


def probe(recorder: type, *, roles: tuple[str, ...], logger: str, shared: type = Training) -> Probe:
    """The probe that counts the units of a stage; ``recorder`` tells whose call it is.

    The stages of one class have ``shared`` in common, and all from which that derives.
    """
    return recording.probe(
        recorder,
        (Loops,),
        logger=logger,
        chosen=chosen(roles),
        settled=lambda capture, _release: recording.settled(capture),
        summary=summary,
        markers=(ranges.Markers, ranges.TrainingMarkers),
        shared=(shared,),
    )


FOREIGN_LOOPS = Probe(members=(ForeignLoops,), summary=summary)
"""For a class whose loops are counted by another one of the same patch."""
