"""The package changes under a patch: `status` tells the truth, and no release gets another one's bytes back."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.environments import uv
from tests.matrix import thinned, thinned_rows
from tests.patcher.reliability import package
from tests.patcher.reliability.faulty import second
from tests.patcher.reliability.package import V0, V1
from tests.patcher.targets.trees import commit, git

APPLY = ("apply", "vllm-ascend", "--decode", "30:60", "--save-path", "/tmp/traces")


def wheel(folder: Path, version: str) -> Path:
    """A wheel of our own package; every file names its release."""
    path = folder / f"vllm_ascend-{version}-py3-none-any.whl"
    info = f"vllm_ascend-{version}.dist-info"
    files = {name: f"{text}# {version}\n" for name, text in package.FILES.items()}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: vllm-ascend\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [f"{name},{recorded(text.encode())},{len(text)}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def recorded(content: bytes) -> str:
    """A hash as RECORD has it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def strangers(site: Path) -> list[str]:
    """The files that are not as the installed release's RECORD has them."""
    (record,) = site.glob("vllm_ascend-*.dist-info/RECORD")
    lines = (line.rsplit(",", 2) for line in record.read_text().splitlines())
    return [name for name, kept, _size in lines if kept and kept != recorded((site / name).read_bytes())]


def states(site: Path) -> set[str]:
    """What ``status`` says of the files, and of the patches as a whole."""
    said = package.rlpatch(site, "status", "--json")
    patches = json.loads(said.stdout)["result"]["patches"]
    found = {file["state"] for one in patches for file in one["files"]}
    assert said.exit_code == (0 if found.isdisjoint({"lost", "missing"}) else 10), said.output
    found |= {"marker comments only" for one in patches if not one["since"]}
    return found | {
        "other version" for one in patches if one["version"] not in ("", one["installed"] or one["version"])
    }


def revert(site: Path) -> None:
    said = package.rlpatch(site, "revert")
    assert said.exit_code == 0, said.output
    assert states(site) == set()
    assert not (site / ".rlpatch").exists()


@pytest.fixture(params=thinned(["pip", "uv"], ["pip"]))
def install(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    """Runs an installer on an environment of its own; gives its site-packages."""
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    python = str(env / "bin" / "python")
    if request.param == "pip":
        command = [sys.executable, "-m", "pip", "--python", python]
        forced, yes = ["--no-index", "--no-deps", "--no-compile", "--force-reinstall"], ["-y"]
    else:
        command = [str(uv()), "pip"]
        forced, yes = ["--python", python, "--offline", "--no-deps", "--reinstall"], ["--python", python]

    def run(*words: str) -> Path:
        options = yes if words[0] == "uninstall" else forced
        variables = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "uv-cache")}
        done = subprocess.run([*command, words[0], *options, *words[1:]], capture_output=True, text=True, env=variables)
        assert done.returncode == 0, done.stderr
        (site,) = env.glob("lib/python3*/site-packages")
        return site

    return run


INSTALLS = (
    ("0.9.1", {"lost"}),  # reinstalled
    ("0.9.1rc3", {"lost", "other version"}),
    ("0.9.2rc1", {"lost", "other version"}),
    ("", {"missing"}),  # uninstalled
)


@pytest.mark.parametrize(
    ("then", "expected"),
    thinned_rows(INSTALLS, ()),
    ids=["reinstall", "downgrade", "upgrade", "uninstall"],
)
def test_status_and_revert_survive_an_install_of_another_version(
    tmp_path: Path, install, then: str, expected: set[str]
) -> None:
    site = install("install", str(wheel(tmp_path, "0.9.1")))
    assert package.rlpatch(site, *APPLY).exit_code == 0
    second(site)
    assert states(site) == {"intact"}
    assert set(strangers(site)) == {V0, V1}
    if then:
        install("install", str(wheel(tmp_path, then)))
    else:
        install("uninstall", "vllm-ascend")
    assert states(site) == expected
    revert(site)
    if not then:
        assert not (site / "vllm_ascend").exists()  # nothing of ours kept the folder
        return
    assert strangers(site) == []
    assert package.rlpatch(site, *APPLY).exit_code == 0
    revert(site)
    assert strangers(site) == []


