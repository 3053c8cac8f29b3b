"""The critical path of a step: walked from its end back to its start, always along the span that ended last.

Time that no span covers is that of the waiting process. The walk goes from the driver's phases to its calls, and on to
their executions on workers (works). In a rollout it goes to the last trajectory, its requests, and the iterations of
the engine that served them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from patcher.messages import Text
from patcher.timeline.files import IterationColumns, KeptSpan
from patcher.timeline.intervals import ENDLESS, Timed, TimeRange, by_start, covered, end_of, length, uncovered
from patcher.timeline.stalls import LASTING_US, WRITES_US
from patcher.timeline.step_records import DEEPEST, GENERATING, CallGroup, StepRecords

TOLERANCE_US = 3_000
"""Within this time, or `SHARE` of what they do, ranks arrive together."""

SHARE = 0.02

GAP_US = 20_000
"""Microseconds up to which a gap between two iterations is ignored; so is one of thrice the usual iteration."""

PAUSE = Text("rlpatch opens a recording window or saves a trace")
"""What rlpatch's own recorders do while they hold a process back."""

COLLECTION = Text("garbage collection")
"""What Python does while its garbage collector holds a process back."""

INIT_BUFFER = "init_buffer"
"""Name of the span in which a trainer makes a buffer and waits until its engine has opened it."""

UNWRITTEN_US = LASTING_US + WRITES_US
"""Microseconds until a span that goes on must have been written: before that, a stall does not show."""

T = TypeVar("T", bound=Timed)


class PathPiece(NamedTuple):
    """A piece of a critical path, in microseconds: a process and its activity.

    ``process`` is an index, None if all ranks arrived together or nothing is known. ``late`` is the delay of this
    process after the other ranks.
    """

    start: int
    end: int
    role: str
    kind: str
    what: str
    phase: str
    process: int | None
    late: int = 0


class Point(NamedTuple):
    """A start or an end in a work, in microseconds, and the innermost span that runs until then."""

    time: int
    label: tuple[bool, str, str]
    within: KeptSpan


def walk_back(parts: Iterable[T], low: int, high: int) -> Iterator[tuple[T | None, int, int]]:
    """Walk from ``high`` back to ``low``, and yield what was waited for: (part or None, start, end), the latest first.

    There are no gaps: None stands for time that no part covers. A part is waited for from its end back to its start; of
    several that run at a time, the one that began first counts. Times are in microseconds.
    """
    waiting = sorted((part for part in parts if part.start < high and end_of(part) > low), key=end_of)
    running: list[tuple[int, int, T]] = []
    at = high
    while at > low:
        while waiting and end_of(waiting[-1]) >= at:
            part = waiting.pop()
            heapq.heappush(running, (part.start, len(waiting), part))
        if running and running[0][0] < at:
            first = running[0][2]
            before = max(first.start, low)
            yield first, before, at
        else:
            before = end_of(waiting[-1]) if waiting else low
            yield None, before, at
        at = before


def critical_path(records: StepRecords) -> list[PathPiece]:
    """Return the pieces of a step's critical path, in order and without gaps: they sum to the step's length.

    Pauses of rlpatch's own recorders are pieces, too, and so are garbage collections.
    """
    walk = _Walk(records)
    roots = [root for root in records.children[None] if root.process == records.driver]
    walk.explain_parts(_with_groups(records, roots), records.start, records.end, None)
    pieces = (part for piece in reversed(walk.pieces) for part in _split_at_pauses(records, piece))
    return merged(part for piece in pieces for part in _split_at_collections(records, piece))


def _split_at_pauses(records: StepRecords, piece: PathPiece) -> Iterator[PathPiece]:
    """Yield a piece of the critical path without pauses in which rlpatch held its process back, and these pauses."""
    if piece.process is None:
        pauses = records.trainers_paused if piece.role == "trainer" else ()
    else:
        processes = [piece.process]
        if piece.role == "server":  # it waits for its engine
            processes += records.engines_of(piece.process)
        pauses = covered(pause for process in processes for pause in records.pauses.get(process, ()))
    for part, interrupts in _interrupted(piece, pauses):
        yield part._replace(role="rlpatch", kind="pause", what=PAUSE, late=0) if interrupts else part


