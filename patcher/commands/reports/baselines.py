"""``compare --baseline``: captures against the stored runs before them, which they may join."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

from patcher.commands.reports import reporting
from patcher.commands.reports.reporting import ReadOptions
from patcher.commands.reports.writing import write_folder
from patcher.messages import COMMA, CommandResult, Kind, Problem, Text, joined
from patcher.progress import Display, silent
from patcher.traces import analysis, baseline, model

_THIS_RUN = "this run"
_UNDECIDED = (model.OTHER, model.OTHER_DEVICE, model.OTHER_MODEL)


def compare(
    folder: Path, paths: Sequence[Path], options: ReadOptions, display: Display = silent, *,
    force: bool, update: bool, fail_above: float | None = None,
) -> CommandResult:  # fmt: skip
    """Compare the traces at `paths`, all of one run, with the baseline in `folder`; with `update` add the run to it.

    `options` name the files to write. `force` compares sides that are not comparable, too. Being slower by more than
    `fail_above` percent (None: no limit) is a problem of the result. The run is not added if it is certainly slower, if
    the comparison is refused or undecided, or if the result has problems. Only the newest `baseline.KEEP` runs are
    kept. With `update`, a run without a baseline starts one. Nothing is compared if no trace, or no file of the
    baseline, can be read. Raises Problem (NO_TRACE) without a baseline and `update`. Raises Problem (NOT_COMPARABLE),
    also with `force`, if the run has other ranks, or could not be compared even with itself.
    """
    result = CommandResult("compare")
    profiles = reporting.read_profiles(result, paths, options, partial(display, Text("reading traces")))
    after = [dataclasses.replace(profile, baseline_run=_THIS_RUN) for profile in analysis.labelled(profiles)]
    files = baseline.files(folder)
    before = [*chain.from_iterable(reporting.read_each(result, files, baseline.read))]
    if not after or (files and not before):
        return result
    if not files:
        _start_baseline(result, folder, after, update=update)
        if options.page or options.csv:
            result.note(
                Text("no HTML page and no CSV tables were written, because there is nothing to compare with yet")
            )
        return result
    _require_same_ranks(before, after, folder)
    comparison = analysis.compared(before, after, force=force)
    runs = tuple(dict.fromkeys(profile.baseline_run for profile in before))
    comparison = dataclasses.replace(comparison, baseline=model.Baseline(str(folder), runs))
    reporting.add_comparison(result, comparison, options, force=force, fail_above=fail_above)
    if not update:
        return result
    if why := _reason_not_stored(result, comparison):
        result.note(Text("this run was not stored in the baseline {folder}", folder), why)
        return result
    _store(result, folder, after)
    for file in baseline.files(folder)[: -baseline.KEEP]:
        with suppress(FileNotFoundError):
            file.unlink()
    return result


def _start_baseline(
    result: CommandResult, folder: Path, profiles: Sequence[model.RankProfile], *, update: bool
) -> None:
    """Store `profiles` as the first run of the baseline in `folder` if `update` is True, and report that in `result`.

    Raises Problem: NO_TRACE if `update` is False, NOT_COMPARABLE if the run could not be compared even with itself.
    """
    if not update:
        raise Problem(
            Kind.NO_TRACE,
            Text("there is no baseline in {folder} yet", folder),
            str(folder),
            Text("add --update to store this run as the first run of the baseline"),
        )
    if refused := analysis.compared(profiles, profiles).refused:
        raise Problem(
            Kind.NOT_COMPARABLE,
            refused[0],
            hint=Text("this recording was not stored in the baseline: record again"),
            notes=refused[1:],
        )
    _store(result, folder, profiles)
    result.lines[:0] = [Text("{folder} had no baseline: this run was stored as the first run of the baseline", folder)]


def _store(result: CommandResult, folder: Path, profiles: Sequence[model.RankProfile]) -> None:
    file = baseline.new_file(folder)
    write_folder(result, folder, {file.name: baseline.summary(profiles)}, "--baseline DIR")


def _require_same_ranks(before: Sequence[model.RankProfile], after: Sequence[model.RankProfile], folder: Path) -> None:
    """Raise Problem (NOT_COMPARABLE) if the run `after` has other ranks than the baseline `before` in `folder`.

    The slowest rank of a run counts, so a missing rank would change the result.
    """
    sides = [{profile.rank for profile in side} for side in (before, after)]
    if sides[0] == sides[1]:
        return
    first, second = (
        joined(COMMA, (Text("unknown") if rank is None else str(rank) for rank in sorted(side, key=lambda r: r or 0)))
        for side in sides
    )
    cause = Text(
        "the baseline has traces of ranks {baseline_ranks}, but this run has traces of ranks {ranks}",
        baseline_ranks=first,
        ranks=second,
    )
    hint = Text("pass the traces of all ranks, or choose another folder with --baseline")
    raise Problem(Kind.NOT_COMPARABLE, cause, str(folder), hint)


def _reason_not_stored(result: CommandResult, comparison: model.Comparison) -> str:
    """Return why the run is not stored in the baseline, as a sentence; "" if it may be stored."""
    if result.problems:
        return result.problems[0].cause
    if comparison.refused:
        return comparison.refused[0]
    if comparison.verdict in _UNDECIDED:
        return comparison.verdict
    return model.SLOWER if comparison.captures >= model.ENOUGH_CAPTURES and comparison.least_change_ns > 0 else ""
