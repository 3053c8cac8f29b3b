"""Numbers, names and phrases as reports and pages show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_LISTED = 6  # units by name
_NAME = 300  # characters of a name: a template's instance can have thousands


def cut(name: str, length: int = _NAME) -> str:
    """A name that fits, with … for what is left out."""
    return name if len(name) <= length else f"{name[: length - 1]}…"


def duration(ns: float, places: int = 2) -> str:
    """Nanoseconds as people read them."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(ns) >= size:
            return f"{ns / size:,.{places if ns % size or places > 1 else 0}f} {unit}"
    return f"{ns:,.0f} ns" if ns else "0"


def signed(ns: float) -> str:
    """A difference of nanoseconds as people read them."""
    return f"{sign(ns)}{duration(abs(ns))}"


def sign(number: float) -> str:
    """The sign of a difference; ± for none."""
    return "+" if number > 0 else "\N{MINUS SIGN}" if number < 0 else "±"


def millis(ns: float) -> str:
    """Nanoseconds as milliseconds."""
    return f"{ns / 1e6:,.3f}"


def micros(ns: float) -> str:
    """Nanoseconds as microseconds."""
    return f"{ns / 1e3:,.1f}"


def percent(share: float, places: int = 1) -> str:
    """A share of 0 to 1 in percent."""
    return f"{100 * share:.{places}f} %"


def in_ms(ns: float) -> str:
    """Nanoseconds as milliseconds, with their unit."""
    return f"{ns / 1_000_000:,.2f} ms"


def short(name: str, room: int = 40) -> str:
    """A name of a trace as it may stand in a line: not longer than that, and with nothing that a terminal obeys."""
    clean = "".join(character if character.isprintable() else "?" for character in name[:room])
    return clean if len(name) <= room else f"{clean[:-1]}…"


def spread(least: int, most: int) -> str:
    """Values from ``least`` to ``most``."""
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def listed(numbers: Sequence[int]) -> str:
    """Numbers in words, of many the first."""
    return ", ".join(map(str, numbers[:_LISTED])) + (" …" if len(numbers) > _LISTED else "")


def uncounted_between(uncounted: Mapping[int, int]) -> str:
    """The iterations that do not count and lie between units: how many, and before which of these (unit → how many)."""
    count = sum(uncounted.values())
    lie = "1 uncounted iteration lies" if count == 1 else f"{count:,} uncounted iterations lie"
    listed = ", ".join(f"#{at}" for at in sorted(uncounted)[:_LISTED])
    return f"{lie} between its units, before {listed}{' …' if len(uncounted) > _LISTED else ''}"
