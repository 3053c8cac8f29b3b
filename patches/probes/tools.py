"""The tools that record a window; how they are built reads like the guides, keyword by keyword."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from patches.probes.constants import CompileTime
from patches.probes.recorder import Recorder, WindowTool


class ProfilerTool(WindowTool):
    """A profiler with the interface of ``torch.profiler.profile``."""

    TRACES: CompileTime[str] = ""  # the glob pattern after the name of a trace

    traces_before: set[str]
    stopping: Any  # an ExitStack

    def open_window(self, unit: int) -> None:
        """Make and start the profiler before unit number ``unit``, with its step number set to that of the unit.

        A unit is a decode step, a micro-batch or what else the window counts.
        """
        from contextlib import ExitStack

        self.traces_before, self.stopping = self.traces(), ExitStack()
        self.synchronize()
        self.build(unit)
        self.stopping.callback(self.prof.stop)
        self.prof.step_num = max(unit - 1, 0)  # ProfilerStep#n carries the number of its unit
        self.prof.start()
        if unit:
            self.prof.step()  # out of WAIT

    def next_unit(self) -> None:
        """Step the profiler."""
        self.prof.step()

    def close_window(self) -> list[str]:
        """Stop the profiler, and return the sorted paths of the traces that it has written."""
        self.stopping.close()  # once, whatever has failed
        self.prof = None
        return sorted(self.traces() - self.traces_before)

    def traces(self) -> set[str]:
        """Return the paths of all files or folders of traces whose name begins with that of this recording."""
        import glob

        paths = glob.glob(glob.escape("%s/%s" % (self.save_path, self.name)) + self.TRACES)
        return {path.partition("/profiler_info")[0] for path in paths}

    def build(self, unit: int) -> None:
        """Make ``prof``, with its schedule: skip to ``unit``, warm up, record the window."""


class NpuProfiler(ProfilerTool):
    """``torch_npu.profiler``, with the keywords that every release from 2.1.0.post8 on accepts."""

    TRACES: CompileTime[str] = "*_ascend_pt/profiler_info*.json"

    def build(self, unit: int) -> None:
        """Make ``self.prof``, a torch_npu profiler that skips ``unit`` steps, warms up, and records the window.

        The warm-up lasts from there to the window's first step.
        """
        from torch_npu import profiler

        self.prof = profiler.profile(
            activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
            schedule=profiler.schedule(wait=unit, warmup=self.first - unit, active=self.end - self.first, repeat=1),
            on_trace_ready=profiler.tensorboard_trace_handler(self.save_path, self.name, analyse_flag=False),
            record_shapes=False,
            profile_memory=False,
            with_stack=False,
            with_modules=False,
            experimental_config=profiler._ExperimentalConfig(
                export_type=profiler.ExportType.Text,
                profiler_level=profiler.ProfilerLevel.Level1,
                aic_metrics=profiler.AiCMetrics.PipeUtilization,
                l2_cache=False,
                msprof_tx=False,
            ),
        )

    def synchronize(self) -> None:
        """Wait for the NPU."""
        import torch_npu

        torch_npu.npu.synchronize()

    def conflict(self) -> str:
        """Return why torch_npu's profiler would get no data: another one runs, or a variable of CANN is set.

        "" otherwise.
        """
        import os
        import sys

        creator = sys.modules.get("torch_npu.profiler._profiler_path_creator")  # private, in 2.1 to 2.14
        running = getattr(getattr(creator, "ProfPathCreator", dict)(), "is_prof_inited", False)
        obstacle = "another torch_npu profiler is running" if running else ""
        for name in ("PROFILER_SAMPLECONFIG", "PROFILING_MODE"):  # with any value, torch_npu from 2.13 on is mute
            if os.environ.get(name):
                obstacle = "%s=%s is set, so torch_npu may record nothing: unset it" % (name, os.environ[name])
        return obstacle


class TorchProfiler(ProfilerTool):
    """``torch.profiler``, for CUDA and CPU.

    Where another profiler starts within a window, it takes the data, and torch 2.13 ends the process when the first
    one stops. So the window ends before another one starts; where that was not seen, the first one is left alone.
    """

    TRACES: CompileTime[str] = ".*.pt.trace.json"

    taken = False

    def open_window(self, unit: int) -> None:
        """Start the profiler before unit number ``unit``.

        While it runs, ``start`` of the profiler's class is wrapped: it closes this window before another profiler
        starts.
        """
        import os

        super().open_window(unit)
        self.stopping.pop_all()
        self.stopping.callback(self.stop_unless_taken)
        profile, start = type(self.prof), type(self.prof).start

        def close_and_start(profiler: Any) -> Any:
            """Close the window of this process, if it has one, and start the other profiler."""
            if self.pid == os.getpid():  # else it is a child, forked inside the window
                self.dispatch(self, None, "close", ["another profiler starts"])
            return start(profiler)

        profile.start = close_and_start
        self.stopping.callback(setattr, profile, "start", start)

    def stop_unless_taken(self) -> None:
        """Stop the profiler; if another one has taken its data, only end the range of its current step."""
        if self.unit < self.end:  # else the last step() has stopped the recording, which looks the same
            self.taken = self.is_taken()
        if not self.taken:
            self.prof.stop()
        elif getattr(self.prof, "step_rec_fn", None):  # private
            # Now, while nothing records: when it is collected, torch would write its end into the next profile.
            self.prof.step_rec_fn.__exit__(None, None, None)

    def next_unit(self) -> None:
        """Step the profiler; raise RuntimeError if another one has taken its data."""
        self.taken = self.is_taken()
        if self.taken:
            raise RuntimeError("another profiler took the data of this one")
        super().next_unit()

    def is_taken(self) -> bool:
        """Tell whether another profiler has taken the data: torch reports none, though a unit was recorded.

        False in any thread but the one that opened the window: torch tells the state of one thread.
        """
        from threading import get_ident

        import torch

        records = self.unit > self.first and get_ident() == self.thread  # torch tells it of one thread
        return records and not getattr(torch.autograd, "_profiler_enabled", lambda: True)()

    def build(self, unit: int) -> None:
        """Make ``self.prof``, a torch profiler that skips ``unit`` steps, warms up, and records the window.

        The warm-up lasts from there to the window's first step.
        """
        from torch import profiler

        self.prof = profiler.profile(
            activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA],
            schedule=profiler.schedule(wait=unit, warmup=self.first - unit, active=self.end - self.first, repeat=1),
            on_trace_ready=profiler.tensorboard_trace_handler(self.save_path, self.name, use_gzip=False),
            record_shapes=False,
            profile_memory=False,
            with_stack=False,
            with_modules=False,
        )

    def synchronize(self) -> None:
        """Wait until the current GPU has done all queued work; do nothing if this process uses no GPU."""
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def conflict(self) -> str:
        """Return why torch.profiler must not start: nsys, a memory history or another profiler records the process.

        "" if nothing does.
        """
        import os

        import torch

        if os.environ.get("NSYS_PROFILING_SESSION_ID"):  # CUPTI has one subscriber in a process
            return "nsys profiles this process, so torch.profiler would get no kernels"
        if getattr(torch._C, "_cuda_isHistoryEnabled", bool)():  # as verl's torch_memory has it
            return "torch is recording its memory history"
        return "another torch.profiler is recording" if torch.autograd._profiler_enabled() else ""


class GarbageCollections(TorchProfiler):
    """Records Python's garbage collections as ranges beside the stacks, with a torch that offers it (2.13 does)."""

    def build(self, unit: int) -> None:
        """Make the profiler, and ask for ranges of garbage collections where torch knows them."""
        import contextlib

        from torch import profiler

        super().build(unit)
        with contextlib.suppress(AttributeError, TypeError):
            self.prof.experimental_config = profiler._ExperimentalConfig(record_python_gc_info=True)


