"""What nodes have to say, together: who is alike stands together, and every node has its entry for programs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from patcher.cluster.crew import listed, on, problems, unreachable
from patcher.cluster.values import Answer, Survey
from patcher.notes import Note
from patcher.report import Report, json_of
from patcher.tables import nodes as table
from patches.projects import projects


def merge(report: Report, told: Mapping[str, Report]) -> None:
    """Put the notes and problems of nodes into ``report``; what several say is said once, with their names."""
    notes: dict[tuple[str, str, str], list[str]] = {}
    said: dict[tuple[object, ...], list[str]] = {}
    found = {}
    for node, one in told.items():
        for note in one.notes:
            notes.setdefault((note[0], note[1], note[2]), []).append(node)
        for problem in one.problems:
            said.setdefault(problem.args, []).append(node)
            found[problem.args] = problem
    for (word, text, detail), nodes in notes.items():
        tell = report.warn if word == "warning" else report.note
        tell(f"{text} ({listed(nodes, 3)})" if len(told) > 1 else text, detail)
    report.problems += [on(found[key], nodes) for key, nodes in said.items()]


def status(surveys: Mapping[str, Answer], reports: Mapping[str, Answer], running: Mapping[str, Answer]) -> Report:
    """The table of all nodes, and below it what is patched, once for all that are alike."""
    entries = [_entry(node, surveys[node], reports[node], running.get(node, Answer())) for node in surveys]
    report = Report("status", data={"nodes": entries})
    report.lines += table(report.data)
    told = {node: cast("Report", answer.value) for node, answer in reports.items() if answer.good}
    alike: dict[tuple[str, ...], list[str]] = {}
    for node, one in told.items():
        if json_of(one.data)["patches"]:
            alike.setdefault(tuple(one.lines), []).append(node)
    for lines, nodes in alike.items():
        report.lines += [f"on {listed(nodes)}:", *(f"  {line}" for line in lines)]
    merge(report, told)
    report.problems += problems(reports, unreachable)
    old = sum(bool(entry["running"]) for entry in entries)
    if old and alike:
        report.note(
            f"engines run on {old} of {len(entries)} nodes: what was patched since they started they do not have"
        )
    return report


def _entry(node: str, surveyed: Answer, reported: Answer, running: Answer) -> dict[str, Any]:
    survey = cast("Survey | None", surveyed.value)
    report = cast("Report | None", reported.value)
    patches: list[dict[str, Any]] = json_of(report.data)["patches"] if report else []
    cause = reported.problem and reported.problem.cause
    return {
        "node": node,
        "state": _state(survey, report, patches),
        "targets": {one.project: one.version for one in survey.found} if survey else {},
        "roots": sorted({one.root for one in survey.found}) if survey else [],
        "patches": patches,
        "unfinished": list(survey.unfinished) if survey else [],
        "running": list(cast("tuple[str, ...]", running.value or ())),
        "free": survey.free if survey else None,
        "problem": reported.lost or cause or surveyed.lost or running.lost or None,
    }


def _state(survey: Survey | None, report: Report | None, patches: Sequence[Mapping[str, Any]]) -> str:
    """One word for a node."""
    if survey is None or report is None:
        return "no answer"
    if survey.unfinished:
        return "interrupted"
    if not patches:
        return "as released" if survey.found else "no target"
    states = dict.fromkeys(file["state"] for patch in patches for file in patch["files"])
    return "patched" if list(states) == ["intact"] else ", ".join(state for state in states if state != "intact")


def check(report: Report, answers: Mapping[str, Answer]) -> Report:
    """What nodes say of other profilers, below what ``report`` has already, once for all that are alike."""
    told = {node: cast("Report", answer.value) for node, answer in answers.items() if answer.good}
    alike: dict[tuple[str, ...], list[str]] = {}
    for node, one in told.items():
        alike.setdefault(tuple(one.lines), []).append(node)
    for lines, nodes in alike.items():
        kinds = {type(line) for line in lines}
        report.lines += [f"on {listed(nodes)}:"] if kinds else []
        report.lines += [type(line)(f"  {line}") for line in lines]
    report.data["nodes"] = {node: one.data for node, one in told.items()}
    merge(report, told)
    report.problems += problems(answers, unreachable)
    return report


def elsewhere(surveys: Mapping[str, Survey]) -> Iterator[Note]:
    """A warning where the working directory holds a package that the nodes have elsewhere, too.

    A job that is submitted with it imports Ray's copy of it, on every node, and no patched file.
    """
    here = Path.cwd()
    roots = {(one.project, one.root) for survey in surveys.values() for one in survey.found}
    for project in projects():
        places = (here / project.checkout, here)
        folder = next((at for at in places if (at / project.package / "__init__.py").is_file()), None)
        there = sorted({root for name, root in roots if name == project.name})
        if folder and there and os.path.realpath(folder) not in there:
            yield Note(
                f"a job with --working-dir . would import {project.package} from here, not from {there[0]}",
                f"Ray copies {here} to every node and puts it first on their path: what is patched has no effect there;"
                f" patch this one: rlpatch apply {project.name} --path . before the job is submitted",
            )
