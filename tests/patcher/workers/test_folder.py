"""States and requests as they lie in a folder that anybody may write into."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patcher.workers import request as requests
from patcher.workers import worker as workers
from patcher.workers.folder import StateFolder
from patcher.workers.request import FiledRequest, TriggerRequest
from tests.matrix import examples
from tests.patcher.workers.maker import ON_DEMAND, ROLLOUT, TRAINING, VALUES, Saved

STATE = {**ROLLOUT, "state": "waiting", "at": 1.0}
REQUEST = json.loads(TriggerRequest(id="ab12", window="30:60", ranks="0", at=1, expires=2e9).text)


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path / "traces")


def test_a_state_is_what_was_written(saved: Saved) -> None:
    saved.state(
        "saved", rank=3, world=8, ranks="0,3", replica="2", number=60, traces=["/a/b/one.json", "/a/two_ascend_pt/"],
        load=5, tail=6, context=7, why="x" * 300,
    )  # fmt: skip
    saved.state("waiting", step=4, role="ref", stage="compute-log-prob", number=None, more="a key of a later release")
    trained, rolled = StateFolder(saved.path).read().workers
    assert (rolled.target, rolled.release, rolled.unit, rolled.window) == ("vllm", "0.32.0", "decode", "30:60")
    assert (rolled.rank, rolled.world, rolled.ranks, rolled.replica, rolled.dp) == (3, 8, "0,3", "2", 0)
    assert (rolled.traces, rolled.number) == (("one.json", "two_ascend_pt"), 60)
    assert (rolled.load, rolled.tail, rolled.context, rolled.why) == (5, 6, 7, "x" * 300)
    assert (rolled.turns, rolled.turn, rolled.name) == ("rollout", 0, "node1 replica 2 rank 3")
    assert (trained.stage, trained.role, trained.dp, trained.number) == ("compute-log-prob", "ref", None, None)
    assert (trained.turns, trained.turn, trained.name) == ("training step", 4, "node1 rank 0")


def test_what_the_engine_does_not_tell_may_be_absent(saved: Saved) -> None:
    least = {
        "format": 1,
        "target": "vllm",
        "stage": "rollout",
        "host": "h",
        "rank": 0,
        "pid": 1,
        "state": "failed",
        "at": 5,
    }
    saved.write("least.json", least)
    (worker,) = StateFolder(saved.path).read().workers
    assert (worker.release, worker.window, worker.world, worker.turn, worker.on_demand) == ("", "", 0, None, False)


WRONG: dict[str, tuple[str | dict[str, object] | list[object], str]] = {
    "nothing in it": ("", "the file is not JSON, or incomplete"),
    "half written": (json.dumps(STATE)[:-20], "the file is not JSON, or incomplete"),
    "lists without end": ("[" * 100_000, "the file is not JSON, or incomplete"),
    "a number without end": (f'{{"format": {"1" * 5000}}}', "the file is not JSON, or incomplete"),
    "no object": ([STATE], "the file is not a JSON object"),
    "of another tool": ({"version": 3}, "the file has format null, but this rlpatch reads only format 1"),
    "of a later release": ({**STATE, "format": 2}, "the file has format 2, but this rlpatch reads only format 1"),
    "an unknown state": ({**STATE, "state": "happy"}, 'the field state is not valid: "happy"'),
    "a state without end": ({**STATE, "state": "x" * 100}, f'the field state is not valid: "{"x" * 39}…'),
    "no rank": ({name: value for name, value in STATE.items() if name != "rank"}, "the file lacks the field rank"),
    "a rank that is none": ({**STATE, "rank": "0"}, 'the field rank is not valid: "0"'),
    "yes as a rank": ({**STATE, "rank": True}, "the field rank is not valid: true"),
    "a rank below 0": ({**STATE, "rank": -1}, "the field rank is not valid: -1"),
    "a process that is all of them": ({**STATE, "pid": 0}, "the field pid is not valid: 0"),
    "no time": ({**STATE, "at": float("nan")}, "the field at is not valid: NaN"),
    "a time without end": ({**STATE, "at": 1e300}, "the field at is not valid: 1e+300"),
    "a path as a stage": ({**STATE, "stage": "../../etc/passwd"}, 'the field stage is not valid: "../../etc/passwd"'),
    "a host that moves the cursor": ({**STATE, "host": "a\x1b[2J"}, 'the field host is not valid: "a\\u001b[2J"'),
    "a host that turns the line": ({**STATE, "host": "a\u202eb"}, 'the field host is not valid: "a\\u202eb"'),
    "ranks that are none": ({**STATE, "ranks": ["0", "", "3"]}, 'the field ranks is not valid: ["0", "", "3"]'),
    "ranks that are no list": ({**STATE, "ranks": "0,3"}, 'the field ranks is not valid: "0,3"'),
    "a window that is none": ({**STATE, "window": "30-60"}, 'the field window is not valid: "30-60"'),
    "a number in a file by its name": ({**STATE, "live": "/etc/passwd"}, 'the field live is not valid: "/etc/passwd"'),
    "traces that are none": ({**STATE, "traces": "all"}, 'the field traces is not valid: "all"'),
    "a trace that moves the cursor": ({**STATE, "traces": ["/a/\x1b[2J"]}, "the field traces is not valid"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "why"), WRONG.values(), ids=WRONG)
def test_what_is_no_state_is_left_out_with_the_reason(saved: Saved, content: object, why: str) -> None:
    saved.state(rank=1)
    file = saved.write("rollout_node1_dp0_rank0_1.json", content)
    seen = StateFolder(saved.path).read()
    assert [worker.rank for worker in seen.workers] == [1]
    (skipped,) = seen.skipped
    assert skipped.file == file
    assert skipped.why.startswith(why)


def test_what_is_huge_is_not_read(saved: Saved) -> None:
    os.truncate(saved.state(), (1 << 26) + 1)
    (skipped,) = StateFolder(saved.path).read().skipped
    assert "64 MB" in skipped.why


@pytest.mark.parametrize(
    ("told", "ranks", "on_demand"),
    [
        ({"ranks": ["0", "3"]}, "0,3", False),
        ({"ranks": ["all"]}, "all", False),
        ({"window": "", "request": "", "on_demand": True}, "0", True),
        ({"request": "abc", "on_demand": True}, "0", True),
        ({"unit": None, "window": None}, "0", False),  # a stage that is recorded as a whole
    ],
)
def test_its_ranks_and_whether_it_takes_requests(
    saved: Saved, told: dict[str, Any], ranks: str, on_demand: bool
) -> None:
    saved.state(**told)
    (worker,) = StateFolder(saved.path).read().workers
    assert (worker.ranks, worker.on_demand) == (ranks, on_demand)


def _link(file: Path) -> None:
    real = file.with_name("real.txt")
    real.write_text(json.dumps(STATE))
    file.symlink_to(real)


KINDS: dict[str, Callable[[Path], object]] = {"folder": Path.mkdir, "pipe": os.mkfifo, "link": _link}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_only_regular_files_are_read(saved: Saved, make: Callable[[Path], object]) -> None:
    make(saved.folder / "rollout_x.json")
    assert [one.why for one in StateFolder(saved.path).read().skipped] == ["not a regular file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_is_closed_is_left_out(saved: Saved) -> None:
    saved.state().chmod(0)
    assert [one.why for one in StateFolder(saved.path).read().skipped] == ["Permission denied"]


def test_a_file_that_cannot_be_read_is_left_out_in_the_words_of_the_system(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **_more: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    saved.state()
    monkeypatch.setattr(os, "open", refused)
    assert [one.why for one in StateFolder(saved.path).read().skipped] == ["Input/output error"]


def test_a_pipe_that_takes_the_place_of_a_file_meanwhile_is_not_read(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = saved.state()
    real = os.open

    def exchanged(path: str, *words: int, **more: Any) -> int:
        if path == file.name:
            file.unlink()
            os.mkfifo(file)
        return real(path, *words, **more)

    monkeypatch.setattr(os, "open", exchanged)
    assert [one.why for one in StateFolder(saved.path).read().skipped] == ["not a regular file"]


def test_what_others_keep_there_is_theirs(saved: Saved) -> None:
    saved.write("analyse.lock", "x")
    saved.write(".rollout_x.json.77", "half a st")
    assert StateFolder(saved.path).read() == ((), {}, ())
    assert StateFolder(saved.path / "nowhere").read() == ((), {}, ())


def test_words_that_a_probe_took_from_others_are_shown_on_one_line(saved: Saved) -> None:
    saved.state("failed", why="RuntimeError: a\nb\x1b[2J" + "x" * 1000)
    (worker,) = StateFolder(saved.path).read().workers
    assert worker.why.startswith("RuntimeError: a b [2Jx")
    assert worker.why.isprintable()
    assert len(worker.why) == 300


def test_a_file_is_read_again_when_another_one_has_taken_its_place(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    from patcher.workers import folder as module

    read: list[str] = []
    real = module.read_regular

    def content(file: Path) -> Any:
        read.append(file.name)
        return real(file)

    monkeypatch.setattr(module, "read_regular", content)
    folder = StateFolder(saved.path)
    saved.state("armed", rank=0)
    saved.state("armed", rank=1)
    for state in ("armed", "recording", "recording", "saved"):
        saved.state(state, rank=1)
        assert {worker.state for worker in folder.read().workers} == {"armed", state}
        folder.read()
    assert [name.split("_")[3] for name in read].count("rank0") == 1
    assert [name.split("_")[3] for name in read].count("rank1") == 4


# ---------------------------------------------------------------- traces


def test_a_trace_is_looked_for_in_the_folder_whatever_path_the_worker_saw(saved: Saved) -> None:
    trace = saved.trace()
    folder = StateFolder(saved.path)
    os.utime(saved.path / f"{trace.name}.rlpatch.json", (7, 7))
    assert folder.locate_trace(trace.name) == (trace, 7.0)
    trace.unlink()
    assert folder.locate_trace(trace.name) == (trace, None)
    (saved.path / "link").symlink_to("/")
    assert folder.locate_trace("link") == (saved.path / "link", None)


@pytest.mark.parametrize("path", ["/", "/a/..", "..", "/a/.rlpatch", ""])
def test_a_trace_has_a_name_of_its_own(saved: Saved, path: str) -> None:
    saved.state(traces=[path])
    assert StateFolder(saved.path).read().workers[0].traces == ()


# ---------------------------------------------------------------- requests


def test_a_request_comes_back_as_it_was_written(saved: Saved) -> None:
    request = TriggerRequest(id="ab12", window="30:60", ranks="0,3", at=3, role="ref", tail=8, expires=2e9)
    folder = StateFolder(saved.path)
    written = folder.write("rollout", request)
    assert json.loads(folder.file("rollout").read_text()) == {
        "format": 1, "expires": 2e9, "RLPATCH_REQUEST": "ab12", "RLPATCH_WINDOW": "30:60", "RLPATCH_RANKS": "0,3",
        "RLPATCH_ROLLOUT": "3", "RLPATCH_TRAINING_STEPS": "3", "RLPATCH_AT_LOAD": "0", "RLPATCH_AT_TAIL": "8",
        "RLPATCH_AT_CONTEXT": "0", "RLPATCH_ROLE": "ref",
    }  # fmt: skip
    assert folder.read().requests["rollout"] == written == FiledRequest(**vars(request), written=written.written)
    assert abs(written.written - time.time()) < 60
    assert [path.name for path in saved.folder.iterdir()] == ["rollout.request"]
    assert [request.includes(*worker) for worker in ((3, "ref"), (1, "ref"), (3, "actor"))] == [True, False, False]


def test_a_request_is_whole_on_the_disk_before_it_has_its_name(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    folder = StateFolder(saved.path)

    def sync(descriptor: int) -> None:
        assert not folder.file("rollout").exists()
        synced.append(Path(f"/proc/self/fd/{descriptor}").read_bytes())

    monkeypatch.setattr(os, "fsync", sync)
    folder.write("rollout", TriggerRequest(id="ab", window="1:2", ranks="all", at=0, expires=2e9))
    assert synced == [folder.file("rollout").read_bytes()]


def test_workers_of_another_user_may_read_a_request_as_far_as_the_umask_lets_them(saved: Saved) -> None:
    before = os.umask(0o026)
    try:
        folder = StateFolder(saved.path)
        folder.write("rollout", TriggerRequest(id="ab", window="1:2", ranks="all", at=0, expires=2e9))
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.file("rollout").stat().st_mode) == 0o640


def test_what_a_killed_process_left_is_no_hindrance(saved: Saved) -> None:
    saved.write(f".rollout.request.{os.getpid()}", "half a requ")
    folder = StateFolder(saved.path)
    folder.write("rollout", TriggerRequest(id="ab", window="1:2", ranks="all", at=0, expires=2e9))
    assert folder.read().requests["rollout"].includes(77, "")


def test_a_request_that_cannot_be_written_leaves_nothing(saved: Saved) -> None:
    folder = StateFolder(saved.path)
    folder.file("rollout").mkdir()
    with pytest.raises(IsADirectoryError):
        folder.write("rollout", TriggerRequest(id="ab", window="1:2", ranks="all", at=0, expires=2e9))
    assert [path.name for path in saved.folder.iterdir()] == ["rollout.request"]


@pytest.mark.parametrize(
    ("more", "name", "value"),
    [
        ({"RLPATCH_REQUEST": "; rm -rf /"}, "RLPATCH_REQUEST", '"; rm -rf /"'),
        ({"RLPATCH_REQUEST": ""}, "RLPATCH_REQUEST", '""'),
        ({"RLPATCH_WINDOW": "30:60;1:2"}, "RLPATCH_WINDOW", '"30:60;1:2"'),
        ({"RLPATCH_WINDOW": ""}, "RLPATCH_WINDOW", '""'),
        ({"RLPATCH_WINDOW": "30:60,"}, "RLPATCH_WINDOW", '"30:60,"'),
        ({"RLPATCH_RANKS": ""}, "RLPATCH_RANKS", '""'),
        ({"RLPATCH_ROLLOUT": "-1"}, "RLPATCH_ROLLOUT", '"-1"'),
        ({"expires": "never"}, "expires", '"never"'),
        ({"RLPATCH_AT_TAIL": 1.5}, "RLPATCH_AT_TAIL", "1.5"),
    ],
)
def test_what_is_no_request(saved: Saved, more: dict[str, object], name: str, value: str) -> None:
    saved.write("rollout.request", {**REQUEST, **more})
    seen = StateFolder(saved.path).read()
    assert dict(seen.requests) == {}
    (skipped,) = seen.skipped
    assert f" {name} " in skipped.why
    assert skipped.why.endswith(value)


def test_the_maker_writes_what_the_format_says(saved: Saved) -> None:
    keys = {
        "target",
        "release",
        "stage",
        "unit",
        "backend",
        "ranks",
        "host",
        "replica",
        "rank",
        "world",
        "pid",
        "window",
    }
    assert keys <= ROLLOUT.keys()
    assert keys <= TRAINING.keys()
    assert saved.state(**ON_DEMAND).name == "rollout_node1_dp0_rank0_4711.json"
    assert saved.state(step=1).name == "update-policy_actor_node1_rank0_4711.json"
    assert saved.state(replica="3").name == "rollout_node1_replica3_dp0_rank0_4711.json"


@pytest.mark.parametrize("base", [STATE, {**TRAINING, "state": "saved", "at": 1, "traces": ["/a"]}, REQUEST])
@settings(max_examples=examples(200))
@given(data=st.data())
def test_nothing_that_lies_there_ends_in_a_traceback(base: dict[str, object], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(base)))
    text = json.dumps({**base, name: data.draw(VALUES)}).encode()
    at = data.draw(st.integers(0, len(text)))
    for content in (text, text[:at], text[:at] + data.draw(st.binary(max_size=4)) + text[at:]):
        for read in (workers.read, requests.read):
            with contextlib.suppress(ValueError):
                read(content)


def test_a_folder_that_is_a_link_is_neither_read_nor_written(saved: Saved, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (saved.path / ".rlpatch").rmdir()
    (saved.path / ".rlpatch").symlink_to(elsewhere)
    states = StateFolder(saved.path)
    for act in (states.read, lambda: states.write("rollout", requests.read(json.dumps(REQUEST).encode()))):
        with pytest.raises(OSError, match="link"):
            act()
    assert list(elsewhere.iterdir()) == []
