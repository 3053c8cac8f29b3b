"""The timeline in every release: what goes in stands at its place, beside a window too, and goes out to the byte."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import releases
from fixtures.cache import REPOSITORY
from patcher.commands.finding import SearchOptions
from patcher.commands.patching.planning import edits_by_root, find_candidates, plan
from patcher.config import WHOLE, Window
from patcher.recipe import Upstream
from patcher.request import ProfileRequest
from patches.probes.timeline_recorder import SglangTimeline, TimelineRecorder, VllmTimeline
from patches.projects import upstream, upstreams
from tests.matrix import MATRIX, thinned_rows
from tests.patcher.store.tree import picture
from tests.patches.command_line import files, install, run, there_and_back
from tests.patches.probes.timelines import files_of

pytestmark = pytest.mark.usefixtures("unwatched")
NAMES = ("areal", "openrlhf", "sglang", "trl", "verl", "vllm", "vllm-ascend")
CALL = re.compile(r'__import__\("(\w+)"\), "_rlpatch_timeline", None\)\).*\b_rlpatch\.(\w+)\(')
READS_CACHE = {"vllm": "_rlpatch.blocks(self)", "sglang": "_rlpatch.iteration(self, batch)"}
"""Project → what the line in its scheduler calls that notes the KV cache in use."""
LOOP = re.compile(r'_rlpatch\.(\w+)\(.* if .*__import__\("(\w+)"\), "_rlpatch_timeline", None\)\) else ')


def releases_of(name: str, *, everything: bool) -> tuple[str, ...]:
    """The releases of a project that have a timeline: all of them, or the ends of their structures."""
    recipes = [recipe for recipe in upstream(name).recipes if recipe.stage == "timeline"]
    known = recipes[0].releases
    if everything:
        return known
    seen = {structure.releases[end] for recipe in recipes for structure in recipe.structures for end in (0, -1)}
    return tuple(release for release in known if release in seen)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "release" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--all-releases")
        found = {name: releases_of(name, everything=everything) for name in NAMES}
        cases = [(name, release) for name, known in found.items() for release in known]
        short = [(name, known[-1]) for name, known in found.items() if name == "verl"]
        metafunc.parametrize(("name", "release"), thinned_rows(cases, short))


def test_apply_and_revert_of_the_timeline_restore_every_byte(name: str, release: str, tmp_path: Path) -> None:
    root = install(upstream(name), release, tmp_path / "site")
    there_and_back(upstream(name), release, "timeline", WHOLE, root, tmp_path)


def test_every_line_calls_what_the_recorder_has_at_the_head_of_its_function(
    name: str, release: str, tmp_path: Path
) -> None:
    root = install(upstream(name), release, tmp_path / "site")
    run("apply", name, "--timeline", "--save-path", "/tmp/traces", "--path", root)
    recorder, *sites = files(upstream(name), release, "timeline", WHOLE)
    (owner,) = (node for node in ast.parse((root / recorder).read_bytes()).body if _is_recorder(node))
    offered = {node.name for node in owner.body if isinstance(node, ast.FunctionDef)}  # type: ignore[attr-defined]
    noted_cache = False
    for file in sites:
        lines = (root / file).read_text("utf-8").splitlines()
        ours = [line for line in lines if line.endswith(f"  # rlpatch: {name} timeline")]
        assert ours, file
        for line in ours:
            if line.lstrip().startswith("del _rlpatch_wait"):
                continue
            if file.endswith("/scheduler.py"):
                noted_cache = noted_cache or READS_CACHE[name] in line
            match = CALL.search(line)
            package, method = match.groups() if match else LOOP.search(line).groups()[::-1]  # type: ignore[union-attr]
            assert package == upstream(name).project.package
            assert method in offered
    assert noted_cache is (name in READS_CACHE)


READ_OF_VLLM = {
    "vllm/v1/core/block_pool.py": ("self.num_gpu_blocks = ", "def get_num_free_blocks(self)"),
    "vllm/v1/core/kv_cache_manager.py": ("self.block_pool = ",),
    "vllm/v1/core/sched/scheduler.py": ("self.kv_cache_manager = ",),
}
"""File → the assignments and methods behind what `VllmTimeline.read_cache` reads."""


@MATRIX
def test_the_kv_cache_of_every_structure_has_what_is_read(pytestconfig: pytest.Config) -> None:
    everything = pytestconfig.getoption("--all-releases")
    lacking = [
        (release, text)
        for release in releases_of("vllm", everything=everything)
        for path, texts in READ_OF_VLLM.items()
        for text in texts
        if text not in (releases.release(release, "vllm", tuple(READ_OF_VLLM)) / path).read_text("utf-8")
    ]
    scheduler = "sglang/srt/managers/scheduler.py"
    for release in releases_of("sglang", everything=everything):
        source = releases.release_file(release, scheduler, "sglang").decode()
        texts = ("self.max_total_num_tokens", "self.tree_cache", "self.token_to_kv_pool")
        lacking += [(release, text) for text in texts if text not in source]
    assert lacking == []


def _is_recorder(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == "_RlpatchTimeline"


@pytest.mark.parametrize(
    ("words", "window"),
    [
        pytest.param(("verl==0.9.1", "--micro-batch", "0:2"), "update-policy", marks=MATRIX),
        (("vllm==0.33.0", "--decode", "30:60"), "rollout"),
        pytest.param(("sglang==0.5.23", "--decode", "30:60"), "rollout", marks=MATRIX),
        pytest.param(("vllm-ascend==0.11.0rc1", "--decode", "30:60"), "rollout", marks=MATRIX),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_window_and_the_timeline_go_in_together_and_out_in_any_order(
    words: tuple[str, ...], window: str, tmp_path: Path
) -> None:
    name, _, release = words[0].partition("==")
    root = install(upstream(name), release, tmp_path / "site")
    pristine, common = picture(root), ("--path", root)
    planned = run("diff", name, *words[1:], "--timeline", *common).stdout_bytes
    done = run("apply", *words, "--timeline", "--json", *common)
    assert [target["stage"] for target in json.loads(done.stdout)["result"]["targets"]] == [window, "timeline"]
    assert run("diff", *common).stdout_bytes == planned
    both = picture(root)
    again = run("apply", *words, "--timeline", *common)
    assert "registered again" not in again.stdout
    for first, second in ((window, "timeline"), ("timeline", window)):
        run("revert", name, "--stage", first, *common)
        (left,) = json.loads(run("status", "--json", *common).stdout)["result"]["patches"]
        assert left["stage"] == second
        assert {file["state"] for file in left["files"]} == {"intact"}
        run("revert", name, *common)
        assert picture(root) == pristine
        run("apply", *words, "--timeline", *common)
        assert set(picture(root)) == set(both)
    # One after the other patches the same files, but the window then keeps none of its pauses in the timeline.
    at_once = {path: (root / path).read_text() for path in _patched(name, root)}
    run("revert", name, *common)
    run("apply", *words, *common)
    run("apply", name, "--timeline", *common)
    apart = {path: (root / path).read_text() for path in _patched(name, root)}
    assert apart.keys() == at_once.keys()
    noted = '"window saved"'
    assert any(noted in text for text in at_once.values())
    assert not any(noted in text for text in apart.values())


def _patched(name: str, root: Path) -> list[str]:
    patches = json.loads(run("status", "--json", "--path", root).stdout)["result"]["patches"]
    return [file["path"] for patch in patches if patch["target"] == name for file in patch["files"]]


def test_of_several_targets_each_takes_what_it_knows(tmp_path: Path) -> None:
    root = install(upstream("vllm"), "0.33.0", tmp_path / "site")
    install_beside = install(upstream("verl"), "0.9.1", tmp_path / "other")
    for part in install_beside.iterdir():
        part.rename(root / part.name)
    done = run("apply", "vllm", "verl", "--decode", "30:60", "--timeline", "--json", "--path", root)
    targets = [(target["target"], target["stage"]) for target in json.loads(done.stdout)["result"]["targets"]]
    assert targets == [("vllm", "rollout"), ("vllm", "timeline"), ("verl", "timeline")]


@pytest.mark.parametrize(
    ("words", "cause", "hint"),
    [
        (
            ("--timeline", "--level", "level2"),
            "--level cannot be used: --timeline uses neither",
            "leave out --level",
        ),
        (
            ("--timeline", "--rollout", "2"),
            "--rollout cannot be used: --timeline uses neither",
            "add a window",
        ),
        (
            ("--stage", "timeline", "--decode", "1:2"),
            "--decode cannot be used: --timeline uses neither",
            "leave out --decode",
        ),
        (
            ("--timeline", "--max-timeline-mb", "0"),
            "--max-timeline-mb 0 is not a whole number from 1 to",
            "--max-timeline-mb 2",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_it_does_not_have_is_refused(words: tuple[str, ...], cause: str, hint: str, tmp_path: Path) -> None:
    root = install(upstream("vllm"), "0.33.0", tmp_path / "site")
    pristine = picture(root)
    said = run("apply", "vllm", *words, "--path", root, code=2).stderr
    assert cause in said
    assert hint in said
    assert picture(root) == pristine


def test_a_release_without_it_is_refused(tmp_path: Path) -> None:
    root = install(upstream("verl"), "0.5.0", tmp_path / "site")
    said = run("apply", "verl", "--timeline", "--path", root, code=3).stderr
    assert "verl 0.5.0" in said


@pytest.mark.parametrize("kind", [TimelineRecorder, VllmTimeline, SglangTimeline])
def test_what_the_user_chose_stands_at_its_head(kind: type[TimelineRecorder], tmp_path: Path) -> None:
    name = {TimelineRecorder: "verl", VllmTimeline: "vllm", SglangTimeline: "sglang"}[kind]
    root = install(upstream(name), releases_of(name, everything=True)[-1], tmp_path / "site")
    words = ("--timeline", "--max-timeline-mb", "7", "--ranks", "0,8", "--save-path", "/data/traces")
    run("apply", name, *words, "--path", root)
    text = (root / upstream(name).project.package / "__init__.py").read_text("utf-8")
    assert 'SAVE_PATH = "/data/traces"' in text
    assert 'MAX_TIMELINE_MB = "7"' in text
    assert ('RANKS = "0,8"' in text) is (kind is not TimelineRecorder)
    assert "at most 7 MB" in text
    (patch,) = json.loads(run("status", "--json", "--path", root).stdout)["result"]["patches"]
    assert patch["options"] == list(words)


@pytest.mark.parametrize(
    "one", [one for one in upstreams() if one.project.name in NAMES], ids=lambda one: one.project.name
)
def test_a_release_that_is_not_known_needs_a_site_beside_the_recorder(one: Upstream, tmp_path: Path) -> None:
    package = tmp_path / "site" / one.project.package
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "99.0"\n')
    said = run("apply", one.project.name, "--timeline", "--path", tmp_path / "site", code=3).stderr
    assert f"{one.project.name} 99.0" in said
    assert "skipped " in said


WORKER = """
class Worker:
    def execute_model(self, scheduler_output):
        return scheduler_output

    def sleep(self, level=1):
        raise KeyError(level)
