"""The results of nodes as one: nodes with the same result stand together, and every node has its entry for programs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patcher.cluster.node_group import Answer, NodeSurvey, listed, merged, problems, unreachable, values
from patcher.messages.notes import Message, Note
from patcher.messages.report import CommandResult, Detail, StepResult, json_of
from patcher.messages.tables import nodes as table
from patches.projects import projects


@dataclass(frozen=True)
class NodeStatus:
    """A node: the version of each target, what is applied, the processes that may hold it, the free space in bytes."""

    node: str
    state: str
    targets: Mapping[str, str]
    roots: tuple[str, ...]
    patches: Sequence[Mapping[str, Any]]
    unfinished: tuple[str, ...]
    running: tuple[str, ...]
    free: int | None
    problem: str | None


@dataclass(frozen=True)
class ClusterStatus:
    """The result of ``status --ray``."""

    nodes: tuple[NodeStatus, ...]


def merge(reports: Mapping[str, CommandResult] | Mapping[str, StepResult]) -> StepResult:
    """The notes and problems of nodes; what several have stands there once, with their names."""
    notes: dict[Message, list[str]] = {}
    for node, report in reports.items():
        for note in report.notes:
            notes.setdefault(note, []).append(node)
    several = len(reports) > 1
    messages = [
        note._replace(text=f"{note.text} ({listed(nodes, 3)})") if several else note for note, nodes in notes.items()
    ]
    found = merged((node, problem) for node, report in reports.items() for problem in report.problems)
    return StepResult(notes=tuple(messages), problems=tuple(found))


def status(
    surveys: Mapping[str, Answer], reports: Mapping[str, Answer], running: Mapping[str, Answer]
) -> CommandResult:
    """The table of all nodes, and below it what is patched, once for all that are alike."""
    data = ClusterStatus(
        tuple(_entry(node, surveys[node], reports[node], running.get(node, Answer())) for node in surveys)
    )
    patched = {node: report for node, report in values(reports).items() if json_of(report.data)["patches"]}
    step = StepResult((*table(json_of(data)), *_grouped(patched))) + merge(values(reports)) + failures(reports)
    busy = sum(bool(entry.running) for entry in data.nodes)
    if busy and patched:
        text = f"engines run on {busy} of {len(data.nodes)} nodes: what was patched since they started they do not have"
        step += StepResult.noted([Note(text)])
    return CommandResult("status", step, data=data)


def failures(answers: Mapping[str, Answer]) -> StepResult:
    """The problems of nodes, and which give no answer, before anything is changed."""
    return StepResult(problems=tuple(problems(answers, unreachable)))


def _grouped(reports: Mapping[str, CommandResult]) -> Iterator[str]:
    """The lines of the nodes, once for all that have the same."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for node, report in reports.items():
        alike.setdefault(tuple(report.lines), []).append(node)
    for lines, nodes in alike.items():
        if lines:
            yield f"on {listed(nodes)}:"
        for line in lines:
            yield Detail(f"  {line}") if isinstance(line, Detail) else f"  {line}"


def _entry(node: str, surveyed: Answer, reported: Answer, running: Answer) -> NodeStatus:
    survey: NodeSurvey | None = surveyed.value
    patches = json_of(reported.value.data)["patches"] if reported.value else ()
    targets = [one.target for one in survey.discovered] if survey else []
    return NodeStatus(
        node,
        _state(survey, patches) if reported.value else "no answer",
        {target.project.name: target.version for target in targets},
        tuple(sorted({str(target.root) for target in targets})),
        patches,
        tuple(map(str, survey.unfinished)) if survey else (),
        tuple(running.value or ()),
        survey.free if survey else None,
        reported.lost or (reported.problem and reported.problem.cause) or surveyed.lost or running.lost or None,
    )


def _state(survey: NodeSurvey | None, patches: Sequence[Mapping[str, Any]]) -> str:
    """One word for a node."""
    if survey is None:
        return "no answer"
    if survey.unfinished:
        return "interrupted"
    if not patches:
        return "as released" if survey.discovered else "no target"
    states = dict.fromkeys(file["state"] for patch in patches for file in patch["files"])
    return "patched" if list(states) == ["intact"] else ", ".join(state for state in states if state != "intact")


def check(report: CommandResult, answers: Mapping[str, Answer]) -> CommandResult:
    """What is known of other profilers on nodes, below what ``report`` has already, once for all that are alike."""
    reports = values(answers)
    report.data["nodes"] = {node: one.data for node, one in reports.items()}
    report.add(StepResult(tuple(_grouped(reports))) + merge(reports) + failures(answers))
    return report


def elsewhere(surveys: Mapping[str, NodeSurvey]) -> Iterator[Note]:
    """A warning where the working directory holds a package that the nodes have elsewhere, too.

    A job that is submitted with it imports Ray's copy of it, on every node, and no patched file.
    """
    here = Path.cwd()
    places = {one.place for survey in surveys.values() for one in survey.discovered}
    for project in projects():
        folders = (here / project.checkout, here)
        folder = next((at for at in folders if (at / project.package / "__init__.py").is_file()), None)
        there = sorted({root for name, root in places if name == project.name})
        if folder and there and Path(os.path.realpath(folder)) not in there:
            yield Note(
                f"a job with --working-dir . would import {project.package} from here, not from {there[0]}",
                f"Ray copies {here} to every node and puts it first on their path: what is patched has no effect there;"
                f" patch this one: rlpatch apply {project.name} --path . before the job is submitted",
            )
