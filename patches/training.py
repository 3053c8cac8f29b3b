"""The training stages, whatever the framework: the windows, the probe, and how the user's choice goes into it."""

from __future__ import annotations

from collections.abc import Callable

from patcher.capture import Capture, Training
from patcher.recipe import Probe
from patches import recording

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


def chosen(roles: tuple[str, ...]) -> Callable[[Capture[Training]], dict[str, object]]:
    """The class attributes of ``patches.probes.training.TrainingSteps`` in a stage that works for ``roles``."""

    def attributes(capture: Capture[Training]) -> dict[str, object]:
        return {
            **recording.chosen(capture),
            "UNIT": capture.stage.window.unit,
            "ROLES": (capture.stage.role,) if capture.stage.role else roles,
            "STEPS": ",".join(map(str, capture.stage.training_steps)),
            "BETWEEN": "optimizer steps" if capture.stage.name.startswith("update") else "pauses",
        }

    return attributes


def summary(capture: Capture[Training]) -> str:
    """One line for the reader of the patched file."""
    steps = sorted({step + more for step in capture.stage.training_steps for more in range(capture.stage.repeat)})
    units = recording.units(capture, capture.stage.window.unit.replace("batch", "batches"))
    role = f" for the {capture.stage.role}" if capture.stage.role else ""
    of = f"training step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"
    return f"Records {units} of {of} in {capture.stage.name}{role} on {recording.ranks(capture)}."


def probe(*parts: str, roles: tuple[str, ...], logger: str) -> Probe:
    """The probe that counts the units of a stage; ``parts`` tell whose call it is.

    A name without a module is of ``patches.probes.training``.
    """
    counted = tuple(part if "." in part else f"training.{part}" for part in ("TrainingSteps", *parts))
    beside, marked = ("training.Loops",), "ranges.TrainingMarkers"
    return recording.probe(counted, beside, logger=logger, markers=marked, chosen=chosen(roles), summary=summary)


FOREIGN_LOOPS = Probe(members=("training.ForeignLoops",), summary=summary)
"""For a class whose loops are counted by another one of the same patch."""
