"""Which findings a report keeps, and their order, as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from patcher.traces.analysis import priorities
from patcher.traces.analysis.ranks import Meetings
from patcher.traces.model import Diagnosis, FreeGap, HostRange, Rank, RankProfile, RecordedUnit, SlowSteps


def finding(id_: str, saving: int | None, severity: str = "warning", **fields: object) -> Diagnosis:
    return replace(Diagnosis(id_, severity, "", saving, "exact"), **fields)  # type: ignore[arg-type]


def profile(source: str, late: int, units: int = 2) -> RankProfile:
    recorded = tuple(RecordedUnit(number=at, host_ns=9, kernels=1, free_host_late_ns=late) for at in range(units))
    return RankProfile(source, "torch", 0, "H100", recorded)


ORDERS: dict[str, tuple[list[Diagnosis], list[tuple[str, str]]]] = {
    "by saving": ([finding("a", 1), finding("b", 3), finding("c", 2)], [("b", "problem"), ("c", "warning"), ("a", "warning")]),
    "by severity first": ([finding("a", 9, "note"), finding("b", 3)], [("b", "problem"), ("a", "note")]),
    "notes are no problem": ([finding("a", None, "note"), finding("b", 3, "note")], [("b", "note"), ("a", "note")]),
    "another's time comes later": ([finding("a", 9, same_as="b"), finding("b", 3)], [("b", "problem"), ("a", "warning")]),
    "equal savings keep their order": ([finding("a", 3), finding("b", 3)], [("a", "problem"), ("b", "warning")]),
    "one without a saving": ([finding("a", None), finding("b", 1)], [("b", "problem"), ("a", "warning")]),
    "a saving of nothing": ([finding("a", 0), finding("b", None)], [("a", "problem"), ("b", "warning")]),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERS)
def test_the_heaviest_warning_is_the_problem_and_comes_first(name: str) -> None:
    findings, expected = ORDERS[name]
    assert [(one.id, one.severity) for one in priorities._sort_by_severity(findings, {})] == expected


@pytest.mark.parametrize(
    ("id_", "culprit", "share", "told", "first"),
    [
        ("dispatch", "", 51, True, "compute"), ("dispatch", "", 51, False, "dispatch"), ("dispatch", "place", 79, True, "dispatch"),
        ("dispatch", "place", 80, True, "compute"), ("waiting", "", 99, True, "waiting"), ("copies", "", 99, True, "copies"),
        ("idle-unknown", "", 51, True, "compute"), ("idle-unknown", "", 51, False, "idle-unknown"),
        ("lead-in", "place", 60, True, "lead-in"), ("lead-in", "place", 74, True, "lead-in"), ("lead-in", "place", 75, True, "compute"), ("lead-in", "", 61, False, "lead-in"),
    ],
)  # fmt: skip
def test_computing_outweighs_host_bound_time_without_a_place_and_the_time_before_the_first_kernel(
    id_: str, culprit: str, share: int, told: bool, first: str
) -> None:
    late = 100 - share
    unit = RecordedUnit(number=0, host_ns=9, kernels=1, compute_ns=share, free_host_late_ns=late, lead_in_ns=20)
    findings = [finding(id_, 20, source="x", culprit=culprit), finding("copies", 6, source="x")]
    findings += [finding("compute", None, "note", source="x" if told else "y")]
    ordered = priorities._sort_by_severity(findings, {"x": RankProfile("x", "torch", 0, "H100", (unit,))})
    problem = next((one.id for one in ordered if one.severity == "problem"), "compute")
    assert problem == first


STARTS: dict[str, tuple[tuple[int, int, int, int], int, int | None, bool]] = {
    "a late start": ((70, 10, 10, 20), 1, 20, True), "a quarter in all": ((70, 9, 1, 20), 1, 20, True), "less": ((70, 9, 0, 20), 1, 20, False),
    "a device that computes for 3/4": ((75, 20, 5, 20), 1, 20, False), "for half of all": ((60, 20, 20, 20), 1, 20, False),
    "several steps": ((70, 10, 10, 20), 2, 20, False), "a host that waits": ((70, 10, 10, 20), 1, None, False),
}  # fmt: skip


@pytest.mark.parametrize("name", STARTS)
def test_a_late_start_has_the_time_in_the_step_too_in_which_the_device_waits_for_the_host(name: str) -> None:
    (computing, late, blocked, before), steps, saving, is_late = STARTS[name]
    unit = RecordedUnit(
        number=0, host_ns=9, kernels=1, compute_ns=computing, free_host_late_ns=late, free_blocked_ns=blocked,
        lead_in_ns=before, copy_ns=100 - computing - late - blocked,
    )  # fmt: skip
    findings = [
        finding("dispatch", late, source="x"), finding("launch-blocked", blocked, source="x"), finding("copies", 5, source="x"),
        finding("lead-in", saving, "warning" if saving else "note", source="x"), finding("compute", None, "note", source="x"),
    ]  # fmt: skip
    made = RankProfile("x", "torch", 0, "H100", (unit,) * steps)
    kept = priorities.select_findings(findings, [made], Meetings((), True, {}, frozenset(), ()))
    assert any("which is no part of the step" in one.title for one in kept) == is_late
    if is_late:
        assert (kept[0].id, kept[0].severity, kept[0].saving_ns) == ("lead-in", "problem", late + blocked + before)
        assert {one.id for one in kept if one.same_as == "lead-in"} == {"dispatch", "launch-blocked"}


@pytest.mark.parametrize(("culprit", "kept"), [("DataLoader", True), ("aten::arange", False), ("", False)])
def test_the_advice_on_a_late_start_is_on_a_call_or_frame_but_not_on_an_operator(culprit: str, kept: bool) -> None:
    unit = RecordedUnit(number=0, host_ns=9, kernels=1, compute_ns=70, free_host_late_ns=30, lead_in_ns=20)
    start = finding("lead-in", 20, source="x", culprit=culprit, advice="load in parallel")
    (joined,) = priorities._join_late_start([start], {"x": RankProfile("x", "torch", 0, "H100", (unit,))})
    assert (joined.advice == "load in parallel") == kept


def test_a_late_start_of_a_straggler_is_no_headline() -> None:
    unit = RecordedUnit(number=0, host_ns=9, kernels=1, compute_ns=70, free_host_late_ns=30, lead_in_ns=20)
    findings = [finding("slow-rank", 40, source="x", parts={"waiting": 40}), finding("lead-in", 20, source="y")]
    ranks = tuple(Rank(at, "xy"[at], 1, 100, 3, 5, ns, 1, 0) for at, ns in enumerate((5, 99)))
    made = [RankProfile(source, "torch", at, "H100", (unit,)) for at, source in enumerate("xy")]
    kept = priorities.select_findings(findings, made, Meetings(ranks, True, {}, frozenset(), ()))
    assert [(one.id, one.saving_ns) for one in kept] == [("slow-rank", 40), ("lead-in", 20)]


def test_of_each_id_the_largest_saving_is_kept() -> None:
    findings = [
        finding("a", 1),
        finding("b", None),
        finding("a", 3, evidence="x"),
        finding("a", 3, evidence="y"),
        finding("b", 0),
    ]
    assert [(one.id, one.saving_ns, one.evidence) for one in priorities._largest_by_id(findings)] == [
        ("a", 3, "x"),
        ("b", None, ""),
    ]


def test_findings_of_one_profile_and_of_all_are_kept() -> None:
    findings = [
        finding("a", 1, source="x"),
        finding("b", 1, source="y"),
        finding("c", 1),
        finding("d", None, source="y"),
        finding("e", 0, source="y"),
    ]
    assert [one.id for one in priorities._of_source(findings, "x")] == ["a", "c", "d", "e"]


ACROSS_RANKS: dict[str, tuple[str, list[int], set[tuple[str, str]]]] = {
    "ranks that do not meet": ("communication", [], {("communication", "x"), ("dispatch", "y"), ("copies", "y")}),
    "ranks that meet": ("communication", [5, 5], {("communication", "x"), ("dispatch", "x"), ("copies", "x")}),
    "a straggler": ("slow-rank", [5, 99], {("slow-rank", "x"), ("dispatch", "y"), ("copies", "y")}),
    "an outlier beside a straggler": (
        "communication",
        [5, 99],
        {("communication", "x"), ("dispatch", "x"), ("copies", "x")},
    ),
}


@pytest.mark.parametrize("name", ACROSS_RANKS)
def test_of_ranks_that_meet_the_findings_of_one_are_kept(name: str) -> None:
    waiting, awaited, kept = ACROSS_RANKS[name]
    findings = [
        finding(waiting, 9, source="x", parts={"transfer": 9}), finding("communication", 8, source="y", parts={"transfer": 1}),
        finding("dispatch", 1, source="x"), finding("dispatch", 2, source="y"),
        finding("copies", 1, source="x"), finding("copies", 2, source="y"),
    ]  # fmt: skip
    ranks = tuple(Rank(at, "xy"[at], 1, 100, 3, 5, ns, 1, 0) for at, ns in enumerate(awaited))
    met = Meetings(ranks, True, {}, frozenset(), ())
    found = {
        (one.id, one.source) for one in priorities.select_findings(findings, [profile("x", 1), profile("y", 2)], met)
    }
    assert found == kept
    assert priorities.select_findings([], [], met) == []


@pytest.mark.parametrize(
    ("saving", "others", "same"),
    [
        (10, [5, 5], True), (30, [5, 5], False), (29, [5, 5], True), (10, [20, 20], False), (10, [], False), (None, [5], False),
        (10, [5, 100], False), (10, [5, 5, 100], True), (10, [15], False), (10, [14], True),
    ],
)  # fmt: skip
def test_a_finding_of_the_straggler_is_what_the_others_wait_for_if_most_of_it_is_beyond_theirs(
    saving: int | None, others: list[int], same: bool
) -> None:
    """The straggler has 20 ns in the mean unit, the others have their median."""
    late = finding("dispatch", saving, source="slow")
    profiles = [profile("slow", 20), *(profile(f"rank{at}", ns) for at, ns in enumerate(others))]
    assert priorities._mark_cause_of_waiting(late, profiles, "slow").same_as == ("slow-rank" if same else "")


@pytest.mark.parametrize(
    ("part", "finding_id", "source", "same"),
    [
        ("free_host_late_ns", "dispatch", "x", "dispatch"), ("compute_ns", "dispatch", "x", ""), ("free_host_late_ns", "dispatch", "y", ""),
        ("communication_ns", "communication", "x", "communication"), ("communication_ns", "slow-rank", "x", "slow-rank"),
        ("communication_ns", "dispatch", "x", ""), ("compute_ns", "communication", "x", ""),
    ],
)  # fmt: skip
def test_a_slow_unit_is_the_same_time_as_the_finding_on_its_part(
    part: str, finding_id: str, source: str, same: str
) -> None:
    outlier = finding("outlier", 5, source="x", parts={part: 5})
    assert priorities._mark_explained(outlier, [finding(finding_id, 9, source=source)]).same_as == same
    assert (
        priorities._mark_explained(replace(outlier, id="lead-in"), [finding(finding_id, 9, source=source)]).same_as
        == ""
    )


LATE = {"free_host_late_ns": 5}


@pytest.mark.parametrize(
    ("saving", "longer", "severity", "id_", "source", "left"),
    [
        (10, 6, "warning", "dispatch", "x", 4), (10, 5, "warning", "dispatch", "x", 10), (10, 6, "note", "dispatch", "x", 10), (5, 9, "warning", "dispatch", "x", 0),
        (10, 6, "warning", "copies", "x", 10), (10, 6, "warning", "communication", "x", 10), (10, 6, "warning", "dispatch", "y", 10), (None, 6, "warning", "dispatch", "x", 0),
    ],
)  # fmt: skip
def test_a_finding_whose_time_is_mostly_in_slow_steps_saves_what_is_left(
    saving: int | None, longer: int, severity: str, id_: str, source: str, left: int
) -> None:
    outlier = finding("outlier", longer, severity, source="x", parts=LATE)
    assert priorities._subtract_slow_steps(finding(id_, saving, source=source), [outlier]).saving_ns == left


@pytest.mark.parametrize(
    ("severity", "saving", "same"), [("warning", 5, "dispatch"), ("warning", 4, ""), ("note", 4, "dispatch"), ("warning", None, "")]
)  # fmt: skip
def test_a_slow_step_is_explained_by_a_finding_that_saves_as_much(severity: str, saving: int | None, same: str) -> None:
    outlier = finding("outlier", 5, severity, source="x", parts=LATE)
    assert priorities._mark_explained(outlier, [finding("dispatch", saving, source="x")]).same_as == same


@pytest.mark.parametrize(
    ("ns", "part", "kind", "saving", "culprit"),
    [
        (21, "free_host_late_ns", "place", 10, "module"), (20, "free_host_late_ns", "place", 15, ""), (21, "copy_ns", "place", 15, ""),
        (21, "free_host_late_ns", "several", 15, ""), (40, "free_latency_ns", "place", 15, "module"),
        (41, "free_blocked_ns", "place", 15, "module"), (40, "free_blocked_ns", "place", 15, ""),
    ],
)  # fmt: skip
def test_a_place_with_over_half_of_the_time_is_named(ns: int, part: str, kind: str, saving: int, culprit: str) -> None:
    """Two steps have 20 ns each; no more is saved at a place than its time in the mean step.

    Launch calls block for 20 ns in all, so that a longer gap has other time, too.
    """
    gap = FreeGap(
        kind=kind, part=part, ns=ns, count=2, units=2, unit=0, unit_ns=ns, longest_ns=ns, begin_ns=0, before="a",
        after="kernel", stream="stream 7", module="module",
    )  # fmt: skip
    units = tuple(replace(unit, free_blocked_ns=10) for unit in profile("x", 20).units)
    found = priorities._name_main_place(finding("dispatch", 15), replace(profile("x", 20), units=units, gaps=(gap,)))
    assert (found.saving_ns, found.culprit) == (saving, culprit)
    assert bool(found.headline) == bool(culprit)
    assert priorities._name_main_place(finding("dispatch", None), profile("x", 20)).saving_ns is None
    assert priorities._name_main_place(finding("dispatch", 15), None) == finding("dispatch", 15)


@pytest.mark.parametrize(
    ("at_first", "elsewhere", "saving", "title"),
    [
        (30, 10, 40, ", mostly while the host was in build"), (40, 4, 40, "at one place: the host was in build for 100 %"),
        (40, 5, 45, ", mostly while the host was in build"),
    ],
)  # fmt: skip
def test_a_call_at_several_places_is_named_with_its_time_at_all_of_them(
    at_first: int, elsewhere: int, saving: int, title: str
) -> None:
    """Computing takes over twice as long, but each gap is one call's: it is the headline."""
    gaps = tuple(
        FreeGap(
            kind="place", part="free_host_late_ns", ns=ns, count=1, units=1, unit=0, unit_ns=ns, longest_ns=ns,
            begin_ns=0, after=after, call="build", call_ns=ns,
        )
        for ns, after in ((at_first, "a"), (elsewhere, "b"))
    )  # fmt: skip
    unit = RecordedUnit(number=0, host_ns=200, kernels=1, free_host_late_ns=50, compute_ns=150)
    busy = RankProfile("x", "torch", 0, "H100", (unit,), gaps=gaps, late_range=HostRange("build", 45, 45))
    late, computing = finding("dispatch", 50, source="x"), finding("compute", None, "note", source="x")
    first = priorities.select_findings([computing, late], [busy], Meetings((), True, {}, frozenset(), ()))[0]
    assert (first.id, first.severity, first.saving_ns, first.culprit) == ("dispatch", "problem", saving, "build")
    assert title in first.headline


