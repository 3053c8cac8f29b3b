"""verl: where the units of its training stages are recorded, in the workers with loops and in the engine workers."""

from __future__ import annotations

from typing import NamedTuple

from patcher.messages import Text
from patcher.processes import Processes
from patcher.recipe import Before, Head, Insertion, Probe, Recipe, Structure, Upstream
from patches import training
from patches.probes.members import ForeignLoops, Inherited
from patches.probes.verl import LoggedSteps, MegatronSchedule, Trainer, WorkerUpdate
from patches.releases import Releases
from patches.training import CALL, MICRO, MINI, ROLES, UPDATES
from patches.verl import PROJECT, RELEASES, verl_timeline, verl_weights, workers
from patches.verl.profiling import PROFILING
from patches.verl.stages import DYNAMIC, INTERLEAVED, ITERATED, LEGACY, REMOVE, WHY, leave, loop, scheduled
from patches.verl.verl_switches import SWITCHES

# --- the engine workers, from 0.7.0 on; those before them are in workers.py ---

_ENGINES = RELEASES.since("0.7.0")
_WORKER = "verl/workers/engine_workers.py"


class _Engine(NamedTuple):
    """Engine class with the loop over the micro-batches, which its worker counts."""

    class_name: str
    strategy: str
    releases: Releases
    fingerprints: tuple[str, ...]


_FSDP = _Engine("FSDPEngine", "fsdp", _ENGINES, ("8bd8dc758504", "aa62165bf021", "2091ebdc61d3", "51a0a420b903"))
_VEOMNI = _Engine("VeOmniEngine", "veomni", _ENGINES, ("e6e04cfc8922", "05e7236601a2", "99f9035ff903", "232cd9bffd09"))
_WITH_LOOPS = (
    _FSDP,
    _VEOMNI,
    _Engine(
        "TorchTitanEngine",
        "torchtitan",
        RELEASES.since("0.7.1"),
        ("008d8c133e64", "992e273d8ffb", "ec20d04f3027"),
    ),
    _Engine("AutomodelEngine", "automodel", RELEASES.since("0.8.0"), ("4df3d433a26a",)),
)
_MEGATRON = _Engine(
    "MegatronEngine",
    "megatron",
    _ENGINES,
    ("eeb2b60a7ae0", "469257f4c145", "7aeb6e7e6c3a", "bd86aa090b60", "d16c99b98970"),
)
_ON_MEGATRON = ("megatron", "mindspeed")
"""The strategies that run Megatron's engine."""
_WITH_VALUE_HEADS = (
    _FSDP,
    _VEOMNI._replace(releases=RELEASES.since("0.8.0"), fingerprints=_VEOMNI.fingerprints[1:]),
)
_TRAIN = ("27b6701f21f1", "b0b628eadb55", "90bc921b6175", "0f6d507a10b2", "3dfa3f454c44")
_INFER = ("44b14b46f947", "202d7480d619", "b550dda0ff6b")


def _worker_name(unit: str) -> str:
    return Text("engine worker, {steps}", training.plural(unit))


_VERSION = Insertion(
    "ActorRolloutRefWorker.update_weights",
    where=Head(),
    line="if global_steps is not None: TrainingWorker._rlpatch_parameter_version = global_steps",
    why=Text(
        "training step N ends by sending its weights to the rollout, so the calls that follow belong to step N + 1,"
        " as in verl's log. In fine-tuning, in a critic with its own resources, and with trainers that do not pass"
        " global_steps, N is not known here: in these cases each call counts as a training step"
    ),
    parameters=("global_steps", "mode"),
    optional=True,
)


def _lend_loops(method: str) -> Insertion:
    """Return the line in a worker's `method` that lets the worker's recorder count the micro-batches of its engine.

    The engine has the loop over micro-batches, but only the worker knows role and training step.
    """
    return Insertion(
        method,
        where=Head(),
        line="self.engine._rlpatch_stage_units = self._rlpatch_stage_units",
        why=Text("the loop over micro-batches is in the engine, and the worker knows the role and the training step"),
        windows=(MICRO,),
    )


