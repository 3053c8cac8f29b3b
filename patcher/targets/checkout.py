"""A source checkout as git knows it: its commit, its release, and what is committed of a file.

Everything of GitPython is here, and imported only where a target lies in a checkout: wheel installs work
without git.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from patcher.messages import Kind, Problem, Text
from patcher.targets.versions import Checkout, understood

if TYPE_CHECKING:
    from packaging.version import Version


def top_of(root: Path) -> Path | None:
    """The folder at or above ``root`` with a ``.git``, which is a file in worktrees and submodules."""
    return next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), None)


def describe(root: Path, path: PurePosixPath) -> Checkout | None:
    """The checkout around ``root``; None if there is none, or if its git does not know ``path``, relative to ``root``.

    Raises: Problem(ENVIRONMENT) if git is not installed or refuses.
    """
    if top_of(root) is None or _git(root, "rev-parse", "--is-inside-work-tree") != b"true\n":
        return None
    if not _git(root, "ls-files", "--", str(path)):
        return None
    head = _optional(root, "rev-parse", "--verify", "-q", "HEAD")
    return Checkout(head, *(_release(root) if head else ("", "", "")))


def pristine(root: Path, path: PurePosixPath) -> bytes | None:
    """The bytes of ``path`` at HEAD as a fresh checkout would hold them; None where git cannot tell."""
    with contextlib.suppress(Problem):
        if top_of(root):
            attribute = _git(root, "check-attr", "-z", "filter", "--", str(path)).split(b"\0")[2:3]
            if attribute not in ([b"unspecified"], [b"unset"]):
                return None  # a filter is a program that the checkout names
            # --filters applies line-ending settings, so that the bytes compare with those on disk.
            return _git(root, "cat-file", "--filters", f"HEAD:./{path}")
    return None


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """The process's environment as our questions need it, restored afterwards."""
    before = dict(os.environ)
    # A git hook exports GIT_DIR and GIT_INDEX_FILE of its own repository, which need not be this one.
    for name in before:
        if name.startswith("GIT_") and name.endswith(("DIR", "TREE", "FILE")):
            del os.environ[name]
    # Without locks `git status` does not write its index. What is lacking in a partial clone is not fetched.
    os.environ.update(GIT_PYTHON_REFRESH="quiet", GIT_OPTIONAL_LOCKS="0", GIT_NO_LAZY_FETCH="1")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _git(root: Path, *words: str) -> bytes:
    """The stdout of one git command in ``root``. Raises: Problem(ENVIRONMENT) with the reason of git."""
    top = top_of(root)
    with _environment():
        import git  # 0.1 s, and raises where git is not installed unless GIT_PYTHON_REFRESH is quiet

        try:
            status, out, err = git.Git(root).execute(
                ["git", "-c", "core.fsmonitor=", *words],  # that is a program, too
                with_extended_output=True,
                with_exceptions=False,
                stdout_as_string=False,
                strip_newline_in_stdout=False,
            )
        except git.GitCommandNotFound:
            cause = Text("this is a git checkout, and git is not installed")
            raise Problem(Kind.ENVIRONMENT, cause, str(top), Text("install git")) from None
    if status == 0:
        return out
    lines = [line for line in err.splitlines() if line.strip()] or ["git failed"]
    cause = Text("git: {error}", lines[-1].strip(" ."))
    hint: str = Text("see what this says: git -C {top} status", top)
    if "dubious ownership" in err or "unsafe repository" in err:
        cause = Text("git refuses this checkout, because it belongs to another user (dubious ownership)")
        hint = f"git config --global --add safe.directory {top}"
    raise Problem(Kind.ENVIRONMENT, cause, str(top), hint)


def _optional(root: Path, *words: str) -> str:
    """The first line of a git command's answer, ``""`` where it has none: no commit yet, no tag."""
    try:
        return _git(root, *words).decode(errors="replace").partition("\n")[0]
    except Problem:
        return ""


def _release(root: Path) -> tuple[str, str, str]:
    """The version tag at HEAD, else the nearest one below, and the version that follows from them."""
    tags = _git(root, "tag", "--points-at", "HEAD").decode(errors="replace").split()
    at_head = {version: tag for tag in tags if (version := understood(tag))}
    if at_head:
        newest = max(at_head)
        return at_head[newest], "", str(newest)
    described = _optional(root, "describe", "--tags", "--long", "--match", "v[0-9]*", "--match", "[0-9]*")
    near, _, commit = described.rpartition("-g")
    near, _, distance = near.rpartition("-")
    version = understood(near)
    return ("", near, _after(version, int(distance), commit)) if version else ("", "", "")


def _after(tag: Version, distance: int, commit: str) -> str:
    """The dev version of a commit after ``tag``, as setuptools-scm would call it."""
    release = [*tag.release]
    suffix = ""
    if tag.is_postrelease:
        suffix = f".post{(tag.post or 0) + 1}"
    elif tag.pre is not None:
        suffix = f"{tag.pre[0]}{tag.pre[1] + 1}"
    else:
        release[-1] += 1
    return f"{'.'.join(map(str, release))}{suffix}.dev{distance}+g{commit}"
