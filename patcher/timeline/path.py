"""The critical path of a step: walked from its end back to its start, always along the span that ended last.

Time that no span covers is that of the waiting process. The walk goes from the driver's phases to its calls, and on to
their executions on workers (works). In a rollout it goes to the last trajectory, its requests, and the iterations of
the engine that served them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeVar

from patcher.messages import Text
from patcher.timeline.files import IterationColumns, KeptSpan
from patcher.timeline.intervals import ENDLESS, Timed, TimeRange, by_start, covered, end_of, length, uncovered
from patcher.timeline.stalls import LASTING_US, WRITES_US

DEEPEST = 64
"""Most levels of spans within each other; deeper spans count as part of the outer ones."""

TOLERANCE_US = 3_000
"""Within this time, or `SHARE` of what they do, ranks arrive together."""

SHARE = 0.02

ABOUT_AS_LONG = 0.9
"""From this share of the longer of two silences on, both are about as long."""

GAP_US = 20_000
"""Microseconds up to which a gap between two iterations is ignored; so is one of thrice the usual iteration."""

GENERATING = (
    "gen", "generate", "generate_sequences", "generate_samples", "rollout", "generation", "wait_prev_gen", "gen_seq",
)  # fmt: skip
"""Names in frameworks of the phase in which the driver waits for trajectories, even if these began before it."""

PAUSE = Text("rlpatch opens a recording window or saves a trace")
"""What rlpatch's own recorders do while they hold a process back."""

COLLECTION = Text("garbage collection")
"""What Python does while its garbage collector holds a process back."""

INIT_BUFFER = "init_buffer"
"""Name of the span in which a trainer makes a buffer and waits until its engine has opened it."""

BESIDE = ("batch", "send")
"""Kinds of spans that are no level of their own: what lies within belongs to the span around them."""

UNWRITTEN_US = LASTING_US + WRITES_US
"""Microseconds until a span that goes on must have been written: before that, a stall does not show."""

SENT_TOGETHER = 10_000
"""Microseconds between two calls that a driver sends out one after the other, without waiting for the first."""

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


class CallGroup(NamedTuple):
    """A call of the driver with the works that it caused, one on each rank; ``end`` is the last end of these.

    If each rank runs by itself (SPMD), ``call`` is the driver's own work, grouped with the same-numbered works of other
    ranks.
    """

    start: int
    end: int | None
    call: KeptSpan
    works: tuple[KeptSpan, ...]


class Point(NamedTuple):
    """A start or an end in a work, in microseconds, and the innermost span that runs until then."""

    time: int
    label: tuple[bool, str, str]
    within: KeptSpan


def calls_for(call: str, work: str) -> bool:
    """Tell whether a call named ``call`` may run the method ``work``: a worker group may prefix the name."""
    return call == work or call.endswith(f"_{work}")


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


