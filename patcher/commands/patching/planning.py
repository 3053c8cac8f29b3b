"""From the words of a command to plans, step by step; nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from patcher import plan as planning
from patcher.changes import edits
from patcher.changes.change import Edit
from patcher.commands.applied import restore_hint
from patcher.commands.finding import Search
from patcher.commands.guarding import guard
from patcher.commands.patching.redirecting import redirect_problem
from patcher.config import ProfileConfig, Stage, TimelineStage
from patcher.guards.result import Launch
from patcher.messages import AND, OR, Kind, Note, Problem, StepResult, Text, joined, permission_problem, usage
from patcher.plan import Plan
from patcher.recipe import Upstream
from patcher.request import ProfileRequest, has_stage, resolve, stage_problem, supports_any
from patcher.store import STORE
from patcher.store.folder import StoreFolder
from patcher.targets.target import Target
from patches import projects

if TYPE_CHECKING:
    from patcher.commands.where import NodeCommands

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Attempted(Generic[T]):
    """Values that succeeded in a search, with all problems so far, so that the user sees every problem at once."""

    search: Search
    values: Sequence[T]
    problems: tuple[Problem, ...] = ()

    def then(self, work: Callable[[T], U]) -> Attempted[U]:
        """Return the results of `work` on each value, with the problems so far.

        A value for which `work` raises Problem or PermissionError has no result. Its problem is added; a Problem with a
        place or notes gets the names of the search's cluster nodes, too.
        """
        results: list[U] = []
        problems = [*self.problems]
        for value in self.values:
            try:
                results.append(work(value))
            except Problem as problem:
                nodes = self.search.nodes if problem.where or problem.notes else ()
                problems.append(problem.replace(node=", ".join(nodes)))
            except PermissionError as error:
                problems.append(permission_problem(error))
        return Attempted(self.search, results, tuple(problems))


class Candidate(NamedTuple):
    """Target that was found, with what to record there; an `optional` one is left out if it cannot be planned."""

    search: Search
    upstream: Upstream
    target: Target
    config: ProfileConfig[Stage]
    notes: tuple[Note, ...] = ()
    optional: bool = False


class Planned(NamedTuple):
    """Plan for a target, with the search that found the target."""

    search: Search
    upstream: Upstream
    plan: Plan


def find_candidates(
    words: Sequence[str], search: Search, request: ProfileRequest, command: str
) -> Attempted[Candidate]:
    """Return the installed targets that `words` name, one per project, with the configuration to record in each.

    A target appears twice if it supports both the window and the timeline of the request. Stages of `request.beside`
    are added as optional candidates, unless there is a problem.
    """
    if problem := redirect_problem(words, search, request):
        return Attempted(search, (), (problem,))
    targets = Attempted(search, [*dict.fromkeys(words)]).then(lambda word: search.find(word, command))
    first: dict[str, tuple[Upstream, Target]] = {}
    for upstream, target in targets.values:
        first.setdefault(upstream.project.name, (upstream, target))
    parts = request.parts()
    pairs = [
        (upstream, target, part)
        for upstream, target in first.values()
        for part in parts
        if len(parts) == 1 or part is parts[-1] or supports_any(part, upstream)  # the timeline may be all that it takes
    ]
    candidates = Attempted(search, pairs, targets.problems).then(lambda pair: _resolved_candidate(search, *pair))
    optional = [
        _resolved_candidate(search, upstream, target, part)._replace(optional=True)
        for upstream, target in first.values()
        for part in request.beside
        if not candidates.problems and has_stage(part, upstream)
    ]
    return replace(candidates, values=[*candidates.values, *optional])


def check_profilers(
    candidates: Iterable[Candidate], launch: Launch, *, force: bool, nodes: NodeCommands | None = None
) -> StepResult:
    """Return the report on other profilers that are on or may be, on this machine or `nodes`.

    A profiler that is on is a problem, with `force` a warning. A timeline uses no profiler and is not checked.
    """
    step = StepResult()
    for search, upstream, target, config, *_ in candidates:
        profiler, recorder = planning.builtin_profiler(upstream, config), config.profiler.STARTED_BY
        if config.profiler.MODULE and nodes:
            step += nodes.guard(search, upstream, target, profiler, launch, force=force, recorder=recorder)
        elif config.profiler.MODULE:
            step += guard(
                upstream, target.version, launch, force=force, target=target, profiler=profiler, recorder=recorder
            )
    return step


def plan(candidates: Attempted[Candidate]) -> Attempted[Planned]:
    """Return a plan or a problem for each candidate; plans for the same root build on each other, in order.

    Timelines come last: a line that is inserted later stands above the earlier ones, so an iteration is in the timeline
    when a window asks for its id. Optional candidates that cannot be planned are left out, with a note in the first
    plan.
    """
    ahead: dict[Path, dict[PurePosixPath, bytes]] = {}

    def planned(candidate: Candidate) -> Planned:
        before = ahead.setdefault(candidate.target.root, {})
        target = candidate.target._replace(ahead=before)
        records = StoreFolder(candidate.target.folder).records()
        try:
            plan = planning.make_plan(candidate.upstream, target, candidate.config, records)
        except Problem as problem:
            if problem.kind is Kind.FOREIGN_EDIT and records and not target.mirror:
                raise problem.replace(hint=restore_hint(target.root)) from None
            raise
        before.update((change.path, change.after) for change in plan.edit.changes)
        return Planned(candidate.search, candidate.upstream, plan._replace(notes=(*plan.notes, *candidate.notes)))

    timelines = [item for item in candidates.values if isinstance(item.config.stage, TimelineStage)]
    windows = [item for item in candidates.values if item not in timelines]
    required = replace(candidates, values=[item for item in windows if not item.optional]).then(planned)
    optional = [item for item in windows if item.optional and not required.problems]
    more = replace(candidates, values=optional, problems=()).then(planned)
    plans = replace(candidates, values=timelines, problems=required.problems).then(planned)
    left_out = tuple(
        Note(Text("one of the stages cannot be patched and is left out: {reason}", problem.cause))
        for problem in more.problems
    )
    values = [*required.values, *more.values, *plans.values]
    if left_out and values:
        values[0] = values[0]._replace(plan=values[0].plan._replace(notes=(*values[0].plan.notes, *left_out)))
    return replace(plans, values=values)


def edits_by_root(plans: Iterable[Planned]) -> list[tuple[Search, Edit]]:
    """Return the edits of `plans`, merged into one per root, with the search that found the root."""
    return [
        (search, edit)
        for search, group in groupby(plans, key=lambda planned: planned.search)
        for edit in edits.merge_by_root(planned.plan.edit for planned in group)
    ]


def plan_targets(
    words: Sequence[str], search: Search, request: ProfileRequest, command: str
) -> tuple[list[Planned], StepResult]:
    """Return the plans for the targets `words`, and a report with the problems; other profilers are not looked for."""
    planned = plan(find_candidates(words, search, request, command))
    return [*planned.values], planning_failures(planned, words, request)


def planning_failures(planned: Attempted[Planned], words: Sequence[str], request: ProfileRequest) -> StepResult:
    """Return the problems of planning, or else a problem for each stage and window that no plan records."""
    step = StepResult(problems=planned.problems or unrecorded_problems(request, planned.values))
    if step.problems and len(words) > 1:
        step += StepResult.noted([Note(Text("nothing was written, because some targets cannot be patched"))])
    return step


def unrecorded_problems(request: ProfileRequest, plans: Iterable[Planned]) -> tuple[Problem, ...]:
    """Return a problem for each requested stage or window that none of the plans would record."""
    stages = [(planned.upstream, planned.plan.config.stage) for planned in plans]
    problems = []
    if request.stage and request.stage not in [stage.name for _, stage in stages]:
        problems.append(stage_problem(request.stage, [upstream for upstream, _ in stages], projects.upstreams))
    for window in request.windows:
        if window not in [stage.window for _, stage in stages]:
            option = f"--{window.unit} {window}"
            hint = Text("leave out {option}, or add a target that supports it (`rlpatch list` shows which do)", option)
            problems.append(usage(Text("{option}: none of the targets supports this recording window", option), hint))
    return tuple(problems)


def _resolved_candidate(search: Search, upstream: Upstream, target: Target, request: ProfileRequest) -> Candidate:
    """Return the candidate for a target, with a note if torch or torch_npu can only be assumed."""
    config, notes = _checked_config(request, upstream, target), list[Note]()
    profiler, decisive = config.profiler.MODULE, upstream.runs_on
    if profiler and decisive and "tool" not in request.choices and not any(map(target.beside, decisive)):
        packages, name = joined(AND, decisive), target.project.name
        options = joined(OR, (f"--tool {tool}" for tool in decisive.values()))
        text = Text("{profiler} is assumed, as {packages} are not installed in the environment of {target}")
        choice = Text("choose the profiler with {options}, or name the run's Python interpreter with --python EXE")
        notes = [Note(text.filled(profiler=profiler, packages=packages, target=name), choice.filled(options))]
    return Candidate(search, upstream, target, config, tuple(notes))


def _checked_config(request: ProfileRequest, upstream: Upstream, target: Target) -> ProfileConfig[Stage]:
    """Return the configuration that follows from `request` and a target.

    Raises Problem: NO_RECIPE if the project lacks the stage, USAGE if the request does not fit the target, or if its
    folder for traces is unusable: inside a package or a store, or below a file.
    """
    config = resolve(request, upstream, target, projects.upstreams)
    packages = {project.package for project in projects.projects()}
    folder = Path(config.save_path or "/")  # "" where the framework knows where its traces go
    for inside in (folder, *folder.parents):
        package = inside.name in packages and (inside / "__init__.py").exists()
        if package or inside.name == STORE:
            place = Text("the package {package}", inside.name) if package else Text("rlpatch's store (.rlpatch)")
            cause = Text("the folder for the traces must not be inside {place}: {folder}", place=place, folder=folder)
            hint = Text("add --save-path /tmp/rlpatch_traces, or run the command from a folder outside of {inside}")
            raise usage(cause, hint.filled(inside), str(inside))
        with suppress(PermissionError):  # what this user may not see, that of the engine may
            if inside == Path("/proc") or (inside.exists() and not inside.is_dir()):
                cause = Text("traces cannot be written to {folder}: no folder can be created in {inside}")
                hint = Text("use --save-path DIR with a folder that exists or can be created")
                raise usage(cause.filled(folder=folder, inside=inside), hint, str(inside))
    return config
