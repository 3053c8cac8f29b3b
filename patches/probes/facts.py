"""The step metadata: what each unit held, and how far a recorder has come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patches.probes.recorder import Recorder
from patches.probes.tools import Compression


class StepMetadata(Recorder):
    """Writes a small file beside each trace, and one for ``rlpatch watch`` at each transition.

    ``ABOUT`` is the same in all files of a patch, ``IDENTITY`` names the attributes that tell a worker and its
    recordings from others. Nothing here touches the device, and a folder that cannot be written stops nothing.
    """

    ABOUT: Mapping[str, object] = {}
    IDENTITY: tuple[str, ...] = ()

    units: list[dict[str, Any]]
    clock: Callable[[], int]  # nanoseconds since 1970
    closing_at: int

    def __init__(self, worker: Any) -> None:
        import time

        self.clock, self.units = time.time_ns, []
        super().__init__(worker)

    def begin_unit(self, number: int, batch: Any) -> None:
        """Note the number, the start time (ns since 1970) and the contents of a unit whose input is ``batch``.

        A unit is a decode step, a micro-batch or what else is counted. Leave out units of the warm-up.
        """
        if number >= self.first:
            contents = self.contents(batch)
            self.units.append({"number": number, "begin": self.clock(), "uncounted": self.uncounted, **contents})

    def end_unit(self) -> None:
        """Note the time (ns since 1970) at which the last unit has ended, unless it has one already."""
        if self.units:
            self.units[-1].setdefault("end", self.clock())

    def mark_start(self) -> None:
        """Note that the first unit of the trace carries the start of the profiler."""
        if self.units:
            self.units[0].update(uncounted=self.uncounted, profiler_start=True)

    def close(self, why: str) -> None:
        """Close the window, and measure how long saving takes."""
        self.closing_at = self.clock()
        super().close(why)

    def write_state(self, state: str, why: str = "", traces: Sequence[str] = ()) -> None:
        """Write ``state``, its reason ``why`` and the step metadata to the state file and beside each trace.

        ``state`` is "waiting", "recording", "saved" or another one. If the folder cannot be written, print that
        once and write nothing more.
        """
        import json
        import os
        import tempfile

        data: Any = dict(self.ABOUT, stage=self.STAGE, state=state, why=why, number=self.unit, done=self.done)
        data.update({key: getattr(self, key) for key in self.IDENTITY}, traces=[*traces], at=self.clock() / 1e9)
        if traces:
            data["saving_s"] = round((self.clock() - self.closing_at) / 1e9, 3)
        self.add_metadata(data)
        folder = self.save_path + "/.rlpatch"
        watched = self.watched()
        try:
            os.makedirs(folder, exist_ok=not os.path.islink(folder))
            for path in [watched, *(trace + ".rlpatch.json" for trace in traces)]:
                with tempfile.TemporaryDirectory(dir=folder) as new:  # goes, whatever fails
                    with open(new + "/data", "w") as file:
                        json.dump(data, file)
                    os.replace(new + "/data", path)
        except OSError as e:  # the run goes on, and this is said once
            self.write_state = lambda *_: None  # type: ignore[method-assign]
            self.say("%s cannot be written: %s; no part of this path may be a link" % (folder, e))

    def add_metadata(self, data: dict[str, Any]) -> None:
        """Hook: add to what is written."""


class SavedTraces(StepMetadata):
    """Lists the traces of all windows of a worker, up to 16, and not those of the last one alone."""

    saved: Sequence[str] = ()

    def open(self, unit: int, batch: Any = None) -> None:
        """Drop the units of the last window, and open one before unit number ``unit``, whose input is ``batch``."""
        self.units = []
        super().open(unit, batch)

    def add_metadata(self, data: dict[str, Any]) -> None:
        """Replace the traces in the metadata by those of all windows so far, the newest 16."""
        super().add_metadata(data)
        self.saved = data["traces"] = [*self.saved, *data["traces"]][-16:]


class CompressedMetadata(StepMetadata, Compression):
    """Names the compressed traces where the ones before were named."""

    def after_saving(self, traces: Sequence[str]) -> None:
        """Start compressing ``traces``, if there are any, unless the process is ending.

        The new names then go into the state file and into the metadata beside each trace.
        """
        if traces and not self.exits:
            # Here: by the time that they are compressed, this may be the worker of another role.
            self.compress(traces, [self.watched(), *(trace + ".rlpatch.json" for trace in traces)])

    def update_trace_names(self, traces: Sequence[str], metadata_files: Sequence[str], new_path: str) -> None:
        """Put the ".gz" paths of compressed ``traces`` into their ``metadata_files``; missing ones are skipped.

        A metadata file beside a trace is renamed like the trace. One that lists the traces of a later window keeps
        its content. ``new_path`` is the path of a temporary file.
        """
        import json
        import os

        for path in filter(os.path.exists, metadata_files):
            with open(path) as file:
                data = json.load(file)
            if set(traces).issubset(data["traces"]):  # else the next window has begun
                data["traces"] = [trace + ".gz" if trace in traces else trace for trace in data["traces"]]
                with open(new_path, "w") as file:
                    json.dump(data, file)
                os.replace(new_path, path.replace(".json.rlpatch", ".json.gz.rlpatch"))
            if path.endswith(".json.rlpatch.json"):
                os.unlink(path)
