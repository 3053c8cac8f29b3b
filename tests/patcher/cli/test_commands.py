"""The commands from end to end, as a user types them: what they print, what they return, what they leave."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from click.testing import CliRunner

from patcher import cli
from patcher.commands.finding import SearchOptions
from patcher.commands.where import Where, running
from patcher.processes import RunningProcess
from patches import projects
from tests.patcher.cli.conftest import SOURCE, WORKER, release
from tests.patcher.store.tree import picture

REPOSITORY = Path(cli.__file__).parents[2]
APPLY = ("apply", "vllm-ascend==0.11.0rc1", "--decode", "30:60", "--path", "site")


def test_the_four_lines_of_the_readme(run, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patcher.processes.running", lambda *_words: ())  # whatever else this machine runs
    before = picture(site)
    applied = run(*APPLY)
    assert re.search(r"vllm-ascend 0\.11\.0rc1: unpacked in .*/site\n", applied.stdout)
    assert re.search(rf"patched {WORKER}, \d+ lines inserted \(V1 worker, code structure C\)", applied.stdout)
    assert "Records decode steps 30..59 of rollout 0 on rank 0." in applied.stdout
    assert f"traces of torch_npu.profiler go to {Path.cwd()}/rlpatch_traces" in applied.stdout
    assert "next: restart the engine" in applied.stdout
    assert "differs from the code that was released as 0.11.0rc1" in applied.stderr
    assert f"+++ b/{WORKER}" in run("diff", "--path", "site").stdout
    status = run("status", "--path", "site").stdout
    assert "vllm-ascend rollout on 0.11.0rc1 in " in status
    assert f"  intact {WORKER}" in status
    reverted = run("revert", "--path", "site").stdout
    assert f"reverted {WORKER}: no rlpatch lines left" in reverted
    assert picture(site) == before
    assert not re.search("^(note|warning|details): ", applied.stdout + status + reverted, re.MULTILINE)


def test_the_same_again_changes_nothing_and_another_window_replaces(run, site: Path) -> None:
    run(*APPLY)
    before = picture(site)
    assert f"unchanged {WORKER}" in run(*APPLY).stdout
    assert picture(site) == before
    replaced = run("apply", "vllm-ascend", "--decode", "5:9", "--tool", "memory", "--path", "site")
    assert f"memory snapshots go to {Path.cwd()}/rlpatch_traces" in replaced.stdout
    text = (site / WORKER).read_text()
    assert text.count("# >>> rlpatch") == 1
    assert 'WINDOW = "5:9"' in text
    run("revert", "--path", "site")
    assert (site / WORKER).read_text() == SOURCE


def test_what_another_window_replaces_is_said(run, site: Path) -> None:
    first = json.loads(run(*APPLY, "--json").stdout)["result"]["targets"][0]
    assert first["replaces"] is None
    assert "replaces" not in run(*APPLY).stdout
    (since,) = {
        patch["since"] for patch in json.loads(run("status", "--path", "site", "--json").stdout)["result"]["patches"]
    }
    other = ("apply", "vllm-ascend", "--decode", "5:9", "--path", "site")
    replaced = f"--decode 30:60 --tool npu --save-path {Path.cwd()}/rlpatch_traces"
    assert f"  replaces the patch of {since}: {replaced}\n" in run(*other, "-n").stdout
    second = json.loads(run(*other, "--json").stdout)["result"]["targets"][0]
    assert second["replaces"] == {"options": first["options"], "version": "0.11.0rc1", "since": since}


def test_traces_never_go_into_the_package_where_one_stands(run, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("apply", "vllm-ascend", "--decode", "1:2", "--path", site)
    before = picture(site)
    for folder in ("vllm_ascend", "vllm_ascend/worker"):
        monkeypatch.chdir(site / folder)
        said = run(*words, code=2).stderr
        assert f"at {site}/vllm_ascend\n" in said
        assert f"or run the command from a folder outside of {site}/vllm_ascend" in said
    assert picture(site) == before
    monkeypatch.chdir(site)
    run(*words)
    assert (site / WORKER).read_text() != SOURCE


@pytest.mark.parametrize("words", [APPLY, ("revert", "--path", "site")])
def test_a_dry_run_writes_nothing(run, site: Path, words: tuple[str, ...]) -> None:
    if words[0] == "revert":
        run(*APPLY)
    before = picture(site)
    said = run(*words, "-n").stdout
    assert "would " in said
    assert picture(site) == before


def test_json_is_one_document_on_stdout(run, site: Path) -> None:
    for command in (
        APPLY,
        ("status", "--path", "site"),
        ("diff", "--path", "site"),
        ("check",),
        ("list",),
        ("revert", "--path", "site"),
        ("explain", "vllm-ascend"),
        ("recover", "--path", "site"),
    ):
        document = json.loads(run(*command, "--json").stdout)
        assert (document["schema"], document["command"], document["exit_code"]) == (1, command[0], 0)
        assert document["problems"] == []
    failed = run("apply", "vllm-ascend==0.12.0", "--decode", "1:2", "--path", "site", "--json", code=3)
    (problem,) = json.loads(failed.stdout)["problems"]
    assert (problem["kind"], problem["title"]) == ("version", "version mismatch")
    assert problem["next"]
    assert problem["title"] in failed.stderr


def test_quiet_prints_only_errors(run, site: Path) -> None:
    assert run(*APPLY, "-q").output == ""
    assert "Error" in run("apply", "vllm-ascend", "--path", "site", "-q", code=2).stderr


ERRORS = {
    "no window": (("apply", "vllm-ascend", "--path", "site"), 2, "no recording window was given", "--decode 30:60"),
    "two windows": (("apply", "vllm-ascend", "--decode", "1:2", "--prefill", "0:1", "--path", "site"), 2, "--decode and --prefill: a stage can have only one window", "keep only one of these options"),
    "an empty window": (("apply", "vllm-ascend", "--decode", "60:30", "--path", "site"), 2, "is empty", "--decode 30:60"),
    "decode steps start at 1": (("apply", "vllm-ascend", "--decode", "0:3", "--path", "site"), 2, "decode steps start at 1", "--decode 1:3"),
    "unknown contents": (("apply", "vllm-ascend", "--decode", "1:2", "--contents", "npu,gpu", "--path", "site"), 2, "gpu is not a valid value", "of npu, cpu"),
    "bad ranks": (("apply", "vllm-ascend", "--decode", "1:2", "--ranks", "0,x", "--path", "site"), 2, "--ranks x is not a whole number from", "--ranks 1"),
    "negative ranks": (("apply", "vllm-ascend", "--decode", "1:2", "--ranks", "-1", "--path", "site"), 2, "--ranks -1 is not a whole number from", "--ranks 1"),
    "metrics of later releases": (("apply", "vllm-ascend", "--decode", "1:2", "--aic-metrics", "memory_access", "--path", "site"), 2, "torch_npu 2.1 does not have these AI Core metrics", "one of none"),
    "metrics at level 0": (("apply", "vllm-ascend", "--decode", "1:2", "--level", "level0", "--aic-metrics", "memory", "--path", "site"), 2, "has no effect below --level level1", "--level level1"),
    "npu options for torch": (("apply", "vllm-ascend", "--decode", "1:2", "--tool", "torch", "--mstx", "--path", "site"), 2, "is not supported by torch.profiler", "--tool npu"),
    "an odd save path": (("apply", "vllm-ascend", "--decode", "1:2", "--save-path", 'x"; import os', "--path", "site"), 2, "torch_npu does not accept this path", "--save-path /tmp"),
    "no stage": (("apply", "vllm-ascend", "--decode", "1:2", "--stage", "update-policy", "--path", "site"), 3, "vllm-ascend: the stage update-policy is not available; targets with this stage: areal, ", "choose one of rollout, graph-capture, builtin"),
    "a stage that nobody has": (("apply", "vllm-ascend", "--decode", "1:2", "--stage", "rolout", "--path", "site"), 3, "no target has the stage rolout", "--stage rollout"),
    "a window of another stage": (("apply", "vllm-ascend", "--mini-batch", "0:1", "--path", "site"), 2, "--mini-batch is not available for vllm-ascend: the training runs in areal or openrlhf or trl or verl", "rlpatch apply verl --mini-batch 0:1"),
    "a window too many": (("apply", "vllm-ascend", "--decode", "1:2", "--mini-batch", "0:1", "--path", "site"), 2, "--mini-batch is not available for vllm-ascend", "rlpatch apply verl vllm-ascend"),
    "a role of a rollout": (("apply", "vllm-ascend", "--decode", "1:2", "--role", "ref", "--path", "site"), 2, "--role works only with training stages", "leave out --role"),
    "training step 0": (("apply", "vllm-ascend", "--decode", "1:2", "--training-steps", "0", "--path", "site"), 2, "whole number from 1", "--rollout 0"),
    "another version": (("apply", "vllm-ascend==0.12.0rc1", "--decode", "1:2", "--path", "site"), 3, "is 0.11.0rc1, not 0.12.0rc1", "vllm-ascend==0.11.0rc1"),
    "an unknown project": (("apply", "vllm-ascent", "--decode", "1:2", "--path", "site"), 3, "is not a target; targets", "vllm-ascend"),
    "no such folder": (("apply", "vllm-ascend", "--decode", "1:2", "--path", "nowhere"), 3, "nowhere", "--path"),
    "nothing there": (("apply", "vllm-ascend", "--decode", "1:2", "--path", "/usr/bin"), 3, "is not installed here", "--path"),
    "not installed": (("apply", "vllm-ascend", "--decode", "1:2"), 3, "vllm-ascend (package vllm_ascend) is not installed here", "--path DIR"),
    "traces in the package": (("apply", "vllm-ascend", "--decode", "1:2", "--path", "site", "--save-path", "site/vllm_ascend/worker/traces"), 2, "inside the package vllm_ascend", "--save-path /tmp/rlpatch_traces"),
    "traces in the store": (("diff", "vllm-ascend", "--decode", "1:2", "--path", "site", "--save-path", "site/.rlpatch/traces"), 2, "inside rlpatch's store (.rlpatch)", "--save-path /tmp/rlpatch_traces"),
    "traces in a file": (("apply", "vllm-ascend", "--decode", "1:2", "--path", "site", "--save-path", "site/vllm_ascend-0.11.0rc1.dist-info/METADATA/x"), 2, "no folder can be created in ", "--save-path DIR"),
    "traces in /proc": (("apply", "vllm-ascend", "--decode", "1:2", "--path", "site", "--save-path", "/proc/x"), 2, "no folder can be created in /proc", "--save-path DIR"),
    "a check of nothing": (("check", "verl", "--path", "nowhere"), 3, "the folder nowhere does not exist", "--path .../site-packages"),
    "a check of nothing at all": (("check", "--path", "nowhere"), 3, "the folder nowhere does not exist", "--path .../site-packages"),
    "a check of what is not there": (("check", "verl", "--path", "site"), 3, "verl (package verl) is not installed here", "--path"),
    "a window without a target": (("diff", "--decode", "1:2"), 2, "but no target", "rlpatch diff vllm-ascend"),
    "path and python": (("status", "--path", "site", "--python", "python3"), 2, "both say where to look", "leave out --path or --python"),
}  # fmt: skip


def test_the_command_of_the_run_stands_behind_apply_and_check_only(run, site: Path) -> None:
    run(*APPLY)
    assert "is not a target; targets" in run("revert", "--path", "site", "--", "nonsense", code=3).stderr
    assert "# >>> rlpatch" in (site / WORKER).read_text()
    run("revert", "--path", "site", "--", "vllm-ascend")
    assert (site / WORKER).read_text() == SOURCE


def test_a_target_that_is_named_twice_is_patched_once(run, site: Path) -> None:
    words = ("vllm-ascend", "vllm-ascend==0.11.0rc1", "VLLM_Ascend", "--decode", "1:2", "--path", "site")
    assert run("diff", *words).stdout.count("diff --git") == 1
    assert run("apply", *words).stdout.count("patched ") == 1


def test_of_several_targets_all_are_patched_or_none(run, site: Path) -> None:
    before = picture(site)
    several = run("apply", "vllm-ascend", "sglang", "--decode", "1:2", "--path", "site", code=3).stderr
    assert several.startswith("note: nothing was written, because some targets cannot be patched\n")
    assert picture(site) == before
    twice = run("diff", "vllm-ascend", "VLLM_Ascend", "sglang", "--decode", "1:2", "--path", "site", code=3).stderr
    assert "sglang (package sglang) is not installed here" in twice
    assert "nothing was written" not in run("apply", "sglang", "--decode", "1:2", "--path", "site", code=3).stderr


def test_a_wrong_version_is_answered_with_the_command_that_works(run, site: Path) -> None:
    said = run("apply", "vllm-ascend==0.12.0rc1", "--decode", "1:2", "--path", "site", code=3).stderr
    command = said.partition("next: rlpatch ")[2].split()
    assert command == ["apply", "vllm-ascend==0.11.0rc1", "--decode", "1:2", "--path", "site"]
    run(*command)
    said = run("diff", "vllm-ascend==0.12.0rc1", "--decode", "1:2", "--path", "site", code=3).stderr
    assert "next: rlpatch diff vllm-ascend==0.11.0rc1 --decode 1:2" in said


def test_what_is_applied_has_no_version_and_only_its_stages(run, site: Path) -> None:
    run(*APPLY)
    for command in ("status", "revert", "diff"):
        for word in ("vllm-ascend==0.9.1", "VLLM_Ascend==0.9.1"):
            said = run(command, word, "--path", "site", code=2).stderr
            assert f"next: rlpatch {command} vllm-ascend --path site" in said
    assert (
        "next: applied patches: vllm-ascend rollout"
        in run("revert", "--stage", "bogus", "--path", "site", code=2).stderr
    )
    assert "# >>> rlpatch" in (site / WORKER).read_text()


@pytest.mark.parametrize("words", ["--ranks all", "--save-path /x", "--level level1", "--l2-cache", "--analysis"])
def test_options_of_a_window_need_one(run, site: Path, words: str) -> None:
    option = words.split()[0]
    assert f"{option} needs a recording window" in run("diff", "--path", "site", *words.split(), code=2).stderr


def test_a_dry_run_finds_what_the_real_one_would_stumble_over(run, site: Path) -> None:
    (site / WORKER).with_suffix(".so").write_bytes(b"")
    assert run(*APPLY, code=5).stderr == run(*APPLY, "-n", code=5).stderr


def test_a_lost_registry_is_written_again(run, site: Path) -> None:
    run(*APPLY)
    shutil.rmtree(site / ".rlpatch")
    assert f"patch registered again in .rlpatch (file unchanged): {WORKER}" in run(*APPLY).stdout
    assert "since" in run("status", "--path", "site").stdout


@pytest.mark.parametrize(
    "place",
    [
        "patcher.store.folder.StoreFolder.commit",
        "patcher.store.filesystem.lock._release",
        "patcher.store.transaction.commit",
        "patcher.commands.patching.describing.describe",
        "patcher.processes.running",
        "patcher.messages.report.CommandResult.show",
        "patcher.messages.report.CommandResult._show_result",
    ],
)
def test_ctrl_c_after_the_commit_stops_nothing(run, site: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Pressed when that has ended: what is said, and the exit code, are of what is on the disk."""
    owner, _, name = place.rpartition(".")
    real = resolve_name(owner)

    def pressed(*words: Any, **named: Any) -> object:
        try:
            return function(*words, **named)
        finally:
            signal.raise_signal(signal.SIGINT)

    function = getattr(real, name)
    monkeypatch.setattr(real, name, pressed)
    assert f"patched {WORKER}" in run(*APPLY).stdout
    assert "rlpatch" in (site / WORKER).read_text()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the next process
    assert f"reverted {WORKER}" in run("revert", "--path", "site").stdout
    assert not (site / ".rlpatch").exists()


