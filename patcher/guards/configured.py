"""Is a profiler switched on by a Hydra configuration? The declared switches held against what each start composes.

The starts of an application are found among the invocations; without any, its installed defaults count. Nothing is
imported from the target.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from patcher.errors import Kind, Problem
from patcher.guards import hydra
from patcher.guards.detect import Finding, Subject, overridden, severest
from patcher.guards.hydra import Start, typed, unknown
from patcher.launches import Invocation, decorator, programs, quoted
from patcher.switches import Application, ConfigSwitch, State

_Values = Mapping[str, object]


def findings(application: Application, subject: Subject) -> list[Finding]:
    """One finding per profiler and line; a profiler that is off everywhere gives one OFF.

    Where no start is given and the installed defaults are not there to be composed, each is UNKNOWN. Raises
    Problem(USAGE) if the configuration file that the user names is none.
    """
    active = [switch for switch in application.switches if subject.release.has(switch)]
    starts = _starts(application, subject)
    if active and not starts:
        return _unknown(application, subject, active)
    keys = dict.fromkeys(key.name for switch in active for key in switch.keys)
    where = (subject.root, application.folder, application.defaults)
    request = hydra.starts(starts, keys, *where, whole=application.whole)
    composed = hydra.composed(subject.pythons, request, application.extra) if active else "there is no switch"
    nothing = [{"values": {}, "known": False, "reason": composed}] * len(starts)
    answers, child = (nothing, None) if isinstance(composed, str) else composed
    profilers = list(dict.fromkeys(switch.profiler for switch in application.switches))
    switches = {profiler: [switch for switch in active if switch.profiler == profiler] for profiler in profilers}
    each = [(one, number) for one in profilers for number in range(len(answers))]
    all_judged = [_judged(switches[one], number, starts[number], answers[number]) for one, number in each]
    judged = [one for one in all_judged if one]
    changes = child.ask({"changes": [one.request for one in judged]}) if child and judged else None
    found = severest(map(_finding, judged, changes or [_UNCHANGED] * len(judged)))
    searched = ", ".join(dict.fromkeys(start.where for start in starts))
    for profiler in profilers if starts else ():
        if not any(finding.profiler == profiler for finding in found):
            why = next((switch.why for switch in switches[profiler]), "no switch of it exists in this release")
            typed_off = quoted(_typed(switches[profiler], starts))[:300]
            found.append(Finding(profiler, State.OFF, searched, typed_off, "nothing to do", why))
    return sorted(found, key=lambda finding: profilers.index(finding.profiler))


def _typed(switches: Iterable[ConfigSwitch], starts: Iterable[Start]) -> list[str]:
    """The overrides of the switches' keys that the starts are given."""
    names = {key.name for switch in switches for key in switch.keys}
    return [word for start in starts for word in start.words if word and overridden(word) in names]


def _unknown(application: Application, subject: Subject, active: Iterable[ConfigSwitch]) -> list[Finding]:
    """What is said of profilers whose configuration is not here."""
    where = f"{application.packages[0]} is not found here"
    if subject.root is not None:
        where = f"{application.folder} has no configuration that rlpatch knows"
    whys = {switch.profiler: switch.why for switch in active if not switch.if_known}
    return [Finding(profiler, State.UNKNOWN, where, "", "", why, where) for profiler, why in whys.items()]


# --- judging ---

# Of keys that were to be changed, where the configuration is not known that they stand in.
_UNCHANGED: dict[str, Any] = {"origins": {}, "place": "", "accepted": [], "overrides": [], "values": {}}


class _Judged(NamedTuple):
    """A profiler that a start does not leave off, by what was answered of the start.

    ``switches`` are those that say so, each with the severest values that it may have; ``request`` asks where its keys
    are decided, and which changes Hydra takes that switch it off. ``open`` are keys that only the run tells.
    """

    start: Start
    answer: dict[str, Any]
    state: State
    switches: list[tuple[ConfigSwitch, _Values]]
    request: dict[str, Any]
    open: list[str]


