"""A class to patch, and a recipe for it."""

from __future__ import annotations

from patcher.changes.change import PatchId
from patcher.recipe import Before, Head, Insertion
from patches.vllm_ascend.recipes import V1

PATCH = PatchId("vllm-ascend", "rollout")
RECIPE = V1._replace(
    class_name="Worker",
    method="run",
    insertions=(
        Insertion(
            "run",
            where=Before("output = self.runner.run(...)"),
            line="probe(batch)",
            why="counts",
            parameters=("batch",),
        ),
        Insertion("sleep", where=Head(), line="ends()", why="ends", optional=True),
    ),
)
MEMBERS = ("def _probe(self):", "    pass")
