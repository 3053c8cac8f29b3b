"""verl-omni: where the updates and the forwards of its engine worker are recorded, by the lines of verl's."""

from __future__ import annotations

from patcher.messages import Note, Text
from patcher.processes import Processes
from patcher.recipe import Gap, Recipe, Structure, Upstream
from patches.training import CALL, MICRO, MINI
from patches.verl.recipes import engine_worker
from patches.verl.verl_switches import SWITCHES
from patches.verl_omni import PROJECT, RELEASES, WORKER

_TRAIN = ("90bc921b6175",)  # the same as in verl 0.8.0
_STRATEGIES = ("fsdp", "veomni")
_TIMESTEPS = Note(
    Text("one forward is a single diffusion timestep"),
    Text(
        "a micro-batch runs forward and backward once for each timestep of the diffusion, and rlpatch cannot count"
        " timesteps. Use --call; in updates, you can also use --mini-batch"
    ),
)


def _recipe(stage: str, unit: str, *fingerprints: str) -> Recipe:
    """Return verl's recipe for steps of the kind `unit` in `stage` of the engine worker, adapted to verl-omni.

    File, releases and strategies are those of verl-omni. `fingerprints` are hashes of the worker's method.
    """
    recipe = engine_worker(stage, unit)
    (structure,) = recipe.structures
    return recipe._replace(
        structures=(Structure("", RELEASES, WORKER, fingerprints, structure.shape),),
        upstream=Text("{file}, from {release} on", file=WORKER, release=RELEASES[0]),
        strategies=_STRATEGIES,
    )


UPSTREAM = Upstream(
    PROJECT,
    recipes=(
        _recipe("update-policy", MINI, *_TRAIN),
        _recipe("update-policy", CALL, *_TRAIN),
        _recipe("compute-log-prob", CALL, "c731565d4a21"),
    ),
    switches=SWITCHES,
    engines=("vllm-ascend", "vllm"),
    tool="npu",
    processes=Processes(modules=("verl_omni.trainer",), titles=("ray::WorkerDict",)),
    gaps=tuple(Gap(strategy, MICRO, ("update-policy", "compute-log-prob"), "", _TIMESTEPS) for strategy in _STRATEGIES),
    builtin={">=0.1.0rc1": Text("In verl-omni, as in verl, global_profiler.steps records whole training steps.")},
)
