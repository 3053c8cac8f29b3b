"""Place of every inserted line: its method, and the line of upstream's before which it stands.

A test on an engine notices a line that is gone; of one that stands elsewhere, or says less, it may see nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures import releases
from fixtures.mindspeed_rl import trees
from fixtures.slime import trees as slime
from patcher import editing
from patcher.changes.change import PatchId
from patches.projects import upstream
from tests.matrix import thinned

LINES = {
    "vllm-ascend 0.9.1 rollout decode": """
vllm_ascend/worker/worker_v1.py
    sleep: self._rlpatch_stage("end_rollout", "sleep()")
        NPUPlatform.set_device(self.device)
    execute_model: self._rlpatch_stage("step", scheduler_output)
        output = self.model_runner.execute_model(scheduler_output)
    profile: self._rlpatch_stage("close", "the framework's own profiler was called")
        if is_start:
vllm_ascend/worker/worker.py
    sleep: self._rlpatch_stage("end_rollout", "sleep()")
        NPUPlatform.set_device(self.device)
    start_profile: self._rlpatch_stage("close", "the framework's own profiler was called")
        self.profiler.start()
    execute_worker: self._rlpatch_stage("step", worker_input)
        if self.enable_dummy_run:
""",
    "vllm-ascend 0.30.0rc2 rollout decode": """
vllm_ascend/worker/worker.py
    sleep: self._rlpatch_stage("end_rollout", "sleep()")
        free_bytes_before_sleep = torch.npu.mem_get_info()[0]
    execute_model: self._rlpatch_stage("step", scheduler_output)
        output = self.model_runner.execute_model(scheduler_output, intermediate_tensors)
    profile: self._rlpatch_stage("close", "the framework's own profiler was called")
        if is_start:
""",
    "vllm-ascend 0.30.0rc2 graph-capture whole": """
vllm_ascend/worker/worker.py
    compile_or_warm_up_model: self._rlpatch_stage("enter", "capture_model")
        npugraph_memory_bytes = self.model_runner.capture_model()
    compile_or_warm_up_model: self._rlpatch_stage("leave")
        # Suggest an optimal --kv-cache-memory value for future runs.
""",
    "vllm 0.33.0 rollout decode": """
vllm/v1/worker/gpu_worker.py
    sleep: self._rlpatch_stage("end_rollout", "sleep()")
        torch.accelerator.synchronize()
    execute_model: self._rlpatch_stage("step", scheduler_output)
        if self._pp_send_work:
    profile: self._rlpatch_stage("close", "the framework's own profiler was called")
        if is_start:
""",
    "vllm 0.33.0 graph-capture whole": """
vllm/v1/worker/gpu_worker.py
    _compile_or_warm_up_model: self._rlpatch_stage("enter", "capture_model")
        cuda_graph_memory_bytes = self.model_runner.capture_model()
    _compile_or_warm_up_model: self._rlpatch_stage("leave")
        # Compare actual vs estimated CUDA graph memory (if we did profiling)
vllm/v1/worker/cpu_worker.py
    determine_available_memory: self._rlpatch_stage("enter", "warming_up_model")
        self.model_runner.warming_up_model()
    determine_available_memory: self._rlpatch_stage("leave")
        allowed_cpu_list = get_allowed_cpu_list()
""",
    "verl 0.6.1 update-policy micro-batch": """
verl/workers/actor/dp_actor.py
    update_policy: self._rlpatch_stage("enter")
        self.actor_module.train()
    update_policy: mini_batches = self._rlpatch_stage_units("mini-batch", mini_batches)
        for batch_idx, mini_batch in enumerate(mini_batches):
    update_policy: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches)
        for micro_batch in micro_batches:
    update_policy: self._rlpatch_stage("leave")
        return metrics
