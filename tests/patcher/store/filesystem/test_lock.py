from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from patcher.messages.errors import Kind, Problem
from patcher.store.filesystem import lock, mounts
from patcher.store.folder import StoreFolder
from tests.patcher.store.tree import install

REPO = Path(__file__).parents[4]
HOLDER = """
import fcntl, sys, time
from pathlib import Path
sys.path.insert(0, {repo!r})
if {noop}:
    fcntl.flock = lambda *args: None
from patcher.store.filesystem import lock, mounts
exec({host!r})
folder = Path({folder!r})
with lock.hold(folder, prepare=lambda: None, wait=20, on_wait=lambda text: None):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".rlpatch").mkdir()
    return tmp_path / ".rlpatch"


@pytest.fixture(params=["flock", "no-op flock"])
def noop(request, monkeypatch) -> bool:
    if request.param == "no-op flock":
        monkeypatch.setattr(fcntl, "flock", lambda *_args: None)
        return True
    return False


@pytest.fixture
def holder(folder: Path):
    """Start another process that holds the lock until its input ends."""
    started: list[subprocess.Popen[str]] = []

    def start(noop: bool, host: str = "") -> subprocess.Popen[str]:
        code = HOLDER.format(repo=str(REPO), folder=str(folder), noop=noop, host=host)
        process = subprocess.Popen(
            [sys.executable, "-c", code, "apply", "vllm-ascend"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stdin):
            assert stream is not None
            stream.close()


def hold(folder: Path, wait: float = 20, on_wait=lock.silent, prepare=lambda: None):
    return lock.hold(folder, prepare=prepare, wait=wait, on_wait=on_wait)


def test_another_process_is_waited_for_and_named(folder: Path, holder, noop: bool) -> None:
    process = holder(noop)
    said: list[str] = []
    threading.Timer(0.3, process.stdin.close).start()
    with hold(folder, on_wait=said.append):
        assert process.wait(10) == 0
    assert said == [f"waiting for process {process.pid} on host {os.uname().nodename} (-c apply vllm-ascend)"]


def test_after_the_wait_the_owner_is_named(folder: Path, holder, noop: bool) -> None:
    process = holder(noop)
    with pytest.raises(Problem) as caught, hold(folder, wait=0.1):
        pytest.fail("two owners")
    assert caught.value.kind is Kind.ENVIRONMENT
    assert f"process {process.pid} on host" in caught.value.cause
    assert caught.value.where == str(folder / "lock")


def test_the_lock_of_a_killed_process_is_free(folder: Path, holder, noop: bool) -> None:
    process = holder(noop)
    process.kill()
    process.wait()
    with hold(folder, wait=5):
        pass


def test_threads_of_one_process_exclude_each_other(folder: Path, noop: bool) -> None:
    inside, most = [], []

    def work() -> None:
        with hold(folder):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4


def test_nothing_but_the_lock_is_left(folder: Path, noop: bool) -> None:
    with hold(folder):
        assert (folder / "lock.owner").is_symlink() == noop
    assert [path.name for path in folder.iterdir()] == ["lock"]
    assert (folder / "lock").read_bytes() == b""


def claim(folder: Path, **changes: object) -> str:
    """A claim of this process, with ``changes``, as it stands in the link."""
    text = json.dumps({**json.loads(lock._signature()), "words": "rlpatch apply", **changes})
    (folder / "lock.owner").unlink(missing_ok=True)
    (folder / "lock.owner").symlink_to(text)
    return text


@pytest.mark.parametrize(
    ("changes", "dead"),
    [
        ({}, False),
        ({"pid": 2**22 + 1}, True),
        ({"pid": 2**70}, True),
        ({"started": "1"}, True),  # the number was given to another process
        ({"started": ""}, False),
        ({"host": "other", "pid": 2**22 + 1}, True),  # the host was given another name
        ({"boot": "another", "pid": 2**22 + 1}, False),  # nothing is known of other hosts, whatever their name
        ({"boot": "", "pid": 2**22 + 1}, False),
        ({"pid": float("inf")}, False),
        ({"space": "pid:[1]", "pid": 2**22 + 1}, False),  # nor of other containers
        ({"pid": 1, "started": ""}, False),
    ],
)
def test_a_claim_is_broken_only_when_its_owner_is_surely_dead(folder, monkeypatch, changes, dead: bool) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_args: None)
    claim(folder, **changes)
    if dead:
        with hold(folder, wait=1):
            pass
    else:
        with pytest.raises(Problem, match="holds the lock") as caught, hold(folder, wait=0.1):
            pytest.fail("two owners")
        assert f"delete {folder / 'lock.owner'}" in caught.value.hint


def test_an_owner_of_another_user_lives(folder: Path, monkeypatch) -> None:
    def forbidden(_pid, _signal):
        raise PermissionError

    monkeypatch.setattr(fcntl, "flock", lambda *_args: None)
    monkeypatch.setattr(os, "kill", forbidden)
    claim(folder)
    with pytest.raises(Problem), hold(folder, wait=0):
        pytest.fail("two owners")


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, os.mkfifo], ids=["file", "folder", "fifo"])
@pytest.mark.parametrize("name", ["lock", "lock.owner"])
def test_what_lies_there_and_is_not_ours_is_refused_and_stays(folder: Path, monkeypatch, name: str, make) -> None:
    if (name, make) == ("lock", Path.touch):
        pytest.skip("that is a lock")
    monkeypatch.setattr(fcntl, "flock", lambda *_args: None)
    make(folder / name)
    with pytest.raises(Problem, match=r"lock file|claims its lock") as caught, hold(folder):
        pytest.fail("no lock")
    assert (caught.value.kind, caught.value.where) == (Kind.ENVIRONMENT, str(folder / name))
    assert os.path.lexists(folder / name)


@pytest.mark.parametrize(
    ("make", "why"),
    [(lambda lock, _theirs: lock.mkdir(), "has hard links"), (Path.symlink_to, "a symlink")],
)
def test_what_the_lock_is_instead_is_said(folder: Path, make, why: str) -> None:
    make(folder / "lock", folder / "theirs")
    with pytest.raises(Problem, match=f"the lock file .*{why}"), hold(folder):
        pytest.fail("no lock")
    assert not (folder / "theirs").exists()


@pytest.mark.parametrize(("store", "mode"), [(0o755, 0o644), (0o775, 0o664), (0o2775, 0o664)])
def test_a_lock_is_open_to_a_group_where_the_store_is(folder: Path, store: int, mode: int) -> None:
    folder.chmod(store)
    with hold(folder):
        assert (folder / "lock").stat().st_mode & 0o777 == mode


def test_one_process_alone_may_remove_the_claim_of_a_dead_one(folder: Path) -> None:
    path, ours = folder / "lock.owner", lock._signature()
    dead = claim(folder, pid=2**22 + 1)
    assert lock._may_remove_claim(path, dead, ours)
    assert not lock._may_remove_claim(path, dead, lock._signature())  # the heir lives
    (will,) = folder.glob("lock.owner.*")
    will.unlink()
    will.symlink_to(dead.replace("once", "twice"))  # and dies before the deed
    assert lock._may_remove_claim(path, dead, ours)
    assert not lock._may_remove_claim(path, dead, lock._signature())


def test_a_claim_made_meanwhile_stays(folder: Path, monkeypatch) -> None:
    """A second process saw the dead claim, too, and comes when the first has made its own."""
    path = folder / "lock.owner"
    claim(folder, pid=2**22 + 1)
    real, made = lock._may_remove_claim, []

    def late(path: Path, dead: str, ours: str) -> bool:
        made.append(claim(folder))
        return real(path, dead, ours)

    monkeypatch.setattr(lock, "_may_remove_claim", late)
    assert lock._claim(path, "ours") == "ours"
    assert str(path.readlink()) == made[0]


def test_a_claim_that_was_made_while_its_answer_was_lost_is_ours(folder: Path) -> None:
    assert lock._claim(folder / "lock.owner", claim(folder)) == ""


def test_where_no_link_can_be_made_two_hosts_cannot_be_kept_apart(folder: Path, monkeypatch) -> None:
    def unsupported(*_args, **_options):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", unsupported)
    with hold(folder):  # one kernel alone mounts this one
        pass
    monkeypatch.setattr(mounts, "kind", lambda _descriptor: "fuse.sshfs")
    with (
        pytest.raises(Problem, match="cannot keep other hosts from changing"),
        hold(folder),
    ):
        pytest.fail("no lock")


OTHER_HOST = """
import os, tempfile
lock.mounts.kind = lambda descriptor: "nfs4"
lock._boot = lambda: "of another kernel"
elsewhere, flock = tempfile.TemporaryDirectory(), fcntl.flock
fcntl.flock = lambda descriptor, how: flock(
    os.open(f"{elsewhere.name}/{os.fstat(descriptor).st_ino}", os.O_RDWR | os.O_CREAT), how)
