"""`analyse`: the real torch_npu, and stand-ins for all that goes wrong with it."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import click
import pytest

from fixtures import environments
from fixtures.ascend import trace
from patcher.cli import rlpatch, terminal
from patcher.traces import folders
from patcher.traces.folders import npu_folders, states
from patcher.traces.folders.npu_folders import BEFORE, LOCK
from patcher.traces.names import OUTPUT
from patcher.traces.tools import offline, parsing, viewers
from tests.alarms import at_most
from tests.matrix import CRASH, thinned
from tests.patcher.cli.conftest import runner
from tests.patcher.traces.tools import standin

NAME = "host_dp0_rank{0}_77_77_20261122041742{0}76_ascend_pt"


def not_parsed(folder: Path, rank: int = 0) -> Path:
    """What a probe on an NPU leaves, as far as `analyse` looks at it."""
    path = folder / NAME.format(rank)
    (path / "FRAMEWORK").mkdir(parents=True)
    (path / "FRAMEWORK" / "torch.op_range").write_bytes(b"ProfilerStep#3")
    (path / f"profiler_info_{rank}.json").write_text("{}")
    return path


def was_parsed(path: Path) -> Path:
    (path / OUTPUT).mkdir()
    (path / OUTPUT / "trace_view.json").write_text('[{"before": 1}]')
    return path


def content(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return tmp_path / "traces"


@pytest.fixture
def analyse(tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs `analyse` with a stand-in of torch_npu that behaves in one way, and gives its document."""

    def analyse(
        folder: Path, *words: object, how: str = "whole", code: int = 0, exports: bool = True
    ) -> dict[str, Any]:
        packages = tmp_path / f"packages-{exports}"
        if not packages.exists():
            standin.install(packages, exports=exports)
        monkeypatch.setenv("PYTHONPATH", str(packages))
        monkeypatch.setenv("STANDIN", how)
        said = run("analyse", folder, "--python", sys.executable, "--json", *words, code=code)
        document = json.loads(said.stdout)
        return {**document, "stderr": said.stderr}

    return analyse


# ---------------------------------------------------------------- how it ends


