"""Plans: what apply and revert would do to the files of a target, as a value that can be shown or committed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import count
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from patcher import __version__
from patcher.changes import edits, markers
from patcher.changes.change import SHARED, Change, Edit, PatchId, Record
from patcher.config import WHOLE, ProfileConfig, Stage, typed_as
from patcher.messages.errors import Kind, Problem
from patcher.messages.notes import Note
from patcher.messages.text import AND, COMMA, OR, Text, joined
from patcher.recipe import Gap, Recipe, Structure, Upstream
from patcher.request import recipes_of
from patcher.targets import originals, versions
from patcher.targets.target import Target

if TYPE_CHECKING:
    from patcher.editing import Block, Setting


class Plan(NamedTuple):
    """The changes of one patch below one root; ``notes`` and ``warnings`` are for the reader of the report.

    ``replaces`` is the record of the same patch with another choice, or of another release.
    """

    target: Target
    patch: PatchId
    config: ProfileConfig[Stage]
    edit: Edit
    places: tuple[Place, ...] = ()
    notes: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()
    replaces: Record | None = None

    @property
    def changed(self) -> bool:
        """Whether committing it would change a file."""
        return any(change.before != change.after for change in self.edit.changes)

    @property
    def gone(self) -> tuple[Change, ...]:
        """The changes of files that lose the lines of the capture before; what else is behind the places stays."""
        return tuple(change for change in self.edit.changes[len(self.places) :] if change.before != change.after)


class Place(NamedTuple):
    """Where a recipe applies: the structure and the release, if that is a published one, and the file.

    ``settings`` are the requested arguments, of a recipe that changes those.
    """

    recipe: Recipe
    structure: Structure | None
    file: str
    release: str = ""
    settings: tuple[Setting, ...] = ()

    @property
    def marked(self) -> bool:
        """Whether the file carries lines of the patch."""
        return not self.recipe.calls or any(setting.changed for setting in self.settings)


def apply(upstream: Upstream, target: Target, config: ProfileConfig[Stage], records: Sequence[Record] = ()) -> Plan:
    """The plan that puts the recording of ``config`` into ``target``; lines of the same patch there are replaced.

    ``records`` is what the store has registered below the root. Raises :class:`Problem`: NO_RECIPE, STRUCTURE,
    FOREIGN_EDIT (our own lines there were edited) or USAGE (a window that the stage does not have).
    """
    recipes = _recipes(upstream, config)
    # A role that is the only one of its stage makes no patch of its own.
    several = any(len(recipe.roles) > 1 for recipe in recipes)
    patch = PatchId(target.project.name, config.stage.name, config.stage.role if several else "")
    places, warnings = _places(upstream, target, recipes)
    fitting, failures = _tried(places, target, config, patch)
    if problem := _unfit(upstream, target, config, recipes, fitting, failures):
        raise problem
    done = _not_alone(fitting)
    before = next((record for record in records if record.patch == patch), None)
    unit = config.stage.window.unit
    notes = dict.fromkeys(note for one in done for note in (*one.notes, *one.place.recipe.notes_of(unit)))
    neighbours = [note for package, note in upstream.neighbours.items() if target.beside(package)]
    left_out = (
        *_lone(upstream, fitting, done),
        *_unlike(upstream, target, done, failures),
        *_left_out(upstream, target, config),
    )
    return Plan(
        target,
        patch,
        config,
        _edit(target, patch, config, done, before),
        tuple(one.place for one in done),
        (*target.notes, *neighbours, *config.notes, *notes, *left_out),
        (*warnings, *(warning for one in done for warning in one.warnings)),
        before if before and (before.options, before.version) != (config.words, target.version) else None,
    )


Failure = tuple["Place", Problem]
"""A place whose structure is another one."""


def _tried(
    places: Sequence[Place], target: Target, config: ProfileConfig[Stage], patch: PatchId
) -> tuple[list[_Fitting], list[Failure]]:
    """The places whose structure is as their recipe has it, and the others.

    A release that is not in the table is tried with every recipe; one that fits is enough.
    """
    fitting: list[_Fitting] = []
    failures: list[Failure] = []
    for place in places:
        try:
            fitting.append(_fitting(place, target, config, patch))
        except RecursionError:
            from patcher.editing import nested_too_deeply

            raise nested_too_deeply(str(target.root / place.file)) from None
        except Problem as problem:
            if place.structure is not None or problem.kind is not Kind.STRUCTURE:
                raise
            failures.append((place, problem))
    return fitting, failures


def profiler(upstream: Upstream, config: ProfileConfig[Stage]) -> str:
    """The framework's own profiler that the stage sets up instead of one of ours; "" for ours."""
    return next((recipe.profiler for recipe in recipes_of(upstream, config.stage.name)), "")


