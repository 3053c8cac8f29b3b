"""slime, and what is forked from it: what its driver calls and waits for, its training functions, and its rollouts."""

from __future__ import annotations

from patcher.messages import Text
from patcher.recipe import Recipe
from patches.probes.timeline_recorder import LoopTimeline
from patches.releases import Releases
from patches.slime import UPDATE
from patches.timeline_stage import Timeline, span_sites

_CALLED = Text(
    "the driver calls this function on all ranks; between two such calls, the driver waits for the next rollout"
)
_RANK = Text("the driver calls this function on each rank")
_TRAINS = ("async_train", "train")
_GENERATED = Text("one trajectory, with its requests and its reward")


def group(timeline: Timeline, file: str) -> Recipe:
    """Return the recipe that records in the timeline the driver's calls on the group of training actors.

    The group is a class in `file` of the package of `timeline`, slime or a fork of it.
    """
    methods = ("update_weights", "save_model", "onload", "offload", "clear_memory")
    return timeline.sites(
        Text("calls from the driver to the ranks (in {file})", file),
        file,
        *((f"RayTrainGroup.{method}", 'called(self, "train", rollout_id)', _CALLED) for method in _TRAINS),
        *((f"RayTrainGroup.{method}", f'called(self, "{method}")', _CALLED) for method in methods),
    )


def timer(timeline: Timeline, file: str, releases: Releases | None = None) -> Recipe:
    """Return the recipe that records in the timeline the phases that the workers' timer measures.

    Methods of actors that the timer wraps become spans of work. The timer is in `file`, which `releases` have (None:
    all) of the package of `timeline`, slime or a fork of it.
    """
    return timeline.sites(
        Text("phases of the workers, {file}", file),
        file,
        ("Timer.context", 'span("phase", name)', Text("this function measures the phase times that the log shows")),
        (
            "timer.wrapper",
            "timed(func.__name__, args)",
            Text("this wrapper runs functions, including all functions that the driver calls on each rank"),
        ),
        releases=releases,
    )


def manager(timeline: Timeline, file: str) -> Recipe:
    """Return the recipe that records in the timeline when the engines' memory is freed or allocated.

    The functions are those of the rollout manager, in `file` of the package of `timeline`, slime or a fork of it.
    """
    why = Text("the engines free their memory or allocate it again")
    methods = ("offload", "onload", "onload_weights", "onload_kv")
    heads = span_sites("RolloutManager", "sleep", why, *methods)
    return timeline.sites(Text("freeing and allocating the memory of the engines"), file, *heads)


def sender(timeline: Timeline, file: str, owner: str, releases: Releases | None = None) -> Recipe:
    """Return the timeline recipe for a class that sends weights, in a `file` named after where it takes them."""
    heads = span_sites(owner, "sync", Text("the trainer sends the weights to the rollout"), "update_weights")
    return timeline.sites(Text("weights sent by {class_name}", owner), UPDATE + file, *heads, releases=releases)


def recipes(timeline: Timeline, *more: Recipe) -> tuple[Recipe, ...]:
    """Return the timeline recipes that slime and its forks share, then those of one of them alone, `more`."""
    return timeline.recipes(
        group(timeline, "ray/actor_group.py"),
        timer(timeline, "utils/timer.py"),
        timeline.sites(
            Text("training steps of the actors"),
            "backends/megatron_utils/actor.py",
            ("MegatronTrainRayActor.train", 'works(self, "train")', _RANK),
        ),
        timeline.sites(
            Text("mini-batches of the Megatron backend"),
            "backends/megatron_utils/model.py",
            ("train_one_step", 'span("unit", "mini-batch")', Text("one mini-batch with its optimizer step")),
        ),
        sender(timeline, "tensor.py", "UpdateWeightFromTensor"),
        timeline.sites(
            Text("trajectories of one rollout"),
            "rollout/sglang_rollout.py",
            ("generate_and_rm", 'span("trajectory", "generate_and_rm")', _GENERATED),
            ("generate", 'span("request", "generate")', Text("a request, seen from the trajectory that sends it")),
        ),
        timeline.sites(
            "rewards",
            "rollout/rm_hub/__init__.py",
            *(
                (method, 'span("reward", "compute_score")', Text("a trajectory waits for its reward"))
                for method in ("async_rm", "batched_async_rm")
            ),
        ),
        *more,
        recorder_class=LoopTimeline,
    )