"""


def test_two_hosts_whose_flock_holds_on_each_alone_are_kept_apart(folder: Path, holder, monkeypatch) -> None:
    """As on NFS with ``local_lock=flock``: the other one, of the same name, locks a file of its own."""
    monkeypatch.setattr(mounts, "kind", lambda _descriptor: "nfs4")
    process = holder(False, OTHER_HOST)
    with pytest.raises(Problem, match=f"process {process.pid} on host") as caught, hold(folder, wait=0.1):
        pytest.fail("two owners")
    assert f"delete {folder / 'lock.owner'}" in caught.value.hint
    process.stdin.close()
    assert process.wait(10) == 0
    with hold(folder):
        assert (folder / "lock.owner").is_symlink()
    process = holder(False, OTHER_HOST)
    process.kill()  # of the process of another kernel nobody here knows whether it lives
    process.wait()
    with pytest.raises(Problem), hold(folder, wait=0.1):
        pytest.fail("two owners")


def test_a_lock_that_was_removed_by_its_owner_keeps_nobody_out(folder: Path, monkeypatch) -> None:
    made: list[int] = []
    real = fcntl.flock

    def removing(descriptor, how):
        real(descriptor, how)
        if not made:  # the store went between open and lock
            made.append(1)
            (folder / "lock").unlink()
            (folder / "lock").touch()

    monkeypatch.setattr(fcntl, "flock", removing)
    said: list[str] = []
    with hold(folder, on_wait=said.append):
        assert json.loads((folder / "lock").read_bytes())["pid"] == os.getpid()
    assert said == []


def test_the_folder_is_made_before_each_attempt(folder: Path) -> None:
    folder.rmdir()
    calls: list[int] = []

    def prepare() -> None:
        calls.append(1)
        if len(calls) == 2:
            folder.mkdir()

    with hold(folder, prepare=prepare):
        assert len(calls) == 2


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP])
def test_a_file_system_without_locks_gets_the_exclusive_file(folder: Path, monkeypatch, number: int) -> None:
    def unsupported(*_args, **_options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with hold(folder):
        assert (folder / "lock.owner").is_symlink()
        with pytest.raises(Problem), hold(folder, wait=0):
            pytest.fail("two owners")


def test_an_unexpected_error_is_not_swallowed(folder: Path, monkeypatch) -> None:
    def broken(*_args):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", broken)
    with pytest.raises(OSError, match="Input/output"), hold(folder):
        pytest.fail("no lock")


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff", b'{"host": "h", "pid": "x"}', b"[" * 4000])
def test_an_owner_that_cannot_be_read_is_another_process(folder: Path, text: bytes) -> None:
    with (folder / "lock").open("wb") as stream:
        stream.write(text)
        stream.flush()
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(Problem, match="another process"), hold(folder, wait=0):
            pytest.fail("two owners")


@pytest.mark.parametrize("text", ["x", "[]", '{"host": "h", "pid": "x"}'])
def test_a_claim_that_cannot_be_read_is_one_of_another_process(folder: Path, monkeypatch, text: str) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_args: None)
    (folder / "lock.owner").symlink_to(text)
    with pytest.raises(Problem) as caught, hold(folder, wait=0):
        pytest.fail("two owners")
    assert (caught.value.kind, caught.value.where) == (Kind.ENVIRONMENT, str(folder / "lock"))


def test_an_owner_is_printed_without_control_characters() -> None:
    assert "\x1b" not in str(lock.Owner("h\x1b[31m", "", 1, "", "", "w\nx"))


def test_without_proc_the_process_number_alone_decides(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(lock, "_start_ticks", lambda _pid: "")
    monkeypatch.setattr(os, "readlink", lambda _path: (_ for _ in ()).throw(FileNotFoundError()))
    assert lock._pid_namespace() == ""
    ours = json.loads(lock._signature())
    assert not lock._is_dead(json.dumps({**ours, "started": "5"}))
    assert lock._is_dead(json.dumps({**ours, "started": "5", "pid": 2**22 + 1}))


def test_a_process_that_is_not_there_has_no_start() -> None:
    assert lock._start_ticks(2**22 + 1) == ""


COMMIT = """
import fcntl, sys
sys.path.insert(0, {repo!r})
if {noop}:
    fcntl.flock = lambda *args: None
from pathlib import Path
from patcher.store import transaction as store
from patcher.messages.errors import Kind, Problem
from patcher.changes.change import PatchId, Edit
from tests.patcher.store.tree import record
root = Path({root!r})
for turn in range(8):
    patch = PatchId("t", sys.argv[1])
    store.commit([Edit(root, (), add=(record(patch),))])
    store.commit([Edit(root, (), remove=(patch,))])
store.commit([Edit(root, (), add=(record(PatchId("t", sys.argv[1])),))])
"""


def test_commits_of_three_processes_do_not_lose_each_other(tmp_path: Path, noop: bool) -> None:
    root = install(tmp_path / "r")
    code = COMMIT.format(repo=str(REPO), root=str(root), noop=noop)
    processes = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "abc"]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert sorted(one.patch.stage for one in StoreFolder(root).records()) == ["a", "b", "c"]
    assert not StoreFolder(root).unfinished()
