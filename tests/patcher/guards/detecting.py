"""Lets tests name only what they differ in of a launch and of what is checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from patcher.guards import detect as guards
from patcher.guards.result import Checked, GuardResult, Launch
from patcher.switches import Application, Release, Switch


def detect(
    switches: Iterable[Switch],
    *,
    version: str,
    environ: Mapping[str, str],
    script: Path | None = None,
    command: Sequence[str] = (),
    root: Path | None = None,
    config: Path | None = None,
    published: tuple[str, ...] = (),
    package: str = "",
    application: Application | None = None,
) -> tuple[GuardResult, ...]:
    """Return what ``patcher.guards.detect.detect`` says."""
    release = Release(version, published, root / package if root and package else None)
    launch = Launch(environ=environ, script=script, command=tuple(command), config=config)
    return guards.detect(Checked(tuple(switches), release, root, application), launch, with_off=True)
