"""``trigger``: asking workers that were patched with ``--on-demand`` for a window, while they run."""

from __future__ import annotations

import functools
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from patcher.commands import watching
from patcher.commands.watching import Shown, WatchOptions
from patcher.config import UNITS, RolloutStage, Window, kind_of
from patcher.errors import Kind, Problem
from patcher.report import Report
from patcher.targets import versions
from patcher.workers import life, progress
from patcher.workers.folder import Filed, Folder
from patcher.workers.progress import AT_WORK, Row, Survey
from patcher.workers.request import Request
from patcher.workers.worker import Worker
from patches.projects import projects

EXPIRES_S = 86_400.0
"""After a day nobody thinks of a request any more."""


class TriggerOptions(NamedTuple):
    """What is asked: a window of ``unit`` with conditions (0: none) on ``ranks`` (None: all), of whom, and when.

    ``stage`` and ``target`` are "" where they follow from the unit; ``at`` is None for the next rollout or step.
    """

    unit: str
    window: str
    target: str = ""
    stage: str = ""
    ranks: tuple[int, ...] | None = (0,)
    load: int = 0
    tail: int = 0
    context: int = 0
    at: int | None = None
    expires: float = EXPIRES_S
    replace: bool = False
    dry_run: bool = False

    @property
    def conditions(self) -> str:
        """The conditions as they are typed."""
        given = {"load": self.load, "tail": self.tail, "context": self.context}
        return "".join(f" --at-{name} {value}" for name, value in given.items() if value)

    @property
    def words(self) -> str:
        """The window as it is typed."""
        return f"--{self.unit} {self.window}{self.conditions}"


def trigger(save_path: Path, options: TriggerOptions, wait: WatchOptions | None, shown: Shown) -> Report:
    """Ask for a window; with ``wait`` come back when every worker has served the request, or never will.

    Raises: Problem (USAGE, NO_WORKER, ENVIRONMENT) where nobody could take it, or where it cannot be written; then
    nothing is.
    """
    options = options._replace(window=window_of(options))
    folder, now = Folder(save_path.resolve()), time.time()
    try:
        found = progress.survey(folder, now)
    except OSError as error:
        raise watching.unreadable(folder, error) from None
    report = Report("trigger")
    living = _living(folder, found, options)
    rows = _taking(report, living, options)
    stage = rows[0].worker.stage
    request = _request(report, living, options, now)
    _refuse_pending(report, folder, found, stage, options)
    report.data = {
        "folder": str(folder.save_path), "stage": stage, "request": request.as_json(), "dry_run": options.dry_run,
        "takers": [{"host": row.worker.host, "rank": row.worker.rank, "pid": row.worker.pid} for row in rows],
    }  # fmt: skip
    report.lines += _said(rows, request, options)
    if options.dry_run:
        report.lines.append("next: the same without --dry-run")
        return report
    filed = _written(folder, stage, request)
    report.done.append(f"wrote {folder.file(stage)}")
    _look_again(report, folder, rows, request)
    if wait is None:
        report.lines.append(f"next: rlpatch watch {watching.quoted(folder.save_path)}")
    else:
        look = functools.partial(_look, taking=rows[0].worker, filed=filed)
        watching.watched(report, save_path, wait, shown, look)
    return report


def _look(folder: Folder, taking: Worker, filed: Filed) -> Survey:
    """How far the workers are that wait for requests as ``taking`` does."""

    def wanted(worker: Worker) -> bool:
        return worker.on_demand and (worker.stage, worker.target) == (taking.stage, taking.target)

    return progress.survey(folder, time.time(), wanted=wanted, asked=filed)


def window_of(options: TriggerOptions) -> str:
    """The window as it goes into the request; Problem (USAGE) for none, and for several.

    Behind a condition there is a decode step 0: the first one that is counted from then on.
    """
    if options.conditions and kind_of(options.unit) is not RolloutStage:
        cause = f"{options.conditions.strip()}: a training stage has neither requests nor context"
        raise Problem(Kind.USAGE, cause, hint=f"--{options.unit} {options.window}")
    window = Window.parse(options.unit, options.window)
    if window.later:
        cause = f"--{options.unit} {options.window}: a request asks for one window of a rollout or training step"
        raise Problem(Kind.USAGE, cause, hint=f"--{options.unit} {options.window.partition(',')[0]}, then the others")
    if not options.conditions:
        window.check()
    return str(window)


# ---------------------------------------------------------------- who takes it


