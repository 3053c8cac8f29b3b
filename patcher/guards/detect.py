"""Is another profiler switched on? The declared switches held against environment, script and command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from patcher.guards.release import Release
from patcher.launches import ANY, Argument, Assignment, Invocation, known, name_of, quoted, read
from patcher.switches import Form, State, Switch

_LOST = "some of its words are only known when it runs"
_FILE = "it may stand in the file that it is given"


class Finding(NamedTuple):
    """What is known of one profiler at one line.

    ``where`` is ``environment``, ``run.sh:12`` or ``command after --``; ``found`` the text seen there, empty
    if nothing was; ``off`` what to type or change, ``reason`` why nothing certain is known.
    """

    profiler: str
    state: State
    where: str
    found: str
    off: str
    why: str
    reason: str = ""


class Subject(NamedTuple):
    """What a guard looks at: a target's release and root (None if it is not here), a configuration file that the user
    names, the invocations, and the programs of the environments that may know more, the likeliest first.
    """

    release: Release
    root: Path | None
    config: Path | None
    invocations: tuple[Invocation, ...]
    pythons: tuple[str, ...] = ()


# A check of one project that no variable or option can express, such as a Hydra configuration: it answers
# like the switches.
Guard = Callable[[Subject], Iterable[Finding]]


def detect(
    switches: Iterable[Switch],
    *,
    version: str,
    environ: Mapping[str, str],
    script: Path | None = None,
    command: Sequence[str] = (),
    root: Path | None = None,
    config: Path | None = None,
    published: tuple[str, ...] = (),
    package: str = "",
    pythons: Sequence[str] = (),
    guards: Iterable[Guard] = (),
    severe: bool = False,
) -> tuple[Finding, ...]:
    """One finding per profiler and line, the severest first; a profiler that is off everywhere gives one OFF.

    ``version``, ``root``, the ``package`` in it and ``pythons`` are the target's; a version that is not ``published``
    says little. ``guards`` are asked besides, also about ``config``. With ``severe`` what is off is left out, so that
    nobody has to know which switches the release has where none is seen. Raises Problem(USAGE) if the script, or one
    that the command names, cannot be read.
    """
    declared, release = tuple(switches), Release(version, published, root / package if root and package else None)
    invocations = read(environ, script, command, pythons=pythons)
    searched = ["environment", *([str(script)] if script else []), *(["command after --"] if command else [])]
    found: list[Finding] = []
    for profiler in dict.fromkeys(switch.profiler for switch in declared):
        own = [one for one in declared if one.profiler == profiler]
        hits = [(one, _seen(hit for invocation in invocations for hit in _hits(one, invocation))) for one in own]
        there = [(_asked(one, invocations), listed) for one, listed in hits if listed and release.has(one)]
        seen = severest(_if_asked(hit, asked) for asked, listed in there for hit in listed)
        if seen:
            found += [finding for finding in seen if finding.state is not State.OFF] or seen[:1]
        elif not severe:
            # Not seen anywhere: the reasons of the first switch stand for the profiler.
            why = next((one.why for one in own if release.has(one)), "no switch of it exists in this release")
            found.append(Finding(profiler, State.OFF, ", ".join(searched), "", "nothing to do", why))
    subject = Subject(release, root, config, invocations, tuple(pythons))
    guarded = [finding for guard in guards for finding in guard(subject)]
    # What a guard knows of an override is no longer unknown, whatever earlier words say of the same key.
    answered = [one for one in guarded if one.state is not State.UNKNOWN]
    told = {(one.profiler, overridden(word)) for one in answered for word in one.found.split()}
    lost = [one for one in found if one.state is State.UNKNOWN and (one.profiler, overridden(one.found)) in told]
    found = [one for one in found if one not in lost] + guarded
    with suppress(OSError):  # a working directory that is gone
        # Its files are named as they are typed there.
        here = f"{Path.cwd()}/"
        found = [
            one._replace(where=one.where.removeprefix(here), off=one.off.replace(f" {here}", " ")) for one in found
        ]
    on = [finding for finding in found if finding.state is not State.OFF]
    # Switches and guards may answer for the same profiler: it is off only if all of them say so.
    off: dict[str, Finding] = {}
    for finding in found:
        if not severe and finding.profiler not in {other.profiler for other in on}:
            off.setdefault(finding.profiler, finding)
    return tuple(sorted([*on, *off.values()], key=lambda finding: -finding.state.severity))


def overridden(word: str) -> str:
    """The key that an override is for: ``+a.b=1`` is for ``a.b``."""
    return word.lstrip("+~").partition("=")[0]


def _seen(hits: Iterable[Finding]) -> list[Finding]:
    """The hits of a switch; where it may be on, it does not matter among which words it may be, too."""
    found = list(hits)
    return [one for one in found if one.reason != _LOST and one.state is not State.OFF] or found


def severest(findings: Iterable[Finding]) -> list[Finding]:
    """Of the findings of a profiler at a line the severest, the first of several."""
    found: dict[tuple[str, str], Finding] = {}
    for one in findings:
        known = found.get((one.profiler, one.where), one)
        found[one.profiler, one.where] = one if one.state.severity > known.state.severity else known
    return list(found.values())


def _asked(switch: Switch, invocations: Sequence[Invocation]) -> Invocation | None:
    """The invocation that makes an armed profiler record; one that surely runs before one that may."""
    asking = [
        invocation
        for invocation in invocations
        if any(
            all(any(word and re.fullmatch(pattern, word) for word in invocation.argv) for pattern in patterns)
            for patterns in switch.asked_by
        )
    ]
    return next((invocation for invocation in asking if invocation.sure), asking[0] if asking else None)


def _if_asked(finding: Finding, asked: Invocation | None) -> Finding:
    if asked is None or finding.state is not State.ARMED:
        return finding
    call = f"{quoted(asked.argv)[:200]} at {asked.where}"
    if asked.sure:
        off = f"{finding.off}; or leave out {call}"
        return finding._replace(state=State.ON, found=f"{finding.found}; {call}", off=off)
    reason = "whether this call is reached is only known when the script runs"
    return finding._replace(state=State.UNKNOWN, found=f"{finding.found}; {call}", reason=reason)


def _hits(switch: Switch, invocation: Invocation) -> Iterable[Finding]:
    if switch.form is Form.VARIABLE:
        variables = invocation.variables.get(switch.name) or invocation.variables.get(ANY, ())
        finding = _variable(switch, variables) if variables else None
        if finding and finding.state is State.UNKNOWN and invocation.reason:
            finding = finding._replace(off=f"{switch.off} there, if it is set there", reason=invocation.reason)
        return [finding] if finding else []
    if invocation.reason:
        off = f"{switch.off} there, if it is there"
        found = quoted(invocation.argv)[:300]
        return [_finding(switch, State.UNKNOWN, invocation.where, found, invocation.reason)._replace(off=off)]
    if switch.form is Form.OPTION:
        return _option(switch, invocation)
    if switch.form is Form.REQUEST:
        found = quoted(invocation.argv)[:300] if _asked(switch, [invocation]) else ""
    else:
        program = invocation.argv[0] if invocation.argv else None
        found = program if program and name_of(program) == switch.name else ""
    state = _at_most(switch.otherwise, invocation.sure)
    return [_finding(switch, state, invocation.where, found, "")] if found else []


def _at_most(state: State, sure: bool) -> State:
    return state if sure or state is State.OFF else State.UNKNOWN


def _variable(switch: Switch, variables: Sequence[Assignment]) -> Finding:
    """The state of a variable that may be any of ``variables``."""
    states = {
        assignment: switch.state(assignment.text) if assignment.present and assignment.exported else State.OFF
        for assignment in variables
    }
    state, reason = max(states.values(), key=lambda one: one.severity), ""
    # The place to change is where the severest assignment stands, the latest if there are several.
    shown = [assignment for assignment, one in states.items() if one is state][-1]
    if len(set(states.values())) > 1:
        state, reason = State.UNKNOWN, "it depends on the branch that the script takes, or changes on the way"
    elif state is not State.OFF and any(assignment.depth for assignment in variables):
        state, reason = State.UNKNOWN, "it is set where it may not run: in a branch, or in what a program is told"
    elif state is State.UNKNOWN:
        reason = "the value is only known when it runs" if shown.text is None else "nobody documents this value"
    return _finding(switch, state, shown.where, shown.found, reason)


def _finding(switch: Switch, state: State, where: str, found: str, reason: str) -> Finding:
    off = switch.off
    if state is State.OFF:
        off = "nothing to do"
    elif where != "environment":
        line = where.replace("command after", "the command after")
        variable = switch.form is Form.VARIABLE
        off = f"take it out at {line}, or {switch.off} behind it" if variable else f"{switch.off} at {line}"
    return Finding(switch.profiler, state, where, found, off, switch.why, reason)


def _option(switch: Switch, invocation: Invocation) -> list[Finding]:
    """The option among the words in all of vLLM's spellings; at most one finding, since later words override."""
    texts: dict[str, Argument] = {}
    words: list[Argument] = []
    where = invocation.where
    for word, following in zip(invocation.argv, [*invocation.argv[1:], None], strict=False):
        head, equals, value = (word or "").partition("=")
        option, _, key = head.partition(".")
        # vLLM's parser takes underscores for dashes in the option, not in the key behind the dot.
        if not head.startswith("--") or option.replace("_", "-") != switch.name:
            continue
        text = value if equals else following
        words += [word] if equals else [word, following]
        where = getattr(word if equals or following is None else following, "where", where)
        texts.update({key: text and known(text)} if key else _object(switch, text))
    reason = "" if words else _hidden(switch, invocation)
    if reason:
        words, texts = list(invocation.argv), dict.fromkeys(switch.keys)
    states = [switch.state(texts[key]) for key in switch.keys if key in texts]
    # A key that is known to arm decides, whatever the others may turn out to be.
    decided = [one for one in states if one is not State.UNKNOWN]
    state = max(decided, key=lambda one: one.severity, default=State.OFF)
    if state is State.OFF and State.UNKNOWN in states:
        state = State.UNKNOWN
    elif state is State.OFF and words:
        # Later words override, and so does a file.
        reason = _hidden(switch, invocation)
        state = State.UNKNOWN if reason else state
    if state is State.UNKNOWN:
        reason = reason or "the value is no JSON object, or only known when it runs"
    elif not invocation.sure and state is not State.OFF:
        reason = "it stands where it may not run: in a branch, or in what a program is told"
    found = quoted(words)[:300]
    return [_finding(switch, _at_most(state, invocation.sure), where, found, reason)] if words else []


def _hidden(switch: Switch, invocation: Invocation) -> str:
    """Why an option may be there that is not seen: in words that only the run tells, or in a file; else empty."""
    if not any(switch.programs and re.fullmatch(switch.programs, word or "") for word in invocation.argv):
        return ""
    if any(re.fullmatch(switch.files, (word or "").partition("=")[0]) for word in invocation.argv):
        return _FILE
    pairs = pairwise(invocation.argv)
    # What stands behind an option that takes a word is its value.
    valued = (re.fullmatch("-[^=]*", before or "") and not re.fullmatch(switch.flags, before or "")
              for before, word in pairs if word is None)  # fmt: skip
    return "" if all(valued) else _LOST


def _object(switch: Switch, text: Argument) -> dict[str, Argument]:
    """The keys of a JSON object as words; a text that is none leaves the deciding keys unknown."""
    try:
        loaded = json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        loaded = None
    if isinstance(loaded, dict):
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in loaded.items()}
    if text is not None and text.strip() in {"null", ""}:
        return {}
    return dict.fromkeys(switch.keys)
