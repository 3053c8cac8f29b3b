"""A driver or a node that dies at any phase: afterwards all nodes are on one side, or say that they are not."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import Result

from patcher.changes.change import Edit
from patcher.cluster.node_group import Answer
from patcher.cluster.phases import transact
from patcher.cluster.recovery import recover
from patcher.messages.errors import Kind, Problem
from patcher.store import STORE
from patcher.store import transaction as store
from patcher.store.folder import StoreFolder
from tests.patcher.cluster.processes import Death, Processes
from tests.patcher.store.tree import PRISTINE, WORKER, applying, install, patched, picture, reverting

Sites = dict[str, Path]
Ray = Callable[..., Result]
APPLY = ("apply", "vllm-ascend", "--decode", "30:60")


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    """Small trees: no plan is made here."""
    return {name: install(tmp_path / name / "site") for name in ("n1", "n2", "n3")}


@pytest.fixture
def group(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> Processes:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # a killed process loses nothing that was written
    return Processes(sites)


def drive(group: Processes, edit: Callable[[Path], object] = applying) -> None:
    transact(group, {name: [edit(site)] for name, site in group.sites.items()})  # type: ignore[list-item]


def recovered(group: Processes, *gone: str) -> list[Problem]:
    """What stands in the way of a recovery by new processes."""
    group.close()
    group.deaths = []
    problems = recover(group, gone).problems
    group.close()
    return problems


def contents(sites: Sites) -> list[bytes]:
    return [(site / WORKER).read_bytes() for site in sites.values()]


def settled(sites: Sites) -> bool:
    return not any(StoreFolder(site).unfinished() for site in sites.values())


def test_all_nodes_go_ahead_and_back(group: Processes, sites: Sites) -> None:
    before = [picture(site) for site in sites.values()]
    drive(group)
    assert contents(sites) == [patched()] * 3
    assert settled(sites)
    group.close()
    drive(group, reverting)
    group.close()
    assert [picture(site) for site in sites.values()] == before


CASES = [
    # who dies, at what, before it or after it; the state at once, and after recovery (None: as it was at once)
    (Death("n1", "elect"), PRISTINE),
    (Death("n2", "elect", after=True), PRISTINE),
    (Death("n1", "prepare"), PRISTINE),
    (Death("n1", "prepare", after=True), PRISTINE),
    (Death("n2", "prepare"), PRISTINE),
    (Death("n2", "prepare", after=True), PRISTINE),
    (Death("n1", "ping"), PRISTINE),
    (Death("n3", "ping"), PRISTINE),
    (Death("n1", "commit"), PRISTINE),
    (Death("n1", "commit", after=True), patched()),
    (Death("n2", "commit"), patched()),
    (Death("n2", "commit", after=True), patched()),
    (Death("n2", "finish"), patched()),
    (Death("n2", "finish", after=True), patched()),
    (Death("n1", "finish"), patched()),
    (Death("n1", "finish", after=True), patched()),
]


@pytest.mark.parametrize(
    ("death", "end"), CASES, ids=lambda value: "" if isinstance(value, bytes) else "-".join(map(str, value))
)
def test_a_node_that_dies_brings_all_to_one_side(group: Processes, sites: Sites, death: Death, end: bytes) -> None:
    group.deaths = [death]
    failure = None
    try:
        drive(group)
    except Problem as problem:
        failure = problem
    assert failure is not None or end == patched()  # the decider may come back in time
    if failure:
        assert failure.kind in (Kind.ROLLED_BACK, Kind.ROLLBACK_INCOMPLETE, Kind.ENVIRONMENT)
        assert death.node in str(failure)
    assert recovered(group) == []
    assert contents(sites) == [end] * 3
    assert settled(sites)
    assert not [left for site in sites.values() for left in site.rglob("tree-*")]


def test_a_node_lost_when_prepared_goes_back_when_it_is_there_again(group: Processes, sites: Sites) -> None:
    group.deaths = [Death("n2", "ping")]
    with pytest.raises(Problem, match="everything is as it was") as caught:
        drive(group)
    assert caught.value.kind is Kind.ROLLED_BACK
    with pytest.raises(Problem, match="only be ended with all") as refused:
        store.commit([applying(sites["n2"])])  # a plain rlpatch
    assert refused.value.kind is Kind.ROLLBACK_INCOMPLETE
    assert "rlpatch recover --ray" in refused.value.hint
    assert recovered(group) == []
    assert contents(sites) == [PRISTINE] * 3


def test_a_node_lost_after_the_decision_is_waited_for(group: Processes, sites: Sites) -> None:
    group.deaths = [Death("n3", "commit")]
    with pytest.raises(Problem, match="not yet on n3") as caught:
        drive(group)
    assert caught.value.kind is Kind.ROLLBACK_INCOMPLETE
    group.close()
    away = group.sites.pop("n3")
    (problem,) = recovered(group)
    assert "n3" in problem.hint
    assert problem.kind is Kind.ROLLBACK_INCOMPLETE
    with pytest.raises(Problem):
        store.commit([reverting(sites["n1"])])  # it remembers the decision
    group.sites["n3"] = away
    assert recovered(group) == []
    assert contents(group.sites) == [patched()] * 3
    assert settled(group.sites)


def test_a_node_that_is_gone_for_good_is_not_waited_for(group: Processes, sites: Sites) -> None:
    group.deaths = [Death("n3", "commit")]
    with pytest.raises(Problem):
        drive(group)
    group.close()
    del group.sites["n3"]
    assert recovered(group, "n3") == []
    assert contents(group.sites) == [patched()] * 2
    assert settled(group.sites)


def test_without_the_node_that_decides_nothing_is_decided(
    group: Processes, sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.deaths = [Death("n1", "commit", after=True)]
    monkeypatch.setattr(group, "reconnect", lambda _name: False)
    with pytest.raises(Problem, match="only its journal knows") as caught:
        drive(group)
    assert caught.value.kind is Kind.ROLLBACK_INCOMPLETE
    group.close()
    first = group.sites.pop("n1")
    (problem,) = recovered(group)
    assert "--gone n1" in problem.hint
    assert contents(group.sites) == [PRISTINE] * 2
    group.sites = {"n1": first, **group.sites}
    assert recovered(group) == []
    assert contents(group.sites) == [patched()] * 3


class Scene(NamedTuple):
    """What a driver is to do, what undoes it, and the bytes before and after."""

    edit: Callable[[Path], Edit]
    undo: Callable[[Path], Edit]
    ends: tuple[bytes, bytes]


SCENES = {
    "apply": Scene(applying, reverting, (PRISTINE, patched())),
    "revert": Scene(reverting, applying, (patched(), PRISTINE)),
}


@pytest.mark.parametrize(
    ("scene", "step"), [("apply", 3), *(pytest.param(s, 1, marks=pytest.mark.crash) for s in SCENES)]
)
def test_a_driver_killed_before_any_question_leaves_what_recovery_ends(
    group: Processes, sites: Sites, scene: str, step: int
) -> None:
    edit, undo, ends = SCENES[scene]
    sides = []
    for point in count(0, step):
        for site in sites.values():
            store.commit([undo(site)])
        stopped = killed(group, edit, point)
        assert recovered(group) == []
        (now,) = set(contents(sites))
        assert settled(sites)
        sides.append(ends.index(now))
        if not stopped:
            break
    assert sides == sorted(sides)
    assert {0, 1} == set(sides)


def killed(group: Processes, edit: Callable[[Path], object], point: int) -> bool:
    """Whether the driver, a process of its own, was killed before its method number ``point``."""
    child = os.fork()
    if child == 0:
        left = iter(range(point))

        def before(_question: str) -> None:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        group.before = before
        drive(group, edit)
        group.close()
        os._exit(0)
    _pid, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0
    return os.WIFSIGNALED(status)


def elsewhere(sites: Sites, tmp_path: Path, *names: str) -> Processes:
    """The nodes as a command finds them whose search leads elsewhere on those of ``names``."""
    empty = tmp_path / "empty"
    empty.mkdir(exist_ok=True)
    return Processes({name: empty if name in names else site for name, site in sites.items()})


PREPARED, DECIDED, COMMITTED = 3, 5, 6
"""The questions before which a driver of three nodes is killed once it is that far."""


@pytest.mark.parametrize(
    ("point", "away"),
    [
        (DECIDED, "n1"),
        (DECIDED, "n2"),
        *[
            pytest.param(point, away, marks=pytest.mark.crash)
            for point in (PREPARED, DECIDED, COMMITTED)
            for away in ("n1", "n2", "n1 n3", "n2 n3")
        ],
    ],
)
def test_a_root_that_no_search_finds_comes_to_the_same_side(
    group: Processes, sites: Sites, tmp_path: Path, point: int, away: str
) -> None:
    """To take it for ended would leave it on another side than those that are found."""
    assert killed(group, applying, point)
    assert recovered(elsewhere(sites, tmp_path, *away.split())) == []
    assert contents(sites) == [PRISTINE if point == PREPARED else patched()] * 3
    assert settled(sites)


@pytest.mark.parametrize("away", ["n1", "n2"])
def test_a_root_behind_a_link_is_not_looked_into_and_not_taken_for_ended(
    group: Processes, sites: Sites, tmp_path: Path, away: str
) -> None:
    assert killed(group, applying, DECIDED)
    before = contents(sites)
    real = sites[away].rename(tmp_path / "real")
    sites[away].symlink_to(real)
    (problem,) = recovered(elsewhere(sites, tmp_path, away))
    assert problem.kind is Kind.ROLLBACK_INCOMPLETE
    assert f"--gone {away}" in problem.hint
    assert contents(sites)[0] == before[0]
    assert recovered(group) == []
    assert contents(sites) == [patched()] * 3


def test_a_root_that_is_named_but_tells_of_another_transaction_is_left_alone(
    group: Processes, sites: Sites, tmp_path: Path
) -> None:
    """What stands in one store is no reason to end anything in another that does not name it."""
    assert killed(group, applying, DECIDED)
    journal = sites["n2"] / STORE / "journal.json"
    journal.write_text(journal.read_text().replace(f"n3:{sites['n3']}", f"n3:{sites['n3']}/other"))
    (problem,) = recovered(elsewhere(sites, tmp_path, "n2"))
    assert f"n2:{sites['n2']}" in problem.place
    assert contents(sites) == [patched(), PRISTINE, patched()]


def test_what_a_bundle_has_prepared_is_left_to_its_driver(group: Processes, sites: Sites) -> None:
    names = ("whoever drives it", *(f"{name}:{site}" for name, site in sites.items()))
    for position, site in enumerate(sites.values(), 1):
        membership = store.TransactionMembership(
            "job", names, {site: names[position]}, "python3 patch.pyz commit job\x1b[2J"
        )
        store.prepare([applying(site)], membership)
    (problem,) = recovered(group, "whoever drives it")
    assert problem.kind is Kind.ROLLBACK_INCOMPLETE
    assert problem.hint == "python3 patch.pyz commit job?[2J"
    assert all(f"{name}: {site}" in problem.place for name, site in sites.items())
    assert all(StoreFolder(site).journal() for site in sites.values())


def test_while_a_driver_lives_others_wait_and_are_told_for_whom(group: Processes, sites: Sites) -> None:
    other = Processes(sites)

    def meanwhile(method: str) -> None:
        if method == "commit" and not other.called:
            with pytest.raises(Problem, match="holds the lock") as caught:
                drive(other)
            assert caught.value.kind is Kind.ENVIRONMENT
            assert "n1" in caught.value.place
            other.close()
            assert recover(other).problems  # it is not ended under the feet of the one that lives
            other.close()

    group.before = meanwhile
    drive(group)
    assert other.called
    assert contents(sites) == [patched()] * 3
    group.close()
    assert settled(sites)


def test_several_roots_of_a_node_are_one_part_each(sites: Sites, tmp_path: Path) -> None:
    more = install(tmp_path / "n2" / "checkout")
    group = Processes(sites)
    work = {name: [applying(site)] for name, site in sites.items()}
    work["n2"].append(applying(more))
    done = transact(group, work)
    group.close()
    assert done.written["n2"] == (str(sites["n2"] / WORKER), str(more / WORKER))
    assert (more / WORKER).read_bytes() == patched()
    assert settled({**sites, "more": more})


def test_a_commit_that_may_still_be_under_way_is_not_taken_for_undone(
    group: Processes, sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost, and the process that was asked lives: it may decide at any moment."""
    kept, call = [], group.call

    def lost(method: str, *arguments: Any, **options: Any) -> dict[str, Answer]:
        return {"n1": Answer(lost="no answer")} if method == "commit" else call(method, *arguments, **options)

    def reconnect(name: str) -> bool:
        kept.append(group._running.pop(name))  # the old one is still there
        return True

    monkeypatch.setattr(group, "reconnect", reconnect)
    with monkeypatch.context() as patch:
        patch.setattr(group, "call", lost)
        with pytest.raises(Problem, match="only its journal knows"):
            drive(group)
    assert [bool(StoreFolder(site).journal()) for site in sites.values()] == [True] * 3
    ((process, pipe),) = kept
    first = StoreFolder(sites["n1"]).journal()
    assert first
    pipe.send(("commit", ([str(sites["n1"])], first.transaction)))  # and it does
    assert pipe.recv() == (None, None)
    process.kill()
    process.join()
    assert recovered(group) == []
    assert contents(sites) == [patched()] * 3


