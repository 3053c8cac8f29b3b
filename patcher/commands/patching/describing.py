"""The description of a plan: as the payload of ``--json``, and as lines for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from patcher import plan as planning
from patcher.changes import markers
from patcher.changes.change import Change, PatchId
from patcher.commands.guarding import switched_on_by
from patcher.commands.patching import starting
from patcher.messages import AND, COMMA, Detail, Note, Text, joined
from patcher.messages.report import OMIT_NONE, StepResult
from patcher.plan import Place, Plan
from patcher.recipe import Upstream

if TYPE_CHECKING:
    from patcher.editing import Setting  # loads LibCST


class FilePayload(NamedTuple):
    """File of a plan; `recipe` is None if the file only loses the lines of the previous patch."""

    path: str
    changed: bool
    recipe: str | None
    structure: str | None
    settings: tuple[Setting, ...] = ()


class ReplacedPayload(NamedTuple):
    """Options, version and time of the patch that a plan replaces."""

    options: tuple[str, ...]
    version: str
    since: str


@dataclass(frozen=True)
class PlanPayload:
    """Plan for JSON; `nodes` are the cluster nodes with this target, None on this machine."""

    target: str
    version: str
    root: str
    kind: str
    found_by: str
    stage: str
    role: str
    options: tuple[str, ...]
    save_path: str | None
    files: tuple[FilePayload, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    replaces: ReplacedPayload | None
    nodes: tuple[str, ...] | None = field(default=None, metadata=OMIT_NONE)


NEXT_DRY_RUN = Text(
    "next: run the same command without --dry-run; `rlpatch diff` with the same options shows every line"
)
DONE, WOULD, LENT = Text("patched"), Text("would patch"), Text("patches")
"""Verbs of a plan: for files that were written, for a dry run, and for a run or bundle that brings the bytes."""


def payload(plan: Plan, nodes: tuple[str, ...] = ()) -> PlanPayload:
    """Return a plan as an object for JSON; `nodes` are the cluster nodes with this target, () on this machine."""
    target, patch, config, before = plan.target, plan.patch, plan.config, plan.replaces
    files = [
        FilePayload(
            str(change.path), change.before != change.after, place.recipe.name,
            place.structure.name if place.structure else None,
            place.settings,
        )
        for change, place in _changes_with_places(plan)
    ]  # fmt: skip
    files += [FilePayload(str(change.path), True, None, None) for change in plan.cleared]
    return PlanPayload(
        target.project.name, target.version, str(target.root), target.installed_as, target.found_by,
        patch.stage, patch.role, config.words, config.save_path or None, tuple(files),
        tuple(note.text for note in plan.warnings), tuple(note.text for note in plan.notes),
        ReplacedPayload(before.options, before.version, before.applied_at) if before else None, nodes or None,
    )  # fmt: skip


def notes(plan: Plan) -> StepResult:
    """Return the warnings and notes of a plan as a step without lines."""
    return StepResult.noted(plan.warnings, "warning") + StepResult.noted(plan.notes)


def describe(upstream: Upstream, plan: Plan, verb: str) -> StepResult:
    """Return the report on a plan; `verb` says what happens to a file: "patched", "would patch" or "patches"."""
    return StepResult(tuple(_plan_lines(upstream, plan, verb))) + notes(plan)


def describe_briefly(plans: Iterable[tuple[Upstream, Plan]], verb: str) -> StepResult:
    """Return the report on plans that a command has made by itself: a line for each target, the rest as details.

    It has each warning and note once, without those on windows, which are for whoever chooses them.
    """
    lines, headings = list[str](), set[str]()
    warnings, notes_left = dict[Note, None](), dict[Note, None]()
    for upstream, plan in plans:
        first, *details = _plan_lines(upstream, plan, verb)
        if first in headings:
            details.insert(0, first)
        else:
            lines.append(first)
            headings.add(first)
        lines += map(Detail, details)
        unit = plan.config.stage.window.unit
        on_windows = {*plan.config.notes, *(note for place in plan.places for note in place.recipe.notes_of(unit))}
        warnings |= dict.fromkeys(plan.warnings)
        notes_left |= dict.fromkeys(note for note in plan.notes if note not in on_windows)
    return StepResult((*lines,)) + StepResult.noted((*warnings,), "warning") + StepResult.noted((*notes_left,))


def _plan_lines(upstream: Upstream, plan: Plan, verb: str) -> Iterator[str]:
    """Yield the lines on a plan: target, files, replaced patch, recording window, and where the traces go."""
    target, config = plan.target, plan.config
    name, version = target.project.name, target.version or Text("(unknown version)")
    head = Text("{target} {version}: {installation} in {folder}")
    yield head.filled(target=name, version=version, installation=target.installed_as, folder=target.root)
    source = target.version_from or Text("an unknown source")
    yield Text("  found through {found_by}; version from {source}", found_by=target.found_by, source=source)
    for change, place in _changes_with_places(plan):
        yield from _file_lines(change, place, plan, verb)
    for change in plan.cleared:
        yield Text("  {verb} {path}: the lines of the previous patch are removed", verb=verb, path=change.path)
    if before := plan.replaces:
        options: str = shlex.join(before.options)
        if before.version != target.version:
            options = Text("{options}, version {version}", options=options, version=before.version or Text("unknown"))
        yield Text("  replaces the patch of {time}: {options}", options=options, time=before.applied_at)
    yield Text("  {line}", plan.places[0].recipe.probe.summary(config))
    if config.records_step_zero:
        yield Text("  Step 0 includes the profiler's start-up cost, because there is no earlier step for the warm-up.")
    if profiler := planning.builtin_profiler(upstream, config):
        line = Text("  this setting alone records nothing: switch {profiler} on as usual, with {switch}")
        yield line.filled(profiler=profiler, switch=switched_on_by(upstream, profiler, target))
        return
    if not config.profiler.MODULE:
        line = Text(
            "  each process writes its own timeline to {save_path}/timeline; read the timelines with `rlpatch"
            " timeline {save_path}`"
        )
        yield line.filled(config.save_path)
        return
    steps = Text("the rollout or training stage as a whole, and each of its decode steps, micro-batches and so on")
    kinds = {steps: config.ranges.markers, Text("every call of an nn.Module"): config.ranges.module_ranges}
    if any(kinds.values()):
        parts = joined(AND, (kind for kind, marked in kinds.items() if marked))
        yield Text("  marked as named ranges in the trace: {parts}", parts)
    if config.profiler.STARTED_BY:
        yield from starting.nsys_lines(config.save_path)
        return
    if config.profiler.TOOL == "memory":
        yield Text("  memory snapshots go to {save_path}", config.save_path)
    else:
        yield Text("  traces of {module} go to {save_path}", module=config.profiler.MODULE, save_path=config.save_path)
    yield Text("    set RLPATCH_SAVE_PATH to use another folder for one run")


def _changes_with_places(plan: Plan) -> list[tuple[Change, Place]]:
    """Return the changes of a plan with their places; changes that only remove lines have none."""
    return list(zip(plan.edit.changes, plan.places, strict=False))


def _file_lines(change: Change, place: Place, plan: Plan, verb: str) -> Iterator[str]:
    """Yield a line on what a recipe inserts into a file, then a line for each profiler argument that it sets."""
    without = "" if place.marked or change.before == change.after else Text("no lines inserted")
    if change.before == change.after:
        verb = Text("unchanged")
        if plan.edit.add and place.marked:
            verb = Text("patch registered again in .rlpatch (file unchanged):")
    structure = place.structure
    shape: str = Text("places found by code structure")
    if structure is not None:
        shape = Text("code structure {name}", structure.name) if structure.name else ""
    recipe = joined(COMMA, (place.recipe.name, shape))
    extent = joined(COMMA, (without, _extent(change, place, plan.patch)))
    yield Text("  {verb} {path}, {extent} ({recipe})", verb=verb, path=change.path, extent=extent, recipe=recipe)
    for setting in place.settings:
        text = Text("    {argument}: already {value}", argument=setting.keyword, value=setting.after)
        if setting.changed:
            before, change_text = setting.before or Text("not set"), Text("    {argument}: {before} → {after}")
            text = change_text.filled(argument=setting.keyword, before=before, after=setting.after)
        if setting.line:
            text = Text("{setting} ({file}:{line})", setting=text, file=place.file, line=setting.line)
        yield text


def _extent(change: Change, place: Place, patch: PatchId) -> str:
    """Return in words how many lines are inserted into a file, or how many profiler arguments are changed in it."""
    if not place.recipe.calls:
        there = {marked.patch: marked for marked in markers.marked(change.after)}
        shared = sum(len(there[recorder].lines) for recorder in there[patch].uses)
        count = len(there[patch].lines)
        if shared:
            text = Text("{count} lines inserted, plus {shared} lines of a recorder that several patches share")
            return text.filled(count=count, shared=shared)
        return Text("{count} lines inserted", count)
    different, count = sum(setting.changed for setting in place.settings), len(place.settings)
    return Text("{different} of the {count} arguments of the profiler changed", different=different, count=count)
