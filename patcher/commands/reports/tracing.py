"""``traces`` and ``analyse``: what was recorded, and the offline parsing of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from patcher.messages.errors import Kind, Problem
from patcher.messages.notes import wrapped
from patcher.messages.report import CommandResult, Detail
from patcher.targets import interpreters
from patcher.traces import folders
from patcher.traces.folders import RecordedTrace, TraceGroup, states
from patcher.traces.model import Payload
from patcher.traces.tools import parsing, recipes
from patcher.traces.tools.parsing import ParseResult
from patcher.traces.tools.recipes import RecipeResult
from patcher.traces.tools.viewers import ANALYZE, Viewer, viewers
from patcher.traces.words import spread, uncounted_between


class ParseOptions(NamedTuple):
    """How traces are parsed: ``exports`` of text and db, none for those requested when they were recorded."""

    python: str | None = None
    exports: tuple[str, ...] = ()
    jobs: int | None = None
    patience: float = 600.0
    advise: bool = False
    modules: bool = False
    analyze: str = ""


class Progress(Protocol):
    """What the user sees while it works: how many things are to be done, what is at work, and what is done."""

    def begin(self, what: str, total: int) -> None:
        """So many things follow."""

    def at_work(self, names: Sequence[str]) -> None:
        """These are being done."""

    def done(self, line: str) -> None:
        """One is done."""


@dataclass(frozen=True, slots=True)
class Listing(Payload):
    """The result of ``traces``."""

    folder: str
    captures: tuple[TraceGroup, ...]


def traces(folder: Path) -> CommandResult:
    """List what lies in ``folder``, group by group; ``lines`` are those below the table.

    Raises: Problem (NO_TRACE) where there is no such folder.
    """
    found = recorded(folder)
    report = CommandResult("traces", data=Listing(str(folder), tuple(found)).as_json())
    if not found:
        report.note("no trace of any tool lies here", f"looked in {folder} and all below it")
    for number, group in enumerate(found, 1):
        for trace in group.traces:
            _warn_of_doubts(report, trace)
        report.lines += _below_table(number, group)
    return report


def _warn_of_doubts(report: CommandResult, trace: RecordedTrace) -> None:
    for doubt in trace.doubts:
        report.warn(f"{trace.path.name}: {doubt}", str(trace.path))


def recorded(folder: Path) -> list[TraceGroup]:
    """The groups of traces below a folder that the user named."""
    if not folder.exists():
        hint = "the log of the run and `rlpatch status` name the folder of the traces"
        raise Problem(Kind.NO_TRACE, f"{folder} does not exist", hint=hint)
    return folders.trace_groups(Path(folder).resolve())


def _below_table(number: int, group: TraceGroup) -> Iterator[str]:
    """The next command for one group, and with -v what is wrong with each of its traces."""
    for trace in group.traces:
        if trace.why:
            yield Detail(f"  {number}  {trace.path.name}: {trace.why}")
    if group.closed not in ("", "complete"):
        yield f"  {number}  closed early: {group.closed}"
    if group.uncounted:
        yield f"  {number}  {uncounted_between(group.uncounted)}"
    nothing = group.first.why if group.state == states.FOREIGN else f"record again: {states.STATES[group.state]}"
    yield f"  {number}  {f'next: {group.next_command}' if group.next_command else nothing}"


# ---------------------------------------------------------------- analyse


@dataclass(frozen=True, slots=True)
class UnitContents(Payload):
    """The contents of the units of one trace that can be read now: the least and the most of each."""

    path: Path
    asked: str
    contents: Mapping[str, tuple[int, int]]
    uncounted: Mapping[int, int]
    doubts: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """As promised, with a key for each of the contents."""
        contents = {name: list(ends) for name, ends in self.contents.items()}
        rest = {"uncounted": dict(self.uncounted), "doubts": list(self.doubts)}
        return {"path": str(self.path), "asked": self.asked, **contents, **rest}


@dataclass(frozen=True, slots=True)
class Analysed(Payload):
    """The result of ``analyse``."""

    folder: Path
    parsed: tuple[ParseResult, ...]
    recipes: tuple[RecipeResult, ...]
    opens: tuple[Viewer, ...]
    held: tuple[UnitContents, ...]


def analyse(
    folder: Path, options: ParseOptions, shown: Callable[[], AbstractContextManager[Progress]]
) -> CommandResult:
    """Parse what torch_npu recorded in ``folder``, run the recipes of msprof-analyze, and look at what is there.

    Raises: Problem (NO_TRACE, USAGE, ENVIRONMENT) where nothing can be begun, INTERRUPTED by the keyboard.
    """
    report = CommandResult("analyse")
    every = [trace for group in recorded(folder) for trace in group.traces]
    npu, torch = _of_form(every, "npu"), _of_form(every, "torch")
    todo = [trace for trace in npu if _to_parse(trace, options.exports)]
    _report_left_out(report, every, todo, options.exports)
    program = _interpreter(options, todo)
    with shown() as screen:
        parsed = _parse(report, [trace.path for trace in todo], program, options, screen) if todo else []
        after = [trace for trace in (folders.inspect(trace.path) for trace in npu) if trace.exports]
        left = _run_recipes(report, after, program, options, screen) if after and not report.problems else []
    ready = [*after, *torch]
    opened = tuple(viewers(ready))
    report.lines += itertools.chain.from_iterable(map(_viewer_lines, opened))
    contents = tuple(_contents(report, trace) for trace in ready)
    report.data = Analysed(folder.resolve(), tuple(parsed), tuple(left), opened, contents).as_json()
    if ready:
        report.lines.append(f"next: rlpatch report {shlex.quote(str(folders.common(trace.path for trace in ready)))}")
    return report


def _of_form(traces: Iterable[RecordedTrace], form: str) -> list[RecordedTrace]:
    return [trace for trace in traces if trace.form == form]


def _contents(report: CommandResult, trace: RecordedTrace) -> UnitContents:
    """The contents of the units of a trace by its metadata, reported, as is in what this contradicts it."""
    _warn_of_doubts(report, trace)
    contents, uncounted = {}, {}
    if trace.metadata:
        contents = {name: (min(values), max(values)) for name, values in trace.metadata.contents.items()}
        uncounted = trace.metadata.uncounted
    window = trace.asked
    if contents:
        ranges = ", ".join(f"{name} {spread(*ends)}" for name, ends in contents.items())
        report.lines += wrapped(f"{trace.path.name} holds {window}: {ranges}")
    if uncounted:
        report.lines.append(f"  {uncounted_between(uncounted)}")
    return UnitContents(trace.path, window, contents, uncounted, trace.doubts)


def _to_parse(trace: RecordedTrace, exports: tuple[str, ...]) -> bool:
    if trace.state in (states.NOT_PARSED, states.HALF_PARSED):
        return trace.raw
    return trace.state in (states.WHOLE, states.FOREIGN) and trace.raw and not set(exports) <= set(trace.exports)


def _report_left_out(
    report: CommandResult, every: Sequence[RecordedTrace], todo: Sequence[RecordedTrace], exports: tuple[str, ...]
) -> None:
    """Report for each trace that is not parsed why that is so."""
    torch = _of_form(every, "torch")
    if torch:
        are = "1 trace of torch.profiler needs" if len(torch) == 1 else f"{len(torch)} traces of torch.profiler need"
        report.note(f"{are} no parsing", "\n".join(str(trace.path) for trace in torch))
    for trace in every:
        if trace in todo or trace.form == "torch":
            continue
        readable = trace.state in (states.WHOLE, states.FOREIGN)
        if trace.form == "other":
            report.note(f"left alone: {trace.why}", str(trace.path))
        elif readable and set(exports) <= set(trace.exports):
            report.lines.append(f"already parsed  {trace.path.name}: {', '.join(trace.exports)}")
        elif readable or trace.state == states.HALF_PARSED:
            report.warn("cannot be parsed again: what was recorded is no longer there", str(trace.path))
        else:
            report.warn(f"{trace.state}, and not parsed: {trace.why}", str(trace.path))
    if not every:
        report.note("no trace of any tool lies here")


def _interpreter(options: ParseOptions, todo: Sequence[RecordedTrace]) -> str:
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


def _parse(
    report: CommandResult, paths: Sequence[Path], program: str, options: ParseOptions, screen: Progress
) -> list[ParseResult]:
    ended: list[ParseResult] = []

    def done(one: ParseResult) -> None:
        ended.append(one)
        line = f"{one.ended}  {one.path.name}: {one.why or ', '.join(one.exports)} ({one.seconds:.0f} s)"
        report.lines.append(line)
        screen.done(line)

    screen.begin("parsing", len(paths))
    with _stopped(lambda: f"{len(ended)} of {len(paths)} traces are parsed, and the others are as before"):
        parsing.parse(
            paths, program, ",".join(options.exports), jobs=options.jobs or _jobs(), patience=options.patience,
            done=done, at_work=lambda working: screen.at_work([path.name for path in working]),
        )  # fmt: skip
    for one in ended:
        _report_parsed(report, one, options.exports)
    return ended


def _report_parsed(report: CommandResult, one: ParseResult, exports: tuple[str, ...]) -> None:
    """A problem where a parsing failed, or a part of it."""
    lacking = " and no ".join(sorted(set(exports) - set(one.exports)))
    logs = one.path / "logs"
    if one.ended != parsing.DONE:
        kind = Kind.ROLLED_BACK if one.ended == parsing.BACK else Kind.UNEXPECTED
        report.problems.append(Problem(kind, one.why, str(one.path), f"what torch_npu wrote: {logs}", one.said))
    elif lacking and one.said:
        cause = f"torch_npu left no {lacking}, and says that a part of it failed"
        hint = f"look whether the disk is full, and at what torch_npu wrote: {logs}"
        report.problems.append(Problem(Kind.UNEXPECTED, cause, str(one.path), hint, one.said))
    elif lacking:
        cause = f"torch_npu left no {lacking}: its analyse() exports what was recorded for"
        report.warn(cause, f"record with `rlpatch apply … --export-type db,text`: {one.path}")


def _jobs() -> int:
    """A parser is one process that starts others for a while: half of the cores keep all of them busy."""
    return max((os.cpu_count() or 1) // 2, 1)


@contextlib.contextmanager
def _stopped(how: Callable[[], str]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Problem(Kind.INTERRUPTED, f"stopped: {how()}", hint="the same command goes on") from None


def _run_recipes(
    report: CommandResult, traces: Sequence[RecordedTrace], python: str, options: ParseOptions, screen: Progress
) -> list[RecipeResult]:
    exe = recipes.program(options.analyze, python)
    if not exe:
        if options.advise or options.modules:
            hint = "pip install msprof-analyze in an environment of its own, and name it: --msprof-analyze EXE"
            report.problems.append(Problem(Kind.ENVIRONMENT, "msprof-analyze is not installed", hint=hint))
        else:
            report.note("msprof-analyze was not found: its recipes were left out", "--msprof-analyze EXE names it")
        return []
    own = next(viewer for viewer in viewers(traces) if viewer.program == ANALYZE)
    if own.mixed:
        cause = "msprof-analyze was left out: several windows lie here, and it would mix them"
        report.warn(cause, "\n".join(own.lacks))
        return []
    exports = {export for trace in traces for export in trace.exports}
    names = recipes.chosen(exports, modules=options.modules, advise=options.advise)
    if "db" not in exports:
        report.note("most recipes of msprof-analyze read a database: --export text,db")
    left: list[RecipeResult] = []

    def done(one: RecipeResult) -> None:
        left.append(one)
        line = f"{one.recipe}: {', '.join(map(str, one.files)) or f'left nothing: {one.why}'}"
        report.lines.append(line)
        screen.done(line)

    screen.begin("msprof-analyze", len(names))
    with _stopped(lambda: f"the traces are parsed, and {len(left)} of {len(names)} recipes are done"):
        recipes.run(exe, own.where, names, patience=options.patience, done=done)
    return left


def _viewer_lines(viewer: Viewer) -> Iterator[str]:
    yield f"opens in {viewer.program} ({viewer.how}):"
    yield f"  {viewer.where}"
    for reason in viewer.lacks:
        yield from wrapped(f"but {reason}", "  ", "    ")
    for file in viewer.files:
        there = "is there" if file.there else "is missing"
        yield Detail(f"  {file.trace.name}: {file.name} {there}, for {file.shows}")
