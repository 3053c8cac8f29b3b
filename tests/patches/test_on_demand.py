"""Requests while the run goes on: which rollout or training step takes one, what it records, and what is refused."""

from __future__ import annotations

import atexit
import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest

from tests.patches.conditions import sglang
from tests.patches.rollout_workers import V1Worker
from tests.patches.sglang_schedulers import Scheduler
from tests.patches.standin import Console
from tests.patches.step_metadata import Traces, facts, states
from tests.patches.training_stages import Stage
from tests.patches.triggered import CONDITIONS, STATES, WAITING, listed, rollout

pytestmark = pytest.mark.usefixtures("stand_in_torch")


NAMES = {
    "id": "RLPATCH_REQUEST", "window": "RLPATCH_WINDOW", "ranks": "RLPATCH_RANKS", "at": "RLPATCH_ROLLOUT",
    **{name: f"RLPATCH_AT_{name.upper()}" for name in CONDITIONS},
}  # fmt: skip


@pytest.fixture
def waiting(tmp_path: Path) -> dict[str, Any]:
    return {**WAITING, "SAVE_PATH": str(tmp_path), "parts": (Traces,)}


def ask(folder: Path, stage: str = "rollout", **request: Any) -> None:
    """What ``rlpatch trigger`` writes."""
    file = folder / ".rlpatch" / f"{stage}.request"
    file.parent.mkdir(exist_ok=True)
    given = {"id": "a1", "window": "2:4", "ranks": "0", "at": 0, **dict.fromkeys(CONDITIONS, 0), **request}
    variables = {NAMES.get(name, name): value for name, value in given.items() if value is not None}
    settings = {key: str(value) if isinstance(value, int) else value for key, value in variables.items()}
    new = file.with_suffix(".new")
    new.write_text(
        json.dumps({"format": 1, "expires": time.time() + 60, "RLPATCH_TRAINING_STEPS": str(given["at"]), **settings})
    )
    new.replace(file)


def numbers(worker: Any) -> list[list[int]]:
    return [[*profiler.recorded] for profiler in worker.made]


def test_nothing_is_recorded_until_somebody_asks(waiting: dict[str, Any], tmp_path: Path) -> None:
    worker = V1Worker(**waiting, **STATES)
    rollout(worker)
    rollout(worker)
    assert not worker.made
    (state,) = states(tmp_path).values()
    assert (state["state"], state["rollout"], state["done"]) == ("installed", 1, False)


@pytest.mark.parametrize(("switch", "recorded"), [("0", []), ("1", [[2, 3]])])
def test_a_request_may_switch_the_recording_off(
    switch: str, recorded: list[list[int]], waiting: dict[str, Any], tmp_path: Path
) -> None:
    worker = V1Worker(**waiting, **STATES)
    ask(tmp_path, RLPATCH=switch)
    rollout(worker)
    assert numbers(worker) == recorded


def test_several_requests_are_served_one_after_the_other(
    waiting: dict[str, Any], tmp_path: Path, console: Console
) -> None:
    worker = V1Worker(**waiting, **STATES)
    rollout(worker)
    ask(tmp_path, at=2, id="first")
    rollout(worker)  # number 1 keeps it for later
    rollout(worker)
    rollout(worker)
    ask(tmp_path, at=5, id="second", window="4:6")
    rollout(worker)
    rollout(worker)
    rollout(worker)
    assert numbers(worker) == [[2, 3], [4, 5]]
    assert [(one["rollout"], one["request"], one["window"]) for one in facts(tmp_path)] == [
        (2, "first", "2:4"),
        (5, "second", "4:6"),
    ]
    (state,) = states(tmp_path).values()
    assert (state["request"], len(state["traces"])) == ("second", 2)
    assert "decode 2:4 of rollout 2: complete, recorded 2 of 2" in console.text


