"""The page of a diagnosis: an HTML file with the classes of each stage, which needs no network."""

from __future__ import annotations

from patcher.diagnosis import tables
from patcher.diagnosis.model import RunDiagnosis, StageDiagnosis
from patcher.diagnosis.rollout import STAGE
from patcher.messages import CommandLine, Text
from patcher.page import document
from patcher.page.markup import Content, alert, faint, tag
from patcher.page.table import table_section


def page(diagnosis: RunDiagnosis, folder: str, again: CommandLine | None) -> str:
    """Return the HTML page of a diagnosis; ``folder`` is shown below the title.

    A stage without iterations only appears in the table of stages. ``again`` is the command that records what is
    lacking, None if nothing is.
    """
    body = (
        tag("header", tag("h1", "rlpatch diagnose"), faint(folder)),
        table_section(tables.stages(diagnosis)),
        [_stage(stage) for stage in diagnosis.stages if stage.iterations],
        table_section(tables.actions(diagnosis)),
        table_section(tables.what_ifs(diagnosis)),
        table_section(tables.windows(diagnosis)),
        again and tag("p", Text("next: {command}", again)),
        [faint(note) for note in diagnosis.notes],
    )
    return document(Text("rlpatch diagnose"), body)


def _stage(stage: StageDiagnosis) -> Content:
    """Return the HTML section of a stage: whether its data suffice, why if not, its seconds, and three tables.

    Tables without rows are left out. A stage is a part of the run, such as the rollout.
    """
    verdict = Text("Where the time of {stage} goes", stage.stage)
    if not stage.supported:
        verdict = Text("{stage}: not enough data to tell where its time goes", stage.stage)
    return (
        tag("p", verdict, class_="verdict"),
        tag("p", _rollouts(stage) if stage.stage == STAGE else _micro_batches(stage)),
        alert(Text("Why the data is not sufficient:"), [stage.why] if stage.why else []),
        table_section(tables.classes(stage)),
        table_section(tables.loads(stage)),
        table_section(tables.load_classes(stage)),
    )


def _rollouts(stage: StageDiagnosis) -> Text:
    """Return sentences with the rollouts, seconds and iterations of a stage, and the seconds that were left out."""
    return Text(
        "{rollouts} rollouts, {seconds:,.1f} s, {iterations:,} iterations, of which {recorded} were recorded. Not"
        " included: {recording:.1f} s spent on recording, and {waiting:.1f} s that iterations spent waiting.",
        rollouts=stage.turns,
        seconds=stage.seconds,
        iterations=stage.iterations,
        recorded=stage.recorded,
        recording=stage.recording_seconds,
        waiting=stage.waiting_seconds,
    )


def _micro_batches(stage: StageDiagnosis) -> Text:
    """Return a sentence with the calls, seconds and micro-batches of a training stage, and what was left out."""
    return Text(
        "{calls} calls, {seconds:,.1f} s in {micro_batches:,} micro-batches, of which {recorded} were recorded. Not"
        " included: {recording:.1f} s spent on recording, and {between:,.1f} s between micro-batches.",
        calls=stage.turns,
        seconds=stage.seconds,
        micro_batches=stage.iterations,
        recorded=stage.recorded,
        recording=stage.recording_seconds,
        between=stage.between_seconds,
    )
