"""verl: the workers that have the loops themselves, ``dp_*.py`` and ``megatron_*.py`` up to 0.7.1."""

from __future__ import annotations

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


class _Worker(NamedTuple):
    """Worker class that contains the loops of its stages; `chunks` is its attribute with the model's chunks."""

    name: str
    strategy: str
    file: str
    class_name: str
    chunks: str = ""


_FSDP_ACTOR = _Worker("FSDP worker", "fsdp", "verl/workers/actor/dp_actor.py", "DataParallelPPOActor")
_FSDP_CRITIC = _Worker("FSDP worker", "fsdp", "verl/workers/critic/dp_critic.py", "DataParallelPPOCritic")
_MEGATRON_ACTOR = _Worker(
    Text("Megatron worker"), "megatron", "verl/workers/actor/megatron_actor.py", "MegatronPPOActor", "actor_module"
)
_MEGATRON_CRITIC = _Worker(
    Text("Megatron worker"), "megatron", "verl/workers/critic/megatron_critic.py", "MegatronPPOCritic", "critic_module"
)


def _method(stage: str) -> str:
    """Return the name of the worker's method that runs a stage."""
    return stage.replace("-", "_")


def _enter(stage: str) -> Insertion:
    """Return the line that begins a call of the stage."""
    return Insertion(_method(stage), where=Head(), line='self._rlpatch_stage("enter")', why=_COUNTED)


def _end(stage: str) -> Insertion:
    """Return the line that ends a call of the stage."""
    return leave(_method(stage), Text("the call that runs this stage ends here"), windows=(CALL,))


def _recipe(
    worker: _Worker,
    stage: str,
    recorder_class: type,
    fingerprints: tuple[str, ...],
    insertions: tuple[Insertion, ...],
    windows: tuple[str, ...],
    shape: str,
) -> Recipe:
    """Return the recipe for `stage` in the worker's method of the same name (with `_` for `-`).

    `recorder_class` is the recorder, which tells the role of a call; `fingerprints` are those of the method, `shape`
    describes its loops in words. `windows` are the kinds of step that the `insertions` count.
    """
    return Recipe(
        name=worker.name,
        stage=stage,
        class_name=worker.class_name,
        method=_method(stage),
        windows=windows,
        probe=training.probe(recorder_class, roles=ROLES[stage]),
        insertions=insertions,
        structures=(Structure("", LEGACY, worker.file, fingerprints, shape),),
        why=WHY,
        how=Text(
            "rlpatch wraps the batches over which the stage's loops iterate. Between two iterations, the wrapper"
            " starts, steps or stops the profiler. The trace is saved even if an exception ends the loop"
        ),
        upstream=Text("{file}, {first} to {last}", file=worker.file, first=LEGACY[0], last=LEGACY[-1]),
        needed_until=Text("the patch is no longer needed once nobody uses a release below {release} any more", "0.8.0"),
        strategies=(worker.strategy,),
        roles=ROLES[stage],
        unit_notes={MICRO: DYNAMIC} if MICRO in windows else {},
    )


def _once(worker: _Worker, stage: str, recorder_class: type, fingerprints: tuple[str, ...]) -> Recipe:
    """Return the recipe for a method with one loop over micro-batches."""
    micros = loop(_method(stage), MICRO, "micro_batches", last=True, windows=(MICRO,))
    insertions, shape = (_enter(stage), micros, _end(stage)), Text("a loop over all micro-batches")
    return _recipe(worker, stage, recorder_class, fingerprints, insertions, (MICRO, CALL), shape)


def _mini_batches(worker: _Worker, stage: str, recorder_class: type, fingerprints: tuple[str, ...]) -> Recipe:
    """Return the recipe for a Megatron update with a loop over mini-batches; `_in_schedule` counts micro-batches."""
    minis = loop(_method(stage), MINI, "dataloader", last=True, windows=(MINI,))
    insertions = (_enter(stage), minis, _end(stage))
    shape = Text("the function has one loop over the mini-batches; Megatron's schedule runs the micro-batches")
    return _recipe(worker, stage, recorder_class, fingerprints, insertions, (MINI, CALL), shape)


def _without_loop(worker: _Worker, stage: str, recorder_class: type, fingerprints: tuple[str, ...]) -> Recipe:
    """Return the recipe for the whole calls of a method whose micro-batches Megatron's schedule runs."""
    insertions = (_enter(stage), _end(stage))
    shape = Text("the function has no loop; Megatron's schedule runs the micro-batches")
    return _recipe(worker, stage, recorder_class, fingerprints, insertions, (CALL,), shape)


