"""TRL: each release patched and put back, and what is refused because no training step of it has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures import releases
from patches.trl import recipes as trl
from tests.matrix import ends, in_releases, thinned
from tests.patcher.store.tree import picture
from tests.patches.command_line import files, install, run, there_and_back

pytestmark = pytest.mark.usefixtures("unwatched")

UPSTREAM = trl.UPSTREAM
WINDOWS = (("update-policy", "micro-batch"), ("update-policy", "mini-batch"), ("compute-log-prob", "micro-batch"))


def short(version: str, _stage: str, unit: str) -> bool:
    """Whether the short run sees it."""
    return version == UPSTREAM.releases[-1] and unit == "micro-batch"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "unit" in metafunc.fixturenames:
        in_releases(metafunc, UPSTREAM, WINDOWS, short)


def test_apply_and_revert_restore_every_byte(version: str, stage: str, unit: str, tmp_path: Path) -> None:
    root = install(UPSTREAM, version, tmp_path / "site")
    there_and_back(UPSTREAM, version, stage, unit, root, tmp_path)


@pytest.mark.parametrize(
    ("version", "update", "log_prob"),
    [
        ("0.26.0", "grpo rloo sft", "grpo rloo"),
        ("0.29.0", "grpo rloo sft dpo", "grpo rloo"),
        ("1.14.0", "grpo rloo sft dpo kto", "rloo"),  # whose GRPO trainer computes them in one piece
        ("1.16.0", "grpo rloo sft dpo kto", "grpo rloo"),
    ],
)
def test_which_trainers_have_a_window(version: str, update: str, log_prob: str) -> None:
    for stage, names in (("update-policy", update), ("compute-log-prob", log_prob)):
        found = files(UPSTREAM, version, stage, "micro-batch")
        assert found == [f"trl/trainer/{name}_trainer.py" for name in names.split()]


def test_both_stages_stand_in_one_class(tmp_path: Path) -> None:
    root = install(UPSTREAM, "1.16.0", tmp_path / "site")
    pristine, common = picture(root), ("--path", root)
    for stage in ("compute-log-prob", "update-policy"):
        run("apply", "trl", "--stage", stage, "--micro-batch", "0:2", *common)
    compile((root / "trl/trainer/grpo_trainer.py").read_bytes(), "grpo_trainer.py", "exec")
    run("revert", "trl", "--stage", "compute-log-prob", *common)
    run("revert", *common)
    assert picture(root) == pristine


@pytest.mark.parametrize("version", thinned(ends(UPSTREAM.releases), UPSTREAM.releases[-1:]))
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--mini-batch", "1:2"), 2, "--mini-batch 1:2: a training step of TRL has only one mini-batch, number 0"),
        (("--mini-batch", "0:1,3:4"), 2, "a training step of TRL has only one mini-batch, number 0"),
        (
            ("--stage", "compute-log-prob", "--mini-batch", "0:1"),
            2,
            "stage compute-log-prob of trl does not support --mini-batch",
        ),
        (("--stage", "update-critic", "--micro-batch", "0:1"), 3, "trl: the stage update-critic is not available"),
        (("--decode", "30:60"), 2, "--decode is not available for trl: the rollout runs in"),
    ],
)
def test_a_window_that_no_release_has_is_refused(
    version: str, words: tuple[str, ...], code: int, said: str, tmp_path: Path
) -> None:
    root = install(UPSTREAM, version, tmp_path / "site")
    pristine = picture(root)
    assert said in run("apply", "trl", *words, "--path", root, code=code).stderr
    assert picture(root) == pristine


def test_explain_names_the_line_of_each_window(tmp_path: Path) -> None:
    root = install(UPSTREAM, "1.16.0", tmp_path / "site")
    shown = run("explain", "trl", "--path", root)
    assert "warning" not in shown.stderr
    assert shown.stdout.count('_rlpatch_update_policy("prepared", inputs, self.model.training)  # rlpatch') == 2
    assert "without rlpatch, trl" in shown.stdout


def test_a_trainer_of_another_structure_is_refused(tmp_path: Path) -> None:
    root = install(UPSTREAM, "1.16.0", tmp_path / "site")
    file = root / "trl/trainer/grpo_trainer.py"
    file.write_text(file.read_text().replace("def _prepare_inputs", "def _prepare"))
    pristine = picture(root)
    said = run("apply", "trl==1.16.0", "--micro-batch", "0:2", "--path", root, code=4).stderr
    assert "expected GRPOTrainer._prepare_inputs" in said
    assert picture(root) == pristine


def test_the_fixtures_know_every_release() -> None:
    assert UPSTREAM.releases == releases.TRL
