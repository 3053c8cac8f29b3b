"""Code that goes into a class for one capture of one release: literals only, no import of rlpatch, readable."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patcher.changes.change import SHARED, PatchId
from patcher.config import TOOLS, WHOLE, ProfileConfig
from patcher.editing import rendering
from patcher.editing.rendering import Rendered, render, source_of
from patches import probes
from patches.probes.members import Loops
from patches.projects import upstreams
from patches.vllm_ascend.recipes import V1
from tests.choices import config as recorded
from tests.choices import typed
from tests.matrix import MATRIX, examples, thinned

RECIPES = [recipe for upstream in upstreams() for recipe in upstream.recipes if recipe.probe.members]
ROLLOUT = V1
CAPTURE = recorded("--decode 30:60")


def render_for(
    recipe: Any, config: ProfileConfig[Any] = CAPTURE, role: str = "", release: str = "", **constants: object
) -> Rendered:
    probe = recipe.probe._replace(settings=lambda config: {**recipe.probe.settings(config), **constants})
    names = PatchId("target", config.stage.name, role), PatchId("target", SHARED)
    return render(recipe._replace(probe=probe), config, release, *names)


def rendered(
    recipe: Any, config: ProfileConfig[Any] = CAPTURE, role: str = "", release: str = "", **constants: object
) -> str:
    text = render_for(recipe, config, role, release, **constants)
    return "\n    ".join(["class Target:", *text.shared_lines, *text.patch_lines])


RANGES: dict[str, Any] = {"markers": True, "module_ranges": True, "module_pattern": "it's"}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("recipe", "ranges"),
    [
        pytest.param(
            recipe,
            ranges,
            id=f"{recipe.stage}-{recipe.name}-{'ranges' if ranges else 'plain'}",
            marks=MATRIX if number % 9 else (),
        )
        for number, recipe in enumerate(RECIPES)
        for ranges in ({}, RANGES)
        if not (ranges and WHOLE in recipe.windows)  # which has none
    ],
)
def test_what_goes_in_stands_alone_and_compiles_on_python_3_8(recipe: Any, tool: str, ranges: dict[str, Any]) -> None:
    window = () if WHOLE in recipe.windows else (f"--{recipe.windows[0]}", "30:60")
    marked = {"nsys": {**ranges, "markers": False}, "memory": {}}.get(tool, ranges)  # these mark the units anyway
    code = rendered(recipe, recorded((*window, *typed(stage=recipe.stage, tool=tool, **marked))))
    tree = ast.parse(code, feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    roots = {name.partition(".")[0] for name in imported}
    assert roots - {"torch", *(["torch_npu"] if tool == "npu" else [])} <= sys.stdlib_module_names
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.arg) and node.annotation]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.returns]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    assert "noqa" not in code
    assert ": Any" not in code
    assert max(map(len, code.splitlines())) <= 120


def test_the_constants_read_like_the_command_line() -> None:
    code = rendered(ROLLOUT)
    for line in ('WINDOW = "30:60"', 'RANKS = "0"', 'ROLLOUT = "0"', 'SAVE_PATH = "/tmp/traces"'):
        assert line in code
    assert '"""Records decode steps 30..59 of rollout 0 on rank 0."""' in code


@pytest.mark.parametrize(
    ("choice", "line"),
    [
        ({}, "profiler_level=profiler.ProfilerLevel.Level1,"),
        ({}, "aic_metrics=profiler.AiCMetrics.PipeUtilization,"),
        ({}, "activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],"),
        ({}, "self.save_path, self.name, analyse_flag=False"),
        (
            {},
            "schedule=profiler.schedule(wait=unit, warmup=self.first - unit, active=self.end - self.first, repeat=1),",
        ),
        ({"level": "level0"}, "aic_metrics=profiler.AiCMetrics.AiCoreNone,"),
        ({"level": "level_none", "mstx": True}, "profiler_level=profiler.ProfilerLevel.Level_none,"),
        ({"aic_metrics": "memory_ub"}, "aic_metrics=profiler.AiCMetrics.MemoryUB,"),
        ({}, "export_type=profiler.ExportType.Text,"),
        ({"export_type": ("db",)}, "export_type=profiler.ExportType.Db,"),
        (
            {"export_type": ("text", "db")},
            "export_type=[profiler.ExportType.Text, profiler.ExportType.Db],",
        ),
        ({"l2_cache": True}, "l2_cache=True,"),
        ({"mstx": True}, "msprof_tx=True,"),
        ({"analysis": True}, "self.save_path, self.name, analyse_flag=True"),
        ({"contents": ("npu",)}, "activities=[profiler.ProfilerActivity.NPU],"),
        ({"contents": ("npu", "cpu", "stack")}, "with_stack=True,"),
        ({"contents": ("npu", "cpu", "module")}, "with_modules=True,"),
        ({"contents": ("npu", "cpu", "shapes")}, "record_shapes=True,"),
        ({"contents": ("npu", "cpu", "memory")}, "profile_memory=True,"),
        (
            {"tool": "torch"},
            "activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA],",
        ),
        ({"tool": "torch", "contents": ("cpu",)}, "activities=[profiler.ProfilerActivity.CPU],"),
    ],
)
def test_the_choice_stands_where_the_guides_put_it(choice: dict[str, Any], line: str) -> None:
    assert line in rendered(ROLLOUT, recorded(("--decode", "30:60", *typed(**choice))))


@pytest.mark.parametrize(
    ("choice", "layers"),
    [
        ({}, []),
        ({"markers": True}, ["Tells when the first unit", "Nested ranges for what"]),
        ({"module_ranges": True}, ["Tells when the first unit", "A range around every call"]),
        (RANGES, ["Tells when the first unit", "A range around every call", "Nested ranges for what"]),
    ],
)
def test_what_is_asked_for_beside_the_window_stands_on_top_of_the_rest(
    choice: dict[str, Any], layers: list[str]
) -> None:
    def classes(**choice: Any) -> list[str]:
        own = "\n".join(
            render_for(ROLLOUT, recorded(("--decode", "30:60", *typed(**choice))), release="0.9.1").patch_lines
        )
        return re.split(r"^(?=class )", own.partition("\n\n_rlpatch")[0] + "\n", flags=re.MULTILINE)[1:]

    _, *above = classes(**choice)
    for layer, about in zip(above, layers, strict=True):
        assert layer.startswith(f'class _RlpatchRollout(_RlpatchRollout):\n    """{about}')


