"""MindSpeed-RL: each release patched and put back, and whether its own profiler is on.

It is on no package index. So the tests run on checkouts of the same shape (``fixtures/mindspeed_rl``), and with
``--mindspeed-rl DIR`` on real ones besides.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.mindspeed_rl import trees
from patcher.config import WHOLE
from patcher.switches import State
from patches.mindspeed_rl import recipes as mindspeed_rl
from patches.mindspeed_rl.profiling import PROFILING
from tests.matrix import thinned
from tests.patcher.store.tree import picture
from tests.patches import mindspeed
from tests.patches.command_line import files, run, there_and_back
from tests.patches.mindspeed import Tree

UPSTREAM = mindspeed_rl.UPSTREAM
WORKERS = "mindspeed_rl/workers"
KEPT = {
    "trainer/grpo_trainer_hybrid.py": ("_rlpatch.step(iteration)", 'span("phase", "compute_advantage")'),
    "workers/scheduler/launcher.py": ('span("call", "update_actor")', 'span("call", "generate_sequences")'),
    "workers/actor_hybrid_worker.py": ('span("work", "update_actor", type(self).__name__)',),
    "models/base/base_training_engine.py": ('units("mini-batch", ', 'span("unit", "forward-backward")'),
}
"""File → what the timeline keeps there, in every release."""

PROFILE, MSTX = "profiler_config.integrated.profile", "profiler_config.integrated.mstx"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mindspeed.parametrize(metafunc)


def windows(tree: Tree) -> list[tuple[str, str]]:
    recipes = [recipe for recipe in UPSTREAM.recipes if recipe.stage != "timeline"]
    every = dict.fromkeys((recipe.stage, unit) for recipe in recipes for unit in recipe.windows)
    return [(stage, unit) for stage, unit in every if files(UPSTREAM, tree.shape, stage, unit)]


def test_the_recipes_know_every_release() -> None:
    assert UPSTREAM.releases == trees.RELEASES


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("part", thinned(range(3), [0]))
def test_apply_and_revert_restore_every_byte(tree: Tree, part: int, tmp_path: Path) -> None:
    root = tree.checkout(tmp_path / "checkout")
    warned = "" if tree.real else f"differs from the code that was released as {tree.version}"
    if not tree.version:
        warned = "rlpatch was not tested with"
    asked = [(stage, unit) for stage, unit in windows(tree) if unit not in ("prefill", "iterations")]
    assert len(asked) == (11 if tree.critic else 6)
    for stage, unit in asked[part::3]:
        there_and_back(UPSTREAM, tree.version, stage, unit, root, tmp_path, shape=tree.shape, warned=warned)


@pytest.mark.usefixtures("unwatched")
def test_the_timeline_goes_in_and_out(tree: Tree, tmp_path: Path) -> None:
    root = tree.checkout(tmp_path / "checkout")
    warned = "" if tree.version else "rlpatch was not tested with"
    there_and_back(UPSTREAM, tree.version, "timeline", WHOLE, root, tmp_path, shape=tree.shape, warned=warned)
    run("apply", "mindspeed-rl", "--timeline", "--path", root)
    patched = {path: (root / "mindspeed_rl" / path).read_text("utf-8") for path in KEPT}
    for path, lines in KEPT.items():
        for line in lines:
            assert line in patched[path]


def test_stages_and_roles_stand_in_one_file_and_go_in_any_order(newest: Tree, tmp_path: Path) -> None:
    root = newest.checkout(tmp_path / "checkout")
    pristine, common = picture(root), ("--path", root)
    stages = [
        ("--stage", "rollout", "--decode", "30:60"),
        ("--stage", "update-policy", "--mini-batch", "0:1"),
        ("--stage", "compute-log-prob", "--role", "actor", "--micro-batch", "0:1"),
        ("--stage", "compute-log-prob", "--role", "ref", "--micro-batch", "2:4"),
    ]
    if newest.critic:
        stages += [
            ("--stage", "update-critic", "--micro-batch", "0:1"),
            ("--stage", "compute-values", "--micro-batch", "0:1"),
        ]
    order = random.Random(newest.release)
    for words in order.sample(stages, len(stages)):
        run("apply", "mindspeed-rl", *words, *common)
    patches = json.loads(run("status", "--json", *common).stdout)["result"]["patches"]
    assert len(patches) == len(stages)
    assert {file["state"] for patch in patches for file in patch["files"]} == {"intact"}
    for file in {file["path"] for patch in patches for file in patch["files"]}:
        compile((root / file).read_bytes(), file, "exec")
    for words in order.sample(stages, len(stages)):
        role = words[2:4] if words[2] == "--role" else ()
        run("revert", "mindspeed-rl", *words[:2], *role, *common)
    assert picture(root) == pristine


@pytest.mark.parametrize(
    ("role", "workers"),
    [("actor", ["actor_hybrid_worker.py"]), ("ref", ["reference_worker.py"])],
)
def test_a_role_leaves_the_workers_of_others_alone(role: str, workers: list[str], tmp_path: Path) -> None:
    root = trees.checkout("2.3.0", tmp_path / "checkout")
    words = ("--stage", "compute-log-prob", "--role", role, "--micro-batch", "0:1")
    said = run("apply", "mindspeed-rl==2.3.0", *words, "-n", "--json", "--path", root)
    (target,) = json.loads(said.stdout)["result"]["targets"]
    paths = [Path(file["path"]) for file in target["files"]]
    assert [path.name for path in paths if path.parent.name == "workers"] == workers


def _without_the_reference(root: Path) -> None:
    (root / WORKERS / "reference_worker.py").unlink()


def _with_another_schedule(root: Path) -> None:
    engine = root / "mindspeed_rl/models/base/base_training_engine.py"
    engine.write_text(engine.read_text().replace("iter(batches)", "cycle(batches)"))


@pytest.mark.parametrize(
    ("change", "said_of_it"),
    [
        (
            _without_the_reference,
            "the recipe “reference worker” inserts code into these files, but none of them exists: mindspeed_rl/workers/reference_woker.py",
        ),
        (_with_another_schedule, "0 top-level statements “data_iter = iter(batches)”"),
    ],
)
def test_where_one_half_of_a_patch_finds_no_place_the_other_is_not_written(
    change: Callable[[Path], None], said_of_it: str, tmp_path: Path
) -> None:
    root = trees.checkout(trees.MASTER, tmp_path / "checkout")
    change(root)
    pristine = picture(root)
    words = ("--stage", "compute-log-prob", "--micro-batch", "0:1")
    said = run("apply", "mindspeed-rl", *words, "--path", root, code=4)
    assert "is not a release that rlpatch knows" in said.stderr
    assert said_of_it in said.stderr
    assert picture(root) == pristine


def test_the_version_that_setup_py_bears_in_every_release_tells_nothing(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    shutil.copytree(trees.checkout("2.3.0", tmp_path / "checkout") / "mindspeed_rl", site / "mindspeed_rl")
    info = site / "mindspeed_rl-2.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mindspeed_rl\nVersion: 2.1.0\n")
    (info / "RECORD").write_text("mindspeed_rl/__init__.py,,\n")
    said = run("apply", "mindspeed-rl", "--decode", "30:60", "-n", "--path", site)
    assert "note: rlpatch assumes version unknown, not 2.1.0\n" in said.stderr
    said = run("apply", "mindspeed-rl==2.1.0", "--decode", "30:60", "--path", site, code=3)
    assert "the version of mindspeed-rl cannot be determined" in said.stderr


def test_explain_names_the_line_of_each_window(tree: Tree, tmp_path: Path) -> None:
    root = tree.checkout(tmp_path / "checkout")
    said = run("explain", "mindspeed-rl", "--path", root).stdout
    for stage, unit in windows(tree):
        assert f"{stage}: " in said
        assert f"--{unit} A:B" in said
    assert "without rlpatch, mindspeed-rl" in said
    assert said.count("  in the installed file") >= (9 if tree.critic else 5)


# --- its own profiler ---


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({}, State.OFF),
        ({PROFILE: False, MSTX: False}, State.OFF),
        ({PROFILE: True}, State.ON),
        ({PROFILE: True, MSTX: True}, State.ON),
        ({MSTX: True}, State.ARMED),
        ({PROFILE: None, MSTX: None}, State.OFF),
    ],
    ids=str,
)
def test_values_of_the_settings_give_the_expected_state(values: dict[str, object], state: State) -> None:
    (switch,) = PROFILING.switches
    assert switch.state({key.name: values.get(key.name) for key in switch.keys}) is state


CHECKS = [
    ("python cli/train_grpo.py --config-name grpo_profiled", "on", "configs/grpo_profiled.yaml:6"),
    ("python cli/train_grpo.py --config-name=grpo_profiled", "on", "configs/grpo_profiled.yaml:6"),
    ("python cli/train_grpo.py", "off", ""),
    ("python cli/train_grpo.py --config-name grpo_qwen25_7b_A3", "off", ""),
    ("python cli/train_grpo.py +profiler_config.integrated.profile=true", "on", "command after --"),
    ("python cli/train_grpo.py +profiler_config.integrated.mstx=true", "armed", "command after --"),
    ("python cli/train_grpo.py --config-name grpo_profiled profiler_config.integrated.profile=false", "off", ""),
    ("python cli/train_grpo.py --config-name $YAML", "unknown", ""),
]
SCRIPT = """
YAML={yaml}
ray start --head --port 6766
while true; do
  if [ "$device_count" -eq "$NNODES" ]; then
    {start} 2>&1 | tee logs/training.log
    break
  fi
