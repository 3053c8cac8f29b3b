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
from patcher.messages import AND, COMMA, OR, Kind, Note, Problem, Text, joined, usage
from patcher.recipe import Gap, Recipe, Structure, Upstream
from patcher.request import recipes_of
from patcher.targets import originals, versions
from patcher.targets.target import Target

if TYPE_CHECKING:
    from patcher.editing import Block, Setting


class Plan(NamedTuple):
    """Changes of a patch below a root, with notes and warnings for the report.

    `replaces` is the record of the same patch with other options, or for another release.
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
        """Whether committing the plan would change a file."""
        return any(change.before != change.after for change in self.edit.changes)

    @property
    def cleared(self) -> tuple[Change, ...]:
        """Changes of files that lose the lines of the previous patch and get none."""
        return tuple(change for change in self.edit.changes[len(self.places) :] if change.before != change.after)


class Place(NamedTuple):
    """File that a recipe applies to, with its structure and published release (None and "" if the release is unknown).

    `settings` are the requested arguments, for a recipe that changes arguments.
    """

    recipe: Recipe
    structure: Structure | None
    file: str
    release: str = ""
    settings: tuple[Setting, ...] = ()

    @property
    def marked(self) -> bool:
        """Whether the patch inserts lines into the file: False if all requested arguments have their value already."""
        return not self.recipe.calls or any(setting.changed for setting in self.settings)


def make_plan(upstream: Upstream, target: Target, config: ProfileConfig[Stage], records: Sequence[Record] = ()) -> Plan:
    """Return the plan that patches `target` to record `config`; nothing is written.

    Lines of the same patch are replaced. `records` are the patches that the store has for the root. Raises Problem:
    NO_RECIPE or STRUCTURE if no code to patch is found, FOREIGN_EDIT if inserted lines were edited, USAGE for a window,
    role or strategy that the stage does not have, ENVIRONMENT if a file cannot be read.
    """
    planning = _Planning(upstream, target, config)
    recipes = planning.recipes()
    # A role that is the only one of its stage makes no patch of its own.
    several = any(len(recipe.roles) > 1 for recipe in recipes)
    patch = PatchId(target.project.name, config.stage.name, config.stage.role if several else "")
    places, warnings = planning.places(recipes)
    fitting, failures = planning.fit(places, patch)
    recording = _drop_lone(fitting)
    lone_notes = planning.lone_place_notes(fitting, recording)
    planning.require_match(recipes, fitting, recording, failures, lone_notes)
    before = next((record for record in records if record.patch == patch), None)
    unit = config.stage.window.unit
    notes = dict.fromkeys(note for fit in recording for note in (*fit.notes, *fit.place.recipe.notes_of(unit)))
    neighbours = [note for package, note in upstream.neighbours.items() if target.beside(package)]
    unmatched_notes = planning.unmatched_file_notes(recording, failures)
    skipped_notes = (*lone_notes, *unmatched_notes, *planning.skipped_strategy_notes())
    return Plan(
        target,
        patch,
        config,
        planning.edit(patch, recording, before),
        tuple(fit.place for fit in recording),
        (*target.notes, *neighbours, *config.notes, *notes, *skipped_notes),
        (*warnings, *(warning for fit in recording for warning in fit.warnings)),
        before if before and (before.options, before.version) != (config.words, target.version) else None,
    )


def builtin_profiler(upstream: Upstream, config: ProfileConfig[Stage]) -> str:
    """Return the framework's own profiler that the stage sets up, or "". Raises Problem (NO_RECIPE)."""
    return next((recipe.profiler for recipe in recipes_of(upstream, config.stage.name)), "")


class _Fitting(NamedTuple):
    """Place whose structure fits its recipe, with the change to its file, notes and warnings."""

    place: Place
    change: Change
    notes: tuple[Note, ...]
    warnings: tuple[Note, ...]


Failure = tuple[Place, Problem]
"""A place whose structure is another one."""