def _living(folder: Folder, found: Survey, options: TriggerOptions) -> list[Row]:
    """The workers that take requests for the unit, all of one stage; Problem where there is none."""
    if not found.rows:
        raise watching.nobody(folder, found)
    rows = [row for row in found.rows if _of_target(row.worker, options.target)]
    if not rows:
        there = ", ".join(sorted({row.worker.target for row in found.rows}))
        hint = f"leave the target out, or name one of those that are there: {there}"
        raise Problem(Kind.NO_WORKER, f"no worker of {options.target} writes there", str(folder.save_path), hint)
    rows = _of_stage(rows, options)
    waiting = [row for row in rows if row.worker.on_demand]
    if not waiting:
        cause = f"the {_workers(rows)} of {rows[0].worker.stage} there take no requests"
        hint = "patch with --on-demand, and start the run again"
        raise Problem(Kind.NO_WORKER, cause, str(folder.save_path), hint)
    living = [row for row in waiting if not row.life.gone]
    if not living:
        last = life.duration(min(row.life.age for row in waiting))
        cause = f"nobody is left of the {_workers(waiting)} that took requests; the last word is {last} old"
        raise Problem(
            Kind.NO_WORKER, cause, str(folder.save_path), "start the run again; `rlpatch watch` shows its workers"
        )
    return living


def _taking(report: Report, living: Sequence[Row], options: TriggerOptions) -> list[Row]:
    """Those of the ranks that are meant; Problem (USAGE) where there is none."""
    asked = [row for row in living if options.ranks is None or row.worker.rank in options.ranks]
    there = ", ".join(map(str, sorted({row.worker.rank for row in living})))
    if not asked:
        wanted = ",".join(map(str, options.ranks or ()))
        cause = f"--ranks {wanted}: no such rank waits for a request"
        raise Problem(Kind.USAGE, cause, hint=f"--ranks all, or of those that wait: {there}")
    for rank in sorted(set(options.ranks or ()) - {row.worker.rank for row in living}):
        report.warn(f"rank {rank} does not wait for a request, and will leave no trace", f"those that wait: {there}")
    return asked


def _of_target(worker: Worker, word: str) -> bool:
    """Whether a worker is of the target, which may be named by a distribution, and with a version."""
    name, _, release = word.partition("==")
    wanted = versions.normalise(name)
    known = (one.name for one in projects() if wanted in map(versions.normalise, (one.name, *one.distributions)))
    return not word or (worker.target == next(known, wanted) and release in ("", worker.release))


def _of_stage(rows: Sequence[Row], options: TriggerOptions) -> list[Row]:
    """Those of the stage that is meant, and that count the unit; Problem (USAGE) where it is none, or several."""
    stages = sorted({row.worker.stage for row in rows})
    if options.stage and options.stage not in stages:
        cause = f"--stage {options.stage}: no worker of this stage writes there"
        raise Problem(Kind.USAGE, cause, hint=" or ".join(f"--stage {stage}" for stage in stages))
    of_stage = [row for row in rows if options.stage in ("", row.worker.stage)]
    fitting = [row for row in of_stage if row.worker.unit == options.unit]
    if not fitting:
        units = sorted({row.worker.unit for row in of_stage if row.worker.unit in UNITS})
        stage = options.stage or " and ".join(stages)
        cause = f"--{options.unit} {options.window}: the workers of {stage} were patched to count {' and '.join(units)}"
        hint = " or ".join(f"--{unit} {_moved(options.window, UNITS[unit].first)}" for unit in units)
        raise Problem(Kind.USAGE, cause, hint=hint or "rlpatch watch shows what the workers count")
    able = [row for row in fitting if row.worker.on_demand] or fitting
    several = sorted({row.worker.stage for row in able})
    if len(several) > 1:
        cause = f"{options.words}: {' and '.join(several)} count this unit"
        raise Problem(Kind.USAGE, cause, hint=" or ".join(f"--stage {stage}" for stage in several))
    return [row for row in fitting if row.worker.stage == several[0]]


def _moved(window: str, first: int) -> str:
    """The window ``A:B``, if it has to begin later, as far as that lets it be one."""
    begin, _, end = window.partition(":")
    begins = max(int(begin), first)
    return f"{begins}:{max(int(end), begins + 1) if end else ''}"


# ---------------------------------------------------------------- the request


