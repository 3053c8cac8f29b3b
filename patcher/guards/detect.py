"""Is another profiler switched on? The declared switches held against the texts of a launch.

Off: no text names a switch, and nothing hides a text. On or armed: every mention is a plain word that the launch surely
passes. Everything else is unknown; the patch checks again before it records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import dropwhile, pairwise
from posixpath import basename

from patcher.guards.configured import configured
from patcher.guards.launch import Reading, read
from patcher.guards.result import (
    COMMAND,
    ENVIRONMENT,
    NOT_PLAIN,
    Checked,
    GuardResult,
    Hidden,
    Launch,
    within_sentence,
)
from patcher.guards.start import OUTSIDE, Start, carries, is_known, shown, wraps
from patcher.messages import COMMA, SEMICOLON, Text, joined
from patcher.switches import ConfigSwitch, Form, Release, State, Switch

_UNSEEN = Text("rlpatch found no Python program that starts with this variable set")
_VALUE = Text("this value is not documented, or only known at run time")
_WORDS = Text("part of the command is only known at run time")


def detect(checked: Checked, launch: Launch, *, severe: bool = False) -> tuple[GuardResult, ...]:
    """Return the results per profiler and place, the severest first; one OFF for a profiler that is off everywhere.

    ``checked`` has the switches to look for, ``launch`` how the run starts. With ``severe``, OFF is left out. Raises
    Problem (USAGE) if the script, a script that the command names, or the configuration cannot be read.
    """
    application = checked.application
    reading = read(launch, application.packages if application else ())
    configured_results, hidden = configured(application, checked, launch.config, reading) if application else ([], [])
    # To ask whether a release has a switch takes longer than to look for it.
    judgements = ((switch, _results(switch, reading)) for switch in checked.switches)
    results = [result for switch, judged in judgements if judged and checked.release.has(switch) for result in judged]
    places = (ENVIRONMENT, launch.script, COMMAND if launch.command else None)
    where = joined(COMMA, (place if isinstance(place, str) else str(place) for place in places if place))
    named = [*configured_results, *results]
    if application and (hidden or not severe):  # else nobody has to know which switches the release has
        named += _unnamed(application.switches, checked.release, hidden, configured_results, where)
    if reading.hidden or not severe:
        named += _unnamed(checked.switches, checked.release, reading.hidden, named, where)
    return _merged(named, severe=severe)


def _unnamed(
    switches: Sequence[Switch | ConfigSwitch],
    release: Release,
    hidden: Sequence[Hidden],
    results: Iterable[GuardResult],
    where: str,
) -> Iterator[GuardResult]:
    """Yield OFF for each profiler of ``switches``, preceded by UNKNOWN if hidden text may switch the profiler on.

    No UNKNOWN comes if ``results`` already say that it is not off, or the release has no switch for it. ``where`` is
    what was searched, in words.
    """
    not_off = {result.profiler for result in results if result.state is not State.OFF}
    for profiler in dict.fromkeys(switch.profiler for switch in switches):
        existing = [switch for switch in switches if switch.profiler == profiler and release.has(switch)]
        why = existing[0].why if existing else Text("this release has no switch for this profiler")
        for text in hidden[:1] if existing and profiler not in not_off else ():
            is_searched = text.where != text.reason
            advice = (
                Text("{instruction} if this place switches the profiler on", existing[0].off) if is_searched else ""
            )
            line = text.found.partition("\n")[0].strip()[:200]
            yield GuardResult(profiler, State.UNKNOWN, text.where, line, advice, why, text.reason)
        yield GuardResult(profiler, State.OFF, where, "", Text("nothing to do"), why)


def _merged(results: list[GuardResult], *, severe: bool) -> tuple[GuardResult, ...]:
    """Return the results that count, the severest first: one for each profiler and place.

    OFF is kept, unless ``severe``, for a profiler without any other result.
    """
    places: dict[tuple[str, str], GuardResult] = {}
    for result in sorted(results, key=lambda result: -result.state.severity):
        if result.state is not State.OFF:
            places.setdefault((result.profiler, result.where), result)
        elif not severe and result.profiler not in [profiler for profiler, _ in places]:
            places[result.profiler, ""] = result
    return tuple(places.values())


def _results(switch: Switch, reading: Reading) -> list[GuardResult]:
    """Return the severest result of ``switch``, the last of equals, as a list; empty if the launch does not mention it.

    An armed profiler becomes ON, or UNKNOWN, if the launch also makes a call that starts the recording.
    """
    if switch.otherwise is State.OFF:
        return _ignored(switch, reading)
    results = sorted(_JUDGES[switch.form](switch, reading), key=lambda result: result.state.severity)[-1:]
    requests = _requests(switch, reading)
    if not requests or not results or results[0].state is not State.ARMED:
        return results
    call = Text("{call} at {place}", shown(" ".join(requests[0].words))[:200], requests[0].where)
    armed = results[0]._replace(found=joined(SEMICOLON, (results[0].found, call)))
    if requests[0].sure:
        return [armed._replace(state=State.ON, off=Text("{instruction}, or leave out {call}", armed.off, call))]
    return [armed._replace(state=State.UNKNOWN, reason=Text("rlpatch cannot tell whether this call is reached"))]


def _result(switch: Switch, state: State, where: str, text: str, reason: str = "") -> GuardResult:
    """Build the result for ``switch`` in ``state``, set by ``text`` at ``where``, with how to switch it off there."""
    off: str = Text("nothing to do") if state is State.OFF else switch.off
    if state is not State.OFF and where != ENVIRONMENT:
        line = within_sentence(where)
        off = Text("{instruction} at {place}", switch.off, line)
        if switch.form is Form.VARIABLE:
            off = Text("remove the variable at {place}, or {instruction} after that line", line, switch.off)
    return GuardResult(switch.profiler, state, where, shown(" ".join(text.split()))[:300], off, switch.why, reason)


def _judged(switch: Switch, state: State, start: Start, where: str, text: str) -> GuardResult:
    """Build the result for ``text`` of a ``start``, which sets ``switch`` to ``state``.

    An ON or ARMED state becomes UNKNOWN unless the launch surely comes to this start.
    """
    is_variable, reason = switch.form is Form.VARIABLE, ""
    is_reached = start.sure and (start.program or switch.form in (Form.PROGRAM, Form.REQUEST))
    if state is State.UNKNOWN:
        reason = _VALUE
    elif state is not State.OFF and not is_reached:
        state, reason = State.UNKNOWN, _UNSEEN if is_variable and not start.program else NOT_PLAIN
    return _result(switch, state, where, text, reason)


def _unclear(switch: Switch, reading: Reading) -> list[GuardResult]:
    """Return one UNKNOWN result for the first text that names ``switch`` in a form that cannot be read, else no result.

    For a variable, only a plain assignment can be read.
    """
    name = switch.name.lstrip("-/").replace("-", "[-_]")
    is_variable = switch.form is Form.VARIABLE
    names = rf"\b{name}\b" if is_variable else rf"(?<![\w-])(--)?{name}(?![\w-])"
    if switch.form is Form.KEY:
        names = rf"(?<![\w.])_?{name}\]?\s*[:=](?!\s*(?i:none|null|false|~|\{{\s*\}})\s*([,)}}\]]|$))"
    if switch.form is Form.PROGRAM:  # also in an array, or what a variable is
        names = rf"(?<![\w.-])({switch.programs})(?![\w-])|^\w+=(\S*/)?{name}$"
    for text in reading.texts:
        sets = re.match(rf"{name}(=|$)", text.text) if is_variable else switch.form is Form.OPTION
        if not (text.plain and sets) and re.search(names, text.text):
            return [_result(switch, State.UNKNOWN, text.where, text.text, NOT_PLAIN)]
    return []


def _variable(switch: Switch, reading: Reading) -> list[GuardResult]:
    """Judge an environment variable at each start of the launch; a text that cannot be read gives UNKNOWN.

    Return the results that are ON or ARMED, else all.
    """
    if results := _unclear(switch, reading):
        return results
    name, value = switch.name, reading.environ.get(switch.name)
    is_seen = any(start.program for start in reading.starts)
    for start in reading.starts:
        set_value = start.variables.get(name, value)
        value = value if start.program else set_value
        if name not in start.variables and any(word.startswith(f"{name}=") for word in start.words):
            results.append(_result(switch, State.UNKNOWN, start.where, " ".join(start.words), NOT_PLAIN))
        if set_value is not None and (start.program or not is_seen):
            text = f"{name}={set_value}"
            state = switch.state(set_value if is_known(set_value) else None)
            results.append(_judged(switch, state, start, reading.place(text, ENVIRONMENT), text))
    return [result for result in results if result.state in (State.ON, State.ARMED)] or results


def _ignored(switch: Switch, reading: Reading) -> list[GuardResult]:
    """Return one OFF result if the launch sets a variable that the release does not read.

    No result if it is set nowhere.
    """
    values = [reading.environ.get(switch.name), *(start.variables.get(switch.name) for start in reading.starts)]
    texts = [f"{switch.name}={text}" for text in values if text is not None]
    return [_result(switch, State.OFF, reading.place(text, ENVIRONMENT), text, switch.why) for text in texts[-1:]]


def _option(switch: Switch, reading: Reading) -> list[GuardResult]:
    """Return the results of a command-line option, one a start that has it; one UNKNOWN if it cannot be read."""
    decides = any(re.search("|".join((*switch.keys, "[\0\1]")), text.text) for text in reading.texts)
    unclear = _unclear(switch, reading) if decides else []
    return unclear or [result for start in reading.starts for result in _options(switch, start, reading)]


def _options(switch: Switch, start: Start, reading: Reading) -> Iterator[GuardResult]:
    """Yield the result of a command-line option in one ``start``; yield nothing without the option.

    Every spelling of vLLM counts (``--a-b``, ``--a_b``, ``--a.key``), and later words override earlier ones. UNKNOWN if
    a word that is known only at run time may be the option.
    """
    values, words = dict[str, str](), list[str]()
    for word, following in pairwise((*start.words, OUTSIDE)):
        head, equals, value = word.partition("=")
        option, _, key = head.partition(".")
        # vLLM's parser takes underscores for dashes in the option, not in the key behind the dot.
        if option.replace("_", "-") == switch.name:
            words += [word] if equals else [word, following]
            text = value if equals else following
            values.update({key: text} if key else _object(switch, text))
    states = [switch.state(text if is_known(text) else None) for key, text in values.items() if key in switch.keys]
    # A key that is known to arm decides, whatever the others may turn out to be.
    state = State.ARMED if State.ARMED in states else max(states, key=lambda state: state.severity, default=State.OFF)
    if _may_be_among(switch, start.words):
        where = reading.place(start.words[-1], start.where)
        yield _result(switch, State.UNKNOWN, where, " ".join(start.words), _WORDS)
    elif words:
        yield _judged(switch, state, start, reading.place(words[-1], start.where), " ".join(words))


def _may_be_among(switch: Switch, words: Sequence[str]) -> bool:
    """Tell whether a word that is known only at run time may be the option of one of the switch's programs."""
    takes_no_value = f"{switch.flags}|{switch.files}|(?!-|serve$).*|.*=.*"
    is_any = any(word == OUTSIDE and re.fullmatch(takes_no_value, before) for before, word in pairwise(("", *words)))
    return is_any and any(switch.programs and re.fullmatch(switch.programs, word) for word in words)


