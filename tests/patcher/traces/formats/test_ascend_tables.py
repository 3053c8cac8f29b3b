"""A folder of torch_npu of which somebody handed on the tables alone, and what msprof exports by itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from patcher.messages.errors import Kind, Problem
from patcher.traces import analysis, folders, formats
from patcher.traces.analysis.ranks import match_collectives
from patcher.traces.folders import states
from patcher.traces.model import Check, RankProfile
from patcher.traces.names import OUTPUT
from tests.patcher.traces.recorded import SHARED, free_ns, shared, steps

STEPS = (
    "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive),Preparing\n"
    "0,13,100.5,20.25,5.0,25.25,9.001,129.751,0,20.25,3.5\n0,14,90.0,20.0,0.0,20.0,10.0,120.0,0,20.0,0.0\n"
)
DETAILS = (
    "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us)\n"
    "13,aclnnMm_1,MatMulV2,AI_CORE,1736408883704643.212\t,60.5\n13,aclnnMm_2,MatMulV2,AI_CORE,1736408883704743.212\t,40.0\n"
    "13,hcom_allReduce__586_0_1,hcom_allReduce_,HCCL,1736408883704793.212\t,25.25\n14,aclnnAdd,Add,AI_CORE,1736408883705643.2\t,90\n"
)
STATISTIC = (
    "Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)\n"
    "0,MatMulV2,AI_CORE,2,100.5,40.0,50.25,60.5,52.8\n0,Add,AI_VECTOR_CORE,1,90,90,90,90,47.2\n"
)
TIMES = {
    "Start Timestamp(us)": 5.0,
    "Elapse Time(ms)": 0.02525,
    "Transit Time(ms)": 0.01,
    "Wait Time(ms)": 0.015,
    "Idle Time(ms)": 0,
}
COLLECTIVES = json.dumps({
    "step13": {"p2p": {}, "collective": {
        "hcom_allReduce__586_0_1@99": {"Communication Time Info": TIMES}, "Total Op Info": {"Communication Time Info": TIMES},
    }},
})  # fmt: skip


def delivered(folder: Path, **files: str) -> Path:
    """A folder of a rank with these files alone."""
    output = folder / OUTPUT
    output.mkdir(parents=True)
    (folder / "profiler_info_1.json").write_text('{"rank_id": "1"}')
    (folder / "profiler_metadata.json").write_text('{"distributed_args": {"world_size": 4}}')
    names = {"details": "kernel_details.csv", "steps": "step_trace_time.csv", "statistic": "op_statistic.csv"}
    for name, text in files.items():
        (output / names.get(name, f"{name}.json")).write_text(text)
    return folder


def read(folder: Path) -> RankProfile:
    (file,) = folders.traces_to_read(folder)
    found = formats.read_step_table(file)
    assert found is not None
    return analysis.check_tables(*found)


def test_tables_alone_are_a_profile(tmp_path: Path) -> None:
    folder = delivered(tmp_path / "a_ascend_pt", steps=STEPS, details=DETAILS, communication=COLLECTIVES)
    found = read(folder)
    assert (found.source, found.form, found.rank, found.world) == (str(folder), "ascend-tables", 1, 4)
    first, second = found.units
    assert (first.number, first.kernels, first.host_ns) == (13, 3, 0)
    assert {part: ns for part, ns in first.parts.items() if ns} == {
        "compute_ns": 95_500, "overlap_ns": 5000, "communication_ns": 20_250, "free_unknown_ns": 9001,
    }  # fmt: skip
    assert (first.device_ns, first.lead_in_ns, second.device_ns) == (129_751, 3500, 120_000)
    assert [(one.name, one.kind, one.calls, one.ns, one.longest_ns) for one in found.kernels] == [
        ("MatMulV2", "compute", 2, 100_500, 60_500),
        ("Add", "compute", 1, 90_000, 90_000),
        ("hcom_allReduce", "communication", 1, 25_250, 25_250),
    ]
    (one,) = found.collectives
    assert (one.group, one.unit, one.ns, one.transit_ns, one.wait_ns) == ("586", 13, 25_250, 10_000, 15_000)
    assert found.failed == (
        Check(
            "launches", False,
            "torch_npu's tables do not tell when kernels were launched, and their Free time includes copies, so it is unknown why the device was idle",
            ("dispatch", "launch-blocked", "waiting"),
        ),
    )  # fmt: skip


def test_a_statistic_is_read_where_the_kernels_are_missing(tmp_path: Path) -> None:
    whole = read(delivered(tmp_path / "a_ascend_pt", steps=STEPS, details=DETAILS)).kernels
    assert read(delivered(tmp_path / "b_ascend_pt", steps=STEPS, statistic=STATISTIC)).kernels == whole


def test_some_units_of_tables_are_chosen_and_have_no_kernels_of_their_own(tmp_path: Path) -> None:
    (file,) = folders.traces_to_read(
        delivered(tmp_path / "a_ascend_pt", steps=STEPS, details=DETAILS, communication=COLLECTIVES)
    )
    read = formats.read_step_table(file)
    assert read is not None
    found = analysis.check_tables(*read, (14, 15))
    assert ([unit.number for unit in found.units], found.kernels, found.collectives) == ([14], (), ())


def test_tables_are_whole_where_nothing_else_is_left(tmp_path: Path) -> None:
    folder = delivered(tmp_path / "a_ascend_pt", steps=STEPS)
    trace = folders.inspect(folder)
    assert (trace.state, trace.steps) == (states.FOREIGN, (13, 14))
    assert folders.TraceGroup((trace,)).next_command == f"rlpatch report {folder}"
    (folder / "FRAMEWORK").mkdir()
    assert folders.inspect(folder).state == states.HALF_PARSED
    with pytest.raises(Problem, match="nor a database") as refused:
        folders.traces_to_read(folder)
    assert refused.value.hint.startswith("rlpatch analyse")


def test_other_tables_without_that_of_the_steps_are_refused_with_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="nor a database") as refused:
        folders.traces_to_read(delivered(tmp_path / "a_ascend_pt", details=DETAILS))
    assert (
        refused.value.hint
        == "the raw data was deleted, so the trace cannot be parsed again: if you have trace_view.json, the database or step_trace_time.csv elsewhere, copy one of them into this folder"
    )
    (file,) = folders.traces_to_read(delivered(tmp_path / "b_ascend_pt", steps=STEPS.splitlines()[0]))
    with pytest.raises(Problem, match="has no steps") as refused:
        formats.read_step_table(file)
    assert refused.value.kind == Kind.TRACE


def test_what_msprof_exported_is_read_where_it_recorded(tmp_path: Path) -> None:
    raw = tmp_path / "PROF_000001_20261122041741000_ABC"
    (raw / "device_0").mkdir(parents=True)
    with pytest.raises(Problem, match="PROF_000001") as refused:
        folders.traces_to_read(tmp_path)
    assert refused.value.hint == f"msprof --export=on --output={raw}"
    output = steps(2).text(tmp_path / "x_ascend_pt") / OUTPUT
    place = raw / "mindstudio_profiler_output"
    place.mkdir()
    (output / "trace_view.json").rename(place / "msprof_20261122041742.json")
    (place / "op_summary_20261122041742.csv").write_text("Op Name,OP Type\nkernel0,MatMulV3\n")
    shutil.rmtree(output.parent)
    for path in (tmp_path, raw):
        (file,) = folders.traces_to_read(path)
        (found,) = formats.read(file)
        units = analysis.attributed(found).profile.units
        assert (found.form, [unit.kernels for unit in units]) == ("ascend-text", [10, 10])
        assert {"MatMulV3", "kernel1"} < set(found.names.texts)
    shutil.copy(file, place / "msprof_slice_1.json")
    with pytest.raises(Problem, match="msprof has not exported the data in"):
        folders.traces_to_read(raw)


NPU = SHARED / "npu"


@shared
@pytest.mark.parametrize("rank", [0, 1])
def test_the_tables_of_a_real_folder_say_what_its_trace_does(tmp_path: Path, rank: int) -> None:
    """But for launches and copies, which no table has; kernels have a nanosecond more or less."""
    source = NPU / "text-level1" / f"rank{rank}_ascend_pt"
    copy = Path(shutil.copytree(source, tmp_path / "copy_ascend_pt", copy_function=shutil.copyfile))
    for place in (copy, copy / OUTPUT):
        place.chmod(0o755)
    (copy / OUTPUT / "trace_view.json").unlink()
    (file,) = folders.traces_to_read(source)
    (timeline,) = formats.read(file)
    whole, tables = analysis.checked(timeline, analysis.attributed(timeline)), read(copy)
    (unit,), (known,) = tables.units, whole.units
    for part in ("compute_ns", "overlap_ns", "communication_ns", "lead_in_ns", "device_ns"):
        assert getattr(unit, part) == pytest.approx(getattr(known, part), abs=200)
    assert unit.free_unknown_ns == pytest.approx(free_ns(known) + known.copy_ns, abs=200)
    calls = {one.name: one.calls for one in whole.kernels if one.kind != "copy"}
    assert {one.name: one.calls for one in tables.kernels} == calls
    assert [(one.group, one.index, one.unit) for one in tables.collectives] == [
        (one.group, one.index, one.unit) for one in whole.collectives
    ]


@shared
def test_ranks_meet_by_their_tables() -> None:
    """Two stages of a pipeline, two ranks each: the sums are the vendor's."""
    profiles = [read(folder) for folder in sorted((NPU / "qwen3-pp2-level2-csv").iterdir())]
    assert [(one.rank, one.world, one.span) for one in profiles] == [(rank, 4, "#13") for rank in range(4)]
    assert [one.units[0].device_ns for one in profiles] == pytest.approx(
        [810_022_250, 809_431_750, 809_803_250, 810_150_250], abs=200_000
    )
    ranks, exact, *_ = match_collectives(profiles)
    assert exact
    assert sum(one.waits_ns for one in ranks) == pytest.approx(sum(one.awaited_ns for one in ranks))
