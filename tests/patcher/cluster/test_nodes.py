"""Commands on all nodes, or none: what they do, say, and leave behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from patcher.cluster.node_group import Answer
from patcher.cluster.nodes import Nodes
from patcher.commands.finding import SearchOptions
from patcher.messages.errors import Kind, Problem
from patcher.processes import RunningProcess
from patcher.store import STORE
from tests.patcher.cli.conftest import SOURCE, WORKER, release
from tests.patcher.cluster.processes import Death, Processes, nodes
from tests.patcher.store.tree import picture

Sites = dict[str, Path]
Ray = Callable[..., Result]
APPLY = ("apply", "vllm-ascend", "--decode", "30:60")


def workers(sites: Sites) -> set[bytes]:
    return {(site / WORKER).read_bytes() for site in sites.values()}


def test_apply_a_second_stage_and_revert_are_the_same_on_all_nodes(ray: Ray, sites: Sites) -> None:
    before = [picture(site) for site in sites.values()]
    said = ray(*APPLY).stdout
    assert "on 3 nodes (n1, n2, n3):" in said
    (patched,) = workers(sites)
    assert b"rlpatch vllm-ascend rollout" in patched
    assert "next: `rlpatch diff vllm-ascend --ray`" in said
    ray("apply", "vllm-ascend", "--stage", "graph-capture")
    (both,) = workers(sites)
    assert both.count(b">>> rlpatch") > patched.count(b">>> rlpatch")
    ray("revert", "--stage", "graph-capture")
    assert workers(sites) == {patched}
    ray("revert")
    assert [picture(site) for site in sites.values()] == before


def test_status_has_a_table_and_says_what_is_alike_once(ray: Ray, sites: Sites) -> None:
    ray(*APPLY)
    worker = sites["n2"] / WORKER
    worker.write_bytes(worker.read_bytes() + b"# theirs\n")
    said = ray("status").stdout
    assert [line.split()[:2] for line in said.splitlines()[2:5]] == [
        ["n1", "patched"],
        ["n2", "edited"],
        ["n3", "patched"],
    ]
    assert "rlpatch apply vllm-ascend --decode 30:60" in said
    assert "rlpatch apply vllm-ascend --decode 30:60" in said
    found = json.loads(ray("status", "--json").stdout)["result"]["nodes"]
    assert [entry["state"] for entry in found] == ["patched", "edited", "patched"]
    assert found[0]["targets"] == {"vllm-ascend": "0.11.0rc1"}


def test_diff_is_the_one_of_all_nodes(ray: Ray, sites: Sites) -> None:
    planned = ray("diff", "vllm-ascend", "--decode", "30:60").stdout
    ray(*APPLY)
    assert planned.splitlines()[0] == f"diff --git a/{WORKER} b/{WORKER}"
    assert ray("diff").stdout.count("diff --git") == 1
    (sites["n3"] / WORKER).write_bytes(b"# theirs\n" + (sites["n3"] / WORKER).read_bytes())
    assert "--nodes n1" in ray("diff", code=2).stderr


def test_paths_are_those_of_the_nodes(ray: Ray, sites: Sites) -> None:
    for words in (("apply", "vllm-ascend", "--decode", "30:60"), ("status",), ("revert", "--dry-run"), ("revert",)):
        result = ray(*words, "--json")
        assert "rlpatch-nodes-" not in result.stdout + result.stderr
        assert str(sites["n1"]) in result.stdout


def test_a_dry_run_changes_nothing(ray: Ray, sites: Sites) -> None:
    before = [picture(site) for site in sites.values()]
    assert "would patch" in ray(*APPLY, "--dry-run").stdout
    assert [picture(site) for site in sites.values()] == before


def test_a_node_that_joins_late_is_evened_out(ray: Ray, group: Processes, sites: Sites, tmp_path: Path) -> None:
    ray(*APPLY)
    times = {name: (site / WORKER).stat().st_mtime_ns for name, site in sites.items()}
    group.sites["n4"] = release(tmp_path / "n4" / "site")
    assert "n4     as released" in ray("status").stdout
    ray(*APPLY)
    assert len(workers(group.sites)) == 1
    assert {name: (sites[name] / WORKER).stat().st_mtime_ns for name in times} == times
    ray(*APPLY)
    assert "commit" not in group.called  # nothing was to be done


def another_release(site: Path) -> None:
    info = site / "vllm_ascend-0.11.0rc1.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-ascend\nVersion: 0.12.0rc1\n")
    info.rename(site / "vllm_ascend-0.12.0rc1.dist-info")


def no_target(site: Path) -> None:
    (site / "vllm_ascend").rename(site / "other")


def edited(site: Path) -> None:
    (site / WORKER).write_text(SOURCE.replace("execute_model", "execute"))


def damaged(site: Path) -> None:
    (site / STORE).mkdir()
    (site / STORE / "state.json").write_text("{")


def pending(site: Path) -> None:
    damaged(site)


HINDRANCES = {
    "another release": (another_release, "vllm-ascend==0.11.0rc1", 3, "the installed vllm-ascend is 0.12.0rc1"),
    "another release, none asked": (another_release, "vllm-ascend", 3, "0.11.0rc1 on n1, n3; 0.12.0rc1 on n2"),
    "no target": (no_target, "vllm-ascend", 3, "leave out the nodes that lack the target, or"),
    "another structure": (edited, "vllm-ascend", 4, "n2"),
    "a damaged store": (damaged, "vllm-ascend", 5, "n2"),
}


@pytest.mark.parametrize("case", HINDRANCES)
def test_what_stops_one_node_stops_all_and_names_it(ray: Ray, sites: Sites, case: str) -> None:
    hinder, word, code, said = HINDRANCES[case]
    hinder(sites["n2"])
    before = [picture(site) for site in sites.values()]
    stderr = ray("apply", word, "--decode", "30:60", code=code).stderr
    assert said in stderr
    assert "n2" in stderr
    assert [picture(site) for site in sites.values()] == before


def test_all_nodes_with_a_problem_are_named_together(ray: Ray, sites: Sites) -> None:
    no_target(sites["n1"])
    no_target(sites["n3"])
    (sites["n1"].parent / "site" / "vllm_ascend-0.11.0rc1.dist-info").rename(sites["n1"] / "gone")
    assert {"n1", "n3"} <= set(ray(*APPLY, code=3).stderr.replace(",", " ").replace(":", " ").split())


def test_nodes_without_the_target_can_be_left_out_and_are_counted(ray: Ray, sites: Sites) -> None:
    no_target(sites["n3"])
    result = ray(*APPLY, "--nodes", "has-target,n1,n2,n3")
    assert "skipped 1 of 3 nodes, because none of the targets is installed there: n3" in result.stderr
    assert "on 2 nodes (n1, n2):" in result.stdout


def test_where_no_node_has_the_target_none_is_left(ray: Ray, sites: Sites) -> None:
    for site in sites.values():
        no_target(site)
    stderr = ray(*APPLY, "--nodes", "has-target", code=3).stderr
    assert "\n  at n1, n2, n3" in stderr


def test_engines_that_run_are_told_with_their_nodes(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patcher.processes.running", lambda *_known: (RunningProcess("17 vllm serve"),))
    said = ray(*APPLY, "--nodes", "n1,n2").stdout
    assert "\n  n1: 17 vllm serve\n  n2: 17 vllm serve\n" in said
    assert "2 of 2 nodes" in ray("status", "--nodes", "n1,n2").stderr


def test_packages_beside_a_target_that_its_recipes_ask_for_are_known_of_the_nodes(
    group: Processes, sites: Sites
) -> None:
    for site in sites.values():
        for package in ("vllm", "torch"):
            (site / package).mkdir()
            (site / package / "__init__.py").touch()
    machines = nodes(group)
    try:
        ((search,), _) = machines.searches(["vllm"], "apply", writes=False)
        _, target = search.find("vllm", "apply")
        packages = ("torch", "torch_npu", "vllm_ascend")
        assert [package for package in packages if target.beside(package)] == ["torch", "vllm_ascend"]
    finally:
        machines.close()


def test_a_node_that_cannot_be_written_stops_all(ray: Ray, sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    from patcher.store import transaction

    real = transaction.preflight

    def preflight(edits):
        if any(edit.root == sites["n2"] for edit in edits):
            raise Problem(Kind.ENVIRONMENT, "the folder is read-only", str(sites["n2"]), "mount it again")
        return real(edits)

    monkeypatch.setattr(transaction, "preflight", preflight)
    before = [picture(site) for site in sites.values()]
    for more in ((), ("--dry-run",)):
        assert f"n2: {sites['n2']}" in ray(*APPLY, *more, code=5).stderr
    assert [picture(site) for site in sites.values()] == before


def test_two_nodes_that_see_one_tree_patch_it_once(ray: Ray, group: Processes, sites: Sites, tmp_path: Path) -> None:
    group.sites = {"n1": sites["n1"], "n2": sites["n2"], "n3": sites["n2"], "n4": sites["n2"]}
    said = ray(*APPLY).stdout
    assert "files were changed on 4 nodes, in 2 different folders" in said
    assert said.count("so the files were written only once") == 2
    assert len(workers(group.sites)) == 1
    assert not [path for site in sites.values() for path in site.rglob("tree-*")]
    ray("revert")
    assert workers(group.sites) == {SOURCE.encode()}
    assert not any((site / STORE).exists() for site in sites.values())


def test_a_working_directory_with_the_package_is_told(ray: Ray, tmp_path: Path) -> None:
    release(tmp_path, version="0.11.0rc1")
    result = ray(*APPLY, "-v")
    assert "a Ray job imports vllm_ascend from this folder" in result.stderr
    assert "--path ." in result.stderr


def test_a_profiler_that_is_on_in_the_environment_of_a_node_stops_all(
    ray: Ray, sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROFILING_MODE", "true")
    assert "n1, n2, n3" in ray("check", code=8).stderr
    ray(*APPLY, code=8)
    assert workers(sites) == {SOURCE.encode()}


@pytest.mark.parametrize(
    ("typed", "again"),
    [
        ("status --nodes n1", "rlpatch status --ray auto --nodes n1"),
        ("recover --json --nodes=n2", "rlpatch recover --ray auto --json --nodes=n2"),
    ],
)
def test_nodes_without_ray_are_an_error(ray: Ray, typed: str, again: str) -> None:
    from patcher.cli import rlpatch
    from tests.patcher.cli.conftest import runner

    result = runner().invoke(rlpatch, typed.split())
    assert result.exit_code == 2
    assert again in result.stderr + result.stdout


def test_the_files_of_a_timeline_are_brought_together(group: Processes, tmp_path: Path) -> None:
    there, here = (tmp_path / name / "timeline" for name in ("traces", "here"))  # all nodes see the first one
    there.mkdir(parents=True)
    files = {"n1_7_123.jsonl.gz": b"one", "n1_7_123.jsonl.gz.old": b"older", "n2_8_124.jsonl.gz": b"two"}
    for name, text in {**files, "other.txt": b""}.items():
        (there / name).write_bytes(text)
    nodes = Nodes(group, SearchOptions())
    assert nodes.gather(there.parent, there.parent).lines == ()  # they are there already
    assert nodes.gather(there.parent, here.parent).lines == (f"copied 3 files to {here}",)
    assert {path.name: path.read_bytes() for path in here.iterdir()} == files
    (there / "n2_8_124.jsonl.gz").write_bytes(b"two and more")
    assert nodes.gather(there.parent, here.parent).lines == (f"copied 1 file to {here}",)
    assert (here / "n2_8_124.jsonl.gz").read_bytes() == b"two and more"


def test_a_name_that_leads_elsewhere_is_not_written(group: Processes, tmp_path: Path, monkeypatch: Any) -> None:
    names = ("../up.jsonl.gz", "/abs.jsonl.gz", "a b.jsonl.gz", "good_1_2.jsonl.gz")
    answers = {"n1": Answer(dict.fromkeys(names, b"x"))}
    monkeypatch.setattr(group, "call", lambda *_words: answers)
    gathered = Nodes(group, SearchOptions()).gather(tmp_path, tmp_path / "here")
    assert gathered.lines == (f"copied 1 file to {tmp_path}/here/timeline",)
    assert [path.name for path in (tmp_path / "here").rglob("*.gz")] == ["good_1_2.jsonl.gz"]
    assert not (tmp_path / "up.jsonl.gz").exists()


def test_a_node_that_does_not_answer_is_named(group: Processes, tmp_path: Path) -> None:
    group.deaths = [Death("n2", "timeline")]
    (problem,) = Nodes(group, SearchOptions()).gather(tmp_path, tmp_path).problems
    assert "n2" in str(problem)
