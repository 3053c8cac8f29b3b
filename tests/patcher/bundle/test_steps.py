"""Commands of a bundle on a machine, beside those of rlpatch: each knows what the other has done."""

from __future__ import annotations

import json
import os
import shutil
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from patcher.bundle import steps
from patcher.bundle.steps import Machine
from patcher.changes.change import Edit
from patcher.messages.errors import Kind, Problem
from patcher.messages.report import CommandResult
from patcher.store import transaction as store
from patcher.store.folder import StoreFolder
from patcher.targets.target import Discovery
from tests.matrix import CRASH, thinned
from tests.patcher.bundle.conftest import OLD_SOURCE, OLDER, WINDOW, carried, registry, result, rlpatch, well
from tests.patcher.cli.conftest import SOURCE, WORKER, release
from tests.patcher.reliability import package
from tests.patcher.store.killer import killed
from tests.patcher.store.tree import picture

On = Callable[[Path], Machine]
APPLY = ("apply", "vllm-ascend==0.11.0rc1", *WINDOW)


def apply(machine: Machine) -> CommandResult:
    return well(steps.apply(machine, dry_run=False))


def revert(machine: Machine) -> CommandResult:
    return well(steps.revert(machine, dry_run=False))


def state(machine: Machine) -> str:
    return str(result(steps.status(machine))["targets"][0]["state"])


def test_a_bundle_applies_what_rlpatch_applies(machine: Machine, site: Path, tmp_path: Path) -> None:
    other = release(tmp_path / "other")
    assert rlpatch(*APPLY, "--path", other).exit_code == 0
    apply(machine)
    assert (site / WORKER).read_bytes() == (other / WORKER).read_bytes()
    assert registry(site) == registry(other)


def test_rlpatch_takes_out_what_a_bundle_has_applied(machine: Machine, site: Path) -> None:
    before = picture(site)
    report = apply(machine)
    assert f"  patched {WORKER}" in report.lines
    said = [line for line in report.lines if line.startswith("next:")]
    assert "patch.pyz diff" in said[0]
    assert "restart the engine" in said[1]
    status = rlpatch("status", "--path", site).stdout
    assert f"rlpatch apply vllm-ascend --decode 30:60 --tool npu --save-path /traces --path {site}" in status
    assert f"  intact {WORKER}\n" in status
    assert rlpatch("diff", "--path", site).stdout_bytes == well(steps.diff(machine, planned=False)).raw
    assert "unchanged" in rlpatch(*APPLY, "--path", site).stdout
    assert rlpatch("revert", "--path", site).exit_code == 0
    assert picture(site) == before


def test_a_bundle_takes_out_what_rlpatch_has_applied(machine: Machine, site: Path) -> None:
    before = picture(site)
    assert rlpatch(*APPLY, "--path", site).exit_code == 0
    applied = picture(site)
    assert state(machine) == "patched"
    again = apply(machine).lines
    assert f"  unchanged {WORKER}" in again
    assert not [line for line in again if line.startswith("next:")], "nothing that is running has to start again"
    assert picture(site) == applied
    patches = json.loads(rlpatch("status", "--path", site, "--json").stdout)["result"]["patches"]
    assert result(steps.status(machine))["patches"] == patches
    assert f"  reverted {WORKER}: no rlpatch lines left" in revert(machine).lines
    assert picture(site) == before


def test_the_files_choose_the_release(on: On, tmp_path: Path) -> None:
    for version, source in (("0.11.0rc1", SOURCE), (OLDER, OLD_SOURCE), ("0.99", SOURCE)):
        machine = on(release(tmp_path / version, version, source))
        assert f"vllm-ascend {version}: unpacked in {tmp_path / version}" in apply(machine).lines
        assert source.splitlines()[0] in (tmp_path / version / WORKER).read_text()
        assert [one.version for one in StoreFolder(tmp_path / version).records()] == [version]
        revert(machine)
        assert (tmp_path / version / WORKER).read_text() == source


def test_nothing_is_written_by_those_who_only_ask(machine: Machine, site: Path) -> None:
    before = picture(site)
    would = well(steps.apply(machine, dry_run=True)).lines
    assert f"  would patch {WORKER}" in would
    assert not [line for line in would if line.startswith("next:")]
    planned = well(steps.diff(machine, planned=True)).raw
    assert well(steps.diff(machine, planned=False)).raw == b""
    assert "no patch of this bundle is applied" in revert(machine).lines[0]
    assert state(machine) == "as released"
    assert not [line for line in well(steps.status(machine)).lines if "no target of this bundle" in line]
    assert "nothing to recover: no rlpatch command was interrupted in" in well(steps.recover(machine)).lines[0]
    assert picture(site) == before
    apply(machine)
    applied = picture(site)
    assert well(steps.diff(machine, planned=False)).raw == planned
    assert f"  would revert {WORKER}: no rlpatch lines left" in well(steps.revert(machine, dry_run=True)).lines
    assert picture(site) == applied


