"""Each check at its limit, as tables; what they withdraw is in test_diagnoses."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from patcher.traces.analysis import checks
from patcher.traces.analysis.attribution import Attribution, Launches
from patcher.traces.analysis.segments import Segment
from patcher.traces.marks import Mark
from patcher.traces.model import Check, RankProfile, RecordedUnit
from patcher.traces.rank_trace import RankTrace
from patcher.traces.sidecar import Metadata


def unit(number: int = 0, kernels: int = 10, host: int = 100, **parts: int) -> RecordedUnit:
    times = {f"{name}_ns": ns for name, ns in parts.items()}
    return RecordedUnit(number=number, host_ns=host, kernels=kernels, **times)  # type: ignore[arg-type]


def profile(*units: RecordedUnit, **fields: object) -> RankProfile:
    return RankProfile("a", "torch", 0, "H100", units, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kernels", "far"),
    [
        ([10, 10, 10], []), ([10, 10, 5], []), ([10, 10, 4], [2]), ([10, 20, 10], []), ([10, 21, 10], [1]), ([10, 99], []), ([], []),
        ([4, 10, 10, 21], [0, 3]), ([10], []),
    ],
)  # fmt: skip
def test_a_unit_has_half_to_twice_the_median_of_kernels(kernels: list[int], far: list[int]) -> None:
    check = checks._kernel_count_check([unit(number, count) for number, count in enumerate(kernels)])
    assert (check.id, check.ok, check.withdraws) == ("count", not far, ())
    assert [number for number in range(len(kernels)) if f"#{number}" in check.evidence] == far


@pytest.mark.parametrize(("tasks", "linked", "ok"), [(0, 0, True), (100, 95, True), (100, 94, False), (100, 100, True)])
def test_ninety_five_of_a_hundred_kernels_have_a_launch(tasks: int, linked: int, ok: bool) -> None:
    check = checks._launches_check(Launches(tasks, linked))
    assert (check.id, check.ok, check.withdraws) == ("launches", ok, ("dispatch", "launch-blocked", "waiting"))
    assert (f"{linked}" in check.evidence, f"{tasks}" in check.evidence) == (bool(tasks),) * 2


CLOCKS: dict[str, tuple[Launches, dict[str, int], bool, tuple[str, ...]]] = {
    "none is early": (Launches(100, 100), {"compute": 1000}, True, ("dispatch", "launch-blocked", "waiting")),
    "few are early": (Launches(1000, 1000, 9, 9000), {"compute": 1000}, True, ("dispatch", "launch-blocked", "waiting")),
    "one of a hundred is early": (Launches(1000, 1000, 10, 1_000), {"compute": 1_000_000}, False, ("dispatch", "launch-blocked", "waiting")),
    "they move little time": (Launches(1000, 1000, 10, 1_000), {"compute": 2_000_001}, True, ("dispatch", "launch-blocked", "waiting")),
    "they move a twentieth": (Launches(1000, 1000, 10, 1_000), {"compute": 2_000_000}, False, ("dispatch", "launch-blocked", "waiting")),
    "of twice that time something is sure": (
        Launches(1000, 1000, 10, 1_000), {"compute": 700_000, "free_waiting": 199_999, "free_latency": 200_000, "free_blocked": 1}, False,
        ("launch-blocked", "waiting"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLOCKS)
def test_early_kernels_withdraw_what_the_clocks_can_move(name: str) -> None:
    launches, parts, ok, withdraws = CLOCKS[name]
    rest = 1_100_000 - sum(parts.values()) if "free_waiting" in parts else 0
    made = profile(unit(**{**parts, "copy": max(rest, 0)}))
    check = checks._clock_check(Attribution(made, (), launches))
    assert (check.id, check.ok, check.withdraws) == ("clocks", ok, withdraws)


HOSTS: dict[str, tuple[list[RecordedUnit], str]] = {
    "nothing": ([], ""), "as long": ([unit(host=100, compute=100)], ""), "twice as long": ([unit(host=200, compute=100)], ""),
    "longer": ([unit(4, host=201, compute=100)], "#4"), "with the time before": ([unit(host=250, compute=100, lead_in=51)], ""),
    "one of many": ([unit(1, host=201, compute=100), *(unit(at, host=9, compute=100) for at in range(2, 12))], ""),
    "one of some": ([unit(1, host=201, compute=100), *(unit(at, host=9, compute=100) for at in range(2, 11))], "#1"),
    "the longest of two": ([unit(1, host=301, compute=100), unit(2, host=401, compute=100)], "#1, #2"),
    "no device": ([unit(host=900)], ""),
    "a last step without the gap before each": (
        [unit(1, host=100, compute=100, lead_in=60), unit(2, host=100, compute=100), unit(3, host=100, compute=40)], "",
    ),
    "another gap before the first step": (
        [unit(1, host=100, compute=100, lead_in=50), unit(2, host=100, compute=100), unit(3, host=100, compute=40)], "#3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTS)
def test_a_unit_is_twice_as_long_on_the_host_at_most(name: str) -> None:
    units, numbers = HOSTS[name]
    check = checks._host_time_check(profile(*units))
    assert (check.id, check.ok, check.withdraws) == ("host", not numbers, ("compute", "lead-in"))
    assert ", ".join(re.findall(r"#\d+", check.evidence.partition(";")[0])) == numbers
    assert name != "the longest of two" or "#2 took" in check.evidence


@pytest.mark.parametrize(("place", "ok"), [(0, False), (1, True)])
def test_the_mark_of_the_last_step_of_a_window_may_last_until_the_next_rollout(place: int, ok: bool) -> None:
    units = [unit(number, host=900 if number == place else 100, compute=100) for number in range(2)]
    assert checks._host_time_check(profile(*units, metadata=Metadata(raw={}))).ok == ok


@pytest.mark.parametrize(
    ("rows", "ok"),
    [
        (None, True), ({}, True), ({"1": {}}, True), ({"1": {"communication_not_overlapped_ns": 5, "communication_ns": 5}}, True),
        ({"1": {"communication_ns": 5}}, True), ({"1": {"communication_not_overlapped_ns": 6, "communication_ns": 5}}, False),
        ({"1": {}, "": {"communication_not_overlapped_ns": 1}}, False),
    ],
)  # fmt: skip
def test_no_more_communication_is_exposed_than_there_is(rows: dict[str, dict[str, int]] | None, ok: bool) -> None:
    check = checks._exposed_communication_check(profile(vendor=rows))
    assert (check.id, check.ok) == ("exposed", ok)
    assert ok or check.withdraws == checks._COMMUNICATION


def trace(*tasks: tuple[int, int, str], **fields: object) -> RankTrace:
    made = RankTrace("a", "torch")
    for begin, end, kind in tasks:
        made.add_task(begin, end, kind, "k", "stream 7", 0)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("tasks", "vendor", "ok"),
    [
        ([(0, 100, "compute")], 100, True), ([(0, 100, "compute")], 98, True), ([(0, 100, "compute")], 97, False),
        ([(0, 98, "compute")], 100, True), ([(0, 97, "compute")], 100, False), ([(0, 60, "compute"), (50, 100, "compute")], 100, True),
        ([(0, 100, "compute"), (20, 60, "compute")], 100, True), ([(0, 60, "compute"), (60, 100, "copy")], 60, True),
        ([(0, 50, "compute"), (60, 110, "compute")], 100, True), ([(0, 60, "communication"), (10, 60, "compute")], 50, True),
    ],
)  # fmt: skip
def test_the_vendor_counts_the_same_computing_time(tasks: list[tuple[int, int, str]], vendor: int, ok: bool) -> None:
    (check,) = checks._computing_time_check(trace(*tasks, vendor_computing_ns=vendor))
    assert (check.id, check.ok, check.withdraws) == ("computing", ok, checks.EVERY)
    assert [*checks._computing_time_check(trace(*tasks))] == []


@pytest.mark.parametrize(
    ("launches", "lost", "fails"), [(100, 5, False), (100, 6, True), (0, 0, False), (100, 0, False)]
)
def test_launches_without_a_kernel_withdraw_all(launches: int, lost: int, fails: bool) -> None:
    found = [*checks._lost_kernels_check(trace((0, 9, "compute"), kernel_launches=launches, lost_kernels=lost))]
    assert [(check.id, check.ok, check.withdraws) for check in found] == [("lost", False, checks.EVERY)] * fails
    unlinked = [(0, 9, "compute")] * launches
    assert [*checks._lost_kernels_check(trace(*unlinked, kernel_launches=launches, lost_kernels=launches))] == []
    all_lost = [*checks._lost_kernels_check(trace(kernel_launches=launches, lost_kernels=launches))]
    assert [check.id for check in all_lost] == ["lost"] * bool(launches)
    fewer = [*checks._lost_kernels_check(trace(*unlinked[1:], kernel_launches=launches, lost_kernels=launches))]
    assert [check.id for check in fewer] == ["lost"] * bool(launches)


def test_unknown_events_withdraw_all_without_a_device() -> None:
    task = (0, 9, "compute")
    assert [*checks._unknown_events_check(trace(task))] == []
    (with_device,) = checks._unknown_events_check(trace(task, unread=Counter(a=1)))
    (without,) = checks._unknown_events_check(trace(unread=Counter(a=1)))
    assert [(check.id, check.ok, check.withdraws) for check in (with_device, without)] == [
        ("events", False, ()), ("events", False, checks.EVERY)
    ]  # fmt: skip


def segment(begin: int, end: int, first: int = 0, tasks: int = 1, *, marked: bool = True) -> Segment:
    mark = Mark("ProfilerStep#", "x", begin, end, 0) if marked else None
    return Segment(begin, end, mark, first=first, tasks=tasks)


@pytest.mark.parametrize(
    ("segments", "ok"),
    [
        ([], True), ([segment(0, 10, 1), segment(10, 20, 2)], True), ([segment(0, 1_011, 1), segment(10, 20, 2)], False),
        ([segment(0, 1_011, 1, marked=False), segment(10, 20, 2)], True), ([segment(0, 10, 5), segment(10, 20, 4)], False),
        ([segment(0, 10, 5), segment(10, 20, 5)], True), ([segment(0, 10, 5), segment(10, 20, 4, 0)], True),
        ([segment(0, 10, 5, 0), segment(10, 20, 4)], True),
    ],
)  # fmt: skip
def test_units_do_not_overlap(segments: list[Segment], ok: bool) -> None:
    check = checks._overlap_check(segments)
    assert (check.id, check.ok, check.withdraws) == ("overlap", ok, checks.EVERY)


@pytest.mark.parametrize(("count", "more"), [(1, ""), (5, ""), (6, "1"), (9, "4")])
def test_five_numbers_are_named(count: int, more: str) -> None:
    text = checks._numbers(range(count))
    assert text.startswith(", ".join(f"#{number}" for number in range(min(count, 5))))
    assert ("#5" in text, f"and {more} more" in text) == (False, bool(more))


@pytest.mark.parametrize(
    ("only", "numbers", "kernels"),
    [(None, [1, 2, 3], True), ((1, 4), [1, 2, 3], True), ((2, 3), [2], False), ((1, 3), [1, 2], False)],
)
def test_of_tables_the_units_that_were_asked_for_are_kept(
    only: tuple[int, int] | None, numbers: list[int], kernels: bool
) -> None:
    made = checks.check_tables(profile(unit(1), unit(2), unit(3), kernels=("k",)), [], only)
    assert [one.number for one in made.units] == numbers
    assert bool(made.kernels) == kernels
    assert [check.id for check in made.checks] == ["launches", "exposed"]
    doubted = checks.check_tables(profile(unit(1)), ["x"], only)
    assert doubted.checks[-1] == Check("facts", False, "x", ())


@pytest.mark.parametrize(("total", "share"), [(2_400_000, "50.0 %"), (1_000_000, "100.0 %")])
def test_the_evidence_tells_by_how_much_the_clocks_differ(total: int, share: str) -> None:
    """The two early kernels begin 24 µs early in sum."""
    check = checks._clock_check(Attribution(profile(unit(compute=total)), (), Launches(100, 100, 2, 24_000)))
    assert "2 of 100 kernels begin more than 10 µs before" in check.evidence
    assert "differ by about 12 µs" in check.evidence
    assert f"up to {share} of" in check.evidence
    fine = checks._clock_check(Attribution(profile(unit(compute=total)), (), Launches(100, 100)))
    assert "more than 10 µs before" in fine.evidence
