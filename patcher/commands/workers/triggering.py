"""``trigger``: asking workers that were patched with ``--on-demand`` for a window, while they run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from patcher.commands.workers import watching
from patcher.commands.workers.watching import OpenDisplay, WatchData, WatchOptions
from patcher.config import UNITS, RolloutStage, Window, kind_of
from patcher.messages import (
    AND,
    COMMA,
    OR,
    CommandLine,
    CommandResult,
    Kind,
    Message,
    Problem,
    StepResult,
    Text,
    joined,
    usage,
)
from patcher.targets import versions
from patcher.workers import life, progress
from patcher.workers.folder import StateFolder
from patcher.workers.progress import AT_WORK, RunProgress, WorkerProgress
from patcher.workers.request import EXPIRES_S, FiledRequest, TriggerRequest
from patcher.workers.worker import Worker
from patches.projects import projects


class TriggerOptions(NamedTuple):
    """Request for a window: its conditions (0: none), `ranks` (None: all), target and time.

    `stage` and `target` are "" if they follow from the window, `role` is "" for all roles. `at` is the rollout or
    training step, None for the next. `expires` is in seconds from now. `replace` overwrites a pending request.
    """

    window: Window
    target: str = ""
    stage: str = ""
    role: str = ""
    ranks: tuple[int, ...] | None = (0,)
    at_load: int = 0
    at_tail: int = 0
    at_context: int = 0
    at: int | None = None
    expires: float = EXPIRES_S
    replace: bool = False
    dry_run: bool = False

    @property
    def conditions(self) -> str:
        """Conditions as typed, such as " --at-load 8"; "" for none."""
        values = {"load": self.at_load, "tail": self.at_tail, "context": self.at_context}
        return "".join(f" --at-{name} {value}" for name, value in values.items() if value)

    @property
    def turns(self) -> str:
        """Unit that the stage counts: "rollout" or "training step", translated."""
        return Text("training step") if self.training else Text("rollout")

    @property
    def training(self) -> bool:
        """Whether the window belongs to a training step, which is counted from 1, and not to a rollout."""
        return kind_of(self.window.unit) is not RolloutStage

    @property
    def words(self) -> str:
        """Window and conditions as typed, such as "--decode 30:60 --at-load 8"."""
        return f"--{self.window.unit} {self.window}{self.conditions}"


@dataclass(frozen=True)
class Taker:
    """Worker that a request is for."""

    host: str
    rank: int
    pid: int


@dataclass(frozen=True, kw_only=True)
class TriggerData:
    """Data of `trigger --json`."""

    folder: str
    stage: str
    request: TriggerRequest
    dry_run: bool
    takers: tuple[Taker, ...]


@dataclass(frozen=True, kw_only=True)
class ServedData(TriggerData, WatchData):
    """Data of `trigger --json --wait`: the request, and where the workers stood at the end."""


def trigger(
    save_path: Path, options: TriggerOptions, wait: WatchOptions | None, open_display: OpenDisplay
) -> CommandResult:
    """Write a request for a recording window; with `wait` until every worker has served it or never will.

    Raises Problem: USAGE for options that fit no worker, ENVIRONMENT if an earlier request is pending or this one can't
    be written, NO_WORKER if no live one accepts requests, unless `options.at` asks workers to come.
    """
    _check_window(options)
    folder, now = StateFolder(save_path.resolve()), time.time()
    collected = progress.collect(folder, now)
    living = _accepting_workers(folder, collected, options)
    rows = _workers_of_ranks(living, options) if living else []
    stage = rows[0].worker.stage if rows else options.stage or kind_of(options.window.unit).NAMES[0]
    request = _build_request(living, options, now)
    notes = (*_worker_notes(living, options), *_pending_notes(folder, collected, stage, options))
    step = StepResult(_request_lines(rows, request, options), notes)
    takers = tuple(Taker(row.worker.host, row.worker.rank, row.worker.pid) for row in rows)
    data = TriggerData(
        folder=str(folder.save_path), stage=stage, request=request, dry_run=options.dry_run, takers=takers
    )
    if options.dry_run:
        step += StepResult((Text("next: run the same command without --dry-run"),))
        return CommandResult("trigger", step, data=data)
    filed = _write_request(folder, stage, request)
    step += StepResult(done=(Text("wrote {file}", folder.file(stage)),))
    if wait is None:
        line = Text("next: {command}", CommandLine("watch", str(folder.save_path)))
        return CommandResult("trigger", step + StepResult((line,)), data=data)

    def serves(worker: Worker) -> bool:
        return worker.on_demand and worker.stage == stage and worker.target in (target, target or worker.target)

    target = rows[0].worker.target if rows else ""
    served, watched = watching.wait_for_workers(save_path, wait, open_display, serves, filed, step.lines)
    return CommandResult("trigger", step + watched, data=ServedData(**{**vars(served), **vars(data)}))


def _check_window(options: TriggerOptions) -> None:
    """Refuse a condition on a training stage, a role of a rollout, and step 0 without a condition.

    With a condition, steps are counted from 0 once the condition holds.
    """
    window = options.window
    if options.conditions and options.training:
        cause = Text(
            "{conditions} cannot be used with a training stage: training has no requests and no context length",
            options.conditions.strip(),
        )
        raise usage(cause, f"--{window.unit} {window}")
    if options.role and not options.training:
        cause = Text("--role {role} cannot be used with rollouts: only training stages have roles", options.role)
        raise usage(cause, f"--{window.unit} {window}")
    if not options.conditions:
        window.check()


def _accepting_workers(folder: StateFolder, collected: RunProgress, options: TriggerOptions) -> list[WorkerProgress]:
    """Return the live workers that accept the request, all of one stage, whatever their rank.

    [] if `options.at` is set and no worker is alive: workers that start later may serve the request. Raises Problem:
    NO_WORKER if no live worker accepts it, USAGE if workers of several stages do, or none of the target could.
    """
    if options.at is not None and all(row.life.has_ended for row in collected.rows):
        return []
    if not collected.rows:
        words = (options.target, *options.words.split(), "--at", str(int(options.training)))
        again = CommandLine("trigger", *filter(None, words), "--save-path", str(folder.save_path))
        hint = Text(
            "run {command} to record workers that start later, from their first rollout or training step on", again
        )
        raise watching.no_worker_problem(folder, collected.skipped).replace(hint=hint)
    of_target = [row for row in collected.rows if _is_of_target(row.worker, options.target)]
    counting = [row for row in of_target if _counts(row.worker, options)]
    living = [row for row in counting if row.worker.on_demand and not row.life.has_ended]
    stages = sorted({row.worker.stage for row in living})
    if len(stages) == 1:
        return living
    waiting = Text("no running worker accepts this recording request")
    if stages:
        waiting = Text("running workers of several stages accept this recording request: {stages}", joined(AND, stages))
    cause = Text("{options}: {reason}", options=f"{options.target} {options.words}".lstrip(), reason=waiting)
    kind = Kind.USAGE if stages or (of_target and not counting) else Kind.NO_WORKER
    raise Problem(kind, cause, str(folder.save_path), _fitting_options(living, collected.rows))


def _counts(worker: Worker, options: TriggerOptions) -> bool:
    """Tell whether a worker counts the steps of the window, in the chosen stage and role."""
    choices = ((options.window.unit, worker.unit), (options.stage, worker.stage), (options.role, worker.role))
    return all(chosen in ("", value) for chosen, value in choices)


def _fitting_options(living: Sequence[WorkerProgress], rows: Sequence[WorkerProgress]) -> str:
    """Return the options of `trigger` that the `living` workers accept, else those of all, joined by "or"."""
    workers = [row.worker for row in living or rows if row.worker.unit in UNITS]
    choices: list[str] = sorted({f"{worker.target} --stage {worker.stage} --{worker.unit} A:B" for worker in workers})
    if not living:
        choices.append(Text("patch with --on-demand, then restart the run"))
    return joined(OR, choices)


def _workers_of_ranks(living: Sequence[WorkerProgress], options: TriggerOptions) -> list[WorkerProgress]:
    """Return the workers of `living` whose rank is requested. Raises Problem (USAGE) if there is none."""
    takers = [row for row in living if options.ranks is None or row.worker.rank in options.ranks]
    if not takers:
        ranks = ",".join(map(str, options.ranks or ()))
        cause = Text("--ranks {ranks}: no running worker with one of these ranks accepts this recording request", ranks)
        hint = Text("use --ranks all, or choose among the ranks whose workers wait for `rlpatch trigger`: {ranks}")
        raise usage(cause, hint.filled(_ranks(living)))
    return takers


def _ranks(rows: Sequence[WorkerProgress]) -> str:
    return ", ".join(map(str, sorted({row.worker.rank for row in rows})))


def _is_of_target(worker: Worker, word: str) -> bool:
    """Tell whether `word` ("": any) names the worker's project or distribution, as pip compares names."""
    name, _, release = word.partition("==")
    normalised = versions.normalise(name)
    names = ((project.name, *project.distributions) for project in projects())
    project_names = (first for first, *more in names if normalised in map(versions.normalise, (first, *more)))
    return not word or (worker.target == next(project_names, normalised) and release in ("", worker.release))


