"""What a recorder leaves beside its traces: what each unit held, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patches.probes.constants import CompileTime
from patches.probes.steering import Steerable


class StepMetadata(Steerable):
    """Writes a small file beside each trace, and one for ``rlpatch watch`` at each transition.

    ``ABOUT`` is the same of all that is recorded with a patch, ``IDENTITY`` names the attributes that tell a worker
    and its recordings from others, ``watched`` is the file for ``watch``. ``shown`` holds the number of the next
    unit where the same host can read it. Nothing here touches the device, and a folder that cannot be written stops
    nothing.
    """

    ABOUT: Mapping[str, object] = {}
    IDENTITY: tuple[str, ...] = ()

    SEVERAL: CompileTime[bool] = False  # windows, one after the other
    REPEAT: CompileTime[int] = 1
    METADATA: CompileTime[bool] = True
    LIVE: CompileTime[bool] = False
    PIECES: CompileTime[bool] = False  # of a window, each a trace
    COMPRESSED: CompileTime[bool] = False
    RELATIVE: CompileTime[bool] = False  # to where a condition holds
    BY_STEP: CompileTime[bool] = False  # a call is a training step, and others may follow

    clock: Callable[[], int]
    at: dict[str, int]
    origin: int | None  # of the numbers of the window, None until the condition holds
    done: bool
    shared: Any
    watched: str
    shown: Any
    noted: dict[str, Mapping[str, Any]]  # what lies in each file for ``watch``
    saved: list[str]
    saving_s: float
    piece: int  # of the window, from 1
    units: list[dict[str, Any]]
    save_path: str
    unit: int
    uncounted: int

    contents: Callable[[Any], Mapping[str, object]]
    is_over: Callable[[], bool]

    def show(self) -> None:
        import contextlib
        import mmap
        import tempfile

        self.shown = [0]
        with contextlib.suppress(OSError):  # a file without a name, which is gone with the process
            self.shared = tempfile.TemporaryFile(dir="/dev/shm")  # noqa: SIM115
            self.shared.truncate(8)
            self.shown = memoryview(mmap.mmap(self.shared.fileno(), 8)).cast("Q")
            self.ABOUT = {**self.ABOUT, "live": self.shared.fileno()}

    def note(self, state: str, why: str = "", found: Sequence[str] = ()) -> None:
        import json
        import os
        import tempfile

        data = dict(self.ABOUT, stage=self.STAGE, state=state, why=why, number=self.unit, done=self.done)
        data.update({key: getattr(self, key) for key in self.IDENTITY}, at=self.clock() / 1e9)
        if self.BY_STEP:
            data["done"] = self.is_over()
        data["traces"] = [*found]
        if self.SEVERAL or self.ON_DEMAND or self.REPEAT > 1 or self.PIECES:
            data["traces"] = self.saved
        if self.RELATIVE:
            data.update(self.at, origin=self.origin)
        if self.REPEAT > 1:
            data["repeat"] = self.REPEAT
        if self.PIECES:
            data["piece"] = self.piece
        if found:
            data["saving_s"] = self.saving_s
        if self.COMPRESSED:
            self.noted[self.watched] = data
        for path in [self.watched, *(trace + ".rlpatch.json" for trace in found)]:
            try:
                folder = os.path.dirname(self.watched)
                os.makedirs(folder, exist_ok=not os.path.islink(folder))
                with tempfile.TemporaryDirectory(dir=folder) as new:  # goes, whatever fails
                    with open(new + "/data", "w") as file:
                        file.write(json.dumps(data))
                    os.replace(new + "/data", path)
            except OSError as e:  # the run goes on, and this is said once
                self.note = lambda *_: None  # type: ignore[method-assign]
                return self.say("%s cannot be written: %s; no link is followed" % (path, e))

    def begin(self, batch: Any) -> None:
        begin = {"number": self.unit, "begin": self.clock(), "uncounted": self.uncounted}
        self.units.append({**begin, **self.contents(batch)})
