"""Real output of torch.profiler that every clone has: the report against what the recording program measured itself."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fixtures.captures.record import SLOW, TRACE, TRUTH
from patcher.cli import rlpatch

STEPS = {int(step): measured for step, measured in json.loads(TRUTH.read_text())["steps"].items()}
PROFILER_MS = 1.0
"""What `ProfilerStep` may last longer than the work in it."""


@pytest.mark.parametrize("compressed", [True, False])
def test_the_units_last_as_long_as_the_program_measured(tmp_path: Path, compressed: bool) -> None:
    capture = TRACE
    if not compressed:
        capture = tmp_path / "cpu.json"
        capture.write_bytes(gzip.decompress(TRACE.read_bytes()))
    said = CliRunner().invoke(rlpatch, ["report", str(capture), "--json"])
    assert said.exit_code == 0, said.output
    (profile,) = json.loads(said.stdout)["result"]["captures"]
    assert (profile["form"], profile["device"]) == ("torch", "CPU")
    units = {unit["number"]: unit for unit in profile["units"]}
    assert units.keys() == STEPS.keys()
    for step, measured in STEPS.items():
        more_ms = units[step]["host_ns"] / 1e6 - measured["seconds"] * 1000
        assert 0 <= more_ms < PROFILER_MS
    assert units[SLOW]["classes"]["gemm"] / units[SLOW]["host_ns"] < 0.1, "it slept"


def test_the_products_are_counted_per_unit() -> None:
    """Counted in the recorded events, and by the program: the capture is what it says it is."""
    events = json.loads(gzip.decompress(TRACE.read_bytes()))["traceEvents"]
    marks = {event["name"]: event for event in events if event.get("name", "").startswith("ProfilerStep#")}
    for step, measured in STEPS.items():
        mark = marks[f"ProfilerStep#{step}"]
        inside = [e for e in events if e.get("name") == "aten::mm" and mark["ts"] <= e["ts"] < mark["ts"] + mark["dur"]]
        assert len(inside) == measured["products"]
