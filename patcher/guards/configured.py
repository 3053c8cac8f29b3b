"""Is a profiler switched on by a Hydra configuration? Composed by Hydra, where a launch names a profiler at all.

The configurations that a project packages leave every profiler off, which a test proves for each release.
"""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

from patcher.guards.launch import Reading, find, text_of
from patcher.guards.result import (
    ENVIRONMENT,
    NOT_PLAIN,
    Checked,
    GuardResult,
    Hidden,
    LaunchText,
    within_sentence,
)
from patcher.guards.shell import normal
from patcher.guards.start import KEPT, Start, is_hidden, is_known
from patcher.messages import Kind, Problem, Text
from patcher.switches import Application, ConfigSwitch, State, override

_UNKNOWN = "rlpatch_unknown"
"""Stands in a configuration for what is not known; an identifier, so that it is valid wherever a text is."""
_OPTION = r"(?m)^(?:--config-|-c)([pnd])\w*[=\n](.*)$"  # for path, name and dir
_PRINTS = {"--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i"}  # then it runs nothing
_ANY = Text("part of the command is only known at run time, and may be any override")
_NO_GROUP = Text("the configuration uses a Hydra config group that was not found here")
_NO_CONFIG = Text("the run's configuration was not found here or is only known at run time; name it with --config FILE")


class _Run(NamedTuple):
    """A start of the application, its overrides, its file (None: it is not here), and whether it surely runs."""

    start: Start
    words: tuple[str, ...]
    file: Path | None
    sure: bool


def configured(
    application: Application, checked: Checked, config: Path | None, reading: Reading
) -> tuple[list[GuardResult], list[Hidden]]:
    """Return the results of what a Hydra ``application`` composes, and the places whose text cannot be read.

    ``checked`` has the target's release and root, ``reading`` the texts of the launch. The file ``config``, if given,
    is used instead of the one that the launch names. If some text cannot be read, only profilers that are ON have a
    result. Raises Problem (USAGE) if ``config`` is no YAML file.
    """
    if config is not None and (config.suffix != ".yaml" or not config.is_file()):
        reason = Text("Hydra reads files that end in .yaml") if config.is_file() else Text("this file does not exist")
        hint = Text("name the YAML file that configures the run: --config FILE")
        raise Problem(Kind.USAGE, Text("cannot read the configuration: {reason}", reason), str(config), hint)
    reading = replace(reading, hidden=[*reading.hidden])  # an override hides nothing of the environment
    composed = [*_compositions(application, checked.root, config, reading)]
    results = list[GuardResult]()
    for profiler in dict.fromkeys(switch.profiler for switch in application.switches):
        alike = (switch for switch in application.switches if composed and switch.profiler == profiler)
        switches = [switch for switch in alike if checked.release.has(switch)]
        results += [_judged(switches, run, content, reading) for run, content in composed if switches]
    is_on = {result.profiler for result in results if result.state is State.ON}
    return [result for result in results if not reading.hidden or result.profiler in is_on], reading.hidden


def _compositions(
    application: Application, root: Path | None, config: Path | None, reading: Reading
) -> Iterator[tuple[_Run, Any]]:
    """Yield each run of the application with the configuration that Hydra composes for it.

    Runs are composed only if the launch names a profiler, always in plain text, or includes configurations that the
    project doesn't package. What cannot be composed or read is added to ``reading.hidden``.
    """
    package = application.packages[0]
    runs = [*_runs(application, root, config, reading)]
    mentions = [*_mentions(application, root, {str(run.file) for run in runs}, reading)]
    unclear = [text for text in mentions if not text.plain or "oc.env" in text.text]
    reading.hidden[:0] = [Hidden(text.where, text.text, NOT_PLAIN) for text in unclear]
    if root is None and not reading.texts:
        reason = Text("{package} is not installed here", package)
        reading.hidden.append(Hidden(reason, "", reason))
    if mentions and not runs:
        reason = Text("the commands of the launch that rlpatch could read do not start {package}", package)
        reading.hidden.append(Hidden(mentions[0].where, mentions[0].text, reason))
    packaged = "|".join((r"_self_|\S+://.*", *application.defaults))
    takes = re.compile(rf"\s{{0,2}}-\s+(?!({packaged})\s*$)")  # a configuration of the user includes others
    is_mixed = any(takes.match(line.text) for line in reading.texts if ".yaml:" in line.where)
    for run in runs if not unclear else ():
        if mentions or is_mixed:
            content = _composed(application, root, run)
            if isinstance(content, str):
                reading.hidden.append(Hidden(run.start.where, "", content))
            else:
                yield run, content


