"""In a tree of several users, and as root in somebody else's: who owns, who reads and who is believed."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

from patcher.changes.change import Change, Edit
from patcher.store import transaction as store
from patcher.store.filesystem import rights
from patcher.store.filesystem.files import digest, folder_state
from patcher.store.folder import StoreFolder
from tests.matrix import CRASH, every, thinned
from tests.patcher.reliability import faulty, package
from tests.patcher.reliability.package import V0, V1, Picture
from tests.patcher.reliability.people import (
    ACL,
    DEFAULT,
    NO_CONTAINER,
    ROOT,
    Bare,
    Contained,
    Person,
    Said,
    WithSubordinates,
    acl,
    does,
    give,
    may,
    types,
    yard_on,
)
from tests.patcher.store import tree

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be everybody")

APPLY = ("apply", "vllm-ascend", "--decode", "30:60", "--save-path", "/tmp/traces")
AGAIN = ("apply", "vllm-ascend", "--decode", "1:2", "--save-path", "/tmp/traces")
ME, SHE, HE = Person(4001, 100, (200,)), Person(4009, 100), Person(4010, 100)
STRANGER = Person(4004, 400)
PEOPLE = (ROOT, ME, SHE, HE, STRANGER, Person(4005, 500), Person(4006, 4500), Person(4007, 200))


@pytest.fixture(scope="session")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Load what the commands need, because others may not be able to read where it lies."""
    site = package.install(tmp_path_factory.mktemp("loaded") / "site")
    for words in (APPLY, ("status",), ("status", "--json"), ("revert",), ("recover",)):
        assert package.rlpatch(site, *words).exit_code == 0
    assert package.rlpatch(site, "apply", "vllm").exit_code


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "disk" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--thorough", default=False)
        metafunc.parametrize("disk", ["memory", "ext4", "xfs", "btrfs"] if everything else ["memory"])


@pytest.fixture
def yard(loaded, disk: str) -> Iterator[Path]:
    with yard_on(disk) as path:
        yield path


@pytest.fixture
def site(yard: Path) -> Path:
    return give(package.install(yard / "site"), ME)


@pytest.fixture
def run(yard: Path, site: Path) -> Callable[..., tuple[int, str]]:
    return lambda person, *words: types(person, site, *words, said=yard / "said")


# --- who is believed ------------------------------------------------------------------------------------


def doctored(site: Path, **changes: object) -> None:
    """A store as the owner of the tree can make it: a journal that wants other bytes in a file, and more."""
    mine = site / ".rlpatch"
    mine.mkdir()
    other = b"#!/bin/sh\n"
    (mine / digest(other)).write_bytes(other)
    now = {"digest": digest((site / V1).read_bytes()), "link": None, "mode": 0o640, "uid": 0, "gid": 0,
           "atime_ns": 1, "mtime_ns": 1}  # fmt: skip
    before = {**now, "digest": digest(other), "mode": 0o6755}
    (mine / "journal.json").write_text(
        json.dumps(
            {"version": 1, "transaction": "x", "participants": [str(site)], "index": 0, "empties": True, "ahead": {},
             "back": {}, "moves": [{"path": V1, "before": before, "after": now}], **changes}
        )
    )  # fmt: skip


@pytest.mark.parametrize("words", [("recover",), APPLY, ("revert",)], ids=lambda words: words[0])
def test_a_doctored_journal_gives_no_rights(yard: Path, site: Path, run, words: tuple[str, ...]) -> None:
    doctored(site)
    give(site, STRANGER)
    run(ROOT, *words)
    for path in site.rglob("*"):
        status = path.lstat()
        assert stat.S_ISDIR(status.st_mode) or status.st_mode & 0o6000 == 0, path
        assert status.st_uid == STRANGER.uid or ".rlpatch" in path.parts, path


