"""slime: where the updates of actor and critic are recorded, and their forwards over a rollout, on git checkouts."""

from __future__ import annotations

from patcher.messages import Note, Text
from patcher.processes import Processes
from patcher.recipe import Around, Before, Head, Insertion, Recipe, Structure, Upstream
from patcher.targets.target import Project
from patches import training
from patches.probes.members import Loops
from patches.probes.slime import ModelSteps
from patches.probes.verl import MegatronSchedule
from patches.releases import Releases
from patches.slime import PROJECT, RELEASES, slime_timeline, slime_weights
from patches.slime.slime_switches import SWITCHES
from patches.timeline_stage import Timeline
from patches.training import CALL, MICRO, MINI, ROLES, UPDATES
from patches.weights_stage import Weights

_FILE = "backends/megatron_utils/model.py"
_INTERLEAVED = Note(
    Text("with pipeline parallelism, use --call or --mini-batch, not --micro-batch"),
    Text(
        "with pipeline_model_parallel_size above 1, or several model chunks, Megatron's schedule interleaves"
        " micro-batches. In the update stages, overlap_moe_expert_parallel_comm interleaves micro-batches, too, even"
        " without pipeline parallelism. In these cases a --micro-batch window records nothing, and the log says so"
    ),
)
_COUNTED = Note(
    Text("each rollout counts as one training step; each process counts from 1"),
    Text(
        "without a restart, training step N is slime's rollout_id N - 1. After a restart from a checkpoint, the count"
        " begins at 1 again. Steps in which the actor only waits for the critic to train (num_critic_only_steps) do"
        " not count for the actor"
    ),
)
_REUSED = Note(
    Text("slime can skip compute-log-prob if a rollout is one mini-batch"),
    Text(
        "if slime (from 0.3.0 on) skips this stage, the update computes the actor's log-probs itself; see"
        " can_reuse_log_probs_in_loss in slime/backends/megatron_utils/actor.py. The reference's log-probs are still"
        " computed before the update"
    ),
)
_DYNAMIC = Note(Text("with use_dynamic_batch_size, micro-batches differ in size: record several"))


def _micro_lines(method: str, schedule: str, count: str, *, last: bool) -> tuple[Insertion, Insertion]:
    """Return the insertions that count the micro-batches in `method`.

    One is around the statement `schedule`, which runs them, one in the nested function `forward_step`, which Megatron
    calls for each. `count` is the code for the number of micro-batches; with `last`, the call of the stage ends after
    them.
    """
    last_one = ", last=True" * last
    return (
        Insertion(
            method,
            where=Around(schedule, after="_rlpatch_stage_ended(_rlpatch_stage_micros)", nested=False),
            line=f'_rlpatch_stage_micros = _rlpatch_stage_scheduled("{MICRO}",'
            f" iter(data_iterator[:1] * {count}), mpu, model{last_one})",
            why=Text(
                "rlpatch counts micro-batches by the items that Megatron's schedule takes from an iterator, one item"
                " for each micro-batch. No item follows the last micro-batch, so the last micro-batch ends only when"
                " the schedule returns, and its time includes the gradient reduction"
            ),
            parameters=("data_iterator", "num_microbatches", "model"),
            windows=(MICRO,),
        ),
        Insertion(
            f"{method}.forward_step",
            where=Head(),
            line="next(_rlpatch_stage_micros, None)",
            why=Text(
                "without pipeline parallelism, Megatron's schedule calls this function once for each"
                " micro-batch, and runs the backward of that micro-batch before the next call"
            ),
            windows=(MICRO,),
        ),
    )


_UPDATE = (
    Insertion(
        "train",
        where=Head(),
        line='_rlpatch_stage("enter", model)',
        why=Text("this function is called once in a training step, with the whole rollout of this rank"),
        parameters=("model",),
    ),
    Insertion(
        "train",
        where=Around("train_one_step(...)", after=f'_rlpatch_stage("stop", "{MINI}")'),
        line=f'_rlpatch_stage("start", "{MINI}", None)',
        why=Text("this call is one mini-batch with its optimizer step"),
        windows=(MICRO, MINI),
    ),
    Insertion(
        "train",
        where=Before("if pre_hook_enabled: ..."),
        line='_rlpatch_stage("leave")',
        why=Text("all mini-batches of the rollout have ended when this line runs"),
    ),
    *_micro_lines("train_one_step", "forward_backward_func(...)", "num_microbatches", last=False),
)
_FORWARD = (
    Insertion(
        "forward_only",
        where=Head(),
        line='_rlpatch_stage("enter", model, store_prefix)',
        why=Text("this function is called once per role in a training step, with the whole rollout of this rank"),
        parameters=("model", "store_prefix"),
    ),
    Insertion(
        "forward_only",
        where=Before("rollout_data = {}"),
        line='_rlpatch_stage("leave")',
        why=Text("when this line runs, all micro-batches made from the rollout's data have ended"),
        windows=(CALL,),
    ),
    *_micro_lines(
        "forward_only", "for step_id in range(num_steps_per_rollout): ...", "sum(num_microbatches)", last=True
    ),
)


