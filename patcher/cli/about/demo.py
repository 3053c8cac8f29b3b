"""``rlpatch demo``."""

from __future__ import annotations

from pathlib import Path

from patcher.cli import options
from patcher.commands.about import demonstrating
from patcher.commands.finding import SearchOptions
from patcher.messages import CommandResult
from patcher.options import options_of

_PATH = "Copy the package from this folder instead of downloading it. The folder is not changed."
PATH = options.click_option(options_of(SearchOptions)["path"]._replace(about=_PATH), multiple=False)


@options.command("demo", PATH)
def command(path: Path | None) -> CommandResult:
    """Patch a copy of a published vllm-ascend release, show the changes, revert them, and compare every byte.

    pip downloads the release from its package index; with --path nothing is downloaded. Everything happens in a
    temporary folder. -v shows every inserted line, not just the calls of the probe.

    \b
    Examples:
      rlpatch demo
      rlpatch demo -v
      rlpatch demo --path /opt/venv/lib/python3.11/site-packages
    """
    verbose = not {"-v", "--verbose"}.isdisjoint(options.typed_words())
    return demonstrating.demo(path, options.wait, every_line=verbose)
