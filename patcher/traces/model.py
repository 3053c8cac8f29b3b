"""What a report and a comparison are: values of whole nanoseconds, and the JSON that is promised of them.

The times of the device come from the device's clock, those of the host from the host's; no value mixes them. What
``as_json`` gives is documented in ``docs/traces.md`` and grows by keys; ``SCHEMA`` changes when one goes or means
something else. What a page needs beside it (lanes, titles, hints) stands in fields that ``as_json`` leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1
"""Of the JSON of a report and of a comparison."""

PARTS: Mapping[str, str] = {
    "compute_ns": "computing",
    "overlap_ns": "computing and communicating at once",
    "communication_ns": "communicating, not hidden",
    "copy_ns": "copying",
    "free_host_late_ns": "free: the host was late",
    "free_waiting_ns": "free: launched, not started",
    "free_unknown_ns": "free: launch unknown",
}
"""The seven parts of a unit, in the order in which they are drawn, with the words that stand beside them."""

FREE = ("free_host_late_ns", "free_waiting_ns", "free_unknown_ns")
"""The parts in which nothing runs on the device."""

FORMS: Mapping[str, str] = {
    "torch": "torch.profiler",
    "ascend-text": "torch_npu.profiler, text",
    "ascend-db": "torch_npu.profiler, db",
}
"""The forms of a capture, with the profiler that writes them."""

COMPUTE, COMMUNICATION, COPY = "compute", "communication", "copy"
KINDS = (COMPUTE, COMMUNICATION, COPY)
"""What a task of the device does."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One recorded step, micro-batch or iteration: its time on the device in seven parts that add up to it.

    On the device it reaches from ``begin_ns`` (its first kernel on the busiest compute stream, on the trace's clock)
    to the first kernel of the next unit; the last one ends with its last kernel. ``host_ns`` is how long its mark is
    on the host, up to uncounted iterations within it. ``kernels`` counts the tasks that it launched, wherever they
    ran. ``phases`` is the time of these in forward, backward and optimizer, if it trains. ``requests``, ``tokens`` and
    ``context`` are None where neither its mark nor the facts beside the trace tell; ``drafts``, ``longest`` (the
    longest context), ``sequences`` and their ``padded`` shape where the facts do not. ``uncounted`` iterations lie
    between the unit before and this one.
    """

    number: int
    host_ns: int
    kernels: int
    compute_ns: int = 0
    overlap_ns: int = 0
    communication_ns: int = 0
    copy_ns: int = 0
    free_host_late_ns: int = 0
    free_waiting_ns: int = 0
    free_unknown_ns: int = 0
    phases: Mapping[str, int] = field(default_factory=dict)
    requests: int | None = None
    tokens: int | None = None
    context: int | None = None
    drafts: int | None = None
    longest: int | None = None
    sequences: int | None = None
    padded: tuple[int, ...] | None = None
    uncounted: int | None = None
    name: str = ""
    begin_ns: int = 0

    @property
    def parts(self) -> dict[str, int]:
        """Part → nanoseconds, in the order of ``PARTS``."""
        return {part: getattr(self, part) for part in PARTS}

    @property
    def device_ns(self) -> int:
        """Its time on the device: the sum of the parts."""
        return sum(self.parts.values())

    @property
    def free_ns(self) -> int:
        """How long nothing ran on the device."""
        return sum(getattr(self, part) for part in FREE)

    def as_json(self) -> dict[str, Any]:
        """The unit as promised."""
        return {
            "number": self.number, "host_ns": self.host_ns, "device_ns": self.device_ns, "kernels": self.kernels,
            **self.parts, "phases": dict(self.phases),
            "requests": self.requests, "tokens": self.tokens, "context": self.context, "drafts": self.drafts,
            "longest": self.longest, "sequences": self.sequences,
            "padded": None if self.padded is None else list(self.padded), "uncounted": self.uncounted,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kernel:
    """All tasks of one name that the units launched: ``ns`` is the sum of their times, ``longest_ns`` the longest."""

    name: str
    kind: str
    calls: int
    ns: int
    longest_ns: int = 0

    def as_json(self) -> dict[str, Any]:
        """The kernel as promised."""
        return {"name": self.name, "kind": self.kind, "calls": self.calls, "ns": self.ns}


@dataclass(frozen=True, slots=True)
class Called:
    """All calls of one name on the host within the units: the ``kernels`` that they launched, and both times."""

    name: str
    calls: int
    kernels: int
    ns: int
    host_ns: int

    def as_json(self) -> dict[str, Any]:
        """The row as promised."""
        return {
            "name": self.name, "calls": self.calls, "kernels": self.kernels, "ns": self.ns, "host_ns": self.host_ns
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operator(Called):
    """All calls of one operator of the framework.

    ``ns`` is the time of the ``kernels`` that it launched itself, not through an operator that it called;
    ``host_ns`` its own time on the host, without that of the operators within.
    """


@dataclass(frozen=True, slots=True)
class Module(Called):
    """All calls of the modules of one class, with all that they called.

    ``ns`` is the time of the ``kernels`` that were launched within, ``host_ns`` the time on the host.
    """


@dataclass(frozen=True, slots=True)
class Check:
    """One look at whether the data can be trusted.

    ``withdraws`` names the findings that do not hold where it is not ``ok``.
    """

    id: str
    ok: bool
    evidence: str
    withdraws: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The check as promised."""
        return {"id": self.id, "ok": self.ok, "evidence": self.evidence}


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one stream that is drawn as one: ``count`` tasks of one kind, ``begin_ns`` after the unit's.

    ``own`` is False where another unit launched them. Spans are merged to what a page can show.
    """

    begin_ns: int
    ns: int
    kind: str
    name: str
    own: bool = True
    count: int = 1


@dataclass(frozen=True, slots=True)
class Lanes:
    """What ran on the device in one unit: stream → its spans in order. ``why`` is median or slowest."""

    number: int
    why: str
    device_ns: int
    streams: Mapping[str, tuple[Span, ...]]


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of one rank: the ``index``-th of its ``group`` in the unit that launched it.

    ``transit_ns``, ``wait_ns`` and ``idle_ns`` are the vendor's own parts of it, None where it does not say.
    """

    group: str
    index: int
    name: str
    ns: int
    transit_ns: int | None = None
    wait_ns: int | None = None
    idle_ns: int | None = None
    unit: int = 0


@dataclass(frozen=True, slots=True)
class Capture:
    """One recorded rank.

    ``source`` is the path that it was read from, ``form`` a key of ``FORMS``. ``facts`` is what the probe wrote beside
    the trace, ``vendor`` what the profiler's own step file says (step → column → nanoseconds), None without one.
    ``kernels``, ``operators`` and ``modules`` are sorted by their time, longest first. ``label`` is the name of the
    source as far as it is needed to tell captures of one report apart.
    """

    source: str
    form: str
    rank: int | None
    device: str
    units: tuple[Unit, ...]
    kernels: tuple[Kernel, ...] = ()
    operators: tuple[Operator, ...] = ()
    modules: tuple[Module, ...] = ()
    checks: tuple[Check, ...] = ()
    facts: Mapping[str, Any] | None = None
    vendor: Mapping[str, Mapping[str, int]] | None = None
    label: str = ""
    marks: str = ""
    lanes: tuple[Lanes, ...] = ()
    collectives: tuple[Collective, ...] = ()
    prompt_share: float | None = None
    """The share of kernels that start within 20 µs of their launch: near-vertical lines in a timeline."""

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that are not ok."""
        return tuple(check for check in self.checks if not check.ok)

    @property
    def span(self) -> str:
        """The numbers of its units, as ``#3 to #5``; "" without units."""
        numbers = [unit.number for unit in self.units]
        if len(numbers) < 2:
            return "".join(f"#{number}" for number in numbers)
        return f"#{min(numbers)} to #{max(numbers)}"

    @property
    def median_ns(self) -> int:
        """The time of the median unit on the device; 0 without units."""
        return self.median_unit.device_ns if self.median_unit else 0

    @property
    def host_median_ns(self) -> int:
        """The lower median of the times of the units on the host; 0 without units."""
        ordered = sorted(unit.host_ns for unit in self.units)
        return ordered[(len(ordered) - 1) // 2] if ordered else 0

    @property
    def median_unit(self) -> Unit | None:
        """The unit whose time is the lower median: a real one, whose parts add up.

        On the device; where nothing ran on one, on the host.
        """
        ordered = sorted(self.units, key=lambda unit: (unit.device_ns, unit.host_ns))
        return ordered[(len(ordered) - 1) // 2] if ordered else None

    @property
    def slowest_unit(self) -> Unit | None:
        """The unit with the longest time."""
        return max(self.units, key=lambda unit: (unit.device_ns, unit.host_ns), default=None)

    @property
    def percentile95_ns(self) -> int:
        """The time that 95 % of the units stay below (nearest rank); 0 without units."""
        ordered = sorted(unit.device_ns for unit in self.units)
        return ordered[-(len(ordered) * 5 // 100) - 1] if ordered else 0

    @property
    def total_ns(self) -> int:
        """The time of all units on the device."""
        return sum(unit.device_ns for unit in self.units)

    def share(self, *parts: str) -> float:
        """The share of ``parts`` in the time of all units, 0 to 1."""
        total = self.total_ns
        return sum(getattr(unit, part) for unit in self.units for part in parts) / total if total else 0.0

    def as_json(self) -> dict[str, Any]:
        """The capture as promised."""
        return {
            "source": self.source, "form": self.form, "rank": self.rank, "device": self.device,
            "facts": None if self.facts is None else dict(self.facts),
            "checks": [check.as_json() for check in self.checks],
            "units": [unit.as_json() for unit in self.units],
            "kernels": [kernel.as_json() for kernel in self.kernels],
            "operators": [operator.as_json() for operator in self.operators],
            "modules": [module.as_json() for module in self.modules],
            "vendor": None if self.vendor is None else {step: dict(row) for step, row in self.vendor.items()},
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to act on, or to know, of one capture (``source``) or of all.

    ``severity`` is problem, warning or note. ``saving_ns`` bounds from above what can be gained per unit, None where
    nothing can be. ``certainty`` says what the number rests on: exact, upper bound, heuristic. ``title`` is a few
    words, ``advice`` what to try.
    """

    id: str
    severity: str
    evidence: str
    saving_ns: int | None
    certainty: str
    title: str = ""
    advice: str = ""
    source: str = ""

    def as_json(self) -> dict[str, Any]:
        """The finding as promised."""
        return {
            "id": self.id, "severity": self.severity, "evidence": self.evidence, "saving_ns": self.saving_ns,
            "certainty": self.certainty,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rank:
    """How one rank met the others in the collectives that all of them recorded.

    ``waits_ns`` is how much longer its collectives took than those of the rank that came last, ``awaited_ns`` how long
    the others waited for it where it came last itself, ``last`` how often that was. No common clock is needed.
    """

    rank: int | None
    source: str
    units: int
    median_ns: int
    collectives: int
    waits_ns: int
    awaited_ns: int
    last: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the findings come to, in a few words.

    ``guide`` is what the guide's rule says of the same numbers, ``difference`` why that is not the same.
    ``withdrawn`` holds what the failed checks say; then nothing that rests on them is in the findings.
    """

    title: str
    guide: str = ""
    difference: str = ""
    withdrawn: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of one capture, or of several ranks of one run."""

    captures: tuple[Capture, ...]
    findings: tuple[Finding, ...] = ()
    verdict: Verdict = Verdict("")
    ranks: tuple[Rank, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The report as promised."""
        return {
            "schema": SCHEMA,
            "captures": [capture.as_json() for capture in self.captures],
            "findings": [finding.as_json() for finding in self.findings],
        }


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: its captures, and the times of their units."""

    sources: tuple[str, ...]
    form: str
    device: str
    units_ns: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """The side as promised."""
        return {
            "sources": list(self.sources), "form": self.form, "device": self.device, "units": len(self.units_ns)
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the waterfall: nanoseconds of the median unit before and after."""

    name: str
    before_ns: int
    after_ns: int

    @property
    def change_ns(self) -> int:
        """What it adds to the difference."""
        return self.after_ns - self.before_ns

    def as_json(self) -> dict[str, Any]:
        """The part as promised."""
        return {
            "name": self.name, "before_ns": self.before_ns, "after_ns": self.after_ns, "change_ns": self.change_ns
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """A kernel or a module on both sides: calls and nanoseconds per unit.

    ``state`` is new, gone, slower, faster, more often, less often, or alike.
    """

    name: str
    kind: str
    state: str
    before_calls: float
    after_calls: float
    before_ns: int
    after_ns: int

    @property
    def change_ns(self) -> int:
        """What it adds to the time of a unit."""
        return self.after_ns - self.before_ns

    def as_json(self) -> dict[str, Any]:
        """The change as promised."""
        return {
            "name": self.name, "kind": self.kind, "state": self.state,
            "before_calls": self.before_calls, "after_calls": self.after_calls,
            "before_ns": self.before_ns, "after_ns": self.after_ns, "change_ns": self.change_ns,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides: the difference of the median unit in nanoseconds with its 95 % interval, and where it comes from.

    ``clock`` is "device", or "host" where nothing ran on a device on either side: then the times are those on the host.
    ``change`` is None where a side has no unit. ``refused`` says why the two cannot be compared; with ``--force`` the
    rest is there all the same. ``notes`` are what the reader has to know of the numbers: one sample a side, say.
    """

    before: Side
    after: Side
    median_ns: tuple[int, int]
    change: tuple[int, int, int] | None
    parts: tuple[Part, ...] = ()
    kernels: tuple[Change, ...] = ()
    modules: tuple[Change, ...] = ()
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    clock: str = "device"
    reports: tuple[Sequence[Capture], Sequence[Capture]] = ((), ())

    def as_json(self) -> dict[str, Any]:
        """The comparison as promised."""
        return {
            "schema": SCHEMA, "before": self.before.as_json(), "after": self.after.as_json(),
            "median_ns": list(self.median_ns), "change": None if self.change is None else list(self.change),
            "parts": [part.as_json() for part in self.parts],
            "kernels": [kernel.as_json() for kernel in self.kernels],
            "modules": [module.as_json() for module in self.modules],
            "refused": list(self.refused), "clock": self.clock,
        }  # fmt: skip
