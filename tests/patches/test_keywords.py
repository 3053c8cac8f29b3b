"""The inserted code against the profilers it calls: every keyword, in every release of torch_npu since 2.1.0."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libcst as cst
import pytest

from fixtures import releases
from fixtures.ascend import signatures
from fixtures.environments import variables
from patcher.capture import AIC_METRICS, CONTENTS, EXPORT_TYPES, LEVELS, Capture, Window
from patcher.errors import Problem
from patcher.recipe import Recipe
from patcher.specialise import specialise
from patches.registry import UPSTREAMS

RECIPES = [recipe for upstream in UPSTREAMS for recipe in upstream.recipes if recipe.stage == "rollout"]
CASES = [pytest.param(r, b, id=f"{r.name}-{b}") for r in RECIPES for b in r.probe.backends]


def subsets(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for number in range(len(words) + 1):
        yield from itertools.combinations(words, number)


# Level and metrics depend on each other, contents partly do; the rest is tried with and without the others.
CHOICES: list[dict[str, Any]] = [
    {},
    *({"level": level, "aic_metrics": metrics} for level in ("", *LEVELS) for metrics in ("", *AIC_METRICS)),
    *({"contents": contents} for contents in subsets(CONTENTS)),
    *(
        {"level": level, "export_type": export, "l2_cache": l2_cache, "mstx": mstx}
        for level in LEVELS
        for export in EXPORT_TYPES
        for l2_cache in (False, True)
        for mstx in (False, True)
    ),
    *({"analysis": True, "contents": contents} for contents in (("npu", "cpu"), ("cpu",), CONTENTS)),
]

# What newer releases say of msprof_tx, whose successor mstx does not exist before 2.7.1.
DEPRECATED = re.compile(r"msprof_tx.*deprecated|deprecated.*msprof_tx")


def inserted(recipe: Recipe, capture: Capture) -> str:
    """The members that go into the target class, in a class of their own."""
    choice = recipe.constants(capture), recipe.arguments(capture), recipe.summary(capture)
    members = specialise(recipe.probe, capture.backend, *choice)
    return cst.Module([cst.ClassDef(cst.Name("Worker"), cst.IndentedBlock(members))]).code


def capture(backend: str = "npu", **options: Any) -> Capture:
    return Capture(Window("decode", 30, 60), "/tmp/rlpatch_traces", backend=backend, **options)


BUILD = """
{code}

def build():
    probe = object.__new__(Worker._RlpatchRollout)
    probe.save_path, probe.name = {folder!r}, "host_dp0_rank0_1"
    return probe.build(2, 1, 3)
"""


def accepted_choices() -> list[dict[str, Any]]:
    chosen = []
    for options in CHOICES:
        try:
            capture(**options)
        except Problem:
            continue
        chosen.append(options)
    return chosen


def refused_choices() -> list[dict[str, Any]]:
    return [options for options in CHOICES if options not in accepted_choices()]


@pytest.mark.xdist_group("keywords")
@pytest.mark.parametrize("version", releases.TORCH_NPU)
def test_every_release_takes_what_a_capture_allows(version, npu_python, tmp_path):
    chosen = accepted_choices()
    recipe = RECIPES[0]
    (tmp_path / "code").mkdir()
    for number, options in enumerate(chosen):
        code = inserted(recipe, capture(**options))
        (tmp_path / "code" / f"{number:04}.py").write_text(BUILD.format(code=code, folder=str(tmp_path / "traces")))
    answers = judge(npu_python, version, tmp_path / "code", tmp_path)
    assert len(answers) == len(chosen) > 100
    for options, answer in zip(chosen, answers, strict=True):
        said = [line for line in answer["messages"] if not (options.get("mstx") and DEPRECATED.search(line))]
        assert (answer["exception"], said) == (None, []), options
        window = ["NONE", "NONE", "WARMUP", "RECORD", "RECORD", "RECORD_AND_SAVE"]
        assert answer["actions"] == [*window, "NONE"], options


def judge(python: Path, version: str, code: Path, folder: Path) -> list[dict[str, Any]]:
    command = [str(python), signatures.__file__, str(releases.release(version, "torch-npu")), str(code), "6"]
    done = subprocess.run(command, env=variables(npu=False), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"accepted"')]


def test_a_refused_choice_is_one_that_torch_npu_would_change_or_that_records_nothing():
    for options in refused_choices():
        contents = options.get("contents", CONTENTS)
        metrics_below_level1 = options.get("aic_metrics", "") not in ("", "none") and options["level"] in ("level0", "level_none")
        nothing = not {"npu", "cpu"} & set(contents)
        no_host = "memory" in contents and "cpu" not in contents
        assert metrics_below_level1 or nothing or no_host, options
        with pytest.raises(Problem) as problem:
            capture(**options)
        assert problem.value.hint
