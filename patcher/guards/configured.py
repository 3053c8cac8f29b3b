"""Is a profiler switched on by a Hydra configuration? Composed by Hydra, where a launch names a profiler at all.

The configurations that a project packages leave every profiler off, which a test proves for each release.
"""

from __future__ import annotations

import copy
import gc
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from patcher.guards.certain import LaunchText, normal
from patcher.guards.launch import (
    KEPT,
    Reading,
    Start,
    find,
    is_hidden,
    is_known,
    text_of,
    within_sentence,
)
from patcher.guards.result import NOT_PLAIN, Checked, GuardResult, Hidden, completing, existing
from patcher.messages import Kind, Problem, Text
from patcher.switches import Application, ConfigSwitch, State

_UNKNOWN = "rlpatch_unknown"
"""Stands in a configuration for what is not known; an identifier, so that it is valid wherever a text is."""
_OPTION = r"(?m)^(?:--config-|-c)([pnd])\w*[=\n](.*)$"  # for path, name and dir
_PRINTS = {"--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i"}  # then it runs nothing
_ANY = Text("a word of the command is only known at run time, and may be any override")
_NO_GROUP = Text("the configuration uses a Hydra config group that was not found here")
_NO_CONFIG = Text("the run's configuration was not found here or is only known at run time; name it with --config FILE")


def configured(application: Application, checked: Checked, config: Path | None, reading: Reading) -> list[GuardResult]:
    """Return the results for each profiler that a Hydra ``application`` can switch on.

    The configuration file ``config`` is used instead of the one that the launch names. A configuration that cannot be
    read gives UNKNOWN, but is not added to the hidden places of the caller's ``reading``. Raises Problem (USAGE) if
    ``config`` is no YAML file.
    """
    if config is not None:
        _check(config)
    reading = replace(reading, hidden=[*reading.hidden])  # an override hides nothing of the environment
    composed = [*_compositions(application, checked.root, config, reading)]
    profilers = dict.fromkeys(switch.profiler for switch in application.switches)
    return [result for name in profilers for result in _results(name, application, checked, composed, reading)]


def _compositions(
    application: Application, root: Path | None, config: Path | None, reading: Reading
) -> Iterator[tuple[Start, Any]]:
    """Yield each start with its configuration, if the launch names a profiler; record in ``reading`` what is hidden."""
    starts = [*_starts(application, root, config, reading)]
    mentions = _mentions(application, root, {str(file) for _, file in starts}, reading)
    unclear = [text for text in mentions if not text.plain or "oc.env" in text.text]
    reading.hidden[:0] = [Hidden(text.where, text.text, NOT_PLAIN) for text in unclear]
    if root is None and not reading.texts:
        reason = Text("{package} is not installed here", application.packages[0])
        reading.hidden.append(Hidden(reason, "", reason))
    if mentions and not starts:
        reason = Text(
            "the commands of the launch that rlpatch could read do not start {package}", application.packages[0]
        )
        reading.hidden.append(Hidden(mentions[0].where, mentions[0].text, reason))
    for start, file in starts if not unclear and (mentions or _takes_others(application, reading)) else ():
        content = _composed(application, root, start, file)
        if isinstance(content, str):
            reading.hidden.append(Hidden(start.where, "", content))
        else:
            yield start, content


def _mentions(
    application: Application, root: Path | None, configurations: Collection[str], reading: Reading
) -> list[LaunchText]:
    """Return the texts that name a profiler, without programs of the project.

    The lines of ``configurations``, which were read again, count as plain.
    """
    mentions = list[LaunchText]()
    for text in reading.texts:
        is_read_again = not text.plain and text.where.rpartition(":")[0] in configurations
        is_mention = not is_read_again and re.search(application.names, text.text)
        if is_mention and not _is_of_the_project(text, application, root):
            mentions.append(text)
    return mentions


def _check(config: Path) -> None:
    """Raise Problem (USAGE) unless ``config`` is an existing file that ends in .yaml."""
    if config.suffix != ".yaml" or not config.is_file():
        reason = Text("Hydra reads files that end in .yaml") if config.is_file() else Text("this file does not exist")
        hint = Text("name the YAML file that configures the run: --config FILE")
        raise Problem(Kind.USAGE, Text("cannot read the configuration: {reason}", reason), str(config), hint)


def _takes_others(application: Application, reading: Reading) -> bool:
    """Tell whether a configuration file that was read includes others than the packaged configurations."""
    packaged = "|".join((r"_self_|\S+://.*", *application.defaults))
    takes = re.compile(rf"\s{{0,2}}-\s+(?!({packaged})\s*$)")
    return any(takes.match(line.text) for line in reading.texts if ".yaml:" in line.where)


def _is_of_the_project(text: LaunchText, application: Application, root: Path | None) -> bool:
    """Tell whether ``text`` stands in a program below ``root`` that runs Hydra: such a program only reads names."""
    file = Path(text.where.rpartition(":")[0])
    is_inside = root is not None and file.is_file() and file.resolve().is_relative_to(root.resolve())
    return is_inside and bool(re.search(application.main, text_of(file)))


