from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from patcher.messages.errors import Kind, Problem
from patcher.messages.notes import Note
from patcher.targets import checkout, provenance
from patcher.targets.versions import Checkout
from tests.patcher.targets.trees import ASCEND, commit, git, package, repository, write

WORKER = PurePosixPath("vllm_ascend/worker/worker_v1.py")
INIT = PurePosixPath("vllm_ascend/__init__.py")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "repo").mkdir()
    return repository(tmp_path / "repo")


def describe(root: Path, path: PurePosixPath = INIT) -> Checkout:
    state = checkout.describe(root, path)
    assert state is not None
    return state


@pytest.mark.parametrize(
    ("tags", "commits", "version"),
    [
        (["v0.11.0rc1"], 0, "0.11.0rc1"),
        (["0.11.0rc1"], 0, "0.11.0rc1"),
        (["v0.11.0rc3", "v0.11.0"], 0, "0.11.0"),
        (["nightly", "gateway-v0.2.0", "v0.5.3"], 0, "0.5.3"),
        (["v0.11.0rc1"], 2, "0.11.0rc2.dev2+g"),
        (["v0.11.0"], 1, "0.11.1.dev1+g"),
        (["v0.23.0.post1"], 1, "0.23.0.post2.dev1+g"),
        (["nightly"], 0, ""),
        (["v2.3.0_core"], 1, ""),
        ([], 1, ""),
    ],
)
def test_the_release_follows_from_tags(repo: Path, tags: list[str], commits: int, version: str) -> None:
    for tag in tags:
        git(repo, "tag", tag)
    for _ in range(commits):
        commit(repo)
    state = describe(repo)
    assert state.version == version + (git(repo, "rev-parse", "--short", "HEAD") if version.endswith("g") else "")
    assert bool(state.tag) == (bool(version) and commits == 0)
    assert state.head == git(repo, "rev-parse", "HEAD")


def test_a_file_that_git_does_not_know(repo: Path) -> None:
    assert describe(repo, WORKER).head == git(repo, "rev-parse", "HEAD")
    new = PurePosixPath("vllm_ascend/new.py")
    write(repo / new)
    assert checkout.describe(repo, new) is None


def test_looking_writes_nothing(repo: Path) -> None:
    (repo / WORKER).touch()
    index = (repo / ".git/index").stat()
    before = sorted(repo.rglob("*"))
    describe(repo, WORKER)
    assert sorted(repo.rglob("*")) == before
    assert (repo / ".git/index").stat().st_mtime_ns == index.st_mtime_ns


def test_before_the_first_commit(tmp_path: Path) -> None:
    package(tmp_path)
    git(tmp_path, "init", "-q")
    assert checkout.describe(tmp_path, INIT) is None
    git(tmp_path, "add", "-A")
    state = describe(tmp_path)
    assert (state.head, state.version) == ("", "")
    assert provenance.target(ASCEND, tmp_path / INIT.parent, "", (), True).notes == (
        Note("a git checkout without a commit"),
    )
    assert checkout.pristine(tmp_path, INIT) is None


def test_a_worktree_and_a_submodule_have_a_git_file(repo: Path, tmp_path: Path) -> None:
    git(repo, "tag", "v0.11.0rc1")
    git(repo, "worktree", "add", "-q", str(tmp_path / "tree"))
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "submodule", "--quiet", "add", str(repo), "sub")
    commit(outer)
    git(outer, "tag", "v9.9")
    for place in (tmp_path / "tree", outer / "sub"):
        assert (place / ".git").is_file()
        (place / WORKER).write_text("other\n")
        state = describe(place, WORKER)
        assert state.tag in ("v0.11.0rc1", "")  # a submodule brings its tags where git's version does
        assert checkout.pristine(place, WORKER) == (repo / WORKER).read_bytes()


