"""The records of all processes around one step, and how they belong together: spans, calls, requests and syncs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from patcher.messages import Text
from patcher.timeline.files import IterationColumns, KeptSpan
from patcher.timeline.intervals import ENDLESS, TimeRange, by_start, covered, end_of, length, uncovered

DEEPEST = 64
"""Most levels of spans within each other; deeper spans count as part of the outer ones."""

ABOUT_AS_LONG = 0.9
"""From this share of the longer of two silences on, both are about as long."""

GENERATING = (
    "gen", "generate", "generate_sequences", "generate_samples", "rollout", "generation", "wait_prev_gen", "gen_seq",
)  # fmt: skip
"""Names in frameworks of the phase in which the driver waits for trajectories, even if these began before it."""

BESIDE = ("batch", "send")
"""Kinds of spans that are no level of their own: what lies within belongs to the span around them."""

SENT_TOGETHER = 10_000
"""Microseconds between two calls that a driver sends out one after the other, without waiting for the first."""


class CallGroup(NamedTuple):
    """A call of the driver with the works that it caused, one on each rank; ``end`` is the last end of these.

    If each rank runs by itself (SPMD), ``call`` is the driver's own work, grouped with the same-numbered works of other
    ranks.
    """

    start: int
    end: int | None
    call: KeptSpan
    works: tuple[KeptSpan, ...]


def calls_for(call: str, work: str) -> bool:
    """Tell whether a call named ``call`` may run the method ``work``: a worker group may prefix the name."""
    return call == work or call.endswith(f"_{work}")


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
        certain = [self.stalled_us(process, low, high) for process in (sender, receiver)]
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

    def paused_us(self, process: int, start: int, end: int) -> int:
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
        return self.stalled_us(process, low, high) * 2 > high - low

    def stalled_us(self, process: int, low: int, high: int) -> int:
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
