"""verl: the training stages, from the FSDP and Megatron workers of 0.2 to the engine workers of 0.9."""

from __future__ import annotations

from patcher.notes import Note
from patcher.processes import Processes
from patcher.recipe import Gap, Recipe, Site, Structure, Upstream
from patches import training
from patches.projects import VERL
from patches.switches import VERL as SWITCHES
from patches.training import MICRO, MINI, ROLES, UPDATES
from patches.verl_profiling import PROFILING

# fmt: off
_LEGACY = (
    "0.2", "0.2.0.post1", "0.2.0.post2", "0.3.0.post0", "0.3.0.post1", "0.4.0", "0.4.1", "0.5.0", "0.6.0", "0.6.1",
    "0.7.0", "0.7.1",
)
# fmt: on
_ENGINES = ("0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1")

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
_PATHS = (
    "verl 0.7 runs dp_actor.py and megatron_actor.py unless trainer.use_legacy_worker_impl=disable, then"
    " engine_workers.py: both are patched, and a run uses one of them"
)

_COUNTED = "calls are counted as training steps, because no global_steps reaches this place in every release"


def _loop(method: str, unit: str, *names: str, last: bool = False, windows: tuple[str, ...] = ()) -> Site:
    line = f'{{units}} = self._rlpatch_stage_units("{unit}", {{units}}{", last=True" if last else ""})'
    turn = {MICRO: "a micro-batch, forward and backward", MINI: "a mini-batch with its optimizer step"}[unit]
    return Site(method, line, f"each turn is {turn}", loops_over=names, windows=windows)


def _in_loop(
    strategy: str, stage: str, file: str, class_name: str, method: str, part: str, fingerprints: tuple[str, ...]
) -> Recipe:
    """A stage of a class of one strategy that has the loops itself (``dp_*.py`` and ``megatron_*.py``)."""
    enter = Site(method, 'self._rlpatch_stage("enter")', _COUNTED)
    sites: tuple[Site, ...]
    windows: tuple[str, ...]
    if stage not in UPDATES:
        sites, windows = (enter, _loop(method, MICRO, "micro_batches", last=True)), (MICRO,)
        shape = "one loop over the micro-batches"
    elif strategy == "megatron":
        sites, windows = (enter, _loop(method, MINI, "dataloader", last=True)), (MINI,)
        shape = "one loop over the mini-batches; Megatron's schedule has the micro-batches"
    else:
        leave = Site(method, 'self._rlpatch_stage("leave")', "the epochs are over", before="return ...")
        minis = _loop(method, MINI, "mini_batches", "dataloader")
        sites = (enter, minis, _loop(method, MICRO, "micro_batches", windows=(MICRO,)), leave)
        windows = (MICRO, MINI)
        shape = "a loop over the micro-batches in one over the mini-batches, from 0.3.0.post0 on in one over the epochs"
    path = f"verl/workers/{file}"
    return Recipe(
        name=f"{'FSDP' if strategy == 'fsdp' else 'Megatron'} worker",
        stage=stage,
        class_name=class_name,
        method=method,
        windows=windows,
        probe=training.probe(part, roles=ROLES[stage], logger=_LOGGER),
        sites=sites,
        structures=(Structure("", _LEGACY, path, fingerprints, shape),),
        why=_WHY,
        how="the loops run over their units wrapped: the wrapper starts, steps and saves the profiler between two"
        " turns, and saves it also where the loop raises",
        upstream=f"{path}, 0.2 to 0.7.1",
        remove_when="nobody runs releases below 0.8.0 any more",
        strategies=(strategy,),
        roles=ROLES[stage],
        notes=(_DYNAMIC,) if MICRO in windows else (),
    )


