"""The critical path of a step: from its end back to whoever ended last, and what nobody covers is of whoever waited.

From the driver's phases the walk goes to calls and the works that they cause, from a rollout to its last trajectory,
its requests, what a server and the iterations of its engine did meanwhile.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar

from patcher.messages.text import Text
from patcher.timeline.files import IterationColumns, KeptSpan

DEEPEST = 64
"""Spans within each other; what is deeper belongs to the outer ones."""

TOLERANCE_US = 3_000
"""Within this time, or `SHARE` of what they do, ranks arrive together."""

SHARE = 0.02

GAP_US = 20_000
"""Iterations that follow each other sooner are head to head, and also those that do within thrice the usual length."""

GENERATING = (
    "gen", "generate", "generate_sequences", "generate_samples", "rollout", "generation", "wait_prev_gen", "gen_seq",
)  # fmt: skip
"""How frameworks call the phase in which the driver waits for trajectories, also for such as began before it."""

LONGEST = 1 << 16
"""Points in the course of a rank that are compared with those of others."""

ENDLESS = 1 << 61


class Timed(Protocol):
    """What has a start and an end."""

    @property
    def start(self) -> int:
        """In microseconds."""

    @property
    def end(self) -> int | None:
        """In microseconds; None while it goes on."""


T = TypeVar("T", bound=Timed)

by_start = attrgetter("start")
"""The order in which spans begin."""


class PathPiece(NamedTuple):
    """A piece of a path, in microseconds: who did what meanwhile.

    ``process`` is None where it was all ranks, or nobody knows; ``late`` is by how much this process came after the
    others.
    """

    start: int
    end: int
    role: str
    kind: str
    what: str
    phase: str
    process: int | None
    late: int = 0

    def until(self, end: int) -> PathPiece:
        """Return the same with another end."""
        return self._replace(end=end)


class CallGroup(NamedTuple):
    """A call of the driver with the works that it caused, one on each rank; ``end`` is that of the last of them.

    Where each rank runs by itself, it is the driver's own work, with those of the same number on the others.
    """

    start: int
    end: int | None
    call: KeptSpan
    works: tuple[KeptSpan, ...]


def end_of(timed: Timed) -> int:
    """Return the end; of what goes on, one after all."""
    return ENDLESS if timed.end is None else timed.end


SENT_TOGETHER = 10_000
"""Microseconds between two calls that a driver sends out one after the other, without waiting for the first."""


def calls_for(call: str, work: str) -> bool:
    """Tell whether a call of this name is one of the method ``work``: it may have the prefix of a group of workers."""
    return call == work or call.endswith(f"_{work}")


def walk_back(parts: Iterable[T], low: int, high: int) -> Iterator[tuple[T | None, int, int]]:
    """Yield from ``high`` back to ``low``: which of ``parts`` ended last, from when to when it was waited for.

    None stands for time that none covers. Of several that go on at a time, the one that began first is waited for.
    """
    waiting = sorted((part for part in parts if part.start < high and end_of(part) > low), key=end_of)
    running: list[tuple[int, int, T]] = []
    at = high
    while at > low:
        while waiting and end_of(waiting[-1]) >= at:
            one = waiting.pop()
            heapq.heappush(running, (one.start, len(waiting), one))
        if running and running[0][0] < at:
            one = running[0][2]
            yield one, (before := max(one.start, low)), at
        elif waiting:
            before, one = end_of(waiting[-1]), waiting[-1]
            yield None, before, at
        else:
            before = low
            yield None, before, at
        at = before


@dataclass(frozen=True)
class StepRecords:
    """What all processes of a run recorded around one step, ``start`` to ``end``.

    ``driver`` is the place of the process whose marks end the steps, ``replica_of`` gives the replica of a process.
    ``tolerance`` is how wrong the clocks may be. ``trainers_known`` says whether such processes have files at all,
    ``partial`` that some ranks have none, ``expected`` how many works each call of the driver has had in other steps.
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
    children: Mapping[tuple[int, int], list[KeptSpan]] = field(init=False)
    groups: Mapping[int, CallGroup] = field(init=False)
    roots: Sequence[KeptSpan] = field(init=False)
    serves: Mapping[int | None, list[KeptSpan]] = field(init=False)
    rewards: Mapping[int, list[KeptSpan]] = field(init=False)

    def __post_init__(self) -> None:
        ids = {(span.process, span.id) for span in self.spans}
        children = defaultdict[tuple[int, int], list[KeptSpan]](list)
        roots, serves, rewards = (
            list[KeptSpan](),
            defaultdict[int | None, list[KeptSpan]](list),
            defaultdict[int, list[KeptSpan]](list),
        )
        for span in self.spans:
            own = (span.process, span.parent)
            if own in ids and span.parent != span.id:
                children[own].append(span)
            else:
                roots.append(span)
            if span.kind == "serve":
                serves[span.amount].append(span)
            if span.kind == "reward":
                rewards[span.process].append(span)
        works = [root for root in roots if root.kind == "work"]
        groups = self._grouped(works) | self._numbered(works)
        taken = {(work.process, work.id) for group in groups.values() for work in group.works}
        remote = [root for root in roots if root.process != self.driver and (root.process, root.id) not in taken]
        values = {"children": children, "groups": groups, "roots": remote, "serves": serves, "rewards": rewards}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _grouped(self, works: Sequence[KeptSpan]) -> dict[int, CallGroup]:
        """Id of a call of the driver → its works without a number: of its method, that begin next, on each worker."""
        works = [work for work in works if work.amount is None]
        calls = [span for span in self.spans if span.kind == "call" and span.process == self.driver]
        by_method = {
            work: [call for call in calls if calls_for(call.name, work)] for work in {work.name for work in works}
        }
        used = set[tuple[int, int]]()
        works_of = defaultdict[int, list[KeptSpan]](list)
        for work in sorted(works, key=by_start):
            free = [candidate for candidate in by_method[work.name] if (candidate.id, work.process) not in used]
            if call := self._call_of(work, free):
                used.add((call.id, work.process))
                works_of[call.id].append(work)
        by_id = {call.id: call for call in calls}
        return {
            call: CallGroup(
                self._waits_from(by_id[call], several, works), max(map(end_of, (by_id[call], *several))), by_id[call],
                tuple(several),
            )
            for call, several in works_of.items()
        }  # fmt: skip

    def _waits_from(self, call: KeptSpan, several: Sequence[KeptSpan], works: Sequence[KeptSpan]) -> int:
        """Return when a call began to wait: one that gave a future, behind the works that its workers had before."""
        began = {work.process: work.start for work in several}
        if end_of(call) >= min(began.values()):
            return call.start
        earlier = (end_of(work) for work in works if end_of(work) <= began.get(work.process, -ENDLESS))
        return max([call.start, *earlier])

    def _numbered(self, works: Sequence[KeptSpan]) -> dict[int, CallGroup]:
        """Id of a work of the driver → those of its name and number on all ranks."""
        groups = dict[int, CallGroup]()
        for work in works:
            if work.process == self.driver and work.amount is not None:
                several = tuple(work for work in works if (work.name, work.amount) == (work.name, work.amount))
                groups[work.id] = CallGroup(work.start, max(map(end_of, several)), work, several)
        return groups

    def _call_of(self, work: KeptSpan, calls: Sequence[KeptSpan]) -> KeptSpan | None:
        """Return the newest of ``calls`` before a work began; better one that waited for its end."""
        before = [call for call in calls if call.start <= work.start + self.tolerance][-DEEPEST:]
        around = [call for call in before if end_of(call) + self.tolerance >= end_of(work)]
        candidates = around or before
        return candidates[-1] if candidates else None

    def served_by(self, replica: int | None) -> list[KeptSpan]:
        """Return what the server of a replica did for requests."""
        served = (work for several in self.serves.values() for work in several)
        return [serve for serve in served if self.replica_of[serve.process] == replica]

    def has_twin(self, call: KeptSpan) -> bool:
        """Tell whether a call of its method went to other workers at once: whose a work is, is a guess then."""
        methods = {span.name for span in self.spans if span.kind == "work" and calls_for(call.name, span.name)}
        return any(
            span.name != call.name and abs(span.start - call.start) < SENT_TOGETHER
            for span in self.spans
            if span.kind == "call"
            and span.process == self.driver
            and any(calls_for(span.name, name) for name in methods)
        )

    def lacks(self, call: KeptSpan) -> int:
        """Return how many works of a call are not recorded that should be."""
        group = self.groups.get(call.id)
        count = len(group.works) if group else 0
        if not self.trainers_known or self.partial:
            return 1
        lacking = max(self.expected.get(call.name, 0) - count, 0)
        return 0 if lacking and self.has_twin(call) else lacking

    def remote(self, node: KeptSpan) -> list[KeptSpan]:
        """Return what other processes did for a span of the driver: all of it within the span.

        Trajectories count where none goes on beyond it, for then it waited for them, or where it is known to.
        """
        low, high = node.start - self.tolerance, end_of(node) + self.tolerance
        waits = node.kind == "poll" or node.name in GENERATING
        leading = self._leading
        others = [root for root in self.roots if root.kind in ("work", "sync", "sleep")]
        others = [other for other in others if low <= other.start and end_of(other) <= high]
        crossing = any(
            (trajectory.start < low < end_of(trajectory)) or (trajectory.start < high < end_of(trajectory))
            for trajectory in leading
        )
        if waits or not crossing:
            others += [trajectory for trajectory in leading if end_of(trajectory) <= high and end_of(trajectory) > low]
        return others

    @property
    def _leading(self) -> list[KeptSpan]:
        """Trajectories; without an agent loop's file what servers did, then rewards."""
        for kinds in (("trajectory",), ("serve",), ("reward",)):
            if spans := [root for root in self.roots if root.kind in kinds]:
                return spans
        return []