def _judged(switches: Sequence[ConfigSwitch], number: int, start: Start, answer: dict[str, Any]) -> _Judged | None:
    """The severest answer of the switches of one profiler, None if all say that it is off."""
    found: list[tuple[ConfigSwitch, State, _Values]] = []
    for switch in switches:
        values = answer["values"]
        if switch.if_known and answer["reason"]:  # so rarely meant that it has to be seen
            values = {name: value for name, value in values.items() if not unknown(value)}
        on = {key.name: key.values[-1] for key in switch.keys}
        state, ways = _state(switch, values) if answer["known"] or switch.if_known else (State.UNKNOWN, on)
        found.append((switch, state, ways))
    worst = max((state for _, state, _ in found), key=lambda state: state.severity, default=State.OFF)
    if worst is State.OFF:
        return None
    meant = [(switch, ways) for switch, state, ways in found if state is worst]
    keys, values = [key for switch, _ in meant for key in switch.keys], answer["values"]
    shown = dict.fromkeys(key.name for key in keys if values.get(key.name) not in (None, False, key.values[0]))
    opened = [name for name in shown if worst is State.UNKNOWN and unknown(values[name])]
    changes = {name: typed(off) for switch, ways in meant for name, off in _off(switch, ways)}
    request = {"start": number, "keys": list(shown), "decisive": [*opened, *changes][0], "changes": changes}
    return _Judged(start, answer, worst, meant, request, opened)


def _finding(one: _Judged, change: dict[str, Any]) -> Finding:
    (switch, _), state, reason = one.switches[0], one.state, ""
    based = not one.answer["reason"]  # else the files are not those of the run
    if state is State.UNKNOWN:
        reason = "a value is only known when it runs" if one.open else "nobody documents this value"
        reason = one.answer["reason"] or reason
    elif state is State.ON and not one.start.sure:
        state, reason = State.UNKNOWN, "it stands in a branch, a loop or a function that may not run"
    key, typed_at = change["origins"].get(one.request["decisive"], (one.request["decisive"], None))
    where = (one.answer["known"] and typed_at) or (based and change["place"]) or one.start.where
    off = f"change {key}" if one.answer["known"] else ""
    if change["accepted"] and _helps(one, change):
        off = " ".join(change["overrides"]) + (
            "" if typed_at else " as an override, or" if based else " as the last override"
        )
    shown = {name: change["origins"].get(name, (name, None)) for name in one.request["keys"]}
    said = [f"{key}={typed(one.answer['values'][name])}" for name, (key, place) in shown.items() if based or place]
    return Finding(
        switch.profiler,
        state,
        where,
        " ".join(dict.fromkeys(said))[:300],
        off and f"{off} at {where.replace('command after', 'the command after')}",
        (one.state is State.ARMED and switch.armed) or switch.why,
        reason,
    )


def _helps(one: _Judged, change: dict[str, Any]) -> bool:
    """Whether the switches are off behind the accepted changes; where nothing is known, those that they are for."""
    for switch, values in one.switches:
        taken = all(name in change["accepted"] for name, _ in _off(switch, values))
        if (one.answer["known"] and not taken) or (taken and _state(switch, change["values"])[0] is not State.OFF):
            return False
    return True


def _state(switch: ConfigSwitch, values: _Values) -> tuple[State, _Values]:
    """The state that the values mean, and the severest values that they may be."""
    mine = {key.name: values.get(key.name) for key in switch.keys}
    # Keys with the same unknown text follow from each other, so they change together.
    texts = list(dict.fromkeys(str(value) for value in mine.values() if unknown(value)))
    choices = [next(key.values for key in switch.keys if str(mine[key.name]) == text) for text in texts]
    known = [dict(zip(texts, case, strict=True)) for case in itertools.product(*choices)]
    ways = [{name: case.get(str(value), value) for name, value in mine.items()} for case in known]
    states = [switch.state(way) for way in ways]
    worst = max(states, key=lambda state: state.severity)
    return (worst if len(set(states)) == 1 else State.UNKNOWN), ways[states.index(worst)]