def test_nsys_captures_each_request(waiting: dict[str, Any], tmp_path: Path, log: list[str], console: Console) -> None:
    worker = V1Worker(**{**waiting, "parts": ()}, backend="nsys", **STATES, UNIT="decode")
    rollout(worker)
    assert log == []
    ask(tmp_path, id="first", at=1)
    rollout(worker)
    ask(tmp_path, id="second", at=2, window="0:1", load=1)
    rollout(worker)
    assert [event for event in log if event in ("start", "stop")] == ["start", "stop"] * 2
    units = [event.split()[2].rstrip(",") for event in log if event.startswith("push decode")]
    assert units == ["2", "3", "1"]
    assert [one["request"] for one in facts(tmp_path)] == ["first", "second"]
    assert not console.failures


def test_a_request_during_a_rollout_is_served_in_the_next(waiting: dict[str, Any], tmp_path: Path) -> None:
    worker = V1Worker(**waiting, **STATES)
    worker.iterate(listed({"a": 1}, {"a": 1}), "prefill")
    ask(tmp_path, at=1)
    for n in range(1, 6):
        worker.iterate(listed({"a": 1}, tokens=n), f"decode {n}")
    assert not worker.made
    worker.iterate(listed({}, done=("a",)), "empty")
    rollout(worker)
    assert numbers(worker) == [[2, 3]]


def test_a_request_may_wait_for_a_condition(waiting: dict[str, Any], tmp_path: Path) -> None:
    worker = V1Worker(**waiting, **STATES, drafts=0)
    worker.vllm_config.speculative_config = None
    ask(tmp_path, window="0:2", context=4)
    rollout(worker)
    ask(tmp_path, at=1, id="b", window="1:2")
    rollout(worker)
    assert numbers(worker) == [[4, 5], [1]]


@pytest.mark.parametrize(
    ("request_fields", "recorded"),
    [
        ({"window": "2:3,5:6"}, [[2], [5]]),
        ({"window": "0:1,2:3", "context": 4}, [[4], [6]]),
        ({"window": "2:3,5:6,90:91"}, [[2], [5]]),
    ],
    ids=["by number", "from a condition on", "the last one is never reached"],
)
def test_several_windows_of_one_rollout(
    request_fields: dict[str, Any], recorded: list[list[int]], waiting: dict[str, Any], tmp_path: Path
) -> None:
    worker = V1Worker(**waiting, **STATES, drafts=0)
    worker.vllm_config.speculative_config = None
    for at in (0, 2):  # the second request does not go on behind the windows of the first
        ask(tmp_path, at=at, id=f"r{at}", **request_fields)
        rollout(worker, steps=8)
        rollout(worker)
    assert numbers(worker) == recorded * 2


def test_several_windows_of_a_training_step(waiting: dict[str, Any], tmp_path: Path) -> None:
    stage = Stage(**waiting)
    for step in (1, 3):
        ask(tmp_path, "update-policy", at=step, window="0:1,2:3", id=f"r{step}")
        stage.update()
        stage.update()
    assert numbers(stage) == [[0], [2]] * 2


def test_a_window_of_the_beginning_comes_first(waiting: dict[str, Any], tmp_path: Path) -> None:
    worker = V1Worker(**{**waiting, "WINDOW": "1:3"}, **STATES)
    rollout(worker)
    ask(tmp_path, at=1)
    rollout(worker)
    assert numbers(worker) == [[1, 2], [2, 3]]


@pytest.mark.parametrize(("ranks", "records"), [("0", False), ("3", True), ("all", True), ("1,3", True), ("30", False)])
def test_only_the_ranks_of_a_request_record(ranks: str, records: bool, waiting: dict[str, Any], tmp_path: Path) -> None:
    worker = V1Worker(rank=3, **waiting, **STATES)
    ask(tmp_path, ranks=ranks)
    rollout(worker)
    assert bool(worker.made) == records


