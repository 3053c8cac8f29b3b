"""Real Ray where machines cannot be apart, for want of root or name spaces: raylets beside each other on this machine.

Each has a home, a temporary folder and site-packages of its own. That shows who is asked, what is written where, and
that the next command ends on one side. It does not show what `test_lab` does: other addresses, host names and processes, the
same path with other files behind it, and a machine that goes with all that it runs.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import libcst
import pytest

from fixtures.cache import REPOSITORY
from fixtures.rays import lab
from fixtures.rays.cluster import NEWEST, Cluster, cluster, python
from tests.patcher.cli.conftest import WORKER, release
from tests.patcher.store.tree import age, picture

pytestmark = pytest.mark.engine

NODES = ("a", "b", "c")
APPLY = ("apply", "vllm-ascend", "--decode", "30:60")


class Beside(NamedTuple):
    """The raylets, and the folder with what each has."""

    cluster: Cluster
    folder: Path

    def environ(self, node: str) -> dict[str, str]:
        own = self.folder / node
        return {"HOME": str(own / "home"), "TMPDIR": str(own / "tmp"), "PYTHONPATH": str(own / "site")}

    def rlpatch(self, *words: str, code: int = 0, module: str = "patcher") -> subprocess.CompletedProcess[str]:
        """Run a command to its end, from outside of the nodes; ``module`` may stop on the way, and is killed there."""
        command = [
            str(self.cluster.python),
            "-m",
            *module.split(),
            *words,
            "--ray",
            self.cluster.address,
            "--nodes",
            "worker>0",
        ]
        paths = os.pathsep.join([str(REPOSITORY), str(Path(libcst.__file__).parents[1])])
        environ = {**self.cluster.environ, "PYTHONPATH": paths}
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, env=environ, cwd=self.folder, text=True, **streams)  # type: ignore[call-overload]
        if module != "patcher":
            said = ""
            for line in process.stderr:
                if line == "AT\n":
                    process.kill()
                    break
                said += line
        out, err = process.communicate(timeout=240)
        assert process.returncode == (code if module == "patcher" else -9), out + err
        return subprocess.CompletedProcess(command, code, out, err)

    def held(self) -> list[bool]:
        """Whether the file of each node is patched."""
        return [b"rlpatch vllm-ascend rollout" in (self.folder / node / "site" / WORKER).read_bytes() for node in NODES]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    folder = tmp_path_factory.mktemp("beside")
    with cluster(python(NEWEST), {}) as made:
        beside = Beside(made, folder)
        for node in NODES:
            for part in ("home", "tmp", "site"):
                (folder / node / part).mkdir(parents=True)
            age(release(folder / node / "site"))
            made.join("worker", **beside.environ(node))
        yield beside


@pytest.fixture
def nodes(running: Beside) -> Iterator[Beside]:
    """All as released, before and after; the head has no target."""
    before = [picture(running.folder / node / "site" / "vllm_ascend") for node in NODES]
    yield running
    running.rlpatch("recover")
    running.rlpatch("revert")
    assert [picture(running.folder / node / "site" / "vllm_ascend") for node in NODES] == before


def told(nodes: Beside) -> Mapping[str, int]:
    states = [entry["state"] for entry in json.loads(nodes.rlpatch("status", "--json").stdout)["result"]["nodes"]]
    return {state: states.count(state) for state in states}


def test_apply_status_a_second_stage_and_revert(nodes: Beside) -> None:
    assert "on 3 nodes" in nodes.rlpatch(*APPLY).stdout
    assert nodes.held() == [True] * 3
    nodes.rlpatch("apply", "vllm-ascend", "--stage", "graph-capture")
    assert told(nodes)["patched"] == 3
    nodes.rlpatch("revert", "vllm-ascend", "--stage", "graph-capture")
    assert nodes.held() == [True] * 3


@pytest.mark.crash
@pytest.mark.parametrize("method", ["mark", "commit", "running"])
def test_killed_before_a_call_the_next_command_ends_on_one_side(
    nodes: Beside, method: str, request: pytest.FixtureRequest
) -> None:
    if not lab.obstacle() and not request.config.getoption("--thorough"):
        pytest.skip("machines can be apart here, and test_lab shows more: --thorough")
    nodes.rlpatch(*APPLY, module=f"fixtures.rays.paused {method}")
    assert nodes.held() == [method == "running"] * 3
    nodes.rlpatch(*APPLY)
    assert nodes.held() == [True] * 3
