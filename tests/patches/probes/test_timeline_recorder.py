"""The recorder of the timeline in real processes: what lies in the file is what was done, and nothing stops a run."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import deque
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from types import SimpleNamespace as Some
from typing import Any

import pytest

from patches.probes.timeline_recorder import LoopTimeline, SglangTimeline, TimelineRecorder, VllmTimeline
from tests.matrix import CRASH, thinned
from tests.patches.probes.timelines import files_of, left_by, rows_of, start
from tests.patches.standin import Console

MS = 1_000_000
CASES = {
    "a function": ('def f(): s = span("work", "f"); time.sleep(0.02)\nf()', ["f"]),
    "one that raises": (
        (
            'def f():\n    s = span("work", "f")\n    raise KeyError\nwith contextlib.suppress(KeyError): f()\n'
            'def g(): s = span("work", "g")\ng()'
        ),
        ["f", "g"],
    ),
    "a generator": (
        (
            '@contextlib.contextmanager\ndef timer(name):\n    s = span("phase", name)\n    yield\n'
            'with timer("outer"):\n    with timer("inner"): pass'
        ),
        ["inner", "outer"],
    ),
    "coroutines": (
        (
            'async def f(name, t):\n    s = span("request", name)\n    await asyncio.sleep(t)\n'
            'async def both(): await asyncio.gather(f("a", 0.05), f("b", 0.01))\nasyncio.run(both())'
        ),
        ["b", "a"],
    ),
    "a coroutine that is cancelled": (
        (
            'async def f():\n    s = span("request", "f")\n    await asyncio.sleep(9)\n'
            "async def main():\n    t = asyncio.create_task(f())\n    await asyncio.sleep(0.01)\n    t.cancel()\n"
            "    await asyncio.wait([t])\nasyncio.run(main())"
        ),
        ["f"],
    ),
    "units of a loop": ('for one in units("micro-batch", [1, 2]): pass', ["micro-batch", "micro-batch"]),
    "a loop that is left": ('for one in units("micro-batch", [1, 2]): break', ["micro-batch"]),
    "units within units of the epoch before": (
        (
            'once = units("mini-batch", [1, 2])\nfor _ in range(2):\n    once = units("mini-batch", once)\n'
            "    assert len(once) == 2\n    for one in once: pass"
        ),
        ["mini-batch"] * 4,
    ),
    "the number of a step, and its log": ('def f():\n    s = step(7)\n    span("work", "f")\nf()', ["", "f", "log"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_span_ends_with_its_frame(tmp_path: Path, case: str) -> None:
    code, names = CASES[case]
    left = left_by(code, tmp_path)
    assert (left.status, left.output, left.ended) == (0, "", names)
    (lines,) = left.files
    assert "end" in lines[-1]
    assert all(row[5] >= 0 for row in left.rows)


@pytest.mark.parametrize(
    ("waits", "longest"),
    [
        ([{1: 0}, {1: 20 * MS}], None), ([{1: 5}, {1: 21 * MS + 5}], 21), ([{1: 5, 2: 0}, {1: 6, 2: 90 * MS}], 90),
        ([{1: 0}, {1: 2000 * MS}], 1000), ([{}, {1: 500 * MS}], None), ([{1: 5}, {}], None), ([{}, {}], None),
    ],
    ids=["2 %", "above", "the longest counts", "no longer than it took", "a new thread", "an ended one", "unknown"],
)  # fmt: skip
def test_a_wait_for_a_cpu_is_noted(
    waits: list[dict[int, int]], longest: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = TimelineRecorder.__new__(TimelineRecorder)
    recorder.waits_before, recorder.waits_read, recorder.cpu_waits = waits[0], 200 * MS, []
    monkeypatch.setattr(recorder, "thread_waits", lambda: waits[1])
    for at in (300, 1_200, 1_300):  # the first and the last come too soon
        recorder.clock = lambda now=at * MS: now
        recorder.note_cpu_wait()
    assert recorder.cpu_waits == ([] if longest is None else [[1_200_000, 1_000_000, longest * 1_000]])
    assert (recorder.waits_before, recorder.waits_read) == (waits[1], 1_200 * MS)


def test_the_waits_of_threads_are_what_the_system_says_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = TimelineRecorder.__new__(TimelineRecorder)
    monkeypatch.setattr(os, "read", lambda _file, _most: b"7 5 3\n")  # time on a CPU, time without one, turns
    waits = recorder.thread_waits()
    assert (waits[os.getpid()], {*waits.values()}) == (5, {5})
    monkeypatch.setattr(os, "open", lambda path, flags: os.dup(10**6))  # fails as for no such file
    assert recorder.thread_waits() == {}


def test_a_wait_for_a_cpu_is_written_although_nothing_ends(tmp_path: Path) -> None:
    """A process that never has a CPU."""
    code = """
recorder.thread_waits = lambda: {1: time.monotonic_ns()}
def f(): s = span("work", "f")
f()
time.sleep(60)
"""
    process = start(code, tmp_path)
    lines: list[dict[str, Any]] = []
    end = time.monotonic() + 30
    while not lines and time.monotonic() < end:
        time.sleep(0.05)
        lines = [line for file in files_of(tmp_path) for line in file if "cpu_waits" in line and "spans" not in line]
    process.kill()
    process.communicate()
    ((at, length, waited),) = lines[0]["cpu_waits"]
    assert -30_000_000 <= at <= 0
    assert max(250_000, waited) <= length <= 2 * waited


@pytest.mark.parametrize(
    ("metrics", "amount"),
    [
        ("", 7), ('{"stale": 1.25}, "stale"', [7, 1.25]), ('{"lr": 1}, "stale"', 7), ('None, "stale"', 7),
        ('{"stale": "old"}, "stale"', 7), ('{"stale": float("inf")}, "stale"', 7),
    ],
)  # fmt: skip
def test_a_step_keeps_how_old_its_weights_were_where_the_trainer_logs_it(
    tmp_path: Path, metrics: str, amount: object
) -> None:
    left = left_by(f"step(7, {metrics})", tmp_path)
    assert (left.status, [row[7] for row in left.rows if row[2] == "step"]) == (0, [amount])


TRAINER = """
trainer, at = TrainerTimeline(), Some(state=Some(global_step=%d), args=Some(process_index=%d))
def training_step(self): s = trainer.training_step(self, "unit", "micro-batch")
def train():
    for _ in range(2):
        for _ in range(2): training_step(at)
        at.state.global_step += 1
        def log(): s = trainer.logged(at, {"loss": 1})
        log()
    def end(): s = trainer.logged(at, {"train_runtime": 1})
    end()
