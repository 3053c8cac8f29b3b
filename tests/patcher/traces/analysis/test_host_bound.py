"""The headline of an empty device: made runs with one cause each, whose name and milliseconds have to come out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from patcher.commands.reports.first_screen import first_screen
from patcher.traces import analysis, folders, formats
from patcher.traces.analysis import host_bound
from patcher.traces.analysis.hosts import most_specific_modules
from patcher.traces.model import CallSums, Diagnosis, FreeGap, Kernel, RankProfile, RecordedUnit, TraceReport
from tests.patcher.traces.recorded import MS, START, Range, Run, Task

US = 1000
KERNELS = 10


@dataclass
class Machine:
    """A host that launches kernels of 40 µs every 15 µs, and a device that runs them in order."""

    now: int = 0
    free: int = 0
    thread: int = 1
    tasks: list[Task] = field(default_factory=list)
    operators: list[Range] = field(default_factory=list)
    calls: list[Range] = field(default_factory=list)
    frames: list[Range] = field(default_factory=list)
    annotations: list[Range] = field(default_factory=list)
    modules: list[Range] = field(default_factory=list)
    marks: list[Range] = field(default_factory=list)

    def kernel(
        self, name: str, *, call: str = "cudaLaunchKernel", takes: int = 5 * US, after: int = 0, kind: str = "compute"
    ) -> None:
        begin = self.now
        self.now += 10 * US
        start = max(self.free, self.now + 5 * US, after)
        self.free = start + 40 * US
        self.tasks.append(Task(start, self.free, kind, name, launch=self.now, call=(call, takes), thread=self.thread))
        self.now += takes
        self.operators.append(Range(f"aten::{name}", begin, self.now, self.thread))

    def spend(self, kind: list[Range], name: str, ns: int) -> None:
        kind.append(Range(name, self.now, self.now + ns, self.thread))
        self.now += ns

    def synchronise(self, name: str, least: int = 0) -> None:
        begin = self.now
        self.now = max(self.free, begin) + 4 * US + least
        self.calls.append(Range(name, begin, self.now, self.thread))


Inject = Callable[[Machine], None]


def sleep(machine: Machine) -> None:
    machine.now += 20 * MS


def returned_early(machine: Machine) -> None:
    """A synchronisation that returns 4 µs after the device ran empty, and Python in nested frames after it."""
    machine.synchronise("cudaStreamSynchronize")
    begin = machine.now
    for _ in range(4):
        machine.spend(machine.frames, "<built-in function zoom_shift>", 4 * MS)
        machine.now += MS
    machine.frames += [Range(f"main.py({line}): step", begin, machine.now) for line in (1, 9)]


def returned_late(machine: Machine) -> None:
    machine.synchronise("cudaMemcpyAsync", least=20 * MS)


def user_range(machine: Machine) -> None:
    machine.spend(machine.annotations, "compute reward", 20 * MS)


def worker(machine: Machine) -> None:
    """The main thread waits in a lock while another one works, and then launches."""
    machine.frames.append(Range("<built-in method acquire of lock>", machine.now, machine.now + 20 * MS, 1))
    machine.thread = 2
    machine.spend(machine.frames, "worker.py(3): tokenize", 20 * MS)
    machine.kernel("embed")
    machine.thread = 1


def shared(machine: Machine) -> None:
    for number in range(5):
        machine.spend(machine.frames, f"f.py({number}): part", 4 * MS)


def loads_code(machine: Machine) -> None:
    machine.kernel("fresh", takes=20 * MS, after=machine.now + 20 * MS)


def uploads_graph(machine: Machine) -> None:
    machine.kernel("fresh", call="cudaGraphLaunch", takes=20 * MS, after=machine.now + 20 * MS)


def copies(machine: Machine) -> None:
    machine.kernel("Memcpy HtoD", call="cudaMemcpyAsync", takes=20 * MS, after=machine.now + 20 * MS, kind="copy")


def starts_late(machine: Machine) -> None:
    """A launch into the empty device, whose kernel starts 20 ms later although the call returned at once."""
    machine.synchronise("cudaStreamSynchronize")
    machine.kernel("slow_start", after=machine.now + 20 * MS)


def waits(machine: Machine) -> None:
    machine.kernel("gather", after=machine.free + 20 * MS)


def allocates(machine: Machine) -> None:
    machine.spend(machine.calls, "cudaMalloc", 20 * MS)


def frees(machine: Machine) -> None:
    for call in ("cudaFree", "cudaMalloc", "cudaFree", "cudaMalloc"):
        machine.spend(machine.calls, call, 4 * MS)
        machine.now += MS


def starts_up(machine: Machine) -> None:
    machine.spend(machine.calls, "cudaDeviceGetStreamPriorityRange", 20 * MS)


def loads_data(machine: Machine) -> None:
    machine.spend(machine.annotations, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 20 * MS)


def pins(machine: Machine) -> None:
    machine.spend(machine.calls, "cudaHostAlloc", 20 * MS)


def compiles_kernel(machine: Machine) -> None:
    machine.spend(machine.calls, "aclopCompileAndExecute", 20 * MS)


def gives_back(machine: Machine) -> None:
    machine.spend(machine.calls, "aclrtFreePhysical", 20 * MS)


def gives_back_in_operator(machine: Machine) -> None:
    begin = machine.now
    gives_back(machine)
    machine.operators.append(Range("aten::empty", begin, machine.now))


def allocates_in_operator(machine: Machine) -> None:
    begin = machine.now
    frees(machine)
    machine.operators.append(Range("aten::empty", begin, machine.now))


def works(machine: Machine) -> None:
    machine.spend(machine.operators, "aten::nonzero", 20 * MS)


def captures_graph(machine: Machine) -> None:
    machine.spend(machine.calls, "cudaStreamBeginCapture", 10 * US)
    machine.spend(machine.frames, "model.py(9): forward", 20 * MS)
    machine.spend(machine.calls, "cudaStreamEndCapture", 10 * US)


def compiled(machine: Machine) -> None:
    machine.spend(machine.frames, "/tmp/torchinductor_root/ab/cab.py(9): call", 20 * MS)


def compiles(machine: Machine) -> None:
    machine.spend(machine.frames, "torch/_inductor/async_compile.py(300): wait", 20 * MS)


def polls(machine: Machine) -> None:
    machine.spend(machine.frames, "queue.py(9): wait", 20 * MS)


STACK = "--contents cuda,cpu,stack"
CASES: dict[str, tuple[Inject, str, tuple[str, ...], tuple[str, ...]]] = {
    "a call that had returned": (returned_early, "dispatch", ("zoom_shift (within main.py(9): step) for 80 %",), ("Synchronize",)),
    "a call that blocks": (returned_late, "dispatch", ("cudaMemcpyAsync for 100 %",), ()),
    "a range of the user": (user_range, "dispatch", ("compute reward for ",), ()),
    "a thread that works while the main one waits": (worker, "dispatch", ("tokenize",), ("acquire",)),
    "several functions, none of which has half": (shared, "dispatch", ("no single recorded operator, call or frame",), ("part",)),
    "a sleep that nothing recorded": (sleep, "dispatch", ("no single recorded operator, call or frame", STACK), ()),
    "memory that is allocated": (allocates, "dispatch", ("cudaMalloc for ", "expandable_segments"), ()),
    "memory that is freed and allocated": (frees, "dispatch", ("cudaFree/cudaMalloc for ", "expandable_segments"), ()),
    "a context that is created": (starts_up, "dispatch", ("cudaDeviceGetStreamPriorityRange for ", "creates its context"), ("look at",)),
    "a data loader": (loads_data, "dispatch", ("DataLoader", "num_workers"), ("look at",)),
    "memory that is pinned": (pins, "dispatch", ("cudaHostAlloc for ", "allocate it once"), ("expandable_segments",)),
    "a kernel that is compiled": (compiles_kernel, "dispatch", ("aclopCompileAndExecute for ", "before the recording window"), ("look at",)),
    "memory that is freed": (gives_back, "dispatch", ("aclrtFreePhysical for ", "empty_cache()"), ("expandable_segments",)),
    "memory that an operator frees": (gives_back_in_operator, "dispatch", ("expandable_segments",), ("empty_cache()",)),
    "memory that an operator frees and allocates": (allocates_in_operator, "dispatch", ("cudaFree/cudaMalloc (aten::empty) for ", "expandable_segments"), ()),
    "a graph that is captured": (captures_graph, "dispatch", ("graph capture for ", "after all graphs"), ("model.py",)),
    "code of torch.compile": (compiled, "dispatch", ("torchinductor", "CUDA graphs"), ("look at",)),
    "torch.compile that compiles": (compiles, "dispatch", ("async_compile.py(300): wait", "TORCH_LOGS=recompiles", "if this is the first"), ("remove this call",)),
    "a function that waits, for whatever": (polls, "dispatch", ("queue.py(9): wait", "the host waits in this call"), ("remove this call",)),
    "an operator": (works, "dispatch", ("aten::nonzero",), ()),
    "a kernel that starts late": (starts_late, "waiting", ("aten::slow_start", "kernels are missing"), ("CUDA graphs",)),
    "a launch that loads code": (loads_code, "launch-blocked", ("cudaLaunchKernel", "in several steps"), ("first launch",)),
    "a graph that is uploaded": (uploads_graph, "launch-blocked", ("cudaGraphLaunch", "capture each graph once"), ("first launch",)),
    "a copy that blocks": (copies, "launch-blocked", ("cudaMemcpyAsync", "pinned memory"), ("the code of",)),
    "a stream that waits": (waits, "waiting", ("aten::gather", "events between"), ("CUDA graphs",)),
}  # fmt: skip


def recorded(inject: Inject, count: int = 4, *, before: bool = False, between: int = 0) -> Run:
    """Steps with one thing in the middle of each, or ``before`` the first one alone, and ``between`` ns between two."""
    machine = Machine()
    for number in range(count):
        begin = machine.now
        for index in range(KERNELS):
            if index == (0 if before else KERNELS // 2) and not (before and number):
                inject(machine)
            machine.kernel(f"kernel{index}")
        machine.marks.append(Range(f"ProfilerStep#{number + 3}", begin, machine.now))
        machine.now += between
    return Run(
        tuple(sorted(machine.tasks, key=lambda task: task.begin)), tuple(machine.marks), tuple(machine.operators),
        tuple(machine.annotations), calls=tuple(machine.calls), modules=tuple(machine.modules),
        functions=tuple(machine.frames),
    )  # fmt: skip


def report(run: Run, place: Path) -> TraceReport:
    (readable,) = folders.traces_to_read(run.torch(place / "host_1.pt.trace.json"))
    (read,) = formats.read(readable)
    return analysis.reported([analysis.checked(read, analysis.attributed(read))])


def headline(made: TraceReport) -> Diagnosis:
    return next(finding for finding in made.findings if finding.title == made.verdict.title)


@pytest.mark.parametrize(("inject", "name", "says", "says_not"), CASES.values(), ids=CASES)
def test_the_cause_that_was_put_in_is_the_headline(
    tmp_path: Path, inject: Inject, name: str, says: tuple[str, ...], says_not: tuple[str, ...]
) -> None:
    first = headline(report(recorded(inject), tmp_path))
    text = f"{first.evidence} {first.advice}"
    assert first.id == name
    part = 0.79 if re.search("cudaFree/cudaMalloc|for 80 %", says[0]) else 1  # what lies between the calls stays
    assert first.saving_ns == pytest.approx(part * 20 * MS, rel=0.04)
    assert [word for word in says if word not in text] == []
    assert [word for word in says_not if word in text] == []


@pytest.mark.parametrize(
    ("inject", "advice"),
    [(loads_code, "loads or compiles its code: run the step once"), (uploads_graph, "replay the graph once before")],
)
@pytest.mark.parametrize("before", [False, True])
def test_a_launch_that_blocks_once_is_the_first_one(tmp_path: Path, inject: Inject, advice: str, before: bool) -> None:
    first = headline(report(recorded(inject, 1, before=before), tmp_path))
    assert (first.id, advice in first.advice) == ("lead-in" if before else "launch-blocked", True)


def test_calls_that_block_one_after_the_other_are_one_place(tmp_path: Path) -> None:
    def starts(machine: Machine) -> None:
        machine.spend(machine.calls, "cudaFree", 9 * MS)
        machine.kernel("fresh", takes=12 * MS, after=machine.now + 12 * MS)

    late = next(finding for finding in report(recorded(starts, 1), tmp_path).findings if finding.id == "dispatch")
    assert "the host was in cudaLaunchKernel (aten::fresh) for 57 % of this time" in late.title
    assert "loads or compiles its code" in late.advice


@pytest.mark.parametrize(
    ("caller", "advice"),
    [("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "num_workers"), ("buffer.py(7): get", "it waits for")],
)  # fmt: skip
def test_a_wait_within_the_data_loader_is_for_its_workers(caller: str, advice: str) -> None:
    gap = FreeGap(
        kind="place", part="free_host_late_ns", ns=20, count=1, units=1, unit=0, unit_ns=20, longest_ns=20, begin_ns=0,
        call="built-in method poll", call_ns=20, caller=caller,
    )  # fmt: skip
    assert advice in host_bound.advice_on_place(launching(60, 40), gap)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        ("Lazy Function Loading", "loads a kernel's code"), ("Driver Compiler", "loads a kernel's code"),
        ("Activity Buffer Request", "warmup=1"), ("UVM Activity Init", "warmup=1"),
    ],
)  # fmt: skip
def test_what_the_driver_or_the_profiler_does_first_belongs_before_the_window(call: str, advice: str) -> None:
    gap = FreeGap(
        kind="place", part="free_host_late_ns", ns=20, count=1, units=1, unit=0, unit_ns=20, longest_ns=20, begin_ns=0,
        call=call, call_ns=20,
    )  # fmt: skip
    assert advice in host_bound.advice_on_place(launching(60, 40), gap)


@pytest.mark.parametrize(
    ("call", "frees", "kernels", "told"),
    [("hipFree", 50, 500, True), ("hipFree", 50, 501, False), ("hipFree", 49, 9, False), ("hipMalloc", 50, 500, False)],
)
def test_memory_that_is_freed_all_the_time_is_not_cached(call: str, frees: int, kernels: int, told: bool) -> None:
    gap = FreeGap(
        kind="place", part="free_host_late_ns", ns=20, count=frees, units=1, unit=0, unit_ns=20, longest_ns=20, begin_ns=0,
        call=call, call_ns=20, operator="aten::mm",
    )  # fmt: skip
    places = (gap, replace(gap, call="hipMalloc", count=100))
    made = replace(launching(60, 40), gaps=places, kernels=(Kernel("mm", "compute", kernels, 9, 1),))
    assert ("NO_HIP_MEMORY_CACHING" in host_bound.advice_on_place(made, gap)) == told
    assert "MEMORY_CACHING" not in host_bound.advice_on_place(made, replace(gap, call="a.py(1): f"))


def test_the_seconds_of_the_kinds_of_free_time_are_disjoint(tmp_path: Path) -> None:
    for inject, *_ in CASES.values():
        made = report(recorded(inject), tmp_path)
        savings = {finding.id: finding.saving_ns or 0 for finding in made.findings}
        free = sum(savings.get(name, 0) for name in ("dispatch", "launch-blocked", "waiting"))
        assert free <= made.captures[0].total_ns // 4


BEFORE: list[tuple[Inject, int, str, str]] = [
    (lambda machine: machine.spend(machine.calls, "hipMemcpyWithStream", 90 * MS), 4, "note", "hipMemcpyWithStream"),
    (lambda machine: machine.spend(machine.calls, "hipMemcpyWithStream", 90 * MS), 1, "note", "hipMemcpyWithStream"),
    (lambda machine: machine.spend(machine.annotations, "enumerate(DataLoader)", 90 * MS), 4, "note", "DataLoader"),
    (lambda machine: machine.spend(machine.annotations, "enumerate(DataLoader)", 90 * MS), 1, "problem", "DataLoader"),
]


@pytest.mark.parametrize(("inject", "count", "severity", "says"), BEFORE)
def test_the_time_before_the_first_kernel_is_beside_the_step(
    tmp_path: Path, inject: Inject, count: int, severity: str, says: str
) -> None:
    made = report(recorded(inject, count, before=True), tmp_path)
    (finding,) = (one for one in made.findings if one.id == "lead-in")
    assert made.captures[0].median_ns == KERNELS * 40 * US
    assert made.captures[0].units[0].lead_in_ns == pytest.approx(90 * MS, rel=0.01)
    assert (finding.severity, bool(finding.saving_ns)) == (severity, severity == "problem")
    assert says in finding.evidence
    shares = [int(share) for share in re.findall(r"per step\s+\((\d+) %\)", "\n".join(first_screen(made)))]
    assert shares == [100] * (severity == "problem")


def test_the_modules_that_keep_the_host_are_named_before_places(tmp_path: Path) -> None:
    machine = Machine()
    begin = machine.now
    for _ in range(12):
        block = machine.now
        for name in ("Attention", "FusedMoE"):
            inner = machine.now
            for index in range(3):
                machine.now += (80 if name == "Attention" else 60) * US
                machine.kernel(f"{name}{index}")
            machine.modules.append(Range(name, inner, machine.now))
        machine.modules.append(Range("Block", block, machine.now))
    machine.modules.append(Range("Model", begin, machine.now))
    run = Run(
        tuple(machine.tasks), (Range("ProfilerStep#1", begin, machine.now),), tuple(machine.operators),
        modules=tuple(machine.modules),
    )  # fmt: skip
    made = report(run, tmp_path)
    evidence = headline(made).evidence
    assert set(made.captures[0].late_modules) == {"Attention", "FusedMoE"}
    assert "Attention takes 3.42 ms on the host, its kernels only 1.44 ms" in evidence
    assert evidence.index("Attention") < evidence.index("FusedMoE")
    assert "Attention takes 3.42 ms" in " ".join(" ".join(first_screen(made)).split())


NESTED = [
    ({("", "Model"): 9, ("Model", "Block"): 8, ("Block", "A"): 4, ("Block", "B"): 3, ("A", "C"): 1}, {"A", "B"}),
    ({("", "Model"): 9, ("Model", "A"): 2, ("Model", "B"): 1}, {"Model"}),
    ({("", "A"): 9, ("A", "A"): 8, ("A", "B"): 1}, {"A"}),
    ({("", "A"): 8, ("A", "B"): 4, ("A", "C"): 2}, {"B", "C"}),
    ({("", "A"): 8, ("A", "B"): 3, ("A", "C"): 2, ("A", "D"): 2}, {"A"}),
    ({}, set()),
]


@pytest.mark.parametrize(("around", "chosen"), NESTED)
def test_the_modules_that_are_named_lie_in_no_other_one(around: dict[tuple[str, str], int], chosen: set[str]) -> None:
    host: dict[str, int] = {}
    for (outer, name), ns in around.items():
        host[name] = host.get(name, 0) + ns * (outer != name)
    assert set(most_specific_modules(around, [CallSums(name, 1, 1, 0, ns) for name, ns in host.items()])) == chosen


def test_a_place_is_found_in_a_viewer_by_its_begin(tmp_path: Path) -> None:
    run = recorded(sleep)
    gap = report(run, tmp_path).captures[0].gaps[0]
    ends = {task.end for task in run.tasks if task.name == gap.before}
    assert (gap.before, gap.after) == ("kernel4", "kernel5")
    assert gap.at_ns - START in ends


@pytest.mark.parametrize(
    ("gaps", "found"),
    [
        ([("copy_ns", "place", 9), ("free_latency_ns", "place", 5), ("free_host_late_ns", "place", 4)], 5), ([("free_latency_ns", "several", 5), ("free_host_late_ns", "place", 4)], None),
        ([("copy_ns", "place", 9)], None), ([], None),
    ],
)  # fmt: skip
def test_the_largest_place_is_the_first_of_its_parts_unless_short_gaps_have_more(
    gaps: list[tuple[str, str, int]], found: int | None
) -> None:
    made = tuple(
        FreeGap(kind=kind, part=part, ns=ns, count=1, units=1, unit=0, unit_ns=ns, longest_ns=ns, begin_ns=0, before="a", after="b", stream="s")
        for part, kind, ns in gaps
    )  # fmt: skip
    largest = host_bound._largest(RankProfile("a", "torch", 0, "H100", (), gaps=made), *host_bound.HOST_PARTS)
    assert (largest and largest.ns) == found


def launching(late: int, latency: int, lead_in: int = 0) -> RankProfile:
    unit = RecordedUnit(
        number=0,
        host_ns=9,
        kernels=1,
        compute_ns=1000 - late - latency,
        free_host_late_ns=late,
        free_latency_ns=latency,
        lead_in_ns=lead_in,
    )
    return RankProfile("a", "torch", 0, "H100", (unit,))


@pytest.mark.parametrize(
    ("late", "latency", "lead_in", "ids"),
    [
        (100, 0, 0, ["dispatch"]), (50, 50, 0, ["dispatch"]), (50, 49, 0, []), (0, 0, 112, ["lead-in"]), (0, 0, 111, []), (100, 0, 112, ["dispatch", "lead-in"]),
    ],
)  # fmt: skip
def test_idle_time_is_told_from_a_tenth_on(late: int, latency: int, lead_in: int, ids: list[str]) -> None:
    assert [found.id for found in host_bound.diagnoses(launching(late, latency, lead_in))] == ids


@pytest.mark.parametrize(
    ("late", "latency", "said"),
    [(100, 10, (True, True)), (100, 9, (True, False)), (10, 100, (True, True)), (9, 100, (False, True))],
)
def test_each_part_of_host_bound_time_is_told_from_a_hundredth_on(
    late: int, latency: int, said: tuple[bool, bool]
) -> None:
    evidence = host_bound._diagnose_host_bound(launching(late, latency)).evidence
    assert ("had not been launched" in evidence, "launch latency" in evidence) == said


@pytest.mark.parametrize(
    ("host", "late", "named"),
    [
        ({"a": 6, "b": 6}, (), ["a", "b"]), ({"a": 6, "b": 5}, (), ["a"]), ({"a": 11}, (), ["a"]), ({"a": 10}, (), []), ({"a": 5, "b": 7, "c": 6}, (), ["b", "c"]),
        ({"a": 11, "c": 11}, ("c",), ["c"]), ({"a": 12, "c": 11}, ("c",), ["a", "c"]), ({"a": 5, "c": 5}, ("c",), []), ({"a": 99, "c": 11}, ("c",), ["a", "c"]), ({}, (), []),
    ],
)  # fmt: skip
def test_up_to_two_that_launch_slowly_are_named_if_they_matter(
    host: dict[str, int], late: tuple[str, ...], named: list[str]
) -> None:
    """Of 100 ns of idle launches, a tenth is shared by those that are named; kernels take 1 ns, modules twice as long."""
    rows = tuple(CallSums(name, 1, 1, 1, ns) for name, ns in host.items())
    modules = tuple(CallSums(name, 1, 1, 1, 2 * ns) for name, ns in host.items() if late)
    made = replace(launching(60, 40), operators=rows, modules=modules, late_modules=late)
    told = host_bound.slow_launchers(made)
    assert re.findall(r"\b([abc]) takes", told) == named
    assert told.count("; ") == max(len(named) - 1, 0)
    rows = tuple(replace(row, kernels=0, ns=0) for row in rows)
    assert "its kernels only" not in host_bound.slow_launchers(replace(made, operators=rows, late_modules=()))


def held(call: str, ns: int, **fields: Any) -> FreeGap:
    made = FreeGap(
        kind="place", part="free_host_late_ns", ns=ns, call_ns=ns, count=9, units=1, unit=0, unit_ns=ns, longest_ns=ns,
        begin_ns=0, call=call,
    )  # fmt: skip
    return replace(made, **fields)


SIZES = ("aclnnAddGetWorkspaceSize", "aclnnMmGetWorkspaceSize", "aclnnMulGetWorkspaceSize")
FAMILIES: dict[str, tuple[list[FreeGap], str, int, str]] = {
    "one call": ([held(SIZES[0], 60)], f"the host was in {SIZES[0]} for 100 %", 60, "ACLNN_CACHE_LIMIT"),
    "calls for several operators": ([held(size, 25) for size in SIZES], "aclnn…GetWorkspaceSize;", 75, "pad or bucket lengths"),
    "one of them at the main place": ([held(SIZES[0], 60), held(SIZES[1], 20)], "aclnn…GetWorkspaceSize;", 80, "pad or bucket lengths"),
    "their tiling": ([held("Mul_Tiling", 30), held("Add_Tiling", 30)], "…_Tiling;", 60, "ACLNN_CACHE_LIMIT"),
    "launches of several operators": ([held("aclnnAdd", 30), held("aclnnMm", 40)], "aclnn…;", 70, "TASK_QUEUE_ENABLE=2"),
    "one call at many places": ([held(SIZES[0], 60), held(SIZES[0], 20)], f"{SIZES[0]};", 80, "pad or bucket lengths"),
    "half of the time": ([held(SIZES[0], 25), held(SIZES[1], 25)], "", 100, "TASK_QUEUE_ENABLE=2"),
    "different calls": ([held(SIZES[0], 40), held("aclnnAdd", 40)], "", 100, "TASK_QUEUE_ENABLE=2"),
    "memory without torch": ([held("cuMemCreate/cuMemMap", 80)], "cuMemCreate/cuMemMap", 80, "asks for it again: find out what frees it"),
    "memory that is only set": ([held("cuMemsetD8Async", 80)], "cuMemsetD8Async", 80, "look at what the host does"),
    "memory of torch": ([held("cuMemCreate", 80, operator="aten::empty")], "cuMemCreate", 80, "torch's allocator"),
    "memory for documents": ([held("cudaMalloc", 80, caller="load_documents")], "cudaMalloc (within", 80, "torch's allocator"),
    "sleep mode": ([held("cuMemCreate", 40, caller="wake_up"), held("cuMemCreate", 20, caller="wake_up")], "cuMemCreate (within wake_up);", 60, "sleep less often"),
    "memory pool of an engine": ([held("aclrtMapMem", 60, caller="vllm_ascend/device_allocator/camem.py(60): create_and_map")], "aclrtMapMem (within", 60, "sleep less often"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_that_do_the_same_for_other_operators_or_memory_count_together(name: str) -> None:
    gaps, called, saving, advice = FAMILIES[name]
    unit = RecordedUnit(number=0, host_ns=100, kernels=1, free_host_late_ns=100)
    made = RankProfile("a", "ascend-text", 0, "Ascend NPU", (unit,), gaps=tuple(gaps))
    first = next(iter(analysis.reported([made]).findings))
    said = f"{first.title};"
    assert (called in said, "mostly" in said) == (True, bool(called))
    assert first.saving_ns == saving
    assert advice in first.advice


def test_what_holds_the_host_at_many_places_has_the_time_before_the_first_kernel_that_the_last_step_lacks() -> None:
    late = (60, 60, 20)
    units = [
        RecordedUnit(number=at, host_ns=100, kernels=1, compute_ns=40, free_host_late_ns=ns)
        for at, ns in enumerate(late)
    ]
    gaps = [
        held("cuMemCreate", 60, before="a"),
        held("cuMemCreate", 60, before="b"),
        held("cuMemCreate", 40, part="lead_in_ns"),
    ]
    made = RankProfile("a", "torch", 0, "H100", (replace(units[0], lead_in_ns=40), *units[1:]), gaps=tuple(gaps))
    first = next(iter(analysis.reported([made]).findings))
    assert (first.id, first.culprit, first.saving_ns) == ("dispatch", "cuMemCreate", (60 + 60 + 40) // 3)


LEADS: dict[str, tuple[int, tuple[dict[str, object], ...], str, int | None, str]] = {
    "one step": (1, (), "warning", 40, "look at what"), "several steps": (2, (), "note", None, ""),
    "the host waits": (1, ({"call": "cudaStreamSynchronize", "call_ns": 30},), "note", None, ""), "another call": (1, ({"call": "cudaMalloc"},), "warning", 40, "allocator"),
    "another call at the first use of the device": (1, ({"call": "cudaFree", "operator": "aten::linear"},), "warning", 40, "creates its context"),
    "another call that frees memory": (1, ({"call": "cudaFree"},), "warning", 40, "empty_cache"),
    "another call that frees and allocates memory": (1, ({"call": "cudaFree/cudaMalloc", "operator": "aten::linear"},), "warning", 40, "allocator"),
    "another call, of several steps": (2, ({"call": "cudaMalloc"},), "note", None, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", LEADS)
def test_the_time_before_the_first_kernel_is_a_warning_of_a_single_step(name: str) -> None:
    steps, places, severity, saving, advice = LEADS[name]
    unit = RecordedUnit(number=0, host_ns=9, kernels=1, compute_ns=100)
    gaps = tuple(
        FreeGap(**{"kind": "place", "part": "lead_in_ns", "ns": 35, "count": 1, "units": 1, "unit": 0, "unit_ns": 35, "longest_ns": 35, "begin_ns": 0, "before": "", "after": "b", "stream": "s", **place})  # type: ignore[arg-type]
        for place in places
    )  # fmt: skip
    found = host_bound._diagnose_before_first_kernel(
        RankProfile("a", "torch", 0, "H100", (unit,) * steps, gaps=gaps), 40
    )
    assert (found.id, found.severity, found.saving_ns) == ("lead-in", severity, saving)
    assert advice in found.advice
    assert bool(found.advice) == bool(advice)
    assert ("75 %" in found.evidence) == (name == "the host waits")
    assert ("Longest gap" in found.evidence) == name.startswith("another")


@pytest.mark.parametrize(("found", "steps", "repeated"), [(1, 1, False), (1, 2, True), (1, 3, False), (2, 3, True)])
def test_a_gap_is_repeated_in_half_of_several_steps(found: int, steps: int, repeated: bool) -> None:
    made = replace(launching(1, 1), units=launching(1, 1).units * steps)
    gap = FreeGap(
        kind="place", part="free_blocked_ns", ns=1, count=1, units=found, unit=0, unit_ns=1, longest_ns=1, begin_ns=0
    )
    assert host_bound._is_repeated(made, gap) == repeated


@pytest.mark.parametrize(
    ("phases", "graphs", "advice"),
    [
        (({}, {}), None, host_bound._ON_GPUS), (({}, {}), 0.49, host_bound._ON_GPUS), (({"forward": 1}, {}), 0.5, host_bound._IN_TRAINING),
        (({}, {}), 0.5, host_bound._BESIDE_GRAPHS.filled("50 %")),
    ],
    ids=["neither", "some graphs", "training", "half in graphs"],
)  # fmt: skip
def test_launches_become_faster_by_what_the_steps_do(
    phases: tuple[dict[str, int], ...], graphs: float | None, advice: str
) -> None:
    (unit,) = launching(1, 1).units
    units = tuple(replace(unit, phases=each) for each in phases)
    assert host_bound._faster_launches(replace(launching(1, 1), units=units, graph_share=graphs)) == advice


def test_as_much_latency_as_lateness_is_no_headline() -> None:
    assert not host_bound._diagnose_host_bound(launching(50, 50)).headline
    assert host_bound._diagnose_host_bound(launching(49, 51)).headline