verl/workers/actor/megatron_actor.py
    forward_backward_batch: batch_generator = self._rlpatch_stage_scheduled("micro-batch", batch_generator, mpu, self.actor_module)
        if mpu.get_pipeline_model_parallel_world_size() > 1:
    forward_backward_batch: self._rlpatch_stage_ended(batch_generator)
        # loss_reduces contains the stats returned from loss_func
    update_policy: self._rlpatch_stage("enter")
        metrics = {}
    update_policy: dataloader = self._rlpatch_stage_units("mini-batch", dataloader, last=True)
        for data in dataloader:
""",
    "verl 0.6.1 update-policy mini-batch": """
verl/workers/actor/dp_actor.py
    update_policy: self._rlpatch_stage("enter")
        self.actor_module.train()
    update_policy: mini_batches = self._rlpatch_stage_units("mini-batch", mini_batches)
        for batch_idx, mini_batch in enumerate(mini_batches):
    update_policy: self._rlpatch_stage("leave")
        return metrics
verl/workers/actor/megatron_actor.py
    update_policy: self._rlpatch_stage("enter")
        metrics = {}
    update_policy: dataloader = self._rlpatch_stage_units("mini-batch", dataloader, last=True)
        for data in dataloader:
""",
    "verl 0.6.1 compute-log-prob micro-batch": """
verl/workers/actor/dp_actor.py
    compute_log_prob: self._rlpatch_stage("enter")
        self.actor_module.eval()
    compute_log_prob: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches, last=True)
        for micro_batch in micro_batches:
verl/workers/actor/megatron_actor.py
    compute_log_prob: self._rlpatch_stage("enter")
        use_dynamic_bsz = data.meta_info.get("use_dynamic_bsz", False)
    forward_backward_batch: batch_generator = self._rlpatch_stage_scheduled("micro-batch", batch_generator, mpu, self.actor_module, last=True)
        if mpu.get_pipeline_model_parallel_world_size() > 1:
    forward_backward_batch: self._rlpatch_stage_ended(batch_generator)
        # loss_reduces contains the stats returned from loss_func
""",
    "verl 0.6.1 compute-values micro-batch": """
verl/workers/critic/dp_critic.py
    compute_values: self._rlpatch_stage("enter")
        self.critic_module.eval()
    compute_values: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches, last=True)
        for micro_batch in micro_batches:
verl/workers/critic/megatron_critic.py
    compute_values: self._rlpatch_stage("enter")
        responses = data.batch["responses"]
    forward_backward_batch: batch_generator = self._rlpatch_stage_scheduled("micro-batch", batch_generator, mpu, self.critic_module, last=True)
        if mpu.get_pipeline_model_parallel_world_size() > 1:
    forward_backward_batch: self._rlpatch_stage_ended(batch_generator)
        # loss_reduces contains the stats returned from loss_func
""",
    "verl 0.6.1 update-critic micro-batch": """
verl/workers/critic/dp_critic.py
    update_critic: self._rlpatch_stage("enter")
        self.critic_module.train()
    update_critic: mini_batches = self._rlpatch_stage_units("mini-batch", mini_batches)
        for batch_idx, mini_batch in enumerate(mini_batches):
    update_critic: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches)
        for micro_batch in micro_batches:
    update_critic: self._rlpatch_stage("leave")
        return metrics
verl/workers/critic/megatron_critic.py
    forward_backward_batch: batch_generator = self._rlpatch_stage_scheduled("micro-batch", batch_generator, mpu, self.critic_module)
        if mpu.get_pipeline_model_parallel_world_size() > 1:
    forward_backward_batch: self._rlpatch_stage_ended(batch_generator)
        # loss_reduces contains the stats returned from loss_func
    update_critic: self._rlpatch_stage("enter")
        metrics = {}
    update_critic: dataloader = self._rlpatch_stage_units("mini-batch", dataloader, last=True)
        for data in dataloader:
""",
    "verl 0.6.1 update-critic mini-batch": """
verl/workers/critic/dp_critic.py
    update_critic: self._rlpatch_stage("enter")
        self.critic_module.train()
    update_critic: mini_batches = self._rlpatch_stage_units("mini-batch", mini_batches)
        for batch_idx, mini_batch in enumerate(mini_batches):
    update_critic: self._rlpatch_stage("leave")
        return metrics
