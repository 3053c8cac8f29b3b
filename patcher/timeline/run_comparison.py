"""Comparison of two runs, or of two ranges of steps: the mean step, its parts, both at equal tokens, and causes."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from patcher.messages import COMMA, Text, joined
from patcher.timeline.model import ROLES, Cause, PathSegment, RunTimeline, TrainingStep, without_warm_up
from patcher.timeline.shares import SYNC
from patcher.timeline.step_records import GENERATING
from patcher.traces.analysis.loads import fit_change, student_half_width

PARTS = {
    "decode": Text("decode"),
    "prefill": Text("prefill"),
    "rollout": Text("waiting in the rollout"),
    "reward": Text("reward"),
    "poll": Text("polling"),
    "log_probs": Text("log-probs"),
    "update": Text("update"),
    "sync": Text("weight sync"),
    "trainer": Text("other training work"),
    "driver": Text("driver"),
    "pause": Text("pauses by rlpatch"),
    "unrecorded": Text("not recorded"),
}
"""Parts of a step's critical path with their names; they sum to the step. ``rollout`` waits for an iteration."""

BESIDE = {
    "tail": Text("tail"),
    "ranks": Text("rank imbalance"),
    "replicas": Text("replica imbalance"),
    **{f"idle_{role}": Text("idle {role}", ROLES[role]) for role in ("driver", "trainer", "engine", "reward")},
}
"""Seconds that lie within or beside the parts, with their names: they are no part of the sum."""

LOADS = ("decode_tokens", "prefill_tokens")

FEWEST = 4
"""Steps of a side below which there is no interval: chance puts three slow ones on one side too often."""

CHANCE = 0.05
"""Probability that at least one reported difference is by chance: over all parts, or all causes, together."""

ALIKE = 0.5
"""Share of the steps' time in phases that both runs have, below which their trainers differ."""

SLOWER, FASTER = Text("slower in these steps"), Text("faster in these steps")
NO_DIFFERENCE, FEW = Text("no clear difference"), Text("not enough steps")
"""The verdicts on two runs: by the interval of the mean step; a run has no repeats, so it is on these steps alone."""

LONGER, SHORTER, UNCLEAR, UNKNOWN = Text("longer"), Text("shorter"), Text("no clear change"), Text("unknown")
CAME, WENT = Text("came"), Text("went")


class ChangeInterval(NamedTuple):
    """A change in seconds, and the ends of its interval."""

    low: float
    change: float
    high: float

    @property
    def direction(self) -> str:
        """`LONGER` or `SHORTER`, if the whole interval lies above or below 0, else `UNCLEAR`."""
        return LONGER if self.low > 0 else SHORTER if self.high < 0 else UNCLEAR


@dataclass(frozen=True)
class SecondsChange:
    """Mean seconds of the step, or of a part of it, on both sides.

    ``raw`` is the change with its interval, ``equal_tokens`` that of steps with the same tokens; None if unknown.
    ``changed`` and ``changed_at_equal_tokens`` say whether that is longer, shorter, no clear change, or unknown.
    """

    name: str
    before_seconds: float
    after_seconds: float
    change_seconds: float
    raw: ChangeInterval | None
    equal_tokens: ChangeInterval | None
    changed: str
    changed_at_equal_tokens: str


@dataclass(frozen=True)
class CauseChange:
    """A cause of long steps: the number of steps that it limited on both sides, and its seconds over the typical step.

    ``changed`` is came, went, longer (in more steps), shorter (in fewer), or no clear change if chance may do that.
    """

    cause: Cause
    before_steps: int
    after_steps: int
    before_seconds: float
    after_seconds: float
    changed: str

    @property
    def label(self) -> str:
        """Name of the cause for people."""
        return self.cause.label


@dataclass(frozen=True)
class RunSide:
    """One side: the chosen steps of a run. Tokens are those of a mean step; None without an engine's file.

    ``tokens_per_second`` are decode tokens by the time of the steps.
    """

    source: Path
    packages: tuple[str, ...]
    steps: tuple[int, ...]
    lanes: dict[str, int]
    median_seconds: float
    decode_tokens: float | None
    prefill_tokens: float | None
    tokens_per_second: float | None


@dataclass(frozen=True)
class RunComparison:
    """Two sides: the mean step, its parts, what lies beside them, and causes; seconds per step.

    ``verdict`` is on the raw change of ``step``. ``differs`` says how the runs differ as such, ``refused`` why they
    cannot be compared, ``notes`` what one has to know of the numbers.
    """

    before: RunSide
    after: RunSide
    step: SecondsChange
    verdict: str
    parts: tuple[SecondsChange, ...] = ()
    beside: tuple[SecondsChange, ...] = ()
    causes: tuple[CauseChange, ...] = ()
    differs: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    kind: str = field(default="timeline", init=False)


