"""``watch``: where every worker of a run stands, by the states that the probes keep beside the traces."""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

from patcher.messages import COMMA, CommandLine, CommandResult, Kind, Message, Problem, StepResult, Text, joined, tables
from patcher.traces.folders import NOT_RESTARTED, states
from patcher.workers import progress
from patcher.workers.folder import SkippedFile, StateFolder
from patcher.workers.progress import AT_WORK, DONE, IDLE, LOST, MissingRanks, RunProgress, SavedTrace, WorkerProgress
from patcher.workers.request import FiledRequest
from patcher.workers.worker import Worker, WorkerState

POLL_S = 1.0
"""Seconds between two reads of the folder. An entry that has not changed is not read again."""

MANY = 10
"""Most workers that an error names."""

SAVED, UNSAVED, TIMEOUT, NOW, STOPPED = "saved", "lost", "timeout", "at work", "interrupted"
"""Ends of a watch: all have saved; the others never will; the time is over; it looked only once; Ctrl-C."""


class WatchOptions(NamedTuple):
    """Choices for watching workers.

    `stages` must all appear (none: any stage); states from before the time `since` are ignored. `once` looks a single
    time; `timeout` is in seconds. `timeline` shows the run's steps instead.
    """

    stages: tuple[str, ...] = ()
    since: float = 0.0
    once: bool = False
    timeout: float | None = None
    timeline: bool = False

    def includes(self, worker: Worker) -> bool:
        """Tell whether a worker has a watched stage and wrote its state after `since`."""
        return worker.at >= self.since and (not self.stages or worker.stage in self.stages)


# ---------------------------------------------------------------- the payload


@dataclass(frozen=True)
class TraceRow:
    """Saved trace; `size` is in bytes, None if it no longer exists."""

    path: str
    size: int | None


@dataclass(frozen=True, kw_only=True)
class WorkerRow(WorkerState):
    """State that a worker wrote, with what rlpatch knows besides.

    `turns` names what the worker counts; `age` is the seconds since the worker wrote; `live` is the current unit, from
    the worker's memory, if possible; `here` means this host; `alive` is None on another host; `life` says the same in
    words; `outcome` and `why` tell whether the worker saves.
    """

    turns: str
    age: float
    live: int | None
    here: bool
    alive: bool | None
    life: str
    outcome: str
    traces: tuple[TraceRow, ...]


@dataclass(frozen=True, kw_only=True)
class WatchData:
    """Data of `watch --json`; `earlier` counts workers of earlier runs, `ended` is "saved", "lost" and so on."""

    folder: str
    workers: tuple[WorkerRow, ...]
    missing: tuple[MissingRanks, ...]
    requests: Mapping[str, FiledRequest]
    skipped: tuple[SkippedFile, ...]
    earlier: int
    ended: str = ""


OpenDisplay = Callable[[Sequence[str]], AbstractContextManager[Callable[[WatchData], None]]]
"""Opens a display below some lines, and gives the function that shows each new state."""


# ---------------------------------------------------------------- the command


def watch(save_path: Path, options: WatchOptions, open_display: OpenDisplay) -> CommandResult:
    """Wait until all workers of `options` that were asked to record have saved or never will; report each one's state.

    Ends, and raises, as `wait_for_workers` does.
    """
    data, step = wait_for_workers(save_path, options, open_display, options.includes)
    return CommandResult("watch", step, data=data)


def wait_for_workers(
    save_path: Path,
    options: WatchOptions,
    open_display: OpenDisplay,
    is_watched: Callable[[Worker], bool],
    requested: FiledRequest | None = None,
    head: Sequence[str] = (),
) -> tuple[WatchData, StepResult]:
    """Wait until each worker has saved its traces or never will; return the last state of the workers and a report.

    Only workers for which `is_watched` is true count. Each of `options.stages` needs one, too. With `requested`, wait
    only until it is served or never will be. The wait also ends at the timeout, at Ctrl-C, and with `options.once`
    after the first look. `open_display` shows the wait, below the lines `head`. A missing folder is waited for. Raises
    Problem (NO_TRACE) if the path is a file, OSError if it cannot be read, and KeyboardInterrupt at a second Ctrl-C.
    """
    if save_path.exists() and not save_path.is_dir():
        hint = Text("type the folder of the traces: rlpatch watch DIR")
        raise Problem(Kind.NO_TRACE, Text("{save_path} is not a folder", save_path), hint=hint)
    folder = StateFolder(save_path.resolve())
    if not (save_path.exists() or options.once):
        line = Text("waiting for a worker to create {save_path}", save_path)
        head = (*head, line)
    with open_display(head) as show:
        data = _poll(folder, options, show, lambda: progress.collect(folder, time.time(), is_watched, requested))
    return data, _result(folder, data, options)


