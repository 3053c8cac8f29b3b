"""The ratios of benchmarks: printed by each of them, and kept by version in ``history.json``, which the docs show.

    python -m benchmarks.ratios startup            # runs benchmarks/startup.py, and keeps what it prints
    python -m benchmarks.ratios traces TRACE.json  # words behind its name are its own

Times depend on the machine and are not kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HISTORY = HERE / "history.json"
_VARIABLE = "RLPATCH_RATIOS"


def tell(name: str, ratio: float, most: float | None = None) -> None:
    """Print a ratio, and whether it is at most ``most``; append it to the file in RLPATCH_RATIOS, if set."""
    bound = "" if most is None else f" (at most {most:g}{', MISSED' if ratio > most else ''})"
    print(f"  {name}: ratio {ratio:.3f}{bound}")
    if history_file := os.environ.get(_VARIABLE):
        with Path(history_file).open("a", encoding="utf-8") as file:
            print(json.dumps([name, round(ratio, 3), most]), file=file)


_WATCH = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""
"""Starts a process, and tells what it took. The peak of a process is at least that of the one that started it, so that
has to be a small one: a benchmark that has made a large file is not.
"""


def measured(command: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[float, float]:
    """Run a command; return CPU seconds and peak MB, which other load changes less than the wall time.

    Raises SystemExit if the command fails.
    """
    watch = [sys.executable, "-I", "-S", "-c", _WATCH, *command]
    code, seconds, peak = subprocess.run(watch, check=True, capture_output=True, text=True, env=env).stdout.split()
    if code != "0":
        raise SystemExit(f"exit {code}: {' '.join(command)}")
    return float(seconds), float(peak)


def added(history: dict[str, Any], benchmark: str, version: str, rows: list[list[Any]]) -> dict[str, Any]:
    """Return the history with a run's ``rows`` of name, ratio and limit; they replace those of an earlier run."""
    ratios = history.get(benchmark, {})
    for name, ratio, most in rows:
        ratios[name] = {"most": most, "by_version": {**ratios.get(name, {}).get("by_version", {}), version: ratio}}
    return {**history, benchmark: ratios}


def main() -> None:
    """Run the benchmark that the command line names, and add its ratios to the history."""
    from patcher import __version__

    if len(sys.argv) < 2:
        raise SystemExit((__doc__ or "").strip())
    name, *words = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        told = Path(scratch) / "told"
        told.touch()
        command = [sys.executable, str(HERE / f"{name}.py"), *words]
        subprocess.run(command, check=True, env={**os.environ, _VARIABLE: str(told)})
        rows = [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()]
    history = json.loads(HISTORY.read_text(encoding="utf-8")) if HISTORY.exists() else {}
    text = json.dumps(added(history, name, __version__, rows), indent=1, ensure_ascii=False, sort_keys=True)
    HISTORY.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
