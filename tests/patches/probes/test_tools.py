"""What each tool asks of its profiler: the keywords one by one, because a costly one would slow down every window."""

from __future__ import annotations

import sys
from types import ModuleType
from types import SimpleNamespace as Some
from typing import Any

import pytest

from patches.probes.facts import CompressedMetadata
from patches.probes.tools import BareCompression, NpuProfiler, TorchProfiler

OFF = {"record_shapes": False, "profile_memory": False, "with_stack": False, "with_modules": False}
CONFIG = {
    "export_type": "Text", "profiler_level": "Level1", "aic_metrics": "PipeUtilization", "l2_cache": False, "msprof_tx": False,
}  # fmt: skip


class Members:
    def __getattr__(self, name: str) -> str:
        return name


def options(**words: Any) -> dict[str, Any]:
    return words


@pytest.mark.parametrize(
    ("tool", "package", "device", "handler", "more"),
    [
        (NpuProfiler, "torch_npu", "NPU", {"analyse_flag": False}, {"experimental_config": CONFIG}),
        (TorchProfiler, "torch", "CUDA", {"use_gzip": False}, {}),
    ],
)
@pytest.mark.parametrize(("at", "wait", "warmup"), [(29, 29, 1), (30, 30, 0), (0, 0, 30)])
def test_a_profiler_records_the_window_with_nothing_costly(
    tool: Any, package: str, device: str, handler: Any, more: Any, at: int, wait: int, warmup: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    module: Any = ModuleType(package)
    module.profiler = Some(
        profile=options, schedule=options, _ExperimentalConfig=options, ProfilerActivity=Members(), ExportType=Members(),
        ProfilerLevel=Members(), AiCMetrics=Members(),
        tensorboard_trace_handler=lambda folder, name, **words: (folder, name, words),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, package, module)
    made = object.__new__(tool)
    made.first, made.end, made.save_path, made.name = 30, 60, "/t", "host_rank0"
    made.build(at)
    assert made.prof == {
        "activities": ["CPU", device], "schedule": {"wait": wait, "warmup": warmup, "active": 30, "repeat": 1},
        "on_trace_ready": ("/t", "host_rank0", handler), **OFF, **more,
    }  # fmt: skip


@pytest.mark.parametrize(("at", "calls"), [(0, ["start"]), (1, ["start", "step"]), (5, ["start", "step"])])
def test_a_step_carries_the_number_of_its_unit(
    at: int, calls: list[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    prof = Some(start=lambda: said.append("start"), step=lambda: said.append("step"), stop=lambda: said.append("stop"))
    made = object.__new__(NpuProfiler)
    made.save_path, made.name, made.prof = str(tmp_path), "host_[0]", prof
    monkeypatch.setattr(NpuProfiler, "build", lambda *_: None)
    monkeypatch.setattr(NpuProfiler, "synchronize", lambda _: said.append("synchronize"))
    for name in ("host_[0]_1_ascend_pt", "host_0_2_ascend_pt", "host_[0]_3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "profiler_info_0.json").touch()
    made.open_window(at)
    assert (said, prof.step_num) == (["synchronize", *calls], max(at - 1, 0))
    new = tmp_path / "host_[0]_4_ascend_pt"
    new.mkdir()
    assert made.close_window() == []
    (new / "profiler_info_0.json").touch()
    assert (said[-1], made.prof) == ("stop", None)
    assert made.traces() - made.traces_before == {str(new)}


@pytest.mark.parametrize(
    ("kind", "files"),
    [(BareCompression, ()), (CompressedMetadata, (["state.json", "a.rlpatch.json", "b.rlpatch.json"],))],
)
@pytest.mark.parametrize(("traces", "exits"), [(["a", "b"], False), (["a", "b"], True), ([], False)])
def test_what_was_saved_is_compressed_unless_the_process_ends(
    kind: Any, files: tuple[Any, ...], traces: list[str], exits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressed: list[tuple[Any, ...]] = []
    monkeypatch.setattr(kind, "compress", lambda _self, *words: compressed.append(words))
    made = object.__new__(kind)
    made.exits, made.watched = exits, lambda: "state.json"
    made.after_saving(traces)
    assert compressed == [(traces, *files)] * bool(traces and not exits)
