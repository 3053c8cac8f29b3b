from __future__ import annotations

import ast
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from patcher.messages.errors import Kind, Problem
from patcher.targets import interpreters
from patcher.targets.interpreters import Package, locate
from tests.patcher.targets.trees import package, write


def script(path: Path, text: str) -> str:
    write(path, text).chmod(0o755)
    return str(path)


def python(path: Path, before: str = "", options: str = "") -> str:
    """A wrapper that is a Python, after some lines of shell."""
    return script(path, f'#!/bin/sh\n{before}\nexec {sys.executable} {options} "$@"\n')


def test_the_script_is_python_3_7() -> None:
    ast.parse(Path(locate.__file__).read_text(), feature_version=(3, 7))


def test_a_package_is_found_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = package(tmp_path)
    write(tmp_path / "sitecustomize.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    found = interpreters.ask(sys.executable, ["vllm_ascend", "nothing_like_it"], "x").packages
    assert found == {"vllm_ascend": Package(str(inside / "__init__.py"), (str(inside),))}
    assert not (inside / "imported").exists()
    assert not list(tmp_path.rglob("__pycache__"))


def test_the_working_directory_does_not_shadow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    assert interpreters.ask(sys.executable, ["vllm_ascend"], "x").packages == {}


@pytest.mark.parametrize(
    "site",
    [
        "import sys; sys.stdout.write('hello without end of line')",
        "import sys, io; sys.stdout = io.StringIO()",
        "import atexit, os; atexit.register(os.write, 1, b'bye'); print({'found': {}})",
        "import atexit, os; atexit.register(os._exit, 3)",
    ],
)
def test_junk_on_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: str) -> None:
    write(tmp_path / "sitecustomize.py", site)
    package(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "vllm_ascend" in interpreters.ask(sys.executable, ["vllm_ascend"], "x").packages


def test_hooks_of_others_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*_: object) -> None:
        raise RuntimeError

    here = SimpleNamespace(
        find_spec=lambda name, _: (
            SimpleNamespace(origin="/src/p/__init__.py", has_location=True, submodule_search_locations=["/src/p"])
            if name == "p"
            else None
        )
    )
    leaves: Any = SimpleNamespace(find_spec=lambda _name, _path: sys.meta_path.remove(leaves))
    monkeypatch.setattr(sys, "meta_path", [object(), SimpleNamespace(find_spec=boom), leaves, here])
    assert locate.locate(["p", "q"], []) == {"p": {"origin": "/src/p/__init__.py", "locations": ["/src/p"]}}


def test_main_answers_behind_the_marker(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-c", "json"])
    runpy.run_path(locate.__file__, run_name="__main__")
    assert f'{locate.MARKER}{{"prefix": "{sys.prefix}", ' in capfd.readouterr().out


def test_the_running_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path)
    other = tmp_path / "other"
    package(other, "verl")
    monkeypatch.setattr(sys, "path", ["", str(other), *sys.path])
    monkeypatch.chdir(tmp_path)
    environment = interpreters.running_environment(["vllm_ascend", "verl"])
    assert set(environment.packages) == {"verl"}
    assert sys.executable in environment.name
    assert str(other) in environment.path


@pytest.mark.parametrize(("as_module", "found"), [(True, set()), (False, {"vllm_ascend"})])
def test_python_dash_m_does_not_shadow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_module: bool, found: set[str]
) -> None:
    package(tmp_path)
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace() if as_module else None  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    assert set(interpreters.running_environment(["vllm_ascend"]).packages) == found


def test_names_of_an_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = python(tmp_path / "env/bin/python")
    monkeypatch.setenv("PATH", str(Path(exe).parent), prepend=os.pathsep)
    for name in (exe, str(tmp_path / "env"), "python"):
        assert interpreters.ask(name, [], "x").prefix == sys.prefix


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("#!/bin/sh\n", Kind.USAGE, "the program printed nothing"),
        ("#!/bin/sh\necho what; exit 2\n", Kind.USAGE, "what"),
        ("not a program", Kind.USAGE, "Exec format error"),
        ("#!/bin/sh\necho 'SyntaxError: invalid syntax' >&2; exit 1\n", Kind.ENVIRONMENT, "below 3.7"),
        (
            "#!/bin/sh\necho 'Traceback:'; echo 'OSError: disk'; exit 1\n",
            Kind.ENVIRONMENT,
            "exit code 1): OSError: disk",
        ),
        ("#!/bin/sh\necho 'Fatal Python error: init' >&2; exit 1\n", Kind.ENVIRONMENT, "Fatal Python error"),
        ("#!/bin/sh\nkill -SEGV $$\n", Kind.ENVIRONMENT, "exit code -11"),
    ],
)
def test_programs_that_do_not_answer(tmp_path: Path, text: str, kind: Kind, says: str) -> None:
    exe = script(tmp_path / "exe", text)
    with pytest.raises(Problem) as raised:
        interpreters.ask(exe, [], "x")
    assert (raised.value.kind, says in raised.value.cause) == (kind, True), raised.value
    assert exe in str(raised.value)


def test_programs_that_are_not_there(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain")
    (tmp_path / "env" / "bin" / "python").mkdir(parents=True)
    for exe, says in {
        str(tmp_path / "none"): "the interpreter .* does not exist",
        "no-such-python-9": "the interpreter .* does not exist",
        "~no-such-user": "the interpreter .* does not exist",
        str(plain): "cannot be executed",
        str(tmp_path / "env"): "cannot be executed",
        str(tmp_path): f"--path {tmp_path}",
    }.items():
        with pytest.raises(Problem, match=says) as raised:
            interpreters.ask(exe, [], "x")
        assert raised.value.kind is Kind.USAGE


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    exe = script(tmp_path / "exe", "#!/bin/sh\nsleep 60\n")
    start = time.monotonic()
    with pytest.raises(Problem, match=r"did not answer in 0\.2 s"):
        interpreters.ask(exe, [], "x", timeout=0.2)
    assert time.monotonic() - start < 20


def test_ctrl_c_while_a_program_is_started_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(real(*words, **options))
        os.kill(os.getpid(), signal.SIGINT)  # it runs, and nobody knows its number yet
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            interpreters.ask(script(tmp_path / "exe", "#!/bin/sh\nsleep 60\n"), [], "x")
        assert started[0].poll() == -signal.SIGKILL
    finally:
        started[0].kill()
        started[0].wait()


def test_an_interrupt_ends_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen.communicate
    calls = []

    def interrupted(self: subprocess.Popen[bytes], *args: object, **options: object) -> object:
        calls.append(self)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        interpreters.ask(script(tmp_path / "exe", "#!/bin/sh\nsleep 60\n"), [], "x")
    assert calls[0].returncode == -9


def test_the_other_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    exe = python(two / "bin/python3")
    monkeypatch.setenv("VIRTUAL_ENV", str(one))
    monkeypatch.setenv("CONDA_PREFIX", str(one))
    monkeypatch.setenv("PATH", str(two / "bin"))
    assert list(interpreters.more_interpreters()) == [
        (f"$VIRTUAL_ENV ({one}/bin/python)", f"{one}/bin/python"),
        (f"python3 on PATH ({exe})", exe),
    ]
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    monkeypatch.setenv("CONDA_PREFIX", str(two))
    assert [name for name, _ in interpreters.more_interpreters()] == [f"$CONDA_PREFIX ({two}/bin/python)"]
    monkeypatch.delenv("CONDA_PREFIX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list(interpreters.more_interpreters()) == []