"""
SCHEDULER = """
class Scheduler:
    def update_from_output(self, scheduler_output, model_runner_output):
        return {}
"""
START = """
import contextlib
import vllm.v1.worker.gpu_worker as worker
with contextlib.suppress(KeyError): worker.Worker().sleep()
"""


@pytest.fixture
def fork(tmp_path: Path) -> Path:
    """A vLLM of somebody's own, as small as can be."""
    site = tmp_path / "site"
    for package in ("vllm", "vllm/v1", "vllm/v1/worker", "vllm/v1/core/sched"):
        (site / package).mkdir(parents=True)
        (site / package / "__init__.py").write_text("")
    (site / "vllm/v1/core/sched/scheduler.py").write_text(SCHEDULER)
    (site / "vllm/v1/worker/gpu_worker.py").write_text(WORKER)
    return site


def _rlpatch(*words: object, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "patcher", *map(str, words)]
    environ = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{site}"}
    return subprocess.run(command, env=environ, cwd=site.parent, capture_output=True, text=True)


def test_an_iteration_is_in_the_timeline_before_an_optional_window_asks_for_its_id(tmp_path: Path) -> None:
    """As `rlpatch diagnose` patches both; the newest line at the start of a method runs first."""
    root = install(upstream("vllm"), "0.33.0", tmp_path / "site")
    window = ProfileRequest((Window("iterations", 0, 0, none=True),), {"stage": "rollout", "on_demand": True})
    request = ProfileRequest((), {"timeline": True}, (window._replace(beside_timeline=True),))
    search = SearchOptions(path=(root,))
    ((_, edit),) = edits_by_root(plan(find_candidates(["vllm"], search, request, "run")).values)
    worker = next(change.after for change in edit.changes if change.path.name == "gpu_worker.py").decode()
    body = worker[worker.index("def execute_model") :]
    assert 0 < body.index("_rlpatch_timeline") < body.index("_rlpatch_rollout")