def test_a_program_learns_which_runs_were_ended_where_it_asks_for_that(machine: Machine, site: Path) -> None:
    points = range(200, 600, 50)  # from some call on the journal is there
    assert any(killed(lambda: steps.apply(machine, dry_run=False), at) and StoreFolder(site).journal() for at in points)
    (ended,) = result(steps.recover(machine))["roots"]
    assert {**ended, "root": str(ended["root"])} == {"root": str(site), "forward": False, "left": []}
    assert result(steps.recover(machine))["roots"] == []
    assert "roots" not in result(steps.apply(machine, dry_run=False))


def test_what_stands_in_the_way_of_a_target_is_not_said_twice(machine: Machine) -> None:
    found = machine.discover()._replace(targets=())
    (missing,) = said(machine, found)
    assert missing.kind is Kind.NO_TARGET
    damaged = Problem(Kind.ENVIRONMENT, "the package is zipped")
    assert said(machine, found._replace(problems=(damaged,))) == [damaged]


def said(machine: Machine, found: Discovery) -> list[Problem]:
    plans, problems = machine.plan(found)
    assert plans == []
    return list(problems)


def test_the_same_patch_with_other_options_is_replaced(machine: Machine, site: Path) -> None:
    assert rlpatch("apply", "vllm-ascend", "--decode", "5:9", "--path", site).exit_code == 0
    assert state(machine) == "patched otherwise"
    assert any("replaces the patch of " in line and "--decode 5:9" in line for line in apply(machine).lines)
    assert (site / WORKER).read_text().count("# >>> rlpatch") == 1
    assert [one.options[:2] for one in StoreFolder(site).records()] == [("--decode", "30:60")]
    revert(machine)
    assert (site / WORKER).read_text() == SOURCE


def test_files_that_only_the_capture_before_needed_lose_its_lines(on: On, tmp_path: Path) -> None:
    site = package.install(tmp_path / "two")
    assert rlpatch("bundle", "vllm-ascend", *WINDOW, "--path", site, "-o", tmp_path / "two.pyz").exit_code == 0
    bundle = carried(tmp_path / "two.pyz")
    (plan,) = bundle.plans
    assert [file.path for file in plan.files] == [package.V1, package.V0]
    apply(on(site)._replace(bundle=bundle))
    fewer = on(site)._replace(bundle=bundle._replace(plans=(plan._replace(files=plan.files[:1]),)))
    assert f"  patched {package.V0}" in apply(fewer).lines
    assert (site / package.V0).read_text() == package.FILES[package.V0]
    assert [one.files for one in StoreFolder(site).records()] == [(package.V1,)]
    revert(fewer)
    assert (site / package.V1).read_text() == package.FILES[package.V1]


def other_patch(site: Path) -> None:
    assert rlpatch("apply", "vllm-ascend", "--stage", "graph-capture", "--path", site).exit_code == 0


def edit(site: Path) -> None:
    (site / WORKER).write_text(SOURCE + "\nmine = 1\n")


def other_release(site: Path) -> None:
    (site / WORKER).write_text(SOURCE.replace("allocator", "other_allocator"))
    (site / "vllm_ascend-0.11.0rc1.dist-info" / "METADATA").write_text("Name: vllm-ascend\nVersion: 0.12.0rc1\n")


def no_release(site: Path) -> None:
    other_release(site)
    shutil.rmtree(site / "vllm_ascend-0.11.0rc1.dist-info")


def tampered(site: Path) -> None:
    assert rlpatch(*APPLY, "--path", site).exit_code == 0
    path = site / WORKER
    path.write_text(path.read_text().replace('WINDOW = "30:60"', 'WINDOW = "1:60"'))


def compiled(site: Path) -> None:
    (site / WORKER).with_suffix(".cpython-311-x86_64-linux-gnu.so").write_bytes(b"")


