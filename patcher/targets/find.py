"""The targets that are there: which project, which release, in which folder; found without an import."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from patcher.messages.errors import Kind, Problem
from patcher.store import STORE
from patcher.targets import interpreters, provenance, sources, versions
from patcher.targets.interpreters import Environment
from patcher.targets.target import Discovery, Project, Target


def parse(
    text: str, projects: Sequence[Project] = (), releases: Callable[[str], Sequence[str]] = lambda _name: ()
) -> tuple[str, str | None]:
    """The project's name and the asserted version in ``vllm-ascend==0.11.0rc1`` or ``VLLM_Ascend``.

    In: the user's word, the projects there are, and the known releases of one, oldest first, for a hint. Out: the
    project's own spelling of the name.
    Raises: Problem(USAGE) for bad syntax, Problem(NO_TARGET) for a project that is none of ``projects``.
    """
    name, equals, version = (part.strip() for part in text.partition("=="))
    names = {versions.normalise(p.name): p.name for p in projects}
    known = names.get(versions.normalise(name))
    if known is None and not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        raise _syntax(text, names)
    if equals and (known or not names) and not versions.valid(version):
        raise _no_version(text, version, known or name, releases(known) if known else ())
    if known is None and names:
        raise _unknown(name, f"{equals}{version}", projects)
    return known or versions.normalise(name), version if equals else None


def find(
    project: Project,
    *,
    path: Path | None = None,
    python: str | None = None,
    version: str | None = None,
    known: Sequence[Project] = (),
    command: str = "apply",
    again: Callable[[str], str] | None = None,
    environment: Environment | None = None,
) -> Target:
    """The target of a project.

    In: ``path``, a folder that holds the package, or ``python``, an interpreter; without both, the
    interpreter that runs rlpatch, then $VIRTUAL_ENV, $CONDA_PREFIX and python3 on PATH. ``version`` asserts a
    release, ``known`` are the projects to name when this one is missing, ``command`` is what the user typed,
    ``again`` gives the whole command line with another ``TARGET==VERSION``, and ``environment`` is what ``python`` has
    answered before (`environment_of`).
    Raises: Problem NO_TARGET, VERSION, ENVIRONMENT (compiled, zipped, interpreter fails) or USAGE.
    """
    option = _option(path, python)
    if path is not None:
        target = _at(project, path)
        if target is None:
            raise _absent(project, [_folder(path)], [p.name for p in known if _there(p, path)])
    elif python is not None:
        environment = environment or environment_of(python, (project, *known))
        target = _imported(project, environment)
        if target is None:
            there = [p.name for p in known if p.package in environment.found]
            raise _absent(project, list(map(Path, environment.path)), there)
    else:
        target = _first(project, command)
    if version is not None and not versions.holds(target.version, version):
        again = again or (lambda text: f"rlpatch {command} {text}{option}")
        raise _mismatch(target, version, again)
    return target


def environment_of(python: str, projects: Iterable[Project]) -> Environment:
    """What ``python`` would import of ``projects``. Raises: Problem ENVIRONMENT or USAGE."""
    packages = dict.fromkeys(project.package for project in projects)
    return interpreters.ask(python, list(packages), f"--python {python}")


def discover(
    projects: Sequence[Project],
    *,
    path: Path | None = None,
    python: str | None = None,
    git: bool = True,
    environment: Environment | None = None,
) -> Discovery:
    """Every one of ``projects`` that `find` would find, and every root that holds a store of ours.

    In: as for `find`; ``git=False`` saves the 0.1 s that a checkout's version costs. Raises: Problem for an
    option that leads nowhere; what is wrong with one target is returned, not raised.
    """
    _option(path, python)
    targets: list[Target] = []
    problems: list[Problem] = []
    searched: list[str] = []
    folders: list[Path] = []
    if path is not None:
        places: Iterable[_Place] = [_place_of(projects, path, git)]
    else:
        known = _environments(projects, searched)
        if python is not None:
            known = iter([environment or environment_of(python, projects)])
        places = (_place_in(projects, one, git) for one in known)
    for place in places:
        searched.append(place.name)
        folders += place.folders
        for project in projects:
            if all(target.project != project for target in targets):
                try:
                    target = place.search(project)
                except Problem as problem:
                    problems.append(problem)
                else:
                    targets += [target] if target else []
    folders += [target.root for target in targets]
    stores = dict.fromkeys(Path(os.path.realpath(candidate)) for candidate in folders if (candidate / STORE).is_dir())
    return Discovery(tuple(targets), tuple(stores), tuple(problems), tuple(searched))


class _Place(NamedTuple):
    """A place to search: its name for messages, the folders that may hold a store, and how a project is found."""

    name: str
    folders: tuple[Path, ...]
    search: Callable[[Project], Target | None]


def _place_of(projects: Sequence[Project], path: Path, git: bool) -> _Place:
    folder = _folder(path)
    folders = [folder, *(folder / project.checkout for project in projects)]
    folders += [folder.parent for project in projects if folder.name == project.package]
    folders += _editable_roots(projects, [str(folder)])
    return _Place(f"--path {path}", tuple(folders), partial(_at, path=path, git=git))


def _place_in(projects: Sequence[Project], environment: Environment, git: bool) -> _Place:
    folders = (*map(Path, environment.path), *_editable_roots(projects, environment.path))
    return _Place(environment.name, folders, partial(_imported, environment=environment, git=git))


def _first(project: Project, command: str) -> Target:
    searched: list[str] = []
    for environment in _environments([project], searched, always=True):
        try:
            target = _imported(project, environment)
        except Problem as problem:
            if problem.kind is not Kind.NO_TARGET:
                raise
            searched.append(f"{environment.name}: {problem.cause}")
            continue
        if target is not None:
            return target
        although = _although(project, map(Path, environment.path))
        searched.append(f"{environment.name}: no {project.package}{although}")
    cause = f"{project.name} is in none of the environments that were looked at"
    hint = f"say where it is: rlpatch {command} {project.name} --python EXE, or --path DIR"
    raise Problem(Kind.NO_TARGET, cause, hint=hint, notes=tuple(searched))


def _environments(projects: Sequence[Project], searched: list[str], *, always: bool = False) -> Iterator[Environment]:
    """The environments to look at, one after the other; those that do not answer are added to ``searched``.

    An interpreter whose folders hold nothing of ``projects`` is started ``always``, or never.
    """
    packages = [project.package for project in projects]
    environment = interpreters.running(packages)
    yield environment
    seen = {os.path.realpath(environment.prefix)}
    for name, exe in interpreters.others():
        if not always and not _traces(projects, interpreters.site_folders(exe)):
            searched.append(f"{name}: nothing that rlpatch knows")
            continue
        try:
            environment = interpreters.ask(exe, packages, name)
        except Problem as problem:
            searched.append(f"{name}: {problem.cause}")
            continue
        if os.path.realpath(environment.prefix) not in seen:
            seen.add(os.path.realpath(environment.prefix))
            yield environment


def _traces(projects: Sequence[Project], folders: list[Path] | None) -> bool:
    if folders is None:
        return True
    marks = {STORE, *(project.package for project in projects)}
    names = {versions.normalise(name) for project in projects for name in project.distributions}
    entries = (entry for folder in folders for entry in sources.entries(folder))
    return any(entry in marks or versions.distribution_name(entry) in names for entry in entries)


def _editable_roots(projects: Sequence[Project], search: Sequence[str]) -> Iterator[Path]:
    """Where editable installs of ``projects`` point to, be the package there or not."""
    names = [name for project in projects for name in project.distributions]
    for entry in search:
        for found in versions.distributions(Path(entry), names, ""):
            if found.checkout is not None:
                yield from (found.checkout / project.checkout for project in projects)


def _imported(project: Project, environment: Environment, git: bool = True) -> Target | None:
    """The target that an interpreter would import, None if it has no such package."""
    spec = environment.found.get(project.package)
    if spec is None:
        return None
    if spec.origin is None:
        raise _leftover(project, Path(spec.locations[0]))
    origin = Path(spec.origin)
    archive = next((folder for folder in origin.parents if folder.is_file()), None)
    if archive is not None:
        cause = f"{project.name} lies zipped in an archive, where nothing can be patched"
        raise Problem(Kind.ENVIRONMENT, cause, str(archive), f"install it unzipped: pip install {project.name}")
    if not spec.locations:
        cause = f"{project.package} is a single module here, not the package that {project.name} installs"
        raise Problem(Kind.NO_TARGET, cause, spec.origin)
    found = provenance.target(project, origin.parent, environment.name, environment.path, git)
    return found._replace(prefix=environment.prefix)


def _at(project: Project, path: Path, git: bool = True) -> Target | None:
    """The target below the folder that the user named, None if the package is not there."""
    folder = _folder(path)
    by = f"--path {path}"
    for candidate in (folder / project.checkout, folder):
        if _is_package(candidate / project.package):
            return provenance.target(project, candidate / project.package, by, (), git)
    # The name that was typed may be a link to a folder of another name, and the other way round.
    for named in (Path(os.path.abspath(path)), folder):  # noqa: PTH100  (keeps the link's own name)
        if named.name == project.package and _is_package(named):
            return provenance.target(project, named, f"{by}, the package folder itself: took its parent", (), git)
    for found in versions.distributions(folder, project.distributions, project.package):
        for candidate in (found.checkout / project.checkout, found.checkout) if found.checkout else ():
            if _is_package(candidate / project.package):
                by = f"{by}, where {found.folder.name} stands for {found.checkout}"
                return provenance.target(project, candidate / project.package, by, (str(folder),), git)
    for candidate in (folder / project.checkout, folder):
        if (candidate / project.package).is_dir():
            raise _leftover(project, candidate / project.package)
    return None


def _there(project: Project, path: Path) -> bool:
    try:
        return _at(project, path, git=False) is not None
    except Problem:
        return False


def _folder(path: Path) -> Path:
    """The real folder that ``--path`` names. Raises: Problem NO_TARGET if there is none, USAGE for a file."""
    try:
        folder = path.expanduser().resolve(strict=True)
    except (OSError, RuntimeError):
        hint = "name a folder that holds the package: --path .../site-packages"
        raise Problem(Kind.NO_TARGET, f"there is no folder {path}", str(path), hint) from None
    if folder.is_dir():
        return folder
    hint = "name the folder that holds the package: --path .../site-packages"
    cause = f"{path} is a file, not a folder"
    if folder.suffix in (".whl", ".zip", ".egg"):
        cause = f"{path} is an archive: a patch inside it would reach nobody"
        hint = f"unpack it (python3 -m zipfile -e {path} DIR) and give --path DIR, or pip install it"
    elif os.access(folder, os.X_OK):
        hint = f"for an interpreter it is --python {path}"
    raise Problem(Kind.USAGE, cause, str(folder), hint)


def _is_package(folder: Path) -> bool:
    return sources.there(folder / "__init__.py")


def _although(project: Project, folders: Iterable[Path]) -> str:
    """What contradicts that the package is not there: metadata that an editable install left, say."""
    for found in provenance.distributions(project, folders):
        stands_for = f", which stands for {found.checkout}" if found.checkout else ""
        return f", although {found.folder} is there{stands_for}"
    return ""


def _option(path: Path | None, python: str | None) -> str:
    """The option as the user typed it, to be shown in the next command."""
    if path is not None and python is not None:
        raise Problem(Kind.USAGE, "--path and --python both say where to look", hint="give one of them")
    if path is None and python is None:
        return ""
    return f" --path {shlex.quote(str(path))}" if path else f" --python {shlex.quote(str(python))}"


def _leftover(project: Project, folder: Path) -> Problem:
    try:
        sources.there(folder / "__init__.py")
    except Problem as problem:  # a finder takes a folder that it may not search for one without the file
        return problem
    cause = f"{folder} has no __init__.py: a leftover, not an install of {project.name}"
    hint = f"look into the folder, remove it, and install {project.name} again"
    return Problem(Kind.NO_TARGET, cause, str(folder), hint)


def _absent(project: Project, folders: Sequence[Path], there: Sequence[str]) -> Problem:
    cause = f"{project.name} (the package {project.package}) is not there{_although(project, folders)}"
    hint = "name the folder that holds the package (--path), or the interpreter that imports it (--python)"
    present = f"what is there: {', '.join(there) or 'nothing that rlpatch knows'}"
    return Problem(Kind.NO_TARGET, cause, ", ".join(map(str, folders)), hint, (present,))


def _mismatch(target: Target, wanted: str, again: Callable[[str], str]) -> Problem:
    name = target.project.name
    found = f"found by {target.found_by}, version from {target.version_from}"
    doubts = [line for note in target.notes for line in note.lines]
    if not target.version:
        cause = f"nothing says which release of {name} this is, so =={wanted} cannot be checked"
        return Problem(Kind.VERSION, cause, str(target.root), again(name), (found, *doubts))
    cause = f"{name} is {target.version} here, not {wanted}"
    return Problem(Kind.VERSION, cause, str(target.root), again(f"{name}=={target.version}"), (found, *doubts))


def _syntax(text: str, names: dict[str, str]) -> Problem:
    begin = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", text)
    name = (_closest(begin.group(1), names) if begin else "") or "TARGET"
    hint = f"write {name} or {name}==VERSION"
    if "/" in text:
        hint = f"a folder is an option: {name} --path {text}"
    return Problem(Kind.USAGE, f"{text!r} is not TARGET or TARGET==VERSION", hint=hint)


def _unknown(name: str, version: str, projects: Sequence[Project]) -> Problem:
    names = {versions.normalise(p.name): p.name for p in projects}
    like = _published(name, projects) or _closest(name, names)
    hint = f"did you mean {like}{version}?" if like else "rlpatch list"
    return Problem(Kind.NO_TARGET, f"nothing is known of {name!r}, only of {', '.join(names.values())}", hint=hint)


def _no_version(text: str, version: str, name: str, releases: Sequence[str]) -> Problem:
    like = _release_like(version, releases)
    hint = f"one release, such as {name}=={like}, or {name} for the one that is there"
    cause = f"{version!r} in {text!r} is no version"
    return Problem(Kind.USAGE, cause, hint=hint if like else f"one release: {name}==VERSION")


def _closest(word: str, names: dict[str, str]) -> str:
    near = difflib.get_close_matches(versions.normalise(word), names, n=1)
    return names[near[0]] if near else ""


def _release_like(version: str, releases: Sequence[str]) -> str:
    """The newest release that begins as ``version`` does, such as ``0.6.*``; else the newest, "" without any."""
    begin = re.sub(r"[^0-9.].*", "", version.lstrip("=v "), flags=re.DOTALL)
    return next(reversed([release for release in releases if release.startswith(begin)] or releases), "")


def _published(name: str, projects: Iterable[Project]) -> str:
    """The project that is published under ``name``, such as a build for another device."""
    wanted = versions.normalise(name)
    return next((p.name for p in projects if wanted in map(versions.normalise, p.distributions)), "")
