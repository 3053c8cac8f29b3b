"""The cost of the hook of ``rlpatch run`` at the start of a Python process, and where a target is imported.

    python benchmarks/hook.py [RUNS [PYTHON]]

- a process that imports no target, against one with an empty ``sitecustomize``;
- a process that imports the patched worker of vllm-ascend 0.11.0rc1 as the hook hands it out, against one that compiles
  the same bytes from disk: what ``apply`` leaves to the first import.

Processes in turn; prints medians of their time on a processor, what the hook adds, and the ratio. The release is
downloaded into the cache of the tests.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ratios import tell
from fixtures.releases import release_file
from patcher.changes.change import Change, Edit
from patcher.hook.folder import RunFolder

WORKER = PurePosixPath("vllm_ascend/worker/worker_v1.py")
# The loader's code alone: what the file imports is not there. An engine has imported by then what tracebacks need.
LOAD = """
import linecache, sys, threading, traceback
from importlib.machinery import SourceFileLoader
SourceFileLoader("worker_v1", sys.argv[1]).get_code("worker_v1")
"""
Variant = tuple[list[str], Mapping[str, str]]


def alternate(variants: dict[str, Variant], runs: int) -> dict[str, float]:
    """Run the variants in turn; return variant → median CPU seconds of its process, without the first three turns."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(runs + 3):
        for name, (command, environ) in variants.items():
            pid = os.posix_spawn(command[0], command, environ)
            _, status, used = os.wait4(pid, 0)
            assert status == 0
            if turn >= 3:
                times[name].append(used.ru_utime + used.ru_stime)
    return {name: statistics.median(values) for name, values in times.items()}


def report(title: str, medians: dict[str, float]) -> None:
    (base, least), (name, more) = medians.items()
    print(f"{title}\n  {base}: {least * 1000:.2f} ms\n  {name}: {more * 1000:.2f} ms")
    print(f"  {(more - least) * 1000:+.2f} ms")
    tell(f"{title}: {name} / {base}", more / least)


def main() -> None:
    """Print what the import hook costs a process that imports no target, and one that does."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    python = sys.argv[2] if len(sys.argv) > 2 else sys.executable
    clean = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    with tempfile.TemporaryDirectory() as scratch:
        site, empty = Path(scratch, "site").resolve(), Path(scratch, "empty")
        (empty / "sitecustomize").mkdir(parents=True)
        (empty / "sitecustomize" / "__init__.py").write_text("")
        worker = site / WORKER
        worker.parent.mkdir(parents=True)
        before = release_file("0.11.0rc1", str(WORKER))
        worker.write_bytes(before)
        after = before + b"\n# lines of a probe\n" + b"pass\n" * 200
        compiled = Path(scratch, "compiled.py")
        compiled.write_bytes(after)
        run = RunFolder([Edit(site, (Change(WORKER, before, after, before),))])
        try:
            bare = {**clean, "PYTHONPATH": str(empty)}
            start = [python, "-c", "pass"]
            starts: dict[str, Variant] = {
                "an empty sitecustomize": (start, bare),
                "the hook": (start, run.environ(clean)),
            }
            report("a process that imports no target", alternate(starts, runs))
            load = [python, "-B", "-c", LOAD]
            imports: dict[str, Variant] = {
                "compiled from disk": ([*load, str(compiled)], bare),
                "handed out": ([*load, str(worker)], run.environ(clean)),
            }
            report("a process that imports one", alternate(imports, max(runs // 4, 5)))
        finally:
            run.leave()


if __name__ == "__main__":
    main()
