"""Every release of vllm-ascend: its windows, and the settings of its own profiler, put in and taken out."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures import releases
from patcher.config import WHOLE
from patches.vllm_ascend import recipes as vllm_ascend
from tests.patcher.store.tree import picture
from tests.patches.command_line import RANGES, files, install, run, there_and_back

WITH_RANGES = ("0.9.1", "0.30.0rc2")
"""The releases whose windows are tried with ranges, too; all of them with --all-releases."""

pytestmark = pytest.mark.usefixtures("unwatched")


def test_the_sample_has_both_ends_of_every_structure() -> None:
    recipes = vllm_ascend.UPSTREAM.recipes
    ends = {r for recipe in recipes for s in recipe.structures for r in (s.releases[0], s.releases[-1])}
    assert ends <= set(releases.SAMPLE)


def test_apply_and_revert_restore_every_byte(ascend_release: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    upstream = vllm_ascend.UPSTREAM
    root = install(upstream, ascend_release, tmp_path / "site")
    there_and_back(upstream, ascend_release, "rollout", "decode", root, tmp_path)
    if ascend_release in WITH_RANGES or pytestconfig.getoption("--all-releases"):
        there_and_back(upstream, ascend_release, "rollout", "decode", root, tmp_path, options=RANGES)
    if ascend_release in vllm_ascend.CAPTURE.releases:
        there_and_back(upstream, ascend_release, "graph-capture", WHOLE, root, tmp_path)
    else:
        refused = run("apply", "vllm-ascend", "--stage", "graph-capture", "--path", root, code=3)
        assert f"vllm-ascend {ascend_release}\n" in refused.stderr
        assert "graph-capture" in refused.stderr


SETTINGS = {
    "--level level2 --aic-metrics memory": {"profiler_level", "aic_metrics"},
    "--contents npu,cpu,memory,shapes,stack,module": {"record_shapes", "profile_memory", "with_stack", "with_modules"},
    "--export-type db,text --mstx --l2-cache --no-analysis": {"export_type", "msprof_tx", "l2_cache", "analyse_flag"},
}


def test_the_own_profiler_of_vllm_ascend(ascend_release: str, tmp_path: Path) -> None:
    """The arguments that were named change and nothing else, argument by argument, beside a window and alone."""
    upstream = vllm_ascend.UPSTREAM
    root = install(upstream, ascend_release, tmp_path / "site")
    patched = files(upstream, ascend_release, "builtin", "whole")
    assert len(patched) == len(files(upstream, ascend_release, "rollout", "decode"))
    for words, keywords in SETTINGS.items():
        planned = run("diff", "vllm-ascend", "--builtin", *words.split(), "--path", root).stdout_bytes
        copy = tmp_path / words
        for file in patched:
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / file, copy / file)
        subprocess.run(["git", "apply", "-"], input=planned, cwd=copy, check=True)
        for file in patched:
            different = changed((root / file).read_bytes(), (copy / file).read_bytes())
            assert different <= keywords
            # Some releases record these by themselves: then there is nothing to change.
            assert keywords - different <= {"profile_memory", "with_stack", "with_modules"}
    everything = ("--builtin", *(word for words in SETTINGS for word in words.split()))
    there_and_back(upstream, ascend_release, "builtin", "whole", root, tmp_path, settings=everything)
    beside(ascend_release, root)


def changed(before: bytes, after: bytes) -> set[str]:
    """The keywords that have another value in ``after``, or none in ``before``; nothing else may differ."""
    old, new = (ast.parse(data) for data in (before, after))
    found = set()
    for one, other in zip(calls(old), calls(new), strict=True):
        values = {keyword.arg: ast.dump(keyword.value) for keyword in one.keywords}
        for keyword in other.keywords:
            if values.get(keyword.arg) != ast.dump(keyword.value) and not list(calls(keyword.value)):
                found.add(keyword.arg or "**")
        for call in (one, other):
            call.keywords = [keyword for keyword in call.keywords if keyword.arg not in found]
    assert ast.dump(old) == ast.dump(new)
    return found


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Every call of a function of ``torch_npu.profiler``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch_npu.profiler."):
            yield node


def beside(version: str, root: Path) -> None:
    """The settings and a window in one release: the first that goes in goes out first, the other stays whole."""
    pristine, common = picture(root), ("--path", root)
    both = {"builtin": ("--builtin", "--level", "level_none", "--mstx"), "rollout": ("--decode", "30:60")}
    first, second = sorted(both, reverse=releases.VLLM_ASCEND.index(version) % 2 == 0)
    for stage in (first, second):
        run("apply", f"vllm-ascend=={version}", *both[stage], *common)
    for file in filter(Path.is_file, (root / name for name in vllm_ascend.UPSTREAM.project.files)):
        compile(file.read_bytes(), str(file), "exec")
    run("revert", "--stage", first, *common)
    (left,) = json.loads(run("status", "--json", *common).stdout)["result"]["patches"]
    assert (left["stage"], {file["state"] for file in left["files"]}) == (second, {"intact"})
    run("revert", *common)
    assert picture(root) == pristine
