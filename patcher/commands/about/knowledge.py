"""``list`` and ``explain``: what the recipes know."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from patcher import plan
from patcher.changes import markers
from patcher.changes.change import PatchId
from patcher.commands.finding import SearchOptions, parse_target
from patcher.config import UNITS, WHOLE, BuiltinStage, TimelineStage, Window, typed_as
from patcher.messages import COMMA, OR, CommandLine, CommandResult, Kind, Note, Problem, StepResult, Text, joined
from patcher.options import flag, options_of
from patcher.recipe import Anchor, Around, Before, Loop, Recipe, Structure, Upstream
from patcher.request import ProfileRequest, recipes_of, resolve
from patcher.targets.target import Target
from patches.projects import upstreams
from patches.survey.readme import grouped

STEERING = (
    Text(
        "Environment variables that change what a run records, without patching again (read once, at the"
        " first call of a patched function; an invalid value disables recording):"
    ),
    Text("  RLPATCH=0                   record nothing"),
    Text("  RLPATCH_SAVE_PATH=/x/y      save to another folder"),
    Text("  RLPATCH_RANKS=0,8           record on ranks 0 and 8 only (all: on every rank)"),
)
STEERING_WINDOWS = (
    Text(
        "  RLPATCH_WINDOW=A:B or A:    record another window of the same kind (A: has no end), or a list of windows if"
        " you applied a list"
    ),
    Text("  RLPATCH_REPLICAS=0,3        record on replicas 0 and 3 instead (all: on every replica)"),
    Text("  RLPATCH_ROLLOUT=N           record in rollout N instead (the first is rollout 0)"),
    Text("  RLPATCH_TRAINING_STEPS=2,5  record in training steps 2 and 5 instead (the first is step 1)"),
    Text("  With a stage's name, as in RLPATCH_UPDATE_POLICY_WINDOW, a variable applies only to that stage"),
)
STEERING_TIMELINE = (Text("  RLPATCH_MAX_TIMELINE_MB=20  limit the timeline to 20 MB per process"),)


@dataclass(frozen=True)
class KnownStructure:
    """Row of `list`: a recipe, a file that it patches, and the releases in which the file has this structure."""

    target: str
    stage: str
    recipe: str
    structure: str
    file: str
    releases: tuple[str, ...]
    windows: tuple[str, ...]
    strategies: tuple[str, ...]
    roles: tuple[str, ...]


@dataclass(frozen=True)
class RecipeList:
    """Result of `list`."""

    targets: tuple[KnownStructure, ...]


@dataclass(frozen=True)
class Explanation:
    """Result of `explain`; `text` holds the printed lines, None as `version` or `stage` means all of them."""

    target: str
    version: str | None
    stage: str | None
    text: tuple[str, ...]


def listing(words: Sequence[str] = ()) -> CommandResult:
    """Return the result of `rlpatch list`: a row for each recipe and file structure of the targets `words` (none: all).

    A version leaves only the structures of that release. Raises Problem: USAGE for a word that is no target, NO_TARGET
    for an unknown target, VERSION for a release that no recipe covers.
    """
    chosen = [parse_target(word) for word in words] if words else [(upstream, None) for upstream in upstreams()]
    without_recipe = [
        (upstream.project.name, version) for upstream, version in chosen if version not in (None, *upstream.releases)
    ]
    if without_recipe:
        cause = Text(
            "rlpatch has no recipe for the release {targets}, so it looks for the insertion points by the structure of"
            " the code",
            ", ".join(f"{name}=={version}" for name, version in without_recipe),
        )
        raise Problem(Kind.VERSION, cause, hint=CommandLine("list", *dict(without_recipe)))
    rows = [
        KnownStructure(
            upstream.project.name, recipe.stage, recipe.name, structure.name, structure.file, structure.releases,
            tuple(f"--{unit}" for unit in recipe.windows if unit != WHOLE), recipe.strategies, recipe.roles,
        )
        for upstream, version in chosen for recipe in upstream.recipes for structure in recipe.structures
        if not version or version in structure.releases
    ]  # fmt: skip
    return CommandResult("list", data=RecipeList(tuple(rows)))


def stages(names: Collection[str] = ()) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Yield (target, stages, windows, releases) rows of the projects `names` (none: all).

    Stages with the same windows and releases share a row, joined by spaces, as are the options of the windows.
    """
    for upstream in (upstream for upstream in upstreams() if not names or upstream.project.name in names):
        for row in grouped(upstream):
            windows = " ".join(f"--{unit}" for unit in row.windows if unit != WHOLE)
            yield upstream.project.name, " ".join(row.stages), windows, row.releases


