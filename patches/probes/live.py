"""The number of the next unit, for other processes of the host: layers for ``--live``."""

from __future__ import annotations

from typing import Any

from patches.probes.facts import StepMetadata
from patches.probes.rollout import RolloutUnits
from patches.probes.training import TrainingSteps


class LiveNumber(StepMetadata):
    """Keeps the number in memory that other processes of the host can read through a file descriptor."""

    shared: Any
    live_number: Any  # its first element is the number

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        if not self.done:
            self.share_number()

    def share_number(self) -> None:
        """Make ``live_number``, whose element 0 is the number of the next unit, readable for other processes.

        It is a mapped file of 8 bytes in /dev/shm without a name, whose descriptor is "live" in the step metadata.
        If that file cannot be made, ``live_number`` is a list that only this process sees.
        """
        import contextlib
        import mmap
        import tempfile

        self.live_number = [0]
        with contextlib.suppress(OSError):  # a file without a name, which is gone with the process
            self.shared = tempfile.TemporaryFile(dir="/dev/shm")  # noqa: SIM115
            self.shared.truncate(8)
            self.live_number = memoryview(mmap.mmap(self.shared.fileno(), 8)).cast("Q")
            self.ABOUT = {**self.ABOUT, "live": self.shared.fileno()}


class LiveIteration(LiveNumber, RolloutUnits):
    """The number of the next iteration."""

    def step(self, batch: Any) -> None:
        """Count the iteration of ``batch`` as the base class does, then publish the number of the next unit."""
        super().step(batch)
        self.live_number[0] = self.unit


class LiveUnit(LiveNumber, TrainingSteps):
    """The number of the next unit of a stage."""

    def start(self, unit: str, batch: Any) -> None:
        """Begin a unit with the input ``batch`` as the base class does, then publish the number of the next one.

        ``unit`` is "micro-batch", "mini-batch" or "call".
        """
        super().start(unit, batch)
        self.live_number[0] = self.unit
