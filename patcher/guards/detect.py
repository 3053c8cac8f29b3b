"""Is another profiler switched on? The declared switches held against the texts of a launch.

Off: no text names a switch, and nothing hides a text. On or armed: every mention is a plain word that the launch surely
passes. Everything else is unknown; the patch checks again before it records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from posixpath import basename

from patcher.guards.configured import judge_configured
from patcher.guards.launch import LaunchText, Reading, read, text_of
from patcher.guards.result import COMMAND, ENVIRONMENT, NOT_PLAIN, Checked, GuardResult, Launch, within_sentence
from patcher.guards.start import OUTSIDE, Start, is_known, with_ellipses
from patcher.messages import COMMA, Text, joined
from patcher.switches import ConfigSwitch, Form, Release, State, Switch

_VALUE = Text("this value is not documented, or is only known at run time")
_WORDS = Text("a part of the command is only known at run time")


def detect(checked: Checked, launch: Launch, *, with_off: bool) -> tuple[GuardResult, ...]:
    """Return the results per profiler and place, the severest first; one OFF for a profiler that is off everywhere.

    Without ``with_off``, most OFF are left out: to find out which switches a release has takes time. Raises Problem
    (USAGE) if a file that the launch names, or the configuration, cannot be read.
    """
    application, release = checked.application, checked.release
    reading = read(launch, partial(_is_upstream, checked))
    results, hidden = judge_configured(application, checked, launch.config, reading) if application else ([], [])
    for switch in checked.switches:
        judged = _judge(switch, reading)
        if judged and release.has(switch):  # in a development tree, this searches all code
            results += judged
    where = joined(COMMA, filter(None, (ENVIRONMENT, str(launch.script or ""), COMMAND if launch.command else "")))
    for switches, texts in ((application.switches if application else (), hidden), (checked.switches, reading.hidden)):
        if texts or with_off:
            not_off = {result.profiler for result in results if result.state is not State.OFF}
            results += _off_or_hidden([*switches], release, texts, not_off, where)
    return _severest(results)


def _off_or_hidden(
    switches: Sequence[Switch | ConfigSwitch], release: Release, hidden: list[LaunchText], not_off: set[str], where: str
) -> Iterator[GuardResult]:
    """Yield OFF at ``where`` for each profiler of ``switches``, before it UNKNOWN if a ``hidden`` text may turn it on.

    A profiler in ``not_off`` gets no UNKNOWN here, because it has a more certain result already.
    """
    for profiler in dict.fromkeys(switch.profiler for switch in switches):
        alike = [switch for switch in switches if switch.profiler == profiler and release.has(switch)]
        if alike and hidden and profiler not in not_off:
            yield _possibly_on(alike[0], hidden[0])
        why = alike[0].why if alike else Text("this release has no switch for this profiler")
        yield GuardResult(profiler, State.OFF, where, "", Text("nothing to do"), why)


def _severest(results: list[GuardResult]) -> tuple[GuardResult, ...]:
    """Return the severest result per profiler and place, the severest first.

    An OFF is kept only if its profiler has no other result, and only once.
    """
    severest: dict[tuple[str, str], GuardResult] = {}
    for result in sorted(results, key=lambda result: -result.state.severity):
        is_off = result.state is State.OFF
        if not is_off or result.profiler not in {profiler for profiler, _ in severest}:
            severest.setdefault((result.profiler, "" if is_off else result.where), result)
    return tuple(severest.values())


def _is_upstream(checked: Checked, file: Path) -> bool:
    """Tell whether a Python file is the target's own: below its root, and in its packages or with a main for Hydra.

    False if the target has no program that Hydra configures, or its root is unknown. Raises Problem (USAGE) if the file
    cannot be read.
    """
    application, root = checked.application, checked.root.resolve() if checked.root else None
    if not (application and root and file.is_relative_to(root)):
        return False
    return file.relative_to(root).parts[0] in application.packages or bool(re.search(application.main, text_of(file)))


def _possibly_on(switch: Switch | ConfigSwitch, text: LaunchText) -> GuardResult:
    """Return an UNKNOWN result for the profiler of ``switch``, which a ``text`` that cannot be read may switch on."""
    place, advice = within_sentence(text.where), ""
    if text.where != text.reason:
        advice = Text(
            "{instruction} (only needed if {place} switches the profiler on)", instruction=switch.off, place=place
        )
    line = text.text.partition("\n")[0].strip()[:200]
    return GuardResult(switch.profiler, State.UNKNOWN, text.where, line, advice, switch.why, text.reason)


def _judge(switch: Switch, reading: Reading) -> list[GuardResult]:
    """Return a list with the one result that counts for ``switch``; [] if nothing in the launch can set the switch.

    ON and ARMED come before UNKNOWN, and UNKNOWN before OFF; among equal ones the last in the launch counts. But if a
    text sets a variable or option in a form that cannot be read, the result is UNKNOWN. For other switches, such a text
    counts only if there is no other result.
    """
    judge = _JUDGES.get(switch.form)  # none for a key of a runtime environment, in which Ray may start nothing
    results = [*judge(switch, reading)] if judge else []
    is_overridable = switch.form in (Form.VARIABLE, Form.OPTION)
    if switch.otherwise is not State.OFF and (is_overridable or not results):
        results = _unreadable(switch, reading) or results
    decided = (State.ARMED, State.ON)
    return sorted(results, key=lambda result: (result.state in decided, result.state.severity))[-1:]


def _build_result(
    switch: Switch, state: State, where: str, text: str, reason: str = "", start: Start | None = None
) -> GuardResult:
    """Build the result for ``switch``, which ``text`` at ``where`` sets to ``state``, with how to switch it off there.

    ``start`` is the command that gets the setting; None if none is concerned. ON and ARMED become UNKNOWN if
    it is not certain that the launch runs this command or, where that matters, that the command starts Python.
    ``reason`` tells why ``state`` is UNKNOWN; with a ``start`` it is replaced.
    """
    if start and state is State.UNKNOWN:
        reason = _VALUE
    elif start and state is not State.OFF:
        is_seen = bool(start.program) or switch.form in (Form.PROGRAM, Form.REQUEST)
        if not (start.sure and is_seen):
            state, reason = State.UNKNOWN, NOT_PLAIN
    off: str = Text("nothing to do") if state is State.OFF else switch.off
    if state is not State.OFF and where != ENVIRONMENT:
        off = Text("{instruction} at {place}", instruction=switch.off, place=within_sentence(where))
    return GuardResult(
        switch.profiler, state, where, with_ellipses(" ".join(text.split()))[:300], off, switch.why, reason
    )


def _unreadable(switch: Switch, reading: Reading) -> list[GuardResult]:
    """Return an UNKNOWN result for the first text that names ``switch`` in a form that cannot be read, else []."""
    name = switch.name.lstrip("-/").replace("-", "[-_]")
    pattern = {
        Form.VARIABLE: rf"\b{name}\b",
        Form.KEY: rf"(?<![\w.])_?{name}\]?\s*[:=](?!\s*(?i:none|null|false|~|\{{\s*\}})\s*([,)}}\]]|$))",
        Form.PROGRAM: rf"(?<![\w.-])({switch.programs})(?![\w-])|^\w+=(\S*/)?{name}$",  # also as a variable's value
    }.get(switch.form, rf"(?<![\w-])(--)?{name}(?![\w-])")
    is_plain = {Form.VARIABLE: rf"{name}(=|$)", Form.OPTION: ""}.get(switch.form, "(?!)")
    arguments = {word for start in reading.starts if name not in start.variables for word in start.words}
    for text in reading.texts:
        is_argument = switch.form is Form.VARIABLE and text.text in arguments
        is_readable = text.plain and re.match(is_plain, text.text) and not is_argument
        if re.search(pattern, text.text) and not is_readable:
            return [_build_result(switch, State.UNKNOWN, text.where, text.text, NOT_PLAIN)]
    return []


def _judge_variable(switch: Switch, reading: Reading) -> Iterator[GuardResult]:
    """Yield a result for each start of Python in which the variable is set.

    If the launch starts no Python, yield one for each command behind which the variable is set.
    """
    value, is_seen = reading.environ.get(switch.name), any(start.program for start in reading.starts)
    for start in reading.starts:
        set_value = start.variables.get(switch.name, value)
        value = value if start.program else set_value
        if set_value is not None and (start.program or not is_seen):
            text = f"{switch.name}={set_value}"
            state = switch.state(set_value if is_known(set_value) else None)
            reason = switch.why if switch.otherwise is State.OFF else ""
            yield _build_result(switch, state, reading.place(text, ENVIRONMENT), text, reason, start)


def _judge_option(switch: Switch, reading: Reading) -> Iterator[GuardResult]:
    """Yield the result of a command-line option for each start that has it, or may have it in an unknown word.

    Every spelling of vLLM counts (``--a-b``, ``--a_b``, ``--a.key``), and later words override earlier ones.
    """
    takes_no_value = f"{switch.flags}|{switch.files}|(?!-|serve$).*|.*=.*"
    for start in reading.starts:
        values: dict[str, str] = {}
        words: list[str] = []
        may_have_it = False
        for before, word, following in zip(("", *start.words), start.words, (*start.words[1:], OUTSIDE), strict=False):
            head, equals, value = word.partition("=")
            option, _, key = head.partition(".")
            # vLLM's parser takes underscores for dashes in the option, not in the key behind the dot.
            if option.replace("_", "-") == switch.name:
                words += [word] if equals else [word, following]
                text = value if equals else following
                values.update({key: text} if key else _parse_object(switch, text))
            may_have_it = may_have_it or (word == OUTSIDE and bool(re.fullmatch(takes_no_value, before)))
        states = [switch.state(text if is_known(text) else None) for key, text in values.items() if key in switch.keys]
        state = max(states, key=lambda state: state.severity, default=State.OFF)
        if may_have_it and any(re.fullmatch(switch.programs, word) for word in start.words):
            where = reading.place(start.words[-1], start.where)
            yield _build_result(switch, State.UNKNOWN, where, " ".join(start.words), _WORDS)
        elif words:
            yield _build_result(switch, state, reading.place(words[-1], start.where), " ".join(words), start=start)


def _parse_object(switch: Switch, text: str) -> dict[str, str]:
    """Parse a JSON object into key → text of its value; {} for null or an empty text.

    If it is invalid, the keys of ``switch`` are unknown (OUTSIDE).
    """
    try:
        keys = (json.loads(text.strip() or "null") or {}).items()
    except (ValueError, RecursionError, AttributeError):
        return dict.fromkeys(switch.keys, OUTSIDE)
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in keys}


def _judge_program(switch: Switch, reading: Reading) -> Iterator[GuardResult]:
    """Yield a result, with the state ``otherwise`` of ``switch``, for each start of one of its programs.

    The state is UNKNOWN if it is not sure that the launch starts the program, such as behind a launcher.
    """
    for start in reading.starts:
        for at, word in enumerate(start.words):
            if re.fullmatch(switch.programs, " ".join((basename(word), *start.words[at + 1 :])), re.DOTALL):
                run = replace(start, sure=start.sure and at == len(start.words) - len(start.command_words))
                yield _build_result(switch, switch.otherwise, start.where, " ".join(start.words), start=run)


def _judge_request(switch: Switch, reading: Reading) -> Iterator[GuardResult]:
    """Yield a result, with the state ``otherwise`` of ``switch``, for each command that fits a row of ``requested_by``.

    Each pattern of the row must match a whole word; a pattern after ``!`` fails if it matches one. Words with white
    space do not count. The state is UNKNOWN if it is not sure that the launch runs the command. It is UNKNOWN, too, if
    exactly one pattern fails, but a word is known only at run time. In a row of one pattern, this holds only for curl
    and wget.
    """
    for start in reading.starts:
        words = [word for word in start.words if not re.search(r"\s", word)]  # a text for a shell has starts of its own
        is_open = OUTSIDE in words
        for row in switch.requested_by:
            matches = ((any(re.fullmatch(pattern.lstrip("!"), word) for word in words), pattern) for pattern in row)
            missing = sum(is_there is pattern.startswith("!") for is_there, pattern in matches)
            may_match = is_open and (len(row) > 1 or start.name in ("curl", "wget"))
            if missing == 0 or (missing == 1 and may_match):
                request = replace(start, sure=start.sure and missing == 0)
                yield _build_result(switch, switch.otherwise, start.where, " ".join(start.words), start=request)


_JUDGES = {
    Form.VARIABLE: _judge_variable,
    Form.OPTION: _judge_option,
    Form.PROGRAM: _judge_program,
    Form.REQUEST: _judge_request,
}