@pytest.mark.parametrize("name", ["link", "link/inner", "vllm_ascend/link"])
def test_the_time_of_a_folder_behind_a_link_is_not_set(yard: Path, site: Path, run, name: str) -> None:
    outside = yard / "outside"
    (outside / "inner").mkdir(parents=True)
    (site / name.removesuffix("/inner")).symlink_to(outside)
    behind = site / name
    seen = folder_state(behind.resolve())
    assert seen is not None
    doctored(site, back={name: {"names": seen.names, "atime_ns": 5, "mtime_ns": 5}}, moves=[])
    give(site, STRANGER)
    before = Picture(yard / "outside"), outside.stat().st_mtime_ns
    run(ROOT, "recover")
    assert (Picture(outside), outside.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    ("root", "root_mode", "owner", "mode", "caller", "believed"),
    every(4, [
        (ROOT, 0o755, STRANGER, 0o755, ROOT, False),
        (ROOT, 0o1777, STRANGER, 0o755, ROOT, False),
        (ROOT, 0o1777, STRANGER, 0o755, ME, False),
        (ROOT, 0o1777, ME, 0o755, ME, True),
        (ME, 0o755, ME, 0o755, ROOT, True),
        (ME, 0o755, ROOT, 0o755, ME, True),
        (ME, 0o755, SHE, 0o755, ME, False),
        (ME, 0o755, ME, 0o777, ME, False),
        (ME, 0o755, ME, 0o775, ME, False),
        (ME, 0o2775, SHE, 0o2775, ME, True),  # the group can replace all that is in the root anyway
        (ME, 0o2775, SHE, 0o755, HE, True),
        (ME, 0o3775, SHE, 0o755, HE, False),
        (ME, 0o2777, SHE, 0o755, HE, False),
        (ME, 0o775, Person(STRANGER.uid, 400), 0o775, ME, False),
    ]),
)  # fmt: skip
def test_a_store_is_believed_only_of_those_who_could_change_the_root(
    site: Path, run, root: Person, root_mode: int, owner: Person, mode: int, caller: Person, believed: bool
) -> None:
    assert run(ME, *APPLY).code == 0
    give(give(site, root, root_mode) / ".rlpatch", owner, mode)
    before = Picture(site)
    for words in (("status",), ("recover",), ("revert", "--dry-run"), APPLY):
        said = run(caller, *words)
        if believed:
            assert "believed" not in said.text
        else:
            assert (said.code, "does not trust" in said.text, ".rlpatch" in said.text) == (5, True, True), words
    assert Picture(site) == before


# --- folders of a colleague -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", thinned(["vllm_ascend/worker", "."], ["vllm_ascend/worker"], CRASH))
def test_a_folder_of_a_colleague_gets_a_new_time_and_stops_nothing(site: Path, run, name: str) -> None:
    hers = site / name
    os.chown(hers, SHE.uid, 100)
    hers.chmod(0o2775)
    held = Picture(site).held
    foreseen = run(ME, *APPLY, "--dry-run", "-v")
    assert (foreseen.code, f"belongs to user {SHE.uid}" in foreseen.text) == (0, True)
    done = run(ME, *APPLY, "-v")
    assert (done.code, f"belongs to user {SHE.uid}" in done.text) == (0, True)
    for person in (ME, SHE, HE):
        assert run(person, "status").code == 0
    assert run(ME, "recover").code == 0
    assert run(ME, *AGAIN).code == 0
    assert run(ME, "revert").code == 0
    assert Picture(site).held == held
    assert not (site / ".rlpatch").exists()


@pytest.mark.parametrize("mode", thinned([0o700, 0o711], [0o711], CRASH))
def test_a_bytecode_folder_that_a_colleague_has_closed_stops_nothing(site: Path, run, mode: int) -> None:
    """What is in it stays, and is stale by the time of its source."""
    hers = site / "vllm_ascend" / "worker" / "__pycache__"
    give(hers, SHE, mode)
    before = Picture(site)
    for words in ((*APPLY, "--dry-run"), APPLY, ("status",), AGAIN, ("revert",)):
        assert run(ME, *words).code == 0, words
    assert Picture(site) == before


