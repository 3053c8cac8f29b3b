"""Windows worth recording, as commands with the numbers by which the probes count."""

from __future__ import annotations

import re
import shlex
import statistics
from array import array
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from patcher.messages import CommandLine, Text
from patcher.timeline.files import KeptSpan
from patcher.timeline.intervals import ENDLESS, TimeRange, by_start, covered, end_of, length
from patcher.timeline.model import ProposedWindow, TrainingStep, without_warm_up
from patcher.timeline.path import longest_work
from patcher.timeline.runs import Process
from patcher.timeline.shares import seconds
from patcher.timeline.step_records import StepRecords

LENGTH = 20
"""Decode steps of a typical window."""

AROUND = 2
"""Decode steps on each side of a slow one."""

TAIL_STEPS = 20

SLOW = 2
"""A decode step or a micro-batch is slow if it takes this many times the median."""

MOSTLY = 0.5
"""Share of a micro-batch's excess by which its rank must lead the others to be proposed."""

TAIL_SHARE = 0.05
"""Smallest share of its step for which a tail is worth a window."""

MOST_LENGTHS = 1_000_000
"""Most micro-batches of a method that are kept for its median."""

VERSIONED = "update_weights"
"""Name of the work that tells a trainer of verl the version of its parameters, which is the step that ends."""

ENGINES = ("vllm-ascend", "vllm", "sglang")

STAGES = {
    "update_actor": ("update-policy", ""), "update_policy": ("update-policy", ""),
    "compute_log_prob": ("compute-log-prob", "actor"), "compute_ref_log_prob": ("compute-log-prob", "ref"),
    "update_critic": ("update-critic", ""), "compute_values": ("compute-values", ""), "train": ("update-policy", ""),
    "PolicyModelActor.fit": ("update-policy", ""), "PolicyModelActor.forward": ("compute-log-prob", "actor"),
    "ReferenceModelActor.forward": ("compute-log-prob", "ref"), "CriticModelActor.fit": ("update-critic", ""),
    "CriticModelActor.forward": ("compute-values", ""),
}  # fmt: skip
"""Method of a worker → the options --stage and --role ("" if not needed) to record a window of it."""


class Decodes(NamedTuple):
    """Decode steps ``first`` to ``end`` (exclusive) of a rollout on one replica, and their time in microseconds."""

    first: int
    end: int
    start: int
    until: int

    @property
    def us(self) -> int:
        """Return the duration in microseconds."""
        return self.until - self.start


class Rollout(NamedTuple):
    """A replica's rollout in one step: the rollout's number, some usual decode steps, and the slowest one.

    ``single`` tells that the step has no other rollout.
    """

    step: int
    replica: int | None
    rollout: int
    single: bool
    usual: Decodes
    slowest: Decodes
    median_us: float
    requests: int


class MicroBatch(NamedTuple):
    """The slowest micro-batch of a method in a step.

    ``call`` is the training step from 1 as the probe counts it, ``number`` the micro-batch's index in it from 0; times
    are in microseconds. ``rank`` is that of the process, ``lead_us`` by how much it took longer than the same one on
    the next rank, without waits in collectives if these are known.
    """

    step: int
    method: str
    call: int
    number: int
    start: int
    end: int
    rank: int | None
    lead_us: int


@dataclass
class _Engine:
    """Position of an engine in the counting of the probes: its rollout, and the decode steps in this rollout.

    ``counted`` is the start of the last counted iteration; ``busy_until`` is when the engine runs empty (microseconds).
    """

    rollout: int = -1
    decoded: int = 0
    busy_until: int = -ENDLESS
    counted: int = -ENDLESS

    def enter_busy_range(self, busy: TimeRange) -> None:
        """Count a new rollout, unless the range ``busy`` begins before or just when an earlier busy range ends.

        A new rollout's decode steps are counted from 0 again. Call it for each busy range, in order of start.
        """
        if busy.start > self.busy_until:
            self.rollout += 1
            self.decoded = 0
        self.busy_until = max(self.busy_until, busy.end)


