"""The lines of ``compare`` on two timelines in the terminal: how much a step changed, in which parts, and why."""

from __future__ import annotations

from collections.abc import Iterator

from patcher.commands.reports.table_lines import lines, titled
from patcher.messages import Detail, Text
from patcher.messages.notes import wrapped
from patcher.timeline import comparison_tables as tables
from patcher.timeline.comparison_tables import CHANGE, cause_verdict
from patcher.timeline.lengths import brief
from patcher.timeline.run_comparison import (
    LONGER,
    NO_DIFFERENCE,
    SHORTER,
    UNCLEAR,
    ChangeInterval,
    RunComparison,
    RunSide,
)


def report(comparison: RunComparison) -> list[str]:
    """Return the lines on two runs: change of the mean step with its interval, tokens, caveats, parts and causes."""
    sections = (
        _head_lines(comparison),
        _part_table(comparison),
        titled(tables.beside(comparison)),
        _cause_lines(comparison),
    )
    texts = [line for section in map(list, sections) if section for line in ("", *section)]
    return texts[1:]


def sentences(comparison: RunComparison) -> list[str]:
    """Return the comparison as sentences: the change of the mean step, then a sentence on each side."""
    step = comparison.step
    first = Text(
        "mean step: {before} s before, {after} s after, change {change} s",
        before=brief(step.before_seconds),
        after=brief(step.after_seconds),
        change=CHANGE.text(step.change_seconds),
    )
    verdict: str = comparison.verdict
    if step.raw is not None:
        verdict = Text(
            "{interval}: {verdict}", interval=_interval(step.raw, step.before_seconds), verdict=comparison.verdict
        )
    texts: list[str] = [Text("{change} ({verdict})", change=first, verdict=verdict)]
    texts += [_side_sentence(Text("before"), comparison.before), _side_sentence(Text("after"), comparison.after)]
    if (equal := step.equal_tokens) is not None:
        interval = _interval(equal, step.before_seconds)
        words: dict[str, Text] = {LONGER: Text("slower"), SHORTER: Text("faster")}
        about = words.get(step.changed_at_equal_tokens, NO_DIFFERENCE)
        texts.append(
            Text(
                "mean step time at equal token counts: changes by {change} s ({interval}: {verdict})",
                change=CHANGE.text(equal.change),
                interval=interval,
                verdict=about,
            )
        )
    before, after = comparison.before.tokens_per_second, comparison.after.tokens_per_second
    if before is not None and after is not None:
        text = Text("decode tokens per second: {before:,.0f} before, {after:,.0f} after", before=before, after=after)
        texts.append(text)
    return texts


def _side_sentence(name: str, side: RunSide) -> Text:
    """Return a sentence on one side: folder, packages, steps, median step in s, and tokens per step if known."""
    first, last = side.steps[0], side.steps[-1]
    steps = Text("step {step}", first) if first == last else Text("steps {first} to {last}", first=first, last=last)
    packages = ", ".join(side.packages) or Text("unknown packages")
    median = brief(side.median_seconds)
    text = Text(
        "{side}: {source}, {packages}, {steps}, median {median} s",
        side=name,
        source=side.source,
        packages=packages,
        steps=steps,
        median=median,
    )
    if side.decode_tokens is None or side.prefill_tokens is None:
        return text
    return Text(
        "{side}; {decode:,.0f} decode and {prefill:,.0f} prefill tokens per step",
        side=text,
        decode=side.decode_tokens,
        prefill=side.prefill_tokens,
    )


def _interval(interval: ChangeInterval, before: float) -> Text:
    text = Text(
        "95 % interval of the change {low} to {high} s", low=CHANGE.text(interval.low), high=CHANGE.text(interval.high)
    )
    return Text("{interval}, {share:+.1f} %", interval=text, share=100 * interval.change / before) if before else text


def _part_table(comparison: RunComparison) -> Iterator[str]:
    """Yield the table of the parts of a step, then a legend of its columns if the change at equal tokens is known."""
    yield from lines(tables.parts(comparison))
    if comparison.step.equal_tokens is not None:
        legend = Text(
            "“equal tokens”: the change at equal token counts, by a linear fit; “raw only”: the measured change is"
            " clear, but the change at equal token counts is not"
        )
        yield from wrapped(legend, "  ")


def _cause_lines(comparison: RunComparison) -> Iterator[str]:
    """Yield lines on each cause of long steps that appeared or disappeared, with -v if that may be chance."""
    if not comparison.causes:
        return
    certain = [row for row in comparison.causes if row.changed != UNCLEAR]
    yield (
        Text("Causes that appeared or disappeared")
        if certain
        else Text("Causes that appeared or disappeared, perhaps only by chance")
    )
    sizes = len(comparison.before.steps), len(comparison.after.steps)
    for row in comparison.causes:
        text = Text(
            "{cause} ({change}). Before, this cause lengthened {before} of the {before_steps} steps, by"
            " {before_seconds} s in total; after, {after} of the {after_steps} steps, by {after_seconds} s in total.",
            cause=row.label,
            change=cause_verdict(row),
            before=row.before_steps,
            before_steps=sizes[0],
            before_seconds=brief(row.before_seconds),
            after=row.after_steps,
            after_steps=sizes[1],
            after_seconds=brief(row.after_seconds),
        )
        entry = wrapped(text, "  ", "    ")
        yield from entry if row in certain else map(Detail, entry)


def _head_lines(comparison: RunComparison) -> Iterator[str]:
    """Yield wrapped lines: why the runs are not comparable, how they compare, other differences, and the notes."""
    for reason in comparison.refused:
        yield from wrapped(Text("warning: {reason}", reason))
    first, *more = sentences(comparison)
    yield from wrapped(first)
    for text in more:
        yield from wrapped(text, "  ")
    for difference in comparison.differs:
        yield from wrapped(Text("the runs differ: {difference}", difference))
    for note in comparison.notes:
        yield from wrapped(Text("note: {note}", note))