done
"""


def own(root: Path, *words: object, code: int = 0) -> list[tuple[str, str]]:
    """State and place of MindSpeed-RL's own profiler, as ``rlpatch check`` finds them."""
    said = run("check", "mindspeed-rl", "--json", "--path", root, *words, code=code)
    found = json.loads(said.stdout)["result"]["mindspeed-rl"]["profilers"]
    return [(one["state"], one["where"]) for one in found if one["profiler"] == "MindSpeed-RL's own profiler"]


def profiled(tree: Tree, folder: Path) -> Path:
    """A checkout with a configuration that the user made of the one that is there."""
    root = tree.checkout(folder)
    shutil.copy(trees.checkout("2.3.0", folder.parent / "shape") / "configs/grpo_profiled.yaml", root / "configs")
    return root


def test_the_profiler_is_detected_in_commands(newest: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = profiled(newest, tmp_path / "checkout")
    monkeypatch.chdir(root)
    for command, state, place in CHECKS:
        ((found, where),) = own(root, "--", *command.split(), code=8 if state == "on" else 0)
        assert (found, place in where) == (state, True), command


@pytest.mark.parametrize(("yaml", "state"), [("grpo_profiled", "on"), ("grpo_qwen25_7b_A3", "off")], ids=["on", "off"])
def test_the_profiler_is_detected_in_scripts(
    newest: Tree, yaml: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = profiled(newest, tmp_path / "checkout")
    monkeypatch.chdir(root)
    script = root / "run.sh"
    script.write_text(SCRIPT.format(yaml=yaml, start="python cli/train_grpo.py --config-name $YAML"))
    # A branch that may not run: what would be on is not known.
    expected = {"on": "unknown"}.get(state, state)
    ((found, _),) = own(root, "--script", script)
    assert found == expected
    script.write_text(f"YAML={yaml}\npython cli/train_grpo.py --config-name $YAML | tee log\n")
    ((found, _),) = own(root, "--script", script, code=8 if state == "on" else 0)
    assert found == state


def test_the_profiler_is_detected_in_the_configuration_of_the_user(newest: Tree, tmp_path: Path) -> None:
    root = profiled(newest, tmp_path / "checkout")
    file = root / "configs/grpo_profiled.yaml"
    assert own(root, "--config", file, code=8) == [("on", f"{file}:6")]
    refused = run("apply", "mindspeed-rl", "--decode", "30:60", "--path", root, "--config", file, code=8)
    assert f"at {file}:6" in refused.stderr
    assert own(root, "--config", root / "configs/grpo_qwen25_7b_A3.yaml")[0][0] == "off"


def test_the_profiler_is_off_as_released(newest: Tree, tmp_path: Path) -> None:
    ((state, _),) = own(newest.checkout(tmp_path / "checkout"))
    assert state == "off"


def test_every_combination_of_settings_has_a_state() -> None:
    (switch,) = PROFILING.switches
    for way in itertools.product(*(key.values for key in switch.keys)):
        assert switch.state(dict(zip((key.name for key in switch.keys), way, strict=True))) in State
