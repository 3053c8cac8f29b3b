"""A run as trace events in JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

There is a process for each lane, one for the steps with the critical path, and a counter of the requests alive. Spans
that nest are slices of one thread; spans that overlap, such as requests, are distributed over threads.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator

from patcher.timeline.model import Lane, LaneSpan, RunTimeline, label
from patcher.timeline.page.rows import AT_ONCE

RUN = 1
"""The process of the run as a whole."""

STEPS, PATH, RECORDED, PROPOSED = 1, 2, 3, 4
THREADS = {STEPS: "steps", PATH: "critical path", RECORDED: "recorded windows", PROPOSED: "windows worth recording"}
"""Its threads."""

ITERATIONS = 1
"""The thread of an engine's iterations; those of spans come behind it."""

Event = dict[str, object]


def trace(timeline: RunTimeline) -> Iterator[str]:
    """Yield the pieces of one JSON document with trace events of a run, for Perfetto and chrome://tracing."""
    lanes = (_lane_events(lane, process) for process, lane in enumerate(timeline.lanes, RUN + 1))
    events = itertools.chain(_name_events(RUN, "run", 0, THREADS), _run_events(timeline), *lanes)
    yield '{"displayTimeUnit":"ms","traceEvents":[\n'
    for number, event in enumerate(events):
        yield ",\n" * bool(number) + json.dumps(event, separators=(",", ":"))
    yield "\n]}\n"


def _name_events(process: int, name: str, order: int, threads: dict[int, str]) -> Iterator[Event]:
    """Yield metadata events that name and order a process and its threads (thread id → name)."""
    of = {"ph": "M", "pid": process}
    yield {**of, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {**of, "tid": 0, "name": "process_sort_index", "args": {"sort_index": order}}
    for thread, title in threads.items():
        yield {**of, "tid": thread, "name": "thread_name", "args": {"name": title}}
        yield {**of, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}}


def _slice_event(process: int, thread: int, name: str, kind: str, start: float, end: float, **more: object) -> Event:
    """Return a slice event from ``start`` to ``end`` (seconds), with ``more`` as its arguments.

    Both become whole microseconds first, so that neighbours never overlap. An empty name becomes ``kind``.
    """
    begin = round(start * 1e6)
    event: Event = {"ph": "X", "pid": process, "tid": thread, "name": name or kind, "cat": kind, "ts": begin}
    return {**event, "dur": round(end * 1e6) - begin, **({"args": more} if more else {})}


def _run_events(timeline: RunTimeline) -> Iterator[Event]:
    """Yield the events of the whole run: steps, critical path, windows, number of requests."""
    for step in timeline.steps:
        by = step.limited_by
        facts: dict[str, object] = {"verdict": step.verdict, "tail seconds": step.tail_seconds}
        if by:
            facts |= {"limited by": by.label, "excess seconds": by.excess_seconds}
        if step.why:
            facts["why"] = step.why
        yield _slice_event(RUN, STEPS, f"step {step.step}", "step", step.start, step.end, **facts)
        for segment in step.critical_path:
            name = f"{label(segment.role, segment.replica, segment.rank)}: {segment.what}"
            yield _slice_event(
                RUN, PATH, name, segment.kind, segment.start, segment.end, phase=segment.phase, step=step.step
            )
    for recorded in timeline.recorded:
        yield _slice_event(
            RUN, RECORDED, recorded.title, "window", recorded.start, recorded.end, trace=str(recorded.trace)
        )
    for window in timeline.windows:
        yield _slice_event(RUN, PROPOSED, window.what, "window", window.start, window.end, command=window.command)
    for at, count in timeline.requests:
        name = "running requests"
        yield {"ph": "C", "pid": RUN, "tid": 0, "name": name, "ts": round(at * 1e6), "args": {"requests": count}}


def _lane_events(lane: Lane, process: int) -> Iterator[Event]:
    """Yield the events of one lane as the process with the id ``process``: slices of spans and iterations."""
    groups = defaultdict[str, list[LaneSpan]](list)
    for span in lane.spans:
        groups[span.kind if span.kind in AT_ONCE else ""].append(span)
    threads, slices, free = {}, list[Event](), itertools.count(ITERATIONS + 1)
    for kind, spans in sorted(groups.items()):
        for number, slices_of_thread in enumerate(_assign_threads(spans, lane.seen[1], nests=not kind), 1):
            thread = next(free)
            threads[thread] = f"{kind or 'spans'} {number}" if number > 1 else kind or "spans"
            slices += [
                _slice_event(process, thread, slice_span.name, slice_span.kind, slice_span.start, end)
                for slice_span, end in slices_of_thread
            ]
    for run in lane.iterations:
        facts = {"iterations": run.iterations, "only decode": run.decodes, "most requests": run.requests}
        slices.append(_slice_event(process, ITERATIONS, "iterations", "iteration", run.start, run.end, **facts))
    if lane.iterations:
        threads[ITERATIONS] = "iterations"
    yield from _name_events(process, f"{lane.label} ({lane.host}, {lane.pid})", process, threads)
    yield from slices


_Ended = tuple[LaneSpan, float]
"""A span with its end."""


def _assign_threads(spans: Iterable[LaneSpan], until: float, *, nests: bool) -> list[list[_Ended]]:
    """Distribute spans, each with its end in seconds, over as few threads as needed.

    Spans of a thread never overlap, except that one may lie within another if the kind ``nests``. A span that goes on
    ends at ``until``.
    """
    ends = ((span, max(until if span.end is None else span.end, span.start)) for span in spans)
    ordered = sorted(ends, key=lambda ended: (ended[0].start, -ended[1]))
    return _nest_in_threads(ordered) if nests else _separate_in_threads(ordered)


def _nest_in_threads(spans: Iterable[_Ended]) -> list[list[_Ended]]:
    """Distribute spans over threads so that those of a thread nest or lie apart.

    ``spans`` are sorted by start, the longest first. Each goes to the first thread that it fits into.
    """
    threads: list[list[_Ended]] = []
    open_ends: list[list[float]] = []  # of each thread, the innermost last
    for span, end in spans:
        for around in open_ends:
            while around and around[-1] <= span.start:
                around.pop()
        number = next((at for at, around in enumerate(open_ends) if not around or end <= around[-1]), len(threads))
        if number == len(threads):
            threads.append([])
            open_ends.append([])
        open_ends[number].append(end)
        threads[number].append((span, end))
    return threads


def _separate_in_threads(spans: Iterable[_Ended]) -> list[list[_Ended]]:
    """Distribute spans, sorted by start, over as few threads as possible, so that none of a thread overlap."""
    threads: list[list[_Ended]] = []
    free: list[int] = []
    running: list[tuple[float, int]] = []
    for span, end in spans:
        while running and running[0][0] <= span.start:
            heapq.heappush(free, heapq.heappop(running)[1])
        if not free:
            free.append(len(threads))
            threads.append([])
        number = heapq.heappop(free)
        heapq.heappush(running, (end, number))
        threads[number].append((span, end))
    return threads
