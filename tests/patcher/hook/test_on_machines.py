"""``rlpatch run`` on machines that are name spaces of this kernel (`fixtures.rays.lab`), with the oldest and newest Ray.

What the run lays out is on a disk that only the first machine sees: the others have the planned bytes by Ray alone.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.cache import REPOSITORY
from fixtures.rays import cluster, lab
from tests.patcher.cli.conftest import SOURCE, WORKER, release
from tests.patcher.store.tree import age, picture

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(bool(lab.obstacle()), reason=f"machines apart: {lab.obstacle()}"),
]


def importable(folder: Path) -> None:
    """The release with a base class that is there, and packages that may be imported."""
    release(folder, source=SOURCE.replace("class NPUWorker(", "class WorkerBase:\n    pass\n\n\nclass NPUWorker("))
    for package in ("vllm_ascend", "vllm_ascend/worker"):
        (folder / package / "__init__.py").write_text("")
    age(folder)


@pytest.fixture(scope="module", params=(cluster.OLDEST, cluster.NEWEST))
def machines(request: pytest.FixtureRequest) -> Iterator[lab.Lab]:
    if request.param == cluster.OLDEST and not request.config.getoption("--thorough"):
        pytest.skip("what the newest Ray shows, too: --thorough")
    with lab.lab(cluster.python(request.param), importable, 3, ("n1", "n2")) as made:
        yield made


def test_every_machine_has_the_planned_bytes_also_one_that_joins_later(machines: lab.Lab) -> None:
    own = machines.machines["n1"].folder / "apart"
    machines.shell("n1", f"mkdir -p {own} && mount -t tmpfs apart {own}")
    files = [machine.folder / "upper" / WORKER for machine in machines.machines.values()]
    before = [picture(file) for file in files]
    late = machines.folder / "late"
    module = WORKER.removesuffix(".py").replace("/", ".")
    command = (machines.python, REPOSITORY / "fixtures/rays/everywhere.py", module, late)
    words = ("run", "vllm-ascend", "--decode", "30:60", "--", *command)
    run = machines.run("n1", *words, environ={"TMPDIR": str(own)})
    _wait(run, late)
    machines.start("n3")
    done = lab.ended(run)

    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    found = [one for node in json.loads(line.removeprefix("FOUND ")) for one in node]
    assert sorted(one["host"] for one in found) == ["n1", "n1", "n2", "n2", "n3", "n3"]
    for one in found:
        assert (one["patched"], one["on_disk"], one["bytecode"]) == (True, False, False), one
        assert any("/py_modules_files/_ray_pkg_" in package for package in one["packages"]), one
    assert "vllm-ascend was patched in 2 processes" in done.stderr  # those of this machine
    assert [picture(file) for file in files] == before
    assert not [file for file in files if list(file.parent.glob("__pycache__/worker_v1.*"))]
    assert machines.shell("n1", f"ls {own}") == ""


def _wait(run: subprocess.Popen[str], path: Path) -> None:
    limit = time.monotonic() + 120
    while not path.exists() and run.poll() is None and time.monotonic() < limit:
        time.sleep(0.1)
