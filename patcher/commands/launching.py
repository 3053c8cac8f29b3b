"""How the run will be started, as options; apart from `finding`, which a node loads without any guard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from patcher.guards.result import Launch
from patcher.options import option
from patcher.options.headings import PROFILERS
from patcher.options.notations import FilePath


@dataclass(frozen=True)
class LaunchOptions(Launch):
    """How the run will be started, as far as the user says."""

    environ: Mapping[str, str]
    script: Path | None = option(
        FilePath("FILE"), PROFILERS, "The launch script to look for other profilers in.", default=None
    )
    command: tuple[str, ...] = ()
    config: Path | None = option(
        FilePath("FILE"),
        PROFILERS,
        "The YAML file that configures the run (verl), if it is not the installed one that the launch names.",
        default=None,
    )
