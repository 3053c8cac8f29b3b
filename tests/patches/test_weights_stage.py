"""The weight sync in every release: what goes in stands at its place, calls what there is, and goes out to the byte."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from patcher.config import WHOLE
from patcher.traces import names
from patches.projects import upstream
from tests.matrix import thinned_rows
from tests.patches.command_line import files, install, run, there_and_back

pytestmark = pytest.mark.usefixtures("unwatched")
NAMES = ("areal", "openrlhf", "sglang", "trl", "verl", "vllm", "vllm-ascend")
CALL = re.compile(r"\b_rlpatch\.(\w+)\(")


def releases_of(name: str, *, everything: bool) -> tuple[str, ...]:
    """The releases of a project that have the stage: all of them, or the oldest and the last of each structure.

    That each recipe fits each release of verl is asked by ``test_survey``.
    """
    recipes = [recipe for recipe in upstream(name).recipes if recipe.stage == "weight-sync"]
    known = recipes[0].releases
    if everything:
        return known
    seen = {structure.releases[-1] for recipe in recipes for structure in recipe.structures}
    return tuple(release for release in known if release in {known[0], *seen})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "release" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--all-releases")
        found = {name: releases_of(name, everything=everything) for name in NAMES}
        cases = [(name, release) for name, known in found.items() for release in known]
        metafunc.parametrize(("name", "release"), thinned_rows(cases, [("vllm", found["vllm"][-1])]))


def test_it_goes_in_and_out_and_every_line_calls_what_the_recorder_has(name: str, release: str, tmp_path: Path) -> None:
    root, project = install(upstream(name), release, tmp_path / "site"), upstream(name).project
    there_and_back(upstream(name), release, "weight-sync", WHOLE, root, tmp_path)
    run("apply", name, "--stage", "weight-sync", "--sync", "3", "--save-path", "/tmp/traces", "--path", root)
    recorder, *sites = files(upstream(name), release, "weight-sync", WHOLE)
    text = (root / recorder).read_text("utf-8")
    assert 'SYNC = "3"' in text
    assert recorder == f"{project.package}/__init__.py"
    (syncs,) = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef) and node.name == "Syncs")
    offered = {node.name for node in syncs.body if isinstance(node, ast.FunctionDef)}
    for file in sites:
        if file.endswith("/server_args.py"):  # whose line calls what tells the replica
            continue
        lines = (root / file).read_text("utf-8").splitlines()
        ours = "\n".join(line for line in lines if line.endswith(f"  # rlpatch: {name} weight-sync"))
        assert f'__import__("{project.package}"), "_rlpatch_weight_sync", None)' in ours
        assert {*CALL.findall(ours)} <= offered, file


def test_the_name_of_a_trace_says_whose_it_is() -> None:
    path = Path("a_host_weight_sync_trainer_sync1_replica2_rank3_77.1790000000000.pt.trace.json.gz")
    fields = {
        "host": "a_host",
        "stage": "weight-sync",
        "role": "trainer",
        "sync": 1,
        "replica": 2,
        "rank": 3,
        "pid": 77,
    }
    assert names.of(path).fields == {"ours": True, **fields}
