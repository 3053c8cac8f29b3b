"""Choice of the configuration file: never through a link, never one that others may have written, of bounded size."""

from __future__ import annotations

import grp
import os
import pwd
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from patcher.cli import nearest
from patcher.store.filesystem import opened, rights
from tests.matrix import MATRIX, thinned
from tests.patcher.reliability.people import acl

Run = Callable[..., Result]
NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration that names a folder without packages; the shell stands beside it."""
    folder = tmp_path / "project"
    (folder / "empty").mkdir(parents=True)
    folder.chmod(0o755)
    monkeypatch.chdir(folder)
    path = folder / "rlpatch.toml"
    path.write_text('path = "empty"\n')
    path.chmod(0o644)
    return path


def _linked(file: Path) -> None:
    file.rename(file.parent.parent / "own.toml")
    file.symlink_to("../own.toml")


def _replaced(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def change(file: Path) -> None:
        file.unlink()
        make(file)

    return change


def _given(what: str) -> Callable[[Path], object]:
    return lambda file: os.chown(file if what == "file" else file.parent, NOBODY, NOBODY)


def _open(what: str, mode: int, gid: int = -1) -> Callable[[Path], object]:
    def change(file: Path) -> None:
        path = file if what == "file" else file.parent
        os.chown(path, -1, gid)
        path.chmod(mode)

    return change


def _listed(file: Path) -> None:
    _open("file", 0o664, 0)(file)
    try:
        os.setxattr(file, rights.ACL, acl("u::6", f"u:{NOBODY}:6", "g::4", "m::6", "o::4"))
    except OSError:
        pytest.skip("this file system has no access control lists")


REFUSED = {
    "a link": (_linked, "the file is a link", "replace the link"),
    "a link to nothing": (_replaced(lambda file: file.symlink_to("nowhere")), "the file is a link", "replace the link"),
    "a link to /dev/zero": (_replaced(lambda file: file.symlink_to("/dev/zero")), "the file is a link", "replace the link"),
    "a folder": (_replaced(Path.mkdir), "not a regular file", "replace the configuration file with a regular file"),
    "a pipe": (_replaced(os.mkfifo), "not a regular file", "replace the configuration file with a regular file"),
    "all may write": (_open("file", 0o646), "other users can write to the file", "chmod g-w,o-w {file}"),
    "all may write the folder": (_open("folder", 0o757), "other users can write to the folder", "chmod g-w,o-w {folder}"),
    "sticky": (_open("folder", 0o1777), "other users can write to the folder", "move the file to a folder that only you can write to"),
    "large": (lambda file: os.truncate(file, nearest.MOST_BYTES + 1), "the file is larger than 256 KiB", "make the file smaller"),
    "300 MB": (lambda file: os.truncate(file, 300 << 20), "the file is larger than 256 KiB", "make the file smaller"),
}  # fmt: skip
REFUSED_AS_ROOT = {
    "a group may write": (_open("file", 0o664, NOBODY), "other users can write to the file", "chmod g-w,o-w {file}"),
    "a group may write the folder": (
        _open("folder", 0o775, NOBODY),
        "other users can write to the folder",
        "chmod g-w,o-w",
    ),
    "a listed user may write": (_listed, "other users can write to the file", "chmod g-w,o-w {file}"),
}
FOREIGN = {
    "file": (_given("file"), "another user owns the file", "type --path or --python"),
    "folder": (_given("folder"), "another user owns the folder", "type --path or --python"),
}
SHORT = ("a pipe", "all may write", "300 MB", "a group may write", "file")
ALL = {
    **{name: pytest.param(*case, False, id=name) for name, case in REFUSED.items()},
    **{name: pytest.param(*case, False, id=name, marks=AS_ROOT) for name, case in REFUSED_AS_ROOT.items()},
    **{name: pytest.param(*case, True, id=f"another user's {name}", marks=AS_ROOT) for name, case in FOREIGN.items()},
}
CASES = [
    case if name in SHORT else pytest.param(*case.values, id=case.id, marks=(*case.marks, MATRIX))
    for name, case in ALL.items()
]


@pytest.mark.parametrize(("change", "why", "hint", "foreign"), CASES)
def test_a_file_that_is_not_read_is_told_of(
    change: Callable[[Path], object], why: str, hint: str, foreign: bool, file: Path, run: Run
) -> None:
    change(file)
    hint = hint.format(file=file, folder=file.parent)
    begun = time.monotonic()
    for words, code in (
        (("status",), 0),
        (("status", "-q"), 0),
        (("diff",), 0),
        (("revert",), 0),
        (("recover",), 0),
        (("check",), 0 if foreign else 2),
        (("apply", "vllm-ascend", "--decode", "1:2", "-n"), 3 if foreign else 2),
        (("apply", "vllm-ascend", "--decode", "1:2", "-n", "--path", file.parent / "empty"), 3),
        (("config",), 2),
    ):
        said = run(*words, code=code)
        assert f"rlpatch does not read rlpatch.toml: {why}" in said.stderr
        assert f"at {file}\n" in said.stderr
        assert f"next: {hint}" in said.stderr
        assert ("warning: rlpatch does not read rlpatch.toml" in said.stderr) == (code in (0, 3))
        assert "from rlpatch.toml" not in said.stderr
    assert time.monotonic() - begun < 60


@AS_ROOT
@pytest.mark.parametrize(
    ("user", "group", "members", "read"),
    [
        ("ada", "ada", [], True),
        ("ada", "ada", ["ada"], True),
        ("ada", "ada", ["ada", "bob"], False),
        ("ada", "users", [], False),  # many have it as their first group, and it lists none of them
        ("ada", "", [], False),
        ("", "ada", [], False),
    ],
)
def test_a_group_may_write_where_it_is_the_owners_alone(
    user: str, group: str, members: list[str], read: bool, file: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def _user(uid: int) -> pwd.struct_passwd:
        if not user:
            raise KeyError(uid)
        return pwd.struct_passwd((user, "x", uid, 4001, "", "/", "/bin/sh"))

    def _group(gid: int) -> grp.struct_group:
        if not group:
            raise KeyError(gid)
        return grp.struct_group((group, "x", gid, members))

    monkeypatch.setattr(pwd, "getpwuid", _user)
    monkeypatch.setattr(grp, "getgrgid", _group)
    for path, mode in ((file, 0o664), (file.parent, 0o775)):
        os.chown(path, 0, 4001)
        path.chmod(mode)
    assert ("from rlpatch.toml: --path" in run("status").stderr) == read
    os.chown(file, 0, 4002)  # another than the first group of its owner
    assert "other users can write to the file" in run("status").stderr


@AS_ROOT
def test_beside_a_link_of_another_user_nothing_of_roots_file_applies(file: Path, run: Run, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / ".venv/bin").mkdir(parents=True)
    python = shared / ".venv/bin/python"
    python.write_text(f"#!/bin/sh\ntouch {shared}/ran\n")
    python.chmod(0o755)
    for name, head in (("rlpatch.toml", ""), ("pyproject.toml", "[tool.rlpatch]\n")):
        (file.parent / name).write_text(f'{head}python = ".venv/bin/python"\n')
        link = shared / name
        link.symlink_to(file.parent / name)
        os.lchown(link, NOBODY, NOBODY)
        os.chown(shared, NOBODY, NOBODY)
        os.chdir(shared)
        assert f"rlpatch does not read {name}: the file is a link" in run("status").stderr
        link.unlink()
    assert not (shared / "ran").exists()


@pytest.mark.parametrize("looks", [1, 2])
def test_a_file_that_becomes_a_link_while_it_is_read(
    looks: int, file: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, seen = opened.Opened.status, list[str]()

    def changing(folder: opened.Opened, name: str = "") -> os.stat_result:
        before = status(folder, name)
        seen.append(name)
        if name == file.name and seen.count(name) == looks:
            _linked(file)
        return before

    monkeypatch.setattr(opened.Opened, "status", changing)
    said = run("status").stderr
    assert "rlpatch does not read rlpatch.toml" in said
    assert "from rlpatch.toml" not in said


def test_a_pyproject_is_refused_only_if_it_has_a_table(file: Path, run: Run) -> None:
    shared = file.with_name("pyproject.toml")
    file.unlink()
    for content, refused in (("[project]\n", False), ('[tool.rlpatch]\npath = "empty"\n', True)):
        shared.write_text(content)
        shared.chmod(0o666)
        assert (
            "rlpatch does not read pyproject.toml: other users can write to the file" in run("status").stderr
        ) == refused
    for make in (Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        shared.rmdir() if shared.is_dir() else shared.unlink()
        make(shared)
        assert "pyproject" not in run("status").stderr


UNREAD = {
    "brackets": (b"a = " + b"[" * 5000, "nested too deeply", None),
    "tables": (b"a = " + b"{a=" * 5000, "nested too deeply", None),
    "digits": (b"\nranks = " + b"9" * 5000, "a number that is too long", 2),
    "dots": (b".".join([b"a"] * 30_000) + b" = 1", "a line of the file has more than 100 dots outside of quotes", 1),
    "head": (
        b"\n\n[" + b".".join([b'"a"'] * 30_000) + b"]",
        "a line of the file has more than 100 dots outside of quotes",
        3,
    ),
    "NUL": (b"decode = '1:2'\nranks = '\x00'", "invalid character", 2),
    "latin": (b"decode = '1:2'\n\nranks = '\xff'", "the file is not UTF-8", 3),
    "syntax": (b"decode = 30:60", "Expected newline", 1),
    "unclosed": (b"decode = [", "Invalid value", None),
}


@pytest.mark.parametrize(("content", "why", "line"), UNREAD.values(), ids=[*UNREAD])
@pytest.mark.parametrize("name", thinned(["rlpatch.toml", "pyproject.toml"], ["pyproject.toml"]))
def test_what_is_no_toml_is_told_with_its_line(
    name: str, content: bytes, why: str, line: int | None, file: Path, run: Run
) -> None:
    file.unlink()
    head = b"[tool.rlpatch]\n" if name == "pyproject.toml" else b""
    file.with_name(name).write_bytes(head + content)
    at = f"{file.with_name(name)}" + (f":{line + len(head.splitlines())}" if line else "")
    for command, code in (("status", 0), ("diff", 0), ("revert", 0), ("recover", 0), ("check", 2), ("config", 2)):
        said = run(command, code=code).stderr
        assert "the configuration cannot be read: " in said
        assert why.lower() in " ".join(said.lower().split())
        assert f"at {at}\n" in said
        assert f"next: correct {'this line of the file' if line else 'the configuration file'}" in said
    assert run("apply", "vllm-ascend", "--decode", "1:2", code=2).stdout == ""


@pytest.mark.parametrize(("content", "cause"), [("tool = 3 # [tool.rlpatch]", ""), ("[tool]\nrlpatch = 3 # [tool.rlpatch", "tool.rlpatch")])  # fmt: skip
def test_a_pyproject_whose_table_is_none(content: str, cause: str, file: Path, run: Run) -> None:
    file.unlink()
    file.with_name("pyproject.toml").write_text(content)
    assert cause in run("config", code=2 if cause else 0).stderr


@pytest.mark.parametrize(
    ("text", "key", "value", "line"),
    [
        ("force = true", "force", None, 1),
        ("# force = true\n\n'force' = true", "force", None, 3),
        ("enforce = 1\nno-force = 1\n", "force", None, None),
        ("[presets.a]\n[presets.b]\nforce=1", "force", None, 3),
        ('targets = [\n "vllm",\n "-q",\n]', "targets", "-q", 3),
        ('targets = ["\\u002dq"]', "targets", "-q", 1),
        ('"\\u0066orce" = 1', "force", None, None),
    ],
)
def test_the_line_of_a_key(text: str, key: str, value: str | None, line: int | None) -> None:
    assert nearest.line_of(text, key, value) == line