_WORKER = "verl/workers/engine_workers.py"
_ENGINE_CLASSES = ("FSDPEngine", "VeOmniEngine", "TorchTitanEngine", "AutomodelEngine")
_WITH_LOOPS = {
    "update-policy": ("fsdp", "veomni", "torchtitan", "automodel"),
    "compute-log-prob": ("fsdp", "veomni", "torchtitan", "automodel"),
    "update-critic": ("fsdp", "veomni"),
    "compute-values": ("fsdp", "veomni"),
}
_TRAIN = ("27b6701f21f1", "b0b628eadb55", "90bc921b6175", "0f6d507a10b2", "3dfa3f454c44")
_INFER = ("44b14b46f947", "202d7480d619", "b550dda0ff6b")


def _worker_name(unit: str) -> str:
    return f"engine worker, {unit.replace('batch', 'batches')}"


def _worker(stage: str, unit: str) -> Recipe:
    """A stage of the worker that drives an engine, whatever its strategy (``engine_workers.py``)."""
    method = "train_mini_batch" if stage in UPDATES else "infer_batch"
    lend = Site(
        method,
        "self.engine._rlpatch_stage_units = self._rlpatch_stage_units",
        "the engine has the loop over the micro-batches, the worker knows the role and the training step",
        windows=(MICRO,),
    )
    enter = Site(method, 'self._rlpatch_stage("enter", data)', _COUNTED, parameters=("data",))
    minis = (_loop(method, MINI, "dataloader", last=True),) if stage in UPDATES else ()
    return Recipe(
        name=_worker_name(unit),
        stage=stage,
        class_name="TrainingWorker",
        method=method,
        windows=(unit,),
        probe=training.probe("Trainer", roles=ROLES[stage], logger=_LOGGER),
        sites=(lend, enter, *minis),
        structures=(
            Structure(
                "",
                _ENGINES,
                _WORKER,
                _TRAIN if stage in UPDATES else _INFER,
                "a loop over the mini-batches of all epochs" if stage in UPDATES else "one call of the engine",
            ),
        ),
        why=_WHY,
        how="one line at the head tells whose call it is; the probe is one nested class at the end of TrainingWorker",
        upstream=f"{_WORKER}, 0.7.0 to 0.9.1",
        remove_when=_REMOVE,
        strategies=_WITH_LOOPS[stage] if unit == MICRO else (*_WITH_LOOPS["update-policy"], "megatron", "mindspeed"),
        roles=ROLES[stage],
        needs=_ENGINE_CLASSES if unit == MICRO else (),
    )


def _engine(
    strategy: str, stage: str, class_name: str, releases: tuple[str, ...], fingerprints: tuple[str, ...]
) -> Recipe:
    """The loop of an engine over the micro-batches, which its worker counts."""
    method, file = "forward_backward_batch", f"verl/workers/engine/{strategy}/transformer_impl.py"
    return Recipe(
        name=class_name,
        stage=stage,
        class_name=class_name,
        method=method,
        windows=(MICRO,),
        marks=(MINI,) if stage in UPDATES else (),
        probe=training.FOREIGN_LOOPS,
        sites=(_loop(method, MICRO, "micro_batches", last=stage not in UPDATES),),
        structures=(Structure("", releases, file, fingerprints, "one loop over the micro-batches"),),
        why=_WHY,
        how="the loop runs over its micro-batches wrapped by the worker that drives this engine",
        upstream=f"{file}, {releases[0]} to {releases[-1]}",
        remove_when=_REMOVE,
        strategies=(strategy,),
        roles=ROLES[stage],
        notes=(_DYNAMIC,),
        needs=(_worker_name(MICRO), _worker_name(MINI)),
    )


_FSDP = ("8bd8dc758504", "aa62165bf021", "2091ebdc61d3", "51a0a420b903")
_VEOMNI = ("e6e04cfc8922", "05e7236601a2", "99f9035ff903", "232cd9bffd09")
_TORCHTITAN = ("008d8c133e64", "992e273d8ffb", "ec20d04f3027")
_AUTOMODEL = ("4df3d433a26a",)


