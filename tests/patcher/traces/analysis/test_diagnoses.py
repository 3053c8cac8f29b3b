"""Checks, upper bounds of savings and verdicts: with answers that are known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patcher.commands.reports.first_screen import first_screen
from patcher.messages.report import json_of
from patcher.traces import analysis
from patcher.traces.analysis import checks, copying, diagnoses
from patcher.traces.analysis.ranks import match_collectives
from patcher.traces.measured import OperatorRate
from patcher.traces.model import (
    COMPUTE,
    CPU,
    PARTS,
    TITLES,
    CallSums,
    Check,
    Collective,
    FreeGap,
    Kernel,
    RankProfile,
    RecordedUnit,
    TraceReport,
)
from patcher.traces.rank_trace import RankTrace
from patcher.traces.sidecar import Metadata, metadata_from
from tests.patcher.traces.recorded import MARKS, MS, Range, Run, Task, steps, timeline


def checks_of(run: Run, **more: object) -> dict[str, Check]:
    found = timeline(run)
    for name, value in more.items():
        setattr(found, name, value)
    return {check.id: check for check in analysis.checked(found, analysis.attributed(found)).checks}


def unit(number: int = 0, kernels: int = 10, **parts: int) -> RecordedUnit:
    times: dict[str, Any] = {f"{name}_ns": ms * MS for name, ms in parts.items()}
    return RecordedUnit(number=number, host_ns=100 * MS, kernels=kernels, **times)


def capture(*units: RecordedUnit, rank: int | None = 0, **more: object) -> RankProfile:
    made = RankProfile(
        f"/traces/rank{rank}", "torch", rank, "NVIDIA H100", units, marks="ProfilerStep#", label=f"rank {rank}"
    )
    return replace(made, **more)  # type: ignore[arg-type]


def report(*captures: RankProfile) -> TraceReport:
    return analysis.reported(captures)


# ---------------------------------------------------------------- checks

GOOD = steps(4)
BAD: dict[str, tuple[Run, dict[str, object], str, str]] = {
    "the end is missing": (GOOD, {"cut": "the gzip file ends before its end"}, "whole", "the gzip file ends"),
    "events were lost": (GOOD, {"lost": 3}, "whole", "3 events could not be read"),
    "nothing marks steps": (replace(GOOD, marks=()), {}, "marks", "the whole trace counts as one step"),
    "steps without kernels": (
        Run((Task(10, 20, launch=1),), (*MARKS, Range("ProfilerStep#3", 200, 300))), {}, "kernels",
        "no kernel was recorded for 2 of 3 steps: #2, #3",
    ),
    "many steps without kernels": (
        Run((Task(10, 20, launch=1),), tuple(Range(f"ProfilerStep#{n}", n * 100 - 100, n * 100) for n in range(1, 9))), {},
        "kernels", "no kernel was recorded for 7 of 8 steps: #2, #3, #4, #5, #6 and 2 more",
    ),
    "five steps without kernels": (
        Run((Task(10, 20, launch=1),), tuple(Range(f"ProfilerStep#{n}", n * 100 - 100, n * 100) for n in range(1, 7))), {},
        "kernels", "no kernel was recorded for 5 of 6 steps: #2, #3, #4, #5, #6.",
    ),
    "six steps without kernels": (
        Run((Task(10, 20, launch=1),), tuple(Range(f"ProfilerStep#{n}", n * 100 - 100, n * 100) for n in range(1, 8))), {},
        "kernels", "no kernel was recorded for 6 of 7 steps: #2, #3, #4, #5, #6 and 1 more",
    ),
    "a count far off": (
        Run(tuple(Task(n * 10 + 5, n * 10 + 9, launch=n * 10) for n in (*range(10, 30), 31)), (*(Range(f"ProfilerStep#{n}", n * 100, n * 100 + 100) for n in range(1, 4)),)),
        {}, "count", "1 of 3 steps have far more or fewer kernels than the median of 10: #3",
    ),
    "kernels without a launch": (
        Run((Task(10, 20, launch=1), Task(30, 40), Task(110, 120, launch=101)), MARKS), {}, "launches", "66.7 % of 3 kernels",
    ),
    "clocks that differ": (
        Run(tuple(Task(40_000 * n, 40_000 * n + 9000, launch=40_000 * n + 15_000) for n in range(1, 9)), (Range("ProfilerStep#1", 0, 400_000),)),
        {}, "clocks", "8 of 8 kernels begin more than 10 µs before their launch",
    ),
    "a host that goes on after its last kernel": (
        Run((Task(10, 90, launch=1), Task(110, 130, launch=101)), (MARKS[0], Range("ProfilerStep#2", 100, 400))), {},
        "host", "on the host than on the device: #2; step #2 took 0.00 ms",
    ),
    "the vendor's sums": (
        GOOD, {"vendor": {"30": {"communication_not_overlapped_ns": 101 * MS, "communication_ns": 27 * MS}}}, "exposed",
        "exposed communication (101.00 ms)",
    ),
    "marks that overlap": (
        Run(GOOD.tasks, (Range("ProfilerStep#30", 0, 15 * MS), *GOOD.marks[1:])), {}, "overlap", "step marks that overlap the next mark on the host",
    ),
    "a step that begins before the one in front of it": (
        Run((Task(110, 120, launch=1), Task(50, 60, launch=101)), MARKS), {}, "overlap", "steps out of order on the device",
    ),
    "events of categories that nobody knows": (
        GOOD, {"unread": Counter(a=1_200, b=5, c=3, d=2)}, "events", "rlpatch left out events of unknown categories: a (1,200), b (5), c (3).",
    ),
    "events that may be those of the device": (
        replace(GOOD, tasks=()), {"unread": Counter(a=1_200)}, "events", "a (1,200)",
    ),
    "computing that the vendor counts otherwise": (
        GOOD, {"vendor_computing_ns": 21 * MS}, "computing", "20.00 ms according to the kernels, but 21.00 ms",
    ),
    "a type that nobody knows": (GOOD, {"unknown": {"QUANTUM_SQE\x1b[31m", *"vwxyz"}}, "types", ": QUANTUM_SQE?[31m, v, w, x, y"),
}  # fmt: skip


@pytest.mark.parametrize(("part_of_step", "ok"), [(0.0009, True), (0.0011, False)])
def test_marks_may_overlap_by_a_thousandth_of_the_step(part_of_step: float, ok: bool) -> None:
    overlap_ns = round(part_of_step * (GOOD.marks[1].begin - GOOD.marks[0].begin))
    first = Range("ProfilerStep#30", 0, GOOD.marks[1].begin + overlap_ns)
    assert checks_of(Run(GOOD.tasks, (first, *GOOD.marks[1:])))["overlap"].ok == ok


@pytest.mark.parametrize(("run", "more", "check", "says"), BAD.values(), ids=BAD)
def test_bad_data_is_known(run: Run, more: dict[str, object], check: str, says: str) -> None:
    found = checks_of(run, **more)[check]
    assert not found.ok
    assert says in f"{found.evidence}."


def test_computing_time_may_differ_by_two_hundredths() -> None:
    for ns, ok in ((20 * MS, True), (20_400_000, True), (20_500_000, False), (19_600_000, True), (19_500_000, False)):
        check = checks_of(GOOD, vendor_computing_ns=ns)["computing"]
        assert (check.ok, check.withdraws) == (ok, checks.EVERY)


@pytest.mark.parametrize(
    ("name", "others", "count", "gap", "suggestion"),
    [
        ("iteration", "answer", 3, 4, "to take each iteration as a step, add --marks '^iteration$'"),
        ("iteration", "answer", 2, 4, "--marks names other ranges as steps"),
        ("iteration", "answer", 3, 9, "--marks names other ranges as steps"),
        ("train.py(3): iteration", "answer", 3, 4, "--marks names other ranges as steps"),
    ],
)  # fmt: skip
def test_ranges_that_repeat_throughout_are_offered_as_marks(
    name: str, others: str, count: int, gap: int, suggestion: str
) -> None:
    """Each range takes 50 ms, and has a shorter one inside; ``gap`` ms lie between two."""
    trace = RankTrace("a", "torch")
    for begin in range(0, count * (50 + gap), 50 + gap):
        trace.add_frame(name, begin * MS, (begin + 50) * MS, 0)
        trace.add_frame(others, begin * MS, (begin + 25) * MS, 0)
    assert checks._missing_marks(trace).endswith(suggestion)


def test_good_data_fails_no_check() -> None:
    found = checks_of(GOOD)
    assert "not checked" in found["exposed"].evidence
    told = checks_of(GOOD, vendor={"30": {"communication_not_overlapped_ns": MS, "communication_ns": MS}})["exposed"]
    assert (told.ok, "not checked" in told.evidence) == (True, False)
    assert [check for check in found.values() if not check.ok] == []
    assert set(found) == {
        "whole",
        "marks",
        "kernels",
        "count",
        "launches",
        "clocks",
        "host",
        "exposed",
        "overlap",
    }


@pytest.mark.parametrize("metadata", [None, metadata_from({"window": "30:34"})])
@pytest.mark.parametrize("doubts", [[], ["one doubt"]])
def test_metadata_is_checked_where_it_exists_or_is_doubted(metadata: Metadata | None, doubts: list[str]) -> None:
    check = checks_of(GOOD, metadata=metadata, doubts=doubts).get("facts")
    assert (check and check.ok) == (not doubts if metadata or doubts else None)


@pytest.mark.parametrize(
    ("only", "numbers", "kernels"), [(None, [3, 4, 5], 1), ((3, 6), [3, 4, 5], 1), ((4, 5), [4], 0), ((6, 9), [], 0)]
)
def test_of_tables_only_the_units_that_were_asked_for_count(
    only: tuple[int, int] | None, numbers: list[int], kernels: int
) -> None:
    collectives = tuple(Collective("tp", 0, "allReduce", MS, unit=number) for number in (3, 4, 5))
    made = capture(
        *(unit(at, compute=9) for at in (3, 4, 5)), collectives=collectives, kernels=(Kernel("a", "compute", 3, MS),)
    )
    found = checks.check_tables(made, ("one doubt", "another"), only)
    assert [one.number for one in found.units] == [one.unit for one in found.collectives] == numbers
    assert len(found.kernels) == kernels
    assert [(check.id, check.ok, check.withdraws) for check in found.checks] == [
        ("launches", False, ("dispatch", "launch-blocked", "waiting")), ("exposed", True, ("communication",)), ("facts", False, ()),
    ]  # fmt: skip
    assert "one doubt; another" in found.checks[2].evidence
    assert [check.id for check in checks.check_tables(made, ()).checks] == ["launches", "exposed"]


def test_clocks_withdraw_only_what_they_can_move() -> None:
    """Kernels 15 µs before their launch in units that are host-bound for 70 µs of 100."""
    tasks = tuple(Task(n * 100_000, n * 100_000 + 30_000, launch=n * 100_000 + 15_000) for n in range(1, 9))
    check = checks_of(Run(tasks, (Range("ProfilerStep#1", 0, 900_000),)))["clocks"]
    assert (check.ok, check.withdraws) == (False, ("launch-blocked", "waiting"))


def test_some_microseconds_before_the_launch_are_normal() -> None:
    tasks = tuple(Task(n * MS, n * MS + 900_000, launch=n * MS + 12_000) for n in range(1, 9))
    assert checks_of(Run(tasks, (Range("ProfilerStep#1", 0, 9 * MS),)))["clocks"].ok


WITHDRAWN = {
    "launches": ({"free_host_late": 50, "compute": 50}, ("dispatch", "waiting"), "Unconfirmed finding: Host-bound"),
    "exposed": (
        {"communication": 50, "compute": 50},
        ("communication", "slow-rank"),
        "Unconfirmed finding: Exposed communication",
    ),
    "host": ({"compute": 99, "free_host_late": 1}, ("compute", "lead-in"), "Unconfirmed finding: The device computes"),
    "kernels": ({"communication": 50, "compute": 50}, checks.EVERY, "No verdict: the data is not sufficient"),
}


@pytest.mark.parametrize(("check", "parts", "withdraws", "title"), [(check, *row) for check, row in WITHDRAWN.items()])
def test_a_failed_check_withdraws_what_rests_on_it(
    check: str, parts: dict[str, int], withdraws: tuple[str, ...], title: str
) -> None:
    good = report(capture(unit(**parts)))
    bad = report(capture(unit(**parts), checks=(Check(check, False, "why", withdraws),)))
    assert [finding.severity for finding in good.findings] == ["note" if check == "host" else "problem"]
    assert bad.findings == ()
    assert title in bad.verdict.title
    assert "why (verdicts that rlpatch therefore withdraws: " in bad.verdict.withdrawn[0]
    if withdraws != checks.EVERY:
        assert ", ".join(withdraws) in bad.verdict.withdrawn[0]


# ---------------------------------------------------------------- findings

VERDICTS: dict[str, tuple[dict[str, int], str, int, str]] = {
    "the host is late": ({"compute": 50, "free_host_late": 40, "copy": 1, "free_waiting": 9}, "dispatch", 40, ""),
    "the network": ({"compute": 30, "overlap": 5, "communication": 60, "free_waiting": 5}, "communication", 60, ""),
    "a stream waits": ({"compute": 70, "free_waiting": 30}, "waiting", 30, "30.0 % stream wait"),
    "copies": ({"compute": 80, "copy": 20}, "copies", 20, "20.0 % copying"),
    "an unknown reason": ({"compute": 40, "free_unknown": 60}, "idle-unknown", 60, "60.0 % launch time unknown"),
}


@pytest.mark.parametrize(("parts", "name", "saving", "difference"), VERDICTS.values(), ids=VERDICTS)
def test_what_weighs_most_is_the_verdict(parts: dict[str, int], name: str, saving: int, difference: str) -> None:
    found = report(capture(*(unit(number, **parts) for number in range(3))))
    first = found.findings[0]
    assert (first.id, first.severity, first.saving_ns) == (name, "problem", saving * MS)
    assert found.verdict.title == first.title
    assert first.title.startswith(TITLES[name])
    assert {finding.severity for finding in found.findings[1:]} <= {"warning", "note"}
    assert difference in found.verdict.difference
    assert bool(difference) == bool(found.verdict.difference)


def test_a_device_that_computes_has_nothing_to_be_blamed_for() -> None:
    found = report(capture(unit(compute=95, free_waiting=5), kernels=(Kernel("MatMul", "compute", 10, 90 * MS),)))
    assert [(one.id, one.severity, one.saving_ns) for one in found.findings] == [("compute", "note", None)]
    assert found.verdict.title == TITLES["compute"]
    assert "is 5.0 %, within the limit of 10 %" in found.verdict.guide


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"compute": 80}, "nearly all"), ({"compute": 79}, "Most of"), ({"compute": 51}, "Most of"), ({"compute": 50}, ""),
        ({"compute": 40, "overlap": 40}, "nearly all"),
    ],
)  # fmt: skip
def test_computing_is_told_from_half_of_the_time_on(parts: dict[str, int], told: str) -> None:
    rest = {"free_waiting": 100 - sum(parts.values())}
    kernels = tuple(
        Kernel(name, kind, 1, ns * MS)
        for name, kind, ns in (
            ("a", "compute", 5),
            ("b", "copy", 9),
            ("c", "compute", 3),
            ("d", "compute", 1),
            ("e", "compute", 1),
        )
    )
    found = diagnoses._diagnose_computing(capture(unit(**parts, **rest), kernels=kernels))
    assert (found is not None) == bool(told)
    if found:
        assert told in found.title
        assert found.evidence.endswith("a (50 %), c (30 %), d (10 %).")


def test_of_the_reasons_of_free_time_those_of_a_twentieth_of_a_percent_are_named() -> None:
    found = report(capture(unit(compute=10_000, free_waiting=9_980, free_latency=10, free_blocked=9, copy=1)))
    assert re.findall(r"[\d.]+ % [a-z ]+", found.verdict.difference) == ["0.1 % launch latency", "49.9 % stream wait"]


def test_the_guide_says_dispatch_where_the_host_was_not_late() -> None:
    found = report(capture(unit(compute=50, free_waiting=40, copy=10)))
    assert "is 50.0 %, above the limit of 10 %" in found.verdict.guide
    assert found.verdict.difference.startswith(
        "This Free time includes copies and all kinds of waiting: 40.0 % stream wait, 10.0 % copying."
    )
    assert found.verdict.title == TITLES["waiting"]


@pytest.mark.parametrize(
    ("free", "named", "share"),
    [
        ((20, 5), "rank 0", "20.0 %"),
        ((5, 20), "rank 1", "20.0 %"),
        ((20,), "", "20.0 %"),
        ((10, 5), "rank 0", "10.0 %"),
        ((), "", ""),
    ],
)
def test_the_guide_looks_at_the_rank_with_the_largest_free_time(free: tuple[int, ...], named: str, share: str) -> None:
    profiles = [capture(unit(compute=100 - ms, free_host_late=ms), rank=rank) for rank, ms in enumerate(free)]
    guide = (
        report(*profiles, capture(unit(kernels=0), rank=9)).verdict.guide
        if free == ()
        else report(*profiles).verdict.guide
    )
    assert re.findall(r"rank \d|\d+\.\d %", guide) == [text for text in (named, share) if text]
    assert ("within the limit" in guide) == (share == "10.0 %")


def test_the_slowest_unit_is_told_with_its_reason() -> None:
    units = [unit(number, compute=10) for number in range(9)]
    found = report(capture(*units, unit(9, compute=10, free_host_late=20)))
    (outlier,) = (finding for finding in found.findings if finding.id == "outlier")
    assert (
        outlier.evidence
        == "Step 9 took 30.00 ms, 3.0 times as long as the median step. 100 % of the slow step's additional time is in this part of the step: host-bound."
    )
    assert outlier.saving_ns == 2 * MS


@pytest.mark.parametrize(
    ("lengths", "severity"),
    [
        ((10, 30), None), ((10, 10, 30), "warning"), ((10, 10, 13), None), ((10, 10, 14), "warning"),
        ((*[10] * 18, 20), "warning"), ((*[10] * 19, 20), "note"),
    ],
)  # fmt: skip
def test_a_slow_step_takes_a_third_more_than_the_median_of_three_and_matters_if_it_loses_a_twentieth(
    lengths: tuple[int, ...], severity: str | None
) -> None:
    found = diagnoses._diagnose_slowest_step(capture(*(unit(at, compute=ms) for at, ms in enumerate(lengths))))
    assert (found and found.severity) == severity
    assert found is None or found.saving_ns == (max(lengths) - 10) * MS // len(lengths)


def test_steps_with_prefill_are_not_slow_beside_steps_that_only_decode() -> None:
    prefill = [replace(unit(at, compute=40), requests=4, tokens=512, drafts=0) for at in range(3)]
    decode = [replace(unit(at, compute=10), requests=4, tokens=6, drafts=2) for at in range(3, 9)]
    slow = [replace(unit(at, compute=60), requests=4, tokens=4) for at in (9, 10)]
    assert diagnoses._diagnose_slowest_step(capture(*prefill, *decode)) is None
    found = diagnoses._diagnose_slowest_step(capture(*prefill, *decode, *slow))
    assert found
    assert found.headline.startswith("2 of 8 decode steps")
    assert found.saving_ns == 2 * 50 * MS // 11
    assert diagnoses._diagnose_slowest_step(capture(*prefill[:1], *decode[:2]))  # too few to tell what is usual
    for count, chosen in ((3, decode[:3]), (2, []), (6, decode)):
        assert diagnoses._decode_steps([*prefill, *decode[:count]]) == chosen
    assert diagnoses._decode_steps(decode) == []
    for drafts in (0, None):  # one token of a prompt
        assert diagnoses._decode_steps([*decode, replace(decode[0], tokens=5, drafts=drafts)]) == decode


@pytest.mark.parametrize(("second", "count"), [(200, 2), (199, 1), (600, 2)])
def test_slow_steps_are_those_with_a_quarter_of_the_largest_excess(second: int, count: int) -> None:
    """Steps of 100 ms, and one of 500 ms."""
    made = [unit(at, compute=ms) for at, ms in enumerate([100, 100, 100, 100, 500, second])]
    found = diagnoses._diagnose_slowest_step(capture(*made))
    assert found
    assert found.headline.startswith("2 of 6 steps") == (count == 2)


@pytest.mark.parametrize(
    ("parts", "place_ms", "named"),
    [((5, 5), 0, (False, False)), ((5, 6), 0, (True, False)), ((0, 8), 4, (True, False)), ((0, 8), 5, (True, True))],
)
def test_a_part_or_a_place_with_over_half_of_the_additional_time_is_named(
    parts: tuple[int, int], place_ms: int, named: tuple[bool, bool]
) -> None:
    computes, late = parts
    slow = unit(1, compute=10 + computes, free_host_late=late)
    place = replace(gap(HOST_LATE, 2 * place_ms), unit=1)
    more, cause = diagnoses._why_slower(capture(unit(0, compute=10), slow, gaps=(place,)), slow, unit(0, compute=10))
    assert (bool(cause), "at one place" in more) == named


def test_transit_waiting_and_idle_are_told_apart_before_the_network_is_blamed() -> None:
    told = Collective("586", 0, "allReduce", 60 * MS, 2 * MS, 8 * MS, 50 * MS)
    found = report(capture(unit(compute=40, communication=60), collectives=(told,)))
    (idle,) = found.findings
    assert (idle.id, idle.severity, idle.saving_ns) == ("collective-idle", "problem", 50 * MS)
    assert "the network is not the cause" in idle.advice
    assert idle.parts == {"waiting": 8 * MS, "idle": 50 * MS, "transfer": 2 * MS}
    alone = report(
        capture(
            unit(compute=40, communication=60),
            collectives=(replace(told, transit_ns=None, wait_ns=None, idle_ns=None),),
        )
    )
    assert "run the report on all ranks before you blame the network" in alone.findings[0].advice


def test_what_lies_before_the_first_kernel_is_no_slow_unit() -> None:
    units = (unit(0, compute=10, lead_in=60), *(unit(number, compute=10) for number in range(1, 6)))
    found = report(capture(*units))
    assert [(one.id, one.saving_ns) for one in found.findings] == [("lead-in", None), ("compute", None)]
    assert found.captures[0].median_ns == found.captures[0].units[0].device_ns == 10 * MS
    assert found.verdict.title == TITLES["compute"]
    alone = report(capture(units[0]))
    assert [(one.id, one.saving_ns) for one in alone.findings] == [("lead-in", 60 * MS), ("compute", None)]
    assert found.verdict.guide.startswith("Free time, as torch_npu's step_trace_time counts it, is 0.0 %")


def test_a_unit_without_a_kernel_is_no_median() -> None:
    found = capture(unit(0, kernels=0), unit(1, compute=10))
    assert (found.median_ns, found.percentile95_ns) == (10 * MS, 10 * MS)
    assert capture(unit(0, kernels=0)).median_ns == 0
    run = Run((Task(110, 120, launch=101), Task(120, 130, launch=102)), MARKS)
    made = analysis.attributed(timeline(run)).profile
    assert [(one.number, one.why) for one in made.lanes] == [(2, "median")]
    compared = analysis.compared([found], [capture(unit(1, compute=20))], force=True)
    assert compared.median_ns == (10 * MS, 20 * MS)


def gap(part: str, ms: int, **more: Any) -> FreeGap:
    """Return a place before ``fresh`` on stream 7, in two of the units, half of its time in each."""
    values: dict[str, Any] = {"before": "a", "after": "fresh", "stream": "stream 7", **more}
    return FreeGap(
        kind="place", part=part, ns=ms * MS, count=2, units=2, unit=1, unit_ns=ms * MS // 2, longest_ns=ms * MS // 2,
        begin_ns=0, at_ns=1_234_567, **values,
    )  # fmt: skip


def of_units(count: int, at: int = -1, other: RecordedUnit | None = None, /, **parts: int) -> tuple[RecordedUnit, ...]:
    """Return units with the same parts, but for ``other`` at one place."""
    return tuple(other if other and number == at else unit(number, **parts) for number in range(count))


LATE = {"compute": 60, "free_host_late": 25, "free_latency": 5, "copy": 10}
LONG_LATENCY = {"compute": 60, "free_host_late": 5, "free_latency": 25, "copy": 10}
HOST_LATE, LATENCY, BLOCKED = "free_host_late_ns", "free_latency_ns", "free_blocked_ns"
MODULES = (
    CallSums("Block", 1, 1, 60 * MS, 90 * MS),
    CallSums("MoE", 1, 1, 10 * MS, 50 * MS),
    CallSums("Head", 1, 1, 9 * MS, 11 * MS),
)
COPIES = (
    Kernel("Memcpy HtoD (Pinned -> Device)", "copy", 4, 30 * MS),
    Kernel("Memcpy DtoH (Device -> Pageable)", "copy", 1, 6 * MS),
    Kernel("Memset (Device)", "copy", 9, 3 * MS),
)
COMPUTES = (
    Kernel("gemm", "compute", 4, 60 * MS),
    Kernel("AllReduce", "communication", 4, 900 * MS),
    *(Kernel(name, "compute", 4, ms * MS) for name, ms in (("norm", 30), ("gelu", 6), ("rest", 4))),
)
RATES = tuple(
    OperatorRate(name, (), (), 1, 1, ns * MS, 1, 1, least, None)
    for name, ns, least in (("a", 40, 10 * MS), ("b", 20, 30 * MS), ("c", 10, None))
)
SYNC = "cudaStreamSynchronize"


def cut_units(**parts: int) -> tuple[RecordedUnit, ...]:
    """Three steps that begin with other ``parts`` than computing: before the first kernel, and not after the last step."""
    (lasts,) = parts.values()
    return (
        unit(0, compute=20, lead_in=lasts, **parts), unit(1, compute=20, **parts), unit(2, compute=20)
    )  # fmt: skip


BEFORE = gap("lead_in_ns", 30, call="tokenize", call_ns=30 * MS)
FINDINGS: dict[str, tuple[dict[str, Any], str, int | None, str, str, str]] = {
    "late, without a place": ({"units": of_units(2, **LATE)}, "dispatch", 30, "25.0 5.0", "CUDA graphs", ""),
    "late, without latency": (
        {"units": of_units(2, compute=80, free_host_late=20), "form": "ascend-db"}, "dispatch", 20, "20.0", "ACL graphs", "",
    ),
    "late, in training": ({"units": [replace(each, sequences=4) for each in of_units(2, **LATE)]}, "dispatch", 30, "25.0 5.0", "larger micro-batches", ""),
    "late, with graphs": (
        {"units": of_units(2, **LATE), "graph_share": 0.7}, "dispatch", 30, "25.0 5.0", "graphs already launch 70 %", "",
    ),
    "late, with few graphs": (
        {"units": of_units(2, **LATE), "graph_share": 0.4}, "dispatch", 30, "25.0 5.0", "use CUDA graphs", "",
    ),
    "latency, with most kernels long after their launch": (
        {"units": of_units(2, **LONG_LATENCY), "prompt_share": 0.1}, "dispatch", 30, "5.0 25.0", "another process", "",
    ),
    "latency, with half of the kernels right after their launch": (
        {"units": of_units(2, **LONG_LATENCY), "prompt_share": 0.5}, "dispatch", 30, "5.0 25.0", "use CUDA graphs", "",
    ),
    "latency, with most kernels right after their launch": (
        {"units": of_units(2, **LONG_LATENCY), "prompt_share": 0.9}, "dispatch", 30, "5.0 25.0", "use CUDA graphs", "",
    ),
    "late, with modules": (
        {"units": of_units(2, **LATE), "modules": MODULES, "late_modules": ("MoE", "Head")}, "dispatch", 30,
        "25.0 5.0 25.00 5.00", "CUDA graphs", "",
    ),
    "late, with operators": (
        {"units": of_units(2, **LATE), "operators": MODULES}, "dispatch", 30, "25.0 5.0 25.00 5.00 45.00 30.00", "CUDA graphs", "",
    ),
    "late, with a place among others": (
        {"units": of_units(2, **LATE), "gaps": (gap(HOST_LATE, 30),)}, "dispatch", 30, "25.0 5.0 7 15.00 2 2", "CUDA graphs", "",
    ),
    "a place that a call covers": (
        {"units": of_units(2, **LATE), "gaps": (gap(HOST_LATE, 40, call="tokenize", call_ns=30 * MS),)}, "dispatch", 15,
        "25.0 5.0 7 75 20.00 2 2", "host does in tokenize", "tokenize",
    ),
    "a place that a call covers which waits": (
        {"units": of_units(2, **LATE), "gaps": (gap(HOST_LATE, 40, call=SYNC, call_ns=40 * MS),)}, "dispatch", 20,
        "25.0 5.0 7 100 20.00 2 2", f"{SYNC} blocks", SYNC,
    ),
    "a place within an operator": (
        {"units": of_units(2, **LATE), "gaps": (gap(HOST_LATE, 40, operator="aten::nonzero", within=True),)}, "dispatch", 20,
        "25.0 5.0 7 20.00 2 2", "host does in aten::nonzero", "aten::nonzero",
    ),
    "a place that nothing covers": (
        {"units": of_units(2, **LATE), "gaps": (gap(HOST_LATE, 40),)}, "dispatch", 20, "25.0 5.0 7 20.00 2 2",
        "--contents cuda,cpu,stack", "before fresh on stream 7",
    ),
    "a place that nothing covers, with stacks": (
        {"units": of_units(2, **LATE), "gaps": (gap(HOST_LATE, 40),), "settings": {"stacks": "True"}}, "dispatch", 20,
        "25.0 5.0 7 20.00 2 2", "20.00 ms and begins at 1234.567", "before fresh on stream 7",
    ),
    "a kernel that starts late": (
        {"units": of_units(2, compute=70, free_latency=30), "gaps": (gap(LATENCY, 60),)}, "dispatch", 30,
        "30.0 7 30.00 2 2", "why fresh starts so long after its launch", "before fresh on stream 7",
    ),
    "a launch that blocks": (
        {"units": of_units(2, compute=80, free_blocked=20), "gaps": (gap(BLOCKED, 10, call="cudaGraphLaunch", call_ns=9 * MS),)},
        "launch-blocked", 20, "20.0 5.00 7 90 5.00 2 2", "several steps instantiate", "",
    ),
    "a launch that blocks somewhere": (
        {"units": of_units(2, compute=80, free_blocked=20)}, "launch-blocked", 20, "20.0", "loads or compiles its code", "",
    ),
    "a stream that waits": (
        {"units": of_units(2, compute=80, free_waiting=20), "gaps": (gap("free_waiting_ns", 38),)}, "waiting", 19,
        "20.0 7 19.00 2 2", "events between streams", "before fresh on stream 7",
    ),
    "idle time without launches": (
        {"units": of_units(2, compute=40, free_unknown=60), "gaps": (gap("free_unknown_ns", 100),)}, "idle-unknown", 50,
        "60.0 7 50.00 2 2", "ProfilerActivity.CPU", "before fresh on stream 7",
    ),
    "idle time in tables": (
        {"units": of_units(2, compute=40, free_unknown=60), "form": "ascend-tables"}, "idle-unknown", 60, "60.0",
        "export the trace", "",
    ),
    "waits before the first kernel": (
        {"units": (unit(compute=20, lead_in=80),), "gaps": (gap("lead_in_ns", 60, call=SYNC, call_ns=40 * MS),)}, "lead-in",
        None, "80.00 50", "", "",
    ),
    "a place before the first kernel": (
        {"units": (unit(compute=20, lead_in=80),), "gaps": (gap("lead_in_ns", 60),)}, "lead-in", 60, "80.00 7 60.00",
        "--contents", "before fresh on stream 7",
    ),
    "a place before the first kernel of several": (
        {"units": of_units(2, 0, unit(compute=20, lead_in=80), compute=20), "gaps": (gap("lead_in_ns", 60),)}, "lead-in", None,
        "80.00 7 60.00", "", "",
    ),
    "a call before each step": (
        {"units": cut_units(free_host_late=30), "gaps": (gap(HOST_LATE, 60, call="tokenize", call_ns=60 * MS), BEFORE)}, "dispatch",
        30, "50.0 7 100 20.00 2 3", "host does in tokenize", "tokenize",
    ),
    "another call before the first step": (
        {
            "units": cut_units(free_host_late=30),
            "gaps": (gap(HOST_LATE, 60, call="tokenize", call_ns=60 * MS), replace(BEFORE, call="load")),
        },
        "dispatch", 20, "50.0 7 100 20.00 2 3", "host does in tokenize", "tokenize",
    ),
    "a call in all steps, and one before the first": (
        {"units": of_units(3, 0, unit(compute=20, free_host_late=30, lead_in=30), compute=20, free_host_late=30),
         "gaps": (gap(HOST_LATE, 90, call="tokenize", call_ns=90 * MS), BEFORE)},
        "dispatch", 30, "60.0 7 100 30.00 2 3", "host does in tokenize", "tokenize",
    ),
    "a copy before each step": (
        {"units": cut_units(copy=30), "kernels": (Kernel("Memcpy HtoD (Pageable -> Device)", "copy", 3, 90 * MS),)}, "copies", 30,
        "50.0 30.00", "copy from pinned memory", "host to device",
    ),
    "copies before the steps that the device waits for": (
        {"units": cut_units(copy=30), "kernels": (Kernel("Memcpy HtoD (Pageable -> Device)", "copy", 3, 90 * MS),), "gaps": (BEFORE,)},
        "copies", 20, "50.0 30.00", "copy from pinned memory", "host to device",
    ),
    "copies from pinned memory": (
        {"units": of_units(3, compute=90, copy=10), "kernels": COPIES}, "copies", 10, "10.0 10.00 2.00 1.00", "already pinned",
        "host to device",
    ),
    "copies to the host": (
        {"units": of_units(3, compute=95, copy=5), "kernels": (replace(COPIES[1], calls=6), COPIES[2])}, "copies", 5, "5.0 2.00 1.00",
        "fewer tensors", "device to host",
    ),
    "a large copy to the host": (
        {"units": of_units(3, compute=95, copy=5), "kernels": COPIES[1:]}, "copies", 5, "5.0 2.00 1.00", "so that no kernel waits",
        "device to host",
    ),
    "copies whose direction is unknown": ({"units": of_units(3, compute=90, copy=10)}, "copies", 10, "10.0 10.00", "find out", "of unknown direction"),
    "computing": (
        {"units": of_units(2, compute=75, overlap=10, communication=5, free_waiting=10), "kernels": COMPUTES}, "compute", None,
        "85.0 60 30 6", "another precision", "",
    ),
    "computing of many elements": (
        {"units": of_units(2, compute=90, communication=10), "kernels": COMPUTES[2:]}, "compute", None, "90.0 75 15 10",
        "take 90 % of the kernel time: fuse them", "",
    ),
    "computing above the roofline": (
        {"units": of_units(2, compute=100), "kernels": COMPUTES, "rates": RATES}, "compute", None, "100.0 60 30 6 70.0 15.00",
        "another precision", "",
    ),
    "a slow step with more kernels": (
        {"units": of_units(10, 7, unit(7, 1_200, compute=20, free_host_late=15), compute=10)}, "outlier", 2, "7 35.00 3.5 60 1,200 10",
        "special", "",
    ),
    "a slow step with a place": (
        {"units": of_units(10, 1, unit(1, compute=10, free_host_late=18, copy=2), compute=10), "gaps": (gap(HOST_LATE, 20),)},
        "outlier", 2, "1 30.00 3.0 90 7", "special", "",
    ),
    "two slow steps": (
        {"units": (*of_units(10, 1, unit(1, compute=16), compute=10), unit(10, compute=13), unit(11, compute=14))}, "outlier", 0,
        "1 16.00 1.6 100", "longest kernels", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "name", "saving", "numbers", "advice", "culprit"), FINDINGS.values(), ids=FINDINGS)
def test_the_numbers_of_a_finding_are_those_of_its_profile(
    fields: dict[str, Any], name: str, saving: int | None, numbers: str, advice: str, culprit: str
) -> None:
    (finding,) = (one for one in report(replace(capture(), **fields)).findings if one.id == name)
    assert (finding.saving_ns and finding.saving_ns // MS, finding.culprit) == (saving, culprit)
    assert " ".join(re.findall(r"(?<![a-z])\d[\d,.]*\d|\b\d", finding.evidence)) == numbers
    assert not re.search(r": ?\.", finding.evidence), "no sentence without its values"
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("late", "latency", "prompt", "title"),
    [
        (20, 10, None, "Host-bound"), (0, 30, None, "Launch latency"), (10, 20, None, "Launch"), (10, 20, 0.49, "Launch"),
        (10, 20, 0.5, "Host-bound"),
    ],
)  # fmt: skip
def test_the_larger_part_of_idle_launches_is_the_headline(
    late: int, latency: int, prompt: float | None, title: str
) -> None:
    """If most kernels start promptly, they do not start late: the host launches too few."""
    made = replace(capture(unit(compute=50, copy=20, free_host_late=late, free_latency=latency)), prompt_share=prompt)
    assert report(made).verdict.title.startswith(title)


# ---------------------------------------------------------------- ranks


def meeting(*times: tuple[int, ...], group: str = "tp") -> list[RankProfile]:
    """Captures of as many ranks; each row is one collective: how long it took each rank."""
    return [
        capture(
            unit(compute=100 - sum(row[rank] for row in times), communication=sum(row[rank] for row in times)), rank=rank,
            collectives=tuple(Collective(group, index, "allReduce", row[rank] * MS) for index, row in enumerate(times)),
        )
        for rank in range(len(times[0]))
    ]  # fmt: skip


def test_who_waits_for_whom_needs_no_common_clock() -> None:
    ranks, exact, *_ = match_collectives(meeting((10, 2, 4), (5, 1, 1)))
    assert exact
    assert [(row.rank, row.collectives, row.waits_ns // MS, row.awaited_ns // MS, row.last) for row in ranks] == [
        (0, 2, 8 + 4, 0, 0),
        (1, 2, 0, 10, 1),
        (2, 2, 2, 0, 0),
    ]
    # Rank 2 came 2 ms before rank 1: had rank 1 been as early, both others would have waited for 2 ms less.
    assert [row.alone_in for row in ranks] == [{}, {0: 2 * 2 * MS}, {}]


def test_two_ranks_that_are_late_together_are_no_straggler() -> None:
    """Rank 1 comes last by little: without it, the others would wait for rank 2 nearly as long."""
    found = report(*meeting((40, 10, 11, 40)))
    assert found.verdict.title == "Ranks wait for each other"
    assert "No single straggler" in found.findings[0].evidence
    assert report(*meeting((40, 10, 30, 40))).verdict.title.startswith("Ranks wait for rank 1")


def test_the_slow_rank_is_the_finding_of_all() -> None:
    found = report(*meeting((40, 10), (10, 10)))
    slow = found.findings[0]
    assert (slow.id, slow.severity, slow.source, slow.culprit) == ("slow-rank", "problem", "/traces/rank0", "rank 1")
    assert (
        "rank 1 arrives last in 1 of 2 collectives; on average, each of the other ranks waits 30.00 ms per step for it"
        in slow.evidence
    )
    assert (slow.saving_ns, slow.parts) == (30 * MS, {"waiting": 30 * MS, "transfer": 20 * MS})
    assert found.verdict.title == "Ranks wait for rank 1: it computes 30.00 ms longer per step"
    assert report(*meeting((40, 10), group="")).findings[0].certainty.startswith("heuristic")


def told(ms: int, wait: int = 0, idle: int = 0, name: str = "allReduce", **more: Any) -> Collective:
    """Return a collective of which the vendor tells how long it waits and is idle."""
    return Collective("586", 0, name, ms * MS, (ms - wait - idle) * MS, wait * MS, idle * MS, **more)


HALF = {"compute": 50, "overlap": 10, "communication": 40}
EXPOSED: dict[str, tuple[list[RankProfile], str, int, str, str, str, dict[str, int]]] = {
    "one rank, of whose waiting nothing tells": (
        [capture(unit(**HALF))], "communication", 40, "40.0 40.00 10.0", "upper bound", "all ranks", {"transfer": 40},
    ),
    "transfer": (
        [capture(unit(**HALF), collectives=(told(30, 5, 4),))], "communication", 31, "40.0 5.00 4.00 31.00 10.0", "upper bound of the saving, without 9.00 ms of waiting or idle time",
        "overlap communication", {"waiting": 5, "idle": 4, "transfer": 31},
    ),
    "waiting that the vendor tells": (
        [capture(unit(**HALF), collectives=(told(35, 30, 4),))], "slow-rank", 30, "40.0 30.00 4.00 6.00 10.0", "exact",
        "differs between ranks", {"waiting": 30, "idle": 4, "transfer": 6},
    ),
    "idle, as two steps": (
        [capture(unit(**HALF), unit(1, **HALF), collectives=(told(35, 3, 30), told(25, 0, 20, unit=1)))], "collective-idle", 25,
        "40.0 1.50 25.00 13.50 10.0", "upper bound of the saving, from torch_npu", "the network is not", {"waiting": 1, "idle": 25, "transfer": 13},
    ),
    "more waiting than there is exposed": (
        [capture(unit(compute=85, communication=15), collectives=(told(40, 30, 10),))], "slow-rank", 15, "15.0 15.00 0.0",
        "exact", "differs between ranks", {"waiting": 15},
    ),
    "sends and receives": (
        [capture(unit(**HALF), collectives=(told(20, name="send", bytes=9), told(5, name="recv", bytes=9), told(5, 1, 1)))], "pipeline-bubble", 25,
        "40.0 25.00 1.00 1.00 13.00 10.0 2", "upper bound of the saving: the time of the transfers themselves is included", "more micro-batches",
        {"pipeline": 25, "waiting": 1, "idle": 1, "transfer": 13},
    ),
    "a straggler at the first of two collectives": (
        meeting((40, 10), (10, 10)), "slow-rank", 30, "50.0 30.00 20.00 0.0 1 1 2 30.00 100 1 30.00", "exact; part", "inputs of rank 1",
        {"waiting": 30, "transfer": 20},
    ),
    "a straggler at the second of two collectives": (
        meeting((10, 10), (40, 10)), "slow-rank", 30, "50.0 30.00 20.00 0.0 1 1 2 30.00 1 30.00", "exact", "inputs of rank 1",
        {"waiting": 30, "transfer": 20},
    ),
    "a straggler for two, not most of it at the first": (
        meeting((12, 8, 12), (28, 8, 18)), "slow-rank", 24, "40.0 24.00 16.00 0.0 1 2 2 19.00 1 19.00", "exact", "inputs of rank 1",
        {"waiting": 24, "transfer": 16},
    ),
    "two that come last in turn": (
        meeting((40, 10), (10, 35)), "slow-rank", 30, "50.0 30.00 20.00 0.0 30.00 1 25.00 0", "exact", "differs between ranks",
        {"waiting": 30, "transfer": 20},
    ),
    "several that come last together": (
        meeting((40, 10, 10)), "slow-rank", 30, "40.0 30.00 10.00 0.0", "exact", "differs between ranks", {"waiting": 30, "transfer": 10},
    ),
    "waiting of which little is exposed": (
        [replace(one, units=(unit(compute=91, overlap=40, communication=9),)) for one in meeting((40, 10))], "slow-rank", 9,
        "6.4 9.00 28.6 1 1 1 30.00 100", "exact; part", "what rank 1 does", {"waiting": 9},
    ),
    "little of it, but waiting": (
        meeting((9, 6)), "slow-rank", 3, "9.0 3.00 6.00 0.0 1 1 1 3.00 100 1 3.00", "exact; part", "inputs of rank 1",
        {"waiting": 3, "transfer": 6},
    ),
    "less than a tenth of it, but waiting": (
        [capture(unit(compute=91, communication=9), collectives=(told(9, 3),))], "slow-rank", 3, "9.0 3.00 6.00 0.0", "exact",
        "differs between ranks", {"waiting": 3, "transfer": 6},
    ),
    "a tenth of it, with a little waiting": (
        [capture(unit(compute=90, communication=10), collectives=(told(10, 3),))], "communication", 7, "10.0 3.00 7.00 0.0",
        "upper bound", "overlap communication", {"waiting": 3, "transfer": 7},
    ),
    "transfer, with a straggler": (
        meeting((60, 50)), "communication", 50, "60.0 10.00 50.00 0.0 1 1 1 10.00 100 1 10.00", "upper bound", "overlap communication",
        {"waiting": 10, "transfer": 50},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("captures", "name", "saving", "numbers", "certainty", "advice", "parts"), EXPOSED.values(), ids=EXPOSED
)
def test_the_numbers_of_exposed_communication_are_those_of_its_collectives(
    captures: list[RankProfile],
    name: str,
    saving: int,
    numbers: str,
    certainty: str,
    advice: str,
    parts: dict[str, int],
) -> None:
    finding = report(*captures).findings[0]
    assert (finding.id, (finding.saving_ns or 0) // MS, finding.source) == (name, saving, "/traces/rank0")
    assert {part: ns // MS for part, ns in finding.parts.items()} == parts
    words = {"pipeline": "pipeline", "waiting": "waiting", "idle": "idle", "transfer": "transfer"}
    assert re.findall(r" ms (pipeline|waiting|idle|transfer)\b", finding.evidence.partition(")")[0]) == [
        words[part] for part in parts
    ]
    assert ("transfer or waiting" in finding.evidence) == (not captures[0].collectives)
    evidence = finding.evidence.partition("(")[0] + finding.evidence.partition("(")[2]
    assert " ".join(re.findall(r"\d[\d,.]*\d|\d", evidence.removeprefix("rank 0: "))) == numbers
    assert finding.certainty.startswith(certainty)
    assert advice in finding.advice


def test_times_of_ranks_are_of_a_unit() -> None:
    made = [
        replace(
            one, units=tuple(replace(one.units[0], number=number) for number in range(3)),
            collectives=tuple(replace(one.collectives[0], unit=number, index=0) for number in range(3)),
        )
        for one in meeting((25, 8))
    ]  # fmt: skip
    slow = report(*made).findings[0]
    assert (slow.id, slow.saving_ns) == ("slow-rank", 17 * MS)
    assert "waits 17.00 ms per step for it" in slow.evidence


def test_waiting_is_never_more_than_the_exposed_communication() -> None:
    made = [replace(one, units=(unit(compute=90, overlap=30, communication=10),)) for one in meeting((40, 10))]
    slow = report(*made).findings[0]
    assert (slow.id, slow.saving_ns) == ("slow-rank", 10 * MS)


def test_the_first_collective_of_the_only_unit_may_be_the_start_of_the_profilers() -> None:
    """Of a single unit nothing tells; of several the first collective counts as much as in the others."""
    slow = report(*meeting((40, 10), (10, 10))).findings[0]
    assert "profilers started at different times" in slow.evidence
    later = report(*meeting((10, 10), (40, 10))).findings[0]
    assert "skew" not in later.evidence
    units = tuple(unit(number, compute=50, communication=50) for number in range(2))
    several = [
        replace(
            one, units=units,
            collectives=tuple(Collective("tp", 0, "allReduce", ms * MS, unit=number) for number, ms in enumerate(row)),
        )
        for one, row in zip(meeting((1, 1)), ((45, 12), (5, 10)), strict=True)
    ]  # fmt: skip
    ranks, *_ = match_collectives(several)
    assert [(row.waits_ns // MS, row.awaited_ns // MS) for row in ranks] == [(4, 0), (0, 4)]


@pytest.mark.parametrize(
    ("times", "culprit"), [([(62, 0), (0, 53)], ""), ([(62, 0), (0, 31)], "rank 1"), ([(40, 10, 10)], "")]
)
def test_no_rank_is_blamed_where_waits_are_nearly_equal(times: list[tuple[int, ...]], culprit: str) -> None:
    (slow,) = (finding for finding in report(*meeting(*times)).findings if finding.id == "slow-rank")
    assert slow.culprit == culprit
    assert ("check what rank 1 does before" in slow.advice) == bool(culprit)


@pytest.mark.parametrize(
    ("longer", "calls", "cause"),
    [
        ((45, 22), 3, ", and all its large kernels take 1.34 times as long"), ((50, 16), 3, ", mostly in the kernel MatMul"),
        ((34, 30), 3, ", mostly in the kernel Softmax"), ((43, 16), 3, ""), ((50, 16), 2, ""),
            ((50, 16), 4, ", mostly because it runs more kernels (7 per step, the others 6)"),
    ],
    ids=["all kernels", "one kernel", "another kernel", "neither", "fewer calls", "more calls"],
)  # fmt: skip
def test_the_straggler_is_told_with_the_kernels_that_take_it_longer(
    longer: tuple[int, int], calls: int, cause: str
) -> None:
    """On the other rank, which computes for 20 ms less, the two kernels take 34 and 16 ms."""
    profiles = [
        replace(
            profile, units=(unit(compute=computes, communication=85 - computes),),
            kernels=(Kernel("MatMul", COMPUTE, count, first * MS), Kernel("Softmax", COMPUTE, 3, second * MS)),
        )
        for profile, computes, (first, second), count in zip(meeting((30, 10)), (55, 75), ((34, 16), longer), (3, calls), strict=False)
    ]  # fmt: skip
    title = report(*profiles).verdict.title
    assert title == f"Ranks wait for rank 1: it computes 20.00 ms longer per step{cause}"


def test_the_straggler_is_told_with_what_it_has_more_of() -> None:
    """What it has more of is the same time as what the others wait: it is not summed."""
    first, *others = (
        replace(one, units=(unit(compute=40, communication=20 if rank else 60, free_host_late=40 if rank else 0),))
        for rank, one in enumerate(meeting((55, 5), (5, 5)))
    )
    found = report(first, *others)
    assert [(one.id, one.source, one.same_as) for one in found.findings] == [
        ("slow-rank", "/traces/rank0", ""), ("dispatch", "/traces/rank1", "slow-rank"),
    ]  # fmt: skip
    part = "its host launches kernels later: on average 40.00 ms more host-bound time per step"
    assert found.verdict.title == f"Ranks wait for rank 1: {part}"
    assert found.findings[0].advice.startswith("compare the host of rank 1 with those of the other ranks: CPU cores")
    held = replace(others[0], gaps=(gap("free_host_late_ns", 40, call="load", call_ns=40 * MS),))
    slow, late = report(first, held, *others[1:]).findings[:2]
    assert (slow.title, slow.advice) == ("Ranks wait for rank 1, mostly while its host is in load", late.advice)
    nowhere = replace(held, gaps=(gap("free_host_late_ns", 40),))
    assert report(first, nowhere, *others[1:]).verdict.title == f"Ranks wait for rank 1: {part}"


@pytest.mark.parametrize(
    ("calls", "late", "named"),
    [
        (("distributed_c10d.py(2840): broadcast", "load"), 40, "load"),
        (("c10d::broadcast_", "load"), 40, "load"),
        (("distributed_c10d.py(2840): broadcast", "load"), 39, "broadcast"),
        (("distributed_c10d.py(2840): broadcast", "distributed_c10d.py(2840): broadcast"), 40, "broadcast"),
        (("read", "load"), 40, "read"),
    ],
)
def test_the_host_that_others_wait_for_in_a_collective_is_named(calls: tuple[str, str], late: int, named: str) -> None:
    """Rank 0 is host-bound for 50 ms of 100, rank 1 for ``late`` ms; no collective of the device waits."""
    ranks = [
        replace(
            ranked, units=(unit(compute=98 - ms, communication=2, free_host_late=ms),),
            gaps=(gap("free_host_late_ns", ms, call=call, call_ns=ms * MS),),
        )
        for ranked, ms, call in zip(meeting((2, 2)), (50, late), calls, strict=True)
    ]  # fmt: skip
    assert named in report(*ranks).verdict.title


def test_only_exposed_waiting_has_to_be_explained_by_what_takes_the_straggler_longer() -> None:
    """The other rank waits for 80 ms in its collective, but computes during 55 ms of them."""
    waiting, late = (
        replace(ranked, units=(unit(**parts),))
        for ranked, parts in zip(
            meeting((85, 5)),
            (
                {"compute": 10, "overlap": 55, "communication": 30},
                {"compute": 65, "communication": 5, "free_host_late": 30},
            ),
            strict=True,
        )
    )
    title = "Ranks wait for rank 1: its host launches kernels later: on average 30.00 ms more host-bound time per step"
    assert report(waiting, late).verdict.title == title


@pytest.mark.parametrize(
    ("part", "title"),
    [
        ("copy", "it copies for longer, host to device"),
        ("free_waiting", "most of its additional time is in this part of the step: stream wait"),
    ],
)
def test_a_straggler_whose_device_copies_or_waits_is_not_blamed_on_its_host(part: str, title: str) -> None:
    """Its idle time is at one place, before a kernel: that is nothing the host is in."""
    copies = (Kernel("Memcpy HtoD (Pageable -> Device)", "copy", 1, 40 * MS),)
    first, second = (
        replace(one, units=(unit(compute=40, communication=20 if rank else 60, **{part: 40 if rank else 0}),))
        for rank, one in enumerate(meeting((55, 5), (5, 5)))
    )
    second = replace(
        second,
        kernels=copies if part == "copy" else (),
        gaps=(gap("free_waiting_ns", 40),) if part == "free_waiting" else (),
    )
    assert report(first, second).verdict.title == f"Ranks wait for rank 1: {title}"


def test_stragglers_of_single_collectives_are_told_as_changing() -> None:
    title = "Ranks wait for each other: the straggler changes from collective to collective"
    assert report(*meeting((40, 10), (10, 35))).verdict.title == title
    assert report(*meeting((40, 10, 10))).verdict.title == "Ranks wait for each other"  # the last two come together


def late_in_step(waits: Sequence[int], excess: int, call: str) -> list[RankProfile]:
    """Return two ranks with a collective in each step, in which rank 0 ``waits`` for rank 1 so many ms.

    The last but one of rank 1, at most step 3, has ``excess`` ms of idle time: before the first kernel of the next one.
    """
    slow = min(3, len(waits) - 2)
    late = replace(gap(HOST_LATE, excess, call=call, call_ns=excess * MS), unit=slow, unit_ns=excess * MS)
    units = [
        [replace(unit(at, compute=10, communication=1 + ms), host_ns=(10 + ms) * MS) for at, ms in enumerate(waits)],
        [replace(unit(at, compute=10, communication=1), host_ns=(10 + ms) * MS) for at, ms in enumerate(waits)],
    ]
    units[1][slow] = replace(units[1][slow], free_host_late_ns=excess * MS)
    return [
        capture(
            *units[rank], rank=rank, gaps=(late,) if rank else (),
            collectives=tuple(
                Collective("tp", 0, "allReduce", (1 + (0 if rank else ms)) * MS, unit=at) for at, ms in enumerate(waits)
            ),
        )
        for rank in range(2)
    ]  # fmt: skip


IN_ONE = "In step 4, the other ranks wait 90.00 ms for rank 1"


@pytest.mark.parametrize(
    ("waits", "excess", "call", "title", "same"),
    [
        ((0, 1, 0, 0, 90, 0), 90, "save", f"{IN_ONE}: most of the additional time is spent in save", "slow-rank"),
        ((0, 1, 0, 0, 90, 0), 90, "", f"{IN_ONE}: most of the additional time is in this part of the step: host-bound", "slow-rank"),
        ((0, 1, 0, 0, 90, 0), 40, "save", IN_ONE, ""),
        ((0, 29, 29, 29, 90, 0), 90, "save", "Ranks wait for rank 1", ""),
    ],
    ids=["a call", "no call", "little of it", "in other steps, too"],
)  # fmt: skip
def test_waiting_in_one_step_is_told_of_this_step(
    waits: tuple[int, ...], excess: int, call: str, title: str, same: str
) -> None:
    found = report(*late_in_step(waits, excess, call))
    assert found.verdict.title.partition(", mostly while")[0].startswith(title)
    assert (found.findings[0].step == 4) == title.startswith("In step")
    assert ("of this waiting is in step 4" in found.findings[0].evidence) == title.startswith("In step")
    assert [each.same_as for each in found.findings if each.id == "outlier"] == [same]


@pytest.mark.parametrize(
    ("waits", "title"),
    [
        ((0, 5, 60, 0, 80, 0), "Ranks wait for rank 1 in steps 2, 4"),
        ((0, 17, 60, 0, 80, 0), "Ranks wait for rank 1"),
        ((60, 0, 70, 0, 80, 0), "Ranks wait for rank 1"),
    ],
    ids=["nine tenths in two of six", "less", "half of the steps"],
)
def test_waiting_in_a_few_steps_is_told_of_these(waits: tuple[int, ...], title: str) -> None:
    assert report(*late_in_step(waits, 0, "")).verdict.title.partition(":")[0] == title


def test_the_host_is_named_beside_a_step_where_no_slow_step_is_known() -> None:
    """Of two steps, none is typical."""
    title = report(*late_in_step((0, 90), 90, "save")).verdict.title
    assert title == "In step 1, the other ranks wait 90.00 ms for rank 1, mostly while its host is in save"


@pytest.mark.parametrize(
    ("waits", "told"),
    [
        ((0, 1, 0, 0, 90, 0), ["wait 90.00 ms for rank 1: most", "all 6 steps together", "90.00 ms in all steps together"]),
        ((0, 29, 29, 29, 90, 0), ["a fix saves at most", "median step", "per step", "also: rank 1: step 4 takes"]),
    ],
    ids=["one step", "several steps"],
)  # fmt: skip
def test_the_first_screen_gives_no_mean_of_waiting_in_one_step(waits: tuple[int, ...], told: list[str]) -> None:
    text = " ".join(" ".join(first_screen(report(*late_in_step(waits, 90, "save")))).split())
    assert [words for words in told if words not in text] == []
    assert ("also: " in text, "per step" in text) == ("median step" in told, "median step" in told)


def test_savings_are_of_different_times() -> None:
    """Ranks that meet have one time: what all of them lack is told of one of them."""
    late = [
        replace(one, units=(unit(compute=30, communication=30, free_host_late=20 + rank, free_waiting=20 - rank),))
        for rank, one in enumerate(meeting((20, 10), (10, 20)))
    ]
    found = report(*late)
    assert len({one.source for one in found.findings}) == 1
    assert sum(one.saving_ns or 0 for one in found.findings if not one.same_as) <= 100 * MS


def test_a_place_with_most_of_a_finding_bounds_it() -> None:
    gap = FreeGap(
        kind="place", part="free_host_late_ns", ns=50 * MS, count=2, units=2, unit=0, unit_ns=25 * MS,
        longest_ns=25 * MS, begin_ns=0, before="a", after="kernel", stream="stream 7",
    )  # fmt: skip
    first = report(capture(*(unit(at, compute=60, free_host_late=40) for at in range(2)), gaps=(gap,))).findings[0]
    assert (first.id, first.saving_ns, first.culprit) == ("dispatch", 25 * MS, "before kernel on stream 7")
    assert "mostly at one place" in first.title
    small = report(capture(*(unit(at, compute=60, free_host_late=60) for at in range(2)), gaps=(gap,))).findings[0]
    assert (small.saving_ns, small.title) == (60 * MS, TITLES["dispatch"])


def test_a_slow_unit_is_the_time_of_its_part_and_matters_only_if_it_loses_some() -> None:
    late = [unit(at, compute=50, free_host_late=20) for at in range(5)]
    found = {one.id: one for one in report(capture(*late, unit(5, compute=50, free_host_late=120))).findings}
    assert (found["outlier"].same_as, found["outlier"].severity) == ("dispatch", "warning")
    many = [unit(at, compute=70) for at in range(60)]
    (outlier,) = (one for one in report(capture(*many, unit(60, compute=100))).findings if one.id == "outlier")
    assert (outlier.severity, outlier.same_as) == ("note", "")


def test_experts_on_streams_side_by_side_meet_by_their_names() -> None:
    """Kernels without a group begin in another order on each rank."""
    first, second = meeting((1, 1))
    kernels = ("dispatch", 30, 10), ("combine", 5, 5), ("dispatch", 10, 10)

    def collectives(column: int, order: tuple[int, ...]) -> tuple[Collective, ...]:
        return tuple(
            Collective("", index, str(kernels[at][0]), int(kernels[at][column]) * MS) for index, at in enumerate(order)
        )

    made = (
        replace(first, collectives=collectives(1, (0, 1, 2))), replace(second, collectives=collectives(2, (0, 2, 1))),
    )  # fmt: skip
    assert [(row.collectives, row.waits_ns // MS) for row in match_collectives(made)[0]] == [(3, 20), (3, 0)]


def test_nobody_came_last_where_several_did() -> None:
    ranks, *_ = match_collectives(meeting((10, 2, 2), (5, 5, 5), (9, 9, 1)))
    assert [(row.waits_ns // MS, row.awaited_ns // MS, row.last) for row in ranks] == [
        (16, 0, 0),
        (8, 0, 0),
        (0, 16, 1),
    ]


@pytest.mark.parametrize(
    ("worlds", "ranks", "says"),
    [
        ((4, 4), (0, 2), r"\b2 of 4\b.* 1, 3\b"),
        ((20, 20), (0, 2), r"\b2 of 20\b.* 1, 3, 4, 5, 6, 7 …"),
        ((2, 2), (0, 1), ""), ((None, None), (0, 1), ""), ((4, 2), (0, 1), ""), ((4, 4), (0, None), ""), ((4,), (0,), ""),
    ],
)  # fmt: skip
def test_ranks_that_are_missing_are_named(
    worlds: tuple[int | None, ...], ranks: tuple[int | None, ...], says: str
) -> None:
    made = [capture(unit(compute=50), rank=rank, world=world) for world, rank in zip(worlds, ranks, strict=True)]
    found = [one for one in report(*made).findings if one.id == "missing-ranks"]
    assert [bool(re.search(says, one.evidence)) for one in found] == [True] * bool(says)
    assert {(one.severity, one.saving_ns, one.certainty, one.source) for one in found} <= {("note", None, "exact", "")}


def test_one_rank_alone_is_told_how_many_there_are() -> None:
    found = report(capture(unit(compute=40, communication=60), world=8))
    assert "all 8 ranks" in found.findings[0].advice


def test_ranks_that_differ_in_a_unit_are_not_matched_there() -> None:
    first, second = meeting((10, 2), (5, 1))
    other = replace(second, collectives=(*second.collectives, Collective("tp", 2, "allGather", MS)))
    assert match_collectives([first, other])[0] == ()
    again = [replace(one, unit=7) for one in first.collectives]
    both = [replace(side, collectives=(*side.collectives, *again)) for side in (first, other)]
    assert [row.collectives for row in match_collectives(both)[0]] == [2, 2]


def test_captures_of_one_rank_did_not_meet() -> None:
    first, _ = meeting((10, 2))
    assert match_collectives([first, replace(first, source="/again")])[0] == ()


LABELS = [
    (["/a/x.json"], [0], [""]),
    (["/a/x.json", "/a/y.json"], [0, 1], ["rank 0", "rank 1"]),
    (["/a/x.json", "/a/y.json"], [0, 0], ["x.json", "y.json"]),
    (["/a/x.json", "/b/x.json"], [None, None], ["a/x.json", "b/x.json"]),
]


@pytest.mark.parametrize(("sources", "ranks", "labels"), LABELS)
def test_captures_have_names_that_tell_them_apart(
    sources: list[str], ranks: list[int | None], labels: list[str]
) -> None:
    made = [RankProfile(source, "torch", rank, "", ()) for source, rank in zip(sources, ranks, strict=True)]
    assert [one.label for one in analysis.labelled(made)] == labels


# ---------------------------------------------------------------- the promise


def test_the_json_of_a_report_is_what_is_promised() -> None:
    run = Run(
        (Task(10, 20, launch=1), Task(110, 120, "communication", stream=9, launch=101)),
        MARKS,
        (Range("aten::mm", 0, 5),),
        (Range("MLP", 0, 6),),
    )
    found = timeline(run)
    told = json_of(analysis.reported([analysis.checked(found, analysis.attributed(found))]))
    assert list(told) == ["schema", "verdict", "captures", "findings"]
    (one,) = told["captures"]
    assert list(one) == [
        "source",
        "form",
        "rank",
        "device",
        "facts",
        "checks",
        "units",
        "families",
        "kernels",
        "operators",
        "modules",
        "collectives",
        "kernel_uses",
        "rates",
        "vendor",
        "gaps",
        "replays",
        "pieces",
        "memory",
    ]
    assert list(one["checks"][0]) == ["id", "ok", "evidence"]
    assert list(one["units"][0]) == [
        "number",
        "host_ns",
        "device_ns",
        "kernels",
        *PARTS,
        "lead_in_ns",
        "phases",
        "classes",
        "requests",
        "tokens",
        "context",
        "drafts",
        "longest",
        "sequences",
        "padded",
        "uncounted",
        "profiler_start",
        "begin_ns",
    ]
    assert all(row["device_ns"] == sum(row[part] for part in PARTS) for row in one["units"])
    assert list(one["kernels"][0]) == ["name", "kind", "family", "calls", "ns"]
    assert list(one["operators"][0]) == ["name", "calls", "kernels", "ns", "host_ns"]
    assert list(told["findings"][0]) == [
        "id",
        "severity",
        "title",
        "evidence",
        "saving_ns",
        "certainty",
        "advice",
        "source",
        "parts",
        "same_as",
        "culprit",
    ]
    times = [value for row in one["units"] for name, value in row.items() if name.endswith("_ns")]
    assert {type(value) for value in times} == {int}


def test_the_facts_beside_a_trace_tell_what_a_step_held(tmp_path: Path) -> None:
    found = timeline(Run((Task(10, 20, launch=1), Task(110, 120, launch=101)), MARKS))
    listed = [{"number": 1, "requests": 8, "tokens": 9, "context": 4000}, {"number": 2, "requests": "8"}, 7]
    found.metadata = metadata_from({"units": listed})
    told = analysis.attributed(found).profile.units
    assert [(one.requests, one.tokens, one.context) for one in told] == [(8, 9, 4000), (None, None, None)]


@pytest.mark.parametrize(
    ("copies", "culprit", "pinned", "times"),
    [
        ({"Memcpy HtoD (Pinned -> Device)": 5.000_001, "Memcpy HtoD (Pageable -> Device)": 5}, "host to device", True, "5.00"),
        ({"Memcpy HtoD (Pinned -> Device)": 5, "Memcpy HtoD (Pageable -> Device)": 5}, "host to device", False, "5.00"),
        ({"Memcpy DtoH (Device -> Pinned)": 9, "Memcpy HtoD (Pageable -> Device)": 5}, "device to host", True, "4.50 2.50"),
        ({"Memcpy DtoH (Device -> Pageable)": 9, "Memcpy HtoD (Pinned -> Device)": 5}, "device to host", False, "4.50 2.50"),
        ({"Memcpy DtoH": 5, "Memcpy HtoD": 4}, "device to host and host to device", False, "2.50 2.00"),
        ({"Memcpy DtoH": 5, "Memcpy HtoD": 3.999_998}, "device to host", False, "2.50 2.00"),
        ({"Memcpy DtoH (Device -> Pageable)": 2, "Memset (Device)": 3}, "memsets", False, "1.50 1.00"), ({}, "of unknown direction", False, "5.00"),
    ],
)  # fmt: skip
def test_copies_are_of_the_direction_that_takes_most_time(
    copies: dict[str, float], culprit: str, pinned: bool, times: str
) -> None:
    kernels = (
        Kernel("gemm", "compute", 1, 99 * MS),
        *(Kernel(name, "copy", 1, round(ms * MS)) for name, ms in copies.items()),
    )
    found = copying.diagnose_copies(capture(unit(0, compute=95, copy=5), unit(1, compute=95, copy=5), kernels=kernels))
    assert found is not None
    assert (found.culprit, "already pinned" in found.advice, found.saving_ns) == (culprit, pinned, 5 * MS)
    assert ("between host and device" in found.advice) == (" and " in culprit)
    assert " ".join(re.findall(r"([\d.]+) ms", found.evidence)) == times
    assert copying.diagnose_copies(capture(unit(compute=951, copy=49))) is None
    assert copying.diagnose_copies(capture()) is None


@pytest.mark.parametrize(
    ("is_first", "count", "said"), [(True, 1, True), (False, 1, False), (True, 2, True), (False, 3, True)]
)
def test_several_slow_steps_or_the_first_one_are_a_headline_of_their_own(
    is_first: bool, count: int, said: bool
) -> None:
    made = capture(*(unit(at) for at in range(5)))
    slowest, usual = made.units[0 if is_first else 1], made.units[2]
    headline = diagnoses._slow_steps_headline(made, 5, [*range(count)], slowest, usual, "")
    assert (headline == "") != said
    assert (f"{count} of 5 steps" in headline) == (count > 1)


def test_a_step_is_slow_among_those_that_took_no_time() -> None:
    steps = tuple(RecordedUnit(number=at, host_ns=5 * (at == 3), kernels=0) for at in range(4))
    slow = diagnoses._diagnose_slowest_step(
        RankProfile("a", "torch", 0, CPU, steps, operators=(CallSums("aten::mm", 1, 0, 0, 5),))
    )
    assert slow is not None
    assert (slow.saving_ns, slow.severity, "5.0 times" in slow.evidence) == (1, "warning", True)


def test_the_step_that_starts_the_profiler_is_not_the_slowest() -> None:
    first = replace(unit(0, compute=90), profiler_start=True)
    others = [unit(at, compute=10) for at in range(1, 5)]
    assert diagnoses._diagnose_slowest_step(capture(first, *others)) is None
    assert diagnoses._diagnose_slowest_step(capture(*[first] * 3)) is None
    slow = diagnoses._diagnose_slowest_step(capture(first, *others, unit(5, compute=20)))
    assert slow is not None
    assert "Step 5 took 20.00 ms, 2.0 times" in slow.evidence


def test_each_stage_has_a_report_of_its_own() -> None:
    update, rollout = (
        capture(unit(compute=50, free_host_late=50), metadata=Metadata(raw={}, stage=stage)) for stage in ("update-policy", "rollout")
    )  # fmt: skip
    found = report(update, rollout, replace(rollout, rank=1, source="/traces/rank1", label="rank 1"))
    assert [[one.source for one in stage.captures] for stage in found.stages] == [
        ["/traces/rank0"],
        ["/traces/rank0", "/traces/rank1"],
    ]
    assert (
        [one.id for one in found.findings]
        == [one.id for stage in found.stages for one in stage.findings]
        == ["dispatch", "dispatch"]
    )
    assert found.verdict.title.startswith("2 ")
    assert report(update).stages == ()


@pytest.mark.parametrize(("ns", "large"), [(5_000_000, False), (5_000_001, True)])
def test_copies_to_the_host_are_large_if_they_take_over_a_millisecond_each(ns: int, large: bool) -> None:
    kernels = (Kernel("Memcpy DtoH (Device -> Pageable)", "copy", 5, ns),)
    found = copying.diagnose_copies(capture(unit(compute=95, copy=5), kernels=kernels))
    assert found is not None
    assert ("pinned memory" in found.advice) == large