def test_a_colleague_is_refused_before_anything_is_written(site: Path, run) -> None:
    give(site, ME, 0o2775)
    before = Picture(site)
    for words in (APPLY, (*APPLY, "--dry-run")):
        said = run(SHE, *words)
        assert (said.code, f"belongs to user {ME.uid}" in said.text) == (5, True)
    assert Picture(site) == before
    assert not (site / ".rlpatch").exists()


def test_bytecode_of_a_colleague_that_cannot_go_is_foreseen(site: Path, run) -> None:
    caches = site / "vllm_ascend" / "worker" / "__pycache__"
    give(caches, ROOT, 0o1777)
    for path in caches.iterdir():
        os.chown(path, SHE.uid, SHE.gid)
    before = Picture(site)
    for words in ((*APPLY, "--dry-run"), APPLY):
        said = run(ME, *words)
        assert (said.code, f"belongs to user {SHE.uid}, and you have no permission to delete it" in said.text) == (
            5,
            True,
        ), said
    assert Picture(site) == before


def test_bytecode_of_a_colleague_is_removed_though_nobody_else_may_read_it(site: Path, run) -> None:
    caches = site / "vllm_ascend" / "worker" / "__pycache__"
    for path in caches.iterdir():
        give(path, SHE, 0o600)
    caches.chmod(0o777)
    before = Picture(site)
    for words in (APPLY, ("revert",)):
        assert run(ME, *words).code == 0, words
    assert (Picture(site), list(caches.glob("worker_v1.*"))) == (before, [])


def test_a_store_that_lets_nobody_in_is_said(site: Path, run) -> None:
    assert run(ME, *APPLY).code == 0
    (site / ".rlpatch").chmod(0o2700)
    for words in (("status",), ("revert",), APPLY, ("recover",)):
        said = run(STRANGER, *words)
        assert (said.code, f"user {ME.uid}" in said.text, "rlpatch recover" in said.text) == (5, True, True), said


def by_list(path: Path) -> None:
    listed(path, "u::7", f"u:{ME.uid}:7", f"u:{HE.uid}:7", "g::0", "m::7", "o::5")


@pytest.mark.parametrize(
    "share",
    [lambda path: path.chmod(0o2775), lambda path: path.chmod(0o775), by_list],
    ids=["setgid", "group", "list"],
)
def test_a_shared_tree_is_for_all_who_share_it(yard: Path, share: Callable[[Path], object]) -> None:
    root = give(tree.install(yard / "shared"), SHE)
    files = {ME: tree.WORKER, HE: PurePosixPath("pkg/worker_v1.py")}
    for path in (root, root / "pkg", root / "pkg" / "__pycache__"):
        share(path)
    for person, file in files.items():
        give(root / file, person)
        for path in (root / "pkg" / "__pycache__").glob(f"{file.stem}.*"):
            give(path, person)
    give(root / "pkg" / "worker.pyc", ME)
    before = {key: value[::2] for key, value in tree.picture(root).items()}
    said = yard / "said"

    def applying(person: Person) -> Callable[[Path], object]:
        def work(site: Path) -> None:
            before = (site / files[person]).read_bytes()
            change = Change(files[person], before, before + tree.OURS, before)
            record = tree.record(tree.ROLLOUT if person == ME else tree.UPDATE, str(files[person]))
            store.commit([Edit(site, (change,), add=(record,))])

        return work

    def reverting(person: Person) -> Callable[[Path], object]:
        patch = tree.ROLLOUT if person == ME else tree.UPDATE
        return lambda site: store.commit([tree.reverting(site, patch, files[person])])

    for person in files:
        assert does(person, applying(person), root, said=said).code == 0, said.read_text()
    assert does(STRANGER, lambda site: len(StoreFolder(site).records()) == 2 or 1 / 0, root, said=said).code == 0
    assert stat.S_IMODE((root / ".rlpatch").stat().st_mode) == 0o2775
    for person in files:
        assert does(person, reverting(person), root, said=said).code == 0, said.read_text()
    assert {key: value[::2] for key, value in tree.picture(root).items()} == before


# --- runs that were interrupted -------------------------------------------------------------------------


