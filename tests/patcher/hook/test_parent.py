"""A command that runs below us looks to its caller, its terminal and its signals as if it ran alone."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.cache import REPOSITORY
from patcher.hook import parent
from patcher.messages.errors import Kind, Problem
from tests.alarms import at_most
from tests.matrix import thinned

ALONE = f"""
import os, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from patcher.hook import parent
parent.leave(parent.run(sys.argv[1:], os.environ))
"""
ACCOMPANIED = f"""
import os, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from patcher.hook import parent
class Companion:
    def interrupted(self): os.write(1, b"interrupted\\n")
    def ends_command(self): return os.path.exists(sys.argv[1])
parent.leave(parent.run(sys.argv[2:], os.environ, Companion()))
"""
# Says each signal that it gets, and ends with 5 at the end of its input.
LISTENS = """
import os, select, signal, sys
# Not by print: a signal that comes before it has returned would be within it a second time.
say = lambda word: os.write(1, f"{word}\\n".encode())
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), lambda number, _: say(signal.Signals(number).name))
say("ready")
# Not in one read for ever: a signal that comes just before it would be handled only behind it.
while not select.select([sys.stdin], [], [], 0.05)[0] or sys.stdin.read(1):
    pass
sys.exit(5)
"""


SENT = "SIGTERM SIGHUP SIGUSR1 SIGUSR2 SIGINT SIGQUIT SIGALRM SIGVTALRM SIGPROF SIGIO SIGXCPU SIGRTMIN SIGRTMAX"


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", ALONE, *words]


def listener(*names: str) -> list[str]:
    return command(sys.executable, "-c", LISTENS, *names)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("kill -TERM $$", -signal.SIGTERM),
        ("kill -KILL $$", -signal.SIGKILL),
        ("kill -SEGV $$", -signal.SIGSEGV),
        ("kill -INT $$", -signal.SIGINT),
    ],
)
def test_run_exits_with_the_code_or_signal_of_the_command(script: str, code: int, tmp_path: Path) -> None:
    assert subprocess.run(command("sh", "-c", script), cwd=tmp_path).returncode == code
    assert list(tmp_path.iterdir()) == []  # no core of ours


def test_the_command_keeps_its_standard_streams() -> None:
    done = subprocess.run(command("sh", "-c", "cat; echo error >&2"), input="in", capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("in", "error\n", 0)


@pytest.mark.parametrize("name", thinned(SENT.split(), ("SIGTERM", "SIGINT", "SIGRTMAX")))
def test_a_signal_to_run_reaches_the_command_once(name: str) -> None:
    process = subprocess.Popen(listener(name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.send_signal(getattr(signal, name))
    with at_most(30):
        assert process.stdout.readline() == f"{name}\n"
        out, _ = process.communicate()
    assert (out, process.returncode) == ("", 5)


@pytest.mark.parametrize(("key", "name"), [(b"\x03", "SIGINT"), (b"\x1c", "SIGQUIT")])
def test_a_key_of_the_terminal_reaches_the_command_once(key: bytes, name: str) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        words = listener(name)
        os.execv(words[0], words)
    out = b""
    while b"ready" not in out:
        out += os.read(terminal, 100)
    for pressed in range(1, 6):  # a second one may arrive before the first is handled, and be lost in it
        os.write(terminal, key)
        while out.count(name.encode()) < pressed:
            out += os.read(terminal, 100)
        time.sleep(0.1)
    os.write(terminal, b"\x04")
    _, status = os.waitpid(pid, 0)
    while chunk := _read(terminal):
        out += chunk
    assert out.count(name.encode()) == 5
    assert os.waitstatus_to_exitcode(status) == 5


@pytest.mark.parametrize("name", thinned(SENT.split(), ("SIGTERM", "SIGINT", "SIGRTMAX")))
def test_a_signal_to_the_process_group_reaches_the_command_once(name: str) -> None:
    """From whom it had come twice, `kill -- -PGID`: a second SIGTERM lets vLLM drop what it would have saved."""
    process = subprocess.Popen(
        listener(name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdin
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    with at_most(30):
        for _ in range(3):
            os.killpg(process.pid, getattr(signal, name))
            assert process.stdout.readline() == f"{name}\n"
            time.sleep(0.2)
        process.send_signal(getattr(signal, name))  # and what is sent to us alone still does
        assert process.stdout.readline() == f"{name}\n"
        out, _ = process.communicate()
    assert (out, process.returncode) == ("", 5)


def test_signals_reach_a_command_in_a_group_of_its_own() -> None:
    words = command("setsid", sys.executable, "-c", LISTENS, "SIGTERM")
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGTERM)
    with at_most(30):
        assert process.stdout.readline() == "SIGTERM\n"
        process.communicate()
    assert process.returncode == 5


def test_another_thread_that_gets_the_signal_of_the_end_holds_up_nothing() -> None:
    """A child that ends before we wait tells a thread that does not block the signal, and then nobody."""
    late = ALONE.replace(
        "parent.leave(",
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "start = parent._Witness.__init__\n"
        "parent._Witness.__init__ = lambda self: (time.sleep(0.5), start(self))[1]\n"
        "parent.leave(",
    )
    with at_most(30):
        assert subprocess.run([sys.executable, "-c", late, "sh", "-c", "exit 3"]).returncode == 3


def test_a_killed_process_leaves_no_watcher_process() -> None:
    process = subprocess.Popen(command("sh", "-c", "echo ready; exec sleep 1"), stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    _, witness = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert Path(f"/proc/{witness}/comm").read_text() == "cat\n"
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{witness}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{witness}").exists()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 100)
    except OSError:  # the last process of the terminal has ended
        return b""


def test_with_a_companion_the_first_ctrl_c_is_its_own_and_the_next_one_ends_the_command(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        words = [sys.executable, "-c", ACCOMPANIED, str(tmp_path / "end"), sys.executable, "-c", LISTENS, "SIGINT"]
        os.execv(words[0], words)
    out = b""
    for expected in (b"ready", b"interrupted", b"SIGINT", b"SIGINT"):
        while expected not in out:
            out += os.read(terminal, 100)
        out = out.partition(expected)[2]
        time.sleep(0.1)
        os.write(terminal, b"\x03")
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM


def test_with_a_companion_a_command_that_reads_from_the_terminal_is_not_stopped(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        words = ["sh", "-c", "stty -echo; stty echo; read word || echo unread; exit 4"]
        words = [sys.executable, "-c", ACCOMPANIED, str(tmp_path / "end"), *words]
        os.execv(words[0], words)
    out = b""
    with at_most(30):
        while b"unread" not in out:
            out += os.read(terminal, 100)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 4


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1"])
def test_with_a_companion_the_command_gets_what_its_callers_send(name: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", ACCOMPANIED, str(tmp_path / "end"), sys.executable, "-c", LISTENS, name]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    with at_most(30):
        for send in (os.killpg, os.kill):
            send(process.pid, getattr(signal, name))
            assert process.stdout.readline() == f"{name}\n"
            time.sleep(0.2)
        out, _ = process.communicate()
    assert (out, process.returncode) == ("", 5)


def test_a_companion_ends_the_command_and_what_that_started(tmp_path: Path) -> None:
    end = tmp_path / "end"
    words = [sys.executable, "-c", ACCOMPANIED, str(end), "sh", "-c", "sleep 60 & echo $!; wait"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    process.stdout.readline()
    end.touch()
    with at_most(30):
        assert process.wait() == -signal.SIGINT


def test_a_companion_ends_a_command_that_does_not_want_to(tmp_path: Path) -> None:
    end = tmp_path / "end"
    impatient = ACCOMPANIED.replace("class", "parent._ENDING = ((2, 0.1), (15, 0.1), (9, 60))\nclass", 1)
    words = [sys.executable, "-c", impatient, str(end), "sh", "-c", "trap '' INT TERM; echo ready; sleep 60; sleep 60"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    process.stdout.readline()
    end.touch()
    with at_most(30):
        assert process.wait() == -signal.SIGKILL


def test_ctrl_c_ends_both_by_the_signal() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        words = command("sh", "-c", "echo ready; exec sleep 60")
        os.execv(words[0], words)
    out = b""
    while b"ready" not in out:
        out += os.read(terminal, 100)
    time.sleep(0.1)
    os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGINT


def test_what_the_command_sends_to_its_parent_does_not_come_back() -> None:
    done = subprocess.run(command("sh", "-c", "kill -USR1 $PPID; sleep 0.2; exit 4"))
    assert done.returncode == 4


@pytest.mark.parametrize("trap", ["", "trap '' HUP INT PIPE;"])
def test_the_command_inherits_ignored_and_blocked_signals_unchanged(trap: str) -> None:
    """But for what every Python ignores from its start on: the commands that it starts shall not."""
    look = ["grep", "Sig[BI]", "/proc/self/status"]
    blocked, ignored = [], []
    for words in (look, command(*look)):
        shell = ["sh", "-c", f'{trap} exec "$@"', "sh", *words]
        said = subprocess.run(shell, capture_output=True, text=True, check=True).stdout
        # Without the real-time signals: two of them are the C library's own.
        first, second = (int(line.split()[1], 16) & 0x7FFFFFFF for line in said.splitlines())
        blocked.append(first)
        ignored.append(second)
    pipe = 1 << (signal.SIGPIPE - 1)
    assert blocked[0] == blocked[1]
    assert ignored[1] == ignored[0] & ~pipe
    assert bool(ignored[0] & pipe) == bool(trap)


def test_a_command_that_dumps_its_core_makes_us_dump_none(tmp_path: Path) -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard == 0:
        pytest.skip("no process may dump its core here")
    raised = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_CORE, (int(sys.argv[1]),) * 2)"
    raised += "; os.execv(sys.argv[2], sys.argv[2:])"
    words = [sys.executable, "-c", raised, str(hard), *command("sh", "-c", f"cd {tmp_path}; kill -SEGV $$")]
    pid = os.posix_spawn(words[0], words, os.environ)
    _, status = os.waitpid(pid, 0)
    assert (os.WTERMSIG(status), os.WCOREDUMP(status)) == (signal.SIGSEGV, False)


def test_a_caller_that_ignores_its_children_gets_the_code_too() -> None:
    script = "trap '' CHLD; exec \"$@\""
    assert subprocess.run(["bash", "-c", script, "bash", *command("sh", "-c", "exit 6")]).returncode == 6


def test_a_script_without_a_first_line_is_one_of_sh(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("echo $1 $#; exit 7\n")
    (tmp_path / "script").chmod(0o755)
    done = subprocess.run(command(str(tmp_path / "script"), "a b", "c"), capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("a b 2\n", 7)


@pytest.mark.parametrize(
    ("program", "kind"), [("no-such-program", Kind.NO_COMMAND), ("./text", Kind.NOT_EXECUTABLE), ("", Kind.NO_COMMAND)]
)
def test_a_command_that_cannot_start(program: str, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("")
    monkeypatch.chdir(tmp_path)
    starts: list[Callable[[str], object]] = [parent.require_program]
    if program:  # the system would refuse this one before it looks
        starts.append(lambda word: parent.run([word], os.environ))
    for start in starts:
        with pytest.raises(Problem) as caught:
            start(program)
        assert caught.value.kind is kind
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
