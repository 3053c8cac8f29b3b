"""TRL: where the training steps of its trainers are recorded, and the log-probabilities of a rollout."""

from __future__ import annotations

from typing import Any, NamedTuple

from patcher.config import ProfileConfig, TrainingStage
from patcher.messages import Kind, Note, Problem, Text
from patcher.processes import Processes
from patcher.recipe import Around, Before, Head, Insertion, Probe, Recipe, Structure, Upstream
from patches import training
from patches.probes.members import Calls
from patches.probes.trl import LogProbs, TrainerSteps, TrainerUpdate, TransformersLoop
from patches.releases import Releases
from patches.training import MICRO, MINI, ROLES
from patches.trl import PROJECT, RELEASES, trl_timeline, trl_weights
from patches.trl.trl_switches import SWITCHES

_REMOVE = Text(
    "the patch is no longer needed once TRL, or the training loop of transformers, can record a window of micro-batches"
)
_WHY = Text(
    "callbacks with torch.profiler see only whole training steps. Generation runs in the first micro-batch and"
    " makes up most of the step, but no callback separates generation from training"
)
_ONE = Note(
    Text("training steps are numbered as in TRL's log; each has one mini-batch"),
    Text(
        "a mini-batch consists of gradient_accumulation_steps micro-batches and their optimizer step. After"
        " resume_from_checkpoint, the numbering of training steps continues"
    ),
)
_DEEPSPEED = Note(
    Text("with DeepSpeed, the last micro-batch includes the optimizer step"),
    Text("accelerate runs DeepSpeed's optimizer step inside backward()"),
)
_NOT_ALWAYS = Note(
    Text("TRL computes log-probs only if its loss needs them"),
    Text(
        "the model's own log-probs are needed if vLLM generates with importance sampling, or if generation is not"
        " aligned with optimizer steps. The reference's log-probs are needed if beta is not 0. TRL computes both only"
        " in training steps that generate; if such a step has several rollouts, the log-probs of the first rollout are"
        " recorded"
    ),
)


class _Trainer(NamedTuple):
    """Trainer class of TRL; `rollout` tells whether it generates its data within the training step."""

    name: str
    rollout: bool
    releases: Releases
    fingerprints: tuple[str, ...]

    @property
    def file(self) -> str:
        return f"trl/trainer/{self.name.lower()}_trainer.py"


_GRPO = _Trainer("GRPO", True, RELEASES, ("b87685300879",))
_RLOO = _Trainer("RLOO", True, RELEASES, ("a02944d70ede", "b87685300879"))
_LOOPED = ("ce1438a8a549",)
_SFT = _Trainer("SFT", False, RELEASES, _LOOPED)
_DPO = _Trainer("DPO", False, RELEASES.since("0.29.0"), _LOOPED)
_KTO = _Trainer("KTO", False, RELEASES.since("1.8.0"), _LOOPED)

_GENERATED = Insertion(
    "_prepare_inputs",
    where=Before("return ..."),
    line='self._rlpatch_stage("prepared", inputs, self.model.training)',
    why=Text(
        "the micro-batch is ready when this line runs: any generation, scoring and splitting in the training step is"
        " finished. Evaluation also prepares its batches in this function"
    ),
)
_LOADED = Insertion(
    "training_step",
    where=Head(),
    line='self._rlpatch_stage("prepared", *args[1:2])',
    why=Text(
        "a micro-batch begins here; the training loop of transformers passes the batch in. Generation is not part of"
        " the micro-batch"
    ),
)
_LOG_PROBS = (
    Insertion(
        "_get_per_token_logps_and_entropies",
        where=Before("for start in range(...): ..."),
        line='self._rlpatch_stage("parts", model)',
        why=Text(
            "the loop over the micro-batches of a rollout starts after this line. The loss calls this function, too,"
            " but with gradients enabled; rlpatch leaves out calls with gradients enabled"
        ),
        parameters=("model",),
    ),
    Insertion(
        "_get_per_token_logps_and_entropies",
        where=Around(
            "all_logps.append(...)",
            after='self._rlpatch_stage("go_on", start + batch_size < input_ids.size(0))',
        ),
        line='self._rlpatch_stage("stop", "micro-batch")',
        why=Text(
            "the log-probs of one micro-batch are complete when this line runs; then the next micro-batch begins, or"
            " the loop ends"
        ),
        parameters=("batch_size", "input_ids"),
    ),
)


