"""Module ranges in the real msprof-analyze, which breaks the time of the kernels down by module.

The ranges and the operators are those that the real torch_npu recorded in a window of a patched worker, with their own
times; the kernels are made up, since no device is there to run them (``fixtures.ascend.database``).
"""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from fixtures import environments
from fixtures.ascend import database, trace
from tests.patches.torch_npu_runs import MODULES, Report, Worker, patched, play

KERNELS = {"aten::mm": ("MatMulV2", 5000), "aten::add": ("Add", 1200), "aten::argmax": ("ArgMaxV2", 900)}
WORKER = Worker("0.18.0", "D", "npu")


@pytest.mark.engine
def test_the_table_of_modules(npu_python: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (scenario,) = (scenario for scenario in MODULES if scenario.name == "modules")
    play(WORKER, patched(WORKER, folder, {"modules": "--decode 3:6 --module-ranges"}), [scenario], folder, npu_python)
    report = Report(folder)
    (path,) = report.traces(scenario)
    operators = [item for item in trace.read(path).ranges if item.kind == trace.OPERATOR]
    file = path / "ASCEND_PROFILER_OUTPUT" / "ascend_pytorch_profiler_0.db"
    database.write(file, trace.mstx_ranges(report.calls), operators, KERNELS)

    analyse = environments.environment(environments.MSPROF_ANALYZE).with_name("msprof-analyze")
    words = ("cluster", "-m", "module_statistic", "-d", path, "-o", tmp_path / "out")
    done = subprocess.run([analyse, *words], env=environments.variables(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (answer,) = (tmp_path / "out").rglob("*.db")
    columns = '"parentModule", "module", "opName", "kernelList", "opCount", "totalKernelDuration(ns)", "rankID"'
    with closing(sqlite3.connect(answer)) as connection:
        table = connection.execute(f"SELECT {columns} FROM ModuleStatistic").fetchall()
    assert table == [
        ("DecoderLayer", "Attention", "aten::mm", "MatMulV2", 3, 15000.0, 0),
        ("", "DecoderLayer", "aten::add", "Add", 3, 3600.0, 0),
    ], done.stdout