class _Planning(NamedTuple):
    """Steps of planning a patch, in order, and the notes on what it leaves out."""

    upstream: Upstream
    target: Target
    config: ProfileConfig[Stage]

    def recipes(self) -> list[Recipe]:
        """Return the recipes with the stage, the kind of window, the role and the strategy of the configuration."""
        stage, unit = self.config.stage, self.config.stage.window.unit
        staged = recipes_of(self.upstream, stage.name)
        counting = [r for r in staged if unit in r.windows or (self.config.ranges.markers and unit in r.marks)]
        if not counting:
            offered = dict.fromkeys(typed_as(other) for recipe in staged for other in recipe.windows)
            cause = Text("the stage {stage} does not support --{unit} windows", stage=stage.name, unit=unit)
            raise usage(cause, ", ".join(offered))
        roles = dict.fromkeys(role for recipe in counting for role in recipe.roles)
        if stage.role and stage.role not in roles:
            raise self.role_problem(stage.role, tuple(roles))
        of_role = [recipe for recipe in counting if not stage.role or stage.role in recipe.roles]
        chosen = [recipe for recipe in of_role if stage.strategy in ("", *recipe.strategies)]
        if not chosen:
            raise self.strategy_problem(staged, of_role)
        return chosen

    def role_problem(self, role: str, roles: Sequence[str]) -> Problem:
        """Return the problem that the stage runs only for `roles`, with the other stages that run for `role`."""
        stage = self.config.stage.name
        cause = Text("--role {role}: the stage {stage} runs only for {roles}")
        hint = Text("use --role {role}, or leave --role out", roles[0])
        stages_of_role = (recipe.stage for recipe in self.upstream.recipes if role in recipe.roles)
        if stages := dict.fromkeys(f"--stage {other}" for other in stages_of_role if other != stage):
            more = Text("{hint}; or record another stage of the {role}: {stages}")
            hint = more.filled(hint=hint, role=role, stages=joined(OR, stages))
        return usage(cause.filled(role=role, stage=stage, roles=joined(AND, roles)), hint)

    def strategy_problem(self, staged: Sequence[Recipe], of_role: Sequence[Recipe]) -> Problem:
        """Return the problem that the stage lacks the window with this strategy, and what there is instead."""
        stage, unit = self.config.stage, self.config.stage.window.unit
        units = {
            typed_as(other) for recipe in staged for other in recipe.windows if stage.strategy in recipe.strategies
        }
        strategies = dict.fromkeys(f"--strategy {strategy}" for recipe in of_role for strategy in recipe.strategies)
        cause = Text("with --strategy {strategy}, the stage {stage} does not support --{unit} windows")
        cause = cause.filled(strategy=stage.strategy, stage=stage.name, unit=unit)
        reasons = (gap.reason for gap in self.gaps() if gap.strategy == stage.strategy)
        notes = tuple(line for reason in reasons for line in reason.lines)
        return usage(cause, ", ".join(sorted(units) or strategies), notes=notes)

    def places(self, recipes: Sequence[Recipe]) -> tuple[list[Place], list[Note]]:
        """Return the files in which the recipes may apply, and warnings.

        For a published release these are the files of its structures; for an unknown one all files of the recipes that
        the target has, and a warning says so.
        """
        release = published(self.upstream, self.target.version)
        if release:
            structures = [(recipe, structure) for recipe in recipes if (structure := recipe.structure(release))]
            return [Place(recipe, structure, structure.file, release) for recipe, structure in structures], []
        version = self.target.version or Text("an unknown version")
        detail = Text(
            "rlpatch chose where to insert lines by the structure of the code; check the places with `rlpatch diff`"
        )
        warning = Note(Text("rlpatch was not tested with {version}: read the diff", version), detail)
        files = {(r.name, structure.file): r for r in recipes for structure in r.structures}
        there = {file for _, file in files if self.target.exists(PurePosixPath(file))}
        return [Place(recipe, None, file) for (_, file), recipe in files.items() if file in there], [warning]

    def fit(self, places: Sequence[Place], patch: PatchId) -> tuple[list[_Fitting], list[Failure]]:
        """Return the places whose code matches their recipe, with their changes, and the other places with a problem.

        The others are always of an unknown release, in which every recipe is tried; in a published one they are an
        error.
        """
        fitting: list[_Fitting] = []
        failures: list[Failure] = []
        for place in places:
            try:
                fitting.append(self.change(place, patch))
            except RecursionError:
                from patcher.editing import nested_too_deeply

                raise nested_too_deeply(str(self.target.root / place.file)) from None
            except Problem as problem:
                if place.structure is not None or problem.kind is not Kind.STRUCTURE:
                    raise
                failures.append((place, problem))
        return fitting, failures

    def change(self, place: Place, patch: PatchId) -> _Fitting:
        """Return the change that a recipe makes to a file, with notes, and warnings of code unlike the release's."""
        from patcher import editing

        recipe, path, target = place.recipe, PurePosixPath(place.file), self.target
        where = str(target.root / path)
        before = target.read(path)
        pristine = markers.strip(before, where=where)
        without = markers.strip(before, [patch], where=where)
        notes: tuple[Note, ...] = ()
        if recipe.calls:
            requested = recipe.probe.arguments(self.config)
            after, settings, arguments = editing.replace(without, recipe, requested, patch, __version__, where=where)
            place = place._replace(settings=settings)
            notes = recipe.probe.argument_notes(self.config, arguments)
        else:
            blocks = _blocks(place, without, self.config, patch, target.version)
            units = self.config.stage.marked
            after = editing.insert(without, recipe, blocks, __version__, units=units, where=where)
            neighbours = [mark.patch for mark in markers.marked(before) if mark.patch != patch]
            if markers.strip(before, neighbours, where=where) == markers.strip(after, neighbours, where=where):
                after = before  # else two patches at one place would change places each time
        warnings = []
        if differing := originals.difference_note(target, path, pristine):
            detail = Text(
                "{difference}; but the code has the structure that rlpatch expects, so rlpatch patches the file",
                differing.detail,
            )
            warnings.append(Note(Text("{difference}: read the diff", differing.text), detail))
        fingerprint = editing.fingerprint(pristine, recipe.class_name, recipe.method)
        if place.structure and place.structure.fingerprints and fingerprint not in place.structure.fingerprints:
            function = ".".join(filter(None, (recipe.class_name, recipe.method)))
            text = Text("{function} differs from the code that was released as {version}")
            text = text.filled(function=function, version=target.version)
            warnings.append(Note(text, Text("this function is in {path}", path)))
        return _Fitting(place, Change(path, before, after, pristine), notes, tuple(warnings))

    def require_match(
        self,
        recipes: Sequence[Recipe],
        fitting: Sequence[_Fitting],
        recording: Sequence[_Fitting],
        failures: Sequence[Failure],
        lone_notes: Sequence[Note],
    ) -> None:
        """Raise Problem unless a place in `recording` records the window, and all `together` recipes are in `fitting`.

        The kind is STRUCTURE if code does not match or a file is missing, else NO_RECIPE.
        """
        stage, name, target = self.config.stage, self.target.project.name, self.target
        fits = {fit.place.recipe.name for fit in fitting}
        lacking = [recipe for recipe in recipes if recipe.together and recipe.name not in fits]
        if not lacking and any(stage.window.unit in fit.place.recipe.windows for fit in recording):
            return
        notes = [line for note in lone_notes for line in note.lines]
        hint = Text(
            "`rlpatch list {target}` shows the supported releases; `rlpatch explain {target}` shows where rlpatch"
            " inserts code",
            name,
        )
        problems = [problem for _, problem in failures]
        if fitting and not problems:
            problems = [_no_file(target, recipe) for recipe in lacking]
        if not problems:
            cause = Text("no place to record {window} was found in {target}")
            cause = cause.filled(window=_recording_words(stage), target=f"{name} {target.version}".rstrip())
            raise Problem(Kind.NO_RECIPE, cause, str(target.root), hint, tuple(notes))
        releases = [release for release in self.upstream.releases if any(r.structure(release) for r in recipes)]
        version = target.version or Text("(unknown version)")
        cause = Text(
            "{target} {version} is not a release that rlpatch knows (known for {stage}: {first} to {last}), and its"
            " code matches no recipe",
            target=name,
            version=version,
            stage=stage.name,
            first=releases[0],
            last=releases[-1],
        )
        raise Problem(Kind.STRUCTURE, cause, str(target.root), hint, (*_mismatch_lines(problems), *notes))

    def lone_place_notes(self, fitting: Sequence[_Fitting], recording: Sequence[_Fitting]) -> list[Note]:
        """Return notes on the places that are skipped although their code matches: no recipe that they need matches."""
        names_by_needed: dict[Text, list[str]] = {}
        for recipe in (fit.place.recipe for fit in fitting if fit not in recording):
            needed = dict.fromkeys(_class_words(other) for other in self.upstream.recipes if other.name in recipe.needs)
            classes = joined(OR, [*needed][:3])
            if len(needed) > 3:
                classes = Text("{classes} or another class", classes)
            names_by_needed.setdefault(classes, []).append(_class_words(recipe))
        text = Text(
            "skipped {classes}: to record in these classes, rlpatch also needs {needed}, and did not find its code"
        )
        return [
            Note(text.filled(classes=joined(COMMA, names), needed=needed)) for needed, names in names_by_needed.items()
        ]

    def unmatched_file_notes(self, recording: Sequence[_Fitting], failures: Sequence[Failure]) -> list[Note]:
        """Return a note on each file whose code matches no recipe, although one patches it in a near release."""
        if not failures:
            return []
        near, patched = _nearest(self.upstream, self.target.version), {fit.place.file for fit in recording}
        expected = {
            place.file: problem.actual
            for place, problem in failures
            if any(s.file == place.file for release in near if (s := place.recipe.structure(release)))
        }
        text = Text("skipped {file}: the file matches no known release")
        return [
            Note(text.filled(file), Text("found {code}", code))
            for file, code in expected.items()
            if file not in patched
        ]

    def gaps(self) -> list[Gap]:
        """Return the gaps of the project for this stage and window: strategies with which it is not available."""
        unit, stage = self.config.stage.window.unit, self.config.stage.name
        return [gap for gap in self.upstream.gaps if unit == gap.unit and stage in gap.stages]

    def skipped_strategy_notes(self) -> list[Note]:
        """Return a note for each reason why parallel strategies are not patched; [] if the user chose a strategy."""
        strategies: dict[Note, list[str]] = {}
        for gap in [] if self.config.stage.strategy else self.gaps():
            if gap.applies_to(self.target.version):
                strategies.setdefault(gap.reason, []).append(gap.strategy)
        text = Text("the classes for --strategy {strategies} stay unpatched ({reason})")
        return [
            Note(text.filled(strategies=", ".join(names), reason=reason.text), reason.detail)
            for reason, names in strategies.items()
        ]

    def edit(self, patch: PatchId, recording: Sequence[_Fitting], before: Record | None) -> Edit:
        """Return the edit that makes the changes of all places in `recording`, and writes the record of the patch.

        Files of the record `before` which no longer need the patch lose it. No record is written if nothing changes.
        """
        target = self.target
        changes = tuple(fit.change for fit in recording)
        files = tuple(fit.place.file for fit in recording if fit.place.marked)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        record = Record(patch, target.version, self.config.words, files, now, __version__)
        is_same = all(change.before == change.after for change in changes)
        same = is_same and before is not None and before[:4] == record[:4]
        unneeded = {*before.files} - {fit.place.file for fit in recording} if before else set()
        old = [before._replace(files=tuple(sorted(unneeded)))] if before else []

        reverted = edits.revert(target.root, target.read_existing, old, [patch]).changes
        added = () if same or not files else (record,)
        return Edit(target.root, (*changes, *reverted), added, () if files else (patch,))


