"""The costs of a run: the causes of single steps, what each step loses, and the activities that take most of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from patcher.messages import Text
from patcher.timeline.causes import Activity, StepTimes
from patcher.timeline.model import FREE_REWARDS, FREE_SYNC, NO_TAIL, Cause, RunCause, TrainingStep
from patcher.timeline.shares import seconds

LARGEST = 5
"""Number of causes that are reported for a run."""

LEAST = 0.01
"""Smallest share of the steps' time that a reported cause has."""

LONG_ACTIVITY = 0.1
"""Smallest share of the steps' time for which an activity is reported that is long in every step."""

MOSTLY = 0.5
"""Share of the steps in which the same rank or replica must be last to be named for the run."""

ADVICE = {
    "poll": Text("poll more often (poll_interval of the replay buffer), or use notifications instead of polling"),
    "tail": Text(
        "shorten the long tail by limiting responses to fewer tokens, or fill it with other requests: use partial"
        " rollouts, or send more prompts than needed"
    ),
    "sync": Text(
        "find the slowest part of the weight sync; then use larger buckets, or overlap the sync with the end of the"
        " policy update"
    ),
    "gap": Text(
        "find out what the driver does between its phases: run `py-spy dump --pid PID` a few times,"
        " or `py-spy record --pid PID`"
    ),
    "reward": Text("compute rewards during the rollout, in separate workers"),
    "driver": Text("profile the driver in this phase: `py-spy record --pid PID`"),
    "agent": Text("profile what the agent loop does between requests, its tools included: `py-spy record --pid PID`"),
    "balancer": Text("profile the load balancer: `py-spy record --pid PID`"),
    "queue": Text("check whether the worker was still busy with an earlier call"),
    "trainer": Text("record this micro-batch with the command proposed below"),
    "unit": Text("record one micro-batch of this stage: run `rlpatch apply` with --micro-batch and --training-steps"),
    "generate": Text(
        "if the trainer generates with the transformers library, switch to vLLM (use_vllm=True); if it already uses"
        " vLLM, record vLLM's decode steps: run `rlpatch apply vllm` with --decode"
    ),
    "decode": Text("record some of these decode steps: run `rlpatch apply` with --decode and --rollout"),
    "rank": Text("check this rank's host and data: sequence lengths (balance_batch), clock frequency, other processes"),
    "engine": Text("record these decode steps with the command proposed below"),
    "host": Text(
        "find out with `top` what else runs on this host; then compare this run's number of busy threads"
        " (OMP_NUM_THREADS) with the number of cores that a container limit or `taskset` leaves to the run"
    ),
    "gc": Text(
        "Python's garbage collector held this process back: call gc.freeze() after start-up, or gc.disable() and then"
        " gc.collect() between steps"
    ),
    "replica": Text("check this replica's host, and how the requests are distributed over the replicas"),
}
"""Advice on the next action, by cause."""


_WAIT_TITLES = {
    "replica": (
        Text("waiting for the last replica"),
        Text("waiting for the last replica: it was replica {number} in {count} of {total} steps"),
    ),
    "rank": (
        Text("waiting for the last rank"),
        Text("waiting for the last rank: it was rank {number} in {count} of {total} steps"),
    ),
}
"""Title of waiting for the last replica or rank, and the title if it is mostly the same one."""


def run_causes(steps: Sequence[TrainingStep], paths: Sequence[StepTimes]) -> tuple[RunCause, ...]:
    """Return the up to five costliest causes of a run, the costliest first.

    Causes are excesses of single steps, possible savings, imbalances, and long activities; those below 1 % of the run
    are left out. ``paths`` has the full critical path of each step; long runs keep it coarser in ``steps``.
    """
    counted, paths = steps[1:] or steps, paths[1:] or paths
    whole = sum(step.seconds for step in counted)
    causes = [
        *_recurring_costs(counted, paths),
        *_imbalances(counted),
        *_step_excesses(counted),
        *_long_activities(counted, paths),
    ]
    costly = [
        replace(cause, seconds=round(cause.seconds, 6), share=round(cause.seconds / whole, 4))
        for cause in causes
        if whole and cause.seconds > LEAST * whole
    ]
    return tuple(sorted(costly, key=lambda cause: -cause.seconds)[:LARGEST])


