"""``report`` and ``compare``: what the traces say, in the terminal, as JSON and as a page."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from patcher.commands.reports import report_lines as lines
from patcher.messages.errors import Kind, Problem, refused
from patcher.messages.report import CommandResult
from patcher.traces import analysis, folders, formats, page
from patcher.traces.tools import recipes

if TYPE_CHECKING:
    from patcher.traces import model

PATIENCE_S = 300.0
"""How long msprof-analyze may neither compute nor write anything."""


class ReadOptions(NamedTuple):
    """What of the traces is read, where the page goes, and whether msprof-analyze compares them, too."""

    units: tuple[int, int] | None = None
    page: Path | None = None
    vendor: bool = False


def report(paths: Sequence[Path], options: ReadOptions) -> CommandResult:
    """What is known of the traces at ``paths``, which are ranks of one run; one that cannot be read is a problem."""
    result = CommandResult("report")
    profiles = analysis.labelled(_profiles(result, paths, options.units))
    if not profiles:
        return result
    found = analysis.reported(profiles)
    if len({profile.rank for profile in profiles}) < len(profiles):
        why = "a rank stands for several captures, or one has none"
        result.note("who waits for whom is not said: these are not ranks of one window", why)
    result.data = found.as_json()
    result.lines += lines.report(found)
    _write_page(result, options.page, lambda: page.page(found))
    return result


def compare(before: Sequence[Path], after: Sequence[Path], options: ReadOptions, *, force: bool) -> CommandResult:
    """What changed from the traces of one side to those of the other."""
    result = CommandResult("compare")
    sides = [analysis.labelled(_profiles(result, paths, options.units)) for paths in (before, after)]
    if not all(sides):
        return result
    found = analysis.compared(*sides, force=force)
    result.data = found.as_json()
    if found.refused and not force:
        first, *others = found.refused
        again = f"rlpatch {shlex.join(click.get_current_context().meta.get('typed', ()))} --force"
        result.problems.append(Problem(Kind.NOT_COMPARABLE, first, hint=again, notes=tuple(others)))
        return result
    result.lines += lines.comparison(found)
    if options.vendor:
        _compare_by_vendor(result, found)
    _write_page(result, options.page, lambda: page.compared(found))
    return result


def _compare_by_vendor(result: CommandResult, found: model.Comparison) -> None:
    """Hand the first profile of each side to msprof-analyze, and report the files that it leaves."""
    exe = recipes.program("", "")
    sources = [Path(side.sources[0]) for side in (found.before, found.after)]
    if not exe:
        hint = "pip install msprof-analyze in an environment of its own, and put its folder on PATH"
        result.problems.append(Problem(Kind.ENVIRONMENT, "msprof-analyze is not installed", hint=hint))
        return
    made = recipes.compared(exe, *sources, patience=PATIENCE_S)
    if made.why:
        result.warn(f"msprof-analyze compare left no file: {made.why}")
    result.lines += ["", *(f"msprof-analyze compare wrote {file}" for file in made.files)]


def _profiles(
    result: CommandResult, paths: Sequence[Path], units: tuple[int, int] | None
) -> Iterator[model.RankProfile]:
    """The profiles of all traces at ``paths``; what cannot be read is a problem of the result, and the rest goes on."""
    for path in _readable(result, paths):
        with _reported(result, path):
            yield _profile(path, units)


def _readable(result: CommandResult, paths: Sequence[Path]) -> Iterable[Path]:
    found: dict[Path, None] = {}
    for path in paths:
        with _reported(result, path):
            found.update(dict.fromkeys(folders.readable(path)))
    return found


@contextlib.contextmanager
def _reported(result: CommandResult, path: Path) -> Iterator[None]:
    """What keeps a trace from being read is a problem of the result."""
    try:
        yield
    except Problem as problem:
        result.problems.append(problem)
    except PermissionError as error:
        result.problems.append(refused(error))
    except OSError as error:  # its disk, or its name
        cause = f"{path.name} cannot be read: {error.strerror or error}"
        hint = "copy it to another disk, and name the copy"
        result.problems.append(Problem(Kind.ENVIRONMENT, cause, str(path), hint))


def _profile(path: Path, units: tuple[int, int] | None) -> model.RankProfile:
    """The profile of one trace. Raises Problem where it is none, or has no unit (NO_TRACE) or none of these (USAGE)."""
    timeline = formats.read(path)
    made = analysis.attributed(timeline, units)
    hint = "rlpatch traces shows what was recorded"
    if units is not None and not made.profile.units:
        numbers = [unit.number for unit in analysis.attributed(timeline).profile.units]
        cause = f"{path.name} has no unit in {units[0]}:{units[1]}"
        known = f"--units {min(numbers)}:{max(numbers) + 1} are all of them" if numbers else hint
        raise Problem(Kind.USAGE, cause, str(path), known)
    profile = analysis.checked(timeline, made)
    if not profile.units:
        cause = f"{path.name} holds no kernel, no operator and no mark of a unit"
        raise Problem(Kind.NO_TRACE, cause, str(path), hint)
    return profile


def _write_page(result: CommandResult, file: Path | None, made: Callable[[], str]) -> None:
    """Write the page beside and over: whoever reads the old one meanwhile reads all of it."""
    if file is None:
        return
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(made(), encoding="utf-8")
        beside.replace(file)
    except PermissionError as error:
        result.problems.append(refused(error))
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()  # half of a page
        missing = not file.parent.exists()
        hint = f"mkdir -p {shlex.quote(str(file.parent))}" if missing else "name a file elsewhere: -o FILE.html"
        cause = f"{file} cannot be written: {error.strerror or error}"
        result.problems.append(Problem(Kind.ENVIRONMENT, cause, str(file), hint))
    else:
        result.done.append(f"wrote {file}")
        result.lines += ["", f"wrote {file}"]
