"""The cost of a patched ``NPUWorker.execute_model`` beside an unpatched one, before the window and after it, and
with each condition and each feature that is asked for; and what facts and states cost a window that is recorded.

    python benchmarks/execute_model.py [RELEASE]

The real worker of a release, patched by the real command, called with a model runner that does nothing, in one
process and in turn: unpatched, patched, unpatched, … Prints medians, what a call costs more, and the ratio. The
first run builds the environment with torch that the tests use, too.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ratios import tell

REPOSITORY = Path(__file__).resolve().parent.parent

ROUNDS, CALLS = 100, 200
NEVER = "100000000:100000001"
CASES = {
    "window": ("--decode", NEVER),
    "--no-facts": ("--decode", NEVER, "--no-facts"),
    "--live": ("--decode", NEVER, "--live"),
    "two windows": ("--decode", f"{NEVER},200000000:200000001"),
    "--at-load": ("--decode", NEVER, "--at-load", "100000"),
    "--at-tail": ("--decode", NEVER, "--at-tail", "1"),
    "--at-context": ("--decode", NEVER, "--at-context", "100000000"),
    "all three": ("--decode", NEVER, "--at-load", "100000", "--at-tail", "1", "--at-context", "100000000"),
    "--on-demand": ("--on-demand",),
}
"""What is asked for in each variant; none of these windows is reached."""
WINDOWS, STEPS = 15, 30
RECORDED = {
    "without facts": ("--decode", f"2:{2 + STEPS}", "--no-facts"),
    "facts and states": ("--decode", f"2:{2 + STEPS}"),
    "on demand": ("--decode", f"2:{2 + STEPS}", "--on-demand"),
}
"""Windows that are recorded, by torch.profiler on the CPU."""


def main() -> None:
    """Patch copies of a released worker, and print what each patch adds to a call of ``execute_model``."""
    from fixtures import environments
    from fixtures.releases import release
    from patches.vllm_ascend.recipes import V1

    version = sys.argv[1] if len(sys.argv) > 1 else "0.11.0rc1"
    structure = V1.structure(version)
    if structure is None:
        sys.exit(f"{version} is no release with a V1 worker")
    with tempfile.TemporaryDirectory() as scratch:
        site = Path(scratch) / "site"
        shutil.copytree(release(version), site)
        pristine = shutil.copy(site / structure.file, Path(scratch) / "pristine.py")
        apply = [sys.executable, "-m", "patcher", "apply", f"vllm-ascend=={version}", "-q"]
        chosen = ["--tool", "torch", "--save-path", f"{scratch}/rlpatch_traces", "--path", str(site)]
        files = {"unpatched": str(pristine)}
        for number, (case, words) in enumerate({**CASES, **RECORDED}.items()):
            subprocess.run([*apply, *words, *chosen], check=True, cwd=REPOSITORY)
            files[case] = str(shutil.copy(site / structure.file, Path(scratch) / f"patched_{number}.py"))
        job = {"structure": structure.name, "files": files, "traces": f"{scratch}/rlpatch_traces"}
        environ = {**os.environ, **environments.variables(npu=False), "PYTHONPATH": str(REPOSITORY)}
        python = environments.torch_npu_env()
        subprocess.run([python, __file__, "--measure", json.dumps(job)], check=True, env=environ)


def measure(job: dict[str, Any]) -> None:
    """Print what each patched worker adds to a call, and a window to a rollout; runs in the environment with torch."""
    from fixtures.ascend import drive, standins

    modules = drive.prepare({"backend": "torch", "workers": job["files"]})
    print(f"{ROUNDS} rounds of {CALLS} calls each, in turn; medians of a call")
    for when in ("before the window", "after the window"):
        for live in (256, 1024):
            compared = {name: module for name, module in modules.items() if name not in RECORDED}
            workers = {name: _worker(module, job["structure"]) for name, module in compared.items()}
            batch = _decode(standins, job["structure"], live, workers.values())
            if when == "after the window":
                workers = {name: workers[name] for name in ("unpatched", "window")}
                workers["window"]._rlpatch_rollout_probe = None
            medians = _alternate(workers, batch)
            unpatched = medians.pop("unpatched")
            print(f"{when}, {live} live requests: unpatched {unpatched * 1e9:.0f} ns")
            for name, median in medians.items():
                print(f"  {name:14} {(median - unpatched) * 1e9:6.0f} ns more")
                tell(f"{when}, {live} requests: {name} / unpatched", median / unpatched)

    print(f"{WINDOWS} windows of {STEPS} decode steps of 256 requests, in turn; medians of a rollout")
    batches = _rollout(standins, job["structure"])
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in RECORDED}
    for _ in range(WINDOWS):
        for name in RECORDED:
            worker = _worker(modules[name], job["structure"])
            begin, busy = time.perf_counter(), time.process_time()
            for batch in batches:
                worker.execute_model(batch)
            times[name].append((time.perf_counter() - begin, time.process_time() - busy))
            shutil.rmtree(job["traces"])
    for at, clock in enumerate(("passed", "of the CPU")):
        medians = {name: statistics.median(value[at] for value in values) for name, values in times.items()}
        least = medians.pop("without facts")
        print(f"  without facts    {least * 1e3:7.1f} ms {clock}")
        for name, median in medians.items():
            print(f"  {name:16} {median * 1e3:7.1f} ms {clock}, {(median - least) * 1e3:5.1f} ms more")
            tell(f"a window of {STEPS} steps, time {clock}: {name} / without facts", median / least)


def _worker(module: Any, structure: str) -> Any:
    from fixtures.ascend import drive

    return drive.Driver(module, structure, drive.Options(), lambda *_, **__: None).worker


def _decode(standins: Any, structure: str, live: int, workers: Any) -> Any:
    """Return a batch in which ``live`` requests decode, after every worker has seen their prefill."""
    scheduler = standins.Scheduler(live * 4)
    for number in range(live):
        scheduler.add(standins.Request(f"request-{number}", 4, 1_000_000))
    batches = []
    for _ in range(3):
        iteration = scheduler.schedule()
        batches.append(standins.SHAPES[structure](iteration))
        scheduler.done(iteration)
    for worker in workers:
        for batch in batches:
            worker.execute_model(batch)
    return batches[-1]


def _rollout(standins: Any, structure: str) -> list[Any]:
    """Return the batches of a rollout of 256 requests that is two steps longer than the window."""
    scheduler = standins.Scheduler(1024)
    for number in range(256):
        scheduler.add(standins.Request(f"request-{number}", 4, STEPS + 4))
    batches = []
    while scheduler.live or scheduler.finished:
        iteration = scheduler.schedule()
        batches.append(standins.SHAPES[structure](iteration))
        scheduler.done(iteration)
    return batches


def _alternate(workers: dict[str, Any], batch: Any) -> dict[str, float]:
    """Return the median seconds of a call of each worker, measured in turn."""
    times: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(ROUNDS):
        for name, worker in workers.items():
            begin = time.perf_counter()
            for _ in range(CALLS):
                worker.execute_model(batch)
            times[name].append((time.perf_counter() - begin) / CALLS)
    return {name: statistics.median(values) for name, values in times.items()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(json.loads(sys.argv[2]))
    else:
        main()
