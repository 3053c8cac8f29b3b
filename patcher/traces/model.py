"""The report and the comparison: values of whole nanoseconds, and the JSON that is promised of them.

The times of the device come from the device's clock, those of the host from the host's; only free time around a
launch, and time before the first kernel that begins with a mark, mix them. The keys of ``as_json`` are documented in
``docs/traces.md`` and only grow; ``SCHEMA`` changes when one goes or changes its meaning. What a page needs beside them
(lanes, titles, hints) is in fields that are no keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from patcher.messages import Text
from patcher.traces import families, names
from patcher.traces.measured import DeviceAllocations, KernelUse, OperatorRate
from patcher.traces.messages import LinkPiece
from patcher.traces.sidecar import Metadata, UnitMetadata

SCHEMA = 2
"""Version of the JSON of a report and of a comparison."""

FREE: Mapping[str, str] = {
    "free_host_late_ns": Text("host-bound"),
    "free_latency_ns": Text("launch latency"),
    "free_blocked_ns": Text("a launch call blocks"),
    "free_waiting_ns": Text("stream wait"),
    "free_unknown_ns": Text("launch time unknown"),
}
"""The parts of a step in which nothing runs on the device, with the reason.

Before the launch call of the next task begins the step is host-bound. From the call to the task's start it is launch
latency if the device was empty at the call, a stream wait if it was busy; the time within a long call is its own.
"""

LEAD_IN = "lead_in_ns"
"""The time before the first kernel of the first step, which is no part of a step."""

PARTS: Mapping[str, str] = {
    "compute_ns": Text("computing"),
    "overlap_ns": Text("computing and communicating"),
    "communication_ns": Text("exposed communication"),
    "copy_ns": Text("copying"),
    **{part: Text("idle: {reason}", reason) for part, reason in FREE.items()},
}
"""The nine parts of a step, in the order in which they are drawn, with their labels."""

PROFILERS: Mapping[str, str] = {
    "torch": "torch.profiler",
    "ascend-text": "torch_npu.profiler",
    "ascend-db": "torch_npu.profiler",
    "ascend-tables": "torch_npu.profiler",
    "nsys": "Nsight Systems",
}
"""Form of a trace → the profiler that writes it."""

FORMS: Mapping[str, str] = {form: ", ".join((profiler, *form.split("-")[1:])) for form, profiler in PROFILERS.items()}
"""Form of a trace → the profiler that writes it, and its export."""

SLOW = 1.3
"""A step that takes so many times the median is an outlier."""

_SAME = 0.1
"""Share by which times that count as the same differ at most."""

LARGE_KERNEL = 0.05
"""Share of a step's computing time from which on a kernel is kept for the comparison of steps."""

COMPUTE, COMMUNICATION, COPY = Text("compute"), Text("communication"), Text("copy")
KINDS = (COMPUTE, COMMUNICATION, COPY)
"""Kinds of a device task."""

MARK, CALL, LAUNCH = "mark", "call", "launch"
"""Kinds of host spans that are drawn: the mark of a step, long calls, and launches of tasks."""

CPU = "CPU"
"""The device of a run that has none."""

Value = TypeVar("Value")


