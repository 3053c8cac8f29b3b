"""Nodes of a Ray cluster, called through one actor on each."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import re
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from patcher.cluster import actor, shipping
from patcher.cluster.node_group import Answer, natural
from patcher.messages import Kind, Problem, Text

if TYPE_CHECKING:
    from patcher.commands.finding import SearchOptions


_LIMIT_S = 120.0
"""Seconds that a node may take for one answer; it waits 20 s of them for a lock."""
_REPEAT_S = 30.0
_CONNECT_S = 2.0
_CALLED_ONCE = ("commit",)
"""Methods that are not called again. All others are: while a node dies, Ray 2.41 ends actors on other nodes, too."""


class RayNode(NamedTuple):
    """Node as Ray lists it; `name` is the unique name for users, `identity` Ray's node ID."""

    name: str
    identity: str
    host: str
    address: str
    resources: Mapping[str, float]


class _Quiet:
    """Stream that drops what other threads than the main thread write.

    Ray 2.41 prints its notices of lost nodes from another thread, on the stdout that `--json` uses.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        if threading.current_thread() is threading.main_thread():
            self.stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class RayNodeGroup:
    """Group of Ray nodes; see `patcher.cluster.node_group.NodeGroup`. An actor is started on a node's first call."""

    def __init__(self, ray: Any, nodes: Iterable[RayNode], search: SearchOptions, origin: tuple[str, ...]) -> None:
        self._ray = ray
        self.nodes = {node.name: node for node in nodes}
        self._search = {"path": [*map(str, search.path)], "python": search.python, "origin": origin}
        self._typed = ["rlpatch", *search.typed]
        ray.cloudpickle.register_pickle_by_value(actor)
        self._class = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(actor.NodeActor)
        self._archive = ray.put(shipping.archive())
        self._actors: dict[str, Any] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """See `NodeGroup`."""
        return tuple(self.nodes)

    def call(self, method: str, arguments: Mapping[str, Sequence[Any]]) -> dict[str, Answer]:
        """Return each node's answer to `method`, called with its `arguments`; `lost` says why none came in time."""
        answers = self._call_once(method, arguments, _LIMIT_S)
        died = [name for name, answer in answers.items() if answer.lost and method not in _CALLED_ONCE]
        for name in died:
            self._actors.pop(name, None)
        answers |= self._call_once(method, {name: arguments[name] for name in died}, _REPEAT_S)
        late = Answer(lost=Text("the node did not answer within {seconds:.0f} s", _LIMIT_S))
        return {name: answers.get(name, late) for name in arguments}

    def _call_once(self, method: str, arguments: Mapping[str, Sequence[Any]], limit_s: float) -> dict[str, Answer]:
        """Call `method` on each node in `arguments`; return the answers that come within `limit_s` seconds, by node."""
        references = {
            name: self._actor(name).answer.remote(pickle.dumps((method, node_arguments)))
            for name, node_arguments in arguments.items()
        }
        waiting = list(references.values())
        ready = self._ray.wait(waiting, num_returns=len(waiting), timeout=limit_s)[0] if waiting else ()
        return {name: self._answer(reference) for name, reference in references.items() if reference in ready}

    def close(self) -> None:
        """Drop the actors, disconnect from Ray, and restore stdout and stderr."""
        self._actors.clear()
        with contextlib.suppress(Exception):
            self._ray.shutdown()
        sys.stdout, sys.stderr = (getattr(stream, "stream", stream) for stream in (sys.stdout, sys.stderr))

    def _actor(self, name: str) -> Any:
        """Return the actor of a node; start it on that node if necessary."""
        if name not in self._actors:
            strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                self.nodes[name].identity, soft=False
            )
            started = self._class.options(scheduling_strategy=strategy)
            self._actors[name] = started.remote(self._archive, self._search, self._typed)
        return self._actors[name]

    def _answer(self, reference: Any) -> Answer:
        """Wait for the answer behind a Ray reference and return it; it is `lost` if Ray failed to deliver it."""
        try:
            value, problem = pickle.loads(self._ray.get(reference))  # noqa: S301  (of rlpatch's own actor)
        except self._ray.exceptions.RayError as error:
            return Answer(lost=_first_line(_text(error)))
        return Answer(value, problem)


def connect(address: str) -> tuple[Any, list[RayNode]]:
    """Connect to the Ray cluster at `address`; return the ray module and the living nodes.

    stdout and stderr are `_Quiet` streams until `RayNodeGroup.close`; Ray's logger and usage statistics are silenced.
    Raises Problem: USAGE for a malformed address, ENVIRONMENT without Ray or a connection.
    """
    chosen = os.environ.get("RAY_ADDRESS") or address if address == "auto" else address  # as Ray reads it
    if chosen != "auto" and not re.fullmatch(r"\[?[\w.:%-]+\]?:\d+", chosen):
        typed = chosen
        hint = Text(
            "type --ray HOST:6379 after the targets, not ray://: a ray:// address uses Ray Client, which loses its"
            " connection without an error"
        )
        if chosen != address:
            typed = f"RAY_ADDRESS={chosen}"
            hint = Text("unset the variable with `env -u RAY_ADDRESS rlpatch …`, or {alternative}", hint)
        raise Problem(Kind.USAGE, Text("{address} is not an address of a Ray cluster (HOST:PORT)", typed), hint=hint)
    ray = _import_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # what it has to say comes as an error, too
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream and _Quiet(stream) for stream in streams)
    with _stderr_copy() as copy:
        try:
            ray.init(address=chosen, log_to_driver=False, configure_logging=False)
        except (Exception, SystemExit) as error:
            sys.stdout, sys.stderr = streams
            copy.seek(0)
            raise _not_connected(ray, chosen, f"{_text(error)}\n{copy.read()}") from None
    return ray, living_nodes(ray.nodes())