@pytest.mark.parametrize("place", ["put", "sync", "observe"])
def test_ctrl_c_before_the_commit_undoes_all_and_leaves_nothing(
    run, site: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    from patcher.store import journal

    before = picture(site)
    function = getattr(journal, place)

    def pressed(*words: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return function(*words)

    monkeypatch.setattr(journal, place, pressed)
    assert "interrupted, nothing was changed" in run(*APPLY, code=130).stderr
    assert picture(site) == before


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_cause_and_next_command(run, site: Path, name: str) -> None:
    words, code, cause, hint = ERRORS[name]
    before = picture(site)
    said = run(*words, code=code).stderr
    assert cause in said
    assert hint in said.partition("next: ")[2]
    assert "Traceback" not in said
    assert picture(site) == before


def test_a_structure_that_is_not_there_is_exit_4_and_names_what_was_looked_for(run, site: Path) -> None:
    (site / WORKER).write_text(SOURCE.replace("output =", "result ="))
    said = run(*APPLY, code=4).stderr
    assert "expected NPUWorker.execute_model" in said
    assert "found 0 top-level statements “output = self.model_runner.execute_model(...)”" in said
    assert f"{site / WORKER}:8\n" in said
    (site / WORKER).unlink()
    assert "install the project again" in run(*APPLY, code=4).stderr


@pytest.mark.parametrize("version", ["0.31.0", "0.11.1.dev3", "0.11.0rc9"])
def test_an_unpublished_release_goes_by_structure_with_a_warning(run, tmp_path: Path, version: str) -> None:
    release(tmp_path / "dev", version)
    applied = run("apply", "vllm-ascend", "--decode", "1:2", "--path", "dev")
    assert re.search(rf"warning: .*\b{re.escape(version)}\b", applied.stderr)
    assert "V1 worker" in applied.stdout


def test_an_unpublished_release_of_another_structure_is_exit_4_with_every_failure(run, tmp_path: Path) -> None:
    root = release(tmp_path / "dev", "0.31.0", SOURCE.replace("output =", "result ="))
    said = run("apply", "vllm-ascend", "--decode", "1:2", "--path", "dev", code=4).stderr
    assert "is not a release that rlpatch knows" in said
    assert "0 top-level statements" in said
    assert (root / WORKER).read_text().startswith('"""Our own')


def test_a_local_version_is_the_published_release(run, tmp_path: Path) -> None:
    release(tmp_path / "local", "0.11.0rc1+g67dd255")
    applied = run("apply", "vllm-ascend==0.11.0rc1", "--decode", "1:2", "--path", "local")
    assert "(V1 worker, code structure C)" in applied.stdout


def out_of_its_class(text: str) -> str:
    """The patched file with our block at its end, at the left margin."""
    lines = text.splitlines(keepends=True)
    (first,), (last,) = ([at for at, line in enumerate(lines) if mark in line] for mark in ("# >>> rl", "# <<< rl"))
    block = [line[4:] if line.strip() else line for line in lines[first : last + 1]]
    return "".join([*lines[:first], *lines[last + 1 :], *block])


def call_lines_swapped(text: str) -> str:
    """The patched file with its first two call lines in each other's place."""
    one, other, *_ = (line.strip() for line in text.splitlines() if "  # rlpatch: " in line)
    return text.replace(one, "\0").replace(other, one).replace("\0", other)


def further_down(text: str) -> str:
    """The patched file with a call line behind the line that it stood before."""
    lines = text.splitlines(keepends=True)
    at = next(at for at, line in enumerate(lines) if "  # rlpatch: " in line)
    lines[at : at + 2] = lines[at + 1], lines[at]
    return "".join(lines)


class TestStatus:
    """What is said of a patch that is no longer as it was left."""

    def state(self, run, code: int = 0) -> dict[str, str]:
        (patch,) = json.loads(run("status", "--path", "site", "--json", code=code).stdout)["result"]["patches"]
        return {"since": patch["since"], **{key: patch["files"][0][key] for key in ("state", "detail")}}

    def test_edits_outside_of_inserted_lines_survive_the_revert(self, run, site: Path) -> None:
        run(*APPLY)
        worker = site / WORKER
        worker.write_text("import os\n" + worker.read_text())
        assert self.state(run)["state"] == "edited"
        run("revert", "--path", "site")
        assert worker.read_text() == "import os\n" + SOURCE

    def test_edited_inserted_lines_are_not_reverted_without_restore(self, run, site: Path) -> None:
        run(*APPLY)
        worker = site / WORKER
        worker.write_text(worker.read_text().replace('RANKS = "0"', 'RANKS = "1"'))
        assert self.state(run, 4)["state"] == "tampered"
        patched = worker.read_text()
        said = run("revert", "--path", "site", code=4).stderr
        assert re.search(rf"{worker}:\d+", said)
        assert f"rlpatch revert --restore --dry-run --path {site}" in said
        assert worker.read_text() == patched

    @pytest.mark.parametrize(
        ("edit", "lost"),
        [
            (("WINDOW =", "window ="), "no edits are lost"),
            (("class NPUWorker(WorkerBase):", "class NPUWorker:"), "    -class NPUWorker:"),
            (("# <<< rlpatch", "# <<<"), "    -    # >>> rlpatch"),
        ],
        ids=["ours alone", "others, too", "marks that do not pair"],
    )
    def test_the_backup_comes_back_where_our_lines_were_edited(
        self, run, site: Path, edit: tuple[str, str], lost: str
    ) -> None:
        before = picture(site)
        run(*APPLY)
        run(*APPLY[:2], "--stage", "graph-capture", "--path", "site")
        worker = site / WORKER
        worker.write_text(worker.read_text().replace('RANKS = "0"', 'RANKS = "1"').replace(*edit))
        patched = worker.read_text()
        words = ("revert", "--stage", "rollout", "--restore", "--path", "site")
        would = run(*words, "-n").stdout
        assert f"would restore {WORKER} from its backup; " in would
        assert lost in would
        assert worker.read_text() == patched
        assert "vllm-ascend graph-capture in" in run(*words).stdout, "no patch is in the backup"
        assert picture(site) == before
        assert "no patch was found" in run("status", "--path", "site").stdout

    def test_without_a_backup_the_package_has_to_be_installed_again(self, run, site: Path) -> None:
        run(*APPLY)
        worker = site / WORKER
        worker.write_text(worker.read_text().replace('RANKS = "0"', 'RANKS = "1"'))
        shutil.rmtree(site / ".rlpatch")
        said = run("revert", "--restore", "--path", "site", code=4).stderr
        assert "pip install --force-reinstall" in said

    @pytest.mark.parametrize("move", [out_of_its_class, call_lines_swapped, further_down], ids=lambda one: one.__name__)
    def test_moved_inserted_lines_are_told_and_reverted(self, run, site: Path, move: Callable[[str], str]) -> None:
        worker = site / WORKER
        worker.chmod(0o640)
        before = picture(site)
        run(*APPLY)
        patched = worker.read_text()
        assert self.state(run)["state"] == "intact"
        moved = move(patched)
        assert sorted(map(str.strip, moved.splitlines())) == sorted(map(str.strip, patched.splitlines()))
        worker.write_text(moved)
        told = self.state(run, 4)
        assert f"next: rlpatch revert --path {site}\n" in run("status", "--path", "site", code=4).stderr
        assert (told["state"], "then insert them again with `rlpatch apply`" in told["detail"]) == ("tampered", True)
        assert f"+++ b/{WORKER}" in run("diff", "--path", "site").stdout
        assert f"patched {WORKER}" in run(*APPLY).stdout
        assert (worker.read_text(), self.state(run)["state"]) == (patched, "intact")
        worker.write_text(moved)
        run("revert", "--path", "site")
        assert worker.read_text() == SOURCE
        assert picture(site) == before

    def test_lines_that_were_moved_are_said_also_when_another_patch_comes_and_goes(self, run, site: Path) -> None:
        run(*APPLY)
        worker = site / WORKER
        worker.write_text(out_of_its_class(worker.read_text()))
        other = (*APPLY[:2], "--stage", "graph-capture", "--path", "site")
        run(*other)
        status = json.loads(run("status", "--path", "site", "--json", code=4).stdout)["result"]["patches"]
        assert {patch["files"][0]["state"] for patch in status} == {"tampered"}
        run("revert", "--stage", "graph-capture", "--path", "site")
        assert self.state(run, 4)["state"] == "tampered"
        run(*APPLY)
        assert self.state(run)["state"] == "intact"

    def test_replaced_by_another_release(self, run, site: Path) -> None:
        run(*APPLY)
        newer = SOURCE + "\n# a newer release\n"
        (site / WORKER).write_text(newer)
        assert self.state(run, 10)["state"] == "lost"
        said = run("status", "--path", "site", code=10).stderr
        assert str(site / WORKER) in said
        assert "next: rlpatch apply vllm-ascend --decode 30:60" in said
        assert "it has been replaced or removed, and no longer has the patch" in run("revert", "--path", "site").stdout
        assert (site / WORKER).read_text() == newer
        assert not (site / ".rlpatch").exists()

    def test_status_warns_of_a_package_that_was_upgraded_in_place(self, run, site: Path) -> None:
        run(*APPLY)
        (site / "vllm_ascend-0.11.0rc1.dist-info").rename(site / "vllm_ascend-0.12.0rc1.dist-info")
        metadata = site / "vllm_ascend-0.12.0rc1.dist-info" / "METADATA"
        metadata.write_text(metadata.read_text().replace("0.11.0rc1", "0.12.0rc1"))
        assert "now 0.12.0rc1" in run("status", "--path", "site").stdout

    def test_a_checkout_without_metadata_is_not_called_upgraded(self, run, site: Path) -> None:
        shutil.rmtree(site / "vllm_ascend-0.11.0rc1.dist-info")
        for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "x"), ("tag", "v0.11.0rc1")):
            name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
            subprocess.run(["git", "-C", site, *name, *words], check=True, capture_output=True)
        assert "version from git tag v0.11.0rc1" in run(*APPLY).stdout
        assert "warning" not in run("status", "--path", "site").output

    def test_a_folder_in_its_place(self, run, site: Path) -> None:
        run(*APPLY)
        (site / WORKER).unlink()
        (site / WORKER).mkdir()
        for command in ("status", "revert"):
            said = run(command, "--path", "site", code=5).stderr
            assert f"\n  at {site / WORKER}\n" in said

    def test_revert_clears_the_store_of_a_package_that_was_uninstalled(self, run, site: Path) -> None:
        run(*APPLY)
        shutil.rmtree(site / "vllm_ascend")
        assert self.state(run, 10)["state"] == "missing"
        run("revert", "--path", "site")
        assert not (site / ".rlpatch").exists()

    def test_the_store_is_gone_and_the_marks_suffice(self, run, site: Path) -> None:
        run(*APPLY)
        shutil.rmtree(site / ".rlpatch")
        told = self.state(run)
        assert (told["since"], told["state"]) == ("", "intact")
        assert "only the marker comments were checked" in told["detail"]
        assert f"+++ b/{WORKER}" in run("diff", "--path", "site").stdout
        run("revert", "--path", "site")
        assert (site / WORKER).read_text() == SOURCE

    def test_every_command_says_where_it_looked_if_nothing_is_patched(self, run, site: Path) -> None:
        assert "no patch was found; looked in: --path site" in run("status", "--path", "site").stdout
        assert "no patch of vllm-ascend was found" in run("revert", "vllm-ascend", "--path", "site").stdout
        assert run("diff", "--path", "site").stdout == ""
        assert run("diff", "--path", "site").stderr.startswith("note: no patch was found")
        assert json.loads(run("recover", "--path", "site", "--json").stdout)["result"] == {"roots": []}
        run(*APPLY)
        assert run("diff", "--path", "site").stderr == ""


