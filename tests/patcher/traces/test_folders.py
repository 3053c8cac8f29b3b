"""Folders in `traces`: every state made for real, and names, facts and doctored files."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fixtures import environments
from patcher.commands.reports import tracing
from patcher.messages.errors import Kind, Problem
from patcher.traces import folders, names
from patcher.traces.folders import RecordedTrace, TraceGroup, groups, npu_folders, states, walk
from patcher.traces.formats import chrome, database
from patcher.traces.names import OUTPUT
from patcher.traces.sidecar import UnitWindow
from tests.patcher.traces.conftest import RECORDING
from tests.patcher.traces.recorded import steps
from tests.patcher.workers.maker import ended

NPU = "host_dp0_rank{}_77_77_2026112204174{}276_ascend_pt"


def states_of(folder: Path) -> dict[str, str]:
    """Stage → state, of the captures of a folder."""
    return {row["stage"] or row["traces"][0]["path"].rpartition("/")[2]: row["state"] for row in rows(folder)}


def rows(folder: Path):
    return tracing.traces(folder).data["captures"]


@pytest.mark.engine
def test_whole(recorded: Path) -> None:
    plain, packed = sorted(rows(recorded / "torch"), key=lambda row: row["stage"])[:2]
    assert (packed["state"], packed["stage"], packed["got"], packed["ranks"]) == ("whole", "rollout", "3:5", "0")
    assert (plain["state"], plain["stage"], plain["role"], plain["step"]) == ("whole", "compute-log-prob", "ref", 1)
    assert packed["next"] == f"rlpatch report {packed['traces'][0]['path']}"


@pytest.mark.engine
def test_a_full_disk(recorded: Path) -> None:
    """Of torch.profiler: a file that could not grow, and one that could not begin."""
    cut, empty = folders.trace_groups(recorded / "torch" / "full")[0].traces
    assert (cut.state, cut.size, cut.why) == (states.CUT, 3000, "the file ends before its JSON is complete")
    assert (empty.state, empty.size) == (states.EMPTY, 0)


@pytest.mark.engine
def test_a_disk_that_is_full(npu_python: Path, small_disk) -> None:
    """A file system with room for the first trace, and for the beginning of the second."""
    disk = small_disk(8)
    environment = environments.variables(npu=False)
    subprocess.run([npu_python, RECORDING, "torch", disk / "traces"], env=environment, capture_output=True)
    seen = [(row["stage"], row["state"]) for row in rows(disk)]
    assert seen[:2] == [("rollout", states.WHOLE), ("compute-log-prob", states.CUT)]
    assert {state for _, state in seen[2:]} <= {states.EMPTY}, "what followed found no room at all"
    (cut,) = (capture.first for capture in folders.trace_groups(disk) if capture.state == states.CUT)
    assert cut.why == "the file ends before its JSON is complete"
    assert shutil.disk_usage(disk).free == 0


@pytest.mark.engine
def test_a_full_disk_of_torch_npu(npu_python: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--thorough"):
        pytest.skip("--thorough: it imports torch_npu once more")
    words = [str(npu_python), str(RECORDING), "npu", str(tmp_path), "FULL"]
    subprocess.run(words, env=environments.variables(), capture_output=True)
    (capture,) = folders.trace_groups(tmp_path / "full")
    assert (capture.state, capture.first.why) == (states.CUT, "profiler_info.json is incomplete")


@pytest.mark.engine
def test_still_written_and_then_killed(recorded: Path) -> None:
    inside = json.loads((recorded / "inside.json").read_text())["captures"]
    by = {row["stage"]: row for row in inside}
    pid = by["update-policy"]["traces"][0]["pid"]
    assert by["update-policy"]["state"] == states.WRITING
    assert by["update-policy"]["traces"][0]["why"] == f"process {pid} is recording into this folder"
    assert states_of(recorded / "npu") == {"rollout": states.NOT_PARSED, "update-policy": states.KILLED}


@pytest.mark.engine
def test_not_parsed(recorded: Path) -> None:
    row = next(row for row in rows(recorded / "npu") if row["stage"] == "rollout")
    assert (row["asked"], row["got"], row["ranks"]) == ("3:5", "3:5", "0")
    assert row["next"] == f"rlpatch analyse {row['traces'][0]['path']}"


@pytest.mark.parametrize("name", ["*.gz", "*ref*.json"], ids=["gzip", "plain"])
@pytest.mark.engine
def test_cut_off_anywhere(recorded: Path, tmp_path: Path, name: str) -> None:
    """A file that was cut is never whole, wherever that was; the units before the cut are told."""
    (path,) = (recorded / "torch").glob(name)
    data = path.read_bytes()
    seen = set()
    for end in range(0, len(data) - 2, len(data) // 97):
        copy = tmp_path / path.name
        copy.write_bytes(data[:end])
        os.utime(copy, (1, 1))
        trace = folders.inspect(copy)
        assert trace.state == (states.CUT if end else states.EMPTY), end
        seen.add(trace.steps)
    assert seen >= ({None, (), (3,), (3, 4)} if path.suffix == ".json" else {None, (), (3, 4)})


def test_gzip_files_behind_each_other_and_one_that_unpacks_to_much(tmp_path: Path) -> None:
    """As pigz and dd leave them; no more than some blocks are held at a time."""
    head, tail = b'{"traceEvents": [{"ph": "X", "name": "ProfilerStep#3"}', b', {"name": "ProfilerStep#4"}]}'
    path = tmp_path / "a_dp0_rank0_7.1.pt.trace.json.gz"
    path.write_bytes(gzip.compress(head) + gzip.compress(b" " * 50_000_000) + gzip.compress(tail) + bytes(512))
    tracemalloc.start()
    trace = folders.inspect(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (trace.state, trace.steps) == (states.WHOLE, (3, 4))
    assert peak < 10_000_000


@pytest.mark.parametrize(
    ("host", "lives", "age_s", "state"),
    [
        (None, True, 0, states.WRITING),
        (None, False, 0, states.CUT),
        (None, True, 3600, states.CUT),  # it has the process's number, and was there before it
        ("elsewhere", False, 0, states.WRITING),
        ("elsewhere", True, 3600, states.CUT),
    ],
)
def test_a_trace_without_its_end_is_still_written_or_was_cut(
    tmp_path: Path, host: str | None, lives: bool, age_s: int, state: str
) -> None:
    here = "".join(one if one.isalnum() else "_" for one in os.uname().nodename)
    path = tmp_path / f"{host or here}_dp0_rank0_{os.getpid() if lives else ended()}.7.pt.trace.json"
    path.write_text('{"traceEvents": [{"ph": "X"}')
    os.utime(path, (time.time() - age_s * 100,) * 2)
    assert folders.inspect(path).state == state


@pytest.mark.parametrize(
    ("stamp", "moment"),
    [
        ("1732262400", 1732262400),
        ("1732262400123", 1732262400.123),
        ("1795321056549676893", 1795321056.549676893),
        ("7", 7),
        ("20261122041741", 1),
        ("20261122041741276", 1.276),
        ("20261331041741", 0),  # no month is the thirteenth
        ("99991122041741", 9999112204.1741),  # microseconds
    ],
)
def test_when_the_name_of_a_trace_says_that_it_ended(
    stamp: str, moment: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "mktime", lambda told: 1.0 if told[:6] == (2026, 11, 22, 4, 17, 41) else 2.0)
    assert names.of(Path(f"a_dp0_rank0_7.{stamp}.pt.trace.json")).ended == pytest.approx(moment, rel=1e-12)


def test_how_large_and_how_old_a_trace_is(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for at, name in enumerate(("a", "b", "c"), 1):
        (tmp_path / "folder" / name).write_bytes(b"x" * at)
        os.utime(tmp_path / "folder" / name, (70 - at, 70 - at))
    os.utime(tmp_path / "folder", (5, 5))
    assert (states.changed(tmp_path / "folder"), states.size(tmp_path / "folder")) == (69, 6)
    assert (states.changed(tmp_path / "folder" / "c"), states.size(tmp_path / "folder" / "c")) == (67, 3)
    os.utime(tmp_path / "folder", (90, 90))
    assert states.changed(tmp_path / "folder") == 90


@pytest.mark.engine
def test_a_cut_off_trace_is_still_written_by_a_process_that_lives(recorded: Path, tmp_path: Path) -> None:
    (path,) = (recorded / "torch").glob("*.gz")
    host, _, rest = path.name.partition("_dp0")
    running = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    copy = tmp_path / f"{host}_dp0_rank0_{running.pid}.{rest.partition('.')[2]}"
    copy.write_bytes(path.read_bytes()[:-9])
    assert folders.inspect(copy).state == states.WRITING
    os.utime(copy, (time.time() - 3600,) * 2)  # it has the process's number, and was there before it
    assert folders.inspect(copy).state == states.CUT
    running.communicate(b"\n")
    os.utime(copy)
    assert folders.inspect(copy).state == states.CUT


@pytest.mark.engine
def test_on_another_host_the_age_decides(recorded: Path, tmp_path: Path) -> None:
    (path,) = (recorded / "torch").glob("*.gz")
    copy = tmp_path / "elsewhere_dp0_rank0_7.1795321056549676893.pt.trace.json.gz"
    copy.write_bytes(path.read_bytes()[:-9])
    assert folders.inspect(copy).state == states.WRITING
    os.utime(copy, (1, 1))
    assert folders.inspect(copy).state == states.CUT


# ---------------------------------------------------------------- doctored folders


def parsed(path: Path, **files: str | bytes | None) -> Path:
    """A parsed ``*_ascend_pt`` as torch_npu leaves it, with ``files`` of its output instead; None leaves one out."""
    output = path / OUTPUT
    output.mkdir(parents=True, exist_ok=True)
    schedule = {"wait": 2, "warmup": 1, "active": 2, "repeat": 1, "skip_first": 0}
    info = {"config": {"common_config": {"schedule": schedule}}, "rank_id": 3}
    (path / "profiler_info_3.json").write_text(json.dumps(info))
    (path / "FRAMEWORK").mkdir(exist_ok=True)
    (path / "FRAMEWORK" / "torch.op_range").write_bytes(b"..ProfilerStep#3....ProfilerStep#4..")
    known = {"trace_view.json": "[{}]", "step_trace_time.csv": "Device_id,Step,Computing\n0,3,1.0\n0,4,1.0\n", **files}
    for name, content in known.items():
        if content is not None:
            (output / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return path


DATABASE = b"SQLite format 3\0" + (4096).to_bytes(2, "big") + bytes(10) + (2).to_bytes(4, "big") + bytes(68)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, ""),
        ({"step_trace_time.csv": None}, ""),
        ({"trace_view.json": None}, "trace_view.json and ascend_pytorch_profiler.db are both missing"),
        ({"trace_view.json": "[{}, {"}, "trace_view.json is cut off"),
        ({"trace_view.json": ""}, "trace_view.json is cut off"),
        ({"trace_view.json": None, "ascend_pytorch_profiler_3.db": DATABASE + bytes(8192 - 100)}, ""),
        ({"ascend_pytorch_profiler_3.db": b""}, "is not a database"),
        ({"ascend_pytorch_profiler_3.db": DATABASE + bytes(4096)}, "is not a database"),
        ({"ascend_pytorch_profiler_3.db": b"no database" * 99}, "is not a database"),
        (
            {"ascend_pytorch_profiler_3.db": DATABASE + bytes(8092), "ascend_pytorch_profiler_3.db-journal": "x"},
            "was not closed",
        ),
    ],
)
def test_half_parsed(tmp_path: Path, files: dict[str, str | bytes | None], why: str) -> None:
    trace = folders.inspect(parsed(tmp_path / NPU.format(0, 1), **files))
    assert (trace.state == states.HALF_PARSED) == bool(why)
    assert why in trace.why
    assert trace.steps == (3, 4)
    assert trace.window == UnitWindow((3, 5))


def test_device_data_without_a_table_of_kernels_is_half_parsed(tmp_path: Path) -> None:
    path = parsed(tmp_path / NPU.format(0, 1))
    data = path / "PROF_000001_20261122041741000_ABC" / "device_0" / "data"
    data.mkdir(parents=True)
    (data / "ts.slice_0").write_bytes(b"x")
    assert folders.inspect(path).why == "the folder has device data, but no kernel_details.csv"
    (path / OUTPUT / "kernel_details.csv").write_text("Name\n")
    assert folders.inspect(path).state == states.WHOLE


def test_what_an_analyse_that_was_killed_left(tmp_path: Path) -> None:
    path = parsed(tmp_path / NPU.format(0, 1))
    shutil.copytree(path / OUTPUT, path / npu_folders.BEFORE)
    trace = folders.inspect(path)
    assert trace.state == states.HALF_PARSED
    assert npu_folders.BEFORE in trace.why


def emptied(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


@pytest.mark.parametrize(
    ("doctored", "state"),
    [
        (lambda path: (path / "profiler_info_3.json").unlink(), states.KILLED),
        (lambda path: (path / "profiler_info_3.json").write_text(""), states.EMPTY),
        (lambda path: (path / "profiler_info_3.json").write_text('{"config": {'), states.CUT),
        (lambda path: (path / "profiler_info_3.json").write_text("[]"), states.CUT),
        (lambda path: (path / "FRAMEWORK" / "torch.op_range").write_bytes(b""), states.EMPTY),
        (emptied, states.EMPTY),
    ],
)
def test_recorded_and_not_parsed(tmp_path: Path, doctored, state: str) -> None:
    path = parsed(tmp_path / NPU.format(0, 1))
    shutil.rmtree(path / OUTPUT)
    assert folders.inspect(path).state == states.NOT_PARSED
    doctored(path)
    assert folders.inspect(path).state == state
    assert TraceGroup((folders.inspect(path),)).next_command == ""


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("run.nsys-rep", b"x", "a report of Nsight Systems that has not been exported"),
        ("a.pftrace", b"x", "a trace written by Perfetto"),
        ("a.zip", b"x", "a zip archive"),
        (
            "vm_77.1795321056.pt.trace.json",
            b'{"traceEvents": [{"ph": "X"}]}',
            "torch.profiler recorded the trace without rlpatch",
        ),
        (
            "rank0.json.gz",
            gzip.compress(b'{"schemaVersion": 1, "traceEvents": [{"ph": "X"}]}'),
            "torch.profiler recorded the trace without rlpatch",
        ),
        (
            "a.json",
            b'{"traceEvents": [{"ph": "X", "cat": "blink"}]}',
            "does not begin like a trace of torch.profiler",
        ),
        (
            "view.json",
            b'[{"ph": "M", "args": {"name": "Ascend Hardware"}}, {"ph": "X"}]',
            "torch_npu or msprof exported",
        ),
        ("results.json", b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}', "a trace of rocprofv3"),
        ("et.json", b'{"schema": "1.1.1-chakra.0.0.4", "pid": 7, "nodes": [{"id": 1}]}', "an execution trace of torch"),
        (
            "a.json",
            b'[{"name": "aten::add", "ph": "X", "ts": 1.5, "dur": 2, "tid": 1, "pid": "CPU functions", "args": {}}]',
            "a list of events of torch.autograd.profiler",
        ),
        ("memory.json.gz", gzip.compress(b"[[1, 2, 3], [[0, 1]]]"), "a memory timeline of torch"),
        ("ranks.tar.gz", gzip.compress(b"x" * 257 + b"ustar"), "an archive"),
        (
            "PROF_000001_20261122041741000_ABC/host/info.json",
            b"{}",
            "the folder is a trace that CANN recorded without torch_npu",
        ),
    ],
    ids=[
        "Nsight",
        "Perfetto",
        "zip",
        "torch",
        "torch, packed",
        "Chrome",
        "torch_npu",
        "rocprofv3",
        "execution trace",
        "autograd profiler",
        "memory timeline",
        "tar",
        "CANN",
    ],  # packed bytes hold the time, and ids must not
)
def test_of_another_tool(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(content)
    (tmp_path / "config.json").write_text('{"no": "trace"}')
    (tmp_path / "broken.json.gz").write_bytes(b"no gzip")
    (row,) = rows(tmp_path)
    assert row["state"] == states.FOREIGN
    assert why in row["traces"][0]["why"]
    reads = ("torch.profiler", "torch_npu or msprof")
    assert bool(row["next"]) == any(tool in why for tool in reads)


OTHERS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "nsys": ("a.nsys-rep", lambda file: file.write_bytes(b"x"), "is a report of Nsight Systems"),
    "Perfetto": ("a.pftrace", lambda file: file.write_bytes(b"x"), "is a trace written by Perfetto"),
    "memory of any name": ("a.bin", lambda file: file.write_bytes(pickle.dumps({})), "is a memory snapshot of torch"),
    "page of any name": ("a.bin", lambda file: file.write_bytes(b"<!DOCTYPE html>"), "is an HTML page"),
    "zip of any name": ("a.json", lambda file: file.write_bytes(b"PK\3\4rest"), "is a zip archive"),
}


@pytest.mark.parametrize(("name", "write", "says"), OTHERS.values(), ids=OTHERS)
def test_a_report_knows_the_tools_that_the_list_knows(
    tmp_path: Path, name: str, write: Callable[[Path], object], says: str
) -> None:
    file = tmp_path / name
    write(file)
    with pytest.raises(Problem, match=says) as refused:
        folders.traces_to_read(file)
    assert (refused.value.kind, bool(refused.value.hint)) == (Kind.TRACE, True)
    listed = [group.first.why for group in folders.trace_groups(tmp_path)]
    assert [why.startswith(says.removeprefix("is ")) for why in listed] == [True] * (name not in ("a.bin", "a.json"))
    if listed:
        with pytest.raises(Problem, match=f"{listed[0]}, which rlpatch cannot read"):
            folders.traces_to_read(tmp_path)


EVENTS = b'{"traceEvents": [{"ph": "X", "name": "ProfilerStep#3"}, {"ph": "X", "name": "a name that packs badly"}]}'


@pytest.mark.parametrize(
    ("name", "content", "taken"),
    [
        ("a.json", EVENTS, True),
        ("packed.json.gz", gzip.compress(EVENTS, mtime=0), True),
        ("packed.json", gzip.compress(EVENTS, mtime=0), True),
        ("cut.json.gz", gzip.compress(EVENTS, mtime=0)[:-12], True),
        ("settings.json", b'{"a": 1}', False),
        ("broken.json.gz", b"no gzip", False),
        ("pipe.json", None, False),
        ("ascend_pytorch_profiler_0.db", b"", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_report_takes_the_same_for_a_trace(
    tmp_path: Path, name: str, content: bytes | None, taken: bool | None
) -> None:
    """But for a database alone, which `traces` knows by its folder."""
    path = tmp_path / name
    os.mkfifo(path) if content is None else path.write_bytes(content)
    assert walk.traces_below(tmp_path) == ([path] if taken else [])
    if taken is False:
        with pytest.raises(Problem, match="no traces found in"):
            folders.traces_to_read(tmp_path)
    else:
        assert folders.traces_to_read(tmp_path) == [path]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}', "a trace of rocprofv3"),
        (gzip.compress(b"SQLite format 3\0"), "a compressed database"),
        (gzip.compress(b"x" * 257 + b"ustar"), "an archive"),
    ],
    ids=["rocprofv3", "database", "archive"],  # packed bytes hold the time
)
def test_a_report_says_what_a_file_of_another_tool_is(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "file.json.gz").write_bytes(content)
    with pytest.raises(Problem, match=says):
        folders.traces_to_read(tmp_path / "file.json.gz")


def test_a_trace_without_events_is_empty(tmp_path: Path) -> None:
    (tmp_path / "vm_7.1.pt.trace.json").write_text('{"traceEvents": []}')
    assert states_of(tmp_path) == {"vm_7.1.pt.trace.json": states.EMPTY}


@pytest.mark.parametrize("content", ["hello", "<html>", '{"no": "trace"}', "SQLite format 3\0"])
def test_a_file_that_is_named_and_is_no_trace(tmp_path: Path, content: str) -> None:
    """It is intact, and nothing to record again; nor is it a trace that was cut, with a `report` to type next."""
    (tmp_path / "page").write_text(content)
    (capture,) = folders.trace_groups(tmp_path / "page")
    assert (capture.state, capture.first.form, capture.next_command) == (states.FOREIGN, "other", "")
    assert "empty" not in capture.first.why


@pytest.mark.parametrize("content", [" ", "\n ", "\ufeff", " {"])
def test_a_trace_that_was_cut_before_it_began_is_cut(tmp_path: Path, content: str) -> None:
    path = tmp_path / "vm_7.1.pt.trace.json"
    path.write_text(content, encoding="utf-8")
    os.utime(path, (1, 1))
    assert states_of(tmp_path) == {path.name: states.CUT}


def test_tables_that_were_copied_without_what_was_recorded(tmp_path: Path) -> None:
    """There is no profiler_info then: it is not that torch_npu was killed, and `report` reads it."""
    path = tmp_path / "elsewhere_77_20261122041741276_ascend_pt"
    shutil.copytree(parsed(tmp_path / "whole" / NPU.format(0, 1)) / OUTPUT, path / OUTPUT)
    trace = folders.inspect(path)
    assert (trace.state, trace.exports, trace.steps) == (states.FOREIGN, ("text",), (3, 4))
    (path / OUTPUT / "trace_view.json").unlink()
    assert folders.inspect(path).state == states.FOREIGN, "its tables are read"
    (path / OUTPUT / "step_trace_time.csv").unlink()
    assert folders.inspect(path).state == states.EMPTY


def test_torch_npu_by_another_tool(tmp_path: Path) -> None:
    parsed(tmp_path / "vm_77_20261122041741276_ascend_pt")
    (row,) = rows(tmp_path)
    assert (row["state"], row["ours"], row["ranks"], row["got"]) == (states.FOREIGN, False, "3", "3:5")


@pytest.mark.parametrize(("steps", "found"), [((3, 4), (3, 4)), (None, None)])
def test_the_steps_of_a_database(tmp_path: Path, steps: tuple[int, ...] | None, found: tuple[int, ...] | None) -> None:
    path = parsed(tmp_path / NPU.format(0, 1), **{"trace_view.json": None, "step_trace_time.csv": None})
    shutil.rmtree(path / "FRAMEWORK")
    with closing(sqlite3.connect(path / OUTPUT / "ascend_pytorch_profiler_3.db")) as database, database:
        database.execute(f"CREATE TABLE {'STEP_TIME' if steps else 'OTHER'} (id INTEGER)")
        database.executemany("INSERT INTO STEP_TIME VALUES (?)", [(step,) for step in steps or ()]) if steps else None
    trace = folders.inspect(path)
    assert (trace.state, trace.steps, trace.exports, trace.raw) == (states.WHOLE, found, ("db",), False)


def test_a_damaged_archive_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere_dp0_rank0_7.1.pt.trace.json.gz"
    data = bytearray(gzip.compress(b'{"traceEvents": [' + os.urandom(5000)))
    data[2000:2100] = bytes(100)
    path.write_bytes(data)
    os.utime(path, (1, 1))
    assert folders.inspect(path).state == states.CUT


@pytest.mark.parametrize(
    ("text", "rank", "world"),
    [
        ('"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}, ', 3, 8),
        ('"distributedInfo": {"rank": "x"}, ', None, None),
        ("", None, None),
    ],
)
def test_the_rank_that_torch_writes_itself(tmp_path: Path, text: str, rank: int | None, world: int | None) -> None:
    path = tmp_path / "vm_7.1.pt.trace.json"
    path.write_text(f'{{{text}"traceEvents": [{{"ph": "X"}}]}}')
    trace = folders.inspect(path)
    assert (trace.rank, trace.world) == (rank, world)


# ---------------------------------------------------------------- names, captures, facts


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("a_b_dp2_rank5_77", {"stage": "rollout", "host": "a_b", "replica": 2, "rank": 5, "pid": 77}),
        ("a_replica3_dp0_rank1_7", {"stage": "rollout", "host": "a", "replica": 3, "rank": 1, "pid": 7}),
        (
            "a_b_graph_capture_replica12_dp0_rank0_7",
            {"stage": "graph-capture", "host": "a_b", "replica": 12, "rank": 0},
        ),
        ("a_graph_capture_dp0_rank0_7", {"stage": "graph-capture", "host": "a", "replica": 0, "rank": 0, "pid": 7}),
        (
            "a_update_critic_critic_step12_rank3_77",
            {"stage": "update-critic", "host": "a", "role": "critic", "step": 12, "rank": 3, "pid": 77},
        ),
        (
            "a_b_weight_sync_rollout_sync3_replica1_rank0_77",
            {"stage": "weight-sync", "host": "a_b", "role": "rollout", "sync": 3, "replica": 1, "rank": 0, "pid": 77},
        ),
    ],
)
@pytest.mark.parametrize(
    "form", ["{}_77_20261122041741276_ascend_pt", "{}_20261122041741276_ascend_pt", "{}.1.pt.trace.json"]
)
def test_what_a_name_tells(tmp_path: Path, name: str, known: dict[str, object], form: str) -> None:
    path = tmp_path / form.format(name)
    if form.endswith("_ascend_pt"):
        parsed(path)
    else:
        path.write_text('{"traceEvents": [{"ph": "X"}]}')
    trace = folders.inspect(path)
    assert {key: getattr(trace, key) for key in known} == known
    assert (trace.ours, trace.state) == (True, states.WHOLE)


def trace(rank: int | None = 0, ended: float = 0, state: str = states.WHOLE, **more: object) -> RecordedTrace:
    path = Path(f"/t/host_dp0_rank{rank}_{more.get('pid', 7)}.{ended}")
    known = {
        "ours": True,
        "rank": rank,
        "ended": ended,
        "steps": (30, 31),
        "stage": "rollout",
        "window": UnitWindow((30, 32)),
        **more,
    }
    return RecordedTrace(path, "torch", state, 10, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("traces", "captures"),
    [
        ((trace(0), trace(1), trace(2)), [[0, 1, 2]]),
        ((trace(1, 5), trace(0, 6), trace(0, 70), trace(1, 71)), [[0, 1], [0, 1]]),
        ((trace(0), trace(0, stage="update-policy")), [[0], [0]]),
        ((trace(0, step=1), trace(1, step=1), trace(0, step=2)), [[0, 1], [0]]),
        ((trace(0, 1, sync=1), trace(0, 2, sync=2), trace(1, 3, sync=1), trace(1, 4, sync=2)), [[0, 1], [0, 1]]),
        ((trace(0, window=UnitWindow((1, 2))), trace(1)), [[0], [1]]),
        ((trace(0, host="a"), trace(0, host="b")), [[0, 0]]),  # replicas that do not know of each other
        ((trace(0, replica=0), trace(0, replica=3)), [[0, 0]]),  # those of verl, on one host
        ((trace(None), trace(None)), [[None], [None]]),
        ((trace(0, ours=False), trace(1, ours=False)), [[0], [1]]),
    ],
)
def test_captures(traces: tuple[RecordedTrace, ...], captures: list[list[int | None]]) -> None:
    assert [[one.rank for one in capture.traces] for capture in groups.group_traces(traces)] == captures


def test_a_capture_is_as_bad_as_its_worst_trace() -> None:
    for worst in (states.CUT, states.KILLED, states.HALF_PARSED, states.NOT_PARSED, states.WRITING):
        assert TraceGroup((trace(0), trace(1, state=worst), trace(2))).state == worst


@pytest.mark.parametrize(
    ("asked", "units", "text"),
    [
        (2, (30, 31), "30:32"),
        (30, (30, 31), "30:32 (2 of 30 steps)"),
        (None, (30, 31), "30:32"),
        (4, (30, 33), "30:34 (2 steps)"),
        (None, (5,), "5:6"),
        (30, (), "none"),
        (30, None, ""),
    ],
)
def test_what_was_got(asked, units, text: str) -> None:
    assert groups.step_range_text(units, asked) == text


@pytest.mark.parametrize(
    ("found", "asked", "world", "text"),
    [
        ((0, 1, 2, 3, 8), "", None, "0-3,8"),
        ((0, 8), "0,8,16", None, "0,8, missing 16"),
        ((0, 8), "0,8", None, "0,8"),
        ((0,), "all", 8, "1 of 8 ranks: 0"),
        ((0, 1), "all", 2, "0,1"),
        ((), "", None, ""),
    ],
)
def test_ranks_found_of_those_asked(found, asked: str, world, text: str) -> None:
    traces = [trace(rank, ranks=asked, world=world) for rank in found or (None,)]
    assert groups.ranks_text(TraceGroup(tuple(traces))) == text


def test_units_are_those_that_every_rank_has() -> None:
    traces = (trace(0, steps=(1, 2, 3)), trace(1, steps=(2, 3)), trace(2, steps=None))
    assert TraceGroup(traces).steps == (2, 3)
    assert TraceGroup(traces[2:]).steps is None


NAME = "h_dp0_rank0_7.1.pt.trace.json"
FACTS = {
    "format": 1, "target": "vllm", "release": "0.11.0", "stage": "rollout", "window": "3:9", "rollout": 4, "rank": 2, "host": "h",
    "ranks": "2,6", "pid": True, "replica": "seven", "units": [{"number": 3}, {"number": "x"}, 4],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "facts", "taken"),
    [
        (NAME, FACTS, True),
        ("another", FACTS, False),
        (NAME, [FACTS], False),
        (NAME, {**FACTS, "format": 2}, False),
        ("h_dp0_rank0_7", FACTS, False),  # of which of its traces?
    ],
)
def test_facts_beside_a_trace(tmp_path: Path, name: str, facts: object, taken: bool) -> None:
    (tmp_path / NAME).write_text('{"traceEvents": [{"ph": "X", "name": "ProfilerStep#3"}]}')
    (tmp_path / f"{name}.rlpatch.json").write_text(json.dumps(facts))
    (row,) = rows(tmp_path)
    if not taken:
        assert (row["target"], row["rollout"]) == ("", None)
        return
    assert (row["target"], row["release"], row["rollout"], row["asked"]) == ("vllm", "0.11.0", 4, "3:9")
    assert (row["ranks"], row["got"]) == ("2, missing 6", "3:4 (1 of 6 steps)")
    assert row["traces"][0]["pid"] == 7  # what has not the form of a fact is none
    assert row["traces"][0]["facts"]["units"] == FACTS["units"]


def test_an_open_window(tmp_path: Path) -> None:
    path = parsed(tmp_path / NPU.format(0, 1))
    info = {"config": {"common_config": {"schedule": {"wait": 29, "warmup": 1, "active": 10**9 - 30}}}}
    (path / "profiler_info_3.json").write_text(json.dumps(info))
    (row,) = rows(tmp_path)
    assert row["asked"] == "30:"


@pytest.mark.parametrize("info", ["{}", '{"config": 3}', '{"config": {"common_config": {"schedule": {"wait": "x"}}}}'])
def test_a_schedule_that_is_none(tmp_path: Path, info: str) -> None:
    path = parsed(tmp_path / NPU.format(0, 1))
    (path / "profiler_info_3.json").write_text(info)
    assert folders.inspect(path).window is None


def test_numbers_across_the_blocks_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = "".join(f'{{"ph": "X", "name": "ProfilerStep#{number}"}}, ' for number in (3, 44, 555, 123456789012))
    path = tmp_path / "a_dp0_rank0_7.1.pt.trace.json"
    path.write_text(f'{{"traceEvents": [{names}{{}}]}}')
    for size in range(1, 90):
        monkeypatch.setattr(chrome, "_SCAN", size)
        assert folders.inspect(path).steps == (3, 44, 555, 123456789012), size


# ---------------------------------------------------------------- the command


@pytest.mark.engine
def test_the_table_fits_80_columns(recorded: Path) -> None:
    from patcher.messages import tables

    lines = tables.traces(tracing.traces(recorded).data, 80)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for said in ("not parsed", "killed", "cut off", "whole", "rollout", "compute-log-prob", "3:5", "step 2"):
        assert said in text


@pytest.mark.engine
def test_the_command(recorded: Path, run) -> None:
    said = run("traces", recorded / "npu")
    assert "not parsed" in said.stdout
    assert "next: rlpatch analyse " in said.stdout
    assert "trace can't be used: profiler_info.json is missing: the process ended" in said.stdout
    assert said.stdout.count("profiler_info.json is missing") == 1
    assert run("traces", recorded / "npu", "-v").stdout.count("profiler_info.json is missing") > 1
    document = json.loads(run("traces", recorded / "npu", "--json").stdout)
    assert [row["state"] for row in document["result"]["captures"]] == ["not parsed", "killed"]


@pytest.mark.engine
def test_one_trace(recorded: Path, run) -> None:
    (path,) = (recorded / "torch").glob("*.gz")
    document = json.loads(run("traces", path, "--json").stdout)
    assert [row["state"] for row in document["result"]["captures"]] == ["whole"]


def test_on_a_terminal_it_fits_the_terminal(tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a-rather-long-name-of-some-trace.nsys-rep").write_text("x")
    assert "another tool" in run("traces", tmp_path).stdout
    assert "a report of Nsight Systems" in run("traces", tmp_path).stdout


def test_nothing_there(tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("traces", "analyse", "report"):
        assert f"no traces found in {tmp_path.name}\n" in run(command, tmp_path, code=3).stderr
    monkeypatch.chdir(tmp_path)
    assert "rlpatch_traces does not exist" in run("traces", code=3).stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(tmp_path: Path, run) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    assert "permission denied" in run("traces", closed, code=5).stderr
    closed.chmod(0o700)


@pytest.mark.parametrize("log", [False, True], ids=["alone", "with a log"])
def test_nothing_is_left_beside_a_database_that_is_only_read(tmp_path: Path, log: bool) -> None:
    """In the mode of a write-ahead log whoever opens a database makes two files beside it."""
    output = tmp_path / "host_dp0_rank0_7_20261122101010123_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    file = output / "ascend_pytorch_profiler_0.db"
    writer = sqlite3.connect(file)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("CREATE TABLE STEP_TIME (id TEXT)")
    writer.execute("INSERT INTO STEP_TIME VALUES ('30')")
    writer.commit()
    if not log:
        writer.close()
    before = {path.name for path in output.iterdir()}
    with database.opened(file) as found:
        assert found.execute("SELECT id FROM STEP_TIME").fetchall() == [("30",)]
        assert {path.name for path in output.iterdir()} == before
    writer.close()


@pytest.mark.parametrize("name", ["renamed", ".hidden/rank0"])
def test_traces_and_report_walk_alike(tmp_path: Path, name: str) -> None:
    """A folder of torch_npu is one trace whatever it is called, and nothing inside it is another."""
    rank = steps(2).text(tmp_path / name)
    view = rank / OUTPUT / "trace_view.json"
    loose = steps(2).torch(tmp_path / "deep" / "w_1.1.pt.trace.json")
    (tmp_path / "deep" / "noise.json").write_text("{}")
    assert folders.traces_to_read(tmp_path) == sorted((loose, view), key=lambda path: path if path == loose else rank)
    found = {trace.path: trace.form for group in folders.trace_groups(tmp_path) for trace in group.traces}
    assert found == {loose: "torch", rank: "npu"}
