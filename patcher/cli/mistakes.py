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

_COMMA = r"[,;\uff0c\u3001\uff1b]"
"""A comma or semicolon, also as a Chinese keyboard types it."""

_QUOTED = r"\[[\w,.-]*\]|[\u201c\u201d\u2018\u2019\u300c\u300d'\"]"
"""`[extras]` of pip, or a quotation mark."""

_TO = r"(?<=\d)\s*(?:[~-]|\.\.+|[\u2010-\u2015\u2212\uff0d\uff1a\uff5e\u81f3\u5230])\s*"
"""What people type in place of the colon of a window."""

_NUMBERS = ("--ranks", "--replicas", "--training-steps")
_LISTS = {*(f"--{unit}" for unit in UNITS), *_NUMBERS, "--contents", "--nodes"}

_TIME: Mapping[str, float] = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_UNITS_OF: Mapping[str, Mapping[str, float]] = {
    **dict.fromkeys(("--max-stall", "--timeout", "--expires"), _TIME),
    "--max-trace-gb": {"mb": 0.001, "m": 0.001, "gb": 1, "g": 1, "tb": 1000},
    "--max-timeline-mb": {"mb": 1, "m": 1, "gb": 1000, "g": 1000},
}
_COUNTED: Mapping[str, float] = {"k": 1000, "m": 1_000_000}


class Rule(NamedTuple):
    """Mistake: `rewrite` returns the words as they were meant, unchanged without the mistake.

    It is for the `commands` (none: all) and the words in front of `--`, or for those `behind` it. The error must
    mention a word that it replaces, unless it is `certain` that nobody means that word.
    """

    rewrite: Callable[[Words], Words]
    certain: bool = False
    behind: bool = False
    commands: tuple[str, ...] = ()


def _word_rule(rewrite: Callable[[str, str], Words], *commands: str, certain: bool = False) -> Rule:
    """Return the rule that puts `rewrite(the word before, word)` in place of each word."""

    def rewritten(words: Words) -> Words:
        return [part for before, word in pairwise(("", *words)) for part in rewrite(before, word)]

    return Rule(rewritten, certain, commands=commands)


def correct(report: CommandResult, typed: Words) -> None:
    """Replace the hints of the usage problems in `report` by the command line that was probably meant.

    A rule applies if a problem mentions a word that it replaces, or if it is `certain`.
    """
    problems = [problem for problem in report.problems if problem.kind in _KINDS]
    causes = " ".join(problem.cause for problem in problems)
    typed = [part for word in typed for part in (word.split("=", 1) if word.startswith("--") else [word])]
    at = typed.index("--") if "--" in typed else len(typed)
    parts = {False: [*typed[:at]], True: [*typed[at + 1 :]]}
    for rule in RULES if problems else ():
        parts[rule.behind] = _rewritten(parts[rule.behind], rule, causes)
    again = [*parts[False], *typed[at : at + 1], *parts[True]]
    if again != typed:
        hint = CommandLine(*again)
        report.problems[:] = [
            problem.replace(hint=hint) if problem in problems else problem for problem in report.problems
        ]


def _rewritten(words: list[str], rule: Rule, causes: str) -> list[str]:
    """Return the words as `rule` rewrites them, unchanged if it does not apply; `causes` are those of the problems."""
    if rule.commands and words[:1] and words[0] not in rule.commands:
        return words
    rewritten = [*rule.rewrite(words)]
    replaced = [word for word, new in zip_longest(words, rewritten) if word and word != new]
    return rewritten if replaced and (rule.certain or any(word in causes for word in replaced)) else words


def _is_target(word: str) -> bool:
    """Tell whether a word, but for its version, names a project."""
    names = {versions.normalise(project.name) for project in projects.projects()}
    return versions.normalise(word.partition("==")[0]) in names


