"""OpenRLHF: the phases of its driver, the calls of its groups, their units, and what its rollout engines serve."""

from __future__ import annotations

from collections.abc import Iterable

from patcher.messages import Text
from patches.openrlhf import RELEASES
from patches.package_stage import Site
from patches.probes.timeline_recorder import GroupTimeline
from patches.timeline_stage import Timeline, span_site, span_sites

_TIMELINE = Timeline("openrlhf", RELEASES)
_MICRO = 'span("unit", "micro-batch")'
_ONE = Text("one forward of the model; a stage consists of many forwards")
_CALLED = Text("all calls from the driver to a group of workers go through this function")
_ROLLOUT = Text("the driver waits for a rollout here")
_SYNC = Text("the trainer sends the weights to the rollout")
_STATES = ("reload_states", "offload_states", "broadcast_to_vllm", "save_checkpoint", "save_model")


def _work(owner: str, *methods: str) -> Iterable[Site]:
    """Yield a timeline site for each of the ``methods`` that the driver calls on a worker."""
    for method in methods:
        yield f"{owner}.{method}", f'works(self, "{method}")', Text("the driver calls this function on every rank")


def _engine(owner: str) -> Iterable[Site]:
    """Yield the functions of the rollout engine class `owner` to record as spans of the timeline.

    They are requests, sleep and wake-up, and pauses for weight syncs.
    """
    yield (
        f"{owner}.generate",
        'requested("serve", "generate", None, prompt_token_ids)',
        Text("one request of a rollout"),
    )
    memory = Text("the engine frees its memory or allocates it again")
    pause = Text("the engine takes no requests while it receives weights")
    yield from span_sites(owner, "sleep", memory, "sleep", "wake_up")
    yield from span_sites(owner, "sync", pause, "pause_generation", "resume_generation")


_GENERATES = span_site("SamplesGenerator.generate_samples", "phase", _ROLLOUT)

RECIPES = _TIMELINE.recipes(
    _TIMELINE.sites(
        Text("phases of the driver"),
        "trainer/ppo_trainer.py",
        span_site(
            "BasePPOTrainer.train_step", "phase", Text("everything in a training step that comes after the rollout")
        ),
        span_site("BasePPOTrainer.ppo_train", "phase", Text("the updates of actor and critic")),
        span_site("BasePPOTrainer.broadcast_to_vllm", "sync", _SYNC),
        (
            "BasePPOTrainer.save_logs_and_checkpoints",
            'step(global_step, log="save_logs_and_checkpoints")',
            Text("this function logs each training step once, with its number"),
        ),
        span_site("PPOTrainer.evaluate", "phase", Text("a rollout that is not used for training (evaluation)")),
    ),
    _TIMELINE.sites(
        Text("phases of the asynchronous driver"),
        "trainer/ppo_trainer_async.py",
        span_site(
            "TrainingActor.broadcast_to_vllm",
            "sync",
            Text("the driver waits here for the rollout to end before the driver sends weights"),
        ),
        span_site(
            "GenerateSamplesActor._run_eval", "phase", Text("a rollout that is not used for training (evaluation)")
        ),
        more=(_TIMELINE.around("TrainingActor.fit", "self.rollout_queue.get(...)", 'span("poll", "get")', _ROLLOUT),),
    ),
    _TIMELINE.sites(
        Text("phases of the experience maker (rewards, log-probs, values)"),
        "trainer/ppo_utils/experience_maker.py",
        span_site(
            "RemoteExperienceMaker.make_experience_batch",
            "phase",
            Text("rewards, log-probs, values and advantages are computed here"),
        ),
        _GENERATES,
    ),
    _TIMELINE.sites("rollouts", "trainer/ppo_utils/samples_generator.py", _GENERATES, releases=RELEASES.since("0.9.9")),
    _TIMELINE.sites(
        Text("calls from the driver to the workers"),
        "trainer/ray/launcher.py",
        *(
            (f"RayActorGroup.{method}", "called(self, method_name)", _CALLED)
            for method in ("async_run_method", "async_run_method_batch")
        ),
        (
            "BaseModelActor.execute_batch",
            "works(self, method_name)",
            Text("this rank runs its share of the batch here"),
        ),
        *_work("BaseModelActor", "empty_cache"),
        ("ReferenceModelActor.forward", _MICRO, _ONE),
        ("RewardModelActor.forward", _MICRO, _ONE),
    ),
    *(
        _TIMELINE.sites(
            Text("functions that the driver calls on the {role}", role),
            f"trainer/ray/ppo_{role}.py",
            *_work(f"{owner}ModelActor", "fit", *_STATES),
            (f"{owner}ModelActor.forward", _MICRO, _ONE),
            (
                f"{trainer}.training_step",
                _MICRO,
                Text("forward and backward of a micro-batch, and the optimizer step if one is due"),
            ),
        )
        for role, owner, trainer in (("actor", "Policy", "ActorPPOTrainer"), ("critic", "Critic", "CriticPPOTrainer"))
    ),
    _TIMELINE.sites(
        Text("rollout engines"), "trainer/ray/vllm_engine.py", *_engine("LLMRayActor"), *_engine("RolloutRayActor")
    ),
    recorder_class=GroupTimeline,
)
