"""Windows that are worth recording, as exact commands, from the numbers that the probes count by."""

from __future__ import annotations

import shlex
import statistics
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from patcher.messages.command_line import CommandLine
from patcher.messages.text import Text
from patcher.timeline.files import KeptSpan
from patcher.timeline.intervals import ENDLESS, by_start, covered, end_of
from patcher.timeline.model import ProposedWindow, TrainingStep
from patcher.timeline.path import StepRecords
from patcher.timeline.runs import Process
from patcher.timeline.shares import seconds

LENGTH = 20
"""Decode steps of a typical window."""

AROUND = 2
"""Decode steps on each side of a slow one."""

TAIL_STEPS = 20

SLOW = 2
"""So many times the median a decode step or a micro-batch takes that is slow."""

TAIL_SHARE = 0.05
"""Of its step, which a tail takes that is worth a look."""

MOST_LENGTHS = 1_000_000
"""Micro-batches of a method whose lengths make its median."""

ENGINES = ("vllm-ascend", "vllm", "sglang")

STAGES = {
    "update_actor": ("update-policy", ""), "update_policy": ("update-policy", ""),
    "compute_log_prob": ("compute-log-prob", "actor"), "compute_ref_log_prob": ("compute-log-prob", "ref"),
    "update_critic": ("update-critic", ""), "compute_values": ("compute-values", ""), "train": ("update-policy", ""),
    "PolicyModelActor.fit": ("update-policy", ""), "PolicyModelActor.forward": ("compute-log-prob", "actor"),
    "ReferenceModelActor.forward": ("compute-log-prob", "ref"), "CriticModelActor.fit": ("update-critic", ""),
    "CriticModelActor.forward": ("compute-values", ""),
}  # fmt: skip
"""Method of a worker → the stage and the role by which a window of it is requested."""


class Decode(NamedTuple):
    """A decode step of a replica in a step of the trainer: its number in its rollout, and its times."""

    number: int
    start: int
    end: int


class Rollout(NamedTuple):
    """What a replica decoded in one step: the number of the rollout, some usual decode steps, the slowest one.

    ``single`` says that it is the only rollout of the step, ``requests`` is the most of them at once.
    """

    step: int
    replica: int | None
    rollout: int
    single: bool
    first: Decode
    last: Decode
    slowest: Decode
    median_us: float
    requests: int


class MicroBatch(NamedTuple):
    """The slowest micro-batch of a method in a step: its number in its call, and which call that was, from 1."""

    step: int
    method: str
    call: int
    number: int
    start: int
    end: int
    rank: int | None


