"""``traces`` and ``analyse``: what was recorded, and the offline parsing of it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from patcher.errors import Kind, Problem
from patcher.notes import wrapped
from patcher.report import Detail, Report
from patcher.targets import interpreters
from patcher.traces import facts as telling
from patcher.traces import folders, npu_folders, opens, parsing, recipes, states
from patcher.traces.folders import Capture
from patcher.traces.states import Trace

if TYPE_CHECKING:
    from patcher.traces.parsing import Told
    from patcher.traces.recipes import Left


class ParseOptions(NamedTuple):
    """How traces are parsed: ``exports`` of text and db, none for what was asked for when they were recorded."""

    python: str | None = None
    exports: tuple[str, ...] = ()
    jobs: int | None = None
    patience: float = 600.0
    advise: bool = False
    modules: bool = False
    analyze: str = ""


class Shown(Protocol):
    """What the user sees while it works: how many things are to be done, what is at work, and what is done."""

    def begin(self, what: str, total: int) -> None:
        """So many things follow."""

    def at_work(self, names: Sequence[str]) -> None:
        """These are being done."""

    def done(self, line: str) -> None:
        """One is done."""


def traces(folder: Path) -> Report:
    """What lies in ``folder``, capture by capture. Raises: Problem (NO_TRACE) where there is no such folder."""
    found = recorded(folder)
    report = Report("traces", data={"folder": str(folder), "captures": [_row(capture) for capture in found]})
    if not found:
        report.note("no trace of any tool lies here", f"looked in {folder} and all below it")
    for trace in (trace for capture in found for trace in capture.traces):
        _doubt(report, trace)
    return report


def _doubt(report: Report, trace: Trace) -> None:
    """Say in what the facts beside a trace contradict it."""
    for doubt in trace.doubts:
        report.warn(f"{trace.path.name}: {doubt}", str(trace.path))


def recorded(folder: Path) -> list[Capture]:
    """The captures below a folder that the user named."""
    if not folder.exists():
        cause = f"{folder} does not exist"
        raise Problem(
            Kind.NO_TRACE, cause, hint="the log of the run and `rlpatch status` name the folder of the traces"
        )
    return folders.captures(Path(folder).resolve())


def said(report: Report) -> list[str]:
    """What is said below the table: the next command of each capture, and with -v what is wrong with each trace."""
    rows: Any = report.data["captures"]
    lines: list[str] = []
    for number, row in enumerate(rows, 1):
        wrong = [trace for trace in row["traces"] if trace["why"]]
        lines += [Detail(f"  {number}  {Path(trace['path']).name}: {trace['why']}") for trace in wrong]
        if row["closed"] not in ("", "complete"):
            lines.append(f"  {number}  closed early: {row['closed']}")
        if row["uncounted"]:
            lines.append(f"  {number}  {telling.lying_between(row['uncounted'])}")
        lines.append(f"  {number}  next: {row['next']}" if row["next"] else f"  {number}  {_nothing(row)}")
    return lines


def _nothing(row: Any) -> str:
    if row["state"] == states.FOREIGN:
        return str(row["traces"][0]["why"])
    return f"record again: {states.STATES[row['state']]}"


def _row(capture: Capture) -> dict[str, Any]:
    first = capture.first
    units = capture.steps
    return {
        "target": first.target, "release": first.release, "stage": first.stage, "role": first.role,
        "rollout": first.rollout, "step": first.step, "form": first.form, "ours": first.ours,
        "asked": first.said or window(first.asked), "got": _got(capture),
        "units": None if units is None else list(units), "uncounted": _between(capture), "closed": _closed(capture),
        "ranks": ranks(capture), "ranks_found": list(capture.found), "state": capture.state, "size": capture.size,
        "next": capture.command, "traces": [_trace(trace) for trace in capture.traces],
    }  # fmt: skip


def _trace(trace: Trace) -> dict[str, Any]:
    return {
        "path": str(trace.path), "state": trace.state, "why": trace.why, "size": trace.size, "host": trace.host,
        "replica": trace.replica, "rank": trace.rank, "pid": trace.pid, "exports": list(trace.exports),
        "ended": trace.ended, "facts": dict(trace.facts), "doubts": list(trace.doubts),
    }  # fmt: skip


def _got(capture: Capture) -> str:
    """The units that are there. Behind a condition each replica's lie elsewhere: then only their number is common."""
    if len({trace.asked for trace in capture.traces}) == 1:
        return got(capture.steps, capture.first.asked)
    counts = {len(trace.steps) for trace in capture.traces if trace.steps is not None}
    return " to ".join(map(str, sorted({min(counts), max(counts)}))) + " units each" if counts else ""


