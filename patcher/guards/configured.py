"""Is a profiler switched on by a Hydra configuration? Composed by Hydra, where a launch names a profiler at all.

The configurations that a project packages leave every profiler off, which a test proves for each release.
"""

from __future__ import annotations

import copy
import gc
import itertools
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from patcher.errors import Kind, Problem
from patcher.guards.launch import ENVIRONMENT, Hidden, Launch, Start, Text, find, is_hidden, normal
from patcher.guards.result import NOT_PLAIN, GuardResult, hidden, unclear
from patcher.switches import Application, ConfigSwitch, Release, State

_UNKNOWN = "rlpatch_unknown_"
"""Stands in a configuration for what is not known; an identifier, so that it is valid wherever a text is."""
_MAIN = re.compile(r"hydra\.main\(([^)]*)\)")
_DEFAULT = re.compile(
    r"^\s+-\s+(?:(?:override|optional)\s+)*([\w./@-]+?)(?:@[\w.]+)?\s*(?:(:)\s*([\w./-]+)?)?\s*(?:#.*)?$"
)


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
    lines = _read(config, application, root, launch) if config is not None else ()
    for start in launch.starts:
        at, file = _program(application, root, start)
        if not at:
            continue
        words = [*zip(start.words, start.places, strict=True)][at:]
        lost = next((word for word, _ in words if is_hidden(word)), None)
        if lost is not None:
            launch.hidden.append(
                Hidden(start.where, "", "a word of it is only known when it runs, and may be any override")
            )
        homes = [root / application.folder] if root else []
        missing = next((word for word, _ in words if _is_missing(word, homes)), None)
        if missing is not None:
            launch.hidden.append(Hidden(start.where, missing, "a group of the configuration that it takes is not here"))
        if {"--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i"} & {word for word, _ in words}:
            start = start._replace(sure=False)  # it prints, and runs nothing
        app = _App(start, (*((word, place) for word, place in words if word[:1] != "-"),))
        try:
            if config is None:
                yield _configuration(app, file, application, root, launch)
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
    for at, (before, word) in enumerate(itertools.pairwise(("", *start.words))):
        module = before in ("-m", "--module") and word.partition(".")[0] in application.packages
        file = (
            find(f"{word.replace('.', '/')}.py" if module else word, folders)
            if module or word.endswith(".py")
            else None
        )
        if file and (main := _MAIN.search(file.read_text(encoding="utf-8", errors="replace"))):
            return at + 1, file if main else None
        if module and not re.search(r"\.(model_merger|utils|tools?)\b", word):
            return at + 1, None
    return 0, None


def _configuration(app: _App, file: Path | None, application: Application, root: Path | None, launch: Launch) -> _App:
    """The configuration of a start, read for names if it is not a packaged one. Raises _NotKnown."""
    options, given = dict(_option(app.start.words)), _main(file)
    path, name = options.get("path", given.get("config_path")), options.get("name") or given.get("config_name") or ""
    name = name.removesuffix(".yaml")
    rest = [(word, place) for word, place in app.words if word not in options.values()]
    app = app._replace(words=(*rest,), name=name, program=file)
    home = root / application.folder if root else None
    if any(re.search("[\0\1]", word) for word in (path or "", name, options.get("dir", ""))):
        raise _NotKnown("which configuration it takes is only known when it runs; --config FILE names it")
    folders = [file.parent / (path or "")] if file else []
    folders += [folder / (path or "") for folder in app.start.folders] if path else []
    for folder in folders:
        if name and (folder / f"{name}.yaml").is_file():
            packaged = _packaged(application, folder, name, home)
            lines = () if packaged else _read(folder / f"{name}.yaml", application, root, launch)
            return app._replace(folder=folder, lines=lines)
    known = name in application.defaults or (home is not None and (home / f"{name}.yaml").is_file())
    if path in (None, "config") and (not name or known):
        return app._replace(folder=home)
    raise _NotKnown(f"the configuration {name or path} is not here; --config FILE names it")


def _main(file: Path | None) -> dict[str, str]:
    """What the decorator of a program says of its configuration."""
    main = _MAIN.search(file.read_text(encoding="utf-8", errors="replace")) if file else None
    return dict(re.findall(r"(config_\w+)\s*=\s*[\"']([^\"']*)", main[1])) if main else {}


def _packaged(application: Application, folder: Path, name: str, home: Path | None) -> bool:
    """Whether the project packages a configuration, which leaves every profiler off."""
    if name in application.defaults and home is not None and folder.resolve() == home.resolve():
        return True
    parents = folder.absolute().parents
    return any(one.name == application.packages[0] and (one / "__init__.py").is_file() for one in parents)


