"""The values of a check: how a run is started, what is checked, and what is known of each profiler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from patcher.messages import Text
from patcher.switches import Application, ConfigSwitch, Release, State, Switch

_Switch = TypeVar("_Switch", Switch, ConfigSwitch)
AGAIN = Text("the patch checks for other profilers again before it records")
NOT_PLAIN = Text("the launch may not pass this word, or passes it in a form that rlpatch cannot read")


@dataclass(frozen=True)
class Launch:
    """Start of a run as the user describes it; ``config`` is the Hydra configuration file, if named."""

    environ: Mapping[str, str]
    script: Path | None = None
    command: tuple[str, ...] = ()
    config: Path | None = None


@dataclass(frozen=True)
class Checked:
    """Switches of a target, its release and its root; ``application`` is set if the target uses Hydra."""

    switches: tuple[Switch, ...]
    release: Release
    root: Path | None = None
    application: Application | None = None


class Hidden(NamedTuple):
    """A place with a text that cannot be read, and the reason."""

    where: str
    found: str
    reason: str


class GuardResult(NamedTuple):
    """Result for one profiler.

    ``where`` is ``environment``, ``run.sh:12`` or ``command after --``. ``found`` is the text at this place, "" for
    none. ``off`` says what to type or change, ``reason`` why the state is unknown, or why it is off nevertheless.
    """

    profiler: str
    state: State
    where: str
    found: str
    off: str
    why: str
    reason: str = ""


def existing(switches: Iterable[_Switch], profiler: str, release: Release) -> list[_Switch]:
    """Return the switches of a profiler that the release has."""
    return [switch for switch in switches if switch.profiler == profiler and release.has(switch)]


def completing(
    profiler: str, switches: Sequence[Switch | ConfigSwitch], hidden: Sequence[Hidden], where: str, off: str
) -> Iterator[GuardResult]:
    """Yield UNKNOWN for a profiler if a ``hidden`` text may switch it on, then OFF for the places ``where``.

    ``switches`` are those that the release has; ``off`` says how to switch the profiler off.
    """
    why = switches[0].why if switches else Text("this release has no switch for this profiler")
    for text in hidden[:1] if switches else ():
        line = text.found.partition("\n")[0].strip()[:200]
        is_searched = text.where != text.reason
        advice = Text("{off}, if this setting exists there", off) if is_searched else ""
        yield GuardResult(profiler, State.UNKNOWN, text.where, line, advice, why, text.reason)
    yield GuardResult(profiler, State.OFF, where, "", Text("nothing to do"), why)