def engine_worker(stage: str, unit: str) -> Recipe:
    """Return the recipe that counts steps of the kind `unit` in `stage`, in `TrainingWorker`, which drives all engines.

    To count micro-batches, the recipes of the engines have to go in, too.
    """
    updates = stage in UPDATES
    method = "train_mini_batch" if updates else "infer_batch"
    enter = Insertion(
        method,
        where=Head(),
        line='self._rlpatch_stage("enter", data)',
        why=Text(
            "the call that runs this stage begins here. update_weights() gives the training step's number; in a"
            " process that never calls update_weights(), each call of this stage counts as a training step"
        ),
        parameters=("data",),
    )
    begin = Insertion(
        "train_batch",
        where=Head(),
        line='self._rlpatch_stage("begin_batch", data)',
        why=Text(
            "a batch outside the loop over mini-batches counts as a training step with one mini-batch; in supervised"
            " fine-tuning, all batches are outside this loop"
        ),
        parameters=("data",),
    )
    end = Insertion(
        "train_batch",
        where=Before("return ..."),
        line='self._rlpatch_stage("end_batch")',
        why=Text("the training step of this batch ends here"),
    )
    minis = loop(method, MINI, "dataloader", last=unit != CALL)
    over = (leave(method, Text("the call that runs this stage ends here")),) if unit == CALL else ()
    return Recipe(
        name=_worker_name(unit),
        stage=stage,
        class_name="TrainingWorker",
        method=method,
        windows=(unit,),
        probe=training.probe(
            WorkerUpdate if updates else Trainer,
            shared=Trainer,
            roles=ROLES[stage],
            logged=lambda release: None if release in LEGACY else LoggedSteps,
        ),
        insertions=(
            *((enter, minis, _lend_loops("train_batch"), begin, end) if updates else (_lend_loops(method), enter)),
            *over,
            _VERSION,
        ),
        structures=(
            Structure(
                "",
                _ENGINES,
                _WORKER,
                _TRAIN if updates else _INFER,
                Text("the function has one loop over the mini-batches of all epochs")
                if updates
                else Text("the function calls the engine once"),
            ),
        ),
        why=WHY,
        how=Text(
            "inserts a line at the start of the function. The line calls a probe, which determines for which role the"
            " function was called. The probe is a nested class at the end of TrainingWorker"
        ),
        upstream=Text("{file}, from {release} on", file=_WORKER, release=_ENGINES[0]),
        needed_until=REMOVE,
        strategies=_strategies(stage, unit),
        roles=ROLES[stage],
        needs=tuple(engine.class_name for engine in (*_WITH_LOOPS, _MEGATRON)) if unit == MICRO else (),
    )


def _tinker(unit: str) -> Recipe:
    """Return the recipe that counts steps of the kind `unit` in Tinker's worker, which gets an update in several calls.

    Each of its mini-batches counts as a training step.
    """
    file, releases, method = "verl/workers/engine_workers_tinker.py", RELEASES.since("0.9.0"), "forward_backward"
    return Recipe(
        name=Text("Tinker's worker, {steps}", training.plural(unit)),
        stage="update-policy",
        class_name="TinkerTrainingWorker",
        method=method,
        windows=(unit,),
        probe=Probe(members=(Inherited,), summary=training.summary),
        insertions=(
            _lend_loops(method),
            Insertion(
                method,
                where=Head(),
                line='self._rlpatch_stage("begin_batch", data, True)',
                why=Text(
                    "the first call of this function after an optimizer step begins a mini-batch; for Tinker's worker,"
                    " each mini-batch counts as a training step"
                ),
                parameters=("data",),
            ),
            Insertion(
                "optimizer_step",
                where=Before("return ..."),
                line='self._rlpatch_stage("end_batch")',
                why=Text("the mini-batch ends when this function returns"),
            ),
        ),
        structures=(
            Structure(
                "",
                releases,
                file,
                ("e78e523067fc",),
                Text("forward_backward() and optimizer_step() are separate calls"),
            ),
        ),
        why=WHY,
        how=Text(
            "inserts two lines: one before forward and backward, and one after the optimizer step. The lines call a"
            " probe, which this worker inherits from TrainingWorker"
        ),
        upstream=Text("{file}, from {release} on", file=file, release=releases[0]),
        needed_until=REMOVE,
        strategies=_strategies("update-policy", unit),
        roles=ROLES["update-policy"],
        needs=(_worker_name(unit),),
    )


def _strategies(stage: str, unit: str) -> tuple[str, ...]:
    """Return the parallel strategies whose engines count ``unit`` in a stage."""
    engines = _engines(stage) if unit == MICRO else _WITH_LOOPS
    return (*(engine.strategy for engine in engines), *_ON_MEGATRON)


def _engines(stage: str) -> tuple[_Engine, ...]:
    """Return the engines that have a model for the stage's roles and a loop over the micro-batches."""
    return _WITH_VALUE_HEADS if ROLES[stage] == ("critic",) else _WITH_LOOPS


