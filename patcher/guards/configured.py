"""Is a profiler switched on by a Hydra configuration? Composed by Hydra, where a launch names a profiler at all.

The configurations that a project packages leave every profiler off, which a test proves for each release.
"""

from __future__ import annotations

import gc
import itertools
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from patcher.guards.launch import ENVIRONMENT, Hidden, Launch, LaunchText, Start, find, is_hidden, normal
from patcher.guards.result import NOT_PLAIN, GuardResult, unknown
from patcher.messages.errors import Kind, Problem
from patcher.switches import Application, ConfigSwitch, Release, State

_UNKNOWN = "rlpatch_unknown_"
"""Stands in a configuration for what is not known; an identifier, so that it is valid wherever a text is."""
_MAIN = re.compile(r"hydra\.main\(([^)]*)\)")
_OPTION = re.compile(r"(?:--config-(?P<long>path|name|dir)|-c(?P<short>[pnd]))(?:=(?P<value>.*))?", re.DOTALL)
_PRINTS = {"--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i"}  # then it runs nothing
_NO_GROUP = "a group of the configuration that it takes is not here"
_ANY = "a word of it is only known when it runs, and may be any override"


class _App(NamedTuple):
    """A start of the application: its overrides, and its configuration if that is here."""

    start: Start
    overrides: Sequence[str]
    file: Path | None


def configured(
    application: Application, release: Release, root: Path | None, config: Path | None, launch: Launch
) -> list[GuardResult]:
    """One result per profiler of the application. Raises Problem(USAGE) if ``config`` is no configuration."""
    if config is not None and (config.suffix != ".yaml" or not config.is_file()):
        reason = "Hydra reads files that end in .yaml" if config.is_file() else "there is no such file"
        hint = "give the YAML file that the run is configured by"
        raise Problem(Kind.USAGE, f"cannot read the configuration: {reason}", str(config), hint)
    launch = launch._replace(hidden=[*launch.hidden])  # an override hides nothing of the environment
    apps = [*_apps(application, root, config, launch)]
    if config is not None and not any(start.words[0] for start in launch.starts):
        apps = [_App(Start(str(config), (), {}, "python", sure=True), (), config)]
    own = [line for file in {app.file: 0 for app in apps} for line in _lines(file, application, root)]
    launch.texts.extend(own)
    mentions = [one for one in launch.texts if re.search(application.names, one.text)]
    unclear = [one for one in mentions if not one.plain or "oc.env" in one.text]
    hidden = [*_hidden(application.packages[0], root, mentions, unclear, apps, launch)]
    # A configuration of the user's may take others than those that are packaged.
    takes = re.compile(rf"\s*-\s+(?!_self_|\S+://|({'|'.join(application.defaults)})\s*$)")
    composes = not unclear and (mentions or any(takes.match(line.text) for line in own))
    composed = [(app, _composed(application, root, app)) for app in apps if composes]
    found, where = list[GuardResult](), apps[0].start.where if apps else ENVIRONMENT
    for profiler in dict.fromkeys(switch.profiler for switch in application.switches):
        switches = [one for one in application.switches if one.profiler == profiler and release.has(one)]
        found += _of(switches, composed, hidden, launch) if switches else []
        why = switches[0].why if switches else "no switch of it exists in this release"
        found.append(GuardResult(profiler, State.OFF, where, "", "nothing to do", why))
    return found


def _hidden(
    project: str,
    root: Path | None,
    mentions: Sequence[LaunchText],
    unclear: Sequence[LaunchText],
    apps: Sequence[_App],
    launch: Launch,
) -> Iterator[Hidden]:
    """Why it is not known how a profiler is configured, the first reason first."""
    if root is None and not launch.texts:
        yield Hidden(f"{project} is not found here", "", f"{project} is not found here")
    yield from (Hidden(one.where, one.text, NOT_PLAIN) for one in unclear)
    yield from launch.hidden
    if mentions and not apps:
        yield Hidden(mentions[0].where, mentions[0].text, f"nothing that can be read here starts {project}")


def _of(
    switches: Sequence[ConfigSwitch], composed: Sequence[tuple[_App, Any]], hidden: Sequence[Hidden], launch: Launch
) -> list[GuardResult]:
    """What is known of one profiler; what is hidden may be anything but where it is on for sure."""
    first, found = switches[0], list[GuardResult]()
    off = f"{first.keys[0].name}={_typed(first.keys[0].values[0])}"
    for app, config in composed:
        if isinstance(config, str):
            found.append(unknown(first.profiler, Hidden(app.start.where, "", config), first.why, off))
        else:
            found.append(_judged(switches, app, config, launch))
    if hidden and not any(one.state is State.ON for one in found):
        return [unknown(first.profiler, hidden[0], first.why, off)]
    return found


# --- what is started ---


