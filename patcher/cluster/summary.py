"""Join the results of nodes: nodes with the same result stand together, and JSON has an entry for every node."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from patcher.cluster import node_group
from patcher.cluster.node_group import Answer, NodeStatus, NodeSurvey, listed, merge_problems, values
from patcher.messages import Message, Note, Text
from patcher.messages.report import CommandResult, Detail, StepResult, json_of
from patcher.messages.tables import nodes as table
from patches.projects import projects


@dataclass(frozen=True)
class ClusterStatus:
    """Result of `status --ray`: an entry for each node."""

    nodes: tuple[NodeStatus, ...]


def merge(reports: Mapping[str, CommandResult] | Mapping[str, StepResult]) -> StepResult:
    """Return each distinct note and problem of the nodes' `reports` once, with its nodes; lines are left out."""
    notes: dict[Message, list[str]] = {}
    for node, report in reports.items():
        for note in report.notes:
            notes.setdefault(note, []).append(node)
    several = len(reports) > 1
    messages = [
        note._replace(text=Text("{message} ({nodes})", message=note.text, nodes=listed(nodes, 3))) if several else note
        for note, nodes in notes.items()
    ]
    problems = merge_problems((node, problem) for node, report in reports.items() for problem in report.problems)
    return StepResult(notes=tuple(messages), problems=tuple(problems))


def status(answers: Mapping[str, Answer]) -> CommandResult:
    """Return the report on all nodes: a table, then the patches, once for all nodes with the same report."""
    reports = values(answers)
    lost = {
        node: NodeStatus(node, Text("no answer"), problem=answer.problem.cause if answer.problem else answer.lost)
        for node, answer in answers.items()
    }
    entries = tuple(replace(reports[node].data, node=node) if node in reports else lost[node] for node in answers)
    data = ClusterStatus(entries)
    patched = {entry.node: reports[entry.node] for entry in entries if entry.patches}
    step = StepResult((*table(json_of(data)), *_grouped_lines(patched))) + merge(reports) + failures(answers)
    busy = sum(bool(entry.running) for entry in entries)
    if busy and patched:
        text = Text(
            "engines are already running on {running} of {total} nodes; a patch has no effect on engines that started"
            " before it was applied"
        )
        step += StepResult.noted([Note(text.filled(running=busy, total=len(entries)))])
    return CommandResult("status", step, data=data)


def failures(answers: Mapping[str, Answer]) -> StepResult:
    """Return the problems of nodes, also of nodes that did not answer."""
    return StepResult(problems=tuple(node_group.problems(answers)))


def _grouped_lines(reports: Mapping[str, CommandResult]) -> Iterator[str]:
    """Yield the lines of each distinct report, indented below the names of the nodes that have it."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for node, report in reports.items():
        alike.setdefault(tuple(report.lines), []).append(node)
    for lines, nodes in alike.items():
        if lines:
            yield Text("on {nodes}:", listed(nodes))
        for line in lines:
            yield Detail("  {line}", line) if isinstance(line, Detail) else Text("  {line}", line)


def check(report: CommandResult, answers: Mapping[str, Answer]) -> CommandResult:
    """Add the findings of the nodes to `report` and return it: each distinct text once, with the names of its nodes."""
    reports = values(answers)
    report.data["nodes"] = {node: node_report.data for node, node_report in reports.items()}
    report.add(StepResult(tuple(_grouped_lines(reports))) + merge(reports) + failures(answers))
    return report


def shadowed_packages(surveys: Mapping[str, NodeSurvey]) -> Iterator[Note]:
    """Yield a warning for each package that the nodes have elsewhere, but that lies in the working directory, too.

    A Ray job with this working directory imports Ray's copy of it on every node, not the patched files.
    """
    here = Path.cwd()
    places = {target.place for survey in surveys.values() for target in survey.discovered}
    for project in projects():
        folders = (here / project.checkout, here)
        folder = next((at for at in folders if (at / project.package / "__init__.py").is_file()), None)
        there = sorted({root for name, root in places if name == project.name})
        if folder and there and Path(os.path.realpath(folder)) not in there:
            text = Text("with `--working-dir .`, a Ray job imports {package} from this folder, not from {installed}")
            detail = Text(
                "Ray copies {folder} to every node, and Python imports this copy first, so the patch in the installed"
                " package has no effect. Patch {folder} before you submit the job: rlpatch apply {target} --path ."
            )
            text = text.filled(package=project.package, installed=there[0])
            yield Note(text, detail.filled(folder=here, target=project.name))