def test_a_diff_has_one_root(run, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import path with two roots: the package in one, the marks of an older store in the other."""
    other = release(tmp_path / "other")
    run(*APPLY)
    run(*APPLY[:-1], "other")
    shutil.rmtree(other / "vllm_ascend-0.11.0rc1.dist-info")
    monkeypatch.setattr(sys, "path", [str(site), str(other), *sys.path])
    said = run("diff", code=2).stderr
    assert f"--path {site} or --path {other}" in said


@pytest.mark.parametrize(
    ("words", "environ", "code", "said"),
    [
        ((), {}, 0, ""),
        ((), {"VLLM_TORCH_PROFILER_DIR": "/x"}, 0, "warning: the engine's own profiler is armed"),
        ((), {"PROFILER_SAMPLECONFIG": "{}"}, 8, "CANN's msprof is switched on"),
        (("--force",), {"PROFILER_SAMPLECONFIG": "{}"}, 0, "warning: CANN's msprof is on"),
        (("--script", "run.sh"), {}, 8, "run.sh:1"),
    ],
)
def test_apply_begins_with_the_guard(run, site: Path, words, environ: dict[str, str], code: int, said: str) -> None:
    Path("run.sh").write_text("export PROFILER_SAMPLECONFIG='{}'\npython train.py\n")
    before = picture(site)
    result = run(*APPLY, *words, code=code, **environ)
    assert said in result.stderr
    assert (picture(site) == before) == bool(code)


def test_check_says_where_and_how_to_switch_it_off(run) -> None:
    Path("run.sh").write_text("# start\nexport VLLM_TORCH_PROFILER_DIR=/tmp/p\nvllm serve m\n")
    said = run("check", "vllm-ascend==0.11.0rc1", "--", "bash", "run.sh")
    assert "armed the engine's own profiler (run.sh:2)" in said.stdout
    assert "    to switch the profiler off: unset VLLM_TORCH_PROFILER_DIR at run.sh:2\n" in said.stdout
    assert "reason: " not in said.stdout
    assert "add -v for details\n" in said.stderr
    assert "    reason: " in run("check", "-v", "vllm-ascend==0.11.0rc1", "--", "bash", "run.sh").stdout
    assert "note: not installed here: vllm-ascend==0.11.0rc1\n" in said.stderr
    assert run("check", "vllm-ascend", code=8, PROFILING_MODE="true").stderr.count("Error:") == 1


def test_what_depends_on_files_that_are_not_here_is_unknown_and_not_off(run) -> None:
    from patches.verl.profiling import PROFILING

    said = run("check", "verl").stdout
    for profiler in {switch.profiler for switch in PROFILING.switches}:
        assert re.search(rf"  unknown .*{re.escape(profiler)}.* \(verl is not installed here\)\n", said)
    assert "  off msMonitor (environment)\n" in said
    Path("train.py").write_text("pass\n")
    started = run("check", "verl", "--", "python3", "train.py").stdout
    assert "  off verl's own profiler" in started
    everything = run("check", "--", "python3", "train.py")
    assert "  off verl's own profiler" in everything.stdout
    assert everything.stderr.startswith("note: not installed here: areal, ")
    assert run("check").stdout.count("\n") == 1


def test_what_is_unknown_for_one_reason_is_told_once(run) -> None:
    Path("run.sh").write_text("bash gone.sh\neval $X\nbash gone.sh a\npython3 train.py\n")
    command = ("vllm-ascend==0.11.0rc1", "--", "bash", "run.sh")
    said = run("check", *command).stdout
    names = "the engine's own profiler, msMonitor, torch_npu's dynamic profiling, CANN's msprof"
    assert said.splitlines()[1:] == [
        f"  unknown {names} (run.sh:1)",
        "    the launch command or script names a file that was not found on this machine or is only known at run time",
    ]
    details = run("check", "-v", *command).stdout
    assert "    msMonitor (run.sh:1)\n" in details
    advice = "to switch the profiler off: unset PROFILING_MODE (only needed if run.sh:1 switches the profiler on)"
    assert advice in " ".join(details.split())
    assert "    the patch checks for other profilers again before it records\n" in details


def test_in_a_place_that_is_named_only_what_is_there_is_checked(run, site: Path) -> None:
    absent = run("check", "verl", "sglang", "--path", "site", code=3).stderr
    assert ("(package verl) is not installed here" in absent, "(package sglang) is not installed here" in absent) == (
        True,
        True,
    )
    said = run("check", "--path", "site")
    assert [line for line in said.stdout.splitlines() if not line.startswith(" ")] == ["vllm-ascend 0.11.0rc1"]
    assert said.stderr == ""


def test_the_notes_of_a_plain_apply_are_one_line_each(run, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_TORCH_PROFILER_DIR", "/a/folder")
    worker = site / WORKER
    worker.write_text(SOURCE.replace("allocator.sleep()", "allocator.sleep(1)"))
    words = ("vllm-ascend", "--iterations", "0:", "--ranks", "all", "--contents", "npu,cpu,stack", "--analysis")
    for command in ("apply", "diff"):
        lines = run(command, *words, "--export-type", "db,text", "--path", "site").stderr.splitlines()
        *notes, hint = lines
        assert hint == "add -v for details"
        assert len(notes) > 5
        assert all(re.match(r"(note|warning): \S", line) and len(line) <= 100 for line in notes)
        assert "  " in run(command, *words, "--path", "site", "-v").stderr


def test_explain_has_the_details_of_notes_and_gaps(run, site: Path) -> None:
    said = run("explain", "vllm-ascend", "--stage", "graph-capture", "--path", "site").stdout
    assert (
        "  note: with enforce_eager no graph is captured, so no trace is written\n    the V0 engine captures no graphs: choose V1 with VLLM_USE_V1=1"
        in said
    )
    gaps = run("explain", "areal", "--stage", "update-policy").stdout
    for strategy, why in (
        ("megatron", "Megatron's schedule runs the micro-batches"),
        ("archon", "Archon's own runner runs the micro-batches"),
    ):
        assert f"--strategy {strategy} does not support --micro-batch windows: {why}" in gaps
    verl = run("explain", "verl==0.9.1", "--stage", "update-policy").stdout
    assert (
        "with pipeline parallelism, use --call instead of --micro-batch\n    with pipeline_model_parallel_size above 1"
        in verl
    )


def test_explain_names_the_place_and_what_the_release_can_do_by_itself(run, site: Path) -> None:
    said = run("explain", "vllm-ascend", "--path", "site").stdout
    line = SOURCE.splitlines().index("        output = self.model_runner.execute_model(scheduler_output)") + 2
    assert f'in the installed file: {WORKER}:{line} self._rlpatch_rollout("step", scheduler_output)' in said
    assert "RLPATCH_WINDOW" in said
    newer = run("explain", "vllm-ascend==0.30.0rc2").stdout
    assert "is not installed here; this is what rlpatch's recipes contain:" in newer
    assert "it records iterations 29 to 58" in newer
    for version, notes in (("0.30.0rc2", 0), ("0.77.0", 1)):
        assert len(json.loads(run("explain", f"vllm-ascend=={version}", "--json").stdout)["notes"]) == notes
    both = run("explain", "vllm-ascend==0.9.1").stdout
    assert "V0 worker" in both
    assert "V1 worker" in both


@pytest.mark.parametrize(
    ("target", "stage", "window", "size"),
    [
        ("verl", "timeline", False, True),
        ("verl", "update-policy", True, False),
        ("vllm-ascend", "builtin", False, False),
    ],
)
def test_explain_names_the_variables_that_a_stage_looks_at(
    run, target: str, stage: str, window: bool, size: bool
) -> None:
    said = run("explain", target, "--stage", stage).stdout
    assert ("RLPATCH_WINDOW=" in said, "RLPATCH_MAX_TIMELINE_MB=" in said) == (window, size)
    assert ("RLPATCH_SAVE_PATH=" in said) == (window or size)


def test_explain_a_stage_without_a_window(run, site: Path) -> None:
    said = run("explain", "vllm-ascend", "--stage", "graph-capture", "--path", "site").stdout
    assert "graph-capture: graph capture of the V1 worker, no window" in said
    assert "around the call `self.model_runner.capture_model()`" in said
    assert '_rlpatch_graph_capture("enter", "capture_model"); self._rlpatch_graph_capture("leave")' in said
    call = SOURCE.splitlines().index("            self.model_runner.capture_model()") + 1
    assert f'in the installed file: {WORKER}:{call} self._rlpatch_graph_capture("enter", "capture_model")' in said
    assert f'in the installed file: {WORKER}:{call + 2} self._rlpatch_graph_capture("leave")' in said
    assert "execute_model" not in said
    assert "not available" in run("explain", "verl", "--stage", "graph-capture", code=3).stderr


def test_explain_says_why_the_place_cannot_be_looked_at(run, site: Path) -> None:
    (site / WORKER).with_suffix(".so").write_bytes(b"")
    said = run("explain", "vllm-ascend", "--stage", "rollout", "--path", "site")
    assert "Python loads worker_v1.so instead" in " ".join(said.stderr.split())
    assert " here: " not in said.stdout


V0 = """\
class NPUWorker(LocalOrDistributedWorkerBase):
    def execute_worker(self, worker_input):
        pass

    def start_profile(self):
        self.profiler.start()

    def stop_profile(self):
        self.profiler.stop()
"""


@pytest.mark.parametrize(
    ("version", "gone", "warned"),
    [("0.8.4rc1", "", False), ("0.11.0rc1", "capture_model", True)],
    ids=["a release without the stage", "another structure"],
)
def test_explain_shows_the_places_of_the_other_stages(
    run, tmp_path: Path, version: str, gone: str, warned: bool
) -> None:
    other = release(tmp_path / "other", version, SOURCE.replace(f".{gone}(", ".record(") if gone else SOURCE)
    if not gone:
        other.joinpath(WORKER).with_name("worker.py").write_text(V0)
    said = run("explain", "vllm-ascend", "--path", "other")
    assert f"in the installed file: {WORKER}:" in said.stdout
    assert "_rlpatch_graph_capture" not in "".join(line for line in said.stdout.splitlines() if " here: " in line)
    assert ("statements of the form “self.model_runner.capture_model()” or" in " ".join(said.stderr.split())) == warned


def test_a_capture_has_no_window_and_no_warm_up(run, site: Path) -> None:
    stage = ("apply", "vllm-ascend", "--stage", "graph-capture", "--path", "site")
    assert "Records the first graph capture of each worker on rank 0." in run(*stage, "-n").stdout
    assert (
        "the first 2 graph captures of each worker on every rank"
        in run(*stage, "--repeat", "2", "--ranks", "all").stdout
    )
    assert (
        "stages, but --stage graph-capture selects another kind of stage" in run(*stage, "--warmup", "2", code=2).stderr
    )
    assert "with enforce_eager no graph is captured, so no trace is written" in run(*stage, "--repeat", "3").stderr
    assert (
        "leave out the window, because this stage is always recorded as a whole"
        in run(*stage, "--decode", "30:60", code=2).stderr
    )


def test_a_long_listing_is_short_and_begins_with_what_is_installed(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(tmp_path / "lib", "0.12.0rc1")
    monkeypatch.setattr("sys.path", [*sys.path, str(tmp_path / "lib")])
    assert run("list", "vllm-ascend").stdout.startswith(f"vllm-ascend 0.12.0rc1 is installed in {tmp_path / 'lib'}\n")
    said = run("list", "verl").stdout
    assert len(said.splitlines()) < 60
    assert "--micro-batch --mini-batch --call" in said
    newest = re.search(r"rlpatch (list verl==\S+)", said)
    assert newest
    assert "verl/workers/engine_workers.py" in run(*newest[1].split()).stdout


def test_list_is_the_recipes(run) -> None:
    assert "--decode --prefill --iterations" in run("list").stdout
    said = run("list", "vllm-ascend").stdout
    assert "graph capture of the V1 worker" in said
    assert "vllm_ascend/worker/worker_v1.py" in said
    assert "0.7.3rc2 … 0.9.1 (12)" in said
    assert "--decode --prefill --iterations" in said
    rows = json.loads(run("list", "--json").stdout)["result"]["targets"]
    assert {word for row in rows for word in row["windows"]} == {
        "--decode", "--prefill", "--iterations", "--aligned", "--micro-batch", "--mini-batch", "--call"
    }  # fmt: skip
    assert {role for row in rows if row["stage"] == "compute-log-prob" for role in row["roles"]} == {"actor", "ref"}


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help_with_an_example(run, command: str) -> None:
    said = run(command, "-h").stdout
    assert re.search(r"Examples?:\n +(eval .*)?rlpatch", said.replace('"$(', ""))


def test_help_lists_every_command(run) -> None:
    said = run("--help").stdout
    assert "Insert an exact profiler window into installed sources" in said
    assert "  rlpatch apply vllm-ascend==0.11.0rc1 --decode 30:60\n" in said
    assert all(f"  {name} " in said for name in cli.COMMANDS)
    assert run("-V").stdout.startswith("rlpatch, version ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(run, shell: str) -> None:
    assert "_RLPATCH_COMPLETE" in run("completion", shell).stdout


@pytest.mark.parametrize(
    ("typed", "offered"), [("vllm-a", "vllm-ascend"), ("vllm-ascend==0.30", "vllm-ascend==0.30.0rc2")]
)
def test_targets_and_releases_are_completed(run, typed: str, offered: str) -> None:
    environ = {"_RLPATCH_COMPLETE": "bash_complete", "COMP_WORDS": f"rlpatch apply {typed}", "COMP_CWORD": "2"}
    from patcher.cli import rlpatch as command

    done = CliRunner().invoke(command, [], env=environ, prog_name="rlpatch")
    assert f"plain,{offered}\n" in done.output


@pytest.mark.parametrize(
    ("words", "environ", "coloured"),
    [((), {}, False), (("--color", "always"), {}, True), (("--color", "always"), {"NO_COLOR": "1"}, True), (("--color", "never"), {}, False)],
)  # fmt: skip
def test_colour_only_where_it_is_wanted(
    run, site: Path, words: tuple[str, ...], environ: dict[str, str], coloured: bool
) -> None:
    assert ("\x1b[" in run(*APPLY, *words, **environ).stdout) is coloured
    assert ("\x1b[" in run("diff", "--path", "site", *words, **environ).stdout) is coloured


def test_an_unexpected_failure_is_exit_1_without_a_traceback(run, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args, **_options) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("patcher.editing.insert", fail)
    said = run(*APPLY, code=1)
    assert "ZeroDivisionError: a bug" in said.stderr
    assert "Traceback" not in said.stderr
    assert isinstance(run(*APPLY, "-v", code=1).exception, ZeroDivisionError)


def test_an_interrupt_is_exit_130(run, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_args, **_options) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("patcher.editing.insert", stop)
    assert "interrupted, nothing was changed" in run(*APPLY, code=130).stderr


def test_running_engines_are_named(run, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "patcher.processes.running",
        lambda known, packages: (
            tuple(RunningProcess(f"17 python -m {name}", "alice", True) for one in known for name in one.modules)
            if list(packages) == [site / "vllm_ascend"]
            else ()
        ),
    )
    done = run(*APPLY)
    assert "next: restart these processes, which might still run the old code:\n  17 python -m vllm\n" in done.stdout
    first = "warning: if engines of alice use this installation, too, "
    assert re.sub(r"\s+", " ", done.stderr).startswith(first)
    search = SearchOptions()
    patched = [(search, projects.upstream("vllm-ascend"), site)]
    assert RunningProcess("17 python -m vllm", "alice", True) in running(Where(search, print), patched)


def test_engines_that_may_be_of_another_environment_are_named_apart(
    run, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = (RunningProcess("17 vllm serve", "", True), RunningProcess("18 vllm serve"))
    monkeypatch.setattr("patcher.processes.running", lambda *_words: named)
    run(*APPLY)
    reverted = run("revert", "--path", "site").stdout
    sure, _, doubtful = reverted.partition("if they use this environment")
    assert ("17 vllm serve" in sure, "18 vllm serve" in sure) == (True, False)
    assert "18 vllm serve" in doubtful


def rlpatch(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A whole process, as installed."""
    command = [sys.executable, "-m", "patcher", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env={"PATH": "/usr/bin", "PYTHONPATH": str(REPOSITORY), **environ}
    )


def test_another_package_named_patches_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "__init__.py").write_text("")
    done = rlpatch("status", PYTHONPATH=f"{tmp_path}:{REPOSITORY}")
    assert done.returncode == 5
    assert str(tmp_path / "patches") in done.stderr
    assert str(REPOSITORY / "patches") in done.stderr