def living_nodes(listed: Sequence[Mapping[str, Any]]) -> list[RayNode]:
    """Return the living nodes out of those listed by `ray.nodes()`, with unique names, sorted by name.

    A machine that was lost and came back is listed twice until Ray drops the first entry (12 s in Ray 2.60). Of several
    entries, those whose port refuses the connection are left out; if all do, the last one is returned.
    """
    places: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for node in listed:
        if node["Alive"]:
            places.setdefault((node["NodeManagerHostname"], node["NodeManagerAddress"]), []).append(node)
    nodes = []
    for (host, at), several in places.items():
        # Where nobody is left, one stands for the machine, so that it is missed.
        living = (several[1:] and [*filter(_listens, several)]) or several[-1:]
        nodes += [RayNode(host, node["NodeID"], host, at, node["Resources"]) for node in living]
    hosts, addresses = Counter(node.host for node in nodes), Counter(node.address for node in nodes)
    for number, ray_node in enumerate(nodes):
        if hosts[ray_node.host] > 1:
            distinct = ray_node.address if addresses[ray_node.address] == 1 else ray_node.identity[:8]
            nodes[number] = ray_node._replace(name=f"{ray_node.host}({distinct})")
    return sorted(nodes, key=lambda ray_node: natural(ray_node.name))


def _listens(node: Mapping[str, Any]) -> bool:
    """Tell whether a node's raylet may be alive: False only if its port refuses the connection, within two seconds."""
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), _CONNECT_S).close()
    except OSError as error:
        return not isinstance(error, ConnectionRefusedError)
    return True


@contextlib.contextmanager
def _stderr_copy() -> Iterator[IO[str]]:
    """Redirect file descriptor 2 into memory, and yield a stream with its text: Ray 2.60 tells a wrong token there."""
    catching = os.fdopen(os.memfd_create("stderr"), "w+", encoding="utf-8", errors="replace")
    with catching as copy, contextlib.ExitStack() as restoring:
        with contextlib.suppress(OSError):  # this process was started without one
            stderr_copy = os.dup(2)
            restoring.callback(os.close, stderr_copy)
            restoring.callback(os.dup2, stderr_copy, 2)
            os.dup2(copy.fileno(), 2)
        yield copy


def _import_ray() -> Any:
    """Import and return ray. Raises Problem (ENVIRONMENT) if it is not installed."""
    try:
        import ray  # noqa: PLC0415
        import ray.util.scheduling_strategies  # noqa: PLC0415
    except ImportError:
        cause = Text("Ray is not installed in rlpatch's environment")
        hint = Text(
            "use the rlpatch that is installed in the cluster's environment, or pip install the cluster's version"
            " of ray"
        )
        raise Problem(Kind.ENVIRONMENT, cause, hint=hint) from None
    return ray


def _not_connected(ray: Any, address: str, output: str) -> Problem:
    """Return the problem that Ray at `address` cannot be reached, with the likely cause in what `ray.init` said."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", output)
    where = Text("the cluster of this machine") if address == "auto" else address
    cause = Text("Ray cannot be reached: {first_line}", _first_line(text))
    hint = Text("on the head node, check with `ray status` that Ray runs, and that `ray --version` prints {version}")
    hint = hint.filled(ray.__version__)
    if "ersion mismatch" in text or "different versions" in text:
        versions = " ".join(re.findall(r"(?:Ray|Python): \S+", text))
        cause = Text(
            "the version of Ray or Python differs between the cluster and rlpatch's environment ({versions})",
            versions or ray.__version__,
        )
        hint = Text("on a node of the cluster, run the rlpatch that is installed in the cluster's environment")
    elif "Could not find any running Ray instance" in text:
        cause = Text("no Ray cluster runs on this machine")
        hint = Text("start Ray (ray start --head), or type its address: --ray HOST:6379")
    elif refusal := re.search(r"[^:.\n]*(?i:authentication|token)[^.\n]*", text):
        cause = Text("the cluster refused rlpatch's authentication: {reason}", refusal[0].strip())
        hint = Text(
            "set RAY_AUTH_MODE and RAY_AUTH_TOKEN (or ~/.ray/auth_token) to the same values as on the head node"
        )
    return Problem(Kind.ENVIRONMENT, cause, where, hint)


def _text(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__


def _first_line(text: str) -> str:
    return text.partition("\n")[0].strip()[:200]
