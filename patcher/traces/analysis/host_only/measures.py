"""Medians, the time of a step in collectives, and names that tell something."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from patcher.traces import model
from patcher.traces.analysis.host_steps import is_library
from patcher.traces.families import COLLECTIVE
from patcher.traces.operator_families import operator_family
from patcher.traces.work import inputs_of

Key = TypeVar("Key", bound=Hashable)

MOST_NAMED = 3  # operators or places that a sentence names
FREQUENT = 2  # operators that a headline names

_PAIRS = re.compile(r"send|recv")
"""Communication of two ranks, as between the stages of a pipeline."""

FEW_STEPS = 3
"""Steps from which on one of them can be an exception."""

_COMPREHENSION = re.compile(r": <\w+>$")
"""End of the name of a frame that is part of a function, such as ``f.py(5): <listcomp>``."""


def communicating(step: model.HostStep, collective: str = "") -> int:
    """Return for how many ns of a step no operator runs during a collective of this kind; "" for any kind."""
    return sum(ns for place, ns in step.places.items() if meets(place) and collective in ("", place.inside))


def between_two(step: model.HostStep) -> int:
    """Return for how many ns of a step no operator runs during sends and receives."""
    return sum(ns for place, ns in step.places.items() if communicates(place) and not meets(place))


def meets(place: model.HostPlace) -> bool:
    """Tell whether all ranks meet at a place, in a collective; sends and receives do not count."""
    return communicates(place) and not _PAIRS.search(place.inside)


def in_collectives(profile: model.RankProfile) -> int:
    """Return the ns of all steps of a rank in collectives, with and without their operators."""
    return sum(communicating(step) + in_collective_operators(step) for step in profile.host_steps)


def in_collective_operators(step: model.HostStep) -> int:
    """Return for how many ns of a step operators of collectives run, such as ``c10d::broadcast_``."""
    return sum(ns for name, ns in step.operators.items() if operator_family(name) == COLLECTIVE)


def median(values: Sequence[int]) -> int:
    """Return the lower median of times in ns; 0 without any."""
    return model.lower_median(values) if values else 0


def typical(of_steps: Sequence[Mapping[Key, int]]) -> Counter[Key]:
    """Return the lower median over all steps by key, in order of the first step with it; steps without it count 0."""
    keys = dict.fromkeys(key for of_step in of_steps for key in of_step)
    return Counter({key: median([of_step.get(key, 0) for of_step in of_steps]) for key in keys})


def totals(of_steps: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Return the sums over all steps, by name."""
    return sum(map(Counter, of_steps), Counter[str]())


def steps_numbered(profile: model.RankProfile, *numbers: int) -> list[model.HostStep]:
    """Return the steps of a profile without a device that have the ``numbers``; [] if it lacks one of them."""
    steps = {step.number: step for step in profile.host_steps}
    return [steps[number] for number in numbers] if steps.keys() >= {*numbers} else []


def communicates(place: model.HostPlace) -> bool:
    """Tell whether a collective on the CPU runs at a place, for which the host waits."""
    return bool(place.inside) and operator_family(place.inside) == COLLECTIVE


def names_cause(place: model.HostPlace) -> bool:
    """Tell whether a place says what happens there, and not only between which operators it lies."""
    return bool(place.inside) or place.saving


def is_whole_trace(profile: model.RankProfile) -> bool:
    """Tell whether nothing marks steps, and the whole trace counts as one."""
    unit = profile.metadata.unit if profile.metadata else ""
    return not profile.marks and not unit and len(profile.units) == 1


def is_function(name: str) -> bool:
    """Tell whether a frame or range is a named part of the program's own: no comprehension, and of no library."""
    return not is_library(name) and not _COMPREHENSION.search(name)


def elements(shapes: str) -> int:
    """Return the number of elements of all inputs of an operator; 0 if their shapes are malformed."""
    inputs = inputs_of(shapes, "[]")
    return sum(math.prod(shape) for shape in inputs.shapes if shape) if inputs else 0
