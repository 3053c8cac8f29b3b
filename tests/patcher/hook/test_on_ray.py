"""Real Ray, the oldest and the newest that verl is used with: every worker of a run has the planned bytes.

The clusters are started outside of the run, so that workers get the hook from Ray's own store and not by inheritance.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.cache import REPOSITORY
from fixtures.rays import cluster as rays
from tests.patcher.hook.conftest import Hooked
from tests.patcher.store.tree import picture

pytestmark = pytest.mark.engine

DRIVE = REPOSITORY / "fixtures" / "rays" / "drive.py"
VERSIONS = (rays.OLDEST, rays.NEWEST)
Found = dict[str, tuple[str, int, list[str]]]


@pytest.fixture(scope="module", params=VERSIONS)
def cluster(request: pytest.FixtureRequest) -> Iterator[rays.Cluster]:
    if request.param == rays.OLDEST and not request.config.getoption("--thorough"):
        pytest.skip("--thorough: the cluster that a run starts itself shows that the oldest Ray is reached, too")
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with rays.cluster(rays.python(request.param), clean) as made:
        yield made


@pytest.fixture
def shared(hooked: Hooked, monkeypatch: pytest.MonkeyPatch) -> Hooked:
    for name in ("working", "modules/mine"):
        hooked.write(f"{name}/__init__.py", "")
    return hooked


def environ(hooked: Hooked, **more: str) -> dict[str, str]:
    """That of a driver; the target is found by what the driver and its workers do, not by PYTHONPATH."""
    given = hooked.environ(SITE=str(hooked.site), SCRATCH=str(hooked.folder), **rays.variables(), **more)
    return {**given, "PYTHONPATH": given["PYTHONPATH"].removesuffix(f":{hooked.site}")}


def found(text: str) -> Found:
    match = re.search(r"FOUND (\{.*\})", text)
    assert match, text
    values: Found = json.loads(match[1])
    return values


def all_are(values: Found, expected: str) -> bool:
    return {who: value for who, (value, *_) in values.items()} == dict.fromkeys(values, expected)


def processes(values: Found) -> set[int]:
    return {pid for _, pid, _ in values.values()}


@pytest.mark.parametrize("case", ["plain", "env_vars", "working_dir", "py_modules"])
def test_every_process_of_a_job_on_a_cluster_that_runs_already(
    case: str, cluster: rays.Cluster, shared: Hooked
) -> None:
    run = shared.plan()
    before = picture(shared.site)
    done = shared.started(cluster.python, "-B", DRIVE, case, cluster.address, environ=environ(shared))
    values = found(done.stdout)
    assert all_are(values, "planned")
    assert len(values) == 7
    for who, (_, _, packages) in values.items():
        if "child" not in who:
            stored = [package for package in packages if "/py_modules_files/_ray_pkg_" in package]
            assert bool(stored) == (who != "driver"), who
    assert run.went_to_ray
    assert {receipt.pid for receipt in run.receipts()} == processes(values)
    assert not list((shared.site / "target").glob("__pycache__/worker.*"))
    assert picture(shared.module) == {".": before[str(shared.module.relative_to(shared.site))]}


def test_a_node_that_joins_later(cluster: rays.Cluster, shared: Hooked) -> None:
    shared.plan()
    late = shared.folder / "late"

    def join() -> None:
        _wait(late)
        cluster.join("late")

    joining = threading.Thread(target=join)
    joining.start()
    given = environ(shared, LATE=str(late))
    done = shared.started(cluster.python, "-B", DRIVE, "plain", cluster.address, environ=given)
    joining.join()
    values = found(done.stdout)
    assert len(values) == 9
    assert all_are(values, "planned")


def _wait(path: Path) -> None:
    limit = time.monotonic() + 60
    while not path.exists() and time.monotonic() < limit:
        time.sleep(0.1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cluster_that_the_run_starts_itself(version: str, shared: Hooked) -> None:
    run = shared.plan()
    with tempfile.TemporaryDirectory(prefix="ray_", dir="/tmp", ignore_cleanup_errors=True) as folder:
        given = environ(shared, RAY_TMPDIR=folder)
        done = shared.started(rays.python(version), "-B", DRIVE, "plain", environ=given)
        values = found(done.stdout)
        assert all_are(values, "planned")
        assert {receipt.pid for receipt in run.receipts()} == processes(values)
        # An agent whose raylet has ended tells so to the cluster's store, which has ended, too: it tries for 60 s.
        still, shared.run = run.leave(patience=120), None
        assert still == ()


@pytest.mark.parametrize("given", [True, False], ids=["with the option", "without"])
def test_a_submitted_job_needs_the_option_that_is_printed(given: bool, cluster: rays.Cluster, shared: Hooked) -> None:
    run = shared.plan()
    option = '${RLPATCH_RUN:+--runtime-env-json "{\\"py_modules\\": [\\"$RLPATCH_RUN\\"]}"}' if given else ""
    ray = cluster.python.with_name("ray")
    said = shared.folder / "said"
    script = f"exec {ray} job submit --address {cluster.url} {option} -- env SITE=$SITE SCRATCH=$SCRATCH SAID={said}"
    script += f" {cluster.python} -B {DRIVE} plain {cluster.address}"
    shared.started("sh", "-c", script, environ=environ(shared))
    values = found(said.read_text())
    assert all_are(values, "planned" if given else "as it is")
    assert {receipt.pid for receipt in run.receipts()} == (processes(values) if given else set())


def test_a_driver_that_has_lost_the_hook_still_gets_its_cluster(cluster: rays.Cluster, shared: Hooked) -> None:
    """A process with the hook imports Ray, and starts one without that does, too."""
    run = shared.plan()
    outer = "import os, ray, subprocess, sys\nsubprocess.run(sys.argv[1:], env={**os.environ, 'PYTHONPATH': ''}, check=True)\n"
    shared.write("outer.py", outer)
    driver = (cluster.python, "-B", DRIVE, "plain", cluster.address)
    done = shared.started(cluster.python, "-B", "outer.py", *driver, environ=environ(shared))
    assert all_are(found(done.stdout), "as it is")
    assert run.receipts() == ()
