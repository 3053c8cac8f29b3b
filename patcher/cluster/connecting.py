"""``--ray`` and ``--nodes``: which nodes of which cluster."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from patcher.cluster.nodes import Nodes
from patcher.cluster.rays import RayNode, RayNodeGroup
from patcher.cluster.rays import connect as connect_ray
from patcher.commands.finding import SearchOptions
from patcher.messages import Kind, Problem, Text

HAS_TARGET = "has-target"


def connect(address: str, nodes: str | None, search: SearchOptions) -> Nodes:
    """Connect to the nodes of the Ray cluster at `address` ("auto": RAY_ADDRESS if it is set, else this machine's).

    `nodes` is the text of `--nodes` (None: all). Its word `has-target` takes effect later, in `Nodes.searches`. Raises
    Problem (USAGE, ENVIRONMENT).
    """
    words = [word.strip() for word in (nodes or "").split(",") if word.strip()]
    ray, there = connect_ray(address)
    chosen = choose_nodes([word for word in words if word != HAS_TARGET], there)
    cluster = ("--ray", *(() if address == "auto" else (address,)))
    origin = (*cluster, *search.words, *(("--nodes", nodes) if nodes else ()))
    names = [node.name for node in there if node not in chosen]
    left_out = Text("--nodes excludes {count} of {total} nodes: {nodes}")
    return Nodes(
        RayNodeGroup(ray, chosen, search, origin),
        search,
        origin,
        with_target=HAS_TARGET in words,
        left_out=left_out.filled(count=len(names), total=len(there), nodes=", ".join(names)) if names else "",
    )


def choose_nodes(words: Sequence[str], nodes: Sequence[RayNode]) -> list[RayNode]:
    """Return those of `nodes` that match any of `words` (none: all), in the order of `nodes`.

    A word is a pattern of a name or address, six or more characters that begin a node's id, or a resource with a number
    that the node must exceed, `NPU>0`. Raises Problem (USAGE) if a word matches none.
    """
    if not words:
        return list(nodes)
    chosen: set[str] = set()
    for word in words:
        matching = [node for node in nodes if _matches(word, node)]
        if not matching:
            names = ", ".join(node.name for node in nodes)
            all_resources = {name for node in nodes for name in node.resources if not re.search("[:_]", name)}
            resources = ", ".join(f"{name}>0" for name in sorted(all_resources))
            hint = Text(
                "--nodes takes node names ({names}), resource names ({resources}) or the word {has_target}",
                names=names,
                resources=resources,
                has_target=HAS_TARGET,
            )
            raise Problem(Kind.USAGE, Text("--nodes {pattern}: the cluster has no such node", word), hint=hint)
        chosen |= {node.identity for node in matching}
    return [node for node in nodes if node.identity in chosen]


def _matches(word: str, node: RayNode) -> bool:
    """Tell whether a word matches a node."""
    if resource := re.fullmatch(r"([^<>=]+)>(\d+(?:\.\d+)?)", word):
        return node.resources.get(resource[1], 0) > float(resource[2])
    names = (node.name, node.host, node.address)
    return any(fnmatch.fnmatchcase(name, word) for name in names) or (len(word) >= 6 and node.identity.startswith(word))
