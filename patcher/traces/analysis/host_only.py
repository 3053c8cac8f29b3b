"""The diagnoses of a trace without a device: compilation, time outside of operators, small operators, an outlier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from patcher.messages import COMMA, Text, joined, sentences
from patcher.traces import model
from patcher.traces.analysis.checks import NOTABLE
from patcher.traces.analysis.host_steps import SMALL_NS
from patcher.traces.words import host_name, in_ms, percent

_STACKS = "rlpatch apply … --contents npu,cpu,stack"
_NAMED = 3  # operators or places that a sentence names


def diagnoses(profile: model.RankProfile) -> Iterator[model.Diagnosis]:
    """Yield the diagnoses of the time on the host of a profile; nothing if it has a device, or no operator."""
    if not profile.on_host or not profile.host_steps:
        return
    small, idle = _small(profile), _idle(profile)
    if small and idle and (small.saving_ns or 0) >= (idle.saving_ns or 0):
        idle = None  # the pauses between the same small operators
    yield from filter(None, (_compiling(profile), small, idle))
    yield _operators(profile)


def excess(profile: model.RankProfile, slowest: int, usual: int) -> str:
    """Return which place or operators the unit ``slowest`` has more time in than ``usual``, as a sentence.

    Both are numbers of units; "" where the profile does not tell.
    """
    steps = {step.number: step for step in profile.host_steps}
    if slowest not in steps or usual not in steps:
        return ""
    slow, typical = steps[slowest], steps[usual]
    outside = {_place_words(place): ns - typical.places.get(place, 0) for place, ns in slow.places.items()}
    inside = {host_name(name): ns - typical.operators.get(name, 0) for name, ns in slow.operators.items()}
    most = Counter({**inside, **outside}).most_common(_NAMED)
    whole = slow.ns - typical.ns
    named = [Text("{name} {time}", name, in_ms(ns)) for name, ns in most if ns >= NOTABLE * whole]
    calls, usual_calls = sum(slow.calls.values()), sum(typical.calls.values())
    if most and most[0][0] in outside and 2 * most[0][1] >= whole:
        one_place = Text(
            "{time} of the difference is one stretch without operators: {place}.", in_ms(most[0][1]), most[0][0]
        )
        named_frame = any(_place_words(place) == most[0][0] and place.inside for place in slow.places)
        see = Text("{command} also records what Python does there.", _STACKS)
        return one_place if named_frame else sentences(one_place, see)
    sentence = Text("Most of the difference: {names}.", joined(COMMA, named)) if named else ""
    if calls == usual_calls:
        return sentences(
            sentence, Text("It ran as many operators as the median unit: compare the sizes of their inputs.")
        )
    counts = Text("It ran {count:,} operators, the median unit {usual:,}.", calls, usual_calls)
    return sentences(sentence, counts)


def _typical(values: Sequence[int]) -> int:
    return model.lower_median(values) if values else 0


def _place_words(place: model.HostPlace) -> str:
    """Return a place without an operator in words."""
    if place.inside and place.around:
        return Text("in {inside} (within {around})", host_name(place.inside), host_name(place.around))
    if place.inside:
        return Text("in {inside}", host_name(place.inside))
    if place.before and place.after:
        return Text("between {before} and {after}", host_name(place.before), host_name(place.after))
    if place.before:
        return Text("after {before}, the last operator", host_name(place.before))
    return Text("before {after}, the first operator", host_name(place.after))


def _idle(profile: model.RankProfile) -> model.Diagnosis | None:
    """Diagnose the place without an operator that most units have and that takes at least 10 % of them; else None."""
    steps = profile.host_steps
    whole, idle = (_typical(values) for values in zip(*((step.ns, step.idle_ns) for step in steps), strict=True))
    places = [(place, ns) for place, ns in _typical_places(steps) if ns >= NOTABLE * whole]
    if not places:
        return None
    (first, longest), *further = places
    evidence = Text(
        "No operator ran on the host for {time} of {whole} ({share} of a unit). Longest stretch: {place},"
        " {longest}.",
        in_ms(idle), in_ms(whole), percent(idle / (whole or 1), 0), _place_words(first), in_ms(longest),
    )  # fmt: skip
    if further:
        names = (Text("{place} {time}", _place_words(place), in_ms(ns)) for place, ns in further[: _NAMED - 1])
        evidence = sentences(evidence, Text("Others: {places}.", joined(COMMA, names)))
    certainty = Text("upper bound; exact for operators that the profiler recorded")
    severity = "warning" if 2 * longest >= whole else "note"
    return model.Diagnosis(
        "host-idle", severity, evidence, longest, certainty, _shorten(first), profile.source
    )  # fmt: skip


def _typical_places(steps: Sequence[model.HostStep]) -> list[tuple[model.HostPlace, int]]:
    """Return each place at which no operator runs, with the lower median of its ns over the units, longest first."""
    times = Counter(
        {
            place: _typical([step.places.get(place, 0) for step in steps])
            for place in dict.fromkeys(place for step in steps for place in step.places)
        }
    )
    return times.most_common()


def _shorten(place: model.HostPlace) -> str:
    """Return what to do about a place without an operator."""
    if "DataLoader" in f"{place.inside} {place.around}":
        return Text("more workers of the data loader (num_workers, prefetch_factor), or less work for each sample")
    if place.inside:
        return Text("shorten this code, or move it to another process or thread")
    return Text("look at what Python does there; {command} also records its frames", _STACKS)


def _small(profile: model.RankProfile) -> model.Diagnosis | None:
    """Diagnose units in which an operator begins every 20 µs or more often; else None."""
    steps = profile.host_steps
    whole, small = _typical([step.ns for step in steps]), _typical([step.small_ns for step in steps])
    if whole > SMALL_NS * _typical([sum(step.calls.values()) for step in steps]):
        return None
    calls = sum((Counter(step.calls) for step in steps), Counter[str]())
    most = ", ".join(f"{host_name(name)} ({count / len(steps):,.0f})" for name, count in calls.most_common(_NAMED))
    evidence = Text(
        "A unit of {whole} runs {count:,.0f} operators, which take {time} including pauses below 0.1 ms. Most"
        " frequent: {names}.",
        in_ms(whole), calls.total() / len(steps), in_ms(small), most,
    )  # fmt: skip
    advice = Text("use fewer and larger operators: vectorise the loop, avoid .item() in it, or use torch.compile")
    return model.Diagnosis("host-small", "warning", evidence, small, Text("upper bound"), advice, profile.source)


def _compiling(profile: model.RankProfile) -> model.Diagnosis | None:
    """Diagnose torch.compile if it works for at least 10 % of the units' time; else None."""
    steps = profile.host_steps
    whole, compiling = sum(step.ns for step in steps), sum(step.compiling_ns for step in steps)
    if not compiling or compiling < NOTABLE * whole:
        return None
    affected = sum(2 * step.compiling_ns * len(steps) >= compiling for step in steps)
    evidence = Text(
        "torch.compile takes {time} in {affected} of {count} units, {share} of their time.",
        in_ms(compiling), affected, len(steps), percent(compiling / whole, 0),
    )  # fmt: skip
    advice = Text("TORCH_LOGS=recompiles shows why it compiles again, for example because a shape changes")
    saving = compiling // len(steps)
    return model.Diagnosis("host-compile", "warning", evidence, saving, Text("upper bound"), advice, profile.source)


def _operators(profile: model.RankProfile) -> model.Diagnosis:
    """Diagnose the operators that take most time on the host, as a note."""
    calls = sorted(profile.operators, key=lambda operator: -operator.host_ns)
    own = sum(call.host_ns for call in calls) or 1
    longest = ", ".join(f"{host_name(call.name)} ({percent(call.host_ns / own, 0)})" for call in calls[:_NAMED])
    ran = sum(sum(step.operators.values()) for step in profile.host_steps)
    whole = sum(step.ns for step in profile.host_steps) or 1
    evidence = Text(
        "No device was recorded. Operators ran on the host for {share} of the time, {time} of a unit. The longest:"
        " {longest}.",
        percent(ran / whole, 0), in_ms(ran / len(profile.units)), longest,
    )  # fmt: skip
    advice = Text(
        "use more threads (OMP_NUM_THREADS), dedicated cores, fewer and larger operators, or another precision"
    )
    return model.Diagnosis("host-operators", "note", evidence, None, "exact", advice, profile.source)