def _off(switch: ConfigSwitch, values: _Values) -> list[tuple[str, object]]:
    """The keys to change, with what to change them to: the first one that does alone, else as many as it takes."""
    offs = {key.name: key.values[0] for key in switch.keys}
    for name, off in offs.items():
        if switch.state({**values, name: off}) is State.OFF:
            return [(name, off)]
    changed, changes = dict(values), []
    for name, off in offs.items():
        if switch.state(changed) is State.OFF:
            break
        if changed[name] not in (None, False, off):
            changed[name] = off
            changes.append((name, off))
    return changes


# --- starts ---


def _starts(application: Application, subject: Subject) -> list[Start]:
    """The starts among the invocations; without a script or a command, one for each default configuration."""
    config = subject.config
    if config is not None and (config.suffix != ".yaml" or not config.is_file()):
        reason = "Hydra reads files that end in .yaml" if config.is_file() else "there is no such file"
        hint = "give the YAML file that the run is configured by"
        raise Problem(Kind.USAGE, f"cannot read the configuration: {reason}", str(config), hint)
    starts = _started(application, subject)
    invocations = [invocation for invocation in subject.invocations if invocation.where != "environment"]
    variables = subject.invocations[-1].variables
    if not starts and invocations:
        reason = f"nothing that can be read here starts {application.packages[0]}"
        starts = [Start(invocations[-1].where, False, (), variables, reason=reason)]
    elif not starts and config is not None:
        starts = [Start(str(config), True, (), variables)]
    if config is not None:
        folder = config.resolve().parent
        return [start._replace(folder=folder, name=config.name, fixed=True) for start in starts]
    if starts or subject.root is None:
        return starts
    home = subject.root / application.folder
    names = [name for name in application.defaults if (home / f"{name}.yaml").is_file()]
    return [Start(str(home), True, (), variables, home, name) for name in names]


def _started(application: Application, subject: Subject) -> list[Start]:
    found: dict[object, Start] = {}
    for invocation in subject.invocations:
        start = None if invocation.perhaps else _start(invocation, application, subject.root)
        # A launcher and the program behind it are both invocations; the program knows its variables.
        if start is not None and (start.variables or (start.where, start.words) not in found):
            words = [
                word for one in subject.invocations if one.perhaps and one.where == start.where for word in one.argv
            ]
            found[start.where, start.words] = start._replace(perhaps=tuple(word for word in words[1:] if word))
    return list(found.values())


def _start(invocation: Invocation, application: Application, root: Path | None) -> Start | None:
    """The start that an invocation is: ``-m MODULE`` or a Python file with ``hydra.main``, and words for it."""
    if invocation.reason:
        return Start(invocation.where, False, (), invocation.variables, reason=invocation.reason)
    variables = invocation.variables
    for program in programs(invocation):
        file = program.file([root or Path(), invocation.folder or Path()])
        text = _text(file)
        main = decorator(text or "", "hydra.main") if re.search(rf"\b{application.packages[0]}\b", text or "") else None
        if file is not None and main is not None:
            given = [main.get(name, main.get(at)) for at, name in enumerate(("config_path", "config_name"))]
            folder, name = (None if value is None else str(value) for value in given)
            base = file.parent
            where = base / folder if folder else None
            return Start(invocation.where, invocation.sure, program.words, variables, where, name, base)
        # A program that has nothing to do with Hydra, neither itself nor with a `main` that it imports, is none.
        plain = text is not None and not re.search(r"\bhydra\b|\bimport\b.*\bmain\b", text)
        if program.module and program.name.partition(".")[0] in application.packages and not plain:
            return Start(invocation.where, invocation.sure, program.words, variables)
    return None


def _text(file: Path | None) -> str | None:
    """The text of a program, None where it cannot be read."""
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace") if file else None
    return None
