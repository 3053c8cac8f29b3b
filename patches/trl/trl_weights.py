"""TRL: a weight sync on the trainer's side, to a vLLM server or to a vLLM engine in the trainer's process."""

from __future__ import annotations

from patcher.messages import Text
from patches.trl import LAZY_RECORDER, RELEASES
from patches.weights_stage import Weights

_WEIGHTS = Weights("trl", RELEASES)
_CLASSES = RELEASES.until("0.27.2")
_STREAMS = RELEASES.since("1.11.0")
_WHOLE = Text("the trainer sends the weights to vLLM")
_SENDS = Text("the tensors go to the vLLM server")
_ENGINE = Text("weights sent to vLLM")
_SYNC = "VLLMGeneration.sync_weights"
_LOAD = "self.llm.llm_engine.model_executor.driver_worker.model_runner.model.load_weights(...)"

RECIPES = _WEIGHTS.recipes(
    *(
        _WEIGHTS.sites(
            Text("weight syncs of the {name} trainer", name),
            f"trainer/{name.lower()}_trainer.py",
            _WEIGHTS.sync(f"{name}Trainer._move_model_to_vllm", _WHOLE),
            needed=f"{name}Trainer._move_model_to_vllm",
            releases=_CLASSES,
        )
        for name in ("GRPO", "RLOO")
    ),
    *(
        _WEIGHTS.sites(
            Text("weights sent to a vLLM server by trl.{package}", package),
            f"{package}/vllm_client.py",
            _WEIGHTS.phase("VLLMClient.update_named_param", "send", _SENDS),
            releases=releases,
        )
        for package, releases in (("extras", _CLASSES), ("generation", RELEASES.between("0.28.0", "1.10.0")))
    ),
    _WEIGHTS.sites(
        Text("weights streamed to a vLLM server"),
        "generation/vllm_client.py",
        _WEIGHTS.phase("VLLMClient.update_named_params", "send", _SENDS),
        more=_WEIGHTS.wrapped("VLLMClient.update_named_params", weights="named_params"),
        releases=_STREAMS,
    ),
    _WEIGHTS.sites(
        _ENGINE,
        "generation/vllm_generation.py",
        _WEIGHTS.sync(_SYNC, _WHOLE),
        needed=_SYNC,
        releases=RELEASES.between("0.28.0", "1.10.0"),
    ),
    _WEIGHTS.sites(
        Text("weights sent to vLLM, tensor by tensor"),
        "generation/vllm_generation.py",
        _WEIGHTS.sync(_SYNC, _WHOLE),
        more=(_WEIGHTS.around(_SYNC, _LOAD, 'phase("load")', Text("vLLM loads a tensor")),),
        needed=_SYNC,
        releases=_STREAMS,
    ),
    _WEIGHTS.sites(
        Text("weight syncs of the asynchronous GRPO trainer"),
        "experimental/async_grpo/async_grpo_trainer.py",
        _WEIGHTS.sync("AsyncGRPOTrainer._sync_weight", _WHOLE),
        needed="AsyncGRPOTrainer._sync_weight",
        releases=RELEASES.since("1.0.0rc1"),
    ),
    _WEIGHTS.sites(
        Text("weights sent by the asynchronous GRPO trainer"),
        "experimental/async_grpo/weight_transfer.py",
        _WEIGHTS.phase("WeightTransferClient.send_weights", "send", _SENDS),
        releases=RELEASES.since("1.6.0"),
    ),
    recorder_name=LAZY_RECORDER,
)
