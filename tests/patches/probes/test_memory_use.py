"""Memory beside the spans of a timeline: what is noted, where, and what it may cost."""

from __future__ import annotations

import io
import sys
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace as Some
from typing import Any

import pytest

from patches.probes.timeline_recorder import SglangTimeline, TimelineRecorder, VllmTimeline
from tests.patches.probes.timelines import left_by

MIB = 1 << 20
DEVICE = """
MIB, calls = 1 << 20, []
allocated, peak = [0, 300], [0, 900]
def stats(index):
    return {"allocated_bytes": {"all": {"current": allocated[index] * MIB, "peak": peak[index] * MIB}},
            "reserved_bytes": {"all": {"current": 2 * allocated[index] * MIB}}}
def info(index):
    calls.append(index)
    return 5000 * MIB, 8000 * MIB
device = Some(
    is_initialized=lambda: True, device_count=lambda: 2, mem_get_info=info, memory=Some(memory_stats_as_nested_dict=stats),
    get_device_name=lambda index: "stub", get_device_properties=lambda index: Some(uuid="GPU-1" if index else ""),
    is_current_stream_capturing=lambda: False,
)
sys.modules["torch"] = Some(cuda=device)
"""


def _notes(files: Any) -> list[list[int]]:
    return [row for lines in files for line in lines[1:] for row in line.get("memory", ())]


def test_memory_is_noted_at_the_edges_of_phases_and_works_and_not_of_requests(tmp_path: Path) -> None:
    code = """
def f(kind): s = span(kind, "f")
for kind in ("phase", "call", "work", "sync", "sleep", "request", "serve", "trajectory"): f(kind)
"""
    left = left_by(code, tmp_path)
    notes = _notes(left.files)
    assert len(notes) - 2 * 5 in (0, 1)  # one more if the machine is busy before the first
    assert all(len(row) == 3 and 1 < row[1] < 1000 and row[2] <= row[1] for row in notes)
    available, total = left.files[0][1]["host"]
    assert 0 < available < total


def test_memory_is_noted_where_the_first_unit_begins(tmp_path: Path) -> None:
    left = left_by('def f(): s = span("unit", "f")\nf()', tmp_path)
    assert 1 <= len(_notes(left.files)) <= 3  # its end goes without where the begin was slow


def test_the_device_is_the_one_with_this_process_s_memory(tmp_path: Path) -> None:
    code = DEVICE + 'def f(): s = span("work", "f")\nf()\nprint(set(calls))'
    left = left_by(code, tmp_path, CUDA_VISIBLE_DEVICES="5,7")
    assert left.output == "{1}\n"
    assert [row[3:] for row in _notes(left.files)] == [[5000, 300, 600, 900]] * 2
    assert left.files[0][1]["device"] == {"index": 1, "visible": "5,7", "name": "stub", "uuid": "GPU-1", "total": 8000}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("device.is_initialized = lambda: False", ""),
        ("allocated[1] = 0", ""),
        ("device.is_current_stream_capturing = lambda: True", ""),
        ("def info(index): raise OSError(5)\ndevice.mem_get_info = info", "OSError: 5"),
        ("del sys.modules['torch'].cuda", ""),
    ],
)
def test_a_device_that_cannot_be_read_is_left_alone(tmp_path: Path, change: str, said: str) -> None:
    left = left_by(f'{DEVICE}{change}\ndef f(): s = span("work", "f")\nf()\nf()', tmp_path)
    assert left.status == 0
    assert [len(row) for row in _notes(left.files)] == [3] * 4
    assert left.output.count("device memory is not recorded") == bool(said)
    assert said in left.output


def test_memory_that_grows_within_a_span_is_seen_before_it_ends(tmp_path: Path) -> None:
    """A process that the kernel kills for its memory has told of it."""
    code = (
        'def f():\n    s = span("work", "f")\n    hog = bytearray(200 << 20)\n    time.sleep(1.3)\n    os._exit(9)\nf()'
    )
    left = left_by(code, tmp_path)
    first, last = _notes(left.files)[0], _notes(left.files)[-1]
    assert 195 <= last[1] - last[2] - (first[1] - first[2]) <= 215