def _results(
    profiler: str, application: Application, checked: Checked, composed: Sequence[tuple[Start, Any]], reading: Reading
) -> list[GuardResult]:
    """Return the results for one profiler, the last one OFF; hidden text adds UNKNOWN unless a result is ON.

    ``composed`` has each start with its configuration.
    """
    switches = existing(application.switches, profiler, checked.release)
    results = [_judged(switches, start, content, reading) for start, content in composed if switches]
    is_on = any(result.state is State.ON for result in results)
    key = switches[0].keys[0] if switches else None
    off = f"{key.name}={_typed(key.values[0])}" if key else ""
    hidden = reading.hidden if not is_on else ()
    results = [] if hidden else results
    return [*results, *completing(profiler, switches, hidden, reading.starts[0].where, off)]


# --- what is started ---


def _starts(
    application: Application, root: Path | None, config: Path | None, reading: Reading
) -> Iterator[tuple[Start, Path | None]]:
    """Yield each start of the application, reduced to its overrides, with its configuration file (None: not here).

    Record in ``reading`` why the configuration of a start is hidden, and the lines of configuration files.
    """
    if config is not None and not any(start.words[0] for start in reading.starts):
        _read(config, application, root, reading)
        yield Start(str(config), (), {}, "python", sure=True), config
    for start in reading.starts:
        at, program = _program(application, root, start)
        if not at:
            continue
        words = start.words[at:]
        option = rf"(?m)^{application.option}()[=\n](.*)$" if application.option else _OPTION
        typed = dict(re.findall(option, "\n".join(words)))
        file, is_here = (config, True) if config else _configuration(application, root, program, start, typed)
        reasons = {
            _ANY: any(map(is_hidden, words)),
            _NO_GROUP: any(_is_missing(word, (root or Path()) / application.folder) for word in words),
            _NO_CONFIG: not is_here or (file is not None and file.name in reading.written),
        }
        reading.hidden.extend(Hidden(start.where, "", reason) for reason, holds in reasons.items() if holds)
        if is_here:
            if file:
                _read(file, application, root, reading)
            overrides = [word for word in words if not re.match(r"-|.*\.py$", word) and word not in typed.values()]
            yield start._replace(words=(*overrides,), sure=start.sure and not _PRINTS & {*start.words}), file


def _program(application: Application, root: Path | None, start: Start) -> tuple[int, Path | None]:
    """Return the index of the first word after a program of the application, and the program's file.

    The index is 0 if the start runs no such program; the file is None if it is not on this machine.
    """
    folders = (*start.folders, *([root] if root else []))
    for at, (before, word) in enumerate(pairwise(("", *start.words)), 1):
        is_module = before in ("-m", "--module") and word.partition(".")[0] in application.packages
        path = f"{word.replace('.', '/')}.py" if is_module else word
        file = find(path, folders) if path.endswith(".py") else None
        if file and re.search(application.main, text_of(file)):
            return at, file
        if is_module and not re.search(r"\.(model_merger|utils|tools?)\b", word):
            return at, None
    return 0, None


def _configuration(
    application: Application, root: Path | None, program: Path | None, start: Start, typed: Mapping[str, str]
) -> tuple[Path | None, bool]:
    """Return the configuration file of a start (None: not here), and whether the configuration is known.

    A configuration is known if its file is here or the project packages it. ``typed`` has the options of the command
    line: p for the path, n for the name, d for the directory.
    """
    if "d" in typed or not is_known("".join(typed.values())):
        return None, False
    if application.option:
        file = find(typed.get("", ""), start.folders)
        return file, bool(file)
    main = re.search(application.main, text_of(program)) if program else None  # the program names one in its code
    options = {**dict(re.findall(r"config_([pn])\w+\s*=\s*[\"']([^\"']*)", main[1] if main else "")), **typed}
    path, name = options.get("p", ""), options.get("n", "").removesuffix(".yaml")
    is_packaged, names = path in ("", "config"), [name] if name else application.defaults
    folders = [program.parent / path] if program else []
    folders += [root / application.folder] if root and is_packaged else []
    folders += [folder / path for folder in start.folders]
    file = next((file for name in names if (file := find(f"{name}.yaml", folders))), None)
    return file, bool(file) or (is_packaged and names[0] in application.defaults)


def _read(file: Path, application: Application, root: Path | None, reading: Reading) -> None:
    """Add the lines of the user's configuration ``file`` to ``reading``; skip one that the project packages."""
    if root and file.resolve().is_relative_to((root / application.packages[0]).resolve()):
        return
    for number, line in enumerate(text_of(file).splitlines(), 1):
        reading.texts.append(LaunchText(f"{file}:{number}", normal(re.sub(r"(^|\s)#.*", "", line)), plain=True))