def _split_at_collections(records: StepRecords, piece: PathPiece) -> Iterator[PathPiece]:
    """Yield a piece of the critical path without the garbage collections of its process, and these, in order."""
    collections: Sequence[TimeRange] = ()
    if piece.process is None:
        collections = records.trainers_collecting if piece.role == "trainer" else ()
    elif piece.kind != "pause":
        collections = records.collections.get(piece.process, ())
    for part, interrupts in _interrupted(piece, collections):
        yield part._replace(kind="gc", what=COLLECTION) if interrupts else part


def _interrupted(piece: PathPiece, ranges: Iterable[TimeRange]) -> Iterator[tuple[PathPiece, bool]]:
    """Yield the parts of ``piece`` in order, each with whether it lies in one of ``ranges``, which interrupt the piece.

    An interruption explains the piece's delay up to its own length; the rest stays with the first part.
    """
    inside = covered(ranges, piece.start, piece.end)
    at, late = piece.start, max(piece.late - length(inside), 0)
    explained = piece.late - late
    for start, end in inside:
        yield piece._replace(start=at, end=start, late=late), False
        by_this = min(explained, end - start)
        yield piece._replace(start=start, end=end, late=by_this), True
        at, late, explained = end, 0, explained - by_this
    yield piece._replace(start=at, late=late), False


def merged(pieces: Iterable[PathPiece]) -> list[PathPiece]:
    """Merge adjacent pieces that differ only in time and delay; delays are summed, and empty pieces dropped."""
    neighbours = list[PathPiece]()
    for piece in pieces:
        last = neighbours[-1] if neighbours else None
        if last is not None and last[2:7] == piece[2:7] and last.end == piece.start:
            neighbours[-1] = last._replace(end=piece.end, late=last.late + piece.late)
        elif piece.end > piece.start:
            neighbours.append(piece)
    return neighbours


def _with_groups(records: StepRecords, spans: Iterable[KeptSpan]) -> list[KeptSpan | CallGroup]:
    """Replace each call of the driver by its call group, if there is one."""
    return [records.groups.get(span.id, span) for span in spans]