def _poll(
    folder: StateFolder, options: WatchOptions, show: Callable[[WatchData], None], collect: Callable[[], RunProgress]
) -> WatchData:
    """Read the workers' state every `POLL_S` seconds until all have saved or never will; return the last state.

    Ends also at the timeout, at Ctrl-C, and with `options.once` after the first time; `ended` of the state says why.
    Raises KeyboardInterrupt at a second Ctrl-C.
    """
    stopped = ""
    until = math.inf if options.timeout is None else time.monotonic() + options.timeout
    while True:
        try:
            collected = collect()
            data = _data(folder, collected)
            remaining = until - time.monotonic()
            ended = stopped
            if collected.settled and not _absent(data, options):
                ended = SAVED if collected.complete else UNSAVED
            elif not stopped and options.once:
                ended = NOW
            elif not stopped and remaining <= 0:
                ended = TIMEOUT
            show(data)
            if ended:
                return replace(data, ended=ended)
            time.sleep(min(POLL_S, remaining))
        except KeyboardInterrupt:  # where they stand now is the last that is shown
            if stopped:
                raise
            stopped = STOPPED


@functools.cache  # a folder of torch_npu holds thousands of files
def _trace_size(trace: SavedTrace) -> int | None:
    """Return the size of a trace on disk, in bytes; None if it is gone, or cannot be read."""
    try:
        return None if trace.written is None else states.size(trace.path)
    except OSError:
        return None


def _data(folder: StateFolder, collected: RunProgress) -> WatchData:
    """Return the state of the workers in `folder` for JSON; its `ended` is "", as while the watch goes on."""
    return WatchData(
        folder=str(folder.save_path), workers=tuple(map(_worker_row, collected.rows)), missing=collected.missing,
        requests=collected.requests, skipped=collected.skipped, earlier=collected.earlier,
    )  # fmt: skip


def _worker_row(row: WorkerProgress) -> WorkerRow:
    """Return the row of a worker for JSON and the table; its age is rounded to 0.1 s."""
    worker, life = row.worker, row.life
    state = {field.name: getattr(worker, field.name) for field in fields(WorkerState)}
    return WorkerRow(
        **{**state, "why": row.why or worker.why}, turns=worker.turns, age=round(life.age, 1), live=life.number,
        here=life.here, alive=life.alive, life=life.words, outcome=row.outcome,
        traces=tuple(TraceRow(str(trace.path), _trace_size(trace)) for trace in row.traces),
    )  # fmt: skip


# ---------------------------------------------------------------- the words


def _result(folder: StateFolder, data: WatchData, options: WatchOptions) -> StepResult:
    """Return the report of a watch: the table and the lines below it, warnings, and a problem if not all have saved."""
    text = Text("skipped a file that does not come from a worker, in the folder of the status files")
    notes = [
        Message("warning", text, Text("{file}: {reason}", file=skipped.file, reason=skipped.why))
        for skipped in data.skipped
    ]
    if data.earlier:
        text = Text("skipped {count} processes that ended and were replaced by new ones", data.earlier)
        notes.append(Message("note", text))
    lines: list[str] = []
    if data.workers:
        lines = [*tables.workers(data.workers, tables.room()), *lines_below_table(data), _summary(data, options)]
    if any(row.traces for row in data.workers):
        lines.append(Text("next: {command}", CommandLine("traces", data.folder)))
    problem = _problem(folder, data, options)
    return StepResult(tuple(lines), tuple(notes), (problem,) if problem else ())


def _problem(folder: StateFolder, data: WatchData, options: WatchOptions) -> Problem | None:
    """Return the problem that a watch was stopped, found no worker, or ended before all had saved, else None."""
    if data.ended == STOPPED:
        return Problem(Kind.INTERRUPTED, Text("stopped by Ctrl-C; the run goes on"))
    if not data.workers:
        return no_worker_problem(folder, data.skipped, options.stages)
    idle = all(row.outcome == IDLE for row in data.workers) and not _absent(data, options)
    if data.ended == SAVED or (data.ended == NOW and idle):
        return None
    cause = Text("{cause}: {summary}", cause=_CAUSES[data.ended], summary=_summary(data, options))
    hint = Text("look into the log of the run; `rlpatch watch` can be started again at any time")
    return Problem(Kind.NO_TRACE, cause, data.folder, hint)


_CAUSES = {
    UNSAVED: Text("some workers will not save a trace"),
    NOW: Text("some workers have not saved their trace yet"),
    TIMEOUT: Text("the time given with --timeout is over"),
}


