"""Odd names, loops and traps in the way: the work is done or refused, and nothing outside is written or read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from patcher.store.filesystem.files import digest
from tests.matrix import thinned
from tests.patcher.reliability import package
from tests.patcher.reliability.package import V1, Picture, kept, named

REPOSITORY = Path(__file__).parents[3]
APPLY = "apply vllm-ascend --decode 30:60 --save-path /tmp/traces"
COMMANDS = ("status", "diff", "recover", APPLY, "revert")

# Python says of every file that is opened, listed, made or removed; what lies below the first word is told. A link is
# followed by those that read, unless they say that they do not. Of a name in an open folder Python says the folder, too,
# but not when the name is opened: so `os.open` tells of itself.
WATCHED = """
import os, sys
outside = os.path.realpath(sys.argv[1]) + "/"
names = {"open": {0: 9}, "os.listdir": {0: 9}, "os.scandir": {0: 9}, "os.truncate": {0: 9}, "os.chmod": {0: 2},
         "os.rename": {0: 2, 1: 3}, "os.link": {0: 2, 1: 3}, "os.symlink": {1: 2}, "os.remove": {0: 1},
         "os.mkdir": {0: 2}, "os.rmdir": {0: 1}, "os.chown": {0: 3}, "os.utime": {0: 3}}
def tell(event, path, folder, follows):
    if isinstance(path, int):
        path, follows = f"/proc/self/fd/{path}", True
    if isinstance(path, (str, bytes)) and path:
        path = os.path.join(f"/proc/self/fd/{folder}" if folder not in (None, -1) else "", os.fsdecode(path))
        parent = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if ((os.path.realpath(path) if follows else parent) + "/").startswith(outside):
            os.write(2, f"OUTSIDE {event} {path!r}\\n".encode())
def audit(event, arguments):
    follows = event in ("os.listdir", "os.scandir", "os.chmod", "os.truncate")
    follows |= event == "open" and not arguments[2] & os.O_NOFOLLOW
    for path, folder in names.get(event, {}).items():
        tell(event, arguments[path], arguments[folder] if folder < len(arguments) else -1, follows)
sys.addaudithook(audit)
real = os.open
def opens(path, flags, mode=0o777, *, dir_fd=None):
    tell("open", path, dir_fd, not flags & os.O_NOFOLLOW)
    return real(path, flags, mode, dir_fd=dir_fd)
os.open = opens
from patcher.__main__ import main
for words in sys.argv[2].split("\\n"):
    sys.argv[:] = ["rlpatch", *words.split(), "--path", os.environ["SITE"]]
    code = 0
    try:
        main()
    except SystemExit as done:
        code = done.code
    sys.stdout.flush()
    os.write(2, f"\\x1e{code}\\x1e".encode())