def _closed(capture: Capture) -> str:
    """Why the window was closed, by the facts: complete, or why the first rank that is not; "" where none tells."""
    said = [word for trace in capture.traces if (word := telling.closed(trace.facts))]
    return next((word for word in said if word != "complete"), said[0] if said else "")


def _between(capture: Capture) -> dict[int, int]:
    """How many uncounted iterations lie before which unit, in the rank that has most of them."""
    return max((telling.between(trace.facts) for trace in capture.traces), key=lambda found: sum(found.values()))


def window(asked: tuple[int, int | None] | None) -> str:
    """A window as it is typed; "" where nobody knows."""
    return "" if asked is None else f"{asked[0]}:{'' if asked[1] is None else asked[1]}"


def got(units: Iterable[int] | None, asked: tuple[int, int | None] | None) -> str:
    """The units that are there, as a window where they are one; "" where nobody knows, "none" for none."""
    if units is None:
        return ""
    numbers = sorted(units)
    if not numbers:
        return "none"
    first, end = numbers[0], numbers[-1] + 1
    text = f"{first}:{end}"
    if len(numbers) < end - first:
        return f"{text} ({len(numbers)} units)"
    if asked and asked[1] is not None and (first, end) != asked:
        return f"{text} ({len(numbers)} of {asked[1] - asked[0]})"
    return text


def ranks(capture: Capture) -> str:
    """The ranks that left a trace, and how many there should be where that was written down."""
    numbers = capture.found
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)
    asked, world = capture.first.ranks, capture.first.world
    if asked and asked != "all":
        listed = {int(rank) for rank in asked.split(",") if rank.isdecimal() and len(rank) < 10}
        missing = {rank for rank in listed if not world or rank < world} - set(numbers)
        return f"{text or 'none'} of {asked}" if missing else text
    if world and world > len(numbers):
        return f"{text or 'none'} of {world}"
    return text


# ---------------------------------------------------------------- analyse


def analyse(folder: Path, options: ParseOptions, shown: Callable[[], AbstractContextManager[Shown]]) -> Report:
    """Parse what torch_npu recorded in ``folder``, run the recipes of msprof-analyze, and look at what is there.

    Raises: Problem (NO_TRACE, USAGE, ENVIRONMENT) where nothing can be begun, INTERRUPTED by the keyboard.
    """
    report = Report("analyse")
    every = [trace for capture in recorded(folder) for trace in capture.traces]
    folder = folder.resolve()
    wanted = [trace for trace in every if trace.form == "npu"]
    todo = [trace for trace in wanted if _to_parse(trace, options.exports)]
    _left_out(report, every, todo, options.exports)
    told: list[Told] = []
    left: list[Left] = []
    program = _interpreter(options, todo)
    with shown() as screen:
        if todo:
            told = _parsed(report, [trace.path for trace in todo], program, options, screen)
        after = [trace for trace in (folders.look(trace.path) for trace in wanted) if trace.exports]
        if after and not report.problems:
            left = _recipes(report, after, program, options, screen)
    torch = [trace for trace in every if trace.form == "torch"]
    report.data = {
        "folder": str(folder),
        "parsed": [{**one._asdict(), "path": str(one.path), "exports": npu_folders.exported(one.path)} for one in told],
        "recipes": [{**one._asdict(), "files": [str(file) for file in one.files]} for one in left],
        "opens": list(_opened(report, [*after, *torch])),
        "held": [_held(report, trace) for trace in (*after, *torch)],
    }
    if after or torch:
        ready = folders.common(trace.path for trace in [*after, *torch])
        report.lines.append(f"next: rlpatch report {_quoted(ready)}")
    return report


