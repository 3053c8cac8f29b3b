"""MindSpeed-RL: where its rollout and its training stages are recorded, on git checkouts."""

from __future__ import annotations

from patcher.messages import Note, Text
from patcher.processes import Processes
from patcher.recipe import Before, Head, Insertion, Loop, Probe, Recipe, Structure, Upstream
from patches import rollout, training, vllm_engine
from patches.mindspeed_rl import PROJECT, RELEASES, mindspeed_rl_timeline
from patches.mindspeed_rl.mindspeed_rl_switches import SWITCHES
from patches.mindspeed_rl.profiling import PROFILING
from patches.probes.mindspeed import HostedRollout, HostedWorker, ScheduledLoop, StageOfWorker
from patches.probes.vllm import OutputContexts
from patches.releases import Releases
from patches.training import CALL, MICRO, MINI, ROLES, UPDATES

_WITH_CRITIC = RELEASES.since("2.2.0")

_REMOVE = Text(
    "the patch is no longer needed once MindSpeed-RL's own profiler can record a window of decode steps, micro-batches"
    " or mini-batches"
)
_WHY = Text(
    "MindSpeed-RL's own profiler records whole stages. MindSpeed-RL's guide therefore tells users to set max_tokens to"
    " 128 and the global batch to 8, and to use fewer layers. What is recorded is then no longer the run to be analysed"
)
_PIPELINE = Note(
    Text("with pipeline parallelism, use --call or --mini-batch, not --micro-batch"),
    Text(
        "with pipeline_model_parallel_size above 1, or several model chunks, Megatron interleaves the"
        " micro-batches. In these cases a --micro-batch window records nothing, and the log says so"
    ),
)
_DISPATCH = Note(
    Text("a training step can have several rollouts"),
    Text(
        "a training step has several rollouts with dynamic sampling (DAPO), or if actor_rollout_dispatch_size is less"
        " than a replica's share of the batch. Choose one of the rollouts with --rollout N"
    ),
)
_DYNAMIC = Note(Text("with use_dynamic_bsz, micro-batches differ in size: record several"))

# --- rollout ---

_ENGINE_FILE = "mindspeed_rl/models/rollout/vllm_engine.py"
_ROLLOUT = Recipe(
    name=Text("vLLM in the training process"),
    stage="rollout",
    class_name="VLLMInferEngine",
    method="__init__",
    windows=rollout.WINDOWS,
    probe=rollout.probe(
        HostedRollout,
        members=(HostedWorker,),
        contexts=OutputContexts,
        traits=lambda _release: vllm_engine.scheduler_output_parts(""),  # of any vLLM
        warm_ups=lambda _release: vllm_engine.warm_ups(""),
    ),
    insertions=(
        Insertion(
            "__init__",
            where=Before(
                "self.model = self.llm.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()"
            ),
            line="self._rlpatch_stage_attend(self.llm.llm_engine.model_executor.driver_worker.worker)",
            why=Text(
                "in each iteration, vLLM's executor calls execute_model() of its only worker, in the thread that runs"
                " the forward. The probe replaces this method on the worker object, so vllm-ascend itself is not"
                " patched. A decode step lasts from one call to the next and contains the forward and sampling of that"
                " step"
            ),
        ),
        Insertion(
            "free_cache_engine",
            where=Head(),
            line='self._rlpatch_stage("end_rollout", "free_cache_engine()")',
            why=Text(
                "every rollout ends with this function: generate_sequences() calls it, and the worker calls it after"
                " asynchronous and multi-turn rollouts. An engine in a single process runs no empty batch after the"
                " last request, so only this call shows that the rollout has ended"
            ),
        ),
    ),
    structures=(
        Structure(
            "",
            RELEASES,
            _ENGINE_FILE,
            ("c129b23eb8f0", "88d96061bc2f"),
            Text(
                "the worker creates vllm.LLM with external_launcher and the V1 engine. The vLLM release is 0.9.1, or"
                " 0.11.0 on MindSpeed-RL's master branch"
            ),
        ),
    ),
    why=_WHY,
    how=Text(
        "inserts one line where the engine is built, and one at the start of free_cache_engine(). These lines call a"
        " probe, which is a nested class at the end of VLLMInferEngine"
    ),
    upstream=Text("{file}, from {release} on", file=_ENGINE_FILE, release=RELEASES[0]),
    needed_until=_REMOVE,
    notes=(_DISPATCH,),
)

