"""The settings of the framework's own profiler: what the commands say of them, and that they go and come as a patch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.patcher.cli.conftest import SOURCE, WORKER, release
from tests.patcher.store.tree import picture

LEVEL = ("--builtin", "--level", "level2", "--aic-metrics", "memory")
COUNTED = ("--decode", "30:60", "--save-path", "/tmp/traces")


def files(result: Any) -> list[dict[str, Any]]:
    (target,) = json.loads(result.stdout)["result"]["targets"]
    return list(target["files"])


def test_each_setting_is_named_and_how_the_profiler_is_switched_on(run, site: Path) -> None:
    pristine = picture(site)
    said = run("apply", "vllm-ascend", *LEVEL, "--contents", "npu,cpu", "--path", site).stdout
    for line in (
        "  patched vllm_ascend/worker/worker_v1.py, 4 of the 7 arguments of the profiler changed",
        "    aic_metrics: torch_npu.profiler.AiCMetrics.AiCoreNone → torch_npu.profiler.AiCMetrics.Memory",
        ".ProfilerLevel.Level1 → torch_npu.profiler.ProfilerLevel.Level2 (vllm_ascend/worker/worker_v1.py:23)\n",
        "    activities: not set → [torch_npu.profiler.ProfilerActivity.CPU, torch_npu.profiler.ProfilerActivity.NPU]",
        "    with_stack: envs.STACK → False (vllm_ascend/worker/worker_v1.py:30)",
        "    profile_memory: already False",
        "  Sets --level level2 --contents npu,cpu --aic-metrics memory of the framework's own profiler",
        "  this setting alone records nothing: switch the engine's own profiler on as usual, with VLLM_TORCH_PROFILER_DIR",
    ):
        assert line in said
    assert "traces of" not in said
    assert "rank" not in said
    assert "intact" in run("status", "--path", site).stdout
    assert f"rlpatch apply vllm-ascend {' '.join(LEVEL[:3])} --contents" in run("status", "--path", site).stdout
    shown = run("diff", "--path", site).stdout
    assert "-            profiler_level=torch_npu.profiler.ProfilerLevel.Level1,\n" in shown
    assert "+            # was: profiler_level=torch_npu.profiler.ProfilerLevel.Level1,  # rlpatch: vllm-asc" in shown
    assert (
        "+            profiler_level=torch_npu.profiler.ProfilerLevel.Level2,  # rlpatch: vllm-ascend builtin\n"
        in shown
    )
    run("revert", "--path", site)
    assert picture(site) == pristine


def test_other_settings_replace_those_before_and_the_released_ones_take_them_out(run, site: Path) -> None:
    pristine = picture(site)
    run("apply", "vllm-ascend", *LEVEL, "--path", site)
    first = (site / WORKER).read_bytes()
    again = run("apply", "vllm-ascend", *LEVEL, "--path", site)
    assert "  unchanged vllm_ascend" in again.stdout
    assert (site / WORKER).read_bytes() == first
    run("apply", "vllm-ascend", "--builtin", "--mstx", "--path", site)
    assert b"Level2" not in (site / WORKER).read_bytes()
    assert b"            msprof_tx=True,  # rlpatch: vllm-ascend builtin\n" in (site / WORKER).read_bytes()
    back = run("apply", "vllm-ascend", "--builtin", "--level", "level1", "--path", site)
    assert (
        "  patched vllm_ascend/worker/worker_v1.py, no lines inserted, 0 of the 1 arguments of the profiler changed"
        in back.stdout
    )
    assert "rlpatch revert" not in back.stdout
    assert picture(site) == pristine
    assert "no patch was found" in run("status", "--path", site).stdout
    none = run("apply", "vllm-ascend", "--builtin", "--level", "level1", "--path", site)
    assert "  unchanged vllm_ascend" in none.stdout
    assert "    profiler_level: already torch_npu.profiler.ProfilerLevel.Level1" in none.stdout
    assert picture(site) == pristine


def test_a_lost_registry_changes_nothing_about_it(run, site: Path) -> None:
    pristine = (site / WORKER).read_bytes()
    for words in (("revert",), ("apply", "vllm-ascend", "--builtin", "--level", "level1")):
        run("apply", "vllm-ascend", *LEVEL, "--path", site)
        for path in sorted((site / ".rlpatch").rglob("*"), reverse=True):
            path.unlink()
        (site / ".rlpatch").rmdir()
        run(*words, "--path", site)
        assert (site / WORKER).read_bytes() == pristine


@pytest.mark.parametrize("order", [(LEVEL, COUNTED), (COUNTED, LEVEL)])
@pytest.mark.parametrize("first", ["builtin", "rollout"])
def test_a_window_and_the_settings_come_and_go_in_any_order(run, site: Path, order: Any, first: str) -> None:
    pristine = picture(site)
    for words in order:
        run("apply", "vllm-ascend", *words, "--path", site)
    states = json.loads(run("status", "--json", "--path", site).stdout)["result"]["patches"]
    assert {(one["stage"], one["files"][0]["state"]) for one in states} == {
        ("builtin", "intact"),
        ("rollout", "intact"),
    }
    run("revert", "--stage", first, "--path", site)
    (left,) = json.loads(run("status", "--json", "--path", site).stdout)["result"]["patches"]
    assert (left["stage"] != first, left["files"][0]["state"]) == (True, "intact")
    run("revert", "--path", site)
    assert picture(site) == pristine


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, ""),
        (
            {"VLLM_TORCH_PROFILER_DIR": "/x"},
            "own profiler is armed (environment), so the settings of the patch take effect\n  found: VLLM_TORCH_PROFILER_DIR=/x\n",
        ),
        ({"PROFILING_MODE": "1"}, "warning: CANN's msprof is on"),
    ],
)
def test_the_profiler_may_be_on_and_others_are_a_warning(run, site: Path, environ: dict[str, str], said: str) -> None:
    assert said in run("apply", "vllm-ascend", *LEVEL, "-n", "-v", "--path", site, **environ).stderr


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("--builtin",), "with --builtin, name at least one setting to change", "one of --level"),
        (
            ("--builtin", "--decode", "1:2"),
            "--decode cannot be combined with --builtin: the framework's own profiler has no such setting",
            "leave out",
        ),
        ((*LEVEL, "--ranks", "0"), "--ranks cannot be combined with --builtin", "leave out"),
        (
            (*LEVEL, "--markers", "--save-path", "x"),
            "--markers and --save-path cannot be combined with --builtin",
            "leave out",
        ),
        (
            (*LEVEL, "--stage", "rollout"),
            "--builtin cannot be combined with --stage rollout",
            "leave out",
        ),
        (("--builtin", "--level", "level0", *LEVEL[3:]), "has no effect below --level level1", "--level level1"),
        (
            ("--builtin", "--level", "level_none"),
            "records only marks",
            "--mstx",
        ),
    ],
)
def test_what_is_no_setting_of_it_is_refused(run, site: Path, words, said: str, hint: str) -> None:
    for command in ("apply", "diff"):
        refused = run(command, "vllm-ascend", *words, "--path", site, code=2)
        assert said in refused.stderr
        assert hint in refused.stderr


@pytest.mark.parametrize(
    ("edit", "words", "code", "said"),
    [
        ("Level0", ("--aic-metrics", "memory"), 2, "Level0"),
        ("Level0", ("--aic-metrics", "memory", "--level", "level1"), 0, ""),
        ("AiCoreNone", ("--level", "level2"), 0, "PipeUtilization"),
        ("Memory", ("--level", "level0"), 0, "torch_npu collects no AI Core metrics: at"),
        ("Memory", ("--level", "level0", "--aic-metrics", "none"), 0, ""),
        ("", ("--export-type", "db,text"), 0, "--export-type"),
        ("", ("--analysis",), 0, "--analysis"),
    ],
)
def test_what_stays_is_held_against_what_is_asked_for(
    run, tmp_path: Path, edit: str, words, code: int, said: str
) -> None:
    source = SOURCE.replace("Level1" if edit.startswith("Level") else "AiCoreNone", edit) if edit else SOURCE
    site = release(tmp_path / "own", source=source)
    done = run("apply", "vllm-ascend", "--builtin", *words, "--path", site, code=code)
    assert said in done.stderr
    assert ("note:" in done.stderr) == (bool(said) and not code)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--builtin", "--contents", "cpu"), "--builtin is not available for vllm"),
        (("--stage", "nonsense"), "no target has the stage nonsense"),
    ],
)
@pytest.mark.parametrize("targets", [("vllm",), ("vllm-ascend", "vllm")])
def test_no_other_stage_without_a_window_stands_in_for_it(
    run, site: Path, targets: tuple[str, ...], words: tuple[str, ...], said: str
) -> None:
    for file in ("vllm/__init__.py", "vllm/v1/worker/gpu_worker.py"):
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text("")
    pristine = picture(site)
    assert said in run("apply", *targets, *words, "--path", site, code=3).stderr
    assert picture(site) == pristine


def test_a_structure_that_is_not_there_is_named_and_nothing_is_written(run, tmp_path: Path) -> None:
    site = release(tmp_path / "own", source=SOURCE.replace("torch_npu.profiler.profile(", "make("))
    pristine = picture(site)
    done = run("apply", "vllm-ascend", *LEVEL, "--path", site, code=4)
    assert "expected NPUWorker._init_profiler, as in" in done.stderr
    assert "0 calls of torch_npu.profiler.profile in _init_profiler" in done.stderr
    assert f"at {site / WORKER}:20" in done.stderr
    assert picture(site) == pristine


def test_an_unpublished_release_goes_by_structure(run, tmp_path: Path) -> None:
    site = release(tmp_path / "own", version="0.11.1.dev7")
    done = run("apply", "vllm-ascend", *LEVEL, "--json", "--path", site)
    assert [(one["recipe"], one["structure"]) for one in files(done)] == [("V1 profiler, _init_profiler", None)]
    assert json.loads(done.stdout)["result"]["targets"][0]["warnings"]
    assert files(done)[0]["settings"][0]["after"] == "torch_npu.profiler.ProfilerLevel.Level2"


def test_explain_shows_what_may_be_set_and_what_is_set_now(run, site: Path) -> None:
    before = run("explain", "vllm-ascend", "--stage", "builtin", "--path", site).stdout
    assert (
        "  settings that the patch can change: --level, --contents, --export-type, --aic-metrics, --l2-cache, --mstx, --analysis"
        in before
    )
    assert "  in NPUWorker._init_profiler: the arguments of torch_npu.profiler._ExperimentalConfig" in before
    assert (
        "  in the installed file: vllm_ascend/worker/worker_v1.py:22 profiler_level=torch_npu.profiler.ProfilerLevel.Level1"
        in before
    )
    assert "RLPATCH_" not in before
    run("apply", "vllm-ascend", *LEVEL, "--path", site)
    after = run("explain", "vllm-ascend", "--stage", "builtin", "--path", site).stdout
    assert (
        "  in the installed file: vllm_ascend/worker/worker_v1.py:23 profiler_level=torch_npu.profiler.ProfilerLevel.Level2"
        in after
    )
