"""slime: where the updates of actor and critic are recorded, and their forwards over a rollout, on git checkouts."""

from __future__ import annotations

from patcher.messages import Note, Text
from patcher.processes import Processes
from patcher.recipe import Around, Before, Head, Insertion, Recipe, Structure, Upstream
from patches import training
from patches.probes.members import Loops
from patches.probes.slime import ModelSteps
from patches.probes.verl import MegatronSchedule
from patches.slime import PROJECT, RELEASES
from patches.slime.slime_switches import SWITCHES
from patches.training import CALL, MICRO, MINI, ROLES, UPDATES

_FILE = "slime/backends/megatron_utils/model.py"
_LOGGER = "slime.rlpatch"
_INTERLEAVED = Note(
    Text("with a pipeline there are no micro-batches: take --call, or --mini-batch"),
    Text(
        "with pipeline_model_parallel_size above 1, or several model chunks, Megatron's schedule interleaves forward"
        " and backward of several micro-batches, and with overlap_moe_expert_parallel_comm it does so in updates"
        " without a pipeline, too. Nothing is recorded then, and the log says so"
    ),
)
_COUNTED = Note(
    Text("a training step is a rollout, counted from 1 in each process"),
    Text(
        "in a run from its start it is rollout_id and one; after a checkpoint it begins at 1 again, and an actor that"
        " waits for its critic (num_critic_only_steps) begins later"
    ),
)
_REUSED = Note(
    Text("with one mini-batch a rollout, no call computes the actor's log-probs"),
    Text(
        "from 0.3.0 on slime takes them out of its update then: see can_reuse_log_probs_in_loss in"
        " slime/backends/megatron_utils/actor.py; the reference is computed all the same"
    ),
)
_DYNAMIC = Note(Text("with use_dynamic_batch_size one micro-batch says little about the others"))


def _micros(method: str, schedule: str, count: str, *, last: bool) -> tuple[Insertion, Insertion]:
    """Return the lines that count the micro-batches of `schedule` in `method`; with `last` their end ends the call.

    `count` is the code of their number.
    """
    last_one = ", last=True" * last
    return (
        Insertion(
            method,
            where=Around(schedule, after="_rlpatch_stage_ended(_rlpatch_stage_micros)", nested=False),
            line=f'_rlpatch_stage_micros = _rlpatch_stage_scheduled("{MICRO}",'
            f" iter(data_iterator[:1] * {count}), mpu, model{last_one})",
            why=Text(
                "one turn for each micro-batch that Megatron's schedule is about to run; the last one ends behind it,"
                " with the reduction of the gradients"
            ),
            parameters=("data_iterator", "num_microbatches", "model"),
            windows=(MICRO,),
        ),
        Insertion(
            f"{method}.forward_step",
            where=Head(),
            line="next(_rlpatch_stage_micros, None)",
            why=Text(
                "without a pipeline the schedule calls it once for each micro-batch, and goes backward before the next"
            ),
            windows=(MICRO,),
        ),
    )


_UPDATE = (
    Insertion(
        "train",
        where=Head(),
        line='_rlpatch_stage("enter", model)',
        why=Text("it is called once in a training step, with the whole rollout of this rank"),
        parameters=("model",),
    ),
    Insertion(
        "train",
        where=Around("train_one_step(...)", after=f'_rlpatch_stage("stop", "{MINI}")'),
        line=f'_rlpatch_stage("start", "{MINI}", None)',
        why=Text("it is one mini-batch with its optimizer step"),
        windows=(MICRO, MINI),
    ),
    Insertion(
        "train",
        where=Before("if pre_hook_enabled: ..."),
        line='_rlpatch_stage("leave")',
        why=Text("all mini-batches of the rollout are done"),
    ),
    *_micros("train_one_step", "forward_backward_func(...)", "num_microbatches", last=False),
)
_FORWARD = (
    Insertion(
        "forward_only",
        where=Head(),
        line='_rlpatch_stage("enter", model, store_prefix)',
        why=Text("it is called once in a training step for each role, with the whole rollout of this rank"),
        parameters=("model", "store_prefix"),
    ),
    Insertion(
        "forward_only",
        where=Before("rollout_data = {}"),
        line='_rlpatch_stage("leave")',
        why=Text("all micro-batches of the rollout are done"),
        windows=(CALL,),
    ),
    *_micros("forward_only", "for step_id in range(num_steps_per_rollout): ...", "sum(num_microbatches)", last=True),
)


_TRAIN = ("43b0cd1f4547", "a342d761caf8", "96c0b091535e", "23febbd08708", "63afe28a06fc")
_FORWARD_ONLY = ("0f20a215256e", "247b519b466b", "fa3378689d85", "69216a4277e4", "abac1859c514")


def _stage(stage: str) -> Recipe:
    """Return the recipe for a stage of slime's Megatron backend."""
    update = stage in UPDATES
    return Recipe(
        name=Text("Megatron backend"),
        stage=stage,
        class_name="",
        method="train" if update else "forward_only",
        windows=(MICRO, MINI, CALL) if update else (MICRO, CALL),
        probe=training.probe(ModelSteps, members=(Loops, MegatronSchedule), roles=ROLES[stage], logger=_LOGGER),
        insertions=_UPDATE if update else _FORWARD,
        structures=(
            Structure(
                "",
                RELEASES,
                _FILE,
                _TRAIN if update else _FORWARD_ONLY,
                Text("a loop over the mini-batches, each in Megatron's schedule")
                if update
                else Text("Megatron's schedule in a loop"),
            ),
        ),
        why=Text(
            "slime's own profiler (--use-pytorch-profiler) records whole rollouts with all that is in them: a trace of"
            " one mini-batch or of one micro-batch can be read"
        ),
        how=Text(
            "one line at the head of the function and one at its end, others at what runs a mini-batch or a"
            " micro-batch; the recorder stands at the end of the module, with an object that has its members"
        ),
        upstream=f"{_FILE}, from {RELEASES[0]} on",
        remove_when=Text("slime's profiler takes a window of mini-batches and micro-batches"),
        strategies=("megatron",),
        roles=ROLES[stage],
        notes=(_INTERLEAVED, _COUNTED, _REUSED) if stage == "compute-log-prob" else (_INTERLEAVED, _COUNTED),
        unit_notes={MICRO: _DYNAMIC},
    )


UPSTREAM = Upstream(
    PROJECT,
    recipes=(
        _stage("update-policy"),
        _stage("compute-log-prob"),
        _stage("update-critic"),
        _stage("compute-values"),
    ),
    switches=SWITCHES,
    tool="torch",
    processes=Processes(titles=("ray::MegatronTrainRayActor",)),
    builtin={
        ">=0.2.1": Text(
            "--use-pytorch-profiler with --profile-target train_overall records whole rollouts from"
            " --profile-step-start up to --profile-step-end on every rank, with stacks, shapes and memory. It has no"
            " window of mini-batches or micro-batches, and writes no mark for them."
        )
    },
)
