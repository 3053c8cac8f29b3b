"""A window that was saved in pieces, read as one: every number as in a trace that was saved at once."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from patcher.cli import rlpatch
from patcher.traces import folders, formats, model
from patcher.traces.analysis import join_windows
from patcher.traces.analysis.pieces import (
    _joined_checks,
    _joined_gaps,
    _joined_kernel_uses,
    _joined_lanes,
    _joined_replays,
    _known_sum,
    _prompt_share,
    _sum_rows,
)
from patcher.traces.measured import KernelUse, OperatorRate
from patcher.traces.sidecar import metadata_from
from tests.patcher.traces.recorded import MS, steps
from tests.patcher.workers.maker import Saved

NAME = "node1_dp0_rank0_4711.{}.pt.trace.json"
LENGTHS = (4, 3, 2)


def reported(*words: str | Path) -> dict[str, Any]:
    result = CliRunner().invoke(rlpatch, [str(word) for word in ("report", "--json", *words)])
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout)["result"])


def record(saved: Saved, number: int, first: int, count: int, **more: Any) -> Path:
    """The ``number``-th piece, as a probe leaves it."""
    path = steps(count, first=first, late={first + 1: 5 * MS}).torch(saved.path / NAME.format(number))
    told = {"window": "30:39", "piece": number, "why": f"piece {number}, recorded", **more}
    file = saved.facts(path, units=range(first, first + count), **told)
    content = json.loads(file.read_text())
    for unit in content["units"]:
        unit["uncounted"] = 2 * (unit["number"] >= 34)
    if number > 1:
        content["units"][0]["profiler_start"] = True
    file.write_text(json.dumps(content))
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path / "traces")


@pytest.fixture
def pieces(saved: Saved) -> list[Path]:
    firsts = [30 + sum(LENGTHS[:at]) for at in range(len(LENGTHS))]
    last = {"why": "complete, recorded 9 of 9"}
    return [
        record(saved, number, first, count, **(last if number == len(LENGTHS) else {}))
        for number, (first, count) in enumerate(zip(firsts, LENGTHS, strict=True), 1)
    ]


def test_all_units_are_in_one_profile_and_sums_are_those_of_the_pieces(pieces: list[Path], saved: Saved) -> None:
    each = [reported(piece)["captures"][0] for piece in pieces]
    (whole,) = reported(saved.path)["captures"]
    assert [unit["number"] for unit in whole["units"]] == [*range(30, 39)]
    assert [unit["device_ns"] for unit in whole["units"]] == [
        unit["device_ns"] for one in each for unit in one["units"]
    ]
    for field, key in (("kernels", "name"), ("operators", "name")):
        names = {row[key] for one in each for row in one[field]}
        assert {row[key] for row in whole[field]} == names
        for row in whole[field]:
            alike = [other for one in each for other in one[field] if other[key] == row[key]]
            assert (row["calls"], row["ns"]) == (sum(r["calls"] for r in alike), sum(r["ns"] for r in alike))
    assert sum(gap["ns"] for gap in whole["gaps"]) == sum(gap["ns"] for one in each for gap in one["gaps"])
    assert whole["pieces"] == [str(piece) for piece in pieces]
    assert whole["source"] == str(pieces[0])
    assert [check["id"] for check in whole["checks"]] == [check["id"] for check in each[0]["checks"]]
    assert whole["facts"]["why"].startswith("complete")


def test_the_uncounted_iterations_before_a_piece_are_known_from_the_one_before(pieces: list[Path]) -> None:
    (alone,) = reported(pieces[1])["captures"]
    (whole,) = reported(*pieces)["captures"]
    assert alone["units"][0]["uncounted"] == 0
    assert {unit["number"]: unit["uncounted"] for unit in whole["units"] if unit["uncounted"]} == {34: 2}


def test_the_units_that_carry_the_profilers_start_are_named_and_blamed_for_nothing(pieces: list[Path]) -> None:
    said = CliRunner().invoke(rlpatch, ["report", *map(str, pieces), "-v"]).stdout
    assert "saved in 3 traces" in said
    assert "#34, #37 include the profiler's start-up cost" in said
    assert "Step 34" not in said
    assert "Step 37" not in said


@pytest.mark.parametrize("units", [5, None, "30", [5, None], [{"number": 34, "uncounted": "two"}]])
def test_units_of_another_form_end_in_no_traceback(units: Any, pieces: list[Path], saved: Saved) -> None:
    file = pieces[1].with_name(f"{pieces[1].name}.rlpatch.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "units": units}))
    (profile,) = reported(saved.path)["captures"]
    assert [unit["number"] for unit in profile["units"]] == [*range(30, 39)]


@pytest.mark.parametrize("missing", [0, 1])
def test_a_piece_that_is_missing_splits_the_window(pieces: list[Path], missing: int) -> None:
    profiles = [profile for at, piece in enumerate(pieces) if at != missing for profile in [_profile(piece)]]
    counts = [[unit.number for unit in one.units] for one in join_windows(profiles)]
    assert counts == ([[*range(34, 39)]] if missing == 0 else [[*range(30, 34)], [37, 38]])


def _profile(path: Path) -> Any:
    from patcher.traces.analysis import attributed

    (timeline,) = formats.read(path)
    return attributed(timeline, None, ()).profile


def test_pieces_of_other_processes_and_windows_stay_apart(saved: Saved) -> None:
    others: tuple[dict[str, Any], ...] = ({}, {"pid": 9}, {"rollout": 1}, {"window": "30:99"}, {"rank": 3})
    for number, more in enumerate(others, 1):
        record(saved, number, 30 + number, 1, **{"piece": 1 + (number > 1), **more})
    assert len(reported(saved.path)["captures"]) == 5


def test_a_comparison_takes_the_pieces_of_a_side_for_one_window(pieces: list[Path], tmp_path: Path) -> None:
    other = steps(9).torch(tmp_path / "other" / NAME.format(1))
    words = ["compare", "--json", "--force", *map(str, pieces), "--", str(other)]
    before, after = (
        json.loads(CliRunner().invoke(rlpatch, words).stdout)["result"][side] for side in ("before", "after")
    )
    assert (before["units"], after["units"], len(before["sources"])) == (9, 9, 1)


def test_traces_shows_them_in_one_row(pieces: list[Path], saved: Saved) -> None:
    (group,) = folders.trace_groups(saved.path)
    assert (group.recorded_steps, group.closed, group.pieces, group.ranks) == ("30:39", "complete", 3, (0,))
    assert [trace.path for trace in group.traces] == pieces
    said = CliRunner().invoke(rlpatch, ["traces", str(saved.path)]).stdout
    assert "saved as 3 traces, one after the other; `rlpatch report` reads them as one recording window" in said


def test_a_trace_that_is_being_compressed_is_one(pieces: list[Path], saved: Saved) -> None:
    packed = steps(4).torch(saved.path / f"{NAME.format(1)}.gz")
    saved.facts(packed, units=range(30, 34), window="30:39", piece=1)
    (group,) = folders.trace_groups(saved.path)
    assert [trace.path.name for trace in group.traces] == [packed.name, *(piece.name for piece in pieces[1:])]
    pieces[0].unlink()
    assert reported(pieces[0])["captures"][0]["source"] == str(packed), "by the name that the log has"


@pytest.mark.parametrize("form", ["text", "db"])
def test_the_pieces_of_an_npu_are_one_window_too(form: str, saved: Saved) -> None:
    for number, first, count in ((1, 30, 4), (2, 34, 3)):
        folder = saved.path / f"node1_dp0_rank0_4711_4711_2026112604174127{number}_ascend_pt"
        getattr(steps(count, first=first), form)(folder)
        saved.facts(folder, units=range(first, first + count), window="30:37", piece=number, backend="npu")
    (profile,) = reported(saved.path)["captures"]
    assert [unit["number"] for unit in profile["units"]] == [*range(30, 37)]
    assert len(profile["pieces"]) == 2


def test_kernels_by_shape_have_the_means_over_all_calls() -> None:
    uses = [
        KernelUse("MatMul", "AI_CORE", "1,2", "FP16", 20, calls, ns, {"aic_mac": share}, share, "nothing")
        for calls, ns, share in ((1, 10, 0.9), (3, 50, 0.5))
    ]
    uses[0] = replace(uses[0], ratios={**uses[0].ratios, "aic_fixpipe": 0.8})
    other = KernelUse("Add", "AI_VECTOR", "1,2", "FP16", 20, 1, 70, {}, None, None)
    first, second = (
        model.RankProfile("piece", "ascend-text", 0, "Ascend", (), kernel_uses=rows)
        for rows in ((uses[0], other), (uses[1],))
    )
    add, matmul = _joined_kernel_uses([first, second])
    assert (add, matmul.calls, matmul.ns) == (other, 4, 60)
    assert matmul.ratios == {"aic_mac": pytest.approx(0.6), "aic_fixpipe": pytest.approx(0.2)}
    assert matmul.cube_utilization == pytest.approx(0.6)
    assert matmul.bound == "nothing"


def test_replays_are_counted_over_all_pieces() -> None:
    assert _joined_replays([]) is None
    joins = [model.ReplayJoin(3, 3), model.ReplayJoin(2, 0, ("no capture",)), model.ReplayJoin(1, 0, ("no capture",))]
    assert _joined_replays(joins) == model.ReplayJoin(6, 3, ("no capture",))


def test_the_drawn_units_are_named_by_what_they_are_in_the_whole_window() -> None:
    units = [
        model.RecordedUnit(number=at, host_ns=1, kernels=1, compute_ns=ns) for at, ns in enumerate((5, 6, 7, 8, 90))
    ]
    drawn = [
        model.RankProfile("piece", "torch", 0, "GPU", (), lanes=(model.Lanes(at, "median", units[at].device_ns, {}),))
        for at in (0, 1, 3, 4)
    ]
    assert [(lanes.number, lanes.why) for lanes in _joined_lanes(drawn[1::2], units)] == [
        (1, "typical"),
        (4, "slowest"),
    ]
    assert [(lanes.number, lanes.why) for lanes in _joined_lanes(drawn[::2], units)] == [(3, "typical")]
    assert [(lanes.number, lanes.why) for lanes in _joined_lanes(drawn[1:], units[:3])] == [(1, "median")]
    assert [(lanes.number, lanes.why) for lanes in _joined_lanes(drawn[3:], units)] == [(4, "typical")]
    assert not [*_joined_lanes([], units)]
    assert not [*_joined_lanes(drawn, [])]


@pytest.mark.parametrize(
    ("rows", "joined_rows"),
    [((None, None), None), (({}, None), None), (({"3": {"a": 1}}, None), {"3": {"a": 1}}), (({"3": {}}, {"4": {}}), {"3": {}, "4": {}})],
)  # fmt: skip
def test_the_vendors_sums_are_those_of_all_pieces(rows: tuple[Any, ...], joined_rows: Any) -> None:
    metadata = [metadata_from({"piece": number, "units": []}) for number in (1, 2)]
    unit = model.RecordedUnit(number=3, host_ns=1, kernels=1)
    pieces = [
        model.RankProfile("a", "ascend-text", 0, "Ascend", (unit,), vendor=row, metadata=facts)
        for row, facts in zip(rows, metadata, strict=True)
    ]
    assert [profile.vendor for profile in join_windows(pieces)] == [joined_rows]


def test_gaps_and_checks_of_pieces_are_put_together_and_shares_are_weighed() -> None:
    def gap(ns: int, unit: int, unit_ns: int, **more: Any) -> model.FreeGap:
        values = {"before": "a", "after": "b", "part": "free_waiting_ns", "call_ns": ns // 2, **more}
        return model.FreeGap(
            kind="place", ns=ns, count=2, units=1, unit=unit, unit_ns=unit_ns, longest_ns=unit_ns, begin_ns=unit,
            spots={unit: (1, ns)}, **values,
        )  # fmt: skip

    def piece(count: int, share: float | None, failed: bool, *gaps: model.FreeGap) -> model.RankProfile:
        checks = (model.Check("clocks", not failed, f"{count}"), model.Check("whole", True, f"fine {count}"))
        units = (model.RecordedUnit(number=count, host_ns=1, kernels=count),)
        return model.RankProfile("a", "torch", 0, "GPU", units, checks=checks, gaps=gaps, prompt_share=share)

    pieces = [
        piece(10, 0.5, False, gap(40, 3, 30), gap(60, 3, 60, after="c")), piece(30, 0.9, True, gap(50, 7, 50)),
        piece(60, None, True, gap(5, 9, 5, call="wait")),
    ]  # fmt: skip
    gaps = [
        (one.ns, one.count, one.units, one.unit, one.unit_ns, one.call_ns, one.spots) for one in _joined_gaps(pieces)
    ]
    assert gaps == [
        (90, 4, 2, 7, 50, 45, {3: (1, 40), 7: (1, 50)}), (60, 2, 1, 3, 60, 30, {3: (1, 60)}), (5, 2, 1, 9, 5, 2, {9: (1, 5)})
    ]  # fmt: skip
    checks = [(one.id, one.ok, *re.findall(r"\d+", one.evidence)) for one in _joined_checks(pieces)]
    assert checks == [("clocks", False, "30", "2", "3"), ("whole", True, "10", "3")]
    assert _prompt_share(pieces) == pytest.approx(0.8)
    assert _prompt_share(pieces[::-1]) is None


def test_what_one_piece_does_not_know_no_sum_knows() -> None:
    assert _known_sum([1, 2]) == 3
    assert _known_sum([1, None]) is None


def test_rows_of_the_pieces_are_summed_by_all_that_tells_them_apart() -> None:
    def rate(operator: str, rows: int, calls: int, ns: int, least: int | None = 5, **more: Any) -> OperatorRate:
        values = {"types": ("float",), "flops": 7, "bytes": 9, "bound": "memory", **more}
        return OperatorRate(
            operator, ((rows, 8),), values["types"], calls, calls, ns, values["flops"], values["bytes"], least, values["bound"]
        )  # fmt: skip

    def piece(*rates: OperatorRate) -> model.RankProfile:
        return model.RankProfile("a", "torch", 0, "H100", (), rates=rates)

    pieces = [
        piece(rate("mm", 4, 1, 10), rate("mm", 8, 2, 50)),
        piece(rate("mm", 4, 2, 30), rate("mm", 8, 1, 5, None)),
        piece(rate("mm", 4, 1, 9, types=("half",))),
    ]
    how: dict[str, Any] = {"calls": sum, "kernels": sum, "ns": sum, "least_ns": _known_sum}
    found = _sum_rows(pieces, "rates", ("operator", "shapes", "types", "bound", "flops", "bytes"), how)
    assert [(row.shapes, row.types, row.calls, row.kernels, row.ns, row.least_ns) for row in found] == [
        (((8, 8),), ("float",), 3, 3, 55, None), (((4, 8),), ("float",), 3, 3, 40, 10), (((4, 8),), ("half",), 1, 1, 9, 5),
    ]  # fmt: skip
