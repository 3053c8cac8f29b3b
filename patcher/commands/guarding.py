"""``check``, and the look for other profilers that ``apply`` begins with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from patcher.commands.finding import LaunchOptions, SearchOptions, find_target, parse_target, upstreams
from patcher.errors import Kind, Problem
from patcher.guards.look import Finding, Guard, State, exists, look
from patcher.recipe import Upstream
from patcher.report import Report


def check(words: Sequence[str], search: SearchOptions, launch: LaunchOptions) -> Report:
    """Look for every other profiler that is, or could be, switched on beside ours."""
    report = Report("check")
    for word in words or [upstream.project.name for upstream in upstreams()]:
        upstream, version = parse_target(word)
        name, root = upstream.project.name, None
        try:
            target = find_target(word, search, "check")[1]
            version, root = target.version, target.root
        except Problem as problem:
            if problem.kind is not Kind.NO_TARGET:
                raise
            counted = f"those of {version} count" if version else "the switches of every release count"
            report.messages.append(f"note: {name} was not found here, so {counted}")
        findings = _look(report, upstream, version or "", root, launch)
        report.lines.append(f"{name} {version or ''}".rstrip())
        for finding in findings:
            report.lines += _lines(finding)
        entries = [{**finding._asdict(), "state": finding.state.value} for finding in findings]
        report.data[name] = {"version": version, "profilers": entries}
        report.problems += [
            _problem(upstream, finding, finding.off) for finding in findings if finding.state is State.ON
        ]
    return report


def guard(
    report: Report,
    upstream: Upstream,
    version: str,
    launch: LaunchOptions,
    *,
    force: bool,
    root: Path | None = None,
    profiler: str = "",
) -> None:
    """Put into ``report`` a problem for every profiler that is on (unless ``force``), a warning for what may be.

    Where ``profiler`` itself is set up, nothing of ours records: so what is on is no problem, and it is meant to be.
    """
    for finding in _look(report, upstream, version, root, launch):
        if profiler and finding.profiler == profiler:
            if finding.state is not State.OFF:
                seen = f"{finding.profiler} is {finding.state.value} ({finding.where}: {finding.found or finding.why})"
                report.messages.append(f"note: {seen}, so the settings count in this run")
        elif finding.state is State.ON and not force and not profiler:
            hint = f"{finding.off}; or --force: then the inserted code decides while the engine runs"
            report.problems.append(_problem(upstream, finding, hint))
        elif finding.state is not State.OFF:
            said = finding.found or finding.why
            seen = f"{finding.profiler} is {finding.state.value} ({finding.where}: {said})"
            report.messages.append(f"warning: {seen}; to switch it off: {finding.off}")


def switched_on_by(upstream: Upstream, profiler: str, version: str) -> str:
    """What a run has to say for ``profiler`` to record in the release ``version``, in words."""
    active = [one for one in upstream.switches if one.profiler == profiler and exists(one.releases, version)]
    return " or ".join(dict.fromkeys(one.name for one in reversed(active)))


def _look(
    report: Report, upstream: Upstream, version: str, root: Path | None, launch: LaunchOptions
) -> tuple[Finding, ...]:
    guards: list[Guard] = []
    application = upstream.application
    if application is not None:
        from patcher.guards.configured import findings  # most projects have no configuration to compose

        guards.append(partial(findings, application))
    elif launch.config is not None:
        report.messages.append(
            f"note: {upstream.project.name} is not configured by Hydra: --config tells nothing of it"
        )
    return look(
        upstream.switches,
        version=version,
        environ=launch.environ,
        script=launch.script,
        command=launch.command,
        root=root,
        config=launch.config,
        guards=guards,
    )


def _lines(finding: Finding) -> list[str]:
    lines = [f"  {finding.state.value} {finding.profiler} ({finding.where})"]
    if finding.state is not State.OFF:
        said = {"found": finding.found, "why": finding.why, "to switch it off": finding.off}
        lines += [f"    {key}: {text}" for key, text in said.items() if text]
    return lines


def _problem(upstream: Upstream, finding: Finding, hint: str) -> Problem:
    return Problem(
        Kind.PROFILER_ON,
        f"{finding.profiler} is switched on for {upstream.project.name}: {finding.found}",
        finding.where,
        hint,
        (finding.why,),
    )