class _Walk:
    """Walk from the end of a step back to its start.

    Methods explain the time from ``low`` to ``high`` (microseconds) by appending ``pieces`` of the path, the latest
    first. ``phase`` is the driver's at that time, and ``depth`` the number of spans around what is explained.
    """

    def __init__(self, records: StepRecords) -> None:
        self.records = records
        self.pieces = list[PathPiece]()
        self.phase = ""
        self.depth = 0

    def explain_parts(self, parts: Iterable[KeptSpan | CallGroup], low: int, high: int, span: KeptSpan | None) -> None:
        """Explain a time by what was waited for among ``parts``, else by ``span`` (None: the driver) around them."""
        for part, begin, end in walk_back(parts, low, high):
            if part is None:
                self.explain_uncovered(span, begin, end)
            elif isinstance(part, CallGroup):
                self.explain_call(part, begin, end)
            else:
                self.explain(part, begin, end)

    def explain(self, span: KeptSpan, low: int, high: int) -> None:
        """Explain a time in which the step waited for ``span``.

        Beyond `DEEPEST` levels, spans within are not named.
        """
        phase = self.phase
        self.depth += 1
        if self.depth > DEEPEST:
            self.explain_uncovered(span, low, high)
        else:
            if span.process == self.records.driver and span.kind == "phase":
                self.phase = span.name
            self._explain_by_kind(span, low, high)
        self.depth -= 1
        self.phase = phase

    def _explain_by_kind(self, span: KeptSpan, low: int, high: int) -> None:
        records = self.records
        inner = records.children_of(span)
        if span.process == records.driver:
            self.explain_parts(_with_groups(records, inner), low, high, span)
        elif span.kind == "serve":
            self.explain_serve(span, low, high)
        elif span.kind in ("sync", "sleep") and not inner:
            self.explain_sync(span, low, high)
        elif span.kind == "request":
            serves = (serve for serve in records.by_kind["serve"] if serve.amount == span.amount)
            self.explain_awaited(span, serves, "generate", low, high)
        elif span.kind == "reward" and records.waits_for_worker(span):
            self.explain_awaited(span, records.remote_rewards, span.name, low, high)
        else:
            self.explain_parts(inner, low, high, span)

    def explain_uncovered(self, span: KeptSpan | None, low: int, high: int) -> None:
        """Explain a time that no span within ``span`` covers.

        Time in which other processes worked for the span is attributed to them, and what remains to the span. For a
        call whose executions may be missing, what remains is not recorded. Without a span, it is time outside of the
        driver's phases.
        """
        records = self.records
        if span is None or (span.kind, span.name) == ("phase", "step"):
            first, last = records.phase_range
            what = Text("between phases")
            if high <= first:
                what = Text("before the first phase")
            elif low >= last:
                what = Text("after the last phase")
            role = "trainer" if records.roles[records.driver] == "trainer" else "driver"
            self.pieces.append(PathPiece(low, high, role, "gap", what, "", records.driver))
        elif span.process == records.driver:
            self._explain_wait_of_driver(span, low, high)
        elif span.kind in ("trajectory", "request", "phase"):
            rewards = (reward for reward in records.by_kind["reward"] if not records.waits_for_worker(reward))
            other_rewards = (
                reward for reward in rewards if reward.process == span.process and reward.parent != span.id
            )
            for cover, begin, end in walk_back(other_rewards, low, high):
                self.add_piece(cover or span, begin, end)
        else:
            self.add_piece(span, low, high)

    def _explain_wait_of_driver(self, span: KeptSpan, low: int, high: int) -> None:
        """Explain a time in ``span`` of the driver, without spans of its own, by what others did for it."""
        remote: list[KeptSpan | PathPiece] = [*self.records.awaited_spans(span)]
        if span.kind == "phase" and span.name in GENERATING:
            remote += [*self._waits_for_agents(span), *self._wait_for_trajectories(span, low, high)]
        for cover, begin, end in walk_back(remote, low, high):
            if isinstance(cover, PathPiece):
                self.pieces.append(cover._replace(start=begin, end=end))
            elif cover is not None:
                self.explain(cover, begin, end)
            elif span.kind == "call" and self.records.may_lack_works(span):
                self.add_unrecorded(span.name, begin, end)
            else:
                self.add_piece(span, begin, end)

    def _waits_for_agents(self, span: KeptSpan) -> Iterator[PathPiece]:
        """Yield a piece of the path for each agent loop: from the start of ``span`` until its first trajectory begins.

        In ``span`` the driver generates. An agent loop has no piece if it was already at work. If the driver called it
        late because the driver stood still, its piece begins with that call, and without a record of the call it has
        none.
        """
        records = self.records
        firsts = dict[int, KeptSpan]()
        for root in sorted(records.roots, key=by_start):
            if root.kind == "trajectory" and end_of(root) > span.start:
                firsts.setdefault(root.process, root)
        for process, first in firsts.items():
            batch = records.batch_around(first)
            called = min(max(batch.start, span.start), first.start) if batch else first.start
            late = records.sender_stood_still(span.process, process, span.start, called)
            begin = called if late else span.start
            if begin < first.start < end_of(span):
                what = _start_of(first._replace(name=first.kind)).name
                yield PathPiece(begin, first.start, "agent", first.kind, what, self.phase, process)

    def _wait_for_trajectories(self, span: KeptSpan, low: int, high: int) -> list[PathPiece]:
        """Return the pieces of the path from the end of the last trajectory until ``high``; [] for up to 20 ms.

        They are the padding and sending by the agent loop whose batch ends last, and the unpacking by the driver. Only
        trajectories that end between ``low`` and ``high`` count, in which the driver generates in ``span`` without
        spans of its own. Without batches it is one unrecorded piece; [] if the driver certainly stood still then.
        """
        records = self.records
        trajectories = [root for root in records.roots if root.kind == "trajectory" and low < end_of(root) <= high]
        last = max(map(end_of, trajectories), default=high)
        if high - last <= GAP_US:
            return []
        what = Text("processing after the last trajectory")
        batches = [batch for batch in records.by_kind["batch"] if last <= end_of(batch) <= high]
        if batches:
            batch = max(batches, key=end_of)
            trajectory_ends = (end_of(root) for root in trajectories if root.process == batch.process)
            start = max(trajectory_ends, default=last)
            call = Text("call {method}", batch.name)
            return [
                PathPiece(start, end_of(batch), "agent", batch.kind, what, self.phase, batch.process),
                PathPiece(end_of(batch), high, "driver", "call", call, self.phase, span.process),
            ]
        if records.certainly_stood_still(span.process, last, high):
            return []
        return [PathPiece(last, high, "unrecorded", "gap", what, self.phase, None)]

    def add_unrecorded(self, what: str, low: int, high: int) -> None:
        """Append a piece in which the step waited for ``what``, which nobody recorded."""
        self.pieces.append(PathPiece(low, high, "unrecorded", "gap", what, self.phase, None))

    def add_piece(self, span: KeptSpan, low: int, high: int, late: int = 0, *, all_ranks: bool = False) -> None:
        """Append a piece in which the step waited for ``span``.

        With ``all_ranks``, and for a trainer if the files of some ranks are missing, the piece names no process.
        """
        role = self.records.roles[span.process]
        of_trainer = {"driver": ("work", "unit", "wait"), "engine": ("work", "unit", "wait", "phase")}
        if span.kind in of_trainer.get(role, ()):  # driver or engine run in a trainer's process
            role = "trainer"
        role = {"reward": "reward", "serve": "server", "trajectory": "agent", "request": "agent"}.get(span.kind, role)
        role = "agent" if span.kind == "reward" and self.records.waits_for_worker(span) else role
        what = Text("call {method}", span.name) if span.kind == "call" else span.name or span.kind
        what = span.kind if span.kind in ("trajectory", "request") else what
        what = self.records.name_after_micro_batches(span, low) or what
        process = None if all_ranks or (role == "trainer" and self.records.partial) else span.process
        self.pieces.append(PathPiece(low, high, role, span.kind, what, self.phase, process, late))

    # ------------------------------------------------------------ rollout

    def explain_awaited(self, span: KeptSpan, receivers: Iterable[KeptSpan], name: str, low: int, high: int) -> None:
        """Explain a time in ``span``, a request or reward on which another process works.

        That work is the one of the spans ``receivers`` that ends last within ``span``. The time before it begins is
        attributed to it, too, unless the sender stood still. It is not recorded if requests of several replicas wait.
        If a load balancer chose the server, the time until it had done so is the load balancer's. If there is no
        receiver, the spans within a request are the pieces; else the time is not recorded, with ``name`` as its
        activity.
        """
        records = self.records
        receiver = max(records.within(span, receivers), key=end_of, default=None)
        if receiver is None:
            if span.kind == "request" and (inner := records.children_of(span)):
                self.explain_parts(inner, low, high, span)
            else:
                self.add_unrecorded(name, low, high)
            return
        begin, end = (min(max(time, low), high) for time in (receiver.start, end_of(receiver)))
        self.explain_uncovered(span, end, high)
        self.explain(receiver, begin, end)
        route = records.routing_of(span, receiver)
        sent = end_of(route) if route else span.start
        routed = min(max(sent, low), begin)
        self._explain_hand_over(span, receiver, sent, routed, begin)
        if route:
            routing = min(max(route.start, low), routed)
            self.add_piece(route, routing, routed)
            self._explain_hand_over(span, route, span.start, low, routing)

    def _explain_hand_over(self, span: KeptSpan, receiver: KeptSpan, sent: int, low: int, high: int) -> None:
        """Explain the time until ``receiver`` begins what a request or reward (``span``) ``sent``."""
        records = self.records
        if records.sender_stood_still(span.process, receiver.process, sent, receiver.start):
            self.explain_uncovered(span, low, high)
        elif (
            receiver.kind != "route"
            and receiver.start - sent > GAP_US
            and records.waits_for_several_replicas(receiver, sent)
        ):
            self.add_unrecorded(_start_of(receiver).name, low, high)
        else:
            self.add_piece(_start_of(receiver), low, high)

    def explain_serve(self, serve: KeptSpan, low: int, high: int) -> None:
        """Explain a time in which the step waited for ``serve``, a server's handling of a request.

        The iterations of its replica are pieces. A gap between them is attributed to the request if it touches ``low``
        or ``high``, or if the replica has no other request; else to the engine. If the replica has no other request in
        the gap before a prefill, the request waited for that prefill from ``low`` on. Without a file of the engine, the
        time is not recorded.
        """
        records = self.records
        engines = records.engines_of(serve.process)
        if not engines:
            self.add_unrecorded("generate", low, high)
            return
        after = ""
        for piece, begin, end in walk_back(self._iterations(engines, low, high), low, high):
            if piece is not None:
                self.pieces.append(piece._replace(start=begin, end=end))
                after = piece.what
                continue
            alone = records.is_alone(serve, begin, end)
            if alone and after == "prefill":
                # Nothing else is there that could be prefilled behind the gap: until then the request was kept back,
                # whatever its replica did for others.
                self.add_piece(serve, low, end)
                return
            if begin <= low or end >= high or alone:
                self.add_piece(serve, begin, end)
            else:
                process = engines[0] if len(engines) == 1 else None
                self.pieces.append(PathPiece(begin, end, "engine", "gap", Text("no iteration"), self.phase, process))

    def _iterations(self, engines: Iterable[int], low: int, high: int) -> list[PathPiece]:
        """Return the iterations of ``engines`` (process indices) as pieces of the path."""
        columns = self.records.iterations
        return [piece for at in engines for piece in iteration_pieces(columns[at], low, high, self.phase, at)]

    # ------------------------------------------------------------ weight sync

    def explain_sync(self, span: KeptSpan, low: int, high: int, late: int = 0, *, all_ranks: bool = False) -> None:
        """Explain a time in ``span``, a weight sync or sleep without spans in it.

        Time in which engines sync is attributed to them, and so is a trainer's wait until they begin to receive. A
        server also waits for the iterations of its engines. What remains is attributed to the span, and everything if
        it is an engine's. ``late`` and ``all_ranks`` are those of `add_piece`, for the span's own pieces.
        """
        records, role = self.records, self.records.roles[span.process]
        parts = list[KeptSpan | PathPiece]()
        if role != "engine":
            parts += records.within(span, records.engine_syncs)
        if role == "trainer":
            parts += self._receiver_wait(span)
            parts += self._receiver_stalls(span)
            parts += self._wait_for_clearing(span)
            parts += [*self._waits_after_gathering(span, parts)]
        if role == "server":
            parts += self._iterations(records.engines_of(span.process), low, high)
        for part, begin, end in walk_back(parts, low, high):
            if part is None:
                self.add_piece(span, begin, end, min(late, end - begin), all_ranks=all_ranks)
                late = max(late - (end - begin), 0)
            elif isinstance(part, PathPiece):
                self.pieces.append(part._replace(start=begin, end=end))
            else:
                self.add_piece(part, begin, end)

    def _receiver_wait(self, span: KeptSpan) -> list[PathPiece]:
        """Return the piece in which ``span``, a trainer's weight sync, waits for the last engine to begin receiving."""
        receivers = sorted(self.records.within(span, self.records.receivers), key=by_start)
        return self._wait_until_begun(span, receivers[-1], receivers[:-1], span.start, "engine") if receivers else []

    def _wait_until_begun(
        self, sync: KeptSpan, last: KeptSpan, other_spans: Iterable[KeptSpan], since: int, role: str
    ) -> list[PathPiece]:
        """Return the piece from ``since`` until ``last`` begins, the last of the spans that ``sync`` waits for.

        Its delay is the time since the latest of ``other_spans`` began, 0 without any. [] if the trainer stood still.
        """
        if since >= last.start or self.records.sender_stood_still(sync.process, last.process, since, last.start):
            return []
        before = max((other.start for other in other_spans), default=last.start)
        return [_wait_for_start(last, role, since, self.phase, max(last.start - before, 0))]

    def _receiver_stalls(self, span: KeptSpan) -> Iterator[PathPiece]:
        """Yield the pieces in which ``span``, a trainer's weight sync, waits for an engine that stands still.

        A piece lasts from the start of a receiver until it loads its first weights. The engine certainly ran nothing in
        most of that time, as far as this shows, and in more of it than the trainer. The piece's delay is its length.
        """
        records = self.records
        for receiver in records.within(span, records.receivers):
            loads = min(records.inner_syncs(receiver), key=by_start)
            low, high = receiver.start, loads.start
            stalled = records.stalled_us(receiver.process, low, high)
            if stalled > records.stalled_us(span.process, low, high) and stalled * 2 > high - low - UNWRITTEN_US:
                yield _wait_for_start(loads, "engine", low, self.phase, high - low)

    def _wait_for_clearing(self, span: KeptSpan) -> list[KeptSpan | PathPiece]:
        """Return what ``span``, a trainer's weight sync, waits for at its end: a server clears its KV cache.

        [] if the trainer's sending or the clearing is not recorded.
        """
        records = self.records
        syncs = records.within(span, records.by_kind["sync"])
        clears = [sync for sync in syncs if records.roles[sync.process] == "server"]
        sent, last = records.end_of_sending(span), max(clears, key=end_of, default=None)
        if sent is None or last is None or end_of(last) <= sent:
            return []
        received = (end_of(receiver) for receiver in records.within(span, records.receivers))
        since = max([sent, *(end for end in received if end <= last.start)])
        other_clears = (clear for clear in clears if clear.name == last.name and clear.process != last.process)
        return [last, *self._wait_until_begun(span, last, other_clears, since, "server")]

    def _waits_after_gathering(self, span: KeptSpan, parts: Iterable[KeptSpan | PathPiece]) -> Iterator[PathPiece]:
        """Yield unrecorded pieces for the waits of ``span``, a trainer's weight sync, after it has gathered weights.

        They are the gaps of more than 20 ms between ``parts``, which are what engines and servers do in it, also while
        the trainer waits until its engine has opened a buffer. Not among them are gaps in which the trainer certainly
        stood still, and the time from the end of receiving until it has freed its buffers, if that is recorded.
        """
        records = self.records
        receivers = records.within(span, records.receivers)
        if not receivers:
            return
        received, sent = max(map(end_of, receivers)), records.end_of_sending(span)
        since = min(records.end_of_gathering(span), received)
        frees = [TimeRange(received, sent)] if sent is not None and received < sent else []
        waits: list[tuple[int, int, str]] = [(since, end_of(span), Text("end of {activity}", span.name))]
        buffers = (send for send in records.sends_of(span) if send.name == INIT_BUFFER)
        waits += [(buffer.start, end_of(buffer), buffer.name) for buffer in buffers]
        for low, high, what in waits:
            for gap in uncovered(covered([*parts, *frees], low, high), low, high):
                if gap.end - gap.start > GAP_US and not records.certainly_stood_still(span.process, gap.start, gap.end):
                    yield PathPiece(gap.start, gap.end, "unrecorded", "gap", what, self.phase, None)

    # ------------------------------------------------------------ training

    def explain_call(self, group: CallGroup, low: int, high: int) -> None:
        """Explain a time in a call of the driver by its executions on all ranks (``group``).

        If all executions have the same sequence of spans, the last rank to arrive at each point of it counts. Else only
        the last rank to finish counts, and the time before it begins is its late start. Time after the last execution
        is attributed to the call itself.
        """
        last = max(reversed(group.works), key=end_of)
        ends = max(low, min(high, end_of(last)))
        if ends < high:
            self.explain_uncovered(group.call, ends, high)
        courses = [[*self._points(work, work)] for work in group.works]
        labels = [[point.label for point in course] for course in courses]
        several = len(group.works) > 1
        if several and all(label == labels[0] for label in labels):
            self._explain_lockstep(group, courses, low, ends)
            return
        begin = min(max(low, last.start), ends)
        before = len(self.pieces)
        self.explain(last, begin, ends)
        if several:
            self._spread_delay(group, before, begin, ends)
        self._explain_start(group, last, low, begin, all_ranks=several)

    def _explain_start(
        self, group: CallGroup, last: KeptSpan, low: int, high: int, late: int = 0, *, all_ranks: bool
    ) -> None:
        """Explain the time until ``last``, the last of a call's executions to count, begins.

        If several ranks begin late, the time before the first of them is the driver's, as it sends the call to all of
        them. That begins once the ranks have ended earlier executions, and ends with the call: one that returned a
        future is only queued. ``late`` and ``all_ranks`` are those of `add_piece`.
        """
        first = min(work.start for work in group.works)
        several = len(group.works) > 1 and group.call.kind == "call"
        free = sent = low
        if several and not self.records.may_lack_works(group.call):
            free = min(max(self.records.end_of_earlier_works(group.works), low), high)
            sent = max(min(first, end_of(group.call), high), free)
        if sent < high:
            self.add_piece(_start_of(last), sent, high, late, all_ranks=all_ranks)
        if free < sent:
            self.add_piece(group.call, free, sent)
        if low < free:
            self.add_piece(_start_of(last), low, free, all_ranks=all_ranks)

    def _points(self, work: KeptSpan, within: KeptSpan, depth: int = 0) -> Iterator[Point]:
        """Yield the starts and ends of ``work``, which lies ``within`` a span, and of all spans in it, in order."""
        yield Point(work.start, (False, work.kind, work.name), within)
        if depth + 1 < DEEPEST:
            for child in sorted(self.records.children_of(work), key=by_start):
                yield from self._points(child, work, depth + 1)
        yield Point(end_of(work), (True, work.kind, work.name), work)

    def _explain_lockstep(self, group: CallGroup, courses: Sequence[Sequence[Point]], low: int, high: int) -> None:
        """Explain a time in executions that pass the same points on all ranks, with a piece for each point.

        ``courses`` has the points of each execution of ``group``. The piece before a point names the last rank to
        arrive at it; if all arrive together, it names none. A delay that a rank had at the point before does not count
        again. If a collective lets ranks end together, the rank that worked longest without waiting counts.
        """
        room = self._tolerance(end_of(group) - group.start)
        stretches: list[tuple[int, int, KeptSpan, int, bool]] = []
        before = group.start
        lag: dict[int, int] = {}
        earlier: tuple[Point, ...] = ()
        for points in zip(*courses, strict=True):
            last, behind = _largest_and_lead([point.time for point in points], room)
            at = max(points[last].time, before)
            late = max(behind - lag.get(last, 0), 0)
            alone = behind > 0
            lag = {last: behind} if alone else {}
            is_leaf = earlier and points[0].label[0] and not earlier[0].label[0]
            if is_leaf and (work := longest_work([point.within for point in points])):
                late = work[1] if work[1] > room else 0
                last, alone = (work[0], True) if late else (last, alone)
            stretches.append((before, at, points[last].within, late, not alone))
            before, earlier = at, points
        for index, (begin, end, span, late, together) in reversed([*enumerate(stretches)]):
            if begin >= high or end <= low or end <= begin:
                continue
            begin, end = max(begin, low), min(end, high)
            if index == 0:
                self._explain_start(group, span, begin, end, late, all_ranks=together)
                continue
            add = self.explain_sync if span.kind in ("sync", "sleep") else self.add_piece
            add(span, begin, end, late, all_ranks=together)

    def _spread_delay(self, group: CallGroup, first: int, low: int, high: int) -> None:
        """Divide the delay of the last rank of ``group`` to finish among ``pieces`` from index ``first`` on, by length.

        If the last two of the ranks finish together, the pieces get no delay and name no process.
        """
        before, last = sorted(map(end_of, group.works))[-2:]
        late = last - before if last - before > self._tolerance(last - group.start) else 0
        for at, piece in enumerate(self.pieces[first:], first):
            share = late * (piece.end - piece.start) // max(high - low, 1)
            self.pieces[at] = piece._replace(process=piece.process if late else None, late=share)

    def _tolerance(self, us: int) -> int:
        """Return within how many microseconds ranks arrive together after works of ``us`` microseconds."""
        return max(TOLERANCE_US, int(SHARE * min(us, ENDLESS)), self.records.tolerance)


