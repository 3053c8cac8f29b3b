"""The framework's own profiler on the real torch_npu: what was named is set, and everything else is as released."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fixtures import environments, releases
from fixtures.ascend import settings
from patcher import editing
from patcher.changes.change import PatchId
from patcher.recipe import Recipe
from patches.vllm_ascend.builtin import RECIPES
from tests.choices import config as recorded
from tests.matrix import MATRIX

# One release of every code that builds the profiler, each where its predecessor is reshaped.
BUILT = (
    *("0.7.1rc1", "0.7.3rc1", "0.7.3rc2", "0.8.4rc1", "0.9.0rc1", "0.10.1rc1", "0.13.0rc1", "0.13.0rc3", "0.13.0"),
    *("0.14.0rc1", "0.15.0rc1", "0.16.0rc1", "0.18.0", "0.20.2rc1", "0.23.0", "0.30.0rc2"),
)
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--level level2", {"_profiler_level": "Level2"}),
    ("--level level1 --aic-metrics memory_ub", {"_profiler_level": "Level1", "_aic_metrics": "ACL_AICORE_MEMORY_UB"}),
    ("--level level0 --aic-metrics none", {"_profiler_level": "Level0", "_aic_metrics": "ACL_AICORE_NONE"}),
    ("--level level_none --aic-metrics none --mstx", {"_profiler_level": "Level_none", "_aic_metrics": "ACL_AICORE_NONE", "_msprof_tx": True}),
    (
        "--contents npu",
        {"activities": ["NPU"], **dict.fromkeys(("record_shapes", "profile_memory", "with_stack", "with_modules"), False)},
    ),
    (
        "--contents npu,cpu,memory,shapes,module,stack",
        {"activities": ["CPU", "NPU"], **dict.fromkeys(("record_shapes", "profile_memory", "with_stack", "with_modules"), True)},
    ),
    ("--export-type text,db", {"_export_type": ["db", "text"]}),
    ("--export-type db --l2-cache", {"_export_type": ["db"], "_l2_cache": True}),
    ("--no-mstx --no-l2-cache", {"_msprof_tx": False, "_l2_cache": False}),
    ("--no-analysis", {"analyse_flag": False}),
)  # fmt: skip


def patched(source: bytes, recipe: Recipe, chosen: str) -> bytes:
    config = recorded(f"--builtin {chosen}")
    patch = PatchId("vllm-ascend", "builtin")
    return editing.replace(source, recipe, recipe.probe.arguments(config), patch, "0.1.0", where="").after


@MATRIX
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_what_was_named_is_set_and_the_rest_is_as_released(recipe: Recipe, npu_python: Path, tmp_path: Path) -> None:
    versions = tuple(version for version in BUILT if recipe.structure(version))
    assert versions
    files = []
    for version in versions:
        structure = recipe.structure(version)
        assert structure
        source = releases.release_file(version, structure.file)
        for number, code in enumerate([source, *(patched(source, recipe, chosen) for chosen, _ in CASES)]):
            files.append(tmp_path / f"{version}_{number}.py")
            files[-1].write_bytes(code)
    answers = iter(built(npu_python, recipe, files, tmp_path))
    for version in versions:
        released, *others = (next(answers) for _ in (None, *CASES))
        assert released["said"] == []
        for (chosen, wanted), answer in zip(CASES, others, strict=True):
            assert answer == {**released, **wanted}, (version, chosen)


def built(python: Path, recipe: Recipe, files: list[Path], folder: Path) -> list[dict[str, Any]]:
    """What torch_npu holds of the profiler that each file builds, types of export in order."""
    command = [
        str(python),
        settings.__file__,
        str(folder / "traces"),
        recipe.class_name,
        recipe.method,
        *map(str, files),
    ]
    done = subprocess.run(command, env=environments.variables(), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"activities"')]
    assert len(answers) == len(files)
    for answer in answers:
        answer["_export_type"].sort()
    return answers
