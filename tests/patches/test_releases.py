"""Every published release: patched, reviewed, loaded and put back, each byte and each time of change."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import venv
from pathlib import Path

import pytest

from fixtures import releases
from patcher.config import WHOLE
from patcher.recipe import Upstream
from patches.projects import upstreams
from patches.verl import recipes as verl
from patches.vllm import recipes as vllm
from patches.vllm_ascend import recipes as vllm_ascend
from tests.matrix import MATRIX, ends, thinned_rows
from tests.patcher.store.tree import picture
from tests.patches.command_line import RANGES, files, install, run, there_and_back

WITH_RANGES = ("0.9.1",)
"""The releases of verl whose windows are tried with ranges, too; all of them with --all-releases."""


pytestmark = pytest.mark.usefixtures("unwatched")


def test_the_recipes_know_every_published_release() -> None:
    assert vllm_ascend.UPSTREAM.releases == releases.VLLM_ASCEND
    assert verl.UPSTREAM.releases == releases.VERL


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "stage" not in metafunc.fixturenames:
        return
    published = verl.UPSTREAM.releases
    # Those without a class have tests of their own: the timeline and the weight sync.
    staged = [recipe for recipe in verl.UPSTREAM.recipes if recipe.class_name]
    windows = dict.fromkeys((recipe.stage, unit) for recipe in staged for unit in recipe.windows)
    assert len(windows) == 10
    everything = metafunc.config.getoption("--all-releases")
    with_ranges = published if everything else WITH_RANGES
    # The releases at the ends of a structure; those between are like them (`test_survey`).
    at_ends = {
        (structure.releases[end], recipe.stage, unit)
        for recipe in staged
        for unit in recipe.windows
        for structure in recipe.structures
        for end in (0, -1)
    }
    everywhere = [(version, *window) for version in published for window in windows]
    plain = [(*case, ()) for case in everywhere if everything or case in at_ends]
    ranged = [(version, *window, RANGES) for version in with_ranges for window in windows]
    # Some stages of the newest release, and of the oldest one what nothing else is like.
    oldest, newest = ends(published)
    seen = {newest: set([*windows][::5]), oldest: {("update-policy", "mini-batch")}}
    short = [case for case in plain if case[1:3] in seen.get(case[0], ())]
    metafunc.parametrize(("version", "stage", "unit", "options"), thinned_rows([*plain, *ranged], short))


def test_apply_and_revert_restore_every_byte_of_verl(
    version: str, stage: str, unit: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    root = install(verl.UPSTREAM, version, tmp_path / "site")
    there_and_back(verl.UPSTREAM, version, stage, unit, root, tmp_path, options=options)


@MATRIX
@pytest.mark.parametrize("version", ["0.6.1", "0.7.1", "0.9.1"])
def test_the_stages_of_verl_stand_in_one_file_and_go_in_any_order(version: str, tmp_path: Path) -> None:
    root = install(verl.UPSTREAM, version, tmp_path / "site")
    pristine, common = picture(root), ("--path", root)
    stages = [
        ("--stage", "update-policy", "--mini-batch", "0:1"),
        ("--stage", "compute-log-prob", "--role", "actor", "--micro-batch", "0:1"),
        ("--stage", "compute-log-prob", "--role", "ref", "--micro-batch", "2:4"),
        ("--stage", "update-critic", "--micro-batch", "0:1"),
        ("--stage", "compute-values", "--micro-batch", "0:1"),
    ]
    order = random.Random(version)
    for words in order.sample(stages, len(stages)):
        run("apply", "verl", *words, *common)
    # The window of another loop: what the first needed and the second does not is taken out again.
    run("apply", "verl", "--stage", "update-policy", "--micro-batch", "0:1", *common)
    run("apply", "verl", "--stage", "update-critic", "--mini-batch", "0:1", *common)
    patches = json.loads(run("status", "--json", *common).stdout)["result"]["patches"]
    assert sorted((p["stage"], p["role"]) for p in patches) == [
        ("compute-log-prob", "actor"), ("compute-log-prob", "ref"), ("compute-values", ""), ("update-critic", ""),
        ("update-policy", ""),
    ]  # fmt: skip
    assert {file["state"] for patch in patches for file in patch["files"]} == {"intact"}
    for patch in patches:
        wanted = {"update-policy": "micro-batch", "update-critic": "mini-batch"}.get(patch["stage"], "micro-batch")
        assert [f["path"] for f in patch["files"]] == files(verl.UPSTREAM, version, patch["stage"], wanted)
    for file in {file["path"] for patch in patches for file in patch["files"]}:
        compile((root / file).read_bytes(), file, "exec")
    for stage in order.sample(stages, len(stages)):
        role = ("--role", stage[3]) if stage[2] == "--role" else ()
        run("revert", "verl", *stage[:2], *role, *common)
    assert picture(root) == pristine


@pytest.mark.parametrize(
    ("upstream", "version"),
    [
        pytest.param(vllm_ascend.UPSTREAM, "0.9.1", marks=MATRIX),
        (vllm_ascend.UPSTREAM, "0.30.0rc2"),
        (vllm.UPSTREAM, "0.33.0"),
    ],
    ids=("vllm-ascend-0.9.1", "vllm-ascend-0.30.0rc2", "vllm-0.33.0"),
)
def test_the_capture_stands_beside_the_rollout_and_they_go_in_any_order(
    upstream: Upstream, version: str, tmp_path: Path
) -> None:
    name, root = upstream.project.name, install(upstream, version, tmp_path / "site")
    pristine, common = picture(root), ("--path", root)
    rollout, capture = ("--stage", "rollout"), ("--stage", "graph-capture")
    (file,) = {*files(upstream, version, "graph-capture", WHOLE)} & {*files(upstream, version, "rollout", "decode")}

    run("apply", name, *rollout, "--decode", "30:60", *common)
    alone = (root / file).read_bytes()
    run("apply", name, *capture, *common)
    both = (root / file).read_bytes()
    compile(both, file, "exec")
    assert {line for line in alone.splitlines() if b"rlpatch" in line} < {*both.splitlines()}
    run("revert", name, *capture, *common)
    assert (root / file).read_bytes() == alone
    run("apply", name, *capture, *common)
    run("revert", name, *rollout, *common)
    assert b"rlpatch_rollout" not in (root / file).read_bytes()
    run("revert", name, *common)
    assert picture(root) == pristine


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment with vllm-ascend in site-packages and verl in a folder elsewhere."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    shutil.copytree(releases.release("0.11.0rc1"), site, dirs_exist_ok=True)
    shutil.copytree(releases.release("0.6.1", "verl"), tmp_path / "src")
    (site / "verl.pth").write_text(f"{tmp_path / 'src'}\n")
    return tmp_path


BOTH = ("vllm-ascend==0.11.0rc1", "verl==0.6.1", "--decode", "30:60", "--mini-batch", "0:1")


def test_several_targets_in_several_roots_are_patched_together(environment: Path) -> None:
    common = ("--python", environment / "env" / "bin" / "python")
    pristine = picture(environment)
    said = run("apply", *BOTH, *common)
    assert "Records decode steps 30..59 of rollout 0 on rank 0." in said.stdout
    assert "Records mini-batch 0 of training step 1 in update-policy on rank 0." in said.stdout
    assert len(list(environment.rglob(".rlpatch"))) == 2
    shown = run("diff", *common, code=2)
    assert f"--path {environment / 'src'}" in shown.stderr
    run("revert", *common)
    assert picture(environment) == pristine


@pytest.mark.parametrize(
    ("packages", "profiler"),
    [((), "torch_npu"), (("torch",), "torch"), (("torch", "torch_npu"), "torch_npu")],
)
def test_the_environment_decides_which_profiler_verl_gets(
    environment: Path, packages: tuple[str, ...], profiler: str
) -> None:
    (site,) = (environment / "env" / "lib").glob("python*/site-packages")
    for package in packages:
        (site / package).mkdir()
    said = run("apply", *BOTH, "-n", "--python", environment / "env" / "bin" / "python").stdout
    assert [line.split()[2] for line in said.splitlines() if "traces of" in line] == [
        "torch_npu.profiler", f"{profiler}.profiler",
    ]  # fmt: skip


def test_where_one_of_several_targets_does_not_fit_nothing_is_written(environment: Path) -> None:
    common = ("--python", environment / "env" / "bin" / "python")
    actor = environment / "src" / "verl/workers/actor/dp_actor.py"
    actor.write_text(actor.read_text().replace("in enumerate(mini_batches)", "in enumerate(my_batches)"))
    pristine = picture(environment)
    said = run("apply", *BOTH, *common, code=4)
    assert "0 loops over mini_batches or dataloader in update_policy" in said.stderr
    assert f"at {actor}:" in said.stderr
    assert "nothing was written" in said.stderr
    assert picture(environment) == pristine


@pytest.mark.parametrize("upstream", upstreams(), ids=lambda upstream: upstream.project.name)
def test_every_recipe_is_documented(upstream: Upstream) -> None:
    for recipe in upstream.recipes:
        assert all((recipe.why, recipe.how, recipe.upstream, recipe.needed_until))
        assert all(site.why for site in recipe.insertions)
        assert all(s.shape and (s.fingerprints or not recipe.class_name) for s in recipe.structures)
        versions = [release for s in recipe.structures for release in s.releases]
        assert len(versions) == len(set(versions)), "a release has one structure"
    for one, other in itertools.combinations(upstream.recipes, 2):
        assert (one.stage, one.name) != (other.stage, other.name)


@pytest.mark.parametrize("upstream", upstreams(), ids=lambda upstream: upstream.project.name)
def test_the_project_names_every_file_that_a_recipe_patches(upstream: Upstream) -> None:
    patched = {structure.file for recipe in upstream.recipes for structure in recipe.structures}
    assert set(upstream.project.files) == patched


@pytest.mark.parametrize("target", ["vllm", "vllm-ascend", "sglang"])
def test_what_counts_as_a_rollout_is_explained(target: str) -> None:
    told = run("explain", target).stdout
    assert "sleep()" in told
    assert "weight sync" in told
