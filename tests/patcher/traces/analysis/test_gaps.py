"""Gaps of the device: delays at known places, of which the table has to name the right one first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace as Some
from typing import Any

import pytest

from patcher.traces import analysis, folders, formats
from patcher.traces.analysis import gaps
from patcher.traces.analysis.hosts import HostAround
from patcher.traces.analysis.idle import Idle
from patcher.traces.analysis.nested import host_thread
from patcher.traces.analysis.segments import split
from patcher.traces.model import RankProfile, RecordedUnit
from patcher.traces.places import first_place, place_of, preceding_words, why
from patcher.traces.rank_trace import RankTrace
from tests.patcher.traces.recorded import MS, NO_CAPTURES, SHARED, Range, Run, Task, free_ns, shared, timeline

US = 1000
LAYERS = ("embedding", "norm", "qkv", "attention", "out", "norm2", "up", "down", "logits", "argmax")


@dataclass
class Machine:
    """A host that launches kernels, and a device that runs those of each stream in order: what both did, in ``run``.

    Each method is one thing that the host does; ``thread`` is the one on which it runs.
    """

    call_ns: int = 5 * US
    thread: int = 1
    now: int = 0
    free: dict[int, int] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    operators: list[Range] = field(default_factory=list)
    calls: list[Range] = field(default_factory=list)
    modules: list[Range] = field(default_factory=list)
    functions: list[Range] = field(default_factory=list)
    marks: list[Range] = field(default_factory=list)

    def sleep(self, ns: int) -> None:
        self.now += ns

    def kernel(
        self, name: str, ns: int = 40 * US, *, stream: int = 7, inside: int = 0, after: int = 0, launching: int = 0,
        queued: int = 0, kind: str = "compute",
    ) -> None:  # fmt: skip
        """Launch a kernel from ``aten::<name>``, which first takes ``inside``; it begins no earlier than ``after``."""
        begin = self.now
        self.now += 10 * US + inside
        call = launching or self.call_ns
        self._task(name, ns, stream, self.now, after=after, call=("cudaLaunchKernel", call), queued=queued, kind=kind)
        self.now += call
        self.operators.append(Range(f"aten::{name}", begin, self.now, self.thread))

    def _task(
        self, name: str, ns: int, stream: int, launch: int, *, call: tuple[str, int], after: int = 0, queued: int = 0,
        kind: str = "compute", replay: int = 0,
    ) -> None:  # fmt: skip
        begin = max(self.free.get(stream, 0), launch + queued + 5 * US, after)
        self.free[stream] = begin + ns
        task = Task(begin, begin + ns, kind, name, stream, launch + queued, launch, call, replay, self.thread)
        self.tasks.append(task)

    def replay(self, names: tuple[str, ...], *, launching: int = 8 * US, stop: int = 0, key: int = 0) -> None:
        """Replay a graph, in which the kernel in the middle begins ``stop`` later than it could."""
        launch = self.now
        for at, name in enumerate(names):
            after = self.free.get(7, 0) + stop if at == len(names) // 2 and stop else 0
            self._task(name, 40 * US, 7, launch, call=("cudaGraphLaunch", launching), after=after, replay=10**6 + key)
        self.now += launching

    def wait(self, call: str, operator: str = "", least: int = 0) -> None:
        """A call that returns when all streams have come to an end, within an operator of that name."""
        begin = self.now
        self.now += 3 * US
        inner = Range(call, self.now, max([*self.free.values(), self.now]) + 4 * US + least, self.thread)
        self.calls.append(inner)
        self.now = inner.end + 3 * US
        if operator == "aten::item":
            self.operators.append(Range("aten::_local_scalar_dense", begin + US, self.now, self.thread))
        if operator:
            self.operators.append(Range(operator, begin, self.now + US, self.thread))
        self.now += US

    def built_in(self, name: str, ns: int) -> None:
        """A function of Python that takes so long, in a trace with stacks."""
        self.functions.append(Range("loop.py(7): run", self.now, self.now + ns + 1, self.thread))
        self.functions.append(
            Range(f"<built-in {name} at {hex(2**46 + self.now)}>", self.now, self.now + ns, self.thread)
        )
        self.now += ns

    def item(self, call: str) -> None:
        """Wait for a number, and think about it."""
        self.wait(call, "aten::item")
        self.sleep(MS)

    def call(self, name: str, ns: int) -> None:
        """A call of the runtime that takes the host so long."""
        self.calls.append(Range(name, self.now, self.now + ns, self.thread))
        self.now += ns

    def run(self) -> Run:
        tasks = tuple(sorted(self.tasks, key=lambda task: task.begin))
        return Run(
            tasks, tuple(self.marks), tuple(self.operators), calls=tuple(self.calls), modules=tuple(self.modules),
            functions=tuple(self.functions),
        )  # fmt: skip


Inject = Callable[[Machine, int, int], None]
"""What a case does before the host launches a layer of a step, by the numbers of both."""


def recorded(inject: Inject, count: int = 4, *, graph: bool = False) -> Run:
    """Decode steps in which the host runs ahead of the device, but for what ``inject`` does."""
    machine = Machine()
    for number in range(count):
        begin = machine.now
        if graph:
            inject(machine, number, 0)
            machine.kernel("prepare")
            inject(machine, number, 1)
            machine.replay(LAYERS, key=number)
            inject(machine, number, 2)
            machine.kernel("sample", 400 * US)
        else:
            for layer, name in enumerate(LAYERS):
                inject(machine, number, layer)
                machine.kernel(name)
        machine.marks.append(Range(f"ProfilerStep#{number}", begin, machine.now))
    return machine.run()


def at(layer: int, do: Callable[[Machine], None], *, only: tuple[int, ...] = (0, 1, 2, 3)) -> Inject:
    """Do it before a layer of some steps."""

    def inject(machine: Machine, number: int, here: int) -> None:
        if here == layer and number in only:
            do(machine)

    return inject


def within_attention(machine: Machine) -> None:
    begin = machine.now
    machine.sleep(3 * MS)
    machine.kernel("softmax")
    machine.modules.append(Range("Attention", begin, machine.now, machine.thread))


def sorted_answer(machine: Machine) -> None:
    """The host waits for the device, and then sorts what it got."""
    machine.wait("cudaStreamSynchronize")
    machine.built_in("function sort", 3 * MS)


def little_recorded(machine: Machine, kind: str = "functions", begin: int = MS, end: int = 1350 * US) -> None:
    """The host records one event in 3 ms, from ``begin`` to ``end``."""
    name = "aten::mm" if kind == "operators" else "loop.py(7): run"
    getattr(machine, kind).append(Range(name, machine.now + begin, machine.now + end, machine.thread))
    machine.sleep(3 * MS)


def stops(machine: Machine, *, after: int = 0) -> None:
    """The host records nothing for 3 ms within a function, but one that takes 5 µs ``after`` so long, if given."""
    machine.functions.append(Range("loop.py(7): run", machine.now, machine.now + 3 * MS, machine.thread))
    if after:
        machine.functions.append(Range("f.py(1): f", machine.now + after, machine.now + after + 5 * US, machine.thread))
    machine.sleep(3 * MS)


def waits_for_queue(machine: Machine) -> None:
    begin, ns = machine.now, 3 * MS
    for number, name in enumerate(("buffer.py(8): get_batch", "queue.py(7): get", "threading.py(9): wait")):
        machine.functions.append(Range(name, begin + number, begin + ns - number, machine.thread))
    machine.sleep(ns)


def zoomed(machine: Machine) -> None:
    """One function three times, none of which has half of the time."""
    for _ in range(3):
        machine.built_in("function zoom", MS)
        machine.sleep(150 * US)


def latent(machine: Machine) -> None:
    """A kernel that is launched into an empty device, and starts late."""
    machine.sleep(MS)
    machine.kernel("fresh", after=machine.now + 9 * MS)


def backward(machine: Machine) -> None:
    """The main thread waits for the loss, then autograd's thread launches."""
    machine.wait("cudaStreamSynchronize", "aten::item", least=2 * MS)
    machine.thread = 2
    machine.kernel("mul_backward")
    machine.thread = 1


