"""A small package, a run that plans other bytes for its module, and Pythons that import it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import pytest

from patcher.changes.change import Change, Edit
from patcher.hook.folder import RunFolder

MODULE = PurePosixPath("target/worker.py")
BEFORE = b'''\
"""A module of the target."""


VALUE = "as it is"


def fail():
    raise RuntimeError(VALUE)
'''
AFTER = BEFORE.replace(b'"as it is"\n', b'"as it is"\n\n# >>> inserted\nVALUE = "planned"\n# <<<\n')


class Hooked:
    """The package below ``site``, its planned change, and the environment in which processes get that."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.site = folder, folder / "site"
        self.module = self.site / MODULE
        self.module.parent.mkdir(parents=True)
        (self.module.parent / "__init__.py").write_text("")
        self.module.write_bytes(BEFORE)
        self.run: RunFolder | None = None

    def plan(self, *more: Change, require: bool = False) -> RunFolder:
        """Lay the planned bytes of the module out, and those of ``more`` files."""
        edit = Edit(self.site, (Change(MODULE, BEFORE, AFTER, BEFORE), *more))
        self.run = RunFolder([edit], require=require)
        return self.run

    def environ(self, **more: str) -> dict[str, str]:
        """That of a process of the run, whose PYTHONPATH was the site before."""
        given = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        path = {"PYTHONPATH": os.pathsep.join(filter(None, [more.pop("PYTHONPATH", ""), str(self.site)]))}
        return (self.run or self.plan()).environ({**given, **path, **more})

    def started(
        self, *command: object, environ: Mapping[str, str] | None = None, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """A process of the run that has ended."""
        done = subprocess.run(
            list(map(str, command)),
            env=self.environ() if environ is None else environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def write(self, name: str, text: str) -> Path:
        """A file of the run's folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def states(self) -> list[str]:
        """What the receipts say."""
        assert self.run
        return [receipt.state for receipt in self.run.receipts()]


@pytest.fixture
def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hooked]:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    made = Hooked(tmp_path)
    yield made
    if made.run:
        made.run.leave()
