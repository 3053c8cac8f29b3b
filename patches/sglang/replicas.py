"""SGLang: the number of a replica, which the Ray actors of verl, slime and its forks know, and tell nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patcher.messages import Text
from patcher.recipe import Probe, Recipe, Structure
from patches.package_stage import line
from patches.probes.sglang import NamedReplica
from patches.sglang import RELEASES

FILE = "srt/server_args.py"
NAME = Text("replica number in slime")
LINE = line(
    "ServerArgs.__post_init__",
    '(_rlpatch := getattr(__import__("sglang"), "_rlpatch_stage_replica", None)) and _rlpatch.configured(self.nnodes)',
    Text(
        "a Ray actor configures its server here, before the server starts; in slime and its forks, the actor"
        " knows its replica number by then"
    ),
)


def probe(summary: Callable[[Any], str]) -> Probe:
    """Return the probe in the sglang package that tells a server's processes the number of their replica.

    `summary` returns the sentence on what is recorded with a configuration.
    """
    return Probe(
        members=(NamedReplica,),
        beside="_rlpatch_stage_replica = _RlpatchStageReplica()",
        summary=summary,
        callers=(LINE.line,),
    )


def recipes(*recorders: Recipe) -> tuple[Recipe, ...]:
    """Return the two recipes, for verl and for slime, that tell SGLang's processes the number of their replica.

    They are patched only if at least one of `recorders`, which are of one stage, is patched, too.
    """
    recorder = recorders[0]
    summary = recorder.probe.summary
    verl_recipe = Recipe(
        name=Text("replica number in verl"),
        stage=recorder.stage,
        class_name="",
        method="",
        windows=recorder.windows,
        probe=probe(summary),
        insertions=(),
        structures=(
            Structure(
                "", RELEASES, "sglang/__init__.py", (), Text("Python imports this file before the schedulers start")
            ),
        ),
        why=Text(
            "verl and slime start an engine for each replica, but do not tell SGLang the replica number. Without the"
            " number, every replica would record"
        ),
        how=Text(
            "in the Ray actor of verl's server, the inserted code takes the replica number from the actor's name and"
            " sets VERL_REPLICA_RANK, as verl does for vLLM. In other processes the code does nothing"
        ),
        upstream=Text(
            "{file}, from {release} on",
            file="verl/workers/rollout/sglang_rollout/async_sglang_server.py",
            release="verl 0.6.1",
        ),
        needed_until=Text("the patch is no longer needed once verl tells SGLang's schedulers their replica number"),
        needs=tuple(recipe.name for recipe in recorders),
    )
    slime_recipe = verl_recipe._replace(
        name=NAME,
        method=LINE.method,
        probe=Probe(summary=summary),
        insertions=(LINE,),
        structures=(Structure("", RELEASES, f"sglang/{FILE}", (), Text("the code to patch is in this file")),),
        how=Text(
            "inserts one line where a server is configured. In slime and its forks, the Ray actor that configures the"
            " server knows the replica number"
        ),
        upstream=Text(
            "{file}, from {release} on; also the same file in miles",
            file="slime/backends/sglang_utils/sglang_engine.py",
            release="slime 0.2.1",
        ),
        needed_until=Text("the patch is no longer needed once slime tells SGLang's schedulers their replica number"),
        needs=(verl_recipe.name,),
    )
    return verl_recipe, slime_recipe