@pytest.mark.parametrize(
    ("id_", "part", "call", "within", "unknown"),
    [
        ("dispatch", "free_host_late_ns", "", False, True), ("dispatch", "free_host_late_ns", "load", False, False),
        ("dispatch", "free_host_late_ns", "", True, False), ("dispatch", "free_latency_ns", "", False, False),
        ("lead-in", "lead_in_ns", "", False, True), ("lead-in", "lead_in_ns", "load", False, False),
    ],
)  # fmt: skip
def test_the_headline_says_where_no_event_tells_what_the_host_did(
    id_: str, part: str, call: str, within: bool, unknown: bool
) -> None:
    gap = FreeGap(
        kind="place", part=part, ns=20, count=1, units=1, unit=0, unit_ns=20, longest_ns=20, begin_ns=0, before="a",
        after="kernel", stream="stream 7", call=call, call_ns=20 * bool(call), operator="aten::mm" * within, within=within,
    )  # fmt: skip
    unit = RecordedUnit(number=0, host_ns=20, kernels=1, **{part: 20})  # type: ignore[arg-type]
    found = priorities._name_main_place(finding(id_, 20), RankProfile("x", "torch", 0, "H100", (unit,), gaps=(gap,)))
    assert "mostly at one place: " in found.headline
    assert found.headline.endswith("; no single recorded event covers half of this time") == unknown
    profile = RankProfile("x", "torch", 0, "H100", (unit,), gaps=(replace(gap, unrecorded=True),))
    found = priorities._name_main_place(finding(id_, 20), profile)
    assert found.headline.endswith("; almost nothing was recorded on the host during this time") == unknown


