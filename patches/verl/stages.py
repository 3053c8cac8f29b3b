"""verl: what its workers and its engines have in common, as lines of recipes and as words about them."""

from __future__ import annotations

from patcher.messages import Note, Text
from patcher.recipe import Around, Before, Insertion, Loop
from patches.training import MICRO, MINI
from patches.verl import RELEASES

LEGACY = RELEASES.until("0.7.1")
"""The releases whose workers have the loops themselves."""

LOGGER = "verl.rlpatch"
REMOVE = Text("verl's own profiler takes a window of micro-batches, and of mini-batches on NPUs, in every stage")
WHY = Text(
    "the guides put torch_npu.profiler with a schedule into these loops by hand: off by one, on every rank and for"
    " every role, and without a trace where a loop has fewer turns than the schedule"
)
ITERATED = Text(
    "what the schedule iterates over runs wrapped: the wrapper starts, steps and saves the profiler between two"
    " micro-batches, and saves it also where one of them raises"
)
DYNAMIC = Note(
    Text("with use_dynamic_bsz the first micro-batch is not representative"),
    Text("from 0.6.0 on verl puts the smallest micro-batches at both ends of the loop then"),
)
INTERLEAVED = Note(
    Text("with a pipeline Megatron and MindSpeed have no micro-batches: take --call"),
    Text(
        "with pipeline_model_parallel_size above 1, or several model chunks, Megatron's schedule interleaves forward"
        " and backward of several micro-batches, and with overlap_moe_expert_parallel_comm it does so in updates"
        " without a pipeline, too: none of them has a place of its own. Nothing is recorded then, and the log says"
        " so; --call can be had, and in updates --mini-batch"
    ),
)


def loop(method: str, unit: str, *names: str, last: bool = False, windows: tuple[str, ...] = ()) -> Insertion:
    """Return the line that wraps the loop over `unit` in any of `names`; with `last` the loop's end ends the call."""
    return Insertion(
        method,
        where=Loop(names),
        line=f'{{units}} = self._rlpatch_stage_units("{unit}", {{units}}{", last=True" if last else ""})',
        why=Text("each turn is {turn}", _TURNS[unit]),
        windows=windows,
    )


def leave(method: str, why: str, windows: tuple[str, ...] = ()) -> Insertion:
    """Return the line that ends a call of a stage, before the method's final return."""
    return Insertion(method, where=Before("return ..."), line='self._rlpatch_stage("leave")', why=why, windows=windows)


def scheduled(method: str, chunks: str, around: str, *, last: bool) -> Insertion:
    """Return lines around the statement `around`, which runs Megatron's schedule over `batch_generator`.

    `chunks` is the code of the model's chunks; with `last` the end of the schedule ends the call.
    """
    last_one = ", last=True" if last else ""
    return Insertion(
        method,
        where=Around(around, after="self._rlpatch_stage_ended(batch_generator)", nested=False),
        line=f'batch_generator = self._rlpatch_stage_scheduled("{MICRO}", batch_generator, mpu, {chunks}{last_one})',
        why=Text(
            "without a pipeline Megatron's schedule takes a micro-batch, goes forward and, in updates, backward, and"
            " takes the next one. It never finds the end of them: the last one ends behind it, with the reduction of"
            " the gradients"
        ),
    )


_TURNS = {MICRO: Text("a micro-batch, forward and backward"), MINI: Text("a mini-batch with its optimizer step")}
