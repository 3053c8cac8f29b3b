from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from patcher.targets import versions
from patcher.targets.versions import Checkout, Source
from tests.patcher.targets.trees import dist_info, write

NAMES = ("vllm-ascend",)


@pytest.mark.parametrize(
    ("present", "wanted", "holds"),
    [
        ("0.11.0rc1", "0.11.0rc1", True),
        ("0.11.0rc1", "0.11.0RC1", True),
        ("0.11.0rc1", "0.11.0.rc1", True),
        ("0.11.0", "0.11", True),
        ("0.11.0rc1+gabc", "0.11.0rc1", True),
        ("0.11.0rc1+gabc", "0.11.0rc1+gabc", True),
        ("0.11.0rc1", "0.11.0rc1+gabc", False),
        ("0.11.0rc1.dev3", "0.11.0rc1", False),
        ("0.11.0rc1.dev3+gabc", "0.11.0rc1", False),
        ("0.11.0rc1", "0.11.0", False),
        ("0.11.0+empty", "0.11.0", True),
        ("dev", "dev", True),
        ("dev", "0.11.0", False),
        ("", "0.11.0", False),
    ],
)
def test_a_version_assertion_holds_only_for_that_version(present: str, wanted: str, holds: bool) -> None:
    assert versions.satisfies(present, wanted) is holds


@pytest.mark.parametrize("version", ["dev", "", "0.0.0", "0+unknown", "0.1.dev1+gabc", "0.11.0+empty", "0.0.0+cpu"])
def test_placeholder_versions_are_not_believed(version: str) -> None:
    assert versions.is_placeholder(version)


@pytest.mark.parametrize("version", ["0.11.0rc1", "0.1", "0.0.1", "0.19.1rc2.dev1908+g67dd255", "0.7.0.dev"])
def test_odd_but_real_versions_are_believed(version: str) -> None:
    assert not versions.is_placeholder(version)


def test_a_number_that_python_does_not_read_means_nothing() -> None:
    endless = f"1.{'9' * 5000}"
    assert versions.parse_version(endless) is None
    assert not versions.satisfies("1.9", endless)


@pytest.mark.parametrize(
    "version", ["0.11", "0.11.0rc1", "1.2.post3", "1.\u0662", "0.11rc\u0968", "1.2\n", "1.2.post\uff13"]
)
def test_what_is_told_without_packaging_is_what_packaging_says(version: str) -> None:
    understood = versions.parse_version(version)
    assert versions.valid(version) == (understood is not None)
    assert versions.is_placeholder(version) == (understood is None)


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("vllm_ascend-0.11.0rc1.dist-info", "vllm-ascend"),
        ("VLLM.Ascend-0.11.0rc1.dist-info", "vllm-ascend"),
        ("vllm-ascend-0.11.0rc1.dist-info", "vllm-ascend"),
        ("vllm_ascend.egg-info", "vllm-ascend"),
        ("vllm_ascend-0.7.1-py3.10.egg-info", "vllm-ascend"),
        ("vllm_ascend", ""),
        ("vllm_ascend.py", ""),
    ],
)
def test_names_of_metadata(entry: str, name: str) -> None:
    assert versions.distribution_name(entry) == name


@pytest.mark.parametrize(
    ("stale", "true", "literal", "younger"),
    [
        ({"lists": "other/__init__.py"}, {}, None, "0.11.0rc1"),
        ({"lists": None}, {}, None, "0.11.0rc1"),
        ({"lists": "other/__init__.py"}, {"lists": None}, None, "0.11.0rc1"),
        ({}, {}, Source("0.9.0", "_version.py"), "0.11.0rc1"),
        ({}, {}, None, "0.9.0"),
    ],
    ids=["RECORD does not list", "no RECORD", "some doubt", "own files decide", "the youngest"],
)
def test_of_two_dist_infos(
    tmp_path: Path, stale: dict[str, Any], true: dict[str, Any], literal: Source | None, younger: str
) -> None:
    wrong = dist_info(tmp_path, "0.11.0rc1", **stale)
    right = dist_info(tmp_path, "0.9.0", **true)
    for folder in (right, wrong):
        os.utime(folder, (1, 2 if younger in folder.name else 1))
    best, notes = versions.choose_distribution(versions.distributions(tmp_path, NAMES, "vllm_ascend"), literal)
    assert best is not None
    assert best.folder == right
    assert [note.detail for note in notes] == [f"rlpatch uses the metadata in {right.name}, not in {wrong.name}"]
    assert notes[0].text.endswith("version 0.9.0")


def test_one_or_no_dist_info(tmp_path: Path) -> None:
    assert versions.choose_distribution([], None) == (None, ())
    dist_info(tmp_path, "1", name="vllm")
    dist_info(tmp_path, "0.9.0")
    best, notes = versions.choose_distribution(versions.distributions(tmp_path, NAMES, "vllm_ascend"), None)
    assert best is not None
    assert (best.source, notes) == (Source("0.9.0", "vllm_ascend-0.9.0.dist-info"), ())


def test_a_dist_info_without_metadata_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "vllm_ascend-0.9.0.dist-info").mkdir()
    (found,) = versions.distributions(tmp_path, NAMES, "vllm_ascend")
    assert (found.source.version, found.lists_package, found.checkout, found.installed) == ("0.9.0", None, None, False)


