"""A trace of 10 GB, and one that unpacks to as much: read block by block, in less than 1 GB of memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.repeated import repeated
from tests.patcher.traces.recorded import SHARED, shared

pytestmark = [shared, pytest.mark.matrix]

SOURCE = SHARED / "gpu" / "nccl_data.json.gz"
"""The one of the real traces that has the most events in a MB."""


@pytest.mark.parametrize("name", ["large.json", "large.json.gz"])
def test_ten_gigabytes(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--thorough"):
        pytest.skip("--thorough: some ten minutes of CPU and 10 GB of disk")
    if shutil.disk_usage(tmp_path).free < 20e9:
        pytest.skip("needs 20 GB of disk")
    trace, result = tmp_path / name, tmp_path / "result.json"
    try:
        events = repeated(SOURCE, trace, 10_000)
        with result.open("w") as out:
            command = [sys.executable, "-m", "patcher", "report", str(trace), "--json"]
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE)
            _, status, usage = os.wait4(process.pid, 0)
    finally:
        trace.unlink(missing_ok=True)
    print(f"{name}: {events:,} events, {usage.ru_utime + usage.ru_stime:.0f} s of CPU, {usage.ru_maxrss / 1024:.0f} MB")
    assert os.waitstatus_to_exitcode(status) == 0
    assert usage.ru_maxrss < 1_000_000_000 / 1024
    (capture,) = json.loads(result.read_text())["result"]["captures"]
    assert len(capture["units"]) == 3 * (events // 40_573)
