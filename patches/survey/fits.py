"""The structures of the recipes that a release has, and the lines to add for it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from packaging.version import Version

from patcher import editing
from patcher.changes.change import PatchId
from patcher.messages import Kind, Problem
from patcher.plan import published
from patcher.recipe import Recipe, Structure, Upstream
from patcher.targets.target import Project, Target
from patches.survey.download import download, published_versions


class RecipeFit(NamedTuple):
    """Fit of a recipe to a release.

    `structure` is the one expected from the neighbouring releases (None: the recipe has none for this release). `file`
    is where the recipe fits ("": nowhere), `fingerprint` that of its method in `file`, and `reason` says why the recipe
    does not fit.
    """

    recipe: Recipe
    structure: Structure | None
    file: str
    fingerprint: str
    reason: str

    @property
    def is_known(self) -> bool:
        """Whether the method's fingerprint is known for the structure, or the structure has no fingerprints."""
        prints = self.structure.fingerprints if self.structure else ()
        return self.structure is not None and (not prints or self.fingerprint in prints)

    @property
    def new(self) -> bool:
        """Whether the recipes need a change: the fit is not as expected, or the file or the fingerprint is new."""
        return bool(self.file) != (self.structure is not None) or bool(self.file and not self._as_before)

    @property
    def _as_before(self) -> bool:
        return self.is_known and self.structure is not None and self.structure.file == self.file


def fetch(project: Project, version: str, folder: Path) -> Path:
    """Download the files of a release that recipes and versions need into the new `folder`, and return that.

    Raises Problem (ENVIRONMENT) if the release cannot be downloaded, and FileExistsError if the folder exists.
    """
    folder.mkdir(parents=True)
    metadata = (f"{name.replace('-', '_')}-" for name in project.distributions)
    version_modules = (f"{project.package}/{name}.py" for name in ("__init__", "version", "_version"))
    parts = (*project.files, *version_modules, *project.version_files, *metadata, "PKG-INFO")
    download(project.distributions, version, folder, prefixes=parts, keep=lambda _path, _size: True)
    return folder


def unknown_releases(project: Project) -> list[str]:
    """Return the unknown releases on the package index that are newer than the oldest known release, oldest first.

    Development builds are left out. Raises Problem (ENVIRONMENT) if no index answers, or if none has a distribution
    of the project.
    """
    known_versions = {Version(release) for release in project.releases}
    there = {Version(version): version for name in project.distributions for version in published_versions(name)}
    new = (
        version
        for version in there
        if version not in known_versions and version > min(known_versions) and not version.is_devrelease
    )
    return [there[version] for version in sorted(new)]


def report(upstream: Upstream, target: Target) -> list[str]:
    """Return lines on how each recipe fits `target`, on the lines to add, and on the commands to run then.

    Raises Problem (VERSION) if the version of the target is unknown.
    """
    name, version = upstream.project.name, target.version
    if not version:
        hint = "unpack a published release, whose metadata contains the version"
        raise Problem(Kind.VERSION, f"the release of {name} in this folder is unknown", str(target.root), hint)
    recipe_fits = _findings(upstream, target)
    is_published = published(upstream, version)
    lines = [f"{name} {version}: {'a release that is known' if is_published else 'a release that is not known'}"]
    lines += [line for fit in recipe_fits if (line := _fit_line(fit))]
    todo = list(dict.fromkeys(line for fit in recipe_fits for line in _recipe_additions(upstream, fit, version)))
    if not is_published:
        todo[:0] = _release_line(upstream, version)
    if not todo:
        return [*lines, "", "nothing to add: every structure fits, and every fingerprint is known"]
    steps = ["python -m patches.survey --readme", f"pytest tests/patches --all-releases -k '{name} or {version}'"]
    return [*lines, "", "to add:", *(f"  {line}" for line in todo), "", "then:", *(f"  {step}" for step in steps)]


def expected(upstream: Upstream, recipe: Recipe, version: str) -> Structure | None:
    """Return the recipe's structure for a release, or that of the newest known release before it; None without any."""
    release = published(upstream, version) or _before(upstream, version)
    return recipe.structure(release)


def _before(upstream: Upstream, version: str) -> str:
    """Return the newest known release before ``version``, "" if there is none."""
    older = [release for release in upstream.project.releases if Version(release) < Version(version)]
    return older[-1] if older else ""


def _findings(upstream: Upstream, target: Target) -> list[RecipeFit]:
    """Return how each recipe fits, without recipes that are not expected here and whose needed recipes do not fit."""
    recipe_fits = [_fit_of(upstream, recipe, target) for recipe in upstream.recipes]
    fits = {fit.recipe.name for fit in recipe_fits if fit.file}
    return [fit for fit in recipe_fits if fit.structure or not fit.recipe.needs or fits.intersection(fit.recipe.needs)]