def _in_engine(engine: _Engine, stage: str, shape: str = Text("a loop over all micro-batches")) -> Recipe:
    """Return the recipe for `engine`'s loop over micro-batches in `stage`; the probe in its worker counts them."""
    method, file = "forward_backward_batch", f"verl/workers/engine/{engine.strategy}/transformer_impl.py"
    return Recipe(
        name=engine.class_name,
        stage=stage,
        class_name=engine.class_name,
        method=method,
        windows=(MICRO,),
        marks=(MINI,) if stage in UPDATES else (),
        probe=training.FOREIGN_LOOPS,
        insertions=(loop(method, MICRO, "micro_batches", last=stage not in UPDATES),),
        structures=(Structure("", engine.releases, file, engine.fingerprints, shape),),
        why=WHY,
        how=Text(
            "inserts one line before the loop over micro-batches. Through this line, a probe in the worker counts the"
            " iterations"
        ),
        upstream=Text("{file}, from {release} on", file=file, release=engine.releases[0]),
        needed_until=REMOVE,
        strategies=(engine.strategy,),
        roles=ROLES[stage],
        unit_notes={MICRO: DYNAMIC},
        needs=(_worker_name(MICRO), _worker_name(MINI)),
    )


def _in_megatron(stage: str) -> Recipe:
    """Return the recipe for Megatron's schedule of micro-batches in `stage`; MindSpeed's engines use it, too."""
    recipe = _in_engine(_MEGATRON, stage, Text("Megatron's schedule runs the micro-batches"))
    schedule = scheduled(recipe.method, "self.module", "forward_backward_func(...)", last=stage not in UPDATES)
    return recipe._replace(
        probe=Probe(members=(ForeignLoops, MegatronSchedule), summary=training.summary),
        insertions=(schedule,),
        how=ITERATED,
        strategies=_ON_MEGATRON,
        notes=(INTERLEAVED,),
    )


def _recipes(stage: str) -> tuple[Recipe, ...]:
    """Return all recipes of a training stage: legacy and engine workers, Tinker's (update-policy only), and engines."""
    units = (MINI, MICRO, CALL) if stage in UPDATES else (MICRO, CALL)
    tinker = map(_tinker, units) if stage == "update-policy" else ()
    engines = (*(_in_engine(engine, stage) for engine in _engines(stage)), _in_megatron(stage))
    return (*workers.RECIPES[stage], *(engine_worker(stage, unit) for unit in units), *tinker, *engines)


UPSTREAM = Upstream(
    PROJECT,
    recipes=(
        *_recipes("update-policy"),
        *_recipes("compute-log-prob"),
        *_recipes("update-critic"),
        *_recipes("compute-values"),
        *verl_timeline.RECIPES,
        *verl_weights.RECIPES,
    ),
    switches=SWITCHES,
    engines=("vllm-ascend", "vllm", "sglang"),
    tool="npu",
    application=PROFILING,
    processes=Processes(modules=("verl.trainer",), titles=("ray::WorkerDict",)),
    builtin={
        ">=0.4.0,<0.4.1": Text(
            "Megatron's actor.profile with step_start and step_end records a window of mini-batches of"
            " update_policy, with torch.profiler."
        ),
        ">=0.4.1,<0.6.0": Text(
            "trainer.profile_steps records whole training steps with nsys, from 0.5.0 on also with torch_npu."
            " Megatron's actor.profile with step_start and step_end records a window of mini-batches of"
            " update_policy, with torch.profiler."
        ),
        ">=0.6.0,<0.9.0": Text(
            "global_profiler.steps records whole training steps; with discrete=True each stage is one trace with all"
            " its micro-batches and mini-batches. Up to verl 0.7.0, the settings step_start and step_end of Megatron's"
            " actor choose a window of mini-batches of update_policy; torch.profiler records this window."
        ),
        ">=0.9.0": Text(
            "global_profiler.steps records whole training steps; with discrete=True each stage is one trace. With"
            " tool=torch, a schedule selects a window of mini-batches of the actor's update; on NPUs the profiler's"
            " step() does nothing, so a trace holds all mini-batches. No stage has a window of micro-batches."
            " compute_log_prob, the reference and the critic have no window at all. In rollouts, profile_token_start"
            " and profile_token_end set delay_iterations and max_iterations of the engine's own profiler, which also"
            " counts prefill."
        ),
    },
)
