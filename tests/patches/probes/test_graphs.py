"""The recording of a capture as a table, with a profiler that writes down what it is told.

What a real profiler then records is proven in ``test_on_torch_npu``.
"""

from __future__ import annotations

import atexit
import json
import sys
from multiprocessing import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patches.graph_workers import Worker
from tests.patches.standin import Console, Profiler

pytestmark = pytest.mark.usefixtures("stand_in_torch")


@pytest.fixture
def made() -> list[Profiler]:
    return []


@pytest.mark.parametrize(
    ("constants", "environ", "recorded"),
    [
        ({}, {}, [["a"]]),
        ({"REPEAT": 2}, {}, [["a"], ["b"]]),
        ({"REPEAT": 9}, {}, [["a"], ["b"], ["c"]]),
        ({}, {"RLPATCH_WINDOW": "3:6"}, [["a"]]),
        ({}, {"RLPATCH_WINDOW": "nonsense"}, [["a"]]),
        ({}, {"RLPATCH_GRAPH_CAPTURE_WINDOW": "nonsense"}, [["a"]]),
        ({}, {"RLPATCH_RANKS": "1"}, []),
        ({}, {"RLPATCH_RANKS": "1", "RLPATCH_GRAPH_CAPTURE_RANKS": "0"}, [["a"]]),
        ({}, {"RLPATCH": "0"}, []),
    ],
)
def test_the_chosen_capture_of_graphs_is_recorded(
    constants: dict[str, Any],
    environ: dict[str, str],
    recorded: list[list[str]],
    made: list[Profiler],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    worker = Worker(made, **constants)
    for label in "abc":
        worker.start(label)
    assert [profiler.recorded for profiler in made] == [{0: labels} for labels in recorded]
    assert (worker._rlpatch_stage_probe is None) == (constants.get("REPEAT") != 9)


def test_the_profiler_starts_at_once_and_the_log_says_what_was_recorded(made: list[Profiler], console: Console) -> None:
    Worker(made).start("a")
    assert made[0].schedule == (0, 0, 1)
    assert made[0].calls == ["start", "sync", "step", "stop"]
    (line,) = console.messages
    assert "_graph_capture_dp0_rank0_" in line
    assert line.endswith(", capture_model(): complete, recorded: 0")


@pytest.mark.parametrize(("ranks", "states"), [("0", ["saved"]), ("1", [])])
def test_the_folder_of_the_traces_is_made_by_a_worker_that_records(
    ranks: str, states: list[str], made: list[Profiler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the trace of the stand-in, with a file beside it, is called "0"
    Worker(made, METADATA=True, SAVE_PATH=str(tmp_path / "new"), RANKS=ranks).start("a")
    assert [json.loads(path.read_text())["state"] for path in (tmp_path / "new").rglob("*.json")] == states
    assert len(made) == len(states)


def test_a_capture_that_raised_is_closed_by_the_next_one_of_the_process(made: list[Profiler], console: Console) -> None:
    Worker(made).start("a", fails=True)
    Worker(made).start("b")
    assert [profiler.recorded for profiler in made] == [{0: ["a", "before b"]}, {0: ["b"]}]
    assert ["the function did not return" in line for line in console.messages] == [True, False]


def test_a_worker_whose_capture_raised_is_done(made: list[Profiler]) -> None:
    worker = Worker(made)
    worker.start("a", fails=True)
    worker.start("b")
    assert [profiler.recorded for profiler in made] == [{0: ["a", "before b"]}]


def test_a_capture_that_raised_is_saved_when_the_process_ends(
    made: list[Profiler], monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(util, "Finalize", lambda _, function, arguments, **_more: (function, *arguments))
    monkeypatch.setattr(atexit, "register", registered.append)
    Worker(made).start("a", fails=True)
    function, *arguments = registered[0]
    function(*arguments)
    assert made[0].calls == ["start", "sync", "step", "stop"]
    assert console.messages[0].endswith("capture_model(): the process ends, recorded: 0")


def test_another_stage_that_records_is_left_alone(
    made: list[Profiler], monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    other = SimpleNamespace(STAGE="update-policy", prof=object(), name="other")
    monkeypatch.setattr(sys, "_rlpatch_recording", other)
    Worker(made).start("a")
    assert not made
    assert console.messages[0].endswith("capture_model(): not recorded: this process is already recording: other")