def _fit_of(upstream: Upstream, recipe: Recipe, target: Target) -> RecipeFit:
    """Return how a recipe fits the target: tried in the expected file first, then in the files of its other structures.

    If it fits nowhere, the result has the reason of the first file.
    """
    structure = expected(upstream, recipe, target.version)
    files = [structure.file] if structure else []
    reason = ""
    for file in dict.fromkeys([*files, *(other.file for other in reversed(recipe.structures))]):
        try:
            source = target.read(PurePosixPath(file))
            _check_places(recipe, source, file)
        except Problem as problem:
            reason = reason or problem.actual or problem.cause
        else:
            return RecipeFit(recipe, structure, file, editing.fingerprint(source, recipe.class_name, recipe.method), "")
    return RecipeFit(recipe, structure, "", "", reason)


def _check_places(recipe: Recipe, source: bytes, file: str) -> None:
    """Raise Problem if a line of the recipe, or one of its calls, has no place in `source`.

    `file` is named in the problem.
    """
    if recipe.calls:
        editing.present_settings(source, recipe, where=file)
        return
    units = {unit for site in recipe.insertions for unit in site.windows} | {*recipe.windows}
    patch = PatchId("survey", recipe.stage)
    block = (patch, ("def _rlpatch_survey(self):", "    pass"))
    after = editing.insert(source, recipe, [block], "0", units=units, where=file)
    ast.parse(after)


def _fit_line(fit: RecipeFit) -> str:
    """Return the report's line on a recipe: how it fits the release.

    Return "" if it does not fit, and none of its structures is for the release.
    """
    recipe, structure = fit.recipe, fit.structure
    name = f"  {recipe.stage}: {recipe.name}"
    if fit.file:
        shape = f"structure {structure.name}" if structure and structure.name else "its structure"
        state = "known" if fit.is_known else "new"
        fits = f"fits {shape}" if structure else "fits, though none of its structures has this release,"
        hash_text = f"fingerprint {fit.fingerprint} " if fit.fingerprint else ""
        return f"{name}: {fits} in {fit.file}, {hash_text}({state})"
    return f"{name}: does not fit: {fit.reason}" if structure else ""


def _release_line(upstream: Upstream, version: str) -> Iterator[str]:
    """Yield one line of the report: where in the project's RELEASES to add `version`, with file and line number."""
    before = _before(upstream, version)
    where = f"after {before!r}" if before else "first"
    file, line = _line_with(upstream, [before]) if before else (f"patches/{upstream.project.package}/__init__.py", 0)
    yield f'{file}{f":{line}" if line else ""}, RELEASES, {where}: "{version}",'.replace("'", '"')


def _recipe_additions(upstream: Upstream, fit: RecipeFit, version: str) -> Iterator[str]:
    """Yield lines of the report: what to change in the recipe of `fit` for the release `version`, with file and line.

    Such a change adds a fingerprint or a structure, or ends a structure's range of releases before `version`. Yield
    nothing if the recipe already fits the release.
    """
    recipe, structure = fit.recipe, fit.structure
    if not fit.new:
        return
    if structure is None:
        file, line = _line_with(upstream, recipe.structures[-1].fingerprints)
        yield f'{file}:{line}, {recipe.name}: a structure that has {version}, fingerprint "{fit.fingerprint}"'
        return
    file, line = _line_with(upstream, structure.fingerprints)
    if not fit.file or fit.file != structure.file:
        first, last = structure.releases[0], _before(upstream, version)
        yield f'{file}:{line}, {recipe.name}: the structure ends: RELEASES.between("{first}", "{last}")'
        if fit.file:
            yield f'{file}:{line}, {recipe.name}: a structure for {fit.file}: RELEASES.since("{version}"), with'
            yield f'    fingerprints "{fit.fingerprint}"'
    elif not fit.is_known:
        yield f'{file}:{line}, {recipe.name}, fingerprints: "{fit.fingerprint}",'


def _line_with(upstream: Upstream, literals: Iterable[str]) -> tuple[str, int]:
    """Return the file and the number of the last line of the project's patches with one of `literals` in quotes.

    Return the project's folder and 0 if there is no such line.
    """
    folder = Path(__file__).parents[1] / upstream.project.package
    place = (f"patches/{folder.name}", 0)
    for file in sorted(folder.glob("*.py")):
        for number, text in enumerate(file.read_text("utf-8").splitlines(), 1):
            if any(f'"{word}"' in text for word in literals):
                place = (f"patches/{folder.name}/{file.name}", number)
    return place
