"""Three nodes with a release that was never published, and commands that run on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from patcher.cli import rlpatch
from patcher.cluster.nodes import Nodes
from tests.patcher.cli.conftest import _quiet_environment, release, runner  # noqa: F401  (a fixture)
from tests.patcher.cluster.processes import Death, Processes

NAMES = ("n1", "n2", "n3")


@pytest.fixture
def sites(tmp_path: Path) -> dict[str, Path]:
    return {name: release(tmp_path / name / "site") for name in NAMES}


@pytest.fixture
def group(sites: dict[str, Path]) -> Iterator[Processes]:
    made = Processes(sites)
    yield made
    made.close()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch, group: Processes) -> Callable[..., Result]:
    """Runs ``rlpatch WORDS --ray`` on the nodes of ``group``, whose ``deaths`` come on the way, and checks its code."""
    made: list[Nodes] = []

    def connected(address: str, nodes: str | None, search: Any) -> Nodes:
        chosen = [name for name in (nodes or "").split(",") if name and name != "has-target"]
        of = Processes({name: group.sites[name] for name in chosen}, group.deaths) if chosen else group
        made.append(Nodes(of, search, with_target="has-target" in (nodes or "")))
        return made[-1]

    monkeypatch.setattr("patcher.cluster.connecting.connect", connected)
    monkeypatch.setattr("patcher.processes.running", lambda *_known: ())  # else all of the machine is looked at

    def run(*words: Any, code: int = 0, deaths: Sequence[Death] = ()) -> Result:
        group.close()  # each command has its own processes on the nodes
        group.deaths, group.called = list(deaths), []
        result = runner().invoke(rlpatch, [*map(str, words), "--ray"])
        assert result.exit_code == code, result.output + result.stderr + repr(result.exception)
        group.close()
        return result

    return run