def test_edges_that_come_often_cost_twenty_microseconds_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.__dict__, "_rlpatch_timeline_1", None)
    recorder, now = TimelineRecorder.__new__(TimelineRecorder), [0]
    recorder.clock = lambda: now[0]
    recorder.clear_notes()
    monkeypatch.setattr(recorder, "process_memory", lambda: (5, 1))
    for _ in range(3):
        recorder.note_memory(True)
    assert len(recorder.notes) == 3

    def slow() -> tuple[int, int]:
        now[0] += 170_000
        return 5, 1

    monkeypatch.setattr(recorder, "process_memory", slow)
    for _ in range(850):
        recorder.note_memory(True)
    assert now[0] / 850 == pytest.approx(20_000, rel=0.1)
    before = len(recorder.notes)
    for _ in range(10):
        recorder.note_memory(False)
    assert len(recorder.notes) == before + 10


def test_a_fork_has_notes_of_its_own(tmp_path: Path) -> None:
    code = """
def f(): s = span("work", "f")
f()
pid = os.fork()
if pid == 0:
    hog = bytearray(100 << 20)
    f()
    recorder.write(True)
    os._exit(0)
os.waitpid(pid, 0)
"""
    left = left_by(code, tmp_path)
    privates = sorted(max(row[1] - row[2] for row in _notes([lines])) for lines in left.files)
    assert privates[1] - privates[0] >= 95


def _engine(kind: type[VllmTimeline] | type[SglangTimeline], monkeypatch: pytest.MonkeyPatch) -> Any:
    recorder = kind.__new__(kind)
    recorder.first, recorder.state, recorder.clock = recorder, "on", lambda: 5000
    recorder.clear_notes()
    monkeypatch.setattr(recorder, "say", lambda text: recorder.notes.append(text), raising=False)
    return recorder


def _unavailable() -> int:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("kind", "scheduler"),
    [
        (
            VllmTimeline,
            Some(kv_cache_manager=Some(block_pool=Some(num_gpu_blocks=101, get_num_free_blocks=lambda: 60))),
        ),
        (
            SglangTimeline,
            Some(
                max_total_num_tokens=100,
                token_to_kv_pool_allocator=Some(available_size=lambda: 45),
                tree_cache=Some(evictable_size=lambda: 15),
            ),
        ),
        (
            SglangTimeline,
            Some(
                max_total_num_tokens=100,
                token_to_kv_pool=Some(available_size=lambda: 45),
                tree_cache=Some(evictable_size=lambda: 15),
            ),
        ),
        (
            SglangTimeline,
            Some(
                max_total_num_tokens=80,
                full_tokens_per_layer=100,
                token_to_kv_pool_allocator=Some(available_size=lambda: 5, full_available_size=lambda: 45),
                tree_cache=Some(evictable_size=_unavailable, full_evictable_size=lambda: 15),
            ),
        ),
    ],
    ids=["vllm", "sglang", "sglang before 0.4.3.post3", "sglang with a sliding window"],
)
def test_the_kv_cache_in_use_is_read_from_the_scheduler(kind: Any, scheduler: Any, monkeypatch: Any) -> None:
    recorder = _engine(kind, monkeypatch)
    recorder.blocks(scheduler)
    recorder.blocks(scheduler)
    total, times, used = recorder.memory_record(2)["blocks"]
    assert (total, [*accumulate(times)], [*accumulate(used)]) == (100, [3, 3], [40, 40])


def test_a_scheduler_of_another_form_has_no_blocks_and_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = _engine(VllmTimeline, monkeypatch)
    recorder.blocks(Some())
    recorder.blocks(Some())
    assert len(recorder.notes) == 1
    assert "KV cache" in recorder.notes[0]


