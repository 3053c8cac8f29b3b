"""Reasons why a step takes longer than the median step."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from patcher.messages import COMMA, SEMICOLON, Text, joined, sentences
from patcher.traces import model
from patcher.traces.analysis.checks import NOTABLE
from patcher.traces.analysis.host_only.large_ranges import NOT_WHOLE
from patcher.traces.analysis.host_only.measures import MOST_NAMED, elements, is_function, names_cause, steps_numbered
from patcher.traces.analysis.host_only.trends import trend_of_steps
from patcher.traces.analysis.host_only.wording import (
    COMPILES,
    MORE_WORK,
    WITH_SHAPES,
    WITH_STACKS,
    advice_on,
    place_words,
)
from patcher.traces.words import host_name, in_ms
from patcher.traces.work import inputs_of

_LARGER = 1.3  # times as many elements of inputs, from which on their size may be the cause
SIMILAR = 4
"""Part of the largest excess of a step from which on another one counts as slow, too."""

_ALTERNATING = 3
"""Slow steps from which on equal distances between them are no accident."""

_LINEAR = "aten::linear"
"""Operator whose second input is a weight of the model."""


class HostExcess(NamedTuple):
    """By what a step exceeds another one, in sentences; the cause for the headline, and advice, "" where unknown."""

    evidence: str
    cause: str = ""
    advice: str = ""


def excess(profile: model.RankProfile, slowest: int, usual: int) -> HostExcess:
    """Return why the step with number ``slowest`` takes longer than the step ``usual``.

    It is torch.compile or a place without operators, if that takes half of the additional time. Else it is a range or
    an operator if the steps ran different numbers of operators, or their inputs if not. All texts are "" if the profile
    does not have both steps, as for steps on a device.
    """
    both = steps_numbered(profile, slowest, usual)
    if not both:
        return HostExcess("")
    slow, typical = both
    whole = slow.ns - typical.ns
    compiling = slow.compiling_ns - typical.compiling_ns
    if 2 * compiling >= whole:
        took = Text("torch.compile takes {time} of this step's additional time.", in_ms(compiling))
        return HostExcess(took, Text("torch.compile compiles during this step"), COMPILES)
    outside = Counter({place: ns - typical.places.get(place, 0) for place, ns in slow.places.items()})
    for place, ns in outside.most_common(1):
        if 2 * ns >= whole:
            return _excess_at_place(place, ns)
    longer_by_operator = _longer_by_operator(slow, typical)
    most = Counter({host_name(name): ns for name, ns in longer_by_operator.items()})
    most.update({place_words(place): ns for place, ns in outside.items()})
    sentence = _largest_parts(most, whole)
    within = _excess_in_range(slow, typical, longer_by_operator if trend_of_steps(profile.host_steps) else None)
    if sum(slow.calls.values()) != sum(typical.calls.values()):
        return _excess_by_calls(slow, typical, longer_by_operator, sentence, within)
    more = _excess_by_inputs(slow, typical, longer_by_operator, within)
    if not more.evidence and slow.inputs and slow.inputs == typical.inputs:
        more = _excess_on_same_inputs(longer_by_operator, whole)
    if not more.evidence:
        unknown = Text(
            "This step was longer but ran as many operators as the median step: either its inputs were larger, or"
            " another process held the CPU core."
        )
        see = Text("{command} also records the shapes of the operators' inputs.", WITH_SHAPES)
        has_shapes = slow.inputs or profile.setting("shapes").lower() in ("1", "true")  # of operators that count
        more = HostExcess(sentences(unknown, "" if has_shapes else see))
    return more._replace(evidence=sentences(sentence, more.evidence))


def _longer_by_operator(slow: model.HostStep, typical: model.HostStep) -> Counter[str]:
    """Return by how many ns the operators of a ``slow`` step take longer than in the ``typical`` one, by name."""
    return Counter({name: ns - typical.operators.get(name, 0) for name, ns in slow.operators.items()})


def _largest_parts(longer: Counter[str], whole: int) -> str:
    """Return the sentence on what takes most of the ``whole`` ns that a slow step takes longer; "" below a tenth each.

    ``longer`` maps the name of an operator or place to how many ns it takes longer.
    """
    largest = [
        Text("{name} {time}", name=name, time=in_ms(ns))
        for name, ns in longer.most_common(MOST_NAMED)
        if ns >= NOTABLE * whole
    ]
    return Text("Largest parts of this step's additional time: {names}.", joined(COMMA, largest)) if largest else ""


def causes_differ(profile: model.RankProfile, slow: Sequence[int], usual: int, cause: str) -> bool:
    """Tell whether a ``slow`` step takes longer than the step ``usual`` for another cause than ``cause``, or unknown.

    Steps are told by their numbers. False if ``cause`` is "", or if the steps ran on a device.
    """
    return bool(cause) and profile.on_host and any(excess(profile, number, usual).cause != cause for number in slow)


def alternation(profile: model.RankProfile, slow: Sequence[int], usual: int) -> str:
    """Return the headline on steps of two kinds that alternate; "" if they do not, or ran on a device.

    They do if at least three ``slow`` steps follow each other at equal distances of over 1. All have to run the same
    operators on inputs of the same sizes. These differ from those of the step ``usual`` and take most of the additional
    time. The headline is "", too, if a range around the operators explains it.
    """
    steps = {step.number: step for step in profile.host_steps}
    distances = {following - number for number, following in itertools.pairwise(slow)}
    if len(slow) < _ALTERNATING or len(distances) > 1 or distances == {1} or not steps:
        return ""
    typical, kind, *other_slow = (steps[number] for number in (usual, *slow))
    longer = kind.ns - typical.ns
    running = sum(kind.operators.values()) - sum(typical.operators.values())
    work, usual_work, *other_work = ((step.calls, step.inputs) for step in (kind, typical, *other_slow))
    is_another = work != usual_work and all(each == work for each in other_work)
    if not is_another or 2 * running < longer or _excess_in_range(kind, typical, None):
        return ""
    return Text(
        "Steps of two kinds alternate, and {count} of {total} take much longer than the others",
        count=len(slow),
        total=len(steps),
    )


def _excess_by_calls(
    slow: model.HostStep, typical: model.HostStep, longer_by_operator: Counter[str], largest_parts: str,
    within: HostExcess | None,
) -> HostExcess:  # fmt: skip
    """Return why a ``slow`` step with more or fewer operators takes longer than ``typical``: a range, or an operator.

    The cause is "" if neither takes half of the additional time. ``longer_by_operator`` maps the name of an operator to
    the ns by which it took longer. ``largest_parts`` is a sentence on what took most of the additional time, told where
    no range did: ``within`` is the explanation by one.
    """
    whole, calls, usual_calls = slow.ns - typical.ns, sum(slow.calls.values()), sum(typical.calls.values())
    counts = Text("This step ran {count:,} operators, the median step {median:,}.", count=calls, median=usual_calls)
    advice: str = ""
    if calls >= (1 + NOTABLE) * usual_calls and 2 * longer_by_operator.total() >= whole:
        advice = MORE_WORK
    if within:
        return within._replace(evidence=sentences(within.evidence, counts), advice=advice)
    (name, ns), *_ = longer_by_operator.most_common(1) or [("", 0)]
    cause = Text("most of the additional time is spent in {place}", host_name(name)) if 2 * ns >= whole else ""
    return HostExcess(sentences(largest_parts, counts), cause, advice)


def _excess_in_range(slow: model.HostStep, typical: model.HostStep, growing: Counter[str] | None) -> HostExcess | None:
    """Return the explanation of a step that is longer mainly in one range; None without one that tells anything.

    Ranges that take half of the ``typical`` step do not. Of ranges around each other, the innermost one is named. If
    step times rise or fall throughout, ``growing`` maps operators to the ns by which they take longer. Then functions
    count, too, and even long ones are what changes. The operator with half of the additional time comes beside them.
    """
    times, usual = (Counter(step.ranges) | Counter(step.functions if growing else {}) for step in (slow, typical))
    whole, longest_part = slow.ns - typical.ns, (NOT_WHOLE if growing else 0.5) * typical.ns
    telling = [
        (ns, name) for name, ns in times.items()
        if 2 * (ns - usual[name]) >= whole and usual[name] < longest_part and is_function(name)
    ]  # fmt: skip
    if not telling:
        return None
    ns, name = min(telling)
    evidence = Text(
        "{time} of this step's additional time is spent in {name}.", time=in_ms(ns - usual[name]), name=host_name(name)
    )
    cause: str = Text("most of the additional time is spent in {place}", host_name(name))
    for operator, operator_ns in growing.most_common(1) if growing else ():
        if 2 * operator_ns >= whole:
            cause = Text("{cause}, mostly in {operator}", cause=cause, operator=host_name(operator))
    return HostExcess(evidence, cause)


def _excess_at_place(place: model.HostPlace, ns: int) -> HostExcess:
    """Return the explanation of a step that is longer mainly by ``ns`` at one place without operators."""
    evidence: str = Text(
        "Outside of all operators, the host spends {time} more than in the median step: {place}.",
        time=in_ms(ns),
        place=place_words(place),
    )
    cause = Text("most of the additional time is spent {place}", place_words(place))
    if not names_cause(place):
        see = Text("To see what Python does during this time, record again with {command}.", WITH_STACKS)
        evidence, cause = sentences(evidence, see), Text("{headline}; what ran in this time was not recorded", cause)
    return HostExcess(evidence, cause, advice_on(place))


def _excess_by_inputs(
    slow: model.HostStep, typical: model.HostStep, longer_by_operator: Counter[str], within: HostExcess | None
) -> HostExcess:
    """Explain by their inputs why a ``slow`` step took longer than the ``typical`` one with as many operators.

    Larger inputs are the cause, and the range with most of the additional time, which ``within`` explains. Larger
    weights are of another model, or of other layers, whatever the batch. Inputs that are not larger are evidence
    without a cause. All texts are "" if no sizes are known, or if no size is new in the slow step.
    ``longer_by_operator`` maps the name of an operator to the ns by which it took longer.
    """
    other = _other_inputs(slow, typical, longer_by_operator)
    if other is None:
        return HostExcess("")
    sizes: str = Text(
        "The inputs of {operator} have the shapes {shapes}; in the median step, they have {median_shapes}.",
        operator=host_name(other.name),
        shapes=host_name(other.shapes),
        median_shapes=host_name(other.usual_shapes),
    )
    if not other.are_larger:
        return HostExcess(sizes)
    if other.name == _LINEAR and _shape_of_weight(other.shapes) != _shape_of_weight(other.usual_shapes):
        return HostExcess(sizes, Text("layers whose weights are larger than in the median step"), MORE_WORK)
    cause: str = Text("larger inputs than in the median step")
    if within:
        cause, sizes = joined(SEMICOLON, (cause, within.cause)), sentences(within.evidence, sizes)
    advice = Text("make the inputs of all steps similar in size: sort, split or pack them")
    return HostExcess(sizes, cause, advice)


def _excess_on_same_inputs(longer_by_operator: Counter[str], whole: int) -> HostExcess:
    """Explain why a step took longer than the median step with inputs of the same sizes.

    The operators that took longer are the cause, for an unknown reason, if they have half of the ``whole`` additional
    time in ns. ``longer_by_operator`` maps the name of an operator to the ns by which it took longer.
    """
    least = NOTABLE * sum(ns for ns in longer_by_operator.values() if ns > 0)
    longer = [host_name(name) for name, ns in longer_by_operator.most_common(MOST_NAMED) if ns > 0 and ns >= least]
    if not longer:
        return HostExcess("")
    evidence = Text(
        "This step ran as many operators as the median step, on inputs of the same sizes. Why some took longer was not"
        " recorded."
    )
    cause: str = ""
    if 2 * sum(ns for _, ns in longer_by_operator.most_common(len(longer))) >= whole:
        cause = Text(
            "on inputs of the same sizes, these operators took longer: {operators}; the reason was not recorded",
            joined(COMMA, longer),
        )
    overload = Text(
        "check whether the busy threads of this process (see OMP_NUM_THREADS) and of other processes together"
        " outnumber the CPU cores"
    )
    advice = Text(
        "compare what these operators compute in slow and in other steps, for example whether the values are very small"
        " (try torch.set_flush_denormal(True)); also {advice}",
        overload,
    )
    return HostExcess(evidence, cause, advice)


class OtherInputs(NamedTuple):
    """An operator with the shapes of its largest inputs that only a slow step has, and of the largest in another one.

    Shapes are texts in JSON.
    """

    name: str
    shapes: str
    usual_shapes: str

    @property
    def are_larger(self) -> bool:
        """Whether the inputs have so many more elements that these may be why the step takes longer."""
        return elements(self.shapes) >= _LARGER * elements(self.usual_shapes)


def _other_inputs(
    slow: model.HostStep, typical: model.HostStep, longer_by_operator: Counter[str]
) -> OtherInputs | None:
    """Return the operator that took longer by most, of those with inputs of other shapes in a ``slow`` step; else None.

    ``longer_by_operator`` maps the name of an operator to the ns by which it took longer than in the ``typical`` step.
    """
    for name, _ in longer_by_operator.most_common():
        new, old = (set(step.inputs.get(name, ())) for step in (slow, typical))
        if old and new - old:
            return OtherInputs(name, max(new - old, key=elements), max(old - new or old, key=elements))
    return None


def does_more_work(profile: model.RankProfile, slowest: int, usual: int) -> bool:
    """Tell whether the step ``slowest`` runs more operators than ``usual``, or larger ones, which take its excess.

    That is at least half of the time by which it is longer. Another process on the CPU cores is not the reason then.
    Both are numbers of steps; False for steps that ran on a device, and for unknown numbers.
    """
    both = steps_numbered(profile, slowest, usual)
    if not both:
        return False
    slow, typical = both
    longer = _longer_by_operator(slow, typical)
    if 2 * longer.total() < slow.ns - typical.ns:
        return False
    other = _other_inputs(slow, typical, longer)
    calls, usual_calls = sum(slow.calls.values()), sum(typical.calls.values())
    return calls >= (1 + NOTABLE) * usual_calls or (calls == usual_calls and other is not None and other.are_larger)


def _shape_of_weight(shapes: str) -> tuple[int, ...] | None:
    """Return the shape of the second input of an operator, the weight of a linear layer; None if it is unknown."""
    inputs = inputs_of(shapes, "[]")
    return inputs.shapes[1] if inputs and len(inputs.shapes) > 1 else None
