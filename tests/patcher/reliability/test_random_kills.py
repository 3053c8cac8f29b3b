"""Every command that writes, killed at any moment: what is not ours stays as it was, and the next command ends it."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from patcher.cli import rlpatch
from tests.matrix import CRASH, thinned
from tests.patcher.cli.conftest import release
from tests.patcher.reliability.package import WINDOW, invoked
from tests.patcher.store.tree import picture
from tests.patcher.traces.recorded import steps
from tests.patcher.traces.tools import standin
from tests.patcher.workers.maker import Saved

Seen = dict[str, tuple[object, ...]]


class Scene(NamedTuple):
    """What lies in a folder, the command that is killed there, and what is typed then: afterwards all is as at first.

    ``ours`` are the names that the command writes, and what it makes beside them on the way.
    """

    prepare: Callable[[Path], object]
    words: tuple[str, ...]
    ours: str
    then: tuple[tuple[str, ...], ...] = ()
    stays: str = ""
    """Of what is ours that which may be another afterwards, or left over."""


def applied(_folder: Path) -> None:
    assert invoked(*APPLY).exit_code == 0


def page(folder: Path) -> None:
    steps().torch(folder / "t.json")
    (folder / "r.html").write_text("all files were restored")


def on_demand(folder: Path) -> None:
    Saved(folder / "saved").state(on_demand=True, request="abc123")


def not_parsed(folder: Path) -> None:
    """What a probe on an NPU leaves, as far as `analyse` looks at it."""
    path = folder / "traces" / "host_dp0_rank0_77_77_20261122041742076_ascend_pt"
    (path / "FRAMEWORK").mkdir(parents=True)
    (path / "FRAMEWORK" / "torch.op_range").write_bytes(b"ProfilerStep#3")
    (path / "profiler_info_0.json").write_text("{}")


AT = ("--path", "site")
APPLY = ("apply", "vllm-ascend", *WINDOW, *AT)
TARGET = r"site|site/\.rlpatch(/.*)?|site/vllm_ascend/worker(/worker_v1\.py|/__pycache__(/.*)?|/\.[^/]*)?"
BESIDE = r"\.|\.[^/]{8}(/.*)?|"
SCENES = {
    "apply": Scene(lambda folder: None, APPLY, TARGET, (("recover", *AT), ("revert", *AT)), "site"),
    "apply again": Scene(
        applied, ("apply", "vllm-ascend", "--decode", "5:9", *AT), TARGET, (("recover", *AT), ("revert", *AT)), "site"
    ),
    "revert": Scene(applied, ("revert", *AT), TARGET, (("recover", *AT), ("revert", *AT)), "site"),
    "run": Scene(lambda folder: None, ("run", "vllm-ascend", *WINDOW, *AT, "--", "sleep", "0.02"), ""),
    "bundle": Scene(
        lambda folder: invoked("bundle", "vllm-ascend", *WINDOW, *AT, "-o", "patch.pyz"),
        ("bundle", "vllm-ascend", "--decode", "5:9", *AT, "-o", "patch.pyz"),
        r"\.|patch\.pyz|\.[^/]*",
        stays=r"\.|patch\.pyz|\.[^/]*",
    ),
    "report": Scene(page, ("report", "t.json", "-o", "r.html"), BESIDE + r"r\.html", stays=BESIDE + r"r\.html"),
    "compare": Scene(
        page, ("compare", "t.json", "t.json", "--force", "-o", "r.html"), BESIDE + r"r\.html", stays=BESIDE + r"r\.html"
    ),
    "trigger": Scene(
        on_demand,
        ("trigger", "--decode", "5:9", "--save-path", "saved"),
        r"saved/\.rlpatch(/rollout\.request|/\.[^/]*(/.*)?)?",
        stays=r"saved/\.rlpatch(/rollout\.request|/\.[^/]*(/.*)?)?",
    ),
    "analyse": Scene(
        not_parsed,
        ("analyse", "traces", "--python", sys.executable),
        r"traces|traces/\.rlpatch(/.*)?|traces/[^/]*_ascend_pt(/ASCEND_PROFILER_OUTPUT(\.before)?(/.*)?)?",
        (("analyse", "traces", "--python", sys.executable),),
        r"traces|traces/\.rlpatch(/.*)?|traces/[^/]*_ascend_pt(/ASCEND_PROFILER_OUTPUT(/.*)?)?",
    ),
}


def seen(folder: Path, ours: str) -> Seen:
    """What lies there, but for names that match ``ours``."""
    return {name: how for name, how in picture(folder).items() if not re.fullmatch(ours, name)}


def typed(words: tuple[str, ...], said: Path, moment: float | None = None) -> float:
    """Type it in a child, which is killed in that ``moment``, with all that it has started; how long it took."""
    began, child = time.monotonic(), os.fork()
    if child == 0:
        os.setpgrp()
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = 1
        try:
            sys.stdout, sys.stderr = (open(one, "w", closefd=False) for one in (1, 2))  # noqa: SIM115
            rlpatch.main([*words], prog_name="rlpatch")
        except SystemExit as done:
            code = int(done.code or 0)
        finally:
            os._exit(code)
    if moment is not None:
        time.sleep(moment)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    took = time.monotonic() - began
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # the command of a run, a parser
    assert moment is not None or os.waitstatus_to_exitcode(status) == 0, said.read_text()
    return took


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kills" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--thorough", default=False)
        metafunc.parametrize("kills", [range(200) if everything else range(4)], ids=len)


@pytest.mark.parametrize("name", thinned([*SCENES], [*SCENES][:2], CRASH))
def test_a_command_that_is_killed_touches_nothing_of_others(
    name: str, kills: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, template, said, scratch = SCENES[name], tmp_path / "template", tmp_path / "said", tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv("PYTHONPATH", str(standin.install(tmp_path / "packages")))
    monkeypatch.setenv("STANDIN", "whole")
    release(template / "site")
    monkeypatch.chdir(template)
    original = seen(template, "site")
    scene.prepare(template)
    if scene.stays != "site":
        original = seen(template, scene.stays)
    longest = 0.0
    for kill in (-2, -1, *kills):
        # One of its own for each: the parser of an `analyse` that was killed goes on for a moment.
        folder = shutil.copytree(template, tmp_path / f"work{kill}", symlinks=True)
        monkeypatch.chdir(folder)
        if kill < 0:  # at first it reads what it has never read, then it takes as long as it does
            longest = typed(scene.words, said)
            continue
        before = seen(folder, scene.ours)
        typed(scene.words, said, random.Random(f"{name} {kill}").uniform(0, longest))
        assert seen(folder, scene.ours) == before, kill
        for words in scene.then:
            deadline = time.monotonic() + 20
            while (result := invoked(*words)).exit_code == 5 and time.monotonic() < deadline:
                time.sleep(0.1)
            assert result.exit_code == 0, (kill, words, result.output)
        assert seen(folder, scene.stays) == original, kill
        assert all(left.name.startswith("rlpatch-run-") for left in scratch.iterdir())
        assert "Traceback" not in said.read_text()
        monkeypatch.chdir(template)
        shutil.rmtree(folder, ignore_errors=True)