def _apps(application: Application, root: Path | None, config: Path | None, launch: Launch) -> Iterator[_App]:
    for start in launch.starts:
        at, program = _program(application, root, start)
        if not at:
            continue
        words, typed = start.words[at:], _options(start.words[at:])
        home = root / application.folder if root else None
        launch.hidden.extend(Hidden(start.where, word, _ANY) for word in words if is_hidden(word))
        launch.hidden.extend(Hidden(start.where, word, _NO_GROUP) for word in words if _is_missing(word, home))
        file = config or _configuration(application, root, program, start, typed)
        if isinstance(file, str):
            launch.hidden.append(Hidden(start.where, "", file))
            continue
        start = start._replace(sure=start.sure and not _PRINTS & {*start.words})
        yield _App(start, [one for one in words if one[:1] != "-" and one not in typed.values()], file)


def _options(words: Sequence[str]) -> dict[str, str]:
    """Hydra's options for a configuration that are typed: its ``path``, ``name`` and ``dir``."""
    found = {}
    for word, following in itertools.pairwise((*words, "")):
        if option := _OPTION.fullmatch(word):
            kind = option["long"] or {"p": "path", "n": "name", "d": "dir"}[option["short"]]
            found[kind] = following if option["value"] is None else option["value"].strip("'\"")
    return found


def _program(application: Application, root: Path | None, start: Start) -> tuple[int, Path | None]:
    """Where the words begin behind a program of the application, 0 if there is none, and its file if it is here."""
    folders = (*start.folders, *([root] if root else []))
    for at, (before, word) in enumerate(itertools.pairwise(("", *start.words)), 1):
        module = before in ("-m", "--module") and word.partition(".")[0] in application.packages
        path = f"{word.replace('.', '/')}.py" if module else word
        file = find(path, folders) if path.endswith(".py") else None
        if file and _MAIN.search(_text(file)):
            return at, file
        if module and not re.search(r"\.(model_merger|utils|tools?)\b", word):
            return at, None
    return 0, None


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def _configuration(
    application: Application, root: Path | None, program: Path | None, start: Start, typed: Mapping[str, str]
) -> Path | str | None:
    """The configuration of a start, None if it is a packaged one that is not here, or why it is not known."""
    if "dir" in typed or re.search("[\0\1]", "".join(typed.values())):
        return "which configuration it takes is only known when it runs; --config FILE names it"
    main = _MAIN.search(_text(program)) if program else None  # the program names one in its code
    decorated = dict(re.findall(r"config_(path|name)\s*=\s*[\"']([^\"']*)", main[1] if main else ""))
    options = {**decorated, **typed}
    path, name = options.get("path", ""), options.get("name", "").removesuffix(".yaml")
    is_packaged, names = path in ("", "config"), [name] if name else application.defaults
    folders = [program.parent / path] if program else []
    folders += [root / application.folder] if root and is_packaged else []
    folders += [folder / path for folder in start.folders]
    for one in names:
        if file := find(f"{one}.yaml", folders):
            return file
    if is_packaged and (not name or name in application.defaults):
        return None
    return f"the configuration {name or path} is not here; --config FILE names it"


def _lines(file: Path | None, application: Application, root: Path | None) -> list[LaunchText]:
    """The lines of a configuration of the user's; none of one that the project packages."""
    if file is None or (root and file.resolve().is_relative_to((root / application.packages[0]).resolve())):
        return []
    lines = [re.sub(r"(^|\s)#.*", "", line) for line in _text(file).splitlines()]
    return [LaunchText(f"{file}:{number}", normal(line), plain=True) for number, line in enumerate(lines, 1)]


def _is_missing(word: str, home: Path | None) -> bool:
    """Whether an override takes an option of a group that is not here, or changes where groups are looked for."""
    key, _, value = word.lstrip("+").partition("=")
    group = key.partition("@")[0]
    named = re.search("[@/]", key) or (home is not None and (home / group).is_dir())
    here = home is not None and (home / group / f"{value}.yaml").is_file()
    is_group = bool(named) and value not in ("null", "") and not key.startswith("hydra/")
    return key.startswith("hydra.searchpath") or (is_group and not here)


# --- what Hydra makes of it ---


