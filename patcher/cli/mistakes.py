"""Frequent mistakes in a command line: one rule each, which types the words again as they were meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
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

    `typed` are the words after `rlpatch`. Do nothing if no rule finds a mistake that a problem mentions.
    """
    problems = [problem for problem in report.problems if problem.kind in _KINDS]
    said = " ".join(problem.cause for problem in problems)
    typed = [part for word in typed for part in (word.split("=", 1) if word.startswith("--") else [word])]
    at = typed.index("--") if "--" in typed else len(typed)
    parts = {False: [*typed[:at]], True: [*typed[at + 1 :]]}
    for rule in RULES if problems else ():
        words = parts[rule.behind]
        meant = [*rule.rewrite(words)]
        replaced = [word for word, new in zip(words, meant, strict=False) if word != new]
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


def _options_first(words: Words) -> Words:
    """Move options in front of the command behind it."""
    first = next((at for at, word in enumerate(words) if word in COMMANDS), 0)
    return [*words[first:], *words[:first]]


def _version(words: Words) -> Words:
    """Return the words with each target and its version joined by `==`, such as `vllm@0.9.1` or `vllm 0.9.1`."""
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


def _windows(words: Words) -> Words:
    """Return the words with the ends of windows in order, and a single number of a training window as `N:N+1`."""
    meant = [*words]
    for at, (option, value) in enumerate(pairwise(words), 1):
        ends = re.fullmatch(r"(\d{1,9}):(\d{1,9})", value)
        if option[2:] not in UNITS:
            continue
        if ends and int(ends[1]) > int(ends[2]):
            meant[at] = f"{ends[2]}:{ends[1]}"
        elif re.fullmatch(r"\d{1,8}", value) and UNITS[option[2:]] in TrainingStage.UNITS:
            meant[at] = f"{value}:{int(value) + 1}"
    return meant


def _all(words: Words) -> Words:
    """Return the words with `all` after --ranks and --replicas where it is misspelled, such as `*`, `any` or `al`."""
    lists = {"--ranks", "--replicas"}
    return [
        "all" if before in lists and re.fullmatch(r"\*|a+l*|any|every", word, re.IGNORECASE) else word
        for before, word in pairwise(("", *words))
    ]


def _steps(words: Words) -> Words:
    """Return the words with --rollout in place of --training-steps beside a rollout window, and the other way round.

    The number changes by one: rollouts count from 0, training steps from 1.
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
    Rule(_options_first),
    Rule(_version),
    Rule(_windows),
    Rule(_all),
    Rule(_steps),
    Rule(_interpreter, behind=True),
)
