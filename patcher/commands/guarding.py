"""``check``, and the look for other profilers that ``apply`` begins with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from patcher.commands.finding import LaunchOptions, SearchOptions, parse_target
from patcher.guards.detect import detect
from patcher.guards.result import AGAIN, GuardResult
from patcher.messages.errors import Kind, Problem
from patcher.messages.notes import WIDEST, Note
from patcher.messages.report import CommandResult, Detail
from patcher.recipe import Upstream
from patcher.switches import Release, State
from patcher.targets.target import Target
from patches import projects


def check(words: Sequence[str], search: SearchOptions, launch: LaunchOptions) -> CommandResult:
    """Look for every other profiler that is, or could be, switched on beside ours.

    A target that is not in the place that ``search`` names is a problem; without a name its switches are looked at.
    """
    report = CommandResult("check")
    missing: list[str] = []
    for upstream, version, target in _subjects(report, words, search):
        name = upstream.project.name
        if target is None and version:
            report.note(f"{name} was not found here, so those of {version} count", _NAME_IT)
        elif target is None:
            missing.append(name)
        findings = _look(report, upstream, version, target, launch, severe=False)
        report.lines.append(f"{name} {version}".rstrip())
        for alike in _grouped(findings):
            report.lines += _lines(alike)
        entries = [{**finding._asdict(), "state": finding.state.value} for finding in findings]
        report.data[name] = {"version": version or None, "profilers": entries}
        report.problems += [
            _problem(upstream, finding, finding.off) for finding in findings if finding.state is State.ON
        ]
    if missing:
        detail = f"the switches of every release count, and what the installed files say is unknown; {_NAME_IT}"
        report.note(f"not found here: {', '.join(missing)}", detail)
    return report


_NAME_IT = "--path DIR or --python EXE leads to it"


def _subjects(
    report: CommandResult, words: Sequence[str], search: SearchOptions
) -> Iterator[tuple[Upstream, str, Target | None]]:
    """What to look at: the project, its version as far as known, and the target if it is here.

    Without ``words`` that is all that is in the place of ``search``, or without one, every project.
    """
    placed = search.path is not None or search.python is not None
    absent: list[Problem] = []
    for word in words or [project.name for project in projects.projects()]:
        upstream, version = parse_target(word)
        try:
            target = search.find(word, "check")[1]
        except Problem as problem:
            if problem.kind is Kind.NO_TARGET and not placed:
                yield upstream, version or "", None
            elif problem.kind is Kind.NO_TARGET and not words:
                absent.append(problem)
            elif str(problem) not in map(str, report.problems):
                report.problems.append(problem)
        else:
            yield upstream, target.version, target
    if absent and not report.lines and not report.problems:
        report.problems.append(absent[0])


def guard(
    report: CommandResult,
    upstream: Upstream,
    version: str,
    launch: LaunchOptions,
    *,
    force: bool,
    target: Target | None = None,
    profiler: str = "",
) -> None:
    """Put into ``report`` a problem for every profiler that is on (unless ``force``), a warning for what may be.

    Where ``profiler`` itself is set up, nothing of ours records: so what is on is no problem, and it is meant to be.
    """
    said: dict[object, list[GuardResult]] = {}
    for finding in _look(report, upstream, version, target, launch, severe=True):
        if profiler and finding.profiler == profiler:
            if finding.state is not State.OFF:
                seen = f"{finding.profiler} is {finding.state.value} ({finding.where})"
                report.note(f"{seen}, so the settings count", "\n".join(_reasons(finding)[:-1]))
        elif finding.state is State.ON and not force and not profiler:
            hint = f"{finding.off}; or --force: then the inserted code decides while the engine runs"
            report.problems.append(_problem(upstream, finding, hint))
        elif finding.state is State.UNKNOWN and finding.reason == finding.where:
            continue  # nothing was looked at, which `check` says: a warning is about something that was seen
        elif finding.state is State.UNKNOWN:
            said.setdefault(finding.reason, []).append(finding)
        elif finding.state is not State.OFF:
            said[finding] = [finding]
    for alike in said.values():
        report.warn(*_warning(alike))


def _warning(alike: Sequence[GuardResult]) -> Note:
    """One note on profilers of which the same is known; what to type stands on its line where there is room."""
    first = alike[0]
    if first.state is State.UNKNOWN:
        names = _names(alike)
        who = first.profiler if len(names) == 1 else f"{len(names)} profilers"
        text = f"{who} may be on: {first.reason or first.where}"
    else:
        text = f"{first.profiler} is {first.state.value} ({first.where})"
        typed = f"{text}; {first.off}"
        text = typed if len(f"warning: {typed}") <= WIDEST else text
    details = [line for finding in alike for line in (f"{finding.profiler} ({finding.where})", *_reasons(finding))]
    details += [AGAIN] if first.state is State.UNKNOWN else []
    return Note(text, "\n".join(details))


def _reasons(finding: GuardResult) -> list[str]:
    """What was seen, what that means, and what to do about it."""
    said = {"found": finding.found, "why": finding.why, "to switch it off": finding.off}
    return [f"{key}: {text}" for key, text in said.items() if text]


def switched_on_by(upstream: Upstream, profiler: str, target: Target) -> str:
    """What a run has to say for ``profiler`` to record in ``target``, in words."""
    project = upstream.project
    release = Release(target.version, project.releases, target.root / project.package)
    active = [one for one in upstream.switches if one.profiler == profiler and release.has(one)]
    return " or ".join(dict.fromkeys(one.name for one in reversed(active)))


def _look(
    report: CommandResult,
    upstream: Upstream,
    version: str,
    target: Target | None,
    launch: LaunchOptions,
    *,
    severe: bool,
) -> tuple[GuardResult, ...]:
    application = upstream.application
    if application is None and launch.config is not None:
        report.note(f"{upstream.project.name} is not configured by Hydra: --config tells nothing of it")
    return detect(
        upstream.switches,
        version=version,
        environ=launch.environ,
        script=launch.script,
        command=launch.command,
        root=target.root if target else None,
        config=launch.config,
        published=upstream.project.releases,
        package=upstream.project.package,
        application=application,
        severe=severe,
    )


def _grouped(findings: Sequence[GuardResult]) -> list[list[GuardResult]]:
    """The findings; those of which nothing is known for the same reason stand together."""
    groups: dict[object, list[GuardResult]] = {}
    for finding in findings:
        unknown = finding.state is State.UNKNOWN and finding.reason
        groups.setdefault(finding.reason if unknown else finding, []).append(finding)
    return [*groups.values()]


def _lines(alike: Sequence[GuardResult]) -> list[str]:
    """The state, and what the reader can do; the reason once for findings that have the same."""
    first = alike[0]
    places = [*dict.fromkeys(finding.where for finding in alike)]
    where = places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1} more"
    lines = [f"  {first.state.value} {', '.join(_names(alike))} ({where})"]
    if first.state is State.OFF:
        return lines
    told = first.state is State.UNKNOWN and first.reason
    for finding in alike:
        *seen, off = _reasons(finding)
        lines += [Detail(f"    {finding.profiler} ({finding.where})")] * (len(alike) > 1)
        lines += [Detail(f"    {line}") for line in ((*seen, off) if told or not finding.off else seen)]
    if not told:
        return [*lines, f"    to switch it off: {first.off}"] if first.off else lines
    return lines if first.reason == first.where else [*lines, f"    {first.reason}", Detail(f"    {AGAIN}")]


def _names(findings: Sequence[GuardResult]) -> list[str]:
    """The profilers that are found, each once."""
    return [*dict.fromkeys(finding.profiler for finding in findings)]


def _problem(upstream: Upstream, finding: GuardResult, hint: str) -> Problem:
    return Problem(
        Kind.PROFILER_ON,
        f"{finding.profiler} is switched on for {upstream.project.name}: {finding.found}",
        finding.where,
        hint,
        (finding.why,),
    )
