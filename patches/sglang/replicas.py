"""SGLang: the number of a replica, which the Ray actors of verl, slime and its forks know, and tell nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patcher.messages import Text
from patcher.recipe import Probe
from patches.package_stage import line
from patches.probes.sglang import NamedReplica

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
    """Return the probe that goes into the package and tells a server's processes their replica."""
    return Probe(
        members=(NamedReplica,),
        beside="_rlpatch_stage_replica = _RlpatchStageReplica()",
        summary=summary,
        callers=(LINE.line,),
    )
