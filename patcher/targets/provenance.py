"""The origin of a package folder: its real root, the release in it, and how it came there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from patcher.messages import Kind, Note, Problem, Text
from patcher.targets import checkout, sources, versions
from patcher.targets.target import Project, Target
from patcher.targets.versions import Distribution

_WHEEL, _UNPACKED = Text("wheel"), Text("unpacked")
_SITES = ("site-packages", "dist-packages")
_SHADOWS = Text("the package is installed elsewhere, too, but Python imports it from this folder")


class _WorkTree(NamedTuple):
    """Git state of a root; `is_own` is False unless the root is the project's own checkout.

    `state` is None if git was not asked or refused. A package inside somebody's repository is not its own checkout: the
    tags there are not its versions.
    """

    is_own: bool = False
    state: versions.Checkout | None = None
    notes: tuple[Note, ...] = ()


def target(project: Project, package: Path, found_by: str, search: Sequence[str], git: bool) -> Target:
    """Return the target for the package folder `package`, as Python or the user names it.

    `search` are folders that may hold metadata of an editable install. Raises Problem (ENVIRONMENT) if the package
    cannot be patched.
    """
    sources.refuse_other_forms(package / "__init__.py")
    root, notes = _root(project, package)
    literal = versions.from_files(root, project.package, project.version_files)
    claims = distributions(project, dict.fromkeys([root, *(Path(entry).resolve() for entry in search)]))
    beside = [claim for claim in claims if claim.folder.parent == root and claim.checkout is None]
    editable = [claim for claim in claims if _stands_for(root, claim)]
    installed, ambiguous = versions.choose_distribution(beside or editable, literal)
    tree = _WorkTree() if beside else _work_tree(project, root, git)
    recorded = (installed and installed.source, versions.from_pkg_info(root, project.distributions), literal)
    believed, doubts = versions.choose_version(recorded, tree.state, project.placeholders)
    if beside:
        installed_as = _WHEEL if root.name in _SITES or (installed and installed.installed) else _UNPACKED
    elif editable:
        installed_as = Text("editable")
    else:
        installed_as = Text("checkout") if tree.is_own else _WHEEL if root.name in _SITES else _UNPACKED
    shadowed = Text(
        "Python imports the package from this folder, but the metadata in {folder} are those of another installation"
    )
    elsewhere = (claim.folder for claim in claims if claim not in (*beside, *editable))
    notes += tuple(Note(_SHADOWS, shadowed.filled(folder)) for folder in elsewhere) + ambiguous + tree.notes + doubts
    folders = tuple(map(Path, search))
    return Target(project, believed.version, root, installed_as, believed.says, found_by, notes, folders)


def distributions(project: Project, folders: Iterable[Path]) -> list[Distribution]:
    """Return the dist-info folders of the project in `folders`."""
    names, package = project.distributions, project.package
    return [distribution for folder in folders for distribution in versions.distributions(folder, names, package)]


def _stands_for(root: Path, distribution: Distribution) -> bool:
    """Tell whether `distribution`, a dist-info in another folder, belongs to an editable install of `root`.

    If it names no checkout, it must have a RECORD that does not list the package.
    """
    if distribution.checkout is None:
        return distribution.folder.parent != root and distribution.lists_package is False
    folder = distribution.checkout.resolve()
    return folder == root or folder in root.parents


def _root(project: Project, package: Path) -> tuple[Path, tuple[Note, ...]]:
    """Return the folder that holds the package folder `package`, and a note if links are involved.

    Links are followed, but not to a folder of another name, nor into an installer's cache, which other environments
    share.
    """
    init = package / "__init__.py"
    try:
        real = init.resolve(strict=True).parent
    except (OSError, RuntimeError):
        cause = Text("{name}/__init__.py is a broken link", package.name)
        raise Problem(Kind.ENVIRONMENT, cause, str(init), Text("install {name} again", project.name)) from None
    here = package.parent.resolve()
    strict = any(part.startswith("__editable__") for part in here.parts)
    if real.parent == here:
        hard = Note(Text("this is a strict editable install with hard links, so only its build folder is patched"))
        return here, (hard,) if strict else ()
    if real.name != project.package:
        linked = Text("{package} is a link to {folder}", package=package, folder=real)
        return here, (Note(Text("the package folder is a link"), linked),)
    if not strict and _is_cache(project, real.parent, here):
        text = Text("the package's files are links into the installer's cache; rlpatch does not change this cache")
        return here, (Note(text, Text("cache folder: {folder}", real.parent)),)
    linked = Text("{package} contains symbolic links into {folder}", package=package, folder=real.parent)
    return real.parent, (Note(Text("the package folder contains symbolic links"), linked),)


def _is_cache(project: Project, linked: Path, here: Path) -> bool:
    """Tell whether `linked`, to which links in the folder `here` lead, is in an installer's cache.

    Both have metadata of the project then, or a CACHEDIR.TAG is above `linked` and no git checkout.
    """
    if distributions(project, [linked]) and distributions(project, [here]):
        return True
    tagged = any((folder / "CACHEDIR.TAG").is_file() for folder in (linked, *linked.parents))
    return tagged and checkout.top_of(linked) is None


def _work_tree(project: Project, root: Path, git: bool) -> _WorkTree:
    """Return the git state of `root` with a note on the commit, or on why git refused; empty for no own checkout."""
    top = checkout.top_of(root)
    if top is None or (top / project.checkout).resolve() != root:
        return _WorkTree()
    if not git:
        return _WorkTree(is_own=True)
    try:
        state = checkout.describe(root, PurePosixPath(project.package, "__init__.py"))
    except Problem as problem:
        return _WorkTree(is_own=True, notes=(Note(problem.cause, problem.hint),))
    if state is None:
        return _WorkTree()
    commit = Text("git commit {commit}", state.head[:7]) if state.head else Text("a git checkout without a commit")
    return _WorkTree(True, state, (Note(commit),))
