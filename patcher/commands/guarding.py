"""``check``, and the look for other profilers that ``apply`` begins with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from patcher.commands.finding import LaunchOptions, SearchOptions, parse_target
from patcher.guards.detect import detect
from patcher.guards.result import AGAIN, Checked, GuardResult
from patcher.messages.errors import Kind, Problem
from patcher.messages.notes import WIDEST, Note
from patcher.messages.report import CommandResult, Detail, StepResult
from patcher.recipe import Upstream
from patcher.switches import Release, State
from patcher.targets.target import Target
from patches import projects


@dataclass(frozen=True)
class TargetCheck:
    """What ``check`` knows of a target: its version, None where none is known, and each profiler."""

    version: str | None
    profilers: tuple[GuardResult, ...]


_UNSEEN = (
    "the switches of the release you name count, or those of every release; what the installed files say is"
    " unknown: give --path DIR or --python EXE"
)


def check(words: Sequence[str], search: SearchOptions, launch: LaunchOptions) -> CommandResult:
    """Look for every other profiler that is, or could be, switched on beside ours.

    Without ``words`` in every target of the place that ``search`` names. A target that is not there is a problem; where
    ``search`` names no place, the switches of its releases count.
    """
    placed = search.path is not None or search.python is not None
    step, data = StepResult(), dict[str, TargetCheck]()
    absent: dict[str, Problem] = {}
    for word in words or [project.name for project in projects.projects()]:
        (upstream, version), target = parse_target(word), None
        name = upstream.project.name
        try:
            target = search.find(word, "check")[1]
        except Problem as problem:
            if problem.kind is not Kind.NO_TARGET or (placed and words):
                step += StepResult(problems=(problem,))
                continue
            absent[word] = problem
            if placed:
                continue
        found, data[name] = _check(upstream, version or "", target, launch)
        step += found
    if absent and not placed:
        step += StepResult.noted([Note(f"not found here: {', '.join(absent)}", _UNSEEN)])
    if not data and not step.problems:
        step += StepResult(problems=tuple(absent.values())[:1])
    return CommandResult("check", step, data=data)


def _check(
    upstream: Upstream, version: str, target: Target | None, launch: LaunchOptions
) -> tuple[StepResult, TargetCheck]:
    version = target.version if target else version
    found, step = _look(upstream, version, target, launch, severe=False)
    lines = [f"{upstream.project.name} {version}".rstrip()]
    lines += [line for alike in _grouped(found) for line in _lines(alike)]
    problems = tuple(_problem(upstream, one, one.off) for one in found if one.state is State.ON)
    return step + StepResult(tuple(lines), problems=problems), TargetCheck(version or None, found)


def guard(
    upstream: Upstream,
    version: str,
    launch: LaunchOptions,
    *,
    force: bool,
    target: Target | None = None,
    profiler: str = "",
) -> StepResult:
    """A problem for every profiler that is on (unless ``force``), a warning for what may be.

    Where ``profiler`` itself is set up, nothing of ours records: so what is on is no problem, and it is meant to be.
    """
    found, step = _look(upstream, version, target, launch, severe=True)
    doubtful = []
    for one in found:
        if one.state is State.OFF:
            continue
        if profiler and one.profiler == profiler:
            text = f"{profiler} is {one.state.value} ({one.where}), so the settings count"
            step += StepResult.noted([Note(text, "\n".join(_seen(one)))])
        elif one.state is State.ON and not force and not profiler:
            hint = f"{one.off}; or --force: then the inserted code decides while the engine runs"
            step += StepResult(problems=(_problem(upstream, one, hint),))
        elif one.reason != one.where:  # else nothing was looked at, which `check` says
            doubtful.append(one)
    return step + StepResult.noted(map(_warning, _grouped(doubtful)), "warning")


def switched_on_by(upstream: Upstream, profiler: str, target: Target) -> str:
    """What a run has to say for ``profiler`` to record in ``target``, in words."""
    project = upstream.project
    release = Release(target.version, project.releases, target.root / project.package)
    active = [one for one in upstream.switches if one.profiler == profiler and release.has(one)]
    return " or ".join(dict.fromkeys(one.name for one in reversed(active)))


def _look(
    upstream: Upstream, version: str, target: Target | None, launch: LaunchOptions, *, severe: bool
) -> tuple[tuple[GuardResult, ...], StepResult]:
    step, application = StepResult(), upstream.application
    if application is None and launch.config is not None:
        text = f"{upstream.project.name} does not use Hydra: --config says nothing about it"
        step = StepResult.noted([Note(text)])
    package = target.root / upstream.project.package if target else None
    release = Release(version, upstream.project.releases, package)
    checked = Checked(upstream.switches, release, target.root if target else None, application)
    return detect(checked, launch, severe=severe), step


def _grouped(found: Iterable[GuardResult]) -> list[list[GuardResult]]:
    """The results; those of which nothing is known for the same reason stand together."""
    groups: dict[object, list[GuardResult]] = {}
    for one in dict.fromkeys(found):
        groups.setdefault(one.reason if one.state is State.UNKNOWN else one, []).append(one)
    return [*groups.values()]


def _warning(alike: Sequence[GuardResult]) -> Note:
    """One note on results of a group; what to type stands on its line where there is room."""
    first = alike[0]
    details = [line for one in alike for line in (f"{one.profiler} ({one.where})", *_seen(one), *_off(one))]
    if first.state is State.UNKNOWN:
        names = {one.profiler for one in alike}
        who = first.profiler if len(names) == 1 else f"{len(names)} profilers"
        return Note(f"{who} may be on: {first.reason or first.where}", "\n".join([*details, AGAIN]))
    text = f"{first.profiler} is {first.state.value} ({first.where})"
    typed = f"{text}; {first.off}"
    return Note(typed if len(f"warning: {typed}") <= WIDEST else text, "\n".join(details))


def _lines(alike: Sequence[GuardResult]) -> Iterator[str]:
    """The state of a group, why, and what the reader can do."""
    first = alike[0]
    names, places = (
        [*dict.fromkeys(texts)] for texts in zip(*((one.profiler, one.where) for one in alike), strict=True)
    )
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    yield f"  {first.state.value} {', '.join(names)} ({places[0]}{more})"
    if first.state is State.OFF:
        return
    unknown = first.state is State.UNKNOWN
    for one in alike:
        named = [f"{one.profiler} ({one.where})"] if len(alike) > 1 else []
        yield from (Detail(f"    {line}") for line in (*named, *_seen(one), *(_off(one) if unknown else ())))
    if not unknown:
        yield from (f"    {line}" for line in _off(first))
    elif first.reason not in ("", first.where):
        yield f"    {first.reason}"
        yield Detail(f"    {AGAIN}")


def _seen(one: GuardResult) -> list[str]:
    return [f"{key}: {text}" for key, text in (("found", one.found), ("why", one.why)) if text]


def _off(one: GuardResult) -> list[str]:
    return [f"to switch it off: {one.off}"] if one.off else []


def _problem(upstream: Upstream, one: GuardResult, hint: str) -> Problem:
    cause = f"{one.profiler} is switched on for {upstream.project.name}: {one.found}"
    return Problem(Kind.PROFILER_ON, cause, one.where, hint, (one.why,))
