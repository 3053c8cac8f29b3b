"""What a recorder leaves beside its traces: what each unit held, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patches.probes.settled import Settled


class Facts:
    """Writes a small file beside each trace, and one for ``rlpatch watch`` at each transition.

    ``identity`` tells a worker from all others, ``which`` a recording of it from the next one, ``shown`` holds the
    number of the next unit where the same host can read it. Nothing here touches the device, and a folder that
    cannot be written stops nothing.
    """

    STAGE = "rollout"
    ABOUT: Mapping[str, object] = {}

    SEVERAL: Settled[bool] = False  # windows, one after the other
    REPEAT: Settled[int] = 1
    FACTS: Settled[bool] = True
    LIVE: Settled[bool] = False

    clock: Callable[[], int]
    identity: dict[str, object]
    shared: Any
    watched: str
    shown: Any
    saved: list[str]
    units: list[dict[str, Any]]
    save_path: str
    unit: int
    uncounted: int

    def show(self) -> None:
        import contextlib
        import mmap
        import tempfile

        with contextlib.suppress(OSError):  # a file without a name, which is gone with the process
            self.shared = tempfile.TemporaryFile(dir="/dev/shm")  # noqa: SIM115
            self.shared.truncate(8)
            self.shown = memoryview(mmap.mmap(self.shared.fileno(), 8)).cast("Q")
            self.identity["live"] = self.shared.fileno()

    def note(self, state: str, why: str = "", found: Sequence[str] = ()) -> None:
        import json
        import os

        facts = {**self.ABOUT, **self.identity, "state": state, "at": self.clock() / 1e9, "number": self.unit}
        facts.update(self.which(), why=why, units=self.units, traces=self.recorded(found))
        for path in [self.watched, *(trace + ".rlpatch.json" for trace in found)]:
            new = "%s.%s" % (path, self.clock())
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(new, "x") as file:  # never through a link that somebody left there
                    json.dump(facts, file)
                os.replace(new, path)
            except OSError as e:  # the run goes on, and this is said once
                self.note = lambda *_: None  # type: ignore[method-assign]
                return self.say("%s cannot be written: %s" % (path, e))

    def recorded(self, found: Sequence[str]) -> list[str]:
        return self.saved if self.SEVERAL or self.REPEAT > 1 else list(found)

    def begun(self) -> dict[str, object]:
        return {"number": self.unit, "begin": self.clock(), "uncounted": self.uncounted}

    def begin(self, batch: Any) -> None:
        raise NotImplementedError

    def which(self) -> Mapping[str, object]:
        raise NotImplementedError

    def say(self, text: str, *failure: Any) -> None:
        raise NotImplementedError