@pytest.mark.parametrize(
    ("id_", "culprit", "saving", "named"),
    [("slow-rank", "rank 1", 6, True), ("slow-rank", "rank 1", 5, False), ("slow-rank", "", 6, False), ("outlier", "rank 1", 6, False)],
)  # fmt: skip
def test_the_headline_on_a_straggler_names_what_explains_over_half_of_the_waiting(
    id_: str, culprit: str, saving: int, named: bool
) -> None:
    waiting = finding(id_, 10, culprit=culprit)
    cause = finding("host-idle", saving, same_as="slow-rank", culprit="save", advice="save less")
    found = priorities._name_cause_of_waiting(waiting, [finding("copies", 99), cause], {"": profile("", 1)})
    assert ("host is in save" in found.headline, found.advice) == (named, "save less" if named else "")


@pytest.mark.parametrize(
    ("fields", "numbers", "on_host", "excess", "same"),
    [
        ({}, (3,), None, 11, True), ({}, (3,), None, 10, False), ({}, (3, 4), None, 99, False), ({}, (2,), 3, 99, True), ({}, (3,), 1, 99, False),
        ({}, (3,), 2, 99, True), ({}, (2,), None, 99, True), ({}, (4,), None, 99, False),
        ({"parts": {"communication_ns": 1}}, (3,), None, 99, False), ({"saving_ns": 0}, (3,), None, 99, False),
    ],
)  # fmt: skip
def test_a_slow_step_explains_the_waiting_in_it_with_over_half_of_it(
    fields: dict[str, object], numbers: tuple[int, ...], on_host: int | None, excess: int, same: bool
) -> None:
    """The others wait for 10 ns in each of two steps; the most in step 3, for what a rank does in it or in step 2."""
    slow = replace(finding("outlier", 9, advice="b", slow_steps=SlowSteps(numbers, excess, "c", on_host)), **fields)  # type: ignore[arg-type]
    waiting = finding("slow-rank", 10, source="x", culprit="rank 1", step=3, advice="a")
    profiles = {"x": profile("x", 1)}
    assert priorities._is_slow_step_of_straggler(slow, waiting, profiles) == same
    named = priorities._name_cause_of_waiting(waiting, [slow], profiles)
    before = (numbers[0] if on_host is None else on_host) == 2
    assert (named.headline.endswith(": in step 2, c" if before else ": c"), named.advice) == (
        same,
        "b" if same else "a",
    )
    unknown = replace(slow, slow_steps=SlowSteps(numbers, excess, "", on_host))
    assert not priorities._is_slow_step_of_straggler(unknown, waiting, profiles)
    assert not priorities._is_slow_step_of_straggler(slow, replace(waiting, step=None), profiles)
