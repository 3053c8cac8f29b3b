"""OpenRLHF: the phases of its driver, the calls of its groups, their units, and what its rollout engines serve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from patcher.messages import Text
from patcher.recipe import Insertion, Recipe
from patches.openrlhf import RELEASES
from patches.package_stage import Site
from patches.probes.timeline_recorder import GroupTimeline
from patches.releases import Releases
from patches.timeline_stage import Timeline

_TIMELINE = Timeline("openrlhf")
_MICRO = 'span("unit", "micro-batch")'
_ONE = Text("one forward, of which a call has many")
_CALLED = Text("whatever the driver calls of a group goes through it")
_ROLLOUT = Text("the driver waits here for a rollout")
_SYNC = Text("the weights go from the trainer to the rollout")
_STATES = ("reload_states", "offload_states", "broadcast_to_vllm", "save_checkpoint", "save_model")


def _sites(
    name: str, file: str, *heads: Site, releases: Releases = RELEASES, loops: Sequence[Insertion] = ()
) -> Recipe:
    return _TIMELINE.sites(name, f"trainer/{file}", releases, *heads, more=loops)


def _phase(path: str, why: str, kind: str = "phase") -> Site:
    return path, f'span("{kind}", "{path.rpartition(".")[2].lstrip("_")}")', why


def _work(owner: str, *methods: str) -> Iterable[Site]:
    for method in methods:
        yield f"{owner}.{method}", f'works(self, "{method}")', Text("the driver calls it on every rank")


def _engine(owner: str) -> Iterable[Site]:
    """Yield the timeline sites of a rollout engine: requests, sleep and wake-up, pauses for weight syncs."""
    yield (
        f"{owner}.generate",
        'requested("serve", "generate", None, prompt_token_ids)',
        Text("one request of a rollout"),
    )
    for method in ("sleep", "wake_up"):
        yield _phase(f"{owner}.{method}", Text("the engine gives its memory back, and takes it again"), "sleep")
    for method in ("pause_generation", "resume_generation"):
        yield _phase(f"{owner}.{method}", Text("requests stop while the weights come"), "sync")


_GENERATES = _phase("SamplesGenerator.generate_samples", _ROLLOUT)

RECIPES = _TIMELINE.recipes(
    RELEASES,
    _sites(
        Text("phases of the driver"),
        "ppo_trainer.py",
        _phase("BasePPOTrainer.train_step", Text("all of a step behind its rollout")),
        _phase("BasePPOTrainer.ppo_train", Text("the updates of actor and critic")),
        _phase("BasePPOTrainer.broadcast_to_vllm", _SYNC, "sync"),
        (
            "BasePPOTrainer.save_logs_and_checkpoints",
            'step(global_step, log="save_logs_and_checkpoints")',
            Text("each step is logged once, by its number"),
        ),
        _phase("PPOTrainer.evaluate", Text("a rollout that nothing is learnt from")),
    ),
    _sites(
        Text("phases of the asynchronous driver"),
        "ppo_trainer_async.py",
        _phase("TrainingActor.broadcast_to_vllm", Text("the rollout is waited for before the weights go"), "sync"),
        _phase("GenerateSamplesActor._run_eval", Text("a rollout that nothing is learnt from")),
        loops=(_TIMELINE.around("TrainingActor.fit", "self.rollout_queue.get(...)", 'span("poll", "get")', _ROLLOUT),),
    ),
    _sites(
        Text("phases of an experience"),
        "ppo_utils/experience_maker.py",
        _phase("RemoteExperienceMaker.make_experience_batch", Text("rewards, log-probabilities, values, advantages")),
        _GENERATES,
    ),
    _sites("rollouts", "ppo_utils/samples_generator.py", _GENERATES, releases=RELEASES.since("0.9.9")),
    _sites(
        Text("calls of the driver"),
        "ray/launcher.py",
        *(
            (f"RayActorGroup.{method}", "called(self, method_name)", _CALLED)
            for method in ("async_run_method", "async_run_method_batch")
        ),
        ("BaseModelActor.execute_batch", "works(self, method_name)", Text("the part of one rank")),
        *_work("BaseModelActor", "empty_cache"),
        ("ReferenceModelActor.forward", _MICRO, _ONE),
        ("RewardModelActor.forward", _MICRO, _ONE),
    ),
    *(
        _sites(
            Text("works of the {role}", role),
            f"ray/ppo_{role}.py",
            *_work(f"{owner}ModelActor", "fit", *_STATES),
            (f"{owner}ModelActor.forward", _MICRO, _ONE),
            (f"{trainer}.training_step", _MICRO, Text("forward, backward, and the optimizer's step where one is due")),
        )
        for role, owner, trainer in (("actor", "Policy", "ActorPPOTrainer"), ("critic", "Critic", "CriticPPOTrainer"))
    ),
    _sites(Text("rollout engines"), "ray/vllm_engine.py", *_engine("LLMRayActor"), *_engine("RolloutRayActor")),
    logger="openrlhf.rlpatch",
    kind=GroupTimeline,
)
