"""Windows in pieces, and windows whose trace may not exceed a size: layers that go in where they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from patches.probes.constants import CompileTime
from patches.probes.recorder import CountedUnits, Recorder


class Pieces(CountedUnits):
    """Saves a long window in pieces, between two units, so that no unit waits long for it.

    A piece is a trace of its own, whose first unit carries the start of the profiler. The first piece has
    ``FIRST_PIECE`` units at most, fewer where ``UNIT_STALL_MS`` lets expect more than ``MAX_STALL``. Each later one
    has as many as half of that allows, by the slower one of the last two, but at most twice as many as the one
    before: another load of the machine must not make a pause too long.
    """

    MAX_STALL = "2"

    FIRST_PIECE: CompileTime[int] = 30
    UNIT_STALL_MS: CompileTime[int] = 1

    piece = 1
    is_piece = False  # what is saved, and not the last one
    first = piece_first = piece_end = 0
    start_s = 0.0  # of a profiler
    length: int  # units of the next piece
    costs: list[float]  # seconds that a unit took to save, in the last pieces

    def read_settings(self) -> None:
        """Read the settings; from the longest pause allowed (seconds) derive how many units the first piece has."""
        super().read_settings()
        seconds = self.setting("RLPATCH_MAX_STALL", self.MAX_STALL, r"(?=.*[1-9])\d{1,9}(\.\d*)?")
        self.max_stall, self.costs = float(seconds), []
        self.length = max(1, min(self.FIRST_PIECE, int(self.max_stall * 1000 / self.UNIT_STALL_MS)))

    def open_window(self, unit: int) -> None:
        """Start the tool before unit number ``unit`` for one piece of the window.

        A piece has at most ``length`` units after the warm-up.
        """
        window = self.first, self.end
        self.first = self.piece_first = max(self.first, unit)
        self.end = self.piece_end = min(self.end, self.first + self.length)
        super().open_window(unit)
        self.first, self.end = window

    def tick(self, batch: Any) -> None:
        """Begin the next unit, whose input is ``batch``.

        After the last unit of a piece, save the piece and begin another.
        """
        if self.unit < self.piece_end:
            super().tick(batch)
        else:
            self.begin_piece(batch)
            self.unit += 1

    def begin_piece(self, batch: Any) -> None:
        """Save the piece, and start the next one with the unit whose input is ``batch``.

        The time that this takes decides how many units the next piece has. If the piece cannot be saved, or nothing
        more can be recorded, the window ends. A pause longer than ``max_stall`` seconds is reported.
        """
        import time

        began, count, piece = time.monotonic(), self.unit - self.piece_first, self.piece
        window_end, self.end = self.end, self.piece_end
        self.is_piece = True
        self.close("piece %s" % piece)
        self.is_piece, self.end = False, window_end
        if self.piece <= piece:  # it could not be saved
            return
        obstacle = self.obstacle()
        if obstacle:
            values = obstacle, self.unit - self.first, self.end - self.first, self.UNITS, piece
            self.finish("%s, recorded %s of %s %s in %s pieces" % values)
            return
        saved = time.monotonic()
        self.costs = [*self.costs[-1:], max(saved - began + self.start_s, 1e-6) / count]
        self.length = max(1, min(2 * count, int(self.max_stall / 2 / max(self.costs))))
        self.open(self.unit, batch)
        self.start_s = time.monotonic() - saved
        if saved - began > self.max_stall:
            took = piece, saved - began, self.max_stall
            self.say("saving piece %s took %.1f s, longer than RLPATCH_MAX_STALL=%s" % took)

    def open(self, unit: int, batch: Any = None) -> None:
        """Open a piece before unit number ``unit``, whose input is ``batch``.

        The second and later pieces keep the window's count of uncounted iterations, and note that the profiler
        started in their first unit.
        """
        before = self.uncounted if self.piece > 1 else 0
        super().open(unit, batch)
        if self.piece > 1:
            self.uncounted = before
            self.mark_start()

    def finish(self, report: str, traces: Sequence[str] = ()) -> None:
        """Report the ``traces`` of a piece and go on with the window.

        If this was the last piece, or nothing was saved, end the window with ``report``.
        """
        report = report.replace(
            " of %s %s" % (10**9 - self.first, self.UNITS), " " + self.UNITS
        )  # of a window without an end
        if self.is_piece and traces:
            values = self.piece, self.UNITS, self.piece_first, self.unit - 1, ", ".join(traces)
            self.say("saved piece %s, %s %s to %s: %s" % values)
            self.write_state("saved", report, traces)
            self.after_saving(traces)
            self.piece += 1
            return
        super().finish(report, traces)
        if self.piece > 1 and not traces:
            self.write_state("saved", report)
        self.piece = 1

    def add_metadata(self, data: dict[str, Any]) -> None:
        """Add the number of the piece to the step metadata."""
        super().add_metadata(data)  # type: ignore[misc]
        data["piece"] = self.piece


class SizeLimit(Recorder):
    """Records nothing whose trace would become too large, by the bytes of those before."""

    MAX_TRACE_GB = "0"

    bytes_of_unit = 0.0
    bytes_saved = 0  # of the window

    def read_settings(self) -> None:
        """Read the limit for the traces of a window, in GB."""
        super().read_settings()
        limit = self.setting("RLPATCH_MAX_TRACE_GB", self.MAX_TRACE_GB, r"(?=.*[1-9])\d{1,9}(\.\d*)?")
        self.most_bytes = float(limit) * 1e9

    def obstacle(self) -> str:
        """Return why nothing can be recorded: the obstacle of the base class, or a trace too large."""
        return super().obstacle() or self.size_obstacle()

    def size_obstacle(self) -> str:
        """Return how large the traces would become if that exceeds the limit or the free disk, "" otherwise.

        The size is that of the window's traces so far, plus that of its remaining units (one if it has no end) by
        the bytes per unit of the last trace. 1 GB of the disk has to stay free.
        """
        import shutil

        size = self.bytes_of_unit * (1 if self.end >= 10**9 else self.end - max(self.unit, self.first))
        if self.bytes_saved + size > self.most_bytes or size > shutil.disk_usage(self.save_path).free - 1e9:
            gigabytes = (self.bytes_saved + size) / 1e9
            return "the trace would be too large for RLPATCH_MAX_TRACE_GB or the disk: about %.3g GB" % gigabytes
        return ""

    def add_trace_size(self, traces: Sequence[str], count: int) -> None:  # docstring goes in
        """Add the bytes of ``traces`` (files, folders) to the window's; note the mean of the ``count`` units."""
        import os

        walks = [step for trace in traces for step in os.walk(trace)]
        files = [os.path.join(folder, name) for folder, _, names in walks for name in names]
        size = sum(os.path.getsize(path) for path in [*traces, *files] if os.path.isfile(path))
        self.bytes_saved += size
        if size:
            self.bytes_of_unit = size / max(count, 1)


class LimitedCapture(SizeLimit):
    """The limit of what has no units."""

    def finish(self, report: str, traces: Sequence[str] = ()) -> None:
        """Note the size of ``traces`` for the limit of the next recording, and end the window."""
        self.add_trace_size(traces, 1)
        self.bytes_saved = 0
        super().finish(report, traces)


class LimitedPieces(SizeLimit, Pieces):
    """The limit of a window in pieces: a piece has no more units than fit."""

    def open_window(self, unit: int) -> None:
        """Start the tool before unit number ``unit``.

        First lower ``length``, the units of a piece, to what still fits into ``most_bytes`` of the window, but at
        least to one.
        """
        if self.bytes_of_unit:
            units = int((self.most_bytes - self.bytes_saved) / self.bytes_of_unit)
            self.length = max(1, min(self.length, units))
        super().open_window(unit)

    def finish(self, report: str, traces: Sequence[str] = ()) -> None:
        """Count the size of ``traces`` towards ``most_bytes``, then finish the piece or the window.

        ``report`` says what was recorded. The last piece sets the count back to 0, and keeps the size of a unit.
        """
        self.add_trace_size(traces, self.unit - self.piece_first)
        if not self.is_piece:
            self.bytes_saved = 0
        super().finish(report, traces)