def test_the_command_line_never_imports_torch(site: Path, tmp_path: Path) -> None:
    for name in ("torch", "torch_npu", "vllm_ascend"):
        (tmp_path / "poison" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "poison" / name / "__init__.py").write_text(f"raise SystemExit('{name} was imported')\n")
    done = rlpatch(*APPLY[:-1], str(site), PYTHONPATH=f"{REPOSITORY}:{tmp_path / 'poison'}")
    assert (done.returncode, "was imported" in done.stderr) == (0, False), done.stderr


def test_a_terminal_gets_colour_and_a_pipe_does_not(site: Path) -> None:
    command = f"{sys.executable} -m patcher apply vllm-ascend --decode 1:2 --path {site}"
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "TERM": "xterm"}
    terminal = subprocess.run(["script", "-qec", command, "/dev/null"], capture_output=True, text=True, env=environ)
    assert "\x1b[32mpatched" in terminal.stdout or "\x1b[32munchanged" in terminal.stdout, terminal
    without = subprocess.run(
        ["script", "-qec", command, "/dev/null"], capture_output=True, text=True, env={**environ, "NO_COLOR": "1"}
    )
    assert "\x1b[32m" not in without.stdout
    assert "\x1b[" not in rlpatch("apply", "vllm-ascend", "--decode", "1:2", "--path", str(site)).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), None),
        (
            ("--markers",),
            "  marked as named ranges in the trace: the rollout or training stage as a whole, and each of its decode steps, micro-batches and so on\n",
        ),
        (("--module-ranges",), "  marked as named ranges in the trace: every call of an nn.Module\n"),
        (
            ("--markers", "--module-ranges"),
            "  marked as named ranges in the trace: the rollout or training stage as a whole, and each of its decode steps, micro-batches and so on and every call of an nn.Module\n",
        ),
    ],
)
def test_what_is_marked_is_said(run, site: Path, words: tuple[str, ...], said: str | None) -> None:
    out = run(*APPLY, *words).stdout
    assert (said in out) if said else ("named ranges" not in out)


