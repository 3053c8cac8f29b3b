"""Memory of a process, its device and its host, noted at the edges of a timeline's spans."""

from __future__ import annotations

from typing import Any

from patches.probes.steering import Steerable


class MemoryUse(Steerable):
    """Notes the memory of this process, and of the device that it allocates on, in MiB.

    Device values come from ``mem_get_info`` and ``memory_stats_as_nested_dict`` of ``torch.cuda`` and
    ``torch_npu.npu``. Nothing here starts a device or makes a context on one.
    """

    clock: Any
    state: str

    notes: Any  # deque of rows: clock, resident, shared, and of the device free, allocated, reserved, peak
    in_use: Any  # deque of pairs: clock, KV-cache blocks in use
    cache_size: int  # blocks in all
    device: Any  # what identifies the device; None before the first allocation, {} where it cannot be read
    device_written: Any
    debt: int  # nanoseconds that notes took beyond 20,000 each
    private: int  # MiB in the last note
    changed: bool  # a note waits to be written, also where no span has ended

    def clear_notes(self) -> None:
        """Drop all notes, and what is known of the device, in a process that begins or was forked."""
        from collections import deque

        self.notes, self.in_use, self.cache_size = deque(maxlen=131072), deque(maxlen=131072), 0
        self.device, self.debt, self.private, self.changed = None, 0, 0, False

    def note_memory(self, is_frequent: bool) -> None:  # docstring goes in
        """Append the memory of process and device to ``notes``; if ``is_frequent``, skip calls to average 20 us."""
        if is_frequent and self.debt > 0:
            self.debt -= 20000
            return
        try:
            begin = self.clock()
            resident, shared = self.process_memory()
            self.private = resident - shared
            self.notes.append([begin, resident, shared, *self.device_memory()])
            self.debt = min(max(self.debt + self.clock() - begin - 20000, 0), 2000000)
        except Exception:  # noqa: S110  (an interpreter that ends, a system without /proc: nothing to note)
            pass

    def note_change(self) -> None:  # docstring goes in
        """Note this process's memory if its unshared part changed by 16 MiB and 1/32 or more since the last one."""
        import contextlib

        with contextlib.suppress(Exception):
            resident, shared = self.process_memory()
            if abs(resident - shared - self.private) >= max(16, self.private // 32):
                self.private, self.changed = resident - shared, True
                self.notes.append([self.clock(), resident, shared])

    def process_memory(self) -> Any:  # docstring goes in
        """Return the resident memory of the process and the part of it that is shared or of files, in MiB."""
        import os

        file = os.open("/proc/self/statm", os.O_RDONLY)
        try:
            pages = os.read(file, 99).split()
        finally:
            os.close(file)
        size = os.sysconf("SC_PAGE_SIZE")
        return int(pages[1]) * size >> 20, int(pages[2]) * size >> 20

    def device_memory(self) -> Any:  # docstring goes in
        """Return the device's free MiB and this process's allocated, reserved and peak MiB; () if unknown."""
        import sys

        torch = sys.modules.get("torch")
        device_module: Any = getattr(torch, "npu" if "torch_npu" in sys.modules else "cuda", None)
        if device_module is None or self.device == {} or not device_module.is_initialized():
            return ()
        if getattr(device_module, "is_current_stream_capturing", bool)():
            return ()
        try:
            if self.device is None:
                self.device = self.find_device(device_module)
                if self.device is None:
                    return ()
            index = self.device["index"]
            free, total = device_module.mem_get_info(index)
            used = device_module.memory.memory_stats_as_nested_dict(index)
            self.device["total"] = total >> 20
            allocated, reserved = used["allocated_bytes"]["all"], used["reserved_bytes"]["all"]
            return (free >> 20, allocated["current"] >> 20, reserved["current"] >> 20, allocated["peak"] >> 20)
        except Exception as e:
            self.device = {}
            self.say("device memory is not recorded: %s: %s" % (type(e).__name__, e))
            return ()

    def find_device(self, device_module: Any) -> Any:  # docstring goes in
        """Return a dict that identifies the device with most of this process's memory; None before it has any.

        It need not be the current device: a thread that chose none has the first, and asking would make a context.
        """
        import os

        reserved = [
            device_module.memory.memory_stats_as_nested_dict(index)
            .get("reserved_bytes", {})
            .get("all", {})
            .get("current", 0)
            for index in range(device_module.device_count())
        ]
        if not any(reserved):
            return None
        index = reserved.index(max(reserved))
        names = ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
        visible = next((os.environ[name] for name in names if os.environ.get(name)), "")
        device = {"index": index, "visible": visible, "name": device_module.get_device_name(index)}
        uuid = getattr(device_module.get_device_properties(index), "uuid", None)
        return device if uuid is None else {**device, "uuid": str(uuid)}

    def host_memory(self) -> Any:  # docstring goes in
        """Return available and total MiB of this host, or of the container if its limit is lower; 0 if unknown."""
        import contextlib

        available = total = 0
        with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
            sizes = dict(line.split()[:2] for line in file)
            available, total = (int(sizes.get(name, "0")) >> 10 for name in ("MemAvailable:", "MemTotal:"))
        # Version 2 of cgroups, then version 1.
        for prefix, limit, usage, inactive in (
            ("/sys/fs/cgroup/memory.", "max", "current", "inactive_file"),
            ("/sys/fs/cgroup/memory/memory.", "limit_in_bytes", "usage_in_bytes", "total_inactive_file"),
        ):
            with contextlib.suppress(OSError, ValueError, KeyError):  # another version, or no limit
                with open(prefix + limit) as file:
                    most = int(file.read()) >> 20
                with open(prefix + usage) as file:
                    used = int(file.read()) >> 20
                with open(prefix + "stat") as file:
                    cached = dict(line.split() for line in file)
                if most < total:
                    available, total = max(most - used + (int(cached[inactive]) >> 20), 0), most
        return available, total

    def memory_record(self, origin_us: int) -> Any:  # docstring goes in
        """Remove all notes; return them and the host's memory: us after ``origin_us``, "blocks" as differences."""
        rows = [self.notes.popleft() for _ in range(len(self.notes))]
        pairs = [self.in_use.popleft() for _ in range(len(self.in_use))]
        self.changed = False
        record: Any = {"host": self.host_memory()}
        if self.device and self.device != self.device_written:
            record["device"] = self.device_written = dict(self.device)
        if rows:
            record["memory"] = [[row[0] // 1000 - origin_us, *row[1:]] for row in rows]
        if pairs:
            times, used = [time // 1000 for time, _ in pairs], [blocks for _, blocks in pairs]
            columns = [[value - before for value, before in zip(times, [origin_us, *times])]]  # noqa: B905
            columns.append([value - before for value, before in zip(used, [0, *used])])  # noqa: B905
            record["blocks"] = [self.cache_size, *columns]
        return record
