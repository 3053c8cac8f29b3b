"""Frequent mistakes in a command line: one rule each, which types the words again as they were meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import NamedTuple

from patcher.cli import COMMANDS
from patcher.config import UNITS, RolloutStage, TrainingStage
from patcher.messages import CommandLine, CommandResult, Kind
from patcher.targets import versions
from patches import projects

Words = Sequence[str]
_KINDS = (Kind.USAGE, Kind.NO_TARGET, Kind.NO_RECIPE, Kind.NO_COMMAND, Kind.NOT_EXECUTABLE)
"""Problems that a command line can have by itself."""

SYNONYMS = {
    "help": "--help",
    "version": "--version",
    **dict.fromkeys(("patch", "install", "insert", "inject", "record", "profile", "add", "enable"), "apply"),
    **dict.fromkeys(("remove", "restore", "undo", "uninstall", "unpatch", "rollback", "disable"), "revert"),
    **dict.fromkeys(("ls", "targets", "versions"), "list"),
}
"""Names that other tools use for rlpatch's commands and options, and rlpatch's own."""


_COMMA = r"[,;\uff0c\u3001\uff1b]"
"""A comma or semicolon, also as a Chinese keyboard types it."""

_QUOTED = r"\[[\w,.-]*\]|[\u201c\u201d\u2018\u2019\u300c\u300d'\"]"
"""`[extras]` of pip, or a quotation mark."""

_TO = r"(?<=\d)\s*(?:[~-]|\.\.+|[\u2010-\u2015\u2212\uff0d\uff1a\uff5e\u81f3\u5230])\s*"
"""What people type in place of the colon of a window."""


class Rule(NamedTuple):
    """Mistake: `rewrite` returns the words as they were meant, unchanged without the mistake.

    It is for the words in front of `--`, or for those `behind` it. The error must mention a word that it replaces,
    unless it is `certain` that nobody means that word.
    """

    rewrite: Callable[[Words], Words]
    certain: bool = False
    behind: bool = False


def correct(report: CommandResult, typed: Words) -> None:
    """Replace the hints of the usage problems in `report` by the command line that was probably meant.

    A rule applies if a problem mentions a word that it replaces, or if it is `certain`.
    """
    problems = [problem for problem in report.problems if problem.kind in _KINDS]
    said = " ".join(problem.cause for problem in problems)
    typed = [part for word in typed for part in (word.split("=", 1) if word.startswith("--") else [word])]
    at = typed.index("--") if "--" in typed else len(typed)
    parts = {False: [*typed[:at]], True: [*typed[at + 1 :]]}
    for rule in RULES if problems else ():
        words = parts[rule.behind]
        meant = [*rule.rewrite(words)]
        replaced = [word for word, new in zip_longest(words, meant) if word and word != new]
        if replaced and (rule.certain or any(word in said for word in replaced)):
            parts[rule.behind] = meant
    again = [*parts[False], *typed[at : at + 1], *parts[True]]
    if again != typed:
        hint = CommandLine(*again)
        report.problems[:] = [
            problem.replace(hint=hint) if problem in problems else problem for problem in report.problems
        ]


def _dashes(words: Words) -> Words:
    """Replace the dash that an editor or a chat made of two hyphens."""
    return [re.sub(r"^[\u2010-\u2015\u2212\uff0d]+(?=[a-z])", "--", word) for word in words]


def _help(words: Words) -> Words:
    """Return `help COMMAND` as `COMMAND --help`."""
    return [words[1], "--help"] if words[:1] == ["help"] and words[1:2] and words[1] in COMMANDS else words


def _options_first(words: Words) -> Words:
    """Move options in front of the command behind it."""
    first = next((at for at, word in enumerate(words) if word in COMMANDS), 0)
    return [*words[first:], *words[:first]]


def _join_versions(words: Words) -> Words:
    """Return the words with `==` between each target and its version, such as for `vllm@0.9.1` and `vllm 0.9.1`."""
    names = {versions.normalise(project.name) for project in projects.projects()}
    joined: list[str] = []
    for word in words:
        target = re.fullmatch(r"([A-Za-z][\w.-]*?)\s*(?:[=@:]|===|~=|>=)\s*v?(\d[\w.+]*)", word)
        if target and versions.normalise(target[1]) in names:
            joined.append(f"{target[1]}=={target[2]}")
        elif joined and versions.normalise(joined[-1]) in names and re.fullmatch(r"=*v?\d+\.\d[\w.+]*", word):
            joined[-1] += f"=={word.lstrip('=v')}"
        else:
            joined.append(word)
    return joined


def _split_targets(words: Words) -> Words:
    """Return the words with `vllm,verl` split into two targets, and targets without quotation marks and `[extras]`.

    Words that do not consist of known targets stay as they are.
    """
    names = {versions.normalise(project.name) for project in projects.projects()}
    apart: list[str] = []
    for word in words:
        bare = re.sub(_QUOTED, "", word)
        targets = [part for part in re.split(_COMMA, bare) if part]
        are_targets = targets and all(versions.normalise(target.partition("==")[0]) in names for target in targets)
        apart += targets if are_targets else [word]
    return apart


def _correct_targets(words: Words) -> Words:
    """Return the words with misspelled names of targets corrected, such as `vlm` to `vllm`.

    The first word, options and their values stay as they are.
    """
    names = projects.names()
    near = [*words[:1]]
    for before, word in pairwise(words):
        name, equals, version = word.partition("==")
        typed = versions.normalise(name)
        meant = difflib.get_close_matches(typed, names, 1, cutoff=0.8)
        is_name = not before.startswith("--") and not word.startswith("-") and word not in COMMANDS
        near.append(f"{meant[0]}{equals}{version}" if is_name and meant and typed not in names else word)
    return near


def _add_stage_option(words: Words) -> Words:
    """Return the words with `--stage` in front of each name of a stage that has no option in front of it."""
    stages = (*RolloutStage.NAMES, *TrainingStage.NAMES)
    return [
        part
        for before, word in pairwise(("", *words))
        for part in (("--stage", word) if word in stages and not before.startswith("--") else (word,))
    ]


_STAGES = {
    **dict.fromkeys(("actor", "train", "training", "update"), ("update-policy",)),
    **dict.fromkeys(("generate", "generation", "gen", "decode"), ("rollout",)),
    **dict.fromkeys(("old-log-prob", "log-prob"), ("compute-log-prob",)),
    "ref": ("compute-log-prob", "--role", "ref"),
    "critic": ("update-critic",),
}
_OPTIONS = {
    **dict.fromkeys(("--steps", "--step", "--profile-steps", "--profile_steps"), "--training-steps"),
    **dict.fromkeys(("--output", "--output-dir", "--dir"), "--save-path"),
}
"""Names that the frameworks' own profilers have for stages and options, and rlpatch's."""


def _translate_names(words: Words) -> Words:
    """Return the words with rlpatch's names in place of those of frameworks' profilers, for stages and options.

    Only commands that plan a patch (apply, run, diff, bundle) are changed.
    """
    if words[:1] and words[0] not in ("apply", "run", "diff", "bundle"):
        return words
    return [
        part
        for before, word in pairwise(("", *words))
        for part in (
            _STAGES.get(word.lower().replace("_", "-"), (word,)) if before == "--stage" else (_OPTIONS.get(word, word),)
        )
    ]


def _add_path_option(words: Words) -> Words:
    """Return the words with `--path` in front of a folder that was typed as a target.

    Only for commands that need no target, such as `status`.
    """
    if words[:1] and words[0] not in ("status", "diff", "revert", "recover", "check"):
        return words
    return [
        part
        for before, word in pairwise(("", *words))
        for part in (("--path", word) if before and not before.startswith("-") and Path(word).is_dir() else (word,))
    ]


def _merge_repeated(words: Words) -> Words:
    """Return the words with the values of a repeated option joined by commas, behind its first occurrence.

    Only for windows and lists: `--decode 1:2 --decode 5:6` becomes `--decode 1:2,5:6`.
    """
    lists = {*(f"--{unit}" for unit in UNITS), "--ranks", "--replicas", "--training-steps", "--contents", "--nodes"}
    values: dict[str, list[str]] = {}
    for option, value in pairwise(words):
        if option in lists:
            values.setdefault(option, []).append(value)
    meant, seen = list[str](), set[str]()
    for before, word in pairwise(("", *words)):
        if before in values:
            meant += [] if before in seen else [",".join(values[before])]
            seen.add(before)
        elif word not in seen:
            meant.append(word)
    return meant


def _drop_windows(words: Words) -> Words:
    """Return the words without windows if the command is revert, status or recover, which take none."""
    if words[:1] and words[0] not in ("revert", "status", "recover"):
        return words
    return [word for before, word in pairwise(("", *words)) if not any(part[2:] in UNITS for part in (before, word))]


def _rewrite_ranges(words: Words) -> Words:
    """Return the words with ranges in rlpatch's notation.

    The ends of a range come in order and with a colon between them. A single number becomes `N:N+1` where a range of
    training units or steps is needed. `--ranks 0-3` becomes the list `0,1,2,3`.
    """
    meant = [*words]
    for at, (option, value) in enumerate(pairwise(words), 1):
        unit = UNITS.get(option[2:])
        if option in ("--ranks", "--replicas", "--training-steps"):
            meant[at] = re.sub(r"(\d{1,4}):(\d{1,4})", _listed, re.sub(_TO, ":", re.sub(_COMMA, ",", value)))
        elif unit is not None or option == "--steps":
            ranges = re.sub(_TO, ":", re.sub(_COMMA, ",", value))
            ranges = re.sub(r"(\d{1,9}):(\d{1,9})", _ordered, ranges)
            is_single = re.fullmatch(r"\d{1,8}", ranges) and (unit is None or unit in TrainingStage.UNITS)
            meant[at] = f"{ranges}:{int(ranges) + 1}" if is_single else ranges
    return meant


def _ordered(ends: re.Match[str]) -> str:
    """Return a matched range `A:B` with the smaller end first."""
    first, last = sorted((int(ends[1]), int(ends[2])))
    return f"{first}:{last}"


def _listed(ends: re.Match[str]) -> str:
    """Return the numbers of a matched range, both ends included, separated by commas; above 64 the range itself."""
    first, last = sorted((int(ends[1]), int(ends[2])))
    return ",".join(map(str, range(first, last + 1))) if last - first < 64 else ends[0]


_TIME: Mapping[str, float] = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_UNITS_OF: Mapping[str, Mapping[str, float]] = {
    **dict.fromkeys(("--max-stall", "--timeout", "--expires"), _TIME),
    "--max-trace-gb": {"mb": 0.001, "m": 0.001, "gb": 1, "g": 1, "tb": 1000},
    "--max-timeline-mb": {"mb": 1, "m": 1, "gb": 1000, "g": 1000},
}
_COUNTED: Mapping[str, float] = {"k": 1000, "m": 1_000_000}


def _convert_units(words: Words) -> Words:
    """Return the words with numbers converted to the unit of their option, such as `--timeout 10m` to 600 (seconds).

    For options without a unit, `2k` becomes 2000 and `1m` a million. Other units stay as they are.
    """
    meant = [*words]
    for at, (option, value) in enumerate(pairwise(words), 1):
        number = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*([a-z]{1,3})", value.lower())
        factor = _UNITS_OF.get(option, _COUNTED).get(number[2]) if number and option.startswith("--") else None
        if number and factor is not None:
            meant[at] = f"{float(number[1]) * factor:.9f}".rstrip("0").rstrip(".")
        elif option[2:] in UNITS:
            meant[at] = re.sub(r"(\d{1,6})k\b", r"\g<1>000", value.lower())
    return meant


def _correct_all(words: Words) -> Words:
    """Return the words with `all` after --ranks and --replicas where it is misspelled, such as `*`, `any` or `al`."""
    lists = {"--ranks", "--replicas"}
    return [
        "all" if before in lists and re.fullmatch(r"\*|a+l*|any|every", word, re.IGNORECASE) else word
        for before, word in pairwise(("", *words))
    ]


def _swap_rollout_option(words: Words) -> Words:
    """Return the words with --training-steps replaced by --rollout if they have an option for a rollout window.

    Beside a training window, --rollout is replaced by --training-steps. The number changes by one: rollouts count from
    0, training steps from 1. A value that begins with no digit becomes 1. With both kinds of window, or none, the words
    are unchanged.
    """
    units = {word[2:] for word in words}
    rollout = any(unit.name in units for unit in RolloutStage.UNITS)
    training = any(unit.name in units for unit in TrainingStage.UNITS)
    if rollout == training:
        return words
    wrong, right, more = ("--training-steps", "--rollout", -1) if rollout else ("--rollout", "--training-steps", 1)
    if wrong not in words[:-1]:
        return words
    at = words.index(wrong)
    number = re.match(r"\d{1,9}", words[at + 1])
    return [*words[:at], right, str(max(0, int(number[0]) + more)) if number else "1", *words[at + 2 :]]


def _interpreter(words: Words) -> Words:
    """Put the interpreter in front of a script behind `--`."""
    starters = {".py": "python3", ".sh": "bash"}
    return [*(name for suffix, name in starters.items() if words and words[0].endswith(suffix)), *words]


RULES = (
    Rule(_dashes, certain=True),
    Rule(_help),
    Rule(_options_first),
    Rule(_split_targets),
    Rule(_join_versions),
    Rule(_add_stage_option),
    Rule(_correct_targets),
    Rule(_translate_names),
    Rule(_add_path_option),
    Rule(_merge_repeated),
    Rule(_drop_windows),
    Rule(_convert_units),
    Rule(_rewrite_ranges),
    Rule(_correct_all),
    Rule(_swap_rollout_option),
    Rule(_interpreter, behind=True),
)