MEMINFO = {"/proc/meminfo": "MemTotal:  8192 kB\nMemFree: 1024 kB\nMemAvailable: 6144 kB\nHugePages_Total: 0\n"}
CGROUP = "/sys/fs/cgroup/memory."
LIMITED = {f"{CGROUP}current": 3 * MIB, f"{CGROUP}stat": f"anon 7\ninactive_file {MIB}\nslab 9"}
VERSION_1 = "/sys/fs/cgroup/memory/memory."
LIMITED_1 = {
    f"{VERSION_1}usage_in_bytes": 3 * MIB,
    f"{VERSION_1}stat": f"inactive_file 5\nhierarchical_memory_limit 8\ntotal_inactive_file {MIB}",
}
HOSTS: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "without a cgroup": (MEMINFO, (6, 8)),
    "without a limit": ({**MEMINFO, f"{CGROUP}max": "max\n", **LIMITED}, (6, 8)),
    "a container with less": ({**MEMINFO, f"{CGROUP}max": 4 * MIB, **LIMITED}, (2, 4)),
    "a container beyond its limit": ({**MEMINFO, f"{CGROUP}max": MIB, **LIMITED}, (0, 1)),
    "a container with as much": ({**MEMINFO, f"{CGROUP}max": 8 * MIB, **LIMITED}, (6, 8)),
    "a container with more": ({**MEMINFO, f"{CGROUP}max": 9 * MIB, **LIMITED}, (6, 8)),
    "a cgroup of another form": ({**MEMINFO, f"{CGROUP}max": 4 * MIB, f"{CGROUP}current": 3 * MIB, f"{CGROUP}stat": "anon 7"}, (6, 8)),
    "a container of version 1": ({**MEMINFO, f"{VERSION_1}limit_in_bytes": 4 * MIB, **LIMITED_1}, (2, 4)),
    "version 1 without a limit": ({**MEMINFO, f"{VERSION_1}limit_in_bytes": 9223372036854771712, **LIMITED_1}, (6, 8)),
    "no system of Linux": ({}, (0, 0)),
    "no size": ({"/proc/meminfo": "MemFree: 5 kB\n"}, (0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTS)
def test_the_memory_of_a_host_is_that_of_its_container_if_that_has_less(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, expected = HOSTS[case]

    def opened(path: str) -> io.StringIO:
        if path not in files:
            raise FileNotFoundError(path)
        return io.StringIO(str(files[path]))

    monkeypatch.setattr("builtins.open", opened)
    assert TimelineRecorder.__new__(TimelineRecorder).host_memory() == expected


def test_the_memory_of_a_process_is_what_the_system_says_of_it() -> None:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    sizes = {line[0]: int(line[1]) >> 10 for line in lines if line[-1] == "kB"}
    resident, shared = TimelineRecorder.__new__(TimelineRecorder).process_memory()
    assert resident == pytest.approx(sizes["VmRSS:"], abs=8)
    assert shared == pytest.approx(sizes["RssFile:"] + sizes["RssShmem:"], abs=8)


@pytest.mark.parametrize(
    ("private", "more", "noted"),
    [(0, 15, False), (0, 16, True), (100, 15, False), (100, -16, True), (1_000, 30, False), (1_000, 31, True)],
)
def test_a_change_within_a_span_is_noted_from_16_mib_and_a_32nd_on(
    private: int, more: int, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = TimelineRecorder.__new__(TimelineRecorder)
    recorder.clock = lambda: 7_000
    recorder.clear_notes()
    monkeypatch.setattr(recorder, "device_memory", lambda: ())
    if private:
        monkeypatch.setattr(recorder, "process_memory", lambda: (private + 50, 50))
        recorder.note_memory(False)
        recorder.notes.clear()
    monkeypatch.setattr(recorder, "process_memory", lambda: (private + more + 50, 50))
    recorder.note_change()
    assert (recorder.changed, recorder.private) == (noted, private + more * noted)
    assert recorder.memory_record(5).get("memory") == ([[2, private + more + 50, 50]] if noted else None)
    assert recorder.changed is False