def test_a_root_below_the_top_and_through_a_link(tmp_path: Path) -> None:
    repository(tmp_path, below="python", name="sglang")
    (tmp_path / "link").symlink_to("python")
    init = PurePosixPath("sglang/__init__.py")
    before = (tmp_path / "python" / init).read_bytes()
    (tmp_path / "python" / init).write_text("other\n")
    for root in (tmp_path / "python", tmp_path / "link"):
        assert describe(root, init).head == git(tmp_path, "rev-parse", "HEAD")
        assert checkout.pristine(root, init) == before


def test_no_checkout_is_none(tmp_path: Path) -> None:
    assert checkout.describe(tmp_path, INIT) is None
    assert checkout.pristine(tmp_path, INIT) is None
    assert checkout.top_of(tmp_path) is None


def test_a_bare_repository_is_no_checkout(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", ".git")
    assert checkout.describe(tmp_path, INIT) is None


def test_a_broken_git_folder(tmp_path: Path) -> None:
    write(tmp_path / ".git", "gitdir: /nowhere\n")
    with pytest.raises(Problem) as raised:
        checkout.describe(tmp_path, INIT)
    assert raised.value.kind is Kind.ENVIRONMENT
    assert "git -C" in raised.value.hint
    assert checkout.pristine(tmp_path, INIT) is None


def test_no_program_that_a_checkout_names_is_started(repo: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n: > {tmp_path}/ran\ncat\n")
    program.chmod(0o755)
    for name in ("core.fsmonitor", "filter.theirs.smudge", "filter.theirs.process"):
        git(repo, "config", name, str(program))
    assert checkout.pristine(repo, WORKER) == (repo / WORKER).read_bytes()
    write(repo / ".gitattributes", "*.py filter=theirs\n")
    assert describe(repo).head
    assert checkout.pristine(repo, WORKER) is None
    assert not (tmp_path / "ran").exists()


def test_pristine_is_what_a_checkout_writes(repo: Path) -> None:
    write(repo / ".gitattributes", "*.py text eol=crlf\n")
    commit(repo)
    (repo / WORKER).write_bytes(b"ours\r\n")
    assert checkout.pristine(repo, WORKER) == b"class NPUWorker: ...\r\n"
    assert checkout.pristine(repo, PurePosixPath("vllm_ascend/none.py")) is None


def test_another_users_checkout_names_the_command(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(Problem) as raised:
        checkout.describe(repo, INIT)
    assert raised.value.hint == f"git config --global --add safe.directory {repo}"
    assert "dubious ownership" in raised.value.cause


@pytest.mark.parametrize(
    ("stderr", "cause", "hint"),
    [
        ("fatal: unsafe repository (it is owned by X)", "dubious ownership", "safe.directory"),
        ("fatal: bad object.", "git failed: fatal: bad object", "git -C"),
        ("", "git failed: git printed no reason", "git -C"),
    ],
)
def test_the_words_of_git(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: str, cause: str, hint: str
) -> None:
    write(tmp_path / "bin/git", f"#!/bin/sh\necho '{stderr}' >&2; exit 128\n").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    with pytest.raises(Problem) as raised:
        checkout.describe(repo, INIT)
    assert (cause in raised.value.cause, hint in raised.value.hint) == (True, True), raised.value


def test_the_environment_of_a_git_hook_does_not_mislead(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    assert describe(repo, WORKER).head
    assert os.environ["GIT_DIR"] == str(other / ".git")


def test_home_may_be_unset(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    assert describe(repo).head


def test_git_may_vanish(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe(repo)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Problem, match="git is not installed"):
        checkout.describe(repo, INIT)
    assert checkout.pristine(repo, WORKER) is None


def test_without_git_installed_it_says_so(repo: Path) -> None:
    script = (
        "import pathlib, sys\nfrom patcher.targets import checkout\nfrom patcher.messages.errors import Problem\n"
        "assert 'git' not in sys.modules\n"
        "try: checkout.describe(pathlib.Path(sys.argv[1]), 'x')\n"
        "except Problem as problem: print(problem.kind.name)\n"
    )
    environment = {**os.environ, "PATH": "/nowhere", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", script, str(repo)], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("ENVIRONMENT", "")
