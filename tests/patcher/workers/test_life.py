"""Whether a worker lives: processes of this host, made for real, and the age of what others wrote."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from patcher import processes
from patcher.workers import life
from patcher.workers.folder import StateFolder
from patcher.workers.life import Life
from tests.patcher.workers import maker

SHM = Path("/dev/shm")
shm = pytest.mark.skipif(not os.access(SHM, os.W_OK), reason="needs /dev/shm")


def looked_at(tmp_path: Path, now: float | None = None, **told: Any) -> Life:
    saved = maker.Saved(tmp_path / "traces")
    saved.state(**told)
    (worker,) = StateFolder(saved.path).read().workers
    return life.observe(worker, time.time() if now is None else now)


@contextmanager
def zombie() -> Iterator[int]:
    """A process that has ended, and that nobody has asked about."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    yield process.pid
    process.wait()


def test_a_process_of_this_host_tells_for_itself(tmp_path: Path) -> None:
    found = looked_at(tmp_path, **maker.here())
    assert (found.here, found.alive, found.has_ended, found.silent, found.words) == (True, True, False, False, "alive")


def test_one_that_ended_is_gone(tmp_path: Path) -> None:
    assert looked_at(tmp_path, **maker.here(pid=maker.ended())).words == "gone"


def test_a_zombie_is_gone(tmp_path: Path) -> None:
    with zombie() as pid:
        assert looked_at(tmp_path, **maker.here(pid=pid)).has_ended


def test_one_that_began_after_the_state_was_written_is_another_one(tmp_path: Path) -> None:
    began = time.time()
    with subprocess.Popen(["sleep", "60"]) as process:
        for at, alive in ((began - 60, False), (began + 1, True)):
            assert processes.alive(process.pid, at) is alive
        assert looked_at(tmp_path, **maker.here(pid=process.pid, at=began - 60)).has_ended
        process.kill()


@pytest.mark.parametrize(
    ("age", "silent", "words"),
    [
        (-30, False, "0 s ago"),  # a clock that is fast
        (12, False, "12 s ago"),
        (150, False, "2 min ago"),
        (3599, False, "60 min ago"),
        (3 * 3600, True, "silent for 3 h"),
        (3 * 86400, True, "silent for 3 days"),
    ],
)
def test_of_another_host_only_the_age_is_known(tmp_path: Path, age: float, silent: bool, words: str) -> None:
    found = looked_at(tmp_path, now=1e9, host="elsewhere", pid=os.getpid(), at=1e9 - age)
    assert (found.here, found.alive, found.has_ended, found.silent, found.words) == (False, None, False, silent, words)


def test_where_processes_are_not_to_be_seen_the_age_counts(tmp_path: Path) -> None:
    saved = maker.Saved(tmp_path / "traces")
    saved.state(**maker.here(at=1e9))
    (worker,) = StateFolder(saved.path).read().workers
    assert life.observe(worker, 1e9 + 60, proc=tmp_path) == Life(True, None, 60.0)


# ---------------------------------------------------------------- the live number


@shm
def test_the_unit_that_a_worker_is_at_is_seen_live(tmp_path: Path) -> None:
    with maker.live(struct.pack("=Q", 2**40 + 7)) as file:
        assert looked_at(tmp_path, **maker.here(live=file.fileno())).number == 2**40 + 7


@pytest.mark.parametrize("content", [b"12345678", b"123"])
def test_no_other_file_that_a_process_holds_open_is_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "secret").write_bytes(content)
    with (tmp_path / "secret").open() as file:
        assert looked_at(tmp_path, **maker.here(live=file.fileno())).number is None
    assert looked_at(tmp_path / "closed", **maker.here(live=987)).number is None


@shm
@pytest.mark.parametrize("content", [b"", b"1234567", b"123456789"])
def test_a_file_of_another_size_is_no_number(tmp_path: Path, content: bytes) -> None:
    with maker.live(content) as file:
        assert looked_at(tmp_path, **maker.here(live=file.fileno())).number is None


@shm
def test_the_number_of_a_worker_that_is_gone_or_elsewhere_is_not_looked_for(tmp_path: Path) -> None:
    with maker.live(struct.pack("=Q", 5)) as file:
        for at, told in enumerate((maker.here(pid=maker.ended()), {"host": "elsewhere"}, maker.here(live=None))):
            assert looked_at(tmp_path / str(at), **{"live": file.fileno(), **told}).number is None
