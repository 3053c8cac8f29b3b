"""What each tool asks of its profiler: the keywords one by one, because a costly one would slow down every window."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from types import SimpleNamespace as Some
from typing import Any

import pytest

from fixtures import environments
from fixtures.cache import REPOSITORY
from patcher.traces import analysis, formats
from patches.probes.facts import CompressedMetadata
from patches.probes.tools import BareCompression, GarbageCollections, NpuProfiler, TorchProfiler

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


def older(**words: Any) -> dict[str, Any]:
    """Return an experimental config, as a torch that knows nothing of garbage collections."""
    raise TypeError(f"incompatible constructor arguments: {words}")


@pytest.mark.parametrize(
    ("config", "known"),
    [({"_ExperimentalConfig": options}, True), ({"_ExperimentalConfig": older}, False), ({}, False)],
)
def test_garbage_collections_are_recorded_where_torch_can(
    config: dict[str, Any], known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = ModuleType("torch")
    module.profiler = Some(
        profile=lambda **words: Some(**words), schedule=options, ProfilerActivity=Members(),
        tensorboard_trace_handler=lambda *_words, **_more: None, **config,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", module)
    made = object.__new__(GarbageCollections)
    made.first, made.end, made.save_path, made.name = 30, 60, "/t", "host_rank0"
    made.build(29)
    expected = {"record_python_gc_info": True} if known else None
    assert getattr(made.prof, "experimental_config", None) == expected
    assert made.prof.schedule == {"wait": 29, "warmup": 1, "active": 30, "repeat": 1}


@pytest.mark.engine
@pytest.mark.parametrize(("stack", "named"), [(True, True), (False, False)])
def test_a_real_garbage_collection_is_named_by_the_report(
    stack: bool, named: bool, npu_python: Path, tmp_path: Path
) -> None:
    """It comes by itself, between two operators: no frame is called collect."""
    script = tmp_path / "loop.py"
    script.write_text(_LOOP)
    environment = {**environments.variables(), "PYTHONPATH": str(REPOSITORY), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    subprocess.run([npu_python, script, tmp_path, "stack" * stack], env=environment, check=True)
    (trace,) = tmp_path.glob("*.pt.trace.json")
    (read,) = formats.read(trace)
    report = analysis.reported([analysis.checked(read, analysis.attributed(read))])
    assert [finding.id for finding in report.findings][:1] == ["outlier"]
    assert ("garbage collection" in report.findings[0].title) == named
    assert ("gc.freeze()" in report.findings[0].advice) == named


_LOOP = """
import gc, sys, torch
from patches.probes.tools import GarbageCollections

class Node: pass

torch.set_num_threads(1)
kept = []
for _ in range(300_000):
    kept.append(node := Node())
    node.me = node
gc.collect()
gc.disable()
tool = object.__new__(GarbageCollections)
tool.first, tool.end, tool.save_path, tool.name = 1, 7, sys.argv[1], "host_rank0"
tool.build(0)
tool.prof.with_stack = sys.argv[2] == "stack"
tool.prof.start()
for unit in range(7):
    for _ in range(50):
        torch.ones(8).add_(1)
    if unit == 5:
        gc.set_threshold(1, 1, 1)
        gc.enable()
        young = [Node() for _ in range(9)]
        gc.disable()
    torch.ones(8).add_(1)
    tool.prof.step()
tool.prof.stop()
"""


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


@pytest.mark.parametrize("exits", [False, True])
def test_traces_are_compressed_at_the_lowest_priority_unless_the_process_ends(
    exits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    priorities: list[tuple[int, ...]] = []
    monkeypatch.setattr("os.setpriority", lambda *words: priorities.append(words))
    made: Any = object.__new__(BareCompression)
    made.save_path, made.exits, made.name = str(tmp_path), exits, "worker"
    traces = [tmp_path / f"{name}.json" for name in ("a" if exits else "ab")]
    for trace in traces:
        trace.write_bytes(b"x" * 9_000_000)
    made.pack([str(trace) for trace in traces], ())
    assert [words[-1] for words in priorities] == [19] * (sys.platform == "linux")
    assert sorted(path.name for path in tmp_path.glob("*.json*")) == [
        f"{trace.name}{'' if exits else '.gz'}" for trace in traces
    ]
    if not exits:
        assert all(gzip.decompress(path.read_bytes()) == b"x" * 9_000_000 for path in tmp_path.glob("*.gz"))
    assert not [*(tmp_path / ".rlpatch").iterdir()]
    assert ("compressed: " in capsys.readouterr().err) != exits


def test_a_process_that_ends_waits_for_the_compression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit: list[Any] = []
    packed: list[tuple[Any, ...]] = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    made: Any = object.__new__(BareCompression)
    monkeypatch.setattr(made, "pack", lambda *words: packed.append(words), raising=False)
    made.compress(["a"], ["b"])
    (end,) = at_exit
    end()
    assert (packed, made.exits) == ([(["a"], ["b"])], True)
    assert not [thread for thread in threading.enumerate() if thread.name == "rlpatch-gzip"]


def test_a_trace_that_cannot_be_compressed_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made: Any = object.__new__(BareCompression)
    made.save_path, made.exits, made.name = str(tmp_path), False, "worker"
    (tmp_path / "a.json").write_text("{}")
    made.pack([str(tmp_path / "a.json"), str(tmp_path / "gone.json")], ())
    assert (tmp_path / "a.json").exists()
    assert "not compressed: " in capsys.readouterr().err
