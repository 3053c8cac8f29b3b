"""``apply``, ``revert`` and ``recover``: the commands that let the store write."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from patcher import markers
from patcher import plan as planning
from patcher.change import Change, Edit, PatchId, Record
from patcher.commands.finding import LaunchOptions, Search, upstreams
from patcher.commands.guarding import switched_on_by
from patcher.commands.patched import PatchedRoot, patched_roots, report_nothing
from patcher.commands.where import Where
from patcher.errors import Kind, Problem, refused
from patcher.recipe import Upstream
from patcher.report import Report
from patcher.request import no_stage, resolve
from patcher.store import STORE
from patcher.store import transaction as store
from patches import projects

if TYPE_CHECKING:
    from patcher.config import ProfileConfig, Stage
    from patcher.plan import Place, Plan
    from patcher.request import ProfileRequest


def plans_for(
    report: Report,
    words: Sequence[str],
    search: Search,
    request: ProfileRequest,
    command: str,
    where: Where | None = None,
) -> list[tuple[Upstream, Plan]]:
    """A plan for every target; what fails goes into the report, all of it, so that the user sees it at once.

    With ``where`` a run that was interrupted is ended first: before that a file is not what it will be.
    """
    plans: list[tuple[Upstream, Plan]] = []
    for word in dict.fromkeys(words):
        try:
            upstream, target = search.find(word, command)
            if any(plan.target.project == target.project for _, plan in plans):
                continue  # the same target, named in two ways
            if where and where.unfinished(target.root):
                where.settle(report, search)
            config = resolve(request, upstream, target, upstreams)
            _refuse_inside(config)
            plans.append((upstream, planning.apply(upstream, target, config, store.records(target.root))))
        except Problem as problem:
            report.problems.append(problem)
        except PermissionError as error:
            report.problems.append(refused(error))
    if not report.problems:
        report.problems += unused(request, plans)
    if report.problems and len(words) > 1:
        report.note("nothing was written, because not every target can be patched")
    return plans


def unused(request: ProfileRequest, plans: Sequence[tuple[Upstream, Plan]]) -> list[Problem]:
    """What was asked for and fits no target; in a command of several targets each takes only what it knows."""
    stages = [plan.config.stage for _, plan in plans]
    problems = []
    if request.stage and request.stage not in [stage.name for stage in stages]:
        problems.append(no_stage(request.stage, [upstream for upstream, _ in plans], upstreams))
    for window in request.windows:
        if window not in [stage.window for stage in stages]:
            option = f"--{window.unit} {window}"
            hint = f"leave out {option}, or name a target that has it: rlpatch list"
            problems.append(Problem(Kind.USAGE, f"{option}: no target counts it", hint=hint))
    return problems


def apply(
    words: Sequence[str],
    where: Where,
    request: ProfileRequest,
    launch: LaunchOptions,
    *,
    dry_run: bool,
    force: bool,
) -> Report:
    """Patch every target of ``words`` or none; with ``dry_run`` say only what would be done."""
    entries: list[dict[str, object]] = []
    report = Report("apply", data={"dry_run": dry_run, "targets": entries})
    found = [
        (search, plans_for(report, words, search, request, "apply", None if dry_run else where))
        for search in where.searches(report, words, "apply", writes=not dry_run)
    ]
    plans = [one for _, planned in found for one in planned]
    if not report.problems:
        for upstream, plan in plans:
            where.guard(report, upstream, plan, launch, force=force)
    if report.problems:
        return report
    edits = [plan.edit for _, plan in plans]
    if dry_run:
        where.preflight(report, edits)
    else:
        where.commit(report, edits, "patched")
    for search, planned in found:
        report.lines += on(search)
        nodes = {"nodes": list(search.nodes)} if search.nodes else {}
        entries.extend(describe(report, *one, WOULD if dry_run else DONE) | nodes for one in planned)
    if dry_run:
        report.lines.append("next: the same without --dry-run; `rlpatch diff` with the same options shows every line")
        return report
    _next(report, [plan for _, plan in plans], found[-1][0])
    if any(plan.changed for _, plan in plans):
        _restart(report, where, [(upstream, plan.target.root) for upstream, plan in plans])
    return report


def on(search: Search) -> list[str]:
    """The line above what is said of some nodes of a cluster; none for this machine."""
    if not search.nodes:
        return []
    count = "1 node" if len(search.nodes) == 1 else f"{len(search.nodes)} nodes"
    named = ", ".join(search.nodes[:8]) + (", …" if len(search.nodes) > 8 else "")
    return [f"on {count} ({named}):"]


def _next(report: Report, plans: Sequence[Plan], search: Search) -> None:
    """What can be done with what is applied now, if anything is."""
    applied = [plan for plan in plans if any(place.marked for place in plan.places)]
    names = " ".join(dict.fromkeys(plan.target.project.name for plan in applied))
    shown, out = (f"`rlpatch {command} {names}{search.option}`" for command in ("diff", "revert"))
    if applied:
        report.lines += [f"next: {shown} shows every line", f"      {out} takes it out again"]


class Verbs(NamedTuple):
    """How a report says of lines that they go in, and that they come out."""

    patch: str
    take: str


DONE, WOULD, LENT = Verbs("patched", "took"), Verbs("would patch", "would take"), Verbs("patches", "takes")


def describe(report: Report, upstream: Upstream, plan: Plan, verbs: Verbs) -> dict[str, object]:
    """Say what a plan does and what is to be known of it; the same comes out for programs."""
    target, config = plan.target, plan.config
    pairs, gone = list(zip(plan.edit.changes, plan.places, strict=False)), plan.gone
    name = f"{target.project.name} {target.version or '(unknown version)'}"
    report.lines.append(f"{name}: {target.installed_as} in {target.root}")
    report.lines.append(f"  found by {target.found_by}, version from {target.version_from or 'nowhere'}")
    for change, place in pairs:
        verb = verbs.patch
        if change.before == change.after:
            verb = "registered again, unchanged" if plan.edit.add and place.marked else "unchanged"
        elif not place.marked:
            verb = f"{verbs.take} our lines out of"
        shape = place.structure.name if place.structure else "by its structure"
        recipe = ", ".join(filter(None, (place.recipe.name, shape)))
        report.lines.append(f"  {verb} {change.path}, {_extent(change, place, plan.patch)} ({recipe})")
        report.lines += [f"    {line}" for line in _settings(place)]
    report.lines += [f"  {verbs.take} the lines of the capture before out of {change.path}" for change in gone]
    if plan.replaces:
        report.lines.append(f"  replaces: {_replaced(plan.replaces, plan)}")
    report.lines.append(f"  {plan.places[0].recipe.probe.summary(config)}")
    if plan.profiler:
        by = switched_on_by(upstream, plan.profiler, target)
        report.lines.append(f"  nothing records by this alone: {plan.profiler} is switched on as before, by {by}")
    else:
        ranges = config.ranges
        said = (("the stage and its units", ranges.markers), ("every call of a module", ranges.module_ranges))
        marked = " and ".join(what for what, asked in said if asked)
        report.lines += [f"  marks {marked}"] if marked else []
        report.lines.append(f"  traces of {config.profiler.MODULE} go to {config.save_path}")
        report.lines.append("    RLPATCH_SAVE_PATH changes that for a run")
    notes_of(report, plan)
    files: list[dict[str, object]] = [
        {"path": str(change.path), "changed": change.before != change.after, "recipe": place.recipe.name,
         "structure": place.structure.name if place.structure else None,
         "settings": [setting._asdict() for setting in place.settings]}
        for change, place in pairs
    ]  # fmt: skip
    files += [
        {"path": str(change.path), "changed": True, "recipe": None, "structure": None, "settings": []}
        for change in gone
    ]
    return {
        "target": target.project.name, "version": target.version, "root": str(target.root), "kind": target.installed_as,
        "found_by": target.found_by, "stage": plan.patch.stage, "role": plan.patch.role,
        "options": list(config.words), "save_path": config.save_path or None, "files": files,
        "warnings": [note.text for note in plan.warnings], "notes": [note.text for note in plan.notes],
        "replaces": _record(plan.replaces) if plan.replaces else None,
    }  # fmt: skip


def notes_of(report: Report, plan: Plan) -> None:
    """Say what is to be known of a plan."""
    for note in plan.warnings:
        report.warn(*note)
    for note in plan.notes:
        report.note(*note)


def _replaced(record: Record, plan: Plan) -> str:
    """The choice that was applied before, as it was typed; the backend and the folder only if they are others now."""
    options = list(record.options)
    for option in ("--backend", "--save-path"):
        ours, theirs = (list(_pair(words, option)) for words in (plan.config.words, options))
        if theirs and ours == theirs:
            at = options.index(option)
            del options[at : at + 2]
    said = shlex.join(options)
    release = "" if record.version == plan.target.version else f" on {record.version or 'an unknown version'}"
    return f"{said}{release} (since {record.applied_at})"


def _pair(words: Sequence[str], option: str) -> Sequence[str]:
    """``option`` and its value among ``words``, nothing if it is not there."""
    return words[words.index(option) :][:2] if option in words else ()


def _record(record: Record) -> dict[str, object]:
    return {"options": list(record.options), "version": record.version, "since": record.applied_at}


def _refuse_inside(config: ProfileConfig[Stage]) -> None:
    """Raise Problem (USAGE) where the traces would lie in a package that rlpatch knows, or in a store of ours."""
    if not config.save_path:  # the framework knows where its traces go
        return
    packages = {project.package for project in projects.projects()}
    folder = Path(config.save_path)
    for inside in (folder, *folder.parents):
        package = inside.name in packages and (inside / "__init__.py").exists()
        if package or inside.name == STORE:
            what = f"the package {inside.name}" if package else "the store of rlpatch"
            raise Problem(
                Kind.USAGE,
                f"the traces would go to {folder}, inside {what}",
                str(inside),
                f"--save-path /tmp/rlpatch_traces, or start from a folder outside of {inside}",
            )


def _extent(change: Change, place: Place, patch: PatchId) -> str:
    """How much of a file the patch is."""
    if not place.recipe.calls:
        there = {found.patch: found for found in markers.marked(change.after)}
        shared = sum(len(there[recorder].lines) for recorder in there[patch].uses)
        beside = f", with a shared recorder of {shared}" if shared else ""
        return f"{len(there[patch].lines)} lines inserted{beside}"
    different = sum(setting.changed for setting in place.settings)
    return f"{different} of {len(place.settings)} arguments differ from what the release has"


def _settings(place: Place) -> Iterator[str]:
    """Each argument that was asked for, as it was and as it is."""
    for one in place.settings:
        where = f" ({place.file}:{one.line})" if one.line else ""
        became = f"{one.before or 'not given'} → {one.after}" if one.changed else f"{one.after} already"
        yield f"{one.keyword}: {became}{where}"


def revert(words: Sequence[str], where: Where, *, stage: str | None, role: str | None, dry_run: bool) -> Report:
    """Take the patches of ``words`` (none: all) out of every root that was found, all or nothing.

    ``stage`` and ``role`` leave those of other stages and roles in; Problem (USAGE) where none of that kind is applied.
    """
    entries: list[dict[str, object]] = []
    report = Report("revert", data={"dry_run": dry_run, "files": entries})
    searched: list[tuple[Search, list[PatchedRoot]]] = []
    for search in where.searches(report, words, "revert", writes=not dry_run):
        roots, found = patched_roots(words, search)
        if any(root.pending for root in roots) and not dry_run:
            where.settle(report, search)
            roots, found = patched_roots(words, search)
        searched.append((search, roots))
    if report.problems:
        return report
    applied = {record.patch for _, roots in searched for root in roots for record in root.records}
    wanted = {patch for patch in applied if stage in (None, patch.stage) and role in (None, patch.role)}
    if applied and not wanted:
        said = " ".join(f"--{option} {text}" for option, text in (("stage", stage), ("role", role)) if text)
        raise Problem(
            Kind.USAGE, f"{said}: no such patch is applied", hint=f"one of: {', '.join(sorted(map(str, applied)))}"
        )
    planned = [
        (search, [(root, edit) for root in roots if (edit := _edit(report, root, wanted))])
        for search, roots in searched
    ]
    edits = [edit for _, edited in planned for _, edit in edited]
    if report.problems:
        return report
    if dry_run:
        where.preflight(report, edits)
    else:
        where.commit(report, edits, "reverted")
    if not edits:
        report_nothing(report, words, found)
        return report
    for search, edited in planned:
        report.lines += on(search) if edited else []
        nodes = {"nodes": list(search.nodes)} if search.nodes else {}
        entries.extend(one | nodes for root, edit in edited for one in _reverted(report, root, edit, dry_run=dry_run))
    if not dry_run:
        edited_roots = [root for _, edited in planned for root, _ in edited]
        reverted = {(record.patch.target, root.path) for root in edited_roots for record in root.records}
        known = {project.name for project in projects.projects()}
        _restart(report, where, [(projects.upstream(name), root) for name, root in reverted if name in known])
    return report


def _edit(report: Report, root: PatchedRoot, wanted: Collection[PatchId]) -> Edit | None:
    patches = [record.patch for record in root.records if record.patch in wanted]
    try:
        return planning.revert(root.path, root.read, root.records, patches) if patches else None
    except Problem as problem:
        report.problems.append(problem)
        return None


def _reverted(report: Report, root: PatchedRoot, edit: Edit, *, dry_run: bool) -> list[dict[str, object]]:
    changed = {str(change.path): change for change in edit.changes if change.before != change.after}
    entries: list[dict[str, object]] = []
    for record in (record for record in root.records if record.patch in edit.remove):
        report.lines.append(f"{record.patch} in {root.path}")
        for file in record.files:
            change = changed.get(file)
            verb = "would revert" if dry_run else "reverted"
            if change is None:
                report.lines.append(f"  forgotten: {file} was replaced meanwhile and has no line of ours")
            elif change.after == change.pristine:
                report.lines.append(f"  {verb} {file}: none of our lines is left")
            else:
                report.lines.append(f"  {verb} {file}: the lines of another patch stay")
            entries.append({"root": str(root.path), "path": file, "reverted": change is not None})
    return entries


def recover(where: Where) -> Report:
    """End the runs that were interrupted below every root that was found."""
    report = Report("recover")
    where.recover(report)
    return report


def _restart(report: Report, where: Where, patched: Iterable[tuple[Upstream, Path]]) -> None:
    running = where.running(patched)
    if running:
        report.lines.append("note: these processes may hold the code as it was; restart them:")
        report.lines += [f"  {process}" for process in running]
    else:
        report.lines.append("note: an engine that runs already holds the code as it was; restart it")
    report.data["restart"] = list(running)
