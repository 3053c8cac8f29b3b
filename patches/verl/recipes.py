"""verl: where the units of its training stages are recorded, in the workers with loops and in the engine workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from patcher.messages.notes import Note
from patcher.processes import Processes
from patcher.recipe import Before, Gap, Head, Insertion, Loop, Probe, Recipe, Structure, Upstream
from patches import training
from patches.probes.members import Inherited
from patches.probes.training import DataParallelActor, MegatronActor, OneRole, Trainer, WorkerUpdate
from patches.releases import Releases
from patches.training import MICRO, MINI, ROLES, UPDATES
from patches.verl import PROJECT, RELEASES, timeline, weights
from patches.verl.profiling import PROFILING
from patches.verl.switches import SWITCHES

_LEGACY = RELEASES.until("0.7.1")
_ENGINES = RELEASES.since("0.7.0")

_LOGGER = "verl.rlpatch"
_REMOVE = "verl's own profiler takes a window of micro-batches, and of mini-batches on NPUs, in every stage"
_WHY = (
    "the guides put torch_npu.profiler with a schedule into these loops by hand: off by one, on every rank and for"
    " every role, and without a trace where a loop has fewer turns than the schedule"
)
_DYNAMIC = Note(
    "with use_dynamic_bsz the first micro-batch is not representative",
    "from 0.6.0 on verl puts the smallest micro-batches at both ends of the loop then",
)
_SCHEDULE = Note(
    "the schedule interleaves its micro-batches",
    "Megatron runs the micro-batches inside its pipeline schedule, which MindSpeed's engine inherits: forward and"
    " backward of several are interleaved, so none of them has a separate start or end there. --mini-batch can be had"
    " in updates",
)

_COUNTED = "calls are counted as training steps, because no global_steps reaches this place in every release"


def _loop(method: str, unit: str, *names: str, last: bool = False, windows: tuple[str, ...] = ()) -> Insertion:
    return Insertion(
        method,
        where=Loop(names),
        line=f'{{units}} = self._rlpatch_stage_units("{unit}", {{units}}{", last=True" if last else ""})',
        why=f"each turn is {_TURNS[unit]}",
        windows=windows,
    )


_TURNS = {MICRO: "a micro-batch, forward and backward", MINI: "a mini-batch with its optimizer step"}


# --- the workers that have the loops themselves: dp_*.py and megatron_*.py, up to 0.7.1 ---


class _Loops(NamedTuple):
    """The loops of a stage in one method, and what can be counted in them."""

    insertions: tuple[Insertion, ...]
    windows: tuple[str, ...]
    shape: str


def _once(method: str) -> _Loops:
    return _Loops(
        (_enter(method), _loop(method, MICRO, "micro_batches", last=True)),
        (MICRO,),
        "one loop over the micro-batches",
    )


def _scheduled(method: str) -> _Loops:
    return _Loops(
        (_enter(method), _loop(method, MINI, "dataloader", last=True)),
        (MINI,),
        "one loop over the mini-batches; Megatron's schedule has the micro-batches",
    )


def _nested(method: str) -> _Loops:
    return _Loops(
        (
            _enter(method),
            _loop(method, MINI, "mini_batches", "dataloader"),
            _loop(method, MICRO, "micro_batches", windows=(MICRO,)),
            Insertion(
                method,
                where=Before("return ..."),
                line='self._rlpatch_stage("leave")',
                why="the epochs are over",
            ),
        ),
        (MICRO, MINI),
        "a loop over the micro-batches in one over the mini-batches, from 0.3.0.post0 on in one over the epochs",
    )


def _enter(method: str) -> Insertion:
    return Insertion(method, where=Head(), line='self._rlpatch_stage("enter")', why=_COUNTED)


class _Worker(NamedTuple):
    """A class of workers that has the loops itself."""

    name: str
    strategy: str
    file: str
    class_name: str


_FSDP_ACTOR = _Worker("FSDP worker", "fsdp", "verl/workers/actor/dp_actor.py", "DataParallelPPOActor")
_FSDP_CRITIC = _Worker("FSDP worker", "fsdp", "verl/workers/critic/dp_critic.py", "DataParallelPPOCritic")
_MEGATRON_ACTOR = _Worker("Megatron worker", "megatron", "verl/workers/actor/megatron_actor.py", "MegatronPPOActor")
_MEGATRON_CRITIC = _Worker("Megatron worker", "megatron", "verl/workers/critic/megatron_critic.py", "MegatronPPOCritic")


def _in_loops(
    worker: _Worker, stage: str, loops_of: Callable[[str], _Loops], *, role: type, fingerprints: tuple[str, ...]
) -> Recipe:
    """A stage of ``worker`` in the method of its name; ``role`` is the part of the probe that tells its role."""
    method = stage.replace("-", "_")
    loops = loops_of(method)
    return Recipe(
        name=worker.name,
        stage=stage,
        class_name=worker.class_name,
        method=method,
        windows=loops.windows,
        probe=training.probe(role, roles=ROLES[stage], logger=_LOGGER),
        insertions=loops.insertions,
        structures=(Structure("", _LEGACY, worker.file, fingerprints, loops.shape),),
        why=_WHY,
        how="the loops run over their units wrapped: the wrapper starts, steps and saves the profiler between two"
        " turns, and saves it also where the loop raises",
        upstream=f"{worker.file}, {_LEGACY[0]} to {_LEGACY[-1]}",
        remove_when="nobody runs releases below 0.8.0 any more",
        strategies=(worker.strategy,),
        roles=ROLES[stage],
        unit_notes={MICRO: _DYNAMIC} if MICRO in loops.windows else {},
    )


_FSDP_UPDATE_POLICY = _in_loops(
    _FSDP_ACTOR,
    "update-policy",
    _nested,
    role=OneRole,
    fingerprints=(
        "38fada88526e", "f8c334a3f269", "7d3f4edbad65", "47f168a73526", "2a25d198b74f", "094a963ce4d8",
        "ac72ea292268", "d194a6763b97", "b7a34a566c39",
    ),
)  # fmt: skip
_MEGATRON_UPDATE_POLICY = _in_loops(
    _MEGATRON_ACTOR,
    "update-policy",
    _scheduled,
    role=MegatronActor,
    fingerprints=(
        "1c5d0579d370", "68c43c3f800f", "852adec64a57", "02fca28a8380", "0c66a6163710", "fbe909dc904f",
        "6a76258258f3", "9c3a430747f3",
    ),
)  # fmt: skip
_FSDP_LOG_PROB = _in_loops(
    _FSDP_ACTOR,
    "compute-log-prob",
    _once,
    role=DataParallelActor,
    fingerprints=(
        "b247e88ebe38", "3690a88279fc", "87782a30aa03", "747994be98da", "d463407c4619", "cd8c049a7d88",
        "8eb1ad96921f",
    ),
)  # fmt: skip
_FSDP_UPDATE_CRITIC = _in_loops(
    _FSDP_CRITIC,
    "update-critic",
    _nested,
    role=OneRole,
    fingerprints=(
        "833cc3e1aca3", "fd510348cdb1", "a13a7a592d4c", "b63adfcf9f36", "72ef82fdd291", "a8934e955a51",
        "60cb2d469ff8",
    ),
)  # fmt: skip
_MEGATRON_UPDATE_CRITIC = _in_loops(
    _MEGATRON_CRITIC,
    "update-critic",
    _scheduled,
    role=OneRole,
    fingerprints=("fea37f92c35d", "b683456591af", "42d1286fd19a", "a212d84a329c"),
)
_FSDP_VALUES = _in_loops(
    _FSDP_CRITIC,
    "compute-values",
    _once,
    role=OneRole,
    fingerprints=("fcc5484c4e2f", "f32e8d1f8dc7", "60cb36a6818d", "59e7dd531cf1", "684aec9f22f1"),
)

# --- the engine workers, from 0.7.0 on ---

_WORKER = "verl/workers/engine_workers.py"


class _Engine(NamedTuple):
    """A class of engines that has the loop over the micro-batches, which its worker counts."""

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
_WITH_VALUE_HEADS = (
    _FSDP,
    _VEOMNI._replace(releases=RELEASES.since("0.8.0"), fingerprints=_VEOMNI.fingerprints[1:]),
)
_TRAIN = ("27b6701f21f1", "b0b628eadb55", "90bc921b6175", "0f6d507a10b2", "3dfa3f454c44")
_INFER = ("44b14b46f947", "202d7480d619", "b550dda0ff6b")


def _worker_name(unit: str) -> str:
    return f"engine worker, {unit.replace('batch', 'batches')}"


_VERSION = Insertion(
    "ActorRolloutRefWorker.update_weights",
    where=Head(),
    line="if global_steps is not None: TrainingWorker._rlpatch_parameter_version = global_steps",
    why="the weights of training step N go to the rollout at its end, in every trainer: what follows is N + 1, as in"
    " verl's log, however many calls of the stage there are. Calls are counted where a process never gets here:"
    " fine-tuning, a critic with resources of its own, trainers that do not pass global_steps",
    parameters=("global_steps", "mode"),
    optional=True,
)


def _lend(method: str) -> Insertion:
    return Insertion(
        method,
        where=Head(),
        line="self.engine._rlpatch_stage_units = self._rlpatch_stage_units",
        why="the engine has the loop over the micro-batches, the worker knows the role and the training step",
        windows=(MICRO,),
    )


def _worker(*, stage: str, unit: str) -> Recipe:
    """A stage of the worker that drives an engine, whatever its strategy (``engine_workers.py``)."""
    updates = stage in UPDATES
    method = "train_mini_batch" if updates else "infer_batch"
    enter = Insertion(
        method,
        where=Head(),
        line='self._rlpatch_stage("enter", data)',
        why="a call begins, of the training step that update_weights tells of, else counted as one",
        parameters=("data",),
    )
    begin = Insertion(
        "train_batch",
        where=Head(),
        line='self._rlpatch_stage("begin_batch", data)',
        why="a batch that is none of that loop is a training step with one mini-batch: supervised fine-tuning has no"
        " others",
        parameters=("data",),
    )
    end = Insertion(
        "train_batch", where=Before("return ..."), line='self._rlpatch_stage("end_batch")', why="and its step is over"
    )
    minis = _loop(method, MINI, "dataloader", last=True)
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
            logger=_LOGGER,
            versioned=lambda release: release not in _LEGACY,
        ),
        insertions=(
            *((enter, minis, _lend("train_batch"), begin, end) if updates else (_lend(method), enter)),
            _VERSION,
        ),
        structures=(
            Structure(
                "",
                _ENGINES,
                _WORKER,
                _TRAIN if updates else _INFER,
                "a loop over the mini-batches of all epochs" if updates else "one call of the engine",
            ),
        ),
        why=_WHY,
        how="one line at the head tells whose call it is; the probe is one nested class at the end of TrainingWorker",
        upstream=f"{_WORKER}, from {_ENGINES[0]} on",
        remove_when=_REMOVE,
        strategies=_strategies(stage, unit),
        roles=ROLES[stage],
        needs=tuple(engine.class_name for engine in _WITH_LOOPS) if unit == MICRO else (),
    )


def _tinker(unit: str) -> Recipe:
    """The worker that takes an update in parts; it derives from the one that drives an engine."""
    file, releases, method = "verl/workers/engine_workers_tinker.py", RELEASES.since("0.9.0"), "forward_backward"
    return Recipe(
        name=f"Tinker's worker, {unit.replace('batch', 'batches')}",
        stage="update-policy",
        class_name="TinkerTrainingWorker",
        method=method,
        windows=(unit,),
        probe=Probe(members=(Inherited,), summary=training.summary),
        insertions=(
            _lend(method),
            Insertion(
                method,
                where=Head(),
                line='self._rlpatch_stage("begin_batch", data, True)',
                why="the first one after an optimizer step begins a mini-batch, which is a training step here",
                parameters=("data",),
            ),
            Insertion(
                "optimizer_step",
                where=Before("return ..."),
                line='self._rlpatch_stage("end_batch")',
                why="it ends the mini-batch",
            ),
        ),
        structures=(Structure("", releases, file, ("e78e523067fc",), "forward and backward in calls of their own"),),
        why=_WHY,
        how="a line where a part begins, one behind the optimizer step; the rest is inherited from TrainingWorker",
        upstream=f"{file}, from {releases[0]} on",
        remove_when=_REMOVE,
        strategies=_strategies("update-policy", unit),
        roles=ROLES["update-policy"],
        needs=(_worker_name(unit),),
    )


def _strategies(stage: str, unit: str) -> tuple[str, ...]:
    if unit == MICRO:
        return tuple(engine.strategy for engine in _engines(stage))
    return (*(engine.strategy for engine in _WITH_LOOPS), "megatron", "mindspeed")


def _engines(stage: str) -> tuple[_Engine, ...]:
    """Every engine that has a model for the roles of the stage, and a loop over the micro-batches."""
    return _WITH_VALUE_HEADS if ROLES[stage] == ("critic",) else _WITH_LOOPS


def _in_engine(engine: _Engine, stage: str) -> Recipe:
    """The loop of an engine over the micro-batches, which its worker counts."""
    method, file = "forward_backward_batch", f"verl/workers/engine/{engine.strategy}/transformer_impl.py"
    return Recipe(
        name=engine.class_name,
        stage=stage,
        class_name=engine.class_name,
        method=method,
        windows=(MICRO,),
        marks=(MINI,) if stage in UPDATES else (),
        probe=training.FOREIGN_LOOPS,
        insertions=(_loop(method, MICRO, "micro_batches", last=stage not in UPDATES),),
        structures=(Structure("", engine.releases, file, engine.fingerprints, "one loop over the micro-batches"),),
        why=_WHY,
        how="the loop runs over its micro-batches wrapped by the worker that drives this engine",
        upstream=f"{file}, from {engine.releases[0]} on",
        remove_when=_REMOVE,
        strategies=(engine.strategy,),
        roles=ROLES[stage],
        unit_notes={MICRO: _DYNAMIC},
        needs=(_worker_name(MICRO), _worker_name(MINI)),
    )


def _recipes(stage: str, *in_loops: Recipe) -> tuple[Recipe, ...]:
    """The recipes of a stage: of the workers that have the loops themselves, of the engine workers, of the engines."""
    workers = (_worker(stage=stage, unit=unit) for unit in ((MINI, MICRO) if stage in UPDATES else (MICRO,)))
    tinker = map(_tinker, (MINI, MICRO)) if stage == "update-policy" else ()
    return (*in_loops, *workers, *tinker, *(_in_engine(engine, stage) for engine in _engines(stage)))


UPSTREAM = Upstream(
    PROJECT,
    recipes=(
        *_recipes("update-policy", _FSDP_UPDATE_POLICY, _MEGATRON_UPDATE_POLICY),
        *_recipes("compute-log-prob", _FSDP_LOG_PROB),
        *_recipes("update-critic", _FSDP_UPDATE_CRITIC, _MEGATRON_UPDATE_CRITIC),
        *_recipes("compute-values", _FSDP_VALUES),
        *timeline.RECIPES,
        *weights.RECIPES,
    ),
    switches=SWITCHES,
    backend="npu",
    application=PROFILING,
    processes=Processes(modules=("verl.trainer",), titles=("ray::WorkerDict",)),
    gaps=(
        Gap("megatron", MICRO, tuple(ROLES), "", _SCHEDULE),
        Gap("mindspeed", MICRO, tuple(ROLES), ">=0.8.0", _SCHEDULE),
    ),
    builtin={
        ">=0.4.0,<0.4.1": "Megatron's actor.profile with step_start and step_end records a window of mini-batches of"
        " update_policy with torch.profiler.",
        ">=0.4.1,<0.6.0": "trainer.profile_steps records whole training steps with nsys, from 0.5.0 on also with"
        " torch_npu. Megatron's actor.profile with step_start and step_end records a window of mini-batches of"
        " update_policy with torch.profiler.",
        ">=0.6.0,<0.9.0": "global_profiler.steps records whole training steps, or with discrete=True one trace for"
        " each stage: all its micro-batches and mini-batches, or none. Up to 0.7.0 Megatron's actor has step_start and"
        " step_end for the mini-batches of update_policy, with torch.profiler.",
        ">=0.9.0": "global_profiler.steps records whole training steps, or with discrete=True one trace for each"
        " stage; with tool=torch a schedule takes a window of mini-batches of the actor's update. On NPUs its step()"
        " does nothing, so a trace holds all mini-batches. It has no window of micro-batches, and none at all in"
        " compute_log_prob, for the reference or for the critic. Of a rollout, profile_token_start and"
        " profile_token_end of the tool become delay_iterations and max_iterations of the engine's own profiler, which"
        " counts prefill along.",
    },
)
