"""slime, and what is forked from it: a weight sync on the trainer's side; the rollout's side is SGLang's."""

from __future__ import annotations

from patcher.messages import Text
from patcher.recipe import Insertion, Recipe
from patches.slime import UPDATE
from patches.weights_stage import Weights

_SENDS = Text("a bucket of weights is sent")
_ANSWERS = Text("the trainer waits here until every engine has confirmed the bucket")
_GATHERS = Text("each rank gathers the weights that are sharded across the ranks")
_WHOLE = Text("the driver calls this function on each rank that trains")


def sender(weights: Weights, file: str, *methods: str, more: tuple[Insertion, ...] = ()) -> Recipe:
    """Return the weight-sync recipe for the `methods` of a module that send a bucket of weights; the first must exist.

    `file` is the end of the module's path, such as "tensor.py", and `more` are other lines in it.
    """
    phases = (weights.phase(method, "send", _SENDS) for method in methods)
    return weights.sites(Text("weights sent, {file}", file), UPDATE + file, *phases, more=more, needed=methods[0])


def answers(weights: Weights) -> Insertion:
    """Return the lines around the wait for the engines, in a package that sends weights as slime does."""
    return weights.around("UpdateWeightFromTensor.update_weights", "ray.get(refs)", 'phase("send")', _ANSWERS)


def recipes(weights: Weights, *senders: Recipe) -> tuple[Recipe, ...]:
    """Return the weight-sync recipes that slime and its forks share, then the `senders` of one of them alone."""
    sync = "MegatronTrainRayActor.update_weights"
    return weights.recipes(
        weights.sites(
            Text("weight syncs of the actors"),
            "backends/megatron_utils/actor.py",
            weights.sync(sync, _WHOLE),
            needed=sync,
        ),
        weights.sites(
            Text("gathering of weights"),
            "backends/megatron_utils/update_weight/common.py",
            *(weights.phase(name, "gather", _GATHERS) for name in ("all_gather_param", "all_gather_params_async")),
            needed="all_gather_param",
        ),
        *senders,
    )
