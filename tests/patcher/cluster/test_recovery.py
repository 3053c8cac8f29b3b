"""What a recovery makes of the answers of nodes; with real stores and deaths it is in `test_phases`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from patcher.cluster.node_group import Answer, PendingTransaction
from patcher.cluster.recovery import recover
from patcher.messages.errors import Kind, Problem


class ScriptedGroup:
    """A group whose nodes answer what is written down, and nothing else."""

    def __init__(self, **answers: dict[str, Answer]) -> None:
        self.answers, self.called = answers, dict[str, Mapping[str, Sequence[Any]]]()
        self.names = tuple(answers["recover"])

    def call(self, method: str, arguments: Mapping[str, Sequence[Any]], limit_s: float = 0) -> dict[str, Answer]:
        if arguments:
            self.called[method] = arguments
        return {name: self.answers[method][name] for name in arguments}

    def reconnect(self, name: str) -> bool:
        return False

    def close(self) -> None:
        pass


def test_a_run_of_one_machine_is_left_to_that_machine() -> None:
    """Its recovery there has failed, so it still stands."""
    local = PendingTransaction("/site", "job", ("/site", "/other"), 0, committed=False)
    failed = Problem(Kind.ENVIRONMENT, "the lock is held", "/other")
    group = ScriptedGroup(recover={"n1": Answer(problem=failed)}, pending={"n1": Answer((local,))})
    ended = recover(group)
    assert [(problem.cause, problem.place) for problem in ended.problems] == [("the lock is held", "n1: /other")]
    assert list(group.called) == ["recover", "pending"]


@pytest.mark.parametrize("committed", [False, True])
def test_a_node_that_is_lost_while_it_ends_is_named(committed: bool) -> None:
    parts = {
        name: PendingTransaction("/site", "job", ("n1:/site", "n2:/site"), at, committed)
        for at, name in enumerate(("n1", "n2"))
    }
    group = ScriptedGroup(
        recover=dict.fromkeys(parts, Answer([])),
        pending={name: Answer((part,)) for name, part in parts.items()},
        abort={"n1": Answer([]), "n2": Answer(lost="it died")},
        finish={"n1": Answer([]), "n2": Answer(lost="it died")},
    )
    first, *others = recover(group, recover_command="rlpatch recover --ray h:1").problems
    assert (first.kind, first.place) == (Kind.ROLLBACK_INCOMPLETE, "n2")
    assert first.cause == "no answer while it was being completed: it died"
    assert first.hint == "`rlpatch recover --ray h:1`, once more"
    assert [problem.place for problem in others] == ["not reached: n2:/site"] * committed


def test_each_root_that_is_named_is_looked_into_by_itself() -> None:
    """One of them tells of another transaction meanwhile; the other has ended."""
    names = ("n1:/a", "n2:/b", "n2:/c")
    first = PendingTransaction("/a", "job", names, 0, committed=True)
    other = PendingTransaction("/b", "job", ("n1:/a", "n2:/b"), 1, committed=False)
    group = ScriptedGroup(
        recover=dict.fromkeys(("n1", "n2"), Answer([])),
        pending={"n1": Answer((first,)), "n2": Answer(())},
        visit={"n2": Answer({"/b": other, "/c": None})},
    )
    (problem,) = recover(group).problems
    assert (problem.kind, problem.place) == (Kind.ROLLBACK_INCOMPLETE, "not reached: n2:/b")
