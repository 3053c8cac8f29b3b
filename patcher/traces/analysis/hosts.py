"""The threads of the host while the steps lasted: operators, modules, and the phases of training."""

from __future__ import annotations

import operator
import re
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from patcher.traces.analysis.nested import HostThread, NestedRanges
from patcher.traces.analysis.replays import Replays
from patcher.traces.analysis.segments import Split
from patcher.traces.model import CallSums
from patcher.traces.rank_trace import BACKWARD, OPTIMIZER, RankTrace
from patcher.traces.trace_columns import UNKNOWN

PHASES = ("forward", "backward", "optimizer", "unknown")
"""Phases of training; where operators of several are around a task, the latest of these counts.

Forward is what an operator launched that is none of the others; a kernel without an operator has an unknown phase.
"""

_UNKNOWN_PHASE = PHASES.index("unknown")
_BACKWARD = re.compile(rf"{re.escape(BACKWARD)}|\w+Backward\d*$")
"""Names of operators of the backward pass: autograd's own, and those of functions that a framework calls by itself."""

CallTable = dict[int, list[int]]
"""Name → its calls, the kernels launched within, the time of these, and the time on the host."""


class HostAround(NamedTuple):
    """Operator and module around a moment of the host, as numbers of names; UNKNOWN for none.

    The ``operator`` is the outermost of nested operators of one library: ``aten::item``, not the operators that it
    calls. The ``module`` is the innermost.
    """

    operator: int
    module: int


NOWHERE = HostAround(UNKNOWN, UNKNOWN)


def host_around(
    trace: RankTrace, threads: Sequence[HostThread], moments: Sequence[tuple[int, int]]
) -> list[HostAround]:
    """Return the operator and the module around each moment, in the order of ``moments``.

    A moment is (thread, time in ns). Of nested operators of one library it is the outermost, of modules the innermost.
    `NOWHERE` for the thread UNKNOWN; a name is UNKNOWN if nothing was around.
    """
    by_thread = defaultdict[int, list[int]](list)
    for place, (thread, _) in enumerate(moments):
        by_thread[thread].append(place)
    by_thread.pop(UNKNOWN, None)
    around = [NOWHERE] * len(moments)
    libraries = [text.partition("::")[0] for text in trace.names.texts]
    for thread, places in by_thread.items():
        places.sort(key=lambda place: moments[place][1])
        times = [moments[place][1] for place in places]
        operators, modules = threads[thread]
        indices = zip(places, operators.innermost(times), modules.innermost(times), strict=True)
        for place, index, module in indices:
            name = UNKNOWN if module == UNKNOWN else modules.name[module]
            around[place] = HostAround(_outermost_in_library(operators, index, libraries), name)
    return around


def _outermost_in_library(operators: NestedRanges, index: int, libraries: Sequence[str]) -> int:
    """Return the outermost operator of the same library around operator ``index``, as the number of its name.

    The library is what stands before :: in a name, such as aten; ``libraries`` has it for each number of a name.
    UNKNOWN if ``index`` is UNKNOWN.
    """
    name = UNKNOWN
    library = None
    for outer in operators.around(index):
        outer_name = operators.name[outer]
        if library not in (None, libraries[outer_name]):
            break
        name, library = outer_name, libraries[outer_name]
    return name


