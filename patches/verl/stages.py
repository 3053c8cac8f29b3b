"""verl: what its workers and its engines have in common, as lines of recipes and as words about them."""

from __future__ import annotations

from patcher.messages import Note, Text
from patcher.recipe import Around, Before, Insertion, Loop
from patches.training import MICRO, MINI
from patches.verl import RELEASES

LEGACY = RELEASES.until("0.7.1")
"""The releases whose workers have the loops themselves."""

REMOVE = Text(
    "the patch is no longer needed once verl's own profiler can record a window of micro-batches in every stage and,"
    " on NPUs, can record a window of mini-batches as well"
)
WHY = Text(
    "the usual guides tell you to add torch_npu.profiler with a schedule to these loops by hand. The window is then"
    " off by one, every rank and every role records, and no trace is written if a loop is shorter than the schedule"
)
ITERATED = Text(
    "rlpatch wraps the iterator from which Megatron's schedule takes micro-batches. Between two micro-batches, the"
    " wrapper starts, steps or stops the profiler. The trace is saved even if an exception ends the loop"
)
DYNAMIC = Note(
    Text("with use_dynamic_bsz, micro-batches differ in size: skip the first one"),
    Text("from verl 0.6.0 on, use_dynamic_bsz puts the smallest micro-batches at the start and at the end of the loop"),
)
INTERLEAVED = Note(
    Text("with pipeline parallelism, use --call instead of --micro-batch"),
    Text(
        "with pipeline_model_parallel_size above 1 or with several model chunks, Megatron's schedule interleaves"
        " micro-batches. In updates, overlap_moe_expert_parallel_comm also interleaves micro-batches, even without"
        " pipeline parallelism. In these cases a --micro-batch window records nothing, and the log says so. --call"
        " still works; in updates, --mini-batch works, too"
    ),
)


def loop(method: str, unit: str, *names: str, last: bool = False, windows: tuple[str, ...] = ()) -> Insertion:
    """Return the line in `method` that wraps the loop over any of the variables `names`: each iteration is a `unit`.

    With `last` the loop's end ends the call of the stage. `windows` are the units for whose windows the line goes in
    (none: for all).
    """
    return Insertion(
        method,
        where=Loop(names),
        line=f'{{units}} = self._rlpatch_stage_units("{unit}", {{units}}{", last=True" if last else ""})',
        why=Text("each iteration of this loop is {batch}", _TURNS[unit]),
        windows=windows,
    )


def leave(method: str, why: str, windows: tuple[str, ...] = ()) -> Insertion:
    """Return the line that ends a call of a stage, before the method's final return."""
    return Insertion(method, where=Before("return ..."), line='self._rlpatch_stage("leave")', why=why, windows=windows)


def scheduled(method: str, chunks: str, statement: str, *, last: bool) -> Insertion:
    """Return the lines that count micro-batches, for `method`, around its `statement` that runs Megatron's schedule.

    The schedule takes them from `batch_generator`. `chunks` is a Python expression for the model's chunks. With `last`,
    nothing follows the schedule, so the recorder ends the stage's call there.
    """
    last_one = ", last=True" if last else ""
    return Insertion(
        method,
        where=Around(statement, after="self._rlpatch_stage_ended(batch_generator)", nested=False),
        line=f'batch_generator = self._rlpatch_stage_scheduled("{MICRO}", batch_generator, mpu, {chunks}{last_one})',
        why=Text(
            "without pipeline parallelism, Megatron's schedule takes one micro-batch at a time and runs its forward"
            " (in updates also its backward) before it takes the next. The schedule never exhausts the iterator of"
            " the micro-batches, so the last micro-batch ends only when the schedule returns, and includes the"
            " gradient reduction"
        ),
    )


_TURNS = {
    MICRO: Text("a micro-batch with its forward and backward"),
    MINI: Text("a mini-batch with its optimizer step"),
}
