"""The rollout stage, whatever the engine: the windows, the probe, and how the user's choice goes into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from patcher.config import ProfileConfig, RolloutStage
from patcher.recipe import Head, Insertion, Probe
from patches import recording
from patches.probes import ranges
from patches.probes.members import Calls

WINDOWS = tuple(unit.name for unit in RolloutStage.UNITS if unit.name != "aligned")
ALIGNED = (*WINDOWS, "aligned")
"""The windows where the ranks of a data-parallel group run in step, by dummy batches, and these are seen."""

BUSY_PERIOD = (
    "A rollout is a busy period of the engine: it ends when no request is left, at sleep(), and where a weight sync of"
    " verl's asynchronous trainers aborts all requests. What goes on behind the sync comes back under a fresh id, with"
    " what it had as its prompt, so an engine cannot tell it from a new request: it counts as one, and prefills again"
)
"""How rollouts are counted (verl/checkpoint_engine/base.py ``update_weights``, verl/workers/rollout/llm_server.py)."""

Traits = Callable[[str], Mapping[str, object]]
"""The compile-time constants of an engine in a published release, or for "" in one that is not known."""


DUMMIES = Insertion(
    "execute_dummy_batch",
    where=Head(),
    line='self._rlpatch_stage("step", None)',
    why="where the experts of a model are spread over the ranks of a data-parallel group, all of them run each step:"
    " one without requests runs a dummy batch. Counted along, the n-th step is the same on each of them",
    optional=True,
    windows=("aligned",),
)
"""In a worker of vLLM's V1 engine; vllm/v1/engine/core.py ``DPEngineCoreProc.run_busy_loop`` runs one or the other.

vllm-ascend has none before 0.9.0rc1: its ranks did not run in step.
"""


def settings(config: ProfileConfig[RolloutStage]) -> dict[str, object]:
    """What the user chose, as the class attributes of ``patches.probes.rollout.RolloutUnits``."""
    stage = config.stage
    states = {"load": stage.at_load, "tail": stage.at_tail, "context": stage.at_context}
    return {
        **recording.settings(config),
        **recording.in_replicas(config),
        "ROLLOUT": str(stage.rollout),
        "AT": {name: str(value) for name, value in states.items() if value or stage.on_demand},
        "IDENTITY": recording.identity(config, "replica", "dp", "rollout"),
    }


_UNITS = {
    "decode": "decode steps",
    "prefill": "prefill iterations",
    "iterations": "iterations",
    "aligned": "aligned iterations",
}


def summary(config: ProfileConfig[RolloutStage]) -> str:
    """One line for the reader of the patched file."""
    units = _UNITS[config.stage.window.unit]
    stage, ranks = config.stage, recording.on_ranks(config)
    on_demand = f"{units} that `rlpatch trigger` asks for"
    if stage.window.none:
        return f"Records {on_demand}."
    until = "" if stage.repeat == 1 else f" to {stage.rollout + stage.repeat - 1}"
    where = f" of rollout {stage.rollout}{until}{behind(stage)} on {ranks}"
    return f"Records {recording.units(config, units)}{where}{f', then {on_demand}' if stage.on_demand else ''}."


def behind(stage: RolloutStage) -> str:
    """The conditions behind which units are counted, in words."""
    states = [
        f"{stage.at_load} requests are scheduled" * bool(stage.at_load),
        f"at most {stage.at_tail} requests are left" * bool(stage.at_tail),
        f"a request has {stage.at_context} tokens of context" * bool(stage.at_context),
    ]
    joined = " and ".join(filter(None, states))
    return f", counted from where {joined}," if joined else ""


def probe(
    recorder: type, *, logger: str, members: tuple[type, ...] = (Calls,), traits: Traits = lambda _release: {}
) -> Probe:
    """The probe that counts what ``recorder`` observes."""

    def constants(config: ProfileConfig[RolloutStage], release: str) -> dict[str, object]:
        unit = config.stage.window.unit
        counting = {"UNIT": unit, "FIRST": int(unit == "decode")}  # prefill makes token 0: there is no decode step 0
        stage = config.stage
        states = {"BY_LOAD": stage.at_load, "BY_TAIL": stage.at_tail, "BY_CONTEXT": stage.at_context}
        waits = {name: bool(value) or stage.on_demand for name, value in states.items()}
        constants = {**recording.constants(config), **recording.by_server(config)}
        return {**constants, **counting, **waits, **traits(release)}

    return recording.probe(
        recorder,
        members,
        logger=logger,
        settings=settings,
        constants=constants,
        summary=summary,
        markers=(ranges.Markers, ranges.RolloutMarkers),
    )