def _mentions(
    application: Application, root: Path | None, configurations: Collection[str], reading: Reading
) -> Iterator[LaunchText]:
    """Yield the texts that name a profiler, except in programs below ``root`` that run Hydra: these only read names.

    Lines of the files ``configurations`` that are not plain are left out, because these files were read again, as
    plain.
    """
    for text in reading.texts:
        name = text.where.rpartition(":")[0]
        is_read_again = not text.plain and name in configurations
        if not is_read_again and re.search(application.names, text.text):
            is_inside = root and Path(name).is_file() and Path(name).resolve().is_relative_to(root.resolve())
            if not (is_inside and re.search(application.main, text_of(Path(name)))):
                yield text


# --- what is started ---


def _runs(application: Application, root: Path | None, config: Path | None, reading: Reading) -> Iterator[_Run]:
    """Yield each start of the application with its overrides and configuration file.

    At the end, the lines of these files are added to ``reading``, unless the project packages them; what hides a
    configuration is added to ``reading.hidden``. A file ``config`` replaces the one that a start names, and is a run of
    its own if nothing was typed.
    """
    files = list[Path | None]()
    if config is not None and reading.starts[0].where == ENVIRONMENT:
        files.append(config)
        yield _Run(Start(str(config), ("python",), sure=True), (), config, sure=True)
    for start in reading.starts:
        at, program = _program(application, root, start)
        if not at:
            continue
        words = start.words[at:]
        option = rf"(?m)^{application.option}()[=\n](.*)$" if application.option else _OPTION
        typed = dict(re.findall(option, "\n".join(words)))
        file, is_here = (config, True) if config else _configuration(application, root, program, start, typed)
        reading.hidden.extend(Hidden(start.where, "", reason) for reason in _reasons(words, application, root))
        if not is_here or (file is not None and file.name in reading.written):
            reading.hidden.append(Hidden(start.where, "", _NO_CONFIG))
        if is_here:
            files.append(file)
            overrides = (word for word in words if not re.match(r"-|.*\.py$", word) and word not in typed.values())
            yield _Run(start, (*overrides,), file, start.sure and not _PRINTS & {*start.words})
    package = (root / application.packages[0]).resolve() if root else None
    for file in filter(None, files):
        if not (package and file.resolve().is_relative_to(package)):
            _read(file, reading)


def _reasons(words: Sequence[str], application: Application, root: Path | None) -> Iterator[str]:
    """Yield why some overrides among ``words`` cannot be read: known only at run time, or of a missing config group."""
    if any(map(is_hidden, words)):
        yield _ANY
    if any(_is_missing(word, (root or Path()) / application.folder) for word in words):
        yield _NO_GROUP


