"""Mounts, against the kernel's own table and against tables of other machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from patcher.store.filesystem import mounts


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of mounts that a test writes."""
    path = tmp_path / "mountinfo"
    monkeypatch.setattr(mounts, "_MOUNTS", str(path))
    return path


def test_the_kind_is_the_one_of_the_open_file(tmp_path: Path) -> None:
    kinds = {}
    for path in (tmp_path, Path("/proc"), Path("/dev")):
        descriptor = os.open(path, os.O_RDONLY)
        kinds[str(path)] = mounts.kind(descriptor)
        os.close(descriptor)
    assert kinds["/proc"] == "proc"
    assert all(kinds.values())


@pytest.mark.parametrize(
    ("line", "path", "source"),
    [
        (rb"36 35 98:0 /one.py /site/worker.py rw - ext4 /dev/vda rw", "/site/worker.py", "/one.py"),
        (rb"36 35 98:0 /one.py /site/worker.py rw shared:1 master:2 - ext4 /dev/vda rw", "/site/worker.py", "/one.py"),
        (rb"36 35 98:0 /a\040b /a\011b\134c\012 rw - nfs4 host:/x rw", "/a\tb\\c\n", "/a b"),
        (b"36 35 98:0 /\xff /\xfe rw - nfs4 host:/x rw", os.fsdecode(b"/\xfe"), os.fsdecode(b"/\xff")),
        (rb"36 35 98:0 / /site rw - overlay overlay rw", "/site/worker.py", ""),
        (b"", "/", ""),
    ],
)
def test_what_is_mounted_over_a_path(table: Path, line: bytes, path: str, source: str) -> None:
    table.write_bytes(b"22 28 0:21 / /sys rw shared:2 - sysfs sysfs rw\n" + line)
    assert mounts.mounted_source(Path(path)) == source


def test_where_the_kernel_does_not_tell_nothing_is_known(table: Path) -> None:
    descriptor = os.open("/", os.O_RDONLY)
    assert (mounts.kind(descriptor), mounts.mounted_source(Path("/"))) == ("", "")
    os.close(descriptor)
    table.write_text("22 28 0:21 / /sys rw - sysfs sysfs rw\n")
    assert mounts.kind(-1) == ""
