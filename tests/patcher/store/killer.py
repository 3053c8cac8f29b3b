"""Kill a run of the store at its n-th system call: for every n, in a child process, with SIGKILL.

Run as a program: ``killer.py FOLDER SCENARIO``. It prints one line per killed run that did not end well
(none is the proof) and, last, how many points there were.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))  # it is run by its path

from patcher.changes.change import Change, Edit
from patcher.store import STORE
from patcher.store import transaction as store
from patcher.store.folder import StoreFolder
from tests.patcher.store.tree import (
    OURS,
    PRISTINE,
    UPDATE,
    WORKER,
    age,
    applying,
    install,
    picture,
    record,
    reverting,
)

CALLS = (
    "open", "replace", "rename", "unlink", "fsync", "mkdir", "rmdir", "chmod", "fchmod", "utime", "symlink",
    "fchown", "ftruncate", "pwrite", "close",
)  # fmt: skip
SECOND = OURS + b"update = 1  # rlpatch\n"
FROM_PATCHED = b"from the patched source"


def killed(job: Callable[[], object], point: int) -> bool:
    """Whether the job was killed before its ``point``-th call; False when it has fewer."""
    child = os.fork()
    if child == 0:
        left, opens = point, os.open

        def counted(real: Callable[..., object]) -> Callable[..., object]:
            def call(*args: Any, **options: Any) -> object:
                nonlocal left
                if real is not opens or args[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                    left -= 1  # to be killed before a call that only reads is to be killed before the next one
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **options)

            return call

        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        job()
        os._exit(0)
    _pid, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and status != 0:
        raise SystemExit("the job failed by itself")
    return os.WIFSIGNALED(status)


def link(roots: Sequence[Path]) -> None:
    """Make the file a symlink to something outside the root."""
    for root in roots:
        (root / WORKER).rename(root.parent / f"cache-{root.name}.py")
        (root / WORKER).symlink_to(f"../../cache-{root.name}.py")
        age(root)


def apply(roots: Sequence[Path]) -> Callable[[], object]:
    return lambda: store.commit([applying(root) for root in roots])


def add(roots: Sequence[Path]) -> Callable[[], object]:
    _patch(roots)
    change = Change(WORKER, PRISTINE + OURS, PRISTINE + SECOND, PRISTINE)
    return lambda: store.commit([Edit(root, (change,), add=(record(UPDATE),)) for root in roots])


def revert(roots: Sequence[Path]) -> Callable[[], object]:
    _patch(roots)
    return lambda: store.commit([reverting(root) for root in roots])


def _patch(roots: Sequence[Path]) -> None:
    store.commit([applying(root) for root in roots])
    for root in roots:
        (root / "pkg" / "__pycache__" / "worker.cpython-399.pyc").write_bytes(FROM_PATCHED)


def seen(roots: Sequence[Path]) -> list[object]:
    """What users see: trees and records. Patched, a file has the time of the run, and so do its folders."""
    found: list[object] = []
    for root in roots:
        tree = {key: value for key, value in picture(root).items() if not key.startswith(STORE)}
        applied = StoreFolder(root).records()
        if applied:
            for key in (str(WORKER), "pkg"):
                tree.update({key: (tree[key][0], tree[key][2])} if key in tree else {})
        found += [tree, [(one.patch, one.options) for one in applied]]
    return found


def complaints(roots: Sequence[Path], ends: Sequence[list[object]], original: list[object]) -> list[str]:
    """What is wrong after a recovery: neither before nor after, something left over, no exact revert."""
    wrong = []
    if seen(roots) not in ends:
        wrong.append(f"neither before nor after: {seen(roots)}")
    for root in roots:
        if StoreFolder(root).unfinished():
            wrong.append("still pending")
        rests = [path for path in root.rglob(".rlpatch-tmp-*") if path.parent.name != STORE]
        if rests:
            wrong.append(f"left: {rests}")
        applied = StoreFolder(root).records()
        if not applied and (root / STORE).exists():
            wrong.append("an empty store is left")
        compiled = {path.read_bytes() for path in (root / "pkg" / "__pycache__").glob("worker.*")}
        if compiled - {FROM_PATCHED} if applied else FROM_PATCHED in compiled:
            wrong.append(f"stale bytecode: {compiled}")
        if applied:
            change = Change(WORKER, (root / WORKER).read_bytes(), PRISTINE, PRISTINE)
            store.commit([Edit(root, (change,), remove=tuple(one.patch for one in applied))])
    if seen(roots) != original:
        wrong.append(f"the revert is not exact: {seen(roots)}")
    return wrong


def arrange(folder: Path, names: str, linked: bool) -> list[Path]:
    """Fresh roots below ``folder``."""
    shutil.rmtree(folder, ignore_errors=True)
    roots = [install(folder / name) for name in names]
    if linked:
        link(roots)
    return roots


def main(folder: Path, scenario: str, names: str, *options: str) -> None:
    """Kill the scenario at every point, or with "few" at each twentieth.

    "linked": the file is a symlink, "twice": kill the recovery, too.
    """
    os.fsync = lambda fd: None  # a killed process loses nothing that was written; only time
    scenes = {job.__name__: job for job in (apply, add, revert)}
    roots = arrange(folder / "undisturbed", names, "linked" in options)
    scenes[scenario](roots)()
    after = seen(roots)
    point, lost = 0, 0
    while True:
        roots = arrange(folder / "roots", names, "linked" in options)
        original = seen(roots)
        job = scenes[scenario](roots)
        before, times = seen(roots), [root.stat().st_mtime_ns for root in roots]
        was_killed = killed(job, point)
        if "twice" in options:
            killed(lambda: store.recover(roots), point * 7 % 60)  # noqa: B023  (called at once)
        store.recover(roots)
        # Between mkdir and utime, and between rmdir and utime, nothing can remember the time of the root.
        lost += times != [root.stat().st_mtime_ns for root in roots]
        for root, time in zip(roots, times, strict=True):
            os.utime(root, ns=(time, time))
        for line in complaints(roots, (before, after), original):
            print(f"killed at call {point}: {line}")
        if not was_killed:
            break
        point += 20 if "few" in options else 1
    print(f"points {point} lost {lost}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
