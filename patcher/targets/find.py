"""The targets that are there: which project, which release, in which folder; found without an import."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from patcher.messages import AND, OR, Kind, Problem, Text, joined, usage
from patcher.messages.command_line import quoted
from patcher.store import STORE
from patcher.targets import interpreters, provenance, sources, versions
from patcher.targets.interpreters import Environment
from patcher.targets.target import Discovery, Project, Target


def parse(text: str, projects: Sequence[Project]) -> tuple[str, str | None]:
    """Return the project's name in its own spelling and the version (None: any) of `vllm-ascend==0.11.0rc1`.

    Raises Problem: USAGE for bad syntax, NO_TARGET for a name that is none of `projects`.
    """
    name, equals, version = (part.strip() for part in text.partition("=="))
    typed_name = versions.normalise(name)
    project = next((project for project in projects if versions.normalise(project.name) == typed_name), None)
    if project is None:
        raise _unknown_target(text, name, projects)
    if equals and not versions.valid(version):
        raise _malformed_version(text, version, project)
    return project.name, version if equals else None


def find(
    project: Project,
    *,
    paths: Sequence[Path] = (),
    python: str | None = None,
    version: str | None = None,
    projects: Sequence[Project] = (),
    command: str = "apply",
    again: Callable[[str], str] = str,
) -> Target:
    """Return the installed target of a project.

    `paths` are folders of which one holds the package, `python` an interpreter. Without both, the running interpreter
    is searched, then $VIRTUAL_ENV, $CONDA_PREFIX and python3 on PATH. `version` is the expected release (None: any);
    `projects` are named in the error if this project is missing; `again` returns the command line for another
    `TARGET==VERSION`, for hints. Raises Problem: NO_TARGET, VERSION, USAGE, or ENVIRONMENT (`python` fails; the package
    is compiled or zipped).
    """
    searched: list[str] = []
    targets: list[Target] = []
    for place in _places((project, *projects), paths, python, searched):
        try:
            target = place.search(project)
        except Problem as problem:
            if paths or python or problem.kind is not Kind.NO_TARGET:
                raise
            searched.append(Text("{place}: {reason}", place=place.name, reason=problem.cause))
            continue
        if target is None:
            searched.append(Text("{place}: {reason}", place=place.name, reason=_not_found(project, place, projects)))
        elif len(paths) > 1:
            targets.append(target)
        else:
            return _select_version([target], version, again)
    if targets:
        return _select_version(targets, version, again)
    cause = Text("{name} (package {package}) is not installed here", name=project.name, package=project.package)
    hint = Text("say where {name} is installed: rlpatch {command} {name} --python EXE, or --path DIR")
    hint = hint.filled(name=project.name, command=command)
    raise Problem(Kind.NO_TARGET, cause, hint=hint, notes=tuple(searched))


def _select_version(targets: Sequence[Target], version: str | None, again: Callable[[str], str]) -> Target:
    """Return the one of `targets` with `version` (None: any). Raises Problem: VERSION without any, USAGE if several."""
    right = [target for target in targets if version is None or versions.satisfies(target.version, version)]
    if not right:
        raise _other_version(targets[0], version or "", again)
    if len({target.root for target in right}) > 1:
        cause = Text("{name} is installed in {folders}, and this command changes only one of them at a time")
        cause = cause.filled(name=right[0].project.name, folders=joined(AND, (str(target.root) for target in right)))
        options = joined(OR, (f"--path {quoted([str(target.root)])}" for target in right))
        raise usage(cause, Text("run the command once for each folder, with {options}", options))
    return right[0]


def discover(
    projects: Sequence[Project],
    *,
    paths: Sequence[Path] = (),
    python: str | None = None,
    git: bool = True,
) -> Discovery:
    """Return the installed ones of `projects`, and every root with a store, in the folders `paths` or in `python`.

    Without both, the running interpreter, the shell's environment and PATH are searched. A project counts in each of
    `paths`, else only in the first environment that has it. Without `git` the version of checkouts, which takes 0.1 s,
    is skipped. Raises Problem if `paths` and `python` are both given, or if one does not exist or answer. A problem
    with a single target is returned.
    """
    targets: list[Target] = []
    problems: list[Problem] = []
    searched: list[str] = []
    folders: list[Path] = []
    for place in _places(projects, paths, python, searched, git=git):
        searched.append(place.name)
        folders += _possible_roots(projects, place.folders)
        there = set() if paths else {target.project for target in targets}
        for project in (project for project in projects if project not in there):
            try:
                targets += filter(None, [place.search(project)])
            except Problem as problem:
                problems.append(problem)
    folders += [target.root for target in targets]
    candidates = [folder for folder in dict.fromkeys(folders) if (folder / STORE).is_dir()]
    stores = dict.fromkeys(Path(os.path.realpath(candidate)) for candidate in candidates)
    return Discovery(tuple(targets), tuple(stores), tuple(problems), tuple(searched))


class _Place(NamedTuple):
    """Place to search: its name for messages, its package folders, and a function that finds a project in it."""

    name: str
    folders: tuple[Path, ...]
    search: Callable[[Project], Target | None]


def _places(
    projects: Sequence[Project],
    paths: Sequence[Path],
    python: str | None,
    searched: list[str],
    *,
    git: bool = True,
) -> Iterator[_Place]:
    """Yield the places to search: the folders `paths`, else the interpreter `python`, else environments in order.

    `searched` gets a text on each environment that does not answer.
    """
    if paths and python is not None:
        cause = Text("--path and --python cannot be combined: both say where to look")
        raise usage(cause, Text("leave out --path or --python"))
    for path in paths:
        folder = _folder(path)
        yield _Place(f"--path {path}", (folder,), functools.partial(_target_in, path=path, folder=folder, git=git))
    if paths:
        return
    packages = tuple(sorted({project.package for project in projects}))
    if python is not None:
        environments = iter([_environment_of(interpreters.executable(python), packages, f"--python {python}")])
    else:
        environments = interpreters.environments(packages, searched)
    for interpreter in environments:
        search = functools.partial(_imported_target, environment=interpreter, git=git)
        yield _Place(interpreter.name, tuple(map(Path, interpreter.path)), search)


@functools.lru_cache(maxsize=None)
def _environment_of(program: str, packages: tuple[str, ...], name: str) -> Environment:
    """Return the environment of an interpreter, which is asked once: to start it takes longer than all the rest."""
    return interpreters.ask(program, packages, name)


def _possible_roots(projects: Sequence[Project], folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the folders that may hold a store, whether or not the package is still there; some may not exist.

    These are `folders` and the checkouts of editable installs in them, each also with the subfolder of the package in a
    checkout, and the parent of a package folder.
    """
    names = [name for project in projects for name in project.distributions]
    for folder in folders:
        installed = versions.distributions(folder, names, "")
        for root in (folder, *(distribution.checkout for distribution in installed if distribution.checkout)):
            yield from (root, *(root / project.checkout for project in projects))
        yield from (folder.parent for project in projects if folder.name == project.package)


