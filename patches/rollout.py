"""The rollout stage, whatever the engine: the windows, the probe, and how the user's choice goes into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from patcher.config import ProfileConfig, RolloutStage
from patcher.messages import AND, Text, joined
from patcher.recipe import Head, Insertion, Probe
from patches import recording
from patches.probes import ranges
from patches.probes.live import LiveIteration
from patches.probes.members import Calls
from patches.probes.on_demand import OnDemand, OnDemandRollouts
from patches.probes.states import Drained, Loaded, LongContexts, RelativeWindow
from patches.probes.windows import RepeatedRollouts, SeveralInRollout

WINDOWS = tuple(unit.name for unit in RolloutStage.UNITS if unit.name != "aligned")
ALIGNED = (*WINDOWS, "aligned")
"""The windows where the ranks of a data-parallel group run in step, by dummy batches, and these are seen."""

BUSY_PERIOD = Text(
    "A rollout is a busy period of the engine. It ends when no request is left, when sleep() is called, and"
    " when a weight sync of verl's asynchronous trainers aborts all requests. Requests that continue after"
    " the sync get a new id and are prefilled again"
)
"""Definition of a rollout (verl/checkpoint_engine/base.py ``update_weights``, verl/workers/rollout/llm_server.py)."""

Traits = Callable[[str], tuple[type, ...]]
"""The parts of a recorder for an engine in a published release, or for "" in one that is not known."""


DUMMIES = Insertion(
    "execute_dummy_batch",
    where=Head(),
    line='self._rlpatch_stage("step", None)',
    why=Text(
        "if the experts of a model are spread over data-parallel ranks, all ranks run every step; a rank without"
        " requests runs a dummy batch. Dummy batches are counted, so step n is the same on all ranks"
    ),
    optional=True,
    windows=("aligned",),
)
"""Line in a worker of vLLM's V1 engine; vllm/v1/engine/core.py ``DPEngineCoreProc.run_busy_loop`` runs it or a batch.

vllm-ascend has none before 0.9.0rc1: its ranks did not run in step.
"""


def settings(config: ProfileConfig[RolloutStage]) -> dict[str, object]:
    """Return the user's options as class attributes of `patches.probes.rollout.RolloutUnits`: name → value."""
    conditions = {name: str(value) for name, value in _conditions(config).items()}
    return {
        **recording.settings(config),
        **recording.in_replicas(config),
        "UNIT": config.stage.window.unit,
        "ROLLOUT": str(config.stage.rollout),
        **({"AT": conditions} if conditions else {}),
        **recording.metadata_attributes(config, "replica", "dp", "rollout"),
    }


class _UnitTexts(NamedTuple):
    """Templates that name a unit: a single one, several, and those of a request."""

    singular: Text
    plural: Text
    requested: Text


_UNITS = {
    "decode": _UnitTexts(
        Text("decode step {numbers}"),
        Text("decode steps {numbers}"),
        Text("decode steps that `rlpatch trigger` asks for"),
    ),
    "prefill": _UnitTexts(
        Text("prefill iteration {numbers}"),
        Text("prefill iterations {numbers}"),
        Text("prefill iterations that `rlpatch trigger` asks for"),
    ),
    "iterations": _UnitTexts(
        Text("iteration {numbers}"),
        Text("iterations {numbers}"),
        Text("iterations that `rlpatch trigger` asks for"),
    ),
    "aligned": _UnitTexts(
        Text("iteration {numbers} (dummy batches count, too)"),
        Text("iterations {numbers} (dummy batches count, too)"),
        Text("iterations that `rlpatch trigger` asks for (dummy batches count, too)"),
    ),
}


_LOGGED = {"decode": "decode steps", "prefill": "prefill iterations"}
"""Unit of a window → its plural in the log of a run, if that is not "iterations"."""


def summary(config: ProfileConfig[RolloutStage]) -> str:
    """Return a sentence on what is recorded, for the plan and for a comment in the patched file."""
    units = _UNITS[config.stage.window.unit]
    stage, ranks = config.stage, recording.on_ranks(config)
    if stage.window.none:
        return Text("Records {units}.", units.requested)
    rollout = str(stage.rollout)
    if stage.repeat > 1:
        rollout = Text("{first} to {last}", first=stage.rollout, last=stage.rollout + stage.repeat - 1)
    values = {"units": recording.window_text(config, units.singular, units.plural), "rollout": rollout, "ranks": ranks}
    recorded = Text("{units} of rollout {rollout} on {ranks}", **values)
    if conditions := conditions_text(stage):
        recorded = Text(
            "{units} of rollout {rollout} on {ranks} (counting starts once {conditions})",
            **values,
            conditions=conditions,
        )
    if stage.on_demand:
        recorded = Text(
            "{recorded_units}, then {requested_units}", recorded_units=recorded, requested_units=units.requested
        )
    return Text("Records {units}.", recorded)


