"""The capture of an engine's graphs, whatever the engine: the probe, and how the user's choice goes into it."""

from __future__ import annotations

from patcher.capture import WHOLE, Capture, Whole
from patcher.notes import Note
from patcher.recipe import Probe, Site
from patches import recording

STAGE = "graph-capture"
WINDOWS = (WHOLE,)

MANY_SIZES = Note(
    "every size that is captured is in the trace: fewer of them make it smaller",
    "and so is its warm-up run; cudagraph_capture_sizes in --compilation-config says which sizes there are",
)
"""What every engine has to say of the length of a trace."""


def summary(capture: Capture[Whole]) -> str:
    """One line for the reader of the patched file."""
    which = "capture of graphs" if capture.stage.repeat == 1 else f"{capture.stage.repeat} captures of graphs"
    return f"Records the first {which} of a worker on {recording.ranks(capture)}."


def probe(*, logger: str) -> Probe:
    """The probe that records from ``enter`` to ``leave``; only vLLM's workers are known to it."""
    parts = ("graphs.GraphCapture", "rollout.VllmRanks")
    return recording.probe(parts, (), logger=logger, chosen=recording.chosen, summary=summary)


INHERITED = Probe(members=("rollout.Inherited",), summary=summary)
"""For a worker whose base class has the rest."""


def around(method: str, runs: str, why: str, *, nested: bool = True) -> Site:
    """The lines around the one call of the model runner's ``runs`` in ``method``, at any depth if it is ``nested``."""
    call = f"self.model_runner.{runs}()"
    return Site(
        method,
        f'self._rlpatch_stage("enter", "{runs}")',
        before="" if nested else call,
        call=call if nested else "",
        after='self._rlpatch_stage("leave")',
        why=why,
    )
