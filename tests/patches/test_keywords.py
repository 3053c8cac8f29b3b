"""The inserted code against the profilers it calls: every keyword, in every release of torch_npu since 2.1.0."""

from __future__ import annotations

import ast
import functools
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures import releases
from fixtures.ascend import signatures
from fixtures.environments import variables
from patcher.changes.change import SHARED, PatchId
from patcher.config import AIC_METRICS, CONTENTS, EXPORT_TYPES, LEVELS, ProfileConfig, TorchNpuSettings
from patcher.editing.rendering import render
from patcher.messages.errors import Problem
from patcher.recipe import Recipe
from patches.projects import upstreams
from tests.choices import config as recorded
from tests.choices import typed
from tests.interpreters import interpreter
from tests.matrix import MATRIX, thinned

NEWEST = thinned(releases.TORCH_NPU, releases.TORCH_NPU[-1:])
STAGES = ("rollout", "graph-capture")
RECIPES = [recipe for upstream in upstreams() for recipe in upstream.recipes if recipe.stage in STAGES]
RECORDED = [(recipe, backend) for recipe in RECIPES for backend in recipe.probe.tools]


def subsets(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for number in range(len(words) + 1):
        yield from itertools.combinations(words, number)


# Level and metrics depend on each other, contents partly do; the rest is tried with and without the others.
CHOICES: list[dict[str, Any]] = [
    {},
    *(
        {"level": level, "aic_metrics": metrics, "mstx": level == "level_none"}
        for level in ("", *LEVELS)
        for metrics in ("", *AIC_METRICS)
    ),
    *({"contents": contents} for contents in subsets(CONTENTS)),
    *(
        {"level": level, "export_type": export, "l2_cache": l2_cache, "mstx": mstx}
        for level in LEVELS
        for export in [*((name,) for name in EXPORT_TYPES), EXPORT_TYPES]
        for l2_cache in (False, True)
        for mstx in (False, True)
    ),
    *({"analysis": True, "contents": contents} for contents in (("npu", "cpu"), ("cpu",), CONTENTS)),
]

DEPRECATED = "msprof_tx will be deprecated"
"""Said from 2.7.1 on; its successor ``mstx`` does not exist before."""
FALLBACK = "Invalid parameter export_type"
"""Said by 2.1.0.post8 of a list of types: it takes one, and goes on with text."""
UNUSED = re.compile("Experimental config will not be ue?se?d while ProfilerActivity.NPU is not set")
"""Said of a capture without npu, whose level and metrics have nothing to choose from."""


def inserted(recipe: Recipe, config: ProfileConfig[Any]) -> str:
    """The members that go into the target class, in a class of their own."""
    names = PatchId("vllm-ascend", "rollout"), PatchId("vllm-ascend", SHARED)
    text = render(recipe, config, "", *names)
    return "\n    ".join(["class Worker:", *text.shared_lines, *text.patch_lines])


def config(backend: str = "npu", **options: Any) -> ProfileConfig[Any]:
    return recorded(
        ("--decode", "30:60", "--max-stall", "99", *typed(save_path="/tmp/rlpatch_traces", **options)), backend
    )


BUILD = """
{code}

def build(unit=2):
    from types import SimpleNamespace
    from torch_npu import profiler
    self = SimpleNamespace(first=3, end=6, save_path={folder!r}, name="host_dp0_rank0_1")
    return {call}
"""


@functools.cache
def accepted_choices() -> list[dict[str, Any]]:
    chosen = []
    for options in CHOICES:
        try:
            config(**options)
        except Problem:
            continue
        chosen.append(options)
    return chosen


def refused_choices() -> list[dict[str, Any]]:
    return [options for options in CHOICES if options not in accepted_choices()]


@functools.cache
def rendered() -> tuple[str, ...]:
    """The code of every choice in turn; the same for each release, and slow enough to be made once."""
    return tuple(inserted(RECIPES[0], config(**options)) for options in accepted_choices())


@pytest.mark.parametrize("version", thinned(releases.TORCH_NPU, ()))
def test_every_release_takes_what_a_capture_allows(version, npu_python, tmp_path):
    for number, code in enumerate(rendered()):
        write(tmp_path / "code" / f"{number:04}.py", code, tmp_path)
    answers, chosen = judge(npu_python, version, tmp_path / "code", tmp_path), accepted_choices()
    assert len(answers) == len(chosen) > 100
    for options, answer in zip(chosen, answers, strict=True):
        said = [line for line in answer["messages"] if not expected(options, line, version)]
        assert (answer["exception"], said) == (None, []), options
        window = ["NONE", "NONE", "WARMUP", "RECORD", "RECORD", "RECORD_AND_SAVE"]
        assert answer["actions"] == [*window, "NONE"], options


def expected(options: dict[str, Any], line: str, version: str) -> bool:
    without_npu = "npu" not in options.get("contents", CONTENTS)
    if len(options.get("export_type", ())) > 1 and version == releases.TORCH_NPU[0]:
        return FALLBACK in line or expected({**options, "export_type": ()}, line, version)
    return bool((options.get("mstx") and DEPRECATED in line) or (without_npu and UNUSED.search(line)))


def judge(python: Path, version: str, code: Path, folder: Path) -> list[dict[str, Any]]:
    command = [str(python), signatures.__file__, str(releases.release(version, "torch-npu")), str(code), "6"]
    # From 2.1 on a database asks for msprof on PATH; the installed torch_npu must not be imported with torch.
    environment = variables(TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"accepted"')]


def test_what_is_refused_is_what_torch_npu_would_change_and_what_records_nothing():
    for options in refused_choices():
        contents, level = options.get("contents", CONTENTS), options.get("level", "")
        assert (
            (level in ("level0", "level_none") and options.get("aic_metrics", "") not in ("", "none"))
            or (level == "level_none" and not options["mstx"])
            or not {"npu", "cpu"} & set(contents)
            or ("memory" in contents and "cpu" not in contents)
        ), options
        with pytest.raises(Problem) as problem:
            config(**options)
        assert problem.value.hint


@MATRIX
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"level": "level0", "aic_metrics": "pipe_utilization"}, "reset aic metrics to None"),
        ({"level": "level_none", "mstx": False}, "mstx or msprof_tx must be True"),
    ],
)
def test_torch_npu_changes_what_is_refused(options, line, npu_python, tmp_path, monkeypatch):
    """Once a release stops doing so, the refusal has no reason any more."""
    monkeypatch.setattr(TorchNpuSettings, "check", lambda *_: None)
    write(tmp_path / "code" / "0.py", inserted(RECIPES[0], config(**options)), tmp_path)
    (answer,) = judge(npu_python, releases.TORCH_NPU[-1], tmp_path / "code", tmp_path)
    assert re.search(line, " ".join(answer["messages"])), answer["messages"]


