"""What git knows of a source checkout: its commit, its release, which files were edited, and from what.

Everything of GitPython is here, and imported only where a target lies in a checkout: wheel installs work
without git.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from patcher.messages.errors import Kind, Problem

if TYPE_CHECKING:
    from git import Repo
    from packaging.version import Version


class Checkout(NamedTuple):
    """A git work tree, seen from some files in it.

    ``top`` is its top folder, ``head`` the commit (empty before the first), ``tag`` a version tag at HEAD,
    ``near`` the nearest one below HEAD, ``version`` what these two say (commits after v0.11.0rc1 are
    0.11.0rc2.devN, as setuptools-scm has it). ``dirty`` are the files with uncommitted changes, ``unknown``
    those not in git.
    """

    top: Path
    head: str
    tag: str
    near: str
    version: str
    dirty: tuple[PurePosixPath, ...]
    unknown: tuple[PurePosixPath, ...]

    @property
    def note(self) -> str:
        """One line for people: ``git: a1b2c3d, worker_v1.py has uncommitted changes``."""
        parts = [self.head[:7] or "no commit yet"]
        parts += [f"{path.name} has uncommitted changes" for path in self.dirty]
        parts += [f"{path.name} is not in git" for path in self.unknown]
        return "git: " + ", ".join(parts)


def top_of(root: Path) -> Path | None:
    """The folder at or above ``root`` with a ``.git``, which is a file in worktrees and submodules."""
    return next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), None)


def describe(root: Path, paths: Sequence[PurePosixPath] = ()) -> Checkout | None:
    """The checkout around ``root`` and the state of ``paths``, which are relative to ``root``.

    Out: None if there is no checkout. Raises: Problem(ENVIRONMENT) if git is not installed or refuses.
    """
    with _repository(root) as repo:
        if repo is None:
            return None
        _git(repo, "rev-parse", "--git-dir")  # git refuses here, if it does
        top = _top(repo)
        names = {_below(top, root, path): path for path in paths}
        known, changed = _known(repo, names), _changed(repo, names)
        head = _optional(repo, "rev-parse", "--verify", "-q", "HEAD")
        tag, near, version = _release(repo) if head else ("", "", "")
        return Checkout(
            top=top,
            head=head,
            tag=tag,
            near=near,
            version=version,
            dirty=tuple(path for name, path in names.items() if name in changed),
            unknown=tuple(path for name, path in names.items() if name not in known),
        )


def pristine(root: Path, path: PurePosixPath) -> bytes | None:
    """The bytes of ``path`` at HEAD as a fresh checkout would hold them; None where git cannot tell."""
    try:
        with _repository(root) as repo:
            if repo is None:
                return None
            # --filters applies line-ending settings, so that the bytes compare with those on disk.
            return _git(repo, "cat-file", "--filters", f"HEAD:{_below(_top(repo), root, path)}")
    except Problem:
        return None


@contextlib.contextmanager
def _repository(root: Path) -> Iterator[Repo | None]:
    top = top_of(root)
    if top is None:
        yield None
        return
    with _environment():
        import git  # 0.1 s, and raises where git is not installed unless GIT_PYTHON_REFRESH is quiet

        try:
            repo = git.Repo(top)
        except (git.InvalidGitRepositoryError, OSError, ValueError):
            cause, hint = "the .git here is no repository that can be read", f"see what this says: git -C {top} status"
            raise Problem(Kind.ENVIRONMENT, cause, str(top / ".git"), hint) from None
        with repo:
            yield None if repo.bare else repo


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """The process's environment as our questions need it, restored afterwards."""
    before = dict(os.environ)
    # A git hook exports GIT_DIR and GIT_INDEX_FILE of its own repository, which need not be this one.
    for name in before:
        if name.startswith("GIT_") and name.endswith(("DIR", "TREE", "FILE")):
            del os.environ[name]
    # Without locks `git status` does not write its index.
    os.environ.update(GIT_PYTHON_REFRESH="quiet", GIT_OPTIONAL_LOCKS="0")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _git(repo: Repo, *words: str) -> bytes:
    """The stdout of one git command. Raises: Problem(ENVIRONMENT) with the reason of git."""
    import git

    try:
        out = repo.git.execute(["git", *words], stdout_as_string=False, strip_newline_in_stdout=False)
    except git.GitCommandNotFound:
        cause = "this is a git checkout, and git is not installed"
        raise Problem(Kind.ENVIRONMENT, cause, str(_top(repo)), "install git") from None
    except git.GitCommandError as error:
        raise _refusal(repo, str(error.stderr)) from None
    return bytes(out)


def _refusal(repo: Repo, stderr: str) -> Problem:
    owner = re.search(r"dubious ownership in repository at '(.+)'", stderr)
    if owner or "unsafe repository" in stderr:
        folder = owner.group(1) if owner else str(_top(repo))
        cause = "git refuses this checkout, because it belongs to another user (dubious ownership)"
        hint = f"git config --global --add safe.directory {folder}"
        return Problem(Kind.ENVIRONMENT, cause, str(_top(repo)), hint)
    lines = [line for line in stderr.splitlines() if line.strip()] or ["git failed"]
    hint = f"see what this says: git -C {_top(repo)} status"
    return Problem(Kind.ENVIRONMENT, f"git: {lines[-1].strip(' .')}", str(_top(repo)), hint)


def _optional(repo: Repo, *words: str) -> str:
    """The first line of a git command's answer, ``""`` where it has none: no commit yet, no tag."""
    try:
        out = _git(repo, *words)
    except Problem:
        return ""
    return out.decode(errors="replace").partition("\n")[0]


def _top(repo: Repo) -> Path:
    return Path(str(repo.working_tree_dir))


def _below(top: Path, root: Path, path: PurePosixPath) -> str:
    return (root.resolve() / path).relative_to(top.resolve()).as_posix()


def _known(repo: Repo, names: Collection[str]) -> set[str]:
    return set(_names(_git(repo, "ls-files", "-z", "--", *names))) if names else set()


def _changed(repo: Repo, names: Collection[str]) -> set[str]:
    """Those of the files ``names`` that differ from HEAD; what git does not know never does."""
    if not names:
        return set()
    options = ("--porcelain", "-z", "--untracked-files=no", "--no-renames", "--ignore-submodules")
    out = _git(repo, "status", *options, "--", *names)
    return {entry[3:] for entry in _names(out)}


def _names(out: bytes) -> list[str]:
    return [os.fsdecode(name) for name in out.split(b"\0") if name]


def _release(repo: Repo) -> tuple[str, str, str]:
    """The version tag at HEAD, else the nearest one below, and the version that follows from them."""
    from packaging.version import InvalidVersion, Version

    at_head = {}
    for tag in _git(repo, "tag", "--points-at", "HEAD").decode(errors="replace").split():
        with contextlib.suppress(InvalidVersion):
            at_head[Version(tag)] = tag
    if at_head:
        newest = max(at_head)
        return at_head[newest], "", str(newest)
    described = _optional(repo, "describe", "--tags", "--long", "--match", "v[0-9]*", "--match", "[0-9]*")
    near, _, rest = described.rpartition("-g")
    near, _, distance = near.rpartition("-")
    try:
        return "", near, _after(Version(near), int(distance), rest)
    except ValueError:  # no tag, or one that names no version
        return "", "", ""


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
