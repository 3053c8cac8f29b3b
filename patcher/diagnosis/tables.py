"""The tables of a diagnosis, which its page and CSV files show: seconds, and shares from 0 to 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from patcher.diagnosis.loads import LOADS
from patcher.diagnosis.model import CLASSES, RunDiagnosis, StageDiagnosis
from patcher.messages import Text
from patcher.table import COUNT, Column, Shown, Table, Unit

SECONDS = Unit(lambda seconds: f"{seconds:,.1f} s")
ESTIMATE = Unit(lambda seconds: f"{seconds:,.1f} s", missing="-")
SHARE = Unit(lambda share: f"{100 * share:.1f} %", whole=1)
HALF_WIDTH = Unit(lambda half_width: f"± {100 * half_width:.1f} %")
SIGNED = Unit(lambda share: f"{100 * share:+.0f} %", missing="-")
YES_OR_NO = Unit(lambda supported: Text("yes") if supported else Text("no"))
MILLISECONDS = Unit(lambda milliseconds: f"{milliseconds:,.1f} ms")


def of_diagnosis(diagnosis: RunDiagnosis) -> Iterator[tuple[Mapping[str, object], Table]]:
    """Yield ({column: value}, table) for the CSV files; these columns are added to each row of the table.

    That is the name of the stage for a table on one stage, else nothing.
    """
    yield {}, stages(diagnosis)
    for stage in diagnosis.stages:
        for table in (classes(stage), loads(stage), load_classes(stage)):
            yield {"stage": stage.stage}, table
    yield {}, actions(diagnosis)
    yield {}, what_ifs(diagnosis)
    yield {}, windows(diagnosis)


def stages(diagnosis: RunDiagnosis) -> Table:
    """Return the table of how the training steps divide into stages; it has no rows if no process marks steps."""
    columns = (
        Column("stage", Text("stage")),
        Column("step_seconds", Text("time inside the steps"), SECONDS, bar=True),
        Column("share", Text("share"), SHARE),
        Column("seconds", Text("working time"), SECONDS),
        Column("limited_by", Text("waits most for")),
        Column("supported", Text("enough data?"), YES_OR_NO),
        Column("why", Text("why data is insufficient"), optional=True),
    )
    total = max(diagnosis.seconds, 1e-12)
    rows = [
        (row.stage, row.step_seconds, row.step_seconds / total, row.seconds, row.limited_by, row.supported, row.why)
        for row in (diagnosis.stages if diagnosis.steps else ())
    ]
    about = Text(
        "The column “time in the steps” adds up to the total duration of the steps. “Working time” counts only the time"
        " in iterations and micro-batches."
    )
    return Table("diagnosed_stages", Text("Stages of the training steps"), columns, rows, about)


def classes(stage: StageDiagnosis) -> Table:
    """Return the table of the share and seconds of each class of work in a stage; no rows if not supported."""
    columns = (
        Column("", Text("kind of work")),
        Column("class", shown_in=Shown.CSV),
        Column("share", Text("share"), SHARE, bar=True),
        Column("interval", Text("95 % interval"), HALF_WIDTH),
        Column("seconds", Text("seconds"), SECONDS),
    )
    rows = [(CLASSES[part.name], part.name, part.share, part.interval, part.seconds) for part in stage.classes]
    return Table("diagnosed_classes", Text("Where the time went"), columns, rows)


def loads(stage: StageDiagnosis) -> Table:
    """Return the table of a stage's iterations by load: share, number, mean time, and error of the prediction.

    A load is prefill, full, middle or tail; for micro-batches it is their length. The error is positive for too long a
    prediction.
    """
    columns = (
        Column("", Text("load")),
        Column("load", shown_in=Shown.CSV),
        Column("share", Text("share"), SHARE, bar=True),
        Column("iterations", Text("number of iterations"), COUNT),
        Column("ms_each", Text("mean time"), MILLISECONDS),
        Column("error", Text("prediction error"), SIGNED),
        Column("supported", Text("enough data?"), YES_OR_NO),
        Column("why", Text("why data is insufficient"), optional=True),
    )
    rows = [
        (LOADS[part.load], part.load, part.share, part.iterations, part.ms_each, part.error, part.supported, part.why)
        for part in stage.by_load
    ]
    about = Text(
        "Prediction error: how far the measured time at a load level is from the time predicted from the recorded"
        " iterations alone."
    )
    return Table("diagnosed_loads", Text("Time by load level"), columns, rows, about)


def load_classes(stage: StageDiagnosis) -> Table:
    """Return the table of a stage's classes of work by load: the prefill, many or few requests at once, or the tail.

    A load for which too little was recorded has no rows.
    """
    columns = (
        Column("", Text("load")),
        Column("load", shown_in=Shown.CSV),
        Column("", Text("kind of work")),
        Column("class", shown_in=Shown.CSV),
        Column("share", Text("share of time at this load level"), SHARE, bar=True),
        Column("seconds", Text("seconds"), SECONDS),
    )
    rows = [
        (LOADS[part.load], part.load, CLASSES[row.name], row.name, row.share, row.seconds)
        for part in stage.by_load
        for row in part.classes
    ]
    return Table("diagnosed_load_classes", Text("Where the time at each load level went"), columns, rows)


def actions(diagnosis: RunDiagnosis) -> Table:
    """Return the table of the proposed actions, each with its upper bound and reason."""
    columns = (
        Column("what", Text("what to do")),
        Column("bound_seconds", Text("saves at most"), SECONDS, bar=True),
        Column("because", Text("reason")),
    )
    rows = [(action.what, action.bound_seconds, action.because) for action in diagnosis.actions]
    return Table(
        "diagnosed_actions",
        Text("Upper bounds of the savings"),
        columns,
        rows,
        Text("These upper bounds count some of the same time: do not add them up."),
    )


def what_ifs(diagnosis: RunDiagnosis) -> Table:
    """Return the table of the estimated seconds under other settings, with bounds and reasons."""
    columns = (
        Column("name", Text("setting")),
        Column("setting", Text("value"), Unit(lambda value: f"{value:,}", missing="-")),
        Column("seconds", Text("estimate"), ESTIMATE),
        Column("least_seconds", Text("lower bound"), ESTIMATE),
        Column("most_seconds", Text("upper bound"), ESTIMATE),
        Column("because", Text("reason")),
    )
    rows = [
        (row.name, row.setting, row.seconds, row.least_seconds, row.most_seconds, row.because)
        for row in diagnosis.what_ifs
    ]
    about = Text(
        "Each estimate is a total time in seconds: for free-weight-sync and perfect-balance, of all training steps"
        " that the diagnosis covers, otherwise of all rollouts that it covers."
    )
    return Table("diagnosed_what_ifs", Text("Estimated time under other settings"), columns, rows, about)


def windows(diagnosis: RunDiagnosis) -> Table:
    """Return the table of the recorded windows: their iterations, those in the timeline, and the report command."""
    columns = (
        Column("stage", Text("stage")),
        Column("window", Text("recording window")),
        Column("iterations", Text("number of iterations"), COUNT),
        Column("joined", Text("iterations in the timeline"), COUNT),
        Column("report", Text("report command")),
        Column("trace", shown_in=Shown.CSV),
    )
    rows = [
        (window.stage, window.window, window.iterations, window.joined, window.report, window.trace)
        for window in diagnosis.windows
    ]
    return Table("diagnosed_windows", Text("Recorded windows"), columns, rows)
