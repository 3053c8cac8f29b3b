"""OpenRLHF: where the updates of actor and critic are recorded, and their forwards over a rollout."""

from __future__ import annotations

from patcher.messages import Note, Text
from patcher.processes import Processes
from patcher.recipe import Around, Before, Head, Insertion, Recipe, Structure, Upstream
from patches import training
from patches.openrlhf import PROJECT, RELEASES, openrlhf_timeline, openrlhf_weights
from patches.openrlhf.openrlhf_switches import SWITCHES
from patches.probes.openrlhf import Batches, ReplayUpdate
from patches.training import MICRO, MINI, ROLES

_REMOVE = Text(
    "the patch is no longer needed once OpenRLHF itself can record a window of micro-batches or mini-batches"
)
_WHY = Text(
    "OpenRLHF has no profiler. A profiler put around ppo_train() by hand records every micro-batch of every"
    " epoch, on every rank"
)
_COUNTED = Note(
    Text("each stage counts its own calls: one call is one training step"),
    Text(
        "these step numbers can differ from those in the log: with freezing_actor_steps the actor skips the first"
        " training steps, and after a restart from a checkpoint the numbers begin at 1 again"
    ),
)
_OPTIMIZER = Note(
    Text("the last micro-batch of a mini-batch includes the optimizer step"),
    Text(
        "the optimizer step runs in the same method as the micro-batch. A mini-batch consists of all micro-batches up"
        " to an optimizer step; with dynamic batching, the number of micro-batches varies"
    ),
)


def _update(stage: str, *, role: str, class_name: str, fingerprints: tuple[str, ...]) -> Recipe:
    """Return the recipe for `stage`, the update of `role` ("actor" or "critic"), in its trainer class `class_name`.

    `fingerprints` are hashes of its method `ppo_train` in the published releases.
    """
    method, file = "ppo_train", f"openrlhf/trainer/ray/ppo_{role}.py"
    return Recipe(
        name=Text("trainer of the {role}", role),
        stage=stage,
        class_name=class_name,
        method=method,
        windows=(MICRO, MINI),
        probe=training.probe(ReplayUpdate, roles=ROLES[stage]),
        insertions=(
            Insertion(
                method,
                where=Head(),
                line='self._rlpatch_stage("enter")',
                why=Text("one call of this function, with all its epochs, counts as a training step"),
            ),
            Insertion(
                method,
                where=Around("self.training_step(...)", after='self._rlpatch_stage("stop", "micro-batch")'),
                line='self._rlpatch_stage("start", "micro-batch", {"input_ids": experience.sequences})',
                why=Text("forward and backward of one micro-batch, and DeepSpeed's optimizer step if one is due"),
            ),
            Insertion(
                method,
                where=Before("if status_list: ..."),
                line='self._rlpatch_stage("leave")',
                why=Text("all epochs of the call have ended when this line runs"),
            ),
        ),
        structures=(
            Structure("", RELEASES, file, fingerprints, Text("a loop over micro-batches inside a loop over epochs")),
        ),
        why=_WHY,
        how=Text(
            "inserts one line at the start of the function, one after the loop over the epochs, and one before and"
            " one after each micro-batch. Each optimizer step ends a mini-batch"
        ),
        upstream=Text("{file}, from {release} on", file=file, release=RELEASES[0]),
        needed_until=_REMOVE,
        roles=(role,),
        notes=(_COUNTED, _OPTIMIZER),
    )


def _forward(stage: str) -> Recipe:
    """Return the recipe for the forward passes of `stage` over a rollout, in the base class of OpenRLHF's workers."""
    file = "openrlhf/trainer/ray/launcher.py"
    method = "execute_batch"
    return Recipe(
        name="worker",
        stage=stage,
        class_name="BaseModelActor",
        method=method,
        windows=(MICRO,),
        probe=training.probe(Batches, roles=ROLES[stage]),
        insertions=(
            Insertion(
                method,
                where=Head(),
                line='self._rlpatch_stage("enter", method_name)',
                why=Text(
                    "one call of forward over the data of a whole rollout counts as a training step; the worker's"
                    " class determines the worker's role"
                ),
                parameters=("method_name",),
            ),
            Insertion(
                method,
                where=Around("func(...)", after='self._rlpatch_stage("stop", "micro-batch")'),
                line='self._rlpatch_stage("start", "micro-batch", {"input_ids": sample_kwargs.get("sequences")})',
                why=Text("the forward of one micro-batch of the rollout runs here"),
            ),
            Insertion(
                method,
                where=Before("return ..."),
                line='self._rlpatch_stage("leave")',
                why=Text("every micro-batch of the rollout has gone through the model"),
            ),
        ),
        structures=(
            Structure("", RELEASES, file, ("ded24382df9d",), Text("one loop over the micro-batches of the rollout")),
        ),
        why=_WHY,
        how=Text(
            "inserts one line at the start and one at the end of the call, and one line before and one after each"
            " forward"
        ),
        upstream=Text("{file}, from {release} on", file=file, release=RELEASES[0]),
        needed_until=_REMOVE,
        roles=ROLES[stage],
        notes=(_COUNTED,),
    )


UPSTREAM = Upstream(
    PROJECT,
    recipes=(
        _update(
            "update-policy",
            role="actor",
            class_name="ActorPPOTrainer",
            fingerprints=(
                *("e8b4222cf5b2", "8bfb34be3d1d", "c6f1a2b463b0", "47721a370c12", "3211eeb5e961", "f54f76e9e75a"),
                "eca7e7758640",
            ),
        ),
        _forward("compute-log-prob"),
        _update(
            "update-critic",
            role="critic",
            class_name="CriticPPOTrainer",
            fingerprints=("b8556d2c801c", "5e8e172af942", "4eec0c6d7b91", "0d1227a44a23"),
        ),
        _forward("compute-values"),
        *openrlhf_timeline.RECIPES,
        *openrlhf_weights.RECIPES,
    ),
    switches=SWITCHES,
    engines=("vllm-ascend", "vllm"),
    tool="torch",
    processes=Processes(
        modules=("openrlhf.cli",), titles=("ray::PolicyModelActor", "ray::ReferenceModelActor", "ray::CriticModelActor")
    ),
    builtin={">=0.9.1": Text("OpenRLHF has no profiler; it only logs how long each stage took.")},
)
