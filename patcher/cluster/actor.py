"""What Ray starts on a node. Its class is pickled by value: rlpatch is not there before the archive is.

So this module knows nothing of the rest of rlpatch when it is loaded, and what goes in and out are bytes.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any


class NodeActor:
    """An `patcher.cluster.agent.Agent` of one node, behind bytes."""

    def __init__(self, archive: bytes, search: dict[str, Any], typed: list[str]) -> None:
        # A file without a name: nothing is left on the node, however this process ends.
        descriptor = os.memfd_create("rlpatch")
        os.write(descriptor, archive)
        # Ray puts the folders of the driver on the path, and a node may have a rlpatch of its own: ours comes first.
        sys.path.insert(0, f"/proc/self/fd/{descriptor}")
        sys.argv = typed  # a lock says who holds it
        from pathlib import Path

        from patcher.cluster.agent import Agent
        from patcher.commands.finding import SearchOptions

        path = search["path"]
        # What a clean interpreter of the workers' environment would import, without what Ray has put on this path.
        python = search["python"] or (None if path else sys.executable)
        self._agent = Agent(SearchOptions(path and Path(path), python, tuple(typed[1:])), search["option"])

    def answer(self, question: bytes) -> bytes:
        """The pickled answer to a pickled question and its arguments."""
        from patcher.cluster.agent import answer

        method, arguments = pickle.loads(question)  # noqa: S301  (of our own driver)
        return pickle.dumps(answer(self._agent, method, arguments))
