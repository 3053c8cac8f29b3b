"""Whole processes: the command line against the least that such a process could do.

Prints ratios of medians of CPU time, user and system, every pair measured in one alternating run:

    python benchmarks/startup.py [RUNS]

- ``rlpatch --help`` and ``rlpatch status`` against a click program with as many commands and no work;
- ``rlpatch apply`` on vllm-ascend 0.11.0rc1 against a Python that imports libcst, parses that file and writes it back.

Run it in an environment with rlpatch and its test extra; the release is downloaded into the cache of the tests.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ratios import measured, tell
from fixtures.releases import release

BARE = """
import click

@click.group()
def group():
    "A bare click program."

for name in ("apply", "diff", "revert", "status", "check", "list", "explain", "recover", "completion"):
    group.command(name)(lambda: None)
group()
"""
REGENERATE = """
import sys, libcst
source = open(sys.argv[1], "rb").read()
open(sys.argv[2], "wb").write(libcst.parse_module(source).bytes)
"""
# Bytecode is there in every installation; a shell that forbids to write it would make Python compile at every start.
ENVIRON = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
WORKER = "vllm_ascend/worker/worker_v1.py"


def alternate(
    variants: Mapping[str, Sequence[str]], runs: int, after: dict[str, Callable[[], None]]
) -> dict[str, float]:
    """Run the variants in turn; return variant → median CPU seconds of its process, without the first turn.

    ``after`` maps a variant to a function to call after each of its runs.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(runs + 1):
        for name, command in variants.items():
            seconds, _ = measured(command, ENVIRON)
            if turn:
                times[name].append(seconds)
            after.get(name, lambda: None)()
    return {name: statistics.median(values) for name, values in times.items()}


def report(title: str, medians: dict[str, float], most: float | None = None) -> None:
    (base, least), (name, more) = medians.items()
    print(f"{title}: {base} {least * 1000:.0f} ms, {name} {more * 1000:.0f} ms")
    tell(f"{title}: {name} / {base}", more / least, most)


def main() -> None:
    """Print what the commands cost, compared with a bare click and a bare LibCST."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    rlpatch = str(Path(sys.executable).parent / "rlpatch")
    with tempfile.TemporaryDirectory() as scratch:
        bare = Path(scratch) / "bare.py"
        bare.write_text(BARE)
        base = {"bare click --help": [sys.executable, str(bare), "--help"]}
        report("help", alternate({**base, "rlpatch --help": [rlpatch, "--help"]}, runs, {}))
        site = Path(scratch) / "site"
        shutil.copytree(release("0.11.0rc1"), site)
        place = ["--path", str(site)]
        status = {**base, "rlpatch status": [rlpatch, "status", *place]}
        report("status, nothing patched", alternate(status, runs, {}), 1.2)
        apply = [rlpatch, "apply", "vllm-ascend==0.11.0rc1", "--decode", "30:60", "--save-path", "/tmp/x", *place]
        regenerate = [sys.executable, "-c", REGENERATE, str(site / WORKER), str(Path(scratch) / "out.py")]

        def revert() -> None:
            subprocess.run([rlpatch, "revert", *place], check=True, stdout=subprocess.DEVNULL, env=ENVIRON)

        variants = {"libcst, parse and write": regenerate, "rlpatch apply": apply}
        report("apply", alternate(variants, runs, {"rlpatch apply": revert}), 1.3)
        subprocess.run(apply, check=True, stdout=subprocess.DEVNULL, env=ENVIRON)
        report("status, one patch", alternate(status, runs, {}))


if __name__ == "__main__":
    main()
