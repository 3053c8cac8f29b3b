"""Whether the data can be trusted, what there is to gain, and what it comes to: captures made into a report."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from patcher.traces.attribution import EARLY_NS, Attribution
from patcher.traces.model import (
    FREE,
    PARTS,
    Capture,
    Check,
    Collective,
    Finding,
    Rank,
    Report,
    Unit,
    Verdict,
)
from patcher.traces.timeline import Timeline

NOTABLE = 0.10
"""The share of a unit from which on something is worth a verdict; the guides take it for Free."""

COPIES = 0.05
SLOW = 1.3
"""A unit that takes so many times the median is an outlier."""

LINKED, ALONE, FEW, MANY, EARLY = 0.95, 0.90, 0.5, 2.0, 0.01
"""Limits of the checks: kernels with a launch, one task in its unit, kernels of a unit to the median, early kernels."""

_HOST = ("dispatch", "waiting")
_DEVICE = ("communication", "copies", "compute", "waiting", "slow-rank")
_EVERY = ("dispatch", "outlier", *_DEVICE)

TITLES = {
    "communication": "Communication that nothing hides",
    "dispatch": "Dispatch: the device waits for the host",
    "waiting": "Launched, but not started",
    "copies": "Copies that nothing hides",
    "outlier": "One unit takes much longer than the others",
    "slow-rank": "Ranks wait for each other",
    "compute": "The device computes nearly all the time",
}
"""Finding → its title, which is the verdict where it weighs most."""

_FASTER_LAUNCH = {
    "torch": "CUDA graphs (without enforce_eager), asynchronous scheduling, fewer and larger operators",
    "ascend-text": "ACL graphs, TASK_QUEUE_ENABLE=2, binding processes to cores, asynchronous scheduling",
}
_FASTER_LAUNCH["ascend-db"] = _FASTER_LAUNCH["ascend-text"]


# ---------------------------------------------------------------- checks


def checked(found: Timeline, made: Attribution) -> Capture:
    """The capture with its checks."""
    return dataclasses.replace(made.capture, checks=tuple(_checks(found, made)))


def _checks(found: Timeline, made: Attribution) -> Iterator[Check]:
    units = made.capture.units
    lost = [found.cut] if found.cut else []
    lost += [f"{found.lost:,} events could not be read"] if found.lost else []
    said = "; ".join(lost)
    yield Check("whole", not lost, f"{said}: what came before was read" if lost else "read to its end", ("outlier",))
    named = bool(made.capture.marks)
    yield Check(
        "marks", named, f"marked by {made.capture.marks.rstrip('#_[')}" if named
        else "no ProfilerStep, execute_… or step[…] marks units: the whole trace is taken for one", ("outlier",),
    )  # fmt: skip
    idle = [unit.number for unit in units if not unit.kernels]
    evidence = (
        f"{len(idle)} of {len(units)} units launched no kernel: {_numbers(idle)}" if idle else "every unit has some"
    )
    yield Check("kernels", bool(units) and not idle, evidence if units else "there is no unit", _EVERY)
    yield _count_check(units)
    launches = made.launches
    share = launches.linked / launches.tasks if launches.tasks else 1.0
    evidence = f"{_percent(share)} of {launches.tasks:,} kernels and copies have a launch"
    evidence = evidence if launches.tasks else "there is no kernel and no copy"
    yield Check("launches", share >= LINKED, evidence, _HOST)
    yield _clock_check(made)
    yield _alone_check(units, made)
    yield _exposed_check(made.capture)
    yield _overlap_check(made)
    if found.facts or found.doubts:
        yield Check("facts", not found.doubts, "; ".join(found.doubts) or "they agree with the trace")
    if found.unknown:
        types = ", ".join(map(_short, sorted(found.unknown)[:5]))
        yield Check("types", False, f"tasks of unknown type were taken for computing: {types}", ())


def _clock_check(made: Attribution) -> Check:
    """Some µs are normal on NPUs; it matters where that could move a notable share from one kind of free to another."""
    tasks, _, early, lead = made.launches
    if not early:
        return Check("clocks", True, f"no kernel begins more than {EARLY_NS // 1000} µs before its launch", _HOST)
    moved = lead / early * tasks / max(made.capture.total_ns, 1)
    evidence = (
        f"{early:,} of {tasks:,} kernels begin more than {EARLY_NS // 1000} µs before their launch: the clocks of host"
        f" and device differ by some {lead / early / 1000:.0f} µs, which moves at most {_percent(min(moved, 1))}"
        " of the time"
    )
    return Check("clocks", early < EARLY * tasks or moved < NOTABLE / 2, evidence, _HOST)


def _count_check(units: Sequence[Unit]) -> Check:
    counts = [unit.kernels for unit in units]
    median = statistics.median(counts) if counts else 0
    far = [unit.number for unit in units if not FEW * median <= unit.kernels <= MANY * median]
    evidence = f"the median unit launched {median:,.0f}"
    if far:
        evidence = f"{len(far)} of {len(units)} units are far off the median of {median:,.0f} kernels: {_numbers(far)}"
    return Check("count", len(units) < 3 or not far, evidence, ("outlier",))


def _alone_check(units: Sequence[Unit], made: Attribution) -> Check:
    alone = [
        (unit.number, window.longest) for unit, window in zip(units, made.windows, strict=True)
        if unit.device_ns and window.longest_ns > ALONE * unit.device_ns
    ]  # fmt: skip
    evidence = "no kernel takes most of its unit"
    if alone:
        numbers = _numbers([number for number, _ in alone])
        evidence = f"one kernel takes over {_percent(ALONE, 0)} of its unit in {numbers}: {_short(alone[0][1])}"
    return Check("alone", not alone, evidence, _DEVICE)


def _exposed_check(capture: Capture) -> Check:
    for step, row in (capture.vendor or {}).items():
        exposed, whole = row.get("communication_not_overlapped_ns", 0), row.get("communication_ns", 0)
        if exposed > whole:
            evidence = f"the vendor's step {step or '?'} has more communication not overlapped ({_ms(exposed)}) than"
            return Check("exposed", False, f"{evidence} communication ({_ms(whole)})", ("communication", "slow-rank"))
    told = "" if capture.vendor else ": the vendor does not say"
    return Check("exposed", True, f"exposed communication is not above communication{told}", ("communication",))


def _overlap_check(made: Attribution) -> Check:
    following = list(zip(made.windows, made.windows[1:], strict=False))
    marks = [b for a, b in following if _end(a.segment.mark) > b.segment.begin]
    device = [b for a, b in following if None not in (a.first, b.first) and (b.first or 0) < (a.first or 0)]
    evidence = f"{len(marks)} marks overlap on the host" if marks else ""
    if device:
        evidence = f"{len(device)} units begin on the device before the one in front of them"
    return Check("overlap", not evidence, evidence or "no unit overlaps another one", _EVERY)


def _end(mark: object) -> int:
    end = getattr(mark, "end", 0)
    assert isinstance(end, int)  # noqa: S101
    return end


# ---------------------------------------------------------------- findings


def reported(captures: Sequence[Capture]) -> Report:
    """What is known of ``captures``, one or several ranks of one run: findings, and the verdict that they come to."""
    ranks, exact = met(captures)
    findings: dict[str, Finding] = {}
    for capture in captures:
        for finding in _findings(capture, ranks):
            known = findings.get(finding.id)
            if known is None or (finding.saving_ns or 0) > (known.saving_ns or 0):
                findings[finding.id] = finding
    withdrawn = {name for capture in captures for check in capture.failed for name in check.withdraws}
    slow = _slow_rank(captures, ranks, exact=exact)
    if slow is not None and "slow-rank" not in withdrawn:
        findings[slow.id] = slow
    ordered = sorted(findings.values(), key=lambda finding: -(finding.saving_ns or 0))
    weights = [finding for finding in ordered if finding.id in TITLES and finding.severity == "warning"]
    if weights:
        first = dataclasses.replace(weights[0], severity="problem")
        ordered[ordered.index(weights[0])] = first
    ordered.sort(key=lambda finding: ("problem", "warning", "note").index(finding.severity))
    if len(captures) > 1:
        ordered = [_of_rank(finding, captures) for finding in ordered]
    return Report(tuple(captures), tuple(ordered), _verdict(captures, ordered), ranks)


def _findings(capture: Capture, ranks: Sequence[Rank]) -> Iterator[Finding]:
    withdrawn = {name for check in capture.failed for name in check.withdraws}
    found = [_communication(capture, ranks), _dispatch(capture), _waiting(capture), _copies(capture), _outlier(capture)]
    yield from (finding for finding in found if finding is not None and finding.id not in withdrawn)
    compute = _compute(capture)
    if compute is not None and "compute" not in withdrawn:
        yield compute


def _made(id: str, capture: Capture, evidence: str, part: str, certainty: str, advice: str) -> Finding:  # noqa: A002
    saving = sum(getattr(unit, part) for unit in capture.units) // max(len(capture.units), 1)
    return Finding(id, "warning", evidence, saving, certainty, TITLES[id], advice, capture.source)


def _communication(capture: Capture, ranks: Sequence[Rank]) -> Finding | None:
    share = capture.share("communication_ns")
    if share < NOTABLE:
        return None
    hidden = capture.share("overlap_ns")
    told = f"{_percent(share)} of the time is communication that nothing hides"
    evidence = [f"{told}, {_percent(hidden)} is hidden behind computing."]
    known = [one for one in capture.collectives if one.transit_ns is not None]
    of = next((rank for rank in ranks if rank.source == capture.source), None)
    if known:
        evidence.append(_told(known))
    if of is not None and of.collectives:
        whole = sum(one.ns for one in capture.collectives) or 1
        evidence.append(f"{_percent(of.waits_ns / whole)} of it waits for ranks that come later.")
    elif not known:
        evidence.append(
            "Waiting for a slow rank counts as communication: report all ranks before you blame the network."
        )
    idle = known and sum((one.idle_ns or 0) + (one.wait_ns or 0) for one in known) > sum(one.ns for one in known) / 2
    advice = "look at the slowest rank, and at overlap with computing; then at sizes and links"
    if idle:
        advice = "the network is not what takes the time: look at what the device and the other ranks do meanwhile"
    return _made(
        "communication", capture, " ".join(evidence), "communication_ns", "exact; the saving is an upper bound", advice
    )


def _told(known: Sequence[Collective]) -> str:
    """What the vendor says of the collectives: transit, waiting and idle."""
    whole = sum(one.ns for one in known) or 1
    shares = [sum(getattr(one, part) or 0 for one in known) / whole for part in ("transit_ns", "wait_ns", "idle_ns")]
    transit, wait, idle = map(_percent, shares)
    return f"Within the collectives {transit} is transit, {wait} waiting, {idle} idle, says the vendor."


def _dispatch(capture: Capture) -> Finding | None:
    share = capture.share("free_host_late_ns")
    if share < NOTABLE:
        return None
    evidence = f"For {_percent(share)} of the time the device was free and its next kernel had not been launched."
    if capture.prompt_share is not None:
        evidence += f" {_percent(capture.prompt_share, 0)} of the kernels start within 20 µs of their launch."
    advice = _FASTER_LAUNCH.get(capture.form, "")
    return _made(
        "dispatch", capture, evidence, "free_host_late_ns", "upper bound; the profiler's own cost is in it", advice
    )


def _waiting(capture: Capture) -> Finding | None:
    share = capture.share("free_waiting_ns")
    if share < NOTABLE:
        return None
    evidence = f"For {_percent(share)} of the time the device was free although its next kernel had been launched."
    advice = "look at what streams wait for: events between them, copies, the start of a graph, synchronisation"
    return _made("waiting", capture, evidence, "free_waiting_ns", "upper bound", advice)


def _copies(capture: Capture) -> Finding | None:
    share = capture.share("copy_ns")
    if share < COPIES:
        return None
    evidence = f"{_percent(share)} of the time is copies that neither computing nor communication hides."
    advice = "pinned memory, copies that do not block, a stream of their own, fewer transfers of tensors to the host"
    return _made("copies", capture, evidence, "copy_ns", "exact; the saving is an upper bound", advice)


def _outlier(capture: Capture) -> Finding | None:
    slowest, usual = capture.slowest_unit, capture.median_unit
    if slowest is None or usual is None or len(capture.units) < 3:
        return None
    if slowest.device_ns <= SLOW * usual.device_ns:
        return None
    more = {part: slowest.parts[part] - usual.parts[part] for part in PARTS}
    part = max(more, key=lambda name: more[name])
    excess = slowest.device_ns - usual.device_ns
    evidence = (
        f"Unit {slowest.number} took {_ms(slowest.device_ns)}, {slowest.device_ns / max(usual.device_ns, 1):.1f} times"
        f" the median. {_percent(min(more[part] / excess, 1), 0)} of the difference is {PARTS[part]}."
    )
    if slowest.kernels != usual.kernels:
        evidence += f" It launched {slowest.kernels:,} kernels, the median unit {usual.kernels:,}."
    late = [unit.device_ns - usual.device_ns for unit in capture.units if unit.device_ns > SLOW * usual.device_ns]
    advice = "look at what this unit held: its requests, a copy, a collection of garbage, another process"
    return Finding(
        "outlier", "warning", evidence, sum(late) // len(capture.units), "exact; the saving is an upper bound",
        TITLES["outlier"], advice, capture.source,
    )  # fmt: skip


def _compute(capture: Capture) -> Finding | None:
    share = capture.share("compute_ns", "overlap_ns")
    if share < 1 - 2 * NOTABLE:
        return None
    kernels = [kernel for kernel in capture.kernels if kernel.kind == "compute"][:3]
    whole = sum(kernel.ns for kernel in capture.kernels if kernel.kind == "compute") or 1
    longest = ", ".join(f"{_short(kernel.name)} ({_percent(kernel.ns / whole, 0)})" for kernel in kernels)
    advice = "faster or fewer kernels: fusion, another precision, larger batches"
    evidence = f"{_percent(share)} of the time is computing. The longest kernels: {longest}."
    return Finding("compute", "note", evidence, None, "exact", TITLES["compute"], advice, capture.source)


def _slow_rank(captures: Sequence[Capture], ranks: Sequence[Rank], *, exact: bool) -> Finding | None:
    if len(ranks) < 2:
        return None
    units = {rank.source: max(rank.units, 1) for rank in ranks}
    waits = max(ranks, key=lambda rank: rank.waits_ns / units[rank.source])
    per_unit = waits.waits_ns // units[waits.source]
    median = next(capture.median_ns for capture in captures if capture.source == waits.source)
    slow = max(ranks, key=lambda rank: rank.awaited_ns)
    if not slow.awaited_ns or per_unit < COPIES / 2 * median:
        return None
    evidence = (
        f"{_rank(slow)} comes last in {slow.last} of {slow.collectives} collectives, and the others wait"
        f" {_ms(slow.awaited_ns)} for it. {_rank(waits)} waits longest, {_ms(per_unit)} per unit."
    )
    advice = f"look at what {_rank(slow).lower()} does before: its load, its host, its cores"
    certainty = "exact" if exact else "heuristic: the trace names no groups"
    return Finding("slow-rank", "warning", evidence, per_unit, certainty, TITLES["slow-rank"], advice)


def _of_rank(finding: Finding, captures: Sequence[Capture]) -> Finding:
    capture = next((capture for capture in captures if capture.source == finding.source), None)
    if capture is None:
        return finding
    return dataclasses.replace(finding, evidence=f"{capture.label or capture.source}: {finding.evidence}")


# ---------------------------------------------------------------- ranks


class _Met(NamedTuple):
    source: str
    ns: int


def met(captures: Sequence[Capture]) -> tuple[tuple[Rank, ...], bool]:
    """Who waited for whom, from the n-th collective of each group in each unit; and whether the groups are known.

    All ranks of a collective end together, so how much longer it took one rank than the one that came last is what
    that rank waited. A unit in which the ranks differ in the collectives of a group is left out.
    """
    ranks = [capture.rank for capture in captures]
    if len(captures) < 2 or len(set(ranks)) < len(ranks):  # several captures of one rank did not meet
        return (), True
    together: dict[tuple[int, str], dict[str, list[Collective]]] = defaultdict(dict)
    for capture in captures:
        for one in capture.collectives:
            together[one.unit, one.group].setdefault(capture.source, []).append(one)
    waits, awaited, last, count = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for members in together.values():
        names = {tuple(one.name for one in collectives) for collectives in members.values()}
        if len(members) < 2 or len(names) > 1:
            continue
        for turn in zip(*members.values(), strict=True):
            times = [_Met(source, one.ns) for source, one in zip(members, turn, strict=True)]
            shortest = min(times, key=lambda time: time.ns)
            last[shortest.source] += 1
            for time in times:
                count[time.source] += 1
                waits[time.source] += time.ns - shortest.ns
                awaited[shortest.source] += time.ns - shortest.ns
    if not count:
        return (), True
    rows = (
        Rank(
            capture.rank, capture.source, len(capture.units), capture.median_ns, count[capture.source],
            waits[capture.source], awaited[capture.source], last[capture.source],
        )
        for capture in captures
    )  # fmt: skip
    return tuple(sorted(rows, key=lambda row: (row.rank is None, row.rank or 0, row.source))), all(
        group for _, group in together
    )


# ---------------------------------------------------------------- the verdict


def _verdict(captures: Sequence[Capture], findings: Sequence[Finding]) -> Verdict:
    withdrawn = tuple(_withdrawal(capture, check, many=len(captures) > 1) for capture, check in _failed(captures))
    gone = {name for capture in captures for check in capture.failed for name in check.withdraws}
    title = next((finding.title for finding in findings if finding.severity == "problem"), "")
    if not captures or set(_DEVICE) <= gone:
        title = "No verdict: the data does not carry one"
    elif not title:
        title = next((finding.title for finding in findings if finding.id == "compute"), "Nothing stands out")
    guide, difference = _guide(captures, findings)
    return Verdict(title, guide, difference, withdrawn)


def _failed(captures: Sequence[Capture]) -> Iterator[tuple[Capture, Check]]:
    return ((capture, check) for capture in captures for check in capture.failed)


def _withdrawal(capture: Capture, check: Check, *, many: bool) -> str:
    of = f"{capture.label or capture.source}: " if many else ""
    names = [name for name in check.withdraws if name in TITLES]
    rests = "every verdict" if set(_EVERY) <= set(names) else ", ".join(names)
    return f"{of}{check.evidence}" + (f" (withdrawn: {rests})" if names else "")


def _guide(captures: Sequence[Capture], findings: Sequence[Finding]) -> tuple[str, str]:
    """What the guide's rule says of the rank that is free most, and why that is not what we say."""
    timed = [capture for capture in captures if capture.total_ns]
    if not timed:
        return "", ""
    capture = max(timed, key=lambda one: one.share(*FREE, "copy_ns"))
    free = capture.share(*FREE, "copy_ns")
    of = f" of {capture.label}" if len(captures) > 1 else ""
    if free <= NOTABLE:
        rule = f"The guide's rule: Free{of} is {_percent(free)}, not above 10 %: computing first, then communication."
        return rule, ""
    rule = f"The guide's rule: Free{of} is {_percent(free)}, above 10 %: dispatch."
    first = next((finding for finding in findings if finding.severity == "problem"), None)
    if first is not None and first.id == "dispatch":
        return rule, ""
    shares = (
        (name, capture.share(name)) for name in ("free_host_late_ns", "free_waiting_ns", "free_unknown_ns", "copy_ns")
    )
    told = ", ".join(
        f"{_percent(share)} {PARTS[name].removeprefix('free: ')}" for name, share in shares if share >= 0.0005
    )
    difference = f"That Free counts copies and every wait: {told}."
    if first is not None and first.saving_ns:
        difference += f" What weighs most is another thing: {first.title[0].lower()}{first.title[1:]}."
    return rule, difference


