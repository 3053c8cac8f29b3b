"""``rlpatch bundle``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from patcher.cli import options
from patcher.cli.options import Group, Option, click_option
from patcher.cli.profile import PROFILE
from patcher.commands.finding import SearchOptions
from patcher.commands.patching import bundling
from patcher.messages import CommandResult
from patcher.options import options_of
from patcher.options.headings import OUTPUT
from patcher.request import ProfileRequest


def _places(values: Mapping[str, Any]) -> list[SearchOptions]:
    """Return a search for each typed `--path` and `--python`, or the default search without any."""
    typed = options.typed_words()
    places = [SearchOptions(path=(path,), typed=typed) for path in values["path"]]
    places += [SearchOptions(python=python, typed=typed) for python in values["python"]]
    return places or [SearchOptions(typed=typed)]


_PATH = "Site-packages, checkout or wheel with the package. Repeat the option to bundle several releases."
_PYTHON = "Look for the package in the environment of this interpreter. Repeat the option to bundle several releases."
_SEARCH = options_of(SearchOptions)
PLACES = Group(
    "places",
    _places,
    click_option(_SEARCH["path"]._replace(about=_PATH), metavar="DIR|WHEEL"),
    click_option(_SEARCH["python"]._replace(about=_PYTHON), multiple=True),
)
FILE = Option(
    ["-o", "--output"],
    heading=OUTPUT,
    type=click.Path(path_type=Path),
    default="patch.pyz",
    metavar="FILE",
    help="The file to write. [default: patch.pyz]",
)


@options.command("bundle", options.targets("TARGET[==VERSION]...", required=True), FILE, groups=(PROFILE, PLACES))
def command(
    targets: tuple[str, ...], request: ProfileRequest, places: list[SearchOptions], output: Path
) -> CommandResult:
    """Write one file that patches TARGETs on machines without rlpatch. These machines need only Python 3.8 or newer.

    rlpatch reads the releases to bundle from installations or wheels, and downloads nothing. On each machine, the
    installed files decide which release is patched.

    \b
    Examples:
      rlpatch bundle vllm-ascend==0.11.0rc1 --decode 30:60 --save-path /traces
      rlpatch bundle vllm-ascend verl --decode 30:60 --mini-batch 0:1 -o p.pyz
      rlpatch bundle vllm-ascend --decode 30:60 --path one.whl --path another.whl
    """
    return bundling.bundle(targets, places, request.checked(), output)
