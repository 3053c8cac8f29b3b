"""``report`` and ``compare``: what the traces say, in the terminal, as JSON and as a page."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from patcher.commands import report_lines as lines
from patcher.errors import Kind, Problem, refused
from patcher.notes import wrapped
from patcher.report import Report
from patcher.traces import attribution, checks, findings, recipes
from patcher.traces import page as pages
from patcher.traces import sources as trace_files
from patcher.traces.compare import compared

if TYPE_CHECKING:
    from patcher.traces import model

PATIENCE_S = 300.0
"""How long msprof-analyze may neither compute nor write anything."""

MANY = 4
"""Captures from which on only the slowest is described."""


class ReadOptions(NamedTuple):
    """What of the traces is read, where the page goes, and whether msprof-analyze compares them, too."""

    units: tuple[int, int] | None = None
    page: Path | None = None
    vendor: bool = False


def report(paths: Sequence[Path], options: ReadOptions) -> Report:
    """What is known of the traces at ``paths``, which are ranks of one run; one that cannot be read is a problem."""
    told = Report("report")
    captures = findings.labelled(_captures(told, paths, options.units))
    if not captures:
        return told
    found = findings.reported(captures)
    if len({capture.rank for capture in captures}) < len(captures):
        why = "a rank stands for several captures, or one has none"
        told.note("who waits for whom is not said: these are not ranks of one window", why)
    told.data = found.as_json()
    told.lines += lines.verdict(found)
    slowest = max(found.captures, key=lambda one: (one.median_ns, one.host_median_ns))
    shown = found.captures if len(found.captures) <= MANY else (slowest,)
    for capture in shown:
        told.lines += ["", *lines.described(capture)]
    for finding in found.findings:
        told.lines += ["", *lines.finding_lines(finding)]
    if found.ranks:
        told.lines += ["", *lines.rank_table(found.ranks)]
    told.lines += lines.tables(slowest, many=len(found.captures) > 1)
    if len(found.captures) > 1:
        told.lines += [
            "",
            *wrapped(f"{slowest.label} is the slowest; -o FILE.html and --json have the others, too"),
        ]
    _write_page(told, options.page, functools.partial(_page, found))
    return told


def compare(before: Sequence[Path], after: Sequence[Path], options: ReadOptions, *, force: bool) -> Report:
    """What changed from the traces of one side to those of the other."""
    told = Report("compare")
    sides = [findings.labelled(_captures(told, paths, options.units)) for paths in (before, after)]
    if not all(sides):
        return told
    found = compared(*sides, force=force)
    told.data = found.as_json()
    if found.refused and not force:
        notes = found.refused[1:]
        told.problems.append(Problem(Kind.NOT_COMPARABLE, found.refused[0], hint=f"{_again('--force')}", notes=notes))
        return told
    told.lines += lines.comparison(found)
    if options.vendor:
        _compare_by_vendor(told, found)
    _write_page(told, options.page, functools.partial(_compared_page, found))
    return told


def _compare_by_vendor(told: Report, found: model.Comparison) -> None:
    """Hand the first capture of each side to msprof-analyze, and say what that left on disk."""
    exe = recipes.program("", "")
    sources = [Path(side.sources[0]) for side in (found.before, found.after)]
    if not exe:
        hint = "pip install msprof-analyze in an environment of its own, and put its folder on PATH"
        told.problems.append(Problem(Kind.ENVIRONMENT, "msprof-analyze is not installed", hint=hint))
        return
    made = recipes.compared(exe, *sources, patience=PATIENCE_S)
    if made.why:
        told.warn(f"msprof-analyze compare left no file: {made.why}")
    told.lines += ["", *(f"msprof-analyze compare wrote {file}" for file in made.files)]


def _captures(told: Report, paths: Sequence[Path], units: tuple[int, int] | None) -> Iterator[model.Capture]:
    """The captures of all traces at ``paths``; what cannot be read is a problem of the report, and the rest goes on."""
    for path in _traces(told, paths, trace_files.find):
        try:
            timeline = trace_files.read(path)
            made = attribution.attributed(timeline, units)
            numbers = [unit.number for unit in made.capture.units]
            if units is not None and not numbers:
                numbers = [unit.number for unit in attribution.attributed(timeline).capture.units]
        except Problem as problem:
            told.problems.append(problem)
            continue
        except PermissionError as error:
            told.problems.append(refused(error))
            continue
        except OSError as error:
            told.problems.append(_unreadable(path, error))
            continue
        if units is not None and not made.capture.units:
            cause = f"{path.name} has no unit in {units[0]}:{units[1]}"
            span = f"--units {min(numbers)}:{max(numbers) + 1} are all of them" if numbers else ""
            hint = span or "rlpatch traces shows what was recorded"
            told.problems.append(Problem(Kind.USAGE, cause, str(path), hint))
            continue
        capture = checks.checked(timeline, made)
        if not capture.units:
            cause = f"{path.name} holds no kernel, no operator and no mark of a unit"
            told.problems.append(Problem(Kind.NO_TRACE, cause, str(path), "rlpatch traces shows what was recorded"))
            continue
        yield capture


def _traces(told: Report, paths: Sequence[Path], find: Callable[[Path], list[Path]]) -> Iterable[Path]:
    found: dict[Path, None] = {}
    for path in paths:
        try:
            found.update(dict.fromkeys(find(path)))
        except Problem as problem:
            told.problems.append(problem)
        except PermissionError as error:
            told.problems.append(refused(error))
        except OSError as error:
            told.problems.append(_unreadable(path, error))
    return found


def _unreadable(path: Path, error: OSError) -> Problem:
    """What is said of a trace that its disk, or its name, does not let be read."""
    cause = f"{path.name} cannot be read: {error.strerror or error}"
    return Problem(Kind.ENVIRONMENT, cause, str(path), "copy it to another disk, and name the copy")


def _write_page(told: Report, file: Path | None, made: Callable[[], str]) -> None:
    """Write the page beside and over: whoever reads the old one meanwhile reads all of it."""
    if file is None:
        return
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(made(), encoding="utf-8")
        beside.replace(file)
    except PermissionError as error:
        told.problems.append(refused(error))
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()  # half of a page
        missing = not file.parent.exists()
        hint = f"mkdir -p {shlex.quote(str(file.parent))}" if missing else "name a file elsewhere: -o FILE.html"
        cause = f"{file} cannot be written: {error.strerror or error}"
        told.problems.append(Problem(Kind.ENVIRONMENT, cause, str(file), hint))
    else:
        told.done.append(f"wrote {file}")
        told.lines += ["", f"wrote {file}"]


def _page(found: model.Report) -> str:
    return pages.page(found)


def _compared_page(found: model.Comparison) -> str:
    return pages.compared(found)


def _again(option: str) -> str:
    return f"rlpatch {shlex.join(click.get_current_context().meta.get('typed', ()))} {option}"
