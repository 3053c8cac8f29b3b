"""One copy of the files for each kind of installation."""

from __future__ import annotations

from pathlib import Path

from patcher.cluster.mirror import Mirror, group_identical
from patcher.cluster.node_group import NodeSurvey
from patcher.commands.finding import SearchOptions
from patcher.commands.patching.planning import Attempted
from patcher.messages.errors import Kind, Problem


def test_of_many_kinds_of_installation_each_is_told_with_its_own_node(tmp_path: Path) -> None:
    survey = NodeSurvey({}, (), (), (), (), {}, {}, ())
    kinds = {f"node{number}": survey._replace(files={f"/{number}": "digest"}) for number in range(12)}
    made = [Mirror(tmp_path, kind, SearchOptions(), ()) for kind in group_identical(kinds)]
    assert len(made) == len(kinds)

    def fail(word: str) -> None:
        raise Problem(Kind.ENVIRONMENT, f"{word} is damaged", "/site")

    for mirror in made:
        (problem,) = Attempted(mirror, ["verl"]).then(fail).problems
        assert problem.place == f"{mirror.nodes[0]}: /site"