class ChosenSteps(NamedTuple):
    """A run with only the steps that are compared, and the folder that it was read from."""

    source: Path
    run: RunTimeline

    @property
    def steps(self) -> Sequence[TrainingStep]:
        """Steps without the warm-up, unless there is no other."""
        return without_warm_up(self.run.steps)


def compared(before: ChosenSteps, after: ChosenSteps) -> RunComparison:
    """Compare two runs: the mean step, its parts, and the causes of long steps; each side has at least one step.

    With fewer than four steps on a side, no change has an interval.
    """
    sides = (before.steps, after.steps)
    values = {"step": [[step.seconds for step in side] for side in sides]}
    values |= _by_name([[_parts(step) for step in side] for side in sides], PARTS)
    values |= _by_name([[_times_beside_path(step) for step in side] for side in sides], BESIDE)
    shares = [name for name in values if name != "step"]
    changes = {name: _change(name, sides, seconds, len(shares)) for name, seconds in values.items() if name in shares}
    step = _change("step", sides, values["step"], 1)
    verdicts: dict[str, str] = {LONGER: SLOWER, SHORTER: FASTER, UNCLEAR: NO_DIFFERENCE}
    return RunComparison(
        _describe_side(before), _describe_side(after), step, verdicts.get(step.changed, FEW),
        tuple(changes[name] for name in PARTS if name in changes),
        tuple(changes[name] for name in BESIDE if name in changes),
        _compare_causes(sides), tuple(_differences(before.run, after.run)), tuple(_refusals(before, after)),
        tuple(_caveats(before, after, step)),
    )  # fmt: skip


def _describe_side(side: ChosenSteps) -> RunSide:
    """Describe one side of a comparison; tokens are None if any step does not tell them."""
    lanes = Counter(lane.role for lane in side.run.lanes)
    steps = side.steps
    decode, prefill = ([getattr(step, name) for step in steps] for name in LOADS)
    has_tokens = None not in (*decode, *prefill)
    seconds = sum(step.seconds for step in steps)
    return RunSide(
        side.source, side.run.run.packages, tuple(step.step for step in steps), dict(lanes),
        statistics.median(step.seconds for step in steps),
        statistics.fmean(decode) if has_tokens else None, statistics.fmean(prefill) if has_tokens else None,
        sum(decode) / seconds if has_tokens and seconds else None,
    )  # fmt: skip


# ---------------------------------------------------------------- seconds of a step


def _part_of_segment(segment: PathSegment) -> str:
    """Return the part of a step (a key of `PARTS`) that a segment belongs to, by kind, phase or role."""
    name = segment.phase or segment.what
    if segment.kind == "sync" or name in SYNC:
        return "sync"
    if segment.kind == "iteration":
        return "prefill" if segment.what == "prefill" else "decode"
    if segment.kind in ("poll", "pause"):
        return segment.kind
    if segment.role == "trainer":
        return _part_of_training(name)
    if segment.role in ("engine", "server", "agent", "balancer"):
        return "rollout"
    return segment.role if segment.role in PARTS else "unrecorded"


def _part_of_training(name: str) -> str:
    """Return the part (a key of `PARTS`) of a trainer's phase or method, by its ``name`` in the framework.

    Trainers of TRL also generate and reward.
    """
    if name in GENERATING:
        return "rollout"
    if "reward" in name:
        return "reward"
    if "log_prob" in name or "logp" in name or name == "ref":
        return "log_probs"
    return "update" if any(word in name for word in ("update", "train", "optimizer", "backward", "loss")) else "trainer"


def _parts(step: TrainingStep) -> dict[str, float]:
    """Return the seconds of each part of a step's critical path, by keys of `PARTS`; they sum to the step."""
    sums = defaultdict[str, float](float)
    for segment in step.critical_path:
        sums[_part_of_segment(segment)] += segment.seconds
    return sums


def _times_beside_path(step: TrainingStep) -> dict[str, float]:
    """Return the seconds of a step's tail, imbalances and idle roles, by keys of `BESIDE`, as far as they are known."""
    seconds = {"tail": step.tail_seconds}
    seconds |= {uneven.of: uneven.seconds for uneven in step.imbalance}
    return seconds | {f"idle_{use.role}": use.idle_seconds for use in step.roles}


