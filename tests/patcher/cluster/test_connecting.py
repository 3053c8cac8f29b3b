"""Choice of the cluster and of its nodes, without a cluster but where Ray itself asks for a token."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import libcst
import pytest

from fixtures.cache import REPOSITORY
from fixtures.rays import cluster
from patcher.cli.search import ClusterOptions
from patcher.cluster import connecting
from patcher.cluster.connecting import choose_nodes, connect
from patcher.cluster.rays import RayNode, RayNodeGroup
from patcher.cluster.rays import connect as connect_ray
from patcher.commands.finding import SearchOptions
from patcher.guards.result import Launch
from patcher.messages.errors import Kind, Problem
from tests.patcher.cli.conftest import release

NODES = [
    RayNode("head", "a1b2c3d4e5", "head", "10.0.0.1", {"object_store_memory": 1e9, "node:10.0.0.1": 1.0, "CPU": 8.0}),
    RayNode("worker1", "b1b2c3d4e5", "worker1", "10.0.0.2", {"NPU": 8.0, "CPU": 8.0}),
    RayNode("worker2", "c1b2c3d4e5", "worker2", "10.0.1.3", {"CPU": 8.0, "NPU": 8.0}),
]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ([], "head worker1 worker2"),
        (["worker2"], "worker2"),
        (["worker*"], "worker1 worker2"),
        (["10.0.0.*"], "head worker1"),
        (["10.0.1.3", "head"], "head worker2"),
        (["NPU>0"], "worker1 worker2"),
        (["NPU>4", "head"], "head worker1 worker2"),
        (["c1b2c3"], "worker2"),
    ],
)
def test_the_words_of_nodes(words: list[str], meant: str) -> None:
    assert " ".join(node.name for node in choose_nodes(words, NODES)) == meant


@pytest.mark.parametrize("word", ["worker3", "GPU>0", "NPU>8", "*x"])
def test_a_word_that_means_no_node_is_an_error_with_those_that_there_are(word: str) -> None:
    with pytest.raises(Problem) as caught:
        choose_nodes([word], NODES)
    assert caught.value.kind is Kind.USAGE
    assert "node names (head, worker1, worker2)" in caught.value.hint
    assert "resource names (CPU>0, NPU>0) or the word has-target" in caught.value.hint


class FakeRay(SimpleNamespace):
    """As much of Ray as it takes to connect, or not to."""

    def __init__(self, error: BaseException | None = None, heard: str = "") -> None:
        util = SimpleNamespace(scheduling_strategies=None)
        super().__init__(__version__="2.60.0", error=error, heard=heard, util=util)

    def init(self, **_options: Any) -> None:
        os.write(2, self.heard.encode())
        if self.error:
            raise self.error


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeRay | None], None]:
    def install(fake: FakeRay | None) -> None:
        monkeypatch.setitem(sys.modules, "ray", fake)
        for name in ("ray.util", "ray.util.scheduling_strategies"):
            monkeypatch.setitem(sys.modules, name, fake)

    return install


MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.41.0
    Python: 3.10.4
This process on node 10.0.0.1 was started with:
    Ray: 2.60.0
"""


