"""The timeline of one run, from the files of all its processes; only one step at a time is in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from patcher.messages import COMMA, Text, joined, steps_text
from patcher.progress import Progress, ignore
from patcher.timeline import causes, clocks, costs, missing, recorded, runs, shares, trends
from patcher.timeline.files import KeptSpan, Reader
from patcher.timeline.intervals import ENDLESS, TimeRange, covered, end_of, length
from patcher.timeline.lanes import RunLanes
from patcher.timeline.lengths import brief, share
from patcher.timeline.memory import MemoryCollector
from patcher.timeline.model import (
    OVERLAP,
    Imbalance,
    PathSegment,
    Run,
    RunTimeline,
    StepIterations,
    TrainingStep,
    label,
)
from patcher.timeline.path import PathPiece, critical_path
from patcher.timeline.runs import Process
from patcher.timeline.step_records import StepRecords
from patcher.timeline.windows import Collector

SLACK_US = 1_500_000
"""Microseconds after the end of a step within which all its records are written."""

STRIDE_US = 30_000_000
"""Microseconds that are read at a time after the last step."""

MOST_PIECES = 200
"""Most pieces of a critical path; beyond, the shortest are joined to their neighbours."""

MOST_SEGMENTS = 200_000
"""Most segments of all critical paths of a run, some 50 MB; beyond, each path gets half as many pieces."""

FEWEST_PIECES = 12
"""Fewest pieces of a critical path, however long the run is."""

POINTS = 240
"""Points of the curve of requests in a step."""

MOST_POINTS = 100_000
"""Most points of the whole curve."""

LONGEST = 3
"""Number of processes that are named for their waits for a CPU."""

MANY_LOST = 1_000
"""Missing records up to which they may all be spans that went on when the process was killed."""


def join(
    run: Run,
    processes: Sequence[Process],
    folder: Path | None = None,
    progress: Progress = ignore,
    detailed: range = range(0),
) -> RunTimeline:
    """Read the files of ``processes`` step by step, and return the timeline of ``run``.

    Recorded windows are looked for in ``folder`` (None: nowhere). ``detailed`` are the numbers of the steps whose
    engine iterations are kept one by one.
    """
    return _Join(run, processes, progress, detailed).build_timeline(folder)


@dataclass
class _Join:
    """State of joining a run, between two steps."""

    run: Run
    processes: Sequence[Process]
    progress: Progress
    detailed: range = range(0)
    iterations: list[StepIterations] = field(default_factory=list)
    steps: list[TrainingStep] = field(default_factory=list)
    paths: list[list[PathPiece]] = field(default_factory=list)
    spent: list[causes.StepTimes] = field(default_factory=list)
    curve: list[tuple[float, int]] = field(default_factory=list)
    pieces: int = MOST_PIECES
    overlapping: bool = False
    expected: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Choose the driver, align the clocks, and prepare a reader and a lane for each process."""
        self.roles = runs.by_role(self.processes)
        drivers = self.roles.get("driver", [])
        marking = [at for at, process in enumerate(self.processes) if process.marks]
        marking = [at for at in marking if at in drivers] or marking
        self.driver: int | None = next(iter(marking or drivers), None)
        self.marked = bool(marking)
        self.aligned = clocks.align(self.processes, self.driver or 0)
        offsets = self.aligned.offsets
        firsts = (process.parts[0] for process in self.processes)
        self.origin = min((part.begin + offsets[part.boot] for part in firsts if part.first), default=0)
        self.readers = [
            Reader(process.paths, at, offsets[process.head.boot] - self.origin, self.progress)
            for at, process in enumerate(self.processes)
        ]
        errors = (round(1e6 * (clock.error_seconds or 0)) for clock in self.aligned.clocks)
        self.tolerance = 1_000 + max(errors)
        self.lanes = RunLanes(self.processes)
        self.collector = Collector(self.processes)
        ends = runs.end_times(self.processes)
        self.memory = MemoryCollector(
            self.processes, self.driver, self.lanes, {at: end + self.readers[at].offset for at, end in ends.items()}
        )
        self.counterparts = missing.Counterparts()
        self.lacking = runs.missing_ranks(self.processes)

    def build_timeline(self, folder: Path | None) -> RunTimeline:
        """Read all files and explain all steps, and return the timeline; call it once.

        Without a driver there are no steps.
        """
        for number, start, end, stale in self._read_steps():
            records = self._records_between(start, end)
            self._add_step(records, number, stale)
            if number in self.detailed:
                self.iterations += self._step_iterations(records, number)
            self.collector.feed(records if self.steps[1:] else self._records_between(-ENDLESS, end), number, start)
            self._feed_memory(number, end)
            self._forget(end)
        end = self._read_rest()
        lanes, steps = self.lanes.built(), self._steps_with_verdicts()
        windows = self.collector.proposals(steps)
        trainers = len(self.roles.get("trainer", ()))
        run_causes = costs.with_applicable_advice(
            costs.run_causes(steps, self.spent), (window.what for window in windows), trainers
        )
        mono, wall = self.processes[self.driver or 0].head.clocks
        return RunTimeline(
            self.run, shares.seconds(end), lanes, steps, run_causes, windows,
            recorded.windows(folder, lanes, self.run, (wall - mono + self.origin) / 1e6) if folder else (),
            tuple(self.curve), self.aligned.clocks, costs.path_seconds(self.spent),
            tuple(self._missing_texts()), tuple(self._note_texts()), trends.trend(steps, self.spent),
            self.memory.result(), tuple(self.iterations),
        )  # fmt: skip

    # ------------------------------------------------------------ reading

    def _read_steps(self) -> Iterator[tuple[int, int, int, float | None]]:
        """Yield number, start, end and mean age of the weights of each step.

        A step begins when the one before ends. Before a step is yielded, everything that ended in the step has been
        read. A step that the driver marks twice is yielded once, and one without a length not at all.
        """
        if self.driver is None:
            return
        before: int | None = None
        reader = self.readers[self.driver]
        while mark := self._next_mark(reader):
            end = end_of(mark)
            begin = before if before is not None else self._start_of_first_step(reader, end)
            number = mark.amount if self.marked and mark.amount is not None else len(self.steps) + 1
            again = self.marked and self.steps and number == self.steps[-1].step
            if end <= begin or again:  # verl's fully_async logs twice, of the rollouts first
                continue
            for process_reader in self.readers:
                process_reader.advance(end + SLACK_US)
            yield number, begin, end, reader.stale.pop(mark.id, None)
            before = end

    def _next_mark(self, reader: Reader) -> KeptSpan | None:
        """Read the driver's files to the next span that ends a step, and return it; None at the end of the files.

        The span is a mark, or a phase named "step" if the driver marks no steps.
        """
        while True:
            while reader.marks:
                mark = reader.marks.pop(0)
                if (mark.kind == "step") == self.marked:
                    return mark
            if not reader.read_block():
                return None

    def _start_of_first_step(self, reader: Reader, end: int) -> int:
        """Return when the first step starts, in microseconds; it ends at ``end``.

        That is the start of the driver's first phase named "step". Without one, it is that of its first phase, executed
        method or poll, if possible of one that has ended. Without any it is ``end``.
        """
        spans = (*reader.spans, *reader.open.values())
        phases = [span for span in spans if span.kind in ("phase", "work", "poll") and span.start < end]
        ended = [phase.start for phase in phases if phase.end is not None and phase.end <= end]
        starts = [phase.start for phase in phases if phase.name == "step"]
        return min(starts or ended or [phase.start for phase in phases], default=end)

    def _records_between(self, start: int, end: int) -> StepRecords:
        """Return the records of all processes that overlap ``start`` to ``end`` (µs), without marks of steps.

        Pauses of rlpatch's own recorders and garbage collections are listed apart, merged and cut off at the limits.
        """
        spans = [
            span for reader in self.readers for span in (*reader.spans, *reader.open.values())
            if span.start < end and (span.end is None or span.end > start) and span.kind != "step"
        ]  # fmt: skip
        pauses, collections = (self._ranges_by_process(spans, kind, start, end) for kind in ("pause", "gc"))
        return StepRecords(
            start,
            end,
            self.driver or 0,
            [span for span in spans if span.kind not in ("pause", "gc")],
            iterations={at: self.readers[at].iterations for at in self.roles.get("engine", ())},
            roles=[process.role for process in self.processes],
            replica_of=[process.replica for process in self.processes],
            tolerance=self.tolerance,
            trainers_known="trainer" in self.roles,
            partial=bool(self.lacking),
            expected=self.expected,
            pauses=pauses,
            stalls=self._stalls(),
            collections=collections,
        )

    @staticmethod
    def _ranges_by_process(spans: Iterable[KeptSpan], kind: str, low: int, high: int) -> dict[int, list[TimeRange]]:
        """Return process index → the ranges that its spans of ``kind`` cover between ``low`` and ``high`` (µs)."""
        by_process = defaultdict[int, list[KeptSpan]](list)
        for span in spans:
            if span.kind == kind:
                by_process[span.process].append(span)
        return {process: covered(spans, low, high) for process, spans in by_process.items()}

    def _feed_memory(self, number: int | None, end: int) -> None:
        """Add the memory noted up to ``end`` (microseconds) to step ``number``, and drop the notes.

        ``number`` is None for the time after the last step.
        """
        notes = {at: reader.take_notes(end) for at, reader in enumerate(self.readers)}
        spans = (span for reader in self.readers for span in (*reader.spans, *reader.open.values()))
        devices = {at: reader.device for at, reader in enumerate(self.readers) if reader.device}
        self.memory.feed(number, (span for span in spans if span.start < end), notes, devices)

    def _forget(self, before: int) -> None:
        """Move what ended before ``before`` (microseconds) from the readers to the lanes."""
        for at, reader in enumerate(self.readers):
            self.lanes.take_from(at, reader, before)

    def _read_rest(self) -> int:
        """Read everything after the last step into lanes and memory; return the last time of the run in microseconds.

        Spans that never ended, and the number of lost records, are added to the lanes, too.
        """
        until = max(reader.upto for reader in self.readers)
        while reading := [reader for reader in self.readers if not reader.done]:
            for reader in reading:
                reader.advance(until)
            self._feed_memory(None, until - SLACK_US)
            self._forget(until - SLACK_US)
            until = max(until + STRIDE_US, min((reader.upto for reader in reading if not reader.done), default=until))
        self._feed_memory(None, ENDLESS)
        self._forget(ENDLESS)
        for at, reader in enumerate(self.readers):
            lane = self.lanes.builders[self.lanes.index(at, "")]
            lane.add(reader.open.values())
            lane.dropped = self._count_lost(at)
        return max([0, *(reader.upto for reader in self.readers)])

    # ------------------------------------------------------------ explaining

    def _add_step(self, records: StepRecords, number: int, stale: float | None) -> None:
        """Add a step with its critical path, busy shares, tail and weight sync, but without a verdict.

        The curve of requests and the stored paths are thinned if they become too long.
        """
        path = critical_path(records)
        self.counterparts.feed(records)
        self.overlapping = self.overlapping or shares.trains_during_rollout(records)
        us = records.end - records.start
        curve = shares.alive_requests(records)
        tail = shares.tail(curve, path)
        ranks = {at: self.processes[at].rank for at in self.roles.get("trainer", ())}
        imbalances = shares.imbalances(records, path, ranks)
        sync = shares.sync_intervals(records)
        engine_ranks = {at: self.processes[at].rank for at in self.roles.get("engine", ())}
        engines = shares.lowest_ranks(records.replica_of, engine_ranks)
        prefill_tokens, decode_tokens = shares.prefill_and_decode_tokens(records, engines)
        stopped = self._incomplete_call(records)
        of_run = [piece for piece in path if piece.kind != "pause"]
        amounts = shares.amounts(records, engines)
        rewards_delay = shares.rewards_delay(records)
        replica, stalled = _last_replica(imbalances), self._stalls()
        spent = causes.sum_step_times(
            of_run, replica, shares.sync_work(records), stopped, stalled,
            map(self._cpu_wait, of_run),
        )  # fmt: skip
        self.spent.append(replace(spent, amounts=amounts, rewards_delay=rewards_delay))
        self.curve += [(shares.seconds(time), count) for time, count in shares.thinned(curve, POINTS)]
        if len(self.curve) > MOST_POINTS:
            self.curve = shares.thinned(self.curve, MOST_POINTS // 2)
        self.steps.append(
            TrainingStep(
                number, shares.seconds(records.start), shares.seconds(records.end), shares.seconds(us),
                "typical", "", None, None, (),
                shares.role_uses(records, path, self.roles), tail.seconds if tail else 0.0, tail,
                shares.seconds(length(sync)), shares.sync_parts(shares.sync_by_process(records)),
                shares.seconds(length(piece for piece in path if piece.kind == "poll")),
                shares.phase_parts(records), imbalances,
                shares.what_if(us, path, tail, imbalances, sync, rewards_delay),
                max((count for _, count in curve), default=0), stale, not self.steps, (stopped,) if stopped else (),
                pause_seconds=shares.seconds(us - length(of_run)),
                decode_steps=amounts.decode_steps, tokens=amounts.tokens,
                prefill_tokens=prefill_tokens, decode_tokens=decode_tokens,
            )
        )  # fmt: skip
        self.paths.append(thinned(path, self.pieces))
        if len(self.paths) * self.pieces > MOST_SEGMENTS and self.pieces > FEWEST_PIECES:
            self.pieces = max(self.pieces // 2, FEWEST_PIECES)
            self.paths = [thinned(path, self.pieces) for path in self.paths]

    def _step_iterations(self, records: StepRecords, number: int) -> Iterator[StepIterations]:
        """Yield each engine's iterations that start in step ``number``, as columns, with times in seconds."""
        for process, columns in records.iterations.items():
            first, end = (bisect_left(columns.start, edge) for edge in (records.start, records.end))
            if first < end:
                amounts = (columns.requests, columns.tokens, columns.context, columns.longest, columns.rollout)
                yield StepIterations(
                    number,
                    self.lanes.index(process, "engine"),
                    tuple(map(shares.seconds, columns.start[first:end])),
                    tuple(
                        shares.seconds(after - start)
                        for start, after in zip(columns.start[first:end], columns.end[first:end], strict=True)
                    ),
                    *(tuple(column[first:end]) for column in amounts),
                )

    def _stalls(self) -> dict[int, list[TimeRange]]:
        """Return the stalls of each process that had some around the present step."""
        return {at: reader.stalls for at, reader in enumerate(self.readers) if reader.stalls}

    def _cpu_wait(self, piece: PathPiece) -> causes.ProcessWait:
        """Return how long the process of a piece of the critical path waited for a CPU; NO_WAIT if none is known.

        An engine without an iteration waits for its scheduler, and polls. The poll may lack a CPU, too, so only a wait
        for most of the gap counts.
        """
        trainers = self.roles.get("trainer", []) if piece.role == "trainer" else []
        processes = trainers if piece.process is None else [piece.process]
        waits = (causes.ProcessWait(at, self.readers[at].cpu_wait(piece.start, piece.end)) for at in processes)
        longest = max(waits, key=lambda wait: wait.us, default=causes.NO_WAIT)
        is_idle = (piece.role, piece.kind) == ("engine", "gap")
        return longest if not is_idle or longest.us > causes.MOSTLY * (piece.end - piece.start) else causes.NO_WAIT

    def _to_segment(self, piece: PathPiece) -> PathSegment:
        """Convert a piece of a critical path to seconds, with the process's replica (engine, server), rank and lane.

        Rank is that of a trainer. All three are None if the piece names no process.
        """
        at = piece.process
        process = self.processes[at] if at is not None else None
        return PathSegment(
            shares.seconds(piece.start), shares.seconds(piece.end), shares.seconds(piece.end - piece.start), piece.role,
            process.replica if process and piece.role in ("engine", "server") else None,
            process.rank if process and piece.role == "trainer" else None,
            piece.kind, piece.what, piece.phase, self.lanes.index(at, piece.role) if at is not None else None,
            shares.seconds(piece.late),
        )  # fmt: skip

    def _steps_with_verdicts(self) -> tuple[TrainingStep, ...]:
        """Return all steps with verdicts and critical paths, without a bound for an overlap that the run has."""
        trainers = self.roles.get("trainer", ())
        process_ranks = [
            causes.ProcessRank(
                process.replica if process.role != "trainer" else None, process.rank if at in trainers else None
            )
            for at, process in enumerate(self.processes)
        ]
        verdicts = causes.verdicts(self.spent, process_ranks)
        for at, verdict in enumerate(verdicts):
            if verdict.limited_by and verdict.limited_by.kind == causes.CPU_WAIT.kind:
                waits = self._longest_cpu_waits([self.spent[at]])
                why = Text("processes that waited most for a free CPU: {processes}", waits)
                verdicts[at] = replace(verdict, why=why)
        return tuple(
            replace(
                step, **vars(verdict), critical_path=tuple(map(self._to_segment, path)),
                what_if=tuple(bound for bound in step.what_if if bound.name != OVERLAP or not self.overlapping),
            )
            for step, verdict, path in zip(self.steps, verdicts, self.paths, strict=True)
        )  # fmt: skip

    def _cpu_wait_texts(self, steps: Sequence[causes.StepTimes]) -> Iterator[str]:
        """Yield a text with the longest waits if waiting for a CPU took over a tenth of the critical paths."""
        total = sum(step.total for step in steps)
        waited = sum(step.us.get(causes.CPU_WAIT, 0) for step in steps)
        if waited > costs.LONG_ACTIVITY * total:
            yield Text(
                "{share} of the time on critical paths was spent waiting for a CPU core: the step waited for a process"
                " with a thread that was ready to run, but no core was free. Likely reasons: other programs, more busy"
                " threads in this run than cores, or a container limit. Processes that waited most: {processes}",
                share=share(waited / total),
                processes=self._longest_cpu_waits(steps),
            )

    def _longest_cpu_waits(self, steps: Iterable[causes.StepTimes]) -> Text:
        """Return the up to three processes that waited most for a CPU on the critical paths of ``steps``, in words."""
        waits = Counter[int | None]()
        for step in steps:
            waits.update(step.by_process.get(causes.CPU_WAIT, {}))
        texts = [
            Text(
                "{process} on {host}: {seconds} s",
                process=label(process.role, process.replica, process.rank),
                host=process.head.host,
                seconds=brief(shares.seconds(us)),
            )
            for at, us in waits.most_common(LONGEST)
            if at is not None and (process := self.processes[at])
        ]
        return joined(COMMA, texts)

    # ------------------------------------------------------------ what is missing

    def _incomplete_call(self, records: StepRecords) -> str:
        """Return a text on a driver's call that fewer ranks recorded in this step than in an earlier one, "" if none.

        Updates ``expected``, which has call → the most ranks that recorded it in a step.
        """
        for span in records.spans:
            is_drivers = span.process == records.driver and records.start <= span.start < records.end
            if is_drivers and (span.kind == "call" or span.id in records.groups):
                count = records.count_works(span)
                most = self.expected[span.name] = max(self.expected.get(span.name, 0), count)
                if count < most and not records.has_twin(span):
                    return Text(
                        "{count} of {total} ranks have no record of {call}",
                        count=most - count,
                        total=most,
                        call=span.name,
                    )
        return ""

    def _missing_texts(self) -> Iterator[str]:
        """Yield texts on files of driver, ranks or roles that are missing, and records of a call in the last step."""
        yield from missing.trainer_texts(self.lacking)
        if self.driver is None:
            yield Text("the driver wrote no timeline file, so rlpatch cannot separate the steps")
        elif self.steps:  # before the first one has ended, processes are still to come
            yield from missing.role_texts(self.processes, self.counterparts)
        for step in self.steps[-1:]:
            for text in step.missing:
                yield Text(
                    "step {step}: {problem}; if a process was killed, the records of its last second are missing",
                    step=step.step,
                    problem=text,
                )

    def _count_lost(self, process: int) -> int:
        """Return how many ids of a process (by index) have no record.

        Up to 1,000 count as 0 if it did not end regularly: they may be spans that never ended.
        """
        reader, head = self.readers[process], self.processes[process].head
        lost = reader.highest - reader.count - head.before
        return lost if lost > (0 if head.ended else MANY_LOST) else 0

    def _note_texts(self) -> Iterator[str]:
        """Yield texts on damaged files, lost records, uncertain clocks, pauses, waits for a CPU, missing step marks."""
        for at, (reader, process) in enumerate(zip(self.readers, self.processes, strict=True)):
            name = process.head.path.name
            if reader.losses.too_large:
                yield Text(
                    "{file} unpacks to more data than a timeline file of rlpatch can have; the data beyond that limit"
                    " was skipped",
                    reader.losses.too_large,
                )
            elif reader.losses.cut:
                yield Text("{file} is damaged; data after the damage was skipped", name)
            if count := reader.losses.lines:
                yield Text("{file}: {count:,} unreadable records were skipped", file=name, count=count)
            if lost := self._count_lost(at):
                process_label = label(process.role, process.replica, process.rank)
                process_label = Text("{process} (pid {pid})", process=process_label, pid=process.head.pid)
                yield Text(
                    "{count:,} records of {process} are missing: they were dropped, or their file was replaced",
                    count=lost,
                    process=process_label,
                )
        unbounded = [host for clock in self.aligned.clocks if clock.error_seconds is None for host in clock.hosts]
        if unbounded:
            hosts = ", ".join(unbounded[:8]) + (" …" if len(unbounded) > 8 else "")
            yield Text(
                "the times of {hosts} could be aligned only by wall clock, so their error has no upper bound", hosts
            )
        for clock in self.aligned.clocks:
            if clock.contradicts:
                yield Text(
                    "the times recorded on {hosts} contradict the order of calls: they may be wrong by {error:.3f} s",
                    hosts=", ".join(clock.hosts),
                    error=clock.error_seconds or 0,
                )
        if paused := [step for step in self.steps if step.pause_seconds]:
            total = sum(step.pause_seconds for step in paused)
            yield Text(
                "in {steps}, rlpatch spent a total of {total:,.2f} s on opening and saving recording windows;"
                " rlpatch does not count this time when it judges the steps",
                steps=steps_text(len(paused)),
                total=total,
            )
        yield from self._cpu_wait_texts(self.spent[1:])
        if self.steps and not self.marked:
            yield Text(
                "the driver marks no steps, so rlpatch counts each of the driver's phases named `step` as a step"
            )


def _last_replica(imbalances: Sequence[Imbalance]) -> tuple[int | None, int]:
    """Return the replica that finished last, and by how many µs after the next to last; (None, 0) without several."""
    for imbalance in imbalances:
        if imbalance.of == "replicas":
            (_, before), (last, end) = sorted(imbalance.done, key=lambda pair: pair[1])[-2:]
            return last, round((end - before) * 1e6)
    return None, 0


def thinned(path: Sequence[PathPiece], most: int) -> list[PathPiece]:
    """Merge the shortest pieces of a critical path into the piece before them, until at most ``most`` are left.

    A merged piece keeps the activity and delay of the one before.
    """
    by_length = sorted(range(1, len(path)), key=lambda at: path[at].end - path[at].start)
    longest = {0, *by_length[max(len(path) - most, 0) :]}
    thin = list[PathPiece]()
    for at, piece in enumerate(path):
        if at in longest:
            thin.append(piece)
        else:
            thin[-1] = thin[-1]._replace(end=piece.end)
    return thin
