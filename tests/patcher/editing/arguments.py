"""A class whose calls have arguments that a recipe replaces."""

from __future__ import annotations

from patcher import editing
from patcher.changes.change import PatchId
from patcher.recipe import Call, Recipe
from patches.vllm_ascend.recipes import V1

RECIPE = V1._replace(
    class_name="Worker",
    method="build",
    insertions=(),
    calls=(
        Call("prof.Config", "levels"),
        Call("prof.profile", "contents", defaults={"shapes": "False"}),
        Call("prof.handler", "parsing", positional=("folder", "name", "parse"), defaults={"parse": "True"}),
    ),
)
PATCH = PatchId("vllm-ascend", "builtin")
SOURCE = '''\
class Worker(Base):
    """A worker."""

    def run(self, batch):
        output = self.runner.run(batch)
        return output

    def build(self):
        config = prof.Config(
            level=prof.Level.One,  # enough
            metrics=None,
        )
        return prof.profile(
            activities=[
                prof.CPU,
                prof.NPU,
            ],
            stack=envs.\\
                STACK,
            config=config,
            ready=prof.handler(
                folder))


after = 1
'''
ARGUMENTS = {
    ("Config", "level"): "prof.Level.Two",
    ("profile", "activities"): "[prof.NPU]",
    ("profile", "stack"): "True",
    ("profile", "shapes"): "True",
    ("handler", "parse"): "False",
}


def replaced(
    source: str | bytes, arguments: editing.Arguments = ARGUMENTS, recipe: Recipe = RECIPE
) -> editing.Replaced:
    data = source.encode() if isinstance(source, str) else source
    return editing.replace(data, recipe, arguments, PATCH, "0.1.0", where="/x/worker.py")