STORE = ("patcher.commands.applied", "patcher.changes", "patcher.store.folder", "patcher.guards", "patcher.request")
SLOW = ("json", "hashlib", "subprocess", "shutil", "difflib", "textwrap", *STORE)


def loaded(*words: str) -> set[str]:
    """The modules of a process that runs rlpatch, as far as a test of its start has something to say of them."""
    program = "import atexit, sys\natexit.register(lambda: print('\\0', *sys.modules))\nfrom patcher.__main__ import main\nmain()"
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "XDG_STATE_HOME": os.devnull}
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, cwd="/")
    return {*done.stdout.partition("\0")[2].split()}.intersection(SLOW)


def test_status_loads_no_store_where_nothing_is_patched(site: Path) -> None:
    (site / "vllm_ascend/__init__.py").write_text("")  # the text of the fixture names rlpatch
    assert loaded("status", "--path", str(site)) == set()
    worker = site / WORKER
    worker.write_text(worker.read_text() + "# rlpatch\n")  # it may be a mark: whether it is one the whole look tells
    assert {"patcher.commands.applied", "patcher.store.folder"} <= loaded("status", "--path", str(site))


def test_apply_and_revert_load_no_openssl(site: Path) -> None:
    for words in (APPLY[:-2], ("revert",)):
        modules = loaded(*words, "--path", str(site))
        assert "patcher.store.folder" in modules
        assert "hashlib" not in modules


