"""Is a profiler switched on by a Hydra configuration? Composed by Hydra, where a launch names a profiler at all.

The configurations that a project packages leave every profiler off, which a test proves for each release.
"""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from patcher.guards.launch import LaunchText, Reading, Start, find, is_hidden, is_known, normal, text_of
from patcher.guards.result import NOT_PLAIN, Checked, GuardResult, Hidden, unknown
from patcher.messages.errors import Kind, Problem
from patcher.switches import Application, ConfigSwitch, Release, State

_UNKNOWN = "rlpatch_unknown"
"""Stands in a configuration for what is not known; an identifier, so that it is valid wherever a text is."""
_MAIN = r"hydra\.main\(([^)]*)\)"
_OPTION = r"(?m)^(?:--config-|-c)([pnd])\w*[=\n](.*)$"  # for path, name and dir
_PRINTS = {"--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i"}  # then it runs nothing
_ANY = "a word of it is only known when it runs, and may be any override"
_NO_GROUP = "a configuration group that it uses is not here"


def configured(application: Application, checked: Checked, config: Path | None, launch: Reading) -> list[GuardResult]:
    """One result per profiler of the application. Raises Problem(USAGE) if ``config`` is no configuration."""
    _check(config)
    launch = replace(launch, hidden=[*launch.hidden])  # an override hides nothing of the environment
    root, release = checked.root, checked.release
    apps = [*_apps(application, root, config, launch)]
    mentions = [one for one in launch.texts if re.search(application.names, one.text) and not _reads(one, root)]
    unclear = [Hidden(one.where, one.text, NOT_PLAIN) for one in mentions if not one.plain or "oc.env" in one.text]
    launch.hidden[:0] = unclear
    if root is None and not launch.texts:
        reason = f"{application.packages[0]} is not found here"
        launch.hidden.append(Hidden(reason, "", reason))
    if mentions and not apps:
        reason = f"nothing that can be read here starts {application.packages[0]}"
        launch.hidden.append(Hidden(mentions[0].where, mentions[0].text, reason))
    composes = (mentions or _takes_others(application, launch)) and not unclear
    composed = [(start, _composed(application, root, start, file)) for start, file in apps if composes]
    launch.hidden.extend(Hidden(start.where, "", made) for start, made in composed if isinstance(made, str))
    profilers = dict.fromkeys(switch.profiler for switch in application.switches)
    return [one for profiler in profilers for one in _of(profiler, application, release, composed, launch)]


def _takes_others(application: Application, launch: Reading) -> bool:
    """Whether a configuration that was read is made of others than the packaged ones, which may say anything."""
    known = "|".join((r"_self_|\S+://.*", *application.defaults))
    takes = re.compile(rf"\s{{0,2}}-\s+(?!({known})\s*$)")
    return any(takes.match(one.text) for one in launch.texts if ".yaml:" in one.where)


def _reads(text: LaunchText, root: Path | None) -> bool:
    """Whether a text stands in a program of the project itself, which reads the names that others set."""
    file = Path(text.where.rpartition(":")[0])
    own = root is not None and file.is_file() and file.resolve().is_relative_to(root.resolve())
    return own and bool(re.search(_MAIN, text_of(file)))


def _check(config: Path | None) -> None:
    if config is not None and (config.suffix != ".yaml" or not config.is_file()):
        reason = "Hydra reads files that end in .yaml" if config.is_file() else "there is no such file"
        hint = "name the YAML file that configures the run"
        raise Problem(Kind.USAGE, f"cannot read the configuration: {reason}", str(config), hint)


def _of(
    profiler: str, application: Application, release: Release, composed: Sequence[tuple[Start, Any]], launch: Reading
) -> list[GuardResult]:
    """What is known of one profiler; what is hidden may be anything but where it is on for sure."""
    switches = [one for one in application.switches if one.profiler == profiler and release.has(one)]
    why = switches[0].why if switches else "no switch of it exists in this release"
    off = GuardResult(profiler, State.OFF, launch.starts[0].where, "", "nothing to do", why)
    if not switches:
        return [off]
    found = [_judged(switches, start, made, launch) for start, made in composed if not isinstance(made, str)]
    if launch.hidden and not any(one.state is State.ON for one in found):
        key = switches[0].keys[0]
        found = [unknown(profiler, launch.hidden[0], why, f"{key.name}={_typed(key.values[0])}")]
    return [*found, off]