CASES = {
    "another patch": (other_patch, Kind.FOREIGN_EDIT, "vllm-ascend graph-capture", "remove that patch first"),
    "edited": (edit, Kind.FOREIGN_EDIT, "differs from the file of vllm-ascend 0.11.0rc1", "vllm-ascend==0.11.0rc1"),
    "gone": (lambda site: (site / WORKER).unlink(), Kind.FOREIGN_EDIT, "is missing", "pip install"),
    "another release": (
        other_release, Kind.VERSION, "is 0.12.0rc1 here, but this bundle was made for 0.11.0rc1 and 0.10.2rc1",
        "rlpatch bundle vllm-ascend==0.12.0rc1",
    ),
    "no release": (no_release, Kind.VERSION, "an unknown release here", "==VERSION"),
    "our lines edited": (tampered, Kind.FOREIGN_EDIT, "somebody changed the lines of the patch “", "undo the edit"),
    "compiled": (compiled, Kind.ENVIRONMENT, "cannot be patched", "its .py files"),
    "not there": (lambda site: shutil.rmtree(site / "vllm_ascend"), Kind.NO_TARGET, "is not installed here", "--path"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_stands_in_the_way_is_said_and_nothing_is_written(machine: Machine, site: Path, case: str) -> None:
    arrange, kind, cause, hint = CASES[case]
    arrange(site)
    before = picture(site)
    for report in (steps.apply(machine, dry_run=False), steps.apply(machine, dry_run=True)):
        assert [problem.kind for problem in report.problems] == [kind]
        assert cause in report.problems[0].cause
        assert hint in report.problems[0].hint
    assert picture(site) == before
    targets = result(steps.status(machine))["targets"]
    assert [one["state"] for one in targets] == ["other"] * len(targets)


def test_a_tree_that_may_not_be_written(machine: Machine, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, access = picture(site), os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    with pytest.raises(Problem, match="no permission to write"):
        steps.apply(machine, dry_run=False)
    assert picture(site) == before


def test_a_patch_that_the_bundle_does_not_know_stays(machine: Machine, site: Path) -> None:
    apply(machine)
    assert rlpatch("apply", "vllm-ascend", "--stage", "graph-capture", "--path", site).exit_code == 0
    assert "vllm-ascend graph-capture stays: it is not in this bundle" in revert(machine).lines
    assert [one.patch.stage for one in StoreFolder(site).records()] == ["graph-capture"]


def test_processes_that_meet_in_one_folder_all_end_well(machine: Machine, site: Path) -> None:
    """As where many machines mount the same site-packages."""

    def run(job: Callable[[], object]) -> list[int]:
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                try:
                    job()
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            children.append(child)
        return [os.waitpid(child, 0)[1] for child in children]

    assert run(lambda: apply(machine)) == [0] * 4
    assert state(machine) == "patched"
    assert run(lambda: revert(machine)) == [0] * 4
    assert state(machine) == "as released"


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_where_another_was_quicker_the_work_is_done_already(
    machine: Machine, site: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    if command == "revert":
        apply(machine)
    run, commit = getattr(steps, command), store.commit

    def commit_behind_another(edits: Sequence[Edit], *, on_wait: Callable[[str], None]) -> store.Outcome:
        monkeypatch.undo()
        well(run(machine, dry_run=False))
        return commit(edits, on_wait=on_wait)

    monkeypatch.setattr(store, "commit", commit_behind_another)
    said = "\n".join(well(run(machine, dry_run=False)).lines)
    assert ("unchanged" if command == "apply" else "no patch of this bundle is applied") in said
    assert state(machine) == ("patched" if command == "apply" else "as released")


POINTS = [f"{command} {point}" for command in ("apply", "revert") for point in range(0, 500, 10)]
SHORT = ["apply 140", "apply 250", "revert 150", "revert 250"]


@pytest.mark.parametrize("case", thinned(POINTS, SHORT, CRASH))
def test_killed_in_a_command_the_next_one_does_it(
    machine: Machine, site: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # a killed process loses nothing that was written
    command, point = case.split()
    before = picture(site)
    if command == "revert":
        apply(machine)
    killed(lambda: getattr(steps, command)(machine, dry_run=False), int(point))
    apply(machine)
    assert state(machine) == "patched"
    revert(machine)
    now = picture(site, root_time=False)
    assert now == {**before, ".": now["."]}
    assert not StoreFolder(site).unfinished()


def test_an_interrupted_run_is_a_state_that_names_what_ends_it(machine: Machine, site: Path) -> None:
    points = range(200, 600, 50)  # from some call on the journal is there
    assert any(killed(lambda: steps.apply(machine, dry_run=False), at) and StoreFolder(site).journal() for at in points)
    (target,) = result(steps.status(machine))["targets"]
    assert (target["state"], target["detail"]) == ("interrupted", "python3 patch.pyz recover")
