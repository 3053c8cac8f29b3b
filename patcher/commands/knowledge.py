"""``list`` and ``explain``: what the recipes know, told from the recipes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from patcher import markers, plan
from patcher.change import PatchId
from patcher.commands.finding import SearchOptions, parse_target, upstreams
from patcher.config import WHOLE, TorchNpu, Window, typed_as
from patcher.errors import Kind, Problem
from patcher.option import flag, options_of
from patcher.recipe import Insertion, Loop, Recipe, Structure, Upstream
from patcher.report import Report
from patcher.request import Request, recipes_of, resolve

if TYPE_CHECKING:
    from patcher.targets.target import Target

STEERING = (
    "For one run, without patching again (read once, at the first call; a bad value switches the probe off):",
    "  RLPATCH=0                   no recording",
    "  RLPATCH_WINDOW=A:B or A:    another window, in the unit that was chosen",
    "  RLPATCH_RANKS=0,8 or all    other ranks",
    "  RLPATCH_REPLICAS=0,3 or all other replicas",
    "  RLPATCH_ROLLOUT=N           another rollout, counted from 0",
    "  RLPATCH_TRAINING_STEPS=2,5  other training steps, counted from 1",
    "  RLPATCH_SAVE_PATH=/x/y      another folder for the traces",
    "  RLPATCH_UPDATE_POLICY_WINDOW and so on, with the name of a stage, hold for that stage alone",
)


def listing() -> Report:
    """Targets, releases, stages and windows, from the recipes themselves."""
    rows = [
        {
            "target": upstream.project.name, "stage": recipe.stage, "recipe": recipe.name,
            "structure": structure.name, "file": structure.file, "releases": list(structure.releases),
            "windows": [f"--{unit}" for unit in recipe.windows if unit != WHOLE], "strategies": list(recipe.strategies),
            "roles": list(recipe.roles),
        }
        for upstream in upstreams() for recipe in upstream.recipes for structure in recipe.structures
    ]  # fmt: skip
    return Report("list", data={"targets": rows})


def explain(word: str, search: SearchOptions, stage: str | None) -> Report:
    """Where the code goes in for one target, and why there; by the recipes alone where the target is not found."""
    upstream, version = parse_target(word)
    name, report = upstream.project.name, Report("explain")
    report.tells_all = True
    recipes = recipes_of(upstream, stage, upstreams) if stage else list(upstream.recipes)
    there: Places = {}
    try:
        _, target = search.find(word, "explain")
        version = version or target.version
        report.lines.append(f"{name} {version or '(unknown version)'} in {target.root}")
        there, unlike = _places(upstream, recipes, target)
        for problem in unlike:
            report.warn(*problem.note)
    except Problem as problem:
        if problem.kind not in (Kind.NO_TARGET, Kind.VERSION):
            report.warn(*problem.note)
        if not report.lines:
            report.lines.append(f"{name} {version or '(every release)'}, not found here: as the recipes tell")
    release = plan.published(upstream, version or "")
    if version and not release:
        report.note(f"{version} is not a release that rlpatch was tested with: it goes by structure")
    said: set[str] = set()
    for recipe in recipes:
        structures = [s for s in recipe.structures if not release or release in s.releases]
        if structures:
            report.lines += ["", *_recipe(recipe, structures, there, said)]
    report.lines += ["", *_by_itself(upstream, release, {recipe.stage for recipe in recipes})]
    if any(not recipe.calls for recipe in recipes):  # nothing of ours looks at a variable in the others
        report.lines += STEERING
    report.data = {"target": name, "version": version, "stage": stage, "text": list(report.lines)}
    return report


Places = dict[tuple[str, str, str], list[str]]
"""Stage, unit and file → the call sites, as they would stand there."""


def _places(upstream: Upstream, recipes: Sequence[Recipe], target: Target) -> tuple[Places, list[Problem]]:
    """The places of every stage that the target has, and what is said where its structure is another one."""
    found: Places = {}
    unlike: list[Problem] = []
    staged = [recipe for recipe in recipes if not recipe.calls]
    for stage, unit in dict.fromkeys((recipe.stage, unit) for recipe in staged for unit in recipe.windows):
        windows = () if unit == WHOLE else (Window(unit, 1, 2),)
        request = Request(windows, stage, choices={"save_path": "/tmp/rlpatch_traces"})  # noqa: S108  (never opened)
        try:
            made = plan.apply(upstream, target, resolve(request, upstream, target))
        except Problem as problem:
            unlike += [problem] if problem.kind is not Kind.NO_RECIPE else []
            continue
        for change in made.edit.changes:
            found[stage, unit, str(change.path)] = _call_sites(change.after, made.patch)
    release = plan.published(upstream, target.version)
    for recipe in (recipe for recipe in recipes if recipe.calls):
        for file in dict.fromkeys(structure.file for structure in recipe.structures):
            try:
                lines = _arguments(upstream, recipe, PurePosixPath(file), target)
            except Problem as problem:
                # Else it is another recipe's file: any recipe is tried where the release is not a known one.
                structure = recipe.structure(release)
                unlike += [problem] if structure and structure.file == file else []
            else:
                found[recipe.stage, WHOLE, file] = lines
    return found, unlike


def _arguments(upstream: Upstream, recipe: Recipe, file: PurePosixPath, target: Target) -> list[str]:
    """The arguments that the recipe may change, as they are now."""
    from patcher import editing

    every = {name: getattr(TorchNpu(), name) for name in options_of(TorchNpu)}
    within = recipe.probe.arguments(resolve(Request((), recipe.stage, choices=every), upstream, target))
    now = editing.present(target.read(file), recipe, where=str(target.root / file))
    return [f"{one.line} {one.keyword}={one.before}" for one in now if (one.function, one.keyword) in within]


def _recipe(recipe: Recipe, structures: Sequence[Structure], there: Places, said: set[str]) -> list[str]:
    """The lines on one recipe; a reason that stands in ``said`` is not given again."""
    windows = ", ".join(typed_as(unit) for unit in recipe.windows)
    lines = [f"{recipe.stage}: {recipe.name}, {windows}"]
    if recipe.marks:
        lines.append(f"  with --markers also where the window is {', '.join(typed_as(unit) for unit in recipe.marks)}")
    if recipe.strategies:
        lines.append(f"  strategy: {', '.join(recipe.strategies)}; role: {', '.join(recipe.roles)}")
    reasons = {"why": recipe.why, "how": recipe.how, "remove when": recipe.remove_when}
    lines += [f"  {key}: {text}" for key, text in reasons.items() if text not in said]
    said.update(reasons.values())
    lines.append(f"  upstream: {recipe.upstream}")
    for structure in structures:
        first, last = structure.releases[0], structure.releases[-1]
        span = first if first == last else f"{first} to {last}"
        named = f"structure {structure.name}, " if structure.name else ""
        lines.append(f"  {named}{span}, {structure.file}: {structure.shape}")
    for site in (site for site in recipe.insertions if not site.windows or set(site.windows) & set(recipe.windows)):
        only = f" (--{', --'.join(site.windows)})" if site.windows and site.windows != recipe.windows else ""
        lines += [
            f"  in {recipe.class_name}.{site.method}, {site.where}{only}: {_shown(site, recipe)}",
            f"    {site.why}",
        ]
    if recipe.calls:
        lines.append("  settings: " + ", ".join(map(flag, options_of(TorchNpu))))
    for call in recipe.calls:
        lines += [f"  in {recipe.class_name}.{recipe.method}, the arguments of {call.function}", f"    {call.why}"]
    for note in recipe.notes:
        lines += [f"  note: {note.text}", *(f"    {line}" for line in note.lines[1:])]
    # All windows of most recipes go to the same lines.
    here: dict[str, list[str]] = {}
    for file in dict.fromkeys(structure.file for structure in structures):
        for unit in recipe.windows:
            for text in there.get((recipe.stage, unit, file), []):
                here.setdefault(f"{file}:{text}", []).append(f"--{unit}")
    for text, units in here.items():
        only = f" ({', '.join(units)})" if len(units) < len(recipe.windows) else ""
        lines.append(f"  here{only}: {text}")
    return lines


def _shown(site: Insertion, recipe: Recipe) -> str:
    shown = PatchId("", recipe.stage).rename("; ".join(site.lines))
    return shown.replace("{units}", site.where.names[0]) if isinstance(site.where, Loop) else shown


def _by_itself(upstream: Upstream, release: str, stages: set[str]) -> list[str]:
    from packaging.specifiers import SpecifierSet

    name, lines = upstream.project.name, []
    for gap in upstream.gaps:
        if stages.intersection(gap.stages) and gap.exists(release):
            first, *detail = gap.reason.lines
            lines += [f"--strategy {gap.strategy} --{gap.unit} cannot be had: {first}"]
            lines += [*(f"  {line}" for line in detail if f"  {line}" not in lines), ""]
    for releases, text in upstream.builtin.items():
        if not release or SpecifierSet(releases).contains(release, prereleases=True):
            lines += [f"by itself {name} {releases} can record, too: {text}", ""]
    return lines


def _call_sites(after: bytes, patch: PatchId) -> list[str]:
    lines = enumerate(after.decode("utf-8", "replace").splitlines(), 1)
    tag = markers.tag(patch)
    return [f"{number} {line.strip()}" for number, line in lines if line.endswith(f"  {tag}")]
