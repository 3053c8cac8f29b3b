"""One copy of the files for each kind of installation."""

from __future__ import annotations

from patcher.cluster.mirror import Mirrors
from patcher.cluster.node_group import NodeSurvey
from patcher.commands.finding import SearchOptions
from patcher.commands.patching.planning import Attempted
from patcher.messages.errors import Kind, Problem


def test_of_many_kinds_of_installation_each_is_told_with_its_own_node() -> None:
    survey = NodeSurvey({}, (), (), (), (), {}, {}, (), None)
    kinds = {f"node{number}": survey._replace(files={f"/{number}": "digest"}) for number in range(12)}
    mirrors = Mirrors()
    try:
        made = mirrors.make(kinds, lambda _node, _paths: {}, SearchOptions(), ())
        assert len({mirror.folder for mirror in made}) == len(kinds)

        def fail(word: str) -> None:
            raise Problem(Kind.ENVIRONMENT, f"{word} is damaged", "/site")

        for mirror in made:
            (problem,) = Attempted(mirror, ["verl"]).then(fail).problems
            assert problem.place == f"{mirror.nodes[0]}: /site"
    finally:
        mirrors.close()
