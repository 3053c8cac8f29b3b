"""The entry point, and runs that were killed."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import Result

from patcher import __main__ as entry
from patcher.store.filesystem import lock
from tests.matrix import every, thinned
from tests.patcher.cli.conftest import SOURCE, WORKER, release
from tests.patcher.store.tree import picture

APPLY = ("apply", "vllm-ascend", "--decode", "30:60", "--path", "site")
# Dies before the third file operation of the transaction that matters: the journal lies there, the file is replaced.
KILLED = """
import os, sys
from patcher.cli import rlpatch
from patcher.store.folder import StoreFolder
StoreFolder.commit = lambda self: os._exit(9)
rlpatch()
"""


def test_the_module_runs_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["rlpatch", "--version"])
    monkeypatch.delitem(sys.modules, "patcher.__main__")
    with pytest.raises(SystemExit) as done:
        runpy.run_module("patcher", run_name="__main__")
    assert done.value.code == 0
    assert "rlpatch, version" in capsys.readouterr().out


def test_a_foreign_package_patches_ends_with_both_paths(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    foreign = ModuleType("patches")
    foreign.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "patches", foreign)
    with pytest.raises(SystemExit) as done:
        entry.main()
    assert done.value.code == 5
    assert str(tmp_path) in capsys.readouterr().err


def loaded_by(*command: str) -> set[str]:
    """The modules of a process that runs a command."""
    program = (
        "import atexit, sys\natexit.register(lambda: print(*sys.modules))\nfrom patcher.cli import rlpatch\nrlpatch()"
    )
    environ = {"PATH": "/usr/bin", "PYTHONPATH": str(Path(entry.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program, *command], env=environ, capture_output=True, text=True)
    return {*done.stdout.splitlines()[-1].split()}


def test_apply_of_a_plain_release_loads_no_more_than_it_needs(site: Path) -> None:
    (site / "vllm_ascend-0.11.0rc1.dist-info" / "RECORD").write_text(f"{WORKER},sha256=other,1\n")
    loaded = loaded_by("apply", "vllm-ascend==0.11.0rc1", *APPLY[2:])
    assert "libcst" in loaded
    assert {"packaging", "base64", "rich", "git", "tempfile"}.isdisjoint(loaded)


def test_the_help_loads_no_command_and_no_target() -> None:
    ours = {name for name in loaded_by("--help") if name.startswith(("patcher.", "patches."))}
    assert ours == {"patcher.cli", "patches.projects"}


@pytest.fixture
def killed(site: Path) -> Path:
    """A package whose apply was killed in the middle."""
    command = [sys.executable, "-c", KILLED, *APPLY]
    repository = Path(entry.__file__).parents[1]
    done = subprocess.run(
        command, env={"PATH": "/usr/bin", "PYTHONPATH": str(repository)}, capture_output=True, text=True
    )
    assert done.returncode == 9, done.stderr
    assert "_rlpatch_rollout" in (site / WORKER).read_text()
    return site


def test_status_says_that_a_run_was_interrupted(run, killed: Path) -> None:
    said = run("status", "--path", "site").stderr
    assert "rlpatch recover --path site" in said


def test_recover_undoes_an_interrupted_run(run, killed: Path) -> None:
    assert "undid an interrupted command" in run("recover", "--path", "site").stdout
    assert (killed / WORKER).read_text() == SOURCE
    assert "nothing to recover: no rlpatch command was interrupted in" in run("recover", "--path", "site").stdout


def test_the_next_command_undoes_an_interrupted_run(run, killed: Path) -> None:
    assert "undid an interrupted command" in run("revert", "--path", "site").stdout
    assert (killed / WORKER).read_text() == SOURCE


def test_the_next_apply_undoes_an_interrupted_run_and_goes_through(run, killed: Path) -> None:
    said = run(*APPLY).stdout
    assert "undid an interrupted command" in said
    assert f"patched {WORKER}" in said
    run("revert", "--path", "site")
    assert (killed / WORKER).read_text() == SOURCE


def test_another_process_holds_the_lock(run, site: Path) -> None:
    """The waiting is told, and who is waited for."""
    run(*APPLY)
    with lock.hold(site / ".rlpatch", prepare=lambda: None, wait=1, on_wait=print):
        command = [sys.executable, "-m", "patcher", "revert", "--path", "site"]
        repository = Path(entry.__file__).parents[1]
        waiting = subprocess.Popen(
            command, env={"PATH": "/usr/bin", "PYTHONPATH": str(repository)}, stderr=subprocess.PIPE, text=True
        )
        assert waiting.stderr is not None
        assert f"waiting for process {os.getpid()}" in waiting.stderr.readline()
    assert waiting.wait(30) == 0
    assert (site / WORKER).read_text() == SOURCE


REPOSITORY = Path(entry.__file__).parents[1]


def rlpatch(*words: str, code: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """A whole process, in which ``code`` runs before the command line does."""
    command = [sys.executable, "-c", f"{code}\nfrom patcher.__main__ import main\nmain()", *words]
    environ = {"PATH": "/usr/bin", "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=environ, text=True, stderr=subprocess.PIPE, **options)


# Ctrl-C at the moment when a module is asked for.
PRESSED = """
import sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    "module",
    ["patches", "patcher.cli", "click", "patcher.cli.patching.apply", "patcher.messages.report", "patcher.commands.patching.applying", "patcher.editing",
     "patcher.store.folder"],
)  # fmt: skip
def test_ctrl_c_while_a_module_loads_is_exit_130(site: Path, module: str) -> None:
    before = picture(site)
    done = rlpatch(*APPLY, code=PRESSED.format(module=module), stdout=subprocess.DEVNULL)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert picture(site) == before