def _edit(
    target: Target, patch: PatchId, config: ProfileConfig[Stage], done: Sequence[_Fitting], before: Record | None
) -> Edit:
    """The changes, with those that take the lines of ``before`` out of files that are not needed any more."""
    changes = tuple(one.change for one in done)
    files = tuple(one.place.file for one in done if one.place.marked)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    record = Record(patch, target.version, config.words, files, now, __version__)
    same = before is not None and before[:4] == record[:4] and all(one.before == one.after for one in changes)
    needed = {one.place.file for one in done}
    left = [before._replace(files=tuple(sorted({*before.files} - needed)))] if before else []

    def read(path: PurePosixPath) -> bytes | None:
        return target.read(path) if target.exists(path) else None

    gone = edits.revert(target.root, read, left, [patch]).changes
    return Edit(target.root, (*changes, *gone), () if same or not files else (record,), () if files else (patch,))


class _Fitting(NamedTuple):
    """A place whose structure is as its recipe says, the change there, and the notes on it."""

    place: Place
    change: Change
    notes: tuple[Note, ...]
    warnings: tuple[Note, ...]


def _fitting(place: Place, target: Target, config: ProfileConfig[Stage], patch: PatchId) -> _Fitting:
    from patcher import editing

    recipe, path = place.recipe, PurePosixPath(place.file)
    where = str(target.root / path)
    before = target.read(path)
    pristine = markers.strip(before, where=where)
    without = markers.strip(before, [patch], where=where)
    notes: tuple[Note, ...] = ()
    if recipe.calls:
        after, settings, arguments = editing.replace(
            without, recipe, recipe.probe.arguments(config), patch, __version__, where=where
        )
        place = place._replace(settings=settings)
        notes = recipe.probe.resulting(config, arguments)
    else:
        blocks = _blocks(place, without, config, patch, target.version)
        after = editing.insert(without, recipe, blocks, __version__, units=config.stage.marked, where=where)
        others = [found.patch for found in markers.marked(before) if found.patch != patch]
        if markers.strip(before, others, where=where) == markers.strip(after, others, where=where):
            after = before  # else two patches at one place would change places each time
    warnings = []
    if differing := originals.differs(target, path, pristine):
        detail = Text("{detail}; its structure fits, so it is patched", differing.detail)
        warnings.append(Note(Text("{difference}: read the diff", differing.text), detail))
    seen = editing.fingerprint(pristine, recipe.class_name, recipe.method)
    if place.structure and place.structure.fingerprints and seen not in place.structure.fingerprints:
        function = ".".join(filter(None, (recipe.class_name, recipe.method)))
        seen_as = Text("{function} is not the one that was released as {version}", function, target.version)
        warnings.append(Note(seen_as, Text("it is in {path}", path)))
    return _Fitting(place, Change(path, before, after, pristine), notes, tuple(warnings))


def _not_alone(fitting: Sequence[_Fitting]) -> list[_Fitting]:
    """Those whose recipe needs no other one, or one that is among them, too."""
    found = {one.place.recipe.name for one in fitting}
    kept = [one for one in fitting if not one.place.recipe.needs or not found.isdisjoint(one.place.recipe.needs)]
    return kept if len(kept) == len(fitting) else _not_alone(kept)


def _lone(upstream: Upstream, fitting: Sequence[_Fitting], done: Sequence[_Fitting]) -> list[Note]:
    """A note on the places that fit and would record nothing."""
    lone: dict[Text, list[str]] = {}
    for recipe in (one.place.recipe for one in fitting if one not in done):
        needed = dict.fromkeys(_called(other) for other in upstream.recipes if other.name in recipe.needs)
        named = joined(OR, [*needed][:3])
        if len(needed) > 3:
            named = Text("{classes}, …", named)
        lone.setdefault(named, []).append(_called(recipe))
    return [
        Note(Text("left out: {classes}: nothing is recorded there without {needed}", joined(COMMA, classes), needed))
        for needed, classes in lone.items()
    ]


def _called(recipe: Recipe) -> str:
    return recipe.class_name or Text("the {recipe}", recipe.name)


