"""SGLang: the weights that its scheduler is asked to take, bucket by bucket, until it runs a batch again."""

from __future__ import annotations

from patcher.messages import Text
from patches.package_stage import Site
from patches.sglang import RELEASES, replicas
from patches.weights_stage import Weights

_WEIGHTS = Weights("sglang", RELEASES)
_MANAGERS = "srt/managers"
_WHY = Text("this call is part of a weight sync; the sync ends when the engine runs a batch again")


def _calls(owner: str) -> tuple[Site, ...]:
    """Return the functions of the class ``owner`` to record as calls of a weight sync.

    All but ``end_weight_update`` leave the sync open for further calls.
    """
    loads = (f"update_weights_from_{source}" for source in ("disk", "distributed", "tensor", "ipc"))
    goes_on = {"begin_weight_update": True, **dict.fromkeys(loads, True), "end_weight_update": False}
    return tuple((f"{owner}.{call}", f'sync(self, "rollout", "{call}", {on})', _WHY) for call, on in goes_on.items())


RECIPES = _WEIGHTS.recipes(
    _WEIGHTS.sites(
        Text("weight syncs in the scheduler"),
        f"{_MANAGERS}/scheduler.py",
        *_calls("Scheduler"),
        more=[
            _WEIGHTS.ended(
                "Scheduler.run_batch", Text("the engine has resumed running batches, so the weight sync is over")
            )
        ],
    ),
    _WEIGHTS.sites(
        Text("weight syncs in SchedulerUpdateWeightsMixin"),
        f"{_MANAGERS}/scheduler_update_weights_mixin.py",
        *_calls("SchedulerUpdateWeightsMixin"),
        releases=RELEASES.between("0.4.10", "0.5.12.post1"),
    ),
    _WEIGHTS.sites(
        Text("weight syncs in the scheduler's weight updater"),
        f"{_MANAGERS}/scheduler_components/weight_updater.py",
        *_calls("SchedulerWeightUpdaterManager"),
        releases=RELEASES.since("0.5.13"),
    ),
    _WEIGHTS.sites(replicas.NAME, replicas.FILE, more=[replicas.LINE]),
    replica=replicas.probe(_WEIGHTS.summary),
)