def _by_name(sides: Sequence[Sequence[dict[str, float]]], names: dict[str, Text]) -> dict[str, list[list[float]]]:
    """Return name → its seconds in each step of both sides; names that no step has are left out."""
    present = [name for name in names if any(step.get(name) for side in sides for step in side)]
    return {name: [[step.get(name, 0.0) for step in side] for side in sides] for name in present}


# ---------------------------------------------------------------- how much, how sure


def _change(
    name: str, sides: Sequence[Sequence[TrainingStep]], seconds: Sequence[Sequence[float]], change_count: int
) -> SecondsChange:
    """Return the change of the mean ``seconds`` of the part ``name`` between two sides, raw and at equal tokens.

    ``change_count`` is the number of changes whose confidence intervals hold together with 95 % probability. With fewer
    than four steps on a side, both intervals are None and both directions unknown; without a fit of the tokens, only
    those at equal tokens are.
    """
    z = statistics.NormalDist().inv_cdf(1 - CHANCE / change_count / 2)
    first, second = map(statistics.fmean, seconds)
    raw = _change_with_interval(seconds[0], seconds[1], z) if min(map(len, sides)) >= FEWEST else None
    steps = [step for side in sides for step in side]
    loads = {load: [getattr(step, load) for step in steps] for load in LOADS}
    after = [at >= len(sides[0]) for at in range(len(steps))]
    fit = fit_change(loads, after, [*seconds[0], *seconds[1]]) if raw else None
    equal = None
    if fit is not None:
        reach = student_half_width(fit.free, z) * fit.error
        equal = ChangeInterval(fit.change - reach, fit.change, fit.change + reach)
    return SecondsChange(
        name, first, second, second - first, raw, equal, raw.direction if raw else UNKNOWN,
        equal.direction if equal else UNKNOWN,
    )  # fmt: skip


def _change_with_interval(first: Sequence[float], second: Sequence[float], z: float) -> ChangeInterval:
    """Return the change of the mean from ``first`` to ``second`` with its confidence interval, by Welch's test.

    ``z`` is the half-width that the interval would have with very many values, in standard errors.
    """
    change = statistics.fmean(second) - statistics.fmean(first)
    squares = [statistics.variance(side) / len(side) for side in (first, second)]
    if not sum(squares):
        return ChangeInterval(change, change, change)
    parts = (square**2 / (len(side) - 1) for square, side in zip(squares, (first, second), strict=True))
    reach = student_half_width(sum(squares) ** 2 / sum(parts), z) * math.sqrt(sum(squares))
    return ChangeInterval(change - reach, change, change + reach)


# ---------------------------------------------------------------- causes


def _compare_causes(sides: Sequence[Sequence[TrainingStep]]) -> tuple[CauseChange, ...]:
    """Return each cause that limited a step of either side, with its steps and excess on both, the costliest first."""
    grouped: dict[tuple[object, ...], list[list[Cause]]] = {}
    for at, side in enumerate(sides):
        for cause in filter(None, (step.limited_by for step in side)):
            key = cause.role, cause.replica, cause.rank, cause.kind, cause.what, cause.phase
            grouped.setdefault(key, [[], []])[at].append(cause)
    rows = []
    for both in grouped.values():
        counts = [*map(len, both)]
        seconds = [sum(cause.excess_seconds for cause in causes) for causes in both]
        probability = _probability_by_chance(counts, [*map(len, sides)]) * len(grouped)
        largest = max((cause for causes in both for cause in causes), key=lambda cause: cause.excess_seconds)
        rows.append(
            CauseChange(
                largest, counts[0], counts[1], seconds[0], seconds[1], _cause_verdict(counts, sides, probability)
            )
        )
    return tuple(sorted(rows, key=lambda row: -max(row.before_seconds, row.after_seconds)))


def _cause_verdict(counts: Sequence[int], sides: Sequence[Sequence[TrainingStep]], probability: float) -> str:
    """Return how often a cause of long steps limited one side's steps (``counts``) compared with the other's.

    ``probability`` is that of such a difference by chance; above 5 %, the change is unclear.
    """
    if probability > CHANCE:
        return UNCLEAR
    if not counts[0]:
        return CAME
    if not counts[1]:
        return WENT
    return LONGER if counts[1] * len(sides[0]) > counts[0] * len(sides[1]) else SHORTER


