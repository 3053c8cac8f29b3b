"""Traces put together: those of one window of one run, a trace for each rank."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patcher.messages import Text
from patcher.progress import Display, silent
from patcher.traces.folders import walk
from patcher.traces.folders.states import CUT, FOREIGN, HALF_PARSED, NOT_PARSED, STATES, WHOLE, WRITING, RecordedTrace
from patcher.traces.words import number_ranges, spread

_COMMON = ("target", "release", "stage", "role", "rollout", "step", "sync", "form", "ours")


@dataclass(frozen=True)
class TraceGroup:
    """The traces of one window of one run, a row of the table of ``traces``: one for each rank, or its pieces."""

    traces: tuple[RecordedTrace, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the fields of the group that ``--json`` promises, for `json_of` to turn into JSON."""
        return {
            **{key: getattr(self.first, key) for key in _COMMON},
            "asked": self.first.requested, "got": self.recorded_steps, "units": self.steps, "uncounted": self.uncounted,
            "closed": self.closed, "ranks": ranks_text(self), "ranks_found": self.ranks, "state": self.state,
            "size": self.size, "next": self.next_command, "traces": self.traces,
        }  # fmt: skip

    @property
    def first(self) -> RecordedTrace:
        """Trace whose values hold for the whole group."""
        return self.traces[0]

    @property
    def state(self) -> str:
        """Worst state among the traces."""
        return min((trace.state for trace in self.traces), key=list[str](STATES).index)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(trace.size for trace in self.traces)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that left a trace, in ascending order."""
        return tuple(sorted({trace.rank for trace in self.traces if trace.rank is not None}))

    @property
    def pieces(self) -> int:
        """Number of traces in which a worker saved the window."""
        return max(Counter(map(_worker, self.traces)).values())

    def _steps(self) -> list[tuple[int, ...]]:
        """Return for each worker its recorded step numbers, of all its traces; workers without numbers are left out."""
        steps: dict[object, set[int]] = {}
        for trace in self.traces:
            if trace.steps is not None:
                steps.setdefault(_worker(trace), set()).update(trace.steps)
        return [tuple(sorted(numbers)) for numbers in steps.values()]

    @property
    def steps(self) -> tuple[int, ...] | None:
        """Numbers of the steps that every worker with numbers recorded, ascending; None if no worker has numbers."""
        by_worker = self._steps()
        return tuple(sorted(set.intersection(*map(set, by_worker)))) if by_worker else None

    @property
    def recorded_steps(self) -> str:
        """Recorded steps as text, such as ``30:60``; "" if unknown.

        A window with a condition may begin at another step on each replica. In that case the text is the number of
        steps per worker.
        """
        by_worker, window = set(self._steps()), self.first.window
        if len(by_worker) < 2 or not window or not window.conditions:
            return step_range_text(self.steps, window.length if window else None)
        counts = sorted(map(len, by_worker))
        return Text("{count} steps per worker", spread(counts[0], counts[-1]))

    @property
    def closed(self) -> str:
        """Reason why the window was closed early, else "complete"; "" if no metadata tells."""
        last = {_worker(trace): trace for trace in self.traces}.values()
        reasons = [trace.metadata.closed for trace in last if trace.metadata and trace.metadata.closed]
        return next((reason for reason in reasons if reason != "complete"), reasons[0] if reasons else "")

    @property
    def uncounted(self) -> dict[int, int]:
        """Step number → number of uncounted iterations right before it, in the worker with the most of them in all."""
        by_worker: dict[object, dict[int, int]] = {}
        for trace in self.traces:
            by_worker.setdefault(_worker(trace), {}).update(trace.metadata.uncounted if trace.metadata else {})
        return max(by_worker.values(), key=lambda uncounted: sum(uncounted.values()), default={})

    @property
    def next_command(self) -> str:
        """Command to type next for this state: to parse, list or report; "" if only recording again helps."""
        folder = shlex.quote(str(common(trace.path for trace in self.traces)))
        parse = f"rlpatch analyse {folder}" if any(trace.raw for trace in self.traces) else ""
        report = f"rlpatch report {shlex.join(str(trace.path) for trace in self.traces)}"
        commands: dict[str, str] = {
            NOT_PARSED: parse,
            HALF_PARSED: parse,
            WRITING: f"rlpatch traces {folder}",
            WHOLE: report,
            CUT: report if self.first.form == "torch" and self.first.size else "",
            FOREIGN: report if self.first.form != "other" else "",
        }
        return commands.get(self.state, "")


def step_range_text(units: Iterable[int] | None, requested: int | None) -> str:
    """Return recorded step numbers as text, such as ``30:60``; "none" without steps, "" for None.

    If some in between are missing, the text has their number, ``30:60 (28 steps)``; else if there are fewer than
    ``requested``, it has both: ``30:58 (28 of 30 steps)``. ``requested`` is None if unknown.
    """
    if units is None:
        return ""
    numbers = sorted(units)
    if not numbers:
        return Text("none")
    first, end = numbers[0], numbers[-1] + 1
    text = f"{first}:{end}"
    if len(numbers) < end - first:
        return Text("{window} ({count} steps)", window=text, count=len(numbers))
    if requested and len(numbers) < requested:
        return Text("{window} ({count} of {total} steps)", window=text, count=len(numbers), total=requested)
    return text


def ranks_text(group: TraceGroup) -> str:
    """Return the ranks that left a trace as text, such as ``0-3``; also the expected number, or missing ranks, if any.

    For example ``4 of 8 ranks: 0-3``, or ``2, missing 6`` if certain ranks were requested. "" if no rank is known.
    """
    text = number_ranges(group.ranks)
    requested, world = group.first.ranks, group.first.world
    if requested and requested != "all":
        listed = {int(rank) for rank in requested.split(",") if rank.isdecimal() and len(rank) < 10}
        expected = {rank for rank in listed if not world or rank < world}
        missing = sorted(expected - set(group.ranks))
        return (
            Text("{ranks}, missing {missing_ranks}", ranks=text or Text("none"), missing_ranks=number_ranges(missing))
            if missing
            else text
        )
    if not world or world <= len(group.ranks):
        return text
    if not text:
        return Text("none of {count} ranks", world)
    return Text("{number} of {total} ranks: {ranks}", number=len(group.ranks), total=world, ranks=text)


def common(paths: Iterable[Path]) -> Path:
    """Return the deepest folder that contains all paths, or the path if there is only one."""
    return Path(os.path.commonpath(list(paths)))


def trace_groups(folder: Path, display: Display = silent) -> list[TraceGroup]:
    """Return the groups of the traces below ``folder``, oldest first; ``folder`` may also be a trace itself.

    Several traces are read at a time; ``display`` shows the progress. Raises OSError if ``folder`` cannot be listed.
    """
    paths = walk.traces_below(folder)
    with display("looking", sum(map(walk.to_scan, paths))) as progress, ThreadPoolExecutor(os.cpu_count()) as pool:
        # Threads, for zlib, which does most of the work, lets the others run.
        return group_traces(pool.map(lambda path: walk.inspect(path, progress), paths))


def group_traces(traces: Iterable[RecordedTrace]) -> list[TraceGroup]:
    """Return groups of the traces of all ranks that lie in one folder and recorded the same window, oldest first.

    A second trace of a worker begins another group, unless it is the next part of a window that was saved in several.
    Each trace of another tool, or without a rank, is a group by itself. In a group, traces are sorted by rank.
    """
    groups: dict[object, list[list[RecordedTrace]]] = {}
    for trace in sorted(traces, key=lambda trace: (trace.ended, str(trace.path))):
        alone = trace.path if not trace.ours or trace.rank is None else None
        turn = trace.rollout, trace.step, trace.sync
        key = (trace.form, trace.stage, trace.role, *turn, trace.window, trace.target)
        runs = groups.setdefault((alone, trace.path.parent, *key), [])
        before = [run for run in runs[-1] if _worker(run) == _worker(trace)] if runs else []
        if not runs or (before and not _follows(trace, before[-1])):
            runs.append([])
        runs[-1].append(trace)
    joined = [TraceGroup(tuple(sorted(run, key=_order))) for runs in groups.values() for run in runs]
    return sorted(joined, key=lambda group: (group.first.ended, str(group.first.path)))


def _follows(trace: RecordedTrace, before: RecordedTrace) -> bool:
    """Tell whether a trace is the piece that follows ``before`` in the window of one process."""
    number, last = (piece.metadata.piece if piece.metadata else None for piece in (trace, before))
    return None not in (number, last) and number == (last or 0) + 1 and trace.pid == before.pid


def _worker(trace: RecordedTrace) -> tuple[str, int | None, int | None]:
    """Return the worker that left a trace: host, replica and rank, the last two None if unknown."""
    return trace.host, trace.replica, trace.rank


def _order(trace: RecordedTrace) -> tuple[int, str, int, str]:
    """Return the sort key of a trace in its group: rank, host, piece and path."""
    piece = (trace.metadata.piece if trace.metadata else None) or 1
    return (-1 if trace.rank is None else trace.rank, trace.host, piece, str(trace.path))
