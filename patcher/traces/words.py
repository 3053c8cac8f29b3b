"""Numbers, names and phrases as reports and pages show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from patcher.messages import COMMA, SEMICOLON, Text, joined
from patcher.traces.families import kernel_label

_LISTED = 6  # units by name
_ROOM = 40  # characters of a name in a line
_HOST_ROOM = 60  # characters of a name of the host: a file and a function
_NAME = 300  # characters of a name: a template's instance can have thousands


def tick(ns: float) -> str:
    """Return nanoseconds as the label of an axis, with up to two decimals and no trailing zeros."""
    number, _, unit = duration(ns).partition(" ")
    return " ".join(filter(None, (number.rstrip("0").rstrip(".") if "." in number else number, unit)))


def cut(name: str, length: int = _NAME) -> str:
    """Return a name cut to ``length`` characters: … replaces its end if ``length`` is under 40, else its middle."""
    if len(name) <= length:
        return name
    head = length - 1 if length < _ROOM else length // 2
    return f"{name[:head]}…{name[len(name) - length + head + 1 :]}"


def duration(ns: float) -> str:
    """Return nanoseconds as text in the unit that fits: ``1.50 ms``; "0" for 0."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(ns) >= size:
            return f"{ns / size:,.2f} {unit}"
    return f"{ns:,.0f} ns" if ns else "0"