def dies(work: Callable[[Path], object]) -> Callable[[Path], object]:
    """``work``, killed before the commit mark: every file holds the new bytes, and the journal the way back."""

    def run(site: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StoreFolder, "commit", lambda _folder: os._exit(0))
            work(site)

    return run


def test_only_the_owner_and_root_can_end_a_run_in_a_shared_tree(yard: Path) -> None:
    root = give(tree.install(yard / "shared"), ME)
    for path in (root, root / "pkg", root / "pkg" / "__pycache__"):
        path.chmod(0o2775)
    said, before = yard / "said", tree.picture(root)
    assert does(ME, dies(lambda site: store.commit([tree.applying(site)])), root, said=said).code == 0
    left = tree.picture(root / "pkg")
    answer = does(HE, lambda site: store.recover([site]), root, said=said)
    assert (answer.code, f"belongs to user {ME.uid}" in answer.text) == (7, True), answer
    assert tree.picture(root / "pkg") == left
    assert does(ME, lambda site: store.recover([site]), root, said=said).code == 0
    assert tree.picture(root) == before


def test_a_chmod_of_others_stays_when_a_run_is_undone(yard: Path, site: Path, run) -> None:
    before = Picture(site)
    apply = faulty.command(*APPLY)
    assert does(ROOT, dies(apply), site, said=yard / "said").code == 0
    (site / V1).chmod(0o600)
    os.chown(site / V1, 4242, 4243)
    assert run(ROOT, "recover").code == 0
    status = (site / V1).stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o600, 4242, 4243)
    (site / V1).chmod(package.MODE)
    assert Picture(site) == before


# --- who may read and write -----------------------------------------------------------------------------


def copies(site: Path, *contents: bytes) -> list[Path]:
    return [path for path in (site / ".rlpatch").iterdir() if path.read_bytes() in contents]


def owned(path: Path, group: int, mode: int | None = None) -> None:
    os.chown(path, ME.uid, group)
    if mode is not None:
        path.chmod(mode)


def listed(path: Path, *entries: str, name: str = ACL) -> None:
    os.setxattr(path, name, acl(*entries))


def default_list(path: Path) -> None:
    listed(path, "u::7", "u:4005:7", "g::7", "g:4500:7", "m::7", "o::5", name=DEFAULT)


def default_lists(site: Path, file: Path) -> None:
    default_list(site)
    default_list(file.parent)


def list_and_strange_group(_site: Path, file: Path) -> None:
    owned(file, 4500)
    listed(file, "u::6", "u:4005:4", "g::4", "m::4", "o::0")


def folder_with_list(_site: Path, file: Path) -> None:
    file.chmod(0o644)
    listed(file.parent, "u::7", "u:4010:5", "g::0", "m::5", "o::0")


CASES: dict[str, Callable[[Path, Path], object]] = {
    "private": lambda site, file: file.chmod(0o600),
    "of the caller's other group": lambda site, file: owned(file, 200),
    "of a group of the caller's": lambda site, file: owned(file, 200, 0o660),
    "readable by all, of a strange group": lambda site, file: owned(file, 4500, 0o644),
    "of a strange group that is kept out": lambda site, file: owned(file, 4500, 0o604),
    "of a strange group": lambda site, file: owned(file, 4500, 0o640),
    "a strange group that writes": lambda site, file: owned(file, 4500, 0o660),
    "default list on the root": lambda site, file: default_list(site),
    "default list on the package": lambda site, file: default_list(file.parent),
    "default list on both": default_lists,
    "a list that lets in": lambda site, file: listed(file, "u::6", "u:4005:4", "g::0", "m::4", "o::0"),
    "a list that keeps out": lambda site, file: listed(file, "u::6", "u:4010:0", "g::4", "m::4", "o::0"),
    "a list and a strange group": list_and_strange_group,
    "a folder of another group": lambda site, file: owned(file.parent, 200, 0o750),
    "a folder with a list": folder_with_list,
    "a setgid folder": lambda site, file: owned(file.parent, 4500, 0o2755),
}  # fmt: skip
REFUSED = {"of a strange group", "a strange group that writes", "of a strange group that is kept out",
           "a list and a strange group"}  # fmt: skip
