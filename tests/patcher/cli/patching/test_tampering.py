"""An edit of inserted lines is named by its own line, with what was there, by every command that meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patcher.cli.conftest import WORKER

COMMANDS = {
    "status": ("status",),
    "diff": ("diff",),
    "revert": ("revert",),
    "apply": ("apply", "vllm-ascend", "--decode", "5:9"),
}


def value(lines: list[str]) -> tuple[int, str, str]:
    """Another window in the block."""
    at = next(at for at, line in enumerate(lines) if 'WINDOW = "30:60"' in line)
    before = lines[at]
    lines[at] = before.replace("30:60", "30:90")
    return at, before, lines[at]


def call(lines: list[str]) -> tuple[int, str, str]:
    """Another argument in a call line, below an edit of somebody's own."""
    lines.insert(0, "import os\n")
    at = next(at for at, line in enumerate(lines) if '("step", scheduler_output)' in line)
    before = lines[at]
    lines[at] = before.replace("scheduler_output", "other")
    return at, before, lines[at]


def removed(lines: list[str]) -> tuple[int, str, str]:
    """A line of the block less."""
    at = next(at for at, line in enumerate(lines) if 'WINDOW = "30:60"' in line)
    return at, lines.pop(at), lines[at]


def added(lines: list[str]) -> tuple[int, str, str]:
    """A line of the block more."""
    at = next(at for at, line in enumerate(lines) if 'WINDOW = "30:60"' in line) + 1
    lines.insert(at, "        MINE = 1\n")
    return at, "none", lines[at]


@pytest.mark.parametrize("edit", [value, call, removed, added])
def test_the_edited_line_is_named_with_what_was_there(
    run, site: Path, edit: Callable[[list[str]], tuple[int, str, str]]
) -> None:
    run("apply", "vllm-ascend", "--decode", "30:60", "--path", site)
    lines = (site / WORKER).read_text().splitlines(keepends=True)
    at, expected, found = edit(lines)
    (site / WORKER).write_text("".join(lines))
    advice = set()
    for words in COMMANDS.values():
        (problem,) = json.loads(run(*words, "--path", site, "--json", code=4).stdout)["problems"]
        assert problem["where"] == f"{site / WORKER}:{at + 1}"
        assert problem["notes"] == [f"expected line: {expected.strip()}", f"actual line: {found.strip()}"]
        advice.add(problem["next"])
    assert len(advice) == 1


def test_without_a_backup_the_block_is_named(run, site: Path) -> None:
    run("apply", "vllm-ascend", "--decode", "30:60", "--path", site)
    worker = site / WORKER
    worker.write_text(worker.read_text().replace('"30:60"', '"30:90"'))
    for file in (site / ".rlpatch").rglob("*"):
        if file.is_file() and b"class NPUWorker" in file.read_bytes():
            file.unlink()
    (problem,) = json.loads(run("revert", "--path", site, "--json", code=4).stdout)["problems"]
    assert problem["where"].startswith(f"{worker}:")
