"""Plans: what apply and revert would do to the files of a target, as a value that can be shown or committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from patcher import __version__, markers
from patcher.capture import Capture
from patcher.change import Change, Edit, PatchId, Record
from patcher.errors import Kind, Problem
from patcher.recipe import Recipe, Structure, Upstream
from patcher.targets.target import Target


class Plan(NamedTuple):
    """The changes of one patch below one root; ``notes`` and ``warnings`` are for the reader of the report."""

    target: Target
    patch: PatchId
    capture: Capture
    edit: Edit
    places: tuple[Place, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether committing it would change a file."""
        return any(change.before != change.after for change in self.edit.changes)


class Place(NamedTuple):
    """Where a recipe applies: the structure, if the release is a published one, and the file."""

    recipe: Recipe
    structure: Structure | None
    file: str


def apply(upstream: Upstream, target: Target, capture: Capture, records: Iterable[Record] = ()) -> Plan:
    """The plan that puts ``capture`` into ``target``; lines of the same patch that are there are replaced.

    ``records`` is what the store has registered below the root. Raises :class:`Problem`: NO_RECIPE, STRUCTURE,
    FOREIGN_EDIT (our own lines there were edited) or USAGE (a window that the stage does not have).
    """
    patch = PatchId(target.project.name, capture.stage)
    places, warnings = _places(upstream, target, capture)
    changes = []
    done: list[Place] = []
    failures: list[Problem] = []
    for place in places:
        try:
            changes.append(_change(place, target, capture, patch, warnings))
            done.append(place)
        except Problem as problem:
            # A release that is not in the table is tried with every recipe; one that fits is enough.
            if place.structure is not None or problem.kind is not Kind.STRUCTURE:
                raise
            failures.append(problem)
    if not done:
        notes = tuple(line for problem in failures for line in (problem.cause, f"at {problem.where}"))
        raise Problem(
            Kind.STRUCTURE,
            f"{target.project.name} {target.version or 'of unknown version'} is not a published release that rlpatch"
            " knows, and no recipe fits its structure",
            str(target.root),
            f"rlpatch list shows the releases; rlpatch explain {target.project.name} the places that were looked for",
            notes,
        )
    files = tuple(str(change.path) for change in changes)
    record = Record(patch, target.version, capture.words, files, _now(), __version__)
    same = any(
        (r.patch, r.version, r.options, r.files) == (patch, target.version, capture.words, files) for r in records
    )
    unchanged = same and all(change.before == change.after for change in changes)
    edit = Edit(target.root, tuple(changes), () if unchanged else (record,))
    return Plan(target, patch, capture, edit, tuple(done), (*target.notes, *capture.notes), tuple(warnings))


def _places(upstream: Upstream, target: Target, capture: Capture) -> tuple[list[Place], list[str]]:
    recipes = [recipe for recipe in upstream.recipes if recipe.stage == capture.stage]
    if not recipes:
        stages = sorted({recipe.stage for recipe in upstream.recipes})
        raise Problem(
            Kind.NO_RECIPE,
            f"{upstream.project.name} has no stage {capture.stage}",
            hint=f"one of: {', '.join(stages)}",
        )
    for recipe in recipes:
        if capture.window.unit not in recipe.windows:
            offered = ", ".join(f"--{unit} A:B" for unit in recipe.windows)
            raise Problem(Kind.USAGE, f"the stage {capture.stage} has no --{capture.window.unit}", hint=offered)
    release = published(upstream, target.version)
    if release:
        known = [(r, s) for r in recipes if (s := r.structure(release))]
        return [Place(recipe, structure, structure.file) for recipe, structure in known], []
    warning = (
        f"{target.version or 'an unknown version'} is not a release that rlpatch was tested with; the place is taken"
        " by its structure, so read `rlpatch diff` before you trust the trace"
    )
    files = dict.fromkeys((r.name, s.file) for r in recipes for s in r.structures)
    by_name = {recipe.name: recipe for recipe in recipes}
    return [Place(by_name[n], None, f) for n, f in files if target.exists(PurePosixPath(f))], [warning]


def published(upstream: Upstream, version: str) -> str:
    """The published release that ``version`` is, a local part (``+g67dd255``) left aside; "" for any other."""
    from packaging.version import InvalidVersion, Version

    try:
        public = Version(version).public
    except InvalidVersion:
        return ""
    return next((release for release in upstream.releases if Version(release).public == public), "")


def _change(place: Place, target: Target, capture: Capture, patch: PatchId, warnings: list[str]) -> Change:
    from patcher import engine
    from patcher.specialise import specialise
    from patcher.targets import originals

    recipe, path = place.recipe, PurePosixPath(place.file)
    where = str(target.root / path)
    try:
        before = target.read(path)
    except Problem as problem:
        problem.hint = problem.hint or f"install {target.project.name} again: the file belongs to its release"
        raise
    pristine = markers.strip(before, where=where)
    without = markers.strip(before, [patch], where=where)
    members = specialise(recipe.probe, capture)
    after = engine.insert(without, recipe, members, patch, __version__, where=where)
    if differing := originals.differs(target, path, pristine):
        warnings.append(f"{differing}; its structure fits, so it is patched: read `rlpatch diff`")
    seen = engine.fingerprint(pristine, recipe.class_name, recipe.method)
    if place.structure and seen not in place.structure.fingerprints:
        warnings.append(
            f"{path}: {recipe.class_name}.{recipe.method} is not the one that was released as {target.version}"
        )
    return Change(path, before, after, pristine)


def _now() -> str:
    from datetime import datetime, timezone

    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def revert(
    root: Path,
    read: Callable[[PurePosixPath], bytes | None],
    records: Iterable[Record],
    patches: Iterable[PatchId],
) -> Edit:
    """The edit that takes ``patches`` out of every file that ``records`` name for them.

    ``read`` gives a file's bytes, None where it is gone. Raises :class:`Problem` (FOREIGN_EDIT) where our lines are
    not as we wrote them.
    """
    wanted = set(patches)
    ours = [record for record in records if record.patch in wanted]
    changes = []
    for path in map(PurePosixPath, dict.fromkeys(path for record in ours for path in record.files)):
        before = read(path)
        if before is None:
            continue
        where = str(root / path)
        after = markers.strip(before, wanted, where=where)
        if after != before:
            changes.append(Change(path, before, after, markers.strip(before, where=where)))
    return Edit(root, tuple(changes), remove=tuple(dict.fromkeys(record.patch for record in ours)))


def diff(path: str, pristine: bytes, after: bytes) -> bytes:
    """A unified diff that ``git apply`` takes, for a file in any encoding; empty without a change."""
    import difflib

    if pristine == after:
        return b""
    # Lines end at line feeds alone: to difflib and git a form feed or a lone carriage return is a character.
    old, new = (_lines(data.decode("utf-8", "surrogateescape")) for data in (pristine, after))
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return f"diff --git a/{path} b/{path}\n{text}".encode("utf-8", "surrogateescape")


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]
