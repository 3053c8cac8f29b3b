"""A window of memory: what the snapshot says of each unit, against the allocations that were planted in it."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fixtures import memory_history, releases
from fixtures.cache import REPOSITORY
from fixtures.environments import variables
from fixtures.memory_history import Allocator
from patcher.traces import snapshots
from patches.probes.memory_history import MemoryHistory
from patches.probes.tools import TorchProfiler
from patches.vllm import recipes as vllm
from tests.matrix import MATRIX, thinned
from tests.patches.rollout_workers import V1Worker, batch
from tests.patches.step_metadata import facts, states
from tests.patches.training_stages import Stage

pytestmark = pytest.mark.usefixtures("stand_in_torch")
MIB = 1 << 20


@pytest.fixture(params=[False, True], ids=["cuda", "npu"])
def allocator(monkeypatch: pytest.MonkeyPatch, stand_in_torch: None, request: pytest.FixtureRequest) -> Allocator:
    allocator = Allocator()
    memory_history.install(allocator, monkeypatch, npu=request.param)
    return allocator


@pytest.fixture
def chosen(tmp_path: Path) -> dict[str, Any]:
    return {"backend": "memory", "METADATA": True, "SAVE_PATH": str(tmp_path)}


def attention(allocator: Allocator, size: int) -> int:
    return allocator.alloc(size)


def leak(allocator: Allocator) -> None:
    allocator.alloc(MIB)


def rollout(allocator: Allocator, steps: int, **constants: Any) -> None:
    """Decode step n takes n MiB for its duration, leaves 1 MiB behind, and step 5 has 100 MiB for a moment."""
    worker = V1Worker(**constants)
    worker.recipe = vllm.WORKER
    step = worker._rlpatch_stage
    step("step", batch({"a": 3}, {"a": 3}))
    for number in range(1, steps + 1):
        step("step", batch({"a": 1}))
        held = attention(allocator, number * MIB)
        if number == 5:
            allocator.free(attention(allocator, 100 * MIB))
        leak(allocator)
        allocator.free(held)
    worker._rlpatch_stage("end_rollout", "the test ends")


def read(folder: Path) -> list[snapshots.Snapshot]:
    return [snapshots.read(path) for path in sorted(folder.glob("*.pickle"))]


def test_each_unit_has_what_was_allocated_in_it(allocator: Allocator, chosen: dict[str, Any], tmp_path: Path) -> None:
    allocator.alloc(40 * MIB)
    rollout(allocator, 9, WINDOW="3:7", **chosen)
    (snapshot,) = read(tmp_path)
    (device,) = snapshot.devices
    assert (snapshot.unit, snapshot.cut) == ("decode", False)
    assert [unit.number for unit in device.units] == [3, 4, 5, 6]
    # The warm-up, decode step 2, is recorded and left 1 MiB behind, as did step 1.
    assert [unit.start // MIB for unit in device.units] == [42, 43, 44, 45]
    assert [unit.end // MIB for unit in device.units] == [43, 44, 45, 46]
    assert [unit.allocated // MIB for unit in device.units] == [4, 5, 106, 7]
    assert [unit.allocations for unit in device.units] == [2, 2, 3, 2]
    assert [unit.left // MIB for unit in device.units] == [1, 1, 1, 1]
    assert (device.peak // MIB, device.peak_unit) == (44 + 5 + 100, 5)
    assert {held.origin.frame.rpartition(" ")[2]: held.bytes // MIB for held in device.holders} == {
        "attention": 105, "": 41, "leak": 3,
    }  # fmt: skip
    (grown,) = device.growth
    assert (grown.origin.frame.split()[-1], grown.bytes // MIB, grown.units) == ("leak", 4, (3, 4, 5, 6))
    assert device.in_use + device.unused == device.reserved
    assert device.largest_free == 100 * MIB
    assert device.blocks[0].bytes == 40 * MIB


def test_the_history_ends_with_the_window_and_has_its_metadata(
    allocator: Allocator, chosen: dict[str, Any], tmp_path: Path
) -> None:
    rollout(allocator, 9, WINDOW="3:7", **chosen)
    assert [call for call in allocator.calls if call.startswith("record")] == ["record all", "record None"]
    assert allocator.options == {"context": "alloc", "stacks": "python", "max_entries": 200000}
    (state,) = states(tmp_path).values()
    assert state["state"] == "saved"
    assert [unit["number"] for unit in facts(tmp_path)[0]["units"]] == [3, 4, 5, 6]
    content = pickle.loads(next(tmp_path.glob("*.pickle")).read_bytes())
    assert {"segments", "device_traces"} <= content.keys()


def test_a_window_without_warm_up_begins_with_its_first_unit(
    allocator: Allocator, chosen: dict[str, Any], tmp_path: Path
) -> None:
    rollout(allocator, 5, WINDOW="2:4", WARMUP=0, **chosen)
    (device,) = read(tmp_path)[0].devices
    assert [(unit.number, unit.allocated // MIB) for unit in device.units] == [(2, 3), (3, 4)]


def test_a_window_that_ends_early_has_the_units_that_ran(
    allocator: Allocator, chosen: dict[str, Any], tmp_path: Path
) -> None:
    rollout(allocator, 5, WINDOW="3:100", **chosen)
    (device,) = read(tmp_path)[0].devices
    assert [unit.number for unit in device.units] == [3, 4, 5]
    assert device.peak_unit == 5


def test_an_allocation_that_fails_leaves_a_snapshot(
    allocator: Allocator, chosen: dict[str, Any], tmp_path: Path
) -> None:
    allocator.capacity = 60 * MIB
    with pytest.raises(RuntimeError, match="out of memory"):
        rollout(allocator, 9, WINDOW="3:9", **chosen)
    (path,) = tmp_path.glob("*.out-of-memory.memory.pickle")
    assert abs(int(path.name.split(".")[-4]) - time.time() * 1000) < 60_000, "milliseconds since the epoch"
    (device,) = snapshots.read(path).devices
    (failure,) = device.failures
    assert (failure.unit, failure.requested, failure.free) == (5, 100 * MIB, 512)
    assert [unit.number for unit in device.units] == [3, 4, 5]
    assert len(allocator.observers) == 1


def test_there_is_one_observer_however_many_windows(
    allocator: Allocator, chosen: dict[str, Any], tmp_path: Path
) -> None:
    for _ in range(2):
        rollout(allocator, 4, WINDOW="2:3", **chosen)
    assert len(allocator.observers) == 1
    allocator.capacity = 1
    with pytest.raises(RuntimeError):
        allocator.alloc(MIB)
    assert not [*tmp_path.glob("*.out-of-memory.*")], "no window is open"


def test_a_stage_of_training(allocator: Allocator, chosen: dict[str, Any], tmp_path: Path) -> None:
    stage = Stage(UNIT="micro-batch", WINDOW="1:3", **chosen)
    stage.update(minis=2, micros=2)
    (device,) = read(tmp_path)[0].devices
    assert [unit.number for unit in device.units] == [1, 2]


def test_a_full_history_says_so(
    allocator: Allocator, chosen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = allocator.record
    torch: Any = sys.modules["torch"]
    monkeypatch.setattr(
        (torch.npu if hasattr(torch, "npu") else torch.cuda).memory,
        "_record_memory_history",
        lambda enabled="all", **options: record(enabled, **{**options, "max_entries": 10} if options else {}),
    )
    rollout(allocator, 9, WINDOW="2:8", **chosen)
    (path,) = tmp_path.glob("*.pickle")
    content = pickle.loads(path.read_bytes())
    content["rlpatch"]["most"] = 10
    path.write_bytes(pickle.dumps(content))
    (snapshot,) = read(tmp_path)
    assert snapshot.cut
    assert [unit.number for unit in snapshot.devices[0].units] == [7], "counted from the newest mark"


@pytest.mark.parametrize("tool", [MemoryHistory, TorchProfiler])
def test_no_window_beside_a_recorded_history(tool: Any, allocator: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = sys.modules["torch"]
    if tool is TorchProfiler and not hasattr(torch, "_C"):
        pytest.skip("torch.profiler asks CUDA alone")
    monkeypatch.setattr(
        torch, "autograd", type("autograd", (), {"_profiler_enabled": staticmethod(bool)}), raising=False
    )
    probe = tool.__new__(tool)
    assert probe.conflict() == ""
    allocator.enabled = True
    assert "memory history" in probe.conflict()


def test_a_process_without_a_device_says_so(allocator: Allocator) -> None:
    torch: Any = sys.modules["torch"]
    device = torch.npu if hasattr(torch, "npu") else torch.cuda
    device.is_initialized = lambda: False
    assert "GPU or NPU" in MemoryHistory.__new__(MemoryHistory).conflict()


ON_TORCH_NPU = """
import sys

