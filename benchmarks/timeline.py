"""The cost of the timeline: a function with its line against the same one without, and bytes on the disk.

    python benchmarks/timeline.py [TURNS]

The recorder is the one that goes in, behind the line that goes in, in a process of its own; with and without in turn,
CPU seconds of the thread. Prints the best of some turns, since other work on the machine only adds; a ratio is a cost
over the most that it may be. The bytes are of 8,000 decode steps with 64 requests, some 16 ms each, of one process
that has ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ratios import tell

ROOT = Path(__file__).resolve().parent.parent
TURNS = 9
PROGRAM = """
import json, random, sys, time, types
from types import SimpleNamespace as Some
from patches.probes.timeline_recorder import VllmTimeline

package = sys.modules["package"] = types.ModuleType("package")
package._rlpatch_timeline = VllmTimeline()
worker = Some(rank=0, vllm_config=Some(parallel_config=Some(data_parallel_rank=0)))

def batch(requests, finished):
    return Some(
        total_num_scheduled_tokens=requests, num_scheduled_tokens=dict.fromkeys(range(requests), 1),
        finished_req_ids={"gone"} if finished else set(), scheduled_new_reqs=[], scheduled_spec_decode_tokens={},
        scheduled_cached_reqs=Some(
            req_ids=[*range(requests)], num_computed_tokens=[500 + n for n in range(requests)]
        ),
    )

def without(self, scheduler_output):
    return None

def request(self, scheduler_output):
    _rlpatch_span = (_rlpatch := getattr(__import__("package"), "_rlpatch_timeline", None)) and _rlpatch.span(
        "serve", "generate"
    )
    return None

def work(self, scheduler_output):
    _rlpatch_span = (_rlpatch := getattr(__import__("package"), "_rlpatch_timeline", None)) and _rlpatch.span(
        "work", "update_actor"
    )
    return None

def iteration(self, scheduler_output):
    _rlpatch_span = (_rlpatch := getattr(__import__("package"), "_rlpatch_timeline", None)) and _rlpatch.iteration(
        self, scheduler_output
    )
    return None

def seconds(function, argument, count):
    begin = time.thread_time_ns()
    for _ in range(count):
        function(worker, argument)
    return (time.thread_time_ns() - begin) / count / 1000

steady = {f"an iteration, {n} requests": (iteration, batch(n, False)) for n in (64, 1024)}
changed = {f"an iteration, {n} requests, one has gone": (iteration, batch(n, True)) for n in (64, 1024)}
variants = {"a request": (request, None), "a work with its notes of memory": (work, None), **steady, **changed}
best = dict.fromkeys(variants, 1e9)
for _ in range(int(sys.argv[1])):
    for name, (function, argument) in variants.items():
        floor = seconds(without, argument, 3000)
        best[name] = min(best[name], seconds(function, argument, 3000) - floor)
        time.sleep(0.6)  # so that no queue is longer than in a run
assert package._rlpatch_timeline.state == "on"  # else nothing was measured
print(json.dumps(best))
"""
DISK = """
import random
from patches.probes.timeline_recorder import TimelineRecorder

recorder, rng = TimelineRecorder(), random.Random(1)
now, requests, context = [10**15], 64, 64 * 200
recorder.clock = lambda: now[0]
for step in range(8000):
    span = recorder.span("iteration", "", None, (requests, requests, context))
    now[0] += int(rng.gauss(15.2e6, 4e5))
    del span
    now[0] += int(rng.gauss(8e5, 1e5))
    context += requests
    if step % 60 == 59:
        recorder.write()
"""
MOST = {" 64 requests": 4.0, " 1024 requests": 8.0, "memory": 20.0}
"""Most microseconds that a record may take, by words of its name; any other may take 2."""


def run(program: str, folder: str, *words: str) -> str:
    """Run a Python program that writes its timeline below ``folder``; return what it prints."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "RLPATCH_SAVE_PATH": folder}
    return subprocess.run(
        [sys.executable, "-c", program, *words], env=environ, check=True, capture_output=True, text=True
    ).stdout


def main() -> None:
    """Print the microseconds and the bytes on the disk that the timeline takes for each record."""
    turns = sys.argv[1] if len(sys.argv) > 1 else str(TURNS)
    with tempfile.TemporaryDirectory() as folder:
        for name, cost in json.loads(run(PROGRAM, folder, turns)).items():
            most = next((limit for words, limit in MOST.items() if words in name), 2.0)
            print(f"{name}: {cost:.2f} µs (at most {most:g})")
            tell(f"timeline: {name}, over {most:g} µs", cost / most, 1.0)
    with tempfile.TemporaryDirectory() as folder:
        run(DISK, folder)
        size = sum(path.stat().st_size for path in Path(folder, "timeline").iterdir()) / 8000
        print(f"on the disk: {size:.1f} bytes an iteration (at most 10)")
        tell("timeline: bytes an iteration, over 10", size / 10, 1.0)


if __name__ == "__main__":
    main()
