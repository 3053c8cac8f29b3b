"""Nodes that are processes of this machine, each with its own folder: the code of a real node without Ray.

A node can be told to die just before or just after it does what it is asked, or never to answer.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from patcher.cluster.node_group import Answer
from patcher.cluster.node_worker import NodeWorker, answer
from patcher.cluster.nodes import Nodes
from patcher.commands.finding import SearchOptions

_FORK = multiprocessing.get_context("fork")


class Death(NamedTuple):
    """When a node dies: before or after it has done what ``method`` asks."""

    node: str
    method: str
    after: bool = False


class Processes:
    """A group of processes, one for each folder of ``sites``; see `patcher.cluster.node_group.NodeGroup`."""

    def __init__(self, sites: Mapping[str, Path], deaths: Sequence[Death] = (), wait_s: float = 0.2) -> None:
        self.sites, self.deaths, self.wait_s = dict(sites), list(deaths), wait_s
        self.called: list[str] = []
        self.stays_dead = False  # whether a node that has died never answers again
        self._dead: set[str] = set()
        self.before: Callable[[str], object] = lambda _question: None  # called before each method
        self._running: dict[str, tuple[Any, Connection]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.sites)

    def call(self, method: str, arguments: Mapping[str, Sequence[Any]]) -> dict[str, Answer]:
        self.before(method)
        self.called.append(method)
        pipes = {}
        for name in self._dead.intersection(self._running):
            self._end(name)
        if not self.stays_dead:
            self._dead.clear()
        for name, given in arguments.items():
            if name not in self._running and name not in self._dead:
                self._start(name)
            if name in self._dead:
                continue
            pipe = self._running[name][1]
            with contextlib.suppress(OSError):  # it is dead, which reading tells
                pipe.send((method, given))
            pipes[pipe] = name
        answers = dict.fromkeys(self._dead, Answer(lost="it died"))
        for pipe, name in pipes.items():
            try:
                ready = wait([pipe], 20)
                answers[name] = Answer(*pipe.recv()) if ready else Answer(lost="no answer")
            except (EOFError, OSError):
                answers[name] = Answer(lost="it died")
                self._dead.add(name)
        return {name: answers[name] for name in arguments}

    def close(self) -> None:
        for name in list(self._running):
            self._end(name)
        self._dead.clear()

    def _start(self, name: str) -> None:
        ours, theirs = _FORK.Pipe()
        deaths = [death for death in self.deaths if death.node == name]
        self.deaths = [death for death in self.deaths if death.node != name]  # a node that comes back lives
        others = [pipe.fileno() for _, pipe in self._running.values()]
        arguments = (self.sites[name], theirs, [*others, ours.fileno()], deaths, self.wait_s)
        process = _FORK.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        self._running[name] = (process, ours)

    def _end(self, name: str) -> None:
        process, pipe = self._running.pop(name)
        pipe.close()
        process.kill()
        process.join()


def _serve(site: Path, pipe: Connection, others: list[int], deaths: Sequence[Death], wait_s: float) -> None:
    """Answer until the driver has gone."""
    for other in others:  # else a node would not see that the driver has gone
        os.close(other)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = NodeWorker(SearchOptions(path=(site,)), wait=wait_s)
    while True:
        try:
            method, arguments = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        if any((method, False) == death[1:] for death in deaths):
            os.kill(os.getpid(), signal.SIGKILL)
        said = answer(worker, method, arguments)
        if any((method, True) == death[1:] for death in deaths):
            os.kill(os.getpid(), signal.SIGKILL)
        pipe.send(said)


def nodes(group: Processes, path: Path | None = None, **options: Any) -> Nodes:
    """The machines of a command."""
    return Nodes(group, SearchOptions(path=(path,) if path else ()), **options)
