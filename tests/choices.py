"""Configurations for tests, built the way the command line builds them: from the words that a user would type."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import click

from patcher.cli.patching.apply import command
from patcher.cli.profile import PROFILE
from patcher.config import WHOLE, ProfileConfig, kind_of
from patcher.request import OPTIONS, ProfileRequest


def options(words: str | Sequence[str]) -> ProfileRequest:
    """What `rlpatch apply TARGET` reads from ``words``; Problem for what it refuses."""
    typed = shlex.split(words) if isinstance(words, str) else words
    with click.Context(command, info_name="apply", help_option_names=["-h", "--help"]) as context:
        click.Command.parse_args(command, context, ["TARGET", *typed])
        return PROFILE.build({str(option.name): context.params[str(option.name)] for option in PROFILE.options})


def config(words: str | Sequence[str], tool: str = "npu") -> ProfileConfig[Any]:
    """The configuration of `rlpatch apply TARGET` with ``words``, of a target that has every stage, in /tmp/traces."""
    request = options(words).checked()
    if request.stage != "builtin":
        request = request._replace(choices={"save_path": "/tmp/traces", **request.choices})
    unit = request.windows[0].unit if request.windows else WHOLE
    return request.config(request.stage or kind_of(unit).NAMES[0], unit, tool)


def typed(**choices: Any) -> tuple[str, ...]:
    """The words for choices by the names of their options: ``typed(level="level2", mstx=True)``."""
    chosen = [(OPTIONS[name], value) for name, value in choices.items() if value != "" and value is not False]
    return tuple(word for option, value in chosen for word in option.notation.typed(option.flag, value))