@pytest.mark.engine
def test_the_real_torch_npu(
    recorded: Path, npu_python: Path, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = (recorded / "npu").glob("*_dp0_*")
    copy = shutil.copytree(path, tmp_path / "traces" / path.name)
    monkeypatch.setenv("PATH", environments.variables()["PATH"])
    before = trace.read(copy)
    said = run("analyse", copy.parent, "--python", npu_python, "--export", "text,db", "--json")
    result = json.loads(said.stdout)["result"]
    (one,) = result["parsed"]
    assert (one["ended"], one["why"], one["exports"]) == ("parsed", "", ["text", "db"])
    assert folders.inspect(copy).state == states.WHOLE
    steps = [
        event["name"] for event in json.loads((copy / OUTPUT / "trace_view.json").read_text()) if event.get("ph") == "X"
    ]
    assert {name for name in steps if name.startswith("ProfilerStep#")} == {"ProfilerStep#3", "ProfilerStep#4"}
    assert trace.read(copy) == before
    insight = next(one for one in result["opens"] if one["program"] == viewers.INSIGHT)
    there = {file["name"]: file["there"] for file in insight["files"]}
    assert there["trace_view.json"]
    assert there["ascend_pytorch_profiler*.db"]
    assert not there["kernel_details.csv"]  # nothing ran on a device
    assert insight["where"] == str(copy)
    assert not (copy / BEFORE).exists()
    again = json.loads(run("analyse", copy, "--json").stdout)["result"]  # needs no torch_npu
    assert again["parsed"] == []


@pytest.mark.parametrize(
    ("how", "ended", "code", "why"),
    [
        ("whole", "parsed", 0, ""),
        ("dies", "restored", 6, f"the parser was killed by signal {signal.SIGSEGV}"),
        ("fails", "restored", 6, "the parser failed (exit code 3)"),
        ("hangs", "restored", 6, "the parser made no progress for 0.6 s and was stopped"),
        ("nothing", "restored", 6, "trace_view.json and ascend_pytorch_profiler.db are both missing"),
        ("half", "incomplete", 1, "trace_view.json is cut off"),
    ],
)
@pytest.mark.parametrize("parsed", [False, True], ids=["new", "parsed before"])
def test_how_a_parsing_ends(analyse, traces: Path, how: str, ended: str, code: int, why: str, parsed: bool) -> None:
    """What is there decides. With an older result, one that is not whole is none."""
    path = not_parsed(traces)
    exports = "text"
    if parsed:
        was_parsed(path)
        exports = "text,db"
        ended, code = ("restored", 6) if how == "half" else (ended, code)
    before = content(path)
    patience = ("--timeout", "0.6") if how == "hangs" else ()  # the others may have to wait for a busy machine
    document = analyse(traces, "--export", exports, *patience, how=how, code=code)
    (one,) = document["result"]["parsed"]
    assert (one["ended"], one["why"]) == (ended, why)
    if ended == "restored":
        assert content(path) == before
        assert (path / OUTPUT).exists() == parsed
    elif ended == "parsed":
        assert folders.inspect(path).state == states.WHOLE
        assert set(one["exports"]) == set(exports.split(","))
    else:
        assert folders.inspect(path).state == states.HALF_PARSED
    assert not (path / BEFORE).exists()
    for problem in document["problems"]:
        assert (problem["cause"], problem["where"]) == (why, str(path))
    if how == "nothing":
        (line,) = document["problems"][0]["notes"]
        assert line.endswith("Exception: no space  [31m left")


@pytest.mark.parametrize(
    ("files", "cpu", "idles"),
    [
        ([1] * 9, [0] * 9, True),
        (list(range(9)), [0] * 9, False),  # it writes
        ([1] * 9, [at * 0.5 for at in range(9)], False),  # it computes
        ([1] * 9, [at * 0.01 for at in range(9)], True),  # it only looks again and again for a file of another's
        ([1, 1, 1, 2, 2, 2, 2, 2, 2], [0] * 9, False),  # not for long enough
    ],
)
def test_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[int], cpu: list[float], idles: bool) -> None:
    """Looked at each 2 s, for 16 s, with a patience of 13 s."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(parsing, "_written", lambda _path: files[int(clock[0] / 2)])
    monkeypatch.setattr(parsing, "_cpu", lambda _session: cpu[int(clock[0] / 2)])
    with (tmp_path / "log").open("w+b") as log:
        child = parsing.ToolProcess(["true"], tmp_path, log)
        said = []
        for _ in range(8):
            clock[0] += 1.9
            said.append(child.is_idle(tmp_path, 13))  # too early for a look
            clock[0] = round(clock[0] + 0.1)
            said.append(child.is_idle(tmp_path, 13))
        child.stop()
    assert any(said) == idles


def test_only_what_is_not_there_yet_is_parsed(analyse, traces: Path) -> None:
    was_parsed(not_parsed(traces, 0))
    not_parsed(traces, 1)
    ended = [one["path"] for one in analyse(traces)["result"]["parsed"]]
    assert ended == [str(traces / NAME.format(1))]
    assert len(analyse(traces, "--export", "db")["result"]["parsed"]) == 2
    assert analyse(traces, "--export", "db")["result"]["parsed"] == []


def test_several_at_a_time(analyse, traces: Path) -> None:
    paths = [not_parsed(traces, rank) for rank in range(5)]
    document = analyse(traces, "--jobs", "3")
    assert sorted(one["path"] for one in document["result"]["parsed"]) == [str(path) for path in paths]
    assert {one["ended"] for one in document["result"]["parsed"]} == {"parsed"}
    assert "parsing 5 of 5: parsed" in document["stderr"]


def test_one_that_fails_does_not_stop_the_others(analyse, traces: Path) -> None:
    paths = [not_parsed(traces, rank) for rank in range(3)]
    document = analyse(traces, how="dies", code=6)
    assert [problem["where"] for problem in document["problems"]] == [str(path) for path in paths]
    assert document["result"]["opens"] == []


def test_a_part_that_failed_is_not_taken_for_a_release_that_cannot(analyse, traces: Path) -> None:
    path = not_parsed(traces)
    document = analyse(traces, "--export", "text,db", how="no db", code=1)
    (problem,) = document["problems"]
    assert problem["cause"] == "torch_npu did not write db; it reported that part of the parsing failed"
    assert problem["next"] == f"check whether the disk is full; the output of torch_npu is in {path / 'logs'}"
    assert "DbParser" in problem["notes"][0]
    assert npu_folders.exported(path) == ("text",)


@pytest.mark.engine
def test_the_real_torch_npu_on_a_full_disk(
    recorded: Path, npu_python: Path, small_disk, run, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """What is half is never called whole; with more room the same command does the rest."""
    if not pytestconfig.getoption("--thorough"):
        pytest.skip("--thorough: it imports torch_npu four times more")
    (path,) = (recorded / "npu").glob("*_dp0_*")
    copy = Path(shutil.copytree(path, (disk := small_disk(2000)) / path.name, ignore=shutil.ignore_patterns("logs")))
    monkeypatch.setenv("PATH", environments.variables()["PATH"])
    words = ("analyse", copy, "--python", npu_python, "--export", "text,db")
    for room in (4, 16, 28):
        used = shutil.disk_usage(disk).used // 1024
        subprocess.run(["mount", "-o", f"remount,size={used + room}k", disk], check=True)
        assert runner().invoke(rlpatch, list(map(str, words))).exit_code in (1, 6)
        assert folders.inspect(copy).state in (states.NOT_PARSED, states.HALF_PARSED) or npu_folders.exported(copy) == (
            "text",
        )
        shutil.rmtree(copy / "logs", ignore_errors=True)
    subprocess.run(["mount", "-o", "remount,size=2000k", disk], check=True)
    run(*words)
    assert (folders.inspect(copy).state, npu_folders.exported(copy)) == (states.WHOLE, ("text", "db"))


def test_a_release_that_exports_what_was_recorded(analyse, traces: Path) -> None:
    not_parsed(traces)
    document = analyse(traces, "--export", "text,db", exports=False)
    assert document["result"]["parsed"][0]["exports"] == ["text"]
    assert any("wrote no db" in message for message in document["messages"])


def _2_1(profiler_path, max_process_number=4): ...
def _2_7(profiler_path, max_process_number=4, export_type=None): ...
def _later(profiler_path, *, export_type=None, **more): ...


@pytest.mark.parametrize(
    ("release", "exports", "words"),
    [
        (_2_1, "", {"max_process_number": 1}),
        (_2_1, "text,db", {"max_process_number": 1}),
        (_2_7, "", {"max_process_number": 1}),
        (_2_7, "db", {"max_process_number": 1, "export_type": "db"}),
        (_2_7, "text,db", {"max_process_number": 1, "export_type": ["text", "db"]}),
        (_later, "db", {"export_type": "db"}),
    ],
)
def test_what_each_release_of_torch_npu_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], release, exports: str, words: dict[str, object]
) -> None:
    told = mock.create_autospec(release)
    module = SimpleNamespace(analyse=told)
    for name in ("torch_npu", "torch_npu.profiler", "torch_npu.profiler.profiler"):
        monkeypatch.setitem(sys.modules, name, module)
    offline.main("/traces/a_ascend_pt", exports)
    told.assert_called_once_with("/traces/a_ascend_pt", **words)
    assert ("has no export_type" in capsys.readouterr().out) == (release is _2_1 and bool(exports))


def test_a_parser_that_cannot_be_started_leaves_the_folder(traces: Path) -> None:
    path = was_parsed(not_parsed(traces))
    before = content(path)
    with pytest.raises(FileNotFoundError):
        parsing.parse([path], "/nowhere/python", "", jobs=1, patience=9, done=print)
    assert content(path) == before


def test_away_from_the_main_thread(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals are then for whoever owns the main thread."""
    monkeypatch.setenv("PYTHONPATH", str(standin.install(tmp_path / "packages")))
    monkeypatch.setenv("STANDIN", "whole")
    path = not_parsed(traces)
    told: list[Any] = []
    words = {"jobs": 1, "patience": 600, "done": told.append}
    thread = threading.Thread(target=parsing.parse, args=([path], sys.executable, "text"), kwargs=words)
    thread.start()
    thread.join()
    assert [one.ended for one in told] == ["parsed"]


