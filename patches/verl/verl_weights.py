"""verl: a weight sync, on the trainer's side and on that of the rollout, whichever engine it has."""

from __future__ import annotations

from collections.abc import Iterator

from patcher.messages import Text
from patcher.recipe import Insertion, Recipe
from patches.package_stage import Site
from patches.releases import Releases
from patches.verl import RELEASES
from patches.weights_stage import Weights

_WEIGHTS = Weights("verl", RELEASES)
_MANAGERS = RELEASES.until("0.6.1")
_ADAPTERS = RELEASES.since("0.7.1")
_ENGINES = RELEASES.since("0.7.0")
_ACTOR = "ActorRolloutRefWorker"

_WHOLE = Text("this function is the trainer's side of a weight sync, in the trainer's workers")
_SENDER = Text("in this function, all time besides gathering and sending goes into copying tensors into buckets")
_LOAD = Text("the engine loads the weights")


def _sync(method: str) -> Site:
    """Return the site that makes ``method`` a weight sync of the trainer, or a part of one."""
    return _WEIGHTS.sync(method, _WHOLE)


def _gather_lines(method: str, module: str) -> tuple[Insertion, ...]:
    """Return the lines that record `MODULE.state_dict()` in `method`, by which FSDP gathers weights, as "gather"."""
    call = f"{module}.state_dict()"
    return (
        _WEIGHTS.around(method, call, 'phase("gather")', Text("every rank contributes its shards of the weights here")),
    )


def _manager_recipes() -> Iterator[Recipe]:
    """Yield the recipes that record the weight sync in sharding managers, which verl has up to 0.6.1."""
    for strategy, engine, releases in (
        ("FSDP", "vLLM", _MANAGERS),
        ("Megatron", "vLLM", _MANAGERS),
        ("FSDP", "SGLang", RELEASES.between("0.3.0.post0", "0.6.1")),
        ("Megatron", "SGLang", RELEASES.between("0.4.0", "0.6.1")),
    ):
        cls = f"{strategy}{engine.replace('vLLM', 'VLLM')}ShardingManager"
        yield _WEIGHTS.sites(
            Text("sharding manager of {strategy} and {engine}", strategy=strategy, engine=engine),
            f"workers/sharding_manager/{strategy.lower()}_{engine.lower()}.py",
            _sync(f"{cls}.__enter__"),
            _sync(f"{cls}.wake_up"),
            _WEIGHTS.phase(f"{cls}.update_params", "load", _LOAD),
            _WEIGHTS.phase(
                f"{cls}.update_weights",
                "send",
                Text("this function sends tensors or buckets of weights to the rollout server"),
            ),
            more=_gather_lines(f"{cls}.__enter__", "self.module") if cls == "FSDPVLLMShardingManager" else (),
            releases=releases,
        )


def _checkpoint_engine_recipes() -> Iterator[Recipe]:
    """Yield the recipes that record how checkpoint engines send weights to a rollout on other accelerators."""
    for name, cls, operations in (
        ("nccl", "NCCLCheckpointEngine", ("BroadcastOperation",)),
        ("hccl", "HCCLCheckpointEngine", ("BroadcastOperation",)),
        ("nixl", "NIXLCheckpointEngine", ("ReadableOperation", "ReadOperation")),
        ("kimi", "KIMICheckpointEngine", ("BroadcastOperation",)),
        ("mooncake", "MooncakeCheckpointEngine", ("MooncakeCheckpointEngine",)),
    ):
        yield _WEIGHTS.sites(
            Text("checkpoint engine {name}", name),
            f"checkpoint_engine/{name}_checkpoint_engine.py",
            _WEIGHTS.phase(f"{cls}.send_weights", "bucket", _SENDER),
            *(
                _WEIGHTS.phase(
                    f"{operation}.wait_for_complete", "send", Text("this function sends a bucket of weights")
                )
                for operation in operations
            ),
            more=_WEIGHTS.wrapped(f"{cls}.send_weights"),
            releases=_ADAPTERS,
        )


