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

from patcher.guards.launch import ENVIRONMENT, Hidden, Launch, Start, Text, find, is_hidden, normal
from patcher.guards.result import NOT_PLAIN, GuardResult, hidden, unclear
from patcher.messages.errors import Kind, Problem
from patcher.switches import Application, ConfigSwitch, Release, State

_UNKNOWN = "rlpatch_unknown_"
"""Stands in a configuration for what is not known; an identifier, so that it is valid wherever a text is."""
_MAIN = re.compile(r"hydra\.main\(([^)]*)\)")
_DEFAULT = re.compile(r"\s*-\s+(?:(?:override|optional)\s+)*([\w./-]+)(?:@[\w.]+)?\s*:?\s*([\w./-]+)?")
_ANY = "a word of it is only known when it runs, and may be any override"


class _NotKnown(Exception):  # noqa: N818 - it is an answer
    """Why nothing is known of what a program is configured by."""


class _App(NamedTuple):
    """A start of the application: its overrides with their places, and the folder and name of its configuration.

    Without a folder it is one that the project packages; ``lines`` are those of a file of the user's. ``program`` is
    the file that is started, if it is here.
    """

    start: Start
    words: tuple[tuple[str, str], ...]
    folder: Path | None = None
    name: str = ""
    lines: tuple[Text, ...] = ()
    program: Path | None = None


def configured(
    application: Application, release: Release, root: Path | None, config: Path | None, launch: Launch
) -> list[GuardResult]:
    """One result per profiler of the application. Raises Problem(USAGE) if ``config`` is no configuration."""
    _check(config)
    launch = launch._replace(hidden=[*launch.hidden])  # an override hides nothing of the environment
    apps, active = (
        [*_apps(application, root, config, launch)],
        [one for one in application.switches if release.has(one)],
    )
    mentions, found = _mentions(application, root, apps, launch), list[GuardResult]()
    plain = all(one.plain and "oc.env" not in one.text for one in mentions)
    composed = [(app, _composed(application, root, app)) for app in apps] if mentions and plain else []
    for profiler in dict.fromkeys(switch.profiler for switch in application.switches):
        own = [one for one in active if one.profiler == profiler]
        why = own[0].why if own else "no switch of it exists in this release"
        found += _of(own, application, root, mentions, composed, launch) if own else []
        found.append(
            GuardResult(profiler, State.OFF, apps[0].start.where if apps else ENVIRONMENT, "", "nothing to do", why)
        )
    return found


def _check(config: Path | None) -> None:
    if config is not None and (config.suffix != ".yaml" or not config.is_file()):
        reason = "Hydra reads files that end in .yaml" if config.is_file() else "there is no such file"
        hint = "give the YAML file that the run is configured by"
        raise Problem(Kind.USAGE, f"cannot read the configuration: {reason}", str(config), hint)


def _mentions(application: Application, root: Path | None, apps: Sequence[_App], launch: Launch) -> list[Text]:
    """The texts that name a profiler of the application; its own programs, which read these names, are none."""
    own = [app.program for app in apps if app.program and root]
    reads = {str(file) for file in own if root and file.resolve().is_relative_to(root.resolve())}
    names = re.compile(application.names)
    found = [one for one in launch.texts if names.search(one.text) or names.search(one.expanded)]
    return [one for one in found if one.where.rpartition(":")[0] not in reads]


def _of(
    switches: Sequence[ConfigSwitch],
    application: Application,
    root: Path | None,
    mentions: Sequence[Text],
    composed: Sequence[tuple[_App, Any]],
    launch: Launch,
) -> list[GuardResult]:
    first, project = switches[0], application.packages[0]
    if root is None and not launch.texts:
        where = f"{project} is not found here"
        return [GuardResult(first.profiler, State.UNKNOWN, where, "", "", first.why, where)]
    off = f"{first.keys[0].name}={_typed(first.keys[0].values[0])}"
    for text in mentions:
        if not text.plain or "oc.env" in text.text:
            return [unclear(first.profiler, text, first.why, f"{off} at {text.where}")]
    found = [_judged(switches, app, config) for app, config in composed]
    if launch.hidden and not any(one.state is State.ON for one in found):
        return [hidden(first.profiler, launch, first.why, f"{off} there, if it is there")]
    if mentions and not composed:
        reason = f"nothing that can be read here starts {project}"
        return [unclear(first.profiler, mentions[0], first.why, "")._replace(reason=reason)]
    return [one for one in found if one.state is not State.OFF] or found[:1]