@pytest.mark.parametrize(
    ("direct_url", "folder"),
    [
        ('{"url": "file:///a%20b", "dir_info": {"editable": true}}', Path("/a b")),
        ('{"url": "file:///a", "dir_info": {}}', None),
        ('{"url": "https://x/a", "dir_info": {"editable": true}}', None),
        ('{"url": "https://x/a.whl", "archive_info": {}}', None),
        ('{"dir_info": {"editable": true}}', None),
        ("[]", None),
        ("null", None),
        ('{"url": 1, "dir_info": 2}', None),
        ("{", None),
    ],
)
def test_direct_url_json_tells_the_checkout(tmp_path: Path, direct_url: str, folder: Path | None) -> None:
    info = dist_info(tmp_path, "1")
    write(info / "direct_url.json", direct_url)
    assert versions.distributions(tmp_path, NAMES, "")[0].checkout == folder


@pytest.mark.parametrize(
    ("place", "name", "said"),
    [
        ("PKG-INFO", "vllm_ascend", True),
        ("PKG-INFO", "other", False),
        ("vllm_ascend.egg-info/PKG-INFO", "vllm-ascend", True),
        ("vllm_ascend-0.7.1-py3.10.egg-info", "vllm-ascend", True),
        ("other.egg-info/PKG-INFO", "vllm-ascend", False),
    ],
)
def test_pkg_info_tells_the_version_of_its_own_package(tmp_path: Path, place: str, name: str, said: bool) -> None:
    write(tmp_path / place, f"Metadata-Version: 2.4\nName: {name}\nVersion: 0.7.1rc1\n")
    assert versions.from_pkg_info(tmp_path, NAMES) == (Source("0.7.1rc1", place) if said else None)


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("p/_version.py", "__version__ = version = '1.2'", "1.2"),
        ("p/_version.py", "version = '1.2'", "1.2"),
        ("p/_version.py", "__version__: str\nversion: str = '1.2'", "1.2"),
        (
            "p/version.py",
            "try:\n    from ._version import __version__\nexcept Exception:\n    __version__ = 'dev'",
            None,
        ),
        ("p/version.py", "import os\n__version__ = '1.2'", "1.2"),
        ("p/version.py", "version = '1.2'", None),
        ("p/__init__.py", "raise SystemExit\n__version__ = '1.2'", "1.2"),
        ("p/__init__.py", "__version__ = read()", None),
        ("p/__init__.py", "__version__ = '1.2' if new else '1.1'", None),
        ("p/__init__.py", '__version__ = "1.2"  # "a" release', "1.2"),
        ("p/__init__.py", "def broken(", None),
        ("p/__init__.py", "\0", None),
        ("p/version/version", "0.7.0.dev\n", "0.7.0.dev"),
        ("p/version/version", "a\nb\n", None),
    ],
)
def test_the_packages_own_files(tmp_path: Path, file: str, text: str, version: str | None) -> None:
    write(tmp_path / file, text)
    found = versions.from_files(tmp_path, "p", ["p/version/version"])
    assert found == (Source(version, file) if version else None)


def test_a_lie_in_one_file_is_stepped_over_for_another(tmp_path: Path) -> None:
    write(tmp_path / "p/_version.py", "__version__ = '0.0.0'")
    assert versions.from_files(tmp_path, "p") == Source("0.0.0", "p/_version.py")
    write(tmp_path / "p/__init__.py", "__version__ = '1.2'")
    assert versions.from_files(tmp_path, "p") == Source("1.2", "p/__init__.py")


def at(tag: str = "", near: str = "", version: str = "") -> Checkout:
    return Checkout("abc", tag, near, version)


@pytest.mark.parametrize(
    ("recorded", "git", "version", "doubts"),
    [
        ([], None, "", 0),
        (["0.11.0rc1"], None, "0.11.0rc1", 0),
        (["0.11.0rc1", "0.11.0rc1+g1"], None, "0.11.0rc1", 0),
        (["0.11.0rc1+g1", "0.11.0rc1"], None, "0.11.0rc1+g1", 0),
        (["dev", "0.11.0rc1"], None, "0.11.0rc1", 1),
        (["0.11.0+empty"], None, "0.11.0+empty", 0),
        (["dev"], at(), "dev", 0),
        (["0.7.0.dev"], at("v0.7.0", "", "0.7.0"), "0.7.0", 1),
        (["0.9.0"], at("", "v0.11.0rc1", "0.11.0rc2.dev1+g1"), "0.11.0rc2.dev1+g1", 1),
        (["0.11.0rc1"], at("", "v0.11.0rc1", "0.11.0rc2.dev1+g1"), "0.11.0rc1", 0),
        (["0.8.0.dev"], at("", "v0.7.1", "0.7.2.dev9+g1"), "0.8.0.dev", 0),
        (["dev"], at("", "v0.7.1", "0.7.2.dev9+g1"), "0.7.2.dev9+g1", 1),
        ([], at("", "v0.7.1", "0.7.2.dev9+g1"), "0.7.2.dev9+g1", 0),
    ],
)
def test_the_best_of_several_versions_is_taken_and_doubts_are_told(
    recorded: list[str], git: Checkout | None, version: str, doubts: int
) -> None:
    said = [Source(text, f"place {number}") for number, text in enumerate(recorded)]
    best, notes = versions.choose_version([None, *said], git)
    assert (best.version, len(notes)) == (version, doubts)
