"""The clocks of several machines, aligned by events whose order is known.

A method cannot begin on a worker before the driver called it, nor can a server begin a request before it was sent. If
the caller waits for the answer, the call ends after the method or request. Each such pair bounds how far two clocks are
apart. All bounds between machines are combined, and the middle of the narrowest range is taken.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product, starmap, takewhile
from typing import NamedTuple

from patcher.messages import Text
from patcher.timeline.files import KeptSpan, Reader
from patcher.timeline.intervals import ENDLESS, TimeRange, by_start, covered
from patcher.timeline.model import Clock
from patcher.timeline.runs import Process
from patcher.timeline.step_records import calls_for

MOST = 50_000
"""Most spans of a process that are read: enough for a bound, however long the run is."""

SLACK_US = 1_000
"""Microseconds by which bounds may contradict each other, because two clocks are never read at the same moment."""


FEWEST = 3
"""Rollouts that must agree on how far two clocks are apart."""

_EndedTimes = Mapping[str, Sequence[tuple[int, int]]]
"""Start and end of spans in microseconds, by boot id."""

_SpansByProcess = Mapping[tuple[str, int], list[KeptSpan]]
"""Spans by boot id and index of their process."""


class ClockBound(NamedTuple):
    """Bound on two clocks: ``offset[later] - offset[earlier] >= least``.

    ``earlier`` and ``later`` are boot ids; times are in microseconds.
    """

    earlier: str
    later: str
    least: int


class Offset(NamedTuple):
    """Offset in microseconds to add to a clock, its error (None: unknown), and the source.

    ``contradicts`` tells that the bounds do not meet.
    """

    offset: int
    error: int | None
    source: str
    contradicts: bool = False


class Alignment(NamedTuple):
    """Offset to add to each clock, in microseconds by boot id, and a description of each clock."""

    offsets: Mapping[str, int]
    clocks: tuple[Clock, ...]


def align(processes: Sequence[Process], reference: int) -> Alignment:
    """Align the clocks of all ``processes`` to that of the process with the index ``reference``.

    With several machines, this reads the processes' files.
    """
    newest, hosts = dict[str, tuple[int, int]](), defaultdict[str, dict[str, None]](dict)
    for head in (process.head for process in processes):
        newest[head.boot] = max(newest.get(head.boot, head.clocks), head.clocks)
        hosts[head.boot][head.host] = None
    walls = {boot: wall - mono for boot, (mono, wall) in newest.items()}
    home = processes[reference].head.boot
    apart = {boot: wall - walls[home] for boot, wall in walls.items()}
    offsets = solve_offsets(clock_bounds(processes) if len(walls) > 1 else (), home, apart)
    clocks = []
    for boot, (offset, error, source, contradicts) in offsets.items():
        seconds = None if error is None else error / 1e6
        clocks.append(Clock(tuple(hosts[boot]), (apart[boot] - offset) / 1e6, seconds, source, contradicts))
    return Alignment({boot: offset.offset for boot, offset in offsets.items()}, tuple(clocks))


def solve_offsets(bounds: Iterable[ClockBound], home: str, walls: Mapping[str, int]) -> dict[str, Offset]:
    """Return boot id → the offset to add to a machine's clock to get that of the machine ``home``, with its error.

    The offset is the middle of the range that all ``bounds`` together leave, and is marked if they contradict each
    other. ``walls`` has boot id → the offset in microseconds that a comparison of the wall clocks gives. Without a
    bound on one side this offset is used, moved into the range, with an unknown error.
    """
    edges: dict[tuple[str, str], int] = {}
    for earlier, later, least in bounds:
        edges[earlier, later] = max(edges.get((earlier, later), least), least)
    low = _longest_paths(edges, home, walls)
    high = _longest_paths({(later, earlier): least for (earlier, later), least in edges.items()}, home, walls)
    offsets: dict[str, Offset] = {}
    for boot, wall in walls.items():
        below, above = low.get(boot, -ENDLESS), -high.get(boot, -ENDLESS)
        if boot == home:
            offsets[boot] = Offset(0, 0, Text("same clock"))
        elif boot in low and boot in high:
            offsets[boot] = Offset(
                (below + above) // 2, abs(above - below) // 2, "causality", above - below < -SLACK_US
            )
        else:
            offsets[boot] = Offset(min(max(wall, below), above), None, Text("wall clock"))
    return offsets


def _longest_paths(edges: Mapping[tuple[str, str], int], home: str, boots: Iterable[str]) -> dict[str, int]:
    """Return boot id → the longest path from ``home`` to it in a graph of clocks, in microseconds.

    ``edges`` has the length of each edge, a bound from one clock to another. Clocks without a path are absent.
    """
    lengths = {home: 0}
    for _ in boots:  # a longer way has a circle, which is a contradiction
        for (begin, end), length in edges.items():
            longer = begin in lengths and lengths[begin] + length > lengths.get(end, -ENDLESS)
            if longer and end != home:
                lengths[end] = lengths[begin] + length
    return lengths


def clock_bounds(processes: Sequence[Process]) -> Iterator[ClockBound]:
    """Read the files of ``processes``, and yield bounds on how far the clocks of any two of their machines are apart.

    They come from events in a known order: a driver's call and the method that it runs on a worker, a sent request and
    its handling by a server, and the first and last request of a rollout.
    """
    by_kind: dict[str, dict[str, _SpansByProcess]] = {
        kind: defaultdict(lambda: defaultdict(list)) for kind in ("call", "work", "request", "serve")
    }
    for at, process in enumerate(processes):
        for span in _read_spans(process, at, by_kind):
            key = span.name if span.kind in ("call", "work") else str(span.amount)
            if span.kind != "work" or not span.parent:
                by_kind[span.kind][key][process.head.boot, at].append(span)
    for (name, by_driver), (method, by_worker) in product(by_kind["call"].items(), by_kind["work"].items()):
        pairs = product(by_driver.items(), by_worker.items()) if calls_for(name, method) else ()
        for ((here, _), calls), ((there, _), works) in pairs:
            if here != there and len(calls) == len(works):
                yield from _bounds_from_calls(here, there, calls, works)
    for amount, by_agent in by_kind["request"].items():
        yield from _bounds_from_requests(by_agent, by_kind["serve"].get(amount, {}))
    yield from _bounds_from_rollouts(_ended_times(by_kind["request"].values()), _ended_times(by_kind["serve"].values()))


def _read_spans(process: Process, index: int, kinds: Iterable[str]) -> Iterator[KeptSpan]:
    """Read a process's files, and yield its spans of ``kinds`` that have ended, with times of the process's own clock.

    Reading ends with the block that completes 50,000 such spans (`MOST`).
    """
    if not any(part.kinds & {*kinds} for part in process.parts):
        return
    reader, count = Reader(process.paths, index), 0
    while count < MOST and reader.read_block():
        for span in reader.spans:
            if span.kind in kinds:
                count += 1
                yield span
        reader.spans.clear()
        reader.iterations.forget(len(reader.iterations))


def _bounds_from_calls(
    here: str, there: str, calls: Iterable[KeptSpan], works: Iterable[KeptSpan]
) -> Iterator[ClockBound]:
    """Yield clock bounds from calls on machine ``here`` and the executions (``works``) that they started on ``there``.

    Calls and executions are of one method, equally many, and paired in order of start. An execution starts after its
    call. It also ends before its call, but if any call is too short to have waited, no bound uses the ends.
    """
    pairs = list(zip(sorted(calls, key=by_start), sorted(works, key=by_start), strict=True))
    for call, work in pairs:
        yield ClockBound(here, there, call.start - work.start)
    ended = [(call, work, call.end, work.end) for call, work in pairs if call.end is not None and work.end is not None]
    # A call that gives a future ends at once; one that waits is never shorter than what it waits for.
    if all(call_end - call.start >= work_end - work.start for call, work, call_end, work_end in ended):
        for _, _, call_end, work_end in ended:
            yield ClockBound(there, here, work_end - call_end)


def _bounds_from_requests(sent_spans: _SpansByProcess, serve_spans: _SpansByProcess) -> Iterator[ClockBound]:
    """Yield clock bounds from requests with the same number of prompt tokens, as senders and servers recorded them.

    Nothing is yielded unless one machine sent them all, and servers handled as many. It is unknown which handling
    belongs to which request. But on each serving machine the nth handling starts after the nth request was sent, and
    the nth from the end ends before the nth from the end of the requests.
    """
    clients = {boot for boot, _ in sent_spans}
    sent, served = _ended_times([sent_spans]), _ended_times([serve_spans])
    if len(clients) != 1 or sum(map(len, sent.values())) != sum(map(len, served.values())):
        return
    (here,) = clients
    starts, ends = (sorted(moments) for moments in zip(*sent[here], strict=True))
    for there, services in served.items():
        if there != here:
            first, last = (sorted(moments) for moments in zip(*services, strict=True))
            for request, service in zip(starts, first, strict=False):
                yield ClockBound(here, there, request - service)
            for request, service in zip(reversed(ends), reversed(last), strict=False):
                yield ClockBound(there, here, service - request)


def _bounds_from_rollouts(sent: _EndedTimes, served: _EndedTimes) -> Iterator[ClockBound]:
    """Yield clock bounds from whole rollouts, if one machine ``sent`` all requests that other machines ``served``.

    The nth busy period of each machine is the nth rollout, until the numbers of sent and served requests differ.
    Servers are busy only between a rollout's first request and its last answer.
    """
    if len(sent) != 1:
        return
    (here,) = sent
    busy = {boot: _busy_periods(spans) for boot, spans in served.items()}
    rollouts = zip(_busy_periods(sent[here]), *busy.values(), strict=False)
    whole = list(takewhile(lambda periods: periods[0].requests == sum(part.requests for part in periods[1:]), rollouts))
    for at, there in enumerate(busy, 1):
        if there == here or len(whole) < FEWEST:
            continue
        least = max(requests[0].start - requests[at].start for requests in whole)
        most = min(requests[0].end - requests[at].end for requests in whole)
        if least <= most + SLACK_US:
            yield ClockBound(here, there, least)
            yield ClockBound(there, here, -most)


class _BusyPeriod(NamedTuple):
    """Time in which requests are alive without a break, in microseconds, and their number."""

    start: int
    end: int
    requests: int


def _busy_periods(spans: Sequence[tuple[int, int]]) -> list[_BusyPeriod]:
    """Return the periods in which at least one request is alive, in order, each with the number of its requests."""
    starts = sorted(start for start, _ in spans)
    return [
        _BusyPeriod(start, end, bisect_right(starts, end) - bisect_left(starts, start))
        for start, end in covered(starmap(TimeRange, spans))
    ]


def _ended_times(spans: Iterable[_SpansByProcess]) -> _EndedTimes:
    """Return boot id → (start, end) in microseconds of each of its spans that have ended."""
    ended = defaultdict[str, list[tuple[int, int]]](list)
    for by_place in spans:
        for (boot, _), several in by_place.items():
            ended[boot] += [(span.start, span.end) for span in several if span.end is not None]
    return ended
