"""Traces of real profilers, recorded once for all tests of a run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures import environments
from fixtures.cache import Once
from patcher.commands.reports import tracing
from tests.patcher.cli.conftest import run  # noqa: F401  (a fixture)

RECORDING = Path(__file__).with_name("recording.py")


@pytest.fixture(scope="session")
def recorded(once: Once, npu_python: Path) -> Path:
    """Folders torch and npu of real traces; ``inside.json`` is what `traces` said while one was being recorded."""

    def make(folder: Path) -> None:
        words = [npu_python, RECORDING]
        torch = subprocess.Popen(
            [*words, "torch", folder / "torch"], env=environments.variables(npu=False), stderr=subprocess.PIPE
        )
        npu = subprocess.Popen(
            [*words, "npu", folder / "npu"], env=environments.variables(), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert npu.stdin is not None
        assert npu.stdout is not None
        assert any(line == "inside\n" for line in npu.stdout)
        (folder / "inside.json").write_text(json.dumps(tracing.traces(folder / "npu").data))
        npu.communicate("\n")
        _, said = torch.communicate()
        assert torch.returncode == 0, said

    return once("traces", make)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """``small_disk(kB)`` is a file system of this size, in memory; only root may mount one."""
    place = tmp_path / "disk"

    def mounted(size: int) -> Path:
        place.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "none", str(place)]
        if subprocess.run(words, capture_output=True).returncode:
            pytest.skip("needs the right to mount a file system")
        return place

    yield mounted
    if place.is_mount():
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture
def copied(recorded: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copies one of the folders of ``recorded``, or of what lies in one, for a test that changes it."""
    import shutil

    def copy(name: str) -> Path:
        (found,) = recorded.glob(name)
        return Path(shutil.copytree(found, tmp_path / name.partition("/")[0] / found.name, dirs_exist_ok=True))

    return copy
