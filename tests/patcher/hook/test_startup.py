"""Imports of a run's processes, however they are started, on every Python that a target may run on."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

from patcher.changes.change import Change
from patcher.hook import folder, startup
from tests.alarms import at_most
from tests.interpreters import interpreter
from tests.matrix import ends, thinned
from tests.patcher.hook.conftest import AFTER, BEFORE, MODULE, Hooked
from tests.patcher.store.tree import picture

OLD, NEW = ("3.8", "3.9"), ("3.10", "3.11", "3.12", "3.13")
HERE = "{}.{}".format(*sys.version_info)
PATCHED, LOST = "planned", "as it is"
SHOW = "from target.worker import VALUE; print(VALUE, flush=True)"
SITE = "import sys; sys.path.append('site')"
IN_CHILD = "import {module} as m, show\nif __name__ == '__main__':\n    {call}\n"
POOL = "c = m.get_context('{kind}'); p = c.Process(target=show.show); p.start(); p.join(); assert p.exitcode == 0"
FILES = {
    "show.py": f"def show():\n    {SHOW}\n",
    "main.py": f"{SITE}\n{SHOW}\n",
    "spawn.py": IN_CHILD.format(module="multiprocessing", call=POOL.format(kind="spawn")),
    "forkserver.py": IN_CHILD.format(module="multiprocessing", call=POOL.format(kind="forkserver")),
    "fork.py": IN_CHILD.format(module="multiprocessing", call=POOL.format(kind="fork")),
    "child.py": "import subprocess, sys\nsubprocess.run([sys.executable, 'main.py'], check=True)\n",
    "execv.py": "import os, sys\nos.execv(sys.executable, [sys.executable, 'main.py'])\n",
    "runs.py": "import runpy\nrunpy.run_path('main.py')\n",
    "relative.py": f"import sys\nsys.path.insert(0, 'site')\n{SHOW}\n",
    "linked.py": f"import sys\nsys.path.insert(0, 'link')\n{SHOW}\n",
    "reload.py": "import importlib, target.worker as w\nw.VALUE = ''\nimportlib.reload(w)\nprint(w.VALUE)\n",
    # What an editable install of setuptools does.
    "editable.py": (
        "import sys, importlib.util as u\nclass Finder:\n    @staticmethod\n    def find_spec(name, path=None, target=None):\n"
        "        if name == 'target':\n"
        "            return u.spec_from_file_location(name, 'site/target/__init__.py', submodule_search_locations=['site/target'])\n"
        f"sys.meta_path.insert(0, Finder)\n{SHOW}\n"
    ),
    # What beartype, jaxtyping and typeguard do: a finder before all others, and a loader that changes the code.
    "claw.py": (
        "import sys, ast\nfrom importlib.machinery import PathFinder, SourceFileLoader\n"
        "class Loader(SourceFileLoader):\n    def source_to_code(self, data, path, **k):\n"
        "        print(len(ast.parse(data).body)); return super().source_to_code(data, path, **k)\n"
        "class Finder:\n    @staticmethod\n    def find_spec(name, path=None, target=None):\n"
        "        spec = PathFinder.find_spec(name, path, target)\n"
        "        if name.startswith('target.') and spec: spec.loader = Loader(name, spec.origin)\n        return spec\n"
        f"sys.meta_path.insert(0, Finder)\n{SHOW}\n"
    ),
}


class Case(NamedTuple):
    """A command in the folder of the run, with PYTHON for the interpreter, and what its process prints at last."""

    name: str
    command: str
    expected: str
    since: str = "3.8"


CASES = (
    Case("script", "PYTHON main.py", PATCHED),
    Case("-c", f'PYTHON -c "{SHOW}"', PATCHED),
    Case("stdin", f'echo "{SHOW}" | PYTHON -', PATCHED),
    Case("-m", "PYTHON -m main", PATCHED),
    Case("runpy", "PYTHON runs.py", PATCHED),
    Case("spawn", "PYTHON spawn.py", PATCHED),
    Case("forkserver", "PYTHON forkserver.py", PATCHED),
    Case("fork", "PYTHON fork.py", PATCHED),
    Case("subprocess", "PYTHON child.py", PATCHED),
    Case("execv", "PYTHON execv.py", PATCHED),
    Case("shebang", "./program", PATCHED),
    Case("-s", "PYTHON -s main.py", PATCHED),
    Case("-P", "PYTHON -P main.py", PATCHED, "3.11"),
    Case("-B", "PYTHON -B main.py", PATCHED),
    Case("-OO", "PYTHON -OO main.py", PATCHED),
    Case("PYTHONPATH kept", "PYTHONPATH=site:$PYTHONPATH PYTHON main.py", PATCHED),
    Case("a relative path", "PYTHON relative.py", PATCHED),
    Case("through a link", "PYTHON linked.py", PATCHED),
    Case("reload", "PYTHON reload.py", PATCHED),
    Case("editable install", "PYTHON editable.py", PATCHED),
    Case("loader of others", "PYTHON claw.py", PATCHED),
    Case("-S", "PYTHON -S main.py", LOST),
    Case("-E", "PYTHON -E main.py", LOST),
    Case("-I", "PYTHON -I main.py", LOST),
    Case("env -i", "env -i PYTHON main.py", LOST),
    Case("PYTHONPATH anew", "PYTHONPATH=site PYTHON main.py", LOST),
    Case("zip", "PYTHONPATH=$PYTHONPATH:none PYTHON zipped.py", LOST),
)


@pytest.mark.parametrize("version", thinned(NEW, [HERE if HERE in NEW else NEW[-1]]))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_planned_file_is_imported_however_a_process_starts(case: Case, version: str, hooked: Hooked) -> None:
    if tuple(map(int, version.split("."))) < tuple(map(int, case.since.split("."))):
        pytest.skip(f"since {case.since}")
    start(case, str(interpreter(version)), hooked)


@pytest.mark.parametrize("version", thinned(OLD, OLD[:1]))
def test_the_planned_file_is_imported_on_older_pythons(version: str, hooked: Hooked) -> None:
    names = ("script", "spawn", "loader of others", "-I")
    for case in (case for case in CASES if case.name in names):
        start(case, str(interpreter(version)), hooked)
        assert hooked.run
        hooked.run.leave()
        hooked.run = None


def start(case: Case, python: str, hooked: Hooked) -> None:
    run = hooked.plan()
    for name, text in FILES.items():
        hooked.write(name, text)
    hooked.write("program", f"#!{python}\n{FILES['main.py']}").chmod(0o755)
    if case.name == "zip":
        import zipfile

        with zipfile.ZipFile(hooked.folder / "site.zip", "w") as archive:
            archive.writestr("target/__init__.py", "")
            archive.writestr(str(MODULE), BEFORE)
        hooked.write("zipped.py", f"import sys\nsys.path.insert(0, 'site.zip')\n{SHOW}\n")
    if not (hooked.folder / "link").exists():
        (hooked.folder / "link").symlink_to("site")
    done = hooked.started("sh", "-c", case.command.replace("PYTHON ", f"{python} "))
    assert done.stdout.split("\n")[-2] == case.expected, done.stderr
    assert done.stderr == ""
    assert hooked.states() == (["patched"] if case.expected == PATCHED else [])
    assert bool(run.prefixes()) == (case.expected == PATCHED or case.name == "zip")
    assert not list((hooked.site / "target").glob("__pycache__/worker.*")) or case.expected == LOST


def test_each_of_several_planned_files_is_imported_as_planned(hooked: Hooked) -> None:
    names = ("second", "third")
    for name in names:
        (hooked.site / f"target/{name}.py").write_bytes(BEFORE)
    changes = [
        Change(PurePosixPath(f"target/{name}.py"), BEFORE, AFTER.replace(b"planned", name.encode()), BEFORE)
        for name in names
    ]
    run = hooked.plan(*changes)
    code = "from target import worker, second, third; print(worker.VALUE, second.VALUE, third.VALUE)"
    assert hooked.started(sys.executable, "-c", code).stdout == "planned second third\n"
    assert [(one.number, one.state, one.path) for one in run.receipts()] == [
        (number, "patched", str(file)) for number, file in enumerate(run.files)
    ]


def test_bytecode_of_the_file_is_neither_used_nor_changed(hooked: Hooked) -> None:
    hooked.started(sys.executable, "-m", "compileall", "-q", "site", environ={})
    before = picture(hooked.site)
    assert hooked.started(sys.executable, "-c", SHOW).stdout == "planned\n"
    assert picture(hooked.site) == before
    assert hooked.started(sys.executable, "-c", SHOW, environ={"PYTHONPATH": str(hooked.site)}).stdout == "as it is\n"


@pytest.mark.parametrize("mode", ["timestamp", "checked-hash", "unchecked-hash"])
def test_what_is_compiled_in_a_run_is_what_lies_on_the_disk(mode: str, hooked: Hooked) -> None:
    hooked.started(sys.executable, "-m", "compileall", "-q", "--invalidation-mode", mode, "site")
    assert list((hooked.site / "target").glob("__pycache__/worker.*"))
    assert hooked.started(sys.executable, "-c", SHOW, environ={"PYTHONPATH": str(hooked.site)}).stdout == "as it is\n"


LINES = """
import inspect, linecache, pdb, threading, traceback, target.worker as w
assert "# >>> inserted" in inspect.getsource(w)
assert inspect.getsource(w.fail).endswith("raise RuntimeError(VALUE)\\n")
linecache.checkcache()
try: w.fail()
except RuntimeError: assert "raise RuntimeError(VALUE)" in traceback.format_exc()
thread = threading.Thread(target=w.fail, name="another")
thread.start(); thread.join()
pdb.Pdb(nosigint=True, readrc=False).runcall(w.fail)
"""


@pytest.mark.parametrize("version", thinned([*OLD, *NEW], ends([*OLD, *NEW])))
def test_the_lines_that_run_are_those_that_are_seen(version: str, hooked: Hooked) -> None:
    hooked.write("lines.py", LINES)
    done = hooked.started("sh", "-c", f"printf 'l\\nc\\n' | {interpreter(version)} lines.py", code=1)
    assert 'VALUE = "planned"' in done.stdout  # pdb's list
    assert done.stderr.count("    raise RuntimeError(VALUE)\n") == 2
    assert done.stderr.index("Exception in thread another:\n") < done.stderr.rindex("Traceback")


def test_a_file_that_is_not_as_planned_is_left_alone_and_that_is_said(hooked: Hooked) -> None:
    run = hooked.plan()
    hooked.module.write_bytes(BEFORE + b"# edited\n")
    done = hooked.started(sys.executable, "-c", SHOW)
    assert done.stdout == "as it is\n"
    assert (
        done.stderr == f"rlpatch run: {hooked.module} is imported unpatched: it has changed since the run was planned\n"
    )
    (receipt,) = run.receipts()
    assert receipt[1:] == (0, "changed", str(hooked.module))


def another(hooked: Hooked) -> Path:
    hooked.write("other/target/__init__.py", "")
    return hooked.write("other/target/worker.py", BEFORE.decode())


def test_another_copy_is_left_alone_and_that_is_said(hooked: Hooked) -> None:
    run = hooked.plan()
    other = another(hooked)
    done = hooked.started(sys.executable, "-c", SHOW, environ=hooked.environ(PYTHONPATH=str(hooked.folder / "other")))
    assert done.stdout == "as it is\n"
    assert f"rlpatch run: {other} is imported unpatched: the plan is for {hooked.module}\n" in done.stderr
    (receipt,) = run.receipts()
    assert receipt[1:] == (0, "elsewhere", str(other))


def test_a_module_of_the_same_name_is_nobodys_business(hooked: Hooked) -> None:
    run = hooked.plan()
    hooked.write("worker.py", "VALUE = 'mine'\n")
    done = hooked.started(sys.executable, "-c", "import worker; print(worker.VALUE)")
    assert (done.stdout, done.stderr, run.receipts()) == ("mine\n", "", ())


def test_a_package_within_another_one_is_no_copy(hooked: Hooked) -> None:
    """As verl/third_party/vllm, which is none of vLLM: a run that requires the patch goes on."""
    run = hooked.plan(require=True)
    hooked.write("others/__init__.py", "")
    hooked.write("others/target/__init__.py", "")
    hooked.write("others/target/worker.py", "VALUE = 'theirs'\n")
    done = hooked.started(sys.executable, "-c", "from others.target.worker import VALUE; print(VALUE)")
    assert (done.stdout, done.stderr, run.receipts()) == ("theirs\n", "", ())


@pytest.mark.parametrize("state", ["changed", "elsewhere"])
def test_a_run_that_requires_it_does_not_go_on_unpatched(state: str, hooked: Hooked) -> None:
    hooked.plan(require=True)
    if state == "changed":
        hooked.module.write_bytes(BEFORE + b"# edited\n")
    else:
        another(hooked)
    environ = hooked.environ(PYTHONPATH=str(hooked.folder / "other"))
    done = hooked.started(sys.executable, "-c", SHOW, environ=environ, code=1)
    assert "ImportError: rlpatch run: " in done.stderr
    assert hooked.states() == [state]


THEIRS = "import target.worker, sys; print('theirs', target.worker.VALUE, flush=True); mine = 1\n"


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (THEIRS, ""),
        (THEIRS + "raise ValueError('theirs fails')\n", "ValueError: theirs fails"),
        (THEIRS + "import none_of_that\n", "none_of_that"),
    ],
    ids=["runs", "raises", "lacks a module"],
)
def test_a_sitecustomize_behind_ours_runs_once(theirs: str, said: str, hooked: Hooked) -> None:
    hooked.write("theirs/sitecustomize.py", theirs)
    hooked.write("more/sitecustomize.py", "print('another')\n")
    environ = hooked.environ(PYTHONPATH=f"{hooked.folder}/theirs:{hooked.folder}/more")
    code = f"{SHOW}; import sitecustomize; print(sitecustomize.mine)" if not said else SHOW
    done = hooked.started(sys.executable, "-c", code, environ=environ)
    assert done.stdout.split("\n")[:2] == ["theirs planned", "planned"]
    assert done.stdout.split("\n")[2:] == (["1", ""] if not said else [""])
    without = hooked.started(
        sys.executable, "-c", SHOW, environ={**environ, "PYTHONPATH": environ["PYTHONPATH"].partition(":")[2]}
    )
    assert done.stderr == without.stderr
    assert said in done.stderr


IN_FRONT = """
import os, sys
here = os.path.dirname(__file__)
kept = sys.path[:]
sys.path = [entry for entry in sys.path if entry != here]
del sys.modules["sitecustomize"]
import sitecustomize
sys.path = kept
print("in front", flush=True)
"""


def test_a_sitecustomize_that_runs_others_may_stand_on_either_side(hooked: Hooked) -> None:
    """As ddtrace's does: it takes itself off the path and imports the next one."""
    hooked.write("front/sitecustomize.py", IN_FRONT)
    hooked.write("theirs/sitecustomize.py", "print('theirs', flush=True)\n")
    front, run, theirs = f"{hooked.folder}/front", str(hooked.plan().path), f"{hooked.folder}/theirs"
    for path in ((front, run, theirs), (run, front, theirs)):
        environ = {**hooked.environ(), "PYTHONPATH": ":".join((*path, str(hooked.site)))}
        done = hooked.started(sys.executable, "-c", SHOW, environ=environ)
        assert done.stdout == "theirs\nin front\nplanned\n", path
        assert done.stderr == ""