"""


class Said(NamedTuple):
    """What one command answered."""

    words: str
    code: int
    stderr: str


def watched(outside: Path, site: Path, *commands: str) -> list[Said]:
    """Run command lines in a process that tells when it touches ``outside``."""
    run = subprocess.run(
        [sys.executable, "-c", WATCHED, str(outside), "\n".join(commands)],
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONIOENCODING": "utf-8:strict",
            "SITE": str(site),
        },
        capture_output=True,
        text=True,
        errors="surrogateescape",
    )
    assert "Traceback" not in run.stderr, run.stderr
    parts = run.stderr.split("\x1e")
    return [Said(*said) for said in zip(commands, map(int, parts[1::2]), parts[0:-1:2], strict=True)]


NAMES = (
    "with space",
    "new\nline",
    "ünï 中文",
    "quo'te\"",
    "{brace} %s $HOME `id`",
    "-n",
    "\x1b[31m",
    "x" * 200,
    b"\xff\xfe",
)


@pytest.mark.parametrize("name", thinned(NAMES, NAMES[-1:]), ids=ascii)
def test_every_command_works_below_any_name(tmp_path: Path, name: str | bytes) -> None:
    site = package.install(tmp_path / os.fsdecode(name))
    original = Picture(site)
    assert [said.code for said in watched(tmp_path / "no", site, APPLY, "status", "status --json", "diff")] == [0] * 4
    assert Picture(site) != original
    assert [said.code for said in watched(tmp_path / "no", site, "revert", "recover")] == [0] * 2
    assert Picture(site) == original


def loop(path: Path) -> None:
    if path.is_dir():
        path.rename(path.with_name("elsewhere"))
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(path.name)


LOOPS = ("vllm_ascend", "vllm_ascend/worker", V1, ".rlpatch", "vllm_ascend/__init__.py")


@pytest.mark.parametrize("name", thinned(LOOPS, (V1, ".rlpatch")))
def test_loops_of_links_are_refused(tmp_path: Path, name: str) -> None:
    site = package.install(tmp_path / "site")
    loop(site / name)
    before = Picture(site)
    for said in watched(tmp_path / "no", site, *COMMANDS):
        assert said.code in ((3, 4, 5) if said.words == APPLY else (0, 3, 4, 5)), said
    assert Picture(site) == before


def test_a_folder_that_everybody_may_write(tmp_path: Path) -> None:
    site = package.install(tmp_path / "site")
    site.chmod(0o777)
    assert package.rlpatch(site, *APPLY.split()).exit_code == 0
    for path in (site / ".rlpatch", *(site / ".rlpatch").iterdir()):
        assert path.stat().st_mode & 0o022 == 0, path


def elsewhere(site: Path, outside: Path) -> None:
    """The store is a link to a store somewhere else."""
    (site / ".rlpatch").rename(outside / "store")
    (site / ".rlpatch").symlink_to(outside / "store")


def linked(*names: str) -> Callable[[Path, Path], None]:
    """Files of the store are links to files somewhere else."""

    def arrange(site: Path, outside: Path) -> None:
        for name in names:
            for path in (site / ".rlpatch").glob(name):
                (outside / path.name).write_bytes(path.read_bytes())
                path.unlink()
                path.symlink_to(outside / path.name)

    return arrange


def journal(path: str, participants: tuple[str, ...] = ()) -> Callable[[Path, Path], None]:
    """A journal that wants the file ``path`` changed; OUTSIDE stands for the folder that is none of ours."""

    def arrange(site: Path, outside: Path) -> None:
        state = json.loads((site / ".rlpatch" / "state.json").read_text())
        node = state["files"][V1]["pristine"]
        now = {**node, "digest": digest((outside / "worker.py").read_bytes())}
        move = {"path": path.replace("OUTSIDE", str(outside)), "before": node, "after": now}
        roots = [one.replace("OUTSIDE", str(outside)) for one in participants] or [str(site)]
        top = {"version": 1, "transaction": "x", "participants": roots, "index": 0, "moves": [move],
               "back": {}, "ahead": {}, "empties": False}  # fmt: skip
        (site / ".rlpatch" / "journal.json").write_text(json.dumps(top))

    return arrange


def registry(change: Callable[[dict[str, object], str], None]) -> Callable[[Path, Path], None]:
    """A registry that names files somewhere else."""

    def arrange(site: Path, outside: Path) -> None:
        path = site / ".rlpatch" / "state.json"
        top = json.loads(path.read_text())
        change(top, str(outside))
        path.write_text(json.dumps(top))

    return arrange


def through_link(site: Path, outside: Path) -> None:
    """A folder of the site leads out, and the registry names a file in it."""
    (site / "vllm_ascend" / "link").symlink_to(outside)
    registry(lambda top, _outside: named(top, "vllm_ascend/link/worker.py"))(site, outside)


TRAPS: dict[str, Callable[[Path, Path], None]] = {
    "store is a link": elsewhere,
    "registry is a link": linked("state.json"),
    "backups are links": linked("[0-9a-f]*"),
    "lock is a link": linked("lock"),
    "ignore file is a link": linked(".gitignore"),
    "journal ..": journal("../outside/worker.py"),
    "journal absolute": journal("OUTSIDE/worker.py"),
    "journal hidden ..": journal("vllm_ascend/../../outside/worker.py"),
    "journal of another root": journal(V1, ("OUTSIDE",)),
    "journal with another root": journal(V1, ("", "OUTSIDE")),
    "record ..": registry(lambda top, outside: named(top, "../outside/worker.py")),
    "record absolute": registry(lambda top, outside: named(top, f"{outside}/worker.py")),
    "entry ..": registry(lambda top, outside: kept(top, "../outside/worker.py")),
    "bytecode ..": journal("../outside/worker.pyc"),
    "folder ..": registry(lambda top, outside: top.update(folders={"../outside": None})),
    "record through a link": through_link,
}
SHORT = ("store is a link", "journal ..", "record through a link")


@pytest.mark.parametrize("trap", thinned([*TRAPS], SHORT))
def test_nothing_outside_is_written_or_read(tmp_path: Path, trap: str) -> None:
    site, outside = package.install(tmp_path / "site"), tmp_path / "outside"
    outside.mkdir()
    (outside / "worker.py").write_bytes((site / V1).read_bytes())
    (outside / "worker.pyc").write_bytes(b"theirs")
    assert package.rlpatch(site, *APPLY.split()).exit_code == 0
    TRAPS[trap](site, outside)
    before = Picture(outside)
    for said in watched(outside, site, *COMMANDS):
        assert "OUTSIDE" not in said.stderr, said
        assert said.code in (0, 3, 4, 5, 7), said
    assert Picture(outside) == before