def _causes_of(step: TrainingStep) -> list[Cause]:
    """Return all causes that made a step longer, the costliest first."""
    return [cause for cause in (step.limited_by, *step.also) if cause is not None]


def _step_excesses(steps: Iterable[TrainingStep]) -> Iterator[RunCause]:
    """Yield a cause for each process, activity and phase, with the seconds that it took longer in single steps."""
    grouped = defaultdict[tuple[object, ...], list[tuple[int, Cause]]](list)
    for step in steps:
        for cause in _causes_of(step):
            group = grouped[cause.role, cause.replica, cause.rank, cause.kind, cause.what, cause.phase]
            group.append((step.step, cause))
    for group in grouped.values():
        largest = max((cause for _, cause in group), key=lambda cause: cause.excess_seconds)
        title = Text("{activity}, longer than in the typical step", largest.label)
        total = sum(cause.excess_seconds for _, cause in group)
        saves = sum(cause.excess_seconds if cause.saves_seconds is None else cause.saves_seconds for _, cause in group)
        numbers = tuple(step for step, _ in group)
        yield RunCause(title, total, 0.0, numbers, ADVICE[advice_key(largest)], largest, round(saves, 6))


def with_applicable_advice(
    causes: Iterable[RunCause], proposed: Iterable[str], trainer_count: int
) -> tuple[RunCause, ...]:
    """Return the causes with other advice where theirs needs a window that is not proposed, or a second trainer.

    ``proposed`` are the names of the proposed windows.
    """
    window_names = {*proposed}
    instead = dict[str, str]()
    if "slow micro-batch" not in window_names:
        instead[ADVICE["trainer"]] = ADVICE["unit"]
    if trainer_count < 2:
        instead[ADVICE["rank"]] = instead.get(ADVICE["trainer"], ADVICE["trainer"])
    if "typical decode" not in window_names:
        instead[ADVICE["engine"]] = ADVICE["decode"]
    return tuple(replace(cause, advice=instead.get(cause.advice, cause.advice)) for cause in causes)


def advice_key(cause: Cause) -> str:
    """Return the key of the advice on a cause in ``ADVICE``: by kind, whom to blame, or role; "driver" for others."""
    if cause.kind == "gc" or (cause.kind in ("poll", "sync", "gap", "reward") and cause.role != "engine"):
        return cause.kind
    if cause.what.startswith("start of "):
        return "queue"
    if cause.role in ("engine", "server"):
        return "replica" if cause.replica is not None else "engine"
    if (cause.role, cause.what) == ("trainer", "generate"):  # TRL's trainer does
        return "generate"
    if cause.role == "trainer":
        return "rank" if cause.rank is not None else "trainer"
    return cause.role if cause.role in ("reward", "agent", "balancer", "host") else "driver"


def _recurring_costs(steps: Sequence[TrainingStep], paths: Sequence[StepTimes]) -> Iterator[RunCause]:
    """Yield what polls, long tails, weight syncs, driver gaps and rewards cost in all steps together, as five causes.

    The cost is the upper bound of what a fix saves, without the excesses of single steps; it may be 0.
    """
    polls = {key.what for path in paths for key in path.us if key.kind == "poll"}
    titles = {
        "poll": Text("polling ({phases}) after the last trajectory had ended", ", ".join(sorted(polls)[:2])),
        "tail": Text("long tail of the rollout: fewer than a tenth of the peak number of requests are running"),
        "sync": Text("weight sync"),
        "gap": Text("time between the driver's phases"),
        "reward": Text("reward computation at the end of the rollout"),
    }
    savings = [(step, _savings(step, path)) for step, path in zip(steps, paths, strict=True)]
    for key, title in titles.items():
        affected = [step for step, saving in savings if saving[key] > LEAST * step.seconds]
        cause = _longest_segment(affected[0], key) if affected else None
        total = sum(saving[key] for _, saving in savings)
        numbers = tuple(step.step for step in affected)
        yield RunCause(title, total, 0.0, numbers, ADVICE[key], cause, round(total, 6))


