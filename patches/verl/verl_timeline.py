"""verl: the phases of its driver, the calls of its workers, their units, and the requests of a rollout."""

from __future__ import annotations

from collections.abc import Iterator

from patcher.messages import Text
from patcher.recipe import Insertion, Recipe
from patches.package_stage import Site
from patches.releases import Releases
from patches.timeline_stage import Timeline, span_site, span_sites
from patches.training import MICRO, MINI
from patches.verl import RELEASES

_TIMELINE = Timeline("verl", RELEASES.since("0.6.1"))
_LEGACY = RELEASES.between("0.6.1", "0.7.1")
_ENGINES = RELEASES.since("0.7.0")

_STALE = "training/off_policy/trajectory_staleness_worst/mean"
"""The metric of verl's v1 trainers (0.9.0, ``trainer_base.py``): steps between the weights of a trajectory's start and
those that are trained.
"""

_SERVER = Text("a request, as seen from the server")
_SYNC = Text("the trainer sends the weights to the rollout")
_MEMORY = Text("the engine frees its memory or allocates it again")
_OPTIMIZER_STEP = Text("this function runs the optimizer step, which ends a mini-batch")


def _loop_recipe(name: str, file: str, releases: Releases, *loops: Insertion, steps: str = "") -> Recipe:
    """Return the recipe called `name` that records iterations of `loops` and optimizer steps of `file` in the timeline.

    `steps` is the path of the function that runs an optimizer step ("": the file has none).
    """
    heads = [(steps, 'span("unit", "optimizer-step")', _OPTIMIZER_STEP)] if steps else []
    return _TIMELINE.sites(name, file, *heads, more=loops, releases=releases)


_REQUEST = 'requested("request", "generate", request_id, prompt_ids)'
_SERVE = 'requested("serve", "generate", request_id, prompt_ids)'
_TRAJECTORY = 'span("trajectory", agent_name)'
_SCORE = 'span("reward", "compute_score")'
_BATCH = 'span("batch", "generate_sequences")'

_BALANCER = (
    "GlobalRequestLoadBalancer.acquire_server",
    'span("route", "acquire_server", request_id)',
    Text("the load balancer chooses a server for a request"),
)
"""Site of the load balancer: in the agent loop's file in 0.7.1, then in that of the clients, from 0.9.1 on alone."""


def _server_sites(class_name: str) -> Iterator[Site]:
    """Yield the functions of a rollout server, the class `class_name`, to record as spans of the timeline.

    They are requests, sleep and wake-up, and before and after a weight sync the abortion of requests and the reset of
    caches.
    """
    aborted = Text("running requests are aborted here, before the weights arrive")
    yield f"{class_name}.generate", _SERVE, _SERVER
    yield from span_sites(class_name, "sleep", _MEMORY, "sleep", "wake_up")
    yield from span_sites(class_name, "sync", aborted, "abort_all_requests")
    cleared = Text("the KV cache of old weights is cleared here, which the trainer waits for")
    yield from span_sites(class_name, "sync", cleared, "clear_kv_cache")