def each_by_itself(machine: Machine, number: int, here: int) -> None:
    """A graph for every step but one, whose batch has a size that was not captured: its kernels are launched alone."""
    if here == 1 and number == 2:
        for name in LAYERS * 6:
            machine.kernel(name, 5 * US, inside=50 * US)


def two_places(machine: Machine, number: int, here: int) -> None:
    """Now and then a long one, and a shorter one each time, which adds up to more."""
    if here == 3:
        machine.sleep(3 * MS)
    if here == 6 and number == 1:
        machine.sleep(7 * MS)


def two_answers(machine: Machine, number: int, here: int) -> None:
    """The host answers one call three times, and another one once."""
    if here == 9:
        machine.item("cudaEventSynchronize" if number == 1 else "cudaStreamSynchronize")


def checks_values(machine: Machine, number: int, here: int) -> None:
    """Wait for a number after each second layer, and go on soon."""
    if here % 2:
        machine.wait("cudaStreamSynchronize", "aten::item")
        machine.sleep(20 * US)


def late_after_one_check(machine: Machine, number: int, here: int) -> None:
    """Wait for a number once, and launch each kernel late."""
    if here == 1:
        machine.wait("cudaStreamSynchronize", "aten::item")
    machine.sleep(60 * US)


def other_stream(machine: Machine) -> None:
    """A kernel that was launched in time, and waits for nothing that the trace has."""
    machine.kernel("gather", after=max(machine.free.values(), default=0) + 3 * MS, stream=9)
    machine.free[7] = machine.free[9]