class Compression(Recorder):
    """Compresses traces in a thread of the lowest priority: to the engine it would be the longest pause."""

    exits = False

    def exit(self) -> None:
        """Stop compressing: the process ends."""
        self.exits = True  # a process that ends leaves no time for it
        super().exit()

    def compress(self, traces: Sequence[str], metadata_files: Sequence[str] = ()) -> None:  # docstring goes in
        """Start a thread that compresses ``traces`` and renames them in ``metadata_files``; exit may wait 10 s."""
        import atexit
        from multiprocessing.util import Finalize
        from threading import Thread

        packer = Thread(target=self.pack, args=(traces, metadata_files), name="rlpatch-gzip", daemon=True)
        packer.start()
        atexit.register(Finalize(None, self.stop_packing, [packer], exitpriority=100))

    def stop_packing(self, packer: Any) -> None:
        """Give the compressing thread 10 seconds to end with the process."""
        self.exits = True
        packer.join(10)

    def pack(self, traces: Sequence[str], metadata_files: Sequence[str]) -> None:  # docstring goes in
        """Replace ``traces`` by PATH.gz, in ``metadata_files`` too; lower this thread's priority; report errors."""
        import contextlib
        import gzip
        import os
        import sys
        import threading

        folder = self.save_path + "/.rlpatch"
        new_path = "%s/%s.packing" % (folder, os.path.basename(traces[0]))
        try:
            if sys.platform == "linux":  # there a thread has a priority of its own
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
            os.makedirs(folder, exist_ok=not os.path.islink(folder))
            for trace in traces:
                with open(trace, "rb") as plain, gzip.open(new_path, "wb") as packed:
                    chunk = plain.read(1 << 22)  # the larger, the less often it takes the GIL
                    while chunk and not self.exits:
                        packed.write(chunk)
                        chunk = plain.read(1 << 22)
                if self.exits:
                    return
                os.replace(new_path, trace + ".gz")
            self.update_trace_names(traces, metadata_files, new_path)
            for trace in traces:
                os.unlink(trace)
            self.say("compressed: %s" % ", ".join(trace + ".gz" for trace in traces))
        except Exception as e:
            self.say("not compressed: %s: %r" % (", ".join(traces), e))
        finally:
            with contextlib.suppress(OSError):
                os.unlink(new_path)

    def update_trace_names(self, traces: Sequence[str], metadata_files: Sequence[str], new_path: str) -> None:
        """Hook: name the compressed ``traces`` in the step metadata; ``new_path`` is for a temporary file."""


class BareCompression(Compression):
    """Compresses traces beside which there are no step metadata."""

    def after_saving(self, traces: Sequence[str]) -> None:
        """Compress the traces of a window that was saved."""
        if traces and not self.exits:
            self.compress(traces)
