"""``rlpatch report`` and ``compare`` on a large trace, against the least that reading it costs: CPU time and memory.

Repeats a real trace of torch.profiler, plain or gzip, until it has so many MB, with its times, correlations and step
numbers set forward, then runs each of these in a process of its own and prints ratios:

    python benchmarks/traces.py TRACE [MB] [RUNS]

- a bare typed parse of the file with msgspec in blocks of 8 MB, which keeps nothing;
- ``json.load`` of the whole file;
- ``rlpatch report FILE --json``;
- ``rlpatch compare FILE FILE --json``.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BARE = """
import sys
from pathlib import Path
from patcher.traces.blocks import Blocks
print(sum(map(len, Blocks(Path(sys.argv[1])))))
"""
LOAD = """
import json, sys
print(len(json.load(open(sys.argv[1], "rb"))["traceEvents"]))
"""
STEP = "ProfilerStep#"


def repeated(source: Path, target: Path, megabytes: float) -> int:
    """Writes ``source`` often enough to ``target``; gives how many events that makes."""
    data = source.read_bytes()
    trace = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    events = trace.pop("traceEvents")
    timed = [event for event in events if event.get("ph") == "X" and isinstance(event.get("ts"), int | float)]
    span = round(max(event["ts"] + event["dur"] for event in timed) - min(event["ts"] for event in timed)) + 100
    links = 1 + max(event["id"] if event["ph"] in "sf" else _correlation(event) for event in events)
    steps = sum(event.get("cat") == "user_annotation" and event["name"].startswith(STEP) for event in events)
    written = turn = count = 0
    with target.open("w") as file:
        file.write(f'{{"header": {json.dumps(trace)}, "traceEvents": [\n')
        while written < megabytes * 1e6:
            for event in events:
                file.write(",\n" if count else "")
                written += file.write(json.dumps(_moved(event, turn, span, links, steps)))
                count += 1
            turn += 1
        file.write("\n]}\n")
    return count


def _correlation(event: dict[str, Any]) -> int:
    args = event.get("args")
    return int(args.get("correlation", 0)) if isinstance(args, dict) else 0


def _moved(event: dict[str, Any], turn: int, span: int, links: int, steps: int) -> dict[str, Any]:
    moved = dict(event)
    if "ts" in moved:
        moved["ts"] = round(moved["ts"] + turn * span, 3)
    if moved["ph"] in "sf":
        moved["id"] += turn * links
    if _correlation(event):
        moved["args"] = {**event["args"], "correlation": event["args"]["correlation"] + turn * links}
    if str(moved.get("name", "")).startswith(STEP):
        moved["name"] = f"{STEP}{int(moved['name'][len(STEP) :]) + turn * steps}"
    return moved


def measured(command: list[str]) -> tuple[float, float]:
    """CPU seconds and peak MB of a process."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"exit {process.returncode}: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
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
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(runs):
            for name, command in ways.items():
                found[name].append(measured(command))
        cpu = {name: statistics.median(seconds for seconds, _ in rows) for name, rows in found.items()}
        peak = {name: max(memory for _, memory in rows) for name, rows in found.items()}
        for name in ways:
            print(f"{name:18}{cpu[name]:8.2f} s of CPU{peak[name]:9.0f} MB")
        print(f"report / bare typed parse {cpu['report'] / cpu['bare typed parse']:.2f} (at most 3)")
        print(f"report / json.load {cpu['report'] / cpu['json.load']:.2f} (at most 0.6)")
        print(f"peak memory / file {peak['report'] / size:.2f} (at most 0.7)")
        print(f"compare / report {cpu['compare'] / cpu['report']:.2f} (at most 2.2)")


if __name__ == "__main__":
    main()