SHORT = ("of a strange group", "a list that keeps out")


@pytest.mark.parametrize("caller", thinned([ME, ROOT], [ROOT], CRASH), ids=["owner", "root"])
@pytest.mark.parametrize("case", thinned([*CASES], SHORT))
def test_nobody_may_do_more_than_with_the_original(site: Path, run, case: str, caller: Person) -> None:
    file = site / V1
    CASES[case](site, file)
    original, bytes_before = may(PEOPLE, file), file.read_bytes()
    before = Picture(site)
    for words in ((*APPLY, "--dry-run"), APPLY):
        said = run(caller, *words)
        assert (said.code == 5) is (caller == ME and case in REFUSED), said
    if said.code:
        assert f"group {file.stat().st_gid}" in said.text
        assert Picture(site) == before
        assert not (site / ".rlpatch").exists()
        return
    assert said.code == 0
    assert may(PEOPLE, file) == original
    backups = copies(site, bytes_before)
    assert backups
    for path in backups:
        wider = {who for who, can in may(PEOPLE, path).items() if can and not original[who]}
        assert {who for who in wider if who[0] != ROOT} == set()
    assert run(caller, "revert").code == 0
    assert may(PEOPLE, file) == original
    assert Picture(site) == before


@pytest.mark.parametrize("caller", thinned([ME, ROOT], [ROOT], CRASH), ids=["owner", "root"])
def test_a_group_that_a_file_loses_is_foreseen(site: Path, run, caller: Person) -> None:
    """All may read it, so nobody loses a right by it; but neither apply nor revert can give it back."""
    owned(site / V1, 4500, 0o644)
    for words in ((*APPLY, "--dry-run"), APPLY):
        text = run(caller, *words, "-v").text
        assert ("the group of worker_v1.py will change" in text) is (caller == ME)
        assert ("belongs to group 4500, of which you are not a member" in re.sub(r"\s+", " ", text)) is (caller == ME)
    assert run(caller, "revert").code == 0
    assert (site / V1).stat().st_gid == (ME.gid if caller == ME else 4500)


