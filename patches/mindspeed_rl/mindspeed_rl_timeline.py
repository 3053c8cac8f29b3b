"""MindSpeed-RL: the steps and the calls of its driver, what its workers do for them, and their units.

By default nothing blocks: the driver calls one stage after the other, and waits for all of them. So only what cannot
go on beside a stage is a phase here, and its waits are none: what it waits for are the works of its calls.
"""

from __future__ import annotations

from patcher.messages import Text
from patcher.recipe import Recipe
from patches.mindspeed_rl import RELEASES
from patches.releases import Releases
from patches.timeline_stage import Timeline, span_site, span_sites
from patches.training import MINI

_TIMELINE = Timeline("mindspeed_rl", RELEASES)
_LATER = RELEASES.since("2.2.0")
_METHODS = (
    "generate_sequences", "compute_image_embeds", "compute_log_prob", "compute_ref_log_prob", "compute_rm_score",
    "compute_values", "enter_infer_mode", "exit_infer_mode", "update_actor", "update_critic",
)  # fmt: skip
_CALLS = {**{method: method for method in _METHODS}, "update": "update_actor", "save_checkpoint": "save_ckpt"}
"""Method of a group of workers → the name of the work that it calls."""

_INFER_MODE = ("enter_infer_mode", "exit_infer_mode")


def _trainer(algorithm: str, releases: Releases) -> Recipe:
    """Return the recipe that marks the training steps of the trainer of `algorithm`, such as "GRPO", in the timeline.

    It also records the computation of advantages, as a phase.
    """
    owner = f"Ray{algorithm}Trainer"
    mark = _TIMELINE.around(
        f"{owner}.fit",
        "logger.info(metrics.metric, ...)",
        "step(iteration)",
        Text("this function logs each training step once"),
    )
    return _TIMELINE.sites(
        Text("training steps of the {algorithm} trainer", algorithm),
        f"trainer/{algorithm.lower()}_trainer_hybrid.py",
        span_site(f"{owner}.compute_advantage", "phase", Text("the driver waits here until all rewards are computed")),
        more=(mark,),
        releases=releases,
    )


def _worker(class_name: str, file: str, releases: Releases, *methods: str, update: str = "") -> Recipe:
    """Return the recipe that records the `methods` of a worker class in the timeline, as spans of work.

    `class_name` is the class, in the module `file` without ".py". `update` is the role that its method `update` trains
    ("": the class has no such method).
    """
    works = [(method, method) for method in methods] + ([("update", f"update_{update}")] if update else [])
    heads = (
        (
            f"{class_name}.{method}",
            f'span("work", "{work}", type(self).__name__)',
            Text("the driver calls this function on every rank"),
        )
        for method, work in works
    )
    return _TIMELINE.sites(
        Text("functions in {file} that the driver calls", file), f"workers/{file}.py", *heads, releases=releases
    )


_OF_ACTOR = ("generate_sequences", "compute_log_prob", "compute_image_embeds", *_INFER_MODE, "save_ckpt")

RECIPES = _TIMELINE.recipes(
    _trainer("GRPO", RELEASES),
    _trainer("PPO", _LATER),
    _trainer("DAPO", _LATER),
    _TIMELINE.sites(
        "prompts",
        "trainer/utils/transfer_dock.py",
        span_site(
            "put_prompts_experience",
            "phase",
            Text("a training step begins here: the driver stores the prompts of the step"),
        ),
        releases=_LATER,
    ),
    _TIMELINE.sites(
        Text("calls from the driver to the workers"),
        "workers/scheduler/launcher.py",
        *(
            span_site(
                f"RayActorGroup.{method}",
                "call",
                Text("the driver runs a stage of a training step here, on a group of workers"),
                work,
            )
            for method, work in _CALLS.items()
        ),
    ),
    _worker("ActorHybridWorkerBase", "actor_hybrid_worker", RELEASES, *_OF_ACTOR, update="actor"),
    _worker("ReferenceWorkerBase", "reference_woker", RELEASES.until("2.1.0"), "compute_ref_log_prob"),
    _worker("ReferenceWorkerBase", "reference_worker", _LATER, "compute_ref_log_prob"),
    _worker("RewardWorkerBase", "reward_woker", RELEASES.until("2.1.0"), "compute_rm_score"),
    _worker("RewardWorkerBase", "reward_worker", _LATER, "compute_rm_score"),
    _worker("CriticWorkerBase", "critic_worker", _LATER, "compute_values", "save_ckpt", update="critic"),
    _worker("VitWorkerBase", "vit_worker", _LATER, "compute_image_embeds"),
    _TIMELINE.sites(
        "resharding",
        "workers/resharding/megatron_sharding_manager.py",
        *span_sites(
            "MegatronShardingManager",
            "sync",
            Text("the weights are moved to the rollout engine, or back to the training engine"),
            *_INFER_MODE,
        ),
        *span_sites(
            "MegatronShardingManager",
            "sleep",
            Text("memory is freed for the next stage"),
            *("enter_forward_mode", "exit_forward_mode", "enter_train_mode", "exit_train_mode"),
        ),
    ),
    _TIMELINE.sites(
        Text("mini-batches and micro-batches of the training engine"),
        "models/base/base_training_engine.py",
        span_site(
            "BaseTrainingEngine._forward_backward_batch",
            "unit",
            Text(
                "Megatron's schedule interleaves the micro-batches, so this span covers the forward and backward of"
                " all of them"
            ),
            "forward-backward",
        ),
        more=(_TIMELINE.loop("BaseTrainingEngine.update", MINI, "mini_batches"),),
    ),
)
