"""The threads of the host while the units lasted: operators, modules, and the phases of training.

Each thread is walked once, in the order in which its ranges begin, with a stack of those that are open. A reader may
hand them over piece by piece, so of an operator only the sums of its name are kept. What was open at a moment has to be
asked for before.
"""

from __future__ import annotations

import operator
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from patcher.traces.analysis.replays import Replays
from patcher.traces.analysis.segments import Segment
from patcher.traces.model import CallSums
from patcher.traces.timeline import BACKWARD, OPTIMIZER, UNKNOWN, Row, Timeline, in_order

PHASES = ("forward", "backward", "optimizer")
"""Where operators of several phases are around a task, the last of these counts."""

Due = Iterator[tuple[int, int, int]]
"""Of each task when it was enqueued, in this order, how long it took, and its segment; the last one comes never.

Among them stand moments that are asked for, with ``_MOMENT`` less their number for a segment.
"""

_MOMENT = -2

CallTable = dict[int, list[int]]
"""Name → its calls, the kernels launched within, the time of these, and the time on the host."""

_NEVER = 1 << 63


class HostPlaces:
    """Moments on threads of the host, and what these were in then: numbers of names, UNKNOWN for nothing.

    The ``operator`` is the outermost of those of one library that lie within each other, so ``aten::item`` and not what
    that calls; the ``module`` is the innermost.
    """

    def __init__(self) -> None:
        self.thread, self.time = array("i"), array("q")
        self.operator, self.module = array("i"), array("i")

    def add(self, thread: int, time: int) -> None:
        """One more moment."""
        self.thread.append(thread)
        self.time.append(time)
        self.operator.append(UNKNOWN)
        self.module.append(UNKNOWN)

    def by_thread(self) -> dict[int, list[tuple[int, int, int]]]:
        """The moments of each thread in order, as they stand among what is due."""
        threads: dict[int, list[tuple[int, int, int]]] = {}
        for at, (thread, time) in enumerate(zip(self.thread, self.time, strict=True)):
            threads.setdefault(thread, []).append((time, 0, _MOMENT - at))
        return {thread: sorted(moments) for thread, moments in threads.items()}


class HostSums:
    """The calls of the host in the ``chosen`` segments, with the tasks that they launched, by ``owner``.

    ``times`` maps each of these to phase → time of the kernels that it launched, to nothing where no unit trains. What
    is asked for in ``places`` is filled in. The tasks of ``replays`` that were joined count as captured.
    """

    def __init__(
        self, found: Timeline, segments: Sequence[Segment], owner: Sequence[int], chosen: Sequence[int],
        places: HostPlaces, replays: Replays,
    ) -> None:  # fmt: skip
        self.phases = {at: [0] * len(PHASES) for at in chosen}
        # Whether the host counts, and until when, from the beginning of time to its end.
        self.counted = [(False, segments[0].begin if segments else _NEVER + 1)]
        self.counted += [(at in self.phases, segment.end) for at, segment in enumerate(segments)]
        self.counted.append((False, _NEVER + 1))
        self.own: CallTable = defaultdict(lambda: [0, 0, 0, 0])
        self.whole: CallTable = defaultdict(lambda: [0, 0, 0, 0])
        self.places, self.texts, moments = places, found.names.texts, places.by_thread()
        enqueued = self._enqueued(found, owner)
        self._walk_operators(found, [
            _due(found, owner, _without(replays.tasks, tasks), moments.get(thread))
            for thread, tasks in enumerate(enqueued)
        ])  # fmt: skip
        for thread, (ranges, tasks) in enumerate(zip(found.modules, enqueued, strict=True)):
            if ranges.begin:
                due = _due(found, owner, _without(replays.placed, tasks), moments.get(thread))
                self._walk_modules(ranges.in_order(), due)
        _add(self.own, replays.operators)
        _add(self.whole, replays.modules)
        self.operators = _rows(self.own, found.names.texts)
        self.modules = _rows(self.whole, found.names.texts)
        trains = any(backward or optimizer for _, backward, optimizer in self.phases.values())
        self.times = {at: dict(zip(PHASES, own, strict=True)) if trains else {} for at, own in self.phases.items()}

    def _enqueued(self, found: Timeline, owner: Sequence[int]) -> list[array[int]]:
        """The tasks that each thread enqueued in the chosen segments, in the order in which it did."""
        threads = [array("i") for _ in found.threads]
        for at, (segment, thread) in enumerate(zip(owner, found.tasks.thread, strict=True)):
            if segment in self.phases and thread != UNKNOWN:
                threads[thread].append(at)
        return [in_order(tasks, found.tasks.enqueued) for tasks in threads]

    def _walk_operators(self, found: Timeline, due: Iterable[Due]) -> None:
        """Give each task to the operator that enqueued it; ``due`` has the tasks of each thread."""
        named = {
            at: phase for at, text in enumerate(found.names.texts)
            for prefix, phase in ((BACKWARD, 1), (OPTIMIZER, 2)) if text.startswith(prefix)
        }  # fmt: skip
        backward = found.backward - {thread for thread, _ in found.marks}
        walks = [OperatorWalk(self, tasks, named, int(thread in backward)) for thread, tasks in enumerate(due)]
        for thread, rows in found.operators_in_order():
            walks[thread].take(rows)
        for walk in walks:
            walk.assign(_NEVER)

    def _walk_modules(self, rows: Iterable[Row], due: Due) -> None:
        """Give each task to every module around the time at which it was enqueued, once to each name."""
        sums, counted = self.whole, iter(self.counted)
        counts, until = next(counted)
        stack: list[tuple[int, int]] = []
        time, took, segment = next(due)
        for begin, end, name in chain(rows, [(_NEVER, _NEVER, UNKNOWN)]):
            while time < begin:
                stack[:] = [entry for entry in stack if entry[0] > time]
                if segment <= _MOMENT:
                    self.places.module[_MOMENT - segment] = stack[-1][1] if stack else UNKNOWN
                else:
                    for around in {name for _, name in stack}:
                        sums[around][1] += 1
                        sums[around][2] += took
                time, took, segment = next(due)
            stack[:] = [entry for entry in stack if entry[0] > begin]
            while begin >= until:
                counts, until = next(counted)
            if counts:
                sums[name][0] += 1
                if all(name != other for _, other in stack):
                    sums[name][3] += end - begin
            stack.append((end, name))