def _is_missing(word: str, folders: Sequence[Path]) -> bool:
    """Whether an override takes an option of a group that is not here, or changes where groups are looked for."""
    key, equals, value = word.lstrip("+").partition("=")
    group = key.partition("@")[0]
    if key.startswith("hydra.searchpath") or word.startswith(("--config-dir", "-cd")):
        return True
    named = "@" in key or "/" in key or any((folder / group).is_dir() for folder in folders)
    return (
        bool(equals and named and value not in ("null", ""))
        and not key.startswith("hydra/")
        and not any((folder / group / f"{value}.yaml").is_file() for folder in folders)
    )


def _option(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word, following in zip(words, (*words[1:], ""), strict=True):
        found = re.fullmatch(r"--config-(path|name|dir)(?:=(.*))?|-(c[pnd])(?:=(.*))?", word, re.DOTALL)
        if found:
            short = {"cp": "path", "cn": "name", "cd": "dir"}
            value = found[2] if found[1] else found[4]
            yield found[1] or short[found[3]], following if value is None else value.strip("'\"")


def _read(file: Path, application: Application, root: Path | None, launch: Launch) -> tuple[Text, ...]:
    """Read a configuration for names, and whether all that it is made of is here."""
    folders = [file.parent, *([root / application.folder] if root else [])]
    listing, lines, group, depth = False, list[Text](), "", 0
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        lines.append(Text(f"{file}:{number}", normal(re.sub(r"(^|\s)#.*", "", line)), plain=True))
        listing = line.startswith("defaults:") or (listing and line[:1] in " -#")
        default = _DEFAULT.match(f" {line}") if listing else None
        if not default or default[1] == "_self_" or default[3] == "null":
            continue
        indent = len(line) - len(line.lstrip())
        if default[2] and not default[3]:  # a group with a list of its own follows
            group, depth = default[1], indent
        else:
            name = f"{default[1]}/{default[3]}" if default[3] else default[1]
            name = f"{group}/{name}" if group and indent > depth else name
            if not (name in application.defaults or any((folder / f"{name}.yaml").is_file() for folder in folders)):
                launch.hidden.append(Hidden(f"{file}:{number}", line.strip(), f"{name}.yaml is not here"))
    launch.texts.extend(lines)
    return (*lines,)


# --- what Hydra makes of it ---


def _judged(switches: Sequence[ConfigSwitch], app: _App, config: Any) -> GuardResult:
    """The severest answer of the switches of one profiler to what a start composes."""
    first, where = switches[0], app.words[0][1] if app.words else app.start.where
    if isinstance(config, str):
        off = f"{first.keys[0].name}={_typed(first.keys[0].values[0])} at {where}"
        return GuardResult(first.profiler, State.UNKNOWN, where, "", off, first.why, f"{config}")
    values = {key.name: _value(config, key.name) for switch in switches for key in switch.keys}
    states = [_state(switch, values) for switch in switches]
    worst = max(states, key=lambda state: state.severity)
    switch = switches[states.index(worst)]
    off_values: dict[str, tuple[object, ...]] = {key.name: (None, False, [], key.values[0]) for key in switch.keys}
    named = [name for name, off in off_values.items() if values[name] not in off]
    places = {word.lstrip("+~").partition("=")[0]: place for word, place in app.words}
    shown = " ".join(f"{name}={_typed(values[name])}" for name in named)[:300]
    change = _change(switches, config, places) if worst is not State.OFF else ""
    where, as_override = _place([change.partition("=")[0], *named], places, app.lines, where)
    off = f"{change}{as_override} at {where.replace('command after', 'the command after')}" if change else ""
    why = (worst is State.ARMED and switch.armed) or switch.why
    result = GuardResult(switch.profiler, worst, where, shown, "nothing to do" if worst is State.OFF else off, why)
    if worst is State.UNKNOWN:
        return result._replace(reason="a value is only known when it runs")
    if worst is not State.OFF and not (app.start.sure and (app.start.program is not None or not app.start.words)):
        return result._replace(state=State.UNKNOWN, reason=NOT_PLAIN)
    return result


def _place(keys: Sequence[str], places: Mapping[str, str], lines: Sequence[Text], where: str) -> tuple[str, str]:
    """Where the first of some keys is typed, or written in a file, and what to say of an override there."""
    typed = next((places[key] for key in keys if key in places), None)
    leaf = next((key for key in keys if key), "").rpartition(".")[2]
    written = [line.where for line in lines if re.search(rf"(^|[\s{{,]){leaf}\s*:", line.text)]
    return (typed, "") if typed else (written[-1], " as an override, or") if written else (where, "")


def _composed(application: Application, root: Path | None, app: _App) -> Any:
    """The configuration of a start, or the reason why it is not known."""
    enabled = gc.isenabled()
    gc.disable()  # a configuration is thousands of small objects: a third of the time
    try:
        return _compose(application, root, app)
    except _NotKnown as answer:
        return str(answer)
    finally:
        (gc.enable if enabled else gc.disable)()


def _compose(application: Application, root: Path | None, app: _App) -> Any:
    """The configuration of a start. Raises _NotKnown where there is no Hydra, or where it cannot compose it."""
    try:
        import yaml

        yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # OmegaConf builds on it: half the time
        from hydra import compose, initialize_config_dir
        from hydra.errors import HydraException
    except ImportError:
        raise _NotKnown(f"no hydra-core: pip install 'rlpatch[{application.extra}]'") from None
    home = (root / application.folder).absolute() if root else None
    folder = (app.folder or home or Path()).absolute()
    name = app.name or next((one for one in application.defaults if (folder / f"{one}.yaml").is_file()), "")
    if not (folder / f"{name}.yaml").is_file():
        raise _NotKnown(f"{application.packages[0]} is not found here: --path DIR or --python EXE leads to it")
    numbers = itertools.count()
    words = [re.sub("[\0\1]", lambda _: f"{_UNKNOWN}{next(numbers)}", word) for word, _ in app.words]
    if any(_UNKNOWN in word.partition("=")[0] for word in words):
        raise _NotKnown("a word of it is only known when it runs, and may be any override")
    searched = [f"hydra.searchpath=[file://{home}]"] if home and home != folder else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with initialize_config_dir(str(folder), version_base=None):
                try:
                    return compose(name, [*searched, *words])
                except HydraException:  # a key that this release does not have stops the run there; the others count
                    forced = [
                        one if one[:1] == "~" or "/" in one.partition("=")[0] else f"++{one.lstrip('+')}"
                        for one in words
                    ]
                    return compose(name, [*searched, *forced])
        except Exception as error:  # whatever YAML and resolvers of others raise is an answer
            first = re.sub(rf"{_UNKNOWN}\d+", "…", str(error).strip().partition("\n")[0])
            raise _NotKnown(f"Hydra cannot compose it: {first}"[:300]) from error


def _value(config: Any, key: str) -> object:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        value = OmegaConf.select(config, key)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException:
        return _UNKNOWN


def _state(switch: ConfigSwitch, values: Mapping[str, object]) -> State:
    """The state that the values mean; UNKNOWN where it hangs on one that is not known."""
    mine = {key.name: values[key.name] for key in switch.keys}
    # Keys with the same unknown text follow from each other, so they change together.
    texts = {str(value): key.values for key in switch.keys if _UNKNOWN in str(value := mine[key.name])}
    ways = [dict(zip(texts, way, strict=True)) for way in itertools.product(*texts.values())]
    states = {switch.state({name: way.get(str(value), value) for name, value in mine.items()}) for way in ways}
    return states.pop() if len(states) == 1 else State.UNKNOWN


def _change(switches: Sequence[ConfigSwitch], config: Any, typed: Iterable[str]) -> str:
    """The override that switches all of them off, proven on a copy of the configuration; empty if there is none."""
    from omegaconf import OmegaConf

    offs = {key.name: _typed(key.values[0]) for switch in switches for key in switch.keys}
    leaves = {name.rpartition(".")[2]: value for name, value in offs.items()}
    # A key may follow from another one that was typed.
    others = {name: leaves[leaf] for name in typed if (leaf := name.rpartition(".")[2]) in leaves}
    for name, value in {**offs, **others}.items():
        changed = copy.deepcopy(config)
        OmegaConf.update(changed, name, OmegaConf.create(f"x: {value}").x, force_add=True)
        values = {key.name: _value(changed, key.name) for switch in switches for key in switch.keys}
        if all(_state(switch, values) is State.OFF for switch in switches):
            return f"{name}={value}"
    return ""


def _typed(value: object) -> str:
    """A value as one types it in an override, with … for what is not known."""
    text = "null" if value is None else str(value).replace(", ", ",") if isinstance(value, list) else str(value)
    return re.sub(rf"{_UNKNOWN}\d*", "…", text)