def releases(name: str) -> Sequence[str]:
    """Return the published releases of a project that any recipe covers, oldest first."""
    return parse_target(name)[0].releases


def installed(names: Collection[str], search: SearchOptions) -> list[Target]:
    """Return the targets among `names` that are installed here."""
    return [target for target in search.discover().targets if target.project.name in names]


def explain(word: str, search: SearchOptions, stage: str | None) -> CommandResult:
    """Return the result of `rlpatch explain`: where and why the recipes of a target insert code.

    An installed target is explained with line numbers in its files, any other from the recipes alone. Code that does
    not match a recipe is a warning. Raises Problem for an unknown target or stage.
    """
    upstream, version = parse_target(word)
    name = upstream.project.name
    recipes = recipes_of(upstream, stage, upstreams) if stage else list(upstream.recipes)
    head = Text("{target} {version} is not installed here; this is what rlpatch's recipes contain:")
    head = head.filled(target=name, version=version or Text("(every release)"))
    places: Places = {}
    try:
        _, target = search.find(word, "explain")
    except Problem as problem:
        problems = [] if problem.kind in (Kind.NO_TARGET, Kind.VERSION) else [problem]
    else:
        version = version or target.version
        version_text = version or Text("(unknown version)")
        head = Text("{target} {version} in {folder}", target=name, version=version_text, folder=target.root)
        places, problems = _find_call_sites(upstream, recipes, target)
    release = plan.published(upstream, version or "")
    step = StepResult.noted((problem.note for problem in problems), "warning")
    if version and not release:
        text = Text(
            "rlpatch was not tested with {version}, and finds the insertion points by the structure of the code",
            version,
        )
        step += StepResult.noted([Note(text)])
    lines = (head, *_explanation(upstream, recipes, release, places))
    data = Explanation(name, version, stage, lines)
    return CommandResult("explain", step + StepResult(lines), data=data, tells_all=True)


def _explanation(upstream: Upstream, recipes: Sequence[Recipe], release: str, places: Places) -> Iterator[str]:
    """Yield the lines on the recipes for `release` ("": any), on what these cannot record, and on RLPATCH variables."""
    texts_told: set[str] = set()
    for recipe in recipes:
        structures = [s for s in recipe.structures if not release or release in s.releases]
        if structures:
            yield ""
            yield from _recipe_lines(recipe, structures, texts_told)
            yield from _installed_lines(recipe, structures, places)
    yield ""
    yield from _gap_and_builtin_lines(upstream, release, {recipe.stage for recipe in recipes})
    steered = {recipe.stage for recipe in recipes if not recipe.calls}  # others insert nothing that reads a variable
    yield from STEERING if steered else ()
    yield from STEERING_WINDOWS if steered - {*TimelineStage.NAMES} else ()
    yield from STEERING_TIMELINE if steered & {*TimelineStage.NAMES} else ()


Places = dict[tuple[str, str], dict[str, list[str]]]
"""Stage and file → the call sites, as they would stand there, and the units that go through each."""