@pytest.mark.parametrize(
    "words", thinned([APPLY[:-2], ("status",), ("revert",)], [("status",)]), ids=lambda words: words[0]
)
def test_ctrl_c_while_another_interpreter_is_asked_is_exit_130(site: Path, tmp_path: Path, words) -> None:
    """What the interpreter has started goes with it, and nothing stays behind."""
    children, exe = tmp_path / "children", tmp_path / "python"
    exe.write_text(f"#!/bin/sh\nsleep 60 & echo $$ $! > {children}.new; mv {children}.new {children}\nwait\n")
    exe.chmod(0o755)
    before = picture(site)
    # A shell starts what runs in the background deaf to Ctrl-C, and so would be a test that runs there.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{code}\nfrom patcher.__main__ import main\nmain()", *words, "--python", exe]
    environ = {"PATH": "/usr/bin", "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
    asking = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
    assert waited(children.exists)
    asking.send_signal(signal.SIGINT)
    _, said = asking.communicate(timeout=120)
    assert (asking.returncode, "Traceback" in said) == (130, False), said
    assert waited(lambda: not any(map(runs, children.read_text().split())))
    assert picture(site) == before


def runs(child: str) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked for is none."""
    try:
        return Path("/proc", child, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def waited(come: Callable[[], bool]) -> bool:
    """Whether it comes within 10 s."""
    end = time.monotonic() + 10
    while not come() and time.monotonic() < end:
        time.sleep(0.02)
    return come()


# Ctrl-C as soon as the store has done its work, and twice while the report is made.
AFTER = """
import os, signal
import patcher.store.{module} as module
real = module.{name}
def press(*words, **options):
    result = real(*words, **options)
    os.kill(os.getpid(), signal.SIGINT)
    return result
module.{name} = press
"""


@pytest.mark.parametrize(
    ("module", "name"),
    every(3, [("transaction", "_transact"), ("transaction", "_sweep"), ("filesystem.lock", "_release")]),
)
def test_ctrl_c_after_the_commit_is_not_called_a_rollback(site: Path, module: str, name: str) -> None:
    done = rlpatch(*APPLY, code=AFTER.format(module=module, name=name), stdout=subprocess.PIPE)
    assert (done.returncode, "nothing was changed" in done.stderr) == (
        0,
        False,
    ), done.stderr
    assert f"patched {WORKER}" in done.stdout
    assert "_rlpatch_rollout" in (site / WORKER).read_text()


def test_ctrl_c_while_the_report_is_made_stops_nothing(site: Path) -> None:
    code = AFTER.replace("patcher.store", "patcher").format(module="processes", name="running")
    done = rlpatch(*APPLY, code=code, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert "restart " in done.stdout  # it, or the engines that run here


@pytest.mark.parametrize(
    ("words", "code", "said"),
    every(3, [
        (APPLY, 0, "the output could not be written: No space left on device, but these changes were made: patched "),
        (("diff", "vllm-ascend", "--decode", "1:2", "--path", "site"), 5, "could not be written: No space left"),
        (("status", "--path", "site", "--json"), 5, "could not be written: No space left on device"),
        (("--help",), 5, "No space left on device"),
        (("apply", "-h"), 5, "No space left on device"),
    ]),
)  # fmt: skip
def test_a_full_device_is_told_in_one_line(site: Path, words: tuple[str, ...], code: int, said: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = rlpatch(*words, stdout=full)
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error:")]
    assert done.returncode == code, done.stderr
    assert [said in line for line in errors] == [True]
    assert "Traceback" not in done.stderr
    assert ("_rlpatch_rollout" in (site / WORKER).read_text()) == (words is APPLY)


@pytest.mark.parametrize("words", [APPLY, ("diff", "vllm-ascend", "--decode", "1:2", "--path", "site")])
def test_a_closed_pipe_is_silent(site: Path, words: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        done = rlpatch(*words, stdout=pipe)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr
    assert "Traceback" not in done.stderr


def test_nobody_to_tell_is_no_failure(site: Path) -> None:
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "patcher", *APPLY]
        environ = {"PATH": "/usr/bin", "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, stderr=full, text=True)
    assert done.returncode == 0
    assert f"patched {WORKER}" in done.stdout


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command line as a user who owns nothing here."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    # What the interpreter and rlpatch need may lie where only root gets, so the modules are loaded before.
    code = """
import contextlib, io, os
import patcher.__main__
from patcher.cli import rlpatch
for words in ("apply -n vllm-ascend --decode 1:2", "check vllm-ascend", "status"):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with contextlib.suppress(SystemExit):
            rlpatch([*words.split(), "--path", "site"])
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
"""
    return lambda *words: rlpatch(*words, code=code, stdout=subprocess.PIPE)


@pytest.mark.parametrize("closed", thinned(("site", "site/vllm_ascend", "site/vllm_ascend/worker"), ("site",)))
@pytest.mark.parametrize("mode", thinned([0o700, 0o744], [0o744]))
@pytest.mark.parametrize("command", thinned(["apply", "check", "status"], ["apply"]))
def test_a_folder_that_may_not_be_searched_is_named(
    site: Path, stranger: Callable[..., subprocess.CompletedProcess[str]], closed: str, mode: int, command: str
) -> None:
    words = {"apply": APPLY, "check": ("check", "vllm-ascend", "--path", "site")}
    Path(closed).chmod(mode)
    done = stranger(*words.get(command, (command, "--path", "site")))
    Path(closed).chmod(0o755)
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr
    assert "a leftover" not in done.stderr
    if (command, closed) != ("check", "site/vllm_ascend/worker"):  # which looks at the version alone
        assert f"to enter the folder {Path(closed).name}" in done.stderr
    if command == "apply" or closed == "site":
        assert done.returncode == 5
        assert f"at {Path(closed).resolve()}\n" in done.stderr
        assert "next: run rlpatch as the owner (root)" in done.stderr


DEEP = {
    "brackets": "x = " + "(" * 2000 + "1" + ")" * 2000,
    "minus": "x = " + "-" * 20_000 + "1",
    "lambdas": "x = " + "lambda: " * 5000 + "1",
    "texts": "x = (" + "'a' " * 3000 + ")",
    "attributes": "x = a" + ".a" * 2000,
    "elif": "if a: pass\n" + "elif a: pass\n" * 300,
    "sums": "x = 1" + " + 1" * 5000,
}
WAYS = (("--decode", "30:60"), ("--builtin", "--level", "level2"))


@pytest.mark.parametrize("words", thinned(WAYS, WAYS[:1]), ids=" ".join)
@pytest.mark.parametrize("nested", thinned([*DEEP], ("brackets",)))
def test_code_that_is_nested_too_deeply_is_patched_or_exit_4(
    tmp_path: Path, words: tuple[str, ...], nested: str
) -> None:
    """In a process of its own: a parser that runs out of stack takes its process along."""
    site = release(tmp_path / "site", source=f"{SOURCE}\n\n{DEEP[nested]}\n")
    before = (site / WORKER).read_bytes()
    said = rlpatch("apply", "vllm-ascend", "--path", str(site), *words)
    assert said.returncode in (0, 4), said.stderr[-500:]
    if said.returncode:
        assert "nested too deeply" in said.stderr
        assert (site / WORKER).read_bytes() == before
    else:
        assert rlpatch("revert", "--path", str(site)).returncode == 0
        assert (site / WORKER).read_bytes() == before


@pytest.mark.parametrize(
    "words", thinned([("list",), ("completion", "bash"), ("status", "--path", "FOLDER")], [("list",)]), ids=" ".join
)
def test_a_full_device_is_the_environment_and_a_closed_stream_is_nothing(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    code = "import os, sys; os.close(1) if sys.argv.pop(1) == '-' else os.dup2(os.open('/dev/full', 1), 1)"
    run = f"{code}\nfrom patcher.__main__ import main; main()"
    full, closed = (
        subprocess.run(
            [sys.executable, "-c", run, how, *(str(tmp_path) if word == "FOLDER" else word for word in words)],
            capture_output=True,
            text=True,
        )
        for how in "+-"
    )
    assert (full.returncode, "No space left on device" in full.stderr) == (5, True)
    assert "Traceback" not in full.stderr + closed.stderr


def test_a_working_directory_that_was_deleted_is_the_environment(tmp_path: Path) -> None:
    site, here = release(tmp_path / "site"), tmp_path / "here"
    here.mkdir()
    run = "import os, sys; os.rmdir(os.getcwd())\nfrom patcher.__main__ import main; main()"
    words = ["apply", "vllm-ascend", "--decode", "1:2", "--path", str(site)]
    said = subprocess.run([sys.executable, "-c", run, *words], capture_output=True, text=True, cwd=here)
    assert said.returncode in (2, 5), said.stderr
    assert "\n  next: " in said.stderr
    assert "unexpected" not in said.stderr


COMMENTS = ("x = 1  # rlpatch: todo", "x = 1  # rlpatch: two words", "# <<< rlpatch two words")


@pytest.mark.parametrize("comment", thinned(COMMENTS, COMMENTS[1:2]))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_comment_of_somebody_that_looks_like_a_mark_stops_no_command(
    tmp_path: Path, run: Callable[..., Result], comment: str, when: str
) -> None:
    site = release(tmp_path / "site", source=f"{SOURCE}\n{comment}\n" if when == "before" else SOURCE)
    apply = ("apply", "vllm-ascend", "--decode", "1:2")
    for words in ((*apply, "-n"), ("status",), apply, ("status",), ("diff",), ("explain", "vllm-ascend"), ("revert",)):
        assert "tampered" not in run(*words, "--path", site).stdout
        if words == apply and when == "after":
            with (site / WORKER).open("a") as worker:
                worker.write(f"\n{comment}\n")
    assert (site / WORKER).read_text() == f"{SOURCE}\n{comment}\n"