class HostSums:
    """Calls of the host in the ``chosen`` segments, with the tasks that they launched.

    ``times`` is segment → phase → ns of the kernels that it launched, without phases if no step trains. Joined tasks of
    ``replays`` count for the operators and modules of their capture.
    """

    def __init__(
        self, trace: RankTrace, cuts: Split, chosen: Collection[int], threads: Sequence[HostThread], replays: Replays
    ) -> None:
        self.trace, self.owner = trace, cuts.owner
        self.windows = [cuts.segments[segment] for segment in chosen]
        self.phases = {segment: [0] * len(PHASES) for segment in chosen}
        self.operator_calls: CallTable = defaultdict(lambda: [0, 0, 0, 0])
        self.module_calls: CallTable = defaultdict(lambda: [0, 0, 0, 0])
        self.kernel_operators = Counter[tuple[int, int]]()  # ns of tasks, by the names of kernel and operator
        self.nested = Counter[tuple[int, int]]()  # ns on the host, by the module around and the module
        texts = trace.names.texts
        phase_names = {number: 1 for number, text in enumerate(texts) if _BACKWARD.match(text)}
        phase_names |= {number: 2 for number, text in enumerate(texts) if text.startswith(OPTIMIZER)}
        backward = trace.backward - {thread for thread, _ in trace.marks}
        for thread, tasks in enumerate(self._tasks_by_thread()):
            operators, modules = threads[thread]
            self._add_operators(operators, _without(replays.tasks, tasks), phase_names, int(thread in backward))
            if modules.begin:
                self._add_modules(modules, _without(replays.placed, tasks))
        _add_joined(self.operator_calls, replays.operators)
        _add_joined(self.module_calls, replays.modules)
        self.operators = _call_sums(self.operator_calls, texts)
        self.modules = _call_sums(self.module_calls, texts)
        self.late_modules = tuple(most_specific_modules(self._nested_modules(texts), self.modules))
        trains = any(backward or optimizer for _, backward, optimizer, _ in self.phases.values())
        self.times = {segment: _named_phases(sums) if trains else {} for segment, sums in self.phases.items()}

    def _nested_modules(self, texts: Sequence[str]) -> dict[tuple[str, str], int]:
        """Return (class of the module around, or "", class of a module) → ns on the host."""
        return {
            ("" if outer == UNKNOWN else texts[outer], texts[name]): ns for (outer, name), ns in self.nested.items()
        }

    def _tasks_by_thread(self) -> list[array[int]]:
        """Return for each thread of the trace the indices of its tasks in the chosen steps, by enqueue time.

        Tasks that no known thread enqueued are left out.
        """
        tasks = self.trace.tasks
        threads = [array("i") for _ in self.trace.threads]
        for task, (segment, thread) in enumerate(zip(self.owner, tasks.thread, strict=True)):
            if segment in self.phases and thread != UNKNOWN:
                threads[thread].append(task)
        return [array("i", sorted(enqueued, key=tasks.enqueued.__getitem__)) for enqueued in threads]

    def _begin_in_chosen(self, ranges: NestedRanges) -> bytearray:
        """Return a byte for each of ``ranges``, in order of begin: 1 if it began in a chosen step, else 0."""
        counted = bytearray(len(ranges.begin))
        for window in self.windows:
            first, end = (bisect_left(ranges.begin, time) for time in (window.begin, window.end))
            counted[first:end] = b"\1" * (end - first)
        return counted

    def _add_operators(
        self, operators: NestedRanges, tasks: Sequence[int], phase_names: Mapping[int, int], thread_phase: int
    ) -> None:
        """Add the calls and host time of a thread's operators that begin in the chosen steps, and their ``tasks``.

        They are added to ``operator_calls``, and the times of the tasks to ``phases`` and ``kernel_operators``. A task
        counts for the innermost operator around its launch; host time excludes nested operators. The phase of training
        of a task is the latest one that ``phase_names`` (number of a name → phase) gives to the operator or one around
        it. It is at least ``thread_phase``. Without an operator, it is ``thread_phase``, or unknown if that is 0
        (forward). An operator that began before the chosen steps counts as one call if it launched a task in them.
        """
        sums, counted = self.operator_calls, self._begin_in_chosen(operators)
        phases = _phases_of_operators(operators, phase_names, thread_phase)
        columns, kernel_operators = self.trace.tasks, self.kernel_operators
        for task, index in zip(tasks, operators.innermost(map(columns.enqueued.__getitem__, tasks)), strict=True):
            ns = columns.end[task] - columns.begin[task]
            phase = thread_phase or _UNKNOWN_PHASE
            if index != UNKNOWN:
                phase = phases[index] if phases else thread_phase
                row = sums[operators.name[index]]
                if not counted[index]:  # it began before the units, and counts where they have its kernels
                    row[0] = row[0] or 1
                row[1] += 1
                row[2] += ns
                kernel_operators[columns.name[task], operators.name[index]] += ns
            self.phases[self.owner[task]][phase] += ns
        if not any(counted):
            return
        names, ends = operators.name, operators.end
        # This runs a million times for each GB: nothing is called in it that need not be.
        for begin, end, name, parent, counts in zip(
            operators.begin, ends, names, operators.parent, counted, strict=True
        ):
            if counts:
                row = sums[name]
                row[0] += 1
                row[3] += end - begin
            if parent != UNKNOWN and counted[parent]:
                parent_end = ends[parent]
                sums[names[parent]][3] -= (end if end < parent_end else parent_end) - begin

    def _add_modules(self, modules: NestedRanges, tasks: Sequence[int]) -> None:
        """Add the calls of a thread's modules with their host time, and the ``tasks`` launched within each.

        They are added to ``module_calls``, and their host time to ``nested``; calls and host time count if a module
        begins in the chosen steps. Host time of a module includes all that it calls. If a module lies within another
        one of its name, only the outer one gets the time and the tasks.
        """
        count, ns = array("q", bytes(8 * len(modules.begin))), array("q", bytes(8 * len(modules.begin)))
        columns = self.trace.tasks
        for task, index in zip(tasks, modules.innermost(map(columns.enqueued.__getitem__, tasks)), strict=True):
            if index != UNKNOWN:
                count[index] += 1
                ns[index] += columns.end[task] - columns.begin[task]
        for index in range(len(modules.begin) - 1, -1, -1):
            parent = modules.parent[index]
            if parent != UNKNOWN:
                count[parent] += count[index]
                ns[parent] += ns[index]
        open_until = dict[int, int]()  # by name: a module within another of its name counts as a call of it, no more
        counted = self._begin_in_chosen(modules)
        for index, (begin, end, name) in enumerate(zip(modules.begin, modules.end, modules.name, strict=True)):
            row = self.module_calls[name]
            row[0] += counted[index]
            parent = modules.parent[index]
            self.nested[UNKNOWN if parent == UNKNOWN else modules.name[parent], name] += (end - begin) * counted[index]
            if open_until.get(name, begin) <= begin:
                open_until[name] = end
                row[1] += count[index]
                row[2] += ns[index]
                row[3] += (end - begin) * counted[index]


