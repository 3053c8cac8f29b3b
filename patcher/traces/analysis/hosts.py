"""The threads of the host while the units lasted: operators, modules, and the phases of training.

Each thread is walked once, in the order in which its ranges begin, with a stack of those that are open. A reader may
hand them over piece by piece, so of an operator only the sums of its name are kept.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain
from operator import itemgetter, sub
from typing import TypeVar

from patcher.traces.analysis.segments import Segment
from patcher.traces.model import Module, Operator
from patcher.traces.timeline import BACKWARD, OPTIMIZER, UNKNOWN, Row, Tasks, Timeline

PHASES = ("forward", "backward", "optimizer")
"""Where operators of several phases are around a task, the last of these counts."""

Calls = TypeVar("Calls", Operator, Module)

_NEVER = 1 << 63
_NONE = _NEVER, 0, UNKNOWN


class CallTable(defaultdict[int, list[int]]):
    """Name → its calls, the kernels launched within, the time of these, and the time on the host."""

    def __init__(self) -> None:
        super().__init__(lambda: [0, 0, 0, 0])

    def rows(self, kind: type[Calls], texts: Sequence[str]) -> tuple[Calls, ...]:
        """The names that were called, that with the longest time on the device first."""
        rows = [kind(texts[name], *values) for name, values in self.items() if values[0]]
        return tuple(sorted(rows, key=lambda row: (-row.ns, -row.host_ns, row.name)))


class HostSums:
    """The calls of the host in the ``chosen`` segments, with the tasks that they launched, by ``owner``."""

    def __init__(
        self, found: Timeline, segments: Sequence[Segment], owner: Sequence[int], chosen: Sequence[int]
    ) -> None:
        self.phases = {at: [0] * len(PHASES) for at in chosen}
        # Whether the host counts, and until when, from the beginning of time to its end.
        self.counted = [(False, segments[0].begin if segments else _NEVER + 1)]
        self.counted += [(at in self.phases, segment.end) for at, segment in enumerate(segments)]
        self.counted.append((False, _NEVER + 1))
        self.own, self.whole = CallTable(), CallTable()
        main = {thread for thread, _ in found.marks}
        named = _phases(found.names.texts)
        points = _points(found, owner, set(chosen))
        walks = [
            OperatorWalk(self, found.tasks, owner, points.get(thread, ()), named, thread in found.backward - main)
            for thread in range(len(found.threads))
        ]
        for thread, rows in found.operators_in_order():
            walks[thread].take(rows)
        for walk in walks:
            walk.assign(_NEVER)
        for thread, ranges in enumerate(found.modules):
            if ranges.begin:
                self._walk_modules(ranges.in_order(), found.tasks, points.get(thread, ()))
        self.operators = self.own.rows(Operator, found.names.texts)
        self.modules = self.whole.rows(Module, found.names.texts)

    def phases_of(self, segment: int) -> dict[str, int]:
        """Phase → time of the kernels that it launched; nothing where no unit trains."""
        trains = any(backward or optimizer for _, backward, optimizer in self.phases.values())
        return dict(zip(PHASES, self.phases[segment], strict=True)) if trains else {}

    def _walk_modules(self, rows: Iterable[Row], tasks: Tasks, points: Sequence[int]) -> None:
        """Give each task to every module around the time at which it was enqueued, once to each name."""
        sums, counted = self.whole, iter(self.counted)
        counts, until = next(counted)
        stack: list[tuple[int, int]] = []
        due = ((tasks.enqueued[task], task) for task in points)
        time, task = next(due, (_NEVER, UNKNOWN))
        for begin, end, name in chain(rows, [(_NEVER, _NEVER, UNKNOWN)]):
            while time < begin:
                stack[:] = [entry for entry in stack if entry[0] > time]
                for around in {name for _, name in stack}:
                    sums[around][1] += 1
                    sums[around][2] += tasks.end[task] - tasks.begin[task]
                time, task = next(due, (_NEVER, UNKNOWN))
            stack[:] = [entry for entry in stack if entry[0] > begin]
            while begin >= until:
                counts, until = next(counted)
            if counts:
                sums[name][0] += 1
                if all(name != other for _, other in stack):
                    sums[name][3] += end - begin
            stack.append((end, name))


class OperatorWalk:
    """The operators of one thread: each task goes to the innermost one around the time at which it was enqueued."""

    def __init__(
        self, hosts: HostSums, tasks: Tasks, owner: Sequence[int], points: Sequence[int],
        named: Mapping[int, int], backward: bool,
    ) -> None:  # fmt: skip
        self.sums, self.phases, self.counted = hosts.own, hosts.phases, iter(hosts.counted)
        self.named, self.phase = named, int(backward)
        self.counts, self.until = next(self.counted)
        # Of each task: when it was enqueued, how long it took, and the segment that it belongs to.
        enqueued, begin, end, of = (
            map(column.__getitem__, points) for column in (tasks.enqueued, tasks.begin, tasks.end, owner)
        )
        self.points = zip(enqueued, map(sub, end, begin), of, strict=True)
        self.due = next(self.points, _NONE)
        # Of what is open, the innermost last: its end, name, phase, and the row of its name where it counts.
        self.stack: list[tuple[int, int, int, list[int] | None]] = []

    def take(self, rows: Iterable[Row]) -> None:
        """The next operators, in the order of their begin, the outer before the inner one."""
        # This runs a million times for each GB: what it needs is bound before, and nothing is called that need not be.
        sums, named, stack, base = self.sums, self.named, self.stack, self.phase
        counts, until, due = self.counts, self.until, self.due[0]
        push, pop = stack.append, stack.pop
        for begin, end, name in rows:
            if due < begin:
                due = self.assign(begin)
            while stack and stack[-1][0] <= begin:
                pop()
            while begin >= until:
                counts, until = next(self.counted)
            phase = base
            if stack:
                outer_end, _, phase, outer = stack[-1]
                if outer is not None:
                    outer[3] -= min(end, outer_end) - begin
            if name in named and named[name] > phase:
                phase = named[name]
            row = None
            if counts:
                row = sums[name]
                row[0] += 1
                row[3] += end - begin
            push((end, name, phase, row))
        self.counts, self.until = counts, until

    def assign(self, until: int) -> int:
        """Give the tasks enqueued before ``until`` to the operators open then; returns the time of the next one."""
        stack, points, phases = self.stack, self.points, self.phases
        time, took, segment = self.due
        while time < until:
            while stack and stack[-1][0] <= time:
                stack.pop()
            phase = self.phase
            if stack:
                _, name, phase, row = stack[-1]
                if row is None:  # it began before the units, and counts where they have its kernels
                    row = self.sums[name]
                    row[0] = row[0] or 1
                row[1] += 1
                row[2] += took
            phases[segment][phase] += took
            time, took, segment = next(points, _NONE)
        self.due = time, took, segment
        return time


def _phases(texts: Sequence[str]) -> dict[int, int]:
    """Name → the phase that an operator of this name begins; only those that begin one."""
    prefixes = ((BACKWARD, PHASES.index("backward")), (OPTIMIZER, PHASES.index("optimizer")))
    return {at: phase for at, text in enumerate(texts) for prefix, phase in prefixes if text.startswith(prefix)}


def _points(found: Timeline, owner: Sequence[int], chosen: Set[int]) -> dict[int, Sequence[int]]:
    """Thread → the tasks that the chosen segments enqueued there, in the order in which they did.

    What a segment enqueued lies before what the next one did: each is sorted by itself, which takes less memory.
    """
    threads: dict[int, dict[int, array[int]]] = {}
    for at, (segment, thread) in enumerate(zip(owner, found.tasks.thread, strict=True)):
        if segment in chosen and thread != UNKNOWN:
            threads.setdefault(thread, {}).setdefault(segment, array("i")).append(at)
    points: dict[int, Sequence[int]] = {}
    for thread, segments in threads.items():
        points[thread] = column = array("i")
        for _, own in sorted(segments.items(), key=itemgetter(0)):
            column.extend(sorted(own, key=found.tasks.enqueued.__getitem__))
    return points