def _build_request(rows: Sequence[WorkerProgress], options: TriggerOptions, now: float) -> TriggerRequest:
    """Return the request that `options` describe, for the rollout or training step `options.at`.

    By default that is the first one which no worker has reached yet. Raises Problem (USAGE) if one has reached
    `options.at`.
    """
    turns = _turns(rows)
    following = max(turns) + 1 if turns else int(options.training)
    at = following if options.at is None else options.at
    if at < following:
        turn, current = options.turns, following - 1
        cause = Text(
            "--at {at} has passed: a worker has already reached {turn} {number}", at=at, turn=turn, number=current
        )
        raise usage(cause, Text("use --at {number} or a larger number, or leave --at out", following))
    ranks = "all" if options.ranks is None else ",".join(map(str, options.ranks))
    return TriggerRequest(
        window=str(options.window), ranks=ranks, at=at, role=options.role, load=options.at_load,
        tail=options.at_tail, context=options.at_context, expires=now + options.expires,
    )  # fmt: skip


def _turns(rows: Sequence[WorkerProgress]) -> list[int]:
    """Return the rollout or step number of each worker; silent workers count only if all are silent."""
    heard = [row for row in rows if not row.life.silent] or rows
    return [row.worker.turn for row in heard if row.worker.turn is not None]


