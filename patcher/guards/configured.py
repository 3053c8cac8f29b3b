"""Is a profiler switched on by a Hydra configuration? Composed by Hydra, where a launch names a profiler at all.

The configurations that a project packages leave every profiler off, which a test proves for each release.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

from patcher.guards.launch import LaunchText, Reading, find, text_of
from patcher.guards.result import ENVIRONMENT, NOT_PLAIN, Checked, GuardResult, within_sentence
from patcher.guards.shell import normal
from patcher.guards.start import Start, is_hidden, is_known
from patcher.messages import Kind, Problem, Text
from patcher.switches import Application, ConfigSwitch, State, override

_UNKNOWN = "rlpatch_unknown"
"""Stands in a configuration for what is not known; an identifier, so that it is valid wherever a text is."""
_OPTION = r"(?m)^(?:--config-|-c)([pnd])\w*[=\n](.*)$"  # for path, name and dir
_PRINTS = {"--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i"}  # then it runs nothing
_ANY = Text("part of the command is only known at run time, and that part might override any setting")
_NO_CONFIG = Text(
    "the run's configuration was not found on this machine or is only known at run time; name it with --config FILE"
)


class _Run(NamedTuple):
    """A start of the application, its overrides, and its configuration file, which may be missing if it is packaged."""

    start: Start
    overrides: tuple[str, ...]
    file: Path


def judge_configured(
    application: Application, checked: Checked, config: Path | None, reading: Reading
) -> tuple[list[GuardResult], list[LaunchText]]:
    """Return a result per profiler for each run that Hydra configures, and the texts that cannot be read.

    There are no results if nothing that the launch names can turn a profiler on; with an unreadable text, only for
    profilers that are ON. ``config`` replaces the file that the launch names (None: it does not). The lines of the
    user's configurations are added to ``reading.texts``. Raises Problem (USAGE) if ``config`` is no YAML file, or if a
    file cannot be read.
    """
    if config is not None and (config.suffix != ".yaml" or not config.is_file()):
        reason = (
            Text("Hydra reads only files that end in .yaml") if config.is_file() else Text("this file does not exist")
        )
        hint = Text("name the YAML file that configures the run: --config FILE")
        raise Problem(Kind.USAGE, Text("cannot read the configuration: {reason}", reason), str(config), hint)
    root, results = checked.root, list[GuardResult]()
    reading = replace(reading, hidden=[*reading.hidden])  # an override hides nothing of the environment
    runs = [*_find_runs(application, root, config, reading)]
    if root is None and not reading.texts:
        reason = Text("{package} is not installed here", application.packages[0])
        reading.hidden.append(LaunchText(reason, "", reason=reason))
    for run in runs if _needs_composing(application, (root or Path()) / application.folder, runs, reading) else ():
        composed = _compose(application, root, run)
        if isinstance(composed, str):
            reading.hidden.append(LaunchText(run.start.where, "", reason=composed))
            continue
        switches = [*filter(checked.release.has, application.switches)]
        for profiler in dict.fromkeys(switch.profiler for switch in switches):
            alike = [switch for switch in switches if switch.profiler == profiler]
            results.append(_judge(alike, run, composed, reading))
    is_on = {result.profiler for result in results if result.state is State.ON}
    return [result for result in results if not reading.hidden or result.profiler in is_on], reading.hidden


def _needs_composing(application: Application, home: Path, runs: Sequence[_Run], reading: Reading) -> bool:
    """Tell whether to have Hydra compose the runs; ``home`` is the folder of the project's configurations.

    It has to if a text names a profiler, an override chooses a file, or a configuration of the user includes one.
    False if a text that names a profiler cannot be judged, as without runs; such texts go to ``reading.hidden``.
    """
    mentions = [text for text in reading.texts if re.search(rf"{application.names}|^\+*hydra\.searchpath", text.text)]
    is_moved = re.compile(r"oc\.env|hydra\.searchpath")  # by the environment, or to files that are not looked for
    unclear = [text for text in mentions if not text.plain or not runs or is_moved.search(text.text)]
    reading.hidden[:0] = [text._replace(reason=NOT_PLAIN) for text in unclear]
    packaged = "|".join((r"_self_|\S+://.*", *application.defaults))
    includes = re.compile(rf"\s{{0,2}}-\s+(?!({packaged})\s*$)")  # a configuration of the user, which may name one
    is_mixed = any(includes.match(line.text) for line in reading.texts if ".yaml:" in line.where)
    return not unclear and (bool(mentions) or is_mixed or _chooses_file(home, runs, reading))


def _chooses_file(home: Path, runs: Sequence[_Run], reading: Reading) -> bool:
    """Tell whether an override, or a text where a configuration of the user is, chooses a file of a group."""
    words = [(home, word) for run in runs for word in run.overrides]
    folders = {run.file.parent for run in runs if run.file.parent.resolve() != home.resolve()}
    words += [(folder, text.text) for folder in folders for text in reading.texts]
    groups = ((folder, key) for folder, word in words for key in re.findall(r"[\w./-]+(?=[@=])", word))
    return any((folder / key).is_dir() for folder, key in groups)


# --- what is started ---


def _find_runs(application: Application, root: Path | None, config: Path | None, reading: Reading) -> Iterator[_Run]:
    """Yield each run of ``application`` that the launch starts with a known configuration.

    Without a command, it is a run with ``config`` alone. ``root`` holds the installed project (None: it is not here),
    ``config`` is the file of `--config` (None: no such option). Lines of configurations are added to ``reading.texts``;
    why one is unknown, to ``reading.hidden``. Raises Problem (USAGE) if a file cannot be read.
    """
    if config is not None and reading.starts[0].where == ENVIRONMENT:
        _read_configuration(config, application, root, reading)
        yield _Run(Start(str(config), ("python",), sure=True), (), config)
    for start in reading.starts:
        at, program = _find_program(application, root, start)
        if not at:
            continue
        words = start.words[at:]
        option = rf"(?m)^{application.option}()[=\n](.*)$" if application.option else _OPTION
        option_values = dict(re.findall(option, "\n".join(words)))
        file = config or _find_configuration(application, root, program, start, option_values)
        overrides = [word for word in words if not re.match(r"-|.*\.py$", word) and word not in option_values.values()]
        reasons = [_ANY] if any(map(is_hidden, words)) else []
        if not file or file.name in reading.written:
            reasons.append(_NO_CONFIG)
        reading.hidden.extend(LaunchText(start.where, "", reason=reason) for reason in reasons)
        if file and _NO_CONFIG not in reasons:
            _read_configuration(file, application, root, reading)
            sure = start.sure and not _PRINTS & {*start.words}
            yield _Run(replace(start, sure=sure), (*overrides,), file)


def _read_configuration(file: Path, application: Application, root: Path | None, reading: Reading) -> None:
    """Put the lines of the configuration ``file`` into ``reading`` as plain text, in place of those it already has.

    Do nothing if there is no such file, or if the project in ``root`` (None: it is not here) packages it. Raises
    Problem (USAGE) if the file cannot be read.
    """
    package = (root / application.packages[0]).resolve() if root else None
    if file.is_file() and not (package and file.resolve().is_relative_to(package)):
        reading.texts[:] = [text for text in reading.texts if text.where.rpartition(":")[0] != str(file)]
        lines = enumerate(re.sub(r"(?m)(^|\s)#.*", "", text_of(file)).splitlines(), 1)
        reading.texts.extend(LaunchText(f"{file}:{number}", normal(line), plain=True) for number, line in lines)


def _find_program(application: Application, root: Path | None, start: Start) -> tuple[int, Path | None]:
    """Return the index of the first word of ``start`` after the application's program, and the program's file.

    The index is 0 if ``start`` does not run that program, the file None if it is not on this machine. Raises Problem
    (USAGE) if a file cannot be read.
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


