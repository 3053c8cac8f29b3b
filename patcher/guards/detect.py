"""Is another profiler switched on? The declared switches held against the texts of a launch.

Off: no text names a switch, and nothing hides a text. On or armed: every mention is a plain word that the launch surely
passes. Everything else is unknown; the patch looks again before it records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from patcher.guards.configured import configured
from patcher.guards.launch import COMMAND, ENVIRONMENT, INSIDE, OUTSIDE, Launch, Start, Text, name_of, read
from patcher.guards.result import NOT_PLAIN, GuardResult, hidden
from patcher.switches import Application, Form, Release, State, Switch

_UNSEEN = "nothing that is known to be Python starts behind it"
_VALUE = "nobody documents this value, or it is only known when it runs"


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
    application: Application | None = None,
    severe: bool = False,
) -> tuple[GuardResult, ...]:
    """One result per profiler and way to switch it on, the severest first; one that is off everywhere gives one OFF.

    ``version``, ``root`` and the ``package`` in it are the target's; a version that is not ``published`` says little.
    An ``application`` is configured by Hydra, perhaps by ``config``. With ``severe`` what is off is left out. Raises
    Problem(USAGE) if the script, or one that the command names, or the configuration cannot be read.
    """
    declared, release = tuple(switches), Release(version, published, root / package if root and package else None)
    launch = read(environ, script, command, application.packages if application else ())
    found: list[GuardResult] = []
    if application is not None:
        found += configured(application, release, root, config, launch)
    for profiler in dict.fromkeys(switch.profiler for switch in declared):
        named = [one for one in declared if one.profiler == profiler]
        seen = [(one, result) for one in named for result in _results(one, launch, environ)]
        found += [result for one, result in seen if release.has(one)]
        if severe and not launch.hidden:
            continue  # nobody has to know which switches the release has
        own = [one for one in named if release.has(one)]
        if launch.hidden and not any(one.profiler == profiler and one.state is not State.OFF for one in found) and own:
            found.append(hidden(profiler, launch, own[0].why, f"{own[0].off} there, if it is there"))
        why = own[0].why if own else "no switch of it exists in this release"
        searched = ", ".join([ENVIRONMENT, *([str(script)] if script else []), *([COMMAND] if command else [])])
        found.append(GuardResult(profiler, State.OFF, searched, "", "nothing to do", why))
    return _merged(found, severe=severe)


def _merged(found: list[GuardResult], *, severe: bool) -> tuple[GuardResult, ...]:
    """The results that count, the severest first; files are named as they are typed in the working directory."""
    with suppress(OSError):  # a working directory that is gone
        here = f"{Path.cwd()}/"
        found = [
            one._replace(where=one.where.removeprefix(here), off=one.off.replace(f" {here}", " ")) for one in found
        ]
    # Of several at a place the severest counts, the first one that is as severe.
    places: dict[tuple[str, str], GuardResult] = {}
    for one in sorted(found, key=lambda one: -one.state.severity):
        places.setdefault((one.profiler, one.where), one)
    on = [one for one in found if one.state is not State.OFF and places[one.profiler, one.where] is one]
    off: dict[str, GuardResult] = {}
    for one in found if not severe else ():
        if one.profiler not in {other.profiler for other in on}:
            off.setdefault(one.profiler, one)
    return tuple(sorted([*on, *off.values()], key=lambda one: -one.state.severity))


def _results(switch: Switch, launch: Launch, environ: Mapping[str, str]) -> list[GuardResult]:
    forms = {Form.VARIABLE: _variable, Form.OPTION: _option, Form.PROGRAM: _program, Form.REQUEST: _request}
    if switch.form is Form.VARIABLE and not any(start.variables for start in launch.starts) and switch.name in environ:
        value = environ[switch.name]
        found = [(switch.state(value), ENVIRONMENT, f"{switch.name}={value}", "")]
    else:
        found = forms[switch.form](switch, launch)
    # Of several places the severest counts, the last one that is as severe.
    worst = max((state.severity for state, *_ in found), default=0)
    results = [_result(switch, *one) for one in found if one[0].severity == worst][-1:]
    return [_if_asked(switch, one, launch.starts) for one in results]


_Found = tuple[State, str, str, str]


def _result(switch: Switch, state: State, where: str, found: str, reason: str) -> GuardResult:
    off = switch.off
    if state is State.OFF:
        off = "nothing to do"
    elif where != ENVIRONMENT:
        line = where.replace("command after", "the command after")
        variable = switch.form is Form.VARIABLE
        off = f"take it out at {line}, or {switch.off} behind it" if variable else f"{switch.off} at {line}"
    found = re.sub("[\0\1]+", "…", " ".join(found.split()))[:300]
    return GuardResult(switch.profiler, state, where, found, off, switch.why, reason)


def _mentions(pattern: str, launch: Launch) -> list[Text]:
    search = re.compile(pattern).search
    return [one for one in launch.texts if search(one.text) or search(one.expanded)]


def _variable(switch: Switch, launch: Launch) -> list[_Found]:
    pattern = rf"(?<!\w){switch.name}(?!\w)"
    for text in _mentions(pattern, launch):
        if text.sets.count(switch.name) < max(len(re.findall(pattern, one)) for one in (text.text, text.expanded)):
            return [(State.UNKNOWN, text.where, text.text, NOT_PLAIN)]
    found: list[_Found] = []
    for start in launch.starts:
        variable = start.variables.get(switch.name)
        if variable is None or variable.value is None:
            continue
        value = None if re.search("[\0\1]", variable.value) else variable.value
        state, reason = switch.state(value), ""
        if state is State.UNKNOWN:
            reason = _VALUE
        elif state is not State.OFF and not (start.sure and start.program is not None):
            state, reason = State.UNKNOWN, NOT_PLAIN if start.program is not None else _UNSEEN
        found.append((state, variable.where, variable.found, reason))
    if (
        not found
        and (texts := [one for one in _mentions(pattern, launch) if switch.name in one.sets])
        and not launch.starts
    ):
        found = [(State.UNKNOWN, texts[-1].where, texts[-1].text, _UNSEEN)]
    known = [one for one in found if one[0] in (State.ON, State.ARMED)]
    return known or found


def _option(switch: Switch, launch: Launch) -> list[_Found]:
    """The option among the words in all of vLLM's spellings; later words override."""
    name = switch.name.lstrip("-").replace("-", "[-_]")
    for text in _mentions(rf"(?<![\w-])(--)?{name}(?![\w-])", launch):
        if not text.plain and (any(key in text.text for key in switch.keys) or re.search("[\0\1]", text.expanded)):
            return [(State.UNKNOWN, text.where, text.text, NOT_PLAIN)]
    return [one for start in launch.starts for one in _options(switch, start)]