def _object(switch: Switch, text: str) -> dict[str, str]:
    """Parse a JSON object into key → text of its value; if it is invalid, each key of ``switch`` → OUTSIDE."""
    try:
        keys = (json.loads(text.strip() or "null") or {}).items()
    except (ValueError, RecursionError, AttributeError):
        return dict.fromkeys(switch.keys, OUTSIDE)
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in keys}


def _started(switch: Switch, reading: Reading) -> list[GuardResult]:
    """Return the result of a program or request that starts the profiler, as a list.

    A start that surely runs counts first. Without such a start, UNKNOWN if a text that cannot be read names it, else no
    result.
    """
    starts = [*_profiled(switch, reading)] if switch.form is Form.PROGRAM else _requests(switch, reading)
    for start in sorted(starts, key=lambda start: not start.sure)[:1]:
        return [_judged(switch, switch.otherwise, start, start.where, " ".join(start.words))]
    return _unclear(switch, reading)


def _profiled(switch: Switch, reading: Reading) -> Iterator[Start]:
    """Yield the starts of the switch's program; a start is not sure if the words before it may not run the program."""
    for start in reading.starts:
        for at, word in enumerate(start.words):
            if re.fullmatch(switch.programs, " ".join((basename(word), *start.words[at + 1 :])), re.DOTALL):
                before = [*dropwhile(wraps, start.words[:at])]
                is_run = not before or (carries(before) and not any(word.endswith(".py") for word in before))
                yield replace(start, sure=start.sure and is_run)