def _replace_dashes(_before: str, word: str) -> Words:
    """Replace the dash that an editor or a chat made of two hyphens."""
    return (re.sub(r"^[\u2010-\u2015\u2212\uff0d]+(?=[a-z])", "--", word),)


def _help(words: Words) -> Words:
    """Return `help COMMAND` as `COMMAND --help`."""
    return [words[1], "--help"] if words[:1] == ["help"] and words[1:2] and words[1] in COMMANDS else words


def _options_first(words: Words) -> Words:
    """Move options in front of the command behind it."""
    first = next((at for at, word in enumerate(words) if word in COMMANDS), 0)
    return [*words[first:], *words[:first]]


def _split_targets(_before: str, word: str) -> Words:
    """Split `vllm,verl`, and drop quotation marks and `[extras]` of targets."""
    targets = [part for part in re.split(_COMMA, re.sub(_QUOTED, "", word)) if part]
    return targets if targets and all(map(_is_target, targets)) else (word,)


def _join_versions(words: Words) -> Words:
    """Return the words with `==` between each target and its version, such as for `vllm@0.9.1` and `vllm 0.9.1`."""
    joined: list[str] = []
    for word in words:
        target = re.fullmatch(r"([A-Za-z][\w.-]*?)\s*(?:[=@:]|===|~=|>=)\s*v?(\d[\w.+]*)", word)
        if target and _is_target(target[1]):
            joined.append(f"{target[1]}=={target[2]}")
        elif joined and "==" not in joined[-1] and _is_target(joined[-1]) and re.fullmatch(r"=*v?\d+\.\d[\w.+]*", word):
            joined[-1] += f"=={word.lstrip('=v')}"
        else:
            joined.append(word)
    return joined


def _add_stage_option(before: str, word: str) -> Words:
    """Put `--stage` in front of the name of a stage."""
    is_stage = word in (*RolloutStage.NAMES, *TrainingStage.NAMES)
    return ("--stage", word) if is_stage and not before.startswith("--") else (word,)


def _correct_target(before: str, word: str) -> Words:
    """Correct a misspelled name of a target, such as `vlm` to `vllm`; the first word and options stay as they are."""
    names = projects.names()
    name, equals, version = word.partition("==")
    typed = versions.normalise(name)
    near = difflib.get_close_matches(typed, names, 1, cutoff=0.8)
    is_name = before and not before.startswith("--") and not word.startswith("-") and word not in COMMANDS
    return (f"{near[0]}{equals}{version}" if is_name and near and typed not in names else word,)


def _translate_name(before: str, word: str) -> Words:
    """Return rlpatch's name of a stage or an option for that of the frameworks' profilers."""
    if before == "--stage":
        return _STAGES.get(word.lower().replace("_", "-"), (word,))
    return (_OPTIONS.get(word, word),)


def _add_path_option(before: str, word: str) -> Words:
    """Put `--path` in front of a folder that was typed as a target."""
    return ("--path", word) if before and not before.startswith("-") and Path(word).is_dir() else (word,)


def _merge_repeated(words: Words) -> Words:
    """Return the words with the values of a repeated window or list joined by commas, behind its first occurrence."""
    values: dict[str, list[str]] = {}
    for option, value in pairwise(words):
        if option in _LISTS:
            values.setdefault(option, []).append(value)
    merged, seen = list[str](), set[str]()
    for before, word in pairwise(("", *words)):
        if before in values:
            if before not in seen:
                merged.append(",".join(values[before]))
            seen.add(before)
        elif word not in seen:
            merged.append(word)
    return merged


def _drop_window(before: str, word: str) -> Words:
    """Drop a window, for commands that take none."""
    return () if before[2:] in UNITS or word[2:] in UNITS else (word,)