@dataclass
class Collector:
    """Takes the steps one after the other, and keeps what a window may be proposed of.

    ``rollouts`` and ``decoded`` count the rollouts of an engine and the decode steps of its present one, ``counted`` is
    up to when, ``busy_until`` when that ends; ``calls`` counts the calls of a method in a process. The probes count so.
    """

    processes: Sequence[Process]
    rollouts: dict[int, int] = field(default_factory=lambda: defaultdict(lambda: -1))
    decoded: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    busy_until: dict[int, int] = field(default_factory=lambda: defaultdict(lambda: -ENDLESS))
    counted: dict[int, int] = field(default_factory=dict)
    calls: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    found: list[Rollout] = field(default_factory=list)
    slow: dict[tuple[int, str], MicroBatch] = field(default_factory=dict)
    lengths: dict[str, array[int]] = field(default_factory=lambda: defaultdict(lambda: array("q")))

    def feed(self, records: StepRecords, number: int, start: int) -> None:
        """One more step, which begins at ``start``; the records of the first one have what came before it, too."""
        for process in records.iterations:
            self._decodes(records, number, process, start)
        self._micro_batches(records, number, start)

    def _decodes(self, records: StepRecords, step: int, process: int, since: int) -> None:
        replica, columns = records.replica_of[process], records.iterations[process]
        served = records.served_by(replica)
        busy = covered(served)
        at, most = 0, 0
        ours = defaultdict[int, list[Decode]](list)
        for start, end, requests, tokens in columns:
            if not self.counted.get(process, -ENDLESS) < start < records.end:
                continue
            self.counted[process] = start
            while at < len(busy) and busy[at][1] < start:
                at += 1
            if at < len(busy) and busy[at][0] <= start:
                self._enter(process, busy[at])
            if tokens > requests:
                continue
            self.decoded[process] += 1
            if start >= since:
                ours[max(self.rollouts[process], 0)].append(Decode(self.decoded[process], start, end))
                most = max(most, requests)
        single = len(ours) == 1 and bool(busy)
        self.found += [_rollout(step, replica, rollout, single, decodes, most) for rollout, decodes in ours.items()]

    def _enter(self, process: int, busy: tuple[int, int]) -> None:
        """A rollout begins where its engine had nothing to do before."""
        if busy[0] > self.busy_until[process]:
            self.rollouts[process] += 1
            self.decoded[process] = 0
        self.busy_until[process] = max(self.busy_until[process], busy[1])

    def _micro_batches(self, records: StepRecords, step: int, since: int) -> None:
        for span in records.spans:
            if span.kind == "work" and records.start <= span.start < records.end:
                self.calls[span.process, span.name] += 1
                units = sorted(_units(records, span, 0), key=by_start) if span.name in STAGES else []
                lengths = [end_of(unit) - unit.start for unit in units if unit.end is not None]
                if len(units) > 1 and len(lengths) == len(units) and span.start >= since:
                    self._slowest(step, span, units, lengths)

    def _slowest(self, step: int, work: KeptSpan, units: Sequence[KeptSpan], lengths: Sequence[int]) -> None:
        """Keep the longest micro-batch of a method in a step, and the lengths of all for their median."""
        lengths_of_method = self.lengths[work.name]
        if len(lengths_of_method) < MOST_LENGTHS:
            lengths_of_method.extend(lengths)
        at = max(range(len(units)), key=lengths.__getitem__)
        before = self.slow.get((step, work.name))
        if before is None or lengths[at] > before.end - before.start:
            unit, call = units[at], work.amount or self.calls[work.process, work.name]
            rank = self.processes[work.process].rank
            self.slow[step, work.name] = MicroBatch(step, work.name, call, at, unit.start, end_of(unit), rank)

    def proposals(self, steps: Sequence[TrainingStep]) -> tuple[ProposedWindow, ...]:
        """Return the windows, those of the slowest steps last."""
        counted = {step.step: step for step in steps if not step.warm_up} or {step.step: step for step in steps}
        rollouts = [rollout for rollout in self.found if rollout.step in counted]
        slow = [micro_batch for micro_batch in self.slow.values() if micro_batch.step in counted]
        proposed = [*self._of_rollouts(rollouts, counted)]
        if slow:
            usual = {method: max(statistics.median(lengths), 1) for method, lengths in self.lengths.items()}
            times, worst = max(
                ((micro_batch.end - micro_batch.start) / usual[micro_batch.method], micro_batch) for micro_batch in slow
            )
            if times > SLOW:
                proposed.append(self._micro_batch(worst, times))
        return tuple(proposed)

    def _of_rollouts(self, rollouts: Sequence[Rollout], steps: dict[int, TrainingStep]) -> Iterator[ProposedWindow]:
        if not rollouts:
            return
        ordered = sorted(rollouts, key=lambda rollout: steps[rollout.step].seconds)
        typical = ordered[len(ordered) // 2]
        first, last = typical.first, typical.last
        why = Text("{median:,.1f} ms a decode step, the median of step {step}", typical.median_us / 1000, typical.step)
        yield self._decode(Text("typical decode"), typical, first.number, last.number + 1, why, (first.start, last.end))
        slowest = max(
            rollouts, key=lambda rollout: (rollout.slowest.end - rollout.slowest.start) / max(rollout.median_us, 1)
        )
        length = slowest.slowest.end - slowest.slowest.start
        if length > SLOW * slowest.median_us:
            number = slowest.slowest.number
            times = length / max(slowest.median_us, 1)
            why = Text(
                "decode step {number} took {length:,.1f} ms, {times:.1f} times the median", number, length / 1000, times
            )
            around = (max(number - AROUND, 1), number + AROUND + 1)
            yield self._decode(
                Text("slowest decode"), slowest, *around, why, (slowest.slowest.start, slowest.slowest.end)
            )
        tails = [(step.tail_seconds, step) for step in steps.values() if step.tail_seconds > TAIL_SHARE * step.seconds]
        if tails:
            yield from self._tail(max(tails, key=lambda pair: pair[0])[1], rollouts)

    def _tail(self, step: TrainingStep, rollouts: Sequence[Rollout]) -> Iterator[ProposedWindow]:
        done = [dict(imbalance.done) for imbalance in step.imbalance if imbalance.of == "replicas"]
        last = max(done[0], key=lambda replica: done[0][replica]) if done else None
        own = [
            rollout for rollout in rollouts if rollout.step == step.step and (last is None or rollout.replica == last)
        ]
        if own and step.tail:
            few = max(own[0].requests // 10, 1)
            tail = step.tail
            why = Text(
                "{seconds:,.2f} s of step {step} with fewer than a tenth of its {peak} requests",
                tail.seconds,
                step.step,
                tail.peak,
            )
            span = (round(step.tail.start * 1e6), round(step.tail.end * 1e6))
            yield self._decode(Text("tail"), own[0], 0, TAIL_STEPS, why, span, "--at-tail", str(few))

    def _decode(
        self, what: str, rollout: Rollout, first: int, end: int, why: str, span: tuple[int, int], *more: str
    ) -> ProposedWindow:
        by_verl = rollout.replica is not None and any(
            process.head.number("VERL_REPLICA_RANK") is not None for process in self.processes
        )
        replicas = ("--replicas", str(rollout.replica)) if by_verl else ()
        window = ("--decode", f"{first}:{end}", *more)
        if not rollout.single:
            why = Text("{why}; its engine ran empty within the step, so count again with watch", why)
        return ProposedWindow(
            what, str(CommandLine("apply", self._engine, *window, "--rollout", str(rollout.rollout), *replicas)),
            str(CommandLine("trigger", *window)), why, rollout.step, rollout.replica, None,
            seconds(span[0]), seconds(span[1]),
        )  # fmt: skip

    def _micro_batch(self, micro_batch: MicroBatch, times: float) -> ProposedWindow:
        stage, role = STAGES[micro_batch.method]
        window = ("--micro-batch", f"{micro_batch.number}:{micro_batch.number + 1}")
        stage_words = ("--stage", stage) if stage != "update-policy" else ()
        words = (*stage_words, *(("--role", role) if role else ()), *window)
        ranks = ("--ranks", str(micro_batch.rank)) if micro_batch.rank is not None else ()
        length = (micro_batch.end - micro_batch.start) / 1e6
        why = Text(
            "micro-batch {number} of {method} in step {step} took {length:,.2f} s, {times:.1f} times the median",
            micro_batch.number,
            micro_batch.method,
            micro_batch.step,
            length,
            times,
        )
        command = CommandLine("apply", self._trainer, *words, *ranks, "--training-steps", str(micro_batch.call))
        trigger = CommandLine("trigger", *stage_words, *window, *ranks)
        return ProposedWindow(
            Text("slow micro-batch"), str(command), str(trigger), why, micro_batch.step, None, micro_batch.rank,
            seconds(micro_batch.start), seconds(micro_batch.end),
        )  # fmt: skip

    @property
    def _packages(self) -> set[str]:
        return {process.head.package.partition(" ")[0] for process in self.processes}

    @property
    def _engine(self) -> str:
        return next((name for name in ENGINES if name in self._packages), "vllm")

    @property
    def _trainer(self) -> str:
        others = sorted(self._packages - {*ENGINES, ""})
        return shlex.quote(others[0]) if others else "verl"


def _rollout(
    step: int, replica: int | None, rollout: int, single: bool, decodes: Sequence[Decode], most: int
) -> Rollout:
    middle = statistics.median(decode.end - decode.start for decode in decodes)
    slowest = max(decodes[1:] or decodes, key=lambda decode: decode.end - decode.start)
    usual = [decode for decode in decodes if decode.end - decode.start <= SLOW * middle]
    shown = usual[len(usual) // 2 :][:LENGTH]
    return Rollout(step, replica, rollout, single, shown[0], shown[-1], slowest, middle, most)


def _units(records: StepRecords, span: KeptSpan, depth: int) -> Iterator[KeptSpan]:
    """Yield the micro-batches within a span."""
    for child in records.nested.get((span.process, span.id), ()) if depth < 8 else ():
        if child.kind == "unit" and child.name == "micro-batch":
            yield child
        else:
            yield from _units(records, child, depth + 1)