train()
at.state.global_step = 0
train()
"""


@pytest.mark.parametrize(("done", "rank", "steps"), [(0, 0, [1, 2, 1, 2]), (5, 0, [6, 7, 1, 2]), (0, 1, [])])
def test_each_step_of_a_trainer_is_one_work_with_its_number(
    tmp_path: Path, done: int, rank: int, steps: list[int]
) -> None:
    left = left_by(TRAINER % (done, rank), tmp_path)
    assert (left.status, left.output) == (0, "")
    works = {row[0]: row[7] for row in left.rows if row[2] == "work"}
    assert [*works.values()] == [done + 1, done + 2, 1, 2]
    assert [row[7] for row in left.rows if row[2] == "step"] == steps
    assert [row[1] for row in left.rows if row[2] == "unit"] == [work for work in works for _ in range(2)]
    logs = [work for work in works for _ in range(1)]
    assert [row[1] for row in left.rows if row[2] == "phase" and row[1]] == logs


COLLECTIVES = """
class Work:
    def wait(self, seconds=0.05):
        time.sleep(seconds)
        return "done"
class DTensor:
    def full_tensor(self): Work().wait(0.05)
dist = Some(Work=Work, is_available=lambda: True, is_initialized=lambda: True)
dist.get_world_size, dist.get_backend_config = lambda: %d, lambda: "%s"
def alone(name, amount=None):
    s = span("unit", name, None, amount)
alone("before")
sys.modules.update({"torch.distributed": dist, "torch.distributed.tensor": Some(DTensor=DTensor)})
total = 0
def timed(call, *args):
    global total
    begin = time.monotonic_ns()
    with contextlib.suppress(TypeError): call(*args)
    total += time.monotonic_ns() - begin
def inner():
    s = span("wait", "all_reduce")
    timed(Work().wait, 0.1)
def outer():
    s = span("unit", "micro-batch")
    beside = threading.Thread(target=Work().wait, args=(0.4,))
    beside.start()
    inner()
    time.sleep(0.05)
    timed(DTensor().full_tensor)
    timed(Work().wait, "soon")
    beside.join()
