"""Marks: ranges on the host that are, or may be, the units of a trace."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import NamedTuple


class Mark(NamedTuple):
    """A range on the host that is, or may be, a unit; ``family`` is the key of ``FAMILIES`` that its name fits.

    ``contents`` are the requests, tokens and context that an engine writes into the name, None where it writes no
    number.
    """

    family: str
    name: str
    begin: int
    end: int
    number: int | None = None
    contents: Mapping[str, int | None] = {}


NUMBERED = "ProfilerStep#"
"""Family of the marks that carry the number of a unit as the profiler, and rlpatch's probe, count it."""

UNCOUNTED = "rlpatch:uncounted"
"""Family of the ranges into which rlpatch's probe puts iterations between two units that do not count."""

WANTED = "--marks"
"""Family of the marks whose names fit the pattern of a user: where it is there, it gives the units."""

NAMED = "numbered ranges"
"""Family of a program's own ranges that count steps, as ``record_function("train_step 3")``: the last choice."""

RANGE = "rlpatch:"
"""Prefix of the ranges of rlpatch's probe; those of a weight sync are its phases, and count as modules."""

FAMILIES = {
    NUMBERED: r"ProfilerStep#(?P<number>\d{1,18})",
    # vLLM, as `execute_context_2(600)_generation_30(30)`; forks write the contexts' length behind `sk`
    "execute_": (
        r"execute_(?:\d+_)?context_(?P<requests1>\d{1,9})\((?:sq)?(?P<tokens1>\d{1,12})(?:sk(?P<context1>\d{1,12}))?\w*\)"
        r"_generation_(?P<requests2>\d{1,9})\((?:sq)?(?P<tokens2>\d{1,12})(?:sk(?P<context2>\d{1,12}))?\w*\)"
    ),
    "execute_new_": r"execute_new_(?P<requests1>\d{1,9})_cached_(?P<requests2>\d{1,9})",  # vLLM before 0.12
    # SGLang, as `step[DECODE bs=64]` and `step[EXTEND bs=2 toks=14721]`
    "step[": (
        r"step\[\w+ bs=(?P<requests>\d{1,9})(?: toks=(?P<tokens>\d{1,12}))?"
        r"(?:[^\]]* g_sk=(?P<context>\d{1,12}))?[^\]]*\]"
    ),
    "mark": (
        r"(?:decode|prefill|iteration|dummy|aligned|mini-batch|micro-batch|call) (?P<number>\d{1,18})"
        r"(?P<listed>(?:, \d{1,12} (?:requests|tokens|drafts|longest|context|sequences))*)"
    ),
    UNCOUNTED: re.escape(UNCOUNTED) + "|uncounted(?: decode| prefill| iteration)?",
    NAMED: r"(?i:(?:.*[\W_])?[a-z]*(?:step|iter|iteration|batch)[\W_]*)(?P<number>\d{1,18})\W*",
}
"""Family of marks → the pattern of a name; the first family in a trace gives its units.

The groups are the number and the contents of a mark; groups that differ only in a digit are summed. ``listed`` are
numbers with their names, as rlpatch writes them for nsys: ``decode 30, 64 requests, 64 tokens``.
"""


@functools.lru_cache(maxsize=1 << 16)
def mark_named(name: str, mark_pattern: re.Pattern[str] | None = None) -> Mark | None:
    """Return the mark of a step that a range's name stands for, with times of 0; None if the name marks no step.

    A name that ``mark_pattern`` matches is of the family `WANTED`; the pattern's group ``number``, if any, is the
    step's number.
    """
    if mark_pattern is not None and (match := mark_pattern.search(name)):
        digits = match.groupdict().get("number") or ""
        return Mark(WANTED, name, 0, 0, int(digits) if re.fullmatch(r"\d{1,18}", digits, re.ASCII) else None)
    for family, pattern in FAMILIES.items():
        if match := re.fullmatch(pattern, name):
            groups = match.groupdict()
            listed = re.findall(r"(\d+) (\w+)", groups.pop("listed", None) or "")
            contents = _numbers_in_groups(groups) | {word: int(digits) for digits, word in listed}
            if name.startswith("step[DECODE ") and contents["tokens"] is None:  # a token for each request
                contents["tokens"] = contents["requests"]
            return Mark(family, name, 0, 0, contents.pop("number", None), contents)
    return None


def _numbers_in_groups(groups: Mapping[str, str | None]) -> dict[str, int | None]:
    """Convert named groups of a regular expression's match to numbers, such as {"requests": "4"} to {"requests": 4}.

    Groups whose names differ only in a final 1 or 2 are added up. A number is None if one of its groups did not match.
    """
    sums: dict[str, int | None] = {}
    for group, text in groups.items():
        name = group.rstrip("12")
        before = sums.get(name, 0)
        sums[name] = None if text is None or before is None else before + int(text)
    return sums