def compiled(machine: Machine) -> None:
    """Another thread of the process compiles what was asked for, and then launches it."""
    machine.calls.append(Range("aclopCompileAndExecute", machine.now, machine.now + 3 * MS, 33))
    machine.kernel("fresh", queued=3 * MS)
    machine.sleep(3 * MS)


def other_stream_and_calls(machine: Machine, number: int, here: int) -> None:
    """Whatever the host is in while the device waits: the place is one."""
    if here == 4:
        other_stream(machine)
        machine.call("cudaDeviceSynchronize" if number == 3 else "cudaMemcpyAsync", 3 * MS)


LATE, WAITING = "free_host_late_ns", "free_waiting_ns"
ALL = ("torch", "text", "db", "nsys")
GPU = ("torch", "nsys")
STACKS = ("torch",)  # with the functions of Python
NPU = ("text", "db")
Case = tuple[Inject, dict[str, Any], tuple[str, ...]]
CASES: dict[str, Case] = {
    "a sleep before a launch": (
        at(4, lambda machine: machine.sleep(3 * MS)),
        {"part": LATE, "before": "attention", "after": "out", "operator": "aten::out", "within": False, "units": 4,
         "call": "", "unrecorded": True}, ALL,
    ),
    "a sleep of which a tenth is recorded": (
        at(4, little_recorded), {"part": LATE, "after": "out", "units": 4, "call": "", "unrecorded": False}, STACKS,
    ),
    "a sleep at whose begin a function ends": (
        at(4, lambda machine: little_recorded(machine, begin=0, end=200 * US)),
        {"part": LATE, "after": "out", "units": 4, "call": "", "unrecorded": True}, STACKS,
    ),
    "a sleep with a short operator": (
        at(4, lambda machine: little_recorded(machine, "operators")),
        {"part": LATE, "after": "out", "units": 4, "call": "", "unrecorded": False}, STACKS,
    ),
    "a sleep with a short call": (
        at(4, lambda machine: little_recorded(machine, "calls")),
        {"part": LATE, "after": "out", "units": 4, "call": "", "unrecorded": False}, STACKS,
    ),
    "a sleep in which a function begins": (
        at(4, lambda machine: little_recorded(machine, begin=MS, end=3 * MS)),
        {"part": LATE, "after": "out", "units": 4, "call": "loop.py(7): run", "unrecorded": False}, STACKS,
    ),
    "a sleep in which a function ends": (
        at(4, lambda machine: little_recorded(machine, begin=0, end=2 * MS)),
        {"part": LATE, "after": "out", "units": 4, "call": "loop.py(7): run", "unrecorded": False}, STACKS,
    ),
    "a stop within a function": (
        at(4, stops), {"part": LATE, "after": "out", "units": 4, "call": "loop.py(7): run", "unrecorded": True}, STACKS,
    ),
    "a function that only one step calls": (
        at(4, stops, only=(2,)), {"part": LATE, "after": "out", "call": "loop.py(7): run", "unrecorded": False}, STACKS,
    ),
    "a function that calls short ones": (
        at(4, lambda machine: stops(machine, after=1500 * US)),
        {"part": LATE, "after": "out", "units": 4, "call": "loop.py(7): run", "unrecorded": False}, STACKS,
    ),
    "a sleep before one launch of four steps": (
        at(4, lambda machine: machine.sleep(3 * MS), only=(2,)),
        {"part": LATE, "before": "attention", "after": "out", "units": 1, "unit": 2, "count": 1}, ALL,
    ),
    "a sleep in a trace with stacks": (
        at(4, lambda machine: machine.built_in("function sleep", 3 * MS)),
        {"part": LATE, "after": "out", "call": "built-in function sleep", "operator": "", "units": 4,
         "caller": "loop.py(7): run"}, STACKS,
    ),
    "a queue that a function of the program waits for": (
        at(4, waits_for_queue),
        {"part": LATE, "call": "threading.py(9): wait", "caller": "buffer.py(8): get_batch"}, STACKS,
    ),
    "a method of an object in a trace with stacks": (
        at(4, lambda machine: machine.built_in("method recv of zmq.Socket object", 3 * MS)),
        {"part": LATE, "after": "out", "call": "built-in method recv", "units": 4}, STACKS,
    ),
    "an operator that takes its time": (
        at(5, lambda machine: machine.kernel("custom", inside=3 * MS)),
        {"part": LATE, "after": "custom", "operator": "aten::custom", "within": True, "call": ""}, ALL,
    ),
    "a sleep in a module": (
        at(3, within_attention), {"part": LATE, "after": "softmax", "module": "Attention", "units": 4}, ALL,
    ),
    "a host that does something else between two steps": (
        at(0, lambda machine: machine.sleep(3 * MS), only=(1, 2, 3)),
        {"part": LATE, "before": "argmax", "after": "embedding", "units": 3}, ALL,
    ),
    ".item() and the host's answer to it": (
        at(9, lambda machine: machine.item("cudaStreamSynchronize")),
        {"part": LATE, "after": "argmax", "call": "", "returned_from": "cudaStreamSynchronize", "within": False}, STACKS,
    ),
    ".item() and the answer to one call or another": (
        two_answers, {"part": LATE, "after": "argmax", "returned_from": "cudaStreamSynchronize", "units": 4}, STACKS,
    ),
    ".item() in several layers": (
        checks_values, {"part": LATE, "kind": "several", "returned_from": "cudaStreamSynchronize"}, STACKS,
    ),
    "launches that are late": (
        lambda machine, *_: machine.sleep(60 * US), {"part": LATE, "kind": "several", "returned_from": ""}, STACKS,
    ),
    ".item() in one of many layers that are late": (
        late_after_one_check, {"part": LATE, "kind": "several", "returned_from": ""}, STACKS,
    ),
    ".item() on an NPU": (
        at(9, lambda machine: machine.item("aclrtSynchronizeStream")),
        {"part": LATE, "after": "argmax", "call": "", "returned_from": "aclrtSynchronizeStream", "within": False}, NPU,
    ),
    "a synchronisation in a step that nothing asked for": (
        at(6, lambda machine: machine.wait("cudaDeviceSynchronize", least=2 * MS)),
        {"part": LATE, "after": "up", "call": "cudaDeviceSynchronize", "operator": ""}, GPU,
    ),
    "a synchronisation of an NPU": (
        at(6, lambda machine: machine.wait("aclrtSynchronizeDevice", least=2 * MS)),
        {"part": LATE, "after": "up", "call": "aclrtSynchronizeDevice", "operator": ""}, NPU,
    ),
    "a copy that blocks": (
        at(2, lambda machine: machine.wait("hipMemcpyWithStream", "aten::copy_", least=2 * MS)),
        {"part": LATE, "after": "qkv", "call": "hipMemcpyWithStream", "operator": "aten::copy_"}, GPU,
    ),
    "a copy that blocks an NPU": (
        at(2, lambda machine: machine.wait("aclrtMemcpy", "aten::to", least=2 * MS)),
        {"part": LATE, "after": "qkv", "call": "aclrtMemcpy", "operator": "aten::to"}, NPU,
    ),
    "Python after a synchronisation that returned while the device ran empty": (
        at(9, sorted_answer),
        {"part": LATE, "after": "argmax", "call": "built-in function sort", "operator": "", "returned_from": ""}, STACKS,
    ),
    "a function of Python that is called three times": (
        at(4, zoomed),
        {"part": LATE, "after": "out", "call": "built-in function zoom", "operator": ""}, STACKS,
    ),
    "memory that is allocated": (
        at(7, lambda machine: machine.call("cudaMalloc", 3 * MS)), {"part": LATE, "after": "down", "call": "cudaMalloc"},
        GPU,
    ),
    "a kernel that is loaded when it is launched first": (
        at(1, lambda machine: machine.kernel("fresh", launching=3 * MS), only=(0,)),
        {"part": LATE, "after": "norm", "call": "cudaLaunchKernel", "units": 1}, GPU,
    ),
    "a kernel that starts when the call that loads and launches it returns": (
        at(1, lambda machine: machine.kernel("fresh", launching=3 * MS, after=machine.now + 3 * MS), only=(0,)),
        {"part": "free_blocked_ns", "after": "fresh", "call": "cudaLaunchKernel", "units": 1}, GPU,
    ),
    "a kernel that starts long after its launch into an empty device": (
        at(1, latent, only=(0,)),
        {"part": WAITING, "after": "fresh", "operator": "aten::fresh", "units": 1}, GPU,
    ),
    "a kernel that is compiled by the task queue": (
        at(5, compiled),
        {"part": LATE, "after": "fresh", "call": "aclopCompileAndExecute", "operator": "aten::fresh"}, ("text",),
    ),
    "a kernel that waits for another stream": (
        at(4, other_stream), {"part": WAITING, "after": "gather", "stream": "stream 9", "operator": "aten::gather"}, ALL,
    ),
    "a kernel that waits while the host is in one call or another": (
        other_stream_and_calls,
        {"part": WAITING, "after": "gather", "call": "cudaMemcpyAsync", "operator": "aten::gather", "within": False,
         "units": 4, "count": 4}, GPU,
    ),
    "a synchronisation before backward": (
        at(9, backward),
        {"part": LATE, "after": "mul_backward", "call": "cudaStreamSynchronize", "operator": "aten::item"}, GPU,
    ),
    "a shorter one each time, and a long one once": (two_places, {"after": "attention", "units": 4}, ALL),
}  # fmt: skip
GRAPHS: dict[str, Case] = {
    "behind a replay": (
        at(2, lambda machine: machine.sleep(5 * MS)),
        {"part": LATE, "graph": "behind", "before": "argmax", "after": "sample", "operator": "aten::sample"}, GPU,
    ),
    "before a replay": (
        at(1, lambda machine: machine.sleep(5 * MS)),
        {"part": LATE, "graph": "before", "before": "prepare", "after": "embedding", "units": 4}, GPU,
    ),
    "inside a replayed graph": (
        at(1, lambda machine: machine.replay(LAYERS, stop=2 * MS, key=50 + len(machine.tasks))),
        {"part": WAITING, "graph": "within", "before": "out", "after": "norm2", "units": 4}, GPU,
    ),
    "a replay that takes the host long": (
        at(1, lambda machine: machine.replay(LAYERS, launching=4 * MS, key=50 + len(machine.tasks)), only=(1,)),
        {"graph": "between", "after": "embedding", "call": "cudaGraphLaunch", "units": 1, "unit": 1}, GPU,
    ),
    "a batch whose graph was not captured": (
        each_by_itself, {"kind": "several", "part": LATE, "units": 1, "unit": 2}, GPU,
    ),
}  # fmt: skip


