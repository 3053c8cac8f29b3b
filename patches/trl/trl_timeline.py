"""TRL: the steps of its trainers, which each rank runs by itself, and what they spend them on."""

from __future__ import annotations

from patcher.messages import Text
from patcher.recipe import Recipe
from patches.probes.timeline_recorder import TrainerTimeline
from patches.releases import Releases
from patches.timeline_stage import Timeline, span_site
from patches.trl import LAZY_RECORDER, RELEASES

_TIMELINE = Timeline("trl", RELEASES)
_SYNC = Text("the trainer sends the weights to vLLM")
_GENERATES = '"phase", "training_step"'  # in the first one of a rollout, so they are not alike
_PHASES = (
    ("_generate", Text("a rollout is generated here")),
    ("_calculate_rewards", Text("the rewards of the rollout are computed here")),
    (
        "_get_per_token_logps_and_entropies",
        Text("log-probs are computed here, for the rollout's tokens or as part of the loss"),
    ),
    ("compute_loss", Text("the forward of a micro-batch runs here; the rest of the micro-batch is its backward")),
    ("prediction_step", Text("one batch of an evaluation is computed here")),
    ("_save_checkpoint", Text("all ranks wait until the checkpoint is saved")),
)


def _trainer(name: str, releases: Releases, micro: str = '"unit", "micro-batch"') -> Recipe:
    """Return the recipe that records the trainer `name`, such as "GRPO", in the timeline.

    It has the trainer's micro-batches, training steps, phases and weight syncs. `micro` has the kind and the name of a
    micro-batch's span, as arguments in Python code.
    """
    heads = (
        (
            "training_step",
            f"training_step(self, {micro})",
            Text("a training step begins with the first micro-batch after an optimizer step"),
        ),
        (
            "log",
            "logged(self, logs)",
            Text("a run's last training step ends when this function returns for the last time"),
        ),
        span_site("_move_model_to_vllm", "sync", _SYNC),
        *(span_site(method, "phase", why) for method, why in _PHASES),
    )
    owner = f"{name}Trainer"
    return _TIMELINE.sites(
        Text("timeline of the {algorithm} trainer", name),
        f"trainer/{name.lower()}_trainer.py",
        *((f"{owner}.{method}", call, why) for method, call, why in heads),
        needed=f"{owner}.training_step",
        releases=releases,
    )


RECIPES = _TIMELINE.recipes(
    _trainer("GRPO", RELEASES, _GENERATES),
    _trainer("RLOO", RELEASES, _GENERATES),
    _trainer("SFT", RELEASES),
    _trainer("DPO", RELEASES.since("0.29.0")),
    _trainer("KTO", RELEASES.since("1.8.0")),
    _TIMELINE.sites(
        Text("weights sent to vLLM"),
        "generation/vllm_generation.py",
        span_site("VLLMGeneration.sync_weights", "sync", _SYNC),
        releases=RELEASES.since("0.28.0"),
    ),
    recorder_class=TrainerTimeline,
    recorder_name=LAZY_RECORDER,
)
