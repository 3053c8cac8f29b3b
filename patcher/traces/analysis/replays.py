"""Kernels of replayed graphs, which have one launch and no operator, joined with what was recorded of their capture.

While a graph is captured, its kernels are launched by their operators and do not run; when it is replayed, they run and
nothing else is known of them. Both have the same order. So the launches between the begin and the end of a capture are
held against the tasks of a replay, one by one: their number, whether each is a copy, and the names of the kernels where
the capture has them (on AMD). Where something differs, nothing of that unit is joined.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, groupby, islice, pairwise
from typing import NamedTuple

from patcher.traces.analysis.segments import Split
from patcher.traces.model import COPY, KINDS, ReplayJoin
from patcher.traces.timeline import UNKNOWN, CapturedLaunches, Row, Timeline

_COPY, _NEVER = KINDS.index(COPY), 1 << 63


class CapturedCall(NamedTuple):
    """One captured launch: its ``kernel`` ("": not named), ``copy`` if it is one, and what was around it on the host.

    ``operator`` is the innermost one, with its inputs where they are known, none without any, and ``call`` tells its
    calls apart; ``modules`` are all around it, with what tells theirs apart: UNKNOWN for one around the whole capture,
    which is called by a replay, too.
    """

    kernel: str
    copy: bool
    operator: tuple[str, ...]
    call: int
    modules: tuple[tuple[str, int], ...]


class CapturedSet(NamedTuple):
    """The graphs that were captured, one after the other, for batches of ``size`` tokens."""

    size: int
    graphs: tuple[tuple[CapturedCall, ...], ...]


class Replays:
    """What is joined: the ``tasks`` that are, those of them ``placed`` in modules, and sums by numbers of names."""

    def __init__(self) -> None:
        self.tasks, self.placed = set[int](), set[int]()
        self.operators: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        self.modules: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        self.count = self.joined = 0
        self.why = Counter[str]()

    @property
    def result(self) -> ReplayJoin | None:
        """How many replays were joined, and why others were not; None without any capture, or any replay."""
        whys = tuple(why for why, _ in self.why.most_common())
        return ReplayJoin(self.count, self.joined, whys) if self.count else None


def captured(found: Timeline) -> tuple[CapturedSet, ...]:
    """The graphs that were captured while a timeline was recorded, of two launches and more.

    None of which nobody can tell the size; the replay of one kernel looks like any other launch.
    """
    threads: dict[int, list[CapturedLaunches]] = defaultdict(list)
    for one in found.captured:
        threads[one.thread].append(one)
    calls = {thread: _calls(found, thread, own) for thread, own in threads.items()}
    graphs = [tuple(islice(calls[one.thread], len(one.time))) for one in found.captured]
    graphs = [graph for graph in graphs if len(graph) > 1]
    sizes = [_size(graph) for graph in graphs]
    size, sized = next(filter(None, sizes), None), []
    for own, graph in zip(sizes, graphs, strict=True):
        size = own or size  # a piece without a tensor is of the batch of the one before
        sized.append((size, graph))
    sets = groupby(sized, key=lambda one: one[0])
    return tuple(CapturedSet(size, tuple(graph for _, graph in own)) for size, own in sets if size)


def _calls(found: Timeline, thread: int, graphs: Sequence[CapturedLaunches]) -> Iterator[CapturedCall]:
    """The launches of all graphs that a thread captured."""
    texts = found.names.texts
    ranges = (found.operators[thread], found.modules[thread])
    around = (_around(own.in_order(), chain.from_iterable(one.time for one in graphs)) for own in ranges)
    launches = ((one.begin, *launch) for one in graphs for launch in zip(one.kernel, one.copy, strict=True))
    for (since, kernel, copy), operators, modules in zip(launches, *around, strict=True):
        begin, _, name = operators[-1] if operators else (UNKNOWN, 0, UNKNOWN)
        operator = () if name == UNKNOWN else (texts[name], *found.shapes.get(name, ()))
        shown = "" if kernel == UNKNOWN else texts[kernel]
        within = ((texts[name], UNKNOWN if when < since else when) for when, _, name in modules)
        yield CapturedCall(shown, bool(copy), operator, begin, tuple(within))


def _around(rows: Iterable[Row], times: Iterable[int]) -> Iterator[list[Row]]:
    """What is open at each of some times, in order, the innermost last."""
    ranges = chain(rows, [(_NEVER, _NEVER, UNKNOWN)])
    stack: list[Row] = []
    following = next(ranges)
    for time in times:
        while following[0] <= time:
            while stack and stack[-1][1] <= following[0]:
                stack.pop()
            stack.append(following)
            following = next(ranges)
        stack = [one for one in stack if one[1] > time]
        yield stack


def _size(graph: Iterable[CapturedCall]) -> int | None:
    """The tokens of a batch: the rows that most operators have, of the first of their tensors that has some."""
    rows = Counter[int]()
    for shapes in {(one.call, one.operator[1]) for one in graph if len(one.operator) > 1}:
        with suppress(ValueError, TypeError, RecursionError):
            tensors = (dims for dims in json.loads(shapes[1]) if isinstance(dims, list) and len(dims) > 1)
            rows.update(dims[0] for dims in list(tensors)[:1] if type(dims[0]) is int)
    return max(rows, key=lambda size: (rows[size], size), default=None)


def replayed(
    found: Timeline, cuts: Split, chosen: Collection[int], tokens: Mapping[int, int | None], sets: Sequence[CapturedSet]
) -> Replays:
    """Join the replays in the chosen segments with the graphs captured for their size; ``tokens`` by segment."""
    made = Replays()
    if not sets:
        return made
    numbers: dict[tuple[str, ...], int] = {}
    for segment, replays in _replays(found, cuts, chosen).items():
        made.count += len(replays)
        size = min((one.size for one in sets if one.size >= (tokens[segment] or _NEVER)), default=None)
        whys = []
        for graphs in (one.graphs for one in sets if one.size == size):
            why = _difference(found, replays, graphs)
            if not why:
                made.joined += len(replays)
                for tasks, graph in zip(replays, graphs, strict=True):
                    _join(found, made, tasks, graph, numbers)
                break
            whys.append(why)
        else:
            made.why[whys[-1] if whys else "no graph was captured for as many tokens"] += len(replays)
    return made


def _replays(found: Timeline, cuts: Split, chosen: Collection[int]) -> dict[int, list[list[int]]]:
    """Segment → the tasks of each replay in the order of their begin, that of the first launch first."""
    launches: dict[tuple[int, int], list[int]] = defaultdict(list)
    for task in cuts.order:
        key = found.tasks.key[task]
        if key != UNKNOWN and cuts.owner[task] in chosen:
            launches[cuts.owner[task], key].append(task)
    found_in: dict[int, list[list[int]]] = defaultdict(list)
    for (segment, _), tasks in launches.items():
        if len(tasks) > 1:
            found_in[segment].append(tasks)
    for replays in found_in.values():
        replays.sort(key=lambda tasks: found.tasks.enqueued[tasks[0]])
    return found_in


def _difference(found: Timeline, replays: Sequence[Sequence[int]], graphs: Sequence[Sequence[CapturedCall]]) -> str:
    """In what replays differ from captured graphs; "" where they do not."""
    if len(replays) != len(graphs):
        return f"replays in a unit and captured graphs of its size differ in number: {len(replays)} and {len(graphs)}"
    tasks, texts = found.tasks, found.names.texts
    for replay, graph in zip(replays, graphs, strict=True):
        if len(replay) != len(graph):
            return f"kernels of a replay and of its capture differ in number: {len(replay):,} and {len(graph):,}"
        for task, call in zip(replay, graph, strict=True):
            if call.copy != (tasks.kind[task] == _COPY) or (call.kernel and call.kernel != texts[tasks.name[task]]):
                return "the kernels of a replay are others than those captured, or in another order"
        named = all(call.kernel for call in graph if not call.copy)
        if not named and any(tasks.end[one] > tasks.begin[other] for one, other in pairwise(replay)):
            return "kernels of a replay overlap, so their order tells nothing without their names"
    return ""


def _join(
    found: Timeline, made: Replays, tasks: Sequence[int], graph: Sequence[CapturedCall],
    numbers: dict[tuple[str, ...], int],
) -> None:  # fmt: skip
    """Give the tasks of one replay to the operators and modules of its graph."""
    for operator, _ in {(one.operator, one.call) for one in graph if one.operator}:
        made.operators[_number(found, operator, numbers)][0] += 1
    for name, when in {module for one in graph for module in one.modules}:
        made.modules[found.names[name]][0] += when != UNKNOWN
    for task, call in zip(tasks, graph, strict=True):
        ns = found.tasks.end[task] - found.tasks.begin[task]
        own = [made.operators[_number(found, call.operator, numbers)]] if call.operator else []
        for row in (*own, *(made.modules[found.names[name]] for name in {name for name, _ in call.modules})):
            row[1] += 1
            row[2] += ns
        if call.modules:
            made.placed.add(task)
    made.tasks.update(tasks)


def _number(found: Timeline, operator: tuple[str, ...], numbers: dict[tuple[str, ...], int]) -> int:
    """The number of an operator in the timeline of the replay, with the inputs that it was captured with."""
    name, *inputs = operator
    if not inputs:
        return found.names[name]
    number = numbers.get(operator)
    if number is None:
        number = numbers[operator] = found.names.again(name)
        found.shapes[number] = tuple(inputs)
    return number