def _nested(worker: _Worker, stage: str, recorder_class: type, fingerprints: tuple[str, ...]) -> Recipe:
    """Return the recipe for an FSDP update: a loop over micro-batches in one over mini-batches."""
    method = _method(stage)
    insertions = (
        _enter(stage),
        loop(method, MINI, "mini_batches", "dataloader", windows=(MICRO, MINI)),
        loop(method, MICRO, "micro_batches", windows=(MICRO,)),
        leave(method, Text("all epochs of the call have ended when this line runs")),
    )
    shape = Text(
        "a loop over micro-batches inside a loop over mini-batches; since 0.3.0.post0, a loop over epochs around both"
    )
    return _recipe(worker, stage, recorder_class, fingerprints, insertions, (MICRO, MINI, CALL), shape)


def _in_schedule(worker: _Worker, stage: str, recorder_class: type, fingerprints: tuple[str, ...]) -> Recipe:
    """Return the recipe that counts the micro-batches of `stage`, which Megatron's schedule runs.

    `fingerprints` are those of the method `forward_backward_batch`.
    """
    method, update = "forward_backward_batch", stage in UPDATES
    minis = (loop(_method(stage), MINI, "dataloader", last=True),) if update else ()
    statement = "if mpu.get_pipeline_model_parallel_world_size() > 1: ..."
    micros = scheduled(method, f"self.{worker.chunks}", statement, last=not update)
    shape = Text("Megatron's schedule runs the micro-batches")
    recipe = _recipe(worker, stage, recorder_class, fingerprints, (_enter(stage), *minis, micros), (MICRO,), shape)
    return recipe._replace(
        name=f"{worker.name}, {training.plural(MICRO)}",
        method=method,
        probe=training.probe(recorder_class, members=(Loops, MegatronSchedule), roles=ROLES[stage]),
        how=ITERATED,
        notes=(INTERLEAVED,),
    )


_ACTOR_SCHEDULE = (
    "68441e8660f3", "709cc66f2aa3", "80e074cf64a3", "110f85192f96", "94a9bf5a6b82", "1a70ce2884f7", "467f7ffe80b1",
    "3c5c14b0cf90", "a90eda089aaa",
)  # fmt: skip
_CRITIC_SCHEDULE = (
    "116c88e22887", "ed28e793225c", "4b1356d951f7", "5805302903b8", "73ae71e99daf", "6d2c2afa1ca5", "c149784b1c49",
)  # fmt: skip

RECIPES = {
    "update-policy": (
        _nested(_FSDP_ACTOR, "update-policy", OneRole, (
            "38fada88526e", "f8c334a3f269", "7d3f4edbad65", "47f168a73526", "2a25d198b74f", "094a963ce4d8",
            "ac72ea292268", "d194a6763b97", "b7a34a566c39",
        )),
        _mini_batches(_MEGATRON_ACTOR, "update-policy", MegatronActor, (
            "1c5d0579d370", "68c43c3f800f", "852adec64a57", "02fca28a8380", "0c66a6163710", "fbe909dc904f",
            "6a76258258f3", "9c3a430747f3",
        )),
        _in_schedule(_MEGATRON_ACTOR, "update-policy", MegatronActor, _ACTOR_SCHEDULE),
    ),
    "compute-log-prob": (
        _once(_FSDP_ACTOR, "compute-log-prob", DataParallelActor, (
            "b247e88ebe38", "3690a88279fc", "87782a30aa03", "747994be98da", "d463407c4619", "cd8c049a7d88",
            "8eb1ad96921f",
        )),
        _without_loop(_MEGATRON_ACTOR, "compute-log-prob", MegatronLogProb, (
            "c2c77e24b18a", "ad41142a689f", "87ff9bb61611", "a04e4784c98f", "3877dbbbb514", "87fd67e9bf72",
        )),
        _in_schedule(_MEGATRON_ACTOR, "compute-log-prob", MegatronLogProb, _ACTOR_SCHEDULE),
    ),
    "update-critic": (
        _nested(_FSDP_CRITIC, "update-critic", OneRole, (
            "833cc3e1aca3", "fd510348cdb1", "a13a7a592d4c", "b63adfcf9f36", "72ef82fdd291", "a8934e955a51",
            "60cb2d469ff8",
        )),
        _mini_batches(_MEGATRON_CRITIC, "update-critic", OneRole, (
            "fea37f92c35d", "b683456591af", "42d1286fd19a", "a212d84a329c",
        )),
        _in_schedule(_MEGATRON_CRITIC, "update-critic", OneRole, _CRITIC_SCHEDULE),
    ),
    "compute-values": (
        _once(_FSDP_CRITIC, "compute-values", OneRole, (
            "fcc5484c4e2f", "f32e8d1f8dc7", "60cb36a6818d", "59e7dd531cf1", "684aec9f22f1",
        )),
        _without_loop(_MEGATRON_CRITIC, "compute-values", OneRole, (
            "448c00465391", "04b953a51cb1", "ee8e87c0dff4", "c4be0ce0bafe", "cbfaccbdda0e",
        )),
        _in_schedule(_MEGATRON_CRITIC, "compute-values", OneRole, _CRITIC_SCHEDULE),
    ),
}  # fmt: skip
"""Stage → its recipes; the numbers are the fingerprints of its method."""
