"""Windows whose units are counted from where a rollout has come to a state: layers for ``--at-load`` and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patches.probes.constants import CompileTime
from patches.probes.recorder import MovedWindow
from patches.probes.rollout import RolloutUnits
from patches.probes.sglang import SglangRollout


class RelativeWindow(MovedWindow, RolloutUnits):
    """Counts from after the first iteration in which all that was asked for holds; it is the warm-up.

    ``AT`` has the number of each state that was asked for.
    """

    AT: Mapping[str, str] = {}

    LEAST: CompileTime[str] = r"[1-9]\d*"  # the form of a number that may be chosen
    AWAITED: CompileTime[str] = "not recorded: %s after %s decode steps%s"
    RECORDED_FROM: CompileTime[str] = "%s, recorded %s of %s decode steps from number %s on"

    at: dict[str, int]
    awaited = False
    origin: int | None = None  # of the numbers of the window, None until the condition holds
    fewest: int  # requests that were scheduled in an iteration
    most: int

    def read_settings(self) -> None:
        """Read the number asked for each state ("load", "tail", "context"; 0: not asked for), then the window."""
        texts = {name: self.setting("RLPATCH_AT_" + name.upper(), at, self.LEAST) for name, at in self.AT.items()}
        self.at = {name: int(text) for name, text in texts.items()}
        super().read_settings()

    def begin_rollout(self) -> None:
        """Begin a rollout in which the state was not reached yet."""
        self.awaited, self.origin = False, None
        self.fewest, self.most = 10**9, 0
        super().begin_rollout()

    def place_window(self) -> None:
        """Count the window's units from the one at which the awaited state is reached; keep it shut until then."""
        if self.origin is None:
            self.awaited, self.open_at = True, 10**9  # until the condition holds
        else:
            super().place_window()
            self.first += self.origin
            self.end += self.origin
            self.open_at = max(self.first - self.WARMUP, 0)

    def check_state(self, kind: str | None, load: int, batch: Any) -> None:
        """Place the window if an iteration with ``load`` requests reaches the state for which the window waits.

        ``kind`` is that of the iteration, such as "decode"; if it is None, nothing ran and nothing is done.
        ``batch`` is what the scheduler gave. Until the state is reached, keep the fewest and the most requests, for
        the report.
        """
        if kind is None or not self.awaited:
            return
        self.most = max(self.most, load)
        self.fewest = min(self.fewest, load)
        if self.is_reached(load, batch):
            self.awaited = False
            self.origin = self.origin_of(self.unit + (kind in self.KINDS))
            self.place_window()

    def is_reached(self, load: int, batch: Any) -> bool:  # noqa: ARG002
        """Tell whether the state is reached in an iteration of ``load`` requests; layers add conditions."""
        return True

    def origin_of(self, number: int) -> int:
        """Return the unit from which the window counts, where the state is reached before ``number``."""
        return number

    def end_rollout(self, why: str) -> None:
        """End the rollout for the reason ``why``.

        Report a window that did not open. If the state was not reached, the report has the fewest and most requests
        that were scheduled.
        """
        if self.open_at is not None and self.prof is None:
            counts = "%s to %s requests were scheduled" % (self.fewest, self.most)
            load = "; the start condition did not hold: " + counts if self.awaited else ""
            self.finish(self.AWAITED % (why, self.unit - self.FIRST, load))
        super().end_rollout(why)

    def conclude(self, why: str, traces: Sequence[str]) -> None:
        """End the window with a report: how many units were recorded, from which number on, and the ``traces``.

        ``why`` says why it ended.
        """
        units = max(self.unit - self.first, 0), self.end - self.first
        counted = self.RECORDED_FROM % (why, *units, self.first)
        between = ", with %s uncounted iterations between them: " % self.uncounted
        self.finish(counted + between + (", ".join(traces) or "no trace"), traces)

    def add_metadata(self, data: dict[str, Any]) -> None:
        """Add the state that was asked for, and the unit where it was reached, to the step metadata."""
        super().add_metadata(data)  # type: ignore[misc]
        data.update(self.at, origin=self.origin)


class Loaded(RelativeWindow):
    """Waits until so many requests are scheduled."""

    def is_reached(self, load: int, batch: Any) -> bool:
        """Tell whether so many requests are scheduled as were asked for."""
        return load >= self.at["load"] and super().is_reached(load, batch)


class Drained(RelativeWindow):
    """Waits until no more than so many requests are left."""

    def is_reached(self, load: int, batch: Any) -> bool:
        """Tell whether ``at["tail"]`` requests or fewer are left, after there were more; always if that is 0."""
        is_drained = not self.at["tail"] or load <= self.at["tail"] < self.most
        return is_drained and super().is_reached(load, batch)


class LongContexts(RelativeWindow):
    """Waits until a request has so many tokens of context."""

    growth: int
    context_growth: Callable[[Any], int]
    longest_context: Callable[[Any, int, bool], int]

    def __init__(self, worker: Any) -> None:
        self.growth = self.context_growth(worker)
        super().__init__(worker)

    def is_reached(self, load: int, batch: Any) -> bool:
        """Tell whether some request has at least ``at["context"]`` tokens of context, and all other states hold."""
        decisive = super().is_reached(load, batch)
        return self.longest_context(batch, self.at["context"], decisive) >= self.at["context"] and decisive


class RelativeBatches(RelativeWindow, SglangRollout):
    """SGLang: the scheduler's thread tells the forward's of the load of each batch."""

    def hand_over_load(self, kind: str, batch: Any) -> None:
        """Tell the thread of the forward how many requests ``batch`` has, while a window is near or awaited."""
        if self.near or self.awaited:
            self.hand_over("check_state", kind, len(batch.reqs), batch)
