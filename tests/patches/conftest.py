from __future__ import annotations

import atexit
import shutil
import sys
from multiprocessing import util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from fixtures.cache import REPOSITORY
from patches.survey import readme
from tests.patches.standin import Console, Profiler, ProfilerModule, synchronize


@pytest.fixture
def stand_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much of torch and torch_npu as the counting needs; nothing of rlpatch is set in the environment."""
    torch, torch_npu, distributed = ModuleType("torch"), ModuleType("torch_npu"), ModuleType("torch.distributed")
    distributed.is_available = lambda: False  # type: ignore[attr-defined]
    torch.distributed = distributed  # type: ignore[attr-defined]
    torch_npu.npu = SimpleNamespace(synchronize=synchronize)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    for module in (torch, torch_npu):
        module.profiler = ProfilerModule(f"{module.__name__}.profiler")  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(sys.modules, module.profiler.__name__, module.profiler)
    # A recorder that a test leaves open must neither speak when the tests end nor watch for other profilers.
    monkeypatch.setattr(sys, "_rlpatch_recording", None, raising=False)
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
def console(capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(capsys)


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