@settings(max_examples=examples(25))  # of 0.3 s each
@given(st.text())
def test_no_text_ends_its_literal(text: str) -> None:
    code = rendered(ROLLOUT, SAVE_PATH=text)
    tree = ast.parse(code)
    values = [
        n.value for n in ast.walk(tree) if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "SAVE_PATH"
    ]
    assert [ast.literal_eval(value) for value in values] == [text]
    assert code.isascii()


def test_a_constant_or_a_keyword_that_the_probe_lacks_is_a_mistake_in_a_recipe() -> None:
    with pytest.raises(ValueError, match="NOTHING"):
        rendered(ROLLOUT, NOTHING=1)
    probe = ROLLOUT.probe._replace(arguments=lambda config: {("profile", "nothing"): "1"})
    with pytest.raises(ValueError, match="nothing"):
        rendered(ROLLOUT._replace(probe=probe))


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


@pytest.mark.parametrize(("words", "most"), [("--decode 30:60", 255), ("--decode 30:60 --no-facts", 208)])
def test_a_decode_window_is_a_block_that_can_be_read_in_one_go(words: str, most: int) -> None:
    text = render_for(V1, recorded(words), release="0.11.0rc1")
    assert len(text.patch_lines) <= most, "lines, the two marks and the note below the first of them left out"
    assert not text.shared_lines


CALLER = ["def open(self, at):", "    import os", "    n = os.getpid()", "    if n:", "        {}", "    return n"]