def profile(run: Run, form: str, place: Path) -> RankProfile:
    """Of a run as a profiler writes it; in db without the queue, whose rows are operators of their own there."""
    if form == "db":
        run = replace(run, tasks=tuple(replace(task, ask=None) for task in run.tasks))
    names = {"torch": "host_1.pt.trace.json", "nsys": "a.sqlite"}
    path = getattr(run, form)(place / names.get(form, "x_ascend_pt"))
    (readable,) = folders.traces_to_read(path)
    (read,) = formats.read(readable)
    return analysis.attributed(read).profile


ROWS = [(name, form) for name, (_, _, of) in {**CASES, **GRAPHS}.items() for form in of]


@pytest.mark.parametrize(("name", "form"), ROWS)
def test_the_delay_that_was_put_in_is_named_first(tmp_path: Path, name: str, form: str) -> None:
    inject, known, _ = {**CASES, **GRAPHS}[name]
    found = profile(recorded(inject, graph=name in GRAPHS), form, tmp_path)
    first = found.gaps[0]
    assert {key: getattr(first, key) for key in known} == known
    assert first.ns > 1.5 * sum(gap.ns for gap in found.gaps[1:2]), "nothing else comes near"


def test_a_run_without_a_delay_has_no_place_that_stands_out(tmp_path: Path) -> None:
    found = profile(recorded(at(99, lambda machine: None)), "torch", tmp_path)
    assert sum(gap.ns for gap in found.gaps) < found.total_ns / 50


