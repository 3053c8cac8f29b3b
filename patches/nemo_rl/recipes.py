"""NeMo-RL: where the updates of its policy workers are recorded, and their forwards over a rollout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from patcher.messages import Note, Text
from patcher.processes import Processes
from patcher.recipe import Around, Before, Gap, Head, Insertion, Loop, Recipe, Structure, Upstream
from patches import training
from patches.nemo_rl import PROJECT, RELEASES
from patches.nemo_rl.nemo_rl_switches import SWITCHES
from patches.probes.members import Loops
from patches.probes.nemo_rl import PolicyLogProbs, PolicyUpdate
from patches.releases import Releases
from patches.training import CALL, MICRO, MINI, ROLES

_UPDATE, _LOG_PROB = "update-policy", "compute-log-prob"
_REMOVE = Text("the patch is no longer needed once NeMo-RL itself can record a window of mini-batches or micro-batches")
_WHY = Text(
    "NeMo-RL's profiling with nsys (NRL_NSYS_PROFILE_STEP_RANGE) records whole training steps of a worker."
    " rlpatch records a single mini-batch or micro-batch instead, which keeps the trace small"
)
_DUMMIES = Note(
    Text("with sequence packing, the last micro-batches can be dummy batches"),
    Text(
        "a rank with fewer micro-batches than other ranks runs some of its own again; the results of these repetitions"
        " are not used"
    ),
)
_COUNTED = Note(
    Text("each stage counts its own calls: one call is one training step"),
    Text(
        "the first call in a process is training step 1, also after a restart from a checkpoint. Validations"
        " are not counted"
    ),
)


class _Worker(NamedTuple):
    """A class of policy workers in one file, its strategy, and the fingerprints of its methods in `releases`."""

    strategy: str
    class_name: str
    file: str
    releases: Releases
    train: tuple[str, ...]
    get_logprobs: tuple[str, ...]
    has_micro_batches: bool = False


def _in_releases(strategy: str, class_name: str, module: str, train: str, get_logprobs: str) -> Iterator[_Worker]:
    """Yield the worker class of a `strategy` for each range of releases, as its file and its name have changed.

    `module` is the name of its file without ".py"; `train` and `get_logprobs` are the hashes of these methods in all
    releases, separated by spaces.
    """
    folder, both = "nemo_rl/models/policy", (tuple(train.split()), tuple(get_logprobs.split()))
    yield _Worker(strategy, class_name, f"{folder}/{module}.py", Releases(("0.4.0",)), *both)
    yield _Worker(strategy, class_name, f"{folder}/workers/{module}.py", Releases(("0.5.0",)), *both)
    has_micro_batches = strategy == "dtensor-v2"
    releases = RELEASES.since("0.6.0")
    yield _Worker(strategy, f"{class_name}Impl", f"{folder}/workers/{module}.py", releases, *both, has_micro_batches)


_WORKERS = (
    *_in_releases(
        "dtensor",
        "DTensorPolicyWorker",
        "dtensor_policy_worker",
        "8055f0314fc3 c0cad9a8b431 a33c448f4583 e34b423c5dc1",
        "1a8dbfe70b06 0ea93eec5e17",
    ),
    *_in_releases(
        "dtensor-v2",
        "DTensorPolicyWorkerV2",
        "dtensor_policy_worker_v2",
        "32f1a61307f6 06954a45d915 5d71683199a3 b878715342dc",
        "dbf8a4f20ee4 57e82fc9de87 8a77128e9849",
    ),
    *_in_releases(
        "megatron",
        "MegatronPolicyWorker",
        "megatron_policy_worker",
        "85f4c1da2396 0ab1dc936456 66488e92e520 b0154f653738",
        "dd986ec88d2b cc375d2b37a8 4eb03266ac42 7fb388fdadfc",
    ),
)


def _recipe(worker: _Worker, stage: str, windows: tuple[str, ...], insertions: tuple[Insertion, ...]) -> Recipe:
    """Return the recipe for "update-policy" or "compute-log-prob" (`stage`) of a worker.

    `windows` are the kinds of step that it can count, `insertions` its lines.
    """
    update = stage == _UPDATE
    return Recipe(
        name=Text("{class_name} from {release} on", class_name=worker.class_name, release=worker.releases[0]),
        stage=stage,
        class_name=worker.class_name,
        method="train" if update else "get_logprobs",
        windows=windows,
        probe=training.probe(PolicyUpdate if update else PolicyLogProbs, members=(Loops,), roles=ROLES[stage]),
        insertions=insertions,
        structures=(
            Structure(
                "",
                worker.releases,
                worker.file,
                worker.train if update else worker.get_logprobs,
                Text("a loop over mini-batches")
                if update
                else Text("the function runs the forward over a whole rollout"),
            ),
        ),
        why=_WHY,
        how=Text(
            "inserts one line at the start and one at the end of the call, and one line wherever a mini-batch or"
            " micro-batch ends and the next one begins"
        ),
        upstream=Text("{file}, from {release} on", file=worker.file, release=worker.releases[0]),
        needed_until=_REMOVE,
        strategies=(worker.strategy,),
        roles=ROLES[stage],
        notes=(_COUNTED,),
        unit_notes={MICRO: _DUMMIES} if worker.has_micro_batches else {},
    )


def _update(worker: _Worker) -> Recipe:
    """Return the recipe for the update of a worker: lines where calls, mini-batches and micro-batches begin and end."""
    micro = Insertion(
        "train",
        where=Around("automodel_forward_backward(...)", after="del _rlpatch_micros"),
        line='_rlpatch_micros = processed_iterator = self._rlpatch_stage_units("micro-batch", processed_iterator)',
        why=Text("each micro-batch begins when the loop takes it from this iterator"),
        windows=(MICRO,),
    )
    return _recipe(
        worker,
        _UPDATE,
        (*((MICRO,) if worker.has_micro_batches else ()), MINI, CALL),
        (
            Insertion(
                "train",
                where=Before("with ctx: ..."),
                line='self._rlpatch_stage("begin", eval_mode)',
                why=Text("this call trains on the whole rollout of this rank; the first mini-batch begins here"),
                parameters=("eval_mode",),
            ),
            *((micro,) if worker.has_micro_batches else ()),
            Insertion(
                "train",
                where=Around(
                    "losses.append(...)", after='self._rlpatch_stage("go_on", gb_idx + 1 < num_global_batches)'
                ),
                line='self._rlpatch_stage("stop", "mini-batch")',
                why=Text(
                    "the optimizer step has ended when this line runs; then the next mini-batch begins, or the call"
                    " ends"
                ),
            ),
        ),
    )


def _log_prob(worker: _Worker) -> Recipe:
    """Return the recipe for a worker's forwards over a rollout: lines where calls and micro-batches begin and end."""
    micro = Insertion(
        "get_logprobs",
        where=Loop(("processed_iterator",)),
        line='{units} = self._rlpatch_stage_units("micro-batch", {units})',
        why=Text("each iteration of the loop is a micro-batch"),
        windows=(MICRO,),
    )
    return _recipe(
        worker,
        _LOG_PROB,
        (*((MICRO,) if worker.has_micro_batches else ()), CALL),
        (
            Insertion(
                "use_reference_model",
                where=Head(),
                line='self._rlpatch_stage("reference")',
                why=Text(
                    "here the worker temporarily loads the weights of the reference model; the call that follows"
                    " computes with these weights"
                ),
            ),
            Insertion(
                "get_logprobs",
                where=Head(),
                line='self._rlpatch_stage("enter")',
                why=Text("one call computes the log-probs of this rank's whole rollout"),
            ),
            *((micro,) if worker.has_micro_batches else ()),
            Insertion(
                "get_logprobs",
                where=Before("return ..."),
                line='self._rlpatch_stage("leave")',
                why=Text("every micro-batch of the rollout has gone through the model"),
            ),
        ),
    )


UPSTREAM = Upstream(
    PROJECT,
    recipes=(*map(_update, _WORKERS), *map(_log_prob, _WORKERS)),
    switches=SWITCHES,
    engines=("vllm", "sglang"),
    tool="torch",
    processes=Processes(titles=("ray::DTensorPolicyWorker", "ray::MegatronPolicyWorker")),
    gaps=tuple(
        Gap(strategy, MICRO, (_UPDATE, _LOG_PROB), "", Note(reason, Text("in update stages, use --mini-batch")))
        for strategy, reason in (
            ("megatron", Text("Megatron's schedule runs the micro-batches")),
            ("dtensor", Text("rlpatch cannot count the micro-batches of this loop")),
        )
    ),
    builtin={
        ">=0.4.0": Text(
            "NRL_NSYS_WORKER_PATTERNS runs workers under nsys; NRL_NSYS_PROFILE_STEP_RANGE=A:B records the"
            " whole training steps from A up to (not including) B. There is no window of mini-batches or"
            " micro-batches."
        )
    },
)
