"""A small module with patches between its marks."""

from __future__ import annotations

from patcher.changes import markers
from patcher.changes.change import PatchId

ONE = PatchId("vllm-ascend", "rollout")
TWO = PatchId("verl", "update-policy", "actor")
BODY = "class A:\n    def f(self):\n        return 1\n\n\nX = 1\n"


def marked(text: str, patch: PatchId = ONE, at: str = "        return 1\n") -> bytes:
    """``text`` with a line of ``patch`` before ``at`` and its block behind it."""
    block = f"    {markers.begin(patch, '0.1.0')}\n    y = 2\n    {markers.end(patch)}\n"
    line = f"        g()  {markers.tag(patch)}\n"
    return markers.seal(text.replace(at, line + at + block).encode(), patch)
