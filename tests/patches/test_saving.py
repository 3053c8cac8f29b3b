"""Saving a trace: the engine does not wait for its compression, and a process that ends meanwhile loses nothing."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fixtures.ascend import trace
from fixtures.cache import REPOSITORY, Once
from patcher.cli import rlpatch
from tests.patches.vllm_runs import NEWEST, Engine, Report, Run, _check, _drive

COMPRESS = """
import os, sys, time
from patches.probes.facts import CompressedMetadata
recorder = object.__new__(CompressedMetadata)
recorder.name, recorder.save_path = "host_dp0_rank0_7", sys.argv[1]
recorder.watched = lambda: sys.argv[1] + "/.rlpatch/rollout.json"
recorder.say = lambda text: print(text, flush=True)
trace = sys.argv[1] + "/host_dp0_rank0_7.1.pt.trace.json"
began = time.monotonic()
recorder.after_saving([trace])
print("it took", time.monotonic() - began, flush=True)
if sys.argv[2] == "ends":
    time.sleep(0.3)
    os._exit(0)
if sys.argv[2] == "exits":
    sys.exit()
import threading
[thread.join() for thread in threading.enumerate() if thread.name == "rlpatch-gzip"]
"""


def compressed(folder: Path, what: str, megabytes: int) -> tuple[str, Path, bytes]:
    """Compress a trace of so many MB in a process of its own, which ``ends`` meanwhile, or begins the ``next`` window."""
    content = json.dumps({"traceEvents": [random.Random(1).randbytes(1 << 19).hex()] * megabytes}).encode()
    path = folder / "host_dp0_rank0_7.1.pt.trace.json"
    path.write_bytes(content)
    noted = {"state": "saved", "traces": [str(path)], "why": "complete"}
    Path(f"{path}.rlpatch.json").write_text(json.dumps(noted))
    if not (folder / ".rlpatch").is_symlink() and what != "no state":
        (folder / ".rlpatch").mkdir(exist_ok=True)
        state = {"state": "armed", "traces": []} if what == "next" else noted
        (folder / ".rlpatch" / "rollout.json").write_text(json.dumps(state))
    done = subprocess.run(
        [sys.executable, "-c", COMPRESS, folder, what], capture_output=True, text=True, timeout=120, cwd=REPOSITORY
    )
    assert not done.stderr
    return done.stdout, path, content


@pytest.mark.parametrize(("what", "state"), [("waits", "saved"), ("next", "armed")])
def test_a_trace_is_compressed_beside_the_engine(what: str, state: str, tmp_path: Path) -> None:
    said, path, content = compressed(tmp_path, what, 2)
    packed = path.with_name(f"{path.name}.gz")
    assert gzip.decompress(packed.read_bytes()) == content
    assert f"compressed: {packed}" in said
    assert {file.name for file in tmp_path.iterdir()} == {packed.name, f"{packed.name}.rlpatch.json", ".rlpatch"}
    beside = json.loads(Path(f"{packed}.rlpatch.json").read_text())
    assert beside == {"state": "saved", "traces": [str(packed)], "why": "complete"}
    (*states,) = (tmp_path / ".rlpatch").iterdir()
    (watched,) = [json.loads(file.read_text()) for file in states]
    assert watched["state"] == state, "not over a newer one"
    assert watched["traces"] == ([] if what == "next" else [str(packed)])


@pytest.mark.parametrize("how", ["ends", "exits"])
def test_a_process_that_ends_meanwhile_leaves_the_trace_as_it_was(how: str, tmp_path: Path) -> None:
    said, path, content = compressed(tmp_path, how, 60)
    assert float(said.split()[-1]) < 1, "the engine does not wait"  # the compression takes seconds
    assert path.read_bytes() == content
    assert not [file for file in tmp_path.iterdir() if file.name.endswith(".gz")], "never half of one"
    if how == "exits":
        assert not [*tmp_path.glob(".rlpatch/*.packing")], "nothing is left over"


def test_a_worker_without_a_state_has_its_trace_compressed_too(tmp_path: Path) -> None:
    """In training the next call is of another role, whose state may not be there yet."""
    said, path, content = compressed(tmp_path, "no state", 2)
    assert gzip.decompress(path.with_name(f"{path.name}.gz").read_bytes()) == content
    assert "compressed: " in said
    assert not path.exists()


def test_a_folder_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / ".rlpatch").symlink_to(tmp_path / "elsewhere")
    said, path, content = compressed(tmp_path / "traces", "waits", 1)
    assert "not compressed: " in said
    assert path.read_bytes() == content
    assert not [*(tmp_path / "elsewhere").iterdir()]


# --- a real engine ---

LONG = Engine("long", "generate 9,7 210", env={"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "15"})
WINDOW = ("--decode", "1:200", "--contents", "cpu,shapes,stack,memory")


@pytest.mark.engine
@pytest.mark.usefixtures("unwatched")
def test_a_long_window_with_everything_stalls_no_step_for_long(once: Once) -> None:
    """Two workers' processes would do the same; the engine ends with its limit of 15 s where it is stalled for longer."""
    run = Run(WINDOW, (LONG,), processes=True)
    folder = once(f"vllm-{NEWEST}-saving", lambda folder: _drive(run, folder, NEWEST))
    report = Report(folder)
    (rollout,) = report.rollouts(LONG)
    decodes = [iteration for iteration in rollout if iteration.kind == "decode"]
    steps = [after.at - before.at for before, after in itertools.pairwise(decodes)]
    assert max(steps) < 2 + sorted(steps)[len(steps) // 2], sorted(steps)[-9:]
    assert len(report.outputs(LONG)) == 2, "the engine answered"

    traces = trace.find(folder / LONG.name)
    held = {path: [unit.number for unit in trace.read(path).units] for path in traces}
    assert sorted(number for numbers in held.values() for number in numbers) == [*range(1, 200)]
    assert len(traces) > 1
    for path, numbers in held.items():
        _check(trace.read(path), range(numbers[0], numbers[-1] + 1), decodes[numbers[0] - 1 : numbers[-1]], [])

    listed = CliRunner().invoke(rlpatch, ["traces", "--json", str(folder / LONG.name)])
    (row,) = json.loads(listed.stdout)["result"]["captures"]
    assert (row["got"], row["state"], row["closed"], len(row["traces"])) == ("1:200", "whole", "complete", len(traces))
    (profile,) = _reported(folder / LONG.name)["captures"]
    assert [unit["number"] for unit in profile["units"]] == [*range(1, 200)]
    assert [unit["number"] for unit in profile["units"] if unit["profiler_start"]] == sorted(
        numbers[0] for numbers in held.values()
    )[1:]
    assert len(profile["pieces"]) == len(traces)


def _reported(folder: Path) -> Any:
    return json.loads(CliRunner().invoke(rlpatch, ["report", "--json", str(folder)]).stdout)["result"]
