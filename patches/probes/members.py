"""Members of the patched class itself, beside its recorder: the methods that the lines at its call sites use.

``_rlpatch_stage`` and ``_RlpatchStage`` stand for the names of the patch.
"""

from __future__ import annotations

from typing import Any


class Calls:
    """The one method through which a class dispatches what happens to its recorder."""

    _RlpatchStage: Any
    _rlpatch_stage_probe: Any = False  # False: not called yet, None: nothing more to record

    def _rlpatch_stage(self, event: str, *args: Any) -> None:
        """Call the method ``event`` of the recorder while it has more to record; the first call makes it."""
        probe = self._rlpatch_stage_probe
        if probe is not None:
            self._rlpatch_stage_probe = self._RlpatchStage.dispatch(probe, self, event, args)


class Loops(Calls):
    """For loops over units: it rebinds their iterables."""

    def _rlpatch_stage_units(self, unit: str, units: Any, last: bool = False) -> Any:
        """Return ``units`` wrapped: the recorder hears of each; with ``last``, the stage's call ends with them.

        ``unit`` names what they are, such as "micro-batch". If nothing more is recorded, return ``units`` itself.
        """
        if self._rlpatch_stage_probe is None:
            return units
        return self._RlpatchStage.Loop(self._rlpatch_stage, unit, units, last)


class ForeignLoops:
    """For a class whose loops belong to a stage of another object, which replaces this method."""

    def _rlpatch_stage_units(self, unit: str, units: Any, last: bool = False) -> Any:  # noqa: ARG002
        """Return ``units`` as they are, until another object's stage replaces this method."""
        return units


class Inherited:
    """For a worker whose base class has the rest of the patch."""

    _rlpatch_stage_probe: Any = False


class Schedule:
    """For micro-batches that Megatron's schedule takes out of an iterator.

    It never asks for one more than there are, so what ends the last one comes after it.
    """

    def _rlpatch_stage_ended(self, units: Any) -> None:
        """Let a generator over units see its end, which Megatron's schedule never asks for."""
        if hasattr(units, "close"):  # a generator of the recorder
            next(units, None)
