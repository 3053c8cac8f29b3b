"""`rlpatch watch`: how it ends, what it says, and what is seen of it on a terminal."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from patcher.commands.reports import timelines
from patcher.commands.workers import watching
from patcher.messages import tables
from patcher.workers import progress
from tests.patcher.cli.pseudo_terminal import read, shown, start
from tests.patcher.workers import maker
from tests.patcher.workers.maker import Saved, here

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "POLL_S", 0.02)


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """The default folder, for the tests run in the folder above it."""
    return Saved(tmp_path / "rlpatch_traces")


def result(done: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)["result"]
    return found


ENDS: dict[str, tuple[list[dict[str, Any]], list[str], int, str, str]] = {
    "some workers will not save a trace": (
        [{"state": "saved"}, {"state": "saved", "rank": 1, "pid": 2, "ranks": "0,1"}], [], 0, "saved", ""),
    "all have saved, looked at once": ([{"state": "saved"}], ["--once"], 0, "saved", ""),
    "one failed": (
        [{"state": "saved"}, {"state": "failed", "rank": 1, "pid": 2, "why": "it is full"}], [], 3, "lost",
        "no trace: some workers will not save a trace: 1 saved a trace, 1 saved no trace"),
    "one was not recorded": (
        [{"state": "not recorded", "why": "the rollout ended"}], [], 3, "lost", "no trace: some workers will not save a trace: 1 saved no trace"),
    "one of two windows": (
        [{"state": "saved", "done": False, "traces": ["a.json"]}], ["--once"], 3, "at work",
        "no trace: some workers have not saved their trace yet: 1 still recording (some traces already saved)"),
    "one of two windows, and gone": (
        [here(state="saved", done=False, traces=["a.json"], pid=maker.ended())], [], 3, "lost",
        "no trace: some workers will not save a trace: 1 with some traces missing"),
    "one is gone": ([here(pid=maker.ended())], [], 3, "lost", "no trace: some workers will not save a trace: 1 saved no trace"),
    "timeout": ([{}], ["--timeout", "0.1"], 3, "timeout", "no trace: the time given with --timeout is over: 1 still recording"),
    "one failed, and timeout": (
        [{}, {"state": "failed", "rank": 1, "pid": 2}], ["--timeout", "0.1"], 3, "timeout",
        "no trace: the time given with --timeout is over: 1 still recording, 1 saved no trace"),
    "looked at once": ([{}], ["--once"], 3, "at work", "no trace: some workers have not saved their trace yet: 1 still recording"),
    "a rank is missing": (
        [{"state": "saved", "ranks": "all", "world": 2}], ["--once"], 3, "at work",
        "no trace: some workers have not saved their trace yet: 1 saved a trace, 1 without a status report yet"),
    "nobody is there": ([], ["--once"], 3, "at work", "no worker: no worker has reported its status in "),
    "nobody came": ([], ["--timeout", "0.1"], 3, "timeout", "no worker: no worker has reported its status in "),
    "no worker of the stage": (
        [{"state": "saved"}], ["--once", "--stage", "update_policy"], 3, "at work",
        "no worker: no worker of update-policy has reported its status in "),
    "one of two stages": (
        [{"state": "saved"}], ["--once", "--stage", "update-policy,rollout"], 3, "at work",
        "no trace: some workers have not saved their trace yet: 1 saved a trace, no worker of update-policy"),
    "both stages": (
        [{"state": "saved"}, {"state": "saved", "step": 1}], ["--stage", "update-policy,rollout"], 0, "saved", ""),
    "another stage is not waited for": ([{"state": "saved"}, {"step": 1}], ["--stage", "rollout"], 0, "saved", ""),
    "an earlier run is not waited for": ([{"at": 1e9, "rank": 1}, {"state": "saved", "pid": 2}], ["--since", "1h"], 0, "saved", ""),
    "since a time": ([{"at": 1e9, "rank": 1}, {"state": "saved", "pid": 2}], ["--since", "1000000001"], 0, "saved", ""),
    "nothing was asked": ([maker.ON_DEMAND], ["--once"], 0, "at work", ""),
    "nothing was asked in time": (
        [maker.ON_DEMAND], ["--timeout", "0.1"], 3, "timeout", "no trace: the time given with --timeout is over: 1 not asked to record (ask with rlpatch trigger)"),
}  # fmt: skip


@pytest.mark.parametrize(("states", "words", "code", "ended", "said"), ENDS.values(), ids=ENDS)
def test_watch_ends_with_a_code_for_each_outcome(
    run: Run, saved: Saved, states: list[dict[str, Any]], words: list[str], code: int, ended: str, said: str
) -> None:
    for told in states:
        saved.state(**told)
    done = run("watch", *words, "--json", code=code)
    assert result(done)["ended"] == ended
    assert json.loads(done.stdout)["exit_code"] == code
    assert f"Error: {said}" in done.stderr if said else "Error" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--since", "yesterday"), 2, "--since yesterday"),
        (("--stage", "rolout"), 3, "rolout"),  # a recipe may have a stage of its own
        (("--timeout", "-1"), 2, "--timeout"),
        (("nowhere", "--once"), 3, "nowhere"),
        (("file", "--once"), 3, "file"),
    ],
)
def test_a_path_that_cannot_be_watched_is_refused(
    run: Run, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "rlpatch_traces").mkdir()
    done = run("watch", *words, *(() if "--once" in words else ("--once",)), code=code)
    assert said in done.stderr.replace(f"{tmp_path}/", "")


def test_watch_waits_until_the_last_worker_has_saved(run: Run, saved: Saved) -> None:
    def work() -> None:
        for state in ("waiting", "armed", "recording", "recording", "saved"):
            time.sleep(0.1)
            saved.state(state, **here(ranks="0,1", world=2))
        saved.state("saved", **here(rank=1, ranks="0,1", world=2, traces=[str(trace)]))

    trace = saved.trace()
    worker = threading.Thread(target=work)
    worker.start()
    done = run("watch")
    worker.join()
    lines = [line.partition(": ")[2] for line in done.stderr.splitlines() if "rank 0" in line]
    assert lines == ["waiting, step 17", "armed, step 17", "recording, step 17", "saved, step 17"]
    assert "2 saved a trace\nnext: rlpatch traces " in done.stdout


def test_watch_waits_for_a_folder_that_does_not_exist_yet(run: Run, tmp_path: Path) -> None:
    timer = threading.Timer(0.2, lambda: Saved(tmp_path / "later").state("saved"))
    timer.start()
    found = run("watch", "later")
    assert "1 saved a trace" in found.stdout
    assert "waiting for a worker to create later" in found.stderr
    timer.join()


def test_a_folder_that_never_comes_is_named_at_once_and_at_the_end(run: Run) -> None:
    found = run("watch", "nowhere", "--timeout", "0.1", code=3)
    first, *others = found.stderr.splitlines()
    assert first == "waiting for a worker to create nowhere"
    assert any("nowhere does not exist" in line for line in others)


def test_the_values_are_those_of_the_worker(run: Run, saved: Saved) -> None:
    trace = saved.trace()
    at = time.time() - 5
    saved.state("saved", number=60, at=at, traces=[f"/mounted/elsewhere/{trace.name}", "/mounted/elsewhere/moved.json"])
    saved.write("rollout_b.json", "{")
    found = result(run("watch", "--json"))
    (row,) = found["workers"]
    told = {"target": "vllm", "release": "0.32.0", "stage": "rollout", "host": "node1", "rank": 0, "pid": 4711,
            "state": "saved", "number": 60, "live": None, "window": "30:60", "at": at, "outcome": "done"}  # fmt: skip
    assert {name: row[name] for name in told} == told
    assert 5 <= row["age"] < 60
    assert row["traces"] == [
        {"path": str(trace), "size": trace.stat().st_size},
        {"path": str(saved.path / "moved.json"), "size": None},
    ]
    assert found["skipped"] == [
        {"file": str(saved.folder / "rollout_b.json"), "why": "the file is not JSON, or incomplete"}
    ]
    assert found["folder"] == str(saved.path)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs /dev/shm")
def test_the_live_number_stands_where_the_written_one_would(run: Run, saved: Saved) -> None:
    with maker.live(struct.pack("=Q", 45)) as file:
        saved.state("recording", **here(number=31, live=file.fileno()))
        done = run("watch", "--once", code=3)
        assert "15 of 30 in 30:60" in done.stdout
        (row,) = result(run("watch", "--once", "--json", code=3))["workers"]
        assert (row["number"], row["live"]) == (31, 45)


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ({"window": "500:510", "number": 1}, "1, before 500:510"),
        ({"window": "0:3", "number": 8, "load": 4}, "8, before 0:3"),
        ({"window": "0:3", "number": 8, "load": 4, "origin": 7}, "1 of 3 in 7:10"),
        ({"window": "30:60,70:80", "number": 1}, "1, before 30:60"),
        ({"window": "4:", "number": 30, "tail": 4, "origin": 20}, "6 in 24:"),
    ],
    ids=str,
)
def test_units_are_counted_within_the_window_that_they_are_of(
    state: dict[str, Any], shown: str, run: Run, saved: Saved
) -> None:
    saved.state("waiting", **here(**state))
    (line,) = [line for line in run("watch", "--once", code=3).stdout.splitlines() if "waiting" in line]
    assert f" {shown} " in line


def test_what_is_left_out_is_said(run: Run, saved: Saved) -> None:
    saved.write("rollout_b.json", "{")
    saved.state("recording", **here(pid=maker.ended(), at=time.time() - 60))
    saved.state("saved", **here())
    done = run("watch", "-v")
    assert f"{saved.folder}/rollout_b.json: the file is not JSON, or incomplete" in " ".join(done.stderr.split())
    assert "note: skipped 1 processes that ended and were replaced by new ones" in done.stderr


def test_ranks_that_are_still_to_come_are_named(run: Run, saved: Saved) -> None:
    saved.state("saved", ranks="all", world=3)
    assert "  rollout rank 1, 2: " in run("watch", "--once", code=3).stdout


def test_a_request_that_is_still_to_be_served_is_shown(run: Run, saved: Saved) -> None:
    saved.state("waiting", **maker.ON_DEMAND)
    saved.request(window="0:10", tail=8, at=3, ranks="all")
    assert "requested: 0:10 --at-tail 8 in rollout 3, on all ranks" in run("watch", "--once", code=3).stdout
    saved.state("saved", **maker.ON_DEMAND, rollout=3, request="abc123")
    assert "asked for" not in run("watch", "--once").stdout


def test_what_was_served_before_is_no_window_of_the_rollout_that_goes_on(run: Run, saved: Saved) -> None:
    saved.request(window="10:14", at=1)
    trace = saved.trace()
    for state, rollout, turn in (("saved", 1, "4 of 4 in 10:14"), ("installed", 2, "33 ")):
        told = {"request": "abc123", "window": "10:14", "number": 33, "traces": [str(trace)]}
        saved.state(state, rollout=rollout, on_demand=True, **told)
        (line,) = [line for line in run("watch").stdout.splitlines() if "rollout" in line]
        assert turn in line
        assert ("10:14" in line) is (state == "saved")


def test_the_size_of_a_folder_is_measured_once(run: Run, saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    from patcher.traces.folders import states

    measured: list[Path] = []

    def size(path: Path) -> int:
        measured.append(path)
        return 7

    monkeypatch.setattr(states, "size", size)
    saved.state("saved", traces=[str(saved.trace())])
    saved.state("recording", rank=1, pid=2, ranks="0,1")
    run("watch", "--timeout", "0.3", code=3)
    assert len(measured) == 1


def test_traces_says_why_there_are_none(run: Run, saved: Saved) -> None:
    saved.state("not recorded", why="not recorded: the process ends after 19 decode steps", pid=1)
    saved.state("failed", why="RuntimeError", rank=1, pid=2, ranks="0,1")
    done = run("traces", code=3)
    words = " ".join(done.stderr.split())
    assert words.startswith("Error: no trace: ")
    assert "rank 0, rollout: not recorded: the process ends after 19 decode steps" in words
    assert "rank 1, rollout: RuntimeError" in words
    saved.trace()
    run("traces")


def test_a_file_in_place_of_the_state_folder_is_an_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rlpatch_traces").mkdir()
    (tmp_path / "rlpatch_traces" / ".rlpatch").touch()
    assert "Not a directory\n  at " in run("watch", "--once", code=5).stderr


def test_quiet_says_only_what_went_wrong(run: Run, saved: Saved) -> None:
    saved.state("recording")
    done = run("watch", "-q", "--timeout", "0.1", code=3)
    assert done.stdout == ""
    assert done.stderr.startswith("Error: no trace: the time given with --timeout")


# ---------------------------------------------------------------- a terminal

LINES: list[dict[str, Any]] = [
    {"target": "vllm-ascend", "release": "0.11.0rc1", "state": "not recorded", "why": "no more"},
    {"stage": "compute-log-prob", "role": "ref", "step": 12, "host": "node12"},
    {"rank": 127, "pid": 3, "state": "saved", "ranks": "0,127", "at": 1e9},
    {**maker.ON_DEMAND, "rank": 8, "pid": 9, "replica": "3"},
    {"stage": "weight-sync", "role": "trainer", "step": None, "sync": 3, "pid": 10},
]  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_table_fits_a_terminal_and_breaks_no_word(run: Run, saved: Saved, width: int) -> None:
    for told in LINES:
        saved.state(**told)
    workers = [
        SimpleNamespace(**row, span=(30, 60)) for row in result(run("watch", "--once", "--json", code=3))["workers"]
    ]
    lines = tables.workers(workers, width)
    assert max(map(len, lines)) <= width
    if width >= 80:
        assert all(
            word in "\n".join(lines)
            for word in ("vllm-ascend", "0.11.0rc1", "compute-log-prob", "node12", "silent", "3/8")
        )
    whole = tables.workers(workers)
    assert len(whole) == len(LINES) + 2  # each row is a line, in a pipe
    assert "weight-sync trainer sync 3" in "\n".join(whole)


def test_a_dumb_terminal_gets_a_line_for_each_change(saved: Saved) -> None:
    saved.state("saved")
    text = shown("watch", "--once", saved.path, environ={"TERM": "dumb"})
    assert text.startswith("rollout node1 rank 0: saved")
    assert "\x1b" not in text


def test_on_a_terminal_the_table_is_drawn_again_only_where_it_changed(saved: Saved) -> None:
    for rank in range(30):
        saved.state("recording", **here(rank=rank, ranks="all", world=30), replica=str(rank))
    process, leader = start("watch", saved.path)
    drawn = read(leader, lambda text: "more lines" in text)
    time.sleep(2.5)  # nothing changes meanwhile
    process.send_signal(signal.SIGINT)
    drawn += read(leader)
    os.close(leader)
    assert process.wait() == 130
    live, _, after = drawn.partition("Error: ")
    assert live.count("target") == 2  # once, and as rich leaves
    assert max(len(line) for line in re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", live).splitlines()) <= 80
    assert "stopped by Ctrl-C; the run goes on" in after
    assert "30 still recording" in after
    assert live.partition("more lines")[0].count("\n") <= 24


@pytest.mark.parametrize(("presses", "shown_at_the_end"), [(1, True), (2, False)])
def test_ctrl_c_while_files_are_read_shows_the_state_once_more(
    run: Run, saved: Saved, monkeypatch: pytest.MonkeyPatch, presses: int, shown_at_the_end: bool
) -> None:
    saved.state()
    collect, interrupts = progress.collect, iter([KeyboardInterrupt] * presses)

    def interrupted(*arguments: Any) -> Any:
        for interrupt in interrupts:
            raise interrupt
        return collect(*arguments)

    monkeypatch.setattr(progress, "collect", interrupted)
    done = run("watch", saved.path, code=130)
    assert ("rank 0: recording" in done.stderr) == shown_at_the_end


def test_a_window_that_was_not_recorded_counts_no_units(run, tmp_path: Path) -> None:
    """The units are those of a rollout that was not asked for."""
    saved = Saved(tmp_path / "traces")
    saved.state("not recorded", window="30:40", number=47, why="the process ends before rollout 5")
    said = run("watch", "--once", tmp_path / "traces", code=3).stdout
    assert "30:40" in said
    assert "10 of 10" not in said


@pytest.mark.parametrize(
    ("state", "command", "code", "ran"),
    [
        ("saved", "touch ran", 0, True),
        ("saved", "touch ran; exit 7", 7, True),
        ("saved", "touch ran; kill -9 $$", 137, True),
        ("failed", "touch ran", 3, False),
    ],
)
def test_a_command_runs_once_the_traces_are_there(
    run, tmp_path: Path, state: str, command: str, code: int, ran: bool
) -> None:
    saved = Saved(tmp_path / "traces")
    saved.state(state, why="no disk" if state == "failed" else "")
    run("watch", tmp_path / "traces", "--then", command, code=code)
    assert Path("ran").exists() == ran
    run("watch", "--timeline", "--then", "true", code=2)


@pytest.mark.parametrize(
    ("states", "says"),
    [
        (None, "rlpatch_traces"),
        ([], "rlpatch_traces"),
        ([{"state": "waiting", "on_demand": True}], "rlpatch trigger"),
        ([here(state="waiting", on_demand=True, pid=maker.ended())], "have ended"),
    ],
    ids=["no folder", "an empty folder", "nobody was asked", "a finished run that nobody asked"],
)
def test_a_wait_that_may_last_says_once_for_what_and_how_it_ends(
    run: Run, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: list[Any] | None, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if states is None:
        shutil.rmtree(saved.path)
    for state in states or ():
        saved.state(**state)
    found = run("watch", "--timeout", "0.3", code=3).stderr
    text = " ".join(found.partition("Error: ")[0].split())
    assert says in text
    assert text.count("Ctrl-C") == text.count("--timeout SECONDS") == 1


def test_a_wait_for_workers_at_work_or_a_single_look_says_no_such_thing(run: Run, saved: Saved) -> None:
    assert "Ctrl-C" not in run("watch", saved.path, "--once", code=3).stderr
    saved.state("recording")
    assert "Ctrl-C" not in run("watch", saved.path, "--timeout", "0.2", code=3).stderr


def test_a_wait_for_a_timeline_says_so_once(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "FOLLOW_S", 0.02)
    assert run("watch", tmp_path, "--timeline", "--timeout", "0.2").stderr.count("Ctrl-C") == 1