# --- what is started ---


def _apps(
    application: Application, root: Path | None, config: Path | None, launch: Reading
) -> Iterator[tuple[Start, Path | None]]:
    """The starts of the application with their overrides for words, and their configurations if these are here."""
    home = root / application.folder if root else None
    if config is not None and not any(start.words[0] for start in launch.starts):
        _read(config, application, root, launch)
        yield Start(str(config), (), {}, "python", sure=True), config
    for start in launch.starts:
        at, program = _program(application, root, start)
        words = start.words[at:] if at else ()
        typed = dict(re.findall(_OPTION, "\n".join(words)))
        file, known = config, True
        if at and not config:
            file, known = _configuration(application, root, program, start, typed)
        reasons = {
            _ANY: any(map(is_hidden, words)),
            _NO_GROUP: any(_is_missing(word, home) for word in words),
            "its configuration is not here, or only known when it runs; --config FILE names it": not known,
        }
        launch.hidden.extend(Hidden(start.where, "", reason) for reason, holds in reasons.items() if holds)
        if at and known:
            if file:
                _read(file, application, root, launch)
            overrides = [one for one in words if one[:1] != "-" and one not in typed.values()]
            yield start._replace(words=(*overrides,), sure=start.sure and not _PRINTS & {*start.words}), file


def _program(application: Application, root: Path | None, start: Start) -> tuple[int, Path | None]:
    """Where the words begin behind a program of the application, 0 if there is none, and its file if it is here."""
    folders = (*start.folders, *([root] if root else []))
    for at, (before, word) in enumerate(pairwise(("", *start.words)), 1):
        module = before in ("-m", "--module") and word.partition(".")[0] in application.packages
        path = f"{word.replace('.', '/')}.py" if module else word
        file = find(path, folders) if path.endswith(".py") else None
        if file and re.search(_MAIN, text_of(file)):
            return at, file
        if module and not re.search(r"\.(model_merger|utils|tools?)\b", word):
            return at, None
    return 0, None


def _configuration(
    application: Application, root: Path | None, program: Path | None, start: Start, typed: dict[str, str]
) -> tuple[Path | None, bool]:
    """The configuration of a start if it is here, and whether it is known: it is here, or packaged."""
    if "d" in typed or not is_known("".join(typed.values())):
        return None, False
    main = re.search(_MAIN, text_of(program)) if program else None  # the program names one in its code
    options = {**dict(re.findall(r"config_([pn])\w+\s*=\s*[\"']([^\"']*)", main[1] if main else "")), **typed}
    path, name = options.get("p", ""), options.get("n", "").removesuffix(".yaml")
    is_packaged, names = path in ("", "config"), [name] if name else application.defaults
    folders = [program.parent / path] if program else []
    folders += [root / application.folder] if root and is_packaged else []
    folders += [folder / path for folder in start.folders]
    file = next((file for one in names if (file := find(f"{one}.yaml", folders))), None)
    return file, bool(file) or (is_packaged and names[0] in application.defaults)


def _read(file: Path, application: Application, root: Path | None, launch: Reading) -> None:
    """Take in the lines of a configuration of the user's; those that the project packages name nothing."""
    if root and file.resolve().is_relative_to((root / application.packages[0]).resolve()):
        return
    for number, line in enumerate(text_of(file).splitlines(), 1):
        launch.texts.append(LaunchText(f"{file}:{number}", normal(re.sub(r"(^|\s)#.*", "", line)), plain=True))


def _is_missing(word: str, home: Path | None) -> bool:
    """Whether an override takes an option of a group that is not here, or changes where groups are looked for."""
    key, _, value = word.lstrip("+").partition("=")
    group = (home or Path()) / key.partition("@")[0]
    chosen = re.search("[@/]|^hydra.searchpath", key) or (home and group.is_dir())
    return bool(chosen) and value not in ("null", "") and not (group / f"{value}.yaml").is_file()


# --- what Hydra makes of it ---


