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
from patcher.targets.versions import Checkout, parse_version

if TYPE_CHECKING:
    from packaging.version import Version


def top_of(root: Path) -> Path | None:
    """Return the folder at or above `root` with a `.git`, which may be a file; None if there is none."""
    return next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), None)


def describe(root: Path, path: PurePosixPath) -> Checkout | None:
    """Return the commit of the checkout around `root`, and its version by the git tags; None if git has no `path`.

    All texts are "" before the first commit. Raises Problem (ENVIRONMENT) if git is not installed or fails, as in a
    checkout of another user.
    """
    if top_of(root) is None or _git(root, "rev-parse", "--is-inside-work-tree") != b"true\n":
        return None
    if not _git(root, "ls-files", "--", str(path)):
        return None
    head = _first_line(root, "rev-parse", "--verify", "-q", "HEAD")
    return Checkout(head, *(_release(root) if head else ("", "", "")))


def pristine(root: Path, path: PurePosixPath) -> bytes | None:
    """Return the bytes of `path` at HEAD, with line endings as on disk; None if git cannot tell or a filter applies."""
    with contextlib.suppress(Problem):
        if top_of(root):
            attribute = _git(root, "check-attr", "-z", "filter", "--", str(path)).split(b"\0")[2:3]
            if attribute not in ([b"unspecified"], [b"unset"]):
                return None  # a filter is a program that the checkout names
            # --filters applies line-ending settings, so that the bytes compare with those on disk.
            return _git(root, "cat-file", "--filters", f"HEAD:./{path}")
    return None


@contextlib.contextmanager
def _git_environment() -> Iterator[None]:
    """Run the block without GIT_DIR and the like, and without git's locks and fetches; then restore `os.environ`."""
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
    """Return the stdout of git, run in `root`. Raises Problem (ENVIRONMENT) if git fails or is not installed."""
    top = top_of(root)
    with _git_environment():
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
            cause = Text("rlpatch needs git to read this git checkout, but git is not installed")
            raise Problem(Kind.ENVIRONMENT, cause, str(top), Text("install git")) from None
    if status == 0:
        return out
    lines = [line for line in err.splitlines() if line.strip()] or ["git printed no reason"]
    cause = Text("git failed: {error}", lines[-1].strip(" ."))
    hint: str = Text("run this to see the problem: git -C {checkout} status", top)
    if "dubious ownership" in err or "unsafe repository" in err:
        cause = Text("git does not read this checkout, because it belongs to another user (dubious ownership)")
        hint = f"git config --global --add safe.directory {top}"
    raise Problem(Kind.ENVIRONMENT, cause, str(top), hint)


def _first_line(root: Path, *words: str) -> str:
    """Return the first line that git with the arguments `words` prints in `root`, "" if the command fails."""
    try:
        return _git(root, *words).decode(errors="replace").partition("\n")[0]
    except Problem:
        return ""


def _release(root: Path) -> tuple[str, str, str]:
    """Return (version tag at HEAD, nearest version tag below HEAD, version of HEAD by these tags); "" if missing."""
    tags = _git(root, "tag", "--points-at", "HEAD").decode(errors="replace").split()
    at_head = {version: tag for tag in tags if (version := parse_version(tag))}
    if at_head:
        newest = max(at_head)
        return at_head[newest], "", str(newest)
    described = _first_line(root, "describe", "--tags", "--long", "--match", "v[0-9]*", "--match", "[0-9]*")
    near, _, commit = described.rpartition("-g")
    near, _, distance = near.rpartition("-")
    version = parse_version(near)
    return ("", near, _dev_version(version, int(distance), commit)) if version else ("", "", "")


def _dev_version(tag: Version, distance: int, commit: str) -> str:
    """Return the dev version of a commit `distance` commits after `tag`, as setuptools-scm forms it.

    3 commits after 0.11.0rc1 are 0.11.0rc2.dev3+gCOMMIT, 3 after 0.11.0 are 0.11.1.dev3+gCOMMIT.
    """
    release = [*tag.release]
    suffix = ""
    if tag.is_postrelease:
        suffix = f".post{(tag.post or 0) + 1}"
    elif tag.pre is not None:
        suffix = f"{tag.pre[0]}{tag.pre[1] + 1}"
    else:
        release[-1] += 1
    return f"{'.'.join(map(str, release))}{suffix}.dev{distance}+g{commit}"