@pytest.mark.parametrize(
    ("address", "error", "kind", "said", "next_"),
    [
        ("ray://head:10001", None, Kind.USAGE, "is not an address of a Ray cluster (HOST:PORT", "Ray Client, which loses"),
        ("verl", None, Kind.USAGE, "is not an address of a Ray cluster (HOST:PORT", "--ray HOST:6379 after the targets"),
        ("auto", RuntimeError(MISMATCH), Kind.ENVIRONMENT, "the version of Ray or Python differs", "in the cluster's environment"),
        ("auto", RuntimeError("Authentication failed: InvalidToken"), Kind.ENVIRONMENT, "authentication", "RAY_AUTH_MODE"),
        ("auto", ConnectionError("Could not find any running Ray instance."), Kind.ENVIRONMENT, "no Ray cluster", "ray start"),
        ("10.0.0.1:6379", ConnectionError("timed out"), Kind.ENVIRONMENT, "cannot be reached: timed out", "ray status"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_of_a_cluster(
    ray: Callable[[FakeRay | None], None], address: str, error: BaseException, kind: Kind, said: str, next_: str
) -> None:
    ray(FakeRay(error))
    with pytest.raises(Problem) as caught:
        connect(address, None, SearchOptions())
    assert caught.value.kind is kind
    assert said in caught.value.cause
    assert next_ in caught.value.hint


TOKEN = "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[cluster.Cluster, Path]]:
    """A cluster that asks for a token, and a target that its node sees."""
    site = tmp_path_factory.mktemp("site")
    release(site)
    home = str(tmp_path_factory.mktemp("home"))
    with cluster.cluster(
        cluster.python(cluster.NEWEST), {"PATH": os.environ["PATH"], "HOME": home, **token(TOKEN)}
    ) as made:
        yield made, site


def token(text: str) -> dict[str, str]:
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": text}


@pytest.mark.engine
@pytest.mark.parametrize(
    ("offered", "code", "said"),
    [
        (token(TOKEN), 0, ""),
        (token("f" * 64), 5, "InvalidAuthToken: Authentication token is missing or incorrect"),
        ({"RAY_AUTH_MODE": "disabled"}, 5, "InvalidAuthToken: Authentication token is missing or incorrect"),
        ({"RAY_AUTH_MODE": "token"}, 5, "Token authentication is enabled but no authentication token was found"),
    ],
    ids=["right", "wrong", "without", "asked for"],
)
def test_a_cluster_that_asks_for_a_token(
    guarded: tuple[cluster.Cluster, Path], tmp_path: Path, offered: dict[str, str], code: int, said: str
) -> None:
    made, site = guarded
    command = [str(made.python), "-m", "patcher", "status", "--ray", made.address, "--path", str(site)]
    # Ray's environment has neither rlpatch nor its libraries.
    libraries = os.pathsep.join([str(REPOSITORY), str(Path(libcst.__file__).parents[1])])
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": libraries, **offered}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    if code:
        assert done.stderr.splitlines() == [
            "Error: not possible in this environment: the cluster refused rlpatch's authentication: " + said,
            f"  at {made.address}",
            "  next: set RAY_AUTH_MODE and RAY_AUTH_TOKEN (or ~/.ray/auth_token) to the same values as on the head node",
        ]


WRONG_TOKEN = (
    "[… W 1 1] gcs_client.cc:210: Unauthenticated: RPC error: InvalidAuthToken: Authentication token is missing\n"
)


def test_what_only_the_libraries_of_ray_say_is_told_and_not_printed(
    ray: Callable[[FakeRay | None], None], capfd: pytest.CaptureFixture[str]
) -> None:
    ray(FakeRay(ConnectionError("Failed to connect to Ray cluster"), WRONG_TOKEN * 20))
    with pytest.raises(Problem) as caught:
        connect("10.0.0.1:6379", None, SearchOptions())
    assert caught.value.cause.endswith(" authentication: InvalidAuthToken: Authentication token is missing")
    assert "RAY_AUTH_TOKEN" in caught.value.hint
    os.write(2, b"and now")
    assert capfd.readouterr().err == "and now"


class Telling(FakeRay):
    """It tells of a node that was lost from a thread of its own, as Ray 2.41 does on the standard output."""

    def init(self, **_options: Any) -> None:
        for stream in (sys.stdout, sys.stderr):
            thread = threading.Thread(target=print, args=("(raylet) The node …",), kwargs={"file": stream})
            thread.start()
            thread.join()

    def nodes(self) -> list[Any]:
        return []

    def shutdown(self) -> None:
        self.init()


def test_what_ray_tells_from_its_threads_does_not_stand_between_ours(
    ray: Callable[[FakeRay | None], None], capsys: pytest.CaptureFixture[str]
) -> None:
    streams, telling = (sys.stdout, sys.stderr), Telling()
    ray(telling)
    connect_ray("auto")
    print("{}")
    print("ours", file=sys.stderr)
    group = RayNodeGroup.__new__(RayNodeGroup)
    group._ray, group._actors = telling, {}
    group.close()
    assert (sys.stdout, sys.stderr) == streams
    assert tuple(capsys.readouterr()) == ("{}\n", "ours\n")


@pytest.mark.parametrize("closed", [(), (2,), (0, 2), (0, 1, 2)])
def test_a_process_without_standard_streams_connects_like_others(closed: tuple[int, ...]) -> None:
    code = (
        f"import os\nfor stream in {closed}: os.close(stream)\n"
        "from patcher.cluster.rays import _stderr_copy\nwith _stderr_copy(): pass\nwith _stderr_copy(): pass\nos._exit(7)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False)
    assert done.returncode == 7


@pytest.mark.parametrize("address", ["ray://head:10001", "http://head:8265", "local"])
def test_an_address_in_the_environment_is_refused_by_its_name(
    ray: Callable[[FakeRay | None], None], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    ray(FakeRay(ConnectionError("asked all the same")))
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(Problem, match=f"RAY_ADDRESS={address} is not an address") as caught:
        connect("auto", None, SearchOptions())
    assert caught.value.kind is Kind.USAGE
    assert "env -u RAY_ADDRESS rlpatch" in caught.value.hint
    with pytest.raises(Problem, match="asked all the same"):  # what is typed comes before it
        connect("10.0.0.1:6379", None, SearchOptions())


@pytest.mark.parametrize(
    ("address", "nodes", "search", "words"),
    [
        ("auto", None, SearchOptions(), ("--ray",)),
        ("auto", None, SearchOptions(path=(Path("a b"),)), ("--ray", "--path", "a b")),
        ("h:1", "head", SearchOptions(python="py"), ("--ray", "h:1", "--python", "py", "--nodes", "head")),
    ],
)
def test_what_is_typed_again_leads_to_the_same_place(
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    nodes: str | None,
    search: SearchOptions,
    words: tuple[str, ...],
) -> None:
    told = []
    monkeypatch.setattr(connecting, "connect_ray", lambda _address: (None, NODES))
    monkeypatch.setattr(connecting, "RayNodeGroup", lambda *given: told.append(given[-1]))
    made = connect(address, nodes, search)
    assert made._words == words
    assert told == [words]  # the nodes say it, too
    made._folder.cleanup()


class Closed(SimpleNamespace):
    """A group that is let go of."""

    closed = False

    def call(self, *_words: Any) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (None, []),
        ("has-target", []),
        ("worker*, has-target", ["--nodes excludes 1 of 3 nodes: head"]),
        ("head", ["--nodes excludes 2 of 3 nodes: worker1, worker2"]),
    ],
)
def test_who_is_left_out_is_said_and_ray_is_let_go_of(
    monkeypatch: pytest.MonkeyPatch, nodes: str | None, said: list[str]
) -> None:
    monkeypatch.setattr(connecting, "connect_ray", lambda _address: (None, NODES))
    monkeypatch.setattr(connecting, "RayNodeGroup", lambda *_given: Closed(names=()))
    options = ClusterOptions(ray="auto", nodes=nodes)
    with options.connected(SearchOptions()) as made:
        assert made is not None
        assert made._with_target == ("has-target" in (nodes or ""))
        for step in (made.searches([], "diff", writes=False)[1], made.status([]), made.check([], Launch(environ={}))):
            assert [note[1] for note in step.notes] == said
    assert made.group.closed  # type: ignore[attr-defined]
    groups: list[Any] = []
    with contextlib.suppress(ZeroDivisionError), options.connected(SearchOptions()) as failed:
        groups.append(getattr(failed, "group", None))
        raise ZeroDivisionError
    assert groups[0].closed


def test_without_ray_the_extra_is_named(ray: Callable[[FakeRay | None], None]) -> None:
    ray(None)
    with pytest.raises(Problem, match="Ray is not installed") as caught:
        connect("auto", None, SearchOptions())
    assert "version of ray" in caught.value.hint
