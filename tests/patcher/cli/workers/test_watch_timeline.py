"""``rlpatch watch --timeline``: the steps of a run as they end, and when it stops to look."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from fixtures.cache import REPOSITORY
from fixtures.timeline.small import WALL, ZERO, small
from fixtures.timeline.writer import Writer
from patcher.commands.reports import timelines
from tests.patches.probes.timelines import start

Run = Callable[..., Result]
DRIVER = """
def phase(name, seconds):
    s = span("phase", name)
    time.sleep(seconds)
for number in (1, 2, 3):
    phase("update_actor", 0.3)
    step(number)
time.sleep(60)
"""


def test_each_step_is_a_line_where_no_terminal_is(run: Run, tmp_path: Path) -> None:
    small(tmp_path, slow={4: 500})
    found = run("watch", tmp_path, "--timeline", "--once")
    lines = [line for line in found.stderr.splitlines() if line.startswith("step ")]
    assert lines[3].startswith("step 4: ")
    assert "trainer, rank 1: micro-batch in update_actor +0.500 s" in lines[3]
    assert "largest costs" in found.stdout
    assert not [line for line in run("watch", tmp_path, "--timeline", "--once", "-q").stderr.splitlines() if line]


@pytest.mark.parametrize("words", [("--once",), ()])
def test_a_folder_without_a_timeline(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    if words:
        assert "contains no timeline" in run("watch", tmp_path, "--timeline", *words, code=3).stderr
    else:  # the run may just begin
        assert run("watch", tmp_path, "--timeline", "--timeout", "0.1").stdout == ""


def test_it_ends_where_nothing_is_written_any_more(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path)
    monkeypatch.setattr(timelines, "QUIET_S", -1.0)
    assert "steps 1 to" in run("watch", tmp_path, "--timeline").stdout


def test_of_several_runs_the_newest_is_watched(run: Run, tmp_path: Path) -> None:
    small(tmp_path)
    small(tmp_path, steps=3, run="other", after_ms=600_000)
    found = run("watch", tmp_path, "--timeline", "--once")
    assert [line.split(":")[0] for line in found.stderr.splitlines() if line.startswith("step ")] == [
        "step 1", "step 2", "step 3",
    ]  # fmt: skip
    assert "run 2, the newest of 2 runs" in found.stderr


def test_the_newest_run_is_watched_even_if_it_has_no_driver_yet(run: Run, tmp_path: Path) -> None:
    small(tmp_path)
    engine = Writer(tmp_path, run="next", started_ms=(WALL + 3_600 * 10**6) // 1000)
    engine.iterate(ZERO, ZERO + 10_000, 4, 4)
    engine.close((ZERO + 20_000, WALL + 3_600 * 10**6))
    found = run("watch", tmp_path, "--timeline", "--once")
    assert "run 2, the newest of 2 runs" in found.stderr
    assert "no driver" in found.stdout


@pytest.mark.parametrize("height", [14, 20, 60])
def test_a_terminal_shows_the_newest_steps_whatever_its_height(height: int, tmp_path: Path) -> None:
    small(tmp_path, steps=50)
    screens: list[list[str]] = []
    timelines.follow(
        tmp_path, lambda lines, _news: screens.append([*lines]), 100, once=True, timeout=None, height=height
    )
    numbers = [int(line.split()[0]) for line in screens[0][: height - 1] if re.match(r" *\d+ +\d", line)]
    assert numbers == [*range(51 - len(numbers), 51)]
    assert min(40, height - 11) < len(numbers) + 1


def test_what_the_recorder_writes_is_seen_while_it_writes(tmp_path: Path) -> None:
    driver = start(DRIVER, tmp_path)
    words = [sys.executable, "-m", "patcher", "watch", str(tmp_path), "--timeline"]
    seen = subprocess.Popen(
        words, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    try:
        assert seen.stderr
        lines: list[str] = []
        end = time.monotonic() + 60
        while len(lines) < 3 and time.monotonic() < end:
            line = seen.stderr.readline()
            lines += [line] if line.startswith("step ") else []
        assert [line.split(":")[0] for line in lines] == ["step 1", "step 2", "step 3"]
        assert all(float(line.split()[2]) >= 0.3 for line in lines)
        assert driver.poll() is None
    finally:
        seen.kill()
        driver.kill()
        seen.communicate()
        driver.communicate()
