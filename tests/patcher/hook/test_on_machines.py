"""``rlpatch run`` on machines that are name spaces of this kernel (`fixtures.rays.lab`), with the oldest and newest Ray.

What the run lays out is on a disk that only the first machine sees: the others have the planned bytes by Ray alone.
"""

from __future__ import annotations

import json
import threading
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
    pytest.mark.skipif(bool(lab.possible()), reason=f"machines apart: {lab.possible()}"),
]


def importable(folder: Path) -> None:
    """The release with a base class that is there, and packages that may be imported."""
    release(folder, source=SOURCE.replace("class NPUWorker(", "class WorkerBase:\n    pass\n\n\nclass NPUWorker("))
    for package in ("vllm_ascend", "vllm_ascend/worker"):
        (folder / package / "__init__.py").write_text("")
    age(folder)


@pytest.fixture(scope="module", params=(cluster.OLDEST, cluster.NEWEST))
def machines(request: pytest.FixtureRequest) -> Iterator[lab.Lab]:
    with lab.lab(cluster.python(request.param), importable, 3, ("n1", "n2")) as made:
        yield made


def test_every_machine_has_the_planned_bytes_also_one_that_joins_later(machines: lab.Lab) -> None:
    own = machines.machines["n1"].folder / "apart"
    machines.shell("n1", f"mkdir -p {own} && mount -t tmpfs apart {own}")
    folders = [machine.folder / "upper" / "vllm_ascend" for machine in machines.machines.values()]
    before = [picture(folder) for folder in folders]
    late = machines.folder / "late"
    joining = threading.Thread(target=lambda: (_wait(late), machines.start("n3")))
    joining.start()
    module = WORKER.removesuffix(".py").replace("/", ".")
    command = (machines.python, REPOSITORY / "fixtures/rays/everywhere.py", module, late)
    words = ("run", "vllm-ascend", "--decode", "30:60", "--", *command)
    done = machines.rlpatch("n1", *words, environ={"TMPDIR": str(own)})
    joining.join()

    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    found = [one for node in json.loads(line.removeprefix("FOUND ")) for one in node]
    assert sorted(one["host"] for one in found) == ["n1", "n1", "n2", "n2", "n3", "n3"]
    for one in found:
        assert (one["patched"], one["on_disk"], one["bytecode"]) == (True, False, False), one
        assert any("/py_modules_files/_ray_pkg_" in package for package in one["packages"]), one
    assert "vllm-ascend was patched in 2 processes" in done.stderr  # those of this machine
    assert [picture(folder) for folder in folders] == before
    assert machines.shell("n1", f"ls {own}") == ""


def _wait(path: Path) -> None:
    limit = time.monotonic() + 120
    while not path.exists() and time.monotonic() < limit:
        time.sleep(0.1)
