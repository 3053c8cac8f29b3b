"""Windows: the units that are recorded, half open, and how the user types them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from patcher.messages import Problem, Text, usage
from patcher.options.notations import shortened, whole_number

WHOLE = "whole"
"""The unit of a stage that has no window: it is recorded, or set, from its beginning to its end."""

OPEN_END = 10**9
"""The end of a window without one, such as ``30:``: no rollout and no loop has that many units."""


class WindowUnit(NamedTuple):
    """Unit that a window counts, from `first` on.

    `before` is the message for a smaller number, and `instead` the option to use then. Units with `loop` contain each
    other, such as mini-batches and micro-batches, and are marked together.
    """

    name: str
    about: str
    first: int = 0
    before: str = ""
    instead: str = ""
    loop: bool = True


ROLLOUT_UNITS = (
    WindowUnit(
        "decode",
        "Decode steps A to B-1. Step n produces response token n (prefill produces token 0).",
        first=1,
        before=Text("decode steps start at 1, because prefill produces response token 0"),
        instead="--iterations",
    ),
    WindowUnit("prefill", "Iterations A to B-1; only iterations that contain prefill are counted, from 0."),
    WindowUnit("iterations", "Iterations A to B-1, whether they contain prefill or not, counted from 0."),
    WindowUnit(
        "aligned",
        "Iterations A to B-1, dummy batches included. Iteration n is the same step on all data-parallel ranks.",
    ),
)
TRAINING_UNITS = (
    WindowUnit("micro-batch", "Micro-batches A to B-1 of a training stage, counted from 0."),
    WindowUnit("mini-batch", "Mini-batches A to B-1 of a policy or critic update, counted from 0."),
    WindowUnit(
        "call",
        "Calls A to B-1 of a training stage. Each call is recorded as a whole; calls are counted from 0 in each"
        " training step.",
        loop=False,
    ),
)
UNITS = {unit.name: unit for unit in (*ROLLOUT_UNITS, *TRAINING_UNITS)}


@dataclass(frozen=True)
class Window:
    """Units `first` to `end - 1`, counted from 0 in every rollout or call of a training stage.

    `later` are more half-open ranges, each with its own trace. With `none` there is no window yet: `trigger` requests
    one during the run. Raises Problem (USAGE) for an empty range, or ranges without a unit between them.
    """

    unit: str
    first: int
    end: int
    later: tuple[tuple[int, int], ...] = ()
    none: bool = False

    def __post_init__(self) -> None:
        if empty := [window for window in self.all if window[0] >= window[1]]:
            first = empty[0][0]
            hint = Text("a window A:B does not include B; --{unit} {first}:{end} is the shortest window")
            hint = hint.filled(unit=self.unit, first=first, end=first + 1)
            raise usage(Text("--{unit} {window} is empty", unit=self.unit, window=self), hint)
        if any(window[1] >= after[0] for window, after in pairwise(self.all)):
            cause = Text(
                "--{unit} {window}: the windows must be in ascending order, with at least one step between them"
                " for warm-up",
                unit=self.unit,
                window=self,
            )
            raise usage(cause, f"--{self.unit} {_merged(self.unit, self.all)}")

    def check(self) -> None:
        """Raise Problem (USAGE) if the window begins before the first step that exists, such as decode step 0."""
        unit = UNITS.get(self.unit)
        if unit and self.all and self.first < unit.first:
            later = Window(self.unit, unit.first, max(self.end, unit.first + 1))
            cause = Text("--{unit} {window}: {reason}", unit=self.unit, window=self, reason=unit.before)
            hint = Text("use --{unit} {later}, or {option} {window}")
            raise usage(cause, hint.filled(unit=self.unit, later=later, option=unit.instead, window=self))

    @property
    def all(self) -> tuple[tuple[int, int], ...]:
        """Half-open ranges of the window, () if there is none yet."""
        return () if self.none else ((self.first, self.end), *self.later)

    @classmethod
    def parse(cls, unit: str, text: str, following: str = "") -> Window:
        """Return the window that `text` names: `A:B`, `A:` without an end, or several separated by commas.

        `unit` is what it counts, such as "decode". Raises Problem (USAGE) for other texts, numbers that are too large,
        and windows that are empty, out of order, or without a step between them. `following`, the next word on the
        command line, only serves its hint: it may be the end of a window typed as two words.
        """
        windows = []
        for part in text.split(","):
            match = re.fullmatch(r"([0-9]+):([0-9]*)", part.strip())
            if not match:
                cause = Text("--{unit} {value} is not a window A:B", unit=unit, value=shortened(text))
                raise usage(cause, _suggestion(unit, text, following))
            first, end = whole_number(match[1]), whole_number(match[2]) if match[2] else OPEN_END
            if first is None or end is None:
                cause = Text("--{unit} {value}: the number is too large", unit=unit, value=shortened(text.strip()))
                hint = Text(
                    "use --{unit} A:B with numbers below {limit}, or `--{unit} {first}:` for a window without an end"
                )
                raise usage(cause, hint.filled(unit=unit, limit=OPEN_END, first=first or 1))
            windows.append((first, end))
        return cls(unit, *windows[0], tuple(windows[1:]))

    def __len__(self) -> int:
        return sum(end - first for first, end in self.all)

    @property
    def open(self) -> bool:
        """Whether the window has no end."""
        return bool(self.all) and self.all[-1][1] == OPEN_END

    @property
    def words(self) -> tuple[str, ...]:
        """Option and value that type this window again, () for a whole stage."""
        return () if self.unit == WHOLE or self.none else (f"--{self.unit}", str(self))

    def __str__(self) -> str:
        return ",".join(f"{first}:{'' if end == OPEN_END else end}" for first, end in self.all)


def _merged(unit: str, windows: Iterable[tuple[int, int]]) -> Window:
    """Return one window of the ranges `windows`; those without a free step between them, to warm up in, are merged."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted(windows):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((first, end))
    return Window(unit, *merged[0], tuple(merged[1:]))


def _suggestion(unit: str, text: str, following: str) -> str:
    """Return a hint with the window that the invalid `text` probably means, or with an example.

    If that window is invalid, too, return the hint of its own error. `unit` is what the window counts, such as
    "decode". `following` is the next word on the command line, perhaps the end of the window.
    """
    spelled = re.fullmatch(r"[\[(]?\s*([0-9]+)\s*(?:[-,;/_.\uff1a]+|to|\s)\s*([0-9]+)\s*[\])]?", text.strip())
    both = (spelled[1], spelled[2]) if spelled else (text.strip(), following.strip())
    first, end = (whole_number(item) for item in both)
    if first is not None and end is not None:
        try:
            window = Window(unit, first, end)
            window.check()
        except Problem as problem:
            return problem.hint
        else:
            return f"--{unit} {window}"
    example = "30:60" if first is None or first + 30 > OPEN_END else f"{first}:{first + 30}"
    return Text("--{unit} A:B, for example --{unit} {example}", unit=unit, example=example)


def typed_as(unit: str) -> str:
    """Return the option for a window that counts `unit`, such as "--decode A:B", or "no window" for a whole stage."""
    return Text("no window") if unit == WHOLE else f"--{unit} A:B"