# --- training ---

_TRAINING_ENGINE = "mindspeed_rl/models/base/base_training_engine.py"
_SCHEDULE = Probe(members=(ScheduledLoop,), summary=training.summary)


def _engine(stage: str) -> Recipe:
    """Return the recipe that counts the micro-batches of `BaseTrainingEngine` in `stage`, and in updates mini-batches.

    Role and training step come from the engine's worker.
    """
    update = stage in UPDATES
    releases = _WITH_CRITIC if ROLES[stage] == ("critic",) else RELEASES
    minis = Insertion(
        "update",
        where=Loop(("mini_batches",)),
        line='mini_batches = self._rlpatch_stage_units("mini-batch", mini_batches)',
        why=Text("each iteration of this loop is a mini-batch with its optimizer step"),
    )
    micros = (
        Insertion(
            "_forward_backward_batch",
            where=Before("data_iter = iter(batches)"),
            line='batches = self._rlpatch_stage_units("micro-batch", batches)',
            why=Text(
                "without pipeline parallelism, Megatron's schedule takes one micro-batch at a time and runs its"
                " forward (in updates also its backward) before it takes the next"
            ),
            windows=(MICRO,),
        ),
        Insertion(
            "_forward_backward_batch",
            where=Before("if self.use_dynamic_bsz and forward_only and post_process: ..."),
            line="self._rlpatch_stage_ended(data_iter)",
            why=Text(
                "a micro-batch ends when the next one is taken from the iterator. Megatron's schedule takes none after"
                " the last micro-batch, so this one ends only at this line, and includes the gradient reduction"
            ),
            windows=(MICRO,),
        ),
    )
    return Recipe(
        name=Text("training engine"),
        stage=stage,
        class_name="BaseTrainingEngine",
        method="_forward_backward_batch",
        windows=(MICRO, MINI) if update else (MICRO,),
        probe=_SCHEDULE,
        insertions=(minis, *micros) if update else micros,
        structures=(
            Structure(
                "",
                releases,
                _TRAINING_ENGINE,
                ("e335852afe4a", "7a56bbeb4d29"),
                Text("Megatron's schedule runs the micro-batches; each epoch runs all mini-batches in a loop")
                if update
                else Text("Megatron's schedule runs the micro-batches"),
            ),
        ),
        why=_WHY,
        how=Text(
            "rlpatch wraps the iterable of micro-batches that Megatron's schedule reads, and in updates also the"
            " iterable of mini-batches that the training loop reads. Between two batches, the wrapper starts, steps"
            " or stops the profiler. The trace is saved even if an exception ends the loop"
        ),
        upstream=Text("{file}, from {release} on", file=_TRAINING_ENGINE, release=releases[0]),
        needed_until=_REMOVE,
        strategies=("megatron",),
        roles=ROLES[stage],
        notes=(_PIPELINE,),
        unit_notes={MICRO: _DYNAMIC},
        together=True,
    )


def _worker(
    *, stage: str, role: str, class_name: str, method: str, ends: Before, structures: tuple[Structure, ...]
) -> Recipe:
    """Return the recipe for `stage` in the worker class `class_name`, whose `method` runs it for `role`.

    The stage is over before the statement `ends`; `structures` are the files, by release, in which this holds.
    """
    return Recipe(
        name=Text("reference worker") if role == "ref" else Text("{role} worker", role),
        stage=stage,
        class_name=class_name,
        method=method,
        windows=(MICRO, MINI, CALL) if stage in UPDATES else (MICRO, CALL),
        probe=training.probe(StageOfWorker, roles=ROLES[stage]),
        insertions=(
            Insertion(
                method,
                where=Head(),
                line=f'self._rlpatch_stage("enter", "{role}")',
                why=Text(
                    "a training step begins here. The engine itself cannot tell where a training step begins, because"
                    " it receives the batch in several chunks (see the option *_dispatch_size). Calls that compute"
                    " image embeddings use other methods and do not count as training steps"
                ),
            ),
            Insertion(
                method,
                where=ends,
                line='self._rlpatch_stage("leave")',
                why=Text("the engine has processed every chunk of the batch"),
            ),
        ),
        structures=structures,
        why=_WHY,
        how=Text(
            "inserts one line at the start and one at the end of the stage. These lines call a probe, which wraps the"
            " loops of the engine. The probe is a nested class at the end of {class_name}, from which the Ray actors"
            " inherit",
            class_name,
        ),
        upstream=Text("{file}, from {release} on", file=structures[-1].file, release=structures[0].releases[0]),
        needed_until=_REMOVE,
        strategies=("megatron",),
        roles=(role,),
        together=True,
    )