def _held(report: Report, trace: Trace) -> dict[str, Any]:
    """What the facts of a trace that can be read now tell of its units; said, as is in what they contradict it."""
    _doubt(report, trace)
    held = {name: [min(values), max(values)] for name, values in telling.held(trace.facts).items()}
    uncounted = telling.between(trace.facts)
    asked = trace.said or window(trace.asked)
    if held:
        words = ", ".join(f"{name} {telling.spread(*values)}" for name, values in held.items())
        report.lines += wrapped(f"{trace.path.name} holds {asked}: {words}")
    if uncounted:
        report.lines.append(f"  {telling.lying_between(uncounted)}")
    return {"path": str(trace.path), "asked": asked, **held, "uncounted": uncounted, "doubts": list(trace.doubts)}


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _to_parse(trace: Trace, exports: tuple[str, ...]) -> bool:
    if trace.state in (states.NOT_PARSED, states.HALF_PARSED):
        return trace.raw
    return trace.state in (states.WHOLE, states.FOREIGN) and trace.raw and not set(exports) <= set(trace.exports)


def _left_out(report: Report, every: Sequence[Trace], todo: Sequence[Trace], exports: tuple[str, ...]) -> None:
    """Say of each trace that is not parsed why that is so."""
    torch = [trace for trace in every if trace.form == "torch"]
    if torch:
        are = "1 trace of torch.profiler needs" if len(torch) == 1 else f"{len(torch)} traces of torch.profiler need"
        report.note(f"{are} no parsing", "\n".join(str(trace.path) for trace in torch))
    for trace in every:
        if trace in todo or trace.form == "torch":
            continue
        if trace.form == "other":
            report.note(f"left alone: {trace.why}", str(trace.path))
        elif trace.state in (states.WHOLE, states.FOREIGN) and set(exports) <= set(trace.exports):
            report.lines.append(f"already parsed  {trace.path.name}: {', '.join(trace.exports)}")
        elif trace.state in (states.WHOLE, states.FOREIGN, states.HALF_PARSED):
            report.warn("cannot be parsed again: what was recorded is no longer there", str(trace.path))
        else:
            report.warn(f"{trace.state}, and not parsed: {trace.why}", str(trace.path))
    if not every:
        report.note("no trace of any tool lies here")


def _interpreter(options: ParseOptions, todo: Sequence[Trace]) -> str:
    """The program of the target's interpreter; "" where nothing has to be parsed and none was named."""
    if not todo:
        return interpreters.executable(options.python) if options.python else ""
    found = _with_torch_npu(options.python)
    if any(any(trace.path.glob("PROF_*")) for trace in todo) and not shutil.which("msprof"):
        cause = "CANN's msprof is not on PATH, and torch_npu parses with it what the device recorded"
        hint = "source /usr/local/Ascend/ascend-toolkit/set_env.sh, and the same again"
        raise Problem(Kind.ENVIRONMENT, cause, hint=hint)
    return found


def _with_torch_npu(python: str | None) -> str:
    package = "torch_npu"
    hint = "name the Python of the environment in which it was recorded: rlpatch analyse DIR --python EXE"
    if python:
        program = interpreters.executable(python)
        if package not in interpreters.ask(python, [package], f"--python {python}").found:
            raise Problem(Kind.ENVIRONMENT, f"{package} is not installed there", program, hint)
        return program
    searched = []
    environment = interpreters.running([package])
    if package in environment.found:
        return sys.executable
    searched.append(f"{environment.name}: no {package}")
    for name, exe in interpreters.others():
        try:
            if package in interpreters.ask(exe, [package], name).found:
                return interpreters.executable(exe)
            searched.append(f"{name}: no {package}")
        except Problem as problem:
            searched.append(f"{name}: {problem.cause}")
    cause = f"{package} is in none of the environments that were looked at"
    raise Problem(Kind.ENVIRONMENT, cause, hint=hint, notes=tuple(searched))


