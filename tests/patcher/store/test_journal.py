from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from patcher import cli
from patcher.changes.change import Change, Edit
from patcher.messages.errors import Kind, Problem
from patcher.store import journal, registry
from patcher.store import transaction as store
from patcher.store.filesystem.files import digest
from patcher.store.folder import StoreFolder
from tests.matrix import CRASH, thinned
from tests.patcher.cli.conftest import WORKER as RELEASED
from tests.patcher.cli.conftest import release, runner
from tests.patcher.store.tree import (
    OURS,
    PRISTINE,
    WORKER,
    age,
    applying,
    backup,
    install,
    patched,
    picture,
    reverting,
)

KILLER = Path(__file__).with_name("killer.py")


@pytest.mark.parametrize(
    "scenario",
    thinned(
        [
            *(
                "apply ab",
                "add ab",
                "revert ab",
                "apply a linked",
                "revert a linked",
                "apply ab twice",
                "revert ab twice",
            ),
            *("apply ab few", "revert a linked few"),
        ],
        ["apply ab few"],
        CRASH,
    ),
)
def test_killed_at_any_system_call_it_is_before_or_after(
    tmp_path: Path, scenario: str, pytestconfig: pytest.Config
) -> None:
    if scenario.endswith("twice") and not pytestconfig.getoption("--thorough"):
        pytest.skip("--thorough: a minute for each")
    run = subprocess.run(
        [sys.executable, str(KILLER), str(tmp_path), *scenario.split()],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    *wrong, last = run.stdout.splitlines() or [run.stderr]
    assert wrong == [], run.stdout[:2000]
    _points, points, _lost, lost = last.split()
    assert int(points) > 90  # else the calls are not counted, and nothing is proven
    assert int(lost) <= 4  # see "lost" there: two windows of one call for each root


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    return [install(tmp_path / name) for name in ("a", "b")]


@pytest.fixture
def leave(monkeypatch):
    """Leave a transaction behind as a killed process would: with ``marks`` commit marks set."""

    def run(edits: list[Edit], marks: int) -> None:
        real = StoreFolder.commit
        left = [None] * marks

        def mark(folder):
            if not left:
                raise OSError(errno.EIO, "killed")
            left.pop()
            real(folder)

        def stop(folders, *_known):
            if any(StoreFolder(folder.root).unfinished() and folder.journal() for folder in folders):
                raise OSError(errno.EIO, "killed")
            return []

        with monkeypatch.context() as patch:
            patch.setattr(StoreFolder, "commit", mark)
            patch.setattr(store, "end_interrupted", stop)
            with pytest.raises(Problem) as caught:
                store.commit(edits)
            assert caught.value.kind is Kind.ROLLBACK_INCOMPLETE

    return run


def bytes_of(roots: list[Path]) -> list[bytes]:
    return [(root / WORKER).read_bytes() for root in roots]


@pytest.mark.parametrize(
    ("marks", "given", "outcome"),
    [  # the first root's mark decides for both; what is given to recover, and what becomes of a and b
        (0, "ab", "before before"),
        (0, "ba", "before before"),
        (0, "a", "before pending"),
        (0, "b", "pending pending"),  # a may carry the mark: b is not touched
        (1, "ab", "after after"),
        (1, "a", "pending pending"),  # b needs a's mark, so a's journal must stay
        (1, "b", "pending pending"),
        (2, "ab", "after after"),
        (2, "b", "pending after"),
        (2, "a", "pending pending"),
    ],
)
def test_several_roots_are_ended_together(two: list[Path], leave, marks: int, given: str, outcome: str) -> None:
    originals = [picture(root) for root in two]
    leave([applying(root) for root in two], marks)
    chosen = [root for name in given for root in two if root.name == name]
    if all(word != "pending" for root, word in zip(two, outcome.split(), strict=True) if root in chosen):
        assert {one.root for one in store.recover(chosen)} == set(chosen)
    else:
        with pytest.raises(Problem) as caught:
            store.recover(chosen)
        assert caught.value.kind is Kind.ROLLBACK_INCOMPLETE
        assert "rlpatch recover" in caught.value.hint
        assert str(next(root for root in two if root not in chosen)) in caught.value.hint
    for root, original, word in zip(two, originals, outcome.split(), strict=True):
        assert StoreFolder(root).unfinished() == (word == "pending")
        if word == "before":
            assert picture(root) == original
        if word == "after":
            assert bytes_of([root]) == [patched()]
            assert len(StoreFolder(root).records()) == 1
    store.recover(two)  # with all of them it always ends, and alike
    assert len({*bytes_of(two)}) == 1
    assert not any(StoreFolder(root).unfinished() for root in two)


def test_a_first_root_that_is_gone_counts_as_never_committed(two: list[Path], leave) -> None:
    original = picture(two[1])
    leave([applying(root) for root in two], 0)
    shutil.rmtree(two[0])
    store.recover(two)
    assert picture(two[1]) == original


@pytest.mark.parametrize("marks", [0, 1])
@pytest.mark.parametrize("taken", thinned([(), (".rlpatch-old",), (".rlpatch-old", ".rlpatch-old1")], [()]), ids=len)
def test_without_a_first_root_that_was_deleted_the_message_names_a_way_on(
    tmp_path: Path, leave, marks: int, taken: tuple[str, ...]
) -> None:
    """Followed as a user would: what the message says is given to a shell, and what it leaves is all there."""
    roots = [release(tmp_path / name) for name in ("a", "b c")]
    worker, where = roots[1] / RELEASED, ("--path", str(roots[1]))
    original = worker.read_bytes()
    leave([_applied(root) for root in roots], marks)
    assert b"# >>> rlpatch" in worker.read_bytes()
    shutil.rmtree(roots[0])
    for name in taken:
        (roots[1] / name).mkdir()
    stuck = _rlpatch(["rlpatch", "revert", *where], tmp_path)
    said = f"; if somebody deleted {roots[0]}, this command reverts the files that are still patched, by their marker comments: "
    assert stuck.returncode == 7
    way = stuck.stderr.partition(said)[2].partition("\n")[0]
    done = _rlpatch(["sh", "-ec", way], tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"reverted {RELEASED}" in done.stdout
    assert worker.read_bytes() == original
    aside = roots[1] / f".rlpatch-old{len(taken) or ''}"
    assert {path.name for path in roots[1].iterdir() if path.name.startswith(".rlpatch")} == {*taken, aside.name}
    assert digest(original) in {path.name for path in aside.iterdir()}
    assert "no patch was found" in _rlpatch(["rlpatch", "status", *where], tmp_path).stdout


def _applied(root: Path) -> Edit:
    """What an apply does below ``root``, as an edit that is yet to be done."""
    words = ["apply", "vllm-ascend", "--decode", "1:2", "--path", str(root)]
    before = (root / RELEASED).read_bytes()
    assert runner().invoke(cli.rlpatch, words).exit_code == 0
    after, records = (root / RELEASED).read_bytes(), StoreFolder(root).records()
    assert runner().invoke(cli.rlpatch, ["revert", *words[-2:]]).exit_code == 0
    return Edit(root, (Change(PurePosixPath(RELEASED), before, after, before),), add=records)


def _rlpatch(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """What a user types, with rlpatch on PATH."""
    program = folder / "bin" / "rlpatch"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m patcher "$@"\n')
    program.chmod(0o755)
    environ = {"PATH": f"{program.parent}:/usr/bin:/bin", "PYTHONPATH": str(Path(cli.__file__).parents[2])}
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True)


def test_a_root_that_was_moved_still_recovers(two: list[Path], leave) -> None:
    leave([applying(two[0])], 1)
    moved = two[0].rename(two[0].with_name("moved"))
    assert [one.forward for one in store.recover([moved])] == [True]
    assert bytes_of([moved]) == [patched()]


@pytest.mark.parametrize("time", [-(10**18), 9_300_000_000 * 10**9], ids=["before 1970", "beyond 64 bits"])
@pytest.mark.parametrize(("marks", "word"), [(0, "before"), (2, "after")])
def test_files_and_folders_may_be_of_any_time(two: list[Path], leave, time: int, marks: int, word: str) -> None:
    for root in two:
        for path in (root, *root.rglob("*")):
            os.utime(path, ns=(time, time - 1), follow_symlinks=False)
    originals = [picture(root) for root in two]
    leave([applying(root) for root in two], marks)
    store.recover(two)
    assert bytes_of(two) == [patched() if word == "after" else PRISTINE] * 2
    store.commit([reverting(root) for root in two])
    assert [picture(root) for root in two] == originals


@pytest.mark.parametrize("marks", [0, 1])
def test_the_next_commit_recovers_first(two: list[Path], leave, marks: int) -> None:
    root = two[0]
    leave([applying(root)], marks)
    edit = applying(root, OURS + b"more = 1  # rlpatch\n")
    if marks:
        outcome = store.commit([edit])
        assert [one.forward for one in outcome.recovered] == [True]
    else:  # the plan was made on bytes that are gone with the recovery
        with pytest.raises(Problem) as caught:
            store.commit([edit])
        assert caught.value.kind is Kind.FOREIGN_EDIT
        assert "Run your command again" in str(caught.value)
        assert bytes_of([root]) == [PRISTINE]


def test_a_file_that_others_changed_since_is_left_to_them(two: list[Path], leave) -> None:
    root = two[0]
    leave([applying(root)], 0)
    (root / WORKER).write_bytes(b"theirs\n")
    assert store.recover([root]) == [store.Recovered(root, forward=False, left=(str(WORKER),))]
    assert bytes_of([root]) == [b"theirs\n"]
    assert not (root / ".rlpatch").exists()


def test_bytecode_compiled_after_the_kill_is_removed(two: list[Path], leave) -> None:
    root = two[0]
    original = picture(root)
    leave([applying(root)], 0)
    for name in ("worker.cpython-310.pyc", "worker.cpython-311.opt-1.pyc"):
        (root / "pkg" / "__pycache__" / name).write_bytes(b"from the patched source")
    store.recover([root])
    assert picture(root) == original
    assert not list(root.rglob("worker.*pyc"))


def test_a_bytecode_folder_that_went_after_the_kill_stays_away(two: list[Path], leave) -> None:
    root = two[0]
    leave([applying(root)], 0)
    shutil.rmtree(root / "pkg" / "__pycache__")
    store.recover([root])
    assert bytes_of([root]) == [PRISTINE]
    assert not (root / "pkg" / "__pycache__").exists()


def test_bytecode_that_came_and_shall_go_goes(two: list[Path], leave) -> None:
    root = two[0]
    store.commit([applying(root)])
    leave([reverting(root)], 0)
    store.recover([root])
    assert bytes_of([root]) == [patched()]
    assert not list(root.rglob("worker.*pyc"))


def test_a_lost_backup_of_a_source_is_said_and_nothing_else_is_lost(two: list[Path], leave) -> None:
    root = two[0]
    leave([applying(root)], 0)
    (root / ".rlpatch" / digest(PRISTINE)).write_bytes(b"damaged")
    with pytest.raises(Problem) as caught:
        store.recover([root])
    assert (caught.value.kind, caught.value.where) == (Kind.ROLLBACK_INCOMPLETE, str(root / WORKER))
    (root / WORKER).write_bytes(PRISTINE)  # as the hint says
    store.recover([root])
    assert not StoreFolder(root).unfinished()


# --- a journal that somebody else has written -------------------------------------------------------------


def doctor(root: Path, name: str, change) -> None:
    path = root / ".rlpatch" / name
    top = json.loads(path.read_bytes())
    change(top)
    path.write_text(json.dumps(top))


@pytest.mark.parametrize(
    "path",
    ["../outside/worker.py", "/etc/passwd", "pkg/../../x.py", "", ".", "./x", ".rlpatch/lock", "a\0b", 7],
)
def test_a_path_out_of_the_root_is_refused(two: list[Path], leave, path: object) -> None:
    root = two[0]
    leave([applying(root)], 0)
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "worker.py").write_bytes(patched())
    doctor(root, "journal.json", lambda top: top["moves"][0].update(path=path))
    with pytest.raises(Problem) as caught:
        store.recover([root])
    assert caught.value.kind is Kind.ENVIRONMENT
    assert (outside / "worker.py").read_bytes() == patched()


def test_a_folder_that_became_a_link_out_of_the_root_is_refused(two: list[Path], leave) -> None:
    root = two[0]
    leave([applying(root)], 0)
    outside = root.parent / "outside"
    (root / "pkg").rename(outside)
    (root / "pkg").symlink_to(outside)
    before = picture(outside)
    with pytest.raises(Problem, match="is outside of /"):
        store.recover([root])
    assert picture(outside) == before


def test_participants_are_never_visited(two: list[Path], leave) -> None:
    leave([applying(two[0])], 0)
    before = picture(two[1])
    doctor(two[0], "journal.json", lambda top: top.update(participants=[str(two[0]), str(two[1])]))
    store.recover([two[0]])
    assert picture(two[1]) == before


NODE = {"digest": "0" * 64, "link": None, "mode": 0, "uid": 0, "gid": 0, "atime_ns": None, "mtime_ns": None}


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"participants": []},
        {"participants": "ab"},
        {"index": 5},
        {"index": -1},
        {"index": "0"},
        {"transaction": None},
        {"moves": [{"path": "x.py", "before": None, "after": NODE}]},
        {"moves": [{"path": "x.py", "before": {**NODE, "digest": "../../etc"}, "after": NODE}]},
        {"moves": [{"path": "x.py", "before": {**NODE, "link": 3}, "after": NODE}]},
        {"moves": [{"path": "x.py", "before": {**NODE, "uid": -1}, "after": NODE}]},
        {"moves": 3},
        {"back": {"..": None}},
        {"back": {"pkg": {"names": "x", "atime_ns": 1, "mtime_ns": 1}}},
        {"ahead": []},
    ],
)
def test_a_damaged_journal_is_refused_and_stays(two: list[Path], leave, change: dict[str, object]) -> None:
    root = two[0]
    leave([applying(root)], 0)
    doctor(root, "journal.json", lambda top: top.update(change))
    with pytest.raises(Problem, match="journal\\.json cannot be read") as caught:
        store.recover([root])
    assert caught.value.kind is Kind.ENVIRONMENT
    assert StoreFolder(root).unfinished()
    assert bytes_of([root]) == [patched()]


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff", b"not json", b'{"version": 1, "records": [{}]}'])
def test_a_damaged_registry_is_refused(two: list[Path], text: bytes) -> None:
    store.commit([applying(two[0])])
    (two[0] / ".rlpatch" / "state.json").write_bytes(text)
    for call in (
        lambda root: StoreFolder(root).records(),
        backup,
        lambda root: store.commit([reverting(root)]),
    ):
        with pytest.raises(Problem, match="state\\.json cannot be read") as caught:
            call(two[0])
        assert caught.value.kind is Kind.ENVIRONMENT
    assert bytes_of(two[:1]) == [patched()]


