"""``rlpatch trust``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from patcher.cli import configured, consent, options
from patcher.cli.candidates import OWN, SHARED
from patcher.cli.nearest import NOWHERE, load, nearest
from patcher.messages import CommandResult, StepResult, Text, usage
from patcher.options.headings import OUTPUT

FILE = click.Argument(["file"], required=False, type=click.Path(path_type=Path), metavar="[FILE]")
_HINT = Text("name the configuration file: rlpatch trust FILE")
REMOVE = options.switch(
    OUTPUT,
    "Withdraw the trust: rlpatch no longer starts the Python interpreters that the configuration names.",
    "--remove",
)


@options.command("trust", FILE, REMOVE)
def command(file: Path | None, remove: bool) -> CommandResult:
    """Trust a configuration (FILE, or the configuration of this folder): let rlpatch start the interpreters that the
    configuration names.

    The trust holds only for your user account, and ends when the file or an interpreter named in it changes. Before
    you trust the file, check it and these interpreters: rlpatch will run them.

    \b
    Examples:
      rlpatch config
      rlpatch trust
      rlpatch trust --remove
    """
    source = load(_configuration_path(file)) if file else nearest()
    if source is None:
        raise usage(NOWHERE, _HINT)
    path = source.file
    if remove:
        if consent.distrust(path):
            return _result(path, (), Text("no longer trusted: {path}", path))
        return _result(path, (), Text("no trust to remove: {path} is not trusted", path))
    interpreters = configured.read(source).interpreters
    if not interpreters:
        line = Text("nothing to trust: {path} names no Python interpreter that rlpatch would start", path)
        return _result(path, (), line)
    if len(interpreters) > consent.MOST:
        cause = Text("{file} lists {count} interpreters, but at most {limit} are allowed")
        hint = Text("list fewer interpreters in the file, or choose one on the command line: --python EXE")
        raise usage(cause.filled(file=path.name, count=len(interpreters), limit=consent.MOST), hint, str(path))
    consent.trust(source, interpreters)
    return _result(path, interpreters, Text("trusted: {path}", path), *map(_interpreter_line, interpreters))


def _configuration_path(file: Path) -> Path:
    """Return the path of a configuration file, its folder without links. Raises Problem (USAGE) for another name."""
    if file.name not in (OWN, SHARED):
        cause = Text("{file} is not a configuration file: the name must be {own_name} or {shared_name}")
        raise usage(cause.filled(file=file, own_name=OWN, shared_name=SHARED), _HINT)
    return Path(os.path.realpath(file.parent), file.name)


def _interpreter_line(interpreter: str) -> str:
    """Return a line that rlpatch may start an interpreter, with its program, and where that leads if it is a link."""
    program = consent.program(interpreter)
    if program is None:
        return Text("  rlpatch is allowed to start {interpreter}, which does not exist on this machine", interpreter)
    real = os.path.realpath(program)
    if real == str(program):
        return Text("  rlpatch is allowed to start {program}", program)
    return Text("  rlpatch is allowed to start {program}, a symbolic link to {target}", program=program, target=real)


def _result(file: Path, interpreters: tuple[str, ...], *lines: str) -> CommandResult:
    data = {"file": str(file), "interpreters": interpreters}
    return CommandResult("trust", StepResult(lines), data=data)
