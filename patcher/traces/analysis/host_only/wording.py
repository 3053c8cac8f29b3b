"""Words for places without operators, what to do about them, and advice that several diagnoses share."""

from __future__ import annotations

from patcher.messages import Text
from patcher.traces import model
from patcher.traces.analysis.host_only.measures import communicates
from patcher.traces.analysis.host_steps import BLOCKS, COLLECTION, IMPORTS
from patcher.traces.words import host_name

COMPILES = Text(
    "if this is the first compilation, run the step once before the recording window; otherwise, set"
    " TORCH_LOGS=recompiles to see why torch.compile compiles again, for example because a shape changes"
)

LOADS_DATA = Text("increase num_workers or prefetch_factor of the data loader, or do less work per sample")
WAITS_IN_CALL = Text(
    "the host waits in this call: find out which thread, process or machine it waits for, or let the host do other work"
    " in the meantime"
)

LAST_RANK = Text(
    "find out which rank enters collectives last, because the others wait for it; then send fewer and larger messages,"
    " or overlap communication with computing"
)

WITH_STACKS = "rlpatch apply … --contents cpu,stack"
WITH_SHAPES = "rlpatch apply … --contents cpu,shapes"
GROWS = Text("check what grows or shrinks from step to step: the inputs, a cache, a list")
"""Advice where steps have a trend."""

MORE_WORK = Text(
    "this step does more work than the median step, for example validation, or another model: check whether the"
    " additional work is needed, and how often"
)
"""Advice on a step that does more work than others, without a trend."""

COLLECTORS = (COLLECTION, "built-in function collect")
"""Names of Python's garbage collection in a trace: as a range of its own, and as a call."""


def place_words(place: model.HostPlace) -> str:
    """Return where a place without an operator is, in words with a preposition, such as "in loader.py(12): next".

    It is during a collective, in a frame or range, or before, after or between operators.
    """
    if communicates(place):
        during = Text("during {collective}", host_name(place.inside))
        within = Text(
            "during {collective} (within {around})", collective=host_name(place.inside), around=host_name(place.around)
        )
        return within if place.around not in ("", place.inside) else during
    inside = Text("Python's garbage collection") if place.inside in COLLECTORS else host_name(place.inside)
    if IMPORTS.match(place.inside):
        inside = Text("an import of Python modules")
    if place.inside and place.around:
        return Text("in {inside} (within {around})", inside=inside, around=host_name(place.around))
    if place.inside:
        return Text("in {inside}", inside)
    if place.saving:
        return Text(
            "after {operator} has run once for each tensor, as state_dict() does: weights are probably being saved or"
            " sent here",
            place.before,
        )
    if place.before and place.after:
        return Text("between {before} and {after}", before=host_name(place.before), after=host_name(place.after))
    if place.before:
        return Text("after the last operator ({before})", host_name(place.before))
    return Text("before the first operator ({after})", host_name(place.after))


def advice_on(place: model.HostPlace) -> str:
    """Return what to do about a place at which no operator runs, by what runs there; if unknown, how to record that."""
    if "DataLoader" in f"{place.inside} {place.around}":
        return LOADS_DATA
    if communicates(place):
        return LAST_RANK
    if place.saving:
        return Text("save or send weights less often, or in another thread or process")
    if place.inside in COLLECTORS:
        return Text("call gc.freeze() after everything is loaded, or gc.collect() between the steps")
    if IMPORTS.match(place.inside):
        return Text("import the modules before the first step")
    if BLOCKS.search(place.inside):
        return WAITS_IN_CALL
    if place.inside:
        return Text("make this code faster, or move it to another process or thread")
    return Text("to see what Python does during this time, record Python's stack frames, too: {command}", WITH_STACKS)
