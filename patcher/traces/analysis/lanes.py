"""The lanes that are drawn of a step: the streams of the device, and beside them what the host did meanwhile.

All of it is on the trace's one clock, from where the step begins on the device to where it ends there. Spans that are
too short or too near to be told apart are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from patcher.traces import model
from patcher.traces.analysis.nested import NestedRanges
from patcher.traces.analysis.segments import Split
from patcher.traces.rank_trace import RankTrace

_PIXELS = 12_000  # Spans that are nearer to each other than this part of their unit are drawn as one: ten screens wide
_THREADS = 2  # that are drawn of those with long calls: what launches, and what runs backward

HostCalls = Mapping[str, Mapping[int, NestedRanges]]
"""Name of a row of calls → the long calls of each thread."""


class _Window(NamedTuple):
    """The part of a trace that is drawn: one ``segment``, from ``begin`` to ``end`` on the device."""

    trace: RankTrace
    cuts: Split
    segment: int
    begin: int
    end: int

    def span(self, begin: int, end: int, kind: str, name: str, *, of_step: bool) -> model.Span | None:
        """Return the span from ``begin`` to ``end``, clipped to the window, relative to its begin; None outside."""
        first, last = max(begin, self.begin), min(end, self.end)
        return model.Span(first - self.begin, last - first, kind, name, of_step) if first < last else None

    def merge_near(self, spans: Iterable[model.Span | None]) -> tuple[model.Span, ...]:
        """Return the spans of one row, in order, without None; merge those of a kind that a drawing could not separate.

        Two long spans stay apart. A merged span counts its members, and has no name if their names differ.
        """
        merged_spans: list[model.Span] = []
        near = (self.end - self.begin) // _PIXELS
        for span in spans:
            if span is None:
                continue
            if merged_spans and (joined := _merge_two(merged_spans[-1], span, near)):
                merged_spans[-1] = joined
            else:
                merged_spans.append(span)
        return tuple(merged_spans)


def build_lanes(
    trace: RankTrace, units: Mapping[int, model.RecordedUnit], cuts: Split, calls: HostCalls
) -> Iterator[model.Lanes]:
    """Yield the rows to draw (lanes) of the median step, and of the slowest step if it is another one.

    ``units`` maps segments of ``cuts`` to steps. ``calls`` has the long calls of each thread, by the label of their
    row. A step in which nothing ran on a device is left out; without steps, nothing is yielded.
    """
    if not units:
        return
    times = {at: model.duration_of(unit) for at, unit in units.items()}
    ran = [at for at, unit in units.items() if unit.device_ns] or [*units]
    pictures = {model.lower_median(ran, times.__getitem__): "median"}
    pictures.setdefault(max(times, key=times.__getitem__), "slowest")
    for at, why in pictures.items():
        if units[at].device_ns:
            window = _Window(trace, cuts, at, cuts.segments[at].leads, cuts.segments[at].ends)
            streams, launches = _streams_and_launches(window)
            host = {"step": _mark_spans(window), **dict(_call_rows(window, calls)), "launches": launches}
            host_rows = {name: spans for name, spans in host.items() if spans}
            yield model.Lanes(units[at].number, why, window.end - window.begin, streams, host_rows)


def _streams_and_launches(window: _Window) -> tuple[dict[str, tuple[model.Span, ...]], tuple[model.Span, ...]]:
    """Return stream → its spans in the window, and the launches in the window as spans of 1 ns.

    Neighbours too near to be told apart are merged. A span is ``of_step`` if the window's step launched it.
    """
    tasks, texts = window.trace.tasks, window.trace.names.texts
    streams: dict[str, list[model.Span | None]] = {}
    launched: list[tuple[int, bool]] = []
    for at in window.cuts.order:
        of_step = window.cuts.owner[at] == window.segment
        if window.begin <= tasks.launched[at] < window.end:
            launched.append((tasks.launched[at], of_step))
        if tasks.begin[at] < window.end and tasks.end[at] > window.begin:
            name, kind = texts[tasks.name[at]], model.KINDS[tasks.kind[at]]
            span = window.span(tasks.begin[at], tasks.end[at], kind, name, of_step=of_step)
            streams.setdefault(texts[tasks.stream[at]], []).append(span)
    launches = (window.span(time, time + 1, model.LAUNCH, "", of_step=of_step) for time, of_step in sorted(launched))
    return {stream: window.merge_near(spans) for stream, spans in streams.items()}, window.merge_near(launches)


def _mark_spans(window: _Window) -> tuple[model.Span, ...]:
    """Return the marks of all steps in the window as spans; the window's own step is flagged ``of_step``.

    Empty if the trace has no marks.
    """
    marks = (
        (at, segment, segment.mark)
        for at, segment in enumerate(window.cuts.segments)
        if segment.mark and window.cuts.family
    )
    return window.merge_near(
        window.span(piece.begin, min(mark.end, piece.end), model.MARK, mark.name, of_step=at == window.segment)
        for at, piece, mark in marks
    )


def _call_rows(window: _Window, calls: HostCalls) -> Iterator[tuple[str, tuple[model.Span, ...]]]:
    """Yield (label of a row, spans) of the outermost long calls in the window.

    ``calls`` maps a label to the calls of each thread. Of each label the two threads with most time get a row.
    """
    texts = window.trace.names.texts
    for kind, threads in calls.items():
        rows = []
        for columns in threads.values():
            spans, until = [], window.begin
            for begin, end, name in zip(columns.begin, columns.end, columns.name, strict=True):
                if end > until:
                    spans.append(window.span(max(begin, until), end, model.CALL, texts[name], of_step=True))
                    until = end
            rows.append(window.merge_near(spans))
        rows.sort(key=lambda row: -sum(span.ns for span in row))
        for number, row in enumerate(rows[:_THREADS]):
            yield f"{kind} {number + 1}" if number else kind, row


def _merge_two(last: model.Span, span: model.Span, near: int) -> model.Span | None:
    """Return two successive spans of a row as one; None if they must stay apart.

    They stay apart if their kinds differ, or if only one was launched in the step itself. They also do if they are over
    ``near`` ns apart, or if both are longer than 4 * ``near``.
    """
    alike = (last.kind, last.of_step) == (span.kind, span.of_step)
    if not alike or span.begin_ns - last.begin_ns - last.ns > near or min(last.ns, span.ns) > 4 * near:
        return None
    until = max(last.begin_ns + last.ns, span.begin_ns + span.ns)
    name = last.name if last.name == span.name else ""
    return model.Span(last.begin_ns, until - last.begin_ns, last.kind, name, last.of_step, last.count + 1)