def _worker_notes(living: Sequence[WorkerProgress], options: TriggerOptions) -> Iterator[Message]:
    """Yield warnings of ranks that will write no trace and of workers that may be dead or have come further."""
    for rank in sorted(set(options.ranks or ()) - {row.worker.rank for row in living}):
        text = Text("rank {rank} does not accept recording requests and will write no trace", rank)
        yield Message("warning", text, Text("ranks that accept recording requests: {ranks}", _ranks(living)))
    for row in living:
        if row.life.silent:
            text = Text("{worker} might have ended: {reason}", worker=row.worker.name, reason=row.life.words)
            detail = Text(
                "this worker has not reported for a while, so it might already be past the requested rollout or"
                " training step"
            )
            yield Message("warning", text, detail)
    turns = _turns(living)
    if turns and min(turns) < max(turns):
        text = Text("the workers have reached different {turn}s: {first} to {last}")
        yield Message("note", text.filled(turn=options.turns, first=min(turns), last=max(turns)))


def _pending_notes(
    folder: StateFolder, collected: RunProgress, stage: str, options: TriggerOptions
) -> Iterator[Message]:
    """Yield messages on an earlier request for `stage`, which the new request replaces; nothing if there is none.

    Raises Problem (ENVIRONMENT) if workers still have to serve the earlier request, unless `options.replace` is set.
    """
    file = folder.file(stage)
    for skipped_file in (skipped_file for skipped_file in collected.skipped if skipped_file.file == file):
        text = Text("the file of the recording request is damaged and will be replaced")
        yield Message("warning", text, f"{file}: {skipped_file.why}")
    if stage not in collected.requests:
        return
    request = collected.requests[stage]
    of_stage = [row for row in collected.rows if row.worker.stage == stage]
    whose = _worker_names([row for row in of_stage if row.worker.on_demand and row.outcome == AT_WORK])
    if not of_stage and request.expires > time.time():
        whose = Text("workers that start later")
    name = Text("{window} of {turn} {number}", window=request.window, turn=options.turns, number=request.at)
    values = {"id": request.id, "window": name, "workers": whose}
    if whose and not options.replace:
        cause = Text("recording request {id} ({window}) is still waiting for {workers}", **values)
        hint = Text("wait for this recording request with `rlpatch watch`, or replace it with --replace")
        raise Problem(Kind.ENVIRONMENT, cause, str(file), hint)
    if whose:
        text = Text(
            "the new recording request replaces request {id} ({window}), which was still waiting for {workers}",
            **values,
        )
        yield Message("warning", text)
    elif all(row.outcome != progress.DONE for row in of_stage):
        yield Message("note", Text("no worker served the previous recording request ({window})", name))


def _write_request(folder: StateFolder, stage: str, request: TriggerRequest) -> FiledRequest:
    """Write the request into `folder`. Raises Problem (ENVIRONMENT) if that fails."""
    try:
        return folder.write(stage, request)
    except OSError as error:
        cause = Text("the file of the recording request cannot be written: {error}", error.strerror or error)
        hint = Text("free some space, or give yourself write permission; then run the same command again")
        raise Problem(Kind.ENVIRONMENT, cause, str(folder.file(stage)), hint) from None


def _request_lines(rows: Sequence[WorkerProgress], request: TriggerRequest, options: TriggerOptions) -> tuple[str, ...]:
    """Return three lines on a request: the window, the workers `rows` that it is for, and when it expires."""
    whose = Text(
        "  no worker has reported its status yet; the first workers that start will serve this recording request"
    )
    if rows:
        target = f"{rows[0].worker.target} {rows[0].worker.release}".rstrip()
        names = _worker_names(rows)
        whose = Text("  the recording request goes to {workers} of {target}", workers=names, target=target)
    values = {"window": options.words, "turn": options.turns, "number": request.at}
    head = Text("requested a recording of {window} in {turn} {number}", **values)
    if options.dry_run:
        head = Text("would request a recording of {window} in {turn} {number}", **values)
    if options.at is None:
        head = Text("{request}, the first {turn} that no worker has reached yet", request=head, turn=options.turns)
    expiry = Text(
        "  recording request {id} expires in {duration}; workers look for such requests when a {turn} begins",
        id=request.id,
        duration=life.duration(options.expires),
        turn=options.turns,
    )
    return head, whose, expiry


def _worker_names(rows: Sequence[WorkerProgress]) -> str:
    """Return the names of up to `watching.MANY` workers, and the number of the others; "" without workers."""
    names = [row.worker.name for row in rows[: watching.MANY]]
    listed = joined(COMMA, names)
    more = len(rows) - watching.MANY
    return Text("{workers} and {count} more", workers=listed, count=more) if more > 0 else listed