# --- what is started ---


def _apps(application: Application, root: Path | None, config: Path | None, launch: Launch) -> Iterator[_App]:
    home = root / application.folder if root else None
    lines = _read(config, application, home, launch) if config is not None else ()
    for start in launch.starts:
        at, file = _program(application, root, start)
        if not at:
            continue
        for word in start.words[at:]:
            if is_hidden(word):
                launch.hidden.append(Hidden(start.where, "", _ANY))
            elif _is_missing(word, home):
                reason = "a group of the configuration that it takes is not here"
                launch.hidden.append(Hidden(start.where, word, reason))
        if {"--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i"} & {*start.words[at:]}:
            start = start._replace(sure=False)  # it prints, and runs nothing
        words = [(word, place) for word, place in zip(start.words, start.places, strict=True)][at:]
        app = _App(start, (*(one for one in words if one[0][:1] != "-"),), program=file)
        try:
            if config is None:
                yield _configuration(app, application, home, launch)
            else:
                yield app._replace(folder=config.parent, name=config.stem, lines=lines)
        except _NotKnown as answer:
            launch.hidden.append(Hidden(start.where, "", str(answer)))
            yield app
    if config is not None and not launch.starts:
        yield _App(Start(str(config), (), (), {}, None, True, ()), (), config.resolve().parent, config.stem, lines)


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


def _configuration(app: _App, application: Application, home: Path | None, launch: Launch) -> _App:
    """The configuration of a start, read for names if it is not a packaged one. Raises _NotKnown."""
    main = _MAIN.search(_text(app.program)) if app.program else None
    options = dict(re.findall(r"config_(path|name)\s*=\s*[\"']([^\"']*)", main[1])) if main else {}
    typed = dict(_option(app.start.words))
    options.update(typed)
    path, name = options.get("path"), options.get("name", "").removesuffix(".yaml")
    app = app._replace(words=(*(one for one in app.words if one[0] not in typed.values()),), name=name)
    if any(re.search("[\0\1]", word) for word in options.values()):
        raise _NotKnown("which configuration it takes is only known when it runs; --config FILE names it")
    folders = [app.program.parent / (path or "")] if app.program else []
    folders += [folder / (path or "") for folder in app.start.folders] if path else []
    for folder in folders:
        if name and (folder / f"{name}.yaml").is_file():
            own = [one for one in folder.absolute().parents if one.name == application.packages[0]]
            packaged = home is not None and name in application.defaults and folder.resolve() == home.resolve()
            packaged = packaged or any((one / "__init__.py").is_file() for one in own)
            lines = () if packaged else _read(folder / f"{name}.yaml", application, home, launch)
            return app._replace(folder=folder, lines=lines)
    known = name in application.defaults or (home is not None and (home / f"{name}.yaml").is_file())
    if path in (None, "config") and (not name or known):
        return app._replace(folder=home)
    raise _NotKnown(f"the configuration {name or path} is not here; --config FILE names it")


def _is_missing(word: str, home: Path | None) -> bool:
    """Whether an override takes an option of a group that is not here, or changes where groups are looked for."""
    key, _, value = word.lstrip("+").partition("=")
    if key.startswith("hydra.searchpath") or word.startswith(("--config-dir", "-cd")):
        return True
    group = key.partition("@")[0]
    named = "@" in key or "/" in key or (home is not None and (home / group).is_dir())
    here = home is not None and (home / group / f"{value}.yaml").is_file()
    return named and value not in ("null", "") and not key.startswith("hydra/") and not here