def no_worker_problem(folder: StateFolder, skipped: Sequence[SkippedFile], stages: Sequence[str] = ()) -> Problem:
    """Return the problem that no worker (of `stages`) wrote a state into `folder`, or that the save path is missing."""
    cause = Text("no worker has reported its status in {path}", folder.path)
    if stages:
        cause = Text(
            "no worker of {stages} has reported its status in {path}", stages=", ".join(stages), path=folder.path
        )
    if not folder.save_path.exists():
        cause = Text("{save_path} does not exist", folder.save_path)
    hint = Text(
        "workers report their status from their first rollout or training step on. The log of the run and"
        " `rlpatch status` name the folder of the status files"
    )
    left_out = tuple(
        Text("skipped {file}: {reason}", file=entry.file.name, reason=entry.why) for entry in skipped[:MANY]
    )
    return Problem(Kind.NO_WORKER, cause, hint=hint, notes=(*left_out, NOT_RESTARTED))


def lines_below_table(data: WatchData) -> list[str]:
    """Return lines below the table of workers: pending requests, missing ranks, traces or reasons of each."""
    lines = list(_pending_request_lines(data))
    for missing in data.missing:
        ranks = ", ".join(map(str, missing.ranks[:MANY])) + (" …" if len(missing.ranks) > MANY else "")
        lines.append(
            Text(
                "  {stage} rank {ranks}: asked to record, but has not reported its status yet",
                stage=missing.stage,
                ranks=ranks,
            )
        )
    for number, row in enumerate(data.workers, 1):
        if row.why and row.outcome != DONE:  # of a window that was saved it says what the traces say
            lines.append(Text("  {number}  {line}", number=number, line=row.why))
        for trace in row.traces:
            name = Path(trace.path).name
            if trace.size is None:
                name = Text("{trace} (no longer exists)", name)
            lines.append(Text("  {number}  {line}", number=number, line=name))
    return lines


def awaited_sentence(data: WatchData) -> str:
    """Return a sentence on what `watch` waits for while no worker has been asked to record, and on how to stop it."""
    if any(row.outcome != IDLE for row in data.workers):
        return ""
    if not data.workers:
        what = Text(
            "no worker has reported its status in {folder} yet: each worker reports in its first rollout or training"
            " step",
            data.folder,
        )
    elif all(row.alive is False for row in data.workers):
        what = Text(
            "all workers of this run have ended, and none was asked to record; waiting for the workers of another run"
        )
    else:
        what = Text("no worker was asked to record yet; ask with `rlpatch trigger`")
    return Text("{reason}. Stop with Ctrl-C, or limit the wait with --timeout SECONDS", what)


def _pending_request_lines(data: WatchData) -> Iterator[str]:
    """Yield a line for each request that a live worker still has to serve."""
    turns = {row.stage: row.turns for row in data.workers if row.on_demand and row.outcome == AT_WORK}
    for stage, request in data.requests.items():
        if stage in turns:
            values = {"load": request.load, "tail": request.tail, "context": request.context}
            conditions = "".join(f" --at-{name} {value}" for name, value in values.items() if value)
            ranks = Text("all ranks") if request.ranks == "all" else Text("rank {rank}", request.ranks)
            yield Text(
                "  requested: {window}{conditions} in {turn} {number}, on {ranks}",
                window=request.window,
                conditions=conditions,
                turn=turns[stage],
                number=request.at,
                ranks=ranks,
            )


def _summary(data: WatchData, options: WatchOptions) -> str:
    """Return in words how many workers are in each state: saved, recording, without a trace, not asked, or missing."""
    counts = Counter((row.outcome, bool(row.traces) and row.outcome in (AT_WORK, LOST)) for row in data.workers)
    missing = sum(len(missing_ranks.ranks) for missing_ranks in data.missing)
    parts = [
        (counts[DONE, False], Text("{workers} saved a trace")),
        (counts[AT_WORK, False], Text("{workers} still recording")),
        (counts[LOST, False], Text("{workers} saved no trace")),
        (counts[IDLE, False], Text("{workers} not asked to record (ask with rlpatch trigger)")),
        (counts[AT_WORK, True], Text("{workers} still recording (some traces already saved)")),
        (counts[LOST, True], Text("{workers} with some traces missing")),
        (missing, Text("{workers} without a status report yet")),
    ]
    absent = (Text("no worker of {stage} has reported its status yet", stage) for stage in _absent(data, options))
    return joined(COMMA, (*(text.filled(count) for count, text in parts if count), *absent))


def _absent(data: WatchData, options: WatchOptions) -> list[str]:
    return sorted(set(options.stages) - {row.stage for row in data.workers})