def _imported_target(project: Project, environment: Environment, git: bool) -> Target | None:
    """Return the target that the interpreter of `environment` would import, None if it has no such package."""
    spec = environment.packages.get(project.package)
    if spec is None:
        return None
    if spec.origin is None:
        raise _unusable_package(project, Path(spec.locations[0]))
    origin = Path(spec.origin)
    archive = next((folder for folder in origin.parents if folder.is_file()), None)
    if archive is not None:
        cause = Text("{name} is installed as a zip archive and cannot be patched there", project.name)
        hint = Text("install the package unzipped: pip install {name}", project.name)
        raise Problem(Kind.ENVIRONMENT, cause, str(archive), hint)
    if not spec.locations:
        cause = Text("{package} is a single module in this environment, not the package that {name} installs")
        cause = cause.filled(package=project.package, name=project.name)
        raise Problem(Kind.NO_TARGET, cause, spec.origin)
    target = provenance.target(project, origin.parent, environment.name, environment.path, git)
    return target._replace(prefix=environment.prefix)


def _target_in(project: Project, path: Path, folder: Path, git: bool) -> Target | None:
    """Return the target that `--path` leads to: site-packages, a checkout, or the package itself; None without one.

    `path` is the folder as typed, `folder` the same with links resolved. An editable install whose metadata is in the
    folder counts, too.
    """
    given = f"--path {path}"
    packages = [root / project.package for root in dict.fromkeys((folder / project.checkout, folder))]
    candidates: list[tuple[Path, str, tuple[str, ...]]] = [(package, given, ()) for package in packages]
    # The name that was typed may be a link to a folder of another name, and the other way round.
    inside = (Path(os.path.abspath(path)), folder)  # noqa: PTH100  (keeps the link's own name)
    parent = Text("the folder that contains the package folder {folder}", path)
    candidates += [(inner, parent, ()) for inner in inside if inner.name == project.package]
    for editable in provenance.distributions(project, [folder]):
        if checkout := editable.checkout:
            where = Text("{folder} (its {metadata} points to an editable install in {checkout})")
            where = where.filled(folder=given, metadata=editable.folder.name, checkout=checkout)
            roots = (checkout / project.checkout, checkout)
            candidates += [(root / project.package, where, (str(folder),)) for root in roots]
    for package, found_by, search in candidates:
        if sources.module_exists(package / "__init__.py"):
            return provenance.target(project, package, found_by, search, git)
    for package in packages:
        if package.is_dir():
            raise _unusable_package(project, package)
    return None