def _typed(switch: Switch, start: Start) -> tuple[dict[str, str | None], list[str], str]:
    """The texts of the keys of an option, the words that it is made of, and where the last of them stands."""
    texts: dict[str, str | None] = {}
    seen: list[str] = []
    where = start.where
    for at, word in enumerate(start.words):
        following = start.words[at + 1] if at + 1 < len(start.words) else None
        head, equals, value = word.partition("=")
        option, _, key = head.partition(".")
        # vLLM's parser takes underscores for dashes in the option, not in the key behind the dot.
        if option.replace("_", "-") != switch.name:
            continue
        text = value if equals else following
        seen += [word] if equals or following is None else [word, following]
        where = start.places[min(at + (not equals), len(start.words) - 1)]
        texts.update({key: text} if key else _object(switch, text))
    return texts, seen, where


def _options(switch: Switch, start: Start) -> list[_Found]:
    texts, seen, where = _typed(switch, start)
    starts = any(switch.programs and re.fullmatch(switch.programs, word) for word in start.words)
    lost = [word for before, word in zip(("", *start.words), start.words, strict=False)
            if word == OUTSIDE and not _takes_value(switch, before)]  # fmt: skip
    if starts and lost:
        reason = "some of its words are only known when it runs"
        return [(State.UNKNOWN, start.where, " ".join(start.words), reason)]
    states = [switch.state(None if text is None or INSIDE in text or OUTSIDE in text else text)
              for key, text in texts.items() if key in switch.keys]  # fmt: skip
    # A key that is known to arm decides, whatever the others may turn out to be.
    state = max((one for one in states if one is not State.UNKNOWN), key=lambda one: one.severity, default=State.OFF)
    state = State.UNKNOWN if state is State.OFF and State.UNKNOWN in states else state
    reason = _VALUE if state is State.UNKNOWN else ""
    if state is State.ARMED and not (start.sure and start.program is not None):
        state, reason = State.UNKNOWN, NOT_PLAIN
    return [(state, where, " ".join(seen), reason)] if seen else []


def _takes_value(switch: Switch, before: str) -> bool:
    option = re.fullmatch("-[^=]*", before) and not re.fullmatch(switch.flags, before)
    return bool(option and not re.fullmatch(switch.files, before)) or before == "serve"


def _object(switch: Switch, text: str | None) -> dict[str, str | None]:
    """The keys of a JSON object as words; a text that is none leaves the deciding keys unknown."""
    try:
        loaded = json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        loaded = None
    if isinstance(loaded, dict):
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in loaded.items()}
    return {} if text is not None and text.strip() in {"null", ""} else dict.fromkeys(switch.keys)


def _program(switch: Switch, launch: Launch) -> list[_Found]:
    starts = [
        one for one in launch.starts if one.program is not None and name_of(one.words[one.program]) == switch.name
    ]
    found: list[_Found] = [(switch.otherwise, one.where, " ".join(one.words), "") for one in starts if one.sure]
    mentions = _mentions(rf"(?<![\w-]){switch.name}(?![\w-])", launch)
    return found or [(State.UNKNOWN, one.where, one.text, NOT_PLAIN) for one in mentions[:1]]


def _request(switch: Switch, launch: Launch) -> list[_Found]:
    asked = _asked(switch, launch.starts)
    if asked is not None:
        state = switch.otherwise if asked.sure else State.UNKNOWN
        return [(state, asked.where, " ".join(asked.words), "" if asked.sure else NOT_PLAIN)]
    mentions = _mentions(rf"(?<!\w){switch.name.lstrip('/')}(?!\w)", launch)
    return [(State.UNKNOWN, one.where, one.text, NOT_PLAIN) for one in mentions[:1]]


def _asked(switch: Switch, starts: Sequence[Start]) -> Start | None:
    """The start that makes an armed profiler record; one that surely runs before one that may."""
    asking = [
        start
        for start in starts
        if any(
            all(any(re.fullmatch(pattern, word) for word in start.words) for pattern in row) for row in switch.asked_by
        )
    ]
    return next((start for start in asking if start.sure), asking[0] if asking else None)


def _if_asked(switch: Switch, result: GuardResult, starts: Sequence[Start]) -> GuardResult:
    asked = _asked(switch, starts) if result.state is State.ARMED else None
    if asked is None:
        return result
    call = f"{' '.join(asked.words)[:200]} at {asked.where}"
    found = f"{result.found}; {call}"
    if asked.sure:
        return result._replace(state=State.ON, found=found, off=f"{result.off}; or leave out {call}")
    return result._replace(state=State.UNKNOWN, found=found, reason="whether this call is reached is not known")
