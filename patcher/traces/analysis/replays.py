"""Kernels of replayed graphs, which have one launch and no operator, joined with what was recorded of their capture.

While a graph is captured, its kernels are launched by their operators and do not run; when it is replayed, they run and
nothing else is known of them. Both have the same order. So the launches between the begin and the end of a capture are
held against the tasks of a replay, one by one: their number, whether each is a copy, and the names of the kernels where
the capture has them (on AMD). Where something differs, nothing of that step is joined.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

from patcher.messages import Text
from patcher.traces.analysis.nested import HostThread, host_thread
from patcher.traces.analysis.segments import Split
from patcher.traces.model import COPY, KINDS, ReplayJoin
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import UNKNOWN, CapturedLaunches

_COPY, _NEVER = KINDS.index(COPY), 1 << 63


class CapturedCall(NamedTuple):
    """One captured launch: its ``kernel`` ("" if unnamed), whether it is a ``copy``, and the host around it.

    ``operator`` is the innermost operator with its inputs if known, empty without one; ``call`` is the begin of its
    call. ``modules`` are the name and the begin of each module around the launch: UNKNOWN for a module around the whole
    capture, which a replay calls, too.
    """

    kernel: str
    copy: bool
    operator: tuple[str, ...]
    call: int
    modules: tuple[tuple[str, int], ...]


class CapturedSet(NamedTuple):
    """Graphs that were captured one after the other for batches of ``size`` tokens."""

    size: int
    graphs: tuple[tuple[CapturedCall, ...], ...]


class Replays:
    """Joined replays: their ``tasks``, those ``placed`` in modules, and sums of operators and modules by name."""

    def __init__(self, trace: RankTrace) -> None:
        self.trace = trace
        self.tasks, self.placed = set[int](), set[int]()
        self.operators: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        self.modules: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        self.count = self.joined = 0
        self.why = Counter[str]()
        self.numbers: dict[tuple[str, ...], int] = {}  # of operators with inputs

    @property
    def result(self) -> ReplayJoin | None:
        """Return how many replays were joined, and why others were not; None without any capture, or any replay."""
        whys = tuple(why for why, _ in self.why.most_common())
        return ReplayJoin(self.count, self.joined, whys) if self.count else None

    def add_replay(self, tasks: Sequence[int], graph: Sequence[CapturedCall]) -> None:
        """Add a replay's calls and tasks to the sums of the operators and modules that launched them at the capture.

        ``tasks`` has the indices of the tasks, ``graph`` the captured launch of each, in the same order. The tasks are
        noted in ``tasks`` of this object, those launched within a module also in ``placed``.
        """
        columns, names = self.trace.tasks, self.trace.names
        for operator, _ in {(call.operator, call.call) for call in graph if call.operator}:
            self.operators[self._number_of_name(operator)][0] += 1
        for name, begin in {module for call in graph for module in call.modules}:
            self.modules[names[name]][0] += begin != UNKNOWN
        for task, call in zip(tasks, graph, strict=True):
            rows = [self.modules[names[name]] for name in {name for name, _ in call.modules}]
            if call.operator:
                rows.append(self.operators[self._number_of_name(call.operator)])
            for row in rows:
                row[1] += 1
                row[2] += columns.end[task] - columns.begin[task]
            if call.modules:
                self.placed.add(task)
        self.tasks.update(tasks)

    def _number_of_name(self, operator: tuple[str, ...]) -> int:
        """Return the number of an operator (its name, then its inputs if known) in the trace's names; add it if new."""
        name, *inputs = operator
        if not inputs:
            return self.trace.names[name]
        if operator not in self.numbers:
            self.numbers[operator] = self.trace.names.add_again(name)
            self.trace.shapes[self.numbers[operator]] = tuple(inputs)
        return self.numbers[operator]


def captured_sets(trace: RankTrace) -> tuple[CapturedSet, ...]:
    """Return the graphs that were captured during a trace, in order; consecutive ones of a batch size form a set.

    Graphs with a single launch are left out, because their replay looks like any other launch. A graph whose size (in
    tokens) is unknown gets that of the graph before it, or else the first known one; the result is empty if none is.
    """
    around = {thread: host_thread(trace, thread) for thread in {launches.thread for launches in trace.captured}}
    graphs = [tuple(_captured_calls(trace, around[launches.thread], launches)) for launches in trace.captured]
    graphs = [graph for graph in graphs if len(graph) > 1]
    sizes = [_batch_size(graph) for graph in graphs]
    size = next(filter(None, sizes), None)
    sized = []
    for own_size, graph in zip(sizes, graphs, strict=True):
        size = own_size or size  # a piece without a tensor is of the batch of the one before
        sized.append((size, graph))
    by_size = groupby(sized, key=itemgetter(0))
    return tuple(CapturedSet(size, tuple(graph for _, graph in group)) for size, group in by_size if size)


