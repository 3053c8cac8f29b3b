"""The folder of a run: made whole, kept while somebody needs it, removed by its maker or by the next run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fixtures.cache import REPOSITORY
from patcher.hook import folder
from patcher.hook.folder import RunFolder, sweep
from patcher.messages.errors import Kind, Problem
from patcher.store.filesystem.opened import Opened
from tests.patcher.hook.conftest import AFTER, BEFORE, Hooked


def test_a_run_folder_is_private_and_holds_the_bytes_before_and_after(hooked: Hooked) -> None:
    run = hooked.plan()
    assert oct(run.path.stat().st_mode & 0o777) == "0o700"
    assert (run.package / "0.before").read_bytes() == BEFORE
    assert (run.package / "0.after").read_bytes() == AFTER
    assert run.files == (hooked.module,)


@pytest.mark.parametrize(("before", "after"), [(None, ""), ("", ""), ("/x:/y", ":/x:/y")])
def test_the_environment_of_the_command(before: str | None, after: str, hooked: Hooked) -> None:
    run = hooked.plan()
    environ = run.environ({"A": "1"} if before is None else {"A": "1", "PYTHONPATH": before})
    assert environ == {"A": "1", "PYTHONPATH": f"{run.path}{after}", "RLPATCH_RUN": str(run.package)}


def test_a_file_that_does_not_change_is_not_handed_out(hooked: Hooked) -> None:
    from patcher.changes.change import Change, Edit
    from tests.patcher.hook.conftest import MODULE

    run = RunFolder([Edit(hooked.site, (Change(MODULE, BEFORE, BEFORE, BEFORE),))])
    assert run.files == ()
    run.leave()


def test_a_run_folder_that_was_removed_is_told_without_an_error(hooked: Hooked) -> None:
    run = hooked.plan()
    shutil.rmtree(run.path)
    assert (run.receipts(), run.prefixes(), run.went_to_ray, run.leave()) == ((), (), False, ())
    hooked.run = None


def test_leaving_a_run_removes_its_bytecode_below_the_prefix_too(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = hooked.folder / "cache"
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(cache))
    run = hooked.plan()
    (run.package / "__pycache__").mkdir(exist_ok=True)
    hooked.started(sys.executable, "-c", "pass", environ=hooked.environ(PYTHONPYCACHEPREFIX=str(cache)))
    assert list(cache.rglob("sitecustomize/*.pyc"))
    assert run.leave() == ()
    hooked.run = None
    assert not run.path.exists()
    assert not list(cache.rglob("sitecustomize"))


def test_it_stays_for_processes_that_go_on_and_the_next_run_removes_it(hooked: Hooked) -> None:
    run = hooked.plan()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=hooked.environ())
    assert run.leave() == (process.pid,)
    hooked.run = None
    assert sweep() == ()
    assert run.path.exists()
    process.communicate(b"\n")
    assert sweep() == (run.path,)
    assert not run.path.exists()


TITLED = """
import ctypes
begin, end = map(int, open("/proc/self/stat").read().rpartition(")")[2].split()[47:49])
ctypes.memset(begin, 0, end - begin)
print(flush=True)
input()
"""


def test_it_stays_for_a_process_that_wrote_over_its_environment(hooked: Hooked) -> None:
    """As setproctitle does: vLLM's engine, Ray's workers."""
    run = hooked.plan()
    words = [sys.executable, "-c", TITLED]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=hooked.environ())
    assert process.stdout
    process.stdout.readline()
    assert b"RLPATCH_RUN" not in Path(f"/proc/{process.pid}/environ").read_bytes()
    assert run.leave() == (process.pid,)
    hooked.run = None
    assert sweep() == ()
    process.communicate(b"\n")
    assert sweep() == (run.path,)


def test_it_waits_for_processes_that_are_about_to_end(hooked: Hooked, monkeypatch: pytest.MonkeyPatch) -> None:
    run = hooked.plan()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=hooked.environ())
    monkeypatch.setattr(time, "sleep", lambda _pause: process.communicate(b"\n"))
    assert run.leave(60) == ()
    hooked.run = None
    assert not run.path.exists()


KILLED = f"""
import os, signal, sys, tempfile
sys.path.insert(0, {str(REPOSITORY)!r})
tempfile.tempdir = sys.argv[1]
from patcher.hook.folder import RunFolder
print(RunFolder([]).path, flush=True)
sys.stdin.read()
"""


def test_the_folder_of_a_killed_run_is_swept_by_the_next_run(hooked: Hooked) -> None:
    words = [sys.executable, "-c", KILLED, tempfile.gettempdir()]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    path = Path(process.stdout.readline().strip())
    assert sweep() == ()
    assert path.exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.communicate()
    assert sweep() == (path,)
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_what_is_no_folder_of_ours_stays(hooked: Hooked) -> None:
    scratch = Path(tempfile.gettempdir())
    elsewhere = hooked.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "alive").write_bytes(folder._MARKER)
    (scratch / "rlpatch-run-1" / ".rlpatch").mkdir(parents=True)  # --save-path
    (scratch / "rlpatch-run-1" / "trace.json").write_text("{}")
    (scratch / "rlpatch-run-2").mkdir()
    (scratch / "rlpatch-run-abcdefgh").mkdir()
    (scratch / "rlpatch-run-abcdefgh" / "trace.json").write_text("{}")
    (scratch / "rlpatch-run-file").write_text("")
    (scratch / "rlpatch-run-link").symlink_to(elsewhere)
    (scratch / "rlpatch-run-other").mkdir()
    (scratch / "rlpatch-run-other" / "alive").write_text("of another program")
    (scratch / "rlpatch-run-odd").mkdir()
    (scratch / "rlpatch-run-odd" / "alive").symlink_to(elsewhere / "alive")
    (scratch / "rlpatch-run-pipe").mkdir()
    os.mkfifo(scratch / "rlpatch-run-pipe" / "alive")
    for path in scratch.iterdir():
        os.utime(path, (1, 1), follow_symlinks=False)
    before = everything(hooked.folder)
    assert sweep() == ()
    assert everything(hooked.folder) == before


@pytest.mark.parametrize("names", [(), ("alive.new",)])
def test_an_unfinished_run_folder_is_swept_a_minute_later(hooked: Hooked, names: tuple[str, ...]) -> None:
    begun = Path(tempfile.mkdtemp(prefix=folder.PREFIX))
    for name in names:
        (begun / name).write_text("")
    assert sweep() == ()
    os.utime(begun, (1, 1))
    assert sweep() == (begun,)
    assert not begun.exists()


def test_of_a_folder_of_ours_only_what_a_run_makes_is_removed(hooked: Hooked) -> None:
    run = hooked.plan()
    hooked.started(sys.executable, "-c", "import json")
    (run.path / "trace.json").write_text("{}")
    (run.path / "receipts" / "note").write_text("mine")
    (run.path / "mine").mkdir()
    (run.path / "mine" / "plan").write_text("mine")
    shutil.rmtree(run.package / "__pycache__", ignore_errors=True)
    (run.package / "__pycache__").symlink_to(run.path / "mine")
    assert run.leave() == ()
    hooked.run = None
    left = {str(path.relative_to(run.path)) for path in run.path.rglob("*")}
    assert left == {
        "trace.json",
        "receipts",
        "receipts/note",
        "mine",
        "mine/plan",
        "sitecustomize",
        "sitecustomize/__pycache__",
    }
    assert sweep() == ()


def test_the_proof_of_ownership_is_removed_last(hooked: Hooked, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a run that is killed as it removes its folder leaves one that the next run takes for what it is."""
    removed: list[str] = []
    remove = Opened.remove

    def seen(self: Opened, name: str) -> None:
        removed.append(name)
        remove(self, name)

    monkeypatch.setattr(Opened, "remove", seen)
    run = hooked.plan()
    run.leave()
    hooked.run = None
    assert {"plan", "__init__.py"} <= {*removed}
    assert removed[-1] == "alive"


@pytest.mark.parametrize("name", ["note", "1-0-patched", "x-y-patched", "1-0-odd"])
def test_files_that_are_no_receipts_are_ignored(hooked: Hooked, name: str) -> None:
    run = hooked.plan()
    os.mkfifo(run.path / "receipts" / name)
    os.mkfifo(run.path / "started")
    assert (run.receipts(), run.prefixes()) == ((), ())


def test_a_name_that_pythonpath_cannot_hold_is_refused(hooked: Hooked, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = hooked.folder / "a:b"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with pytest.raises(Problem) as caught:
        hooked.plan()
    assert caught.value.kind is Kind.ENVIRONMENT
    assert "TMPDIR" in caught.value.hint
    assert list(scratch.iterdir()) == []


def test_a_run_folder_that_cannot_be_made_leaves_nothing(hooked: Hooked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_create_locked", lambda _name: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        hooked.plan()
    assert list(Path(tempfile.gettempdir()).iterdir()) == []