def _judged(switches: Sequence[ConfigSwitch], app: _App, config: Any, launch: Launch) -> GuardResult:
    """The severest answer of the switches of one profiler to what a start composes."""
    values = _values(switches, config)
    switch = max(switches, key=lambda one: _state(one, values).severity)
    state, where, reason = _state(switch, values), app.start.where, ""
    named = [key.name for key in switch.keys if values[key.name] not in (None, False, [], key.values[0])]
    seen = " ".join(f"{name}={_typed(values[name])}" for name in named)[:300]
    if state is State.OFF:
        return GuardResult(switch.profiler, state, where, seen, "nothing to do", switch.why)
    typed = [word.lstrip("+~").partition("=")[0] for word in app.overrides]
    change = _change(switches, config, typed)
    keys = [key for key in (change.partition("=")[0], *named) if key]
    override = next((key for key in keys if key in typed), "")
    where = launch.place(f"{override}=" if override else f"{keys[0].rpartition('.')[2]}:" if keys else "", where)
    written = where.partition(":")[0] == str(app.file) and not override
    off = f"{change}{' as an override, or' * written} at {where.replace('command after', 'the command after')}"
    if state is State.UNKNOWN:
        reason = "a value is only known when it runs"
    elif not (app.start.sure and app.start.program):
        state, reason = State.UNKNOWN, NOT_PLAIN
    why = (state is State.ARMED and switch.armed) or switch.why
    return GuardResult(switch.profiler, state, where, seen, off if change else "", why, reason)


def _composed(application: Application, root: Path | None, app: _App) -> Any:
    """The configuration of a start, or the reason why it is not known."""
    try:
        import yaml

        yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # OmegaConf builds on it: half the time
        from hydra import compose, initialize_config_dir
    except ImportError:
        return f"no hydra-core: pip install 'rlpatch[{application.extra}]'"
    home = (root / application.folder).absolute() if root else None
    if app.file is None:
        return f"{application.packages[0]} is not found here: --path DIR or --python EXE leads to it"
    folder = app.file.absolute().parent
    numbers = itertools.count()
    words = [re.sub("[\0\1]", lambda _: f"{_UNKNOWN}{next(numbers)}", word) for word in app.overrides]
    if any(_UNKNOWN in word.partition("=")[0] for word in words):
        return _ANY
    searched = [f"hydra.searchpath=[file://{home}]"] if home and home != folder else []
    gc.disable()  # a configuration is thousands of small objects: a third of the time
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(folder), version_base=None):
            warnings.simplefilter("ignore")
            return compose(app.file.stem, [*searched, *map(_forced, words)])
    except Exception as error:  # whatever YAML and resolvers of others raise is an answer
        first = re.sub(rf"{_UNKNOWN}\d+", "…", str(error).strip().partition("\n")[0])
        return f"Hydra cannot compose it: {first}"[:300]
    finally:
        gc.enable()


def _forced(word: str) -> str:
    """An override that counts although this release has no such key, which would stop the run there."""
    return f"++{word.lstrip('+')}" if re.match(r"[^~=/@]*\.[^=/@]*=", word) else word


def _values(switches: Sequence[ConfigSwitch], config: Any) -> dict[str, object]:
    """What the keys of some switches are in a configuration, None for one that is not there."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    values: dict[str, object] = {}
    for key in (key.name for switch in switches for key in switch.keys if key.name not in values):
        try:
            value = OmegaConf.select(config, key)
            values[key] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        except OmegaConfBaseException:
            values[key] = _UNKNOWN
    return values


def _state(switch: ConfigSwitch, values: Mapping[str, object]) -> State:
    """The state that the values mean; UNKNOWN where it hangs on one that is not known."""
    mine = {key.name: values[key.name] for key in switch.keys}
    # Keys with the same unknown text follow from each other, so they change together.
    texts = {str(value): key.values for key in switch.keys if _UNKNOWN in str(value := mine[key.name])}
    ways = [dict(zip(texts, way, strict=True)) for way in itertools.product(*texts.values())]
    states = {switch.state({name: way.get(str(value), value) for name, value in mine.items()}) for way in ways}
    return states.pop() if len(states) == 1 else State.UNKNOWN


def _change(switches: Sequence[ConfigSwitch], config: Any, typed: Iterable[str]) -> str:
    """The override that switches all of them off, tried in the configuration itself; empty if there is none."""
    from omegaconf import OmegaConf

    offs = {key.name: key.values[0] for switch in switches for key in switch.keys}
    leaves = {name.rpartition(".")[2]: value for name, value in offs.items()}
    # A key may follow from another one that was typed.
    offs.update({name: leaves[leaf] for name in typed if (leaf := name.rpartition(".")[2]) in leaves})
    for name, value in offs.items():
        parent, _, leaf = name.rpartition(".")
        holder: Any = OmegaConf.select(config, parent)
        siblings: Any = OmegaConf.to_container(holder) if OmegaConf.is_dict(holder) else {}
        OmegaConf.update(config, name, value, force_add=True)
        off = all(_state(switch, _values(switches, config)) is State.OFF for switch in switches)
        OmegaConf.update(config, name, siblings.get(leaf), force_add=True)
        if off:
            return f"{name}={_typed(value)}"
    return ""


def _typed(value: object) -> str:
    """A value as one types it in an override, with … for what is not known."""
    text = "null" if value is None else str(value).replace(", ", ",") if isinstance(value, list) else str(value)
    return re.sub(rf"{_UNKNOWN}\d*", "…", text)