def size(number: float) -> str:
    """Return bytes as text in the unit that fits, in powers of 1000: ``1.5 MB``."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= factor:
            return f"{number / factor:,.1f} {unit}"
    return f"{number:,.0f} B"


def signed(ns: float) -> str:
    """Return a difference in nanoseconds as text, with its sign and the unit that fits."""
    return f"{sign(ns)}{duration(abs(ns))}"


def sign(number: float) -> str:
    """Return the sign of a number; ± for 0."""
    return "+" if number > 0 else "\N{MINUS SIGN}" if number < 0 else "±"


def millis(ns: float) -> str:
    """Return nanoseconds as milliseconds with three decimals, without a unit."""
    return f"{ns / 1e6:,.3f}"


def micros(ns: float) -> str:
    """Return nanoseconds as microseconds with one decimal, without a unit."""
    return f"{ns / 1e3:,.1f}"


def percent(share: float, places: int = 1) -> str:
    """Return a share (0 to 1) as text in percent."""
    return f"{100 * share:.{places}f} %"


def shares_words(shares: Mapping[str, float], places: int = 1) -> Text:
    """Return categories with their shares (0 to 1) as text, such as "computing 60.1 %, idle 39.9 %"."""
    percents = ((category, percent(share, places)) for category, share in shares.items())
    return joined(COMMA, (Text("{category} {share}", category=name, share=share) for name, share in percents))


def in_ms(ns: float) -> str:
    """Return nanoseconds as milliseconds with two decimals and their unit."""
    return f"{ns / 1_000_000:,.2f} ms"


def short(name: str, room: int = _ROOM) -> str:
    """Return a name cut to ``room`` characters, with unprintable ones replaced by a question mark.

    A longer name of a kernel in C++ is first replaced by its `kernel_label`.
    """
    text = cut(kernel_label(name), room) if len(name) > room else name
    return "".join(character if character.isprintable() else "?" for character in text)


def shorten_distinct(names: Sequence[str], room: int = _ROOM) -> list[str]:
    """Return names shortened to ``room`` characters, in order; names that would look alike keep what differs."""
    labels = Counter(kernel_label(name) for name in dict.fromkeys(names))
    names = [kernel_label(name) if len(name) > room and labels[kernel_label(name)] == 1 else name for name in names]
    shortened = [short(name, room) for name in names]
    by_text: dict[str, dict[str, int]] = {}
    for name, text in zip(names, shortened, strict=True):
        by_text.setdefault(text, {}).setdefault(name, 0)
    for at, (name, text) in enumerate(zip(names, shortened, strict=True)):
        if len(by_text[text]) > 1:
            shortened[at] = _around(name, max(_shared(name, other) for other in by_text[text] if other != name), room)
    return shortened


def _shared(name: str, other: str) -> int:
    differing = (at for at, (first, two) in enumerate(zip(name, other, strict=False)) if first != two)
    return next(differing, min(len(name), len(other)))


def _around(name: str, place: int, room: int) -> str:
    """Return a name in ``room`` characters: its beginning, and the characters around position ``place``."""
    head = room // 3
    shortened = f"{name[:head]}…{name[max(place - room // 6, head) :]}"
    return short(shortened if len(shortened) <= room else f"{shortened[: room - 1]}…", room)


def spread(least: int, most: int) -> str:
    """Return the range from ``least`` to ``most`` as text; one number if they are equal."""
    return f"{least:,}" if least == most else Text("{least:,} to {most:,}", least=least, most=most)


def baseline_words(folder: str, medians_ns: Sequence[int]) -> str:
    """Return in words how many runs a baseline has, and the least and the largest of their medians."""
    first = in_ms(min(medians_ns))
    if len(medians_ns) == 1:
        return Text("baseline {folder}: 1 run, median step time {time}", folder=folder, time=first)
    last = in_ms(max(medians_ns))
    return Text(
        "baseline {folder}: {count} runs, whose median step times are {shortest} to {longest}",
        folder=folder,
        count=len(medians_ns),
        shortest=first,
        longest=last,
    )


def listed(numbers: Sequence[object]) -> str:
    """Return the first six of some numbers as text, with … if there are more."""
    return ", ".join(map(str, numbers[:_LISTED])) + (" …" if len(numbers) > _LISTED else "")


def number_ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers as text, with three or more neighbours as a range: ``0-3,8``; "" for none."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def uncounted_phrase(uncounted: Mapping[int, int]) -> str:
    """Return a phrase on uncounted iterations: how many, and before which steps, of which up to six are named.

    ``uncounted`` maps the number of a step to the iterations right before it.
    """
    count, units = sum(uncounted.values()), listed([f"#{at}" for at in sorted(uncounted)])
    if count == 1:
        return Text("1 iteration right before {steps} was not counted as a step", units)
    return Text("{count:,} iterations right before {steps} were not counted as steps", count=count, steps=units)


def cold_start_phrase(numbers: Sequence[int]) -> str:
    """Return a phrase that the steps with ``numbers``, at least one, include the profiler's start-up cost.

    No step came before these, so the profiler had none to warm up in. Up to six of them are named.
    """
    if len(numbers) == 1:
        return Text(
            "step #{number} includes the profiler's start-up cost, because there is no earlier step for the warm-up",
            numbers[0],
        )
    return Text(
        "the steps {step_numbers} include the profiler's start-up cost, because there are no earlier steps for the"
        " warm-up",
        listed([f"#{number}" for number in numbers]),
    )


def replays_phrase(count: int, complete: int, why: Sequence[str]) -> str:
    """Return a phrase on how many of ``count`` graph replays were matched with their capture (``complete``).

    ``why`` has the reasons why the other ones were not.
    """
    text = Text(
        "{complete:,} of {count:,} graph replays were matched with the operators, modules and shapes of their capture",
        complete=complete,
        count=count,
    )
    if not why:
        return text
    return Text(
        "{replays}; the other replays were not matched with a capture: {reasons}",
        replays=text,
        reasons=joined(SEMICOLON, why),
    )


def host_name(name: str) -> str:
    """Return the name of a call, frame, range, operator or module, cut to 60 characters.

    A frame loses its first folders, so that its file and function stay; anything else is cut in its middle.
    """
    path, bracket, function = name.partition("(")
    folders = path.split("/") if path.endswith(".py") else []
    shortened = name
    while len(shortened) > _HOST_ROOM and len(folders) > 1:
        del folders[0]
        shortened = f"…/{'/'.join(folders)}{bracket}{function}"
    return "".join(character if character.isprintable() else "?" for character in cut(shortened, _HOST_ROOM))
