"""Ranges beside the units: layers over the probe, which go in only where they are asked for.

Each layer becomes a class of its own that derives from what lies below it, so a probe without one does
not have a line more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patches.probes.recorder import CountedUnits
from patches.probes.rollout import RolloutUnits
from patches.probes.training import TrainingSteps


class Recorded(CountedUnits):
    """Tells when the first unit begins to be recorded, and when the last one is about to be saved.

    Nothing is marked during the warm-up: torch_npu takes marks only while it records.
    """

    begin_range: Callable[..., Any]
    end_range: Callable[..., None]
    domain_obstacle: Callable[[], str]

    def open(self, unit: int, batch: Any = None) -> None:
        """Open the window before unit number ``unit``; if it opens without a warm-up, call ``begin_recording``."""
        super().open(unit, batch)
        if self.prof is not None and unit >= self.first:
            self.begin_recording()

    def tick(self, batch: Any) -> None:
        """Begin the next unit, whose input is ``batch``; after the first recorded one, call ``begin_recording``."""
        super().tick(batch)
        if self.unit == self.first + 1:
            self.begin_recording()

    def close(self, why: str) -> None:
        """End the ranges, then close the window for the reason ``why``."""
        try:
            self.end_recording()
        finally:
            super().close(why)

    def begin_recording(self) -> None:
        """Hook: the first unit begins to be recorded."""

    def end_recording(self) -> None:
        """Hook: the window is about to be saved."""


class NpuRanges(Recorded):
    """Ranges of mstx, on the host alone.

    ``torch_npu.npu.mstx`` knows domains from torch_npu 2.7 on, and before prints an error for one.
    """

    def begin_range(self, name: str, *domain: str) -> Any:
        """Begin a range of mstx on the host, in ``domain`` if one is given.

        Return its id, which ``end_range`` takes.
        """
        import torch_npu

        return torch_npu.npu.mstx.range_start(name, None, *domain)

    def end_range(self, handle: Any, *domain: str) -> None:
        """End the range of mstx that has this id."""
        import torch_npu

        torch_npu.npu.mstx.range_end(handle, *domain)

    def domain_obstacle(self) -> str:
        """Return "torch_npu before 2.7 has no mstx domains" if ranges cannot have a domain, "" if they can."""
        import inspect

        import torch_npu

        parameters = inspect.signature(torch_npu.npu.mstx.range_start).parameters
        return "" if "domain" in parameters else "torch_npu before 2.7 has no mstx domains"


class TorchRanges(Recorded):
    """Ranges of torch.profiler, which knows no domains."""

    def begin_range(self, name: str, *domain: str) -> Any:  # noqa: ARG002
        """Begin a range of torch.profiler, and return its handle for ``end_range``; ``domain`` is ignored."""
        from torch.profiler import record_function

        handle = record_function(name)
        handle.__enter__()
        return handle

    def end_range(self, handle: Any, *domain: str) -> None:  # noqa: ARG002
        """End a range of torch.profiler."""
        handle.__exit__(None, None, None)

    def domain_obstacle(self) -> str:
        """Return "": torch.profiler needs no domains."""
        return ""


class ModuleRanges(Recorded):
    """A range around every call of an nn.Module within the window, named by its class.

    msprof-analyze's module_statistic (26.2.0, ``prof_exports/module_statistic_export.py``) takes those of
    the domain ``Module`` on the host and sees their hierarchy by their times.
    """

    MODULES = ""

    module: Any
    calling: Any = None

    def begin_recording(self) -> None:
        """Replace ``nn.Module.__call__``: calls of a class whose name matches ``MODULES`` are put into a range.

        Inside a compiled graph, and after the window, calls pass through unchanged; ``end_recording`` restores the
        method. If ranges cannot have a domain, print the reason and replace nothing.
        """
        import functools
        import re

        import torch

        super().begin_recording()
        reason = self.domain_obstacle()
        if reason:
            self.say("the trace has no module ranges: %s" % reason)
            return
        self.module, is_compiling = torch.nn.Module, torch.compiler.is_compiling
        original = self.module.__call__
        names: dict[type, str] = {}
        search = functools.partial(re.search, self.MODULES)

        @functools.wraps(original)
        def call_in_range(module: Any, *args: Any, **kwargs: Any) -> Any:
            """Call a module, in a range if its class's name matches ``MODULES`` and no graph is being compiled."""
            # Dynamo takes the first operand for a constant: a compiled graph has no code of rlpatch.
            if is_compiling() or self.calling is not call_in_range:
                return original(module, *args, **kwargs)
            kind = type(module)
            if kind not in names:
                names[kind] = kind.__name__ if search(kind.__name__) else ""
            handle = self.begin_module(names[kind])
            try:
                return original(module, *args, **kwargs)
            finally:
                self.end_module(handle)

        self.calling = self.module.__call__ = call_in_range

    def begin_module(self, name: str) -> Any:
        """Begin a range called ``name`` for a module's call; return its handle, None without a name.

        If that fails, restore ``nn.Module.__call__``, print the traceback and return None: the model goes on.
        """
        import traceback

        try:
            return self.begin_range(name, "Module") if name else None
        except Exception:  # this runs within the model
            self.restore_modules()
            self.say("no more module ranges, the run goes on: %s" % traceback.format_exc())
            return None

    def end_module(self, handle: Any) -> None:
        """End the range ``handle`` of a module's call, if it has one; errors are ignored."""
        import contextlib

        if handle is not None:
            with contextlib.suppress(Exception):
                self.end_range(handle, "Module")

    def end_recording(self) -> None:
        """Put ``Module.__call__`` back before the window is saved."""
        self.restore_modules()
        super().end_recording()

    def restore_modules(self) -> None:
        """Restore ``nn.Module.__call__``, unless somebody has wrapped it again since it was replaced."""
        calling, self.calling = self.calling, None
        # Else somebody has wrapped this wrapper, which only passes calls on from now on.
        if calling is not None and self.module.__call__ is calling:
            self.module.__call__ = calling.__wrapped__


