"""Status and revert of roots; the commands and a bundle have tests of the whole."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from patcher.changes.change import Change, Edit, PatchId, Record
from patcher.commands.applied import Removal, RevertedFile, next_lines, refuse_several, restart_lines
from patcher.messages.command_line import CommandLine
from patcher.messages.errors import Kind, Problem
from patcher.processes import RunningProcess
from patcher.targets.patched import PatchedRoot

ROOT = Path("/site")
PATCH, OTHER = PatchId("vllm", "rollout"), PatchId("vllm", "graph-capture")


def removal(pristine: bytes, after: bytes) -> Removal:
    """Of a patch with a file that changes, and one that was replaced."""
    changes = (
        Change(PurePosixPath("a.py"), b"ours", after, pristine),
        Change(PurePosixPath("b.py"), b"new", b"new", b"new"),
    )
    records = tuple(Record(patch, "1.0", (), ("a.py", "b.py"), "", "") for patch in (PATCH, OTHER))
    root = PatchedRoot(ROOT, (), records, ("a.py", "b.py"), pending=False)
    return Removal(root, Edit(ROOT, changes, remove=(PATCH,)))


@pytest.mark.parametrize(
    ("after", "dry_run", "line"),
    [
        (b"pristine", False, "  reverted a.py: no rlpatch lines left"),
        (b"pristine", True, "  would revert a.py: no rlpatch lines left"),
        (b"other lines", False, "  reverted a.py: lines of another patch stay in the file"),
    ],
)
def test_what_becomes_of_each_file_of_a_patch(after: bytes, dry_run: bool, line: str) -> None:
    found = removal(b"pristine", after)
    forgotten = "  nothing to revert in b.py: it has been replaced or removed, and no longer has the patch"
    assert list(found.lines(dry_run=dry_run)) == ["vllm rollout in /site", line, forgotten]
    assert list(found.payload(("n1",))) == [
        RevertedFile("/site", "a.py", True, ("n1",)),
        RevertedFile("/site", "b.py", False, ("n1",)),
    ]
    assert {one.nodes for one in found.payload()} == {None}


def test_a_diff_has_one_root() -> None:
    refuse_several([])
    refuse_several(["--path /a"])
    with pytest.raises(Problem) as caught:
        refuse_several(["--path /a", "--path /b", "--path /a"])
    assert (caught.value.kind, caught.value.hint) == (Kind.USAGE, "--path /a or --path /b")


def test_what_can_be_done_next() -> None:
    assert next_lines("vllm")[0] == f"next: `{CommandLine('diff', 'vllm')}` shows every inserted line"
    assert restart_lines([RunningProcess("17 vllm", here=True)])[1:] == ["  17 vllm"]
    assert len(restart_lines()) == 1
