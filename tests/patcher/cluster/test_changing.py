"""A node or the driver that dies on the way: all nodes are as they were, or the one that may not be is named."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from patcher.changes.change import Edit
from patcher.cluster.changing import ClusterChange, change
from patcher.cluster.node_group import NodeEdit, all_of, values
from patcher.messages.errors import Kind, Problem
from patcher.store import STORE
from patcher.store import transaction as store
from patcher.store.folder import StoreFolder
from tests.matrix import every
from tests.patcher.cluster.processes import Death, Processes
from tests.patcher.store.tree import PRISTINE, UPDATE, WORKER, applying, install, patched, picture, record, reverting

Sites = dict[str, Path]
STATUS = "rlpatch status --ray"


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    """Small trees: no plan is made here."""
    return {name: install(tmp_path / name / "site") for name in ("n1", "n2", "n3")}


@pytest.fixture
def group(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> Processes:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # a killed process loses nothing that was written
    return Processes(sites)


def work_of(sites: Mapping[str, Path], edit: Callable[[Path], Edit] = applying) -> dict[str, list[NodeEdit]]:
    return {name: [NodeEdit(edit(site), StoreFolder(site).records())] for name, site in sites.items()}


def drive(group: Processes, edit: Callable[[Path], Edit] = applying) -> ClusterChange:
    return change(group, work_of(group.sites, edit), STATUS)


def settle(group: Processes) -> None:
    """End interrupted runs with new processes, as the next command does."""
    group.close()
    group.deaths = []
    answers = group.call("recover", all_of(group.names))
    assert values(answers).keys() == set(group.names), answers
    group.close()


def contents(sites: Sites) -> list[bytes]:
    return [(site / WORKER).read_bytes() for site in sites.values()]


def settled(sites: Sites) -> bool:
    return not any(StoreFolder(site).unfinished() for site in sites.values())


def test_all_nodes_go_ahead_and_back(group: Processes, sites: Sites) -> None:
    before = [picture(site) for site in sites.values()]
    assert drive(group).written == {name: (str(site / WORKER),) for name, site in sites.items()}
    assert contents(sites) == [patched()] * 3
    assert settled(sites)
    group.close()
    drive(group, reverting)
    group.close()
    assert [picture(site) for site in sites.values()] == before


CASES = [
    (Death("n1", "preflight"), Kind.ENVIRONMENT),
    (Death("n2", "preflight", after=True), Kind.ENVIRONMENT),
    (Death("n1", "mark"), Kind.ENVIRONMENT),
    (Death("n2", "mark", after=True), Kind.ENVIRONMENT),
    (Death("n1", "commit"), Kind.ROLLED_BACK),
    (Death("n1", "commit", after=True), Kind.ROLLED_BACK),
    (Death("n2", "commit"), Kind.ROLLED_BACK),
    (Death("n3", "commit", after=True), Kind.ROLLED_BACK),
]


@pytest.mark.parametrize(
    ("death", "kind"), every(3, CASES), ids=lambda value: "-".join(map(str, value)) if isinstance(value, Death) else ""
)
@pytest.mark.parametrize("edit", [applying, reverting])
def test_where_a_node_dies_all_are_as_they_were(
    group: Processes, sites: Sites, death: Death, kind: Kind, edit: Callable[[Path], Edit]
) -> None:
    if edit is reverting:
        for site in sites.values():
            store.commit([applying(site)])
    before = [[record.patch for record in StoreFolder(site).records()] for site in sites.values()]
    held = contents(sites)
    group.deaths = [death]
    with pytest.raises(Problem) as caught:
        drive(group, edit)
    assert (caught.value.kind, death.node in caught.value.node) == (kind, True)
    settle(group)
    assert contents(sites) == held
    assert [[record.patch for record in StoreFolder(site).records()] for site in sites.values()] == before
    assert settled(sites)
    assert not [left for site in sites.values() for left in site.rglob("tree-*")]


def test_what_was_applied_and_undone_left_no_trace(group: Processes, sites: Sites) -> None:
    before = [picture(site) for site in sites.values()]
    group.deaths = [Death("n3", "commit")]
    with pytest.raises(Problem):
        drive(group)
    settle(group)
    assert [picture(site) for site in sites.values()] == before
    assert not any((site / STORE).exists() for site in sites.values())


def test_a_node_that_does_not_come_back_is_named_as_perhaps_changed(group: Processes, sites: Sites) -> None:
    group.deaths = [Death("n2", "commit", after=True)]
    group.stays_dead = True
    with pytest.raises(Problem) as caught:
        drive(group)
    assert (caught.value.kind, caught.value.node) == (Kind.ROLLBACK_INCOMPLETE, "n2")
    assert STATUS in caught.value.hint
    group.close()
    assert contents(sites) == [PRISTINE, patched(), PRISTINE]
    assert settled(sites)
    group.stays_dead, group.deaths = False, []
    drive(group)  # the next command evens it out
    group.close()
    assert contents(sites) == [patched()] * 3


def test_a_node_that_cannot_be_undone_is_named_with_its_reason(group: Processes, sites: Sites) -> None:
    theirs = b"theirs = 1\n"

    def meanwhile(method: str) -> None:
        if method == "undo":
            (sites["n1"] / WORKER).write_bytes(theirs)

    group.before, group.deaths = meanwhile, [Death("n3", "commit")]
    with pytest.raises(Problem) as caught:
        drive(group)
    group.close()
    assert (caught.value.kind, caught.value.node) == (Kind.ROLLBACK_INCOMPLETE, "n1")
    assert contents(sites) == [theirs, PRISTINE, PRISTINE]


def test_what_one_node_refuses_is_undone_on_the_others(group: Processes, sites: Sites) -> None:
    """A file that changes between the check and the commit."""
    theirs = b"theirs = 1\n"

    def meanwhile(method: str) -> None:
        if method == "commit":
            (sites["n2"] / WORKER).write_bytes(theirs)

    group.before = meanwhile
    with pytest.raises(Problem) as caught:
        drive(group)
    group.close()
    assert (caught.value.kind, caught.value.node) == (Kind.FOREIGN_EDIT, "n2")
    assert contents(sites) == [PRISTINE, theirs, PRISTINE]
    assert settled(sites)


def test_what_a_check_refuses_changes_nothing(group: Processes, sites: Sites) -> None:
    work = work_of(sites)
    (sites["n2"] / WORKER).write_bytes(b"theirs = 1\n")
    with pytest.raises(Problem) as caught:
        change(group, work, STATUS)
    group.close()
    assert caught.value.kind is Kind.FOREIGN_EDIT
    assert group.called == ["preflight"]
    assert contents(sites) == [PRISTINE, b"theirs = 1\n", PRISTINE]


def second(site: Path) -> Edit:
    edit = applying(site, b"second = 1  # rlpatch\n")
    return edit._replace(add=(record(UPDATE),))


def test_undone_patches_stand_in_their_order(group: Processes, sites: Sites) -> None:
    for site in sites.values():
        store.commit([applying(site)])
        store.commit([Edit(site, (), add=(record(UPDATE),))])
    before = [StoreFolder(site).records() for site in sites.values()]
    group.deaths = [Death("n3", "commit")]
    with pytest.raises(Problem):
        drive(group, lambda site: applying(site, b"another = 1  # rlpatch\n"))
    group.close()
    assert [StoreFolder(site).records() for site in sites.values()] == before
    assert contents(sites) == [patched()] * 3


def test_several_roots_of_a_node_change_together(sites: Sites, tmp_path: Path) -> None:
    more = install(tmp_path / "n2" / "checkout")
    group = Processes(sites)
    work = work_of(sites)
    work["n2"].append(NodeEdit(applying(more), ()))
    written = change(group, work, STATUS).written
    group.close()
    assert written["n2"] == (str(more / WORKER), str(sites["n2"] / WORKER))
    assert settled({**sites, "more": more})


def test_two_drivers_at_once_end_with_one_state(group: Processes, sites: Sites) -> None:
    other = Processes(sites)
    work = work_of(sites, second)

    def meanwhile(method: str) -> None:
        if method == "commit" and not other.called:
            change(other, work, STATUS)
            other.close()

    group.before = meanwhile
    with pytest.raises(Problem) as caught:
        drive(group)
    group.close()
    assert caught.value.kind is Kind.FOREIGN_EDIT
    (held,) = set(contents(sites))
    assert b"second" in held
    assert settled(sites)


@pytest.mark.parametrize("method", ["mark", "commit"])
def test_ctrl_c_before_the_commit_changes_nothing(group: Processes, sites: Sites, method: str) -> None:
    def pressed(called: str) -> None:
        if called == method:
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    group.before = pressed
    if method == "mark":
        with pytest.raises(Problem) as caught:
            drive(group)
        assert caught.value.kind is Kind.INTERRUPTED
    else:
        drive(group)  # all have changed: nothing is left to stop
    signal.signal(signal.SIGINT, handler)
    group.close()
    assert contents(sites) == [PRISTINE if method == "mark" else patched()] * 3
    assert settled(sites)


def test_a_driver_that_is_killed_leaves_nodes_that_the_next_command_evens_out(group: Processes, sites: Sites) -> None:
    for point in range(6):
        child = os.fork()
        if child == 0:
            left = iter(range(point))

            def before(_method: str, left: object = left) -> None:
                if next(left, None) is None:  # type: ignore[call-overload]
                    os.kill(os.getpid(), signal.SIGKILL)

            group.before = before
            drive(group)
            group.close()
            os._exit(0)
        os.waitpid(child, 0)
        settle(group)
        assert set(contents(sites)) <= {PRISTINE, patched()}
        assert settled(sites)
        drive(group)
        group.close()
        assert contents(sites) == [patched()] * 3
        drive(group, reverting)
        group.close()
        assert contents(sites) == [PRISTINE] * 3


@pytest.mark.crash
def test_random_deaths_of_nodes_end_as_it_is_said(
    group: Processes, sites: Sites, request: pytest.FixtureRequest
) -> None:
    """Two nodes die in a change: done on all, as before on all, or the nodes that are not are named."""
    dice = random.Random(0)
    kinds = set()
    for _ in range(200 if request.config.getoption("--thorough") else 30):
        for site in sites.values():
            store.commit([reverting(site)])
        group.stays_dead = dice.random() < 0.5
        methods = ("preflight", "mark", "unmark", "commit", "commit", "commit", "undo")
        group.deaths = [Death(dice.choice([*sites]), dice.choice(methods), dice.random() < 0.5) for _ in "ab"]
        named, end = set[str](), patched()
        try:
            drive(group)
        except Problem as problem:
            kinds.add(problem.kind)
            end = PRISTINE
            if problem.kind is Kind.ROLLBACK_INCOMPLETE:
                named = set(problem.node.split(", "))
        group.stays_dead = False
        settle(group)
        assert {name for name, site in sites.items() if (site / WORKER).read_bytes() != end} <= named
        assert settled(sites)
    assert {Kind.ROLLED_BACK, Kind.ROLLBACK_INCOMPLETE, Kind.ENVIRONMENT} <= kinds