def _is_missing(word: str, home: Path) -> bool:
    """Tell whether an override selects an option of a group that is not in ``home``, or moves the search path."""
    key, _, value = word.lstrip("+").partition("=")
    group = home / key.partition("@")[0]
    takes_option = re.search("[@/]|^hydra.searchpath", key) or group.is_dir()
    return bool(takes_option) and value not in ("null", "") and not (group / f"{value}.yaml").is_file()


# --- what Hydra makes of it ---


def _composed(application: Application, root: Path | None, start: Start, file: Path | None) -> Any:
    """Return the configuration that Hydra composes for a start, or a text with the reason why it cannot.

    ``file`` is the main configuration, None if missing. Words that are known only at run time become a placeholder.
    """
    try:
        import yaml

        yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # OmegaConf builds on it: half the time
        from hydra import compose, initialize_config_dir
    except ImportError:
        return Text("hydra-core is not installed (pip install hydra-core)")
    if file is None:
        return Text(
            "{package} is not installed here; give its location with --path DIR or --python EXE",
            application.packages[0],
        )
    words = [re.sub("[\0\1]", _UNKNOWN, word.replace(KEPT, "")) for word in start.words]
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
        return Text("Hydra reports: {error}", first[:270])
    finally:
        gc.enable()


def _judged(switches: Sequence[ConfigSwitch], start: Start, config: Any, reading: Reading) -> GuardResult:
    """Return the severest result of one profiler's ``switches`` for ``config``, the configuration of ``start``."""
    switch = max(switches, key=lambda switch: _state(switch, config).severity)
    state, values, reason = _state(switch, config), _values(switch, config), ""
    set_keys = [key.name for key in switch.keys if values[key.name] not in (None, False, [], key.values[0])]
    text = " ".join(f"{name}={_typed(values[name])}" for name in set_keys)[:300]
    if state is State.OFF:
        return GuardResult(switch.profiler, state, start.where, text, Text("nothing to do"), switch.why)
    typed = [word.lstrip("+~").partition("=")[0] for word in start.words]
    change = _change(switches, config, typed)
    key = change.partition("=")[0] or (*set_keys, "?")[0]
    line = _line_of(key, reading) if key not in typed else ""
    where = line or reading.place(f"{key}=", start.where)
    off: str = ""
    if change:
        off = Text("{change} at {where}", change, within_sentence(where))
        if line:
            off = Text("{change} as an override, or at {where}", change, within_sentence(where))
    if state is State.UNKNOWN:
        reason = Text("a value in the configuration is only known at run time")
    elif not (start.sure and start.program):
        state, reason = State.UNKNOWN, NOT_PLAIN
    why = (state is State.ARMED and switch.armed) or switch.why
    return GuardResult(switch.profiler, state, where, text, off, why, reason)


def _line_of(key: str, reading: Reading) -> str:
    """Return the place of a dotted ``key`` in the configuration files that were read, "" if it is in none."""
    lines = [text for text in reading.texts if ".yaml:" in text.where]
    for part in key.split("."):
        name = re.compile(rf"(^|[\s{{,]){re.escape(part)}\s*:")
        lines = lines[next((at for at, text in enumerate(lines) if name.search(text.text)), len(lines)) :]
    return lines[0].where if lines else ""


def _values(switch: ConfigSwitch, config: Any) -> dict[str, object]:
    """Return the values of a switch's keys in a configuration: None if missing, a placeholder if unresolvable."""
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
    """Return the state of a switch; UNKNOWN if it depends on a value that only the run tells."""
    values = _values(switch, config)
    choices = (key.values if _UNKNOWN in str(values[key.name]) else (values[key.name],) for key in switch.keys)
    states = {switch.state(dict(zip(values, choice, strict=True))) for choice in product(*choices)}
    return states.pop() if len(states) == 1 else State.UNKNOWN


def _change(switches: Sequence[ConfigSwitch], config: Any, typed: Sequence[str]) -> str:
    """Return one override, tried out in ``config``, that switches all ``switches`` off; "" if there is none.

    Keys in ``typed``, which the user has set as overrides, are tried first.
    """
    from omegaconf import OmegaConf

    offs = {key.name: key.values[0] for switch in switches for key in switch.keys}
    leaves = {name.rpartition(".")[2]: value for name, value in offs.items()}
    # What is typed comes first: other keys may follow from it.
    first = {name: leaves[leaf] for name in typed if (leaf := name.rpartition(".")[2]) in leaves}
    for name, value in {**first, **offs}.items():
        changed = copy.deepcopy(config)
        OmegaConf.update(changed, name, value, force_add=True)
        if all(_state(switch, changed) is State.OFF for switch in switches):
            return f"{name}={_typed(value)}"
    return ""


def _typed(value: object) -> str:
    """Return ``value`` in the syntax of an override, with … for parts known only at run time."""
    return "null" if value is None else str(value).replace(", ", ",").replace(_UNKNOWN, "…")