def _composed(application: Application, root: Path | None, start: Start, file: Path | None) -> Any:
    """The configuration of a start, or the reason why it is not known."""
    try:
        import yaml

        yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # OmegaConf builds on it: half the time
        from hydra import compose, initialize_config_dir
    except ImportError:
        return "no hydra-core: pip install hydra-core"
    if file is None:
        return f"{application.packages[0]} is not found here: --path DIR or --python EXE leads to it"
    words = [re.sub("[\0\1]", _UNKNOWN, word) for word in start.words]
    if any(_UNKNOWN in word.partition("=")[0] for word in words):
        return _ANY
    home, folder = (root / application.folder).absolute() if root else None, file.absolute().parent
    searched = [f"hydra.searchpath=[file://{home}]"] if home and home != folder else []
    # An override counts although this release has no such key, which would stop the run there.
    forced = [f"++{word.lstrip('+')}" if re.match(r"[^~=/@]*\.[^=/@]*=", word) else word for word in words]
    gc.disable()  # a configuration is thousands of small objects: a third of the time
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(folder), version_base=None):
            warnings.simplefilter("ignore")
            return compose(file.stem, [*searched, *forced])
    except Exception as error:  # whatever YAML and resolvers of others raise is an answer
        first = str(error).strip().partition("\n")[0].replace(_UNKNOWN, "…")
        return f"Hydra cannot compose it: {first}"[:300]
    finally:
        gc.enable()


def _judged(switches: Sequence[ConfigSwitch], start: Start, config: Any, launch: Reading) -> GuardResult:
    """The severest answer of the switches of one profiler to what a start composes."""
    switch = max(switches, key=lambda one: _state(one, config).severity)
    state, where, reason, values = _state(switch, config), start.where, "", _values(switch, config)
    named = [key.name for key in switch.keys if values[key.name] not in (None, False, [], key.values[0])]
    seen = " ".join(f"{name}={_typed(values[name])}" for name in named)[:300]
    if state is State.OFF:
        return GuardResult(switch.profiler, state, where, seen, "nothing to do", switch.why)
    typed = [word.lstrip("+~").partition("=")[0] for word in start.words]
    change = _change(switches, config, typed)
    key = change.partition("=")[0] or (*named, "?")[0]
    written = launch.place(f" {key.rpartition('.')[2]}:", "") if key not in typed else ""
    where = written or launch.place(f"{key}=", where)
    override = " as an override, or" if written else ""
    off = f"{change}{override} at {where.replace('command after', 'the command after')}" if change else ""
    if state is State.UNKNOWN:
        reason = "a value is only known when it runs"
    elif not (start.sure and start.program):
        state, reason = State.UNKNOWN, NOT_PLAIN
    why = (state is State.ARMED and switch.armed) or switch.why
    return GuardResult(switch.profiler, state, where, seen, off, why, reason)


def _values(switch: ConfigSwitch, config: Any) -> dict[str, object]:
    """What the keys of a switch are in a configuration, None for one that is not there."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    values: dict[str, object] = {}
    for key in switch.keys:
        try:
            value = OmegaConf.select(config, key.name)
            values[key.name] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        except OmegaConfBaseException:
            values[key.name] = _UNKNOWN
    return values


def _state(switch: ConfigSwitch, config: Any) -> State:
    values = _values(switch, config)
    return State.UNKNOWN if _UNKNOWN in str(values) else switch.state(values)


def _change(switches: Sequence[ConfigSwitch], config: Any, typed: Sequence[str]) -> str:
    """The override that switches all of them off, tried in the configuration itself; empty if there is none."""
    from omegaconf import OmegaConf

    keys = {key.name: key.values[0] for switch in switches for key in switch.keys}
    leaves = {name.rpartition(".")[2]: value for name, value in keys.items()}
    # What is typed comes first: other keys may follow from it.
    offs = {name: leaves[leaf] for name in typed if (leaf := name.rpartition(".")[2]) in leaves}
    for name, value in {**offs, **keys}.items():
        parent, _, leaf = name.rpartition(".")
        holder: Any = OmegaConf.select(config, parent)
        before: Any = OmegaConf.to_container(holder) if OmegaConf.is_dict(holder) else {}
        OmegaConf.update(config, name, value, force_add=True)
        off = all(_state(switch, config) is State.OFF for switch in switches)
        OmegaConf.update(config, name, before.get(leaf), force_add=True)
        if off:
            return f"{name}={_typed(value)}"
    return ""


def _typed(value: object) -> str:
    """A value as one types it in an override, with … for what is not known."""
    return "null" if value is None else str(value).replace(", ", ",").replace(_UNKNOWN, "…")
