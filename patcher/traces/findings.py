"""What there is to gain, and what it comes to: captures made into a report."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from patcher.traces.checks import DEVICE, EVERY, NOTABLE
from patcher.traces.model import (
    FREE,
    PARTS,
    Capture,
    Check,
    Collective,
    Finding,
    Rank,
    Report,
    Verdict,
)
from patcher.traces.words import in_ms, percent, short

COPIES = 0.05
SLOW = 1.3
"""A unit that takes so many times the median is an outlier."""

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
    told = f"{percent(share)} of the time is communication that nothing hides"
    evidence = [f"{told}, {percent(hidden)} is hidden behind computing."]
    known = [one for one in capture.collectives if one.transit_ns is not None]
    of = next((rank for rank in ranks if rank.source == capture.source), None)
    if known:
        evidence.append(_told(known))
    if of is not None and of.collectives:
        whole = sum(one.ns for one in capture.collectives) or 1
        evidence.append(f"{percent(of.waits_ns / whole)} of it waits for ranks that come later.")
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
    transit, wait, idle = map(percent, shares)
    return f"Within the collectives {transit} is transit, {wait} waiting, {idle} idle, says the vendor."


def _dispatch(capture: Capture) -> Finding | None:
    share = capture.share("free_host_late_ns")
    if share < NOTABLE:
        return None
    evidence = f"For {percent(share)} of the time the device was free and its next kernel had not been launched."
    if capture.prompt_share is not None:
        evidence += f" {percent(capture.prompt_share, 0)} of the kernels start within 20 µs of their launch."
    advice = _FASTER_LAUNCH.get(capture.form, "")
    return _made(
        "dispatch", capture, evidence, "free_host_late_ns", "upper bound; the profiler's own cost is in it", advice
    )


def _waiting(capture: Capture) -> Finding | None:
    share = capture.share("free_waiting_ns")
    if share < NOTABLE:
        return None
    evidence = f"For {percent(share)} of the time the device was free although its next kernel had been launched."
    advice = "look at what streams wait for: events between them, copies, the start of a graph, synchronisation"
    return _made("waiting", capture, evidence, "free_waiting_ns", "upper bound", advice)


def _copies(capture: Capture) -> Finding | None:
    share = capture.share("copy_ns")
    if share < COPIES:
        return None
    evidence = f"{percent(share)} of the time is copies that neither computing nor communication hides."
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
        f"Unit {slowest.number} took {in_ms(slowest.device_ns)},"
        f" {slowest.device_ns / max(usual.device_ns, 1):.1f} times the median."
        f" {percent(min(more[part] / excess, 1), 0)} of the difference is {PARTS[part]}."
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
    longest = ", ".join(f"{short(kernel.name)} ({percent(kernel.ns / whole, 0)})" for kernel in kernels)
    advice = "faster or fewer kernels: fusion, another precision, larger batches"
    evidence = f"{percent(share)} of the time is computing. The longest kernels: {longest}."
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
        f" {in_ms(slow.awaited_ns)} for it. {_rank(waits)} waits longest, {in_ms(per_unit)} per unit."
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
    if not captures or set(DEVICE) <= gone:
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
    rests = "every verdict" if set(EVERY) <= set(names) else ", ".join(names)
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
        rule = f"The guide's rule: Free{of} is {percent(free)}, not above 10 %: computing first, then communication."
        return rule, ""
    rule = f"The guide's rule: Free{of} is {percent(free)}, above 10 %: dispatch."
    first = next((finding for finding in findings if finding.severity == "problem"), None)
    if first is not None and first.id == "dispatch":
        return rule, ""
    shares = (
        (name, capture.share(name)) for name in ("free_host_late_ns", "free_waiting_ns", "free_unknown_ns", "copy_ns")
    )
    told = ", ".join(
        f"{percent(share)} {PARTS[name].removeprefix('free: ')}" for name, share in shares if share >= 0.0005
    )
    difference = f"That Free counts copies and every wait: {told}."
    if first is not None and first.saving_ns:
        difference += f" What weighs most is another thing: {first.title[0].lower()}{first.title[1:]}."
    return rule, difference


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