RECIPES = _TIMELINE.recipes(
    _TIMELINE.sites(
        Text("phases of the driver"),
        "utils/profiler/performance.py",
        (
            "_timer",
            'span("phase", name)',
            Text("all trainers measure their phases with simple_timer() or marked_timer(), which both run this"
                 " function"),
        ),
    ),
    _TIMELINE.sites(
        Text("training steps of the driver"),
        "utils/tracking.py",
        ("Tracking.log", f'step(step, data, "{_STALE}")', Text("verl logs each training step once, with its number")),
    ),
    _TIMELINE.sites(
        Text("calls from the driver to the workers"),
        "single_controller/ray/base.py",
        (
            "func_generator.Functor.__call__",
            'span("call", method_name)',
            Text("the driver calls a group of workers through this function"),
        ),
    ),
    _TIMELINE.sites(
        Text("functions that the driver calls on the workers"),
        "single_controller/base/decorator.py",
        *(
            (
                f"register.decorator.{inner}",
                'span("work", getattr(func, "__name__", ""), type(args[0]).__name__ if args else None)',
                Text("all calls from the driver to this worker go through this function"),
            )
            for inner in ("inner", "async_inner")
        ),
    ),
    _TIMELINE.sites(
        Text("agent loop"),
        "experimental/agent_loop/agent_loop.py",
        *(
            (f"{cls}.{method}", call, why)
            for cls in ("AgentLoopWorkerBase", "AgentLoopWorker")
            for method, call, why in (
                ("_run_agent_loop", _TRAJECTORY, Text("one trajectory, including all its turns")),
                ("_compute_score", _SCORE, Text("a trajectory waits for its reward")),
                ("generate_sequences", _BATCH, Text("one call of the driver, with all its trajectories")),
            )
        ),
        ("AsyncLLMServerManager.generate", _REQUEST, Text("a request, seen from the trajectory that sends it")),
        _BALANCER,
    ),
    _TIMELINE.sites(
        Text("requests that trajectories send"),
        "workers/rollout/llm_server.py",
        ("LLMServerClient.generate", _REQUEST, Text("a request, seen from the trajectory that sends it")),
        _BALANCER,
        releases=RELEASES.since("0.8.0"),
    ),
    _TIMELINE.sites(
        Text("load balancer"), "workers/rollout/router.py", _BALANCER, releases=RELEASES.since("0.9.1")
    ),
    _TIMELINE.sites(
        Text("reward loop"),
        "experimental/reward_loop/reward_loop.py",
        ("RewardLoopWorker.compute_score", _SCORE, Text("a separate worker computes rewards")),
        releases=_ENGINES,
    ),
    _TIMELINE.sites(
        Text("replay buffer"),
        "trainer/ppo/v1/replay_buffer.py",
        *(
            span_site(f"{cls}.sample", "poll", Text("the driver waits for trajectories here"))
            for cls in ("ReplayBuffer", "ReplayBufferAsync")
        ),
        releases=RELEASES.since("0.9.0"),
    ),
    _TIMELINE.sites(
        "vLLM's server",
        "workers/rollout/vllm_rollout/vllm_async_server.py",
        *_server_sites("vLLMHttpServerBase"),
        *_server_sites("vLLMHttpServer"),
    ),
    _TIMELINE.sites(
        "SGLang's server",
        "workers/rollout/sglang_rollout/async_sglang_server.py",
        *_server_sites("SGLangHttpServer"),
    ),
    _TIMELINE.sites(
        Text("weight sync"),
        "checkpoint_engine/base.py",
        *span_sites(
            "CheckpointEngineManager", "sync", _SYNC, "update_weights", "abort_replicas", "release_kv_cache_replicas",
            "build_process_group", "resume_kv_cache_replicas", "resume_generation_replicas",
        ),
        *span_sites("CheckpointEngineManager", "sleep", _MEMORY, "sleep_replicas", "wake_up_replicas"),
        releases=RELEASES.since("0.7.1"),
    ),
    _TIMELINE.sites(
        Text("weights sent to vLLM"),
        "workers/rollout/vllm_rollout/vllm_rollout.py",
        *span_sites("ServerAdapter", "sync", _SYNC, "update_weights"),
        *span_sites("vLLMAsyncRollout", "sync", _SYNC, "update_weights"),
        releases=_ENGINES,
    ),
    _TIMELINE.sites(
        Text("weights handed over to vLLM"),
        "workers/rollout/vllm_rollout/bucketed_weight_transfer.py",
        span_site(
            "BucketedWeightSender.async_send_weights",
            "send",
            Text("the trainer hands its weights over here, then frees its buffers"),
            "send_weights",
        ),
        span_site(
            "BucketedWeightSender._init_buffer",
            "send",
            Text("the trainer makes a buffer here, and waits until the engine has opened it"),
        ),
        releases=RELEASES.since("0.7.1"),
    ),
    _TIMELINE.sites(
        Text("weights that vLLM's workers receive"),
        "workers/rollout/vllm_rollout/utils.py",
        *(
            (
                f"vLLMColocateWorkerExtension.{method}",
                f'span("sync", "{method}")',
                Text("the engine waits for a bucket of weights here, or loads one"),
            )
            for method in ("update_weights_from_ipc", "_update_weights")
        ),
        releases=RELEASES.since("0.7.1"),
    ),
    _TIMELINE.sites(
        Text("weights sent to SGLang"),
        "workers/rollout/sglang_rollout/sglang_rollout.py",
        *span_sites("ServerAdapter", "sync", _SYNC, "update_weights"),
    ),
    *(
        _TIMELINE.sites(
            Text("{strategy} workers switch to rollout mode", name),
            f"workers/{file}",
            *span_sites("ActorRolloutRefWorker", "sync", _SYNC, "rollout_mode", "trainer_mode"),
            releases=_LEGACY,
        )
        for name, file in (("FSDP", "fsdp_workers.py"), ("Megatron", "megatron_workers.py"))
    ),
    *(
        _loop_recipe(
            Text("mini-batches and micro-batches of the {worker}", name),
            f"workers/{file}",
            _LEGACY,
            _TIMELINE.loop(f"{cls}.{update}", MINI, "mini_batches", "dataloader"),
            _TIMELINE.loop(f"{cls}.{update}", MICRO, "micro_batches"),
            _TIMELINE.loop(f"{cls}.{infer}", MICRO, "micro_batches"),
            steps=f"{cls}._optimizer_step",
        )
        for name, file, cls, update, infer in (
            ("FSDP actor", "actor/dp_actor.py", "DataParallelPPOActor", "update_policy", "compute_log_prob"),
            ("FSDP critic", "critic/dp_critic.py", "DataParallelPPOCritic", "update_critic", "compute_values"),
        )
    ),
    *(
        _loop_recipe(
            Text("mini-batches and micro-batches of the {worker}", name),
            f"workers/{file}",
            _LEGACY,
            _TIMELINE.loop(f"{cls}.{update}", MINI, "dataloader"),
        )
        for name, file, cls, update in (
            (Text("Megatron actor"), "actor/megatron_actor.py", "MegatronPPOActor", "update_policy"),
            (Text("Megatron critic"), "critic/megatron_critic.py", "MegatronPPOCritic", "update_critic"),
        )
    ),
    _loop_recipe(
        Text("mini-batches of the engine worker"),
        "workers/engine_workers.py",
        _ENGINES,
        _TIMELINE.loop("TrainingWorker.train_mini_batch", MINI, "dataloader"),
        _TIMELINE.wait("TrainingWorker.train_mini_batch", "torch.distributed.all_gather_object"),
    ),
    *(
        _loop_recipe(
            Text("micro-batches of {class_name}", cls),
            f"workers/engine/{folder}/transformer_impl.py",
            RELEASES.since(first),
            _TIMELINE.loop(f"{cls}.forward_backward_batch", MICRO, "micro_batches"),
            _TIMELINE.wait(f"{cls}.forward_backward_batch", "torch.distributed.all_reduce"),
            steps=f"{cls}.optimizer_step",
        )
        for cls, folder, first in (
            ("FSDPEngine", "fsdp", "0.6.1"),
            ("VeOmniEngine", "veomni", "0.7.0"),
            ("TorchTitanEngine", "torchtitan", "0.7.1"),
            ("AutomodelEngine", "automodel", "0.8.0"),
        )
    ),
    _TIMELINE.sites(
        Text("micro-batches of MegatronEngine"),
        "workers/engine/megatron/transformer_impl.py",
        *(
            (f"MegatronEngine.{method}", f'span("unit", "{name}")', why)
            for method, name, why in (
                (
                    "forward_backward_batch",
                    "forward-backward",
                    Text("Megatron's schedule interleaves the micro-batches, so this span covers the forward and"
                        " backward of all of them"),
                ),
                ("optimizer_step", "optimizer-step", _OPTIMIZER_STEP),
            )
        ),
    ),
)  # fmt: skip