def _find_configuration(
    application: Application, root: Path | None, program: Path | None, start: Start, option_values: dict[str, str]
) -> Path | None:
    """Return the configuration file with which ``program`` is started.

    None if hidden text or a directory (d) chooses it, or if it is neither found nor packaged by the project. A packaged
    file of a project that is not installed (no ``root``) is a relative path that does not exist. The options of
    ``option_values`` are Hydra's p (path), n (name) and d (directory), "" for the application's own. Raises Problem
    (USAGE) if ``program`` cannot be read.
    """
    if "d" in option_values or not is_known("".join(option_values.values())):
        return None
    if application.option:
        return find(option_values.get("", ""), start.folders)
    main = re.search(application.main, text_of(program)) if program else None  # the program names one in its code
    options = {**dict(re.findall(r"config_([pn])\w+\s*=\s*[\"']([^\"']*)", main[1] if main else "")), **option_values}
    path, name = options.get("p", ""), options.get("n", "").removesuffix(".yaml")
    is_packaged, names = path in ("", "config"), [name] if name else application.defaults
    folders = [program.parent / path] if program else []
    if root and is_packaged:
        folders.append(root / application.folder)
    folders += [folder / path for folder in start.folders]
    packaged = (
        Path(application.folder, f"{names[0]}.yaml") if is_packaged and names[0] in application.defaults else None
    )
    return next((file for name in names if (file := find(f"{name}.yaml", folders))), packaged)


# --- what Hydra makes of it ---


