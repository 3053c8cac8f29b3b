"""The lanes of a page: what each process did, as much of it as a page can show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from patcher.timeline.files import IterationColumns, KeptSpan
from patcher.timeline.model import IterationRun, Lane, LaneSpan
from patcher.timeline.path import GAP_US
from patcher.timeline.runs import Process
from patcher.timeline.shares import seconds

MOST = 120_000
"""Spans, and runs of iterations, of all lanes; each has its share. Beyond, the shortest spans are left out, and
neighbours among runs are put together.
"""

LEAST = 200
"""Of a lane, however many there are."""

DEEPEST = 12


class LaneBuilder:
    """Takes the records of a process as they are read, and makes a lane of them in the end."""

    def __init__(self, process: Process, role: str, lanes: int) -> None:
        self.process, self.role, self.most = process, role, max(MOST // lanes, LEAST)
        self.spans: list[KeptSpan] = []
        self.left_out = self.dropped = 0
        self.runs: list[IterationRun] = []
        self.gap = GAP_US

    def add(self, spans: Iterable[KeptSpan]) -> None:
        """More spans of the process."""
        self.spans += [span for span in spans if span.kind != "step"]
        if len(self.spans) > 2 * self.most:
            self._thin()

    def _thin(self) -> None:
        self.left_out += max(len(self.spans) - self.most, 0)
        self.spans = sorted(self.spans, key=_length, reverse=True)[: self.most]

    def add_iterations(self, columns: IterationColumns, before: int) -> None:
        """The iterations that had ended before this time."""
        last: list[int] = []
        for start, end, requests, tokens in zip(*columns.columns[:4], strict=True):
            if end > before:
                break
            if not last or start - last[1] > self.gap:
                self._close(last)
                last = [start, end, 0, 0, 0]
            last[1] = max(last[1], end)
            last[2] += 1
            last[3] += tokens <= requests
            last[4] = max(last[4], requests)
        self._close(last)

    def _close(self, run: Sequence[int]) -> None:
        """Put down iterations that followed each other."""
        if run:
            self.runs.append(IterationRun(seconds(run[0]), seconds(run[1]), *run[2:]))
        while len(self.runs) > self.most:
            self.gap *= 2
            self.runs = _closed(self.runs, self.gap / 1e6)

    def built(self, number: int) -> Lane:
        """Return the lane, as the one of its role with this ``number``."""
        self._thin()
        head, open_ends = self.process.head, list[int]()
        shown = list[LaneSpan]()
        for span in sorted(self.spans, key=lambda span: (span.start, -_length(span))):
            open_ends = [end for end in open_ends if end > span.start]
            end = None if span.end is None else seconds(span.end)
            shown.append(LaneSpan(seconds(span.start), end, span.kind, span.name, min(len(open_ends), DEEPEST)))
            if len(open_ends) <= DEEPEST:
                open_ends.append(1 << 61 if span.end is None else span.end)
        times = [time for span in shown for time in (span.start, span.end) if time is not None]
        times += [time for run in self.runs for time in (run.start, run.end)]
        seen = (min(times, default=0.0), max(times, default=0.0))
        return Lane(
            self.role, number, self.process.replica, self.process.rank, head.host, head.pid, head.command,
            tuple(shown), tuple(self.runs), self.left_out, seen, head.ended, self.dropped,
        )  # fmt: skip


def _length(span: KeptSpan) -> int:
    return 1 << 61 if span.end is None else span.end - span.start


def _joined(run: IterationRun, other: IterationRun) -> IterationRun:
    return IterationRun(
        run.start, max(run.end, other.end), run.iterations + other.iterations, run.decodes + other.decodes,
        max(run.requests, other.requests),
    )  # fmt: skip


def _closed(runs: Iterable[IterationRun], gap: float) -> list[IterationRun]:
    """Return the runs, those with at most ``gap`` between them as one."""
    merged: list[IterationRun] = []
    for run in runs:
        if merged and run.start - merged[-1].end <= gap:
            merged[-1] = _joined(merged[-1], run)
        else:
            merged.append(run)
    return merged
