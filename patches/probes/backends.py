"""The profilers: their construction reads like the guides, keyword by keyword."""

from __future__ import annotations

from typing import Any

from patches.probes.constants import CompileTime
from patches.probes.recorder import Recorder


class NpuProfiler(Recorder):
    """``torch_npu.profiler``, with the keywords that every release from 2.1.0.post8 on accepts."""

    TRACES: CompileTime[str] = "*_ascend_pt/profiler_info*.json"

    def build(self, wait: int, warmup: int, active: int) -> Any:
        import torch_npu

        return torch_npu.profiler.profile(
            activities=[torch_npu.profiler.ProfilerActivity.CPU, torch_npu.profiler.ProfilerActivity.NPU],
            schedule=torch_npu.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1),
            on_trace_ready=torch_npu.profiler.tensorboard_trace_handler(
                self.save_path, worker_name=self.name, analyse_flag=False
            ),
            record_shapes=False,
            profile_memory=False,
            with_stack=False,
            with_modules=False,
            experimental_config=torch_npu.profiler._ExperimentalConfig(
                export_type=torch_npu.profiler.ExportType.Text,
                profiler_level=torch_npu.profiler.ProfilerLevel.Level1,
                aic_metrics=torch_npu.profiler.AiCMetrics.PipeUtilization,
                l2_cache=False,
                msprof_tx=False,
            ),
        )

    def synchronize(self) -> None:
        import torch_npu

        torch_npu.npu.synchronize()

    def occupied(self) -> str:
        import os
        import sys

        names = ("PROFILER_SAMPLECONFIG", "PROFILING_MODE")  # with any value, 0 too, torch_npu from 2.13 on is mute
        silenced = ["%s=%s is set" % (name, os.environ[name]) for name in names if os.environ.get(name)]
        creator = sys.modules.get("torch_npu.profiler._profiler_path_creator")  # private, in 2.1 to 2.14
        running = getattr(getattr(creator, "ProfPathCreator", dict)(), "is_prof_inited", False)
        return ", ".join(silenced) or ("another torch_npu profiler is running" if running else "")

    def beginning(self) -> tuple[Any, str, Any]:
        from torch_npu.profiler.profiler_interface import _ProfInterface

        return _ProfInterface, "init_trace", _ProfInterface.init_trace


class TorchProfiler(Recorder):
    """``torch.profiler``, for CUDA and CPU."""

    TRACES: CompileTime[str] = ".*.pt.trace.json*"

    def build(self, wait: int, warmup: int, active: int) -> Any:
        import torch

        return torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA],
            schedule=torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1),
            on_trace_ready=torch.profiler.tensorboard_trace_handler(
                self.save_path, worker_name=self.name, use_gzip=True
            ),
            record_shapes=False,
            profile_memory=False,
            with_stack=False,
            with_modules=False,
        )

    def synchronize(self) -> None:
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def occupied(self) -> str:
        import torch

        if getattr(torch._C, "_cuda_isHistoryEnabled", bool)():  # as verl's torch_memory has it
            return "torch records a history of its memory"
        return "another torch.profiler is recording" if torch.autograd._profiler_enabled() else ""

    def beginning(self) -> tuple[Any, str, Any]:
        from torch.autograd.profiler import profile

        return profile, "_prepare_trace", profile._prepare_trace
