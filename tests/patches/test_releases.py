"""Every published release: patched, reviewed, loaded and put back, each byte and each time of change."""

from __future__ import annotations

import difflib
import json
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fixtures import releases
from patcher.cli import rlpatch
from patches.registry import UPSTREAMS
from patches.vllm_ascend import UPSTREAM
from tests.patcher.store.tree import age, picture

# What a fresh interpreter's import system hands out: the loader's code, without importing the package.
LOAD = """
import importlib.machinery as m, pathlib, sys
path = pathlib.Path(sys.argv[1])
finder = m.FileFinder(str(path.parent), (m.SourceFileLoader, m.SOURCE_SUFFIXES))
code = finder.find_spec(path.stem).loader.get_code(path.stem)
print([name for const in code.co_consts if hasattr(const, "co_names") for name in const.co_names if "_rlpatch" in name])
"""


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(rlpatch, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


def install(version: str, root: Path) -> Path:
    """A copy of a release with bytecode that must not survive: checked, and never checked by Python."""
    shutil.copytree(releases.release(version), root)
    for recipe in UPSTREAM.recipes:
        if structure := recipe.structure(version):
            source = str(root / structure.file)
            for mode, level in (
                (py_compile.PycInvalidationMode.UNCHECKED_HASH, 0),
                (py_compile.PycInvalidationMode.TIMESTAMP, 1),
            ):
                py_compile.compile(source, doraise=True, invalidation_mode=mode, optimize=level)
    age(root)
    return root


def test_the_recipes_know_every_published_release() -> None:
    assert UPSTREAM.releases == releases.VLLM_ASCEND


def test_the_sample_has_both_ends_of_every_structure() -> None:
    ends = {r for recipe in UPSTREAM.recipes for s in recipe.structures for r in (s.releases[0], s.releases[-1])}
    assert ends <= set(releases.SAMPLE)


def test_apply_review_load_and_revert(ascend_release: str, tmp_path: Path) -> None:
    root = install(ascend_release, tmp_path / "site")
    files = [s.file for recipe in UPSTREAM.recipes if (s := recipe.structure(ascend_release))]
    before = {file: (root / file).read_bytes() for file in files}
    pristine = picture(root)
    common = ("--path", str(root))

    planned = run("diff", "vllm-ascend", "--decode", "30:60", "--save-path", "/tmp/traces", *common).stdout_bytes
    assert picture(root) == pristine
    applied = run(
        "apply",
        f"vllm-ascend=={ascend_release}",
        "--decode",
        "30:60",
        "--save-path",
        "/tmp/traces",
        "--json",
        *common,
    )
    (target,) = json.loads(applied.stdout)["result"]["targets"]
    assert [file["path"] for file in target["files"]] == files
    assert (target["version"], target["warnings"]) == (ascend_release, [])

    for file in files:
        after = (root / file).read_bytes()
        compile(after, file, "exec")
        old, new = before[file].splitlines(keepends=True), after.splitlines(keepends=True)
        kinds = {kind for kind, *_ in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()}
        assert kinds == {"equal", "insert"}
        loaded = subprocess.run([sys.executable, "-c", LOAD, root / file], capture_output=True, text=True, check=True)
        assert "_rlpatch_rollout" in loaded.stdout

    shown = run("diff", *common).stdout_bytes
    assert shown == planned
    copy = tmp_path / "copy"
    for file in files:
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        (copy / file).write_bytes(before[file])
    subprocess.run(["git", "apply", "-"], input=shown, cwd=copy, check=True)
    assert all((copy / file).read_bytes() == (root / file).read_bytes() for file in files)

    states = json.loads(run("status", "--json", *common).stdout)["result"]["patches"]
    assert [(s["version"], [f["state"] for f in s["files"]]) for s in states] == [
        (ascend_release, ["intact"] * len(files))
    ]

    run("revert", *common)
    assert picture(root) == pristine


@pytest.mark.parametrize("upstream", UPSTREAMS, ids=lambda upstream: upstream.project.name)
def test_every_recipe_is_documented(upstream) -> None:
    for recipe in upstream.recipes:
        assert all((recipe.why, recipe.how, recipe.upstream, recipe.remove_when))
        assert all(site.why for site in recipe.sites)
        assert all(s.shape and s.fingerprints for s in recipe.structures)
        versions = [release for s in recipe.structures for release in s.releases]
        assert len(versions) == len(set(versions)), "a release has one structure"


@pytest.mark.parametrize("upstream", UPSTREAMS, ids=lambda upstream: upstream.project.name)
def test_the_project_names_every_file_that_a_recipe_patches(upstream) -> None:
    files = {structure.file for recipe in upstream.recipes for structure in recipe.structures}
    assert set(upstream.project.files) == files
