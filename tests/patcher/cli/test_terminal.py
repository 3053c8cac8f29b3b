"""Progress on a terminal while a command works; nothing else ever gets it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.cache import REPOSITORY
from patcher.cli import terminal
from patcher.progress import Progress
from tests.patcher.cli.pseudo_terminal import shown
from tests.patcher.traces.recorded import steps

AT_ONCE = ("-c", "import sys; from patcher.cli import terminal, rlpatch; terminal.DELAY_S = 0; rlpatch(sys.argv[1:])")
"""rlpatch, whose bars show without delay."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four traces: text and gzip of torch.profiler, text and database of torch_npu."""
    made = steps(20)
    made.torch(tmp_path / "traces/host_dp0_rank0_1.1.pt.trace.json")
    made.torch(tmp_path / "traces/host_dp0_rank0_2.1.pt.trace.json.gz")
    made.text(tmp_path / "traces/rank0_ascend_pt")
    made.db(tmp_path / "traces/rank1_ascend_pt")
    return tmp_path / "traces"


READ = {
    "report": {"reading traces": 4},
    "compare": {"reading the traces of side “before”": 4, "reading the traces of side “after”": 4},
    "traces": {"looking": 3},  # of a database nothing has to be read
    "analyse": {"looking": 3},
}
"""Command → what it says that it does, and over how many of the traces."""


@pytest.mark.parametrize("command", READ)
def test_all_bytes_that_are_read_are_shown(
    folder: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    known: dict[str, tuple[int, list[int]]] = {}

    @contextlib.contextmanager
    def reading(what: str, total: int) -> Iterator[Progress]:
        known[what] = total, []
        yield known[what][1].append

    monkeypatch.setattr(terminal, "reading", reading)
    paths = (folder, folder) if command == "compare" else (folder,)
    run(command, *paths)
    files = [*folder.glob("*.pt.trace.json*"), *folder.rglob("trace_view.json"), *folder.rglob("*.db")]
    sizes = [file.stat().st_size for file in files]
    assert {what: total for what, (total, _) in known.items()} == {
        what: sum(sizes[:count]) for what, count in READ[command].items()
    }
    assert all(sum(counts) == total and min(counts) >= 0 for total, counts in known.values())


def test_a_long_file_is_shown_as_it_is_read(tmp_path: Path, run: Callable[..., Any], monkeypatch: Any) -> None:
    counts: list[int] = []
    monkeypatch.setattr(terminal, "reading", lambda _what, _total: contextlib.nullcontext(counts.append))
    trace = steps(1000).torch(tmp_path / "host_dp0_rank0_1.1.pt.trace.json")
    run("report", trace)
    assert len([count for count in counts if count]) > 2
    assert max(counts) < trace.stat().st_size


def test_a_bar_is_shown_on_a_terminal_and_taken_away(folder: Path) -> None:
    text = shown("report", folder, program=AT_ONCE)
    assert "reading" in text
    assert "kB" in text
    assert "\x1b[2K" in text.rpartition("kB")[2]  # the line of the bar is erased


NO_BAR: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "quiet": (("-q",), {}),
    "a document": (("--json",), {}),
    "a dumb terminal": ((), {"TERM": "dumb"}),
}


@pytest.mark.parametrize("case", NO_BAR)
def test_a_terminal_without_a_bar(folder: Path, case: str) -> None:
    words, environ = NO_BAR[case]
    text = shown("report", folder, *words, program=AT_ONCE, environ=environ)
    assert "reading" not in text
    assert "\x1b[2K" not in text


def test_a_pipe_gets_no_bar(folder: Path) -> None:
    command = [sys.executable, *AT_ONCE, "report", str(folder)]
    assert "reading" not in subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stderr


def test_nothing_is_shown_within_the_first_second(folder: Path) -> None:
    assert "reading" not in shown("report", folder)