@dataclass(frozen=True)
class StepRecords:
    """Records of all processes around one step, ``start`` to ``end`` in microseconds.

    ``driver`` is the index of the process whose marks end the steps, ``replica_of`` has the replica of each process.
    ``tolerance`` is the possible error of the clocks. ``trainers_known`` tells whether trainers have files at all,
    ``partial`` that some ranks have none. ``expected`` is the number of works that each call of the driver had in other
    steps. ``pauses`` are the times in which rlpatch's own recorders held a process back, in order, by its index,
    ``collections`` those in which Python's garbage collector did, and ``stalls`` those in which it certainly ran
    nothing.
    """

    start: int
    end: int
    driver: int
    spans: Sequence[KeptSpan]
    iterations: Mapping[int, IterationColumns]
    roles: Sequence[str]
    replica_of: Sequence[int | None]
    tolerance: int = 1_000
    trainers_known: bool = True
    partial: bool = False
    expected: Mapping[str, int] = field(default_factory=dict)
    pauses: Mapping[int, Sequence[TimeRange]] = field(default_factory=dict)
    stalls: Mapping[int, Sequence[TimeRange]] = field(default_factory=dict)
    collections: Mapping[int, Sequence[TimeRange]] = field(default_factory=dict)

    @cached_property
    def remote_rewards(self) -> Sequence[KeptSpan]:
        """Return the rewards that reward workers compute."""
        return [reward for reward in self.by_kind["reward"] if self.roles[reward.process] == "reward"]

    def waits_for_worker(self, reward: KeptSpan) -> bool:
        """Tell whether ``reward`` of an agent loop only waits for a reward worker, whose span or a phase lies in it."""
        if self.roles[reward.process] == "reward":
            return False
        has_phase = any(child.kind == "phase" for child in self.children_of(reward))
        return has_phase or bool(self.within(reward, self.remote_rewards))

    def sender_stood_still(self, sender: int, receiver: int, low: int, high: int) -> bool:
        """Tell whether a message was handled late because its sender, rather than its receiver, stood still.

        ``sender`` and ``receiver`` are indices of processes. The message's span begins at ``low``, and its handling at
        ``high`` (microseconds). A process stands still if it certainly ran nothing in most of that time, or started and
        ended no span in most of it. False if both stood still about as long.
        """
        certain = [self.stalled(process, low, high) for process in (sender, receiver)]
        if max(certain) * 2 > high - low:
            return certain[0] > certain[1]
        of_sender, of_receiver = (self._longest_silence(process, low, high) for process in (sender, receiver))
        return of_sender * 2 > high - low and of_receiver < ABOUT_AS_LONG * of_sender

    def _longest_silence(self, process: int, low: int, high: int) -> int:
        """Return the longest time from ``low`` to ``high`` (µs) in which no span of ``process`` starts or ends."""
        moments = self._span_edges[process]
        inside = moments[bisect_right(moments, low) : bisect_left(moments, high)]
        return max(later - earlier for earlier, later in pairwise([low, *inside, high]))

    @cached_property
    def _span_edges(self) -> Mapping[int, Sequence[int]]:
        """Return process index → the starts and ends of all its spans, in microseconds, sorted; [] without spans."""
        moments = defaultdict[int, list[int]](list)
        for span in self.spans:
            moments[span.process] += [span.start, end_of(span)]
        return defaultdict(list, {process: sorted(times) for process, times in moments.items()})

    @staticmethod
    def _overlap(ranges: Iterable[TimeRange], low: int, high: int) -> int:
        return length(covered(ranges, low, high))

    def paused(self, process: int, start: int, end: int) -> int:
        """Return for how many microseconds of ``start`` to ``end`` rlpatch held a process back."""
        return self._overlap(self.pauses.get(process, ()), start, end)

    def trainers_held_back(self, ranges: Mapping[int, Sequence[TimeRange]]) -> Sequence[TimeRange]:
        """Return the times of the step in which all trainers at once were held back, by ``ranges`` of each process."""
        trainers = [process for process, role in enumerate(self.roles) if role == "trainer"]
        running = [uncovered(ranges.get(process, ()), self.start, self.end) for process in trainers]
        together = covered(part for parts in running for part in parts)
        return uncovered(together, self.start, self.end) if trainers else []

    @cached_property
    def trainers_paused(self) -> Sequence[TimeRange]:
        """Return the times of the step in which rlpatch's own recorders held back all trainers at once, in order."""
        return self.trainers_held_back(self.pauses)

    @cached_property
    def trainers_collecting(self) -> Sequence[TimeRange]:
        """Return the times of the step in which all trainers at once collected garbage, in order."""
        return self.trainers_held_back(self.collections)

    @cached_property
    def children(self) -> Mapping[tuple[int, int] | None, Sequence[KeptSpan]]:
        """Return (process index, span id) → the spans directly within it; None → spans without a recorded parent.

        Spans of the kinds `BESIDE` are left out.
        """
        parents = {(span.process, span.id): span.parent for span in self.spans if span.kind in BESIDE}
        levels = [span for span in self.spans if span.kind not in BESIDE]
        ids = {(span.process, span.id) for span in levels}
        nested = defaultdict[tuple[int, int] | None, list[KeptSpan]](list)
        for span in levels:
            around = (span.process, parents.get((span.process, span.parent), span.parent))
            nested[around if around in ids and around[1] != span.id else None].append(span)
        return nested

    def children_of(self, span: KeptSpan) -> Sequence[KeptSpan]:
        """Return the spans directly within ``span``."""
        return self.children.get((span.process, span.id), ())

    def engines_of(self, process: int) -> list[int]:
        """Return the engines with a file in the replica of a process, a server; both are process indices."""
        return [at for at in self.iterations if self.replica_of[at] == self.replica_of[process]]

    @cached_property
    def by_kind(self) -> Mapping[str, Sequence[KeptSpan]]:
        """Return the spans of each kind; an unknown kind has none."""
        by_kind = defaultdict[str, list[KeptSpan]](list)
        for span in self.spans:
            by_kind[span.kind].append(span)
        return by_kind

    @cached_property
    def groups(self) -> Mapping[int, CallGroup]:
        """Return each call of the driver with its works, by the call's id."""
        works = [root for root in self.children[None] if root.kind == "work"]
        return self._group_by_call([work for work in works if work.amount is None]) | self._group_by_number(works)

    @cached_property
    def roots(self) -> Sequence[KeptSpan]:
        """Return the outermost spans of all processes but the driver, except those that a driver's call caused."""
        caused = {(work.process, work.id) for group in self.groups.values() for work in group.works}
        roots = (root for root in self.children[None] if root.process != self.driver)
        return [root for root in roots if (root.process, root.id) not in caused]

    def name_after_micro_batches(self, work: KeptSpan, low: int) -> str:
        """Return a name for the time from ``low`` (microseconds) to the end of ``work``, a numbered step of a trainer.

        transformers' ``Trainer`` steps the optimizer, calls callbacks, and logs after a step's last micro-batch. "" for
        times before that, for a work without micro-batches or number, and for any other span.
        """
        if work.kind != "work" or work.amount is None:
            return ""
        inner = self.children_of(work)
        units = [end_of(span) for span in inner if span.kind == "unit" or span.name == "training_step"]
        logs = [span.start for span in inner if span.name == "log"]
        if not units or low < max(units):
            return ""
        return Text("callbacks and loading") if logs and low > min(logs) else Text("optimizer step and callbacks")

    @cached_property
    def phase_range(self) -> TimeRange:
        """Return the range from the driver's first span to its last one's end, logging apart; else the whole step."""
        kinds = ("phase", "call", "work", "poll", "sync")
        roots = (root for root in self.children[None] if root.process == self.driver and root.kind in kinds)
        phases = covered((root for root in roots if root.name != "log"), self.start, self.end)
        return TimeRange(phases[0].start, phases[-1].end) if phases else TimeRange(self.start, self.end)

    @cached_property
    def engine_syncs(self) -> Sequence[KeptSpan]:
        """Return the spans in which engines sync weights, sleep or wake up.

        Of a span that contains others of its kind, only the time after the end of the last of these is returned.
        """
        without_inner = list[KeptSpan]()
        for span in self._whole_engine_syncs:
            inner = self.inner_syncs(span)
            without_inner.append(span._replace(start=max(map(end_of, inner))) if inner else span)
        return [span for span in without_inner if span.start < end_of(span)]

    @cached_property
    def receivers(self) -> Sequence[KeptSpan]:
        """Return the engines' syncs in which they first wait for weights and then load them, by others within."""
        return [span for span in self._whole_engine_syncs if self.inner_syncs(span)]

    @property
    def _whole_engine_syncs(self) -> Iterator[KeptSpan]:
        """Yield the engines' spans of weight syncs and sleeps, whatever lies within."""
        spans = (*self.by_kind["sync"], *self.by_kind["sleep"])
        return (span for span in spans if self.roles[span.process] == "engine")

    def inner_syncs(self, span: KeptSpan) -> Sequence[KeptSpan]:
        """Return the direct children of ``span`` that are of its kind."""
        return [child for child in self.children_of(span) if child.kind == span.kind]

    @cached_property
    def calls(self) -> Sequence[KeptSpan]:
        """Return the calls of the driver, sorted by start."""
        return sorted((call for call in self.by_kind["call"] if call.process == self.driver), key=by_start)

    def _group_by_call(self, works: Sequence[KeptSpan]) -> dict[int, CallGroup]:
        """Group ``works`` with the driver's calls that caused them; return call id → its group.

        It belongs to the latest call of this method that began before it, if possible one that ended after it; without
        one it is left out. A call has at most one work per worker.
        """
        by_method = {
            work: [call for call in self.calls if calls_for(call.name, work)] for work in {work.name for work in works}
        }
        works_of = defaultdict[KeptSpan, dict[int, KeptSpan]](dict)
        for work in sorted(works, key=by_start):
            free = [call for call in by_method[work.name] if work.process not in works_of.get(call, ())]
            if call := self._call_that_caused(work, free):
                works_of[call][work.process] = work
        groups = dict[int, CallGroup]()
        for call, by_process in works_of.items():
            several = tuple(by_process.values())
            start = self._start_of_wait(call, several)
            groups[call.id] = CallGroup(start, max(map(end_of, (call, *several))), call, several)
        return groups

    def _start_of_wait(self, call: KeptSpan, works: Sequence[KeptSpan]) -> int:
        """Return when ``call`` began to wait for the executions that it caused (``works``), in microseconds.

        Then it only waits after the earlier executions on the same workers.
        """
        if end_of(call) >= min(work.start for work in works):
            return call.start
        return max(call.start, self.end_of_earlier_works(works))

    def end_of_earlier_works(self, works: Sequence[KeptSpan]) -> int:
        """Return when the workers of ``works``, executions of a call, had ended all earlier ones, in microseconds."""
        began = {work.process: work.start for work in works}
        earlier = (work for work in self.by_kind["work"] if end_of(work) <= began.get(work.process, -ENDLESS))
        return max(map(end_of, earlier), default=-ENDLESS)

    def _group_by_number(self, works: Sequence[KeptSpan]) -> dict[int, CallGroup]:
        """Group ``works`` of the same name and number on all ranks (SPMD), by the id of that on the driver's rank."""
        groups = dict[int, CallGroup]()
        for work in works:
            if work.process == self.driver and work.amount is not None:
                several = tuple(rank for rank in works if (rank.name, rank.amount) == (work.name, work.amount))
                groups[work.id] = CallGroup(work.start, max(map(end_of, several)), work, several)
        return groups

    def _call_that_caused(self, work: KeptSpan, calls: Sequence[KeptSpan]) -> KeptSpan | None:
        """Return the call that caused ``work``, an execution on a worker; None if no call began before it.

        One that lasted until the end of the work is preferred.
        """
        before = [call for call in calls if call.start <= work.start + self.tolerance][-DEEPEST:]
        around = [call for call in before if end_of(call) + self.tolerance >= end_of(work)]
        candidates = around or before
        return candidates[-1] if candidates else None

    @cached_property
    def serves_by_replica(self) -> Mapping[int | None, Sequence[KeptSpan]]:
        """Return replica → the spans in which its servers handle a request; None → those of an unknown replica."""
        served = defaultdict[int | None, list[KeptSpan]](list)
        for serve in self.by_kind["serve"]:
            served[self.replica_of[serve.process]].append(serve)
        return served

    def is_alone(self, serve: KeptSpan, low: int, high: int) -> bool:
        """Tell whether the replica handles no request but ``serve`` all the time from ``low`` to ``high`` (µs)."""
        served = self.serves_by_replica[self.replica_of[serve.process]]
        return not any(other.start <= low and end_of(other) >= high for other in served if other is not serve)

    def count_works(self, call: KeptSpan) -> int:
        """Return the number of recorded works of a call."""
        group = self.groups.get(call.id)
        return len(group.works) if group else 0

    def has_twin(self, call: KeptSpan) -> bool:
        """Tell whether the driver sent a call of another name but the same method within 10 ms of ``call``.

        The two went to different workers, so nobody can tell which of them an execution belongs to.
        """
        methods = {work.name for work in self.by_kind["work"] if calls_for(call.name, work.name)}
        return any(
            other.name != call.name
            and abs(other.start - call.start) < SENT_TOGETHER
            and any(calls_for(other.name, name) for name in methods)
            for other in self.calls
        )

    def may_lack_works(self, call: KeptSpan) -> bool:
        """Tell whether some executions of a call on its workers may be missing from the records.

        That is so if a trainer left no file, or if the call had more executions in other steps and none can belong to
        another call (`has_twin`).
        """
        if not self.trainers_known or self.partial:
            return True
        return self.count_works(call) < self.expected.get(call.name, 0) and not self.has_twin(call)

    @cached_property
    def request_waits(self) -> Sequence[tuple[int | None, TimeRange]]:
        """Return for each request its replica, and the time from its sending (or routing) until its server begins."""
        requests = {request.amount: request for request in self.by_kind["request"]}
        waits = list[tuple[int | None, TimeRange]]()
        for serve in self.by_kind["serve"]:
            if (request := requests.get(serve.amount)) is None:
                continue
            route = self.routing_of(request, serve)
            sent = end_of(route) if route else request.start
            if sent < serve.start:
                waits.append((self.replica_of[serve.process], TimeRange(sent, serve.start)))
        return waits

    def waits_for_several_replicas(self, serve: KeptSpan, low: int) -> bool:
        """Tell whether a request of another replica also waits during most of the time from ``low`` to ``serve``.

        Then no single server is late, but something before them, such as a load balancer.
        """
        if self.certainly_stood_still(serve.process, low, serve.start):
            return False
        replica = self.replica_of[serve.process]
        return any(
            other not in (replica, None) and 2 * self._overlap([wait], low, serve.start) > serve.start - low
            for other, wait in self.request_waits
        )

    def routing_of(self, request: KeptSpan, serve: KeptSpan) -> KeptSpan | None:
        """Return the span in which the load balancer chose the server for ``request``; None if it is not recorded.

        If the request asked several times, it is the last one.
        """
        routes = self.within(request, self._routes_by_key.get(request.key, ()))
        before = [route for route in routes if end_of(route) <= serve.start + self.tolerance]
        return max(before, key=end_of) if request.key and before else None

    @cached_property
    def _routes_by_key(self) -> Mapping[str, Sequence[KeptSpan]]:
        """Return the id of each request → the spans in which the load balancer chose a server for it."""
        routes = defaultdict[str, list[KeptSpan]](list)
        for route in self.by_kind["route"]:
            routes[route.key].append(route)
        return routes

    def batch_around(self, trajectory: KeptSpan) -> KeptSpan | None:
        """Return the last batch (a call of the driver) in which an agent loop began ``trajectory``, if recorded."""
        batches = (batch for batch in self.by_kind["batch"] if batch.process == trajectory.process)
        around = [batch for batch in batches if batch.start <= trajectory.start <= end_of(batch)]
        return max(around, key=by_start) if around else None

    def end_of_gathering(self, sync: KeptSpan) -> int:
        """Return when the trainer of ``sync``, a weight sync, certainly has all weights, in microseconds.

        All ranks gather weights in collectives. Once a rank that waits in them has ended its sync, all are over.
        Without such a rank, it is the end of ``sync``.
        """
        ends = (
            end_of(other)
            for other in self.by_kind["sync"]
            if other.process != sync.process and other.name == sync.name and other.waited
            and self.roles[other.process] == "trainer" and sync.start < end_of(other) and other.start < end_of(sync)
        )  # fmt: skip
        return min([end_of(sync), *ends])

    def end_of_sending(self, sync: KeptSpan) -> int | None:
        """Return when the trainer of ``sync`` had sent its weights and freed its buffers (µs); None if not recorded."""
        return max(map(end_of, self.sends_of(sync)), default=None)

    def sends_of(self, sync: KeptSpan) -> list[KeptSpan]:
        """Return the spans in which the trainer of ``sync``, a weight sync, makes buffers and sends its weights."""
        return [send for send in self.within(sync, self.by_kind["send"]) if send.process == sync.process]

    def certainly_stood_still(self, process: int, low: int, high: int) -> bool:
        """Tell whether a process certainly ran nothing in most of the time from ``low`` to ``high`` (microseconds)."""
        return self.stalled(process, low, high) * 2 > high - low

    def stalled(self, process: int, low: int, high: int) -> int:
        """Return for how long a process certainly ran nothing between ``low`` and ``high``; all in microseconds."""
        return self._overlap(self.stalls.get(process, ()), low, high)

    def within(self, span: KeptSpan, spans: Iterable[KeptSpan]) -> list[KeptSpan]:
        """Return the ``spans`` that lie within ``span``, with the clocks' tolerance."""
        low, high = span.start - self.tolerance, end_of(span) + self.tolerance
        return [inner for inner in spans if low <= inner.start and end_of(inner) <= high]

    def awaited_spans(self, span: KeptSpan) -> list[KeptSpan]:
        """Return the spans of other processes that the driver may have waited for during its ``span``.

        These are executions of methods, weight syncs and sleeps that lie within it. Those that end within the span
        count if the driver generates or polls, or if none of them runs across its edges. Without trajectories, the
        handling of requests counts instead, or rewards.
        """
        low, high = span.start - self.tolerance, end_of(span) + self.tolerance
        syncs = (root for root in self.roots if root.kind in ("sync", "sleep") and self.roles[root.process] != "engine")
        works = (root for root in self.roots if root.kind == "work")
        remote = self.within(span, (*works, *syncs, *self.engine_syncs))
        leading = self._rollout_spans
        waits = span.kind == "poll" or span.name in GENERATING
        if waits or not any(root.start < edge < end_of(root) for root in leading for edge in (low, high)):
            remote += [root for root in leading if low < end_of(root) <= high]
        return remote

    @property
    def _rollout_spans(self) -> list[KeptSpan]:
        """Return the outermost spans of the rollout: trajectories, else the handling of requests, else rewards."""
        for kind in ("trajectory", "serve", "reward"):
            if leading := [root for root in self.roots if root.kind == kind]:
                return leading
        return []


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
        """Return pieces of the path from the end of the last trajectory until ``high``, if it ended after ``low``.

        In ``span`` the driver generates, without spans of its own from ``low`` to ``high``. Until the driver has all
        trajectories, agent loops pad and send them, and the driver unpacks them. The first part is the agent loop's
        whose batch ends last, the second the driver's. Without batches, neither is recorded. [] for up to 20 ms, and if
        the driver certainly stood still then.
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
            own = (end_of(trajectory) for trajectory in trajectories if trajectory.process == batch.process)
            call = Text("call {method}", batch.name)
            return [
                PathPiece(max(own, default=last), end_of(batch), "agent", batch.kind, what, self.phase, batch.process),
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
            asked = min(max(route.start, low), routed)
            self.add_piece(route, asked, routed)
            self._explain_hand_over(span, route, span.start, low, asked)

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
        self, sync: KeptSpan, last: KeptSpan, others: Iterable[KeptSpan], since: int, role: str
    ) -> list[PathPiece]:
        """Return the piece from ``since`` until ``last`` begins, the last of the spans that ``sync`` waits for.

        Its delay is the time since the latest of ``others`` began, 0 without any. [] if the trainer stood still.
        """
        if since >= last.start or self.records.sender_stood_still(sync.process, last.process, since, last.start):
            return []
        before = max((other.start for other in others), default=last.start)
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
            stalled = records.stalled(receiver.process, low, high)
            if stalled > records.stalled(span.process, low, high) and stalled * 2 > high - low - UNWRITTEN_US:
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
        others = (clear for clear in clears if clear.name == last.name and clear.process != last.process)
        return [last, *self._wait_until_begun(span, last, others, since, "server")]

    def _waits_after_gathering(self, span: KeptSpan, parts: Iterable[KeptSpan | PathPiece]) -> Iterator[PathPiece]:
        """Yield the pieces in which ``span``, a trainer's weight sync, has gathered its weights, and waits.

        ``parts`` are what engines and servers do in it. The trainer then hands weights over, frees its buffers, and
        waits until servers have reset their caches. Times that nobody recorded are of nobody, and so is the time until
        its engine has opened the buffer that it made before. Gaps of up to 20 ms stay with the trainer, and so do those
        in which it certainly stood still, and the time from the end of receiving until it has freed its buffers, if
        that is recorded.
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
        stretches, before, lag = list[tuple[int, int, KeptSpan, int, bool]](), group.start, dict[int, int]()
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
