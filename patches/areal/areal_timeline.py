"""AReaL: the phases of its trainer, the calls of its workers, their units, and the episodes of a rollout."""

from __future__ import annotations

from collections.abc import Iterable

from patcher.messages import Text
from patcher.recipe import Insertion, Recipe
from patches.areal import RELEASES
from patches.package_stage import Site
from patches.timeline_stage import Timeline, span_sites

_TIMELINE = Timeline("areal", RELEASES)
_RANK = Text("the trainer calls this function on each of its ranks")
_CALLED = Text("all calls from the trainer to its workers go through this function")
_STOP = Text("the engine takes no requests while it receives weights")
_SYNC = Text("the trainer sends the weights to the rollout")


def _engine(name: str, *more: Site, loops: Iterable[Insertion] = ()) -> Recipe:
    """Return the recipe that records functions of the engine `name`, such as "FSDP", in the timeline.

    They are weight updates, offloading and loading of the model, optimizer steps, and those of the sites `more`.
    `loops` are insertions that record the iterations of loops.
    """
    owner = f"{name}Engine"
    return _TIMELINE.sites(
        Text("calls inside the {engine} engine", name),
        f"engine/{name.lower()}_engine.py",
        *span_sites(owner, "work", _RANK, "update_weights"),
        *span_sites(owner, "sync", _SYNC, "_update_weights_from_distributed", "_update_weights_from_disk"),
        *span_sites(
            owner, "sleep", Text("the model is offloaded from the device or loaded again"), "offload", "onload"
        ),
        (
            f"{owner}.optimizer_step",
            'span("unit", "optimizer-step")',
            Text("this function runs the optimizer step, which ends a mini-batch"),
        ),
        *more,
        more=loops,
    )


RECIPES = _TIMELINE.recipes(
    _TIMELINE.sites(
        Text("phases of a training step, in the trainer"),
        "utils/stats_tracker.py",
        (
            "DistributedStatsTracker.record_timing",
            'span("phase", key)',
            Text("this function measures the phase times that the log shows"),
        ),
    ),
    _TIMELINE.sites(
        Text("training steps of the trainer"),
        "utils/stats_logger.py",
        (
            "StatsLogger.commit",
            "step(global_step + 1)",
            Text("this function logs each training step once; the log numbers the steps from 1"),
        ),
    ),
    _TIMELINE.sites(
        Text("calls from the trainer to its workers"),
        "infra/controller/train_controller.py",
        *(
            (f"TrainController.{method}", 'span("call", method)', _CALLED)
            for method in ("_custom_function_call", "_async_custom_function_call")
        ),
    ),
    _TIMELINE.sites(
        Text("functions of the actor"),
        "trainer/ppo/actor.py",
        *span_sites("PPOActor", "work", _RANK, "compute_logp", "compute_advantages", "ppo_update"),
    ),
    _TIMELINE.sites(
        Text("functions of the critic"),
        "trainer/ppo/critic.py",
        *span_sites("PPOCritic", "work", _RANK, "compute_values", "ppo_update"),
    ),
    _engine("FSDP", loops=(_TIMELINE.loop("FSDPEngine.forward_backward_batch", "micro-batch", "mb_list"),)),
    _engine("Megatron"),
    _TIMELINE.sites(
        Text("episodes of a rollout"),
        "infra/workflow_executor.py",
        (
            "WorkflowExecutor._create_workflow_task._execute_workflow",
            'span("trajectory", type(pending_task.workflow).__name__)',
            Text("one episode, including all its turns and its reward"),
        ),
        *(
            (f"BatchTaskDispatcher.{method}", f'span("poll", "{method}")', Text("the trainer waits for episodes here"))
            for method in ("active_submit_and_wait", "wait_results")
        ),
    ),
    _TIMELINE.sites(
        Text("requests that episodes send"),
        "infra/remote_inf_engine.py",
        (
            "RemoteInfEngine.agenerate",
            'requested("request", "generate", req.rid, req.input_ids)',
            Text("a request, as seen from the episode that sends it"),
        ),
        *span_sites("RemoteInfEngine", "sync", _STOP, "pause_generation", "continue_generation"),
    ),
    _TIMELINE.sites(
        "rewards",
        "api/reward_api.py",
        ("AsyncRewardWrapper.__call__", 'span("reward", "compute_score")', Text("an episode waits for its reward")),
    ),
)