def test_a_run_carries_it_and_leaves_the_files_as_they_are(fork: Path, tmp_path: Path) -> None:
    before = picture(fork)
    words = ("vllm", "--timeline", "--path", fork, "--save-path", tmp_path / "traces")
    done = _rlpatch("run", *words, "--", sys.executable, "-B", "-c", START, site=fork)
    assert done.returncode == 0, done.stderr
    assert "rlpatch run: vllm was patched in 1 process" in done.stderr
    assert picture(fork) == before
    ((header, line),) = files_of(tmp_path / "traces")
    assert header["package"] == "vllm"
    assert Path(header["run"]).name == "sitecustomize"
    assert [row[2:4] for row in line["spans"]] == [["sleep", "sleep"]]


def test_a_bundle_carries_it_and_takes_it_out_again(fork: Path, tmp_path: Path) -> None:
    (fork / "vllm/_version.py").write_text('version = __version__ = "0.33.0"\n')
    pristine, bundle = picture(fork), tmp_path / "bundle.py"
    made = _rlpatch("bundle", "vllm", "--timeline", "--path", fork, "-o", bundle, site=fork)
    assert made.returncode == 0, made.stderr
    for command, there in (("apply", True), ("revert", False)):
        words = [sys.executable, str(bundle), command, "--path", str(fork)]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (b"_RlpatchTimeline" in (fork / "vllm/__init__.py").read_bytes()) is there
    assert picture(fork) == pristine


