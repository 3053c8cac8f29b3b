"""vLLM: every release, patched, reviewed, loaded and put back; the ends of the structures in the short run."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from fixtures import releases
from patcher.config import WHOLE
from patches import vllm_engine
from patches.probes import vllm as vllm_probes
from patches.vllm import recipes as vllm
from tests.matrix import ends, of_releases, thinned
from tests.patches.command_line import install, run, there_and_back


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "release" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--all-releases")
        cases = releases.VLLM if everything else releases.VLLM_SAMPLE
        metafunc.parametrize("release", thinned(cases, ends(cases)))


def test_the_recipes_know_every_published_release() -> None:
    assert vllm.UPSTREAM.releases == releases.VLLM
    assert vllm.WORKER.releases == releases.VLLM
    assert vllm.CAPTURE.releases + vllm.INNER_CAPTURE.releases == releases.VLLM


def test_the_sample_has_both_ends_of_every_structure() -> None:
    ends = {s.releases[i].removesuffix(".post2") for r in vllm.UPSTREAM.recipes for s in r.structures for i in (0, -1)}
    assert ends == {version.removesuffix(".post2") for version in releases.VLLM_SAMPLE}


def test_what_is_settled_of_a_release_stands_in_its_sources(release: str) -> None:
    root = releases.release(release, "vllm", releases.VLLM_SCHEDULER_PARTS)
    handed = fields(root / "vllm/v1/core/sched/output.py")
    new, cached, output = (handed[name] for name in ("NewRequestData", "CachedRequestData", "SchedulerOutput"))
    warmup = root / "vllm/v1/worker/gpu/warmup.py"
    by_object = output["scheduled_cached_reqs"].startswith("list[")
    by_list = "resumed_from_preemption" in cached
    assert "resumed_req_ids" in cached or by_list
    resumed = vllm_probes.ResumedRequests if by_object else vllm_probes.ResumedFlags if by_list else None
    prompt: type = vllm_probes.PrefillTokens if "prefill_token_ids" in new else vllm_probes.PromptTokens
    if "prefill_token_ids" not in new and "prompt_embeds" in new:
        prompt = vllm_probes.PromptEmbeds
    assert vllm_engine.scheduler_output_parts(release) == (resumed or vllm_probes.ResumedNames, prompt)
    assert bool(vllm_engine.warm_ups(release)) == (warmup.exists() and "_warmup_" in warmup.read_text())
    assert output["finished_req_ids"] == "set[str]"
    files = (root / "vllm/config.py", root / "vllm/config/__init__.py", root / "vllm/config/parallel.py")
    parallel = next(found["ParallelConfig"] for file in files if "ParallelConfig" in (found := fields(file)))
    assert "data_parallel_rank" in parallel, "which has the number before there was an index"


@pytest.mark.parametrize(
    ("candidate", "settled"),
    [
        ("0.9.1", "ResumedRequests PromptTokens"),
        ("0.9.2rc1", "ResumedFlags PromptTokens"),
        ("0.10.2rc1", "ResumedFlags PromptTokens"),
        ("0.11.0rc0", "ResumedFlags PromptEmbeds"),
        ("0.12.0rc1", "ResumedNames PrefillTokens"),
        ("0.17.0rc1", "ResumedNames PrefillTokens WarmUps"),
        ("", "ResumedSomehow AnyPrompt WarmUps"),
    ],
)
def test_a_candidate_of_vllm_ascend_has_what_the_release_of_vllm_has(candidate: str, settled: str) -> None:
    kinds = (*vllm_engine.scheduler_output_parts(candidate), *vllm_engine.warm_ups(candidate))
    assert " ".join(kind.__name__ for kind in kinds) == settled


def fields(file: Path) -> dict[str, dict[str, str]]:
    """The classes of a file with their fields and the types of those; nothing if there is no file."""
    classes = [
        node for node in ast.parse(file.read_text() if file.exists() else "").body if isinstance(node, ast.ClassDef)
    ]
    return {
        node.name: {
            ast.unparse(one.target): ast.unparse(one.annotation) for one in node.body if isinstance(one, ast.AnnAssign)
        }
        for node in classes
    }


@pytest.mark.usefixtures("unwatched")
def test_apply_and_revert_restore_every_byte(release: str, tmp_path: Path) -> None:
    root = install(vllm.UPSTREAM, release, tmp_path / "site")
    there_and_back(vllm.UPSTREAM, release, "rollout", "decode", root, tmp_path)
    there_and_back(vllm.UPSTREAM, release, "graph-capture", WHOLE, root, tmp_path)


@pytest.mark.parametrize(
    ("version", "gpu", "cpu"),
    of_releases(
        ends(releases.VLLM),
        [
            ("0.8.5", "execute_model, sleep, profile", None),
            ("0.9.1", "execute_model, sleep, profile", "execute_model"),
            ("0.11.0.post2", "execute_model, sleep, profile", ""),
            ("0.11.1", "execute_model, sleep, profile", "profile"),
            ("0.30.0", "execute_model, sleep, profile", "profile"),
            ("0.33.0", "execute_model, sleep, profile", ""),
        ],
    ),
)
def test_a_line_stands_in_every_method_that_upstream_calls(
    version: str, gpu: str, cpu: str | None, tmp_path: Path
) -> None:
    root = install(vllm.UPSTREAM, version, tmp_path / "site")
    run("apply", "vllm", "--decode", "30:60", "--path", root)
    workers = root / "vllm" / "v1" / "worker"
    assert called(workers / "gpu_worker.py") == gpu
    assert (workers / "cpu_worker.py").exists() == (cpu is not None)
    if cpu is not None:
        assert called(workers / "cpu_worker.py") == cpu


def called(file: Path, stage: str = "rollout") -> str:
    """The methods of a file with a call of ours, in the order of execute_model, sleep, profile."""
    methods = set()
    for line in file.read_text().splitlines():
        if line.startswith("    def "):
            method = line.split()[1].partition("(")[0]
        if line.endswith(f"# rlpatch: vllm {stage}"):
            methods.add(method)
    return ", ".join(sorted(methods, key=["execute_model", "sleep", "profile", *sorted(methods)].index))


@pytest.mark.parametrize(
    ("version", "gpu", "cpu"),
    of_releases(
        ends(releases.VLLM),
        [
            ("0.8.5", "compile_or_warm_up_model", None),
            ("0.9.1", "compile_or_warm_up_model", "compile_or_warm_up_model"),
            ("0.19.1", "compile_or_warm_up_model", "compile_or_warm_up_model"),
            ("0.20.0", "compile_or_warm_up_model", "determine_available_memory"),
            ("0.32.0", "compile_or_warm_up_model", "determine_available_memory"),
            ("0.33.0", "_compile_or_warm_up_model", "determine_available_memory"),
        ],
    ),
)
@pytest.mark.parametrize("known", [True, False], ids=["published", "development"])
def test_the_capture_is_recorded_where_upstream_runs_it(
    version: str, gpu: str, cpu: str | None, known: bool, tmp_path: Path
) -> None:
    """A development build is taken by its structure: of the recipes for one file exactly one fits."""
    root = install(vllm.UPSTREAM, version, tmp_path / "site")
    if not known:
        for record in root.glob("*.dist-info"):
            (record / "METADATA").write_text(f"Name: vllm\nVersion: {version}.dev1908+g67dd255\n")
        (root / "vllm" / "_version.py").unlink()
    said = run("apply", "vllm", "--stage", "graph-capture", "--path", root)
    assert ("rlpatch was not tested with" in said.output) != known
    workers = root / "vllm" / "v1" / "worker"
    assert called(workers / "gpu_worker.py", "graph-capture") == gpu
    assert cpu is None or called(workers / "cpu_worker.py", "graph-capture") == cpu
    lines = (workers / "gpu_worker.py").read_text().splitlines()
    (at,) = [
        n
        for n, line in enumerate(lines)
        if line.endswith(" = self.model_runner.capture_model()") or line.strip() == "self.model_runner.capture_model()"
    ]
    assert [lines[n].strip() for n in (at - 1, at + 1)] == [
        'self._rlpatch_graph_capture("enter", "capture_model")  # rlpatch: vllm graph-capture',
        'self._rlpatch_graph_capture("leave")  # rlpatch: vllm graph-capture',
    ]


@pytest.mark.parametrize("unit", ["decode", "prefill", "iterations"])
def test_the_default_is_torch_and_npu_can_be_had(unit: str, tmp_path: Path) -> None:
    root = install(vllm.UPSTREAM, "0.33.0", tmp_path / "site")
    file = root / "vllm" / "v1" / "worker" / "gpu_worker.py"
    run("apply", "vllm", f"--{unit}", "30:60", "--path", root)
    assert "from torch import profiler" in file.read_text()
    run("apply", "vllm", f"--{unit}", "30:60", "--tool", "npu", "--level", "level2", "--path", root)
    assert "profiler.ProfilerLevel.Level2" in file.read_text()
    assert "from torch import profiler" not in file.read_text().replace("from torch_npu import profiler", "")


def test_beside_vllm_ascend_the_report_names_the_worker_that_runs(tmp_path: Path) -> None:
    root = install(vllm.UPSTREAM, "0.33.0", tmp_path / "site")
    alone = run("apply", "vllm", "--decode", "30:60", "--path", root)
    assert "vllm-ascend" not in alone.output
    for package in ("vllm_ascend", "torch_npu"):
        (root / package).mkdir()
        (root / package / "__init__.py").touch()
    beside = run("apply", "vllm", "--decode", "30:60", "--path", root)
    assert "on NPUs, use `rlpatch apply vllm-ascend`: vLLM's worker does not run there" in beside.output
    assert "from torch_npu import profiler" in (root / "vllm/v1/worker/gpu_worker.py").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--level", "level1"), "--level is not supported by torch.profiler"),
        (("--aic-metrics", "memory"), "--aic-metrics is not supported by torch.profiler"),
        (("--export-type", "db"), "--export-type is not supported by torch.profiler"),
        (("--mstx",), "--mstx is not supported by torch.profiler"),
    ],
)
def test_what_torch_does_not_have_is_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    root = install(vllm.UPSTREAM, "0.33.0", tmp_path / "site")
    refused = run("apply", "vllm", "--decode", "30:60", *words, "--path", root, code=2)
    assert said in refused.stderr


def test_a_build_from_source_is_taken_by_its_structure(tmp_path: Path) -> None:
    root = install(vllm.UPSTREAM, "0.33.0", tmp_path / "site")
    for record in root.glob("*.dist-info"):
        (record / "METADATA").write_text("Name: vllm\nVersion: 0.34.0rc2.dev1908+g67dd255\n")
    (root / "vllm" / "_version.py").unlink()
    applied = run("apply", "vllm", "--decode", "30:60", "--json", "--path", root)
    (target,) = json.loads(applied.stdout)["result"]["targets"]
    assert [file["path"] for file in target["files"]] == ["vllm/v1/worker/gpu_worker.py"]
    assert target["warnings"]


@pytest.mark.parametrize(
    ("version", "environ", "words", "state"),
    [
        ("0.12.0", {"VLLM_TORCH_PROFILER_DIR": "/tmp/x"}, (), "armed"),
        ("0.15.1", {"VLLM_TORCH_PROFILER_DIR": "/tmp/x"}, (), "armed"),
        ("0.16.0", {"VLLM_TORCH_PROFILER_DIR": "/tmp/x"}, (), "off"),
        ("0.12.0", {}, ("vllm", "serve", "m", "--profiler-config.profiler", "torch"), "off"),
        ("0.16.0", {}, ("vllm", "serve", "m", "--profiler-config.profiler", "torch"), "armed"),
        ("0.33.0", {}, ("vllm", "serve", "m", "--profiler-config", '{"profiler": "torch"}'), "armed"),
        ("0.33.0", {}, ("vllm", "serve", "m", "--profiler-config", '{"profiler": null}'), "off"),
    ],
)
def test_the_guards_know_the_engines_own_profiler(
    version: str,
    environ: dict[str, str],
    words: tuple[str, ...],
    state: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = install(vllm.UPSTREAM, version, tmp_path / "site")
    monkeypatch.delenv("VLLM_TORCH_PROFILER_DIR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    said = run("check", "vllm", "--path", root, *(("--", *words) if words else ()))
    assert re.findall(r"(\w+) the engine's own profiler", said.output) == [state]