def conditions_text(stage: RolloutStage) -> Text:
    """Return the conditions after which units are counted, in words; "" if there are none."""
    conditions = (
        (stage.at_load, Text("at least {count} requests are scheduled", stage.at_load)),
        (stage.at_tail, Text("{count} or fewer requests are left", stage.at_tail)),
        (stage.at_context, Text("a request has at least {count} tokens of context", stage.at_context)),
    )
    return joined(AND, (text for value, text in conditions if value))


_CONDITION_LAYERS = {"load": Loaded, "tail": Drained, "context": LongContexts}
_COUNTED = {
    "decode": ("decode",),
    "prefill": ("prefill",),
    "iterations": ("decode", "prefill"),
    "aligned": ("decode", "prefill", "dummy", "idle", "health check"),
}
"""Unit of a window → the kinds of iterations that it counts."""


def _conditions(config: ProfileConfig[RolloutStage]) -> dict[str, int]:
    """Return the conditions that a window waits for: "load", "tail" or "context" → number of requests or tokens.

    0 means that only `rlpatch trigger` can set the number. {} if the window waits for nothing.
    """
    stage = config.stage
    conditions = {"load": stage.at_load, "tail": stage.at_tail, "context": stage.at_context}
    return {name: value for name, value in conditions.items() if value or stage.on_demand}


def _log_texts(config: ProfileConfig[RolloutStage], units: str) -> dict[str, str]:
    """Return the log's %-templates for a window that was missed or recorded: constant of the recorder → template.

    If the window waits for a condition, there are two more for that. `units` is the plural that they contain, such as
    "decode steps".
    """
    texts = {
        "MISSED": f"not recorded: %s after %s {units}; lower RLPATCH_WINDOW",
        "RECORDED": f"%s, recorded %s of %s {units} with %s uncounted iterations between them: ",
    }
    if _conditions(config):
        texts["AWAITED"] = f"not recorded: %s after %s {units}%s"
        texts["RECORDED_FROM"] = f"%s, recorded %s of %s {units} from number %s on"
    return texts


def probe(
    recorder_class: type,
    *,
    contexts: type,
    members: tuple[type, ...] = (Calls,),
    traits: Traits = lambda _release: (),
    warm_ups: Traits = lambda _release: (),
    metadata: tuple[type, ...] = (),
    aligned: type | None = None,
    relative: type | None = None,
) -> Probe:
    """Return the probe that counts the iterations that a `recorder_class` observes; `members` go into the target class.

    `traits` returns the classes to merge into the recorder for a release, `metadata` are those for step metadata. The
    other classes become subclasses of it if options need them (None: the engine has no such class): `warm_ups` skips
    the engine's warm-up, `contexts` finds the longest context, `aligned` is for ranks that run in step, `relative` for
    counting from a condition on.
    """

    def constants(config: ProfileConfig[RolloutStage], release: str) -> dict[str, object]:  # noqa: ARG001
        """Return the constants to write into the recorder's code: name → kinds of iterations, first unit, log texts."""
        unit, stage = config.stage.window.unit, config.stage
        first = int(unit == "decode")  # prefill makes token 0: there is no decode step 0
        lowest = 0 if stage.relative or stage.on_demand else first
        counted = {"KINDS": _COUNTED[unit], "FIRST": first, "LOWEST": lowest}
        units = _LOGGED.get(unit, "iterations")
        counted.update(REPORT=f"{unit} %s of rollout %s: %s", UNITS=units, **_log_texts(config, units))
        least = {"LEAST": r"\d+"} if stage.on_demand else {}
        return {**recording.constants(config), **counted, **least}

    def parts(config: ProfileConfig[RolloutStage], release: str) -> tuple[type, ...]:
        held = metadata if config.facts else ()
        return (*recording.parts(config), recording.replicas(config), *traits(release), *held)

    def layers(config: ProfileConfig[RolloutStage], release: str) -> tuple[type, ...]:
        """Return the subclasses to put on top of the recorder, the lowest first, as far as the options need them.

        They skip the engine's warm-up, and are for repeats, conditions, capture requests, ranks in step, and markers.
        """
        stage, conditions = config.stage, _conditions(config)
        waits: tuple[type, ...] = ()
        if conditions:
            waits = (RelativeWindow, *(_CONDITION_LAYERS[name] for name in conditions), *filter(None, [relative]))
        windows = (
            (RepeatedRollouts, stage.repeat > 1),
            (SeveralInRollout, stage.window.later or stage.on_demand),
        )
        return (
            *warm_ups(release),
            *(layer for layer, is_needed in windows if is_needed),
            *waits,
            *((contexts,) if "context" in conditions else ()),
            *((OnDemand, OnDemandRollouts) if stage.on_demand else ()),
            *((aligned,) if aligned and stage.window.unit == "aligned" else ()),
            *((LiveIteration,) if config.live else ()),
            *recording.layers(config, ranges.RolloutMarkers),
        )

    return recording.probe(
        recorder_class,
        members,
        settings=settings,
        constants=constants,
        summary=summary,
        parts=parts,
        layers=layers,
    )