class Markers(Recorded):
    """Nested ranges for what a stage does, of the default domain, which every release of torch_npu knows.

    ``ranges`` holds what is going on, from the outermost on: what it is, its name, and its range, None
    while nothing is recorded. The class of the stage gives ``subject``.
    """

    ranges: list[tuple[str, str, Any]]
    marking = False
    subject: Callable[[], str]

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self.ranges = []

    def begin_recording(self) -> None:
        """Begin the outermost range, named by ``subject``, and inside it one for each scope that is open.

        A scope is what a range is for, such as a mini-batch.
        """
        super().begin_recording()
        self.marking = True
        ongoing, self.ranges = self.ranges, []
        for scope, name, _ in [("subject", self.subject(), None), *ongoing]:
            self.enter_range(scope, name)

    def end_recording(self) -> None:
        """End all ranges; those that outlast a unit begin again with the next piece of the window."""
        inner = ("subject", "unit", "uncounted")
        ongoing = [(scope, name, None) for scope, name, _ in self.ranges if scope not in inner]
        self.leave_range("subject")
        self.ranges, self.marking = ongoing, False  # the next piece of the window begins within them
        super().end_recording()

    def enter_range(self, scope: str, name: str) -> None:
        """Note that ``scope`` begins, and open a range called ``name`` for it while units are recorded.

        ``scope`` tells what the range is for, such as "unit" or "mini-batch".
        """
        self.ranges.append((scope, name, self.begin_range(name) if self.marking else None))

    def leave_range(self, scope: str) -> None:
        """End the range of ``scope`` and all ranges inside it; do nothing if it is not open."""
        while any(scope == inner for inner, _, _ in self.ranges):
            handle = self.ranges.pop()[2]
            if handle is not None:
                self.end_range(handle)


class RolloutMarkers(Markers, RolloutUnits):
    """The rollout, and each iteration by its kind and the number of the unit."""

    kind: Any = None

    def subject(self) -> str:
        """Return the name of the outermost range: the rollout and its number."""
        return "rollout %s" % self.rollout

    def observe(self, batch: Any) -> Any:
        """Return the kind of an iteration, and keep it for the name of its range."""
        self.kind = super().observe(batch)
        return self.kind

    def open(self, unit: int, batch: Any = None) -> None:
        """Open the window before unit number ``unit``, and begin a range for its first iteration."""
        super().open(unit, batch)
        self.enter_range("unit", "%s %s" % (self.kind, unit))

    def tick(self, batch: Any) -> None:
        """End the range of a unit, and begin that of the next one, named by kind and number."""
        self.leave_range("unit")
        super().tick(batch)
        self.enter_range("unit", "%s %s" % (self.kind, self.unit - 1))

    def pause(self) -> None:
        """End the unit and its range; while recording, begin a range "uncounted KIND" for what is no unit."""
        self.leave_range("unit")
        super().pause()
        if self.marking:
            self.enter_range("unit", "uncounted %s" % self.kind)


class TrainingMarkers(Markers, TrainingSteps):
    """The training step, and each mini-batch and micro-batch, whichever of them the window counts."""

    turns: dict[str, int]

    def subject(self) -> str:
        """Return the name of the outermost range: stage, role and training step."""
        return "%s %s step %s" % (self.STAGE, self.role, self.step)

    def enter(self, *call: Any) -> None:
        """Begin a call of the stage, and drop the ranges of the call before.

        A new training step numbers its micro- and mini-batches from 0.
        """
        super().enter(*call)
        self.ranges = []
        if not self.unit:  # else the training step goes on
            self.turns = {}
        self.turns[self.UNIT] = self.unit - 1

    def start(self, unit: str, batch: Any) -> None:
        """Begin a range for a micro-batch or mini-batch (``unit``), whether or not the window counts it.

        ``batch`` is its input.
        """
        self.leave_range("uncounted")
        super().start(unit, batch)
        number = self.turns[unit] = self.turns.get(unit, -1) + 1
        self.enter_range(unit, "%s %s" % (unit, number))

    def stop(self, unit: str) -> None:
        """End the range of a micro-batch or mini-batch."""
        self.leave_range(unit)
        super().stop(unit)

    def pause(self) -> None:
        """Begin a range "uncounted" for what runs between two loops of units, such as an optimizer step.

        Begin none while nothing is recorded.
        """
        super().pause()
        if self.marking:
            self.enter_range("uncounted", "uncounted")
