"""Layers for a window beside ``--timeline``: the pauses of the run, and the iteration of each unit."""

from __future__ import annotations

from typing import Any

from patches.probes.facts import StepMetadata
from patches.probes.recorder import Recorder


class NotedPauses(Recorder):
    """Keeps a span of the timeline while a window opens, and one while it is saved."""

    def open(self, unit: int, batch: Any = None) -> None:
        """Open the window within a span of the timeline."""
        _paused = self.paused("window opened")
        super().open(unit, batch)

    def close(self, why: str) -> None:
        """Save the window, if one is open, within a span of the timeline."""
        _paused = self.paused("window saved") if self.prof is not None else None
        super().close(why)

    def paused(self, name: str) -> Any:
        """Begin and return a span ``name`` in this process's timeline; it ends when its last reference is gone.

        Return None if the process records no timeline.
        """
        import sys

        timeline: Any = getattr(sys, "_rlpatch_timeline_1", None)
        return timeline.span("pause", name) if timeline else None


class NamedIterations(StepMetadata):
    """Notes the timeline's id of the iteration that is a unit."""

    def begin_unit(self, number: int, batch: Any) -> None:
        """Begin unit ``number`` and note its input ``batch``, as the base class does.

        After the warm-up, also note the timeline's id of the iteration that is running, if it has one.
        """
        import sys

        super().begin_unit(number, batch)
        row = getattr(getattr(sys, "_rlpatch_timeline_1", None), "iterating", None)
        if row and row[5] is None and number >= self.first:  # it goes on, so it is the iteration of this unit
            self.units[-1]["iteration"] = row[0]