import torch
import torch_npu

from patches.probes.memory_history import MemoryHistory


class Window(MemoryHistory):
    UNIT, name, first, end = "decode", "window", 3, 6
    save_path = sys.argv[1]

    def say(self, text):
        print(text)


def hold(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="npu")


before, leaks = hold(40), []
window = sys._rlpatch_recording = Window()
print([window.conflict()])
window.open_window(2)
for window.unit in range(3, 6):
    window.next_unit()
    held = hold(window.unit)
    leaks.append(hold(1))
    del held
print(window.conflict())
try:
    hold(1 << 20)
except torch.OutOfMemoryError:
    pass
window.unit = 6
window.close_window()
print([window.conflict()])
"""


@MATRIX
def test_the_allocator_of_torch_npu_writes_what_the_report_reads(npu_python: Path, tmp_path: Path) -> None:
    """torch_npu 2.13 with its own allocator, above a stand-in for the driver of the NPU."""
    script, folder = tmp_path / "script.py", tmp_path / "traces"
    script.write_text(ON_TORCH_NPU)
    folder.mkdir()
    done = subprocess.run(
        [str(npu_python), str(script), str(folder)],
        env=variables(PYTHONPATH=str(REPOSITORY)), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == ["['']", "torch is recording its memory history", "['']"]
    at_end, failed = sorted(folder.iterdir(), key=lambda path: "out-of-memory" in path.name)
    for path in (at_end, failed):
        (device,) = snapshots.read(path).devices
        assert [(unit.number, unit.allocated // MIB, unit.left // MIB) for unit in device.units] == [
            (3, 4, 1), (4, 5, 1), (5, 6, 1),
        ]  # fmt: skip
        assert (device.peak // MIB, device.peak_unit) == (48, 5)
        assert [(held.origin.frame, held.units) for held in device.growth] == [
            (f"{tmp_path.name}/script.py:19 hold", (3, 4, 5))
        ]
    (failure,) = device.failures
    assert (failure.unit, failure.requested >> 40) == (5, 1)
    assert failure.free is not None


CALLED = {
    "_record_memory_history_impl": ["enabled", "context", "stacks", "max_entries"],
    "_snapshot": [], "memory_stats_as_nested_dict": ["device"], "mem_get_info": ["device"],
    "is_initialized": [], "is_available": [], "init": [], "synchronize": [], "current_device": [], "device_count": [],
    "get_device_name": [], "get_device_properties": [],
}  # fmt: skip
"""Function of ``torch.npu`` that memory windows and notes call → the parameters that they pass."""


@pytest.mark.parametrize("version", thinned(releases.TORCH_NPU, releases.TORCH_NPU[-1:]))
def test_every_release_of_torch_npu_has_the_functions_that_are_called(version: str) -> None:
    parameters = {
        function.name: [argument.arg for argument in function.args.args]
        for path in (releases.release(version, "torch-npu") / "torch_npu/npu").glob("*.py")
        for function in ast.parse(path.read_bytes()).body
        if isinstance(function, ast.FunctionDef)
    }
    assert {
        name: [word for word in words if word in parameters.get(name, ())] for name, words in CALLED.items()
    } == CALLED
    assert parameters.keys() >= CALLED.keys()
