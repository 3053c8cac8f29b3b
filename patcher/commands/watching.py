"""``watch``: where every worker of a run stands, by the states that the probes keep beside the traces."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from patcher.errors import Kind, Problem, refused
from patcher.report import Report
from patcher.traces.folders import states
from patcher.workers import progress
from patcher.workers.folder import Folder
from patcher.workers.progress import AT_WORK, DONE, IDLE, LOST, Row, Survey, Trace

if TYPE_CHECKING:
    from patcher.workers.worker import Worker

POLL_S = 1.0
"""How often the folder is looked at. An entry that has not changed is not read again."""

MANY = 10
"""Workers that an error names."""

SAVED, UNSAVED, TIMEOUT, NOW, STOPPED = "saved", "lost", "timeout", "at work", "interrupted"
"""How it ended: all have saved; the others never will; the time is over; it looked only once; Ctrl-C."""


class WatchOptions(NamedTuple):
    """Whom to watch: ``stages`` that must be there, none for whichever are; what was written ``since`` then.

    With ``once`` it does not wait, with a ``timeout`` not longer than so many seconds.
    """

    stages: tuple[str, ...] = ()
    since: float = 0.0
    once: bool = False
    timeout: float | None = None

    def wanted(self, worker: Worker) -> bool:
        """Whether a worker is to be watched."""
        return worker.at >= self.since and (not self.stages or worker.stage in self.stages)


class Screen(Protocol):
    """Where the user sees it change, and how the last of it is drawn."""

    def show(self, data: dict[str, Any]) -> None:
        """Show what would be reported now."""

    def table(self, data: dict[str, Any]) -> list[str]:
        """The lines of the table in the report."""


Shown = Callable[[Sequence[str]], AbstractContextManager[Screen]]
"""Opens the screen, with lines that stand above the table."""


def watch(save_path: Path, options: WatchOptions, shown: Shown) -> Report:
    """Where the workers stand, when all that were asked have saved, or none of the others ever will.

    Raises: Problem (NO_TRACE, ENVIRONMENT) where there is nothing to look at.
    """
    report = Report("watch")

    def look(folder: Folder) -> Survey:
        return progress.survey(folder, time.time(), wanted=options.wanted)

    watched(report, save_path, options, shown, look)
    return report


def watched(
    report: Report, save_path: Path, options: WatchOptions, shown: Shown, look: Callable[[Folder], Survey]
) -> None:
    """Wait until what ``look`` finds is settled, and put into the report where the workers stand then."""
    if save_path.exists() and not save_path.is_dir():
        raise Problem(Kind.NO_TRACE, f"{save_path} is no folder", hint="rlpatch watch DIR: the folder of the traces")
    folder = Folder(save_path.resolve())
    with shown(report.lines) as screen:
        found, data, ended = _settled(folder, options, screen, look)
    report.data.update({**data, "ended": ended})
    _tell(report, screen, folder, found, options)
    if ended == STOPPED:
        report.problems = [Problem(Kind.INTERRUPTED, "stopped by the keyboard; the run goes on")]


def _settled(
    folder: Folder, options: WatchOptions, screen: Screen, look: Callable[[Folder], Survey]
) -> tuple[Survey, dict[str, Any], str]:
    """What was found when nobody was to be waited for any more, or not any longer."""
    sizes, stopped = _Sizes(), ""
    until = math.inf if options.timeout is None else time.monotonic() + options.timeout
    while True:
        try:
            found = look(folder)
        except OSError as error:
            raise unreadable(folder, error) from None
        data = _data(folder, found, sizes)
        left = until - time.monotonic()
        ended = _ended(found, options) or stopped or (NOW if options.once else TIMEOUT if left <= 0 else "")
        if ended:
            return found, data, ended
        try:
            screen.show(data)
            time.sleep(min(POLL_S, left))
        except KeyboardInterrupt:  # where they stand now is the last that is shown
            stopped = STOPPED


def unreadable(folder: Folder, error: OSError) -> Problem:
    """What is said of a folder of states that cannot be read."""
    if isinstance(error, PermissionError):
        return refused(error)
    return Problem(Kind.ENVIRONMENT, f"{folder.path} cannot be read: {error.strerror or error}", str(folder.path))


def _ended(found: Survey, options: WatchOptions) -> str:
    """How it ended; "" where it goes on."""
    there = {row.worker.stage for row in found.rows}
    if not found.settled or not there.issuperset(options.stages):
        return ""
    return SAVED if found.complete else UNSAVED


# ---------------------------------------------------------------- the values


class _Sizes:
    """The sizes of traces, each measured once: a folder of torch_npu holds thousands of files."""

    def __init__(self) -> None:
        self._known: dict[Trace, int | None] = {}

    def of(self, trace: Trace) -> int | None:
        """Bytes on disk; None where it is no longer there."""
        if trace not in self._known:
            try:
                self._known[trace] = None if trace.written is None else states.size(trace.path)
            except OSError:
                self._known[trace] = None
        return self._known[trace]


def _data(folder: Folder, found: Survey, sizes: _Sizes) -> dict[str, Any]:
    return {
        "folder": str(folder.save_path),
        "workers": [_row(row, sizes) for row in found.rows],
        "missing": [one._asdict() for one in found.missing],
        "requests": {
            stage: {**filed.request.as_json(), "written": filed.written} for stage, filed in found.requests.items()
        },
        "skipped": [{"file": str(one.file), "why": one.why} for one in found.skipped],
        "earlier": found.earlier,
    }


def _row(row: Row, sizes: _Sizes) -> dict[str, Any]:
    worker = row.worker
    traces = [{"path": str(trace.path), "size": sizes.of(trace)} for trace in row.traces]
    return {
        "target": worker.target, "release": worker.release, "stage": worker.stage, "role": worker.role,
        "host": worker.host, "replica": worker.replica, "dp": worker.dp, "rank": worker.rank, "world": worker.world,
        "pid": worker.pid, "ranks": worker.ranks, "unit": worker.unit, "window": worker.window, "load": worker.load,
        "tail": worker.tail, "context": worker.context, "rollout": worker.rollout, "step": worker.step,
        "turns": worker.turns,
        "state": worker.state, "why": row.why or worker.why, "at": worker.at, "age": round(row.life.age, 1),
        "number": worker.number, "live": row.life.number, "here": row.life.here, "alive": row.life.alive,
        "life": row.life.words, "on_demand": worker.on_demand, "request": worker.request, "outcome": row.outcome,
        "traces": traces,
    }  # fmt: skip


# ---------------------------------------------------------------- the words


def _tell(report: Report, screen: Screen, folder: Folder, found: Survey, options: WatchOptions) -> None:
    """Say below the table what was saved, and as an error what was not."""
    for one in found.skipped:
        report.warn("a file there is none that a probe writes, and is left out", f"{one.file}: {one.why}")
    if found.earlier:
        report.note(f"{found.earlier} left out that ended before others took their places")
    if not found.rows:
        report.problems.append(nobody(folder, found, options.stages))
        return
    report.lines += [*screen.table(report.data), *said(report.data)]
    report.lines.append(_summary(found, options))
    if any(row.traces for row in found.rows):
        report.lines.append(f"next: rlpatch traces {quoted(folder.save_path)}")
    if found.complete and report.data["ended"] == SAVED:
        return
    unsaved = _unsaved(found, options)
    if not unsaved and report.data["ended"] == NOW:  # nothing was asked of anybody
        return
    kind, cause = Kind.NO_TRACE, _cause(str(report.data["ended"]), found, options)
    hint = "the log of the run says more, and `rlpatch watch` goes on where it was"
    more = (f"and {len(unsaved) - MANY} more: --json has all",) if len(unsaved) > MANY else ()
    report.problems.append(Problem(kind, cause, str(folder.save_path), hint, (*unsaved[:MANY], *more)))


def nobody(folder: Folder, found: Survey, stages: Sequence[str] = ()) -> Problem:
    """That no worker is there to be watched, or to be asked."""
    of = f" of {', '.join(stages)}" if stages else ""
    cause = f"no worker{of} has written its state into {folder.path}"
    if not folder.save_path.exists():
        cause = f"{folder.save_path} does not exist"
    hint = "it writes from its first rollout or training step on; its log and `rlpatch status` name the folder"
    left_out = tuple(f"left out {one.file.name}: {one.why}" for one in found.skipped[:MANY])
    return Problem(Kind.NO_WORKER, cause, hint=hint, notes=left_out)


def said(data: dict[str, Any]) -> list[str]:
    """The lines below the table: requests to be served, of each worker why it has no trace, and the traces."""
    lines = list(_pending(data))
    for number, row in enumerate(data["workers"], 1):
        if row["why"] and row["outcome"] != DONE:  # of a window that was saved it says what the traces say
            lines.append(f"  {number}  {row['why']}")
        for trace in row["traces"]:
            gone = "" if trace["size"] is not None else ", which is no longer there"
            lines.append(f"  {number}  {Path(trace['path']).name}{gone}")
    return lines


def _pending(data: dict[str, Any]) -> Iterator[str]:
    """The requests that a worker is yet to serve."""
    at_work = {row["stage"]: row for row in data["workers"] if row["on_demand"] and row["outcome"] == AT_WORK}
    for stage, request in data["requests"].items():
        if stage in at_work:
            conditions = (f" at {name} {request[name]}" for name in ("load", "tail", "context") if request[name])
            ranks = "all ranks" if request["ranks"] == "all" else f"rank {request['ranks']}"
            turn = f"{at_work[stage]['turns']} {request['at']}"
            yield f"  asked for {request['window']}{''.join(conditions)} in {turn}, on {ranks}"


def _summary(found: Survey, options: WatchOptions) -> str:
    counts = {outcome: sum(row.outcome == outcome for row in found.rows) for outcome in (DONE, AT_WORK, LOST, IDLE)}
    words = {DONE: "saved", AT_WORK: "at work", LOST: "without a trace", IDLE: "not asked (rlpatch trigger)"}
    missing = sum(len(one.ranks) for one in found.missing)
    parts = [f"{count} {words[outcome]}" for outcome, count in counts.items() if count]
    parts += [f"{missing} not heard of"] if missing else []
    parts += [f"nobody of {stage}" for stage in _absent(found, options)]
    return ", ".join(parts)


def _absent(found: Survey, options: WatchOptions) -> list[str]:
    return sorted(set(options.stages) - {row.worker.stage for row in found.rows})


def _cause(ended: str, found: Survey, options: WatchOptions) -> str:
    total = len(found.asked) + sum(len(one.ranks) for one in found.missing)
    left = total - sum(row.outcome == DONE for row in found.asked)
    if not total or not left:
        nothing = "nothing was asked of the workers" if not total else f"nobody of {', '.join(_absent(found, options))}"
        return nothing if ended == NOW else f"{nothing}, and the time is over"
    lost = sum(row.outcome == LOST for row in found.asked) + sum(len(one.ranks) for one in found.missing if one.lost)
    without = f"{lost} of {total} workers left no trace" if lost else ""
    unsaved = f"{left - lost} of {total} not saved {'yet' if ended == NOW else 'in time'}" if left > lost else ""
    return ", and ".join(filter(None, (without, unsaved)))


def _unsaved(found: Survey, options: WatchOptions) -> list[str]:
    lines = [
        f"{row.worker.stage} {row.worker.name}: {row.why or f'{row.worker.state}, {row.life.words}'}"
        for row in found.asked if row.outcome != DONE
    ]  # fmt: skip
    for one in found.missing:
        ranks = ", ".join(map(str, one.ranks[:MANY])) + (" …" if len(one.ranks) > MANY else "")
        lines.append(f"{one.stage} rank {ranks}: has not written yet, and was asked for")
    return lines + [f"{stage}: no worker has written yet" for stage in _absent(found, options)]


def quoted(path: Path) -> str:
    """A path as it is typed."""
    return shlex.quote(str(path))