_TRAIN = ("43b0cd1f4547", "a342d761caf8", "96c0b091535e", "23febbd08708", "63afe28a06fc")
_FORWARD_ONLY = ("0f20a215256e", "247b519b466b", "fa3378689d85", "69216a4277e4", "abac1859c514")
_STAGES = ("update-policy", "compute-log-prob", "update-critic", "compute-values")


def _recipe(stage: str, package: str, releases: Releases, fingerprints: tuple[str, ...]) -> Recipe:
    """Return the recipe for `stage` of the Megatron backend in `package`, which is slime or a fork of it.

    `fingerprints` are hashes of the backend's function `train` (for updates) or `forward_only`.
    """
    update, file = stage in UPDATES, f"{package}/{_FILE}"
    return Recipe(
        name=Text("Megatron backend"),
        stage=stage,
        class_name="",
        method="train" if update else "forward_only",
        windows=(MICRO, MINI, CALL) if update else (MICRO, CALL),
        probe=training.probe(ModelSteps, members=(Loops, MegatronSchedule), roles=ROLES[stage]),
        insertions=_UPDATE if update else _FORWARD,
        structures=(
            Structure(
                "",
                releases,
                file,
                fingerprints,
                Text("a loop over mini-batches, each of which Megatron's schedule runs")
                if update
                else Text(
                    "a loop over the mini-batches of the rollout; Megatron's schedule runs the micro-batches of each"
                ),
            ),
        ),
        why=Text(
            "{package}'s own profiler (--use-pytorch-profiler) records whole rollouts, whose traces are too large to"
            " read. rlpatch records a single mini-batch or micro-batch instead, which keeps the trace small",
            package,
        ),
        how=Text(
            "inserts one line at the start and one at the end of the function, and lines around the calls that run a"
            " mini-batch or micro-batch. The inserted lines call a recorder, whose code is added at the end of the"
            " module"
        ),
        upstream=Text("{file}, from {release} on", file=file, release=releases[0]),
        needed_until=Text(
            "the patch is no longer needed once {package}'s profiler can record a window of mini-batches or"
            " micro-batches",
            package,
        ),
        strategies=("megatron",),
        roles=ROLES[stage],
        notes=(_INTERLEAVED, _COUNTED, _REUSED) if stage == "compute-log-prob" else (_INTERLEAVED, _COUNTED),
        unit_notes={MICRO: _DYNAMIC},
    )


def upstream(project: Project, train: tuple[str, ...], forward_only: tuple[str, ...], *more: Recipe) -> Upstream:
    """Return the declarations of slime or a fork of it: recipes, switches of other profilers, processes, defaults.

    `train` and `forward_only` are the fingerprints of these functions. `more` are the recipes of the timeline and of
    weight syncs.
    """
    package, releases = project.package, Releases(project.releases)
    return Upstream(
        project,
        recipes=(
            *(_recipe(stage, package, releases, train if stage in UPDATES else forward_only) for stage in _STAGES),
            *more,
        ),
        switches=SWITCHES,
        engines=("sglang",),
        tool="torch",
        processes=Processes(titles=("ray::MegatronTrainRayActor",)),
        builtin={
            f">={releases[0]}": Text(
                "--use-pytorch-profiler with --profile-target train_overall records whole rollouts on every rank, with"
                " stacks, shapes and memory. It records from rollout --profile-step-start up to (not including)"
                " rollout --profile-step-end. This profiler has no windows or marks for mini-batches or micro-batches."
            )
        },
    )


_TIMELINE = Timeline(PROJECT.package, RELEASES)
_WEIGHTS = Weights(PROJECT.package, RELEASES)
_SENDS_DISTRIBUTED = "UpdateWeightFromDistributed._update_bucket_weights_from_distributed"

UPSTREAM = upstream(
    PROJECT,
    _TRAIN,
    _FORWARD_ONLY,
    *slime_timeline.recipes(
        _TIMELINE,
        slime_timeline.timer(_TIMELINE, "observability/timer.py", Releases(("main",))),
        slime_timeline.manager(_TIMELINE, "ray/rollout.py"),
        slime_timeline.sender(_TIMELINE, "distributed.py", "UpdateWeightFromDistributed"),
        slime_timeline.sender(_TIMELINE, "disk.py", "UpdateWeightFromDisk", RELEASES.since("0.3.1")),
    ),
    *slime_weights.recipes(
        _WEIGHTS,
        slime_weights.sender(
            _WEIGHTS, "tensor.py", "UpdateWeightFromTensor._send_hf_params", more=(slime_weights.answers(_WEIGHTS),)
        ),
        slime_weights.sender(_WEIGHTS, "distributed.py", _SENDS_DISTRIBUTED),
    ),
)