def critical_path(records: StepRecords) -> list[PathPiece]:
    """Return the pieces of the critical path of a step, in order; together they are as long as the step."""
    walk = _Walk(records)
    tops = [span for span in records.spans if span.process == records.driver and span.kind != "step"]
    ids = {span.id for span in tops}
    roots = [span for span in tops if span.parent not in ids or span.parent == span.id]
    walk.explain_parts(_with_groups(records, roots), records.start, records.end, None, "", 0)
    return merged(reversed(walk.pieces))


def merged(pieces: Iterable[PathPiece]) -> list[PathPiece]:
    """Return neighbours that say the same as one."""
    neighbours = list[PathPiece]()
    for piece in pieces:
        last = neighbours[-1] if neighbours else None
        if last is not None and last[2:7] == piece[2:7] and last.end == piece.start:
            neighbours[-1] = last._replace(end=piece.end, late=last.late + piece.late)
        elif piece.end > piece.start:
            neighbours.append(piece)
    return neighbours


def _with_groups(records: StepRecords, spans: Iterable[KeptSpan]) -> list[KeptSpan | CallGroup]:
    """Return calls as they end with their works, also where they had only a future for them."""
    return [records.groups.get(span.id, span) for span in spans]


class _Walk:
    """One walk from the end of a step to its start: ``pieces`` are in the order in which they were met."""

    def __init__(self, records: StepRecords) -> None:
        self.records = records
        self.pieces = list[PathPiece]()

    def explain_parts(
        self, parts: Iterable[KeptSpan | CallGroup], low: int, high: int, node: KeptSpan | None, phase: str, depth: int
    ) -> None:
        """Explain ``low`` to ``high`` by ``parts``; what is between them is of ``node``."""
        for part, begin, end in walk_back(parts, low, high):
            if part is None:
                self.own(node, begin, end, phase)
            elif isinstance(part, CallGroup):
                self.explain_group(part, begin, end, phase, depth + 1)
            else:
                self.explain(part, begin, end, phase, depth + 1)

    def explain(self, node: KeptSpan, low: int, high: int, phase: str, depth: int) -> None:
        """Explain what ``node`` did from ``low`` to ``high``."""
        if depth > DEEPEST:
            self.own(node, low, high, phase)
            return
        records = self.records
        parts: list[KeptSpan | CallGroup] = [*records.children.get((node.process, node.id), ())]
        if node.process == records.driver:
            phase = node.name if node.kind == "phase" else phase
            parts = _with_groups(records, [part for part in parts if isinstance(part, KeptSpan)])
        elif node.kind == "reward" and not parts:
            parts += self._remote_rewards(node)
        elif node.kind == "request":
            parts += self._serve_of(node)
        elif node.kind == "serve":
            self.explain_serve(node, low, high, phase)
            return
        self.explain_parts(parts, low, high, node, phase, depth)

    def own(self, node: KeptSpan | None, low: int, high: int, phase: str) -> None:
        """Time of ``node`` that nothing within it covers: what others did for it, and the rest is its own."""
        records = self.records
        if node is None or (node.kind, node.name) == ("phase", "step"):
            self.pieces.append(PathPiece(low, high, "driver", "gap", Text("between phases"), "", records.driver))
        elif node.process == records.driver:
            for cover, begin, end in walk_back(records.remote(node), low, high):
                if cover is None:
                    self.own_of_driver(node, begin, end, phase)
                else:
                    self.explain(cover, begin, end, phase, 1)
        elif node.kind in ("trajectory", "request", "phase"):
            others = (reward for reward in records.rewards.get(node.process, ()) if reward.parent != node.id)
            for cover, begin, end in walk_back(others, low, high):
                self.add(cover or node, begin, end, phase)
        else:
            self.add(node, low, high, phase)

    def own_of_driver(self, node: KeptSpan, low: int, high: int, phase: str) -> None:
        """Time of the driver in which nobody else did anything for it, as far as is recorded."""
        if node.kind == "call" and self.records.lacks(node):
            self.pieces.append(PathPiece(low, high, "unrecorded", "gap", node.name, phase, None))
        else:
            self.add(node, low, high, phase)

    def add(self, node: KeptSpan, low: int, high: int, phase: str, late: int = 0, *, all_ranks: bool = False) -> None:
        """Put down that ``node`` was waited for."""
        role = {
            "work": "trainer", "unit": "trainer", "wait": "trainer", "reward": "reward", "serve": "server",
            "trajectory": "agent", "request": "agent",
        }.get(node.kind, self.records.roles[node.process])  # fmt: skip
        if node.kind == "phase" and role == "engine":  # it runs in the process of a trainer
            role = "trainer"
        what = Text("call {name}", node.name) if node.kind == "call" else node.name or node.kind
        what = node.kind if node.kind in ("trajectory", "request") else what
        process = None if all_ranks or (role == "trainer" and self.records.partial) else node.process
        self.pieces.append(PathPiece(low, high, role, node.kind, what, phase, process, late))

    # ------------------------------------------------------------ rollout

    def _remote_rewards(self, node: KeptSpan) -> list[KeptSpan]:
        """Return the rewards of other processes that a reward in an agent loop waits for."""
        room = self.records.tolerance
        return [
            root for root in self.records.roots
            if root.kind == "reward" and root.process != node.process
            and root.start >= node.start - room and end_of(root) <= end_of(node) + room
        ]  # fmt: skip

    def _serve_of(self, request: KeptSpan) -> list[KeptSpan]:
        """Return the server's side of a request: as long a prompt, within it; of several the last to end."""
        room = self.records.tolerance
        inside = [
            serve for serve in self.records.serves.get(request.amount, ())
            if serve.start >= request.start - room and end_of(serve) <= end_of(request) + room
        ]  # fmt: skip
        return [max(inside, key=end_of)] if inside else []

    def explain_serve(self, serve: KeptSpan, low: int, high: int, phase: str) -> None:
        """What the engines of the replica did while a server worked on a request."""
        replica = self.records.replica_of[serve.process]
        engines = [at for at in self.records.iterations if self.records.replica_of[at] == replica]
        if not engines:
            self.pieces.append(PathPiece(low, high, "unrecorded", "gap", "generate", phase, None))
            return
        parts = [
            iteration_piece
            for at in engines
            for iteration_piece in iteration_pieces(self.records.iterations[at], low, high, phase, at)
        ]
        lone = engines[0] if len(engines) == 1 else None
        after = ""
        for stretch, begin, end in walk_back(parts, low, high):
            if stretch is not None:
                process = lone if lone is not None else stretch.process
                self.pieces.append(stretch._replace(start=begin, end=end, process=process))
                after = stretch.what
                continue
            alone = self._alone(serve, begin, end)
            if alone and after == "prefill":
                # Nothing else is there that could be prefilled behind the gap: until then the request was kept back,
                # whatever its replica did for others.
                self.add(serve, low, end, phase)
                return
            if begin <= low or end >= high or alone:
                self.add(serve, begin, end, phase)
            else:
                self.pieces.append(PathPiece(begin, end, "engine", "gap", Text("no iteration"), phase, lone))

    def _alone(self, serve: KeptSpan, low: int, high: int) -> bool:
        """Tell whether no other request is alive at its replica all the time: then it is this one that is kept back."""
        served = self.records.served_by(self.records.replica_of[serve.process])
        return not any(other.start <= low and end_of(other) >= high for other in served if other is not serve)

    # ------------------------------------------------------------ training

    def explain_group(self, group: CallGroup, low: int, high: int, phase: str, depth: int) -> None:
        """What the ranks did that a call set to work: at each point that all come to, the last one counts."""
        last = max(group.works, key=end_of)
        ends = max(low, min(high, end_of(last)))
        if ends < high:
            self.own(group.call, ends, high, phase)
        courses = [self._course(work) for work in group.works]
        names = [[point.label for point in course] for course in courses]
        if len(group.works) == 1:
            begin = min(max(low, last.start), ends)
            self.explain(last, begin, ends, phase, depth)
            if begin > low:
                self._queue(group.call, low, begin, phase, last, 0)
        elif all(name == names[0] for name in names):
            self._lockstep(group, courses, low, ends, phase)
        else:
            self._apart(group, low, ends, phase, depth)

    def _queue(self, call: KeptSpan, low: int, high: int, phase: str, work: KeptSpan, late: int) -> None:
        """From a call to the start of its work."""
        all_ranks = not late and len(self.records.groups[call.id].works) > 1
        self.add(work._replace(name=Text("start of {name}", work.name)), low, high, phase, late, all_ranks=all_ranks)

    def _course(self, work: KeptSpan) -> list[Point]:
        """Return the starts and ends within a work, in order, with the innermost span that goes on before each."""
        course = list[Point]()
        ahead: list[tuple[KeptSpan, KeptSpan, bool]] = [(work, work, False)]
        depth = 0
        while ahead:
            span, within, ends = ahead.pop()
            course.append(Point(end_of(span) if ends else span.start, (ends, span.kind, span.name), within))
            depth += -1 if ends else 1
            if ends:
                continue
            ahead.append((span, span, True))
            inner = self.records.children.get((span.process, span.id))
            if inner and depth < DEEPEST and len(course) < LONGEST:
                ahead += [(child, span, False) for child in sorted(inner, key=by_start, reverse=True)]
        return course

    def _lockstep(self, group: CallGroup, courses: Sequence[Sequence[Point]], low: int, high: int, phase: str) -> None:
        """Piece by piece, from one point that all ranks come to, to the next."""
        length = end_of(group) - group.start
        room = max(TOLERANCE_US, int(SHARE * min(length, ENDLESS)), self.records.tolerance)
        stretches, before, lag = list[tuple[int, int, KeptSpan, int, bool]](), group.start, dict[int, int]()
        for points in zip(*courses, strict=True):
            last = max(range(len(points)), key=lambda rank: points[rank].time)
            others = sorted(point.time for rank, point in enumerate(points) if rank != last)
            behind = points[last].time - others[len(others) // 2]
            alone = points[last].time - others[-1] > room
            late = max(behind - lag.get(last, 0), 0) if alone else 0
            lag = {last: behind} if alone else {}
            at = max(points[last].time, before)
            within = points[last].within
            if not stretches:
                within = within._replace(name=Text("start of {name}", within.name))
            stretches.append((before, at, within, late, not alone))
            before = at
        for begin, end, span, late, together in reversed(stretches):
            if begin < high and end > low and end > begin:
                self.add(span, max(begin, low), min(end, high), phase, late, all_ranks=together)

    def _apart(self, group: CallGroup, low: int, high: int, phase: str, depth: int) -> None:
        """Follow ranks whose courses differ: the last to finish, or all of them if they finish together."""
        *others, last = sorted(group.works, key=end_of)
        behind = end_of(last) - end_of(others[-1])
        room = max(TOLERANCE_US, int(SHARE * min(end_of(last) - group.start, ENDLESS)), self.records.tolerance)
        begin = min(max(low, last.start), high)
        at = len(self.pieces)
        self.explain(last, begin, high, phase, depth)
        late = behind if behind > room else 0
        for place in range(at, len(self.pieces)):
            piece = self.pieces[place]
            share = late * (piece.end - piece.start) // max(high - begin, 1)
            self.pieces[place] = piece._replace(process=piece.process if late else None, late=share)
        if begin > low:
            self._queue(group.call, low, begin, phase, last, 0)


class Point(NamedTuple):
    """A start or an end in the course of a work, and the innermost span that goes on until then."""

    time: int
    label: tuple[bool, str, str]
    within: KeptSpan


def iteration_pieces(columns: IterationColumns, low: int, high: int, phase: str, process: int) -> Iterator[PathPiece]:
    """Yield the iterations from ``low`` to ``high``, those head to head that do the same as one piece.

    One decodes where it schedules a token for each request; with speculative tokens this cannot be told.
    """
    first = max(bisect_left(columns.start, low) - 1, 0)
    last = bisect_left(columns.start, high)
    room = head_to_head(columns, first, last)
    piece: PathPiece | None = None
    for at in range(first, last):
        begin, end = columns.start[at], columns.end[at]
        if end <= low and (at + 1 >= last or columns.start[at + 1] - end > room):
            continue
        what = "decode" if columns.tokens[at] <= columns.requests[at] else "prefill"
        if piece is not None and begin - piece.end <= room:
            if piece.what == what:
                piece = piece._replace(end=max(end, piece.end))
                continue
            piece = piece._replace(end=begin) if begin > piece.start else piece
        if piece is not None:
            yield piece
        piece = PathPiece(begin, end, "engine", "iteration", what, phase, process)
    if piece is not None:
        yield piece


def head_to_head(columns: IterationColumns, first: int, last: int) -> int:
    """Return up to which gap iterations are head to head: thrice the median of their lengths, and 20 ms at least."""
    lengths = sorted(columns.end[at] - columns.start[at] for at in range(first, min(last, first + 4096)))
    return max(GAP_US, 3 * lengths[len(lengths) // 2]) if lengths else GAP_US


def covered(intervals: Iterable[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    """Return the union of ``intervals`` within ``low`` to ``high``, in order."""
    union = list[tuple[int, int]]()
    for begin, end in sorted(intervals):
        begin, end = max(begin, low), min(end, high)
        if begin >= end:
            continue
        if union and begin <= union[-1][1]:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((begin, end))
    return union


def uncovered(covered_intervals: Sequence[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    """Return what `covered` leaves of ``low`` to ``high``."""
    edges = [(low, low), *covered_intervals, (high, high)]
    return [(end, begin) for (_, end), (begin, _) in pairwise(edges) if begin > end]