def _unlike(upstream: Upstream, target: Target, done: Sequence[_Fitting], failures: Sequence[Failure]) -> list[Note]:
    """A note on each file that no recipe fits, though the release before or the next one has a place there."""
    if not failures:
        return []
    near, patched = _nearest(upstream, target.version), {one.place.file for one in done}
    expected = {
        place.file: problem.found
        for place, problem in failures
        if any(s.file == place.file for release in near if (s := place.recipe.structure(release)))
    }
    return [
        Note(Text("left out: {file}: not as in any release", file), Text("found {found}", found))
        for file, found in expected.items()
        if file not in patched
    ]


def _recipes(upstream: Upstream, config: ProfileConfig[Stage]) -> list[Recipe]:
    """The recipes that count or mark the unit in the stage, under the strategy; Problem for what cannot be had."""
    stage, staged, unit = config.stage, recipes_of(upstream, config.stage.name), config.stage.window.unit
    counting = [r for r in staged if unit in r.windows or (config.ranges.markers and unit in r.marks)]
    if not counting:
        offered = dict.fromkeys(typed_as(other) for recipe in staged for other in recipe.windows)
        raise Problem(Kind.USAGE, Text("the stage {name} has no --{unit}", stage.name, unit), hint=", ".join(offered))
    roles = dict.fromkeys(role for recipe in counting for role in recipe.roles)
    if stage.role and stage.role not in roles:
        cause = Text("--role {role}: the stage {name} works for {roles}", stage.role, stage.name, joined(AND, roles))
        raise Problem(Kind.USAGE, cause, hint=Text("--role {role}, or leave --role out", next(iter(roles))))
    mine = [recipe for recipe in counting if not stage.role or stage.role in recipe.roles]
    chosen = [recipe for recipe in mine if stage.strategy in ("", *recipe.strategies)]
    if not chosen:
        raise _no_strategy(upstream, config, staged, mine)
    return chosen


def _no_strategy(
    upstream: Upstream, config: ProfileConfig[Stage], staged: Sequence[Recipe], mine: Sequence[Recipe]
) -> Problem:
    """That none of the recipes ``mine`` has the strategy; the hint names units that have it, or other strategies."""
    stage = config.stage
    others = {typed_as(unit) for r in staged for unit in r.windows if stage.strategy in r.strategies}
    known = dict.fromkeys(f"--strategy {strategy}" for recipe in mine for strategy in recipe.strategies)
    gaps = [gap for gap in _gaps(upstream, config) if gap.strategy == stage.strategy]
    return Problem(
        Kind.USAGE,
        Text("--strategy {strategy} has no --{unit} in {stage}", stage.strategy, stage.window.unit, stage.name),
        hint=", ".join(sorted(others) or known),
        notes=tuple(line for gap in gaps for line in gap.reason.lines),
    )


def _gaps(upstream: Upstream, config: ProfileConfig[Stage]) -> list[Gap]:
    return [gap for gap in upstream.gaps if config.stage.window.unit == gap.unit and config.stage.name in gap.stages]


def _left_out(upstream: Upstream, target: Target, config: ProfileConfig[Stage]) -> list[Note]:
    """A note for each reason why a strategy is left out, with all that have it."""
    out: dict[Note, list[str]] = {}
    for gap in [] if config.stage.strategy else _gaps(upstream, config):
        if gap.exists(target.version):
            out.setdefault(gap.reason, []).append(gap.strategy)
    return [
        Note(Text("left out: {names} ({reason})", ", ".join(names), why.text), why.detail) for why, names in out.items()
    ]


def _places(upstream: Upstream, target: Target, recipes: Sequence[Recipe]) -> tuple[list[Place], list[Note]]:
    release = published(upstream, target.version)
    if release:
        known = [(r, s) for r in recipes if (s := r.structure(release))]
        return [Place(recipe, structure, structure.file, release) for recipe, structure in known], []
    warning = Note(
        Text(
            "{version} is not a release that rlpatch was tested with: read the diff",
            target.version or Text("an unknown version"),
        ),
        Text("the structure decides where the code goes: `rlpatch diff` shows whether you can trust the trace"),
    )
    files = dict.fromkeys((r.name, s.file) for r in recipes for s in r.structures)
    by_name = {recipe.name: recipe for recipe in recipes}
    return [Place(by_name[n], None, f) for n, f in files if target.exists(PurePosixPath(f))], [warning]


