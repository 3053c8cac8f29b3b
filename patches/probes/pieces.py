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
    piece_first: int
    start_s = 0.0  # of a profiler
    length: int  # units of the next piece
    costs: list[float]  # seconds that a unit took to save, in the last pieces

    def read_settings(self) -> None:
        super().read_settings()
        most = self.setting("RLPATCH_MAX_STALL", self.MAX_STALL, r"(?=.*[1-9])\d{1,9}(\.\d*)?")
        self.max_stall, self.costs = float(most), []
        self.length = max(1, min(self.FIRST_PIECE, int(self.max_stall * 1000 / self.UNIT_STALL_MS)))

    def build(self, wait: int, warmup: int, active: int) -> Any:
        self.piece_first = wait + max(warmup, 0)
        self.until = self.piece_first + min(self.end - self.piece_first, active, self.length)
        return super().build(wait, max(warmup, 0), self.until - self.piece_first)

    def tick(self, batch: Any) -> None:
        if self.unit < self.until:
            super().tick(batch)
        else:
            self.begin_piece(batch)
            self.unit += 1

    def begin_piece(self, batch: Any) -> None:
        import time

        began, count, piece = time.monotonic(), self.unit - self.piece_first, self.piece
        self.is_piece = True
        self.close("piece %s" % piece)
        self.is_piece = False
        if self.piece <= piece:  # it could not be saved
            return
        obstacle = self.obstacle()
        if obstacle:
            told = obstacle, self.unit - self.first, self.end - self.first, piece
            self.finish("%s, recorded %s of %s units in %s pieces" % told)
            return
        saved = time.monotonic()
        self.costs = [*self.costs[-1:], max(saved - began + self.start_s, 1e-6) / count]
        self.length = max(1, min(2 * count, int(self.max_stall / 2 / max(self.costs))))
        self.open(self.unit, batch)
        self.start_s = time.monotonic() - saved
        if count == 1 and saved - began > self.max_stall:
            self.say("a single unit takes longer to save than RLPATCH_MAX_STALL=%s" % self.max_stall)

    def open(self, at: int, batch: Any = None) -> None:
        before = self.uncounted if self.piece > 1 else 0
        super().open(at, batch)
        if self.piece > 1:
            self.uncounted = before
            if self.METADATA and self.units:
                self.units[0].update(uncounted=before, profiler_start=True)

    def finish(self, report: str, found: Sequence[str] = ()) -> None:
        if self.is_piece and found:
            last = self.unit - 1
            self.say("piece %s, units %s to %s: %s" % (self.piece, self.piece_first, last, ", ".join(found)))
            if self.METADATA:
                self.saved = [*self.saved, *found][-16:]
                self.note("saving" if self.COMPRESSED else "saved", report, found)
            if self.COMPRESSED:
                self.compress(found)
            self.piece += 1
            return
        super().finish(report, found)
        if self.METADATA and self.piece > 1 and not found:
            self.note("saved", report)
        self.piece = 1


class SizeLimit(Recorder):
    """Ends a window whose trace would become too large, by the bytes of its pieces before they are compressed."""

    MAX_TRACE_GB = "0"

    bytes_of_unit = 0.0
    bytes_saved = 0  # of the window

    def read_settings(self) -> None:
        super().read_settings()
        limit = self.setting("RLPATCH_MAX_TRACE_GB", self.MAX_TRACE_GB, r"(?=.*[1-9])\d{1,9}(\.\d*)?")
        self.most_bytes = float(limit) * 1e9

    def obstacle(self) -> str:
        return super().obstacle() or self.excess()

    def excess(self) -> str:
        import shutil

        more = self.bytes_of_unit * (1 if self.end >= 10**9 else self.end - max(self.unit, self.first))
        if self.bytes_saved + more > self.most_bytes or more > shutil.disk_usage(self.save_path).free - 1e9:
            return "its trace would have %.3g GB, by the units so far" % ((self.bytes_saved + more) / 1e9)
        return ""

    def build(self, wait: int, warmup: int, active: int) -> Any:
        if self.bytes_of_unit:
            active = max(1, min(active, int((self.most_bytes - self.bytes_saved) / self.bytes_of_unit)))
        return super().build(wait, warmup, active)

    def finish(self, report: str, found: Sequence[str] = ()) -> None:
        size, saving_piece = self.weigh(found), getattr(self, "is_piece", False)
        self.bytes_of_unit = (
            size / max(self.unit - getattr(self, "piece_first", self.first), 1) or self.bytes_of_unit
        )
        self.bytes_saved = self.bytes_saved + size if saving_piece else 0
        super().finish(report, found)

    def weigh(self, traces: Sequence[str]) -> int:
        import os

        walks = [step for trace in traces for step in os.walk(trace)]
        files = [os.path.join(place, name) for place, _, names in walks for name in names]
        return sum(os.path.getsize(path) for path in [*traces, *files] if os.path.isfile(path))
