"""The steps of a transaction over several machines, each of which has only its own roots and what it is told.

The machines are folders here, and the driver is this process, or one that is killed. It does what any driver must: all
prepare, the first commits, the others commit, they finish, the first one last.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from patcher.changes.change import Change, Edit
from patcher.messages.errors import Kind, Problem
from patcher.store import STORE
from patcher.store import transaction as store
from patcher.store.filesystem import lock
from patcher.store.filesystem.files import digest
from patcher.store.filesystem.opened import Opened
from patcher.store.folder import StoreFolder
from patcher.store.transaction import TransactionMembership
from tests.matrix import CRASH, thinned
from tests.patcher.store.killer import killed, seen
from tests.patcher.store.tree import PRISTINE, UPDATE, WORKER, applying, install, patched, picture, record, reverting

RUN = "0123456789abcdef"


@pytest.fixture
def machines(tmp_path: Path) -> list[Path]:
    return [install(tmp_path / name / "site") for name in ("first", "second", "third")]


def name(root: Path) -> str:
    return f"{root.parent.name}:{root.name}"


def prepare(roots: Sequence[Path], edit: Callable[[Path], Edit] = applying) -> None:
    for root in roots:
        store.prepare([edit(root)], TransactionMembership(RUN, tuple(map(name, roots)), {root: name(root)}))


def drive(roots: Sequence[Path], edit: Callable[[Path], Edit] = applying) -> None:
    """All steps on all machines."""
    prepare(roots, edit)
    for root in roots:
        store.commit_prepared([root], RUN)
    for root in reversed(roots):
        store.finish([root], RUN, [name(other) for other in roots if other is not root])


def recover(roots: Sequence[Path], reached: Sequence[Path]) -> None:
    """What a driver does for the machines that it reaches after one has died: it asks the first, and tells the others.

    Without the first nothing is known. It keeps its mark until all the others have ended.
    """
    if roots[0] not in reached:
        return
    first = StoreFolder(roots[0]).journal()
    forward = first is not None and first.committed
    for root in reached[1:]:
        store.finish([root], RUN) if forward else store.abort([root], RUN)
    if not forward:
        store.abort(roots[:1], RUN)
    elif len(reached) == len(roots):
        store.finish(roots[:1], RUN, [name(root) for root in roots[1:]])


def refuses(root: Path) -> Problem:
    with pytest.raises(Problem) as caught:
        store.commit([Edit(root, (), add=(record(UPDATE),))])
    assert caught.value.kind is Kind.ROLLBACK_INCOMPLETE
    return caught.value


def bytes_of(roots: Sequence[Path]) -> set[bytes]:
    return {(root / WORKER).read_bytes() for root in roots}


def test_all_steps_on_all_machines_are_an_apply_and_a_revert(machines: list[Path]) -> None:
    before = [picture(root) for root in machines]
    drive(machines)
    assert bytes_of(machines) == {patched()}
    assert [len(StoreFolder(root).records()) for root in machines] == [1, 1, 1]
    assert not any(StoreFolder(root).unfinished() for root in machines)
    drive(machines, reverting)
    assert [picture(root) for root in machines] == before


def test_what_is_prepared_has_changed_no_file_and_refuses_all_others(machines: list[Path]) -> None:
    before = [seen([root]) for root in machines]
    prepare(machines)
    assert [seen([root]) for root in machines] == before
    assert all(StoreFolder(root).unfinished() for root in machines)
    for root in machines[1:]:
        assert "first:site" in refuses(root).hint
    assert [store.abort([root], RUN)[0].forward for root in machines] == [False] * 3
    assert not any((root / STORE).exists() for root in machines)
    assert [seen([root]) for root in machines] == before


def test_what_is_prepared_goes_ahead_without_those_who_prepared_it(machines: list[Path]) -> None:
    """The bytes of after are in its store, also where the source of them is gone."""
    prepare(machines)
    second = machines[1]
    assert digest(patched()) in {path.name for path in (second / STORE).iterdir()}
    assert [one.forward for one in store.finish([second], RUN)] == [True]
    assert bytes_of([second]) == {patched()}
    assert {path.name for path in (second / STORE).iterdir() if len(path.name) == 64} == kept(second)
    store.commit([reverting(second)])
    assert bytes_of([second]) == {PRISTINE}


def kept(root: Path) -> set[str]:
    registry = StoreFolder(root).registry()
    return registry.digests()


def test_the_first_keeps_its_mark_until_all_others_have_ended(machines: list[Path]) -> None:
    prepare(machines)
    for root in machines:
        store.commit_prepared([root], RUN)
    with pytest.raises(Problem, match="only be ended with all") as caught:
        store.finish(machines[:1], RUN, ["second:site"])
    assert "third:site" in caught.value.hint
    assert "second:site" not in caught.value.hint
    assert "deleted" not in caught.value.hint  # of what is on other machines nobody here knows
    refuses(machines[0])
    store.finish(machines[:1], RUN, ["second:site", "third:site"])
    assert not StoreFolder(machines[0]).unfinished()


def test_a_mark_that_is_set_while_others_look_for_the_journal_hides_it_from_nobody(
    machines: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a rename, and whoever looks needs two names: once the second one was looked for too late."""
    prepare(machines[:1])
    read = StoreFolder.read
    looked: list[str] = []

    def read_before_the_mark(folder: StoreFolder, name: str) -> bytes | None:
        content = read(folder, name)
        if not looked:
            looked.append(name)
            store.commit_prepared(machines[:1], RUN)
        return content

    monkeypatch.setattr(StoreFolder, "read", read_before_the_mark)
    journal = StoreFolder(machines[0]).journal()
    assert journal is not None
    assert (journal.transaction, journal.committed) == (RUN, True)