# ---------------------------------------------------------------- words


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(f"#{number}" for number in numbers[:5])
    return shown + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")


def _percent(share: float, digits: int = 1) -> str:
    return f"{share * 100:.{digits}f} %"


def _ms(ns: float) -> str:
    return f"{ns / 1_000_000:,.2f} ms"


def _short(name: str) -> str:
    """A name of the trace as it may stand in a text: not long, and with nothing that a terminal obeys."""
    clean = "".join(character if character.isprintable() else "?" for character in name)
    return clean if len(clean) <= 40 else f"{clean[:39]}…"


def _rank(rank: Rank) -> str:
    return f"Rank {rank.rank}" if rank.rank is not None else rank.source


def labelled(captures: Iterable[Capture]) -> list[Capture]:
    """The captures with a label that tells them apart: rank, rank and units, or the last names of their paths."""
    every = list(captures)
    ranks = ["" if capture.rank is None else f"rank {capture.rank}" for capture in every]
    if len(every) < 2:
        return every
    for labels in (ranks, [f"{rank}, {capture.span}" for rank, capture in zip(ranks, every, strict=True)]):
        if all(ranks) and len(set(labels)) == len(labels):
            return [dataclasses.replace(capture, label=label) for capture, label in zip(every, labels, strict=True)]
    parts = [capture.source.rstrip("/").split("/") for capture in every]
    names = {depth: ["/".join(path[-depth:]) for path in parts] for depth in range(1, max(map(len, parts)) + 1)}
    depth = next((depth for depth, tails in names.items() if len(set(tails)) == len(tails)), max(names))
    return [dataclasses.replace(capture, label=name) for capture, name in zip(every, names[depth], strict=True)]