def _keyed(switch: Switch, reading: Reading) -> list[GuardResult]:
    """Return ON if a key of Ray's runtime environment is set in settings that certainly count, as a list.

    Otherwise UNKNOWN if a text that cannot be read names the key, else no result.
    """
    key = rf"_?{switch.name}\]?\s*[:=]\s*"
    block = rf"(?P<indent>[ \t]*)_?{switch.name}:[ \t]*\n(?P=indent)[ \t]+\w"
    for text in reading.settings:
        if re.match(rf"[^\n]*\b{key}(default\b|\{{\s*\w)|{block}", text.text):
            where = reading.place(text.text, text.where)
            return [_result(switch, State.ON, where, text.text.partition("\n")[0])]
    return _unclear(switch, reading)


def _requests(switch: Switch, reading: Reading) -> list[Start]:
    """Return the starts that make an armed profiler record, those that surely run before those that may run."""
    rows = switch.requested_by
    starts = [
        start for start in reading.starts if any(all(_is_among(word, start.words) for word in row) for row in rows)
    ]
    return sorted(starts, key=lambda start: not start.sure)


def _is_among(pattern: str, words: Sequence[str]) -> bool:
    """Tell whether ``pattern`` matches one of ``words``; with a leading ``!``, whether it matches none."""
    return any(re.fullmatch(pattern.lstrip("!"), word) for word in words) is not pattern.startswith("!")


_JUDGES = {
    Form.VARIABLE: _variable,
    Form.OPTION: _option,
    Form.PROGRAM: _started,
    Form.REQUEST: _started,
    Form.KEY: _keyed,
}
