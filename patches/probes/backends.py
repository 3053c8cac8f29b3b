"""The profilers: their construction reads like the guides, keyword by keyword."""

from __future__ import annotations

from collections.abc import Sequence
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


class TorchProfiler(Recorder):
    """``torch.profiler``, for CUDA and CPU."""

    TRACES: CompileTime[str] = ".*.pt.trace.json"
    COMPRESSED: CompileTime[bool] = True
    CAN_BE_TAKEN: CompileTime[bool] = True

    exits = False

    def build(self, wait: int, warmup: int, active: int) -> Any:
        import torch

        return torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA],
            schedule=torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1),
            on_trace_ready=torch.profiler.tensorboard_trace_handler(
                self.save_path, worker_name=self.name, use_gzip=False
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

    def is_taken(self) -> bool:
        from threading import get_ident

        import torch

        records = self.unit > self.first and get_ident() == self.thread  # torch tells it of one thread
        return records and not getattr(torch.autograd, "_profiler_enabled", lambda: True)()

    def compress(self, traces: Sequence[str]) -> None:
        """Compress in a thread: that takes longer than all the rest, and the engine would wait."""
        import atexit
        from multiprocessing.util import Finalize
        from threading import Thread

        noted = (self.watched, self.noted.get(self.watched)) if self.METADATA else ("", None)
        packer = Thread(target=self.pack, args=(traces, *noted), name="rlpatch-gzip", daemon=True)
        packer.start()
        atexit.register(Finalize(None, self.stop_packing, [packer], exitpriority=100))

    def stop_packing(self, packer: Any) -> None:
        """Let nothing be half written by a process that ends; it leaves the trace as it was."""
        self.exits = True
        packer.join(10)

    def pack(self, traces: Sequence[str], watched: str, noted: Any) -> None:
        """Leave a trace as it is until its compressed one is whole: the process may end at any moment."""
        import contextlib
        import gzip
        import json
        import os
        import sys
        import threading

        folder = self.save_path + "/.rlpatch"
        new = "%s/%s.packing" % (folder, os.path.basename(traces[0]))  # another window may be packed, too
        try:
            if sys.platform == "linux":  # there a thread has a priority of its own
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
            os.makedirs(folder, exist_ok=not os.path.islink(folder))
            for trace in traces:
                with open(trace, "rb") as plain, gzip.open(new, "wb", 6) as packed:
                    chunk = plain.read(1 << 22)  # the larger, the less often it takes the GIL
                    while chunk and not self.exits:
                        packed.write(chunk)
                        chunk = plain.read(1 << 22)
                if self.exits:
                    return
                os.replace(new, trace + ".gz")
            if noted:
                now = [path + ".gz" if path in traces else path for path in noted["traces"]]
                # The state is left to the next window where one has begun.
                states = [watched] if self.noted[watched] is noted else []
                for path in [*(trace + ".gz.rlpatch.json" for trace in traces), *states]:
                    with open(new, "w") as file:
                        file.write(json.dumps(dict(noted, state="saved", traces=now)))
                    os.replace(new, path)
            for path in [*traces, *(trace + ".rlpatch.json" for trace in traces if noted)]:
                os.unlink(path)
            self.say("compressed: %s" % ", ".join(trace + ".gz" for trace in traces))
        except Exception as e:
            self.say("not compressed: %s: %r" % (", ".join(traces), e))
        finally:
            with contextlib.suppress(OSError):
                os.unlink(new)