def _compose(application: Application, root: Path | None, run: _Run) -> Any:
    """Return the configuration that Hydra composes for a run, or a text with the reason why it cannot.

    The folder of configurations of the project in ``root`` is searched, too (None: the project is not here). Makes
    yaml's C loader, if there is one, the safe loader of this process.
    """
    try:
        import yaml

        yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # OmegaConf builds on it: half the time
        from hydra import compose, initialize_config_dir
    except ImportError:
        return Text("hydra-core is not installed (pip install hydra-core)")
    if not run.file.is_file():
        return Text(
            "{package} is not installed here; give its location with --path DIR or --python EXE",
            application.packages[0],
        )
    words = [re.sub("[\0\1]", _UNKNOWN, word) for word in run.overrides]
    if any(_UNKNOWN in word.partition("=")[0] for word in words):
        return _ANY
    home, folder = (root / application.folder).absolute() if root else None, run.file.absolute().parent
    searched = [f"hydra.searchpath=[file://{home}]"] if home and home != folder else []
    # An override counts although this release has no such key, which would stop the run there.
    forced = [f"++{word.lstrip('+')}" if re.match(r"[^~=/@]*\.[^=/@]*=", word) else word for word in words]
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(folder), version_base=None):
            warnings.simplefilter("ignore")
            return compose(run.file.stem, [*searched, *forced])
    except Exception as error:  # whatever YAML and resolvers of others raise is an answer
        first = str(error).strip().partition("\n")[0].replace(_UNKNOWN, "…")
        return Text("Hydra reports: {error}", first[:270])


def _judge(switches: Sequence[ConfigSwitch], run: _Run, config: Any, reading: Reading) -> GuardResult:
    """Return the severest result of one profiler's ``switches`` for ``config``, which was composed for ``run``.

    A switch that is not off counts as UNKNOWN unless the launch surely starts ``run`` with Python.
    """
    judged = [(switch, *_state(switch, config)) for switch in switches]
    switch, state, values = max(judged, key=lambda row: row[1].severity)
    set_keys = [key.name for key in switch.keys if values[key.name] not in (None, False, [], key.values[0])]
    text = " ".join(override(name, values[name]) for name in set_keys).replace(_UNKNOWN, "…")[:300]
    if state is State.OFF:
        return GuardResult(switch.profiler, state, run.start.where, text, Text("nothing to do"), switch.why)
    where = _find_place(switch.keys[0].name, run, reading)
    change = " ".join(dict.fromkeys(switch.off for switch, state, _ in judged if state is not State.OFF))
    off = Text("set {overrides} at {place}", overrides=change, place=within_sentence(where))
    if ".yaml:" in where:
        off = Text("set {overrides} on the command line, or at {place}", overrides=change, place=within_sentence(where))
    reason = ""
    if state is State.UNKNOWN:
        reason = Text("a value in the configuration is only known at run time")
    elif not (run.start.sure and run.start.program):
        state, reason = State.UNKNOWN, NOT_PLAIN
    why = (state is State.ARMED and switch.armed) or switch.why
    return GuardResult(switch.profiler, state, where, text, off, why, reason)


def _find_place(key: str, run: _Run, reading: Reading) -> str:
    """Return the place, ``file:line`` or a command, where a run sets the dotted ``key``, or one with the same end.

    If none sets it, return the place of the command that starts the run.
    """
    override_keys = [word.lstrip("+~").partition("=")[0] for word in run.overrides]
    alike = (name for name in override_keys if name.rpartition(".")[2] == key.rpartition(".")[2])
    name = key if key in override_keys else next(alike, key)
    lines = [text for text in reading.texts if ".yaml:" in text.where and name not in override_keys]
    for part in name.split("."):
        sets_part = re.compile(rf"(^|[\s{{,]){re.escape(part)}\s*:")
        lines = lines[next((at for at, text in enumerate(lines) if sets_part.search(text.text)), len(lines)) :]
    return lines[0].where if lines else reading.place(f"{name}=", run.start.where)


def _state(switch: ConfigSwitch, config: Any) -> tuple[State, dict[str, object]]:
    """Return a switch's state in a composed configuration, and the values of its keys by name.

    A value that is known only at run time contains a placeholder. If the state depends on it, that is UNKNOWN.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    values: dict[str, object] = {}
    for key in switch.keys:
        try:
            value = OmegaConf.select(config, key.name)
            values[key.name] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        except OmegaConfBaseException:
            values[key.name] = _UNKNOWN
    choices = (key.values if _UNKNOWN in str(values[key.name]) else (values[key.name],) for key in switch.keys)
    states = {switch.state(dict(zip(values, choice, strict=True))) for choice in product(*choices)}
    return (states.pop() if len(states) == 1 else State.UNKNOWN), values