def _savings(step: TrainingStep, path: StepTimes) -> dict[str, float]:
    """Return key of ``ADVICE`` → most seconds that a fix saves in a step, without what its causes count already."""
    bounds = {bound.name: bound.saves_seconds for bound in step.what_if}
    gaps = sum(us for key, us in path.us.items() if (key.role, key.kind) == ("driver", "gap"))
    savings = {
        "poll": step.poll_seconds, "tail": bounds.get(NO_TAIL, 0), "sync": bounds.get(FREE_SYNC, 0),
        "gap": seconds(gaps), "reward": bounds.get(FREE_REWARDS, 0),
    }  # fmt: skip
    counted = {key: sum(cause.excess_seconds for cause in _causes_of(step) if cause.kind == key) for key in savings}
    return {key: max(value - counted[key], 0) for key, value in savings.items()}


def _imbalances(steps: Sequence[TrainingStep]) -> Iterator[RunCause]:
    """Yield two causes: waiting for the last replica, and for the last rank, each summed over all steps.

    An excess for which a single one is to blame is a cause of its own. One that is last in over half of the steps is
    named.
    """
    for of, key in (("replicas", "replica"), ("ranks", "rank")):
        waits, last = dict[int, float](), Counter[int]()
        for step in steps:
            uneven = next((imbalance for imbalance in step.imbalance if imbalance.of == of), None)
            if uneven is None:
                continue
            alone = [cause for cause in _causes_of(step) if getattr(cause, key) is not None]
            excess = sum(cause.excess_seconds for cause in alone)
            waits[step.step] = max(uneven.seconds - excess, 0)
            if waits[step.step] > LEAST * step.seconds:
                last[max(uneven.done, key=lambda done: done[1])[0]] += 1
        affected = sum(last.values())
        number, count = next(iter(last.most_common(1)), (None, 0))
        title, named_title = _WAIT_TITLES[key]
        if affected > 1 and count > MOSTLY * affected:
            title = named_title.filled(number=number, count=count, total=affected)
        total = sum(waits.values())
        numbers = tuple(step.step for step in steps if waits.get(step.step, 0) > LEAST * step.seconds)
        yield RunCause(title, total, 0.0, numbers, ADVICE[key], None, round(total, 6))


def _long_activities(steps: Sequence[TrainingStep], paths: Sequence[StepTimes]) -> Iterator[RunCause]:
    """Yield a cause for each activity that takes over a tenth of the steps' critical paths, with its time there.

    Excesses of single steps do not count, nor do the activities of `_recurring_costs`.
    """
    whole = sum(path.total for path in paths)
    spent = defaultdict[Activity, dict[int, int]](dict)
    for step, path in zip(steps, paths, strict=True):
        excess = {
            Activity(cause.role, cause.kind, cause.what, cause.phase): cause.excess_seconds
            for cause in _causes_of(step)
        }
        for key, us in path.us.items():
            if key.kind not in ("poll", "sync", "gap", "reward") and key.role != "unrecorded":
                spent[key][step.step] = max(us - round(excess.get(key, 0) * 1e6), 0)
    for key, by_step in spent.items():
        total = sum(by_step.values())
        if total > LONG_ACTIVITY * whole:
            cause = key.as_cause(total)
            title = Text("{activity}, in each step", cause.label)
            yield RunCause(title, seconds(total), 0.0, tuple(by_step), ADVICE[advice_key(cause)], cause)


def _longest_segment(step: TrainingStep, kind: str) -> Cause | None:
    """Return the longest segment of ``kind`` on the step's critical path, as a cause without an excess, if any."""
    segments = (segment for segment in step.critical_path if segment.kind == kind)
    longest = max(segments, key=lambda segment: segment.seconds, default=None)
    if longest is None:
        return None
    return Cause(
        longest.role, longest.replica, longest.rank, longest.what, longest.phase, longest.seconds, 0.0, longest.kind
    )


def path_seconds(paths: Sequence[StepTimes]) -> tuple[Cause, ...]:
    """Return the seconds of each activity on the critical paths, the largest first, if possible without warm-up."""
    sums = Counter[Activity]()
    for path in paths[1:] or paths:
        sums.update(path.us)
    return tuple(key.as_cause(us) for key, us in sums.most_common())