def _folder(path: Path) -> Path:
    """Return the folder that `--path` names, with `~` and links resolved."""
    hint = Text("use the folder that contains the package: --path .../site-packages")
    try:
        folder = path.expanduser().resolve(strict=True)
    except (OSError, RuntimeError):
        raise Problem(Kind.NO_TARGET, Text("the folder {path} does not exist", path), str(path), hint) from None
    if folder.is_dir():
        return folder
    cause = Text("{path} is a file, not a folder", path)
    if folder.suffix in (".whl", ".zip", ".egg"):
        cause = Text("{path} is an archive, and patching inside it has no effect", path)
        hint = Text(
            "unpack the archive (python3 -m zipfile -e {path} DIR) and use --path DIR, or install the archive with pip",
            path,
        )
    elif os.access(folder, os.X_OK):
        hint = Text("if {path} is a Python interpreter, use --python {path}", path)
    raise Problem(Kind.USAGE, cause, str(folder), hint)


def _unusable_package(project: Project, folder: Path) -> Problem:
    """Return the problem that the package `folder` has no `__init__.py`, or that this user may not look into it."""
    try:
        sources.module_exists(folder / "__init__.py")
    except Problem as problem:  # a finder takes a folder that it may not search for one without the file
        return problem
    cause = Text("{folder} has no __init__.py, so this folder is left over from an old installation of {name}")
    cause = cause.filled(folder=folder, name=project.name)
    hint = Text("if you need nothing in the folder, delete the folder; then install {name} again", project.name)
    return Problem(Kind.NO_TARGET, cause, str(folder), hint)


def _not_found(project: Project, place: _Place, projects: Sequence[Project]) -> str:
    """Return the text that the project's package is not in `place`, but perhaps its metadata, or other `projects`."""
    text = Text("package {package} not found", project.package)
    for distribution in provenance.distributions(project, place.folders)[:1]:
        values = {"package": project.package, "folder": distribution.folder}
        text = Text("package {package} not found, although its metadata {folder} exists", **values)
        if distribution.checkout:
            text = Text("package {package} not found, although {folder} points to an editable install in {checkout}")
            text = text.filled(**values, checkout=distribution.checkout)
    there = []
    for other in projects:
        with suppress(Problem):
            there += [other.name] if place.search(other) else []
    return Text("{reason}; packages found there: {packages}", reason=text, packages=", ".join(there)) if there else text


def _other_version(target: Target, expected: str, command_for: Callable[[str], str]) -> Problem:
    """Return the problem that the target's version is not `expected`, or unknown, with the command line for it."""
    name, version = target.project.name, target.version
    cause = Text("the installed {name} is {version}, not {expected}", name=name, version=version, expected=expected)
    right = f"{name}=={version}"
    if not version:
        cause = Text("the version of {name} cannot be determined, so =={version} cannot be checked")
        cause, right = cause.filled(name=name, version=expected), name
    origin = Text("the package was found through {place}; its version was taken from {source}")
    origin = origin.filled(place=target.found_by, source=target.version_from)
    doubts = (line for note in target.notes for line in note.lines)
    return Problem(Kind.VERSION, cause, str(target.root), command_for(right), (origin, *doubts))


def _unknown_target(text: str, name: str, projects: Sequence[Project]) -> Problem:
    """Return the problem that `name`, the part of the typed `text` before `==`, is no target."""
    import difflib  # noqa: PLC0415  (1 ms, only where a name is wrong)

    names = {
        versions.normalise(alias): project.name
        for project in projects
        for alias in (*project.distributions, project.name)
    }
    begin = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", text.strip())
    like = [names[near] for near in difflib.get_close_matches(versions.normalise(begin[0]), names, 1)] if begin else []
    if begin and begin[0] == name and name[-1].isalnum():
        cause = Text("{name!r} is not a target; targets: {names}")
        cause = cause.filled(name=name, names=", ".join(project.name for project in projects))
        meant = Text("did you mean {target}{version}?")
        hint = meant.filled(target=like[0], version=text.strip()[len(name) :]) if like else "rlpatch list"
        return Problem(Kind.NO_TARGET, cause, hint=hint)
    right = like[0] if like else "TARGET"
    hint = Text("write {target} or {target}==VERSION", right)
    if "/" in text:
        hint = Text("to name a folder, use --path: {target} --path {folder}", target=right, folder=text)
    return usage(Text("{text!r} is neither TARGET nor TARGET==VERSION", text), hint)


def _malformed_version(text: str, version: str, project: Project) -> Problem:
    """Return the problem that `version` in the typed `text` is no version; its hint has a release that begins alike."""
    name, begin = project.name, re.sub(r"[^0-9.].*", "", version.lstrip("=v "), flags=re.DOTALL)
    alike = [release for release in project.releases if release.startswith(begin)] or project.releases
    like = f"{name}=={alike[-1]}" if alike else f"{name}==VERSION"
    hint = Text("type one release, such as {release}, or only {name} for the installed release")
    cause = Text("{version!r} in {text!r} is not a version", version=version, text=text)
    return usage(cause, hint.filled(release=like, name=name))