@pytest.mark.parametrize("lost", thinned(["the store", "the backups"], ["the store"]))
def test_a_container_layer_that_keeps_the_files_and_loses_the_store(tmp_path: Path, install, lost: str) -> None:
    site = install("install", str(wheel(tmp_path, "0.9.1")))
    assert package.rlpatch(site, *APPLY).exit_code == 0
    second(site)
    if lost == "the store":
        shutil.rmtree(site / ".rlpatch")
    else:
        for path in (site / ".rlpatch").glob("[0-9a-f]*"):
            path.unlink()
    assert states(site) == ({"intact", "marker comments only"} if lost == "the store" else {"intact"})
    revert(site)
    assert strangers(site) == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git checkout of our package; the branch ``other`` has one line more in each worker."""
    for name, text in package.FILES.items():
        path = tmp_path / "repo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    repo = tmp_path / "repo"
    git(repo, "init", "-q")
    commit(repo)
    git(repo, "tag", "v0.9.1")
    git(repo, "checkout", "-q", "-b", "other")
    for name in (V0, V1):
        (repo / name).write_text("# of another branch\n" + (repo / name).read_text())
    commit(repo)
    git(repo, "checkout", "-q", "main")
    assert package.rlpatch(repo, *APPLY).exit_code == 0
    second(repo)
    assert states(repo) == {"intact"}
    return repo


MOVES: list[tuple[list[str], set[str], str]] = [
    (["checkout -- ."], {"lost"}, "main"),
    (["checkout -q -f other"], {"lost"}, "other"),
    (["checkout -q -m other"], {"edited"}, "other"),
    (["reset -q --hard"], {"lost"}, "main"),
    (["stash"], {"lost"}, "main"),
    (["stash", "stash pop"], {"intact"}, "main"),
    (["stash", "clean -xdfq", "stash pop"], {"intact", "marker comments only"}, "main"),
    (["clean -xdfq"], {"intact", "marker comments only"}, "main"),
    (["rebase -q --autostash other"], {"edited"}, "other"),
    (["merge -q --autostash other"], {"edited"}, "other"),
    (["add -A", "commit -q -m ours"], {"intact"}, "main~1"),
    (["add -A", "commit -q -m ours", "rebase -q other"], {"edited"}, "other"),
    (["add -A", "commit -q -m ours", "clean -xdfq"], {"intact", "marker comments only"}, "main~1"),
    (["rm -q -r --cached .", "reset -q"], {"intact"}, "main"),
    (["rm -q -r -f ."], {"missing"}, ""),
]


@pytest.mark.parametrize(
    ("commands", "expected", "like"),
    thinned_rows(MOVES, [MOVES[at] for at in (0, 6, 14)]),
    ids=lambda value: ", ".join(value) if isinstance(value, list) else "",
)
def test_status_and_revert_survive_git_commands_on_the_files(
    checkout: Path, commands: list[str], expected: set[str], like: str
) -> None:
    for words in commands:
        git(checkout, *words.split())
    assert states(checkout) == expected
    revert(checkout)
    for name in (V0, V1):
        if like:
            assert git(checkout, "hash-object", name) == git(checkout, "rev-parse", f"{like}:{name}")
        else:
            assert not (checkout / name).exists()


def test_a_stash_that_comes_back_after_the_revert_is_known_by_its_marks(checkout: Path) -> None:
    git(checkout, "stash")
    revert(checkout)
    git(checkout, "stash", "pop")
    assert states(checkout) == {"intact", "marker comments only"}
    revert(checkout)
    assert git(checkout, "status", "--porcelain", "--ignored").replace("!! ", "").split() == []