def test_a_commit_that_comes_late_and_alone_counts(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal of the only participant may end by itself: what was asked to go back has gone ahead then."""
    group = Processes({"n1": sites["n1"]})
    call = group.call

    def late(method: str, arguments: Any, limit_s: float = 20) -> dict[str, Answer]:
        if method == "commit":
            return {"n1": Answer(lost="no answer")}
        if method == "abort":
            call("commit", arguments)
        return call(method, arguments)

    monkeypatch.setattr(group, "call", late)
    monkeypatch.setattr(group, "reconnect", lambda _name: True)
    drive(group)
    group.close()
    assert (sites["n1"] / WORKER).read_bytes() == patched()
    assert not StoreFolder(sites["n1"]).unfinished()


def test_a_file_that_somebody_changes_after_it_was_prepared_is_named(group: Processes, sites: Sites) -> None:
    theirs = b"theirs = 1\n"

    def meanwhile(method: str) -> None:
        if method == "commit":
            (sites["n2"] / WORKER).write_bytes(theirs)

    group.before = meanwhile
    with pytest.raises(Problem, match="not in these files") as caught:
        drive(group)
    group.close()
    assert caught.value.kind is Kind.FOREIGN_EDIT
    assert caught.value.place == f"n2: {sites['n2'] / WORKER}"
    assert contents(sites) == [patched(), theirs, patched()]
    assert settled(sites)


def test_what_is_typed_next_works_as_it_stands(sites: Sites) -> None:
    """With the place that was typed, and all nodes that are missing in one word of the shell."""
    names = [f"host(10.0.0.{number})" for number in range(11)]
    group = Processes(dict(zip(("n1", "n2"), sites.values(), strict=False)))
    participants = ("n1:/a", *(f"{name}:/a" for name in names))
    store.prepare([applying(sites["n1"])], store.TransactionMembership("job", participants, {sites["n1"]: "n1:/a"}))
    store.commit_prepared([sites["n1"]], "job")
    (problem,) = recover(group, recover_command="rlpatch recover --ray h:1 --path /a").problems
    group.close()
    assert shlex.quote(",".join(names)) in problem.hint
    typed = shlex.split(problem.hint.rpartition("gone for good: `")[2].rstrip("`"))
    assert typed == ["rlpatch", "recover", "--ray", "h:1", "--path", "/a", "--gone", ",".join(names)]


def test_ctrl_c_says_whom_it_did_not_reach(group: Processes, sites: Sites) -> None:
    def pressed(method: str) -> None:
        if method == "ping":
            os.kill(os.getpid(), signal.SIGINT)

    group.before, group.deaths = pressed, [Death("n2", "abort")]
    with pytest.raises(Problem, match="stopped by the keyboard") as caught:
        drive(group)
    assert caught.value.kind is Kind.INTERRUPTED
    assert "not reached: n2; `rlpatch recover --ray` rolls it back" in caught.value.notes[0]
    assert recovered(group) == []
    assert contents(sites) == [PRISTINE] * 3


def test_ctrl_c_after_the_decision_stops_nothing(group: Processes, sites: Sites) -> None:
    def pressed(method: str) -> None:
        if method == "finish":
            os.kill(os.getpid(), signal.SIGINT)

    group.before = pressed
    try:
        drive(group)
    except KeyboardInterrupt:
        pytest.fail("all nodes have gone ahead, and it said that it was stopped")
    group.close()
    assert contents(sites) == [patched()] * 3
    assert settled(sites)


def test_where_all_went_back_nobody_is_said_to_be_out_of_reach(group: Processes, sites: Sites) -> None:
    work = {name: [applying(site)] for name, site in sites.items()}
    (sites["n2"] / WORKER).write_bytes(b"theirs = 1\n")
    with pytest.raises(Problem, match="not the one that was looked at") as caught:
        transact(group, work)
    group.close()
    assert "not reached" not in " ".join(caught.value.notes)
    assert contents(sites) == [PRISTINE, b"theirs = 1\n", PRISTINE]
    assert settled(sites)


@pytest.mark.crash
def test_random_deaths_of_nodes_also_while_they_recover(
    group: Processes, sites: Sites, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Two nodes die in a change, and two in each of two recoveries; the last one has peace."""
    thorough = request.config.getoption("--thorough")
    if thorough:
        sites |= {f"n{number}": install(tmp_path / f"n{number}" / "site") for number in range(4, 9)}
        group.sites = dict(sites)
    generator = random.Random(0)

    def deaths(*questions: str) -> list[Death]:
        return [Death(generator.choice([*sites]), generator.choice(questions), generator.random() < 0.5) for _ in "ab"]

    sides = set()
    for _ in range(200 if thorough else 12):
        for site in sites.values():
            store.commit([reverting(site)])
        group.close()
        group.deaths = deaths("elect", "prepare", "ping", "commit", "finish", "verify")
        with contextlib.suppress(Problem):
            drive(group)
        for _ in "ab":
            group.close()
            group.deaths = deaths("recover", "pending", "finish", "abort")
            recover(group)
        assert recovered(group) == []
        assert settled(sites)
        (side,) = set(contents(sites))
        sides.add(side)
    assert sides == {PRISTINE, patched()}


def test_nothing_stays_where_the_store_was_made_for_nothing(group: Processes, sites: Sites) -> None:
    before = [picture(site) for site in sites.values()]
    group.deaths = [Death("n3", "prepare")]
    with pytest.raises(Problem):
        drive(group)
    assert recovered(group) == []
    assert [picture(site) for site in sites.values()] == before
    assert not any((site / STORE).exists() for site in sites.values())
