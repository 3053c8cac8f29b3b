"""A vllm-ascend that was never published, small and with the same structure, for the tests of the command line."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from patcher.cli import rlpatch

WORKER = "vllm_ascend/worker/worker_v1.py"
SOURCE = '''\
"""Our own few lines with the structure of NPUWorker."""


class NPUWorker(WorkerBase):
    def sleep(self, level=1):
        allocator.sleep()

    def execute_model(self, scheduler_output):
        output = self.model_runner.execute_model(scheduler_output)
        return output

    def compile_or_warm_up_model(self):
        if not self.model_config.enforce_eager:
            self.model_runner.capture_model()

    def profile(self, is_start=True):
        if is_start:
            self.profiler.start()

    def _init_profiler(self):
        config = torch_npu.profiler._ExperimentalConfig(
            profiler_level=torch_npu.profiler.ProfilerLevel.Level1,
            aic_metrics=torch_npu.profiler.AiCMetrics.AiCoreNone,
        )
        return torch_npu.profiler.profile(
            with_stack=envs.STACK, experimental_config=config,
            on_trace_ready=torch_npu.profiler.tensorboard_trace_handler(envs.FOLDER))
'''


def release(root: Path, version: str = "0.11.0rc1", source: str = SOURCE) -> Path:
    """An unpacked wheel of ``version`` below ``root``."""
    worker = root / WORKER
    worker.parent.mkdir(parents=True)
    worker.write_text(source)
    for package in (root / "vllm_ascend", worker.parent):
        (package / "__init__.py").write_text("raise ImportError('rlpatch imports no target')\n")
    info = root / f"vllm_ascend-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm-ascend\nVersion: {version}\n")
    (info / "RECORD").write_text("vllm_ascend/__init__.py,,\n")
    return root


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return release(tmp_path / "site")


@functools.cache
def programs(folder: Path) -> Path:
    """A folder with the programs of this machine but no Python, which every command without a place would start."""
    folder.mkdir()
    for program in (*Path("/usr/bin").iterdir(), *Path("/bin").iterdir()):
        link = folder / program.name
        if not program.name.startswith("python") and not link.is_symlink():
            link.symlink_to(program)
    return folder


@pytest.fixture(autouse=True)
def _quiet_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No other environment is found, no profiler is on, and the traces' default folder is in the scratch folder."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "NO_COLOR", "PROFILING_MODE", "PROFILER_SAMPLECONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name in list(os.environ):
        if name.startswith(("VLLM_", "MSMONITOR", "KINETO", "PROF_", "RLPATCH")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(programs(tmp_path_factory.getbasetemp() / "programs")))
    monkeypatch.chdir(tmp_path)


def runner() -> CliRunner:
    """A runner that keeps stdout and stderr apart, which click before 8.2 has to be told."""
    told: dict[str, Any] = {"mix_stderr": False}
    return CliRunner(**told) if "mix_stderr" in inspect.signature(CliRunner).parameters else CliRunner()


@pytest.fixture
def run() -> Callable[..., Result]:
    """Runs one command line and checks its exit code."""

    def run(*words: Any, code: int = 0, **environ: str) -> Result:
        result = runner().invoke(rlpatch, [str(word) for word in words], env=environ)
        assert result.exit_code == code, result.output + repr(result.exception)
        return result

    return run
