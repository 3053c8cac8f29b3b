"""Real Ray, the oldest and the newest, on machines that are name spaces of this kernel (`fixtures.rays.lab`).

The nodes have Ray's environment and a release that was never published; neither rlpatch nor LibCST is there.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import time
from collections.abc import Iterator

import pytest

from fixtures.rays import cluster, lab
from tests.patcher.cli.conftest import SOURCE, WORKER, release
from tests.patcher.store.tree import age, picture

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(bool(lab.obstacle()), reason=f"machines apart: {lab.obstacle()}; test_beside shows less"),
]

APPLY = ("apply", "vllm-ascend", "--decode", "30:60", "--ray")
NAMES = ("n1", "n2", "n3")


@pytest.fixture(scope="module", params=(cluster.OLDEST, cluster.NEWEST))
def running(request: pytest.FixtureRequest) -> Iterator[lab.Lab]:
    if request.param == cluster.OLDEST and not request.config.getoption("--thorough"):
        pytest.skip("some minutes, for what the newest Ray shows, too: --thorough")
    with lab.lab(cluster.python(request.param), lambda folder: age(release(folder)), 4, NAMES) as made:
        yield made


@pytest.fixture
def machines(running: lab.Lab) -> Iterator[lab.Lab]:
    """All three there and as released, before and after."""
    yield running
    for name in NAMES:
        if running.machines[name].process is None:
            running.start(name)
    running.rlpatch("n1", "recover", "--ray")
    running.rlpatch("n1", "revert", "--ray")
    assert held(running) == {SOURCE.encode()}


def held(machines: lab.Lab) -> set[bytes]:
    """What the file holds on the machines; it lies in the upper layer, since it is no part of the image."""
    folders = [machine.folder for machine in machines.machines.values() if machine.process is not None]
    return {(folder / "upper" / WORKER).read_bytes() for folder in folders}


def patched(machines: lab.Lab) -> bool:
    (content,) = held(machines)
    return b"rlpatch vllm-ascend rollout" in content


def states(machines: lab.Lab) -> list[str]:
    found = json.loads(machines.rlpatch("n1", "status", "--ray", "--json").stdout)
    return [entry["state"] for entry in found["result"]["nodes"]]


def test_apply_status_a_second_stage_and_revert(machines: lab.Lab) -> None:
    assert (
        machines.shell("n2", f"{machines.python} -c 'import importlib.util as u; print(u.find_spec(\"libcst\"))'")
        == "None\n"
    )
    folders = [machines.machines[name].folder / "upper" / "vllm_ascend" for name in NAMES]
    before = [picture(folder) for folder in folders]
    assert "on 3 nodes (n1, n2, n3):" in machines.rlpatch("n1", *APPLY).stdout
    assert states(machines) == ["patched"] * 3
    assert machines.rlpatch("n2", "diff", "--ray").stdout.count("diff --git") == 1
    machines.rlpatch("n3", "apply", "vllm-ascend", "--stage", "graph-capture", "--ray")
    assert patched(machines)
    machines.rlpatch("n2", "check", "--ray")
    machines.rlpatch("n1", "revert", "--ray")
    assert [picture(folder) for folder in folders] == before


@pytest.mark.crash
@pytest.mark.parametrize("method", ["mark", "commit", "running"])
def test_the_driver_is_killed_before_a_call(machines: lab.Lab, method: str) -> None:
    driver = machines.paused("n2", method, *APPLY)
    machines.shell("n2", "pkill -9 -f fixtures.rays.paused")  # within its own process space
    driver.communicate(timeout=300)
    assert driver.returncode in (-signal.SIGKILL, 137)
    assert patched(machines) is (method == "running")
    machines.rlpatch("n1", *APPLY)
    assert states(machines) == ["patched"] * 3


@pytest.mark.crash
def test_a_machine_is_lost_before_the_change(machines: lab.Lab) -> None:
    driver = machines.paused("n1", "mark", *APPLY)
    machines.machines["n2"].kill()
    said = lab.ended(driver, 5)
    assert "n2" in said.stderr
    assert "raylet" not in said.stderr
    machines.start("n2")
    assert states(machines) == ["as released"] * 3


@pytest.mark.crash
def test_a_machine_is_lost_in_the_change(machines: lab.Lab) -> None:
    """It was not changed, but who is left cannot know that: it is named, and all others are as before."""
    driver = machines.paused("n1", "commit", *APPLY)
    machines.machines["n3"].kill()
    said = lab.ended(driver, 7)
    assert "changed files might remain on n3" in said.stderr
    machines.start("n3")
    assert states(machines) == ["as released"] * 3
    machines.rlpatch("n1", *APPLY)
    assert patched(machines)


@pytest.mark.crash
def test_two_at_once_end_on_one_side(machines: lab.Lab) -> None:
    one = machines.run("n1", *APPLY)
    two = machines.run("n2", "apply", "vllm-ascend", "--decode", "5:9", "--ray")
    codes = [lab.ended(driver, None).returncode for driver in (one, two)]
    assert set(codes) <= {0, 4, 5, 6}
    assert len(held(machines)) == 1
    assert states(machines) == ["patched" if 0 in codes else "as released"] * 3


def test_one_tree_on_two_machines_is_patched_once(machines: lab.Lab) -> None:
    said = machines.rlpatch("n1", *APPLY, "--path", machines.common)
    assert "files were changed on 3 nodes, in 2 different folders" in said.stdout
    assert len({(tree / WORKER).read_bytes() for name, tree in machines.trees.items() if name in NAMES}) == 1
    machines.rlpatch("n3", "revert", "--ray", "--path", machines.common)
    assert {(tree / WORKER).read_bytes() for tree in machines.trees.values()} == {SOURCE.encode()}


def test_another_release_and_a_read_only_machine_stop_all(machines: lab.Lab) -> None:
    metadata = f"{machines.site}/vllm_ascend-0.11.0rc1.dist-info/METADATA"
    machines.shell("n2", f"sed -i 's/Version: 0.11.0rc1/Version: 0.12.0rc1/' {metadata}")
    assert "n2" in machines.rlpatch("n1", *APPLY, code=3).stderr
    machines.shell("n2", f"sed -i 's/Version: 0.12.0rc1/Version: 0.11.0rc1/' {metadata}")
    machines.shell("n3", f"mount -o remount,ro {machines.site}")
    assert "n3" in machines.rlpatch("n1", *APPLY, code=5).stderr
    machines.shell("n3", f"mount -o remount,rw {machines.site}")
    assert not patched(machines)
    left = machines.rlpatch("n1", *APPLY, "--nodes", "n1,n3")
    assert "--nodes excludes 1 of 3 nodes: n2" in left.stderr


def test_a_machine_that_joins_late(machines: lab.Lab) -> None:
    machines.rlpatch("n1", *APPLY)
    machines.start("n4")
    try:
        assert states(machines) == ["patched"] * 3 + ["as released"]
        machines.rlpatch("n1", *APPLY)
        assert states(machines) == ["patched"] * 4
        machines.rlpatch("n1", "revert", "--ray")
    finally:
        machines.machines["n4"].kill()


def test_a_machine_that_is_back_before_ray_misses_it(machines: lab.Lab) -> None:
    machines.rlpatch("n1", *APPLY)
    machines.machines["n3"].kill()
    machines.start("n3")
    assert states(machines) == ["patched"] * 3
    machines.rlpatch("n1", "revert", "--ray")


def test_what_does_not_fit_the_cluster_is_told(machines: lab.Lab) -> None:
    assert "ray://" in machines.rlpatch("n1", "status", "--ray", "ray://n1:10001", code=2).stderr
    if cluster.OLDEST in str(machines.python):  # the other way round Ray tries for two minutes and says nothing
        said = machines.rlpatch("n1", "status", "--ray", python=cluster.python(cluster.NEWEST), code=5)
        assert cluster.NEWEST in said.stderr
        assert "Traceback" not in said.stderr


def test_nothing_is_left_on_the_machines(machines: lab.Lab) -> None:
    machines.rlpatch("n1", *APPLY)
    machines.rlpatch("n1", "revert", "--ray")
    for name in NAMES:
        folder = machines.machines[name].folder
        assert not [path for part in ("upper", "home") for path in (folder / part).rglob("*rlpatch*")]


# --- at random, in large ---

KILLS = 10
"""In one case; all cases together are two hundred."""
CASES = [(size, seed) for size, seeds in ((8, 18), (32, 2)) for seed in range(seeds)]


@pytest.fixture(scope="module")
def many(request: pytest.FixtureRequest) -> Iterator[lab.Lab]:
    if not request.config.getoption("--thorough"):
        pytest.skip("two hundred kills take more than an hour: --thorough")
    with lab.lab(cluster.python(cluster.NEWEST), lambda folder: age(release(folder)), request.param) as made:
        yield made


@pytest.mark.crash
@pytest.mark.parametrize(("many", "seed"), CASES, indirect=["many"])
def test_after_kills_at_random_the_same_command_makes_all_alike(many: lab.Lab, seed: int) -> None:
    """Whoever dies at whatever moment: the driver, a machine, or Ray on it. The head stays, without it is no cluster."""
    dice = random.Random(seed)
    names = [*many.machines]
    commands = itertools.cycle([APPLY, ("revert", "--ray")])
    for _, command in zip(range(KILLS), commands, strict=False):
        victim, place = dice.choice(["driver", "machine", "raylet"]), dice.choice(names[1:])
        driver = many.run("n1", *command)
        time.sleep(dice.uniform(0.5, 6 + len(names) / 4))  # a command takes 5 s on 8 machines
        if victim == "driver":
            driver.kill()
            many.shell("n1", "pkill -9 -f '[p]atcher (apply|revert)' || true")
        elif victim == "machine":
            many.machines[place].kill()
        else:
            many.shell(place, "pkill -9 raylet")
            lost = many.machines[place].process
            assert lost is not None
            lost.wait(60)  # Ray ends what it has started there, and the machine with it
            many.machines[place].kill()
        said = lab.ended(driver, None)
        assert "Traceback" not in said.stderr, said.stderr
        for name in names:
            if many.machines[name].process is None:
                many.start(name)
        unnamed = said.returncode in (0, 4, 5, 6)
        assert len(held(many)) == 1 or not unnamed, (victim, place, command, said)
        many.rlpatch("n1", *command)
        assert len(held(many)) == 1, (victim, place, command)
    many.rlpatch("n1", "revert", "--ray")
    assert held(many) == {SOURCE.encode()}
