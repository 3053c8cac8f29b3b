"""The first screen of ``report``: verdict, what was recorded, where time goes, one thing to do, how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from patcher.messages import COMMA, SEMICOLON, Text, joined
from patcher.messages.notes import wrapped
from patcher.traces import model
from patcher.traces.analysis.host_bound import lateness
from patcher.traces.families import FAMILIES, HOST_BOUND, OUTSIDE_FORWARD
from patcher.traces.places import host_of, place_of
from patcher.traces.sidecar import CONTENTS, unit_contents
from patcher.traces.words import in_ms, percent, short, spread

NOTABLE, LITTLE = 0.01, 0.05
"""The share of the time from which on a part is named, and below which nothing done about it is worth the trouble."""

_OF_KERNELS = ("compute", "copies")  # verdicts of which the families of kernels tell more
_MOST = 5  # families that are named
_FEW = 3  # units below which a spread tells nothing

_UNITS: Mapping[str, str] = {
    name: name for name in (
        Text("decode step"), Text("prefill step"), Text("engine step"), Text("iteration"), Text("micro-batch"),
        Text("mini-batch"), Text("call"), Text("step"), Text("trace"),
    )
}  # fmt: skip
_SEVERAL: Mapping[str, str] = {
    "decode step": Text("decode steps"),
    "prefill step": Text("prefill steps"),
    "engine step": Text("engine steps"),
    "iteration": Text("iterations"),
    "micro-batch": Text("micro-batches"),
    "mini-batch": Text("mini-batches"),
    "call": Text("calls"),
    "step": Text("steps"),
    "trace": Text("traces"),
}
"""What a unit is → the word for several of them."""

_ON = ("1", "true")

_DOING: Mapping[str, str] = {
    "communication_ns": Text("communication"),
    "copy_ns": Text("copies"),
    "free_host_late_ns": Text("earlier launches"),
    "compute_ns": Text("faster kernels"),
}
"""Part of the time → what one could work on to shorten it."""


def unit_word(profile: model.RankProfile) -> str:
    """Return what a unit of the profile is, in words: decode step, micro-batch, step …."""
    unit = profile.metadata.unit if profile.metadata else ""
    name = f"{unit} step" if unit in ("decode", "prefill") else unit
    if name not in _UNITS:
        name = "step" if profile.marks else "trace"
    if profile.marks.startswith(("execute_", "step[")) and name == "step":
        contents = unit_contents(profile.units)
        decodes = contents.get("tokens") == contents.get("requests")
        name = "decode step" if decodes else "engine step"
    return _UNITS[name]


def first_screen(report: model.TraceReport, again: str = "") -> Iterator[str]:
    """Yield ten to fifteen lines on the report of one stage; everything else is detail.

    ``again`` is the command that was typed, "" if unknown.
    """
    focus = focus_of(report)
    first = _leading(report)
    yield from _withdrawn(report)
    yield from wrapped(_title(report, focus, first), "", "  ")
    yield from _labelled(_about(report, focus))
    names = len(report.captures) > 1
    for profile in _profiles_shown(report, focus, first):
        yield from _labelled(_breakdown(profile, profile.label if names else ""))
    if first is not None and not focus.total_ns:  # the breakdown of a trace without a device is the evidence
        yield from _labelled(first.evidence)
    if first is None or first.id in _OF_KERNELS:
        yield from _labelled(_families(focus))
    at_one_place = first is not None and first.culprit and first.id != "slow-rank"
    late = lateness(focus) if first is not None and first.id == "dispatch" and not at_one_place else ""
    yield from _labelled(late, "" if late or at_one_place else _idle(focus), _to_do(first))
    yield from _labelled(_not_worth(focus, first), _sure(focus, first))
    yield Text("  {line}", _next(report, focus, again))  # not wrapped, for a command is copied whole


def focus_of(report: model.TraceReport) -> model.RankProfile:
    """Return the profile to look at first: the straggler, else that of the first finding, else the slowest."""
    slowest = max(report.captures, key=lambda profile: (profile.median_ns, profile.host_median_ns))
    first = _leading(report)
    if first is None:
        return slowest
    if first.id == "slow-rank" and first.culprit:
        awaited = max(report.ranks, key=lambda rank: rank.awaited_ns, default=None)
        source = awaited.source if awaited else first.source
        return next((profile for profile in report.captures if profile.source == source), slowest)
    return next((profile for profile in report.captures if profile.source == first.source), slowest)


def _leading(report: model.TraceReport) -> model.Diagnosis | None:
    """Return the finding that gives the verdict; None without one."""
    return next((finding for finding in report.findings if finding.title == report.verdict.title), None)


def _labelled(*lines: str) -> Iterator[str]:
    """Yield the lines that are not empty, wrapped and indented."""
    for line in filter(None, lines):
        yield from wrapped(line, "  ", "    ")


def _withdrawn(report: model.TraceReport) -> Iterator[str]:
    """Yield the first failed checks; what they withdraw is a detail."""
    failed = [
        check.evidence for profile in report.captures for check in profile.failed
        if report.verdict.withdrawn and not (profile.on_host and check.id == "kernels")
    ]  # fmt: skip
    evidence = list(dict.fromkeys(failed))
    shown = evidence[: _FEW if _leading(report) is None else 2]
    for at, text in enumerate(shown):
        more = len(evidence) - len(shown) if at == len(shown) - 1 else 0
        line = Text("warning: {check}", text)
        yield from wrapped(Text("warning: {check} (other failed checks: {count})", text, more) if more > 0 else line)


def _title(report: model.TraceReport, focus: model.RankProfile, first: model.Diagnosis | None) -> str:
    """Return the verdict with its numbers; ``first`` is the first finding."""
    title, whole = report.verdict.title, focus.median_ns
    if first is None or not whole:
        return title
    of = next((profile for profile in report.captures if profile.source == first.source), focus)
    if first.saving_ns:
        return Text(
            "{title}: a fix saves at most {saving} of {time} ({share}) per {step}", title, in_ms(first.saving_ns),
            in_ms(of.total_ns / len(of.units)), percent(first.saving_ns * len(of.units) / (of.total_ns or 1), 0),
            unit_word(of),
        )  # fmt: skip
    if first.id == "compute":
        share = percent(focus.share("compute_ns", "overlap_ns"))
        return Text("{title}: {share} of {time} per {step}", title, share, in_ms(whole), unit_word(focus))
    return title


def _about(report: model.TraceReport, focus: model.RankProfile) -> str:
    """Return what was recorded: units and their contents, ranks, mode, contents of the trace, device, profiler."""
    count, word = len(focus.units), unit_word(focus)
    units = Text("1 {step}, {numbers}", word, focus.span)
    if count != 1:
        units = Text("{count} {steps}, {numbers}", count, _SEVERAL[word], focus.span)
    contents = unit_contents(focus.units)
    held = joined(COMMA, (_contents_words(name, min(values), max(values)) for name, values in contents.items()))
    if held:
        units = Text("{steps}, with {contents}", units, held)
    return joined(" · ", (units, _ranks(report, focus), _mode(focus), short(focus.device), model.FORMS[focus.form]))


def _contents_words(name: str, least: int, most: int) -> str:
    """Return how many of something the units held."""
    label = _ONE.get(name, "") if least == most == 1 else ""
    return Text("{number} {what}", spread(least, most), label or CONTENTS_WORDS[name])


_ONE: Mapping[str, str] = {"requests": Text("request"), "tokens": Text("token"), "sequences": Text("sequence")}
CONTENTS_WORDS: Mapping[str, str] = {
    **{name: name for name in CONTENTS},
    "requests": Text("requests"),
    "tokens": Text("tokens"),
    "context": Text("tokens of context"),
    "longest": Text("tokens in the longest context"),
    "sequences": Text("sequences"),
    "drafts": Text("draft tokens"),
}
"""Name of a count of a unit → its label behind the number."""


def _ranks(report: model.TraceReport, focus: model.RankProfile) -> str:
    """Return which ranks were recorded, and of how many, in words; "" if unknown."""
    count = len(report.captures)
    if count > 1:
        world = focus.world or count
        return Text("{count} of {world} ranks", count, world) if world != count else Text("{count} ranks", count)
    if focus.rank is None:
        return ""
    if (focus.world or 1) > 1:
        return Text("rank {rank} (of {world} ranks)", focus.rank, focus.world)
    return Text("rank {rank}", focus.rank)


def _mode(profile: model.RankProfile) -> str:
    """Return how kernels were launched, and what the profiler recorded beside them."""
    words: list[str] = []
    if profile.graph_share is not None:
        words.append(
            Text("graphs launch {share} of the kernels", percent(profile.graph_share, 0))
            if profile.graph_share >= LITTLE
            else Text("eager, no graphs")
        )
    labels = {"stacks": Text("stacks on"), "shapes": Text("shapes on")}
    words += [label for name, label in labels.items() if profile.setting(name).lower() in _ON]
    return joined(COMMA, words)


def _profiles_shown(
    report: model.TraceReport, focus: model.RankProfile, first: model.Diagnosis | None
) -> list[model.RankProfile]:
    """Return the profiles whose breakdown is shown: the focus, and the rank that waits longest for it."""
    waiting = [profile for profile in report.captures if first is not None and profile.source == first.source]
    return list({profile.source: profile for profile in (focus, *waiting)}.values())


def _breakdown(profile: model.RankProfile, name: str) -> str:
    """Return the parts of a unit from 5 % on, in order of their share."""
    if profile.on_host:
        return ""
    if not profile.total_ns:
        return Text("no events from a known device; median time on the host {time}", in_ms(profile.host_median_ns))
    labels = {**model.PARTS, **model.FREE}
    shares = sorted(((profile.share(part), labels[part]) for part in model.PARTS), key=lambda pair: -pair[0])
    parts = joined(
        COMMA, (Text("{label} {share}", label, percent(share)) for share, label in shares if share >= LITTLE)
    )
    line = Text("time: {parts}", parts)
    if name:
        line = Text("time of {profile}, {median}: {parts}", name, in_ms(profile.median_ns), parts)
    before = profile.sum_ns(model.LEAD_IN)
    if before >= NOTABLE * profile.total_ns:
        return Text("{line}; {time} before the first kernel", line, in_ms(before))
    return line


def _families(profile: model.RankProfile) -> str:
    """Return the largest families of kernels with their shares of the kernel time."""
    kernels = {name: ns for name, ns in profile.families.items() if name not in (HOST_BOUND, OUTSIDE_FORWARD)}
    whole = sum(kernels.values())
    if not whole or not (profile.computing_ns or not profile.share("compute_ns")):  # tables need not have all kernels
        return ""
    largest = [(name, ns) for name, ns in kernels.items() if ns >= NOTABLE * whole][:_MOST]
    families = joined(COMMA, (Text("{label} {share}", FAMILIES[name], percent(ns / whole, 0)) for name, ns in largest))
    return Text("kernels: {families}", families)


def _idle(profile: model.RankProfile) -> str:
    """Return the place with the most idle time, from 1 % on."""
    gap = next((gap for gap in profile.gaps if gap.part != model.LEAD_IN), None)
    if gap is None or gap.ns < NOTABLE * profile.total_ns:
        return ""
    on_host = host_of(gap)
    place = on_host if gap.call or gap.within else joined(COMMA, (place_of(gap), on_host))
    time = in_ms(gap.ns / len(profile.units))
    return Text("largest idle time: {time} ({share}): {place}", time, percent(gap.ns / (profile.total_ns or 1)), place)


def _to_do(first: model.Diagnosis | None) -> str:
    """Return the advice of the first finding with the upper bound of its saving; "" without a finding."""
    if first is None or not first.advice:
        return ""
    if first.saving_ns:
        return Text("to do: {advice}. Upper bound of the saving: {saving}", first.advice, in_ms(first.saving_ns))
    return Text("to do: {advice}", first.advice)


def _not_worth(profile: model.RankProfile, first: model.Diagnosis | None) -> str:
    """Return what could save less than 5 % of the time at most."""
    if not profile.total_ns or first is None:
        return ""
    shares = {part: profile.share(part) for part in _DOING}
    shares["compute_ns"] = profile.share("compute_ns", "overlap_ns")
    small = [(_DOING[part], share) for part, share in shares.items() if 0.0005 <= share < LITTLE]
    if not small:
        return ""
    things = joined(COMMA, (Text("{thing} (at most {share})", thing, percent(share)) for thing, share in small))
    return Text("little to gain from: {things}", things)


def _sure(profile: model.RankProfile, first: model.Diagnosis | None) -> str:
    """Return how many units there are, how they vary, and the certainty of the verdict."""
    count = len(profile.units)
    times = sorted(unit.device_ns or unit.host_ns for unit in profile.units)
    if count < _FEW:
        units: str = Text("{count} steps, no spread", count) if count > 1 else Text("1 step, no spread")
    else:
        low, high = in_ms(times[0]), in_ms(times[-1])
        median = in_ms(profile.median_ns or profile.host_median_ns)
        units = Text("{count} steps from {low} to {high}, median {median}", count, low, high, median)
    return Text("how sure: {parts}", joined(SEMICOLON, (units, first.certainty if first else "")))


def _next(report: model.TraceReport, focus: model.RankProfile, again: str) -> str:
    """Return the next command: with all ranks, else the page."""
    missing = any(finding.id == "missing-ranks" for finding in report.findings)
    if missing or (len(report.captures) == 1 and (focus.world or 1) > 1 and _communicates(report)):
        return Text("next: `rlpatch report FOLDER`, with all ranks in it, shows who waits for whom")
    command = f"{again or 'rlpatch report'} -o report.html"
    return Text("next: {command}", command)


def _communicates(report: model.TraceReport) -> bool:
    return any(finding.id in ("communication", "collective-outlier") for finding in report.findings)
