"""`rlpatch run`: the report of `apply`, the command's own streams and code, and nothing left on the disk."""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.cache import REPOSITORY
from tests.matrix import every, thinned
from tests.patcher.cli.conftest import SOURCE, WORKER, release
from tests.patcher.store.tree import picture

TARGET = ("vllm-ascend==0.11.0rc1", "--decode", "30:60", "--path", "site")
SHOW = "import vllm_ascend.worker.worker_v1 as w; print(any('rlpatch' in name for name in vars(w.NPUWorker)))"
PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A release that can be imported."""
    root = release(tmp_path / "site", source=f"WorkerBase = object\n{SOURCE}")
    for file in root.rglob("__init__.py"):
        file.write_text("")
    compileall.compile_dir(root, quiet=2)  # what any process may do
    return root


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def lent(site: Path, scratch: Path, tmp_path: Path) -> Run:
    """Runs `rlpatch run WORDS` in a process of its own, and sees that nothing is left."""

    def run(*words: str, code: int = 0, leaves: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
        before = picture(site)
        done = subprocess.run(
            [sys.executable, "-m", "patcher", "run", *words],
            env=environ(site, scratch, **variables),
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert picture(site) == before
        assert leaves or list(scratch.iterdir()) == []
        return done

    return run


def environ(site: Path, scratch: Path, **variables: str) -> dict[str, str]:
    path = {"PYTHONPATH": f"{REPOSITORY}:{site}", "PATH": PATH}
    return {"TMPDIR": str(scratch), **path, **variables}


def test_the_report_of_apply_beside_the_commands_own_streams(lent: Run, run, site: Path) -> None:
    done = lent(*TARGET, "--", "python", "-c", SHOW)
    assert done.stdout == "True\n"
    applied = run("apply", *TARGET, "-n")
    planned = [line for line in applied.stdout.splitlines() if not line.startswith("next:")]
    said = done.stderr.replace("  patches ", "  would patch ").splitlines()
    assert [line for line in said if line in planned] == planned
    assert "no file is changed: the processes of the command import the patched code from memory" in said
    assert said[-1] == "rlpatch run: vllm-ascend was patched in 1 process"
    assert not (site / ".rlpatch").exists()


def test_diagnose_names_each_target_once_and_keeps_its_patches_for_verbose(site: Path, scratch: Path) -> None:
    """The timeline and all windows on demand are patched beside each other in the same file."""
    diagnose = ("diagnose", "vllm-ascend", "--path", "site", "--force", "--save-path", str(scratch / "traces"))
    said = []
    for verbose in ((), ("-v",)):
        done = subprocess.run(
            [sys.executable, "-m", "patcher", *diagnose, *verbose, "--", "python", "-c", SHOW],
            env=environ(site, scratch),
            cwd=site.parent,
            capture_output=True,
            text=True,
        )
        assert done.stdout == "True\n"
        said.append(done.stderr)
    for lines in said:
        assert lines.count("rlpatch run: vllm-ascend was patched in 1 process\n") == 1
    brief, whole = said
    assert brief.count("vllm-ascend 0.11.0rc1: unpacked") == 1
    assert "  patches " not in brief
    assert "trigger" not in brief
    assert whole.count("vllm-ascend 0.11.0rc1: unpacked") == whole.count("  patches vllm_ascend/worker/") == 2


def test_a_command_without_the_hook_sees_the_file_as_it_is(site: Path, scratch: Path) -> None:
    words = [sys.executable, "-c", SHOW]
    done = subprocess.run(words, env=environ(site, scratch), capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_the_bytes_are_those_that_apply_writes(lent: Run, run, site: Path, tmp_path: Path) -> None:
    code = f"import sys, pathlib; from importlib.machinery import SourceFileLoader as L; p = {str(site / WORKER)!r}; "
    code += "pathlib.Path('seen').write_bytes(L('m', p).get_data(p))"
    lent(*TARGET, "--", "python", "-c", code)
    run("apply", *TARGET)
    assert (tmp_path / "seen").read_bytes() == (site / WORKER).read_bytes()


def test_a_dry_run_starts_nothing(run, site: Path) -> None:
    done = run("run", *TARGET, "-n", "--", "touch", "started")
    assert f"would patch {WORKER}" in done.stdout
    assert not Path("started").exists()


def test_json_stands_beside_the_commands_output(lent: Run, site: Path) -> None:
    done = lent(*TARGET, "--json", "--", "python", "-c", SHOW)
    assert done.stdout == "True\n"
    decoder = json.JSONDecoder()
    text = done.stderr[done.stderr.index("\n{") + 1 :]
    first, end = decoder.raw_decode(text)
    last, _ = decoder.raw_decode(text[end:].lstrip())
    assert (first["command"], first["result"]["command"]) == ("run", ["python", "-c", SHOW])
    assert first["result"]["targets"][0]["files"][0]["path"] == WORKER
    assert last["result"] == {"patched": {"vllm-ascend": 1}}


def test_quiet_leaves_the_command_alone(lent: Run) -> None:
    done = lent(*TARGET, "-q", "--", "python", "-c", SHOW)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_quiet_keeps_the_warning_that_nothing_was_patched(lent: Run) -> None:
    said = lent(*TARGET, "-q", "--", "true").stderr
    assert said.splitlines()[0] == "warning: no process of the run imported the patched vllm-ascend"
    assert "  next: " in said


def test_what_is_patched_on_disk_already_runs_as_it_is(lent: Run, run, site: Path) -> None:
    run("apply", *TARGET)
    done = lent(*TARGET, "--", "python", "-B", "-c", SHOW + "; raise SystemExit(3)", code=3)
    assert done.stdout == "True\n"
    assert (
        "the installed files already have these patches, so rlpatch runs the command without changing any file"
        in done.stderr
    )


@pytest.mark.parametrize(
    ("command", "code"),
    every(2, [("exit 3", 3), ("kill -KILL $$", -9), ("kill -TERM $$", -15), ("exit 0", 0)]),
)
def test_the_code_and_the_signal_are_the_commands(lent: Run, command: str, code: int) -> None:
    lent(*TARGET, "--", "sh", "-c", command, code=code)


REFUSED = {
    "no command": ((), 2, "after `--`, type the command to run"),
    "an empty command": (("--",), 2, "after `--`, type the command to run"),
    "no separator": (("bash", "run.sh"), 2, "rlpatch run vllm-ascend==0.11.0rc1 --decode 30:60 --path site -- bash run.sh"),
    "no window of it": (("--mini-batch", "0:1", "--", "true"), 2, "the training runs in"),
    "required, and lost": (("--require", "--", "python", "-I", "-c", "open('started', 'w')"), 5, "start Python without -I"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_starts_nothing(name: str, run, site: Path) -> None:
    words, code, said = REFUSED[name]
    before = picture(site)
    assert said in run("run", *TARGET, *words, code=code, PATH=PATH).stderr
    assert not Path("started").exists()
    assert picture(site) == before


SAID_BEFORE = {
    "not there": (("--", "none", "x"), 127, "no such command: the program none does not exist"),
    "not executable": (("--", "./site"), 126, "the program ./site cannot be executed"),
    "another profiler": (("--", "env", "VLLM_TORCH_PROFILER_DIR=/x", "python", "bench.py", "--profile"), 0, "armed"),
    "lost": (("--", "python", "-I", "-c", "pass"), 0, "command after -- starts unpatched processes: Python with -I ignores PYTHONPATH"),
}  # fmt: skip


@pytest.mark.parametrize("name", thinned([*SAID_BEFORE], [*SAID_BEFORE][::2]))
def test_what_is_said_before_the_command_starts(name: str, lent: Run, tmp_path: Path) -> None:
    words, code, said = SAID_BEFORE[name]
    (tmp_path / "bench.py").write_text("")
    assert said in lent(*TARGET, *words, code=code).stderr


def test_a_version_that_is_not_there_starts_nothing(lent: Run) -> None:
    done = lent("vllm-ascend==0.12.0", *TARGET[1:], "--json", "--", "touch", "started", code=3)
    assert [problem["kind"] for problem in json.loads(done.stderr[done.stderr.index("{") :])["problems"]] == ["version"]
    assert not Path("started").exists()


def test_a_command_whose_script_is_missing_starts_all_the_same(lent: Run) -> None:
    done = lent(*TARGET, "--", "bash", "none.sh", code=127)
    assert "the launch command or script names a file that was not found" in done.stderr
    assert "bash: none.sh:" in done.stderr


LOSSES = {
    "-I": (("python", "-I", "-c", "pass"), "Python with -I ignores PYTHONPATH"),
    "-E in a script": (("bash", "run.sh"), "Python with -E ignores PYTHONPATH"),
    "env -i": (("env", "-i", sys.executable, "-c", "pass"), "empties the environment (env -i)"),
    "PYTHONPATH anew": (("bash", "anew.sh"), "use `export PYTHONPATH=…:$PYTHONPATH`"),
    "nobody can tell": (
        ("sh", "-c", "eval `cat words`"),
        "no Python process loaded rlpatch's hook",
    ),
    "no Python": (
        ("true",),
        "no Python process loaded rlpatch's hook",
    ),
    "not imported": (("python", "-c", "pass"), f"none imported {WORKER}: did the run end before it imported them"),
    "another copy": (("python", "other.py"), "choose this copy with --path or --python"),
    "changed meanwhile": (
        ("python", "-B", "changes.py"),
        "changed after `rlpatch run` had read it: start the run again",
    ),
}


@pytest.mark.parametrize("name", thinned([*LOSSES], ("-E in a script", "another copy")))
@pytest.mark.parametrize("require", thinned([False, True], [True]))
def test_where_nothing_was_patched_it_says_why(name: str, require: bool, lent: Run, site: Path, tmp_path: Path) -> None:
    (tmp_path / "words").write_text(f"env -i {sys.executable} -c pass")
    (tmp_path / "run.sh").write_text("cd .\npython -E -c pass\n")
    (tmp_path / "anew.sh").write_text("export PYTHONPATH=site\npython -c pass\n")
    copy = tmp_path / "other" / WORKER
    copy.parent.mkdir(parents=True)
    for folder in copy.parents[:2]:
        (folder / "__init__.py").write_text("")
    copy.write_bytes((site / WORKER).read_bytes())
    imports = "import vllm_ascend.worker.worker_v1"
    (tmp_path / "other.py").write_text(
        f"import sys; sys.path.insert(0, 'other')\ntry: {imports}\nexcept ImportError: pass\n"
    )
    changes = f"p = {str(site / WORKER)!r}; b = open(p, 'rb').read(); t = __import__('os').stat(p)\nopen(p, 'ab').write(b'#')\n"
    changes += f"try: {imports}\nexcept ImportError: pass\nopen(p, 'wb').write(b)\n"
    changes += "__import__('os').utime(p, ns=(t.st_atime_ns, t.st_mtime_ns))\n"
    (tmp_path / "changes.py").write_text(changes)
    command, said = LOSSES[name]
    done = lent(*TARGET, *(("--require",) if require else ()), "--", *command, code=5 if require else 0)
    assert said in re.sub(r"\s+", " ", done.stderr)
    begin = "" if require else "no process of the run imported the patched vllm-ascend"
    last = done.stderr[done.stderr.index(begin) :]
    assert ("Error: not possible in this environment" in done.stderr) == require
    assert require or "next: use `rlpatch apply` with the same options" in last


@pytest.mark.parametrize("branch", ["false", "true"])
def test_a_line_that_may_lose_the_hook_is_named_only_if_it_was_lost(branch: str, lent: Run, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"if {branch}; then export PYTHONPATH=/x; fi\npython -c pass\n")
    said = lent(*TARGET, "--require", "--", "bash", "run.sh", code=5).stderr
    assert ("run.sh:1: the PYTHONPATH" in said.partition("Error: ")[2]) == (branch == "true")


def test_python_of_another_environment_is_named(lent: Run, site: Path, tmp_path: Path) -> None:
    """The release lies in one environment, and the command starts the Python of another."""
    other = tmp_path / "env"
    (other / "bin").mkdir(parents=True)
    (other / "bin" / "python").symlink_to(sys.executable)
    (other / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    packages = other / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
    packages.parent.mkdir(parents=True)
    site.rename(packages)
    site.mkdir()
    words = (*TARGET[:3], "--python", "env/bin/python", "--", "python", "-c", "pass")
    said = re.sub(r"\s+", " ", lent(*words).stderr)
    assert all(value in said for value in (sys.prefix, str(other), "--python EXE"))


def test_a_required_run_that_fails_keeps_its_code(lent: Run) -> None:
    assert (
        "no process of the run imported the patched"
        in lent(*TARGET, "--require", "--", "sh", "-c", "exit 3", code=3).stderr
    )


def test_a_submitted_job_is_told_its_option(lent: Run, tmp_path: Path) -> None:
    (tmp_path / "ray").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "ray").chmod(0o755)
    (tmp_path / "run.sh").write_text("ray job submit -- python3 train.py\n")
    path = f"{tmp_path}:{PATH}"
    said = lent(*TARGET, "--", "bash", "run.sh", PATH=path).stderr
    option = '${RLPATCH_RUN:+--runtime-env-json "{\\"py_modules\\": [\\"$RLPATCH_RUN\\"]}"}'
    assert f"in run.sh:1: add {option}\n" in said
    (tmp_path / "run.sh").write_text(f"ray job submit {option} -- python3 train.py\n")
    done = lent(*TARGET, "--", "bash", "run.sh", PATH=path)
    assert "environment variables" not in done.stderr
    assert re.match(r'job submit --runtime-env-json \{"py_modules": \["/.*/sitecustomize"\]\} -- python3', done.stdout)


def test_what_ray_has_started_gets_longer_to_end(lent: Run) -> None:
    script = 'echo 1 > "${RLPATCH_RUN%/*}/ray"; sleep 4 > late 2>&1 &'
    assert "still there" not in lent(*TARGET, "--", "sh", "-c", script).stderr


def children(pid: int) -> list[str]:
    """The names of the programs that the children of a process run."""
    names = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            names.append(Path(f"/proc/{child}/comm").read_text().strip())
    return names


@pytest.mark.parametrize("number", thinned([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], [signal.SIGTERM]))
def test_no_signal_takes_the_code_of_a_command_that_has_ended(
    number: signal.Signals, site: Path, scratch: Path, tmp_path: Path
) -> None:
    """While it waits for what the command has left behind."""
    words = [
        sys.executable,
        "-m",
        "patcher",
        "run",
        *TARGET,
        "--",
        "sh",
        "-c",
        "sleep 60 > late 2>&1 & echo $!; exit 5",
    ]
    process = subprocess.Popen(
        words, env=environ(site, scratch), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    late = int(process.stdout.readline())
    while "sh" in children(process.pid):
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(number)
    said = process.communicate()[1]
    os.kill(late, signal.SIGKILL)
    assert process.returncode == 5
    assert f"still alive after the command ended: 1 process of the run ({late})" in said


def test_processes_that_go_on_keep_the_folder_and_the_next_run_removes_it(
    lent: Run, site: Path, scratch: Path, tmp_path: Path
) -> None:
    (tmp_path / "late.py").write_text(f"input()\n{SHOW}\n")
    os.mkfifo(tmp_path / "gate")
    gate = os.open(tmp_path / "gate", os.O_RDWR)
    script = "python late.py < gate > late 2>&1 &"
    done = lent(*TARGET, "--", "sh", "-c", script, leaves=True)
    assert "still alive after the command ended: 1 process" in done.stderr
    lent(*TARGET, "--", "true", leaves=True)
    (left,) = scratch.iterdir()
    os.write(gate, b"\n")
    deadline = time.monotonic() + 20
    while (tmp_path / "late").read_text() != "True\n" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tmp_path / "late").read_text() == "True\n"
    while left.exists() and time.monotonic() < deadline:
        lent(*TARGET, "--", "true", leaves=True)
    assert list(scratch.iterdir()) == []
    os.close(gate)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The kills come at moments that a generator gives, the same in each run of the tests."""
    if "moment" in metafunc.fixturenames:
        turns = 120 if metafunc.config.getoption("--thorough", default=False) else 12
        metafunc.parametrize("moment", [round(random.Random(turn).uniform(0, 1.4), 3) for turn in range(turns)])