def _find_call_sites(upstream: Upstream, recipes: Sequence[Recipe], target: Target) -> tuple[Places, list[Problem]]:
    """Return the calls that patches would insert into the installed target, and problems of unlike code."""
    places: Places = {}
    unlike: list[Problem] = []
    staged = (recipe for recipe in recipes if not recipe.calls)
    for stage, unit in dict.fromkeys((recipe.stage, unit) for recipe in staged for unit in recipe.windows):
        try:
            for file, text in _call_sites(upstream, target, stage, unit):
                places.setdefault((stage, file), {}).setdefault(text, []).append(unit)
        except Problem as problem:
            if problem.kind is not Kind.NO_RECIPE:
                unlike.append(problem)
    for recipe in (recipe for recipe in recipes if recipe.calls):
        structure = recipe.structure(plan.published(upstream, target.version))
        for file in dict.fromkeys(structure.file for structure in recipe.structures):
            try:
                arguments = _profiler_arguments(upstream, recipe, file, target)
                places[recipe.stage, file] = {text: [WHOLE] for text in arguments}
            except Problem as problem:
                # Else it is another recipe's file: any recipe is tried where the release is not a known one.
                if structure and structure.file == file:
                    unlike.append(problem)
    return places, unlike


def _call_sites(upstream: Upstream, target: Target, stage: str, unit: str) -> Iterator[tuple[str, str]]:
    """Yield (file, "LINE CODE") for each call that a patch of `stage` would insert into a method of the target."""
    windows = () if unit == WHOLE else (Window(unit, UNITS[unit].first, UNITS[unit].first + 1),)
    request = ProfileRequest(windows, {"stage": stage, "save_path": "/tmp/rlpatch_traces"})  # noqa: S108  (never opened)
    plan_of_recipe = plan.make_plan(upstream, target, resolve(request, upstream, target))
    for change in plan_of_recipe.edit.changes:
        for number, line in enumerate(change.after.decode("utf-8", "replace").splitlines(), 1):
            if line.endswith(f"  {markers.tag(plan_of_recipe.patch)}"):
                yield str(change.path), f"{number} {line.strip()}"


def _profiler_arguments(upstream: Upstream, recipe: Recipe, file: str, target: Target) -> list[str]:
    """Return "LINE KEYWORD=VALUE" for each profiler argument in the installed `file` that the recipe can change."""
    from patcher import editing

    defaults = {name: spec.default for name, spec in options_of(BuiltinStage.PROFILER).items()}
    within = recipe.probe.arguments(resolve(ProfileRequest((), {"stage": recipe.stage, **defaults}), upstream, target))
    now = editing.present_settings(target.read(PurePosixPath(file)), recipe, where=str(target.root / file))
    settings = (setting for setting in now if (setting.function, setting.keyword) in within)
    return [f"{setting.line} {setting.keyword}={setting.before}" for setting in settings]


def _recipe_lines(recipe: Recipe, structures: Sequence[Structure], texts_told: set[str]) -> Iterator[str]:
    """Yield the lines on a recipe: windows, roles, reasons, source, its `structures`, its insertions, and notes.

    Reasons in `texts_told` are left out; those that are yielded are added to it.
    """
    windows = joined(COMMA, map(typed_as, recipe.windows))
    yield Text("{stage}: {recipe}, {windows}", stage=recipe.stage, recipe=recipe.name, windows=windows)
    if recipe.marks:
        marks = ", ".join(map(typed_as, recipe.marks))
        yield Text("  if --markers is given, this code is also inserted for {options} windows", marks)
    if recipe.strategies:
        strategies, roles = ", ".join(recipe.strategies), ", ".join(recipe.roles)
        yield Text("  strategy: {strategies}; role: {roles}", strategies=strategies, roles=roles)
    reasons = (
        (recipe.why, Text("  why: {reason}", recipe.why)),
        (recipe.how, Text("  how: {method}", recipe.how)),
        (recipe.needed_until, Text("  {line}", recipe.needed_until)),
    )
    yield from (line for reason, line in reasons if reason not in texts_told)
    texts_told.update((recipe.why, recipe.how, recipe.needed_until))
    yield Text("  upstream source: {source}", recipe.upstream)
    for structure in structures:
        first, last = structure.releases[0], structure.releases[-1]
        span = first if first == last else Text("{first} to {last}", first=first, last=last)
        if structure.name:
            span = Text("code structure {name} (releases {releases})", name=structure.name, releases=span)
        yield Text("  {releases}, {file}: {shape}", releases=span, file=structure.file, shape=structure.shape)
    yield from _insertion_lines(recipe)
    for note in (*recipe.notes, *recipe.unit_notes.values()):
        yield Text("  note: {note}", note.text)
        yield from (Text("    {line}", line) for line in note.lines[1:])


