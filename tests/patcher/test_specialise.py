"""The probe with a user's choice in it: literals only, nothing of ours, readable."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from typing import Any

import libcst as cst
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patcher.capture import BACKENDS, WHOLE, Capture
from patcher.change import PatchId
from patcher.specialise import specialise
from patches.registry import UPSTREAMS
from patches.vllm_ascend import V1
from tests.choices import capture as recorded
from tests.choices import typed

RECIPES = [recipe for upstream in UPSTREAMS for recipe in upstream.recipes if recipe.probe.members]
ROLLOUT = V1
CAPTURE = recorded("--decode 30:60")


def rendered(recipe: Any, capture: Capture[Any] = CAPTURE, role: str = "", **constants: object) -> str:
    probe = recipe.probe._replace(chosen=lambda capture: {**recipe.probe.chosen(capture), **constants})
    members = specialise(probe, capture, PatchId("target", capture.stage.name, role))
    return cst.Module([cst.ClassDef(cst.Name("Target"), cst.IndentedBlock(members))]).code


RANGES: dict[str, Any] = {"markers": True, "module_ranges": True, "module_pattern": "it's"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("recipe", "ranges"),
    [
        pytest.param(recipe, ranges, id=f"{recipe.stage}-{recipe.name}-{'ranges' if ranges else 'plain'}")
        for recipe in RECIPES
        for ranges in ({}, RANGES)
        if not (ranges and WHOLE in recipe.windows)  # which has none
    ],
)
def test_what_goes_in_stands_alone_and_compiles_on_python_3_8(
    recipe: Any, backend: str, ranges: dict[str, Any]
) -> None:
    window = () if WHOLE in recipe.windows else (f"--{recipe.windows[0]}", "30:60")
    code = rendered(recipe, recorded((*window, *typed(stage=recipe.stage, backend=backend, **ranges))))
    tree = ast.parse(code, feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    roots = {name.partition(".")[0] for name in imported}
    assert roots - {"torch", *(["torch_npu"] if backend == "npu" else [])} <= sys.stdlib_module_names
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.arg) and node.annotation]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.returns]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    assert "noqa" not in code
    assert ": Any" not in code
    assert max(map(len, code.splitlines())) <= 120


def test_the_constants_read_like_the_command_line() -> None:
    code = rendered(ROLLOUT)
    for line in (
        "KINDS = ('decode',)",
        "WINDOW = '30:60'",
        "RANKS = '0'",
        "ROLLOUT = '0'",
        "SAVE_PATH = '/tmp/traces'",
    ):
        assert line in code
    assert '"""Records decode steps 30..59 of rollout 0 on rank 0."""' in code


@pytest.mark.parametrize(
    ("choice", "line"),
    [
        ({}, "profiler_level=torch_npu.profiler.ProfilerLevel.Level1,"),
        ({}, "aic_metrics=torch_npu.profiler.AiCMetrics.PipeUtilization,"),
        ({}, "export_type=torch_npu.profiler.ExportType.Text,"),
        ({}, "activities=[torch_npu.profiler.ProfilerActivity.CPU, torch_npu.profiler.ProfilerActivity.NPU],"),
        ({}, "self.save_path, worker_name=self.name, analyse_flag=False"),
        ({}, "schedule=torch_npu.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1),"),
        ({"level": "level0"}, "aic_metrics=torch_npu.profiler.AiCMetrics.AiCoreNone,"),
        ({"level": "level_none", "mstx": True}, "profiler_level=torch_npu.profiler.ProfilerLevel.Level_none,"),
        ({"aic_metrics": "memory_ub"}, "aic_metrics=torch_npu.profiler.AiCMetrics.MemoryUB,"),
        ({"export_type": ("db",)}, "export_type=torch_npu.profiler.ExportType.Db,"),
        (
            {"export_type": ("text", "db")},
            "export_type=[torch_npu.profiler.ExportType.Text, torch_npu.profiler.ExportType.Db],",
        ),
        ({"l2_cache": True}, "l2_cache=True,"),
        ({"mstx": True}, "msprof_tx=True,"),
        ({"analysis": True}, "self.save_path, worker_name=self.name, analyse_flag=True"),
        ({"contents": ("npu",)}, "activities=[torch_npu.profiler.ProfilerActivity.NPU],"),
        ({"contents": ("npu", "cpu", "stack")}, "with_stack=True,"),
        ({"contents": ("npu", "cpu", "module")}, "with_modules=True,"),
        ({"contents": ("npu", "cpu", "shapes")}, "record_shapes=True,"),
        ({"contents": ("npu", "cpu", "memory")}, "profile_memory=True,"),
        (
            {"backend": "torch"},
            "activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA],",
        ),
        ({"backend": "torch", "contents": ("cpu",)}, "activities=[torch.profiler.ProfilerActivity.CPU],"),
    ],
)
def test_the_choice_stands_where_the_guides_put_it(choice: dict[str, Any], line: str) -> None:
    assert line in rendered(ROLLOUT, recorded(("--decode", "30:60", *typed(**choice))))


@pytest.mark.parametrize(
    ("choice", "layers"),
    [
        ({}, []),
        ({"markers": True}, ["Ranges of mstx", "The rollout, and each iteration"]),
        ({"module_ranges": True}, ["Ranges of mstx", "A range around every call"]),
        (RANGES, ["Ranges of mstx", "A range around every call", "The rollout, and each iteration"]),
    ],
)
def test_what_is_asked_for_beside_the_window_stands_on_top_of_the_rest(
    choice: dict[str, Any], layers: list[str]
) -> None:
    def nested(**choice: Any) -> list[cst.ClassDef]:
        members = specialise(ROLLOUT.probe, recorded(("--decode", "30:60", *typed(**choice))), PatchId("t", "rollout"))
        return [member for member in members if isinstance(member, cst.ClassDef)]

    (plain,) = nested(mstx=bool(choice), export_type=("db",) if "module_ranges" in choice else ())
    below, *above = nested(**choice)
    assert cst.Module([below]).code == cst.Module([plain]).code
    for layer, about in zip(above, layers, strict=True):
        assert str(layer.get_docstring()).startswith(about)
        assert cst.Module([layer]).code.startswith("\nclass _RlpatchRollout(_RlpatchRollout):\n")


@settings(max_examples=25)  # of 0.3 s each
@given(st.text())
def test_no_text_ends_its_literal(text: str) -> None:
    code = rendered(ROLLOUT, SAVE_PATH=text)
    tree = ast.parse(code)
    values = [
        n.value for n in ast.walk(tree) if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "SAVE_PATH"
    ]
    assert [value.value for value in values] == [text]
    assert code.isascii()


def test_a_constant_or_a_keyword_that_the_probe_lacks_is_a_mistake_in_a_recipe() -> None:
    recipe = ROLLOUT
    with pytest.raises(KeyError, match="NOTHING"):
        rendered(recipe, NOTHING=1)
    probe = recipe.probe._replace(arguments=lambda capture: {("profile", "nothing"): "1"})
    with pytest.raises(KeyError, match="nothing"):
        specialise(probe, CAPTURE, PatchId("target", "rollout"))


def test_the_probe_itself_is_code_that_runs() -> None:
    for recipe in RECIPES:
        ranges = {} if WHOLE in recipe.windows else RANGES  # which take a window
        layers = [
            name for layer in recipe.probe.layers(recorded(("--decode", "30:60", *typed(**ranges)))) for name in layer
        ]
        for name in (*recipe.probe.parts, *recipe.probe.members, *recipe.probe.backends.values(), *layers):
            module, _, wanted = name.partition(".")
            assert inspect.isclass(getattr(importlib.import_module(f"patches.probes.{module}"), wanted))


@pytest.mark.parametrize(
    ("stage", "role", "names"),
    [
        ("rollout", "", ("_rlpatch_rollout", "_RlpatchRollout")),
        ("compute-log-prob", "ref", ("_rlpatch_compute_log_prob_ref", "_RlpatchComputeLogProbRef")),
    ],
)
def test_each_patch_has_names_of_its_own(stage: str, role: str, names: tuple[str, str]) -> None:
    code = rendered(ROLLOUT, recorded(("--decode", "30:60", "--stage", stage)), role)
    tree = ast.parse(code)
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and "lpatch" in node.attr}
    assert found == {f"{names[0]}_probe", names[1], "_rlpatch_recording"}, "and one that all of them share"
    assert f"def {names[0]}(self" in code