outer()
replaced = Work.wait
alone("after", total // 1000)
assert Work.wait is replaced
assert (Work().wait(0), Work.wait.__name__) == ("done", "wait")
"""


@pytest.mark.parametrize(
    ("ranks", "backends", "measured"),
    [
        (2, "cpu:gloo,cuda:gloo", True), (2, "mpi", True), (1, "cpu:gloo,cuda:gloo", False),
        (2, "cpu:gloo,cuda:nccl", False), (2, "nccl", False),
    ],
)  # fmt: skip
def test_a_span_has_the_time_in_collectives_that_block_its_thread(
    tmp_path: Path, ranks: int, backends: str, measured: bool
) -> None:
    left = left_by(COLLECTIVES % (ranks, backends), tmp_path)
    assert (left.status, left.output) == (0, "")
    rows = {row[3]: row[8] for row in left.rows}
    assert rows["before"] is None  # before torch.distributed was imported
    assert rows["after"] == (0 if measured else None)
    if not measured:
        assert {*rows.values()} == {None}
        return
    (total,) = (row[7] for row in left.rows if row[3] == "after")
    assert total >= 150_000
    assert rows["micro-batch"] == pytest.approx(total, abs=20_000)
    assert 100_000 <= rows["all_reduce"] < rows["micro-batch"] - 45_000


WINDOW = """
from patches.probes.pauses import NotedPauses
class Window(NotedPauses):
    STAGE, SAVE_PATH, rank, first, end, name = "window", os.environ["RLPATCH_SAVE_PATH"], 0, 0, 1, "window"
    def conflict(self): return ""
    unit = 0
    def conclude(self, why, traces): self.finish(why, traces)
    def open_window(self, at):
        self.prof = self
        time.sleep(0.02)
    def synchronize(self): pass
    def next_unit(self): pass
    def close_window(self):
        self.prof = None
        time.sleep(0.05)
        return ["trace"]
def train():
    s = span("work", "train")
    window = Window(None)
    window.open(0)
    window.unit = 1
    window.close("complete")
%s
train()
"""


def test_a_window_notes_how_long_it_holds_the_run_back(tmp_path: Path) -> None:
    left = left_by(WINDOW % "", tmp_path)
    assert left.status == 0
    (work,) = (row for row in left.rows if row[2] == "work")
    pauses = {row[3]: (row[1], row[5] >= least) for row, least in zip(left.rows, (20_000, 50_000), strict=False)}
    assert pauses == {"window opened": (work[0], True), "window saved": (work[0], True)}


def test_a_window_needs_no_timeline(tmp_path: Path) -> None:
    left = left_by(WINDOW % "del sys._rlpatch_timeline_1; span = lambda *_: None", tmp_path)
    assert (left.status, left.files) == (0, [])


def test_a_trainer_of_another_form_ends_the_timeline(tmp_path: Path) -> None:
    left = left_by('trainer = TrainerTimeline()\ntrainer.training_step(Some(), "unit", "micro-batch")', tmp_path)
    assert (left.status, left.files) == (0, [])
    assert left.output.startswith("rlpatch: timeline, recording ended: AttributeError")


def test_calls_and_works_of_a_group_have_its_class(tmp_path: Path) -> None:
    """A critic's `fit` must not be taken for one of the actor."""
    code = """
class Actor: pass
class Group: ray_actor_type = Some(__ray_metadata__=Some(modified_class=Actor))
groups = GroupTimeline()
for group in (Group, None):
    span = groups.called(group, "fit")
    del span
span = groups.works(Actor(), "fit")
del span
"""
    left = left_by(code, tmp_path)
    found = [("call", "Actor.fit"), ("call", "fit"), ("work", "Actor.fit")]
    assert (left.status, left.output, [(row[2], row[3]) for row in left.rows]) == (0, "", found)


LOOP = """
loop, group = LoopTimeline(), Some(role="actor")
def update(): call = loop.called(group, "update_weights")
def train(number): call = loop.called(group, "train", number)
"""


def test_a_step_of_a_loop_ends_with_the_weights_or_as_the_next_one_begins(tmp_path: Path) -> None:
    left = left_by(f"{LOOP}update(); train(0); train(0); update(); train(1); train(2); update()", tmp_path)
    ended = [row for row in left.rows if row[5] is not None]
    assert (left.status, left.output, [row[7] for row in ended if row[2] == "step"]) == (0, "", [1, 2, 3])
    waits = [row[0] for row in ended if row[2] == "poll"]
    calls = [(row[3], row[1]) for row in ended if row[2] == "call"]
    order = "update_weights train train update_weights train train update_weights"
    assert [name for name, _ in calls] == [f"actor.{method}" for method in order.split()]
    assert [parent for _, parent in calls] == [0, *[waits[0]] * 3, waits[1], *[waits[2]] * 2]


def test_a_rollout_without_a_number_ends_the_timeline_and_not_the_run(tmp_path: Path) -> None:
    left = left_by(f'{LOOP}train("first"); update(); print("went on")', tmp_path)
    assert left.status == 0
    assert left.output.startswith("rlpatch: timeline, recording ended: TypeError")
    assert left.output.endswith("went on\n")


def test_the_header_names_the_process(tmp_path: Path) -> None:
    left = left_by('span("work", "f")\nprint(os.getpid(), os.getppid())', tmp_path, RANK="3", RLPATCH_RUN="one")
    header = left.files[0][0]
    pid, parent = map(int, left.output.split())
    assert header["rlpatch timeline"] == 1
    assert (header["pid"], header["parent"], header["run"], header["environ"]["RANK"]) == (pid, parent, "one", "3")
    assert "-c" in header["command"].split()
    assert len(header["command"]) == 80
    assert (header["before"], header["host"]) == (1, os.uname().nodename)
    (path,) = (tmp_path / "timeline").iterdir()
    host = "".join(letter if letter.isalnum() else "_" for letter in header["host"])
    assert path.name.startswith(f"{host}_{pid}_")
    assert header["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_process_below_an_actor_of_ray_leaves_its_run_to_that(tmp_path: Path) -> None:
    """The workers of vLLM: Ray names the run of the actor above them, and `rlpatch run` another one in all of them."""
    left = left_by('span("work", "f")', tmp_path, RLPATCH_RUN="one", RAY_RAYLET_PID="7")
    assert left.files[0][0]["run"] == ""


def test_lengths_and_starts_are_microseconds(tmp_path: Path) -> None:
    code = (
        "print(time.monotonic_ns() // 1000)\n"
        'def f(): s = span("work", "f", "key", 5); time.sleep(0.2)\nf()\nprint(time.monotonic_ns() // 1000)'
    )
    left = left_by(code, tmp_path)
    before, after = map(int, left.output.split())
    line = left.files[0][1]
    (row,) = left.rows
    start_of = line["at"][0] + row[4]
    assert 200_000 <= row[5] <= after - before
    assert before <= start_of <= after - row[5]
    assert row[2:4] == ["work", "f"]
    assert row[6:] == ["key", 5, None]
    assert abs(line["at"][1] - time.time_ns() // 1000) < 60_000_000


def test_a_micro_batch_keeps_its_tokens_and_cpu_time_and_never_waits_for_a_device(tmp_path: Path) -> None:
    code = """
from types import SimpleNamespace
class Lengths(list):
    def max(self): return max(self)
def nested(cpu):
    lengths = Lengths([3, 4])
    lengths.is_cpu = cpu
    values = SimpleNamespace(size=(7, 64).__getitem__)
    return SimpleNamespace(is_nested=True, values=lambda: values, offsets=lambda: SimpleNamespace(diff=lambda: lengths))
def padded(cpu):
    mask = SimpleNamespace(is_cpu=cpu, sum=lambda: 9)
    return {"input_ids": SimpleNamespace(is_nested=False, numel=lambda: 12), "attention_mask": mask}
batches = {"input_ids": nested(True)}, {"input_ids": nested(False)}, padded(True), padded(False)
for _ in units("micro-batch", [*batches, SimpleNamespace(batch=padded(True)), {}, 3]): pass
"""
    left = left_by(code, tmp_path)
    assert (left.status, left.output) == (0, "")
    sizes = [[7, 8], [7, None], [9, 12], [None, 12], [9, 12], [None, None], [None, None]]
    assert [row[7][:2] for row in left.rows] == sizes
    assert all(0 <= row[7][2] <= row[5] + 2 for row in left.rows)


def test_a_span_knows_the_one_around_it_in_tasks_and_threads(tmp_path: Path) -> None:
    code = """
async def inner(name):
    s = span("request", name)
    await asyncio.sleep(0.01)
async def outer(name):
    s = span("trajectory", name)
    await asyncio.sleep(0.01)
    await inner(name + "1")
    await inner(name + "2")
async def both(): await asyncio.gather(outer("a"), outer("b"))
asyncio.run(both())
def alone(): s = span("work", "thread")
thread = threading.Thread(target=alone)
thread.start()
thread.join()
"""
    left = left_by(code, tmp_path)
    name_of = {row[0]: row[3] for row in left.rows} | {0: ""}
    around = {row[3]: name_of[row[1]] for row in left.rows}
    assert around == {"a": "", "b": "", "a1": "a", "a2": "a", "b1": "b", "b2": "b", "thread": ""}


def test_what_lasts_is_seen_before_it_ends(tmp_path: Path) -> None:
    process = start('def f():\n    s = span("work", "f")\n    time.sleep(60)\nf()', tmp_path)
    try:
        deadline = time.monotonic() + 30
        while not (files := files_of(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert files[0][1]["spans"][0][3:] == ["f", files[0][1]["spans"][0][4], None]
    finally:
        process.kill()
        process.communicate()


def test_a_fork_has_a_file_of_its_own(tmp_path: Path) -> None:
    code = """
def f():
    s = span("work", "around")
    pid = os.fork()
    def g(): t = span("work", "child" if pid == 0 else "parent")
    g()
    if pid == 0:
        recorder.write(True)
        os._exit(0)
    os.waitpid(pid, 0)
f()
"""
    left = left_by(code, tmp_path)
    named = {lines[0]["pid"]: [row[3] for line in lines[1:] for row in line.get("spans", ())] for lines in left.files}
    assert sorted(named.values()) == [["child"], ["parent", "around"]]
    for lines in left.files:
        assert all(row[0] > lines[0]["before"] for line in lines[1:] for row in line.get("spans", ()))


COLLECT = """
import gc
gc.disable()

def collect(thousands):
    waste = [[number] for number in range(1000 * thousands)]
    del waste[::2]  # so that it is no quick look at one list
    begin = time.monotonic_ns()
    gc.collect()
    return begin, time.monotonic_ns()

def long_ones(name):
    s = span("work", name)
    took, thousands = 0, 500
    while took < 200_000_000:  # a fast machine needs more
        begin, end = collect(thousands)
        took, thousands = end - begin, 2 * thousands
        print(name, begin, end)
"""


def test_a_long_garbage_collection_is_a_span_within_the_current_one_of_its_thread(tmp_path: Path) -> None:
    code = 'long_ones("a")\nthread = threading.Thread(target=long_ones, args=["b"])\nthread.start()\nthread.join()'
    left = left_by(COLLECT + code, tmp_path)
    assert left.status == 0
    (lines,) = left.files
    clocks = [line["at"][0] for line in lines[1:] for _ in line.get("spans", ())]
    around = {row[0]: row[3] for row in left.rows}
    kept = [
        (around[row[1]], row[3], row[7], clock + row[4], clock + row[4] + row[5])
        for clock, row in zip(clocks, rows_of(lines), strict=True)
        if row[2] == "gc"
    ]
    for name, begin, end in map(str.split, left.output.splitlines()):
        inside = [row for row in kept if row[0] == name and int(begin) // 1000 <= row[3] and row[4] <= int(end) // 1000]
        took = (int(end) - int(begin)) // 1000
        if took > 200_000:  # it is Python's collector that takes this time
            ((_, what, generation, start_us, end_us),) = inside
            assert (what, generation) == ("garbage collection", 2)
            assert took / 2 < end_us - start_us <= took


@pytest.mark.parametrize(("ns", "kept"), [(50 * MS, False), (50 * MS + 1, True)])
def test_a_collection_of_over_50_ms_is_kept(ns: int, kept: bool, recorder: LoopTimeline) -> None:
    recorder.collected("stop", {})  # of one that had begun before
    for moment, now in (("start", 7), ("stop", 7 + ns), ("stop", 7_000 * MS)):  # and one whose start was not told
        recorder.clock = lambda now=now: now
        recorder.collected(moment, {"generation": 1})
    assert [row[2:] for row in recorder.rows] == (
        [["gc", "garbage collection", 7, 7 + ns, None, 1, None]] if kept else []
    )


def test_no_collection_is_kept_where_the_timeline_has_ended(recorder: LoopTimeline) -> None:
    recorder.state = "off"
    for moment, now in (("start", 7), ("stop", 7_000 * MS)):
        recorder.clock = lambda now=now: now
        recorder.collected(moment, {"generation": 1})
    assert not recorder.rows


def test_collections_are_watched_once_in_each_process_until_the_timeline_ends(tmp_path: Path) -> None:
    code = """
import gc
def watched(): print(sum("collected" in str(call) for call in gc.callbacks), flush=True)
def f(recorder): s = recorder.span("work", "f")
watched()
f(recorder)
f(VllmTimeline())
watched()
if not (child := os.fork()):
    watched()
    f(recorder)
    watched()
    os._exit(0)
os.waitpid(child, 0)
f(recorder)
watched()
recorder.stop(KeyError())
while gc.callbacks: time.sleep(0.01)
watched()
"""
    left = left_by(code, tmp_path)
    assert left.status == 0
    counts = [line for line in left.output.splitlines() if line.isdigit()]
    assert counts == ["0", "1", "1", "1", "1", "0"]


def test_a_fork_keeps_its_own_collections(tmp_path: Path) -> None:
    code = """
long_ones("parent")
if not (child := os.fork()):
    long_ones("child")
    recorder.write(True)
    os._exit(0)
os.waitpid(child, 0)
"""
    left = left_by(COLLECT + code, tmp_path)
    assert left.status == 0
    assert len(left.files) == 2
    for lines in left.files:
        rows = rows_of(lines)
        identities = {row[0] for row in rows}
        assert any(row[2] == "gc" for row in rows)
        assert all(row[0] > lines[0]["before"] and row[1] in identities for row in rows if row[2] == "gc")


def test_the_thread_imports_no_module_of_files_first(tmp_path: Path) -> None:
    """A fork during such an import would hang as soon as it imports the module, too."""
    code = """
modules = ["json", "zlib"]
for module in modules: sys.modules.pop(module, None)
recorder.wake.wait = lambda _: time.sleep(60)
def f(): s = span("work", "f")
f()
print(*(module in sys.modules for module in modules), flush=True)
"""
    assert left_by(code, tmp_path).output.split() == ["True", "True"]


def test_two_packages_of_a_process_share_a_file(tmp_path: Path) -> None:
    code = 'other = VllmTimeline()\ndef f():\n    s = span("work", "one")\n    t = other.span("work", "other")\nf()'
    left = left_by(code, tmp_path)
    assert left.ended == ["other", "one"] or left.ended == ["one", "other"]
    assert len(left.files) == 1


def test_threads_lose_nothing(tmp_path: Path) -> None:
    code = """
def work(name):
    def f(): s = span("work", name)
    for _ in range(2000): f()
threads = [threading.Thread(target=work, args=[str(n)]) for n in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
"""
    left = left_by(code, tmp_path)
    assert len(left.rows) == 16000
    assert len({row[0] for row in left.rows}) == 16000


STOPPED = {
    "a folder that cannot be made": ({"RLPATCH_SAVE_PATH": "/proc/none"}, "FileNotFoundError"),
    "a path that is none": ({"RLPATCH_SAVE_PATH": "here"}, "RLPATCH_SAVE_PATH='here' is not valid"),
    "a size that is none": ({"RLPATCH_MAX_TIMELINE_MB": "none"}, "RLPATCH_MAX_TIMELINE_MB='none' is not valid"),
}


@pytest.mark.parametrize("case", STOPPED)
def test_a_failure_is_one_line_and_the_run_goes_on(tmp_path: Path, case: str) -> None:
    environ, why = STOPPED[case]
    code = 'def f(): s = span("work", "f")\nf()\ntime.sleep(0.8)\nfor _ in range(9): f()\nprint("done")'
    left = left_by(code, tmp_path, **{"RLPATCH_SAVE_PATH": str(tmp_path), **environ})
    assert left.status == 0
    said, *rest = left.output.splitlines()[::-1][1:]
    assert left.output.splitlines()[-1] == "done"
    assert rest == []
    assert said.startswith("rlpatch: timeline, recording ended: ")
    assert why in said


def test_a_full_disk_ends_the_timeline_and_not_the_run(tmp_path: Path) -> None:
    code = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
def f(n): s = span("work", os.urandom(400).hex())
f(0)
time.sleep(0.8)
for n in range(30): f(n)
time.sleep(0.8)
f(0)
print("done")
"""
    left = left_by(code, tmp_path)
    assert left.status == 0
    assert "rlpatch: timeline, recording ended: OSError: [Errno 27] File too large; the run goes on" in left.output
    assert left.output.splitlines()[-1] == "done"
    assert left.files[0][0]["rlpatch timeline"] == 1


def test_what_a_process_cannot_write_at_its_end_is_said(tmp_path: Path) -> None:
    code = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def f(n): s = span("unit", os.urandom(400).hex())
f(0)
time.sleep(0.8)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
for n in range(30): f(n)
"""
    left = left_by(code, tmp_path)
    assert left.status == 0
    assert "rlpatch: timeline, recording ended: OSError: [Errno 27] File too large; the run goes on" in left.output


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    left = left_by('def f(): s = span("work", "f")\nf()\nassert units("x", [1]).units == [1]', tmp_path, RLPATCH="0")
    assert (left.status, left.output, left.files) == (0, "", [])


def test_the_newest_half_stays(tmp_path: Path) -> None:
    code = """
def f(name): s = span("work", name)
for n in range(60):
    for m in range(400): f("%s " % n + os.urandom(40).hex())
    recorder.write()
"""
    left = left_by(code, tmp_path, RLPATCH_MAX_TIMELINE_MB="1")
    sizes = [path.stat().st_size for path in (tmp_path / "timeline").iterdir()]
    assert len(sizes) == 2
    assert sum(sizes) < 1_100_000
    assert [lines[0]["rlpatch timeline"] for lines in left.files] == [1, 1]
    numbers = [int(name.split()[0]) for name in left.ended]
    assert numbers[-1] == 59
    assert numbers == sorted(numbers)
    assert 0 < numbers[0] < 59


def _batch(
    tokens: list[int],
    context: list[int],
    *,
    new: int = 0,
    finished: int = 0,
    old: bool = False,
    drafts: dict[str, list[int]] | None = None,
) -> Some:
    before = [total - count for total, count in zip(context, tokens, strict=True)]
    cached = before[new:]
    return Some(
        total_num_scheduled_tokens=sum(tokens),
        num_scheduled_tokens=dict(enumerate(tokens)),
        scheduled_spec_decode_tokens=drafts or {},
        finished_req_ids=set(range(finished)),
        scheduled_new_reqs=[Some(req_id=n, num_computed_tokens=count) for n, count in enumerate(before[:new])],
        scheduled_cached_reqs=[Some(req_id=n, num_computed_tokens=count) for n, count in enumerate(cached, new)]
        if old
        else Some(req_ids=[*range(new, len(tokens))], num_computed_tokens=cached),
    )


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> VllmTimeline:
    """A recorder whose spans have the amounts of iterations as their rows."""
    monkeypatch.setitem(__import__("sys").__dict__, "_rlpatch_timeline_1", None)
    recorder = VllmTimeline.__new__(VllmTimeline)
    recorder.first, recorder.who = recorder, {}
    monkeypatch.setattr(recorder, "span", lambda _kind, _name, _key, amount: Some(row=amount), raising=False)
    recorder.notes = []
    monkeypatch.setattr(recorder, "note_memory", recorder.notes.append, raising=False)
    return recorder


def _vllm_worker(rank: int = 0, **parallel: int) -> Some:
    return Some(rank=rank, vllm_config=Some(parallel_config=Some(**parallel)))


@pytest.mark.parametrize("old", [False, True])
def test_an_iteration_of_vllm_holds_requests_tokens_and_contexts(vllm: VllmTimeline, old: bool) -> None:
    batches = [
        (_batch([24, 30], [24, 30], new=2, old=old), (2, 54, 54, 30)),
        (_batch([1, 1], [25, 31], old=old), (2, 2, 56, 31)),
        (_batch([1, 1], [26, 32], old=old), (2, 2, 58, 32)),
        (_batch([1], [33], finished=1, old=old), (1, 1, 33, 33)),
        (_batch([], [], finished=1, old=old), None),
        (_batch([7], [107], new=1, old=old), (1, 7, 107, 107)),  # a prefix is in the cache
        (_batch([4], [111], drafts={"a": [5, 6, 7]}, old=old), (1, 1, 108, 108)),  # a decode step with three drafts
        (_batch([4], [113], drafts={"a": [5, 6, 7]}, old=old), (1, 1, 110, 110)),  # of which two were right
        (_batch([50, 1], [50, 114], new=1, old=old), (2, 51, 164, 114)),
        (_batch([70, 1], [120, 115], old=old), (2, 71, 235, 120)),  # the second part of a prompt
        (_batch([1, 1], [121, 116], old=old), (2, 2, 237, 121)),
    ]
    batches[2][0].scheduled_cached_reqs = None  # nobody came or went: nothing is added up
    worker, spans = _vllm_worker(data_parallel_rank=2), []
    for batch, _ in batches:
        spans.append(vllm.iteration(worker, batch))
        assert vllm.iterating is (spans[-1].row if spans[-1] else vllm.iterating)
    assert [span and span.row[:4] for span in spans] == [amount for _, amount in batches]
    assert [span.row[5] for span in spans if span] == [1, 1, 1, 1, 2, 2, 2, 2, 2, 2]
    assert vllm.notes == [False, False]  # of the memory, where a rollout begins
    cpu = [span.row[4] for span in spans if span]
    assert 0 < cpu[0] <= cpu[-1] < time.thread_time_ns()
    assert cpu == sorted(cpu)
    assert vllm.who == {"rank": 0, "dp": 2}


@pytest.mark.parametrize(
    ("ranks", "rank", "parallel", "kept", "dp"),
    [
        ("0", 0, {}, True, 0), ("0", 1, {"data_parallel_rank": 2}, False, 2), ("1,3", 3, {}, True, 0),
        ("all", 9, {"data_parallel_index": 4, "data_parallel_rank": 2}, True, 4),
    ],
)  # fmt: skip
def test_iterations_are_kept_on_the_chosen_ranks(
    vllm: VllmTimeline,
    monkeypatch: pytest.MonkeyPatch,
    ranks: str,
    rank: int,
    parallel: dict[str, int],
    kept: bool,
    dp: int,
) -> None:
    monkeypatch.setattr(VllmTimeline, "RANKS", ranks)
    assert (vllm.iteration(_vllm_worker(rank, **parallel), _batch([1], [9])) is not None) is kept
    assert vllm.who == {"rank": rank, "dp": dp}


def test_an_engine_of_another_form_ends_the_timeline(vllm: VllmTimeline, console: Console) -> None:
    assert vllm.iteration(Some(), Some()) is None
    assert "rlpatch: timeline, recording ended: AttributeError" in console.text
    assert vllm.counted is False


@pytest.mark.parametrize(
    ("extends", "extended", "lengths", "context", "amount"),
    [
        (True, 40, None, 90, (3, 40, 90, 0)),  # before 0.5.3
        (False, None, [30, 31, 32], 93, (3, 3, 93, 32)),
        (False, None, [30, 31, 32], None, (3, 3, 93, 32)),  # without a sum from 0.5.2x on
        (False, None, None, None, (3, 3, 0, 0)),
    ],
)
def test_an_iteration_of_sglang_holds_requests_tokens_and_contexts(
    monkeypatch: pytest.MonkeyPatch,
    extends: bool,
    extended: int | None,
    lengths: list[int] | None,
    context: int | None,
    amount: object,
) -> None:
    recorder = SglangTimeline.__new__(SglangTimeline)
    recorder.first, recorder.who = recorder, {}
    monkeypatch.setattr(recorder, "span", lambda _kind, _name, _key, amount: Some(row=amount), raising=False)
    batch = Some(
        reqs=[None] * 3,
        forward_mode=Some(is_extend=lambda: extends),
        extend_num_tokens=extended,
        seq_lens_sum=context,
        seq_lens_cpu=lengths and Some(sum=lambda: sum(lengths), max=lambda: max(lengths)),
    )
    assert recorder.iteration(Some(tp_rank=0), batch).row[:4] == amount
    assert recorder.iteration(Some(tp_rank=0), Some(reqs=[])) is None


@pytest.mark.parametrize(
    ("worker", "context", "dp"),
    [
        (Some(), None, 0), (Some(dp_rank=None), None, 0), (Some(dp_rank=3), None, 3),
        (Some(dp_rank=None, attn_dp_rank=2), None, 2), (Some(ps=Some(dp_rank=5, attn_dp_rank=0)), None, 5),
        (Some(), Some(dp_rank=4), 4), (Some(ps=Some(dp_rank=1)), Some(dp_rank=4), 1),
    ],
    ids=["alone", "not parallel", "0.4.9", "attention", "0.5.13", "0.5.21", "both"],
)  # fmt: skip
def test_an_engine_of_sglang_tells_its_rank_and_that_of_its_replica(
    monkeypatch: pytest.MonkeyPatch, worker: Some, context: Some | None, dp: int
) -> None:
    modules = {"torch.distributed": Some(is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 6)}
    if context:
        modules["sglang.srt.runtime_context"] = Some(get_parallel=lambda: context)
    for name, module in modules.items():
        monkeypatch.setitem(__import__("sys").modules, name, module)
    recorder = SglangTimeline.__new__(SglangTimeline)
    recorder.first, recorder.who = recorder, {}
    recorder.iteration(worker, Some(reqs=[]))
    assert recorder.who == {"rank": 6, "dp": dp}


def test_a_rollout_of_sglang_begins_where_no_request_is_older(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = SglangTimeline.__new__(SglangTimeline)
    recorder.first, recorder.who = recorder, {}
    monkeypatch.setattr(recorder, "span", lambda _kind, _name, _key, amount: Some(row=amount), raising=False)
    a, b, c, d = (Some(rid=name) for name in "abcd")
    batches = [  # requests, whether they prefill, and those that decode and wait
        ([a], True, []), ([a, b], True, []), ([c], True, [a, b]), ([a, b, c], False, [a, b, c]), ([c], False, [c]),
        ([d], True, []),
    ]  # fmt: skip
    rollouts = []
    for requests, extends, running in batches:
        mode = Some(is_extend=lambda extends=extends: extends)
        batch = Some(reqs=requests, forward_mode=mode, extend_num_tokens=9, seq_lens_sum=90)
        rollouts.append(recorder.iteration(Some(running_batch=Some(reqs=running)), batch).row[5])
    assert rollouts == [1, 1, 1, 1, 1, 2]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> LoopTimeline:
    """A recorder of this process that is on, and has neither a thread nor a file."""
    monkeypatch.setitem(sys.__dict__, "_rlpatch_timeline_1", None)
    del sys.__dict__["_rlpatch_timeline_1"]
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    recorder = LoopTimeline()
    recorder.state = "on"
    return recorder


@pytest.mark.parametrize(
    "kind", ["phase", "call", "work", "unit", "sync", "sleep", "request", "iteration", "poll", "step"]
)
def test_the_memory_is_noted_at_both_ends_of_a_span_and_a_step_or_work_is_written_soon(
    recorder: LoopTimeline, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    notes: list[bool] = []
    monkeypatch.setattr(recorder, "note_memory", notes.append)
    span = recorder.span(kind, "x")
    noted = kind in ("phase", "call", "work", "unit", "sync", "sleep")
    assert notes == [kind == "unit"] * noted
    assert (recorder.wake.is_set(), len(recorder.rows), len(recorder.open)) == (kind == "step", 0, 1)
    del span
    assert notes == [kind == "unit"] * noted * 2
    assert (recorder.wake.is_set(), len(recorder.rows), len(recorder.open)) == (kind in ("step", "work"), 1, 0)
    assert recorder.current.get() == 0


def test_a_call_of_a_loop_lasts_as_long_as_its_frame(recorder: LoopTimeline) -> None:
    call = recorder.called(Some(role="critic"), "fit")
    inner = recorder.span("phase", "x")
    assert ([row[3] for row in recorder.rows], inner.row[1]) == ([], call.span.row[0])
    del inner, call
    assert [row[3] for row in recorder.rows] == ["x", "critic.fit"]


def test_a_unit_has_the_cpu_time_of_its_body_in_microseconds(
    recorder: LoopTimeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "thread_time_ns", iter([5_000_000, 8_000_999, 9_000_000, 9_000_999, 0, 0, 0, 0]).__next__)
    assert len([*recorder.units("micro-batch", [1, 2])]) == 2
    assert [row[7] for row in recorder.rows] == [[None, None, 3000], [None, None, 0]]
    recorder.state = "off"
    assert [*recorder.units("micro-batch", [1, 2])] == [1, 2]


@pytest.mark.parametrize(
    ("missing", "measured"), [("the module", None), ("is_available", None), ("is_initialized", None), ("", False)]
)
def test_waits_are_looked_for_once_there_is_a_world(
    recorder: LoopTimeline, monkeypatch: pytest.MonkeyPatch, missing: str, measured: bool | None
) -> None:
    dist: Any = ModuleType("torch.distributed")
    for name in ("is_available", "is_initialized"):
        setattr(dist, name, lambda name=name: name != missing)
    dist.get_world_size, dist.get_backend_config = lambda: 1, lambda: "cpu:gloo"
    monkeypatch.setitem(sys.modules, "torch.distributed", None if missing == "the module" else dist)
    assert recorder.waited() is None
    assert recorder.measured is measured


@pytest.mark.parametrize(
    ("rows", "changed", "in_use", "last", "is_open", "written"),
    [
        (0, False, 0, False, True, False), (1, False, 0, False, False, True), (0, True, 0, False, False, True),
        (0, False, 1, False, False, True), (0, False, 0, True, True, True), (0, False, 0, True, False, False),
    ],
)  # fmt: skip
def test_a_line_is_written_if_there_is_something_new(
    recorder: LoopTimeline,
    tmp_path: Path,
    rows: int,
    changed: bool,
    in_use: int,
    last: bool,
    is_open: bool,
    written: bool,
) -> None:
    recorder.folder, recorder.pid, recorder.most_bytes = str(tmp_path / "timeline"), 7, 10**6
    if is_open:
        recorder.open_file(1)
    for _ in range(rows):
        recorder.span("phase", "x")
    for _ in range(in_use):
        recorder.in_use.append((recorder.clock(), 5))
    recorder.changed = changed
    recorder.write(last)
    if recorder.file is not None:
        if recorder.state == "on":
            recorder.put(recorder.stream.flush())
        os.close(recorder.file)
    lines = [line for lines in files_of(tmp_path) for line in lines[1:]]
    assert (len(lines), recorder.state) == (written, "off" if last and written else "on")
    assert [line.get("end") for line in lines] == ["off" if last else None] * written
    starts = [span[4] for line in lines for span in line.get("spans", ())]
    notes = [row[0] for line in lines for row in line.get("memory", ())]
    readings = [line["blocks"][1][0] for line in lines if "blocks" in line]
    assert (len(starts), len(notes) > 0, len(readings)) == (rows, rows > 0, in_use)
    assert all(-60_000_000 < at <= 0 for at in (*starts, *notes, *readings)), "microseconds before the line"


def test_a_file_above_half_the_limit_is_replaced_and_tells_all_anew(recorder: LoopTimeline, tmp_path: Path) -> None:
    recorder.folder, recorder.pid, recorder.most_bytes = str(tmp_path / "timeline"), 7, 1_001
    recorder.ABOUT = {"rlpatch": "1.2", "target": "verl", "release": "0.9.1"}
    files = []
    for written in (0, 500, 501):
        recorder.written, recorder.who_written, recorder.device_written = written, {"rank": 1}, {"index": 0}
        recorder.open_file(5)
        files.append((recorder.file, recorder.who_written, recorder.device_written, recorder.written < 500))
    recorder.put(recorder.stream.flush())
    os.close(recorder.file or 0)
    assert (files[1][0], files[1][1:]) == (files[0][0], ({"rank": 1}, {"index": 0}, False)), (
        "at half of it nothing changes"
    )
    assert files[0][1:] == files[2][1:] == ({}, None, True)
    names = sorted(path.name.partition("_7_")[2] for path in (tmp_path / "timeline").iterdir())
    assert names == ["5.jsonl.gz", "5.jsonl.gz.old"]
    headers = [{name: lines[0][name] for name in ("tool", "package", "release")} for lines in files_of(tmp_path)]
    assert headers == [{"tool": "1.2", "package": "verl", "release": "0.9.1"}] * 2


def test_a_span_that_lasts_is_told_once_and_forgotten_when_it_has_ended(recorder: LoopTimeline) -> None:
    recorder.clock = lambda: 5_000 * MS
    span = recorder.span("request", "lasts")
    rows, ended = recorder.rows, span.row
    for now, begun in ((6_000 * MS, []), (6_000 * MS + 1, [ended]), (9_000 * MS, [])):
        assert recorder.new_rows(now) == ([], begun)
    assert recorder.reported == {ended[0]}
    del span
    assert (recorder.new_rows(9_000 * MS), len(rows), recorder.reported) == (([ended], []), 0, set())


def test_records_are_written_in_microseconds_before_their_block() -> None:
    """An iteration that goes on is not written, a span that does has no length and no wait."""
    recorder = TimelineRecorder.__new__(TimelineRecorder)
    recorder.who, recorder.who_written = {"rank": 1, "dp": 0}, {}
    rows = [
        [7, 0, "work", "f", 5_000_999, 9_001_000, "key", 5, 1_999_999], [8, 7, "phase", "p", 6_000_000, 6_500_000, None, None, None],
        [9, 0, "iteration", "", 7_000_000, 7_004_500, None, (4, 5, 100, 30, 55, 1), None],
        [10, 0, "iteration", "", 8_000_000, 8_003_000, None, (3, 3, 90, 29, 60, 2), None],
    ]  # fmt: skip
    begun = [
        [11, 7, "unit", "u", 9_000_000, None, None, None, 5_000],
        [12, 0, "iteration", "", 9_500_000, None, None, (1,), None],
    ]
    spans = [[7, 0, "work", "f", -5_000, 4_001, "key", 5, 1_999], [8, 7, "phase", "p", -4_000, 500]]
    iterations = [[9, 1], [-3_000, 1_000], [4, 3], [4, -1], [5, -2], [100, -10], [30, -1], [55, 5], [1, 1]]
    going_on = [11, 7, "unit", "u", -1_000, None]
    assert recorder.span_record(rows, begun, 10_000) == {
        "who": {"rank": 1, "dp": 0}, "spans": [*spans, going_on], "iterations": iterations
    }  # fmt: skip
    assert recorder.span_record([], [], 10_000) == {}
    assert recorder.span_record([], begun, 9_000) == {"spans": [[*going_on[:4], 0, None]]}


def test_iterations_are_columns_of_differences(tmp_path: Path) -> None:
    code = """
def f(*amount): s = span("iteration", "", None, amount); time.sleep(0.001)
for n in range(200): f(16, 16, 1000 + 16 * n)
"""
    left = left_by(code, tmp_path)
    columns = [line["iterations"] for line in left.files[0][1:] if "iterations" in line]
    contexts = [value for one in columns for value in accumulate(one[5])]
    assert contexts == [1000 + 16 * n for n in range(200)]
    starts = [value for one in columns for value in accumulate(one[1])]
    assert len(starts) == 200
    assert all(length >= 1000 for one in columns for length in one[2])
    assert left.rows == []


def _kill(folder: Path, seed: int) -> None:
    """Kill a recorder somewhere; what it had done a second before is there, and every line is whole."""
    code = """
def f(n): s = span("work", str(n)); time.sleep(0.001)
n = 0
while True:
    f(n)
    n += 1
    os.write(1, b"%d %d\\n" % (n, time.monotonic_ns()))
"""
    process = start(code, folder)
    assert process.stdout
    begun = process.stdout.readline()  # on a busy machine an interpreter takes seconds to start
    time.sleep(1.2 + random.Random(seed).random())
    killed = time.monotonic_ns()
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    done = [line.split() for line in (begun + output).splitlines()]
    before = max((int(n) for n, at in filter(lambda pair: len(pair) == 2, done) if int(at) < killed - 10**9), default=0)
    (lines,) = files_of(folder)
    names = [row[3] for line in lines[1:] for row in line.get("spans", ())]
    assert names == [str(n) for n in range(len(names))]
    assert len(names) >= before


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        count = 100 if metafunc.config.getoption("--thorough") else 10
        metafunc.parametrize("seed", thinned(range(count), [0], CRASH))


def test_a_killed_process_loses_a_second_at_most(tmp_path: Path, seed: int) -> None:
    _kill(tmp_path, seed)


def test_nothing_is_written_where_nothing_is_recorded(tmp_path: Path) -> None:
    assert left_by("time.sleep(0.1)", tmp_path).files == []
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("initialized", "environ", "name"),
    [
        (True, {"RLPATCH_RUN": "x"}, "10.0.0.1:6379 07000000"), (False, {"RLPATCH_RUN": "x"}, "x"), (None, {"RLPATCH_RUN": "x"}, "x"), (None, {}, ""),
        (None, {"RLPATCH_RUN": "x", "RAY_RAYLET_PID": "9"}, ""),
    ],
)  # fmt: skip
def test_a_run_has_the_name_of_rays_job_else_that_of_its_environment(
    initialized: bool | None, environ: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("RLPATCH_RUN", "RAY_RAYLET_PID"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    context = Some(gcs_address="10.0.0.1:6379", get_job_id=lambda: "07000000")
    ray = Some(is_initialized=lambda: initialized, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", None if initialized is None else ray)
    assert TimelineRecorder.__new__(TimelineRecorder).run_name() == name


@pytest.mark.parametrize(("counted", "requests"), [(True, []), (False, ["a"])])
def test_an_iteration_of_sglang_without_requests_or_of_another_rank_is_not_recorded(
    counted: bool, requests: list[str]
) -> None:
    errors: list[object] = []
    made: Any = SglangTimeline.__new__(SglangTimeline)
    made.__dict__.update(counted=counted, first=Some(stop=errors.append))
    assert made.iteration(Some(), Some(reqs=requests)) is None
    assert errors == []


def test_blocks_of_a_cache_are_differences_in_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = VllmTimeline.__new__(VllmTimeline)
    monkeypatch.setattr(VllmTimeline, "host_memory", lambda _: [5, 9])
    made.__dict__.update(
        notes=deque(), in_use=deque([(7_000_999, 30), (9_500_000, 20)]), device=None, cache_size=40, changed=True
    )
    assert made.memory_record(9_000) == {"host": [5, 9], "blocks": [40, [-2_000, 2_500], [30, -10]]}
    assert made.memory_record(9_000) == {"host": [5, 9]}
    assert made.changed is False
