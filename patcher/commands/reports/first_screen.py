"""The first screen of ``report``: verdict, what was recorded, where time goes, one thing to do, how sure that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from patcher.messages import COMMA, SEMICOLON, Text, joined
from patcher.messages.notes import wrapped
from patcher.traces import model
from patcher.traces.analysis import exposed
from patcher.traces.analysis.host_bound import slow_launchers
from patcher.traces.analysis.host_only import is_whole_trace
from patcher.traces.analysis.ranks import lacks_common_step, unrelated
from patcher.traces.analysis.rates import unaligned_size
from patcher.traces.families import ELEMENTWISE, FAMILIES, HOST_BOUND, OUTSIDE_FORWARD, family_of, is_quantization
from patcher.traces.places import host_activity, place_of, time_with_cut
from patcher.traces.sidecar import unit_contents
from patcher.traces.words import in_ms, listed, percent, shares_words, short, spread
from patcher.traces.work import inputs_of

NOTABLE, LITTLE = 0.01, 0.05
"""The share of the time from which on a part is named, and below which nothing done about it is worth the trouble."""

_LARGE = 0.2  # the share of the time from which on a single kernel is named beside another verdict
_CLEARLY_LONGER = 1.2  # times the longest kernel, from which on all kernels of a kind are named beside it
_KERNEL_ROOM, _KERNEL_ROOM_IN_HEADLINE = 48, 42  # characters of its name

_OF_KERNELS = ("compute", "copies", "")  # verdicts of which the families of kernels tell more, or none
_MOST = 5  # families that are named
_FEW = 3  # units below which a spread tells nothing
_MOST_FAILED_CHECKS, _MOST_FAILED_CHECKS_WITHOUT_FINDING = 2, 3  # warnings on failed checks

_UNITS: Mapping[str, tuple[Text, Text]] = {
    "decode step": (Text("decode step"), Text("{count} decode steps")),
    "prefill step": (Text("prefill step"), Text("{count} prefill steps")),
    "engine step": (Text("engine step"), Text("{count} engine steps")),
    "iteration": (Text("iteration"), Text("{count} iterations")),
    "micro-batch": (Text("micro-batch"), Text("{count} micro-batches")),
    "mini-batch": (Text("mini-batch"), Text("{count} mini-batches")),
    "call": (Text("call"), Text("{count} calls")),
    "step": (Text("step"), Text("{count} steps")),
    "trace": (Text("trace"), Text("{count} traces")),
}
"""Name of a unit → the word for one, and the text for several."""

_ON = ("1", "true")

_PARTS: Mapping[str, tuple[str, str]] = {
    "communication_ns": (Text("communication"), "communication"),
    "copy_ns": (Text("memcpy"), "copies"),
    "free_host_late_ns": (Text("launching kernels earlier"), "dispatch"),
    "compute_ns": (Text("faster kernels"), "compute"),
}
"""Part of the time → what one could work on to shorten it, and the diagnosis without which its time is not known."""


_NO_FINDING = model.Diagnosis("", "note", "", None, "")
"""The leading finding of a report without one."""


def unit_word(profile: model.RankProfile) -> str:
    """Return the word for what the profile's trace counts: decode step, micro-batch, call ….

    It is "step" if the kind is unknown, and "trace" if nothing marks steps. Steps that the engine itself marks are
    "engine step" if any has another number of tokens than of requests, else, also if neither is known, "decode step".
    """
    unit = profile.metadata.unit if profile.metadata else ""
    name = f"{unit} step" if unit in ("decode", "prefill") else unit
    if name not in _UNITS:
        name = "step" if profile.marks else "trace"
    if profile.marks.startswith(("execute_", "step[")) and name == "step":
        contents = unit_contents(profile.units)
        decodes = contents.get("tokens") == contents.get("requests")
        name = "decode step" if decodes else "engine step"
    return _UNITS[name][0]


def first_screen(report: model.TraceReport, command: str = "") -> Iterator[str]:
    """Yield the most important lines of a report on one stage, about ten to fifteen, which are shown without -v.

    ``command`` is the command as typed, "" if unknown; the last line may extend it to write an HTML page.
    """
    focus = focus_of(report)
    leading = _leading_finding(report)
    yield from _failed_check_warnings(report)
    yield from _unrelated_warning(report)
    yield from wrapped(_headline(report, focus, leading, report.verdict.title), "", "  ")
    yield from _indented(_recorded_line(report, focus))
    # The focus of a verdict on a straggler is that rank; its finding is about the one that waits longest.
    leading_profiles = (profile for profile in report.captures if profile.source == leading.source)
    profiles_by_source = {profile.source: profile for profile in (focus, *leading_profiles)}
    for profile in filter(_has_all_kernels, profiles_by_source.values()):
        name = profile.label if len(report.captures) > 1 else ""
        with_lead_in = bool(leading.saving_ns) and (leading.id == "lead-in" or profile.cut_ns > 0)
        line = _breakdown_line(profile, name, of_all_steps=leading.step is not None, with_lead_in=with_lead_in)
        yield from _indented(line)
    yield from _indented(
        leading.evidence if leading.id == "outlier" or not focus.total_ns else "",  # the breakdown without a device
        _families_line(focus) if leading.id in _OF_KERNELS else "",
        *_places_and_advice(report, focus, leading),
        _idle_host_line(report, leading, focus),
        _slow_steps_line(report, leading, focus),
        _little_to_gain_line(focus, leading),
        _certainty_line(focus, leading),
    )
    if line := _next_command_line(report, focus, command):
        yield Text("  {line}", line)  # not wrapped, for a command is copied whole


def _has_all_kernels(profile: model.RankProfile) -> bool:
    """Tell whether no check found launches without a kernel: otherwise, the times of steps and idle times are wrong."""
    return all(check.id != "lost" for check in profile.failed)


def _places_and_advice(report: model.TraceReport, focus: model.RankProfile, leading: model.Diagnosis) -> Iterator[str]:
    """Yield lines on the longest kernel, late launchers, the longest idle time, what to do, and the largest warning."""
    kernel = "" if leading.id in ("copies", "") else _longest_kernel_line(focus, leading)
    at_one_place = leading.culprit and leading.id != "slow-rank"
    late = slow_launchers(focus) if leading.id == "dispatch" and not at_one_place else ""
    computing = leading.id == "compute"
    warning = _largest_warning_line(report, focus) if computing else ""
    idle_within = leading.id == exposed.PARTS[exposed.IDLE]
    is_place_named = (
        idle_within or late or at_one_place or leading.id == "outlier" or (computing and (kernel or warning))
    )
    idle = "" if is_place_named else _largest_idle_time_line(focus, of_all_steps=leading.step is not None)
    yield from ("" if computing else kernel, late, idle, _to_do_line(leading, focus), warning)


def focus_of(report: model.TraceReport) -> model.RankProfile:
    """Return the profile to look at first: that of the finding which gives the verdict; the slowest without a finding.

    If the verdict is a straggler, it is the profile of the rank for which the others waited longest.
    """
    slowest = max(report.captures, key=lambda profile: (profile.median_ns, profile.host_median_ns))
    leading = _leading_finding(report)
    source = leading.source
    if leading.id == "slow-rank" and leading.culprit and report.ranks:
        source = max(report.ranks, key=lambda rank: rank.awaited_ns).source
    return next((profile for profile in report.captures if profile.source == source), slowest)


def _leading_finding(report: model.TraceReport) -> model.Diagnosis:
    """Return the finding that gives the verdict, `_NO_FINDING` without one."""
    return next((finding for finding in report.findings if finding.title == report.verdict.title), _NO_FINDING)


def _indented(*lines: str) -> Iterator[str]:
    for line in filter(None, lines):
        yield from wrapped(line, "  ", "    ")


def _failed_check_warnings(report: model.TraceReport) -> Iterator[str]:
    """Yield the lines of a warning on each failed check, with its evidence, if failed checks rule out a verdict."""
    if not report.verdict.withdrawn:
        return
    failed = [
        check.evidence for profile in report.captures for check in profile.failed
        if not (profile.on_host and check.id == "kernels")
    ]  # fmt: skip
    evidence = list(dict.fromkeys(failed))
    has_finding = bool(_leading_finding(report).id)
    shown_evidence = evidence[: _MOST_FAILED_CHECKS if has_finding else _MOST_FAILED_CHECKS_WITHOUT_FINDING]
    more = len(evidence) - len(shown_evidence)
    for text in shown_evidence:
        line = Text("warning: {failed_check}", text)
        if more and text is shown_evidence[-1]:
            line = Text("warning: {failed_check} (other failed checks: {count})", failed_check=text, count=more)
        yield from wrapped(line)


def _unrelated_warning(report: model.TraceReport) -> Iterator[str]:
    """Yield the lines of a warning if the traces are of different runs or steps; nothing if ranks can be compared."""
    if unrelated(report.captures):
        worlds = sorted({profile.world for profile in report.captures if profile.world is not None})
        different = Text(
            "warning: these traces are of different runs, with {worlds} ranks. Each trace is analysed by itself",
            listed(worlds),
        )
        yield from wrapped(different)
    elif lacks_common_step(report.captures):
        nothing_common = Text(
            "warning: these traces have no step in common, so the report cannot show which rank the others wait for"
        )
        yield from wrapped(nothing_common)


def _headline(report: model.TraceReport, focus: model.RankProfile, finding: model.Diagnosis, title: str) -> str:
    """Return ``title`` with the saving of ``finding``, or for "compute" with its share of a step and longest kernel."""
    whole = focus.median_ns or (focus.host_median_ns if finding.id == "outlier" else 0)
    if not whole or finding.step is not None:
        return title
    if finding.saving_ns:
        profile = next((profile for profile in report.captures if profile.source == finding.source), focus)
        return _add_saving(title, finding, finding.saving_ns, profile)
    if finding.id == "compute":
        share = percent(focus.share("compute_ns", "overlap_ns"))
        title = Text(
            "{title}: {share} of {time} per {step}", title=title, share=share, time=in_ms(whole), step=unit_word(focus)
        )
        return joined(
            SEMICOLON, (title, _unaligned_words(focus) or _longest_kernel_line(focus, finding, in_headline=True))
        )
    return title


def _add_saving(title: str, finding: model.Diagnosis, saving_ns: int, profile: model.RankProfile) -> Text:
    """Return ``title`` with what a fix of ``finding`` saves at most in each step of ``profile``."""
    steps = len(profile.units)
    before = profile.sum_ns(model.LEAD_IN) if finding.id == "lead-in" else profile.cut_ns  # no part of a step
    total = profile.total_ns or sum(unit.host_ns for unit in profile.units)
    mean = (total + before) / steps or 1
    share = percent(saving_ns / mean, 0)
    if finding.id == "outlier":  # the mean step saves nothing where one step is slow
        return Text(
            "{title}; a fix saves at most {saving} of {time} in all {steps} ({share})",
            title=title, saving=in_ms(saving_ns * steps), time=in_ms(mean * steps),
            steps=_UNITS[unit_word(profile)][1].filled(steps), share=share,
        )  # fmt: skip
    return Text(
        "{title}; a fix saves at most {saving} of {time} per {step} ({share})",
        title=title, saving=in_ms(saving_ns), time=in_ms(mean), step=unit_word(profile), share=share,
    )  # fmt: skip


def recorded_steps(profile: model.RankProfile) -> Text:
    """Return the number of recorded steps with their word and range: "30 decode steps, #30 to #59"."""
    count, word = len(profile.units), unit_word(profile)
    if count == 1:
        return Text("1 {step}, {number}", step=word, number=profile.span)
    return Text("{steps}, {range}", steps=_UNITS[word][1].filled(count), range=profile.span)


def _recorded_line(report: model.TraceReport, focus: model.RankProfile) -> str:
    """Return a line on what was recorded: steps and their contents, ranks, mode, device and profiler."""
    units = recorded_steps(focus)
    if contents := contents_words(unit_contents(focus.units)):
        units = Text("{steps}, with {contents}", steps=units, contents=contents)
    return joined(
        " · ", (units, _ranks_words(report, focus), _mode_words(focus), short(focus.device), model.FORMS[focus.form])
    )


_CONTENTS: Mapping[str, tuple[Text, Text]] = {
    "requests": (Text("{number} request"), Text("{number} requests")),
    "tokens": (Text("{number} token"), Text("{number} tokens")),
    "drafts": (Text("{number} draft token"), Text("{number} draft tokens")),
    "longest": (Text("{number} token in the longest context"), Text("{number} tokens in the longest context")),
    "context": (Text("{number} token of context"), Text("{number} tokens of context")),
    "sequences": (Text("{number} sequence"), Text("{number} sequences")),
}
"""Name of a count of a step → its text for one, and for more."""


def contents_words(contents: Mapping[str, Collection[int]]) -> Text:
    """Return what steps contain in words, such as "1 to 4 requests, 64 tokens"; empty if nothing is known.

    ``contents`` maps a name in `sidecar.CONTENTS` to counts, of which the least and the largest are told.
    """
    ends = ((name, min(counts), max(counts)) for name, counts in contents.items())
    texts = ((_CONTENTS[name][0 if least == most == 1 else 1], spread(least, most)) for name, least, most in ends)
    return joined(COMMA, (text.filled(numbers) for text, numbers in texts))


def _ranks_words(report: model.TraceReport, focus: model.RankProfile) -> str:
    """Return the recorded rank or number of ranks in words, and the total if larger; "" if unknown."""
    count = len(report.captures)
    world = focus.world or count
    if unrelated(report.captures):
        return Text("{count} traces of different runs", count)
    if len({profile.rank for profile in report.captures}) < count:
        return Text("{count} traces", count)
    if count > 1 and world > count:
        return Text("{count} of {world} ranks", count=count, world=world)
    if count > 1:
        return Text("{count} ranks", count)
    if focus.rank is not None and world > 1:
        return Text("rank {rank} (of {world} ranks)", rank=focus.rank, world=world)
    return focus.rank_name


_CONTENTS_OF_EVENTS: Mapping[tuple[bool, bool], str] = {
    (True, True): Text("with call stacks and tensor shapes"),
    (True, False): Text("with call stacks"),
    (False, True): Text("with tensor shapes"),
}
"""Whether events have (stacks, shapes) → these in words."""


def _mode_words(profile: model.RankProfile) -> str:
    """Return in words how kernels were launched (by graphs or eagerly), and whether stacks and shapes were recorded."""
    launches: str = "" if profile.graph_share is None else Text("eager mode, no graphs")
    if profile.graph_share:
        share = percent(profile.graph_share, 0 if profile.graph_share >= LITTLE else 1)
        launches = Text("graphs launch {share} of the kernels", share)
    stacks, shapes = (
        profile.setting(name).lower() in _ON if in_events is None else in_events
        for name, in_events in (("stacks", profile.has_stacks), ("shapes", profile.has_shapes))
    )
    contents = _CONTENTS_OF_EVENTS.get((stacks, shapes), "")
    return joined(COMMA, (launches, contents))


def _breakdown_line(
    profile: model.RankProfile, name: str, *, of_all_steps: bool = False, with_lead_in: bool = False
) -> str:
    """Return a line with the parts of a step that take at least 5 % of its time, largest first.

    Time before the first kernel is added from 1 % on. ``name`` is the name of the profile in the line; "" leaves name
    and median out. Without device events, the line has the median time on the host instead. Returns "" for a run on the
    CPU alone: the finding's evidence has its times. With ``of_all_steps``, it has the sum of the steps instead of the
    median: one of them takes much longer. With ``with_lead_in``, the time before the first kernel is one of the
    parts, as in the headline.
    """
    if profile.on_host:
        return ""
    if not profile.total_ns:
        return Text(
            "no events of a known device found; the median step takes {time} on the host", in_ms(profile.host_median_ns)
        )
    labels = {**model.PARTS, **model.FREE, model.LEAD_IN: Text("time before the first kernel")}
    total, before = in_ms(profile.total_ns), profile.sum_ns(model.LEAD_IN)
    of_all = with_lead_in and not name and before >= LITTLE * profile.total_ns
    whole = profile.total_ns + (before if of_all else 0)
    shares = {part: profile.sum_ns(part) / whole for part in (*model.PARTS, *([model.LEAD_IN] if of_all else ()))}
    largest = sorted(shares, key=shares.__getitem__, reverse=True)
    parts = shares_words({labels[part]: shares[part] for part in largest if shares[part] >= LITTLE})
    if of_all:
        return Text("breakdown of all {time}: {parts}", time=in_ms(whole), parts=parts)
    line = Text("breakdown: {parts}", parts)
    if name and of_all_steps:
        line = Text(
            "breakdown of {rank}, all {count} steps together ({time}): {parts}",
            rank=name,
            count=len(profile.units),
            time=total,
            parts=parts,
        )
    elif name:
        median = in_ms(profile.median_ns)
        line = Text("breakdown of {rank}, median step {median}: {parts}", rank=name, median=median, parts=parts)
    elif before >= LITTLE * profile.total_ns:  # the headline's share may be of both
        line = Text("breakdown of the {time} from the first kernel on: {parts}", time=total, parts=parts)
    if before >= NOTABLE * profile.total_ns:
        return Text("{breakdown}; plus {time} before the first kernel", breakdown=line, time=in_ms(before))
    return line


def _families_line(profile: model.RankProfile) -> str:
    """Return a line with the five largest families of kernels, such as attention; those below 1 % are left out."""
    kernels = {name: ns for name, ns in profile.families.items() if name not in (HOST_BOUND, OUTSIDE_FORWARD)}
    whole = sum(kernels.values())
    if not whole or not (profile.computing_ns or not profile.share("compute_ns")):  # tables need not have all kernels
        return ""
    largest = [(name, ns) for name, ns in kernels.items() if ns >= NOTABLE * whole][:_MOST]
    shares = shares_words({FAMILIES[name]: ns / whole for name, ns in largest}, places=0)
    return Text("kernel time by family: {families}", shares)


def _largest_idle_time_line(profile: model.RankProfile, *, of_all_steps: bool = False) -> str:
    """Return a line on the place in the program where the device was idle longest; "" if below 1 % of the time.

    The time before the first kernel does not count. Also "" if kernels are missing in the trace. With ``of_all_steps``,
    the time is the sum of all steps, not that per step.
    """
    gap = next((gap for gap in profile.gaps if gap.part != model.LEAD_IN), None)
    if gap is None or not _has_all_kernels(profile) or gap.ns < NOTABLE * profile.total_ns:
        return ""
    on_host = host_activity(gap)
    place = on_host if gap.call or gap.within else joined(COMMA, (place_of(gap), on_host))
    ns = time_with_cut(profile, gap)
    values = {"share": percent(ns / (profile.total_ns + profile.cut_ns or 1)), "place": place}
    if of_all_steps:
        return Text("largest idle time: {time} in all steps together ({share}), {place}", time=in_ms(ns), **values)
    time, step = in_ms(ns / len(profile.units)), unit_word(profile)
    return Text("largest idle time: {time} per {step} ({share}), {place}", time=time, step=step, **values)


def _longest_kernel_line(profile: model.RankProfile, leading: model.Diagnosis, *, in_headline: bool = False) -> str:
    """Return a line on the compute kernel that takes the most time; "" if that is less than a fifth of the time."""
    kernel = next((kernel for kernel in profile.kernels if kernel.kind == model.COMPUTE), None)
    saved = (leading.saving_ns or 0) * len(profile.units)
    if kernel is None or kernel.ns < _LARGE * profile.total_ns or kernel.ns < saved:
        return ""
    values = _time_and_share(profile, kernel.ns)
    if in_headline:
        name = short(kernel.name, _KERNEL_ROOM_IN_HEADLINE)
        operator = profile.operator_of(kernel)
        if operator and operator != kernel.name:
            name = Text("{kernel} of {operator}", kernel=name, operator=short(operator))
        line = Text("longest kernel: {kernel}, {time} ({share})", kernel=name, **values)
        more = _quantization_words(profile, kernel) or _longest_operator_words(profile, kernel.family)
        return joined(SEMICOLON, (line, more))
    name, step = short(kernel.name, _KERNEL_ROOM), unit_word(profile)
    return Text("longest kernel: {kernel}, {time} per {step} ({share})", kernel=name, step=step, **values)


def _unaligned_words(profile: model.RankProfile) -> str:
    """Return the time of matmuls with a weight of an unaligned size, per step, and its share; "" without such ones."""
    size, ns, name = unaligned_size(profile) or (0, 0, "")
    if not ns:
        return ""
    return Text(
        "matmuls ({operator}) with a size of {size:,}, no multiple of 8: {time} ({share})",
        operator=name, size=size, **_time_and_share(profile, ns),
    )  # fmt: skip


def _time_and_share(profile: model.RankProfile, ns: int) -> dict[str, str]:
    """Return the mean per step of ``ns``, a sum over all steps, and its share of their time, in words."""
    return {"time": in_ms(ns / len(profile.units)), "share": percent(ns / (profile.total_ns or 1), 0)}


def _quantization_words(profile: model.RankProfile, longest: model.Kernel) -> str:
    """Return the time of kernels that cast, scale or quantize; "" unless clearly more than the ``longest``."""
    ns = sum(
        kernel.ns for kernel in profile.kernels
        if kernel.family == ELEMENTWISE and is_quantization(kernel.name)
    )  # fmt: skip
    if ns < _CLEARLY_LONGER * longest.ns:
        return ""
    return Text("casts, scales and quantization: {time} ({share})", **_time_and_share(profile, ns))


def _longest_operator_words(profile: model.RankProfile, longest_family: str) -> str:
    """Return the operator with most time of the family with half of the kernel time, unless it is ``longest_family``.

    The shape of its first input is added if it was recorded. "" without such a family or operator.
    """
    families = Counter[str]()
    for kernel in profile.kernels:
        families[kernel.family] += kernel.ns
    ((family, family_ns),) = families.most_common(1)
    sums = Counter[tuple[str, str]]()
    for (name, operator, shapes), ns in profile.kernel_operators.items():
        if family_of(name, model.COMPUTE) == family:
            sums[operator, shapes] += ns
    if family == longest_family or 2 * family_ns < families.total() or not sums:
        return ""
    (operator, shapes), ns = sums.most_common(1)[0]
    inputs = inputs_of(shapes, "[]")
    shape = next(filter(None, inputs.shapes), None) if inputs else None
    label = f"{short(operator)} {[*shape]}" if shape else short(operator)
    values = {"family": FAMILIES[family], "operator": label, **_time_and_share(profile, ns)}
    return Text("longest in {family}: {operator}, {time} ({share})", **values)


def _largest_warning_line(report: model.TraceReport, focus: model.RankProfile) -> str:
    """Return a line on the largest warning that the verdict, computing, outweighs; "" without one."""
    warnings = (finding for finding in report.findings if finding.severity == "warning" and finding.id != "outlier")
    warning = next(warnings, None)
    return Text("also: {finding}", _headline(report, focus, warning, warning.title)) if warning else ""


def _is_large_on_host(finding: model.Diagnosis, leading: model.Diagnosis, focus: model.RankProfile) -> bool:
    """Tell whether a ``finding`` takes a fifth of a step without a device, beside a verdict on the typical step."""
    is_beside = leading is not finding and leading.id in ("host-operators", "host-idle")
    return is_beside and (finding.saving_ns or 0) >= _LARGE * focus.host_median_ns


def _idle_host_line(report: model.TraceReport, leading: model.Diagnosis, focus: model.RankProfile) -> str:
    """Return a line on a place where no operator runs, beside a verdict on the operators; "" without a large one."""
    idle = next((finding for finding in report.findings if finding.id == "host-idle"), None)
    return Text("also: {finding}", idle.evidence) if idle and _is_large_on_host(idle, leading, focus) else ""


def _slow_steps_line(report: model.TraceReport, leading: model.Diagnosis, focus: model.RankProfile) -> str:
    """Return a line on steps that are slower than the others, besides the verdict; "" without such steps."""
    slow = next((finding for finding in report.findings if finding.id == "outlier"), None)
    if not leading.id or slow is None or not slow.saving_ns or slow is leading:
        return ""
    is_same_cause = leading.step is not None and slow.same_as == leading.id
    is_same_trend = focus.on_host and slow.slow_steps is None and slow.advice == leading.advice
    if is_same_cause or is_same_trend:
        return ""
    if slow.severity != "warning" and not _is_large_on_host(slow, leading, focus):
        return ""
    if slow.slow_steps is None:
        return Text(
            "also: {title}; averaged over all steps, the cost is {time} per step",
            title=slow.title,
            time=in_ms(slow.saving_ns),
        )
    steps = _slow_steps_words(slow.slow_steps)
    if len(report.captures) > 1:
        profile = next((profile for profile in report.captures if profile.source == slow.source), focus)
        steps = Text("{profile}: {evidence}", profile=profile.label, evidence=steps)
    return Text("also: {finding}", steps)


def _slow_steps_words(slow: model.SlowSteps) -> str:
    """Return which steps are slow, by how much they exceed the median step, and the cause if it is known."""
    first, time = slow.host_number, in_ms(slow.excess_ns)
    if len(slow.numbers) > 1:
        numbers = listed(slow.numbers)
        steps = Text("steps {numbers} take up to {time} longer than the median step", numbers=numbers, time=time)
        cause = Text("in the slowest step, {cause}", slow.cause) if slow.cause else ""
        return joined(SEMICOLON, (steps, cause))
    steps = Text("step {number} takes {time} longer than the median step", number=first, time=time)
    return Text("{title}: {cause}", title=steps, cause=slow.cause) if slow.cause else steps


def _to_do_line(leading: model.Diagnosis, focus: model.RankProfile) -> str:
    """Return a line with the advice of the leading finding and the most that it can save; "" without advice."""
    if not leading.advice:
        return ""
    if not leading.saving_ns or leading.step is not None or leading.id == "outlier":
        return Text("to do: {advice}", leading.advice)
    saving = in_ms(leading.saving_ns)
    if is_whole_trace(focus):
        return Text("to do: {advice}. Saves at most {saving}", advice=leading.advice, saving=saving)
    return Text(
        "to do: {advice}. Saves at most {saving} per {step}",
        advice=leading.advice,
        saving=saving,
        step=unit_word(focus),
    )


def _little_to_gain_line(profile: model.RankProfile, leading: model.Diagnosis) -> str:
    """Return a line on changes with little to gain, each with its largest possible saving, which is below 5 %.

    Communication is left out if the finding is on that of other ranks.
    """
    if not profile.total_ns or not leading.id:
        return ""
    shares = {part: profile.share(part) for part in _PARTS}
    shares["compute_ns"] = profile.share("compute_ns", "overlap_ns")
    changes = [
        Text("{change} (at most {share})", change=change, share=percent(shares[part]))
        for part, (change, diagnosis) in _PARTS.items()
        if 0.0005 <= shares[part] < LITTLE
        and diagnosis not in profile.withdrawn
        and not (diagnosis == "communication" and leading.id in exposed.IDS)
    ]
    return Text("little to gain from: {changes}", joined(COMMA, changes)) if changes else ""


def _certainty_line(profile: model.RankProfile, leading: model.Diagnosis) -> str:
    """Return a line on how sure the verdict is: number of steps, range of their times, certainty of `leading`."""
    if not _has_all_kernels(profile):
        return ""
    count = len(profile.units)
    whole = profile.units[:-1] if profile.cut_ns else profile.units
    times = sorted(unit.device_ns or unit.host_ns for unit in whole)
    singular, plural = _UNITS[unit_word(profile)]
    if count < _FEW:
        units = Text("only {steps}", Text("1 {step}", singular) if count == 1 else plural.filled(count))
    else:
        low, high = in_ms(times[0]), in_ms(times[-1])
        median = in_ms(profile.median_ns or profile.host_median_ns)
        units = Text(
            "{steps} take {low} to {high}, median {median}",
            steps=plural.filled(len(whole)),
            low=low,
            high=high,
            median=median,
        )
    return Text("how sure: {reasons}", joined(SEMICOLON, (units, leading.certainty)))


def _next_command_line(report: model.TraceReport, focus: model.RankProfile, command: str) -> str:
    """Return a line with the next command: a report on all ranks if traces of other ranks matter, else an HTML page.

    "" if ``command`` writes the page already.
    """
    ids = {finding.id for finding in report.findings}
    is_one_of_many = len(report.captures) == 1 and (focus.world or 1) > 1
    if "missing-ranks" in ids or (is_one_of_many and ids & {"communication", "collective-outlier"}):
        return Text("next: `rlpatch report FOLDER`, where FOLDER has the traces of all ranks")
    if any(word.startswith(("-o", "--output")) for word in command.split()):
        return ""
    page_command = f"{command or 'rlpatch report'} -o report.html"
    return Text("next: {command}", page_command)