def _convert_unit(option: str, value: str) -> Words:
    """Return a number in the unit of its option, such as 600 (seconds) for `--timeout 10m`, and 2000 for `2k`."""
    number = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*([a-z]{1,3})", value.lower())
    factor = _UNITS_OF.get(option, _COUNTED).get(number[2]) if number and option.startswith("--") else None
    if number and factor is not None:
        return (f"{float(number[1]) * factor:.9f}".rstrip("0").rstrip("."),)
    return (re.sub(r"(\d{1,6})k\b", r"\g<1>000", value.lower()) if option[2:] in UNITS else value,)


def _rewrite_range(option: str, value: str) -> Words:
    """Return a range in rlpatch's notation: its ends in order, with a colon between them.

    A single number becomes `N:N+1` where a range of training units or steps is needed. `--ranks 0-3` becomes the list
    `0,1,2,3`.
    """
    unit = UNITS.get(option[2:])
    if unit is None and option not in ("--steps", *_NUMBERS):
        return (value,)
    ranges = re.sub(_TO, ":", re.sub(_COMMA, ",", value))
    if option in _NUMBERS:
        return (re.sub(r"(\d{1,4}):(\d{1,4})", lambda ends: _ordered(ends, as_list=True), ranges),)
    ranges = re.sub(r"(\d{1,9}):(\d{1,9})", _ordered, ranges)
    is_single = re.fullmatch(r"\d{1,8}", ranges) and (unit is None or unit in TrainingStage.UNITS)
    return (f"{ranges}:{int(ranges) + 1}" if is_single else ranges,)


def _ordered(ends: re.Match[str], *, as_list: bool = False) -> str:
    """Return a matched range with the smaller end first; up to 64 numbers, both ends included, if `as_list`."""
    first, last = sorted((int(ends[1]), int(ends[2])))
    if not as_list:
        return f"{first}:{last}"
    return ",".join(map(str, range(first, last + 1))) if last - first < 64 else ends[0]


def _correct_all(before: str, word: str) -> Words:
    """Return `all` after --ranks and --replicas where it is misspelled, such as `*`, `any` or `al`."""
    is_all = before in ("--ranks", "--replicas") and re.fullmatch(r"\*|a+l*|any|every", word, re.IGNORECASE)
    return ("all" if is_all else word,)


def _swap_rollout_option(words: Words) -> Words:
    """Replace --training-steps beside a rollout window by --rollout, and the other way round beside a training window.

    The number changes by one: rollouts count from 0, training steps from 1. A value that begins with no digit becomes
    1. With both kinds of window, or none, the words are unchanged.
    """
    units = {word[2:] for word in words}
    rollout = any(unit.name in units for unit in RolloutStage.UNITS)
    training = any(unit.name in units for unit in TrainingStage.UNITS)
    wrong, right, more = ("--training-steps", "--rollout", -1) if rollout else ("--rollout", "--training-steps", 1)
    if rollout == training or wrong not in words[:-1]:
        return words
    at = words.index(wrong)
    number = re.match(r"\d{1,9}", words[at + 1])
    return [*words[:at], right, str(max(0, int(number[0]) + more)) if number else "1", *words[at + 2 :]]


def _interpreter(words: Words) -> Words:
    """Put the interpreter in front of a script behind `--`."""
    starters = {".py": "python3", ".sh": "bash"}
    return [*(name for suffix, name in starters.items() if words and words[0].endswith(suffix)), *words]


RULES = (
    _word_rule(_replace_dashes, certain=True),
    Rule(_help),
    Rule(_options_first),
    _word_rule(_split_targets),
    Rule(_join_versions),
    _word_rule(_add_stage_option),
    _word_rule(_correct_target),
    _word_rule(_translate_name, "apply", "run", "diff", "bundle"),
    _word_rule(_add_path_option, "status", "diff", "revert", "recover", "check"),
    Rule(_merge_repeated),
    _word_rule(_drop_window, "revert", "status", "recover"),
    _word_rule(_convert_unit),
    _word_rule(_rewrite_range),
    _word_rule(_correct_all),
    Rule(_swap_rollout_option),
    Rule(_interpreter, behind=True),
)