REFUSED = [
    ({"window": "4:2"}, "RLPATCH_WINDOW=4:2 has a window that is empty"),
    ({"window": "0:2"}, "RLPATCH_WINDOW=0:2 begins before 1"),
    ({"window": "5:9,2:4"}, "RLPATCH_WINDOW=5:9,2:4 has a window that is empty, too early or out of order"),
    ({"window": "2:4,5:9,x"}, "RLPATCH_WINDOW='2:4,5:9,x' is not valid"),
    ({"window": "__import__('os')"}, "RLPATCH_WINDOW="),
    ({"window": 17}, "RLPATCH_WINDOW='17' is not valid"),
    ({"window": "2:4\nERROR a line of somebody else"}, r"RLPATCH_WINDOW='2:4\nERROR"),
    ({"window": "9" * 5000 + ":"}, ""),
    ({"at": -1}, "RLPATCH_ROLLOUT='-1' is not valid"),
    ({"at": [1]}, "RLPATCH_ROLLOUT='[1]' is not valid"),
    ({"ranks": {"0": 1}}, "RLPATCH_RANKS="),
    ({"id": "../../etc"}, "RLPATCH_REQUEST='../../etc' is not valid"),
    ({"load": "x" * 9999}, ""),
    ({"tail": "eight"}, "RLPATCH_AT_TAIL='eight' is not valid"),
    ({"expires": "soon"}, "could not convert"),
    ({"expires": 1}, "a1 has expired"),
]


