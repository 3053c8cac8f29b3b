"""Windows of the allocator's history, with Python stacks: one snapshot a window, as torch's memory_viz reads it."""

from __future__ import annotations

from typing import Any

from patches.probes.constants import CompileTime
from patches.probes.recorder import WindowTool


class MemoryHistory(WindowTool):
    """Records every allocation in the window; ``prof`` is ``torch.cuda``, or ``torch.npu`` beside torch_npu.

    A mark before each unit, and one after the last, is an allocation of one byte whose stack has the function
    ``rlpatch_unit``; ``marked`` has the units' numbers.
    """

    UNIT: str

    MOST: CompileTime[int] = 200000  # allocations and frees of a snapshot, the newest ones: some 50 MB

    mark_unit: Any
    marked: list[int]
    saved: list[str]

    def device_module(self) -> Any:
        """Return ``torch.npu`` if torch_npu is imported, otherwise ``torch.cuda``."""
        import sys

        import torch

        return torch.npu if "torch_npu" in sys.modules else torch.cuda

    def binding(self, name_format: str) -> Any:  # docstring goes in
        """Return torch's function ``name_format % "npu"``, "cuda" if torch_npu is not loaded; None if missing."""
        import sys

        import torch

        npu: Any = sys.modules.get("torch_npu")
        return getattr(npu._C, name_format % "npu", None) if npu else getattr(torch._C, name_format % "cuda", None)

    def open_window(self, unit: int) -> None:
        """Start the allocator's history, and mark unit number ``unit`` unless it is the warm-up.

        The first allocation that fails while the window is open saves a snapshot, too, where torch reports it.
        """
        import sys

        import torch

        device: Any = self.device_module()
        device_name = "%s:%s" % ("npu" if "torch_npu" in sys.modules else "cuda", device.current_device())

        def rlpatch_unit() -> None:
            torch.empty(1, dtype=torch.uint8, device=device_name)

        self.mark_unit, self.marked, self.saved = rlpatch_unit, [], []
        self.add_out_of_memory_observer(device)
        device.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=self.MOST)
        self.prof = device
        if unit >= self.first:
            self.mark(unit)

    def mark(self, number: int) -> None:
        """Mark in the memory history that unit ``number`` begins, a decode step or what else is counted.

        The mark is an allocation of one byte; there is none if no memory is free.
        """
        import contextlib

        with contextlib.suppress(RuntimeError):  # no byte is left: the window goes on without the mark
            self.mark_unit()
            self.marked.append(number)

    def next_unit(self) -> None:
        """Mark the next unit, unless the last one of the window has ended."""
        if self.first <= self.unit < self.end:
            self.mark(self.unit)

    def add_out_of_memory_observer(self, device: Any) -> None:  # docstring goes in
        """Let the first failed allocation of a window save a snapshot; later calls in the process do nothing."""
        import sys

        if getattr(sys, "_rlpatch_watches_memory", None):
            return
        attach = self.binding("_%s_attach_out_of_memory_observer")

        def failed(*_sizes: int) -> None:
            recorder: Any = getattr(sys, "_rlpatch_recording", None)
            if getattr(recorder, "prof", None) is not None and getattr(recorder, "saved", None) == []:
                recorder.save_snapshot("out-of-memory.")

        if attach:
            device.init()
            attach(failed)
            sys._rlpatch_watches_memory = True  # type: ignore[attr-defined]

    def save_snapshot(self, name_part: str = "") -> None:  # docstring goes in
        """Save the history to NAME.MILLISECONDS.[name_part]memory.pickle; raise errors only without a name_part."""
        import pickle
        import time

        path = "%s/%s.%s.%smemory.pickle" % (self.save_path, self.name, time.time_ns() // 10**6, name_part)
        try:
            snapshot: Any = self.prof.memory._snapshot()
            snapshot["rlpatch"] = {"unit": self.UNIT, "marked": self.marked, "most": self.MOST}
            with open(path, "xb") as file:
                pickle.dump(snapshot, file, 4)
            self.saved.append(path)
        except Exception as e:
            if not name_part:
                raise
            self.say("no memory snapshot of the failed allocation was saved: %s: %s" % (type(e).__name__, e))

    def close_window(self) -> list[str]:
        """Mark the end, save the snapshot, stop the history even if that failed; return all snapshots' paths."""
        try:
            self.mark(self.unit)
            self.save_snapshot()
        finally:
            device, self.prof = self.prof, None
            device.memory._record_memory_history(None)
        return self.saved

    def synchronize(self) -> None:
        """Wait for the device if this process uses one."""
        device = self.device_module()
        if device.is_available() and device.is_initialized():
            device.synchronize()

    def conflict(self) -> str:
        """Return why the history cannot be recorded: no device is in use, or torch records it already.

        "" if it can.
        """
        device: Any = self.device_module()
        if not (device.is_available() and device.is_initialized()):
            return "this process uses no GPU or NPU, and torch keeps a memory history only for these"
        enabled = self.binding("_%s_isHistoryEnabled") or bool
        return "torch is recording its memory history" if enabled() else ""