def test_a_sitecustomize_in_front_hides_the_hook_and_leaves_no_receipt(hooked: Hooked) -> None:
    run = hooked.plan()
    hooked.write("front/sitecustomize.py", "")
    environ = {**hooked.environ(), "PYTHONPATH": f"{hooked.folder}/front:{run.path}:{hooked.site}"}
    assert hooked.started(sys.executable, "-c", SHOW, environ=environ).stdout == "as it is\n"
    assert (run.receipts(), run.prefixes()) == ((), ())


def test_a_run_within_a_run_has_the_say(hooked: Hooked) -> None:
    """Both on the path, as when a command of the one is the other: the inner plan holds, and theirs runs once."""
    hooked.write("theirs/sitecustomize.py", "print('theirs', flush=True)\n")
    outer = hooked.environ(PYTHONPATH=f"{hooked.folder}/theirs")
    assert hooked.run
    (hooked.run.package / "0.after").write_bytes(AFTER.replace(b"planned", b"of the outer run"))
    first = hooked.run
    inner = hooked.plan()
    done = hooked.started(sys.executable, "-c", SHOW, environ=inner.environ(outer))
    assert done.stdout == "theirs\nplanned\n"
    assert (len(inner.receipts()), len(first.receipts())) == (1, 0)
    first.leave()