def test_a_request_that_goes_while_it_is_looked_at_stops_nothing(
    waiting: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = V1Worker(**waiting, **STATES)
    ask(tmp_path)

    def removed(path: str) -> bool:
        Path(path).unlink()
        return True

    with monkeypatch.context() as gone:
        gone.setattr("os.path.isfile", removed)
        rollout(worker)
    ask(tmp_path, at=1, id="good")
    rollout(worker)
    assert numbers(worker) == [[2, 3]], "the next one is served"


@pytest.mark.parametrize(("request_", "why"), REFUSED)
def test_what_is_not_of_its_form_is_refused_in_one_line(
    request_: dict[str, Any], why: str, waiting: dict[str, Any], tmp_path: Path, console: Console
) -> None:
    worker = V1Worker(**waiting, **STATES)
    ask(tmp_path, **request_)
    rollout(worker)
    assert not worker.made
    assert console.text.count("request refused: ") == 1
    assert why in console.text
    assert "Traceback" not in console.text
    (state,) = states(tmp_path).values()
    assert state["state"] == "not recorded"
    assert state["refused"] is True, "until the next rollout begins"
    ask(tmp_path, at=1, id="good")
    rollout(worker)
    assert numbers(worker) == [[2, 3]], "and the next one is served"
    assert states(tmp_path).popitem()[1]["refused"] is False


@pytest.mark.parametrize(
    "text", ["{", '{"window": "2:4"', "[1, 2]", "null", "[" * 9000, '"' + "x" * 99999, "\0\0", "\N{ROCKET}"]
)
def test_a_file_that_is_no_request_is_refused(
    text: str, waiting: dict[str, Any], tmp_path: Path, console: Console
) -> None:
    (tmp_path / ".rlpatch").mkdir()
    (tmp_path / ".rlpatch" / "rollout.request").write_text(text)
    worker = V1Worker(**waiting, **STATES)
    rollout(worker)
    rollout(worker)
    assert not worker.made
    assert console.text.count("request refused: ") == 1
    assert worker._rlpatch_stage_probe is not None


def test_a_pipe_in_its_place_holds_nobody_up(waiting: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / ".rlpatch").mkdir()
    os.mkfifo(tmp_path / ".rlpatch" / "rollout.request")
    opened = os.open(tmp_path / ".rlpatch" / "rollout.request", os.O_RDWR)  # so that a reader would not wait for ever
    os.write(opened, b"[" * 9000)
    worker = V1Worker(**waiting, **STATES)
    rollout(worker)
    assert not worker.made
    assert len(os.read(opened, 99999)) == 9000, "nobody has read from it"
    os.close(opened)


def test_too_late_is_said_and_expired_is_taken_away(waiting: dict[str, Any], tmp_path: Path, console: Console) -> None:
    worker = V1Worker(**waiting, **STATES)
    rollout(worker)
    ask(tmp_path, at=0)
    rollout(worker)
    assert "request refused: the request is for rollout or step 0, and this worker is at 1" in console.text
    ask(tmp_path, at=9, id="old", expires=1)
    rollout(worker)
    assert not (tmp_path / ".rlpatch" / "rollout.request").exists()
    (state,) = states(tmp_path).values()
    assert state["request"] == "old"


def test_an_expired_request_is_nobodys_though_others_have_taken_it_away(
    waiting: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two ranks that look at once, one removes the file that the other is about to remove."""
    worker = V1Worker(**waiting, **STATES)
    ask(tmp_path, expires=1)
    remove = os.unlink
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", lambda path, **how: (remove(path, **how), remove(path, **how)))
        rollout(worker)
    assert not worker.made


def test_a_folder_that_cannot_be_looked_into_takes_no_request_away(waiting: dict[str, Any], tmp_path: Path) -> None:
    worker = V1Worker(**waiting, **STATES)
    ask(tmp_path, at=2)
    rollout(worker)
    (tmp_path / ".rlpatch").rename(tmp_path / "away")
    (tmp_path / ".rlpatch").touch()  # as a mount that is lost for a moment
    rollout(worker)
    (tmp_path / ".rlpatch").unlink()
    (tmp_path / "away").rename(tmp_path / ".rlpatch")
    rollout(worker)
    assert numbers(worker) == [[2, 3]]


def test_what_nobody_asked_for_is_not_said_where_the_window_was_not_reached(
    waiting: dict[str, Any], tmp_path: Path, console: Console
) -> None:
    worker = V1Worker(**waiting, **STATES)
    ask(tmp_path, window="30:60")
    rollout(worker)
    assert re.search(r"not recorded: .*\b6 decode steps\n", console.text)


def test_a_training_stage_that_finds_an_old_request_serves_the_next_one(
    waiting: dict[str, Any], tmp_path: Path, console: Console
) -> None:
    stage = Stage(**waiting)
    ask(tmp_path, "update-policy", at=1, expires=1)
    stage.update()
    assert "a1 has expired" in console.text
    (state,) = states(tmp_path).values()
    assert state["why"] == "request refused: the request a1 has expired"
    ask(tmp_path, "update-policy", at=2, window="0:1", id="b2")
    stage.update()
    assert numbers(stage) == [[0]]


def test_a_training_stage(waiting: dict[str, Any], tmp_path: Path) -> None:
    stage = Stage(**waiting)
    stage.update()
    ask(tmp_path, "update-policy", at=3, window="1:2")
    stage.update()
    stage.update()
    stage.update()
    ask(tmp_path, "update-policy", at=5, window="0:1", id="b2")
    stage.update()
    assert numbers(stage) == [[1], [0]]
    assert [(one["step"], one["request"]) for one in facts(tmp_path)] == [(3, "a1"), (5, "b2")]


def test_a_request_may_name_a_role(waiting: dict[str, Any], tmp_path: Path) -> None:
    stage = Stage(**waiting)
    stage.update()
    ask(tmp_path, "update-policy", at=2, window="1:2", RLPATCH_ROLE="ref")
    stage.update()
    ask(tmp_path, "update-policy", at=3, window="0:1", id="b2", RLPATCH_ROLE="actor")
    stage.update()
    assert numbers(stage) == [[0]]


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the probes register to be called when the process ends."""
    registered: list[Any] = []
    monkeypatch.setattr(util, "Finalize", lambda _, function, arguments, **_more: partial(function, *arguments))
    monkeypatch.setattr(atexit, "register", registered.append)
    return registered


@pytest.mark.parametrize(("ranks", "said"), [("0", ["micro-batch 0:1 3"]), ("1", [])])
def test_a_training_step_that_was_asked_for_and_never_came_is_said(
    ranks: str,
    said: list[str],
    waiting: dict[str, Any],
    tmp_path: Path,
    at_exit: list[Any],
    console: Console,
) -> None:
    stage = Stage(**waiting)
    ask(tmp_path, "update-policy", at=3, window="0:1", ranks=ranks)
    stage.update()
    at_exit[0]()
    ends = [line.partition("update-policy, actor, ")[2] for line in console.messages]
    assert [f"{end.partition(' of ')[0]} {end.split()[-1]}" for end in ends] == said


def test_sglang_takes_one_too(waiting: dict[str, Any], tmp_path: Path) -> None:
    scheduler = Scheduler(**{key: value for key, value in waiting.items() if key != "parts"}, **STATES)
    scheduler._RlpatchStage = type("Recorder", (Traces, scheduler._RlpatchStage), {})
    scheduler.server_args.speculative_num_draft_tokens = None
    ask(tmp_path, at=1, window="0:2", tail=1)
    for _ in range(3):
        turns = [("EXTEND", 2, 3), *(("DECODE", 2, n) for n in (4, 5)), *(("DECODE", 1, n) for n in (6, 7, 8))]
        for mode, requests, context in turns:
            scheduler._rlpatch_stage("schedule", sglang([*range(requests)], context, mode))
            for profiler in scheduler.made:
                profiler.run(str(context))
        scheduler._rlpatch_stage("idle")
    assert scheduler.recorded() == [{4: ["7"], 5: ["8"]}]


LEASE = (
    "import fcntl, os, signal, sys; signal.signal(signal.SIGIO, signal.SIG_IGN); "
    "file = open(sys.argv[1], 'r+'); fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK); print(flush=True); input()"
)


def test_a_request_under_a_lease_is_not_waited_for(waiting: dict[str, Any], tmp_path: Path) -> None:
    """Who has opened a file with a lease is asked to let go of it, and a worker that waited stood still for 45 s."""
    worker = V1Worker(**waiting, **STATES)
    ask(tmp_path, at=1)
    words = [sys.executable, "-c", LEASE, str(tmp_path / ".rlpatch" / "rollout.request")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        if not holder.stdout.readline():
            pytest.skip("no leases here")
        before = time.monotonic()
        rollout(worker)
        assert time.monotonic() - before < 5
        holder.communicate(b"\n")
    rollout(worker)
    assert numbers(worker) == [[2, 3]], "it is taken as soon as it can be read"


def test_a_folder_that_is_a_link_is_neither_read_nor_written(
    waiting: dict[str, Any], tmp_path: Path, console: Console
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    ask(theirs, at=0)
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / ".rlpatch").symlink_to(theirs / ".rlpatch")
    before = {file.name: file.read_bytes() for file in (theirs / ".rlpatch").iterdir()}
    worker = V1Worker(**{**waiting, "SAVE_PATH": str(tmp_path / "traces")}, **STATES)
    for _ in range(3):
        rollout(worker)
    assert not worker.made
    assert {file.name: file.read_bytes() for file in (theirs / ".rlpatch").iterdir()} == before
    assert console.text.count("no part of this path may be a link") == 1
    assert console.text.count(f"request refused: {tmp_path}/traces/.rlpatch is a link, which is not allowed") == 1


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (0, "9:12 0 6"),  # the window, the rollout, and how far it came
        (4, "9:12 4 4"),
        (None, ""),
    ],
)
def test_a_request_that_is_not_served_when_the_process_ends_is_said(
    at: int | None,
    said: str,
    waiting: dict[str, Any],
    tmp_path: Path,
    at_exit: list[Any],
    console: Console,
) -> None:
    worker = V1Worker(**waiting, **STATES)
    if at == 0:
        ask(tmp_path, at=at, window="9:12")
    worker.iterate(listed({"a": 1}, {"a": 1}), "prefill")
    for n in range(1, 7):
        worker.iterate(listed({"a": 1}, tokens=n), f"decode {n}")
    if at:  # nobody has looked at it yet
        ask(tmp_path, at=at, window="9:12")
    at_exit[0]()
    texts = [line.partition(", decode ")[2] for line in console.messages]
    assert [" ".join(re.findall(r"\d+(?::\d+)?", text)) for text in texts] == ([said] if said else [])
    (state,) = states(tmp_path).values()
    assert state["state"] == ("not recorded" if said else "installed")