@pytest.mark.parametrize(
    ("method", "overridden", "error"),
    [
        (
            ["def note(self, at):", "    super().note(at)"],
            ["def note(self, unit):", "    self.at = unit"],
            "parameters",
        ),
        (["def note(self):", "    super().note()", "    self.at = 1"], ["def note(self):", "    return 1"], "returns"),
    ],
)
def test_what_a_class_overrides_fits_where_it_is_called(method: list[str], overridden: list[str], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        rendering._inline_super(method, overridden)


LONG = "def note(self):\n" + "\n".join("    self.at = 1" for _ in range(15))


@pytest.mark.parametrize(
    ("call", "called", "expected"),
    [
        (
            "self.note()  # why",
            "def note(self):\n    import os\n    self.pid = os.getpid()",
            ["self.pid = os.getpid()  # why"],
        ),
        ("self.note(at)", "def note(self, at):\n    if at:\n        self.at = at", ["if at:", "    self.at = at"]),
        ("m = self.note()", "def note(self):\n    k = 1\n    return k + 1", ["k = 1", "m = k + 1"]),
        ("m = self.note()", "def note(self):\n    m = 1\n    return m", ["m = 1"]),
        ("self.note(1)", "def note(self, at):\n    self.at = at", None),  # another argument
        ("self.note()", "def note(self):\n    n = 1\n    self.at = n", None),  # n is the caller's, too
        ("self.note()", "def note(self):\n    if self.at:\n        return\n    self.at = 1", None),  # returns early
        ("self.note()", "def note(self):\n    return 1", None),  # a value that nobody takes
        ("m = self.note()", "def note(self):\n    self.at = 1", None),  # no value
        ("m = self.note() + self.note()", "def note(self):\n    return 1", None),
        ("self.note(); later(self.note)", "def note(self):\n    self.at = 1", None),  # and hands it on
        ("self.note()", LONG, None),
    ],
)
def test_a_short_method_may_stand_where_it_is_called(call: str, called: str, expected: list[str] | None) -> None:
    lines = [line.format(call) for line in CALLER]
    merged = rendering._inline(lines, called.split("\n"), "note")
    assert merged == ([*lines[:4], *(f"        {line}" for line in expected), lines[5]] if expected else [])


@pytest.mark.parametrize(
    ("release", "there", "not_there"),
    [
        ("0.9.1", ["request.resumed_from_preemption"], ["zip(", "resumed_req_ids", "prompt_embeds", "_warmup_"]),
        (
            "0.11.0rc1",
            ["cached.resumed_from_preemption", "prompt_embeds"],
            ["isinstance", "resumed_req_ids", "_warmup_"],
        ),
        ("0.12.0rc1", ["resumed_req_ids", "request.prefill_token_ids"], ["resumed_from_preemption", "_warmup_"]),
        ("0.18.0", ["_warmup_"], ["resumed_from_preemption"]),
        ("", ["hasattr(cached", "isinstance(cached, list)", "_warmup_", "getattr(request"], []),
    ],
)
def test_what_other_releases_need_is_left_out(release: str, there: list[str], not_there: list[str]) -> None:
    code = rendered(V1, release=release)
    assert [words for words in there if words not in code] == []
    assert [words for words in not_there if words in code] == []


@pytest.mark.parametrize(
    ("choice", "there", "not_there"),
    [
        (
            "--decode 30:60",
            ['kind in ("decode",)', "self.first - 1", "self.rollout == self.chosen"],
            ["range(self", "MODULES", "go_on", "add_facts", "wait_for", "super()"],
        ),
        ("--prefill 0:4", ['kind in ("prefill",)'], []),
        ("--iterations 0:4", ['kind in ("decode", "prefill")'], []),
        ("--decode 30:60 --repeat 3", ["self.chosen + 3"], []),
        ("--decode 30:60 --warmup 4", ["self.first - 4"], []),
        (
            "--decode 30:60",
            [],
            ["record_shapes", "profile_memory", "with_stack", "with_modules", "l2_cache", "msprof_tx"],
        ),
    ],
)
def test_what_was_not_asked_for_is_left_out(choice: str, there: list[str], not_there: list[str]) -> None:
    code = rendered(V1, recorded(choice), release="0.11.0rc1")
    assert [words for words in there if words not in code] == []
    assert [words for words in not_there if words in code] == []


def test_it_is_read_from_the_choice_down_to_the_helpers() -> None:
    code = rendered(V1, release="0.11.0rc1")
    order = [
        "WINDOW =",
        "def __init__",
        "def step",
        "def observe",
        "def open",
        "def write_state",
        "_rlpatch_rollout_probe =",
    ]
    assert sorted(order, key=code.index) == order


class Twice(V1.probe.recorder):  # type: ignore[name-defined]
    """Defines again what another class of it defines."""

    def setting(self, name: str, default: str, pattern: str) -> str:
        return default


@pytest.mark.parametrize("recorder", [V1.probe.recorder, None])
def test_functions_of_a_module_call_the_members_of_an_object_by_their_names(recorder: type | None) -> None:
    probe = V1.probe._replace(members=(Loops,), recorder=recorder)
    text = "\n".join(render_for(V1._replace(class_name="", insertions=(), probe=probe)).patch_lines)
    module: dict[str, Any] = {"_RlpatchRecorder": object}
    exec(text, module)
    assert module["_rlpatch_rollout_units"].__self__ is module["_rlpatch_rollout"].__self__
    assert hasattr(module["_rlpatch_rollout"].__self__, "_RlpatchRollout") == bool(recorder)


def test_a_method_that_two_classes_define_is_an_error() -> None:
    probe = V1.probe._replace(recorder=Twice)
    with pytest.raises(ValueError, match=r"setting is defined in another class of the probe, too"):
        rendered(V1._replace(probe=probe))


RECORDING = [recipe for recipe in RECIPES if recipe.probe.recorder]


@pytest.mark.parametrize("recipe", thinned(RECORDING, RECORDING[::4]), ids=lambda r: f"{r.stage}-{r.name}")
def test_what_recorders_that_another_rlpatch_wrote_ask_each_other_for_stays(recipe: Any) -> None:
    """They meet in one process, where 0.1.0 reads these names of whichever is recording."""
    window = () if WHOLE in recipe.windows else (f"--{recipe.windows[0]}", "30:60")
    code = rendered(recipe, recorded((*window, "--stage", recipe.stage)))
    assert f'STAGE = "{recipe.stage}"' in code
    for words in (
        "def dispatch(cls, probe, worker, event, args)",
        "self.thread =",
        "self.name",
        "self.prof",
        "sys._rlpatch_recording = self",
    ):
        assert words in code


def test_a_class_of_a_probe_is_cut_out_of_its_module_as_it_stands() -> None:
    for found in pkgutil.iter_modules(probes.__path__, f"{probes.__name__}."):
        module = importlib.import_module(found.name)
        for node in ast.parse(Path(str(module.__file__)).read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                assert ast.dump(source_of(getattr(module, node.name)).node) == ast.dump(node)
