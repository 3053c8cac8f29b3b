"""Numbers, names and phrases as reports and pages show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from patcher.messages import SEMICOLON, Text, joined

_LISTED = 6  # units by name
_ROOM = 40  # characters of a name in a line
_NAME = 300  # characters of a name: a template's instance can have thousands


def tick(ns: float) -> str:
    """Return nanoseconds beside an axis, with as many places as they need and up to two: steps of 2.5 are not of 2."""
    number, _, unit = duration(ns).partition(" ")
    return " ".join(filter(None, (number.rstrip("0").rstrip(".") if "." in number else number, unit)))


def cut(name: str, length: int = _NAME) -> str:
    """Return a name that fits, with … for what is left out: its end if there is little room, else its middle."""
    if len(name) <= length:
        return name
    head = length - 1 if length < _ROOM else length // 2
    return f"{name[:head]}…{name[len(name) - length + head + 1 :]}"


def duration(ns: float) -> str:
    """Return nanoseconds as people read them."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(ns) >= size:
            return f"{ns / size:,.2f} {unit}"
    return f"{ns:,.0f} ns" if ns else "0"


def size(number: float) -> str:
    """Return bytes as people read them, in powers of 1000."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= factor:
            return f"{number / factor:,.1f} {unit}"
    return f"{number:,.0f} B"


def signed(ns: float) -> str:
    """Return a difference of nanoseconds as people read them."""
    return f"{sign(ns)}{duration(abs(ns))}"


def sign(number: float) -> str:
    """Return the sign of a difference; ± for none."""
    return "+" if number > 0 else "\N{MINUS SIGN}" if number < 0 else "±"


def millis(ns: float) -> str:
    """Return nanoseconds as milliseconds."""
    return f"{ns / 1e6:,.3f}"


def micros(ns: float) -> str:
    """Return nanoseconds as microseconds."""
    return f"{ns / 1e3:,.1f}"


def percent(share: float, places: int = 1) -> str:
    """Return a share of 0 to 1 in percent."""
    return f"{100 * share:.{places}f} %"


def in_ms(ns: float) -> str:
    """Return nanoseconds as milliseconds, with their unit."""
    return f"{ns / 1_000_000:,.2f} ms"


def short(name: str, room: int = _ROOM) -> str:
    """Return a name of a trace as it may stand in a line: cut to fit, and with nothing that a terminal obeys."""
    return "".join(character if character.isprintable() else "?" for character in cut(name, room))


def apart(names: Sequence[str], room: int = _ROOM) -> list[str]:
    """Names for the lines of one table: `short`, and where several would look alike, with the place that differs."""
    shortened = [short(name, room) for name in names]
    by_text: dict[str, dict[str, int]] = {}
    for name, text in zip(names, shortened, strict=True):
        by_text.setdefault(text, {}).setdefault(name, 0)
    for at, (name, text) in enumerate(zip(names, shortened, strict=True)):
        if len(by_text[text]) > 1:
            shortened[at] = _around(name, max(_shared(name, other) for other in by_text[text] if other != name), room)
    return shortened


def _shared(name: str, other: str) -> int:
    """Return how many characters two names begin alike."""
    differing = (at for at, (first, two) in enumerate(zip(name, other, strict=False)) if first != two)
    return next(differing, min(len(name), len(other)))


def _around(name: str, place: int, room: int) -> str:
    """Return a name with what it begins with, and the characters around a ``place`` in it."""
    head = room // 3
    shortened = f"{name[:head]}…{name[max(place - room // 6, head) :]}"
    return short(shortened if len(shortened) <= room else f"{shortened[: room - 1]}…", room)


def spread(least: int, most: int) -> str:
    """Values from ``least`` to ``most``."""
    return f"{least:,}" if least == most else Text("{least:,} to {most:,}", least, most)


def listed(numbers: Sequence[object]) -> str:
    """Return numbers in words, of many the first."""
    return ", ".join(map(str, numbers[:_LISTED])) + (" …" if len(numbers) > _LISTED else "")


def uncounted_between(uncounted: Mapping[int, int]) -> str:
    """The iterations that do not count and lie between units: how many, and before which of these (unit → how many)."""
    count, units = sum(uncounted.values()), listed([f"#{at}" for at in sorted(uncounted)])
    if count == 1:
        return Text("1 uncounted iteration lies between its units, before {units}", units)
    return Text("{count:,} uncounted iterations lie between its units, before {units}", count, units)


def cold_units(numbers: Sequence[int]) -> str:
    """Sentence on the units that carry the profiler's start, because no other came before them to warm up in."""
    if len(numbers) == 1:
        return Text(
            "#{number} is cold: it carries the profiler's own start, because nothing comes before to warm up in",
            numbers[0],
        )
    return Text(
        "{units} are cold: they carry the profiler's own start, because nothing comes before to warm up in",
        listed([f"#{number}" for number in numbers]),
    )


def joined_replays(count: int, complete: int, why: Sequence[str]) -> str:
    """Return how many replays of graphs were joined with what was captured, and why others were not."""
    text = Text(
        "{complete:,} of {count:,} replays of graphs have the operators, modules and shapes of their capture",
        complete,
        count,
    )
    return Text("{replays}; not joined: {why}", text, joined(SEMICOLON, why)) if why else text