def test_the_registry_survives_its_text(two: list[Path]) -> None:
    store.commit([applying(two[0])])
    state = StoreFolder(two[0]).registry()
    assert registry.read(registry.text_of(state), registry.registry_of) == state
    assert state.files[str(WORKER)].digest == digest(PRISTINE)
    assert state.folders.keys() == {"pkg"}


def test_a_top_level_module_keeps_the_time_of_the_root(tmp_path: Path) -> None:
    root = install(tmp_path / "r")
    (root / "single.py").write_bytes(PRISTINE)
    age(root)
    before = picture(root)
    path = PurePosixPath("single.py")
    store.commit([applying(root, path=path)])
    store.commit(
        [Edit(root, (Change(path, patched(), PRISTINE, PRISTINE),), remove=(StoreFolder(root).records()[0].patch,))]
    )
    assert picture(root) == before


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (lambda: OSError(errno.EIO, "Input/output error"), Kind.ROLLED_BACK),
        (KeyboardInterrupt, Kind.INTERRUPTED),
        (lambda: Problem(Kind.ENVIRONMENT, "the folder is read-only"), Kind.ENVIRONMENT),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_a_commit_that_fails_says_whether_it_has_ended_another_run(
    two: list[Path], leave, monkeypatch, error, kind: Kind, ended: bool
) -> None:
    """Of that run nobody would learn otherwise, and what was planned before it ended may no longer be true."""

    def stop(_edits):
        raise error()

    edit = applying(two[0])
    if ended:
        leave([edit], 0)
    monkeypatch.setattr(store, "preflight", stop)
    with pytest.raises(Problem) as caught:
        store.commit([edit])
    assert caught.value.kind is kind
    assert bytes_of(two) == [PRISTINE] * 2
    assert (
        any(
            "an earlier rlpatch command was interrupted, and rlpatch has recovered from it. Run your command again"
            in note
            for note in caught.value.notes
        )
        is ended
    )


@pytest.mark.parametrize(("marks", "end"), [(0, PRISTINE), (1, patched())])
def test_a_recovery_that_stops_between_two_roots_decides_the_same_again(
    two: list[Path], leave, monkeypatch, marks: int, end: bytes
) -> None:
    leave([applying(root) for root in two], marks)
    real = journal._clean_up
    ended: list[object] = []

    def stop(*args):
        if ended:
            raise OSError(errno.EIO, "killed")
        ended.append(real(*args))

    with monkeypatch.context() as patch:
        patch.setattr(journal, "_clean_up", stop)
        with pytest.raises(Problem):
            store.recover(two)
    store.recover(two)
    assert bytes_of(two) == [end, end]
    assert [len(StoreFolder(root).records()) for root in two] == [marks, marks]
