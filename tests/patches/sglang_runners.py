"""A model runner of SGLang whose function that captures graphs is the released one, with the lines of its recipe."""

from __future__ import annotations

import builtins
import inspect
import sys
import textwrap
import time
from collections import defaultdict
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fixtures import releases
from fixtures.ascend import standins
from patcher import editing
from patcher.changes.change import PatchId
from patcher.recipe import Recipe
from tests.patches.standin import Profiler, host


class ModelRunner:
    """Runs the released function; whatever it asks for and is not set here is a stand-in."""

    device = "cuda"
    is_generation = True

    def __init__(self, recipe: Recipe, release: str, made: list[Profiler], *, draft: bool = False, graphs: bool = True):
        self.recipe, self.made, self.is_draft_worker = recipe, made, draft
        self.server_args: Any = SimpleNamespace(
            disable_cuda_graph=not graphs,
            enable_dp_attention=False,
            forward_hooks=None,
            model_impl="auto",
        )
        host(self, recipe, {"STAGE": "graph-capture", "made": made})
        self.function = _released(recipe, release)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_rlpatch", "_Rlpatch")) or name in ("ps", "dp_rank", "attn_dp_rank", "tp_worker"):
            raise AttributeError(name)
        return standins.permissive(name)

    def init_prefill_cuda_graph(self) -> None:
        self.run("prefill")

    def init_decode_cuda_graph(self) -> None:
        self.run("decode")

    def run(self, label: str) -> None:
        for profiler in self.made:
            profiler.run(label)

    def start(self) -> None:
        """Capture the graphs, with something before and after it."""
        self.run("before")
        self.function(self)
        self.run("after")


class _Globals(dict[str, Any]):
    """What a module of SGLang has; everything that is not set is a stand-in."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name) if hasattr(builtins, name) else standins.permissive(name)


def _released(recipe: Recipe, release: str) -> Any:
    """Return the function of a release with the lines of the recipe, as it stands in the file without its neighbours."""
    (structure,) = recipe.structures
    lines = releases.release_file(release, structure.file, "sglang").decode().splitlines(keepends=True)
    begin = next(n for n, line in enumerate(lines) if line.startswith(f"    def {recipe.method}("))
    source = f"class {recipe.class_name}:\n{''.join(inspect.getblock(lines[begin:]))}"
    patch = PatchId("sglang", recipe.stage)
    (unit,) = recipe.windows
    patched = editing.insert(source.encode(), recipe, [(patch, ())], "0.1.0", units=(unit,), where="model_runner.py")
    captures = {name: lambda runner: runner.run("decode") for name in ("CudaGraphRunner", "GraphRunnerCls")}
    together = {"capture_cuda_graphs": lambda model_runner, **_: _both(model_runner)}
    names = _Globals(captures, **together, defaultdict=defaultdict, time=time, get_available_gpu_memory=lambda *_: 1.0)
    code = textwrap.dedent(patched.decode()).replace("_rlpatch_graph_capture(", "_rlpatch_stage(")
    exec(code, names)
    return getattr(names[recipe.class_name], recipe.method)


def _both(runner: ModelRunner) -> Any:
    """Capture as ``capture_cuda_graphs`` does."""
    runner.init_prefill_cuda_graph()
    runner.init_decode_cuda_graph()
    return standins.permissive("capture")


def import_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the functions of the first releases import their CudaGraphRunner."""
    path = ["sglang", "srt", "model_executor", "cuda_graph_runner"]
    for end in range(1, len(path) + 1):
        monkeypatch.setitem(sys.modules, ".".join(path[:end]), ModuleType(path[end - 1]))
    module: Any = sys.modules[".".join(path)]
    module.CudaGraphRunner = lambda runner: runner.run("decode")