def _insertion_lines(recipe: Recipe) -> Iterator[str]:
    """Yield two lines for each insertion or rewritten call of a recipe: its place and code, then its reason."""
    for site in (site for site in recipe.insertions if not site.windows or set(site.windows) & set(recipe.windows)):
        only = f" (--{', --'.join(site.windows)})" if site.windows and site.windows != recipe.windows else ""
        place = site.method if "." in site.method else ".".join(filter(None, (recipe.class_name, site.method)))
        code = PatchId("", recipe.stage).rename("; ".join(site.lines))
        if isinstance(site.where, Loop):
            code = code.replace("{units}", site.where.names[0])
        line = Text("  in {function}, {position}{windows}: {code}")
        yield line.filled(function=place, position=_position(site.where), windows=only, code=code)
        yield Text("    {line}", site.why)
    if recipe.calls:
        options = ", ".join(map(flag, options_of(BuiltinStage.PROFILER)))
        yield Text("  settings that the patch can change: {options}", options)
    for call in recipe.calls:
        line = Text("  in {class_name}.{method}: the arguments of {function}")
        yield line.filled(class_name=recipe.class_name, method=recipe.method, function=call.function)
        yield Text("    {line}", call.why)


def _position(anchor: Anchor) -> Text:
    """Return the position of an insertion within its function as a phrase: "before the statement `x = 1`"."""
    if isinstance(anchor, Loop):
        return Text("before the loop over {names}", joined(OR, anchor.names))
    if isinstance(anchor, Around):
        return Text("around the call `{call}`", anchor.call)
    if isinstance(anchor, Before):
        return Text("before the statement `{statement}`", anchor.statement)
    return Text("at the start of the method")


def _installed_lines(recipe: Recipe, structures: Sequence[Structure], places: Places) -> Iterator[str]:
    """Yield a line for each call that the recipe would insert into the installed target, with its windows."""
    for file in dict.fromkeys(structure.file for structure in structures):
        for text, units in places.get((recipe.stage, file), {}).items():
            only = f" (--{', --'.join(units)})" if len(units) < len(recipe.windows) else ""
            line = Text("  in the installed file{only_for_windows}: {file}:{line_and_code}")
            yield line.filled(only_for_windows=only, file=file, line_and_code=text)


def _gap_and_builtin_lines(upstream: Upstream, release: str, stages: set[str]) -> list[str]:
    """Return the lines on windows that parallel strategies do not support, and on the project's own profiler."""
    from packaging.specifiers import SpecifierSet

    name = upstream.project.name
    lines: list[str] = []
    for gap in upstream.gaps:
        if stages.intersection(gap.stages) and gap.applies_to(release):
            first, *detail = gap.reason.lines
            unsupported = Text("--strategy {strategy} does not support --{unit} windows: {reason}")
            lines.append(unsupported.filled(strategy=gap.strategy, unit=gap.unit, reason=first))
            lines += [*(Text("  {line}", line) for line in detail if f"  {line}" not in lines), ""]
    for releases, text in upstream.builtin.items():
        if not release or SpecifierSet(releases).contains(release, prereleases=True):
            capable = Text("without rlpatch, {target} {releases} can record: {capability}")
            lines += [capable.filled(target=name, releases=releases, capability=text), ""]
    return lines