def test_several_paths_are_all_looked_at(run, site: Path, tmp_path: Path) -> None:
    other = release(tmp_path / "other", "0.11.0rc1")
    both = ("--path", site, "--path", other)
    for place in (site, other):
        run("apply", "vllm-ascend", "--decode", "1:2", "--path", place)
    patches = json.loads(run("status", *both, "--json").stdout)["result"]["patches"]
    assert [patch["root"] for patch in patches] == [str(site), str(other)]
    again = [line.split() for line in run("status", *both).stdout.splitlines() if "rlpatch apply" in line]
    assert [words[-1] for words in again] == [str(site), str(other)]
    run("revert", *both)
    assert [(place / WORKER).read_text() for place in (site, other)] == [SOURCE, SOURCE]


def test_a_target_in_two_of_the_paths_is_patched_in_neither(run, site: Path, tmp_path: Path) -> None:
    other = release(tmp_path / "other", "0.12.0rc1")
    both = ("--path", site, "--path", other)
    said = run("apply", "vllm-ascend", "--decode", "1:2", *both, code=2).stderr
    assert str(site) in said
    assert str(other) in said
    run("apply", "vllm-ascend==0.12.0rc1", "--decode", "1:2", *both)  # only one of them is this release
    assert "rlpatch" not in (site / WORKER).read_text()
    assert "rlpatch" in (other / WORKER).read_text()


@pytest.mark.parametrize(
    "words", ["--decode 1:2 --decode 5:9", "--decode 1:2 --python a --python b", "--decode 1:2 --ranks 0 --ranks 1"]
)
def test_an_option_that_is_given_twice_is_refused(run, site: Path, words: str) -> None:
    assert "is given 2 times" in run("apply", "vllm-ascend", *words.split(), code=2).stderr
    assert (site / WORKER).read_text() == SOURCE