RECIPES = _WEIGHTS.recipes(
    *_manager_recipes(),
    *(
        _WEIGHTS.sites(
            Text("weight sync when {strategy} workers switch to rollout mode", name),
            f"workers/{file}",
            _sync(f"{_ACTOR}.rollout_mode"),
            more=_gather_lines(f"{_ACTOR}.rollout_mode", "self.actor_module_fsdp") if name == "FSDP" else (),
            releases=RELEASES.between("0.6.0", "0.7.1"),
        )
        for name, file in (("FSDP", "fsdp_workers.py"), ("Megatron", "megatron_workers.py"))
    ),
    _WEIGHTS.sites(
        Text("weight sync of the engine worker"),
        "workers/engine_workers.py",
        _sync(f"{_ACTOR}.wake_up"),
        releases=Releases(("0.7.0",)),
    ),
    _WEIGHTS.sites(
        Text("weight sync of the engine workers"),
        "workers/engine_workers.py",
        _sync(f"{_ACTOR}.update_weights"),
        releases=_ADAPTERS,
    ),
    *(
        _WEIGHTS.sites(
            Text("weights gathered in {class_name}", cls),
            f"workers/engine/{folder}/transformer_impl.py",
            _WEIGHTS.phase(
                f"{cls}.get_per_tensor_param",
                "gather",
                Text("weights that can be gathered all at once are gathered here; the others follow tensor by tensor"),
            ),
            releases=RELEASES.since(first),
        )
        for cls, folder, first in (
            ("FSDPEngine", "fsdp", "0.6.0"),
            ("MegatronEngine", "megatron", "0.6.0"),
            ("VeOmniEngine", "veomni", "0.7.1"),
            ("TorchTitanEngine", "torchtitan", "0.7.1"),
            ("AutomodelEngine", "automodel", "0.8.0"),
        )
    ),
    *(
        _WEIGHTS.sites(
            Text("verl's worker sends weights to its own vLLM ({release})", releases[0]),
            f"workers/rollout/vllm_rollout/{file}",
            *(_WEIGHTS.phase(f"{cls}.update_weights", "load", _LOAD) for cls in ("vLLMRollout", "vLLMAsyncRollout")),
            more=_WEIGHTS.wrapped("vLLMRollout.update_weights", "vLLMAsyncRollout.update_weights"),
            releases=releases,
        )
        for file, releases in (
            ("vllm_rollout_spmd.py", RELEASES.between("0.6.0", "0.6.1")),
            ("vllm_rollout.py", Releases(("0.7.0",))),
        )
    ),
    _WEIGHTS.sites(
        Text("weights sent to vLLM's workers"),
        "workers/rollout/vllm_rollout/vllm_rollout.py",
        more=_WEIGHTS.wrapped("ServerAdapter.update_weights"),
        releases=_ADAPTERS,
    ),
    _WEIGHTS.sites(
        Text("buckets of weights for vLLM's workers"),
        "workers/rollout/vllm_rollout/bucketed_weight_transfer.py",
        _WEIGHTS.phase("BucketedWeightSender.async_send_weights", "bucket", _SENDER),
        _WEIGHTS.phase(
            "BucketedWeightReceiver.receive_weights",
            "receive",
            Text("while this function receives a bucket of weights, the sender gathers the next one"),
        ),
        more=(_WEIGHTS.socket("BucketedWeightSender.async_send_weights", "self._init_buffer()"),),
        releases=_ADAPTERS,
    ),
    _WEIGHTS.sites(
        Text("weights that vLLM's workers receive"),
        "workers/rollout/vllm_rollout/utils.py",
        _WEIGHTS.sync(
            "vLLMColocateWorkerExtension.update_weights_from_ipc",
            Text("this function is the rollout's side of a weight sync"),
            "rollout",
        ),
        _WEIGHTS.phase("vLLMColocateWorkerExtension._update_weights", "load", _LOAD),
        releases=_ADAPTERS,
    ),
    _WEIGHTS.sites(
        Text("weight sync with SGLang"),
        "workers/rollout/sglang_rollout/sglang_rollout.py",
        more=_WEIGHTS.wrapped("ServerAdapter.update_weights", "SGLangRollout.update_weights"),
        releases=RELEASES.since("0.6.0"),
    ),
    _WEIGHTS.sites(
        Text("checkpoint engine on the rollout's side"),
        "checkpoint_engine/base.py",
        _WEIGHTS.sync(
            "CheckpointEngineWorker.update_weights",
            Text("this function receives the weights and hands them to the engine"),
            "relay",
        ),
        releases=_ADAPTERS,
    ),
    *_checkpoint_engine_recipes(),
)