def _read(file: Path, reading: Reading) -> None:
    """Add the lines of a configuration to ``reading``."""
    lines = enumerate(re.sub(r"(?m)(^|\s)#.*", "", text_of(file)).splitlines(), 1)
    reading.texts.extend(LaunchText(f"{file}:{number}", normal(line), plain=True) for number, line in lines)


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
    """Return the configuration file of a start (None: not here), and whether it is here or the project packages it.

    ``program`` is the file of the program, which may name a configuration. ``typed`` has the options of the command
    line: p for the path, n for the name, d for the directory, or "" for the option of ``application``.
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


def _is_missing(word: str, home: Path) -> bool:
    """Tell whether an override selects an option of a config group that is not in ``home``, or moves the search path.

    ``home`` is the project's folder of configurations.
    """
    key, _, value = word.lstrip("+").partition("=")
    group = home / key.partition("@")[0]
    takes_option = re.search("[@/]|^hydra.searchpath", key) or group.is_dir()
    return bool(takes_option) and value not in ("null", "") and not (group / f"{value}.yaml").is_file()


# --- what Hydra makes of it ---


def _composed(application: Application, root: Path | None, run: _Run) -> Any:
    """Return the configuration that Hydra composes for a run, or a text with the reason why it cannot.

    Words that are known only at run time become a placeholder.
    """
    try:
        import yaml

        yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # OmegaConf builds on it: half the time
        from hydra import compose, initialize_config_dir
    except ImportError:
        return Text("hydra-core is not installed (pip install hydra-core)")
    if run.file is None:
        return Text(
            "{package} is not installed here; give its location with --path DIR or --python EXE",
            application.packages[0],
        )
    words = [re.sub("[\0\1]", _UNKNOWN, word.replace(KEPT, "")) for word in run.words]
    if any(_UNKNOWN in word.partition("=")[0] for word in words):
        return _ANY
    home, folder = (root / application.folder).absolute() if root else None, run.file.absolute().parent
    searched = [f"hydra.searchpath=[file://{home}]"] if home and home != folder else []
    # An override counts although this release has no such key, which would stop the run there.
    forced = [f"++{word.lstrip('+')}" if re.match(r"[^~=/@]*\.[^=/@]*=", word) else word for word in words]
    gc.disable()  # a configuration is thousands of small objects: a third of the time
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(folder), version_base=None):
            warnings.simplefilter("ignore")
            return compose(run.file.stem, [*searched, *forced])
    except Exception as error:  # whatever YAML and resolvers of others raise is an answer
        first = str(error).strip().partition("\n")[0].replace(_UNKNOWN, "…")
        return Text("Hydra reports: {error}", first[:270])
    finally:
        gc.enable()


def _judged(switches: Sequence[ConfigSwitch], run: _Run, config: Any, reading: Reading) -> GuardResult:
    """Return the severest result of one profiler's ``switches`` for ``config``, the configuration of ``run``.

    It is UNKNOWN if the launch may not run this program; where and how to switch the profiler off is found in
    ``reading``.
    """
    states = [_state(switch, config) for switch in switches]
    state = max(states, key=lambda state: state.severity)
    switch, values, reason = switches[states.index(state)], _values(switches[states.index(state)], config), ""
    set_keys = [key.name for key in switch.keys if values[key.name] not in (None, False, [], key.values[0])]
    text = " ".join(override(name, values[name]) for name in set_keys).replace(_UNKNOWN, "…")[:300]
    if state is State.OFF:
        return GuardResult(switch.profiler, state, run.start.where, text, Text("nothing to do"), switch.why)
    line, where = _place(switch.keys[0].name, run, reading)
    severe = (switch for switch, state in zip(switches, states, strict=True) if state is not State.OFF)
    change, place = " ".join(dict.fromkeys(switch.off for switch in severe)), within_sentence(where)
    off = Text("set {overrides} at {place}", change, place)
    if line:
        off = Text("set {overrides} on the command line, or at {place}", change, place)
    if state is State.UNKNOWN:
        reason = Text("a value in the configuration is only known at run time")
    elif not (run.sure and run.start.program):
        state, reason = State.UNKNOWN, NOT_PLAIN
    why = (state is State.ARMED and switch.armed) or switch.why
    return GuardResult(switch.profiler, state, where, text, off, why, reason)


def _place(key: str, run: _Run, reading: Reading) -> tuple[str, str]:
    """Return where a dotted ``key``, or an override that it may follow from, is set in a configuration file and at all.

    The first is "" if it was typed; the second is then the place of the command.
    """
    typed = [word.lstrip("+~").partition("=")[0] for word in run.words]
    alike = (name for name in typed if name.rpartition(".")[2] == key.rpartition(".")[2])
    name = key if key in typed else next(alike, key)
    line = _line_of(name, reading) if name not in typed else ""
    return line, line or reading.place(f"{name}=", run.start.where)


def _line_of(key: str, reading: Reading) -> str:
    """Return the place (``file:line``) of a dotted ``key`` in the YAML files that were read, "" if it is in none."""
    lines = [text for text in reading.texts if ".yaml:" in text.where]
    for part in key.split("."):
        name = re.compile(rf"(^|[\s{{,]){re.escape(part)}\s*:")
        lines = lines[next((at for at, text in enumerate(lines) if name.search(text.text)), len(lines)) :]
    return lines[0].where if lines else ""


def _values(switch: ConfigSwitch, config: Any) -> dict[str, object]:
    """Return name of a switch's key → its value in a configuration: None if missing, a placeholder if unresolvable."""
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
    """Return the state of a switch in a configuration; UNKNOWN if it depends on a value that only the run tells."""
    values = _values(switch, config)
    choices = (key.values if _UNKNOWN in str(values[key.name]) else (values[key.name],) for key in switch.keys)
    states = {switch.state(dict(zip(values, choice, strict=True))) for choice in product(*choices)}
    return states.pop() if len(states) == 1 else State.UNKNOWN