class OperatorWalk:
    """The operators of one thread: each task goes to the innermost one around the time at which it was enqueued.

    Its phase is that of ``named`` (name → phase) which is latest around it, or the ``phase`` of the thread.
    """

    def __init__(self, hosts: HostSums, due: Due, named: Mapping[int, int], phase: int) -> None:
        self.sums, self.phases, self.counted = hosts.own, hosts.phases, iter(hosts.counted)
        self.places, self.texts = hosts.places, hosts.texts
        self.due, self.named, self.phase = due, named, phase
        self.counts, self.until = next(self.counted)
        self.task = next(due)
        # Of what is open, the innermost last: its end, name, phase, and the row of its name where it counts.
        self.stack: list[tuple[int, int, int, list[int] | None]] = []

    def take(self, rows: Iterable[Row]) -> None:
        """The next operators, in the order of their begin, the outer before the inner one."""
        # This runs a million times for each GB: what it needs is bound before, and nothing is called that need not be.
        sums, named, stack, base = self.sums, self.named, self.stack, self.phase
        counts, until, due = self.counts, self.until, self.task[0]
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
                    outer[3] -= (end if end < outer_end else outer_end) - begin
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
        stack = self.stack
        time, took, segment = self.task
        while time < until:
            while stack and stack[-1][0] <= time:
                stack.pop()
            if segment <= _MOMENT:
                self.places.operator[_MOMENT - segment] = self._around()
                time, took, segment = next(self.due)
                continue
            phase = self.phase
            if stack:
                _, name, phase, row = stack[-1]
                if row is None:  # it began before the units, and counts where they have its kernels
                    row = self.sums[name]
                    row[0] = row[0] or 1
                row[1] += 1
                row[2] += took
            self.phases[segment][phase] += took
            time, took, segment = next(self.due)
        self.task = time, took, segment
        return time

    def _around(self) -> int:
        """The outermost operator that is open, and of the library of the innermost one as all within it are."""
        found, library = UNKNOWN, ""
        for _, name, _, _ in reversed(self.stack):
            own = self.texts[name].partition("::")[0]
            if found != UNKNOWN and own != library:
                break
            found, library = name, own
        return found


def _without(joined: Collection[int], tasks: Iterable[int]) -> Iterable[int]:
    return (task for task in tasks if task not in joined) if joined else tasks


def _due(
    found: Timeline, owner: Sequence[int], enqueued: Iterable[int], moments: Iterable[tuple[int, int, int]] | None
) -> Due:
    tasks, waiting = found.tasks, chain(moments or (), [(_NEVER, 0, UNKNOWN)])
    moment = next(waiting)
    for at in enqueued:
        time = tasks.enqueued[at]
        while moment[0] < time:
            yield moment
            moment = next(waiting)
        yield time, tasks.end[at] - tasks.begin[at], owner[at]
    yield moment
    yield from waiting


def _add(sums: CallTable, joined: Mapping[int, Iterable[int]]) -> None:
    """Add what replays were joined with; a name of which nothing was called but in a graph was called once."""
    for name, values in joined.items():
        sums[name][:] = map(operator.add, sums[name], values)
        sums[name][0] = sums[name][0] or 1


def _rows(sums: CallTable, texts: Sequence[str]) -> tuple[CallSums, ...]:
    """The names that were called, that with the longest time on the device first."""
    named: dict[str, list[int]] = {}
    for number, values in sums.items():
        if values[0]:  # operators of one name with different shapes have several numbers
            named[texts[number]] = list(map(operator.add, named.get(texts[number], (0, 0, 0, 0)), values))
    rows = [CallSums(name, *values) for name, values in named.items()]
    return tuple(sorted(rows, key=lambda row: (-row.ns, -row.host_ns, row.name)))
