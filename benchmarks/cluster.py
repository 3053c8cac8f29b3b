"""The cost of `--ray` above Ray itself: over a no-op on every node, and rounds against rounds of no-ops.

    python benchmarks/cluster.py [NODES...]

For each number of nodes (default 1, 8 and 32) it starts Ray's nodes on this machine, with one folder of packages
for all. It prints how long `ray.init` takes, an actor with a no-op on every node (the floor, twice),
the same with rlpatch's survey, a round of calls against a round of no-ops by actors that are there, and a change
of all nodes. All nodes share the cores of this machine, so the floor is what it needs to start the processes, which
differs from turn to turn: each of some turns is held against its own floor, and the median counts. The nodes look into
a folder (`--path`); where they do not, each starts a Python once, to ask it. Needs the extra `ray`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ratios import tell
from patcher.changes.change import Change, Edit, PatchId, Record
from patcher.cluster.changing import change
from patcher.cluster.node_group import NodeEdit, all_of
from patcher.cluster.rays import RayNode, RayNodeGroup, connect
from patcher.commands.finding import SearchOptions

ROUNDS = 5
TURNS = 5
REST_S = 2.0
"""Until the processes have gone that were started before."""
STAT = "/proc/self/stat"
WORKER = "vllm_ascend/worker/worker_v1.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", nargs="*", type=int, default=[1, 8, 32])
    for count in parser.parse_args().nodes:
        measure(count)


def measure(count: int) -> None:
    """Start a Ray cluster of ``count`` nodes on this machine, and print what rlpatch's commands cost there."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(count - 1):
            cluster.add_node(num_cpus=1)
        with tempfile.TemporaryDirectory(prefix="rlpatch-benchmark-") as folder:
            report(count, cluster.address, install(Path(folder)))
    finally:
        ray.shutdown()
        cluster.shutdown()


def report(count: int, address: str, site: Path) -> None:
    """Print the seconds of a survey and of a change on all nodes, compared with calls that do nothing."""
    began = time.perf_counter()
    ray, nodes = connect(address)
    connected = time.perf_counter() - began
    noops(ray, nodes)  # takes the processes that Ray has started already, which nobody waits for
    turns = [turn(ray, nodes, site) for _ in range(TURNS)]
    floor, noop, noop_cpu, survey_seconds = map(statistics.median, zip(*turns, strict=True))
    over = statistics.median(times[3] - times[0] for times in turns)
    group = surveyed(ray, nodes, site)
    stats: list[Any] = [answer.value for answer in group.call("contents", all_of(group.names, [STAT])).values()]
    cpu = statistics.mean(cpu_seconds(stat[STAT]) for stat in stats)
    ping = seconds_of(lambda: group.call("verify", all_of(group.names, {})))
    started = time.perf_counter()
    # The nodes of this benchmark see one folder, so one of them does the work, and the others verify it.
    change(group, {name: [NodeEdit(edit(site), ())] for name in group.names}, "rlpatch status --ray")
    changed = time.perf_counter() - started
    group.close()
    print(
        f"{count} nodes: ray.init {connected:.1f} s; an actor and a no-op on each {floor:.1f} s,"
        f" with rlpatch's survey {survey_seconds:.1f} s ({over:+.1f}); a round of no-ops {noop * 1000:.0f} ms,"
        f" of rlpatch {ping * 1000:.0f} ms; a change of all {changed * 1000:.0f} ms",
        flush=True,
    )
    print(f"  CPU of a node's actor: with a no-op {noop_cpu:.3f} s, with rlpatch's survey {cpu - noop_cpu:+.3f} s")
    tell(f"{count} nodes: a round of ours / of no-ops", ping / noop, 3)


def turn(ray: Any, nodes: Sequence[RayNode], site: Path) -> tuple[float, float, float, float]:
    """Measure rlpatch's survey of the nodes between two measurements with `noops`.

    Return (seconds until new actors answer, of a round of no-ops, of an actor's CPU, of the survey); the first three
    are the mean of both measurements.
    """
    before = noops(ray, nodes)
    time.sleep(REST_S)
    started = time.perf_counter()
    group = surveyed(ray, nodes, site)
    survey_seconds = time.perf_counter() - started
    for name in group.names:
        ray.kill(group._actor(name))
    floor, noop, cpu = map(statistics.mean, zip(before, noops(ray, nodes), strict=True))
    return floor, noop, cpu, survey_seconds


def surveyed(ray: Any, nodes: Sequence[RayNode], site: Path) -> RayNodeGroup:
    """Return rlpatch's actors once each of them has answered."""
    group = RayNodeGroup(ray, nodes, SearchOptions(path=(site,)), ("--ray",))
    group.call("survey", all_of(group.names, ["vllm-ascend"], "apply", {}))
    return group


def seconds_of(work: Callable[[], object]) -> float:
    """Return the median seconds of a few calls of ``work``, after one to warm up."""
    work()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def noops(ray: Any, nodes: Sequence[RayNode]) -> tuple[float, float, float]:
    """Return seconds until new actors on all nodes answer, of another round of answers, and of an actor's CPU."""
    time.sleep(REST_S)
    started = time.perf_counter()
    actors = [_noop(ray, node.identity) for node in nodes]
    ray.get([actor.noop.remote() for actor in actors])
    passed = time.perf_counter() - started
    cpu = statistics.mean(map(cpu_seconds, ray.get([actor.stat.remote() for actor in actors])))
    answered = seconds_of(lambda: ray.get([actor.noop.remote() for actor in actors]))
    for actor in actors:
        ray.kill(actor)
    return passed, answered, cpu


def cpu_seconds(stat: bytes) -> float:
    """Return the CPU seconds of a process and of the children that it waited for, by its /proc/PID/stat."""
    fields = stat.rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _noop(ray: Any, identity: str) -> Any:
    """Start an actor on the node ``identity``, and return it; ``noop`` does nothing, ``stat`` tells its CPU time."""

    class Plain:
        def noop(self) -> None:
            pass

        def stat(self) -> bytes:
            return Path(STAT).read_bytes()

    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(identity, soft=False)
    return ray.remote(num_cpus=0)(Plain).options(scheduling_strategy=strategy).remote()


def install(folder: Path) -> Path:
    """Write a package vllm-ascend with a worker of the usual size into ``folder``, and return the folder."""
    worker = folder / WORKER
    worker.parent.mkdir(parents=True)
    for package in (worker.parent, worker.parent.parent):
        (package / "__init__.py").write_text("")
    worker.write_text("class NPUWorker:\n" + "    # a line of code, more or less\n" * 500 + "    pass\n")
    info = folder / "vllm_ascend-0.11.0rc1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-ascend\nVersion: 0.11.0rc1\n")
    return folder


def edit(site: Path) -> Edit:
    """Return an edit that adds 300 lines to the worker's file in ``site``, as a patch of vllm-ascend would."""
    before = (site / WORKER).read_bytes()
    change = Change(PurePosixPath(WORKER), before, before + b"# a line\n" * 300, before)
    record = Record(PatchId("vllm-ascend", "rollout"), "0.11.0rc1", (), (WORKER,), "2026-01-01", "0")
    return Edit(site, (change,), add=(record,))


if __name__ == "__main__":
    main()