def _request(report: Report, rows: Sequence[Row], options: TriggerOptions, now: float) -> Request:
    worker = rows[0].worker
    heard = [row for row in rows if not row.life.silent]
    for row in rows:
        if row.life.silent:
            report.warn(f"{row.worker.name} may be gone: {row.life.words}", "how far it is was not counted")
    turns = [row.worker.turn for row in heard or rows if row.worker.turn is not None]
    begin = 0 if kind_of(options.unit) is RolloutStage else 1
    following = max(turns, default=begin - 1) + 1
    at = following if options.at is None else options.at
    if at < following:
        cause = f"--at {at}: it is too late, for a worker is in {worker.turns} {following - 1}"
        raise Problem(Kind.USAGE, cause, hint=f"--at {following}, or leave it out")
    if turns and min(turns) < max(turns):
        report.note(f"the workers are at {worker.turns}s {min(turns)} to {max(turns)}")
    ranks = "all" if options.ranks is None else ",".join(map(str, options.ranks))
    return Request(
        id=secrets.token_hex(6), window=options.window, ranks=ranks, at=at, load=options.load, tail=options.tail,
        context=options.context, expires=now + options.expires,
    )  # fmt: skip


def _refuse_pending(report: Report, folder: Folder, found: Survey, stage: str, options: TriggerOptions) -> None:
    """Raise Problem where a request is still to be served; say what becomes of one that nobody will serve."""
    file = folder.file(stage)
    for one in found.skipped:
        if one.file == file:
            report.warn("what lies in the place of the request is none, and goes", f"{file}: {one.why}")
    before = found.requests.get(stage)
    if before is None:
        return
    request = before.request
    left = [row for row in found.rows if row.worker.stage == stage and row.worker.on_demand and row.outcome == AT_WORK]
    named = f"{request.window} of {'rollout' if options.unit in _ROLLOUT else 'training step'} {request.at}"
    if left and not options.replace:
        cause = f"request {request.id} ({named}) is still to be served by {_named(left)}"
        hint = "wait for it with `rlpatch watch`, or take its place: the same with --replace"
        raise Problem(Kind.ENVIRONMENT, cause, str(file), hint)
    served = [row for row in found.rows if row.worker.stage == stage and row.outcome == progress.DONE]
    if left:
        report.warn(f"request {request.id} ({named}) goes unserved by {_named(left)}")
    elif not served:
        report.note(f"the request before ({named}) was served by nobody")


_ROLLOUT = tuple(unit.name for unit in RolloutStage.UNITS)


def _written(folder: Folder, stage: str, request: Request) -> Filed:
    try:
        file = folder.write(stage, request)
        return Filed(request, os.lstat(file).st_mtime)
    except OSError as error:
        cause = f"the request cannot be written: {error.strerror or error}"
        closed = "ask as the user of the run, or let yours write there"
        hint = (
            closed if isinstance(error, PermissionError) else "nothing was asked: make room for it, and the same again"
        )
        raise Problem(Kind.ENVIRONMENT, cause, str(folder.file(stage)), hint) from None


def _look_again(report: Report, folder: Folder, rows: Sequence[Row], request: Request) -> None:
    """Say who has begun the rollout that is meant before the request was there: such a worker looks no more in it."""
    taking = {(row.worker.place, row.worker.pid) for row in rows}
    now = [worker for worker in folder.read().workers if (worker.place, worker.pid) in taking]
    late = [one for one in now if one.turn is not None and one.turn >= request.at and one.request != request.id]
    if late:
        names = ", ".join(one.name for one in late[: watching.MANY])
        begun = f"{late[0].turns} {request.at} began meanwhile on {names}"
        report.warn(begun, "who looked before the request was there leaves no trace: --replace asks for the next one")


def _said(rows: Sequence[Row], request: Request, options: TriggerOptions) -> list[str]:
    worker = rows[0].worker
    of = f"{worker.turns} {request.at}"
    after = ", the one after the furthest that a worker is in" if options.at is None else ""
    would = "would ask" if options.dry_run else "asked"
    expires = f"which expires in {life.duration(options.expires)}"
    return [
        f"{would} for {options.words} in {of}{after}",
        f"  of {_named(rows)}, {worker.target} {worker.release}".rstrip(),
        f"  request {request.id}, {expires}; a worker looks for it where a {worker.turns} begins",
    ]


def _named(rows: Sequence[Row]) -> str:
    names = [row.worker.name for row in rows[: watching.MANY]]
    more = f" and {len(rows) - watching.MANY} more" if len(rows) > watching.MANY else ""
    return ", ".join(names) + more


def _workers(rows: Sequence[Row]) -> str:
    return "1 worker" if len(rows) == 1 else f"{len(rows)} workers"
