"""The Python programs among the words of an invocation, the files behind them, and what decorates their functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from patcher.launches import Invocation, decorator, programs


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("python3 -m a.b c=1 d", [("a.b", True, ("c=1", "d"))]),
        ("python3.11 -u run.py --x", [("run.py", False, ("--x",))]),
        ("./run.py x", [("./run.py", False, ("x",))]),
        ("torchrun --nproc_per_node 8 -m a.b", [("a.b", True, ())]),
        ("uv run train.py -m c", [("train.py", False, ("-m", "c")), ("c", True, ())]),
        ("tar -m a.b", [("a.b", True, ())]),
        ("cat run.py", []),
        ("python3", []),
        ("", []),
    ],
)
def test_programs(argv: str, expected: list[tuple[str, bool, tuple[str, ...]]]) -> None:
    assert [tuple(one) for one in programs(Invocation("x", tuple(argv.split()), {}))] == expected


def test_a_word_that_only_the_run_tells_is_no_program() -> None:
    assert list(programs(Invocation("x", ("python3", "-m", None, "a=1"), {}))) == []


@pytest.mark.parametrize(
    ("argv", "file"),
    [
        ("python -m a.b", "a/b.py"),
        ("python -m a", "a/__main__.py"),
        ("python a/b.py", "a/b.py"),
        ("python -m a.c", None),
        ("python -m " + "a" * 5000, None),
        ("python \0.py", None),
    ],
)
def test_files(tmp_path: Path, argv: str, file: str | None) -> None:
    (tmp_path / "second" / "a").mkdir(parents=True)
    for name in ("b.py", "__main__.py"):
        (tmp_path / "second" / "a" / name).touch()
    (program,) = programs(Invocation("x", tuple(argv.split(" ")), {}))
    found = program.file([tmp_path / "first", tmp_path / "second"])
    assert found == (tmp_path / "second" / file if file else None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@hydra.main('conf', config_name='x', version_base=None)\ndef f(): ...", {0: "conf", "config_name": "x", "version_base": None}),
        ("@other\n@hydra.main(config_name=NAME)\ndef f(): ...", {}),
        ("@hydra.main\ndef f(): ...", None),
        ("@main('conf')\ndef f(): ...", None),
        ("class A:\n @hydra.main('conf')\n def f(self): ...", None),
        ("no python", None),
        ("\0", None),
        ("", None),
    ],
)  # fmt: skip
def test_decorators(text: str, expected: dict[str | int, object] | None) -> None:
    assert decorator(text, "hydra.main") == expected