def test_a_bundle_of_a_window_and_the_timeline_is_refused(tmp_path: Path) -> None:
    root = install(upstream("vllm"), "0.33.0", tmp_path / "site")
    words = ("vllm", "--decode", "3:5", "--timeline", "--path", root, "-o", tmp_path / "bundle.py")
    assert (
        "a bundle can have only one patch per target: a recording window or a timeline"
        in run("bundle", *words, code=2).stderr
    )
    assert not (tmp_path / "bundle.py").exists()


def test_a_process_that_has_imported_the_package_before_goes_on(fork: Path, tmp_path: Path) -> None:
    """Its modules come later, with lines that look for a recorder which is not there."""
    code = """
import subprocess, sys
import vllm
words = ["apply", "vllm", "--timeline", "--path", sys.argv[1], "--save-path", sys.argv[2]]
subprocess.run([sys.executable, "-m", "patcher", *words], check=True, stdout=subprocess.DEVNULL)
import vllm.v1.worker.gpu_worker as worker
assert "_rlpatch" in worker.Worker.sleep.__code__.co_varnames
assert worker.Worker().execute_model(7) == 7
try: worker.Worker().sleep(3)
except KeyError as error: print("went on", error)
"""
    command = [sys.executable, "-B", "-c", code, str(fork), str(tmp_path / "traces")]
    environ = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{fork}"}
    done = subprocess.run(command, env=environ, cwd=fork.parent, capture_output=True, text=True)
    assert done.stdout == "went on 3\n", done.stderr
    assert not (tmp_path / "traces").exists()