def test_a_process_that_imports_no_target_loads_no_other_module(hooked: Hooked) -> None:
    code = "import sys; print(*sys.modules)"
    environ = hooked.environ()
    hooked.write("empty/sitecustomize.py", "")
    with_hook = hooked.started(sys.executable, "-c", code, environ=environ)
    empty = hooked.started(sys.executable, "-c", code, environ={**environ, "PYTHONPATH": str(hooked.folder / "empty")})
    assert set(with_hook.stdout.split()) - set(empty.stdout.split()) == {startup.NAME}


def test_a_folder_that_is_gone_leaves_processes_as_they_are(hooked: Hooked) -> None:
    environ = hooked.environ()
    hooked.write("late.py", f"import shutil\nshutil.rmtree({str(hooked.run.path)!r})\n{SHOW}\n")  # type: ignore[union-attr]
    done = hooked.started(sys.executable, "late.py", environ=environ)
    assert (done.stdout, done.stderr) == ("as it is\n", "")
    done = hooked.started(sys.executable, "-c", SHOW, environ=environ)
    assert (done.stdout, done.stderr) == ("as it is\n", "")


def test_a_plan_that_cannot_be_read_breaks_no_process(hooked: Hooked) -> None:
    environ = hooked.environ()
    assert hooked.run
    (hooked.run.package / "plan").write_bytes(b"")
    done = hooked.started(sys.executable, "-c", SHOW, environ=environ)
    assert done.stdout == "as it is\n"
    assert done.stderr.startswith("rlpatch run: this process is not patched: ")