def test_what_comes_before_the_first_kernel_is_a_place_too(tmp_path: Path) -> None:
    """A copy that blocks before anything runs, as in the first step of an engine."""

    def blocked(machine: Machine) -> None:
        machine.call("hipMemcpyWithStream", 400 * MS)
        machine.operators.append(Range("aten::copy_", machine.now - 400 * MS - 1, machine.now, 1))

    found = profile(recorded(at(0, blocked, only=(0,))), "torch", tmp_path)
    first = found.gaps[0]
    assert (first.part, first.call, first.operator) == ("lead_in_ns", "hipMemcpyWithStream", "aten::copy_")
    assert (first.before, first.after, first.unit, first.begin_ns) == ("", "embedding", 0, 0)
    assert first.ns == found.units[0].lead_in_ns >= 400 * MS
    finding = next(one for one in analysis.reported([found]).findings if one.id == "lead-in")
    assert (finding.severity, finding.saving_ns) == ("note", None), "the host waits for what came before"
    assert "hipMemcpyWithStream" in finding.evidence


NOTHING = "no single recorded operator, call or frame covers half of the gap"
SENTENCES = {
    "a sleep before a launch": (
        "before out on stream 7", "after attention", f"host-bound, {NOTHING}, launched by aten::out",
    ),
    "an operator that takes its time": (
        "before custom on stream 7", "after out", "host-bound, the host was inside aten::custom",
    ),
    ".item() and the host's answer to it": (
        "before argmax on stream 7", "after logits",
        f"host-bound, after the host returned from cudaStreamSynchronize, {NOTHING}, launched by aten::argmax",
    ),
    "a kernel that waits for another stream": (
        "before gather on stream 9", "after attention", "stream wait, launched by aten::gather",
    ),
    "behind a replay": (
        "before sample on stream 7", "after argmax, after a replayed graph",
        f"host-bound, {NOTHING}, launched by aten::sample",
    ),
    "a batch whose graph was not captured": (
        "between kernels that are launched one by one", "33 short gaps", "host-bound",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "says"), SENTENCES.items(), ids=SENTENCES)
