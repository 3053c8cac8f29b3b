"""Is a profiler switched on by a Hydra configuration? The declared switches held against what each start composes.

The starts of an application are found among the launches; without any, its installed defaults count. Nothing is
imported from the target.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from patcher.errors import Kind, Problem
from patcher.guards.hydra import Configuration, Origin, Start, configuration, typed, unknown
from patcher.guards.launch import LAUNCHERS, PYTHON
from patcher.guards.look import Finding, State, Subject, exists
from patcher.guards.scope import Launch

if TYPE_CHECKING:
    from patches.switches import Application, ConfigSwitch

_MOST_CASES = 5000


def findings(application: Application, subject: Subject) -> list[Finding]:
    """One finding per profiler and place; a profiler that is off everywhere gives one OFF.

    Where no start is given and the installed defaults are not there to be composed, each is UNKNOWN. Raises
    Problem(USAGE) if the configuration file that the user names is none.
    """
    active = [switch for switch in application.switches if exists(switch.releases, subject.version)]
    keys = tuple(dict.fromkeys(key.name for switch in active for key in switch.keys))
    starts = _starts(application, subject)
    if active and not starts:
        return _unknown(application, subject, active)
    configurations = [
        configuration(start, subject.root, application.folder, application.extra, keys)
        for start in (starts if active else ())
    ]
    found: list[Finding] = []
    for profiler in dict.fromkeys(switch.profiler for switch in application.switches) if starts else ():
        switches = [switch for switch in active if switch.profiler == profiler]
        by_place: dict[str, Finding] = {}
        for finding in (_finding(switch, one) for switch in switches for one in configurations):
            known = by_place.get(finding.where)
            if known is None or known.state.severity < finding.state.severity:
                by_place[finding.where] = finding
        severe = [finding for finding in by_place.values() if finding.state is not State.OFF]
        why = switches[0].why if switches else "no switch of it exists in this release"
        places = ", ".join(dict.fromkeys(start.where for start in starts))
        found += severe or [Finding(profiler, State.OFF, places, "", "nothing to do", why)]
    return found


def _unknown(application: Application, subject: Subject, active: Iterable[ConfigSwitch]) -> list[Finding]:
    """What is said of profilers whose configuration is not here."""
    where = f"{application.packages[0]} is not found here"
    if subject.root is not None:
        where = f"{application.folder} has no configuration that rlpatch knows"
    whys = {switch.profiler: switch.why for switch in active if not switch.if_known}
    return [Finding(profiler, State.UNKNOWN, where, "", "", why, where) for profiler, why in whys.items()]


# --- judging ---


def _finding(switch: ConfigSwitch, one: Configuration) -> Finding:
    state, values = (State.UNKNOWN, _on(switch)) if one.reason else _state(switch, one.values)
    if state is State.OFF or (one.reason and switch.if_known):
        return Finding(switch.profiler, State.OFF, one.where, "", "nothing to do", switch.why)
    why = (state is State.ARMED and switch.armed) or switch.why
    shown = [key.name for key in switch.keys if one.values.get(key.name) not in (None, False, key.values[0])]
    open_ones = [name for name in shown if unknown(one.values[name])] if state is State.UNKNOWN else []
    reason = one.reason
    if state is State.UNKNOWN and not reason:
        reason = "a value is only known when it runs" if open_ones else "nobody documents this value"
    elif state is State.ON and not one.sure:
        state, reason = State.UNKNOWN, "it stands in a branch, a loop or a function that may not run"
    changes = dict(_off(switch, values))
    origins = {name: one.origin(name) or Origin(name, one.where) for name in [*shown, *changes]}
    decisive = origins[[*open_ones, *changes][0]]
    overrides = " ".join(dict.fromkeys(f"{origins[name].key}={typed(off)}" for name, off in changes.items()))
    at = "as the last override at" if one.reason else "at" if decisive.typed else "as an override, or at"
    return Finding(
        switch.profiler,
        state,
        decisive.where,
        " ".join(dict.fromkeys(f"{origins[name].key}={typed(one.values[name])}" for name in shown))[:300],
        f"{overrides} {at} {decisive.where.replace('command after', 'the command after')}",
        f"{why} ({reason})" if reason else why,
        reason,
    )


def _on(switch: ConfigSwitch) -> dict[str, object]:
    return {key.name: key.values[-1] for key in switch.keys}


def _state(switch: ConfigSwitch, values: Mapping[str, object]) -> tuple[State, Mapping[str, object]]:
    """The state that the values mean, and the severest values that they may be."""
    mine = {key.name: values.get(key.name) for key in switch.keys}
    # Keys with the same unknown text follow from each other, so they change together.
    texts = list(dict.fromkeys(str(value) for value in mine.values() if unknown(value)))
    choices = [next(key.values for key in switch.keys if str(mine[key.name]) == text) for text in texts]
    cases = list(itertools.islice(itertools.product(*choices), _MOST_CASES + 1))
    if len(cases) > _MOST_CASES:
        return State.UNKNOWN, _on(switch)
    known = [dict(zip(texts, case, strict=True)) for case in cases]
    ways = [{name: case.get(str(value), value) for name, value in mine.items()} for case in known]
    states = [switch.state(way) for way in ways]
    worst = max(states, key=lambda state: state.severity)
    return (worst if len(set(states)) == 1 else State.UNKNOWN), ways[states.index(worst)]


def _off(switch: ConfigSwitch, values: Mapping[str, object]) -> Iterable[tuple[str, object]]:
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
    """The starts among the launches; without a script or a command, one for each default configuration."""
    config = subject.config
    if config is not None and (config.suffix != ".yaml" or not config.is_file()):
        reason = "Hydra reads files that end in .yaml" if config.is_file() else "there is no such file"
        hint = "give the YAML file that the run is configured by"
        raise Problem(Kind.USAGE, f"cannot read the configuration: {reason}", str(config), hint)
    starts = _started(application, subject)
    launches = [launch for launch in subject.launches if launch.where != "environment"]
    settings = subject.launches[-1].settings
    if not starts and launches:
        reason = f"nothing that can be read here starts {application.packages[0]}"
        starts = [Start(launches[-1].where, False, (), settings, reason=reason)]
    elif not starts and config is not None:
        starts = [Start(str(config), True, (), settings)]
    if config is not None:
        folder = config.resolve().parent
        return [start._replace(folder=folder, name=config.name, fixed=True) for start in starts]
    if starts or subject.root is None:
        return starts
    home = subject.root / application.folder
    names = [name for name in application.defaults if (home / f"{name}.yaml").is_file()]
    return [Start(str(home), True, (), settings, home, name) for name in names]


def _started(application: Application, subject: Subject) -> list[Start]:
    found: dict[object, Start] = {}
    for launch in subject.launches:
        start = None if launch.perhaps else _start(launch, application, subject.root)
        # A launcher and the program behind it are both launches; the program knows its variables.
        if start is not None and (start.settings or (start.where, start.words) not in found):
            words = [word for one in subject.launches if one.perhaps and one.where == start.where for word in one.argv]
            found[start.where, start.words] = start._replace(perhaps=tuple(word for word in words[1:] if word))
    return list(found.values())


def _start(launch: Launch, application: Application, root: Path | None) -> Start | None:
    """The start that a launch is: ``-m MODULE`` or a Python file with ``hydra.main``, and words for it."""
    argv = launch.argv
    head = PurePath(argv[0] or "").name if argv else ""
    for at, word in enumerate(argv):
        module = bool(at) and argv[at - 1] == "-m"
        script = not at or PYTHON.fullmatch(head) or head in LAUNCHERS
        if word is None or not (module or (script and word.endswith(".py"))):
            continue
        program = _program(word, root, module=module)
        main = _main(program, application.packages[0]) if program else None
        if program is not None and main is not None:
            folder = program.parent / main[0] if main[0] else None
            return Start(launch.where, launch.sure, argv[at + 1 :], launch.settings, folder, main[1], program.parent)
        if module and word.partition(".")[0] in application.packages:
            return Start(launch.where, launch.sure, argv[at + 1 :], launch.settings)
    return None


def _program(word: str, root: Path | None, *, module: bool) -> Path | None:
    """The file behind ``-m word`` or ``word``: in the target, else seen from here."""
    parts = word.replace(".", "/") if module else ""
    names = [f"{parts}.py", f"{parts}/__main__.py"] if module else [word]
    places = [folder / name for folder in (root or Path(), Path()) for name in names]
    return next((place.absolute() for place in places if _is_file(place)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _main(program: Path, package: str) -> tuple[str | None, str | None] | None:
    """``config_path`` and ``config_name`` of the function that ``hydra.main`` decorates, if ``package`` is used."""
    try:
        text = program.read_text(encoding="utf-8", errors="replace")
        tree = ast.parse(text) if re.search(rf"\b{package}\b", text) else ast.Module([], [])
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    names = ("config_path", "config_name")
    for function in tree.body:
        for call in function.decorator_list if isinstance(function, ast.FunctionDef) else ():
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "hydra.main":
                given = dict(zip(names, call.args, strict=False))
                given.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg})
                nodes = [given.get(name) for name in names]
                folder, name = (str(node.value) if isinstance(node, ast.Constant) else None for node in nodes)
                return folder, name
    return None