def test_the_interpreter_of_the_environment_that_is_switched_on(
    traces: Path, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the one that runs rlpatch has no torch_npu; one that does not answer is passed over."""
    not_parsed(traces)
    for number, (variable, source) in enumerate(
        (
            ("VIRTUAL_ENV", "#!/bin/sh\nexit 1\n"),
            ("CONDA_PREFIX", f'#!/bin/sh\nPYTHONPATH={tmp_path}/p exec {sys.executable} "$@"\n'),
        )
    ):
        python = tmp_path / str(number) / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(source)
        python.chmod(0o755)
        monkeypatch.setenv(variable, str(python.parents[1]))
    standin.install(tmp_path / "p")
    monkeypatch.setenv("STANDIN", "whole")
    document = json.loads(run("analyse", traces, "--json").stdout)
    assert [one["ended"] for one in document["result"]["parsed"]] == ["parsed"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar on stderr, in which a name is no markup, and no line for what is done."""
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with click.Context(rlpatch), terminal.working("parsing", 2) as display:
        display.at_work(["[red]one", "two"])
        time.sleep(0.3)  # it is drawn ten times a second
        display.done("parsed one")
        display.at_work([])
    assert "[red]one and 1 more" in screen.getvalue()
    assert "parsed one" not in screen.getvalue()
    assert capsys.readouterr().out == ""


def test_quiet(traces: Path, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(standin.install(tmp_path / "packages")))
    monkeypatch.setenv("STANDIN", "whole")
    not_parsed(traces)
    said = run("analyse", traces, "--python", sys.executable, "-q")
    assert said.stdout == said.stderr == ""


# ---------------------------------------------------------------- interrupted


@pytest.fixture
def started(tmp_path: Path, traces: Path):
    """Starts `analyse` as a process of its own, and waits until its stand-in has written half of a result."""
    processes = []

    def start(how: str = "waits") -> subprocess.Popen[str]:
        packages = standin.install(tmp_path / "packages")
        command = [
            sys.executable,
            "-m",
            "patcher",
            "analyse",
            str(traces),
            "--python",
            sys.executable,
            "--export",
            "text,db",
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": f"{packages}{os.pathsep}{Path(folders.__file__).parents[2]}",
            "STANDIN": how,
        }
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        processes.append(process)
        _until(lambda: (traces / "begun").exists() or process.poll() is not None)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()
    for pid in parsers(traces):
        os.kill(pid, signal.SIGKILL)


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def parsers(folder: Path) -> list[int]:
    """The processes that parse below a folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "-c" in words and any(word.startswith(str(folder)) for word in words):
            found.append(int(file.parent.name))
    return found


@pytest.mark.parametrize("number", thinned([signal.SIGINT, signal.SIGTERM], [signal.SIGINT], CRASH))
@pytest.mark.parametrize("how", ["waits", "waits in a child"])
def test_an_interrupt(started, traces: Path, number: signal.Signals, how: str) -> None:
    path = was_parsed(not_parsed(traces))
    before = content(path)
    process = started(how)
    assert folders.inspect(path).state == states.WRITING
    assert folders.inspect(path).why == "another `rlpatch analyse` or torch_npu is parsing this folder"
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert "after 0 of 1 traces" in said
    assert content(path) == before
    assert parsers(traces) == []
    assert not (path / BEFORE).exists()


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def interrupt(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Sends this process what stops it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # workers of xdist ignore it
    yield lambda: os.kill(os.getpid(), request.param)
    signal.signal(signal.SIGINT, before)


def parse_interrupted(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> list[Any]:
    monkeypatch.setenv("PYTHONPATH", str(standin.install(tmp_path / "packages")))
    monkeypatch.setenv("STANDIN", how)
    told: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        parsing.parse([path], sys.executable, "text", jobs=1, patience=600, done=told.append)
    assert parsers(path.parent) == []
    assert not (path / BEFORE).exists()
    return told


def test_an_interrupt_at_the_very_start(interrupt, traces: Path, tmp_path: Path, monkeypatch) -> None:
    path = was_parsed(not_parsed(traces))
    before, popen = content(path), subprocess.Popen

    def started(*args: Any, **more: Any) -> subprocess.Popen[bytes]:
        process = popen(*args, **more)
        interrupt()
        return process

    monkeypatch.setattr(subprocess, "Popen", started)
    assert parse_interrupted(path, tmp_path, monkeypatch, "waits") == []
    assert content(path) == before


def test_an_interrupt_while_an_earlier_result_is_removed(interrupt, traces: Path, tmp_path: Path, monkeypatch) -> None:
    path = was_parsed(not_parsed(traces))
    rmtree = shutil.rmtree

    def removed(place: Path, **more: Any) -> None:
        if place.name == BEFORE:
            (place / "trace_view.json").unlink()
            interrupt()
        rmtree(place, **more)

    monkeypatch.setattr(shutil, "rmtree", removed)
    assert [one.ended for one in parse_interrupted(path, tmp_path, monkeypatch, "whole")] == ["parsed"]
    assert folders.inspect(path).state == states.WHOLE


@pytest.mark.parametrize("what", ["os.setpgid(0, 0)", "memory = b'x' * 300_000_000"])
def test_whoever_is_stopped_leaves_nobody(tmp_path: Path, what: str) -> None:
    """Neither one in another group of its session, nor one that the kernel takes a while to end, which holds locks."""
    code = f"import os, time\nif os.fork() == 0:\n    {what}\n    open('begun', 'w').close()\ntime.sleep(600)"
    with (tmp_path / "log").open("w+b") as log, (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        child = parsing.ToolProcess([sys.executable, "-c", code, str(tmp_path)], tmp_path, log, [lock.fileno()])
        lock.close()
        _until((tmp_path / "begun").exists)
        assert len(parsers(tmp_path)) == 2
        child.stop()
        left = parsers(tmp_path)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


ODD_LOCKS = {
    "a link": lambda lock, victim: lock.symlink_to(victim),
    "a pipe": lambda lock, _victim: os.mkfifo(lock),
    "a folder": lambda lock, _victim: lock.mkdir(),
    "in a link": lambda lock, victim: (lock.parent.rmdir(), lock.parent.symlink_to(victim.parent)),
}


@pytest.mark.parametrize("what", ODD_LOCKS)
def test_a_lock_that_is_no_file_is_neither_followed_nor_waited_for(
    analyse, traces: Path, tmp_path: Path, what: str
) -> None:
    not_parsed(traces, 0)
    victim = tmp_path / "elsewhere" / LOCK
    victim.parent.mkdir()
    victim.write_text("of somebody else")
    (traces / ".rlpatch").mkdir(exist_ok=True)
    ODD_LOCKS[what](traces / ".rlpatch" / LOCK, victim)
    with at_most(30):
        (problem,) = analyse(traces, code=5)["problems"]
    assert "the folder of the traces is not writable" in problem["cause"]
    assert ".rlpatch" in problem["where"]
    assert victim.read_text() == "of somebody else"


def test_a_second_analyse_of_the_same_folder(started, analyse, traces: Path) -> None:
    not_parsed(traces)
    process = started()
    (traces / "begun").unlink()
    document = analyse(traces / NAME.format(0), code=0)
    assert any("not parsed (still being written): another" in message for message in document["messages"])
    not_parsed(traces, 1)
    document = analyse(traces, code=5)
    assert document["problems"][0]["cause"] == "another `rlpatch analyse` is working in this folder"
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130


def test_killed(started, analyse, traces: Path) -> None:
    """Then its parser goes on, and nobody else begins; once that is gone, too, the next command does it all again."""
    path = was_parsed(not_parsed(traces))
    before = content(path)
    process = started()
    process.kill()
    process.wait()
    assert folders.inspect(path).state == states.WRITING
    (parser,) = parsers(traces)
    os.kill(parser, signal.SIGKILL)
    _until(lambda: folders.inspect(path).state != states.WRITING)
    assert folders.inspect(path).state == states.HALF_PARSED
    document = analyse(traces, how="dies", code=6)
    assert document["result"]["parsed"][0]["ended"] == "restored"
    assert content(path) == before
    assert analyse(traces, "--export", "db")["result"]["parsed"][0]["ended"] == "parsed"
    assert folders.inspect(path).state == states.WHOLE


@pytest.mark.parametrize("wait", [0.5, 2.0, 4.0, 5.0, 6.0, 7.0])
@pytest.mark.engine
def test_an_interrupt_of_the_real_torch_npu(
    recorded: Path, npu_python: Path, tmp_path: Path, pytestconfig: pytest.Config, wait: float
) -> None:
    if not pytestconfig.getoption("--thorough"):
        pytest.skip("--thorough: it imports torch_npu once more")
    (path,) = (recorded / "npu").glob("*_dp0_*")
    copy = shutil.copytree(path, tmp_path / path.name)
    before = {name: data for name, data in content(copy).items() if not name.startswith("PROF_")}
    command = [sys.executable, "-m", "patcher", "analyse", str(copy), "--python", str(npu_python)]
    environment = {**environments.variables(), "PYTHONPATH": str(Path(folders.__file__).parents[2])}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    time.sleep(wait)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode in (0, 130), said
    after = {name: data for name, data in content(copy).items() if not name.startswith(("PROF_", "logs"))}
    if process.returncode:
        assert after == before
        assert folders.inspect(copy).state == states.NOT_PARSED
    else:
        assert folders.inspect(copy).state == states.WHOLE
    assert parsers(tmp_path) == []


# ---------------------------------------------------------------- what cannot be parsed


@pytest.mark.engine
def test_traces_of_torch_need_nothing(recorded: Path, run) -> None:
    """No torch_npu, and no interpreter; the file to open in Perfetto, and what is wrong with it."""
    said = run("analyse", recorded / "torch", "--json")
    document = json.loads(said.stdout)
    assert document["result"]["parsed"] == []
    assert "note: traces of torch.profiler need no parsing" in document["messages"]
    shown = {Path(one["where"]).name: one["lacks"] for one in document["result"]["opens"]}
    assert {one["program"] for one in document["result"]["opens"]} == {viewers.PERFETTO}
    assert sorted(map(bool, shown.values())) == [False, False, True]  # an empty one cannot be opened at all
    assert ["the trace is cut off: the file ends before its JSON is complete"] in shown.values()
    text = run("analyse", recorded / "torch").stdout
    assert "open the traces in Perfetto (go to ui.perfetto.dev and choose Open trace file):\n  /" in text
    assert "next: rlpatch report " in text


@pytest.mark.engine
def test_a_trace_that_was_killed(recorded: Path, tmp_path: Path, run) -> None:
    (path,) = (recorded / "npu").glob("*update_policy*")
    shutil.copytree(path, tmp_path / "traces" / path.name)
    said = run("analyse", tmp_path / "traces")
    assert "warning: not parsed (killed): profiler_info.json is missing" in said.stderr
    assert path.name in "".join(run("analyse", tmp_path / "traces", "-v").stderr.split())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 5, "torch_npu was not found"),
        (("--python", sys.executable), 5, f"--python {sys.executable} has no torch_npu"),
        (("--python", "/nowhere/python"), 2, "the interpreter /nowhere/python does not exist"),
        (("--export", "csv"), 2, "csv is not a valid value"),
        (("--jobs", "0"), 2, "--jobs"),
        (("--timeout", "0"), 2, "--timeout"),
    ],
)
def test_refused(run, traces: Path, words: tuple[str, ...], code: int, said: str) -> None:
    path = not_parsed(traces)
    before = content(path)
    heard = run("analyse", traces, *words, code=code).stderr
    assert said in heard
    assert "--python EXE" in heard or code == 2
    assert content(path) == before


def test_device_data_needs_msprof(analyse, traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (not_parsed(traces) / "PROF_000001_20261122041741000_ABC" / "host").mkdir(parents=True)
    document = analyse(traces, code=5)
    assert "msprof is not on PATH" in document["problems"][0]["cause"]
    assert "set_env.sh" in document["problems"][0]["next"]


def test_what_was_recorded_is_gone(analyse, traces: Path) -> None:
    path = was_parsed(not_parsed(traces))
    shutil.rmtree(path / "FRAMEWORK")
    document = analyse(traces, "--export", "db")
    assert document["result"]["parsed"] == []
    assert any("raw data was deleted" in message for message in document["messages"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(analyse, traces: Path) -> None:
    not_parsed(traces)
    traces.chmod(0o500)
    document = analyse(traces, code=5)
    traces.chmod(0o700)
    assert "the folder of the traces is not writable" in document["problems"][0]["cause"]


@pytest.mark.parametrize("words", [(), ("-q",)])
def test_each_trace_that_is_done_is_said(analyse, tmp_path: Path, words: tuple[str, ...]) -> None:
    for rank in (0, 1):
        not_parsed(tmp_path / "traces", rank)
    said = analyse(tmp_path / "traces", "--jobs", "1", *words)["stderr"].splitlines()
    lines = [line.partition(": ")[0] for line in said if " of 2: " in line]
    assert lines == ([] if words else ["parsing 1 of 2", "parsing 2 of 2"])


def test_what_torch_profiler_left_needs_no_parsing(tmp_path: Path, run) -> None:
    (tmp_path / "a_dp0_rank0_7.1.pt.trace.json").write_text('{"traceEvents": [{"ph": "X"}]}')
    (note,) = json.loads(run("analyse", tmp_path, "--json").stdout)["notes"]
    assert (note["level"], note["detail"]) == ("note", str(tmp_path / "a_dp0_rank0_7.1.pt.trace.json"))


def test_other_files_are_left_alone(tmp_path: Path, run) -> None:
    (tmp_path / "a.nsys-rep").write_text("x")
    (note,) = json.loads(run("analyse", tmp_path, "--json").stdout)["notes"]
    assert (note["level"], note["detail"]) == ("note", str(tmp_path / "a.nsys-rep"))


# ---------------------------------------------------------------- what opens where


def test_what_insight_lacks(tmp_path: Path) -> None:
    one, other = (was_parsed(not_parsed(tmp_path, rank)) for rank in (0, 1))
    for name in ("kernel_details.csv", "communication.json"):
        (one / OUTPUT / name).write_text("x")
    (other / OUTPUT / "kernel_details.csv").write_text("")
    insight, analyze = viewers.viewers([folders.inspect(one), folders.inspect(other)])
    assert (insight.program, insight.where) == (viewers.INSIGHT, tmp_path)
    assert [lack.partition(";")[0] for lack in insight.lacks] == [
        "kernel_details.csv is missing in 1 of 2 traces",
        "step_trace_time.csv is missing in 2 of 2 traces",
        "communication.json is missing in 1 of 2 traces",
        "communication_matrix.json is missing in 2 of 2 traces",
    ]
    assert (analyze.where, analyze.lacks) == (tmp_path, ())
    assert analyze.how == f"msprof-analyze cluster -m all -d {tmp_path}"
    (one / "profiler_info_0.json").rename(one / "profiler_info.json")
    *_, analyze = viewers.viewers([folders.inspect(one), folders.inspect(other)])
    assert "torch_npu knows the rank only if" in analyze.lacks[0]


def test_a_file_that_no_browser_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a_dp0_rank0_7.1.pt.trace.json"
    path.write_text('{"traceEvents": [{"ph": "X"}]}')
    (one,) = viewers.viewers([folders.inspect(path)])
    assert one.lacks == ()
    monkeypatch.setattr(viewers, "PERFETTO_BYTES", 5)
    (one,) = viewers.viewers([folders.inspect(path)])
    assert "trace_processor --httpd" in one.lacks[0]
