"""The training stages, whatever the framework: the windows, the probe, and how the user's choice goes into it."""

from __future__ import annotations

from collections.abc import Callable

from patcher.config import ProfileConfig, TrainingStage
from patcher.messages import Text
from patcher.recipe import Probe
from patches import recording
from patches.probes import ranges
from patches.probes.live import LiveUnit
from patches.probes.members import ForeignLoops, Loops
from patches.probes.on_demand import OnDemand, OnDemandSteps
from patches.probes.training import TrainingSteps, WholeCall
from patches.probes.windows import RepeatedSteps, SeveralInCall

MICRO, MINI, CALL = "micro-batch", "mini-batch", "call"
ROLES = {
    "update-policy": ("actor",),
    "compute-log-prob": ("actor", "ref"),
    "update-critic": ("critic",),
    "compute-values": ("critic",),
}
"""Each stage of a training step with the roles that it works for."""
UPDATES = ("update-policy", "update-critic")
"""The stages with mini-batches: an optimizer steps after each."""


def settings(
    roles: tuple[str, ...], *identity: str, between: str = ""
) -> Callable[[ProfileConfig[TrainingStage]], dict[str, object]]:
    """Return the function that turns a configuration into class attributes of `probes.training.TrainingSteps`.

    The recorder records the role that the configuration names, else all `roles`. `identity` are the names of attributes
    that identify a training step besides its number. `between` is the log's word for what runs between two units, ""
    for the default: "optimizer steps" in an update, otherwise "pauses".
    """

    def attributes(config: ProfileConfig[TrainingStage]) -> dict[str, object]:
        """Return the user's options as class attributes of the recorder: name → value."""
        return {
            **recording.settings(config),
            **recording.metadata_attributes(config, "role", "step", *identity),
            "UNIT": config.stage.window.unit,
            "UNITS": plural(config.stage.window.unit),
            "BETWEEN": between or ("optimizer steps" if config.stage.name in UPDATES else "pauses"),
            "ROLES": (config.stage.role,) if config.stage.role else roles,
            "STEPS": ",".join(map(str, config.stage.training_steps)),
        }

    return attributes


def plural(unit: str) -> str:
    """Return the plural of the name of a unit."""
    return f"{unit}es" if unit.endswith("ch") else f"{unit}s"


_UNITS = {
    "micro-batch": (Text("micro-batch {numbers}"), Text("micro-batches {numbers}")),
    "mini-batch": (Text("mini-batch {numbers}"), Text("mini-batches {numbers}")),
    "call": (Text("call {numbers}"), Text("calls {numbers}")),
}
"""Unit of a window → the templates that name a single one, and several."""


def summary(config: ProfileConfig[TrainingStage]) -> str:
    """Return a sentence on what is recorded, for the plan and for a comment in the patched file."""
    stage = config.stage
    name = plural(stage.window.unit)
    where: str = stage.name
    if stage.role:
        where = Text("{stage} for the {role}", stage=stage.name, role=stage.role)
    on_demand = Text("{units} that `rlpatch trigger` asks for", name)
    if stage.window.none:
        return Text("Records {units} in {stage}.", units=on_demand, stage=where)
    recorded = Text(
        "{units} of {steps} in {stage} on {ranks}",
        units=recording.window_text(config, *_UNITS[stage.window.unit]),
        steps=_steps(stage),
        stage=where,
        ranks=recording.on_ranks(config),
    )
    if stage.on_demand:
        recorded = Text("{recorded_units}, then {requested_units}", recorded_units=recorded, requested_units=on_demand)
    return Text("Records {units}.", recorded)


def _steps(stage: TrainingStage) -> str:
    """Return the chosen training steps in words, such as "training steps 2, 4", with their repetitions.

    If each is repeated for more than 8 steps, it becomes a range such as "2..11".
    """
    if stage.repeat > _FEW:
        ends = [f"{step}..{step + stage.repeat - 1}" for step in stage.training_steps]
        return Text("training steps {steps}", ", ".join(ends))
    steps = sorted({step + more for step in stage.training_steps for more in range(stage.repeat)})
    if len(steps) == 1:
        return Text("training step {step}", steps[0])
    return Text("training steps {steps}", ", ".join(map(str, steps)))


_FEW = 8


def probe(
    recorder_class: type,
    *,
    roles: tuple[str, ...],
    shared: type = TrainingSteps,
    members: tuple[type, ...] = (Loops,),
    logged: Callable[[str], type | None] = lambda _release: None,
    between: str = "",
) -> Probe:
    """Return the probe of a stage: what is inserted to count its units and to record them.

    `recorder_class` is the recorder, which tells the role of a call from `roles`. `members` go into the target class.
    `shared`, a base of the recorder, is inserted once for all stages of a target class. `logged` returns the class to
    merge into the recorder for a release whose worker knows the training step of the log, else None. For "" it returns
    a class if there is such a release. `between` is the log's word for what runs between two units ("": that of the
    stage).
    """

    def parts(config: ProfileConfig[TrainingStage], release: str) -> tuple[type, ...]:
        return (*recording.parts(config), *filter(None, [logged(release)]))

    def layers(config: ProfileConfig[TrainingStage], _release: str) -> tuple[type, ...]:
        """Return the subclasses to put on top of the recorder, the lowest first, as far as the options need them.

        They are for repeats, several windows, capture requests, live progress, markers, and windows of whole calls.
        """
        stage = config.stage
        return (
            *((RepeatedSteps,) if stage.repeat > 1 else ()),
            *((SeveralInCall,) if stage.window.later or stage.on_demand else ()),
            *((OnDemand, OnDemandSteps) if stage.on_demand else ()),
            *((LiveUnit,) if config.live else ()),
            *recording.layers(config, ranges.TrainingMarkers),
            *((WholeCall,) if stage.window.unit == CALL else ()),
        )

    return recording.probe(
        recorder_class,
        members,
        settings=settings(roles, *(("parameter_version",) if logged("") else ()), between=between),
        constants=recording.constants,
        summary=summary,
        parts=parts,
        layers=layers,
        shared=(shared,),
    )


FOREIGN_LOOPS = Probe(members=(ForeignLoops,), summary=summary)
"""Probe for a class whose loops are counted by another class of the same patch."""