def test_a_place_in_words(tmp_path: Path, name: str, says: tuple[str, str, str]) -> None:
    first = profile(recorded({**CASES, **GRAPHS}[name][0], graph=name in GRAPHS), "torch", tmp_path).gaps[0]
    assert (place_of(first), preceding_words(first), why(first)) == says


def test_the_evidence_names_the_first_place_of_its_kind(tmp_path: Path) -> None:
    found = profile(recorded(CASES["a kernel that waits for another stream"][0]), "torch", tmp_path)
    findings = {one.id: one.evidence for one in analysis.reported([found]).findings}
    assert "before gather on stream 9" in findings["waiting"]
    assert first_place(found, "free_unknown_ns") == ""


def test_short_gaps_within_replays_are_told_from_others(tmp_path: Path) -> None:
    def inject(machine: Machine, number: int, here: int) -> None:
        if here == 1:
            machine.replay(LAYERS, stop=US, key=50 + number)

    found = profile(recorded(inject, graph=True), "torch", tmp_path).gaps
    (within,) = (gap for gap in found if gap.graph == "within")
    assert (within.kind, within.count, within.units, within.ns) == ("several", 4, 4, 4 * US)
    assert place_of(within) == "inside replayed graphs"


def test_of_very_many_the_longest_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is only summed is still there, and with those of its place that were looked at, if any was."""
    run = recorded(two_places)
    whole = profile(run, "torch", tmp_path)
    first, second = whole.gaps[:2]
    alone = tuple(replace(gap, operator="") for gap in (first, second))
    for kept, known in ((2, (first, second)), (0, alone)):
        monkeypatch.setattr(gaps, "KEPT", kept)
        few = profile(run, "torch", tmp_path / str(kept))
        assert sum(gap.ns for gap in few.gaps) == sum(gap.ns for gap in whole.gaps)
        assert few.gaps[:2] == known


# ---------------------------------------------------------------- real traces


def real(*path: str) -> RankProfile:
    (readable,) = folders.traces_to_read(SHARED.joinpath(*path))
    (read,) = formats.read(readable)
    return analysis.attributed(read).profile


REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "a step of SGLang behind a copy": (
        "gpu/tracelens-inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
        {"part": "lead_in_ns", "call": "hipMemcpyWithStream", "operator": "aten::copy_", "units": 1, "ns": 463295405},
    ),
    "a prefill of SGLang behind a copy": (  # the same run, of which not every collection has it
        "gpu/tracelens-inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz",
        {"part": "lead_in_ns", "call": "hipMemcpyWithStream", "operator": "aten::to", "units": 1, "ns": 493283729},
    ),
    "a device that ran empty before the step, and a synchronisation that returned at once": (
        "gpu/tracelens-mi300-qwen.json.gz",
        {"part": "lead_in_ns", "returned_from": "", "graph": "",
         "call": "moca/library/model_hub/huggingface/model/adapters/text_base_model.py(28): run_on_input"},
    ),
    "the kernels of a step that are launched one by one": (
        "gpu/hta-trace_diff-control.json.gz", {"kind": "several", "part": LATE, "units": 6},
    ),
    "a step of an NPU before its first copy, with 26 % of it in the data loader, 43 % in the copy": (
        "npu/text-level1/rank0_ascend_pt",
        {"part": "lead_in_ns", "after": "MEMCPY_ASYNC (acl_memcpy_host_to_device)", "call": "main.py(375): train", "operator": ""},
    ),
    "a step before which Python zooms pictures, after a copy that had returned": (
        "2026-11/owlv2_mi300.json.gz",
        {"part": LATE, "call": "built-in function zoom_shift", "operator": "", "ns": 563_998_000},
    ),
    "a launch call that loads code": (
        "2026-11/normalization.json.gz",
        {"part": "free_blocked_ns", "call": "hipLaunchKernel", "operator": "aten::batch_norm", "ns": 331_738_000},
    ),
    "the same memset in each step, behind a replay that waits": (  # HolisticTraceAnalysis, tests/data
        "gpu/hta-negative_queue_length.json.gz",
        {"part": WAITING, "graph": "before", "after": "Memset (Device)", "stream": "stream 7", "units": 5, "count": 5},
    ),
}  # fmt: skip


@shared
@pytest.mark.parametrize(("path", "known"), REAL.values(), ids=REAL)
def test_what_real_traces_wait_for(path: str, known: dict[str, Any]) -> None:
    if not (SHARED / path).exists():
        pytest.skip(NO_CAPTURES)
    found = real(path)
    first = found.gaps[0]
    for key, value in known.items():
        assert getattr(first, key) == (pytest.approx(value, abs=1000) if key == "ns" else value)
    assert sum(gap.ns for gap in found.gaps if gap.part != "lead_in_ns") == sum(map(free_ns, found.units))


def stretch(ns: int, segment: int = 0, begin: int = 0) -> Idle:
    return Idle(begin, begin + ns, ns, 0, 0, segment, "free_host_late_ns")


SUMS: dict[str, tuple[list[Idle], list[Idle], int, int, dict[int, tuple[int, int]]]] = {
    "one gap": ([stretch(5)], [], 5, 1, {0: (5, 5)}),
    "the longest comes last": ([stretch(5), stretch(9)], [], 14, 2, {0: (14, 9)}),
    "the longest comes first": ([stretch(9), stretch(5)], [], 14, 2, {0: (14, 9)}),
    "two units": ([stretch(9), stretch(5, 3)], [], 14, 2, {0: (9, 9), 3: (5, 5)}),
    "merged with others": ([stretch(9), stretch(5, 3)], [stretch(1), stretch(7, 3), stretch(2, 4)], 24, 5, {0: (10, 9), 3: (12, 7), 4: (2, 2)}),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_gaps_of_a_place_are_summed_and_the_longest_of_each_unit_is_kept(name: str) -> None:
    first, second, ns, count, units = SUMS[name]
    gap_sum, other = gaps._GapSum(), gaps._GapSum()
    for gap in first:
        gap_sum.add(gap)
    for gap in second:
        other.add(gap)
    gap_sum.merge(other)
    assert (gap_sum.ns, gap_sum.count) == (ns, count)
    assert {segment: (ns, longest.ns) for segment, (ns, longest) in gap_sum.units.items()} == units


def test_of_equally_long_gaps_the_first_is_kept() -> None:
    gap_sum = gaps._GapSum()
    for begin in (10, 20):
        gap_sum.add(stretch(5, begin=begin))
    assert gap_sum.units[0] == (10, stretch(5, begin=10))


def sums_of(*keys: int) -> gaps.GapSums:
    """Sums of a trace whose tasks have these keys of their launches, in the order of their begin; it has no gaps yet."""
    sums = object.__new__(gaps.GapSums)
    texts = ["before", "after", "stream", "wait", "copy", "item", "Layer"]
    sums.trace = Some(names=Some(texts=texts), tasks=Some(key=keys))  # type: ignore[assignment]
    sums.cuts = Some(order=range(len(keys)), segments=())  # type: ignore[assignment]
    sums.replays = True
    return sums


@pytest.mark.parametrize(
    ("by_call", "call", "call_ns"),
    [
        ({}, "", 0), ({3: 49}, "", 0), ({3: 50}, "wait", 50), ({3: 50, 4: 50}, "wait", 50), ({3: 40, 4: 60}, "copy", 60),
        ({3: 40, 4: 45}, "", 0), ({-1: 100}, "", 100),
    ],
)  # fmt: skip
@pytest.mark.parametrize("part", [LATE, WAITING])
def test_the_call_of_a_place_covers_half_of_its_time(
    part: str, by_call: dict[int, int], call: str, call_ns: int
) -> None:
    gap_sum = gaps._GapSum()
    gap_sum.add(stretch(100, begin=7))
    gap_sum.call_ns.update(by_call)
    units = {0: RecordedUnit(number=4, host_ns=1, kernels=1, begin_ns=5)}
    place = sums_of()._free_gap((gaps.GapPlace("", 0, 1, 2, part), HostAround(5, 6), 3, False), gap_sum, units, {4})
    assert (place.call, place.call_ns, place.operator, place.module, place.returned_from) == (
        call, call_ns, "item", "Layer", ""
    )  # fmt: skip
    assert (place.unit, place.begin_ns, place.at_ns, place.spots) == (4, 2, 7, {4: (2, 100)})


@pytest.mark.parametrize(
    ("keys", "at", "continues", "where"),
    [
        ((5, 5, 5), 1, True, "within"), ((5, 5, 5), 2, True, "within"), ((5, 5, 1), 1, False, ""), ((-1, -1, -1), 1, False, ""),
        ((5, 1, 5, 5), 3, False, "within"), ((5, 5, 1, 5), 1, False, "within"), ((5, 1, 5, 5, 5), 3, True, "within"),
        ((5, 5, 5, 6, 6, 6), 3, False, "between"), ((5, 5, 5, 6, 6), 3, False, "behind"), ((5, 5, 6, 6, 6), 2, False, "before"),
        ((5, 5, *[-1] * 5, 5, -1), 8, False, "behind"), ((5, 5, *[-1] * 6, 5, -1), 9, False, ""),
        ((-1, 5, *[-1] * 5, 5, 5), 1, False, "before"), ((-1, 5, *[-1] * 6, 5, 5), 1, False, ""),
    ],
)  # fmt: skip
def test_a_gap_lies_within_or_beside_a_replay_of_three_tasks(
    keys: tuple[int, ...], at: int, continues: bool, where: str
) -> None:
    gap = Idle(0, 1, 1, at - 1, at, 0, LATE)
    sums = sums_of(*keys)
    assert (sums._is_within_replay(gap), sums._graph_position(gap)) == (continues, where)


@pytest.mark.parametrize(
    ("ns", "called", "kept"), [(100 * US - 1, False, 0), (100 * US, False, 1), (100 * US - 1, True, 1)]
)
def test_a_gap_is_short_below_a_tenth_of_a_millisecond_without_a_call(ns: int, called: bool, kept: int) -> None:
    sums, activity = sums_of(3, 4), object() if called else None
    sums.sums, sums.short, sums.kept = defaultdict(gaps._GapSum), {}, []
    sums.activities = Some(call_in=lambda _: activity, activity_in=lambda _: activity)  # type: ignore[assignment]
    sums._keep_or_sum(stretch(ns))
    assert (len(sums.kept), len(sums.short)) == (kept, 1 - kept)


@pytest.mark.parametrize("drawn", [{0}, {1}, {0, 1}, set()])
def test_a_place_has_spots_in_the_units_that_are_drawn(drawn: set[int]) -> None:
    inject = at(3, lambda machine: machine.sleep(300 * US), only=(0, 1))
    trace = timeline(recorded(inject))
    cuts = split(trace)
    threads = [host_thread(trace, thread) for thread in range(len(trace.operators))]
    units = dict(enumerate(analysis.attributed(trace).profile.units))
    places = gaps.GapSums(trace, cuts, [*units], threads).gaps(units, {units[number].number for number in drawn})
    spots = {number for place in places for number in place.spots}
    assert spots <= {units[number].number for number in drawn}
    assert bool(spots) == (0 in drawn)
    assert all(not place.spots for place in places if place.kind == "several")


@pytest.mark.parametrize(("ns", "kind"), [(20_000, "place"), (19_999, "several")])
def test_a_wait_of_20_us_for_a_task_that_was_launched_has_its_place(ns: int, kind: str) -> None:
    tasks = (Task(10, 50_000, launch=1), Task(50_000 + ns, 90_000, launch=20))
    found = analysis.attributed(timeline(Run(tasks, (Range("ProfilerStep#0", 0, 99_000),)))).profile.gaps
    assert [(gap.kind, gap.ns) for gap in found if gap.part == WAITING] == [(kind, ns)]


@pytest.mark.parametrize(
    ("keys", "replays"), [((5, 5, 6, 7, 5), True), ((5, 6, 5, 6), False), ((None, None), False), ((), False)], ids=str
)
def test_replays_are_looked_for_where_a_launch_has_two_tasks_in_a_row(
    keys: tuple[int | None, ...], replays: bool
) -> None:
    trace = RankTrace("a", "torch")
    for at, key in enumerate(keys):
        trace.add_task(at, at + 1, "compute", "k", "stream 7", key)
    assert gaps.GapSums(trace, split(trace), (), [host_thread(trace, trace.thread(1, 1))]).replays == replays
