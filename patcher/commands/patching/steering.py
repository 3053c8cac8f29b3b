"""RLPATCH variables that a run inherits and that have no effect, or that switch its recording off."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from patcher.config import STAGES
from patcher.messages import Note, StepResult, Text

_NUMBER, _AMOUNT = r"\d+", r"(?=.*[1-9])\d{1,9}(\.\d*)?"
_VALUES = {
    "": "[01]",
    "_WINDOW": r"\d+:\d*(,\d+:\d*)*",
    "_AT_LOAD": _NUMBER,
    "_AT_TAIL": _NUMBER,
    "_AT_CONTEXT": _NUMBER,
    "_RANKS": r"all|\d+(,\d+)*",
    "_REPLICAS": r"\w+(,\w+)*",
    "_ROLLOUT": _NUMBER,
    "_SYNC": _NUMBER,
    "_TRAINING_STEPS": r"[1-9]\d*(,[1-9]\d*)*",
    "_SAVE_PATH": "/.*",
    "_MAX_TRACE_GB": _AMOUNT,
    "_MAX_STALL": _AMOUNT,
    "_MAX_TIMELINE_MB": r"0*[1-9]\d*",
}
"""End of the name of a variable that a recorder reads → the pattern of its value (patches/probes)."""

_OTHERS = ("RLPATCH_REQUEST", "RLPATCH_LANG", "RLPATCH_RUN", "RLPATCH_RAY_HOOK")


def variable_warnings(environ: Mapping[str, str]) -> StepResult:
    """Return a warning for each RLPATCH variable of `environ` with a misspelled name or an invalid value."""
    stages = ("", *(f"_{stage.upper().replace('-', '_')}" for stage in STAGES))
    patterns = {f"RLPATCH{stage}{name}": pattern for stage in stages for name, pattern in _VALUES.items()}
    return StepResult.noted(_notes(environ, patterns), "warning")


def _notes(environ: Mapping[str, str], patterns: Mapping[str, str]) -> Iterator[Note]:
    """Yield a note on each RLPATCH variable of `environ` that `patterns` lacks or whose value does not match there."""
    for variable in sorted(name for name in environ if name.startswith("RLPATCH")):
        if variable not in (*patterns, *_OTHERS):
            for near in difflib.get_close_matches(variable, patterns, 1, cutoff=0.8):
                yield Note(Text("{variable} has no effect: did you mean {name}?", variable=variable, name=near))
        elif (value := environ[variable]) and not _valid(value, patterns.get(variable, ".*")):
            text = Text("{variable}={value} is not valid, so nothing will be recorded", variable=variable, value=value)
            yield Note(text)


def _valid(value: str, pattern: str) -> bool:
    """Tell whether a value fits `pattern` and none of its windows ends before it begins."""
    ends = re.findall(r"(\d+):(\d+)", value) if ":" in pattern else []
    return bool(re.fullmatch(pattern, value)) and all(int(first) < int(end) for first, end in ends)