_ACTOR_FILE = "mindspeed_rl/workers/actor_hybrid_worker.py"
_CRITIC_FILE = "mindspeed_rl/workers/critic_worker.py"


def _whole(file: str, releases: Releases, *fingerprints: str) -> Structure:
    return Structure("", releases, file, fingerprints, Text("a loop that fetches the batch in several chunks"))


_RECIPES = (
    _ROLLOUT,
    _worker(
        stage="update-policy",
        role="actor",
        class_name="ActorHybridWorkerBase",
        method="update",
        ends=Before("profiler_step(actor_update_profiler)"),
        structures=(_whole(_ACTOR_FILE, RELEASES, "745bfac9756f", "34c146ca11b8"),),
    ),
    _engine("update-policy"),
    _worker(
        stage="compute-log-prob",
        role="actor",
        class_name="ActorHybridWorkerBase",
        method="compute_log_prob",
        ends=Before("profiler_step(actor_compute_log_prob_profiler)"),
        structures=(_whole(_ACTOR_FILE, RELEASES, "ae851cfac40a", "6811f9fa3eeb", "43d7ef8bdd20"),),
    ),
    _worker(
        stage="compute-log-prob",
        role="ref",
        class_name="ReferenceWorkerBase",
        method="compute_ref_log_prob",
        ends=Before("parallel_state = get_parallel_state()"),
        structures=(
            _whole("mindspeed_rl/workers/reference_woker.py", RELEASES.until("2.1.0"), "c9a15d0f0e9e"),
            _whole("mindspeed_rl/workers/reference_worker.py", RELEASES.since("2.2.0"), "dac6a1093596"),
        ),
    ),
    _engine("compute-log-prob"),
    _worker(
        stage="update-critic",
        role="critic",
        class_name="CriticWorkerBase",
        method="update",
        ends=Before("profiler_step(critic_update_profiler)"),
        structures=(_whole(_CRITIC_FILE, _WITH_CRITIC, "1fd95a4a3d9e"),),
    ),
    _engine("update-critic"),
    _worker(
        stage="compute-values",
        role="critic",
        class_name="CriticWorkerBase",
        method="compute_values",
        ends=Before("profiler_step(critic_compute_values_profiler)"),
        structures=(_whole(_CRITIC_FILE, _WITH_CRITIC, "01e78f73a14e"),),
    ),
    _engine("compute-values"),
)

UPSTREAM = Upstream(
    PROJECT,
    recipes=(*_RECIPES, *mindspeed_rl_timeline.RECIPES),
    switches=SWITCHES,
    tool="npu",
    runs_on={},  # nowhere else
    application=PROFILING,
    processes=Processes(
        scripts=("train_grpo.py", "train_dapo.py", "train_ppo.py"),
        titles=("ray::IntegratedWorker", "ray::ActorHybridWorker"),
    ),
    builtin={
        ">=2.1.0": Text(
            "profiler_config.integrated.profile records whole stages on profile_ranks, from training step"
            " profile_step_start up to (not including) profile_step_end. The profiler writes one trace each time a"
            " stage runs. With stage=all there is one trace of all stages; PPO does not support stage=all. This"
            " profiler has no windows or marks for decode steps, micro-batches or mini-batches, and works only with"
            " integrated workers. To keep traces small, MindSpeed-RL's guide reduces max_tokens to 128 and the global"
            " batch to 8 or 4. With mstx and level_none, marks and communication are recorded, but no operators."
        )
    },
)