verl/workers/critic/megatron_critic.py
    update_critic: self._rlpatch_stage("enter")
        metrics = {}
    update_critic: dataloader = self._rlpatch_stage_units("mini-batch", dataloader, last=True)
        for data in dataloader:
""",
    "verl 0.7.1 update-policy mini-batch": """
verl/workers/actor/dp_actor.py
    update_policy: self._rlpatch_stage("enter")
        self.actor_module.train()
    update_policy: mini_batches = self._rlpatch_stage_units("mini-batch", mini_batches)
        for batch_idx, mini_batch in enumerate(mini_batches):
    update_policy: self._rlpatch_stage("leave")
        return metrics
verl/workers/actor/megatron_actor.py
    update_policy: self._rlpatch_stage("enter")
        metrics = {}
    update_policy: dataloader = self._rlpatch_stage_units("mini-batch", dataloader, last=True)
        for data in dataloader:
verl/workers/engine_workers.py
    train_mini_batch: self._rlpatch_stage("enter", data)
        maybe_fix_3d_position_ids(data)
    train_mini_batch: dataloader = self._rlpatch_stage_units("mini-batch", dataloader, last=True)
        for batch_idx, mini_batch_td in enumerate(dataloader):
    train_batch: self._rlpatch_stage("begin_batch", data)
        assert self.loss_fn is not None, "loss function can't be None when calling train_batch"
    train_batch: self._rlpatch_stage("end_batch")
        return final_output
""",
    "verl 0.9.1 update-policy micro-batch": """
verl/workers/engine_workers.py
    train_mini_batch: self._rlpatch_stage("enter", data)
        maybe_fix_3d_position_ids(data)
    train_mini_batch: dataloader = self._rlpatch_stage_units("mini-batch", dataloader, last=True)
        for batch_idx, mini_batch_td in enumerate(dataloader):
    train_batch: self._rlpatch_stage("begin_batch", data)
    train_batch: self.engine._rlpatch_stage_units = self._rlpatch_stage_units
        assert self.loss_fn is not None, "loss function can't be None when calling train_batch"
    train_batch: self._rlpatch_stage("end_batch")
        return final_output
    update_weights: if global_steps is not None: TrainingWorker._rlpatch_parameter_version = global_steps
        effective_mode = mode if mode != "auto" else self.config.rollout.checkpoint_engine.backend
verl/workers/engine_workers_tinker.py
    forward_backward: self._rlpatch_stage("begin_batch", data, True)
    forward_backward: self.engine._rlpatch_stage_units = self._rlpatch_stage_units
        assert self.loss_fn is not None, "loss function can't be None when calling forward_backward"
    optimizer_step: self._rlpatch_stage("end_batch")
        return metrics
verl/workers/engine/fsdp/transformer_impl.py
    forward_backward_batch: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches)
        for micro_batch_idx, micro_batch in enumerate(micro_batches):
verl/workers/engine/veomni/transformer_impl.py
    forward_backward_batch: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches)
        for micro_batch in micro_batches:
verl/workers/engine/torchtitan/transformer_impl.py
    forward_backward_batch: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches)
        for micro_batch_idx, micro_batch in enumerate(micro_batches):
verl/workers/engine/automodel/transformer_impl.py
    forward_backward_batch: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches)
        for i, micro_batch in enumerate(micro_batches):