def _without(joined: Collection[int], tasks: Sequence[int]) -> Sequence[int]:
    """Return ``tasks`` without those that were ``joined`` with a captured graph."""
    return [task for task in tasks if task not in joined] if joined else tasks


def _phases_of_operators(operators: NestedRanges, phase_names: Mapping[int, int], thread_phase: int) -> bytearray:
    """Return the training phase of each operator: the latest phase that it, or an operator around it, belongs to.

    Phases are 0 for forward, 1 for backward and 2 for the optimizer. ``phase_names`` maps the number of an operator's
    name to its phase. No phase is below ``thread_phase``, that of the thread. The result is empty without
    ``phase_names``, because then nothing trains.
    """
    if not phase_names:
        return bytearray()
    phases = bytearray(len(operators.begin))
    for index, (name, parent) in enumerate(zip(operators.name, operators.parent, strict=True)):
        phase = thread_phase if parent == UNKNOWN else phases[parent]
        if name in phase_names and phase_names[name] > phase:
            phase = phase_names[name]
        phases[index] = phase
    return phases


def _named_phases(sums: Sequence[int]) -> dict[str, int]:
    """Return phase → ns; without the unknown phase if nothing is in it."""
    return {phase: ns for phase, ns in zip(PHASES, sums, strict=True) if ns or phase != "unknown"}


def _add_joined(sums: CallTable, joined: Mapping[int, Iterable[int]]) -> None:
    """Add the sums of joined replays to ``sums``, in place; a name that ran only in a graph counts as called once."""
    for name, values in joined.items():
        sums[name][:] = map(operator.add, sums[name], values)
        sums[name][0] = sums[name][0] or 1


def _call_sums(sums: CallTable, texts: Sequence[str]) -> tuple[CallSums, ...]:
    """Return calls, kernels and times by name, longest device time first; names that were never called are left out.

    ``sums`` maps the number of a name in ``texts`` to [calls, kernels, ns of the kernels, ns on the host]. Operators of
    one name with different shapes have several numbers, which are added up.
    """
    by_name: dict[str, list[int]] = {}
    for number, values in sums.items():
        if values[0]:
            by_name[texts[number]] = list(map(operator.add, by_name.get(texts[number], (0, 0, 0, 0)), values))
    rows = [CallSums(name, *values) for name, values in by_name.items()]
    return tuple(sorted(rows, key=lambda row: (-row.ns, -row.host_ns, row.name)))


def most_specific_modules(children: Mapping[tuple[str, str], int], modules: Iterable[CallSums]) -> Sequence[str]:
    """Return the classes of modules in which the host spends its time, as specific as makes sense.

    ``children`` maps (class around, class) to ns on the host, with "" around the outermost. A class is replaced by the
    classes within it if the two largest of these have three quarters of its time. A class that lies within several
    others can be in the result beside one of these.
    """
    host = {module.name: module.host_ns for module in modules}
    within: dict[str, dict[str, int]] = {}
    for (around, name), ns in children.items():
        if around != name:
            within.setdefault(around, {})[name] = ns
    chosen, open_names, visited = [], [*within.get("", {})], set[str]()
    while open_names:
        name = open_names.pop()
        if name in visited:
            continue
        visited.add(name)
        largest = sorted(within.get(name, {}).values(), reverse=True)[:2]
        if largest and 4 * sum(largest) >= 3 * host.get(name, 0):
            open_names += within[name]
        else:
            chosen.append(name)
    return chosen
