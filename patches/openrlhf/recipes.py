"""OpenRLHF: where the updates of actor and critic are recorded, and their forwards over a rollout."""

from __future__ import annotations

from patcher.messages import Note, Text
from patcher.processes import Processes
from patcher.recipe import Around, Before, Head, Insertion, Recipe, Structure, Upstream
from patches import training
from patches.openrlhf import PROJECT, RELEASES, openrlhf_timeline
from patches.openrlhf.openrlhf_switches import SWITCHES
from patches.probes.openrlhf import Batches, ReplayUpdate
from patches.training import MICRO, MINI, ROLES

_LOGGER = "openrlhf.rlpatch"
_REMOVE = Text("OpenRLHF takes a window of micro-batches or mini-batches")
_WHY = Text(
    "OpenRLHF has no profiler: one that is put around ppo_train() by hand records every micro-batch of every epoch, on"
    " every rank"
)
_COUNTED = Note(
    Text("calls of a stage are counted as training steps"),
    Text(
        "with freezing_actor_steps the actor is not updated in the first ones of the log, and after a checkpoint the"
        " log goes on while the count begins at 1"
    ),
)
_OPTIMIZER = Note(
    Text("the last micro-batch of a mini-batch holds the optimizer step, too"),
    Text(
        "it is taken in the same method; a mini-batch is as many as accumulate the gradient, or those up to where a"
        " dynamic batch steps"
    ),
)


def _update(stage: str, *, role: str, class_name: str, fingerprints: tuple[str, ...]) -> Recipe:
    """Return the recipe for the update of a role, in the trainer class of its worker."""
    method, file = "ppo_train", f"openrlhf/trainer/ray/ppo_{role}.py"
    return Recipe(
        name=Text("{role} trainer", role),
        stage=stage,
        class_name=class_name,
        method=method,
        windows=(MICRO, MINI),
        probe=training.probe(ReplayUpdate, roles=ROLES[stage], logger=_LOGGER),
        insertions=(
            Insertion(
                method,
                where=Head(),
                line='self._rlpatch_stage("enter")',
                why=Text("a call, with all its epochs, is counted as a training step"),
            ),
            Insertion(
                method,
                where=Around("self.training_step(...)", after='self._rlpatch_stage("stop", "micro-batch")'),
                line='self._rlpatch_stage("start", "micro-batch", {"input_ids": experience.sequences})',
                why=Text("one micro-batch, forward and backward, and DeepSpeed's optimizer step where one is due"),
            ),
            Insertion(
                method,
                where=Before("if status_list: ..."),
                line='self._rlpatch_stage("leave")',
                why=Text("the epochs are over"),
            ),
        ),
        structures=(
            Structure("", RELEASES, file, fingerprints, Text("a loop over micro-batches in one over the epochs")),
        ),
        why=_WHY,
        how=Text(
            "a line at the head and one behind the epochs, and two around each micro-batch; mini-batches follow from"
            " where the optimizer steps"
        ),
        upstream=f"{file}, from {RELEASES[0]} on",
        remove_when=_REMOVE,
        roles=(role,),
        notes=(_COUNTED, _OPTIMIZER),
    )


def _forward(stage: str) -> Recipe:
    """Return the recipe for the forwards of a stage, in the base class of all workers."""
    file = "openrlhf/trainer/ray/launcher.py"
    method = "execute_batch"
    return Recipe(
        name="worker",
        stage=stage,
        class_name="BaseModelActor",
        method=method,
        windows=(MICRO,),
        probe=training.probe(Batches, roles=ROLES[stage], logger=_LOGGER),
        insertions=(
            Insertion(
                method,
                where=Head(),
                line='self._rlpatch_stage("enter", method_name)',
                why=Text(
                    "a call of forward for a whole rollout is counted as a training step; the class tells whose it is"
                ),
                parameters=("method_name",),
            ),
            Insertion(
                method,
                where=Around("func(...)", after='self._rlpatch_stage("stop", "micro-batch")'),
                line='self._rlpatch_stage("start", "micro-batch", {"input_ids": sample_kwargs.get("sequences")})',
                why=Text("one part of the rollout, and one forward"),
            ),
            Insertion(
                method,
                where=Before("return ..."),
                line='self._rlpatch_stage("leave")',
                why=Text("all parts have been through the model"),
            ),
        ),
        structures=(Structure("", RELEASES, file, ("ded24382df9d",), Text("one loop over parts of the rollout")),),
        why=_WHY,
        how=Text("a line at the head and one at the end of the call, and two around each forward"),
        upstream=f"{file}, from {RELEASES[0]} on",
        remove_when=_REMOVE,
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
    ),
    switches=SWITCHES,
    tool="torch",
    processes=Processes(
        modules=("openrlhf.cli",), titles=("ray::PolicyModelActor", "ray::ReferenceModelActor", "ray::CriticModelActor")
    ),
    builtin={">=0.9.1": Text("OpenRLHF has no profiler; it logs how long each stage took.")},
)