def _captured_calls(trace: RankTrace, around: HostThread, launches: CapturedLaunches) -> Iterator[CapturedCall]:
    """Yield each launch of a captured graph with the operator and the modules around it on the host.

    ``around`` has operators and modules of the thread that captured the graph.
    """
    texts, operators, modules = trace.names.texts, around.operators, around.modules
    times = launches.time
    columns = (launches.kernel, launches.copy, operators.innermost(times), modules.innermost(times))
    for time, kernel, copy, call, module in zip(times, *columns, strict=True):
        operator: tuple[str, ...] = ()
        if call != UNKNOWN:
            name = operators.name[call]
            operator = (texts[name], *trace.shapes.get(name, ()))
        outer = [index for index in modules.around(module) if modules.end[index] > time]
        within = ((texts[modules.name[index]], modules.begin[index]) for index in outer)
        within = ((name, UNKNOWN if begin < launches.begin else begin) for name, begin in within)
        kernel_name = "" if kernel == UNKNOWN else texts[kernel]
        began = UNKNOWN if call == UNKNOWN else operators.begin[call]
        yield CapturedCall(kernel_name, bool(copy), operator, began, tuple(within))


def _batch_size(graph: Iterable[CapturedCall]) -> int | None:
    """Return the batch size of a graph in tokens; None if no operator has a matrix.

    It is the number of rows that most operators have in the first matrix among their inputs.
    """
    rows = Counter[int]()
    for _, shapes in {(call.call, call.operator[1]) for call in graph if len(call.operator) > 1}:
        with suppress(ValueError, TypeError, RecursionError):
            first = next((dims for dims in json.loads(shapes) if isinstance(dims, list) and len(dims) > 1), [None])
            if type(first[0]) is int:
                rows[first[0]] += 1
    return max(rows, key=lambda size: (rows[size], size), default=None)


def join_replays(
    trace: RankTrace,
    cuts: Split,
    chosen: Collection[int],
    tokens: Mapping[int, int | None],
    captured: Sequence[CapturedSet],
) -> Replays:
    """Match graph replays in the ``chosen`` segments with captured graphs, and return the sums of their kernels' time.

    A segment is the stretch of a step. A matched kernel counts for the operator and the modules that launched it during
    the capture. The replays of a segment are compared with the graphs of the smallest captured batch size that holds
    its tokens; ``tokens`` maps a segment to their number, None if unknown. If one replay differs, none of the segment
    is matched, and the reason is kept. Without captured graphs, replays are not even counted.
    """
    joined = Replays(trace)
    if not captured:
        return joined
    for segment, replays in _replays(trace, cuts, chosen).items():
        joined.count += len(replays)
        size = min(
            (captured_set.size for captured_set in captured if captured_set.size >= (tokens[segment] or _NEVER)),
            default=None,
        )
        why: str = Text(
            "a step has more tokens than fit into the largest captured graph, or the number of tokens in the step is"
            " unknown"
        )
        for graphs in (captured_set.graphs for captured_set in captured if captured_set.size == size):
            why = _why_unmatched(trace, replays, graphs)
            if not why:
                joined.joined += len(replays)
                for tasks, graph in zip(replays, graphs, strict=True):
                    joined.add_replay(tasks, graph)
                break
        if why:
            joined.why[why] += len(replays)
    return joined


def _replays(trace: RankTrace, cuts: Split, chosen: Collection[int]) -> dict[int, list[list[int]]]:
    """Return segment → its graph replays, by the time of their launch; each is the list of its tasks by begin.

    ``chosen`` has the indices of the segments (steps). A launch of a single task is no replay.
    """
    launches: dict[tuple[int, int], list[int]] = defaultdict(list)
    for task in cuts.order:
        key = trace.tasks.key[task]
        if key != UNKNOWN and cuts.owner[task] in chosen:
            launches[cuts.owner[task], key].append(task)
    by_segment: dict[int, list[list[int]]] = defaultdict(list)
    for (segment, _), tasks in launches.items():
        if len(tasks) > 1:
            by_segment[segment].append(tasks)
    for replays in by_segment.values():
        replays.sort(key=lambda tasks: trace.tasks.enqueued[tasks[0]])
    return by_segment


def _why_unmatched(trace: RankTrace, replays: Sequence[Sequence[int]], graphs: Sequence[Sequence[CapturedCall]]) -> str:
    """Return why the kernels of a step's replays cannot be matched to the captured ``graphs``; "" if they can.

    Reasons are other numbers of replays or kernels, other copies or names, and kernels without names that overlap.
    """
    if len(replays) != len(graphs):
        return Text(
            "a step replays {count} graphs, but {captured} graphs of its batch size were captured",
            count=len(replays),
            captured=len(graphs),
        )
    tasks, texts = trace.tasks, trace.names.texts
    for replay, graph in zip(replays, graphs, strict=True):
        if len(replay) != len(graph):
            return Text(
                "a replayed graph has {count:,} kernels, but {captured:,} were captured",
                count=len(replay),
                captured=len(graph),
            )
        for task, call in zip(replay, graph, strict=True):
            if call.copy != (tasks.kind[task] == _COPY) or (call.kernel and call.kernel != texts[tasks.name[task]]):
                return Text(
                    "the kernels of a graph replay differ from those recorded at capture, or come in another order"
                )
        is_named = all(call.kernel for call in graph if not call.copy)
        if not is_named and any(tasks.end[task] > tasks.begin[following] for task, following in pairwise(replay)):
            return Text(
                "the captured kernels have no names, and the kernels of a replay overlap, so rlpatch cannot match"
                " captured and replayed kernels by name or by order"
            )
    return ""