def _probability_by_chance(counts: Sequence[int], steps: Sequence[int]) -> float:
    """Return the probability that two sides differ by chance at least as much as here (Fisher's exact test)."""
    hits = sum(counts)
    ways = [math.comb(steps[0], first) * math.comb(steps[1], hits - first) for first in range(hits + 1)]
    return sum(way for way in ways if way <= ways[counts[0]]) / sum(ways)


# ---------------------------------------------------------------- the runs as such


def _refusals(before: ChosenSteps, after: ChosenSteps) -> Iterator[str]:
    """Yield a sentence on why two runs cannot be compared, which is so if their trainers differ; else nothing.

    Trainers differ if the phases that both have make less than half of the steps' time, as the mean of both sides.
    """
    sides = [_phase_seconds(side) for side in (before, after)]
    common = set(sides[0]) & set(sides[1])
    shares = [sum(side[name] for name in common) / (sum(side.values()) or 1.0) for side in sides]
    if any(sides) and statistics.fmean(shares) < ALIKE:
        phases = [joined(COMMA, sorted(side, key=lambda name: -side[name])[:3]) for side in sides]
        packages = [", ".join(side.run.run.packages) or Text("unknown packages") for side in (before, after)]
        yield Text(
            "different trainers: {package_before} before (phases: {phases_before}), {package_after} after (phases:"
            " {phases_after})",
            package_before=packages[0],
            phases_before=phases[0],
            package_after=packages[1],
            phases_after=phases[1],
        )


def _phase_seconds(side: ChosenSteps) -> dict[str, float]:
    """Return name of a phase → its seconds on the critical paths of all steps of a side."""
    sums = defaultdict[str, float](float)
    for step in side.steps:
        for segment in step.critical_path:
            if segment.phase or segment.kind == "work":
                sums[segment.phase or segment.what] += segment.seconds
    return sums


def _differences(before: RunTimeline, after: RunTimeline) -> Iterator[str]:
    """Yield texts on how two runs differ apart from their times: packages, and number of processes of each role."""
    if before.run.packages != after.run.packages:
        packages = [", ".join(run.run.packages) or Text("unknown") for run in (before, after)]
        yield Text(
            "packages: {packages_before} before, {packages_after} after",
            packages_before=packages[0],
            packages_after=packages[1],
        )
    for role, name in ROLES.items():
        counts = [sum(lane.role == role for lane in run.lanes) for run in (before, after)]
        if counts[0] != counts[1]:
            yield Text(
                "number of processes ({role}): {before} before, {after} after",
                role=name,
                before=counts[0],
                after=counts[1],
            )


def _caveats(before: ChosenSteps, after: ChosenSteps, step: SecondsChange) -> Iterator[str]:
    """Yield sentences on what limits a comparison; ``step`` is the change of the mean step."""
    if step.raw is None:
        yield Text(
            "too few steps for a confidence interval, which needs {fewest} on each side of the comparison: {before}"
            " before the change, {after} after it",
            before=len(before.steps), after=len(after.steps), fewest=FEWEST,
        )  # fmt: skip
    elif step.equal_tokens is None:
        yield _why_not_at_equal_tokens(before, after)
    if before.source == after.source and before.run.run == after.run.run:
        again = {step.step for step in before.steps} & {step.step for step in after.steps}
        if again:
            yield Text(
                "{count} steps belong to both sides of the comparison, so for these steps the run is compared with"
                " itself",
                len(again),
            )
    elif step.raw is not None:
        yield Text(
            "with one run per side, the interval covers only the variation between steps; two runs of the same program"
            " may differ by more"
        )
    for name, side in ((Text("before"), before), (Text("after"), after)):
        if side.steps[0].warm_up:
            yield Text("{side}: there is only one step, and it includes warm-up time", name)
        for text in side.run.missing:
            yield Text("{side}: {sentence}", side=name, sentence=text)


def _why_not_at_equal_tokens(before: ChosenSteps, after: ChosenSteps) -> Text:
    """Return a sentence on why the change at equal tokens is unknown, or is the same as the raw change."""
    steps = [step for side in (before, after) for step in side.steps]
    if any(step.decode_tokens is None for step in steps):
        return Text(
            "the change of the step time at equal token counts is unknown, because an engine wrote no timeline file"
        )
    if len({(step.decode_tokens, step.prefill_tokens) for step in steps}) == 1:
        return Text(
            "all steps have the same number of tokens, so the measured change needs no adjustment for the number of"
            " tokens"
        )
    return Text(
        "the change of the step time at equal token counts is unknown: either all steps on one side of the comparison"
        " have the same number of tokens, or there are too few steps for a fit"
    )
