"""``rlpatch config``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from patcher.cli import configured, consent, options
from patcher.cli.nearest import NOWHERE, nearest
from patcher.config import UNITS, Window
from patcher.messages import CommandLine, CommandResult, Problem, StepResult, Text
from patcher.messages.language import VARIABLE as LANGUAGE
from patcher.request import OPTIONS

_Words = Mapping[str, tuple[str, ...]]


@options.command("config")
def command() -> CommandResult:
    """Show the configuration that applies in this folder: rlpatch.toml, or [tool.rlpatch] in pyproject.toml.

    apply, run and bundle use the targets and options of the configuration unless you type your own; other commands use
    only its keys `path` and `python`. RLPATCH variables of a run override both the configuration and typed
    options.

    \b
    Example:
      rlpatch config
    """
    source = nearest()
    names = {name for name in os.environ if name.startswith("RLPATCH")} - {LANGUAGE}
    variables = {name: os.environ[name] for name in sorted(names)}
    line = Text("{variable}={value} is set in this shell, and overrides the option that you gave to `rlpatch apply`")
    lines = [line.filled(variable=name, value=value) for name, value in variables.items()]
    if source is None:
        return _result(None, (), variables, NOWHERE, *lines)
    configuration = configured.read(source)
    for words in (configuration.options, *configuration.presets.values()):
        _check_values(words, configuration.file)
    untrusted = [python for python in configuration.interpreters if not consent.is_trusted(source, python)]
    rows = [
        str(configuration.file),
        *(f"  {word}" for word in configuration.targets),
        *(f"  {shlex.join(words)}" for words in configuration.options.values()),
        *(f"  --preset {name}: {shlex.join(chain(*words.values()))}" for name, words in configuration.presets.items()),
        *(Text("interpreter not trusted yet: {interpreter}", interpreter) for interpreter in untrusted),
        *([Text("next: {command}", CommandLine("trust", str(configuration.file)))] if untrusted else []),
    ]
    return _result(configuration, untrusted, variables, *rows, *lines)


def _result(
    configuration: configured.Configuration | None, untrusted: Sequence[str], variables: Mapping[str, str], *lines: str
) -> CommandResult:
    """Return the result of `rlpatch config`; its data are the fields of the `configuration` (None: there is none)."""
    none = configured.Configuration(Path())
    file = str(configuration.file) if configuration else None
    data = vars(configuration or none) | {"file": file, "untrusted": untrusted, "environment": variables}
    return CommandResult("config", StepResult(lines), data=data)


def _check_values(words: _Words, file: Path) -> None:
    """Raise Problem (USAGE) that names `file` if the value of an option would be refused on a command line."""
    for name, (_, *values) in words.items():
        option = name.removeprefix("--")
        try:
            for value in values:
                if option in UNITS:
                    Window.parse(option, value)
                elif (spec := OPTIONS.get(option.replace("-", "_"))) is not None:
                    spec.notation.read(name, value)
        except Problem as problem:
            raise problem.replace(where=str(file)) from None
