"""Options of `apply` for commands that name what is recorded already; they read their values as `apply` does."""

from __future__ import annotations

from patcher.cli.command import Option
from patcher.cli.options import click_option
from patcher.request import OPTIONS


def only(name: str, about: str) -> Option:
    """The option ``name``, which chooses among what is there."""
    return click_option(OPTIONS[name]._replace(about=about, shown=""))


STAGE = only("stage", "Only this stage.")
ROLE = only("role", "Only the patches for this role.")