def test_traces_may_go_where_the_user_of_the_engine_alone_can_look(site: Path, run, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    words = ("apply", "vllm-ascend", "--decode", "3:6", "--save-path", str(closed / "below" / "traces"))
    said = run(ME, *words)
    assert said.code == 0, said.text


@pytest.mark.parametrize("caller", thinned([ME, ROOT], [ROOT], CRASH), ids=["owner", "root"])
def test_lists_and_attributes_are_kept(site: Path, run, caller: Person) -> None:
    file = site / V1
    listed(file, "u::6", "u:4005:6", "g::0", "m::6", "o::0")
    names = ["user.note", *(["security.note", "trusted.note"] if caller == ROOT else [])]
    for name in names:
        os.setxattr(file, name, b"\x00\xff theirs")

    def seen() -> dict[str, bytes]:
        return {name: os.getxattr(file, name) for name in os.listxattr(file)}

    before, picture = seen(), Picture(site)
    assert {ACL, *names} <= before.keys()  # xfs shows root a list of its own, too
    assert run(caller, *APPLY).code == 0
    assert seen() == before
    listed(file, "u::6", "u:4006:4", "g::0", "m::4", "o::0")
    os.setxattr(file, "user.later", b"1")
    assert "the file's extended attributes have changed" in run(caller, "status").text
    later = seen()
    assert run(caller, *AGAIN).code == 0
    assert "attributes" not in run(caller, "status").text
    assert run(caller, "revert").code == 0
    assert seen() == later
    assert Picture(site).held[V0] == picture.held[V0]


@pytest.mark.parametrize(("name", "caller"), [("security.capability", ROOT), ("security.note", ME)])
def test_an_attribute_that_cannot_be_kept_is_refused(site: Path, run, name: str, caller: Person) -> None:
    value = bytes.fromhex("0000000200040000000000000000000000000000")
    os.setxattr(site / V1, name, value)
    before = Picture(site)
    for words in ((*APPLY, "--dry-run"), APPLY):
        said = run(caller, *words)
        assert (said.code, name in said.text) == (5, True)
    assert (Picture(site), (site / ".rlpatch").exists()) == (before, False)


@pytest.mark.parametrize(("nameless", "code"), [(True, 5), (False, 6)], ids=["tried before", "cannot be tried"])
def test_a_label_that_only_the_kernel_can_refuse_is_named(site: Path, run, monkeypatch, nameless: bool, code) -> None:
    """As one of SELinux, of which nothing can be guessed; without files that have no name `--dry-run` cannot know."""
    monkeypatch.setattr(rights, "_can_set", lambda _name: True)
    if not nameless:
        monkeypatch.setattr(rights, "_NAMELESS", os.O_CREAT | os.O_EXCL)
    os.setxattr(site / V1, "security.note", b"system_u:object_r:lib_t:s0")
    before = Picture(site)
    assert run(ME, *APPLY, "--dry-run").code == (5 if nameless else 0)
    said = run(ME, *APPLY)
    assert (said.code, "attribute security.note" in said.text) == (code, True), said
    assert (Picture(site), (site / ".rlpatch").exists()) == (before, False)


# --- in containers --------------------------------------------------------------------------------------

INSIDE = [Contained(ME.uid, ME.gid, (200, 4500)), WithSubordinates(ME.uid, ME.gid, (200, 4500))]
OUTSIDE = Person(ME.uid, ME.gid, (200, 4500))
BLAMES = r"it was \d"
"""What `status` says of rights that others have changed."""


@pytest.fixture(params=thinned([*INSIDE], [INSIDE[-1]], CRASH), ids=["alone", "with subordinates"])
def contained(run: Callable[..., Said], request: pytest.FixtureRequest) -> Callable[..., Said]:
    """Runs a command line in a container."""

    def contained(*words: str) -> Said:
        said = run(request.param, *words)
        if said.code == NO_CONTAINER:
            pytest.skip("no container can be made here")
        return said

    return contained


@pytest.mark.parametrize(
    ("uid", "gid", "mode"),
    [(ME.uid, 4500, 0o640), (ME.uid, 4500, 0o660), (ME.uid, 4500, 0o604), (4242, ME.gid, 0o660)],
)
def test_a_group_or_a_user_that_a_container_does_not_know_is_foreseen(
    site: Path, contained, uid, gid, mode: int
) -> None:
    os.chown(site / V1, uid, gid)
    (site / V1).chmod(mode)
    before = Picture(site)
    for words in ((*APPLY, "--dry-run"), APPLY):
        said = contained(*words)
        assert (said.code, "does not exist in this container" in said.text) == (5, True), said
    assert (Picture(site), (site / ".rlpatch").exists()) == (before, False)


def test_what_was_patched_outside_of_a_container_is_told_in_it_and_stays(site: Path, run, contained) -> None:
    os.chown(site / V1, ME.uid, 4500)
    before = Picture(site)
    assert run(OUTSIDE, *APPLY).code == 0
    patched = Picture(site)
    for words, code in ((("status",), 0), (("diff",), 0), (("revert", "--dry-run"), 5), (("revert",), 5)):
        said = contained(*words)
        assert (said.code, re.findall(BLAMES, said.text)) == (code, []), said
        assert ("does not exist in this container" in said.text) is (code == 5)
    assert Picture(site) == patched
    assert run(OUTSIDE, "revert").code == 0
    assert Picture(site) == before


def test_a_store_of_somebody_whom_a_container_does_not_know_is_not_believed(site: Path, run, contained) -> None:
    assert run(ROOT, *APPLY).code == 0
    patched = Picture(site)
    for words in (("status",), ("diff",), ("revert",), ("recover",)):
        said = contained(*words)
        assert said.code == 5, said
        assert "this folder belongs to a user who does not exist in this container" in said.text
        assert "next: run rlpatch outside of the container" in said.text
    assert Picture(site) == patched


def test_a_group_that_a_container_does_not_know_stops_nothing_where_all_may_read(site: Path, run, contained) -> None:
    os.chown(site / V1, ME.uid, 4500)
    (site / V1).chmod(0o644)
    before = Picture(site)
    for words in ((*APPLY, "--dry-run"), APPLY, ("status",), ("diff",), ("revert",)):
        said = contained(*words)
        assert (said.code, re.findall(BLAMES, said.text)) == (0, []), said
        assert (site / V1).stat().st_gid in (4500, ME.gid)  # not that of nobody in the container
    assert Picture(site) == before


def test_a_list_that_names_users_whom_a_container_does_not_know_is_foreseen(site: Path, contained) -> None:
    listed(site / V1, "u::6", "u:4005:4", "g::4", "m::4", "o::0")
    before = Picture(site)
    for words in ((*APPLY, "--dry-run"), APPLY):
        said = contained(*words)
        assert (said.code, ACL in said.text) == (5, True), said
    assert (Picture(site), (site / ".rlpatch").exists()) == (before, False)


@pytest.mark.parametrize(("mode", "code"), [(0o644, 0), (0o640, 5)])
def test_root_without_the_rights_of_root_is_no_owner_of_all(site: Path, run, mode: int, code: int) -> None:
    give(site, ROOT)
    os.chown(site / V1, 0, 4500)
    (site / V1).chmod(mode)
    before = Picture(site)
    for words in ((*APPLY, "--dry-run"), APPLY, ("status",), ("revert",)):
        said = run(Bare(0, 0), *words)
        assert said.code == (code if words[0] == "apply" else 0), said
        assert re.findall(BLAMES, said.text) == []
    assert Picture(site) == before


def test_a_copy_of_what_is_behind_a_link_is_no_more_open(yard: Path, site: Path, run) -> None:
    cache = yard / "cache"
    cache.mkdir(0o700)
    give(cache, ME)
    (site / V1).rename(cache / "worker.py")
    (cache / "worker.py").chmod(0o644)
    (site / V1).symlink_to(cache / "worker.py")
    os.chown(site / V1, ME.uid, ME.gid, follow_symlinks=False)
    before, original = Picture(site), may(PEOPLE, site / V1)
    assert run(ROOT, *APPLY).code == 0
    assert may(PEOPLE, site / V1) == original
    assert run(ROOT, "revert").code == 0
    assert Picture(site) == before
    give(cache / "worker.py", STRANGER, 0o600)
    said = run(ROOT, *APPLY)
    assert (said.code, "the link points to" in said.text) == (5, True)
    assert Picture(site) == before


# --- rights that others change --------------------------------------------------------------------------


@pytest.mark.parametrize("between", [(), AGAIN], ids=["revert", "again and revert"])
def test_a_chmod_and_a_chown_of_others_stay(site: Path, run, between: tuple[str, ...]) -> None:
    assert run(ROOT, *APPLY).code == 0
    assert "mode" not in run(ROOT, "status").text
    os.chown(site / V1, 4242, 4243)
    (site / V1).chmod(0o600)
    said = run(ROOT, "status").text
    assert all(
        words in said
        for words in ("the file's mode is 0600 instead of 0640", "the file's owner is 4242:4243 instead of 4001:100")
    )
    assert not between or run(ROOT, *between).code == 0
    assert run(ROOT, "revert").code == 0
    status = (site / V1).stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o600, 4242, 4243)
    assert (stat.S_IMODE((site / V0).stat().st_mode), (site / V0).stat().st_uid) == (package.MODE, ME.uid)


def test_the_bits_of_a_program_are_not_given(site: Path, run) -> None:
    (site / V1).chmod(0o6755)
    assert run(ROOT, *APPLY).code == 0
    assert stat.S_IMODE((site / V1).stat().st_mode) == 0o755
    assert run(ROOT, "revert").code == 0
    assert stat.S_IMODE((site / V1).stat().st_mode) == 0o755
