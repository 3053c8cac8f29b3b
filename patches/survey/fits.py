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
from patches.survey.download import download, listed


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
        """Whether the recipes need a change for this release."""
        return bool(self.file) != (self.structure is not None) or bool(self.file and not self._as_before)

    @property
    def _as_before(self) -> bool:
        return self.is_known and self.structure is not None and self.structure.file == self.file


def fetch(project: Project, version: str, folder: Path) -> Path:
    """Download the files of a release that recipes and versions need into `folder`. Raises Problem (ENVIRONMENT)."""
    folder.mkdir(parents=True)
    metadata = (f"{name.replace('-', '_')}-" for name in project.distributions)
    version_modules = (f"{project.package}/{name}.py" for name in ("__init__", "version", "_version"))
    parts = (*project.files, *version_modules, *project.version_files, *metadata, "PKG-INFO")
    download(project.distributions, version, folder, parts=parts, keep=lambda _path, _size: True)
    return folder


def unknown(project: Project) -> list[str]:
    """Return the unknown releases on the package index that are newer than the oldest known release, oldest first.

    Development builds are left out. Raises Problem (ENVIRONMENT) as `listed`.
    """
    published_versions = {Version(release) for release in project.releases}
    there = {Version(version): version for name in project.distributions for version in listed(name)}
    new = (
        version
        for version in there
        if version not in published_versions and version > min(published_versions) and not version.is_devrelease
    )
    return [there[version] for version in sorted(new)]


def report(upstream: Upstream, target: Target) -> list[str]:
    """Return lines on the fit of each recipe to `target`, and the lines to add. Raises Problem (VERSION) if unknown."""
    name, version = upstream.project.name, target.version
    if not version:
        hint = "unpack a release, which says it in its metadata"
        raise Problem(Kind.VERSION, f"nothing says which release of {name} this is", str(target.root), hint)
    findings = _findings(upstream, target)
    is_published = published(upstream, version)
    lines = [f"{name} {version}: {'a release that is known' if is_published else 'a release that is not known'}"]
    lines += [line for finding in findings if (line := _line(finding))]
    todo = list(dict.fromkeys(line for finding in findings for line in _todo(upstream, finding, version)))
    if not is_published:
        todo[:0] = _listed(upstream, version)
    if not todo:
        return [*lines, "", "nothing to add: every structure fits, and every fingerprint is known"]
    steps = ["python -m patches.survey --readme", f"pytest tests/patches --all-releases -k '{name} or {version}'"]
    return [*lines, "", "to add:", *(f"  {line}" for line in todo), "", "then:", *(f"  {step}" for step in steps)]


def expected(upstream: Upstream, recipe: Recipe, version: str) -> Structure | None:
    """Return the recipe's structure for a release, or that for the newest known release before it; None without any."""
    release = published(upstream, version) or _before(upstream, version)
    return recipe.structure(release)


def _before(upstream: Upstream, version: str) -> str:
    """Return the newest known release before ``version``, "" if there is none."""
    older = [release for release in upstream.project.releases if Version(release) < Version(version)]
    return older[-1] if older else ""


def _findings(upstream: Upstream, target: Target) -> list[RecipeFit]:
    """Return the fit of each recipe; leave out unexpected recipes whose needed recipes do not fit either."""
    findings = [_find(upstream, recipe, target) for recipe in upstream.recipes]
    fits = {finding.recipe.name for finding in findings if finding.file}
    return [
        finding
        for finding in findings
        if finding.structure or not finding.recipe.needs or fits.intersection(finding.recipe.needs)
    ]


def _find(upstream: Upstream, recipe: Recipe, target: Target) -> RecipeFit:
    """Return the fit of a recipe in the target; try the expected file first, then the files of its other structures."""
    structure = expected(upstream, recipe, target.version)
    files = [structure.file] if structure else []
    reason = ""
    for file in dict.fromkeys([*files, *(other.file for other in reversed(recipe.structures))]):
        try:
            source = target.read(PurePosixPath(file))
            _try(recipe, source, file)
        except Problem as problem:
            reason = reason or problem.found or problem.cause
        else:
            return RecipeFit(recipe, structure, file, editing.fingerprint(source, recipe.class_name, recipe.method), "")
    return RecipeFit(recipe, structure, "", "", reason)


def _try(recipe: Recipe, source: bytes, file: str) -> None:
    """Raise Problem if a line of the recipe, or one of its calls, has no place in `source`."""
    if recipe.calls:
        editing.present(source, recipe, where=file)
        return
    units = {unit for site in recipe.insertions for unit in site.windows} | {*recipe.windows}
    patch = PatchId("survey", recipe.stage)
    block = (patch, ("def _rlpatch_survey(self):", "    pass"))
    after = editing.insert(source, recipe, [block], "0", units=units, where=file)
    ast.parse(after)


def _line(finding: RecipeFit) -> str:
    """Return a line on a fit, "" if the recipe is neither expected for this release nor fits."""
    recipe, structure = finding.recipe, finding.structure
    name = f"  {recipe.stage}: {recipe.name}"
    if finding.file:
        shape = f"structure {structure.name}" if structure and structure.name else "its structure"
        state = "known" if finding.is_known else "new"
        fits = f"fits {shape}" if structure else "fits, though none of its structures has this release,"
        hash_text = f"fingerprint {finding.fingerprint} " if finding.fingerprint else ""
        return f"{name}: {fits} in {finding.file}, {hash_text}({state})"
    return f"{name}: does not fit: {finding.reason}" if structure else ""


def _listed(upstream: Upstream, version: str) -> Iterator[str]:
    """Yield the line that adds the release to the project's list."""
    before = _before(upstream, version)
    where = f"after {before!r}" if before else "first"
    file, line = _written(upstream, [before]) if before else (f"patches/{upstream.project.package}/__init__.py", 0)
    yield f'{file}{f":{line}" if line else ""}, RELEASES, {where}: "{version}",'.replace("'", '"')


def _todo(upstream: Upstream, finding: RecipeFit, version: str) -> Iterator[str]:
    """Yield the lines to add to the recipes for this release: a fingerprint, a structure, or the end of one."""
    recipe, structure = finding.recipe, finding.structure
    if not finding.new:
        return
    if structure is None:
        file, line = _written(upstream, recipe.structures[-1].fingerprints)
        yield f'{file}:{line}, {recipe.name}: a structure that has {version}, fingerprint "{finding.fingerprint}"'
        return
    file, line = _written(upstream, structure.fingerprints)
    if not finding.file or finding.file != structure.file:
        first, last = structure.releases[0], _before(upstream, version)
        yield f'{file}:{line}, {recipe.name}: the structure ends: RELEASES.between("{first}", "{last}")'
        if finding.file:
            yield f'{file}:{line}, {recipe.name}: a structure for {finding.file}: RELEASES.since("{version}"), with'
            yield f'    fingerprints "{finding.fingerprint}"'
    elif not finding.is_known:
        yield f'{file}:{line}, {recipe.name}, fingerprints: "{finding.fingerprint}",'


def _written(upstream: Upstream, words: Iterable[str]) -> tuple[str, int]:
    """Return the file and the line number of the last literal equal to one of `words` (line 0: none found)."""
    folder = Path(__file__).parents[1] / upstream.project.package
    place = (f"patches/{folder.name}", 0)
    for file in sorted(folder.glob("*.py")):
        for number, text in enumerate(file.read_text("utf-8").splitlines(), 1):
            if any(f'"{word}"' in text for word in words):
                place = (f"patches/{folder.name}/{file.name}", number)
    return place