def _largest_and_lead(values: Sequence[int], tolerance: int) -> tuple[int, int]:
    """Return the index of the largest value, and by how much it exceeds the median of the other values.

    This lead is 0 if the next largest is within ``tolerance``.
    """
    index = max(range(len(values)), key=values.__getitem__)
    lower = sorted(value for at, value in enumerate(values) if at != index)
    return index, values[index] - lower[len(lower) // 2] if values[index] - lower[-1] > tolerance else 0


def work_without_waits(spans: Sequence[KeptSpan]) -> list[int] | None:
    """Return the microseconds of each span without those in which it waited for other ranks in a collective.

    None if the waits of any span are unknown.
    """
    waits = [span.waited for span in spans if span.waited is not None]
    if len(waits) < len(spans):
        return None
    return [end_of(span) - span.start - waited for span, waited in zip(spans, waits, strict=True)]


def longest_work(spans: Sequence[KeptSpan]) -> tuple[int, int] | None:
    """Return the index of the span with the longest work, and its lead over the next one in microseconds.

    The recorder misses waits in C++, such as those for a rank that begins later. So the lead is also computed without
    the time before all spans have begun, and the smaller lead counts. It is 0 if another span leads then. None if the
    waits of any span are unknown, or for fewer than two spans.
    """
    work = work_without_waits(spans)
    if work is None or len(work) < 2:
        return None
    begun = max(span.start for span in spans)
    leads = []
    for lengths in (work, [us - (begun - span.start) for us, span in zip(work, spans, strict=True)]):
        *_, (before, _), (most, index) = sorted((us, -at) for at, us in enumerate(lengths))
        leads.append((-index, most - before))
    (longest, lead), (still, least) = leads
    return longest, min(lead, least) if longest == still else 0


def _start_of(work: KeptSpan) -> KeptSpan:
    """Return a copy of a work for the time before it, named ``start of`` the work."""
    return work._replace(name=Text("start of {activity}", work.name))


def _wait_for_start(span: KeptSpan, role: str, since: int, phase: str, late: int) -> PathPiece:
    """Return the piece of the path from ``since`` until ``span`` begins, which its process is to blame for."""
    return PathPiece(since, span.start, role, span.kind, _start_of(span).name, phase, span.process, late)


def iteration_pieces(columns: IterationColumns, low: int, high: int, phase: str, process: int) -> list[PathPiece]:
    """Return the iterations of an engine around ``low`` to ``high`` (microseconds) as pieces of the path, in order.

    The first may begin, or even end, before ``low``, and the last may end after ``high``: nothing is cut off. An
    iteration with at most one token per request is a decode step; any other is a prefill, also one with speculative
    tokens. Neighbours of the same kind with small gaps between them are one piece; a small gap before one of the other
    kind joins the piece before it.
    """
    first = max(bisect_left(columns.start, low) - 1, 0)
    last = bisect_left(columns.start, high)
    room = largest_joined_gap(columns, first, last)
    pieces = list[PathPiece]()
    for at in range(first, last):
        begin, end = columns.start[at], columns.end[at]
        piece = PathPiece(begin, end, "engine", "iteration", "decode", phase, process)
        if columns.tokens[at] > columns.requests[at]:
            piece = piece._replace(what="prefill")
        before = pieces[-1] if pieces else None
        if before is not None and begin - before.end <= room:
            if before.what == piece.what:
                pieces[-1] = before._replace(end=max(end, before.end))
                continue
            pieces[-1] = before._replace(end=begin if begin > before.start else before.end)
        pieces.append(piece)
    return pieces


def largest_joined_gap(columns: IterationColumns, first: int, last: int) -> int:
    """Return the largest gap, in microseconds, between two iterations of an engine that still count as one piece.

    It is three times the median length of iterations ``first`` to ``last`` (exclusive), and at least 20 ms, also
    without any.
    """
    lengths = sorted(columns.end[at] - columns.start[at] for at in range(first, min(last, first + 4096)))
    return max(GAP_US, 3 * lengths[len(lengths) // 2]) if lengths else GAP_US