def _drop_lone(fitting: Sequence[_Fitting]) -> list[_Fitting]:
    """Return `fitting` without places whose recipe needs others, none of which fits; repeated until nothing changes."""
    names = {fit.place.recipe.name for fit in fitting}
    usable = [fit for fit in fitting if not fit.place.recipe.needs or not names.isdisjoint(fit.place.recipe.needs)]
    return usable if len(usable) == len(fitting) else _drop_lone(usable)


def _recording_words(stage: Stage) -> str:
    """Return what is recorded, for a message, such as "--decode windows of rollout with --strategy ulysses"."""
    typed = stage.name
    if stage.window.unit != WHOLE:
        typed = Text("--{unit} windows of {stage}", unit=stage.window.unit, stage=typed)
    if stage.strategy:
        typed = Text("{window} with --strategy {strategy}", window=typed, strategy=stage.strategy)
    return typed


def _class_words(recipe: Recipe) -> str:
    return recipe.class_name or Text("the {recipe}", recipe.name)


def _mismatch_lines(problems: Sequence[Problem]) -> Iterator[str]:
    """Yield a line on each code that was expected, or a cause, followed by a line for each file with what is there."""
    places: dict[str, dict[str, None]] = {}
    for problem in problems:
        heading = Text("expected {code}", _cut(problem.expected)) if problem.expected else problem.cause
        line = Text("  {place}", problem.where)
        if problem.actual:
            line = Text("  {place}: found {code}", place=problem.where, code=_cut(problem.actual))
        places.setdefault(heading, {})[line] = None
    for heading, lines in places.items():
        yield from (heading, *lines)


