"""Selection of the short run: a few cases of a list, a few examples, and nothing marked; -m and names of tests see all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.matrix import CRASH, MATRIX, examples, of_releases, thinned, thinned_rows

pytest_plugins = ["pytester"]
ROWS = [("1.0", 1), ("1.1", 2), ("1.2", 3)]


def test_all_but_the_short_ones_are_marked() -> None:
    assert thinned(["a", "b"], ["b"]) == [pytest.param("a", marks=MATRIX), "b"]
    assert thinned(["a", "b"], ["b"], CRASH) == [pytest.param("a", marks=CRASH), "b"]
    assert of_releases(["1.1"], ROWS) == [
        pytest.param("1.0", 1, marks=MATRIX), pytest.param("1.1", 2), pytest.param("1.2", 3, marks=MATRIX)
    ]  # fmt: skip
    with pytest.raises(AssertionError):
        thinned(["a"], ["c"])


@pytest.mark.parametrize(("profile", "expected"), [("short", [20, 2, 2]), ("rlpatch", [200, 25, 2])])
def test_examples_follow_the_run(profile: str, expected: list[int]) -> None:
    before = settings.get_current_profile_name()
    settings.load_profile(profile)
    try:
        assert [examples(number) for number in (200, 25, 2)] == expected
    finally:
        settings.load_profile(before)


SHORT, XDIST = ["short 10"], ("-p", "xdist", "-n", "1")
LONG, OTHER = ["long"], ["long", "other"]
RUNS: tuple[tuple[tuple[str, ...], list[str]], ...] = (
    (XDIST, SHORT),
    ((*XDIST, "tests/test_it.py"), SHORT),
    ((*XDIST, "tests/test_it.py::test_long", "tests/test_other.py"), LONG),
    ((), SHORT),
    (("tests",), SHORT),
    (("-k", "test"), SHORT),
    (("-k", "long"), []),
    (("-m", "matrix"), OTHER),
    (("--thorough", "tests/test_other.py"), ["other"]),
    (("-m", "matrix or hypothesis"), [*OTHER, "short 100"]),
    (("tests/test_it.py::test_long", "tests/test_it.py::test_short"), [*LONG, "short 100"]),
)


@pytest.mark.parametrize(("words", "expected"), thinned_rows(RUNS, RUNS[1:2]))
def test_what_is_marked_runs_where_a_mark_or_a_test_is_named(
    pytester: pytest.Pytester, words: tuple[str, ...], expected: list[str]
) -> None:
    root = Path(__file__).parents[1]
    pytester.mkdir("tests")
    for name in ("conftest.py", "matrix.py", "__init__.py"):
        (pytester.path / "tests" / name).write_text((root / "tests" / name).read_text())
    pytester.makepyprojecttoml(
        f"[tool.pytest.ini_options]\ntestpaths = ['tests']\npythonpath = ['.', '{root}']\nmarkers = ['matrix: m']\n"
        "addopts = '-p no:hydra_pytest'\n"
    )
    (pytester.path / "tests" / "test_it.py").write_text(
        """
import pytest
from hypothesis import given, settings, strategies as st
from pathlib import Path
from tests.matrix import MATRIX, examples

@MATRIX
def test_long():
    Path("seen.long").touch()

@pytest.mark.parametrize("number", (1, 2))
def test_skipped(number):
    pytest.skip("needs a capture")

@settings(max_examples=examples(100))
@given(st.integers())
def test_short(number):
    Path(f"seen.short {settings().max_examples}").touch()
"""
    )
    (pytester.path / "tests" / "test_other.py").write_text(
        "from tests.matrix import MATRIX\n\n@MATRIX\ndef test_other():\n    open('seen.other', 'w')\n"
    )
    done = pytester.runpytest_subprocess(*words)
    assert done.ret == (0 if expected else pytest.ExitCode.NO_TESTS_COLLECTED)
    assert ("-m 'engine or matrix or crash'" in done.stdout.str()) == (not expected)
    assert sorted(path.suffix[1:] for path in pytester.path.glob("seen.*")) == expected
    assert ("2 skipped: needs a capture" in done.stdout.lines) == (expected == SHORT)
