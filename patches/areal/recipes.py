"""AReaL: where the updates of actor and critic are recorded, and their forwards over a rollout."""

from __future__ import annotations

from patcher.messages import Note, Text
from patcher.processes import Processes
from patcher.recipe import Gap, Head, Insertion, Loop, Recipe, Structure, Upstream
from patches import training
from patches.areal import PROJECT, RELEASES, areal_timeline, areal_weights
from patches.areal.areal_switches import PROFILING, SWITCHES
from patches.probes.areal import VersionedSteps
from patches.training import MICRO, MINI, ROLES, UPDATES

_REMOVE = Text(
    "the patch is no longer needed once AReaL's own profiler can record a window of micro-batches or mini-batches"
)
_WHY = Text(
    "AReaL's perf_tracer logs only how long each forward and backward took. AReaL's torch profiler records"
    " whole code scopes, and each scope must be marked by hand"
)
_COUNTED = Note(
    Text("training steps are numbered as in AReaL's log (weight version plus 1)"),
    Text(
        "a reference or teacher model has no optimizer, so rlpatch counts its calls instead of training steps; after a"
        " restart from a checkpoint, the numbers begin at 1 again"
    ),
)
_TEACHER = Note(
    Text("a teacher model is recorded as role ref"),
    Text("a teacher, like a reference model, is an actor without an optimizer"),
)
_STRATEGIES = ("fsdp", "megatron", "archon")
_ENGINE = "FSDP engine"


def _worker_name(role: str, unit: str) -> str:
    return f"{role}, {unit.replace('batch', 'batches')}"


def _worker(stage: str, unit: str, *fingerprints: str) -> Recipe:
    """Return the recipe that counts steps of the kind `unit` in `stage`, in AReaL's class for the actor or critic.

    Micro-batches are counted with FSDP alone, other kinds with any engine. `fingerprints` are hashes of the method that
    runs the stage, as published.
    """
    role = ROLES[stage][0]
    file = f"areal/trainer/ppo/{role}.py"
    method = "_ppo_update" if stage in UPDATES else "_compute_logp" if role == "actor" else "_compute_values"
    enter = Insertion(
        method,
        where=Head(),
        line='self._rlpatch_stage("enter")',
        why=Text("this function is called once in a training step, with the whole batch of this rank"),
    )
    lend = Insertion(
        method,
        where=Head(),
        line="self.engine._rlpatch_stage_units = self._rlpatch_stage_units",
        why=Text(
            "the loop over micro-batches is in the training engine, but only the actor or critic knows the role and the"
            " training step"
        ),
        windows=(MICRO,),
    )
    minis = Insertion(
        method,
        where=Loop(("mb_inputs.mbs",)),
        line='{units} = self._rlpatch_stage_units("mini-batch", {units}, last=True)',
        why=Text("each iteration of this loop is a mini-batch with its optimizer step"),
    )
    return Recipe(
        name=_worker_name(role, unit),
        stage=stage,
        class_name=f"PPO{role.title()}",
        method=method,
        windows=(unit,),
        probe=training.probe(VersionedSteps, roles=ROLES[stage]),
        insertions=(lend, enter, minis) if stage in UPDATES else (lend, enter),
        structures=(
            Structure(
                "",
                RELEASES,
                file,
                fingerprints,
                Text("one loop over the mini-batches")
                if stage in UPDATES
                else Text("the function calls the engine once"),
            ),
        ),
        why=_WHY,
        how=Text(
            "inserts a line at the start of the function. The line calls a probe, which determines for which role the"
            " function was called. The probe is a nested class at the end of the patched class"
        ),
        upstream=Text("{file}, from {release} on", file=file, release=RELEASES[0]),
        needed_until=_REMOVE,
        strategies=("fsdp",) if unit == MICRO else _STRATEGIES,
        roles=ROLES[stage],
        notes=(_COUNTED, _TEACHER) if "ref" in ROLES[stage] else (_COUNTED,),
        needs=(_ENGINE,) if unit == MICRO else (),
    )


def _engine(stage: str) -> Recipe:
    """Return the recipe for `stage` in the FSDP engine: a line before its loop over micro-batches.

    Through this line the probe of the actor or critic, which is in another recipe, counts the micro-batches.
    """
    file, method = "areal/engine/fsdp_engine.py", "forward_backward_batch"
    last = ", last=True" * (stage not in UPDATES)
    return Recipe(
        name=_ENGINE,
        stage=stage,
        class_name="FSDPEngine",
        method=method,
        windows=(MICRO,),
        marks=(MINI,) if stage in UPDATES else (),
        probe=training.FOREIGN_LOOPS,
        insertions=(
            Insertion(
                method,
                where=Loop(("mb_list",)),
                line=f'{{units}} = self._rlpatch_stage_units("micro-batch", {{units}}{last})',
                why=Text(
                    "each iteration of this loop is the forward of a micro-batch, and in updates also its backward"
                ),
            ),
        ),
        structures=(Structure("", RELEASES, file, ("384fb5d642dd",), Text("a loop over all micro-batches")),),
        why=_WHY,
        how=Text(
            "inserts one line before the loop over micro-batches. It hands the loop to a probe in the actor or critic,"
            " which counts the iterations"
        ),
        upstream=Text("{file}, from {release} on", file=file, release=RELEASES[0]),
        needed_until=_REMOVE,
        strategies=("fsdp",),
        roles=ROLES[stage],
        needs=tuple(_worker_name(ROLES[stage][0], unit) for unit in (MICRO, MINI)),
    )


def _stage(stage: str, *fingerprints: str) -> tuple[Recipe, ...]:
    units = (MINI, MICRO) if stage in UPDATES else (MICRO,)
    return (*(_worker(stage, unit, *fingerprints) for unit in units), _engine(stage))


UPSTREAM = Upstream(
    PROJECT,
    recipes=(
        *_stage("update-policy", "2a63b4775619"),
        *_stage("compute-log-prob", "e72a897c5b66"),
        *_stage("update-critic", "a7c5c13cafd2"),
        *_stage("compute-values", "c3076465c247"),
        *areal_timeline.RECIPES,
        *areal_weights.RECIPES,
    ),
    switches=SWITCHES,
    application=PROFILING,
    engines=("sglang", "vllm-ascend", "vllm"),
    tool="torch",
    processes=Processes(modules=("areal.infra.rpc.rpc_server",), titles=("ray::RayRPCServer",)),
    gaps=tuple(
        Gap(strategy, MICRO, tuple(ROLES), "", Note(reason, Text("in update stages, use --mini-batch")))
        for strategy, reason in (
            ("megatron", Text("Megatron's schedule runs the micro-batches")),
            ("archon", Text("Archon's own runner runs the micro-batches")),
        )
    ),
    builtin={
        ">=1.0.4": Text(
            "perf_tracer records how long each phase, each forward and each backward took, but records no operators."
            " With perf_tracer.profile_steps, perf_tracer also runs torch.profiler in scopes that request it, but"
            " AReaL itself has no such scope. memory_profiler writes memory snapshots of whole training steps."
        )
    },
)
