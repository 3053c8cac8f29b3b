"""The first screen of ``report``: fifteen lines with the verdict, one thing to do, and how sure that is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from click.testing import CliRunner

from patcher.cli import rlpatch
from patcher.commands.reports import first_screen
from patcher.messages.columns import width
from patcher.traces import analysis
from patcher.traces.measured import KernelUse
from patcher.traces.model import (
    Check,
    Diagnosis,
    FreeGap,
    Kernel,
    RankProfile,
    RecordedUnit,
    TraceReport,
    Verdict,
)
from tests.matrix import thinned
from tests.patcher.traces.made_ranks import Rank, late_ranks, pipeline
from tests.patcher.traces.recorded import MS, SHARED, Range, Run, Task, shared, steps

LABELS = ("breakdown", "to do", "how sure", "next")


def screen(*words: str | Path, language: str = "") -> list[str]:
    result = CliRunner().invoke(rlpatch, ["report", *map(str, words)], env={"RLPATCH_LANG": language or "en"})
    assert result.exit_code == 0
    return result.stdout.splitlines()


def written(folder: Path, ranks: list[Rank]) -> Path:
    for rank in ranks:
        rank.write(folder)
    return folder


def test_it_has_each_part_once_and_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    steps(6, late={32: 5 * MS, 33: 5 * MS}).torch(tmp_path / "a.json")
    lines = screen("a.json")
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 80
    starts = [line.strip().partition(":")[0] for line in lines if line.startswith("  ") and not line.startswith("    ")]
    assert [start for start in starts if start in LABELS] == list(LABELS)
    text = " ".join(lines)
    assert lines[0].startswith("Host-bound")
    assert "6 steps, #30 to #35 · rank 0 · eager mode, no graphs · NVIDIA H100 · torch.profiler" in " ".join(
        text.split()
    )
    assert "rlpatch report a.json -o report.html" in " ".join(text.split())
    for words in (("--output=page.html",), ("--output", "page.html"), ("-o", "page.html"), ("-opage.html",)):
        assert not any("next:" in line for line in screen("a.json", *words))


@pytest.mark.parametrize("lost", [0, 2])
def test_without_all_kernels_no_time_of_the_device_is_told(tmp_path: Path, lost: int) -> None:
    """The device was busy where it seems idle, and no step on the device is as long as it seems."""
    path = steps(6, late={32: 5 * MS}).torch(tmp_path / "a.json")
    trace = json.loads(path.read_text())
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event not in kernels[: 10 * lost]]
    path.write_text(json.dumps(trace))
    text = "\n".join(screen(path))
    told = [word in text for word in ("breakdown", "largest idle time", "how sure", "on the device", "have no kernel")]
    assert told[0] == told[2] == (not lost)
    assert (told[1], told[3], told[4]) == (False, False, bool(lost))


def captures() -> list[Path | ParameterSet]:
    """Return the real captures; all but three are marked."""
    folders = [*SHARED.glob("npu/*"), *SHARED.glob("npu/*/*_ascend_pt"), *SHARED.glob("gpu/tracelens-inference/*")]
    files = [*SHARED.glob("gpu/*.json.gz"), *SHARED.glob("2026-11/*.json.gz"), *SHARED.glob("2026-11/npu*")]
    short = [
        path for path in (*folders, *files) if path.name in ("normalization.json.gz", "db-level1", "eager_b200.json.gz")
    ]
    return thinned([*folders, *files], short)


@shared
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("capture", captures(), ids=lambda path: path.name)
def test_the_screen_of_each_real_capture_fits(capture: Path, language: str) -> None:
    result = CliRunner().invoke(rlpatch, ["report", str(capture)], env={"RLPATCH_LANG": language})
    lines = result.stdout.splitlines()
    assert len(lines) <= 15
    assert not [line for line in lines if width(line) > 80 and str(capture) not in line]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_ranks_and_stages_are_named_with_their_numbers(tmp_path: Path, language: str) -> None:
    late, stages = tmp_path / "late", tmp_path / "stages"
    late.mkdir()
    stages.mkdir()
    said = " ".join(" ".join(screen(written(late, late_ranks(5)), language=language)).split())
    assert "rank 5" in said.partition("ms")[0]
    assert "8 ranks" in said or "8 个 rank" in said
    assert "30.00 ms" in said
    said = " ".join(screen(written(stages, pipeline([20_000, 45_000])), language=language))
    assert "stage 1" in said.partition("ms")[0]


def test_a_single_unit_has_no_spread_and_what_is_small_is_not_worth_it(tmp_path: Path) -> None:
    rank = Rank(0, 1, 1)
    rank.busy(1, 5, 45_000)
    rank.busy(1, 45_000, 90_000, ahead=40_000)
    rank.busy(1, 90_000, 92_000, "Memcpy DtoH (Device -> Pageable)", ahead=80_000)
    rank.events[-1]["cat"] = "gpu_memcpy"
    rank.busy(1, 92_000, 99_990, ahead=80_000)
    text = " ".join(" ".join(screen(written(tmp_path, [rank]))).split())
    assert "only 1 step" in text
    assert "little to gain from: memcpy (at most 2.0 %)" in text
    assert "-o report.html" in text


def test_what_a_failed_check_withdraws_is_not_called_little(tmp_path: Path) -> None:
    unit = RecordedUnit(number=0, host_ns=100, kernels=9, compute_ns=96, copy_ns=2, free_host_late_ns=2)
    leading = Diagnosis("compute", "note", "", None, "exact")
    for withdrawn, named in (((), True), (("dispatch",), False)):
        profile = RankProfile("a", "torch", 0, "H100", (unit,), checks=(Check("launches", False, "why", withdrawn),))
        line = first_screen._little_to_gain_line(profile, leading)
        assert ("launching kernels" in line, "memcpy" in line) == (named, True)


@pytest.mark.parametrize(
    ("longest", "late", "lines"),
    [(30, 39, ["kernel", "also"]), (10, 39, ["also"]), (60, 5, ["kernel"]), (10, 5, [])],
)
def test_computing_names_its_longest_kernel_and_the_host_bound_time_beside_it(
    longest: int, late: int, lines: list[str]
) -> None:
    unit = RecordedUnit(number=0, host_ns=99 * MS, kernels=9, compute_ns=(100 - late) * MS, free_host_late_ns=late * MS)
    profile = RankProfile("a", "torch", 0, "H100", (unit,), kernels=(Kernel("sort", "compute", 1, longest * MS),))
    screen = [*first_screen.first_screen(analysis.reported([profile]))]
    assert screen[0].startswith("The device computes" if late == 5 else "Most of the time, the device is computing")
    text = " ".join(" ".join(screen).split())
    title = text.partition(" 1 ")[0]
    assert ("; longest kernel: sort" in title, "also: " in text) == tuple(word in lines for word in ("kernel", "also"))


@pytest.mark.parametrize(("late", "leads"), [(39, False), (40, True)])
def test_host_bound_time_leads_if_it_is_two_thirds_of_computing(late: int, leads: bool) -> None:
    unit = RecordedUnit(number=0, host_ns=99 * MS, kernels=9, compute_ns=(100 - late) * MS, free_host_late_ns=late * MS)
    profile = RankProfile("a", "torch", 0, "H100", (unit,), kernels=(Kernel("sort", "compute", 1, 30 * MS),))
    assert analysis.reported([profile]).verdict.title.startswith("Host-bound") == leads


@pytest.mark.parametrize(
    ("operators", "words"),
    [
        ({}, "longest kernel: sort, 30.00 ms (30 %)"),
        ({("sort", "aten::sort", ""): 16, ("gemm", "aten::mm", "[[7, 8]]"): 25}, "sort of aten::sort, 30.00 ms (30 %); {}"),
        ({("sort", "aten::sort", ""): 15, ("gemm", "aten::mm", "[[7, 8]]"): 25}, "kernel: sort, 30.00 ms (30 %); {}"),
        ({("sort", "sort", ""): 30}, "longest kernel: sort, 30.00 ms (30 %)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("half", [True, False])
def test_computing_names_the_operators_of_its_kernels(
    operators: dict[tuple[str, str, str], int], words: str, half: bool
) -> None:
    """Matmuls are two kernels, of which none is the longest one."""
    unit = RecordedUnit(number=0, host_ns=99 * MS, kernels=9, compute_ns=100 * MS)
    times = {"sort": 30, "gemm": 25, "gemv": 25 if half else 4}
    kernels = tuple(Kernel(name, "compute", 1, ns * MS) for name, ns in times.items())
    launched = {key: ns * MS for key, ns in operators.items()}
    profile = RankProfile("a", "torch", 0, "H100", (unit,), kernels=kernels, kernel_operators=launched)
    text = " ".join(" ".join(first_screen.first_screen(analysis.reported([profile]))).split())
    other = "longest in matmuls and convolutions: aten::mm [7, 8], 25.00 ms (25 %)"
    expected = words.format(other) if half else words.replace("; {}", "")
    assert text.partition(" 1 ")[0].endswith(expected)


@pytest.mark.parametrize(("cast", "told"), [(12, "; casts, scales and quantization: 36.00 ms (36 %)"), (11, "")])
def test_computing_names_casts_that_together_take_longest(cast: int, told: str) -> None:
    unit = RecordedUnit(number=0, host_ns=99 * MS, kernels=9, compute_ns=100 * MS)
    times = {"gemm": 30, "amax_kernel": 24, "cast_kernel": cast, "gemm_quant": 20}
    kernels = tuple(Kernel(name, "compute", 1, ns * MS) for name, ns in times.items())
    profile = RankProfile("a", "torch", 0, "H100", (unit,), kernels=kernels)
    text = " ".join(" ".join(first_screen.first_screen(analysis.reported([profile]))).split())
    assert f"longest kernel: gemm, 30.00 ms (30 %){told} 1 " in text


@pytest.mark.parametrize(
    ("name", "cores", "is_advised"),
    [
        ("Unique", ("AI_CPU",), True),
        ("Unique", ("AI_CPU", "AI_VECTOR_CORE"), False),
        ("MatMulV2", ("AI_CPU",), False),
        ("Unique", ("AI_CORE",), False),
    ],
)
def test_the_longest_kernel_on_ai_cpu_is_to_be_replaced(name: str, cores: Sequence[str], is_advised: bool) -> None:
    unit = RecordedUnit(number=0, host_ns=99 * MS, kernels=9, compute_ns=99 * MS)
    kernels = (Kernel("Unique", "compute", 1, 60 * MS), Kernel("MatMulV2", "compute", 1, 39 * MS))
    uses = tuple(KernelUse(name, core, "", "", None, 1, 30 * MS, {}) for core in cores)
    profile = RankProfile("a", "ascend-text", 0, "Ascend NPU", (unit,), kernels=kernels, kernel_uses=uses)
    text = " ".join(" ".join(first_screen.first_screen(analysis.reported([profile]))).split())
    advice = "to do: Unique runs on AI_CPU: replace it with an operator that has an AI Core kernel"
    assert (advice in text, "Unique can run less often" in text) == (is_advised, not is_advised)


@pytest.mark.parametrize(
    ("kernels", "advice"),
    [
        (
            {"ViewCopy": 40, "Add": 20, "MatMulV2": 30},
            "ViewCopy only copies tensors, to make them contiguous or to change",
        ),
        ({"Cast": 40, "Add": 20, "MatMulV2": 30}, "Cast only converts tensors from one data type to another"),
        ({"CastScale": 40, "Add": 20, "MatMulV2": 30}, "elementwise and normalization kernels take 67 %"),
        ({"gemm": 71, "Add": 29}, "make the kernels faster: try another precision"),
        ({"gemm": 70, "Add": 30}, "elementwise and normalization kernels take 30 %"),
        ({"onesweep": 50, "Add": 20}, "check whether aten::sort can run less often"),
        ({"onesweep": 50, "Add": 50}, "elementwise and normalization kernels take 50 %"),
    ],
)
def test_the_advice_on_computing_is_on_the_largest_family(kernels: dict[str, int], advice: str) -> None:
    unit = RecordedUnit(number=0, host_ns=99 * MS, kernels=9, compute_ns=99 * MS)
    times = tuple(Kernel(name, "compute", 1, ns * MS) for name, ns in kernels.items())
    launched = {("onesweep", "aten::sort", ""): 50 * MS}
    profile = RankProfile("a", "torch", 0, "H100", (unit,), kernels=times, kernel_operators=launched)
    text = " ".join(" ".join(first_screen.first_screen(analysis.reported([profile]))).split())
    assert f"to do: {advice}" in text


def test_a_longest_kernel_that_converts_formats_is_to_be_left_out() -> None:
    unit = RecordedUnit(number=0, host_ns=99 * MS, kernels=9, compute_ns=99 * MS)
    kernels = (Kernel("TransData", "compute", 1, 50 * MS), Kernel("Conv2D", "compute", 1, 49 * MS))
    profile = RankProfile("a", "ascend-text", 0, "Ascend NPU", (unit,), kernels=kernels)
    text = " ".join(" ".join(first_screen.first_screen(analysis.reported([profile]))).split())
    assert "longest kernel: TransData, 50.00 ms (51 %)" in text
    assert "to do: TransData only converts the memory format" in text


@pytest.mark.parametrize(
    ("lasts", "call", "saving", "idle", "range_"),
    [
        (30, "load", "30.00 ms of 50.00 ms per step (60 %)", "30.00 ms per step (60.0 %)", "2 steps take 50.00 ms"),
        (30, "wait", "20.00 ms of 50.00 ms per step (40 %)", "20.00 ms per step (40.0 %)", "2 steps take 50.00 ms"),
        (36, "load", "20.00 ms of 40.00 ms per step (50 %)", "20.00 ms per step (50.0 %)", "3 steps take 20.00 ms"),
    ],
    ids=["the same call", "another call", "another length"],
)  # fmt: skip
def test_a_gap_before_each_step_counts_for_all_steps(
    lasts: int, call: str, saving: str, idle: str, range_: str
) -> None:
    """The one after the last step was not recorded, but that before the first one was."""
    units = [RecordedUnit(number=at, host_ns=50 * MS, kernels=9, compute_ns=20 * MS) for at in range(3)]
    units[:2] = (replace(unit, free_host_late_ns=30 * MS) for unit in units[:2])
    units[0] = replace(units[0], lead_in_ns=lasts * MS)
    gaps = [
        FreeGap(
            kind="place", part=part, ns=ns * MS, count=count, units=count, unit=0, unit_ns=30 * MS, longest_ns=30 * MS,
            begin_ns=0, at_ns=0, before="a", after="b", stream="7", call=name, call_ns=ns * MS,
        )
        for part, ns, count, name in (("free_host_late_ns", 60, 2, "load"), ("lead_in_ns", 30, 1, call))
    ]  # fmt: skip
    profile = RankProfile("a", "torch", 0, "H100", tuple(units), gaps=tuple(gaps), marks="ProfilerStep#")
    report = analysis.reported([profile])
    text = " ".join(" ".join(first_screen.first_screen(report)).split())
    assert f"the host was in load for 100 % of this time; a fix saves at most {saving}" in text
    assert ("breakdown of all 150.00 ms: computing 40.0 %, host-bound 40.0 %, time before" in text) == (lasts == 30)
    assert f"how sure: {range_} to 50.00 ms" in text
    assert first_screen._largest_idle_time_line(profile).startswith(f"largest idle time: {idle}")


def test_no_line_contradicts_a_headline_on_communication() -> None:
    unit = RecordedUnit(number=0, host_ns=99, kernels=9, compute_ns=60, communication_ns=2, free_host_late_ns=38)
    gap = FreeGap(
        kind="place", part="free_host_late_ns", ns=38, count=1, units=1, unit=0, unit_ns=38, longest_ns=38, begin_ns=0,
    )  # fmt: skip
    profile = RankProfile("a", "torch", 0, "H100", (unit,), gaps=(gap,))
    shown = {}
    for name in ("dispatch", "slow-rank", "collective-idle"):
        leading = Diagnosis(name, "problem", "", 9, "exact", source="a")
        places = first_screen._places_and_advice(TraceReport((profile,), (leading,), Verdict("")), profile, leading)
        idle = any(line.startswith("largest idle time") for line in places)
        shown[name] = idle, "communication" in first_screen._little_to_gain_line(profile, leading)
    assert shown == {"dispatch": (True, True), "slow-rank": (True, False), "collective-idle": (False, False)}


@pytest.mark.parametrize(("ranks", "words"), [((0, 1), "2 of 4 ranks"), ((0, 0), "2 traces")])
def test_traces_of_one_rank_are_not_counted_as_ranks(ranks: tuple[int, int], words: str) -> None:
    profiles = tuple(RankProfile("a", "torch", rank, "CPU", (), world=4) for rank in ranks)
    assert first_screen._ranks_words(TraceReport(profiles, (), Verdict("")), profiles[0]) == words


@pytest.mark.parametrize(("before", "told"), [(3, True), (2, False), (0, False)])
def test_a_breakdown_says_what_it_is_of_beside_time_before_the_first_kernel(before: int, told: bool) -> None:
    unit = RecordedUnit(number=0, host_ns=99 * MS, kernels=9, compute_ns=60 * MS, lead_in_ns=before * MS)
    profile = RankProfile("a", "torch", 0, "H100", (unit,))
    of_all = first_screen._breakdown_line(profile, "", with_lead_in=True)
    assert of_all.startswith("breakdown of all 63.00 ms: computing 95.2 %") == told
    assert ("plus" in of_all) == (before == 2)
    line = first_screen._breakdown_line(profile, "")
    words = "breakdown of the 60.00 ms from the first kernel on: " if told else "breakdown: "
    assert line.startswith(f"{words}computing 100.0 %")


@pytest.mark.parametrize(
    ("worlds", "steps", "marks", "warning", "words"),
    [
        ((2, 4), (7, 7), "step", "are of different runs, with 2, 4 ranks", "2 traces of different runs"),
        ((4, 4), (7, 8), "step", "have no step in common", "2 of 4 ranks"),
        ((4, 4), (7, 8), "", "", "2 of 4 ranks"), ((4, None), (7, 7), "step", "", "2 of 4 ranks"),
    ],
    ids=["of different runs", "of different steps", "without steps", "alike"],
)  # fmt: skip
def test_traces_that_cannot_be_compared_are_told(
    worlds: tuple[int, int | None], steps: tuple[int, int], marks: str, warning: str, words: str
) -> None:
    profiles = [
        RankProfile(
            f"/{rank}", "torch", rank, "H100", (RecordedUnit(number=step, host_ns=9, kernels=1, compute_ns=9),),
            world=world, marks=marks,
        )
        for rank, (world, step) in enumerate(zip(worlds, steps, strict=True))
    ]  # fmt: skip
    text = " ".join(" ".join(first_screen.first_screen(analysis.reported(profiles))).split())
    assert words in text
    assert text.partition("warning: these traces ")[2].startswith(warning)
    assert ("warning" in text) == bool(warning)


def test_what_an_engine_step_held_and_graphs_are_told(tmp_path: Path) -> None:
    mark = Range("execute_context_0(0)_generation_64(64)", 0, 20 * MS)
    tasks = tuple(Task(MS * at, MS * (at + 1), launch=10, replay=5) for at in range(1, 19))
    Run(tasks, (mark,)).torch(tmp_path / "a.json")
    text = " ".join(" ".join(screen(tmp_path / "a.json")).split())
    assert "1 decode step, #0, with 64 requests, 64 tokens" in text
    assert "graphs launch 100 % of the kernels" in text


@pytest.mark.parametrize(
    ("share", "words"),
    [(0, "eager mode, no graphs"), (0.0465, "graphs launch 4.7 % of the kernels"), (0.34, "graphs launch 34 % of the")],
)
def test_few_kernels_of_graphs_are_told(share: float, words: str) -> None:
    assert first_screen._mode_words(RankProfile("a", "torch", 0, "H100", (), graph_share=share)).startswith(words)


@pytest.mark.parametrize(
    ("dims", "is_frame", "words"),
    [
        ("[[2, 3]]", False, "with tensor shapes"),
        ("[[], []]", False, ""),
        ("", False, ""),
        ("", True, "with call stacks"),
        ("[[2]]", True, "with call stacks and tensor shapes"),
    ],
)
def test_shapes_and_stacks_are_told_if_events_have_them(tmp_path: Path, dims: str, is_frame: bool, words: str) -> None:
    file = steps(6).torch(tmp_path / "a.json")
    trace = json.loads(file.read_text())
    for event in trace["traceEvents"]:
        if dims and event.get("cat") == "cpu_op":
            event["args"] = {"Input Dims": json.loads(dims)}
    if is_frame:
        first = trace["traceEvents"][0]
        trace["traceEvents"].append({**first, "cat": "python_function", "name": "a.py(1): run", "dur": 1})
    file.write_text(json.dumps({**trace, "record_shapes": 1, "with_stack": 1}))
    text = " ".join(" ".join(screen(file)).split())
    assert f" eager mode, no graphs{words and ', '}{words} · " in text


def test_a_missing_rank_asks_for_all_of_them(tmp_path: Path) -> None:
    rank = Rank(3, 8)
    for step in range(1, 5):
        rank.busy(step, 5, 50_000)
        rank.collective(step, 50_000, 99_990)
    text = " ".join(" ".join(screen(written(tmp_path, [rank]))).split())
    assert "rank 3 (of 8 ranks)" in text
    assert "next: `rlpatch report FOLDER`, where FOLDER has the traces of all ranks" in text
    found = json.loads(CliRunner().invoke(rlpatch, ["report", str(tmp_path), "--json"]).stdout)["result"]
    assert found["verdict"]["title"] == found["findings"][0]["title"]
    assert found["captures"][0]["families"]["collective"] == 4 * 49_990_000