def _engines(stage: str) -> tuple[Recipe, ...]:
    """Every engine that has a model for the roles of the stage, and a loop over the micro-batches."""
    both = (_engine("fsdp", stage, "FSDPEngine", _ENGINES, _FSDP),)
    if ROLES[stage] == ("critic",):  # only these have a model with a value head
        return (*both, _engine("veomni", stage, "VeOmniEngine", _ENGINES[2:], _VEOMNI[1:]))
    return (
        *both,
        _engine("veomni", stage, "VeOmniEngine", _ENGINES, _VEOMNI),
        _engine("torchtitan", stage, "TorchTitanEngine", _ENGINES[1:], _TORCHTITAN),
        _engine("automodel", stage, "AutomodelEngine", _ENGINES[2:], _AUTOMODEL),
    )


# fmt: off
_RECIPES = (
    _in_loop(
        "fsdp", "update-policy", "actor/dp_actor.py", "DataParallelPPOActor", "update_policy", "OneRole",
        ("38fada88526e", "f8c334a3f269", "7d3f4edbad65", "47f168a73526", "2a25d198b74f", "094a963ce4d8",
         "ac72ea292268", "d194a6763b97", "b7a34a566c39"),
    ),
    _in_loop(
        "megatron", "update-policy", "actor/megatron_actor.py", "MegatronPPOActor", "update_policy", "MegatronActor",
        ("1c5d0579d370", "68c43c3f800f", "852adec64a57", "02fca28a8380", "0c66a6163710", "fbe909dc904f",
         "6a76258258f3", "9c3a430747f3"),
    ),
    _worker("update-policy", MINI), _worker("update-policy", MICRO), *_engines("update-policy"),
    _in_loop(
        "fsdp", "compute-log-prob", "actor/dp_actor.py", "DataParallelPPOActor", "compute_log_prob",
        "DataParallelActor",
        ("b247e88ebe38", "3690a88279fc", "87782a30aa03", "747994be98da", "d463407c4619", "cd8c049a7d88",
         "8eb1ad96921f"),
    ),
    _worker("compute-log-prob", MICRO), *_engines("compute-log-prob"),
    _in_loop(
        "fsdp", "update-critic", "critic/dp_critic.py", "DataParallelPPOCritic", "update_critic", "OneRole",
        ("833cc3e1aca3", "fd510348cdb1", "a13a7a592d4c", "b63adfcf9f36", "72ef82fdd291", "a8934e955a51",
         "60cb2d469ff8"),
    ),
    _in_loop(
        "megatron", "update-critic", "critic/megatron_critic.py", "MegatronPPOCritic", "update_critic", "OneRole",
        ("fea37f92c35d", "b683456591af", "42d1286fd19a", "a212d84a329c"),
    ),
    _worker("update-critic", MINI), _worker("update-critic", MICRO), *_engines("update-critic"),
    _in_loop(
        "fsdp", "compute-values", "critic/dp_critic.py", "DataParallelPPOCritic", "compute_values", "OneRole",
        ("fcc5484c4e2f", "f32e8d1f8dc7", "60cb36a6818d", "59e7dd531cf1", "684aec9f22f1"),
    ),
    _worker("compute-values", MICRO), *_engines("compute-values"),
)
# fmt: on

_SCHEDULE = Note(
    "the schedule interleaves its micro-batches",
    "Megatron runs the micro-batches inside its pipeline schedule, which MindSpeed's engine inherits: forward and"
    " backward of several are interleaved, so no micro-batch has a beginning and an end there. --mini-batch can be had"
    " in updates",
)

UPSTREAM = Upstream(
    VERL,
    _RECIPES,
    SWITCHES,
    backend="npu",
    application=PROFILING,
    processes=Processes(modules=("verl.trainer",), titles=("ray::WorkerDict",)),
    gaps=(
        Gap(
            "megatron",
            MICRO,
            tuple(ROLES),
            "",
            _SCHEDULE,
        ),
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
        " compute_log_prob, for the reference or for the critic.",
    },
)
