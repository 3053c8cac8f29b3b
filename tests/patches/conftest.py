from __future__ import annotations

import atexit
import shutil
import sys
from contextlib import nullcontext
from multiprocessing import util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from fixtures.cache import REPOSITORY
from patches.survey import readme
from tests.patches.standin import Profiler


@pytest.fixture
def stand_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much of torch as the counting needs; nothing of rlpatch is set in the environment."""
    torch, profiler, distributed = (
        ModuleType("torch"),
        ModuleType("torch.profiler"),
        ModuleType("torch.distributed"),
    )
    profiler.record_function = lambda name: nullcontext(name)  # type: ignore[attr-defined]
    distributed.is_available = lambda: False  # type: ignore[attr-defined]
    torch.profiler, torch.distributed = profiler, distributed  # type: ignore[attr-defined]
    for module in (torch, profiler, distributed):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    # A recorder that a test leaves open must neither speak when the tests end nor watch for other profilers.
    monkeypatch.setattr(Profiler, "start", Profiler.start)
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    monkeypatch.setattr(util, "Finalize", lambda *_, **__: None)
    for name in ("", "_WINDOW", "_RANKS", "_REPLICAS", "_ROLLOUT", "_SYNC", "_SAVE_PATH", "_TRAINING_STEPS"):
        monkeypatch.delenv(f"RLPATCH{name}", raising=False)
    monkeypatch.delenv("VERL_REPLICA_RANK", raising=False)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, stand_in_torch: None) -> list[str]:
    """What is called of torch.cuda, in order."""
    log: list[str] = []
    sys.modules["torch"].cuda = SimpleNamespace(  # type: ignore[attr-defined]
        profiler=SimpleNamespace(start=lambda: log.append("start"), stop=lambda: log.append("stop")),
        nvtx=SimpleNamespace(range_push=lambda name: log.append(f"push {name}"), range_pop=lambda: log.append("pop")),
        is_available=lambda: False,
    )
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    return log


@pytest.fixture
def unwatched() -> None:
    """For tests that run what has tests of its own, by which it is covered (`pytest_runtest_protocol` in tests)."""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """rlpatch as somebody has it who adds to it."""
    for package in ("patcher", "patches"):
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / package, tmp_path / "rlpatch" / package, ignore=skipped)
    for page in readme.PAGES:
        (tmp_path / "rlpatch" / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / page, tmp_path / "rlpatch" / page)
    return tmp_path / "rlpatch"
