"""The Pythons of this machine, by their versions."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


def interpreter(version: str) -> Path:
    """A Python ``version`` (``3.8``); skips the test where there is none that answers."""
    found = _found(version)
    if found is None:
        pytest.skip(f"no Python {version} is on PATH, or among the versions of pyenv")
    return found


@functools.cache
def _found(version: str) -> Path | None:
    code = "import sys; assert '{}.{}'.format(*sys.version_info) == sys.argv[1]"
    for program in _candidates(version):
        if subprocess.run([program, "-c", code, version], capture_output=True).returncode == 0:
            return program
    return None


def _candidates(version: str) -> Iterator[Path]:
    if version == "{}.{}".format(*sys.version_info):
        yield Path(sys.executable)
    found = shutil.which(f"python{version}")
    if found:
        yield Path(found)
        # The shim of a version manager stands for none where that version is not switched on.
        yield from Path(found).parents[1].glob(f"versions/{version}.*/bin/python{version}")
