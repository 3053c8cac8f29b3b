"""``report`` and ``compare``: what the traces say, in the terminal, as JSON and as a page."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from patcher.errors import Kind, Problem, refused
from patcher.notes import WIDTH, wrapped
from patcher.report import Detail, Report

if TYPE_CHECKING:
    from patcher.traces import model

PATIENCE_S = 300.0
"""How long msprof-analyze may neither compute nor write anything."""

MANY = 4
"""Captures from which on only the slowest is described."""

SHOWN = 10
"""Rows of a table in the terminal; the page and --json have all."""


class ReadOptions(NamedTuple):
    """What of the traces is read, where the page goes, and whether msprof-analyze compares them, too."""

    units: tuple[int, int] | None = None
    page: Path | None = None
    vendor: bool = False


def report(paths: Sequence[Path], options: ReadOptions) -> Report:
    """What is known of the traces at ``paths``, which are ranks of one run; one that cannot be read is a problem."""
    from patcher.traces import findings

    told = Report("report")
    captures = findings.labelled(_captures(told, paths, options.units))
    if not captures:
        return told
    found = findings.reported(captures)
    if len({capture.rank for capture in captures}) < len(captures):
        why = "a rank stands for several captures, or one has none"
        told.note("who waits for whom is not said: these are not ranks of one window", why)
    told.data = found.as_json()
    told.lines += _verdict(found)
    slowest = max(found.captures, key=lambda one: (one.median_ns, one.host_median_ns))
    shown = found.captures if len(found.captures) <= MANY else (slowest,)
    for capture in shown:
        told.lines += ["", *_capture(capture)]
    for finding in found.findings:
        told.lines += ["", *_finding(finding)]
    if found.ranks:
        told.lines += ["", *_ranks(found.ranks)]
    told.lines += _tables(slowest, many=len(found.captures) > 1)
    if len(found.captures) > 1:
        told.lines += [
            "",
            *wrapped(f"{slowest.label} is the slowest; -o FILE.html and --json have the others, too"),
        ]
    _write_page(told, options.page, functools.partial(_page, found))
    return told


def compare(before: Sequence[Path], after: Sequence[Path], options: ReadOptions, *, force: bool) -> Report:
    """What changed from the traces of one side to those of the other."""
    from patcher.traces import findings
    from patcher.traces.compare import compared

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
    told.lines += _comparison(found)
    if options.vendor:
        _compare_by_vendor(told, found)
    _write_page(told, options.page, functools.partial(_compared_page, found))
    return told


def _compare_by_vendor(told: Report, found: model.Comparison) -> None:
    """Hand the first capture of each side to msprof-analyze, and say what that left on disk."""
    from patcher.traces import recipes

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
    from patcher.traces import attribution, findings, sources

    for path in _traces(told, paths, sources.find):
        try:
            timeline = sources.read(path)
            made = attribution.attributed(timeline, units)
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
            all_units = attribution.attributed(timeline).capture.units
            numbers = [unit.number for unit in all_units]
            cause = f"{path.name} has no unit in {units[0]}:{units[1]}"
            span = f"--units {min(numbers)}:{max(numbers) + 1} are all of them" if numbers else ""
            hint = span or "rlpatch traces shows what was recorded"
            told.problems.append(Problem(Kind.USAGE, cause, str(path), hint))
            continue
        capture = findings.checked(timeline, made)
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
    import contextlib
    import os
    import shlex

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
    from patcher.traces.page import page

    return page(found)


def _compared_page(found: model.Comparison) -> str:
    from patcher.traces.page import compared

    return compared(found)


def _again(option: str) -> str:
    import shlex

    import click

    return f"rlpatch {shlex.join(click.get_current_context().meta.get('typed', ()))} {option}"


# ---------------------------------------------------------------- lines of a report


def _verdict(found: model.Report) -> Iterator[str]:
    verdict = found.verdict
    if verdict.withdrawn:
        yield "warning: this data cannot carry every verdict"
        for reason in verdict.withdrawn:
            yield from wrapped(reason, "  ")
        yield ""
    yield verdict.title
    for text in (verdict.guide, verdict.difference):
        if text:
            yield from wrapped(text, "  ")


def _capture(capture: model.Capture) -> Iterator[str]:
    from patcher.traces.model import FORMS, PARTS

    rank = f"rank {capture.rank}" if capture.rank is not None else ""
    yield from wrapped(capture.source)
    yield from wrapped(" · ".join(filter(None, (FORMS[capture.form], capture.device, rank))), "  ")
    count, slowest = len(capture.units), capture.slowest_unit
    text = f"{count} unit{'s' * (count != 1)}, {capture.span}"
    if capture.total_ns:
        text += f": median {_ms(capture.median_ns)}"
    if slowest is not None and capture.median_ns and count > 1:
        ratio = slowest.device_ns / capture.median_ns
        text += (
            f", 95th percentile {_ms(capture.percentile95_ns)}, slowest #{slowest.number} with {ratio:.2f} times that"
        )
    yield from wrapped(text, "  ")
    yield from _held(capture)
    if not capture.total_ns:
        yield f"  nothing ran on a device; median on the host {_ms(capture.host_median_ns)}"
        yield from _units(capture)
        yield from _checks(capture)
        return
    yield f"  {'part of a unit':38}{'ms per unit':>14}{'share':>9}"
    for part, words in PARTS.items():
        ns = sum(getattr(unit, part) for unit in capture.units)
        if ns:
            yield f"  {words:38}{ns / count / 1e6:14,.3f}{_percent(ns / capture.total_ns):>9}"
    phases = {phase: sum(unit.phases.get(phase, 0) for unit in capture.units) for phase in capture.units[0].phases}
    whole = sum(phases.values())
    if whole:
        shares = ", ".join(f"{phase} {_percent(ns / whole)}" for phase, ns in phases.items())
        yield from wrapped(f"kernel time: {shares}", "  ")
    yield from _units(capture)
    yield from _checks(capture)


def _checks(capture: model.Capture) -> Iterator[Detail]:
    for check in capture.checks:
        yield Detail(f"  {'ok' if check.ok else 'failed'} {check.id}: {check.evidence}")


def _held(capture: model.Capture) -> Iterator[str]:
    """What the facts tell of the capture and its units, over those that are reported."""
    from patcher.traces import facts

    if not capture.facts:
        return
    yield from wrapped(" · ".join(filter(None, facts.told(capture.facts))), "  ")
    every = {name: [getattr(unit, name) for unit in capture.units] for name in facts.HELD}
    known = {name: [value for value in values if value is not None] for name, values in every.items()}
    ranges = [f"{name} {facts.spread(min(values), max(values))}" for name, values in known.items() if any(values)]
    if ranges:
        yield from wrapped(f"its units held {', '.join(ranges)}", "  ")
    uncounted = {unit.number: unit.uncounted for unit in capture.units if unit.uncounted}
    if uncounted:
        yield from wrapped(facts.lying_between(uncounted), "  ")


def _units(capture: model.Capture) -> Iterator[Detail]:
    """Each unit on a line, with columns of what not every one of them held alike."""
    from patcher.traces import facts

    names = [name for name in (*facts.HELD, "uncounted") if len({getattr(unit, name) for unit in capture.units}) > 1]
    if not names:
        for unit in capture.units:
            yield Detail(f"  #{unit.number} {_ms(unit.device_ns)}, host {_ms(unit.host_ns)}, {unit.kernels:,} kernels")
        return
    rows = [("unit", "ms", "host ms", "kernels", *names)]
    for unit in capture.units:
        held = ("" if (value := getattr(unit, name)) is None else f"{value:,}" for name in names)
        rows.append((f"#{unit.number}", _millis(unit.device_ns), _millis(unit.host_ns), f"{unit.kernels:,}", *held))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = "  " if sum(widths) + 2 * len(widths) <= WIDTH else " "
    for row in rows:
        yield Detail("  " + gap.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _finding(finding: model.Finding) -> Iterator[str]:
    saving = f" (at most {_ms(finding.saving_ns)} per unit to gain)" if finding.saving_ns else ""
    yield from wrapped(f"{finding.severity}: {finding.title}{saving}")
    yield from wrapped(finding.evidence, "  ")
    if finding.advice:
        yield from wrapped(f"try: {finding.advice}", "  ")
    yield from wrapped(f"certainty: {finding.certainty}", "  ")


def _ranks(ranks: Sequence[model.Rank]) -> Iterator[str]:
    yield f"{'rank':>6}{'median ms':>13}{'collectives':>13}{'waits ms/unit':>15}{'awaited ms/unit':>17}{'last':>7}"
    for row in ranks:
        units = max(row.units, 1)
        number = "?" if row.rank is None else row.rank
        yield (
            f"{number:>6}{row.median_ns / 1e6:13,.3f}{row.collectives:13,}{row.waits_ns / units / 1e6:15,.3f}"
            f"{row.awaited_ns / units / 1e6:17,.3f}{row.last:7,}"
        )


def _tables(capture: model.Capture, *, many: bool) -> Iterator[str]:
    of = f" of {capture.label}" if many else ""
    units = len(capture.units)
    left = 0 if capture.total_ns else 11  # without a device the first column says nothing
    if capture.kernels:
        yield from ("", f"kernels{of}")
        yield f"{'ms/unit':>11}{'calls/unit':>12}  {'kind':14} name"
        for kernel in capture.kernels[:SHOWN]:
            head = f"{kernel.ns / units / 1e6:11,.3f}{kernel.calls / units:12,.1f}  {kernel.kind:14} "
            yield head + _cut(kernel.name, WIDTH - len(head))
        yield from _more(len(capture.kernels))
    for title, rows in (("operators", capture.operators), ("modules", capture.modules)):
        if rows:
            yield ""
            by = "by the kernels that they launched" if capture.total_ns else "by their own time on the host"
            yield from wrapped(f"{title}{of}, {by}")
            yield f"{'ms/unit':>11}{'host ms/unit':>14}{'calls/unit':>12}  name"[left:]
            for row in rows[:SHOWN]:
                head = f"{row.ns / units / 1e6:11,.3f}{row.host_ns / units / 1e6:14,.3f}{row.calls / units:12,.1f}  "
                head = head[left:]
                yield head + _cut(row.name, WIDTH - len(head))
            yield from _more(len(rows))


def _more(count: int) -> Iterator[str]:
    if count > SHOWN:
        yield f"  … {count - SHOWN:,} more: -o FILE.html and --json have all"


# ---------------------------------------------------------------- lines of a comparison


def _comparison(found: model.Comparison) -> Iterator[str]:
    from patcher.traces.model import PARTS

    for reason in found.refused:
        yield from wrapped(f"warning: {reason}")
    before, after = found.median_ns
    on_host = " on the host" if found.clock == "host" else ""
    yield f"median unit{on_host}: {_ms(before)} before, {_ms(after)} after, {_signed(after - before)} ms"
    if found.change is not None:
        low, _, high = found.change
        sure = "no clear difference" if low <= 0 <= high else "slower" if low > 0 else "faster"
        percent = f", {(after - before) / before * 100:+.1f} %" if before else ""
        yield f"  95 % interval {_signed(low)} to {_signed(high)} ms{percent}: {sure}"
    for note in found.notes:
        yield from wrapped(f"note: {note}")
    if any(part.before_ns or part.after_ns for part in found.parts):
        yield from ("", f"{'part of the median unit':38}{'before ms':>13}{'after ms':>13}{'change ms':>13}")
        for part in found.parts:
            if part.before_ns or part.after_ns:
                yield (
                    f"{PARTS[part.name]:38}{part.before_ns / 1e6:13,.3f}{part.after_ns / 1e6:13,.3f}"
                    f"{_signed(part.change_ns):>13}"
                )
    for title, rows in (("kernels", found.kernels), ("modules", found.modules)):
        if rows:
            yield from ("", f"{title}, per unit")
            yield f"{'change ms':>11}{'before ms':>12}{'after ms':>11}  {'':11} name"
            for row in rows[:SHOWN]:
                head = f"{_signed(row.change_ns):>11}{row.before_ns / 1e6:12,.3f}{row.after_ns / 1e6:11,.3f}"
                head += f"  {row.state:11} "
                yield head + _cut(row.name, WIDTH - len(head))
            yield from _more(len(rows))


# ---------------------------------------------------------------- words


def _cut(name: str, room: int) -> str:
    clean = "".join(character if character.isprintable() else "?" for character in name)
    return clean if len(clean) <= room else f"{clean[: room - 1]}…"


def _ms(ns: float) -> str:
    return f"{ns / 1_000_000:,.2f} ms"


def _millis(ns: float) -> str:
    return f"{ns / 1_000_000:,.3f}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _signed(ns: float) -> str:
    return f"{ns / 1_000_000:+,.3f}"
