"""OpenRLHF: the phases of its driver, the calls of its groups, their units, and what its rollout engines serve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from patcher.messages import Text
from patcher.recipe import Insertion, Recipe
from patches.openrlhf import RELEASES
from patches.package_stage import Site
from patches.probes.timeline_recorder import GroupTimeline
from patches.releases import Releases
from patches.timeline_stage import Timeline, span_sites

_TIMELINE = Timeline("openrlhf")
_MICRO = 'span("unit", "micro-batch")'
_ONE = Text("one forward of the model; a stage consists of many forwards")
_CALLED = Text("all calls from the driver to a group of workers go through this function")
_ROLLOUT = Text("the driver waits for a rollout here")
_SYNC = Text("the trainer sends the weights to the rollout")
_STATES = ("reload_states", "offload_states", "broadcast_to_vllm", "save_checkpoint", "save_model")


def _sites(
    name: str, file: str, *heads: Site, releases: Releases = RELEASES, loops: Sequence[Insertion] = ()
) -> Recipe:
    """Return the recipe `name` that records functions in a `file` of OpenRLHF's trainer in the timeline.

    `heads` are the functions, `loops` are insertions for loops and single statements.
    """
    return _TIMELINE.sites(name, f"trainer/{file}", releases, *heads, more=loops)


def _phase(path: str, why: str, kind: str = "phase") -> Site:
    """Return a timeline site at the head of the function ``path``, a span named by it."""
    return path, f'span("{kind}", "{path.rpartition(".")[2].lstrip("_")}")', why


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


_GENERATES = _phase("SamplesGenerator.generate_samples", _ROLLOUT)

RECIPES = _TIMELINE.recipes(
    RELEASES,
    _sites(
        Text("phases of the driver"),
        "ppo_trainer.py",
        _phase("BasePPOTrainer.train_step", Text("everything in a training step that comes after the rollout")),
        _phase("BasePPOTrainer.ppo_train", Text("the updates of actor and critic")),
        _phase("BasePPOTrainer.broadcast_to_vllm", _SYNC, "sync"),
        (
            "BasePPOTrainer.save_logs_and_checkpoints",
            'step(global_step, log="save_logs_and_checkpoints")',
            Text("this function logs each training step once, with its number"),
        ),
        _phase("PPOTrainer.evaluate", Text("a rollout that is not used for training (evaluation)")),
    ),
    _sites(
        Text("phases of the asynchronous driver"),
        "ppo_trainer_async.py",
        _phase(
            "TrainingActor.broadcast_to_vllm",
            Text("the driver waits here for the rollout to end before the driver sends weights"),
            "sync",
        ),
        _phase("GenerateSamplesActor._run_eval", Text("a rollout that is not used for training (evaluation)")),
        loops=(_TIMELINE.around("TrainingActor.fit", "self.rollout_queue.get(...)", 'span("poll", "get")', _ROLLOUT),),
    ),
    _sites(
        Text("phases of the experience maker (rewards, log-probs, values)"),
        "ppo_utils/experience_maker.py",
        _phase(
            "RemoteExperienceMaker.make_experience_batch",
            Text("rewards, log-probs, values and advantages are computed here"),
        ),
        _GENERATES,
    ),
    _sites("rollouts", "ppo_utils/samples_generator.py", _GENERATES, releases=RELEASES.since("0.9.9")),
    _sites(
        Text("calls from the driver to the workers"),
        "ray/launcher.py",
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
        _sites(
            Text("functions that the driver calls on the {role}", role),
            f"ray/ppo_{role}.py",
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
    _sites(Text("rollout engines"), "ray/vllm_engine.py", *_engine("LLMRayActor"), *_engine("RolloutRayActor")),
    recorder_class=GroupTimeline,
)