def _cut(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:150]} …"


def _no_file(target: Target, recipe: Recipe) -> Problem:
    """Return the Problem (STRUCTURE) that the target has none of the files into which `recipe` inserts code."""
    files = ", ".join(dict.fromkeys(structure.file for structure in recipe.structures))
    cause = Text("the recipe “{recipe}” inserts code into these files, but none of them exists: {files}")
    return Problem(Kind.STRUCTURE, cause.filled(recipe=recipe.name, files=files), str(target.root))


def _nearest(upstream: Upstream, version: str) -> Sequence[str]:
    """Return the published releases just before and after `version`; all if it does not parse."""
    parsed_version = versions.parse_version(version)
    if parsed_version is None:
        return upstream.releases
    from packaging.version import Version

    before = [release for release in upstream.releases if Version(release) <= parsed_version]
    after = [release for release in upstream.releases if Version(release) >= parsed_version]
    return (*before[-1:], *after[:1])


def published(upstream: Upstream, version: str) -> str:
    """Return the published release that `version` is, ignoring a local part (`+g67dd255`); "" for any other."""
    if version in upstream.releases:
        return version
    return next((release for release in upstream.releases if versions.satisfies(version, release)), "")


def _blocks(place: Place, without: bytes, config: ProfileConfig[Stage], patch: PatchId, version: str) -> list[Block]:
    """Return the blocks to insert into a file, as (patch, lines): the shared block if the file lacks it, and its own.

    A shared block that differs or was edited is left alone, and a new one with another number is inserted.
    """
    from patcher.editing import render

    blocks = {marked.patch: marked for marked in markers.marked(without)}
    release = place.release
    about = {"format": 1, "rlpatch": __version__, "target": patch.target, "release": version}
    for number in count(1):
        # The one that is there may have been written by another release of rlpatch, or for other settings.
        shared = PatchId(patch.target, SHARED, str(number) if number > 1 else "")
        rendered = render(place.recipe, config, release, patch, shared, about)
        patch_block = (patch, rendered.patch_lines)
        if not rendered.shared_lines:
            return [patch_block]
        if shared not in blocks:
            return [(shared, rendered.shared_lines), patch_block]
        if blocks[shared].intact and markers.holds(blocks[shared], rendered.shared_lines):
            return [patch_block]
    raise AssertionError("count() has no end")
