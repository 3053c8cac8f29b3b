"""A small installed package to patch, and a picture of every path of it, for the tests of the store."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath

from patcher.changes.change import Change, Edit, PatchId, Record
from patcher.store.folder import StoreFolder

PRISTINE = b'VALUE = "pristine"\n\n\ndef value():\n    return VALUE\n'
OURS = b'VALUE = "patched "  # rlpatch\n'
WORKER = PurePosixPath("pkg/worker.py")
ROLLOUT, UPDATE = PatchId("vllm-ascend", "rollout"), PatchId("verl", "update-policy", "actor")
OLD = 1_500_000_000_123_456_789


def install(root: Path) -> Path:
    """A package with bytecode of several interpreters and levels, all of an old date."""
    cache = root / "pkg" / "__pycache__"
    cache.mkdir(parents=True)
    (root / "pkg" / "__init__.py").write_bytes(b"")
    (root / WORKER).write_bytes(PRISTINE)
    (root / "pkg" / "worker_v1.py").write_bytes(b"V1 = 1\n")
    for name in (
        "worker.cpython-310",
        "worker.cpython-311.opt-1",
        "worker.cpython-311.opt-2",
        "worker_v1.cpython-311",
    ):
        (cache / f"{name}.pyc").write_bytes(name.encode())
    (root / "pkg" / "worker.pyc").write_bytes(b"legacy")
    (root / WORKER).chmod(0o640)
    age(root)
    return root


def age(root: Path) -> None:
    for folder, _folders, names in os.walk(root, topdown=False):
        for name in [*names, "."]:
            os.utime(Path(folder) / name, ns=(OLD, OLD), follow_symlinks=False)


def picture(root: Path, *, root_time: bool = True) -> dict[str, tuple[object, ...]]:
    """Path -> type and mode, time of change, bytes or text of the link; of folders too.

    Bytecode is left out, which rlpatch removes and Python makes anew, and so is the time of its folder.
    """
    found: dict[str, tuple[object, ...]] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        if path.suffix == ".pyc":
            continue
        status = path.lstat()
        held: object = None
        if stat.S_ISLNK(status.st_mode):
            held = str(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            held = path.read_bytes()
        timed = path.name != "__pycache__" and (path != root or root_time)
        time = status.st_mtime_ns if timed else 0
        found[path.relative_to(root).as_posix()] = (oct(status.st_mode), time, held)
    return found


def record(patch: PatchId = ROLLOUT, *files: str, window: str = "30:60", at: str = "2026-11-20") -> Record:
    return Record(patch, "0.11.0rc1", ("--decode", window), files or (str(WORKER),), at, "0.1")


def patched(line: bytes = OURS) -> bytes:
    return PRISTINE + line


def applying(root: Path, line: bytes = OURS, patch: PatchId = ROLLOUT, path: PurePosixPath = WORKER) -> Edit:
    before = (root / path).read_bytes()
    change = Change(path, before, PRISTINE + line, PRISTINE)
    return Edit(root, (change,), add=(record(patch, str(path), window=line.decode()),))


def reverting(root: Path, patch: PatchId = ROLLOUT, path: PurePosixPath = WORKER) -> Edit:
    before = (root / path).read_bytes()
    pristine = b"".join(line for line in before.splitlines(keepends=True) if b"rlpatch" not in line)
    return Edit(root, (Change(path, before, pristine, pristine),), remove=(patch,))


def backup(root: Path, path: PurePosixPath = WORKER) -> bytes | None:
    """The pristine bytes of a file as the store has them."""
    return StoreFolder(root).compare(path, b"")[0]
