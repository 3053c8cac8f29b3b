"""``traces`` and ``analyse``: what was recorded, and the offline parsing of it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from patcher.commands.reports.first_screen import contents_words
from patcher.config import EXPORT_TYPES
from patcher.messages import OR, CommandLine, Kind, Problem, Text, joined
from patcher.messages.notes import wrapped
from patcher.messages.report import CommandResult, Detail, json_of
from patcher.options import Options, option
from patcher.options.headings import PARSED
from patcher.options.notations import AnyText, ChoiceList, Number
from patcher.progress import Display, silent
from patcher.targets import interpreters
from patcher.traces import folders
from patcher.traces.folders import RecordedTrace, TraceGroup, states
from patcher.traces.model import PROFILERS
from patcher.traces.sidecar import unit_contents
from patcher.traces.tools import parsing
from patcher.traces.tools.parsing import ParseResult
from patcher.traces.tools.viewers import ANALYZE, Viewer, viewers
from patcher.traces.words import uncounted_phrase
from patcher.workers import progress
from patcher.workers.folder import StateFolder


def traces(folder: Path, display: Display = silent) -> CommandResult:
    """Return the result of `rlpatch traces`: the groups of traces in `folder` as data, and lines on each group.

    The lines tell the next command, and what is wrong with its traces. The caller prints the table of groups. Raises
    Problem (NO_TRACE) if the folder does not exist or has no trace.
    """
    report = CommandResult("traces")
    groups = _trace_groups(folder, display)
    report.data = json_of({"folder": folder, "captures": groups})
    for number, group in enumerate(groups, 1):
        for trace in group.traces:
            _warn_of_doubts(report, trace)
        report.lines += _group_lines(number, group)
    return report


def _trace_groups(folder: Path, display: Display) -> list[TraceGroup]:
    """Return the groups of traces below `folder`.

    Raises Problem (NO_TRACE) if the folder does not exist or has no trace, with the reasons that workers reported.
    Raises OSError if it cannot be listed.
    """
    if not folder.exists():
        raise folders.missing(folder)
    groups = folders.trace_groups(folder.resolve(), display)
    if not groups:
        _require_no_lost_trace(folder)
        raise folders.empty(folder)
    return groups


def _require_no_lost_trace(folder: Path) -> None:
    """Raise Problem (NO_TRACE) with the reasons, if state files in ``folder`` tell why workers write no trace."""
    with contextlib.suppress(OSError):  # the states of others, or none
        rows = progress.collect(StateFolder(folder.resolve()), time.time()).rows
        lost = [
            Text("{worker}, {stage}: {reason}", worker=row.worker.name, stage=row.worker.stage, reason=row.why)
            for row in rows
            if row.outcome == progress.LOST
        ]
        if lost:
            hint = str(CommandLine("watch", "--once", str(folder)))
            raise Problem(Kind.NO_TRACE, lost[0], str(folder), hint, notes=tuple(lost[1:]))


def _warn_of_doubts(report: CommandResult, trace: RecordedTrace) -> None:
    for doubt in trace.doubts:
        report.warn(Text("{trace}: {doubt}", trace=trace.path.name, doubt=doubt), str(trace.path))


def _group_lines(number: int, group: TraceGroup) -> Iterator[str]:
    """Yield lines on a group of traces: pieces, uncounted iterations, why its window ended early, what to do next."""
    for trace in group.traces:
        if trace.why:
            yield Detail("  {number}  {trace}: {reason}", number=number, trace=trace.path.name, reason=trace.why)
    if group.pieces > 1:
        yield Text(
            "  {number}  saved as {count} traces, one after the other; `rlpatch report` reads them as one recording"
            " window",
            number=number,
            count=group.pieces,
        )
    if group.closed not in ("", "complete"):
        yield Text("  {number}  the recording window ended early: {reason}", number=number, reason=group.closed)
    if group.uncounted:
        yield Text("  {number}  {line}", number=number, line=uncounted_phrase(group.uncounted))
    nothing = (
        group.first.why
        if group.state == states.FOREIGN
        else Text("record this window again, because its trace can't be used: {state}", states.STATES[group.state])
    )
    if group.next_command:
        yield Text("  {number}  next: {command}", number=number, command=group.next_command)
    else:
        yield Text("  {number}  {line}", number=number, line=nothing)


# ---------------------------------------------------------------- analyse


class ParseOptions(Options):
    """Choices for parsing. A parser that neither computes nor writes for `patience` seconds is ended as hung."""

    python: str | None = option(
        AnyText("EXE"),
        PARSED,
        "Python interpreter that has the torch_npu with which the traces were recorded.",
        default=None,
    )
    export: tuple[str, ...] = option(
        ChoiceList(EXPORT_TYPES),
        PARSED,
        "Formats to export.",
        default=(),
        default_text="the formats chosen for the recording",
    )
    jobs: int | None = option(
        Number(1), PARSED, "How many traces to parse at a time.", default=None, default_text="half the number of cores"
    )
    patience: float = 600.0


class WorkDisplay(NamedTuple):
    """Display of work: `at_work` takes the names of items in progress, `done` a line on each item that is finished."""

    at_work: Callable[[Sequence[str]], None]
    done: Callable[[str], None]


OpenDisplay = Callable[[str, int], AbstractContextManager[WorkDisplay]]
"""Context that shows work; takes what is done, in words, and the number of items."""


def analyse(folder: Path, options: ParseOptions, open_display: OpenDisplay, display: Display = silent) -> CommandResult:
    """Parse the unparsed traces of torch_npu in `folder`; report which viewers open all traces, and what is in them.

    torch_npu writes the exports into the folder of each trace; a trace that it fails on is a problem of the result.
    `open_display` shows the parsing, `display` the search for traces. Raises OSError and Problem: NO_TRACE, USAGE or
    ENVIRONMENT before any parsing, INTERRUPTED after Ctrl-C.
    """
    report = CommandResult("analyse")
    all_traces = [trace for group in _trace_groups(folder, display) for trace in group.traces]
    todo = [trace for trace in all_traces if _needs_parsing(report, trace, options.export)]
    program = _parsing_interpreter(options.python, todo)
    parsed = _parse(report, todo, program, options, open_display) if todo else []
    current = (folders.inspect(trace.path) for trace in all_traces if trace.form == "npu")
    ready = [trace for trace in current if trace.exports]
    ready += [trace for trace in all_traces if trace.form == "torch"]
    opened = tuple(viewers(ready))
    for viewer in opened:
        report.lines += _viewer_lines(viewer)
    contents = [_report_contents(report, trace) for trace in ready]
    report.data = json_of({"folder": folder.resolve(), "parsed": parsed, "opens": opened, "held": contents})
    if ready:
        report.lines.append(
            Text("next: rlpatch report {folder}", shlex.quote(str(folders.common(trace.path for trace in ready))))
        )
    return report


def _report_contents(report: CommandResult, trace: RecordedTrace) -> dict[str, Any]:
    """Return as a JSON object what a trace contains; add lines on that, and warnings of contradictions, to `report`."""
    _warn_of_doubts(report, trace)
    values_of = unit_contents(trace.metadata.units.values()) if trace.metadata else {}
    contents = {name: (min(values), max(values)) for name, values in values_of.items()}
    uncounted = trace.metadata.uncounted if trace.metadata else {}
    if contents:
        report.lines += wrapped(
            Text(
                "{trace}: requested window {window}; each recorded step contains {contents}",
                trace=trace.path.name,
                window=trace.requested,
                contents=contents_words(contents),
            )
        )
    if uncounted:
        report.lines.append(Text("  {line}", uncounted_phrase(uncounted)))
    path_and_window = {"path": trace.path, "asked": trace.requested}
    return {**path_and_window, **contents, "uncounted": uncounted, "doubts": trace.doubts}


def _needs_parsing(report: CommandResult, trace: RecordedTrace, exports: tuple[str, ...]) -> bool:
    """Tell whether to parse a trace: it has raw data, and is not yet parsed, or lacks some of the ``exports``.

    If the trace needs no parsing or can't be parsed, `report` gets the reason.
    """
    readable = trace.state in (states.WHOLE, states.FOREIGN)
    if trace.form in ("torch", "nsys"):
        report.note(Text("traces of {profiler} need no parsing", PROFILERS[trace.form]), str(trace.path))
    elif trace.form == "other":
        report.note(Text("not parsed: {reason}", trace.why), str(trace.path))
    elif readable and set(exports) <= set(trace.exports):
        report.lines.append(
            Text("already parsed  {trace}: {exports}", trace=trace.path.name, exports=", ".join(trace.exports))
        )
    elif trace.raw and (readable or trace.state in (states.NOT_PARSED, states.HALF_PARSED)):
        return True
    elif readable or trace.state == states.HALF_PARSED:
        report.warn(Text("the trace cannot be parsed again, because its raw data was deleted"), str(trace.path))
    else:
        report.warn(Text("not parsed ({state}): {reason}", state=trace.state, reason=trace.why), str(trace.path))
    return False


def _parsing_interpreter(python: str | None, todo: Sequence[RecordedTrace]) -> str:
    """Return the path of the Python that parses the traces `todo`: `python` if given, else the first with torch_npu.

    Returns "" if there is nothing to parse and `python` is None. Raises Problem: USAGE if `python` is no Python,
    ENVIRONMENT without torch_npu, or without msprof on PATH if a trace needs it.
    """
    if not todo:
        return interpreters.executable(python) if python else ""
    interpreter = _python_with_torch_npu(python)
    if any(any(trace.path.glob("PROF_*")) for trace in todo) and not shutil.which("msprof"):
        cause = Text("CANN's msprof is not on PATH; torch_npu needs it to parse device data")
        hint = Text("run `source /usr/local/Ascend/ascend-toolkit/set_env.sh`, then the same command again")
        raise Problem(Kind.ENVIRONMENT, cause, hint=hint)
    return interpreter


def _python_with_torch_npu(python: str | None) -> str:
    """Return the path of the interpreter `python`; for None that of the first environment that has torch_npu.

    Raises Problem: ENVIRONMENT if torch_npu is missing there, or in every environment; USAGE if `python` is no Python.
    """
    candidates: list[tuple[str, str]] = [(f"--python {python}", python)] if python else []
    searched = []
    for name, exe in candidates or [
        (Text("rlpatch's own interpreter"), sys.executable),
        *interpreters.more_interpreters(),
    ]:
        try:
            if "torch_npu" in interpreters.ask(exe, ["torch_npu"], name).packages:
                return interpreters.executable(exe)
            searched.append(Text("{interpreter} has no torch_npu", name))
        except Problem as problem:
            if candidates:
                raise
            searched.append(Text("{interpreter} cannot be used: {cause}", interpreter=name, cause=problem.cause))
    hint = Text("choose the Python of the environment that recorded the traces: rlpatch analyse DIR --python EXE")
    raise Problem(
        Kind.ENVIRONMENT, Text("torch_npu was not found in any Python environment"), hint=hint, notes=tuple(searched)
    )


def _parse(
    report: CommandResult, todo: Sequence[RecordedTrace], program: str, options: ParseOptions, open_display: OpenDisplay
) -> list[ParseResult]:
    """Parse the traces `todo` in parallel with the interpreter `program`; report the results, and return them.

    They are in the order in which the traces were done. Raises Problem: INTERRUPTED on Ctrl-C, ENVIRONMENT for a
    folder that is locked or read-only.
    """
    # A parser is one process that starts others for a while: half of the cores keep all of them busy.
    jobs = options.jobs or max((os.cpu_count() or 1) // 2, 1)
    count = 0
    with open_display(Text("parsing"), len(todo)) as display:

        def done(parsed: ParseResult) -> None:
            nonlocal count
            count += 1
            report.lines.append(_result_line(parsed))
            display.done(_result_line(parsed))

        try:
            ended = parsing.parse(
                [trace.path for trace in todo], program, ",".join(options.export), jobs=jobs,
                patience=options.patience, done=done,
                at_work=lambda paths: display.at_work([path.name for path in paths]),
            )  # fmt: skip
        except KeyboardInterrupt:
            cause = Text("interrupted after {count} of {total} traces", count=count, total=len(todo))
            hint = Text("run the same command again to parse the other traces; they were not changed")
            raise Problem(Kind.INTERRUPTED, cause, hint=hint) from None
    for parsed in ended:
        _report_parsed(report, parsed, options.export)
    return ended


def _result_line(parsed: ParseResult) -> Text:
    return Text(
        "{outcome}  {trace}: {details} ({seconds:.0f} s)",
        outcome=parsed.ended,
        trace=parsed.path.name,
        details=parsed.why or ", ".join(parsed.exports),
        seconds=parsed.seconds,
    )


def _report_parsed(report: CommandResult, parsed: ParseResult, exports: tuple[str, ...]) -> None:
    """Add to `report` a problem if parsing failed, or if torch_npu printed an error and some `exports` are missing.

    `exports` are the wanted types, such as "db". If some are missing without an error, that is a warning: the recording
    did not ask for them.
    """
    lacking = joined(OR, sorted(set(exports) - set(parsed.exports)))
    logs = Text("the output of torch_npu is in {path}", parsed.path / "logs")
    if parsed.ended != parsing.DONE:
        kind = Kind.ROLLED_BACK if parsed.ended == parsing.BACK else Kind.UNEXPECTED
        report.problems.append(Problem(kind, parsed.why, str(parsed.path), logs, parsed.output))
    elif lacking and parsed.output:
        cause = Text("torch_npu did not write {export_types}; it reported that part of the parsing failed", lacking)
        hint = Text("check whether the disk is full; {log_hint}", logs)
        report.problems.append(Problem(Kind.UNEXPECTED, cause, str(parsed.path), hint, parsed.output))
    elif lacking:
        cause = Text(
            "torch_npu wrote no {export_types}: it exports only the types that the recording asked for", lacking
        )
        report.warn(
            cause,
            Text(
                "the recording in {path} did not ask for them; to get them, record again with `rlpatch apply …"
                " --export-type db,text`",
                parsed.path,
            ),
        )


def _viewer_lines(viewer: Viewer) -> Iterator[str]:
    """Yield the lines on a viewer: how to open traces in it, what it cannot show, and with -v the traces' files."""
    if viewer.program == ANALYZE:
        yield Text("{program} can read the traces (install it in a separate environment):", viewer.program)
        yield f"  {viewer.how}"
    else:
        yield Text("open the traces in {program} ({how}):", program=viewer.program, how=viewer.how)
        yield f"  {viewer.where}"
    for reason in viewer.lacks:
        yield from wrapped(Text("note: {limitation}", reason), "  ", "    ")
    for file in viewer.files:
        values = {"trace": file.trace.name, "file": file.name, "contents": file.shows}
        if file.there:
            yield Detail("  {trace} contains {file}, which shows {contents}", **values)
        else:
            yield Detail("  {trace} lacks {file}, which would show {contents}", **values)