@pytest.mark.parametrize("version", NEWEST)
def test_every_release_goes_on_from_the_number_of_a_step(version):
    """A window is opened with `step_num` set to the number before its own: the next step names and schedules by it."""
    source = (releases.release(version, "torch-npu") / "torch_npu" / "profiler" / "profiler.py").read_text()
    step = source.partition("def step(self)")[2].partition("\n    def ")[0]
    assert re.search(r"self\.step_num \+= 1\n +self\.current_action = self\.schedule\(self\.step_num\)\n", step)
    assert '"ProfilerStep#" + str(self.step_num' in step


@MATRIX
@pytest.mark.parametrize("version", releases.TORCH_NPU)
def test_every_release_takes_ranges_and_those_of_a_domain_from_2_7_on(version, npu_python, tmp_path):
    code = inserted(RECIPES[0], config(markers=True, module_ranges=True))
    write(tmp_path / "code" / "0.py", code + RANGES, tmp_path)
    (answer,) = judge(npu_python, version, tmp_path / "code", tmp_path)
    said = [line for line in answer["messages"] if not expected({"mstx": True}, line, version)]
    assert (answer["exception"], said) == (None, [])
    domains = ["default", "Module"] if version not in ("2.1.0.post8", "2.5.1") else ["default"]
    # Behind them come those of the profiler itself, from 2.13 on one for each step.
    calls = [call for call in answer["calls"] if call.startswith("_range")][: 2 * len(domains)]
    assert calls == ["_range_start_on_host", "_range_end"] * len(domains)


RANGES = """
probe = object.__new__(Worker._RlpatchRollout)
probe.end_range(probe.begin_range("decode 3"))
if not probe.domain_obstacle():
    probe.end_range(probe.begin_range("Attention", "Module"), "Module")
"""


def write(file: Path, code: str, folder: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    (call,) = [ast.unparse(node) for node in calls if ast.unparse(node.func) == "profiler.profile"]
    file.write_text(BUILD.format(code=code, call=call, folder=str(folder / "traces")))


MODULES = {"npu": {"torch", "torch_npu"}, "torch": {"torch"}, "nsys": {"torch"}, "memory": {"torch", "torch_npu"}}
"""Tool → modules beside the standard library that its code imports."""


def test_the_inserted_code_is_python_3_8_and_imports_nothing_of_ours(tmp_path):
    files = []
    for number, (recipe, backend) in enumerate(RECORDED):
        code = inserted(recipe, config(backend))
        imported = set(re.findall(r"^\s*(?:import|from) (\w+)", code, re.MULTILINE)) - MODULES[backend]
        assert imported <= sys.stdlib_module_names - {"typing"}, (recipe.name, backend)
        lines = [(site.method, line.format(units="units")) for site in recipe.insertions for line in site.lines]
        calls = "\n".join(f"def {method}(self):\n    {line}" for method, line in lines)
        files.append(tmp_path / f"{number}.py")
        files[-1].write_text(f"# {recipe.name}, {backend}\n{code}\n{calls}\n")
        ast.parse(files[-1].read_text(), str(files[-1]), feature_version=(3, 8))
    compiling = [interpreter("3.8"), "-W", "error", "-m", "py_compile", *files]
    done = subprocess.run(compiling, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
