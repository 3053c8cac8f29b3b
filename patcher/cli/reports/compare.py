"""``rlpatch compare``."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from patcher.cli import options, terminal
from patcher.cli.options import Group, Option
from patcher.cli.reports.report import READING, half_open, paths
from patcher.commands.reports import baselines, reporting, run_comparing
from patcher.commands.reports.reporting import ReadOptions
from patcher.commands.reports.run_comparing import RunChoice
from patcher.messages import CommandLine, CommandResult, Text, usage
from patcher.options.headings import READ

T = TypeVar("T")

FORCE = options.switch(
    READ, "Compare both sides even if rlpatch finds them not comparable, and show why they are not.", "--force"
)

FAIL_ABOVE = Option(
    ["--fail-above"], heading=READ, type=click.FloatRange(min=0), metavar="PERCENT",
    help="Exit with code 9 if AFTER is certainly slower by more than PERCENT: the whole confidence interval lies above"
    " PERCENT. Needs at least two traces on each side, or three on one side and one on the other; a baseline needs"
    " three runs.",
)  # fmt: skip

BASELINE = Option(
    ["--baseline"], heading=READ, type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Compare with the runs that are stored in this folder; all PATHs then belong to the new run.",
)  # fmt: skip

UPDATE = options.switch(
    READ, "Store this run in the baseline if the baseline is empty, or if the run is comparable and not slower.",
    "--update",
)  # fmt: skip


def _ranges(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Parse each `A:B` into a half-open range. Raises Problem (USAGE) for anything else, and for more than two."""
    ranges = tuple(filter(None, (half_open(context, parameter, value) for value in values)))
    return _at_most_two(context, parameter, ranges)


def _at_most_two(context: click.Context, parameter: click.Parameter, values: tuple[T, ...]) -> tuple[T, ...]:  # noqa: ARG001
    """Return the values of an option unchanged. Raises Problem (USAGE) for more than two."""
    if len(values) > 2:
        cause = Text("{option} is given {count} times", option=parameter.opts[0], count=len(values))
        raise usage(cause, Text("type the option once for both sides, or twice: first for BEFORE, then for AFTER"))
    return values


RUNS = Group(
    "choice",
    lambda values: RunChoice(**values),
    Option(
        ["--steps"], heading=READ, multiple=True, callback=_ranges, metavar="A:B",
        help="Compare only these steps of timelines. Type the option once for both sides, or twice: first"
" for BEFORE, then for AFTER.",
    ),
    Option(
        ["--run"], heading=READ, multiple=True, callback=_at_most_two, type=click.IntRange(1), metavar="N",
        help="Which run to compare, if a folder has several. Type the option once for both sides, or twice: first for"
        " BEFORE, then for AFTER.",
    ),
)  # fmt: skip


@options.command("compare", paths("[BEFORE]... AFTER..."), FORCE, FAIL_ABOVE, BASELINE, UPDATE, groups=(RUNS, READING))
def command(
    paths: tuple[Path, ...], force: bool, fail_above: float | None, baseline: Path | None, update: bool,
    choice: RunChoice, options: ReadOptions,
) -> CommandResult:  # fmt: skip
    """Show what changed between two recordings (traces or timelines), how sure the change is, and where it
    comes from.

    To compare several recordings on each side, type `--` between the sides. For timelines, type
    the folders that `rlpatch timeline` reads; one folder is enough if --steps is given twice.

    \b
    Examples:
      rlpatch compare before/ after/
      rlpatch compare before/ after/ -o compared.html
      rlpatch compare run1/ run2/ -- run3/ run4/
      rlpatch compare main1/ main2/ --fail-above 5 -- branch1/ branch2/
      rlpatch compare rlpatch_traces --steps 2:15 --steps 28:41
      rlpatch compare --baseline nightly --update --fail-above 3 rlpatch_traces
    """
    if baseline or update:
        return _compare_with_baseline(
            paths, baseline, choice, options, force=force, update=update, fail_above=fail_above
        )
    if len(paths) == 1 and max(len(choice.steps), len(choice.run)) == 2:
        paths *= 2
    sides = _split_sides(paths)
    compare = reporting.compare
    if run_comparing.are_timelines(*sides, choice):
        compare = partial(run_comparing.compare_runs, choice=choice)
    return compare(*sides, options=options, display=terminal.reading, force=force, fail_above=fail_above)


def _compare_with_baseline(
    paths: tuple[Path, ...], baseline: Path | None, choice: RunChoice, options: ReadOptions, **more: Any
) -> CommandResult:
    """Return the comparison of the traces `paths` with the runs in the folder `baseline`, which they may join."""
    if baseline is None:
        cause = Text("--update stores a run in a baseline, but no baseline is named")
        raise usage(cause, Text("name the folder of the baseline: --baseline DIR --update"))
    if run_comparing.are_timelines((), paths, choice):
        cause = Text("--baseline compares traces, but {path} contains a timeline", paths[0])
        raise usage(cause, CommandLine("compare", "RUN", str(paths[0])), str(paths[0]))
    return baselines.compare(baseline, paths, options, terminal.reading, **more)


def _split_sides(paths: tuple[Path, ...]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the paths of both sides of a comparison: those before and after `--`, or the two paths without `--`."""
    typed = options.typed_words()
    at = len(paths) - len(typed) + typed.index("--") + 1 if "--" in typed else max(len(paths) // 2, 1)
    before, after = paths[:at], paths[at:]
    if before and after and ("--" in typed or len(paths) == 2):
        return before, after
    first, second = (shlex.join(map(str, side)) for side in (before or ("BEFORE",), after or ("AFTER",)))
    cause = Text("compare needs two sides: type two paths, or several paths before and after a `--`")
    raise usage(cause, f"rlpatch compare {first} -- {second}")