class Payload:
    """A value with ``as_json``: ``--json`` promises the attributes in ``KEYS``, in that order."""

    __slots__ = ()
    KEYS: ClassVar[tuple[str, ...]]

    def as_json(self) -> dict[str, Any]:
        """Return the promised keys with their values, for `json_of`."""
        return {key: getattr(self, key) for key in self.KEYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedUnit(UnitMetadata, Payload):
    """One recorded step, micro-batch or iteration: its time on the device in nine parts that add up to it.

    On the device it reaches from its first kernel on the busiest compute stream to the first kernel of the next step;
    the last one ends with its last kernel. The first one also has a time before that, ``lead_in_ns``, from its mark or
    its first task on; that is no part of ``device_ns``. ``begin_ns`` is where it begins on the trace's clock, that time
    included. ``host_ns`` is how long its mark is on the host, up to uncounted iterations within it. ``kernels`` counts
    the tasks that it launched, wherever they ran. ``phases`` is the time of these in forward, backward and optimizer,
    if it trains. ``classes`` maps classes of work to ns; they add up to the step's time, on the host if nothing ran on
    a device. ``requests``, ``tokens`` and ``context`` may be from its mark, where there is no metadata beside the
    trace.
    """

    KEYS = (
        "number", "host_ns", "device_ns", "kernels", *PARTS, LEAD_IN, "phases", "classes",
        "requests", "tokens", "context", "drafts", "longest", "sequences", "padded", "uncounted", "profiler_start",
        "begin_ns",
    )  # fmt: skip

    number: int
    host_ns: int
    kernels: int
    compute_ns: int = 0
    overlap_ns: int = 0
    communication_ns: int = 0
    copy_ns: int = 0
    free_host_late_ns: int = 0
    free_latency_ns: int = 0
    free_blocked_ns: int = 0
    free_waiting_ns: int = 0
    free_unknown_ns: int = 0
    lead_in_ns: int = 0
    phases: Mapping[str, int] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    name: str = ""
    begin_ns: int = 0

    @property
    def parts(self) -> dict[str, int]:
        """Part of the time → nanoseconds, in the order of `PARTS`."""
        return {part: getattr(self, part) for part in PARTS}

    @property
    def device_ns(self) -> int:
        """Time on the device in ns: the sum of the parts, which torch_npu's table calls Stage."""
        return sum(self.parts.values())


def lower_median(values: Sequence[Value], key: Any = None) -> Value:
    """Return the lower median of at least one value: one of the values, never a mean of two.

    ``key`` is as in `sorted`.
    """
    return sorted(values, key=key)[(len(values) - 1) // 2]


def duration_of(unit: RecordedUnit) -> tuple[int, int]:
    """Return the key that sorts steps by duration: ns on the device, then ns on the host."""
    return unit.device_ns, unit.host_ns


def units_on_device(units: Sequence[RecordedUnit]) -> Sequence[RecordedUnit]:
    """Return the steps in which something ran on the device; all steps if there is none."""
    return [unit for unit in units if unit.device_ns] or units


def median_unit(units: Sequence[RecordedUnit]) -> RecordedUnit | None:
    """Return the step whose time is the lower median, so that its parts add up; None without steps."""
    return lower_median(units_on_device(units), duration_of) if units else None


@dataclass(frozen=True, slots=True)
class Kernel(Payload):
    """All tasks of one name that the steps launched: ``ns`` is the sum of their times, ``longest_ns`` the longest."""

    KEYS = ("name", "kind", "family", "calls", "ns")

    name: str
    kind: str
    calls: int
    ns: int
    longest_ns: int = 0

    @property
    def family(self) -> str:
        """Family of the kernel, a key of `families.FAMILIES`."""
        return families.family_of(self.name, self.kind)


@dataclass(frozen=True, slots=True)
class CallSums:
    """All calls of one operator of the framework, or of the modules of one class, within the steps.

    ``ns`` is the time of the ``kernels`` that they launched, ``host_ns`` their time on the host: of an operator without
    the operators that it called, of a module with all that it called.
    """

    name: str
    calls: int
    kernels: int
    ns: int
    host_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeGap(Payload):
    """A place where the device was free, over all steps: one place (``kind`` "place"), or short times at "several".

    A place lies between the kernels ``before`` and ``after``, which runs on ``stream``; ``graph`` says how it lies to
    replays of a graph: "within" one, "behind" or "before" one, "between" two, or "". ``part`` is the part of the step
    that it is of. For ``call_ns``, at least half of the time, the host was in ``call``: one of the device's runtime, a
    function or frame of Python, or a range; around that are ``operator`` and ``module``. ``caller`` is the nearest
    function or range of the program around a call of a library. Without a call the host was for as long in the
    operator if ``within``; else nothing covers half of the time, and the operator launched what follows.
    ``returned_from`` is the synchronising call in which the host was when the device ran empty, where nothing covers
    the time after it. Each of these names is "" where nothing tells. ``count`` gaps in ``units`` steps take ``ns``;
    most of that, ``unit_ns``, in ``unit``, whose longest one takes ``longest_ns``, and begins ``begin_ns`` after the
    step, at ``at_ns`` on the trace's clock. ``spots`` has begin and length of the longest one in each step that is
    drawn, by its number.
    """

    KEYS = (
        "kind", "before", "after", "stream", "graph", "part", "call", "call_ns", "operator", "within", "module", "ns",
        "count", "units", "unit", "unit_ns", "longest_ns", "begin_ns", "at_ns", "returned_from",
    )  # fmt: skip

    kind: str
    part: str
    ns: int
    count: int
    units: int
    unit: int
    unit_ns: int
    longest_ns: int
    begin_ns: int
    before: str = ""
    after: str = ""
    stream: str = ""
    graph: str = ""
    call: str = ""
    call_ns: int = 0
    operator: str = ""
    within: bool = False
    module: str = ""
    at_ns: int = 0
    returned_from: str = ""
    caller: str = ""
    unrecorded: bool = False  # but for its ends, no event of the host begins or ends in the longest gap
    spots: Mapping[int, tuple[int, int]] = field(default_factory=dict)


class HostPlace(NamedTuple):
    """A place of a step at which no operator runs: ``inside`` a frame or range, ``around`` it a range.

    Where nothing that was recorded covers half of it, ``before`` and ``after`` are the operators next to it. ``saving``
    tells that the operators before it detach one tensor after the other, as ``state_dict()`` does.
    """

    inside: str
    around: str = ""
    before: str = ""
    after: str = ""
    saving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStep:
    """Breakdown of the ``ns`` of a step on the host, in a trace without a device.

    ``operators`` and ``calls`` are ns and number of the outermost operators by name, ``places`` the ns of stretches of
    20 µs and more without one. ``small_ns`` is the time of operators and stretches below 0.1 ms, ``compiling_ns`` that
    in which torch.compile worked. ``inputs`` has the shapes of the inputs of operators by name, in JSON, if recorded,
    with the number of calls. ``frames`` has for each frame and range that covers half of a stretch the ns of its
    places; those around all operators of the step are left out. ``ranges`` is the ns of the ranges of the user, and of
    those that torch records as operators around others, by name; ``small_ranges`` is the part of ``small_ns`` in them.
    ``functions`` and ``small_functions`` are the same of Python functions of the program, if recorded; those around all
    operators of the step are left out. ``around`` has for each long range or function the names of those around it,
    ``collectives`` the ns of each collective by kind. ``backward_ns`` is that of autograd, with pauses between nodes.
    """

    number: int
    ns: int
    operators: Mapping[str, int]
    calls: Mapping[str, int]
    places: Mapping[HostPlace, int]
    small_ns: int
    compiling_ns: int
    inputs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    frames: Mapping[str, Mapping[HostPlace, int]] = field(default_factory=dict)
    ranges: Mapping[str, int] = field(default_factory=dict)
    small_ranges: Mapping[str, int] = field(default_factory=dict)
    functions: Mapping[str, int] = field(default_factory=dict)
    small_functions: Mapping[str, int] = field(default_factory=dict)
    around: Mapping[str, Collection[str]] = field(default_factory=dict)
    collectives: Mapping[str, Sequence[int]] = field(default_factory=dict)
    backward_ns: int = 0

    @property
    def idle_ns(self) -> int:
        """Time in ns in which no operator ran on any thread."""
        return self.ns - sum(self.operators.values())


@dataclass(frozen=True, slots=True)
class Check(Payload):
    """One test of whether the data can be trusted; if not ``ok``, the diagnoses in ``withdraws`` do not hold."""

    KEYS = ("id", "ok", "evidence")

    id: str
    ok: bool
    evidence: str
    withdraws: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one row, drawn as one bar: ``count`` tasks of one kind, from ``begin_ns`` after the step's begin.

    ``of_step`` is False if another step launched them. Spans too short or near to be told apart are merged.
    """

    begin_ns: int
    ns: int
    kind: str
    name: str
    of_step: bool = True
    count: int = 1


@dataclass(frozen=True, slots=True)
class Lanes:
    """The work of the device in one step: stream → its spans in order; ``why`` is median, typical or slowest.

    ``device_ns`` is what is drawn: the step, and the time before its first kernel. ``host`` has rows of host activity
    on the trace's clock; empty if the trace has none.
    """

    number: int
    why: str
    device_ns: int
    streams: Mapping[str, tuple[Span, ...]]
    host: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Collective(Payload):
    """One collective of one rank: the ``index``-th of its ``group`` in the step that launched it.

    ``transit_ns``, ``wait_ns`` and ``idle_ns`` are the vendor's own parts of it, None where it has none. The fields
    from ``kind`` to ``pieces`` are those of a `CollectiveMessage`. ``waits_ns`` is how much longer it took this rank
    than the one that came last, None where the reported ranks do not tell; ``usual_ns`` how long it takes by its
    neighbours without waiting, None where there are too few.
    """

    KEYS = (
        "name", "kind", "group", "ranks", "unit", "index", "ns", "bytes", "sent_bytes", "gb_per_s", "usual_ns",
        "waits_ns", "transit_ns", "wait_ns", "idle_ns", "pieces",
    )  # fmt: skip

    group: str
    index: int
    name: str
    ns: int
    transit_ns: int | None = None
    wait_ns: int | None = None
    idle_ns: int | None = None
    unit: int = 0
    kind: str = ""
    bytes: int | None = None
    sent_bytes: int | None = None
    ranks: int | None = None
    pieces: tuple[LinkPiece, ...] = ()
    waits_ns: int | None = None
    usual_ns: int | None = None

    @property
    def size(self) -> int | None:
        """Bytes by which collectives are compared: those of the message, else those over links; None if unknown."""
        return self.bytes or self.sent_bytes

    @property
    def moving_ns(self) -> int:
        """Time in ns without the wait for the last rank, as far as the ranks or the vendor tell it."""
        return max(self.ns - (self.wait_ns or 0 if self.waits_ns is None else self.waits_ns), 0)

    @property
    def gb_per_s(self) -> float | None:
        """Size over the time without waiting, in GB/s; None without a size."""
        return round(self.size / self.moving_ns, 3) if self.size and self.moving_ns else None

    @property
    def excess_ns(self) -> int:
        """Time in ns beyond the usual time, waiting left out; 0 if the usual time is unknown."""
        return max(self.moving_ns - self.usual_ns, 0) if self.usual_ns else 0


class HostRange(NamedTuple):
    """A range of the host, ``ns`` in all steps, during which the device is host-bound for ``idle_ns``."""

    name: str
    idle_ns: int
    ns: int


class CopyLaunch(NamedTuple):
    """A frame or range of the host that launched copies of ``ns`` in a step; ``copy`` has the largest sum of them."""

    name: str
    ns: int
    copy: str


@dataclass(frozen=True, slots=True)
class ReplayJoin:
    """Counts of the replays of graphs in the steps, and of those that were joined with their capture.

    ``why`` has the reasons why the others were not, the most frequent first.
    """

    count: int
    joined: int
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankProfile(Payload):
    """One recorded rank.

    ``source`` is the path that it was read from, ``form`` a key of ``FORMS``, ``world`` how many ranks the run has,
    None where nobody wrote that down, ``settings`` those of the profiler and its releases. ``metadata`` is what the
    probe wrote beside the trace, ``vendor`` the profiler's own step file (step → column → nanoseconds), None without
    one. ``kernels``, ``operators``, ``modules`` and ``gaps`` are sorted by their time, longest first. ``label`` tells
    the profiles of one report apart. ``prompt_share`` is the share of kernels that start within 20 µs of their launch:
    near-vertical lines in a timeline. ``replays`` is None where no graph was replayed, or none was recorded while it
    was captured. ``pieces`` are the traces of a window that was saved in several, ``source`` is the first of them.
    ``graph_share`` is the share of kernels that one launch started together, as the replay of a graph does; None where
    launches do not tell, ``graph_shares`` the same by number of a step. ``late_modules`` are the classes of modules
    that tell best where the host's time goes. ``host_steps`` say where the time goes in a trace without a device.
    ``kernels_of_steps`` maps the number of a step to ns by name of the kernels with at least 5 % of its computing time;
    empty if no step is slow. ``inputs_of_steps`` maps it to a checksum that is equal for steps with the same operators
    and shapes; empty, too, if no shapes were recorded. ``baseline_run`` names the run of a comparison with a baseline;
    all that it recorded is one sample. ``has_shapes`` and ``has_stacks`` tell whether events have the shapes of inputs,
    and whether there are frames of Python; None where only ``settings`` tell. ``capture_share`` is the share of the
    host's time in all steps during which it captures a graph. ``late_range`` has most of the host-bound time, but less
    of the host's. ``idle_between`` maps the number of a step to the host-bound ns between the end of its mark and the
    next one, and ``range_between`` has most of these. ``copy_launches`` maps the number of a step to what launched most
    of its copies. ``kernel_operators`` maps a kernel, an operator that launched it, and the shapes of its inputs (JSON
    or "") to ns.
    """

    KEYS = (
        "source", "form", "rank", "device", "facts", "checks", "units", "families", "kernels", "operators", "modules",
        "collectives", "kernel_uses", "rates", "vendor", "gaps", "replays", "pieces",
        "memory",
    )  # fmt: skip

    source: str
    form: str
    rank: int | None
    device: str
    units: tuple[RecordedUnit, ...]
    kernels: tuple[Kernel, ...] = ()
    operators: tuple[CallSums, ...] = ()
    modules: tuple[CallSums, ...] = ()
    checks: tuple[Check, ...] = ()
    metadata: Metadata | None = None
    world: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    vendor: Mapping[str, Mapping[str, int]] | None = None
    label: str = ""
    marks: str = ""
    lanes: tuple[Lanes, ...] = ()
    collectives: tuple[Collective, ...] = ()
    kernel_uses: tuple[KernelUse, ...] = ()
    memory: tuple[DeviceAllocations, ...] = ()
    rates: tuple[OperatorRate, ...] = ()
    prompt_share: float | None = None
    gaps: tuple[FreeGap, ...] = ()
    replays: ReplayJoin | None = None
    pieces: tuple[str, ...] = ()
    graph_share: float | None = None
    graph_shares: Mapping[int, float] = field(default_factory=dict)
    late_modules: tuple[str, ...] = ()
    host_steps: tuple[HostStep, ...] = ()
    kernels_of_steps: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    inputs_of_steps: Mapping[int, int] = field(default_factory=dict)
    baseline_run: str = ""
    has_shapes: bool | None = None
    has_stacks: bool | None = None
    capture_share: float = 0.0
    late_range: HostRange | None = None
    idle_between: Mapping[int, int] = field(default_factory=dict)
    range_between: HostRange | None = None
    copy_launches: Mapping[int, CopyLaunch] = field(default_factory=dict)
    kernel_operators: Mapping[tuple[str, str, str], int] = field(default_factory=dict)

    def setting(self, name: str) -> str:
        """Return the value of a setting; "" if unknown."""
        return self.settings.get(name, "")

    @property
    def facts(self) -> Mapping[str, Any] | None:
        """Content of the metadata file; None without metadata."""
        return self.metadata.raw if self.metadata else None

    @property
    def stage(self) -> str:
        """Stage in the metadata, such as rollout, else in the name of the trace; "" without either."""
        of_metadata = self.metadata.stage if self.metadata else ""
        return of_metadata or names.of(Path(self.source)).fields.get("stage", "")

    @property
    def part(self) -> str:
        """Stage and role, as ``update-policy actor``; ranks with the same are reported together. "" if unknown."""
        role = self.metadata.role if self.metadata else names.of(Path(self.source)).fields.get("role", "")
        return f"{self.stage} {role}".strip()

    @property
    def on_host(self) -> bool:
        """Whether there was no device, so that all times are those of operators on the host."""
        return self.device == CPU and not self.total_ns and bool(self.operators)

    @property
    def cold(self) -> tuple[int, ...]:
        """Numbers of the steps that carry the profiler's own start, because no step came before to warm up in."""
        first = self.units[0].number if self.units and self.marks == "ProfilerStep#" else None
        return tuple(unit.number for unit in self.units if unit.profiler_start or unit.number == first == 0)

    @property
    def rank_name(self) -> str:
        """Rank in words; "" if unknown."""
        return "" if self.rank is None else Text("rank {rank}", self.rank)

    @property
    def name(self) -> str:
        """Label that tells this profile from others, else its rank; "" without either."""
        return self.label or self.rank_name

    @property
    def failed(self) -> tuple[Check, ...]:
        """Checks that are not ok."""
        return tuple(check for check in self.checks if not check.ok)

    @property
    def withdrawn(self) -> set[str]:
        """Ids of the diagnoses that failed checks withdraw."""
        return {diagnosis for check in self.failed for diagnosis in check.withdraws}

    @property
    def span(self) -> str:
        """Range of the step numbers, as ``#3 to #5``, or ``#3`` for a single step; "" without steps."""
        numbers = [unit.number for unit in self.units]
        if len(numbers) > 1:
            return Text("#{first} to #{last}", first=min(numbers), last=max(numbers))
        return "".join(f"#{number}" for number in numbers)

    @property
    def median_ns(self) -> int:
        """Device time of the median step in ns; 0 without steps."""
        return self.median_unit.device_ns if self.median_unit else 0

    @property
    def host_median_ns(self) -> int:
        """Lower median of the steps' host times in ns; 0 without steps."""
        return lower_median([unit.host_ns for unit in self.units]) if self.units else 0

    @property
    def median_unit(self) -> RecordedUnit | None:
        """Step with the lower median time; None without steps."""
        return median_unit(self.units)

    @property
    def slowest_unit(self) -> RecordedUnit | None:
        """Step with the longest time; None without steps."""
        return max(self.units, key=duration_of, default=None)

    @property
    def percentile95_ns(self) -> int:
        """95th percentile (nearest rank) of the steps' device times in ns; 0 without steps."""
        ordered = sorted(unit.device_ns for unit in units_on_device(self.units))
        return ordered[-(len(ordered) * 5 // 100) - 1] if ordered else 0

    @property
    def total_ns(self) -> int:
        """Device time of all steps in ns."""
        return sum(unit.device_ns for unit in self.units)

    @property
    def uncounted(self) -> dict[int, int]:
        """Step number → the uncounted iterations right before it; steps without any are left out."""
        return {unit.number: unit.uncounted for unit in self.units if unit.uncounted}

    @property
    def phases(self) -> dict[str, int]:
        """Phase (forward, backward, optimizer) → ns of its kernels in all steps; empty if no step trains."""
        names = dict.fromkeys(phase for unit in self.units for phase in unit.phases)
        return {phase: sum(unit.phases.get(phase, 0) for unit in self.units) for phase in names}

    @property
    def computing_ns(self) -> int:
        """Sum of the times of the kernels that compute, in ns."""
        return sum(kernel.ns for kernel in self.kernels if kernel.kind == COMPUTE)

    @property
    def families(self) -> dict[str, int]:
        """Family → ns in all steps, the largest first: kernel time, and two families of the device's idle time.

        Host-bound is idle time in which the next kernel was not launched yet. If the trace has modules and the host was
        in none of them during a gap, the gap is outside the forward pass. So is the time before the first kernel.
        Families without time are left out.
        """
        sums = Counter[str]()
        for kernel in self.kernels:
            sums[kernel.family] += kernel.ns
        outside = sum(
            gap.ns for gap in self.gaps
            if self.modules and gap.kind == "place" and gap.part == "free_host_late_ns" and not gap.module
        )  # fmt: skip
        sums[families.HOST_BOUND] += max(self.sum_ns("free_host_late_ns") - outside, 0)
        sums[families.OUTSIDE_FORWARD] += outside + self.sum_ns(LEAD_IN)
        return {family: ns for family, ns in sums.most_common() if ns}

    @property
    def free_share(self) -> float:
        """Share of the step time, 0 to 1, that torch_npu's table calls Free: idle time of all kinds, and copies."""
        return self.share(*FREE, "copy_ns")

    @property
    def cut_ns(self) -> int:
        """Time in ns before the first kernel, if the last step is shorter than the median step by as much, within 10 %.

        Then such a time lies before each step: on the device it ends the step before, and that of the last step was not
        recorded. 0 otherwise.
        """
        if len(self.units) < 2:
            return 0
        *whole, last = (unit.device_ns for unit in self.units)
        usual, lead_in = lower_median(whole), self.units[0].lead_in_ns
        return lead_in if abs(usual - last - lead_in) <= _SAME * lead_in else 0

    def operator_of(self, kernel: Kernel) -> str:
        """Return the operator that launched over half of the time of a kernel; "" without one."""
        sums = Counter[str]()
        for (name, operator, _), ns in self.kernel_operators.items():
            sums[operator] += ns if name == kernel.name else 0
        return next((operator for operator, ns in sums.most_common(1) if 2 * ns > kernel.ns), "")

    def sum_ns(self, *parts: str) -> int:
        """Return the nanoseconds of ``parts``, fields of a step, over all steps."""
        return sum(getattr(unit, part) for unit in self.units for part in parts)

    def share(self, *parts: str) -> float:
        """Return the share of ``parts`` in the device time of all steps, 0 to 1; 0 without any time."""
        total = self.total_ns
        return self.sum_ns(*parts) / total if total else 0.0


TITLES = {
    "communication": Text("Exposed communication"),
    "collective-idle": Text("The device is idle inside collectives"),
    "collective-outlier": Text("A collective takes much longer than similar ones"),
    "collective-unaligned": Text("Collectives transfer blocks of unaligned sizes"),
    "pipeline-bubble": Text("Pipeline bubble: one stage waits for another stage"),
    "dispatch": Text("Host-bound: the device waits for the next launch"),
    "launch-blocked": Text("A launch call blocks while the device is idle"),
    "lead-in": Text("Time before the first kernel"),
    "idle-unknown": Text("The device is idle, and the trace does not tell why"),
    "waiting": Text(
        "Stream wait: the next kernel was launched in time, but started late for a reason that was not recorded"
    ),
    "copies": Text("Exposed copies"),
    "outlier": Text("One step takes much longer than the others"),
    "slow-rank": Text("Ranks wait for each other"),
    "missing-ranks": Text("The report does not cover all ranks"),
    "compute": Text("The device computes nearly all the time"),
    "host-compile": Text("No device data; on the host, torch.compile takes much of the time"),
    "host-idle": Text("No device data; most of the time, the host runs no operator"),
    "host-small": Text("No device data; on the host, many small operators take much of the time"),
    "host-operators": Text("No device data; on the host, operators take most of the time"),
}
"""Id of a diagnosis → its title, which is the verdict where it weighs most."""


EXACT = Text("exact")
"""The certainty of a diagnosis that only counts and measures."""


class SlowSteps(NamedTuple):
    """The ``numbers`` of slow steps, by what the slowest exceeds the median step, in ns, and its cause ("": unknown).

    ``number_on_host`` is the step that is slow on the host instead of the only slow one; None if it is the same.
    """

    numbers: tuple[int, ...]
    excess_ns: int
    cause: str
    number_on_host: int | None = None

    @property
    def host_number(self) -> int:
        """Number of the slowest step; of two neighbours that in which the host spends the time."""
        return self.numbers[0] if self.number_on_host is None else self.number_on_host


@dataclass(frozen=True, slots=True)
class Diagnosis(Payload):
    """Something to act on, or to know, of one profile (``source``) or of all.

    ``severity`` is problem, warning or note. ``saving_ns`` bounds from above what can be gained per step, None where
    nothing can be. ``certainty`` says what the number rests on: exact, upper bound, heuristic. ``advice`` is what to
    try. ``parts`` is what of exposed communication is what, in ns per step. Savings of one report are of different
    times, but for those with ``same_as``, the id of the finding that is about the same time. ``headline`` takes the
    place of the usual title, ``culprit`` names the rank, stage, call or place. ``slow_steps`` is set for slow steps,
    ``step`` is the number of the step that has over half of the waiting for a straggler, None without one.
    """

    KEYS = (
        "id", "severity", "title", "evidence", "saving_ns", "certainty", "advice", "source", "parts", "same_as",
        "culprit",
    )  # fmt: skip

    id: str
    severity: str
    evidence: str
    saving_ns: int | None
    certainty: str
    advice: str = ""
    source: str = ""
    parts: Mapping[str, int] = field(default_factory=dict)
    same_as: str = ""
    headline: str = ""
    culprit: str = ""
    slow_steps: SlowSteps | None = None
    step: int | None = None

    @property
    def title(self) -> str:
        """Title of the diagnosis."""
        return self.headline or TITLES.get(self.id, self.id)


@dataclass(frozen=True, slots=True)
class Rank:
    """Sums of one rank's meetings with the others, in the collectives that all of them recorded.

    ``waits_ns`` is how much longer its collectives took than those of the last rank; ``awaited_ns`` how long the others
    waited for this rank where it alone came last, in sum, ``last`` how often, and ``at_first_ns`` the part of that at
    the first collective of the first step, in which the skew of the profilers' start lies. No common clock is needed.
    ``awaited_in`` maps the number of a step to its part of ``awaited_ns``. ``alone_in`` maps it to the part that no
    other rank would have caused, because this one came so much later than the last but one; None if that is unknown.
    """

    rank: int | None
    source: str
    units: int
    median_ns: int
    collectives: int
    waits_ns: int
    awaited_ns: int
    last: int
    at_first_ns: int = 0
    awaited_in: Mapping[int, int] = field(default_factory=dict)
    alone_in: Mapping[int, int] | None = None

    @property
    def is_alone(self) -> bool:
        """Whether it alone causes over half of the waiting for it, as far as is known."""
        return self.alone_in is None or 2 * sum(self.alone_in.values()) > self.awaited_ns

    @property
    def late_in(self) -> int | None:
        """Number of the step with over half of all waiting for this rank, beyond the median step; None without one.

        None, too, if another step has over half as much.
        """
        if self.units < 2 or not self.awaited_in:
            return None
        number = max(self.awaited_in, key=lambda step: self.awaited_in[step])
        typical = lower_median([0] * (self.units - len(self.awaited_in)) + [*self.awaited_in.values()])
        most = self.awaited_in[number] - typical
        second = max((ns - typical for step, ns in self.awaited_in.items() if step != number), default=0)
        return number if 2 * most > self.awaited_ns and 2 * second <= most else None

    @property
    def late_steps(self) -> list[int]:
        """Numbers of the steps with nine tenths of all waiting for this rank; [] if they are half of all or more."""
        ordered = sorted(self.awaited_in, key=lambda step: -self.awaited_in[step])
        waited = accumulate(self.awaited_in[step] for step in ordered)
        count = next((count for count, ns in enumerate(waited, 1) if 10 * ns >= 9 * self.awaited_ns), self.units)
        return sorted(ordered[:count]) if 2 * count < self.units else []

    @property
    def waits_per_unit(self) -> int:
        """Nanoseconds for which this rank waits for others, per step."""
        return self.waits_ns // max(self.units, 1)

    @property
    def awaited_per_unit(self) -> int:
        """Nanoseconds for which the others together wait for this rank, per step."""
        return self.awaited_ns // max(self.units, 1)


@dataclass(frozen=True, slots=True)
class Verdict(Payload):
    """The verdict of the diagnoses, in a few words.

    ``guide`` is the verdict by the guide's rule for the same numbers, ``difference`` why it differs. ``withdrawn`` has
    the evidence of failed checks and the diagnoses that these withdraw.
    """

    KEYS = ("title", "withdrawn")

    title: str
    guide: str = ""
    difference: str = ""
    withdrawn: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceReport(Payload):
    """The report on one profile, or on several ranks of one run; ``stages`` are reports of their own, if several."""

    KEYS = ("schema", "verdict", "captures", "findings")

    captures: tuple[RankProfile, ...]
    findings: tuple[Diagnosis, ...] = ()
    verdict: Verdict = Verdict("")
    ranks: tuple[Rank, ...] = ()
    schema: int = SCHEMA
    stages: tuple[TraceReport, ...] = ()


@dataclass(frozen=True, slots=True)
class Side(Payload):
    """One side of a comparison: its profiles, and the times of their steps.

    ``captures`` is the number of windows, each one sample: the ranks of a window are one. ``medians_ns`` has the median
    of each.
    """

    KEYS = ("sources", "form", "device", "units", "captures", "medians_ns")

    sources: tuple[str, ...]
    form: str
    device: str
    units_ns: tuple[int, ...]
    medians_ns: tuple[int, ...] = ()

    @property
    def units(self) -> int:
        """Number of steps."""
        return len(self.units_ns)

    @property
    def captures(self) -> int:
        """Number of captures: recorded windows, or runs of a baseline."""
        return len(self.medians_ns)


@dataclass(frozen=True, slots=True)
class Baseline(Payload):
    """The stored ``runs`` in a ``folder`` that a comparison has before: their files, oldest first.

    ``Side.medians_ns`` has the median of each.
    """

    KEYS = ("folder", "runs")

    folder: str
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartChange(Payload):
    """One part of the waterfall: its ns in the median step before and after."""

    KEYS: ClassVar[tuple[str, ...]] = ("name", "before_ns", "after_ns", "change_ns")

    name: str
    before_ns: int
    after_ns: int

    @property
    def change_ns(self) -> int:
        """Change in ns from before to after."""
        return self.after_ns - self.before_ns


@dataclass(frozen=True, slots=True)
class TimeChange(PartChange):
    """A kernel, an operator or a module on both sides: calls and nanoseconds per step.

    ``state`` is new, gone, slower, faster, more often, less often, or alike.
    """

    KEYS = ("name", "kind", "state", "before_calls", "after_calls", "before_ns", "after_ns", "change_ns")

    kind: str
    state: str
    before_calls: float
    after_calls: float


@dataclass(frozen=True, slots=True)
class EqualLoad:
    """The change in ns of a step at equal load, with its 95 % interval, by a linear fit.

    ``by`` names the contents that the fit takes into account, ``fit`` is the share of the variance of all times that
    the contents and the side explain, 0 to 1.
    """

    change: tuple[int, int, int]
    fit: float
    by: tuple[str, ...]


DECIDED = FASTER, SLOWER, ALIKE = Text("faster"), Text("slower"), Text("no clear difference")
"""The verdicts of a comparison by its interval."""

FASTER_IN_TWO, SLOWER_IN_TWO, FASTER_IN_THESE, SLOWER_IN_THESE = (
    Text("faster in these two captures"), Text("slower in these two captures"),
    Text("faster in these captures"), Text("slower in these captures"),
)  # fmt: skip
"""What is said instead of a verdict where a side has one capture alone: of the two captures, or of three and more."""

ENOUGH_CAPTURES = 4
"""Captures of both sides together from which on they tell how captures of one program differ: two each, or 3 and 1."""

FEW, OTHER = Text("not enough data"), Text("different profiler settings")
OTHER_DEVICE, OTHER_MODEL = Text("undecided: different devices"), Text("undecided: different models")
"""The verdicts of what cannot be decided: few steps, or the profiler's settings, the device or the model differ."""


@dataclass(frozen=True, slots=True)
class Comparison(Payload):
    """Two sides: the difference of the median step in nanoseconds with its 95 % interval, and where it comes from.

    A sample is a step: of several ranks the one that took longest. ``differs`` names in what the sides were recorded
    otherwise, or ran elsewhere. ``equal_load`` is None where nothing tells the load, or it is the same.

    ``clock`` is "device", or "host" where nothing ran on a device on one side: then the times are those on the host,
    also of ``modules``, and of ``operators``, which are left out otherwise. ``change`` is None where a side has no
    step. ``refused`` says why the two cannot be compared; with ``--force`` the rest is there all the same. ``notes``
    are what the reader has to know of the numbers: one sample a side, say.
    """

    KEYS = (
        "schema", "before", "after", "median_ns", "change", "parts", "kernels", "modules", "refused", "clock",
        "verdict", "differs", "equal_load", "operators", "baseline",
    )  # fmt: skip

    before: Side
    after: Side
    median_ns: tuple[int, int]
    change: tuple[int, int, int] | None
    parts: tuple[PartChange, ...] = ()
    kernels: tuple[TimeChange, ...] = ()
    modules: tuple[TimeChange, ...] = ()
    operators: tuple[TimeChange, ...] = ()
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    clock: str = "device"
    verdict: str = FEW
    differs: tuple[str, ...] = ()
    equal_load: EqualLoad | None = None
    reports: tuple[Sequence[RankProfile], Sequence[RankProfile]] = ((), ())
    baseline: Baseline | None = None
    schema: int = SCHEMA

    @property
    def captures(self) -> int:
        """Number of captures on both sides: recorded windows, or runs of a baseline."""
        return self.before.captures + self.after.captures

    @property
    def least_change_ns(self) -> int:
        """Lower end of the interval of the change, at equal load if that is known, in ns; 0 without a change."""
        return (self.equal_load.change if self.equal_load else self.change or (0,))[0]