verl/workers/engine/megatron/transformer_impl.py
    forward_backward_batch: batch_generator = self._rlpatch_stage_scheduled("micro-batch", batch_generator, mpu, self.module)
        losses_reduced = forward_backward_func(
    forward_backward_batch: self._rlpatch_stage_ended(batch_generator)
        if self.model_config.mtp.enable and mpu.is_pipeline_last_stage(ignore_virtual=True):
""",
    "verl 0.9.1 update-policy mini-batch": """
verl/workers/engine_workers.py
    train_mini_batch: self._rlpatch_stage("enter", data)
        maybe_fix_3d_position_ids(data)
    train_mini_batch: dataloader = self._rlpatch_stage_units("mini-batch", dataloader, last=True)
        for batch_idx, mini_batch_td in enumerate(dataloader):
    train_batch: self._rlpatch_stage("begin_batch", data)
        assert self.loss_fn is not None, "loss function can't be None when calling train_batch"
    train_batch: self._rlpatch_stage("end_batch")
        return final_output
    update_weights: if global_steps is not None: TrainingWorker._rlpatch_parameter_version = global_steps
        effective_mode = mode if mode != "auto" else self.config.rollout.checkpoint_engine.backend
verl/workers/engine_workers_tinker.py
    forward_backward: self._rlpatch_stage("begin_batch", data, True)
        assert self.loss_fn is not None, "loss function can't be None when calling forward_backward"
    optimizer_step: self._rlpatch_stage("end_batch")
        return metrics
""",
    "verl 0.9.1 compute-log-prob micro-batch": """
verl/workers/engine_workers.py
    infer_batch: self._rlpatch_stage("enter", data)
    infer_batch: self.engine._rlpatch_stage_units = self._rlpatch_stage_units
        global_token_num = tu.get(data, key="global_token_num")
    update_weights: if global_steps is not None: TrainingWorker._rlpatch_parameter_version = global_steps
        effective_mode = mode if mode != "auto" else self.config.rollout.checkpoint_engine.backend
verl/workers/engine/fsdp/transformer_impl.py
    forward_backward_batch: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches, last=True)
        for micro_batch_idx, micro_batch in enumerate(micro_batches):
verl/workers/engine/veomni/transformer_impl.py
    forward_backward_batch: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches, last=True)
        for micro_batch in micro_batches:
verl/workers/engine/torchtitan/transformer_impl.py
    forward_backward_batch: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches, last=True)
        for micro_batch_idx, micro_batch in enumerate(micro_batches):
verl/workers/engine/automodel/transformer_impl.py
    forward_backward_batch: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches, last=True)
        for i, micro_batch in enumerate(micro_batches):
verl/workers/engine/megatron/transformer_impl.py
    forward_backward_batch: batch_generator = self._rlpatch_stage_scheduled("micro-batch", batch_generator, mpu, self.module, last=True)
        losses_reduced = forward_backward_func(
    forward_backward_batch: self._rlpatch_stage_ended(batch_generator)
        if self.model_config.mtp.enable and mpu.is_pipeline_last_stage(ignore_virtual=True):
""",
    "verl 0.9.1 update-critic micro-batch": """
verl/workers/engine_workers.py
    train_mini_batch: self._rlpatch_stage("enter", data)
        maybe_fix_3d_position_ids(data)
    train_mini_batch: dataloader = self._rlpatch_stage_units("mini-batch", dataloader, last=True)
        for batch_idx, mini_batch_td in enumerate(dataloader):
    train_batch: self._rlpatch_stage("begin_batch", data)
    train_batch: self.engine._rlpatch_stage_units = self._rlpatch_stage_units
        assert self.loss_fn is not None, "loss function can't be None when calling train_batch"
    train_batch: self._rlpatch_stage("end_batch")
        return final_output
    update_weights: if global_steps is not None: TrainingWorker._rlpatch_parameter_version = global_steps
        effective_mode = mode if mode != "auto" else self.config.rollout.checkpoint_engine.backend
verl/workers/engine/fsdp/transformer_impl.py
    forward_backward_batch: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches)
        for micro_batch_idx, micro_batch in enumerate(micro_batches):
verl/workers/engine/veomni/transformer_impl.py
    forward_backward_batch: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches)
        for micro_batch in micro_batches:
verl/workers/engine/megatron/transformer_impl.py
    forward_backward_batch: batch_generator = self._rlpatch_stage_scheduled("micro-batch", batch_generator, mpu, self.module)
        losses_reduced = forward_backward_func(
    forward_backward_batch: self._rlpatch_stage_ended(batch_generator)
        if self.model_config.mtp.enable and mpu.is_pipeline_last_stage(ignore_virtual=True):
""",
    "verl 0.9.1 update-critic mini-batch": """
verl/workers/engine_workers.py
    train_mini_batch: self._rlpatch_stage("enter", data)
        maybe_fix_3d_position_ids(data)
    train_mini_batch: dataloader = self._rlpatch_stage_units("mini-batch", dataloader, last=True)
        for batch_idx, mini_batch_td in enumerate(dataloader):
    train_batch: self._rlpatch_stage("begin_batch", data)
        assert self.loss_fn is not None, "loss function can't be None when calling train_batch"
    train_batch: self._rlpatch_stage("end_batch")
        return final_output
    update_weights: if global_steps is not None: TrainingWorker._rlpatch_parameter_version = global_steps
        effective_mode = mode if mode != "auto" else self.config.rollout.checkpoint_engine.backend
""",
    "verl 0.9.1 compute-values micro-batch": """
verl/workers/engine_workers.py
    infer_batch: self._rlpatch_stage("enter", data)
    infer_batch: self.engine._rlpatch_stage_units = self._rlpatch_stage_units
        global_token_num = tu.get(data, key="global_token_num")
    update_weights: if global_steps is not None: TrainingWorker._rlpatch_parameter_version = global_steps
        effective_mode = mode if mode != "auto" else self.config.rollout.checkpoint_engine.backend
verl/workers/engine/fsdp/transformer_impl.py
    forward_backward_batch: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches, last=True)
        for micro_batch_idx, micro_batch in enumerate(micro_batches):
verl/workers/engine/veomni/transformer_impl.py
    forward_backward_batch: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches, last=True)
        for micro_batch in micro_batches:
verl/workers/engine/megatron/transformer_impl.py
    forward_backward_batch: batch_generator = self._rlpatch_stage_scheduled("micro-batch", batch_generator, mpu, self.module, last=True)
        losses_reduced = forward_backward_func(
    forward_backward_batch: self._rlpatch_stage_ended(batch_generator)
        if self.model_config.mtp.enable and mpu.is_pipeline_last_stage(ignore_virtual=True):
""",
    "verl 0.2 update-policy micro-batch": """
verl/workers/actor/dp_actor.py
    update_policy: self._rlpatch_stage("enter")
        self.actor_module.train()
    update_policy: dataloader = self._rlpatch_stage_units("mini-batch", dataloader)
        for batch_idx, data in enumerate(dataloader):
    update_policy: micro_batches = self._rlpatch_stage_units("micro-batch", micro_batches)
        for data in micro_batches:
    update_policy: self._rlpatch_stage("leave")
        return metrics
verl/workers/actor/megatron_actor.py
    forward_backward_batch: batch_generator = self._rlpatch_stage_scheduled("micro-batch", batch_generator, mpu, self.actor_module)
        if mpu.get_pipeline_model_parallel_world_size() > 1:
    forward_backward_batch: self._rlpatch_stage_ended(batch_generator)
        # loss_reduces contains the stats returned from loss_func
    update_policy: self._rlpatch_stage("enter")
        metrics = {}
    update_policy: dataloader = self._rlpatch_stage_units("mini-batch", dataloader, last=True)
        for data in dataloader:
""",
    "verl 0.6.1 compute-log-prob call": """
verl/workers/actor/dp_actor.py
    compute_log_prob: self._rlpatch_stage("enter")
        self.actor_module.eval()
    compute_log_prob: self._rlpatch_stage("leave")
        return log_probs, entropys
verl/workers/actor/megatron_actor.py
    compute_log_prob: self._rlpatch_stage("enter")
        use_dynamic_bsz = data.meta_info.get("use_dynamic_bsz", False)
    compute_log_prob: self._rlpatch_stage("leave")
        return log_probs, entropys
""",
    "verl 0.7.1 update-policy call": """
verl/workers/actor/dp_actor.py
    update_policy: self._rlpatch_stage("enter")
        self.actor_module.train()
    update_policy: self._rlpatch_stage("leave")
        return metrics
verl/workers/actor/megatron_actor.py
    update_policy: self._rlpatch_stage("enter")
        metrics = {}
    update_policy: self._rlpatch_stage("leave")
        return metrics
verl/workers/engine_workers.py
    train_mini_batch: self._rlpatch_stage("enter", data)
        maybe_fix_3d_position_ids(data)
    train_mini_batch: dataloader = self._rlpatch_stage_units("mini-batch", dataloader)
        for batch_idx, mini_batch_td in enumerate(dataloader):
    train_mini_batch: self._rlpatch_stage("leave")
        return output
    train_batch: self._rlpatch_stage("begin_batch", data)
        assert self.loss_fn is not None, "loss function can't be None when calling train_batch"
    train_batch: self._rlpatch_stage("end_batch")
        return final_output
""",
    "verl 0.9.1 update-policy call": """
verl/workers/engine_workers.py
    train_mini_batch: self._rlpatch_stage("enter", data)
        maybe_fix_3d_position_ids(data)
    train_mini_batch: dataloader = self._rlpatch_stage_units("mini-batch", dataloader)
        for batch_idx, mini_batch_td in enumerate(dataloader):
    train_mini_batch: self._rlpatch_stage("leave")
        return output
    train_batch: self._rlpatch_stage("begin_batch", data)
        assert self.loss_fn is not None, "loss function can't be None when calling train_batch"
    train_batch: self._rlpatch_stage("end_batch")
        return final_output
    update_weights: if global_steps is not None: TrainingWorker._rlpatch_parameter_version = global_steps
        effective_mode = mode if mode != "auto" else self.config.rollout.checkpoint_engine.backend
verl/workers/engine_workers_tinker.py
    forward_backward: self._rlpatch_stage("begin_batch", data, True)
        assert self.loss_fn is not None, "loss function can't be None when calling forward_backward"
    optimizer_step: self._rlpatch_stage("end_batch")
        return metrics
""",
    "verl 0.9.1 compute-values call": """
verl/workers/engine_workers.py
    infer_batch: self._rlpatch_stage("enter", data)
        global_token_num = tu.get(data, key="global_token_num")
    infer_batch: self._rlpatch_stage("leave")
        return final_output
    update_weights: if global_steps is not None: TrainingWorker._rlpatch_parameter_version = global_steps
        effective_mode = mode if mode != "auto" else self.config.rollout.checkpoint_engine.backend
""",
    "openrlhf 0.11.2 update-policy mini-batch": """
openrlhf/trainer/ray/ppo_actor.py
    ppo_train: self._rlpatch_stage("enter")
        if self.args.train.dynamic_batch_enable:
    ppo_train: self._rlpatch_stage("start", "micro-batch", {"input_ids": experience.sequences})
        status = self.training_step(experience, kl_ctl, step, loss_batch_info)
    ppo_train: self._rlpatch_stage("stop", "micro-batch")
        metrics = status["metrics"]
    ppo_train: self._rlpatch_stage("leave")
        if status_list:
""",
    "openrlhf 0.11.2 compute-values micro-batch": """
openrlhf/trainer/ray/launcher.py
    execute_batch: self._rlpatch_stage("enter", method_name)
        kwargs = {key: value[start_idx:end_idx] for key, value in all_data.items()}
    execute_batch: self._rlpatch_stage("start", "micro-batch", {"input_ids": sample_kwargs.get("sequences")})
        result = func(**sample_kwargs)
    execute_batch: self._rlpatch_stage("stop", "micro-batch")
        results.append(result)
    execute_batch: self._rlpatch_stage("leave")
        return results
""",
    "areal 1.0.4 update-policy micro-batch": """
areal/trainer/ppo/actor.py
    _ppo_update: self._rlpatch_stage("enter")
    _ppo_update: self.engine._rlpatch_stage_units = self._rlpatch_stage_units
        attn_mask = data["attention_mask"]
    _ppo_update: mb_inputs.mbs = self._rlpatch_stage_units("mini-batch", mb_inputs.mbs, last=True)
        for mb in mb_inputs.mbs:
areal/engine/fsdp_engine.py
    forward_backward_batch: mb_list = self._rlpatch_stage_units("micro-batch", mb_list)
        for mb_item in mb_list:
""",
    "areal 1.0.4 compute-values micro-batch": """
areal/trainer/ppo/critic.py
    _compute_values: self._rlpatch_stage("enter")
    _compute_values: self.engine._rlpatch_stage_units = self._rlpatch_stage_units
        self.engine.eval()
areal/engine/fsdp_engine.py
    forward_backward_batch: mb_list = self._rlpatch_stage_units("micro-batch", mb_list, last=True)
        for mb_item in mb_list:
""",
    "trl 1.16.0 update-policy mini-batch": """
trl/trainer/grpo_trainer.py
    _prepare_inputs: self._rlpatch_stage("prepared", inputs, self.model.training)
        return inputs
trl/trainer/rloo_trainer.py
    _prepare_inputs: self._rlpatch_stage("prepared", inputs, self.model.training)
        return inputs
trl/trainer/sft_trainer.py
    training_step: self._rlpatch_stage("prepared", *args[1:2])
        with self.maybe_activation_offload_context:
trl/trainer/dpo_trainer.py
    training_step: self._rlpatch_stage("prepared", *args[1:2])
        with self.maybe_activation_offload_context:
trl/trainer/kto_trainer.py
    training_step: self._rlpatch_stage("prepared", *args[1:2])
        with self.maybe_activation_offload_context:
""",
    "trl 1.16.0 compute-log-prob micro-batch": """
trl/trainer/grpo_trainer.py
    _get_per_token_logps_and_entropies: self._rlpatch_stage("parts", model)
        for start in range(0, input_ids.size(0), batch_size):
    _get_per_token_logps_and_entropies: self._rlpatch_stage("stop", "micro-batch")
        all_logps.append(outputs.log_probs[:, -logits_to_keep:])
    _get_per_token_logps_and_entropies: self._rlpatch_stage("go_on", start + batch_size < input_ids.size(0))
        if compute_entropy:
trl/trainer/rloo_trainer.py
    _get_per_token_logps_and_entropies: self._rlpatch_stage("parts", model)
        for start in range(0, input_ids.size(0), batch_size):
    _get_per_token_logps_and_entropies: self._rlpatch_stage("stop", "micro-batch")
        all_logps.append(outputs.log_probs[:, -logits_to_keep:])
    _get_per_token_logps_and_entropies: self._rlpatch_stage("go_on", start + batch_size < input_ids.size(0))
        if compute_entropy:
""",
    "mindspeed-rl 2.3.0 update-policy micro-batch": """
mindspeed_rl/workers/actor_hybrid_worker.py
    update: self._rlpatch_stage("enter", "actor")
        self.sharding_manager.enter_train_mode()
    update: self._rlpatch_stage("leave")
        profiler_step(actor_update_profiler)
mindspeed_rl/models/base/base_training_engine.py
    _forward_backward_batch: batches = self._rlpatch_stage_units("micro-batch", batches)
        data_iter = iter(batches)
    _forward_backward_batch: self._rlpatch_stage_ended(data_iter)
        if self.use_dynamic_bsz and forward_only and post_process:
    update: mini_batches = self._rlpatch_stage_units("mini-batch", mini_batches)
        for mini_batch in mini_batches:
""",
    "mindspeed-rl 2.3.0 compute-values micro-batch": """
mindspeed_rl/workers/critic_worker.py
    compute_values: self._rlpatch_stage("enter", "critic")
        critic_compute_values_profiler = profiler_start(self.profiler_config, role="critic_compute_values")
    compute_values: self._rlpatch_stage("leave")
        profiler_step(critic_compute_values_profiler)
mindspeed_rl/models/base/base_training_engine.py
    _forward_backward_batch: batches = self._rlpatch_stage_units("micro-batch", batches)
        data_iter = iter(batches)
    _forward_backward_batch: self._rlpatch_stage_ended(data_iter)
        if self.use_dynamic_bsz and forward_only and post_process:
""",
    "slime 0.3.1 update-policy micro-batch": """
slime/backends/megatron_utils/model.py
    forward_step: next(_rlpatch_stage_micros, None)
        batch = data_iterator.get_next(["tokens"])
    train_one_step: _rlpatch_stage_micros = _rlpatch_stage_scheduled("micro-batch", iter(data_iterator[:1] * num_microbatches), mpu, model)
        losses_reduced = forward_backward_func(
    train_one_step: _rlpatch_stage_ended(_rlpatch_stage_micros)
        update_successful, grad_norm, _ = optimizer.step()
    train: _rlpatch_stage("enter", model)
        for iterator in data_iterator:
    train: _rlpatch_stage("start", "mini-batch", None)
        loss_dict, grad_norm = train_one_step(
    train: _rlpatch_stage("stop", "mini-batch")
        if mpu.get_data_parallel_rank(with_context_parallel=True) == 0:
    train: _rlpatch_stage("leave")
        if pre_hook_enabled:
""",
    "slime 0.3.1 compute-log-prob call": """
slime/backends/megatron_utils/model.py
    forward_only: _rlpatch_stage("enter", model, store_prefix)
        for iterator in data_iterator:
    forward_only: _rlpatch_stage("leave")
        rollout_data = {}
""",
    "mindspeed-rl 2.3.0 rollout decode": """
mindspeed_rl/models/rollout/vllm_engine.py
    __init__: self._rlpatch_stage_attend(self.llm.llm_engine.model_executor.driver_worker.worker)
        self.model = self.llm.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()
    free_cache_engine: self._rlpatch_stage("end_rollout", "free_cache_engine()")
        self.llm.llm_engine.model_executor.driver_worker.worker.model_runner.kv_caches = []
""",
}


@pytest.mark.parametrize("asked", thinned([*LINES], [*LINES][::2]))
def test_every_line_stands_in_its_method(asked: str, tmp_path: Path) -> None:
    assert [*lines(asked, tmp_path)] == LINES[asked].strip("\n").split("\n")


def lines(asked: str, scratch: Path) -> Iterator[str]:
    """File by file: each line of ours with its method, and deeper the line of upstream's that comes next."""
    name, version, stage, unit = asked.split()
    if name == "mindspeed-rl":
        root = trees.checkout(version, scratch / "tree")
    else:
        root = slime.checkout(scratch / "tree", "slime") if name == "slime" else releases.release(version, name)
    for recipe in upstream(name).recipes:
        structure = recipe.structure(version)
        if structure and recipe.stage == stage and unit in recipe.windows:
            source = (root / structure.file).read_bytes()
            block = PatchId(name, stage), ["pass"]  # what the probe is made of has tests of its own
            after = editing.insert(source, recipe, [block], "0.1.0", units=(unit,), where=structure.file)
            yield structure.file
            yield from _lines(after.decode(), f"_rlpatch_{stage.replace('-', '_')}")


def _lines(source: str, name: str) -> Iterator[str]:
    ours = False
    functions: dict[int, str] = {}  # by their margins, those around the line
    for line in filter(None, map(str.rstrip, source.splitlines())):
        margin = len(line) - len(line.lstrip())
        if not line.lstrip().startswith(")"):  # of parameters
            functions = {at: function for at, function in functions.items() if at < margin}
        method = ["", *functions.values()][-1]
        if found := re.match(r" *(?:async )?def (\w+)", line):
            functions[margin] = found[1]
        code, _, mark = line.strip().partition("  # rlpatch: ")
        if mark:
            yield f"    {method}: {code.replace(name, '_rlpatch_stage')}"
        elif ours:
            yield f"        {code}"
        ours = bool(mark)
