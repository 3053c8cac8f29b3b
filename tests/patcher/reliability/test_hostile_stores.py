"""A store as an attacker or an accident leaves it: a clear message, the right exit code, and nothing changed."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.alarms import at_most
from tests.matrix import CRASH, thinned
from tests.patcher.reliability import package
from tests.patcher.reliability.package import V1, Picture, kept, named

APPLY = ("apply", "vllm-ascend", "--decode", "30:60", "--save-path", "/tmp/traces")
AGAIN = ("apply", "vllm-ascend", "--decode", "1:2", "--save-path", "/tmp/traces")
COMMANDS = (("status",), ("diff",), ("recover",), AGAIN, ("revert",))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = package.install(tmp_path / "site")
    assert package.rlpatch(site, *APPLY).exit_code == 0
    return site


def doctored(change: Callable[[dict[str, Any]], object], name: str = "state.json") -> Callable[[Path], object]:
    """A record with another content."""

    def arrange(site: Path) -> None:
        path = site / ".rlpatch" / name
        top = json.loads(path.read_bytes())
        change(top)
        path.write_text(json.dumps(top))

    return arrange


def text(content: bytes, name: str = "state.json") -> Callable[[Path], object]:
    return lambda site: (site / ".rlpatch" / name).write_bytes(content)


def pipe(name: str) -> Callable[[Path], object]:
    def arrange(site: Path) -> None:
        (site / name).unlink(missing_ok=True)
        os.mkfifo(site / name)

    return arrange


def device(site: Path) -> None:
    (site / V1).unlink()
    try:
        os.mknod(site / V1, 0o20666, os.makedev(1, 5))  # /dev/zero has no end
    except PermissionError:
        pytest.skip("only root can make devices")


def in_folder(name: str) -> Callable[[Path], object]:
    def arrange(site: Path) -> None:
        (site / name).unlink(missing_ok=True)
        (site / name / "theirs").mkdir(parents=True)

    return arrange


def time_of(field: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda top: top["files"][V1]["pristine"].update({field: value})


NESTED = b'{"version": 1, "records": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
OWNER = b'{"host": "h", "pid": Infinity, "space": "", "started": "", "words": ""}'
# What is there, and how commands may end.
CASES = {
    "a pipe for a file": (pipe(V1), {0, 3, 4, 5}),
    "a device for a file": (device, {0, 3, 4, 5}),
    "a record of a pipe": (lambda site: (pipe("vllm_ascend/pipe.py")(site), doctored(lambda top: named(top, "vllm_ascend/pipe.py"))(site)), {0, 4, 5}),
    "an entry of a pipe": (lambda site: (pipe("vllm_ascend/pipe.py")(site), doctored(lambda top: kept(top, "vllm_ascend/pipe.py"))(site)), {0, 4, 5}),
    "a pipe for the registry": (pipe(".rlpatch/state.json"), {5}),
    "a pipe for a journal": (pipe(".rlpatch/journal.json"), {0, 5}),
    "a pipe for the lock": (pipe(".rlpatch/lock"), {0, 5}),
    "a pipe for the claim": (pipe(".rlpatch/lock.owner"), {0, 5}),
    "a folder for the lock": (in_folder(".rlpatch/lock"), {0, 5}),
    "a folder for the claim": (in_folder(".rlpatch/lock.owner"), {0, 5}),
    "a folder for the registry": (in_folder(".rlpatch/state.json"), {5}),
    "a folder named like a temporary file": (in_folder(".rlpatch/.rlpatch-tmp-theirs"), {0}),
    "a folder named like a backup": (in_folder(f".rlpatch/{'0' * 64}"), {0}),
    "a folder in the package named like a temporary file": (in_folder("vllm_ascend/worker/.rlpatch-tmp-theirs"), {0}),
    "a registry nested deeply": (text(NESTED), {5}),
    "a journal nested deeply": (text(NESTED, "journal.json"), {0, 5}),
    "a claim nested deeply": (text(b"[" * 200_000, "lock.owner"), {0, 5}),
    "a lock of an infinite process": (text(OWNER, "lock"), {0}),
    "a number without an end": (text(b'{"version": 1, "records": [' + b"9" * 10_000 + b"]}"), {5}),
    "a version without an end": (text(b'{"version": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"), {5}),
    "a long name": (doctored(lambda top: named(top, "x" * 300)), {5}),
    "a long path": (doctored(lambda top: named(top, "/".join(["x" * 200] * 30))), {5}),
    "a path that is too long below the root": (doctored(lambda top: named(top, "/".join(["x" * 200] * 20))), {0, 5}),
    "a name of no encoding": (doctored(lambda top: named(top, "\ud800.py")), {5}),
    "a source named as bytecode": (doctored(lambda top: kept(top, "vllm_ascend/worker/__pycache__/x.pyc")), {5}),
    "bytecode in a record": (doctored(lambda top: named(top, "vllm_ascend/worker/__pycache__/x.pyc")), {5}),
    "a folder that is false": (doctored(lambda top: top["folders"].update({"vllm_ascend/worker": False})), {0, 5}),
    "a folder that is a number": (doctored(lambda top: top["folders"].update({"vllm_ascend": 1})), {0, 5}),
    "a name with a zero": (doctored(lambda top: named(top, "a\0.py")), {5}),
    "a time beyond all": (doctored(time_of("mtime_ns", 10**40)), {0, 5}),
    "a time of no number": (doctored(time_of("mtime_ns", float("inf"))), {0, 5}),
    "a time before 1970": (doctored(time_of("mtime_ns", -(10**18))), {0}),
    "an owner beyond all": (doctored(time_of("uid", 2**32)), {0, 5}),
    "an owner below all": (doctored(time_of("uid", -2)), {0, 5}),
    "attributes that are none": (doctored(time_of("attributes", [["user.x", "?"]])), {0, 5}),
    "attributes of no shape": (doctored(time_of("attributes", [["user.x"]])), {0, 5}),
    "attributes of the kernel": (doctored(time_of("attributes", [["security.capability", "AQAAAg=="]])), {0}),
}  # fmt: skip
USUAL = {"a pipe for a file", "a device for a file", "a pipe for the lock", "a pipe for the claim", "a long path",
         "a folder for the lock", "a folder named like a temporary file", "a registry nested deeply",
         "a lock of an infinite process", "a name of no encoding", "a time beyond all",
         "a folder in the package named like a temporary file"}  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--thorough", default=False)
        metafunc.parametrize("case", [case for case in CASES if everything or case in USUAL])


def test_an_odd_store_is_said_and_nothing_is_changed(site: Path, case: str) -> None:
    arrange, codes = CASES[case]
    arrange(site)
    before = Picture(site)
    for words in COMMANDS:
        with at_most(60):
            said = package.rlpatch(site, *words)
        assert said.exit_code in codes, (words, said.output, said.stderr, said.exception)
        assert "Traceback" not in said.stderr
        if said.exit_code:
            assert "Error: " in said.stderr
            assert Picture(site) == before, words


def test_a_lock_that_has_another_name_is_not_written(site: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"theirs")
    (site / ".rlpatch" / "lock").unlink()
    os.link(theirs, site / ".rlpatch" / "lock")
    for words in (AGAIN, ("revert",)):
        said = package.rlpatch(site, *words)
        assert (said.exit_code, "the lock file has hard links" in said.stderr) == (5, True)
    assert theirs.read_bytes() == b"theirs"


# --- a tree that changes while root works in it ---------------------------------------------------------

FOLDERS = (".rlpatch", "vllm_ascend/worker", "vllm_ascend/worker/__pycache__")
CALLS = (
    "open",
    "replace",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "chmod",
    "fchmod",
    "utime",
    "symlink",
    "chown",
    "fchown",
)


def exchanged(one: Path, other: Path) -> None:
    """Let two names lead to what the other one led to, in one step."""
    here, exchange = -100, 2
    ctypes.CDLL(None).renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange)


def trap(site: Path, outside: Path, name: str) -> tuple[Path, Path]:
    """A link to a folder outside, which holds the same as the folder ``name``: the two names to be exchanged."""
    outside.mkdir()
    for path in (path for path in (site / name).iterdir() if path.is_file()):
        (outside / path.name).write_bytes(path.read_bytes())
    package.age(outside)
    (site / "link").symlink_to(outside)
    return site / name, site / "link"


@contextlib.contextmanager
def struck(point: int, pair: tuple[Path, Path]) -> Iterator[list[str]]:
    """Exchange the names just before the ``point``-th call that changes something; gives the calls."""
    calls: list[str] = []
    opens = os.open

    def striking(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: Any, **options: Any) -> object:
            if real is not opens or arguments[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                if len(calls) == point:
                    exchanged(*pair)
                calls.append(name)
            return real(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, striking(name, getattr(os, name)))
        yield calls


@pytest.mark.parametrize("name", thinned(FOLDERS, FOLDERS[:1]))
@pytest.mark.parametrize("words", thinned([AGAIN, ("revert",)], [AGAIN], CRASH), ids=["apply", "revert"])
def test_a_folder_that_becomes_a_link_at_any_call_is_not_written_through(
    tmp_path: Path, thorough: bool, name: str, words: tuple[str, ...]
) -> None:
    template, point, struck_at = package.install(tmp_path / "template"), 3, 0
    original = Picture(template)
    assert package.rlpatch(template, *APPLY).exit_code == 0
    while True:
        site, outside = tmp_path / f"site{point}", tmp_path / f"outside{point}"
        shutil.copytree(template, site, symlinks=True)
        pair = trap(site, outside, name)
        before = Picture(outside), outside.stat().st_mtime_ns
        with struck(point, pair) as calls:
            said = package.rlpatch(site, *words)
        assert said.exit_code in (0, 4, 5, 6, 7), (point, said.stderr, said.exception)
        assert (Picture(outside), outside.stat().st_mtime_ns) == before, (point, calls[point])
        if len(calls) <= point:
            break
        struck_at += 1
        exchanged(*pair)
        (site / "link").unlink()
        for command in ("recover", "revert"):  # it was an attack, and not the end
            said = package.rlpatch(site, command)
            assert said.exit_code == 0, (point, command, said.stderr)
        assert Picture(site).held == original.held, (point, calls[point])
        point += 1 if thorough else 8
    assert struck_at > (20 if thorough else 2)


@contextlib.contextmanager
def exchanging(pair: tuple[Path, Path]) -> Iterator[None]:
    """Let another process exchange names meanwhile, over and over again."""
    child = os.fork()
    if child == 0:
        end = time.monotonic() + 600
        while time.monotonic() < end:
            exchanged(*pair)
        os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("name", thinned(FOLDERS, FOLDERS[:1], CRASH))
def test_nothing_is_written_through_a_link_that_comes_and_goes(tmp_path: Path, thorough: bool, name: str) -> None:
    site, outside = package.install(tmp_path / "site"), tmp_path / "outside"
    assert package.rlpatch(site, *APPLY).exit_code == 0
    pair = trap(site, outside, name)
    before, codes = Picture(outside), set()
    with exchanging(pair):
        for turn in range(150 if thorough else 3):
            for words in (AGAIN if turn % 2 else APPLY, ("status",), ("recover",), ("revert",)):
                with at_most(60):
                    said = package.rlpatch(site, *words)
                codes.add(said.exit_code)
                assert said.exit_code in (0, 2, 3, 4, 5, 6, 7), (words, said.stderr, said.exception)
            assert (Picture(outside), outside.stat().st_mtime_ns) == (before, package.OLD)
    assert len(codes) > 1 or not thorough  # else nothing was met, and nothing is proven
