"""``rlpatch bundle``: where it reads the releases, what it carries of them, and what it cannot make."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from fixtures import releases
from patcher.bundle import steps
from patcher.bundle.steps import Machine
from tests.patcher.bundle.conftest import OLD_SOURCE, OLDER, WINDOW, carried, rlpatch, well
from tests.patcher.cli.conftest import SOURCE, WORKER, release
from tests.patcher.store.tree import picture


def wheel(tmp_path: Path) -> Path:
    """A wheel of the older release."""
    source = release(tmp_path / "unpacked", OLDER, OLD_SOURCE)
    path = tmp_path / f"vllm_ascend-{OLDER}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(source.rglob("*")):
            archive.write(file, file.relative_to(source))
    return path


def test_installations_and_wheels_are_read_and_none_is_changed(site: Path, tmp_path: Path) -> None:
    archive = wheel(tmp_path)
    before = picture(site)
    made = rlpatch("bundle", "vllm-ascend==0.11.0rc1", f"vllm-ascend=={OLDER}", *WINDOW, "--path", site, "--path",
                   archive)  # fmt: skip
    assert made.exit_code == 0, made.output
    assert f"vllm-ascend {OLDER}: unpacked in {archive}\n" in made.stdout
    assert "wrote patch.pyz (" in made.stdout
    assert f"KB) for vllm-ascend 0.11.0rc1, vllm-ascend {OLDER}\n" in made.stdout
    assert [plan.version for plan in carried(Path("patch.pyz")).plans] == ["0.11.0rc1", OLDER]
    assert picture(site) == before


def test_what_is_applied_here_is_nothing_to_other_machines(site: Path, tmp_path: Path) -> None:
    def bundled(name: str) -> bytes:
        assert rlpatch("bundle", "vllm-ascend", *WINDOW, "--path", site, "-o", tmp_path / name).exit_code == 0
        return (tmp_path / name).read_bytes()

    before = bundled("before.pyz")
    for window in (("--decode", "5:9"), ("--stage", "graph-capture")):
        assert rlpatch("apply", "vllm-ascend", *window, "--path", site).exit_code == 0
    assert bundled("after.pyz") == before


def test_lines_that_are_replaced_come_back(site: Path, tmp_path: Path) -> None:
    made = rlpatch("bundle", "vllm-ascend", "--builtin", "--level", "level2", "--path", site)
    assert made.exit_code == 0, made.output
    machine = Machine(carried(Path("patch.pyz")), site, None, lambda _message: None)
    well(steps.apply(machine, dry_run=False))
    assert "# was: " in (site / WORKER).read_text()
    well(steps.revert(machine, dry_run=False))
    assert (site / WORKER).read_text() == SOURCE


def test_the_document_says_what_is_in_it(site: Path) -> None:
    made = rlpatch("bundle", "vllm-ascend", "--decode", "30:60", "--path", site, "--json")
    document = json.loads(made.stdout)
    assert document["result"]["output"] == "patch.pyz"
    assert document["result"]["bytes"] == Path("patch.pyz").stat().st_size
    assert [one["version"] for one in document["result"]["targets"]] == ["0.11.0rc1"]
    assert "note: every machine writes its traces to the folder shown above" in document["messages"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("vllm-ascend==0.12.0", *WINDOW, "--path", "site"), 3, "the installed vllm-ascend is 0.11.0rc1, not 0.12.0"),
        (("vllm-ascend==0.12.0", *WINDOW, "--path", "site", "--path", "old"), 3, "0.11.0rc1, not 0.12.0"),
        (("vllm-ascend", "verl", *WINDOW, "--path", "site", "--path", "old"), 2, "--decode is not available for verl"),
        (
            ("vllm-ascend", *WINDOW, "--path", "site", "--path", "empty"),
            3,
            "(package vllm_ascend) is not installed here",
        ),
        (("vllm-ascend", *WINDOW, "--path", "site", "--path", "forked"), 4, "is not a release that rlpatch knows"),
        (
            ("vllm-ascend", *WINDOW, "--micro-batch", "0:1", "--path", "site"),
            2,
            "--micro-batch is not available for vllm-ascend",
        ),
        (("vllm-ascend", *WINDOW, "--path", "no.whl"), 2, "is an archive"),
        (("vllm-ascend", *WINDOW, "--path", "site", "-o", "site"), 2, "site is a folder\n"),
        (("vllm-ascend", *WINDOW, "--path", "site", "-o", "run.sh"), 2, "run.sh already exists and is not a bundle\n"),
        (("vllm-ascend", *WINDOW, "--path", "site", "-o", "a.whl"), 2, "a.whl already exists and is not a bundle\n"),
        (("vllm-ascend", *WINDOW, "--path", "damaged.whl"), 5, "the wheel is damaged: "),
        (("vllm-ascend", *WINDOW, "--path", "site", "-o", "no/x"), 5, "cannot be written: No such file or directory"),
        (("vllm-ascend", "--path", "site"), 2, "--decode"),
        (
            ("vllm-ascend", "--builtin", "--level", "level1", "--path", "site"),
            2,
            "already those that this bundle would set",
        ),
    ],
)
def test_what_cannot_be_made_is_said_and_nothing_is_written(
    site: Path, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    release(tmp_path / "old", OLDER, OLD_SOURCE)
    release(tmp_path / "forked", "0.11.0.dev7", SOURCE.replace("execute_model", "run_model"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "run.sh").write_text("echo\n")
    (tmp_path / "no.whl").write_text("no zip\n")
    archive = wheel(tmp_path).rename(tmp_path / "a.whl").read_bytes()
    content = archive.index(b"class NPUWorker")
    (tmp_path / "damaged.whl").write_bytes(archive[:content] + b"klass" + archive[content + 5 :])
    made = rlpatch("bundle", *words)
    assert (made.exit_code, said in made.stderr) == (code, True), made.output
    assert not Path("patch.pyz").exists()
    assert (tmp_path / "run.sh").read_text() == "echo\n"
    assert (tmp_path / "a.whl").read_bytes() == archive


def test_a_bundle_takes_the_place_of_the_one_before(site: Path) -> None:
    for _ in range(2):
        assert rlpatch("bundle", "vllm-ascend", *WINDOW, "--path", site).exit_code == 0
    assert [path.name for path in Path.cwd().iterdir() if "patch" in path.name] == ["patch.pyz"]


@pytest.mark.matrix
def test_real_releases_of_several_targets(tmp_path: Path) -> None:
    """Two releases of vllm-ascend and one of verl in one file; the nodes hold what pip would have put there."""
    wanted = {"0.11.0rc1": "vllm-ascend", "0.10.2rc1": "vllm-ascend", "0.6.1": "verl"}
    places = {version: releases.release(version, project) for version, project in wanted.items()}
    words = [word for place in places.values() for word in ("--path", place)]
    made = rlpatch("bundle", "vllm-ascend", "verl", "--mini-batch", "0:1", *WINDOW, *words)
    assert made.exit_code == 0, made.output
    assert Path("patch.pyz").stat().st_size < 125_000
    bundled = carried(Path("patch.pyz"))
    for version in ("0.11.0rc1", "0.10.2rc1"):
        site = tmp_path / version
        for place in (places[version], places["0.6.1"]):
            shutil.copytree(place, site, dirs_exist_ok=True)
        before = picture(site)
        machine = Machine(bundled, site, None, lambda _message: None)
        well(steps.apply(machine, dry_run=False))
        again = rlpatch("apply", "vllm-ascend", "verl", "--mini-batch", "0:1", *WINDOW, "--path", site)
        assert "patched" not in again.stdout, again.stdout
        files = json.loads(rlpatch("status", "--path", site, "--json").stdout)["result"]["patches"]
        assert {file["state"] for patch in files for file in patch["files"]} == {"intact"}
        well(steps.revert(machine, dry_run=False))
        assert picture(site) == before