@pytest.mark.parametrize("marked", [0, 1, 2])
def test_an_abort_after_the_mark_stops_nothing_where_it_is_set(machines: list[Path], marked: int) -> None:
    prepare(machines)
    for root in machines[: marked + 1]:
        store.commit_prepared([root], RUN)
    if marked:
        assert [one.forward for one in store.abort([machines[marked]], RUN)] == [True]
        assert bytes_of([machines[marked]]) == {patched()}
    with pytest.raises(Problem):
        store.abort(machines[:1], RUN)
    assert bytes_of(machines[:1]) == {patched()}


@pytest.mark.parametrize("at", [0, 1])
def test_a_file_that_others_change_meanwhile_stops_the_first_and_is_left_by_the_others(
    machines: list[Path], at: int
) -> None:
    prepare(machines)
    theirs = machines[at] / WORKER
    theirs.write_bytes(b"theirs")
    if at == 0:
        with pytest.raises(Problem, match="somebody changed the file") as caught:
            store.commit_prepared(machines[:1], RUN)
        assert (caught.value.kind, StoreFolder(machines[0]).unfinished()) == (Kind.FOREIGN_EDIT, False)
        recover(machines, machines)
        assert bytes_of(machines[1:]) == {PRISTINE}
    else:
        store.commit_prepared(machines[:1], RUN)
        with pytest.raises(Problem) as caught:
            store.commit_prepared([machines[1]], RUN)
        assert (caught.value.kind, StoreFolder(machines[1]).unfinished()) == (Kind.ROLLBACK_INCOMPLETE, True)
        (ended,) = store.finish([machines[1]], RUN)
        assert (ended.forward, ended.left) == (True, (str(WORKER),))
    assert theirs.read_bytes() == b"theirs"


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_commit_that_fails_goes_back_where_it_decides_and_stays_prepared_elsewhere(
    machines: list[Path], monkeypatch: pytest.MonkeyPatch, at: int, failure: BaseException
) -> None:
    real = Opened.replace

    def replace(folder: Opened, source: str, target: str) -> None:
        if target == WORKER.name and not folder.path.name.startswith("."):
            raise failure
        real(folder, source, target)

    prepare(machines)
    for root in machines[:at]:
        store.commit_prepared([root], RUN)
    with monkeypatch.context() as patch:
        patch.setattr(Opened, "replace", replace)
        with pytest.raises(Problem) as caught:
            store.commit_prepared([machines[at]], RUN)
    stopped = Kind.INTERRUPTED if isinstance(failure, KeyboardInterrupt) else Kind.ROLLED_BACK
    assert caught.value.kind is (Kind.ROLLBACK_INCOMPLETE if at else stopped)
    assert StoreFolder(machines[at]).unfinished() is bool(at)
    recover(machines, machines)
    assert bytes_of(machines) == {patched() if at else PRISTINE}


