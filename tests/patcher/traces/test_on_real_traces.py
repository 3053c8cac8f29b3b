"""Numbers of others on traces of real devices: the vendor's own step times, kineto's annotations, HTA's sums."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from patcher.traces import analysis, folders, formats
from patcher.traces.analysis import ranks
from patcher.traces.analysis.attribution import Attribution
from patcher.traces.model import TITLES, RankProfile
from patcher.traces.rank_trace import RankTrace
from tests.patcher.traces.recorded import SHARED, free_ns, shared

pytestmark = shared
NPU, GPU = SHARED / "npu", SHARED / "gpu"


def attributed(path: Path) -> Attribution:
    (found,) = folders.traces_to_read(path)
    (read,) = formats.read(found)
    return analysis.attributed(read)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("form", "within"), [("text", 200), ("db", 0)])
def test_the_vendor_counts_the_same(form: str, rank: int, within: int) -> None:
    """torch_npu's own arithmetic: in text its times are floats, in db whole nanoseconds."""
    found = attributed(NPU / f"{form}-level1" / f"rank{rank}_ascend_pt").profile
    assert found.vendor is not None
    for unit in found.units:
        vendor = found.vendor[str(unit.number)]
        assert unit.compute_ns + unit.overlap_ns == pytest.approx(vendor["computing_ns"], abs=within)
        assert unit.overlap_ns == pytest.approx(vendor["overlapped_ns"], abs=within)
        assert unit.communication_ns == pytest.approx(vendor["communication_not_overlapped_ns"], abs=within)
        assert unit.communication_ns + unit.overlap_ns == pytest.approx(vendor["communication_ns"], abs=within)
        assert free_ns(unit) + unit.copy_ns == pytest.approx(vendor["free_ns"], abs=within)
        assert unit.device_ns == pytest.approx(vendor["stage_ns"], abs=within)
        assert unit.lead_in_ns == pytest.approx(vendor["preparing_ns"], abs=within)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_vendor_computes_each_kernel_as_long(rank: int) -> None:
    folder = NPU / "text-level1" / f"rank{rank}_ascend_pt"
    with (folder / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").open() as rows:
        known: dict[str, list[float]] = {}
        for row in csv.DictReader(rows):
            if not row["Name"].startswith("hcom_"):
                known.setdefault(row["Type"], []).append(float(row["Duration(us)"]))
    found = {kernel.name: kernel for kernel in attributed(folder).profile.kernels if kernel.kind == "compute"}
    assert {name: kernel.calls for name, kernel in found.items()} == {name: len(times) for name, times in known.items()}
    for name, times in known.items():
        assert found[name].ns / 1000 == pytest.approx(sum(times), abs=0.001 * len(times) + 0.0005)


def test_waiting_for_ranks_is_the_vendors_synchronisation_time() -> None:
    captures = [analysis.checked(*_read(NPU / "text-level1" / f"rank{rank}_ascend_pt")) for rank in (0, 1)]
    (first, _), exact, *_ = ranks.match_collectives(captures)
    output = NPU / "text-level1" / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    (step,) = json.loads((output / "communication.json").read_text()).values()
    told = sum(
        one["Communication Time Info"]["Synchronization Time(ms)"]
        for name, one in step["collective"].items()
        if "hcom_" in name
    )
    assert exact
    assert first.collectives == 4
    assert first.waits_ns / 1e6 == pytest.approx(told, abs=0.01)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("form", ["text", "db"])
def test_no_gain_is_larger_than_what_the_vendor_calls_busy(form: str, rank: int) -> None:
    """Nine tenths of the time in collectives nothing was transferred, and no rank was waited for."""
    found = analysis.checked(*_read(NPU / f"{form}-level1" / f"rank{rank}_ascend_pt"))
    idle = sum(one.idle_ns or 0 for one in found.collectives)
    (finding,) = (one for one in analysis.reported([found]).findings if one.id == "collective-idle")
    assert 0.99 * idle < finding.parts["idle"] <= idle, "some of it is hidden"
    assert finding.saving_ns == finding.parts["idle"]
    assert sum(finding.parts.values()) == found.sum_ns("communication_ns")


def _read(path: Path) -> tuple[RankTrace, Attribution]:
    (found,) = folders.traces_to_read(path)
    (timeline,) = formats.read(found)
    return timeline, analysis.attributed(timeline)


@pytest.mark.parametrize("name", ["tracelens-mi300-qwen.json.gz"])
def test_units_end_where_kineto_says_that_they_do(name: str) -> None:
    events = json.loads(gzip.decompress((GPU / name).read_bytes()))["traceEvents"]
    known = {
        one["name"]: one for one in events if one.get("cat") == "gpu_user_annotation" and "ProfilerStep#" in one["name"]
    }
    for unit in attributed(GPU / name).profile.units:
        begin, length = (round(known[unit.name][key] * 1000) for key in ("ts", "dur"))
        assert abs(unit.begin_ns + unit.lead_in_ns - begin) <= 1, "it leaves the lead-in out"
        assert abs(unit.begin_ns + unit.lead_in_ns + unit.device_ns - begin - length) <= 1


def test_kernels_of_the_type_other_are_counted_as_the_vendor_counts_them() -> None:
    profile = analysis.checked(*_read(SHARED / "2026-11" / "npu_timeline_advice"))
    (unit,) = profile.units
    assert unit.kernels == 276, "274 kernels, and two copies"
    assert unit.compute_ns == pytest.approx(1_788_250, abs=300)
    assert next(check.ok for check in profile.checks if check.id == "computing")


LINKED = [
    "nccl_data.json.gz",
    "hta-trace_diff-control.json.gz",
    "hta-trace_diff-test.json.gz",
    "tracelens-mi300-qwen.json.gz",
]


@pytest.mark.parametrize("name", LINKED)
def test_every_task_of_a_unit_has_its_launch_and_belongs_to_one(name: str) -> None:
    found = attributed(GPU / name)
    assert found.launches.linked == found.launches.tasks
    assert sum(unit.kernels for unit in found.profile.units) == sum(kernel.calls for kernel in found.profile.kernels)


def unions(path: Path, begin: int, end: int) -> tuple[int, int, int]:
    """Busy, computing and communicating time by set arithmetic on whole microseconds: nothing of ours in it."""
    busy: dict[str, set[int]] = {"compute": set(), "communication": set(), "copy": set()}
    for one in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            kind = (
                "copy" if one["cat"] != "kernel" else "communication" if one["name"].startswith("nccl") else "compute"
            )
            busy[kind].update(range(max(one["ts"], begin), min(one["ts"] + one["dur"], end)))
    return len(set().union(*busy.values())), len(busy["compute"]), len(busy["compute"] & busy["communication"])


@pytest.mark.parametrize("name", LINKED[1:3])
def test_the_parts_are_unions_of_what_ran(name: str) -> None:
    """Traces in whole microseconds, on which HTA's temporal breakdown is right to the microsecond, too."""
    units = attributed(GPU / name).profile.units
    for unit in units[1:2]:
        begin = unit.begin_ns // 1000
        busy, computing, both = unions(GPU / name, begin, begin + unit.device_ns // 1000)
        assert unit.device_ns - free_ns(unit) == busy * 1000
        assert unit.compute_ns + unit.overlap_ns == computing * 1000
        assert unit.overlap_ns == both * 1000


ENGINES = {
    "sglang_decode/sglang_Qwen3-8B_decode.json.gz": (32, 32, None),
    "vllm_decode_full/graph_execution.json.gz": (32, 32, 55086),
    "vllm_prefilldecode_piecewise/graph_execution.json.gz": (46, 8192, 42919),
}


@pytest.mark.parametrize(("name", "load"), ENGINES.items())
def test_replayed_graphs_are_of_the_step_that_replayed_them(name: str, load: tuple[int, int, int | None]) -> None:
    found: RankProfile = attributed(GPU / "tracelens-inference" / name).profile
    (unit,) = found.units
    assert (unit.requests, unit.tokens, unit.context) == load
    assert unit.kernels > 400
    assert unit.free_host_late_ns + unit.free_waiting_ns < unit.device_ns // 10


def test_a_copy_that_blocks_before_the_first_kernel_is_no_part_of_the_unit() -> None:
    """The mark takes 465.7 ms on the host; TraceLens counts 473.7 ms from the first task on, 464.0 of them idle."""
    timeline, made = _read(GPU / "tracelens-inference" / "sglang_decode" / "sglang_Qwen3-8B_decode.json.gz")
    found = analysis.checked(timeline, made)
    (unit,) = found.units
    assert unit.host_ns / 1e6 == pytest.approx(465.7, abs=0.05)
    assert [unit.lead_in_ns / 1e6, unit.device_ns / 1e6] == pytest.approx([463.38, 10.45], abs=0.05)
    assert found.failed == ()
    findings, told = analysis.reported([found]).findings, analysis.reported([found]).verdict
    before = next(finding for finding in findings if finding.id == "lead-in")
    assert (before.severity, before.saving_ns) == ("note", None)
    assert "hipMemcpyWithStream" in before.evidence
    assert told.title == TITLES["compute"]