@dataclass
class Collector:
    """Collector of candidates for windows, fed with one step after the other.

    ``calls`` is the number of calls of a method in a process so far, as the probes count. ``versions`` is the driver's
    step in which a process last got a parameter version (verl 0.8.0 and later: its probe counts training steps by it),
    ``units`` the last training step of a method in a process with its number of micro-batches so far.
    """

    processes: Sequence[Process]
    engines: dict[int, _Engine] = field(default_factory=lambda: defaultdict(_Engine))
    calls: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    versions: dict[int, int] = field(default_factory=dict)
    units: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    rollouts: list[Rollout] = field(default_factory=list)
    slow: dict[tuple[int, str], MicroBatch] = field(default_factory=dict)
    lengths: dict[str, array[int]] = field(default_factory=lambda: defaultdict(lambda: array("q")))

    def feed(self, records: StepRecords, number: int, start: int) -> None:
        """Count the decode steps and calls of step ``number``, and keep those that may be worth a recording window.

        ``records`` of the first step include everything before it: this is counted, but no window is proposed for it.
        """
        for process in records.iterations:
            self._add_rollouts(records, number, process, start)
        self._add_micro_batches(records, number, start)

    def _add_rollouts(self, records: StepRecords, step: int, process: int, since: int) -> None:
        """Count the new decode steps of the engine ``process`` (an index), and append their rollouts to ``rollouts``.

        A decode step is an iteration with at most one token per request; others are not counted. Decode steps that
        began before ``since`` (microseconds) are only counted.
        """
        replica, engine = records.replica_of[process], self.engines[process]
        busy = deque(covered(records.serves_by_replica[replica]))
        single, most = bool(busy), 0
        decodes = defaultdict[int, list[Decodes]](list)
        for start, end, requests, tokens in records.iterations[process]:
            if not engine.counted < start < records.end:
                continue
            engine.counted = start
            while busy and busy[0].end < start:
                busy.popleft()
            if busy and busy[0].start <= start:
                engine.enter_busy_range(busy[0])
            if tokens > requests:
                continue
            engine.decoded += 1
            if start >= since:
                decodes[max(engine.rollout, 0)].append(
                    Decodes(engine.decoded, engine.decoded + 1, start, end - records.paused_us(process, start, end))
                )
                most = max(most, requests)
        single = single and len(decodes) == 1
        self.rollouts += [
            _summarize_rollout(step, replica, rollout, single, steps, most) for rollout, steps in decodes.items()
        ]

    def _add_micro_batches(self, records: StepRecords, step: int, since: int) -> None:
        """Count the calls in each process, note the version of its weights, and keep each method's slowest micro-batch.

        No micro-batch is kept from calls that began before ``since`` (microseconds), that have fewer than two, or that
        have one without an end.
        """
        by_call = defaultdict[tuple[str, int, int], list[tuple[int, Sequence[KeptSpan]]]](list)
        for work in sorted(records.by_kind["work"], key=by_start):
            if records.start <= work.start < records.end:
                self.calls[work.process, work.name] += 1
                if work.name == VERSIONED and self._by_version(work.process):
                    self.versions[work.process] = step if work.start >= since else step - 1
                units = sorted(_micro_batches_within(records, work), key=by_start) if work.name in STAGES else []
                ended = all(unit.end is not None for unit in units)
                call, first = self._count_micro_batches(work, len(units))
                if len(units) > 1 and ended and work.start >= since:
                    paused = [records.paused_us(unit.process, unit.start, end_of(unit)) for unit in units]
                    units = [unit._replace(end=end_of(unit) - us) for unit, us in zip(units, paused, strict=True)]
                    by_call[work.name, call, first].append((work.process, units))
        for (method, call, first), units_of in by_call.items():
            self._note_micro_batches(step, method, call, first, units_of)

    def _by_version(self, process: int) -> bool:
        """Tell whether the probe of a process counts training steps by version of the parameters: verl from 0.8 on."""
        package, _, release = self.processes[process].head.package.partition(" ")
        numbers = tuple(int(number) for number in re.findall(r"\d+", release)[:2])
        return package == "verl" and numbers >= (0, 8)

    def _count_micro_batches(self, call: KeptSpan, count: int) -> tuple[int, int]:
        """Return the training step of a trainer's ``call``, and the index in that step of the call's first micro-batch.

        ``count``, the number of its micro-batches, is added for the next call: call this once for each, in order. An
        asynchronous trainer calls a stage several times between two versions of the parameters: these calls are one
        training step.
        """
        place = call.process, call.name
        version = self.versions.get(call.process)
        step = call.amount or (self.calls[place] if version is None else version + 1)
        before, first = self.units.get(place, (step, 0))
        first = first if before == step else 0
        self.units[place] = step, first + count
        return step, first

    def _note_micro_batches(
        self, step: int, method: str, training_step: int, first: int, units_of: Sequence[tuple[int, Sequence[KeptSpan]]]
    ) -> None:
        """Note the durations of a call's micro-batches; keep the slowest if none of ``method`` was slower in the step.

        ``step`` is the number of the driver's step, ``training_step`` the number that the worker's recorder gives this
        step. ``units_of`` has pairs (process index, its micro-batches), at least one; ``first`` is the index of the
        first of these in the training step.
        """
        lengths_of_method = self.lengths[method]
        if len(lengths_of_method) < MOST_LENGTHS:
            lengths_of_method.extend(length([unit]) for _, units in units_of for unit in units)
        us, number, process, unit = max(
            (length([unit]), -number, -process, unit)
            for process, units in units_of
            for number, unit in enumerate(units)
        )
        number, process = -number, -process
        peers = [(other, units[number]) for other, units in units_of if number < len(units)]
        lead = us - max((length([peer]) for other, peer in peers if other != process), default=0)
        if work := longest_work([peer for _, peer in peers]):
            index, lead = work
            process, unit = peers[index]
        before = self.slow.get((step, method))
        if before is None or us > before.end - before.start:
            rank = self.processes[process].rank
            self.slow[step, method] = MicroBatch(
                step, method, training_step, first + number, unit.start, end_of(unit), rank, lead
            )

    def proposals(self, steps: Sequence[TrainingStep]) -> tuple[ProposedWindow, ...]:
        """Return the windows worth recording: of decode steps, of the rollout's tail, and of a slow micro-batch.

        The warm-up step is left out if there are others.
        """
        counted = {step.step: step for step in without_warm_up(steps)}
        rollouts = [rollout for rollout in self.rollouts if rollout.step in counted]
        slow = [micro_batch for micro_batch in self.slow.values() if micro_batch.step in counted]
        return (*self._rollout_windows(rollouts, counted), *self._micro_batch_window(slow, counted))

    def _rollout_windows(self, rollouts: Sequence[Rollout], steps: dict[int, TrainingStep]) -> Iterator[ProposedWindow]:
        """Yield windows of typical decode steps, of the slowest decode step, and of the longest tail.

        The typical ones are of the rollout in the step of median length. The slowest decode step must take over twice
        the median, the tail over 5 % of its step; else they have no window.
        """
        if not rollouts:
            return
        ordered = sorted(rollouts, key=lambda rollout: steps[rollout.step].seconds)
        typical = ordered[len(ordered) // 2]
        why = Text(
            "{median:,.1f} ms per decode step (median in training step {step})",
            median=typical.median_us / 1000,
            step=typical.step,
        )
        yield self._decode_window(Text("typical decode"), typical, typical.usual, why)
        slowest = max(rollouts, key=lambda rollout: rollout.slowest.us / max(rollout.median_us, 1))
        if slowest.slowest.us > SLOW * slowest.median_us:
            number, us = slowest.slowest.first, slowest.slowest.us
            why = Text(
                "decode step {number} took {time:,.1f} ms, {times:,.0f} times the median",
                number=number,
                time=us / 1000,
                times=us / max(slowest.median_us, 1),
            )
            around = slowest.slowest._replace(first=max(number - AROUND, 1), end=number + AROUND + 1)
            yield self._decode_window(Text("slowest decode"), slowest, around, why)
        tails = [step for step in steps.values() if step.tail_seconds > TAIL_SHARE * step.seconds]
        if tails:
            yield from self._tail_window(max(tails, key=lambda step: step.tail_seconds), rollouts)

    def _tail_window(self, step: TrainingStep, rollouts: Sequence[Rollout]) -> Iterator[ProposedWindow]:
        """Yield a window of the tail of ``step``, the time when few requests ran, on the replica that finished last."""
        finish_seconds = next((dict(imbalance.done) for imbalance in step.imbalance if imbalance.of == "replicas"), {})
        last = max(finish_seconds, key=lambda replica: finish_seconds[replica], default=None)
        of_step = [rollout for rollout in rollouts if rollout.step == step.step and last in (None, rollout.replica)]
        tail = step.tail
        if of_step and tail:
            why = Text(
                "for {seconds:,.2f} s of step {step}, fewer than a tenth of the peak number of requests ({peak}) were"
                " running",
                seconds=tail.seconds,
                step=step.step,
                peak=tail.peak,
            )
            window = Decodes(0, TAIL_STEPS, round(tail.start * 1e6), round(tail.end * 1e6))
            few = str(max(of_step[0].requests // 10, 1))
            yield self._decode_window(Text("tail"), of_step[0], window, why, "--at-tail", few)

    def _decode_window(self, name: str, rollout: Rollout, decodes: Decodes, why: str, *options: str) -> ProposedWindow:
        """Return a proposed window of ``decodes`` in a rollout, with the commands for the next and the present run.

        If the step has several rollouts, the reason warns that its number may differ in the next run.
        """
        by_verl = rollout.replica is not None and any(
            process.head.number("VERL_REPLICA_RANK") is not None for process in self.processes
        )
        replicas = ("--replicas", str(rollout.replica)) if by_verl else ()
        window = ("--decode", f"{decodes.first}:{decodes.end}", *options)
        if not rollout.single:
            why = Text(
                "{reason}. In the middle of this step, the engine may have run out of requests, and this counts as the"
                " end of a rollout. So the rollout number of this step may be different in the next run: check the"
                " number with `rlpatch watch`",
                why,
            )
        return ProposedWindow(
            name, str(CommandLine("apply", self._engine, *window, "--rollout", str(rollout.rollout), *replicas)),
            str(CommandLine("trigger", *window)), why, rollout.step, rollout.replica, None,
            seconds(decodes.start), seconds(decodes.until),
        )  # fmt: skip

    def _micro_batch_window(
        self, slow: Sequence[MicroBatch], steps: Mapping[int, TrainingStep]
    ) -> Iterator[ProposedWindow]:
        """Yield a window of the micro-batch that is slowest in relation to its method's median, or nothing.

        It must take over twice the median. The window names the rank that made it slow, or all ranks if none did.
        """
        if not slow:
            return
        usual = {method: max(statistics.median(lengths), 1) for method, lengths in self.lengths.items()}
        compared = [((batch.end - batch.start) / usual[batch.method], batch) for batch in slow]
        times, micro_batch = max(compared)
        if times <= SLOW:
            return
        rank = self._slow_rank(micro_batch, usual[micro_batch.method], steps[micro_batch.step])
        stage, role = STAGES[micro_batch.method]
        window = ("--micro-batch", f"{micro_batch.number}:{micro_batch.number + 1}")
        stage_words = ("--stage", stage) if stage != "update-policy" else ()
        role_words = ("--role", role) if role else ()
        ranks = ("--ranks", "all" if rank is None else str(rank)) if micro_batch.rank is not None else ()
        why = Text(
            "micro-batch {number} of {method} in step {step} took {time:,.2f} s, {times:,.0f} times the median",
            number=micro_batch.number,
            method=micro_batch.method,
            step=micro_batch.step,
            time=(micro_batch.end - micro_batch.start) / 1e6,
            times=times,
        )
        call = ("--training-steps", str(micro_batch.call))
        command = CommandLine("apply", self._trainer, *stage_words, *role_words, *window, *ranks, *call)
        trigger = CommandLine("trigger", *stage_words, *window, *ranks)
        yield ProposedWindow(
            Text("slow micro-batch"), str(command), str(trigger), why, micro_batch.step, None, rank,
            seconds(micro_batch.start), seconds(micro_batch.end),
        )  # fmt: skip

    def _slow_rank(self, micro_batch: MicroBatch, usual_us: float, step: TrainingStep) -> int | None:
        """Return the rank that made a micro-batch slow; None if its ranks took equally long, or waited for each other.

        It is the rank that the verdict on ``step`` names in the same phase.
        """
        low, high = seconds(micro_batch.start), seconds(micro_batch.end)
        phases = {segment.phase for segment in step.critical_path if segment.start < high and segment.end > low}
        for cause in (step.limited_by, *step.also):
            if cause and cause.role == "trainer" and cause.phase in phases and cause.rank is not None:
                return cause.rank
        excess = micro_batch.end - micro_batch.start - usual_us
        return micro_batch.rank if micro_batch.lead_us >= MOSTLY * excess else None

    @property
    def _packages(self) -> set[str]:
        """Names of the packages that the processes run."""
        return {process.head.package.partition(" ")[0] for process in self.processes}

    @property
    def _engine(self) -> str:
        """Target of the engine, for commands; vllm if unknown."""
        return next((name for name in ENGINES if name in self._packages), "vllm")

    @property
    def _trainer(self) -> str:
        """Target of the trainer, for commands; verl if unknown."""
        packages = sorted(self._packages - {*ENGINES, ""})
        return shlex.quote(packages[0]) if packages else "verl"


def _summarize_rollout(
    step: int, replica: int | None, number: int, single: bool, decodes: Sequence[Decodes], most_requests: int
) -> Rollout:
    """Summarize a rollout by its decode steps: a window of usual ones, the slowest one, and the median.

    Usual is what takes at most twice the median. The window reaches from the middle one of these to at most the 20th
    behind it, with the slow ones between them. ``step`` is the driver's number, ``number`` the rollout's number in the
    engine; ``single`` tells whether it is the only one of the step. The first of ``decodes`` is the slowest only if
    there is no other.
    """
    middle = statistics.median(decode.us for decode in decodes)
    slowest = max(decodes[1:] or decodes, key=lambda decode: decode.us)
    usual = [decode for decode in decodes if decode.us <= SLOW * middle]
    chosen = usual[len(usual) // 2 :][:LENGTH]
    window = chosen[0]._replace(end=chosen[-1].end, until=chosen[-1].until)
    return Rollout(step, replica, number, single, window, slowest, middle, most_requests)


def _micro_batches_within(records: StepRecords, span: KeptSpan, depth: int = 0) -> Iterator[KeptSpan]:
    """Yield the micro-batches within ``span``, which lies ``depth`` levels below a trainer's call.

    At most eight levels are looked at. TRL's ``training_step`` counts as a micro-batch that begins with its loss, if
    this is recorded: some generate before.
    """
    for child in records.children_of(span) if depth < 8 else ():
        if child.kind == "unit" and child.name == "micro-batch":
            yield child
        elif (child.kind, child.name) == ("phase", "training_step"):
            losses = (part for part in records.children_of(child) if part.name == "compute_loss")
            yield child._replace(start=min((loss.start for loss in losses), default=child.start))
        else:
            yield from _micro_batches_within(records, child, depth + 1)