def _parsed(report: Report, paths: Sequence[Path], program: str, options: ParseOptions, screen: Shown) -> list[Told]:
    ended: list[Told] = []

    def told(one: Told) -> None:
        ended.append(one)
        why = f": {one.why}" if one.why else f": {', '.join(npu_folders.exported(one.path))}"
        line = f"{one.ended}  {one.path.name}{why} ({one.seconds:.0f} s)"
        report.lines.append(line)
        screen.done(line)

    screen.begin("parsing", len(paths))
    with _stopped(lambda: f"{len(ended)} of {len(paths)} traces are parsed, and the others are as before"):
        parsing.parse(
            paths, program, ",".join(options.exports), jobs=options.jobs or _jobs(), patience=options.patience,
            told=told, at_work=lambda working: screen.at_work([path.name for path in working]),
        )  # fmt: skip
    for one in ended:
        lacking = set(options.exports) - set(npu_folders.exported(one.path))
        if one.ended != parsing.DONE:
            kind = Kind.ROLLED_BACK if one.ended == parsing.BACK else Kind.UNEXPECTED
            hint = f"what torch_npu wrote: {one.path / 'logs'}"
            report.problems.append(Problem(kind, one.why, str(one.path), hint, one.said))
        elif lacking and one.said:
            cause = f"torch_npu left no {' and no '.join(sorted(lacking))}, and says that a part of it failed"
            hint = f"look whether the disk is full, and at what torch_npu wrote: {one.path / 'logs'}"
            report.problems.append(Problem(Kind.UNEXPECTED, cause, str(one.path), hint, one.said))
        elif lacking:
            cause = f"torch_npu left no {' and no '.join(sorted(lacking))}: its analyse() exports what was recorded for"
            report.warn(cause, f"record with `rlpatch apply … --export-type db,text`: {one.path}")
    return ended


def _jobs() -> int:
    """A parser is one process that starts others for a while: half of the cores keep all of them busy."""
    return max((os.cpu_count() or 1) // 2, 1)


@contextlib.contextmanager
def _stopped(how: Callable[[], str]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Problem(Kind.INTERRUPTED, f"stopped: {how()}", hint="the same command goes on") from None


def _recipes(report: Report, traces: Sequence[Trace], python: str, options: ParseOptions, screen: Shown) -> list[Left]:
    exe = recipes.program(options.analyze, python)
    if not exe:
        if options.advise or options.modules:
            hint = "pip install msprof-analyze in an environment of its own, and name it: --msprof-analyze EXE"
            report.problems.append(Problem(Kind.ENVIRONMENT, "msprof-analyze is not installed", hint=hint))
        else:
            report.note("msprof-analyze was not found: its recipes were left out", "--msprof-analyze EXE names it")
        return []
    where = folders.common(trace.path for trace in traces)
    mixed = [lack for one in opens.opens(traces) if one.program == opens.ANALYZE for lack in one.lacks]
    if any("more than once" in lack for lack in mixed):
        report.warn("msprof-analyze was left out: several windows lie here, and it would mix them", "\n".join(mixed))
        return []
    exports = {export for trace in traces for export in trace.exports}
    names = recipes.chosen(exports, modules=options.modules, advise=options.advise)
    if "db" not in exports:
        report.note("most recipes of msprof-analyze read a database: --export text,db")

    left: list[Left] = []

    def told(one: Left) -> None:
        left.append(one)
        what = ", ".join(str(file) for file in one.files) or f"left nothing: {one.why}"
        report.lines.append(f"{one.recipe}: {what}")
        screen.done(report.lines[-1])

    screen.begin("msprof-analyze", len(names))
    with _stopped(lambda: f"the traces are parsed, and {len(left)} of {len(names)} recipes are done"):
        recipes.run(exe, where, names, patience=options.patience, told=told)
    return left


def _opened(report: Report, traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    for one in opens.opens(traces):
        report.lines += [f"opens in {one.program} ({one.how}):", f"  {one.where}"]
        report.lines += [line for lack in one.lacks for line in wrapped(f"but {lack}", "  ", "    ")]
        for look in one.looks:
            there = "is there" if look.there else "is missing"
            report.lines.append(Detail(f"  {look.trace.name}: {look.part.name} {there}, for {look.part.shows}"))
        yield {
            "program": one.program, "where": str(one.where), "how": one.how, "lacks": list(one.lacks),
            "files": [
                {"trace": str(look.trace), "name": look.part.name, "there": look.there, "shows": look.part.shows}
                for look in one.looks
            ],
        }  # fmt: skip