def _unfit(
    upstream: Upstream,
    target: Target,
    config: ProfileConfig[Stage],
    recipes: Sequence[Recipe],
    fitting: Sequence[_Fitting],
    failures: Sequence[Failure],
) -> Problem | None:
    """Why nothing would be recorded, or only a part of what belongs together; None if nothing stands in the way."""
    stage, name, version = config.stage, target.project.name, target.version
    done = _not_alone(fitting)
    fits = {one.place.recipe.name for one in fitting}
    lacking = [recipe for recipe in recipes if recipe.together and recipe.name not in fits]
    if not lacking and any(stage.window.unit in one.place.recipe.windows for one in done):
        return None
    lone = [line for note in _lone(upstream, fitting, done) for line in note.lines]
    hint = Text("rlpatch list shows the releases; rlpatch explain {name} the places that were looked for", name)
    problems = [problem for _, problem in failures] or [_no_file(target, recipe) for recipe in lacking if fitting]
    if not problems:
        cause = Text("{target} has no place for {window}", f"{name} {version}".rstrip(), _typed(stage))
        return Problem(Kind.NO_RECIPE, cause, str(target.root), hint, tuple(lone))
    known = [release for release in upstream.releases if any(recipe.structure(release) for recipe in recipes)]
    cause = Text(
        "{name} {version} is not a published release that rlpatch knows"
        " ({stage}: {first} to {last}), and no recipe fits its structure",
        name,
        version or Text("of unknown version"),
        stage.name,
        known[0],
        known[-1],
    )
    return Problem(Kind.STRUCTURE, cause, str(target.root), hint, (*_looked_for(problems), *lone))


def _typed(stage: Stage) -> str:
    typed = stage.name
    if stage.window.unit != WHOLE:
        typed = Text("--{unit} in {stage}", stage.window.unit, typed)
    return Text("{window} under --strategy {strategy}", typed, stage.strategy) if stage.strategy else typed


def _looked_for(problems: Sequence[Problem]) -> Iterator[str]:
    """What was looked for and found; what is looked for in several files is named once."""
    found: dict[str, list[str]] = {}
    for problem in problems:
        looked = Text("looked for {looked_for}", _cut(problem.looked_for)) if problem.looked_for else problem.cause
        line = Text("  {where}", problem.where)
        if problem.found:
            line = Text("  {where}: found {found}", problem.where, _cut(problem.found))
        found.setdefault(looked, []).append(line)
    for looked, files in found.items():
        yield from (looked, *dict.fromkeys(files))


def _cut(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:150]} …"


def _no_file(target: Target, recipe: Recipe) -> Problem:
    files = dict.fromkeys(structure.file for structure in recipe.structures)
    return Problem(
        Kind.STRUCTURE, Text("the {name} is in none of {files}", recipe.name, ", ".join(files)), str(target.root)
    )


def _nearest(upstream: Upstream, version: str) -> Sequence[str]:
    """The releases between which ``version`` lies, or the one that it is; all of them for what is no version."""
    wanted = versions.understood(version)
    if wanted is None:
        return upstream.releases
    from packaging.version import Version

    before = [release for release in upstream.releases if Version(release) <= wanted]
    after = [release for release in upstream.releases if Version(release) >= wanted]
    return (*before[-1:], *after[:1])


def published(upstream: Upstream, version: str) -> str:
    """The published release that ``version`` is, a local part (``+g67dd255``) left aside; "" for any other."""
    if version in upstream.releases:
        return version
    return next((release for release in upstream.releases if versions.holds(version, release)), "")


def _blocks(place: Place, without: bytes, config: ProfileConfig[Stage], patch: PatchId, version: str) -> list[Block]:
    """What goes to the end of the class: the patch's own block, before it what it shares, if that is not there yet."""
    from patcher.editing import render

    there = {found.patch: found for found in markers.marked(without)}
    release = place.release
    about = {"format": 1, "rlpatch": __version__, "target": patch.target, "release": version}
    for number in count(1):
        # The one that is there may have been written by another release of rlpatch, or for other settings.
        shared = PatchId(patch.target, SHARED, str(number) if number > 1 else "")
        rendered = render(place.recipe, config, release, patch, shared, about)
        if not rendered.shared or shared not in there:
            return [*([(shared, rendered.shared)] if rendered.shared else []), (patch, rendered.own)]
        if there[shared].intact and markers.holds(there[shared], rendered.shared):
            return [(patch, rendered.own)]
    raise AssertionError("count() has no end")