@pytest.mark.crash
@pytest.mark.parametrize("victim", ["parent", "worker"])
def test_killed_at_any_moment_nothing_is_left_but_one_folder(
    victim: str, moment: float, lent: Run, site: Path, scratch: Path, tmp_path: Path
) -> None:
    before = picture(site)
    (tmp_path / "train.py").write_text(
        f"import os, subprocess, sys, time\nopen('pid', 'w').write(str(os.getpid()))\n{SHOW}\ntime.sleep(0.3)\n"
    )
    words = [sys.executable, "-m", "patcher", "run", *TARGET, "--", "python", "train.py"]
    process = subprocess.Popen(
        words, env=environ(site, scratch), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(moment)
    if victim == "parent":
        process.kill()
    elif (tmp_path / "pid").exists() and (pid := (tmp_path / "pid").read_text()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    process.wait()
    time.sleep(0.5)  # the command of a parent that was killed goes on to its end
    assert picture(site) == before
    assert len(list(scratch.iterdir())) <= (victim == "parent")
    assert {path.name for path in tmp_path.iterdir()} <= {"site", "scratch", "train.py", "pid"}
    deadline = time.monotonic() + 20
    while list(scratch.iterdir()) and time.monotonic() < deadline:
        for folder in scratch.iterdir():
            if not (folder / "alive").exists():
                os.utime(folder, (1, 1))  # killed at its first step: a minute later it is one
        lent(*TARGET, "--", "true", leaves=True)
    assert list(scratch.iterdir()) == []
