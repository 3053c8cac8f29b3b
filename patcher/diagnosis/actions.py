"""Proposals that make a rollout shorter, each with an upper bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from patcher.diagnosis.iterations import Iterations
from patcher.diagnosis.model import Action, RunDiagnosis, StageDiagnosis, WhatIf
from patcher.diagnosis.whatif import FREE_WEIGHT_SYNC, MAX_NUM_SEQS, PERFECT_BALANCE, TAIL_CUT, what_ifs_of_steps
from patcher.messages import Text
from patcher.timeline.model import TrainingStep

LEAST_SHARE = 0.02
"""Share of the stage below which nothing is proposed."""

MOST_ACTIONS = 3

AT_LOAD = 0.95
"""Share of the most requests from which on an iteration shows what a token costs at full load."""


def what_if_name(what_if: WhatIf) -> Text:
    """Return the name of a what-if for people, such as "max_num_seqs 32"."""
    names = {
        MAX_NUM_SEQS: Text("max_num_seqs {setting}", what_if.setting),
        TAIL_CUT: Text("outputs of at most {setting} tokens", what_if.setting),
        FREE_WEIGHT_SYNC: Text("no waiting for the weight sync"),
        PERFECT_BALANCE: Text("perfect balance"),
    }
    return names[what_if.name]


def actions(stage: StageDiagnosis, iterations: Iterations, what_ifs: Iterable[WhatIf] = ()) -> tuple[Action, ...]:
    """Return at most three actions, those that save most of the rollouts' time, the largest upper bound first.

    An action is a change to try. The proposals are fuller batches, less host time, hidden collectives, and
    ``what_ifs``. Those that save less than 2 % of the seconds of ``stage``, the rollout, are left out. ``iterations``
    are the stage's. Bounds overlap: they do not add up.
    """
    proposals = [
        *_fuller_batches(iterations),
        *_class_actions(stage),
        *_what_if_actions(what_ifs, stage.seconds, iterations),
    ]
    return _largest(proposals, stage.seconds)


def with_bounds(diagnosis: RunDiagnosis, steps: Sequence[TrainingStep]) -> RunDiagnosis:
    """Return the diagnosis with the bounds of free weight sync and perfect balance, from the training ``steps``.

    They are added to its what-ifs, and its three largest actions are chosen again. Those must save at least 2 % of the
    longest stage. A note is added if at least two more rollouts were counted than there are steps, and there are steps.
    """
    what_ifs = tuple(what_ifs_of_steps(steps))
    more = [
        Action(what_if_name(what_if), what_if.most_seconds - what_if.least_seconds, what_if.because)
        for what_if in what_ifs
        if what_if.least_seconds is not None and what_if.most_seconds is not None
    ]
    seconds = max((stage.seconds for stage in diagnosis.stages), default=0.0)
    largest = _largest([*diagnosis.actions, *more], seconds)
    notes = diagnosis.notes
    if 0 < len(steps) < diagnosis.rollouts - 1:  # the last rollout may be of the step that goes on
        text = Text(
            "{rollouts} rollouts were counted in {steps} training steps: each time an engine runs out of"
            " requests, for example in validation or while agents pause, the next request starts a new rollout",
            rollouts=diagnosis.rollouts,
            steps=len(steps),
        )
        notes = (*notes, text)
    return replace(diagnosis, what_ifs=(*diagnosis.what_ifs, *what_ifs), actions=largest, notes=notes)


def _largest(proposals: Iterable[Action], seconds: float) -> tuple[Action, ...]:
    """Return the three largest of the actions that save at least 2 % of ``seconds``, largest first."""
    worthwhile = [action for action in proposals if action.bound_seconds >= LEAST_SHARE * seconds]
    return tuple(sorted(worthwhile, key=lambda action: -action.bound_seconds)[:MOST_ACTIONS])


def _what_if_actions(what_ifs: Iterable[WhatIf], stage_seconds: float, iterations: Iterations) -> Iterator[Action]:
    """Yield an action for the first what-if of each kind that has bounds, if it is estimated to save at least 2 %.

    Without an estimate its lower bound of the time counts. A what-if on ``max_num_seqs`` counts only if its setting is
    above the peak of requests. ``stage_seconds`` is how long the rollouts took, ``iterations`` are all of theirs.
    """
    peak = int(iterations.requests.max(initial=0))
    names = set[str]()
    for what_if in what_ifs:
        least, most = what_if.least_seconds, what_if.most_seconds
        smaller = what_if.name == MAX_NUM_SEQS and (what_if.setting or 0) <= peak
        if least is None or most is None or smaller or what_if.name in names:
            continue
        names.add(what_if.name)
        if (what_if.seconds or least) <= (1 - LEAST_SHARE) * stage_seconds:
            because = Text(
                "with this change, the rollouts would take {least:.1f} to {most:.1f} s instead of {took:.1f} s"
                " ({reason})",
                least=least,
                most=most,
                took=stage_seconds,
                reason=what_if.because,
            )
            yield Action(what_if_name(what_if), stage_seconds - least, because)


def _fuller_batches(iterations: Iterations) -> Iterator[Action]:
    """Yield the action of fuller batches, whose bound assumes that a request's decode step is as cheap as at full load.

    A step gives one token, or more with speculative decoding. Full load is from 95 % of the most requests at once.
    Nothing is yielded if at most one request ran at once, or if no iteration without prefill has full load.
    """
    decoding = iterations.chosen(iterations.prefill == 0)
    peak = float(iterations.requests.max(initial=0))
    full = decoding.requests >= AT_LOAD * peak
    if peak <= 1 or not full.any():
        return
    per_step = float(np.median(decoding.seconds[full] / decoding.requests[full]))
    decode_steps, decode_seconds = float(decoding.requests.sum()), float(decoding.seconds.sum())
    ideal = decode_steps * per_step
    because = Text(
        "if all requests decoded in batches of {peak:.0f}, their {steps:,.0f} decode steps would take {ideal:.1f} s"
        " instead of {took:.1f} s",
        ideal=ideal,
        took=decode_seconds,
        steps=decode_steps,
        peak=peak,
    )
    yield Action(Text("fuller batches"), decode_seconds - ideal, because)


def _class_actions(stage: StageDiagnosis) -> Iterator[Action]:
    """Yield two actions: less host time, and collectives hidden behind computation.

    The bound of the first is all idle time of ``stage``, that of the second all its time in collectives. Both are 0 for
    a stage without classes of work.
    """
    seconds = {part.name: part.seconds for part in stage.classes}
    host = seconds.get("host-bound", 0.0) + seconds.get("outside-forward", 0.0)
    because = Text(
        "this bound assumes that the device is never idle between kernels or outside the forward pass; CUDA graphs,"
        " ACL graphs and asynchronous scheduling reduce such idle time"
    )
    yield Action(Text("less host time"), host, because)
    exposed = seconds.get("collective", 0.0)
    yield Action(
        Text("collectives hidden by computation"),
        exposed,
        Text("this bound assumes that computation hides all collectives"),
    )
