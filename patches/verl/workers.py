"""verl: the workers that have the loops themselves, ``dp_*.py`` and ``megatron_*.py`` up to 0.7.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from patcher.messages import Text
from patcher.recipe import Head, Insertion, Recipe, Structure
from patches import training
from patches.probes.members import Loops
from patches.probes.training import OneRole
from patches.probes.verl import DataParallelActor, MegatronActor, MegatronLogProb, MegatronSchedule
from patches.training import CALL, MICRO, MINI, ROLES, UPDATES
from patches.verl.stages import DYNAMIC, INTERLEAVED, ITERATED, LEGACY, WHY, leave, loop, scheduled

_COUNTED = Text(
    "each call counts as a training step, because not every release of verl passes global_steps to this function"
)
_REMOVE = Text("the patch is no longer needed once nobody uses a release below {release} any more", "0.8.0")


class _Loops(NamedTuple):
    """Insertions for a stage's loops in a method, the windows that they count, and their shape in words."""

    insertions: tuple[Insertion, ...]
    windows: tuple[str, ...]
    shape: str


def _once(method: str) -> _Loops:
    """Return the lines and windows of a method with one loop over micro-batches."""
    micros = loop(method, MICRO, "micro_batches", last=True, windows=(MICRO,))
    return _Loops((_enter(method), micros, _end(method)), (MICRO, CALL), Text("a loop over all micro-batches"))


def _mini_batches(method: str) -> _Loops:
    """Return the lines and windows for `method`, a Megatron update with a loop over mini-batches.

    Micro-batches, which Megatron's schedule runs, are not counted here.
    """
    minis = loop(method, MINI, "dataloader", last=True, windows=(MINI,))
    shape = Text("the function has one loop over the mini-batches; Megatron's schedule runs the micro-batches")
    return _Loops((_enter(method), minis, _end(method)), (MINI, CALL), shape)


def _without_loop(method: str) -> _Loops:
    """Return the lines and windows of a method without a loop: Megatron's schedule runs its micro-batches.

    Only its whole calls are recorded.
    """
    return _Loops(
        (_enter(method), _end(method)),
        (CALL,),
        Text("the function has no loop; Megatron's schedule runs the micro-batches"),
    )


def _nested(method: str) -> _Loops:
    """Return the lines and windows for `method`, an FSDP update: a loop over micro-batches in one over mini-batches."""
    return _Loops(
        (
            _enter(method),
            loop(method, MINI, "mini_batches", "dataloader", windows=(MICRO, MINI)),
            loop(method, MICRO, "micro_batches", windows=(MICRO,)),
            leave(method, Text("all epochs of the call have ended when this line runs")),
        ),
        (MICRO, MINI, CALL),
        Text(
            "a loop over micro-batches inside a loop over mini-batches; since 0.3.0.post0, a loop over epochs around"
            " both"
        ),
    )


def _enter(method: str) -> Insertion:
    """Return the line that begins a call of the stage."""
    return Insertion(method, where=Head(), line='self._rlpatch_stage("enter")', why=_COUNTED)


def _end(method: str) -> Insertion:
    """Return the line that ends a call of the stage."""
    return leave(method, Text("the call that runs this stage ends here"), windows=(CALL,))


class _Worker(NamedTuple):
    """Worker class that contains the loops of its stages."""

    name: str
    strategy: str
    file: str
    class_name: str


_FSDP_ACTOR = _Worker("FSDP worker", "fsdp", "verl/workers/actor/dp_actor.py", "DataParallelPPOActor")
_FSDP_CRITIC = _Worker("FSDP worker", "fsdp", "verl/workers/critic/dp_critic.py", "DataParallelPPOCritic")
_MEGATRON_ACTOR = _Worker(
    Text("Megatron worker"), "megatron", "verl/workers/actor/megatron_actor.py", "MegatronPPOActor"
)
_MEGATRON_CRITIC = _Worker(
    Text("Megatron worker"), "megatron", "verl/workers/critic/megatron_critic.py", "MegatronPPOCritic"
)