def test_ctrl_c_after_the_mark_stops_no_step(machines: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    real = StoreFolder.commit

    def pressed(folder: StoreFolder) -> None:
        real(folder)
        signal.raise_signal(signal.SIGINT)

    prepare(machines)
    monkeypatch.setattr(StoreFolder, "commit", pressed)
    store.commit_prepared(machines[:1], RUN)
    first = StoreFolder(machines[0]).journal()
    assert first is not None
    assert first.committed


def test_ctrl_c_before_the_mark_is_said_and_leaves_all_prepared(
    machines: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_words: object, **_options: object) -> None:
        raise KeyboardInterrupt

    prepare(machines)
    with monkeypatch.context() as patch:
        patch.setattr(lock, "hold", pressed)
        with pytest.raises(Problem, match="nothing was changed") as caught:
            store.commit_prepared(machines[:1], RUN)
    assert caught.value.kind is Kind.INTERRUPTED
    first = StoreFolder(machines[0]).journal()
    assert first
    assert not first.committed
    store.commit_prepared(machines[:1], RUN)


def test_what_others_ended_while_the_lock_was_waited_for_is_not_committed(
    machines: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = lock.hold
    prepare(machines)
    with monkeypatch.context() as patch:

        def hold(*words: Any, **options: Any) -> contextlib.AbstractContextManager[None]:
            patch.undo()
            store.abort(machines[:1], RUN)
            return real(*words, **options)

        patch.setattr(lock, "hold", hold)
        with pytest.raises(Problem, match="is not prepared here") as caught:
            store.commit_prepared(machines[:1], RUN)
    assert caught.value.kind is Kind.ROLLED_BACK
    assert bytes_of(machines) == {PRISTINE}


def test_where_the_lock_cannot_be_had_all_stays_prepared(machines: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def hold(*_words: object, **_options: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    prepare(machines)
    with monkeypatch.context() as patch:
        patch.setattr(lock, "hold", hold)
        with pytest.raises(Problem, match="Input/output error; an unfinished change is still there") as caught:
            store.commit_prepared(machines[:1], RUN)
    assert (caught.value.kind, caught.value.where) == (Kind.ROLLBACK_INCOMPLETE, str(machines[0]))
    store.commit_prepared(machines[:1], RUN)


def test_ctrl_c_while_a_turn_is_waited_for_is_said(machines: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_words: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lock, "hold", pressed)
    with pytest.raises(Problem, match="nothing was changed") as caught, store.locked(machines[:1]):
        pytest.fail("it has the turn")
    assert caught.value.kind is Kind.INTERRUPTED


def test_steps_may_be_repeated(machines: list[Path]) -> None:
    """Whoever does not know whether a step was taken takes it again."""
    prepare(machines)
    for root in (*machines, *machines):
        store.commit_prepared([root], RUN)
    for root in (*machines[1:], *machines[1:], machines[0], machines[0]):
        store.finish([root], RUN, [name(other) for other in machines])
    assert (bytes_of(machines), any(StoreFolder(root).unfinished() for root in machines)) == ({patched()}, False)


@pytest.mark.parametrize("how", ["another run", "nothing", "the store is gone"])
def test_what_is_not_prepared_is_not_committed(machines: list[Path], how: str) -> None:
    if how != "nothing":
        prepare(machines)
    if how == "the store is gone":
        shutil.rmtree(machines[0] / STORE)
    with pytest.raises(Problem, match="is not prepared here") as caught:
        store.commit_prepared(machines[:1], "another" if how == "another run" else RUN)
    assert caught.value.kind is Kind.ROLLED_BACK
    assert bytes_of(machines) == {PRISTINE}


def test_the_bytes_of_after_are_no_more_open_than_the_file(machines: list[Path]) -> None:
    (machines[0] / WORKER).chmod(0o600)
    prepare(machines[:1])
    copies = [machines[0] / STORE / digest(content) for content in (PRISTINE, patched())]
    assert [path.stat().st_mode & 0o777 for path in copies] == [0o600, 0o600]


def test_a_machine_may_have_several_roots(tmp_path: Path) -> None:
    roots = [install(tmp_path / name) for name in "abc"]
    participants = ("one:b", "two:c", "one:a")
    names = {root: one for root in roots for one in participants if one[-1] == root.name}
    membership = TransactionMembership(RUN, participants, names)
    a, b, c = roots
    store.prepare([applying(a), applying(b)], membership)
    store.prepare([applying(c)], membership)
    store.commit_prepared([a, b], RUN)
    store.commit_prepared([c], RUN)
    store.finish([c], RUN)
    assert [one.root for one in store.finish([a, b], RUN, ["two:c"])] == [a, b]
    assert (bytes_of(roots), any(StoreFolder(root).unfinished() for root in roots)) == ({patched()}, False)


def second_stage(root: Path) -> Edit:
    before = (root / WORKER).read_bytes()
    return Edit(root, (Change(WORKER, before, before + b"update = 1  # rlpatch\n", PRISTINE),), add=(record(UPDATE),))


def decided_elsewhere(roots: Sequence[Path]) -> None:
    """Prepare several roots of one machine for a transaction that somebody decides who has no root at all."""
    membership = TransactionMembership(
        RUN, ("whoever drives it", *map(name, roots)), {root: name(root) for root in roots}, "type\x1b this"
    )
    store.prepare([applying(root) for root in roots], membership)


def test_what_ends_it_is_said_in_the_words_of_whoever_began_it(machines: list[Path]) -> None:
    decided_elsewhere(machines)
    problem = refuses(machines[1])
    assert problem.cause == f"the transaction {RUN} is prepared here and not decided yet"
    assert problem.hint == "type? this"  # it was written by another process
    store.commit_prepared(machines, RUN)
    assert len(store.finish(machines, RUN)) == 3


def test_the_mark_of_one_root_tells_of_the_others_that_it_was_decided(machines: list[Path]) -> None:
    """A machine that died between two marks of its own comes back to one side, whoever starts it."""
    decided_elsewhere(machines)
    store.commit_prepared(machines[1:2], RUN)
    assert {one.forward for one in store.recover(machines)} == {True}
    assert bytes_of(machines) == {patched()}


SCENES = {"apply": applying, "second stage": second_stage, "revert": reverting}


CASES = [f"{scene} without {lost}" for scene in SCENES for lost in ("nobody", "first", "second", "third")]


@pytest.mark.parametrize("case", thinned(CASES, [], CRASH))
def test_killed_at_any_call_of_any_step_all_machines_end_on_one_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, case: str
) -> None:
    """Without one that cannot be reached at first, and comes back to what the others have become."""
    scene, _, lost = case.partition(" without ")
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)

    def arrange(place: str) -> list[Path]:
        shutil.rmtree(tmp_path / place, ignore_errors=True)
        roots = [install(tmp_path / place / name / "site") for name in ("first", "second", "third")]
        if scene != "apply":
            store.commit([applying(root) for root in roots])
        return roots

    undisturbed = arrange("undisturbed")
    before = states(undisturbed)
    drive(undisturbed, SCENES[scene])
    ends = (before, states(undisturbed))
    step = 1 if request.config.getoption("--thorough") else 61
    point, undecided, sides = len(lost), 0, set()
    while True:
        roots = arrange("roots")
        stopped = killed(lambda: drive(roots, SCENES[scene]), point)  # noqa: B023  (called at once)
        reached = [root for root in roots if root.parent.name != lost]
        recover(roots, reached)
        if lost == "first" and (left := StoreFolder(roots[1]).journal()) and not left.committed:
            refuses(roots[1])
            undecided += 1
        recover(roots, roots)
        now = states(roots)
        assert now in ends, point
        assert not any(StoreFolder(root).unfinished() for root in roots), point
        sides.add(ends.index(now))
        if not stopped:
            break
        point += step
    assert sides == {0, 1}
    assert undecided or lost != "first"


def states(roots: Sequence[Path]) -> list[object]:
    """What users see, without the times of what was written."""
    found: list[object] = []
    for root in roots:
        tree = {path: (mode, held) for path, (mode, _time, held) in picture(root).items() if STORE not in path}
        found += [tree, [(one.patch, one.options) for one in StoreFolder(root).records()]]
    return found


def test_between_the_steps_of_a_turn_that_is_held_all_others_wait(machines: list[Path]) -> None:
    root = machines[0]
    with store.locked([root]):
        prepare([root])
        assert refused(root)
        store.commit_prepared([root], RUN)
        assert refused(root)
        store.finish([root], RUN)
        assert refused(root)
    assert not refused(root)
    assert bytes_of([root]) == {patched()}


def refused(root: Path) -> bool:
    """Whether another process is kept out of ``root``."""
    child = os.fork()
    if child == 0:
        lock._kept.clear()  # what the parent keeps is not the child's
        try:
            with store.locked([root], wait=0):
                os._exit(0)
        except Problem:
            os._exit(1)
    return os.waitpid(child, 0)[1] != 0


def test_a_turn_that_was_for_nothing_leaves_nothing(machines: list[Path]) -> None:
    before = [picture(root) for root in machines]
    with store.locked(machines):
        pass
    assert [picture(root) for root in machines] == before


def test_who_comes_first_is_elected_and_all_get_the_same_answer(machines: list[Path]) -> None:
    root = machines[0]
    before = picture(root)
    assert [StoreFolder(root).elect(RUN, name) for name in ("one:a", "two:a", "one:a")] == ["one:a"] * 3
    assert StoreFolder(root).elect("another", "two:a") == "two:a"
    assert StoreFolder(root).unfinished()  # it was left by one that died, as far as anybody knows
    store.recover([root])
    assert picture(root) == before


def test_an_election_that_nothing_came_of_leaves_nothing_while_others_hold_the_lock(machines: list[Path]) -> None:
    """Else the root looks interrupted: whoever holds the lock may have tidied up before the election."""
    root = machines[0]
    store.commit([applying(root)])
    with store.locked([root]):
        child = os.fork()
        if child == 0:
            lock._kept.clear()  # what the parent keeps is not the child's
            StoreFolder(root).elect("another", "two:a")
            pending = StoreFolder(root).unfinished()
            store.withdraw(root, "another")
            os._exit(0 if pending and not StoreFolder(root).unfinished() else 1)
        assert os.waitpid(child, 0)[1] == 0
