"""A bundle of two releases, made once by the command line, and machines that hold one of them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fixtures.cache import Once
from patcher import cli
from patcher.bundle import plans
from patcher.bundle.plans import Bundle
from patcher.bundle.steps import Machine
from patcher.messages import command_line
from patcher.messages.report import CommandResult, json_of
from tests.patcher.cli.conftest import SOURCE, _quiet_environment, release, runner

__all__ = ["_quiet_environment"]

OLDER = "0.10.2rc1"
OLD_SOURCE = SOURCE.replace('"""Our own few lines', '"""Fewer lines of our own,')
WINDOW = ("--decode", "30:60", "--save-path", "/traces", "--tool", "npu")
WORDS = "python3 patch.pyz"


def rlpatch(*words: object) -> Result:
    with command_line.started_as("rlpatch"):
        return runner().invoke(cli.rlpatch, [str(word) for word in words])


def carried(path: Path) -> Bundle:
    """What a bundle carries."""
    with zipfile.ZipFile(path) as archive:
        return plans.read(archive.read(f"patcher/bundle/{plans.NAME}"))


@pytest.fixture(scope="session")
def pyz(once: Once) -> Path:
    """The file, for both releases."""

    def make(folder: Path) -> None:
        places = [release(folder / "new"), release(folder / "old", OLDER, OLD_SOURCE)]
        paths = [word for place in places for word in ("--path", place)]
        made = rlpatch("bundle", "vllm-ascend", *WINDOW, *paths, "-o", folder / "patch.pyz")
        assert made.exit_code == 0, made.output

    return once("bundle", make) / "patch.pyz"


@pytest.fixture(scope="session")
def bundle(pyz: Path) -> Bundle:
    """What that file carries."""
    return carried(pyz)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return release(tmp_path / "site")


@pytest.fixture
def on(bundle: Bundle) -> Callable[[Path], Machine]:
    """The machine whose targets lie below a folder."""
    return lambda site: Machine(bundle, site, None, lambda _message: None)


@pytest.fixture(autouse=True)
def _started() -> Iterator[None]:
    """Command lines begin as where the file is run."""
    with command_line.started_as(WORDS):
        yield


@pytest.fixture
def machine(on: Callable[[Path], Machine], site: Path) -> Machine:
    return on(site)


def well(report: CommandResult) -> CommandResult:
    """A report without problems."""
    assert report.problems == []
    return report


def result(report: CommandResult) -> Any:
    """What a report without problems has for programs."""
    return json_of(well(report).data)


def registry(site: Path) -> dict[str, object]:
    """What the store remembers, without the moment and the times of folders, which are others each time."""
    top = json.loads((site / ".rlpatch" / "state.json").read_text())
    for record in top["records"]:
        del record["applied_at"]
    for entry in top["files"].values():
        for node in (entry["pristine"], entry["given"]):
            node["atime_ns"] = node["mtime_ns"] = None
    return {name: top[name] for name in ("version", "records", "files")}