def _in_loops(
    worker: _Worker,
    stage: str,
    loops_of: Callable[[str], _Loops],
    *,
    recorder_class: type,
    fingerprints: tuple[str, ...],
) -> Recipe:
    """Return the recipe for `stage` in the worker's method of the same name (with `_` for `-`).

    `loops_of` returns lines and windows for the name of the method, `recorder_class` is the recorder, which tells the
    role of a call; `fingerprints` are those of the method.
    """
    method = stage.replace("-", "_")
    loops = loops_of(method)
    return Recipe(
        name=worker.name,
        stage=stage,
        class_name=worker.class_name,
        method=method,
        windows=loops.windows,
        probe=training.probe(recorder_class, roles=ROLES[stage]),
        insertions=loops.insertions,
        structures=(Structure("", LEGACY, worker.file, fingerprints, loops.shape),),
        why=WHY,
        how=Text(
            "rlpatch wraps the batches over which the stage's loops iterate. Between two iterations, the wrapper"
            " starts, steps or stops the profiler. The trace is saved even if an exception ends the loop"
        ),
        upstream=Text("{file}, {first} to {last}", file=worker.file, first=LEGACY[0], last=LEGACY[-1]),
        needed_until=_REMOVE,
        strategies=(worker.strategy,),
        roles=ROLES[stage],
        unit_notes={MICRO: DYNAMIC} if MICRO in loops.windows else {},
    )


def _in_schedule(
    worker: _Worker, stage: str, model_attribute: str, *, recorder_class: type, fingerprints: tuple[str, ...]
) -> Recipe:
    """Return the recipe that counts the micro-batches of `stage`, which Megatron's schedule runs.

    `recorder_class` is the recorder, which tells the role of a call. `model_attribute` names the attribute of `worker`
    with the model's chunks, `fingerprints` are those of the method `forward_backward_batch`.
    """
    method, update = stage.replace("-", "_"), stage in UPDATES
    minis = (loop(method, MINI, "dataloader", last=True),) if update else ()
    schedule = "if mpu.get_pipeline_model_parallel_world_size() > 1: ..."
    return Recipe(
        name=f"{worker.name}, {training.plural(MICRO)}",
        stage=stage,
        class_name=worker.class_name,
        method="forward_backward_batch",
        windows=(MICRO,),
        probe=training.probe(recorder_class, members=(Loops, MegatronSchedule), roles=ROLES[stage]),
        insertions=(
            _enter(method),
            *minis,
            scheduled("forward_backward_batch", f"self.{model_attribute}", schedule, last=not update),
        ),
        structures=(
            Structure("", LEGACY, worker.file, fingerprints, Text("Megatron's schedule runs the micro-batches")),
        ),
        why=WHY,
        how=ITERATED,
        upstream=Text("{file}, {first} to {last}", file=worker.file, first=LEGACY[0], last=LEGACY[-1]),
        needed_until=_REMOVE,
        strategies=(worker.strategy,),
        roles=ROLES[stage],
        notes=(INTERLEAVED,),
        unit_notes={MICRO: DYNAMIC},
    )


