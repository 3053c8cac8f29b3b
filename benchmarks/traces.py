"""``rlpatch report`` and ``compare`` on a large trace, against the least that reading it costs: CPU time and memory.

Repeats a real trace of torch.profiler, plain or gzip, until it has so many MB, with its times, correlations and step
numbers set forward, then runs each of these in a process of its own and prints ratios:

    python benchmarks/traces.py TRACE [MB] [RUNS]

- a bare typed parse of the file with msgspec in blocks as the report reads them, which keeps nothing;
- ``json.load`` of the whole file;
- ``rlpatch report FILE --json``;
- ``rlpatch compare FILE FILE --json``.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ratios import measured, tell
from fixtures.repeated import repeated

BARE = """
import sys
from pathlib import Path
from patcher.traces.formats.chrome import ChromeEvents
print(sum(map(len, ChromeEvents(Path(sys.argv[1])))))
"""
LOAD = """
import json, sys
print(len(json.load(open(sys.argv[1], "rb"))["traceEvents"]))
"""


def main() -> None:
    """Print what `report` and `compare` cost on a repeated trace, compared with parsing its JSON alone."""
    source, megabytes = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 500.0
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "repeated.json"
        count = repeated(source, file, megabytes)
        size = file.stat().st_size / 1e6
        print(f"{size:.0f} MB, {count:,} events, {runs} runs each")
        rlpatch = [sys.executable, "-m", "patcher"]
        ways = {
            "bare typed parse": [sys.executable, "-c", BARE, str(file)],
            "json.load": [sys.executable, "-c", LOAD, str(file)],
            "report": [*rlpatch, "report", str(file), "--json"],
            "compare": [*rlpatch, "compare", str(file), str(file), "--json"],
        }
        measurements: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(runs):
            for name, command in ways.items():
                measurements[name].append(measured(command))
        cpu = {name: statistics.median(seconds for seconds, _ in rows) for name, rows in measurements.items()}
        peak = {name: max(memory for _, memory in rows) for name, rows in measurements.items()}
        for name in ways:
            print(f"{name:18}{cpu[name]:8.2f} s of CPU{peak[name]:9.0f} MB")
        tell("report / bare typed parse", cpu["report"] / cpu["bare typed parse"], 3)
        tell("report / json.load", cpu["report"] / cpu["json.load"], 0.6)
        tell("peak memory / file", peak["report"] / size, 0.7)
        tell("compare / report", cpu["compare"] / cpu["report"], 2.2)


if __name__ == "__main__":
    main()
