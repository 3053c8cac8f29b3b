"""``list`` and ``explain``: what the recipes know, told from the recipes."""

from __future__ import annotations

from patcher.commands.asked import CaptureFor, Where, find, upstream_of, upstreams
from patcher.errors import Kind, Problem
from patcher.recipe import Recipe, Structure, Upstream
from patcher.report import Report

STEERING = (
    "For one run, without patching again (read once, at the first call; a bad value switches the probe off):",
    "  RLPATCH=0                   no recording",
    "  RLPATCH_WINDOW=A:B          another window, in the unit that was chosen",
    "  RLPATCH_RANKS=0,8 or all    other ranks",
    "  RLPATCH_ROLLOUT=N           another rollout, counted from 0",
    "  RLPATCH_SAVE_PATH=/x/y      another folder for the traces",
)


def listing() -> Report:
    """Targets, releases, stages and windows, from the recipes themselves."""
    rows = [
        {
            "target": upstream.project.name, "stage": recipe.stage, "recipe": recipe.name,
            "structure": structure.name, "file": structure.file, "releases": list(structure.releases),
            "windows": [f"--{unit}" for unit in recipe.windows],
        }
        for upstream in upstreams() for recipe in upstream.recipes for structure in recipe.structures
    ]  # fmt: skip
    return Report("list", data={"targets": rows})


def explain(word: str, where: Where, capture: CaptureFor) -> Report:
    """Where the code goes in for one target, and why there; by the recipes alone where the target is not found."""
    from patcher import plan

    upstream, version = upstream_of(word)
    name, report = upstream.project.name, Report("explain")
    there: dict[str, list[str]] = {}
    try:
        _, target = find(word, where, "explain")
        version = version or target.version
        report.lines.append(f"{name} {version or '(unknown version)'} in {target.root}")
        there = {
            str(c.path): _call_sites(c.after) for c in plan.apply(upstream, target, capture(upstream)).edit.changes
        }
    except Problem as problem:
        if problem.kind not in (Kind.NO_TARGET, Kind.VERSION):
            report.messages.append(f"warning: {problem}")
        if not report.lines:
            report.lines.append(f"{name} {version or '(every release)'}, not found here: as the recipes tell")
    release = plan.published(upstream, version or "")
    if version and not release:
        report.messages.append(f"note: {version} is not a release that rlpatch was tested with: it goes by structure")
    for recipe in upstream.recipes:
        structures = [s for s in recipe.structures if not release or release in s.releases]
        if structures:
            report.lines += ["", *_recipe(upstream, recipe, structures, release, there)]
    report.lines += ["", *STEERING]
    report.data = {"target": name, "version": version, "text": list(report.lines)}
    return report


def _recipe(
    upstream: Upstream, recipe: Recipe, structures: list[Structure], release: str, there: dict[str, list[str]]
) -> list[str]:
    from packaging.specifiers import SpecifierSet

    windows = ", ".join(f"--{unit} A:B" for unit in recipe.windows)
    lines = [f"{recipe.stage}: {recipe.name}, {windows}"]
    lines += [f"  why: {recipe.why}", f"  how: {recipe.how}", f"  upstream: {recipe.upstream}"]
    lines.append(f"  remove when: {recipe.remove_when}")
    for structure in structures:
        first, last = structure.releases[0], structure.releases[-1]
        span = first if first == last else f"{first} to {last}"
        lines.append(f"  structure {structure.name}, {span}, {structure.file}: {structure.shape}")
    for site in recipe.sites:
        place = f"before `{site.before}`" if site.before else "at its head"
        lines += [f"  in {recipe.class_name}.{site.method}, {place}: {site.line}", f"    {site.why}"]
    for file in dict.fromkeys(structure.file for structure in structures):
        lines += [f"  here: {file}:{text}" for text in there.get(file, [])]
    for releases, text in recipe.builtin.items():
        if not release or SpecifierSet(releases).contains(release, prereleases=True):
            lines.append(f"  by itself {upstream.project.name} {releases} has a window, too: {text}")
    return lines


def _call_sites(after: bytes) -> list[str]:
    lines = enumerate(after.decode("utf-8", "replace").splitlines(), 1)
    return [f"{number} {line.strip()}" for number, line in lines if "  # rlpatch: " in line]