def _update_probe() -> Probe:
    """Return the probe of a trainer's update, which refuses windows of mini-batches above 0.

    A training step of TRL has only mini-batch 0. For others, the probe's `constants` raises Problem (USAGE).
    """
    probe = training.probe(
        TrainerUpdate,
        shared=TrainerSteps,
        members=(TransformersLoop,),
        roles=("actor",),
        between="pauses",  # no training step has two optimizer steps
    )

    def constants(config: ProfileConfig[TrainingStage], release: str) -> Any:
        """Return the constants for the recorder's code by name. Raises Problem (USAGE) for a mini-batch above 0."""
        window = config.stage.window
        if window.unit == MINI and any(first > 0 for first, _ in window.all):
            cause = Text(
                "--{unit} {window}: a training step of TRL has only one mini-batch, number 0", unit=MINI, window=window
            )
            raise Problem(
                Kind.USAGE,
                cause,
                hint=Text(
                    "use --{unit} 0:1 --repeat N to record the only mini-batch of each of N training steps in a row",
                    MINI,
                ),
            )
        return probe.constants(config, release)

    return probe._replace(constants=constants)


def _update(trainer: _Trainer) -> Recipe:
    """Return the recipe for the training steps of a trainer, with lines where its micro-batches begin."""
    begin = _GENERATED if trainer.rollout else _LOADED
    return Recipe(
        name=Text("{algorithm} trainer", trainer.name),
        stage="update-policy",
        class_name=f"{trainer.name}Trainer",
        method=begin.method,
        windows=(MICRO, MINI),
        probe=_UPDATE,
        insertions=(begin,),
        structures=(
            Structure(
                "",
                trainer.releases,
                trainer.file,
                trainer.fingerprints,
                Text("generation runs within the first micro-batch of a training step, so this one includes it")
                if trainer.rollout
                else Text("the training loop is in the transformers package"),
            ),
        ),
        why=_WHY,
        how=Text(
            "inserts one line where a micro-batch begins. To see where the micro-batch ends, and when the optimizer"
            " step is done, rlpatch overrides two methods in the trainer's class. The training loop of transformers"
            " calls floating_point_ops() at the end of a micro-batch, and _maybe_log_save_evaluate() after the"
            " optimizer step"
        ),
        upstream=Text(
            "{file}, from {release} on, with transformers 4.56 or later",
            file=trainer.file,
            release=trainer.releases[0],
        ),
        needed_until=_REMOVE,
        roles=("actor",),
        notes=(_ONE, _DEEPSPEED),
    )


def _log_probs(trainer: _Trainer, *structures: Structure) -> Recipe:
    """Return the recipe for the log-probabilities that a trainer computes for its rollout, in all its `structures`."""
    method = _LOG_PROBS[0].method
    return Recipe(
        name=Text("{algorithm} trainer", trainer.name),
        stage="compute-log-prob",
        class_name=f"{trainer.name}Trainer",
        method=method,
        windows=(MICRO,),
        probe=training.probe(LogProbs, shared=TrainerSteps, members=(Calls,), roles=ROLES["compute-log-prob"]),
        insertions=_LOG_PROBS,
        structures=structures,
        why=_WHY,
        how=Text(
            "inserts one line before the loop over the micro-batches of the rollout. In the loop, the statement that"
            " ends a micro-batch gets one line before and one line after it"
        ),
        upstream=Text("{file}, from {release} on", file=trainer.file, release=trainer.releases[0]),
        needed_until=_REMOVE,
        roles=ROLES["compute-log-prob"],
        notes=(_NOT_ALWAYS,),
    )


def _parts(name: str, trainer: _Trainer, releases: Releases, *fingerprints: str) -> Structure:
    return Structure(name, releases, trainer.file, fingerprints, Text("one loop over the micro-batches of the rollout"))


_UPDATE = _update_probe()

UPSTREAM = Upstream(
    PROJECT,
    recipes=(
        *map(_update, (_GRPO, _RLOO, _SFT, _DPO, _KTO)),
        _log_probs(
            _GRPO,
            _parts(
                "before 1.14",  # which has no parts
                _GRPO,
                RELEASES.until("1.13.0"),
                *("256b95fbaf0b", "20ec31b7a535", "20fa051feadd", "c881d57724a2", "c67d0d05982c", "0a69578da987"),
                *("5973507aee5a", "8300bca18e03", "b584a1956807"),
            ),
            _parts("after 1.14", _GRPO, RELEASES.since("1.15.0"), "e90fb1894a38"),
        ),
        _log_probs(
            _RLOO,
            _parts(
                "",
                _RLOO,
                RELEASES,
                *("256b95fbaf0b", "20ec31b7a535", "c881d57724a2", "c67d0d05982c", "0a69578da987", "a5196feb8b3a"),
                *("2a86a2752b29", "1f4379bb7d77", "e90fb1894a38"),
            ),
        ),
        *trl_timeline.RECIPES,
        *trl_weights.RECIPES,
    ),
    switches=SWITCHES,
    engines=("vllm-ascend", "vllm"),
    tool="torch",
    processes=Processes(modules=("trl",), scripts=("trl",)),
    builtin={
        ">=0.26.0": Text(
            "TRL has no profiler; its profiling contexts only log how long a function took. accelerate's"
            " Accelerator.profile() records the code that a script runs inside it; with a trainer, it records all of"
            " train()."
        ),
    },
)
