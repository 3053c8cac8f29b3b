"""verl between its releases: what fits is recorded, and what is left out is said with its reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from patcher.recipe import Recipe
from patches.verl import recipes as verl
from tests.matrix import of_releases
from tests.patcher.store.tree import picture
from tests.patches.command_line import install, run

pytestmark = pytest.mark.usefixtures("unwatched")
LEGACY = {
    "update-policy": ["actor/dp_actor.py", "actor/megatron_actor.py"],
    "update-critic": ["critic/dp_critic.py", "critic/megatron_critic.py"],
}


def development(release: str, root: Path) -> Path:
    """The tree of a release under a version that is none, as a fork or the main branch has it."""
    install(verl.UPSTREAM, release, root)
    for record in root.glob("*.dist-info"):
        shutil.rmtree(record)
    (root / "verl/version/version").write_text("0.6.2.dev0\n")
    return root


@pytest.mark.parametrize("stage", LEGACY)
@pytest.mark.parametrize(
    ("release", "left_out"),
    of_releases(
        ["0.6.1"],
        [
            (
                "0.6.1",
                [
                    "skipped FSDPEngine, MegatronEngine: to record in these classes, rlpatch also needs TrainingWorker, and did not find its code"
                ],
            ),
            (
                "0.7.0",
                [
                    "skipped FSDPEngine, VeOmniEngine, MegatronEngine: to record in these classes, rlpatch also needs TrainingWorker, and did not find its code",
                    "skipped verl/workers/engine_workers.py: the file matches no known release",
                ],
            ),
        ],
    ),
)
def test_the_loops_of_the_worker_are_recorded_where_the_engine_worker_is_another(
    release: str, left_out: list[str], stage: str, tmp_path: Path
) -> None:
    """0.6.2.dev0 has engines and no worker that drives them; from 38246890e on it has one, of another structure."""
    root = development(release, tmp_path / "site")
    worker = root / "verl/workers/engine_workers.py"
    if worker.exists():
        worker.write_text(worker.read_text().replace("def train_mini_batch", "def update"))
    done = run("apply", "verl", "--stage", stage, "--micro-batch", "0:2", "--json", "--path", root)
    (target,) = json.loads(done.stdout)["result"]["targets"]
    assert [file["path"] for file in target["files"]] == [f"verl/workers/{file}" for file in LEGACY[stage]]
    said = [note for note in map(str, target["notes"]) if "skipped " in note]
    assert said == left_out
    assert b"rlpatch" not in (root / "verl/workers/engine/fsdp/transformer_impl.py").read_bytes()


def test_a_strategy_whose_only_place_is_lone_is_refused(tmp_path: Path) -> None:
    root = development("0.6.1", tmp_path / "site")
    (root / "verl/workers/actor/dp_actor.py").unlink()
    said = run("apply", "verl", "--micro-batch", "0:2", "--strategy", "fsdp", "--path", root, code=3)
    for value in ("--micro-batch", "update-policy", "--strategy fsdp", "FSDPEngine", "TrainingWorker"):
        assert value in said.stderr


MEGATRON = "megatron mindspeed"
ENGINES = f"fsdp veomni torchtitan automodel {MEGATRON}"
SCHEDULED = {"MegatronEngine": MEGATRON}
NAMES = {
    "0.2 update-policy micro-batch": {"FSDP worker": "fsdp", "Megatron worker, micro-batches": "megatron"},
    "0.2 compute-log-prob call": {"FSDP worker": "fsdp", "Megatron worker": "megatron"},
    "0.6.1 update-policy micro-batch": {"FSDP worker": "fsdp", "Megatron worker, micro-batches": "megatron"},
    "0.6.1 update-critic mini-batch": {"FSDP worker": "fsdp", "Megatron worker": "megatron"},
    "0.7.0 update-policy micro-batch": {
        "FSDP worker": "fsdp", "Megatron worker, micro-batches": "megatron", "engine worker, micro-batches": ENGINES,
        "FSDPEngine": "fsdp", "VeOmniEngine": "veomni", **SCHEDULED,
    },
    "0.7.1 update-policy micro-batch": {
        "FSDP worker": "fsdp", "Megatron worker, micro-batches": "megatron", "engine worker, micro-batches": ENGINES,
        "FSDPEngine": "fsdp", "VeOmniEngine": "veomni", "TorchTitanEngine": "torchtitan", **SCHEDULED,
    },
    "0.7.1 compute-values micro-batch": {
        "FSDP worker": "fsdp", "Megatron worker, micro-batches": "megatron",
        "engine worker, micro-batches": f"fsdp veomni {MEGATRON}", "FSDPEngine": "fsdp", **SCHEDULED,
    },
    "0.8.0 compute-log-prob micro-batch": {
        "engine worker, micro-batches": ENGINES, "FSDPEngine": "fsdp", "VeOmniEngine": "veomni",
        "TorchTitanEngine": "torchtitan", "AutomodelEngine": "automodel", **SCHEDULED,
    },
    "0.8.0 compute-values micro-batch": {
        "engine worker, micro-batches": f"fsdp veomni {MEGATRON}", "FSDPEngine": "fsdp", "VeOmniEngine": "veomni",
        **SCHEDULED,
    },
    "0.8.0 compute-values call": {"engine worker, calls": ENGINES},
    "0.9.1 update-policy call": {"engine worker, calls": ENGINES, "Tinker's worker, calls": ENGINES},
    "0.8.0 update-critic mini-batch": {"engine worker, mini-batches": ENGINES},
}  # fmt: skip


@pytest.mark.parametrize("asked", NAMES)
def test_which_classes_have_a_window_and_for_which_strategies(asked: str) -> None:
    version, stage, unit = asked.split()
    fitting = [one for one in verl.UPSTREAM.recipes if one.stage == stage and unit in one.windows]
    assert {one.name: " ".join(one.strategies) for one in fitting if one.structure(version)} == NAMES[asked]


WINDOWED = [recipe for recipe in verl.UPSTREAM.recipes if recipe.stage not in ("timeline", "weight-sync")]


@pytest.mark.parametrize("recipe", WINDOWED, ids=lambda recipe: f"{recipe.stage} {recipe.name}")
def test_what_is_said_of_micro_batches_is_said_where_their_loop_is(recipe: Recipe) -> None:
    assert bool(recipe.unit_notes) == any('"micro-batch"' in site.line for site in recipe.insertions)
    assert bool(recipe.marks) == (recipe.name.endswith("Engine") and recipe.stage in LEGACY)


REFUSED = [
    ("--stage compute-values --micro-batch 0:1 --strategy torchtitan", "with --strategy torchtitan, the stage compute-values does not support --micro-batch"),
    ("--stage compute-log-prob --mini-batch 0:1", "stage compute-log-prob of verl does not support --mini-batch"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "cause"), REFUSED)
def test_a_window_that_a_strategy_or_stage_does_not_have_is_refused_with_the_one_that_it_has(
    words: str, cause: str, tmp_path: Path
) -> None:
    root = install(verl.UPSTREAM, "0.9.1", tmp_path / "site")
    before = picture(root)
    said = run("apply", "verl", *words.split(), "--path", root, code=2)
    assert cause in said.stderr
    assert "--call A:B" in said.stderr
    assert picture(root) == before


@pytest.mark.parametrize("strategy", MEGATRON.split())
def test_why_a_pipeline_has_no_micro_batches_is_said(strategy: str, tmp_path: Path) -> None:
    root = install(verl.UPSTREAM, "0.9.1", tmp_path / "site")
    common = ("verl", "--stage", "compute-log-prob", "--strategy", strategy, "--path", root, "-n", "-v")
    said = run("apply", "--micro-batch", "0:1", *common).stderr
    assert "with pipeline parallelism, use --call instead of --micro-batch" in said
    assert "with pipeline_model_parallel_size" in said
    assert "pipeline" not in run("apply", "--call", "0:1", *common).stderr
