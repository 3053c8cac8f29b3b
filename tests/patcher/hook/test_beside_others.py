"""Real tools that hook the start of a process or the import of a module, on either side of ours."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from fixtures import environments
from fixtures.environments import Recipe
from tests.patcher.hook.conftest import BEFORE, Hooked

pytestmark = pytest.mark.engine

TOOLS = Recipe(
    "import-hooks",
    (
        (
            *("ddtrace==4.16.0", "coverage==7.17.3", "debugpy==1.8.22", "typeguard==4.6.0", "jaxtyping==0.3.11"),
            *("beartype==0.23.1", "opentelemetry-distro>=0.50b0", "pytest==9.2.0", "setuptools>=70.1"),
        ),
    ),
)
SHOW = "from target.worker import VALUE; print(VALUE, flush=True)"
CHILD = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]], check=True)\n"
HOOKS = {
    "typeguard": "from typeguard import install_import_hook\ninstall_import_hook('target')\n",
    "jaxtyping": "from jaxtyping import install_import_hook\ninstall_import_hook('target', 'beartype.beartype')\n",
    "beartype": "from beartype.claw import beartype_package\nbeartype_package('target')\n",
}
TEST = f"def test_it():\n    import target.worker as w\n    {SHOW}\n    assert w.fail.__code__.co_filename.endswith('worker.py')\n"


class Case(NamedTuple):
    """Words of a shell, and what they print; PYTHON and what stands in BIN are those of the environment."""

    words: str
    expected: str = "planned"


INSIDE = {
    "ddtrace-run": Case("BIN/ddtrace-run PYTHON show.py"),
    "ddtrace-run, a child": Case(f'BIN/ddtrace-run PYTHON child.py "{SHOW}"'),
    "coverage": Case("BIN/coverage run --source=site show.py"),
    "coverage in children": Case("COVERAGE_PROCESS_START=coveragerc PYTHON show.py"),
    "debugpy": Case("PYTHON -m debugpy --listen 127.0.0.1:0 show.py"),
    "pytest": Case("PYTHON -m pytest -q -s -p no:cacheprovider test_it.py"),
    "pytest that rewrites the target": Case(
        "PYTHON -m pytest -q -s -p no:cacheprovider -p rewrites test_it.py", "as it is"
    ),
    "opentelemetry-instrument": Case("BIN/opentelemetry-instrument PYTHON show.py", "as it is"),
    **{name: Case(f"PYTHON {name}_show.py") for name in HOOKS},
}
IN_FRONT = {
    "ddtrace-run": "BIN/ddtrace-run PYTHON front.py PYTHON show.py",
    "coverage": "BIN/coverage run front.py PYTHON show.py",
    "opentelemetry-instrument": "BIN/opentelemetry-instrument PYTHON front.py PYTHON show.py",
}


@pytest.fixture(scope="module")
def python() -> Path:
    return environments.environment(TOOLS)


@pytest.fixture
def filled(hooked: Hooked) -> Hooked:
    hooked.write("show.py", f"{SHOW}\n")
    hooked.write("child.py", CHILD)
    hooked.write("coveragerc", "[run]\nsource = site\n")
    hooked.write("test_it.py", TEST)
    hooked.write("rewrites.py", "import pytest\npytest.register_assert_rewrite('target')\n")
    for name, text in HOOKS.items():
        hooked.write(f"{name}_show.py", f"{text}{SHOW}\n")
    return hooked


def shell(words: str, python: Path) -> str:
    return words.replace("PYTHON", str(python)).replace("BIN", str(python.parent))


QUIET = {"DD_TRACE_ENABLED": "false", "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}


@pytest.mark.parametrize("name", INSIDE)
def test_the_hook_works_with_a_tool_started_within_the_run(name: str, filled: Hooked, python: Path) -> None:
    words, expected = INSIDE[name]
    run = filled.plan()
    given = filled.environ(PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=str(filled.folder), **QUIET)
    done = filled.started("sh", "-c", shell(words, python), environ=given)
    assert expected in done.stdout.splitlines(), done.stdout + done.stderr
    assert bool(run.receipts()) == (expected == "planned")
    if name == "coverage":
        report = filled.started(python.with_name("coverage"), "report", "-m", environ=given).stdout
        assert "worker.py" in report


@pytest.mark.parametrize("name", IN_FRONT)
def test_the_hook_works_with_a_tool_that_starts_the_run(name: str, filled: Hooked, python: Path) -> None:
    """What it has put into the environment stays behind ours, and its own hook runs as it did."""
    run = filled.plan()
    filled.write(
        "front.py",
        "import os, subprocess, sys\nbefore = os.environ.get('PYTHONPATH', '')\n"
        f"path = {str(run.path)!r} + os.pathsep + before\n"
        "changed = {} if 'ALONE' in os.environ else {'PYTHONPATH': path}\n"
        "sys.exit(subprocess.run(sys.argv[1:], env={**os.environ, **changed}).returncode)\n",
    )
    hook = "import sys; print('ddtrace' in sys.modules, any('opentelemetry' in name for name in sys.modules))\n"
    filled.write("show.py", f"{SHOW}\n{hook}")
    given = {name: text for name, text in filled.environ(**QUIET).items() if name != "RLPATCH_RUN"}
    given["PYTHONPATH"] = str(filled.site)
    words = shell(IN_FRONT[name], python)
    ours = filled.started("sh", "-c", words, environ=given).stdout.splitlines()
    alone = filled.started("sh", "-c", words, environ={**given, "ALONE": "1"}).stdout
    assert "planned" in ours
    assert ours[-1] == alone.splitlines()[-1]
    assert ours[-1].startswith("True") == (name == "ddtrace-run")
    assert run.receipts()


def test_an_editable_install_of_setuptools(filled: Hooked, python: Path) -> None:
    project = filled.folder / "project"
    filled.write(
        "project/pyproject.toml",
        '[build-system]\nrequires = ["setuptools"]\n[project]\nname = "target"\nversion = "1"\n',
    )
    (project / "src").mkdir()
    filled.module.parent.rename(project / "src" / "target")
    filled.site, filled.module = project / "src", project / "src" / "target" / "worker.py"
    installed = filled.folder / "installed"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--target", installed, "-e", project,
         "--config-settings", "editable_mode=strict"],
        check=True,
    )  # fmt: skip
    filled.plan()
    given = filled.environ(PYTHONPATH="")
    given["PYTHONPATH"] = str(filled.run.path)  # type: ignore[union-attr]
    code = f"import site; site.addsitedir({str(installed)!r}); {SHOW}"
    assert filled.started(python, "-c", code, environ=given).stdout == "planned\n"
    assert filled.module.read_bytes() == BEFORE