def test_what_runs_in_the_processes_is_python_3_8_and_imports_what_is_loaded() -> None:
    text = Path(startup.__file__).read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    heads = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert {alias.name for node in heads for alias in node.names} <= set(sys.modules)
    assert startup.TYPE_CHECKING is False
    assert Path(folder.__file__).with_name("startup.py") == Path(startup.__file__)


RAY_CONSTANTS = "RAY_RUNTIME_ENV_HOOK = 'RAY_RUNTIME_ENV_HOOK'\nOTHER = 1"
ASKED = """
import os, importlib, json
from ray._private import ray_constants
assert ray_constants.OTHER == 1
module, _, name = os.environ[ray_constants.RAY_RUNTIME_ENV_HOOK].rpartition(".")
print(json.dumps(getattr(importlib.import_module(module), name)(%s)))
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("None", {"py_modules": ["PACKAGE"]}),
        ("{'env_vars': {'A': '1'}}", {"env_vars": {"A": "1"}, "py_modules": ["PACKAGE"]}),
        ("{'py_modules': ['/x']}", {"py_modules": ["/x", "PACKAGE"]}),
        ("{'py_modules': ['PACKAGE']}", {"py_modules": ["PACKAGE"]}),
    ],
)
def test_ray_gets_the_package_among_the_modules_of_its_workers(
    given: str, expected: dict[str, object], hooked: Hooked
) -> None:
    import json

    run = hooked.plan()
    hooked.write("ray/_private/ray_constants.py", RAY_CONSTANTS)
    hooked.write("asks.py", ASKED % given.replace("PACKAGE", str(run.package)))
    assert not run.went_to_ray
    done = hooked.started(sys.executable, "asks.py")
    assert json.loads(done.stdout) == json.loads(json.dumps(expected).replace("PACKAGE", str(run.package)))
    assert run.went_to_ray


def test_a_hook_of_theirs_for_ray_is_asked_first(hooked: Hooked) -> None:
    hooked.write("ray/_private/ray_constants.py", RAY_CONSTANTS)
    hooked.write("mine.py", "def hook(env):\n    return {'pip': ['x'], **(env or {})}\n")
    hooked.write("asks.py", ASKED % "{'env_vars': {}}")
    environ = hooked.environ(RAY_RUNTIME_ENV_HOOK="mine.hook")
    done = hooked.started(sys.executable, "asks.py", environ=environ)
    assert done.stdout.startswith('{"pip": ["x"], "env_vars": {}, "py_modules": [')


def test_a_process_that_has_lost_the_hook_asks_nobody(hooked: Hooked) -> None:
    """It inherits the variables of one that has it; Ray must not look there for a module that is not."""
    hooked.write("ray/_private/ray_constants.py", RAY_CONSTANTS)
    child = "from ray._private import ray_constants as c; import os; print(c.RAY_RUNTIME_ENV_HOOK in os.environ)"
    words = f"[sys.executable, '-E', '-c', {child!r}]"
    hooked.write(
        "outer.py", f"import subprocess, sys\nfrom ray._private import ray_constants\nsubprocess.run({words})\n"
    )
    assert hooked.started(sys.executable, "outer.py").stdout == "False\n"


def test_an_older_ray_without_that_variable_is_left_alone(hooked: Hooked) -> None:
    hooked.write("ray/_private/ray_constants.py", "OTHER = 1\n")
    code = "import os; from ray._private import ray_constants; print([name for name in os.environ if 'HOOK' in name])"
    assert hooked.started(sys.executable, "-c", code).stdout == "[]\n"


def test_a_pipe_in_the_place_of_a_word_is_not_waited_for(hooked: Hooked) -> None:
    os.mkfifo(hooked.plan().path / "started")
    with at_most(30):
        assert hooked.started(sys.executable, "-c", "pass").stderr == ""


@pytest.mark.parametrize("name", ["linecache", "traceback", "threading"])
def test_a_file_of_the_users_that_is_called_like_a_module_of_python(hooked: Hooked, name: str) -> None:
    (hooked.folder / f"{name}.py").write_text("raise RuntimeError('mine')\n")
    done = hooked.started(sys.executable, "-c", f"import sys; sys.path.insert(0, ''); {SHOW}")
    assert (done.stdout, done.stderr) == ("planned\n", "")