def _option(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Which of Hydra's options for a configuration are typed, and their values."""
    for word, following in itertools.pairwise((*words, "")):
        found = re.fullmatch(r"(?:--config-(path|name|dir)|-c([pnd]))(?:=(.*))?", word, re.DOTALL)
        if found:
            value = following if found[3] is None else found[3].strip("'\"")
            yield found[1] or {"p": "path", "n": "name", "d": "dir"}[found[2]], value


def _read(file: Path, application: Application, home: Path | None, launch: Launch) -> tuple[Text, ...]:
    """Read a configuration for names, and whether all that it is made of is here."""
    listing, group, lines = False, "", list[Text]()
    for number, line in enumerate(_text(file).splitlines(), 1):
        lines.append(Text(f"{file}:{number}", normal(re.sub(r"(^|\s)#.*", "", line)), plain=True))
        listing = line.startswith("defaults:") or (listing and line[:1] in " -#")
        default = _DEFAULT.match(line) if listing else None
        if default and not default[2] and line.partition("#")[0].rstrip().endswith(":"):  # its list follows
            group = f"{default[1]}/"
        elif default and default[1] not in ("_self_", *application.defaults) and default[2] != "null":
            group = group if line[:1] == " " and not default[2] else ""
            name = group + (f"{default[1]}/{default[2]}" if default[2] else default[1])
            if not any(folder and (folder / f"{name}.yaml").is_file() for folder in (file.parent, home)):
                launch.hidden.append(Hidden(f"{file}:{number}", line.strip(), f"{name}.yaml is not here"))
    launch.texts.extend(lines)
    return (*lines,)


# --- what Hydra makes of it ---


def _judged(switches: Sequence[ConfigSwitch], app: _App, config: Any) -> GuardResult:
    """The severest answer of the switches of one profiler to what a start composes."""
    first, where = switches[0], app.words[0][1] if app.words else app.start.where
    if isinstance(config, str):
        off = f"{first.keys[0].name}={_typed(first.keys[0].values[0])} at {where}"
        return GuardResult(first.profiler, State.UNKNOWN, where, "", off, first.why, config)
    values = _values(switches, config)
    switch = max(switches, key=lambda one: _state(one, values).severity)
    state, reason = _state(switch, values), ""
    named = [key.name for key in switch.keys if values[key.name] not in (None, False, [], key.values[0])]
    shown = " ".join(f"{name}={_typed(values[name])}" for name in named)[:300]
    places = {word.lstrip("+~").partition("=")[0]: place for word, place in app.words}
    change = _change(switches, config, places) if state is not State.OFF else ""
    keys = [key for key in (change.partition("=")[0], *named) if key]
    where, override = _place(keys, places, app.lines, where)
    off = f"{change}{override} at {where.replace('command after', 'the command after')}" if change else ""
    off, why = "nothing to do" if state is State.OFF else off, (state is State.ARMED and switch.armed) or switch.why
    if state is State.UNKNOWN:
        reason = "a value is only known when it runs"
    elif state is not State.OFF and not (app.start.sure and (app.start.program is not None or not app.start.words)):
        state, reason = State.UNKNOWN, NOT_PLAIN
    return GuardResult(switch.profiler, state, where, shown, off, why, reason)


def _place(keys: Sequence[str], places: Mapping[str, str], lines: Sequence[Text], where: str) -> tuple[str, str]:
    """Where the first of some keys is typed, or written in a file, and what to say of an override there."""
    leaf = f"{(keys or [''])[0].rpartition('.')[2]}:"
    written = [line.where for line in lines if leaf in re.split(r"[\s{,]", line.text)]
    typed = [places[key] for key in keys if key in places]
    return (typed[:1] or written[-1:] or [where])[0], " as an override, or" if written and not typed else ""


def _composed(application: Application, root: Path | None, app: _App) -> Any:
    """The configuration of a start, or the reason why it is not known."""
    try:
        import yaml

        yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # OmegaConf builds on it: half the time
        from hydra import compose, initialize_config_dir
    except ImportError:
        return f"no hydra-core: pip install 'rlpatch[{application.extra}]'"
    home = (root / application.folder).absolute() if root else None
    folder = (app.folder or home or Path()).absolute()
    name = app.name or next((one for one in application.defaults if (folder / f"{one}.yaml").is_file()), "")
    if not (folder / f"{name}.yaml").is_file():
        return f"{application.packages[0]} is not found here: --path DIR or --python EXE leads to it"
    numbers = itertools.count()
    words = [re.sub("[\0\1]", lambda _: f"{_UNKNOWN}{next(numbers)}", word) for word, _ in app.words]
    if any(_UNKNOWN in word.partition("=")[0] for word in words):
        return _ANY
    searched = [f"hydra.searchpath=[file://{home}]"] if home and home != folder else []
    enabled = gc.isenabled()
    gc.disable()  # a configuration is thousands of small objects: a third of the time
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(folder), version_base=None):
            warnings.simplefilter("ignore")
            return compose(name, [*searched, *map(_forced, words)])
    except Exception as error:  # whatever YAML and resolvers of others raise is an answer
        first = re.sub(rf"{_UNKNOWN}\d+", "…", str(error).strip().partition("\n")[0])
        return f"Hydra cannot compose it: {first}"[:300]
    finally:
        (gc.enable if enabled else gc.disable)()


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