_FSDP_UPDATE_POLICY = _in_loops(
    _FSDP_ACTOR,
    "update-policy",
    _nested,
    recorder_class=OneRole,
    fingerprints=(
        "38fada88526e", "f8c334a3f269", "7d3f4edbad65", "47f168a73526", "2a25d198b74f", "094a963ce4d8",
        "ac72ea292268", "d194a6763b97", "b7a34a566c39",
    ),
)  # fmt: skip
_MEGATRON_UPDATE_POLICY = _in_loops(
    _MEGATRON_ACTOR,
    "update-policy",
    _mini_batches,
    recorder_class=MegatronActor,
    fingerprints=(
        "1c5d0579d370", "68c43c3f800f", "852adec64a57", "02fca28a8380", "0c66a6163710", "fbe909dc904f",
        "6a76258258f3", "9c3a430747f3",
    ),
)  # fmt: skip
_FSDP_LOG_PROB = _in_loops(
    _FSDP_ACTOR,
    "compute-log-prob",
    _once,
    recorder_class=DataParallelActor,
    fingerprints=(
        "b247e88ebe38", "3690a88279fc", "87782a30aa03", "747994be98da", "d463407c4619", "cd8c049a7d88",
        "8eb1ad96921f",
    ),
)  # fmt: skip
_FSDP_UPDATE_CRITIC = _in_loops(
    _FSDP_CRITIC,
    "update-critic",
    _nested,
    recorder_class=OneRole,
    fingerprints=(
        "833cc3e1aca3", "fd510348cdb1", "a13a7a592d4c", "b63adfcf9f36", "72ef82fdd291", "a8934e955a51",
        "60cb2d469ff8",
    ),
)  # fmt: skip
_MEGATRON_UPDATE_CRITIC = _in_loops(
    _MEGATRON_CRITIC,
    "update-critic",
    _mini_batches,
    recorder_class=OneRole,
    fingerprints=("fea37f92c35d", "b683456591af", "42d1286fd19a", "a212d84a329c"),
)
_FSDP_VALUES = _in_loops(
    _FSDP_CRITIC,
    "compute-values",
    _once,
    recorder_class=OneRole,
    fingerprints=("fcc5484c4e2f", "f32e8d1f8dc7", "60cb36a6818d", "59e7dd531cf1", "684aec9f22f1"),
)

_MEGATRON_LOG_PROB = _in_loops(
    _MEGATRON_ACTOR,
    "compute-log-prob",
    _without_loop,
    recorder_class=MegatronLogProb,
    fingerprints=(
        "c2c77e24b18a", "ad41142a689f", "87ff9bb61611", "a04e4784c98f", "3877dbbbb514", "87fd67e9bf72",
    ),
)  # fmt: skip
_MEGATRON_VALUES = _in_loops(
    _MEGATRON_CRITIC,
    "compute-values",
    _without_loop,
    recorder_class=OneRole,
    fingerprints=("448c00465391", "04b953a51cb1", "ee8e87c0dff4", "c4be0ce0bafe", "cbfaccbdda0e"),
)
_ACTOR_SCHEDULE = (
    "68441e8660f3", "709cc66f2aa3", "80e074cf64a3", "110f85192f96", "94a9bf5a6b82", "1a70ce2884f7", "467f7ffe80b1",
    "3c5c14b0cf90", "a90eda089aaa",
)  # fmt: skip
_CRITIC_SCHEDULE = (
    "116c88e22887", "ed28e793225c", "4b1356d951f7", "5805302903b8", "73ae71e99daf", "6d2c2afa1ca5", "c149784b1c49",
)  # fmt: skip
_MEGATRON_MICRO = {
    stage: _in_schedule(worker, stage, chunks, recorder_class=recorder_class, fingerprints=fingerprints)
    for stage, worker, chunks, recorder_class, fingerprints in (
        ("update-policy", _MEGATRON_ACTOR, "actor_module", MegatronActor, _ACTOR_SCHEDULE),
        ("compute-log-prob", _MEGATRON_ACTOR, "actor_module", MegatronLogProb, _ACTOR_SCHEDULE),
        ("update-critic", _MEGATRON_CRITIC, "critic_module", OneRole, _CRITIC_SCHEDULE),
        ("compute-values", _MEGATRON_CRITIC, "critic_module", OneRole, _CRITIC_SCHEDULE),
    )
}

RECIPES = {
    "update-policy": (_FSDP_UPDATE_POLICY, _MEGATRON_UPDATE_POLICY, _MEGATRON_MICRO["update-policy"]),
    "compute-log-prob": (_FSDP_LOG_PROB, _MEGATRON_LOG_PROB, _MEGATRON_MICRO["compute-log-prob"]),
    "update-critic": (_FSDP_UPDATE_CRITIC, _MEGATRON_UPDATE_CRITIC, _MEGATRON_MICRO["update-critic"]),
    "compute-values": (_FSDP_VALUES, _MEGATRON_VALUES, _MEGATRON_MICRO["compute-values"]),
}
"""Those of each stage."""
