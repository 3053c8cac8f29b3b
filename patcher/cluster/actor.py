"""The actor that Ray starts on a node. Its class is pickled by value: rlpatch is not there before the archive is.

So this module imports nothing of rlpatch when it is loaded, and what goes in and out are bytes.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any


class NodeActor:
    """Ray actor that runs a `patcher.cluster.node_worker.NodeWorker`; calls and answers are pickled bytes."""

    def __init__(self, archive: bytes, search: dict[str, Any], typed: list[str]) -> None:
        """Import rlpatch from `archive`, the bytes of a zip, and start the worker with the driver's search."""
        # A file without a name: nothing is left on the node, however this process ends.
        descriptor = os.memfd_create("rlpatch")
        os.write(descriptor, archive)
        # Ray puts the folders of the driver on the path, and a node may have another rlpatch: this one comes first.
        sys.path.insert(0, f"/proc/self/fd/{descriptor}")
        sys.argv = typed  # a lock says who holds it
        from patcher.cluster import node_worker

        self._answer = node_worker.answer
        self._worker = node_worker.start(search, typed)

    def answer(self, call: bytes) -> bytes:
        """Return the pickled (value, problem) of a pickled call, which is (method name, arguments)."""
        return pickle.dumps(self._answer(self._worker, *pickle.loads(call)))  # noqa: S301  (of rlpatch's own driver)
